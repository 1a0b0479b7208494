//! Bringing two commits together without any worktree: what landing a commit on a branch takes, and the
//! merge that it may need. Nothing here moves a branch.

use std::path::PathBuf;

use piton_core::ids::Oid;

use crate::repo::attributes::Attributes;
use crate::repo::keep::{HELD, Name, keep};
use crate::repo::{Git, GitError, commit_tree, drivers, names, oid};

/// What landing a commit takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Landing {
    /// The branch has the commit.
    Nothing {
        tip: Oid,
    },
    FastForward {
        onto: Oid,
        to: Oid,
    },
    /// `to` is the merge commit: made and on disk, not yet on the branch.
    Merge {
        onto: Oid,
        to: Oid,
    },
    Conflict {
        onto: Oid,
        paths: Vec<String>,
    },
    /// The commit and the branch have nothing in common.
    Unrelated,
    /// Somebody works on the branch: it must not move under them.
    CheckedOut {
        worktree: PathBuf,
    },
}

/// Decides how `commit` comes onto the run's branch; moves nothing.
pub fn prepare(
    git: &Git,
    run_branch: &str,
    commit: &Oid,
    message: &str,
) -> Result<Landing, GitError> {
    let refname = format!("refs/heads/{run_branch}");
    let onto =
        git.ref_target(&refname)?.ok_or_else(|| GitError::NoRef { refname: refname.clone() })?;
    let fork = git.fork_point(&onto, commit)?;
    if fork.as_ref() == Some(commit) {
        return Ok(Landing::Nothing { tip: onto });
    }
    if let Some(worktree) = git.checked_out(&refname) {
        return Ok(Landing::CheckedOut { worktree });
    }
    match fork {
        None => return Ok(Landing::Unrelated),
        Some(fork) if fork == onto => {
            return Ok(Landing::FastForward { onto, to: commit.clone() });
        }
        Some(_) => {}
    }
    merge(git, onto, commit, message, &format!("{HELD}/{run_branch}"))
}

fn merge(
    git: &Git,
    onto: Oid,
    commit: &Oid,
    message: &str,
    held: &str,
) -> Result<Landing, GitError> {
    let parents = [onto.clone(), commit.clone()];
    Ok(match merge_commit(git, (&onto, commit), &parents, (message, held))? {
        MergeResult::Done(to) => Landing::Merge { onto, to },
        MergeResult::Conflict { paths } => Landing::Conflict { onto, paths },
    })
}

/// What came of bringing two commits together.
pub enum MergeResult {
    /// A tree, or a commit of it.
    Done(Oid),
    Conflict {
        paths: Vec<String>,
    },
}

/// A commit with everything of both. It gets a ref of piton's own, so that it is still there when a branch
/// moves to it.
pub fn merge_commit(
    git: &Git,
    both: (&Oid, &Oid),
    parents: &[Oid],
    (message, held): (&str, &str),
) -> Result<MergeResult, GitError> {
    let drivers = drivers::overrides(git.call())?;
    let call = || git.call().configs(&drivers);
    let mut conflict = Vec::new();
    let old = git.ref_target(held)?;
    let made =
        keep(git, Name { refname: held, old, why: "piton: merge" }, |_| {
            match merged_tree(git, both)? {
                MergeResult::Done(tree) => commit_tree(call, &tree, parents, message).map(Some),
                MergeResult::Conflict { paths } => {
                    conflict = paths;
                    Ok(None)
                }
            }
        })?;
    Ok(match made {
        Some(commit) => MergeResult::Done(commit),
        None => MergeResult::Conflict { paths: conflict },
    })
}

/// The tree of two commits brought together; no worktree has a part in it.
pub fn merged_tree(git: &Git, (onto, commit): (&Oid, &Oid)) -> Result<MergeResult, GitError> {
    let drivers = drivers::overrides(git.call())?;
    let words = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"];
    let attributes = Attributes::of(git, onto)?;
    let asked = attributes.call(git).configs(&drivers).args(&words);
    let asked = asked.args(&[onto.as_str(), commit.as_str()]);
    let answer = asked.accept(&[0, 1]).run()?;
    Ok(match answer.code {
        1 => MergeResult::Conflict { paths: answer.parts().skip(1).map(names::shown).collect() },
        _ => MergeResult::Done(oid(&answer.stdout, "git merge-tree")?),
    })
}
