//! Finds the worktrees: where runs of this store have theirs, what else stands under the same roots, and
//! piton's branches that are checked out elsewhere. Looks only: no lock of git's is taken, no file
//! written.

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
use piton_git::repo::names;
use piton_git::repo::status::StatusDepth;
use piton_git::shell;
use piton_git::worktree::{Listed, TreeState, Worktree, listed, obstacle_in};
use piton_store::{Runs, Store};

use super::{Reason, TreeCounts, TreeRow, TreeStatus};
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
    let mut known = Vec::new();
    let mut roots = BTreeSet::from([real(&project.git.main_root().join(root))]);
    for log in store.map(|store| runs::list(store, &Runs::All)).transpose()?.unwrap_or_default() {
        // What cannot be read is nobody's to judge: its worktrees are unknown to this store.
        let Ok(log) = log else { continue };
        let Ok(settings) = settings_of(&log) else { continue };
        let root = real(&project.git.main_root().join(settings.worktree_root));
        roots.insert(root.clone());
        known.push(Owner::of(project, log, root)?);
    }
    let entries = listed(&project.git);
    let all = roots.iter().flat_map(|root| places(root));
    let moved = all.filter_map(|place| match Worktree::at(&project.git, &place.path).state() {
        Ok(TreeState::Unlinked { dir }) => Some((name(&dir), place.path)),
        _ => None,
    });
    let moved = moved.collect();
    let at_work = machine::folders();
    let present = Present { project, owners: &known, entries: &entries, at_work, moved };
    let mut rows: BTreeMap<PathBuf, TreeRow> = BTreeMap::new();
    for root in &roots {
        for place in places(root) {
            if place.is_left_by(&known) {
                continue;
            }
            rows.insert(place.path.clone(), present.row(root, place)?);
        }
    }
    for entry in &entries {
        let inside = roots.iter().any(|root| entry.place.starts_with(root));
        let ours = entry.branch.as_deref().is_some_and(|name| name.starts_with("piton/"));
        let is_main = entry.place == real(project.git.main_root());
        if (inside || ours) && !is_main && !rows.contains_key(&entry.place) {
            rows.insert(entry.place.clone(), present.astray(entry));
        }
    }
    for owner in &known {
        for (step, conditions) in condition::of_run(project, &owner.log)? {
            let root = owner.root.to_string_lossy();
            let path = project.tree_of(&root, owner.log.run(), &step);
            let Some(path) = path else { continue };
            let path = Worktree::own_place(&project.git, &path).path().to_owned();
            let row = rows.entry(path.clone()).or_insert_with(|| owner.gone(path, &step));
            row.conditions.extend(conditions);
        }
    }
    Ok(rows.into_values().collect())
}

/// A place where a worktree of piton's would be.
struct PlaceFound {
    path: PathBuf,
    handle: String,
    /// What it is called below its run's folder.
    part: Part,
}

impl PlaceFound {
    /// The folder of a run whose worktree is gone: there is nothing to say about it alone.
    fn is_left_by(&self, known: &[Owner]) -> bool {
        let is_own = |owner: &Owner| owner.root.join(owner.handle().as_str()) == self.path;
        let is_empty = || fs::read_dir(&self.path).is_ok_and(|mut list| list.next().is_none());
        matches!(self.part, Part::Other) && known.iter().any(is_own) && is_empty()
    }
}

enum Part {
    Tree(TreeNo),
    Step(String),
    Other,
}

/// The folders of a root: `<run>/<number>`, `<run>/step/<id>`, and what else is there.
fn places(root: &Path) -> Vec<PlaceFound> {
    let mut found = Vec::new();
    for run in folders(root) {
        let handle = name(&run);
        let place = |path: PathBuf, part: Part| PlaceFound { path, handle: handle.clone(), part };
        let mut parts = 0;
        for part in folders(&run) {
            parts += 1;
            let number = name(&part).parse().map(TreeNo);
            match name(&part).as_str() {
                "step" => found.extend(folders(&part).into_iter().map(|step| {
                    let id = name(&step);
                    place(step, Part::Step(id))
                })),
                _ => found.push(place(part, number.map_or(Part::Other, Part::Tree))),
            }
        }
        if parts == 0 {
            found.push(place(run, Part::Other));
        }
    }
    found
}

fn folders(within: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| is_dir(path)).collect();
    found.sort();
    found
}

fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
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

    /// A worktree that even git has forgotten.
    fn gone(&self, path: PathBuf, step: &StepRef) -> TreeRow {
        TreeRow {
            path,
            run: Some(self.log.run().opened.run),
            handle: Some(self.handle().clone()),
            step: Some(step.step.clone()),
            branch: None,
            head: None,
            status: TreeStatus::Missing { cause: self.cause(Some(&step.step)) },
            changed_at: Some(self.changed_at(Some(&step.step))),
            counts: None,
            conditions: Vec::new(),
            obstacle: Some("there is nothing".into()),
            entry: None,
            attic_until: None,
        }
    }

    /// The step that a tree of the pool belongs to.
    fn owner_of(&self, project: &Project, tree: TreeNo) -> Option<StepId> {
        self.log.run().trees().owner(&project.host, tree).map(|step| step.step.clone())
    }

    /// What speaks for somebody being at work in a worktree, and whether they are believed.
    fn holds(&self, project: &Project, path: &Path) -> Option<Held> {
        let root = self.root.to_string_lossy();
        let mut held = self.log.run().held().filter_map(|(at, attempt)| {
            let place = project.place_of(&root, self.log.run(), attempt)?;
            let here = match &attempt.holder {
                Holder::External { .. } => place.starts_with(path),
                Holder::Keeper { .. } => Worktree::own_place(&project.git, &place).path() == path,
            };
            here.then(|| self.held(&at, attempt))
        });
        held.next()
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
        let of_step =
            step.and_then(|step| run.step(&StepRef::first(step.clone()))).map(|(_, state)| {
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
struct Present<'a> {
    project: &'a Project,
    owners: &'a [Owner],
    entries: &'a [Listed],
    /// Processes and the folders they work in.
    at_work: Vec<(i32, PathBuf)>,
    /// Entries of git's list that name another place than the worktree is in, and where it is.
    moved: BTreeMap<String, PathBuf>,
}

impl Present<'_> {
    fn row(&self, root: &Path, place: PlaceFound) -> Result<TreeRow, EngineError> {
        let PlaceFound { path, handle, part } = place;
        let path = real(&path);
        let of = |owner: &&Owner| owner.root == root && owner.handle().as_str() == handle;
        let owner = self.owners.iter().find(of);
        let (owner, step) = match (owner, part) {
            (Some(owner), Part::Tree(tree)) => (Some(owner), owner.owner_of(self.project, tree)),
            (Some(owner), Part::Step(id)) => match step_named(owner, &id) {
                Some(step) => (Some(owner), Some(step)),
                None => (None, None),
            },
            (_, _) => (None, None),
        };
        let tree = Worktree::at(&self.project.git, &path);
        let mut row = TreeRow {
            path: path.clone(),
            run: owner.map(|owner| owner.log.run().opened.run),
            handle: owner.map(|owner| owner.handle().clone()),
            step: step.clone(),
            branch: None,
            head: None,
            status: owner.map_or(TreeStatus::Unknown, |owner| owner.status(step.as_ref())),
            changed_at: owner.map(|owner| owner.changed_at(step.as_ref())),
            counts: None,
            conditions: Vec::new(),
            obstacle: None,
            entry: None,
            attic_until: owner
                .and_then(|owner| owner.log.run().abandoned)
                .and_then(|abandoned| abandoned.keep_until),
        };
        match tree.state() {
            Ok(TreeState::Present { dir }) => self.look_inside(&tree, &dir, &mut row),
            Ok(TreeState::HalfMade { dir }) => {
                row.entry = Some(name(&dir));
                let remedy = row.handle.clone().map(|run| Remedy::Resume { run });
                row.obstacle = Some(Reason { why: "it is half made".to_owned(), remedy });
            }
            Ok(TreeState::Unlinked { .. }) => {
                row.obstacle = Some(Reason::with("it was moved", repair(owner, &path)));
            }
            Ok(TreeState::Missing) => {
                row.status = TreeStatus::Foreign;
                row.obstacle = Some("it is an empty folder".into());
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
        Ok(row)
    }

    /// Whatever is in the way comes first: nothing else is said about such a worktree.
    fn look_inside(&self, tree: &Worktree, dir: &Path, row: &mut TreeRow) {
        row.entry = Some(name(dir));
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
        let elsewhere = |entry: &&Listed| entry.branch == row.branch && entry.place != row.path;
        let shared = self.entries.iter().find(elsewhere).filter(|_| row.branch.is_some());
        let busy = self.at_work.iter().find(|(_, folder)| folder.starts_with(&row.path));
        let obstacle = match (obstacle_in(dir), busy, shared) {
            (Some(why), _, _) => Some(why),
            (None, Some((pid, _)), _) => Some(format!("process {pid} works in it")),
            (None, None, Some(other)) => {
                Some(format!("its branch is also checked out in {}", other.place.display()))
            }
            (None, None, None) => None,
        };
        row.obstacle = row.obstacle.take().or(obstacle.map(Reason::from));
    }

    fn look_for_holders(&self, owner: &Owner, row: &mut TreeRow) {
        let held = owner.holds(self.project, &row.path);
        let other = || {
            let others = self.owners.iter().filter(|other| other.handle() != owner.handle());
            let outside = |other: &Owner| {
                other.log.run().held().any(|(_, attempt)| {
                    matches!(&attempt.holder,
                    Holder::External { host, worktree }
                        if *host == self.project.host && Path::new(worktree).starts_with(&row.path))
                })
            };
            let by = others.into_iter().find(|other| outside(other))?;
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

    /// An entry of git's list that is not where a worktree of piton's would be, or has no folder.
    fn astray(&self, entry: &Listed) -> TreeRow {
        let gone = fs::symlink_metadata(&entry.place).is_err();
        let (owner, of) = self.whose(entry);
        let cause = owner.and_then(|owner| owner.cause(of.as_ref()));
        let (status, why) = match (gone, self.moved.get(&entry.name), owner) {
            (true, Some(to), _) => {
                // To forget it would break what is only to be repaired.
                let why = format!("it is in {} by now", to.display());
                (TreeStatus::Missing { cause }, Reason::with(why, repair(owner, to)))
            }
            (true, None, Some(owner)) if owner.is_open() => {
                let remedy = Remedy::Resume { run: owner.handle().clone() };
                (TreeStatus::Missing { cause }, Reason::with("there is nothing", remedy))
            }
            (true, None, _) => {
                let remedy = Remedy::Shell { command: "git worktree prune".to_owned() };
                (TreeStatus::Missing { cause }, Reason::with("there is nothing", remedy))
            }
            (false, ..) => (TreeStatus::Unknown, "it is not where piton has its worktrees".into()),
        };
        let mut row = TreeRow {
            path: entry.place.clone(),
            run: owner.map(|owner| owner.log.run().opened.run),
            handle: owner.map(|owner| owner.handle().clone()),
            step: of.clone(),
            branch: entry.branch.clone(),
            head: entry.head.clone(),
            status,
            changed_at: owner.map(|owner| owner.changed_at(of.as_ref())),
            counts: None,
            conditions: Vec::new(),
            obstacle: Some(why),
            entry: Some(entry.name.clone()),
            attic_until: None,
        };
        // Somebody may be about to make it.
        if let Some(owner) = owner.filter(|_| gone) {
            self.look_for_holders(owner, &mut row);
        }
        row
    }

    /// Whose an entry of git's list is: by its place, else by its branch.
    fn whose(&self, entry: &Listed) -> (Option<&Owner>, Option<StepId>) {
        let branch = entry.branch.as_deref().unwrap_or_default();
        let found = self.owners.iter().find_map(|owner| {
            let handle = owner.handle().as_str();
            let placed = entry.place.strip_prefix(owner.root.join(handle)).ok();
            let named = || branch.strip_prefix("piton/")?.strip_prefix(handle)?.strip_prefix('/');
            Some((owner, placed.and_then(Path::to_str).or_else(named)?))
        });
        let Some((owner, part)) = found else { return (None, None) };
        let step = match part.parse() {
            Ok(number) => owner.owner_of(self.project, TreeNo(number)),
            Err(_) => part.strip_prefix("step/").and_then(|id| step_named(owner, id)),
        };
        (Some(owner), step)
    }
}

/// What makes a worktree that was moved, or whose repository was, git's again.
fn repair(owner: Option<&Owner>, path: &Path) -> Remedy {
    match owner.filter(|owner| owner.is_open()) {
        Some(owner) => Remedy::Resume { run: owner.handle().clone() },
        None => Remedy::Shell { command: format!("git worktree repair {}", shell::path(path)) },
    }
}

/// The step whose worktree has this name: its id, or its id and the iteration.
fn step_named(owner: &Owner, name: &str) -> Option<StepId> {
    let run = owner.log.run();
    let known = |text: &str| {
        StepId::new(text).ok().filter(|id| run.index_of(&StepRef::first(id.clone())).is_some())
    };
    known(name).or_else(|| {
        let (stem, number) = name.rsplit_once('-')?;
        number.parse::<u32>().ok()?;
        known(stem)
    })
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
