//! `piton demo`: shows that a run survives kill -9.

use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::Answer;

/// See a run survive kill -9, in a temporary repository
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    ui.talk("the demo is not part of this build");
    Ok(Answer::new(()))
}
