//! A run, folded from its log. `apply` is the only way a status changes, and recovery is replay
//! through the same function; an event that could not have happened is damage, not a surprise.

use std::collections::HashMap;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use serde::{Deserialize, Serialize};

use crate::event::{
    BadEvent, Cause, Claimed, Event, Fact, Haste, Holder, MergeIntent, RunOpened, Scope, Snapshot,
    SnapshotReason, Terms,
};
use crate::graph::{Graph, NodeKind};
use crate::ids::{Hash, LockName, Oid, Position, StepId, StepRef};
use crate::limits::CONTINUE_PERCENT_MIN;
use crate::packing::{PackedList, as_json, shared};
use crate::plan::{Need, Plan, PlanStep};
use crate::question::Question;
use crate::record::{Cursor, Record};
use crate::time::Millis;

pub(crate) use entry::{Ground, WorkIs, asks_first, entry_of};
pub(crate) use failures::Rest;
pub use limits::{Limit, Limits};
pub use loops::{Loop, LoopEnd, LoopPhase};
pub(crate) use outputs::Lacks;
pub use outputs::{AwaitedOutput, GivenOutput, Outputs, Published};
pub use step::{
    Attempt, Ending, Idle, Inherited, KeptSnapshot, PastAttempt, Phase, Step, Trace, VerifiedCommit,
};
pub use trees::Trees;

mod entry;
mod failures;
mod limits;
mod loops;
mod outputs;
mod questions;
mod step;
mod trees;

/// One execution of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    #[serde(with = "as_json")]
    pub opened: RunOpened,
    pub opened_at: Millis,
    /// When the newest record was appended.
    pub changed_at: Millis,
    /// A stop of the whole run that nobody has lifted.
    pub stop: Option<Stop>,
    /// What was asked for when it was last asked to go on.
    #[serde(with = "as_json")]
    pub terms: Terms,
    /// Somebody gave it up, and nobody has reopened it.
    pub abandoned: Option<Abandonment>,
    /// The commit that the step completed last was landed with: the run's branch must contain it.
    pub landed: Option<Oid>,
    /// A merge that was begun; whoever comes next finishes it.
    pub merging: Option<MergeIntent>,
    pub merged: Option<Merged>,
    pub cursor: Cursor,
    trees: Trees,
    #[serde(with = "shared")]
    graph: Arc<Graph>,
    steps: PackedList<Step>,
    /// In the order of the plan's.
    loops: Vec<Loop>,
    sets: Sets,
    /// For every group, how many of its steps and loops are not done.
    open: Vec<u32>,
    /// The steps that failed alike last, one after the other, and do not go on by themselves. A completed
    /// step, or an answer, ends the row.
    alike: Vec<StepRef>,
    /// Accounts whose limit is not known to be over.
    limits: Limits,
}

/// Sets of steps by index, kept so that no question about the whole run walks all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sets {
    held: FixedBitSet,
    interrupted: FixedBitSet,
    held_back: FixedBitSet,
    /// With no retries left.
    failed: FixedBitSet,
    /// Completed or skipped: needs on them are met.
    done: FixedBitSet,
    /// Those that have ever asked.
    asked: FixedBitSet,
    /// Those with an open question about the run.
    asks_about_run: FixedBitSet,
    /// Those with an open question about an account.
    asks_about_account: FixedBitSet,
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
            done: none(),
            asked: none(),
            asks_about_run: none(),
            asks_about_account: none(),
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

    /// By their place in the plan.
    pub(crate) fn all(self) -> impl Iterator<Item = usize> {
        self.steps.into_ones()
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
    PlanInUse(StepRef),
    #[error("it abandons a run that is held or abandoned already")]
    NotToAbandon,
    #[error("it reopens a run that was not abandoned")]
    NotAbandoned,
    #[error("it names step {0}, which the plan does not have")]
    UnknownStep(StepRef),
    #[error("it gives step {step} a tree that belongs to another step, or none")]
    BadTree { step: StepRef },
    #[error("it does not fit the state of step {step}: {event}")]
    OutOfOrder { step: StepRef, event: String },
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
        let (steps, loops) = (graph.plan().steps.len(), graph.plan().loops.len());
        let mut run = Run {
            opened,
            opened_at: first.at,
            changed_at: first.at,
            stop: None,
            terms: Terms::default(),
            abandoned: None,
            landed: None,
            merging: None,
            merged: None,
            cursor: first.cursor(),
            trees: Trees::default(),
            open: open(&graph, |_| false),
            loops: vec![Loop::default(); loops],
            graph: Arc::new(graph),
            steps: std::iter::repeat_n(Arc::default(), steps).collect(),
            sets: Sets::none_of(steps),
            alike: Vec::new(),
            limits: Limits::default(),
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

    /// Steps in plan order, each with its recipe.
    pub fn steps(&self) -> impl Iterator<Item = (StepRef, &PlanStep, &Step)> {
        (0..self.steps.len()).map(|index| self.at(index))
    }

    /// A step in an iteration that exists, or existed: outside loops that is the first.
    pub fn step(&self, step: &StepRef) -> Option<(&PlanStep, &Step)> {
        let present = self.index_of(step).map(|index| (index, &self.steps[index]));
        let (index, state) = present.or_else(|| self.past(step))?;
        Some((&self.plan().steps[index], state))
    }

    /// The place of a step in its present iteration.
    pub fn index_of(&self, step: &StepRef) -> Option<usize> {
        let index = self.graph.index_of(&step.step)?;
        (step.iteration == self.iteration_at(index)).then_some(index)
    }

    /// Whether this step of another plan is done there, too: a skipped one that changed begins again.
    pub(crate) fn stays_done(&self, after: &PlanStep) -> bool {
        let Some(index) = self.graph.index_of(&after.id) else { return false };
        let same = self.plan().steps[index] == *after;
        self.sets.done[index] && (same || self.steps[index].is_completed())
    }

    fn at(&self, index: usize) -> (StepRef, &PlanStep, &Step) {
        (self.ref_at(index), &self.plan().steps[index], &self.steps[index])
    }

    pub(crate) fn step_at(&self, index: usize) -> &Step {
        &self.steps[index]
    }

    /// Steps that must complete before this one and have not, and outputs that are not there.
    pub fn unmet(&self, index: usize) -> Vec<Need> {
        if self.has_needs_met(index) {
            return Vec::new();
        }
        let mut unmet = Vec::new();
        let mut left: Vec<usize> = self.graph.needs(index).collect();
        while let Some(node) = left.pop() {
            match self.graph.kind(node) {
                NodeKind::Step if self.sets.done[node] => {}
                NodeKind::Step => unmet.push(node),
                NodeKind::Group(_) => left.extend(self.graph.needs(node)),
                NodeKind::Loop(at) if self.loops[at].is_over() => {}
                NodeKind::Loop(at) => {
                    let open = self.graph.chain(at).filter(|step| !self.sets.done[*step]);
                    let open: Vec<usize> = open.collect();
                    // What waits for a person, or for its next iteration, is known by its last step.
                    let last = self.graph.chain(at).next_back().filter(|_| open.is_empty());
                    unmet.extend(open.into_iter().chain(last));
                }
            }
        }
        unmet.sort_unstable();
        unmet.dedup();
        let steps = unmet.into_iter().map(|need| Need::Step(self.id_at(need)));
        steps.chain(self.unmet_outputs(index)).collect()
    }

    /// The steps and outputs that this one needs, groups and loops spelled out.
    pub fn needs_of(&self, index: usize) -> Vec<Need> {
        let steps =
            self.graph.needed_steps(index).into_iter().map(|need| Need::Step(self.id_at(need)));
        let outputs = self.graph.needed_outputs(index);
        steps.chain(outputs.map(|(of, name)| Need::Output(self.id_at(of), name.clone()))).collect()
    }

    /// The same, as they stand.
    pub(crate) fn needed_by(&self, index: usize) -> impl Iterator<Item = &Step> {
        self.graph.needed_steps(index).into_iter().map(|need| &self.steps[need])
    }

    /// The steps that need this one.
    pub fn dependants_of(&self, index: usize) -> Vec<StepId> {
        let mut all = self.graph.dependent_steps(index);
        all.extend(self.graph.readers(index));
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(|step| self.id_at(step)).collect()
    }

    fn id_at(&self, index: usize) -> StepId {
        self.plan().steps[index].id.clone()
    }

    pub(crate) fn ref_at(&self, index: usize) -> StepRef {
        StepRef { step: self.id_at(index), iteration: self.iteration_at(index) }
    }

    /// Attempts whose claim is open.
    pub fn held(&self) -> impl Iterator<Item = (StepRef, &Attempt)> {
        self.sets.held.ones().filter_map(|index| {
            let attempt = self.steps[index].attempt()?;
            Some((self.ref_at(index), attempt))
        })
    }

    /// Steps whose last attempt was interrupted and that nobody has taken on since, in plan order.
    pub fn interrupted(&self) -> impl Iterator<Item = (StepRef, &PlanStep, &Step)> {
        self.sets.interrupted.ones().map(|index| self.at(index))
    }

    /// A step that was stopped on request and that nobody has asked to go on, the first in plan order.
    pub fn held_back(&self) -> Option<(StepRef, Stop)> {
        let index = self.sets.held_back.ones().next()?;
        self.steps[index].held_back().map(|stop| (self.ref_at(index), stop))
    }

    /// Steps that somebody has or had when they were interrupted, in plan order.
    pub(crate) fn left(&self) -> impl Iterator<Item = StepRef> {
        let mut left = self.sets.held.clone();
        left.union_with(&self.sets.interrupted);
        left.into_ones().map(|index| self.ref_at(index))
    }

    /// Steps that are neither completed nor skipped, in plan order.
    pub fn remaining(&self) -> impl Iterator<Item = (StepRef, &PlanStep, &Step)> {
        self.sets.done.zeroes().map(|index| self.at(index))
    }

    /// How many steps are neither completed nor skipped.
    pub fn count_remaining(&self) -> usize {
        self.sets.done.count_zeroes(..)
    }

    /// Steps that are free as far as the log knows, but for those with a lock that is busy.
    pub(crate) fn free(&self, busy: impl Fn(&LockName) -> bool) -> Free<'_> {
        let mut steps = self.sets.free.clone();
        for (_, users) in self.graph.locks().filter(|(lock, _)| busy(lock)) {
            users.for_each(|step| steps.set(step, false));
        }
        Free { run: self, steps }
    }

    /// Whether every step is completed or skipped, and every loop over.
    pub fn is_completed(&self) -> bool {
        self.count_remaining() == 0 && self.loops.iter().all(Loop::is_over)
    }

    /// Whether every step but this one is done.
    pub(crate) fn lacks_only(&self, step: &StepRef) -> bool {
        let open = self.step(step).is_some_and(|(_, state)| !state.is_done());
        open && self.count_remaining() == 1
    }

    /// Everything that was asked, by step in plan order; then what was asked in past iterations.
    pub fn questions(&self) -> impl Iterator<Item = (StepRef, &Question)> {
        let present = self.sets.asked.ones().map(|index| (self.ref_at(index), &self.steps[index]));
        present.chain(self.past_steps()).flat_map(|(step, state)| {
            state.questions.iter().map(move |question| (step.clone(), question))
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
            Event::Resumed { confirmed, terms, .. } => {
                self.lift(*confirmed);
                let max_iterations = terms.max_iterations.or(self.terms.max_iterations);
                self.terms = Terms { restart: false, max_iterations, ..terms.clone() };
                self.lift_loops();
            }
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
                    .index_of(step)
                    .ok_or_else(|| illegal(Illegal::UnknownStep(step.clone())))?;
                if let Event::Claimed(claimed) = about_step
                    && !self.may_have_tree(claimed)
                {
                    return Err(illegal(Illegal::BadTree { step: step.clone() }));
                }
                let held = self.steps[index].attempt().and_then(Attempt::place);
                let tried = self.account_tried_by(index, about_step);
                let alike = self.alike_after(index, about_step);
                let state = self.steps.make_mut(index);
                state.apply(about_step, record, stop).ok_or_else(|| {
                    let (step, event) = (step.clone(), about_step.name());
                    illegal(Illegal::OutOfOrder { step, event })
                })?;
                self.alike = alike;
                self.limits.take_in(about_step, record);
                if let Some(account) = tried {
                    self.limits.try_now(&account, record.at);
                }
                self.count(index);
                self.count_trees(about_step, step, held);
                self.count_loop(index, about_step);
                if let Event::Under(_, Fact::Completed { commit: Some(commit), .. }) = about_step {
                    self.landed = Some(commit.clone());
                    // What was merged is not all of it any more.
                    self.merged.take_if(|merged| merged.tip != *commit);
                }
            }
        }
        self.cursor = record.cursor();
        self.changed_at = record.at;
        Ok(())
    }

    /// A keeper has a tree of its own, and nobody else has one.
    fn may_have_tree(&self, claimed: &Claimed) -> bool {
        match (&claimed.holder, claimed.tree) {
            (Holder::Keeper { host, .. }, Some(tree)) => {
                self.trees.owner(host, tree).is_none_or(|owner| *owner == claimed.step)
            }
            (Holder::External { .. }, None) => true,
            (Holder::Keeper { .. }, None) | (Holder::External { .. }, Some(_)) => false,
        }
    }

    /// Takes in what an event says about the trees; `held` is that of the attempt that it is about.
    fn count_trees(&mut self, event: &Event, step: &StepRef, held: Option<trees::Place>) {
        match event {
            Event::Claimed(claimed) => {
                if let Some(place) = claimed.tree.map(|tree| (claimed.holder.host().clone(), tree))
                {
                    self.trees.claim(step, place, claimed.entry);
                }
            }
            Event::Under(_, Fact::Checkpointed { snapshot: Some(Snapshot { reason, .. }), .. })
                if *reason == SnapshotReason::Reset => {}
            Event::Under(
                _,
                Fact::Started { .. }
                | Fact::Checkpointed { snapshot: Some(_), .. }
                | Fact::Verified { .. },
            ) => self.trees.work(step, held.as_ref()),
            Event::Under(_, Fact::Completed { .. } | Fact::FoundDone { .. })
            | Event::Found(_)
            | Event::Reset { .. }
            | Event::Skipped { .. } => self.trees.free(step),
            _ => {}
        }
    }

    /// Steps that are claimed or completed, and that the new plan changes or removes.
    pub(crate) fn steps_blocking(&self, plan: &Plan) -> Vec<StepRef> {
        let after: HashMap<&StepId, &PlanStep> =
            plan.steps.iter().map(|step| (&step.id, step)).collect();
        let mut used = &self.sets.held | &self.sets.done;
        for index in self.sets.done.ones().filter(|index| !self.steps[*index].is_completed()) {
            used.set(index, false);
        }
        let kept = |index: &usize| {
            let before = &self.plan().steps[*index];
            let done = self.sets.done[*index];
            let same = |after: &PlanStep| after == before || (done && after.same_work(before));
            after.get(&before.id).is_some_and(|after| same(after))
        };
        let changed = used.ones().filter(|index| !kept(index)).map(|index| self.ref_at(index));
        let mut all: Vec<StepRef> = changed.chain(self.steps_blocking_loops(plan)).collect();
        all.sort_unstable();
        all.dedup();
        all
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
        if let Some(step) = self.steps_blocking(graph.plan()).into_iter().next() {
            return Err(Illegal::PlanInUse(step));
        }
        let carried = |after: &PlanStep| {
            let Some(index) = self.graph.index_of(&after.id) else { return Arc::default() };
            let (before, state) = (&self.plan().steps[index], self.steps.shared(index));
            match before == after || state.is_completed() {
                true => Arc::clone(state),
                false => Arc::new(state.replanned()),
            }
        };
        let steps: PackedList<Step> = graph.plan().steps.iter().map(carried).collect();
        self.sets = Sets::none_of(steps.len());
        self.sets.done.extend((0..steps.len()).filter(|step| steps[*step].is_done()));
        self.loops = self.carried_loops(&graph);
        let is_done = |node: usize| match graph.kind(node) {
            NodeKind::Loop(at) => self.loops[at].is_over(),
            _ => self.sets.done[node],
        };
        self.open = open(&graph, is_done);
        self.graph = Arc::new(graph);
        self.steps = steps;
        let graph = Arc::clone(&self.graph);
        self.trees.keep_only(|step| graph.index_of(&step.step).is_some());
        for index in 0..self.steps.len() {
            self.count(index);
        }
        self.lift_loops();
        Ok(())
    }

    /// The row of steps that failed alike, once this has happened to a step.
    fn alike_after(&self, index: usize, event: &Event) -> Vec<StepRef> {
        let (plan, state) = (&self.plan().steps[index], &self.steps[index]);
        match event {
            Event::Under(_, Fact::Completed { .. } | Fact::FoundDone { .. }) => Vec::new(),
            Event::Under(under, Fact::Failed { why }) if state.rest_after(plan, why).is_some() => {
                self.alike_with(&under.step, why)
            }
            _ => self.alike.clone(),
        }
    }

    /// Takes in what a step has become.
    fn count(&mut self, index: usize) {
        let (plan, step) = (&self.graph.plan().steps[index], &self.steps[index]);
        let failed = matches!(step.phase, Phase::Failed { .. }) && step.tries_left(plan) == 0;
        let done = step.is_done();
        let open = || step.questions.iter().filter(|question| question.is_open());
        let asks_about_run = open().any(Question::is_about_run);
        let asks_about_account = open().any(Question::is_about_account);
        self.sets.asks_about_account.set(index, asks_about_account);
        self.sets.held.set(index, matches!(step.phase, Phase::Held { .. }));
        self.sets.interrupted.set(index, matches!(step.phase, Phase::Interrupted { .. }));
        self.sets.held_back.set(index, step.held_back().is_some());
        self.sets.failed.set(index, failed);
        self.sets.asked.set(index, !step.questions.is_empty());
        if self.sets.asks_about_run[index] && !asks_about_run {
            self.alike.clear();
        }
        self.sets.asks_about_run.set(index, asks_about_run);
        if done != self.sets.done[index] {
            self.sets.done.set(index, done);
            self.tell_dependants(index, done);
        }
        let graph = Arc::clone(&self.graph);
        for reader in graph.readers(index) {
            self.count_free_again(reader);
        }
        self.count_free_again(index);
    }

    /// A step, group or loop is done, or no longer.
    fn tell_dependants(&mut self, node: usize, done: bool) {
        let graph = Arc::clone(&self.graph);
        for dependant in graph.dependants(node) {
            let group = match graph.kind(dependant) {
                NodeKind::Step => {
                    self.count_free_again(dependant);
                    continue;
                }
                // It is over when more than its steps is done.
                NodeKind::Loop(_) => continue,
                NodeKind::Group(group) => group,
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
    pub(crate) fn has_needs_met(&self, index: usize) -> bool {
        self.graph.needs(index).rev().all(|need| match self.graph.kind(need) {
            NodeKind::Step => self.sets.done[need],
            NodeKind::Group(group) => self.open[group] == 0,
            NodeKind::Loop(at) => self.loops[at].is_over(),
        }) && self.graph.needed_outputs(index).all(|(step, name)| self.gives(step, name))
    }

    fn count_free_again(&mut self, index: usize) {
        let free = self.has_needs_met(index) && {
            let (plan, step) = (&self.graph.plan().steps[index], &self.steps[index]);
            // Whether there is an entry is the same wherever the work was done; which one is not.
            let entry = entry_of(&self.ref_at(index), (plan, step), self.ground(WorkIs::Here));
            !matches!(step.phase, Phase::Held { .. }) && entry.is_ok()
        };
        self.sets.free.set(index, free);
    }

    /// What the next attempt at a step would find, its work being there.
    pub(crate) fn ground(&self, work: WorkIs) -> Ground {
        Ground { work, enough: self.terms.threshold.unwrap_or(CONTINUE_PERCENT_MIN) }
    }

    /// For looking ahead: without the questions that the log does not have yet.
    pub(crate) fn forget_asked_since(&mut self, step: &StepRef, position: Position) {
        let Some(index) = self.index_of(step) else { return };
        let state = self.steps.make_mut(index);
        state.questions.retain(|question| question.id <= position.into());
        self.count(index);
    }

    /// For looking ahead: the changes a recovery snapshot would find, before there is one.
    pub(crate) fn expect_changes(&mut self, step: &StepRef, changed: Option<u64>) {
        let Some(index) = self.index_of(step) else { return };
        if let Some(changed) = changed {
            self.steps.make_mut(index).changed = changed;
        }
    }

    fn lift(&mut self, confirmed: bool) {
        let run_stop = self.stop.take();
        let sets = &self.sets;
        let mut stopped: Vec<usize> = sets.held.union(&sets.held_back).collect();
        stopped.extend(sets.interrupted.ones().filter(|index| self.steps[*index].is_obstructed()));
        if confirmed {
            stopped.extend((0..self.steps.len()).filter(|index| self.steps[*index].idle() > 0));
        }
        for index in stopped {
            self.steps.make_mut(index).lift(run_stop, confirmed);
            self.count(index);
        }
    }
}

/// How many steps and loops of each group are not done.
fn open(graph: &Graph, is_done: impl Fn(usize) -> bool) -> Vec<u32> {
    let open = |group: usize| graph.needs(group).filter(|node| !is_done(*node)).count();
    graph.groups().map(|group| u32::try_from(open(group)).unwrap_or(u32::MAX)).collect()
}

fn stronger(run: Option<Stop>, own: Option<Stop>) -> Option<Stop> {
    match (run, own) {
        (Some(run), Some(own)) => Some(if run.haste > own.haste { run } else { own }),
        (run, own) => own.or(run),
    }
}
