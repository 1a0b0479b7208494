//! The one appender. A `Log` is a run's log in a store together with the run folded from it; every
//! command goes through [`Log::submit`], which folds what others appended, decides, and keeps. Every so
//! often it also keeps the folded run, so that loading one costs the same however long its log is.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use piton_core::cache::{Packed, is_due, is_worth_it};
use piton_core::decide::{Command, decide, may_forget, open};
use piton_core::event::{Event, RunOpened};
use piton_core::ids::{Position, RunId};
use piton_core::plan::Plan;
use piton_core::record::{Cursor, Record};
use piton_core::refusal::Refusal;
use piton_core::run::{Again, FoldError, Run};
use piton_core::time::Moment;
use piton_store::{Another, Created, Forgetting, NewRun, Store, StoreError};

/// Why a log could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the log of run {run} is damaged")]
    Damaged {
        run: RunId,
        #[source]
        source: FoldError,
    },
    #[error("the plan kept with run {run} cannot be read")]
    Plan {
        run: RunId,
        #[source]
        source: serde_json::Error,
    },
    #[error("the log of run {0} has no records")]
    Empty(RunId),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A run's log, folded up to its cursor.
pub struct Log {
    store: Arc<dyn Store>,
    run: Run,
    /// What the next append keeps beside the log.
    remember: Vec<Packed>,
    /// Where the log was, and when, as the run was last kept beside it.
    kept: Option<(Position, Instant)>,
}

/// Somebody who appends quickly keeps the run no more often than each second, unless so many records have
/// come that folding them would be felt.
const NOT_MINDED: u64 = 64;

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
    ) -> Result<Opened, LogError> {
        match store.create_run(new, &open(&plan, settings, opened))? {
            Created::KeyHeldBy(run) => Ok(Opened::Existing(run)),
            Created::New(records) => {
                let first = records.first().ok_or(LogError::Empty(new.run))?;
                let run = Run::open(plan, first).map_err(|source| damaged(new.run, source))?;
                Ok(Opened::New(Log::folded(store, run)))
            }
        }
    }

    /// Loads a run: from what is kept beside its log and the records since, or from all of them.
    pub fn load(store: Arc<dyn Store>, run: RunId) -> Result<Log, LogError> {
        match kept(&store, run)? {
            Some(run) => Ok(Log::folded(store, run)),
            None => Log::fold(store, run),
        }
    }

    /// Reads and folds a run from its first record.
    pub fn fold(store: Arc<dyn Store>, run: RunId) -> Result<Log, LogError> {
        let folded = fold_to(&*store, run, Position(u64::MAX))?;
        Ok(Log::folded(store, folded))
    }

    fn folded(store: Arc<dyn Store>, run: Run) -> Log {
        Log { store, run, remember: Vec::new(), kept: None }
    }

    /// The same log for another thread.
    pub(crate) fn another(&self) -> Log {
        Log::folded(Arc::clone(&self.store), self.run.clone())
    }

    /// Keeps this beside the log with the next append, if there is one.
    pub fn remember(&mut self, packed: Packed) {
        self.remember.push(packed);
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
        let (run, remember) = (&mut self.run, &self.remember);
        let mut decided_at = None;
        let (mut events, mut own) = (Vec::new(), Vec::new());
        let mut refused: Result<(), LogError> = Ok(());
        let records = self.store.transact(id, after, &mut |tail| {
            own.clear();
            // What others appended stands, whatever becomes of this command.
            let decided = catch_up(run, tail.records, &mut events)
                .and_then(|()| Ok(decide(run, command, tail.leases, tail.now)?));
            match decided {
                // Nothing is written for the sake of the cache alone.
                Ok(decided) if decided.bodies().is_empty() => Some(decided),
                Ok(mut decided) => {
                    let said = decided.take_events();
                    own = said.into_iter().zip(decided.bodies().to_vec()).collect();
                    decided_at = Some(run.cursor.position);
                    Some(decided.with_cache(remember.clone()))
                }
                Err(error) => {
                    refused = Err(error);
                    None
                }
            }
        })?;
        catch_up_knowing(run, &records, own, &mut events)?;
        if !events.is_empty() {
            self.remember.clear();
        }
        if let Some(before) = decided_at {
            self.keep_if_due(before);
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

    /// Keeps the run beside its log, now and then.
    fn keep_if_due(&mut self, before: Position) {
        let (position, steps) = (self.run.cursor.position, self.run.plan().steps.len());
        let missing = !self.run.has_file() && is_worth_it(position, steps);
        if !missing && (!is_due(before, position) || self.kept_lately(position)) {
            return;
        }
        let mut packed = None;
        let run = &self.run;
        let file = self.store.keep(run.opened.run, &mut |present| {
            let (keep, now) = run.pack(present);
            packed = Some(now);
            keep
        });
        if let (Some(file), Some(packed)) = (file, packed) {
            let again = Refold::of(&self.store, run.opened.run);
            self.run.is_kept(packed, file, again);
            self.kept = Some((position, Instant::now()));
        }
    }

    /// Whether this log has kept its run so short a while ago that the next reader will not mind.
    fn kept_lately(&self, position: Position) -> bool {
        self.kept.is_some_and(|(at, when)| {
            position.0 - at.0 < NOT_MINDED && when.elapsed() < Duration::from_secs(1)
        })
    }
}

/// Folds a run from its first record once more, where a page of what is kept of it is damaged. That is
/// found out in the middle of a question, perhaps within a transaction, so that it looks for itself.
struct Refold {
    store: Another,
    run: RunId,
}

impl Refold {
    fn of(store: &Arc<dyn Store>, run: RunId) -> Arc<Refold> {
        Arc::new(Refold { store: store.another(), run })
    }
}

impl std::fmt::Debug for Refold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refold").field("run", &self.run).finish_non_exhaustive()
    }
}

impl Again for Refold {
    fn fold(&self, at: Cursor) -> Run {
        let store = (self.store)().map_err(LogError::from);
        let folded = store.and_then(|store| fold_to(&*store, self.run, at.position));
        // The log was read when the run was loaded. If it is gone too, nothing is known any more.
        folded.unwrap_or_else(|error| panic!("the log of run {} is lost: {error}", self.run))
    }
}

/// A run from its first record up to a position.
fn fold_to(store: &dyn Store, run: RunId, to: Position) -> Result<Run, LogError> {
    let mut records = store.read(run, Cursor::START)?;
    records.retain(|record| record.position <= to);
    let first = records.first().ok_or(LogError::Empty(run))?;
    let plan = Run::plan_of(first).map_err(|source| damaged(run, source))?;
    let plan =
        Plan::from_bytes(&store.text(plan)?).map_err(|source| LogError::Plan { run, source })?;
    let mut folded = Run::open(Arc::new(plan), first).map_err(|source| damaged(run, source))?;
    fold(&mut folded, &records[1..])?;
    Ok(folded)
}

/// The run from what is kept beside its log; nothing where that is of no use, whatever the reason.
fn kept(store: &Arc<dyn Store>, id: RunId) -> Result<Option<Run>, LogError> {
    let unpack = |file| Run::unpack(file, Refold::of(store, id));
    let Some(mut run) = store.kept(id).and_then(unpack) else { return Ok(None) };
    match store.read(id, run.cursor) {
        Ok(_) if run.opened.run != id => Ok(None),
        // What does not fit is looked at from the beginning.
        Ok(tail) => Ok(fold(&mut run, &tail).is_ok().then_some(run)),
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
