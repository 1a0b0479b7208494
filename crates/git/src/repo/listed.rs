//! The repository's own list of worktrees, read from its files: asking git would have it look at every
//! one of them, and wait for what is no file. Only refs in tables are left to git.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::plain::place_of;
use super::{Git, GitError, names, plain};
use crate::file;

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
    pub(crate) fn rebases(&self, git: &Git, branch: &str) -> bool {
        let dir = match self.name.as_str() {
            "" => git.common_dir().to_owned(),
            name => git.common_dir().join("worktrees").join(name),
        };
        let names = |file: &str| {
            let text = file::text(dir.join(file)).unwrap_or_default();
            text.trim_end().strip_prefix("refs/heads/") == Some(branch)
        };
        names("rebase-merge/head-name") || names("rebase-apply/head-name")
    }
}

/// Every linked worktree, and the main one.
pub fn listed(git: &Git) -> Vec<Listed> {
    if git.common_dir().join("reftable").exists() {
        return asked(git).unwrap_or_default();
    }
    let folder = git.common_dir().join("worktrees");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let linked = entries.filter_map(|entry| {
        let (dir, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        Some(at(git, &dir, name, place_of(&dir)?))
    });
    let main = at(git, git.common_dir(), String::new(), git.main_root().to_owned());
    let main = Some(main).filter(|_| !git.is_bare());
    let mut all: Vec<Listed> = linked.chain(main).collect();
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

/// The list as git has it. It takes the git directory for the main worktree where that lies apart, as a
/// submodule's does; that one comes first.
fn asked(git: &Git) -> Result<Vec<Listed>, GitError> {
    let answer = git.call().args(&["worktree", "list", "--porcelain", "-z"]).run()?;
    let mut all: Vec<Listed> = Vec::new();
    for part in answer.parts() {
        if let Some(path) = part.strip_prefix(b"worktree ") {
            let is_main = all.is_empty();
            let place = if is_main { git.main_root().to_owned() } else { names::path(path) };
            let name = if is_main { None } else { place.file_name() };
            let name = name.unwrap_or_default().to_string_lossy().into_owned();
            all.push(Listed { name, place, head: None, branch: None });
        }
        let Some(last) = all.last_mut() else { continue };
        if let Some(id) = part.strip_prefix(b"HEAD ") {
            last.head = Oid::new(String::from_utf8_lossy(id)).ok();
        } else if let Some(name) = part.strip_prefix(b"branch refs/heads/") {
            last.branch = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(all)
}
