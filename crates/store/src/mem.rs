//! A store in memory: the contract in its plainest form, for tests and the simulator. It owns no
//! file and no clock it could not be told to forget; nothing survives its last handle.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use piton_core::decided::{Decided, KeyChange, Lease};
use piton_core::ids::{Fence, Hash, Position, RunId, StoreId};
use piton_core::record::{Cursor, Record};
use piton_core::time::{Millis, Moment};
use uuid::Uuid;

use crate::clock;
use crate::{Created, Forgetting, NewRun, Renewal, RunKey, RunRow, Runs, Store, StoreError, Tail};

/// A handle; clones share one content.
#[derive(Debug, Clone)]
pub struct MemStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: StoreId,
    content: Mutex<Content>,
    appended: Condvar,
}

#[derive(Debug, Default)]
struct Content {
    /// `None` asks the machine's wall clock.
    now: Option<Moment>,
    runs: Vec<MemRun>,
    forgotten: Vec<RunId>,
    texts: BTreeMap<Hash, Vec<u8>>,
}

#[derive(Debug)]
struct MemRun {
    run: RunId,
    name: String,
    key: RunKey,
    active: bool,
    created: Millis,
    records: Vec<Record>,
    leases: BTreeMap<String, Lease>,
    cache: Option<Vec<u8>>,
}

impl MemStore {
    /// A store with the machine's wall clock.
    pub fn new() -> MemStore {
        MemStore::made(StoreId(Uuid::now_v7()), None)
    }

    /// A store whose clock stands at `now` until it is set; its id is always the same, so that a
    /// simulated history repeats exactly.
    pub fn with_clock(now: Moment) -> MemStore {
        MemStore::made(StoreId(Uuid::nil()), Some(now))
    }

    fn made(id: StoreId, now: Option<Moment>) -> MemStore {
        let content = Mutex::new(Content { now, ..Content::default() });
        MemStore { shared: Arc::new(Shared { id, content, appended: Condvar::new() }) }
    }

    /// Sets the clock, for every handle.
    pub fn set_now(&self, now: Moment) {
        self.content().now = Some(now);
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        // A panicking decision changed nothing: content is only touched after it returned.
        self.shared.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemStore {
    fn default() -> MemStore {
        MemStore::new()
    }
}

impl Content {
    fn now(&self) -> Moment {
        self.now.clone().unwrap_or_else(|| Moment::wall(clock::wall()))
    }

    fn log(&self, run: RunId) -> Result<&MemRun, StoreError> {
        self.runs.iter().find(|log| log.run == run).ok_or(StoreError::UnknownRun { run })
    }

    fn log_mut(&mut self, run: RunId) -> Result<&mut MemRun, StoreError> {
        self.runs.iter_mut().find(|log| log.run == run).ok_or(StoreError::UnknownRun { run })
    }

    fn holder(&self, key: &RunKey) -> Option<&MemRun> {
        self.runs.iter().find(|log| log.active && log.key == *key)
    }

    /// Keeps a batch at the end of a run's log.
    fn keep(&mut self, run: RunId, batch: &Decided, now: &Moment) -> Result<(), StoreError> {
        if batch.key() == KeyChange::Retaken {
            let key = self.log(run)?.key.clone();
            match self.holder(&key).map(|log| log.run) {
                Some(holder) if holder != run => return Err(StoreError::KeyHeld { run: holder }),
                _ => self.log_mut(run)?.active = true,
            }
        }
        for text in batch.texts() {
            self.texts.entry(Hash::of(text)).or_insert_with(|| text.clone());
        }
        let log = self.log_mut(run)?;
        for body in batch.bodies() {
            let record = Record::following(run, log.head(), now.wall, body.clone());
            log.records.push(record);
        }
        for lease in batch.leases() {
            if lease.until.is_over(now) {
                log.leases.remove(&lease.key);
            } else {
                log.leases.insert(lease.key.clone(), lease.clone());
            }
        }
        if batch.key() == KeyChange::Freed {
            log.active = false;
        }
        Ok(())
    }
}

impl MemRun {
    fn head(&self) -> Cursor {
        self.records.last().map_or(Cursor::START, Record::cursor)
    }

    fn after(&self, cursor: Cursor) -> Result<&[Record], StoreError> {
        let strange = StoreError::CursorNotInChain { run: self.run, position: cursor.position };
        let Ok(count) = usize::try_from(cursor.position.0) else { return Err(strange) };
        let there = match count.checked_sub(1) {
            None => Some(Cursor::START),
            Some(last) => self.records.get(last).map(Record::cursor),
        };
        if there == Some(cursor) { Ok(&self.records[count..]) } else { Err(strange) }
    }

    fn row(&self) -> RunRow {
        RunRow {
            run: self.run,
            name: self.name.clone(),
            key: self.key.clone(),
            active: self.active,
            created: self.created,
            head: self.head(),
        }
    }
}

impl Store for MemStore {
    fn id(&self) -> StoreId {
        self.shared.id
    }

    fn now(&self) -> Result<Moment, StoreError> {
        Ok(self.content().now())
    }

    fn create_run(&self, new: &NewRun, first: &Decided) -> Result<Created, StoreError> {
        let mut content = self.content();
        if content.log(new.run).is_ok() || content.forgotten.contains(&new.run) {
            return Err(StoreError::RunExists { run: new.run });
        }
        if let Some(holder) = content.holder(&new.key).map(|log| log.run) {
            if new.replaces != Some(holder) {
                return Ok(Created::KeyHeldBy(holder));
            }
            content.log_mut(holder)?.active = false;
        }
        let now = content.now();
        content.runs.push(MemRun {
            run: new.run,
            name: new.name.clone(),
            key: new.key.clone(),
            active: true,
            created: now.wall,
            records: Vec::new(),
            leases: BTreeMap::new(),
            cache: None,
        });
        content.keep(new.run, first, &now)?;
        let records = content.log(new.run)?.records.clone();
        drop(content);
        self.shared.appended.notify_all();
        Ok(Created::New(records))
    }

    fn runs(&self, filter: &Runs) -> Result<Vec<RunRow>, StoreError> {
        let wanted = |log: &&MemRun| match filter {
            Runs::All => true,
            Runs::Active => log.active,
            Runs::HoldingKey(key) => log.active && log.key == *key,
            Runs::Named(name) => log.name == *name,
        };
        Ok(self.content().runs.iter().filter(wanted).map(MemRun::row).collect())
    }

    fn read(&self, run: RunId, after: Cursor) -> Result<Vec<Record>, StoreError> {
        Ok(self.content().log(run)?.after(after)?.to_vec())
    }

    fn transact(
        &self,
        run: RunId,
        after: Cursor,
        decide: &mut dyn FnMut(Tail<'_>) -> Option<Decided>,
    ) -> Result<Vec<Record>, StoreError> {
        let mut content = self.content();
        let now = content.now();
        let log = content.log(run)?;
        let leases: Vec<Lease> = log.leases.values().cloned().collect();
        let batch = decide(Tail { records: log.after(after)?, leases: &leases, now: &now });
        if let Some(batch) = &batch {
            content.keep(run, batch, &now)?;
        }
        let tail = content.log(run)?.after(after)?.to_vec();
        drop(content);
        if batch.is_some() {
            self.shared.appended.notify_all();
        }
        Ok(tail)
    }

    fn renew(
        &self,
        run: RunId,
        key: &str,
        fence: Fence,
        until: &Moment,
    ) -> Result<Renewal, StoreError> {
        let mut content = self.content();
        match content.log_mut(run)?.leases.get_mut(key) {
            Some(lease) if lease.fence == fence && until.is_later_than(&lease.until) => {
                lease.until = until.clone();
                Ok(Renewal::Renewed)
            }
            _ => Ok(Renewal::NotRenewed),
        }
    }

    fn leases(&self, run: RunId) -> Result<Vec<Lease>, StoreError> {
        Ok(self.content().log(run)?.leases.values().cloned().collect())
    }

    fn text(&self, hash: Hash) -> Result<Vec<u8>, StoreError> {
        self.content().texts.get(&hash).cloned().ok_or(StoreError::MissingText { hash })
    }

    fn cached(&self, run: RunId) -> Option<Vec<u8>> {
        self.content().log(run).ok()?.cache.clone()
    }

    fn cache(&self, run: RunId, bytes: &[u8]) {
        if let Ok(log) = self.content().log_mut(run) {
            log.cache = Some(bytes.to_vec());
        }
    }

    fn forget(&self, run: RunId, head: Cursor) -> Result<Forgetting, StoreError> {
        let mut content = self.content();
        if content.log(run)?.head() != head {
            return Ok(Forgetting::NotForgotten);
        }
        content.runs.retain(|log| log.run != run);
        content.forgotten.push(run);
        Ok(Forgetting::Forgotten)
    }

    fn changed(&self, run: RunId, after: Position, timeout: Duration) -> Result<bool, StoreError> {
        let begun = Instant::now();
        let mut content = self.content();
        loop {
            if content.log(run)?.head().position > after {
                return Ok(true);
            }
            let Some(left) = timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())
            else {
                return Ok(false);
            };
            let waited = self.shared.appended.wait_timeout(content, left);
            content = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn tidy(&self) {}
}
