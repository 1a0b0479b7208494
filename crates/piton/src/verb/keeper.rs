//! `piton keeper`, hidden: the process that a worker starts for one attempt.

use piton_core::ids::{AttemptId, Fence, RunId, StepRef};
use piton_engine::attempt::keeper::{KeeperArgs, keep};

use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Keep one attempt (started by a worker, never by hand)
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    run: RunId,
    #[arg(long, value_parser = step)]
    step: StepRef,
    #[arg(long, value_parser = fence)]
    fence: Fence,
    #[arg(long)]
    attempt: AttemptId,
}

pub(crate) fn run(args: &Args, _ui: &Ui) -> Result<Answer, Problem> {
    let Args { run, step, fence, attempt } = args.clone();
    match keep(&verb::here()?, &KeeperArgs { run, step, fence, attempt }) {
        0 => Ok(Answer::new(())),
        5 => Ok(Answer::new(()).exiting(ExitStatus::OwnershipLost)),
        _ => Err(Problem::new(Kind::SetupFailed, "the attempt was not kept")),
    }
}

fn step(text: &str) -> Result<StepRef, String> {
    text.parse::<StepRef>().map_err(|error| error.to_string())
}

fn fence(text: &str) -> Result<Fence, String> {
    text.parse().map(Fence).map_err(|_| format!("{text:?} is not a fence"))
}
