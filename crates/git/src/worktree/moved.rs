//! A worktree that somebody has moved without telling git: its files are elsewhere, with the way back to
//! their entry. Looked for where people move things: beside it, and beside the folders above it.

use std::fs;
use std::path::{Path, PathBuf};

use super::Worktree;
use super::create::is_unfinished;
use super::state::{TreeState, pointed_to};
use crate::repo::plain::place_of;

/// A folder with more in it is no place where somebody would look, either.
const LOOKED_AT_MAX: usize = 2000;

impl Worktree {
    /// The worktree itself; where its folder is gone, the place that it was moved to, if that is found.
    /// Nothing where there is neither.
    pub fn or_moved(self) -> Option<Worktree> {
        match self.state() {
            Ok(TreeState::Missing) => self.moved_to(),
            _ => Some(self),
        }
    }

    /// The place that the folder at this path belongs to, when somebody has moved it here from there. One
    /// whose repository was moved along has the same name in the same folder.
    pub fn moved_from(&self) -> Option<PathBuf> {
        let Ok(TreeState::Unlinked { dir }) = self.state() else { return None };
        let place = place_of(&dir)?;
        let name = |path: &Path| {
            let folder = path.parent().and_then(Path::file_name);
            (folder.map(ToOwned::to_owned), path.file_name().map(ToOwned::to_owned))
        };
        (name(&place) != name(&self.path)).then_some(place)
    }

    /// Where the folder of this worktree is now, when it is not at its place.
    pub fn moved_to(&self) -> Option<Worktree> {
        let entry = self.listed_entry().filter(|entry| !is_unfinished(entry))?;
        let entry = entry.canonicalize().ok()?;
        let top = self.git.main_root().parent()?;
        let mut folders: Vec<&Path> = self.path.ancestors().skip(1).collect();
        // Above the repository are other people's things; above a root elsewhere, too.
        let above = folders.iter().position(|folder| *folder == top).map_or(4, |at| at + 1);
        folders.truncate(above);
        folders
            .into_iter()
            .find_map(|folder| beside(folder, &entry))
            .map(|path| Worktree { git: self.git.clone(), path })
    }
}

/// A folder within another whose `.git` file names an entry.
fn beside(folder: &Path, entry: &Path) -> Option<PathBuf> {
    let within = fs::read_dir(folder).ok()?.flatten().take(LOOKED_AT_MAX);
    within.map(|found| found.path()).find(|path| {
        let target = pointed_to(path).ok().flatten();
        target.and_then(|target| target.canonicalize().ok()).is_some_and(|target| target == *entry)
    })
}
