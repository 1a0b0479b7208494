//! What a person asks of a step that does not go on by itself: to be tried again in its tree, to be left
//! out, or to begin again from its base.

use super::loops::settled;
use super::{clipped, nothing, one};
use crate::decided::Decided;
use crate::event::{Event, Found, FoundState};
use crate::ids::{HostId, StepRef};
use crate::question::Question;
use crate::refusal::Refusal;
use crate::run::{Phase, Run};

/// All of them, or none.
pub(super) fn decide_retry(
    run: &Run,
    steps: &[StepRef],
    host: &HostId,
) -> Result<Decided, Refusal> {
    let retried = |step: &StepRef| {
        retryable(run, step)?;
        Ok(Event::Retried { step: step.clone(), host: host.clone() })
    };
    Ok(Decided::new(steps.iter().map(retried).collect::<Result<_, _>>()?))
}

/// Whether a step can be taken up again.
pub(super) fn retryable(run: &Run, step: &StepRef) -> Result<(), Refusal> {
    let id = || step.clone();
    let (_, state) = run.step(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    match &state.phase {
        Phase::Held { .. } => return Err(Refusal::StillHeld(id())),
        Phase::Completed { .. } => return Err(Refusal::Completed(id())),
        Phase::Skipped { .. } => return Err(Refusal::Skipped(id())),
        _ if !state.was_attempted() => return Err(Refusal::NotAttempted(id())),
        _ => {}
    }
    // How it goes on after a conflict, and what its agent asked, is said by an answer.
    let goes_without =
        |asked: &Question| asked.about.is_some() && !matches!(state.phase, Phase::Suspended { .. });
    match state.open_question().filter(|asked| !goes_without(asked)) {
        Some(asked) => {
            let (question, text) = (asked.id, asked.text.clone());
            Err(Refusal::QuestionOpen { step: id(), question, text })
        }
        None => Ok(()),
    }
}

/// A step that somebody has cannot be found done: its holder says so itself.
pub(super) fn decide_find(run: &Run, step: &StepRef) -> Result<Decided, Refusal> {
    let id = || step.clone();
    let (_, state) = run.step(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    match &state.phase {
        Phase::Held { .. } => return Err(Refusal::StillHeld(id())),
        Phase::Completed { .. } => return Ok(nothing()),
        Phase::Skipped { .. } => return Err(Refusal::Skipped(id())),
        Phase::Pending { .. }
        | Phase::Failed { .. }
        | Phase::Interrupted { .. }
        | Phase::Parked { .. }
        | Phase::Suspended { .. } => {}
    }
    let found = Found::new(id(), FoundState::Completed { commit: None });
    Ok(settled(run, step, one(Event::Found(found))))
}

pub(super) fn decide_skip(
    run: &Run,
    step: &StepRef,
    reason: &str,
    host: &HostId,
) -> Result<Decided, Refusal> {
    let id = || step.clone();
    let (_, state) = run.step(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    match &state.phase {
        Phase::Held { .. } => return Err(Refusal::StillHeld(id())),
        Phase::Completed { .. } => return Err(Refusal::Completed(id())),
        Phase::Skipped { .. } => return Ok(nothing()),
        Phase::Pending { .. }
        | Phase::Failed { .. }
        | Phase::Interrupted { .. }
        | Phase::Parked { .. }
        | Phase::Suspended { .. } => {}
    }
    let (reason, host) = (clipped(reason), host.clone());
    Ok(settled(run, step, one(Event::Skipped { step: id(), reason, host })))
}

pub(super) fn decide_reset(
    run: &Run,
    step: &StepRef,
    reason: Option<&str>,
) -> Result<Decided, Refusal> {
    let id = || step.clone();
    let (_, state) = run.step(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    match &state.phase {
        Phase::Pending { .. } if state.is_at_base() => return Ok(nothing()),
        Phase::Held { .. } => return Err(Refusal::StillHeld(id())),
        _ if run.index_of(step).is_none() => return Err(Refusal::Completed(id())),
        Phase::Completed { .. } if reason.is_none() => return Err(Refusal::ResetNeedsReason(id())),
        // Its key is free: another run of the plan may have it.
        _ if state.is_done() && run.is_completed() => return Err(Refusal::RunCompleted),
        // Given back, perhaps, under a stop or after a failure.
        Phase::Pending { .. }
        | Phase::Completed { .. }
        | Phase::Skipped { .. }
        | Phase::Failed { .. }
        | Phase::Interrupted { .. }
        | Phase::Parked { .. }
        | Phase::Suspended { .. } => {}
    }
    let reason = reason.map(clipped);
    Ok(one(Event::Reset { step: step.clone(), reason }))
}
