//! What can go wrong between a verb and the machine. What can be done about it is for surfaces to say.

use std::io;
use std::path::PathBuf;

use piton_core::event::{Cause, Failure};
use piton_core::ids::{AgentName, Handle, Position, StepId, StepRef};
use piton_core::refusal::Refusal;
use piton_formats::PlanError;
use piton_git::repo::{GitError, chain};
use piton_git::snapshot::PutError;
use piton_store::StoreError;

use crate::config::ConfigError;

mod causes;

pub use causes::{Living, LogError, NotUndone, TrustError, Unlanded, Unmerged};

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("whether the attempt of step {step} lives is unknown: {} cannot be opened: {why}", path.display())]
    UnknownHolder { step: StepRef, path: PathBuf, why: String },
    #[error("worktrees cannot be made in {}: {why}", path.display())]
    WorktreeRoot { path: PathBuf, why: &'static str },
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("the plan {} cannot be used", path.display())]
    Plan {
        path: PathBuf,
        #[source]
        source: PlanError,
    },
    #[error("the plan {} cannot be read", path.display())]
    PlanFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is there already", path.display())]
    PlanThere { path: PathBuf },
    #[error("the plan {} is outside the repository", path.display())]
    PlanOutside { path: PathBuf },
    #[error("there is no run {asked:?}")]
    NoSuchRun { asked: String, near: Vec<Handle> },
    #[error("{asked:?} could be any of {}", names(handles))]
    AmbiguousRun { asked: String, handles: Vec<Handle> },
    #[error("there is no run here yet")]
    NoRuns,
    #[error("the plan of run {handle} has changed since it was opened")]
    PlanChanged { handle: Handle, path: PathBuf, differences: Vec<String> },
    #[error("run {handle} is alive: step {}", ids(living.kept.iter().chain(&living.outside)))]
    StillAlive { handle: Handle, living: Living },
    #[error("the plan has no input {name:?}")]
    UnknownInput { name: String, known: Vec<String> },
    #[error("step {step} names agent {agent}, which is not defined")]
    UnknownAgent { step: StepId, agent: AgentName, known: Vec<AgentName> },
    #[error("the store {} is gone, but this repository has snapshots of earlier runs", path.display())]
    LostStore { path: PathBuf },
    #[error(
        "the newest records of {handle} are gone: its log ends at {position}, {refname} is newer"
    )]
    LogBehind { handle: Handle, position: Position, refname: String, store: PathBuf },
    #[error("{} stays: {why}", path.display())]
    Stays { path: PathBuf, why: String },
    #[error("{handle} cannot be purged now; nothing was changed")]
    NotPurged { handle: Handle, what: Vec<String> },
    #[error(transparent)]
    NotUndone(#[from] NotUndone),
    #[error("step {step} is not claimed from this worktree")]
    NotOwner { step: StepRef },
    #[error("the worktree {} cannot be used", path.display())]
    Worktree {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("steps have nothing to start: {}", steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    NothingToStart { steps: Vec<StepId> },
    #[error(transparent)]
    Unlanded(#[from] Unlanded),
    #[error(transparent)]
    Unmerged(#[from] Unmerged),
    #[error("{} has uncommitted changes: {}", worktree.display(), what.join(", "))]
    Uncommitted { worktree: PathBuf, what: Vec<String> },
    #[error("verify of step {step} did not pass: {why}")]
    Unverified { step: StepRef, why: Failure, tail: String },
    #[error("verify of step {step} was ended ({cause})")]
    VerifyEnded { step: StepRef, cause: Cause },
    #[error("the settings kept with the run cannot be read")]
    Settings(#[source] serde_json::Error),
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("what {} executes has not been trusted", plan.display())]
    Untrusted {
        plan: PathBuf,
        /// What was not trusted before, and what was and is gone.
        new: Vec<String>,
        gone: Vec<String>,
    },
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{what} cannot be started")]
    Unstarted {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("step {step} of {handle} is at work in {}", path.display())]
    TreeInUse { handle: Handle, step: StepRef, path: PathBuf },
    #[error("step {step} of {handle} has no worktree")]
    NoOwnTree { handle: Handle, step: StepRef },
    #[error("there is no worktree at {}", path.display())]
    NoTree { path: PathBuf },
    #[error("the records of its run are gone: where step {step} was worked on is unknown")]
    NoRecords { step: StepRef },
    #[error("its worktree is on another host: {host}")]
    OtherHost { host: String },
    #[error("{} changed since the last snapshot", files(paths))]
    NewerEdits { paths: Vec<String> },
    #[error("the snapshot was not put back")]
    NotPutBack {
        /// The snapshot of what was there before.
        before: String,
        #[source]
        source: PutError,
    },
    #[error("the keeper of step {step} did not start: {detail}")]
    KeeperLost { step: StepRef, detail: String },
}

fn files(paths: &[String]) -> String {
    match paths {
        [one] => one.clone(),
        several => format!("{} files", several.len()),
    }
}

fn names(handles: &[Handle]) -> String {
    handles.iter().map(Handle::as_str).collect::<Vec<_>>().join(", ")
}

fn ids<'a>(steps: impl Iterator<Item = &'a StepRef>) -> String {
    steps.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl EngineError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> EngineError {
        let what = what.into();
        move |source| EngineError::Io { what, source }
    }

    /// The refusal behind this, if the rules said no.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            EngineError::Log(LogError::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }

    /// Whether the claim that this was done under is not, or no longer, the caller's.
    pub fn is_lost(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_lost)
    }

    /// Whether no more work on it can bring a commit onto its branch.
    pub(crate) fn is_unrelated(&self) -> bool {
        matches!(self, EngineError::Unlanded(Unlanded::Unrelated { .. }))
    }

    /// Whether it would come again however often it is tried, until a person moves something.
    pub(crate) fn is_obstacle(&self) -> bool {
        match self {
            EngineError::Git(
                GitError::Foreign { .. }
                | GitError::BranchElsewhere { .. }
                | GitError::BranchInTheWay { .. },
            )
            | EngineError::Unlanded(Unlanded::CheckedOut { .. } | Unlanded::Rewound { .. })
            | EngineError::Untrusted { .. }
            | EngineError::Trust(_)
            | EngineError::Config(_) => true,
            EngineError::Unstarted { source, .. } => {
                matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
            }
            _ => false,
        }
    }

    /// Whether what is behind this is a disk without space.
    pub fn is_full_disk(&self) -> bool {
        let store =
            matches!(self, EngineError::Log(LogError::Store(error)) if error.is_full_disk());
        store || chain(self).contains("No space left on device")
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> EngineError {
        EngineError::Log(LogError::Store(error))
    }
}

impl From<Refusal> for EngineError {
    fn from(refusal: Refusal) -> EngineError {
        EngineError::Log(LogError::Refused(refusal))
    }
}
