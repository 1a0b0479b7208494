//! Makes objects and refs survive a power cut. Git can flush what it writes itself, but a snapshot
//! also stands on objects that the agent's git wrote a moment ago and nobody flushed; git only renews
//! their time when it meets them again. So the flush is ours: every loose object in a folder that got a
//! new name since the last time, then the folders.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::{Git, GitError};

/// How far the first flush of a process looks back. The kernel writes back by itself within a minute.
const LOOK_BACK: Duration = Duration::from_secs(600);
/// Clocks of the file system and of the process differ a little.
const MARGIN: Duration = Duration::from_secs(5);
const THREADS: usize = 8;

/// When this process last flushed the objects of a repository.
static FLUSHED: Mutex<BTreeMap<PathBuf, SystemTime>> = Mutex::new(BTreeMap::new());

/// Folders of refs, with their inodes, whose names this process has flushed.
static NAMED: Mutex<BTreeSet<(PathBuf, u64)>> = Mutex::new(BTreeSet::new());

/// Flushes every loose object written or renewed since this process last did.
pub(crate) fn objects(git: &Git) -> Result<(), GitError> {
    let objects = git.common_dir().join("objects");
    let began = SystemTime::now();
    let flushed = || FLUSHED.lock().unwrap_or_else(PoisonError::into_inner);
    let last = flushed().get(&objects).copied();
    let since = last.unwrap_or(began - LOOK_BACK).min(began) - MARGIN;
    let (files, folders) = fresh(&objects, since)?;
    sync_all(&files)?;
    sync_all(&folders)?;
    if !folders.is_empty() {
        sync(&objects)?;
    }
    flushed().insert(objects, began);
    Ok(())
}

fn fresh(objects: &Path, since: SystemTime) -> Result<(Vec<PathBuf>, Vec<PathBuf>), GitError> {
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for folder in entries(objects)? {
        // Packs are flushed by git itself; a new one only lacks its name.
        let fan_out = folder.file_name().is_some_and(|name| name.len() == 2);
        let before = files.len();
        if fan_out && is_fresh(&folder, since) {
            files.extend(entries(&folder)?.into_iter().filter(|file| is_fresh(file, since)));
        }
        let named = folder.file_name().is_some_and(|name| name == "pack");
        if files.len() > before || named && is_fresh(&folder, since) {
            folders.push(folder);
        }
    }
    Ok((files, folders))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, GitError> {
    let list = match fs::read_dir(folder) {
        Ok(list) => list,
        // A repack removed it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(GitError::io("list", folder, source)),
    };
    Ok(list.flatten().map(|entry| entry.path()).collect())
}

fn is_fresh(path: &Path, since: SystemTime) -> bool {
    fs::symlink_metadata(path).and_then(|found| found.modified()).is_ok_and(|time| time >= since)
}

/// Flushes share journal commits when they happen at the same time.
fn sync_all(paths: &[PathBuf]) -> Result<(), GitError> {
    let share = paths.len().div_ceil(THREADS).max(1);
    std::thread::scope(|scope| {
        let sync_share = |share: &[PathBuf]| share.iter().try_for_each(|path| sync(path));
        let threads: Vec<_> =
            paths.chunks(share).map(|share| scope.spawn(move || sync_share(share))).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Flushes the folders that name a ref, whichever way refs are kept.
pub(crate) fn ref_folders(git: &Git, refname: &str) -> Result<(), GitError> {
    let reftable = git.common_dir().join("reftable");
    if reftable.is_dir() {
        return sync(&reftable);
    }
    // Its own folder, and the folders above as far as they are new and this process has not flushed
    // their names yet.
    let since = SystemTime::now() - MARGIN;
    let file = git.common_dir().join(refname);
    let named = || NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut flushed = Vec::new();
    for folder in file.ancestors().skip(1) {
        let inode = fs::metadata(folder).map_or(0, |found| found.ino());
        let place = (folder.to_owned(), inode);
        let is_new = is_fresh(folder, since) && !named().contains(&place);
        sync(folder)?;
        if !is_new || folder == git.common_dir() {
            break;
        }
        flushed.push(place);
    }
    // The last one flushed names the one below it, and so on.
    named().extend(flushed);
    Ok(())
}

/// Flushes whatever was written in a worktree: file by file, many small ones would take too long.
pub(crate) fn files(root: &Path) -> Result<(), GitError> {
    #[cfg(target_os = "linux")]
    let flushed = File::open(root).and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
    #[cfg(not(target_os = "linux"))]
    let flushed = File::open(root).map(|_| rustix::fs::sync());
    flushed.map_err(|source| GitError::io("flush", root, source))
}

pub fn sync(path: &Path) -> Result<(), GitError> {
    match File::open(path).and_then(|file| file.sync_all()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|source| GitError::io("flush", path, source)),
    }
}
