//! Snapshots: a commit of everything in a worktree that is not ignored, under a piton ref, while
//! HEAD, index, branch and files stay as they are. Files are kept byte for byte, no filter runs, and
//! one bad path never costs the rest: what could not be kept is listed. The first parent is HEAD, or an
//! empty commit where there is none yet; where something is staged, the second is a commit of the index;
//! where there are conflicts, the third has their sides; where git was in the middle of something, the
//! others are what that was about.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use piton_core::event::{Omission, Snapshot, SnapshotReason};
use piton_core::ids::Oid;
use piton_core::limits::OMISSIONS_MAX;

use crate::repo::hash::Format;
use crate::repo::keep::{TRIES, check, is_about_an_object};
use crate::repo::pack::{Change, Entry, Mode, Packed, Parent, Start, Turn};
use crate::repo::{Call, Git, GitError, flush, names};
use crate::worktree::{Worktree, differing, is_unfinished};

mod branch;
mod compare;
mod export;
mod glob;
mod held;
mod ignore;
mod keep;
mod nofollow;
mod operation;
mod packs;
mod put;
mod read;
mod restore;
mod staged;
mod stat_cache;
mod unsnapshotable;
mod walk;
mod write;

pub use branch::Template;
pub use branch::{show_as, shown_at};
pub use compare::{
    ChangeKind, Difference, FileChange, between, changed_paths, unkept_edits, with_files,
};
pub use export::{export, has_path};
pub use held::{Beyond, beyond, held_by, unsnapshotable};
pub use keep::keep;
pub use keep::{newest, numbered};
pub use operation::Begun;
pub use packs::{consolidate, sweep};
pub use put::is_meant;
pub use put::{PutBack, PutError, Putting, finish_putting, lock_tree, put_back};
pub use restore::{describe, operation, read_back, rebuild};
pub use unsnapshotable::{MovedOut, has_omitted, moved_out, set_aside};

use ignore::Rules;
use nofollow::Root;
use read::{CHANGING, Reader, Sink};
use staged::{Staged, digest_between, files_of};
use stat_cache::{Base, Differing, Known, KnownFile};
use walk::{Ground, LeftOut, Nested, NestedIndexes, Seen};

/// Empty folders named in a snapshot's message; git's trees have none.
const EMPTY_FOLDERS_MAX: usize = 200;
/// What another process may have to read again because the file of what is known was not renewed: a
/// share of all files, and never fewer than this.
const UNSAVED_MIN: usize = 64;
const UNSAVED_SHARE: usize = 16;
/// After so many failures what is staged is held to be what fails.
const STAGED_TURNS: usize = 3;

/// Trailers of a snapshot's message.
const PREVIOUS: &str = "Piton-Previous";
const NESTED: &str = "Piton-Nested";
const EMPTY_FOLDER: &str = "Piton-Empty-Folder";
const LEFT_OUT: &str = "Piton-Left-Out";

/// What is asked of a snapshot.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The refs of one claim's snapshots, `refs/piton/<run>/<step>/<fence>`; numbers end them.
    pub folder: String,
    /// The step's base, against which changed paths are counted; HEAD when there is none.
    pub base: Option<Oid>,
    pub message: String,
    pub reason: SnapshotReason,
    /// The tree of the last kept snapshot: nothing is kept when files, HEAD and index are the same.
    pub last: Option<Oid>,
}

/// What is remembered of a worktree from snapshot to snapshot.
#[derive(Default)]
struct Memory {
    base: Option<Base>,
    known: Known,
    staged: Staged,
    indexes: NestedIndexes,
    differing: Option<Differing>,
    /// Files of which another process does not know.
    unsaved: Option<usize>,
}

/// The worktrees that this process has taken snapshots of.
static MEMORY: Mutex<BTreeMap<PathBuf, Memory>> = Mutex::new(BTreeMap::new());

/// Takes a snapshot under a number that must be free; `None` when there is nothing new, and of a worktree
/// that is half made or half restored. When it returns, the snapshot is on disk.
pub fn take(tree: &Worktree, ask: &Ask, number: u64) -> Result<Option<Snapshot>, GitError> {
    let refname = format!("{}/{number}", ask.folder);
    let dir = tree.git_dir()?;
    if is_unfinished(&dir) {
        return Ok(None);
    }
    let head = tree.head_in(&dir)?.commit;
    let mut failure = None;
    for turn in 0..TRIES {
        if let Some(current) = tree.git().ref_target(&refname)? {
            return Err(GitError::RefTaken { refname, current });
        }
        let mut memory = if turn == 0 { Memory::recall(tree) } else { Memory::default() };
        let taking = Taking { tree, dir: &dir, head: head.as_ref(), turn };
        match taking.once(&mut memory, ask, &refname) {
            Ok(taken) => {
                memory.keep(tree);
                return Ok(taken);
            }
            // A gc took something, or a lock stood in the way: again, and from the start.
            Err(error) => failure = Some(taking.excused(error, &refname)?),
        }
    }
    Err(failure.expect("every try ended with a failure"))
}

impl Memory {
    /// What this process knows of a worktree, or else what another one has left. Its ids count only
    /// while the snapshot that has them is there.
    fn recall(tree: &Worktree) -> Memory {
        let memories = || MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
        let remembered = memories().remove(tree.path());
        // What is known of HEAD's files alone counts on nothing.
        let is_good = |memory: &Memory| memory.base.is_none() || memory.is_held(tree.git());
        let memory = remembered.filter(is_good);
        memory.unwrap_or_else(|| {
            let loaded = stat_cache::load(&stat_cache::file(tree.git(), tree.path()));
            let memory = loaded.map(|(base, known)| Memory {
                base: Some(base),
                known,
                unsaved: Some(0),
                ..Memory::default()
            });
            memory.filter(|memory| memory.is_held(tree.git())).unwrap_or_default()
        })
    }

    fn is_held(&self, git: &Git) -> bool {
        self.base.as_ref().is_some_and(|base| {
            git.ref_target(&base.refname).is_ok_and(|found| found.as_ref() == Some(&base.commit))
        })
    }

    fn keep(mut self, tree: &Worktree) {
        let Some(base) = &self.base else { return };
        let limit = UNSAVED_MIN.max(self.known.len() / UNSAVED_SHARE);
        if self.unsaved.is_none_or(|unsaved| unsaved > limit) {
            let path = stat_cache::file(tree.git(), tree.path());
            // It only saves time.
            self.unsaved = stat_cache::save(&path, base, &self.known).ok().map(|()| 0);
        }
        let mut memories = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
        memories.insert(tree.path().to_owned(), self);
    }
}

/// One snapshot being taken.
struct Taking<'a> {
    tree: &'a Worktree,
    dir: &'a Path,
    head: Option<&'a Oid>,
    /// How often it failed because objects that it counted on are gone: from the first time on none but
    /// HEAD's are counted on, in the end not even what is staged.
    turn: usize,
}

/// What the worktree has that the base has not.
struct Capture {
    changes: Vec<Change>,
    left_out: Vec<LeftOut>,
    nested: Vec<Nested>,
    trailers: Vec<String>,
}

impl Taking<'_> {
    fn call(&self) -> Call {
        self.tree.call_in(self.dir)
    }

    fn once(
        &self,
        memory: &mut Memory,
        ask: &Ask,
        refname: &str,
    ) -> Result<Option<Snapshot>, GitError> {
        let git = self.tree.git();
        let news = memory.staged.refresh(self.tree, self.dir, self.head)?;
        memory.staged.torn |= self.turn >= STAGED_TURNS;
        if self.start(memory, ask)? || news {
            memory.known.mark_tracked(memory.staged.tracked.paths());
        }
        let sink = Sink::pack(git, refname, Turn(self.turn));
        let mut capture = self.capture(memory, &sink)?;
        let operation = Begun::in_dir(self.dir).map(|begun| begun.known_to(git));
        capture.trailers.extend(operation.as_ref().map(Begun::trailer));
        let staged = match &operation {
            Some(begun) => format!("{} {}", memory.staged.digest(), begun.digest()),
            None => memory.staged.digest(),
        };
        if capture.changes.is_empty() && self.is_kept(memory, &staged, ask) {
            return Ok(None);
        }
        let counted = self.counted(memory, ask)?;
        if news {
            // HEAD and index may stand on what the agent's git wrote a moment ago.
            flush::objects(git)?;
        }
        let mut pack = sink.into_pack()?;
        let message = message(ask, memory, &capture);
        let changes = capture.changes.as_slice();
        let parent = match self.head {
            Some(head) => Parent::Commit(head),
            None => pack.root("unborn", &[]),
        };
        let start = memory.base.as_ref().map_or(Start::Parent, |base| Start::Tree(&base.tree));
        let staged_now = Some(&memory.staged).filter(|staged| !staged.torn);
        let (changes_of, sides_of) = staged_now.map_or((&[][..], &[][..]), |staged| {
            (staged.changes.as_slice(), staged.sides.as_slice())
        });
        // A parent is known by its place: before the last ones none is left out.
        let all = operation.is_some();
        let staging = (all || !changes_of.is_empty()).then(|| {
            let (start, changes) = (Start::Parent, changes_of);
            pack.side(&Entry { message: "index", parent, start, changes })
        });
        let sides = (all || !sides_of.is_empty()).then(|| pack.root("conflicts", sides_of));
        let begun = operation.iter().flat_map(Begun::commits).map(Parent::Commit);
        let merges: Vec<Parent<'_>> = staging.into_iter().chain(sides).chain(begun).collect();
        pack.commit(&Entry { message: &message, parent, start, changes }, &merges);
        if let Some(from) = &counted {
            pack.ask(from, changes.iter().map(|(path, _)| path.as_slice()));
        }
        let packed = pack.finish()?;
        self.verify(memory, &packed, news).inspect_err(|_| {
            // Whatever is wrong with it, nobody must find it.
            let _the_next_name_is_as_good = git.drop_ref(refname);
        })?;
        let head = self.head.cloned();
        let snapshot =
            Snapshot { head: head.clone(), ..snapshot((ask, refname), memory, &capture, packed) };
        let (commit, tree) = (snapshot.commit.clone(), snapshot.tree.clone());
        let refname = refname.to_owned();
        memory.unsaved = memory.unsaved.map(|unsaved| unsaved + capture.changes.len());
        memory.base = Some(Base { refname, commit, tree, head, staged });
        Ok(Some(snapshot))
    }

    /// What to compare with: the step's last snapshot, whoever took it; else the one that is remembered;
    /// else HEAD. Says whether that is another one than before.
    fn start(&self, memory: &mut Memory, ask: &Ask) -> Result<bool, GitError> {
        let remembered = memory.base.as_ref().map(|base| &base.tree);
        let last = ask.last.as_ref().filter(|last| self.turn == 0 && remembered != Some(last));
        let base = last.map(|last| self.find(last, &ask.folder)).transpose()?.flatten();
        let from = match (&base, remembered, self.head) {
            (Some(base), _, _) => &base.tree,
            (None, None, Some(head)) => head,
            _ => return Ok(false),
        };
        memory.known = Known::of(files_of(self.call(), from)?, &memory.known);
        memory.differing = None;
        memory.base = base;
        Ok(true)
    }

    /// A snapshot of this step with this tree.
    fn find(&self, tree: &Oid, folder: &str) -> Result<Option<Base>, GitError> {
        let format = "--format=%(tree) %(objectname) %(refname) %(parent)";
        let step = step_of(folder);
        let answer = self.tree.git().call().args(&["for-each-ref", format, "--", step]).run()?;
        let read = |row: &str| {
            let words: Vec<&str> = row.split(' ').filter(|word| !word.is_empty()).collect();
            let (&[of, commit, refname], parents) = words.split_first_chunk::<3>()?;
            let parents: Result<Vec<Oid>, _> = parents.iter().map(|id| Oid::new(*id)).collect();
            let commit = Oid::new(commit).ok().filter(|_| of == tree.as_str())?;
            Some((refname.to_owned(), commit, parents.ok()?))
        };
        let found: Vec<_> = answer.text("git for-each-ref")?.lines().filter_map(read).collect();
        let same_head = found.iter().position(|(_, _, parents)| parents.first() == self.head);
        let Some((refname, commit, parents)) = found.into_iter().nth(same_head.unwrap_or(0)) else {
            return Ok(None);
        };
        let staged = match parents.as_slice() {
            [head, index, more @ ..] => {
                digest_between(|| self.call(), (head, index), more.first())?
            }
            _ => Staged::default().digest(),
        };
        let (tree, head) = (tree.clone(), parents.into_iter().next());
        Ok(Some(Base { refname, commit, tree, head, staged }))
    }

    /// Whether the step's last snapshot is of the same HEAD and index: the same files on another commit
    /// are worth a snapshot, because a rebuilt worktree starts from its parents.
    fn is_kept(&self, memory: &Memory, staged: &str, ask: &Ask) -> bool {
        memory.base.as_ref().is_some_and(|base| {
            ask.last.as_ref() == Some(&base.tree)
                && base.head.as_ref() == self.head
                && base.staged == staged
                && is_within(&base.refname, step_of(&ask.folder))
        })
    }

    /// Looks at the worktree, reads what is new, and brings what is known up to it.
    fn capture(&self, memory: &mut Memory, sink: &Sink<'_>) -> Result<Capture, GitError> {
        let began = SystemTime::now();
        let Memory { known, staged, indexes, .. } = memory;
        let git = self.tree.git();
        let failed = |source| GitError::io("look into", self.tree.path(), source);
        let root = &Root::open(self.tree.path()).map_err(failed)?;
        let (tracked, user) = (&staged.tracked, &user_rules()?);
        let mut seen = walk::walk(&Ground { git, root, known, tracked, user, indexes })?;
        let format = format(self.tree, self.head);
        let read = Reader { root, known, format, began, sink }.all(&seen.unsure);
        let mut changes = Vec::new();
        let unsure = std::mem::take(&mut seen.unsure);
        for (path, outcome) in unsure.into_iter().zip(read) {
            match outcome {
                Ok(Some(found)) => {
                    if found.torn {
                        seen.left_out.push(LeftOut::new(&path, CHANGING));
                    }
                    let tracked = staged.tracked.has(&path);
                    let kept =
                        KnownFile { mode: found.mode, id: found.id, print: found.print, tracked };
                    put(known, path, kept, &mut changes);
                }
                Ok(None) => drop_known(known, path, &mut changes),
                Err(why) => seen.left_out.push(LeftOut { path, why }),
            }
        }
        for path in std::mem::take(&mut seen.gone) {
            drop_known(known, path, &mut changes);
        }
        for (path, mode, id) in &staged.tracked.sparse {
            if known.get(path).is_none() && root.spot(path).and_then(|spot| spot.look()).is_err() {
                let kept = KnownFile { mode: *mode, id: *id, print: None, tracked: true };
                put(known, path.clone(), kept, &mut changes);
            }
        }
        self.gitlinks(known, staged, &mut changes);
        let trailers = trailers(&mut seen);
        Ok(Capture { changes, left_out: seen.left_out, nested: seen.nested, trailers })
    }

    /// A nested repository that the index knows is kept as the pointer it is there, unless it has files.
    fn gitlinks(&self, known: &mut Known, staged: &Staged, changes: &mut Vec<Change>) {
        let is_bare = |path: &[u8]| {
            let list = fs::read_dir(self.tree.path().join(names::path(path)));
            list.is_ok_and(|mut list| !list.any(|e| e.is_ok_and(|e| e.file_name() != ".git")))
        };
        let links = staged.tracked.gitlinks.iter();
        let pointers: Vec<_> = links.filter(|(path, _)| is_bare(path)).collect();
        let stays = |path: &[u8]| pointers.iter().any(|(other, _)| other == path);
        let gone: Vec<Vec<u8>> = known.gitlinks().filter(|path| !stays(path)).collect();
        gone.into_iter().for_each(|path| drop_known(known, path, changes));
        for (path, id) in pointers {
            let mode = Mode::Gitlink;
            put(
                known,
                path.clone(),
                KnownFile { mode, id: *id, print: None, tracked: true },
                changes,
            );
        }
    }

    /// What is counted against; brings the counts up to the base of this snapshot, and to HEAD.
    fn counted(&self, memory: &mut Memory, ask: &Ask) -> Result<Option<Oid>, GitError> {
        let Some(from) = ask.base.as_ref().or(self.head) else { return Ok(None) };
        if memory.differing.as_ref().is_none_or(|differing| differing.from != *from) {
            let start = memory.base.as_ref().map(|base| &base.tree).or(self.head);
            let paths = match start {
                Some(start) if start != from => differing(self.call(), from, start)?,
                _ => Vec::new(),
            };
            let paths = paths.into_iter().collect();
            memory.differing = Some(Differing { from: from.clone(), paths, commits: None });
        }
        if let (Some(differing), Some(head)) = (&mut memory.differing, self.head)
            && differing.commits.as_ref().is_none_or(|(at, _)| at != head)
        {
            let count = self.tree.git().count_commits(from, head)?;
            differing.commits = Some((head.clone(), count));
        }
        Ok(Some(from.clone()))
    }

    /// Everything is there by construction when the new objects are all in the new pack and the rest
    /// is in a snapshot that still has its ref. Otherwise git looks.
    fn verify(&self, memory: &Memory, packed: &Packed, news: bool) -> Result<(), GitError> {
        let git = self.tree.git();
        if packed.alone && !news && memory.is_held(git) {
            return Ok(());
        }
        let others: Vec<String> = self.head.iter().map(|head| head.to_string()).collect();
        check(git, &packed.commit, &others)
    }

    /// Whether a failure is worth another try.
    fn excused(&self, error: GitError, refname: &str) -> Result<GitError, GitError> {
        let git = self.tree.git();
        if let Ok(Some(current)) = git.ref_target(refname) {
            return Err(GitError::RefTaken { refname: refname.to_owned(), current });
        }
        match &error {
            GitError::Failed { stderr, .. } if stderr.contains(".lock': File exists") => {
                let again = GitError::unexpected("git fast-import", stderr.clone());
                git.clear_ref_locks(refname, error).map(|()| again)
            }
            // A prune takes the file away into which the pack is written; an object may be gone; an equal
            // pack may just be held by another process.
            GitError::Failed { stderr, .. }
                if says(
                    stderr,
                    &["tmp_", " not found: ", "cannot create keep", "cannot store"],
                ) =>
            {
                Ok(error)
            }
            error_about if is_about_an_object(error_about) => Ok(error),
            _ => Err(error),
        }
    }
}

fn message(ask: &Ask, memory: &Memory, capture: &Capture) -> String {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(memory.base.as_ref().map(|base| format!("{PREVIOUS}: {}", base.commit)));
    lines.extend(capture.trailers.iter().cloned());
    // So that it is also known where nothing was recorded.
    let row = |left: Omission| match left.path.as_str() {
        "" => format!("{LEFT_OUT}: {}", left.why),
        path => format!("{LEFT_OUT}: {} {}", quoted(path.as_bytes()), left.why.replace('\n', " ")),
    };
    lines.extend(omissions(left_out(memory, capture)).into_iter().map(row));
    let message = ask.message.trim_end();
    let gap = if message.contains("\n\n") { "\n" } else { "\n\n" };
    match lines.is_empty() {
        true => message.to_owned(),
        false => format!("{message}{gap}{}", lines.join("\n")),
    }
}

fn snapshot(
    (ask, refname): (&Ask, &str),
    memory: &mut Memory,
    capture: &Capture,
    packed: Packed,
) -> Snapshot {
    let (mut changed, mut commits) = (0, 0);
    if let Some(differing) = &mut memory.differing {
        for ((path, now), then) in capture.changes.iter().zip(&packed.found) {
            match now == then {
                true => differing.paths.remove(path),
                false => differing.paths.insert(path.clone()),
            };
        }
        changed = differing.paths.len() as u64;
        commits = differing.commits.as_ref().map_or(0, |(_, count)| *count);
    }
    let refname = refname.to_owned();
    let (reason, omitted) = (ask.reason, omissions(left_out(memory, capture)));
    let Packed { commit, tree, .. } = packed;
    Snapshot { commit, tree, refname, changed, omitted, reason, head: None, commits }
}

/// Everything that a snapshot has not, sorted, once each.
fn left_out(memory: &Memory, capture: &Capture) -> Vec<LeftOut> {
    let mut left_out = capture.left_out.clone();
    if memory.staged.torn {
        let why = "it or what it names cannot be read: what was staged is not kept";
        left_out.push(LeftOut::new(b".git/index", why));
    }
    left_out.sort();
    left_out.dedup_by(|a, b| a.path == b.path);
    left_out
}

fn says(text: &str, signs: &[&str]) -> bool {
    signs.iter().any(|sign| text.contains(sign))
}

fn put(known: &mut Known, path: Vec<u8>, kept: KnownFile, changes: &mut Vec<Change>) {
    let now = (kept.mode, kept.id);
    let changed = known.get(&path).is_none_or(|before| (before.mode, before.id) != now);
    known.set(&path, kept);
    if changed {
        changes.push((path, Some(now)));
    }
}

fn drop_known(known: &mut Known, path: Vec<u8>, changes: &mut Vec<Change>) {
    if known.get(&path).is_some() {
        known.remove(&path);
        changes.push((path, None));
    }
}

/// The folder of a step's refs, from that of a claim.
pub fn step_of(folder: &str) -> &str {
    folder.rsplit_once('/').map_or(folder, |(step, _)| step)
}

fn is_within(refname: &str, folder: &str) -> bool {
    refname.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

fn format(tree: &Worktree, head: Option<&Oid>) -> Format {
    head.map(Format::of).unwrap_or_else(|| {
        let asked = tree.git().call().args(&["rev-parse", "--show-object-format"]);
        match asked.line().is_ok_and(|format| format == "sha256") {
            true => Format::Sha256,
            false => Format::Sha1,
        }
    })
}

/// The user's own excludes; the repository cannot name another file. Asked for once.
fn user_rules() -> Result<Arc<Rules>, GitError> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let path = match FOUND.get() {
        Some(path) => path,
        None => {
            let words = ["config", "-z", "--type=path", "--get", "core.excludesFile"];
            let answer = Call::new(Path::new("/")).args(&words).accept(&[0, 1]).run()?;
            let set = answer.parts().next().map(names::path);
            FOUND.get_or_init(|| set.unwrap_or_else(default_excludes))
        }
    };
    Ok(Arc::new(walk::excludes(path)))
}

fn default_excludes() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let config = set("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".config")));
    config.unwrap_or_default().join("git/ignore")
}

fn quoted(path: &[u8]) -> String {
    String::from_utf8_lossy(&names::quoted(path)).into_owned()
}

/// What a tree cannot say, for the message. A list that is too long is left out, and says so.
fn trailers(seen: &mut Seen) -> Vec<String> {
    seen.nested.sort();
    seen.empty.sort();
    let mut lines = Vec::new();
    for nested in &seen.nested {
        let head = nested.head.as_ref().map_or("no commit", Oid::as_str);
        lines.push(format!("{NESTED}: {head} {}", quoted(&nested.path)));
        if let Some(why) = nested.unkept {
            seen.left_out.push(LeftOut::new(&stat_cache::join(&nested.path, b".git"), why));
        }
    }
    let text = |path: &&Vec<u8>| std::str::from_utf8(path).is_ok();
    let (named, unnamed): (Vec<_>, Vec<_>) = seen.empty.iter().partition(text);
    lines.extend(
        named
            .iter()
            .take(EMPTY_FOLDERS_MAX)
            .map(|path| format!("{EMPTY_FOLDER}: {}", quoted(path))),
    );
    let more = named.into_iter().skip(EMPTY_FOLDERS_MAX).chain(unnamed);
    seen.left_out.extend(more.map(|path| LeftOut::new(path, "an empty folder")));
    lines
}

/// What a commit of everything has nothing of, as it is told.
pub fn apart(tree: &Worktree, repositories: Vec<Vec<u8>>) -> Vec<Omission> {
    let told = |path: Vec<u8>| {
        let why = match tree.has_worktree_at(&names::path(&path)) {
            true => "another worktree of this repository",
            false => "a repository of its own",
        };
        LeftOut::new(&path, why)
    };
    omissions(repositories.into_iter().map(told).collect())
}

/// Not more than an event may hold.
fn omissions(mut left_out: Vec<LeftOut>) -> Vec<Omission> {
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
