//! Claims that are given back or taken back, and steps that are taken up again, left out or made pending
//! again; the bytes of whoever worked on them are kept first.

use piton_core::decide::{Command, Request, to_restart};
use piton_core::event::{Event, Holder, SnapshotReason, Terms, Under};
use piton_core::ids::{Fence, RunId, StepId, StepRef};
use piton_core::view::shown;
use serde::Serialize;

use super::claim_writes::submit;
use super::{bury_the_dead, end};
use crate::attempt::places;
use crate::error::EngineError;
use crate::outside::outside_snapshots::{self, Keep, Kept};
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;

/// What `release` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReleaseAnswer {
    pub plan: String,
    pub run: RunId,
    #[serde(serialize_with = "shown")]
    pub step: StepRef,
    pub released: bool,
    pub was_claimed_by: String,
    /// What became of the holder's bytes.
    #[serde(flatten)]
    pub kept: Kept,
}

/// Gives a claim back: the owner's, or anybody's without a fence. Its bytes are kept first; a keeper of
/// this host that loses its claim so is ended before the answer.
pub fn release(
    project: &Project,
    log: &mut Log,
    step: &StepRef,
    fence: Option<Fence>,
) -> Result<ReleaseAnswer, EngineError> {
    log.refresh()?;
    let held = log.run().step(step).and_then(|(_, state)| state.attempt()).cloned();
    let was_claimed_by = match held.as_ref().map(|attempt| &attempt.holder) {
        Some(Holder::External { worktree, .. }) => worktree.clone(),
        Some(Holder::Keeper { host, .. }) => format!("a keeper on {host}"),
        None => String::new(),
    };
    let kept = match &held {
        Some(held) if fence.is_none_or(|fence| fence == held.fence) => {
            outside_snapshots::before_end(project, log, (step, held), None)
        }
        _ => Kept::default(),
    };
    let ended = match (fence, &held) {
        (Some(fence), _) => {
            submit(log, &Under { step: step.clone(), fence }, Request::Release)?;
            None
        }
        (None, held) => {
            log.submit(&Command::ForceRelease { step: step.clone() })?;
            held.as_ref().map(|held| end(project, log, step, held)).transpose()?.flatten()
        }
    };
    let opened = &log.run().opened;
    Ok(ReleaseAnswer {
        plan: opened.plan_path.clone(),
        run: opened.run,
        step: step.clone(),
        released: true,
        was_claimed_by,
        kept: ended.unwrap_or(kept),
    })
}

/// What `reset` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResetAnswer {
    /// Nothing is to be done about a pending step on which nothing was spent.
    pub reset: bool,
    /// The steps that need it.
    pub dependants: Vec<StepId>,
    /// What became of what was done so far.
    #[serde(flatten)]
    pub kept: Kept,
}

/// Makes a step pending again, after the bytes of whoever worked on it last were kept.
pub fn reset(
    project: &Project,
    log: &mut Log,
    step: &StepRef,
    reason: Option<String>,
) -> Result<ResetAnswer, EngineError> {
    bury_the_dead(project, log, Some(step))?;
    let kept = keep_work(project, log, step)?;
    let command = Command::Reset { step: step.clone(), reason };
    let told = log.submit(&command)?;
    let reset = matches!(told.last(), Some(Event::Reset { .. }));
    let run = log.run();
    let dependants = run.index_of(step).map(|index| run.dependants_of(index));
    Ok(ResetAnswer { reset, dependants: dependants.unwrap_or_default(), kept })
}

/// Keeps what is in the trees of the interrupted and failed steps that begin again from their base with these
/// terms, after recording who is dead; that they do is recorded with the terms.
pub fn keep_before_restart(
    project: &Project,
    log: &mut Log,
    terms: &Terms,
) -> Result<Vec<(StepRef, Kept)>, EngineError> {
    bury_the_dead(project, log, None)?;
    let steps = to_restart(log.run(), terms).into_iter();
    steps.map(|step| keep_work(project, log, &step).map(|kept| (step, kept))).collect()
}

/// Takes steps up again, in their trees as they are now.
pub fn retry(project: &Project, log: &mut Log, steps: &[StepRef]) -> Result<(), EngineError> {
    for step in steps {
        bury_the_dead(project, log, Some(step))?;
    }
    let command = Command::Retry { steps: steps.to_vec(), host: project.host.clone() };
    log.submit(&command)?;
    Ok(())
}

/// Leaves a step out, after what was done of it was kept.
pub fn skip(
    project: &Project,
    log: &mut Log,
    step: &StepRef,
    reason: String,
) -> Result<Kept, EngineError> {
    bury_the_dead(project, log, Some(step))?;
    let kept = keep_work(project, log, step)?;
    let (step, host) = (step.clone(), project.host.clone());
    log.submit(&Command::Skip { step, reason, host })?;
    if log.run().is_completed() {
        let _stays_then = places::put_away(project, log);
    }
    Ok(kept)
}

/// Takes a step as completed because the plan's file says so; its work is kept, and nothing of it lands.
pub fn find(project: &Project, log: &mut Log, step: &StepRef) -> Result<Kept, EngineError> {
    bury_the_dead(project, log, Some(step))?;
    let kept = keep_work(project, log, step)?;
    log.submit(&Command::Find { step: step.clone() })?;
    if log.run().is_completed() {
        let _stays_then = places::put_away(project, log);
    }
    Ok(kept)
}

/// Keeps what is in the tree of a step that nobody holds: its tree of the pool, or the worktree of whoever
/// worked on it last from outside. Without one, the step's last snapshot has it.
fn keep_work(project: &Project, log: &Log, step: &StepRef) -> Result<Kept, EngineError> {
    let run = log.run();
    let Some((_, state)) = run.step(step) else { return Ok(Kept::default()) };
    let Some(last) = state.history.last().filter(|_| !state.is_done()) else {
        return Ok(Kept::default());
    };
    let fence = last.attempt.fence;
    let root = settings_of(log)?.worktree_root;
    let tree = project.tree_of(&root, run, step);
    let kept = match tree.filter(|_| run.trees().has_work(&project.host, step)) {
        Some(path) => {
            let keep = Keep { step, fence, path: &path, reason: SnapshotReason::Reset };
            outside_snapshots::of_ended(project, log, &keep)
        }
        None => {
            let kept = outside_snapshots::of_lost(project, log, step, fence);
            Kept { kept, unkept: None }
        }
    };
    let before = state.snapshot.as_ref().filter(|kept| kept.snapshot.changed > 0);
    let before = before.map(|kept| kept.snapshot.refname.clone());
    Ok(Kept { kept: kept.kept.or(before), unkept: kept.unkept })
}
