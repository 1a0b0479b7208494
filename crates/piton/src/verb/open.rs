//! `piton open`: makes a run of a plan without executing anything, for those who claim its steps.

use piton_engine::opening::OpenedRun;
use piton_engine::run::observe::{Depth, look};
use serde_json::json;

use crate::error::Problem;
use crate::plan_drift::Accepting;
use crate::target::{self, PlanAsk};
use crate::text::{bold, count};
use crate::typed::again;
use crate::ui::Ui;
use crate::verb::{self, Answer, resume, run::Begin};

/// Open a run without starting anything; its steps are claimed
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton open plan.toml
  piton open plan.toml --fresh        put the unfinished run aside
  piton open plan.toml --json | jq -r .data.run.handle

A plan with an unfinished run gets that run. Nothing is executed, so no trust is
needed.")]
pub(crate) struct Args {
    #[command(flatten)]
    begin: Begin,

    #[command(flatten)]
    accepting: Accepting,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let plan = &args.begin.plan(ui)?;
    let given = args.begin.inputs()?;
    let project = verb::project()?;
    if !args.begin.is_fresh()
        && given.is_empty()
        && let Some(log) = target::completed(&project, plan)?
    {
        return resume::finished(ui, &project, &log, Some(&again("--fresh")));
    }
    let how = (args.accepting.on_change(), args.begin.unfinished());
    let of = PlanAsk { plan, how: &args.begin.how(), inputs: given, start: args.begin.start() };
    let (log, opened) = match target::open(ui, &project, of, how)? {
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
    ui.hint(format!("take a step: `piton claim {} --worktree .`", view.handle));
    Ok(Answer::new(json!({ "run": view, "opened": opened })).after_writing(log.store()))
}
