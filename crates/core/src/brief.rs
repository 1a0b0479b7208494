//! The brief that the next attempt's agent is handed: what happened, what is there, what to check.
//! It says only what piton knows; nothing in it is guessed.

use std::fmt::Write as _;

use crate::event::Entry;
use crate::run::{Ending, Step};
use crate::view::timestamp;

/// What git says about the tree that an agent goes on in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeFacts {
    /// Subjects of the commits since the step's base, oldest first.
    pub commits: Vec<String>,
    /// Paths that differ from the last commit.
    pub uncommitted: Vec<String>,
}

const LISTED: usize = 40;

/// The prompt for an attempt: the plan's own words, then the brief where one is due.
pub fn prompt(text: &str, before: &Step, entry: Entry, facts: &TreeFacts) -> String {
    match brief(before, entry, facts) {
        Some(brief) => format!("{}\n\n---\n{brief}", text.trim_end()),
        None => text.to_owned(),
    }
}

fn brief(before: &Step, entry: Entry, facts: &TreeFacts) -> Option<String> {
    let last = before.history.last()?;
    let mut text = String::from("Note from piton, which runs this step:\n");
    match &last.ending {
        Ending::Interrupted { cause, at } => {
            let at = timestamp(*at);
            let _ = writeln!(text, "- An earlier attempt was interrupted ({cause}) at {at}.");
        }
        Ending::Failed(why) => {
            let _ = writeln!(text, "- An earlier attempt failed: {why}.");
            if let Some(tail) = tail_of(why) {
                let _ = writeln!(text, "  The end of its output:\n{}", indented(tail));
            }
        }
        Ending::Displaced => text.push_str("- An earlier attempt was lost with its host.\n"),
        Ending::Released => text.push_str("- An earlier attempt gave the step back.\n"),
        Ending::Completed => return None,
    }
    match entry {
        Entry::Continue => continued(&mut text, facts),
        Entry::Fresh | Entry::Verify | Entry::Land => {
            text.push_str("- Its changes were set aside; the tree is at the step's start again.\n");
        }
    }
    text.push_str("Check what is already done before repeating it.\n");
    Some(text)
}

fn continued(text: &mut String, facts: &TreeFacts) {
    text.push_str("- The tree is as that attempt left it. Go on from there.\n");
    listed(text, "Commits so far", &facts.commits);
    listed(text, "Uncommitted files", &facts.uncommitted);
}

fn listed(text: &mut String, title: &str, rows: &[String]) {
    if rows.is_empty() {
        let _ = writeln!(text, "- {title}: none.");
        return;
    }
    let _ = writeln!(text, "- {title}:");
    for row in rows.iter().take(LISTED) {
        let _ = writeln!(text, "  - {row}");
    }
    if rows.len() > LISTED {
        let _ = writeln!(text, "  - and {} more", rows.len() - LISTED);
    }
}

fn tail_of(why: &crate::event::Failure) -> Option<&str> {
    use crate::event::Failure;
    match why {
        Failure::Exit { tail, .. } | Failure::Verify { tail, .. } => Some(tail.trim_end()),
        Failure::Landing { .. }
        | Failure::Timeout { .. }
        | Failure::Reported { .. }
        | Failure::Unfinished { .. } => None,
    }
    .filter(|tail| !tail.is_empty())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}
