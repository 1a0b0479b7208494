//! Bringing somebody's own checkout from one commit to another, as a fast-forward does: only where it is
//! clean, and so that a killed one can be finished. What stands in the way is moved aside, never
//! overwritten.

use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::{Quarantine, Worktree, differing, differing_by};
use crate::repo::{Call, GitError, drivers, names};

/// Where a checkout is on the way between two commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    From,
    To,
    Between,
}

impl Worktree {
    /// Files that are there, that `from` does not have and `to` would bring.
    pub fn in_the_way(&self, from: &Oid, to: &Oid, named: usize) -> Result<Vec<String>, GitError> {
        let new = differing_by(self.git.call(), &["--diff-filter=A"], from, to)?;
        let there = new.iter().filter_map(|path| self.in_place_of(&names::path(path)).transpose());
        there.take(named).map(|path| Ok(path?.display().to_string())).collect()
    }

    /// Index and files go from one commit to another; git refuses where that would lose anything. HEAD
    /// and branch stay.
    pub fn advance(&self, from: &Oid, to: &Oid) -> Result<(), GitError> {
        let dir = self.git_dir()?;
        self.clear_locks(&dir)?;
        self.refresh(&dir)?;
        let call = self.filtered(&dir)?.args(&["read-tree", "-m", "-u"]);
        call.args(&[from.as_str(), to.as_str()]).run().map(drop)
    }

    /// Where it is between two commits, by the paths in which they differ.
    pub fn stand(&self, from: &Oid, to: &Oid) -> Result<Stand, GitError> {
        let dir = self.git_dir()?;
        self.clear_locks(&dir)?;
        let ways = differing(self.git.call(), from, to)?;
        self.refresh(&dir)?;
        let files = self.filtered(&dir)?.args(&["diff-files", "--name-only", "-z"]).run()?;
        if files.parts().any(|path| ways.iter().any(|way| way == path)) {
            return Ok(Stand::Between);
        }
        for (stand, at, other) in [(Stand::From, from, to), (Stand::To, to, from)] {
            let words = ["diff-index", "--cached", "--name-only", "-z", "--no-renames"];
            let index = self.call_in(&dir).args(&words).args(&[at.as_str(), "--"]).run()?;
            let staged = index.parts().any(|path| ways.iter().any(|way| way == path));
            let gone = differing_by(self.git.call(), &["--diff-filter=D"], other, at)?;
            let mut left = gone.iter().map(|path| self.in_place_of(&names::path(path)));
            if !staged && left.all(|left| matches!(left, Ok(None))) {
                return Ok(stand);
            }
        }
        Ok(Stand::Between)
    }

    /// From wherever it is between two commits to the second: what is on disk at the paths in which they
    /// differ is moved aside first. Answers with the folder that has it.
    pub fn force_between(&self, from: &Oid, to: &Oid) -> Result<Option<PathBuf>, GitError> {
        let dir = self.git_dir()?;
        self.clear_locks(&dir)?;
        let mut aside = Quarantine::default();
        for path in differing(self.git.call(), from, to)? {
            aside.clear(self, &names::path(&path))?;
        }
        self.filtered(&dir)?.args(&["read-tree", "--reset", to.as_str()]).run()?;
        let mut input = differing_by(self.git.call(), &["--diff-filter=d"], from, to)?.join(&0);
        input.push(0);
        let call = self.filtered(&dir)?.args(&["checkout-index", "-f", "-q", "-z", "--stdin"]);
        call.input(input).run()?;
        self.refresh(&dir)?;
        Ok(aside.place().map(Path::to_owned))
    }

    /// Files whose times alone have changed (they were touched, the repository was copied) are as they were.
    fn refresh(&self, dir: &Path) -> Result<(), GitError> {
        let call = self.filtered(dir)?.args(&["update-index", "-q", "--refresh"]);
        call.accept(&[0, 1]).run().map(drop)
    }

    /// A call that may write files: with the user's own filters, and no others.
    fn filtered(&self, dir: &Path) -> Result<Call, GitError> {
        let drivers = drivers::overrides(self.call_in(dir))?;
        Ok(self.git.without_hooks(self.call_in(dir))?.configs(&drivers))
    }
}
