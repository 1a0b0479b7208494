//! `piton worker`, hidden: the process behind `--detach`. Trust was asked for by whoever started it.

use piton_core::ids::RunId;
use piton_engine::Access;
use piton_engine::worker::Going;

use crate::drive::{Drive, Place, drive, jobs};
use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Work on a run (started by `--detach`)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    run: RunId,

    #[arg(long, value_parser = jobs)]
    jobs: Option<u32>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let log = verb::run_of(&project, Access::Existing, Some(&args.run.to_string()))?;
    let how = Drive { going: Going::AsAsked, place: Place::Here, jobs: args.jobs };
    drive(ui, &project, log, how)
}
