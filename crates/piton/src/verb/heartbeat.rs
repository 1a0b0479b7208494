//! `piton heartbeat`: a holder says that it lives, and hears whether it should go on.

use std::time::Duration;

use piton_core::time::timestamp;
use piton_engine::error::EngineError;
use piton_engine::outside::claims::{self, Pulse};
use serde_json::json;

use crate::error::Problem;
use crate::target::{ByClaim, Target, Which};
use crate::ui::Ui;
use crate::verb::{Answer, run::lease};

/// Renew your claim's lease
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  piton heartbeat calm-otter jwt --fence 7 --json | jq -r .data.beat

It answers `continue`; `stop_requested` after `piton stop`, until you release
the step; or `lapsed`, when another claim holds its lock or worktree by now. A
claim that another holder took over is refused with E049 and exit status 5.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    by: ByClaim,

    /// How long the lease lasts from now on [default: as long as at the claim]
    #[arg(long, value_name = "DURATION", value_parser = lease, allow_hyphen_values = true)]
    lease: Option<Duration>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::claimed(&args.which, &args.by)?;
    let fence = target.fence()?;
    let under = target.under(fence);
    let beat = claims::heartbeat(&target.project, &mut target.log, &under, args.lease);
    let (beat, until) = beat.map_err(|error| target.told(error))?;
    let until = timestamp(until);
    let step = &target.step;
    let told = match beat {
        Pulse::Lapsed => format!(
            "step {step}: not renewed: its lease was over at {until}, and others have its worktree or \
             its lock by now; checkpoint, then release it"
        ),
        Pulse::Continue => format!("step {step}: yours until {until}"),
        Pulse::StopRequested => {
            format!("step {step}: a stop was requested; end here, then release it")
        }
        Pulse::Fenced => {
            let lost = EngineError::from(claims::lost(&target.log, &under));
            let problem = target.lost(fence, lost);
            let kept = problem.data.as_ref().map(|data| data["kept"].clone());
            let data = target.answer(json!({ "fence": fence, "beat": beat, "kept": kept }));
            return Err(problem.with_data(data));
        }
    };
    let _ = ui.line(told);
    if matches!(beat, Pulse::StopRequested | Pulse::Lapsed) {
        let run = &target.log.run().opened.handle;
        ui.hint(format!("`piton release {run} {step} --fence {fence}`"));
    }
    let data = target.answer(json!({ "fence": fence, "beat": beat, "lease_expires": until }));
    Ok(Answer::new(data).after_writing(target.log.store()))
}
