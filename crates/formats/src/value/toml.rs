//! TOML into a tree; a file that is none gives the first mistake of every line.

use piton_core::limits::RECOVERED_BYTES_MAX;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Key, Node, Table, Value};
use crate::source::{Findings, Source};

#[path = "nesting.rs"]
mod nesting;

/// The file as TOML.
pub(crate) fn read(source: &Source, findings: &mut Findings) -> Option<Node> {
    if let Some(at) = nesting::too_deep(&source.text) {
        let message = "tables and arrays are nested too deeply, or brackets are not closed";
        findings.add(at, message, "close every bracket that is open here");
        return None;
    }
    match DeTable::parse(&source.text) {
        Ok(root) => {
            let value = Value::Table(table(root.into_inner()));
            Some(Node { span: 0..source.text.len(), value })
        }
        Err(first) => {
            find_broken(first, source, findings);
            None
        }
    }
}

fn table(table: DeTable<'_>) -> Table {
    let key = |key: Spanned<_>| Key { at: key.span().start, text: String::from(key.into_inner()) };
    table.into_iter().map(|(name, value)| (key(name), node(value))).collect()
}

fn node(spanned: Spanned<DeValue<'_>>) -> Node {
    let span = spanned.span();
    let value = match spanned.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(digits) => {
            Value::Integer(i64::from_str_radix(digits.as_str(), digits.radix()).ok())
        }
        DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(truth) => Value::Boolean(truth),
        DeValue::Datetime(_) => Value::Date,
        DeValue::Array(list) => Value::List(list.into_iter().map(node).collect()),
        DeValue::Table(inner) => Value::Table(table(inner)),
    };
    Node { span, value }
}

/// The first mistake of every line: what follows it there is mostly its consequence.
fn find_broken(first: toml::de::Error, source: &Source, findings: &mut Findings) {
    let mut errors = match source.text.len() {
        0..=RECOVERED_BYTES_MAX => DeTable::parse_recoverable(&source.text).1,
        _ => vec![first],
    };
    let place = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    errors.sort_by_key(place);
    errors.dedup_by_key(|error| source.line(place(error)));
    for error in errors {
        findings.add(place(&error), error.message(), hint(error.message()));
    }
}

fn hint(message: &str) -> &'static str {
    match message {
        "duplicate key" => "keep one of the two",
        _ => "write key = \"value\" below a [table]; the rules are at https://toml.io",
    }
}
