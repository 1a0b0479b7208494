//! The condition of a step's worktree: what is not as an attempt would expect it, what `piton resume` does
//! about it, and what a person can do. Everything that tells of a worktree asks here, and the keeper acts
//! as this says; docs/worktrees.md has the table. Looks only: writes nothing, takes no lock.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::ids::{Oid, StepRef};
use piton_core::observed::Sighting;
use piton_core::run::{Phase, Step};
use piton_core::view::step_branch;
use piton_git::repo::{is_missing, locks};
use piton_git::shell;
use piton_git::worktree::{Fate, TreeState, Worktree, persons_lock};
use serde::Serialize;

use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::observe::{Depth, observe};
use crate::run::runs::settings_of;

/// Something about a worktree that is worth a word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    pub state: TreeCondition,
    /// What was found.
    pub found: String,
    /// What `piton resume` does about it.
    pub then: String,
    /// What a person can type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The conditions that a worktree is found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeCondition {
    /// Nothing is at its place.
    Missing,
    /// Its files are at another place.
    Moved,
    /// Its making or restoring was cut short.
    HalfMade,
    /// Something else is at its place.
    Foreign,
    /// Folder and repository do not name each other.
    Unlinked,
    /// Its branch is gone.
    BranchDeleted,
    /// Somebody has moved its branch.
    BranchMoved,
    /// Somebody else has its branch checked out.
    BranchElsewhere,
    /// HEAD is not on its branch.
    OffBranch,
    /// Git is in the middle of something.
    Underway,
    /// A lock file of git's is there.
    LockLeft,
    /// A person has locked it.
    Locked,
}

impl TreeCondition {
    /// As `--json` spells it.
    pub fn word(self) -> &'static str {
        match self {
            TreeCondition::Missing => "missing",
            TreeCondition::Moved => "moved",
            TreeCondition::HalfMade => "half_made",
            TreeCondition::Foreign => "foreign",
            TreeCondition::Unlinked => "unlinked",
            TreeCondition::BranchDeleted => "branch_deleted",
            TreeCondition::BranchMoved => "branch_moved",
            TreeCondition::BranchElsewhere => "branch_elsewhere",
            TreeCondition::OffBranch => "off_branch",
            TreeCondition::Underway => "underway",
            TreeCondition::LockLeft => "lock_left",
            TreeCondition::Locked => "locked",
        }
    }

    /// Whether nothing goes on before a person has done something.
    pub fn needs_person(self) -> bool {
        matches!(self, TreeCondition::Foreign | TreeCondition::BranchElsewhere)
    }

    /// Whether it is as it should be, and only worth knowing.
    pub fn is_fine(self) -> bool {
        matches!(self, TreeCondition::Locked | TreeCondition::OffBranch)
    }
}

/// What there is to say about the worktree of a step that is not completed; nothing where it is as it
/// was left, or was never made.
pub fn of_step(
    project: &Project,
    log: &Log,
    step: &StepRef,
) -> Result<Vec<Condition>, EngineError> {
    let root = settings_of(log)?.worktree_root;
    let run = log.run();
    let Some((_, state)) = run.step(step) else { return Ok(Vec::new()) };
    if state.is_completed() || run.abandoned.is_some() {
        return Ok(Vec::new());
    }
    let Some(path) = project.tree_of(&root, run, step) else { return Ok(Vec::new()) };
    let tree = Worktree::own_place(&project.git, &path);
    let branch = step_branch(&run.opened.handle, step);
    let has_work = run.trees().has_work(&project.host, step);
    Look { log, state, tree: &tree, branch: &branch, has_work }.all()
}

/// The same for every step of a run that was begun and that nobody is at work on, where there is anything
/// to say.
pub fn of_run(project: &Project, log: &Log) -> Result<Vec<(StepRef, Vec<Condition>)>, EngineError> {
    let observed = observe(project, log, Depth::Locks);
    let is_left = |state: &Step| match (&state.phase, state.attempt()) {
        (Phase::Pending { .. } | Phase::Completed { .. }, _) => false,
        (_, Some(attempt)) => matches!(observed.of(attempt.id), Sighting::Dead(_)),
        (_, None) => true,
    };
    let left = log.run().steps().filter(|(_, _, state)| is_left(state));
    let mut found = Vec::new();
    for step in left.map(|(step, _, _)| step) {
        let conditions = of_step(project, log, &step)?;
        if !conditions.is_empty() {
            found.push((step, conditions));
        }
    }
    Ok(found)
}

/// A step's worktree being looked at.
struct Look<'a> {
    log: &'a Log,
    state: &'a Step,
    tree: &'a Worktree,
    branch: &'a str,
    /// The newest work of the step is in it.
    has_work: bool,
}

impl Look<'_> {
    fn all(&self) -> Result<Vec<Condition>, EngineError> {
        let one = |condition| Ok(vec![condition]);
        match self.tree.state()? {
            TreeState::Missing if self.has_begun() => Ok(self.gone()),
            TreeState::Missing => Ok(Vec::new()),
            TreeState::Foreign { why } => one(self.foreign(&why)),
            TreeState::HalfMade { .. } => one(Look::condition(
                TreeCondition::HalfMade,
                "its worktree is half made or half restored".to_owned(),
                "finishes it; nothing of it is only there".to_owned(),
            )),
            TreeState::Unlinked { .. } => match self.misplaced() {
                Some(why) => one(self.foreign(&why)),
                None => one(Condition {
                    next: Some(format!("git worktree repair {}", self.word())),
                    ..Look::condition(
                        TreeCondition::Unlinked,
                        format!(
                            "{} and the repository do not name each other: one of them was moved, or its .git file is damaged",
                            self.place()
                        ),
                        "mends that and goes on in it".to_owned(),
                    )
                }),
            },
            TreeState::Present { dir } => self.inside(&dir),
        }
    }

    /// Whether an attempt may have left something.
    fn has_begun(&self) -> bool {
        self.has_work && !matches!(self.state.phase, Phase::Pending { .. })
    }

    fn place(&self) -> String {
        self.tree.path().display().to_string()
    }

    /// The same, to be pasted.
    fn word(&self) -> String {
        shell::path(self.tree.path())
    }

    fn condition(state: TreeCondition, found: String, then: String) -> Condition {
        Condition { state, found, then, next: None }
    }

    fn foreign(&self, why: &str) -> Condition {
        let place = self.place();
        let handle = &self.log.run().opened.handle;
        // The list has an entry for this path: the files may be the work, and only the link is lost.
        let then = match self.tree.is_listed() && self.tree.path().is_dir() {
            true => {
                "leaves it alone and asks; if the files are the step's work: `git worktree repair`"
            }
            false => "leaves it alone and asks",
        };
        Condition {
            state: TreeCondition::Foreign,
            found: format!("{place} is not its worktree ({why})"),
            then: then.to_owned(),
            next: Some(format!("{} && piton resume {handle}", shell::mv_aside(self.tree.path()))),
        }
    }

    /// Why a worktree of this repository is not the one that belongs here.
    fn misplaced(&self) -> Option<String> {
        let other = self.tree.moved_from()?;
        Some(format!("it is the worktree of {}", other.display()))
    }

    fn gone(&self) -> Vec<Condition> {
        let place = self.place();
        if let Some(moved) = self.tree.moved_to() {
            let to = moved.path().display();
            return vec![Condition {
                next: Some(format!("mv {} {}", shell::path(moved.path()), self.word())),
                ..Look::condition(
                    TreeCondition::Moved,
                    format!("its worktree was moved to {to}"),
                    format!(
                        "keeps the files from there and goes on with them in {place}; {to} stays as it is"
                    ),
                )
            }];
        }
        let mut found = Vec::new();
        if let Some(lock) = self.tree.persons_lock() {
            found.push(self.locked(&lock));
        }
        match self.tree.elsewhere(self.branch) {
            Some(other) => found.push(self.elsewhere("its worktree is gone, and its", &other)),
            None => found.push(Look::condition(
                TreeCondition::Missing,
                format!("its worktree {place} is gone"),
                format!("makes it again {}", self.source()),
            )),
        }
        found
    }

    fn source(&self) -> String {
        match self.state.resume_snapshot() {
            Some(kept) => format!("from its last snapshot {}", kept.snapshot.refname),
            None if self.left_at().is_some() => "from the commits on its branch".to_owned(),
            None => "from the step's base; there is no snapshot of it".to_owned(),
        }
    }

    fn left_at(&self) -> Option<Oid> {
        self.tree.left_at(self.branch).filter(|left| Some(left) != self.state.base.as_ref())
    }

    fn elsewhere(&self, what: &str, other: &Path) -> Condition {
        let (place, from) = (shell::path(self.tree.path()), shell::path(other));
        let way = match !self.tree.path().exists() {
            true => format!("git worktree move {from} {place}"),
            false => format!("git -C {from} switch --detach"),
        };
        let other = other.display();
        let handle = &self.log.run().opened.handle;
        Condition {
            state: TreeCondition::BranchElsewhere,
            found: format!("{what} branch {} is checked out in {other}", self.branch),
            then: "moves no branch under somebody else and asks".to_owned(),
            next: Some(format!("{way} && piton resume {handle}")),
        }
    }

    fn locked(&self, reason: &str) -> Condition {
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        Condition {
            next: Some(format!("git worktree unlock {}", self.word())),
            ..Look::condition(
                TreeCondition::Locked,
                format!("somebody has locked it (git worktree lock){reason}"),
                "works in it, and leaves the lock".to_owned(),
            )
        }
    }

    /// In a worktree that is where it belongs.
    fn inside(&self, dir: &Path) -> Result<Vec<Condition>, EngineError> {
        let mut found = Vec::new();
        if let Some(lock) = persons_lock(dir) {
            found.push(self.locked(&lock));
        }
        if !self.has_begun() {
            return Ok(found);
        }
        found.extend(self.locks(dir));
        match self.tree.fate_of(self.branch)? {
            Fate::Kept => {}
            Fate::Deleted { was } => {
                let at = was.map_or("its last snapshot".to_owned(), |was| was.short().to_owned());
                found.push(Look::condition(
                    TreeCondition::BranchDeleted,
                    format!("its branch {} was deleted", self.branch),
                    format!("makes it again at {at} and goes on in the files as they are"),
                ));
            }
            Fate::Moved { was, now } => found.push(self.moved_branch(&was, &now)),
        }
        if let Some(other) = self.tree.elsewhere(self.branch) {
            found.push(self.elsewhere("its", &other));
        }
        if let Some(underway) = self.tree.underway() {
            let (on, back) = underway.operation.ways_out();
            found.push(Condition {
                next: Some(format!("git -C {} status", self.word())),
                ..Look::condition(
                    TreeCondition::Underway,
                    format!("git is in the middle of {underway}"),
                    format!("leaves it so for an attempt that continues, and tells it to go on with `{on}` or give it up with `{back}`; one that starts over keeps its commits below refs/piton/aside"),
                )
            });
        } else if let Some(at) = self.tree.off_branch(self.branch) {
            found.push(Look::condition(
                TreeCondition::OffBranch,
                format!("HEAD is not on its branch, but {at}"),
                "goes on from there; the step's branch is put there when it is done".to_owned(),
            ));
        }
        Ok(found)
    }

    fn moved_branch(&self, was: &Oid, now: &Oid) -> Condition {
        Condition {
            next: Some(format!("git log --oneline --graph {} {}", was.short(), now.short())),
            ..Look::condition(
                TreeCondition::BranchMoved,
                format!(
                    "somebody has moved its branch {} from {} to {}; the files are still those of the former",
                    self.branch,
                    was.short(),
                    now.short()
                ),
                "follows where it was only moved on and nothing is uncommitted; else it is put back, and what it was moved to is kept by a ref below refs/piton".to_owned(),
            )
        }
    }

    /// Git's own locks, with what is known of who holds them.
    fn locks(&self, dir: &Path) -> Vec<Condition> {
        let common = self.tree.git().common_dir();
        let branch = common.join("refs/heads").join(self.branch);
        let of_branch = branch.with_file_name(format!(
            "{}.lock",
            branch.file_name().map(|name| name.to_string_lossy()).unwrap_or_default()
        ));
        let of_refs = common.join("packed-refs.lock");
        let all = [dir.join("index.lock"), dir.join("HEAD.lock"), of_branch, of_refs];
        let there = |path: &&PathBuf| match fs::symlink_metadata(path) {
            Ok(_) => true,
            Err(error) => !is_missing(&error),
        };
        let told = |path: &PathBuf| {
            let shown = path.display();
            let (held, then) = match locks::holder(path) {
                Some(pid) => (format!("process {pid} has it open"), "waits for it, then asks"),
                None => (
                    "no process has it open".to_owned(),
                    "moves it to .git/piton/aside once it has not changed for a while",
                ),
            };
            let age = locks::age(path).map(|age| format!(", {} s old", age.as_secs()));
            let age = age.unwrap_or_default();
            Look::condition(
                TreeCondition::LockLeft,
                format!("git's lock {shown} is there{age}; {held}"),
                then.to_owned(),
            )
        };
        all.iter().filter(there).map(told).collect()
    }
}
