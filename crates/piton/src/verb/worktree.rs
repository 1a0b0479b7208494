//! `piton worktree`: a place to work in for those who claim, made or found.

use piton_engine::places::{self, Place};
use serde_json::json;

use crate::accepting::OnChange;
use crate::claiming;
use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::{self, Answer, stop::step_of};

/// Make or find worktrees to work in
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make the worktree of a step, or find it as it is; prints its path
    #[command(after_help = "\
Examples:
  piton worktree create plan.toml jwt
  piton claim plan.toml --step jwt --worktree $(piton worktree create plan.toml jwt)

It starts from what the run has landed, or from the step's own branch where that has more. A worktree
that is there stays as it is. Without a step it is the one that `piton run` works in.")]
    Create(Which),

    /// Print where the worktree of a step is, or would be
    #[command(after_help = "\
Example:
  cd $(piton worktree path auth-calm-otter jwt)")]
    Path(Which),
}

/// Which worktree is meant.
#[derive(Debug, clap::Args)]
struct Which {
    /// The plan, or the run: its handle, id or the beginning of either [default: PITON_RUN, else the
    /// unfinished one]
    #[arg(value_name = "PLAN|RUN")]
    run: Option<String>,

    /// The step [default: the run's own worktree]
    step: Option<String>,
}

impl Args {
    pub(crate) fn name(&self) -> &'static str {
        match self.verb {
            Verb::Create(_) => "worktree create",
            Verb::Path(_) => "worktree path",
        }
    }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    match &args.verb {
        Verb::Create(which) => create(which, ui),
        Verb::Path(which) => path(which, ui),
    }
}

fn create(which: &Which, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let log = claiming::open_or_find(ui, &project, which.run.as_deref(), OnChange::Refuse)?;
    let step = which.step.as_deref().map(|text| step_of(&log, text)).transpose()?;
    let Place { path, branch, created } = places::create(&project, &log, step.as_ref())?;
    // It is made, whoever still listens.
    let _ = ui.line(path.display().to_string());
    let opened = &log.run().opened;
    let data = json!({
        "run": opened.run,
        "handle": opened.handle,
        "step": step,
        "path": path,
        "branch": branch,
        "created": created,
    });
    Ok(Answer::new(data).after_writing(log.store()))
}

fn path(which: &Which, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let store = verb::store_with_runs(&project, piton_engine::Access::Look)?;
    let log = claiming::find(&project, &store, which.run.as_deref())?;
    let step = which.step.as_deref().map(|text| step_of(&log, text)).transpose()?;
    let path = places::path(&project, &log, step.as_ref())?;
    ui.line(path.display().to_string())?;
    let opened = &log.run().opened;
    let data = json!({ "run": opened.run, "handle": opened.handle, "step": step, "path": path });
    Ok(Answer::new(data))
}
