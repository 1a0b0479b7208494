//! Views: plain data for surfaces, derived from a run and what was seen of the machine. Few statuses
//! are folded; most are told here, and what was seen but not yet recorded is marked so.

use std::collections::BTreeMap;

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::claim::{Asker, believed_until, free_account, free_slots, outside_in_place};
use crate::decided::Lease;
use crate::event::{
    About, Cause, CheckoutChanges, Conversation, Entry, Failure, FoundState, Holder, Interruption,
    Mark, Omission, Priority, Report, Stage, Truth, Waived,
};
use crate::ids::{
    AccountName, AttemptId, Fence, GroupId, Handle, Hash, ItemRef, LockName, Oid, OutputName,
    QuestionId, RunId, StepRef, SubstepId,
};
use crate::observed::{Observed, Sighting};
use crate::output::OutputRef;
use crate::plan::{Need, PlanStep, Work};
use crate::question::{Question, QuestionState};
use crate::recover::{all_buried, worker};
use crate::refusal::Refusal;
use crate::run::{Abandonment, Attempt, Ending, KeptSnapshot, Phase, Published, Run, Step};
use crate::time::{Millis, Moment, timestamp};

pub use loops::{LoopView, PastStepView};

mod loops;

/// A run, for showing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunView {
    pub run: RunId,
    pub handle: Handle,
    pub name: String,
    pub plan: Hash,
    pub plan_path: String,
    #[serde(flatten)]
    pub status: RunStatus,
    /// Whether a worker of it lives on this host: without one nothing is started.
    pub worker: bool,
    #[serde(serialize_with = "rfc3339")]
    pub opened_at: Millis,
    /// When something was last recorded.
    #[serde(serialize_with = "rfc3339")]
    pub changed_at: Millis,
    /// When something was last recorded, or written by what is at work.
    #[serde(serialize_with = "rfc3339")]
    pub active_at: Millis,
    pub base: Oid,
    pub branch: String,
    /// Where what it has landed was brought to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged: Option<MergedView>,
    pub inputs: BTreeMap<String, String>,
    pub completed: usize,
    /// Left out: neither completed nor waited for.
    pub skipped: usize,
    pub total: usize,
    pub groups: Vec<GroupView>,
    pub steps: Vec<StepView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loops: Vec<LoopView>,
    /// What somebody changed in the plan's file since piton last read or wrote it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed_by_hand: Vec<HandChange>,
}

/// A step that the plan's file says something else about than piton left there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HandChange {
    #[serde(serialize_with = "shown")]
    pub step: StepRef,
    /// How far the file says that it is.
    #[serde(serialize_with = "as_word")]
    pub says: FoundState,
}

/// A merge, for showing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MergedView {
    pub into: String,
    pub commit: Oid,
    #[serde(serialize_with = "rfc3339")]
    pub at: Millis,
}

/// A run's status, with its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum RunStatus {
    /// Nothing is held, and something can be started.
    Open,
    Running,
    /// Every claim that is held has outlived its lease: nobody is known to be at work.
    Lapsed {
        #[serde(serialize_with = "shown")]
        step: StepRef,
        #[serde(serialize_with = "rfc3339")]
        since: Millis,
    },
    /// Everything that could be started waits until the limit of an account is over.
    Parked {
        account: AccountName,
        #[serde(serialize_with = "rfc3339")]
        until: Millis,
    },
    /// Only a person can say how it goes on.
    Waiting {
        #[serde(serialize_with = "shown")]
        step: StepRef,
        question: String,
        /// What was asked by an attempt is answered by this name.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<QuestionId>,
    },
    Interrupted {
        #[serde(serialize_with = "shown")]
        step: StepRef,
        cause: Cause,
        #[serde(serialize_with = "rfc3339")]
        at: Millis,
    },
    Failed {
        #[serde(serialize_with = "shown")]
        step: StepRef,
        why: Failure,
    },
    Completed,
    /// Somebody gave it up.
    Abandoned {
        #[serde(serialize_with = "rfc3339")]
        at: Millis,
        /// In the attic until then.
        #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
        keep_until: Option<Millis>,
    },
    Stopped {
        cause: Cause,
        #[serde(serialize_with = "rfc3339")]
        at: Millis,
    },
}

/// Progress of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupView {
    pub group: GroupId,
    pub title: String,
    pub completed: usize,
    pub running: usize,
    /// Neither done nor running.
    pub waiting: usize,
    pub skipped: usize,
    pub total: usize,
}

/// A step, for showing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepView {
    /// Its id and its iteration.
    #[serde(flatten)]
    pub step: StepRef,
    pub index: usize,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    pub kind: StepKind,
    #[serde(flatten)]
    pub status: StepStatus,
    /// Since when it has this status.
    #[serde(serialize_with = "rfc3339")]
    pub since: Millis,
    pub truth: Truth,
    /// Whoever has it was asked to stop.
    pub stop_requested: bool,
    /// It was stopped on request, and nobody has it: it goes on when somebody resumes.
    pub held_back: bool,
    #[serde(serialize_with = "all_shown")]
    pub needs: Vec<Need>,
    /// Whose holder outside works in the worktree that this step would be attempted in.
    #[serde(serialize_with = "shown_option", skip_serializing_if = "Option::is_none")]
    pub awaits_tree: Option<StepRef>,
    /// Of a step that nothing else keeps from being attempted: a lock without a free slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaits_lock: Option<AwaitedLock>,
    pub failures: u32,
    pub retries: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotView>,
    /// Of a step that runs or was found dead: what no snapshot has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_risk: Option<WorkAtRisk>,
    /// What holders reported last: nobody has checked it.
    #[serde(serialize_with = "as_reported", skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// What the plan's file knew of earlier work on it: nobody has checked it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub substeps: Vec<SubstepView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<ItemView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputView>,
    /// Outputs that the plan declares and that were not published.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unpublished: Vec<OutputName>,
    /// What whoever is at it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaits_output: Option<AwaitedOutputView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<QuestionView>,
    pub attempts: Vec<AttemptView>,
    pub last_good_commit: GoodCommit,
}

/// An output, for showing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutputView {
    pub output: OutputName,
    /// Of a long one only the size is told here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    pub bytes: u64,
    #[serde(serialize_with = "rfc3339")]
    pub at: Millis,
    /// The claim that it was set under.
    pub fence: Fence,
}

/// A wait for an output, for showing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AwaitedOutputView {
    pub output: OutputRef,
    #[serde(serialize_with = "rfc3339")]
    pub since: Millis,
}

/// A lock whose slots are all taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AwaitedLock {
    pub lock: LockName,
    /// The steps whose claims have them.
    #[serde(serialize_with = "all_shown")]
    pub by: Vec<StepRef>,
}

/// A commit that the work on a step can be held against, and how much that says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GoodCommit {
    pub commit: Oid,
    pub known_as: KnownAs,
}

/// Why a commit is the last good one, from what says most to what says least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownAs {
    /// The step was completed with it.
    Completed,
    /// piton saw it pass.
    Verified,
    /// It was checked out when the last snapshot was taken; nobody has checked it.
    Snapshot,
    /// Nothing was added to it.
    Base,
}

/// A substep, for showing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubstepView {
    pub substep: SubstepId,
    pub title: String,
    pub completed: bool,
}

/// A checklist line, for showing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ItemView {
    pub item: ItemRef,
    pub text: String,
    /// Of an item that was added at run time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    #[serde(flatten)]
    pub state: ItemState,
}

/// What became of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ItemState {
    Open,
    Done,
    Deferred { reason: String },
}

/// A question, for showing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QuestionView {
    pub question: QuestionId,
    pub text: String,
    pub choices: Vec<String>,
    /// What piton itself asks about; without it an attempt has asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<Box<About>>,
    #[serde(serialize_with = "rfc3339")]
    pub asked_at: Millis,
    /// `open`, `answered`, `applied` (an attempt was told) or `void`.
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

impl QuestionView {
    pub fn is_open(&self) -> bool {
        self.answer.is_none() && self.state == "open"
    }
}

/// What a step runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    Command,
    /// Claimed by agents and people themselves.
    ByHand,
    Agent(crate::ids::AgentName),
}

/// A step's status, with its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum StepStatus {
    Pending,
    Blocked {
        #[serde(serialize_with = "all_shown")]
        waits_for: Vec<Need>,
    },
    /// Claimed; its agent has not been started.
    Claimed {
        fence: Fence,
    },
    /// Its agent, or its verify command, runs.
    Running {
        fence: Fence,
    },
    /// Its commit passed; landing comes next.
    Verified {
        fence: Fence,
    },
    Landing {
        fence: Fence,
    },
    Interrupted {
        cause: Cause,
        #[serde(serialize_with = "rfc3339")]
        at: Millis,
        left_at: Stage,
        evidence: String,
        /// Whether the log says so already; a looking verb shows what it saw and records nothing.
        recorded: bool,
    },
    /// Its agent's account has met a limit: it is tried again from then on.
    Parked {
        account: AccountName,
        #[serde(serialize_with = "rfc3339")]
        until: Millis,
        /// The step that is tried first: it shows whether the limit is over.
        #[serde(serialize_with = "shown_option", skip_serializing_if = "Option::is_none")]
        probe: Option<StepRef>,
    },
    /// Its attempt asked and ended; it goes on when somebody has answered.
    Waiting {
        question: QuestionId,
        text: String,
    },
    Failed {
        why: Failure,
        retries_left: u32,
    },
    Completed {
        #[serde(skip_serializing_if = "Option::is_none")]
        commit: Option<Oid>,
        #[serde(serialize_with = "rfc3339")]
        at: Millis,
        /// What it was completed in spite of, and why.
        #[serde(skip_serializing_if = "Option::is_none")]
        waived: Option<Waived>,
    },
    /// Left out: needs on it are met, and nothing of it lands.
    Skipped {
        reason: String,
        #[serde(serialize_with = "rfc3339")]
        at: Millis,
    },
}

/// Work that no snapshot has: since when, and which snapshot has the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum WorkAtRisk {
    Known(AtRisk),
    Unknown(UnknownRisk),
}

/// Spelled `"unknown"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownRisk {
    Unknown,
}

/// As the keeper says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AtRisk {
    /// When everything was last known to be kept, and how long ago that is.
    #[serde(serialize_with = "rfc3339")]
    pub saved_at: Millis,
    pub seconds: u64,
    /// The snapshot that has what there was then.
    pub snapshot: Option<String>,
    /// How long until the next one; longer than asked for where the tree takes long to look at.
    pub interval_ms: Option<u64>,
    pub stretched: bool,
    /// Why the last one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

/// What is kept of a step's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotView {
    pub commit: Oid,
    pub refname: String,
    #[serde(serialize_with = "rfc3339")]
    pub at: Millis,
    pub changed: u64,
    pub omitted: Vec<Omission>,
}

/// One attempt in a step's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttemptView {
    pub attempt: AttemptId,
    pub fence: Fence,
    pub host: String,
    /// Where a claim from outside was made; a keeper's has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worktree: Option<String>,
    /// The keeper, or the process that asked from outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub entry: Entry,
    #[serde(serialize_with = "rfc3339")]
    pub from: Millis,
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub to: Option<Millis>,
    /// How many commits it had added when it was last looked at, and the newest of them.
    pub commits: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Oid>,
    /// What was in its worktree and did not land, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_landed: Vec<Omission>,
    /// What no snapshot can hold of its work, and was moved out of the worktree for others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moved_out: Vec<MovedOutView>,
    /// Files of the user's checkout that changed meanwhile; by whom is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkout_changed: Option<Box<CheckoutChanges>>,
    /// Why its last work is in no snapshot; it is in the worktree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unkept: Option<String>,
    /// Its agent's conversation, and whether it was begun, continued or copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Conversation>,
    /// `running`, `dead`, `elsewhere`, `held` (by somebody outside), or how it ended.
    pub state: String,
    /// When its claim was made, or last renewed.
    #[serde(serialize_with = "rfc3339")]
    pub heartbeat_at: Millis,
    #[serde(serialize_with = "rfc3339")]
    pub lease_expires: Millis,
    /// It is held, and nobody is known to be behind it any more: others can claim the step.
    pub lease_lapsed: bool,
}

/// A path that was moved out of a worktree, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MovedOutView {
    pub path: String,
    pub place: String,
}

/// What was seen of the machine, and when.
#[derive(Clone, Copy)]
struct Seen<'a> {
    observed: &'a Observed,
    leases: &'a [Lease],
    now: &'a Moment,
}

impl Seen<'_> {
    /// A held lock outranks the lease, and the dead are told as such.
    fn has_lapsed(&self, step: &StepRef, attempt: &Attempt) -> bool {
        *self.observed.of(attempt.id) == Sighting::Elsewhere
            && believed_until(step, attempt, self.leases).is_over(self.now)
    }
}

/// The view of a run, given what was seen of the machine.
pub fn view(run: &Run, observed: &Observed, leases: &[Lease], now: &Moment) -> RunView {
    let seen = as_seen(run, observed, now);
    let by = Seen { observed, leases, now };
    let steps: Vec<StepView> = seen
        .steps()
        .enumerate()
        .map(|(index, (step, plan, state))| {
            step_view(&seen, run, (index, step), (plan, state), &by)
        })
        .collect();
    RunView {
        worker: observed.worker,
        run: run.opened.run,
        handle: run.opened.handle.clone(),
        name: run.plan().name.clone(),
        plan: run.graph().hash(),
        plan_path: run.opened.plan_path.clone(),
        status: run_status(&seen, &by),
        opened_at: run.opened_at,
        changed_at: run.changed_at,
        active_at: run.changed_at,
        base: run.opened.base.clone(),
        branch: run_branch(&run.opened.handle),
        merged: run.merged.as_ref().map(|merged| MergedView {
            into: merged.into.clone(),
            commit: merged.commit.clone(),
            at: merged.at,
        }),
        inputs: run.opened.inputs.clone(),
        completed: steps.iter().filter(|step| step.is_completed()).count(),
        skipped: steps.iter().filter(|step| step.is_skipped()).count(),
        total: steps.len(),
        groups: groups(run, &steps),
        steps,
        loops: loops::loops(&seen),
        changed_by_hand: Vec::new(),
    }
}

/// The branch that a run's steps land on.
pub fn run_branch(handle: &Handle) -> String {
    format!("piton/{handle}/run")
}

/// The branch that a step works on.
pub fn step_branch(handle: &Handle, step: &StepRef) -> String {
    match step.iteration {
        1 => format!("piton/{handle}/step/{}", step.step),
        n => format!("piton/{handle}/step/{}-{n}", step.step),
    }
}

/// The run as it will be once every death that was seen is recorded; what will be asked about one can be
/// answered only then.
fn as_seen(run: &Run, observed: &Observed, now: &Moment) -> Run {
    let mut seen = all_buried(run, observed, now);
    for (step, _) in run.held() {
        seen.forget_asked_since(&step, run.cursor.position);
    }
    seen
}

fn run_status(run: &Run, by: &Seen<'_>) -> RunStatus {
    if run.is_completed() {
        return RunStatus::Completed;
    }
    if let Some(Abandonment { at, keep_until }) = run.abandoned {
        return RunStatus::Abandoned { at, keep_until };
    }
    if run.held().any(|(step, attempt)| !by.has_lapsed(&step, attempt)) {
        return RunStatus::Running;
    }
    if let Some((step, why)) = run.failed() {
        return RunStatus::Failed { step, why: why.clone() };
    }
    if let Some(stop) = run.stop {
        return RunStatus::Stopped { cause: stop.cause, at: stop.at };
    }
    let until = |(step, attempt): (StepRef, &Attempt)| {
        (believed_until(&step, attempt, by.leases).wall, step)
    };
    if let Some((since, step)) = run.held().map(until).max() {
        return RunStatus::Lapsed { step, since };
    }
    if let Some(parked) = parked(run, by) {
        return parked;
    }
    let interrupted = run.interrupted().find_map(|(step, _, state)| match &state.phase {
        Phase::Interrupted { last, .. } if state.open_question().is_none() => {
            Some((step, state, last))
        }
        _ => None,
    });
    match interrupted {
        Some((step, state, last)) if state.is_obstructed() && state.held_back().is_none() => {
            let question = last.evidence.clone();
            RunStatus::Waiting { step, question, id: None }
        }
        Some((step, _, Interruption { cause, at, .. })) => {
            RunStatus::Interrupted { step, cause: *cause, at: *at }
        }
        None => waiting(run).or_else(|| stopped(run)).unwrap_or(RunStatus::Open),
    }
}

/// A limit is in the way of everything that could be started: it goes on at the first instant.
fn parked(run: &Run, by: &Seen<'_>) -> Option<RunStatus> {
    let (mut first, free) = (None, run.has_limits().then(|| run.free(|_| false).all())?);
    for index in free {
        let step = (&run.ref_at(index), &run.plan().steps[index]);
        let (account, until, _) = awaits_limit(run, step, by)?;
        if first.as_ref().is_none_or(|(_, earlier)| until < *earlier) {
            first = Some((account, until));
        }
    }
    first.map(|(account, until)| RunStatus::Parked { account, until })
}

/// The limit that a step waits for, and the step that shows whether it is over.
fn awaits_limit(
    run: &Run,
    (step, plan): (&StepRef, &PlanStep),
    by: &Seen<'_>,
) -> Option<(AccountName, Millis, Option<StepRef>)> {
    let (worker, Seen { observed, leases, now }) = (worker(by.observed), *by);
    let asker = Asker { holder: &worker, observed, leases, now };
    match free_account(run, (step, plan), &asker) {
        Err(Refusal::Limited { account, until, probe, .. }) => Some((account, until, probe)),
        _ => None,
    }
}

/// A question is open, and without its answer nothing can be started.
fn waiting(run: &Run) -> Option<RunStatus> {
    if let Some((step, asked)) = run.question_about_run() {
        return Some(RunStatus::Waiting { step, question: asked.text.clone(), id: Some(asked.id) });
    }
    let (step, asked) = run.questions().find(|(_, question)| question.is_open())?;
    if run.has_free() {
        return None;
    }
    Some(RunStatus::Waiting { step, question: asked.text.clone(), id: Some(asked.id) })
}

/// A step was stopped, and nothing else can be started.
fn stopped(run: &Run) -> Option<RunStatus> {
    let (_, stop) = run.held_back().filter(|_| !run.has_free())?;
    Some(RunStatus::Stopped { cause: stop.cause, at: stop.at })
}

fn step_view(
    seen: &Run,
    recorded: &Run,
    (index, step): (usize, StepRef),
    (plan, state): (&PlanStep, &Step),
    by: &Seen<'_>,
) -> StepView {
    let was_held = matches!(recorded.step_at(index).phase, Phase::Held { .. });
    let status = match step_status(seen, index, (plan, state), was_held) {
        StepStatus::Pending if seen.has_limits() => match awaits_limit(seen, (&step, plan), by) {
            Some((account, until, probe)) => StepStatus::Parked { account, until, probe },
            None => StepStatus::Pending,
        },
        status => status,
    };
    StepView {
        step: step.clone(),
        index,
        title: plan.title.clone(),
        group: plan.group.clone(),
        kind: match &plan.work {
            Work::Run(_) => StepKind::Command,
            Work::ByHand | Work::Told(_) => StepKind::ByHand,
            Work::Agent { agent, .. } => StepKind::Agent(agent.clone()),
        },
        since: since(seen, index, (&status, state)),
        status,
        truth: match &state.phase {
            Phase::Completed { truth, .. } => *truth,
            _ => state.verified().map_or(Truth::Unknown, |verified| verified.truth),
        },
        stop_requested: state.attempt().is_some_and(|held| seen.stop_for(held).is_some()),
        held_back: state.held_back().is_some(),
        needs: recorded.needs_of(index),
        awaits_tree: awaits_tree(seen, &step, (plan, state), by),
        awaits_lock: awaits_lock(seen, (index, &step), (plan, state), by),
        failures: state.failures,
        retries: plan.retries,
        snapshot: state.snapshot.as_ref().map(snapshot_view),
        at_risk: None,
        report: (state.report != Report::default()).then(|| state.report.clone()),
        notes: state.notes.clone(),
        substeps: substeps(plan, state),
        items: items(plan, state),
        outputs: outputs(state),
        unpublished: state.unpublished(plan),
        awaits_output: awaits_output(seen, state, by.now),
        questions: state.questions.iter().map(question_view).collect(),
        attempts: attempts(&step, recorded.step_at(index), by),
        last_good_commit: last_good(seen, state),
    }
}

fn outputs(state: &Step) -> Vec<OutputView> {
    let row = |(name, published): (&OutputName, &Published)| OutputView {
        output: name.clone(),
        value: published.value.as_json().and_then(|json| serde_json::from_str(json).ok()),
        bytes: published.value.bytes(),
        at: published.at,
        fence: published.fence,
    };
    state.outputs.iter().map(row).collect()
}

/// What a step that is at work waits for, as far as it is not there.
fn awaits_output(run: &Run, state: &Step, now: &Moment) -> Option<AwaitedOutputView> {
    let awaited = state.awaited.as_ref().filter(|_| state.attempt().is_some())?;
    let over = awaited.until.is_some_and(|until| until <= now.wall);
    let waits = !over && run.output(&awaited.output).is_none();
    waits.then(|| AwaitedOutputView { output: awaited.output.clone(), since: awaited.since })
}

/// Since when a step has its status: what is ready since the last of its needs was met.
fn since(run: &Run, index: usize, (status, state): (&StepStatus, &Step)) -> Millis {
    let ended = state.history.last().map(|past| past.ended_at);
    let before = ended.unwrap_or(run.opened_at);
    match (status, &state.phase) {
        (StepStatus::Waiting { question, .. }, _) => {
            let asked = state.questions.iter().find(|asked| asked.id == *question);
            asked.map_or(before, |asked| asked.asked_at)
        }
        (_, Phase::Held { attempt, .. }) => attempt.claimed_at,
        (_, Phase::Interrupted { last, .. }) => last.at,
        (_, Phase::Completed { at, .. } | Phase::Skipped { at, .. }) => *at,
        (StepStatus::Pending, _) => {
            let done = run.needed_by(index).map(|need| match &need.phase {
                Phase::Completed { at, .. } | Phase::Skipped { at, .. } => *at,
                _ => before,
            });
            let set = run.outputs_needed_by(index).map(|published| published.at);
            done.chain(set).fold(before, Millis::max)
        }
        _ => before,
    }
}

/// Nothing is attempted in a worktree that somebody outside has.
fn awaits_tree(
    run: &Run,
    step: &StepRef,
    (plan, state): (&PlanStep, &Step),
    by: &Seen<'_>,
) -> Option<StepRef> {
    let attempted = !state.is_done() && state.attempt().is_none();
    if by.observed.outside.is_empty() || plan.work.is_by_hand() || !attempted {
        return None;
    }
    let (worker, Seen { observed, leases, now }) = (worker(by.observed), *by);
    outside_in_place(run, step, &Asker { holder: &worker, observed, leases, now })
}

/// Nothing is attempted without a slot of each of its locks.
fn awaits_lock(
    run: &Run,
    (index, step): (usize, &StepRef),
    (plan, state): (&PlanStep, &Step),
    by: &Seen<'_>,
) -> Option<AwaitedLock> {
    let over = matches!(state.phase, Phase::Held { .. } | Phase::Completed { .. });
    if plan.locks.is_empty() || over || !run.has_needs_met(index) {
        return None;
    }
    let (worker, Seen { observed, leases, now }) = (worker(by.observed), *by);
    let asker = Asker { holder: &worker, observed, leases, now };
    match free_slots(run, step, plan, &asker) {
        Err(Refusal::LockBusy { lock, by }) => Some(AwaitedLock { lock, by }),
        _ => None,
    }
}

fn step_status(
    run: &Run,
    index: usize,
    (plan, state): (&PlanStep, &Step),
    was_held: bool,
) -> StepStatus {
    // One that failed for good would not go on with the answer.
    let goes_on = match state.phase {
        Phase::Failed { .. } => state.tries_left(plan) > 0,
        _ => true,
    };
    let open = state.open_question().filter(|_| goes_on);
    if let (None, Some(Question { id: question, text, .. })) = (state.attempt(), open) {
        return StepStatus::Waiting { question: *question, text: text.clone() };
    }
    match &state.phase {
        Phase::Pending { .. } | Phase::Suspended { .. } | Phase::Parked { .. } => {
            match run.unmet(index) {
                needs if needs.is_empty() => StepStatus::Pending,
                waits_for => StepStatus::Blocked { waits_for },
            }
        }
        Phase::Held { attempt, .. } => {
            let fence = attempt.fence;
            match state.stage(attempt) {
                Stage::Unstarted => StepStatus::Claimed { fence },
                Stage::Agent | Stage::Verify => StepStatus::Running { fence },
                Stage::Land if state.verified().is_some_and(|at| at.landing.is_some()) => {
                    StepStatus::Landing { fence }
                }
                Stage::Land => StepStatus::Verified { fence },
            }
        }
        Phase::Failed { why, .. } => {
            StepStatus::Failed { why: why.clone(), retries_left: state.tries_left(plan) }
        }
        Phase::Interrupted { last, .. } => StepStatus::Interrupted {
            cause: last.cause,
            at: last.at,
            left_at: last.left_at,
            evidence: last.evidence.clone(),
            recorded: !was_held,
        },
        Phase::Completed { commit, at, waived, .. } => {
            StepStatus::Completed { commit: commit.clone(), at: *at, waived: waived.clone() }
        }
        Phase::Skipped { reason, at } => StepStatus::Skipped { reason: reason.clone(), at: *at },
    }
}

fn substeps(plan: &PlanStep, state: &Step) -> Vec<SubstepView> {
    let row = |substep: &crate::plan::PlanSubstep| SubstepView {
        substep: substep.id.clone(),
        title: substep.title.clone(),
        completed: state.checklist.completed.contains(&substep.id),
    };
    plan.substeps.iter().map(row).collect()
}

fn items(plan: &PlanStep, state: &Step) -> Vec<ItemView> {
    let row = |item: crate::checklist::Item<'_>| ItemView {
        item: item.item,
        text: item.text.to_owned(),
        priority: item.priority,
        state: match item.mark {
            None => ItemState::Open,
            Some(Mark::Done) => ItemState::Done,
            Some(Mark::Deferred { reason }) => ItemState::Deferred { reason: reason.clone() },
        },
    };
    state.checklist.items(plan).map(row).collect()
}

/// A question as it is shown.
pub fn question_view(question: &Question) -> QuestionView {
    QuestionView {
        question: question.id,
        text: question.text.clone(),
        choices: question.choices.clone(),
        about: question.about.clone(),
        asked_at: question.asked_at,
        state: match question.state {
            QuestionState::Open => "open",
            QuestionState::Answered { .. } => "answered",
            QuestionState::Applied { .. } => "applied",
            QuestionState::Void => "void",
        },
        answer: question.answer().map(str::to_owned),
    }
}

fn snapshot_view(kept: &KeptSnapshot) -> SnapshotView {
    SnapshotView {
        commit: kept.snapshot.commit.clone(),
        refname: kept.snapshot.refname.clone(),
        at: kept.at,
        changed: kept.snapshot.changed,
        omitted: kept.snapshot.omitted.clone(),
    }
}

fn attempts(step: &StepRef, state: &Step, by: &Seen<'_>) -> Vec<AttemptView> {
    let length = |attempt: &Attempt| attempt.until.wall.since(attempt.claimed_at);
    let row = |attempt: &Attempt, to: Option<Millis>, state: String| AttemptView {
        attempt: attempt.id,
        fence: attempt.fence,
        host: attempt.holder.host().to_string(),
        worktree: match &attempt.holder {
            Holder::External { worktree, .. } => Some(worktree.clone()),
            Holder::Keeper { .. } => None,
        },
        pid: attempt.trace.pid,
        entry: attempt.entry,
        from: attempt.claimed_at,
        to,
        commits: attempt.trace.commits,
        head: attempt.trace.head.clone(),
        not_landed: attempt.trace.omitted.clone(),
        moved_out: Vec::new(),
        checkout_changed: attempt.trace.checkout.clone(),
        unkept: attempt.trace.unkept.clone(),
        conversation: attempt.conversation.clone(),
        state,
        heartbeat_at: believed_until(step, attempt, by.leases).wall.before(length(attempt)),
        lease_expires: believed_until(step, attempt, by.leases).wall,
        lease_lapsed: to.is_none() && by.has_lapsed(step, attempt),
    };
    let past = state.history.iter().map(|past| {
        let how = match &past.ending {
            Ending::Completed => "completed".to_owned(),
            Ending::Found => "found".to_owned(),
            Ending::Failed(why) => format!("failed: {why}"),
            Ending::Interrupted { cause, .. } => format!("interrupted: {cause}"),
            Ending::Displaced => "displaced".to_owned(),
            Ending::Released => "released".to_owned(),
            Ending::Suspended => "waiting".to_owned(),
            Ending::Limited { .. } => "limited".to_owned(),
        };
        row(&past.attempt, Some(past.ended_at), how)
    });
    let open = state.attempt().map(|attempt| {
        let (how, to) = match by.observed.of(attempt.id) {
            // Only its lease speaks about its life.
            _ if matches!(attempt.holder, Holder::External { .. }) => ("held", None),
            Sighting::Alive => ("running", None),
            Sighting::Dead(corpse) => ("dead", Some(corpse.at)),
            Sighting::Unknown(_) => ("unknown", None),
            Sighting::Elsewhere => ("elsewhere", None),
        };
        row(attempt, to, how.to_owned())
    });
    past.chain(open).collect()
}

/// The step's completed commit, else the last that piton saw pass, else what was checked out at the last
/// snapshot unless verify failed in that tree, else where the step or the run began.
fn last_good(run: &Run, state: &Step) -> GoodCommit {
    let attempts = || {
        let past = state.history.iter().map(|past| &past.attempt);
        past.chain(state.attempt()).collect::<Vec<_>>().into_iter().rev()
    };
    let completed = match &state.phase {
        Phase::Completed { commit, .. } => commit.clone(),
        _ => None,
    };
    let verified = || attempts().find_map(|attempt| attempt.trace.verified.clone());
    let head = || state.snapshot.as_ref().and_then(|kept| kept.snapshot.head.clone());
    let head = || head().filter(|_| !state.has_failed_verify());
    let base = || state.base.clone().unwrap_or_else(|| run.opened.base.clone());
    let known = |known_as: KnownAs| move |commit: Oid| GoodCommit { commit, known_as };
    completed
        .map(known(KnownAs::Completed))
        .or_else(|| verified().map(known(KnownAs::Verified)))
        .or_else(|| head().map(known(KnownAs::Snapshot)))
        .unwrap_or_else(|| known(KnownAs::Base)(base()))
}

fn groups(run: &Run, steps: &[StepView]) -> Vec<GroupView> {
    let row = |(id, group): (&GroupId, &crate::plan::Group)| {
        let members: Vec<_> = steps.iter().filter(|step| step.group.as_ref() == Some(id)).collect();
        let count = |is: fn(&StepView) -> bool| members.iter().filter(|step| is(step)).count();
        let (completed, skipped) = (count(StepView::is_completed), count(StepView::is_skipped));
        let running = count(StepView::is_at_work);
        let waiting = members.len() - completed - skipped - running;
        let (group, title) = (id.clone(), group.title.clone());
        GroupView { group, title, completed, running, waiting, skipped, total: members.len() }
    };
    let mut rows: Vec<GroupView> = run.plan().groups.iter().map(row).collect();
    // As their first steps are in the plan.
    rows.sort_by_key(|row| steps.iter().position(|step| step.group.as_ref() == Some(&row.group)));
    rows
}

impl RunStatus {
    /// The status's JSON spelling.
    pub fn word(&self) -> &'static str {
        match self {
            RunStatus::Open => "open",
            RunStatus::Running => "running",
            RunStatus::Lapsed { .. } => "lapsed",
            RunStatus::Parked { .. } => "parked",
            RunStatus::Waiting { .. } => "waiting",
            RunStatus::Interrupted { .. } => "interrupted",
            RunStatus::Failed { .. } => "failed",
            RunStatus::Completed => "completed",
            RunStatus::Abandoned { .. } => "abandoned",
            RunStatus::Stopped { .. } => "stopped",
        }
    }
}

impl StepView {
    pub fn is_completed(&self) -> bool {
        matches!(self.status, StepStatus::Completed { .. })
    }

    pub fn is_skipped(&self) -> bool {
        matches!(self.status, StepStatus::Skipped { .. })
    }

    /// An attempt has it: from its claim until it has landed.
    pub fn is_at_work(&self) -> bool {
        matches!(
            self.status,
            StepStatus::Claimed { .. }
                | StepStatus::Running { .. }
                | StepStatus::Verified { .. }
                | StepStatus::Landing { .. }
        )
    }

    /// Nothing more is done about it.
    pub fn is_done(&self) -> bool {
        self.is_completed() || self.is_skipped()
    }
}

impl StepStatus {
    /// The status's JSON spelling.
    pub fn word(&self) -> &'static str {
        match self {
            StepStatus::Pending => "pending",
            StepStatus::Blocked { .. } => "blocked",
            StepStatus::Claimed { .. } => "claimed",
            StepStatus::Running { .. } => "running",
            StepStatus::Verified { .. } => "verified",
            StepStatus::Landing { .. } => "landing",
            StepStatus::Interrupted { .. } => "interrupted",
            StepStatus::Parked { .. } => "parked",
            StepStatus::Waiting { .. } => "waiting",
            StepStatus::Failed { .. } => "failed",
            StepStatus::Completed { .. } => "completed",
            StepStatus::Skipped { .. } => "skipped",
        }
    }
}

fn as_word<S: Serializer>(state: &FoundState, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.word())
}

fn rfc3339<S: Serializer>(at: &Millis, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&timestamp(*at))
}

fn rfc3339_option<S: Serializer>(at: &Option<Millis>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => rfc3339(at, to),
        None => to.serialize_none(),
    }
}

/// What was reported, with its numbers as numbers and its data as JSON.
fn as_reported<S: Serializer>(report: &Option<Report>, to: S) -> Result<S::Ok, S::Error> {
    let mut json = serde_json::to_value(report).map_err(S::Error::custom)?;
    let files = json.get_mut("files").and_then(Value::as_array_mut).map(std::mem::take);
    let mut files = files.unwrap_or_default();
    let texts = files.iter_mut().filter_map(|file| file.get_mut("confidence"));
    texts.for_each(read_back);
    for name in ["confidence", "data"] {
        json.get_mut(name).into_iter().for_each(read_back);
    }
    if !files.is_empty() {
        json["files"] = files.into();
    }
    json.serialize(to)
}

/// A text that holds JSON, as that.
fn read_back(text: &mut Value) {
    if let Some(read) = text.as_str().and_then(|text| serde_json::from_str(text).ok()) {
        *text = read;
    }
}

/// A step by its name, as people read it: `review#3`, and plain `review` outside loops.
pub fn shown<S: Serializer>(step: &StepRef, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(step)
}

/// The same of several.
pub fn all_shown<T: ToString, S: Serializer>(steps: &[T], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(steps.iter().map(ToString::to_string))
}

fn shown_option<S: Serializer>(step: &Option<StepRef>, to: S) -> Result<S::Ok, S::Error> {
    match step {
        Some(step) => shown(step, to),
        None => to.serialize_none(),
    }
}
