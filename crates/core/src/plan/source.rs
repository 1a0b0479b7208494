//! The text of a plan file: from bytes to something worth parsing, and from places in it to lines
//! and columns. Knows nothing of TOML.

use crate::limits::{PLAN_BYTES_MAX, PLAN_FINDINGS_MAX};
use crate::plan::Finding;

/// A file's text, its line ends all `\n`, without a byte order mark.
pub(super) struct Source {
    pub(super) text: String,
    /// Where each line starts.
    lines: Vec<usize>,
}

/// Mistakes with their places in the text, while they are being collected.
#[derive(Default)]
pub(super) struct Findings {
    found: Vec<Found>,
    left_out: usize,
}

struct Found {
    at: usize,
    message: String,
    hint: String,
}

impl Source {
    /// Refuses, before any parser sees them, bytes that are no text.
    pub(super) fn new(bytes: &[u8]) -> Result<Source, Finding> {
        if bytes.len() > PLAN_BYTES_MAX {
            let message = format!("the file is larger than {PLAN_BYTES_MAX} bytes");
            return Err(at_end_of(b"", &message, "split the plan into smaller ones"));
        }
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let good = &bytes[..error.valid_up_to()];
            at_end_of(good, "the file is not valid UTF-8", "save it with the encoding UTF-8")
        })?;
        if let Some(nul) = text.find('\0') {
            let good = &bytes[..nul];
            return Err(at_end_of(good, "there is a NUL character", "remove it"));
        }
        let text = text.replace("\r\n", "\n");
        let ends = text.match_indices('\n').map(|(end, _)| end + 1);
        let lines = std::iter::once(0).chain(ends).collect();
        Ok(Source { text, lines })
    }

    /// The 1-based line of a place.
    pub(super) fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }

    /// Puts findings into file order and gives them their lines and columns, in one pass.
    pub(super) fn locate(&self, findings: Findings) -> Vec<Finding> {
        let Findings { mut found, left_out } = findings;
        found.sort_by_key(|found| found.at);
        let (mut seen, mut column, mut located) = (0, 1, Vec::new());
        for found in found {
            let line = self.line(found.at);
            let start = self.lines[line - 1];
            if start > seen {
                (seen, column) = (start, 1);
            }
            let at = found.at.min(self.text.len());
            column += characters(&self.text.as_bytes()[seen.min(at)..at]);
            seen = at;
            let Found { message, hint, .. } = found;
            located.push(Finding { line, column, message, hint: Some(hint) });
        }
        located.extend(and_more(&located, left_out));
        located
    }
}

impl Findings {
    pub(super) fn add(&mut self, at: usize, message: impl Into<String>, hint: impl Into<String>) {
        if self.found.len() < PLAN_FINDINGS_MAX {
            self.found.push(Found { at, message: message.into(), hint: hint.into() });
        } else {
            self.left_out += 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

fn and_more(located: &[Finding], left_out: usize) -> Option<Finding> {
    let last = located.last().filter(|_| left_out > 0)?;
    Some(Finding {
        message: format!("{left_out} more mistakes are not listed"),
        hint: Some("mend those above and check again".to_owned()),
        ..last.clone()
    })
}

/// A finding about what follows `good`.
fn at_end_of(good: &[u8], message: &str, hint: &str) -> Finding {
    let start = good.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    Finding {
        line: 1 + good.iter().filter(|byte| **byte == b'\n').count(),
        column: 1 + characters(&good[start..]),
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    }
}

/// Counts the characters that start in these bytes of UTF-8.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count()
}
