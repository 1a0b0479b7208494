//! A git worktree at a path: what state it is in, making it, resetting it, and what is in it that no
//! commit has. Every call names the git directory and the worktree; a path that is not a worktree of
//! this repository is left alone.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use piton_core::brief::TreeFacts;
use piton_core::ids::Oid;

use crate::crash;
use crate::file;
use crate::repo::keep::{HELD, Making, Name, keep};
use crate::repo::listed::{Listed, listed};
use crate::repo::stage::{self, Changes};
use crate::repo::status::{Status, StatusDepth, status};
use crate::repo::{
    Call, Git, GitError, Moved, commit_tree, drivers, flush, locks, names, oid, plain,
};

mod advance;
mod branch;
mod copy_in;
mod create;
mod damage;
mod git_operation;
mod moved;
mod problems;
mod quarantine;
mod remove;
mod scratch;
mod state;

pub use advance::Stand;
pub use create::Made;
pub(crate) use create::is_unfinished;
pub(crate) use git_operation::in_progress;
pub use git_operation::{InProgress, Operation};
pub use problems::TreeProblem;
pub use quarantine::Quarantined;
pub(crate) use quarantine::{Quarantine, shift};
pub use scratch::Bench;
pub use state::TreeState;

/// Commits listed in a brief: more would help nobody.
const SUBJECTS_MAX: &str = "--max-count=1000";

/// A file in a worktree's git directory from before a reset removes anything to after its end.
const BEING_RESET: &str = "piton-being-reset";

/// How the row of a nested repository begins in git's raw diff.
const GITLINK: &[u8] = b":160000 ";

/// Where the HEAD of a worktree is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Nothing where its branch has no commit yet.
    pub commit: Option<Oid>,
    /// The branch's short name; nothing when HEAD is detached.
    pub branch: Option<String>,
}

/// A place for a worktree, whether it exists or not.
#[derive(Debug, Clone)]
pub struct Worktree {
    git: Git,
    path: PathBuf,
}

impl Worktree {
    pub fn at(git: &Git, path: &Path) -> Worktree {
        Worktree { git: git.clone(), path: plain::real(path) }
    }

    /// A place where only piton makes something. A link in its stead is somebody else's: it is seen as
    /// one, not followed.
    pub fn own_place(git: &Git, path: &Path) -> Worktree {
        let path = match (path.parent(), path.file_name()) {
            (Some(folder), Some(name)) => plain::real(folder).join(name),
            _ => plain::real(path),
        };
        Worktree { git: git.clone(), path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn git(&self) -> &Git {
        &self.git
    }

    /// Anything that a reset would lose: changes of tracked files, untracked files.
    pub fn dirty(&self) -> Result<bool, GitError> {
        let seen = self.status(StatusDepth::Files)?;
        Ok(!seen.tracked.is_empty() || !Changes::of(&seen).is_empty())
    }

    /// Paths that a merge has left for somebody to solve.
    pub fn unmerged(&self) -> Result<Vec<String>, GitError> {
        let dir = self.git_dir()?;
        let answer = self.call_in(&dir).args(&["ls-files", "--unmerged", "-z"]).run()?;
        let path = |row: &[u8]| row.splitn(2, |byte| *byte == b'\t').nth(1).map(names::shown);
        let paths: BTreeSet<String> = answer.parts().filter_map(path).collect();
        Ok(paths.into_iter().collect())
    }

    /// How many paths differ from a commit: committed, uncommitted or untracked.
    pub fn changed_since(&self, base: &Oid) -> Result<u64, GitError> {
        let seen = self.status(StatusDepth::Files)?;
        let mut paths: BTreeSet<Vec<u8>> = seen.tracked.into_iter().map(|e| e.path).collect();
        paths.extend(seen.untracked);
        match seen.head {
            Some(head) if head != *base => {
                paths.extend(differing(self.git.call(), base, &head)?);
            }
            _ => {}
        }
        Ok(paths.len() as u64)
    }

    /// What a brief tells about the tree.
    pub fn facts(&self, base: &Oid) -> Result<TreeFacts, GitError> {
        let seen = self.status(StatusDepth::Folders)?;
        let mut uncommitted: Vec<Vec<u8>> = seen.tracked.into_iter().map(|e| e.path).collect();
        uncommitted.extend(seen.untracked);
        uncommitted.sort();
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(TreeFacts {
            commits: match &seen.head {
                Some(head) if head != base => self.subjects(base, head)?,
                _ => Vec::new(),
            },
            uncommitted: uncommitted.iter().map(|path| lossy(path)).collect(),
            underway: self.in_progress().map(|begun| {
                let (on, back) = begun.operation.ways_out();
                format!("{begun}: go on with `{on}`, or give it up with `{back}`")
            }),
        })
    }

    fn subjects(&self, base: &Oid, head: &Oid) -> Result<Vec<String>, GitError> {
        let words = ["rev-list", "--reverse", "--no-commit-header", "--encoding=UTF-8"];
        let asked = self.git.call().args(&words).args(&["--format=%s", SUBJECTS_MAX]);
        let answer = asked.arg(format!("{base}..{head}")).run()?;
        Ok(String::from_utf8_lossy(&answer.stdout).lines().map(str::to_owned).collect())
    }

    /// Puts the worktree on `branch`, which is made or moved to `start`; index and files are equal to
    /// it, untracked files are gone, merges and rebases ended. Ignored files stay; what was ignored and is
    /// not any more, or is in the way, is moved aside and returned. Whoever calls this has taken a
    /// snapshot, and moved out what that cannot hold.
    pub fn reset_to(&self, branch: &str, start: &Oid) -> Result<Vec<Quarantined>, GitError> {
        let dir = self.git_dir()?;
        self.clear_locks(&dir)?;
        self.keep_named(&dir, branch, start)?;
        self.end_operations(&dir)?;
        let drivers = drivers::overrides(self.call_in(&dir))?;
        let (mark, mut aside) = (dir.join(BEING_RESET), Quarantine::default());
        if fs::symlink_metadata(&mark).is_ok() {
            // A reset was cut short: the rules may be gone by which something is ignored, and nothing
            // is removed any more.
            self.set_strays_aside(&dir, &mut aside)?;
        } else {
            fs::write(&mark, "").map_err(|source| GitError::io("write", &mark, source))?;
            // First, by the ignore rules under which the snapshot was taken: what they ignore is in no
            // snapshot, and must not be removed only because an older `.gitignore` comes back.
            self.with_readable_index(&dir, || {
                self.call_in(&dir).args(&["clean", "--quiet", "-f", "-d"]).run()
            })?;
        }
        crash::point("tree.cleaned");
        self.set_covered_aside(&dir, start, &mut aside)?;
        // Not `git checkout -B`: it reads the whole list of worktrees, and fails on one that somebody is
        // just being added to it.
        self.put_head(&dir, branch, start)?;
        let call = self.git.without_hooks(self.call_in(&dir))?.configs(&drivers);
        call.args(&["read-tree", "--reset", "-u", start.as_str()]).run()?;
        crash::point("tree.checked-out");
        self.set_strays_aside(&dir, &mut aside)?;
        fs::remove_file(&mark).map_err(|source| GitError::io("remove", &mark, source))?;
        Ok(aside.moved)
    }

    /// Everything uncommitted as one commit on HEAD; `branch` is then that commit and checked out,
    /// wherever HEAD was. Without anything to commit it is HEAD's commit. When this returns, the
    /// commit is on disk. Nothing may run in the tree.
    pub fn commit_all(&self, branch: &str, message: &str) -> Result<Committed, GitError> {
        let dir = self.git_dir()?;
        self.clear_locks(&dir)?;
        let drivers = drivers::overrides(self.call_in(&dir))?;
        let call = || self.call_in(&dir).configs(&drivers);
        let seen = self.with_readable_index(&dir, || status(call(), StatusDepth::Files))?;
        let head = seen.head.clone().ok_or(GitError::Unborn)?;
        let changes = Changes::of(&seen);
        let merged = merge_heads(&dir)?;
        if seen.tracked.is_empty() && changes.is_empty() && merged.is_empty() {
            flush::objects(&self.git)?;
            self.put_branch(&dir, branch, &seen, &head)?;
            self.end_operations(&dir)?;
            return Ok(Committed { commit: head, apart: seen.into_repositories() });
        }
        let held = format!("{HELD}/{branch}");
        let old = self.git.ref_target(&held)?;
        let made =
            keep(&self.git, Name { refname: &held, old, why: "piton: leftovers" }, |making| {
                stage::strictly(call, &changes)?;
                if making == Making::Again {
                    stage::strictly(call, &staged(call(), &head)?)?;
                }
                let tree = oid(&call().arg("write-tree").run()?.stdout, "git write-tree")?;
                if merged.is_empty() && tree == self.git.tree_of(&head)? {
                    return Ok(None);
                }
                let parents: Vec<Oid> = [std::slice::from_ref(&head), &merged].concat();
                commit_tree(call, &tree, &parents, message).map(Some)
            })?;
        let commit = made.unwrap_or(head);
        self.put_branch(&dir, branch, &seen, &commit)?;
        self.end_operations(&dir)?;
        let _the_next_one_replaces_it = self.git.drop_ref(&held);
        Ok(Committed { commit, apart: seen.into_repositories() })
    }

    /// Points `branch` at a commit whose tree the index has, and HEAD at `branch`.
    fn put_branch(
        &self,
        dir: &Path,
        branch: &str,
        seen: &Status,
        commit: &Oid,
    ) -> Result<(), GitError> {
        let refname = format!("refs/heads/{branch}");
        let on_it = seen.branch.as_deref() == Some(branch);
        self.refuse_elsewhere(branch)?;
        let old = if on_it { seen.head.clone() } else { self.git.ref_target(&refname)? };
        if !on_it && let Some(old) = old.clone().filter(|old| old != commit) {
            self.keep_commits(branch, BTreeSet::from([old]), commit)?;
        }
        self.move_branch(&refname, commit, old.as_ref(), "piton: leftovers")?;
        if on_it { Ok(()) } else { self.point_head(dir, &refname, "piton: leftovers") }
    }

    /// Puts `branch` at a commit and HEAD on `branch`; index and files stay as they are.
    fn put_head(&self, dir: &Path, branch: &str, commit: &Oid) -> Result<(), GitError> {
        let refname = format!("refs/heads/{branch}");
        self.refuse_elsewhere(branch)?;
        let old = self.git.ref_target(&refname)?;
        self.move_branch(&refname, commit, old.as_ref(), "piton: start")?;
        self.point_head(dir, &refname, "piton: start")
    }

    fn move_branch(
        &self,
        refname: &str,
        to: &Oid,
        old: Option<&Oid>,
        why: &str,
    ) -> Result<(), GitError> {
        if old == Some(to) {
            return flush::ref_folders(&self.git, refname);
        }
        match self.git.move_ref(refname, to, old, why)? {
            Moved::Moved => Ok(()),
            Moved::Lost { current: Some(current) } => {
                Err(GitError::RefTaken { refname: refname.to_owned(), current })
            }
            Moved::Lost { current: None } => Err(GitError::NoRef { refname: refname.to_owned() }),
        }
    }

    fn point_head(&self, dir: &Path, refname: &str, why: &str) -> Result<(), GitError> {
        let call = self.git.without_hooks(self.call_in(dir))?.config("core.fsync", "reference");
        call.args(&["symbolic-ref", "-m", why, "HEAD", refname]).run().map(drop)
    }

    /// A branch that somebody has checked out elsewhere must not move under them.
    fn refuse_elsewhere(&self, branch: &str) -> Result<(), GitError> {
        match self.elsewhere(branch) {
            Some(worktree) => {
                Err(GitError::BranchElsewhere { branch: branch.to_owned(), worktree })
            }
            None => Ok(()),
        }
    }

    /// Another worktree that has a branch checked out, or is rebasing it; one whose folder is gone does
    /// not count.
    pub fn elsewhere(&self, branch: &str) -> Option<PathBuf> {
        let other = |entry: &Listed| {
            (entry.branch.as_deref() == Some(branch) || entry.rebases(&self.git, branch))
                && entry.place != self.path
                && entry.place.join(".git").exists()
        };
        listed(&self.git).into_iter().find(other).map(|entry| entry.place)
    }

    /// Where HEAD is; nothing where there is no worktree that can be worked in.
    pub fn head(&self) -> Result<Option<Head>, GitError> {
        let state = self.state()?;
        state.dir().map(|dir| self.head_in(dir)).transpose()
    }

    pub(crate) fn head_in(&self, dir: &Path) -> Result<Head, GitError> {
        let short = |name: &str| name.strip_prefix("refs/heads/").map(str::to_owned);
        if let Some((commit, name)) = plain::head(dir, self.git.common_dir()) {
            return Ok(Head { commit: Some(commit), branch: name.as_deref().and_then(short) });
        }
        let words = ["rev-parse", "HEAD", "--symbolic-full-name", "HEAD"];
        match self.call_in(dir).args(&words).run() {
            Ok(answer) => {
                let commit = Some(oid(&answer.stdout, "git rev-parse")?);
                let name = answer.text("git rev-parse")?.lines().nth(1).unwrap_or_default();
                Ok(Head { commit, branch: short(name) })
            }
            // HEAD names a branch without a commit, or nothing that git understands.
            Err(GitError::Failed { .. }) => {
                let name = self.call_in(dir).args(&["symbolic-ref", "--quiet", "HEAD"]).line()?;
                Ok(Head { commit: None, branch: short(&name) })
            }
            Err(other) => Err(other),
        }
    }

    pub fn status(&self, depth: StatusDepth) -> Result<Status, GitError> {
        let dir = self.git_dir()?;
        let drivers = drivers::overrides(self.call_in(&dir))?;
        status(self.call_in(&dir).configs(&drivers), depth)
    }

    /// The worktree's own git directory.
    pub(crate) fn git_dir(&self) -> Result<PathBuf, GitError> {
        match self.state()? {
            TreeState::HalfMade { dir }
            | TreeState::Present { dir }
            | TreeState::Unlinked { dir } => Ok(dir),
            TreeState::Missing => Err(self.foreign("there is nothing")),
            TreeState::Damaged { why, .. } | TreeState::Foreign { why } => Err(self.foreign(&why)),
        }
    }

    fn foreign(&self, why: &str) -> GitError {
        GitError::Foreign { path: self.path.clone(), why: why.to_owned() }
    }

    /// A call in the worktree, with its git directory given.
    pub(crate) fn call_in(&self, dir: &Path) -> Call {
        self.git.call_in(dir).option("--work-tree=", &self.path).inside(&self.path)
    }

    /// Locks that a killed git has left here; those that somebody holds are waited for.
    pub fn clear_own_locks(&self) -> Result<(), GitError> {
        self.clear_locks(&self.git_dir()?)
    }

    /// What is left of a worktree whose folder is gone: the tip of its branch, or where its own git has
    /// last put HEAD.
    pub fn left_at(&self, branch: &str) -> Option<Oid> {
        let tip = self.git.ref_target(&format!("refs/heads/{branch}")).ok().flatten();
        let entry = || self.git_dir().ok().or_else(|| self.listed_entry());
        let last = || branch::last_head(&entry()?);
        let is_there = |last: &Oid| self.git.commit(last.as_str()).is_ok();
        tip.or_else(|| last().filter(is_there))
    }

    pub(crate) fn clear_locks(&self, dir: &Path) -> Result<(), GitError> {
        let locks = ["index.lock", "HEAD.lock"];
        locks.iter().try_for_each(|name| locks::clear_in_tree(&self.git, &dir.join(name)))
    }

    /// An index torn by a power cut is moved aside; what it said is in HEAD or on disk.
    fn with_readable_index<T>(
        &self,
        dir: &Path,
        act: impl Fn() -> Result<T, GitError>,
    ) -> Result<T, GitError> {
        match act() {
            Err(GitError::Failed { stderr, .. }) if is_about_the_index(&stderr) => {
                locks::set_aside(&self.git, &dir.join("index"))?;
                let call = self.git.without_hooks(self.call_in(dir))?;
                call.args(&["read-tree", "HEAD"]).run()?;
                act()
            }
            done => done,
        }
    }

    /// Ignored files are in no snapshot: where the commit to be checked out has a file, what is there
    /// now would be overwritten.
    fn set_covered_aside(
        &self,
        dir: &Path,
        start: &Oid,
        aside: &mut Quarantine,
    ) -> Result<(), GitError> {
        let words = ["diff-index", "--cached", "--raw", "-z", "--no-renames", "--diff-filter=D"];
        let answer = self.call_in(dir).args(&words).args(&[start.as_str(), "--"]).run()?;
        let fields: Vec<&[u8]> = answer.parts().collect();
        for pair in fields.chunks_exact(2).filter(|pair| !pair[0].starts_with(GITLINK)) {
            aside.clear(self, &names::path(pair[1]))?;
        }
        Ok(())
    }

    /// What earlier ignore rules covered and the present ones do not would be taken for new work of
    /// whoever comes next: it is moved out of the worktree, and kept.
    fn set_strays_aside(&self, dir: &Path, aside: &mut Quarantine) -> Result<(), GitError> {
        let words = ["ls-files", "--others", "--exclude-standard", "--directory", "-z"];
        let answer = self.call_in(dir).args(&words).arg("--no-empty-directory").run()?;
        let strays: Vec<PathBuf> = answer.parts().map(names::path).collect();
        for stray in strays.iter().filter(|path| !self.has_worktree_at(path)) {
            aside.put(self, stray)?;
        }
        Ok(())
    }

    /// Whether a folder of the worktree is itself a worktree of the same repository.
    pub(crate) fn has_worktree_at(&self, path: &Path) -> bool {
        let dirs = plain::git_dirs(&self.path.join(path));
        dirs.is_some_and(|(_, common)| common == self.git.common_dir())
    }
}

/// What became of a step's leftovers.
#[derive(Debug)]
pub struct Committed {
    pub commit: Oid,
    /// Repositories of their own within the worktree, of which the commit has nothing.
    pub apart: Vec<Vec<u8>>,
}

/// The paths that differ between two commits or trees.
pub fn differing(call: Call, from: &Oid, to: &Oid) -> Result<Vec<Vec<u8>>, GitError> {
    differing_by(call, &[], from, to)
}

/// Those that differ in one way.
fn differing_by(
    call: Call,
    filter: &[&str],
    from: &Oid,
    to: &Oid,
) -> Result<Vec<Vec<u8>>, GitError> {
    let words = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", "--no-ext-diff"];
    let asked = call.args(&words).arg("--no-textconv").args(filter);
    let asked = asked.args(&[from.as_str(), to.as_str(), "--"]);
    Ok(asked.run()?.parts().map(<[u8]>::to_vec).collect())
}

/// What an index has and a commit has not, to be read from disk once more: its objects may be gone.
fn staged(call: Call, commit: &Oid) -> Result<Changes, GitError> {
    let words = ["diff-index", "--cached", "--name-only", "-z", "--no-renames", "--diff-filter=d"];
    let answer = call.args(&words).args(&[commit.as_str(), "--"]).run()?;
    let paths: Vec<Vec<u8>> = answer.parts().map(<[u8]>::to_vec).collect();
    Ok(Changes { put: paths.clone(), drop: paths })
}

fn merge_heads(dir: &Path) -> Result<Vec<Oid>, GitError> {
    let path = dir.join("MERGE_HEAD");
    match file::text(&path) {
        Ok(text) => Ok(text.lines().filter_map(|line| Oid::new(line).ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(GitError::io("read", &path, source)),
    }
}

fn is_about_the_index(stderr: &str) -> bool {
    let signs = ["index file corrupt", "bad index file", "bad signature", "index file smaller"];
    signs.iter().any(|sign| stderr.contains(sign))
}
