//! Takes a worktree away that holds nothing of its own any more. What cannot be proven to be elsewhere
//! stays where it is, for people and for `clean`.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::Worktree;
use crate::repo::{GitError, drivers, locks, names};

impl Worktree {
    /// Removes the worktree if its commits are in `landed` and nothing else is in it: nothing changed,
    /// nothing untracked, nothing ignored that is not elsewhere too. Says whether it did. Nothing may run
    /// in it.
    pub fn remove_spent(
        &self,
        landed: &Oid,
        is_elsewhere: impl Fn(&Path) -> bool,
    ) -> Result<bool, GitError> {
        let Some(head) = self.head()?.and_then(|head| head.commit) else { return Ok(false) };
        if !self.git.is_ancestor(&head, landed)? || self.dirty()? {
            return Ok(false);
        }
        if !self.ignored()?.iter().all(|path| is_elsewhere(path)) {
            return Ok(false);
        }
        let _alone = self.lock_list()?;
        let drivers = drivers::overrides(self.call_in(&self.git_dir()?))?;
        let call = self.git.without_hooks(self.git.call_in(self.git.common_dir()))?;
        // Git looks once more, and refuses what has changes.
        let call = call.configs(&drivers).args(&["worktree", "remove", "--"]);
        match call.arg(self.path()).run() {
            Ok(_) => Ok(true),
            Err(GitError::Failed { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the worktree with all that is in it, and finishes a removal that was cut short. Whatever is
    /// worth it is kept elsewhere, and nothing may run in it.
    pub fn remove(&self) -> Result<(), GitError> {
        let _alone = self.lock_list()?;
        let Some(entry) = self.repoint()? else { return Ok(()) };
        let call = self.git.without_hooks(self.git.call_in(self.git.common_dir()))?;
        let call = call.args(&["worktree", "remove", "--force", "--"]);
        match call.arg(self.path()).run() {
            // A git that was killed may have left half an entry.
            Err(_) if fs::symlink_metadata(&self.path).is_err() && entry.exists() => {
                locks::set_aside(&self.git, &entry).map(drop)
            }
            removed => removed.map(drop),
        }
    }

    /// The worktree's entry in git's list, whole or not. A git that was killed while it removed the worktree
    /// may have taken the `.git` file first: then it is written again.
    pub fn repoint(&self) -> Result<Option<PathBuf>, GitError> {
        let Some(entry) = self.entries().next() else { return Ok(None) };
        if self.path.is_dir() && fs::symlink_metadata(self.path.join(".git")).is_err() {
            self.point_to(&entry)?;
        }
        Ok(Some(entry))
    }

    /// Ignored files are in no commit and in no snapshot.
    fn ignored(&self) -> Result<Vec<PathBuf>, GitError> {
        let dir = self.git_dir()?;
        let words = ["ls-files", "--others", "--ignored", "--exclude-standard", "-z"];
        let answer = self.call_in(&dir).args(&words).run()?;
        Ok(answer.parts().map(names::path).collect())
    }
}
