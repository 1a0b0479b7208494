//! `piton reset`: makes a step that has ended pending again, with its retries unspent and its stop lifted.

use piton_engine::outside::claims::{self, ResetAnswer};
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::target::{Target, Which, tell_stopped, words};
use crate::ui::Ui;
use crate::verb::Answer;

/// Make a failed, interrupted, stopped or completed step pending again
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton reset auth-calm-otter jwt
  piton reset auth-calm-otter jwt --force --reason 'new API'    a completed one

Its retries are unspent, its deferred items open again; completed substeps, done
items and snapshots stay. A stop of the step (`piton stop RUN STEP`) is lifted,
one of the whole run is not. Steps that need it are named: they are left as they
are.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    /// Reset it although it is completed
    #[arg(long, requires = "reason")]
    force: bool,

    /// Why it is reset
    #[arg(long, value_name = "WHY", requires = "force", value_parser = words, allow_hyphen_values = true)]
    reason: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::find(&args.which)?;
    let Target { project, log, step, .. } = &mut target;
    let reset = claims::reset(project, log, step, args.reason.clone());
    let ResetAnswer { reset, dependants, kept } = reset.map_err(|error| target.told(error))?;
    let step = &target.step;
    let _ = ui.line(match reset {
        true => format!("step {step}: pending"),
        false => format!("step {step}: pending already"),
    });
    if reset && args.force && !dependants.is_empty() {
        let names: Vec<&str> = dependants.iter().map(|step| step.as_str()).collect();
        let message = format!("steps that need it are left as they are: {}", names.join(", "));
        ui.warn(Kind::Noticed, message, None);
    }
    if !tell_stopped(ui, &target) {
        let (run, step) = (target.log.run(), &target.step);
        let handle = &run.opened.handle;
        let by_hand = run.step(step).is_some_and(|(plan, _)| plan.work.is_by_hand());
        ui.hint(match by_hand {
            true => format!("`piton claim {handle} --step {step} --worktree .` takes it"),
            false => format!("`piton resume {handle}` goes on, unless a worker is there"),
        });
    }
    let data = target.answer(json!({ "reset": reset, "dependants": dependants, "kept": kept }));
    Ok(Answer::new(data).after_writing(target.log.store()))
}
