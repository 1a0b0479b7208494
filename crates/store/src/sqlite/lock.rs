//! The write lock: a locked file beside the database. SQLite alone would be correct without it, but its
//! busy handler sleeps in growing steps, and its error does not name the process in the way.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::home::PRIVATE_FILE;
use crate::{StoreError, os};

/// How long a writer waits for its turn before it says who has it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A waiting writer tries again after this, about as long as a short transaction takes; and after at
/// most so long when it has waited for a while.
const RETRY: Duration = Duration::from_micros(50);
const RETRY_MAX: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct WriteLock {
    path: PathBuf,
    /// Behind a mutex because a lock belongs to an open file: two threads would both have it.
    file: Mutex<File>,
}

/// The right to write, until dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    file: MutexGuard<'a, File>,
}

impl WriteLock {
    pub(super) fn open(path: PathBuf) -> Result<WriteLock, StoreError> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE_FILE)
            .open(&path);
        match opened {
            Ok(file) => Ok(WriteLock { path, file: Mutex::new(file) }),
            Err(source) => Err(StoreError::CannotOpen { path, source }),
        }
    }

    pub(super) fn take(&self, patience: Duration) -> Result<Turn<'_>, StoreError> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let mut pause = RETRY;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Turn { file }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => {
                    return Err(StoreError::Io { doing: "taking the write lock", source });
                }
            }
            let waited = begun.elapsed();
            if waited >= patience {
                let (path, holder) = (self.path.clone(), os::lock_holder(&file));
                return Err(StoreError::Busy { path, holder, waited });
            }
            thread::sleep(pause.min(patience - waited));
            pause = (2 * pause).min(RETRY_MAX);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Cannot fail on a file that is locked; if it did, closing the file would end the lock.
        let _ = self.file.unlock();
    }
}
