//! `store.head`: the store's id and some earlier head, outside the database, so that an older copy of
//! the database is recognised. Replaced now and then without a flush: it may lag, it is never ahead.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use piton_core::ids::{RunId, StoreId};
use piton_core::record::Cursor;
use rusqlite::Connection;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::flaw::Flaw;
use super::home::{Home, PRIVATE_FILE};
use super::rows::{self, Log};
use super::schema::seal;
use crate::{Damage, StoreError};

/// Room for any sidecar.
const SIZE: usize = 256;

/// A log's head goes into the sidecar each time it passes a multiple of this.
const EVERY: u64 = 32;

/// What is remembered. One that another version of piton wrote is as good as none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sidecar {
    store: StoreId,
    head: Option<Head>,
    /// A torn or garbled sidecar is no witness.
    seal: String,
}

/// Where a log once ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    run: RunId,
    /// The run's number.
    seq: i64,
    at: Cursor,
}

impl Head {
    pub(super) fn of(log: &Log) -> Head {
        Head { run: log.run, seq: log.seq, at: log.head }
    }
}

impl Sidecar {
    fn new(store: StoreId, head: Option<Head>) -> Sidecar {
        let seal = Sidecar::seal_of(store, head);
        Sidecar { store, head, seal }
    }

    fn seal_of(store: StoreId, head: Option<Head>) -> String {
        let text = head.map(|Head { run, seq, at: Cursor { position, hash } }| {
            format!("{run} {seq} {position} {hash}")
        });
        let seal = seal(&[store.0.as_bytes(), text.unwrap_or_default().as_bytes()]);
        seal.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Whether an append that moved the head this way should leave it in the sidecar.
pub(super) fn is_due(before: Cursor, after: Cursor) -> bool {
    before.position.0 / EVERY != after.position.0 / EVERY
}

/// Writes the sidecar over the one there is, which is much less than to make a file and rename it. Nobody
/// queues for it: an older one stays true, and a torn one says nothing. Neither does failing say anything
/// of the append before it.
pub(super) fn replace(home: &Home, store: StoreId, head: Option<Head>) {
    let _ = write(home, &Sidecar::new(store, head));
}

fn write(home: &Home, sidecar: &Sidecar) -> io::Result<()> {
    let mut text = serde_json::to_vec(sidecar)?;
    // Nothing of a longer one shows behind it.
    text.resize(text.len().max(SIZE), b' ');
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(PRIVATE_FILE)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&home.sidecar)?;
    file.write_all_at(&text, 0)
}

/// Refuses a database that is not the one, or not as far as, the sidecar remembers.
pub(super) fn verify(
    remembered: Option<Sidecar>,
    conn: &Connection,
    store: StoreId,
) -> Result<(), Flaw> {
    let Some(sidecar) = remembered else { return Ok(()) };
    if sidecar.store != store {
        return Err(Damage::RolledBack.into());
    }
    let Some(Head { run, seq, at }) = sidecar.head else { return Ok(()) };
    // The hash is over the run's id, too.
    if rows::hash_at(conn, &Log::new(run, seq), at.position)? == Some(at.hash) {
        return Ok(());
    }
    match rows::find_run(conn, run)? {
        // Only a store that is newer than this knows that the run was forgotten.
        Some(entry) if entry.is_forgotten() => Ok(()),
        _ => Err(Damage::RolledBack.into()),
    }
}

/// What is remembered. To be read before the database that is held against it: what is appended in
/// between would be missed there.
pub(super) fn read(home: &Home) -> Result<Option<Sidecar>, StoreError> {
    let text = match fs::read(&home.sidecar) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StoreError::CannotOpen { path: home.sidecar.clone(), source }),
    };
    let sidecar: Option<Sidecar> = serde_json::from_slice(&text).ok();
    Ok(sidecar.filter(|sidecar| sidecar.seal == Sidecar::seal_of(sidecar.store, sidecar.head)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use piton_core::ids::{Hash, Position};

    #[test]
    fn the_sidecar_round_trips_with_and_without_a_head() {
        let store = StoreId(uuid::Uuid::from_u128(1));
        let at = Cursor { position: Position(33), hash: Hash::of(b"x") };
        let head = Head { run: RunId(uuid::Uuid::from_u128(2)), seq: 7, at };
        for head in [None, Some(head)] {
            let sidecar = Sidecar::new(store, head);
            let text = serde_json::to_string(&sidecar).expect("it is plain data");
            assert_eq!(serde_json::from_str::<Sidecar>(&text).ok(), Some(sidecar), "{text}");
        }
    }

    #[test]
    fn it_is_due_when_a_multiple_is_passed() {
        let at = |position| Cursor { position: Position(position), hash: Hash::ZERO };
        assert!(!is_due(at(1), at(31)) && is_due(at(31), at(32)) && is_due(at(5), at(70)));
    }
}
