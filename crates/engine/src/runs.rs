//! Opening, finding and stopping runs: what verbs ask of the store before anything is executed.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use piton_core::decide::Command;
use piton_core::event::{Cause, Haste, Repository, RunOpened, Scope};
use piton_core::ids::{AgentName, Handle, RunId, StepId, StepRef};
use piton_core::limits::PLAN_BYTES_MAX;
use piton_core::plan::{self, Plan, Work};
use piton_core::run::Run;
use piton_core::view::run_branch;
use piton_store::{NewRun, RunKey, RunRow, Runs, Store};

use crate::config::Settings;
use crate::error::EngineError;
use crate::log::{Log, LogError, Opened};
use crate::project::Project;

/// What `run` asks for.
pub struct OpenAsk<'a> {
    pub plan_path: &'a Path,
    /// Values that replace the plan's defaults.
    pub inputs: BTreeMap<String, String>,
    pub settings: Settings,
    /// Start over: an unfinished run of this plan keeps its work and loses its place.
    pub fresh: bool,
}

/// What `open` found.
pub enum OpenedRun {
    New(Log),
    /// The unfinished run of this plan.
    Existing(Log),
}

/// Reads a plan file: at most a little more than a plan may have is ever read.
pub fn read_plan(path: &Path) -> Result<Plan, EngineError> {
    use std::io::Read as _;
    let unreadable = |source| EngineError::PlanFile { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(PLAN_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    plan::parse(&bytes).map_err(|source| EngineError::Plan { path: path.to_owned(), source })
}

/// Opens a run of a plan, or finds the unfinished one.
pub fn open(
    project: &Project,
    store: Arc<dyn Store>,
    ask: OpenAsk<'_>,
) -> Result<OpenedRun, EngineError> {
    project.git.check_version()?;
    let plan = read_plan(ask.plan_path)?;
    check_agents(&plan, &ask.settings)?;
    let plan_path = relative(project, ask.plan_path)?;
    let inputs = inputs(&plan, ask.inputs)?;
    let base = project.git.commit(plan.base.as_deref().unwrap_or("HEAD"))?;
    let repository = Repository { root: project.git.root_of(&base)?, remote: project.git.remote() };
    let key = RunKey(format!("{}:{plan_path}", repository.root));

    let present = store.runs(&Runs::HoldingKey(key.clone()))?.pop();
    if let (Some(row), false) = (&present, ask.fresh) {
        return existing(project, store, row.run);
    }
    let run = RunId(uuid::Uuid::now_v7());
    let settings = ask.settings.to_bytes();
    let opened = RunOpened {
        run,
        handle: free_handle(project, &plan.name)?,
        plan: plan.hash(),
        plan_path,
        repository,
        base,
        inputs,
        settings: piton_core::ids::Hash::of(&settings),
        host: project.host.clone(),
    };
    let new = NewRun { run, key, replaces: present.map(|row| row.run) };
    match Log::open(Arc::clone(&store), &new, Arc::new(plan), &settings, opened)? {
        Opened::New(log) => Ok(OpenedRun::New(log)),
        // Somebody else opened one at the same moment: theirs is the run.
        Opened::Existing(run) => existing(project, store, run),
    }
}

fn existing(
    project: &Project,
    store: Arc<dyn Store>,
    run: RunId,
) -> Result<OpenedRun, EngineError> {
    let log = Log::load(store, run)?;
    check_drift(project, log.run())?;
    Ok(OpenedRun::Existing(log))
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

/// Refuses to go on when the plan file no longer says what the run recorded.
pub fn check_drift(project: &Project, run: &Run) -> Result<(), EngineError> {
    let path = project.git.main_root().join(&run.opened.plan_path);
    let now = match read_plan(&path) {
        Ok(plan) => plan,
        // The run has its own copy: a file that was moved away is no difference.
        Err(EngineError::PlanFile { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if now.hash() == run.opened.plan {
        return Ok(());
    }
    let handle = run.opened.handle.clone();
    Err(EngineError::PlanChanged { handle, differences: plan::differences(run.plan(), &now) })
}

/// The settings recorded with a run: what resume uses, whatever the files say by now.
pub fn settings_of(log: &Log) -> Result<Settings, EngineError> {
    let bytes = log.store().text(log.run().opened.settings)?;
    Settings::from_bytes(&bytes).map_err(EngineError::Settings)
}

/// The run somebody means: a handle, an id, a unique prefix of either, or a plan's path. Nobody
/// named: the only unfinished one, else the newest.
pub fn find(
    project: &Project,
    store: &Arc<dyn Store>,
    asked: Option<&str>,
) -> Result<Log, EngineError> {
    match asked {
        None => find_unnamed(store),
        Some(asked) => find_named(project, store, asked),
    }
}

fn find_unnamed(store: &Arc<dyn Store>) -> Result<Log, EngineError> {
    let active = store.runs(&Runs::Active)?;
    match active.as_slice() {
        [] => {
            let newest = store.runs(&Runs::All)?.pop().ok_or(EngineError::NoRuns)?;
            Ok(Log::load(Arc::clone(store), newest.run)?)
        }
        [one] => Ok(Log::load(Arc::clone(store), one.run)?),
        _ => the_one_that_goes_on(list(store, &Runs::Active)?.into_iter().flatten().collect()),
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
    let by_path = relative(project, Path::new(asked)).ok();
    let mut exact: Vec<Log> = Vec::new();
    let mut prefixed: Vec<Log> = Vec::new();
    let mut of_plan: Vec<Log> = Vec::new();
    let mut handles: Vec<Handle> = Vec::new();
    for log in list(store, &Runs::All)?.into_iter().flatten() {
        let opened = &log.run().opened;
        let id = opened.run.to_string();
        handles.push(opened.handle.clone());
        if opened.handle.as_str() == asked || id == asked {
            exact.push(log);
        } else if opened.handle.as_str().starts_with(asked) || id.starts_with(asked) {
            prefixed.push(log);
        } else if by_path.as_ref() == Some(&opened.plan_path) {
            of_plan.push(log);
        }
    }
    if let Some(log) = exact.pop().or_else(|| of_plan.pop()) {
        return Ok(log);
    }
    match prefixed.len() {
        0 => {
            let first = asked.chars().next();
            handles.retain(|handle| handle.as_str().chars().next() == first);
            Err(EngineError::NoSuchRun { asked: asked.to_owned(), near: handles })
        }
        1 => Ok(prefixed.remove(0)),
        _ => Err(EngineError::AmbiguousRun {
            asked: asked.to_owned(),
            handles: prefixed.iter().map(|log| log.run().opened.handle.clone()).collect(),
        }),
    }
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
    let load = |row: RunRow| {
        let loaded = Log::load(Arc::clone(store), row.run);
        loaded.map_err(|error| Box::new(Unreadable { row, error }))
    };
    Ok(store.runs(which)?.into_iter().map(load).collect())
}

/// Asks a run, or one step's attempt, to stop. Returns the attempts that the request is about.
pub fn stop(
    log: &mut Log,
    step: Option<&StepId>,
    cause: Cause,
    haste: Haste,
) -> Result<Vec<StepRef>, EngineError> {
    log.refresh()?;
    let Some(id) = step else {
        log.submit(&Command::Stop { scope: Scope::Run, cause, haste })?;
        return Ok(log.run().held().map(|(step, _)| step).collect());
    };
    let held = log.run().held().find(|(step, _)| step.step == *id);
    let Some((step, fence)) = held.map(|(step, attempt)| (step, attempt.fence)) else {
        return match log.run().step(id) {
            Some(_) => Ok(Vec::new()),
            None => Err(piton_core::decide::Refusal::UnknownStep(id.clone()).into()),
        };
    };
    let scope = Scope::Attempt { step: step.clone(), fence };
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

/// A plan's path relative to the worktree it is in, with forward slashes: that is how PLAN finds its
/// run.
fn relative(project: &Project, path: &Path) -> Result<String, EngineError> {
    let outside = || EngineError::PlanOutside { path: path.to_owned() };
    let full = std::fs::canonicalize(path)
        .map_err(|source| EngineError::PlanFile { path: path.to_owned(), source })?;
    let canonical = |root: &Path| std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let roots = [canonical(project.git.here()), canonical(project.git.main_root())];
    let within: PathBuf =
        roots.iter().find_map(|root| full.strip_prefix(root).ok()).ok_or_else(outside)?.to_owned();
    let part = |part: Component<'_>| part.as_os_str().to_str().map(str::to_owned);
    let parts: Option<Vec<String>> = within.components().map(part).collect();
    Ok(parts.ok_or_else(outside)?.join("/"))
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
    let pet = petname::petname(2, "-").unwrap_or_else(|| "run".to_owned());
    let full = format!("{stem}-{pet}");
    let clipped: String = full.chars().take(piton_core::limits::NAME_MAX).collect();
    Handle::new(clipped).expect("letters, digits and dashes make a handle")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_plan_name_gives_a_handle() {
        for name in ["auth-system", "Größe & Glück!", "", "---", "日本語", &"x".repeat(500)] {
            let handle = handle(name);
            assert!(handle.as_str().contains('-'), "{handle}");
        }
        assert!(handle("Auth  System").as_str().starts_with("auth-system-"));
    }
}
