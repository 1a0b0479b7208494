//! How a commit comes onto a run's branch: not at all because it is there, by moving the branch
//! forward, by a merge made without any worktree, or not without a person. Nothing is moved here.

use std::path::PathBuf;

use piton_core::ids::Oid;

use crate::git::keep::{HELD, Name, keep};
use crate::git::{Call, Git, GitError, commit_tree, drivers, locks, names, oid};

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
    /// Somebody works on the branch: it must not move under them.
    CheckedOut {
        worktree: PathBuf,
    },
}

/// Decides how `commit` comes onto the run's branch.
pub fn prepare(
    git: &Git,
    run_branch: &str,
    commit: &Oid,
    message: &str,
) -> Result<Landing, GitError> {
    let refname = format!("refs/heads/{run_branch}");
    let onto =
        git.ref_target(&refname)?.ok_or_else(|| GitError::NoRef { refname: refname.clone() })?;
    let words = ["merge-base", onto.as_str(), commit.as_str()];
    let answer = git.call().args(&words).accept(&[0, 1]).run()?;
    let fork = match answer.code {
        0 => Some(oid(&answer.stdout, "git merge-base")?),
        _ => None,
    };
    if fork.as_ref() == Some(commit) {
        return Ok(Landing::Nothing { tip: onto });
    }
    if let Some(worktree) = git.checked_out(&refname)? {
        return Ok(Landing::CheckedOut { worktree });
    }
    if fork.as_ref() == Some(&onto) {
        return Ok(Landing::FastForward { onto, to: commit.clone() });
    }
    merge(git, onto, commit, message, &format!("{HELD}/{run_branch}"))
}

/// The merge commit gets a ref of piton's own, so that it is still there when the branch moves.
fn merge(
    git: &Git,
    onto: Oid,
    commit: &Oid,
    message: &str,
    held: &str,
) -> Result<Landing, GitError> {
    let drivers = drivers::overrides(git.call())?;
    let call = || from_scratch(git).configs(&drivers);
    let mut paths = Vec::new();
    let old = git.ref_target(held)?;
    let made = keep(git, Name { refname: held, old, why: "piton: landing" }, |_| {
        let words = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"];
        let asked = call().env("GIT_ATTR_SOURCE", onto.as_str()).args(&words);
        let answer = asked.args(&[onto.as_str(), commit.as_str()]).accept(&[0, 1]).run()?;
        if answer.code == 1 {
            paths = answer.parts().skip(1).map(names::shown).collect();
            return Ok(None);
        }
        let tree = oid(&answer.stdout, "git merge-tree")?;
        commit_tree(call, &tree, &[onto.clone(), commit.clone()], message).map(Some)
    })?;
    Ok(match made {
        Some(to) => Landing::Merge { onto, to },
        None => Landing::Conflict { onto, paths },
    })
}

/// Merge drivers get their files as temporary ones where git runs: not in anybody's worktree.
fn from_scratch(git: &Git) -> Call {
    let scratch = git.state_dir().join("scratch");
    match locks::private_dir(&scratch) {
        Ok(()) => git.call().inside(&scratch),
        Err(_) => git.call(),
    }
}
