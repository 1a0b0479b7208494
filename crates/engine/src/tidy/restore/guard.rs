//! What stands against putting a snapshot back: whoever works there, and edits that no snapshot has.

use piton_core::claim::believed_until;
use piton_core::event::SnapshotReason;
use piton_core::ids::{Oid, StepRef};
use piton_core::observed::Sighting;
use piton_core::run::Attempt;
use piton_git::snapshot;
use piton_git::worktree::Worktree;

use crate::attempt::bury::bury_dead;
use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::observe::{Depth, observe, refuse_unknown};
use crate::run::snapshot_history::{KnownSnapshot, attempt_place};

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
            Err(EngineError::OtherHost { .. } | EngineError::NoOwnTree { .. }) => continue,
            place => place?,
        };
        if Worktree::at(&project.git, &place).path() != tree.path() {
            continue;
        }
        let observed = observe(project, log, Depth::Locks);
        refuse_unknown(project, log, &observed)?;
        match observed.of(attempt.id) {
            Sighting::Dead(_) => dead.push(step),
            Sighting::Elsewhere if is_lapsed(log, &step, &attempt)? => {}
            Sighting::Alive | Sighting::Unknown(_) | Sighting::Elsewhere => {
                let (handle, path) = (log.run().opened.handle.clone(), tree.path().to_owned());
                return Err(EngineError::TreeInUse { handle, step, path });
            }
        }
    }
    for (step, burial) in bury_dead(project, log, &dead)? {
        if !burial.swept.survivors.is_empty() {
            let (handle, path) = (log.run().opened.handle.clone(), tree.path().to_owned());
            return Err(EngineError::TreeInUse { handle, step, path });
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
    let edited: Vec<String> = edited.map(|path| piton_git::repo::names::shown(path)).collect();
    match edited.is_empty() {
        true => Ok(()),
        false => Err(EngineError::NewerEdits { paths: edited }),
    }
}
