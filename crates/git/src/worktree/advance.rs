//! Bringing a person's own checkout from one commit to another, as a fast-forward does: what they have not
//! committed stays as it is, and a killed one can be finished. What stands in the way is moved aside, never
//! overwritten.

use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::{Quarantine, Worktree, differing, differing_by};
use crate::repo::status::StatusDepth;
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

    /// Tracked files with changes that no commit has, where the two commits differ, too.
    pub fn changed_on_the_way(
        &self,
        from: &Oid,
        to: &Oid,
        named: usize,
    ) -> Result<Vec<String>, GitError> {
        let changed = self.status(StatusDepth::Folders)?.tracked;
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        let ways = differing(self.git.call(), from, to)?;
        let meets =
            |path: &[u8]| ways.iter().any(|way| is_within(way, path) || is_within(path, way));
        let met = changed.iter().filter(|entry| entry.unmerged || meets(&entry.path));
        Ok(met.take(named).map(|entry| names::shown(&entry.path)).collect())
    }

    /// Index and files go from one commit to another, where these differ; git refuses where that would
    /// lose anything. HEAD and branch stay.
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
        self.put_in_index(&dir, from, to)?;
        let mut input = differing_by(self.git.call(), &["--diff-filter=d"], from, to)?.join(&0);
        input.push(0);
        let call = self.filtered(&dir)?.args(&["checkout-index", "-f", "-q", "-z", "--stdin"]);
        call.input(input).run()?;
        self.refresh(&dir)?;
        Ok(aside.place().map(Path::to_owned))
    }

    /// The index gets what the second commit has where the two differ; what else is staged stays.
    fn put_in_index(&self, dir: &Path, from: &Oid, to: &Oid) -> Result<(), GitError> {
        let words = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev"];
        let raw = self.git.call().args(&words).args(&[from.as_str(), to.as_str(), "--"]).run()?;
        let mut parts = raw.parts();
        let mut entries = Vec::new();
        // `:MODE MODE ID ID LETTER`, then the path; the second of each is of `to`, and mode 0 where it is gone.
        while let (Some(entry), Some(path)) = (parts.next(), parts.next()) {
            let words: Vec<&[u8]> = entry.split(|&byte| byte == b' ').collect();
            let &[_, mode, _, id, _] = words.as_slice() else {
                return Err(GitError::unexpected("git diff-tree", String::from_utf8_lossy(entry)));
            };
            entries.push([mode, b" ", id, b"\t", path, b"\0"].concat());
        }
        // What goes makes room for what comes: a file may become a folder.
        entries.sort_by_key(|entry| !entry.starts_with(b"000000 "));
        let call = self.call_in(dir).args(&["update-index", "--replace", "-z", "--index-info"]);
        call.input(entries.concat()).run().map(drop)
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

/// Whether a path is a folder or that folder's content.
fn is_within(path: &[u8], folder: &[u8]) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
