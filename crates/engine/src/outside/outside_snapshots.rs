//! Keeping the bytes of holders outside: before their claim ends, whoever ends it, and even after they
//! have lost it. Nothing of theirs is touched: files, index, HEAD and branch stay as they are.

use std::path::{Path, PathBuf};

use piton_core::decide::{Command, Request};
use piton_core::event::{Holder, Report, Snapshot, SnapshotReason, Under};
use piton_core::ids::{Fence, Oid, StepRef};
use piton_core::run::Attempt;
use piton_core::view::run_branch;
use piton_git::crash;
use piton_git::repo::GitError;
use piton_git::repo::chain;
use piton_git::snapshot::{self, Ask};
use piton_git::worktree::Worktree;
use serde::Serialize;

use crate::error::EngineError;
use crate::error::LogError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::step_snapshot;

/// What became of the bytes of a holder whose claim ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// The ref that has them; none where no commit lacked anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// Why they could not be kept; they are where they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unkept: Option<String>,
}

/// Keeps what a holder outside has in its worktree on this host, and records it while the claim is
/// still theirs. `safe` is a commit that will not be lost either way.
pub(crate) fn before_end(
    project: &Project,
    log: &mut Log,
    (step, attempt): (&StepRef, &Attempt),
    safe: Option<&Oid>,
) -> Kept {
    let Some(path) = place(project, attempt) else { return Kept::default() };
    match keep_and_record(project, log, (step, attempt), &path, safe) {
        Ok(kept) => Kept { kept, unkept: None },
        // Nothing of theirs is removed by what follows, so that it need not wait for a mended tree.
        Err(error) => Kept { kept: None, unkept: Some(chain(&error)) },
    }
}

fn keep_and_record(
    project: &Project,
    log: &mut Log,
    (step, attempt): (&StepRef, &Attempt),
    path: &Path,
    safe: Option<&Oid>,
) -> Result<Option<String>, EngineError> {
    if !is_at_risk(project, log, path, safe)? {
        return Ok(None);
    }
    let fence = attempt.fence;
    let keep = Keep { step, fence, path, reason: SnapshotReason::End };
    let (_, state) = log.run().step(step).expect("a claimed step is in the plan");
    let recorded = state.snapshot.as_ref().filter(|kept| kept.fence == fence);
    let recorded = recorded.map(|kept| kept.snapshot.tree.clone());
    let Some(taken) = keep_bytes(project, log, &keep, recorded)? else {
        return newest_ref(project, log, step, fence);
    };
    snapshot::read_back(&project.git, &taken)?;
    crash::point("outside.snapshot-kept");
    let (step, refname) = (step.clone(), taken.refname.clone());
    let snapshot = Some(taken);
    match log.submit(&Command::Under(
        Under { step, fence },
        Request::Checkpoint { snapshot, report: None },
    )) {
        // Whoever lost the claim meanwhile has its bytes under its own fence all the same.
        Ok(_) | Err(LogError::Refused(_)) => Ok(Some(refname)),
        Err(error) => Err(error.into()),
    }
}

/// Keeps what a holder outside that has lost its claim still has in its worktree on this host, under
/// its own fence; returns the ref. A worktree that has claimed again since is the later claim's.
pub fn of_lost(project: &Project, log: &Log, step: &StepRef, fence: Fence) -> Option<String> {
    let (_, state) = log.run().step(step)?;
    let past = state.history.iter().map(|past| &past.attempt);
    let attempt = past.chain(state.attempt()).find(|attempt| attempt.fence == fence)?;
    let path = place(project, attempt)?;
    if has_claimed_since(log, attempt) {
        return None;
    }
    let at = step.clone();
    // Best effort: whatever happens here, the holder is refused and told so.
    if !is_at_risk(project, log, &path, None).ok()? {
        return None;
    }
    let keep = Keep { step: &at, fence, path: &path, reason: SnapshotReason::End };
    kept_as(project, log, &keep).ok()?
}

/// What became of the bytes of a keeper whose claim was taken and whose processes were ended.
pub(crate) fn of_ended(project: &Project, log: &Log, keep: &Keep<'_>) -> Kept {
    match kept_as(project, log, keep) {
        Ok(kept) => Kept { kept, unkept: None },
        // The claim has ended all the same, and its tree is as it was.
        Err(error) => Kept { kept: None, unkept: Some(chain(&error)) },
    }
}

/// Keeps bytes; the ref that has them, which may be one from before.
fn kept_as(project: &Project, log: &Log, keep: &Keep<'_>) -> Result<Option<String>, EngineError> {
    // By its ref: whoever has lost a claim can record none.
    let folder = step_snapshot::folder(log, keep.step, keep.fence);
    let last = snapshot::newest(&project.git, &folder)?.map(|newest| newest.tree);
    match keep_bytes(project, log, keep, last)? {
        Some(taken) => Ok(Some(taken.refname)),
        None => newest_ref(project, log, keep.step, keep.fence),
    }
}

/// Where a holder outside works, if that is on this host.
fn place(project: &Project, attempt: &Attempt) -> Option<PathBuf> {
    match &attempt.holder {
        Holder::External { host, worktree } if *host == project.host => Some(worktree.into()),
        Holder::External { .. } | Holder::Keeper { .. } => None,
    }
}

fn has_claimed_since(log: &Log, attempt: &Attempt) -> bool {
    let later = |other: &Attempt| {
        other.fence > attempt.fence && other.holder.is_same_owner(&attempt.holder)
    };
    log.run().steps().any(|(_, _, state)| {
        state.history.iter().map(|past| &past.attempt).chain(state.attempt()).any(later)
    })
}

/// Whether a worktree of this repository has anything that neither the run's branch nor its base has.
fn is_at_risk(
    project: &Project,
    log: &Log,
    path: &Path,
    safe: Option<&Oid>,
) -> Result<bool, EngineError> {
    let tree = Worktree::at(&project.git, path);
    let Some(head) = tree.head()? else { return Ok(false) };
    if tree.dirty()? {
        return Ok(true);
    }
    let Some(head) = head.commit else { return Ok(false) };
    let opened = &log.run().opened;
    let tip = project.git.ref_target(&format!("refs/heads/{}", run_branch(&opened.handle)))?;
    for known in tip.iter().chain([&opened.base]).chain(safe) {
        if project.git.is_ancestor(&head, known)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Bytes that are to be kept.
pub(crate) struct Keep<'a> {
    pub(crate) step: &'a StepRef,
    pub(crate) fence: Fence,
    pub(crate) path: &'a Path,
    pub(crate) reason: SnapshotReason,
}

/// A snapshot of a claim; none where its last one has it all, or there is no worktree.
fn keep_bytes(
    project: &Project,
    log: &Log,
    keep: &Keep<'_>,
    last: Option<Oid>,
) -> Result<Option<Snapshot>, EngineError> {
    let tree = Worktree::at(&project.git, keep.path);
    if tree.state()?.dir().is_none() {
        return Ok(None);
    }
    let Keep { step, fence, reason, .. } = *keep;
    let ask = step_snapshot::ask(log, (step, fence), reason);
    let base = base(project, log, step, &tree)?;
    Ok(snapshot::keep(&tree, &Ask { base: Some(base), last, ..ask })?)
}

/// What a holder reports on has a snapshot of its own, whether anything differs or not.
pub(crate) fn at_checkpoint(
    project: &Project,
    log: &Log,
    (step, fence): (&StepRef, Fence),
    path: &Path,
    report: &Report,
) -> Result<Option<Snapshot>, EngineError> {
    let tree = Worktree::at(&project.git, path);
    if tree.state()?.dir().is_none() {
        return Ok(None);
    }
    let reason = SnapshotReason::Checkpoint;
    let message = step_snapshot::message(log, (step, fence), reason, Some(report));
    let base = Some(base(project, log, step, &tree)?);
    let ask = step_snapshot::ask(log, (step, fence), reason);
    Ok(snapshot::keep(&tree, &Ask { base, message, last: None, ..ask })?)
}

/// The ref of a claim's newest snapshot.
fn newest_ref(
    project: &Project,
    log: &Log,
    step: &StepRef,
    fence: Fence,
) -> Result<Option<String>, EngineError> {
    let newest = snapshot::newest(&project.git, &step_snapshot::folder(log, step, fence))?;
    Ok(newest.map(|newest| newest.refname))
}

/// The step's base, or what its holder began with.
fn base(project: &Project, log: &Log, step: &StepRef, tree: &Worktree) -> Result<Oid, GitError> {
    let state = log.run().step(step).map(|(_, state)| state);
    match state.and_then(|state| state.base.clone()) {
        Some(base) => Ok(base),
        None => base_outside(project, log, tree),
    }
}

/// What a holder outside began with: where its history parts from that of the run.
pub(crate) fn base_outside(project: &Project, log: &Log, tree: &Worktree) -> Result<Oid, GitError> {
    let opened = &log.run().opened;
    let Some(head) = tree.head()?.and_then(|head| head.commit) else {
        return Ok(opened.base.clone());
    };
    let tip = project.git.ref_target(&format!("refs/heads/{}", run_branch(&opened.handle)))?;
    let fork = project.git.fork_point(&head, tip.as_ref().unwrap_or(&opened.base))?;
    Ok(fork.unwrap_or_else(|| opened.base.clone()))
}
