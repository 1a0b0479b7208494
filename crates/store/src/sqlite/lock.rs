//! The queue of writers: a locked file beside the database. SQLite alone would be correct without it,
//! but its busy handler sleeps in growing steps and lets whoever wakes first go first.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::home::PRIVATE_FILE;
use crate::StoreError;

/// How long a writer waits for its turn before it says who has it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct WriteLock {
    path: PathBuf,
    /// Behind a mutex because a lock belongs to an open file: two threads would both have it.
    file: Mutex<File>,
}

/// The right to write, until dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    own: MutexGuard<'a, File>,
    /// Set when the turn was waited for: then this file, opened by the waiter, is the locked one.
    waited: Option<File>,
}

impl WriteLock {
    pub(super) fn open(path: PathBuf) -> Result<WriteLock, StoreError> {
        match open(&path) {
            Ok(file) => Ok(WriteLock { path, file: Mutex::new(file) }),
            Err(source) => Err(StoreError::CannotOpen { path, source }),
        }
    }

    /// Takes the turn at once if nobody has it, else queues for it.
    pub(super) fn take(&self, patience: Duration) -> Result<Turn<'_>, StoreError> {
        let own = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| StoreError::Io { doing: "taking the write lock", source };
        let waited = match own.try_lock() {
            Ok(()) => None,
            Err(TryLockError::WouldBlock) => Some(self.queue(patience)?),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        };
        sign(waited.as_ref().unwrap_or(&own)).map_err(failed)?;
        Ok(Turn { own, waited })
    }

    /// Waits in the kernel's queue, in a thread because that wait has no deadline of its own. If we
    /// give up first, the thread cannot be called back: it ends when it gets the lock and, finding
    /// nobody to hand it to, drops it.
    fn queue(&self, patience: Duration) -> Result<File, StoreError> {
        let begun = Instant::now();
        let (give, receive) = mpsc::sync_channel(0);
        let path = self.path.clone();
        thread::spawn(move || give.send(wait_for(&path)));
        let failed = |source| StoreError::Io { doing: "waiting for the write lock", source };
        match receive.recv_timeout(patience) {
            Ok(got) => got.map_err(failed),
            Err(RecvTimeoutError::Timeout) => Err(StoreError::Busy {
                path: self.path.clone(),
                holder: holder(&self.path),
                waited: begun.elapsed(),
            }),
            Err(RecvTimeoutError::Disconnected) => {
                Err(failed(io::Error::other("the waiting thread ended")))
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.waited.is_none() {
            // Cannot fail on a file that is locked; if it did, closing the file would end the lock.
            let _ = self.own.unlock();
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(PRIVATE_FILE)
        .open(path)
}

fn wait_for(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    loop {
        match file.lock() {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Leaves our process id for those who wait; fixed width, so that no digit of an older one remains.
fn sign(file: &File) -> io::Result<()> {
    let ours = format!("{:<10}\n", std::process::id());
    let mut there = [0; 11];
    let read = file.read_at(&mut there, 0)?;
    // Reading is cheaper than dirtying a page, and we are often the last one who wrote.
    if there[..read] == *ours.as_bytes() { Ok(()) } else { file.write_all_at(ours.as_bytes(), 0) }
}

fn holder(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
