//! Giving a run up. Nothing of it is deleted: its worktrees, branches, snapshots and its log stay, and
//! the run can be reopened while no other run has its plan's place. A fresh start is the same with a
//! time in the attic, during which no clean-up touches anything of it.

use std::path::PathBuf;
use std::sync::Arc;

use piton_core::claim::believed_until;
use piton_core::decide::Command;
use piton_core::event::Holder;
use piton_core::ids::{Handle, RunId, StepRef};
use piton_core::limits::ATTIC;
use piton_core::observed::Sighting;
use piton_core::refusal::Refusal;
use piton_core::run::Attempt;
use piton_core::time::Millis;
use piton_core::view::all_shown;
use piton_git::crash;
use piton_git::repo::GitError;
use piton_git::worktree::Worktree;
use piton_store::{Runs, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::attempt::bury::bury_dead;
use crate::error::EngineError;
use crate::error::Living;
use crate::error::LogError;
use crate::error::NotUndone;
use crate::outside::claims;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::observe::{Depth, observe};
use crate::run::runs::settings_of;
use crate::tidy::undo::{Act, ActStage, Deed, Journal};

/// What a run has outside its log. All of it stays when the run is abandoned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Belongings {
    /// Steps that somebody has: their attempts are ended first.
    #[serde(serialize_with = "all_shown")]
    pub held: Vec<StepRef>,
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub worktrees: Vec<PathBuf>,
    pub branches: Vec<String>,
    /// Refs of snapshots.
    pub snapshots: Vec<String>,
}

/// A run that was given up, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbandonedRun {
    pub run: RunId,
    pub handle: Handle,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_until: Option<Millis>,
}

/// Looks up what a run has.
pub fn belongings(project: &Project, log: &Log) -> Result<Belongings, EngineError> {
    let run = log.run();
    let (handle, root) = (&run.opened.handle, settings_of(log)?.worktree_root);
    let steps = run.steps().map(|(step, _, _)| step).chain(run.past_steps().map(|(step, _)| step));
    let places = steps.map(|step| project.step_worktree(&root, handle, &step));
    let pool = run.trees().on_host(&project.host).map(|(tree, _)| tree);
    let places = pool.map(|tree| project.tree(&root, handle, tree)).chain(places);
    let worktrees = places.filter(|path| Worktree::at(&project.git, path).is_ours()).collect();
    let refs = |folder: String| -> Result<Vec<String>, GitError> {
        let asked = project.git.call().args(&["for-each-ref", "--format=%(refname)", "--"]);
        let answer = asked.arg(folder).run()?;
        Ok(answer.text("git for-each-ref")?.lines().map(str::to_owned).collect())
    };
    let branches = refs(format!("refs/heads/piton/{handle}/"))?;
    let short = |name: String| name.trim_start_matches("refs/heads/").to_owned();
    Ok(Belongings {
        held: run.held().map(|(step, _)| step).collect(),
        worktrees,
        branches: branches.into_iter().map(short).collect(),
        snapshots: refs(format!("refs/piton/{handle}/"))?,
    })
}

/// Gives a run up; says which act undoes it. Whoever has a step of it must have been ended.
pub fn abandon(project: &Project, log: &mut Log) -> Result<u64, EngineError> {
    give_up(project, log, |gone| Deed::Abandon { gone }, None)
}

/// Makes room for `opened`, a new run of the same plan: this one goes to the attic.
pub(crate) fn to_attic(
    project: &Project,
    log: &mut Log,
    opened: RunId,
) -> Result<u64, EngineError> {
    end_dead(project, log)?;
    let until = log.now()?.wall.after(ATTIC);
    give_up(project, log, |gone| Deed::FreshStart { gone, opened }, Some(until))
}

fn give_up(
    project: &Project,
    log: &mut Log,
    deed: impl FnOnce(AbandonedRun) -> Deed,
    keep_until: Option<Millis>,
) -> Result<u64, EngineError> {
    let journal = Journal::lock(project)?;
    log.refresh()?;
    let (run, handle) = (log.run().opened.run, log.run().opened.handle.clone());
    let begun = journal.acts()?.into_iter().rfind(|act| is_about(act, run));
    let mut act = match begun.filter(|act| act.stage == ActStage::Intended) {
        Some(act) => act,
        None if log.run().abandoned.is_some() => return Err(Refusal::RunAbandoned.into()),
        None => {
            let gone = AbandonedRun { run, handle, keep_until };
            journal.begin(log.now()?.wall, deed(gone))?
        }
    };
    crash::point("abandon.recorded");
    let host = project.host.clone();
    let done = log.submit(&Command::Abandon { host, keep_until });
    crash::point("abandon.abandoned");
    act.stage = if done.is_ok() { ActStage::Done } else { ActStage::Undone };
    journal.write(&act)?;
    done?;
    Ok(act.act)
}

pub(crate) fn is_about(act: &Act, run: RunId) -> bool {
    match &act.deed {
        Deed::Abandon { gone } | Deed::FreshStart { gone, .. } => gone.run == run,
        Deed::Clean { .. } | Deed::Restore(_) | Deed::Purge(_) => false,
    }
}

/// Ends what nobody is behind any more: dead attempts are buried, claims whose lease is over released,
/// with their bytes kept. What lives is refused.
pub(crate) fn end_dead(project: &Project, log: &mut Log) -> Result<(), EngineError> {
    log.refresh()?;
    let held: Vec<StepRef> = log.run().held().map(|(step, _)| step).collect();
    bury_dead(project, log, &held)?;
    let leases = log.store().leases(log.run().opened.run)?;
    let now = log.now()?;
    let lapsed = |(step, attempt): &(StepRef, &Attempt)| {
        matches!(attempt.holder, Holder::External { .. })
            && believed_until(step, attempt, &leases).is_over(&now)
    };
    let lapsed: Vec<StepRef> = log.run().held().filter(lapsed).map(|(step, _)| step).collect();
    for step in lapsed {
        claims::release(project, log, &step, None)?;
    }
    let living = Living::of(log.run().held());
    match living.is_empty() {
        true => Ok(()),
        false => Err(EngineError::StillAlive { handle: log.run().opened.handle.clone(), living }),
    }
}

/// Looks who is believed to work on a run.
pub fn living(project: &Project, log: &Log) -> Result<Living, EngineError> {
    let leases = log.store().leases(log.run().opened.run)?;
    let (observed, now) = (observe(project, log, Depth::Locks), log.now()?);
    let lives = |(step, held): &(StepRef, &Attempt)| match held.holder {
        Holder::Keeper { .. } => !matches!(observed.of(held.id), Sighting::Dead(_)),
        Holder::External { .. } => !believed_until(step, held, &leases).is_over(&now),
    };
    Ok(Living::of(log.run().held().filter(lives)))
}

/// Reopens a run that was given up; says what was done.
pub(crate) fn reopen(
    project: &Project,
    store: &Arc<dyn Store>,
    journal: &Journal,
    act: &mut Act,
) -> Result<Vec<String>, EngineError> {
    let (gone, opened) = match &act.deed {
        Deed::Abandon { gone } => (gone.clone(), None),
        Deed::FreshStart { gone, opened } => (gone.clone(), Some(*opened)),
        _ => unreachable!("no run was given up"),
    };
    let mut told = Vec::new();
    if let Some(opened) = opened {
        told.extend(give_way(project, store, act.act, opened)?);
    }
    act.stage = ActStage::Undoing;
    journal.write(act)?;
    crash::point("undo.reopening");
    let mut log = Log::load(Arc::clone(store), gone.run)?;
    match log.submit(&Command::Reopen { host: project.host.clone() }) {
        Ok(_) => {}
        Err(LogError::Store(StoreError::KeyHeld { run })) => {
            let other = Log::load(Arc::clone(store), run)?;
            return Err(in_the_way(act.act, &other).into());
        }
        Err(error) => return Err(error.into()),
    }
    told.push(format!("{} is open again", gone.handle));
    Ok(told)
}

/// A new run that nobody has worked on makes room for the one that it replaced.
fn give_way(
    project: &Project,
    store: &Arc<dyn Store>,
    act: u64,
    opened: RunId,
) -> Result<Option<String>, EngineError> {
    let holds = store.runs(&Runs::Active)?.iter().any(|row| row.run == opened);
    if !holds {
        return Ok(None);
    }
    let mut log = Log::load(Arc::clone(store), opened)?;
    if !is_untouched(log.run()) {
        return Err(in_the_way(act, &log).into());
    }
    log.submit(&Command::Abandon { host: project.host.clone(), keep_until: None })?;
    Ok(Some(format!("{}, which had no work, is abandoned", log.run().opened.handle)))
}

/// Whether nobody has ever held a step of a run.
pub fn is_untouched(run: &piton_core::run::Run) -> bool {
    run.steps().all(|(_, _, state)| state.history.is_empty() && state.attempt().is_none())
}

fn in_the_way(act: u64, other: &Log) -> NotUndone {
    NotUndone::PlanTaken { act, handle: other.run().opened.handle.clone() }
}
