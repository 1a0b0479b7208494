//! A look at the raw write-ahead log. SQLite takes the first frame that fails its checksum for the end
//! of the log, because a crash leaves such a frame behind; so a flipped bit in the middle would silently
//! take back every commit after it. Here the two are told apart. Knows frames, not pages.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::process::{Flock, FlockType, Pid};

use super::header;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const MAGIC: u32 = 0x377f_0682;

/// A few frames at a time: memory that is touched for the first time costs more than a read.
const BUFFER: usize = 1 << 14;

/// A log with fewer commits is young.
const YOUNG: u32 = 3;

/// What the log holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// Frames since the log was last begun anew.
    pub(super) frames: u32,
    /// Commits that SQLite will find.
    pub(super) commits: u32,
    /// Commits behind a broken frame that are whole in themselves.
    pub(super) lost: u32,
}

impl Survey {
    /// The log was begun anew not long ago.
    pub(super) fn is_young(self) -> bool {
        self.commits < YOUNG
    }

    /// One commit behind a broken frame can be left over from a crash, because commits are flushed one
    /// by one and only the last one can have been half written. Two cannot.
    pub(super) fn is_broken(self) -> bool {
        self.lost > 1
    }
}

/// How far a log is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    /// No more than tells whether it is young, and how many frames follow.
    Beginning,
}

/// Follows the log from its start, as SQLite does when it recovers, and then on.
pub(super) fn survey(wal: &Path, extent: Extent) -> io::Result<Survey> {
    let mut survey = Survey::default();
    let Some(mut log) = Log::open(wal)? else { return Ok(survey) };
    let mut sound = log.is_sound;
    while let Some(frame) = log.next() {
        sound &= frame.is_whole;
        survey.frames += 1;
        match (frame.is_commit && frame.is_whole, sound) {
            (true, true) => survey.commits += 1,
            (true, false) => survey.lost += 1,
            (false, _) => {}
        }
        if extent == Extent::Beginning && !survey.is_young() {
            survey.frames = log.count_from(survey.frames)?;
            break;
        }
    }
    Ok(survey)
}

/// Whether the log has all these pages: then a checkpoint was interrupted, and a database file without
/// them is as good as whole.
pub(super) fn holds(wal: &Path, page: usize, pages: Range<u32>) -> io::Result<bool> {
    let Some(mut log) = Log::open(wal)? else { return Ok(false) };
    let mut held = HashSet::new();
    while let Some(frame) = log.next() {
        if !frame.is_whole {
            break;
        }
        held.insert(frame.page);
    }
    Ok(log.page == page && pages.into_iter().all(|number| held.contains(&number)))
}

/// Another process that has the database open: each holds a lock on this byte of the shared-memory file
/// for as long as it does.
pub(super) fn user(shm: &Path) -> Option<Pid> {
    asked(shm).ok().flatten().and_then(|lock| lock.pid)
}

/// Whether no other process has.
pub(super) fn is_ours_alone(shm: &Path) -> bool {
    matches!(asked(shm), Ok(None))
}

fn asked(shm: &Path) -> io::Result<Option<Flock>> {
    const OPEN: u64 = 128;
    let file = header::keep_open(shm)?;
    let lock = Flock { start: OPEN, length: 1, ..Flock::from(FlockType::WriteLock) };
    // Locks of this process are in nobody's way here.
    Ok(rustix::process::fcntl_getlk(&*file, &lock)?)
}

/// What is different each time the log is begun anew: its header, which is written before the first
/// frame.
pub(super) fn generation(wal: &Path) -> io::Result<Option<[u8; HEADER]>> {
    let mut header = [0; HEADER];
    match File::open(wal).and_then(|mut file| file.read_exact(&mut header)) {
        Ok(()) => Ok(Some(header)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

struct Frame {
    page: u32,
    is_commit: bool,
    /// Its checksum follows from the one of the frame before it.
    is_whole: bool,
}

struct Log {
    file: BufReader<File>,
    page: usize,
    is_big_endian: bool,
    is_sound: bool,
    /// Frames with other salts are from before the log was last begun anew. Taken from the header, or
    /// from the first frame when the header is broken.
    salts: Option<[u8; 8]>,
    sum: Sum,
    buffer: Vec<u8>,
}

impl Log {
    fn open(wal: &Path) -> io::Result<Option<Log>> {
        let mut file = match File::open(wal) {
            Ok(file) => BufReader::with_capacity(BUFFER, file),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut header = [0; HEADER];
        if file.read_exact(&mut header).is_err() {
            return Ok(None);
        }
        let is_big_endian = be32(&header, 0) & 1 == 1;
        let sum = Sum::default().over(&header[..24], is_big_endian);
        let stored = Sum::stored(&header, 24);
        let is_sound = be32(&header, 0) | 1 == MAGIC | 1 && sum == stored;
        // With a broken header the usual page size is the best guess.
        let page = if is_sound { be32(&header, 8) as usize } else { 4_096 };
        let salts = if is_sound { header[16..24].try_into().ok() } else { None };
        let buffer = vec![0; FRAME_HEADER + page];
        Ok(Some(Log { file, page, is_big_endian, is_sound, salts, sum: stored, buffer }))
    }

    /// How many frames there are, where so many are known: those since the log was last begun anew are in
    /// front of the older ones.
    fn count_from(&self, known: u32) -> io::Result<u32> {
        let file = self.file.get_ref();
        let size = (FRAME_HEADER + self.page) as u64;
        let room = file.metadata()?.len().saturating_sub(HEADER as u64) / size;
        let (mut newer, mut beyond) = (u64::from(known), room.max(u64::from(known)) + 1);
        while newer + 1 < beyond {
            let middle = newer.midpoint(beyond);
            let mut salts = [0; 8];
            file.read_exact_at(&mut salts, HEADER as u64 + (middle - 1) * size + 8)?;
            if Some(salts) == self.salts { newer = middle } else { beyond = middle }
        }
        Ok(u32::try_from(newer).unwrap_or(u32::MAX))
    }

    fn next(&mut self) -> Option<Frame> {
        self.file.read_exact(&mut self.buffer).ok()?;
        let (head, data) = self.buffer.split_at(FRAME_HEADER);
        let salts = self.salts.get_or_insert_with(|| std::array::from_fn(|at| head[8 + at]));
        if head[8..16] != *salts {
            return None;
        }
        let sum = self.sum.over(&head[..8], self.is_big_endian).over(data, self.is_big_endian);
        // Onwards from what the frame says, so that one broken frame does not condemn the rest.
        self.sum = Sum::stored(head, 16);
        let is_whole = sum == self.sum;
        Some(Frame { page: be32(head, 0), is_commit: be32(head, 4) != 0, is_whole })
    }
}

/// The running checksum of the log's format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum(u32, u32);

impl Sum {
    fn stored(bytes: &[u8], at: usize) -> Sum {
        Sum(be32(bytes, at), be32(bytes, at + 4))
    }

    fn over(self, bytes: &[u8], is_big_endian: bool) -> Sum {
        if is_big_endian { self.add(bytes, u32::from_be) } else { self.add(bytes, u32::from_le) }
    }

    /// Two words at a time: every start of a process goes over the whole log.
    fn add(self, bytes: &[u8], word: impl Fn(u32) -> u32) -> Sum {
        let Sum(mut one, mut two) = self;
        let (pairs, _) = bytes.as_chunks::<8>();
        for &[a, b, c, d, e, f, g, h] in pairs {
            let words = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
            one = one.wrapping_add(word(words.0)).wrapping_add(two);
            two = two.wrapping_add(word(words.1)).wrapping_add(one);
        }
        Sum(one, two)
    }
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a log that was begun anew, with so many frames over so many older ones.
    fn log(dir: &Path, frames: u32, older: u32) -> std::path::PathBuf {
        let path = dir.join("store.db-wal");
        let mut bytes = Vec::new();
        for word in [MAGIC, 3_007_000, 512, 0, 7, 7] {
            bytes.extend(word.to_be_bytes());
        }
        let mut sum = Sum::default().over(&bytes, false);
        bytes.extend([sum.0.to_be_bytes(), sum.1.to_be_bytes()].concat());
        for number in 0..frames.max(older) {
            let salt: u32 = if number < frames { 7 } else { 6 };
            let head = [number + 1, 1].map(u32::to_be_bytes).concat();
            let data = [number.to_be_bytes()[3]; 512];
            sum = sum.over(&head, false).over(&data, false);
            bytes.extend(head);
            for word in [salt, salt, sum.0, sum.1] {
                bytes.extend(word.to_be_bytes());
            }
            bytes.extend(data);
        }
        std::fs::write(&path, bytes).expect("a log");
        path
    }

    #[test]
    fn the_beginning_of_a_log_tells_as_many_frames_as_all_of_it() {
        let dir = tempfile::tempdir().expect("a folder");
        for (frames, older) in [(0, 0), (0, 9), (1, 0), (2, 9), (3, 3), (4, 9), (9, 4), (57, 90)] {
            let path = log(dir.path(), frames, older);
            let whole = survey(&path, Extent::Whole).expect("a log");
            assert_eq!((whole.frames, whole.commits, whole.lost), (frames, frames, 0));
            let beginning = survey(&path, Extent::Beginning).expect("a log");
            assert_eq!((beginning.frames, beginning.commits), (frames, frames.min(YOUNG)));
        }
    }
}
