//! YAML into a tree with places. Aliases are followed within a budget, so that a few bytes cannot become a
//! large plan; a file is one document.

use std::collections::BTreeMap;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use piton_core::limits::NESTING_MAX;
use piton_core::plan::shown;

use super::{Key, Node, Table, Value};
use crate::source::{Findings, Source};

/// The most values that a file may have once its aliases are followed; a long text counts as several.
const VALUES_MAX: usize = 500_000;
/// How many bytes of a text count as a value.
const TEXT_WEIGHT: usize = 32;
const RULES: &str = "check indentation and quotes; the rules are at https://yaml.org";

/// The file as YAML.
pub(crate) fn read(source: &Source, findings: &mut Findings) -> Option<Node> {
    let mut tree = Tree { end: source.text.len(), ..Tree::default() };
    let wrong = Parser::new_from_str(&source.text).find_map(|event| match event {
        Ok((event, span)) => tree.take_in(event, &span).err(),
        Err(error) => Some(unreadable(&error)),
    });
    if let Some(wrong) = wrong {
        findings.add(wrong.at, wrong.message, wrong.hint);
        return None;
    }
    Some(tree.root.unwrap_or(Node { span: 0..tree.end, value: Value::Null }))
}

fn unreadable(error: &ScanError) -> Misfit {
    let at = error.marker().byte_offset().unwrap_or(0);
    Misfit { at, message: error.info(), hint: RULES }
}

/// Why a file is no tree.
struct Misfit {
    at: usize,
    message: String,
    hint: &'static str,
}

/// The tree as far as it has grown.
#[derive(Default)]
struct Tree {
    root: Option<Node>,
    /// What is begun and not ended, outermost first.
    open: Vec<Open>,
    /// What has a name, and how many values are in it.
    anchors: BTreeMap<usize, (Node, usize)>,
    values: usize,
    end: usize,
}

struct Open {
    start: usize,
    anchor: usize,
    /// How many values there were before.
    before: usize,
    part: Grown,
}

enum Grown {
    List(Vec<Node>),
    Table(Table, Option<Key>),
}

impl Tree {
    fn take_in(&mut self, event: Event<'_>, span: &Span) -> Result<(), Misfit> {
        let range = span.byte_range().unwrap_or(0..0);
        match event {
            Event::DocumentStart(..) if self.root.is_some() => Err(Misfit {
                at: range.start,
                message: "a second document begins here".to_owned(),
                hint: "keep one document in the file",
            }),
            Event::Scalar(text, style, anchor, _) => {
                let value = match style {
                    ScalarStyle::Plain => plain(&text),
                    _ => Value::Text(text.into_owned()),
                };
                let weight = 1 + range.len() / TEXT_WEIGHT;
                self.made(range.start, weight)?;
                self.add(Node { span: range, value }, anchor, weight)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(range.start, anchor, Grown::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(range.start, anchor, Grown::Table(Table::new(), None))
            }
            Event::SequenceEnd | Event::MappingEnd => self.finish(range.end),
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some((node, values)) => {
                    // Asked before it is copied: what is too large is never made.
                    self.values += values;
                    let value = match self.values <= VALUES_MAX {
                        true => node.value.clone(),
                        false => Value::Null,
                    };
                    self.made(range.start, 0)?;
                    self.add(Node { span: range, value }, 0, 0)
                }
                None => Err(Misfit {
                    at: range.start,
                    message: "the alias stands inside of what it names".to_owned(),
                    hint: "write the value out",
                }),
            },
            _ => Ok(()),
        }
    }

    fn made(&mut self, at: usize, values: usize) -> Result<(), Misfit> {
        self.values += values;
        if self.values <= VALUES_MAX {
            return Ok(());
        }
        let message = format!("the file has more than {VALUES_MAX} values, aliases followed");
        Err(Misfit { at, message, hint: "write fewer aliases, or split the file" })
    }

    fn begin(&mut self, start: usize, anchor: usize, part: Grown) -> Result<(), Misfit> {
        if self.open.len() >= NESTING_MAX {
            let message = "the file is nested too deeply".to_owned();
            return Err(Misfit { at: start, message, hint: "flatten it" });
        }
        self.open.push(Open { start, anchor, before: self.values, part });
        self.made(start, 1)
    }

    fn finish(&mut self, end: usize) -> Result<(), Misfit> {
        let Some(Open { start, anchor, before, part }) = self.open.pop() else { return Ok(()) };
        let value = match part {
            Grown::List(list) => Value::List(list),
            Grown::Table(table, _) => Value::Table(table),
        };
        self.add(Node { span: start..end.max(start), value }, anchor, self.values - before)
    }

    fn add(&mut self, node: Node, anchor: usize, values: usize) -> Result<(), Misfit> {
        if anchor > 0 {
            self.made(node.at(), values)?;
            self.anchors.insert(anchor, (node.clone(), values));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open { part: Grown::List(list), .. }) => list.push(node),
            Some(Open { part: Grown::Table(_, key @ None), .. }) => *key = Some(key_of(node)?),
            Some(Open { part: Grown::Table(table, key), start, .. }) => {
                if let Some(key) = key.take() {
                    insert(table, key, node, *start)?;
                }
            }
        }
        Ok(())
    }
}

fn key_of(node: Node) -> Result<Key, Misfit> {
    let at = node.at();
    match node.words() {
        Some(text) => Ok(Key { at, text }),
        None if node.value == Value::Null => Ok(Key { at, text: "null".to_owned() }),
        None => Err(Misfit {
            at,
            message: format!("a key must be text, not {}", node.value.kind()),
            hint: "write key: value",
        }),
    }
}

/// Into the table that begins at `start`.
fn insert(table: &mut Table, key: Key, node: Node, start: usize) -> Result<(), Misfit> {
    if key.text == "<<" {
        // What the table says itself wins, whichever comes first.
        let merged = match node.value {
            Value::List(list) => list,
            _ => vec![node],
        };
        for node in merged {
            if let Value::Table(merged) = node.value {
                for (key, value) in merged {
                    table.entry(key).or_insert(value);
                }
            }
        }
        return Ok(());
    }
    let at = key.at;
    let message = format!("the key {} stands here twice", shown(&key.text));
    match table.insert(key, node) {
        // What was merged stands before the table, and may be replaced.
        Some(old) if old.at() < start => Ok(()),
        Some(_) => Err(Misfit { at, message, hint: "keep one of the two" }),
        None => Ok(()),
    }
}

/// A scalar without quotes, by the core schema of YAML 1.2: `yes` and `on` are words.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Boolean(true),
        "false" | "False" | "FALSE" => return Value::Boolean(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = digits.starts_with(|first: char| first.is_ascii_digit());
    if is_number && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Value::Integer(text.parse().ok());
    }
    let is_float = |byte: u8| byte.is_ascii_digit() || b".eE+-".contains(&byte);
    match is_number && digits.bytes().all(is_float) {
        // As it is written: `1.10` is a version as often as a number.
        true => text.parse().map_or(Value::Text(text.to_owned()), Value::Float),
        false => Value::Text(text.to_owned()),
    }
}
