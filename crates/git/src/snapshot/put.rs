//! Puts a snapshot back where somebody may have worked since, without losing any of it. What is there
//! now has a snapshot of its own; a file is replaced or removed only while it is as that one has it, and
//! anything else is moved aside. From before the first file to after the last a journal in the
//! worktree's git directory says what is being done: whoever finds it finishes it, to the same result.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use piton_core::ids::Oid;
use serde::{Deserialize, Serialize};

use super::nofollow::Root;
use super::read::{Outcome, Reader, Sink};
use super::restore::{Header, put_index};
use super::stat_cache::{Known, key};
use super::write::{files_inside, write_files};
use crate::crash;
use crate::file;
use crate::file::{private, write_flushed};
use crate::repo::chain;
use crate::repo::hash::{Format, Id};
use crate::repo::pack::Mode;
use crate::repo::{GitError, Moved, flush, is_missing, locks, names};
use crate::worktree::{Quarantine, Worktree};

const JOURNAL: &str = "piton-restoring.json";
const VERSION: u32 = 1;

/// What is put where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Putting {
    /// The snapshot of what is there now.
    pub from: Oid,
    /// The snapshot that is put back.
    pub to: Oid,
    /// Only these files and folders; everything when there are none.
    #[serde(with = "names::as_hex")]
    pub paths: Vec<Vec<u8>>,
    /// The branch that is checked out and goes back with the files, and so does the index; without one
    /// neither moves.
    pub branch: Option<String>,
}

/// What putting back did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PutBack {
    pub written: Vec<String>,
    pub removed: Vec<String>,
    /// Where files are that were in the way and in no snapshot.
    pub aside: Option<PathBuf>,
}

/// How putting back failed.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    #[error("nothing was changed: what was put back was taken back")]
    TakenBack(#[source] GitError),
    #[error("putting back was cut short, and so was taking it back ({back})")]
    Torn {
        #[source]
        source: GitError,
        back: String,
    },
}

/// The journal.
#[derive(Serialize, Deserialize)]
struct Written {
    v: u32,
    #[serde(flatten)]
    putting: Putting,
}

/// Held while something is put into a worktree: one at a time, and no attempt is prepared meanwhile.
pub fn lock_tree(tree: &Worktree) -> Result<File, GitError> {
    let folder = tree.git().state_dir().join("restoring");
    locks::private_dir(&folder)?;
    let path = folder.join(key(tree.path()));
    let locked = private(&path).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|source| GitError::io("lock", &path, source))
}

/// Puts back; a failure is taken back. Nothing may run in the tree, and [`lock_tree`] is held.
pub fn put_back(tree: &Worktree, putting: &Putting) -> Result<PutBack, PutError> {
    let untouched = PutError::TakenBack;
    let dir = tree.git_dir().map_err(untouched)?;
    write_journal(&dir, putting).map_err(untouched)?;
    crash::point("restore.intended");
    let failure = match act(tree, &dir, putting) {
        Ok(done) => return Ok(done),
        Err(failure) => failure,
    };
    let Putting { from, to, paths, branch } = putting.clone();
    let back = Putting { from: to, to: from, paths, branch };
    let undone = write_journal(&dir, &back).and_then(|()| act(tree, &dir, &back));
    Err(match undone {
        Ok(_) => PutError::TakenBack(failure),
        Err(back) => PutError::Torn { source: failure, back: chain(&back) },
    })
}

/// Finishes what somebody began and could not finish; nothing when there is nothing.
pub fn finish_putting(tree: &Worktree) -> Result<Option<(Putting, PutBack)>, GitError> {
    let Ok(dir) = tree.git_dir() else { return Ok(None) };
    let Some(putting) = read_journal(&dir)? else { return Ok(None) };
    act(tree, &dir, &putting).map(|done| Some((putting, done)))
}

fn act(tree: &Worktree, dir: &Path, putting: &Putting) -> Result<PutBack, GitError> {
    let mut putter = Putter::new(tree, dir, putting)?;
    putter.files()?;
    crash::point("restore.files-put");
    if let Some(branch) = &putting.branch {
        putter.place(branch)?;
    }
    flush::files(tree.path())?;
    crash::point("restore.flushed");
    remove_journal(dir)?;
    Ok(putter.done())
}

/// A file on either side.
type PutEntry = Option<(Mode, Id)>;

/// A worktree that something is put into.
struct Putter<'a> {
    tree: &'a Worktree,
    dir: &'a Path,
    root: Root,
    from: Header,
    to: Header,
    /// What differs, and is meant.
    changes: BTreeMap<Vec<u8>, (PutEntry, PutEntry)>,
    whole: bool,
    format: Format,
    aside: Quarantine,
    done: PutBack,
}

impl Putter<'_> {
    fn new<'a>(
        tree: &'a Worktree,
        dir: &'a Path,
        putting: &Putting,
    ) -> Result<Putter<'a>, GitError> {
        let mut changes: BTreeMap<Vec<u8>, (PutEntry, PutEntry)> = BTreeMap::new();
        for (path, entry) in files_inside(tree.call_in(dir), &putting.from)? {
            changes.entry(path).or_default().0 = Some(entry);
        }
        for (path, entry) in files_inside(tree.call_in(dir), &putting.to)? {
            changes.entry(path).or_default().1 = Some(entry);
        }
        changes.retain(|path, (from, to)| from != to && is_meant(path, &putting.paths));
        let root = Root::open(tree.path());
        let root = root.map_err(|source| GitError::io("look into", tree.path(), source))?;
        Ok(Putter {
            tree,
            dir,
            root,
            from: Header::read(tree.git(), &putting.from)?,
            to: Header::read(tree.git(), &putting.to)?,
            changes,
            whole: putting.paths.is_empty(),
            format: Format::of(&putting.to),
            aside: Quarantine::default(),
            done: PutBack::default(),
        })
    }

    fn files(&mut self) -> Result<(), GitError> {
        let changes = std::mem::take(&mut self.changes);
        let is_file = |entry: &PutEntry| entry.is_some_and(|(mode, _)| mode != Mode::Gitlink);
        let touched = changes.iter().filter(|(_, (from, to))| is_file(from) || is_file(to));
        let paths: Vec<Vec<u8>> = touched.map(|(path, _)| path.clone()).collect();
        let (known, sink) = (Known::default(), Sink::nowhere());
        let (format, began) = (self.format, SystemTime::now());
        let read = Reader { root: &self.root, known: &known, format, began, sink: &sink };
        let found: Vec<(Vec<u8>, Outcome)> = paths.iter().cloned().zip(read.all(&paths)).collect();
        for (path, found) in found.iter().filter(|(path, _)| !is_file(&changes[path].1)) {
            self.remove(path, changes[path].0, found)?;
        }
        let mut wanted = Vec::new();
        for (path, found) in &found {
            if let (from, Some((mode, id))) = changes[path]
                && mode != Mode::Gitlink
                && !is(found, Some((mode, id)))
            {
                if !is(found, from) {
                    self.aside.clear(self.tree, &names::path(path))?;
                }
                wanted.push((path.as_slice(), mode, id));
            }
        }
        let written = &mut self.done.written;
        write_files(self.tree.git(), &self.root, &wanted, |path| {
            written.push(names::shown(path));
            crash::point("restore.file");
        })?;
        for (path, (_, to)) in &changes {
            if to.is_some_and(|(mode, _)| mode == Mode::Gitlink) {
                let _something_is_there = self.root.make_folder(path);
            }
        }
        if self.whole {
            self.empty_folders();
        }
        Ok(())
    }

    /// Removes a file that is as the snapshot of before has it; another one is moved aside.
    fn remove(&mut self, path: &[u8], from: PutEntry, found: &Outcome) -> Result<(), GitError> {
        let name = names::path(path);
        match found {
            Ok(None) => return Ok(()),
            found if is(found, from) => {
                let removed = self.root.spot(path).and_then(|spot| spot.remove());
                removed.map_err(|source| GitError::io("remove", &name, source))?;
            }
            _ => self.aside.put(self.tree, &name)?,
        }
        self.root.remove_empty_above(path);
        self.done.removed.push(names::shown(path));
        crash::point("restore.file");
        Ok(())
    }

    /// Best effort: a folder without files is nobody's work.
    fn empty_folders(&self) {
        let wanted: Vec<PathBuf> =
            self.to.empty_folders().filter(|path| names::is_inside(path)).collect();
        for folder in self.from.empty_folders().filter(|path| names::is_inside(path)) {
            if !wanted.iter().any(|wanted| wanted.starts_with(&folder)) {
                self.root.remove_empty_above(names::bytes(&folder.join("within")));
            }
        }
        for folder in wanted {
            let _something_is_there = self.root.make_folder(names::bytes(&folder));
        }
    }

    /// The index and the branch.
    fn place(&self, branch: &str) -> Result<(), GitError> {
        self.tree.clear_locks(self.dir)?;
        self.tree.end_operations(self.dir)?;
        put_index(self.tree, self.dir, &self.to)?;
        crash::point("restore.index-put");
        let (Some(from), Some(to)) = (self.from.parents.first(), self.to.parents.first()) else {
            return Ok(());
        };
        if from == to {
            return Ok(());
        }
        let refname = format!("refs/heads/{branch}");
        let why = "piton: restored a snapshot";
        match self.tree.git().move_ref(&refname, to, Some(from), why)? {
            Moved::Moved => {}
            Moved::Lost { current } if current.as_ref() == Some(to) => {}
            Moved::Lost { current: Some(current) } => {
                return Err(GitError::RefTaken { refname, current });
            }
            Moved::Lost { current: None } => return Err(GitError::NoRef { refname }),
        }
        crash::point("restore.head-moved");
        Ok(())
    }

    fn done(self) -> PutBack {
        PutBack { aside: self.aside.place().map(Path::to_owned), ..self.done }
    }
}

/// Whether a file was found to be as an entry has it.
fn is(found: &Outcome, entry: PutEntry) -> bool {
    match found {
        Ok(Some(found)) => !found.torn && Some((found.mode, found.id)) == entry,
        Ok(None) => entry.is_none(),
        Err(_) => false,
    }
}

/// Whether a path is one of those that were named, or below one.
pub fn is_meant(path: &[u8], paths: &[Vec<u8>]) -> bool {
    paths.is_empty() || paths.iter().any(|named| super::walk::is_within(path, named))
}

fn write_journal(dir: &Path, putting: &Putting) -> Result<(), GitError> {
    let path = dir.join(JOURNAL);
    let written = write_flushed(&path, &Written { v: VERSION, putting: putting.clone() });
    written.map_err(|source| GitError::io("write", &path, source))
}

fn read_journal(dir: &Path) -> Result<Option<Putting>, GitError> {
    let path = dir.join(JOURNAL);
    let text = match file::read(&path) {
        Ok(text) => text,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(source) => return Err(GitError::io("read", &path, source)),
    };
    match serde_json::from_slice(&text) {
        Ok(Written { v: VERSION, putting }) => Ok(Some(putting)),
        _ => Err(GitError::unexpected(JOURNAL, "it is torn, or of a newer piton")),
    }
}

fn remove_journal(dir: &Path) -> Result<(), GitError> {
    let path = dir.join(JOURNAL);
    match fs::remove_file(&path) {
        Err(error) if !is_missing(&error) => return Err(GitError::io("remove", &path, error)),
        _ => {}
    }
    flush::sync(dir)
}
