//! Snapshots: a commit of everything in a worktree that is not ignored, under a piton ref, while
//! HEAD, index, branch and files stay as they are. Files are kept byte for byte, no filter runs, and
//! one bad path never costs the rest: what could not be kept is listed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use piton_core::event::{Omission, Snapshot, SnapshotReason};
use piton_core::ids::Oid;
use piton_core::limits::OMISSIONS_MAX;

use crate::git::keep::{Making, Name, keep};
use crate::git::stage::{self, Changes, LeftOut};
use crate::git::status::{Depth, Status, status};
use crate::git::{Git, GitError, commit_tree, locks, names, oid};
use crate::worktree::{Aside, Worktree, carry, differing, is_unfinished};

mod shadow;
mod special;

use shadow::{Shadow, Source};

/// What is asked of a snapshot.
pub struct Ask<'a> {
    /// `refs/piton/<run>/<step>/<fence>/<n>`; it must not exist.
    pub refname: String,
    /// The step's base, against which changed paths are counted; HEAD when there is none.
    pub base: Option<&'a Oid>,
    pub message: &'a str,
    pub reason: SnapshotReason,
    /// The tree of the last kept snapshot: nothing is kept when tree and HEAD are still the same.
    pub last: Option<&'a Oid>,
    /// piton's own index, kept between calls: files that did not change are not read again.
    pub index: &'a Path,
}

/// Takes a snapshot; `None` when there is nothing new, and of a worktree that is half made or half
/// restored. When it returns, the snapshot is on disk.
pub fn take(tree: &Worktree, ask: &Ask<'_>) -> Result<Option<Snapshot>, GitError> {
    let dir = tree.git_dir()?;
    if is_unfinished(&dir) {
        return Ok(None);
    }
    let (head, _) = tree.position(&dir)?;
    let shadow = Shadow::beside(ask.index, tree, head.as_ref())?;
    let parents: Vec<Oid> = head.iter().cloned().collect();
    let name = Name { refname: &ask.refname, old: None, why: "piton: snapshot" };
    let mut captured = None;
    let commit = keep(tree.git(), name, |making| {
        let (files, left_out) =
            capture(&shadow, tree, &dir, (making == Making::First).then_some(ask.index))?;
        let unchanged = making == Making::First
            && ask.last == Some(&files)
            && is_kept(tree.git(), &ask.refname, &files, head.as_ref())?;
        if unchanged {
            return Ok(None);
        }
        let commit = commit_tree(|| shadow.call(), &files, &parents, ask.message)?;
        captured = Some((files, left_out));
        Ok(Some(commit))
    })?;
    let (Some(commit), Some((files, left_out))) = (commit, captured) else {
        shadow.keep_index(ask.index)?;
        return Ok(None);
    };
    let changed = match ask.base.or(head.as_ref()) {
        Some(base) => differing(shadow.call(), base, &files)?.len() as u64,
        None => 0,
    };
    shadow.keep_index(ask.index)?;
    let commits = match (ask.base, &head) {
        (Some(base), Some(head)) => tree.git().count_commits(base, head)?,
        _ => 0,
    };
    let (reason, omitted) = (ask.reason, omissions(left_out));
    let refname = ask.refname.clone();
    Ok(Some(Snapshot { commit, tree: files, refname, changed, omitted, reason, head, commits }))
}

/// Whether a snapshot of this step has this tree on this HEAD: the same files on another commit are
/// worth a snapshot, because a rebuilt worktree starts from its parent.
fn is_kept(git: &Git, refname: &str, tree: &Oid, head: Option<&Oid>) -> Result<bool, GitError> {
    let step = refname.rsplitn(3, '/').nth(2).unwrap_or(refname);
    let asked = git.call().args(&["for-each-ref", "--format=%(tree) %(parent)", "--", step]);
    let wanted = format!("{tree} {}", head.map_or("", Oid::as_str));
    let answer = asked.run()?;
    Ok(answer.text("git for-each-ref")?.lines().any(|line| line == wanted))
}

/// The tree of what is on disk. An index that cannot be used gives way to the next worse one: piton's
/// own, a copy of the worktree's, one read from HEAD. Without `kept` it is that last one at once: it
/// names no object that could be gone.
fn capture(
    shadow: &Shadow,
    tree: &Worktree,
    dir: &Path,
    kept: Option<&Path>,
) -> Result<(Oid, Vec<LeftOut>), GitError> {
    let index = dir.join("index");
    let mut failure = None;
    let quick = kept.map(|kept| [Source::Kept(kept), Source::Worktree(&index)]);
    for source in quick.into_iter().flatten().chain([Source::Head]) {
        if !shadow.start_from(&source)? {
            continue;
        }
        match capture_once(shadow, tree, &index, kept) {
            Ok(captured) => return Ok(captured),
            Err(error @ GitError::Failed { .. }) => failure = Some(error),
            Err(other) => return Err(other),
        }
    }
    Err(failure.unwrap_or_else(|| GitError::unexpected("git read-tree", "there is no index")))
}

fn capture_once(
    shadow: &Shadow,
    tree: &Worktree,
    index: &Path,
    kept: Option<&Path>,
) -> Result<(Oid, Vec<LeftOut>), GitError> {
    let seen = status(shadow.call(), Depth::Ignored)?;
    let mut changes = Changes::of(&seen);
    changes.put.extend(untracked_by_hand(&seen));
    if kept.is_none_or(|kept| is_newer(index, kept)) {
        changes.put.extend(shadow.forced(index)?);
    }
    let mut left_out = stage::tolerantly(|| shadow.call(), tree.path(), &changes)?;
    left_out.extend(nested(&seen, &changes));
    left_out.extend(special::find(shadow, tree.path(), &seen)?);
    let captured = oid(&shadow.call().arg("write-tree").run()?.stdout, "git write-tree")?;
    Ok((captured, left_out))
}

/// Files that HEAD has and the index no longer has: still on disk and perhaps ignored, so that git
/// does not list them, but a reset would overwrite them.
fn untracked_by_hand(seen: &Status) -> impl Iterator<Item = Vec<u8>> {
    seen.tracked.iter().filter(|entry| entry.staged == b'D').map(|entry| entry.path.clone())
}

/// Repositories within the worktree whose files no snapshot of this repository can hold.
fn nested(seen: &Status, changes: &Changes) -> Vec<LeftOut> {
    let links = seen.tracked.iter().filter(|entry| entry.gitlink && !entry.gone);
    let links = links.map(|entry| LeftOut::new(&entry.path, stage::NESTED));
    links.chain(changes.nested.iter().map(|path| LeftOut::new(path, stage::NESTED))).collect()
}

fn is_newer(index: &Path, kept: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    match (time(index), time(kept)) {
        (Some(index), Some(kept)) => index >= kept,
        _ => false,
    }
}

/// Sorted, once each, and not more than an event may hold.
fn omissions(mut left_out: Vec<LeftOut>) -> Vec<Omission> {
    left_out.sort();
    left_out.dedup_by(|a, b| a.path == b.path);
    let more = left_out.len().saturating_sub(OMISSIONS_MAX);
    if more > 0 {
        left_out.truncate(OMISSIONS_MAX - 1);
    }
    let row = |left: LeftOut| Omission { path: names::shown(&left.path), why: left.why };
    let mut rows: Vec<Omission> = left_out.into_iter().map(row).collect();
    if more > 0 {
        rows.push(Omission { path: String::new(), why: format!("and {} more", more + 1) });
    }
    rows
}

/// Reads a snapshot back from disk: its ref, its commit, its tree and every file that its parent does
/// not have, each compared with its id.
pub fn read_back(git: &Git, snapshot: &Snapshot) -> Result<(), GitError> {
    let damaged =
        |why: &str| GitError::Damaged { refname: snapshot.refname.clone(), why: why.to_owned() };
    match git.ref_target(&snapshot.refname)? {
        Some(commit) if commit == snapshot.commit => {}
        Some(other) => return Err(damaged(&format!("its ref is at {other}"))),
        None => return Err(damaged("its ref is gone")),
    }
    let commit = snapshot.commit.as_str();
    let words = ["rev-list", "--objects", "--verify-objects", "--no-object-names", commit];
    let asked = git.call().args(&words).args(&["--not", &format!("{commit}^@")]);
    let answer = match asked.run() {
        Ok(answer) => answer,
        Err(GitError::Failed { stderr, .. }) => return Err(damaged(&stderr)),
        Err(other) => return Err(other),
    };
    // A file whose bytes do not match its id is only complained about.
    if !answer.stderr.is_empty() {
        return Err(damaged(&answer.stderr));
    }
    match git.tree_of(&snapshot.commit)? == snapshot.tree {
        true => Ok(()),
        false => Err(damaged("its tree is another one")),
    }
}

/// Moves what a reset would remove, and the snapshot does not hold, into a folder: the worktree is
/// looked at anew, whatever the snapshot lists. An error means: do not reset. Nested repositories stay
/// where they are, a reset does not touch them. Nothing may run in the tree.
pub fn keep_omitted(tree: &Worktree, snapshot: &Snapshot, into: &Path) -> Result<(), GitError> {
    let mut paths = unkept(tree, snapshot)?;
    paths.sort();
    paths.dedup();
    for path in paths.iter().filter(|path| names::is_inside(path)) {
        let found = match fs::symlink_metadata(tree.path().join(path)) {
            Ok(found) => found,
            Err(error) if stage::is_missing(&error) => continue,
            Err(source) => return Err(GitError::io("look at", path, source)),
        };
        if !found.is_dir() {
            carry(tree.path(), path, into)?;
        }
    }
    Ok(())
}

/// What cannot be kept, and what is not as the snapshot has it.
fn unkept(tree: &Worktree, snapshot: &Snapshot) -> Result<Vec<PathBuf>, GitError> {
    let dir = tree.git_dir()?;
    let (head, _) = tree.position(&dir)?;
    let folder = locks::new_folder(&tree.git().state_dir().join("scratch"))?;
    let index = folder.join("index");
    let shadow = Shadow::beside(&index, tree, head.as_ref())?;
    let (captured, left_out) = capture(&shadow, tree, &dir, Some(&index))?;
    let mut paths: Vec<PathBuf> = left_out.iter().map(|left| names::path(&left.path)).collect();
    if captured != snapshot.tree {
        let changed = differing(shadow.call(), &snapshot.tree, &captured)?;
        paths.extend(changed.iter().map(|path| names::path(path)));
    }
    drop(shadow);
    let _empty_by_now = fs::remove_dir(&folder);
    Ok(paths)
}

/// Makes or resets a worktree to what a snapshot holds: `branch` is at the snapshot's parent `head`
/// with HEAD and index, the differences are uncommitted again. Without a snapshot the files are those
/// of `head`. A kill on the way leaves a worktree that counts as missing. What is in the way of a file
/// is moved aside; whoever calls this has taken a snapshot of whatever else is there.
pub fn rebuild(
    tree: &Worktree,
    branch: &str,
    head: &Oid,
    snapshot: Option<&Oid>,
) -> Result<(), GitError> {
    tree.remake(branch, head, || match snapshot {
        Some(snapshot) => restore(tree, head, snapshot),
        None => Ok(()),
    })
}

fn restore(tree: &Worktree, head: &Oid, snapshot: &Oid) -> Result<(), GitError> {
    let folder = locks::new_folder(&tree.git().state_dir().join("scratch"))?;
    let shadow = Shadow::beside(&folder.join("index"), tree, Some(head))?;
    let restored = put_back(tree, &shadow, head, snapshot);
    drop(shadow);
    let _empty_by_now = fs::remove_dir(&folder);
    restored
}

fn put_back(tree: &Worktree, shadow: &Shadow, head: &Oid, snapshot: &Oid) -> Result<(), GitError> {
    let words = ["diff-tree", "-r", "-z", "--name-status", "--no-renames", "--ignore-submodules"];
    let asked = shadow.call().args(&words).args(&[head.as_str(), snapshot.as_str(), "--"]);
    let answer = asked.run()?;
    let fields: Vec<&[u8]> = answer.parts().collect();
    let (mut wanted, mut aside) = (Vec::new(), Aside::default());
    for pair in fields.chunks_exact(2) {
        let (kind, path) = (pair[0], names::path(pair[1]));
        if !names::is_inside(&path) {
            return Err(GitError::unexpected("git diff-tree", names::shown(pair[1])));
        }
        match kind {
            b"D" => remove(tree.path(), &path)?,
            b"A" => {
                aside.clear(tree, &path)?;
                wanted.extend([pair[1], b"\0"].concat());
            }
            _ => wanted.extend([pair[1], b"\0"].concat()),
        }
    }
    shadow.call().args(&["read-tree", snapshot.as_str()]).run()?;
    if wanted.is_empty() {
        return Ok(());
    }
    let call = shadow.call().args(&["checkout-index", "--force", "--quiet", "-z", "--stdin"]);
    call.input(wanted).run().map(drop)
}

/// Removes a file, and the folders that it leaves empty.
fn remove(root: &Path, path: &Path) -> Result<(), GitError> {
    let file = root.join(path);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(GitError::io("remove", &file, error));
        }
        _ => {}
    }
    let folders = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
    for folder in folders {
        if fs::remove_dir(root.join(folder)).is_err() {
            break;
        }
    }
    Ok(())
}
