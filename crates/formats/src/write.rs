//! Progress back into the file that a plan was read from: single words and ticks are replaced where they
//! stand, and everything else stays to the byte. What somebody changed there by hand since is left as it is
//! and named.

use std::collections::{BTreeMap, BTreeSet};

use piton_core::event::FoundState;
use piton_core::ids::StepId;
use piton_core::time::timestamp;

use crate::Reading;
use crate::draft::{Part, Place, Style};
use crate::progress::{Progress, Steps};
use crate::source::Edit;
use crate::specification;

/// What every place of a file says, by its name.
pub type Marks = BTreeMap<String, String>;

/// A file with progress in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// `None` where it says so already.
    pub bytes: Option<Vec<u8>>,
    pub by_hand: Vec<ByHand>,
}

/// A step that the file says something else about than piton left there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByHand {
    pub step: StepId,
    /// How far the file says that it is.
    pub says: FoundState,
}

impl Reading {
    /// Whether the file has a place for progress.
    pub fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// What the file says of progress, place by place.
    pub fn marks(&self) -> Marks {
        self.named_places().map(|(name, place)| (name, self.text(place).to_owned())).collect()
    }

    /// The file with this progress in it. A place that says neither what piton knew there nor what it would
    /// write is somebody's: it stays.
    pub fn written(&self, progress: &[Progress], known: &[Marks]) -> Written {
        let progress = &Steps::new(progress);
        let mut edits: Vec<(&Place, String)> = Vec::new();
        let mut by_hand: Vec<ByHand> = Vec::new();
        for (name, place) in self.named_places() {
            let old = self.text(place);
            let Some(new) = text_of(place, progress, old) else { continue };
            let is_known = known.is_empty()
                || known.iter().any(|marks| marks.get(&name).is_none_or(|text| text == old));
            match &place.step {
                _ if is_known => edits.push((place, new)),
                Some(step) if by_hand.iter().all(|other| other.step != *step) => {
                    by_hand.push(ByHand { step: step.clone(), says: self.state_of(step) });
                }
                _ => {}
            }
        }
        let times = self.times(progress, &edits);
        let edits = edits.into_iter().map(|(place, text)| Edit { span: place.span.clone(), text });
        let edits: Vec<Edit> = edits.chain(times).collect();
        let bytes = (!edits.is_empty()).then(|| self.source.edited(edits));
        Written { bytes, by_hand }
    }

    fn text(&self, place: &Place) -> &str {
        &self.source.text[place.span.clone()]
    }

    fn state_of(&self, step: &StepId) -> FoundState {
        let own = self.found.iter().find(|found| found.step.step == *step);
        own.map_or(FoundState::Pending, |found| found.state.clone())
    }

    /// The places that say how far something is, each with a name that it keeps when the file is edited.
    fn named_places(&self) -> impl Iterator<Item = (String, &Place)> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let states = self
            .places
            .iter()
            .filter(|place| !matches!(place.style, Style::Time(_) | Style::NoTime(_)));
        states.map(move |place| {
            let step = place.step.as_ref().map_or("", StepId::as_str);
            let part = match &place.part {
                Part::Whole => String::new(),
                Part::Substep(substep) => format!("/{substep}"),
                Part::Item(item) => format!("/item {item}"),
            };
            let what = match place.style {
                Style::Commit => " commit",
                Style::Overall(key) | Style::Field(key) => key,
                _ => "",
            };
            let name = format!("{step}{part}{what}");
            let count = seen.entry(name.clone()).or_default();
            *count += 1;
            (if *count == 1 { name } else { format!("{name} ({count})") }, place)
        })
    }

    /// The times of what is edited: a status and its time change together.
    fn times(&self, progress: &Steps<'_>, edits: &[(&Place, String)]) -> Vec<Edit> {
        let statuses = edits.iter().filter(|(place, _)| place.style == Style::Status);
        let edited: BTreeSet<&StepId> =
            statuses.filter_map(|(place, _)| place.step.as_ref()).collect();
        let is_edited = |step: &Option<StepId>| match step {
            Some(step) => edited.contains(step),
            None => !edits.is_empty(),
        };
        let mut added: BTreeMap<usize, String> = BTreeMap::new();
        let mut times = Vec::new();
        for place in self.places.iter().filter(|place| is_edited(&place.step)) {
            let (Style::Time(key) | Style::NoTime(key)) = place.style else { continue };
            let Some(time) = time_of(place, key, progress) else { continue };
            let old = self.text(place);
            match place.style {
                // What is begun stays begun.
                Style::Time("started_at") if old != "null" => {}
                Style::Time(_) => times.push(Edit { span: place.span.clone(), text: time }),
                _ => {
                    let gap = self.gap(place.span.start);
                    let text = format!(",{gap}\"{key}\": {time}");
                    added.entry(place.span.start).or_default().push_str(&text);
                }
            }
        }
        let added = added.into_iter().map(|(at, text)| Edit { span: at..at, text });
        times.into_iter().chain(added).collect()
    }

    /// What stands before a key that is added here: a line like this one, where that begins with a key.
    fn gap(&self, at: usize) -> String {
        let line =
            &self.source.text[self.source.text[..at].rfind('\n').map_or(0, |end| end + 1)..at];
        let indent = &line[..line.len() - line.trim_start().len()];
        match line.trim_start().starts_with("\"status\"") {
            true => format!("\n{indent}"),
            false => " ".to_owned(),
        }
    }
}

/// A time as JSON has it; none where there is nothing to say.
fn time_of(place: &Place, key: &str, progress: &Steps<'_>) -> Option<String> {
    let time = match &place.step {
        None => progress.all.iter().filter_map(|step| step.since).max(),
        Some(step) => {
            let step = progress.of(step)?;
            match key {
                "started_at" => step.started,
                "completed_at" if !step.is_done(&Part::Whole) => {
                    return (place.style == Style::Time("completed_at")).then(|| "null".to_owned());
                }
                _ => step.since,
            }
        }
    };
    time.map(|time| format!("\"{}\"", timestamp(time)))
}

/// What a place says from now on; `None` where it stays as it is.
fn text_of(place: &Place, progress: &Steps<'_>, old: &str) -> Option<String> {
    if let Style::Field(name) = place.style {
        let new = specification::field(name, progress.all)?;
        let plain = old.trim_matches('`');
        return (plain != new).then(|| old.replace(plain, &new)).filter(|_| !plain.is_empty());
    }
    if let Style::Overall(key) = place.style {
        let (word, aliases) = overall(key, progress.all)?;
        let plain = old.trim_matches('"');
        return (plain != word && !aliases.contains(&plain)).then(|| format!("\"{word}\""));
    }
    let step = progress.of(place.step.as_ref()?)?;
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
        Style::Overall(_) | Style::Field(_) | Style::Time(_) | Style::NoTime(_) => return None,
    };
    (new != old).then_some(new)
}

/// What a file says of itself, once anything was begun, and what means the same: what is done waits for a
/// person to merge it.
fn overall(key: &str, progress: &[Progress]) -> Option<(&'static str, &'static [&'static str])> {
    let is_done = |step: &Progress| step.state.is_done();
    let is_open = |step: &Progress| step.state == FoundState::Pending;
    if progress.iter().all(is_open) {
        return None;
    }
    Some(match (progress.iter().all(is_done), key) {
        (true, "status") => (
            "human_review",
            &["done", "completed", "complete", "ai_review", "qa_approved", "pr_created"],
        ),
        (true, _) => ("review", &["completed", "complete", "approved", "pr_created"]),
        (false, _) => ("in_progress", &["coding"]),
    })
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
