//! `on_interrupt` and `idempotent`: what a plan says about going on after an interruption. Both become
//! one value, so that whoever asks later asks once.

use piton_core::plan::{OnInterrupt, Work, nearest, shown};

use crate::fields::{Fields, did_you_mean};

const ALL: [OnInterrupt; 3] = [OnInterrupt::Continue, OnInterrupt::Restart, OnInterrupt::Ask];

/// The key of a step, or of `[plan]`.
pub(crate) fn on_interrupt(fields: &mut Fields<'_, '_>) -> Option<OnInterrupt> {
    let text = fields.text("on_interrupt")?;
    let word = text.value;
    let known = ALL.into_iter().find(|way| way.as_str() == word);
    if known.is_none() {
        let message = format!("{} is not a way to go on after an interruption", shown(word));
        let hint = match nearest(word, ALL.map(OnInterrupt::as_str)) {
            Some(meant) => did_you_mean(meant),
            None => "write on_interrupt = \"continue\", \"restart\" or \"ask\"".to_owned(),
        };
        fields.findings.add(text.at, message, hint);
    }
    known
}

/// What a step says itself, else what follows from `idempotent`, else what the plan says.
pub(crate) fn of_step(
    fields: &mut Fields<'_, '_>,
    work: Option<&Work>,
    default: Option<OnInterrupt>,
) -> Option<OnInterrupt> {
    let (own, idempotent) = (on_interrupt(fields), fields.truth("idempotent"));
    match work {
        // Nothing is started for it, and findings say so.
        Some(work) if work.is_by_hand() => return None,
        Some(Work::Agent { .. }) if fields.has("idempotent") => {
            let message = "`idempotent` is about plain commands, and this step has an agent";
            let hint = "remove it; on_interrupt = \"ask\" asks before an agent goes on";
            fields.findings.add(fields.place_of("idempotent"), message, hint);
        }
        _ => {}
    }
    match (own, idempotent) {
        (Some(OnInterrupt::Restart), Some(false)) => {
            let message = "`idempotent = false` says that the command must not run again by itself, \
                           and `on_interrupt = \"restart\"` that it shall";
            let hint = "remove one of them, or write on_interrupt = \"ask\"";
            fields.findings.add(fields.place_of("on_interrupt"), message, hint);
            own
        }
        (Some(_), _) => own,
        (None, Some(false)) => Some(OnInterrupt::Ask),
        (None, _) => default,
    }
}
