//! `piton complete`: a holder says that its step is done. Strict: what is open is not done.

use piton_core::ids::Fence;
use piton_engine::claims;
use serde_json::json;

use crate::claiming::{ByClaim, Target, Which};
use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::Answer;

/// Say that a claimed step is done
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton complete auth-calm-otter jwt --fence 7
  piton complete auth-calm-otter jwt --fence 7 --force --reason 'refresh moved to another plan'

Open items (E051) and open substeps (E052) refuse it; deferred items do not. With --force they are
recorded as skipped, with the reason. Saying it twice is harmless. Nothing is landed: the work is where
you did it.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    by: ByClaim,

    /// Complete it in spite of what is open
    #[arg(long, requires = "reason")]
    force: bool,

    /// Why what is open does not matter
    #[arg(long, value_name = "WHY", requires = "force")]
    reason: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::find(&args.which)?;
    let fence = match target.named(&args.by)? {
        None if args.force => present(&target),
        named => named,
    };
    let fence = fence.map_or_else(|| target.fence(&args.by), Ok)?;
    claims::complete(&mut target.log, &target.step, fence, args.reason.clone())?;
    let run = target.log.run();
    let left = run.steps().filter(|(_, state)| !state.is_completed()).count();
    let all = run.is_completed();
    let _ = ui.line(match all {
        true => format!("step {}: completed, as the last one", target.step),
        false => format!("step {}: completed; {left} to go", target.step),
    });
    let data = target.answer(json!({
        "fence": fence,
        "completed": true,
        "total_remaining": left,
        "all_completed": all,
    }));
    Ok(Answer::new(data).after_writing(target.log.store()))
}

/// By force, whatever claim there is.
fn present(target: &Target) -> Option<Fence> {
    let (_, state) = target.log.run().step(&target.step)?;
    state.attempt().map(|attempt| attempt.fence)
}
