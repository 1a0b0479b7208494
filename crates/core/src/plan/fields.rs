//! Reads single values out of TOML tables. What has the wrong type, an unknown key or a bad name
//! becomes a finding; what they mean together is not known here.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::ids::BadName;
use crate::limits::NAME_MAX;
use crate::plan::source::Findings;
use crate::plan::suggest::nearest;

/// A table of a file and where its mistakes go.
pub struct Fields<'a, 'f> {
    pub(super) table: &'a DeTable<'a>,
    /// Where the table starts.
    pub(super) at: usize,
    pub(super) findings: &'f mut Findings,
}

/// The keys of a kind of table.
pub struct Keys {
    pub known: &'static [&'static str],
    /// Keys of the format that this version does not read.
    pub later: &'static [&'static str],
}

impl<'a, 'f> Fields<'a, 'f> {
    /// The table that `value`, found under `key`, must be.
    pub(super) fn of(
        key: &str,
        value: &'a Spanned<DeValue<'a>>,
        findings: &'f mut Findings,
    ) -> Option<Fields<'a, 'f>> {
        let at = value.span().start;
        match value.get_ref() {
            DeValue::Table(table) => Some(Fields { table, at, findings }),
            other => {
                let hint = format!("make {} a table of keys and values", shown(key));
                findings.add(at, wrong_type(key, "a table", other), hint);
                None
            }
        }
    }

    /// The table under `key`, if there is one.
    pub fn table(&mut self, key: &str) -> Option<Fields<'a, '_>> {
        Fields::of(key, self.table.get(key)?, self.findings)
    }

    /// Finds a mistake in the value of `key`.
    pub fn find(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        self.findings.add(self.place_of(key), message, hint);
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Where the value of `key` stands; the table itself when there is none.
    pub(super) fn place_of(&self, key: &str) -> usize {
        self.table.get(key).map_or(self.at, |value| value.span().start)
    }

    /// Finds every key that is not one of these.
    pub fn only(&mut self, keys: &Keys) {
        for key in self.table.keys() {
            let (at, name) = (key.span().start, key.get_ref().as_ref());
            if keys.later.contains(&name) {
                let message = format!("`{name}` is not supported by this version of piton");
                self.findings.add(at, message, "remove it");
            } else if !keys.known.contains(&name) {
                let all = keys.known.iter().chain(keys.later).copied();
                let hint = match nearest(name, all) {
                    Some(meant) => did_you_mean(meant),
                    None => format!("the keys here are: {}", keys.known.join(", ")),
                };
                self.findings.add(at, format!("unknown key {}", shown(name)), hint);
            }
        }
    }

    /// A string.
    pub fn text(&mut self, key: &str) -> Option<Spanned<&'a str>> {
        text_of(key, self.table.get(key)?, self.findings)
    }

    /// A string that says something.
    pub(super) fn script(&mut self, key: &str) -> Option<String> {
        let text = self.text(key)?;
        if text.get_ref().trim().is_empty() {
            let hint = "give it a text; an optional key can be left out";
            self.findings.add(text.span().start, format!("`{key}` is empty"), hint);
            return None;
        }
        Some(text.into_inner().to_owned())
    }

    /// A string of one line that can be shown to people.
    pub(super) fn label(&mut self, key: &str) -> Option<String> {
        let text = self.script(key)?;
        let at = self.place_of(key);
        is_one_line(&format!("`{key}`"), &Spanned::new(at..at, &text), self.findings)
            .then_some(text)
    }

    /// An array of strings.
    pub(super) fn texts(&mut self, key: &str) -> Option<Vec<Spanned<&'a str>>> {
        let value = self.table.get(key)?;
        let DeValue::Array(array) = value.get_ref() else {
            let message = wrong_type(key, "an array of strings", value.get_ref());
            self.findings.add(value.span().start, message, format!("write {key} = [\"…\"]"));
            return None;
        };
        Some(array.iter().filter_map(|entry| text_of(key, entry, self.findings)).collect())
    }

    /// A name of the kind `T`.
    pub(super) fn name<T: TryFrom<String, Error = BadName>>(
        &mut self,
        key: &str,
    ) -> Option<Spanned<T>> {
        let text = self.text(key)?;
        let name = name_of(text.span().start, text.get_ref(), self.findings)?;
        Some(Spanned::new(text.span(), name))
    }

    /// A whole number in this range.
    pub fn number(&mut self, key: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let value = self.table.get(key)?;
        let number = match value.get_ref() {
            DeValue::Integer(digits) => u32::from_str_radix(digits.as_str(), digits.radix()).ok(),
            _ => None,
        };
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (min, max) = range.into_inner();
            let message = format!("`{key}` must be a whole number from {min} to {max}");
            self.findings.add(value.span().start, message, format!("write {key} = 2, for example"));
        }
        number
    }

    /// Yes or no.
    pub(super) fn truth(&mut self, key: &str) -> Option<bool> {
        let value = self.table.get(key)?;
        let truth = value.get_ref().as_bool();
        if truth.is_none() {
            let message = wrong_type(key, "true or false", value.get_ref());
            let hint = format!("write {key} = true or {key} = false, without quotes");
            self.findings.add(value.span().start, message, hint);
        }
        truth
    }

    /// A table of strings whose keys can be names in an environment; empty when there is none.
    pub(super) fn variables(&mut self, key: &str) -> BTreeMap<String, String> {
        let Some(value) = self.table.get(key) else {
            return BTreeMap::new();
        };
        let Some(fields) = Fields::of(key, value, self.findings) else {
            return BTreeMap::new();
        };
        let mut variables = BTreeMap::new();
        for (name, value) in fields.table {
            let text = text_of(name.get_ref(), value, fields.findings);
            if !is_variable(name.get_ref()) {
                let message = format!("{} is not a valid name for a value", shown(name.get_ref()));
                let hint = "use letters, digits and '_', not starting with a digit";
                fields.findings.add(name.span().start, message, hint);
            } else if let Some(text) = text {
                variables.insert(name.get_ref().to_string(), text.into_inner().to_owned());
            }
        }
        variables
    }

    /// Variables for a process; those that piton itself sets are refused.
    pub(super) fn env(&mut self) -> BTreeMap<String, String> {
        let names = self.table.get("env").and_then(|value| value.get_ref().as_table());
        for name in names.into_iter().flat_map(|table| table.keys()) {
            if name.get_ref().starts_with("PITON_") {
                let message = format!("{} is reserved for piton", shown(name.get_ref()));
                self.findings.add(name.span().start, message, "use a name without PITON_");
            }
        }
        self.variables("env")
    }
}

/// A name of the kind `T`; after a finding about capitals, what was meant.
pub(super) fn name_of<T: TryFrom<String, Error = BadName>>(
    at: usize,
    text: &str,
    findings: &mut Findings,
) -> Option<T> {
    let bad = match T::try_from(text.to_owned()) {
        Ok(name) => return Some(name),
        Err(bad) => bad,
    };
    let plain = plain(text);
    let hint = match T::try_from(plain.clone()) {
        Ok(_) => format!("did you mean `{plain}`? {}", bad.rule),
        Err(_) => bad.rule.to_owned(),
    };
    findings.add(at, format!("{} is not a valid {}", shown(text), bad.kind), hint);
    T::try_from(text.to_ascii_lowercase()).ok()
}

/// Whether people can be shown the text, which is `what`, on one line.
pub(super) fn is_one_line(what: &str, text: &Spanned<&str>, findings: &mut Findings) -> bool {
    let plain = !text.get_ref().chars().any(char::is_control);
    if !plain {
        let message = format!("{what} contains a line break or another control character");
        findings.add(text.span().start, message, "write it in one line of plain text");
    }
    plain
}

pub(super) fn did_you_mean(meant: &str) -> String {
    format!("did you mean `{meant}`?")
}

/// A text of the file as part of a message: bounded, on one line, without tricks for terminals.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::from("`");
    for character in text.chars().take(NAME_MAX) {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    if text.chars().nth(NAME_MAX).is_some() {
        shown.push('…');
    }
    shown + "`"
}

fn text_of<'a>(
    key: &str,
    value: &'a Spanned<DeValue<'a>>,
    findings: &mut Findings,
) -> Option<Spanned<&'a str>> {
    let at = value.span().start;
    let Some(text) = value.get_ref().as_str() else {
        findings.add(at, wrong_type(key, "a string", value.get_ref()), "put it in \"quotes\"");
        return None;
    };
    if text.contains('\0') {
        findings.add(at, format!("there is a NUL character in {}", shown(key)), "remove it");
        return None;
    }
    Some(Spanned::new(value.span(), text))
}

pub(super) fn wrong_type(key: &str, expected: &str, found: &DeValue<'_>) -> String {
    let found = match found {
        DeValue::Array(_) => "an array",
        DeValue::Integer(_) => "an integer",
        DeValue::String(_) => "a string",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Table(_) => "a table",
    };
    format!("{} must be {expected}, not {found}", shown(key))
}

fn is_variable(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The text with what no name may have replaced.
fn plain(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let text = text.chars().take(NAME_MAX).map(|c| c.to_ascii_lowercase());
    let text: String = text.map(|c| if allowed(c) { c } else { '-' }).collect();
    text.trim_matches(['-', '_']).to_owned()
}
