//! A project: a repository, piton's state folder inside its git directory, and this host.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use piton_core::event::Holder;
use piton_core::ids::{AttemptId, BootId, Handle, HostId, RunId, StepRef, TreeNo};
use piton_core::run::{Attempt, Run};
use piton_git::repo::Git;
use piton_store::Store;
use piton_store::sqlite::{Access, SqliteStore};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::EngineError;
use crate::folder::Folder;
use crate::machine;

pub struct Project {
    pub git: Git,
    /// `<git common dir>/piton`.
    pub state: PathBuf,
    pub host: HostId,
    pub boot: BootId,
}

impl Project {
    /// The project around a folder: any sub-directory, any worktree.
    pub fn discover(from: &Path) -> Result<Project, EngineError> {
        let git = Git::discover(from)?;
        let state = git.common_dir().join("piton");
        Ok(Project { git, state, host: machine::host_id(), boot: machine::boot() })
    }

    /// The project's store. A store that is gone while snapshots of its runs exist is an error, never
    /// a new empty store.
    pub fn store(&self, access: Access) -> Result<Arc<dyn Store>, EngineError> {
        let path = self.state.join("store.db");
        if is_gone(&path) && self.git.has_refs_under("refs/piton/")? {
            return Err(EngineError::LostStore { path });
        }
        Ok(Arc::new(SqliteStore::open(&self.state, access)?))
    }

    /// Whether anything was ever run here.
    pub fn has_store(&self) -> bool {
        !is_gone(&self.state.join("store.db")) || !is_gone(&self.state.join("store.head"))
    }

    pub fn folder(&self, attempt: AttemptId) -> Folder {
        Folder::new(self.state.join("attempts").join(attempt.to_string()))
    }

    /// The folder that a run's worktrees are in.
    pub fn worktrees(&self, root: &str, handle: &Handle) -> PathBuf {
        self.git.main_root().join(root).join(handle.as_str())
    }

    /// The worktree of one step, for whoever claims it from outside.
    pub fn step_worktree(&self, root: &str, handle: &Handle, step: &StepRef) -> PathBuf {
        let name = match step.iteration {
            1 => step.step.to_string(),
            n => format!("{}-{n}", step.step),
        };
        self.worktrees(root, handle).join("step").join(name)
    }

    /// A tree of the pool. The path is stable, because agents find their conversation by it.
    pub fn tree(&self, root: &str, handle: &Handle, tree: TreeNo) -> PathBuf {
        self.worktrees(root, handle).join(tree.to_string())
    }

    /// The tree of the pool that belongs to a step, if that is on this host.
    pub fn tree_of(&self, root: &str, run: &Run, step: &StepRef) -> Option<PathBuf> {
        let tree = run.trees().on(&self.host, step)?;
        Some(self.tree(root, &run.opened.handle, tree))
    }

    /// Where an attempt works or worked, if that is on this host.
    pub fn place_of(&self, root: &str, run: &Run, attempt: &Attempt) -> Option<PathBuf> {
        match &attempt.holder {
            holder if *holder.host() != self.host => None,
            Holder::External { worktree, .. } => Some(worktree.into()),
            Holder::Keeper { .. } => Some(self.tree(root, &run.opened.handle, attempt.tree?)),
        }
    }

    /// Refuses a folder for worktrees to which the repository leads through a link, or that is in its git
    /// directory. Whoever names a folder outside of it says where that is.
    pub fn check_worktrees(&self, root: &str) -> Result<(), EngineError> {
        let refused =
            |path: PathBuf, why: &'static str| Err(EngineError::WorktreeRoot { path, why });
        let main = self.git.main_root();
        let mut path = main.to_owned();
        let below = Path::new(root).strip_prefix(main).unwrap_or(Path::new(root));
        let parts: Vec<Component<'_>> = below.components().collect();
        if parts.iter().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
            path = main.join(root);
            if fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
                return refused(path, "it is a link");
            }
        } else {
            // Each from the folder before it, as git will come to it.
            let open = |path: &Path| {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::open(path, flags, Mode::empty())
            };
            for part in parts {
                path.push(part);
                match open(&path) {
                    Ok(_) => {}
                    Err(Errno::NOENT) => break,
                    Err(_) => return refused(path, "it is a link, or no folder"),
                }
            }
        }
        let real = path.canonicalize().unwrap_or(path);
        match real.starts_with(self.git.common_dir()) && main != self.git.common_dir() {
            true => refused(real, "it is in the git directory"),
            false => Ok(()),
        }
    }

    /// piton's worktrees are no business of the user's `git status`.
    pub(crate) fn exclude_worktrees(&self, root: &str) -> Result<(), EngineError> {
        self.check_worktrees(root)?;
        match Path::new(root).components().next() {
            Some(Component::Normal(first)) => {
                Ok(self.git.exclude(&format!("/{}/", first.to_string_lossy()))?)
            }
            // Outside the repository: nothing to hide.
            _ => Ok(()),
        }
    }

    /// Held by the run's worker for as long as it lives.
    pub(crate) fn worker_lock(&self, run: RunId) -> PathBuf {
        self.state.join(format!("worker-{run}.lock"))
    }

    /// What workers of a run have said.
    pub fn worker_log(&self, run: RunId) -> PathBuf {
        self.state.join(format!("worker-{run}.log"))
    }

    /// Held while what a run has landed is merged: one at a time on this host, whatever the branch.
    pub(crate) fn merge_lock(&self) -> PathBuf {
        self.state.join("merge.lock")
    }

    /// Held while a step of this run is landed: one at a time on this host.
    pub(crate) fn land_lock(&self, handle: &Handle) -> PathBuf {
        self.state.join(format!("land-{handle}.lock"))
    }
}

/// Nothing is there. What cannot be looked at may well be there.
fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}
