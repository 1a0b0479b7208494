//! What to mend: for every step, what a worker does next, from the folded run and what was seen of
//! the machine. `run`, `resume`, a live worker and `--dry-run` all ask this one function, so that
//! every start is a recovery.

use std::collections::BTreeMap;

use crate::claim::{Asker, Granted, claimable};
use crate::decide::{Command, Corpse, Refusal, decide};
use crate::decided::Lease;
use crate::event::{Cause, Entry, Failure, Holder};
use crate::ids::{AttemptId, BootId, Fence, HostId, LockName, QuestionId, StepId, StepRef};
use crate::plan::Work;
use crate::record::Record;
use crate::run::{Phase, Run, Step};
use crate::time::Moment;

/// What was seen of an attempt's holder. Kernel locks speak; pids only explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sighting {
    /// Its lock is held on this host: running, or frozen.
    Alive,
    /// Its lock is free on this host.
    Dead(Corpse),
    /// Not on this host: unknown until its lease is over.
    Elsewhere,
}

/// What was seen of the machine, by attempt. An attempt nobody looked for is elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whoever looked works in the worktree of the run, as its keepers do, and not in one of its own.
    pub in_run_tree: bool,
    /// Who looked.
    pub host: HostId,
    pub attempts: BTreeMap<AttemptId, Sighting>,
}

impl Observed {
    pub fn of(&self, attempt: AttemptId) -> &Sighting {
        self.attempts.get(&attempt).unwrap_or(&Sighting::Elsewhere)
    }
}

/// A step, and what is done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mend {
    pub step: StepRef,
    pub action: Action,
}

/// What a worker does about a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Completed: nothing.
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
    /// Claim it.
    Enter {
        entry: Entry,
        because: Because,
    },
    /// Held on another host, until then at least.
    AwaitLease {
        fence: Fence,
        until: Moment,
    },
    AwaitNeeds {
        needs: Vec<StepId>,
    },
    /// Another step has the run's worktree or comes first.
    AwaitTree {
        by: StepId,
    },
    /// Others hold every slot of a lock that the step needs.
    AwaitLock {
        lock: LockName,
        by: Vec<StepId>,
    },
    /// There is nothing to start: others claim it.
    AwaitHolder,
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
}

/// For every step in plan order, what to do about it now.
pub fn recover(run: &Run, observed: &Observed, leases: &[Lease], now: &Moment) -> Vec<Mend> {
    let mut mends: Vec<Mend> = Vec::with_capacity(run.plan().steps.len());
    for (plan, state) in run.steps() {
        let step = StepRef::first(plan.id.clone());
        let action = action_for(run, &step, state, observed, leases, now);
        mends.push(Mend { step, action });
    }
    one_at_a_time(run, &mut mends);
    mends
}

/// What a resume would do: as [`recover`], once the request itself has lifted what stops held back.
pub fn on_resume(
    run: &Run,
    host: &HostId,
    observed: &Observed,
    leases: &[Lease],
    now: &Moment,
) -> Vec<Mend> {
    let request = Command::Resume { host: host.clone(), confirmed: false };
    recover(&foreseen(run, &request, now), observed, leases, now)
}

fn action_for(
    run: &Run,
    step: &StepRef,
    state: &Step,
    observed: &Observed,
    leases: &[Lease],
    now: &Moment,
) -> Action {
    let worker = Holder::Keeper { host: observed.host.clone(), boot: BootId(String::new()) };
    let asker = Asker { holder: &worker, observed, leases, now };
    let by_hand = run.step(&step.step).is_some_and(|(plan, _)| plan.work == Work::ByHand);
    match claimable(run, step, &asker) {
        Ok(_) if by_hand => Action::AwaitHolder,
        Ok(Granted { entry, .. }) => Action::Enter { entry, because: because(state) },
        Err(Refusal::HeldDead { fence, .. }) => {
            let attempt = state.attempt().expect("a held step has an attempt");
            let sighting = observed.of(attempt.id);
            let then = after_burial(run, step, fence, sighting, leases, now);
            Action::Bury { fence, then: Box::new(then) }
        }
        Err(refusal) => refused(run, step, state, refusal),
    }
}

fn refused(run: &Run, step: &StepRef, state: &Step, refusal: Refusal) -> Action {
    match refusal {
        Refusal::Completed(_) | Refusal::RunCompleted => Action::Skip,
        Refusal::HeldAlive { fence, .. } => Action::Adopt { fence },
        Refusal::HeldElsewhere { fence, until, .. } => Action::AwaitLease { fence, until },
        Refusal::NeedsUnmet { needs, .. } => Action::AwaitNeeds { needs },
        Refusal::TreeBusy { by } => Action::AwaitTree { by },
        Refusal::LockBusy { lock, by } => Action::AwaitLock { lock, by },
        Refusal::RetriesUsed(_) => Action::StayFailed,
        Refusal::RunFailed(by) => match &state.phase {
            Phase::Failed { .. } => Action::StayFailed,
            _ => Action::AwaitNeeds { needs: vec![by] },
        },
        Refusal::RunStopped | Refusal::StepStopped(_) => Action::StayStopped,
        Refusal::QuestionOpen { question, text, .. } => Action::AwaitAnswer { question, text },
        refusal @ Refusal::NeedsPerson { .. } => Action::Ask { question: refusal.to_string() },
        Refusal::UnknownStep(_)
        | Refusal::StaleFence { .. }
        | Refusal::NotClaimed { .. }
        | Refusal::ClaimOver { .. }
        | Refusal::HeldDead { .. }
        | Refusal::NotVerified { .. }
        | Refusal::NotStarted { .. }
        | Refusal::NothingToStart { .. }
        | Refusal::NotLanded { .. }
        | Refusal::OpenItems { .. }
        | Refusal::OpenSubsteps { .. }
        | Refusal::UnknownItem { .. }
        | Refusal::UnknownSubstep { .. }
        | Refusal::NothingReady
        | Refusal::Pending(_)
        | Refusal::CannotRelease(_)
        | Refusal::ResetNeedsReason(_)
        | Refusal::StillHeld(_)
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
    step: &StepRef,
    fence: Fence,
    sighting: &Sighting,
    leases: &[Lease],
    now: &Moment,
) -> Action {
    let Sighting::Dead(corpse) = sighting else {
        unreachable!("only the dead are buried");
    };
    let after = buried(run, step, fence, corpse, now);
    let (_, state) = after.step(&step.step).expect("the step exists");
    action_for(&after, step, state, &Observed::default(), leases, now)
}

/// The run as it will be once this dead attempt is recorded.
pub(crate) fn buried(
    run: &Run,
    step: &StepRef,
    fence: Fence,
    corpse: &Corpse,
    now: &Moment,
) -> Run {
    let mut before = run.clone();
    before.expect_changes(step, corpse.changed);
    let command = Command::Bury { step: step.clone(), fence, corpse: corpse.clone() };
    foreseen(&before, &command, now)
}

/// The run as it will be once this command is decided.
fn foreseen(run: &Run, command: &Command, now: &Moment) -> Run {
    let mut after = run.clone();
    let decided = decide(run, command, &[], now).expect("a command made from the run itself");
    for body in decided.bodies() {
        let record = Record::following(after.opened.run, after.cursor, now.wall, body.clone());
        after.apply(&record).expect("what decide emits can be folded");
    }
    after
}

fn because(state: &Step) -> Because {
    match &state.phase {
        Phase::Interrupted(interruption) => Because::Interrupted(interruption.cause),
        Phase::Failed { why, .. } => Because::Failed(why.clone()),
        Phase::Held(_) => Because::HolderLost,
        Phase::Suspended { .. } => Because::Answered,
        Phase::Pending | Phase::Completed { .. } => Because::NeedsMet,
    }
}

/// With one worktree only one step enters. A step that was left in the middle comes first, then plan
/// order.
fn one_at_a_time(run: &Run, mends: &mut [Mend]) {
    let enters = |mend: &Mend| matches!(mend.action, Action::Enter { .. });
    let left = |mend: &Mend| match run.step(&mend.step.step) {
        Some((_, state)) => !matches!(state.phase, Phase::Pending),
        None => false,
    };
    let chosen = mends
        .iter()
        .position(|mend| enters(mend) && left(mend))
        .or_else(|| mends.iter().position(enters));
    let Some(chosen) = chosen else { return };
    let by = mends[chosen].step.step.clone();
    for (index, mend) in mends.iter_mut().enumerate() {
        if index != chosen && matches!(mend.action, Action::Enter { .. }) {
            mend.action = Action::AwaitTree { by: by.clone() };
        }
    }
}
