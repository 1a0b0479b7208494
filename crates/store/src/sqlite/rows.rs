//! The statements: rows in and out, each checked against its seal or its chain as it is read. Keeps and
//! compares; what a batch means is not known here.

use piton_core::decided::Lease;
use piton_core::ids::{BootId, Fence, Hash, Position, RunId};
use piton_core::record::{Cursor, Record};
use piton_core::time::{BootClock, Millis, Moment};
use rusqlite::{Connection, OptionalExtension, Row};
use uuid::Uuid;

use super::schema::{Meta, Seal, seal};
use super::sql_error::SqlError;
use crate::{Damage, RunKey, RunRow, StoreError};

/// The lower half of the id of a run's head, which is a row behind its records: an append then changes one
/// leaf of one tree.
const HEAD: u32 = u32::MAX;

/// The rows of events behind one and up to another. Also where one row is wanted: compiling a statement
/// takes much longer than such a range does.
const EVENTS: &str = "SELECT id, at, body, hash FROM events WHERE id > ?1 AND id <= ?2 ORDER BY id";

/// A run's log as the store keeps it: its number and where it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogHead {
    pub(super) run: RunId,
    pub(super) seq: i64,
    pub(super) head: Cursor,
}

impl LogHead {
    pub(super) fn new(run: RunId, seq: i64) -> LogHead {
        LogHead { run, seq, head: Cursor::START }
    }

    /// The id of a record of this run; the position is the lower half.
    fn event_id(&self, position: Position) -> Result<i64, SqlError> {
        match u32::try_from(position.0) {
            Ok(position) if position < HEAD => self.id(position),
            _ => Err(StoreError::Full { run: self.run }.into()),
        }
    }

    fn id(&self, lower: u32) -> Result<i64, SqlError> {
        let Ok(seq) = i32::try_from(self.seq) else {
            return Err(StoreError::Full { run: self.run }.into());
        };
        Ok((i64::from(seq) << 32) | i64::from(lower))
    }

    /// Takes the head from its row: the position in place of a time, the seal in place of a body.
    fn with_head(mut self, row: &Row<'_>) -> Result<LogHead, SqlError> {
        self.head.position = Position(row.get::<_, i64>(1)?.cast_unsigned());
        self.head.hash = Hash::from_bytes(row.get(3)?);
        if row.get_ref(2)?.as_blob().is_ok_and(|seal| *seal == self.seal()) {
            return Ok(self);
        }
        Err(Damage::Seal("a run's head").into())
    }

    fn seal(&self) -> Seal {
        seal(&[
            &self.seq.to_le_bytes(),
            self.run.0.as_bytes(),
            &self.head.position.0.to_le_bytes(),
            self.head.hash.as_bytes(),
        ])
    }
}

/// A run as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunEntry {
    pub(super) log: LogHead,
    pub(super) name: String,
    pub(super) key: RunKey,
    pub(super) active: bool,
    pub(super) created: Millis,
}

macro_rules! select_runs {
    ($where:literal) => {
        concat!("SELECT seq, run, name, key, active, created, seal FROM runs ", $where)
    };
}

impl RunEntry {
    /// Without the head, which is elsewhere.
    fn from_row(row: &Row<'_>) -> rusqlite::Result<(RunEntry, Seal)> {
        let entry = RunEntry {
            log: LogHead::new(RunId(Uuid::from_bytes(row.get(1)?)), row.get(0)?),
            name: row.get(2)?,
            key: RunKey(row.get(3)?),
            active: row.get(4)?,
            created: Millis(row.get(5)?),
        };
        Ok((entry, row.get(6)?))
    }

    /// The head of its log has a seal of its own.
    fn seal(&self) -> Seal {
        seal(&[
            &self.log.seq.to_le_bytes(),
            self.log.run.0.as_bytes(),
            self.name.as_bytes(),
            self.key.0.as_bytes(),
            &[u8::from(self.active)],
            &self.created.0.to_le_bytes(),
        ])
    }

    /// Whether only its id is left. The row stays, because rows are counted, ids are given away once, and
    /// what remembers a head of it must not take this for an older copy of the store.
    pub(super) fn is_forgotten(&self) -> bool {
        self.key.0.is_empty()
    }

    pub(super) fn into_row(self) -> RunRow {
        let RunEntry { log, name, key, active, created } = self;
        RunRow { run: log.run, name, key, active, created, head: log.head }
    }
}

/// A row as it was kept, with its head.
fn checked(conn: &Connection, found: (RunEntry, Seal)) -> Result<RunEntry, SqlError> {
    with_head(conn, sealed(found)?)
}

fn sealed((entry, seal): (RunEntry, Seal)) -> Result<RunEntry, SqlError> {
    if entry.seal() == seal { Ok(entry) } else { Err(Damage::Seal("a run's row").into()) }
}

/// With the head of its log, which is elsewhere.
pub(super) fn with_head(conn: &Connection, entry: RunEntry) -> Result<RunEntry, SqlError> {
    if entry.is_forgotten() {
        return Ok(entry);
    }
    Ok(RunEntry { log: head_of(conn, entry.log)?, ..entry })
}

/// Every run, oldest first, without the heads of their logs; a missing, doubled or moved row is damage.
pub(super) fn all_runs(conn: &Connection) -> Result<Vec<RunEntry>, SqlError> {
    let meta = Meta::load(conn)?;
    let mut select = conn.prepare_cached(select_runs!("ORDER BY seq"))?;
    let mut runs = Vec::new();
    for found in select.query_map([], RunEntry::from_row)? {
        runs.push(sealed(found?)?);
        let count = i64::try_from(runs.len()).unwrap_or(i64::MAX);
        if runs.last().map(|entry| entry.log.seq) != Some(count) {
            return Err(Damage::Seal("the number of runs").into());
        }
    }
    if i64::try_from(runs.len()) != Ok(meta.runs) {
        return Err(Damage::Seal("the number of runs").into());
    }
    Ok(runs)
}

/// A run by its id. Not finding it is only believed after a look at all of them, because a flipped bit
/// in an index can hide a row.
pub(super) fn find_run(conn: &Connection, run: RunId) -> Result<Option<RunEntry>, SqlError> {
    let sql = select_runs!("WHERE run = ?1");
    let found =
        conn.prepare_cached(sql)?.query_row([run.0.as_bytes()], RunEntry::from_row).optional()?;
    look_up(conn, found, |entry| entry.log.run == run)
}

/// The run that holds a key, with the same care.
pub(super) fn find_holder(conn: &Connection, key: &RunKey) -> Result<Option<RunEntry>, SqlError> {
    let sql = select_runs!("WHERE key = ?1 AND active = 1");
    let found = conn.prepare_cached(sql)?.query_row([&key.0], RunEntry::from_row).optional()?;
    look_up(conn, found, |entry| entry.active && entry.key == *key)
}

/// The runs of this name that an index shows, oldest first.
pub(super) fn find_named(conn: &Connection, name: &str) -> Result<Vec<RunEntry>, SqlError> {
    let mut select = conn.prepare_cached(select_runs!("WHERE name = ?1 ORDER BY seq"))?;
    let found = select.query_map([name], RunEntry::from_row)?;
    found.map(|found| checked(conn, found?)).collect()
}

const WRONG_INDEX: Damage = Damage::Seal("an index of the runs");

fn look_up(
    conn: &Connection,
    found: Option<(RunEntry, Seal)>,
    wanted: impl Fn(&RunEntry) -> bool,
) -> Result<Option<RunEntry>, SqlError> {
    if let Some(found) = found {
        let entry = checked(conn, found)?;
        return if wanted(&entry) { Ok(Some(entry)) } else { Err(WRONG_INDEX.into()) };
    }
    if all_runs(conn)?.iter().any(wanted) { Err(WRONG_INDEX.into()) } else { Ok(None) }
}

pub(super) fn known_run(conn: &Connection, run: RunId) -> Result<RunEntry, SqlError> {
    let found = find_run(conn, run)?.filter(|entry| !entry.is_forgotten());
    found.ok_or_else(|| StoreError::UnknownRun { run }.into())
}

/// A new run, with the head of its log.
pub(super) fn insert_run(conn: &Connection, entry: &RunEntry) -> Result<(), SqlError> {
    let RunEntry { log, name, key, active, created } = entry;
    conn.prepare_cached(
        "INSERT INTO runs (seq, run, name, key, active, created, seal)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute((
        log.seq,
        log.run.0.as_bytes(),
        name,
        &key.0,
        active,
        created.0,
        entry.seal(),
    ))?;
    write_head(conn, log)
}

/// Writes where a log ends.
pub(super) fn write_head(conn: &Connection, log: &LogHead) -> Result<(), SqlError> {
    write_event(
        conn,
        (log.id(HEAD)?, log.head.position.0.cast_signed(), &log.seal(), log.head.hash),
    )
}

/// A log that was known before, as it is now; or it was forgotten since.
pub(super) fn present(conn: &Connection, log: LogHead) -> Result<LogHead, SqlError> {
    let run = log.run;
    head_of(conn, log).or_else(|_| Ok(known_run(conn, run)?.log))
}

/// The log with the head that is kept of it.
fn head_of(conn: &Connection, log: LogHead) -> Result<LogHead, SqlError> {
    let id = log.id(HEAD)?;
    let mut select = conn.prepare_cached(EVENTS)?;
    let mut rows = select.query([id - 1, id])?;
    match rows.next()? {
        Some(row) => log.with_head(row),
        None => Err(Damage::Seal("a run's head").into()),
    }
}

/// Takes the key away from a run, or gives it back to one that had lost it.
pub(super) fn set_active(
    conn: &Connection,
    entry: &mut RunEntry,
    active: bool,
) -> Result<(), SqlError> {
    entry.active = active;
    let changed = conn
        .prepare_cached("UPDATE runs SET active = ?2, seal = ?3 WHERE seq = ?1")?
        .execute((entry.log.seq, active, entry.seal()))?;
    if changed == 1 { Ok(()) } else { Err(Damage::Seal("a run's row").into()) }
}

/// Removes everything of a run but its id.
pub(super) fn forget(conn: &Connection, entry: &mut RunEntry) -> Result<(), SqlError> {
    let log = &entry.log;
    conn.execute("DELETE FROM events WHERE id >= ?1 AND id <= ?2", [log.id(0)?, log.id(HEAD)?])?;
    conn.execute("DELETE FROM leases WHERE run = ?1", [log.seq])?;
    conn.execute("UPDATE runs SET key = '', name = '' WHERE seq = ?1", [log.seq])?;
    (entry.key, entry.name) = (RunKey(String::new()), String::new());
    set_active(conn, entry, false)
}

/// The records after a cursor, verified link by link up to the head; the log as it is then.
pub(super) fn records_after(
    conn: &Connection,
    log: LogHead,
    after: Cursor,
) -> Result<(LogHead, Vec<Record>), SqlError> {
    let run = log.run;
    let not_in_chain = StoreError::CursorNotInChain { run, position: after.position };
    let Ok(from) = log.event_id(after.position) else { return Err(not_in_chain.into()) };
    let mut select = conn.prepare_cached(EVENTS)?;
    let (base, last) = (log.id(0)?, log.id(HEAD)?);
    let mut rows = select.query([from, last])?;
    let mut records = Vec::new();
    let mut previous = after;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        if id == last {
            let log = log.with_head(row)?;
            return if previous == log.head {
                Ok((log, records))
            } else if after.position > log.head.position {
                Err(not_in_chain.into())
            } else {
                Err(broken(conn, &log, after, previous))
            };
        }
        let record = Record {
            position: Position((id - base).cast_unsigned()),
            at: Millis(row.get(1)?),
            body: row.get(2)?,
            hash: Hash::from_bytes(row.get(3)?),
        };
        if !record.follows(run, previous) {
            return Err(broken(conn, &head_of(conn, log)?, after, previous));
        }
        previous = record.cursor();
        records.push(record);
    }
    // Its number was known from before it was forgotten; any other log has a head.
    known_run(conn, run)?;
    Err(Damage::Seal("a run's head").into())
}

/// The chain does not go on from `previous`: the cursor was never in it, or it is damaged.
fn broken(conn: &Connection, log: &LogHead, after: Cursor, previous: Cursor) -> SqlError {
    let run = log.run;
    if previous == after {
        match hash_at(conn, log, after.position) {
            Ok(Some(hash)) if hash == after.hash => {}
            Ok(_) => {
                return StoreError::CursorNotInChain { run, position: after.position }.into();
            }
            Err(error) => return error,
        }
    }
    Damage::Chain { run, position: previous.position.next() }.into()
}

/// The chain's hash at a position, as kept.
pub(super) fn hash_at(
    conn: &Connection,
    log: &LogHead,
    position: Position,
) -> Result<Option<Hash>, SqlError> {
    if position == Position::START {
        return Ok(Some(Hash::ZERO));
    }
    let id = log.event_id(position)?;
    let mut select = conn.prepare_cached(EVENTS)?;
    let hash = select.query_row([id - 1, id], |row| row.get(3)).optional()?;
    Ok(hash.map(Hash::from_bytes))
}

/// Appends bodies after the log's head and moves it; the caller writes it back.
pub(super) fn append(
    conn: &Connection,
    log: &mut LogHead,
    at: Millis,
    bodies: &[Vec<u8>],
) -> Result<Vec<Record>, SqlError> {
    let mut records = Vec::with_capacity(bodies.len());
    for body in bodies {
        let record = Record::following(log.run, log.head, at, body.clone());
        let id = log.event_id(record.position)?;
        write_event(conn, (id, record.at.0, &record.body, record.hash))?;
        log.head = record.cursor();
        records.push(record);
    }
    Ok(records)
}

/// Writes a row of events. One statement for records and heads, because compiling a second one takes longer
/// than running it; that no record is in the way of an append is known from reading up to the head.
fn write_event(
    conn: &Connection,
    (id, at, body, hash): (i64, i64, &[u8], Hash),
) -> Result<(), SqlError> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO events (id, at, body, hash) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute((id, at, body, hash.as_bytes()))?;
    Ok(())
}

/// A run's leases by key. One that does not match its seal is as good as missing: `claimed` carries the
/// first expiry.
pub(super) fn leases_of(conn: &Connection, log: &LogHead) -> Result<Vec<Lease>, SqlError> {
    // A range of one run: with `run = ?1` under an ORDER BY, SQLite compiles the statement again each time
    // a value is bound.
    let mut select = conn.prepare_cached(
        "SELECT key, fence, wall, boot, clock, seal FROM leases
         WHERE run >= ?1 AND run <= ?1 ORDER BY run, key",
    )?;
    let mut leases = Vec::new();
    for found in select.query_map([log.seq], lease_from_row)? {
        let (lease, seal) = found?;
        if lease_seal(log.seq, &lease) == seal {
            leases.push(lease);
        }
    }
    Ok(leases)
}

/// Sets a lease; one that is over at `now` goes.
pub(super) fn set_lease(
    conn: &Connection,
    log: &LogHead,
    lease: &Lease,
    now: &Moment,
) -> Result<(), SqlError> {
    if lease.until.is_over(now) {
        conn.prepare_cached("DELETE FROM leases WHERE run = ?1 AND key = ?2")?
            .execute((log.seq, &lease.key))?;
        return Ok(());
    }
    write_lease(conn, log, lease)
}

pub(super) fn write_lease(conn: &Connection, log: &LogHead, lease: &Lease) -> Result<(), SqlError> {
    let clock = lease.until.clock.as_ref();
    conn.prepare_cached(
        "INSERT OR REPLACE INTO leases (run, key, fence, wall, boot, clock, seal)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute((
        log.seq,
        &lease.key,
        lease.fence.0.cast_signed(),
        lease.until.wall.0,
        clock.map(|clock| &clock.boot.0),
        clock.map(|clock| clock.ms),
        lease_seal(log.seq, lease),
    ))?;
    Ok(())
}

fn lease_from_row(row: &Row<'_>) -> rusqlite::Result<(Lease, Seal)> {
    let clock = match (row.get::<_, Option<String>>(3)?, row.get::<_, Option<i64>>(4)?) {
        (Some(boot), Some(ms)) => Some(BootClock { boot: BootId(boot), ms }),
        _ => None,
    };
    let lease = Lease {
        key: row.get(0)?,
        fence: Fence(row.get::<_, i64>(1)?.cast_unsigned()),
        until: Moment { wall: Millis(row.get(2)?), clock },
    };
    Ok((lease, row.get(5)?))
}

fn lease_seal(seq: i64, lease: &Lease) -> Seal {
    let Moment { wall, clock } = &lease.until;
    let (boot, ms) = match clock {
        Some(clock) => (clock.boot.0.as_bytes(), clock.ms.to_le_bytes().to_vec()),
        None => (&[][..], Vec::new()),
    };
    seal(&[
        &seq.to_le_bytes(),
        lease.key.as_bytes(),
        &lease.fence.0.to_le_bytes(),
        &wall.0.to_le_bytes(),
        boot,
        &ms,
    ])
}

/// Keeps a text once under the hash of its bytes.
pub(super) fn keep_text(conn: &Connection, text: &[u8]) -> Result<(), SqlError> {
    conn.prepare_cached("INSERT OR IGNORE INTO texts (hash, bytes) VALUES (?1, ?2)")?
        .execute((Hash::of(text).as_bytes(), text))?;
    Ok(())
}

pub(super) fn text(conn: &Connection, hash: Hash) -> Result<Vec<u8>, SqlError> {
    let found: Option<Vec<u8>> = conn
        .prepare_cached("SELECT bytes FROM texts WHERE hash = ?1")?
        .query_row([hash.as_bytes()], |row| row.get(0))
        .optional()?;
    match found {
        Some(bytes) if Hash::of(&bytes) == hash => Ok(bytes),
        Some(_) => Err(Damage::Seal("a text").into()),
        None => Err(StoreError::MissingText { hash }.into()),
    }
}

/// The names of all texts.
pub(super) fn all_texts(conn: &Connection) -> Result<Vec<Hash>, SqlError> {
    let mut select = conn.prepare("SELECT hash FROM texts")?;
    let hashes = select.query_map([], |row| Ok(Hash::from_bytes(row.get(0)?)))?;
    Ok(hashes.collect::<Result<_, _>>()?)
}

/// What SQLite itself finds wrong with its trees.
pub(super) fn quick_check(conn: &Connection) -> Result<Vec<String>, SqlError> {
    let mut check = conn.prepare("PRAGMA quick_check(20)")?;
    let lines = check.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}
