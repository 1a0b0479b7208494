//! The embedded store: one SQLite database in a folder, one host, no set-up. Owns how bytes get to
//! disk and back unchanged; what they mean it refuses to know.
//!
//! Reading order: this file, `home` (the folder), `header` and `wal` (the raw files), `open`, `schema`,
//! `rows`, `run_cache_file`, `lock`, `sidecar`, `flaw`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use piton_core::decided::{Decided, KeyChange, Lease};
use piton_core::ids::{Fence, Hash, Position, RunId, StoreId};
use piton_core::record::{Cursor, Record};
use piton_core::time::Moment;
use rusqlite::Connection;

use crate::clock::HostClock;
use crate::{Created, Damage, Forgetting, NewRun, Renewal, RunRow, Runs, Store, StoreError, Tail};
use flaw::{BUSY_TIMEOUT, Flaw};
use home::Home;
use lock::{PATIENCE, WriteLock};
use open::Link;
use rows::{Log, RunEntry};
use schema::Meta;
use sidecar::Head;
use wal::Survey;

mod flaw;
mod header;
mod home;
mod lock;
mod open;
mod rows;
mod run_cache_file;
mod schema;
mod sidecar;
mod wal;

/// How often a waiting reader asks whether anything was committed.
const POLL: Duration = Duration::from_millis(25);
/// Frames in the write-ahead log (4 KiB each) from which tidying moves them into the database: every
/// start after a crash reads the log again, so it must stay small.
const WAL_FRAMES: i64 = 128;
/// From here on tidying also makes writers wait, because it evidently does not keep up with them.
const WAL_FRAMES_MAX: i64 = 16 * WAL_FRAMES;

/// Whoever committed no more than this has not made a short write-ahead log long.
const FEW_COMMITS: u64 = 2;

/// The same where nobody else has the database open. What is known of the log then ends with this
/// process: the next one reads it from its beginning, and never begins it anew.
const WAL_FRAMES_ALONE: u32 = 32;

/// Commits of this handle after which it looks again how long the log is.
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
    lock: Option<WriteLock>,
    patience: Duration,
    link: Mutex<Link>,
    /// The numbers of runs that were seen: a run never has another.
    numbers: Mutex<BTreeMap<RunId, i64>>,
    /// Commits of this handle: the data version SQLite shows does not count them.
    commits: AtomicU64,
    /// How many there were when it last looked how long the log is.
    looked: AtomicU64,
    /// Whether the next head goes into the sidecar because the log was begun anew: a log that is taken
    /// away later must be missed.
    remember: AtomicBool,
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
        let (lock, link) = if access == Access::Look {
            (None, open::look(&home)?)
        } else {
            let lock = WriteLock::open(home.lock.clone())?;
            let made = !there && ensure(&home, &lock)?;
            let link = open::write(&home, &lock)?;
            if made {
                let _turn = lock.take(PATIENCE)?;
                sidecar::replace(&home, link.store, None);
            }
            (Some(lock), link)
        };
        Ok(SqliteStore {
            id: link.store,
            home,
            clock,
            lock,
            patience: PATIENCE,
            remember: AtomicBool::new(link.log.is_young()),
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
                    wrong.extend(self.leases(row.run).err());
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
    fn reading<T>(&self, query: impl Fn(&Connection) -> Result<T, Flaw>) -> Result<T, StoreError> {
        let mut link = self.link();
        if link.is_stale(&self.home) {
            *link = open::look(&self.home)?;
        }
        match snapshot(&link.conn, &query) {
            Err(flaw) if self.lock.is_none() && link.is_in_place() && flaw.needs_a_copy() => {
                *link = open::look_at_copy(&self.home)?;
                snapshot(&link.conn, &query)
            }
            answer => answer,
        }
        .map_err(|flaw| flaw.named(&self.home.db))
    }

    /// Runs a change in one immediate transaction, in this writer's turn. It is durable on return,
    /// unless it answers that nothing was written.
    fn writing<T>(
        &self,
        change: impl FnOnce(&Connection) -> Result<Written<T>, Flaw>,
    ) -> Result<T, StoreError> {
        let lock = self.lock.as_ref().ok_or(StoreError::LookOnly)?;
        let turn = lock.take(self.patience)?;
        let link = self.link();
        let answer = commit(&link.conn, change).map_err(|flaw| flaw.named(&self.home.db))?;
        drop((link, turn));
        if let Written::Yes { remember, .. } = &answer {
            self.commits.fetch_add(1, Ordering::Release);
            if remember.is_some() {
                sidecar::replace(&self.home, self.id, *remember);
                self.checkpoint_if_forgotten();
            }
        }
        let (Written::Yes { answer, .. } | Written::No(answer)) = answer;
        Ok(answer)
    }

    /// Bounds the log when nobody tidies; looked at as seldom as the sidecar is replaced.
    fn checkpoint_if_forgotten(&self) {
        let link = self.link();
        if backlog(&link.conn).is_ok_and(|frames| frames >= WAL_FRAMES_MAX) {
            checkpoint(&link.conn);
        }
    }

    /// A run's log, of which nothing but its number is known yet.
    fn log(&self, conn: &Connection, run: RunId) -> Result<Log, Flaw> {
        let mut numbers = self.numbers();
        let seq = match numbers.get(&run) {
            Some(seq) => *seq,
            None => rows::known_run(conn, run)?.log.seq,
        };
        numbers.insert(run, seq);
        Ok(Log::new(run, seq))
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
            let flaw = |error| Flaw::from(error).named(&self.home.db);
            let mut ask = link.conn.prepare_cached("PRAGMA data_version").map_err(flaw)?;
            ask.query_row([], |row| row.get(0)).map_err(flaw)?
        };
        Ok((data, self.commits.load(Ordering::Acquire)))
    }
}

/// What a change did.
enum Written<T> {
    /// To be committed; perhaps with a head for the sidecar.
    Yes { answer: T, remember: Option<Head> },
    /// Nothing: to be rolled back.
    No(T),
}

/// Makes the database that was not there; says whether it did.
fn ensure(home: &Home, lock: &WriteLock) -> Result<bool, StoreError> {
    let _turn = lock.take(PATIENCE)?;
    // Asked again, now that nobody else can be making it.
    if home.has_database()? {
        return Ok(false);
    }
    open::create(home)?;
    Ok(true)
}

fn snapshot<T>(
    conn: &Connection,
    query: &impl Fn(&Connection) -> Result<T, Flaw>,
) -> Result<T, Flaw> {
    // Deferred, because it only reads: it never becomes a write.
    let _open = Open::begin(conn, "BEGIN DEFERRED")?;
    query(conn)
}

fn commit<T>(
    conn: &Connection,
    change: impl FnOnce(&Connection) -> Result<Written<T>, Flaw>,
) -> Result<Written<T>, Flaw> {
    let open = Open::begin(conn, "BEGIN IMMEDIATE")?;
    let answer = change(conn)?;
    if matches!(answer, Written::Yes { .. }) {
        open.commit()?;
    }
    Ok(answer)
}

/// A transaction, rolled back when dropped. Not rusqlite's, because that one compiles its statements
/// anew each time, which shows in the cost of an append.
struct Open<'c> {
    conn: &'c Connection,
}

impl Open<'_> {
    fn begin<'c>(conn: &'c Connection, how: &'static str) -> rusqlite::Result<Open<'c>> {
        conn.prepare_cached(how)?.execute([])?;
        Ok(Open { conn })
    }

    fn commit(self) -> rusqlite::Result<()> {
        self.conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // After a commit, and after an error that already rolled back, nothing is open.
        if !self.conn.is_autocommit() {
            let _ = self.conn.prepare_cached("ROLLBACK").and_then(|mut end| end.execute([]));
        }
    }
}

/// Keeps a batch at the end of a run's log, whose head is written back as it is then.
fn keep(
    conn: &Connection,
    log: &mut Log,
    mut held: Vec<Lease>,
    batch: &Decided,
    now: &Moment,
) -> Result<Vec<Record>, Flaw> {
    for text in batch.texts() {
        rows::keep_text(conn, text)?;
    }
    let records = rows::append(conn, log, now.wall, batch.bodies())?;
    for lease in batch.leases() {
        rows::set_lease(conn, log, &mut held, lease, now)?;
    }
    rows::write_head(conn, log)?;
    match batch.key() {
        KeyChange::Kept => {}
        KeyChange::Freed => free_key(conn, &mut rows::known_run(conn, log.run)?)?,
        KeyChange::Retaken => retake_key(conn, &mut rows::known_run(conn, log.run)?)?,
    }
    Ok(records)
}

fn free_key(conn: &Connection, entry: &mut RunEntry) -> Result<(), Flaw> {
    if entry.active { rows::set_active(conn, entry, false) } else { Ok(()) }
}

fn retake_key(conn: &Connection, entry: &mut RunEntry) -> Result<(), Flaw> {
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
) -> Result<Written<Created>, Flaw> {
    if rows::find_run(conn, new.run)?.is_some() {
        return Err(StoreError::RunExists { run: new.run }.into());
    }
    if let Some(mut holder) = rows::find_holder(conn, &new.key)? {
        if new.replaces != Some(holder.log.run) {
            return Ok(Written::No(Created::KeyHeldBy(holder.log.run)));
        }
        free_key(conn, &mut holder)?;
    }
    let seq = Meta::load(conn)?.count_run(conn)?;
    let mut entry = RunEntry {
        log: Log::new(new.run, seq),
        name: Some(new.name.clone()),
        key: new.key.clone(),
        active: true,
        created: now.wall,
    };
    rows::insert_run(conn, &entry)?;
    let records = keep(conn, &mut entry.log, Vec::new(), first, now)?;
    let remember = Some(Head::of(&entry.log));
    Ok(Written::Yes { answer: Created::New(records), remember })
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
                return Ok(Written::No(records));
            };
            let before = log.head;
            records.extend(keep(conn, &mut log, leases, &batch, &now)?);
            let due =
                self.remember.swap(false, Ordering::AcqRel) || sidecar::is_due(before, log.head);
            let remember = due.then(|| Head::of(&log));
            Ok(Written::Yes { answer: records, remember })
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
            match rows::find_lease(conn, &log, key)? {
                Some(mut lease) if lease.fence == fence && until.is_later_than(&lease.until) => {
                    lease.until = until.clone();
                    rows::write_lease(conn, &log, &lease)?;
                    Ok(Written::Yes { answer: Renewal::Renewed, remember: None })
                }
                _ => Ok(Written::No(Renewal::NotRenewed)),
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
        if self.lock.is_some() {
            let _in_vain = run_cache_file::replace(&self.home, run, bytes);
        }
    }

    fn forget(&self, run: RunId, head: Cursor) -> Result<Forgetting, StoreError> {
        let answer = self.writing(|conn| {
            let mut entry = rows::known_run(conn, run)?;
            if entry.log.head != head {
                return Ok(Written::No(Forgetting::NotForgotten));
            }
            rows::forget(conn, &mut entry)?;
            Ok(Written::Yes { answer: Forgetting::Forgotten, remember: None })
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
        let Some(lock) = &self.lock else { return };
        // No answer waits for this and the next verb tries again, so failures are not reported.
        let mut link = self.link();
        let commits = self.commits.load(Ordering::Acquire);
        if commits <= FEW_COMMITS {
            let seen = link.log.frames;
            if seen >= WAL_FRAMES_ALONE && wal::is_ours_alone(&self.home.shm) {
                empty(&link.conn);
                link.log = Survey::default();
                self.remember.store(true, Ordering::Release);
                return;
            }
            if i64::from(seen) < WAL_FRAMES {
                return;
            }
        } else if commits - self.looked.load(Ordering::Acquire) < LOOK_AFTER {
            return;
        }
        self.looked.store(commits, Ordering::Release);
        let Ok(backlog) = backlog(&link.conn) else { return };
        drop(link);
        if backlog < WAL_FRAMES {
            return;
        }
        let turn = (backlog >= WAL_FRAMES_MAX).then(|| lock.take(self.patience).ok()).flatten();
        checkpoint(&self.link().conn);
        drop(turn);
        self.remember.store(true, Ordering::Release);
    }
}

/// Frames of the write-ahead log that are not in the database yet.
fn backlog(conn: &Connection) -> rusqlite::Result<i64> {
    // The log is only known to a connection that has read something.
    conn.prepare_cached("SELECT runs FROM meta")?.query_row([], |_| Ok(()))?;
    conn.prepare_cached("PRAGMA wal_checkpoint(NOOP)")?
        .query_row([], |row| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?))
}

/// Moves everything into the database and leaves an empty log; whoever is in the way is not waited for.
fn empty(conn: &Connection) {
    let _ = conn.busy_timeout(Duration::ZERO);
    let _ = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    let _ = conn.busy_timeout(BUSY_TIMEOUT);
}

/// Moves what it can into the database without making anybody wait. Failing loses nothing: the log is
/// still there, and somebody will try again.
fn checkpoint(conn: &Connection) {
    let _ = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
}
