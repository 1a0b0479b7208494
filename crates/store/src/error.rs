//! Everything that can go wrong with a store, each with its name and its code. What can be done about it
//! is for surfaces to say.

use std::path::PathBuf;
use std::time::Duration;

use piton_core::ids::{Hash, Position, RunId};

/// The environment variable that lets a store live on a network file system, at the user's own risk.
pub const ALLOW_NETWORK_FS: &str = "PITON_ALLOW_NETWORK_FS";

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no store at {}", path.display())]
    Missing { path: PathBuf },
    #[error("the store {} is damaged: {damage}", path.display())]
    Damaged { path: PathBuf, damage: Damage },
    #[error("the SQLite engine is version {found}, piton needs at least {needed}")]
    EngineTooOld { found: String, needed: &'static str },
    #[error("the store {} refused {setting} = {wanted}: it says {found:?}", path.display())]
    SettingRefused { path: PathBuf, setting: &'static str, wanted: &'static str, found: String },
    #[error("{} is on a network file system ({kind}), where SQLite can lose commits", path.display())]
    NetworkFileSystem { path: PathBuf, kind: &'static str },
    #[error("{} is not safe to use: {why}", path.display())]
    Unsafe { path: PathBuf, why: Unsafe },
    #[error("{} cannot be opened", path.display())]
    CannotOpen { path: PathBuf, source: std::io::Error },
    #[error("the store {} was busy for {} ms{}", path.display(), waited.as_millis(), held_by(*holder))]
    Busy { path: PathBuf, holder: Option<u32>, waited: Duration },
    #[error("the store was opened for looking only")]
    LookOnly,
    #[error("there is no run {run} in this store")]
    UnknownRun { run: RunId },
    #[error("the run {run} has the plan's place by now")]
    KeyHeld { run: RunId },
    #[error("the run {run} exists already")]
    RunExists { run: RunId },
    #[error("the log of run {run} does not contain what was read from it at position {position}")]
    CursorNotInChain { run: RunId, position: Position },
    #[error("the text {hash} is not in this store")]
    MissingText { hash: Hash },
    #[error("the log of run {run} is full")]
    Full { run: RunId },
    #[error("the store failed while {doing}")]
    Io { doing: &'static str, source: std::io::Error },
    #[error("the store failed: {0}")]
    Sqlite(#[source] rusqlite::Error),
}

/// What is wrong with a store's bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("the file is empty")]
    Empty,
    #[error("the file is shorter than it says it is")]
    Truncated,
    #[error("the database is gone, but files that belong to it are there")]
    Gone,
    #[error("the file is not a piton store")]
    Foreign,
    #[error("it was written by a newer piton (schema {found}, this one knows {known})")]
    Newer { found: i64, known: i64 },
    #[error("it lacks records that were in it before: it is an older copy, or its log is damaged")]
    RolledBack,
    #[error("the log of run {run} is broken at position {position}")]
    Chain { run: RunId, position: Position },
    #[error("{0} does not match its checksum")]
    Seal(&'static str),
    #[error("SQLite says: {0}")]
    Sqlite(String),
}

/// Why state on disk is refused before it is read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsafe {
    #[error("it is a symbolic link")]
    Symlink,
    #[error("it belongs to user {owner}, not to user {me}")]
    ForeignOwner { owner: u32, me: u32 },
    #[error("other users may write to it (mode {mode:03o})")]
    WritableByOthers { mode: u32 },
    #[error("it is not a {wanted}")]
    WrongKind { wanted: &'static str },
}

fn held_by(holder: Option<u32>) -> String {
    match holder {
        Some(pid) => format!(" (held by process {pid})"),
        None => String::new(),
    }
}

impl StoreError {
    /// `E046`: the store cannot be opened. `E047`: it failed while in use.
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::Missing { .. }
            | StoreError::EngineTooOld { .. }
            | StoreError::SettingRefused { .. }
            | StoreError::NetworkFileSystem { .. }
            | StoreError::Unsafe { .. }
            | StoreError::CannotOpen { .. } => "E046",
            StoreError::Damaged { damage, .. } => damage.code(),
            StoreError::Busy { .. }
            | StoreError::LookOnly
            | StoreError::UnknownRun { .. }
            | StoreError::RunExists { .. }
            | StoreError::KeyHeld { .. }
            | StoreError::CursorNotInChain { .. }
            | StoreError::MissingText { .. }
            | StoreError::Full { .. }
            | StoreError::Io { .. }
            | StoreError::Sqlite(_) => "E047",
        }
    }

    /// Whether the disk has no room.
    pub fn is_full_disk(&self) -> bool {
        let full = Some(rusqlite::ErrorCode::DiskFull);
        matches!(self, StoreError::Sqlite(error) if error.sqlite_error_code() == full)
    }

    /// Whether bytes that were kept are not what they were: exit status 74, not 69.
    pub fn is_corrupt(&self) -> bool {
        match self {
            StoreError::Damaged { damage, .. } => !matches!(damage, Damage::Newer { .. }),
            StoreError::CursorNotInChain { .. } | StoreError::MissingText { .. } => true,
            _ => false,
        }
    }
}

impl Damage {
    fn code(&self) -> &'static str {
        match self {
            Damage::Empty
            | Damage::Truncated
            | Damage::Gone
            | Damage::Foreign
            | Damage::Newer { .. }
            | Damage::RolledBack => "E046",
            Damage::Chain { .. } | Damage::Seal(_) | Damage::Sqlite(_) => "E047",
        }
    }
}
