//! `piton skip`: leaves a step out, so that the steps that need it can go on.

use piton_engine::outside::claims;
use serde_json::json;

use crate::by_hand;
use crate::error::Problem;
use crate::target::{Target, Which, tell_kept, words};
use crate::text::bold;
use crate::ui::Ui;
use crate::verb::Answer;

/// Leave a step out; steps that need it continue without it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  piton skip calm-otter docs --reason 'written by hand'

Nothing of the step lands; its work is kept as a snapshot. `piton reset` undoes
a skip until the run is completed.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    /// Why it is skipped
    #[arg(long, value_name = "WHY", value_parser = words, allow_hyphen_values = true)]
    reason: String,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::find(&args.which)?;
    let Target { project, log, step, .. } = &mut target;
    let skipped = claims::skip(project, log, step, args.reason.clone());
    let kept = skipped.map_err(|error| target.told(error))?;
    let (run, step) = (target.log.run(), &target.step);
    let handle = &run.opened.handle;
    let _ = ui.line(format!("step {step}: skipped"));
    tell_kept(ui, &kept);
    match run.is_completed() {
        true => {
            let _ = ui.line(format!("{} is completed", bold(handle.as_str())));
        }
        false => ui.hint(format!(
            "`piton resume {handle}` goes on, unless a worker is there; `piton reset {handle} {step}` \
             undoes it"
        )),
    }
    let completed = run.is_completed();
    let data = json!({ "skipped": true, "completed": completed, "kept": kept.kept });
    Ok(by_hand::written(ui, &target.project, &target.log, target.answer(data)))
}
