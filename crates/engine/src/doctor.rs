//! Examines everything piton relies on: git, the repository, the state folder, the store and its
//! chains, the refs of snapshots, attempts and processes, settings. Examining changes nothing; `repair` mends
//! the files of piton's own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use piton_core::ids::{AttemptId, StepRef};
use piton_core::observed::Sighting;
use piton_core::run::Run;
use piton_git::repo::chain;
use piton_git::repo::{Call, Git, GitError};
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{Runs, Store, StoreError};
use serde::Serialize;

use crate::config::{self, Flags, Layers};
use crate::error::EngineError;
use crate::error::LogError;
use crate::folder;
use crate::folder::Lock;
use crate::project::Project;
use crate::remedy::Remedy;
use crate::run::condition::{self, Condition};
use crate::run::log::Log;
use crate::run::observe::{Depth, observe};
use crate::run::runs;
use crate::run::snapshot_history::refuse_log_behind;

mod repair;

pub use repair::{GiveUp, Repaired, repair};

/// One thing that was looked at.
#[derive(Debug)]
pub struct Symptom {
    pub what: String,
    pub state: State,
    pub detail: String,
    pub remedy: Option<Remedy>,
    /// What a worktree was found in, about which a run that goes on does something.
    pub condition: Option<Condition>,
    /// The error that was met, which has remedies of its own.
    pub error: Option<EngineError>,
}

/// How a thing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Good,
    /// Worth knowing; piton works.
    Note,
    Bad,
    /// Something that was kept is not what it was.
    Damaged,
}

/// The most missing refs or left-over processes that are listed.
const LISTED: usize = 20;

/// Looks at everything around a folder.
pub fn examine(from: &Path) -> Vec<Symptom> {
    let mut symptoms = vec![git_program(from)];
    let project = match Project::discover(from) {
        Ok(project) => project,
        Err(EngineError::Git(GitError::NotARepository { path })) => {
            let detail = format!("{} is not in a git repository", path.display());
            symptoms.push(symptom("repository", State::Note, detail));
            symptoms.push(settings(None));
            return symptoms;
        }
        Err(error) => {
            symptoms.push(failed("repository", error));
            return symptoms;
        }
    };
    let root = project.git.main_root().to_owned();
    symptoms.push(symptom("repository", State::Good, root.display().to_string()));
    symptoms.push(settings(Some(&root)));
    symptoms.push(state_folder(&project.state));
    match project.store(Access::Look) {
        Ok(store) => {
            let damaged = store_symptoms(&project.state);
            symptoms.extend(damaged);
            runs_of(&project, &store, &mut symptoms);
        }
        Err(EngineError::Log(LogError::Store(StoreError::Missing { .. }))) => {
            symptoms.push(symptom("store", State::Note, "nothing was run here yet"));
        }
        Err(error) => symptoms.push(failed("store", error)),
    }
    symptoms
}

fn symptom(what: impl Into<String>, state: State, detail: impl Into<String>) -> Symptom {
    let (what, detail) = (what.into(), detail.into());
    Symptom { what, state, detail, remedy: None, condition: None, error: None }
}

fn failed(what: impl Into<String>, error: EngineError) -> Symptom {
    let corrupt = match &error {
        EngineError::Log(LogError::Store(error)) => error.is_corrupt(),
        EngineError::Log(LogError::Refused(_)) => false,
        EngineError::Log(_)
        | EngineError::LostStore { .. }
        | EngineError::LogBehind { .. }
        | EngineError::Settings(_) => true,
        _ => false,
    };
    let state = if corrupt { State::Damaged } else { State::Bad };
    let detail = chain(&error);
    Symptom { error: Some(error), ..symptom(what, state, detail) }
}

fn git_program(from: &Path) -> Symptom {
    let asked = Git::check_version().and_then(|()| Call::new(from).args(&["version"]).line());
    match asked {
        Ok(version) => symptom("git", State::Good, version),
        Err(error) => failed("git", error.into()),
    }
}

fn settings(repository: Option<&Path>) -> Symptom {
    match config::load(&Layers::of_process(repository), &Flags::default()) {
        Ok(loaded) => {
            let set = loaded.sources.iter().filter(|row| row.origin != config::Origin::Default);
            let rows: Vec<String> =
                set.map(|row| format!("{} from {}", row.key, row.origin)).collect();
            let detail = match rows.is_empty() {
                true => "defaults".to_owned(),
                false => rows.join(", "),
            };
            symptom("settings", State::Good, detail)
        }
        Err(error) => {
            let remedy = error.hint().map(|text| Remedy::Text { text });
            Symptom { remedy, ..symptom("settings", State::Bad, chain(&error)) }
        }
    }
}

fn state_folder(path: &Path) -> Symptom {
    let what = "state folder";
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return symptom(what, State::Note, format!("{} does not exist yet", path.display()));
        }
        Err(error) => return symptom(what, State::Bad, format!("{}: {error}", path.display())),
    };
    let mode = found.mode() & 0o777;
    let shown = path.display();
    let why = if !found.is_dir() {
        let link = found.file_type().is_symlink();
        if link { "it is a symbolic link" } else { "it is not a folder" }.to_owned()
    } else if mode & 0o500 != 0o500 {
        format!("its owner may not enter it (mode {mode:03o})")
    } else if found.uid() != rustix::process::getuid().as_raw() {
        format!("it belongs to user {}", found.uid())
    } else if mode & 0o077 != 0 {
        format!("others may enter it (mode {mode:03o})")
    } else {
        return symptom(what, State::Good, format!("{shown} (mode {mode:03o})"));
    };
    Symptom { remedy: Some(Remedy::Repair), ..symptom(what, State::Bad, format!("{shown}: {why}")) }
}

/// Every page, record, lease and text.
fn store_symptoms(state: &Path) -> Vec<Symptom> {
    let path = state.join("store.db");
    match SqliteStore::open(state, Access::Look).and_then(|store| store.examine()) {
        Ok(wrong) if wrong.is_empty() => {
            let detail = format!("{}: all of it reads back as it was written", path.display());
            vec![symptom("store", State::Good, detail)]
        }
        Ok(wrong) => wrong.into_iter().map(|error| failed("store", error.into())).collect(),
        Err(error) => vec![failed("store", error.into())],
    }
}

/// Reading a run from its beginning verifies every record against the chain, and folding it against the
/// rules; the run cache is compared with the result.
fn runs_of(project: &Project, store: &Arc<dyn Store>, symptoms: &mut Vec<Symptom>) {
    let rows = match store.runs(&Runs::All) {
        Ok(rows) => rows,
        Err(error) => return symptoms.push(failed("runs", error.into())),
    };
    let (mut good, mut bad, mut records) = (0, 0, 0);
    let mut details = Vec::new();
    for row in rows {
        match Log::fold(Arc::clone(store), row.run) {
            Ok(log) => {
                good += 1;
                records += log.run().cursor.position.0;
                details.extend(cache_symptom(store, log.run()));
                details.extend(run_symptoms(project, &log));
            }
            // The store's own examination has told this.
            Err(LogError::Store(_)) => bad += 1,
            Err(error) => {
                bad += 1;
                details.push(failed(format!("run {}", row.run), error.into()));
            }
        }
    }
    symptoms.push(match bad {
        0 => {
            let detail = format!("every chain is whole (runs: {good}, records: {records})");
            symptom("runs", State::Good, detail)
        }
        bad => symptom("runs", State::Bad, format!("{bad} cannot be read, {good} can")),
    });
    symptoms.append(&mut details);
}

/// Whether the cache holds the run that the log gives.
fn cache_symptom(store: &Arc<dyn Store>, folded: &Run) -> Option<Symptom> {
    let loaded = Log::load(Arc::clone(store), folded.opened.run).ok()?;
    // Somebody may have written meanwhile: they are compared next time.
    if loaded.run().cursor != folded.cursor || loaded.run() == folded {
        return None;
    }
    let mut steps = loaded.run().steps().zip(folded.steps());
    let what = match steps.find(|((_, _, seen), (_, _, told))| seen != told) {
        Some(((step, ..), _)) => format!("about step {step}"),
        None => "about the run as a whole".to_owned(),
    };
    let detail = format!("its cache differs from its log {what}");
    Some(symptom(format!("run {}", folded.opened.handle), State::Damaged, detail))
}

fn run_symptoms(project: &Project, log: &Log) -> Vec<Symptom> {
    let mut symptoms = Vec::new();
    let handle = log.run().opened.handle.to_string();
    if let Err(error) = runs::settings_of(log) {
        symptoms.push(failed(format!("run {handle}"), error));
    }
    if let Err(error) = refuse_log_behind(project, log) {
        symptoms.push(failed(format!("run {handle}"), error));
    }
    let (kept, lost) = snapshots(project, log.run());
    for message in lost.iter().take(LISTED) {
        symptoms.push(symptom(format!("run {handle}"), State::Damaged, message.clone()));
    }
    if kept > 0 && lost.is_empty() {
        let detail = format!("the newest snapshots of its steps are in git ({kept})");
        symptoms.push(symptom(format!("run {handle}"), State::Good, detail));
    }
    symptoms.extend(dead_attempts(project, log));
    symptoms.extend(leftovers(project, log.run()));
    symptoms.extend(worktrees(project, log));
    symptoms
}

/// How many steps have their newest snapshot, and what is wrong with the others.
fn snapshots(project: &Project, run: &Run) -> (usize, Vec<String>) {
    let mut kept = 0;
    let mut lost = Vec::new();
    for (_, plan, step) in run.steps() {
        let Some(snapshot) = step.snapshot.as_ref().map(|kept| &kept.snapshot) else { continue };
        match project.git.ref_target(&snapshot.refname) {
            Ok(Some(commit)) if commit == snapshot.commit => kept += 1,
            // A completed step's commit is on the run's branch: its snapshots may be pruned.
            Ok(None) if step.is_completed() => kept += 1,
            Ok(Some(other)) => lost.push(format!(
                "step {}: {} is {}, not the recorded {}",
                plan.id,
                snapshot.refname,
                other.short(),
                snapshot.commit.short()
            )),
            Ok(None) => lost.push(format!("step {}: {} is gone", plan.id, snapshot.refname)),
            Err(error) => lost.push(format!("step {}: {}", plan.id, chain(&error))),
        }
    }
    (kept, lost)
}

fn dead_attempts(project: &Project, log: &Log) -> Vec<Symptom> {
    let observed = observe(project, log, Depth::Locks);
    let handle = &log.run().opened.handle;
    let dead = log.run().held().filter_map(|(step, attempt)| match observed.of(attempt.id) {
        Sighting::Dead(corpse) => Some((step, corpse.cause)),
        Sighting::Alive | Sighting::Unknown(_) | Sighting::Elsewhere => None,
    });
    dead.map(|(step, cause)| {
        let detail =
            format!("the attempt of step {step} is dead ({cause}); its work is in the tree");
        let remedy = Some(Remedy::Resume { run: handle.clone() });
        Symptom { remedy, ..symptom(format!("run {handle}"), State::Note, detail) }
    })
    .collect()
}

/// Worktrees of unfinished steps that are not as they were left.
fn worktrees(project: &Project, log: &Log) -> Vec<Symptom> {
    let what = format!("run {}", log.run().opened.handle);
    let found = match condition::of_run(project, log) {
        Ok(found) => found,
        Err(error) => return vec![failed(what, error)],
    };
    let told = |(step, condition): (StepRef, Condition)| {
        let state = if condition.needs_person() { State::Bad } else { State::Note };
        let (detail, remedy) =
            (format!("step {step}: {}", condition.problem), condition.remedy.clone());
        Symptom { remedy, condition: Some(condition), ..symptom(what.clone(), state, detail) }
    };
    let rows = found.into_iter().flat_map(|(step, conditions)| {
        conditions.into_iter().map(move |condition| (step.clone(), condition))
    });
    rows.filter(|(_, condition)| !condition.is_fine()).take(LISTED).map(told).collect()
}

/// Processes of attempts that are over.
fn leftovers(project: &Project, run: &Run) -> Vec<Symptom> {
    let handle = &run.opened.handle;
    let over: Vec<AttemptId> = run
        .steps()
        .filter_map(|(_, _, step)| step.history.last())
        .map(|past| past.attempt.id)
        .collect();
    let rows = over.into_iter().filter_map(|attempt| {
        let folder = project.folder(attempt);
        let left = folder::of_attempt(attempt, &folder);
        let pids: Vec<String> = left.iter().map(|process| process.pid.to_string()).collect();
        // A keeper that has recorded the end needs a moment for its own.
        if pids.is_empty() || matches!(folder.keeper(), Ok(Lock::Held)) {
            return None;
        }
        let detail = format!("processes of a finished attempt are alive: {}", pids.join(" "));
        let remedy = Some(Remedy::Shell { command: format!("ps -fp {}", pids.join(",")) });
        Some(Symptom { remedy, ..symptom(format!("run {handle}"), State::Bad, detail) })
    });
    rows.take(LISTED).collect()
}
