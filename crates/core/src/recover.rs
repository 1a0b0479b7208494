//! What a worker does next about every step, from the folded run and what was seen of the machine. `run`,
//! `resume`, a live worker and `--dry-run` all ask this one function, so that every start is a recovery.

use std::collections::BTreeMap;

use crate::claim::{Asker, Granted, awaits_needs_alone, claimable_at, is_at_work, jobs};
use crate::decide::{Command, Request, decide};
use crate::decided::Lease;
use crate::event::{Cause, Entry, Failure, Holder, Under};
use crate::ids::{AccountName, BootId, Fence, LockName, QuestionId, StepRef};
use crate::observed::{Corpse, Observed, Sighting};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::run::{Attempt, Phase, Run, Step};
use crate::time::{Millis, Moment};

/// A step, and what is done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    pub step: StepRef,
    pub action: Action,
}

/// What a worker does about a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Completed or skipped: nothing.
    Skip,
    /// Its attempt lives: watch it, start nothing.
    Adopt {
        fence: Fence,
    },
    /// Its attempt is dead: end what is left of it, keep its bytes, record it, and then this.
    Bury {
        fence: Fence,
        then: Box<Action>,
    },
    /// Its holder was not heard of until its lease was over, and a person is asked before what it began
    /// is started again: record that.
    Expire {
        fence: Fence,
    },
    /// Claim it.
    Start {
        entry: Entry,
        because: Because,
    },
    /// Held from outside or on another host, until then at least.
    AwaitLease {
        fence: Fence,
        until: Moment,
    },
    /// What it needs is not completed: [`Run::unmet`] has the list, which most steps of a long plan would
    /// otherwise be given at every turn of a worker.
    AwaitNeeds,
    /// This one has failed for good, and the plan wants nothing started after that.
    AwaitFailed {
        by: StepRef,
    },
    /// Somebody outside has its worktree for another step.
    AwaitTree {
        by: StepRef,
    },
    /// As many steps as may be are attempted, or come first.
    AwaitJobs {
        jobs: u32,
    },
    /// Others hold every slot of a lock that the step needs.
    AwaitLock {
        lock: LockName,
        by: Vec<StepRef>,
    },
    /// Its agent's account has met a limit.
    AwaitLimit {
        account: AccountName,
        until: Millis,
        /// The step that shows whether it is over.
        probe: Option<StepRef>,
    },
    /// There is nothing to start: others claim it.
    AwaitHolder,
    /// Not among the steps that the run was resumed with.
    LeaveOut,
    /// Stopped on request: goes on when somebody resumes.
    StayStopped,
    StayFailed,
    /// Asked, and not answered.
    AwaitAnswer {
        question: QuestionId,
        text: String,
    },
    /// Only a person can say.
    Ask {
        question: String,
    },
}

/// Why a step is entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Because {
    NeedsMet,
    Interrupted(Cause),
    Failed(Failure),
    HolderLost,
    /// What it waited for was answered.
    Answered,
    /// The limit that it met should be over.
    LimitOver,
    /// Somebody wants it to begin again.
    Reset,
}

/// For every step in plan order, what to do about it now.
pub fn recover(run: &Run, observed: &Observed, leases: &[Lease], now: &Moment) -> Vec<Recovery> {
    let worker = worker(observed);
    let asker = Asker { holder: &worker, observed, leases, now };
    let mut recoveries: Vec<Recovery> = Vec::with_capacity(run.plan().steps.len());
    for (index, (step, _, state)) in run.steps().enumerate() {
        // Most of a long run is behind it or far ahead, and nothing can be done about that.
        let action = match state.phase {
            Phase::Completed { .. } | Phase::Skipped { .. } => done(run, &step, state),
            _ if awaits_needs_alone(run, index) => Action::AwaitNeeds,
            _ => action_for(run, index, &step, &asker),
        };
        recoveries.push(Recovery { step, action });
    }
    limit_to_probes(run, &mut recoveries);
    limit_to_jobs(run, &asker, &mut recoveries);
    recoveries
}

/// A step that is done, at the end of a loop's iteration perhaps.
fn done(run: &Run, step: &StepRef, state: &Step) -> Action {
    match state.open_question() {
        Some(asked) => Action::AwaitAnswer { question: asked.id, text: asked.text.clone() },
        None if run.is_halted_at(step) => Action::StayStopped,
        None => Action::Skip,
    }
}

/// Of the steps that wait for the same limit one is released first.
fn limit_to_probes(run: &Run, recoveries: &mut [Recovery]) {
    if !run.has_limits() {
        return;
    }
    let mut probes: BTreeMap<&AccountName, StepRef> = BTreeMap::new();
    for recovery in recoveries {
        let Action::Start { entry: Entry::Fresh | Entry::Continue, .. } = recovery.action else {
            continue;
        };
        let agent = run.step(&recovery.step).and_then(|(plan, _)| plan.work.agent());
        let Some((account, limit)) = agent.and_then(|agent| run.limits().of(agent)) else {
            continue;
        };
        match probes.get(account) {
            None => drop(probes.insert(account, recovery.step.clone())),
            Some(probe) => {
                let (account, until) = (account.clone(), limit.until);
                let probe = Some(probe.clone());
                recovery.action = Action::AwaitLimit { account, until, probe };
            }
        }
    }
}

/// Whoever looks, as a holder of claims.
pub(crate) fn worker(observed: &Observed) -> Holder {
    Holder::Keeper { host: observed.host.clone(), boot: BootId(String::new()) }
}

fn action_for(run: &Run, index: usize, step: &StepRef, asker: &Asker<'_>) -> Action {
    let state = run.step_at(index);
    match claimable_at(run, index, step, asker) {
        Ok(_) if run.plan().steps[index].work.is_by_hand() => Action::AwaitHolder,
        Ok(Granted { entry, .. }) => Action::Start { entry, because: because(state) },
        Err(Refusal::HeldDead { fence, .. }) => {
            let attempt = state.attempt().expect("a held step has an attempt");
            let sighting = asker.observed.of(attempt.id);
            let under = Under { step: step.clone(), fence };
            let then = after_burial(run, index, &under, sighting, asker);
            Action::Bury { fence, then: Box::new(then) }
        }
        Err(refusal) => refused(run, step, state, refusal),
    }
}

fn refused(run: &Run, step: &StepRef, state: &Step, refusal: Refusal) -> Action {
    match refusal {
        Refusal::Completed(_) | Refusal::Skipped(_) | Refusal::RunCompleted => Action::Skip,
        Refusal::HeldAlive { fence, .. } => Action::Adopt { fence },
        Refusal::HeldElsewhere { fence, until, .. } => Action::AwaitLease { fence, until },
        Refusal::AskFirst { fence, .. } => Action::Expire { fence },
        Refusal::NeedsUnmet { .. } => Action::AwaitNeeds,
        Refusal::NotChosen(_) => Action::LeaveOut,
        Refusal::TreeBusy { by } => Action::AwaitTree { by },
        Refusal::JobsBusy { jobs } => Action::AwaitJobs { jobs },
        Refusal::LockBusy { lock, by } => Action::AwaitLock { lock, by },
        Refusal::Limited { account, until, probe, .. } => {
            Action::AwaitLimit { account, until, probe }
        }
        Refusal::RetriesUsed(_) => Action::StayFailed,
        Refusal::RunFailed(by) => match &state.phase {
            Phase::Failed { .. } => Action::StayFailed,
            _ => Action::AwaitFailed { by },
        },
        Refusal::RunStopped | Refusal::RunAbandoned | Refusal::StepStopped(_) => {
            Action::StayStopped
        }
        Refusal::QuestionOpen { question, text, .. } => Action::AwaitAnswer { question, text },
        refusal @ Refusal::Obstructed { .. } => Action::Ask { question: refusal.to_string() },
        Refusal::UnknownStep(_)
        | Refusal::StaleFence { .. }
        | Refusal::NotClaimed { .. }
        | Refusal::ClaimOver { .. }
        | Refusal::HeldDead { .. }
        | Refusal::NotVerified { .. }
        | Refusal::NotStarted { .. }
        | Refusal::NothingToStart { .. }
        | Refusal::NotLanded { .. }
        | Refusal::CompletedOtherwise { .. }
        | Refusal::OpenItems { .. }
        | Refusal::OpenSubsteps { .. }
        | Refusal::OpenOutputs { .. }
        | Refusal::OutputShort { .. }
        | Refusal::BadOutput { .. }
        | Refusal::NoOutput { .. }
        | Refusal::WaitsForItself { .. }
        | Refusal::UnknownItem { .. }
        | Refusal::UnknownSubstep { .. }
        | Refusal::NothingReady
        | Refusal::Pending(_)
        | Refusal::CannotRelease(_)
        | Refusal::RunByPiton(_)
        | Refusal::NothingHeld { .. }
        | Refusal::ResetNeedsReason(_)
        | Refusal::StillHeld(_)
        | Refusal::NotAttempted(_)
        | Refusal::RunNotOver
        | Refusal::PlanInUse { .. }
        | Refusal::PlanFixed { .. }
        | Refusal::Unanswered { .. }
        | Refusal::AnswerUnread { .. }
        | Refusal::NothingAsked { .. }
        | Refusal::UnknownQuestion { .. }
        | Refusal::SeveralQuestions { .. }
        | Refusal::AnsweredOtherwise { .. }
        | Refusal::QuestionVoid { .. }
        | Refusal::NotAChoice { .. }
        | Refusal::BadQuestion { .. }
        | Refusal::BadAnswer { .. } => {
            unreachable!("claimable does not answer so for step {step} of {}", run.opened.handle)
        }
    }
}

/// What follows once the dead attempt is recorded: the same rules, applied to the run as it will be.
fn after_burial(
    run: &Run,
    index: usize,
    under: &Under,
    sighting: &Sighting,
    asker: &Asker<'_>,
) -> Action {
    let Sighting::Dead(corpse) = sighting else {
        unreachable!("only the dead are buried");
    };
    let after = buried(run, under, corpse, asker.now);
    action_for(&after, index, &under.step, asker)
}

/// The run as it will be once this dead attempt is recorded.
fn buried(run: &Run, under: &Under, corpse: &Corpse, now: &Moment) -> Run {
    let mut before = run.clone();
    before.expect_changes(&under.step, corpse.changed);
    let command = Command::Under(under.clone(), Request::Bury(corpse.clone()));
    foreseen(before, &command, now).expect("the dead can be buried")
}

/// The run as it will be once every death that was seen is recorded.
pub(crate) fn all_buried(run: &Run, observed: &Observed, now: &Moment) -> Run {
    let mut after = run.clone();
    for (step, attempt) in run.held() {
        if let Sighting::Dead(corpse) = observed.of(attempt.id) {
            after = buried(&after, &Under { step, fence: attempt.fence }, corpse, now);
        }
    }
    after
}

/// The run as it will be once this command is decided.
pub(crate) fn foreseen(mut run: Run, command: &Command, now: &Moment) -> Result<Run, Refusal> {
    let decided = decide(&run, command, &[], now)?;
    for body in decided.bodies() {
        let record = Record::following(run.opened.run, run.cursor, now.wall, body.clone());
        run.apply(&record).expect("what decide emits can be folded");
    }
    Ok(run)
}

fn because(state: &Step) -> Because {
    match &state.phase {
        Phase::Interrupted { .. } if state.directions().next().is_some() => Because::Answered,
        Phase::Interrupted { last, .. } => Because::Interrupted(last.cause),
        Phase::Failed { why, .. } => Because::Failed(why.clone()),
        Phase::Held { .. } => Because::HolderLost,
        Phase::Suspended { .. } => Because::Answered,
        Phase::Parked { .. } => Because::LimitOver,
        Phase::Pending { .. } if state.begins_again() => Because::Reset,
        Phase::Pending { .. } | Phase::Completed { .. } | Phase::Skipped { .. } => {
            Because::NeedsMet
        }
    }
}

/// As many steps start as there are jobs for. Steps that were left in the middle come first, then plan
/// order.
fn limit_to_jobs(run: &Run, asker: &Asker<'_>, recoveries: &mut [Recovery]) {
    let left = |recovery: &Recovery| match run.step(&recovery.step) {
        Some((_, state)) => !matches!(state.phase, Phase::Pending { .. }),
        None => false,
    };
    let enters = |recovery: &Recovery| matches!(recovery.action, Action::Start { .. });
    let mut entering: Vec<usize> =
        (0..recoveries.len()).filter(|at| enters(&recoveries[*at])).collect();
    entering.sort_by_key(|at| !left(&recoveries[*at]));
    let jobs = jobs(run);
    let at_work = |(step, held): &(StepRef, &Attempt)| {
        let taken_over = entering.iter().any(|at| recoveries[*at].step == *step);
        !taken_over && is_at_work(step, held, asker)
    };
    let taken = run.held().filter(at_work).count();
    for at in entering.into_iter().skip((jobs as usize).saturating_sub(taken)) {
        recoveries[at].action = Action::AwaitJobs { jobs };
    }
}
