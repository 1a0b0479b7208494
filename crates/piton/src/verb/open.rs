//! `piton open`: makes a run of a plan without executing anything, for those who claim its steps.

use std::path::PathBuf;

use piton_engine::observe::{Depth, look};
use piton_engine::runs::OpenedRun;
use serde_json::json;

use crate::accepting::OnChange;
use crate::claiming;
use crate::error::Problem;
use crate::text::{bold, count};
use crate::trusting::Consent;
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

    /// Go on with the plan as it is now, if it was changed under its run; what it executes must be
    /// trusted
    #[arg(long)]
    accept_plan: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let given = inputs(&args.set)?;
    let project = verb::project()?;
    let on_change = OnChange::asked(args.accept_plan, Consent::Ask);
    let (log, opened) = match claiming::open(ui, &project, (&args.plan, given), on_change)? {
        OpenedRun::New(log) => (log, true),
        OpenedRun::Existing(log) | OpenedRun::Changed(log, _) => (log, false),
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
