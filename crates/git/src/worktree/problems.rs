//! What is wrong with a worktree, or worth knowing before anybody works in it or takes it away: one search,
//! whose answer is data. Looks only: writes nothing, takes no lock. What is done about a problem is not
//! known here.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use piton_core::ids::Oid;
use serde::{Deserialize, Serialize};

use super::create::persons_lock;
use super::git_operation::{InProgress, MERGES, Operation, in_progress};
use super::state::TreeState;
use super::{Head, Worktree, branch};
use crate::file;
use crate::repo::{GitError, is_missing, locks};

/// Something that is not as whoever works in a worktree would expect it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TreeProblem {
    /// Nothing is at its place.
    Missing { place: String },
    /// Nothing is at its place: its files are at another.
    Moved { to: String },
    /// Its making or restoring was cut short.
    HalfMade,
    /// Something else is at its place.
    Foreign {
        place: String,
        why: String,
        /// Git's list has an entry for the place: the files may be the work, and only the link is lost.
        listed: bool,
    },
    /// Folder and repository do not name each other.
    Unlinked { place: String },
    /// Files of its git directory are damaged.
    Damaged { place: String, why: String },
    /// HEAD names its branch, and there is none; it was at this commit.
    BranchDeleted { branch: String, was: Option<Oid> },
    /// Somebody has moved its branch; files and index are those of the former commit.
    BranchMoved { branch: String, was: Oid, now: Oid },
    /// Somebody else has its branch checked out, or rebases it.
    BranchElsewhere {
        branch: String,
        place: String,
        /// Nothing is at the worktree's own place.
        missing: bool,
    },
    /// HEAD is on another branch, or on none.
    OffBranch { on: Option<String>, at: Option<Oid> },
    /// Git is in the middle of something.
    InProgress(InProgress),
    /// A lock file of git's is there.
    LockLeft {
        lock: String,
        /// A process that has it open.
        holder: Option<i32>,
        /// How many seconds ago it was last changed.
        age: Option<u64>,
    },
    /// A person has locked it, perhaps with a reason.
    Locked { reason: String },
}

impl fmt::Display for TreeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeProblem::Missing { place } => {
                write!(f, "its worktree {place} is gone")
            }
            TreeProblem::Moved { to } => write!(f, "its worktree was moved to {to}"),
            TreeProblem::HalfMade => f.write_str("its worktree is half made or half restored"),
            TreeProblem::Foreign { place, why, .. } => {
                write!(f, "{place} is not its worktree ({why})")
            }
            TreeProblem::Unlinked { place } => write!(
                f,
                "{place} and the repository do not name each other: one of them was moved, or its .git file is damaged"
            ),
            TreeProblem::Damaged { place, why } => write!(f, "git cannot use {place}: {why}"),
            TreeProblem::BranchDeleted { branch, .. } => {
                write!(f, "its branch {branch} was deleted")
            }
            TreeProblem::BranchMoved { branch, was, now } => write!(
                f,
                "its branch was moved: {branch} from {} to {}; the files are still those of the former",
                was.short(),
                now.short()
            ),
            TreeProblem::BranchElsewhere { branch, place, missing } => {
                let gone = if *missing { "its worktree is gone, and " } else { "" };
                write!(f, "{gone}its branch {branch} is checked out in {place}")
            }
            TreeProblem::OffBranch { on: Some(on), .. } => {
                write!(f, "HEAD is not on its branch, but on {on}")
            }
            TreeProblem::OffBranch { on: None, at } => {
                let at = at.as_ref().map_or("nothing", |at| at.short());
                write!(f, "HEAD is not on its branch, but detached at {at}")
            }
            TreeProblem::InProgress(begun) => write!(f, "git is in the middle of {begun}"),
            TreeProblem::LockLeft { lock, holder, age } => {
                write!(f, "git's lock {lock} is there")?;
                if let Some(age) = age {
                    write!(f, ", {age} s old")?;
                }
                match holder {
                    Some(pid) => write!(f, "; process {pid} has it open"),
                    None => f.write_str("; no process has it open"),
                }
            }
            TreeProblem::Locked { reason } => {
                f.write_str("it is locked (git worktree lock)")?;
                if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
            }
        }
    }
}

impl Worktree {
    /// Everything that is wrong with a worktree in which `branch` should be checked out.
    pub fn problems(&self, branch: &str) -> Result<Vec<TreeProblem>, GitError> {
        let place = self.path.display().to_string();
        Ok(match self.state()? {
            TreeState::Missing => self.missing(branch),
            TreeState::HalfMade { .. } => vec![TreeProblem::HalfMade],
            TreeState::Damaged { why, .. } => vec![TreeProblem::Damaged { place, why }],
            TreeState::Foreign { why } => {
                let listed = self.path.is_dir() && self.listed_entry().is_some();
                vec![TreeProblem::Foreign { place, why, listed }]
            }
            TreeState::Unlinked { .. } => vec![match self.moved_from() {
                Some(other) => {
                    let why = format!("it is the worktree of {}", other.display());
                    TreeProblem::Foreign { place, why, listed: false }
                }
                None => TreeProblem::Unlinked { place },
            }],
            TreeState::Present { dir } => self.inside(&dir, branch)?,
        })
    }

    fn missing(&self, branch: &str) -> Vec<TreeProblem> {
        if let Some(moved) = self.moved_to() {
            return vec![TreeProblem::Moved { to: moved.path.display().to_string() }];
        }
        let locked = self.listed_entry().and_then(|entry| persons_lock(&entry));
        let locked = locked.map(|reason| TreeProblem::Locked { reason });
        let gone = || TreeProblem::Missing { place: self.path.display().to_string() };
        let gone = self.taken_elsewhere(branch).unwrap_or_else(gone);
        locked.into_iter().chain([gone]).collect()
    }

    fn inside(&self, dir: &Path, branch: &str) -> Result<Vec<TreeProblem>, GitError> {
        let mut found: Vec<TreeProblem> = Vec::new();
        found.extend(persons_lock(dir).map(|reason| TreeProblem::Locked { reason }));
        found.extend(self.locks_left(dir, branch));
        found.extend(self.branch_problem(branch)?);
        found.extend(self.taken_elsewhere(branch));
        // What a merge has left can be all that is known of it.
        let is_there = |name: &&str| fs::symlink_metadata(dir.join(name)).is_ok();
        let merge = InProgress { operation: Operation::Merge, at: None };
        let left = || MERGES.iter().any(is_there).then_some(merge);
        if let Some(begun) = in_progress(dir).or_else(left) {
            found.push(TreeProblem::InProgress(begun));
            return Ok(found);
        }
        match self.head_in(dir)? {
            Head { branch: Some(on), .. } if on == branch => {}
            Head { commit: None, branch: None } => {}
            Head { commit: at, branch: on } => found.push(TreeProblem::OffBranch { on, at }),
        }
        Ok(found)
    }

    fn taken_elsewhere(&self, branch: &str) -> Option<TreeProblem> {
        let place = self.elsewhere(branch)?.display().to_string();
        let missing = !self.path.exists();
        Some(TreeProblem::BranchElsewhere { branch: branch.to_owned(), place, missing })
    }

    /// What has become of `branch` while nobody looked, if HEAD is on it.
    pub(super) fn branch_problem(&self, branch: &str) -> Result<Option<TreeProblem>, GitError> {
        let dir = self.git_dir()?;
        let refname = format!("refs/heads/{branch}");
        let head = file::text(dir.join("HEAD")).unwrap_or_default();
        if head.trim_end().strip_prefix("ref: ") != Some(refname.as_str()) {
            return Ok(None);
        }
        let branch = branch.to_owned();
        let was = branch::last_head(&dir);
        Ok(match (self.git.ref_target(&refname)?, was) {
            (None, was) => Some(TreeProblem::BranchDeleted { branch, was }),
            (Some(now), Some(was)) if now != was && !branch::moved_by_us(&self.git, &refname) => {
                Some(TreeProblem::BranchMoved { branch, was, now })
            }
            (Some(_), _) => None,
        })
    }

    /// Git's own locks, with what is known of who holds them.
    fn locks_left(&self, dir: &Path, branch: &str) -> Vec<TreeProblem> {
        let common = self.git.common_dir();
        let of_branch = common.join(format!("refs/heads/{branch}.lock"));
        let of_refs = common.join("packed-refs.lock");
        let all = [dir.join("index.lock"), dir.join("HEAD.lock"), of_branch, of_refs];
        let is_there = |path: &PathBuf| match fs::symlink_metadata(path) {
            Ok(_) => true,
            Err(error) => !is_missing(&error),
        };
        let left = |lock: PathBuf| {
            let (holder, age) = (locks::holder(&lock), locks::age(&lock));
            let (lock, age) = (lock.display().to_string(), age.map(|age| age.as_secs()));
            TreeProblem::LockLeft { lock, holder, age }
        };
        all.into_iter().filter(is_there).map(left).collect()
    }
}
