//! `piton watch`: what `run` and `resume` show, without driving anything. Ctrl-C only leaves.

use piton_engine::Access;

use crate::drive::look_on;
use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Watch a run; leaving changes nothing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton watch                        the only unfinished run
  piton watch calm-otter             a run by its handle")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let log = verb::run_of(&project, Access::Look, args.run.as_deref())?;
    look_on(ui, &project, log)
}
