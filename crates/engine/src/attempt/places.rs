//! Places to work in for those who claim: worktrees that piton makes when asked, at the paths and on
//! the branches that the steps of a run have. Making one twice, or twice at once, makes one.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::event::Holder;
use piton_core::ids::{Oid, StepRef};
use piton_core::plan::Plan;
use piton_core::refusal::Refusal;
use piton_core::view::step_branch;
use piton_git::repo::GitError;
use piton_git::worktree::{Made, TreeState, Worktree};
use serde::Serialize;

use crate::attempt::land::run_tip;
use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;

/// A worktree to work in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub path: PathBuf,
    /// What is checked out there; nothing when HEAD is detached.
    pub branch: Option<String>,
    pub created: bool,
}

/// Where a step is worked on: by whoever has or had it, else in a worktree that was made for it. Without a
/// step: the folder that the run's worktrees are in.
pub fn path(project: &Project, log: &Log, step: Option<&StepRef>) -> Result<PathBuf, EngineError> {
    let (run, root) = (log.run(), settings_of(log)?.worktree_root);
    let handle = &run.opened.handle;
    let Some(step) = step else { return Ok(project.worktrees(&root, handle)) };
    let own = project.step_worktree(&root, handle, step);
    let (plan, state) = run.step(step).ok_or_else(|| Refusal::UnknownStep(step.clone()))?;
    let last = state.attempt().or_else(|| state.history.last().map(|past| &past.attempt));
    let outside = last.filter(|last| matches!(last.holder, Holder::External { .. }));
    let is_made = || plan.work.is_by_hand() || Worktree::at(&project.git, &own).is_ours();
    outside
        .and_then(|attempt| project.place_of(&root, run, attempt))
        .or_else(|| project.tree_of(&root, run, step))
        .or_else(|| is_made().then_some(own.clone()))
        .ok_or_else(|| EngineError::NoOwnTree { handle: handle.clone(), step: step.clone() })
}

/// Makes the worktree of a step for whoever claims it, from what the run has landed, or finds it as it is.
pub fn create(project: &Project, log: &Log, step: &StepRef) -> Result<Place, EngineError> {
    let root = settings_of(log)?.worktree_root;
    let handle = &log.run().opened.handle;
    let path = project.step_worktree(&root, handle, step);
    project.exclude_worktrees(&root)?;
    let tree = Worktree::at(&project.git, &path);
    let branch = step_branch(handle, step);
    tree.mend(&branch)?;
    let made = match tree.settled()? {
        TreeState::Present { .. } | TreeState::Unlinked { .. } => Made::Before,
        TreeState::Damaged { why, .. } | TreeState::Foreign { why } => {
            return Err(GitError::Foreign { path, why }.into());
        }
        TreeState::Missing | TreeState::HalfMade { .. } => {
            let start = start(project, log, &branch)?;
            tree.create(&branch, &start)?
        }
    };
    let branch = tree.head()?.and_then(|head| head.branch);
    Ok(Place { path: tree.path().to_owned(), branch, created: made == Made::Now })
}

/// Removes the free trees of a run in which nothing is that has not landed; says which stay.
pub(crate) fn put_away(project: &Project, log: &Log) -> Result<Vec<PathBuf>, EngineError> {
    let (run, root) = (log.run(), settings_of(log)?.worktree_root);
    let tip = run_tip(project, run)?;
    let handle = &run.opened.handle;
    let mut stay = Vec::new();
    for (tree, _) in run.trees().on_host(&project.host).filter(|(_, owner)| owner.is_none()) {
        let tree = Worktree::own_place(&project.git, &project.tree(&root, handle, tree));
        let brought = |path: &Path| is_brought(project, run.plan(), tree.path(), path);
        if tree.is_ours() && !tree.remove_spent(&tip, brought)? {
            stay.push(tree.path().to_owned());
        }
    }
    // One that holds anything stays.
    let _stays_then = fs::remove_dir(project.worktrees(&root, handle));
    Ok(stay)
}

/// Whether a path of a tree is only what the plan brought there from the user's checkout.
fn is_brought(project: &Project, plan: &Plan, tree: &Path, path: &Path) -> bool {
    let named = |all: &[String]| all.iter().any(|known| Path::new(known) == path);
    let (here, there) = (tree.join(path), project.git.main_root().join(path));
    match fs::symlink_metadata(&here) {
        Ok(found) if found.is_symlink() => {
            named(&plan.link) && fs::read_link(&here).is_ok_and(|target| target == there)
        }
        Ok(found) if found.is_file() && named(&plan.copy) => {
            let same = fs::read(&here).and_then(|here| Ok(here == fs::read(&there)?));
            same.unwrap_or(false)
        }
        _ => false,
    }
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
