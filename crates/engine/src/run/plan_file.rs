//! The plan's file: where it lies, what it says, and whether that is still what its run has recorded.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use piton_core::agent::all_built_in;
use piton_core::cache::PlanFile;
use piton_core::decide::Command;
use piton_core::event::Found;
use piton_core::event::Repository;
use piton_core::ids::{AgentName, Handle, Hash, Hashing};
use piton_core::limits::PLAN_BYTES_MAX;
use piton_core::plan::{self, Plan, PlanFormat, PlanStep, agent_of};
use piton_core::run::Run;
use piton_formats::{ATTEMPTS_FILE, COMMITS_FILE, Counts, Finding, Hint, Marks};
use piton_store::RunKey;

use crate::config::Settings;
use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::preflight::program_in;
use crate::run::runs::settings_of;
use crate::trust::Trusted;

/// A plan file that says something else than its run has recorded.
pub struct Changed {
    handle: Handle,
    file: PathBuf,
    pub(crate) plan: Arc<Plan>,
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
    pub(crate) path: PathBuf,
    pub(crate) plan: Arc<Plan>,
    bytes: Vec<u8>,
    /// Who does its steps, where somebody said so.
    agent: Option<AgentName>,
    /// What the file claims of progress, and how its places say it.
    pub(crate) found: Vec<Found>,
    marks: Marks,
    pub format: PlanFormat,
    pub counts: Counts,
    /// What a run does not follow.
    pub warnings: Vec<Finding>,
}

/// How a plan file is to be read.
#[derive(Debug, Clone, Default)]
pub struct ReadAs {
    /// Its format, where that is not to be found out.
    pub format: Option<PlanFormat>,
    /// Who does the steps of another tool's plan.
    pub agent: Option<AgentName>,
    /// Progress stays out of the file.
    pub no_write_back: bool,
}

/// Reads a plan file.
pub fn read_plan(path: &Path, how: &ReadAs) -> Result<PlanRead, EngineError> {
    let bytes = plan_bytes(path)?;
    // As it is called wherever it is named from: some formats have no other name for a plan.
    let full = canonical(path);
    let named = full.to_string_lossy();
    let mut reading = piton_formats::read(&bytes, &Hint { path: &named, format: how.format })
        .map_err(|source| EngineError::Plan { path: path.to_owned(), source })?;
    if reading.format == PlanFormat::AutoClaude {
        let beside = |file: &str| plan_bytes(&full.with_file_name(file)).ok();
        reading.recall(beside(ATTEMPTS_FILE).as_deref(), beside(COMMITS_FILE).as_deref());
    }
    let marks = reading.marks();
    let mut plan = match &how.agent {
        Some(agent) => reading.plan.assigned(agent),
        None => reading.plan,
    };
    if let Some(source) = &mut plan.source {
        source.write_back = !how.no_write_back;
    }
    Ok(PlanRead {
        path: path.to_owned(),
        plan: Arc::new(plan),
        bytes,
        agent: how.agent.clone(),
        marks,
        found: reading.found,
        format: reading.format,
        counts: reading.counts,
        warnings: reading.warnings,
    })
}

/// Mends damaged JSON in a file; its text before and after, where there was something to mend.
pub fn repair(path: &Path) -> Result<Option<(String, String)>, EngineError> {
    let bytes = plan_bytes(path)?;
    let Some(mended) = piton_formats::repaired(&bytes) else { return Ok(None) };
    replace(path, &mended).map_err(EngineError::io("the plan file cannot be written"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Some((text(&bytes), text(&mended))))
}

/// Replaces a file of the user's: whole or not at all, with its permissions; a link stays one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let new = folder.join(format!(".{name}.piton-{}", std::process::id()));
    let mut file = File::create(&new)?;
    let written = std::fs::metadata(&path)
        .and_then(|old| file.set_permissions(old.permissions()))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&new, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// How the file of a run's plan was read.
fn as_recorded(run: &Run) -> ReadAs {
    let source = run.plan().source.as_ref();
    ReadAs {
        format: source.map(|source| source.format),
        agent: source.and_then(|source| source.agent.clone()),
        no_write_back: source.is_some_and(|source| !source.write_back),
    }
}

/// Reads the plan file of a run again.
pub(crate) fn read_again(path: &Path, run: &Run) -> Result<PlanRead, EngineError> {
    read_plan(path, &as_recorded(run))
}

impl PlanRead {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes that the whole file has.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where nobody was named for another tool's plan: the one agent that is configured, else the one built-in
    /// agent that is installed.
    pub fn assigned(mut self, settings: &Settings) -> PlanRead {
        let known = match settings.agents.is_empty() {
            true => installed(),
            false => settings.agents.keys().cloned().collect(),
        };
        if let (None, [only]) = (&self.agent, known.as_slice()) {
            self.plan = Arc::new(Plan::clone(&self.plan).assigned(only));
        }
        self
    }

    /// What the file said when it was read, for who compares it later.
    pub(crate) fn as_read(&self) -> (&[u8], &Marks) {
        (&self.bytes, &self.marks)
    }

    /// What tells that the file is still the same.
    pub(crate) fn file(&self) -> PlanFile {
        PlanFile::new(&self.bytes, self.plan.hash())
    }

    /// Where nobody was named now: whoever the run has recorded.
    fn as_of(&self, run: &Run) -> Arc<Plan> {
        let recorded = as_recorded(run);
        let mut plan = Plan::clone(&self.plan);
        if let Some(agent) = recorded.agent.filter(|_| self.agent.is_none()) {
            plan = plan.assigned(&agent);
        }
        if let Some(source) = &mut plan.source {
            source.write_back = !recorded.no_write_back;
        }
        Arc::new(plan)
    }

    /// What the file says where that is not what the run recorded.
    pub(crate) fn drift(&self, run: &Run) -> Option<Changed> {
        let plan = self.as_of(run);
        // What a planner produced follows what the file says.
        let before = run.plan().plan_from.as_ref().and_then(|from| from.before);
        let same = [Some(run.graph().hash()), before].contains(&Some(plan.hash()));
        (!same).then(|| Changed {
            handle: run.opened.handle.clone(),
            file: self.path.clone(),
            differences: plan::differences(run.plan(), &plan),
            plan,
        })
    }
}

/// The built-in agents whose program is in `PATH`.
pub fn installed() -> Vec<AgentName> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = all_built_in().iter().filter(|(_, agent)| program_in(&path, &agent.command[0]));
    there.map(|(name, _)| name.clone()).collect()
}

fn plan_bytes(path: &Path) -> Result<Vec<u8>, EngineError> {
    let unreadable = |source| EngineError::PlanFile { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    open_plan(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(bytes)
}

/// The hash of a plan file's bytes. Piece by piece, because memory for all of a large plan costs more
/// than reading it.
pub(crate) fn hash_of(path: &Path) -> io::Result<Hash> {
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

/// What makes a run the one of its plan.
pub(crate) fn key_of(repository: &Repository, plan_path: &str) -> RunKey {
    RunKey(format!("{}:{plan_path}", repository.root))
}

/// The plan's path in a key.
pub(crate) fn path_in(key: &RunKey) -> Option<&str> {
    key.0.split_once(':').map(|(_, path)| path)
}

/// Every agent that a step names must be defined by the plan or the settings, or built in.
pub fn check_agents(plan: &Plan, settings: &Settings) -> Result<(), EngineError> {
    for step in plan.steps.iter() {
        let Some(agent) = step.work.agent() else { continue };
        if agent_of(plan, &settings.agents, agent).is_none() {
            let defined = plan.agents.keys().chain(settings.agents.keys());
            let mut known: Vec<AgentName> = defined.chain(all_built_in().keys()).cloned().collect();
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
    match read_again(&file, run) {
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

/// Where a plan is.
pub(crate) struct Placed {
    /// The root of the worktree it is in.
    pub(crate) root: PathBuf,
    /// Relative to that, with forward slashes: that is how PLAN finds its run.
    pub(crate) within: String,
}

pub(crate) fn placed(project: &Project, path: &Path) -> Result<Placed, EngineError> {
    let full = std::fs::canonicalize(path)
        .map_err(|source| EngineError::PlanFile { path: path.to_owned(), source })?;
    placed_at(project, &full)
}

/// Where a file is, or would be if it and the folders it is in were not gone: the run has its own copy.
pub(crate) fn where_it_was(path: &str) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.into());
    for there in whole.ancestors() {
        if let (Ok(real), Ok(gone)) = (there.canonicalize(), whole.strip_prefix(there)) {
            return real.join(gone);
        }
    }
    whole
}

pub(crate) fn placed_at(project: &Project, full: &Path) -> Result<Placed, EngineError> {
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

pub(crate) fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
