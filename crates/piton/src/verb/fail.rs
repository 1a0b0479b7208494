//! `piton fail`: a holder says that its attempt failed.

use piton_engine::outside::claims;
use serde_json::json;

use crate::by_hand;
use crate::error::Problem;
use crate::target::{ByClaim, Target, Which, tell_kept, tell_stopped, words};
use crate::ui::Ui;
use crate::verb::Answer;

/// Record that the work on a claimed step failed
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  piton fail calm-otter jwt --fence 7 --reason 'its API does not exist'

It spends one of the step's retries. `piton reset` makes the step pending again.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    by: ByClaim,

    /// What went wrong
    #[arg(long, value_name = "WHY", value_parser = words, allow_hyphen_values = true)]
    reason: String,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::claimed(&args.which, &args.by)?;
    let fence = target.fence()?;
    let reason = args.reason.clone();
    let kept =
        target.write(fence, |project, log, under| claims::fail(project, log, under, reason))?;
    tell_kept(ui, &kept);
    let step = &target.step;
    let left = target.log.run().step(step).map_or(0, |(plan, state)| state.tries_left(plan));
    let tries = match left {
        0 => "no retries left".to_owned(),
        1 => "1 retry left".to_owned(),
        n => format!("{n} retries left"),
    };
    let _ = ui.line(format!("step {step}: failed; {tries}"));
    let _ = tell_stopped(ui, &target);
    let data = target.answer(json!({
        "fence": fence,
        "failed": true,
        "retries_left": left,
        "kept": kept.kept,
    }));
    Ok(by_hand::written(ui, &target.project, &target.log, data))
}
