//! `piton open`: makes a run of a plan without executing anything, for those who claim its steps.

use std::path::PathBuf;

use piton_engine::observe::{Depth, look};
use piton_engine::runs::OpenedRun;
use serde_json::json;

use crate::claiming;
use crate::error::Problem;
use crate::text::{bold, count};
use crate::ui::Ui;
use crate::verb::{self, Answer, run::inputs};

/// Open a run of a plan without executing it: its steps are claimed by others
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton open plan.toml
  piton open plan.toml --json | jq -r .data.run.handle

A plan that is unchanged and has an unfinished run gets that run. Nothing is executed, so nothing has
to be trusted.")]
pub(crate) struct Args {
    /// The plan, a TOML file inside the repository
    plan: PathBuf,

    /// Replace the value of one of the plan's inputs
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let given = inputs(&args.set)?;
    let project = verb::project()?;
    let (log, opened) = match claiming::open(&project, &args.plan, given)? {
        OpenedRun::New(log) => (log, true),
        OpenedRun::Existing(log) => (log, false),
    };
    let view = look(&project, &log, Depth::Locks)?;
    let handle = bold(view.handle.as_str());
    let steps = count(view.total as u64, "step");
    ui.line(match opened {
        true => format!("{handle}: a new run, {steps}"),
        false => format!("{handle}: open already, {} of {steps} completed", view.completed),
    })?;
    ui.hint(format!("take a step: `piton claim {} --worktree PATH`", view.handle));
    Ok(Answer::new(json!({ "run": view, "opened": opened })).after_writing(log.store()))
}
