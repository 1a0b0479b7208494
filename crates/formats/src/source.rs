//! The text of a plan file: from bytes to something worth parsing, and from places in it to lines
//! and columns. Knows no syntax.

use std::fmt;
use std::ops::Range;

use piton_core::limits::{PLAN_BYTES_MAX, PLAN_FINDINGS_MAX};

/// A mistake in a file, or something in it that a run does not follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// 1-based.
    pub line: usize,
    /// 1-based, in characters.
    pub column: usize,
    /// The line that it is in.
    pub excerpt: String,
    pub message: String,
    pub hint: Option<String>,
}

/// Whether a file can be used in spite of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Error,
    Warning,
}

/// Why a file cannot be used: at least one mistake; all findings, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    pub findings: Vec<Finding>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_mistake = |finding: &&Finding| finding.severity == Severity::Error;
        let mistakes: Vec<&Finding> = self.findings.iter().filter(is_mistake).collect();
        match mistakes.as_slice() {
            [] => write!(f, "the plan cannot be used"),
            [one] => write!(f, "line {}: {}", one.line, one.message),
            [first, ..] => {
                let count = mistakes.len();
                write!(f, "{count} mistakes, the first in line {}: {}", first.line, first.message)
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// A change of the text: these bytes become that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) span: Range<usize>,
    pub(crate) text: String,
}

/// The most characters of a line that a finding shows.
const EXCERPT_MAX: usize = 160;

/// A file's text, its line ends all `\n`, without a byte order mark.
pub(crate) struct Source {
    pub(crate) text: String,
    /// Where each line starts.
    lines: Vec<usize>,
    /// The line ends that have a `\r` in the file.
    returns: Vec<usize>,
    has_mark: bool,
}

/// Mistakes with their places in the text, while they are being collected.
#[derive(Default)]
pub(crate) struct Findings {
    found: Vec<Noticed>,
    left_out: usize,
    wrong: bool,
}

struct Noticed {
    severity: Severity,
    at: usize,
    message: String,
    hint: String,
}

impl Source {
    /// Refuses, before any parser sees them, bytes that are no text.
    pub(crate) fn new(bytes: &[u8]) -> Result<Source, Finding> {
        if bytes.len() > PLAN_BYTES_MAX {
            let message = format!("the file is larger than {PLAN_BYTES_MAX} bytes");
            return Err(at_end_of(b"", &message, "split the plan into smaller ones"));
        }
        let after_mark = bytes.strip_prefix(b"\xef\xbb\xbf");
        let (bytes, has_mark) = (after_mark.unwrap_or(bytes), after_mark.is_some());
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let good = &bytes[..error.valid_up_to()];
            at_end_of(good, "the file is not valid UTF-8", "save it with the encoding UTF-8")
        })?;
        if let Some(nul) = text.find('\0') {
            let good = &bytes[..nul];
            return Err(at_end_of(good, "there is a NUL character", "remove it"));
        }
        let returns = text.match_indices("\r\n").enumerate().map(|(before, (at, _))| at - before);
        let returns = returns.collect();
        let text = text.replace("\r\n", "\n");
        let ends = text.match_indices('\n').map(|(end, _)| end + 1);
        let lines = std::iter::once(0).chain(ends).collect();
        Ok(Source { text, lines, returns, has_mark })
    }

    /// The 1-based line of a place.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }

    /// Puts findings into file order and gives them their lines and columns, in one pass.
    pub(crate) fn locate(&self, findings: Findings) -> Vec<Finding> {
        let Findings { mut found, left_out, .. } = findings;
        found.sort_by_key(|found| found.at);
        found.dedup_by(|one, other| (one.at, &one.message) == (other.at, &other.message));
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
            let Noticed { severity, message, hint, .. } = found;
            let (excerpt, hint) = (self.excerpt(line), Some(hint));
            located.push(Finding { severity, line, column, excerpt, message, hint });
        }
        located.extend(and_more(&located, left_out));
        located
    }

    fn excerpt(&self, line: usize) -> String {
        let start = self.lines[line - 1].min(self.text.len());
        let text = self.text[start..].split('\n').next().unwrap_or_default();
        let shown = text.chars().take(EXCERPT_MAX).map(|c| if c.is_control() { ' ' } else { c });
        shown.collect::<String>().trim_end().to_owned()
    }

    /// The file's bytes with these places of the text replaced; what is not named stays to the byte.
    pub(crate) fn edited(&self, mut edits: Vec<Edit>) -> Vec<u8> {
        edits.sort_by_key(|edit| (edit.span.start, edit.span.end));
        let mut text = String::from(if self.has_mark { "\u{feff}" } else { "" });
        let mut at = 0;
        for Edit { span, text: new } in edits {
            if span.start >= at {
                self.copy(at..span.start, &mut text);
                text.push_str(&new);
                at = span.end;
            }
        }
        self.copy(at..self.text.len(), &mut text);
        text.into_bytes()
    }

    /// A part of the text with the line ends of the file.
    fn copy(&self, part: Range<usize>, to: &mut String) {
        let (from, end) = (self.returns.partition_point(|at| *at < part.start), part.end);
        let mut at = part.start;
        for line_end in self.returns[from..].iter().take_while(|line_end| **line_end < end) {
            to.push_str(&self.text[at..*line_end]);
            to.push('\r');
            at = *line_end;
        }
        to.push_str(&self.text[at..end]);
    }
}

impl Findings {
    /// A mistake.
    pub(crate) fn add(&mut self, at: usize, message: impl Into<String>, hint: impl Into<String>) {
        self.note(Severity::Error, at, message.into(), hint.into());
    }

    /// What a run does not follow, though the file can be used.
    pub(crate) fn warn(&mut self, at: usize, message: impl Into<String>, hint: impl Into<String>) {
        self.note(Severity::Warning, at, message.into(), hint.into());
    }

    fn note(&mut self, severity: Severity, at: usize, message: String, hint: String) {
        self.wrong |= severity == Severity::Error;
        if self.found.len() < PLAN_FINDINGS_MAX {
            self.found.push(Noticed { severity, at, message, hint });
        } else {
            self.left_out += 1;
        }
    }

    /// Whether there is no mistake.
    pub(crate) fn is_sound(&self) -> bool {
        !self.wrong
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
        severity: Severity::Error,
        excerpt: String::new(),
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
