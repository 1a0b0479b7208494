//! `piton demo-agent`, hidden: the demo's own tiny agent, so that the demo needs nothing else.

use std::path::PathBuf;

use piton_engine::demo::agent;

use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::Answer;

/// Play the agent of the demo
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The prompt, as a keeper names it
    #[arg(long, env = "PITON_PROMPT_FILE")]
    prompt: PathBuf,
}

pub(crate) fn run(args: &Args, _ui: &Ui) -> Result<Answer, Problem> {
    agent(&args.prompt)?;
    Ok(Answer::new(()))
}
