//! Mends the files of piton's own in the git directory: rights that their owner lacks, and whatever stands
//! where a file or a folder should be. Nothing is deleted: what is in the way is moved aside. A store that
//! cannot be used goes the same way, where a person has said so; what it recorded is gone then, and the work
//! itself is in git.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use piton_git::repo::{GitError, is_missing, locks};
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{Damage, StoreError};
use serde::Serialize;

use crate::error::EngineError;
use crate::project::Project;

/// Folders in piton's own; everything else there is a file.
const FOLDERS: [&str; 9] =
    ["aside", "attempts", "known", "making", "pack", "restoring", "scratch", "undo", "verify"];
/// Folders whose content is checked: it is piton's own, file by file.
const LOOKED_INTO: [&str; 6] = ["attempts", "known", "making", "pack", "restoring", "undo"];
/// What a store is made of.
const STORE: [&str; 4] = ["store.db", "store.db-wal", "store.db-shm", "store.head"];

/// What was mended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repaired {
    pub what: String,
    pub done: String,
}

/// What may be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    Nothing,
    /// Records that a damaged store has lost.
    Records,
}

/// Mends what it can. Safe to repeat.
pub fn repair(project: &Project, give_up: GiveUp) -> Result<Vec<Repaired>, EngineError> {
    let mut repair = Repair { project, done: Vec::new() };
    repair.state_folder()?;
    repair.folder(&project.state)?;
    if give_up == GiveUp::Records {
        repair.store()?;
        repair.lost_refs()?;
    }
    Ok(repair.done)
}

struct Repair<'a> {
    project: &'a Project,
    done: Vec<Repaired>,
}

impl Repair<'_> {
    /// The state folder itself cannot be moved into itself.
    fn state_folder(&mut self) -> Result<(), EngineError> {
        let state = &self.project.state;
        match fs::symlink_metadata(state) {
            Ok(found) if !found.is_dir() => {
                let free = |n: &u32| state.with_file_name(format!("piton.aside-{n}"));
                let to = (1..).map(|n| free(&n)).find(|to| fs::symlink_metadata(to).is_err());
                let to = to.expect("some name is free");
                fs::rename(state, &to).map_err(io(state))?;
                self.tell(state, format!("moved to {}", to.display()));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn folder(&mut self, folder: &Path) -> Result<(), EngineError> {
        match fs::symlink_metadata(folder) {
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(io(folder)(error)),
            Ok(_) => self.mode(folder, 0o700)?,
        }
        let list = fs::read_dir(folder).map_err(io(folder))?;
        let is_top = folder == self.project.state;
        let is_attempts = folder == self.project.state.join("attempts");
        for entry in list.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let named = |names: &[&str]| names.iter().any(|known| name == *known);
            let is_folder = is_attempts || (is_top && named(&FOLDERS)) || named(&["omitted"]);
            let found = fs::symlink_metadata(&path).map_err(io(&path))?;
            match is_folder {
                true if !found.is_dir() => self.set_aside(&path)?,
                true if is_attempts || (is_top && named(&LOOKED_INTO)) => self.folder(&path)?,
                true => self.mode(&path, 0o700)?,
                false if !found.is_file() => self.set_aside(&path)?,
                false => self.mode(&path, 0o600)?,
            }
        }
        Ok(())
    }

    /// Gives the owner its rights, where it lacks any, and takes those of others.
    fn mode(&mut self, path: &Path, wanted: u32) -> Result<(), EngineError> {
        let found = fs::symlink_metadata(path).map_err(io(path))?.permissions().mode() & 0o777;
        if found & wanted == wanted && found & 0o077 == 0 {
            return Ok(());
        }
        fs::set_permissions(path, Permissions::from_mode(wanted)).map_err(io(path))?;
        self.tell(path, format!("mode {found:03o} is {wanted:03o} now"));
        Ok(())
    }

    fn set_aside(&mut self, path: &Path) -> Result<(), EngineError> {
        match locks::set_aside(&self.project.git, path) {
            Ok(to) => {
                self.tell(path, format!("moved to {}", to.display()));
                Ok(())
            }
            Err(GitError::Io { source, .. }) if is_missing(&source) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A store that lacks records goes on with those that it has; one that cannot be read is moved aside.
    fn store(&mut self) -> Result<(), EngineError> {
        let state = &self.project.state;
        let open = || SqliteStore::open(state, Access::Look);
        let is_damaged = |error: &StoreError| {
            error.is_corrupt()
                && !matches!(error, StoreError::Damaged { damage: Damage::RolledBack, .. })
        };
        if let Err(StoreError::Damaged { damage: Damage::RolledBack, .. }) = open() {
            self.set_aside(&state.join("store.head"))?;
        }
        let damaged = match open().and_then(|store| store.examine()) {
            Ok(wrong) => wrong.iter().any(is_damaged),
            Err(error) => is_damaged(&error),
        };
        if !damaged {
            return Ok(());
        }
        let caches = fs::read_dir(state).map_err(io(state))?.flatten().map(|entry| entry.path());
        let is_cache = |path: &PathBuf| path.extension().is_some_and(|found| found == "cache");
        let caches = caches.filter(is_cache).collect::<Vec<_>>();
        let files = STORE.iter().map(|name| state.join(name)).chain(caches);
        files.into_iter().try_for_each(|path| self.set_aside(&path))
    }

    /// Snapshots of runs that no store knows would keep a new store from being made.
    fn lost_refs(&mut self) -> Result<(), EngineError> {
        if self.project.has_store() {
            return Ok(());
        }
        let moved = self.project.git.rename_refs("refs/piton/", "refs/lost-piton/")?;
        if moved > 0 {
            let done = format!("{moved} moved to refs/lost-piton/");
            self.done.push(Repaired { what: "refs/piton/".to_owned(), done });
        }
        Ok(())
    }

    fn tell(&mut self, path: &Path, done: String) {
        self.done.push(Repaired { what: path.display().to_string(), done });
    }
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> EngineError + use<> {
    EngineError::io(path.display().to_string())
}
