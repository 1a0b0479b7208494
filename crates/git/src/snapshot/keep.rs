//! The one way to a kept snapshot: it gets the next free number among its claim's. Whoever takes that number
//! first keeps it, and the other one takes the next.

use piton_core::event::Snapshot;
use piton_core::ids::Oid;

use super::{Ask, take};
use crate::repo::{Git, GitError};
use crate::worktree::Worktree;

/// How often a number that another process took meanwhile is passed over.
const TRIES: u32 = 20;

/// Keeps what a worktree holds, if anything differs from the last snapshot. Once more where it fails: a git
/// that was killed, or a file that went meanwhile, says nothing about the next try.
pub fn keep(tree: &Worktree, ask: &Ask) -> Result<Option<Snapshot>, GitError> {
    let once = || numbered(tree.git(), &ask.folder, |number| take(tree, ask, number));
    once().or_else(|_| once())
}

/// Makes something under the next free number of a folder of refs.
pub fn numbered<T>(
    git: &Git,
    folder: &str,
    mut make: impl FnMut(u64) -> Result<T, GitError>,
) -> Result<T, GitError> {
    let mut number = newest(git, folder)?.map_or(0, |newest| newest.number);
    let mut tries = 0;
    loop {
        number += 1;
        match make(number) {
            Err(GitError::RefTaken { .. }) if tries < TRIES => tries += 1,
            made => return made,
        }
    }
}

/// The snapshot with the highest number.
pub struct Newest {
    pub(crate) number: u64,
    pub refname: String,
    pub tree: Oid,
}

/// The newest snapshot of a claim, by its ref.
pub fn newest(git: &Git, folder: &str) -> Result<Option<Newest>, GitError> {
    let Some((refname, tree)) = git.newest_ref(&format!("{folder}/[0-9]*"))? else {
        return Ok(None);
    };
    let number = refname.rsplit('/').next().and_then(|number| number.parse().ok());
    Ok(number.map(|number| Newest { number, refname, tree }))
}
