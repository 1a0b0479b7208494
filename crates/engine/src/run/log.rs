//! The one appender. A `Log` is a run's log in a store together with the run folded from it; every
//! command goes through [`Log::submit`], which folds what others appended, decides, and appends. Now and
//! then it also writes the run cache, so that loading a run does not fold its whole log.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use piton_core::cache::{self, CachedRun, PlanFile};
use piton_core::decide::{Command, decide, may_forget, open};
use piton_core::event::{Event, Found, RunOpened};
use piton_core::ids::{Position, RunId};
use piton_core::plan::Plan;
use piton_core::record::{Cursor, Record};
use piton_core::run::{FoldError, Run};
use piton_core::time::Moment;
use piton_store::{Created, Forgetting, NewRun, Store, StoreError};

use crate::error::LogError;

/// A run's log, folded up to its cursor.
pub struct Log {
    store: Arc<dyn Store>,
    run: Run,
    /// The plan file that the run was last compared with.
    plan_file: Option<PlanFile>,
    /// The cache is missing, of no use, or names another plan file: the next append writes it.
    is_uncached: bool,
}

/// What opening a run found.
#[expect(clippy::large_enum_variant, reason = "made once per verb and taken apart at once")]
pub enum Opened {
    New(Log),
    /// Another run is active for this plan.
    Existing(RunId),
}

impl Log {
    /// Creates a run.
    pub fn open(
        store: Arc<dyn Store>,
        new: &NewRun,
        plan: Arc<Plan>,
        settings: &[u8],
        opened: RunOpened,
        found: &[Found],
    ) -> Result<Opened, LogError> {
        match store.create_run(new, &open(&plan, settings, opened, found))? {
            Created::KeyHeldBy(run) => Ok(Opened::Existing(run)),
            Created::New(records) => {
                let first = records.first().ok_or(LogError::Empty(new.run))?;
                let mut run = Run::open(plan, first).map_err(|source| damaged(new.run, source))?;
                for record in &records[1..] {
                    run.apply(record).map_err(|source| damaged(new.run, source))?;
                }
                Ok(Opened::New(Log::uncached(store, run)))
            }
        }
    }

    /// Loads a run: from its cache and the records since, or from all of them.
    pub fn load(store: Arc<dyn Store>, run: RunId) -> Result<Log, LogError> {
        match cached(&*store, run)? {
            Some(CachedRun { plan_file, run }) => {
                Ok(Log { store, run, plan_file, is_uncached: false })
            }
            None => Log::fold(store, run),
        }
    }

    /// Reads and folds a run from its first record.
    pub fn fold(store: Arc<dyn Store>, run: RunId) -> Result<Log, LogError> {
        let records = store.read(run, Cursor::START)?;
        let first = records.first().ok_or(LogError::Empty(run))?;
        let plan = Run::plan_of(first).map_err(|source| damaged(run, source))?;
        let plan = Plan::from_bytes(&store.text(plan)?);
        let plan = plan.map_err(|source| LogError::Plan { run, source })?;
        let mut folded = Run::open(Arc::new(plan), first).map_err(|source| damaged(run, source))?;
        fold(&mut folded, &records[1..])?;
        Ok(Log::uncached(store, folded))
    }

    fn uncached(store: Arc<dyn Store>, run: Run) -> Log {
        Log { store, run, plan_file: None, is_uncached: true }
    }

    /// The same log for another thread.
    pub(crate) fn another(&self) -> Log {
        Log {
            store: Arc::clone(&self.store),
            run: self.run.clone(),
            plan_file: self.plan_file.clone(),
            is_uncached: self.is_uncached,
        }
    }

    /// The plan file that the run was last compared with, as far as the cache remembers.
    pub fn plan_file(&self) -> Option<&PlanFile> {
        self.plan_file.as_ref()
    }

    /// Remembers a plan file, once something is appended.
    pub fn remember(&mut self, plan_file: PlanFile) {
        if self.plan_file.as_ref() != Some(&plan_file) {
            self.plan_file = Some(plan_file);
            self.is_uncached = true;
        }
    }

    pub fn run(&self) -> &Run {
        &self.run
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub fn now(&self) -> Result<Moment, LogError> {
        Ok(self.store.now()?)
    }

    /// Folds what others appended; returns it.
    pub fn refresh(&mut self) -> Result<Vec<Event>, LogError> {
        let records = self.store.read(self.run.opened.run, self.run.cursor)?;
        fold(&mut self.run, &records)
    }

    /// The run with what others appended; this log stays where it is.
    pub fn newest(&self) -> Result<Cow<'_, Run>, LogError> {
        newest(&self.run, &self.store.read(self.run.opened.run, self.run.cursor)?)
    }

    /// Waits until somebody appends, at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<bool, LogError> {
        let Position(after) = self.run.cursor.position;
        Ok(self.store.changed(self.run.opened.run, Position(after), timeout)?)
    }

    /// Decides a command on the newest state and makes it durable. A refusal appends nothing, but
    /// the run is folded up to what it was refused on.
    pub fn submit(&mut self, command: &Command) -> Result<Vec<Event>, LogError> {
        let (id, after) = (self.run.opened.run, self.run.cursor);
        let run = &mut self.run;
        let mut before = None;
        let (mut events, mut own) = (Vec::new(), Vec::new());
        let mut refused: Result<(), LogError> = Ok(());
        let records = self.store.transact(id, after, &mut |tail| {
            own.clear();
            // What others appended stands, whatever becomes of this command.
            let decided = catch_up(run, tail.records, &mut events)
                .and_then(|()| Ok(decide(run, command, tail.leases, tail.now)?));
            match decided {
                Ok(mut decided) => {
                    let said = decided.take_events();
                    own = said.into_iter().zip(decided.bodies().to_vec()).collect();
                    before = Some(run.cursor.position).filter(|_| !own.is_empty());
                    Some(decided)
                }
                Err(error) => {
                    refused = Err(error);
                    None
                }
            }
        })?;
        catch_up_knowing(run, &records, own, &mut events)?;
        if let Some(before) = before {
            self.write_cache_if_due(before);
        }
        refused.map(|()| events)
    }

    /// Removes the run from its store for good, as far as the rules let it; nobody's append is lost.
    pub(crate) fn forget(&mut self) -> Result<(), LogError> {
        loop {
            may_forget(&self.run)?;
            match self.store.forget(self.run.opened.run, self.run.cursor)? {
                Forgetting::Forgotten => return Ok(()),
                Forgetting::NotForgotten => self.refresh()?,
            };
        }
    }

    fn write_cache_if_due(&mut self, before: Position) {
        if self.is_uncached || cache::is_due(before, self.run.cursor.position) {
            let packed = cache::pack(self.plan_file.as_ref(), &self.run);
            self.store.cache(self.run.opened.run, &packed);
            self.is_uncached = false;
        }
    }
}

/// The run from its cache and the records since; nothing where the cache is of no use, whatever the
/// reason.
fn cached(store: &dyn Store, id: RunId) -> Result<Option<CachedRun>, LogError> {
    let unpacked = store.cached(id).and_then(|bytes| cache::unpack(&bytes));
    let Some(mut cached) = unpacked.filter(|cached| cached.run.opened.run == id) else {
        return Ok(None);
    };
    match store.read(id, cached.run.cursor) {
        // Records that do not fit are looked at from the beginning.
        Ok(tail) => Ok(fold(&mut cached.run, &tail).is_ok().then_some(cached)),
        // Made from records that are not in this log.
        Err(StoreError::CursorNotInChain { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Folds the records that the run does not have yet.
fn catch_up(run: &mut Run, records: &[Record], events: &mut Vec<Event>) -> Result<(), LogError> {
    catch_up_knowing(run, records, Vec::new(), events)
}

/// The same, where it is known what some bodies say: they need not be read again.
fn catch_up_knowing(
    run: &mut Run,
    records: &[Record],
    mut said: Vec<(Event, Vec<u8>)>,
    events: &mut Vec<Event>,
) -> Result<(), LogError> {
    let id = run.opened.run;
    let known = records.partition_point(|record| record.position <= run.cursor.position);
    for record in &records[known..] {
        let own = said.iter().position(|(_, body)| *body == record.body);
        let event = match own.map(|at| said.swap_remove(at)) {
            Some((event, _)) => run.apply_read(&event, record).map(|()| event),
            None => run.apply(record),
        };
        events.push(event.map_err(|source| damaged(id, source))?);
    }
    Ok(())
}

/// The run with a tail folded in; copied only where there is one.
fn newest<'run>(run: &'run Run, tail: &[Record]) -> Result<Cow<'run, Run>, LogError> {
    let mut newest = Cow::Borrowed(run);
    if !tail.is_empty() {
        fold(newest.to_mut(), tail)?;
    }
    Ok(newest)
}

fn fold(run: &mut Run, records: &[Record]) -> Result<Vec<Event>, LogError> {
    let id = run.opened.run;
    records.iter().map(|record| run.apply(record).map_err(|source| damaged(id, source))).collect()
}

fn damaged(run: RunId, source: FoldError) -> LogError {
    LogError::Damaged { run, source }
}
