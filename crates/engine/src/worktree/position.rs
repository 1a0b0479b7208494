//! Where a worktree stood: HEAD, its branch, and what git was in the middle of. A snapshot has files and
//! index; this is kept beside it, by the snapshot's commit, when a worktree is given away in the middle of
//! something, and put back with it. The commits that it names have refs of their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::Worktree;
use super::underway::{MERGES, SEQUENCERS, underway};
use crate::git::{Git, GitError, flush, locks};

/// What else of a git directory belongs to an operation.
const BESIDE: &[&str] = &[
    "ORIG_HEAD",
    "REBASE_HEAD",
    "AUTO_MERGE",
    "MERGE_AUTOSTASH",
    "BISECT_START",
    "BISECT_TERMS",
    "BISECT_NAMES",
    "BISECT_EXPECTED_REV",
    "BISECT_ANCESTORS_OK",
    "BISECT_FIRST_PARENT",
    "refs/bisect",
    "refs/rewritten",
];
/// A position's own files: HEAD as it was, and the branch's commit.
const HEAD: &str = "HEAD";
const TIP: &str = "piton-branch";
/// The last file written: a position without it was cut short.
const WHOLE: &str = "piton-whole";

impl Worktree {
    /// Keeps where the worktree stands beside a snapshot of it, unless that is just its branch.
    pub(crate) fn keep_position(&self, branch: &str, snapshot: &Oid) -> Result<(), GitError> {
        let Some(dir) = self.entry()? else { return Ok(()) };
        let head = fs::read_to_string(dir.join(HEAD)).unwrap_or_default();
        let refname = format!("refs/heads/{branch}");
        let on_branch = head.trim_end().strip_prefix("ref: ") == Some(refname.as_str());
        if on_branch && underway(&dir).is_none() {
            return Ok(());
        }
        let folder = folder(&self.git, snapshot);
        locks::private_dir(&folder)?;
        let failed = |source| GitError::io("keep", &folder, source);
        for name in SEQUENCERS.iter().chain(MERGES).chain(BESIDE) {
            copy(&dir.join(name), &folder.join(name)).map_err(failed)?;
        }
        let tip = self.git.ref_target(&refname)?;
        let tip = tip.as_ref().map_or("", Oid::as_str);
        for (name, text) in [(HEAD, head.as_str()), (TIP, tip), (WHOLE, "")] {
            fs::write(folder.join(name), text).map_err(failed)?;
        }
        flush::files(&folder)
    }

    /// Whether something is kept beside a snapshot.
    pub(crate) fn has_position(&self, snapshot: &Oid) -> bool {
        folder(&self.git, snapshot).join(WHOLE).exists()
    }

    /// Puts that back into the worktree, which is on `branch` at the commit that HEAD was at.
    pub(crate) fn put_position(&self, branch: &str, snapshot: &Oid) -> Result<(), GitError> {
        if !self.has_position(snapshot) {
            return Ok(());
        }
        let (dir, folder) = (self.git_dir()?, folder(&self.git, snapshot));
        let failed = |source| GitError::io("put back", &dir, source);
        for name in SEQUENCERS.iter().chain(MERGES).chain(BESIDE) {
            copy(&folder.join(name), &dir.join(name)).map_err(failed)?;
        }
        let here = self.position(&dir)?.0;
        let head = fs::read_to_string(folder.join(HEAD)).map_err(failed)?;
        let head = match (head.trim_end().strip_prefix("ref: "), &here) {
            // Its own branch, if that is still where it was: else the commit that it was at.
            (Some(name), Some(here)) if self.git.ref_target(name)?.as_ref() != Some(here) => {
                format!("{here}\n")
            }
            _ => head,
        };
        let half = dir.join("piton-head.new");
        let put = fs::write(&half, head).and_then(|()| fs::rename(&half, dir.join(HEAD)));
        put.map_err(failed)?;
        let tip = fs::read_to_string(folder.join(TIP)).map_err(failed)?;
        let Ok(tip) = Oid::new(tip.trim()) else { return Ok(()) };
        let refname = format!("refs/heads/{branch}");
        let now = self.git.ref_target(&refname)?;
        if now.as_ref() != Some(&tip) && self.git.commit(tip.as_str()).is_ok() {
            self.git.move_ref(&refname, &tip, now.as_ref(), "piton: back where it was")?;
        }
        Ok(())
    }
}

fn folder(git: &Git, snapshot: &Oid) -> PathBuf {
    git.state_dir().join("positions").join(snapshot.as_str())
}

/// Copies a file or a folder of files, where there is one.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(from) else { return Ok(()) };
    if found.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)?.flatten() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if !found.is_file() {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).map(drop)
}

/// Forgets what was kept beside snapshots that are gone.
pub(crate) fn forget_positions(git: &Git) {
    let kept = fs::read_dir(git.state_dir().join("positions")).into_iter().flatten().flatten();
    for place in kept {
        let name = place.file_name().into_string().ok();
        let Some(snapshot) = name.and_then(|name| Oid::new(name).ok()) else { continue };
        if git.commit(snapshot.as_str()).is_err() {
            let _stays_then = locks::set_aside(git, &place.path());
        }
    }
}
