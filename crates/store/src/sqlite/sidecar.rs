//! `store.head`: the store's id and the newest head, outside the database. It is written with every
//! commit, without a flush and after the commit is durable: it may lag, but it is never ahead. A database
//! that lacks what the sidecar remembers is an older copy, another store, or has a damaged write-ahead
//! log.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use piton_core::ids::{RunId, StoreId};
use piton_core::record::Cursor;
use rusqlite::Connection;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::home::{Home, PRIVATE_FILE};
use super::rows::{self, LogHead};
use super::schema::seal;
use super::sql_error::SqlError;
use crate::{Damage, StoreError};

/// Room for any sidecar.
const SIZE: usize = 256;

/// The file, kept open by a writer.
#[derive(Debug)]
pub(super) struct Sidecar {
    file: File,
    store: StoreId,
}

/// What is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    store: StoreId,
    newest: Option<NewestHead>,
    /// A torn or garbled sidecar says nothing.
    seal: String,
}

/// Where the log that was appended to last ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct NewestHead {
    run: RunId,
    /// The run's number.
    seq: i64,
    at: Cursor,
}

impl Sidecar {
    /// Opens the sidecar for writing. A new store has one that remembers its id alone.
    pub(super) fn open(home: &Home, store: StoreId) -> Result<Sidecar, StoreError> {
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE_FILE)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&home.sidecar);
        let cannot = |source| StoreError::CannotOpen { path: home.sidecar.clone(), source };
        let file = opened.map_err(cannot)?;
        let sidecar = Sidecar { file, store };
        if sidecar.file.metadata().map_err(cannot)?.len() == 0 {
            sidecar.write(None);
        }
        Ok(sidecar)
    }

    /// Remembers a head. The caller holds the write lock and has committed.
    pub(super) fn remember(&self, log: &LogHead) {
        self.write(Some(NewestHead { run: log.run, seq: log.seq, at: log.head }));
    }

    /// Failing says nothing about the commit: an older sidecar stays true.
    fn write(&self, newest: Option<NewestHead>) {
        let Ok(mut text) = serde_json::to_vec(&Remembered::new(self.store, newest)) else { return };
        // Nothing of a longer one shows behind it.
        text.resize(text.len().max(SIZE), b' ');
        let _lags = self.file.write_all_at(&text, 0);
    }
}

impl Remembered {
    fn new(store: StoreId, newest: Option<NewestHead>) -> Remembered {
        let seal = Remembered::seal_of(store, newest);
        Remembered { store, newest, seal }
    }

    fn seal_of(store: StoreId, newest: Option<NewestHead>) -> String {
        let text = newest.map(|NewestHead { run, seq, at: Cursor { position, hash } }| {
            format!("{run} {seq} {position} {hash}")
        });
        let seal = seal(&[store.0.as_bytes(), text.unwrap_or_default().as_bytes()]);
        seal.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What is remembered, if anything. To be read before the database is opened: what is appended in
    /// between would be missed there.
    pub(super) fn read(home: &Home) -> Result<Option<Remembered>, StoreError> {
        let text = match fs::read(&home.sidecar) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(StoreError::CannotOpen { path: home.sidecar.clone(), source });
            }
        };
        let found: Option<Remembered> = serde_json::from_slice(&text).ok();
        Ok(found.filter(|found| found.seal == Remembered::seal_of(found.store, found.newest)))
    }

    /// Refuses a database that is another store, or lacks the newest head.
    pub(super) fn verify(&self, conn: &Connection, store: StoreId) -> Result<(), SqlError> {
        if self.store != store {
            return Err(Damage::RolledBack.into());
        }
        let Some(NewestHead { run, seq, at }) = self.newest else { return Ok(()) };
        // The hash is over the run's id, too.
        if rows::hash_at(conn, &LogHead::new(run, seq), at.position)? == Some(at.hash) {
            return Ok(());
        }
        match rows::find_run(conn, run)? {
            // Only a store that is newer than this knows that the run was forgotten.
            Some(entry) if entry.is_forgotten() => Ok(()),
            _ => Err(Damage::RolledBack.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piton_core::ids::{Hash, Position};

    #[test]
    fn what_is_remembered_round_trips_with_and_without_a_head() {
        let store = StoreId(uuid::Uuid::from_u128(1));
        let at = Cursor { position: Position(33), hash: Hash::of(b"x") };
        let head = NewestHead { run: RunId(uuid::Uuid::from_u128(2)), seq: 7, at };
        for newest in [None, Some(head)] {
            let remembered = Remembered::new(store, newest);
            let text = serde_json::to_string(&remembered).expect("it is plain data");
            assert_eq!(serde_json::from_str::<Remembered>(&text).ok(), Some(remembered), "{text}");
        }
    }
}
