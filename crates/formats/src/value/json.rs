//! JSON into a tree with places. Strict by default; `repair` mends what tools and agents break most often
//! (trailing commas, an end that is cut off, bare words), and says every change it made.

use std::ops::Range;

use piton_core::limits::NESTING_MAX;

use super::{Key, Node, Table, Value};
use crate::source::{Edit, Findings};

/// The file as JSON.
pub(crate) fn read(text: &str, findings: &mut Findings) -> Option<Node> {
    let mut reader = Reader { text, at: 0, depth: 0, repairs: None };
    match reader.document() {
        Ok(node) => Some(node),
        Err(wrong) => {
            findings.add(wrong.at, wrong.message, wrong.hint);
            None
        }
    }
}

/// The changes that make damaged JSON readable: none where it is sound, `None` where it stays unreadable.
pub(crate) fn repairs(text: &str) -> Option<Vec<Edit>> {
    let mut reader = Reader { text, at: 0, depth: 0, repairs: Some(Vec::new()) };
    reader.document().ok()?;
    reader.repairs
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Where damage is mended: how.
    repairs: Option<Vec<Edit>>,
}

struct Wrong {
    at: usize,
    message: String,
    hint: &'static str,
}

const REPAIR: &str = "mend it, or see what --repair would change";

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<Node, Wrong> {
        let node = self.value()?;
        self.space();
        match self.at == self.text.len() {
            true => Ok(node),
            false => Err(self.wrong("there is more text after the end of the JSON value", REPAIR)),
        }
    }

    fn value(&mut self) -> Result<Node, Wrong> {
        self.space();
        let start = self.at;
        let value = match self.peek() {
            Some(b'{') => Value::Table(self.nested(Self::table)?),
            Some(b'[') => Value::List(self.nested(Self::list)?),
            Some(b'"') => Value::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => self.word()?,
        };
        Ok(Node { span: start..self.at, value })
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Wrong>) -> Result<T, Wrong> {
        self.depth += 1;
        if self.depth > NESTING_MAX {
            return Err(self.wrong("objects and arrays are nested too deeply", "flatten them"));
        }
        self.at += 1;
        let read = read(self)?;
        self.depth -= 1;
        Ok(read)
    }

    fn table(&mut self) -> Result<Table, Wrong> {
        let mut table = Table::new();
        while self.next_entry(b'}', table.is_empty())? {
            let at = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.wrong("a key in \"quotes\" is expected here", REPAIR));
            }
            let text = self.string()?;
            self.space();
            if self.peek() != Some(b':') {
                if self.is_cut_off() {
                    self.repair(self.at..self.at, ": null");
                    return self.closed(b'}').map(|()| table);
                }
                return Err(self.wrong("a `:` is expected here", REPAIR));
            }
            self.at += 1;
            self.space();
            if self.is_cut_off() {
                self.repair(self.at..self.at, " null");
                return self.closed(b'}').map(|()| table);
            }
            let node = self.value()?;
            if table.insert(Key { at, text }, node).is_some() {
                let hint = "keep one of the two";
                return Err(Wrong { at, message: "the key stands here twice".to_owned(), hint });
            }
        }
        Ok(table)
    }

    fn list(&mut self) -> Result<Vec<Node>, Wrong> {
        let mut list = Vec::new();
        while self.next_entry(b']', list.is_empty())? {
            list.push(self.value()?);
        }
        Ok(list)
    }

    /// Stands before the next entry, or behind the closing bracket.
    fn next_entry(&mut self, close: u8, first: bool) -> Result<bool, Wrong> {
        self.space();
        let comma = self.at;
        match self.peek() {
            Some(byte) if byte == close => {
                self.at += 1;
                return Ok(false);
            }
            None if self.is_cut_off() => return self.closed(close).map(|()| false),
            _ if first => return Ok(true),
            Some(b',') => self.at += 1,
            Some(b'"' | b'{') if self.repairs.is_some() => {
                self.repair(comma..comma, ",");
                return Ok(true);
            }
            _ => {
                let message = format!("a `,` or `{}` is expected here", close as char);
                return Err(self.wrong(&message, REPAIR));
            }
        }
        self.space();
        match self.peek() {
            Some(byte) if byte == close && self.repairs.is_some() => {
                self.repair(comma..comma + 1, "");
                self.at += 1;
                Ok(false)
            }
            Some(byte) if byte == close => {
                self.at = comma;
                Err(self.wrong("there is a comma before the closing bracket", REPAIR))
            }
            None if self.is_cut_off() => {
                self.repair(comma..comma + 1, "");
                self.closed(close).map(|()| false)
            }
            _ => Ok(true),
        }
    }

    /// The text ends too early, and that is to be mended.
    fn is_cut_off(&self) -> bool {
        self.at == self.text.len() && self.repairs.is_some()
    }

    fn closed(&mut self, close: u8) -> Result<(), Wrong> {
        let end = self.text.len();
        self.repair(end..end, if close == b'}' { "}" } else { "]" });
        Ok(())
    }

    fn repair(&mut self, span: Range<usize>, text: &str) {
        if let Some(repairs) = &mut self.repairs {
            repairs.push(Edit { span, text: text.to_owned() });
        }
    }

    fn string(&mut self) -> Result<String, Wrong> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(b'\n') | None if self.repairs.is_some() && self.rest().trim().is_empty() => {
                    let end = self.at.min(self.text.len());
                    let open = self.text[start..end].trim_end_matches('\\');
                    let from = start + open.len();
                    self.repair(from..self.text.len(), "\"");
                    self.at = self.text.len();
                    let whole = format!("{open}\"");
                    return serde_json::from_str(&whole).map_err(|_| self.wrong_string(start));
                }
                Some(b'\n') | None => {
                    let message = "the string that begins here does not end".to_owned();
                    return Err(Wrong { at: start, message, hint: REPAIR });
                }
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        let raw = self.text.get(start..self.at);
        let text = raw.and_then(|raw| serde_json::from_str(raw).ok());
        text.ok_or_else(|| self.wrong_string(start))
    }

    fn wrong_string(&self, at: usize) -> Wrong {
        let hint = "write line breaks as \\n and other control characters as \\u00XX";
        Wrong { at, message: "the string has a bad escape or a control character".to_owned(), hint }
    }

    fn number(&mut self) -> Result<Value, Wrong> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        let token = self.token(is_part);
        match serde_json::from_str::<serde_json::Number>(token) {
            Ok(number) if number.is_i64() => Ok(Value::Integer(number.as_i64())),
            Ok(_) if !token.contains(['.', 'e', 'E']) => Ok(Value::Integer(None)),
            Ok(number) => Ok(Value::Float(number.as_f64().unwrap_or(f64::NAN))),
            Err(_) => Err(self.back(token.len(), "this is not a number", REPAIR)),
        }
    }

    fn word(&mut self) -> Result<Value, Wrong> {
        let start = self.at;
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        let token = self.token(is_part);
        match token {
            "null" => Ok(Value::Null),
            "true" => Ok(Value::Boolean(true)),
            "false" => Ok(Value::Boolean(false)),
            "" if self.at == self.text.len() => {
                Err(self.wrong("the file ends before its JSON does", REPAIR))
            }
            "" => Err(self.wrong("a JSON value is expected here", REPAIR)),
            word if self.repairs.is_some() => {
                let text = word.to_owned();
                self.repair(start..self.at, &format!("\"{text}\""));
                Ok(Value::Text(text))
            }
            word => {
                let message = format!("`{word}` is not in \"quotes\"");
                Err(self.back(word.len(), &message, REPAIR))
            }
        }
    }

    fn token(&mut self, is_part: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&is_part) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn wrong(&self, message: &str, hint: &'static str) -> Wrong {
        Wrong { at: self.at, message: message.to_owned(), hint }
    }

    /// A mistake in the token that was just read.
    fn back(&self, length: usize, message: &str, hint: &'static str) -> Wrong {
        Wrong { at: self.at - length, message: message.to_owned(), hint }
    }
}
