//! The repositories that this user has run piton in: one small file of paths in the user's state. It says
//! where to look for runs and decides nothing, so what cannot be written or read is passed over.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use piton_git::file::{private, write_flushed};
use serde::{Deserialize, Serialize};

use crate::config::xdg;
use crate::project::Project;

/// The file's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Registry {
    version: u32,
    /// The main worktrees, in the order in which they were met.
    repositories: Vec<String>,
}

const VERSION: u32 = 1;

/// Adds a project's repository where it is new.
pub(crate) fn remember(project: &Project) {
    let root = project.git.main_root().to_str();
    if let (Some(folder), Some(root)) = (folder(), root) {
        // Runs are found in their own repository all the same.
        let _best_effort = add(&folder, root);
    }
}

/// Every repository that is still there and can be looked at, in the order in which they were met.
pub fn projects() -> Vec<Project> {
    let known = folder().map(|folder| read(&folder).repositories).unwrap_or_default();
    let found = |root: &String| {
        let project = Project::discover(Path::new(root)).ok()?;
        // Another repository around a folder whose own is gone is met by itself.
        (project.git.main_root() == Path::new(root) && project.has_store()).then_some(project)
    };
    known.iter().filter_map(found).collect()
}

/// `$XDG_STATE_HOME/piton`, or the same under `~/.local/state`.
fn folder() -> Option<PathBuf> {
    let env = |name: &str| std::env::var(name).ok();
    Some(xdg(&env, "XDG_STATE_HOME", ".local/state")?.join("piton"))
}

fn file(folder: &Path) -> PathBuf {
    folder.join("repositories.json")
}

/// What cannot be read, or is of another version, has no repositories.
fn read(folder: &Path) -> Registry {
    let bytes = fs::read(file(folder)).unwrap_or_default();
    let read =
        serde_json::from_slice(&bytes).ok().filter(|read: &Registry| read.version == VERSION);
    read.unwrap_or(Registry { version: VERSION, repositories: Vec::new() })
}

fn add(folder: &Path, root: &str) -> io::Result<()> {
    let knows = |registry: &Registry| registry.repositories.iter().any(|known| known == root);
    if knows(&read(folder)) {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let lock = private(&folder.join("repositories.lock"))?;
    lock.lock()?;
    let mut registry = read(folder);
    if !knows(&registry) {
        registry.repositories.push(root.to_owned());
        write_flushed(&file(folder), &registry)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_added_once_by_any_number_of_processes_at_once() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let folder = home.path().join("state/piton");
        std::thread::scope(|scope| {
            for n in 0..16 {
                let folder = &folder;
                scope.spawn(move || add(folder, &format!("/r/{}", n % 8)).expect("added"));
            }
        });
        let mut known = read(&folder).repositories;
        known.sort();
        assert_eq!(known, (0..8).map(|n| format!("/r/{n}")).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_version_is_read_and_what_is_torn_or_newer_is_passed_over() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let known = |text: &str| {
            fs::write(file(home.path()), text).expect("written");
            read(home.path()).repositories
        };
        assert_eq!(known(r#"{"version":1,"repositories":["/r"]}"#), ["/r"]);
        assert!(known(r#"{"version":2,"repositories":["/r"]}"#).is_empty());
        assert!(known(r#"{"version":1,"repos"#).is_empty());
    }
}
