//! Acts that are too old to be undone. What a clean-up has moved aside takes room until then; its worktrees
//! had a proof when they went, so that what is deleted here is what was ignored in them, and commits that
//! only their reflogs named. This is the one place that deletes a folder with all that is in it, and it
//! is one of the journal's own.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use piton_core::limits::ACT;
use piton_core::time::Millis;
use serde::Serialize;

use super::removal::drop_strays;
use super::survey::Size;
use crate::crash;
use crate::error::EngineError;
use crate::git::GitError;
use crate::git::locks::private_dir;
use crate::project::Project;
use crate::undo::{self, Act, ActStage, Deed, Journal, NotUndone};

/// An act that can go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpiredAct {
    pub act: u64,
    pub deed: &'static str,
    /// When it was done.
    #[serde(serialize_with = "shown")]
    pub at: Millis,
    pub worktrees: usize,
    /// What it takes on disk.
    pub bytes: u64,
    pub path: PathBuf,
}

/// The acts whose time is over, oldest first: looks, writes nothing.
pub fn expired(project: &Project, now: Millis) -> Result<Vec<ExpiredAct>, EngineError> {
    let mut expired = Vec::new();
    for act in undo::acts(project)?.acts {
        let path = undo::kept_by(project, act.act);
        if is_over(&act, now) || (act.stage == ActStage::Expired && path.exists()) {
            let worktrees = act.deed.trees().len();
            let (bytes, deed) = (Size::of(&path).bytes, act.deed.word());
            expired.push(ExpiredAct { act: act.act, deed, at: act.at, worktrees, bytes, path });
        }
    }
    Ok(expired)
}

/// Only what is done and keeps something: what was cut short is somebody's to finish, and a run that was
/// given up can be reopened as long as it is there.
fn is_over(act: &Act, now: Millis) -> bool {
    let keeps = matches!(act.deed, Deed::Clean { .. } | Deed::Restore(_));
    keeps && act.stage == ActStage::Done && now.since(act.at) > ACT
}

/// Deletes what an act has kept. From the first moment on it cannot be undone, so that nobody gets half of
/// it back.
pub(super) fn expire(project: &Project, journal: &Journal, number: u64) -> Result<(), EngineError> {
    let found = journal.acts()?.into_iter().find(|act| act.act == number);
    let mut act = found.ok_or(NotUndone::Unknown { act: number })?;
    // As long as its folder is there, there is something left to delete.
    let folder = journal.kept_by(number);
    private_dir(&folder)?;
    act.stage = ActStage::Expired;
    journal.write(&act)?;
    crash::point("expire.recorded");
    drop_strays(&project.git, number, &[])?;
    crash::point("expire.refs-gone");
    clear(&folder).map_err(|source| GitError::io("remove", &folder, source))?;
    Ok(())
}

/// Removes a folder, deepest first. Links are removed and not followed.
fn clear(folder: &Path) -> io::Result<()> {
    let mut folders = vec![folder.to_owned()];
    let mut next = 0;
    while let Some(folder) = folders.get(next).cloned() {
        next += 1;
        if fs::symlink_metadata(&folder).is_err() {
            return Ok(());
        }
        // Some tools make what they keep unwritable.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => fs::remove_file(entry.path())?,
            }
        }
    }
    folders.iter().rev().try_for_each(fs::remove_dir)
}

fn shown<S: serde::Serializer>(at: &Millis, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&piton_core::time::timestamp(*at))
}
