//! The attributes that a merge obeys: those of one commit, never those of a worktree. Since git 2.41
//! the commit itself can be named as their source; for an older git its `.gitattributes` files are laid
//! out in a folder that stands in for the worktree.

use std::fs;
use std::path::{Component, Path, PathBuf};

use piton_core::ids::Oid;
use tempfile::TempDir;

use super::{Call, Git, GitError, locks, names};

const FILE: &str = ".gitattributes";

/// A place without files of anybody's, in which merge drivers find their temporary ones.
pub struct Attributes {
    from: AttributeSource,
    scratch: PathBuf,
}

enum AttributeSource {
    Commit(Oid),
    Folder(TempDir),
}

impl Attributes {
    pub(crate) fn of(git: &Git, commit: &Oid) -> Result<Attributes, GitError> {
        let scratch = git.state_dir().join("scratch");
        locks::private_dir(&scratch)?;
        let from = match git.reads_attributes_of_a_commit()? {
            true => AttributeSource::Commit(commit.clone()),
            false => AttributeSource::Folder(lay_out(git, commit, &scratch)?),
        };
        Ok(Attributes { from, scratch })
    }

    /// A call that reads these attributes.
    pub(crate) fn call(&self, git: &Git) -> Call {
        match &self.from {
            AttributeSource::Commit(commit) => {
                git.call().inside(&self.scratch).env("GIT_ATTR_SOURCE", commit.as_str())
            }
            AttributeSource::Folder(folder) => {
                git.call().option("--work-tree=", folder.path()).inside(folder.path())
            }
        }
    }
}

fn lay_out(git: &Git, commit: &Oid, scratch: &Path) -> Result<TempDir, GitError> {
    let failed = |source| GitError::io("write", scratch, source);
    let folder = tempfile::Builder::new().prefix("attributes-").tempdir_in(scratch);
    let folder = folder.map_err(failed)?;
    let words = ["ls-tree", "-r", "-z", "--full-tree", commit.as_str()];
    for row in git.call().args(&words).run()?.parts() {
        let Some((blob, path)) = regular_file(row).filter(|(_, path)| path.ends_with(FILE)) else {
            continue;
        };
        let place = folder.path().join(&path);
        let bytes = git.call().args(&["cat-file", "blob", blob]).run()?.stdout;
        let parent = place.parent().unwrap_or(folder.path());
        fs::create_dir_all(parent).and_then(|()| fs::write(&place, bytes)).map_err(failed)?;
    }
    Ok(folder)
}

/// Blob and path of a row of `ls-tree`, where that is a regular file at a path that stays inside.
fn regular_file(row: &[u8]) -> Option<(&str, PathBuf)> {
    let tab = row.iter().position(|&byte| byte == b'\t')?;
    let (what, path) = (std::str::from_utf8(&row[..tab]).ok()?, names::path(&row[tab + 1..]));
    let blob = what.strip_prefix("100644 blob ").or(what.strip_prefix("100755 blob "))?;
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    inside.then_some((blob, path))
}
