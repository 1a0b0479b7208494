//! The embedded store: one SQLite database in a folder, one host, no set-up. Owns how bytes get to
//! disk and back unchanged; what they mean it refuses to know.
//!
//! Reading order: this file, `home` (the folder), `header` (the raw file), `open`, `schema`, `rows`,
//! `run_cache_file`, `lock`, `sidecar`, `sql_error`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use piton_core::decided::{Decided, KeyChange, Lease};
use piton_core::ids::{Fence, Hash, Position, RunId, StoreId};
use piton_core::record::{Cursor, Record};
use piton_core::time::Moment;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::clock::HostClock;
use crate::{Created, Damage, Forgetting, NewRun, Renewal, RunRow, Runs, Store, StoreError, Tail};
use home::Home;
use lock::{PATIENCE, WriteLock};
use open::Link;
use rows::{LogHead, RunEntry};
use schema::Meta;
use sidecar::Sidecar;
use sql_error::{BUSY_TIMEOUT, SqlError};

mod header;
mod home;
mod lock;
mod open;
mod rows;
mod run_cache_file;
mod schema;
mod sidecar;
mod sql_error;

/// How often a waiting reader asks whether anything was committed.
const POLL: Duration = Duration::from_millis(25);
/// Frames in the write-ahead log (4 KiB each) from which tidying moves them into the database: the first
/// process to open the database reads the log again, so it must stay small.
const WAL_FRAMES: i64 = 128;

/// A handle that committed no more than this belongs to a verb. What is known of the log ends with it, if
/// no other process has the database open: only an empty log is begun again by the next one.
const FEW_COMMITS: u64 = 2;

/// Commits of a handle after which tidying looks again how long the log is.
const LOOK_AFTER: u64 = 16;

/// What the caller wants to do with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Write to it; make it if it was never there.
    Create,
    /// Write to it.
    Existing,
    /// Read it without writing anything anywhere near it.
    Look,
}

/// A store in `store.db` of a folder.
#[derive(Debug)]
pub struct SqliteStore {
    id: StoreId,
    home: Home,
    clock: HostClock,
    /// `None` when opened for looking.
    writer: Option<Writer>,
    patience: Duration,
    link: Mutex<Link>,
    /// The numbers of runs that were seen: a run never has another.
    numbers: Mutex<BTreeMap<RunId, i64>>,
    /// Commits of this handle: the data version SQLite shows does not count them.
    commits: AtomicU64,
    /// How many there were when it last looked how long the log is.
    looked: AtomicU64,
}

/// What a handle that writes has beside its connection.
#[derive(Debug)]
struct Writer {
    lock: WriteLock,
    sidecar: Sidecar,
}

impl SqliteStore {
    pub fn open(dir: &Path, access: Access) -> Result<SqliteStore, StoreError> {
        schema::check_engine()?;
        let clock = HostClock::new()?;
        let home = Home::new(dir)?;
        let there = home.check(access)?;
        if access != Access::Create && !there {
            return Err(StoreError::Missing { path: home.db });
        }
        let (writer, link) = if access == Access::Look {
            (None, open::look(&home)?)
        } else {
            let lock = WriteLock::open(home.lock.clone())?;
            if !there {
                ensure(&home, &lock)?;
            }
            let link = open::write(&home)?;
            let sidecar = Sidecar::open(&home, link.store)?;
            (Some(Writer { lock, sidecar }), link)
        };
        Ok(SqliteStore {
            id: link.store,
            home,
            clock,
            writer,
            patience: PATIENCE,
            link: Mutex::new(link),
            numbers: Mutex::default(),
            commits: AtomicU64::new(0),
            looked: AtomicU64::new(0),
        })
    }

    /// Sets how long a write waits for its turn before it fails as busy.
    pub fn with_patience(mut self, patience: Duration) -> SqliteStore {
        self.patience = patience;
        self
    }

    /// Sets the clock of this handle, as [`MemStore::set_now`](crate::mem::MemStore::set_now) does: the
    /// same history can then be played on both.
    #[cfg(feature = "conformance")]
    pub fn set_now(&self, now: Moment) {
        self.clock.set(now);
    }

    /// Reads everything there is and says all that is wrong with it: one damaged run does not hide the
    /// others.
    pub fn examine(&self) -> Result<Vec<StoreError>, StoreError> {
        let named = |damage| StoreError::Damaged { path: self.home.db.clone(), damage };
        let complaints = self.reading(rows::quick_check)?;
        let mut wrong: Vec<StoreError> =
            complaints.into_iter().map(Damage::Sqlite).map(named).collect();
        match self.runs(&Runs::All) {
            Ok(rows) => {
                for row in rows {
                    wrong.extend(self.read(row.run, Cursor::START).err());
                }
            }
            Err(error) => wrong.push(error),
        }
        for hash in self.reading(rows::all_texts)? {
            wrong.extend(self.text(hash).err());
        }
        Ok(wrong)
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        // A panicking decision rolled its transaction back on the way out: the link is good.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a query on one snapshot of the database.
    fn reading<T>(
        &self,
        query: impl Fn(&Connection) -> Result<T, SqlError>,
    ) -> Result<T, StoreError> {
        let mut link = self.link();
        if link.is_stale(&self.home) {
            *link = open::look(&self.home)?;
        }
        match snapshot(&link.conn, &query) {
            Err(error) if self.writer.is_none() && link.is_in_place() && error.needs_a_copy() => {
                *link = open::look_at_copy(&self.home)?;
                snapshot(&link.conn, &query)
            }
            answer => answer,
        }
        .map_err(|error| error.named(&self.home.db))
    }

    /// Runs a change in one immediate transaction, in this writer's turn. It is durable on return. A log
    /// that has grown is answered with its head, for the sidecar.
    fn writing<T>(
        &self,
        change: impl FnOnce(&Connection) -> Result<(T, Option<LogHead>), SqlError>,
    ) -> Result<T, StoreError> {
        let Writer { lock, sidecar } = self.writer.as_ref().ok_or(StoreError::LookOnly)?;
        let _turn = lock.take(self.patience)?;
        let link = self.link();
        let committed = commit(&link.conn, change);
        let (answer, newest) = committed.map_err(|error| error.named(&self.home.db))?;
        self.commits.fetch_add(1, Ordering::Release);
        if let Some(newest) = newest {
            sidecar.remember(&newest);
        }
        Ok(answer)
    }

    /// A run's log, of which nothing but its number is known yet.
    fn log(&self, conn: &Connection, run: RunId) -> Result<LogHead, SqlError> {
        let mut numbers = self.numbers();
        let seq = match numbers.get(&run) {
            Some(seq) => *seq,
            None => rows::known_run(conn, run)?.log.seq,
        };
        numbers.insert(run, seq);
        Ok(LogHead::new(run, seq))
    }

    fn numbers(&self) -> MutexGuard<'_, BTreeMap<RunId, i64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn head(&self, run: RunId) -> Result<Position, StoreError> {
        Ok(self.reading(|conn| rows::present(conn, self.log(conn, run)?))?.head.position)
    }

    /// A number that is different after anybody's commit.
    fn version(&self) -> Result<(i64, u64), StoreError> {
        let link = self.link();
        let data = if link.is_stale(&self.home) {
            -1
        } else {
            let named = |error| SqlError::from(error).named(&self.home.db);
            let mut ask = link.conn.prepare_cached("PRAGMA data_version").map_err(named)?;
            ask.query_row([], |row| row.get(0)).map_err(named)?
        };
        Ok((data, self.commits.load(Ordering::Acquire)))
    }
}

/// Makes the database that was not there.
fn ensure(home: &Home, lock: &WriteLock) -> Result<(), StoreError> {
    let _turn = lock.take(PATIENCE)?;
    // Asked again, now that no other process can be making it.
    if home.has_database()? { Ok(()) } else { open::create(home) }
}

fn snapshot<T>(
    conn: &Connection,
    query: &impl Fn(&Connection) -> Result<T, SqlError>,
) -> Result<T, SqlError> {
    // Deferred, because it only reads: it never becomes a write.
    let _open = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
    query(conn)
}

fn commit<T>(
    conn: &Connection,
    change: impl FnOnce(&Connection) -> Result<T, SqlError>,
) -> Result<T, SqlError> {
    let open = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    let answer = change(conn)?;
    open.commit()?;
    Ok(answer)
}

/// Keeps a batch at the end of a run's log, whose head is written back as it is then.
fn keep(
    conn: &Connection,
    log: &mut LogHead,
    batch: &Decided,
    now: &Moment,
) -> Result<Vec<Record>, SqlError> {
    for text in batch.texts() {
        rows::keep_text(conn, text)?;
    }
    let records = rows::append(conn, log, now.wall, batch.bodies())?;
    for lease in batch.leases() {
        rows::set_lease(conn, log, lease, now)?;
    }
    rows::write_head(conn, log)?;
    match batch.key() {
        KeyChange::Kept => {}
        KeyChange::Freed => free_key(conn, &mut rows::known_run(conn, log.run)?)?,
        KeyChange::Retaken => retake_key(conn, &mut rows::known_run(conn, log.run)?)?,
    }
    Ok(records)
}

fn free_key(conn: &Connection, entry: &mut RunEntry) -> Result<(), SqlError> {
    if entry.active { rows::set_active(conn, entry, false) } else { Ok(()) }
}

fn retake_key(conn: &Connection, entry: &mut RunEntry) -> Result<(), SqlError> {
    if entry.active {
        return Ok(());
    }
    match rows::find_holder(conn, &entry.key)? {
        Some(holder) => Err(StoreError::KeyHeld { run: holder.log.run }.into()),
        None => rows::set_active(conn, entry, true),
    }
}

fn create(
    conn: &Connection,
    new: &NewRun,
    first: &Decided,
    now: &Moment,
) -> Result<(Created, Option<LogHead>), SqlError> {
    if rows::find_run(conn, new.run)?.is_some() {
        return Err(StoreError::RunExists { run: new.run }.into());
    }
    if let Some(mut holder) = rows::find_holder(conn, &new.key)? {
        if new.replaces != Some(holder.log.run) {
            return Ok((Created::KeyHeldBy(holder.log.run), None));
        }
        free_key(conn, &mut holder)?;
    }
    let seq = Meta::load(conn)?.count_run(conn)?;
    let mut entry = RunEntry {
        log: LogHead::new(new.run, seq),
        name: new.name.clone(),
        key: new.key.clone(),
        active: true,
        created: now.wall,
    };
    rows::insert_run(conn, &entry)?;
    let records = keep(conn, &mut entry.log, first, now)?;
    Ok((Created::New(records), Some(entry.log)))
}

impl Store for SqliteStore {
    fn id(&self) -> StoreId {
        self.id
    }

    fn now(&self) -> Result<Moment, StoreError> {
        Ok(self.clock.now())
    }

    fn create_run(&self, new: &NewRun, first: &Decided) -> Result<Created, StoreError> {
        self.writing(|conn| create(conn, new, first, &self.clock.now()))
    }

    fn runs(&self, filter: &Runs) -> Result<Vec<RunRow>, StoreError> {
        let entries = self.reading(|conn| match filter {
            Runs::HoldingKey(key) => Ok(rows::find_holder(conn, key)?.into_iter().collect()),
            Runs::Named(name) => rows::find_named(conn, name),
            Runs::All | Runs::Active => {
                let wanted = |entry: &RunEntry| *filter == Runs::All || entry.active;
                let runs = rows::all_runs(conn)?.into_iter().filter(wanted);
                runs.map(|entry| rows::with_head(conn, entry)).collect()
            }
        })?;
        let known: Vec<RunEntry> =
            entries.into_iter().filter(|entry| !entry.is_forgotten()).collect();
        self.numbers().extend(known.iter().map(|entry| (entry.log.run, entry.log.seq)));
        Ok(known.into_iter().map(RunEntry::into_row).collect())
    }

    fn read(&self, run: RunId, after: Cursor) -> Result<Vec<Record>, StoreError> {
        self.reading(|conn| Ok(rows::records_after(conn, self.log(conn, run)?, after)?.1))
    }

    fn transact(
        &self,
        run: RunId,
        after: Cursor,
        decide: &mut dyn FnMut(Tail<'_>) -> Option<Decided>,
    ) -> Result<Vec<Record>, StoreError> {
        self.writing(|conn| {
            let (mut log, mut records) = rows::records_after(conn, self.log(conn, run)?, after)?;
            let leases = rows::leases_of(conn, &log)?;
            let now = self.clock.now();
            let Some(batch) = decide(Tail { records: &records, leases: &leases, now: &now }) else {
                return Ok((records, None));
            };
            records.extend(keep(conn, &mut log, &batch, &now)?);
            Ok((records, Some(log)))
        })
    }

    fn renew(
        &self,
        run: RunId,
        key: &str,
        fence: Fence,
        until: &Moment,
    ) -> Result<Renewal, StoreError> {
        self.writing(|conn| {
            let log = self.log(conn, run)?;
            let mut leases = rows::leases_of(conn, &log)?.into_iter();
            match leases.find(|lease| lease.key == key) {
                Some(mut lease) if lease.fence == fence && until.is_later_than(&lease.until) => {
                    lease.until = until.clone();
                    rows::write_lease(conn, &log, &lease)?;
                    Ok((Renewal::Renewed, None))
                }
                _ => Ok((Renewal::NotRenewed, None)),
            }
        })
    }

    fn leases(&self, run: RunId) -> Result<Vec<Lease>, StoreError> {
        self.reading(|conn| rows::leases_of(conn, &rows::present(conn, self.log(conn, run)?)?))
    }

    fn text(&self, hash: Hash) -> Result<Vec<u8>, StoreError> {
        self.reading(|conn| rows::text(conn, hash))
    }

    fn cached(&self, run: RunId) -> Option<Vec<u8>> {
        run_cache_file::read(&self.home, run)
    }

    fn cache(&self, run: RunId, bytes: &[u8]) {
        if self.writer.is_some() {
            let _in_vain = run_cache_file::replace(&self.home, run, bytes);
        }
    }

    fn forget(&self, run: RunId, head: Cursor) -> Result<Forgetting, StoreError> {
        let answer = self.writing(|conn| {
            let mut entry = rows::known_run(conn, run)?;
            if entry.log.head != head {
                return Ok((Forgetting::NotForgotten, None));
            }
            rows::forget(conn, &mut entry)?;
            Ok((Forgetting::Forgotten, None))
        })?;
        // Also those that a killed process has not removed.
        let known = self.runs(&Runs::All)?;
        run_cache_file::remove_strays(&self.home, |run| known.iter().any(|row| row.run == run));
        Ok(answer)
    }

    fn changed(&self, run: RunId, after: Position, timeout: Duration) -> Result<bool, StoreError> {
        if timeout.is_zero() {
            return Ok(self.head(run)? > after);
        }
        let begun = Instant::now();
        // Asked before the head: a commit between the two is then seen as a change.
        let mut seen = self.version()?;
        let mut head = self.head(run)?;
        while head <= after {
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            thread::sleep(left.min(POLL));
            let version = self.version()?;
            if version != seen {
                seen = version;
                head = self.head(run)?;
            }
        }
        Ok(true)
    }

    fn tidy(&self) {
        let commits = self.commits.load(Ordering::Acquire);
        let since = commits - self.looked.load(Ordering::Acquire);
        if since == 0 || (commits > FEW_COMMITS && since < LOOK_AFTER) {
            return;
        }
        self.looked.store(commits, Ordering::Release);
        let link = self.link();
        // No answer waits for this and the next verb tries again, so failures are not reported.
        if backlog(&link.conn).is_ok_and(|frames| frames >= WAL_FRAMES) {
            let how = if commits <= FEW_COMMITS { "TRUNCATE" } else { "PASSIVE" };
            checkpoint(&link.conn, how);
        }
    }
}

/// Frames of the write-ahead log that are not in the database yet.
fn backlog(conn: &Connection) -> rusqlite::Result<i64> {
    // The log is only known to a connection that has read something.
    conn.prepare_cached("SELECT runs FROM meta")?.query_row([], |_| Ok(()))?;
    conn.prepare_cached("PRAGMA wal_checkpoint(NOOP)")?
        .query_row([], |row| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?))
}

/// Moves frames into the database, as many as other processes are not in the way of. Failing loses
/// nothing: the log is still there.
fn checkpoint(conn: &Connection, how: &str) {
    let _ = conn.busy_timeout(Duration::ZERO);
    let _ = conn.query_row(&format!("PRAGMA wal_checkpoint({how})"), [], |_| Ok(()));
    let _ = conn.busy_timeout(BUSY_TIMEOUT);
}
