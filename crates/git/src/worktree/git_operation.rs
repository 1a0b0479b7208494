//! What git is in the middle of in a worktree: a rebase, a merge, a bisection. Recognised by the files of
//! the worktree's git directory, named for people, and ended without losing a commit that only those
//! files, or a branch that is about to move, still name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use piton_core::ids::Oid;
use serde::{Deserialize, Serialize};

use super::Worktree;
use crate::file;
use crate::repo::{GitError, locks};

/// States of an operation that git would go on with. Folders and files of a worktree's git directory.
const SEQUENCERS: &[&str] = &["rebase-merge", "rebase-apply", "sequencer", "BISECT_LOG"];
pub(super) const MERGES: &[&str] =
    &["MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD"];

/// What else of a git directory may name commits that nothing else names.
const NAMING: &[&str] = &["HEAD", "MERGE_AUTOSTASH", "REBASE_HEAD", "BISECT_START"];
/// A file of an operation that is larger names no commits, or too many to keep by name.
const NAMING_MAX: u64 = 1 << 20;
/// Where commits are kept that only a branch, or an unfinished operation, has named.
const ASIDE: &str = "refs/piton/aside";

/// An operation of git's that can be begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Rebase,
    Am,
    Merge,
    CherryPick,
    Revert,
    Bisect,
}

impl Operation {
    const ALL: [Operation; 6] = [
        Operation::Rebase,
        Operation::Am,
        Operation::Merge,
        Operation::CherryPick,
        Operation::Revert,
        Operation::Bisect,
    ];

    /// As git's command for it is called, and as it is told in a snapshot and with `--json`.
    pub fn word(self) -> &'static str {
        match self {
            Operation::Rebase => "rebase",
            Operation::Am => "am",
            Operation::Merge => "merge",
            Operation::CherryPick => "cherry-pick",
            Operation::Revert => "revert",
            Operation::Bisect => "bisect",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Operation> {
        Operation::ALL.into_iter().find(|operation| operation.word() == word)
    }

    pub fn named(self) -> &'static str {
        match self {
            Operation::Rebase => "a rebase",
            Operation::Am => "applying patches (git am)",
            Operation::Merge => "a merge",
            Operation::CherryPick => "a cherry-pick",
            Operation::Revert => "a revert",
            Operation::Bisect => "a bisection",
        }
    }

    /// How it is finished, and how it is given up.
    pub fn ways_out(self) -> (String, String) {
        match self {
            Operation::Bisect => ("git bisect good".to_owned(), "git bisect reset".to_owned()),
            _ => {
                (format!("git {} --continue", self.word()), format!("git {} --abort", self.word()))
            }
        }
    }
}

/// An operation, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InProgress {
    pub operation: Operation,
    /// The number of the commit that it stands at, and of all.
    pub at: Option<(u64, u64)>,
}

impl std::fmt::Display for InProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.operation.named())?;
        match self.at {
            Some((at, of)) => write!(f, " (at {at} of {of})"),
            None => Ok(()),
        }
    }
}

/// What git is in the middle of in a worktree, by its git directory. A rebase stands before what it does on its way.
pub(crate) fn in_progress(dir: &Path) -> Option<InProgress> {
    let has = |name: &str| fs::symlink_metadata(dir.join(name)).is_ok();
    let number = |name: &str| file::text(dir.join(name)).ok()?.trim().parse().ok();
    let progress = |at: &str, of: &str| Some((number(at)?, number(of)?));
    let plain = |operation| Some(InProgress { operation, at: None });
    if has("rebase-merge") {
        let at = progress("rebase-merge/msgnum", "rebase-merge/end");
        return Some(InProgress { operation: Operation::Rebase, at });
    }
    if has("rebase-apply") {
        let am = has("rebase-apply/applying");
        let operation = if am { Operation::Am } else { Operation::Rebase };
        let at = progress("rebase-apply/next", "rebase-apply/last");
        return Some(InProgress { operation, at });
    }
    if has("MERGE_HEAD") {
        return plain(Operation::Merge);
    }
    let todo = file::text(dir.join("sequencer/todo")).unwrap_or_default();
    if has("REVERT_HEAD") || todo.trim_start().starts_with("revert") {
        return plain(Operation::Revert);
    }
    if has("CHERRY_PICK_HEAD") || has("sequencer") {
        return plain(Operation::CherryPick);
    }
    if has("BISECT_LOG") { plain(Operation::Bisect) } else { None }
}

impl Worktree {
    /// What git is in the middle of here, if there is a worktree.
    pub fn in_progress(&self) -> Option<InProgress> {
        in_progress(&self.git_dir().ok()?)
    }

    /// Whether one of these files has the marks that a conflict leaves.
    pub fn has_conflict_marks(&self, paths: &[String]) -> bool {
        let marked = |path: &String| {
            let bytes = file::read(self.path.join(path)).unwrap_or_default();
            bytes.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"<<<<<<< "))
        };
        paths.iter().any(marked)
    }

    /// Ends what git is in the middle of: its files are moved to piton's own folder.
    pub(crate) fn end_operations(&self, dir: &Path) -> Result<(), GitError> {
        let states = MERGES.iter().chain(SEQUENCERS).map(|name| dir.join(name));
        for state in states.filter(|state| fs::symlink_metadata(state).is_ok()) {
            locks::set_aside(&self.git, &state)?;
        }
        Ok(())
    }

    /// Gives a ref to every commit that only `branch`, HEAD or an unfinished operation names and `to` does
    /// not have: before the branch moves to `to` and the operation ends. They are found as
    /// `refs/piton/aside/<branch>/<commit>`.
    pub(super) fn keep_named(&self, dir: &Path, branch: &str, to: &Oid) -> Result<(), GitError> {
        let mut named = BTreeSet::new();
        for name in NAMING.iter().chain(SEQUENCERS).chain(MERGES) {
            commits_in(&dir.join(name), &mut named);
        }
        named.extend(self.git.ref_target(&format!("refs/heads/{branch}"))?);
        named.extend(super::branch::last_head(dir));
        named.remove(to);
        self.keep_commits(branch, named, to)
    }

    /// The same for commits that are known by name.
    pub(super) fn keep_commits(
        &self,
        branch: &str,
        named: BTreeSet<Oid>,
        to: &Oid,
    ) -> Result<(), GitError> {
        let ask = |not: &[&str]| {
            // One that is no commit here has nothing that could be lost.
            let call = self.git.call_in(self.git.common_dir());
            let call = call.args(&["rev-list", "--ignore-missing", "--parents"]);
            let call = named.iter().fold(call, |call, commit| call.arg(commit.as_str()));
            call.args(&["--not", to.as_str()]).args(not).run()
        };
        if named.is_empty() || ask(&[])?.stdout.is_empty() {
            return Ok(());
        }
        let own = format!("--exclude=refs/heads/{branch}");
        // Its own worktree names it, too, and is about to move on.
        let answer = ask(&["--single-worktree", &own, "--all"])?;
        let text = answer.text("git rev-list")?;
        let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split(' ').collect()).collect();
        // Whoever has a child among them is kept with it.
        let parents: BTreeSet<&str> =
            rows.iter().flat_map(|row| row[1..].iter().copied()).collect();
        let short = branch.strip_prefix("piton/").unwrap_or(branch);
        for tip in rows.iter().map(|row| row[0]).filter(|id| !parents.contains(id)) {
            let tip = crate::repo::oid(tip.as_bytes(), "git rev-list")?;
            let refname = format!("{ASIDE}/{short}/{tip}");
            self.git.move_ref(&refname, &tip, None, "piton: kept before its branch moved")?;
        }
        Ok(())
    }
}

/// Everything that looks like a commit's full name, in a file or in the files of a folder.
fn commits_in(path: &Path, found: &mut BTreeSet<Oid>) {
    let Ok(seen) = fs::symlink_metadata(path) else { return };
    if seen.is_dir() {
        let files = fs::read_dir(path).into_iter().flatten().flatten();
        return files.for_each(|file| commits_in(&file.path(), found));
    }
    if !seen.is_file() || seen.len() > NAMING_MAX {
        return;
    }
    let bytes = file::read(path).unwrap_or_default();
    let words = bytes.split(|byte| !byte.is_ascii_hexdigit());
    let full = words.filter(|word| word.len() == 40 || word.len() == 64);
    found.extend(full.filter_map(|word| Oid::new(str::from_utf8(word).ok()?).ok()));
}
