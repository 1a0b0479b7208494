//! `piton retry`: takes a step up again that failed, was interrupted or was stopped, in its tree and with what
//! a person changed there, and goes on with the run.

use piton_core::ids::StepRef;
use piton_core::refusal::Refusal;
use piton_core::run::{Phase, Run, Step};
use piton_engine::Access;
use piton_engine::outside::claims;
use piton_engine::run::plan_file;
use piton_engine::run::runs;

use crate::drive::{Drive, Work, drive};
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
  piton retry auth-calm-otter jwt    this one, after you changed its worktree
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
    let mut log = verb::run_of(&project, Access::Existing, args.run.as_deref())?;
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
        runs::lift(&project, &mut log, false)?;
        return resume::lifted(ui, &project, &log);
    }
    let names: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let handle = bold(log.run().opened.handle.as_str());
    ui.talk(format!("{handle}: trying {} again", names.join(", ")));
    let how = Drive { confirmed: false, watched: !args.work.detach, jobs: args.work.jobs };
    drive(ui, &project, log, how)
}

/// Every failed step.
fn failed(run: &Run) -> Result<Vec<StepRef>, Problem> {
    let is_failed = |state: &Step| matches!(state.phase, Phase::Failed { .. });
    let steps = run.steps().filter(|(_, _, state)| is_failed(state));
    let steps: Vec<StepRef> = steps.map(|(step, _, _)| step).collect();
    let handle = &run.opened.handle;
    match steps.is_empty() {
        false => Ok(steps),
        true => Err(Problem::new(Kind::Refused, format!("no step of {handle} has failed"))
            .hint(format!("go on: `piton resume {handle}`"))),
    }
}
