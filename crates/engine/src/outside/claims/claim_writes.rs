//! Writes under a claim: each names its fence, and whoever has lost it is told so. Bytes are kept before
//! the fact that speaks of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use piton_core::claim::believed_until;
use piton_core::decide::{Command, Request, completable};
use piton_core::event::{Failure, Holder, Mark, Priority, Report, Snapshot, Under};
use piton_core::ids::{ItemRef, QuestionId, StepRef, SubstepId};
use piton_core::question::Question;
use piton_core::refusal::Refusal;
use piton_core::time::Millis;
use piton_store::Renewal;
use serde::Serialize;

use super::{lost, place_of};
use crate::attempt::lease;
use crate::error::EngineError;
use crate::error::LogError;
use crate::outside::outside_snapshots::{self, Kept};
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;

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
pub(crate) fn submit(log: &mut Log, under: &Under, request: Request) -> Result<(), EngineError> {
    match log.submit(&Command::Under(under.clone(), request)) {
        Ok(_) => Ok(()),
        Err(error) => Err(stale(log, under, error.into())),
    }
}

/// What went wrong; where the claim is lost, how.
pub(crate) fn stale(log: &Log, under: &Under, error: EngineError) -> EngineError {
    match error.is_lost() {
        true => lost(log, under).into(),
        false => error,
    }
}

/// Says that the work has begun; tells the answers to what was asked at the step before.
pub fn start(log: &mut Log, under: &Under) -> Result<Vec<Question>, EngineError> {
    let unread = log.run().step(&under.step).map(|(_, state)| state.unread_answers());
    let told: Vec<QuestionId> = unread.into_iter().flatten().map(|asked| asked.id).collect();
    submit(log, under, Request::Start { base: None, answers: told.clone(), pid: None })?;
    let (_, state) = log.run().step(&under.step).expect("it was just started");
    Ok(state.questions.iter().filter(|asked| told.contains(&asked.id)).cloned().collect())
}

/// Moves the lease, by as much as it was claimed for unless told; appends nothing. A lapsed claim
/// that nobody took is renewed. Answers with what the lease is, whatever was asked for: one that has
/// longer to go stays, and one whose slot in a lock or whose worktree went to others is over.
pub fn heartbeat(
    project: &Project,
    log: &mut Log,
    under: &Under,
    length: Option<Duration>,
) -> Result<(Pulse, Millis), EngineError> {
    let Under { step, fence } = under;
    log.refresh()?;
    let held = log.run().step(step).and_then(|(_, state)| state.attempt());
    let length = length.unwrap_or_else(|| held.map_or(Duration::ZERO, lease::length));
    let run = log.run().opened.run;
    let (renewed, until) = lease::renew(&**log.store(), run, under, length)?;
    match renewed {
        Renewal::Renewed => drop(log.refresh()?),
        // The row may be missing, and the claim still be ours: then a new one is written, unless the
        // claim's slot in a lock, or its worktree, went to others.
        Renewal::NotRenewed => {
            let until = until.clone();
            let held = log.run().step(step).and_then(|(_, state)| state.attempt());
            let place = held.and_then(|held| place_of(project, log, &held.holder));
            match log.submit(&Command::Under(under.clone(), Request::Renew { until, place })) {
                Ok(_) | Err(LogError::Refused(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    let (_, state) = log.run().step(step).ok_or_else(|| Refusal::UnknownStep(step.clone()))?;
    let Some(attempt) = state.attempt().filter(|attempt| attempt.fence == *fence) else {
        return Ok((Pulse::Fenced, log.now()?.wall));
    };
    let until = match renewed {
        Renewal::Renewed => until,
        Renewal::NotRenewed => {
            let leases = log.store().leases(log.run().opened.run)?;
            believed_until(step, attempt, &leases).clone()
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
    under: &Under,
    report: Report,
) -> Result<Option<Snapshot>, EngineError> {
    let Under { step, fence } = under;
    let held = log.run().held().find(|(held, attempt)| held == step && attempt.fence == *fence);
    let root = settings_of(log)?.worktree_root;
    let place = held.and_then(|(_, attempt)| project.place_of(&root, log.run(), attempt));
    let keep = |path: PathBuf| {
        outside_snapshots::at_checkpoint(project, log, (step, *fence), &path, &report)
    };
    let snapshot = place.map(keep).transpose()?.flatten();
    let report = (report != Report::default()).then(|| Box::new(report));
    submit(log, under, Request::Checkpoint { snapshot: snapshot.clone(), report })?;
    Ok(snapshot)
}

/// Why a checkpoint of the step's holder keeps no bytes.
pub fn why_unkept(project: &Project, log: &Log, step: &StepRef) -> String {
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
    under: &Under,
    substep: SubstepId,
) -> Result<(), EngineError> {
    submit(log, under, Request::CompleteSubstep { substep })
}

/// Says what became of items.
pub fn mark_items(
    log: &mut Log,
    under: &Under,
    items: Vec<ItemRef>,
    mark: Mark,
) -> Result<(), EngineError> {
    submit(log, under, Request::MarkItems { items, mark })
}

/// Adds a gap; answers with the number it can be checked by.
pub fn add_item(
    log: &mut Log,
    under: &Under,
    text: String,
    priority: Priority,
) -> Result<ItemRef, EngineError> {
    submit(log, under, Request::AddItem { text, priority })?;
    let (plan, state) = log.run().step(&under.step).expect("it was just written to");
    let own = plan.items.len() + state.checklist.added.len();
    Ok(ItemRef::new(None, u32::try_from(own).unwrap_or(u32::MAX)))
}

/// Completes a step without a commit: nothing lands, and nobody but the holder has seen it done.
pub fn complete(
    project: &Project,
    log: &mut Log,
    under: &Under,
    waive: Option<String>,
) -> Result<Kept, EngineError> {
    let kept = match completable(log.run(), under, waive.as_deref()) {
        Ok(()) => keep_own(project, log, under),
        // Whether that is still so is decided with the newest state.
        Err(_) => Kept::default(),
    };
    submit(log, under, Request::Complete { commit: None, waive })?;
    Ok(kept)
}

/// Says that the attempt failed.
pub fn fail(
    project: &Project,
    log: &mut Log,
    under: &Under,
    reason: String,
) -> Result<Kept, EngineError> {
    let kept = keep_own(project, log, under);
    submit(log, under, Request::Fail { why: Failure::Reported { reason } })?;
    Ok(kept)
}

/// Keeps the bytes of a claim that is about to end, if it is open.
fn keep_own(project: &Project, log: &mut Log, under: &Under) -> Kept {
    let held = log.run().step(&under.step).and_then(|(_, state)| state.attempt());
    match held.filter(|attempt| attempt.fence == under.fence).cloned() {
        Some(attempt) => outside_snapshots::before_end(project, log, (&under.step, &attempt), None),
        None => Kept::default(),
    }
}
