//! What the snapshots of a step are called, and what they say of themselves to people who meet them in git.

use piton_core::event::{Report, SnapshotReason};
use piton_core::ids::{Fence, StepRef};
use piton_git::repo::Git;
use piton_git::snapshot::{self, Ask};

use crate::run::log::Log;

/// A snapshot of a claim, to be kept if anything differs from the step's last recorded one.
pub(crate) fn ask(log: &Log, (step, fence): (&StepRef, Fence), reason: SnapshotReason) -> Ask {
    let state = log.run().step(step).map(|(_, state)| state);
    let kept = state.and_then(|state| state.snapshot.as_ref());
    Ask {
        folder: folder(log, step, fence),
        base: state.and_then(|state| state.base.clone()),
        message: message(log, (step, fence), reason, None),
        reason,
        last: kept.map(|kept| kept.snapshot.tree.clone()),
    }
}

/// The refs of a claim's snapshots.
pub(crate) fn folder(log: &Log, step: &StepRef, fence: Fence) -> String {
    let handle = &log.run().opened.handle;
    let name = match step.iteration {
        1 => step.step.to_string(),
        n => format!("{}-{n}", step.step),
    };
    format!("refs/piton/{handle}/{name}/{fence}")
}

/// Why a snapshot was taken, as its message says it.
const REASONS: [(SnapshotReason, &str); 5] = [
    (SnapshotReason::Cadence, "in progress"),
    (SnapshotReason::Checkpoint, "at a checkpoint"),
    (SnapshotReason::End, "at the end of an attempt"),
    (SnapshotReason::Recovery, "of an interrupted attempt"),
    (SnapshotReason::Reset, "before a reset"),
];

/// Lets a branch show the step's snapshots. What stood in the tree before a reset may be another step's.
pub(crate) fn show(git: &Git, branch: &str, step: &str) {
    let meant = |message: &str| reason_in(message) != Some(SnapshotReason::Reset);
    let _the_next_time = snapshot::show_as(git, branch, step, meant);
}

/// Why a snapshot was taken, from its message.
pub(crate) fn reason_in(message: &str) -> Option<SnapshotReason> {
    let first = message.lines().next()?;
    let first =
        first.strip_suffix("%)").and_then(|it| it.rsplit_once(" (")).map_or(first, |it| it.0);
    REASONS.iter().find(|(_, why)| first.ends_with(why)).map(|(reason, _)| *reason)
}

/// A snapshot says what it is of, and what was reported about the work, `fresh` included.
pub(crate) fn message(
    log: &Log,
    (step, fence): (&StepRef, Fence),
    reason: SnapshotReason,
    fresh: Option<&Report>,
) -> String {
    let handle = &log.run().opened.handle;
    let why = REASONS.iter().find(|(known, _)| *known == reason).map_or("", |(_, why)| why);
    let state = log.run().step(step).map(|(_, state)| state);
    let mut report = state.map(|state| state.report.clone()).unwrap_or_default();
    if let Some(fresh) = fresh {
        report.take_in(fresh);
    }
    // Indented, so that no line of it can be taken for a trailer.
    let row =
        |(name, text): (&str, String)| format!("  {name}: {}\n", text.replace('\n', "\n    "));
    let rows: String = report.describe().into_iter().map(row).collect();
    let reported = if rows.is_empty() { rows } else { format!("Reported, not checked:\n{rows}\n") };
    let percent = report.progress.map_or_else(String::new, |percent| format!(" ({percent}%)"));
    format!(
        "piton: snapshot of {step} {why}{percent}\n\n{reported}Piton-Run: {handle}\nPiton-Step: {step}\nPiton-Fence: {fence}\n"
    )
}
