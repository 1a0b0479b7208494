//! The folder a store lives in: the names in it, and whether its owner, kind, rights and file system
//! let us trust it. Never opens the database.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use piton_core::ids::RunId;
use uuid::Uuid;

use super::Access;
use crate::{ALLOW_NETWORK_FS, Damage, StoreError, Unsafe, os};

/// Read and write for the owner alone.
pub(super) const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;
const OTHERS: u32 = 0o077;
pub(super) const OTHERS_WRITE: u32 = 0o022;

#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) dir: PathBuf,
    pub(super) db: PathBuf,
    pub(super) wal: PathBuf,
    pub(super) shm: PathBuf,
    pub(super) sidecar: PathBuf,
    pub(super) lock: PathBuf,
}

impl Home {
    pub(super) fn new(dir: &Path) -> Result<Home, StoreError> {
        let dir = std::path::absolute(dir)
            .map_err(|source| StoreError::CannotOpen { path: dir.to_path_buf(), source })?;
        Ok(Home {
            db: dir.join("store.db"),
            wal: dir.join("store.db-wal"),
            shm: dir.join("store.db-shm"),
            sidecar: dir.join("store.head"),
            lock: dir.join("write.lock"),
            dir,
        })
    }

    pub(super) fn run_cache(&self, run: RunId) -> PathBuf {
        self.dir.join(format!("run-{run}.cache"))
    }

    /// The run whose cache a file of this name is, or was about to become.
    pub(super) fn run_of_cache(&self, name: &OsStr) -> Option<RunId> {
        let (run, kind) = name.to_str()?.strip_prefix("run-")?.split_once('.')?;
        matches!(kind, "cache" | "new").then_some(())?;
        Uuid::parse_str(run).ok().map(RunId)
    }

    /// Makes the folder if it may be made, and refuses one that others could have tampered with. Says
    /// whether the database is there, as [`Home::has_database`] does.
    pub(super) fn check(&self, access: Access) -> Result<bool, StoreError> {
        if access == Access::Create && look(&self.dir)?.is_none() {
            DirBuilder::new()
                .recursive(true)
                .mode(PRIVATE_DIR)
                .create(&self.dir)
                .map_err(|source| StoreError::CannotOpen { path: self.dir.clone(), source })?;
        }
        let Some(dir) = look(&self.dir)? else {
            return Err(StoreError::Missing { path: self.db.clone() });
        };
        trust(&self.dir, &dir, Kind::Dir, access)?;
        refuse_network(&self.dir, os::network_kind(&self.dir), std::env::var_os(ALLOW_NETWORK_FS))?;
        let trusted = |path: &Path| match look(path)? {
            Some(file) => trust(path, &file, Kind::File, access).map(|()| true),
            None => Ok(false),
        };
        let there = trusted(&self.db)?;
        for path in [&self.wal, &self.shm, &self.sidecar, &self.lock] {
            trusted(path)?;
        }
        if there { Ok(true) } else { self.has_database() }
    }

    /// Whether the database is there. Its other files without it mean that it was taken away: a new,
    /// empty one must never stand in for it.
    pub(super) fn has_database(&self) -> Result<bool, StoreError> {
        if look(&self.db)?.is_some() {
            return Ok(true);
        }
        for path in [&self.sidecar, &self.wal] {
            if look(path)?.is_some() {
                // Unless somebody has made them all meanwhile, the database first.
                return match look(&self.db)? {
                    Some(_) => Ok(true),
                    None => {
                        Err(StoreError::Damaged { path: self.db.clone(), damage: Damage::Gone })
                    }
                };
            }
        }
        Ok(false)
    }
}

/// What is at a path, links not followed.
fn look(path: &Path) -> Result<Option<Metadata>, StoreError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::CannotOpen { path: path.to_path_buf(), source }),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Dir,
    File,
}

fn trust(path: &Path, found: &Metadata, kind: Kind, access: Access) -> Result<(), StoreError> {
    let refuse = |why| Err(StoreError::Unsafe { path: path.to_path_buf(), why });
    let me = rustix::process::geteuid().as_raw();
    let (right_kind, wanted, private) = match kind {
        Kind::Dir => (found.is_dir(), "directory", PRIVATE_DIR),
        Kind::File => (found.is_file(), "regular file", PRIVATE_FILE),
    };
    let mode = found.mode() & 0o7777;
    if found.is_symlink() {
        return refuse(Unsafe::Symlink);
    }
    if !right_kind {
        return refuse(Unsafe::WrongKind { wanted });
    }
    if found.uid() != me {
        return refuse(Unsafe::ForeignOwner { owner: found.uid(), me });
    }
    if mode & OTHERS_WRITE != 0 {
        return refuse(Unsafe::WritableByOthers { mode });
    }
    if mode & OTHERS != 0 && access != Access::Look {
        // Only ever readable by others: nobody can have changed it, so it is mended and not refused.
        fs::set_permissions(path, Permissions::from_mode(private))
            .map_err(|source| StoreError::CannotOpen { path: path.to_path_buf(), source })?;
    }
    Ok(())
}

fn refuse_network(
    path: &Path,
    kind: io::Result<Option<&'static str>>,
    allowed: Option<std::ffi::OsString>,
) -> Result<(), StoreError> {
    match kind {
        Ok(Some(kind)) if allowed.is_none_or(|value| value != "1") => {
            Err(StoreError::NetworkFileSystem { path: path.to_path_buf(), kind })
        }
        Ok(_) => Ok(()),
        Err(source) => Err(StoreError::CannotOpen { path: path.to_path_buf(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_file_system_is_refused_unless_the_user_accepts_it() {
        let refused = refuse_network(Path::new("/x"), Ok(Some("nfs")), None);
        assert!(matches!(refused, Err(StoreError::NetworkFileSystem { kind: "nfs", .. })));
        let refused = refuse_network(Path::new("/x"), Ok(Some("nfs")), Some("".into()));
        assert!(refused.is_err());
        assert!(refuse_network(Path::new("/x"), Ok(Some("nfs")), Some("1".into())).is_ok());
        assert!(refuse_network(Path::new("/x"), Ok(None), None).is_ok());
    }
}
