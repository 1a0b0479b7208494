//! The worktree's index as git reads it: which paths it has, and what it stages against HEAD. Asked of
//! git only when the index or HEAD is another one than before; no lock is taken or waited for.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use piton_core::ids::Oid;

use super::stat_cache::Print;
use crate::repo::hash::Id;
use crate::repo::pack::{Change, Mode};
use crate::repo::{Answer, Call, GitError, names};
use crate::worktree::Worktree;

/// What there is to know about an index.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// The index and the HEAD that were looked at.
    seen: Option<(Option<Print>, Option<Oid>)>,
    pub(super) tracked: Arc<TrackedPaths>,
    /// What a commit of the index would change in HEAD.
    pub(super) changes: Vec<Change>,
    /// The sides of conflicts, each below a folder with its number; the commit has one of them.
    pub(super) sides: Vec<Change>,
    /// Git cannot read the index; what is tracked is then what HEAD has.
    pub(super) torn: bool,
}

/// The paths that a repository tracks.
#[derive(Debug, Default)]
pub(super) struct TrackedPaths {
    /// Sorted, once each: the index's, and those that only HEAD has.
    paths: Vec<Box<[u8]>>,
    /// Paths that are not to be checked out.
    pub(super) sparse: Vec<(Vec<u8>, Mode, Id)>,
    pub(super) gitlinks: Vec<(Vec<u8>, Id)>,
}

impl TrackedPaths {
    pub(super) fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.paths.iter().map(|path| &**path)
    }

    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.paths.binary_search_by(|other| (**other).cmp(path)).is_ok()
    }

    /// Whether anything below a folder is tracked.
    pub(super) fn has_below(&self, folder: &[u8]) -> bool {
        let below = [folder, b"/"].concat();
        let at = self.paths.partition_point(|path| **path < *below);
        self.paths.get(at).is_some_and(|path| path.starts_with(&below))
    }

    pub(super) fn is_sparse(&self, path: &[u8]) -> bool {
        self.sparse.binary_search_by(|(other, _, _)| other.as_slice().cmp(path)).is_ok()
    }

    /// From any repository, as far as git can tell.
    pub(super) fn of(call: Call) -> TrackedPaths {
        rows(call).map(|rows| TrackedPaths::from_rows(&rows)).unwrap_or_default()
    }

    fn from_rows(rows: &[Row]) -> TrackedPaths {
        let mut tracked = TrackedPaths::default();
        for row in rows {
            tracked.paths.push(row.path.clone().into());
            match row.mode {
                Mode::Gitlink => tracked.gitlinks.push((row.path.clone(), row.id)),
                mode if row.sparse => tracked.sparse.push((row.path.clone(), mode, row.id)),
                _ => {}
            }
        }
        tracked.paths.dedup();
        tracked
    }

    fn add(&mut self, more: impl Iterator<Item = Vec<u8>>) {
        let before = self.paths.len();
        self.paths.extend(more.map(Vec::into_boxed_slice));
        if self.paths.len() > before {
            self.paths.sort();
            self.paths.dedup();
        }
    }
}

impl Staged {
    /// Looks again if there is something new to see; says whether it did.
    pub(super) fn refresh(
        &mut self,
        tree: &Worktree,
        dir: &Path,
        head: Option<&Oid>,
    ) -> Result<bool, GitError> {
        let began = SystemTime::now();
        let index = fs::symlink_metadata(dir.join("index")).ok().as_ref().map(Print::of);
        // One that was just written may be written again and look the same.
        let settled = index.is_none_or(|print| print.is_settled(began));
        let now = (index, head.cloned());
        if self.seen.as_ref() == Some(&now) {
            return Ok(false);
        }
        *self = look(tree, dir, head)?;
        self.seen = settled.then_some(now);
        Ok(true)
    }

    /// A digest of what is staged; of conflicts their sides.
    pub(super) fn digest(&self) -> String {
        digest(self.changes.iter().chain(&self.sides).cloned().collect())
    }
}

/// The same for what a commit has on top of another one, with the sides of conflicts in a third.
pub(super) fn digest_between(
    call: impl Fn() -> Call,
    (from, to): (&Oid, &Oid),
    sides: Option<&Oid>,
) -> Result<String, GitError> {
    let words = ["diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-abbrev"];
    let asked = call().args(&words).arg("--ignore-submodules=none");
    let answer = asked.args(&[from.as_str(), to.as_str(), "--"]).run()?;
    let to = |to| match to {
        To::File(mode, id) => Some((mode, id)),
        To::Gone | To::Unmerged => None,
    };
    let mut all: Vec<Change> =
        changed(&answer)?.into_iter().map(|(path, of)| (path, to(of))).collect();
    if let Some(sides) = sides {
        all.extend(files_of(call(), sides)?);
    }
    Ok(digest(all))
}

fn digest(mut changes: Vec<Change>) -> String {
    changes.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut text = Vec::new();
    for (path, to) in &changes {
        let to = to.map(|(mode, id)| format!("{} {id}", mode.text())).unwrap_or_default();
        text.extend([path.as_slice(), b"\0", to.as_bytes(), b"\0"].concat());
    }
    blake3::hash(&text).to_hex().to_string()
}

/// What a path is on the newer side.
enum To {
    File(Mode, Id),
    Gone,
    Unmerged,
}

/// `:<mode> <mode> <id> <id> <kind>`, then the path.
fn changed(answer: &Answer) -> Result<Vec<(Vec<u8>, To)>, GitError> {
    let mut found = Vec::new();
    let mut fields = answer.parts();
    while let (Some(change), Some(path)) = (fields.next(), fields.next()) {
        let unknown = || GitError::unexpected("git diff", names::shown(change));
        let words: Vec<&[u8]> = change.split(|&byte| byte == b' ').collect();
        let &[_, mode, _, id, kind] = words.as_slice() else { return Err(unknown()) };
        let to = match kind {
            b"U" => To::Unmerged,
            b"D" => To::Gone,
            _ => {
                let (mode, id) = Mode::parse(mode).zip(Id::parse(id)).ok_or_else(unknown)?;
                To::File(mode, id)
            }
        };
        found.push((path.to_vec(), to));
    }
    Ok(found)
}

fn look(tree: &Worktree, dir: &Path, head: Option<&Oid>) -> Result<Staged, GitError> {
    let rows = match rows(tree.call_in(dir)) {
        Ok(rows) => rows,
        Err(GitError::Failed { .. }) => return without_index(tree, dir, head),
        Err(other) => return Err(other),
    };
    let (mut staged, mut tracked) = (Staged::default(), TrackedPaths::from_rows(&rows));
    let Some(head) = head else {
        let all = rows.iter().filter(|row| row.stage == 0);
        staged.changes = all.map(|row| (row.path.clone(), Some((row.mode, row.id)))).collect();
        staged.tracked = Arc::new(tracked);
        return Ok(staged);
    };
    let words = ["diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev"];
    let call = tree.call_in(dir).args(&words).arg("--ignore-submodules=none");
    let answer = match call.args(&[head.as_str(), "--"]).run() {
        Ok(answer) => answer,
        // Replaced meanwhile by one that cannot be read.
        Err(GitError::Failed { .. }) => return without_index(tree, dir, Some(head)),
        Err(other) => return Err(other),
    };
    let mut unmerged = BTreeSet::new();
    for (path, to) in changed(&answer)? {
        match to {
            To::Unmerged => {
                unmerged.insert(path);
            }
            To::Gone => staged.changes.push((path, None)),
            To::File(mode, id) => staged.changes.push((path, Some((mode, id)))),
        }
    }
    settle(&mut staged, unmerged, &rows);
    let gone = staged.changes.iter().filter(|(_, to)| to.is_none());
    let gone: Vec<Vec<u8>> = gone.map(|(path, _)| path.clone()).collect();
    tracked.add(gone.into_iter());
    staged.tracked = Arc::new(tracked);
    Ok(staged)
}

/// A commit has one side of a conflict: ours, or theirs where we have none. All of them are kept beside.
fn settle(staged: &mut Staged, unmerged: BTreeSet<Vec<u8>>, rows: &[Row]) {
    staged.changes.retain(|(path, _)| !unmerged.contains(path));
    for path in unmerged {
        let sides = || rows.iter().filter(|row| row.path == path && row.stage > 0);
        let side = |stage: u8| sides().find(|row| row.stage == stage);
        let to = side(2).or_else(|| side(3)).map(|row| (row.mode, row.id));
        let below = |row: &Row| [&[b'0' + row.stage, b'/'], path.as_slice()].concat();
        staged.sides.extend(sides().map(|row| (below(row), Some((row.mode, row.id)))));
        staged.changes.push((path, to));
    }
}

fn without_index(tree: &Worktree, dir: &Path, head: Option<&Oid>) -> Result<Staged, GitError> {
    let paths: Vec<Change> = match head {
        Some(head) => files_of(tree.call_in(dir), head)?,
        None => Vec::new(),
    };
    let mut tracked = TrackedPaths::default();
    for (path, to) in &paths {
        if let Some((Mode::Gitlink, id)) = to {
            tracked.gitlinks.push((path.clone(), *id));
        }
    }
    tracked.add(paths.into_iter().map(|(path, _)| path));
    Ok(Staged { torn: true, tracked: Arc::new(tracked), ..Staged::default() })
}

/// Every file of a commit or tree.
pub(super) fn files_of(call: Call, tree: &Oid) -> Result<Vec<Change>, GitError> {
    let words = ["ls-tree", "-r", "-z", "--full-tree", tree.as_str()];
    let answer = call.args(&words).run()?;
    let read = |part: &[u8]| {
        let cut = part.iter().position(|&byte| byte == b'\t')?;
        let mut words = part[..cut].split(|&byte| byte == b' ');
        let mode = Mode::parse(words.next()?)?;
        Some((part[cut + 1..].to_vec(), Some((mode, Id::parse(words.nth(1)?)?))))
    };
    let unknown = |part: &[u8]| GitError::unexpected("git ls-tree", names::shown(part));
    answer.parts().map(|part| read(part).ok_or_else(|| unknown(part))).collect()
}

/// An entry of an index.
struct Row {
    path: Vec<u8>,
    mode: Mode,
    id: Id,
    stage: u8,
    sparse: bool,
}

fn rows(call: Call) -> Result<Vec<Row>, GitError> {
    let answer = call.args(&["ls-files", "-z", "-t", "--stage"]).run()?;
    // `<tag> <mode> <id> <stage>\t<path>`
    let read = |part: &[u8]| {
        let cut = part.iter().position(|&byte| byte == b'\t')?;
        let words: Vec<&[u8]> = part[..cut].split(|&byte| byte == b' ').collect();
        let &[tag, mode, id, &[stage]] = words.as_slice() else { return None };
        Some(Row {
            path: part[cut + 1..].to_vec(),
            mode: Mode::parse(mode)?,
            id: Id::parse(id)?,
            stage: stage - b'0',
            sparse: tag == b"S",
        })
    };
    let unknown = |part: &[u8]| GitError::unexpected("git ls-files", names::shown(part));
    answer.parts().map(|part| read(part).ok_or_else(|| unknown(part))).collect()
}
