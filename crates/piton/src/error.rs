//! Everything that can go wrong, as it is told: a kind with a stable code and an exit status, a
//! message, its causes, and a hint written by whoever knows the remedy. [`KINDS`] is the one table of
//! codes; the documentation is made from it.

use std::error::Error;
use std::io;

use piton_core::event::Cause;
use piton_core::refusal::Refusal;
use piton_engine::StoreError;
use piton_engine::config::ConfigError;
use piton_engine::error::EngineError;
use piton_engine::error::LogError;
use piton_engine::error::NotUndone;
use piton_engine::error::TrustError;
use piton_engine::error::Unmerged;
use piton_engine::formats::{self, Finding, PlanError};
use piton_engine::git::GitError;
use serde::{Deserialize, Serialize};

use crate::exit::ExitStatus;
use crate::{remedy, text};

macro_rules! kinds {
    ($($name:ident, $code:literal, $exit:ident, $meaning:literal;)*) => {
        /// What kind of thing went wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $(#[doc = $meaning] $name,)*
        }

        /// Every kind: its code, its exit status, its meaning.
        pub const KINDS: &[(Kind, &str, ExitStatus, &str)] =
            &[$((Kind::$name, $code, ExitStatus::$exit, $meaning),)*];

        impl Kind {
            /// The stable code.
            pub fn code(self) -> &'static str {
                match self { $(Kind::$name => $code,)* }
            }

            /// What the process exits with.
            pub fn exit(self) -> ExitStatus {
                match self { $(Kind::$name => ExitStatus::$exit,)* }
            }
        }
    };
}

kinds! {
    StoreUnopened, "E046", StoreUnavailable, "the store cannot be opened";
    StoreBroken, "E046", Corrupt, "the store cannot be opened: its bytes are damaged";
    StoreFailed, "E047", StoreUnavailable, "the store failed while in use";
    StoreCorrupt, "E047", Corrupt, "the store failed: a record or text is damaged";
    PlanChanged, "E048", BadPlan, "the plan file is not the plan the run was opened with";
    NotOwner, "E049", OwnershipLost, "the caller does not hold the step any more";
    NotClaimed, "E050", Failed, "the step is not claimed, or no longer";
    OpenItems, "E051", Failed, "the step has open items";
    OpenSubsteps, "E052", Failed, "the step has open substeps";
    UnknownStep, "E059", Usage, "the plan has no such step";
    BadPlan, "E060", BadPlan, "the plan cannot be used";
    NotRepository, "E061", Usage, "this is not a git repository";
    GitFailed, "E062", Failed, "git failed";
    NotTrusted, "E063", NotTrusted, "the plan's commands have not been trusted";
    NoSuchRun, "E064", Usage, "no such run, or more than one";
    BadConfig, "E065", BadPlan, "the configuration cannot be used";
    NeedsPerson, "E066", NeedsPerson, "the run needs a person";
    BadInput, "E067", Usage, "an input (`--set`) cannot be used";
    SetupFailed, "E068", Failed, "an attempt could not be set up";
    RunFailed, "E069", Failed, "the run failed";
    Io, "E070", Failed, "a file or another part of the system failed";
    Usage, "E071", Usage, "the command line is wrong";
    Interrupted, "E072", Interrupted, "the run was interrupted";
    Terminated, "E072", Terminated, "the run was interrupted by SIGTERM";
    HungUp, "E072", HungUp, "the terminal was closed; the run's agents go on";
    Refused, "E073", Failed, "the rules do not allow it in the present state";
    Unwell, "E074", Failed, "`piton doctor` found something bad";
    StillRunning, "E075", Failed, "a stopped process has not ended in time";
    UnknownPart, "E076", Usage, "the step has no such item or substep";
    AnsweredOtherwise, "E077", Failed, "the question has another answer, or is void";
    Unanswered, "E078", Failed, "the step has an answer that was not read";
    UnknownQuestion, "E079", Usage, "no such question, or more than one";
    VerifyFailed, "E080", Failed, "the verify command failed on the commit";
    NotLanded, "E081", Failed, "the commit could not be landed";
    NoSuchCommit, "E082", Usage, "no such commit, or more than one";
    PlanInUse, "E083", BadPlan, "the changed plan cannot be accepted: what it changes is in use";
    NoAnswerYet, "E084", NeedsPerson, "the question has no answer yet";
    CompletedOtherwise, "E085", Failed, "the step was completed with another commit, or without one";
    MergeConflict, "E087", Failed, "the run's branch conflicts with the other one";
    UncleanCheckout, "E088", Failed, "uncommitted changes are in the way";
    NotCompleted, "E089", Failed, "the run has open steps";
    OneAtATime, "E090", Usage, "the plan's steps run one at a time: `--jobs` cannot be more than 1";
    NoSuchSnapshot, "E096", Usage, "no such snapshot or path, or more than one";
    TreeInUse, "E097", Failed, "the worktree is in use, or cannot take a snapshot";
    NewerEdits, "E098", NeedsPerson, "files that changed since the last snapshot would be replaced";
    NotRestored, "E099", Failed, "the snapshot could not be put back; your files are kept";
    NoSuchAct, "E100", Usage, "no such act to undo";
    InTheWay, "E101", Failed, "something newer is in the way of undoing";
    JournalDamaged, "E102", Corrupt, "the journal of an act cannot be read";
    NotCleaned, "E103", Failed, "something could not be cleaned up";
    Unconfirmed, "E104", NeedsPerson, "it needs your agreement";
    UnfinishedRun, "E105", NeedsPerson, "the plan has an unfinished run: continue it or start fresh";
    NotPublished, "E106", Parked, "the output is not published yet";
    OpenOutputs, "E107", Failed, "the step has outputs to publish, or one is not what the plan requires";
    FileThere, "E110", Usage, "the file exists already";
    Parked, "E120", Parked, "the run waits until a usage limit is over";
    SettingsDiffer, "W001", Ok, "the recorded settings differ from the present ones";
    Noticed, "W002", Ok, "something worth knowing happened while working";
    ClosedPipe, "W003", Ok, "the reader of the output has closed it";
}

impl Kind {
    /// Whether somebody wanted it so: it is told without a code.
    pub(crate) fn is_normal_end(self) -> bool {
        matches!(self, Kind::Interrupted | Kind::Terminated | Kind::HungUp)
    }
}

/// Something that went wrong, ready to be told. Boxed, because the way without problems is the one
/// that counts.
#[derive(Debug)]
pub(crate) struct Problem(Box<Parts>);

#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// The chain behind it, outermost first.
    pub(crate) causes: Vec<String>,
    pub(crate) hint: Option<String>,
    /// Findings that say more than the message, each an issue of its own.
    pub(crate) details: Vec<Detail>,
    /// What is known all the same, for `--json`.
    pub(crate) data: Option<serde_json::Value>,
}

/// One finding of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detail {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// The line of a file that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) excerpt: Option<String>,
}

impl Detail {
    pub(crate) fn of(message: impl Into<String>) -> Detail {
        Detail { message: message.into(), hint: None, excerpt: None }
    }
}

/// One entry of the envelope's `issues`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Issue {
    pub(crate) code: &'static str,
    pub(crate) severity: Severity,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    Error,
    Warning,
}

impl std::ops::Deref for Problem {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Problem {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Problem {
        let (message, causes, details) = (message.into(), Vec::new(), Vec::new());
        Problem(Box::new(Parts { kind, message, causes, hint: None, details, data: None }))
    }

    /// From an error with its chain of causes.
    pub(crate) fn from_error(kind: Kind, error: &dyn Error) -> Problem {
        let mut problem = Problem::new(kind, error.to_string());
        let mut next = error.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if !problem.message.contains(&text) {
                problem.0.causes.push(text);
            }
            next = cause.source();
        }
        problem
    }

    /// Adds a cause.
    pub(crate) fn because(mut self, cause: impl ToString) -> Problem {
        self.0.causes.push(cause.to_string());
        self
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Problem {
        self.hinted(Some(hint.into()))
    }

    pub(crate) fn hinted(mut self, hint: Option<String>) -> Problem {
        self.0.hint = hint.or(self.0.hint);
        self
    }

    pub(crate) fn with_data(mut self, data: serde_json::Value) -> Problem {
        self.0.data = Some(data);
        self
    }

    pub(crate) fn with_details(mut self, details: Vec<Detail>) -> Problem {
        self.0.details = details;
        self
    }

    /// For a process that shows it: all but what is known all the same.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": format!("{:?}", self.kind),
            "message": self.message,
            "causes": self.causes,
            "hint": self.hint,
            "details": self.details,
        })
    }

    /// From a process that had it.
    pub(crate) fn from_json(told: &serde_json::Value) -> Problem {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let named = text(&told["kind"]).unwrap_or_default();
        let kind = KINDS.iter().map(|(kind, ..)| *kind).find(|kind| format!("{kind:?}") == named);
        let message = text(&told["message"]).unwrap_or_else(|| told.to_string());
        let mut problem = Problem::new(kind.unwrap_or(Kind::Io), message);
        let causes = told["causes"].as_array().into_iter().flatten();
        problem.0.causes = causes.filter_map(text).collect();
        problem.0.hint = text(&told["hint"]);
        problem.0.details = serde_json::from_value(told["details"].clone()).unwrap_or_default();
        problem
    }

    /// As entries of the envelope: each mistake of a file is one of its own.
    pub(crate) fn issues(&self) -> Vec<Issue> {
        let issue = |message: String, hint: Option<String>| Issue {
            code: self.kind.code(),
            severity: Severity::Error,
            message,
            hint,
        };
        if matches!(self.kind, Kind::BadPlan | Kind::BadConfig) && !self.details.is_empty() {
            let own = |row: &Detail| row.hint.clone().or_else(|| self.hint.clone());
            let rows = self.details.iter();
            return rows.map(|row| issue(row.message.clone(), own(row))).collect();
        }
        let details = self.details.iter().map(|detail| &detail.message);
        let more: Vec<&str> = self.causes.iter().chain(details).map(String::as_str).collect();
        let message = match more.is_empty() {
            true => self.message.clone(),
            false => format!("{}: {}", self.message, more.join("; ")),
        };
        vec![issue(message, self.hint.clone())]
    }
}

pub(crate) fn unwritten(error: &io::Error) -> Problem {
    Problem::new(Kind::Io, "the answer could not be written")
        .because(error)
        .hint("what was asked for may be done: `piton status --ended` says what is")
}

/// `piton … | head` is a normal way to use it.
impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Problem::new(Kind::ClosedPipe, "the pipe is closed"),
            _ => unwritten(&error),
        }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Problem {
        let error = match error {
            EngineError::Trust(error) => return error.into(),
            EngineError::Config(error) => return error.into(),
            error => error,
        };
        let (kind, hint) = (kind_of(&error), remedy::of(&error));
        let details = details_of(&error);
        let problem = Problem::from_error(kind, &error).hinted(hint).with_details(details);
        match &error {
            EngineError::Untrusted { plan, new, .. } => {
                problem.with_data(serde_json::json!({ "plan": piton_engine::git::repo::names::text(plan), "untrusted": new }))
            }
            _ => problem,
        }
    }
}

fn kind_of(error: &EngineError) -> Kind {
    match error {
        EngineError::Git(error) => git_kind(error),
        EngineError::Log(error) => log_kind(error),
        EngineError::Plan { .. }
        | EngineError::PlanFile { .. }
        | EngineError::PlanOutside { .. }
        | EngineError::NothingToStart { .. }
        | EngineError::UnknownAgent { .. } => Kind::BadPlan,
        EngineError::PlanThere { .. } => Kind::FileThere,
        EngineError::NotOwner { .. } => Kind::NotOwner,
        EngineError::Worktree { .. } => Kind::Usage,
        EngineError::Stays { .. } | EngineError::NotPurged { .. } => Kind::NotCleaned,
        EngineError::NotUndone(why) => match why {
            NotUndone::Nothing | NotUndone::Unknown { .. } | NotUndone::Already { .. } => {
                Kind::NoSuchAct
            }
            NotUndone::InTheWay { .. }
            | NotUndone::PlanTaken { .. }
            | NotUndone::UsedSince { .. } => Kind::InTheWay,
            NotUndone::Purged { .. } => Kind::Refused,
            NotUndone::Unreadable { .. } => Kind::JournalDamaged,
        },
        EngineError::NoSuchRun { .. } | EngineError::AmbiguousRun { .. } | EngineError::NoRuns => {
            Kind::NoSuchRun
        }
        EngineError::PlanChanged { .. } => Kind::PlanChanged,
        EngineError::StillAlive { .. } => Kind::Refused,
        EngineError::UnknownInput { .. } => Kind::BadInput,
        EngineError::LostStore { .. } | EngineError::LogBehind { .. } => Kind::StoreBroken,
        EngineError::Unlanded(_) => Kind::NotLanded,
        EngineError::Unmerged(why) => match why {
            Unmerged::Unfinished { .. } => Kind::NotCompleted,
            Unmerged::NoBranch { .. } => Kind::Usage,
            Unmerged::Conflict { .. } | Unmerged::Unrelated { .. } | Unmerged::Moving { .. } => {
                Kind::MergeConflict
            }
            Unmerged::Dirty { .. } | Unmerged::Busy { .. } | Unmerged::InTheWay { .. } => {
                Kind::UncleanCheckout
            }
        },
        EngineError::Uncommitted { .. } => Kind::UncleanCheckout,
        EngineError::Unverified { .. } => Kind::VerifyFailed,
        EngineError::VerifyEnded { cause, .. } => interrupted(*cause),
        EngineError::Settings(_) => Kind::StoreCorrupt,
        EngineError::Io { .. } | EngineError::Unstarted { .. } => Kind::Io,
        EngineError::KeeperLost { .. } => Kind::SetupFailed,
        EngineError::UnknownHolder { .. } => Kind::Io,
        EngineError::WorktreeRoot { .. } => Kind::BadConfig,
        EngineError::Untrusted { .. } | EngineError::Trust(_) => Kind::NotTrusted,
        EngineError::Config(_) => Kind::BadConfig,
        EngineError::TreeInUse { .. }
        | EngineError::NoOwnTree { .. }
        | EngineError::NoTree { .. }
        | EngineError::NoRecords { .. }
        | EngineError::OtherHost { .. } => Kind::TreeInUse,
        EngineError::NewerEdits { .. } => Kind::NewerEdits,
        EngineError::NotPutBack { .. } => Kind::NotRestored,
    }
}

/// The kind of an interruption, which has the exit status of its signal.
pub(crate) fn interrupted(cause: Cause) -> Kind {
    match cause {
        Cause::Termination => Kind::Terminated,
        Cause::HangUp => Kind::HungUp,
        _ => Kind::Interrupted,
    }
}

fn git_kind(error: &GitError) -> Kind {
    match error {
        GitError::NotARepository { .. } | GitError::LostRepository { .. } => Kind::NotRepository,
        GitError::UnknownCommit { .. } | GitError::AmbiguousCommit { .. } => Kind::NoSuchCommit,
        GitError::NotEmpty { .. } => Kind::Usage,
        _ => Kind::GitFailed,
    }
}

fn log_kind(error: &LogError) -> Kind {
    match error {
        LogError::Store(error) => store_kind(error),
        LogError::Damaged { .. } | LogError::Plan { .. } | LogError::Empty(_) => Kind::StoreCorrupt,
        LogError::Refused(refusal) => refusal_kind(refusal),
    }
}

fn store_kind(error: &StoreError) -> Kind {
    match (error.code(), error.is_corrupt()) {
        (_, _) if matches!(error, StoreError::UnknownRun { .. }) => Kind::NoSuchRun,
        ("E046", false) => Kind::StoreUnopened,
        ("E046", true) => Kind::StoreBroken,
        (_, true) => Kind::StoreCorrupt,
        (_, false) => Kind::StoreFailed,
    }
}

fn refusal_kind(refusal: &Refusal) -> Kind {
    match refusal {
        Refusal::UnknownStep(_) => Kind::UnknownStep,
        Refusal::CompletedOtherwise { .. } => Kind::CompletedOtherwise,
        Refusal::StaleFence { .. } | Refusal::ClaimOver { .. } => Kind::NotOwner,
        Refusal::NotClaimed { .. }
        | Refusal::Completed(_)
        | Refusal::CannotRelease(_)
        | Refusal::NothingHeld { .. }
        | Refusal::Pending(_) => Kind::NotClaimed,
        Refusal::OpenItems { .. } => Kind::OpenItems,
        Refusal::OpenSubsteps { .. } => Kind::OpenSubsteps,
        Refusal::OpenOutputs { .. } | Refusal::OutputShort { .. } => Kind::OpenOutputs,
        Refusal::UnknownItem { .. } | Refusal::UnknownSubstep { .. } => Kind::UnknownPart,
        Refusal::Obstructed { .. } | Refusal::QuestionOpen { .. } => Kind::NeedsPerson,
        Refusal::AnsweredOtherwise { .. } | Refusal::QuestionVoid { .. } => Kind::AnsweredOtherwise,
        Refusal::PlanInUse { .. } | Refusal::PlanFixed { .. } => Kind::PlanInUse,
        Refusal::Unanswered { .. } | Refusal::AnswerUnread { .. } => Kind::Unanswered,
        Refusal::UnknownQuestion { .. }
        | Refusal::SeveralQuestions { .. }
        | Refusal::NothingAsked { .. } => Kind::UnknownQuestion,
        Refusal::NotAChoice { .. }
        | Refusal::BadQuestion { .. }
        | Refusal::BadAnswer { .. }
        | Refusal::BadOutput { .. } => Kind::Usage,
        _ => Kind::Refused,
    }
}

fn details_of(error: &EngineError) -> Vec<Detail> {
    match error {
        EngineError::Plan { path, source } => findings(&path.display().to_string(), source),
        EngineError::PlanChanged { differences, .. } => {
            let row = |message: &String| Detail::of(message.clone());
            differences.iter().map(row).collect()
        }
        EngineError::NotUndone(NotUndone::InTheWay { what, .. })
        | EngineError::NotPurged { what, .. } => {
            let row = |what: &String| Detail::of(text::plain(what));
            what.iter().map(row).collect()
        }
        EngineError::NotUndone(NotUndone::Unreadable { why, .. }) => {
            vec![Detail::of(text::plain(why))]
        }
        EngineError::Untrusted { new, gone, .. } => trust_rows(new, gone),
        EngineError::Unverified { tail, .. } => {
            let row = |line: &str| Detail::of(text::plain(line));
            tail.lines().map(row).collect()
        }
        _ => Vec::new(),
    }
}

/// Everything that a plan executes; or, where an earlier list was trusted, what came (`+`) and what went
/// (`-`).
pub(crate) fn trust_rows(new: &[String], gone: &[String]) -> Vec<Detail> {
    let rows = |entries: &[String], sign: &str| -> Vec<Detail> {
        let message = |entry: &String| format!("{sign}{}", text::plain(entry));
        entries.iter().map(|entry| Detail::of(message(entry))).collect()
    };
    match gone.is_empty() {
        true => rows(new, ""),
        false => [rows(gone, "- "), rows(new, "+ ")].concat(),
    }
}

/// A plan's mistakes as `file:line:column: message`.
pub(crate) fn findings(path: &str, error: &PlanError) -> Vec<Detail> {
    let is_mistake = |finding: &&Finding| finding.severity == formats::Severity::Error;
    error.findings.iter().filter(is_mistake).map(|found| finding(path, found)).collect()
}

/// A finding with its place.
pub(crate) fn finding(path: &str, finding: &Finding) -> Detail {
    let Finding { line, column, message, hint, excerpt, .. } = finding;
    Detail {
        message: format!("{path}:{line}:{column}: {message}"),
        hint: hint.clone(),
        excerpt: Some(text::plain(excerpt.trim())).filter(|text| !text.is_empty()),
    }
}

impl From<LogError> for Problem {
    fn from(error: LogError) -> Problem {
        EngineError::from(error).into()
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        EngineError::from(error).into()
    }
}

impl From<ConfigError> for Problem {
    fn from(error: ConfigError) -> Problem {
        let hint = error.hint();
        let details = match &error {
            ConfigError::File { path, findings: rows } => {
                findings(&path.display().to_string(), &PlanError { findings: rows.clone() })
            }
            _ => Vec::new(),
        };
        let problem = match &error {
            ConfigError::File { path, .. } => {
                Problem::new(Kind::BadConfig, format!("{} cannot be used", path.display()))
            }
            other => Problem::from_error(Kind::BadConfig, other).hinted(hint),
        };
        problem.with_details(details)
    }
}

impl From<TrustError> for Problem {
    fn from(error: TrustError) -> Problem {
        let hint = error.hint();
        Problem::from_error(Kind::NotTrusted, &error).hinted(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_means_one_thing() {
        let well_formed = |code: &str| code.len() == 4 && code[1..].parse::<u16>().is_ok();
        for (kind, code, exit, meaning) in KINDS {
            assert!(well_formed(code), "{code}");
            assert!(!meaning.ends_with('.'), "{meaning}");
            assert_eq!((kind.code(), kind.exit()), (*code, *exit));
        }
        let codes: Vec<&str> = KINDS.iter().map(|(_, code, ..)| *code).collect();
        assert!(codes.is_sorted(), "{codes:?}");
    }

    #[test]
    fn causes_are_kept_and_not_repeated() {
        let inner = io::Error::other("disk on fire");
        let error = EngineError::Io { what: "the folder cannot be made".into(), source: inner };
        let problem = Problem::from(error);
        assert_eq!(problem.causes, ["disk on fire"]);
        assert_eq!(problem.issues()[0].message, "the folder cannot be made: disk on fire");
    }
}
