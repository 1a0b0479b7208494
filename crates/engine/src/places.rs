//! Places to work in for those who claim: worktrees that piton makes when asked, at the paths and on
//! the branches that the steps of a run have. Making one twice, or twice at once, makes one.

use std::path::PathBuf;

use piton_core::event::Holder;
use piton_core::ids::{Oid, StepId, StepRef};
use piton_core::view::{idle_branch, step_branch};
use serde::Serialize;

use crate::error::EngineError;
use crate::git::GitError;
use crate::land::run_tip;
use crate::log::Log;
use crate::project::Project;
use crate::runs::settings_of;
use crate::worktree::{Made, TreeState, Worktree};

/// A worktree to work in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    pub path: PathBuf,
    /// What is checked out there; nothing when HEAD is detached.
    pub branch: Option<String>,
    pub created: bool,
}

/// Where a run, or one of its steps, is worked on: by whoever has or had it, else in a worktree that was
/// made for it, else where piton would.
pub fn path(project: &Project, log: &Log, step: Option<&StepId>) -> Result<PathBuf, EngineError> {
    let own = own_path(project, log, step)?;
    let Some((id, (plan, state))) = step.and_then(|id| Some((id, log.run().step(id)?))) else {
        return Ok(own);
    };
    let last = state.attempt().or_else(|| state.history.last().map(|past| &past.attempt));
    match last.map(|attempt| &attempt.holder) {
        Some(Holder::External { host, worktree }) if *host == project.host => Ok(worktree.into()),
        None if plan.work.is_by_hand() || Worktree::at(&project.git, &own).is_ours() => Ok(own),
        _ => {
            let root = settings_of(log)?.worktree_root;
            Ok(project.place_of(&root, log.run(), &StepRef::first(id.clone())))
        }
    }
}

/// The worktree that is made for a run, or for one of its steps alone.
fn own_path(project: &Project, log: &Log, step: Option<&StepId>) -> Result<PathBuf, EngineError> {
    let root = settings_of(log)?.worktree_root;
    let handle = &log.run().opened.handle;
    Ok(match step {
        None => project.worktree(&root, handle),
        Some(step) => project.step_worktree(&root, handle, &StepRef::first(step.clone())),
    })
}

/// Makes that worktree from what the run has landed, or finds it as it is.
pub fn create(project: &Project, log: &Log, step: Option<&StepId>) -> Result<Place, EngineError> {
    let path = own_path(project, log, step)?;
    project.exclude_worktrees(&settings_of(log)?.worktree_root)?;
    let tree = Worktree::at(&project.git, &path);
    tree.mend()?;
    let handle = &log.run().opened.handle;
    let branch = match step {
        None => idle_branch(handle),
        Some(step) => step_branch(handle, &StepRef::first(step.clone())),
    };
    let made = match tree.settled()? {
        TreeState::Present { .. } => Made::Before,
        TreeState::Foreign { why } => return Err(GitError::Foreign { path, why }.into()),
        TreeState::Missing => {
            let start = start(project, log, &branch)?;
            tree.create(&branch, &start)?
        }
    };
    let branch = match tree.state()? {
        TreeState::Present { branch, .. } => branch,
        TreeState::Missing | TreeState::Foreign { .. } => None,
    };
    Ok(Place { path: tree.path().to_owned(), branch, created: made == Made::Now })
}

/// The tip of the run's branch; or that of the worktree's own, where it has commits that nobody landed.
fn start(project: &Project, log: &Log, branch: &str) -> Result<Oid, EngineError> {
    let tip = run_tip(project, log.run())?;
    let own = project.git.ref_target(&format!("refs/heads/{branch}"))?;
    match own {
        Some(own) if !project.git.is_ancestor(&own, &tip)? => Ok(own),
        _ => Ok(tip),
    }
}
