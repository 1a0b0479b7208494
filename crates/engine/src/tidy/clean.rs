//! Cleaning up: which worktrees of piton's are there, which of them can go and why, and removing those.
//! Nothing goes without a proof; what cannot be proven stays, with the reason. Only what piton made is
//! touched. A snapshot holds whatever goes, ignored files excepted, and is read back first.

pub(crate) mod proof;
mod removal;
mod survey;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use piton_core::event::{Cause, Holder};
use piton_core::ids::{Handle, Oid, RunId, StepId, StepRef};
use piton_core::run::Attempt;
use piton_core::time::Millis;
use piton_git::crash;
use piton_git::repo::chain;
use piton_git::worktree::Worktree;
use piton_store::Store;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::project::Project;
use crate::remedy::Remedy;
use crate::run::condition::Condition;
use crate::run::log::Log;
use crate::tidy::branches::{self, Tip};
use crate::tidy::purge;
use crate::tidy::undo::{Act, ActStage, Deed, Journal};

pub(crate) use removal::put_back;
pub use survey::list;

/// A worktree of piton's, or something that stands where one would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TreeRow {
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub path: PathBuf,
    pub run: Option<RunId>,
    pub handle: Option<Handle>,
    /// The step that it belongs to; none where it is free.
    pub step: Option<StepId>,
    /// Nothing when HEAD is detached, or there is none.
    pub branch: Option<String>,
    pub head: Option<Oid>,
    #[serde(flatten)]
    pub status: TreeStatus,
    /// When something last happened to it, as far as the log and its git directory tell.
    #[serde(serialize_with = "shown_time")]
    pub changed_at: Option<Millis>,
    pub counts: Option<TreeCounts>,
    /// What is not as an attempt of an unfinished step would expect it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Why nobody may touch it, whatever is in it.
    #[serde(skip)]
    obstacle: Option<Reason>,
    /// Git's list has it at its place.
    #[serde(skip)]
    is_listed: bool,
    /// When the run that was abandoned leaves the attic.
    #[serde(skip)]
    attic_until: Option<Millis>,
}

/// Whose a worktree is, and how that stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum TreeStatus {
    /// Somebody has it: a keeper that lives, or a claim from outside that is believed.
    Live,
    /// Nobody is at work in it, and what it is for is not done.
    Interrupted {
        cause: Option<Cause>,
    },
    /// Nobody has worked on it yet, or nobody may now.
    Unfinished {
        as_told: &'static str,
    },
    Completed,
    Abandoned,
    /// No run of this store knows it.
    Unknown,
    /// Not a worktree of this repository, or one that git cannot use.
    Foreign,
    /// git has it in its list, or its run had it, and there is nothing.
    Missing {
        cause: Option<Cause>,
    },
}

impl TreeStatus {
    /// For people.
    pub fn word(&self) -> &'static str {
        match self {
            TreeStatus::Live => "live",
            TreeStatus::Interrupted { .. } => "interrupted",
            TreeStatus::Unfinished { as_told } => as_told,
            TreeStatus::Completed => "completed",
            TreeStatus::Abandoned => "abandoned",
            TreeStatus::Unknown => "unknown",
            TreeStatus::Foreign => "foreign",
            TreeStatus::Missing { .. } => "missing",
        }
    }
}

/// What is in a worktree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TreeCounts {
    /// Tracked files that differ from HEAD.
    pub dirty: u64,
    pub untracked: u64,
    /// Ignored files, which no snapshot holds.
    pub ignored: u64,
    pub ignored_bytes: u64,
    /// Commits that the branch has not got which the run's work is for.
    pub unmerged: u64,
    pub bytes: u64,
}

/// Which worktrees may go, if they can be proven to be safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanAsk {
    pub completed: bool,
    pub interrupted: bool,
    /// Nothing happened to them for so long.
    pub older_than: Option<Duration>,
}

/// Why removing a worktree loses nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "proof", rename_all = "snake_case")]
pub enum Proof {
    /// Nothing was added to what it began with.
    Empty,
    /// Its commits are on this branch.
    Merged { into: String },
    /// Its commits are on the run's own branch, which is not merged yet.
    Landed { branch: String },
    /// Commits with the same changes are on this branch.
    PatchEquivalent { into: String },
    /// Everything in it is in this snapshot; its branch stays where its commits are on no other.
    Snapshotted { refname: String },
}

/// What becomes of a worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum TreeVerdict {
    Goes {
        #[serde(flatten)]
        proof: Proof,
    },
    Stays {
        #[serde(flatten)]
        reason: Reason,
    },
}

/// Why a worktree stays, and what can be done about that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    pub why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

impl Reason {
    fn with(why: impl Into<String>, remedy: Remedy) -> Reason {
        Reason { why: why.into(), remedy: Some(remedy) }
    }
}

impl<T: ToString> From<T> for Reason {
    fn from(why: T) -> Reason {
        Reason { why: why.to_string(), remedy: None }
    }
}

/// A worktree and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JudgedTree {
    #[serde(flatten)]
    pub row: TreeRow,
    #[serde(flatten)]
    pub verdict: TreeVerdict,
}

/// A worktree that was removed, and all it takes to make it again. Written before it is touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedTree {
    pub run: RunId,
    pub handle: Handle,
    pub step: StepId,
    #[serde(with = "piton_git::repo::names::as_text")]
    pub path: PathBuf,
    pub branch: String,
    pub head: Oid,
    /// Everything in it that was not ignored.
    pub snapshot: Oid,
    /// Its ref.
    pub kept_as: String,
    #[serde(flatten)]
    pub proof: Proof,
}

impl RemovedTree {
    /// Whether its branch is deleted with it: others have its commits, or their changes.
    fn branch_goes(&self) -> bool {
        !matches!(self.proof, Proof::Snapshotted { .. })
    }
}

/// What a clean-up did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cleaned {
    /// The act that undoes it; none where nothing went.
    pub act: Option<u64>,
    pub removed: Vec<RemovedTree>,
    /// Branches of merged runs that were deleted by themselves.
    pub branches: Vec<Tip>,
    /// Rows that were to go and did not.
    pub failed: Vec<Unremoved>,
}

/// A worktree that was to go and stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unremoved {
    #[serde(serialize_with = "piton_git::repo::names::as_text::serialize")]
    pub path: PathBuf,
    pub why: String,
}

/// Judges every worktree: looks, writes nothing, takes no git lock.
pub fn judge(
    project: &Project,
    store: Option<&Arc<dyn Store>>,
    root: &str,
    ask: CleanAsk,
) -> Result<Vec<JudgedTree>, EngineError> {
    let rows = list(project, store, root)?;
    proof::judge_all(project, store, rows, ask)
}

/// The branches that go with those worktrees, or are left of merged runs.
pub fn merged_branches(
    project: &Project,
    store: &Arc<dyn Store>,
    (ask, judged): (CleanAsk, &[JudgedTree]),
) -> Result<Vec<Tip>, EngineError> {
    let goes = |row: &&JudgedTree| matches!(row.verdict, TreeVerdict::Goes { .. });
    let going: Vec<PathBuf> =
        judged.iter().filter(goes).map(|judged| judged.row.path.clone()).collect();
    branches::merged(project, store, (ask, &going))
}

/// Takes away what can be proven to be safe. A clean-up that was cut short is finished first, as part of
/// the same act.
pub fn apply(
    project: &Project,
    store: &Arc<dyn Store>,
    root: &str,
    ask: CleanAsk,
) -> Result<(Vec<JudgedTree>, Cleaned), EngineError> {
    purge::finish_all(project)?;
    let journal = Journal::lock(project)?;
    let mut cleaned = Cleaned::default();
    let mut act = unfinished(&journal)?;
    if let Some(act) = &mut act {
        removal::finish(project, &journal, act)?;
        cleaned.removed = act.deed.trees().to_vec();
        cleaned.branches = act.deed.branches().to_vec();
    }
    let judged = judge(project, Some(store), root, ask)?;
    for JudgedTree { row, verdict } in &judged {
        let TreeVerdict::Goes { proof } = verdict else { continue };
        match removal::take_away(project, store, &journal, &mut act, (row, Some(proof))) {
            Ok(removed) => cleaned.removed.push(removed),
            // One that cannot go keeps no other from going.
            Err(error) => {
                let why = chain(&error);
                cleaned.failed.push(Unremoved { path: row.path.clone(), why });
            }
        }
    }
    // After the worktrees, which have some of them checked out.
    let gone = branches::merged(project, store, (ask, &[]))?;
    removal::take_branches(project, store, &journal, &mut act, &gone)?;
    cleaned.branches.extend(gone);
    cleaned.act = end(&journal, act)?;
    crash::point("clean.done");
    Ok((judged, cleaned))
}

/// A worktree of a run that is deleted.
pub(crate) struct Doomed {
    row: TreeRow,
    /// Without one its snapshot is the proof.
    proof: Option<Proof>,
}

impl Doomed {
    pub(crate) fn path(&self) -> &Path {
        &self.row.path
    }
}

/// The worktrees of a run: all of them go. Where somebody or something is at work in one, or one holds what
/// no snapshot can, the answer is what, and none goes.
pub(crate) fn doomed(
    project: &Project,
    store: &Arc<dyn Store>,
    (root, run): (&str, RunId),
) -> Result<Result<Vec<Doomed>, Vec<String>>, EngineError> {
    let mut rows = list(project, Some(store), root)?;
    let other =
        |row: &TreeRow| matches!(row.status, TreeStatus::Foreign | TreeStatus::Missing { .. });
    rows.retain(|row| row.run == Some(run) && row.is_listed && !other(row));
    let ask = CleanAsk { completed: true, interrupted: true, older_than: None };
    let (mut doomed, mut in_use) = (Vec::new(), Vec::new());
    for JudgedTree { row, verdict } in proof::judge_all(project, Some(store), rows, ask)? {
        let its_own = row.handle.as_ref().zip(row.branch.as_ref());
        let its_own = its_own
            .is_some_and(|(handle, name)| name.starts_with(&format!("piton/{handle}/step/")));
        match verdict {
            TreeVerdict::Goes { proof } => doomed.push(Doomed { row, proof: Some(proof) }),
            TreeVerdict::Stays { .. } if row.obstacle.is_none() && its_own => {
                doomed.push(Doomed { row, proof: None });
            }
            TreeVerdict::Stays { reason } => {
                in_use.push(format!("{}: {}", row.path.display(), reason.why));
            }
        }
    }
    Ok(if in_use.is_empty() { Ok(doomed) } else { Err(in_use) })
}

/// Removes those. One that cannot go after all keeps the others that were not
/// reached, too.
pub(crate) fn take_all(
    project: &Project,
    store: &Arc<dyn Store>,
    journal: &Journal,
    doomed: &[Doomed],
) -> Result<(), EngineError> {
    let mut act = unfinished(journal)?;
    if let Some(act) = &mut act {
        removal::finish(project, journal, act)?;
    }
    let taken = doomed.iter().try_for_each(|Doomed { row, proof }| {
        // Gone with what was cut short.
        if !row.path.exists() {
            return Ok(());
        }
        let row = (row, proof.as_ref());
        removal::take_away(project, store, journal, &mut act, row).map(drop)
    });
    end(journal, act)?;
    taken
}

/// A claim whose holder works in a worktree of a run with this root.
fn held_at<'a>(
    project: &Project,
    log: &'a Log,
    root: &str,
    path: &Path,
) -> Option<(StepRef, &'a Attempt)> {
    log.run().held().find(|(_, attempt)| {
        let place = project.place_of(root, log.run(), attempt);
        place.is_some_and(|place| match &attempt.holder {
            Holder::External { .. } => place.starts_with(path),
            Holder::Keeper { .. } => Worktree::own_place(&project.git, &place).path() == path,
        })
    })
}

/// Writes down that a clean-up is over; says which act undoes it.
fn end(journal: &Journal, act: Option<Act>) -> Result<Option<u64>, EngineError> {
    let Some(mut act) = act else { return Ok(None) };
    let none = act.deed.trees().is_empty() && act.deed.branches().is_empty();
    // Nothing was taken away after all: there is nothing to undo.
    act.stage = if none { ActStage::Undone } else { ActStage::Done };
    journal.write(&act)?;
    Ok((!none).then_some(act.act))
}

/// The clean-up that was cut short, if the last act is one.
fn unfinished(journal: &Journal) -> Result<Option<Act>, EngineError> {
    let acts = journal.acts()?;
    let is_clean = |act: &Act| matches!(act.deed, Deed::Clean { .. });
    Ok(acts.into_iter().rfind(|act| act.stage == ActStage::Intended && is_clean(act)))
}

fn shown_time<S: serde::Serializer>(at: &Option<Millis>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => to.serialize_str(&piton_core::time::timestamp(*at)),
        None => to.serialize_none(),
    }
}
