//! Finds an ordinary repository without starting git, because every verb begins with it. Whatever is
//! not ordinary (a bare repository, a worktree set by configuration, includes) is left to git.

use std::fs;
use std::path::{Path, PathBuf};

use super::Places;

/// The places of the repository around a folder, which is absolute and without links.
pub(super) fn places(from: &Path) -> Option<Places> {
    let (here, dot_git) = from.ancestors().find_map(|folder| {
        let dot_git = folder.join(".git");
        dot_git.symlink_metadata().ok().map(|found| (folder, (dot_git, found)))
    })?;
    let git_dir = match dot_git {
        (path, found) if found.is_dir() => path,
        (path, found) if found.is_file() => linked(&path, here)?,
        _ => return None,
    };
    let git_dir = git_dir.canonicalize().ok()?;
    let common_dir = match fs::read_to_string(git_dir.join("commondir")) {
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

/// Where a `.git` file points.
fn linked(file: &Path, here: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(file).ok()?;
    let target = text.strip_prefix("gitdir: ")?.trim_end_matches('\n');
    (!target.is_empty()).then(|| here.join(target))
}

/// Nothing in the configuration can move the worktree: no word of one, of bareness, of other files.
fn is_ordinary(config: &Path) -> bool {
    let Ok(text) = fs::read_to_string(config) else { return false };
    let text = text.to_ascii_lowercase();
    let bare = text.lines().any(|line| {
        let line: String = line.split_whitespace().collect();
        line.starts_with("bare") && line != "bare=false"
    });
    !bare && !text.contains("worktree") && !text.contains("include")
}
