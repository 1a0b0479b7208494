//! Progress back into the file that another tool's plan was read from. What somebody changed there by hand
//! since is left as it is and named: the file is theirs.

use std::fs;
use std::path::PathBuf;

use piton_core::event::{Found, FoundState, Mark};
use piton_core::ids::{RunId, StepId};
use piton_core::run::{Phase, Run, Step};
use piton_formats::{Hint, Progress};
use piton_git::file::write_flushed;

use crate::error::EngineError;
use crate::project::Project;
use crate::run::plan_file::{plan_file, replace};

/// Steps whose state in the file was changed by hand since it was last read or written.
pub type ByHand = Vec<StepId>;

/// Remembers what the file said when the run was opened.
pub(crate) fn remember(project: &Project, run: RunId, found: &[Found]) -> Result<(), EngineError> {
    write_flushed(&memory(project, run), &found)
        .map_err(EngineError::io("what the plan file says cannot be kept"))
}

fn memory(project: &Project, run: RunId) -> PathBuf {
    project.state.join(format!("found-{run}.json"))
}

/// Writes how far the run is into its plan's file, where that has a place for it. A file that is gone or
/// cannot be read as that plan any more is left alone.
pub fn write_back(project: &Project, run: &Run) -> Result<ByHand, EngineError> {
    let Some(source) = run.plan().source.as_ref().filter(|source| source.write_back) else {
        return Ok(ByHand::new());
    };
    let path = plan_file(project, run);
    let Ok(bytes) = fs::read(&path) else { return Ok(ByHand::new()) };
    let named = path.to_string_lossy();
    let Ok(reading) =
        piton_formats::read(&bytes, &Hint { path: &named, format: Some(source.format) })
    else {
        return Ok(ByHand::new());
    };
    let id = run.opened.run;
    let known =
        fs::read(memory(project, id)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let known: Vec<Found> = known.unwrap_or_default();
    let mut progress: Vec<Progress> =
        run.steps().map(|(step, _, state)| progress(step.step, state)).collect();
    let mut by_hand = ByHand::new();
    progress.retain(|step| {
        let (before, now) = (state_in(&known, &step.step), state_in(&reading.found, &step.step));
        let is_theirs = !same(before, now) && !same(now, &step.state);
        if is_theirs {
            by_hand.push(step.step.clone());
        }
        !is_theirs
    });
    if let Some(written) = reading.written(&progress) {
        let failed = EngineError::io("the plan file cannot be written");
        replace(&path, &written).map_err(failed)?;
        let again =
            piton_formats::read(&written, &Hint { path: &named, format: Some(source.format) });
        if let Ok(again) = again {
            let theirs = |found: &&Found| by_hand.contains(&found.step.step);
            let kept = known.iter().filter(theirs).cloned();
            let ours = again.found.into_iter().filter(|found| !by_hand.contains(&found.step.step));
            remember(project, id, &kept.chain(ours).collect::<Vec<_>>())?;
        }
    }
    Ok(by_hand)
}

fn state_in<'a>(found: &'a [Found], step: &StepId) -> &'a FoundState {
    let own = found.iter().find(|found| found.step.step == *step);
    own.map_or(&FoundState::Pending, |found| &found.state)
}

/// Whether both say the same, whatever the words.
fn same(one: &FoundState, other: &FoundState) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

fn progress(step: StepId, state: &Step) -> Progress {
    let done = state.checklist.marks.iter().filter(|(_, mark)| **mark == Mark::Done);
    Progress {
        step,
        items: done.map(|(item, _)| item.clone()).collect(),
        substeps: state.checklist.completed.iter().cloned().collect(),
        state: match &state.phase {
            Phase::Completed { commit, .. } => {
                FoundState::Completed { commit: commit.as_ref().map(ToString::to_string) }
            }
            Phase::Skipped { reason, .. } => FoundState::Skipped { reason: reason.clone() },
            Phase::Failed { why, .. } => FoundState::Failed { reason: why.to_string() },
            Phase::Held { .. } | Phase::Interrupted { .. } | Phase::Suspended { .. } => {
                FoundState::InProgress
            }
            Phase::Pending { .. } => FoundState::Pending,
        },
    }
}
