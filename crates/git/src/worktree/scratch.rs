//! A worktree of piton's own for looking at one commit: made in the state folder, used under a lock
//! and removed afterwards. What a killed process left there is known by its free lock, and removed by
//! whoever comes next.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use piton_core::ids::{AttemptId, Oid, StepId};

use super::Worktree;
use crate::repo::{Git, GitError, drivers, locks};

/// A folder for one attempt's scratch worktree, locked for as long as this lives.
pub struct Bench {
    git: Git,
    folder: PathBuf,
    _lock: File,
}

impl Bench {
    /// Waits for its turn: two processes that complete the same claim come one after the other.
    pub fn of(git: &Git, attempt: AttemptId) -> Result<Bench, GitError> {
        let folder = home(git).join(attempt.to_string());
        loop {
            locks::private_dir(&folder)?;
            let lock = File::open(&folder).and_then(|file| file.lock().map(|()| file));
            let lock = lock.map_err(|source| GitError::io("lock", &folder, source))?;
            // Whoever had it before may have removed it.
            if is_still(&folder, &lock) {
                return Ok(Bench { git: git.clone(), folder, _lock: lock });
            }
        }
    }

    /// The folders that killed processes left, each with the attempt it was for.
    pub fn left_behind(git: &Git) -> Vec<(AttemptId, Bench)> {
        let listed = fs::read_dir(home(git)).into_iter().flatten().flatten();
        let left = listed.filter_map(|entry| {
            let attempt = entry.file_name().to_str()?.parse().ok()?;
            let lock = File::open(entry.path()).ok()?;
            match lock.try_lock() {
                Ok(()) if is_still(&entry.path(), &lock) => {
                    Some((attempt, Bench { git: git.clone(), folder: entry.path(), _lock: lock }))
                }
                Ok(()) | Err(TryLockError::WouldBlock | TryLockError::Error(_)) => None,
            }
        });
        left.collect()
    }

    /// The files of a commit, on no branch; returns where.
    pub fn lay_out(&self, step: &StepId, commit: &Oid) -> Result<PathBuf, GitError> {
        self.clear()?;
        let tree = Worktree::at(&self.git, &self.folder.join(step.as_str()));
        let entry = {
            let _alone = tree.lock_list()?;
            tree.enter(commit)?
        };
        let drivers = drivers::overrides(tree.call_in(&entry))?;
        let call = tree.call_in(&entry).configs(&drivers).args(&["checkout", "--quiet", "--force"]);
        call.args(&["--detach", commit.as_str(), "--"]).run()?;
        Ok(tree.path().to_owned())
    }

    /// Removes what was laid out. Nothing may run in it.
    pub fn clear(&self) -> Result<(), GitError> {
        let listed = fs::read_dir(&self.folder);
        let listed = listed.map_err(|source| GitError::io("list", &self.folder, source))?;
        for place in listed.flatten() {
            self.remove(&Worktree::at(&self.git, &place.path()))?;
        }
        Ok(())
    }

    fn remove(&self, tree: &Worktree) -> Result<(), GitError> {
        let _alone = tree.lock_list()?;
        let call = self.git.without_hooks(self.git.call_in(self.git.common_dir()))?;
        let call = call.args(&["worktree", "remove", "--force", "--force", "--"]);
        let removed = call.arg(tree.path()).run();
        // What git does not take for a worktree, or cannot remove, is moved out of the way.
        if removed.is_err() && fs::symlink_metadata(tree.path()).is_ok() {
            locks::set_aside(&self.git, tree.path())?;
        }
        match tree.stale_entry()? {
            Some(entry) => locks::set_aside(&self.git, &entry).map(drop),
            None => Ok(()),
        }
    }

    /// Leaves nothing behind.
    pub fn put_away(self) -> Result<(), GitError> {
        self.clear()?;
        let _somebody_waits = fs::remove_dir(&self.folder);
        Ok(())
    }
}

fn home(git: &Git) -> PathBuf {
    git.state_dir().join("verify")
}

fn is_still(folder: &Path, lock: &File) -> bool {
    let there = fs::symlink_metadata(folder).map(|found| (found.dev(), found.ino()));
    let locked = lock.metadata().map(|found| (found.dev(), found.ino()));
    matches!((there, locked), (Ok(there), Ok(locked)) if there == locked)
}
