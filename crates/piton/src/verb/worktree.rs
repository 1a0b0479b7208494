//! `piton worktree`: places to work in for those who claim, made, found and listed.

use piton_core::ids::StepRef;
use piton_engine::attempt::places::{self, Place};
use piton_engine::error::EngineError;
use piton_engine::git::GitError;
use piton_engine::git::shell;
use piton_engine::run::log::Log;
use piton_engine::tidy::clean::{self as engine, CleanAsk, TreeRow, TreeStatus};
use serde_json::json;

use crate::describe::condition_lines;
use crate::error::Problem;
use crate::plan_drift::OnChange;
use crate::target;
use crate::text::{self, dim, now, table, yellow};
use crate::ui::Ui;
use crate::verb::{self, Answer, clean, is_file, step_of};

/// Make, find and list worktrees
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: WorktreeVerb,
}

#[derive(Debug, clap::Subcommand)]
enum WorktreeVerb {
    /// Make a worktree to claim a step from, or find it; print its path
    #[command(after_help = "\
Examples:
  piton worktree create plan.toml jwt
  tree=$(piton worktree create plan.toml jwt)
  piton claim plan.toml --step jwt --worktree \"$tree\"

It starts from what the run has landed, or from the step's own branch if that
has more. An existing worktree stays as it is.")]
    Create(NewWorktree),

    /// Print the path of a step's worktree
    #[command(after_help = "\
Examples:
  cd $(piton worktree path calm-otter jwt)
  cd $(piton worktree path calm-otter/jwt)

Without a step: the folder that holds the run's worktrees.")]
    Path(WhichWorktree),

    /// List every worktree: its step, its state, and what is in it
    #[command(after_help = "\
Examples:
  piton worktree list
  piton worktree list --json | jq -r '.data.worktrees[].path'

Interrupted ones are marked with `!`. Nothing is written, no git lock is taken.")]
    List,
}

/// The step that a worktree is made for.
#[derive(Debug, clap::Args)]
struct NewWorktree {
    /// The run: its handle or the beginning of it, or its plan
    #[arg(value_name = "PLAN|RUN")]
    run: String,

    /// The step
    step: String,
}

/// Which worktree is meant.
#[derive(Debug, clap::Args)]
struct WhichWorktree {
    /// The run: its handle or the beginning of it, or its plan [default: PITON_RUN, or the unfinished one]
    #[arg(value_name = "PLAN|RUN")]
    run: Option<String>,

    /// The step [default: the folder of all worktrees]
    step: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    match &args.verb {
        WorktreeVerb::Create(new) => create(new, ui),
        WorktreeVerb::Path(which) => path(which, ui),
        WorktreeVerb::List => list(ui),
    }
}

fn create(new: &NewWorktree, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let log = target::open_or_find(ui, &project, Some(&new.run), OnChange::Refuse)?;
    let step = step_of(&log, &new.step)?;
    let made = places::create(&project, &log, &step);
    let Place { path, branch, created } = made.map_err(|error| elsewhere(error, &log, &step))?;
    // It is made, whoever still listens.
    let _ = ui.exact(path.display().to_string());
    let opened = &log.run().opened;
    let data = json!({
        "run": opened.run,
        "handle": opened.handle,
        "step": step.to_string(),
        "path": piton_engine::git::repo::names::text(&path),
        "branch": branch,
        "created": created,
    });
    Ok(Answer::new(data).after_writing(log.store()))
}

/// Where a step's branch is checked out already, it can be worked on.
fn elsewhere(error: EngineError, log: &Log, step: &StepRef) -> Problem {
    let place = match &error {
        EngineError::Git(GitError::BranchElsewhere { worktree, .. }) => Some(shell::path(worktree)),
        _ => None,
    };
    let problem = Problem::from(error);
    match place {
        Some(place) => {
            let handle = &log.run().opened.handle;
            problem.hint(format!(
                "work there: `piton claim {handle} --step {step} --worktree {place}`; or take it off \
                 that branch: `git -C {place} switch --detach`"
            ))
        }
        None => problem,
    }
}

fn path(which: &WhichWorktree, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let (run, step) = parted(which);
    let log = target::run_of(&project, piton_engine::Access::Look, run)?;
    let step = step.map(|text| step_of(&log, text)).transpose()?;
    let path = places::path(&project, &log, step.as_ref())?;
    ui.exact(path.display().to_string())?;
    let (opened, step) = (&log.run().opened, step.map(|step| step.to_string()));
    let path = piton_engine::git::repo::names::text(&path);
    let data = json!({ "run": opened.run, "handle": opened.handle, "step": step, "path": path });
    Ok(Answer::new(data))
}

/// `RUN/STEP` in one word, as elsewhere; a plan's path has slashes, too.
fn parted(which: &WhichWorktree) -> (Option<&str>, Option<&str>) {
    let (run, step) = (which.run.as_deref(), which.step.as_deref());
    match run.and_then(|text| text.rsplit_once('/')) {
        Some((run, of)) if step.is_none() && !is_file(which.run.as_deref()) => {
            (Some(run).filter(|run| !run.is_empty()), Some(of))
        }
        _ => (run, step),
    }
}

fn list(ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let store = verb::store_for_looking(&project)?;
    let root = clean::root(&project)?;
    // JudgedTree for the sake of the commits that only it has.
    let ask = CleanAsk { completed: true, interrupted: true, older_than: None };
    let rows = engine::judge(&project, store.as_ref(), &root, ask)?;
    let rows: Vec<TreeRow> = rows.into_iter().map(|judged| judged.row).collect();
    if rows.is_empty() {
        ui.line("No worktrees of piton's here.")?;
        ui.hint("`piton run --help`, or `piton worktree create --help`");
    } else {
        let head =
            ["", "RUN", "STEP", "STATUS", "CAUSE", "AGE", "CHANGES", "SIZE", "BRANCH", "PATH"];
        let shown: Vec<Vec<String>> = rows.iter().map(shown).collect();
        for line in table(&[vec![head.map(dim).to_vec()], shown].concat()) {
            ui.line(line)?;
        }
        for row in rows.iter().filter(|row| !row.conditions.is_empty()) {
            ui.line("")?;
            ui.line(format!("{}:", verb::from_here(&row.path).display()))?;
            for line in condition_lines(&row.conditions) {
                ui.line(format!("  {line}"))?;
            }
        }
    }
    Ok(Answer::on_demand(ui, || json!({ "worktrees": rows })))
}

fn shown(row: &TreeRow) -> Vec<String> {
    let cause = match &row.status {
        TreeStatus::Interrupted { cause } | TreeStatus::Missing { cause } => *cause,
        _ => None,
    };
    // Also where its worktree is gone.
    let interrupted = cause.is_some() || matches!(row.status, TreeStatus::Interrupted { .. });
    let cause = cause.map(|cause| cause.to_string()).unwrap_or_default();
    let word = row.status.word();
    vec![
        if interrupted { yellow("!") } else { String::new() },
        row.handle.as_ref().map(ToString::to_string).unwrap_or_else(|| "-".to_owned()),
        row.step.as_ref().map(ToString::to_string).unwrap_or_default(),
        if interrupted { yellow(word) } else { word.to_owned() },
        cause,
        row.changed_at.map(|at| text::ago(at, now())).unwrap_or_default(),
        row.counts.as_ref().map(clean::changes).unwrap_or_default(),
        row.counts.map(|counts| clean::size(counts.bytes)).unwrap_or_default(),
        row.branch.clone().unwrap_or_default(),
        verb::from_here(&row.path).display().to_string(),
    ]
}
