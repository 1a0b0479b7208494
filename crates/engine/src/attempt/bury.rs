//! Ending what is left of a dead attempt, keeping its bytes, and recording it. Each part can be
//! killed and done again by anybody to the same result; two that do it at once do no harm.

use piton_core::decide::{Command, Request};
use piton_core::event::{Snapshot, SnapshotReason, Stage, Under};
use piton_core::ids::{AttemptId, Fence, StepRef};
use piton_core::observed::{Corpse, Sighting};
use piton_core::view::step_branch;
use piton_git::crash;
use piton_git::repo::chain;
use piton_git::repo::commit_tree;
use piton_git::repo::keep::{Name, keep};
use piton_git::snapshot;
use piton_git::worktree::{Worktree, differing};

use crate::attempt::keeper::lock_reason;
use crate::config::Settings;
use crate::error::EngineError;
use crate::folder::{self, Swept};
use crate::project::Project;
use crate::run::log::Log;
use crate::run::observe::{Depth, observe};
use crate::run::runs::settings_of;
use crate::run::step_snapshot;

/// What was done about a dead attempt.
pub struct Burial {
    pub swept: Swept,
    /// Why its bytes could not be kept now; the tree stays as it is, and nothing resets it before
    /// they are.
    pub unkept: Option<String>,
}

/// Buries the attempts of these steps that are seen dead.
pub fn bury_dead(
    project: &Project,
    log: &mut Log,
    steps: &[StepRef],
) -> Result<Vec<(StepRef, Burial)>, EngineError> {
    let settings = settings_of(log)?;
    let observed = observe(project, log, Depth::Locks);
    let dead =
        log.run().held().filter(|(step, _)| steps.contains(step)).filter_map(|(step, attempt)| {
            match observed.of(attempt.id) {
                Sighting::Dead(corpse) => Some((step, attempt.fence, corpse.clone())),
                Sighting::Alive | Sighting::Unknown(_) | Sighting::Elsewhere => None,
            }
        });
    let dead: Vec<(StepRef, Fence, Corpse)> = dead.collect();
    let mut buried = Vec::new();
    for (step, fence, corpse) in dead {
        let burial = bury(project, log, &settings, &step, fence, corpse)?;
        buried.push((step, burial));
    }
    Ok(buried)
}

/// Stops before it touches: first the processes, then the tree, then the log.
pub(crate) fn bury(
    project: &Project,
    log: &mut Log,
    settings: &Settings,
    step: &StepRef,
    fence: Fence,
    mut corpse: Corpse,
) -> Result<Burial, EngineError> {
    let attempt = log.run().held().find(|(held, attempt)| held == step && attempt.fence == fence);
    let Some(attempt) = attempt.map(|(_, attempt)| attempt.id) else {
        return Ok(Burial { swept: Swept::default(), unkept: None });
    };
    let swept = folder::end_attempt(attempt, &project.folder(attempt));
    crash::point("bury.swept");
    // Stop before touch: with anything of it alive, its tree is nobody's, and nothing is recorded.
    if !swept.survivors.is_empty() {
        return Ok(Burial { swept, unkept: None });
    }
    unlock(project, log, settings, step, attempt);
    let unkept = match keep_bytes(project, log, settings, step, fence) {
        Ok(()) => None,
        // Somebody else recorded it first: nothing is left to do.
        Err(error) if error.is_lost() => return Ok(Burial { swept, unkept: None }),
        Err(error) => Some(chain(&error)),
    };
    let under = Under { step: step.clone(), fence };
    if let Some(why) = &unkept {
        corpse.evidence = format!("{}; no snapshot: {why}", corpse.evidence);
        let unkept = Request::ReportUnkept { why: why.clone() };
        let _the_claim_is_lost = log.submit(&Command::Under(under.clone(), unkept));
    }
    let recorded = log.submit(&Command::Under(under, Request::Bury(corpse)));
    crash::point("bury.recorded");
    match recorded.map_err(EngineError::from) {
        Ok(_) => Ok(Burial { swept, unkept }),
        Err(error) if error.is_lost() => Ok(Burial { swept, unkept }),
        Err(error) => Err(error),
    }
}

/// Git's lock of a dead attempt keeps nobody from anything; one of another attempt stays. What its git has
/// left on refs would keep everybody from deleting any.
fn unlock(project: &Project, log: &Log, settings: &Settings, step: &StepRef, attempt: AttemptId) {
    if let Some(path) = project.tree_of(&settings.worktree_root, log.run(), step) {
        let by = lock_reason(log, step, attempt);
        let _the_next_one_overwrites_it = Worktree::own_place(&project.git, &path).unlock(&by);
    }
    let branch = step_branch(&log.run().opened.handle, step);
    project.git.clear_left_locks(&format!("refs/heads/{branch}"));
}

fn keep_bytes(
    project: &Project,
    log: &mut Log,
    settings: &Settings,
    step: &StepRef,
    fence: Fence,
) -> Result<(), EngineError> {
    // It died before its tree had anything of the step's: what is there stays for whoever gets it.
    if !log.run().trees().has_work(&project.host, step) {
        return Ok(());
    }
    let path = project.tree_of(&settings.worktree_root, log.run(), step);
    let Some(path) = path else { return Ok(()) };
    let home = Worktree::own_place(&project.git, &path);
    // Somebody has moved another worktree there: its bytes are not the step's.
    if home.moved_from().is_some() {
        return Ok(());
    }
    home.mend(&step_branch(&log.run().opened.handle, step))?;
    let tree = home.clone().or_moved().unwrap_or_else(|| home.clone());
    if tree.state()?.dir().is_none() {
        return keep_commits(project, log, (step, fence), &home);
    }
    let Some((_, state)) = log.run().step(step) else { return Ok(()) };
    let Some(attempt) = state.attempt().filter(|attempt| attempt.fence == fence) else {
        return Ok(());
    };
    // Before anything was started the tree is not this attempt's work: kept, but nothing to go on from.
    let reason = match state.stage(attempt) {
        Stage::Unstarted => SnapshotReason::Reset,
        Stage::Agent | Stage::Verify | Stage::Land => SnapshotReason::Recovery,
    };
    let ask = step_snapshot::ask(log, (step, fence), reason);
    let Some(snapshot) = snapshot::keep(&tree, &ask)? else { return Ok(()) };
    crash::point("bury.snapshot-kept");
    let (step, snapshot) = (step.clone(), Some(snapshot));
    log.submit(&Command::Under(
        Under { step, fence },
        Request::Checkpoint { snapshot, report: None },
    ))?;
    crash::point("bury.checkpointed");
    Ok(())
}

/// The folder is not there, and no snapshot was taken: the commits that are left are something to go on from.
fn keep_commits(
    project: &Project,
    log: &mut Log,
    (step, fence): (&StepRef, Fence),
    tree: &Worktree,
) -> Result<(), EngineError> {
    let (git, reason) = (&project.git, SnapshotReason::Recovery);
    let Some((_, state)) = log.run().step(step) else { return Ok(()) };
    let (Some(base), None) = (state.base.clone(), state.resume_snapshot()) else { return Ok(()) };
    let tip = tree.left_at(&step_branch(&log.run().opened.handle, step));
    let Some(tip) = tip.filter(|tip| *tip != base) else { return Ok(()) };
    let message = step_snapshot::message(log, (step, fence), reason, None);
    let folder = step_snapshot::folder(log, step, fence);
    let (files, why) = (git.tree_of(&tip)?, "piton: snapshot");
    let made = snapshot::numbered(git, &folder, |number| {
        let refname = format!("{folder}/{number}");
        let made = keep(git, Name { refname: &refname, old: None, why }, |_| {
            commit_tree(|| git.call(), &files, std::slice::from_ref(&tip), &message).map(Some)
        })?;
        Ok(made.map(|commit| (refname, commit)))
    })?;
    let Some((refname, commit)) = made else { return Ok(()) };
    let changed = differing(git.call(), &base, &tip)?.len() as u64;
    let commits = git.count_commits(&base, &tip)?;
    let (omitted, head) = (Vec::new(), Some(tip));
    let snapshot =
        Snapshot { commit, tree: files, refname, changed, omitted, reason, head, commits };
    let (step, snapshot) = (step.clone(), Some(snapshot));
    log.submit(&Command::Under(
        Under { step, fence },
        Request::Checkpoint { snapshot, report: None },
    ))?;
    Ok(())
}
