//! One verb, one file: its arguments and the function that answers. Here is what they share: how the
//! project and its store are found, and the shape of an answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use piton_core::event::Cause;
use piton_core::ids::{StepId, StepRef};
use piton_core::view::{AttemptView, RunStatus, RunView, StepKind, StepStatus, StepView};
use piton_engine::condition::Condition;
use piton_engine::error::EngineError;
use piton_engine::git::Git;
use piton_engine::log::{Log, LogError};
use piton_engine::project::Project;
use piton_engine::shell::{self, word};
use piton_engine::{Access, Store, StoreError, runs};
use serde::Serialize;
use serde_json::Value;

use crate::describe::{answer_commands, open_questions};
use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::hints::{self, start_over_shown};
use crate::text;
use crate::ui::Ui;

pub(crate) mod abandon;
pub(crate) mod answer;
pub(crate) mod ask;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod claim;
pub(crate) mod clean;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod demo_agent;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod fail;
pub(crate) mod heartbeat;
pub(crate) mod init;
pub(crate) mod item;
pub(crate) mod keeper;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod merge;
pub(crate) mod open;
pub(crate) mod overview;
pub(crate) mod plan;
pub(crate) mod questions;
pub(crate) mod ready;
pub(crate) mod release;
pub(crate) mod reset;
pub(crate) mod resume;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod snapshot;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod substep;
pub(crate) mod trust;
pub(crate) mod undo;
pub(crate) mod worker;
pub(crate) mod worktree;

/// What a verb answers: data for `--json`, and an exit status.
pub(crate) struct Answer {
    pub(crate) data: Value,
    pub(crate) exit: ExitStatus,
    /// The answer was a stream of lines: no envelope follows.
    pub(crate) streamed: bool,
    store: Option<Arc<dyn Store>>,
    kept_in: Option<Git>,
}

impl Answer {
    pub(crate) fn new(data: impl Into<Value>) -> Answer {
        let (exit, data) = (ExitStatus::Ok, data.into());
        Answer { data, exit, streamed: false, store: None, kept_in: None }
    }

    /// With data that is large: made only where somebody reads it.
    pub(crate) fn on_demand(ui: &Ui, data: impl FnOnce() -> Value) -> Answer {
        Answer::new(if ui.is_json() { data() } else { Value::Null })
    }

    /// Everything was printed as it came.
    pub(crate) fn streamed() -> Answer {
        Answer { streamed: true, ..Answer::new(()) }
    }

    pub(crate) fn exiting(self, exit: ExitStatus) -> Answer {
        Answer { exit, ..self }
    }

    /// Names the store that was written, for the housekeeping no answer waits for.
    pub(crate) fn after_writing(self, store: &Arc<dyn Store>) -> Answer {
        Answer { store: Some(Arc::clone(store)), ..self }
    }

    /// Names the repository that snapshots were kept in, for the same.
    pub(crate) fn after_keeping(self, git: &Git) -> Answer {
        Answer { kept_in: Some(git.clone()), ..self }
    }

    /// Once the answer is out.
    pub(crate) fn tidy(&self) {
        if let Some(git) = &self.kept_in {
            let _the_next_time = piton_engine::snapshot::consolidate(git);
        }
        if let Some(store) = &self.store {
            store.tidy();
        }
    }
}

/// Data as JSON.
pub(crate) fn json(data: impl Serialize) -> Value {
    serde_json::to_value(data).expect("answers have only string keys and finite values")
}

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
        return problem.hint(format!(
            "run it: `piton run {plan}`; or open it and take a step: `piton claim {plan} --worktree .`"
        ));
    }
    let parted = asked.rsplit_once('/').zip(within).and_then(|((run, step), (project, store))| {
        let log = runs::find(project, store, Some(run)).ok()?;
        hints::instead(asked, &[log.run().opened.handle.as_str(), step])
    });
    match parted {
        Some(command) => problem.hint(format!("the step is a word of its own: `{command}`")),
        None => problem,
    }
}

/// The sensible next commands for a run, the first one first.
pub(crate) fn next_commands(project: &Project, view: &RunView) -> Vec<String> {
    let run = &view.handle;
    let rest_by_hand = by_hand(view);
    match &view.status {
        RunStatus::Completed if view.merged.is_some() => {
            vec![format!("git log --oneline {}..{}", view.base.short(), view.branch)]
        }
        RunStatus::Completed => {
            vec![format!("piton diff {run} --stat"), format!("piton merge {run}")]
        }
        RunStatus::Abandoned { .. } => {
            vec!["piton undo --list".to_owned(), format!("piton show {run}")]
        }
        RunStatus::Running => {
            let answers = open_questions(view).flat_map(|asked| answer_commands(view, asked));
            let mut attempts = view.steps.iter().filter_map(|step| step.attempts.last());
            let kept = |attempt: &AttemptView| attempt.to.is_none() && attempt.worktree.is_none();
            let follow = attempts.any(kept).then(|| format!("piton log {run} -f"));
            answers.chain(follow).chain([format!("piton stop {run}")]).collect()
        }
        RunStatus::Lapsed { step, .. } => {
            let step_view = view.steps.iter().find(|view| view.step == *step);
            let stopped = step_view.is_some_and(|view| view.stop_requested);
            let by_hand = is_by_hand(view, step);
            let claim = format!("piton claim {run} --step {step} --worktree .");
            let resume = (stopped || !by_hand).then(|| format!("piton resume {run}"));
            let release = format!("piton release {run} {step} --force");
            resume.into_iter().chain([claim, release]).collect()
        }
        RunStatus::Waiting { id: Some(_), .. } => {
            let commands = open_questions(view).flat_map(|asked| answer_commands(view, asked));
            let go_on = (!rest_by_hand).then(|| format!("piton resume {run}"));
            commands.chain(go_on).collect()
        }
        RunStatus::Waiting { step, .. } => {
            let is_it = |view: &&StepView| view.step == *step;
            let status = view.steps.iter().find(is_it).map(|step| &step.status);
            let obstacle =
                matches!(status, Some(StepStatus::Interrupted { cause: Cause::Obstacle, .. }));
            let go_on = if obstacle { "" } else { " --yes" };
            vec![format!("piton log {run} {step}"), format!("piton resume {run}{go_on}")]
        }
        RunStatus::Failed { step, .. } => {
            let look = if is_by_hand(view, step) { "show" } else { "log" };
            let again = [format!("piton {look} {run} {step}"), format!("piton reset {run} {step}")];
            // Others wait all the same.
            let answers = open_questions(view).flat_map(|asked| answer_commands(view, asked));
            again.into_iter().chain(answers).chain([start_over_shown(project, view)]).collect()
        }
        RunStatus::Open if rest_by_hand => {
            let stopped = view.steps.iter().any(|step| step.held_back);
            let resume = stopped.then(|| format!("piton resume {run}"));
            let claim = [format!("piton ready {run}"), format!("piton claim {run} --worktree .")];
            claim.into_iter().chain(resume).collect()
        }
        RunStatus::Open | RunStatus::Interrupted { .. } | RunStatus::Stopped { .. } => {
            let answers = open_questions(view).flat_map(|asked| answer_commands(view, asked));
            let free = |step: &&StepView| {
                step.kind == StepKind::ByHand
                    && step.status == StepStatus::Pending
                    && !step.held_back
            };
            let free = view.steps.iter().find(free).filter(|_| view.status == RunStatus::Open);
            let claim =
                free.map(|step| format!("piton claim {run} --step {} --worktree .", step.step));
            let go_on = [format!("piton resume {run}"), format!("piton resume {run} --dry-run")];
            answers.chain(claim).chain(go_on).collect()
        }
    }
}

/// A run's plan as somebody types it where piton was started.
pub(crate) fn plan_from_here(project: &Project, plan_path: &str) -> String {
    let there = project.git.here().join(plan_path);
    let file = if there.exists() { there } else { project.git.main_root().join(plan_path) };
    shell::path(&from_here(&file))
}

/// What the worktrees of a run's steps were found in, by step.
pub(crate) fn conditions(found: &[(StepRef, Vec<Condition>)]) -> Value {
    let rows = found.iter().map(|(step, conditions)| (step.to_string(), json(conditions)));
    Value::Object(rows.collect())
}

/// An absolute path relative to the folder piton was started in.
pub(crate) fn from_here(path: &Path) -> PathBuf {
    match std::env::current_dir() {
        Ok(here) if path.is_absolute() => text::relative(path, &here),
        _ => path.to_owned(),
    }
}

/// Whether nothing is left but what others claim.
fn by_hand(view: &RunView) -> bool {
    let mut open = view.steps.iter().filter(|step| step.status.word() != "completed");
    open.all(|step| step.kind == StepKind::ByHand)
}

fn is_by_hand(view: &RunView, id: &StepId) -> bool {
    view.steps.iter().any(|step| step.step == *id && step.kind == StepKind::ByHand)
}

/// The kind of an interruption, which has the exit status of its signal.
pub(crate) fn interrupted(cause: Cause) -> Kind {
    match cause {
        Cause::Termination => Kind::Terminated,
        Cause::HangUp => Kind::HungUp,
        _ => Kind::Interrupted,
    }
}

/// A path by the one name that every way of writing it has.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Problem> {
    match std::fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(_) => Ok(std::path::absolute(path)?),
    }
}
