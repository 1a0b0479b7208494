//! The statements: rows in and out, each checked against its seal, its count or its chain as it is
//! read. Keeps and compares; what a batch means is not known here.

use piton_core::decided::Lease;
use piton_core::ids::{BootId, Fence, Hash, Position, RunId};
use piton_core::record::{Cursor, Record};
use piton_core::time::{BootClock, Millis, Moment};
use rusqlite::{Connection, OptionalExtension, Row};
use uuid::Uuid;

use super::flaw::Flaw;
use super::schema::{Meta, Seal, seal};
use crate::{Damage, RunKey, RunRow, StoreError};

/// A run as the store keeps it: the listing's row, its number, and how many leases it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunEntry {
    pub(super) seq: i64,
    pub(super) row: RunRow,
    pub(super) leases: i64,
}

/// The columns of a run, for `from_row`. A macro, because statements are put together at compile time:
/// the cache of prepared ones looks them up by their text.
macro_rules! run_columns {
    () => {
        "seq, run, key, active, created, position, hash, leases, seal"
    };
}

/// Runs with their names, which may be lost.
macro_rules! named_runs {
    ($where:literal) => {
        concat!(
            "SELECT r.seq, r.run, r.key, r.active, r.created, r.position, r.hash, r.leases, r.seal, ",
            "n.name, n.seal FROM runs r LEFT JOIN names n ON n.run = r.seq ",
            $where
        )
    };
}

impl RunEntry {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<(RunEntry, Seal)> {
        let head = Cursor {
            position: Position(row.get::<_, i64>(5)?.cast_unsigned()),
            hash: Hash::from_bytes(row.get(6)?),
        };
        let seq = row.get(0)?;
        let name: Option<String> = row.get(9)?;
        let named: Option<Seal> = row.get(10)?;
        let entry = RunEntry {
            seq,
            row: RunRow {
                run: RunId(Uuid::from_bytes(row.get(1)?)),
                name: name.filter(|name| named == Some(name_seal(seq, name))),
                key: RunKey(row.get(2)?),
                active: row.get(3)?,
                created: Millis(row.get(4)?),
                head,
            },
            leases: row.get(7)?,
        };
        Ok((entry, row.get(8)?))
    }

    fn seal(&self) -> Seal {
        // Its name has a seal of its own.
        let RunRow { run, key, active, created, head, name: _ } = &self.row;
        seal(&[
            &self.seq.to_le_bytes(),
            run.0.as_bytes(),
            key.0.as_bytes(),
            &[u8::from(*active)],
            &created.0.to_le_bytes(),
            &head.position.0.to_le_bytes(),
            head.hash.as_bytes(),
            &self.leases.to_le_bytes(),
        ])
    }

    /// Whether only its id is left. The row stays, because rows are counted, ids are given away once, and
    /// what remembers a head of it must not take this for an older copy of the store.
    pub(super) fn is_forgotten(&self) -> bool {
        self.row.key.0.is_empty() && self.row.head == Cursor::START
    }

    /// The id of a record of this run; the position is the lower half.
    fn event_id(&self, position: Position) -> Result<i64, Flaw> {
        let run = self.row.run;
        let (Ok(seq), Ok(position)) = (i32::try_from(self.seq), u32::try_from(position.0)) else {
            return Err(StoreError::Full { run }.into());
        };
        Ok((i64::from(seq) << 32) | i64::from(position))
    }
}

fn checked((entry, seal): (RunEntry, Seal)) -> Result<RunEntry, Flaw> {
    if entry.seal() == seal { Ok(entry) } else { Err(Damage::Seal("a run's row").into()) }
}

/// Every run, oldest first; a missing, doubled or moved row is damage.
pub(super) fn all_runs(conn: &Connection) -> Result<Vec<RunEntry>, Flaw> {
    let meta = Meta::load(conn)?;
    let mut select = conn.prepare_cached(named_runs!("ORDER BY r.seq"))?;
    let mut runs = Vec::new();
    for found in select.query_map([], RunEntry::from_row)? {
        let entry = checked(found?)?;
        runs.push(entry);
        let count = i64::try_from(runs.len()).unwrap_or(i64::MAX);
        if runs.last().map(|entry| entry.seq) != Some(count) {
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
pub(super) fn find_run(conn: &Connection, run: RunId) -> Result<Option<RunEntry>, Flaw> {
    // Without its name, which no decision asks for: a join takes several times as long to compile.
    let sql = concat!("SELECT ", run_columns!(), ", NULL, NULL FROM runs WHERE run = ?1");
    let found =
        conn.prepare_cached(sql)?.query_row([run.0.as_bytes()], RunEntry::from_row).optional()?;
    look_up(conn, found, |entry| entry.row.run == run)
}

/// The run that holds a key, with the same care.
pub(super) fn find_holder(conn: &Connection, key: &RunKey) -> Result<Option<RunEntry>, Flaw> {
    let sql = named_runs!("WHERE r.key = ?1 AND r.active = 1");
    let found = conn.prepare_cached(sql)?.query_row([&key.0], RunEntry::from_row).optional()?;
    look_up(conn, found, |entry| entry.row.active && entry.row.key == *key)
}

/// The runs of this name that an index shows, oldest first.
pub(super) fn find_named(conn: &Connection, name: &str) -> Result<Vec<RunEntry>, Flaw> {
    let mut select = conn.prepare_cached("SELECT run, seal FROM names WHERE name = ?1")?;
    let found = select.query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut runs = found.collect::<Result<Vec<(i64, Seal)>, _>>()?;
    runs.retain(|(seq, seal)| *seal == name_seal(*seq, name));
    runs.sort_unstable();
    let sql = concat!("SELECT ", run_columns!(), ", NULL, NULL FROM runs WHERE seq = ?1");
    let mut select = conn.prepare_cached(sql)?;
    let mut entries = Vec::new();
    for (seq, _) in runs {
        // A name without its run is as good as none.
        if let Some(found) = select.query_row([seq], RunEntry::from_row).optional()? {
            let mut entry = checked(found)?;
            entry.row.name = Some(name.to_owned());
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn look_up(
    conn: &Connection,
    found: Option<(RunEntry, Seal)>,
    wanted: impl Fn(&RunEntry) -> bool,
) -> Result<Option<RunEntry>, Flaw> {
    if let Some(found) = found {
        let entry = checked(found)?;
        return if wanted(&entry) { Ok(Some(entry)) } else { Err(index_lies()) };
    }
    if all_runs(conn)?.iter().any(wanted) { Err(index_lies()) } else { Ok(None) }
}

fn index_lies() -> Flaw {
    Damage::Seal("an index of the runs").into()
}

pub(super) fn known_run(conn: &Connection, run: RunId) -> Result<RunEntry, Flaw> {
    let found = find_run(conn, run)?.filter(|entry| !entry.is_forgotten());
    found.ok_or_else(|| StoreError::UnknownRun { run }.into())
}

pub(super) fn insert_run(conn: &Connection, entry: &RunEntry) -> Result<(), Flaw> {
    let RunRow { run, name, key, active, created, head } = &entry.row;
    let sql = concat!(
        "INSERT INTO runs (",
        run_columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
    );
    conn.prepare_cached(sql)?.execute((
        entry.seq,
        run.0.as_bytes(),
        &key.0,
        active,
        created.0,
        head.position.0.cast_signed(),
        head.hash.as_bytes(),
        entry.leases,
        entry.seal(),
    ))?;
    if let Some(name) = name {
        conn.prepare_cached("INSERT INTO names (run, name, seal) VALUES (?1, ?2, ?3)")?
            .execute((entry.seq, name, name_seal(entry.seq, name)))?;
    }
    Ok(())
}

fn name_seal(seq: i64, name: &str) -> Seal {
    seal(&[&seq.to_le_bytes(), name.as_bytes()])
}

/// Writes a run's head and lease count back.
pub(super) fn update_head(conn: &Connection, entry: &RunEntry) -> Result<(), Flaw> {
    let head = entry.row.head;
    let changed = conn
        .prepare_cached(
            "UPDATE runs SET position = ?2, hash = ?3, leases = ?4, seal = ?5 WHERE seq = ?1",
        )?
        .execute((
            entry.seq,
            head.position.0.cast_signed(),
            head.hash.as_bytes(),
            entry.leases,
            entry.seal(),
        ))?;
    one_row(changed)
}

/// Takes the key away from a run. Apart from [`update_head`], because naming `active` in an update
/// rewrites the index of keys.
pub(super) fn free_key(conn: &Connection, entry: &mut RunEntry) -> Result<(), Flaw> {
    entry.row.active = false;
    let changed = conn
        .prepare_cached("UPDATE runs SET active = 0, seal = ?2 WHERE seq = ?1")?
        .execute((entry.seq, entry.seal()))?;
    one_row(changed)
}

/// Gives the key back to a run that had lost it; nobody else has it.
pub(super) fn retake_key(conn: &Connection, entry: &mut RunEntry) -> Result<(), Flaw> {
    entry.row.active = true;
    let changed = conn
        .prepare_cached("UPDATE runs SET active = 1, seal = ?2 WHERE seq = ?1")?
        .execute((entry.seq, entry.seal()))?;
    one_row(changed)
}

/// Removes everything of a run but its id.
pub(super) fn forget(conn: &Connection, entry: &mut RunEntry) -> Result<(), Flaw> {
    let ends = [Position::START, Position(u64::from(u32::MAX))].map(|at| entry.event_id(at));
    let [first, last] = ends;
    conn.execute("DELETE FROM events WHERE id >= ?1 AND id <= ?2", [first?, last?])?;
    for table in ["leases", "names", "cache"] {
        conn.execute(&format!("DELETE FROM {table} WHERE run = ?1"), [entry.seq])?;
    }
    entry.row.key = RunKey(String::new());
    entry.row.active = false;
    entry.row.head = Cursor::START;
    entry.leases = 0;
    let emptied = "UPDATE runs SET key = '', active = 0 WHERE seq = ?1";
    one_row(conn.execute(emptied, [entry.seq])?)?;
    update_head(conn, entry)
}

fn one_row(changed: usize) -> Result<(), Flaw> {
    if changed == 1 { Ok(()) } else { Err(Damage::Seal("a run's row").into()) }
}

/// The records after a cursor, verified link by link up to the head the run's row keeps.
pub(super) fn records_after(
    conn: &Connection,
    entry: &RunEntry,
    after: Cursor,
) -> Result<Vec<Record>, Flaw> {
    let run = entry.row.run;
    if after == entry.row.head {
        return Ok(Vec::new());
    }
    if after.position > entry.row.head.position {
        return Err(StoreError::CursorNotInChain { run, position: after.position }.into());
    }
    let mut select = conn.prepare_cached(
        "SELECT id, at, body, hash FROM events WHERE id > ?1 AND id <= ?2 ORDER BY id",
    )?;
    let base = entry.event_id(Position::START)?;
    let from = entry.event_id(after.position)?;
    let mut rows = select.query([from, entry.event_id(Position(u64::from(u32::MAX)))?])?;
    let mut records = Vec::new();
    let mut previous = after;
    while let Some(row) = rows.next()? {
        let record = Record {
            position: Position((row.get::<_, i64>(0)? - base).cast_unsigned()),
            at: Millis(row.get(1)?),
            body: row.get(2)?,
            hash: Hash::from_bytes(row.get(3)?),
        };
        if !record.follows(run, previous) {
            return Err(broken(conn, entry, after, previous));
        }
        previous = record.cursor();
        records.push(record);
    }
    if previous != entry.row.head {
        return Err(broken(conn, entry, after, previous));
    }
    Ok(records)
}

/// The chain does not go on from `previous`: the cursor was never in it, or it is damaged.
fn broken(conn: &Connection, entry: &RunEntry, after: Cursor, previous: Cursor) -> Flaw {
    let run = entry.row.run;
    if previous == after {
        match hash_at(conn, entry, after.position) {
            Ok(Some(hash)) if hash == after.hash => {}
            Ok(_) => {
                return StoreError::CursorNotInChain { run, position: after.position }.into();
            }
            Err(flaw) => return flaw,
        }
    }
    Damage::Chain { run, position: previous.position.next() }.into()
}

/// The chain's hash at a position, as kept.
pub(super) fn hash_at(
    conn: &Connection,
    entry: &RunEntry,
    position: Position,
) -> Result<Option<Hash>, Flaw> {
    if position == Position::START {
        return Ok(Some(Hash::ZERO));
    }
    if position > entry.row.head.position {
        return Ok(None);
    }
    let hash = conn
        .prepare_cached("SELECT hash FROM events WHERE id = ?1")?
        .query_row([entry.event_id(position)?], |row| row.get(0))
        .optional()?;
    Ok(hash.map(Hash::from_bytes))
}

/// Appends bodies after the entry's head and moves it.
pub(super) fn append(
    conn: &Connection,
    entry: &mut RunEntry,
    at: Millis,
    bodies: &[Vec<u8>],
) -> Result<Vec<Record>, Flaw> {
    let mut insert =
        conn.prepare_cached("INSERT INTO events (id, at, body, hash) VALUES (?1, ?2, ?3, ?4)")?;
    let mut records = Vec::with_capacity(bodies.len());
    for body in bodies {
        let record = Record::following(entry.row.run, entry.row.head, at, body.clone());
        let id = entry.event_id(record.position)?;
        insert.execute((id, record.at.0, &record.body, record.hash.as_bytes()))?;
        entry.row.head = record.cursor();
        records.push(record);
    }
    Ok(records)
}

/// A run's leases by key; the run's row says how many there are.
pub(super) fn leases_of(conn: &Connection, entry: &RunEntry) -> Result<Vec<Lease>, Flaw> {
    if entry.leases == 0 {
        return Ok(Vec::new());
    }
    // A range of one run: with `run = ?1` under an ORDER BY, SQLite compiles the statement anew each time
    // a value is bound.
    let mut select = conn.prepare_cached(
        "SELECT key, fence, wall, boot, clock, seal FROM leases
         WHERE run >= ?1 AND run <= ?1 ORDER BY run, key",
    )?;
    let mut leases: Vec<Lease> = Vec::new();
    for found in select.query_map([entry.seq], lease_from_row)? {
        let (lease, seal) = found?;
        if lease_seal(entry.seq, &lease) != seal {
            return Err(Damage::Seal("a lease").into());
        }
        if leases.last().is_some_and(|last| last.key >= lease.key) {
            return Err(Damage::Seal("the order of leases").into());
        }
        leases.push(lease);
    }
    if i64::try_from(leases.len()) != Ok(entry.leases) {
        return Err(Damage::Seal("the number of leases").into());
    }
    Ok(leases)
}

/// One lease; a missing one is only believed after a look at all of them.
pub(super) fn find_lease(
    conn: &Connection,
    entry: &RunEntry,
    key: &str,
) -> Result<Option<Lease>, Flaw> {
    let found = conn
        .prepare_cached(
            "SELECT key, fence, wall, boot, clock, seal FROM leases WHERE run = ?1 AND key = ?2",
        )?
        .query_row((entry.seq, key), lease_from_row)
        .optional()?;
    match found {
        Some((lease, seal)) if lease.key == key && lease_seal(entry.seq, &lease) == seal => {
            Ok(Some(lease))
        }
        Some(_) => Err(Damage::Seal("a lease").into()),
        None if leases_of(conn, entry)?.iter().any(|lease| lease.key == key) => {
            Err(Damage::Seal("an index of the leases").into())
        }
        None => Ok(None),
    }
}

/// Sets a lease; one that is over at `now` goes. Counts on the entry, which the caller writes back.
pub(super) fn set_lease(
    conn: &Connection,
    entry: &mut RunEntry,
    lease: &Lease,
    now: &Moment,
) -> Result<(), Flaw> {
    let there = find_lease(conn, entry, &lease.key)?.is_some();
    if lease.until.is_over(now) {
        if there {
            conn.prepare_cached("DELETE FROM leases WHERE run = ?1 AND key = ?2")?
                .execute((entry.seq, &lease.key))?;
            entry.leases -= 1;
        }
        return Ok(());
    }
    write_lease(conn, entry, lease)?;
    entry.leases += i64::from(!there);
    Ok(())
}

pub(super) fn write_lease(conn: &Connection, entry: &RunEntry, lease: &Lease) -> Result<(), Flaw> {
    let clock = lease.until.clock.as_ref();
    conn.prepare_cached(
        "INSERT OR REPLACE INTO leases (run, key, fence, wall, boot, clock, seal)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute((
        entry.seq,
        &lease.key,
        lease.fence.0.cast_signed(),
        lease.until.wall.0,
        clock.map(|clock| &clock.boot.0),
        clock.map(|clock| clock.ms),
        lease_seal(entry.seq, lease),
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
pub(super) fn keep_text(conn: &Connection, text: &[u8]) -> Result<(), Flaw> {
    conn.prepare_cached("INSERT OR IGNORE INTO texts (hash, bytes) VALUES (?1, ?2)")?
        .execute((Hash::of(text).as_bytes(), text))?;
    Ok(())
}

pub(super) fn text(conn: &Connection, hash: Hash) -> Result<Vec<u8>, Flaw> {
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

/// Keeps what spares a fold of the run, in place of what was kept under the name.
pub(super) fn keep_cached(
    conn: &Connection,
    entry: &RunEntry,
    name: &str,
    bytes: &[u8],
) -> Result<(), Flaw> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO cache (run, name, bytes, seal) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute((entry.seq, name, bytes, cache_seal(entry, name, bytes)))?;
    Ok(())
}

/// What was kept so; nothing where it is not what it was.
pub(super) fn cached(
    conn: &Connection,
    entry: &RunEntry,
    name: &str,
) -> Result<Option<Vec<u8>>, Flaw> {
    let found: Option<(Vec<u8>, Seal)> = conn
        .prepare_cached("SELECT bytes, seal FROM cache WHERE run = ?1 AND name = ?2")?
        .query_row((entry.seq, name), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found.filter(|(bytes, seal)| cache_seal(entry, name, bytes) == *seal).map(|found| found.0))
}

fn cache_seal(entry: &RunEntry, name: &str, bytes: &[u8]) -> Seal {
    seal(&[entry.row.run.0.as_bytes(), name.as_bytes(), bytes])
}

/// The names of all texts.
pub(super) fn all_texts(conn: &Connection) -> Result<Vec<Hash>, Flaw> {
    let mut select = conn.prepare("SELECT hash FROM texts")?;
    let hashes = select.query_map([], |row| Ok(Hash::from_bytes(row.get(0)?)))?;
    Ok(hashes.collect::<Result<_, _>>()?)
}

/// What SQLite itself finds wrong with its trees.
pub(super) fn quick_check(conn: &Connection) -> Result<Vec<String>, Flaw> {
    let mut check = conn.prepare("PRAGMA quick_check(20)")?;
    let lines = check.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}
