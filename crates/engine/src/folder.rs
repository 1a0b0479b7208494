//! An attempt's folder on its host: two kernel locks, who keeps it, how its agent ended, what was
//! printed. The locks prove life; the records explain it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use piton_core::exit::{AgentExit, Heard};
use piton_core::ids::{BootId, Fence, RunId, StepRef};
use piton_core::time::Millis;
use piton_git::file::{self, private, write_flushed};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::machine::Process;

mod processes;

pub use processes::Swept;
pub(crate) use processes::{end_attempt, of_attempt};

/// `attempts/<attempt id>/` in piton's state folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder(PathBuf);

/// Who keeps an attempt. Written and flushed before the agent exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperRecord {
    pub run: RunId,
    pub step: StepRef,
    pub fence: Fence,
    pub boot: BootId,
    pub keeper: Process,
    /// The agent's process, once it was started: its pid is also its group.
    #[serde(default)]
    pub agent: Option<Process>,
}

/// How the agent ended. Written and flushed before anything is done about it: it alone says that the
/// agent must not be started again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    #[serde(flatten)]
    pub ended: AgentExit,
    /// The end of what it printed.
    pub tail: String,
    /// What an agent said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<Box<Heard>>,
}

/// Since when no snapshot has the work, by the keeper. Not flushed: it explains, and decides nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RiskRecord {
    /// When everything was last known to be kept.
    pub saved_at: Millis,
    /// The snapshot that has it; none when nothing had changed since the step began.
    pub snapshot: Option<String>,
    /// How long until the next snapshot, and how long it would be for a smaller tree.
    pub interval_ms: u64,
    pub every_ms: u64,
    /// Why the last snapshot failed.
    pub failing: Option<String>,
}

/// What a probe of a lock saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    Held,
    Free,
    /// There is no such file: the folder was removed.
    Missing,
}

impl Folder {
    pub fn new(path: PathBuf) -> Folder {
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn transcript(&self) -> PathBuf {
        self.0.join("transcript.log")
    }

    pub fn setup_log(&self) -> PathBuf {
        self.0.join("setup.log")
    }

    /// What the `until` command of a loop printed.
    pub fn until_log(&self) -> PathBuf {
        self.path().join("until.log")
    }

    pub(crate) fn skip_if_log(&self) -> PathBuf {
        self.0.join("skip-if.log")
    }

    pub fn verify_log(&self) -> PathBuf {
        self.0.join("verify.log")
    }

    pub fn prompt(&self) -> PathBuf {
        self.0.join("prompt.md")
    }

    /// A long output of another step, for what this attempt starts.
    pub(crate) fn output(&self, step: &str, name: &str) -> PathBuf {
        self.0.join(format!("output-{step}.{name}.json"))
    }

    /// Where paths of this attempt go that no snapshot can hold, when somebody else gets the worktree.
    pub fn omitted(&self) -> PathBuf {
        self.0.join("omitted")
    }

    /// What a keeper writes to while it lives.
    pub(crate) fn signs(&self) -> [PathBuf; 5] {
        let records = ["keeper.json", "at-risk.json", "exit.json", "transcript.log", "verify.log"];
        records.map(|name| self.0.join(name))
    }

    pub(crate) fn keeper_lock(&self) -> PathBuf {
        self.0.join("keeper.lock")
    }

    pub(crate) fn tree_lock(&self) -> PathBuf {
        self.0.join("tree.lock")
    }

    /// Makes the folder and takes the keeper's lock: before the claim is appended, so that there is
    /// no moment at which a live attempt looks dead.
    pub fn create(&self) -> io::Result<File> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let lock = private(&self.keeper_lock())?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(lock)
    }

    /// Takes back a folder that no claim names: the lock it was created with is all it holds.
    pub fn discard(&self, lock: File) {
        drop(lock);
        let _best_effort = fs::remove_file(self.keeper_lock());
        let _best_effort = fs::remove_dir(&self.0);
    }

    /// Takes the lock that the agent and all it starts inherit.
    pub fn lock_tree(&self) -> io::Result<File> {
        let lock = private(&self.tree_lock())?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(lock)
    }

    /// Whether the keeper lives. Probes share the lock, so that two of them never read each other as
    /// a keeper.
    pub fn keeper(&self) -> io::Result<Lock> {
        probe(&self.keeper_lock())
    }

    /// Whether anything the keeper started is known to live; free proves nothing, because some
    /// programs close what they inherit.
    pub fn tree(&self) -> io::Result<Lock> {
        probe(&self.tree_lock())
    }

    pub fn write_keeper(&self, record: &KeeperRecord) -> io::Result<()> {
        write_flushed(&self.0.join("keeper.json"), record)
    }

    pub fn read_keeper(&self) -> Option<KeeperRecord> {
        read(&self.0.join("keeper.json"))
    }

    /// Replaces it at once; a power cut may lose it.
    pub fn write_risk(&self, record: &RiskRecord) -> io::Result<()> {
        file::write(&self.0.join("at-risk.json"), serde_json::to_vec(record)?)
    }

    pub fn read_risk(&self) -> Option<RiskRecord> {
        read(&self.0.join("at-risk.json"))
    }

    pub fn write_exit(&self, record: &ExitRecord) -> io::Result<()> {
        write_flushed(&self.0.join("exit.json"), record)
    }

    /// The agent is started again: it has not ended.
    pub(crate) fn forget_exit(&self) -> io::Result<()> {
        std::fs::remove_file(self.0.join("exit.json"))
    }

    pub fn read_exit(&self) -> Option<ExitRecord> {
        read(&self.0.join("exit.json"))
    }
}

/// The starter took the lock and passed it as standard input: the only way to hand a descriptor to one
/// child without every other child getting it too.
pub(crate) fn adopt_lock() -> Result<File, EngineError> {
    let failed = |what: &str| EngineError::io(what.to_owned());
    let lock = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
        .map_err(|error| failed("the lock was not passed on")(error.into()))?;
    let nothing = File::open("/dev/null").map_err(failed("/dev/null"))?;
    rustix::stdio::dup2_stdin(&nothing).map_err(|error| failed("standard input")(error.into()))?;
    Ok(lock.into())
}

/// Who holds a lock, if anybody.
pub(crate) fn probe(path: &Path) -> io::Result<Lock> {
    let file = match file::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lock::Missing),
        Err(error) => return Err(error),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Lock::Free),
        Err(TryLockError::WouldBlock) => Ok(Lock::Held),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&file::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use piton_core::event::Exit;
    use piton_core::exit::StopRequest;

    use super::*;

    #[test]
    fn a_lock_is_held_by_its_descriptor_and_seen_by_any_number_of_probes() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let folder = Folder::new(home.path().join("a"));
        assert_eq!(folder.keeper().expect("probe"), Lock::Missing);
        let lock = folder.create().expect("create");
        let duplicate = lock.try_clone().expect("dup");
        drop(lock);
        assert_eq!(folder.keeper().expect("probe"), Lock::Held, "a duplicate keeps it");
        drop(duplicate);
        let shared = File::open(folder.keeper_lock()).expect("open");
        shared.try_lock_shared().expect("a probe in progress");
        assert_eq!(folder.keeper().expect("probe"), Lock::Free, "a probe is no keeper");
    }

    #[test]
    fn records_read_back_and_a_torn_one_is_absent() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let folder = Folder::new(home.path().to_owned());
        assert_eq!(folder.read_exit(), None);
        let ended = AgentExit { exit: Exit::Code(3), stop: StopRequest::Nothing };
        let record = ExitRecord { ended, tail: "bye".into(), heard: None };
        folder.write_exit(&record).expect("write");
        assert_eq!(folder.read_exit(), Some(record));
        fs::write(home.path().join("exit.json"), b"{\"exit\":").expect("tear it");
        assert_eq!(folder.read_exit(), None);
    }
}
