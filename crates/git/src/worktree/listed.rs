//! The repository's own list of worktrees, read from its files: asking git would have it look at every
//! one of them.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::state::place_of;
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
