//! What queries fail with before the path of the store is known to them. Sorts SQLite's result codes
//! into damage, busyness and plain failure; knows nothing of tables.

use std::path::Path;
use std::time::Duration;

use rusqlite::ErrorCode;

use crate::{Damage, StoreError};

/// How long SQLite itself waits for its locks. Writers queue at the write lock, so only a recovery, a
/// checkpoint or a foreign program makes anybody wait here.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) enum Flaw {
    Sqlite(rusqlite::Error),
    Damage(Damage),
    Store(StoreError),
}

impl Flaw {
    pub(super) fn named(self, path: &Path) -> StoreError {
        let path = path.to_path_buf();
        match self {
            Flaw::Store(error) => error,
            Flaw::Damage(damage) => StoreError::Damaged { path, damage },
            Flaw::Sqlite(error) => match sort(&error) {
                Sort::Damage => {
                    StoreError::Damaged { path, damage: Damage::Sqlite(error.to_string()) }
                }
                Sort::Foreign => StoreError::Damaged { path, damage: Damage::Foreign },
                Sort::Busy => StoreError::Busy { path, holder: None, waited: BUSY_TIMEOUT },
                Sort::Failure => StoreError::Sqlite(error),
            },
        }
    }

    /// Whether a looker met a database that cannot be read in place without writing to it.
    pub(super) fn needs_a_copy(&self) -> bool {
        let Flaw::Sqlite(error) = self else { return false };
        matches!(
            error.sqlite_error_code(),
            Some(
                ErrorCode::ReadOnly
                    | ErrorCode::CannotOpen
                    | ErrorCode::DatabaseBusy
                    | ErrorCode::FileLockingProtocolFailed
            )
        )
    }
}

impl From<rusqlite::Error> for Flaw {
    fn from(error: rusqlite::Error) -> Flaw {
        Flaw::Sqlite(error)
    }
}

impl From<Damage> for Flaw {
    fn from(damage: Damage) -> Flaw {
        Flaw::Damage(damage)
    }
}

impl From<StoreError> for Flaw {
    fn from(error: StoreError) -> Flaw {
        Flaw::Store(error)
    }
}

enum Sort {
    Damage,
    Foreign,
    Busy,
    Failure,
}

/// Statements are fixed and tables are STRICT, so a statement that does not compile, a value of the
/// wrong type and a broken constraint are all damage.
fn sort(error: &rusqlite::Error) -> Sort {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Sort::Foreign,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Sort::Busy,
        Some(
            ErrorCode::DatabaseCorrupt
            | ErrorCode::ConstraintViolation
            | ErrorCode::TypeMismatch
            | ErrorCode::TooBig
            | ErrorCode::Unknown,
        ) => Sort::Damage,
        Some(_) => Sort::Failure,
        None => Sort::Damage,
    }
}
