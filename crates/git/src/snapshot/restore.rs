//! From a snapshot back to files: read back to see that it is whole, and put into a worktree byte for byte.
//! Files are written, not checked out: no filter has a part in it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use piton_core::event::{Omission, Snapshot};
use piton_core::ids::Oid;
use rustix::fs::FileType;

use super::nofollow::{Root, is_gone};
use super::operation::Begun;
use super::read::{Outcome, Reader, Sink};
use super::staged::{TrackedPaths, files_of};
use super::stat_cache::Known;
use super::write::{Files, Wanted, files_inside, write_files};
use super::{EMPTY_FOLDER, LEFT_OUT};
use crate::repo::hash::Format;
use crate::repo::pack::Mode;
use crate::repo::{Git, GitError, drivers, locks, names};
use crate::worktree::{Quarantine, Worktree};

/// Reads a snapshot back from disk: its ref, its commits, its trees and every file that HEAD does not
/// have, each compared with its id.
pub fn read_back(git: &Git, snapshot: &Snapshot) -> Result<(), GitError> {
    let damaged =
        |why: &str| GitError::Damaged { refname: snapshot.refname.clone(), why: why.to_owned() };
    let failed = |error: GitError| match error {
        GitError::Failed { stderr, .. } => damaged(&stderr),
        other => other,
    };
    match git.ref_target(&snapshot.refname)? {
        Some(commit) if commit == snapshot.commit => {}
        Some(other) => return Err(damaged(&format!("its ref is at {other}"))),
        None => return Err(damaged("its ref is gone")),
    }
    let header = Header::read(git, &snapshot.commit).map_err(failed)?;
    if header.tree.as_ref() != Some(&snapshot.tree) {
        return Err(damaged("its tree is another one"));
    }
    let words = ["rev-list", "--objects", "--verify-objects", "--no-object-names"];
    let mut asked = git.call().args(&words).arg(snapshot.commit.as_str());
    if let Some(head) = header.parents.first() {
        asked = asked.args(&["--not", head.as_str()]);
    }
    let answer = asked.run().map_err(failed)?;
    // A file whose bytes do not match its id is only complained about.
    match answer.stderr.is_empty() {
        true => Ok(()),
        false => Err(damaged(&answer.stderr)),
    }
}

/// A snapshot's message, and what it says was left out.
pub fn describe(git: &Git, commit: &Oid) -> Result<(String, Vec<Omission>), GitError> {
    let header = Header::read(git, commit)?;
    let omitted = header.left_out();
    Ok((header.message, omitted))
}

/// What git was in the middle of when a snapshot was taken.
pub fn operation(git: &Git, commit: &Oid) -> Result<Option<Begun>, GitError> {
    Ok(Begun::told_in(&Header::read(git, commit)?.message))
}

/// What a snapshot's commit says.
pub(super) struct Header {
    tree: Option<Oid>,
    /// HEAD, a commit of the index where something was staged, one of the sides of conflicts, and what an
    /// operation was about that was under way.
    pub(super) parents: Vec<Oid>,
    pub(super) message: String,
}

impl Header {
    pub(super) fn read(git: &Git, commit: &Oid) -> Result<Header, GitError> {
        let answer = git.call().args(&["cat-file", "commit", commit.as_str()]).run()?;
        let text = String::from_utf8_lossy(&answer.stdout).into_owned();
        let (head, message) = text.split_once("\n\n").unwrap_or((&text, ""));
        let named = |name: &str| {
            let rows = head.lines().filter_map(move |line| line.strip_prefix(name));
            rows.filter_map(|id| Oid::new(id).ok()).collect::<Vec<_>>()
        };
        let (trees, parents) = (named("tree "), named("parent "));
        Ok(Header { tree: trees.into_iter().next(), parents, message: message.to_owned() })
    }

    fn left_out(&self) -> Vec<Omission> {
        let rows = self.message.lines().filter_map(|line| line.strip_prefix(LEFT_OUT));
        let read = |row: &str| match row.strip_prefix('"') {
            // It ends at the first quote that nothing stands before.
            Some(rest) => {
                let mut escaped = false;
                let end = rest.find(|letter| {
                    let ends = letter == '"' && !escaped;
                    escaped = letter == '\\' && !escaped;
                    ends
                })?;
                let why = rest[end + 1..].trim_start().to_owned();
                Some(Omission { path: unquoted(&rest[..end]), why })
            }
            None => Some(Omission { path: String::new(), why: row.to_owned() }),
        };
        rows.filter_map(|row| read(row.strip_prefix(": ")?)).collect()
    }

    pub(super) fn empty_folders(&self) -> impl Iterator<Item = PathBuf> {
        let rows = self.message.lines().filter_map(|line| line.strip_prefix(EMPTY_FOLDER));
        let quoted = rows.filter_map(|row| row.strip_prefix(": \"")?.strip_suffix('"'));
        quoted.map(|text| PathBuf::from(unquoted(text)))
    }
}

fn unquoted(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        match (letter, letter == '\\') {
            (_, true) => match rest.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
            (letter, false) => plain.push(letter),
        }
    }
    plain
}

/// Makes or resets a worktree to what a snapshot holds: `branch` is at the snapshot's parent `head`
/// with HEAD, the index is as it was, the differences are uncommitted again. Without a snapshot the
/// files are those of `head`. A kill on the way leaves a worktree that counts as missing. What is in
/// the way of a file is moved aside; whoever calls this has taken a snapshot of whatever else is there.
pub fn rebuild(
    tree: &Worktree,
    branch: &str,
    head: &Oid,
    snapshot: Option<&Oid>,
) -> Result<(), GitError> {
    tree.remake(branch, head, || match snapshot {
        Some(snapshot) => put_back(tree, head, snapshot),
        None => Ok(()),
    })
}

fn put_back(tree: &Worktree, head: &Oid, snapshot: &Oid) -> Result<(), GitError> {
    let dir = tree.git_dir()?;
    let header = Header::read(tree.git(), snapshot)?;
    let wanted = files_inside(tree.call_in(&dir), snapshot)?;
    let at_head = files_inside(tree.call_in(&dir), head)?;
    let root = Root::open(tree.path());
    let root = root.map_err(|source| GitError::io("look into", tree.path(), source))?;
    for (path, (mode, _)) in &at_head {
        if *mode != Mode::Gitlink && !wanted.contains_key(path) {
            remove(&root, path)?;
        }
    }
    let sparse = TrackedPaths::of(tree.call_in(&dir));
    let missing = |path: &&Vec<u8>| {
        let unwanted = sparse.is_sparse(path) && at_head.get(*path) == wanted.get(*path);
        wanted[*path].0 != Mode::Gitlink && !unwanted
    };
    let paths: Vec<Vec<u8>> = wanted.keys().filter(missing).cloned().collect();
    let differing = differing_on_disk(&root, &paths, &wanted, Format::of(snapshot));
    let mut aside = Quarantine::default();
    for (path, ..) in &differing {
        // The reset wrote what HEAD has, or left what stands there.
        if !at_head.contains_key(*path) || !is_file(&root, path) {
            aside.clear(tree, &names::path(path))?;
        }
    }
    write_files(tree.git(), &root, &differing, |_| {})?;
    let folders = wanted.iter().filter(|(_, (mode, _))| *mode == Mode::Gitlink);
    let folders = folders.map(|(path, _)| names::path(path)).chain(header.empty_folders());
    for folder in folders.filter(|folder| names::is_inside(folder)) {
        aside.clear(tree, &folder.join("within"))?;
        let made = root.make_folder(names::bytes(&folder));
        made.map_err(|source| GitError::io("make", &folder, source))?;
    }
    match header.parents.get(1) {
        Some(_) => put_index(tree, &dir, &header),
        None => Ok(()),
    }
}

/// The files that are not on disk as they are wanted.
fn differing_on_disk<'a>(
    root: &Root,
    paths: &'a [Vec<u8>],
    wanted: &Files,
    format: Format,
) -> Vec<Wanted<'a>> {
    let (known, sink) = (Known::default(), Sink::nowhere());
    let reader = Reader { root, known: &known, format, began: SystemTime::now(), sink: &sink };
    let read = paths.iter().zip(reader.all(paths));
    let differs = |path: &Vec<u8>, found: &Outcome| !matches!(found, Ok(Some(found)) if (found.mode, found.id) == wanted[path]);
    let differing = read.filter(|(path, found)| differs(path, found));
    differing.map(|(path, _)| (path.as_slice(), wanted[path].0, wanted[path].1)).collect()
}

/// Whether there is something at a path that is no folder.
fn is_file(root: &Root, path: &[u8]) -> bool {
    let found = root.spot(path).and_then(|spot| spot.look());
    found.is_ok_and(|found| !FileType::from_raw_mode(found.st_mode).is_dir())
}

/// Removes a file, and the folders that it leaves empty.
fn remove(root: &Root, path: &[u8]) -> Result<(), GitError> {
    match root.spot(path).and_then(|spot| spot.remove()) {
        Err(error) if is_gone(&error) => return Ok(()),
        Err(source) => return Err(GitError::io("remove", &names::path(path), source)),
        Ok(()) => {}
    }
    root.remove_empty_above(path);
    Ok(())
}

/// The index as it was: what was staged, with the sides of conflicts.
pub(super) fn put_index(tree: &Worktree, dir: &Path, header: &Header) -> Result<(), GitError> {
    let Some(index) = header.parents.get(1).or(header.parents.first()) else { return Ok(()) };
    // Whoever writes an index looks at files that were just changed, through their filters.
    let drivers = drivers::overrides(tree.call_in(dir))?;
    let call = || Ok(tree.git().without_hooks(tree.call_in(dir))?.configs(&drivers));
    // Only the index: what it has of files that did not change stays known.
    let read = |how: &[&str]| call()?.arg("read-tree").args(how).arg(index.as_str()).run();
    let mut put = read(&["-i", "-m"]);
    if matches!(put, Err(GitError::Failed { .. })) {
        // It has conflicts.
        put = read(&["-i", "--reset"]);
    }
    if matches!(put, Err(GitError::Failed { .. })) {
        // It is torn.
        locks::set_aside(tree.git(), &dir.join("index"))?;
        put = read(&[]);
    }
    put.map(drop)?;
    let Some(sides) = header.parents.get(2) else { return Ok(()) };
    let mut rows = Vec::new();
    let none = "0".repeat(sides.as_str().len());
    for (path, to) in files_of(tree.call_in(dir), sides)? {
        let (Some((mode, id)), [stage @ b'1'..=b'3', b'/', path @ ..]) = (to, path.as_slice())
        else {
            return Err(GitError::unexpected("git ls-tree", names::shown(&path)));
        };
        let stage = char::from(*stage);
        rows.push([format!("0 {none}\t").as_bytes(), path, b"\0"].concat());
        let row = format!("{} {id} {stage}\t", mode.text());
        rows.push([row.as_bytes(), path, b"\0"].concat());
    }
    // Every side's path is cleared before the first side is put.
    rows.sort_by_key(|row| !row.starts_with(b"0 "));
    call()?.args(&["update-index", "-z", "--index-info"]).input(rows.concat()).run().map(drop)
}
