//! How a commit comes onto a run's branch: not at all because it is there, by moving the branch
//! forward, by a merge made without any worktree, or not without a person. Keepers and holders outside
//! land by the same function: one at a time, decided under the fence, moved by compare-and-swap.

use std::sync::Arc;

use piton_core::decide::{Command, Request, holds};
use piton_core::event::{Conflict, Holder, LandingIntent, Under};
use piton_core::ids::{Oid, StepRef};
use piton_core::limits::CONFLICTS_LISTED_MAX;
use piton_core::plan::Plan;
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, Run};
use piton_core::view::run_branch;
use piton_git::crash;
use piton_git::file::private;
use piton_git::merging::{Landing, prepare};
use piton_git::repo::Moved;

use crate::attempt::planner::produced;
use crate::error::EngineError;
use crate::error::Unlanded;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;

/// How often landing is tried again because the run's branch moved meanwhile.
const LANDING_TRIES: usize = 10;

/// The run's branch, made on first use. One that somebody deleted is made again from what was
/// landed; one that lacks it was moved by somebody else, and nothing may be built on that.
pub(crate) fn run_tip(project: &Project, run: &Run) -> Result<Oid, EngineError> {
    let branch = run_branch(&run.opened.handle);
    let name = format!("refs/heads/{branch}");
    let git = &project.git;
    let landed = run.landed.as_ref();
    let tip = match git.ref_target(&name)? {
        Some(tip) => tip,
        None => {
            let start = landed.unwrap_or(&run.opened.base);
            match git.move_ref(&name, start, None, "piton: the run's branch")? {
                Moved::Moved => start.clone(),
                Moved::Lost { current } => current.unwrap_or_else(|| start.clone()),
            }
        }
    };
    match landed {
        Some(landed) if !git.is_ancestor(landed, &tip)? => {
            Err(Unlanded::Rewound { branch, lacks: landed.clone() }.into())
        }
        _ => Ok(tip),
    }
}

/// Brings a claim's verified commit onto the run's branch and completes the step; answers with the
/// commit that it is completed with.
pub(crate) fn land(
    project: &Project,
    log: &mut Log,
    under: &Under,
    waive: Option<&str>,
) -> Result<Oid, EngineError> {
    let step = &under.step;
    let handle = log.run().opened.handle.clone();
    let lock = private(&project.land_lock(&handle));
    let lock = lock.map_err(EngineError::io("the landing lock cannot be opened"))?;
    lock.lock().map_err(EngineError::io("the landing lock cannot be taken"))?;
    let commit = verified(log.run(), step)?;
    // What a planner has produced is the rest of the plan from its completion on.
    let plan = produced(project, log.run(), step, &commit)?.required();
    let plan = plan.map_err(|why| Unlanded::NoPlan { why })?;
    run_tip(project, log.run())?;
    let branch = run_branch(&handle);
    let message = format!("Land {step}\n\nPiton-Run: {handle}\nPiton-Step: {step}\n");
    for _ in 0..LANDING_TRIES {
        let (onto, to) = match prepare(&project.git, &branch, &commit, &message)? {
            Landing::Nothing { tip } => {
                let commit = landed_before(project, log.run(), step, &tip)?.unwrap_or(commit);
                return complete(log, under, (commit, plan), waive);
            }
            Landing::FastForward { onto, to } | Landing::Merge { onto, to } => (onto, to),
            Landing::Conflict { onto, paths } => {
                let conflict = unlanded(project, log, under, (&onto, &commit), paths)?;
                return Err(Unlanded::Conflict(Box::new(conflict)).into());
            }
            Landing::Unrelated => return Err(Unlanded::Unrelated { branch, commit }.into()),
            Landing::CheckedOut { worktree } => {
                return Err(Unlanded::CheckedOut { branch, worktree }.into());
            }
        };
        let intent = LandingIntent { onto: onto.clone(), to: to.clone() };
        log.submit(&Command::Under(under.clone(), Request::Land(intent)))?;
        crash::point("land.intended");
        // Whoever lost the claim since must not move the branch of those who have it.
        log.refresh()?;
        holds(log.run(), under)?;
        let name = format!("refs/heads/{branch}");
        let why = format!("piton: land {step}");
        if let Moved::Moved = project.git.move_ref(&name, &to, Some(&onto), &why)? {
            crash::point("land.ref-moved");
            let completed = complete(log, under, (to.clone(), plan), waive);
            if completed.as_ref().is_err_and(EngineError::is_lost) {
                // Taken in between: what was moved for nothing is moved back, unless others built on it.
                let why = format!("piton: {step} was taken");
                project.git.move_ref(&name, &onto, Some(&to), &why)?;
            }
            return completed;
        }
    }
    Err(Unlanded::Busy { branch }.into())
}

/// What a person is asked about; the commit has a ref of its own from here on, so that neither side
/// is lost whatever is done to the branches.
fn unlanded(
    project: &Project,
    log: &Log,
    under: &Under,
    (onto, commit): (&Oid, &Oid),
    mut paths: Vec<String>,
) -> Result<Conflict, EngineError> {
    let Under { step, fence } = under;
    let run = log.run();
    let handle = &run.opened.handle;
    let kept = format!("refs/piton/unlanded/{handle}/{step}/{fence}");
    let old = project.git.ref_target(&kept)?;
    project.git.move_ref(&kept, commit, old.as_ref(), "piton: could not be landed")?;
    crash::point("land.unlanded-kept");
    let held = run.step(step).and_then(|(_, state)| state.attempt());
    let root = settings_of(log)?.worktree_root;
    let is_there = |attempt: &&Attempt| match attempt.holder {
        Holder::External { .. } => true,
        Holder::Keeper { .. } => run.trees().has_work(&project.host, step),
    };
    let place = held.filter(is_there).and_then(|attempt| project.place_of(&root, run, attempt));
    let worktree = place.map(|place| place.display().to_string());
    let count = paths.len() as u64;
    paths.truncate(CONFLICTS_LISTED_MAX);
    let (branch, onto, commit) = (run_branch(handle), onto.clone(), commit.clone());
    Ok(Conflict { branch, onto, commit, kept, paths, count, worktree })
}

fn verified(run: &Run, step: &StepRef) -> Result<Oid, EngineError> {
    let state = run.step(step).and_then(|(_, state)| state.verified());
    let missing = || Refusal::NotVerified { step: step.clone() };
    Ok(state.map(|verified| verified.commit.clone()).ok_or_else(missing)?)
}

/// What the commit was landed as by somebody who was killed before it could be recorded.
fn landed_before(
    project: &Project,
    run: &Run,
    step: &StepRef,
    tip: &Oid,
) -> Result<Option<Oid>, EngineError> {
    let verified = run.step(step).and_then(|(_, state)| state.verified());
    let landing = verified.and_then(|verified| verified.landing.as_ref());
    Ok(match landing {
        Some(landing) if project.git.is_ancestor(&landing.to, tip)? => Some(landing.to.clone()),
        _ => None,
    })
}

fn complete(
    log: &mut Log,
    under: &Under,
    (commit, plan): (Oid, Option<Arc<Plan>>),
    waive: Option<&str>,
) -> Result<Oid, EngineError> {
    let waive = waive.map(str::to_owned);
    let end = Request::Complete { commit: Some(commit.clone()), waive };
    let complete = match plan {
        Some(plan) => Request::WithPlan { end: Box::new(end), plan },
        None => end,
    };
    log.submit(&Command::Under(under.clone(), complete))?;
    crash::point("land.completed");
    Ok(commit)
}
