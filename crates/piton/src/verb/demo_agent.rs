//! `piton demo-agent`, hidden: the demo's own tiny agent, so that the demo needs nothing else.

use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::Answer;

/// Play the agent of the demo
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args, _ui: &Ui) -> Result<Answer, Problem> {
    Ok(Answer::new(()))
}
