//! Git's lock files when their process died, and the place for what is moved out of the way. Nothing
//! is deleted: a lock is moved aside once nobody has it open and it has not changed for a while.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{Git, GitError};

/// How long a lock in a worktree must have been left alone: the caller knows that nobody works there.
const STALE_IN_TREE: Duration = Duration::from_millis(500);
/// The same for a lock on a ref, which any git process of the user may hold.
const STALE_ON_REF: Duration = Duration::from_secs(10);
/// How long to wait for a lock that somebody has open.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// Waits for a lock in a worktree's git directory to go, or moves it aside when it is stale.
pub(crate) fn clear_in_tree(git: &Git, lock: &Path) -> Result<(), GitError> {
    clear(git, lock, STALE_IN_TREE)
}

/// The same for a lock on a ref.
pub(crate) fn clear_on_ref(git: &Git, lock: &Path) -> Result<(), GitError> {
    clear(git, lock, STALE_ON_REF)
}

fn clear(git: &Git, lock: &Path, stale: Duration) -> Result<(), GitError> {
    let started = Instant::now();
    let mut seen = None;
    loop {
        let found = match fs::symlink_metadata(lock) {
            Ok(found) => print(&found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(GitError::io("look at", lock, source)),
        };
        let since = match &seen {
            Some((same, since)) if *same == found => *since,
            _ => seen.insert((found, Instant::now())).1,
        };
        // The clock may have been set: what was watched for long enough counts as old, too.
        let rested = since.elapsed() >= stale || age(lock).is_some_and(|age| age >= stale);
        // Looking who has it open takes a while, in which it may have gone or become another's.
        let is_same = || fs::symlink_metadata(lock).is_ok_and(|now| print(&now) == found);
        if rested && holder(lock).is_none() && is_same() {
            match set_aside(git, lock) {
                // Its process removed it at last.
                Err(GitError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                done => return done.map(drop),
            }
        }
        if started.elapsed() > PATIENCE {
            return Err(GitError::Locked { path: lock.to_owned() });
        }
        std::thread::sleep(PAUSE);
    }
}

/// What tells a lock from the next one of the same name.
fn print(found: &fs::Metadata) -> (u64, i64, i64, u64) {
    (found.ino(), found.mtime(), found.mtime_nsec(), found.size())
}

/// Whether a file that any git process of the user may be writing has been left alone for long enough.
pub(crate) fn is_at_rest(path: &Path) -> bool {
    age(path).is_some_and(|age| age >= STALE_ON_REF)
}

/// How long ago a file was last changed.
pub fn age(path: &Path) -> Option<Duration> {
    let modified = fs::symlink_metadata(path).ok()?.modified().ok()?;
    SystemTime::now().duration_since(modified).ok()
}

/// A process that has the file open, as far as this user may know. Without `/proc` it is not known, and
/// age alone decides.
pub fn holder(path: &Path) -> Option<i32> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let has_it = |process: &fs::DirEntry| {
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let mut targets = descriptors.filter_map(|open| fs::read_link(open.path()).ok());
        targets.any(|target| target == path)
    };
    let pid = |process: &fs::DirEntry| process.file_name().to_str()?.parse::<i32>().ok();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter(|process| pid(process).is_some()).find(has_it).and_then(|found| pid(&found))
}

/// Moves a file or folder into piton's own folder in the git directory; returns where it is now.
pub fn set_aside(git: &Git, path: &Path) -> Result<PathBuf, GitError> {
    let folder = new_aside(git)?;
    let to = folder.join(path.file_name().unwrap_or_default());
    match fs::rename(path, &to) {
        Ok(()) => Ok(to),
        Err(source) => {
            let _nothing_is_in_it = fs::remove_dir(&folder);
            let _perhaps_there_is_more = folder.parent().map(fs::remove_dir);
            Err(GitError::io("move aside", path, source))
        }
    }
}

/// A new folder below `<common dir>/piton/aside`.
pub(crate) fn new_aside(git: &Git) -> Result<PathBuf, GitError> {
    new_folder(&git.state_dir().join("aside"))
}

/// A new folder with a name that says when it was made.
pub(crate) fn new_folder(within: &Path) -> Result<PathBuf, GitError> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    private_dir(within)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = within.join(format!("{now}-{}-{n}", std::process::id()));
    private_dir(&folder)?;
    Ok(folder)
}

/// Makes a folder that only its owner can read.
pub fn private_dir(path: &Path) -> Result<(), GitError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| GitError::io("make", path, source))
}
