//! When a step is done: nothing open, nothing awaited, and a commit that landed where there is one.

use super::loops::settled;
use super::{Held, clipped, is_unaware, own};
use crate::decided::Decided;
use crate::event::{Check, Fact, Stage, Under, Waived};
use crate::ids::Oid;
use crate::question::{Question, QuestionState};
use crate::refusal::Refusal;
use crate::run::{Lacks, Phase, Run, VerifiedCommit};
use crate::time::Moment;

/// Whether a holder outside could complete a step now: asked before anything of it is verified or
/// landed. Keepers complete what they run themselves.
pub fn completable(run: &Run, under: &Under, waive: Option<&str>) -> Result<(), Refusal> {
    let held = own(run, under)?;
    if held.is_kept() {
        return Err(Refusal::NotVerified { step: held.id() });
    }
    if waive.is_some() {
        return Ok(());
    }
    nothing_awaited(&held, |asked| asked.is_to_restart())?;
    nothing_open(&held)
}

/// Where a claim was completed already: whether it was with this commit, so that saying it again is
/// harmless. What it landed with is another one where others had landed meanwhile.
pub fn completed_with(run: &Run, under: &Under, commit: &Oid) -> Option<Result<(), Refusal>> {
    let (_, state) = run.step(&under.step)?;
    let Phase::Completed { commit: landed, fence: by, .. } = &state.phase else { return None };
    if *by != under.fence {
        return None;
    }
    let given = state.history.last().and_then(|past| past.attempt.trace.head.clone());
    let with = landed.as_ref().map(|landed| given.unwrap_or_else(|| landed.clone()));
    if [&with, landed].contains(&&Some(commit.clone())) {
        return Some(Ok(()));
    }
    let (step, commit) = (under.step.clone(), commit.clone());
    Some(Err(Refusal::CompletedOtherwise { step, commit, with }))
}

/// Why a step of another tool's plan is completed with a checklist that is open.
const UNMARKED: &str = "its agent did not mark them";

pub(super) fn verified<'a>(held: &Held<'a>) -> Result<&'a VerifiedCommit, Refusal> {
    held.state.verified().ok_or_else(|| Refusal::NotVerified { step: held.id() })
}

pub(super) fn decide_complete(
    held: &Held<'_>,
    commit: Option<&Oid>,
    waive: Option<&str>,
    now: &Moment,
) -> Result<Decided, Refusal> {
    match commit {
        Some(commit) => landed(held, commit)?,
        None if held.is_kept() => return Err(Refusal::NotVerified { step: held.id() }),
        None => {}
    }
    let awaited = match held.is_kept() {
        // Looked at before it was verified.
        true => Ok(()),
        // What else piton asked is settled by a commit that lands.
        false => nothing_awaited(held, |asked| asked.about.is_none() || asked.is_to_restart()),
    };
    let waived = match (awaited.and_then(|()| nothing_open(held)), waive) {
        (Ok(()), _) => None,
        (Err(_), Some(reason)) => Some(waived(held, reason)),
        (Err(_), None) if is_unaware(held) => Some(waived(held, UNMARKED)),
        (Err(open), None) => return Err(open),
    };
    let decided = held.last_word(Fact::Completed { commit: commit.cloned(), waived }, now);
    Ok(settled(held.run, &held.under.step, decided))
}

/// A keeper that has started nothing finds the work done.
pub(super) fn decide_found(
    held: &Held<'_>,
    check: Option<&Check>,
    now: &Moment,
) -> Result<Decided, Refusal> {
    if !held.is_kept() || held.state.stage(held.attempt) != Stage::Unstarted {
        return Err(Refusal::NothingToStart { step: held.id() });
    }
    let decided = held.last_word(Fact::FoundDone { check: check.cloned() }, now);
    Ok(if held.run.lacks_only(&held.under.step) { decided.freeing_key() } else { decided })
}

fn landed(held: &Held<'_>, commit: &Oid) -> Result<(), Refusal> {
    let VerifiedCommit { commit: verified, landing, .. } = verified(held)?;
    if verified == commit || landing.as_ref().is_some_and(|landing| landing.to == *commit) {
        return Ok(());
    }
    Err(Refusal::NotLanded { step: held.id(), commit: commit.clone() })
}

/// A step is done when every substep is completed, no item is open, and its outputs are what the plan says.
pub(super) fn nothing_open(held: &Held<'_>) -> Result<(), Refusal> {
    let substeps = held.state.checklist.open_substeps(held.plan);
    if !substeps.is_empty() {
        return Err(Refusal::OpenSubsteps { step: held.id(), substeps });
    }
    let items = held.state.checklist.open_items(held.plan);
    if !items.is_empty() {
        return Err(Refusal::OpenItems { step: held.id(), items });
    }
    let step = held.id();
    match held.state.lacks(held.plan) {
        None => Ok(()),
        Some(Lacks::Unpublished(outputs)) => Err(Refusal::OpenOutputs { step, outputs }),
        Some(Lacks::Short { output, value, bound }) => {
            Err(Refusal::OutputShort { step, output, value, bound })
        }
    }
}

/// What was asked has been answered, and who asked knows the answer.
pub(super) fn nothing_awaited(
    held: &Held<'_>,
    counts: impl Fn(&&Question) -> bool,
) -> Result<(), Refusal> {
    let mut asked = held.state.questions.iter().filter(counts);
    match asked.find(|question| question.is_open() || question.is_unread()) {
        None => Ok(()),
        Some(Question { id: question, state: QuestionState::Open, .. }) => {
            Err(Refusal::Unanswered { step: held.id(), question: *question })
        }
        Some(Question { id: question, .. }) => {
            Err(Refusal::AnswerUnread { step: held.id(), question: *question })
        }
    }
}

fn waived(held: &Held<'_>, reason: &str) -> Waived {
    let Held { plan, state, .. } = held;
    let awaited = state.questions.iter().filter(|asked| asked.is_open() || asked.is_unread());
    Waived {
        reason: clipped(reason),
        substeps: state.checklist.open_substeps(plan),
        items: state.checklist.open_items(plan),
        questions: awaited.map(|question| question.id).collect(),
        outputs: match state.lacks(plan) {
            None => Vec::new(),
            Some(Lacks::Unpublished(outputs)) => outputs,
            Some(Lacks::Short { output, .. }) => vec![output],
        },
    }
}
