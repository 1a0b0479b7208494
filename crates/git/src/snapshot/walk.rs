//! Walks a worktree: every file that is not ignored, every tracked one even if it is. Several threads
//! share one stack of folders. One bad path never costs the rest; what cannot be kept is listed. Knows
//! nothing of objects: it says which files look other than they did.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use piton_core::ids::Oid;
use rustix::fs::{Dir, DirEntry, FileType, Stat};

use super::ignore::{Level, Rules};
use super::nofollow::{self, Root, is_gone};
use super::staged::TrackedPaths;
use super::stat_cache::{CachedFolder, Known, Print, join};
use crate::repo::{Call, Git, GitError, names, plain};

/// The largest file a snapshot copies: every copy of it stays in the repository.
pub(super) const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// The largest file of ignore rules that is read.
const RULES_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// More threads only wait for each other.
const THREADS_MAX: usize = 8;

/// A path that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeftOut {
    pub(super) path: Vec<u8>,
    pub(super) why: String,
}

impl LeftOut {
    pub(super) fn new(path: &[u8], why: impl Into<String>) -> LeftOut {
        LeftOut { path: path.to_vec(), why: why.into() }
    }
}

/// A repository within the worktree, whose files are walked like others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nested {
    pub(super) path: Vec<u8>,
    pub(super) head: Option<Oid>,
    /// Why its `.git` is in no snapshot, although it is in the worktree.
    pub(super) unkept: Option<&'static str>,
    /// The repository around it tracks files below: to git its folder is one like others, and only its
    /// `.git` is its own.
    pub(super) shared: bool,
}

/// What is walked, and what is known of it.
pub(super) struct Ground<'a> {
    pub(super) git: &'a Git,
    pub(super) root: &'a Root,
    pub(super) known: &'a Known,
    pub(super) tracked: &'a Arc<TrackedPaths>,
    /// The user's own excludes.
    pub(super) user: &'a Arc<Rules>,
    pub(super) indexes: &'a NestedIndexes,
}

/// What nested repositories track, by their index file.
#[derive(Debug, Default)]
pub(super) struct NestedIndexes(Mutex<HashMap<PathBuf, NestedIndex>>);

/// How an index looked, and what it had.
type NestedIndex = (Option<Print>, Arc<TrackedPaths>);

/// What a walk saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Files that are new or look other than they did.
    pub(super) unsure: Vec<Vec<u8>>,
    /// Known files that are no longer there, or are ignored now.
    pub(super) gone: Vec<Vec<u8>>,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) nested: Vec<Nested>,
    pub(super) empty: Vec<Vec<u8>>,
    visited: Vec<usize>,
}

/// Rules and index that apply to a folder.
struct Scope {
    /// How many bytes of a path lead to the repository, with the slash.
    base: usize,
    tracked: Arc<TrackedPaths>,
}

/// A folder to be looked at.
struct Job {
    folder: Vec<u8>,
    level: Arc<Level>,
    scope: Arc<Scope>,
    /// It is ignored, but something tracked is below.
    ignored: bool,
}

/// Walks. Only a root that cannot be listed is an error.
pub(super) fn walk(ground: &Ground<'_>) -> Result<Seen, GitError> {
    Listing::of(ground.root, b"")
        .map_err(|source| GitError::io("list", ground.root.path(), source))?;
    let own = excludes(&ground.git.common_dir().join("info/exclude"));
    let user = Level::new(ground.user.clone(), b"", None);
    let level = Level::new(Arc::new(own), b"", Some(user));
    let scope = Arc::new(Scope { base: 0, tracked: ground.tracked.clone() });
    let queue = Queue::new(Job { folder: Vec::new(), level, scope, ignored: false });
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(THREADS_MAX);
    let mut all = std::thread::scope(|scope| {
        let work = || {
            let mut seen = Seen::default();
            queue.work(|job| ground.visit(job, &mut seen));
            seen
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for other in others {
            all.add(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.miss(ground.known);
    all.gone.retain(|path| !ground.tracked.is_sparse(path));
    Ok(all)
}

impl Seen {
    fn add(&mut self, mut other: Seen) {
        self.unsure.append(&mut other.unsure);
        self.gone.append(&mut other.gone);
        self.left_out.append(&mut other.left_out);
        self.nested.append(&mut other.nested);
        self.empty.append(&mut other.empty);
        self.visited.append(&mut other.visited);
    }

    /// Everything in folders that were not met is gone, unless it could not be looked at.
    fn miss(&mut self, known: &Known) {
        let mut met = vec![false; known.folders.len()];
        self.visited.iter().for_each(|&at| met[at] = true);
        for (folder, _) in known.folders.iter().zip(&met).filter(|(_, met)| !**met) {
            let hidden = self.left_out.iter().any(|left| is_within(&folder.path, &left.path));
            if !hidden {
                let files = folder.files.iter().filter(|(_, kept)| !kept.is_gitlink());
                self.gone.extend(files.map(|(name, _)| join(&folder.path, name)));
            }
        }
    }
}

/// Whether a path is another one, or below it.
pub(super) fn is_within(path: &[u8], other: &[u8]) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

impl Ground<'_> {
    fn visit(&self, mut job: Job, seen: &mut Seen) -> Vec<Job> {
        let known = self.known.folder(&job.folder);
        let listing = match Listing::of(self.root, &job.folder) {
            Ok(listing) => listing,
            Err(error) if is_gone(&error) => return Vec::new(),
            Err(error) => {
                seen.left_out
                    .push(LeftOut::new(&job.folder, format!("it cannot be listed: {error}")));
                return Vec::new();
            }
        };
        let has = |name: &[u8]| listing.entries.iter().any(|it| it.file_name().to_bytes() == name);
        if has(b".git") && !job.folder.is_empty() {
            match self.enter(&job) {
                Some((_, _, nested)) if nested.shared => seen.nested.push(nested),
                Some((scope, level, nested)) => {
                    seen.nested.push(nested);
                    job = Job { scope, level, ignored: false, ..job };
                }
                None => {
                    seen.left_out
                        .push(LeftOut::new(&job.folder, "another worktree of this repository"));
                    return Vec::new();
                }
            }
        }
        seen.visited.extend(known);
        if listing.entries.is_empty() && !job.ignored && !job.folder.is_empty() {
            seen.empty.push(job.folder.clone());
        }
        if has(b".gitignore") && !job.ignored {
            let found = listing.read(c".gitignore");
            let found = rules_in(found);
            if !found.is_empty() {
                job.level = Level::new(Arc::new(found), &job.folder, Some(job.level));
            }
        }
        self.sort(&job, known.map(|at| &self.known.folders[at]), &listing, seen)
    }

    /// Goes through a folder's entries; returns the folders among them.
    fn sort(
        &self,
        job: &Job,
        known: Option<&CachedFolder>,
        listing: &Listing,
        seen: &mut Seen,
    ) -> Vec<Job> {
        let mut met = vec![false; known.map_or(0, |folder| folder.files.len())];
        let mut folders = Vec::new();
        for entry in &listing.entries {
            let name = entry.file_name().to_bytes();
            if name == b".git" {
                continue;
            }
            let at = known.and_then(|folder| folder.find(name).ok());
            let kind = match listing.kind(entry) {
                Ok(kind) => kind,
                Err(error) if is_gone(&error) => continue,
                Err(error) => {
                    let path = join(&job.folder, name);
                    at.into_iter().for_each(|at| met[at] = true);
                    seen.left_out.push(LeftOut { path, why: cannot_look(&error) });
                    continue;
                }
            };
            let kept = at.and_then(|at| known.map(|folder| &folder.files[at].1));
            // What the index has is in, whatever the rules say: they are not even asked.
            let tracked = !kind.is_dir() && kept.is_some_and(|kept| kept.tracked);
            if let (true, Some(at), Some(kept)) = (tracked, at, kept)
                && let Ok(Some(print)) = listing.look(entry, kind)
                && kept.print == Some(print)
            {
                met[at] = true;
                continue;
            }
            let path = join(&job.folder, name);
            let ignored = !tracked && (job.ignored || job.level.ignores(&path, kind.is_dir()));
            if ignored && !job.scope.has(&path, kind.is_dir()) {
                continue;
            }
            if !names::is_allowed(name, kind.is_symlink()) {
                seen.left_out.push(LeftOut::new(&path, "git does not allow its name"));
                continue;
            }
            if kind.is_dir() {
                let (level, scope) = (job.level.clone(), job.scope.clone());
                folders.push(Job { folder: path, level, scope, ignored });
                continue;
            }
            match listing.look(entry, kind) {
                Ok(Some(print)) => {
                    at.into_iter().for_each(|at| met[at] = true);
                    if kept.is_none_or(|kept| kept.print != Some(print)) {
                        seen.unsure.push(path);
                    }
                }
                Ok(None) => {}
                Err(why) => {
                    at.into_iter().for_each(|at| met[at] = true);
                    seen.left_out.push(LeftOut { path, why });
                }
            }
        }
        for ((name, kept), met) in known.into_iter().flat_map(|folder| &folder.files).zip(met) {
            if !met && !kept.is_gitlink() {
                seen.gone.push(join(&job.folder, name));
            }
        }
        folders
    }

    /// The rules and the index of a nested repository; `None` when it is another worktree of this one.
    fn enter(&self, job: &Job) -> Option<(Arc<Scope>, Arc<Level>, Nested)> {
        let folder = self.root.path().join(names::path(&job.folder));
        let dirs = plain::git_dirs(&folder);
        let own = self.git.common_dir();
        if dirs.as_ref().is_some_and(|(_, common)| common == own) {
            return None;
        }
        let user = Level::new(self.user.clone(), &job.folder, None);
        let found = dirs.as_ref().map(|(_, common)| excludes(&common.join("info/exclude")));
        let level = Level::new(Arc::new(found.unwrap_or_default()), &job.folder, Some(user));
        let tracked = dirs.as_ref().map(|(dir, common)| self.indexes.tracked(&folder, dir, common));
        let scope = Scope { base: job.folder.len() + 1, tracked: tracked.unwrap_or_default() };
        let head = dirs.as_ref().and_then(|(dir, common)| head(&folder, dir, common));
        let unkept = match &dirs {
            Some((_, common)) if !common.starts_with(&folder) => None,
            Some((dir, common))
                if dir.join("HEAD").is_file() && common.join("objects").is_dir() =>
            {
                Some("the history of a nested repository: only its files are kept")
            }
            _ => Some("it is called .git and is no repository: git takes nothing of that name"),
        };
        let shared = job.scope.has_below(&job.folder);
        let nested = Nested { path: job.folder.clone(), head, unkept, shared };
        Some((Arc::new(scope), level, nested))
    }
}

impl Scope {
    fn has(&self, path: &[u8], is_folder: bool) -> bool {
        let own = path.get(self.base..).unwrap_or_default();
        self.tracked.has(own) || is_folder && self.has_below(path)
    }

    fn has_below(&self, folder: &[u8]) -> bool {
        self.tracked.has_below(folder.get(self.base..).unwrap_or_default())
    }
}

impl NestedIndexes {
    fn tracked(&self, folder: &Path, git_dir: &Path, common: &Path) -> Arc<TrackedPaths> {
        let index = git_dir.join("index");
        let print = fs::symlink_metadata(&index).ok().as_ref().map(Print::of);
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((same, tracked)) = known().get(&index)
            && *same == print
        {
            return tracked.clone();
        }
        let tracked = Arc::new(TrackedPaths::of(nested_call(folder, git_dir, common)));
        known().insert(index, (print, tracked.clone()));
        tracked
    }
}

fn nested_call(folder: &Path, git_dir: &Path, common: &Path) -> Call {
    let call = Call::new(folder).option("--git-dir=", git_dir).option("--work-tree=", folder);
    match git_dir == common {
        true => call,
        false => call.env("GIT_COMMON_DIR", common),
    }
}

fn head(folder: &Path, git_dir: &Path, common: &Path) -> Option<Oid> {
    if let Some((head, _)) = plain::head(git_dir, common) {
        return Some(head);
    }
    let call = nested_call(folder, git_dir, common);
    let asked = call.args(&["rev-parse", "--verify", "--quiet", "HEAD"]);
    asked.line().ok().and_then(|line| Oid::new(line).ok())
}

/// A folder's entries, and the folder itself to look at them from.
struct Listing {
    folder: OwnedFd,
    entries: Vec<DirEntry>,
}

impl Listing {
    fn of(root: &Root, folder: &[u8]) -> io::Result<Listing> {
        let folder = root.folder(folder)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                entries.push(entry);
            }
        }
        Ok(Listing { folder, entries })
    }

    fn kind(&self, entry: &DirEntry) -> io::Result<FileType> {
        match entry.file_type() {
            FileType::Unknown => {
                let found = nofollow::look(&self.folder, entry.file_name())?;
                Ok(FileType::from_raw_mode(found.st_mode))
            }
            kind => Ok(kind),
        }
    }

    /// How a file looks; `None` when it vanished; the error says why it cannot be kept.
    fn look(&self, entry: &DirEntry, kind: FileType) -> Result<Option<Print>, String> {
        if let Some(why) = special(kind) {
            return Err(why.to_owned());
        }
        let found = match nofollow::look(&self.folder, entry.file_name()) {
            Ok(found) => found,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(cannot_look(&error)),
        };
        unkept(&found).map_or_else(|| Ok(Some(Print::of_stat(&found))), Err)
    }

    fn read(&self, name: &std::ffi::CStr) -> io::Result<fs::File> {
        nofollow::read(&self.folder, name)
    }
}

/// Why something cannot be kept, whatever it holds.
pub(super) fn unkept(found: &Stat) -> Option<String> {
    let kind = FileType::from_raw_mode(found.st_mode);
    match special(kind) {
        Some(why) => Some(why.to_owned()),
        None if kind.is_file() && found.st_size as u64 > FILE_BYTES_MAX => Some(too_large()),
        None => None,
    }
}

fn too_large() -> String {
    format!("it is larger than {} MiB", FILE_BYTES_MAX >> 20)
}

fn cannot_look(error: &io::Error) -> String {
    format!("it cannot be looked at: {error}")
}

/// Why git cannot keep a file of this kind.
fn special(kind: FileType) -> Option<&'static str> {
    if kind.is_fifo() {
        Some("a FIFO, not a file")
    } else if kind.is_socket() {
        Some("a socket, not a file")
    } else if kind.is_block_device() || kind.is_char_device() {
        Some("a device, not a file")
    } else {
        None
    }
}

/// The user's or the repository's; unlike one in a folder it may be a link.
pub(super) fn excludes(path: &Path) -> Rules {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    rules_in(OpenOptions::new().read(true).custom_flags(flags).open(path))
}

/// The rules in a file; none where it is no file or cannot be read.
fn rules_in(file: io::Result<fs::File>) -> Rules {
    let mut text = Vec::new();
    let read = file.and_then(|file| {
        let is_file = file.metadata()?.is_file();
        file.take(if is_file { RULES_BYTES_MAX } else { 0 }).read_to_end(&mut text)
    });
    read.map_or_else(|_| Rules::default(), |_| Rules::parse(&text))
}

/// The folders still to be visited; it ends when there are none and nobody could find more.
struct Queue {
    state: Mutex<(Vec<Job>, usize)>,
    changed: Condvar,
}

impl Queue {
    fn new(first: Job) -> Queue {
        Queue { state: Mutex::new((vec![first], 0)), changed: Condvar::new() }
    }

    fn work(&self, mut visit: impl FnMut(Job) -> Vec<Job>) {
        while let Some(job) = self.next() {
            let _done = Done(self);
            let more = visit(job);
            if !more.is_empty() {
                self.state().0.extend(more);
                self.changed.notify_all();
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, (Vec<Job>, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.0.pop() {
                state.1 += 1;
                return Some(job);
            }
            if state.1 == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A visit that has ended, also by a panic: the others must not wait for it.
struct Done<'a>(&'a Queue);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.1 -= 1;
        if state.1 == 0 && state.0.is_empty() {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::stat_cache::KnownFile;
    use super::*;
    use crate::repo::hash::{Format, blob};
    use crate::repo::pack::Mode;

    /// Numbers that look random and are the same for a seed.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }

        fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
            of[self.below(of.len())]
        }

        fn some(&mut self, of: &[&str], most: usize) -> String {
            (0..=self.below(most)).map(|_| self.one(of)).collect()
        }
    }

    const NAMES: &[&str] = &[
        "a", "b", "ab", "ba", "a.o", "b.o", "x y", "-d", "[a]", "*", "!b", "#c", "B", "é", "a ",
        "]",
    ];
    const PIECES: &[&str] = &[
        "a",
        "b",
        "*",
        "**",
        "?",
        "/",
        "/",
        "*.o",
        "[ab]",
        "[!a]",
        "[^b-z]",
        "\\",
        " ",
        "#",
        "!",
        "x y",
        "[[:alpha:]]",
        "]",
        "[",
        "/**",
        "**/",
        "é",
        "B",
        "-",
        ".o",
        "[]a]",
    ];

    fn grow(dice: &mut Dice, folder: &Path, depth: usize) {
        for _ in 0..=dice.below(5) {
            let path = folder.join(dice.some(NAMES, 2));
            if depth > 0 && dice.below(3) > 0 {
                if fs::create_dir(&path).is_ok() {
                    grow(dice, &path, depth - 1);
                }
            } else if fs::symlink_metadata(&path).is_err() {
                fs::write(&path, "x").expect("writable");
            }
        }
        if dice.below(2) == 0 {
            fs::write(folder.join(".gitignore"), patterns(dice)).expect("writable");
        }
    }

    fn patterns(dice: &mut Dice) -> String {
        let line = |dice: &mut Dice| {
            let no = if dice.below(4) == 0 { "!" } else { "" };
            format!("{no}{}{}", dice.some(PIECES, 4), dice.one(&["\n", "\n", "\r\n", "/\n"]))
        };
        (0..=dice.below(5)).map(|_| line(dice)).collect()
    }

    /// Random trees under random rules, with some of what is ignored tracked: the files are git's.
    #[test]
    fn the_files_are_those_that_git_would_take() {
        let count = if std::env::var_os("PITON_FULL").is_some() { 3000 } else { 150 };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let git = Git::init(folder.path(), "empty").expect("made");
        for seed in 1..=count {
            let _there_is_none = fs::remove_file(git.common_dir().join("index"));
            for entry in fs::read_dir(git.here()).expect("a folder").flatten() {
                let path = entry.path();
                match entry.file_type().expect("known").is_dir() {
                    true if path == git.common_dir() => {}
                    true => fs::remove_dir_all(path).expect("removable"),
                    false => fs::remove_file(path).expect("removable"),
                }
            }
            let mut dice = Dice(seed * 0x9e37_79b9_7f4a_7c15);
            grow(&mut dice, git.here(), 3);
            let excludes = git.common_dir().join("info/exclude");
            fs::write(excludes, patterns(&mut dice)).expect("writable");
            let call = || {
                let call = git.call().option("--work-tree=", git.here()).inside(git.here());
                call.config("core.excludesFile", "/dev/null")
            };
            let list = |how: &[&str]| -> BTreeSet<Vec<u8>> {
                let answer = call().args(&["ls-files", "-z"]).args(how).run().expect("listed");
                answer.parts().map(<[u8]>::to_vec).collect()
            };
            let ignored = list(&["--others", "--ignored", "--exclude-standard"]);
            let forced: Vec<Vec<u8>> =
                ignored.iter().filter(|_| dice.below(4) == 0).cloned().collect();
            let input = forced.iter().flat_map(|path| [path, b"\0".as_slice()].concat()).collect();
            call()
                .args(&["update-index", "--add", "-z", "--stdin"])
                .input(input)
                .run()
                .expect("added");
            let expected = list(&["--cached", "--others", "--exclude-standard"]);
            let tracked = Arc::new(TrackedPaths::of(call()));
            let root = Root::open(git.here()).expect("a folder");
            let walk = |known: &Known| {
                let (user, indexes) = (&Arc::default(), &NestedIndexes::default());
                let ground =
                    Ground { git: &git, root: &root, known, tracked: &tracked, user, indexes };
                walk(&ground).expect("walked")
            };
            let seen = walk(&Known::default());
            let found: BTreeSet<Vec<u8>> = seen.unsure.iter().cloned().collect();
            assert_eq!(found, expected, "seed {seed}");
            assert_eq!(seen.left_out, []);

            let mut known = Known::default();
            let id = blob(Format::Sha1, b"x").expect("no collision");
            for path in &found {
                let meta = fs::symlink_metadata(git.here().join(names::path(path))).expect("there");
                let print = Some(Print::of(&meta));
                known.set(path, KnownFile { mode: Mode::File, id, print, tracked: false });
            }
            known.set(
                b"gone/by now",
                KnownFile { mode: Mode::File, id, print: None, tracked: false },
            );
            known.mark_tracked(tracked.paths());
            let again = walk(&known);
            assert_eq!((again.unsure, again.gone), (vec![], vec![b"gone/by now".to_vec()]));
        }
    }
}
