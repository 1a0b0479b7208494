//! Events: past-tense facts, the only truth about a run. Their JSON bodies are a public, versioned
//! format (docs/events.md). Nothing here decides; `decide` is their only author.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::agent::Rung;
use crate::dialect::Trouble;
use crate::ids::{
    AccountName, AgentName, AttemptId, BootId, Fence, Handle, Hash, HostId, ItemRef, LoopId, Oid,
    OutputName, QuestionId, RunId, StepRef, SubstepId, TreeNo,
};
use crate::output::{Bound, OutputRef, OutputValue};
use crate::time::{Millis, Moment};

mod body;

/// The version written into every body. A reader refuses a newer one by name.
pub const EVENT_VERSION: u32 = 1;

/// A fact in a run's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    RunOpened(RunOpened),
    /// The plan's file said this of a step before anything of the run had happened.
    Found(Found),
    Claimed(Claimed),
    /// What happened under a claim. Its body is as flat as the others: the fact's name is the event's.
    #[serde(skip)]
    Under(Under, Fact),
    Answered {
        step: StepRef,
        question: QuestionId,
        answer: String,
        host: HostId,
    },
    /// A step that had ended is pending again, with its retries unspent.
    Reset {
        step: StepRef,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Somebody takes a step up again that had failed, was interrupted or was stopped: in its tree, with what
    /// they changed there, and with its retries unspent.
    Retried {
        step: StepRef,
        host: HostId,
    },
    /// The step is left out: it meets needs like a completed one, and nothing of it lands.
    Skipped {
        step: StepRef,
        reason: String,
        host: HostId,
    },
    StopRequested {
        scope: Scope,
        cause: Cause,
        haste: Haste,
    },
    /// Somebody asked for the run to go on: it lifts what `StopRequested` held back. `confirmed` also
    /// answers yes where recovery would ask.
    Resumed {
        host: HostId,
        confirmed: bool,
        #[serde(default, skip_serializing_if = "Terms::is_default")]
        terms: Terms,
    },
    /// The branch `into` is about to be moved from `onto` to `to`, with what the run had landed by `tip`.
    MergeIntended(MergeIntent),
    /// What the run had landed by `tip` is in the branch `into`.
    Merged {
        into: String,
        commit: Oid,
        tip: Oid,
    },
    /// The plan was changed under the run, and this is it from here on: as the text that its hash is of.
    PlanAccepted {
        plan: Hash,
        text: String,
    },
    /// Somebody gave the run up: nothing of it is claimed any more, and its plan may have another run.
    Abandoned {
        host: HostId,
        /// Until then no clean-up touches anything of it: it is in the attic.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep_until: Option<Millis>,
    },
    /// A run that was abandoned goes on.
    Reopened {
        host: HostId,
    },
}

/// What was asked for when a run goes on: in force until it is asked for again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// Only these are started; without any, all are.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub steps: BTreeSet<StepRef>,
    /// How many attempts at once, where the plan's own number is not what is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
    /// Interrupted and failed steps were made to begin again from their base: once, with this event.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restart: bool,
    /// The progress in percent, as reported, from which an agent goes on in its tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u8>,
    /// The most iterations of a loop, instead of what the plan says. It stays until another number is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    /// No worker waits until a limit is over.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_wait: bool,
}

impl Terms {
    fn is_default(&self) -> bool {
        *self == Terms::default()
    }

    /// Whether a step is started under them, in whichever iteration.
    pub fn has(&self, step: &StepRef) -> bool {
        self.steps.is_empty() || self.steps.iter().any(|chosen| chosen.step == step.step)
    }
}

/// The claim that something is written under: its step and its fence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Under {
    pub step: StepRef,
    pub fence: Fence,
}

/// What happened under a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The tree is prepared and the agent (or command) is about to be started; or a holder says that
    /// it has begun.
    Started {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<Oid>,
        /// The answers that it was told: they are applied with this.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        answers: Vec<QuestionId>,
        /// The keeper's process: it explains, and proves nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
    /// A fact from which the step can be continued.
    Checkpointed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<Snapshot>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        report: Option<Box<Report>>,
    },
    SubstepCompleted {
        substep: SubstepId,
    },
    /// A gap that was found at work: it follows the items of the plan.
    ItemAdded {
        text: String,
        priority: Priority,
    },
    ItemsMarked {
        items: Vec<ItemRef>,
        mark: Mark,
    },
    CheckoutChanged(CheckoutChanges),
    /// No snapshot could be kept of what is in the tree, and why: what it holds is unknown.
    Unkept {
        why: String,
    },
    /// The agent is in a conversation that a later attempt can go on with.
    Conversed(Conversation),
    /// Data for other steps: needs on it are met.
    OutputSet {
        name: OutputName,
        value: OutputValue,
    },
    /// The holder waits for an output that is not there yet.
    OutputAwaited {
        output: OutputRef,
        /// When it gives up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
    },
    /// The step's commit passed its check, or has none.
    Verified {
        commit: Oid,
        tree: Oid,
        truth: Truth,
        check: Option<Check>,
        /// How many commits the attempt had added by then.
        #[serde(default, skip_serializing_if = "is_zero")]
        commits: u64,
        /// What a person had said about how the step goes on: it is applied with this.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        answers: Vec<QuestionId>,
        /// What was in the worktree and is not in the commit, and why; at most a fixed number is listed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        omitted: Vec<Omission>,
        /// Of the last step of a loop.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        iteration: Option<Box<IterationCheck>>,
    },
    /// The work was there before anything was started: the command that the plan asks passed, or the plan
    /// that the step would produce can be run. The step is done, and nothing of it lands.
    FoundDone {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        check: Option<Check>,
    },
    /// The run's branch is about to be moved.
    LandingIntended(LandingIntent),
    /// The step is done and its commit, if it has one, is on the run's branch: this alone meets needs.
    Completed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        commit: Option<Oid>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waived: Option<Waived>,
    },
    /// A person is asked: the record's position is the question. The step waits.
    Asked {
        text: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        choices: Vec<String>,
        /// What piton itself asks about; holders ask about anything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        about: Option<Box<About>>,
    },
    /// A holder at work was told these answers.
    AnswersApplied {
        questions: Vec<QuestionId>,
    },
    /// The attempt ended because its agent's account has met a limit: neither failed nor done, and no retry is
    /// spent. Every agent of the account waits.
    Limited(Limited),
    /// The agent's model has answered again: the limit of its account is over.
    LimitLifted {
        account: AccountName,
    },
    /// The attempt ended to wait for an answer: neither failed nor done, and no retry is spent.
    Suspended {},
    /// The claim was given back: the step is pending again.
    Released {
        by: ReleasedBy,
    },
    Failed {
        why: Failure,
    },
    Interrupted(Interruption),
}

/// Files of the user's own checkout that changed while an attempt was at work; by whom is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CheckoutChanges {
    pub files: Vec<String>,
    /// How many more, not named.
    #[serde(default)]
    pub more: u64,
}

/// A conversation of an agent, and how the attempt came to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    pub agent: AgentName,
    /// The agent's own handle of it, opaque.
    pub session: String,
    pub rung: Rung,
}

/// A limit that an agent has met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limited {
    pub account: AccountName,
    /// The agents of the plan that work on the account.
    pub agents: BTreeSet<AgentName>,
    pub trouble: Trouble,
    /// From then on it is tried again; absent where only a person can lift it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Millis>,
    /// What the agent said.
    pub text: String,
}

/// The run's branch, about to be moved from `onto` to `to`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandingIntent {
    pub onto: Oid,
    pub to: Oid,
}

/// An attempt that ended without an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interruption {
    pub cause: Cause,
    pub at: Millis,
    pub evidence: String,
    pub left_at: Stage,
}

/// The first event of every log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOpened {
    pub run: RunId,
    pub handle: Handle,
    pub plan: Hash,
    /// Relative to the worktree it is in, with forward slashes.
    pub plan_path: String,
    /// The root of that worktree on the host that opened the run, where it is not the main one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_in: Option<String>,
    pub repository: Repository,
    /// The commit the run starts from.
    pub base: Oid,
    /// The branch that had it: where `merge` brings what was landed. Absent where HEAD was detached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_branch: Option<String>,
    /// Values in force for this run, defaults of the plan included.
    pub inputs: BTreeMap<String, String>,
    /// The effective settings, as a kept text.
    pub settings: Hash,
    pub host: HostId,
}

/// What a plan's file said of a step. Nobody has checked it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub step: StepRef,
    pub state: FoundState,
    /// Items that were done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<ItemRef>,
    /// Substeps that were completed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub substeps: Vec<SubstepId>,
    /// What waits for a person's answer before the step goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// What is known of earlier work on it, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Found {
    /// A step in this state, and nothing else about it.
    pub fn new(step: StepRef, state: FoundState) -> Found {
        Found { step, state, items: vec![], substeps: vec![], question: None, notes: vec![] }
    }
}

/// How far a file said that a step was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundState {
    Pending,
    InProgress,
    Completed {
        /// As the file names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        commit: Option<String>,
    },
    Failed {
        reason: String,
    },
    Skipped {
        reason: String,
    },
}

impl FoundState {
    /// Whether needs on the step are met.
    pub fn is_done(&self) -> bool {
        matches!(self, FoundState::Completed { .. } | FoundState::Skipped { .. })
    }

    /// The status in one word.
    pub fn word(&self) -> &'static str {
        match self {
            FoundState::Pending => "pending",
            FoundState::InProgress => "in_progress",
            FoundState::Completed { .. } => "completed",
            FoundState::Failed { .. } => "failed",
            FoundState::Skipped { .. } => "skipped",
        }
    }
}

/// Which repository a run belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repository {
    /// The root commit of the base.
    pub root: Oid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
}

/// A holder has the step from here on; the record's position is the fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    pub step: StepRef,
    pub attempt: AttemptId,
    pub holder: Holder,
    pub entry: Entry,
    pub grounds: Grounds,
    /// The first expiry of the lease: there is no gap before the first heartbeat.
    pub until: Moment,
    pub plan: Hash,
    /// The tree of the pool that a keeper works in; none for whoever claims from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeNo>,
    /// The claim that this one ends, where it took a held step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub displaces: Option<Fence>,
    /// The process that asked from outside: it explains, and proves nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// Who has a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// A keeper process: kernel locks in the attempt's folder speak about its life.
    Keeper { host: HostId, boot: BootId },
    /// Somebody who claims for themselves from a worktree: only the lease speaks about their life.
    External { host: HostId, worktree: String },
}

impl Holder {
    pub fn host(&self) -> &HostId {
        match self {
            Holder::Keeper { host, .. } | Holder::External { host, .. } => host,
        }
    }

    /// The same owner asks again: the same worktree on the same host.
    pub fn is_same_owner(&self, other: &Holder) -> bool {
        match (self, other) {
            (
                Holder::External { host: a, worktree: x },
                Holder::External { host: b, worktree: y },
            ) => a == b && x == y,
            _ => false,
        }
    }
}

/// Where an attempt enters its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The agent works from the step's base.
    Fresh,
    /// The agent goes on in the tree as it was left, with a brief.
    Continue,
    /// The agent had ended: commit leftovers, verify, land.
    Verify,
    /// The commit was verified: only landing is left.
    Land,
}

/// Why a claim was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grounds {
    /// Nobody held the step.
    Free,
    /// The holder's lease was over by the store's clock, and nothing on this host shows it alive.
    LeaseOver,
    /// The same owner asked again.
    SameOwner,
    /// Taken from a holder that may live.
    Forced,
}

/// What a holder reports about its work: shown as reported, never as verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// In percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<u8>,
    /// Between 0 and 1, as it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<String>,
    /// The section done last, and the one that comes next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The agent's own conversation, opaque.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ReportedFile>,
    /// Anything else, as JSON text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

impl Report {
    /// What is reported later wins, field by field; files are known by their path.
    pub fn take_in(&mut self, later: &Report) {
        let fields = [
            (&mut self.confidence, &later.confidence),
            (&mut self.note, &later.note),
            (&mut self.task, &later.task),
            (&mut self.eta, &later.eta),
            (&mut self.done, &later.done),
            (&mut self.next, &later.next),
            (&mut self.session, &later.session),
            (&mut self.data, &later.data),
        ];
        for (mine, newer) in fields {
            if newer.is_some() {
                mine.clone_from(newer);
            }
        }
        self.progress = later.progress.or(self.progress);
        for file in &later.files {
            self.files.retain(|known| known.path != file.path);
            self.files.push(file.clone());
        }
    }
}

impl Report {
    /// Everything that was reported, field by field, in words: for whoever goes on, and for snapshots.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let texts = [
            ("progress", self.progress.map(|percent| format!("{percent} %"))),
            ("confidence", self.confidence.clone()),
            ("task", self.task.clone()),
            ("note", self.note.clone()),
            ("section done", self.done.clone()),
            ("section next", self.next.clone()),
            ("eta", self.eta.clone()),
            ("session", self.session.clone()),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text?)));
        let files = self.files.iter().map(|file| ("file", file.to_string()));
        let data = self.data.iter().map(|data| ("data", data.clone()));
        texts.chain(files).chain(data).collect()
    }
}

/// A file that a holder works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedFile {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<String>,
}

/// How much a gap matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    Critical,
    #[default]
    Important,
    Minor,
}

/// What became of an item; an item without a mark is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    Done,
    Deferred { reason: String },
}

/// What a run has landed, on its way into another branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeIntent {
    /// The branch's short name.
    pub into: String,
    pub onto: Oid,
    pub to: Oid,
    /// The run's branch by then.
    pub tip: Oid,
}

/// A completion in spite of what was still open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waived {
    pub reason: String,
    pub substeps: Vec<SubstepId>,
    pub items: Vec<ItemRef>,
    /// Asked, and completed without the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<QuestionId>,
    /// Declared and not published, or not what the plan requires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputName>,
}

/// What piton itself asks about: the answer says how the step goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    Conflict(Conflict),
    /// A command or agent was cut off at work, and the plan has a person say how the step goes on.
    Interruption {
        cause: Cause,
        /// Paths that differ from the step's base, and the snapshot that has them.
        changed: u64,
        kept: Option<String>,
    },
    /// The step was interrupted so often in a row without new progress, the last time by this.
    NoProgress {
        times: u32,
        cause: Cause,
    },
    /// The account of these agents has met a limit: nothing is started on it before the answer.
    Account {
        account: AccountName,
        agents: BTreeSet<AgentName>,
        trouble: Trouble,
        until: Option<Millis>,
    },
    /// The step's agent has failed twice in the same way, and would perhaps go on failing.
    Repetition {
        why: Failure,
    },
    /// These steps failed alike, one after the other: what is wrong is perhaps not the steps' fault. The
    /// answer is about the run, and nothing new is started before it.
    FailedAlike {
        steps: Vec<StepRef>,
        why: Failure,
    },
    /// A loop has come to one of its bounds, and is not done.
    Loop {
        name: LoopId,
        iteration: u32,
        halt: Halt,
    },
}

/// The bound at which a loop waits for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Halt {
    /// It had as many iterations as it may have.
    Max,
    /// So many iterations in a row changed nothing.
    Stale { iterations: u32 },
}

/// A verified commit and the run's branch have changed the same; both are as they were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The run's branch, and where it was.
    pub branch: String,
    pub onto: Oid,
    pub commit: Oid,
    /// The ref that keeps the commit, whatever becomes of the step's branch.
    pub kept: String,
    /// At most a fixed number is listed, of so many.
    pub paths: Vec<String>,
    pub count: u64,
    /// Where both sides can be brought together: the step's own worktree, where it has one.
    pub worktree: Option<String>,
}

/// Who gave a claim back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleasedBy {
    Owner,
    Force,
}

/// Git bytes kept under a piton ref.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub commit: Oid,
    pub tree: Oid,
    pub refname: String,
    /// Paths that differ from the step's base, committed or not.
    pub changed: u64,
    /// What could not be captured, and why; at most a fixed number is listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<Omission>,
    pub reason: SnapshotReason,
    /// The commit that was checked out, on which the rest was uncommitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Oid>,
    /// How many commits that one has on top of the step's base.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub commits: u64,
}

/// A path that a snapshot, or a step's commit, left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omission {
    pub path: String,
    pub why: String,
}

/// What made piton take a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotReason {
    /// Something changed since the last one.
    Cadence,
    /// A holder asked for it, with a report or without.
    Checkpoint,
    /// The attempt ended.
    End,
    /// A dead attempt was found.
    Recovery,
    /// The tree is about to be reset.
    Reset,
}

/// What piton knows about "done".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truth {
    /// piton saw it: a verify command passed, or a plain command exited with zero.
    Verified,
    /// The agent said so.
    Claimed,
    Unknown,
}

/// What the verify command did when piton ran it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub command: String,
    pub exit: Exit,
    pub output: Hash,
    pub ms: u64,
}

/// What was seen at the end of an iteration of a loop, on the commit of its last step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IterationCheck {
    /// The loop's `until` command: its zero exit ends the loop.
    pub until: Option<Check>,
    /// The end of what that printed, where it did not pass.
    pub tail: String,
    /// Paths that steps of the iteration touched and that are not as they were at its start.
    pub changed: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// Why an attempt failed. Only this spends the retry budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The agent or command ended badly.
    Exit {
        exit: Exit,
        tail: String,
    },
    Verify {
        exit: Exit,
        tail: String,
    },
    Timeout {
        ms: u64,
    },
    /// Nothing of the agent moved for so long: no output, no change in its tree, no work of its processes.
    Hang {
        ms: u64,
    },
    /// The commit could not be brought onto the run's branch. About conflicts a person is asked since.
    Landing {
        message: String,
    },
    /// The holder says so.
    Reported {
        reason: String,
    },
    /// The agent ended well, but left parts of its checklist open.
    Unfinished {
        open: String,
    },
    /// An output of its own is not what the plan requires.
    Output {
        output: OutputName,
        value: String,
        bound: Bound,
    },
    /// The worktree could not be made ready: the setup command failed, or a file to be brought there is
    /// missing or would land.
    Setup {
        why: String,
        tail: String,
    },
}

/// Why an attempt was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    UserInterrupt,
    Termination,
    HangUp,
    ProcessKill,
    OutOfMemory,
    Reboot,
    HostLost,
    DiskFull,
    /// Something is in the way that does not pass by itself: only a person can move it.
    Obstacle,
    Unknown,
}

/// A part of an attempt. Of an interrupted one: how far it had come, and where the next one enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The tree is prepared; the agent was never started, so such an interruption does not count.
    Unstarted,
    Agent,
    Verify,
    Land,
}

/// What a stop request is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Run,
    Attempt(Under),
}

/// How a stop is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Haste {
    /// Ask, wait for the grace period, then kill.
    Graceful,
    /// Kill at once.
    Now,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A body that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEvent {
    #[error("the event has version {found}, this piton knows {EVENT_VERSION}")]
    Newer { found: u32 },
    #[error("the event cannot be read: {0}")]
    Unreadable(String),
}

impl Event {
    pub fn to_body(&self) -> Vec<u8> {
        body::write(self)
    }

    pub fn from_body(body: &[u8]) -> Result<Event, BadEvent> {
        body::read(body)
    }

    /// Its body without the version, as a value.
    pub fn to_json(&self) -> serde_json::Value {
        let mut body = serde_json::from_slice(&self.to_body()).expect("a body is JSON");
        if let serde_json::Value::Object(fields) = &mut body {
            fields.remove("v");
        }
        body
    }

    /// As its body is called.
    pub fn name(&self) -> String {
        body::name(self)
    }

    /// The step this is about, where it is about one.
    pub fn step(&self) -> Option<&StepRef> {
        match self {
            Event::Found(Found { step, .. })
            | Event::Claimed(Claimed { step, .. })
            | Event::Under(Under { step, .. }, _)
            | Event::Answered { step, .. }
            | Event::Reset { step, .. }
            | Event::Retried { step, .. }
            | Event::Skipped { step, .. }
            | Event::StopRequested { scope: Scope::Attempt(Under { step, .. }), .. } => Some(step),
            _ => None,
        }
    }

    /// The claim that this was written under, or about.
    pub fn fence(&self) -> Option<Fence> {
        match self {
            Event::Under(under, _) | Event::StopRequested { scope: Scope::Attempt(under), .. } => {
                Some(under.fence)
            }
            _ => None,
        }
    }
}

impl Exit {
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit {code}"),
            Exit::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Exit { exit, .. } => write!(f, "ended with {exit}"),
            Failure::Verify { exit, .. } => write!(f, "verify ended with {exit}"),
            Failure::Timeout { ms } => write!(f, "timed out after {} s", ms / 1000),
            Failure::Hang { ms } => write!(f, "hung: nothing moved for {} s", ms / 1000),
            Failure::Landing { message } => write!(f, "could not be landed: {message}"),
            Failure::Setup { why, .. } => write!(f, "could not be set up: {why}"),
            Failure::Reported { reason } => write!(f, "reported: {reason}"),
            Failure::Unfinished { open } => write!(f, "left open: {open}"),
            Failure::Output { output, value, bound } => {
                write!(f, "output {output} is {value}, and must be {bound}")
            }
        }
    }
}

impl fmt::Display for ReportedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        match self.done {
            Some(true) => f.write_str(" done")?,
            Some(false) => f.write_str(" open")?,
            None => {}
        }
        match &self.confidence {
            Some(sure) => write!(f, ", confidence {sure}"),
            None => Ok(()),
        }
    }
}

impl Cause {
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::UserInterrupt => "user_interrupt",
            Cause::Termination => "termination",
            Cause::HangUp => "hang_up",
            Cause::ProcessKill => "process_kill",
            Cause::OutOfMemory => "out_of_memory",
            Cause::Reboot => "reboot",
            Cause::HostLost => "host_lost",
            Cause::DiskFull => "disk_full",
            Cause::Obstacle => "obstacle",
            Cause::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StepId;

    #[test]
    fn a_body_says_its_version_and_reads_back() {
        let step = StepRef::first(StepId::new("jwt").expect("valid"));
        let why = Failure::Timeout { ms: 5 };
        let event = Event::Under(Under { step, fence: Fence(7) }, Fact::Failed { why });
        let body = event.to_body();
        insta::assert_snapshot!(String::from_utf8_lossy(&body), @r#"{"v":1,"event":"failed","step":{"step":"jwt","iteration":1},"fence":7,"why":{"timeout":{"ms":5}}}"#);
        assert_eq!(Event::from_body(&body), Ok(event));
    }

    #[test]
    fn a_newer_body_is_named_even_when_its_event_is_unknown() {
        let newer = br#"{"v":9,"event":"teleported","to":"mars"}"#;
        assert_eq!(Event::from_body(newer), Err(BadEvent::Newer { found: 9 }));
        let same = br#"{"v":1,"event":"teleported"}"#;
        assert!(matches!(Event::from_body(same), Err(BadEvent::Unreadable(_))));
    }
}
