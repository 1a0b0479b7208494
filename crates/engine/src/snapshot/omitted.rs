//! What a reset would remove and no snapshot holds: moved out of the worktree first.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::event::Snapshot;

use super::compare::on_top;
use super::read::Sink;
use super::walk::is_within;
use crate::git::{GitError, is_missing, names};
use crate::worktree::{Worktree, carry};

/// Moves what a reset would remove, and the snapshot does not hold, into a folder: the worktree is
/// looked at anew, whatever the snapshot lists. An error means: do not reset. Nested repositories stay
/// where they are, a reset does not touch them. Nothing may run in the tree.
pub fn keep_omitted(tree: &Worktree, snapshot: &Snapshot, into: &Path) -> Result<(), GitError> {
    let mut paths = unkept(tree, snapshot)?;
    paths.sort();
    paths.dedup();
    for path in paths.iter().filter(|path| names::is_inside(path)) {
        let found = match fs::symlink_metadata(tree.path().join(path)) {
            Ok(found) => found,
            Err(error) if is_missing(&error) => continue,
            Err(source) => return Err(GitError::io("look at", path, source)),
        };
        if !found.is_dir() {
            carry(tree.path(), path, into)?;
        }
    }
    Ok(())
}

/// What cannot be kept, and what is not as the snapshot has it.
fn unkept(tree: &Worktree, snapshot: &Snapshot) -> Result<Vec<PathBuf>, GitError> {
    let (_, capture) = on_top(tree, &snapshot.tree, &Sink::nowhere())?;
    let changed = capture.changes.iter().map(|(path, _)| path);
    let left_out = capture.left_out.iter().map(|left| &left.path);
    let nested =
        |path: &&Vec<u8>| capture.nested.iter().any(|nested| is_within(path, &nested.path));
    Ok(changed.chain(left_out).filter(|path| !nested(path)).map(|path| names::path(path)).collect())
}
