//! Removing a worktree, and making it again. A snapshot of everything that is not ignored is kept and read
//! back first, and the act is written down; then git removes the worktree. Undoing rebuilds it from the
//! snapshot, at its path and on its branch. Each part can be done again after a kill.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use piton_core::event::{Snapshot, SnapshotReason};
use piton_core::ids::{Fence, StepRef};
use piton_core::view::step_branch;
use piton_git::crash;
use piton_git::repo::{Git, GitError};
use piton_git::snapshot::{self, Beyond};
use piton_git::worktree::{Head, TreeState, Worktree};
use piton_store::Store;

use super::{Proof, RemovedTree, TreeRow, held_at};
use crate::error::EngineError;
use crate::error::NotUndone;
use crate::machine;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;
use crate::run::step_snapshot;
use crate::tidy::branches::{self, Tip};
use crate::tidy::undo::{Act, ActStage, Deed, Journal};

/// Removes a worktree under the act, which is begun with the first one. Without a proof its snapshot is one.
pub(super) fn take_away(
    project: &Project,
    store: &Arc<dyn Store>,
    journal: &Journal,
    act: &mut Option<Act>,
    (row, proof): (&TreeRow, Option<&Proof>),
) -> Result<RemovedTree, EngineError> {
    let removal = Removal { project, row, log: log_of(store, row)? };
    let removed = removal.keep(proof)?;
    crash::point("clean.snapshot-kept");
    let act = begun(store, journal, act)?;
    act.deed.cleaned_mut().0.push(removed.clone());
    journal.write(act)?;
    crash::point("clean.recorded");
    match removal.refuse_in_use().and_then(|()| removal.refuse_changed(&removed)) {
        Ok(()) => remove(project, &removed).map(|()| removed),
        Err(error) => {
            // It is where it was: there is nothing to undo about it.
            forget(journal, act, &removed)?;
            Err(error)
        }
    }
}

/// Deletes branches under the act, which is begun where there is none.
pub(super) fn take_branches(
    project: &Project,
    store: &Arc<dyn Store>,
    journal: &Journal,
    act: &mut Option<Act>,
    gone: &[Tip],
) -> Result<(), EngineError> {
    if gone.is_empty() {
        return Ok(());
    }
    let act = begun(store, journal, act)?;
    act.deed.cleaned_mut().1.extend_from_slice(gone);
    journal.write(act)?;
    for tip in gone {
        branches::take_away(&project.git, tip)?;
        crash::point("clean.branch-gone");
    }
    Ok(())
}

fn begun<'act>(
    store: &Arc<dyn Store>,
    journal: &Journal,
    act: &'act mut Option<Act>,
) -> Result<&'act mut Act, EngineError> {
    Ok(match act {
        Some(act) => act,
        None => {
            let deed = Deed::Clean { trees: Vec::new(), branches: Vec::new() };
            act.insert(journal.begin(store.now()?.wall, deed)?)
        }
    })
}

/// Goes on with a clean-up that was cut short. A worktree in which there is something newer is no part of
/// it any more.
pub(super) fn finish(
    project: &Project,
    journal: &Journal,
    act: &mut Act,
) -> Result<(), EngineError> {
    for tree in act.deed.trees().to_vec() {
        match left(&project.git, &tree)? {
            Left::Newer => forget(journal, act, &tree)?,
            Left::Gone | Left::Part | Left::Whole => remove(project, &tree)?,
        }
    }
    for tip in act.deed.branches() {
        branches::take_away(&project.git, tip)?;
    }
    Ok(())
}

fn forget(journal: &Journal, act: &mut Act, gone: &RemovedTree) -> Result<(), EngineError> {
    act.deed.cleaned_mut().0.retain(|tree| tree != gone);
    journal.write(act)
}

fn log_of(store: &Arc<dyn Store>, row: &TreeRow) -> Result<Log, EngineError> {
    match row.run {
        Some(run) => Ok(Log::load(Arc::clone(store), run)?),
        None => Err(stays(&row.path, "unknown to this store")),
    }
}

fn stays(path: &Path, why: &str) -> EngineError {
    EngineError::Stays { path: path.to_owned(), why: why.to_owned() }
}

/// The step whose branch this is.
pub(super) fn step_on(log: &Log, branch: &str) -> Option<StepRef> {
    let handle = &log.run().opened.handle;
    let mut steps = log.run().steps().map(|(step, _, _)| step);
    steps.find(|step| step_branch(handle, step) == branch)
}

/// A worktree that is to go.
struct Removal<'a> {
    project: &'a Project,
    row: &'a TreeRow,
    log: Log,
}

impl Removal<'_> {
    /// Makes sure that a snapshot has everything, and reads it back.
    fn keep(&self, proof: Option<&Proof>) -> Result<RemovedTree, EngineError> {
        let TreeRow { path, .. } = self.row;
        let (Some(branch), Some(head)) = (self.row.branch.clone(), self.row.head.clone()) else {
            return Err(stays(path, "it is on no branch"));
        };
        let tree = Worktree::at(&self.project.git, path);
        let there = Head { commit: Some(head.clone()), branch: Some(branch.clone()) };
        if tree.head()? != Some(there) {
            return Err(stays(path, "it changed while it was looked at"));
        }
        let step = step_on(&self.log, &branch);
        let step = step.ok_or_else(|| stays(path, "it is on the branch of no step"))?;
        let kept = self.snapshot(&tree, &step)?;
        if let Some(left) = kept.omitted.first() {
            return Err(stays(path, &format!("no snapshot can hold {}: {}", left.path, left.why)));
        }
        snapshot::read_back(&self.project.git, &kept)?;
        let proof = proof.cloned();
        let snapshotted = || Proof::Snapshotted { refname: kept.refname.clone() };
        Ok(RemovedTree {
            run: self.log.run().opened.run,
            handle: self.log.run().opened.handle.clone(),
            step: step.step,
            path: path.clone(),
            branch,
            head,
            proof: proof.unwrap_or_else(snapshotted),
            snapshot: kept.commit,
            kept_as: kept.refname,
        })
    }

    /// The step's last snapshot, where that has it all, or a new one.
    fn snapshot(&self, tree: &Worktree, step: &StepRef) -> Result<Snapshot, EngineError> {
        let (_, state) = self.log.run().step(step).expect("a step of the plan");
        let past = state.history.iter().map(|past| &past.attempt).chain(state.attempt());
        let fence = past.map(|attempt| attempt.fence).max().unwrap_or(Fence(0));
        let ask = step_snapshot::ask(&self.log, (step, fence), SnapshotReason::Reset);
        let recorded = state.snapshot.as_ref().map(|kept| kept.snapshot.clone());
        let kept = snapshot::keep(tree, &ask)?.or(recorded);
        kept.ok_or_else(|| stays(tree.path(), "no snapshot could be taken of it"))
    }

    /// Whoever claims does so before touching the tree; whoever works in it without a claim is seen by
    /// the folder that its process is in.
    fn refuse_in_use(&self) -> Result<(), EngineError> {
        let TreeRow { path, .. } = self.row;
        let folders = machine::folders();
        if let Some((pid, _)) = folders.iter().find(|(_, folder)| folder.starts_with(path)) {
            return Err(stays(path, &format!("process {pid} works in it")));
        }
        let log = Log::load(Arc::clone(self.log.store()), self.log.run().opened.run)?;
        let root = settings_of(&log)?.worktree_root;
        let held = held_at(self.project, &log, &root, path);
        match held {
            Some((step, _)) => Err(stays(path, &format!("step {step} was claimed a moment ago"))),
            None => Ok(()),
        }
    }

    fn refuse_changed(&self, removed: &RemovedTree) -> Result<(), EngineError> {
        match left(&self.project.git, removed)? {
            Left::Whole => Ok(()),
            Left::Gone | Left::Part | Left::Newer => {
                Err(stays(&removed.path, "it changed while it was looked at"))
            }
        }
    }
}

/// What is left of a worktree that was to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Gone,
    /// Files that its snapshot has; others are missing.
    Part,
    /// Everything, as its snapshot has it.
    Whole,
    /// Something that its snapshot has not.
    Newer,
}

fn left(git: &Git, removed: &RemovedTree) -> Result<Left, EngineError> {
    let tree = Worktree::at(git, &removed.path);
    tree.repoint()?;
    if let TreeState::Missing | TreeState::HalfMade { .. } = tree.state()? {
        return Ok(Left::Gone);
    }
    let (head, branch) = (Some(removed.head.clone()), Some(removed.branch.clone()));
    if tree.head()? != Some(Head { commit: head, branch }) {
        return Ok(Left::Newer);
    }
    Ok(match snapshot::beyond(&tree, &removed.snapshot)? {
        Beyond::Nothing => Left::Whole,
        Beyond::OnlyMissing => Left::Part,
        Beyond::Newer => Left::Newer,
    })
}

fn remove(project: &Project, removed: &RemovedTree) -> Result<(), EngineError> {
    Worktree::at(&project.git, &removed.path).remove()?;
    crash::point("clean.removed");
    if removed.branch_goes() {
        drop_branch(&project.git, removed)?;
        crash::point("clean.branch-gone");
    }
    // The folders of its run, if nothing else is in them.
    let above = removed.path.ancestors().skip(1);
    let own =
        |folder: &&Path| folder.ancestors().any(|above| above.ends_with(removed.handle.as_str()));
    above.take_while(own).take_while(|folder| fs::remove_dir(folder).is_ok()).for_each(drop);
    Ok(())
}

/// Deletes the branch where it still is what it was: the snapshot keeps its commits.
fn drop_branch(git: &Git, removed: &RemovedTree) -> Result<(), GitError> {
    let name = format!("refs/heads/{}", removed.branch);
    match git.ref_target(&name)? {
        None => git.clear_left_locks(&name),
        Some(tip) if tip == removed.head && git.checked_out(&name).is_none() => {
            git.delete_ref(&name, &tip)?;
        }
        Some(_) => {}
    }
    Ok(())
}

/// Makes everything again that a clean-up has removed; says what. Where something newer stands in the way
/// of any of it, nothing is made.
pub(crate) fn put_back(
    project: &Project,
    journal: &Journal,
    act: &mut Act,
) -> Result<Vec<String>, EngineError> {
    let trees = act.deed.trees().to_vec();
    if act.stage != ActStage::Undoing {
        let mut what = Vec::new();
        for tree in &trees {
            what.extend(in_the_way(&project.git, tree)?);
        }
        for tip in act.deed.branches() {
            what.extend(branches::in_the_way(&project.git, tip)?);
        }
        if !what.is_empty() {
            return Err(NotUndone::InTheWay { act: act.act, what }.into());
        }
        act.stage = ActStage::Undoing;
        journal.write(act)?;
    }
    crash::point("undo.intended");
    for tree in &trees {
        if left(&project.git, tree)? != Left::Whole {
            let place = Worktree::at(&project.git, &tree.path);
            snapshot::rebuild(&place, &tree.branch, &tree.head, Some(&tree.snapshot))?;
        }
        crash::point("undo.tree-back");
    }
    for tip in act.deed.branches() {
        branches::put_back(&project.git, tip)?;
        crash::point("undo.tree-back");
    }
    let told = |tree: &RemovedTree| format!("{} (branch {})", tree.path.display(), tree.branch);
    let branches = act.deed.branches().iter().map(|tip| format!("branch {}", tip.branch));
    Ok(trees.iter().map(told).chain(branches).collect())
}

fn in_the_way(git: &Git, tree: &RemovedTree) -> Result<Vec<String>, EngineError> {
    if git.ref_target(&tree.kept_as)?.as_ref() != Some(&tree.snapshot) {
        return Ok(vec![format!("its snapshot {} is gone", tree.kept_as)]);
    }
    let left = left(git, tree)?;
    let mut what = Vec::new();
    if left == Left::Newer {
        what.push(format!("{} is there again", tree.path.display()));
    }
    let name = format!("refs/heads/{}", tree.branch);
    match git.ref_target(&name)? {
        Some(tip) if tip != tree.head => {
            what.push(format!("the branch {} is at {} by now", tree.branch, tip.short()));
        }
        Some(_) if left == Left::Gone => {
            if let Some(place) = git.checked_out(&name) {
                what.push(format!("{} is checked out in {}", tree.branch, place.display()));
            }
        }
        Some(_) | None => {}
    }
    Ok(what)
}
