//! Where the next attempt at a step enters, or why there is none. The machine is not looked at; where the
//! step's work is, the caller says.

use super::{Phase, Step};
use crate::event::{Entry, Stage};
use crate::ids::StepRef;
use crate::plan::{OnInterrupt, PlanStep, REVIEW, Work};
use crate::question::Question;
use crate::refusal::Refusal;

/// Where the newest work of a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkIs {
    /// In the tree that the next attempt gets.
    Here,
    Elsewhere,
}

/// What an attempt would find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ground {
    pub(crate) work: WorkIs,
    /// The progress in percent, as reported, from which it is gone on with.
    pub(crate) enough: u8,
}

/// Where the next attempt enters, or why there is none.
pub(crate) fn entry_of(
    step: &StepRef,
    (plan, state): (&PlanStep, &Step),
    ground: Ground,
) -> Result<Entry, Refusal> {
    let entry = entry_by_phase(step, (plan, state), ground)?;
    match state.open_question() {
        None => Ok(entry),
        Some(Question { id: question, text, .. }) => {
            let (step, text) = (step.clone(), text.clone());
            Err(Refusal::QuestionOpen { step, question: *question, text })
        }
    }
}

fn entry_by_phase(
    step: &StepRef,
    (plan, state): (&PlanStep, &Step),
    ground: Ground,
) -> Result<Entry, Refusal> {
    let after = |stage| entry_after((plan, state), directed(state, stage, ground.work), ground);
    match &state.phase {
        Phase::Completed { .. } => Err(Refusal::Completed(step.clone())),
        Phase::Skipped { .. } => Err(Refusal::Skipped(step.clone())),
        Phase::Failed { .. } if state.tries_left(plan) == 0 => {
            Err(Refusal::RetriesUsed(step.clone()))
        }
        _ if state.is_stopped() => Err(Refusal::StepStopped(step.clone())),
        // Its agent had ended: it waited only for what becomes of the commit.
        Phase::Suspended { .. } if state.lands_again() => Ok(after(Stage::Land)),
        // Pending again after a release, perhaps: what was done stays.
        Phase::Pending { .. } | Phase::Suspended { .. } => {
            Ok(state.work_entry(plan, ground.enough))
        }
        // The agent was not cut off: it ended by itself.
        Phase::Parked { .. } => Ok(state.agent_entry(&plan.work, ground.enough)),
        Phase::Held { attempt: lost, .. } => Ok(after(state.stage(lost))),
        Phase::Failed { .. } => Ok(state.work_entry(plan, ground.enough)),
        Phase::Interrupted { last, .. } if state.is_obstructed() => {
            Err(Refusal::Obstructed { step: step.clone(), why: last.evidence.clone() })
        }
        Phase::Interrupted { last, .. } => Ok(after(last.left_at)),
    }
}

/// Where a person's answer sends an attempt that was at this stage: to look at the commit anew, because
/// somebody has worked on it meanwhile, or back to the beginning. What was committed elsewhere is not where a
/// keeper would look: that one begins with the work.
fn directed(state: &Step, stage: Stage, work: WorkIs) -> Stage {
    match stage {
        Stage::Land if state.lands_again() || state.goes_on_in_tree() => match work {
            WorkIs::Here => Stage::Verify,
            WorkIs::Elsewhere => Stage::Agent,
        },
        Stage::Land | Stage::Verify if state.directions().any(Question::is_to_restart) => {
            Stage::Agent
        }
        stage => stage,
    }
}

/// Nothing lands that could not be completed: a commit may have been verified outside, or a gap found
/// since, while parts of the step were open. And an answer that nobody was told is for the agent.
fn entry_after((plan, state): (&PlanStep, &Step), stage: Stage, ground: Ground) -> Entry {
    let told = matches!(plan.work, Work::Run(_)) || state.untold().next().is_none();
    match stage {
        _ if !told => state.work_entry(plan, ground.enough),
        Stage::Land if state.checklist.is_done(plan) && state.lacks(plan).is_none() => Entry::Land,
        Stage::Verify => Entry::Verify,
        Stage::Agent if ground.work == WorkIs::Here && has_said_all(plan, state) => Entry::Verify,
        Stage::Land | Stage::Agent | Stage::Unstarted => state.work_entry(plan, ground.enough),
    }
}

/// Whether a person has yet to be asked before piton starts again what was cut off.
pub(crate) fn asks_first(plan: &PlanStep, state: &Step) -> bool {
    let told = state.directions().next().is_some();
    plan.on_interrupt == Some(OnInterrupt::Ask) && state.died_mid_work() && !told
}

/// Whether a review that was cut off had published all that it is for: it is not repeated.
fn has_said_all(plan: &PlanStep, state: &Step) -> bool {
    plan.kind() == REVIEW
        && plan.on_interrupt.is_none()
        && !plan.outputs.is_empty()
        && state.lacks(plan).is_none()
        && state.checklist.is_done(plan)
}
