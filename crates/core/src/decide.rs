//! Commands in, decided events or a typed refusal out. The only author of events, and the only place
//! that says who may write what: a stale fence is refused here, on every path.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::claim::{Asker, Chosen, asks_first, believed_until, choose, lease_key, renewable};
use crate::decided::{Decided, Lease};
use crate::event::{
    Cause, Check, Claimed, Conflict, Entry, Event, Exit, Failure, Haste, Holder, Mark, MergeIntent,
    Omission, Priority, ReleasedBy, Report, RunOpened, Scope, Snapshot, Stage, Truth, Waived,
};
use crate::ids::{
    AttemptId, Fence, HostId, ItemRef, LockName, Oid, QuestionId, StepId, StepRef, SubstepId,
};
use crate::limits::EVIDENCE_BYTES_MAX;
use crate::plan::{Plan, PlanStep};
use crate::question::{
    Question, QuestionState, WhichQuestion, about_interruption, asked_again, decide_answer,
    decide_apply, decide_ask, decide_conflict, unread_of,
};
use crate::recover::{Observed, Workplace};
use crate::run::{Attempt, Merged, Phase, Run, Step, Stop};
use crate::time::{Millis, Moment};

/// What somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Claim(Claim),
    Start {
        step: StepRef,
        fence: Fence,
        base: Option<Oid>,
        /// What whoever starts has been told.
        answers: Vec<QuestionId>,
        /// The keeper's process.
        pid: Option<u32>,
    },
    /// Moves a lease that the store has no row of any more.
    Renew {
        step: StepRef,
        fence: Fence,
        until: Moment,
        /// Where the holder works, if that is where keepers do.
        place: Option<Workplace>,
    },
    Checkpoint {
        step: StepRef,
        fence: Fence,
        snapshot: Option<Snapshot>,
        report: Option<Box<Report>>,
    },
    CompleteSubstep {
        step: StepRef,
        fence: Fence,
        substep: SubstepId,
    },
    AddItem {
        step: StepRef,
        fence: Fence,
        text: String,
        priority: Priority,
    },
    MarkItems {
        step: StepRef,
        fence: Fence,
        items: Vec<ItemRef>,
        mark: Mark,
    },
    Verify {
        step: StepRef,
        fence: Fence,
        commit: Oid,
        tree: Oid,
        truth: Truth,
        check: Option<Check>,
        commits: u64,
        omitted: Vec<Omission>,
    },
    Land {
        step: StepRef,
        fence: Fence,
        onto: Oid,
        to: Oid,
    },
    Complete {
        step: StepRef,
        fence: Fence,
        /// What it landed with; a holder outside may complete without.
        commit: Option<Oid>,
        /// Why what is still open does not matter.
        waive: Option<String>,
    },
    /// Asks a person.
    Ask {
        step: StepRef,
        fence: Fence,
        text: String,
        choices: Vec<String>,
    },
    /// Asks a person what becomes of a commit that cannot be landed.
    Park {
        step: StepRef,
        fence: Fence,
        conflict: Conflict,
    },
    Answer {
        question: WhichQuestion,
        answer: String,
        host: HostId,
    },
    /// Says that files of the user's checkout changed meanwhile.
    TellCheckout {
        step: StepRef,
        fence: Fence,
        files: Vec<String>,
        more: u64,
    },
    /// Says that a holder at work has been told these answers.
    ApplyAnswers {
        step: StepRef,
        fence: Fence,
        questions: Vec<QuestionId>,
    },
    /// Ends an attempt that has to wait for an answer.
    Suspend {
        step: StepRef,
        fence: Fence,
    },
    /// Gives a claim back; without a fence by force.
    Release {
        step: StepRef,
        fence: Option<Fence>,
    },
    /// Makes a step that had ended pending again. A completed one only with a reason.
    Reset {
        step: StepRef,
        reason: Option<String>,
    },
    Fail {
        step: StepRef,
        fence: Fence,
        why: Failure,
    },
    Interrupt {
        step: StepRef,
        fence: Fence,
        cause: Cause,
        at: Millis,
        evidence: String,
        left_at: Stage,
    },
    /// Ends an attempt whose holder was seen dead on its own host.
    Bury {
        step: StepRef,
        fence: Fence,
        corpse: Corpse,
    },
    /// Ends an attempt whose lease is over, where a person is asked before another begins.
    Expire {
        step: StepRef,
        fence: Fence,
    },
    Stop {
        scope: Scope,
        cause: Cause,
        haste: Haste,
    },
    Resume {
        host: HostId,
        confirmed: bool,
    },
    /// Gives the run up. Nobody may hold anything of it.
    Abandon {
        host: HostId,
        keep_until: Option<Millis>,
    },
    /// Goes on with a run that was given up, if no other run of its plan is there.
    Reopen {
        host: HostId,
    },
    /// Says that what was landed is about to be brought into another branch.
    IntendMerge(MergeIntent),
    /// Says that what was landed by `tip` is in another branch.
    Merge {
        into: String,
        commit: Oid,
        tip: Oid,
    },
    /// Goes on with a plan that was changed under the run.
    AcceptPlan {
        plan: Arc<Plan>,
    },
}

/// An ask for a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub which: Which,
    pub attempt: AttemptId,
    pub holder: Holder,
    pub until: Moment,
    /// What was seen of present holders.
    pub observed: Observed,
    pub insist: Insist,
    /// The process that asks from outside.
    pub pid: Option<u32>,
}

/// Which step is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    Step(StepRef),
    /// The first that can be had.
    First,
}

/// Whether a claim may be taken from a holder that may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insist {
    Never,
    Force,
}

/// What was found of a dead attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpse {
    /// The agent's exit record: it alone says whether the agent had ended.
    pub exit: Option<AgentExit>,
    pub cause: Cause,
    /// When the attempt was last known to live.
    pub at: Millis,
    pub evidence: String,
    /// Paths that differ from the step's base right now, where somebody looked.
    pub changed: Option<u64>,
}

/// How an agent ended, and what it had been urged to by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentExit {
    pub exit: Exit,
    pub urge: Urge,
}

/// What piton had urged an agent to by the time it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urge {
    /// It ended by itself.
    Nothing,
    /// To stop, for this cause.
    Stop(Cause),
    /// To stop, because its time was up.
    TimeUp,
}

/// A typed no: nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the plan has no step {0}")]
    UnknownStep(StepId),
    #[error("step {step} is no longer yours: its fence is {current}, yours was {given}")]
    StaleFence { step: StepId, given: Fence, current: Fence },
    #[error("step {step} is not claimed, and fence {given} is over")]
    NotClaimed { step: StepId, given: Fence },
    #[error("step {step} is no longer yours: your claim (fence {given}) has ended")]
    ClaimOver { step: StepId, given: Fence },
    #[error("step {0} is completed")]
    Completed(StepId),
    #[error("step {step} is held by a live attempt (fence {fence})")]
    HeldAlive { step: StepId, fence: Fence },
    #[error("step {step} is held by a dead attempt (fence {fence}) that has to be recovered first")]
    HeldDead { step: StepId, fence: Fence },
    #[error("step {step} is held elsewhere; its lease is not over")]
    HeldElsewhere { step: StepId, fence: Fence, until: Moment },
    #[error("step {step} was lost at work, and a person is asked before it goes on")]
    AskFirst { step: StepId, fence: Fence },
    #[error("step {step} waits for {}", list(needs))]
    NeedsUnmet { step: StepId, needs: Vec<StepId> },
    #[error("the worktree is in use by step {by}")]
    TreeBusy { by: StepId },
    #[error("as many steps are attempted as may be at once ({jobs})")]
    JobsBusy { jobs: u32 },
    #[error("step {0} was stopped on request")]
    StepStopped(StepId),
    #[error("step {0} failed and has no retries left")]
    RetriesUsed(StepId),
    #[error("the run has ended: step {0} failed")]
    RunFailed(StepId),
    #[error("the run is stopped")]
    RunStopped,
    #[error("the run is completed")]
    RunCompleted,
    #[error("the run was abandoned")]
    RunAbandoned,
    #[error("the run is neither completed nor abandoned")]
    RunNotOver,
    #[error("step {step} was interrupted {times} times in a row without new progress ({why})")]
    NeedsPerson { step: StepId, times: u32, why: String },
    #[error("step {step} cannot go on by itself: {why}")]
    Obstructed { step: StepId, why: String },
    #[error("step {step} is not verified")]
    NotVerified { step: StepId },
    #[error("step {step} has not been started")]
    NotStarted { step: StepId },
    #[error("the agent of step {step} has ended: there is nothing to start")]
    NothingToStart { step: StepId },
    #[error("step {step} was not landed with commit {commit}")]
    NotLanded { step: StepId, commit: Oid },
    #[error("step {step} was completed {}, not with {}", with_what(with), commit.short())]
    CompletedOtherwise { step: StepId, commit: Oid, with: Option<Oid> },
    #[error("step {step} has open items: {}", shown(items))]
    OpenItems { step: StepId, items: Vec<ItemRef> },
    #[error("step {step} has open substeps: {}", shown(substeps))]
    OpenSubsteps { step: StepId, substeps: Vec<SubstepId> },
    #[error("step {step} has no item {item}")]
    UnknownItem { step: StepId, item: ItemRef },
    #[error("step {step} has no substep {substep}")]
    UnknownSubstep { step: StepId, substep: SubstepId },
    #[error("lock {lock} has no free slot; it is held by {}", list(by))]
    LockBusy { lock: LockName, by: Vec<StepId> },
    #[error("no step can be claimed now")]
    NothingReady,
    #[error("step {0} is not claimed: it is pending")]
    Pending(StepId),
    #[error("step {step} is not claimed: {how}")]
    NothingHeld { step: StepId, how: &'static str },
    #[error("step {0} is completed: that cannot be released")]
    CannotRelease(StepId),
    #[error("step {0} is completed: resetting it needs a reason")]
    ResetNeedsReason(StepId),
    #[error("step {0} is claimed; release it first")]
    StillHeld(StepId),
    #[error(
        "the changed plan changes or removes steps that are claimed or completed: {}",
        list(steps)
    )]
    PlanInUse { steps: Vec<StepId> },
    #[error("the changed plan has another {what}, which was recorded when the run was opened")]
    PlanFixed { what: &'static str },
    #[error("step {step} waits for the answer to {question}: {}", first_line(text))]
    QuestionOpen { step: StepId, question: QuestionId, text: String },
    #[error("step {step} has asked {question} and has no answer yet")]
    Unanswered { step: StepId, question: QuestionId },
    #[error("the answer to {question} was not read at step {step}")]
    AnswerUnread { step: StepId, question: QuestionId },
    #[error("step {step} has asked nothing that is open")]
    NothingAsked { step: StepId },
    #[error("there is no question {question}")]
    UnknownQuestion { question: QuestionId },
    #[error("step {step} has several open questions: {}", shown(questions))]
    SeveralQuestions { step: StepId, questions: Vec<QuestionId> },
    #[error("{question} was answered already: {answer}")]
    AnsweredOtherwise { question: QuestionId, answer: String },
    #[error("nobody waits for the answer to {question} any more")]
    QuestionVoid { question: QuestionId },
    #[error("{question} has these answers: {}", choices.join(", "))]
    NotAChoice { question: QuestionId, choices: Vec<String> },
    #[error("{why}")]
    BadQuestion { why: &'static str },
    #[error("{why}")]
    BadAnswer { why: &'static str },
}

fn list(names: &[StepId]) -> String {
    shown(names)
}

fn with_what(commit: &Option<Oid>) -> String {
    match commit {
        Some(commit) => format!("with commit {}", commit.short()),
        None => "without a commit".to_owned(),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn shown<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Opens a run: its first event, with the texts it refers to.
pub fn open(plan: &Plan, settings: &[u8], opened: RunOpened) -> Decided {
    assert_eq!(opened.plan, plan.hash(), "a run is opened with the plan it names");
    Decided::new(vec![Event::RunOpened(opened)])
        .with_text(plan.to_bytes())
        .with_text(settings.to_vec())
}

/// Decides a command against a run, under the store's lock or compared when appended.
pub fn decide(
    run: &Run,
    command: &Command,
    leases: &[Lease],
    now: &Moment,
) -> Result<Decided, Refusal> {
    if run.abandoned.is_some() && is_to_go_on(command) {
        return Err(Refusal::RunAbandoned);
    }
    match command {
        Command::Abandon { host, keep_until } => decide_abandon(run, host, *keep_until),
        Command::Reopen { host } => Ok(decide_reopen(run, host)),
        Command::Claim(claim) => decide_claim(run, claim, leases, now),
        Command::Renew { step, fence, until, place } => {
            let (_, attempt) = own(run, step, *fence)?;
            if !until.is_later_than(believed_until(step, attempt, leases)) {
                return Ok(nothing());
            }
            // Whoever has the slots of a lapsed claim by now, or its worktree, keeps them.
            let observed = Observed { place: place.clone(), ..Observed::default() };
            let asker = Asker { holder: &attempt.holder, observed: &observed, leases, now };
            renewable(run, step, &asker)?;
            let (key, fence, until) = (lease_key(step), *fence, until.clone());
            Ok(nothing().with_lease(Lease { key, fence, until }))
        }
        Command::Start { step, fence, base, answers, pid } => {
            let (state, attempt) = own(run, step, *fence)?;
            if matches!(attempt.entry, Entry::Verify | Entry::Land) {
                return Err(Refusal::NothingToStart { step: step.step.clone() });
            }
            let mut told = answers.clone();
            // What piton asked itself is followed, whether anybody is told it or not.
            told.extend(state.directions().map(|question| question.id));
            let answers = unread_of(state, &told);
            if attempt.started_at.is_some() && answers.is_empty() && base.is_none() {
                return Ok(nothing());
            }
            let (step, fence, base) = (step.clone(), *fence, base.clone());
            Ok(one(Event::Started { step, fence, base, answers, pid: *pid }))
        }
        Command::Checkpoint { step, fence, snapshot, report } => {
            own(run, step, *fence)?;
            let (step, fence) = (step.clone(), *fence);
            let (snapshot, report) = (snapshot.clone(), report.clone());
            Ok(one(Event::Checkpointed { step, fence, snapshot, report }))
        }
        Command::TellCheckout { step, fence, files, more } => {
            own(run, step, *fence)?;
            let (step, fence, files, more) = (step.clone(), *fence, files.clone(), *more);
            Ok(one(Event::CheckoutChanged { step, fence, files, more }))
        }
        Command::CompleteSubstep { .. } | Command::AddItem { .. } | Command::MarkItems { .. } => {
            decide_checklist(run, command)
        }
        Command::Ask { step, fence, text, choices } => {
            decide_ask(run, (step, *fence), text, choices)
        }
        Command::Park { step, fence, conflict } => {
            decide_conflict(run, (step, *fence), conflict, now)
        }
        Command::Answer { question, answer, host } => decide_answer(run, question, answer, host),
        Command::ApplyAnswers { step, fence, questions } => {
            decide_apply(run, (step, *fence), questions)
        }
        Command::Suspend { step, fence } => {
            let (held, _) = own(run, step, *fence)?;
            match held.awaits(*fence) {
                Some(_) => Ok(suspended(step, *fence, now)),
                None => Err(Refusal::NothingAsked { step: step.step.clone() }),
            }
        }
        Command::Release { step, fence } => decide_release(run, step, *fence, now),
        Command::Reset { step, reason } => decide_reset(run, step, reason.as_deref()),
        Command::Verify { step, fence, commit, tree, truth, check, commits, omitted } => {
            let (held, attempt) = own(run, step, *fence)?;
            let kept = matches!(attempt.holder, Holder::Keeper { .. });
            if kept && held.stage(attempt) == Stage::Unstarted {
                return Err(Refusal::NotStarted { step: step.step.clone() });
            }
            if kept {
                // Before anything lands: what is still open is not done.
                nothing_awaited(step, held, |question| question.fence == *fence)?;
                nothing_open(run, step, held)?;
            }
            Ok(one(Event::Verified {
                step: step.clone(),
                fence: *fence,
                commit: commit.clone(),
                tree: tree.clone(),
                truth: *truth,
                check: check.clone(),
                commits: *commits,
                answers: held.directions().map(|question| question.id).collect(),
                omitted: omitted.clone(),
            }))
        }
        Command::Land { step, fence, onto, to } => {
            verified(run, step, *fence)?;
            let (step, fence, onto, to) = (step.clone(), *fence, onto.clone(), to.clone());
            Ok(one(Event::LandingIntended { step, fence, onto, to }))
        }
        Command::Complete { step, fence, commit, waive } => {
            let (commit, waive) = (commit.as_ref(), waive.as_deref());
            decide_complete(run, (step, *fence), commit, waive, now)
        }
        Command::Fail { step, fence, why } => {
            let (held, _) = own(run, step, *fence)?;
            // Whoever waits for an answer has not failed, unless they say so themselves.
            if held.awaits(*fence).is_some() && !matches!(why, Failure::Reported { .. }) {
                return Ok(suspended(step, *fence, now));
            }
            let why = clipped_failure(why.clone());
            Ok(last_word(Event::Failed { step: step.clone(), fence: *fence, why }, *fence, now))
        }
        Command::Interrupt { step, fence, cause, at, evidence, left_at } => {
            let (held, attempt) = own(run, step, *fence)?;
            let event = Event::Interrupted {
                step: step.clone(),
                fence: *fence,
                cause: asked_cause(run, attempt).unwrap_or(*cause),
                at: *at,
                evidence: clipped(evidence),
                left_at: match (held.stage(attempt), *left_at) {
                    // Only the holder knows that its agent has ended; the log knows the rest.
                    (Stage::Agent, Stage::Verify) => Stage::Verify,
                    (recorded, _) => recorded,
                },
            };
            Ok(interrupted(run, (step, held, attempt), event, now))
        }
        Command::Bury { step, fence, corpse } => {
            let (held, attempt) = own(run, step, *fence)?;
            let event = bury(run, step, held, attempt, corpse);
            Ok(interrupted(run, (step, held, attempt), event, now))
        }
        Command::Expire { step, fence } => decide_expire(run, (step, *fence), leases, now),
        Command::Stop { scope, cause, haste } => decide_stop(run, scope, *cause, *haste),
        Command::Resume { host, confirmed } => Ok(decide_resume(run, host, *confirmed)),
        Command::IntendMerge(intent) if run.merging.as_ref() == Some(intent) => Ok(nothing()),
        Command::IntendMerge(intent) => Ok(one(Event::MergeIntended(intent.clone()))),
        Command::Merge { into, commit, tip } => {
            let known = run.merged.as_ref().filter(|_| run.merging.is_none());
            let same =
                |known: &Merged| (&known.into, &known.commit, &known.tip) == (into, commit, tip);
            if known.is_some_and(same) {
                return Ok(nothing());
            }
            let (into, commit, tip) = (into.clone(), commit.clone(), tip.clone());
            Ok(one(Event::Merged { into, commit, tip }))
        }
        Command::AcceptPlan { plan } => decide_accept(run, plan),
    }
}

/// Whether a command is about a run that goes on. Of one that was abandoned nobody holds anything: who
/// still writes under a fence is told by that.
fn is_to_go_on(command: &Command) -> bool {
    matches!(
        command,
        Command::Claim(_)
            | Command::Answer { .. }
            | Command::Reset { .. }
            | Command::Stop { .. }
            | Command::Resume { .. }
            | Command::AcceptPlan { .. }
    )
}

pub(crate) fn one(event: Event) -> Decided {
    Decided::new(vec![event])
}

/// The event that ends an attempt; its lease is over with it, so that leases do not pile up.
fn last_word(event: Event, fence: Fence, now: &Moment) -> Decided {
    let key = event.step().map(lease_key).unwrap_or_default();
    one(event).with_lease(Lease { key, fence, until: now.clone() })
}

/// The event that ends an attempt which may have been cut off at work, and the question that the plan
/// wants asked about that. Nobody can come in between.
fn interrupted(
    run: &Run,
    (step, held, attempt): (&StepRef, &Step, &Attempt),
    event: Event,
    now: &Moment,
) -> Decided {
    let (plan, _) = run.step(&step.step).expect("a held step is in the plan");
    let fence = attempt.fence;
    let asked = match &event {
        Event::Interrupted { cause, at, left_at: Stage::Unstarted | Stage::Agent, .. }
            if asks_first(plan, held) =>
        {
            Some(about_interruption((plan, held), (step, fence), (*cause, *at)))
        }
        _ => None,
    };
    let events = [event].into_iter().chain(asked).collect();
    Decided::new(events).with_lease(Lease { key: lease_key(step), fence, until: now.clone() })
}

/// Only where it would be asked about: else the claim that takes the step ends the attempt.
fn decide_expire(
    run: &Run,
    (step, fence): (&StepRef, Fence),
    leases: &[Lease],
    now: &Moment,
) -> Result<Decided, Refusal> {
    let (state, attempt) = own(run, step, fence)?;
    let until = believed_until(step, attempt, leases);
    if !until.is_over(now) {
        let (step, until) = (step.step.clone(), until.clone());
        return Err(Refusal::HeldElsewhere { step, fence, until });
    }
    let (plan, _) = run.step(&step.step).expect("a held step is in the plan");
    if !asks_first(plan, state) {
        return Ok(nothing());
    }
    let event = Event::Interrupted {
        step: step.clone(),
        fence,
        cause: asked_cause(run, attempt).unwrap_or(Cause::HostLost),
        at: until.wall,
        evidence: "not heard of until its lease was over".to_owned(),
        left_at: state.stage(attempt),
    };
    Ok(interrupted(run, (step, state, attempt), event, now))
}

fn suspended(step: &StepRef, fence: Fence, now: &Moment) -> Decided {
    last_word(Event::Suspended { step: step.clone(), fence }, fence, now)
}

pub(crate) fn nothing() -> Decided {
    Decided::new(Vec::new())
}

/// The one check of ownership: the step's open attempt, if this fence is its fence.
pub(crate) fn own<'run>(
    run: &'run Run,
    step: &StepRef,
    fence: Fence,
) -> Result<(&'run Step, &'run Attempt), Refusal> {
    let id = || step.step.clone();
    let state = run.state_of(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    match &state.phase {
        Phase::Held(attempt) if attempt.fence == fence => Ok((state, attempt)),
        Phase::Held(attempt) => {
            Err(Refusal::StaleFence { step: id(), given: fence, current: attempt.fence })
        }
        Phase::Completed { .. } => Err(Refusal::Completed(id())),
        Phase::Pending | Phase::Failed { .. } | Phase::Interrupted(_) | Phase::Suspended { .. } => {
            Err(Refusal::NotClaimed { step: id(), given: fence })
        }
    }
}

/// Whether a fence is that of the step's open attempt.
pub fn holds(run: &Run, step: &StepRef, fence: Fence) -> Result<(), Refusal> {
    own(run, step, fence).map(drop)
}

/// Whether a holder outside could complete a step now: asked before anything of it is verified or
/// landed. Keepers complete what they run themselves.
pub fn completable(
    run: &Run,
    step: &StepRef,
    fence: Fence,
    waive: Option<&str>,
) -> Result<(), Refusal> {
    let (state, attempt) = own(run, step, fence)?;
    match (&attempt.holder, waive) {
        (Holder::Keeper { .. }, _) => Err(Refusal::NotVerified { step: step.step.clone() }),
        (Holder::External { .. }, Some(_)) => Ok(()),
        (Holder::External { .. }, None) => {
            nothing_awaited(step, state, |asked| asked.is_to_restart())?;
            nothing_open(run, step, state)
        }
    }
}

/// Where a claim was completed already: whether it was with this commit, so that saying it again is
/// harmless. What it landed with is another one where others had landed meanwhile.
pub fn completed_with(
    run: &Run,
    step: &StepRef,
    fence: Fence,
    commit: &Oid,
) -> Option<Result<(), Refusal>> {
    let state = run.state_of(step)?;
    let Phase::Completed { commit: landed, fence: by, .. } = &state.phase else { return None };
    if *by != fence {
        return None;
    }
    let given = state.history.last().and_then(|past| past.attempt.trace.head.clone());
    let with = landed.as_ref().map(|landed| given.unwrap_or_else(|| landed.clone()));
    if [&with, landed].contains(&&Some(commit.clone())) {
        return Some(Ok(()));
    }
    let (step, commit) = (step.step.clone(), commit.clone());
    Some(Err(Refusal::CompletedOtherwise { step, commit, with }))
}

/// Whether a run can go on with a changed plan.
pub fn acceptable(run: &Run, plan: &Plan) -> Result<(), Refusal> {
    decide_accept(run, plan).map(drop)
}

fn verified<'run>(run: &'run Run, step: &StepRef, fence: Fence) -> Result<&'run Step, Refusal> {
    let (state, _) = own(run, step, fence)?;
    match state.verified {
        Some(_) => Ok(state),
        None => Err(Refusal::NotVerified { step: step.step.clone() }),
    }
}

fn decide_claim(
    run: &Run,
    claim: &Claim,
    leases: &[Lease],
    now: &Moment,
) -> Result<Decided, Refusal> {
    let Chosen { step, granted, displaces, outlived } = choose(run, claim, leases, now)?;
    let event = Event::Claimed(Claimed {
        step: step.clone(),
        attempt: claim.attempt,
        holder: claim.holder.clone(),
        entry: granted.entry,
        grounds: granted.grounds,
        until: claim.until.clone(),
        plan: run.graph().hash(),
        displaces,
        pid: claim.pid,
    });
    let fence = Fence::from(run.cursor.position.next());
    let lease = Lease { key: lease_key(&step), fence, until: claim.until.clone() };
    let over = |(step, fence)| Lease { key: lease_key(&step), fence, until: now.clone() };
    Ok(outlived.into_iter().map(over).fold(one(event).with_lease(lease), Decided::with_lease))
}

/// Completing twice under the same fence is harmless; nothing else completes a completed step.
fn decide_complete(
    run: &Run,
    (step, fence): (&StepRef, Fence),
    commit: Option<&Oid>,
    waive: Option<&str>,
    now: &Moment,
) -> Result<Decided, Refusal> {
    if let Some(Step { phase: Phase::Completed { fence: by, .. }, .. }) = run.state_of(step)
        && *by == fence
    {
        return Ok(nothing());
    }
    let (state, attempt) = own(run, step, fence)?;
    match commit {
        Some(commit) => landed(step, verified(run, step, fence)?, commit)?,
        None if matches!(attempt.holder, Holder::External { .. }) => {}
        None => return Err(Refusal::NotVerified { step: step.step.clone() }),
    }
    let settled = match attempt.holder {
        // What else piton asked is settled by a commit that lands.
        Holder::External { .. } => {
            nothing_awaited(step, state, |asked| asked.about.is_none() || asked.is_to_restart())
        }
        // Looked at before it was verified.
        Holder::Keeper { .. } => Ok(()),
    };
    let waived = match (settled.and_then(|()| nothing_open(run, step, state)), waive) {
        (Ok(()), _) => None,
        (Err(_), Some(reason)) => Some(waived(run, step, state, reason)),
        (Err(open), None) => return Err(open),
    };
    let commit = commit.cloned();
    let event = Event::Completed { step: step.clone(), fence, commit, waived };
    let decided = last_word(event, fence, now);
    Ok(if run.lacks_only(&step.step) { decided.freeing_key() } else { decided })
}

fn landed(step: &StepRef, state: &Step, commit: &Oid) -> Result<(), Refusal> {
    let landed = state.landing.as_ref().is_some_and(|landing| landing.to == *commit);
    let contained = state.verified.as_ref().is_some_and(|verified| verified.commit == *commit);
    if landed || contained {
        return Ok(());
    }
    Err(Refusal::NotLanded { step: step.step.clone(), commit: commit.clone() })
}

/// A step is done when every substep is completed and no item is open.
fn nothing_open(run: &Run, step: &StepRef, state: &Step) -> Result<(), Refusal> {
    let Some((plan, _)) = run.step(&step.step) else { return Ok(()) };
    let substeps = state.checklist.open_substeps(plan);
    if !substeps.is_empty() {
        return Err(Refusal::OpenSubsteps { step: step.step.clone(), substeps });
    }
    let items = state.checklist.open_items(plan);
    if items.is_empty() {
        return Ok(());
    }
    Err(Refusal::OpenItems { step: step.step.clone(), items })
}

/// What was asked has been answered, and who asked knows the answer.
fn nothing_awaited(
    step: &StepRef,
    state: &Step,
    counts: impl Fn(&&Question) -> bool,
) -> Result<(), Refusal> {
    let mut asked = state.questions.iter().filter(counts);
    match asked.find(|question| question.is_open() || question.is_unread()) {
        None => Ok(()),
        Some(Question { id: question, state: QuestionState::Open, .. }) => {
            Err(Refusal::Unanswered { step: step.step.clone(), question: *question })
        }
        Some(Question { id: question, .. }) => {
            Err(Refusal::AnswerUnread { step: step.step.clone(), question: *question })
        }
    }
}

fn waived(run: &Run, step: &StepRef, state: &Step, reason: &str) -> Waived {
    let (substeps, items) = match run.step(&step.step) {
        Some((plan, _)) => (state.checklist.open_substeps(plan), state.checklist.open_items(plan)),
        None => (Vec::new(), Vec::new()),
    };
    let awaited = state.questions.iter().filter(|asked| asked.is_open() || asked.is_unread());
    let questions = awaited.map(|question| question.id).collect();
    Waived { reason: clipped(reason), substeps, items, questions }
}

fn decide_checklist(run: &Run, command: &Command) -> Result<Decided, Refusal> {
    match command {
        Command::CompleteSubstep { step, fence, substep } => {
            let (state, _) = own(run, step, *fence)?;
            let known = run.step(&step.step).is_some_and(|(plan, _)| {
                plan.substeps.iter().any(|candidate| candidate.id == *substep)
            });
            if !known {
                let (step, substep) = (step.step.clone(), substep.clone());
                return Err(Refusal::UnknownSubstep { step, substep });
            }
            if state.checklist.completed.contains(substep) {
                return Ok(nothing());
            }
            let (step, fence, substep) = (step.clone(), *fence, substep.clone());
            Ok(one(Event::SubstepCompleted { step, fence, substep }))
        }
        Command::AddItem { step, fence, text, priority } => {
            own(run, step, *fence)?;
            let (step, fence, text, priority) = (step.clone(), *fence, clipped(text), *priority);
            Ok(one(Event::ItemAdded { step, fence, text, priority }))
        }
        Command::MarkItems { step, fence, items, mark } => {
            let (state, _) = own(run, step, *fence)?;
            let (plan, _) = run.step(&step.step).expect("the step is ours");
            if let Some(item) = items.iter().find(|item| !state.checklist.has(plan, item)) {
                let (step, item) = (step.step.clone(), item.clone());
                return Err(Refusal::UnknownItem { step, item });
            }
            let (step, fence, items, mark) = (step.clone(), *fence, items.clone(), mark.clone());
            Ok(one(Event::ItemsMarked { step, fence, items, mark }))
        }
        _ => unreachable!("only commands about the checklist come here"),
    }
}

fn decide_release(
    run: &Run,
    step: &StepRef,
    fence: Option<Fence>,
    now: &Moment,
) -> Result<Decided, Refusal> {
    let id = || step.step.clone();
    let state = run.state_of(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    let held = match &state.phase {
        Phase::Held(attempt) => attempt,
        Phase::Completed { .. } => return Err(Refusal::CannotRelease(id())),
        Phase::Pending => return Err(Refusal::Pending(id())),
        ended @ (Phase::Failed { .. } | Phase::Interrupted(_) | Phase::Suspended { .. }) => {
            return Err(match (fence, ended) {
                (Some(given), _) => Refusal::NotClaimed { step: id(), given },
                (None, Phase::Failed { .. }) => nothing_held(id(), "it has failed"),
                (None, Phase::Suspended { .. }) => nothing_held(id(), "it waits for an answer"),
                (None, _) => nothing_held(id(), "it was interrupted"),
            });
        }
    };
    let by = match fence {
        Some(fence) => {
            own(run, step, fence)?;
            ReleasedBy::Owner
        }
        None => ReleasedBy::Force,
    };
    let event = Event::Released { step: step.clone(), fence: held.fence, by };
    Ok(last_word(event, held.fence, now))
}

fn nothing_held(step: StepId, how: &'static str) -> Refusal {
    Refusal::NothingHeld { step, how }
}

fn decide_reset(run: &Run, step: &StepRef, reason: Option<&str>) -> Result<Decided, Refusal> {
    let id = || step.step.clone();
    let state = run.state_of(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    match &state.phase {
        Phase::Pending => return Ok(nothing()),
        Phase::Held(_) => return Err(Refusal::StillHeld(id())),
        Phase::Completed { .. } if reason.is_none() => return Err(Refusal::ResetNeedsReason(id())),
        // Its key is free: another run of the plan may have it.
        Phase::Completed { .. } if run.is_completed() => return Err(Refusal::RunCompleted),
        Phase::Completed { .. }
        | Phase::Failed { .. }
        | Phase::Interrupted(_)
        | Phase::Suspended { .. } => {}
    }
    let reason = reason.map(clipped);
    Ok(one(Event::Reset { step: step.clone(), reason }))
}

fn decide_stop(run: &Run, scope: &Scope, cause: Cause, haste: Haste) -> Result<Decided, Refusal> {
    if run.is_completed() {
        return Err(Refusal::RunCompleted);
    }
    let present = match scope {
        Scope::Run => run.stop,
        Scope::Attempt { step, fence } => {
            let (_, attempt) = own(run, step, *fence)?;
            attempt.unlifted_stop()
        }
    };
    match present {
        Some(Stop { haste: asked, .. }) if asked >= haste => Ok(nothing()),
        _ => Ok(one(Event::StopRequested { scope: scope.clone(), cause, haste })),
    }
}

fn decide_resume(run: &Run, host: &HostId, confirmed: bool) -> Decided {
    let stopping = run.held().any(|(_, held)| held.unlifted_stop().is_some());
    let held_back = stopping || run.held_back().is_some();
    let asked = confirmed && run.steps().any(|(_, step)| step.idle > 0);
    let obstructed = run.interrupted().any(|(_, step)| step.is_obstructed());
    if !(run.stop.is_some() || held_back || asked || obstructed) {
        return nothing();
    }
    let resumed = Event::Resumed { host: host.clone(), confirmed };
    let questions = asked_again(run);
    Decided::new([resumed].into_iter().chain(questions).collect())
}

fn decide_abandon(
    run: &Run,
    host: &HostId,
    keep_until: Option<Millis>,
) -> Result<Decided, Refusal> {
    if run.is_completed() {
        return Err(Refusal::RunCompleted);
    }
    if run.abandoned.is_some() {
        return Ok(nothing());
    }
    if let Some((step, _)) = run.held().next() {
        return Err(Refusal::StillHeld(step.step));
    }
    Ok(one(Event::Abandoned { host: host.clone(), keep_until }).freeing_key())
}

fn decide_reopen(run: &Run, host: &HostId) -> Decided {
    match run.abandoned {
        Some(_) => one(Event::Reopened { host: host.clone() }).taking_key(),
        None => nothing(),
    }
}

/// Whether a run may be forgotten for good: nobody has anything to do with it any more.
pub fn may_forget(run: &Run) -> Result<(), Refusal> {
    if let Some((step, _)) = run.held().next() {
        return Err(Refusal::StillHeld(step.step));
    }
    match run.is_completed() || run.abandoned.is_some() {
        true => Ok(()),
        false => Err(Refusal::RunNotOver),
    }
}

/// What is claimed or completed was done under its recipe, and what was recorded when the run was opened
/// stays: everything else may change.
fn decide_accept(run: &Run, plan: &Plan) -> Result<Decided, Refusal> {
    if plan.hash() == run.graph().hash() {
        return Ok(nothing());
    }
    if run.is_completed() {
        return Err(Refusal::RunCompleted);
    }
    let before = run.plan();
    let fixed = [
        ("base", plan.base != before.base),
        ("inputs", plan.inputs != before.inputs),
        // What is at work, or was, has its files where the recorded plan says.
        ("isolation", plan.isolation != before.isolation),
    ];
    if let Some((what, _)) = fixed.into_iter().find(|(_, changed)| *changed) {
        return Err(Refusal::PlanFixed { what });
    }
    let steps = run.in_use_without(plan);
    if !steps.is_empty() {
        return Err(Refusal::PlanInUse { steps });
    }
    let bytes = plan.to_bytes();
    let text = String::from_utf8(bytes.clone()).expect("a normalised plan is JSON");
    let decided = one(Event::PlanAccepted { plan: plan.hash(), text }).with_text(bytes);
    let done = |step: &PlanStep| run.step(&step.id).is_some_and(|(_, state)| state.is_completed());
    Ok(if plan.steps.iter().all(done) { decided.freeing_key() } else { decided })
}

/// What a dead attempt's end is called: the same rules as for an end that its keeper saw.
fn bury(run: &Run, step: &StepRef, held: &Step, attempt: &Attempt, corpse: &Corpse) -> Event {
    let interrupted = |cause: Cause, left_at: Stage| Event::Interrupted {
        step: step.clone(),
        fence: attempt.fence,
        cause: asked_cause(run, attempt).unwrap_or(cause),
        at: corpse.at,
        evidence: clipped(&corpse.evidence),
        left_at,
    };
    let stage = held.stage(attempt);
    let Some(ended) = corpse.exit.filter(|_| stage == Stage::Agent) else {
        return interrupted(corpse.cause, stage);
    };
    let failed = |why: Failure| Event::Failed { step: step.clone(), fence: attempt.fence, why };
    match judge_exit(ended) {
        Judged::Ended | Judged::Failed | Judged::TimedOut
            if held.awaits(attempt.fence).is_some() =>
        {
            Event::Suspended { step: step.clone(), fence: attempt.fence }
        }
        Judged::Ended => interrupted(corpse.cause, Stage::Verify),
        Judged::Interrupted(cause) => interrupted(cause, Stage::Agent),
        Judged::Failed => {
            failed(Failure::Exit { exit: ended.exit, tail: clipped(&corpse.evidence) })
        }
        Judged::TimedOut => {
            let limit = run.step(&step.step).and_then(|(plan, _)| plan.timeout);
            let ms = limit.map_or(0, |limit| limit.as_millis());
            failed(Failure::Timeout { ms: u64::try_from(ms).unwrap_or(u64::MAX) })
        }
    }
}

fn asked_cause(run: &Run, attempt: &Attempt) -> Option<Cause> {
    run.stop_for(attempt).map(|stop| stop.cause)
}

/// What an agent's or command's exit means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// It ended by itself with success: leftovers are committed and verified next.
    Ended,
    Interrupted(Cause),
    Failed,
    TimedOut,
}

/// Exit codes are recorded, not believed: once an agent was asked to stop even its zero exit is an
/// interruption (some agents exit 0 when terminated), and a death by an outside SIGKILL or SIGTERM is
/// one too. Shells and agents report those as 128 + signal.
pub fn judge_exit(ended: AgentExit) -> Judged {
    const SIGKILL: i32 = 9;
    const SIGTERM: i32 = 15;
    const BY_SHELL: i32 = 128;
    match ended.urge {
        Urge::Stop(cause) => return Judged::Interrupted(cause),
        Urge::TimeUp => return Judged::TimedOut,
        Urge::Nothing => {}
    }
    let signal = match ended.exit {
        Exit::Code(0) => return Judged::Ended,
        Exit::Code(code) => code - BY_SHELL,
        Exit::Signal(signal) => signal,
    };
    match signal {
        SIGKILL => Judged::Interrupted(Cause::ProcessKill),
        SIGTERM => Judged::Interrupted(Cause::Termination),
        _ => Judged::Failed,
    }
}

fn clipped_failure(why: Failure) -> Failure {
    match why {
        Failure::Exit { exit, tail } => Failure::Exit { exit, tail: clipped(&tail) },
        Failure::Verify { exit, tail } => Failure::Verify { exit, tail: clipped(&tail) },
        Failure::Landing { message } => Failure::Landing { message: clipped(&message) },
        Failure::Setup { why, tail } => Failure::Setup { why: clipped(&why), tail: clipped(&tail) },
        Failure::Reported { reason } => Failure::Reported { reason: clipped(&reason) },
        Failure::Unfinished { open } => Failure::Unfinished { open: clipped(&open) },
        timeout @ Failure::Timeout { .. } => timeout,
    }
}

/// The end of a text, at most as long as an event may carry.
fn clipped(text: &str) -> String {
    let mut start = text.len().saturating_sub(EVIDENCE_BYTES_MAX);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}
