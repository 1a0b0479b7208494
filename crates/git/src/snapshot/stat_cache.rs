//! What the last snapshot of a worktree found: each file's id, and how the file looked when it was
//! read. A file that still looks the same is not read again. Ids are only worth something while the
//! snapshot that has them keeps its ref; losing all of this loses time and nothing else.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use piton_core::ids::Oid;
use rustix::fs::Stat;

use crate::file;
use crate::repo::hash::Id;
use crate::repo::pack::{Change, Mode};
use crate::repo::{Git, GitError, locks, names};

/// Files that were touched less than this before a look may be touched again without looking any
/// different: clocks of file systems go in steps.
const STEP: Duration = Duration::from_millis(50);
/// The same where only whole seconds are kept.
const COARSE_STEP: Duration = Duration::from_secs(2);
const VERSION: &[u8] = b"piton known 1\n";

/// How a file looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print {
    pub(super) size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
    inode: u64,
    mode: u32,
}

impl Print {
    pub(super) fn of(found: &Metadata) -> Print {
        Print {
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec() as u32),
            changed: (found.ctime(), found.ctime_nsec() as u32),
            inode: found.ino(),
            mode: found.mode(),
        }
    }

    #[expect(
        clippy::unnecessary_cast,
        clippy::useless_conversion,
        reason = "the fields have other types on other systems"
    )]
    pub(super) fn of_stat(found: &Stat) -> Print {
        Print {
            size: found.st_size as u64,
            modified: (found.st_mtime as i64, found.st_mtime_nsec as u32),
            changed: (found.st_ctime as i64, found.st_ctime_nsec as u32),
            inode: found.st_ino as u64,
            mode: u32::from(found.st_mode),
        }
    }

    /// Whether a later change would show, for a look that began then. The time of the last change of
    /// the inode is nobody's to set.
    pub(super) fn is_settled(&self, began: SystemTime) -> bool {
        let (seconds, nanos) = self.changed;
        let changed = UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), nanos);
        let step = if nanos == 0 { COARSE_STEP } else { STEP };
        changed + step < began
    }
}

/// A file as the last snapshot has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownFile {
    pub(super) mode: Mode,
    pub(super) id: Id,
    /// How it looked when it was read; `None`: whatever it looks like, read it.
    pub(super) print: Option<Print>,
    /// The worktree's index has it, so that no ignore rule applies.
    pub(super) tracked: bool,
}

impl KnownFile {
    pub(super) fn is_gitlink(&self) -> bool {
        self.mode == Mode::Gitlink
    }
}

/// The files of one folder, by name.
#[derive(Debug)]
pub(super) struct CachedFolder {
    pub(super) path: Box<[u8]>,
    pub(super) files: Vec<(Box<[u8]>, KnownFile)>,
}

impl CachedFolder {
    pub(super) fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.files.binary_search_by(|(other, _)| (**other).cmp(name))
    }
}

/// The snapshot that has the ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) refname: String,
    pub(super) commit: Oid,
    pub(super) tree: Oid,
    pub(super) head: Option<Oid>,
    /// What was staged, as a digest.
    pub(super) staged: String,
}

/// Every file of the last snapshot.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) folders: Vec<CachedFolder>,
    places: HashMap<Box<[u8]>, usize>,
}

impl Known {
    /// The files of a tree. Those that were seen to be the same keep how they looked, the others are to
    /// be read.
    pub(super) fn of(files: Vec<Change>, seen: &Known) -> Known {
        let mut known = Known::default();
        for (path, to) in files {
            if let Some((mode, id)) = to {
                let same = seen.get(&path).filter(|kept| (kept.mode, kept.id) == (mode, id));
                let print = same.and_then(|kept| kept.print);
                known.set(&path, KnownFile { mode, id, print, tracked: false });
            }
        }
        known
    }

    pub(super) fn folder(&self, path: &[u8]) -> Option<usize> {
        self.places.get(path).copied()
    }

    pub(super) fn get(&self, path: &[u8]) -> Option<&KnownFile> {
        let (folder, name) = split(path);
        let folder = &self.folders[self.folder(folder)?];
        folder.find(name).ok().map(|at| &folder.files[at].1)
    }

    pub(super) fn set(&mut self, path: &[u8], kept: KnownFile) {
        let (folder, name) = split(path);
        let files = self.files(folder);
        match files.binary_search_by(|(other, _)| (**other).cmp(name)) {
            Ok(at) => files[at].1 = kept,
            Err(at) => files.insert(at, (name.into(), kept)),
        }
    }

    fn files(&mut self, folder: &[u8]) -> &mut Vec<(Box<[u8]>, KnownFile)> {
        let at = match self.places.get(folder) {
            Some(at) => *at,
            None => {
                self.folders.push(CachedFolder { path: folder.into(), files: Vec::new() });
                self.places.insert(folder.into(), self.folders.len() - 1);
                self.folders.len() - 1
            }
        };
        &mut self.folders[at].files
    }

    pub(super) fn remove(&mut self, path: &[u8]) {
        let (folder, name) = split(path);
        let Some(at) = self.folder(folder) else { return };
        if let Ok(found) = self.folders[at].find(name) {
            self.folders[at].files.remove(found);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.folders.iter().map(|folder| folder.files.len()).sum()
    }

    /// Says anew which files the index has; its names come sorted.
    pub(super) fn mark_tracked<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>) {
        let all = self.folders.iter_mut().flat_map(|folder| &mut folder.files);
        all.for_each(|(_, kept)| kept.tracked = false);
        let mut last: (Vec<u8>, Option<usize>) = (Vec::new(), self.folder(b""));
        for path in names {
            let (folder, name) = split(path);
            if folder != last.0 {
                last = (folder.to_vec(), self.folder(folder));
            }
            let Some(at) = last.1 else { continue };
            if let Ok(found) = self.folders[at].find(name) {
                self.folders[at].files[found].1.tracked = true;
            }
        }
    }

    pub(super) fn gitlinks(&self) -> impl Iterator<Item = Vec<u8>> {
        self.folders.iter().flat_map(|folder| {
            let links = folder.files.iter().filter(|(_, kept)| kept.is_gitlink());
            links.map(|(name, _)| join(&folder.path, name))
        })
    }
}

/// A path's folder, empty for the root, and its name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (b"", path),
    }
}

pub(super) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder.is_empty() {
        true => name.to_vec(),
        false => [folder, b"/", name].concat(),
    }
}

/// What there is on top of a commit, kept up from snapshot to snapshot.
#[derive(Debug)]
pub(super) struct Differing {
    pub(super) from: Oid,
    pub(super) paths: BTreeSet<Vec<u8>>,
    /// HEAD, and how many commits it has on top.
    pub(super) commits: Option<(Oid, u64)>,
}

/// Where a worktree's file is.
pub(super) fn file(git: &Git, root: &Path) -> PathBuf {
    git.state_dir().join("known").join(key(root))
}

/// A name for what is kept about a worktree.
pub(super) fn key(root: &Path) -> String {
    blake3::hash(names::bytes(root)).to_hex()[..32].to_owned()
}

/// Reads what another process has left; whatever is wrong with it, there is then nothing.
pub(super) fn load(path: &Path) -> Option<(Base, Known)> {
    let bytes = file::read(path).ok()?;
    let (text, seal) = bytes.split_at_checked(bytes.len().checked_sub(blake3::OUT_LEN)?)?;
    if blake3::hash(text).as_bytes() != seal {
        return None;
    }
    decode(text.strip_prefix(VERSION)?)
}

/// Replaces the file. It is not flushed: a torn one is not used.
pub(super) fn save(path: &Path, base: &Base, known: &Known) -> Result<(), GitError> {
    let mut text = VERSION.to_vec();
    encode(&mut text, base, known);
    let seal = blake3::hash(&text);
    text.extend_from_slice(seal.as_bytes());
    let folder = path.parent().unwrap_or(path);
    locks::private_dir(folder)?;
    let new = path.with_extension(format!("{}", std::process::id()));
    let written = write_private(&new, &text).and_then(|()| fs::rename(&new, path));
    written.map_err(|source| GitError::io("write", path, source))
}

fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    io::Write::write_all(&mut file, text)
}

fn encode(to: &mut Vec<u8>, base: &Base, known: &Known) {
    let head = base.head.as_ref().map_or("", Oid::as_str);
    for text in [&base.refname, base.commit.as_str(), base.tree.as_str(), head, &base.staged] {
        put(to, text.as_bytes());
    }
    for folder in known.folders.iter().filter(|folder| !folder.files.is_empty()) {
        put(to, &folder.path);
        to.extend_from_slice(&(folder.files.len() as u32).to_le_bytes());
        for (name, kept) in &folder.files {
            put(to, name);
            to.extend_from_slice(kept.mode.text().as_bytes());
            put(to, kept.id.bytes());
            to.push(u8::from(kept.print.is_some()));
            if let Some(print) = &kept.print {
                for number in
                    [print.size, print.inode, print.modified.0 as u64, print.changed.0 as u64]
                {
                    to.extend_from_slice(&number.to_le_bytes());
                }
                for number in [print.modified.1, print.changed.1, print.mode] {
                    to.extend_from_slice(&number.to_le_bytes());
                }
            }
        }
    }
}

fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    to.extend_from_slice(bytes);
}

fn decode(text: &[u8]) -> Option<(Base, Known)> {
    let mut from = Text(text);
    let mut word = || String::from_utf8(from.bytes()?.to_vec()).ok();
    let (refname, commit, tree) = (word()?, Oid::new(word()?).ok()?, Oid::new(word()?).ok()?);
    let head = Some(word()?).filter(|head| !head.is_empty());
    let head = head.map(Oid::new).transpose().ok()?;
    let staged = word()?;
    let mut known = Known::default();
    while !from.0.is_empty() {
        let folder = from.bytes()?;
        let count = from.u32()?;
        let files = known.files(folder);
        for _ in 0..count {
            let name = from.bytes()?;
            let mode = Mode::parse(from.cut(6)?)?;
            let id = Id::new(from.bytes()?)?;
            let print = match from.cut(1)? {
                [0] => None,
                _ => Some(from.print()?),
            };
            files.push((name.into(), KnownFile { mode, id, print, tracked: false }));
        }
        if !files.is_sorted_by(|(a, _), (b, _)| a < b) {
            return None;
        }
    }
    Some((Base { refname, commit, tree, head, staged }, known))
}

/// What is still to be decoded.
struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    fn cut(&mut self, len: usize) -> Option<&'a [u8]> {
        let (cut, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(cut)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.cut(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.cut(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.cut(len as usize)
    }

    fn print(&mut self) -> Option<Print> {
        let (size, inode) = (self.u64()?, self.u64()?);
        let (modified, changed) = (self.u64()? as i64, self.u64()? as i64);
        Some(Print {
            size,
            inode,
            modified: (modified, self.u32()?),
            changed: (changed, self.u32()?),
            mode: self.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Base, Known) {
        let id = |digit: &str| Oid::new(digit.repeat(40)).expect("an id");
        let base = Base {
            refname: "refs/piton/x/a/7/1".to_owned(),
            commit: id("1"),
            tree: id("2"),
            head: None,
            staged: "digest".to_owned(),
        };
        let print = Print { size: 1, modified: (2, 3), changed: (-4, 5), inode: 6, mode: 7 };
        let mut known = Known::default();
        for (path, print) in [("b/c", Some(print)), ("a", None), ("b/a", Some(print))] {
            let id = Id::parse("3".repeat(40).as_bytes()).expect("an id");
            known.set(path.as_bytes(), KnownFile { mode: Mode::Link, id, print, tracked: false });
        }
        (base, known)
    }

    #[test]
    fn a_file_comes_back_and_a_torn_or_foreign_one_does_not() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("known/file");
        let (base, known) = sample();
        save(&path, &base, &known).expect("written");
        let (read, files) = load(&path).expect("whole");
        assert_eq!(read, base);
        assert_eq!(format!("{:?}", files.get(b"b/c")), format!("{:?}", known.get(b"b/c")));
        assert_eq!(files.len(), 3);
        let whole = fs::read(&path).expect("there");
        for cut in [0, 5, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).expect("writable");
            assert!(load(&path).is_none(), "cut at {cut}");
        }
        let mut other = b"piton known 9\n".to_vec();
        other.extend_from_slice(&whole[VERSION.len()..whole.len() - blake3::OUT_LEN]);
        let seal = blake3::hash(&other);
        other.extend_from_slice(seal.as_bytes());
        fs::write(&path, other).expect("writable");
        assert!(load(&path).is_none(), "another version");
    }

    #[test]
    fn what_was_just_touched_is_not_settled() {
        let began = UNIX_EPOCH + Duration::from_secs(1000);
        let print = |changed| Print { size: 0, modified: (1, 1), changed, inode: 0, mode: 0 };
        assert!(print((999, 900_000_000)).is_settled(began));
        assert!(!print((999, 999_000_000)).is_settled(began));
        assert!(!print((1001, 1)).is_settled(began));
        assert!(!print((999, 0)).is_settled(began), "a clock of whole seconds");
        assert!(print((990, 0)).is_settled(began));
    }
}
