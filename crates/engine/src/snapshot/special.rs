//! Finds what git passes over in silence: FIFOs, sockets, devices, and folders that cannot be read.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::shadow::Shadow;
use crate::git::GitError;
use crate::git::stage::{self, LeftOut};
use crate::git::status::Status;

/// Walks the worktree, leaving out ignored folders and nested repositories.
pub(super) fn find(shadow: &Shadow, root: &Path, seen: &Status) -> Result<Vec<LeftOut>, GitError> {
    let ignored = seen.ignored.iter().map(Vec::as_slice);
    let skipped: HashSet<&[u8]> =
        ignored.map(|path| path.strip_suffix(b"/").unwrap_or(path)).collect();
    let mut found = Vec::new();
    let mut folders: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(folder) = folders.pop() {
        let list = match fs::read_dir(root.join(crate::git::names::path(&folder))) {
            Ok(list) => list,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                found.push(LeftOut::new(&folder, format!("it cannot be listed: {error}")));
                continue;
            }
        };
        let entries: Vec<_> = list.flatten().collect();
        if !folder.is_empty() && entries.iter().any(|entry| entry.file_name() == ".git") {
            continue;
        }
        for entry in entries {
            let Ok(kind) = entry.file_type() else { continue };
            let path = join(&folder, entry.file_name().as_bytes());
            if let Some(why) = stage::special(kind) {
                found.push(LeftOut::new(&path, why));
            } else if kind.is_dir() && path != b".git" && !skipped.contains(path.as_slice()) {
                folders.push(path);
            }
        }
    }
    let paths: Vec<Vec<u8>> = found.iter().map(|left| left.path.clone()).collect();
    let wanted = shadow.not_ignored(&paths)?;
    found.retain(|left| wanted.contains(&left.path));
    Ok(found)
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder.is_empty() {
        true => name.to_vec(),
        false => [folder, b"/", name].concat(),
    }
}
