//! The runs of a project: finding the one that is meant, what was recorded with it, stopping it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use piton_core::decide::Command;
use piton_core::event::{Cause, Haste, Scope, Terms, Under};
use piton_core::ids::{Handle, RunId, StepRef};
use piton_core::observed::Sighting;
use piton_core::run::Run;
use piton_store::{RunKey, RunRow, Runs, Store};

use crate::config::Settings;
use crate::error::EngineError;
use crate::error::LogError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::observe::{Depth, observe};
use crate::run::plan_file::{
    Placed, hash_of, path_in, placed, placed_at, plan_file, read_again, where_it_was,
};
use crate::trust::{TrustList, Trusted};

/// The unfinished run of a plan whose file has the bytes that were read when it was last compared. It
/// needs no parsing and no git; where it finds nothing, [`prepare`] and [`open`] say why.
pub fn find_unchanged(
    project: &Project,
    store: &Arc<dyn Store>,
    plan_path: &Path,
) -> Result<Option<Log>, EngineError> {
    let Ok(Placed { within, .. }) = placed(project, plan_path) else { return Ok(None) };
    let mut rows = store.runs(&Runs::Active)?;
    rows.retain(|row| path_in(&row.key) == Some(&within));
    let [row] = rows.as_slice() else { return Ok(None) };
    // A run that cannot be read is explained by whoever opens it.
    let Ok(log) = Log::load(Arc::clone(store), row.run) else { return Ok(None) };
    let plan = log.plan_file().and_then(|read| read.plan_in(hash_of(plan_path).ok()?));
    Ok((plan == Some(log.run().graph().hash())).then_some(log))
}

/// The steps of a run whose attempts are alive on this host.
fn alive(project: &Project, log: &Log) -> Vec<StepRef> {
    let observed = observe(project, log, Depth::Locks);
    let held = log.run().held();
    held.filter(|(_, attempt)| *observed.of(attempt.id) == Sighting::Alive)
        .map(|(step, _)| step)
        .collect()
}

/// The settings recorded with a run: what resume uses, whatever the files say by now.
pub fn settings_of(log: &Log) -> Result<Settings, EngineError> {
    let bytes = log.store().text(log.run().opened.settings)?;
    Settings::from_bytes(&bytes).map_err(EngineError::Settings)
}

/// What trust in a run is about: what it has recorded, because that is what is executed. A store that
/// came with a copied repository is no more trusted than its plan file.
pub fn trust_list(project: &Project, log: &Log) -> Result<TrustList, EngineError> {
    let (run, agents) = (log.run(), settings_of(log)?.agents);
    TrustList::new(project, &plan_file(project, run), run.plan(), &agents)
}

/// Leave to execute what a run has recorded.
pub fn trusted(project: &Project, log: &Log) -> Result<Trusted, EngineError> {
    let (run, agents) = (log.run(), settings_of(log)?.agents);
    Trusted::require(project, &plan_file(project, run), run.plan(), agents)
}

/// The run somebody means: a handle, an id, a unique prefix of either, a plan's path or its name. None
/// named: the only unfinished one, else the newest.
pub fn find(
    project: &Project,
    store: &Arc<dyn Store>,
    asked: Option<&str>,
) -> Result<Log, EngineError> {
    match asked {
        None => find_unnamed(project, store),
        Some(asked) => find_named(project, store, asked),
    }
}

fn find_unnamed(project: &Project, store: &Arc<dyn Store>) -> Result<Log, EngineError> {
    let mut unfinished = unfinished_runs(project, store)?;
    match unfinished.len() {
        0 => {
            let newest = store.runs(&Runs::All)?.pop().ok_or(EngineError::NoRuns)?;
            Ok(Log::load(Arc::clone(store), newest.run)?)
        }
        1 => Ok(unfinished.remove(0).map_err(|damaged| damaged.error)?),
        _ => the_one_that_goes_on(unfinished.into_iter().flatten().collect()),
    }
}

/// The only unfinished run of which this holds, if it holds of just one.
pub fn find_that(
    project: &Project,
    store: &Arc<dyn Store>,
    is_meant: impl Fn(&Run) -> bool,
) -> Result<Option<Log>, EngineError> {
    let unfinished = unfinished_runs(project, store)?;
    let mut meant = unfinished.into_iter().flatten().filter(|log| is_meant(log.run()));
    Ok(match (meant.next(), meant.next()) {
        (one, None) => one,
        _ => None,
    })
}

/// Of several active runs, the only one that has not failed.
fn the_one_that_goes_on(active: Vec<Log>) -> Result<Log, EngineError> {
    let handles = active.iter().map(|log| log.run().opened.handle.clone()).collect();
    let mut going = active.into_iter().filter(|log| log.run().failed().is_none());
    match (going.next(), going.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(EngineError::AmbiguousRun { asked: "the unfinished run".into(), handles }),
    }
}

fn find_named(project: &Project, store: &Arc<dyn Store>, asked: &str) -> Result<Log, EngineError> {
    let called = |log: &Log| log.run().opened.handle.as_str() == asked;
    // Found by an index, if there is nothing wrong with it; else all of them are looked through.
    if let Some(row) = store.runs(&Runs::Named(asked.to_owned()))?.pop() {
        let log = Log::load(Arc::clone(store), row.run)?;
        if called(&log) {
            return Ok(log);
        }
    }
    let by_path = placed_at(project, &where_it_was(asked));
    let by_path = by_path.ok().map(|placed| placed.within);
    let rows = named_rows(store)?;
    let newest = |wanted: &dyn Fn(&NamedRow) -> bool| rows.iter().rev().find(|row| wanted(row));
    let exact = newest(&|row| row.handle.as_str() == asked || row.id == asked);
    let of_plan = || newest(&|row| by_path.is_some() && path_in(&row.key) == by_path.as_deref());
    if let Some(row) = exact.or_else(of_plan) {
        return Ok(Log::load(Arc::clone(store), row.run)?);
    }
    let begins =
        |row: &&NamedRow| row.handle.as_str().starts_with(asked) || row.id.starts_with(asked);
    let handles = |rows: Vec<&NamedRow>| rows.iter().map(|row| row.handle.clone()).collect();
    match rows.iter().filter(begins).collect::<Vec<_>>().as_slice() {
        [] if let Some(log) = find_by_plan_name(project, store, asked)? => Ok(log),
        [] => {
            let first = asked.chars().next();
            let near = |row: &&NamedRow| row.handle.as_str().chars().next() == first;
            let near = handles(rows.iter().filter(near).collect());
            Err(EngineError::NoSuchRun { asked: asked.to_owned(), near })
        }
        [one] => Ok(Log::load(Arc::clone(store), one.run)?),
        several => Err(EngineError::AmbiguousRun {
            asked: asked.to_owned(),
            handles: handles(several.to_vec()),
        }),
    }
}

/// The unfinished run of a plan with this name, else the newest.
fn find_by_plan_name(
    project: &Project,
    store: &Arc<dyn Store>,
    name: &str,
) -> Result<Option<Log>, EngineError> {
    let is_named = |log: &Log| log.run().plan().name == name;
    let mut unfinished: Vec<Log> =
        unfinished_runs(project, store)?.into_iter().flatten().filter(is_named).collect();
    match unfinished.len() {
        0 => Ok(list(store, &Runs::All)?.into_iter().flatten().rfind(is_named)),
        1 => Ok(unfinished.pop()),
        _ => Err(EngineError::AmbiguousRun {
            asked: name.to_owned(),
            handles: unfinished.iter().map(|log| log.run().opened.handle.clone()).collect(),
        }),
    }
}

/// How many characters of each handle name its run and no other.
pub fn unique_prefixes(store: &Arc<dyn Store>) -> Result<BTreeMap<Handle, usize>, EngineError> {
    let rows = named_rows(store)?;
    let mut names: Vec<&str> =
        rows.iter().flat_map(|row| [row.handle.as_str(), row.id.as_str()]).collect();
    names.sort_unstable();
    let unique = |row: &NamedRow| (row.handle.clone(), enough(&names, row.handle.as_str()));
    Ok(rows.iter().map(unique).collect())
}

/// How much of one of these names, which are sorted, no other begins with.
fn enough(names: &[&str], name: &str) -> usize {
    let at = names.partition_point(|other| *other < name);
    let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
    let beside = beside.filter_map(|beside| names.get(beside));
    let same = |a: &str| a.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    beside.map(|other| same(other) + 1).max().unwrap_or(1).min(name.len())
}

/// The last run of a plan, where none is unfinished, it is completed and the file still says the same: a new
/// run is for somebody to ask for.
pub fn completed_run_of(
    project: &Project,
    store: &Arc<dyn Store>,
    plan: &Path,
) -> Result<Option<Log>, EngineError> {
    let within = placed(project, plan)?.within;
    let rows = store.runs(&Runs::All)?;
    let of_plan = |row: &&RunRow| path_in(&row.key) == Some(within.as_str());
    if rows.iter().filter(of_plan).any(|row| row.active) {
        return Ok(None);
    }
    let Some(row) = rows.iter().rfind(of_plan) else { return Ok(None) };
    let log = Log::load(Arc::clone(store), row.run)?;
    let same = || {
        Ok::<_, EngineError>(read_again(plan, log.run())?.plan.hash() == log.run().graph().hash())
    };
    Ok((log.run().is_completed() && same()?).then_some(log))
}

/// How many runs the plan of this one has had.
pub fn runs_of_its_plan(log: &Log) -> Result<usize, EngineError> {
    let path = log.run().opened.plan_path.as_str();
    let rows = log.store().runs(&Runs::All)?;
    Ok(rows.iter().filter(|row| path_in(&row.key) == Some(path)).count())
}

/// How a run is asked to go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GoOn {
    /// A yes where recovery would ask.
    pub confirmed: bool,
    pub terms: Terms,
}

/// Records that a run goes on, without starting anything; says whether there was something to lift or change.
pub fn lift(project: &Project, log: &mut Log, how: &GoOn) -> Result<bool, EngineError> {
    let (host, GoOn { confirmed, terms }) = (project.host.clone(), how.clone());
    Ok(!log.submit(&Command::Resume { host, confirmed, terms })?.is_empty())
}

/// What a run is found by.
struct NamedRow {
    run: RunId,
    id: String,
    handle: Handle,
    key: RunKey,
}

/// Every run that has a handle, oldest first.
fn named_rows(store: &Arc<dyn Store>) -> Result<Vec<NamedRow>, EngineError> {
    let named = |row: RunRow| {
        let handle = Handle::new(row.name).ok()?;
        Some(NamedRow { run: row.run, id: row.run.to_string(), handle, key: row.key })
    };
    Ok(store.runs(&Runs::All)?.into_iter().filter_map(named).collect())
}

/// A run that cannot be read, and why.
pub struct Unreadable {
    pub row: RunRow,
    pub error: LogError,
}

/// Runs, oldest first. One damaged run never hides the others.
pub fn list(
    store: &Arc<dyn Store>,
    which: &Runs,
) -> Result<Vec<Result<Log, Box<Unreadable>>>, EngineError> {
    Ok(store.runs(which)?.into_iter().map(|row| load(store, row)).collect())
}

/// Runs that hold their plan's place, and those that were left aside while something of them is alive.
pub fn unfinished_runs(
    project: &Project,
    store: &Arc<dyn Store>,
) -> Result<Vec<Result<Log, Box<Unreadable>>>, EngineError> {
    let mut found = Vec::new();
    for row in store.runs(&Runs::All)? {
        // Without a lease nothing of it is held: most old runs are not even read.
        if !row.active && store.leases(row.run).is_ok_and(|leases| leases.is_empty()) {
            continue;
        }
        let active = row.active;
        match load(store, row) {
            Ok(log) if active || !alive(project, &log).is_empty() => found.push(Ok(log)),
            Ok(_) => {}
            Err(damaged) if active => found.push(Err(damaged)),
            Err(_) => {}
        }
    }
    Ok(found)
}

pub(crate) fn load(store: &Arc<dyn Store>, row: RunRow) -> Result<Log, Box<Unreadable>> {
    let loaded = Log::load(Arc::clone(store), row.run);
    loaded.map_err(|error| Box::new(Unreadable { row, error }))
}

/// Asks a run, or one step's attempt, to stop. Returns the attempts that the request is about.
pub fn stop(
    log: &mut Log,
    step: Option<&StepRef>,
    cause: Cause,
    haste: Haste,
) -> Result<Vec<StepRef>, EngineError> {
    log.refresh()?;
    let Some(id) = step else {
        log.submit(&Command::Stop { scope: Scope::Run, cause, haste })?;
        return Ok(log.run().held().map(|(step, _)| step).collect());
    };
    let held = log.run().held().find(|(step, _)| step == id);
    let Some((step, fence)) = held.map(|(step, attempt)| (step, attempt.fence)) else {
        return match log.run().step(id) {
            Some(_) => Ok(Vec::new()),
            None => Err(piton_core::refusal::Refusal::UnknownStep(id.clone()).into()),
        };
    };
    let scope = Scope::Attempt(Under { step: step.clone(), fence });
    log.submit(&Command::Stop { scope, cause, haste })?;
    Ok(vec![step])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_of_a_name_is_enough_as_no_other_begins_with() {
        let names = ["0190", "calm", "calm-lynx", "calm-otter", "wise-owl"];
        let all = names.map(|name| &name[..enough(&names, name)]);
        assert_eq!(all, ["0", "calm", "calm-l", "calm-o", "w"]);
    }
}
