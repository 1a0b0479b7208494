//! Outputs as plain data: how people name one, how an event carries its value, and the bound that a plan
//! sets for it. Who may publish one, and what waits for it, is not known here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{BadName, Hash, OutputName, StepRef};
use crate::limits::OUTPUT_INLINE_MAX;

/// An output as people name it: `interface` of whichever step has it, or `jwt:interface`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OutputRef {
    pub of: Option<StepRef>,
    pub name: OutputName,
}

impl FromStr for OutputRef {
    type Err = BadName;

    fn from_str(text: &str) -> Result<OutputRef, BadName> {
        let (of, name) = match text.split_once(':') {
            Some((step, name)) => (Some(step.parse()?), name),
            None => (None, text),
        };
        Ok(OutputRef { of, name: OutputName::new(name)? })
    }
}

impl TryFrom<String> for OutputRef {
    type Error = BadName;
    fn try_from(text: String) -> Result<OutputRef, BadName> {
        text.parse()
    }
}

impl From<OutputRef> for String {
    fn from(output: OutputRef) -> String {
        output.to_string()
    }
}

impl fmt::Display for OutputRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.of {
            Some(step) => write!(f, "{step}:{}", self.name),
            None => self.name.fmt(f),
        }
    }
}

/// A value: JSON, as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputValue {
    Json(String),
    /// A long one is kept by the store, under the hash of its text.
    Kept {
        text: Hash,
        bytes: u64,
    },
}

impl OutputValue {
    /// The value of a text that is JSON.
    pub(crate) fn of(json: &str) -> OutputValue {
        match json.len() {
            0..=OUTPUT_INLINE_MAX => OutputValue::Json(json.to_owned()),
            bytes => OutputValue::Kept { text: Hash::of(json.as_bytes()), bytes: bytes as u64 },
        }
    }

    /// The text, where it is short.
    pub fn as_json(&self) -> Option<&str> {
        match self {
            OutputValue::Json(text) => Some(text),
            OutputValue::Kept { .. } => None,
        }
    }

    pub fn bytes(&self) -> u64 {
        match self {
            OutputValue::Json(text) => text.len() as u64,
            OutputValue::Kept { bytes, .. } => *bytes,
        }
    }
}

impl fmt::Display for OutputValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutputValue::Json(text) => f.write_str(text),
            OutputValue::Kept { bytes, .. } => write!(f, "{bytes} bytes of JSON"),
        }
    }
}

/// What a step's own output must be before the step is verified: `>= 0.8`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bound {
    is: Comparison,
    /// As it was written.
    number: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Comparison {
    AtLeast,
    More,
    AtMost,
    Less,
    Equal,
}

/// Longer signs first: `>=` begins with `>`.
const SIGNS: [(&str, Comparison); 5] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    ("==", Comparison::Equal),
    (">", Comparison::More),
    ("<", Comparison::Less),
];

impl Bound {
    /// Whether a value, which must be a number, satisfies it.
    pub fn holds(&self, value: &OutputValue) -> bool {
        let value = value.as_json().and_then(|json| serde_json::from_str::<f64>(json).ok());
        let (Some(value), Ok(bound)) = (value, self.number.parse::<f64>()) else { return false };
        match self.is {
            Comparison::AtLeast => value >= bound,
            Comparison::More => value > bound,
            Comparison::AtMost => value <= bound,
            Comparison::Less => value < bound,
            Comparison::Equal => value.total_cmp(&bound).is_eq() || value == bound,
        }
    }
}

impl FromStr for Bound {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Bound, BadName> {
        let (kind, rule) = ("bound", "use >=, >, <=, < or == and a number, such as \">= 0.8\"");
        let bad = || BadName { kind, text: text.to_owned(), rule };
        let trimmed = text.trim();
        let sign = SIGNS.iter().find_map(|(sign, is)| Some((trimmed.strip_prefix(sign)?, *is)));
        let (number, is) = sign.ok_or_else(bad)?;
        let number = number.trim();
        match number.parse::<f64>() {
            Ok(parsed) if parsed.is_finite() => Ok(Bound { is, number: number.to_owned() }),
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for Bound {
    type Error = BadName;
    fn try_from(text: String) -> Result<Bound, BadName> {
        text.parse()
    }
}

impl From<Bound> for String {
    fn from(bound: Bound) -> String {
        bound.to_string()
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = SIGNS.iter().find(|(_, is)| *is == self.is).map_or("", |(sign, _)| sign);
        write!(f, "{sign} {}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_for_numbers_alone() {
        let table = [
            (">= 0.8", "0.8", true),
            (">=0.8", "0.79", false),
            ("> 3", "3", false),
            ("> 3", "4", true),
            ("<= 1e2", "100.0", true),
            ("< 0", "-1", true),
            ("== 1", "1.0", true),
            ("== 1", "2", false),
            (">= 0", "\"1\"", false),
            (">= 0", "null", false),
            (">= 0", "{\"score\":1}", false),
        ];
        for (bound, json, holds) in table {
            let read: Bound = bound.parse().expect(bound);
            assert_eq!(read.holds(&OutputValue::of(json)), holds, "{json} {bound}");
            assert_eq!(read.to_string().parse(), Ok(read), "{bound}");
        }
        for bad in ["", "0.8", "=> 1", "!= 1", ">= x", ">= NaN", ">= inf"] {
            assert!(bad.parse::<Bound>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_output_is_named_alone_or_with_its_step() {
        for (text, of) in [
            ("interface", None),
            ("jwt:interface", Some("jwt")),
            ("review#3:score", Some("review#3")),
        ] {
            let read: OutputRef = text.parse().expect(text);
            assert_eq!(read.of.as_ref().map(ToString::to_string).as_deref(), of);
            assert_eq!(read.to_string(), text);
        }
        for bad in ["", ":", "a:", ":a", "A", "a:b:c", "a b"] {
            assert!(bad.parse::<OutputRef>().is_err(), "{bad}");
        }
    }
}
