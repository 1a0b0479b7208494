//! Makes a worktree so that being killed anywhere in between costs nothing: a mark stands in its git
//! directory from before the first file to after the last, and a worktree with a mark is made again,
//! not trusted. What is in the way is moved aside, or left alone when it is not ours.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use piton_core::ids::{Hash, Oid};

use super::Worktree;
use super::state::{TreeState, pointed_to};
use crate::crash;
use crate::file::{self, private};
use crate::repo::plain::place_of;
use crate::repo::{GitError, flush, locks};

/// The reason in git's own `locked` file while a worktree is being made.
const BEING_MADE: &str = "piton: being made";
const LOCKED: &str = "locked";
/// How the reason begins while an attempt works in the worktree.
const AT_WORK: &str = "piton: at work: ";
/// A file in a worktree's git directory that names the setup which has passed there.
const SET_UP: &str = "piton-set-up";
/// A file in a worktree's git directory while its files are being put back.
const BEING_RESTORED: &str = "piton-being-restored";

/// When a worktree was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    Now,
    /// It was there, perhaps made by somebody else a moment ago.
    Before,
}

impl Worktree {
    /// Makes the worktree with `branch` checked out at `start`. A finished worktree is left as it is;
    /// a half-made one is finished; a folder that is not ours is an error.
    pub fn create(&self, branch: &str, start: &Oid) -> Result<Made, GitError> {
        self.refuse_taken(branch)?;
        let entry = self.entered(start)?;
        let _alone = self.lock_making()?;
        match is_unfinished(&entry) {
            true => self.finish(&entry, branch, start, || Ok(())).map(|()| Made::Now),
            false => Ok(Made::Before),
        }
    }

    /// Puts the worktree, whose bytes are kept, on `branch` at `start`; makes it where there is none. It
    /// counts as missing until that is done.
    pub fn restart(&self, branch: &str, start: &Oid) -> Result<(), GitError> {
        self.refuse_taken(branch)?;
        let entry = self.entered(start)?;
        let _alone = self.lock_making()?;
        let is_new = is_unfinished(&entry);
        write(&entry.join(BEING_RESTORED), "")?;
        crash::point("tree.marked");
        self.reset_to(branch, start)?;
        crash::point("tree.reset");
        if is_new {
            flush::files(&self.path)?;
        }
        unmark(&entry)
    }

    /// Makes or resets the worktree, and fills it. Until all of that is on disk, the worktree counts
    /// as missing: what a kill leaves is neither work nor a state to go on from.
    pub(crate) fn remake(
        &self,
        branch: &str,
        start: &Oid,
        fill: impl FnOnce() -> Result<(), GitError>,
    ) -> Result<(), GitError> {
        self.refuse_taken(branch)?;
        let entry = self.entered(start)?;
        let _alone = self.lock_making()?;
        let mark = entry.join(BEING_RESTORED);
        write(&mark, "")?;
        flush::sync(&mark)?;
        flush::sync(&entry)?;
        self.finish(&entry, branch, start, fill)
    }

    fn finish(
        &self,
        entry: &Path,
        branch: &str,
        start: &Oid,
        fill: impl FnOnce() -> Result<(), GitError>,
    ) -> Result<(), GitError> {
        self.reset_to(branch, start)?;
        crash::point("tree.reset");
        fill()?;
        crash::point("tree.filled");
        flush::files(&self.path)?;
        unmark(entry)
    }

    /// A branch that somebody else has, before anything is made that would be in their way. What is at the
    /// path and not ours is told first.
    fn refuse_taken(&self, branch: &str) -> Result<(), GitError> {
        match self.state()? {
            TreeState::Damaged { .. } | TreeState::Foreign { .. } => Ok(()),
            _ => self.refuse_elsewhere(branch),
        }
    }

    /// The worktree's entry in git's list, made or mended where it has to be. Only this is done under the
    /// lock of the list: files may take long, and others have trees to make meanwhile.
    fn entered(&self, start: &Oid) -> Result<PathBuf, GitError> {
        let _alone = self.lock_list()?;
        let why = match self.state()? {
            TreeState::Missing => return self.enter(start),
            TreeState::Present { dir } | TreeState::Unlinked { dir } => return self.relinked(dir),
            TreeState::HalfMade { dir } if is_whole(&dir) => return self.relinked(dir),
            TreeState::HalfMade { .. } => "its entry in git's list is incomplete".to_owned(),
            TreeState::Damaged { why, .. } | TreeState::Foreign { why } => why,
        };
        self.clear_unusable(&why)?;
        self.enter(start)
    }

    /// Makes a worktree and a repository that was moved name each other again: git run by anybody
    /// else does not find the repository before that. Damaged files of its git directory are written anew,
    /// for `branch`.
    pub fn mend(&self, branch: &str) -> Result<(), GitError> {
        match self.state()? {
            TreeState::Damaged { dir, .. } => {
                let _alone = self.lock_list()?;
                self.mend_damage(&dir, branch)?;
            }
            TreeState::Present { dir } => self.mend_damage(&dir, branch)?,
            _ => {}
        }
        let unlinked = || self.git_dir().ok().filter(|dir| !self.is_linked(dir));
        if unlinked().is_none() {
            return Ok(());
        }
        let _alone = self.lock_list()?;
        unlinked().map_or(Ok(()), |dir| self.relinked(dir).map(drop))
    }

    /// Keeps git from pruning or removing the worktree while somebody works in it. A lock that a person
    /// has put on it stays as it is.
    pub fn lock(&self, by: &str) -> Result<(), GitError> {
        let entry = self.git_dir()?;
        if entry == self.git.common_dir() || (is_locked(&entry) && !is_at_work(&entry, "")) {
            return Ok(());
        }
        write(&entry.join(LOCKED), format!("{AT_WORK}{by}"))
    }

    /// Takes that lock away, if it is still this one's.
    pub fn unlock(&self, by: &str) -> Result<(), GitError> {
        match self.git_dir() {
            Ok(dir) if is_at_work(&dir, by) => remove(&dir.join(LOCKED)),
            _ => Ok(()),
        }
    }

    /// Whether this setup has passed since the worktree was made.
    pub fn is_set_up(&self, by: &str) -> Result<bool, GitError> {
        let text = file::text(self.git_dir()?.join(SET_UP));
        Ok(text.is_ok_and(|text| text == by))
    }

    pub fn was_set_up(&self, by: &str) -> Result<(), GitError> {
        write(&self.git_dir()?.join(SET_UP), by)
    }

    /// Files come into a worktree from one process at a time.
    fn lock_making(&self) -> Result<File, GitError> {
        let folder = self.git.state_dir().join("making");
        locks::private_dir(&folder)?;
        lock(&folder.join(Hash::of(self.path.as_os_str().as_encoded_bytes()).to_string()))
    }

    /// Git's own adding is not safe against another one at the same time.
    pub(crate) fn lock_list(&self) -> Result<File, GitError> {
        locks::private_dir(&self.git.state_dir())?;
        lock(&self.git.state_dir().join("worktrees.lock"))
    }

    /// Gets the path into git's list and a `.git` file into its folder, marked, without files.
    pub(super) fn enter(&self, start: &Oid) -> Result<PathBuf, GitError> {
        if let Some(entry) = self.stale_entry()? {
            return self.relink(entry);
        }
        // At most an empty one: git takes no folder that has any.
        remove(&self.path.join(".git"))?;
        let call = self.git.without_hooks(self.git.call_in(self.git.common_dir()))?;
        let call = call.args(&["worktree", "add", "--quiet", "--no-checkout"]);
        let call = call.args(&["--detach", "--lock", "--reason", BEING_MADE, "--"]);
        call.arg(&self.path).arg(start.as_str()).run()?;
        self.git_dir()
    }

    /// An entry of git's list that names this path although nothing is there.
    pub(super) fn stale_entry(&self) -> Result<Option<PathBuf>, GitError> {
        for entry in fs::read_dir(self.list()).into_iter().flatten().flatten() {
            let entry = entry.path();
            match place_of(&entry).map(|place| place == self.path) {
                Some(true) if is_whole(&entry) => return Ok(Some(entry)),
                Some(true) => {}
                // Git was killed before it wrote for which place; being locked, it would stay for ever.
                None if is_being_made(&entry) && locks::is_at_rest(&entry) => {}
                Some(false) | None => continue,
            }
            locks::set_aside(&self.git, &entry)?;
        }
        Ok(None)
    }

    /// Uses an entry again: its HEAD and reflog may name commits that nothing else names.
    fn relink(&self, entry: PathBuf) -> Result<PathBuf, GitError> {
        // A person's lock is theirs, and stays.
        match persons_lock(&entry).is_some() {
            true => write(&entry.join(BEING_RESTORED), "")?,
            false => write(&entry.join(LOCKED), BEING_MADE)?,
        }
        // The files are made anew.
        remove(&entry.join(SET_UP))?;
        let made = fs::create_dir_all(&self.path);
        made.map_err(|source| GitError::io("make", &self.path, source))?;
        self.point_to(&entry)?;
        Ok(entry)
    }

    /// The worktree's git directory, with folder and list naming each other.
    fn relinked(&self, dir: PathBuf) -> Result<PathBuf, GitError> {
        if self.is_linked(&dir) {
            return Ok(dir);
        }
        let call = self.git.call_in(self.git.common_dir());
        call.args(&["worktree", "repair", "--"]).arg(&self.path).accept(&[0, 1]).run()?;
        match self.is_linked(&dir) {
            true => Ok(dir),
            false => Err(self.foreign("git could not repair its link to the repository")),
        }
    }

    /// Makes room where there is only a `.git` file with an entry that is gone, or was left before it was
    /// complete.
    fn clear_unusable(&self, why: &str) -> Result<(), GitError> {
        let target = pointed_to(&self.path).ok().flatten();
        let entry = target.map(|target| target.canonicalize().unwrap_or(target));
        // A pointer to somewhere else may be that of a repository which is not mounted.
        let is_unusable = |entry: &PathBuf| entry.starts_with(self.list()) && !is_whole(entry);
        let entry = entry.filter(is_unusable).ok_or_else(|| self.foreign(why))?;
        self.refuse_files(why)?;
        if entry.exists() {
            locks::set_aside(&self.git, &entry)?;
        }
        remove(&self.path.join(".git"))
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

/// Whether a worktree is half made, or half restored.
pub(crate) fn is_unfinished(entry: &Path) -> bool {
    is_being_made(entry) || fs::symlink_metadata(entry.join(BEING_RESTORED)).is_ok()
}

/// The reason of a lock that a person has put on a worktree, which may be empty.
pub(super) fn persons_lock(entry: &Path) -> Option<String> {
    let reason = file::text(entry.join(LOCKED)).ok()?;
    let ours = reason.starts_with(BEING_MADE) || reason.starts_with(AT_WORK);
    (!ours).then(|| reason.trim().to_owned())
}

fn is_locked(entry: &Path) -> bool {
    fs::symlink_metadata(entry.join(LOCKED)).is_ok()
}

fn is_at_work(entry: &Path, by: &str) -> bool {
    let reason = file::text(entry.join(LOCKED)).unwrap_or_default();
    reason.strip_prefix(AT_WORK).is_some_and(|who| by.is_empty() || who == by)
}

fn is_being_made(entry: &Path) -> bool {
    file::text(entry.join(LOCKED)).is_ok_and(|reason| reason.starts_with(BEING_MADE))
}

/// A lock that somebody else has put on the worktree stays.
fn unmark(entry: &Path) -> Result<(), GitError> {
    if is_being_made(entry) {
        remove(&entry.join(LOCKED))?;
    }
    remove(&entry.join(BEING_RESTORED))
}

/// Whether git can use an entry: it writes these files one after the other.
pub(super) fn is_whole(entry: &Path) -> bool {
    let filled = |name: &str| fs::metadata(entry.join(name)).is_ok_and(|found| found.len() > 0);
    entry.join("objects").is_dir() || ["gitdir", "commondir", "HEAD"].into_iter().all(filled)
}

/// A lock file, locked until it is dropped.
fn lock(path: &Path) -> Result<File, GitError> {
    let locked = private(path).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|source| GitError::io("lock", path, source))
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), GitError> {
    file::write(path, text).map_err(|source| GitError::io("write", path, source))
}

fn remove(path: &Path) -> Result<(), GitError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|source| GitError::io("remove", path, source)),
    }
}
