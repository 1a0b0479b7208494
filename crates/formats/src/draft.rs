//! A plan as a reader leaves it: values read, but needs, groups and locks still words. Readers of other tools'
//! formats name their steps here, and say what their files know of progress.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use piton_core::agent::Agent;
use piton_core::event::{Found, FoundState};
use piton_core::ids::{
    AgentName, GroupId, ItemRef, KindName, LockName, LoopId, OutputName, StepId, StepRef, SubstepId,
};
use piton_core::limits::{ITEM_CHARS_MAX, NAME_MAX, PLAN_NAME_MAX, PLAN_STEPS_MAX};
use piton_core::output::Bound;
use piton_core::plan::{Group, Isolation, OnFailure, OnInterrupt, OnLimit, Work};

use crate::value::{Located, Node};

/// How much of a text is repeated in every prompt, in characters.
const CONTEXT_CHARS_MAX: usize = 2_000;

/// What a file says. Where something is missing that a plan must have, there is a finding.
#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) name: Option<String>,
    pub(crate) base: Option<String>,
    pub(crate) isolation: Isolation,
    pub(crate) on_failure: OnFailure,
    pub(crate) jobs: Option<u32>,
    pub(crate) setup: Option<String>,
    pub(crate) copy: Vec<String>,
    pub(crate) link: Vec<String>,
    pub(crate) inputs: BTreeMap<String, String>,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    pub(crate) agents: BTreeMap<AgentName, Agent>,
    pub(crate) locks: BTreeMap<LockName, u32>,
    pub(crate) loops: BTreeMap<LoopId, DraftLoop>,
    pub(crate) steps: Vec<DraftStep>,
    pub(crate) plan_from: Option<(Located<String>, String)>,
}

/// A loop whose steps are still words.
pub(crate) struct DraftLoop {
    pub(crate) steps: Vec<Located<String>>,
    pub(crate) max: Option<u32>,
    pub(crate) until: Option<String>,
    pub(crate) stale_limit: Option<u32>,
    pub(crate) until_items: bool,
}

/// A step whose needs, group and locks are still words.
pub(crate) struct DraftStep {
    /// Where its id stands.
    pub(crate) at: usize,
    pub(crate) id: Option<StepId>,
    pub(crate) title: Option<String>,
    pub(crate) kind: Option<KindName>,
    pub(crate) group: Option<Located<GroupId>>,
    pub(crate) needs: Vec<Located<String>>,
    pub(crate) work: Option<Work>,
    pub(crate) verify: Option<String>,
    pub(crate) skip_if: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retries: u32,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) items: Vec<String>,
    pub(crate) substeps: Vec<DraftSubstep>,
    pub(crate) locks: Vec<Located<LockName>>,
    pub(crate) outputs: BTreeSet<OutputName>,
    pub(crate) require: BTreeMap<OutputName, Bound>,
    pub(crate) on_interrupt: Option<OnInterrupt>,
    pub(crate) on_limit: OnLimit,
}

/// A substep whose id may not be the only one of its name.
pub(crate) struct DraftSubstep {
    /// Where its id stands.
    pub(crate) at: usize,
    pub(crate) id: Option<SubstepId>,
    pub(crate) title: Option<String>,
    pub(crate) items: Vec<String>,
}

/// What a reader of another tool's format makes of a file.
#[derive(Default)]
pub(crate) struct Foreign {
    pub(crate) draft: Draft,
    pub(crate) found: Vec<Found>,
    /// Where progress is written.
    pub(crate) places: Vec<Place>,
    /// How many questions the file says are open.
    pub(crate) questions: usize,
    ids: Ids,
}

/// Where the file says how far something is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// None for the whole plan.
    pub(crate) step: Option<StepId>,
    pub(crate) part: Part,
    pub(crate) span: Range<usize>,
    pub(crate) style: Style,
}

/// What of a step a place is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    Substep(SubstepId),
    Item(ItemRef),
}

/// How a place says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// The character between the brackets of `[ ]`.
    Tick,
    /// A cell of a table: pending, in progress, done.
    Cell,
    /// A cell with the commit.
    Commit,
    /// A JSON string: pending, in_progress, completed, failed.
    Status,
    /// As [`Style::Status`], in the words of epics: not_started, in_progress, completed.
    Sprint,
    /// A JSON boolean.
    Passes,
    /// The first key of a JSON object that has no status yet.
    NoStatus,
    /// A JSON string under this key, about the whole plan.
    Overall(&'static str),
    /// The value of this field of a specification.
    Field(&'static str),
    /// A JSON string or null under this key: a time that changes with the status.
    Time(&'static str),
    /// The end of a value that a time under this key follows, because there is none yet.
    NoTime(&'static str),
}

/// Names of other tools' steps as piton's.
#[derive(Default)]
pub(crate) struct Ids {
    taken: BTreeSet<String>,
    /// The number that a name gets which is taken already.
    next: BTreeMap<String, usize>,
    known: BTreeMap<String, StepId>,
}

impl DraftStep {
    /// A step with a prompt. Who does it is said by whoever runs the plan.
    pub(crate) fn prompted(at: usize, title: &str, prompt: String) -> DraftStep {
        DraftStep::with(at, title, Work::Told(prompt))
    }

    pub(crate) fn with(at: usize, title: &str, work: Work) -> DraftStep {
        DraftStep {
            at,
            id: None,
            title: Some(label(title, "untitled")),
            kind: None,
            group: None,
            needs: Vec::new(),
            work: Some(work),
            verify: None,
            skip_if: None,
            timeout: None,
            retries: 0,
            env: BTreeMap::new(),
            items: Vec::new(),
            substeps: Vec::new(),
            locks: Vec::new(),
            outputs: BTreeSet::new(),
            require: BTreeMap::new(),
            on_interrupt: None,
            on_limit: OnLimit::default(),
        }
    }
}

impl Foreign {
    /// A plan of this name.
    pub(crate) fn named(name: &str) -> Foreign {
        let mut foreign = Foreign::default();
        let name: String = label(name, "plan").chars().take(PLAN_NAME_MAX).collect();
        foreign.draft.name = Some(name);
        foreign
    }

    /// A name of piton's for another tool's; each once.
    pub(crate) fn name(&mut self, foreign: &str) -> StepId {
        self.ids.take(foreign)
    }

    /// The step that another tool's name means.
    pub(crate) fn step_of(&self, foreign: &str) -> Option<&StepId> {
        self.ids.known.get(foreign)
    }

    /// Whether it has more steps than a plan may have: none of the others need be read.
    pub(crate) fn is_full(&self) -> bool {
        self.draft.steps.len() > PLAN_STEPS_MAX
    }

    /// What other tools call its steps.
    pub(crate) fn names(&mut self) -> BTreeMap<String, StepId> {
        std::mem::take(&mut self.ids.known)
    }

    pub(crate) fn group(&mut self, foreign: &str, title: &str) -> GroupId {
        let id = GroupId::new(slug(foreign, "group")).expect("a slug is a name");
        // Steps and groups share the names of needs.
        self.ids.taken.insert(id.to_string());
        self.draft.groups.insert(id.clone(), Group { title: label(title, id.as_str()) });
        id
    }

    /// Adds a step of this name.
    pub(crate) fn add(&mut self, id: &StepId, step: DraftStep) -> &mut DraftStep {
        self.draft.steps.push(DraftStep { id: Some(id.clone()), ..step });
        self.draft.steps.last_mut().expect("it was just added")
    }

    pub(crate) fn found(&mut self, id: &StepId, state: FoundState) -> &mut Found {
        let step = StepRef::first(id.clone());
        self.found.push(Found::new(step, state));
        self.found.last_mut().expect("it was just added")
    }

    /// What the file says of a step beside its state; none where that is done.
    pub(crate) fn open_found(&mut self, id: &StepId) -> Option<&mut Found> {
        let place = self.found.iter().position(|found| found.step.step == *id);
        if place.is_none() {
            self.found(id, FoundState::Pending);
        }
        let place = place.unwrap_or(self.found.len() - 1);
        let found = &mut self.found[place];
        (!found.state.is_done()).then_some(found)
    }

    /// Where a table of JSON has room for a status: before its first key.
    pub(crate) fn place_status(&mut self, step: &StepId, node: &Node) {
        let first = node.as_table().and_then(|table| table.keys().map(|key| key.at).min());
        if let Some(at) = first {
            self.place(step, Part::Whole, at..at, Style::NoStatus);
        }
    }

    pub(crate) fn place(&mut self, step: &StepId, part: Part, span: Range<usize>, style: Style) {
        self.places.push(Place { step: Some(step.clone()), part, span, style });
    }

    /// A place about the whole plan.
    pub(crate) fn place_overall(&mut self, span: Range<usize>, style: Style) {
        self.places.push(Place { step: None, part: Part::Whole, span, style });
    }
}

impl Ids {
    fn take(&mut self, foreign: &str) -> StepId {
        let stem = slug(foreign, "step");
        let mut name = stem.clone();
        while !self.taken.insert(name.clone()) {
            let number = self.next.entry(stem.clone()).or_insert(2);
            name = format!("{stem}-{number}");
            *number += 1;
        }
        let id = StepId::new(name).expect("a slug is a name");
        self.known.entry(foreign.to_owned()).or_insert_with(|| id.clone());
        id
    }
}

/// A name made of any text; with room for a number behind it.
pub(crate) fn slug(text: &str, empty: &str) -> String {
    let mut slug = String::new();
    for character in text.chars() {
        match character.to_ascii_lowercase() {
            plain @ ('a'..='z' | '0'..='9' | '_') => slug.push(plain),
            _ if !slug.is_empty() && !slug.ends_with('-') => slug.push('-'),
            _ => {}
        }
        if slug.len() >= NAME_MAX - 8 {
            break;
        }
    }
    let slug = slug.trim_matches(['-', '_']);
    if slug.is_empty() { empty.to_owned() } else { slug.to_owned() }
}

/// A text as one line for people.
pub(crate) fn label(text: &str, empty: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if line.is_empty() { empty.to_owned() } else { line }
}

/// A text as an item: one line that is not too long.
pub(crate) fn item(text: &str) -> String {
    let line = label(text, "unnamed");
    match line.chars().nth(ITEM_CHARS_MAX) {
        None => line,
        Some(_) => line.chars().take(ITEM_CHARS_MAX - 1).chain(['…']).collect(),
    }
}

/// A text that the prompts of many steps repeat: so much of it that a plan does not grow without bounds.
pub(crate) fn context_of(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(CONTEXT_CHARS_MAX) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}

/// A prompt out of what a file knows: a title, then a line or a list for each that has something.
pub(crate) struct Prompt(String);

impl Prompt {
    pub(crate) fn new(title: &str) -> Prompt {
        Prompt(format!("{}\n", title.trim()))
    }

    pub(crate) fn text(mut self, name: &str, text: Option<&str>) -> Prompt {
        if let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) {
            let gap = if text.contains('\n') { '\n' } else { ' ' };
            self.0.push_str(&format!("\n{name}:{gap}{text}\n"));
        }
        self
    }

    /// What every step of a file has in common: its beginning.
    pub(crate) fn about(self, name: &str, text: Option<&str>) -> Prompt {
        self.text(name, text.map(context_of).as_deref())
    }

    pub(crate) fn list(mut self, name: &str, rows: &[String]) -> Prompt {
        if !rows.is_empty() {
            let rows: String = rows.iter().map(|row| format!("- {row}\n")).collect();
            self.0.push_str(&format!("\n{name}:\n{rows}"));
        }
        self
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}
