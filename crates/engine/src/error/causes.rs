//! Why one mechanism of the engine could not do its work: reading a log, trusting, landing, merging, undoing.

use std::io;
use std::path::PathBuf;

use piton_core::event::{Conflict, Holder};
use piton_core::ids::{Handle, Oid, RunId, StepRef};
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, FoldError};
use piton_store::StoreError;

/// Why a log could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the log of run {run} is damaged")]
    Damaged {
        run: RunId,
        #[source]
        source: FoldError,
    },
    #[error("the plan kept with run {run} cannot be read")]
    Plan {
        run: RunId,
        #[source]
        source: serde_json::Error,
    },
    #[error("the log of run {0} has no records")]
    Empty(RunId),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why the user's agreements could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("there is no folder for trust: neither XDG_STATE_HOME nor HOME is an absolute path")]
    NoHome,
    #[error("{} is not safe to use: {why}", path.display())]
    Unsafe { path: PathBuf, why: &'static str },
    #[error("{} cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Why a commit is not on the run's branch.
#[derive(Debug, thiserror::Error)]
pub enum Unlanded {
    #[error("{} has moved and conflicts in {}", .0.branch, .0.paths.join(", "))]
    Conflict(Box<Conflict>),
    #[error("commit {} shares no history with {branch}", commit.short())]
    Unrelated { branch: String, commit: Oid },
    #[error("{branch} is checked out in {}; switch that to another branch", worktree.display())]
    CheckedOut { branch: String, worktree: PathBuf },
    #[error(
        "{branch} was moved: it lacks commit {}, with which a step was landed; \
         `git branch -f {branch} {lacks}` puts it back",
        lacks.short()
    )]
    Rewound { branch: String, lacks: Oid },
    #[error("{why}")]
    NoPlan { why: String },
    #[error("{branch} kept moving while this was landed")]
    Busy { branch: String },
}

/// Why what a run has landed is not in a branch.
#[derive(Debug, thiserror::Error)]
pub enum Unmerged {
    #[error("{handle} is not completed; steps still open: {open}")]
    Unfinished { handle: Handle, open: usize },
    #[error("into which branch? {why}")]
    NoBranch { why: String },
    #[error("{branch} and {into} have both changed {}", paths.join(", "))]
    Conflict { branch: String, into: String, paths: Vec<String> },
    #[error("{branch} shares no history with {into}")]
    Unrelated { branch: String, into: String },
    #[error("{into} is checked out in {} with uncommitted changes in files that the merge changes: {}", worktree.display(), what.join(", "))]
    Dirty { into: String, worktree: PathBuf, what: Vec<String> },
    #[error("{into} is checked out in {} in the middle of {what}", worktree.display())]
    Busy { into: String, worktree: PathBuf, what: String },
    #[error("files that git does not know are in the way in {}: {}", worktree.display(), what.join(", "))]
    InTheWay { worktree: PathBuf, what: Vec<String> },
    #[error("{into} kept moving while this was merged")]
    Moving { into: String },
}

/// Why an act is not undone.
#[derive(Debug, thiserror::Error)]
pub enum NotUndone {
    #[error("there is nothing to undo")]
    Nothing,
    #[error("there is no act {act}")]
    Unknown { act: u64 },
    #[error("act {act} was undone already")]
    Already { act: u64 },
    #[error("act {act} cannot be undone: something newer is in the way")]
    InTheWay { act: u64, what: Vec<String> },
    #[error("act {act} cannot be undone: {handle} is the run of this plan by now")]
    PlanTaken { act: u64, handle: Handle },
    #[error("act {act} cannot be undone: {why}")]
    UsedSince {
        act: u64,
        why: String,
        handle: Handle,
        step: StepRef,
        /// The snapshot of what was there before, as `FENCE/N`.
        before: String,
    },
    #[error("act {act} cannot be undone: {handle} was purged")]
    Purged { act: u64, handle: Handle },
    #[error("{} was written down for undoing and cannot be read", path.display())]
    Unreadable { path: PathBuf, why: String },
}

/// Steps that are believed to be worked on: while there are any, a run is not left aside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Living {
    /// By an attempt of piton's own.
    pub kept: Vec<StepRef>,
    /// By whoever has claimed them.
    pub outside: Vec<StepRef>,
}

impl Living {
    pub(crate) fn of<'run>(held: impl Iterator<Item = (StepRef, &'run Attempt)>) -> Living {
        let is_kept = |attempt: &Attempt| matches!(attempt.holder, Holder::Keeper { .. });
        let (kept, outside): (Vec<_>, Vec<_>) = held.partition(|(_, held)| is_kept(held));
        let ids = |held: Vec<(StepRef, _)>| held.into_iter().map(|(step, _)| step).collect();
        Living { kept: ids(kept), outside: ids(outside) }
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.outside.is_empty()
    }
}
