//! The tables, and the one row that says which store this is. Every row that could hide another if a bit
//! flipped carries a seal, and the runs are counted.

use piton_core::ids::StoreId;
use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

use super::sql_error::SqlError;
use crate::{Damage, StoreError};

/// `pitn`, in the header of the database file.
pub(super) const APPLICATION_ID: i32 = 0x7069_746e;

/// The oldest engine that cannot lose committed pages when one process writes while another
/// checkpoints.
const ENGINE_MIN: (i32, &str) = (3_051_003, "3.51.3");

/// `events.id` is the run's number in the upper and the position in the lower half: one tree holds every
/// log in order and an append touches one leaf of it. The head of a log is the last row of its half.
const TABLES: &str = "
    CREATE TABLE meta (
        only INTEGER PRIMARY KEY CHECK (only = 1), store BLOB NOT NULL, schema BLOB NOT NULL,
        runs INTEGER NOT NULL, seal BLOB NOT NULL) STRICT;
    CREATE TABLE runs (
        seq INTEGER PRIMARY KEY, run BLOB NOT NULL UNIQUE, name TEXT NOT NULL, key TEXT NOT NULL,
        active INTEGER NOT NULL, created INTEGER NOT NULL, seal BLOB NOT NULL) STRICT;
    CREATE UNIQUE INDEX active_key ON runs (key) WHERE active = 1;
    CREATE INDEX by_name ON runs (name);
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, at INTEGER NOT NULL, body BLOB NOT NULL,
        hash BLOB NOT NULL) STRICT;
    CREATE TABLE leases (
        run INTEGER NOT NULL, key TEXT NOT NULL, fence INTEGER NOT NULL, wall INTEGER NOT NULL,
        boot TEXT, clock INTEGER, seal BLOB NOT NULL,
        PRIMARY KEY (run, key)) STRICT, WITHOUT ROWID;
    CREATE TABLE texts (hash BLOB NOT NULL UNIQUE, bytes BLOB NOT NULL) STRICT;";

/// The version of the schema.
pub(super) const KNOWN: i64 = 1;

/// A checksum over length-prefixed fields; half of BLAKE3 is plenty against accidents.
pub(super) type Seal = [u8; 16];

pub(super) fn seal(fields: &[&[u8]]) -> Seal {
    let room = fields.iter().map(|field| size_of::<u64>() + field.len()).sum();
    let mut bytes = Vec::with_capacity(room);
    for field in fields {
        bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
        bytes.extend_from_slice(field);
    }
    // At once: for so few bytes that is much the quickest way.
    let hash = blake3::hash(&bytes);
    std::array::from_fn(|at| hash.as_bytes()[at])
}

/// Which store this is, and how many runs it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    pub(super) store: StoreId,
    pub(super) runs: i64,
    schema: Seal,
}

impl Meta {
    pub(super) fn load(conn: &Connection) -> Result<Meta, SqlError> {
        let mut select =
            conn.prepare_cached("SELECT store, runs, schema, seal FROM meta WHERE only = 1")?;
        let found = select
            .query_row([], |row| {
                let meta = Meta {
                    store: StoreId(Uuid::from_bytes(row.get(0)?)),
                    runs: row.get(1)?,
                    schema: row.get(2)?,
                };
                Ok((meta, row.get::<_, Seal>(3)?))
            })
            .optional()?;
        match found {
            Some((meta, seal)) if meta.seal() == seal => Ok(meta),
            _ => Err(Damage::Seal("the store's own row").into()),
        }
    }

    /// Adds one to the number of runs and returns it.
    pub(super) fn count_run(mut self, conn: &Connection) -> Result<i64, SqlError> {
        self.runs += 1;
        conn.prepare_cached("UPDATE meta SET runs = ?1, seal = ?2 WHERE only = 1")?
            .execute((self.runs, self.seal()))?;
        Ok(self.runs)
    }

    fn seal(&self) -> Seal {
        seal(&[self.store.0.as_bytes(), &self.runs.to_le_bytes(), &self.schema])
    }
}

/// Refuses an engine with known ways to lose data.
pub(super) fn check_engine() -> Result<(), StoreError> {
    let (number, needed) = ENGINE_MIN;
    if rusqlite::version_number() < number {
        let found = rusqlite::version().to_owned();
        return Err(StoreError::EngineTooOld { found, needed });
    }
    Ok(())
}

/// Marks an empty database as ours and gives it a store's identity.
pub(super) fn lay_out(conn: &mut Connection) -> Result<(), SqlError> {
    conn.pragma_update(None, "application_id", APPLICATION_ID)?;
    let tx = conn.transaction()?;
    tx.execute_batch(TABLES)?;
    tx.pragma_update(None, "user_version", KNOWN)?;
    let meta = Meta { store: StoreId(Uuid::now_v7()), runs: 0, schema: shape(&tx)? };
    tx.execute(
        "INSERT INTO meta (only, store, runs, schema, seal) VALUES (1, ?1, ?2, ?3, ?4)",
        (meta.store.0.as_bytes(), meta.runs, meta.schema, meta.seal()),
    )?;
    tx.commit()?;
    Ok(())
}

/// Checks that a database of ours is as this piton would have made it, and says which store it is.
pub(super) fn recognise(conn: &Connection) -> Result<Meta, SqlError> {
    let version = conn.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))?;
    if version > KNOWN {
        return Err(Damage::Newer { found: version, known: KNOWN }.into());
    }
    let meta = Meta::load(conn)?;
    if version != KNOWN || meta.schema != shape(conn)? {
        return Err(Damage::Seal("the schema").into());
    }
    Ok(meta)
}

/// A checksum of the schema as SQLite keeps it, roots of the trees included: a flipped bit there could
/// make one table read as another.
fn shape(conn: &Connection) -> Result<Seal, SqlError> {
    let mut select = conn
        .prepare("SELECT concat_ws(' ', type, name, tbl_name, rootpage, sql) FROM sqlite_schema")?;
    let found = select.query_map([], |row| row.get(0))?;
    let rows = found.collect::<Result<Vec<String>, _>>()?;
    Ok(seal(&rows.iter().map(String::as_bytes).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid_out() -> Connection {
        let mut conn = Connection::open_in_memory().expect("memory");
        lay_out(&mut conn).expect("an empty database takes the schema");
        conn
    }

    #[test]
    fn a_changed_schema_is_not_recognised() {
        let conn = laid_out();
        conn.execute_batch("CREATE INDEX extra ON events (at)").expect("an index");
        assert!(matches!(recognise(&conn), Err(SqlError::Damage(Damage::Seal("the schema")))));
    }
}
