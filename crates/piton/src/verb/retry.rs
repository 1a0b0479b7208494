//! `piton retry`: takes a step up again that failed, was interrupted or was stopped, in its tree and with what
//! a person changed there, and goes on with the run.

use piton_core::ids::StepRef;
use piton_core::refusal::Refusal;
use piton_core::run::{Phase, Run, Step};
use piton_engine::Access;
use piton_engine::outside::claims;
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::plan_file;
use piton_engine::run::runs;

use crate::drive::{Work, drive};
use crate::error::{Kind, Problem};
use crate::hints::About;
use crate::target::refuse_inside;
use crate::text::bold;
use crate::trust_prompt::Consent;
use crate::ui::Ui;
use crate::verb::resume::{self, ready_to_go_on, require_trust};
use crate::verb::{self, Answer};

/// Try failed steps again, in their worktrees as they are
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton retry                        every failed step of the unfinished run
  piton retry calm-otter jwt         this one, after you changed its worktree
  piton retry --accept-plan          after you changed the plan

The steps keep their worktrees with your changes, and get all their retries
back. `piton worktree path RUN STEP` prints the path. To start from the step's
base instead: `piton reset`.")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,

    /// The steps [default: every failed one]
    #[arg(value_name = "STEP")]
    steps: Vec<String>,

    #[command(flatten)]
    work: Work,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let mut log = meant(&project, args.run.as_deref())?;
    refuse_inside(&log, "retry")?;
    if log.run().is_completed() {
        return Err(About::run(&project, &log).problem(Refusal::RunCompleted.into()));
    }
    let steps = match args.steps.as_slice() {
        [] => failed(log.run())?,
        named => named.iter().map(|step| verb::step_of(&log, step)).collect::<Result<_, _>>()?,
    };
    ready_to_go_on(ui, &project, &mut log, &args.work)?;
    require_trust(ui, &project, &log, Consent::asked(args.work.trust))?;
    claims::retry(&project, &mut log, &steps)
        .map_err(|error| About::run(&project, &log).problem(error))?;
    if plan_file::check_rest_startable(log.run()).is_err() {
        runs::lift(&project, &mut log, &args.work.drive().go_on)?;
        return resume::lifted(ui, &project, &log);
    }
    let names: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let handle = bold(log.run().opened.handle.as_str());
    ui.talk(format!("{handle}: trying {} again", names.join(", ")));
    drive(ui, &project, log, args.work.drive())
}

/// The run that was named, else the only one that has something to try again.
fn meant(project: &Project, asked: Option<&str>) -> Result<Log, Problem> {
    if asked.is_none() {
        let store = verb::store_with_runs(project, Access::Existing)?;
        if let Some(log) =
            runs::find_that(project, &store, |run| failed_steps(run).next().is_some())?
        {
            return Ok(log);
        }
    }
    verb::run_of(project, Access::Existing, asked)
}

fn failed_steps(run: &Run) -> impl Iterator<Item = StepRef> {
    let is_failed = |state: &Step| matches!(state.phase, Phase::Failed { .. });
    run.steps().filter(move |(_, _, state)| is_failed(state)).map(|(step, _, _)| step)
}

/// Every failed step.
fn failed(run: &Run) -> Result<Vec<StepRef>, Problem> {
    let steps: Vec<StepRef> = failed_steps(run).collect();
    let handle = &run.opened.handle;
    match steps.is_empty() {
        false => Ok(steps),
        true => Err(Problem::new(Kind::Refused, format!("no step of {handle} has failed"))
            .hint(format!("go on: `piton resume {handle}`"))),
    }
}
