//! `piton substep complete`: says that an ordered part of a step is done.

use piton_core::ids::SubstepId;
use piton_engine::outside::claims;
use serde_json::json;

use crate::by_hand;
use crate::error::{Kind, Problem};
use crate::target::{ByClaim, Target};
use crate::ui::Ui;
use crate::verb::Answer;

/// Complete a substep of a step
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: SubstepVerb,
}

#[derive(Debug, clap::Subcommand)]
enum SubstepVerb {
    /// Mark a substep as done; safe to repeat
    #[command(after_help = "\
Examples:
  piton substep complete validate                        inside an attempt
  piton substep complete calm-otter jwt validate --fence 7")]
    Complete(Complete),
}

#[derive(Debug, clap::Args)]
struct Complete {
    /// The substep, after the run and the step [default: PITON_RUN, PITON_STEP]
    #[arg(value_name = "[PLAN|RUN STEP] SUBSTEP", required = true, num_args = 1..=3)]
    words: Vec<String>,

    #[command(flatten)]
    by: ByClaim,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let SubstepVerb::Complete(args) = &args.verb;
    let (mut target, text) = Target::behind(&args.words, &args.by, "substep")?;
    let substep =
        SubstepId::new(text).map_err(|error| Problem::from_error(Kind::UnknownPart, &error))?;
    let fence = target.fence()?;
    target.write(fence, |_, log, under| claims::complete_substep(log, under, substep.clone()))?;
    let _ = ui.line(format!("step {}: substep {substep} completed", target.step));
    let more = json!({ "fence": fence, "substep": substep, "completed": true });
    let data = target.answer(more);
    Ok(by_hand::written(ui, &target.project, &target.log, data))
}
