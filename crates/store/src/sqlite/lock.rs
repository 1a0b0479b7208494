//! The queue of writers: a locked file beside the database. SQLite alone would be correct without it,
//! but its busy handler sleeps in growing steps and lets whoever wakes first go first.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::home::PRIVATE_FILE;
use crate::{StoreError, os};

/// How long a writer waits for its turn before it says who has it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct WriteLock {
    path: PathBuf,
    /// Behind a mutex because a lock belongs to an open file: two threads would both have it.
    own: Mutex<Own>,
}

#[derive(Debug)]
struct Own {
    file: File,
    /// Who waits for us, once somebody had to.
    waiter: Option<Waiter>,
}

/// The right to write, until dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    own: MutexGuard<'a, Own>,
}

impl WriteLock {
    pub(super) fn open(path: PathBuf) -> Result<WriteLock, StoreError> {
        match open(&path) {
            Ok(file) => Ok(WriteLock { path, own: Mutex::new(Own { file, waiter: None }) }),
            Err(source) => Err(StoreError::CannotOpen { path, source }),
        }
    }

    /// Takes the turn at once if nobody has it, else queues for it.
    pub(super) fn take(&self, patience: Duration) -> Result<Turn<'_>, StoreError> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| StoreError::Io { doing: "taking the write lock", source };
        match own.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => self.queue(&mut own, patience)?,
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        Ok(Turn { own })
    }

    /// Waits in the kernel's queue, in a thread because that wait has no deadline of its own.
    fn queue(&self, own: &mut Own, patience: Duration) -> Result<(), StoreError> {
        let failed = |source| StoreError::Io { doing: "waiting for the write lock", source };
        let begun = Instant::now();
        let waiter = match own.waiter.take() {
            Some(waiter) => waiter,
            None => Waiter::start(&own.file).map_err(failed)?,
        };
        match waiter.wait(patience) {
            Ok(got) => {
                own.waiter = Some(waiter);
                got.map_err(failed)
            }
            Err(RecvTimeoutError::Timeout) => {
                // The waiter goes on with the file that it has: this handle goes on with another.
                own.file = open(&self.path).map_err(failed)?;
                Err(StoreError::Busy {
                    path: self.path.clone(),
                    holder: os::lock_holder(&own.file),
                    waited: begun.elapsed(),
                })
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(failed(io::Error::other("the waiting thread ended")))
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Cannot fail on a file that is locked; if it did, closing the file would end the lock.
        let _ = self.own.file.unlock();
    }
}

/// A thread that waits for the lock each time it is asked to. It shares the open file, and with it the
/// lock. If we give up first it cannot be called back: it ends when it gets the lock and, finding nobody
/// who listens, frees it.
#[derive(Debug)]
struct Waiter {
    ask: Sender<()>,
    heard: Receiver<io::Result<()>>,
}

impl Waiter {
    fn start(file: &File) -> io::Result<Waiter> {
        let (ask, asked) = mpsc::channel();
        let (tell, heard) = mpsc::sync_channel(0);
        let file = file.try_clone()?;
        thread::spawn(move || {
            while asked.recv().is_ok() {
                if tell.send(wait_for(&file)).is_err() {
                    let _ = file.unlock();
                }
            }
        });
        Ok(Waiter { ask, heard })
    }

    fn wait(&self, patience: Duration) -> Result<io::Result<()>, RecvTimeoutError> {
        self.ask.send(()).map_err(|_| RecvTimeoutError::Disconnected)?;
        self.heard.recv_timeout(patience)
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

fn wait_for(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            got => return got,
        }
    }
}
