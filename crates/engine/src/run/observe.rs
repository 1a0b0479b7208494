//! Looks at the machine and records nothing: which attempts live, and what is left of the dead. Takes
//! no git lock and writes no file, so that looking verbs can use it anywhere.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use piton_core::claim::believed_until;
use piton_core::event::{Cause, Holder};
use piton_core::ids::{RunId, StepRef, TreeNo};
use piton_core::observed::{Corpse, Observed, Sighting};
use piton_core::run::{Attempt, Run};
use piton_core::time::Millis;
use piton_core::view::{
    AtRisk, RunView, SnapshotView, StepStatus, StepView, UnknownRisk, WorkAtRisk, step_branch, view,
};
use piton_git::snapshot::{MovedOut, moved_out};
use piton_git::worktree::{Worktree, differing};

use crate::error::EngineError;
use crate::folder::{Folder, Lock, probe};
use crate::machine;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;
use crate::run::snapshot_history::{KnownSnapshot, unrecorded};
use crate::run::write_back::changed_by_hand;

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Kernel locks and records only.
    Locks,
    /// Also what dead attempts kept that the log does not name: git is asked for each.
    Refs,
    /// Also how many files the worktrees of dead attempts have changed.
    Trees,
}

/// What is seen of the open attempts of a run as this log has it. A free lock proves a death only while
/// nothing was appended since: else the attempt may have ended in the meantime, as it should.
pub fn observe(project: &Project, log: &Log, depth: Depth) -> Observed {
    let mut observed = sightings(project, log, log.run(), depth);
    if any_dead(&observed) && log.wait(Duration::ZERO).unwrap_or(false) {
        for sighting in observed.attempts.values_mut() {
            if let Sighting::Dead(_) = sighting {
                *sighting = Sighting::Alive;
            }
        }
    }
    observed
}

/// The view of a run as it stands now, with what was appended since the log was read where that
/// matters.
pub fn look(project: &Project, log: &Log, depth: Depth) -> Result<RunView, EngineError> {
    let mut run = Cow::Borrowed(log.run());
    let observed = loop {
        let observed = sightings(project, log, &run, depth);
        if !any_dead(&observed) {
            break observed;
        }
        let newest = log.newest()?;
        if newest.cursor == run.cursor {
            break observed;
        }
        run = newest;
    };
    let leases = log.store().leases(run.opened.run)?;
    let now = log.now()?;
    let mut view = view(&run, &observed, &leases, &now);
    // Of one that is over, the file may be another run's.
    if !run.is_completed() && run.abandoned.is_none() {
        view.changed_by_hand = changed_by_hand(project, &run);
    }
    for (step, attempt) in run.held() {
        let signs = project.folder(attempt.id).signs();
        let active = signs.iter().filter_map(|path| machine::modified(path)).max();
        view.active_at = active.into_iter().fold(view.active_at, Millis::max);
        if let Some(shown) = view.steps.iter_mut().find(|shown| shown.step == step) {
            shown.at_risk = at_risk(project, (shown, attempt), now.wall);
            if depth != Depth::Locks && matches!(shown.status, StepStatus::Interrupted { .. }) {
                found_by_ref(project, log, (&step, attempt), shown);
            }
        }
    }
    Ok(view)
}

/// Adds what was moved out of the worktrees of attempts, for which each one's folder is opened.
pub fn look_into_folders(project: &Project, view: &mut RunView) {
    for shown in view.steps.iter_mut().flat_map(|shown| &mut shown.attempts) {
        let out = moved_out(&project.folder(shown.attempt).omitted());
        shown.moved_out = out.iter().map(MovedOut::shown).collect();
    }
}

/// A keeper that was killed between keeping bytes and telling the log has kept them all the same.
fn found_by_ref(
    project: &Project,
    log: &Log,
    (step, attempt): (&StepRef, &Attempt),
    shown: &mut StepView,
) {
    let recorded = shown.snapshot.as_ref().map(|kept| kept.refname.as_str());
    // Looking goes on without it: the log's own snapshot is shown.
    if let Ok(Some(found)) = unrecorded(project, log, (step, attempt.fence), recorded) {
        let KnownSnapshot { commit, refname, at, changed, omitted, .. } = found;
        shown.snapshot = Some(SnapshotView { commit, refname, at, changed, omitted });
    }
}

/// Since when no snapshot has the work of a held step, as far as its holder has said.
fn at_risk(
    project: &Project,
    (shown, attempt): (&StepView, &Attempt),
    now: Millis,
) -> Option<WorkAtRisk> {
    if !matches!(shown.status, StepStatus::Running { .. } | StepStatus::Interrupted { .. }) {
        return None;
    }
    if project.folder(attempt.id).read_exit().is_some() {
        // Its agent has ended: what it left is kept or committed before anything else happens.
        return None;
    }
    // The dead add nothing to it.
    let until = match shown.status {
        StepStatus::Interrupted { at, .. } => at,
        _ => now,
    };
    let seconds = |since: Millis| until.since(since).as_secs();
    let known = match &attempt.holder {
        Holder::Keeper { host, .. } if *host == project.host => {
            project.folder(attempt.id).read_risk().map(|risk| AtRisk {
                saved_at: risk.saved_at,
                seconds: seconds(risk.saved_at),
                snapshot: risk.snapshot,
                interval_ms: Some(risk.interval_ms),
                stretched: risk.interval_ms > risk.every_ms,
                failing: risk.failing,
            })
        }
        // Its holder keeps bytes when it says so, and nobody looks in between.
        Holder::External { .. } => {
            let own = format!("/{}/", attempt.fence);
            let kept = shown.snapshot.as_ref().filter(|kept| kept.refname.contains(&own));
            kept.map(|kept| AtRisk {
                saved_at: kept.at,
                seconds: seconds(kept.at),
                snapshot: Some(kept.refname.clone()),
                interval_ms: None,
                stretched: false,
                failing: None,
            })
        }
        Holder::Keeper { .. } => None,
    };
    Some(known.map_or(WorkAtRisk::Unknown(UnknownRisk::Unknown), WorkAtRisk::Known))
}

/// Refuses to go on where an attempt's lock does not answer: waiting for it would have no end.
pub fn refuse_unknown(
    project: &Project,
    log: &Log,
    observed: &Observed,
) -> Result<(), EngineError> {
    let unknown = |(step, attempt): (StepRef, &Attempt)| match observed.of(attempt.id) {
        Sighting::Unknown(why) => {
            let path = project.folder(attempt.id).keeper_lock();
            Some(EngineError::UnknownHolder { step, path, why: why.clone() })
        }
        _ => None,
    };
    log.run().held().find_map(unknown).map_or(Ok(()), Err)
}

fn any_dead(observed: &Observed) -> bool {
    observed.attempts.values().any(|sighting| matches!(sighting, Sighting::Dead(_)))
}

fn sightings(project: &Project, log: &Log, run: &Run, depth: Depth) -> Observed {
    let attempts = run.held().map(|(step, attempt)| {
        let changed = || match depth {
            Depth::Locks | Depth::Refs => None,
            Depth::Trees => changed(project, log, run, &step),
        };
        // What was renewed until then is a sign of life, too.
        let renewed = || {
            let leases = log.store().leases(run.opened.run).ok()?;
            let length = attempt.until.wall.since(attempt.claimed_at);
            Some(believed_until(&step, attempt, &leases).wall.before(length))
        };
        (attempt.id, sight(project, attempt, renewed, changed))
    });
    let outside = run.held().filter_map(|(_, attempt)| match &attempt.holder {
        Holder::External { host, worktree } if *host == project.host => {
            Some((attempt.id, place_at(project, log, Path::new(worktree))?))
        }
        _ => None,
    });
    let (host, outside) = (project.host.clone(), outside.collect());
    let worker = has_worker(project, run.opened.run);
    Observed { host, outside, attempts: attempts.collect(), worker, ..Observed::default() }
}

/// Whether a worker of the run lives on this host.
pub fn has_worker(project: &Project, run: RunId) -> bool {
    matches!(probe(&project.worker_lock(run)), Ok(Lock::Held))
}

/// Which tree of the pool a worktree is, by its canonical path; none where it is somebody's own.
pub(crate) fn place_at(project: &Project, log: &Log, worktree: &Path) -> Option<TreeNo> {
    let handle = &log.run().opened.handle;
    let (name, folder) = (worktree.file_name()?.to_str()?, worktree.parent()?);
    if !folder.ends_with(handle.as_str()) {
        return None;
    }
    let tree = TreeNo(name.parse().ok()?);
    // The settings are read where the names leave it open.
    let path = project.tree(&settings_of(log).ok()?.worktree_root, handle, tree);
    path.canonicalize().is_ok_and(|path| path == worktree).then_some(tree)
}

fn sight(
    project: &Project,
    attempt: &Attempt,
    renewed: impl FnOnce() -> Option<Millis>,
    changed: impl FnOnce() -> Option<u64>,
) -> Sighting {
    let Holder::Keeper { host, boot } = &attempt.holder else {
        // Whoever claims from outside has no lock: only the lease speaks about them.
        return Sighting::Elsewhere;
    };
    if *host != project.host {
        return Sighting::Elsewhere;
    }
    let folder = project.folder(attempt.id);
    match folder.keeper() {
        Ok(Lock::Held) => Sighting::Alive,
        Ok(lock @ (Lock::Free | Lock::Missing)) => {
            let rebooted = *boot != project.boot;
            let found = corpse(attempt, &folder, lock, rebooted, changed());
            Sighting::Dead(Corpse {
                at: renewed().map_or(found.at, |at| at.max(found.at)),
                ..found
            })
        }
        // Unknown is not dead.
        Err(error) => Sighting::Unknown(error.to_string()),
    }
}

fn corpse(
    attempt: &Attempt,
    folder: &Folder,
    lock: Lock,
    rebooted: bool,
    changed: Option<u64>,
) -> Corpse {
    let exit = folder.read_exit();
    let cause = if rebooted { Cause::Reboot } else { Cause::ProcessKill };
    let evidence = match (&exit, lock) {
        (Some(record), _) if !record.ended.exit.is_success() => record.tail.clone(),
        (_, Lock::Missing) => "the attempt's folder is gone".to_owned(),
        _ if rebooted => "the host was started again since".to_owned(),
        _ => "the keeper's lock is free".to_owned(),
    };
    let seen = folder.signs().iter().filter_map(|path| machine::modified(path)).max();
    let at = seen.unwrap_or(attempt.claimed_at).max(attempt.claimed_at);
    let heard = exit.as_ref().and_then(|record| record.heard.clone());
    Corpse { exit: exit.map(|record| record.ended), heard, cause, at, evidence, changed }
}

fn changed(project: &Project, log: &Log, run: &Run, step: &StepRef) -> Option<u64> {
    let (_, state) = run.step(step)?;
    let settings = settings_of(log).ok()?;
    let own = run.trees().has_work(&project.host, step).then_some(step)?;
    let path = project.tree_of(&settings.worktree_root, run, own)?;
    let (tree, base) = (Worktree::own_place(&project.git, &path), state.base.as_ref()?);
    let on_disk = tree.clone().or_moved().and_then(|tree| tree.changed_since(base).ok());
    on_disk.or_else(|| {
        // Its commits are left.
        let tip = tree.left_at(&step_branch(&run.opened.handle, step))?;
        let paths = differing(project.git.call(), base, &tip).ok()?;
        Some(paths.len() as u64)
    })
}
