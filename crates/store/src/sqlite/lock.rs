//! The write lock: a locked file beside the database. SQLite alone would be correct without it, but its
//! busy handler sleeps in growing steps, and its error does not name the process in the way.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::home::PRIVATE_FILE;
use crate::{StoreError, os};

/// How long a writer waits for its turn before it says who has it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A lock that was just taken is mostly free again after a short transaction: so long a writer tries by itself,
/// and then queues.
const TRIES: u32 = 4;
const RETRY: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(super) struct WriteLock {
    path: PathBuf,
}

/// The right to write, until dropped: closing the file ends the lock.
#[derive(Debug)]
pub(super) struct Turn {
    _locked: File,
}

impl WriteLock {
    pub(super) fn open(path: PathBuf) -> Result<WriteLock, StoreError> {
        match open(&path) {
            Ok(_) => Ok(WriteLock { path }),
            Err(source) => Err(StoreError::CannotOpen { path, source }),
        }
    }

    pub(super) fn take(&self, patience: Duration) -> Result<Turn, StoreError> {
        let failed = |source| StoreError::Io { doing: "taking the write lock", source };
        let begun = Instant::now();
        let file = open(&self.path).map_err(failed)?;
        for _ in 0..TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Turn { _locked: file }),
                Err(TryLockError::WouldBlock) => thread::sleep(RETRY),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        match self.queue(patience) {
            Some(locked) => locked.map(|_locked| Turn { _locked }).map_err(failed),
            None => {
                let (path, holder) = (self.path.clone(), os::lock_holder(&file));
                Err(StoreError::Busy { path, holder, waited: begun.elapsed() })
            }
        }
    }

    /// Waits in the kernel's queue, which lets nobody starve. Where the patience is over first, whatever the
    /// thread still gets is given back at once.
    fn queue(&self, patience: Duration) -> Option<io::Result<File>> {
        let (sender, locked) = mpsc::channel();
        let path = self.path.clone();
        thread::spawn(move || {
            let locked = open(&path).and_then(|file| file.lock().map(|()| file));
            let _nobody_waits = sender.send(locked);
        });
        locked.recv_timeout(patience).ok()
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(path)
}
