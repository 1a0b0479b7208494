//! Brings files of the user's checkout into a worktree: copied, or as a link to them. Only what git
//! ignores there, so that it can never land; never over anything; and never by way of a link that leads
//! out of either.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use super::Worktree;
use crate::repo::is_missing;

impl Worktree {
    /// Copies a file, unless there is something of its name.
    pub fn copy_in(&self, checkout: &Path, path: &Path) -> Result<(), String> {
        let Some((from, to)) = self.way(checkout, path)? else { return Ok(()) };
        if !from.is_file() {
            return Err("it is not a file; folders are brought with `link`".to_owned());
        }
        self.refuse_unignored(path)?;
        // Whole or not at all: what is there is never overwritten, not even by its own other half.
        let half = self.git_dir().map_err(told)?.join("piton-copy");
        fs::copy(&from, &half).map_err(told)?;
        match fs::hard_link(&half, &to) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                fs::copy(&from, &to).map(drop).map_err(told)?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked.map_err(told)?,
        }
        fs::remove_file(&half).map_err(told)
    }

    /// Makes a link to a file or folder, unless there is something of its name.
    pub fn link_in(&self, checkout: &Path, path: &Path) -> Result<(), String> {
        let Some((from, to)) = self.way(checkout, path)? else { return Ok(()) };
        // A pattern for a folder does not match a link to one.
        if self.is_ignored(path)? {
            return symlink(from, to).map_err(told);
        }
        let own = Worktree::at(&self.git, checkout);
        if !own.is_ignored(path)? {
            return Err("git does not ignore it: it would land".to_owned());
        }
        let pattern = format!("/{}", path.display());
        self.git.exclude(&pattern).map_err(told)?;
        symlink(from, to).map_err(told)
    }

    /// From where to where; nothing when something is there.
    fn way(&self, checkout: &Path, path: &Path) -> Result<Option<(PathBuf, PathBuf)>, String> {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if !path.components().all(plain) {
            return Err("it is not a path inside the repository".to_owned());
        }
        let to = self.path().join(path);
        if fs::symlink_metadata(&to).is_ok() {
            return Ok(None);
        }
        let from = checkout.join(path);
        let real = match from.canonicalize() {
            Ok(real) => real,
            Err(error) if is_missing(&error) => {
                return Err(format!("{} is not there", from.display()));
            }
            Err(error) => return Err(told(error)),
        };
        if !real.starts_with(checkout.canonicalize().map_err(told)?) {
            return Err("it leads out of the checkout".to_owned());
        }
        self.make_folders(path)?;
        Ok(Some((from, to)))
    }

    /// The folders that a path is in; a link in place of one could lead anywhere.
    fn make_folders(&self, path: &Path) -> Result<(), String> {
        let mut place = self.path().to_owned();
        for part in path.parent().into_iter().flat_map(Path::components) {
            place.push(part);
            match fs::symlink_metadata(&place) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => return Err(format!("{} is not a folder", place.display())),
                Err(error) if is_missing(&error) => fs::create_dir(&place).map_err(told)?,
                Err(error) => return Err(told(error)),
            }
        }
        Ok(())
    }

    fn refuse_unignored(&self, path: &Path) -> Result<(), String> {
        match self.is_ignored(path)? {
            true => Ok(()),
            false => Err("git does not ignore it: it would land".to_owned()),
        }
    }

    fn is_ignored(&self, path: &Path) -> Result<bool, String> {
        let dir = self.git_dir().map_err(told)?;
        // This one verb refuses to be told that a path is only a path: as one from here it is.
        let call = self.call_in(&dir).env("GIT_LITERAL_PATHSPECS", "0");
        let call = call.args(&["check-ignore", "--quiet", "--"]).arg(Path::new(".").join(path));
        Ok(call.accept(&[0, 1]).run().map_err(told)?.code == 0)
    }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}
