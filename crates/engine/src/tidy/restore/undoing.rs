//! Undoing a restore: what was there before is put back the same way, unless somebody has worked there
//! since.

use std::path::PathBuf;

use piton_core::ids::{Fence, Oid, RunId, StepRef};
use piton_git::repo::names;
use piton_git::worktree::{TreeState, Worktree};
use piton_store::sqlite::Access;
use serde::{Deserialize, Serialize};

use super::guard::{is_of_work, refuse_in_use, refuse_newer_edits};
use super::{NewerEdits, restore_into};
use crate::error::EngineError;
use crate::error::NotUndone;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::observe::place_at;
use crate::run::snapshot_history::{KnownSnapshot, last_fence, list};
use crate::tidy::undo::{Act, ActStage, Deed, Journal};

/// What it takes to reverse a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredFrom {
    pub run: RunId,
    pub step: StepRef,
    #[serde(with = "piton_git::repo::names::as_text")]
    pub path: PathBuf,
    /// The snapshot of what was there.
    pub before: String,
    pub commit: Oid,
    /// The files and folders that were meant; everything when there are none.
    #[serde(with = "names::as_hex")]
    pub paths: Vec<Vec<u8>>,
    /// The step's last claim then: whoever claims it later works on what was put back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// What was checked out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

/// Reverses a restore: what was there before is put back the same way. Where something has changed since
/// that no snapshot has, nothing is.
pub(crate) fn undo_restore(
    project: &Project,
    journal: &Journal,
    act: &mut Act,
) -> Result<Vec<String>, EngineError> {
    let Deed::Restore(from) = act.deed.clone() else {
        panic!("only a restore is undone by putting back what was there");
    };
    let store = project.store(Access::Existing)?;
    let mut log = Log::load(store, from.run)?;
    let all = list(project, &log, Some(&from.step))?.snapshots;
    let gone =
        || NotUndone::InTheWay { act: act.act, what: vec![format!("{} is gone", from.before)] };
    let kept = all.iter().find(|kept| kept.refname == from.before && kept.commit == from.commit);
    let kept = kept.ok_or_else(gone)?.clone();
    let tree = Worktree::at(&project.git, &from.path);
    refuse_used_since(project, &log, &tree, (act, &from), &kept)?;
    let edits = match act.stage {
        // Begun already: it was looked at then.
        ActStage::Undoing => NewerEdits::Replace,
        _ => NewerEdits::Refuse,
    };
    if edits == NewerEdits::Refuse {
        refuse_in_use(project, &mut log, &tree)?;
        // What was put back may be any that there was then.
        let is_known = |other: &&KnownSnapshot| is_of_work(other) || other.at <= act.at;
        let known: Vec<&KnownSnapshot> = all.iter().filter(is_known).collect();
        let looked = match tree.state()? {
            TreeState::Missing | TreeState::HalfMade { .. } => Ok(()),
            _ => refuse_newer_edits(&tree, &known, &kept, &from.paths),
        };
        match looked {
            Err(EngineError::NewerEdits { paths: what }) => {
                return Err(NotUndone::InTheWay { act: act.act, what }.into());
            }
            looked => looked?,
        }
        act.stage = ActStage::Undoing;
        journal.write(act)?;
    }
    let (among, edits) = ((all.as_slice(), &kept), NewerEdits::Replace);
    let done = restore_into(project, &mut log, &tree, among, (&from.paths, edits), None)?;
    let files = done.written.len() + done.removed.len();
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    Ok(vec![format!("{}: {files} as before", done.path.display())])
}

/// What was put back may be somebody's work by now: of another step that has got the run's worktree, or
/// of a later attempt that has gone on from it. Their files are not set back under them.
fn refuse_used_since(
    project: &Project,
    log: &Log,
    tree: &Worktree,
    (act, from): (&Act, &RestoredFrom),
    kept: &KnownSnapshot,
) -> Result<(), EngineError> {
    let (step, place, act_no) = (&from.step, tree.path().display(), act.act);
    let used = |why: String| -> Result<(), EngineError> {
        let (handle, step) = (log.run().opened.handle.clone(), step.clone());
        let before = format!("{}/{}", kept.fence, kept.n);
        Err(NotUndone::UsedSince { act: act_no, why, handle, step, before }.into())
    };
    let owner = place_at(project, log, tree.path())
        .and_then(|number| log.run().trees().owner(&project.host, number));
    if let Some(other) = owner.filter(|owner| **owner != kept.step) {
        return used(format!("step {other} has the worktree {place} by now"));
    }
    if from.fence.is_some() && last_fence(log, &kept.step) > from.fence {
        return used(format!("step {step} was worked on since, from what was put back"));
    }
    let on = branch_of(tree)?;
    match &from.branch {
        Some(branch) if act.stage != ActStage::Undoing && tree.is_ours() && on != from.branch => {
            let on = on.map_or("no branch".to_owned(), |on| format!("branch {on}"));
            let what = vec![format!("{place} is on {on} by now, not on {branch}")];
            Err(NotUndone::InTheWay { act: act_no, what }.into())
        }
        _ => Ok(()),
    }
}

/// What is checked out in a worktree.
pub(super) fn branch_of(tree: &Worktree) -> Result<Option<String>, EngineError> {
    Ok(tree.head()?.and_then(|head| head.branch))
}
