//! Progress back into the file that a plan was read from: single words and ticks are replaced where they
//! stand, and everything else stays to the byte.

use piton_core::event::FoundState;
use piton_core::ids::{ItemRef, StepId, SubstepId};

use crate::Reading;
use crate::draft::{Part, Place, Style};
use crate::source::Edit;

/// How far a step is, to be written back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub step: StepId,
    pub state: FoundState,
    pub items: Vec<ItemRef>,
    pub substeps: Vec<SubstepId>,
}

impl Progress {
    /// Whether a part is done: all of a completed step are.
    fn is_done(&self, part: &Part) -> bool {
        matches!(self.state, FoundState::Completed { .. })
            || match part {
                Part::Whole => false,
                Part::Substep(substep) => self.substeps.contains(substep),
                Part::Item(item) => {
                    let within = item.substep.as_ref();
                    self.items.contains(item) || within.is_some_and(|id| self.substeps.contains(id))
                }
            }
    }
}

impl Reading {
    /// Whether the file has a place for progress.
    pub fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// The file with this progress in it; `None` where it says so already.
    pub fn written(&self, progress: &[Progress]) -> Option<Vec<u8>> {
        let edit = |place: &Place| {
            let step = progress.iter().find(|step| step.step == place.step)?;
            let old = &self.source.text[place.span.clone()];
            let text = text_of(place, step, old)?;
            Some(Edit { span: place.span.clone(), text })
        };
        let edits: Vec<Edit> = self.places.iter().filter_map(edit).collect();
        (!edits.is_empty()).then(|| self.source.edited(edits))
    }
}

/// What a place says from now on; `None` where it stays as it is.
fn text_of(place: &Place, step: &Progress, old: &str) -> Option<String> {
    let is_done = step.is_done(&place.part);
    let new = match place.style {
        // Only done or not: other signs would break what shows the list elsewhere.
        Style::Tick => match (is_done, matches!(old, "x" | "X")) {
            (true, false) => "x".to_owned(),
            (false, true) => " ".to_owned(),
            _ => return None,
        },
        Style::Cell => cell(place, step, is_done, old)?,
        Style::Commit => match &step.state {
            FoundState::Completed { commit: Some(commit) } => {
                let has_one = old.bytes().filter(u8::is_ascii_hexdigit).count() >= 7;
                let short: String = commit.chars().take(8).collect();
                (!has_one).then(|| format!("`{short}`"))?
            }
            _ => return None,
        },
        Style::Status => format!("\"{}\"", status(&step.state, old, "pending")?),
        Style::Sprint => format!("\"{}\"", status(&step.state, old, "not_started")?),
        Style::NoStatus => {
            let word = status(&step.state, "\"pending\"", "pending")?;
            format!("\"status\": \"{word}\", ")
        }
        Style::Passes => is_done.to_string(),
    };
    (new != old).then_some(new)
}

/// The words of a table; a text that means the same stays.
fn cell(place: &Place, step: &Progress, is_done: bool, old: &str) -> Option<String> {
    let is = |word: &str| old.to_lowercase().trim_matches(['`', '*']).starts_with(word);
    if place.part != Part::Whole {
        let is_open = is("pending") || is("clarifying");
        return (is_done && is_open).then(|| "resolved".to_owned());
    }
    let word = match &step.state {
        FoundState::Completed { .. } => "done",
        FoundState::InProgress => "in progress",
        FoundState::Pending => "pending",
        FoundState::Failed { .. } => "failed",
        FoundState::Skipped { .. } => "dropped",
    };
    (!is(word)).then(|| word.to_owned())
}

/// A status as JSON has it; an alias that means the same stays.
fn status(state: &FoundState, old: &str, pending: &'static str) -> Option<&'static str> {
    let plain = old.trim_matches('"').to_lowercase().replace(['-', ' '], "_");
    let (word, aliases): (&'static str, &[&str]) = match state {
        FoundState::Completed { .. } => {
            ("completed", &["done", "complete", "completed_successfully"])
        }
        FoundState::InProgress => ("in_progress", &["inprogress", "working"]),
        FoundState::Pending => (pending, &["pending", "not_started", "todo", "to_do", "backlog"]),
        FoundState::Failed { .. } => ("failed", &["blocked", "stuck"]),
        FoundState::Skipped { .. } => ("completed", &["skipped"]),
    };
    (plain != word && !aliases.contains(&plain.as_str())).then_some(word)
}
