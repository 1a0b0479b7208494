//! Undoing. An act that takes something away is written down before it begins: a file of its own in
//! piton's state folder, flushed, with everything that is needed to reverse it. A kill leaves an act that
//! was intended; whoever says it again, or undoes it, looks at what is there and goes on. Reversing has
//! its stage, too, so that what an undo cut short has put back is not taken for somebody else's.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use piton_core::ids::{Handle, RunId};
use piton_core::time::Millis;
use piton_git::file::{private, write_flushed};
use piton_git::repo::flush;
use piton_git::repo::locks::private_dir;
use piton_store::sqlite::Access;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::error::NotUndone;
use crate::project::Project;
use crate::tidy::abandon::{self, AbandonedRun};
use crate::tidy::branches::Tip;
use crate::tidy::clean::{self, RemovedTree};
use crate::tidy::purge::PurgedRun;
use crate::tidy::restore;
use crate::tidy::restore::RestoredFrom;

/// The version of a record. A newer one is refused by name.
const VERSION: u32 = 1;

/// Something that was done and can be undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    version: u32,
    /// Growing: what people call it.
    pub act: u64,
    pub at: Millis,
    pub stage: ActStage,
    #[serde(flatten)]
    pub deed: Deed,
}

/// How far an act, or its reversal, has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActStage {
    /// Written down; perhaps begun, perhaps over.
    Intended,
    Done,
    Undoing,
    Undone,
}

/// What was done, with what it takes to reverse it. Each kind is reversed by the module that does it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "deed", rename_all = "snake_case")]
pub enum Deed {
    /// Worktrees and branches were removed.
    Clean { trees: Vec<RemovedTree>, branches: Vec<Tip> },
    /// A snapshot was put back.
    Restore(RestoredFrom),
    /// A run was given up.
    Abandon { gone: AbandonedRun },
    /// A run went to the attic, and another one of the same plan was opened.
    FreshStart { gone: AbandonedRun, opened: RunId },
    /// A run was deleted. Written down so that a purge that was cut short is finished.
    Purge(PurgedRun),
}

impl Deed {
    /// In a word.
    pub fn word(&self) -> &'static str {
        match self {
            Deed::Clean { .. } => "clean",
            Deed::Restore(_) => "restore",
            Deed::Abandon { .. } => "abandon",
            Deed::FreshStart { .. } => "fresh start",
            Deed::Purge(_) => "purge",
        }
    }

    /// Whether it can be reversed at all.
    pub fn is_final(&self) -> bool {
        matches!(self, Deed::Purge(_))
    }

    /// The worktrees that were removed.
    pub fn trees(&self) -> &[RemovedTree] {
        match self {
            Deed::Clean { trees, .. } => trees,
            _ => &[],
        }
    }

    /// The branches that were deleted by themselves.
    pub fn branches(&self) -> &[Tip] {
        match self {
            Deed::Clean { branches, .. } => branches,
            _ => &[],
        }
    }

    pub(crate) fn cleaned_mut(&mut self) -> (&mut Vec<RemovedTree>, &mut Vec<Tip>) {
        match self {
            Deed::Clean { trees, branches } => (trees, branches),
            _ => panic!("only a clean-up removes any"),
        }
    }
}

/// An act that was written down and cannot be read. It is left alone, and stands in nobody's way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnreadableAct {
    pub act: u64,
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub path: PathBuf,
    pub why: String,
}

impl From<UnreadableAct> for NotUndone {
    fn from(UnreadableAct { path, why, .. }: UnreadableAct) -> NotUndone {
        NotUndone::Unreadable { path, why }
    }
}

/// What was written down, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acts {
    pub acts: Vec<Act>,
    pub unreadable: Vec<UnreadableAct>,
}

/// What an undo did, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Undone {
    pub act: u64,
    pub deed: &'static str,
    pub put_back: Vec<String>,
    /// The run that is open again.
    pub reopened: Option<Handle>,
}

/// The acts of a project, held by one process at a time while it adds or reverses one.
pub struct Journal {
    folder: PathBuf,
    _alone: File,
}

impl Journal {
    /// Waits for whoever acts or undoes now.
    pub fn lock(project: &Project) -> Result<Journal, EngineError> {
        let folder = folder(project);
        private_dir(&folder)?;
        let path = folder.join("lock");
        let locked = private(&path).and_then(|file| file.lock().map(|()| file));
        let alone = locked.map_err(EngineError::io(format!("cannot lock {}", path.display())))?;
        Ok(Journal { folder, _alone: alone })
    }

    /// Every act that can be read, oldest first.
    pub fn acts(&self) -> Result<Vec<Act>, EngineError> {
        Ok(read_all(&self.folder)?.acts)
    }

    /// Writes an act down; when this returns it is on disk, and may begin.
    pub fn begin(&self, at: Millis, deed: Deed) -> Result<Act, EngineError> {
        let last = numbers(&self.folder)?.into_iter().max().unwrap_or(0);
        let act = Act { version: VERSION, act: last + 1, at, stage: ActStage::Intended, deed };
        self.write(&act)?;
        Ok(act)
    }

    /// Writes down what has become of an act.
    pub fn write(&self, act: &Act) -> Result<(), EngineError> {
        let path = file(&self.folder, act.act);
        write_flushed(&path, act)
            .map_err(EngineError::io(format!("cannot write {}", path.display())))
    }

    /// Strikes an act out: what it was about is no more.
    pub(crate) fn strike(&self, act: u64) -> Result<(), EngineError> {
        let path = file(&self.folder, act);
        fs::remove_file(&path)
            .map_err(EngineError::io(format!("cannot remove {}", path.display())))?;
        Ok(flush::sync(&self.folder)?)
    }
}

/// Every act: looks, and waits for nobody.
pub fn acts(project: &Project) -> Result<Acts, EngineError> {
    read_all(&folder(project))
}

/// Reverses an act, or the last one that was not undone. Said again after a kill, it goes on.
pub fn undo(project: &Project, which: Option<u64>) -> Result<Undone, EngineError> {
    let journal = Journal::lock(project)?;
    let mut act = chosen(read_all(&journal.folder)?, which)?;
    if act.stage == ActStage::Undone {
        return Err(NotUndone::Already { act: act.act }.into());
    }
    let put_back = match &act.deed {
        Deed::Clean { .. } => clean::put_back(project, &journal, &mut act)?,
        Deed::Restore(_) => restore::undo_restore(project, &journal, &mut act)?,
        Deed::Abandon { .. } | Deed::FreshStart { .. } => {
            let store = project.store(Access::Existing)?;
            abandon::reopen(project, &store, &journal, &mut act)?
        }
        Deed::Purge(gone) => {
            let handle = gone.handle.clone();
            return Err(NotUndone::Purged { act: act.act, handle }.into());
        }
    };
    act.stage = ActStage::Undone;
    journal.write(&act)?;
    let reopened = match &act.deed {
        Deed::Abandon { gone } | Deed::FreshStart { gone, .. } => Some(gone.handle.clone()),
        Deed::Clean { .. } | Deed::Restore(_) | Deed::Purge(_) => None,
    };
    Ok(Undone { act: act.act, deed: act.deed.word(), put_back, reopened })
}

/// The act that is meant. Where the last one cannot be read, nobody knows whether it is that one.
fn chosen(Acts { acts, unreadable }: Acts, which: Option<u64>) -> Result<Act, NotUndone> {
    let open = |act: &Act| act.stage != ActStage::Undone && !act.deed.is_final();
    let found = match which {
        Some(asked) => acts.into_iter().find(|act| act.act == asked),
        None => acts.into_iter().rfind(open),
    };
    let last = found.as_ref().map_or(0, |act| act.act);
    let instead = match which {
        Some(asked) => unreadable.into_iter().find(|other| other.act == asked),
        None => unreadable.into_iter().rfind(|other| other.act > last),
    };
    match (found, instead, which) {
        (_, Some(unreadable), _) => Err(unreadable.into()),
        (Some(act), None, _) => Ok(act),
        (None, None, Some(act)) => Err(NotUndone::Unknown { act }),
        (None, None, None) => Err(NotUndone::Nothing),
    }
}

fn folder(project: &Project) -> PathBuf {
    project.state.join("undo")
}

fn file(folder: &Path, act: u64) -> PathBuf {
    folder.join(format!("{act}.json"))
}

fn numbers(folder: &Path) -> Result<Vec<u64>, EngineError> {
    let list = match fs::read_dir(folder) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            let what = format!("cannot list {}", folder.display());
            return Err(EngineError::Io { what, source });
        }
    };
    let number =
        |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".json")?.parse().ok();
    Ok(list.flatten().filter_map(number).collect())
}

fn read_all(folder: &Path) -> Result<Acts, EngineError> {
    let mut numbers = numbers(folder)?;
    numbers.sort_unstable();
    let mut all = Acts::default();
    for act in numbers {
        let path = file(folder, act);
        match read(&path) {
            Ok(found) => all.acts.push(found),
            Err(why) => all.unreadable.push(UnreadableAct { act, path, why }),
        }
    }
    Ok(all)
}

fn read(path: &Path) -> Result<Act, String> {
    let bytes = piton_git::file::read(path).map_err(|error| error.to_string())?;
    let raw: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    match raw["version"].as_u64() {
        Some(version) if version <= u64::from(VERSION) => {}
        _ => return Err(format!("its version is {}", raw["version"])),
    }
    serde_json::from_value(raw).map_err(|error| error.to_string())
}
