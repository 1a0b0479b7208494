//! Where piton was started: the folder, the project around it, its store, and the run that is meant.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use piton_engine::error::EngineError;
use piton_engine::error::LogError;
use piton_engine::git::shell::{self, word};
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::runs;
use piton_engine::{Access, Store, StoreError};

use crate::error::{Kind, Problem};
use crate::remedy::{PLAN, begin};
use crate::text;
use crate::typed::{instead, is_verb};

/// Verbs that take a step behind the run.
const TAKE_STEPS: [&str; 6] = ["diff", "log", "release", "reset", "show", "stop"];

/// The folder piton was started in.
pub(crate) fn here() -> Result<PathBuf, Problem> {
    std::env::current_dir().map_err(|error| {
        Problem::new(Kind::Io, "the current folder cannot be used")
            .because(error)
            .hint("change into a folder that exists")
    })
}

/// The project around the folder piton was started in.
pub(crate) fn project() -> Result<Project, Problem> {
    Ok(Project::discover(&here()?)?)
}

/// The plan that is meant: the named one, else `plan.toml` here or in a folder above, in this repository.
pub(crate) fn plan(named: Option<&Path>) -> Result<PathBuf, Problem> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let here = here()?;
    let here = std::fs::canonicalize(&here).unwrap_or(here);
    let root = Project::discover(&here).ok().map(|project| project.git.here().to_owned());
    let root = root.as_deref().unwrap_or(&here);
    let folders = here.ancestors().take_while(|folder| folder.starts_with(root));
    let found = folders.map(|folder| folder.join(PLAN)).find(|plan| plan.is_file());
    found.map(|plan| from_here(&plan)).ok_or_else(|| {
        Problem::new(Kind::Usage, format!("there is no {PLAN} here or in a folder above"))
            .hint("name the plan, or write a first one: `piton init`")
    })
}

/// The store for looking; none where nothing was ever run.
pub(crate) fn store_for_looking(project: &Project) -> Result<Option<Arc<dyn Store>>, Problem> {
    match project.store(Access::Look) {
        Ok(store) => Ok(Some(store)),
        Err(EngineError::Log(LogError::Store(StoreError::Missing { .. }))) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The store of a verb that is about a run that must exist already.
pub(crate) fn store_with_runs(
    project: &Project,
    access: Access,
) -> Result<Arc<dyn Store>, Problem> {
    match project.store(access) {
        Err(EngineError::Log(LogError::Store(StoreError::Missing { .. }))) => {
            Err(EngineError::NoRuns.into())
        }
        other => Ok(other?),
    }
}

/// The run somebody means.
pub(crate) fn find(
    project: &Project,
    store: &Arc<dyn Store>,
    asked: Option<&str>,
) -> Result<Log, Problem> {
    let found = runs::find(project, store, asked).map_err(Problem::from);
    found.map_err(|problem| unfound(problem, asked, Some((project, store))))
}

/// The run somebody means, in a store that must be there already.
pub(crate) fn run_of(
    project: &Project,
    access: Access,
    asked: Option<&str>,
) -> Result<Log, Problem> {
    match store_with_runs(project, access) {
        Ok(store) => find(project, &store, asked),
        Err(problem) => Err(unfound(problem, asked, None)),
    }
}

/// What was named is no run: a plan of which there is none yet, or a run with its step in one word.
fn unfound(
    problem: Problem,
    asked: Option<&str>,
    within: Option<(&Project, &Arc<dyn Store>)>,
) -> Problem {
    let Some(asked) = asked.filter(|_| problem.kind == Kind::NoSuchRun) else { return problem };
    if Path::new(asked).is_file() {
        let plan = word(asked);
        let problem = Problem::new(Kind::NoSuchRun, format!("there is no run of {plan} yet"));
        return problem.hint(begin(&plan));
    }
    let parted = asked.rsplit_once('/').zip(within).and_then(|((run, step), (project, store))| {
        let log = runs::find(project, store, Some(run)).ok()?;
        Some(instead(asked, &[log.run().opened.handle.as_str(), step]))
    });
    match parted.filter(|_| is_verb(&TAKE_STEPS)) {
        Some(command) => problem.hint(format!("the step is a word of its own: `{command}`")),
        None => problem,
    }
}

/// A run's plan as somebody types it where piton was started.
pub(crate) fn plan_from_here(project: &Project, plan_path: &str) -> String {
    let there = project.git.here().join(plan_path);
    let file = if there.exists() { there } else { project.git.main_root().join(plan_path) };
    shell::path(&from_here(&file))
}

/// An absolute path relative to the folder piton was started in.
pub(crate) fn from_here(path: &Path) -> PathBuf {
    match std::env::current_dir() {
        Ok(here) if path.is_absolute() => text::relative(path, &here),
        _ => path.to_owned(),
    }
}
