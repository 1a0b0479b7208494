//! Opening a run of a plan: what a run needs is looked at first, an unfinished run of the same plan is found
//! or left aside, then the run is recorded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use piton_core::event::{FoundState, Repository, RunOpened, SnapshotReason};
use piton_core::ids::{Handle, Hash, Oid, RunId, StepId};
use piton_core::plan::Plan;
use piton_core::view::run_branch;
use piton_git::repo::{Git, Moved, commit_tree};
use piton_git::snapshot::{self, Ask};
use piton_git::worktree::Worktree;
use piton_store::{NewRun, RunRow, Runs, Store};

use crate::config::Settings;
use crate::error::EngineError;
use crate::project::Project;
use crate::registry;
use crate::run::found_work::{self, FoundWork};
use crate::run::log::{Log, Opened};
use crate::run::plan_file::{Changed, PlanRead, canonical, check_agents, key_of, placed};
use crate::run::runs::{Unreadable, load};
use crate::run::write_back;
use crate::tidy::abandon;

/// What `run` asks for.
pub struct OpenAsk {
    pub plan: PlanRead,
    /// Values that replace the plan's defaults.
    pub inputs: BTreeMap<String, String>,
    pub settings: Settings,
    pub start: Start,
}

/// Where a run begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Start {
    /// Where the plan says, else at what is checked out here.
    #[default]
    Plan,
    /// At this branch, tag or commit.
    Base(String),
    /// With what this worktree has, uncommitted files included.
    Tree(PathBuf),
}

/// A run that can be opened: everything that can be refused without a store has been looked at.
pub struct Opening {
    read: PlanRead,
    plan_path: String,
    opened_in: Option<String>,
    inputs: BTreeMap<String, String>,
    settings: Settings,
    repository: Repository,
    base: Oid,
    base_branch: Option<String>,
    /// A worktree whose uncommitted files the run begins with.
    adopts: Option<PathBuf>,
}

/// What to do about an unfinished run of the same plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// It is the run.
    GoOn,
    /// It keeps its work and goes to the attic; one that is alive is refused.
    LeaveAside,
}

/// What `open` found.
pub enum OpenedRun {
    New(Log),
    /// The unfinished run of this plan.
    Existing(Log),
    /// The unfinished run, whose plan was changed since.
    Changed(Log, Changed),
}

/// Looks at everything a run needs before there is one; writes nothing.
pub fn prepare(project: &Project, ask: OpenAsk) -> Result<Opening, EngineError> {
    let read = ask.plan.assigned(&ask.settings);
    let plan = read.plan();
    check_agents(plan, &ask.settings)?;
    let inputs = inputs(plan, ask.inputs)?;
    Git::check_version()?;
    project.git.can_make_branches("piton")?;
    project.check_worktrees(&ask.settings.worktree_root)?;
    let placed = placed(project, &read.path)?;
    let is_main = placed.root == canonical(project.git.main_root());
    let Beginning { base, base_branch, adopts } = beginning(project, plan, &ask.start)?;
    let repository = Repository { root: project.git.root_of(&base)?, remote: project.git.remote() };
    Ok(Opening {
        read,
        plan_path: placed.within,
        opened_in: (!is_main).then(|| placed.root.to_string_lossy().into_owned()),
        inputs,
        settings: ask.settings,
        repository,
        base,
        base_branch,
        adopts,
    })
}

/// The commit that a run begins at.
struct Beginning {
    base: Oid,
    base_branch: Option<String>,
    adopts: Option<PathBuf>,
}

fn beginning(project: &Project, plan: &Plan, start: &Start) -> Result<Beginning, EngineError> {
    let at = |rev: Option<&str>| {
        let base = project.git.commit(rev.unwrap_or("HEAD"))?;
        let base_branch = base_branch(project, rev.filter(|rev| *rev != "HEAD"))?;
        Ok(Beginning { base, base_branch, adopts: None })
    };
    let path = match start {
        Start::Plan => return at(plan.base.as_deref()),
        Start::Base(rev) => return at(Some(rev)),
        Start::Tree(path) => canonical(path),
    };
    let tree = Worktree::at(&project.git, &path);
    let head = tree.head()?.and_then(|head| Some((head.commit?, head.branch)));
    let Some((base, base_branch)) = head else {
        let source = std::io::Error::other("it is not a worktree of this repository");
        return Err(EngineError::Worktree { path, source });
    };
    let adopts = tree.dirty()?.then_some(path);
    Ok(Beginning { base, base_branch, adopts })
}

/// The branch that a run of the plan begins from: the one that it names, or what is checked out here.
fn base_branch(project: &Project, base: Option<&str>) -> Result<Option<String>, EngineError> {
    if let Some(base) = base {
        let branch = project.git.ref_target(&format!("refs/heads/{base}"))?;
        return Ok(branch.map(|_| base.to_owned()));
    }
    let here = Worktree::at(&project.git, project.git.here()).head()?;
    Ok(here.and_then(|head| head.branch).filter(|name| !name.starts_with("piton/")))
}

impl Opening {
    pub fn plan(&self) -> &Plan {
        self.read.plan()
    }

    /// What the plan's file says is done, and where that work is.
    pub fn found_work(&self, project: &Project) -> Result<FoundWork, EngineError> {
        match &self.plan().source {
            None => Ok(FoundWork::default()),
            Some(source) => {
                let plan = (source.format, self.plan_path.as_str());
                found_work::look(project, &self.read.found, plan, &self.base)
            }
        }
    }

    /// Lets the run begin elsewhere.
    pub fn begin_at(&mut self, project: &Project, start: &Start) -> Result<(), EngineError> {
        let Beginning { base, base_branch, adopts } = beginning(project, self.read.plan(), start)?;
        (self.base, self.base_branch, self.adopts) = (base, base_branch, adopts);
        Ok(())
    }

    /// Decides what a step counts as, whatever its file says.
    pub fn count_as(&mut self, step: &StepId, state: &FoundState) {
        for found in self.read.found.iter_mut().filter(|found| found.step.step == *step) {
            found.state = state.clone();
        }
    }
}

/// The run's first commit with what a worktree has in no commit; nothing is changed there.
fn adopt(
    project: &Project,
    (handle, read): (&Handle, &PlanRead),
    (path, head): (&Path, &Oid),
) -> Result<Oid, EngineError> {
    let begun = read.found.iter().find(|found| found.state == FoundState::InProgress);
    let first = || read.plan().steps.iter().next().map(|step| &step.id);
    let step = begun.map(|found| &found.step.step).or_else(first).map_or("", StepId::as_str);
    let message = format!("Work that was found in {}", path.display());
    let ask = Ask {
        folder: format!("refs/piton/{handle}/{step}/0"),
        base: None,
        message: message.clone(),
        reason: SnapshotReason::Recovery,
        last: None,
    };
    let tree = Worktree::at(&project.git, path);
    let Some(kept) = snapshot::keep(&tree, &ask)? else { return Ok(head.clone()) };
    snapshot::read_back(&project.git, &kept)?;
    let base =
        commit_tree(|| project.git.call(), &kept.tree, std::slice::from_ref(head), &message)?;
    // The run's branch is what keeps it.
    let branch = format!("refs/heads/{}", run_branch(handle));
    match project.git.move_ref(&branch, &base, None, "piton: work that was found")? {
        Moved::Moved => Ok(base),
        Moved::Lost { .. } => Ok(head.clone()),
    }
}

/// Opens a run of a plan, or finds the unfinished one.
pub fn open(
    project: &Project,
    store: Arc<dyn Store>,
    opening: Opening,
    unfinished: Unfinished,
) -> Result<OpenedRun, EngineError> {
    registry::remember(project);
    let Opening { read, plan_path, repository, .. } = opening;
    let key = key_of(&repository, &plan_path);
    let plan = Arc::clone(&read.plan);
    let present = store.runs(&Runs::HoldingKey(key.clone()))?.pop();
    let run = RunId(uuid::Uuid::now_v7());
    let replaces = match (&present, unfinished) {
        (Some(row), Unfinished::GoOn) => return existing(store, row.run, read),
        (Some(row), Unfinished::LeaveAside) => leave_aside(project, &store, row.run, run)?,
        (None, _) => None,
    };
    let settings = opening.settings.to_bytes();
    let handle = free_handle(project, &store)?;
    let base = match &opening.adopts {
        Some(path) => adopt(project, (&handle, &read), (path, &opening.base))?,
        None => opening.base,
    };
    let opened = RunOpened {
        run,
        handle,
        plan: plan.hash(),
        plan_path,
        opened_in: opening.opened_in,
        repository,
        base,
        base_branch: opening.base_branch,
        inputs: opening.inputs,
        settings: Hash::of(&settings),
        host: project.host.clone(),
    };
    let name = opened.handle.to_string();
    let new = NewRun { run, name, key, replaces };
    match Log::open(Arc::clone(&store), &new, Arc::clone(&plan), &settings, opened, &read.found)? {
        Opened::New(mut log) => {
            log.remember(read.file());
            if log.run().plan().source.is_some() {
                write_back::remember(project, log.run(), read.as_read())?;
            }
            Ok(OpenedRun::New(log))
        }
        // Somebody else opened one at the same moment: theirs is the run.
        Opened::Existing(run) => existing(store, run, read),
    }
}

fn existing(store: Arc<dyn Store>, run: RunId, read: PlanRead) -> Result<OpenedRun, EngineError> {
    let mut log = Log::load(store, run)?;
    let drift = read.drift(log.run());
    log.remember(read.file());
    Ok(match drift {
        None => OpenedRun::Existing(log),
        Some(changed) => OpenedRun::Changed(log, changed),
    })
}

/// Makes room for a new run. One whose agents work is refused: it has to be stopped first. One that
/// cannot be read is what starting over is for: it only loses its place.
fn leave_aside(
    project: &Project,
    store: &Arc<dyn Store>,
    old: RunId,
    new: RunId,
) -> Result<Option<RunId>, EngineError> {
    let Ok(mut log) = Log::load(Arc::clone(store), old) else { return Ok(Some(old)) };
    abandon::to_attic(project, &mut log, new)?;
    Ok(None)
}

/// The unfinished run of a plan, and others that look like one: of the same steps in another file, or
/// of a plan with the same name. A run that cannot be read is none of the others.
pub struct Unended {
    pub own: Option<Result<Log, Box<Unreadable>>>,
    pub near: Vec<NearRun>,
}

/// An unfinished run that looks like one of a plan, which is in another file.
pub struct NearRun {
    pub log: Log,
    /// Whether it says the same to the letter; else only its name is the same.
    pub is_same: bool,
}

/// Looks for unfinished runs before another one is opened.
pub fn unended(store: &Arc<dyn Store>, opening: &Opening) -> Result<Unended, EngineError> {
    let key = key_of(&opening.repository, &opening.plan_path);
    let (own, others): (Vec<RunRow>, Vec<RunRow>) =
        store.runs(&Runs::Active)?.into_iter().partition(|row| row.key == key);
    let near = |log: Log| {
        let is_same = log.run().graph().hash() == opening.plan().hash();
        let is_near = is_same || log.run().plan().name == opening.plan().name;
        is_near.then_some(NearRun { log, is_same })
    };
    let others = others.into_iter().filter_map(|row| load(store, row).ok());
    let own = own.into_iter().next().map(|row| load(store, row));
    Ok(Unended { own, near: others.filter_map(near).collect() })
}

fn inputs(
    plan: &Plan,
    given: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, EngineError> {
    let mut inputs = plan.inputs.clone();
    for (name, value) in given {
        match inputs.get_mut(&name) {
            Some(slot) => *slot = value,
            None => {
                let known = plan.inputs.keys().cloned().collect();
                return Err(EngineError::UnknownInput { name, known });
            }
        }
    }
    Ok(inputs)
}

/// The variable with the handle of the next new run: transcripts in tests repeat to the letter.
const NEXT_HANDLE: &str = "PITON_NEXT_HANDLE";

/// A handle that no run and no branch has.
fn free_handle(project: &Project, store: &Arc<dyn Store>) -> Result<Handle, EngineError> {
    let mut wanted = std::env::var(NEXT_HANDLE).ok();
    loop {
        let name = wanted.take().unwrap_or_else(petname);
        let Ok(handle) = Handle::new(name) else { continue };
        let branch = format!("refs/heads/{}", run_branch(&handle));
        let is_run = !store.runs(&Runs::Named(handle.to_string()))?.is_empty();
        if !is_run && project.git.ref_target(&branch)?.is_none() {
            return Ok(handle);
        }
    }
}

/// Two words that are easy to say and to type.
fn petname() -> String {
    const ADJECTIVES: &str = include_str!(concat!(env!("OUT_DIR"), "/adjectives.txt"));
    const NOUNS: &str = include_str!(concat!(env!("OUT_DIR"), "/nouns.txt"));
    let [adjectives, nouns] = [ADJECTIVES, NOUNS].map(|all| all.lines().collect::<Vec<_>>());
    // The last bytes are random.
    let [.., a, b, c, d] = uuid::Uuid::now_v7().into_bytes();
    let random = u32::from_le_bytes([a, b, c, d]) as usize;
    let (noun, adjective) = (random % nouns.len(), random / nouns.len() % adjectives.len());
    format!("{}-{}", adjectives[adjective], nouns[noun])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_differ() {
        let names: BTreeSet<String> = (0..1_000).map(|_| petname()).collect();
        assert!(names.len() > 990, "{}", names.len());
        let is_word = |word: &str| word.bytes().all(|byte| byte.is_ascii_lowercase());
        assert!(
            names.iter().all(|name| name.split('-').count() == 2 && name.split('-').all(is_word))
        );
    }
}
