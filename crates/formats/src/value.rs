//! A structured file as a tree whose parts know where they stand, whatever the syntax: TOML, JSON and YAML
//! are read into the same one. What it means is not known here.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) mod json;
pub(crate) mod toml;
pub(crate) mod yaml;

/// A value and the bytes that it stands in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) span: Range<usize>,
    pub(crate) value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Boolean(bool),
    /// None where it is beyond what 64 bits hold.
    Integer(Option<i64>),
    Float(f64),
    Text(String),
    Date,
    List(Vec<Node>),
    Table(Table),
}

pub(crate) type Table = BTreeMap<Key, Node>;

/// A key of a table: known by its text.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) at: usize,
    pub(crate) text: String,
}

/// Something read, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    pub at: usize,
    pub value: T,
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.text == other.text
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl Node {
    pub(crate) fn at(&self) -> usize {
        self.span.start
    }

    pub(crate) fn as_table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    pub(crate) fn as_list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_boolean(&self) -> Option<bool> {
        match self.value {
            Value::Boolean(truth) => Some(truth),
            _ => None,
        }
    }

    /// A text, number or truth as words, as people write ids and versions with and without quotes.
    pub(crate) fn words(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) => Some(text.clone()),
            Value::Integer(Some(number)) => Some(number.to_string()),
            Value::Float(number) => Some(number.to_string()),
            Value::Boolean(truth) => Some(truth.to_string()),
            _ => None,
        }
    }

    /// What stands under `key`, be it null.
    pub(crate) fn raw(&self, key: &str) -> Option<&Node> {
        self.as_table()?.get(key)
    }

    /// The value under `key` that is not null.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.as_table()?.get(key).filter(|node| node.value != Value::Null)
    }

    /// The first of these keys that has a value.
    pub(crate) fn any(&self, keys: &[&str]) -> Option<&Node> {
        keys.iter().find_map(|key| self.get(key))
    }

    /// The first of these keys that has words.
    pub(crate) fn text(&self, keys: &[&str]) -> Option<String> {
        let words = keys.iter().filter_map(|key| self.get(key)?.words());
        words.map(|words| words.trim().to_owned()).find(|words| !words.is_empty())
    }

    /// Its words, or those of the first of these keys.
    pub(crate) fn text_or(&self, keys: &[&str]) -> Option<String> {
        self.words().or_else(|| self.text(keys)).map(|words| words.trim().to_owned())
    }

    /// The entries of the list under one of these keys; a single value is a list of one.
    pub(crate) fn list(&self, keys: &[&str]) -> &[Node] {
        match self.any(keys) {
            Some(Node { value: Value::List(list), .. }) => list,
            Some(one) => std::slice::from_ref(one),
            None => &[],
        }
    }

    /// The words of the list under one of these keys.
    pub(crate) fn texts(&self, keys: &[&str]) -> Vec<String> {
        self.list(keys).iter().filter_map(Node::words).collect()
    }
}

impl Node {
    /// Everything in it but these keys, as an indented list for people.
    pub(crate) fn outline(&self, without: &[&str]) -> String {
        let mut text = String::new();
        self.outline_into(&mut text, 0, without);
        text
    }

    fn outline_into(&self, text: &mut String, depth: usize, without: &[&str]) {
        let dash = format!("{}- ", "  ".repeat(depth));
        match &self.value {
            Value::Table(table) => {
                let mut rows: Vec<(&Key, &Node)> = table.iter().collect();
                rows.sort_by_key(|(key, _)| key.at);
                let is_told = |(key, _): &(&Key, &Node)| !without.contains(&key.text.as_str());
                for (key, node) in rows.into_iter().filter(is_told) {
                    let name = key.text.replace('_', " ");
                    match node.words() {
                        Some(words) => {
                            let words =
                                words.trim().replace('\n', &format!("\n{}  ", "  ".repeat(depth)));
                            text.push_str(&format!("{dash}{name}: {words}\n"));
                        }
                        None if node.is_empty() => {}
                        None => {
                            text.push_str(&format!("{dash}{name}:\n"));
                            node.outline_into(text, depth + 1, &[]);
                        }
                    }
                }
            }
            Value::List(list) => {
                for node in list {
                    match node.words() {
                        Some(words) => text.push_str(&format!("{dash}{}\n", words.trim())),
                        None => node.outline_into(text, depth, without),
                    }
                }
            }
            _ => text.extend(self.words().map(|words| format!("{dash}{words}\n"))),
        }
    }

    fn is_empty(&self) -> bool {
        match &self.value {
            Value::Null => true,
            Value::Text(text) => text.trim().is_empty(),
            Value::List(list) => list.is_empty(),
            Value::Table(table) => table.is_empty(),
            _ => false,
        }
    }
}

impl Value {
    /// What it is, in words.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "nothing",
            Value::Boolean(_) => "a boolean",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Text(_) => "a string",
            Value::Date => "a date or time",
            Value::List(_) => "an array",
            Value::Table(_) => "a table",
        }
    }
}
