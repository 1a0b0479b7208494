//! `piton reset`: makes a step pending again at its base, with its retries unspent and its stop lifted.

use piton_engine::outside::claims::{self, ResetAnswer};
use piton_engine::run::snapshot_history::place_for;
use serde_json::json;

use crate::by_hand;
use crate::error::{Kind, Problem};
use crate::target::{ByClaim, Target, Which, tell_kept, tell_stopped, words};
use crate::ui::Ui;
use crate::verb::Answer;
use crate::verb::release::{own_of_keeper, release};

/// Make a step pending again, from its base
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton reset calm-otter jwt
  piton reset calm-otter jwt --worktree .             your claim ends with it
  piton reset calm-otter jwt --force                  a step that is claimed
  piton reset calm-otter jwt --force --reason 'new API'         completed

Its work is kept as a snapshot first, its retries are unspent, a skip or a stop
of the step is undone. Done items and substeps stay done. Steps that need it are
named and stay as they are. To continue in its worktree: `piton retry`.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    by: ByClaim,

    /// Reset it although it is claimed or completed
    #[arg(long, conflicts_with_all = ["worktree", "fence"])]
    force: bool,

    /// Why it is reset
    #[arg(long, value_name = "WHY", requires = "force", value_parser = words, allow_hyphen_values = true)]
    reason: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::claimed(&args.which, &args.by)?;
    end_claim(args, &mut target)?;
    let Target { project, log, step, .. } = &mut target;
    let reset = claims::reset(project, log, step, args.reason.clone());
    let ResetAnswer { reset, dependants, kept } = reset.map_err(|error| target.told(error))?;
    let step = &target.step;
    let _ = ui.line(match reset {
        true => format!("step {step}: pending; it begins again from its base"),
        false => format!("step {step}: pending already"),
    });
    tell_kept(ui, &kept);
    if let Some(kept) = &kept.kept {
        let handle = &target.log.run().opened.handle;
        let (one, to) = (format!("{handle}/{step} --at {kept}"), place_for(handle, step));
        ui.hint(format!("bring it back: `piton snapshot restore {one} --to {to}`"));
    }
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
    let data =
        target.answer(json!({ "reset": reset, "dependants": dependants, "kept": kept.kept }));
    Ok(by_hand::written(ui, &target.project, &target.log, data))
}

/// The claim that is reset with its step: the holder's own, or by force anybody's.
fn end_claim(args: &Args, target: &mut Target) -> Result<(), Problem> {
    let held = target.log.run().step(&target.step).and_then(|(_, state)| state.attempt());
    let Some(held) = held.map(|held| held.fence) else { return Ok(()) };
    let fence = match args.force {
        true => own_of_keeper(target),
        false => match target.named()?.filter(|named| *named == held) {
            Some(own) => Some(own),
            // The core says who has it.
            None => return Ok(()),
        },
    };
    release(target, fence).map(drop)
}
