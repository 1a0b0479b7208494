//! What stands against putting a snapshot back: whoever works there, another step's work, and edits that no
//! snapshot has.

use piton_core::claim::believed_until;
use piton_core::event::SnapshotReason;
use piton_core::ids::{Fence, Oid, StepId, StepRef};
use piton_core::observed::Sighting;
use piton_core::run::{Attempt, Step};
use piton_core::view::step_branch;

use super::{KnownSnapshot, attempt_place, last_fence};
use crate::bury::bury_dead;
use crate::error::EngineError;
use crate::log::Log;
use crate::observe::{Depth, observe};
use crate::project::Project;
use crate::snapshot;
use crate::worktree::{Tenant, Worktree};

/// Whoever works there is not disturbed; what is dead is buried first.
pub(super) fn refuse_in_use(
    project: &Project,
    log: &mut Log,
    tree: &Worktree,
) -> Result<(), EngineError> {
    log.refresh()?;
    let held: Vec<(StepRef, Attempt)> =
        log.run().held().map(|(step, attempt)| (step, attempt.clone())).collect();
    let mut dead = Vec::new();
    for (step, attempt) in held {
        let place = match attempt_place(project, log, &step, Some(&attempt)) {
            Err(EngineError::OtherHost { .. }) => continue,
            place => place?,
        };
        if Worktree::at(&project.git, &place).path() != tree.path() {
            continue;
        }
        match observe(project, log, Depth::Locks).of(attempt.id) {
            Sighting::Dead(_) => dead.push(step),
            Sighting::Elsewhere if is_lapsed(log, &step, &attempt)? => {}
            Sighting::Alive | Sighting::Elsewhere => {
                let (handle, path) = (log.run().opened.handle.clone(), tree.path().to_owned());
                return Err(EngineError::TreeInUse { handle, step: step.step, path });
            }
        }
    }
    for (step, burial) in bury_dead(project, log, &dead)? {
        if !burial.swept.survivors.is_empty() {
            let (handle, path) = (log.run().opened.handle.clone(), tree.path().to_owned());
            return Err(EngineError::TreeInUse { handle, step: step.step, path });
        }
    }
    Ok(())
}

/// A holder outside is believed until its lease is over.
fn is_lapsed(log: &Log, step: &StepRef, attempt: &Attempt) -> Result<bool, EngineError> {
    let leases = log.store().leases(log.run().opened.run)?;
    let now = log.now()?;
    Ok(believed_until(step, attempt, &leases).is_over(&now))
}

/// Another step's work that is in the run's worktree: by the mark of whose it is; where nobody has
/// marked it, by the branch.
pub(super) fn others_work(
    log: &Log,
    step: &StepRef,
    tree: &Worktree,
    on: Option<&str>,
) -> Option<Tenant> {
    let opened = &log.run().opened;
    let marked = tree.left_by().filter(|tenant| tenant.run == opened.run);
    let is_on = |other: &StepRef| on == Some(&step_branch(&opened.handle, other));
    let by_branch = || {
        let steps = log.run().plan().steps.iter().map(|plan| StepRef::first(plan.id.clone()));
        let found = steps.into_iter().find(is_on)?;
        let fence = last_fence(log, &found).unwrap_or(Fence(0));
        Some(Tenant { run: opened.run, step: found, fence })
    };
    let whose = marked.or_else(by_branch);
    whose.filter(|tenant| tenant.step != *step && log.run().step(&tenant.step.step).is_some())
}

/// The run's worktree may have the unfinished work of another step in it, which goes on from there; the
/// step that has it and is done, where there is one.
pub(super) fn refuse_others_work(
    log: &Log,
    kept: &KnownSnapshot,
    tree: &Worktree,
    on: Option<&str>,
) -> Result<Option<Tenant>, EngineError> {
    let Some(other) = others_work(log, &kept.step, tree, on) else { return Ok(None) };
    let state = log.run().step(&other.step.step).map(|(_, state)| state);
    match state.is_some_and(Step::is_completed) {
        true => Ok(Some(other)),
        false => Err(of_other(log, kept, &other.step.step)),
    }
}

pub(super) fn of_other(log: &Log, kept: &KnownSnapshot, other: &StepId) -> EngineError {
    let (handle, step) = (log.run().opened.handle.clone(), kept.step.step.clone());
    EngineError::TreeOfOther { handle, step, other: other.clone() }
}

/// Whether it was taken while an attempt lived. One that was taken afterwards has what people did since,
/// too, and nobody has decided about that by finding the attempt dead.
pub(super) fn is_of_work(kept: &KnownSnapshot) -> bool {
    match kept.reason {
        Some(SnapshotReason::Cadence | SnapshotReason::Checkpoint | SnapshotReason::End) => true,
        Some(SnapshotReason::Recovery | SnapshotReason::Reset) | None => false,
    }
}

/// What somebody did since the known snapshots is theirs to decide about.
pub(super) fn refuse_newer_edits(
    tree: &Worktree,
    known: &[&KnownSnapshot],
    kept: &KnownSnapshot,
    paths: &[Vec<u8>],
) -> Result<(), EngineError> {
    let own = known.iter().rev().filter(|other| other.step == kept.step);
    let known: Vec<Oid> = own.map(|other| other.commit.clone()).collect();
    let edited = snapshot::unkept_edits(tree, &kept.commit, &known)?;
    let edited = edited.iter().filter(|path| snapshot::is_meant(path, paths));
    let edited: Vec<String> = edited.map(|path| crate::git::names::shown(path)).collect();
    match edited.is_empty() {
        true => Ok(()),
        false => Err(EngineError::NewerEdits { paths: edited }),
    }
}
