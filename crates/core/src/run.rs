//! A run, folded from its log. `apply` is the only way a status changes, and recovery is replay
//! through the same function; an event that could not have happened is damage, not a surprise.

use std::collections::HashMap;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use serde::{Deserialize, Serialize};

use crate::cache::{as_json, as_json_option};
use crate::checklist::{Checklist, Gap};
use crate::claim::entry_of;
use crate::event::{
    About, BadEvent, Cause, Claimed, Entry, Event, Failure, Grounds, Haste, Holder, MergeIntent,
    Omission, Report, RunOpened, Scope, Snapshot, SnapshotReason, Stage, Truth, Waived,
};
use crate::graph::Graph;
use crate::ids::{AttemptId, Fence, Hash, LockName, Oid, Position, StepId, StepRef};
use crate::limits::{CHECKOUT_FILES_MAX, CONTINUE_PERCENT_MIN, IDLE_INTERRUPTIONS_MAX};
use crate::list::List;
use crate::plan::{OnInterrupt, Plan, PlanStep, Work};
use crate::question::{Question, QuestionState, RESTART};
use crate::record::{Cursor, Record};
use crate::time::{Millis, Moment};

pub use packed::{Again, PackedRun};

mod packed;

/// One execution of a plan.
#[derive(Debug, Clone)]
pub struct Run {
    pub opened: RunOpened,
    pub opened_at: Millis,
    /// When the newest record was appended.
    pub changed_at: Millis,
    /// A stop of the whole run that nobody has lifted.
    pub stop: Option<Stop>,
    /// Somebody gave it up, and nobody has reopened it.
    pub abandoned: Option<Abandonment>,
    /// The commit that the step completed last was landed with: the run's branch must contain it.
    pub landed: Option<Oid>,
    /// A merge that was begun; whoever comes next finishes it.
    pub merging: Option<MergeIntent>,
    pub merged: Option<Merged>,
    pub cursor: Cursor,
    graph: Arc<Graph>,
    steps: List<Step>,
    sets: Sets,
    /// For every group, how many of its steps are not completed.
    open: Vec<u32>,
    home: Option<packed::Home>,
}

/// Sets of steps by index, kept so that no question about the whole run walks all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sets {
    held: FixedBitSet,
    interrupted: FixedBitSet,
    held_back: FixedBitSet,
    /// With no retries left.
    failed: FixedBitSet,
    completed: FixedBitSet,
    /// Those that have ever asked.
    asked: FixedBitSet,
    /// Nobody holds them, their needs are met, and nothing that happened to them stands against another
    /// attempt.
    free: FixedBitSet,
}

impl Sets {
    fn none_of(steps: usize) -> Sets {
        let none = || FixedBitSet::with_capacity(steps);
        Sets {
            held: none(),
            interrupted: none(),
            held_back: none(),
            failed: none(),
            completed: none(),
            asked: none(),
            free: none(),
        }
    }
}

/// Steps that nobody holds, whose needs are met, and that may be attempted: run-wide reasons aside.
pub(crate) struct Free<'run> {
    run: &'run Run,
    steps: FixedBitSet,
}

impl Free<'_> {
    pub(crate) fn count(&self) -> usize {
        self.steps.count_ones(..)
    }

    pub(crate) fn first(&self) -> Option<StepRef> {
        self.steps.ones().next().map(|index| self.run.ref_at(index))
    }

    /// Together with the held ones, in plan order.
    pub(crate) fn and_held(mut self) -> impl Iterator<Item = StepRef> {
        self.steps.union_with(&self.run.sets.held);
        self.steps.into_ones().map(|index| self.run.ref_at(index))
    }
}

/// What was landed by `tip` is in another branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    pub into: String,
    pub commit: Oid,
    pub tip: Oid,
    pub at: Millis,
}

/// A stop request in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    pub cause: Cause,
    pub haste: Haste,
    pub at: Millis,
}

/// The end of a run that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandonment {
    pub at: Millis,
    /// It is in the attic until then.
    pub keep_until: Option<Millis>,
}

/// A step's folded state, beside its recipe in the plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Step {
    pub phase: Phase,
    /// The commit its branch starts from, once an attempt was started.
    pub base: Option<Oid>,
    pub snapshot: Option<KeptSnapshot>,
    /// Paths that differ from the base, by the last snapshot.
    pub changed: u64,
    pub verified: Option<VerifiedCommit>,
    pub landing: Option<Landing>,
    /// Failed attempts: what the retry budget counts.
    pub failures: u32,
    /// Interruptions in a row that brought nothing new.
    pub idle: u32,
    /// The stop that its last attempt ended under: nothing goes on before somebody asks for that.
    pub held_back: Option<Stop>,
    pub history: Vec<PastAttempt>,
    /// What was done does not fit any more: the next attempt starts afresh.
    outdated: bool,
    /// The last attempt that was started was interrupted at work, or lost with its holder.
    cut_off: bool,
    pub checklist: Checklist,
    /// What holders reported last, field by field.
    #[serde(with = "as_json")]
    pub report: Report,
    /// What its attempts asked, oldest first.
    pub questions: Vec<Question>,
    /// The last attempt that began from the base again: what was kept before is of another tree.
    begun_anew: Option<Fence>,
    last_progress: Option<Progress>,
}

/// How far a step had come when it was interrupted: what the next interruption is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    left_at: Stage,
    tree: Option<Oid>,
    /// Substeps and items.
    parts: usize,
    reported: Option<u8>,
}

/// Where a step stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Phase {
    #[default]
    Pending,
    Held(Attempt),
    Failed {
        why: Failure,
        at: Millis,
    },
    Interrupted(Interruption),
    /// Its attempt ended to wait for an answer.
    Suspended {
        at: Millis,
    },
    Completed {
        commit: Option<Oid>,
        truth: Truth,
        at: Millis,
        fence: Fence,
        /// What it was completed in spite of.
        #[serde(with = "as_json_option")]
        waived: Option<Waived>,
    },
}

/// An attempt that ended without an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interruption {
    pub cause: Cause,
    pub at: Millis,
    pub evidence: String,
    pub left_at: Stage,
}

/// What happens under one claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub id: AttemptId,
    pub fence: Fence,
    pub holder: Holder,
    pub entry: Entry,
    pub grounds: Grounds,
    pub claimed_at: Millis,
    pub until: Moment,
    pub started_at: Option<Millis>,
    pub stop: Option<Stop>,
    /// Somebody asked for the run to go on since: the stop still ends what a keeper runs, and then
    /// holds nothing back.
    pub lifted: bool,
    pub trace: Trace,
}

/// What explains an attempt afterwards; nothing is decided by it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Trace {
    /// The keeper, or the process that asked from outside.
    pub pid: Option<u32>,
    /// The commit that was checked out when it was last looked at.
    pub head: Option<Oid>,
    /// How many commits it had added by then.
    pub commits: u64,
    /// The commit that piton saw pass.
    pub verified: Option<Oid>,
    /// What was in its worktree and is not in its commit.
    pub omitted: Vec<Omission>,
    pub checkout: Option<Box<CheckoutChanges>>,
}

/// Files of the user's own checkout that changed while an attempt was at work; by whom is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CheckoutChanges {
    pub files: Vec<String>,
    /// How many more, not named.
    pub more: u64,
}

/// An attempt that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAttempt {
    pub attempt: Attempt,
    pub ended_at: Millis,
    pub ending: Ending,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    Completed,
    Failed(Failure),
    Interrupted {
        cause: Cause,
        at: Millis,
    },
    /// Another claim took the step.
    Displaced,
    /// Given back.
    Released,
    /// To wait for an answer.
    Suspended,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSnapshot {
    #[serde(with = "as_json")]
    pub snapshot: Snapshot,
    pub at: Millis,
    pub fence: Fence,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedCommit {
    pub commit: Oid,
    pub tree: Oid,
    pub truth: Truth,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landing {
    pub onto: Oid,
    pub to: Oid,
}

/// A log that the rules cannot have written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {position} of the run's log: {what}")]
pub struct FoldError {
    pub position: u64,
    pub what: Illegal,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    #[error(transparent)]
    BadEvent(#[from] BadEvent),
    #[error("the log does not begin with the opening of the run")]
    NotOpened,
    #[error("the run is opened a second time")]
    OpenedTwice,
    #[error("the log was written for plan {recorded}, not {given}")]
    OtherPlan { recorded: String, given: String },
    #[error("its plan cannot be read: {0}")]
    BadPlan(String),
    #[error("it changes or removes step {0}, which is claimed or completed")]
    PlanInUse(StepId),
    #[error("it abandons a run that is held or abandoned already")]
    NotToAbandon,
    #[error("it reopens a run that was not abandoned")]
    NotAbandoned,
    #[error("it names step {0}, which the plan does not have")]
    UnknownStep(StepId),
    #[error("it does not fit the state of step {step}: {event}")]
    OutOfOrder { step: StepId, event: &'static str },
}

impl Run {
    /// The run as its first record leaves it.
    pub fn open(plan: Arc<Plan>, first: &Record) -> Result<Run, FoldError> {
        let illegal = |what| FoldError { position: first.position.0, what };
        let event = Event::from_body(&first.body).map_err(|bad| illegal(bad.into()))?;
        let Event::RunOpened(opened) = event else {
            return Err(illegal(Illegal::NotOpened));
        };
        let graph = Graph::new(plan);
        if opened.plan != graph.hash() {
            let (recorded, given) = (opened.plan.short(), graph.hash().short());
            return Err(illegal(Illegal::OtherPlan { recorded, given }));
        }
        let steps = graph.plan().steps.len();
        let mut run = Run {
            opened,
            opened_at: first.at,
            changed_at: first.at,
            stop: None,
            abandoned: None,
            landed: None,
            merging: None,
            merged: None,
            cursor: first.cursor(),
            open: open(&graph, &FixedBitSet::with_capacity(steps)),
            graph: Arc::new(graph),
            steps: List::of_nothing(steps),
            sets: Sets::none_of(steps),
            home: None,
        };
        let free = (0..steps).filter(|step| run.has_needs_met(*step)).collect();
        run.sets.free = free;
        run.sets.free.grow(steps);
        Ok(run)
    }

    /// Which plan a log was opened with: needed before anything can be folded.
    pub fn plan_of(first: &Record) -> Result<Hash, FoldError> {
        match Event::from_body(&first.body) {
            Ok(Event::RunOpened(opened)) => Ok(opened.plan),
            Ok(_) => Err(FoldError { position: first.position.0, what: Illegal::NotOpened }),
            Err(bad) => Err(FoldError { position: first.position.0, what: bad.into() }),
        }
    }

    pub fn plan(&self) -> &Plan {
        self.graph.plan()
    }

    /// The plan that the run is folded over, with its graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Steps in plan order, each with its recipe. Reads all of them.
    pub fn steps(&self) -> impl Iterator<Item = (&PlanStep, &Step)> {
        self.plan().steps.iter().zip(self.steps.iter())
    }

    pub fn step(&self, id: &StepId) -> Option<(&PlanStep, &Step)> {
        self.index_of(id).map(|index| (&self.plan().steps[index], &self.steps[index]))
    }

    /// The state of a step in an iteration that exists: outside loops that is the first.
    pub(crate) fn state_of(&self, step: &StepRef) -> Option<&Step> {
        self.index_of_ref(step).map(|index| &self.steps[index])
    }

    pub(crate) fn index_of_ref(&self, step: &StepRef) -> Option<usize> {
        self.index_of(&step.step).filter(|_| step.iteration == 1)
    }

    pub fn index_of(&self, id: &StepId) -> Option<usize> {
        self.graph.index_of(id)
    }

    pub(crate) fn step_at(&self, index: usize) -> &Step {
        &self.steps[index]
    }

    /// Steps that must complete before this one and have not.
    pub fn unmet(&self, index: usize) -> Vec<StepId> {
        if self.has_needs_met(index) {
            return Vec::new();
        }
        let needed = self.graph.needed_steps(index).into_iter();
        needed.filter(|need| !self.sets.completed[*need]).map(|need| self.id_at(need)).collect()
    }

    /// The steps that this one needs, groups spelled out.
    pub fn needs_of(&self, index: usize) -> Vec<StepId> {
        self.graph.needed_steps(index).into_iter().map(|need| self.id_at(need)).collect()
    }

    /// The steps that need this one.
    pub fn dependants_of(&self, index: usize) -> Vec<StepId> {
        let steps = |node: usize| match self.graph.is_step(node) {
            true => vec![node],
            false => self.graph.dependants(node).collect(),
        };
        let mut all: Vec<usize> = self.graph.dependants(index).flat_map(steps).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(|step| self.id_at(step)).collect()
    }

    fn id_at(&self, index: usize) -> StepId {
        self.plan().steps[index].id.clone()
    }

    fn ref_at(&self, index: usize) -> StepRef {
        StepRef::first(self.id_at(index))
    }

    /// Attempts whose claim is open.
    pub fn held(&self) -> impl Iterator<Item = (StepRef, &Attempt)> {
        self.sets.held.ones().filter_map(|index| {
            let attempt = self.steps[index].attempt()?;
            Some((self.ref_at(index), attempt))
        })
    }

    /// Steps whose last attempt was interrupted and that nobody has taken on since, in plan order.
    pub fn interrupted(&self) -> impl Iterator<Item = (&PlanStep, &Step)> {
        let at = |index: usize| (&self.plan().steps[index], &self.steps[index]);
        self.sets.interrupted.ones().map(at)
    }

    /// A step that was stopped on request and that nobody has asked to go on, the first in plan order.
    pub fn held_back(&self) -> Option<(&PlanStep, Stop)> {
        let index = self.sets.held_back.ones().next()?;
        self.steps[index].held_back.map(|stop| (&self.plan().steps[index], stop))
    }

    /// Steps that somebody has or had when they were interrupted, in plan order.
    pub(crate) fn left(&self) -> impl Iterator<Item = StepRef> {
        let mut left = self.sets.held.clone();
        left.union_with(&self.sets.interrupted);
        left.into_ones().map(|index| self.ref_at(index))
    }

    /// Steps that are not completed, in plan order.
    pub fn remaining(&self) -> impl Iterator<Item = (&PlanStep, &Step)> {
        let at = |index: usize| (&self.plan().steps[index], &self.steps[index]);
        self.sets.completed.zeroes().map(at)
    }

    /// How many steps are not completed.
    pub fn count_remaining(&self) -> usize {
        self.sets.completed.count_zeroes(..)
    }

    /// Steps that are free as far as the log knows, but for those with a lock that is busy.
    pub(crate) fn free(&self, busy: impl Fn(&LockName) -> bool) -> Free<'_> {
        let mut steps = self.sets.free.clone();
        for (_, users) in self.graph.locks().filter(|(lock, _)| busy(lock)) {
            users.for_each(|step| steps.set(step, false));
        }
        Free { run: self, steps }
    }

    pub fn is_completed(&self) -> bool {
        self.count_remaining() == 0
    }

    /// Whether every step but this one is completed.
    pub(crate) fn lacks_only(&self, step: &StepId) -> bool {
        let open = self.step(step).is_some_and(|(_, state)| !state.is_completed());
        open && self.count_remaining() == 1
    }

    /// A step that failed with no retries left: it ends the run.
    pub fn failed_for_good(&self) -> Option<(&PlanStep, &Failure)> {
        let index = self.sets.failed.ones().next()?;
        match &self.steps[index].phase {
            Phase::Failed { why, .. } => Some((&self.plan().steps[index], why)),
            _ => None,
        }
    }

    /// Everything that was asked, by step in plan order.
    pub fn questions(&self) -> impl Iterator<Item = (StepRef, &Question)> {
        self.sets.asked.ones().flat_map(|index| {
            let step = self.ref_at(index);
            self.steps[index].questions.iter().map(move |question| (step.clone(), question))
        })
    }

    /// Whether some step could be attempted that nobody holds: run-wide reasons aside.
    pub(crate) fn has_free(&self) -> bool {
        !self.sets.free.is_clear()
    }

    /// The stop request that an attempt must obey, if any.
    pub fn stop_for(&self, attempt: &Attempt) -> Option<Stop> {
        stronger(self.stop, attempt.stop)
    }

    /// Folds one more record. An error leaves the run as it was.
    pub fn apply(&mut self, record: &Record) -> Result<Event, FoldError> {
        let illegal = |bad: BadEvent| FoldError { position: record.position.0, what: bad.into() };
        let event = Event::from_body(&record.body).map_err(illegal)?;
        self.apply_read(&event, record)?;
        Ok(event)
    }

    /// The same where it is known already what the record says.
    pub fn apply_read(&mut self, event: &Event, record: &Record) -> Result<(), FoldError> {
        let illegal = |what| FoldError { position: record.position.0, what };
        match event {
            Event::RunOpened(_) => return Err(illegal(Illegal::OpenedTwice)),
            Event::StopRequested { scope: Scope::Run, cause, haste } => {
                self.stop = Some(Stop { cause: *cause, haste: *haste, at: record.at });
            }
            Event::Resumed { confirmed, .. } => self.lift(*confirmed),
            Event::Abandoned { keep_until, .. } => {
                if self.held().next().is_some() || self.abandoned.is_some() {
                    return Err(illegal(Illegal::NotToAbandon));
                }
                self.abandoned = Some(Abandonment { at: record.at, keep_until: *keep_until });
            }
            Event::Reopened { .. } => {
                self.abandoned.take().ok_or_else(|| illegal(Illegal::NotAbandoned))?;
            }
            Event::PlanAccepted { plan, text } => self.accept(*plan, text).map_err(illegal)?,
            Event::MergeIntended(intent) => self.merging = Some(intent.clone()),
            Event::Merged { into, commit, tip } => {
                let (into, commit, tip) = (into.clone(), commit.clone(), tip.clone());
                self.merging = None;
                self.merged = Some(Merged { into, commit, tip, at: record.at });
            }
            about_step => {
                let stop = self.stop;
                let step = about_step.step().expect("every other event names a step");
                let index = self
                    .index_of_ref(step)
                    .ok_or_else(|| illegal(Illegal::UnknownStep(step.step.clone())))?;
                let state = self.steps.get_mut(index).expect("the plan has the step");
                state.apply(about_step, record, stop).map_err(|event| {
                    illegal(Illegal::OutOfOrder { step: step.step.clone(), event })
                })?;
                self.count(index);
                if let Event::Completed { commit: Some(commit), .. } = about_step {
                    self.landed = Some(commit.clone());
                }
            }
        }
        self.cursor = record.cursor();
        self.changed_at = record.at;
        Ok(())
    }

    /// Steps that are claimed or completed, and that this plan has otherwise or not at all.
    pub(crate) fn in_use_without(&self, plan: &Plan) -> Vec<StepId> {
        let after: HashMap<&StepId, &PlanStep> =
            plan.steps.iter().map(|step| (&step.id, step)).collect();
        let used = &self.sets.held | &self.sets.completed;
        let kept = |index: &usize| {
            let before = &self.plan().steps[*index];
            let done = self.sets.completed[*index];
            let same = |after: &PlanStep| after == before || (done && after.does_as(before));
            after.get(&before.id).is_some_and(|after| same(after))
        };
        used.ones().filter(|index| !kept(index)).map(|index| self.id_at(index)).collect()
    }

    /// Goes on over another plan: steps are known by their ids, and one that is otherwise begins anew.
    fn accept(&mut self, hash: Hash, text: &str) -> Result<(), Illegal> {
        let plan = Plan::from_bytes(text.as_bytes());
        let plan = plan.map_err(|error| Illegal::BadPlan(error.to_string()))?;
        let graph = Graph::new(Arc::new(plan));
        if graph.hash() != hash {
            let (recorded, given) = (hash.short(), graph.hash().short());
            return Err(Illegal::OtherPlan { recorded, given });
        }
        if let Some(step) = self.in_use_without(graph.plan()).into_iter().next() {
            return Err(Illegal::PlanInUse(step));
        }
        let carried = |after: &PlanStep| match self.step(&after.id) {
            Some((before, state)) if before == after => state.clone(),
            Some((_, state)) if state.is_completed() => state.clone(),
            Some((_, state)) => state.replanned(),
            None => Step::default(),
        };
        let steps: List<Step> = graph.plan().steps.iter().map(carried).collect();
        self.sets = Sets::none_of(steps.len());
        self.sets.completed.extend((0..steps.len()).filter(|step| steps[*step].is_completed()));
        self.open = open(&graph, &self.sets.completed);
        self.graph = Arc::new(graph);
        self.steps = steps;
        for index in 0..self.steps.len() {
            self.count(index);
        }
        Ok(())
    }

    /// Takes in what a step has become.
    fn count(&mut self, index: usize) {
        let (plan, step) = (&self.graph.plan().steps[index], &self.steps[index]);
        let failed = matches!(step.phase, Phase::Failed { .. }) && step.failures > plan.retries;
        let completed = step.is_completed();
        self.sets.held.set(index, matches!(step.phase, Phase::Held(_)));
        self.sets.interrupted.set(index, matches!(step.phase, Phase::Interrupted(_)));
        self.sets.held_back.set(index, step.held_back.is_some());
        self.sets.failed.set(index, failed);
        self.sets.asked.set(index, !step.questions.is_empty());
        if completed != self.sets.completed[index] {
            self.sets.completed.set(index, completed);
            self.tell_dependants(index, completed);
        }
        self.count_free_again(index);
    }

    /// A step or group is done, or no longer.
    fn tell_dependants(&mut self, node: usize, done: bool) {
        let graph = Arc::clone(&self.graph);
        for dependant in graph.dependants(node) {
            let Some(group) = graph.group(dependant) else {
                self.count_free_again(dependant);
                continue;
            };
            let before = self.open[group];
            self.open[group] = if done { before - 1 } else { before + 1 };
            if before == u32::from(done) {
                self.tell_dependants(dependant, done);
            }
        }
    }

    /// Whether everything that a step needs is done. What comes late in the plan is done late, so that
    /// asking from the end is over soon.
    fn has_needs_met(&self, index: usize) -> bool {
        self.graph.needs(index).rev().all(|need| match self.graph.group(need) {
            None => self.sets.completed[need],
            Some(group) => self.open[group] == 0,
        })
    }

    fn count_free_again(&mut self, index: usize) {
        let free = self.has_needs_met(index) && {
            let (plan, step) = (&self.graph.plan().steps[index], &self.steps[index]);
            !matches!(step.phase, Phase::Held(_)) && entry_of(plan, step).is_ok()
        };
        self.sets.free.set(index, free);
    }

    /// For looking ahead: without the questions that the log does not have yet.
    pub(crate) fn forget_asked_since(&mut self, step: &StepRef, position: Position) {
        let Some(index) = self.index_of(&step.step) else { return };
        if let Some(step) = self.steps.get_mut(index) {
            step.questions.retain(|question| question.id <= position.into());
        }
        self.count(index);
    }

    /// For looking ahead: the changes a recovery snapshot would find, before there is one.
    pub(crate) fn expect_changes(&mut self, step: &StepRef, changed: Option<u64>) {
        let Some(index) = self.index_of(&step.step) else { return };
        if let (Some(changed), Some(step)) = (changed, self.steps.get_mut(index)) {
            step.changed = changed;
        }
    }

    fn lift(&mut self, confirmed: bool) {
        let run_stop = self.stop.take();
        let sets = &self.sets;
        let mut stopped: Vec<usize> = sets.held.union(&sets.held_back).collect();
        stopped.extend(sets.interrupted.ones().filter(|index| self.steps[*index].is_obstructed()));
        if confirmed {
            stopped.extend((0..self.steps.len()).filter(|index| self.steps[*index].idle > 0));
        }
        for index in stopped {
            let step = self.steps.get_mut(index).expect("sets hold steps of the plan");
            step.held_back = None;
            if let Phase::Held(attempt) = &mut step.phase {
                attempt.lift(run_stop);
            }
            // Whoever resumes has moved what was in the way, or is told of it again.
            if confirmed || step.is_obstructed() {
                step.idle = 0;
            }
            self.count(index);
        }
    }
}

/// How many steps of each group are not completed.
fn open(graph: &Graph, completed: &FixedBitSet) -> Vec<u32> {
    let groups = graph.plan().steps.len()..graph.nodes();
    let open = |group: usize| graph.needs(group).filter(|step| !completed[*step]).count();
    groups.map(|group| u32::try_from(open(group)).unwrap_or(u32::MAX)).collect()
}

fn stronger(run: Option<Stop>, own: Option<Stop>) -> Option<Stop> {
    match (run, own) {
        (Some(run), Some(own)) => Some(if run.haste > own.haste { run } else { own }),
        (run, own) => own.or(run),
    }
}

impl Attempt {
    /// The stop that was asked of it, if nobody has asked for the run to go on since.
    pub fn unlifted_stop(&self) -> Option<Stop> {
        self.stop.filter(|_| !self.lifted)
    }

    /// A keeper ends what it was asked to end. Whoever works outside has perhaps not heard of it yet, and
    /// goes on.
    fn lift(&mut self, run_stop: Option<Stop>) {
        self.stop = match self.holder {
            Holder::Keeper { .. } => stronger(run_stop, self.stop),
            Holder::External { .. } => None,
        };
        self.lifted = self.stop.is_some();
    }
}

impl Step {
    pub fn is_completed(&self) -> bool {
        matches!(self.phase, Phase::Completed { .. })
    }

    /// Whether somebody asked for it to stop, and nobody since for it to go on: whoever has it is to
    /// end, and nobody gets it.
    pub fn is_stopped(&self) -> bool {
        let held = self.attempt().and_then(Attempt::unlifted_stop);
        held.or(self.held_back).is_some()
    }

    pub fn attempt(&self) -> Option<&Attempt> {
        match &self.phase {
            Phase::Held(attempt) => Some(attempt),
            _ => None,
        }
    }

    /// How far the open attempt has come, as far as the log knows. Whether an agent has ended is not
    /// in the log: its exit record tells.
    pub fn stage(&self, attempt: &Attempt) -> Stage {
        match attempt.entry {
            _ if self.verified.is_some() => Stage::Land,
            Entry::Land => Stage::Land,
            Entry::Verify => Stage::Verify,
            Entry::Fresh | Entry::Continue if attempt.started_at.is_some() => Stage::Agent,
            Entry::Fresh | Entry::Continue => Stage::Unstarted,
        }
    }

    /// The snapshot of the tree that the work goes on in.
    pub fn to_go_on_from(&self) -> Option<&KeptSnapshot> {
        let of_this_tree = |kept: &&KeptSnapshot| self.begun_anew.is_none_or(|at| kept.fence >= at);
        self.snapshot.as_ref().filter(of_this_tree)
    }

    /// Whether the last attempt that was started was cut off at work, also by one that is not recorded
    /// as such: whoever holds the step now may be lost.
    pub(crate) fn was_cut_off(&self) -> bool {
        match &self.phase {
            Phase::Held(attempt) => self.is_cut_off_at(self.stage(attempt)),
            _ => self.cut_off,
        }
    }

    /// Whether an attempt that is lost at this stage leaves something cut off. One that never began has
    /// cut off nothing.
    fn is_cut_off_at(&self, stage: Stage) -> bool {
        match stage {
            Stage::Unstarted => self.cut_off,
            Stage::Agent => true,
            Stage::Verify | Stage::Land => false,
        }
    }

    /// Where a command or agent that piton starts again enters: as the plan or a person said about what
    /// was cut off, else by what was done.
    pub(crate) fn work_entry(&self, plan: &PlanStep) -> Entry {
        let said = plan.on_interrupt.filter(|_| self.was_cut_off());
        match said {
            _ if self.outdated || self.base.is_none() => Entry::Fresh,
            Some(OnInterrupt::Continue) => Entry::Continue,
            Some(OnInterrupt::Restart) => Entry::Fresh,
            Some(OnInterrupt::Ask) if self.goes_on_as_told() => Entry::Continue,
            Some(OnInterrupt::Ask) | None => self.agent_entry(&plan.work),
        }
    }

    /// The claim under which the work was last begun from the step's base; what is older is of another
    /// tree.
    pub fn begun_anew(&self) -> Option<Fence> {
        self.begun_anew
    }

    /// Where an agent that has to run again enters: in the tree when enough was done there, else
    /// from the base. A plain command always starts from its base.
    pub(crate) fn agent_entry(&self, work: &Work) -> Entry {
        match work {
            Work::Agent { .. } if self.outdated || self.base.is_none() => Entry::Fresh,
            Work::Agent { .. } if self.has_enough_done() => Entry::Continue,
            _ => Entry::Fresh,
        }
    }

    /// By what the agent reported; where it reported nothing, by whether anything is there.
    fn has_enough_done(&self) -> bool {
        match self.report.progress {
            Some(percent) => percent >= CONTINUE_PERCENT_MIN,
            None => self.changed > 0 || self.checklist.parts_done() > 0,
        }
    }

    /// `Err` names the event that did not fit.
    fn apply(
        &mut self,
        event: &Event,
        record: &Record,
        run_stop: Option<Stop>,
    ) -> Result<(), &'static str> {
        // Of whatever ends an attempt.
        let stop = self.attempt().and_then(|held| stronger(run_stop, held.unlifted_stop()));
        match event {
            Event::Claimed(claimed) => return self.claim(claimed, record),
            Event::Started { fence, base, answers, pid, .. } => {
                self.own(*fence).ok_or("started")?;
                self.apply_answers(answers, *fence).ok_or("started")?;
                let attempt = self.own(*fence).ok_or("started")?;
                attempt.started_at = Some(record.at);
                attempt.trace.pid = pid.or(attempt.trace.pid);
                if attempt.entry == Entry::Fresh {
                    // A keeper begins from the base; whoever works outside has a tree of their own.
                    if matches!(attempt.holder, Holder::Keeper { .. }) {
                        self.report.progress = None;
                    }
                    self.changed = 0;
                    self.begun_anew = Some(*fence);
                    self.outdated = false;
                }
                if base.is_some() {
                    self.base.clone_from(base);
                }
                self.cut_off = false;
                self.verified = None;
                self.landing = None;
            }
            Event::Checkpointed { fence, snapshot, report, .. } => {
                let attempt = self.own(*fence).ok_or("checkpointed")?;
                if let Some(Snapshot { head: Some(head), commits, .. }) = snapshot {
                    attempt.trace.head = Some(head.clone());
                    attempt.trace.commits = *commits;
                }
                if let Some(report) = report {
                    self.report.take_in(report);
                }
                // What stood in the tree before a reset may be another step's: it is kept, found by
                // its ref, and nothing that this step would go on from.
                if let Some(snapshot) = snapshot
                    && snapshot.reason != SnapshotReason::Reset
                {
                    let (snapshot, at, fence) = (snapshot.clone(), record.at, *fence);
                    self.changed = snapshot.changed;
                    self.snapshot = Some(KeptSnapshot { snapshot, at, fence });
                }
            }
            Event::SubstepCompleted { fence, substep, .. } => {
                self.own(*fence).ok_or("substep_completed")?;
                self.checklist.completed.insert(substep.clone());
            }
            Event::ItemAdded { fence, text, priority, .. } => {
                self.own(*fence).ok_or("item_added")?;
                self.checklist.added.push(Gap { text: text.clone(), priority: *priority });
            }
            Event::CheckoutChanged { fence, files, more, .. } => {
                let attempt = self.own(*fence).ok_or("checkout_changed")?;
                let changes = attempt.trace.checkout.get_or_insert_default();
                let CheckoutChanges { files: named, more: others } = &mut **changes;
                let room = CHECKOUT_FILES_MAX.saturating_sub(named.len());
                named.extend(files.iter().take(room).cloned());
                *others += more + files.len().saturating_sub(room) as u64;
            }
            Event::ItemsMarked { fence, items, mark, .. } => {
                self.own(*fence).ok_or("items_marked")?;
                let marked = items.iter().map(|item| (item.clone(), mark.clone()));
                self.checklist.marks.extend(marked);
            }
            Event::Asked { fence, text, choices, about, .. } => {
                self.may_ask(*fence, about.as_deref()).ok_or("asked")?;
                self.questions.push(Question {
                    id: record.position.into(),
                    fence: *fence,
                    text: text.clone(),
                    choices: choices.clone(),
                    about: about.clone(),
                    asked_at: record.at,
                    state: QuestionState::Open,
                });
            }
            Event::Answered { question, answer, .. } => {
                let about = self.answer(*question, answer, record.at).ok_or("answered")?;
                let by_piton = about.is_some();
                // What was done does not fit onto the run's branch, or is not wanted.
                self.outdated |= by_piton && answer == RESTART;
                // A person has looked at it.
                self.idle = if by_piton { 0 } else { self.idle };
            }
            Event::AnswersApplied { fence, questions, .. } => {
                self.own(*fence).ok_or("answers_applied")?;
                self.apply_answers(questions, *fence).ok_or("answers_applied")?;
            }
            Event::Suspended { fence, .. } => {
                self.own(*fence).ok_or("suspended")?;
                self.awaits(*fence).ok_or("suspended")?;
                self.end(Ending::Suspended, record.at);
                self.held_back = stop;
                self.cut_off = false;
                self.idle = 0;
                self.verified = None;
                self.landing = None;
                self.phase = Phase::Suspended { at: record.at };
            }
            Event::Released { fence, .. } => {
                self.own(*fence).ok_or("released")?;
                self.end(Ending::Released, record.at);
                self.held_back = stop;
                self.cut_off = false;
                self.verified = None;
                self.landing = None;
                self.checklist.reopen();
                self.void_questions();
            }
            Event::Reset { .. } => self.reset().ok_or("reset")?,
            Event::Verified { fence, commit, tree, truth, commits, answers, omitted, .. } => {
                self.own(*fence).ok_or("verified")?;
                self.apply_answers(answers, *fence).ok_or("verified")?;
                self.void_asked_by_piton();
                let attempt = self.own(*fence).ok_or("verified")?;
                attempt.trace.head = Some(commit.clone());
                attempt.trace.commits = *commits;
                attempt.trace.omitted.clone_from(omitted);
                if *truth == Truth::Verified {
                    attempt.trace.verified = Some(commit.clone());
                }
                let (commit, tree, truth) = (commit.clone(), tree.clone(), *truth);
                self.verified = Some(VerifiedCommit { commit, tree, truth });
                self.landing = None;
            }
            Event::LandingIntended { fence, onto, to, .. } => {
                self.own(*fence).ok_or("landing_intended")?;
                self.landing = Some(Landing { onto: onto.clone(), to: to.clone() });
            }
            Event::Completed { fence, commit, waived, .. } => {
                self.own(*fence).ok_or("completed")?;
                let truth = match commit {
                    Some(_) => self.verified.as_ref().ok_or("completed")?.truth,
                    // Nobody but the holder has seen it done.
                    None => Truth::Claimed,
                };
                // What it was given to be landed, wherever its worktree stands by now.
                let given = self.verified.as_ref().map(|verified| verified.commit.clone());
                if let Some(attempt) = self.own(*fence).filter(|_| commit.is_some()) {
                    attempt.trace.head = given;
                }
                self.end(Ending::Completed, record.at);
                self.cut_off = false;
                self.void_questions();
                self.idle = 0;
                self.verified = None;
                self.landing = None;
                self.shed();
                let (commit, waived, at) = (commit.clone(), waived.clone(), record.at);
                self.phase = Phase::Completed { commit, truth, at, fence: *fence, waived };
            }
            Event::Failed { fence, why, .. } => {
                self.own(*fence).ok_or("failed")?;
                self.end(Ending::Failed(why.clone()), record.at);
                self.held_back = stop;
                self.cut_off = false;
                self.failures += 1;
                self.outdated |= matches!(why, Failure::Landing { .. });
                self.idle = 0;
                self.verified = None;
                self.landing = None;
                self.phase = Phase::Failed { why: why.clone(), at: record.at };
            }
            Event::Interrupted { fence, cause, at, evidence, left_at, .. } => {
                let attempt = self.own(*fence).ok_or("interrupted")?;
                let asked = attempt.stop.is_some() || run_stop.is_some();
                self.end(Ending::Interrupted { cause: *cause, at: *at }, record.at);
                self.held_back = stop;
                self.cut_off = self.is_cut_off_at(*left_at);
                self.count_interruption(*left_at, *cause, asked);
                self.phase = Phase::Interrupted(Interruption {
                    cause: *cause,
                    at: *at,
                    evidence: evidence.clone(),
                    left_at: *left_at,
                });
            }
            Event::StopRequested { scope: Scope::Attempt { fence, .. }, cause, haste } => {
                let attempt = self.own(*fence).ok_or("stop_requested")?;
                attempt.stop = Some(Stop { cause: *cause, haste: *haste, at: record.at });
                attempt.lifted = false;
            }
            Event::RunOpened(_)
            | Event::PlanAccepted { .. }
            | Event::MergeIntended(_)
            | Event::Merged { .. }
            | Event::StopRequested { .. }
            | Event::Abandoned { .. }
            | Event::Reopened { .. }
            | Event::Resumed { .. } => {
                return Err("an event about the run");
            }
        }
        Ok(())
    }

    fn claim(&mut self, claimed: &Claimed, record: &Record) -> Result<(), &'static str> {
        match (&self.phase, claimed.grounds) {
            (Phase::Completed { .. }, _) | (Phase::Held(_), Grounds::Free) => {
                return Err("claimed");
            }
            (Phase::Held(lost), Grounds::LeaseOver | Grounds::SameOwner | Grounds::Forced) => {
                self.cut_off = self.is_cut_off_at(self.stage(lost));
                self.end(Ending::Displaced, record.at);
            }
            (
                Phase::Pending
                | Phase::Failed { .. }
                | Phase::Interrupted(_)
                | Phase::Suspended { .. },
                _,
            ) => {}
        }
        self.checklist.reopen_unfinished_substeps();
        if matches!(claimed.entry, Entry::Fresh | Entry::Continue) {
            // The work goes on: what was verified before is not what this attempt will leave.
            self.verified = None;
            self.landing = None;
        }
        self.held_back = None;
        self.phase = Phase::Held(Attempt {
            id: claimed.attempt,
            fence: record.position.into(),
            holder: claimed.holder.clone(),
            entry: claimed.entry,
            grounds: claimed.grounds,
            claimed_at: record.at,
            until: claimed.until.clone(),
            started_at: None,
            stop: None,
            lifted: false,
            trace: Trace { pid: claimed.pid, ..Trace::default() },
        });
        Ok(())
    }

    /// Pending again, as if it had never failed; what was done of its checklist stays.
    fn reset(&mut self) -> Option<()> {
        match self.phase {
            Phase::Held(_) | Phase::Pending => return None,
            Phase::Failed { .. }
            | Phase::Interrupted(_)
            | Phase::Suspended { .. }
            | Phase::Completed { .. } => {}
        }
        self.phase = Phase::Pending;
        self.held_back = None;
        self.cut_off = false;
        self.failures = 0;
        self.idle = 0;
        self.changed = 0;
        self.verified = None;
        self.landing = None;
        self.checklist.reopen();
        self.void_questions();
        Some(())
    }

    /// The step under another recipe: pending, with its history; its checklist is another one.
    fn replanned(&self) -> Step {
        let mut step = Step {
            phase: Phase::Pending,
            held_back: None,
            cut_off: false,
            failures: 0,
            idle: 0,
            changed: 0,
            verified: None,
            landing: None,
            checklist: Checklist::default(),
            ..self.clone()
        };
        step.void_questions();
        step
    }

    /// A holder asks; about its interruption piton does, once it is over.
    fn may_ask(&mut self, fence: Fence, about: Option<&About>) -> Option<()> {
        match (about, &self.phase) {
            (Some(About::Interruption { .. }), Phase::Interrupted(_)) => {
                self.history.last().filter(|past| past.attempt.fence == fence).map(drop)
            }
            (Some(About::Interruption { .. }), _) => None,
            (Some(About::Conflict(_)) | None, _) => self.own(fence).map(drop),
        }
    }

    /// Whether it waits for a person to move what was in its way.
    pub fn is_obstructed(&self) -> bool {
        let obstacle = |phase: &Phase| matches!(phase, Phase::Interrupted(last) if last.cause == Cause::Obstacle);
        self.idle > 0 && obstacle(&self.phase)
    }

    fn own(&mut self, fence: Fence) -> Option<&mut Attempt> {
        match &mut self.phase {
            Phase::Held(attempt) if attempt.fence == fence => Some(attempt),
            _ => None,
        }
    }

    /// What only the next attempt would have asked for is left to the log: runs that are mostly done are
    /// kept small.
    fn shed(&mut self) {
        self.last_progress = None;
        if let Some(kept) = &mut self.snapshot {
            kept.snapshot.omitted.clear();
        }
    }

    fn end(&mut self, ending: Ending, ended_at: Millis) {
        if let Phase::Held(mut attempt) = std::mem::take(&mut self.phase) {
            // They judge no more; long histories are kept small.
            attempt.until.clock = None;
            if let Holder::Keeper { boot, .. } = &mut attempt.holder {
                boot.0.clear();
            }
            self.history.push(PastAttempt { attempt, ended_at, ending });
        }
    }

    /// Being stopped on request, or killed before anything was started, says nothing about the step.
    /// Trouble on the way there does: it would come again and again. What is in the way would, however
    /// often it is tried: a person is asked at once.
    fn count_interruption(&mut self, left_at: Stage, cause: Cause, asked: bool) {
        let trouble = matches!(cause, Cause::Unknown | Cause::DiskFull | Cause::Obstacle);
        if asked || (left_at == Stage::Unstarted && !trouble) {
            return;
        }
        if cause == Cause::Obstacle {
            self.idle = IDLE_INTERRUPTIONS_MAX;
            return;
        }
        let tree = self.snapshot.as_ref().map(|kept| kept.snapshot.tree.clone());
        let (parts, reported) = (self.checklist.parts_done(), self.report.progress);
        let progress = Some(Progress { left_at, tree, parts, reported });
        self.idle = if self.last_progress == progress { self.idle + 1 } else { 1 };
        self.last_progress = progress;
    }
}
