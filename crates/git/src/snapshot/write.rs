//! The one writer of a snapshot's files: into a worktree or a folder, byte for byte, without filters. It
//! follows no link below the folder it writes into, and replaces each file by one rename.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use piton_core::ids::Oid;

use super::nofollow::Root;
use super::staged::files_of;
use crate::repo::hash::Id;
use crate::repo::pack::Mode;
use crate::repo::{Call, Git, GitError, names};

/// The files of a commit, by path.
pub(super) type Files = BTreeMap<Vec<u8>, (Mode, Id)>;

/// A file to write.
pub(super) type Wanted<'a> = (&'a [u8], Mode, Id);

/// The files of a commit; refused where a path would lead out of the folder or into a git directory.
pub(super) fn files_inside(call: Call, commit: &Oid) -> Result<Files, GitError> {
    let mut files = Files::new();
    for (path, to) in files_of(call, commit)? {
        if !names::is_inside(&names::path(&path)) {
            return Err(GitError::unexpected("git ls-tree", names::shown(&path)));
        }
        if let Some(to) = to {
            files.insert(path, to);
        }
    }
    Ok(files)
}

/// Writes files, with the folders above them; `written` is told each path. A folder at a file's path is an
/// error, and so is anything but a folder above it.
pub(super) fn write_files(
    git: &Git,
    root: &Root,
    wanted: &[Wanted<'_>],
    mut written: impl FnMut(&[u8]),
) -> Result<(), GitError> {
    let ids = wanted.iter().map(|(_, _, id)| *id).collect();
    let mut next = wanted.iter();
    blobs(git, ids, |len, bytes| {
        let (path, mode, _) = next.next().expect("as many files as ids");
        let name = || root.path().join(names::path(path));
        write_file(root, path, *mode, (len, bytes))
            .map_err(|source| GitError::io("write", &name(), source))?;
        written(path);
        Ok(())
    })
}

fn write_file(
    root: &Root,
    path: &[u8],
    mode: Mode,
    (len, from): (u64, &mut dyn Read),
) -> io::Result<()> {
    let spot = root.spot_made(path)?;
    let mut bytes = from.take(len);
    if mode == Mode::Link {
        let mut target = Vec::new();
        bytes.read_to_end(&mut target)?;
        return spot.replace_by_link(&target);
    }
    let bits = if mode == Mode::Program { 0o777 } else { 0o666 };
    spot.replace(bits, |file| match io::copy(&mut bytes, file)? {
        whole if whole == len => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    })
}

/// Reads blobs in the order in which they are asked for.
fn blobs(
    git: &Git,
    ids: Vec<Id>,
    mut each: impl FnMut(u64, &mut dyn Read) -> Result<(), GitError>,
) -> Result<(), GitError> {
    if ids.is_empty() {
        return Ok(());
    }
    let mut running = git.call().args(&["cat-file", "--batch"]).start()?;
    let (mut stdin, stdout) = running.ends();
    let mut stdout = BufReader::with_capacity(256 * 1024, stdout);
    let read = std::thread::scope(|scope| {
        let asked = ids.clone();
        scope.spawn(move || {
            // A git that ends early says why by its answer.
            let _ = asked.iter().try_for_each(|id| writeln!(stdin, "{id}"));
        });
        let all = ids.iter().try_for_each(|id| {
            let failed = |source| GitError::io("read", Path::new("git cat-file"), source);
            let mut line = String::new();
            stdout.read_line(&mut line).map_err(failed)?;
            let len = line.trim_end().strip_prefix(&format!("{id} blob "));
            let len = len.and_then(|len| len.parse().ok());
            let len: u64 =
                len.ok_or_else(|| GitError::unexpected("git cat-file", line.trim_end()))?;
            each(len, &mut stdout)?;
            stdout.read_exact(&mut [0]).map_err(failed)
        });
        drop(stdout);
        all
    });
    read?;
    running.finish(Ok(())).map(drop)
}
