//! `piton start`: a holder says that the work has begun.

use piton_engine::claims;
use serde_json::json;

use crate::claiming::{ByClaim, Target, Which};
use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::Answer;

/// Say that the work on a claimed step has begun
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  piton start auth-calm-otter jwt --fence 7")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    by: ByClaim,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::find(&args.which)?;
    let fence = target.fence(&args.by)?;
    claims::start(&mut target.log, &target.step, fence)?;
    let _ = ui.line(format!("step {}: started", target.step));
    let data = target.answer(json!({ "fence": fence, "started": true }));
    Ok(Answer::new(data).after_writing(target.log.store()))
}
