//! The one appender. A `Log` is a run's log in a store together with the run folded from it; every
//! command goes through [`Log::submit`], which folds what others appended, decides, and keeps. Every so
//! often it also keeps the folded run, so that loading one costs the same however long its log is.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use piton_core::cache::{Cached, Packed, is_due, is_worth_it};
use piton_core::decide::{Command, Refusal, decide, open};
use piton_core::event::{Event, RunOpened};
use piton_core::graph::Graph;
use piton_core::ids::{Hash, Position, RunId};
use piton_core::plan::Plan;
use piton_core::record::{Cursor, Record};
use piton_core::run::{FoldError, PackedRun, Run};
use piton_core::time::Moment;
use piton_store::{Created, NewRun, Store, StoreError};

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
    /// The plan whose graph is kept beside the log, if the run was loaded from what is kept there.
    kept: Option<Hash>,
    /// What the next append keeps beside the log.
    remember: Vec<Packed>,
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
        match kept(&*store, run)? {
            Some(run) => {
                let kept = Some(run.graph().hash());
                Ok(Log { kept, ..Log::folded(store, run) })
            }
            None => Log::fold(store, run),
        }
    }

    /// Reads and folds a run from its first record.
    pub fn fold(store: Arc<dyn Store>, run: RunId) -> Result<Log, LogError> {
        let records = store.read(run, Cursor::START)?;
        let first = records.first().ok_or(LogError::Empty(run))?;
        let plan = Run::plan_of(first).map_err(|source| damaged(run, source))?;
        let plan = Plan::from_bytes(&store.text(plan)?)
            .map_err(|source| LogError::Plan { run, source })?;
        let mut folded = Run::open(Arc::new(plan), first).map_err(|source| damaged(run, source))?;
        fold(&mut folded, &records[1..])?;
        Ok(Log::folded(store, folded))
    }

    fn folded(store: Arc<dyn Store>, run: Run) -> Log {
        Log { store, run, kept: None, remember: Vec::new() }
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
        let (run, kept, remember) = (&mut self.run, &mut self.kept, &self.remember);
        let mut packed = None;
        let mut events = Vec::new();
        let mut refused: Result<(), LogError> = Ok(());
        let records = self.store.transact(id, after, &mut |tail| {
            // What others appended stands, whatever becomes of this command.
            let decided = catch_up(run, tail.records, &mut events)
                .and_then(|()| Ok(decide(run, command, tail.leases, tail.now)?));
            match decided {
                // Nothing is written for the sake of the cache alone.
                Ok(decided) if decided.bodies().is_empty() => Some(decided),
                Ok(decided) => {
                    let due = due(run, *kept, decided.bodies().len());
                    packed = (!due.is_empty()).then(|| run.graph().hash());
                    Some(decided.with_cache(due).with_cache(remember.clone()))
                }
                Err(error) => {
                    refused = Err(error);
                    None
                }
            }
        })?;
        if let Some(graph) = packed {
            *kept = Some(graph);
        }
        catch_up(run, &records, &mut events)?;
        if !events.is_empty() {
            self.remember.clear();
        }
        refused.map(|()| events)
    }
}

/// The run from what is kept beside its log; nothing where that is of no use, whatever the reason.
fn kept(store: &dyn Store, id: RunId) -> Result<Option<Run>, LogError> {
    let Some(packed) = store.cached(id, Cached::Run.name())?.and_then(PackedRun::read) else {
        return Ok(None);
    };
    let Some(graph) = store.cached(id, Cached::Graph.name())? else { return Ok(None) };
    let graph = Graph::unpack(graph, packed.plan());
    let Some(mut run) = graph.and_then(|graph| packed.over(graph)) else { return Ok(None) };
    match store.read(id, run.cursor) {
        Ok(_) if run.opened.run != id => Ok(None),
        // What does not fit is looked at from the beginning.
        Ok(tail) => Ok(fold(&mut run, &tail).is_ok().then_some(run)),
        // Made from records that are not in this log.
        Err(StoreError::CursorNotInChain { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What is kept beside the log with a batch of this many events: the run as it was before it.
fn due(run: &Run, kept: Option<Hash>, events: usize) -> Vec<Packed> {
    let Position(before) = run.cursor.position;
    let after = Position(before + events as u64);
    let (position, steps) = (run.cursor.position, run.plan().steps.len());
    let missing = kept.is_none() && is_worth_it(position, steps);
    if !missing && !is_due(position, after, steps) {
        return Vec::new();
    }
    let graph = (kept != Some(run.graph().hash())).then(|| run.graph().pack());
    std::iter::once(run.pack()).chain(graph).collect()
}

/// Folds the records that the run does not have yet.
fn catch_up(run: &mut Run, records: &[Record], events: &mut Vec<Event>) -> Result<(), LogError> {
    let known = records.partition_point(|record| record.position <= run.cursor.position);
    events.extend(fold(run, &records[known..])?);
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
