//! Each snapshot is a small pack. When there are too many, the small ones become one; large ones stay as
//! they are. Nothing is dropped, reachable or not.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::stat_cache;
use crate::file;
use crate::repo::listed::listed;
use crate::repo::{Git, GitError, flush};

/// More packs than this make every git command slower.
const PACKS_MAX: usize = 40;
/// A pack that is held for this long was left by a process that was killed.
const HELD_FOR: Duration = Duration::from_secs(3600);
/// What nobody has written to for this long was left by a process that is gone.
const LEFT_FOR: Duration = Duration::from_secs(24 * 3600);
/// What git writes into the file by which it holds a pack of this kind.
const HOLDER: &[u8] = b"fast-import";

/// Makes few packs of many; says whether there was something to do. It takes its time: call it when
/// nobody waits.
pub fn consolidate(git: &Git) -> Result<bool, GitError> {
    let folder = git.common_dir().join("objects/pack");
    let list = fs::read_dir(&folder).map_err(|source| GitError::io("list", &folder, source))?;
    let files: Vec<PathBuf> = list.flatten().map(|entry| entry.path()).collect();
    let with = |extension: &'static str| {
        let is = move |path: &&PathBuf| path.extension().is_some_and(|found| found == extension);
        files.iter().filter(is)
    };
    if with("pack").count() <= PACKS_MAX {
        return Ok(false);
    }
    for keep in with("keep").filter(|keep| is_forgotten(keep)) {
        let _perhaps_gone = fs::remove_file(keep);
    }
    let call = git.without_hooks(git.call())?;
    let call = call
        .config("core.fsync", "pack,pack-metadata")
        .config("pack.threads", "1")
        .config("repack.writeBitmaps", "false")
        .config("repack.updateServerInfo", "false");
    call.args(&["repack", "--geometric=2", "-d", "-q"]).run()?;
    flush::sync(&folder)?;
    Ok(true)
}

fn is_forgotten(keep: &PathBuf) -> bool {
    let ours = file::read(keep).is_ok_and(|text| text.trim_ascii() == HOLDER);
    ours && is_older_than(keep, HELD_FOR)
}

fn is_older_than(path: &Path, than: Duration) -> bool {
    let time = fs::symlink_metadata(path).and_then(|found| found.modified());
    let age = time.ok().and_then(|time| SystemTime::now().duration_since(time).ok());
    age.is_some_and(|age| age > than)
}

/// Removes what killed processes have left behind, and what was known of worktrees that are gone.
pub fn sweep(git: &Git) {
    let list = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let is_called = |path: &PathBuf, name: &str| {
        path.file_name()
            .and_then(|found| found.to_str())
            .is_some_and(|found| found.starts_with(name))
    };
    for path in list(&git.common_dir().join("objects/pack")) {
        let half = ["tmp_pack_", "tmp_idx_"].iter().any(|name| is_called(&path, name));
        if half && is_older_than(&path, LEFT_FOR) {
            let _perhaps_gone = fs::remove_file(path);
        }
    }
    let keys: Vec<String> = listed(git).iter().map(|entry| stat_cache::key(&entry.place)).collect();
    for path in list(&git.state_dir().join("known")) {
        let current = keys.iter().any(|key| path.file_name().is_some_and(|name| *name == **key));
        if !current && is_older_than(&path, LEFT_FOR) {
            let _perhaps_gone = fs::remove_file(path);
        }
    }
}
