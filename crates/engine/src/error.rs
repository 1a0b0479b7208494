//! What can go wrong between a verb and the machine, each with the next thing to type where the
//! engine knows it.

use std::io;
use std::path::{Path, PathBuf};

use piton_core::event::{Cause, Failure};
use piton_core::ids::{AgentName, Handle, Position, StepId};
use piton_core::plan::{PlanError, nearest};
use piton_core::refusal::Refusal;
use piton_store::StoreError;

use crate::abandon::Living;
use crate::git::GitError;
use crate::land::Unlanded;
use crate::log::LogError;
use crate::merge::Unmerged;
use crate::snapshot::PutError;
use crate::undo::NotUndone;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
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
    NotOwner { step: StepId },
    #[error("the worktree {} cannot be used", path.display())]
    Worktree {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("steps have nothing to start: {}", steps.iter().map(StepId::as_str).collect::<Vec<_>>().join(", "))]
    NothingToStart { steps: Vec<StepId> },
    #[error(transparent)]
    Unlanded(#[from] Unlanded),
    #[error(transparent)]
    Unmerged(#[from] Unmerged),
    #[error("verify of step {step} did not pass: {why}")]
    Unverified { step: StepId, why: Failure, tail: String },
    #[error("verify of step {step} was ended ({cause})")]
    VerifyEnded { step: StepId, cause: Cause },
    #[error("the settings kept with the run cannot be read")]
    Settings(#[source] serde_json::Error),
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("{what} cannot be started")]
    Unstarted {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("step {step} of {handle} is at work in {}", path.display())]
    TreeInUse { handle: Handle, step: StepId, path: PathBuf },
    #[error("the run's worktree has the work of step {other}")]
    TreeOfOther { handle: Handle, step: StepId, other: StepId },
    #[error("there is no worktree at {}", path.display())]
    NoTree { path: PathBuf },
    #[error("the records of its run are gone, and nobody knows where step {step} was worked on")]
    NoRecords { step: StepId },
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
    KeeperLost { step: StepId, detail: String },
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

fn ids<'a>(steps: impl Iterator<Item = &'a StepId>) -> String {
    steps.map(StepId::as_str).collect::<Vec<_>>().join(", ")
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
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
        matches!(
            self.refusal(),
            Some(
                Refusal::StaleFence { .. }
                    | Refusal::ClaimOver { .. }
                    | Refusal::NotClaimed { .. }
                    | Refusal::Completed(_)
            )
        )
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
            | EngineError::Unlanded(Unlanded::CheckedOut { .. } | Unlanded::Rewound { .. }) => true,
            EngineError::Unstarted { source, .. } => {
                matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
            }
            _ => false,
        }
    }

    /// Whether what is behind this is a disk without space.
    pub fn is_full_disk(&self) -> bool {
        chain(self).contains("No space left on device")
    }

    /// The next thing to type.
    pub fn hint(&self) -> Option<String> {
        if self.is_full_disk() {
            return Some("the disk is full: free some space, then try again".into());
        }
        match self {
            EngineError::Git(error) => error.hint(),
            EngineError::Log(LogError::Store(error)) => Some(error.hint()),
            EngineError::Log(LogError::Damaged { .. } | LogError::Plan { .. } | LogError::Empty(_)) => {
                Some("`piton doctor` says what is damaged; the work itself is in git: `git for-each-ref refs/piton`".into())
            }
            // Whoever tells these knows the run they are about, and the claim.
            EngineError::Log(LogError::Refused(_))
            | EngineError::NotOwner { .. }
            | EngineError::NothingToStart { .. }
            | EngineError::PlanChanged { .. }
            | EngineError::Unverified { .. }
            | EngineError::VerifyEnded { .. }
            | EngineError::Unlanded(_)
            | EngineError::Unmerged(_)
            | EngineError::NoTree { .. }
            | EngineError::NoRecords { .. }
            | EngineError::OtherHost { .. }
            | EngineError::NewerEdits { .. }
            | EngineError::KeeperLost { .. } => None,
            EngineError::Plan { path, .. } => {
                Some(format!("correct it, then `piton plan check '{}'`", path.display()))
            }
            EngineError::PlanFile { path, source } => Some(match source.kind() {
                io::ErrorKind::NotFound => missing_plan(path),
                _ => format!("see what is there: `ls -l '{}'`", path.display()),
            }),
            EngineError::PlanThere { path } => Some(format!(
                "look at it: `piton plan check '{}'`; or name another file",
                path.display()
            )),
            EngineError::PlanOutside { .. } => {
                Some("put the plan inside the repository it is about".into())
            }
            EngineError::NoSuchRun { near, .. } => Some(match near.as_slice() {
                [] => "`piton status --all` lists the runs".into(),
                near => format!("did you mean {}?", names(near)),
            }),
            EngineError::AmbiguousRun { .. } => Some("name one of them".into()),
            EngineError::Worktree { .. } => {
                Some("name a folder that is there; a claim can also be named by its --fence".into())
            }
            EngineError::NoRuns => Some("`piton init` writes a first plan; `piton run --help` says how to run one".into()),
            EngineError::StillAlive { handle, living } => Some(format!(
                "first {}; or give the whole run up: `piton abandon {handle} --yes`; or go on with it: \
                 leave --fresh out",
                living.ended_by(handle)
            )),
            EngineError::UnknownInput { known, .. } => Some(match known.as_slice() {
                [] => "the plan has no [inputs]".into(),
                known => format!("its inputs: {}", known.join(", ")),
            }),
            EngineError::UnknownAgent { agent, known, .. } => Some(format!(
                "add [agent.{agent}] with a command to piton.toml or the plan{}",
                match known.as_slice() {
                    [] => String::new(),
                    known => format!(
                        "; defined are {}",
                        known.iter().map(AgentName::as_str).collect::<Vec<_>>().join(", ")
                    ),
                }
            )),
            EngineError::LostStore { path } => Some(format!(
                "put {} back from a backup; or go on without the records, with the snapshots under \
                 refs/lost-piton: `git for-each-ref --format='create \
                 refs/lost-%(refname:lstrip=1) %(objectname)%0adelete %(refname)' refs/piton | git \
                 update-ref --stdin`",
                path.display()
            )),
            EngineError::LogBehind { handle, store, .. } => Some(format!(
                "put the newest copy of {} (with its -wal file) back; if there is none, leave this run \
                 aside: `piton abandon {handle} --yes` (its branches, worktrees and snapshots stay)",
                store.display()
            )),
            EngineError::Settings(_) => Some("`piton doctor`".into()),
            EngineError::Stays { .. } => Some("`piton clean` says what can go".into()),
            EngineError::NotUndone(why) => not_undone_hint(why),
            EngineError::NotPurged { handle, .. } => {
                Some(format!("once that is settled: `piton abandon {handle} --purge`"))
            }
            EngineError::Io { .. } | EngineError::Unstarted { .. } => None,
            EngineError::TreeInUse { handle, step, .. } => Some(format!(
                "stop it first: `piton stop {handle} {step}`"
            )),
            EngineError::TreeOfOther { handle, other, .. } => {
                Some(format!("let step {other} finish first: `piton resume {handle}`"))
            }
            EngineError::NotPutBack { before, source } => Some(match source {
                PutError::TakenBack(_) => {
                    format!("everything is as it was, and also kept as {before}")
                }
                PutError::Torn { .. } => {
                    format!("what was there is kept as {before}; say it again to go on")
                }
            }),
        }
    }
}

fn not_undone_hint(why: &NotUndone) -> Option<String> {
    Some(match why {
        NotUndone::Nothing | NotUndone::Unknown { .. } | NotUndone::Already { .. } => {
            "`piton undo --list` shows what was done".into()
        }
        NotUndone::InTheWay { act, .. } => {
            format!("move it away, then `piton undo {act}`; nothing was changed")
        }
        NotUndone::UsedSince { next, .. } => format!("{next}; nothing was changed"),
        NotUndone::Purged { handle, .. } => {
            format!("its records are gone; its work stays: `piton snapshot list {handle}`")
        }
        NotUndone::Expired { .. } => "`piton undo --list` shows what can still be undone".into(),
        NotUndone::Unreadable { .. } => {
            "it may be of a newer piton, and is left alone; `piton undo \
             --list` shows the others, `piton undo NUMBER` undoes one of them"
                .into()
        }
    })
}

/// What may have been meant by a plan that is not there.
fn missing_plan(path: &Path) -> String {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = listed.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    names.sort();
    let asked = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match nearest(asked, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {}?", path.with_file_name(near).display()),
        None => format!("a plan is a TOML file; look for it: `ls '{}'`", folder.display()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_as_one() {
        let full = || io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let errors: [EngineError; 3] = [
            EngineError::Io { what: "the attempt's folder".into(), source: full() },
            StoreError::Io { doing: "writing", source: full() }.into(),
            StoreError::CannotOpen { path: "store.db".into(), source: full() }.into(),
        ];
        for error in errors {
            let hint = error.hint().expect("a remedy");
            assert!(hint.contains("free some space") && !hint.contains("doctor"), "{hint}");
        }
    }

    #[test]
    fn a_plan_that_is_not_there_has_neighbours() {
        let home = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(home.path().join("release.toml"), "").expect("written");
        let near = missing_plan(&home.path().join("relaese.toml"));
        assert!(near.contains("did you mean") && near.contains("/release.toml?"), "{near}");
        let far = missing_plan(&home.path().join("other.toml"));
        assert!(far.contains("`ls '"), "{far}");
    }
}
