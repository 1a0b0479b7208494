//! What no snapshot can hold, and whoever gets the worktree next must not find: repositories of their own,
//! with all that is in them, and what a snapshot had to leave out. It is moved to a folder of the attempt
//! that resets the worktree, and stays there.
//!
//! Each path is moved by one rename, and before the first of them a record beside the folder says where
//! all of them come from. So a kill leaves each in one of two places, and whoever comes next goes on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use piton_core::event::Snapshot;
use piton_core::ids::Oid;
use piton_core::view::MovedOutView;

use super::compare::on_top;
use super::held;
use super::read::Sink;
use super::staged::{Staged, files_of};
use super::stat_cache::join;
use super::walk::{Nested, is_within};
use crate::crash;
use crate::file;
use crate::file::replace;
use crate::repo::pack::Mode;
use crate::repo::{GitError, flush, is_missing, locks, names, plain};
use crate::worktree::{Worktree, shift};

/// The first field of a record that this version reads.
const VERSION: &[u8] = b"1";
/// What a record is called: the folder's name, and this.
const RECORD: &str = "paths";

/// A path that was moved out of a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedOut {
    /// Where it was, as seen from the worktree's root.
    pub path: Vec<u8>,
    /// Where it is now.
    pub place: PathBuf,
}

impl MovedOut {
    pub fn shown(&self) -> MovedOutView {
        let place = self.place.display().to_string();
        MovedOutView { path: names::shown(&self.path), place }
    }
}

/// Moves what a reset to `next` would lose or leave behind, and the snapshot does not hold, into a folder:
/// the worktree is looked at anew, whatever the snapshot lists. An error means: do not reset. Submodules
/// that both have stay, and so do other worktrees of this repository and what is ignored. Nothing may run
/// in the tree.
pub fn set_aside(
    tree: &Worktree,
    (snapshot, next): (&Snapshot, &Oid),
    into: &Path,
) -> Result<Vec<MovedOut>, GitError> {
    let (memory, capture) = on_top(tree, &snapshot.tree, &Sink::nowhere())?;
    let changed = capture.changes.iter().map(|(path, _)| path);
    let unkept = changed.chain(capture.left_out.iter().map(|left| &left.path));
    let look = OmittedSearch { tree, staged: &memory.staged, next };
    let paths = look.leaving(&capture.nested, unkept)?;
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = rows_in(into)?;
    let (before, reached) = (all.len(), tree.within_reach(into));
    for path in paths {
        let place = free_place(&reached, &path, &all);
        all.push(MovedOut { path, place });
    }
    write_record(into, &all)?;
    crash::point("tree.move-recorded");
    let moving = all.split_off(before);
    for moved in &moving {
        let from = tree.path().join(names::path(&moved.path));
        let folder = moved.place.parent().unwrap_or(into);
        locks::private_dir(folder)?;
        let shifted = shift(&from, &moved.place);
        shifted.map_err(|source| GitError::io("move out of the worktree", &from, source))?;
        flush::sync(folder)?;
        crash::point("tree.moved-out");
    }
    Ok(moving)
}

/// Whether a worktree in which nothing is changed holds anything that `set_aside` would move.
pub fn has_omitted(tree: &Worktree, next: &Oid) -> Result<bool, GitError> {
    let (staged, seen) = held::look(tree)?;
    let look = OmittedSearch { tree, staged: &staged, next };
    let leaving = look.leaving(&seen.nested, seen.left_out.iter().map(|left| &left.path))?;
    Ok(!leaving.is_empty())
}

/// What was moved into a folder and is there, as far as that can be told: for whoever only looks.
pub fn moved_out(into: &Path) -> Vec<MovedOut> {
    rows_in(into).unwrap_or_default()
}

/// The same for whoever writes the record anew: from one that cannot be read nothing may get lost.
fn rows_in(folder: &Path) -> Result<Vec<MovedOut>, GitError> {
    let path = record(folder);
    let bytes = match file::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(source) => return Err(GitError::io("read", &path, source)),
    };
    let unreadable =
        || GitError::unexpected(&path.display().to_string(), "it is torn, or of a newer piton");
    let rows = read_record(&bytes, folder).ok_or_else(unreadable)?;
    let is_there = |moved: &MovedOut| fs::symlink_metadata(&moved.place).is_ok();
    Ok(rows.into_iter().filter(is_there).collect())
}

/// A worktree that is to become that of another commit.
struct OmittedSearch<'a> {
    tree: &'a Worktree,
    staged: &'a Staged,
    next: &'a Oid,
}

impl OmittedSearch<'_> {
    /// What has to leave, sorted; nothing that is below another one.
    fn leaving<'p>(
        &self,
        nested: &[Nested],
        unkept: impl Iterator<Item = &'p Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, GitError> {
        let submodules = self.submodules(nested)?;
        let mut leaving = BTreeSet::new();
        let mut whole: Vec<&[u8]> = submodules.iter().map(Vec::as_slice).collect();
        for nested in nested {
            if whole.iter().any(|other| is_within(&nested.path, other)) {
                continue;
            }
            if nested.shared {
                leaving.insert(join(&nested.path, b".git"));
            } else {
                leaving.insert(nested.path.clone());
                whole.push(&nested.path);
            }
        }
        for path in unkept.filter(|path| !whole.iter().any(|other| is_within(path, other))) {
            if self.is_worth_moving(path)? {
                leaving.insert(path.clone());
            }
        }
        Ok(leaving.into_iter().collect())
    }

    /// Submodules that the worktree and the next commit have, and that are checked out from this
    /// repository: they belong to both commits.
    fn submodules(&self, nested: &[Nested]) -> Result<BTreeSet<Vec<u8>>, GitError> {
        let links: BTreeSet<&[u8]> =
            self.staged.tracked.gitlinks.iter().map(|(path, _)| path.as_slice()).collect();
        let own = self.tree.git().common_dir();
        let is_ours = |path: &[u8]| {
            let dirs = plain::git_dirs(&self.tree.path().join(names::path(path)));
            dirs.is_some_and(|(_, common)| common.starts_with(own))
        };
        let paths = nested.iter().map(|nested| nested.path.as_slice());
        let ours: BTreeSet<&[u8]> =
            paths.filter(|path| links.contains(path) && is_ours(path)).collect();
        if ours.is_empty() {
            return Ok(BTreeSet::new());
        }
        let next = files_of(self.tree.git().call(), self.next)?.into_iter();
        let links = next.filter(|(_, to)| matches!(to, Some((Mode::Gitlink, _))));
        Ok(links.map(|(path, _)| path).filter(|path| ours.contains(path.as_slice())).collect())
    }

    fn is_worth_moving(&self, path: &[u8]) -> Result<bool, GitError> {
        let place = self.tree.path().join(names::path(path));
        match fs::symlink_metadata(&place) {
            Ok(found) if found.is_dir() => {
                let is_empty =
                    fs::read_dir(&place).is_ok_and(|mut entries| entries.next().is_none());
                Ok(!is_empty && !self.tree.has_worktree_at(&names::path(path)))
            }
            Ok(_) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(source) => Err(GitError::io("look at", &place, source)),
        }
    }
}

/// A place that nothing has, and that is not within anything that was moved before.
fn free_place(into: &Path, path: &[u8], taken: &[MovedOut]) -> PathBuf {
    let numbered = |n: u32| match n {
        0 => into.join(names::path(path)),
        n => into.join(n.to_string()).join(names::path(path)),
    };
    let clashes = |place: &PathBuf| {
        let other = |moved: &MovedOut| place.starts_with(&moved.place);
        taken.iter().any(other) || fs::symlink_metadata(place).is_ok()
    };
    (0..).map(numbered).find(|place| !clashes(place)).expect("numbers do not end")
}

fn record(folder: &Path) -> PathBuf {
    folder.with_extension(RECORD)
}

/// Fields that end in a zero byte: the version, then path and place of each; a place within the folder as
/// it is seen from there.
fn write_record(folder: &Path, moved: &[MovedOut]) -> Result<(), GitError> {
    let mut bytes = [VERSION, b"\0"].concat();
    for moved in moved {
        let place = moved.place.strip_prefix(folder).unwrap_or(&moved.place);
        for field in [moved.path.as_slice(), names::bytes(place)] {
            bytes.extend_from_slice(field);
            bytes.push(0);
        }
    }
    let path = record(folder);
    locks::private_dir(path.parent().unwrap_or(folder))?;
    replace(&path, &bytes).map_err(|source| GitError::io("write", &path, source))
}

fn read_record(bytes: &[u8], folder: &Path) -> Option<Vec<MovedOut>> {
    let rows = bytes.strip_suffix(b"\0")?.strip_prefix(VERSION)?;
    let fields: Vec<&[u8]> = match rows {
        b"" => Vec::new(),
        rows => rows.strip_prefix(b"\0")?.split(|&byte| byte == 0).collect(),
    };
    let (rows, rest) = fields.as_chunks::<2>();
    let read = |[path, place]: &[&[u8]; 2]| {
        let (path, place) = (path.to_vec(), folder.join(names::path(place)));
        MovedOut { path, place }
    };
    rest.is_empty().then(|| rows.iter().map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records are read by later versions: this one was written by the first.
    const SAMPLE: &[u8] = b"1\0vendor/lib\0vendor/lib\0odd\nname\x001/odd\nname\0";

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = Path::new("/a/omitted");
        let rows = read_record(SAMPLE, folder).expect("a record");
        let places: Vec<&Path> = rows.iter().map(|moved| moved.place.as_path()).collect();
        assert_eq!(places, [folder.join("vendor/lib"), folder.join("1/odd\nname")]);
        assert_eq!(rows[1].path, b"odd\nname");
        let home = tempfile::tempdir().expect("a temporary folder");
        let folder = home.path().join("omitted");
        write_record(&folder, &read_record(SAMPLE, &folder).expect("a record")).expect("written");
        assert_eq!(fs::read(record(&folder)).expect("there"), SAMPLE);
    }

    #[test]
    fn what_is_no_whole_record_tells_nothing() {
        let newer = SAMPLE.iter().enumerate().map(|(n, byte)| if n == 0 { b'2' } else { *byte });
        let newer: Vec<u8> = newer.collect();
        for bytes in [b"".as_slice(), &SAMPLE[..SAMPLE.len() - 1], b"1\0jwt\0x\0odd\0", &newer] {
            assert_eq!(read_record(bytes, Path::new("/a")), None, "{bytes:?}");
        }
        assert_eq!(read_record(b"1\0", Path::new("/a")), Some(Vec::new()));
    }
}
