//! Deleting a run for good: its records, what its attempts printed, and the branches and worktrees that
//! have nothing of their own. Work is not deleted: what no other branch has stays under a ref, and is
//! named. The order makes every kill one that saying it again goes on from: worktrees, branches, records,
//! files; and what is to go is written down before anything does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use piton_core::decide::may_forget;
use piton_core::event::Holder;
use piton_core::ids::{AttemptId, Handle, RunId};
use piton_core::run::Run;
use piton_git::crash;
use piton_git::repo::keep::HELD;
use piton_git::snapshot;
use piton_store::Runs;
use piton_store::sqlite::Access;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::folder::Folder;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;
use crate::tidy::abandon::{self, end_dead};
use crate::tidy::branches::{self, CLEANED, Tip};
use crate::tidy::clean::{self, Doomed};
use crate::tidy::undo::{Act, ActStage, Deed, Journal};

/// A run that is deleted, as it is written down: all it takes to finish that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgedRun {
    pub run: RunId,
    pub handle: Handle,
    pub attempts: Vec<AttemptId>,
}

/// What a run has, by what becomes of it when it is purged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Purge {
    pub run: RunId,
    pub handle: Handle,
    /// Records in the log.
    pub records: u64,
    /// Folders of attempts: transcripts, prompts, output of verify commands.
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub attempts: Vec<PathBuf>,
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub worktrees: Vec<PathBuf>,
    /// Branches whose commits others have.
    pub branches: Vec<Tip>,
    /// Branches with commits that no other has.
    pub kept_branches: Vec<Tip>,
    /// Refs of snapshots.
    pub kept_snapshots: Vec<String>,
    /// Refs of commits that were not landed, made on the way to that, or of branches that were cleaned up.
    pub kept_refs: Vec<String>,
    /// Files that no snapshot could hold, moved aside by an attempt.
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub kept_files: Vec<PathBuf>,
}

/// What a purge did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Purged {
    #[serde(flatten)]
    pub purge: Purge,
    /// The act that puts the worktrees back; none where there were none.
    pub act: Option<u64>,
}

/// What would go and what would stay. Refused while somebody is at work in it.
pub fn preview(project: &Project, log: &mut Log) -> Result<Purge, EngineError> {
    end_dead(project, log)?;
    let doomed = doomed(project, log)?;
    let worktrees = doomed.iter().map(|doomed| doomed.path().to_owned()).collect();
    survey(project, log.run(), worktrees)
}

/// Deletes a run, giving it up first where it is not over.
pub fn purge(project: &Project, log: &mut Log) -> Result<Purged, EngineError> {
    let mut purge = preview(project, log)?;
    if !log.run().is_completed() && log.run().abandoned.is_none() {
        abandon::abandon(project, log)?;
    }
    let journal = Journal::lock(project)?;
    log.refresh()?;
    may_forget(log.run())?;
    let mut act = begin(&journal, log)?;
    crash::point("purge.recorded");
    clean::take_all(project, log.store(), &journal, &doomed(project, log)?)?;
    crash::point("purge.trees-gone");
    // What was begun by a process that was killed counts as well.
    let away = journal.acts()?.into_iter().rfind(|act| has_tree_of(act, purge.run));
    let after = survey(project, log.run(), Vec::new())?;
    purge.branches.retain(|tip| !after.kept_branches.contains(tip));
    for tip in &after.branches {
        branches::delete(&project.git, tip)?;
    }
    crash::point("purge.branches-gone");
    log.forget()?;
    crash::point("purge.forgotten");
    let kept_snapshots = after.kept_snapshots;
    purge = Purge { kept_snapshots, kept_branches: after.kept_branches, ..purge };
    finish(project, &journal, &mut act)?;
    Ok(Purged { purge, act: away.map(|act| act.act) })
}

/// Finishes what was cut short after the records were gone; says which runs those were.
pub fn finish_all(project: &Project) -> Result<Vec<Handle>, EngineError> {
    let journal = Journal::lock(project)?;
    let store = project.store(Access::Existing)?;
    let known = store.runs(&Runs::All)?;
    let mut finished = Vec::new();
    for mut act in journal.acts()? {
        let Deed::Purge(gone) = &act.deed else { continue };
        let is_gone = known.iter().all(|row| row.run != gone.run);
        if act.stage == ActStage::Intended && is_gone {
            finished.push(gone.handle.clone());
            finish(project, &journal, &mut act)?;
        }
    }
    Ok(finished)
}

/// Writes down what goes, unless a purge of the same run was begun already.
fn begin(journal: &Journal, log: &Log) -> Result<Act, EngineError> {
    let run = log.run();
    let gone = PurgedRun {
        run: run.opened.run,
        handle: run.opened.handle.clone(),
        attempts: attempts(run),
    };
    let begun = |act: &Act| matches!(&act.deed, Deed::Purge(of) if of.run == gone.run);
    match journal.acts()?.into_iter().rfind(begun) {
        Some(mut act) => {
            act.deed = Deed::Purge(gone);
            journal.write(&act)?;
            Ok(act)
        }
        None => journal.begin(log.now()?.wall, Deed::Purge(gone)),
    }
}

fn attempts(run: &Run) -> Vec<AttemptId> {
    let all = run.steps().flat_map(|(_, _, state)| {
        let past = state.history.iter().map(|past| past.attempt.clone());
        past.chain(state.attempt().cloned()).collect::<Vec<_>>()
    });
    let kept = all.filter(|attempt| matches!(attempt.holder, Holder::Keeper { .. }));
    kept.map(|attempt| attempt.id).collect()
}

/// The worktrees of a run, each with where its work stays; refused where one of them is in use.
fn doomed(project: &Project, log: &Log) -> Result<Vec<Doomed>, EngineError> {
    let (run, handle) = (log.run().opened.run, &log.run().opened.handle);
    let root = settings_of(log)?.worktree_root;
    match clean::doomed(project, log.store(), (&root, run))? {
        Ok(doomed) => Ok(doomed),
        Err(what) => Err(EngineError::NotPurged { handle: handle.clone(), what }),
    }
}

fn survey(project: &Project, run: &Run, worktrees: Vec<PathBuf>) -> Result<Purge, EngineError> {
    let handle = run.opened.handle.clone();
    let (branches, kept_branches) = branches::judge(&project.git, &handle, (None, &worktrees))?;
    let folders = attempts(run).into_iter().map(|id| project.folder(id));
    let folders: Vec<_> = folders.filter(|folder| folder.path().is_dir()).collect();
    let holds_any = |path: &PathBuf| fs::read_dir(path).is_ok_and(|mut list| list.next().is_some());
    let within = folders.iter().map(|folder| folder.omitted()).filter(holds_any);
    let elsewhere = |folder: &Folder| {
        let own = folder.omitted();
        let out = snapshot::moved_out(&own).into_iter().map(|moved| moved.place);
        out.filter(move |place| !place.starts_with(&own)).collect::<Vec<_>>()
    };
    let kept_files = within.chain(folders.iter().flat_map(elsewhere)).collect();
    let kept_snapshots = project.git.refs_under(&format!("refs/piton/{handle}/"))?;
    let mut kept_refs = project.git.refs_under(&format!("refs/piton/unlanded/{handle}/"))?;
    kept_refs.extend(project.git.refs_under(&format!("{HELD}/piton/{handle}/"))?);
    kept_refs.extend(project.git.refs_under(&format!("{CLEANED}/{handle}/"))?);
    Ok(Purge {
        run: run.opened.run,
        records: run.cursor.position.0,
        attempts: folders.iter().map(|folder| folder.path().to_owned()).collect(),
        worktrees,
        branches,
        kept_branches,
        kept_snapshots: kept_snapshots.into_iter().map(|(name, _)| name).collect(),
        kept_refs: kept_refs.into_iter().map(|(name, _)| name).collect(),
        kept_files,
        handle,
    })
}

fn has_tree_of(act: &Act, run: RunId) -> bool {
    act.stage != ActStage::Undone && act.deed.trees().iter().any(|tree| tree.run == run)
}

/// The files of a run that its store does not know any more, and the acts that were about it.
fn finish(project: &Project, journal: &Journal, act: &mut Act) -> Result<(), EngineError> {
    let Deed::Purge(gone) = &act.deed else { panic!("only a purge is finished so") };
    for attempt in &gone.attempts {
        empty(project.folder(*attempt).path())?;
    }
    for path in [
        project.land_lock(&gone.handle),
        project.worker_log(gone.run),
        project.worker_lock(gone.run),
    ] {
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                let what = format!("cannot remove {}", path.display());
                return Err(EngineError::Io { what, source });
            }
            _ => {}
        }
    }
    crash::point("purge.files-gone");
    for about in journal.acts()? {
        let restored = matches!(&about.deed, Deed::Restore(from) if from.run == gone.run);
        if abandon::is_about(&about, gone.run) || restored {
            journal.strike(about.act)?;
        }
    }
    act.stage = ActStage::Done;
    journal.write(act)
}

/// Removes the files of an attempt, and its folder. Folders in it stay, and it with them: they hold what
/// no snapshot could.
fn empty(folder: &Path) -> Result<(), EngineError> {
    let failed = |path: &Path| EngineError::io(format!("cannot remove {}", path.display()));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            fs::remove_file(entry.path()).map_err(failed(&entry.path()))?;
        } else {
            let _holds_something = fs::remove_dir(entry.path());
        }
    }
    let _holds_something = fs::remove_dir(folder);
    Ok(())
}
