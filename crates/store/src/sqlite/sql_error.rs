//! Why a query failed, before the path of the store is known. Sorts SQLite's result codes into damage,
//! busyness and plain failure; knows nothing of tables.

use std::path::Path;
use std::time::Duration;

use rusqlite::ErrorCode;

use crate::{Damage, StoreError};

/// How long SQLite itself waits for its locks. Writers wait at the write lock, so that only a recovery, a
/// checkpoint or a foreign program holds them up here.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(super) enum SqlError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Damage(#[from] Damage),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SqlError {
    /// Statements are fixed and tables are STRICT, so a statement that does not compile, a value of the
    /// wrong type and a broken constraint are all damage.
    pub(super) fn named(self, path: &Path) -> StoreError {
        let path = path.to_path_buf();
        let error = match self {
            SqlError::Store(error) => return error,
            SqlError::Damage(damage) => return StoreError::Damaged { path, damage },
            SqlError::Sqlite(error) => error,
        };
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => StoreError::Damaged { path, damage: Damage::Foreign },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                StoreError::Busy { path, holder: None, waited: BUSY_TIMEOUT }
            }
            Some(
                ErrorCode::DatabaseCorrupt
                | ErrorCode::ConstraintViolation
                | ErrorCode::TypeMismatch
                | ErrorCode::TooBig
                | ErrorCode::Unknown,
            )
            | None => StoreError::Damaged { path, damage: Damage::Sqlite(error.to_string()) },
            Some(_) => StoreError::Sqlite(error),
        }
    }

    /// Whether a looker met a database that cannot be read in place without writing to it.
    pub(super) fn needs_a_copy(&self) -> bool {
        let SqlError::Sqlite(error) = self else { return false };
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
