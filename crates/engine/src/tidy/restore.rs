//! Putting a snapshot back into its worktree: what is there is kept first, the act is written down, and a
//! failure is taken back.

use std::path::PathBuf;

use piton_core::event::{Snapshot, SnapshotReason};
use piton_core::ids::{Fence, Oid, StepRef};
use piton_core::view::step_branch;
use piton_git::repo::GitError;
use piton_git::snapshot::{Ask, Begun, FileChange, PutBack, PutError, Putting};
use piton_git::worktree::{TreeState, Worktree};
use piton_git::{crash, snapshot};
use serde::Serialize;

use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;
use crate::run::snapshot_history::{KnownSnapshot, last_fence, place};
use crate::run::step_snapshot;
use crate::tidy::undo;
use crate::tidy::undo::{Act, ActStage, Deed, Journal};

mod guard;
mod undoing;

use guard::{is_of_work, refuse_in_use, refuse_newer_edits};
pub use undoing::RestoredFrom;
use undoing::branch_of;
pub(crate) use undoing::undo_restore;

/// What was put back, and where what was there before is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoredTree {
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub path: PathBuf,
    /// The snapshot of what was there; nothing where nothing was.
    pub before: Option<String>,
    /// The branch and the index went back, too.
    pub branch: Option<String>,
    pub written: Vec<String>,
    pub removed: Vec<String>,
    /// Where files are that were in the way and in no snapshot.
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub aside: Option<PathBuf>,
    /// What git was in the middle of then, and is not now: putting back begins no operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Begun>,
}

/// Whether edits that are newer than the last snapshot may be replaced; they are kept in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewerEdits {
    Refuse,
    Replace,
}

/// Puts a snapshot back into its worktree, whole or some paths of it. Refused while anybody works there.
pub fn restore(
    project: &Project,
    log: &mut Log,
    (among, kept): (&[KnownSnapshot], &KnownSnapshot),
    paths: &[Vec<u8>],
    edits: NewerEdits,
) -> Result<RestoredTree, EngineError> {
    let tree = Worktree::at(&project.git, &place(project, log, kept)?);
    let journal = Journal::lock(project)?;
    let all = (among, kept);
    let restored = restore_into(project, log, &tree, all, (paths, edits), Some(&journal))?;
    let begun = match restored.branch.is_some() && tree.in_progress().is_none() {
        true => snapshot::operation(&project.git, &kept.commit)?,
        false => None,
    };
    Ok(RestoredTree { operation: begun, ..restored })
}

/// The same, into any worktree; an act is written down where there is a journal.
pub(super) fn restore_into(
    project: &Project,
    log: &mut Log,
    tree: &Worktree,
    (among, kept): (&[KnownSnapshot], &KnownSnapshot),
    (paths, edits): (&[Vec<u8>], NewerEdits),
    journal: Option<&Journal>,
) -> Result<RestoredTree, EngineError> {
    let _alone = snapshot::lock_tree(tree)?;
    refuse_in_use(project, log, tree)?;
    let branch = step_branch(&log.run().opened.handle, &kept.step);
    tree.mend(&branch)?;
    match tree.state()? {
        TreeState::Damaged { why, .. } | TreeState::Foreign { why } => {
            return Err(GitError::Foreign { path: tree.path().to_owned(), why }.into());
        }
        TreeState::Missing | TreeState::HalfMade { .. } => {
            return rebuilt(project, log, tree, kept, paths);
        }
        TreeState::Present { .. } | TreeState::Unlinked { .. } => {}
    }
    let on = tree.head()?.and_then(|head| head.branch);
    let whole = paths.is_empty() && on.as_ref() == Some(&branch);
    let to = kept.commit.clone();
    let branch = whole.then_some(branch);
    let putting = |from: Oid| Putting { from, to: to.clone(), paths: paths.to_vec(), branch };
    let acts = journal.map(|journal| RestoreJournal { project, log, journal });
    if let Some((found, done)) = snapshot::finish_putting(tree)? {
        let again = putting(found.from.clone());
        if let Some(acts) = &acts {
            acts.finish(&found.from)?;
        }
        if found == again {
            let before = among.iter().find(|other| other.commit == found.from);
            return Ok(restored(tree, before.map(|before| before.refname.clone()), again, done));
        }
        return restore_present(project, log, tree, (kept, again), acts);
    }
    if edits == NewerEdits::Refuse {
        let known: Vec<&KnownSnapshot> = among.iter().filter(|other| is_of_work(other)).collect();
        refuse_newer_edits(tree, &known, kept, paths)?;
    }
    restore_present(project, log, tree, (kept, putting(to.clone())), acts)
}

/// Where restores are written down, to be undone.
struct RestoreJournal<'a> {
    project: &'a Project,
    log: &'a Log,
    journal: &'a Journal,
}

impl RestoreJournal<'_> {
    fn begin(
        &self,
        tree: &Worktree,
        (step, before): (&StepRef, &Snapshot),
        putting: &Putting,
    ) -> Result<Act, EngineError> {
        let from = RestoredFrom {
            run: self.log.run().opened.run,
            step: step.clone(),
            path: tree.path().to_owned(),
            before: before.refname.clone(),
            commit: before.commit.clone(),
            paths: putting.paths.clone(),
            fence: last_fence(self.log, step),
            branch: branch_of(tree)?,
        };
        self.journal.begin(self.log.now()?.wall, Deed::Restore(from))
    }

    fn end(&self, mut act: Act, stage: ActStage) -> Result<(), EngineError> {
        act.stage = stage;
        self.journal.write(&act)
    }

    /// What was cut short, and has been finished since.
    fn finish(&self, before: &Oid) -> Result<(), EngineError> {
        let is_it = |act: &Act| match &act.deed {
            Deed::Restore(from) => act.stage == ActStage::Intended && from.commit == *before,
            _ => false,
        };
        let found = undo::acts(self.project)?.acts.into_iter().rfind(is_it);
        found.map_or(Ok(()), |act| self.end(act, ActStage::Done))
    }
}

/// Puts back what a ref has into a worktree that is there; what was there before is kept first.
fn restore_present(
    project: &Project,
    log: &Log,
    tree: &Worktree,
    (kept, putting): (&KnownSnapshot, Putting),
    acts: Option<RestoreJournal<'_>>,
) -> Result<RestoredTree, EngineError> {
    let before = keep_present(log, tree, &kept.step)?;
    snapshot::read_back(&project.git, &before)?;
    crash::point("restore.kept");
    let putting = Putting { from: before.commit.clone(), ..putting };
    let begun = acts.as_ref().map(|acts| acts.begin(tree, (&kept.step, &before), &putting));
    let begun = begun.transpose()?;
    let put = snapshot::put_back(tree, &putting);
    let stage = match &put {
        Ok(_) => ActStage::Done,
        Err(PutError::TakenBack(_)) => ActStage::Undone,
        Err(PutError::Torn { .. }) => ActStage::Intended,
    };
    if let (Some(acts), Some(act)) = (&acts, begun) {
        acts.end(act, stage)?;
    }
    match put {
        Ok(done) => Ok(restored(tree, Some(before.refname), putting, done)),
        Err(source) => Err(EngineError::NotPutBack { before: before.refname, source }),
    }
}

pub(super) fn restored(
    tree: &Worktree,
    before: Option<String>,
    putting: Putting,
    done: PutBack,
) -> RestoredTree {
    let PutBack { written, removed, aside } = done;
    let (path, branch) = (tree.path().to_owned(), putting.branch);
    RestoredTree { path, before, branch, written, removed, aside, operation: None }
}

/// A worktree that is gone is made again: nothing is there to be lost.
fn rebuilt(
    project: &Project,
    log: &Log,
    tree: &Worktree,
    kept: &KnownSnapshot,
    paths: &[Vec<u8>],
) -> Result<RestoredTree, EngineError> {
    let settings = settings_of(log)?;
    let own = project.tree_of(&settings.worktree_root, log.run(), &kept.step);
    let is_own = |own: PathBuf| Worktree::at(&project.git, &own).path() == tree.path();
    if !paths.is_empty() || !own.is_some_and(is_own) {
        return Err(EngineError::NoTree { path: tree.path().to_owned() });
    }
    project.exclude_worktrees(&settings.worktree_root)?;
    let head = project.git.commit(&format!("{}^1", kept.commit))?;
    let branch = step_branch(&log.run().opened.handle, &kept.step);
    snapshot::rebuild(tree, &branch, &head, Some(&kept.commit))?;
    let files = snapshot::changed_paths(&project.git, &head, &kept.commit)?;
    let (removed, written): (Vec<FileChange>, Vec<FileChange>) =
        files.into_iter().partition(|file| file.change == snapshot::ChangeKind::Removed);
    let names = |files: Vec<FileChange>| files.into_iter().map(|file| file.path).collect();
    Ok(RestoredTree {
        path: tree.path().to_owned(),
        before: None,
        branch: Some(branch),
        written: names(written),
        removed: names(removed),
        aside: None,
        operation: None,
    })
}

/// A snapshot of what is there now, under the step's last fence.
fn keep_present(log: &Log, tree: &Worktree, step: &StepRef) -> Result<Snapshot, EngineError> {
    let fence = last_fence(log, step).unwrap_or(Fence(0));
    let ask = step_snapshot::ask(log, (step, fence), SnapshotReason::Reset);
    let taken = snapshot::keep(tree, &Ask { last: None, ..ask })?;
    taken.ok_or_else(|| EngineError::NoTree { path: tree.path().to_owned() })
}
