//! The one runner of git in the code base. A [`Git`] is a repository as seen from one of its
//! worktrees; every call goes through [`call::Call`], which takes away whatever an agent could use to
//! steer it. This file knows refs and commits; worktrees, snapshots and landing are built on it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, OnceLock};

use piton_core::ids::Oid;

use crate::shell;

pub mod attributes;
mod call;
mod commit;
pub mod drivers;
pub mod flush;
pub(crate) mod hash;
pub mod keep;
pub mod listed;
pub mod locks;
pub mod names;
pub(crate) mod pack;
pub mod plain;
pub(crate) mod stage;
pub mod status;

pub use call::{Answer, Call};
pub use commit::commit_tree;
use plain::Around;

/// The oldest git that piton runs with: that of Debian 12. Merging without a worktree came in 2.38,
/// flushing refs in 2.36.
const OLDEST: (u32, u32) = (2, 39);

/// Since this version a commit can be named as the source of attributes.
const ATTRIBUTE_SOURCE: (u32, u32) = (2, 41);

/// Since this version a configuration can define hooks.
const CONFIGURED_HOOKS: (u32, u32) = (2, 54);

/// Refs that are deleted by one process.
const REFS_AT_ONCE: usize = 500;

const DELETE: [&str; 4] = ["update-ref", "--no-deref", "-d", "--end-of-options"];

/// The fewest signs that name a commit.
const ID_MIN: usize = 4;

/// Why git could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("there is no git program")]
    NotFound,
    #[error("git {found} is too old; piton needs {}.{}", OLDEST.0, OLDEST.1)]
    TooOld { found: String },
    #[error("{} is not in a git repository", path.display())]
    NotARepository { path: PathBuf },
    #[error("{} is a worktree of a repository that is not there any more: {} is gone", path.display(), entry.display())]
    LostRepository { path: PathBuf, entry: PathBuf },
    #[error("{} is not in a worktree", path.display())]
    NoWorktree { path: PathBuf },
    #[error("the repository has no commit yet")]
    Unborn,
    #[error("{rev:?} is not a commit here")]
    UnknownRevision { rev: String },
    #[error("there is no commit {id:?} here")]
    UnknownCommit { id: String },
    #[error("more than one commit here begins with {id}")]
    AmbiguousCommit { id: String },
    #[error("there is no ref {refname}")]
    NoRef { refname: String },
    #[error("the ref {refname} exists already, at {current}")]
    RefTaken { refname: String, current: Oid },
    #[error("{} is locked", path.display())]
    Locked { path: PathBuf },
    #[error("there cannot be branches below {folder}/: there is a branch {branch}")]
    BranchInTheWay { branch: String, folder: String },
    #[error("the branch {branch} is checked out in {}", worktree.display())]
    BranchElsewhere { branch: String, worktree: PathBuf },
    #[error("{} is not a worktree of this repository: {why}", path.display())]
    Foreign { path: PathBuf, why: String },
    #[error("{refname} cannot be read back: {why}")]
    Damaged { refname: String, why: String },
    #[error("{} is not an empty folder", path.display())]
    NotEmpty { path: PathBuf },
    #[error("{command} failed ({status}): {stderr}")]
    Failed { command: String, status: ExitStatus, stderr: String },
    #[error("{command} answered what piton does not understand: {what}")]
    Unexpected { command: String, what: String },
    #[error("could not {doing} {}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl GitError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            GitError::NotFound => "install git and put it into PATH".to_owned(),
            GitError::TooOld { .. } => format!("install git {}.{} or newer", OLDEST.0, OLDEST.1),
            GitError::NotARepository { .. } => {
                "go to a repository, or make one here: `git init`".to_owned()
            }
            GitError::LostRepository { path, .. } => format!(
                "the files are as they were; put the repository back, or where it is now: `git worktree repair {}`",
                shell::path(path)
            ),
            GitError::NoWorktree { .. } => "go to a folder with checked out files".to_owned(),
            GitError::Unborn => {
                "make a first commit: `git commit --allow-empty -m initial`".to_owned()
            }
            GitError::UnknownRevision { .. } => "`git branch --all` lists the branches".to_owned(),
            GitError::UnknownCommit { .. } => {
                "its id, as `git rev-parse HEAD` in your worktree says it".to_owned()
            }
            GitError::AmbiguousCommit { .. } => "give more of its id".to_owned(),
            GitError::Locked { path } => match locks::holder(path) {
                Some(pid) => format!("wait for process {pid}, or end it: `kill {pid}`"),
                None => "no process has it open any more: try again".to_owned(),
            },
            GitError::BranchInTheWay { branch, .. } => {
                format!(
                    "git keeps branches as files and folders; rename it: `git branch -m {branch} {branch}-old`"
                )
            }
            GitError::BranchElsewhere { worktree, .. } => {
                format!(
                    "take it off that branch: `git -C {} switch --detach`",
                    shell::path(worktree)
                )
            }
            GitError::NotEmpty { .. } => "name a folder that is new or empty".to_owned(),
            GitError::Foreign { path, .. } => {
                let away = shell::mv_aside(path)?;
                format!("piton leaves it alone: `{away}`, then try again")
            }
            GitError::Failed { stderr, .. } if stderr.contains("dubious ownership") => {
                "the repository belongs to another user; git's safe.directory allows it".to_owned()
            }
            GitError::Failed { stderr, .. } if stderr.contains("No space left") => {
                "the disk is full: free some space".to_owned()
            }
            _ => return None,
        };
        Some(hint)
    }

    pub fn unexpected(command: &str, what: impl Into<String>) -> GitError {
        GitError::Unexpected { command: command.to_owned(), what: what.into() }
    }

    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> GitError {
        GitError::Io { doing, path: path.to_owned(), source }
    }
}

/// What became of a ref that was to be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    Moved,
    /// Somebody else moved, made or deleted it first.
    Lost {
        current: Option<Oid>,
    },
}

/// A repository, as seen from one of its worktrees.
#[derive(Debug, Clone)]
pub struct Git {
    places: Arc<Places>,
}

#[derive(Debug)]
struct Places {
    git_dir: PathBuf,
    common_dir: PathBuf,
    main_root: PathBuf,
    here: PathBuf,
}

impl Git {
    /// Finds the repository from any of its folders. One without a main worktree is also found from
    /// its git directory.
    pub fn discover(from: &Path) -> Result<Git, GitError> {
        match from.canonicalize() {
            Ok(real) => Git::around(&real),
            Err(_) => Err(GitError::NotARepository { path: from.to_owned() }),
        }
    }

    /// The same from a folder that is absolute and without links.
    pub fn around(from: &Path) -> Result<Git, GitError> {
        let nowhere = || GitError::NotARepository { path: from.to_owned() };
        match plain::around(from) {
            Around::Ordinary(places) => return Ok(Git { places: Arc::new(places) }),
            Around::Nothing => return Err(nowhere()),
            Around::Perhaps => drop(installed()?),
        }
        let ask = |words: &[&str]| {
            let asked = Call::new(from).args(&["rev-parse", "--path-format=absolute"]).args(words);
            Ok(asked.run()?.stdout)
        };
        let words = ["--is-inside-work-tree", "--git-dir", "--git-common-dir"];
        let answer = ask(&words).map_err(|error| match error {
            GitError::Failed { stderr, .. } if stderr.contains("not a git repository") => {
                match plain::lost(from) {
                    Some((path, entry)) => GitError::LostRepository { path, entry },
                    None => nowhere(),
                }
            }
            other => other,
        })?;
        let lines: Vec<&[u8]> = answer.split(|&b| b == b'\n').collect();
        let &[inside, git_dir, common_dir, b""] = lines.as_slice() else {
            return Err(GitError::unexpected("git rev-parse", "a path with a line break"));
        };
        let (git_dir, common_dir) = (real(git_dir)?, real(common_dir)?);
        let places = match (inside == b"true", main_worktree(&common_dir)) {
            (true, main) => {
                let here =
                    real(ask(&["--show-toplevel"])?.strip_suffix(b"\n").unwrap_or_default())?;
                let main_root = match git_dir == common_dir {
                    true => here.clone(),
                    false => main.unwrap_or_else(|| common_dir.clone()),
                };
                Places { git_dir, common_dir, main_root, here }
            }
            (false, Some(_)) => return Err(GitError::NoWorktree { path: from.to_owned() }),
            (false, None) => {
                let (main_root, here) = (common_dir.clone(), common_dir.clone());
                Places { git_dir, common_dir, main_root, here }
            }
        };
        Ok(Git { places: Arc::new(places) })
    }

    /// Whether the installed git will do: asked before anything is begun with it.
    pub fn check_version() -> Result<(), GitError> {
        installed().map(drop)
    }

    /// Makes a repository of a folder, with everything in it as the first commit.
    pub fn init(folder: &Path, message: &str) -> Result<Git, GitError> {
        installed()?;
        let words = ["init", "--quiet", "--initial-branch=main", "--"];
        Call::new(folder).args(&words).arg(folder).run()?;
        let git = Git::discover(folder)?;
        let call = || git.call().option("--work-tree=", git.here()).inside(git.here());
        call().args(&["add", "--all"]).run()?;
        let tree = oid(&call().arg("write-tree").run()?.stdout, "git write-tree")?;
        let commit = commit_tree(call, &tree, &[], message)?;
        flush::objects(&git)?;
        git.move_ref("refs/heads/main", &commit, None, "piton: first commit")?;
        Ok(git)
    }

    /// The git directory that all worktrees share.
    pub fn common_dir(&self) -> &Path {
        &self.places.common_dir
    }

    /// The root of the main worktree, or the git directory itself where there is none (a bare
    /// repository with linked worktrees): the same from every worktree.
    pub fn main_root(&self) -> &Path {
        &self.places.main_root
    }

    /// Whether it has no main worktree; one whose main worktree is only not known from here is not bare.
    pub(crate) fn is_bare(&self) -> bool {
        let ask = || self.call_in(self.common_dir()).args(&["rev-parse", "--is-bare-repository"]);
        self.main_root() == self.common_dir() && ask().line().is_ok_and(|answer| answer == "true")
    }

    /// The root of the worktree in which the repository was found; the git directory when it was found
    /// in that, and has no main worktree.
    pub fn here(&self) -> &Path {
        &self.places.here
    }

    /// piton's own folder in the git directory.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.common_dir().join("piton")
    }

    /// A call that needs no worktree; HEAD is that of the worktree the repository was found in.
    pub fn call(&self) -> Call {
        self.call_in(&self.places.git_dir)
    }

    /// A call with an explicit git directory. The shared one is given, too: a worktree's own file
    /// that names it is within an agent's reach.
    pub fn call_in(&self, git_dir: &Path) -> Call {
        let call = Call::new(self.common_dir()).option("--git-dir=", git_dir);
        match git_dir == self.common_dir() {
            true => call,
            false => call.env("GIT_COMMON_DIR", self.common_dir()),
        }
    }

    /// A call whose new objects go elsewhere.
    pub(crate) fn call_apart(&self, objects: &Path) -> Call {
        // Quoted, because a colon stands between two of them.
        let own = names::quoted(names::bytes(&self.common_dir().join("objects")));
        let call = self.call().env("GIT_OBJECT_DIRECTORY", objects);
        call.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", names::path(&own))
    }

    /// A call that could set off a hook: those that a configuration defines are turned off by name.
    pub(crate) fn without_hooks(&self, call: Call) -> Result<Call, GitError> {
        match installed()? >= CONFIGURED_HOOKS {
            true => Ok(call.configs(&drivers::overrides(self.call())?)),
            false => Ok(call),
        }
    }

    /// Whether the attributes of a merge can be read from a commit.
    fn reads_attributes_of_a_commit(&self) -> Result<bool, GitError> {
        Ok(installed()? >= ATTRIBUTE_SOURCE)
    }

    /// The commit that a revision names.
    pub fn commit(&self, rev: &str) -> Result<Oid, GitError> {
        let asked = self.call().args(&["rev-parse", "--verify", "--quiet", "--end-of-options"]);
        let answer = asked.arg(format!("{rev}^{{commit}}")).accept(&[0, 1]).run()?;
        match (answer.code, rev) {
            (0, _) => oid(&answer.stdout, "git rev-parse"),
            (_, "HEAD" | "@") => Err(GitError::Unborn),
            _ => Err(GitError::UnknownRevision { rev: rev.to_owned() }),
        }
    }

    /// The one commit whose id begins so. Names of branches and tags do not count, even where they
    /// look like an id.
    pub fn commit_with_id(&self, prefix: &str) -> Result<Oid, GitError> {
        let unknown = || GitError::UnknownCommit { id: prefix.to_owned() };
        let is_id = prefix.len() >= ID_MIN && prefix.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_id {
            return Err(unknown());
        }
        let asked = self.call().args(&["rev-parse"]).arg(format!("--disambiguate={prefix}"));
        let listed = asked.accept(&[0, 1, 128]).run()?.stdout;
        let asked = self.call().args(&["cat-file", "--batch-check=%(objecttype) %(objectname)"]);
        let answer = asked.input(listed).run()?;
        let lines = answer.text("git cat-file")?.lines();
        let mut commits = lines.filter_map(|line| line.strip_prefix("commit "));
        match (commits.next(), commits.next()) {
            (Some(id), None) => oid(id.as_bytes(), "git cat-file"),
            (Some(_), Some(_)) => Err(GitError::AmbiguousCommit { id: prefix.to_owned() }),
            (None, _) => Err(unknown()),
        }
    }

    /// The first commit of a commit's history, along first parents: the same in every clone that is
    /// not shallow.
    pub fn root_of(&self, commit: &Oid) -> Result<Oid, GitError> {
        let asked = self.call().args(&["rev-list", "--first-parent", "--max-parents=0"]);
        oid(&asked.arg(commit.as_str()).run()?.stdout, "git rev-list")
    }

    /// Where the repository was cloned from, without user names, passwords and tokens.
    pub fn remote(&self) -> Option<String> {
        let url = self.call().args(&["config", "--get", "remote.origin.url"]).line().ok()?;
        Some(names::without_credentials(&url)).filter(|url| !url.is_empty())
    }

    /// Where a ref points; `None` when there is no such ref. The name is taken literally: git's own
    /// guessing would read `fix-gcafe` as an abbreviated id.
    pub fn ref_target(&self, refname: &str) -> Result<Option<Oid>, GitError> {
        if let Some(known) = plain::ref_target(self.common_dir(), refname) {
            return Ok(known);
        }
        let asked = self.call().args(&["for-each-ref", "--format=%(objectname) %(refname)", "--"]);
        let answer = asked.arg(refname).run()?;
        let row = answer.stdout.split(|&b| b == b'\n').find_map(|row| {
            let cut = row.iter().position(|&b| b == b' ')?;
            (&row[cut + 1..] == refname.as_bytes()).then(|| &row[..cut])
        });
        row.map(|id| oid(id, "git for-each-ref")).transpose()
    }

    /// Moves a ref from `old` (`None`: it must not exist) to `new`; when this returns, the move is on
    /// disk. A symbolic ref is replaced, never followed.
    pub fn move_ref(
        &self,
        refname: &str,
        new: &Oid,
        old: Option<&Oid>,
        why: &str,
    ) -> Result<Moved, GitError> {
        match self.update_ref(refname, new, old, why) {
            Ok(()) => {}
            Err(error @ GitError::Failed { .. }) => {
                let current = self.ref_target(refname)?;
                if current.as_ref() == Some(new) {
                    self.clear_left_locks(refname);
                }
                if current.as_ref() != old {
                    return Ok(Moved::Lost { current });
                }
                self.refuse_in_the_way(refname)?;
                self.clear_ref_locks(refname, error)?;
                self.update_ref(refname, new, old, why)?;
            }
            Err(error) => return Err(error),
        }
        flush::ref_folders(self, refname)?;
        Ok(Moved::Moved)
    }

    fn update_ref(
        &self,
        refname: &str,
        new: &Oid,
        old: Option<&Oid>,
        why: &str,
    ) -> Result<(), GitError> {
        let missing = "0".repeat(new.as_str().len());
        let call = self.without_hooks(self.call())?.config("core.fsync", "reference");
        let call = call.args(&["update-ref", "--no-deref", "-m", why, "--end-of-options", refname]);
        call.arg(new.as_str()).arg(old.map_or(missing.as_str(), Oid::as_str)).run().map(drop)
    }

    /// Deletes refs that are still where they are said to be; says how many. What somebody has moved stays.
    pub fn drop_refs(&self, refs: &[(&str, &Oid)]) -> Result<u64, GitError> {
        let drop = |refs: &[(&str, &Oid)]| {
            let row = |(name, at): &(&str, &Oid)| format!("delete {name}\0{at}\0");
            let input: String = refs.iter().map(row).collect();
            let call = self.without_hooks(self.call())?;
            call.args(&["update-ref", "--no-deref", "-z", "--stdin"]).input(input.into()).run()
        };
        let mut gone = 0;
        for share in refs.chunks(REFS_AT_ONCE) {
            match drop(share) {
                Ok(_) => gone += share.len() as u64,
                // All or none: one that was moved, or a lock, must not save the others.
                Err(failed @ GitError::Failed { .. }) => {
                    let _not_what_kept_them = self.clear_ref_locks(share[0].0, failed);
                    gone += share.iter().filter(|one| drop(&[**one]).is_ok()).count() as u64;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(gone)
    }

    /// Deletes a ref of piton's own, if it is there.
    pub(crate) fn drop_ref(&self, refname: &str) -> Result<(), GitError> {
        if self.ref_target(refname)?.is_none() {
            self.clear_left_locks(refname);
            return Ok(());
        }
        self.despite_locks(refname, || {
            self.without_hooks(self.call())?.args(&DELETE).arg(refname).run()
        })
    }

    /// Deletes a ref that is still where it was.
    pub fn delete_ref(&self, refname: &str, old: &Oid) -> Result<(), GitError> {
        self.despite_locks(refname, || {
            let call = self.without_hooks(self.call())?.config("core.fsync", "reference");
            call.args(&DELETE).arg(refname).arg(old.as_str()).run()
        })
    }

    fn despite_locks(
        &self,
        refname: &str,
        write: impl Fn() -> Result<Answer, GitError>,
    ) -> Result<(), GitError> {
        let written = write().or_else(|error| {
            self.clear_ref_locks(refname, error)?;
            write()
        });
        written.map(drop)
    }

    /// Where a branch is checked out, given its full name. A worktree whose folder is gone does not count.
    pub fn checked_out(&self, refname: &str) -> Option<PathBuf> {
        let found = self.checked_out_under(refname).into_iter().find(|(name, _)| name == refname);
        found.map(|(_, place)| place)
    }

    /// The same of every branch in a folder, such as `refs/heads/piton/`.
    pub fn checked_out_under(&self, folder: &str) -> Vec<(String, PathBuf)> {
        let branch =
            |entry: listed::Listed| Some((format!("refs/heads/{}", entry.branch?), entry.place));
        let found = listed::listed(self).into_iter().filter_map(branch);
        found.filter(|(name, place)| name.starts_with(folder) && place.exists()).collect()
    }

    /// Whether there can be branches below a folder such as `piton`: a branch of that name, or of the
    /// name of a folder above, leaves no room for them.
    pub fn can_make_branches(&self, folder: &str) -> Result<(), GitError> {
        for branch in Path::new(folder).ancestors().filter_map(Path::to_str) {
            let refname = format!("refs/heads/{branch}");
            if !branch.is_empty() && self.ref_target(&refname)?.is_some() {
                let (branch, folder) = (branch.to_owned(), folder.to_owned());
                return Err(GitError::BranchInTheWay { branch, folder });
            }
        }
        Ok(())
    }

    fn refuse_in_the_way(&self, refname: &str) -> Result<(), GitError> {
        let branch = refname.strip_prefix("refs/heads/").map(Path::new);
        let folder = branch.and_then(Path::parent).and_then(Path::to_str);
        folder.map_or(Ok(()), |folder| self.can_make_branches(folder))
    }

    /// Clears the locks that kept a ref from moving, or that a killed git has left there; when it was no
    /// lock, the failure stands.
    pub(crate) fn clear_ref_locks(&self, refname: &str, failure: GitError) -> Result<(), GitError> {
        let locked = |stderr: &str| stderr.contains(".lock': File exists");
        match &failure {
            GitError::Failed { status, stderr, .. }
                if status.code().is_none() || locked(stderr) =>
            {
                self.clear_locks_on(refname)
            }
            _ => Err(failure),
        }
    }

    /// The same for a ref that is as it is to be: the git that saw to it may have been killed before it took
    /// its locks away. One that somebody alive has is theirs.
    pub fn clear_left_locks(&self, refname: &str) {
        let _somebody_alive_has_one = self.clear_locks_on(refname);
    }

    fn clear_locks_on(&self, refname: &str) -> Result<(), GitError> {
        let own = format!("{refname}.lock");
        // HEAD's is taken for a branch that the main worktree has checked out.
        let locks = [own.as_str(), "HEAD.lock", "packed-refs.lock", "reftable/tables.list.lock"];
        locks.iter().try_for_each(|name| locks::clear_on_ref(self, &self.common_dir().join(name)))
    }

    /// Of the refs that match a pattern, the one with the highest number at its end, and its tree.
    pub(crate) fn newest_ref(&self, pattern: &str) -> Result<Option<(String, Oid)>, GitError> {
        let asked = self.call().args(&["for-each-ref", "--count=1", "--sort=-version:refname"]);
        let answer = asked.args(&["--format=%(refname) %(tree)", "--", pattern]).run()?;
        let row = answer.text("git for-each-ref")?.trim_end().rsplit_once(' ');
        row.map(|(name, tree)| Ok((name.to_owned(), oid(tree.as_bytes(), "git for-each-ref")?)))
            .transpose()
    }

    /// The commits with a ref below a folder, such as `refs/piton/`: ref, id, and when they were made, in
    /// seconds.
    pub fn commits_under(&self, folder: &str) -> Result<Vec<(String, Oid, i64)>, GitError> {
        let format = "--format=%(objecttype) %(committerdate:unix) %(objectname) %(refname)";
        let answer = self.call().args(&["for-each-ref", format, "--", folder]).run()?;
        let mut found = Vec::new();
        for row in answer.text("git for-each-ref")?.lines() {
            let words: Vec<&str> = row.splitn(4, ' ').collect();
            if let &["commit", at, id, refname] = words.as_slice() {
                let id = oid(id.as_bytes(), "git for-each-ref")?;
                found.push((refname.to_owned(), id, at.parse().unwrap_or(0)));
            }
        }
        Ok(found)
    }

    /// Every ref below a folder, with what it names.
    pub fn refs_under(&self, folder: &str) -> Result<Vec<(String, Oid)>, GitError> {
        let words = ["for-each-ref", "--format=%(refname) %(objectname)", "--", folder];
        let answer = self.call().args(&words).run()?;
        let unexpected = |line: &str| GitError::unexpected("git for-each-ref", line.to_owned());
        let read = |line: &str| {
            let (name, id) = line.split_once(' ')?;
            Some((name.to_owned(), Oid::new(id).ok()?))
        };
        let lines = answer.text("git for-each-ref")?.lines();
        lines.map(|line| read(line).ok_or_else(|| unexpected(line))).collect()
    }

    /// Moves every ref below one folder to another, each with what it names; says how many there were.
    pub fn rename_refs(&self, from: &str, to: &str) -> Result<usize, GitError> {
        let all = self.refs_under(from)?;
        for (name, at) in &all {
            let new = format!("{to}{}", &name[from.len()..]);
            let old = self.ref_target(&new)?;
            if old.as_ref() != Some(at) {
                self.move_ref(&new, at, old.as_ref(), "piton: renamed")?;
            }
        }
        self.drop_refs(&all.iter().map(|(name, at)| (name.as_str(), at)).collect::<Vec<_>>())?;
        Ok(all.len())
    }

    /// Whether any ref begins with this folder, such as `refs/piton/`.
    pub fn has_refs_under(&self, prefix: &str) -> Result<bool, GitError> {
        let asked = self.call().args(&["for-each-ref", "--count=1", "--format=%(refname)", "--"]);
        Ok(!asked.arg(prefix).run()?.stdout.is_empty())
    }

    /// Whether `a` is `b` or in its history.
    pub fn is_ancestor(&self, a: &Oid, b: &Oid) -> Result<bool, GitError> {
        if a == b {
            return Ok(true);
        }
        let asked = self.call().args(&["merge-base", "--is-ancestor", a.as_str(), b.as_str()]);
        Ok(asked.accept(&[0, 1]).run()?.code == 0)
    }

    /// Where two histories part.
    pub fn fork_point(&self, a: &Oid, b: &Oid) -> Result<Option<Oid>, GitError> {
        let asked = self.call().args(&["merge-base", a.as_str(), b.as_str()]);
        let answer = asked.accept(&[0, 1]).run()?;
        match answer.code {
            0 => oid(&answer.stdout, "git merge-base").map(Some),
            _ => Ok(None),
        }
    }

    /// How many commits a history has that another lacks.
    pub fn count_commits(&self, without: &Oid, of: &Oid) -> Result<u64, GitError> {
        if without == of {
            return Ok(0);
        }
        let asked = self.call().args(&["rev-list", "--count"]).arg(format!("{without}..{of}"));
        let line = asked.line()?;
        line.parse().map_err(|_| GitError::unexpected("git rev-list", line))
    }

    /// What a branch has on top of a commit, a line for each file and one for all; nothing where there is
    /// no such branch.
    pub fn diff_stat(&self, from: &Oid, branch: &str) -> Result<Vec<String>, GitError> {
        let Some(to) = self.ref_target(&format!("refs/heads/{branch}"))? else {
            return Ok(Vec::new());
        };
        let words = ["diff", "--stat", "--no-ext-diff", "--no-textconv", "--no-color"];
        let answer = self.call().args(&words).args(&[from.as_str(), to.as_str(), "--"]).run()?;
        Ok(String::from_utf8_lossy(&answer.stdout).lines().map(str::to_owned).collect())
    }

    pub fn tree_of(&self, commit: &Oid) -> Result<Oid, GitError> {
        let asked = self.call().args(&["rev-parse", "--verify", "--end-of-options"]);
        oid(&asked.arg(format!("{commit}^{{tree}}")).run()?.stdout, "git rev-parse")
    }

    /// The bytes of a regular file in a commit; none where there is no such file.
    pub fn file_in(&self, commit: &Oid, path: &str) -> Result<Option<Vec<u8>>, GitError> {
        let words = ["ls-tree", "-z", "--full-tree", commit.as_str(), "--", path];
        let listed = self.call().args(&words).run()?;
        let row = listed.parts().next().unwrap_or_default();
        let row = String::from_utf8_lossy(row).into_owned();
        let mut words = row.split_ascii_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(mode), Some("blob"), Some(blob)) if mode.starts_with("100") => {
                Ok(Some(self.call().args(&["cat-file", "blob", blob]).run()?.stdout))
            }
            _ => Ok(None),
        }
    }

    /// Adds a pattern to the excludes of this clone, once.
    pub fn exclude(&self, pattern: &str) -> Result<(), GitError> {
        let path = self.common_dir().join("info/exclude");
        let now = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(GitError::io("read", &path, source)),
        };
        if now.split(|&b| b == b'\n').any(|line| line == pattern.as_bytes()) {
            return Ok(());
        }
        let open_line = now.last().is_some_and(|&b| b != b'\n');
        let line = format!("{}{pattern}\n", if open_line { "\n" } else { "" });
        let folder = fs::create_dir_all(self.common_dir().join("info"));
        // One write at the end of the file: two processes doing this at once add two lines, no more.
        let added = folder
            .and_then(|()| fs::OpenOptions::new().append(true).create(true).open(&path))
            .and_then(|mut file| file.write_all(line.as_bytes()));
        added.map_err(|source| GitError::io("write", &path, source))
    }
}

/// Whether there is nothing at a path.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// An object id at the start of an answer.
pub fn oid(answer: &[u8], command: &str) -> Result<Oid, GitError> {
    let line = answer.split(|&b| b == b'\n' || b == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(line).into_owned();
    Oid::new(text).map_err(|bad| GitError::unexpected(command, bad.to_string()))
}

fn real(path: &[u8]) -> Result<PathBuf, GitError> {
    let path = names::path(path);
    path.canonicalize().map_err(|source| GitError::io("find", &path, source))
}

/// The main worktree of the repository with this git directory; a bare repository has none, and a git
/// directory that lies apart does not tell, unless another worktree is inside of it.
fn main_worktree(common_dir: &Path) -> Option<PathBuf> {
    // A submodule's git directory lies inside its parent's; its configuration names the worktree.
    let config = common_dir.join("config");
    let asked = Call::new(common_dir).args(&["config", "--file"]).arg(config);
    if let Ok(path) = asked.args(&["--get", "core.worktree"]).line() {
        return common_dir.join(path).canonicalize().ok();
    }
    let parent = plain::parent(common_dir).or_else(|| plain::around_worktrees(common_dir))?;
    let asked = Call::new(common_dir).option("--git-dir=", common_dir).arg("rev-parse");
    let bare = asked.arg("--is-bare-repository").line().is_ok_and(|answer| answer == "true");
    (!bare).then_some(parent)
}

/// The version of the installed git, asked for once.
fn installed() -> Result<(u32, u32), GitError> {
    static FOUND: OnceLock<String> = OnceLock::new();
    let found = match FOUND.get() {
        Some(found) => found,
        None => {
            let said = Call::new(Path::new("/")).arg("version").line()?;
            FOUND.get_or_init(|| said)
        }
    };
    let number = found.strip_prefix("git version ").unwrap_or(found);
    let too_old = || GitError::TooOld { found: number.to_owned() };
    version(number).filter(|version| *version >= OLDEST).ok_or_else(too_old)
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(version("2.47.3"), Some((2, 47)));
        assert_eq!(version("2.50.1 (Apple Git-155)"), Some((2, 50)));
        assert_eq!(version("2.9"), Some((2, 9)));
        assert!(version("2.9") < Some(OLDEST));
        assert_eq!(version("two"), None);
    }
}
