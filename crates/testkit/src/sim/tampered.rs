//! The store of a simulated world, in memory or on disk, and as a simulated process sees it: lease rows
//! can be lost, and a deliberate bug can be put between the rules and what they are shown.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use piton_core::decided::{Decided, Lease};
use piton_core::event::{Event, Fact, Limited, Under};
use piton_core::ids::{Fence, Hash, Position, RunId, StoreId};
use piton_core::plan::{Plan, PlanStep};
use piton_core::record::{Cursor, Record};
use piton_core::time::{Millis, Moment};
use piton_store::mem::MemStore;
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{Created, Forgetting, NewRun, Renewal, RunRow, Runs, Store, StoreError, Tail};
use serde_json::Value;
use tempfile::TempDir;

/// Which store a history is played on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    Memory,
    Sqlite,
}

/// A store with a clock that can be set, shared by everybody in a world.
pub(super) struct Shared {
    pub(super) store: Arc<dyn Store>,
    set_now: Box<dyn Fn(Moment)>,
    _folder: Option<TempDir>,
}

impl Shared {
    pub(super) fn new(on: On, now: Moment) -> Shared {
        match on {
            On::Memory => {
                let store = MemStore::with_clock(now);
                let clock = store.clone();
                let set_now = Box::new(move |now| clock.set_now(now));
                Shared { store: Arc::new(store), set_now, _folder: None }
            }
            On::Sqlite => {
                // In memory where there is such a folder: what a flush is worth is tested elsewhere.
                let memory = Path::new("/dev/shm");
                let folder = match memory.is_dir() {
                    true => tempfile::tempdir_in(memory),
                    false => tempfile::tempdir(),
                };
                let folder = folder.expect("a temporary folder");
                let store = SqliteStore::open(folder.path(), Access::Create);
                let store = Arc::new(store.expect("a store in an empty folder"));
                store.set_now(now);
                let clock = Arc::clone(&store);
                let set_now = Box::new(move |now| clock.set_now(now));
                Shared { store, set_now, _folder: Some(folder) }
            }
        }
    }

    pub(super) fn set_now(&self, now: Moment) {
        (self.set_now)(now);
    }
}

/// Something broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The store does not compare: a decision on an old state is appended all the same.
    StaleTail,
    /// A write under an old fence is appended under the current one.
    ReplacedFence,
    /// One worker is handed the plan without its needs.
    ErasedNeeds,
    /// One worker is handed the plan without its locks.
    ErasedLocks,
    /// One worker is handed a plan that says nothing about interruptions.
    ErasedWays,
    /// The store says "kept" and keeps nothing, now and then.
    ForgottenAppend,
    /// Completions are not shown to readers.
    HiddenCompletions,
    /// The store's clock runs an hour ahead while it judges.
    SkewedClock,
    /// The store's clock stands still while it judges: no lease is ever over.
    StoppedClock,
    /// A held lock is seen as free.
    BlindLocks,
    /// Exit records are not read.
    UnreadExits,
    /// Nobody is ended before the tree they work in is given away.
    CrowdedTree,
    /// Snapshots are recorded but restore nothing.
    EmptySnapshots,
    /// Everybody outside gives the same worktree as theirs.
    SharedName,
    /// Everybody outside insists, without having been told to.
    UnaskedForce,
    /// A heartbeat renews the lease of its step whatever its fence.
    AnyFenceRenews,
    /// Force does not see that a step is completed.
    ForcedCompleted,
    /// The same owner that asks again goes on under its old fence.
    KeptFence,
    /// Everybody outside says that they are on another host, and looks from there: a keeper's lock is not
    /// seen, and its lapsed lease is believed to be over.
    StrangeHost,
    /// What attempts were told is not shown to readers.
    ForgottenTelling,
    /// What was asked is not shown to readers.
    HiddenQuestions,
    /// Limits are shown to readers as over.
    EarlyLimits,
}

impl Bug {
    /// Whether it is in the plan that a process is handed.
    pub(super) fn is_in_the_plan(self) -> bool {
        matches!(self, Bug::ErasedNeeds | Bug::ErasedLocks | Bug::ErasedWays)
    }
}

/// Lease rows that are gone, by key and fence.
pub(super) type Lost = Arc<Mutex<BTreeSet<(String, Fence)>>>;

pub(super) struct Tampered {
    pub(super) inner: Arc<dyn Store>,
    pub(super) lost: Lost,
    pub(super) bug: Option<Bug>,
    pub(super) appends: Mutex<u64>,
}

impl Tampered {
    fn is_lost(&self, key: &str, fence: Fence) -> bool {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.contains(&(key.to_owned(), fence))
    }

    fn kept(&self, leases: &[Lease]) -> Vec<Lease> {
        leases.iter().filter(|row| !self.is_lost(&row.key, row.fence)).cloned().collect()
    }

    /// Records as this process is shown them.
    fn shown(&self, mut records: Vec<Record>) -> Vec<Record> {
        match self.bug {
            Some(Bug::HiddenCompletions) => {
                let hidden = |record: &Record| {
                    matches!(
                        Event::from_body(&record.body),
                        Ok(Event::Under(_, Fact::Completed { .. }))
                    )
                };
                records.retain(|record| !hidden(record));
            }
            Some(Bug::ForgottenTelling) => {
                records.retain(|record| !is_about(record, &["answers_applied"]));
                records.iter_mut().for_each(forget_telling);
            }
            Some(Bug::HiddenQuestions) => {
                let hidden = ["asked", "answered", "answers_applied"];
                records.retain(|record| !is_about(record, &hidden));
            }
            Some(Bug::EarlyLimits) => records.iter_mut().for_each(end_limit),
            Some(bug) if bug.is_in_the_plan() => {
                for record in records.iter_mut().filter(|record| record.position == Position(1)) {
                    self.change_plan(record);
                }
            }
            _ => {}
        }
        records
    }

    fn change_plan(&self, first: &mut Record) {
        if let Ok(Event::RunOpened(mut opened)) = Event::from_body(&first.body)
            && let Ok(plan) = self.erased(opened.plan)
        {
            opened.plan = plan.hash();
            first.body = Event::RunOpened(opened).to_body();
        }
    }

    fn erased(&self, plan: Hash) -> Result<Plan, StoreError> {
        let text = self.inner.text(plan)?;
        let mut plan = Plan::from_bytes(&text).expect("it was kept by the engine");
        let erase = |mut step: PlanStep| {
            match self.bug {
                Some(Bug::ErasedLocks) => step.locks.clear(),
                Some(Bug::ErasedWays) => step.on_interrupt = None,
                _ => step.needs.clear(),
            }
            step
        };
        plan.steps = plan.steps.iter().cloned().map(erase).collect();
        Ok(plan)
    }

    /// Whether this append is the one that is forgotten.
    fn forgets(&self) -> bool {
        let mut appends = self.appends.lock().unwrap_or_else(PoisonError::into_inner);
        *appends += 1;
        self.bug == Some(Bug::ForgottenAppend) && appends.is_multiple_of(7)
    }
}

impl Store for Tampered {
    fn id(&self) -> StoreId {
        self.inner.id()
    }

    fn now(&self) -> Result<Moment, StoreError> {
        self.inner.now()
    }

    fn create_run(&self, new: &NewRun, first: &Decided) -> Result<Created, StoreError> {
        self.inner.create_run(new, first)
    }

    fn runs(&self, filter: &Runs) -> Result<Vec<RunRow>, StoreError> {
        self.inner.runs(filter)
    }

    fn read(&self, run: RunId, after: Cursor) -> Result<Vec<Record>, StoreError> {
        Ok(self.shown(self.inner.read(run, after)?))
    }

    fn transact(
        &self,
        run: RunId,
        after: Cursor,
        decide: &mut dyn FnMut(Tail<'_>) -> Option<Decided>,
    ) -> Result<Vec<Record>, StoreError> {
        let forgets = self.forgets();
        let mut unkept = None;
        let mut records = self.inner.transact(run, after, &mut |tail| {
            let leases = self.kept(tail.leases);
            let mut now = tail.now.clone();
            let mut records = self.shown(tail.records.to_vec());
            match self.bug {
                Some(Bug::StaleTail) => records.clear(),
                Some(Bug::SkewedClock) => now = now.after(Duration::from_secs(3_600)),
                Some(Bug::StoppedClock) => now = Moment::wall(Millis(0)),
                _ => {}
            }
            if self.bug == Some(Bug::ReplacedFence)
                && let Some(batch) = decide(Tail { records: &[], leases: &leases, now: &now })
                && let Some(replaced) = with_current_fence(&batch, tail.records)
            {
                return Some(replaced);
            }
            let batch = decide(Tail { records: &records, leases: &leases, now: &now })?;
            if forgets {
                let head = tail.records.last().map_or(after, Record::cursor);
                unkept = Some((head, tail.now.wall, batch));
                return None;
            }
            Some(batch)
        })?;
        if let Some((mut head, at, batch)) = unkept {
            for body in batch.bodies() {
                records.push(Record::following(run, head, at, body.clone()));
                head = records.last().map_or(head, Record::cursor);
            }
        }
        Ok(self.shown(records))
    }

    fn renew(
        &self,
        run: RunId,
        key: &str,
        fence: Fence,
        until: &Moment,
    ) -> Result<Renewal, StoreError> {
        if self.is_lost(key, fence) {
            return Ok(Renewal::NotRenewed);
        }
        if self.bug == Some(Bug::AnyFenceRenews)
            && let Some(row) = self.inner.leases(run)?.iter().find(|row| row.key == key)
        {
            return self.inner.renew(run, key, row.fence, until);
        }
        self.inner.renew(run, key, fence, until)
    }

    fn leases(&self, run: RunId) -> Result<Vec<Lease>, StoreError> {
        Ok(self.kept(&self.inner.leases(run)?))
    }

    fn text(&self, hash: Hash) -> Result<Vec<u8>, StoreError> {
        match self.inner.text(hash) {
            Err(StoreError::MissingText { .. }) if self.bug.is_some_and(Bug::is_in_the_plan) => {
                // Asked for by the hash of the changed plan: there is only one plan.
                let runs = self.inner.runs(&Runs::All)?;
                let first = self.inner.read(runs[0].run, Cursor::START)?;
                let plan = piton_core::run::Run::plan_of(&first[0]).expect("it was opened");
                Ok(self.erased(plan)?.to_bytes())
            }
            answer => answer,
        }
    }

    fn cached(&self, run: RunId) -> Option<Vec<u8>> {
        self.inner.cached(run)
    }

    fn cache(&self, run: RunId, bytes: &[u8]) {
        self.inner.cache(run, bytes);
    }

    fn forget(&self, run: RunId, head: Cursor) -> Result<Forgetting, StoreError> {
        self.inner.forget(run, head)
    }

    fn changed(&self, run: RunId, after: Position, timeout: Duration) -> Result<bool, StoreError> {
        self.inner.changed(run, after, timeout)
    }

    fn tidy(&self) {}
}

fn is_about(record: &Record, events: &[&str]) -> bool {
    let body: Value = serde_json::from_slice(&record.body).expect("a body is JSON");
    body["event"].as_str().is_some_and(|event| events.contains(&event))
}

fn forget_telling(record: &mut Record) {
    if let Ok(Event::Under(Under { step, fence }, Fact::Started { base, answers, pid })) =
        Event::from_body(&record.body)
        && !answers.is_empty()
    {
        record.body =
            Event::Under(Under { step, fence }, Fact::Started { base, answers: Vec::new(), pid })
                .to_body();
    }
}

fn end_limit(record: &mut Record) {
    if let Ok(Event::Under(under, Fact::Limited(limited))) = Event::from_body(&record.body) {
        let limited = Limited { until: Some(Millis(0)), ..limited };
        record.body = Event::Under(under, Fact::Limited(limited)).to_body();
    }
}

/// The batch under the newest claim of its step, where the tail shows that the step was claimed since.
fn with_current_fence(batch: &Decided, tail: &[Record]) -> Option<Decided> {
    let [body] = batch.bodies() else { return None };
    let mut value: Value = serde_json::from_slice(body).expect("a body is JSON");
    let step = value["step"]["step"].as_str()?.to_owned();
    value.get("fence")?;
    let current = tail.iter().rev().find(|record| match Event::from_body(&record.body) {
        Ok(Event::Claimed(claimed)) => claimed.step.step.as_str() == step,
        _ => false,
    })?;
    value["fence"] = Value::from(current.position.0);
    let body = serde_json::to_vec(&value).expect("it was JSON before");
    let (leases, texts) = (batch.leases().to_vec(), batch.texts().to_vec());
    Some(Decided::raw(vec![body], leases, texts, batch.key()))
}
