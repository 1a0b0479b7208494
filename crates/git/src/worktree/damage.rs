//! The files of a worktree's git directory, when a power cut or somebody's hand has damaged them. What they
//! say is known from elsewhere: the folder names its entry, the run names its branch, and the work is in the
//! files. So they are written anew, and the damaged ones are moved aside.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use piton_core::ids::Oid;

use super::Worktree;
use super::create::is_whole;
use crate::file;
use crate::repo::plain::place_of;
use crate::repo::{GitError, hash, is_missing, locks, names};

/// What git reads in a linked worktree's own directory and cannot do without, or waits for where it is no
/// file.
const FILES: [&str; 8] =
    ["HEAD", "commondir", "gitdir", "index", "locked", "ORIG_HEAD", "FETCH_HEAD", "logs/HEAD"];

impl Worktree {
    /// What keeps git from using a git directory of this worktree; looks only, and asks no git.
    pub(super) fn damage(&self, dir: &Path) -> Option<String> {
        if dir == self.git.common_dir() {
            // The user's own: git itself says what is wrong with it.
            return (!has_head(dir)).then(|| "its HEAD is nothing that git knows".to_owned());
        }
        if let Some(name) = FILES.into_iter().find(|name| !is_file_or_missing(&dir.join(name))) {
            return Some(format!("its {name} is not a file that can be read"));
        }
        // Where it leads is no matter: every call names the shared directory.
        if !is_whole(dir) {
            return Some("its entry in git's list is incomplete".to_owned());
        }
        (!has_head(dir)).then(|| "its HEAD is nothing that git knows".to_owned())
    }

    /// Writes the damaged files of the worktree's git directory anew, with HEAD on `branch`, and moves those
    /// that were damaged aside. Index and files of a worktree that git can use stay as they are.
    pub(super) fn mend_damage(&self, dir: &Path, branch: &str) -> Result<(), GitError> {
        if dir == self.git.common_dir() {
            return Ok(());
        }
        for name in FILES {
            self.mend_kind(&dir.join(name))?;
        }
        let common = file::read(dir.join("commondir")).unwrap_or_default();
        let common = dir.join(names::path(common.trim_ascii_end())).canonicalize();
        if !common.is_ok_and(|common| common == self.git.common_dir()) {
            self.put(&dir.join("commondir"), b"../..\n")?;
        }
        if place_of(dir).is_none() {
            let line = [names::bytes(&self.path.join(".git")), b"\n"].concat();
            self.put(&dir.join("gitdir"), &line)?;
        }
        if !self.knows_head(dir, branch) {
            self.put(&dir.join("HEAD"), format!("ref: refs/heads/{branch}\n").as_bytes())?;
        }
        self.mend_index(dir)
    }

    /// An index whose bytes are not what git wrote: what it said is in HEAD or on disk.
    fn mend_index(&self, dir: &Path) -> Result<(), GitError> {
        let path = dir.join("index");
        match file::read(&path) {
            Ok(bytes) if hash::is_sealed(&bytes) => return Ok(()),
            Ok(_) => drop(locks::set_aside(&self.git, &path)?),
            Err(error) if is_missing(&error) => {}
            Err(source) => return Err(GitError::io("read", &path, source)),
        }
        let call = self.git.without_hooks(self.call_in(dir))?;
        match call.args(&["read-tree", "HEAD"]).run() {
            // Its branch is gone, too: whoever makes that again fills the index.
            Err(GitError::Failed { .. }) => Ok(()),
            done => done.map(drop),
        }
    }

    /// What is no file is moved aside; a file that its owner may not read gets its rights back.
    fn mend_kind(&self, path: &Path) -> Result<(), GitError> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_file() => match file::open(path) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let own = fs::Permissions::from_mode(0o644);
                    fs::set_permissions(path, own)
                        .map_err(|source| GitError::io("open", path, source))
                }
                _ => Ok(()),
            },
            Ok(_) => locks::set_aside(&self.git, path).map(drop),
            Err(error) if is_missing(&error) => Ok(()),
            Err(source) => Err(GitError::io("look at", path, source)),
        }
    }

    fn put(&self, path: &Path, text: &[u8]) -> Result<(), GitError> {
        if fs::symlink_metadata(path).is_ok() {
            locks::set_aside(&self.git, path)?;
        }
        file::write(path, text).map_err(|source| GitError::io("write", path, source))
    }

    /// Whether HEAD is on the branch that it should be on, on another one with a commit, or at a commit.
    fn knows_head(&self, dir: &Path, branch: &str) -> bool {
        match self.head_in(dir) {
            _ if !has_head(dir) => false,
            Ok(head) => match (head.branch, head.commit) {
                (Some(on), None) => on == branch,
                (None, Some(commit)) => self.git.commit(commit.as_str()).is_ok(),
                (on, commit) => on.is_some() && commit.is_some(),
            },
            Err(_) => false,
        }
    }
}

/// Whether a git directory's HEAD is one.
fn has_head(dir: &Path) -> bool {
    let text = file::text(dir.join("HEAD")).unwrap_or_default();
    text.starts_with("ref: refs/") || Oid::new(text.trim_end()).is_ok()
}

fn is_file_or_missing(path: &Path) -> bool {
    file::open(path).map_or_else(|error| is_missing(&error), |_| true)
}
