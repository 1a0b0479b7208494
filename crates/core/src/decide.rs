//! Commands in, decided events or a typed refusal out. The only author of events, and the only place
//! that says who may write what: a stale fence is refused here, on every path.

use serde::{Deserialize, Serialize};

use crate::claim::{claimable, lease_key};
use crate::decided::{Decided, Lease};
use crate::event::{
    Cause, Check, Claimed, Entry, Event, Exit, Failure, Haste, Holder, RunOpened, Scope, Snapshot,
    Stage, Truth,
};
use crate::ids::{AttemptId, Fence, HostId, Oid, StepId, StepRef};
use crate::limits::EVIDENCE_BYTES_MAX;
use crate::plan::Plan;
use crate::recover::Sighting;
use crate::run::{Attempt, Phase, Run, Step, Stop};
use crate::time::{Millis, Moment};

/// What somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Claim(Claim),
    Start {
        step: StepRef,
        fence: Fence,
        base: Oid,
    },
    Checkpoint {
        step: StepRef,
        fence: Fence,
        snapshot: Snapshot,
    },
    Verify {
        step: StepRef,
        fence: Fence,
        commit: Oid,
        tree: Oid,
        truth: Truth,
        check: Option<Check>,
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
        commit: Oid,
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
    Stop {
        scope: Scope,
        cause: Cause,
        haste: Haste,
    },
    Resume {
        host: HostId,
        confirmed: bool,
    },
}

/// An ask for a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub step: StepRef,
    pub attempt: AttemptId,
    pub holder: Holder,
    pub until: Moment,
    /// What was seen of the present holder, if there is one.
    pub sighting: Sighting,
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
    #[error("step {0} is completed")]
    Completed(StepId),
    #[error("step {step} is held by a live attempt (fence {fence})")]
    HeldAlive { step: StepId, fence: Fence },
    #[error("step {step} is held by a dead attempt (fence {fence}) that has to be recovered first")]
    HeldDead { step: StepId, fence: Fence },
    #[error("step {step} is held on another host; its lease is not over")]
    HeldElsewhere { step: StepId, fence: Fence, until: Moment },
    #[error("step {step} waits for {}", list(needs))]
    NeedsUnmet { step: StepId, needs: Vec<StepId> },
    #[error("the run's worktree is in use by step {by}")]
    TreeBusy { by: StepId },
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
    #[error("step {step} was interrupted {times} times in a row without new progress ({why})")]
    NeedsPerson { step: StepId, times: u32, why: String },
    #[error("step {step} is not verified")]
    NotVerified { step: StepId },
    #[error("step {step} has not been started")]
    NotStarted { step: StepId },
    #[error("the agent of step {step} has ended: there is nothing to start")]
    NothingToStart { step: StepId },
    #[error("step {step} was not landed with commit {commit}")]
    NotLanded { step: StepId, commit: Oid },
}

fn list(names: &[StepId]) -> String {
    names.iter().map(StepId::as_str).collect::<Vec<_>>().join(", ")
}

/// Opens a run: its first event, with the texts it refers to.
pub fn open(plan: &Plan, settings: &[u8], opened: RunOpened) -> Decided {
    assert_eq!(opened.plan, plan.hash(), "a run is opened with the plan it names");
    Decided::new(vec![Event::RunOpened(opened).to_body()])
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
    match command {
        Command::Claim(claim) => decide_claim(run, claim, leases, now),
        Command::Start { step, fence, base } => {
            let (_, attempt) = own(run, step, *fence)?;
            if matches!(attempt.entry, Entry::Verify | Entry::Land) {
                return Err(Refusal::NothingToStart { step: step.step.clone() });
            }
            let (step, fence, base) = (step.clone(), *fence, base.clone());
            Ok(one(Event::Started { step, fence, base }))
        }
        Command::Checkpoint { step, fence, snapshot } => {
            own(run, step, *fence)?;
            let (step, fence, snapshot) = (step.clone(), *fence, snapshot.clone());
            Ok(one(Event::Checkpointed { step, fence, snapshot }))
        }
        Command::Verify { step, fence, commit, tree, truth, check } => {
            let (held, attempt) = own(run, step, *fence)?;
            if held.stage(attempt) == Stage::Unstarted {
                return Err(Refusal::NotStarted { step: step.step.clone() });
            }
            Ok(one(Event::Verified {
                step: step.clone(),
                fence: *fence,
                commit: commit.clone(),
                tree: tree.clone(),
                truth: *truth,
                check: check.clone(),
            }))
        }
        Command::Land { step, fence, onto, to } => {
            verified(run, step, *fence)?;
            let (step, fence, onto, to) = (step.clone(), *fence, onto.clone(), to.clone());
            Ok(one(Event::LandingIntended { step, fence, onto, to }))
        }
        Command::Complete { step, fence, commit } => {
            decide_complete(run, step, *fence, commit, now)
        }
        Command::Fail { step, fence, why } => {
            own(run, step, *fence)?;
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
            Ok(last_word(event, *fence, now))
        }
        Command::Bury { step, fence, corpse } => {
            let (held, attempt) = own(run, step, *fence)?;
            Ok(last_word(bury(run, step, held, attempt, corpse), *fence, now))
        }
        Command::Stop { scope, cause, haste } => decide_stop(run, scope, *cause, *haste),
        Command::Resume { host, confirmed } => Ok(decide_resume(run, host, *confirmed)),
    }
}

fn one(event: Event) -> Decided {
    Decided::new(vec![event.to_body()])
}

/// The event that ends an attempt; its lease is over with it, so that leases do not pile up.
fn last_word(event: Event, fence: Fence, now: &Moment) -> Decided {
    let key = event.step().map(lease_key).unwrap_or_default();
    one(event).with_lease(Lease { key, fence, until: now.clone() })
}

fn nothing() -> Decided {
    Decided::new(Vec::new())
}

/// The one check of ownership: the step's open attempt, if this fence is its fence.
fn own<'run>(
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
        Phase::Pending | Phase::Failed { .. } | Phase::Interrupted(_) => {
            Err(Refusal::NotClaimed { step: id(), given: fence })
        }
    }
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
    if let Some(attempt) = unseen(run, claim) {
        return Err(Refusal::HeldAlive { step: claim.step.step.clone(), fence: attempt.fence });
    }
    let granted = claimable(run, &claim.step, &claim.sighting, leases, now)?;
    let event = Event::Claimed(Claimed {
        step: claim.step.clone(),
        attempt: claim.attempt,
        holder: claim.holder.clone(),
        entry: granted.entry,
        grounds: granted.grounds,
        until: claim.until.clone(),
        plan: run.opened.plan,
    });
    let fence = Fence::from(run.cursor.position.next());
    let lease = Lease { key: lease_key(&claim.step), fence, until: claim.until.clone() };
    Ok(one(event).with_lease(lease))
}

/// A holder on the asker's own host that it did not see there: it came after the asker had looked, and
/// a held lock outranks the lease. Whoever looks again sees it alive or dead.
fn unseen<'run>(run: &'run Run, claim: &Claim) -> Option<&'run Attempt> {
    let attempt = run.step(&claim.step.step)?.1.attempt()?;
    let (Holder::Keeper { host: theirs, .. }, Holder::Keeper { host: ours, .. }) =
        (&attempt.holder, &claim.holder);
    (claim.sighting == Sighting::Elsewhere && theirs == ours).then_some(attempt)
}

/// Completing twice under the same fence is harmless; nothing else completes a completed step.
fn decide_complete(
    run: &Run,
    step: &StepRef,
    fence: Fence,
    commit: &Oid,
    now: &Moment,
) -> Result<Decided, Refusal> {
    if let Some((_, Step { phase: Phase::Completed { fence: by, .. }, .. })) = run.step(&step.step)
        && *by == fence
    {
        return Ok(nothing());
    }
    let state = verified(run, step, fence)?;
    let landed = state.landing.as_ref().is_some_and(|landing| landing.to == *commit);
    let contained = state.verified.as_ref().is_some_and(|verified| verified.commit == *commit);
    if !landed && !contained {
        return Err(Refusal::NotLanded { step: step.step.clone(), commit: commit.clone() });
    }
    let event = Event::Completed { step: step.clone(), fence, commit: commit.clone() };
    let decided = last_word(event, fence, now);
    Ok(if run.lacks_only(&step.step) { decided.freeing_key() } else { decided })
}

fn decide_stop(run: &Run, scope: &Scope, cause: Cause, haste: Haste) -> Result<Decided, Refusal> {
    if run.is_completed() {
        return Err(Refusal::RunCompleted);
    }
    let present = match scope {
        Scope::Run => run.stop,
        Scope::Attempt { step, fence } => {
            let (_, attempt) = own(run, step, *fence)?;
            attempt.stop.filter(|_| !attempt.lifted)
        }
    };
    match present {
        Some(Stop { haste: asked, .. }) if asked >= haste => Ok(nothing()),
        _ => Ok(one(Event::StopRequested { scope: scope.clone(), cause, haste })),
    }
}

fn decide_resume(run: &Run, host: &HostId, confirmed: bool) -> Decided {
    let held_back = run.steps().any(|(_, step)| match &step.phase {
        Phase::Interrupted(interruption) => interruption.held_back,
        Phase::Held(attempt) => attempt.stop.is_some() && !attempt.lifted,
        _ => false,
    });
    let asked = confirmed && run.steps().any(|(_, step)| step.idle > 0);
    if run.stop.is_some() || held_back || asked {
        one(Event::Resumed { host: host.clone(), confirmed })
    } else {
        nothing()
    }
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
