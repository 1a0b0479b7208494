//! A worktree's branch, when somebody has deleted or moved it from elsewhere: files and index are still
//! those of the commit that HEAD was at, which its reflog tells.

use std::collections::BTreeSet;
use std::path::Path;

use piton_core::ids::Oid;

use super::{Head, TreeProblem, Worktree};
use crate::file;
use crate::repo::{Git, GitError};

/// How the reasons of piton's own moves begin in a reflog.
const OURS: &str = "piton: ";
const WHY: &str = "piton: back to what its worktree has";

impl Worktree {
    /// Makes a deleted branch again, or puts a moved one back, so that it is the commit that files and
    /// index stand on. Where the branch was only moved on and nothing here is uncommitted, the files
    /// follow it. The commit that it was moved to is kept by name. `or` is where it is made when nothing
    /// else is known.
    pub fn settle(&self, branch: &str, or: Option<&Oid>) -> Result<(), GitError> {
        let refname = format!("refs/heads/{branch}");
        match self.branch_problem(branch)? {
            Some(TreeProblem::BranchDeleted { was, .. }) => {
                let known = was.filter(|was| self.git.commit(was.as_str()).is_ok());
                let Some(to) = known.as_ref().or(or) else { return Ok(()) };
                self.move_branch(&refname, to, None, WHY)
            }
            Some(TreeProblem::BranchMoved { was, now, .. }) => {
                if self.git.commit(was.as_str()).is_err() || self.follow(&was, &now)? {
                    return Ok(());
                }
                self.keep_commits(branch, BTreeSet::from([now.clone()]), &was)?;
                self.move_branch(&refname, &was, Some(&now), WHY)
            }
            _ => Ok(()),
        }
    }

    /// Takes HEAD off its branch; commit, index and files stay.
    pub fn detach(&self) -> Result<(), GitError> {
        let dir = self.git_dir()?;
        let Head { commit: Some(head), branch: Some(_) } = self.head_in(&dir)? else {
            return Ok(());
        };
        let call = self.git.without_hooks(self.call_in(&dir))?;
        let call = call.args(&["update-ref", "--no-deref", "-m", "piton: detached", "HEAD"]);
        call.arg(head.as_str()).run().map(drop)
    }

    /// Brings clean files along to a later commit; says whether it did.
    fn follow(&self, was: &Oid, now: &Oid) -> Result<bool, GitError> {
        if !self.git.is_ancestor(was, now)? {
            return Ok(false);
        }
        let dir = self.git_dir()?;
        let words = ["diff-index", "--quiet", was.as_str(), "--"];
        let refresh = self.call_in(&dir).args(&["update-index", "-q", "--refresh"]);
        refresh.accept(&[0, 1]).run()?;
        if self.call_in(&dir).args(&words).accept(&[0, 1]).run()?.code != 0 {
            return Ok(false);
        }
        match self.advance(was, now) {
            Ok(()) => Ok(true),
            // Something untracked is in the way.
            Err(GitError::Failed { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// piton moves a branch without the worktree's HEAD hearing of it.
pub(super) fn moved_by_us(git: &Git, refname: &str) -> bool {
    let last = last_row(&git.common_dir().join("logs").join(refname));
    last.is_some_and(|(_, why)| why.starts_with(OURS))
}

/// The commit that a worktree's own git has last put its HEAD at, where a reflog is kept.
pub(super) fn last_head(dir: &Path) -> Option<Oid> {
    last_row(&dir.join("logs/HEAD")).map(|(to, _)| to)
}

/// The last row of a reflog: where to, and why.
fn last_row(log: &Path) -> Option<(Oid, String)> {
    let bytes = file::read(log).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let row = text.trim_end_matches('\n').rsplit('\n').next()?;
    let (what, why) = row.split_once('\t').unwrap_or((row, ""));
    let to = what.split(' ').nth(1)?;
    let to = Oid::new(to).ok().filter(|to| to.as_str().bytes().any(|byte| byte != b'0'))?;
    Some((to, why.to_owned()))
}
