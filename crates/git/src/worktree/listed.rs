//! The repository's own list of worktrees, read from its files: asking git would have it look at every
//! one of them. And what in a worktree's git directory says that somebody is in the middle of something.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::create::{BEING_MADE, LOCKED};
use super::state::place_of;
use super::underway::{MERGES, underway};
use crate::repo::{Git, plain};

/// An entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    /// The folder that it names, whether it is there or not.
    pub place: PathBuf,
    pub head: Option<Oid>,
    /// The branch's short name.
    pub branch: Option<String>,
}

impl Listed {
    /// Whether a rebase there will put a branch at its end.
    pub(super) fn rebases(&self, git: &Git, branch: &str) -> bool {
        let dir = match self.name.as_str() {
            "" => git.common_dir().to_owned(),
            name => git.common_dir().join("worktrees").join(name),
        };
        let names = |file: &str| {
            let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
            text.trim_end().strip_prefix("refs/heads/") == Some(branch)
        };
        names("rebase-merge/head-name") || names("rebase-apply/head-name")
    }
}

/// Every linked worktree, and the main one.
pub fn listed(git: &Git) -> Vec<Listed> {
    let folder = git.common_dir().join("worktrees");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let linked = entries.filter_map(|entry| {
        let (dir, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        Some(at(git, &dir, name, place_of(&dir)?))
    });
    let main = at(git, git.common_dir(), String::new(), git.main_root().to_owned());
    let mut all: Vec<Listed> = linked.chain([main]).collect();
    all.sort_by(|a, b| a.place.cmp(&b.place));
    all
}

fn at(git: &Git, dir: &Path, name: String, place: PathBuf) -> Listed {
    let (head, branch) = match plain::head(dir, git.common_dir()) {
        Some((head, branch)) => (Some(head), branch),
        None => (None, None),
    };
    let branch = branch.and_then(|name| name.strip_prefix("refs/heads/").map(str::to_owned));
    Listed { name, place, head, branch }
}

/// Why a worktree must be left alone, by its git directory: somebody locked it, git is at work in it, or
/// an operation was begun and not ended.
pub fn obstacle_in(dir: &Path) -> Option<String> {
    if let Ok(reason) = fs::read_to_string(dir.join(LOCKED)) {
        let reason = reason.trim();
        // piton's own lock says that somebody is at work: whoever that is, is known by better signs.
        if !reason.starts_with("piton: ") || reason.starts_with(BEING_MADE) {
            return Some(match reason {
                "" => "it is locked (git worktree lock)".to_owned(),
                reason => format!("it is locked (git worktree lock): {reason}"),
            });
        }
    }
    let is_there = |name: &&str| fs::symlink_metadata(dir.join(name)).is_ok();
    if let Some(lock) = ["index.lock", "HEAD.lock"].into_iter().find(is_there) {
        return Some(format!("git is at work in it ({lock})"));
    }
    let begun = match underway(dir) {
        Some(underway) => underway.to_string(),
        None if MERGES.iter().any(is_there) => "a merge".to_owned(),
        None => return None,
    };
    Some(format!("{begun} was begun in it and is not ended"))
}
