//! Finds an ordinary repository, and where its refs are, without starting git, because every verb begins
//! with it. Whatever is not ordinary (a bare repository, a worktree set by configuration, includes, refs
//! in tables) is left to git.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::{Places, names};
use crate::file;

/// Refs that all worktrees share and that are files.
const SHARED: &[&str] = &["refs/heads/", "refs/tags/", "refs/piton/"];

/// What is around a folder.
pub(super) enum Around {
    Ordinary(Places),
    /// Something that is called or looks like a git directory.
    Perhaps,
    Nothing,
}

/// Looks from a folder, which is absolute and without links, upwards for the nearest git directory.
pub(super) fn around(from: &Path) -> Around {
    for here in from.ancestors() {
        let dot_git = here.join(".git");
        if let Ok(found) = dot_git.symlink_metadata() {
            return places(from, here, (dot_git, &found)).map_or(Around::Perhaps, Around::Ordinary);
        }
        if here.join("HEAD").exists() && here.join("objects").exists() {
            return Around::Perhaps;
        }
    }
    Around::Nothing
}

/// The places of an ordinary repository, by what a folder around `from` has as `.git`.
fn places(from: &Path, here: &Path, dot_git: (PathBuf, &fs::Metadata)) -> Option<Places> {
    let git_dir = match dot_git {
        (path, found) if found.is_dir() => path,
        (path, found) if found.is_file() => linked(&path, here)?.canonicalize().ok()?,
        _ => return None,
    };
    let common_dir = match file::text(git_dir.join("commondir")) {
        Ok(text) => git_dir.join(text.trim_end_matches('\n')).canonicalize().ok()?,
        Err(_) => git_dir.clone(),
    };
    let whole = git_dir.join("HEAD").is_file() && common_dir.join("objects").is_dir();
    let inside = from.starts_with(&git_dir) || from.starts_with(&common_dir);
    if inside || !whole || !is_ordinary(&common_dir.join("config")) {
        return None;
    }
    let here = here.to_owned();
    let main_root = match git_dir == common_dir {
        true => here.clone(),
        false => parent(&common_dir)?,
    };
    Some(Places { git_dir, common_dir, main_root, here })
}

/// The worktree around a folder whose `.git` file names what is not there, and what it names.
pub(super) fn lost(from: &Path) -> Option<(PathBuf, PathBuf)> {
    let here = from.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok())?;
    let entry = linked(&here.join(".git"), here)?;
    (!entry.exists()).then(|| (here.to_owned(), entry))
}

/// The folder around a git directory, when that is the folder's own.
pub(super) fn parent(common_dir: &Path) -> Option<PathBuf> {
    let parent = common_dir.parent()?;
    let dot_git = parent.join(".git");
    let target = match dot_git.is_file() {
        true => linked(&dot_git, parent)?,
        false => dot_git,
    };
    (target.canonicalize().ok()? == common_dir).then(|| parent.to_owned())
}

/// The folder around a linked worktree that has this very git directory as its own.
pub(super) fn around_worktrees(common_dir: &Path) -> Option<PathBuf> {
    let is_main = |folder: &&Path| git_dirs(folder).is_some_and(|(own, _)| own == common_dir);
    let entries = fs::read_dir(common_dir.join("worktrees")).ok()?.flatten();
    let mut places = entries.filter_map(|entry| place_of(&entry.path()));
    places.find_map(|place| place.ancestors().find(is_main).map(Path::to_owned))
}

/// Where a `.git` file points.
fn linked(file: &Path, here: &Path) -> Option<PathBuf> {
    let text = file::text(file).ok()?;
    let target = text.strip_prefix("gitdir: ")?.trim_end_matches('\n');
    (!target.is_empty()).then(|| here.join(target))
}

/// Nothing in the configuration can move the worktree: no word of one, of bareness, of other files.
fn is_ordinary(config: &Path) -> bool {
    let Ok(text) = file::text(config) else { return false };
    let text = text.to_ascii_lowercase();
    let bare = text.lines().any(|line| {
        let line: String = line.split_whitespace().collect();
        line.starts_with("bare") && line != "bare=false"
    });
    !bare && !text.contains("worktree") && !text.contains("include")
}

/// Where a ref is; `Some(None)`: there is no such ref; `None`: git has to say.
pub(super) fn ref_target(common_dir: &Path, refname: &str) -> Option<Option<Oid>> {
    let ordinary = SHARED.iter().any(|folder| refname.starts_with(folder));
    if !ordinary || refname.contains("..") || common_dir.join("reftable").exists() {
        return None;
    }
    // Loose ones first: git removes them only after it has packed them.
    match file::read(common_dir.join(refname)) {
        Ok(text) => return Some(Some(id(text.strip_suffix(b"\n").unwrap_or(&text))?)),
        Err(error) if is_no_file(&error) => {}
        Err(_) => return None,
    }
    let packed = match file::read(common_dir.join("packed-refs")) {
        Ok(packed) => packed,
        Err(error) if is_no_file(&error) => return Some(None),
        Err(_) => return None,
    };
    let mut rows = packed.split(|&byte| byte == b'\n');
    let row = rows.find_map(|row| row.strip_suffix(refname.as_bytes())?.strip_suffix(b" "));
    match row {
        Some(row) => Some(Some(id(row)?)),
        None => Some(None),
    }
}

/// The commit and the branch's full name of a git directory's HEAD, when it is on a branch with a commit
/// or at a commit.
pub fn head(git_dir: &Path, common_dir: &Path) -> Option<(Oid, Option<String>)> {
    let text = file::text(git_dir.join("HEAD")).ok()?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    match text.strip_prefix("ref: ") {
        Some(branch) if branch.starts_with("refs/heads/") => {
            Some((ref_target(common_dir, branch)??, Some(branch.to_owned())))
        }
        Some(_) => None,
        None => Some((id(text.as_bytes())?, None)),
    }
}

/// The git directory of a repository in a folder, and the one that its worktrees share.
pub(crate) fn git_dirs(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let dot_git = folder.join(".git");
    let git_dir = match fs::symlink_metadata(&dot_git).ok()?.is_file() {
        true => linked(&dot_git, folder)?,
        false => dot_git,
    };
    let git_dir = git_dir.canonicalize().ok()?;
    let common_dir = match file::read(git_dir.join("commondir")) {
        Ok(text) => git_dir.join(names::path(text.trim_ascii_end())).canonicalize().ok()?,
        Err(_) => git_dir.clone(),
    };
    Some((git_dir, common_dir))
}

/// The folder that an entry of the repository's list names.
pub(crate) fn place_of(entry: &Path) -> Option<PathBuf> {
    let text = file::read(entry.join("gitdir")).ok().filter(|text| !text.is_empty())?;
    let pointer = entry.join(names::path(text.trim_ascii_end()));
    Some(real(pointer.parent()?))
}

/// A path with the links of its existing part resolved.
pub(crate) fn real(path: &Path) -> PathBuf {
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

fn id(text: &[u8]) -> Option<Oid> {
    Oid::new(String::from_utf8(text.to_vec()).ok()?).ok()
}

fn is_no_file(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory)
}
