//! How a folder and the repository's list of worktrees name each other: the folder's `.git` file
//! names an entry below `<common dir>/worktrees`, whose `gitdir` file names the folder. Both are
//! within an agent's reach, so both are checked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Worktree;
use super::create::is_whole;
use crate::repo::{GitError, is_missing, names};

/// What a path is to the repository.
pub enum Link {
    /// No folder, or one without a file. Git writes into a new `.git` file in a second step: an empty one,
    /// alone in its folder, is nothing either.
    Nothing,
    /// A worktree of the repository, with its git directory.
    Ours(PathBuf),
    /// A worktree of the repository, one of which was moved: they no longer name each other.
    Moved(PathBuf),
    /// Perhaps once a worktree of the repository, which has no entry for it.
    Broken(String),
    Foreign(String),
}

pub fn link(tree: &Worktree) -> Result<Link, GitError> {
    read(tree).map_err(|source| GitError::io("look at", &tree.path, source))
}

fn read(tree: &Worktree) -> io::Result<Link> {
    let foreign = |why: &str| Ok(Link::Foreign(why.to_owned()));
    let found = match fs::symlink_metadata(&tree.path) {
        Ok(found) => found,
        Err(error) if is_missing(&error) => return Ok(Link::Nothing),
        Err(error) => return Err(error),
    };
    if found.is_symlink() {
        let target = fs::read_link(&tree.path)?;
        return Ok(Link::Foreign(format!("it is a link to {}", target.display())));
    }
    if !found.is_dir() {
        return foreign("it is not a folder");
    }
    let pointer = tree.path.join(".git");
    match fs::symlink_metadata(&pointer) {
        Ok(found) if found.is_dir() => match pointer.canonicalize()? == tree.git.common_dir() {
            true => Ok(Link::Ours(tree.git.common_dir().to_owned())),
            false => foreign("it is a repository of its own"),
        },
        Ok(found) if found.is_file() => follow(tree, &pointer),
        Ok(_) => foreign("its .git is neither a file nor a folder"),
        Err(error) if is_missing(&error) => match fs::read_dir(&tree.path)?.next() {
            None => Ok(Link::Nothing),
            Some(_) => foreign("it has files but no .git"),
        },
        Err(error) => Err(error),
    }
}

/// From a folder's `.git` file to the repository's entry and back.
fn follow(tree: &Worktree, pointer: &Path) -> io::Result<Link> {
    let list = tree.git.common_dir().join("worktrees");
    // The repository's own entry for this very path: then the file alone was lost.
    let or_broken = |why: String| match entry_for(&list, &tree.path) {
        Some(entry) => Link::Moved(entry),
        None => Link::Broken(why),
    };
    let Some(target) = pointed_to(pointer)? else {
        return Ok(match or_broken("its .git file names nothing".to_owned()) {
            Link::Broken(_) if is_empty_alone(pointer, &tree.path)? => Link::Nothing,
            known => known,
        });
    };
    let Ok(entry) = target.canonicalize() else {
        // Where the repository was before it was moved; its entries kept their names.
        let entry = target.file_name().map(|name| list.join(name));
        return Ok(match entry.filter(|entry| is_whole(entry)) {
            Some(entry) if is_lost(&entry, tree) => Link::Moved(entry),
            _ if target.starts_with(&list) => or_broken(gone(&target)),
            _ => Link::Broken(gone(&target)),
        });
    };
    if entry == tree.git.common_dir() {
        // HEAD and index there are the user's own.
        return Ok(match tree.path == real(tree.git.main_root()) {
            true => Link::Ours(entry),
            false => Link::Foreign("its .git file names the repository itself".to_owned()),
        });
    }
    if entry.parent() != Some(&list) {
        return Ok(Link::Foreign(format!("it belongs to {}", entry.display())));
    }
    match place_of(&entry) {
        Some(place) if place == tree.path => Ok(Link::Ours(entry)),
        Some(place) if place.join(".git").exists() => {
            Ok(Link::Foreign(format!("it is a copy of {}", place.display())))
        }
        _ if is_whole(&entry) => Ok(Link::Moved(entry)),
        _ => Ok(Link::Broken("its entry in git's list is incomplete".to_owned())),
    }
}

fn is_empty_alone(pointer: &Path, folder: &Path) -> io::Result<bool> {
    Ok(fs::symlink_metadata(pointer)?.len() == 0 && fs::read_dir(folder)?.take(2).count() == 1)
}

fn gone(entry: &Path) -> String {
    format!("its entry {} is gone", entry.display())
}

/// The entry of a list that names a path, when git can use it.
pub(super) fn entry_for(list: &Path, path: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(list).into_iter().flatten().flatten().map(|entry| entry.path());
    let names = |entry: &PathBuf| place_of(entry).is_some_and(|place| place == path);
    entries.filter(names).find(|entry| is_whole(entry))
}

/// Whether an entry names the tree, or a folder where no worktree is any more.
fn is_lost(entry: &Path, tree: &Worktree) -> bool {
    place_of(entry).is_none_or(|place| place == tree.path || !place.join(".git").exists())
}

/// Where a `.git` file points.
pub(super) fn pointed_to(pointer: &Path) -> io::Result<Option<PathBuf>> {
    let text = fs::read(pointer)?;
    let target = text.strip_prefix(b"gitdir: ").map(<[u8]>::trim_ascii_end);
    let folder = pointer.parent().unwrap_or(pointer);
    Ok(target.filter(|target| !target.is_empty()).map(|target| folder.join(names::path(target))))
}

/// The folder that an entry of the repository's list names.
pub(crate) fn place_of(entry: &Path) -> Option<PathBuf> {
    let text = fs::read(entry.join("gitdir")).ok().filter(|text| !text.is_empty())?;
    let pointer = entry.join(names::path(text.trim_ascii_end()));
    Some(real(pointer.parent()?))
}

/// A path with the links of its existing part resolved.
pub(super) fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = path.ancestors().find_map(|ancestor| {
        let rest = path.strip_prefix(ancestor).ok()?;
        ancestor.canonicalize().ok().map(|real| (real, rest))
    });
    match existing {
        Some((real, rest)) if rest.as_os_str().is_empty() => real,
        Some((real, rest)) => real.join(rest),
        None => path,
    }
}
