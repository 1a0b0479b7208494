//! Writes under a claim: each names its fence, and whoever has lost it is told so. Bytes are kept before
//! the fact that speaks of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use piton_core::claim::believed_until;
use piton_core::decide::{Command, completable};
use piton_core::event::{Failure, Holder, Mark, Priority, Report, Snapshot};
use piton_core::ids::{Fence, ItemRef, QuestionId, StepId, StepRef, SubstepId};
use piton_core::question::Question;
use piton_core::refusal::Refusal;
use piton_core::time::Millis;
use piton_store::Renewal;
use serde::Serialize;

use super::{lost, place_of};
use crate::error::EngineError;
use crate::lease;
use crate::log::{Log, LogError};
use crate::outside_snapshots::{self, Kept};
use crate::project::Project;
use crate::runs::settings_of;

/// What a heartbeat answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pulse {
    Continue,
    StopRequested,
    /// Nobody took the step, and others have its slot in a lock or its worktree: the lease stays over.
    Lapsed,
    Fenced,
}

/// Writes under a claim. Whoever lost theirs is told so, also where the step has ended since.
pub(crate) fn submit(
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    command: &Command,
) -> Result<(), EngineError> {
    match log.submit(command) {
        Ok(_) => Ok(()),
        Err(error) => Err(stale(log, step, fence, error.into())),
    }
}

/// What went wrong; where the claim is lost, how.
pub(crate) fn stale(log: &Log, step: &StepId, fence: Fence, error: EngineError) -> EngineError {
    match error.is_lost() {
        true => lost(log, step, fence).into(),
        false => error,
    }
}

/// Says that the work has begun; tells the answers to what was asked at the step before.
pub fn start(log: &mut Log, step: &StepId, fence: Fence) -> Result<Vec<Question>, EngineError> {
    let at = StepRef::first(step.clone());
    let unread = log.run().step(step).map(|(_, state)| state.unread_answers());
    let told: Vec<QuestionId> = unread.into_iter().flatten().map(|asked| asked.id).collect();
    let (base, answers, pid) = (None, told.clone(), None);
    submit(log, step, fence, &Command::Start { step: at, fence, base, answers, pid })?;
    let (_, state) = log.run().step(step).expect("it was just started");
    Ok(state.questions.iter().filter(|asked| told.contains(&asked.id)).cloned().collect())
}

/// Moves the lease, by as much as it was claimed for unless told; appends nothing. A lapsed claim
/// that nobody took is renewed. Answers with what the lease is, whatever was asked for: one that has
/// longer to go stays, and one whose slot in a lock or whose worktree went to others is over.
pub fn heartbeat(
    project: &Project,
    log: &mut Log,
    (step, fence): (&StepId, Fence),
    length: Option<Duration>,
) -> Result<(Pulse, Millis), EngineError> {
    log.refresh()?;
    let held = log.run().step(step).and_then(|(_, state)| state.attempt());
    let length = length.unwrap_or_else(|| held.map_or(Duration::ZERO, lease::length));
    let step_ref = StepRef::first(step.clone());
    let run = log.run().opened.run;
    let (renewed, until) = lease::renew(&**log.store(), run, (&step_ref, fence), length)?;
    match renewed {
        Renewal::Renewed => drop(log.refresh()?),
        // The row may be missing, and the claim still be ours: then a new one is written, unless the
        // claim's slot in a lock, or its worktree, went to others.
        Renewal::NotRenewed => {
            let until = until.clone();
            let held = log.run().step(step).and_then(|(_, state)| state.attempt());
            let place = held.and_then(|held| place_of(project, log, &held.holder));
            let renew = Command::Renew { step: step_ref.clone(), fence, until, place };
            match log.submit(&renew) {
                Ok(_) | Err(LogError::Refused(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    let (_, state) = log.run().step(step).ok_or_else(|| Refusal::UnknownStep(step.clone()))?;
    let Some(attempt) = state.attempt().filter(|attempt| attempt.fence == fence) else {
        return Ok((Pulse::Fenced, log.now()?.wall));
    };
    let until = match renewed {
        Renewal::Renewed => until,
        Renewal::NotRenewed => {
            let leases = log.store().leases(log.run().opened.run)?;
            believed_until(&step_ref, attempt, &leases).clone()
        }
    };
    let beat = match log.run().stop_for(attempt) {
        Some(_) => Pulse::StopRequested,
        None if until.is_over(&log.now()?) => Pulse::Lapsed,
        None => Pulse::Continue,
    };
    Ok((beat, until.wall))
}

/// Keeps the worktree's bytes, where it is one of this repository, and records the report.
pub fn checkpoint(
    project: &Project,
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    report: Report,
) -> Result<Option<Snapshot>, EngineError> {
    let at = StepRef::first(step.clone());
    let held = log.run().held().find(|(held, attempt)| *held == at && attempt.fence == fence);
    let root = settings_of(log)?.worktree_root;
    let place = held.and_then(|(_, attempt)| project.place_of(&root, log.run(), attempt));
    let keep = |path: PathBuf| {
        outside_snapshots::at_checkpoint(project, log, (&at, fence), &path, &report)
    };
    let snapshot = place.map(keep).transpose()?.flatten();
    let report = (report != Report::default()).then(|| Box::new(report));
    let kept = snapshot.clone();
    submit(log, step, fence, &Command::Checkpoint { step: at, fence, snapshot, report })?;
    Ok(kept)
}

/// Why a checkpoint of the step's holder keeps no bytes.
pub fn why_unkept(project: &Project, log: &Log, step: &StepId) -> String {
    let held = log.run().step(step).and_then(|(_, state)| state.attempt());
    match held.map(|attempt| &attempt.holder) {
        Some(Holder::External { host, .. }) if *host != project.host => {
            "it was claimed on another host".to_owned()
        }
        Some(Holder::External { worktree, .. }) if !Path::new(worktree).exists() => {
            format!("its worktree {worktree} is not there any more")
        }
        Some(Holder::External { worktree, .. }) => {
            format!("{worktree} is not a worktree of this repository")
        }
        Some(Holder::Keeper { .. }) | None => "its worktree is not there".to_owned(),
    }
}

/// Says that a substep is done.
pub fn complete_substep(
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    substep: SubstepId,
) -> Result<(), EngineError> {
    let at = StepRef::first(step.clone());
    submit(log, step, fence, &Command::CompleteSubstep { step: at, fence, substep })
}

/// Says what became of items.
pub fn mark_items(
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    items: Vec<ItemRef>,
    mark: Mark,
) -> Result<(), EngineError> {
    let at = StepRef::first(step.clone());
    submit(log, step, fence, &Command::MarkItems { step: at, fence, items, mark })
}

/// Adds a gap; answers with the number it can be checked by.
pub fn add_item(
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    text: String,
    priority: Priority,
) -> Result<ItemRef, EngineError> {
    let at = StepRef::first(step.clone());
    submit(log, step, fence, &Command::AddItem { step: at, fence, text, priority })?;
    let (plan, state) = log.run().step(step).expect("it was just written to");
    let own = plan.items.len() + state.checklist.added.len();
    Ok(ItemRef::new(None, u32::try_from(own).unwrap_or(u32::MAX)))
}

/// Completes a step without a commit: nothing lands, and nobody but the holder has seen it done.
pub fn complete(
    project: &Project,
    log: &mut Log,
    (step, fence): (&StepId, Fence),
    waive: Option<String>,
) -> Result<Kept, EngineError> {
    let at = StepRef::first(step.clone());
    let kept = match completable(log.run(), &at, fence, waive.as_deref()) {
        Ok(()) => keep_own(project, log, step, fence),
        // Whether that is still so is decided with the newest state.
        Err(_) => Kept::default(),
    };
    submit(log, step, fence, &Command::Complete { step: at, fence, commit: None, waive })?;
    Ok(kept)
}

/// Says that the attempt failed.
pub fn fail(
    project: &Project,
    log: &mut Log,
    (step, fence): (&StepId, Fence),
    reason: String,
) -> Result<Kept, EngineError> {
    let (at, why) = (StepRef::first(step.clone()), Failure::Reported { reason });
    let kept = keep_own(project, log, step, fence);
    submit(log, step, fence, &Command::Fail { step: at, fence, why })?;
    Ok(kept)
}

/// Keeps the bytes of a claim that is about to end, if it is open.
fn keep_own(project: &Project, log: &mut Log, step: &StepId, fence: Fence) -> Kept {
    let held = log.run().step(step).and_then(|(_, state)| state.attempt());
    match held.filter(|attempt| attempt.fence == fence).cloned() {
        Some(attempt) => outside_snapshots::before_end(
            project,
            log,
            (&StepRef::first(step.clone()), &attempt),
            None,
        ),
        None => Kept::default(),
    }
}
