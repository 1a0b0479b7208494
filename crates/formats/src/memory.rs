//! What Auto-Claude remembers beside a plan: `memory/attempt_history.json` and `memory/build_commits.json`, in both
//! shapes that its versions write. Read as what is known of earlier work; later attempts and commits are added
//! where such things stand, and everything else stays to the byte.

use std::collections::BTreeMap;

use piton_core::event::{Found, FoundState};
use piton_core::ids::{StepId, StepRef};
use piton_core::time::{Millis, timestamp};

use crate::Reading;
use crate::source::{Edit, Findings, Source};
use crate::value::{self, Node};

/// Where the two files are, relative to the plan's folder.
pub const ATTEMPTS_FILE: &str = "memory/attempt_history.json";
pub const COMMITS_FILE: &str = "memory/build_commits.json";

/// An attempt that is over, to be remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub step: StepId,
    /// Which attempt at the step it was.
    pub number: usize,
    pub ended: Millis,
    /// Why it did not succeed.
    pub error: Option<String>,
    pub commit: Option<String>,
}

impl Reading {
    /// Takes over what the two files know of the plan's steps. Files that cannot be read know nothing.
    pub fn recall(&mut self, attempts: Option<&[u8]>, commits: Option<&[u8]>) {
        let mut notes: BTreeMap<StepId, Vec<String>> = BTreeMap::new();
        let attempts = attempts.and_then(tree);
        for (name, tried) in table(attempts.as_ref().map(|(_, root)| root), "subtasks") {
            let Some(step) = self.step_named(name) else { continue };
            let rows = tried.as_list().unwrap_or_else(|| tried.list(&["attempts"]));
            notes.entry(step).or_default().extend(rows.iter().map(note));
        }
        let commits = commits.and_then(tree);
        let rows = commits.as_ref().map_or(&[][..], |(_, root)| root.list(&["commits"]));
        let mut made: BTreeMap<StepId, String> = BTreeMap::new();
        for row in rows {
            let name = row.text(&["subtask_id"]).unwrap_or_default();
            if let (Some(step), Some(hash)) = (self.step_named(&name), row.text(&["hash"])) {
                made.insert(step, hash);
            }
        }
        for found in &mut self.found {
            let step = &found.step.step;
            found.notes.extend(notes.remove(step).unwrap_or_default());
            if let FoundState::Completed { commit: commit @ None } = &mut found.state {
                *commit = made.remove(step);
            }
        }
        for (step, notes) in notes.into_iter().filter(|(_, notes)| !notes.is_empty()) {
            let found = Found::new(StepRef::first(step), FoundState::Pending);
            self.found.push(Found { notes, ..found });
        }
    }

    /// The file of attempts with these in it; `None` where it has them, or cannot be read.
    pub fn attempts_written(&self, bytes: &[u8], all: &[Remembered]) -> Option<Vec<u8>> {
        let (source, root) = tree(bytes)?;
        let subtasks = root.get("subtasks")?;
        let names = self.foreign_names();
        let mut edits = Insertions::default();
        for attempt in all {
            let Some(name) = names.get(&attempt.step) else { continue };
            let known = subtasks.get(name);
            // The later version keeps a plain list of failures.
            let is_later = known.map_or_else(
                || root.get("stuckSubtasks").is_some(),
                |known| known.as_list().is_some(),
            );
            let list = known.map(|known| known.get("attempts").unwrap_or(known));
            let time = timestamp(attempt.ended);
            let is_there = |row: &Node| row.text(&["timestamp"]).as_deref() == Some(&time);
            if list.and_then(Node::as_list).is_some_and(|rows| rows.iter().any(is_there))
                || (is_later && attempt.error.is_none())
            {
                continue;
            }
            let row = row_of(attempt, &time, is_later);
            match list {
                Some(list) if list.as_list().is_some() => edits.push(list, row),
                Some(_) => {}
                None if is_later => edits.push_named(subtasks, name, format!("[{row}]")),
                None => {
                    let status = if attempt.error.is_some() { "pending" } else { "completed" };
                    let value = format!("{{\"attempts\": [{row}], \"status\": \"{status}\"}}");
                    edits.push_named(subtasks, name, value);
                }
            }
            if let Some(status) = known.and_then(|known| known.get("status"))
                && attempt.error.is_none()
            {
                edits.replace(status, "\"completed\"");
            }
        }
        edits.written(&source)
    }

    /// The file of commits with these in it; `None` where it has them, or cannot be read.
    pub fn commits_written(&self, bytes: &[u8], all: &[Remembered]) -> Option<Vec<u8>> {
        let (source, root) = tree(bytes)?;
        let list = root.get("commits").filter(|node| node.as_list().is_some())?;
        let known: Vec<String> =
            list.as_list()?.iter().filter_map(|row| row.text(&["hash"])).collect();
        let names = self.foreign_names();
        let mut edits = Insertions::default();
        let mut last = None;
        for attempt in all {
            let Some(hash) = attempt.commit.as_ref().filter(|hash| !known.contains(hash)) else {
                continue;
            };
            let Some(name) = names.get(&attempt.step) else { continue };
            let (hash_text, name) = (quoted(hash), quoted(name));
            let time = timestamp(attempt.ended);
            let row = format!(
                "{{\"hash\": {hash_text}, \"subtask_id\": {name}, \"timestamp\": \"{time}\"}}"
            );
            edits.push(list, row);
            last = Some(hash_text);
        }
        let place = root.as_table().and_then(|table| table.get("last_good_commit"));
        if let (Some(place), Some(hash)) = (place, last) {
            edits.replace(place, &hash);
        }
        edits.written(&source)
    }
}

/// Entries put behind the last ones of lists and tables, and values replaced.
#[derive(Default)]
struct Insertions {
    /// By place: whether something stands before it, and what comes there.
    added: BTreeMap<usize, (bool, Vec<String>)>,
    replaced: BTreeMap<usize, Edit>,
}

impl Insertions {
    fn push(&mut self, list: &Node, row: String) {
        let last = list.as_list().and_then(|rows| rows.last()).map(|row| row.span.end);
        self.put(list, last, row);
    }

    fn push_named(&mut self, table: &Node, name: &str, value: String) {
        let last = table.as_table().and_then(|rows| rows.values().map(|row| row.span.end).max());
        self.put(table, last, format!("{}: {value}", quoted(name)));
    }

    fn put(&mut self, within: &Node, last: Option<usize>, text: String) {
        // Behind the last one, or behind the opening bracket.
        let at = last.unwrap_or(within.span.start + 1);
        self.added.entry(at).or_insert((last.is_some(), Vec::new())).1.push(text);
    }

    fn replace(&mut self, node: &Node, text: &str) {
        let (span, text) = (node.span.clone(), text.to_owned());
        self.replaced.insert(span.start, Edit { span, text });
    }

    fn written(self, source: &Source) -> Option<Vec<u8>> {
        let is_new = |edit: &Edit| source.text[edit.span.clone()] != edit.text;
        let replaced = self.replaced.into_values().filter(is_new);
        let added = self.added.into_iter().map(|(at, (follows, rows))| {
            let line_start = source.text[..at].rfind('\n').map_or(0, |end| end + 1);
            let line = &source.text[line_start..at];
            let indent = &line[..line.len() - line.trim_start().len()];
            // One below the other where the file has it so.
            let is_row = line_start > 0 && follows;
            let gap = match is_row && line.trim_start().starts_with(['{', '"', '}']) {
                true => format!("\n{indent}"),
                false => String::from(if follows { " " } else { "" }),
            };
            let text = rows.join(&format!(",{}", if gap.is_empty() { " " } else { &gap }));
            let text = if follows { format!(",{gap}{text}") } else { text };
            Edit { span: at..at, text }
        });
        let edits: Vec<Edit> = replaced.chain(added).collect();
        (!edits.is_empty()).then(|| source.edited(edits))
    }
}

fn tree(bytes: &[u8]) -> Option<(Source, Node)> {
    let source = Source::new(bytes).ok()?;
    let root = value::json::read(&source.text, &mut Findings::default())?;
    Some((source, root))
}

/// The rows of the table under `key`.
fn table<'a>(root: Option<&'a Node>, key: &str) -> impl Iterator<Item = (&'a str, &'a Node)> {
    let table = root.and_then(|root| root.get(key)).and_then(Node::as_table);
    table.into_iter().flatten().map(|(key, node)| (key.text.as_str(), node))
}

/// An attempt in a line.
fn note(row: &Node) -> String {
    let at = row.text(&["timestamp"]).map_or(String::new(), |at| format!(" at {at}"));
    let is_good = row.get("success").and_then(Node::as_boolean) == Some(true);
    let mut text = format!("an attempt{at} {}", if is_good { "succeeded" } else { "failed" });
    if let Some(approach) = row.text(&["approach"]) {
        text.push_str(&format!("; approach: {approach}"));
    }
    if let Some(error) = row.text(&["error"]) {
        text.push_str(&format!("; error: {error}"));
    }
    text
}

fn row_of(attempt: &Remembered, time: &str, is_later: bool) -> String {
    let error = attempt.error.as_ref().map_or("null".to_owned(), |error| quoted(error));
    match is_later {
        true => format!(
            "{{\"timestamp\": \"{time}\", \"error\": {error}, \"failureType\": \"unknown\", \"errorHash\": \"\"}}"
        ),
        false => format!(
            "{{\"session\": {}, \"timestamp\": \"{time}\", \"approach\": \"by piton\", \"success\": {}, \"error\": {error}}}",
            attempt.number,
            attempt.error.is_none()
        ),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
