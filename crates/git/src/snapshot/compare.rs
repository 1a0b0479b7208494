//! What is different: between two snapshots, or between a snapshot and the files that are there now.
//! Nothing in the repository is written, not even objects; no filter, attribute or program of the
//! repository has a part in it.

use std::collections::{BTreeMap, HashMap};

use piton_core::ids::Oid;
use serde::Serialize;

use super::put::is_meant;
use super::read::Sink;
use super::staged::files_of;
use super::stat_cache::Known;
use super::{Capture, Memory, Taking};
use crate::repo::hash::Id;
use crate::repo::pack::{Mode, Pack};
use crate::repo::{Answer, Call, Git, GitError, names, oid};
use crate::worktree::Worktree;

/// A path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    pub path: String,
    pub change: ChangeKind,
}

/// How.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    Modified,
    Removed,
    /// Only whether it is a program, a link or a file.
    Mode,
}

/// Two states, held against each other.
#[derive(Debug, Default)]
pub struct Difference {
    pub files: Vec<FileChange>,
    /// As `git apply` reads it.
    pub patch: Vec<u8>,
}

type Files = HashMap<Vec<u8>, (Mode, Id)>;

/// What the second commit has on top of the first.
pub fn between(git: &Git, from: &Oid, to: &Oid, paths: &[Vec<u8>]) -> Result<Difference, GitError> {
    difference(|| git.call(), from, to, paths)
}

/// The paths alone.
pub fn changed_paths(git: &Git, from: &Oid, to: &Oid) -> Result<Vec<FileChange>, GitError> {
    Ok(shown(rows(&compared(|| git.call(), (from, to), &RAW, &[])?)?))
}

fn tree_files(call: Call, of: &Oid) -> Result<Files, GitError> {
    let listed = files_of(call, of)?.into_iter();
    Ok(listed.filter_map(|(path, to)| Some((path, to?))).collect())
}

/// What the files that are there now have on top of a snapshot.
pub fn with_files(
    tree: &Worktree,
    snapshot: &Oid,
    paths: &[Vec<u8>],
) -> Result<Difference, GitError> {
    let git = tree.git();
    let failed = |source| GitError::io("use", &std::env::temp_dir(), source);
    let apart = tempfile::Builder::new().prefix("piton-").tempdir().map_err(failed)?;
    let objects = apart.path().join("objects");
    std::fs::create_dir_all(objects.join("pack")).map_err(failed)?;
    let sink = Sink::into(Pack::apart(git, &objects)?);
    let (_, capture) = on_top(tree, snapshot, &sink)?;
    sink.into_pack()?.finish_apart()?;
    let call = || git.call_apart(&objects).env("GIT_INDEX_FILE", apart.path().join("index"));
    call().args(&["read-tree", snapshot.as_str()]).run()?;
    let rows = capture.changes.iter().flat_map(|(path, to)| {
        let head = match to {
            Some((mode, id)) => format!("{} {id} 0\t", mode.text()),
            None => format!("0 {}\t", "0".repeat(snapshot.as_str().len())),
        };
        [head.into_bytes(), path.clone(), vec![0]].concat()
    });
    let call_with = call().args(&["update-index", "-z", "--index-info"]);
    call_with.input(rows.collect()).run()?;
    let words = ["write-tree", "--missing-ok"];
    let now = oid(&call().args(&words).run()?.stdout, "git write-tree")?;
    difference(call, snapshot, &now, paths)
}

/// Snapshots that are looked through for a file's bytes; older ones are taken to have others.
const LOOKED_THROUGH: usize = 20;

/// Files that would be replaced or removed by putting a snapshot back, and whose bytes are in none of
/// some others, newest first. Nothing is written anywhere.
pub fn unkept_edits(
    tree: &Worktree,
    snapshot: &Oid,
    others: &[Oid],
) -> Result<Vec<Vec<u8>>, GitError> {
    let (_, capture) = on_top(tree, snapshot, &Sink::nowhere())?;
    let there = capture.changes.into_iter().filter_map(|(path, now)| Some((path, now?)));
    let mut left: BTreeMap<Vec<u8>, (Mode, Id)> = there.collect();
    for other in others.iter().take(LOOKED_THROUGH) {
        if left.is_empty() {
            break;
        }
        let files = tree_files(tree.git().call(), other)?;
        left.retain(|path, now| files.get(path) != Some(now));
    }
    Ok(left.into_keys().collect())
}

/// Looks at a worktree as if a snapshot had been its last one.
pub(super) fn on_top(
    tree: &Worktree,
    snapshot: &Oid,
    sink: &Sink<'_>,
) -> Result<(Memory, Capture), GitError> {
    let dir = tree.git_dir()?;
    let head = tree.head_in(&dir)?.commit;
    let remembered = Memory::recall(tree);
    let known = Known::of(files_of(tree.call_in(&dir), snapshot)?, &remembered.known);
    let mut memory = Memory { known, ..Memory::default() };
    memory.staged.refresh(tree, &dir, head.as_ref())?;
    memory.known.mark_tracked(memory.staged.tracked.paths());
    let taking = Taking { tree, dir: &dir, head: head.as_ref(), turn: 0 };
    let capture = taking.capture(&mut memory, sink)?;
    Ok((memory, capture))
}

const RAW: [&str; 4] = ["--raw", "-z", "--no-renames", "--no-abbrev"];
const PATCH: [&str; 3] = ["--patch", "--find-renames", "--full-index"];

fn difference(
    call: impl Fn() -> Call,
    from: &Oid,
    to: &Oid,
    paths: &[Vec<u8>],
) -> Result<Difference, GitError> {
    let mut files = rows(&compared(&call, (from, to), &RAW, paths)?)?;
    files.retain(|(path, _)| is_meant(path, paths));
    let patch = compared(&call, (from, to), &PATCH, paths)?.stdout;
    Ok(Difference { files: shown(files), patch })
}

fn compared(
    call: impl Fn() -> Call,
    (from, to): (&Oid, &Oid),
    how: &[&str],
    paths: &[Vec<u8>],
) -> Result<Answer, GitError> {
    let words = ["diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color"];
    let asked = call().args(&words).args(how).arg("--ignore-submodules=none");
    let asked = asked.args(&[from.as_str(), to.as_str(), "--"]);
    paths.iter().fold(asked, |asked, path| asked.arg(names::path(path))).run()
}

fn shown(files: Vec<(Vec<u8>, ChangeKind)>) -> Vec<FileChange> {
    let row = |(path, change): (Vec<u8>, _)| FileChange { path: names::shown(&path), change };
    files.into_iter().map(row).collect()
}

/// `:<mode> <mode> <id> <id> <kind>`, then the path.
fn rows(answer: &Answer) -> Result<Vec<(Vec<u8>, ChangeKind)>, GitError> {
    let mut found = Vec::new();
    let mut fields = answer.parts();
    while let (Some(change), Some(path)) = (fields.next(), fields.next()) {
        let words: Vec<&[u8]> = change.split(|&byte| byte == b' ').collect();
        let changed = match words.as_slice() {
            [_, _, _, _, b"A"] => ChangeKind::Added,
            [_, _, _, _, b"D"] => ChangeKind::Removed,
            [_, _, a, b, _] if a == b => ChangeKind::Mode,
            [_, _, _, _, _] => ChangeKind::Modified,
            _ => return Err(GitError::unexpected("git diff-tree", names::shown(change))),
        };
        found.push((path.to_vec(), changed));
    }
    Ok(found)
}
