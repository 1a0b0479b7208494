//! May I have it? Who may claim which step, on which grounds and with which entry: one function,
//! asked by the scheduler, by recovery and by the claim itself.

use crate::decide::Refusal;
use crate::decided::Lease;
use crate::event::{Entry, Failure, Grounds, Stage};
use crate::ids::{Fence, StepId, StepRef};
use crate::limits::IDLE_INTERRUPTIONS_MAX;
use crate::plan::PlanStep;
use crate::recover::Sighting;
use crate::run::{Attempt, Phase, Run, Step};
use crate::time::Moment;

/// A step that may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    pub entry: Entry,
    pub grounds: Grounds,
}

/// What a step's lease is called in a store.
pub fn lease_key(step: &StepRef) -> String {
    format!("{}#{}", step.step, step.iteration)
}

/// Until when a claim is believed: its lease row, or the expiry inside `Claimed` where that is lost.
pub fn believed_until<'a>(step: &StepRef, attempt: &'a Attempt, leases: &'a [Lease]) -> &'a Moment {
    let key = lease_key(step);
    let row = leases.iter().find(|lease| lease.key == key && lease.fence == attempt.fence);
    row.map_or(&attempt.until, |lease| &lease.until)
}

/// Whether a step may be claimed now, given what was seen of its present holder.
pub fn claimable(
    run: &Run,
    step: &StepRef,
    sighting: &Sighting,
    leases: &[Lease],
    now: &Moment,
) -> Result<Granted, Refusal> {
    let id = &step.step;
    let index = run.index_of_ref(step).ok_or_else(|| Refusal::UnknownStep(id.clone()))?;
    let (plan, state) = (&run.plan().steps[index], run.step_at(index));
    if state.is_completed() {
        return Err(Refusal::Completed(id.clone()));
    }
    let grounds = match &state.phase {
        Phase::Held(attempt) => taken_over(step, attempt, sighting, leases, now)?,
        _ => Grounds::Free,
    };
    if run.stop.is_some() {
        return Err(Refusal::RunStopped);
    }
    let entry = entry_of(plan, state)?;
    if let Some((failed, _)) = run.failed_for_good() {
        return Err(Refusal::RunFailed(failed.id.clone()));
    }
    let needs = run.unmet(index);
    if !needs.is_empty() {
        return Err(Refusal::NeedsUnmet { step: id.clone(), needs });
    }
    match tree_user(run, id) {
        Some(by) => Err(Refusal::TreeBusy { by }),
        None => Ok(Granted { entry, grounds }),
    }
}

/// A held step can be taken over only from elsewhere, after its lease. On this host a live holder
/// keeps it whatever its lease says, and a dead one is buried first, so that its work is kept.
fn taken_over(
    step: &StepRef,
    attempt: &Attempt,
    sighting: &Sighting,
    leases: &[Lease],
    now: &Moment,
) -> Result<Grounds, Refusal> {
    let (id, fence): (StepId, Fence) = (step.step.clone(), attempt.fence);
    match sighting {
        Sighting::Alive => Err(Refusal::HeldAlive { step: id, fence }),
        Sighting::Dead(_) => Err(Refusal::HeldDead { step: id, fence }),
        Sighting::Elsewhere => {
            let until = believed_until(step, attempt, leases);
            if until.is_over(now) {
                Ok(Grounds::LeaseOver)
            } else {
                Err(Refusal::HeldElsewhere { step: id, fence, until: until.clone() })
            }
        }
    }
}

/// Where the next attempt enters, or why there is none.
fn entry_of(plan: &PlanStep, state: &Step) -> Result<Entry, Refusal> {
    match &state.phase {
        Phase::Pending => Ok(Entry::Fresh),
        Phase::Held(lost) => Ok(match state.stage(lost) {
            Stage::Land => Entry::Land,
            Stage::Verify => Entry::Verify,
            Stage::Agent | Stage::Unstarted => state.agent_entry(&plan.work),
        }),
        Phase::Failed { .. } if state.failures > plan.retries => {
            Err(Refusal::RetriesUsed(plan.id.clone()))
        }
        Phase::Failed { why: Failure::Landing { .. }, .. } => Ok(Entry::Fresh),
        Phase::Failed { .. } => Ok(state.agent_entry(&plan.work)),
        Phase::Interrupted(last) if last.held_back => Err(Refusal::StepStopped(plan.id.clone())),
        Phase::Interrupted(last) if state.idle >= IDLE_INTERRUPTIONS_MAX => {
            let why = format!("{}: {}", last.cause, last.evidence);
            Err(Refusal::NeedsPerson { step: plan.id.clone(), times: state.idle, why })
        }
        Phase::Interrupted(last) => Ok(match last.left_at {
            Stage::Land => Entry::Land,
            Stage::Verify => Entry::Verify,
            Stage::Agent | Stage::Unstarted => state.agent_entry(&plan.work),
        }),
        Phase::Completed { .. } => Err(Refusal::Completed(plan.id.clone())),
    }
}

/// With one worktree for the run, an open claim on any other step has it.
fn tree_user(run: &Run, but: &StepId) -> Option<StepId> {
    run.held().map(|(step, _)| step.step).find(|step| step != but)
}
