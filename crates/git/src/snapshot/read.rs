//! Reads files for a snapshot: raw bytes, so that no filter and no attribute has a part in it. A file that
//! changes under the reading is read again; what cannot be read says why. New bytes go straight into
//! the pack, and large files are never held in memory.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustix::fs::{FileType, Stat, fstat};

use super::nofollow::{Root, is_gone};
use super::stat_cache::{Known, KnownFile, Print};
use super::walk::unkept;
use crate::repo::hash::{self, Format, Hashing, Id};
use crate::repo::pack::{Mode, Pack, Turn};
use crate::repo::{Git, GitError};

/// How often a file that changes while it is read is read again.
const ROUNDS: usize = 3;
/// Files up to this size are held in memory while they are read.
const HELD_MAX: u64 = 1024 * 1024;
/// Fewer files than this are read by one thread.
const SHARED_MIN: usize = 64;
const THREADS_MAX: usize = 8;

pub(super) const CHANGING: &str = "it kept changing while it was read; the copy may be torn";

/// Where new bytes go: nowhere, or into a pack that is begun with the first of them.
pub(super) struct Sink<'a> {
    to: Option<(&'a Git, &'a str, Turn)>,
    pack: Mutex<Option<Result<Pack<'a>, GitError>>>,
}

impl<'a> Sink<'a> {
    /// Into a pack for a ref.
    pub(super) fn pack(git: &'a Git, refname: &'a str, turn: Turn) -> Sink<'a> {
        Sink { to: Some((git, refname, turn)), pack: Mutex::new(None) }
    }

    /// Into a pack that was begun.
    pub(super) fn into(pack: Pack<'a>) -> Sink<'a> {
        let (git, refname) = pack.place();
        Sink { to: Some((git, refname, Turn::FIRST)), pack: Mutex::new(Some(Ok(pack))) }
    }

    pub(super) fn nowhere() -> Sink<'a> {
        Sink { to: None, pack: Mutex::new(None) }
    }

    /// The pack, begun if it is not yet.
    pub(super) fn into_pack(self) -> Result<Pack<'a>, GitError> {
        let (git, refname, turn) = self.to.expect("only a snapshot has a pack");
        let begun = self.pack.into_inner().unwrap_or_else(PoisonError::into_inner);
        begun.unwrap_or_else(|| Pack::begin(git, refname, turn))
    }

    /// A pack that could not be begun is told at the end.
    fn put(&self, write: impl FnOnce(&mut Pack<'a>)) {
        let Some((git, refname, turn)) = self.to else { return };
        let mut pack: MutexGuard<'_, _> = self.pack.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(pack) = pack.get_or_insert_with(|| Pack::begin(git, refname, turn)) {
            write(pack);
        }
    }
}

/// What was read of a file.
pub(super) struct Reading {
    pub(super) mode: Mode,
    pub(super) id: Id,
    /// How it looked; `None` when that is no proof that it stays the same.
    pub(super) print: Option<Print>,
    /// It changed each time it was read.
    pub(super) torn: bool,
}

/// A file that was read, or is gone (`None`), or why it cannot be read.
pub(super) type Outcome = Result<Option<Reading>, String>;

/// What is needed to read.
pub(super) struct Reader<'a, 's> {
    pub(super) root: &'a Root,
    pub(super) known: &'a Known,
    pub(super) format: Format,
    /// When the walk began.
    pub(super) began: SystemTime,
    pub(super) sink: &'a Sink<'s>,
}

impl Reader<'_, '_> {
    /// Reads some files; the answers come in their order.
    pub(super) fn all(&self, paths: &[Vec<u8>]) -> Vec<Outcome> {
        if paths.len() < SHARED_MIN {
            return paths.iter().map(|path| self.read(path)).collect();
        }
        let threads = std::thread::available_parallelism().map_or(2, usize::from).min(THREADS_MAX);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut read = Vec::new();
            while let at = next.fetch_add(1, Ordering::Relaxed)
                && let Some(path) = paths.get(at)
            {
                read.push((at, self.read(path)));
            }
            read
        };
        let mut read = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut read = work();
            for other in others {
                read.extend(other.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
            }
            read
        });
        read.sort_by_key(|(at, _)| *at);
        read.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn read(&self, path: &[u8]) -> Outcome {
        let known = self.known.get(path);
        let mut last = None;
        for _ in 0..ROUNDS {
            match self.once(path, known) {
                Ok(Some(reading)) if reading.torn => last = Some(reading),
                Err(error) if is_gone(&error) => return Ok(last),
                Err(error) => return Err(said(&error)),
                Ok(read) => return Ok(read),
            }
        }
        Ok(last)
    }

    /// `None`: it is gone, or a folder by now.
    fn once(&self, path: &[u8], known: Option<&KnownFile>) -> io::Result<Option<Reading>> {
        let spot = self.root.spot(path)?;
        let found = spot.look()?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind.is_symlink() {
            let bytes = spot.target()?;
            let after = spot.look()?;
            let id = hash::blob(self.format, &bytes).map_err(io::Error::other)?;
            self.offer(known, id, &bytes);
            return Ok(Some(self.judged(&found, &after, (Mode::Link, id))));
        }
        if kind.is_dir() {
            return Ok(None);
        }
        if let Some(why) = unkept(&found) {
            return Err(io::Error::other(why));
        }
        let mut file = spot.read()?;
        let before = fstat(&file)?;
        if let Some(why) = unkept(&before) {
            return Err(io::Error::other(why));
        }
        let mode = match before.st_mode & 0o100 {
            0 => Mode::File,
            _ => Mode::Program,
        };
        if before.st_size as u64 > HELD_MAX {
            return self.large(&mut file, &before, mode, known).map(Some);
        }
        let mut bytes = Vec::with_capacity(before.st_size as usize + 1);
        // One that grows is cut, and seen to have grown.
        (&mut file).take(HELD_MAX + 1).read_to_end(&mut bytes)?;
        let after = fstat(&file)?;
        let id = hash::blob(self.format, &bytes).map_err(io::Error::other)?;
        self.offer(known, id, &bytes);
        Ok(Some(self.judged(&before, &after, (mode, id))))
    }

    /// Hands over bytes that are new.
    fn offer(&self, known: Option<&KnownFile>, id: Id, bytes: &[u8]) {
        if known.is_none_or(|known| known.id != id) {
            self.sink.put(|pack| pack.blob(id, bytes));
        }
    }

    fn judged(&self, before: &Stat, after: &Stat, (mode, id): (Mode, Id)) -> Reading {
        let print = Print::of_stat(after);
        let torn = print != Print::of_stat(before);
        let settled = !torn && print.is_settled(self.began);
        Reading { mode, id, print: settled.then_some(print), torn }
    }

    /// Hashed first, and only written if it is new.
    fn large(
        &self,
        file: &mut File,
        before: &Stat,
        mode: Mode,
        known: Option<&KnownFile>,
    ) -> io::Result<Reading> {
        let len = before.st_size as u64;
        let mut first = Tee { from: file, hashing: Hashing::blob(self.format, len), len: 0 };
        io::copy(&mut (&mut first).take(len), &mut io::sink())?;
        let (mut got, hashing) = (first.len, first.hashing);
        let mut id = hashing.id().map_err(io::Error::other)?;
        if known.is_none_or(|known| known.id != id) {
            file.rewind()?;
            let mut again = Tee { from: file, hashing: Hashing::blob(self.format, len), len: 0 };
            let mut written = Ok(());
            self.sink.put(|pack| written = pack.stream(len, &mut again));
            written?;
            if self.sink.to.is_some() {
                got = again.len;
                let padding = vec![0; 64 * 1024];
                let mut missing = len - again.len;
                while missing > 0 {
                    let share = missing.min(padding.len() as u64);
                    again.hashing.add(&padding[..share as usize]);
                    missing -= share;
                }
                id = again.hashing.id().map_err(io::Error::other)?;
            }
        }
        let after = fstat(&file)?;
        let mut reading = self.judged(before, &after, (mode, id));
        reading.torn |= got != len;
        Ok(reading)
    }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::Other => error.to_string(),
        _ => format!("it cannot be read: {error}"),
    }
}

/// Hashes what is read.
struct Tee<'a> {
    from: &'a mut File,
    hashing: Hashing,
    len: u64,
}

impl Read for Tee<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(buffer)?;
        self.hashing.add(&buffer[..got]);
        self.len += got as u64;
        Ok(got)
    }
}
