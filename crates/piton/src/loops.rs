//! Loops in words: where each stands, in one line.

use piton_core::event::Halt;
use piton_core::ids::{LoopId, StepRef};
use piton_core::plan::{Plan, PlanLoop};
use piton_core::run::{LoopEnd, LoopPhase, Run};
use piton_core::time::Millis;
use piton_core::view::{LoopView, RunView};

use crate::text::{ago, count, plain};

/// Every loop of a run.
pub(crate) fn lines(view: &RunView) -> Vec<String> {
    view.loops.iter().map(|of| format!("  {}", line(of))).collect()
}

/// `improve: iteration 3 of at most 10, 1 stale`.
pub(crate) fn line(of: &LoopView) -> String {
    let LoopView { id, iteration, max, stale, .. } = of;
    let at = match of.phase {
        LoopPhase::Over(end) => return format!("{id}: {}", ended(end, *iteration)),
        LoopPhase::Going => format!("{id}: iteration {iteration} of at most {max}"),
        LoopPhase::Halted(Halt::Max) => format!("{id}: waits after {}", iterations(*iteration)),
        LoopPhase::Halted(Halt::Stale { .. }) => format!("{id}: waits in iteration {iteration}"),
    };
    if *stale > 0 { format!("{at}, {stale} stale") } else { at }
}

/// What has become of a step's loop, where that step was the last of an iteration.
pub(crate) fn turned(run: &Run, step: &StepRef) -> Option<String> {
    let (id, plan, state) = run.loop_of(&step.step)?;
    match state.phase {
        LoopPhase::Over(end) => Some(format!("{id}: {}", ended(end, state.iteration))),
        LoopPhase::Going if state.iteration > step.iteration => {
            let (iteration, max) = (state.iteration, run.bound(plan, state));
            Some(format!("{id}: iteration {iteration} of at most {max}"))
        }
        LoopPhase::Going | LoopPhase::Halted(_) => None,
    }
}

fn ended(end: LoopEnd, iteration: u32) -> String {
    let after = format!("after {}", iterations(iteration));
    match end {
        LoopEnd::Passed => format!("done {after}"),
        LoopEnd::Counted => format!("over {after}"),
        LoopEnd::Accepted => format!("accepted {after}"),
        LoopEnd::Skipped => "skipped".to_owned(),
    }
}

fn iterations(number: u32) -> String {
    count(u64::from(number), "iteration")
}

/// A loop with its past iterations, a line for each step.
pub(crate) fn history(of: &LoopView, now: Millis) -> Vec<String> {
    let past = of.past.iter().map(|past| {
        let commit = past.commit.as_ref().map_or("no commit", |commit| commit.short());
        let attempts = count(past.attempts as u64, "attempt");
        // The first iteration is named, too: its step is not the present one.
        let step = format!("{}#{}", past.step.step, past.step.iteration);
        format!("    {step}  {commit}  {}, {attempts}", ago(past.at, now))
    });
    std::iter::once(line(of)).chain(past).collect()
}

/// The loops of a plan: `improve: review → implement → lint, at most 10 times, until `make test``.
pub(crate) fn planned(plan: &Plan) -> String {
    let line = |(id, of): (&LoopId, &PlanLoop)| {
        let names: Vec<&str> = of.steps.iter().map(|step| step.as_str()).collect();
        let mut text = format!("{id}: {}, at most {} times", names.join(" → "), of.max);
        if let Some(until) = &of.until {
            text.push_str(&format!(", until `{}`", plain(until)));
        }
        if of.until_items {
            text.push_str(", until every item is done");
        }
        if let Some(limit) = of.stale_limit {
            text.push_str(&format!(", asks after {limit} without a change"));
        }
        format!("  loop {text}\n")
    };
    plan.loops.iter().map(line).collect()
}
