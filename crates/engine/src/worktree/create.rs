//! Makes a worktree so that being killed anywhere in between costs nothing: git's list carries a mark
//! from before the first file to after the last, and a worktree with the mark is finished, not
//! trusted. What is in the way is moved aside, or left alone when it is not ours.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use piton_core::ids::Oid;

use super::Worktree;
use super::link::{Link, link, place_of, pointed_to};
use crate::git::{GitError, locks};

/// The reason in git's own `locked` file while a worktree is being made.
const BEING_MADE: &str = "piton: being made";
const LOCKED: &str = "locked";

impl Worktree {
    /// Makes the worktree with `branch` checked out at `start`. A finished worktree is left as it is;
    /// a half-made one is finished; a folder that is not ours is an error.
    pub fn create(&self, branch: &str, start: &Oid) -> Result<(), GitError> {
        let _alone = self.lock_list()?;
        let entry = match link(self)? {
            Link::Ours(entry) => self.usable(entry)?,
            Link::Broken(why) => self.mended(&why)?,
            Link::Foreign(why) => return Err(self.foreign(&why)),
            Link::Nothing => None,
        };
        let entry = match entry {
            Some(entry) if is_being_made(&entry) => entry,
            Some(_) => return Ok(()),
            None => self.enter(start)?,
        };
        self.reset_to(branch, start)?;
        remove(&entry.join(LOCKED))
    }

    /// Git's own adding is not safe against another one at the same time.
    fn lock_list(&self) -> Result<File, GitError> {
        locks::private_dir(&self.git.state_dir())?;
        let path = self.git.state_dir().join("worktrees.lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let locked = file.and_then(|file| file.lock().map(|()| file));
        locked.map_err(|source| GitError::io("lock", &path, source))
    }

    /// Gets the path into git's list and a `.git` file into its folder, marked, without files.
    fn enter(&self, start: &Oid) -> Result<PathBuf, GitError> {
        if let Some(entry) = self.stale_entry()? {
            return self.relink(entry);
        }
        let call = self.git.without_hooks(self.git.call_in(self.git.common_dir()))?;
        let call = call.args(&["worktree", "add", "--quiet", "--no-checkout"]);
        let call = call.args(&["--detach", "--lock", "--reason", BEING_MADE, "--"]);
        call.arg(&self.path).arg(start.as_str()).run()?;
        self.git_dir()
    }

    /// An entry of git's list that names this path although nothing is there.
    fn stale_entry(&self) -> Result<Option<PathBuf>, GitError> {
        let list = self.git.common_dir().join("worktrees");
        for entry in fs::read_dir(list).into_iter().flatten().flatten() {
            let entry = entry.path();
            if place_of(&entry).is_none_or(|place| place != self.path) {
                continue;
            }
            if is_whole(&entry) {
                return Ok(Some(entry));
            }
            locks::set_aside(&self.git, &entry)?;
        }
        Ok(None)
    }

    /// Uses an entry again: its HEAD and reflog may name commits that nothing else names.
    fn relink(&self, entry: PathBuf) -> Result<PathBuf, GitError> {
        write(&entry.join(LOCKED), BEING_MADE)?;
        let made = fs::create_dir_all(&self.path);
        made.map_err(|source| GitError::io("make", &self.path, source))?;
        let mut line = b"gitdir: ".to_vec();
        line.extend_from_slice(entry.as_os_str().as_encoded_bytes());
        line.push(b'\n');
        write(&self.path.join(".git"), line)?;
        Ok(entry)
    }

    /// An entry that was left before it was complete is of no use.
    fn usable(&self, entry: PathBuf) -> Result<Option<PathBuf>, GitError> {
        if is_whole(&entry) {
            return Ok(Some(entry));
        }
        self.refuse_files("its entry in git's list is incomplete")?;
        locks::set_aside(&self.git, &entry)?;
        remove(&self.path.join(".git"))?;
        Ok(None)
    }

    /// A folder and an entry that lost each other.
    fn mended(&self, why: &str) -> Result<Option<PathBuf>, GitError> {
        let pointer = self.path.join(".git");
        let target = pointed_to(&pointer).map_err(|e| GitError::io("read", &pointer, e))?;
        let name = target.as_deref().and_then(Path::file_name).map(ToOwned::to_owned);
        let entry = name.map(|name| self.git.common_dir().join("worktrees").join(name));
        if let Some(entry) = entry.filter(|entry| is_whole(entry))
            && place_of(&entry)
                .is_none_or(|place| !place.join(".git").exists() || place == self.path)
        {
            let call = self.git.call_in(self.git.common_dir());
            call.args(&["worktree", "repair", "--"]).arg(&self.path).accept(&[0, 1]).run()?;
            if let Link::Ours(entry) = link(self)? {
                return self.usable(entry);
            }
        }
        // A pointer to somewhere else may be that of a repository which is not mounted.
        let list = self.git.common_dir().join("worktrees");
        if !target.is_some_and(|target| target.starts_with(list)) {
            return Err(self.foreign(why));
        }
        self.refuse_files(why)?;
        remove(&pointer)?;
        Ok(None)
    }

    /// A folder with nothing but its `.git` file holds nobody's work.
    fn refuse_files(&self, why: &str) -> Result<(), GitError> {
        let list = fs::read_dir(&self.path);
        let mut list = list.map_err(|source| GitError::io("list", &self.path, source))?;
        match list.any(|entry| entry.map_or(true, |entry| entry.file_name() != ".git")) {
            true => Err(self.foreign(why)),
            false => Ok(()),
        }
    }
}

pub(super) fn is_being_made(entry: &Path) -> bool {
    fs::read_to_string(entry.join(LOCKED)).is_ok_and(|reason| reason.starts_with(BEING_MADE))
}

/// Whether git can use an entry: it writes these files one after the other.
fn is_whole(entry: &Path) -> bool {
    let filled = |name: &str| fs::metadata(entry.join(name)).is_ok_and(|found| found.len() > 0);
    entry.join("objects").is_dir() || ["gitdir", "commondir", "HEAD"].into_iter().all(filled)
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), GitError> {
    fs::write(path, text).map_err(|source| GitError::io("write", path, source))
}

fn remove(path: &Path) -> Result<(), GitError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|source| GitError::io("remove", path, source)),
    }
}
