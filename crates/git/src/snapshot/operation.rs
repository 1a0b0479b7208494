//! What git was in the middle of when a snapshot was taken: a merge, a cherry-pick, a revert, a rebase, a
//! bisection. A tree cannot say it, so the message does, and the commits it is about stay reachable as
//! long as the snapshot is: whoever puts it back can go on. All of it is read from files that an agent
//! may have written, so nothing here fails a snapshot.

use std::fs;
use std::path::Path;

use piton_core::ids::Oid;
use serde::Serialize;

use crate::file;
use crate::repo::Git;
use crate::worktree::{Operation, in_progress};

/// The trailer of a snapshot's message.
const TRAILER: &str = "Piton-Operation";

const NAMES: [&str; 6] =
    ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "onto", "orig-head", "stopped-sha"];
/// Commits that are kept with one operation: an octopus has fewer arms.
const COMMITS_MAX: usize = 16;
/// The longest name of a branch that is told.
const NAME_MAX: usize = 200;

/// An operation that was begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Begun {
    pub what: Operation,
    /// What it is about, as git's own files call it: `MERGE_HEAD`, `onto`, `orig-head`.
    pub commits: Vec<(String, Oid)>,
    /// The branch that is rebased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

impl Begun {
    /// What is under way, by a worktree's git directory.
    pub(super) fn in_dir(dir: &Path) -> Option<Begun> {
        let what = in_progress(dir)?.operation;
        let there = |name: &&str| fs::symlink_metadata(dir.join(name)).is_ok();
        let rebase = ["rebase-merge", "rebase-apply"].into_iter().find(there);
        let files: Vec<(&str, String)> = match (what, rebase) {
            (Operation::Rebase | Operation::Am, Some(folder)) => {
                let names = ["onto", "orig-head", "stopped-sha"];
                names.map(|name| (name, format!("{folder}/{name}"))).to_vec()
            }
            (Operation::Merge, _) => vec![("MERGE_HEAD", "MERGE_HEAD".to_owned())],
            (Operation::CherryPick, _) => {
                vec![("CHERRY_PICK_HEAD", "CHERRY_PICK_HEAD".to_owned())]
            }
            (Operation::Revert, _) => vec![("REVERT_HEAD", "REVERT_HEAD".to_owned())],
            (Operation::Rebase | Operation::Am | Operation::Bisect, _) => Vec::new(),
        };
        let ids = |(name, path): &(&str, String)| {
            let text = file::text(dir.join(path)).unwrap_or_default();
            let ids = text.lines().filter_map(|line| Oid::new(line.trim()).ok());
            ids.map(|id| ((*name).to_owned(), id)).collect::<Vec<_>>()
        };
        let commits = files.iter().flat_map(ids).take(COMMITS_MAX).collect();
        let branch = rebase.and_then(|folder| named(&dir.join(folder).join("head-name")));
        Some(Begun { what, commits, branch })
    }

    /// Without the commits that are not there: nothing can be made of those.
    pub(super) fn known_to(mut self, git: &Git) -> Begun {
        let listed: String = self.commits.iter().map(|(_, id)| format!("{id}\n")).collect();
        let asked = git.call().args(&["cat-file", "--batch-check=%(objecttype)"]);
        let answer = asked.input(listed.into_bytes()).run().ok();
        let kinds = answer.as_ref().and_then(|answer| answer.text("git cat-file").ok());
        let mut kinds = kinds.unwrap_or_default().lines();
        self.commits.retain(|_| kinds.next() == Some("commit"));
        self
    }

    pub(super) fn commits(&self) -> impl Iterator<Item = &Oid> {
        self.commits.iter().map(|(_, id)| id)
    }

    /// The same for the same operation.
    pub(super) fn digest(&self) -> String {
        blake3::hash(self.trailer().as_bytes()).to_hex().to_string()
    }

    /// The line of a snapshot's message.
    pub(super) fn trailer(&self) -> String {
        let commits = self.commits.iter().map(|(name, id)| format!(" {name}={id}"));
        let branch = self.branch.iter().map(|name| format!(" branch={name}"));
        let parts: String = commits.chain(branch).collect();
        format!("{TRAILER}: {}{parts}", self.what.word())
    }

    /// What a snapshot's message says.
    pub(super) fn told_in(message: &str) -> Option<Begun> {
        let rows = message.lines().rev().filter_map(|line| line.strip_prefix(TRAILER));
        let row = rows.filter_map(|row| row.strip_prefix(": ")).next()?;
        let mut words = row.split(' ');
        let what = words.next().and_then(Operation::of_word)?;
        let mut told = Begun { what, commits: Vec::new(), branch: None };
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            match (name, Oid::new(value)) {
                ("branch", _) if is_name(value) => told.branch = Some(value.to_owned()),
                (name, Ok(id)) if NAMES.contains(&name) => told.commits.push((name.to_owned(), id)),
                _ => {}
            }
        }
        Some(told)
    }

    /// How to go on with it in a worktree that the snapshot was put back into; nothing where git has no
    /// way to.
    pub fn go_on(&self) -> Option<String> {
        let of =
            |name: &str| self.commits.iter().find(|(known, _)| known == name).map(|(_, id)| id);
        if let Some(first) = of("MERGE_HEAD") {
            let ids = self.commits().map(Oid::as_str).collect::<Vec<_>>().join(" ");
            let file = "\"$(git rev-parse --git-path MERGE_HEAD)\"";
            let message = format!("Merge commit {}", first.short());
            return Some(format!("printf '%s\\n' {ids} > {file} && git commit -m '{message}'"));
        }
        if let Some(id) = of("CHERRY_PICK_HEAD") {
            return Some(format!("git commit -C {id}"));
        }
        if let Some(id) = of("REVERT_HEAD") {
            return Some(format!("git commit -m 'Revert {}'", id.short()));
        }
        // What it had done is the snapshot's own history; the branch is where it began.
        let branch = self.branch.as_deref()?.strip_prefix("refs/heads/")?;
        Some(format!("git rebase {} {branch}", of("onto")?))
    }
}

/// The name of a branch, as far as it can be one.
fn named(path: &Path) -> Option<String> {
    let text = file::text(path).ok()?;
    let name = text.lines().next()?.trim();
    is_name(name).then(|| name.to_owned())
}

/// What can be told in a line, and typed as it is. Others are not told.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    text.starts_with("refs/heads/") && text.len() <= NAME_MAX && text.chars().all(plain)
}
