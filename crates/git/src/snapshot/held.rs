//! Whether a snapshot holds all of a worktree. Looks only: nothing is written.

use std::collections::BTreeMap;

use piton_core::event::Omission;
use piton_core::ids::Oid;

use super::compare::on_top;
use super::nofollow::Root;
use super::read::Sink;
use super::restore::Header;
use super::staged::{Staged, digest_between, files_of};
use super::stat_cache::Known;
use super::walk::{Ground, NestedIndexes, Seen, walk};
use super::{left_out, user_rules};
use crate::repo::hash::Id;
use crate::repo::pack::Mode;
use crate::repo::{GitError, names};
use crate::worktree::Worktree;

/// How many snapshots are compared with what is on disk: the newest are likeliest.
const COMPARED_MAX: usize = 20;

/// What a worktree has that a snapshot has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    Nothing,
    /// Files of the snapshot are missing, and nothing else is different.
    OnlyMissing,
    Newer,
}

/// Compares a worktree with a snapshot that was taken of it.
pub fn beyond(tree: &Worktree, snapshot: &Oid) -> Result<Beyond, GitError> {
    let header = Header::read(tree.git(), snapshot)?;
    let head = tree.head_in(&tree.git_dir()?)?.commit;
    let (memory, capture) = on_top(tree, snapshot, &Sink::nowhere())?;
    let same_place = head.as_ref() == header.parents.first()
        && memory.staged.digest() == staged_in(tree, &header)?
        && left_out(&memory, &capture).is_empty();
    let is_gone = |now: &Option<(Mode, Id)>| now.is_none();
    Ok(match capture.changes.iter().all(|(_, now)| is_gone(now)) && same_place {
        false => Beyond::Newer,
        true if capture.changes.is_empty() => Beyond::Nothing,
        true => Beyond::OnlyMissing,
    })
}

/// A snapshot with a ref below `folder` that has exactly what is there: files, HEAD and index.
pub fn held_by(tree: &Worktree, folder: &str) -> Result<Option<String>, GitError> {
    let git = tree.git();
    let head = tree.head_in(&tree.git_dir()?)?.commit;
    let Some(head) = head else { return Ok(None) };
    let candidates = taken_at(tree, folder, &head)?;
    if candidates.is_empty() {
        return Ok(None);
    }
    let (memory, capture) = on_top(tree, &head, &Sink::nowhere())?;
    if !left_out(&memory, &capture).is_empty() {
        return Ok(None);
    }
    let files = |of: &Oid| -> Result<BTreeMap<_, _>, GitError> {
        Ok(files_of(git.call(), of)?.into_iter().collect())
    };
    let mut now = files(&head)?;
    now.extend(capture.changes);
    now.retain(|_, to| to.is_some());
    let staged = memory.staged.digest();
    for (refname, commit) in candidates {
        let header = Header::read(git, &commit)?;
        if files(&commit)? == now && staged_in(tree, &header)? == staged {
            return Ok(Some(refname));
        }
    }
    Ok(None)
}

/// Snapshots that were taken with this commit checked out, the newest first.
fn taken_at(tree: &Worktree, folder: &str, head: &Oid) -> Result<Vec<(String, Oid)>, GitError> {
    let format = "--format=%(refname) %(objectname) %(parent)";
    let words = ["for-each-ref", "--sort=-creatordate", format, "--", folder];
    let answer = tree.git().call().args(&words).run()?;
    let read = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let &[name, commit, parent, ..] = words.as_slice() else { return None };
        (parent == head.as_str()).then_some(())?;
        Some((name.to_owned(), Oid::new(commit).ok()?))
    };
    let found = answer.text("git for-each-ref")?.lines().filter_map(read);
    Ok(found.take(COMPARED_MAX).collect())
}

/// What a snapshot has staged, as a digest.
fn staged_in(tree: &Worktree, header: &Header) -> Result<String, GitError> {
    match header.parents.as_slice() {
        [head, index, more @ ..] => {
            digest_between(|| tree.git().call(), (head, index), more.first())
        }
        _ => Ok(Staged::default().digest()),
    }
}

/// Something in a worktree that no snapshot can hold and no rule ignores, as far as that shows without
/// reading files.
pub fn unsnapshotable(tree: &Worktree) -> Result<Option<Omission>, GitError> {
    let (_, seen) = look(tree)?;
    let nested = seen.nested.first().map(|nested| Omission {
        path: names::shown(&nested.path),
        why: "a repository of its own".to_owned(),
    });
    let left_out = || {
        let left = seen.left_out.first()?;
        Some(Omission { path: names::shown(&left.path), why: left.why.clone() })
    };
    Ok(nested.or_else(left_out))
}

/// Walks a worktree without reading its files.
pub(super) fn look(tree: &Worktree) -> Result<(Staged, Seen), GitError> {
    let dir = tree.git_dir()?;
    let head = tree.head_in(&dir)?.commit;
    let mut staged = Staged::default();
    staged.refresh(tree, &dir, head.as_ref())?;
    let failed = |source| GitError::io("look into", tree.path(), source);
    let root = &Root::open(tree.path()).map_err(failed)?;
    let (git, known, tracked) = (tree.git(), &Known::default(), &staged.tracked);
    let (user, indexes) = (&user_rules()?, &NestedIndexes::default());
    let mut seen = walk(&Ground { git, root, known, tracked, user, indexes })?;
    seen.nested.sort();
    Ok((staged, seen))
}
