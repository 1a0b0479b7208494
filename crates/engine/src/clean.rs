//! Cleaning up: which worktrees of piton's are there, which of them can go and why, and taking those away
//! so that every byte can be put back. Nothing goes without a proof; what cannot be proven stays, with
//! the reason. Only what piton made is ever touched, and nothing is deleted that was not read back from
//! its copy first.

mod proof;
mod removal;
mod survey;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use piton_core::event::Cause;
use piton_core::ids::{Handle, Oid, RunId, StepId};
use piton_core::time::Millis;
use piton_store::Store;
use serde::{Deserialize, Serialize};

use crate::crash;
use crate::error::{EngineError, chain};
use crate::project::Project;
use crate::undo::{Act, ActStage, Deed, Journal};

pub(crate) use removal::put_back;
pub use survey::list;

/// A worktree of piton's, or something that stands where one would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TreeRow {
    pub path: PathBuf,
    pub run: Option<RunId>,
    pub handle: Option<Handle>,
    /// None: the run's own worktree.
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
    /// Why nobody may touch it, whatever is in it.
    #[serde(skip)]
    obstacle: Option<String>,
    /// The name of its entry in git's list.
    #[serde(skip)]
    entry: Option<String>,
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
    /// git has it in its list, and there is nothing.
    Missing,
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
            TreeStatus::Missing => "missing",
        }
    }
}

/// What is in a worktree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TreeCounts {
    /// Tracked files that differ from HEAD.
    pub dirty: u64,
    pub untracked: u64,
    /// Ignored files and folders: one that is ignored as a whole counts once.
    pub ignored: u64,
    /// Commits that no branch but those of steps has.
    pub unmerged: u64,
    pub bytes: u64,
    /// Repositories of their own below it.
    pub nested: u64,
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
        why: String,
    },
}

/// A worktree and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JudgedTree {
    #[serde(flatten)]
    pub row: TreeRow,
    #[serde(flatten)]
    pub verdict: TreeVerdict,
}

/// A worktree that was taken away, and all it takes to put it back. Written before it is touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedTree {
    /// Names its folder and its ref.
    pub row: u64,
    pub run: RunId,
    pub handle: Handle,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    pub path: PathBuf,
    pub entry: String,
    pub branch: String,
    pub head: Oid,
    /// The branch is deleted with it.
    pub branch_goes: bool,
    /// Everything in it that was not ignored.
    pub snapshot: Oid,
    /// The ref that keeps it.
    pub kept_as: String,
    #[serde(flatten)]
    pub proof: Proof,
}

/// What a clean-up did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cleaned {
    /// The act that undoes it; none where nothing went.
    pub act: Option<u64>,
    pub removed: Vec<RemovedTree>,
    /// Rows that were to go and did not.
    pub failed: Vec<Unremoved>,
}

/// A worktree that was to go and stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unremoved {
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

/// Takes away what can be proven to be safe. A clean-up that was cut short is finished first, as part of
/// the same act.
pub fn apply(
    project: &Project,
    store: &Arc<dyn Store>,
    root: &str,
    ask: CleanAsk,
) -> Result<(Vec<JudgedTree>, Cleaned), EngineError> {
    let journal = Journal::lock(project)?;
    let mut cleaned = Cleaned::default();
    let mut act = unfinished(&journal)?;
    if let Some(act) = &mut act {
        removal::finish(project, &journal, act)?;
        cleaned.removed = act.deed.trees().to_vec();
    }
    let judged = judge(project, Some(store), root, ask)?;
    for JudgedTree { row, verdict } in &judged {
        let TreeVerdict::Goes { proof } = verdict else { continue };
        match removal::take_away(project, store, &journal, &mut act, (row, proof)) {
            Ok(removed) => cleaned.removed.push(removed),
            // One that cannot go keeps no other from going.
            Err(error) => {
                let why = chain(&error);
                cleaned.failed.push(Unremoved { path: row.path.clone(), why });
            }
        }
    }
    if let Some(mut act) = act {
        let none = act.deed.trees().is_empty();
        // Nothing was taken away after all: there is nothing to undo.
        act.stage = if none { ActStage::Undone } else { ActStage::Done };
        cleaned.act = (!none).then_some(act.act);
        journal.write(&act)?;
    }
    crash::point("clean.done");
    Ok((judged, cleaned))
}

/// The clean-up that was cut short, if the last act is one.
fn unfinished(journal: &Journal) -> Result<Option<Act>, EngineError> {
    let acts = journal.acts()?;
    let is_clean = |act: &Act| matches!(act.deed, Deed::Clean { .. });
    Ok(acts.into_iter().rfind(|act| act.stage == ActStage::Intended && is_clean(act)))
}

fn shown_time<S: serde::Serializer>(at: &Option<Millis>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => to.serialize_str(&piton_core::view::timestamp(*at)),
        None => to.serialize_none(),
    }
}
