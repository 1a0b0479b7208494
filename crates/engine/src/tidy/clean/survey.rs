//! Finds the worktrees: git's own list, the places where runs of this store have theirs, and what else
//! stands there. Looks only: no lock of git's is taken, no file written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use piton_core::claim::believed_until;
use piton_core::decided::Lease;
use piton_core::event::{Cause, Holder};
use piton_core::ids::{Handle, StepId, StepRef, TreeNo};
use piton_core::observed::{Observed, Sighting};
use piton_core::run::Attempt;
use piton_core::time::{Millis, Moment};
use piton_core::view::{RunStatus, RunView, StepStatus};
use piton_git::repo::listed::{Listed, listed};
use piton_git::repo::names;
use piton_git::repo::status::StatusDepth;
use piton_git::shell;
use piton_git::worktree::{TreeProblem, TreeState, Worktree};
use piton_store::{Runs, Store};

use super::removal::step_on;
use super::{Reason, TreeCounts, TreeRow, TreeStatus, held_at};
use crate::error::EngineError;
use crate::folder::Lock;
use crate::machine;
use crate::project::Project;
use crate::remedy::Remedy;
use crate::run::condition;
use crate::run::log::Log;
use crate::run::observe::{self, look, observe};
use crate::run::runs;
use crate::run::runs::settings_of;

/// Every worktree under piton's roots, and piton's branches that are checked out elsewhere. `root` is
/// where new runs have theirs.
pub fn list(
    project: &Project,
    store: Option<&Arc<dyn Store>>,
    root: &str,
) -> Result<Vec<TreeRow>, EngineError> {
    let mut owners = Vec::new();
    let mut roots = BTreeSet::from([real(&project.git.main_root().join(root))]);
    for log in store.map(|store| runs::list(store, &Runs::All)).transpose()?.unwrap_or_default() {
        // What cannot be read is nobody's to judge: its worktrees are unknown to this store.
        let Ok(log) = log else { continue };
        let Ok(settings) = settings_of(&log) else { continue };
        let root = real(&project.git.main_root().join(settings.worktree_root));
        roots.insert(root.clone());
        owners.push(Owner::of(project, log, root)?);
    }
    let entries = listed(&project.git);
    let mut places: BTreeSet<PathBuf> = roots.iter().flat_map(|root| places(root)).collect();
    let unlinked = |path: &PathBuf| match Worktree::own_place(&project.git, path).state() {
        Ok(TreeState::Unlinked { dir }) => Some((name(&dir), path.clone())),
        _ => None,
    };
    let moved = places.iter().filter_map(unlinked).collect();
    // The folder of a run whose worktrees are gone: there is nothing to say about it alone.
    places.retain(|path| !owners.iter().any(|owner| owner.folder() == *path) || !is_empty(path));
    let main = real(project.git.main_root());
    let ours = entries.iter().filter(|entry| {
        let is_inside = roots.iter().any(|root| entry.place.starts_with(root));
        let has_branch = entry.branch.as_ref().is_some_and(|name| name.starts_with("piton/"));
        (is_inside || has_branch) && entry.place != main
    });
    places.extend(ours.map(|entry| entry.place.clone()));
    let mut conditions = BTreeMap::new();
    for owner in &owners {
        for (step, found) in condition::of_run(project, &owner.log)? {
            let root = owner.root.to_string_lossy();
            let Some(path) = project.tree_of(&root, owner.log.run(), &step) else { continue };
            conditions.insert(Worktree::own_place(&project.git, &path).path().to_owned(), found);
        }
    }
    places.extend(conditions.keys().cloned());
    let survey = Survey { project, owners, roots, entries, at_work: machine::folders(), moved };
    let row = |path: PathBuf| {
        let conditions = conditions.remove(&path).unwrap_or_default();
        TreeRow { conditions, ..survey.row(path) }
    };
    Ok(places.into_iter().map(row).collect())
}

/// The folders of a root where worktrees would be: `<run>/<number>` and `<run>/step/<id>`.
fn places(root: &Path) -> Vec<PathBuf> {
    let of_steps = |path: PathBuf| match path.ends_with("step") {
        true => folders(&path),
        false => vec![path],
    };
    let of_run = |path: PathBuf| match folders(&path) {
        within if within.is_empty() => vec![path],
        within => within.into_iter().flat_map(of_steps).collect(),
    };
    folders(root).into_iter().flat_map(of_run).collect()
}

fn folders(within: &Path) -> Vec<PathBuf> {
    let is_dir = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_dir).collect()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut list| list.next().is_none())
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// A run that has, or had, worktrees.
struct Owner {
    log: Log,
    root: PathBuf,
    view: RunView,
    observed: Observed,
    leases: Vec<Lease>,
    now: Moment,
}

impl Owner {
    fn of(project: &Project, log: Log, root: PathBuf) -> Result<Owner, EngineError> {
        let view = look(project, &log, observe::Depth::Locks)?;
        let observed = observe(project, &log, observe::Depth::Locks);
        let leases = log.store().leases(log.run().opened.run)?;
        let now = log.now()?;
        Ok(Owner { log, root, view, observed, leases, now })
    }

    fn handle(&self) -> &Handle {
        &self.log.run().opened.handle
    }

    /// Whether it can go on.
    fn is_open(&self) -> bool {
        !matches!(self.view.status, RunStatus::Completed | RunStatus::Abandoned { .. })
    }

    fn folder(&self) -> PathBuf {
        self.root.join(self.handle().as_str())
    }

    /// The step whose worktree has this place below the run's folder; no step where the tree is free.
    fn part(&self, project: &Project, part: &Path) -> Option<Option<StepId>> {
        let part = part.to_str()?;
        match part.parse() {
            Ok(number) => {
                let owner = self.log.run().trees().owner(&project.host, TreeNo(number));
                Some(owner.map(|step| step.step.clone()))
            }
            // Branch and place of a step have the same name.
            Err(_) => {
                let branch = format!("piton/{}/{part}", self.handle());
                step_on(&self.log, &branch).map(|step| Some(step.step))
            }
        }
    }

    /// What speaks for somebody being at work in a worktree, and whether they are believed.
    fn holds(&self, project: &Project, path: &Path) -> Option<Held> {
        let held = held_at(project, &self.log, &self.root.to_string_lossy(), path);
        held.map(|(step, attempt)| self.held(&step, attempt))
    }

    fn held(&self, step: &StepRef, attempt: &Attempt) -> Held {
        let until = believed_until(step, attempt, &self.leases);
        match (&attempt.holder, self.observed.of(attempt.id)) {
            (Holder::Keeper { .. }, Sighting::Alive) => {
                Held::Live(format!("step {step} is being worked on").into())
            }
            (Holder::Keeper { .. }, Sighting::Dead(_)) => {
                let remedy = Remedy::Stop { run: self.handle().clone(), step: step.clone() };
                Held::Dead(Reason::with(format!("the attempt at step {step} has died"), remedy))
            }
            _ if !until.is_over(&self.now) => Held::Live(format!("step {step} is claimed").into()),
            _ => {
                let (run, id) = (self.handle().clone(), step.clone());
                let why = format!("step {step} is claimed, its lease is over");
                Held::Dead(Reason::with(why, Remedy::Release { run, step: id }))
            }
        }
    }

    /// Whether something that an attempt started is still there: it holds a lock that it inherited.
    fn haunted(&self, project: &Project) -> Option<String> {
        self.log.run().steps().find_map(|(step, _, state)| {
            let past = state.history.iter().map(|past| &past.attempt).chain(state.attempt());
            let mut kept = past.filter(|attempt| matches!(attempt.holder, Holder::Keeper { .. }));
            kept.any(|attempt| matches!(project.folder(attempt.id).tree(), Ok(Lock::Held)))
                .then(|| format!("something that step {step} has started still runs"))
        })
    }

    /// When something last happened to a step, or to the run.
    fn changed_at(&self, step: Option<&StepId>) -> Millis {
        let run = self.log.run();
        let of_step = step.and_then(|step| run.step(&run.present(step)?)).map(|(_, state)| {
            let ended = state.history.last().map(|past| past.ended_at);
            let kept = state.snapshot.as_ref().map(|kept| kept.at);
            ended.into_iter().chain(kept).max().unwrap_or(run.opened_at)
        });
        of_step.unwrap_or(run.changed_at)
    }

    /// Why nobody is at work on a step, or on the run, where it was interrupted.
    fn cause(&self, step: Option<&StepId>) -> Option<Cause> {
        match self.status(step) {
            TreeStatus::Interrupted { cause } => cause,
            _ => None,
        }
    }

    fn status(&self, step: Option<&StepId>) -> TreeStatus {
        // Given up as a whole, whatever its steps were.
        match step.filter(|_| self.log.run().abandoned.is_none()) {
            None => run_status(&self.view.status),
            Some(step) => {
                let view = self.view.steps.iter().find(|view| view.step.step == *step);
                view.map_or(TreeStatus::Unknown, |view| match &view.status {
                    StepStatus::Completed { .. } => TreeStatus::Completed,
                    StepStatus::Interrupted { cause, .. } => {
                        TreeStatus::Interrupted { cause: Some(*cause) }
                    }
                    other => TreeStatus::Unfinished { as_told: other.word() },
                })
            }
        }
    }
}

fn run_status(status: &RunStatus) -> TreeStatus {
    match status {
        RunStatus::Completed => TreeStatus::Completed,
        RunStatus::Abandoned { .. } => TreeStatus::Abandoned,
        RunStatus::Interrupted { cause, .. } | RunStatus::Stopped { cause, .. } => {
            TreeStatus::Interrupted { cause: Some(*cause) }
        }
        RunStatus::Failed { .. } => TreeStatus::Interrupted { cause: None },
        RunStatus::Running => TreeStatus::Live,
        other => TreeStatus::Unfinished { as_told: other.word() },
    }
}

/// Somebody who has, or had, a worktree.
enum Held {
    Live(Reason),
    /// Not believed any more, and not recorded as ended.
    Dead(Reason),
}

/// What is known when a place is looked at.
struct Survey<'a> {
    project: &'a Project,
    owners: Vec<Owner>,
    roots: BTreeSet<PathBuf>,
    /// Git's own list.
    entries: Vec<Listed>,
    /// Processes and the folders they work in.
    at_work: Vec<(i32, PathBuf)>,
    /// Entries of git's list that name another place than the worktree is in, and where it is.
    moved: BTreeMap<String, PathBuf>,
}

impl Survey<'_> {
    fn row(&self, path: PathBuf) -> TreeRow {
        let entry = self.entries.iter().find(|entry| entry.place == path);
        let is_gone = fs::symlink_metadata(&path).is_err();
        let is_inside = self.roots.iter().any(|root| path.starts_with(root));
        let branch = entry.filter(|_| is_gone || !is_inside).and_then(|e| e.branch.clone());
        let (owner, step) = self.whose(&path, branch.as_deref()).unzip();
        let (owner, step) = (owner, step.flatten());
        let abandoned = owner.and_then(|owner| owner.log.run().abandoned);
        let mut row = TreeRow {
            run: owner.map(|owner| owner.log.run().opened.run),
            handle: owner.map(|owner| owner.handle().clone()),
            branch,
            head: entry.filter(|_| is_gone || !is_inside).and_then(|e| e.head.clone()),
            status: owner.map_or(TreeStatus::Unknown, |owner| owner.status(step.as_ref())),
            changed_at: owner.map(|owner| owner.changed_at(step.as_ref())),
            counts: None,
            conditions: Vec::new(),
            obstacle: None,
            is_listed: entry.is_some(),
            attic_until: abandoned.and_then(|abandoned| abandoned.keep_until),
            path,
            step,
        };
        let tree = Worktree::own_place(&self.project.git, &row.path);
        match tree.state() {
            _ if is_gone => self.look_for_folder(entry, owner, &mut row),
            _ if !is_inside => {
                row.status = TreeStatus::Unknown;
                row.obstacle = Some("it is not where piton has its worktrees".into());
                return row;
            }
            Ok(TreeState::Present { dir }) => self.look_inside(&tree, &dir, &mut row),
            Ok(TreeState::HalfMade { .. }) => {
                let remedy = row.handle.clone().map(|run| Remedy::Resume { run });
                row.obstacle = Some(Reason { why: "it is half made".to_owned(), remedy });
            }
            Ok(TreeState::Unlinked { .. }) => {
                row.is_listed = false;
                row.obstacle = Some(Reason::with("it was moved", repair(owner, &row.path)));
            }
            Ok(TreeState::Missing) => {
                row.status = TreeStatus::Foreign;
                row.obstacle = Some("it is an empty folder".into());
            }
            Ok(TreeState::Damaged { why, .. }) => {
                let remedy = row.handle.clone().map(|run| Remedy::Resume { run });
                row.obstacle = Some(Reason { why: format!("git cannot use it: {why}"), remedy });
            }
            Ok(TreeState::Foreign { why }) => {
                row.status = TreeStatus::Foreign;
                let why = format!("it is not a worktree of this repository: {why}");
                row.obstacle = Some(why.into());
            }
            Err(error) => row.obstacle = Some(error.into()),
        }
        if let Some(owner) = owner {
            self.look_for_holders(owner, &mut row);
        }
        row
    }

    /// Whose a worktree is, and of which step: by its place, else by the branch that git's list has for it.
    fn whose(&self, path: &Path, branch: Option<&str>) -> Option<(&Owner, Option<StepId>)> {
        self.owners.iter().find_map(|owner| {
            let part = |part: &Path| owner.part(self.project, part);
            let placed = path.strip_prefix(owner.folder()).ok().and_then(part);
            let named = || {
                let rest = branch?.strip_prefix("piton/")?.strip_prefix(owner.handle().as_str())?;
                Some(part(Path::new(rest.strip_prefix('/')?)).flatten())
            };
            Some((owner, placed.or_else(named)?))
        })
    }

    /// Whatever is in the way comes first: nothing else is said about such a worktree.
    fn look_inside(&self, tree: &Worktree, dir: &Path, row: &mut TreeRow) {
        let seen = machine::modified(&dir.join("HEAD")).max(machine::modified(&dir.join("index")));
        row.changed_at = row.changed_at.max(seen);
        match tree.head() {
            Ok(Some(head)) => (row.head, row.branch) = (head.commit, head.branch),
            Ok(None) => {
                row.obstacle = Some("it changes while it is looked at".into());
                return;
            }
            Err(error) => {
                row.obstacle = Some(error.into());
                return;
            }
        }
        match counts(tree) {
            Ok(counts) => row.counts = Some(counts),
            Err(error) => row.obstacle = Some(error.into()),
        }
        if row.obstacle.is_none() {
            row.obstacle = self.obstacle(tree, dir, row);
        }
    }

    /// Why a worktree must be left alone, whosever it is.
    fn obstacle(&self, tree: &Worktree, dir: &Path, row: &TreeRow) -> Option<Reason> {
        let problems = match tree.problems(row.branch.as_deref().unwrap_or_default()) {
            Ok(problems) => problems,
            Err(error) => return Some(error.into()),
        };
        let is_in_the_way = |problem: &TreeProblem| match problem {
            TreeProblem::LockLeft { lock, .. } => Path::new(lock).starts_with(dir),
            TreeProblem::Locked { .. }
            | TreeProblem::InProgress(_)
            | TreeProblem::BranchElsewhere { .. } => true,
            _ => false,
        };
        let busy = self.at_work.iter().find(|(_, folder)| folder.starts_with(&row.path));
        // Also where that worktree has no folder any more.
        let shares = |entry: &&Listed| entry.branch == row.branch && entry.place != row.path;
        let shared = self.entries.iter().find(shares).filter(|_| row.branch.is_some());
        let found = problems.into_iter().find(is_in_the_way).map(Reason::from);
        found.or_else(|| busy.map(|(pid, _)| format!("process {pid} works in it").into())).or_else(
            || {
                let place = shared?.place.display();
                Some(format!("its branch is also checked out in {place}").into())
            },
        )
    }

    /// Git's list or a run has it, and there is no folder.
    fn look_for_folder(&self, entry: Option<&Listed>, owner: Option<&Owner>, row: &mut TreeRow) {
        row.status =
            TreeStatus::Missing { cause: owner.and_then(|owner| owner.cause(row.step.as_ref())) };
        let moved = entry.and_then(|entry| self.moved.get(&entry.name));
        row.obstacle = Some(match (moved, owner.filter(|owner| owner.is_open())) {
            // To forget it would break what is only to be repaired.
            (Some(to), _) => {
                Reason::with(format!("it is in {} by now", to.display()), repair(owner, to))
            }
            (None, Some(owner)) => {
                let remedy = Remedy::Resume { run: owner.handle().clone() };
                Reason::with("there is nothing", remedy)
            }
            (None, None) => {
                let command = "git worktree prune".to_owned();
                Reason::with("there is nothing", Remedy::Shell { command })
            }
        });
    }

    fn look_for_holders(&self, owner: &Owner, row: &mut TreeRow) {
        let held = owner.holds(self.project, &row.path);
        let other = || {
            let mut others = self.owners.iter().filter(|other| other.handle() != owner.handle());
            let by = others.find(|other| other.holds(self.project, &row.path).is_some())?;
            Some(Held::Live(format!("a step of {} is claimed from it", by.handle()).into()))
        };
        match held.or_else(other) {
            Some(Held::Live(why)) => {
                row.status = TreeStatus::Live;
                row.obstacle = Some(why);
            }
            // That there is nothing says more, and its cause is known already.
            Some(Held::Dead(_)) if matches!(row.status, TreeStatus::Missing { .. }) => {}
            Some(Held::Dead(why)) => {
                if !matches!(row.status, TreeStatus::Interrupted { .. }) {
                    row.status = TreeStatus::Interrupted { cause: None };
                }
                row.obstacle = Some(why);
            }
            None => {
                if let Some(why) = owner.haunted(self.project) {
                    row.obstacle = Some(why.into());
                }
            }
        }
    }
}

/// What makes a worktree that was moved, or whose repository was, git's again.
fn repair(owner: Option<&Owner>, path: &Path) -> Remedy {
    match owner.filter(|owner| owner.is_open()) {
        Some(owner) => Remedy::Resume { run: owner.handle().clone() },
        None => Remedy::Shell { command: format!("git worktree repair {}", shell::path(path)) },
    }
}

fn counts(tree: &Worktree) -> Result<TreeCounts, EngineError> {
    let seen = tree.status(StatusDepth::Everything)?;
    let mut ignored = Size::default();
    for path in &seen.ignored {
        ignored.add(&tree.path().join(names::path(path)));
    }
    let mut all = Size::default();
    all.add(tree.path());
    Ok(TreeCounts {
        dirty: seen.tracked.len() as u64,
        untracked: seen.untracked.len() as u64,
        ignored: ignored.files,
        ignored_bytes: ignored.bytes,
        unmerged: 0,
        bytes: all.bytes,
    })
}

/// What files take on disk.
#[derive(Default)]
struct Size {
    files: u64,
    bytes: u64,
}

impl Size {
    /// Links are not followed; what cannot be looked at counts for nothing.
    fn add(&mut self, path: &Path) {
        const BLOCK: u64 = 512;
        let mut left = vec![path.to_owned()];
        while let Some(path) = left.pop() {
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            self.bytes += found.blocks() * BLOCK;
            match found.is_dir() {
                true => {
                    let list = fs::read_dir(&path).into_iter().flatten().flatten();
                    left.extend(list.map(|entry| entry.path()));
                }
                false => self.files += 1,
            }
        }
    }
}
