//! Reads single values out of tables. What has the wrong type, an unknown key or a bad name
//! becomes a finding; what they mean together is not known here.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use piton_core::ids::BadName;
use piton_core::limits::NAME_MAX;
use piton_core::plan::{nearest, shown};

use crate::source::Findings;
use crate::value::{Located, Node, Table, Value};

/// A table of a file and where its mistakes go.
pub struct Fields<'a, 'f> {
    pub(crate) table: &'a Table,
    /// Where the table starts.
    pub(crate) at: usize,
    pub(crate) findings: &'f mut Findings,
}

/// The keys of a kind of table.
pub struct Keys {
    pub known: &'static [&'static str],
    /// Keys of the format that this version does not read.
    pub later: &'static [&'static str],
}

impl<'a, 'f> Fields<'a, 'f> {
    /// The table that `value`, found under `key`, must be.
    pub(crate) fn of(
        key: &str,
        value: &'a Node,
        findings: &'f mut Findings,
    ) -> Option<Fields<'a, 'f>> {
        let at = value.at();
        match &value.value {
            Value::Table(table) => Some(Fields { table, at, findings }),
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

    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Where the value of `key` stands; the table itself when there is none.
    pub(crate) fn place_of(&self, key: &str) -> usize {
        self.table.get(key).map_or(self.at, Node::at)
    }

    /// Finds every key that is not one of these.
    pub fn only(&mut self, keys: &Keys) {
        for key in self.table.keys() {
            let (at, name) = (key.at, key.text.as_str());
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
    pub fn text(&mut self, key: &str) -> Option<Located<&'a str>> {
        text_of(key, self.table.get(key)?, self.findings)
    }

    /// A string that says something.
    pub(crate) fn script(&mut self, key: &str) -> Option<String> {
        let text = self.text(key)?;
        if text.value.trim().is_empty() {
            let hint = "give it a text; an optional key can be left out";
            self.findings.add(text.at, format!("`{key}` is empty"), hint);
            return None;
        }
        Some(text.value.to_owned())
    }

    /// A string of one line that can be shown to people.
    pub(crate) fn label(&mut self, key: &str) -> Option<String> {
        let text = self.script(key)?;
        let at = self.place_of(key);
        is_one_line(&format!("`{key}`"), &Located { at, value: &text }, self.findings)
            .then_some(text)
    }

    /// An array of strings.
    pub(crate) fn texts(&mut self, key: &str) -> Option<Vec<Located<&'a str>>> {
        let value = self.table.get(key)?;
        let Value::List(array) = &value.value else {
            let message = wrong_type(key, "an array of strings", &value.value);
            self.findings.add(value.at(), message, format!("write {key} = [\"…\"]"));
            return None;
        };
        Some(array.iter().filter_map(|entry| text_of(key, entry, self.findings)).collect())
    }

    /// A name of the kind `T`.
    pub(crate) fn name<T: TryFrom<String, Error = BadName>>(
        &mut self,
        key: &str,
    ) -> Option<Located<T>> {
        let text = self.text(key)?;
        let name = name_of(text.at, text.value, self.findings)?;
        Some(Located { at: text.at, value: name })
    }

    /// A whole number in this range.
    pub fn number(&mut self, key: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let value = self.table.get(key)?;
        let number = match value.value {
            Value::Integer(number) => number.and_then(|number| u32::try_from(number).ok()),
            _ => None,
        };
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (min, max) = range.into_inner();
            let message = format!("`{key}` must be a whole number from {min} to {max}");
            self.findings.add(value.at(), message, format!("write {key} = 2, for example"));
        }
        number
    }

    /// Yes or no.
    pub(crate) fn truth(&mut self, key: &str) -> Option<bool> {
        let value = self.table.get(key)?;
        let truth = value.as_boolean();
        if truth.is_none() {
            let message = wrong_type(key, "true or false", &value.value);
            let hint = format!("write {key} = true or {key} = false, without quotes");
            self.findings.add(value.at(), message, hint);
        }
        truth
    }

    /// A table of strings whose keys can be names in an environment; empty when there is none.
    pub(crate) fn variables(&mut self, key: &str) -> BTreeMap<String, String> {
        let Some(value) = self.table.get(key) else {
            return BTreeMap::new();
        };
        let Some(fields) = Fields::of(key, value, self.findings) else {
            return BTreeMap::new();
        };
        let mut variables = BTreeMap::new();
        for (name, value) in fields.table {
            let text = text_of(&name.text, value, fields.findings);
            if !is_variable(&name.text) {
                let message = format!("{} is not a valid name for a value", shown(&name.text));
                let hint = "use letters, digits and '_', not starting with a digit";
                fields.findings.add(name.at, message, hint);
            } else if let Some(text) = text {
                variables.insert(name.text.clone(), text.value.to_owned());
            }
        }
        variables
    }

    /// Variables for a process; those that piton itself sets are refused.
    pub(crate) fn env(&mut self) -> BTreeMap<String, String> {
        let names = self.table.get("env").and_then(Node::as_table);
        for name in names.into_iter().flat_map(|table| table.keys()) {
            if name.text.starts_with("PITON_") {
                let message = format!("{} is reserved for piton", shown(&name.text));
                self.findings.add(name.at, message, "use a name without PITON_");
            }
        }
        self.variables("env")
    }
}

/// A name of the kind `T`; after a finding about capitals, what was meant.
pub(crate) fn name_of<T: TryFrom<String, Error = BadName>>(
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
pub(crate) fn is_one_line(what: &str, text: &Located<&str>, findings: &mut Findings) -> bool {
    let plain = !text.value.chars().any(char::is_control);
    if !plain {
        let message = format!("{what} contains a line break or another control character");
        findings.add(text.at, message, "write it in one line of plain text");
    }
    plain
}

pub(crate) fn did_you_mean(meant: &str) -> String {
    format!("did you mean `{meant}`?")
}

fn text_of<'a>(key: &str, value: &'a Node, findings: &mut Findings) -> Option<Located<&'a str>> {
    let at = value.at();
    let Some(text) = value.as_text() else {
        findings.add(at, wrong_type(key, "a string", &value.value), "put it in \"quotes\"");
        return None;
    };
    if text.contains('\0') {
        findings.add(at, format!("there is a NUL character in {}", shown(key)), "remove it");
        return None;
    }
    Some(Located { at, value: text })
}

pub(crate) fn wrong_type(key: &str, expected: &str, found: &Value) -> String {
    format!("{} must be {expected}, not {}", shown(key), found.kind())
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
