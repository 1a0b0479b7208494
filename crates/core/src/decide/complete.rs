//! When a step is done: nothing open, nothing awaited, and a commit that landed where there is one.

use super::{clipped, last_word, nothing, own};
use crate::decided::Decided;
use crate::event::{Event, Holder, Waived};
use crate::ids::{Fence, Oid, StepRef};
use crate::question::{Question, QuestionState};
use crate::refusal::Refusal;
use crate::run::{Phase, Run, Step};
use crate::time::Moment;

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

pub(super) fn verified<'run>(
    run: &'run Run,
    step: &StepRef,
    fence: Fence,
) -> Result<&'run Step, Refusal> {
    let (state, _) = own(run, step, fence)?;
    match state.verified {
        Some(_) => Ok(state),
        None => Err(Refusal::NotVerified { step: step.step.clone() }),
    }
}

/// Completing twice under the same fence is harmless; nothing else completes a completed step.
pub(super) fn decide_complete(
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
pub(super) fn nothing_open(run: &Run, step: &StepRef, state: &Step) -> Result<(), Refusal> {
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
pub(super) fn nothing_awaited(
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
