//! The end of a loop's iteration, as far as git can tell: whether its steps have changed anything. What follows
//! from that is decided elsewhere.

use std::collections::BTreeSet;

use piton_core::event::{Check, IterationCheck};
use piton_core::ids::{Oid, StepRef};
use piton_core::run::{Run, Step};
use piton_git::repo::{Git, GitError};
use piton_git::snapshot::changed_paths;

/// What is seen before the loop's `until` command is run; none where the step is not the last of a loop.
pub(crate) fn seen(
    git: &Git,
    run: &Run,
    step: &StepRef,
    commit: &Oid,
) -> Result<Option<IterationCheck>, GitError> {
    let in_loop = run.loop_of(&step.step);
    let Some((id, _, _)) = in_loop.filter(|(_, plan, _)| plan.steps.last() == Some(&step.step))
    else {
        return Ok(None);
    };
    let chain = run.chain(id);
    let spans = chain.iter().filter_map(|(other, state)| {
        let head = if other == step { Some(commit) } else { head(state) };
        Some((state.base.as_ref()?, head?))
    });
    let spans: Vec<(&Oid, &Oid)> = spans.collect();
    let changed = changed(git, &spans, commit)?;
    Ok(Some(IterationCheck { until: None, tail: String::new(), changed }))
}

/// With what the loop's `until` command said.
pub(crate) fn with_until(seen: IterationCheck, until: Check, tail: String) -> IterationCheck {
    IterationCheck { until: Some(until), tail, ..seen }
}

/// The loop's `until` command.
pub(crate) fn until(run: &Run, step: &StepRef) -> Option<String> {
    run.loop_of(&step.step).and_then(|(_, plan, _)| plan.until.clone())
}

fn head(state: &Step) -> Option<&Oid> {
    state.history.last().and_then(|past| past.attempt.trace.head.as_ref())
}

/// How many of the paths that these commits touched are not as they were at the start. Other steps may have
/// landed in between; what they changed does not count.
fn changed(git: &Git, spans: &[(&Oid, &Oid)], end: &Oid) -> Result<u64, GitError> {
    // A step that was worked on outside has no base: it has changed something, perhaps.
    let Some((start, _)) = spans.first() else { return Ok(1) };
    let mut touched = BTreeSet::new();
    for (from, to) in spans {
        touched.extend(changed_paths(git, from, to)?.into_iter().map(|change| change.path));
    }
    let differing = changed_paths(git, start, end)?;
    Ok(differing.iter().filter(|change| touched.contains(&change.path)).count() as u64)
}
