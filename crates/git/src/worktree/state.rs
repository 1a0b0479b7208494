//! What is at a worktree's path, found out in one place. A folder and the repository's list of worktrees
//! name each other: the folder's `.git` file names an entry below `<common dir>/worktrees`, whose `gitdir`
//! file names the folder. Both are within an agent's reach, so both are checked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Worktree;
use super::create::{is_unfinished, is_whole};
use crate::file;
use crate::repo::plain::{place_of, real};
use crate::repo::{GitError, is_missing, names};

/// What is at a worktree's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeState {
    /// No folder, or an empty one; git may have it in its list. Git writes into a new `.git` file in a
    /// second step: an empty one, alone in its folder, is nothing either.
    Missing,
    /// A worktree whose making or restoring was cut short, with its git directory.
    HalfMade { dir: PathBuf },
    /// A worktree of this repository, with its git directory.
    Present { dir: PathBuf },
    /// The same, but folder and list do not name each other: one of them was moved or damaged.
    Unlinked { dir: PathBuf },
    /// The same, but files of its git directory are damaged, and git cannot use it before they are mended.
    Damaged { dir: PathBuf, why: String },
    /// Something that is not a worktree of this repository.
    Foreign { why: String },
}

impl TreeState {
    /// The git directory of a worktree that can be worked in.
    pub fn dir(&self) -> Option<&Path> {
        match self {
            TreeState::Present { dir } | TreeState::Unlinked { dir } => Some(dir),
            TreeState::Missing
            | TreeState::HalfMade { .. }
            | TreeState::Damaged { .. }
            | TreeState::Foreign { .. } => None,
        }
    }
}

/// What a path has to do with the repository's list.
enum Found {
    Nothing,
    /// The git directory that belongs to it.
    Dir(PathBuf),
    Foreign(String),
}

impl Worktree {
    /// Looks; writes nothing, and asks no git.
    pub fn state(&self) -> Result<TreeState, GitError> {
        let found = self.find().map_err(|source| GitError::io("look at", &self.path, source))?;
        Ok(match found {
            Found::Nothing => TreeState::Missing,
            Found::Foreign(why) => TreeState::Foreign { why },
            Found::Dir(dir) if is_unfinished(&dir) => TreeState::HalfMade { dir },
            Found::Dir(dir) => match self.damage(&dir) {
                Some(why) => TreeState::Damaged { dir, why },
                None if self.is_linked(&dir) => TreeState::Present { dir },
                None => TreeState::Unlinked { dir },
            },
        })
    }

    /// What is there once nobody is making it: git writes what links a new worktree piece by piece, and
    /// until the last one it looks like somebody else's.
    pub fn settled(&self) -> Result<TreeState, GitError> {
        match self.state()? {
            TreeState::Foreign { .. } | TreeState::Damaged { .. } => {
                let _alone = self.lock_list()?;
                self.state()
            }
            known => Ok(known),
        }
    }

    /// Whether there is a worktree of this repository that can be worked in.
    pub fn is_ours(&self) -> bool {
        self.state().is_ok_and(|state| state.dir().is_some())
    }

    /// Whether folder and git directory name each other.
    pub(super) fn is_linked(&self, dir: &Path) -> bool {
        let named = || pointed_to(&self.path).ok().flatten()?.canonicalize().ok();
        dir == self.git.common_dir()
            || (place_of(dir).as_deref() == Some(&self.path) && named().as_deref() == Some(dir))
    }

    fn find(&self) -> io::Result<Found> {
        let foreign = |why: &str| Ok(Found::Foreign(why.to_owned()));
        let found = match fs::symlink_metadata(&self.path) {
            Ok(found) => found,
            Err(error) if is_missing(&error) => return Ok(Found::Nothing),
            Err(error) => return Err(error),
        };
        if self.path == self.git.common_dir() {
            return foreign("it is its git directory; go to the main worktree, and try again");
        }
        if found.is_symlink() {
            let target = fs::read_link(&self.path)?;
            return Ok(Found::Foreign(format!("it is a link to {}", target.display())));
        }
        if !found.is_dir() {
            return foreign("it is not a folder");
        }
        let pointer = self.path.join(".git");
        match fs::symlink_metadata(&pointer) {
            Ok(found) if found.is_dir() => match pointer.canonicalize()? == self.git.common_dir() {
                true => Ok(Found::Dir(self.git.common_dir().to_owned())),
                false => foreign("it is a repository of its own"),
            },
            Ok(found) if found.is_file() => self.follow_pointer(found.len() == 0),
            Ok(_) => foreign("its .git is neither a file nor a folder"),
            Err(error) if is_missing(&error) => match fs::read_dir(&self.path)?.next() {
                None => Ok(Found::Nothing),
                Some(_) => foreign("it has files but no .git"),
            },
            Err(error) => Err(error),
        }
    }

    /// From the folder's `.git` file to the repository's entry and back.
    fn follow_pointer(&self, is_empty: bool) -> io::Result<Found> {
        let list = self.list();
        // The repository's own entry for this very path: then the file alone was lost.
        let or_foreign = |why: String| match self.listed_entry() {
            Some(entry) => Found::Dir(entry),
            None => Found::Foreign(why),
        };
        let Some(target) = pointed_to(&self.path)? else {
            let is_alone = is_empty && fs::read_dir(&self.path)?.take(2).count() == 1;
            return Ok(match or_foreign("its .git file names nothing".to_owned()) {
                Found::Foreign(_) if is_alone => Found::Nothing,
                known => known,
            });
        };
        let Ok(entry) = target.canonicalize() else {
            let why = format!("its entry {} is gone", target.display());
            // Where the repository was before it was moved; its entries kept their names.
            let entry = target.file_name().map(|name| list.join(name));
            return Ok(match entry.filter(|entry| is_whole(entry)) {
                Some(entry) if is_lost(&entry, &self.path) => Found::Dir(entry),
                _ if target.starts_with(&list) => or_foreign(why),
                _ => Found::Foreign(why),
            });
        };
        if entry == self.git.common_dir() {
            // HEAD and index there are the user's own.
            return Ok(match self.path == real(self.git.main_root()) {
                true => Found::Dir(entry),
                false => Found::Foreign("its .git file names the repository itself".to_owned()),
            });
        }
        if entry.parent() != Some(&list) {
            return Ok(Found::Foreign(format!("it belongs to {}", entry.display())));
        }
        Ok(match place_of(&entry) {
            Some(place) if place != self.path && place.join(".git").exists() => {
                Found::Foreign(format!("it is a copy of {}", place.display()))
            }
            _ => Found::Dir(entry),
        })
    }

    /// The repository's list of worktrees.
    pub(super) fn list(&self) -> PathBuf {
        self.git.common_dir().join("worktrees")
    }

    /// The entries of the list that name this path, whole or not.
    pub(super) fn entries(&self) -> impl Iterator<Item = PathBuf> {
        let all = fs::read_dir(self.list()).into_iter().flatten().flatten();
        let names = |entry: &PathBuf| place_of(entry).is_some_and(|place| place == self.path);
        all.map(|entry| entry.path()).filter(names)
    }

    /// The one that git can use.
    pub(super) fn listed_entry(&self) -> Option<PathBuf> {
        self.entries().find(|entry| is_whole(entry))
    }

    /// Has the folder's `.git` file name an entry.
    pub(super) fn point_to(&self, entry: &Path) -> Result<(), GitError> {
        let pointer = self.path.join(".git");
        let line = [b"gitdir: ", names::bytes(entry), b"\n"].concat();
        fs::write(&pointer, line).map_err(|source| GitError::io("write", &pointer, source))
    }
}

/// Whether an entry names a path, or a folder where no worktree is any more.
fn is_lost(entry: &Path, path: &Path) -> bool {
    place_of(entry).is_none_or(|place| place == path || !place.join(".git").exists())
}

/// Where the `.git` file of a folder points; nothing where one of the two is a link or something else.
pub(super) fn pointed_to(folder: &Path) -> io::Result<Option<PathBuf>> {
    let pointer = folder.join(".git");
    if !fs::symlink_metadata(folder)?.is_dir() || !fs::symlink_metadata(&pointer)?.is_file() {
        return Ok(None);
    }
    let text = file::read(pointer)?;
    let target = text.strip_prefix(b"gitdir: ").map(<[u8]>::trim_ascii_end);
    Ok(target.filter(|target| !target.is_empty()).map(|target| folder.join(names::path(target))))
}
