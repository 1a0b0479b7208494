//! Takes a worktree away that holds nothing of its own any more. What cannot be proven to be elsewhere
//! stays where it is, for people and for `clean`.

use piton_core::ids::Oid;

use super::{TreeState, Worktree};
use crate::git::GitError;

impl Worktree {
    /// Removes the worktree if its commits are in `landed` and nothing else is in it: nothing changed,
    /// nothing untracked, nothing ignored. Says whether it did. Nothing may run in it.
    pub(crate) fn remove_spent(&self, landed: &Oid) -> Result<bool, GitError> {
        let TreeState::Present { head: Some(head), .. } = self.state()? else { return Ok(false) };
        if !self.git.is_ancestor(&head, landed)? || self.dirty()? || self.has_ignored()? {
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
    fn has_ignored(&self) -> Result<bool, GitError> {
        let dir = self.git_dir()?;
        let words =
            ["ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"];
        let answer = self.call_in(&dir).args(&words).run()?;
        Ok(answer.parts().next().is_some())
    }
}
