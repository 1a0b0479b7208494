//! The tables, how a database gets to them, and the one row that says which store this is. Every row
//! that could hide another if a bit flipped carries a seal, and the runs are counted.

use piton_core::ids::StoreId;
use rusqlite::{Connection, OptionalExtension, Transaction};
use uuid::Uuid;

use super::flaw::Flaw;
use super::rows;
use crate::{Damage, StoreError};

/// `pitn`, in the header of the database file.
pub(super) const APPLICATION_ID: i32 = 0x7069_746e;

/// The oldest engine that cannot lose committed pages when one process writes while another
/// checkpoints.
const ENGINE_MIN: (i32, &str) = (3_051_003, "3.51.3");

/// One step from a schema to the next.
enum Migration {
    Tables(&'static str),
    /// What no statement can do, because seals change with it.
    Rows(fn(&Connection) -> Result<(), Flaw>),
}

/// Version n of the schema is what the first n of these leave behind. Append only.
const MIGRATIONS: &[Migration] = &[
    // `events.id` is the run's number in the upper and the position in the lower half: one tree holds
    // every log in order and an append touches one leaf of it.
    Migration::Tables(
        "CREATE TABLE meta (
        only INTEGER PRIMARY KEY CHECK (only = 1), store BLOB NOT NULL, version INTEGER NOT NULL,
        schema BLOB NOT NULL, runs INTEGER NOT NULL, seal BLOB NOT NULL) STRICT;
    CREATE TABLE runs (
        seq INTEGER PRIMARY KEY, run BLOB NOT NULL UNIQUE, key TEXT NOT NULL,
        active INTEGER NOT NULL, created INTEGER NOT NULL, position INTEGER NOT NULL,
        hash BLOB NOT NULL, leases INTEGER NOT NULL, seal BLOB NOT NULL) STRICT;
    CREATE UNIQUE INDEX active_key ON runs (key) WHERE active = 1;
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, at INTEGER NOT NULL, body BLOB NOT NULL,
        hash BLOB NOT NULL) STRICT;
    CREATE TABLE leases (
        run INTEGER NOT NULL, key TEXT NOT NULL, fence INTEGER NOT NULL, wall INTEGER NOT NULL,
        boot TEXT, clock INTEGER, seal BLOB NOT NULL,
        PRIMARY KEY (run, key)) STRICT, WITHOUT ROWID;
    CREATE TABLE texts (hash BLOB NOT NULL UNIQUE, bytes BLOB NOT NULL) STRICT;",
    ),
    // What finds and folds a run faster. Losing any of it loses nothing else, so that rows of runs are
    // not touched.
    Migration::Tables(
        "CREATE TABLE names (run INTEGER PRIMARY KEY, name TEXT NOT NULL, seal BLOB NOT NULL) STRICT;
    CREATE INDEX by_name ON names (name);
    CREATE TABLE cache (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, name TEXT NOT NULL, seal BLOB NOT NULL,
        bytes BLOB NOT NULL, UNIQUE (run, name)) STRICT;",
    ),
    // An append then writes one page and not two.
    Migration::Rows(rows::move_heads),
];

/// The schema this piton writes.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

/// A checksum over length-prefixed fields; half of BLAKE3 is plenty against accidents.
pub(super) type Seal = [u8; 16];

pub(super) fn seal(fields: &[&[u8]]) -> Seal {
    let room = fields.iter().map(|field| size_of::<u64>() + field.len()).sum();
    let mut sealing = Sealing(Vec::with_capacity(room));
    fields.iter().for_each(|field| sealing.field(field));
    sealing.done()
}

/// The same, field by field. Hashed at once in the end: for so few bytes that is much the quickest way.
#[derive(Default)]
struct Sealing(Vec<u8>);

impl Sealing {
    fn field(&mut self, field: &[u8]) {
        self.0.extend_from_slice(&(field.len() as u64).to_le_bytes());
        self.0.extend_from_slice(field);
    }

    fn done(self) -> Seal {
        let hash = blake3::hash(&self.0);
        std::array::from_fn(|at| hash.as_bytes()[at])
    }
}

/// Which store this is, and how many runs it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    pub(super) store: StoreId,
    pub(super) runs: i64,
    version: i64,
    schema: Seal,
}

impl Meta {
    pub(super) fn load(conn: &Connection) -> Result<Meta, Flaw> {
        let mut select = conn
            .prepare_cached("SELECT store, runs, version, schema, seal FROM meta WHERE only = 1")?;
        let found = select
            .query_row([], |row| {
                let meta = Meta {
                    store: StoreId(Uuid::from_bytes(row.get(0)?)),
                    runs: row.get(1)?,
                    version: row.get(2)?,
                    schema: row.get(3)?,
                };
                Ok((meta, row.get::<_, Seal>(4)?))
            })
            .optional()?;
        match found {
            Some((meta, seal)) if meta.seal() == seal => Ok(meta),
            _ => Err(Damage::Seal("the store's own row").into()),
        }
    }

    /// Adds one to the number of runs and returns it.
    pub(super) fn count_run(mut self, conn: &Connection) -> Result<i64, Flaw> {
        self.runs += 1;
        conn.prepare_cached("UPDATE meta SET runs = ?1, seal = ?2 WHERE only = 1")?
            .execute((self.runs, self.seal()))?;
        Ok(self.runs)
    }

    fn seal(&self) -> Seal {
        let numbers = [self.runs.to_le_bytes(), self.version.to_le_bytes()];
        seal(&[self.store.0.as_bytes(), &numbers[0], &numbers[1], &self.schema])
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
pub(super) fn lay_out(conn: &mut Connection) -> Result<(), Flaw> {
    conn.pragma_update(None, "application_id", APPLICATION_ID)?;
    apply(conn, Some(StoreId(Uuid::now_v7())))
}

/// Brings an older database up to this piton's schema. The caller holds the write lock.
pub(super) fn migrate(conn: &mut Connection) -> Result<(), Flaw> {
    apply(conn, None)
}

fn apply(conn: &mut Connection, new: Option<StoreId>) -> Result<(), Flaw> {
    let tx = conn.transaction()?;
    // Read under the lock: another process may have migrated while this one waited.
    let found = version(&tx)?;
    let done = usize::try_from(found).map_err(|_| Damage::Foreign)?;
    for migration in MIGRATIONS.get(done..).unwrap_or_default() {
        match migration {
            Migration::Tables(statements) => tx.execute_batch(statements)?,
            Migration::Rows(moved) => moved(&tx)?,
        }
    }
    tx.pragma_update(None, "user_version", KNOWN)?;
    seal_meta(&tx, new)?;
    tx.commit()?;
    Ok(())
}

fn seal_meta(tx: &Transaction<'_>, new: Option<StoreId>) -> Result<(), Flaw> {
    let schema = shape(tx)?;
    let meta = match new {
        Some(store) => Meta { store, runs: 0, version: KNOWN, schema },
        None => Meta { version: KNOWN, schema, ..Meta::load(tx)? },
    };
    tx.execute(
        "INSERT OR REPLACE INTO meta (only, store, runs, version, schema, seal)
         VALUES (1, ?1, ?2, ?3, ?4, ?5)",
        (meta.store.0.as_bytes(), meta.runs, meta.version, meta.schema, meta.seal()),
    )?;
    Ok(())
}

pub(super) fn version(conn: &Connection) -> Result<i64, Flaw> {
    Ok(conn.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))?)
}

/// Checks that a database of ours is as this piton would have made it, and says which store it is.
pub(super) fn recognise(conn: &Connection) -> Result<Meta, Flaw> {
    let found = version(conn)?;
    if found > KNOWN {
        return Err(Damage::Newer { found, known: KNOWN }.into());
    }
    let meta = Meta::load(conn)?;
    if meta.version != found || meta.schema != shape(conn)? {
        return Err(Damage::Seal("the schema").into());
    }
    Ok(meta)
}

/// A checksum of the schema as SQLite keeps it, roots of the trees included: a flipped bit there could
/// make one table read as another.
fn shape(conn: &Connection) -> Result<Seal, Flaw> {
    let mut select =
        conn.prepare("SELECT type, name, tbl_name, rootpage, ifnull(sql, '') FROM sqlite_schema")?;
    let mut rows = select.query([])?;
    let mut sealing = Sealing::default();
    while let Some(row) = rows.next()? {
        for column in [0, 1, 2, 4] {
            sealing.field(row.get_ref(column)?.as_bytes().map_err(rusqlite::Error::from)?);
        }
        sealing.field(&row.get::<_, i64>(3)?.to_le_bytes());
    }
    Ok(sealing.done())
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
    fn a_database_is_recognised_after_it_was_laid_out_and_migrated_again() {
        let mut conn = laid_out();
        let meta = recognise(&conn).expect("it is ours");
        migrate(&mut conn).expect("nothing to do is fine");
        let again = recognise(&conn).expect("it is still ours");
        assert_eq!((again.store, again.runs), (meta.store, 0));
    }

    #[test]
    fn a_migration_that_fails_leaves_everything_as_it_was() {
        let mut conn = laid_out();
        // Says it is older than it is: the tables are in the way of the migration.
        conn.pragma_update(None, "user_version", 0).expect("a pragma");
        assert!(migrate(&mut conn).is_err());
        assert_eq!(version(&conn).expect("a version"), 0);
        assert!(matches!(recognise(&conn), Err(Flaw::Damage(Damage::Seal("the schema")))));
    }

    #[test]
    fn a_changed_schema_is_not_recognised() {
        let conn = laid_out();
        conn.execute_batch("CREATE INDEX extra ON events (at)").expect("an index");
        assert!(matches!(recognise(&conn), Err(Flaw::Damage(Damage::Seal("the schema")))));
    }
}
