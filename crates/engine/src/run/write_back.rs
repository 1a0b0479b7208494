//! Progress back into the file that another tool's plan was read from. What somebody changed there by hand
//! since is left as it is and named: the file is theirs.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::event::{FoundState, Mark};
use piton_core::ids::{Hash, Position, RunId, StepRef};
use piton_core::plan::PlanFormat;
use piton_core::run::{Ending, Phase, Run, Step};
use piton_core::view::HandChange;
use piton_formats::{
    ATTEMPTS_FILE, COMMITS_FILE, Hint, Marks, Progress, Reading, Remembered, Written, work_names,
};
use piton_git::file::{private, write_flushed};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::project::Project;
use crate::run::plan_file::{plan_file, replace};

/// What piton knows of a run's plan file and its copies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Memory {
    /// How much of the log was known when they were last written.
    position: u64,
    copies: Vec<Known>,
}

/// What piton knows a copy of the plan file to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    path: PathBuf,
    /// Of the bytes that were last read or written.
    bytes: Hash,
    /// What was there, and while it is being written what will be.
    marks: Vec<Marks>,
}

/// A copy of the plan file, as it is.
struct Copied {
    path: PathBuf,
    bytes: Vec<u8>,
    reading: Reading,
    known: Vec<Marks>,
}

/// Remembers what the file said when the run was opened.
pub(crate) fn remember(
    project: &Project,
    run: &Run,
    (bytes, marks): (&[u8], &Marks),
) -> Result<(), EngineError> {
    let (path, marks) = (plan_file(project, run), vec![marks.clone()]);
    let copies = vec![Known { path, bytes: Hash::of(bytes), marks }];
    keep(project, run.opened.run, &Memory { position: 0, copies })
}

/// What was changed by hand in the plan's file since piton last read or wrote it. Writes nothing.
pub fn changed_by_hand(project: &Project, run: &Run) -> Vec<HandChange> {
    if run.plan().source.is_none() {
        return Vec::new();
    }
    loop {
        let known = recall(project, run.opened.run);
        // Copies of it are the other tool's.
        let own = copies(project, run, &known).into_iter().next();
        // A worker may write it at this moment.
        if recall(project, run.opened.run) == known {
            let own = own.filter(|copy| !is_as_left(&known, copy));
            let changes = |copy: Copied| copy.reading.written(&all_progress(run), &copy.known);
            return own.map_or_else(Vec::new, |copy| by_hand(&changes(copy)));
        }
    }
}

/// Writes how far the run is into its plan's file, where that has a place for it, and into the copy in the
/// other tool's worktree. A file that is gone or cannot be read as that plan any more is left alone.
pub fn write_back(project: &Project, run: &Run) -> Result<Vec<HandChange>, EngineError> {
    if !run.plan().source.as_ref().is_some_and(|source| source.write_back) {
        return Ok(changed_by_hand(project, run));
    }
    let (id, Position(position)) = (run.opened.run, run.cursor.position);
    let io = || EngineError::io("the plan file cannot be locked");
    let lock = private(&memory(project, id).with_extension("lock")).map_err(io())?;
    lock.lock().map_err(io())?;
    let mut known = recall(project, id);
    if known.position > position {
        // Another process has written more than is known here.
        return Ok(Vec::new());
    }
    known.position = position;
    let progress = all_progress(run);
    let mut by_hand_in_own = None;
    for copy in copies(project, run, &known) {
        let written = copy.reading.written(&progress, &copy.known);
        by_hand_in_own.get_or_insert_with(|| by_hand(&written));
        remember_attempts(&copy, run)?;
        let Some(bytes) = written.bytes else { continue };
        let Ok(again) = read(&copy.path, &bytes, run) else { continue };
        // What is somebody's own stays as piton knew it before.
        let mut marks = again.marks();
        let (now, before) = (copy.reading.marks(), copy.known.last().cloned().unwrap_or_default());
        for (name, text) in &mut marks {
            if let Some(left) =
                before.get(name).filter(|left| now.get(name) == Some(text) && *left != text)
            {
                text.clone_from(left);
            }
        }
        let mut both = copy.known.clone();
        both.push(marks.clone());
        known.copies.retain(|other| other.path != copy.path);
        // Killed between the two, either is known.
        let (path, before) = (copy.path.clone(), Hash::of(&copy.bytes));
        known.copies.push(Known { path, bytes: before, marks: both });
        keep(project, id, &known)?;
        replace(&copy.path, &bytes).map_err(EngineError::io("the plan file cannot be written"))?;
        known.copies.pop();
        known.copies.push(Known { path: copy.path, bytes: Hash::of(&bytes), marks: vec![marks] });
        keep(project, id, &known)?;
    }
    Ok(by_hand_in_own.unwrap_or_default())
}

/// Adds what has ended to the files in which Auto-Claude remembers attempts and commits, where it has them.
fn remember_attempts(copy: &Copied, run: &Run) -> Result<(), EngineError> {
    if copy.reading.format != PlanFormat::AutoClaude {
        return Ok(());
    }
    let ended: Vec<Remembered> =
        run.steps().flat_map(|(step, _, state)| remembered(&step, state)).collect();
    let (attempts, commits) =
        (copy.path.with_file_name(ATTEMPTS_FILE), copy.path.with_file_name(COMMITS_FILE));
    let written = |path: &Path, write: &dyn Fn(&[u8]) -> Option<Vec<u8>>| match fs::read(path)
        .ok()
        .and_then(|bytes| write(&bytes))
    {
        Some(bytes) => replace(path, &bytes)
            .map_err(EngineError::io("what Auto-Claude remembers cannot be written")),
        None => Ok(()),
    };
    written(&attempts, &|bytes| copy.reading.attempts_written(bytes, &ended))?;
    written(&commits, &|bytes| copy.reading.commits_written(bytes, &ended))
}

/// The attempts at a step that came to an end.
fn remembered(step: &StepRef, state: &Step) -> Vec<Remembered> {
    let ended = state.history.iter().enumerate().filter_map(|(index, past)| {
        let error = match &past.ending {
            Ending::Completed => None,
            Ending::Failed(why) => Some(why.to_string()),
            Ending::Interrupted { cause, .. } => Some(format!("interrupted ({cause})")),
            Ending::Displaced
            | Ending::Found
            | Ending::Limited { .. }
            | Ending::Released
            | Ending::Suspended => return None,
        };
        let commit = match (&state.phase, &error) {
            (Phase::Completed { commit, .. }, None) => commit.as_ref().map(ToString::to_string),
            _ => None,
        };
        let (step, number, ended) = (step.step.clone(), index + 1, past.ended_at);
        Some(Remembered { step, number, ended, error, commit })
    });
    ended.collect()
}

fn memory(project: &Project, run: RunId) -> PathBuf {
    project.state.join(format!("plan-file-{run}.json"))
}

fn keep(project: &Project, run: RunId, known: &Memory) -> Result<(), EngineError> {
    write_flushed(&memory(project, run), known)
        .map_err(EngineError::io("what the plan file says cannot be kept"))
}

fn recall(project: &Project, run: RunId) -> Memory {
    let text = piton_git::file::read(memory(project, run)).ok();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn is_as_left(known: &Memory, copy: &Copied) -> bool {
    let bytes = Hash::of(&copy.bytes);
    known.copies.iter().any(|known| known.path == copy.path && known.bytes == bytes)
}

/// The plan's file, and the copy of it in the worktree that the other tool made for it.
fn copies(project: &Project, run: &Run, known: &Memory) -> Vec<Copied> {
    let Some(source) = &run.plan().source else { return Vec::new() };
    let own = plan_file(project, run);
    let mut paths = vec![own.clone()];
    if source.format == PlanFormat::AutoClaude {
        paths.extend(other_copies(project, run).into_iter().filter(|path| *path != own));
    }
    let of = |path: &Path| known.copies.iter().find(|known| known.path == path);
    let copied = |path: PathBuf| {
        let bytes = fs::read(&path).ok()?;
        let reading = read(&path, &bytes, run).ok()?;
        // What a copy that was never written says otherwise than the file did is the other tool's.
        let known = of(&path).or_else(|| of(&own)).map(|known| known.marks.clone());
        Some(Copied { path, bytes, reading, known: known.unwrap_or_default() })
    };
    paths.into_iter().filter_map(copied).collect()
}

/// Where a specification's files are beside its worktree.
fn other_copies(project: &Project, run: &Run) -> Vec<PathBuf> {
    let within = Path::new(&run.opened.plan_path);
    let root = project.git.main_root();
    let names = work_names(PlanFormat::AutoClaude, &run.opened.plan_path);
    let trees = names.folders.iter().map(|folder| root.join(folder));
    let paths = trees.chain([root.to_owned()]).map(|tree| tree.join(within));
    paths.filter(|path| path.is_file()).collect()
}

fn read(path: &Path, bytes: &[u8], run: &Run) -> Result<Reading, piton_formats::PlanError> {
    let format = run.plan().source.as_ref().map(|source| source.format);
    piton_formats::read(bytes, &Hint { path: &path.to_string_lossy(), format })
}

fn by_hand(written: &Written) -> Vec<HandChange> {
    let change = |change: &piton_formats::ByHand| HandChange {
        step: StepRef::first(change.step.clone()),
        says: change.says.clone(),
    };
    written.by_hand.iter().map(change).collect()
}

fn all_progress(run: &Run) -> Vec<Progress> {
    run.steps().map(|(step, _, state)| progress(step, state)).collect()
}

fn progress(step: StepRef, state: &Step) -> Progress {
    let done = state.checklist.marks.iter().filter(|(_, mark)| **mark == Mark::Done);
    let past = state.history.iter().map(|past| &past.attempt).chain(state.attempt());
    let ended = state.history.last().map(|past| past.ended_at);
    Progress {
        step: step.step,
        items: done.map(|(item, _)| item.clone()).collect(),
        substeps: state.checklist.completed.iter().cloned().collect(),
        started: past.map(|attempt| attempt.claimed_at).next(),
        since: match &state.phase {
            Phase::Completed { at, .. } | Phase::Skipped { at, .. } => Some(*at),
            Phase::Held { attempt, .. } => Some(attempt.claimed_at),
            Phase::Interrupted { last, .. } => Some(last.at),
            Phase::Failed { .. }
            | Phase::Suspended { .. }
            | Phase::Parked { .. }
            | Phase::Pending { .. } => ended,
        },
        state: match &state.phase {
            Phase::Completed { commit, .. } => {
                FoundState::Completed { commit: commit.as_ref().map(ToString::to_string) }
            }
            Phase::Skipped { reason, .. } => FoundState::Skipped { reason: reason.clone() },
            Phase::Failed { why, .. } => FoundState::Failed { reason: why.to_string() },
            Phase::Held { .. }
            | Phase::Interrupted { .. }
            | Phase::Suspended { .. }
            | Phase::Parked { .. } => FoundState::InProgress,
            Phase::Pending { .. } => FoundState::Pending,
        },
    }
}
