//! Brings an index up to what is on disk. `git add --all` gives up as a whole when one file vanishes
//! under it or one nested repository is empty, so the paths are looked at here, one by one, and git
//! is only asked to read those that can be read.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::status::Status;
use super::{Call, GitError, names};

/// The largest file a snapshot copies: every copy of it stays in the repository.
pub(crate) const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// How often a file that changes while it is read is read again.
const ROUNDS: usize = 3;

/// Paths that look readable and that git refuses: with more of them, the fault is not in the paths.
const REFUSED_MAX: usize = 64;

pub(crate) const CHANGING: &str = "it kept changing while it was read; the copy may be torn";
pub(crate) const NESTED: &str = "a nested repository: only its own commits hold its files";

/// A path that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeftOut {
    pub(crate) path: Vec<u8>,
    pub(crate) why: String,
}

impl LeftOut {
    pub(crate) fn new(path: &[u8], why: impl Into<String>) -> LeftOut {
        LeftOut { path: path.to_vec(), why: why.into() }
    }
}

/// What an index lacks to be as the worktree.
#[derive(Default)]
pub(crate) struct Changes {
    /// To be read from disk.
    pub(crate) put: Vec<Vec<u8>>,
    /// No longer on disk.
    pub(crate) drop: Vec<Vec<u8>>,
    /// Untracked repositories: they are never taken in.
    pub(crate) nested: Vec<Vec<u8>>,
}

impl Changes {
    pub(crate) fn of(status: &Status) -> Changes {
        let mut changes = Changes::default();
        for entry in &status.tracked {
            if entry.unstaged == b'D' || entry.unmerged && entry.gone {
                changes.drop.push(entry.path.clone());
            } else if entry.unstaged != b'.' {
                changes.put.push(entry.path.clone());
            }
        }
        for path in &status.untracked {
            match path.strip_suffix(b"/") {
                Some(nested) => changes.nested.push(nested.to_vec()),
                None => changes.put.push(path.clone()),
            }
        }
        changes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.put.is_empty() && self.drop.is_empty()
    }
}

/// Takes in everything, or fails with what git said.
pub(crate) fn strictly(call: impl Fn() -> Call, changes: &Changes) -> Result<(), GitError> {
    forget(&call, &changes.drop)?;
    match read_in(&call, &changes.put)?.first() {
        None => Ok(()),
        Some(path) => {
            let what = format!("git does not allow the name {}", names::shown(path));
            Err(GitError::unexpected("git update-index", what))
        }
    }
}

/// Takes in what can be read; returns what could not.
pub(crate) fn tolerantly(
    call: impl Fn() -> Call,
    root: &Path,
    changes: &Changes,
) -> Result<Vec<LeftOut>, GitError> {
    forget(&call, &changes.drop)?;
    let mut left_out = Vec::new();
    let mut put = changes.put.clone();
    for round in 1.. {
        let before = readable(root, put, &mut left_out);
        let paths: Vec<Vec<u8>> = before.iter().map(|(path, _)| path.clone()).collect();
        let mut refused = Vec::new();
        halving(&call, &paths, &mut refused)?;
        left_out.append(&mut refused);
        put = before.into_iter().filter(|sight| has_changed(root, sight)).map(|(p, _)| p).collect();
        if put.is_empty() {
            break;
        }
        if round == ROUNDS {
            left_out.extend(put.iter().map(|path| LeftOut::new(path, CHANGING)));
            break;
        }
    }
    Ok(left_out)
}

/// What a path looked like before git read it.
type Sight = (Vec<u8>, Option<Print>);
type Print = (u64, u64, i64, i64);

fn print(found: &Metadata) -> Print {
    (found.ino(), found.size(), found.mtime(), found.mtime_nsec())
}

/// Splits off what cannot be read. A path that vanished stays: git then forgets it.
fn readable(root: &Path, put: Vec<Vec<u8>>, left_out: &mut Vec<LeftOut>) -> Vec<Sight> {
    let mut good = Vec::with_capacity(put.len());
    for path in put {
        match look(&root.join(names::path(&path))) {
            Ok(found) => good.push((path, found.as_ref().map(print))),
            Err(why) => left_out.push(LeftOut { path, why }),
        }
    }
    good
}

/// Whether git can read a path; the error says why not.
pub(crate) fn look(path: &Path) -> Result<Option<Metadata>, String> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(format!("it cannot be looked at: {error}")),
    };
    let kind = found.file_type();
    if let Some(why) = special(kind) {
        return Err(why.to_owned());
    }
    if kind.is_file() {
        if found.len() > FILE_BYTES_MAX {
            return Err(format!("it is larger than {} MiB", FILE_BYTES_MAX >> 20));
        }
        match open(path) {
            Ok(_) => {}
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(format!("it cannot be read: {error}")),
        }
    }
    Ok(Some(found))
}

/// Why git cannot keep a file of this kind.
pub(crate) fn special(kind: fs::FileType) -> Option<&'static str> {
    if kind.is_fifo() {
        Some("a FIFO, not a file")
    } else if kind.is_socket() {
        Some("a socket, not a file")
    } else if kind.is_block_device() || kind.is_char_device() {
        Some("a device, not a file")
    } else {
        None
    }
}

/// Opened without waiting: the path may have become a FIFO since it was looked at.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn has_changed(root: &Path, (path, before): &Sight) -> bool {
    let Some(before) = before else { return false };
    let now = fs::symlink_metadata(root.join(names::path(path)));
    // Gone by now: what was read of it is kept.
    now.is_ok_and(|now| !now.is_dir() && print(&now) != *before)
}

/// One bad path fails a call as a whole and leaves the index as it was: halve until it is alone.
fn halving(
    call: &impl Fn() -> Call,
    paths: &[Vec<u8>],
    left_out: &mut Vec<LeftOut>,
) -> Result<(), GitError> {
    let error = match read_in(call, paths) {
        Ok(passed_over) => {
            let why = "git does not allow its name";
            left_out.extend(passed_over.into_iter().map(|path| LeftOut::new(path, why)));
            return Ok(());
        }
        Err(error) => error,
    };
    match (&error, paths) {
        (GitError::Failed { stderr, .. }, _) if stderr.contains("No space left") => Err(error),
        (GitError::Failed { .. }, _) if left_out.len() > REFUSED_MAX => Err(error),
        (GitError::Failed { stderr, .. }, [path]) => {
            left_out.push(LeftOut::new(path, format!("git cannot read it: {stderr}")));
            Ok(())
        }
        (GitError::Failed { .. }, _) => {
            let (left, right) = paths.split_at(paths.len() / 2);
            halving(call, left, left_out)?;
            halving(call, right, left_out)
        }
        _ => Err(error),
    }
}

/// Returns the paths that git passed over, which it only mentions.
fn read_in<'p>(call: &impl Fn() -> Call, paths: &'p [Vec<u8>]) -> Result<Vec<&'p [u8]>, GitError> {
    let stderr = update(call, &["--add", "--replace", "--remove"], paths)?;
    if !stderr.contains("Ignoring path ") {
        return Ok(Vec::new());
    }
    let said = format!("{stderr}\n");
    let passed_over =
        |path: &&[u8]| said.contains(&format!("Ignoring path {}\n", String::from_utf8_lossy(path)));
    Ok(paths.iter().map(Vec::as_slice).filter(passed_over).collect())
}

fn forget(call: &impl Fn() -> Call, paths: &[Vec<u8>]) -> Result<(), GitError> {
    update(call, &["--force-remove"], paths).map(drop)
}

/// Returns what git said.
fn update(call: &impl Fn() -> Call, how: &[&str], paths: &[Vec<u8>]) -> Result<String, GitError> {
    if paths.is_empty() {
        return Ok(String::new());
    }
    let mut input = paths.join(&0);
    input.push(0);
    let call = call().arg("update-index").args(how).args(&["-z", "--stdin"]).input(input);
    Ok(call.run()?.stderr)
}

#[cfg(test)]
mod tests {
    use super::super::Git;
    use super::super::status::{Depth, status};
    use super::*;

    #[test]
    fn a_file_that_fails_git_is_found_by_halving() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        fs::write(root.join(".gitattributes"), "*.utf16 working-tree-encoding=UTF-16\n")
            .expect("writable");
        let git = Git::init(root, "attributes").expect("made");
        for n in 0..30 {
            fs::write(root.join(format!("good{n}")), "x").expect("writable");
        }
        for name in ["bad1.utf16", "bad2.utf16"] {
            fs::write(root.join(name), [0xff, 0xfe, 0x00]).expect("writable");
        }
        let call = || git.call().option("--work-tree=", git.here()).inside(git.here());
        let changes = Changes::of(&status(call(), Depth::Files).expect("known"));
        assert_eq!(changes.put.len(), 32);
        assert!(strictly(call, &changes).is_err(), "the fault was not applied");
        let left_out = tolerantly(call, git.here(), &changes).expect("most is taken in");
        let names: Vec<_> = left_out.iter().map(|left| left.path.as_slice()).collect();
        assert_eq!(names, [b"bad1.utf16", b"bad2.utf16"]);
        assert!(left_out[0].why.contains("UTF-16"), "{:?}", left_out[0]);
        let after = Changes::of(&status(call(), Depth::Files).expect("known"));
        assert_eq!(after.put.len(), 2, "everything else is in the index");
    }
}
