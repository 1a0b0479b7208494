//! Writes a snapshot's files into a folder of their own, which is new or empty: nothing is there to be
//! lost. A mark in it says that it is not whole yet; saying it again goes on.

use std::fs;
use std::io;
use std::path::Path;

use piton_core::ids::Oid;

use super::nofollow::Root;
use super::put::is_meant;
use super::restore::Header;
use super::staged::files_of;
use super::write::{Wanted, files_inside, write_files};
use crate::file;
use crate::repo::hash::Id;
use crate::repo::pack::Mode;
use crate::repo::{Git, GitError, flush, is_missing, names};

/// The file that says which snapshot is being written.
const MARK: &str = ".piton-restoring";

/// Writes the files; says how many.
pub fn export(git: &Git, snapshot: &Oid, paths: &[Vec<u8>], into: &Path) -> Result<u64, GitError> {
    let failed = |doing: &'static str| move |source| GitError::io(doing, into, source);
    claim(into, snapshot)?;
    let root = Root::open(into).map_err(failed("look into"))?;
    let header = Header::read(git, snapshot)?;
    let meant = |path: &[u8]| is_meant(path, paths);
    let mut files = files_inside(git.call(), snapshot)?;
    files.retain(|path, _| meant(path));
    let is_link = |(_, (mode, _)): &(&Vec<u8>, &(Mode, Id))| *mode == Mode::Gitlink;
    let (links, files): (Vec<_>, Vec<_>) = files.iter().partition(is_link);
    for (path, _) in links {
        root.make_folder(path).map_err(failed("make folders in"))?;
    }
    let wanted: Vec<Wanted<'_>> =
        files.into_iter().map(|(path, (mode, id))| (path.as_slice(), *mode, *id)).collect();
    write_files(git, &root, &wanted, |_| {})?;
    let empty = header.empty_folders().filter(|path| names::is_inside(path));
    for folder in empty.filter(|folder| meant(names::bytes(folder))) {
        root.make_folder(names::bytes(&folder)).map_err(failed("make folders in"))?;
    }
    flush::files(into)?;
    let mark = into.join(MARK);
    fs::remove_file(&mark).map_err(|source| GitError::io("remove", &mark, source))?;
    Ok(wanted.len() as u64)
}

/// Whether a snapshot has a file or folder; an empty folder stands in its message.
pub fn has_path(git: &Git, snapshot: &Oid, path: &[u8]) -> Result<bool, GitError> {
    let named = [path.to_vec()];
    let mut files = files_of(git.call(), snapshot)?.into_iter();
    Ok(files.any(|(file, _)| is_meant(&file, &named))
        || Header::read(git, snapshot)?
            .empty_folders()
            .any(|folder| is_meant(names::bytes(&folder), &named)))
}

/// Makes the folder, or takes one that is empty or was begun for the same snapshot.
fn claim(into: &Path, snapshot: &Oid) -> Result<(), GitError> {
    let mark = into.join(MARK);
    let taken = || GitError::NotEmpty { path: into.to_owned() };
    match fs::read_dir(into) {
        Ok(mut list) => {
            let begun = file::text(&mark).is_ok_and(|text| text.trim() == snapshot.as_str());
            if list.next().is_some() && !begun {
                return Err(taken());
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Err(taken()),
        Err(error) if is_missing(&error) => {
            fs::create_dir_all(into).map_err(|source| GitError::io("make", into, source))?;
        }
        Err(source) => return Err(GitError::io("look into", into, source)),
    }
    fs::write(&mark, format!("{snapshot}\n")).map_err(|source| GitError::io("write", &mark, source))
}
