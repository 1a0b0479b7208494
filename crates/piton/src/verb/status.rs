//! `piton status`: what is going on. Looks and records nothing.

use piton_core::view::{RunStatus, RunView};
use piton_engine::Runs;
use piton_engine::project::Project;
use piton_engine::run::condition;
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, look};
use piton_engine::run::runs;
use piton_engine::run::runs::Unreadable;
use serde_json::json;

use crate::describe::{condition_lines, run_head, run_row, step_row};
use crate::error::Problem;
use crate::exit::ExitStatus;
use crate::text::{dim, now, table};
use crate::ui::Ui;
use crate::verb::{self, Answer, next_commands};

/// Show unfinished runs, or the steps of one run
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton status                   unfinished runs
  piton status --all             every run
  piton status auth-calm-otter   the steps of a run
  piton status --json | jq -r '.data.runs[] | .handle + \" \" + .status'")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan
    run: Option<String>,

    /// Finished runs too
    #[arg(long, conflicts_with = "run")]
    all: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    match &args.run {
        Some(asked) => one(ui, &project, asked),
        None => many(ui, &project, args.all),
    }
}

fn one(ui: &Ui, project: &Project, asked: &str) -> Result<Answer, Problem> {
    let log = verb::run_of(project, piton_engine::Access::Look, Some(asked))?;
    let view = look(project, &log, Depth::Refs)?;
    let now = now();
    for line in run_head(&view, now) {
        ui.line(line)?;
    }
    let rows: Vec<Vec<String>> = view.steps.iter().map(|step| step_row(step, now)).collect();
    ui.lines(&table(&rows))?;
    let conditions = condition::of_run(project, &log)?;
    for (step, conditions) in &conditions {
        for line in condition_lines(conditions) {
            ui.line(format!("{step}: {line}"))?;
        }
    }
    if let Some(command) = next_commands(project, &view).first() {
        ui.hint(format!("`{command}`"));
    }
    let data = || {
        let next = next_commands(project, &view);
        json!({ "run": view, "worktrees": verb::conditions(&conditions), "next": next })
    };
    let answer = Answer::on_demand(ui, data);
    // The process ends with its answer: taking thousands of steps apart would only take time.
    std::mem::forget((log, view));
    Ok(answer)
}

fn many(ui: &Ui, project: &Project, all: bool) -> Result<Answer, Problem> {
    let found = survey(project, if all { WhichRuns::All } else { WhichRuns::Unfinished })?;
    let now = now();
    let head = ["RUN", "STATUS", "STEPS", "CHANGED", ""].map(dim).to_vec();
    let rows: Vec<Vec<String>> = found.views.iter().map(|view| run_row(view, now)).collect();
    if rows.is_empty() && found.damaged.is_empty() {
        ui.line(if all { "No runs here yet." } else { "No unfinished runs." })?;
        let start = "`piton run --help` says how to start one";
        ui.hint(if all { start.to_owned() } else { format!("`piton status --all`; {start}") });
    } else {
        ui.lines(&table(&[vec![head], rows].concat()))?;
    }
    let damaged: Vec<_> =
        found.damaged.iter().map(|damaged| json!({ "run": damaged.row.run })).collect();
    let exit = if damaged.is_empty() { ExitStatus::Ok } else { ExitStatus::Corrupt };
    for damaged in found.damaged {
        ui.report(&Problem::from(damaged.error));
    }
    let data = || json!({ "runs": found.views, "damaged": damaged });
    Ok(Answer::on_demand(ui, data).exiting(exit))
}

/// Which runs to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhichRuns {
    All,
    /// Not completed, and not left aside unless something of it is alive.
    Unfinished,
}

/// Every run that could be read, and every one that could not.
pub(crate) struct Survey {
    pub(crate) views: Vec<RunView>,
    pub(crate) damaged: Vec<Unreadable>,
}

/// Looks at runs; a damaged one never hides the others.
pub(crate) fn survey(project: &Project, which: WhichRuns) -> Result<Survey, Problem> {
    let mut found = Survey { views: Vec::new(), damaged: Vec::new() };
    let Some(store) = verb::store_for_looking(project)? else { return Ok(found) };
    let logs = match which {
        WhichRuns::All => runs::list(&store, &Runs::All)?,
        WhichRuns::Unfinished => runs::unfinished_runs(project, &store)?,
    };
    for log in logs {
        match log {
            Ok(log) => found.views.push(seen(project, &log)?),
            Err(damaged) => found.damaged.push(*damaged),
        }
    }
    if which == WhichRuns::Unfinished {
        let is_over = |status: &RunStatus| {
            matches!(status, RunStatus::Completed | RunStatus::Abandoned { .. })
        };
        found.views.retain(|view| !is_over(&view.status));
    }
    Ok(found)
}

fn seen(project: &Project, log: &Log) -> Result<RunView, Problem> {
    Ok(look(project, log, Depth::Locks)?)
}
