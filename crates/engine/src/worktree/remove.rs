//! Takes a worktree away that holds nothing of its own any more. What cannot be proven to be elsewhere
//! stays where it is, for people and for `clean`.

use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::{TreeState, Worktree};
use crate::git::{GitError, names};

impl Worktree {
    /// Removes the worktree if its commits are in `landed` and nothing else is in it: nothing changed,
    /// nothing untracked, nothing ignored that is not elsewhere too. Says whether it did. Nothing may run
    /// in it.
    pub(crate) fn remove_spent(
        &self,
        landed: &Oid,
        is_elsewhere: impl Fn(&Path) -> bool,
    ) -> Result<bool, GitError> {
        let TreeState::Present { head: Some(head), .. } = self.state()? else { return Ok(false) };
        if !self.git.is_ancestor(&head, landed)? || self.dirty()? {
            return Ok(false);
        }
        if !self.ignored()?.iter().all(|path| is_elsewhere(path)) {
            return Ok(false);
        }
        let _alone = self.lock_list()?;
        let call = self.git.without_hooks(self.git.call_in(self.git.common_dir()))?;
        // Git looks once more, and refuses what has changes.
        let call = call.args(&["worktree", "remove", "--"]);
        match call.arg(self.path()).run() {
            Ok(_) => Ok(true),
            Err(GitError::Failed { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ignored files are in no commit and in no snapshot.
    fn ignored(&self) -> Result<Vec<PathBuf>, GitError> {
        let dir = self.git_dir()?;
        let words = ["ls-files", "--others", "--ignored", "--exclude-standard", "-z"];
        let answer = self.call_in(&dir).args(&words).run()?;
        Ok(answer.parts().map(names::path).collect())
    }
}
