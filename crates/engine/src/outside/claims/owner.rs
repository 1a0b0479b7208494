//! Whose a claim is: a worktree's path, in whatever way it is written, becomes an owner, and an owner its
//! fence.

use std::path::{Path, PathBuf};

use piton_core::event::{Holder, Under};
use piton_core::ids::{Fence, StepRef};
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, Phase, Run, Step};
use piton_git::repo::Git;

use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;

/// How a write names the claim it is made under.
#[derive(Debug, Clone)]
pub enum ClaimName {
    Fence(Fence),
    /// The worktree that the claim was made from.
    Worktree(PathBuf),
}

/// The claim that a write is made under.
pub fn claim_of(
    project: &Project,
    log: &Log,
    step: &StepRef,
    name: &ClaimName,
) -> Result<Under, EngineError> {
    let under = |fence: Fence| Under { step: step.clone(), fence };
    let (_, state) = log.run().step(step).ok_or_else(|| Refusal::UnknownStep(step.clone()))?;
    let worktree = match name {
        ClaimName::Fence(fence) => return Ok(under(*fence)),
        ClaimName::Worktree(path) => match top(path) {
            Ok(top) => text(&top.path)?,
            // Whoever claimed from a folder that is gone by now is known by its name.
            Err(gone) => removed(project, state, path).ok_or(gone)?,
        },
    };
    let owner = Holder::External { host: project.host.clone(), worktree };
    let ours = |attempt: &&Attempt| attempt.holder.is_same_owner(&owner);
    if let Some(attempt) = state.attempt().filter(ours) {
        return Ok(under(attempt.fence));
    }
    // The last claim that this worktree had: the core says what became of it.
    let mut past = state.history.iter().rev().map(|past| &past.attempt);
    match (past.find(|attempt| attempt.holder.is_same_owner(&owner)), &state.phase) {
        (Some(attempt), _) => Ok(under(attempt.fence)),
        (None, Phase::Pending { .. }) => Err(Refusal::Pending(step.clone()).into()),
        (None, Phase::Completed { .. }) => Err(Refusal::Completed(step.clone()).into()),
        (None, _) => Err(EngineError::NotOwner { step: step.clone() }),
    }
}

/// The claim that was made from the worktree around this folder, and is open; none where there are several.
pub fn held_in(project: &Project, run: &Run, folder: &Path) -> Option<Under> {
    let worktree = text(&top(folder).ok()?.path).ok()?;
    let owner = Holder::External { host: project.host.clone(), worktree };
    let mut ours = run.held().filter(|(_, attempt)| attempt.holder.is_same_owner(&owner));
    match (ours.next(), ours.next()) {
        (Some((step, attempt)), None) => Some(Under { step, fence: attempt.fence }),
        _ => None,
    }
}

/// The worktree of a claim on the step that was removed since, if this is how it was called.
fn removed(project: &Project, state: &Step, path: &Path) -> Option<String> {
    let whole = std::path::absolute(path).ok()?;
    // The folder around it is there, as a rule, and may be written in many ways.
    let around = whole.parent().and_then(|around| std::fs::canonicalize(around).ok());
    let called = around.zip(whole.file_name()).map(|(around, name)| around.join(name));
    let called = called.unwrap_or(whole);
    let mut attempts =
        state.attempt().into_iter().chain(state.history.iter().map(|past| &past.attempt));
    attempts.find_map(|attempt| match &attempt.holder {
        Holder::External { host, worktree } => {
            let same = *host == project.host && Path::new(worktree) == called;
            (same && !called.exists()).then(|| worktree.clone())
        }
        Holder::Keeper { .. } => None,
    })
}

/// Why a fence is not, or no longer, that of its step.
pub fn lost(log: &Log, Under { step, fence: given }: &Under) -> Refusal {
    let given = *given;
    let Some((_, state)) = log.run().step(step) else { return Refusal::UnknownStep(step.clone()) };
    let past = state.history.iter().map(|past| &past.attempt);
    let newest = past.chain(state.attempt()).map(|attempt| attempt.fence).max();
    match newest {
        Some(current) if current > given => {
            Refusal::StaleFence { step: step.clone(), given, current }
        }
        // Perhaps that of another step.
        Some(current) if current != given && state.attempt().is_some() => {
            Refusal::StaleFence { step: step.clone(), given, current }
        }
        _ if state.is_completed() => Refusal::Completed(step.clone()),
        Some(current) if current == given => Refusal::ClaimOver { step: step.clone(), given },
        _ => Refusal::NotClaimed { step: step.clone(), given },
    }
}

/// The root of the git worktree that a folder is in, by the one name that every way of writing it has:
/// whoever works below it is the same owner. A folder that is in none is its own.
pub(super) fn top(path: &Path) -> Result<Top, EngineError> {
    let unusable = |source| EngineError::Worktree { path: path.to_owned(), source };
    let whole = std::fs::canonicalize(path).map_err(unusable)?;
    if !whole.is_dir() {
        return Err(unusable(std::io::Error::other("it is not a folder")));
    }
    Ok(match Git::around(&whole) {
        Ok(git) if whole.starts_with(git.here()) => {
            Top { path: git.here().to_owned(), in_git: true }
        }
        _ => Top { path: whole, in_git: false },
    })
}

/// Who somebody outside is: where they work.
pub(super) struct Top {
    pub(super) path: PathBuf,
    pub(super) in_git: bool,
}

/// A path as events tell it. One that is no text is refused: two of them could look the same, and would
/// be one owner.
pub(super) fn text(path: &Path) -> Result<String, EngineError> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let source = std::io::Error::other("its path is not UTF-8");
            Err(EngineError::Worktree { path: path.to_owned(), source })
        }
    }
}
