//! What is in the way in a worktree is moved aside, by a rename and never over anything: to a folder of
//! piton's own that a rename reaches.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Worktree;
use crate::repo::{GitError, is_missing, locks};

impl Worktree {
    /// A place that a rename from the worktree reaches: the usual one in the repository, or one beside
    /// the worktree where that is on another file system.
    pub(crate) fn within_reach(&self, usual: &Path) -> PathBuf {
        let device = |path: &Path| {
            let there = path.ancestors().find_map(|path| fs::metadata(path).ok());
            there.map(|found| found.dev())
        };
        if device(usual) == device(&self.path) {
            return usual.to_owned();
        }
        let own = usual.strip_prefix(self.git.state_dir()).unwrap_or(Path::new("omitted"));
        self.path.with_file_name("kept").join(own)
    }

    /// What stands where a file is to come: at its path, or a file where one of its folders has to be.
    pub(super) fn in_place_of(&self, path: &Path) -> Result<Option<PathBuf>, GitError> {
        let mut place = PathBuf::new();
        for part in path.components() {
            place.push(part);
            match fs::symlink_metadata(self.path.join(&place)) {
                Ok(found) if found.is_dir() && place != path => {}
                Ok(_) => return Ok(Some(place)),
                Err(error) if is_missing(&error) => return Ok(None),
                Err(source) => return Err(GitError::io("look at", &place, source)),
            }
        }
        Ok(None)
    }
}

/// A path that was moved out of a worktree, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    pub path: PathBuf,
    pub place: PathBuf,
}

/// A new folder in piton's own, made when the first path is moved there.
#[derive(Default)]
pub(crate) struct Quarantine {
    folder: Option<PathBuf>,
    pub(super) moved: Vec<Quarantined>,
}

impl Quarantine {
    /// Where the paths are, if there were any.
    pub(crate) fn place(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    pub(crate) fn put(&mut self, tree: &Worktree, path: &Path) -> Result<(), GitError> {
        let into = match &self.folder {
            Some(into) => into,
            None => {
                let within = tree.within_reach(&tree.git.state_dir().join("aside"));
                self.folder.insert(locks::new_folder(&within)?)
            }
        };
        let place = carry(&tree.path, path, into)?;
        self.moved.push(Quarantined { path: path.components().collect(), place });
        Ok(())
    }

    /// Moves away what stands where a file is to come: at its path, or at that of one of its folders.
    pub(crate) fn clear(&mut self, tree: &Worktree, path: &Path) -> Result<(), GitError> {
        match tree.in_place_of(path)? {
            Some(place) => self.put(tree, &place),
            None => Ok(()),
        }
    }
}

/// Moves a path out of the worktree, under the same name; returns where it is.
fn carry(root: &Path, path: &Path, into: &Path) -> Result<PathBuf, GitError> {
    let mut to = into.join(path);
    for n in 1.. {
        if fs::symlink_metadata(&to).is_err() {
            break;
        }
        let mut name = OsString::from(path);
        name.push(format!(".{n}"));
        to = into.join(name);
    }
    if let Some(folder) = to.parent() {
        locks::private_dir(folder)?;
    }
    let from = root.join(path);
    let moved = shift(&from, &to);
    moved.map_err(|source| GitError::io("move out of the worktree", &from, source))?;
    Ok(to)
}

/// Moves a file or a folder to where nothing is.
pub(crate) fn shift(from: &Path, to: &Path) -> io::Result<()> {
    match rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            if !fs::symlink_metadata(from)?.is_file() {
                return Err(error);
            }
            fs::copy(from, to)?;
            fs::File::open(to)?.sync_all()?;
            fs::remove_file(from)
        }
        // A folder that is moved elsewhere is itself written to.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let found = fs::symlink_metadata(from)?;
            if !found.is_dir() {
                return Err(error);
            }
            let mut open = found.permissions();
            open.set_mode(open.mode() | 0o700);
            fs::set_permissions(from, open)?;
            let moved = rename(from, to);
            let place = if moved.is_ok() { to } else { from };
            fs::set_permissions(place, found.permissions())?;
            moved
        }
        done => done,
    }
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system cannot look and rename at once.
        Err(Errno::INVAL | Errno::NOSYS) if fs::symlink_metadata(to).is_err() => {
            fs::rename(from, to)
        }
        done => Ok(done?),
    }
}
