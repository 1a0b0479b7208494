//! Opening, finding and stopping runs: what verbs ask of the store before anything is executed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use piton_core::cache::PlanFile;
use piton_core::decide::Command;
use piton_core::event::{Cause, Haste, Repository, RunOpened, Scope, Under};
use piton_core::ids::{AgentName, Handle, Hash, Hashing, Oid, RunId, StepRef};
use piton_core::limits::PLAN_BYTES_MAX;
use piton_core::observed::Sighting;
use piton_core::plan::{self, Plan, PlanStep, Work};
use piton_core::run::Run;
use piton_core::view::run_branch;
use piton_git::worktree::{TreeState, Worktree};
use piton_store::{NewRun, RunKey, RunRow, Runs, Store};

use crate::abandon;
use crate::config::Settings;
use crate::error::EngineError;
use crate::log::{Log, LogError, Opened};
use crate::observe::{Depth, observe};
use crate::project::Project;
use crate::trust::{TrustList, Trusted};

/// What `run` asks for.
pub struct OpenAsk {
    pub plan: PlanRead,
    /// Values that replace the plan's defaults.
    pub inputs: BTreeMap<String, String>,
    pub settings: Settings,
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

/// A plan file that says something else than its run has recorded.
pub struct Changed {
    handle: Handle,
    file: PathBuf,
    plan: Arc<Plan>,
    differences: Vec<String>,
}

impl Changed {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn differences(&self) -> &[String] {
        &self.differences
    }

    /// For whoever does not accept it.
    pub fn refused(self) -> EngineError {
        let Changed { handle, file: path, differences, .. } = self;
        EngineError::PlanChanged { handle, path, differences }
    }
}

/// Records a changed plan as the run's. What it executes must have been trusted: a worker that is there
/// goes on with it.
pub fn accept(project: &Project, log: &mut Log, changed: Changed) -> Result<(), EngineError> {
    let settings = settings_of(log)?;
    check_agents(&changed.plan, &settings)?;
    Trusted::require(project, &changed.file, &changed.plan, settings.agents)?;
    log.submit(&Command::AcceptPlan { plan: changed.plan })?;
    Ok(())
}

/// A plan file that was read.
pub struct PlanRead {
    path: PathBuf,
    plan: Arc<Plan>,
    /// What tells that the file is still the same.
    file: PlanFile,
}

/// Reads a plan file.
pub fn read_plan(path: &Path) -> Result<PlanRead, EngineError> {
    let bytes = plan_bytes(path)?;
    let plan = plan::parse(&bytes)
        .map_err(|source| EngineError::Plan { path: path.to_owned(), source })?;
    let file = PlanFile::new(&bytes, plan.hash());
    Ok(PlanRead { path: path.to_owned(), plan: Arc::new(plan), file })
}

impl PlanRead {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the file says where that is not what the run recorded.
    fn drift(&self, run: &Run) -> Option<Changed> {
        (self.plan.hash() != run.graph().hash()).then(|| Changed {
            handle: run.opened.handle.clone(),
            file: self.path.clone(),
            plan: Arc::clone(&self.plan),
            differences: plan::differences(run.plan(), &self.plan),
        })
    }
}

fn plan_bytes(path: &Path) -> Result<Vec<u8>, EngineError> {
    let unreadable = |source| EngineError::PlanFile { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    open_plan(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(bytes)
}

/// The hash of a plan file's bytes. Piece by piece, because memory for all of a large plan costs more
/// than reading it.
fn hash_of(path: &Path) -> io::Result<Hash> {
    let mut file = open_plan(path)?;
    let mut hashing = Hashing::default();
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hashing.hash()),
            got => hashing.add(&piece[..got]),
        }
    }
}

/// At most a little more than a plan may have is ever read.
fn open_plan(path: &Path) -> io::Result<io::Take<File>> {
    // Opening a pipe would wait for somebody to write into it.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(File::open(path)?.take(PLAN_BYTES_MAX as u64 + 1))
}

/// The unfinished run of a plan whose file has the bytes that were read when it was last compared. It
/// needs no parsing and no git; where it finds nothing, [`prepare`] and [`open`] say why.
pub fn find_unchanged(
    project: &Project,
    store: &Arc<dyn Store>,
    plan_path: &Path,
) -> Result<Option<Log>, EngineError> {
    let Ok(Placed { within, .. }) = placed(project, plan_path) else { return Ok(None) };
    let mut rows = store.runs(&Runs::Active)?;
    rows.retain(|row| path_in(&row.key) == Some(&within));
    let [row] = rows.as_slice() else { return Ok(None) };
    // A run that cannot be read is explained by whoever opens it.
    let Ok(log) = Log::load(Arc::clone(store), row.run) else { return Ok(None) };
    let plan = log.plan_file().and_then(|read| read.plan_in(hash_of(plan_path).ok()?));
    Ok((plan == Some(log.run().graph().hash())).then_some(log))
}

/// What makes a run the one of its plan.
fn key_of(repository: &Repository, plan_path: &str) -> RunKey {
    RunKey(format!("{}:{plan_path}", repository.root))
}

/// The plan's path in a key.
fn path_in(key: &RunKey) -> Option<&str> {
    key.0.split_once(':').map(|(_, path)| path)
}

/// Looks at everything a run needs before there is one; writes nothing.
pub fn prepare(project: &Project, ask: OpenAsk) -> Result<Opening, EngineError> {
    let read = ask.plan;
    let plan = read.plan();
    check_agents(plan, &ask.settings)?;
    let inputs = inputs(plan, ask.inputs)?;
    project.git.check_version()?;
    project.git.can_make_branches("piton")?;
    let placed = placed(project, &read.path)?;
    let is_main = placed.root == canonical(project.git.main_root());
    let base = project.git.commit(plan.base.as_deref().unwrap_or("HEAD"))?;
    let base_branch = base_branch(project, plan)?;
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
    })
}

/// The branch that a run of the plan begins from: the one that it names, or what is checked out here.
fn base_branch(project: &Project, plan: &Plan) -> Result<Option<String>, EngineError> {
    if let Some(base) = &plan.base {
        return Ok(project.git.ref_target(&format!("refs/heads/{base}"))?.map(|_| base.clone()));
    }
    Ok(match Worktree::at(&project.git, project.git.here()).state()? {
        TreeState::Present { branch, .. } => branch.filter(|name| !name.starts_with("piton/")),
        TreeState::Missing | TreeState::Foreign { .. } => None,
    })
}

impl Opening {
    pub fn plan(&self) -> &Plan {
        self.read.plan()
    }
}

/// Opens a run of a plan, or finds the unfinished one.
pub fn open(
    project: &Project,
    store: Arc<dyn Store>,
    opening: Opening,
    unfinished: Unfinished,
) -> Result<OpenedRun, EngineError> {
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
    let opened = RunOpened {
        run,
        handle: free_handle(project, &plan.name)?,
        plan: plan.hash(),
        plan_path,
        opened_in: opening.opened_in,
        repository,
        base: opening.base,
        base_branch: opening.base_branch,
        inputs: opening.inputs,
        settings: Hash::of(&settings),
        host: project.host.clone(),
    };
    let name = opened.handle.to_string();
    let new = NewRun { run, name, key, replaces };
    match Log::open(Arc::clone(&store), &new, Arc::clone(&plan), &settings, opened)? {
        Opened::New(mut log) => {
            log.remember(read.file);
            Ok(OpenedRun::New(log))
        }
        // Somebody else opened one at the same moment: theirs is the run.
        Opened::Existing(run) => existing(store, run, read),
    }
}

fn existing(store: Arc<dyn Store>, run: RunId, read: PlanRead) -> Result<OpenedRun, EngineError> {
    let mut log = Log::load(store, run)?;
    let drift = read.drift(log.run());
    log.remember(read.file);
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

/// The steps of a run whose attempts are alive on this host.
fn alive(project: &Project, log: &Log) -> Vec<StepRef> {
    let observed = observe(project, log, Depth::Locks);
    let held = log.run().held();
    held.filter(|(_, attempt)| *observed.of(attempt.id) == Sighting::Alive)
        .map(|(step, _)| step)
        .collect()
}

/// Every agent that a step names must be defined by the plan or the settings.
pub fn check_agents(plan: &Plan, settings: &Settings) -> Result<(), EngineError> {
    for step in &plan.steps {
        let Work::Agent { agent, .. } = &step.work else { continue };
        if !plan.agents.contains_key(agent) && !settings.agents.contains_key(agent) {
            let mut known: Vec<AgentName> =
                plan.agents.keys().chain(settings.agents.keys()).cloned().collect();
            known.sort();
            known.dedup();
            return Err(EngineError::UnknownAgent {
                step: step.id.clone(),
                agent: agent.clone(),
                known,
            });
        }
    }
    Ok(())
}

/// A program that an agent of the plan would be started with and that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingProgram {
    pub agent: AgentName,
    pub program: String,
}

/// The programs of the plan's agents that cannot be found. One that is named relative to the worktree
/// may come with it.
pub fn missing_programs(plan: &Plan, settings: &Settings) -> Vec<MissingProgram> {
    let mut named: Vec<&AgentName> = Vec::new();
    for step in &plan.steps {
        match &step.work {
            Work::Agent { agent, .. } if !named.contains(&agent) => named.push(agent),
            _ => {}
        }
    }
    let missing = named.into_iter().filter_map(|name| {
        let agent = plan.agents.get(name).or_else(|| settings.agents.get(name))?;
        let program = agent.command.first()?;
        let path = agent.env.get("PATH").map(OsString::from).or_else(|| std::env::var_os("PATH"));
        let there = match program.contains('/') {
            true => Path::new(program).is_relative() || Path::new(program).is_file(),
            false => program_in(&path.unwrap_or_default(), program),
        };
        (!there).then(|| MissingProgram { agent: name.clone(), program: program.clone() })
    });
    missing.collect()
}

/// Whether a program is in one of the folders of a `PATH`.
pub(crate) fn program_in(path: &OsStr, program: &str) -> bool {
    std::env::split_paths(path).any(|folder| folder.join(program).is_file())
}

/// piton can only run what it can start: of a plan with nothing else everything is claimed by others.
pub fn check_startable(plan: &Plan) -> Result<(), EngineError> {
    nothing_but_by_hand(plan.steps.iter().collect())
}

/// As [`check_startable`], for the steps of a run that are not completed.
pub fn check_rest_startable(run: &Run) -> Result<(), EngineError> {
    nothing_but_by_hand(run.remaining().map(|(_, plan, _)| plan).collect())
}

fn nothing_but_by_hand(steps: Vec<&PlanStep>) -> Result<(), EngineError> {
    if steps.is_empty() || steps.iter().any(|step| !step.work.is_by_hand()) {
        return Ok(());
    }
    let steps = steps.into_iter().map(|step| step.id.clone()).collect();
    Err(EngineError::NothingToStart { steps })
}

/// What the plan file, where the run was opened, says where that is not what the run recorded.
pub fn drift(project: &Project, run: &Run) -> Result<Option<Changed>, EngineError> {
    let file = plan_file(project, run);
    match read_plan(&file) {
        Ok(read) => Ok(read.drift(run)),
        // The run has its own copy: a file that was moved away is no difference.
        Err(EngineError::PlanFile { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The file that a run's plan was read from.
pub fn plan_file(project: &Project, run: &Run) -> PathBuf {
    let opened = &run.opened;
    let root = opened.opened_in.as_deref().map_or(project.git.main_root(), Path::new);
    root.join(&opened.plan_path)
}

/// The settings recorded with a run: what resume uses, whatever the files say by now.
pub fn settings_of(log: &Log) -> Result<Settings, EngineError> {
    let bytes = log.store().text(log.run().opened.settings)?;
    Settings::from_bytes(&bytes).map_err(EngineError::Settings)
}

/// What trust in a run is about: what it has recorded, because that is what is executed. A store that
/// came with a copied repository is no more trusted than its plan file.
pub fn trust_list(project: &Project, log: &Log) -> Result<TrustList, EngineError> {
    let (run, agents) = (log.run(), settings_of(log)?.agents);
    TrustList::new(project, &plan_file(project, run), run.plan(), &agents)
}

/// Leave to execute what a run has recorded.
pub fn trusted(project: &Project, log: &Log) -> Result<Trusted, EngineError> {
    let (run, agents) = (log.run(), settings_of(log)?.agents);
    Trusted::require(project, &plan_file(project, run), run.plan(), agents)
}

/// The run somebody means: a handle, an id, a unique prefix of either, or a plan's path. Nobody
/// named: the only unfinished one, else the newest.
pub fn find(
    project: &Project,
    store: &Arc<dyn Store>,
    asked: Option<&str>,
) -> Result<Log, EngineError> {
    match asked {
        None => find_unnamed(project, store),
        Some(asked) => find_named(project, store, asked),
    }
}

fn find_unnamed(project: &Project, store: &Arc<dyn Store>) -> Result<Log, EngineError> {
    let mut unfinished = unfinished_runs(project, store)?;
    match unfinished.len() {
        0 => {
            let newest = store.runs(&Runs::All)?.pop().ok_or(EngineError::NoRuns)?;
            Ok(Log::load(Arc::clone(store), newest.run)?)
        }
        1 => Ok(unfinished.remove(0).map_err(|damaged| damaged.error)?),
        _ => the_one_that_goes_on(unfinished.into_iter().flatten().collect()),
    }
}

/// Of several active runs, the only one that has not failed for good.
fn the_one_that_goes_on(active: Vec<Log>) -> Result<Log, EngineError> {
    let handles = active.iter().map(|log| log.run().opened.handle.clone()).collect();
    let mut going = active.into_iter().filter(|log| log.run().failed_for_good().is_none());
    match (going.next(), going.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(EngineError::AmbiguousRun { asked: "the unfinished run".into(), handles }),
    }
}

fn find_named(project: &Project, store: &Arc<dyn Store>, asked: &str) -> Result<Log, EngineError> {
    let called = |log: &Log| log.run().opened.handle.as_str() == asked;
    // Found by an index, if there is nothing wrong with it; else all of them are looked through.
    if let Some(row) = store.runs(&Runs::Named(asked.to_owned()))?.pop() {
        let log = Log::load(Arc::clone(store), row.run)?;
        if called(&log) {
            return Ok(log);
        }
    }
    let by_path = placed_at(project, &where_it_was(asked));
    let by_path = by_path.ok().map(|placed| placed.within);
    let rows = named_rows(store)?;
    let newest = |wanted: &dyn Fn(&NamedRow) -> bool| rows.iter().rev().find(|row| wanted(row));
    let exact = newest(&|row| row.handle.as_str() == asked || row.id == asked);
    let of_plan = || newest(&|row| by_path.is_some() && path_in(&row.key) == by_path.as_deref());
    if let Some(row) = exact.or_else(of_plan) {
        return Ok(Log::load(Arc::clone(store), row.run)?);
    }
    let begins =
        |row: &&NamedRow| row.handle.as_str().starts_with(asked) || row.id.starts_with(asked);
    let handles = |rows: Vec<&NamedRow>| rows.iter().map(|row| row.handle.clone()).collect();
    match rows.iter().filter(begins).collect::<Vec<_>>().as_slice() {
        [] => {
            let first = asked.chars().next();
            let near = |row: &&NamedRow| row.handle.as_str().chars().next() == first;
            let near = handles(rows.iter().filter(near).collect());
            Err(EngineError::NoSuchRun { asked: asked.to_owned(), near })
        }
        [one] => Ok(Log::load(Arc::clone(store), one.run)?),
        several => Err(EngineError::AmbiguousRun {
            asked: asked.to_owned(),
            handles: handles(several.to_vec()),
        }),
    }
}

/// The last run of a plan, where it is completed and the file still says the same: there is nothing left
/// to claim of it, and a new run is for somebody to open.
pub fn completed_run_of(
    project: &Project,
    store: &Arc<dyn Store>,
    plan: &Path,
) -> Result<Option<Log>, EngineError> {
    let within = placed(project, plan)?.within;
    let rows = store.runs(&Runs::All)?;
    let last = rows.iter().rfind(|row| path_in(&row.key) == Some(within.as_str()));
    let Some(row) = last.filter(|row| !row.active) else { return Ok(None) };
    let log = Log::load(Arc::clone(store), row.run)?;
    let same = || Ok::<_, EngineError>(read_plan(plan)?.plan.hash() == log.run().graph().hash());
    Ok((log.run().is_completed() && same()?).then_some(log))
}

/// How many runs the plan of this one has had.
pub fn runs_of_its_plan(log: &Log) -> Result<usize, EngineError> {
    let path = log.run().opened.plan_path.as_str();
    let rows = log.store().runs(&Runs::All)?;
    Ok(rows.iter().filter(|row| path_in(&row.key) == Some(path)).count())
}

/// Lifts what stops held back, without starting anything; says whether there was something.
pub fn lift(project: &Project, log: &mut Log, confirmed: bool) -> Result<bool, EngineError> {
    let host = project.host.clone();
    Ok(!log.submit(&Command::Resume { host, confirmed })?.is_empty())
}

/// What a run is found by.
struct NamedRow {
    run: RunId,
    id: String,
    handle: Handle,
    key: RunKey,
}

/// Every run that has a handle, oldest first.
fn named_rows(store: &Arc<dyn Store>) -> Result<Vec<NamedRow>, EngineError> {
    let named = |row: RunRow| {
        let handle = Handle::new(row.name).ok()?;
        Some(NamedRow { run: row.run, id: row.run.to_string(), handle, key: row.key })
    };
    Ok(store.runs(&Runs::All)?.into_iter().filter_map(named).collect())
}

/// A run that cannot be read, and why.
pub struct Unreadable {
    pub row: RunRow,
    pub error: LogError,
}

/// Runs, oldest first. One damaged run never hides the others.
pub fn list(
    store: &Arc<dyn Store>,
    which: &Runs,
) -> Result<Vec<Result<Log, Box<Unreadable>>>, EngineError> {
    Ok(store.runs(which)?.into_iter().map(|row| load(store, row)).collect())
}

/// Runs that hold their plan's place, and those that were left aside while something of them is alive.
pub fn unfinished_runs(
    project: &Project,
    store: &Arc<dyn Store>,
) -> Result<Vec<Result<Log, Box<Unreadable>>>, EngineError> {
    let mut found = Vec::new();
    for row in store.runs(&Runs::All)? {
        // Without a lease nothing of it is held: most old runs are not even read.
        if !row.active && store.leases(row.run).is_ok_and(|leases| leases.is_empty()) {
            continue;
        }
        let active = row.active;
        match load(store, row) {
            Ok(log) if active || !alive(project, &log).is_empty() => found.push(Ok(log)),
            Ok(_) => {}
            Err(damaged) if active => found.push(Err(damaged)),
            Err(_) => {}
        }
    }
    Ok(found)
}

fn load(store: &Arc<dyn Store>, row: RunRow) -> Result<Log, Box<Unreadable>> {
    let loaded = Log::load(Arc::clone(store), row.run);
    loaded.map_err(|error| Box::new(Unreadable { row, error }))
}

/// Asks a run, or one step's attempt, to stop. Returns the attempts that the request is about.
pub fn stop(
    log: &mut Log,
    step: Option<&StepRef>,
    cause: Cause,
    haste: Haste,
) -> Result<Vec<StepRef>, EngineError> {
    log.refresh()?;
    let Some(id) = step else {
        log.submit(&Command::Stop { scope: Scope::Run, cause, haste })?;
        return Ok(log.run().held().map(|(step, _)| step).collect());
    };
    let held = log.run().held().find(|(step, _)| step == id);
    let Some((step, fence)) = held.map(|(step, attempt)| (step, attempt.fence)) else {
        return match log.run().step(id) {
            Some(_) => Ok(Vec::new()),
            None => Err(piton_core::refusal::Refusal::UnknownStep(id.clone()).into()),
        };
    };
    let scope = Scope::Attempt(Under { step: step.clone(), fence });
    log.submit(&Command::Stop { scope, cause, haste })?;
    Ok(vec![step])
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

/// Where a plan is.
struct Placed {
    /// The root of the worktree it is in.
    root: PathBuf,
    /// Relative to that, with forward slashes: that is how PLAN finds its run.
    within: String,
}

fn placed(project: &Project, path: &Path) -> Result<Placed, EngineError> {
    let full = std::fs::canonicalize(path)
        .map_err(|source| EngineError::PlanFile { path: path.to_owned(), source })?;
    placed_at(project, &full)
}

/// Where a file is, or would be if it and the folders it is in were not gone: the run has its own copy.
fn where_it_was(path: &str) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.into());
    for there in whole.ancestors() {
        if let (Ok(real), Ok(gone)) = (there.canonicalize(), whole.strip_prefix(there)) {
            return real.join(gone);
        }
    }
    whole
}

fn placed_at(project: &Project, full: &Path) -> Result<Placed, EngineError> {
    let outside = || EngineError::PlanOutside { path: full.to_owned() };
    let roots = [canonical(project.git.here()), canonical(project.git.main_root())];
    let inside = |root: PathBuf| Some((full.strip_prefix(&root).ok()?.to_owned(), root));
    let (within, root) = roots.into_iter().find_map(inside).ok_or_else(outside)?;
    let part = |part: Component<'_>| part.as_os_str().to_str().map(str::to_owned);
    let parts: Option<Vec<String>> = within.components().map(part).collect();
    Ok(Placed { root, within: parts.ok_or_else(outside)?.join("/") })
}

/// Whether a plan in this folder can be run here.
pub(crate) fn check_inside(project: &Project, folder: &Path) -> Result<(), EngineError> {
    placed(project, folder).map(drop)
}

fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// A handle whose branch nobody has.
fn free_handle(project: &Project, name: &str) -> Result<Handle, EngineError> {
    loop {
        let handle = handle(name);
        let branch = format!("refs/heads/{}", run_branch(&handle));
        if project.git.ref_target(&branch)?.is_none() {
            return Ok(handle);
        }
    }
}

/// `<plan>-<petname>`: the plan's name made fit for a branch and a path.
fn handle(name: &str) -> Handle {
    const PLAN_PART: usize = 36;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mut stem: String = name.chars().map(plain).take(PLAN_PART).collect();
    while stem.contains("--") {
        stem = stem.replace("--", "-");
    }
    let stem = match stem.trim_matches('-') {
        "" => "run",
        stem => stem,
    };
    let full = format!("{stem}-{}", petname());
    let clipped: String = full.chars().take(piton_core::limits::NAME_MAX).collect();
    Handle::new(clipped).expect("letters, digits and dashes make a handle")
}

/// Two words that somebody can say and type.
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

    #[test]
    fn any_plan_name_gives_a_handle() {
        for name in ["auth-system", "Größe & Glück!", "", "---", "日本語", &"x".repeat(500)] {
            let handle = handle(name);
            assert!(handle.as_str().contains('-'), "{handle}");
        }
        assert!(handle("Auth  System").as_str().starts_with("auth-system-"));
    }
}
