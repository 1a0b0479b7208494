//! The snapshots of a run, for people: which there are, what is in one, what changed, and putting one
//! back. What the log names and what only a ref names are told apart. Looking writes nothing; putting
//! back is a transaction that loses nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use piton_core::event::{Event, Fact, Holder, Omission, Snapshot, SnapshotReason, Under};
use piton_core::ids::{Fence, Handle, Oid, StepRef};
use piton_core::record::Cursor;
use piton_core::run::{Attempt, Step};
use piton_core::time::{Millis, timestamp};
use piton_git::snapshot::{self, Begun, FileChange};
use piton_git::worktree::Worktree;
use serde::{Serialize, Serializer};

use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;
use crate::run::step_snapshot::reason_in;

mod gone;

pub use gone::list_gone;

/// Where a hint would put the files of a step: it is not there yet, and not in the user's checkout.
pub fn place_for(handle: &Handle, step: &StepRef) -> String {
    format!("../{handle}-{step}")
}

/// A snapshot that has its ref.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KnownSnapshot {
    #[serde(flatten)]
    pub step: StepRef,
    pub fence: Fence,
    /// What its ref ends with.
    pub n: String,
    #[serde(serialize_with = "rfc3339")]
    pub at: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<SnapshotReason>,
    /// Paths that differ from the step's base.
    pub changed: u64,
    pub omitted: Vec<Omission>,
    pub commit: Oid,
    pub refname: String,
    pub known_by: KnownBy,
}

impl KnownSnapshot {
    /// Whether it is a copy made before a restore, a reset or a clean-up. What it has was about to be
    /// replaced: it is never what "the newest" means, and goes by its id.
    pub fn is_copy(&self) -> bool {
        self.reason == Some(SnapshotReason::Reset)
    }
}

/// Who says that there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownBy {
    Log,
    /// Its ref alone: kept by a holder that had lost its claim, or before something was put back.
    Ref,
}

/// The snapshots of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotList {
    /// Oldest first.
    pub snapshots: Vec<KnownSnapshot>,
    /// How many the log names whose refs are gone.
    pub pruned: u64,
}

fn rfc3339<S: Serializer>(at: &Millis, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&timestamp(*at))
}

/// Every snapshot of a run, or of one of its steps.
pub fn list(
    project: &Project,
    log: &Log,
    step: Option<&StepRef>,
) -> Result<SnapshotList, EngineError> {
    let run = log.run();
    let mut refs = refs(project, log)?;
    let mut listed = SnapshotList { snapshots: Vec::new(), pruned: 0 };
    for record in log.store().read(run.opened.run, Cursor::START)? {
        let Ok(Event::Under(
            Under { step, fence },
            Fact::Checkpointed { snapshot: Some(kept), .. },
        )) = Event::from_body(&record.body)
        else {
            continue;
        };
        match refs.remove(&kept.refname).filter(|found| found.commit == kept.commit) {
            Some(_) => listed.snapshots.push(recorded(step, fence, record.at, kept)),
            None => listed.pruned += 1,
        }
    }
    for (refname, found) in refs {
        if step.is_none_or(|step| found.step == *step) {
            listed.snapshots.push(by_ref(project, log, refname, found)?);
        }
    }
    listed.snapshots.retain(|kept| step.is_none_or(|step| kept.step == *step));
    in_order(&mut listed.snapshots);
    Ok(listed)
}

/// Oldest first. Git knows the second, the log the millisecond: within a second the numbers tell.
fn in_order(snapshots: &mut [KnownSnapshot]) {
    let second = |kept: &KnownSnapshot| kept.at.0.div_euclid(1000);
    snapshots.sort_by_key(|kept| (second(kept), kept.fence, kept.n.len(), kept.n.clone()));
}

/// A ref that is called like a snapshot's.
struct FoundRef {
    step: StepRef,
    fence: Fence,
    n: String,
    commit: Oid,
    at: Millis,
}

/// The refs of a run's snapshots, by name.
fn refs(project: &Project, log: &Log) -> Result<BTreeMap<String, FoundRef>, EngineError> {
    let prefix = format!("refs/piton/{}/", log.run().opened.handle);
    let mut found = BTreeMap::new();
    for (refname, commit, seconds) in project.git.commits_under(&prefix)? {
        let parts: Vec<&str> = refname[prefix.len()..].split('/').collect();
        let &[name, fence, n] = parts.as_slice() else { continue };
        let (Some(step), Ok(fence)) = (step_named(log, name), fence.parse()) else { continue };
        let (fence, n, at) = (Fence(fence), n.to_owned(), Millis(seconds.saturating_mul(1000)));
        found.insert(refname, FoundRef { step, fence, n, commit, at });
    }
    Ok(found)
}

/// Refuses a run whose log does not reach to the claims that its snapshots were taken under: its newest
/// records are gone, and going on would give their fences to others.
pub fn refuse_log_behind(project: &Project, log: &Log) -> Result<(), EngineError> {
    let prefix = format!("refs/piton/{}/", log.run().opened.handle);
    // As in `refs`, without a look into every commit.
    let fenced = |(refname, _): (String, Oid)| {
        let fence: u64 = refname[prefix.len()..].split('/').nth(1)?.parse().ok()?;
        Some((fence, refname))
    };
    let newest = project.git.refs_under(&prefix)?.into_iter().filter_map(fenced).max();
    let Some((fence, refname)) = newest else { return Ok(()) };
    let reaches = |log: &Log| log.run().cursor.position.0 >= fence;
    // Somebody may have claimed it since the log was read.
    if reaches(log) || reaches(&Log::load(Arc::clone(log.store()), log.run().opened.run)?) {
        return Ok(());
    }
    let (handle, position) = (log.run().opened.handle.clone(), log.run().cursor.position);
    let store = project.state.join("store.db");
    Err(EngineError::LogBehind { handle, position, refname, store })
}

/// A step as refs spell it: with its iteration at the end, where that is not the first.
fn step_named(log: &Log, name: &str) -> Option<StepRef> {
    let known = |step: &StepRef| log.run().step(step).is_some();
    if let Some(step) = name.parse::<StepRef>().ok().filter(known) {
        return Some(step);
    }
    let (step, iteration) = name.rsplit_once('-')?;
    format!("{step}#{iteration}").parse().ok()
}

fn recorded(step: StepRef, fence: Fence, at: Millis, kept: Snapshot) -> KnownSnapshot {
    let n = kept.refname.rsplit('/').next().unwrap_or_default().to_owned();
    KnownSnapshot {
        step,
        fence,
        n,
        at,
        reason: Some(kept.reason),
        changed: kept.changed,
        omitted: kept.omitted,
        commit: kept.commit,
        refname: kept.refname,
        known_by: KnownBy::Log,
    }
}

fn by_ref(
    project: &Project,
    log: &Log,
    refname: String,
    found: FoundRef,
) -> Result<KnownSnapshot, EngineError> {
    let FoundRef { step, fence, n, commit, at } = found;
    let (message, omitted) = snapshot::describe(&project.git, &commit)?;
    let changed = snapshot::changed_paths(&project.git, &base(log, &step), &commit)?.len() as u64;
    let (reason, known_by) = (reason_in(&message), KnownBy::Ref);
    Ok(KnownSnapshot { step, fence, n, at, reason, changed, omitted, commit, refname, known_by })
}

/// The newest snapshot of an attempt that died before its log could name it.
pub(crate) fn unrecorded(
    project: &Project,
    log: &Log,
    (step, fence): (&StepRef, Fence),
    recorded: Option<&str>,
) -> Result<Option<KnownSnapshot>, EngineError> {
    let own = |(_, found): &(String, FoundRef)| found.step == *step && found.fence == fence;
    let newest = refs(project, log)?.into_iter().filter(own);
    let newest = newest.max_by_key(|(_, found)| (found.n.len(), found.n.clone()));
    match newest {
        Some((refname, found)) if recorded != Some(refname.as_str()) => {
            Ok(Some(by_ref(project, log, refname, found)?).filter(|kept| !kept.is_copy()))
        }
        _ => Ok(None),
    }
}

/// What a step's files are held against.
fn base(log: &Log, step: &StepRef) -> Oid {
    let state = log.run().step(step).map(|(_, state)| state);
    state.and_then(|state| state.base.clone()).unwrap_or_else(|| log.run().opened.base.clone())
}

/// What a snapshot's files are held against where the run's records are gone: where its history parts from
/// what is checked out in the repository, as far as that can be told.
fn base_in_git(project: &Project, snapshot: &Oid) -> Oid {
    let git = &project.git;
    let Ok(head) = git.commit(&format!("{snapshot}^1")) else { return snapshot.clone() };
    let main = piton_git::repo::plain::head(git.common_dir(), git.common_dir());
    let fork = main.and_then(|(main, _)| git.fork_point(&head, &main).ok().flatten());
    fork.unwrap_or(head)
}

/// What a snapshot's files are held against.
fn base_of(project: &Project, log: Option<&Log>, kept: &KnownSnapshot) -> Oid {
    log.map_or_else(|| base_in_git(project, &kept.commit), |log| base(log, &kept.step))
}

/// Which snapshot is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// The newest of the work.
    Last,
    /// The newest that is not younger.
    Time(Millis),
    /// The beginning of its id, its ref, or `FENCE/N`.
    Named(String),
}

/// Finds it among some.
pub fn choose<'a>(among: &'a [KnownSnapshot], at: &At) -> Option<&'a KnownSnapshot> {
    match at {
        At::Last => among.iter().rfind(|kept| !kept.is_copy()),
        At::Time(time) => among.iter().rfind(|kept| kept.at <= *time && !kept.is_copy()),
        At::Named(text) => {
            let is = |kept: &&KnownSnapshot| {
                kept.refname == *text || format!("{}/{}", kept.fence, kept.n) == *text
            };
            let begins = |kept: &&KnownSnapshot| {
                text.len() >= 4 && kept.commit.as_str().starts_with(&text.to_ascii_lowercase())
            };
            let mut found = among.iter().filter(begins);
            among.iter().rfind(is).or_else(|| match (found.next(), found.next()) {
                (Some(one), None) => Some(one),
                _ => None,
            })
        }
    }
}

/// What is in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// As git has it: with what was reported, and what a tree cannot say.
    pub message: String,
    /// What git was in the middle of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Begun>,
    /// The commit that was checked out.
    pub head: Option<Oid>,
    pub base: Oid,
    /// Against the base.
    pub files: Vec<FileChange>,
}

/// Without a log where the run's records are gone.
pub fn contents(
    project: &Project,
    log: Option<&Log>,
    kept: &KnownSnapshot,
) -> Result<Contents, EngineError> {
    let (message, _) = snapshot::describe(&project.git, &kept.commit)?;
    let base = base_of(project, log, kept);
    let files = snapshot::changed_paths(&project.git, &base, &kept.commit)?;
    let head = project.git.commit(&format!("{}^1", kept.commit)).ok();
    let operation = snapshot::operation(&project.git, &kept.commit)?;
    Ok(Contents { message, operation, head, base, files })
}

/// What a snapshot is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The one before it of the same step, or the step's base.
    Previous,
    Base,
    /// The files that are there now.
    Files,
}

/// What is different, and from what to what.
pub struct Compared {
    pub from: String,
    pub to: String,
    pub difference: snapshot::Difference,
}

/// Without a log where the run's records are gone.
pub fn compare(
    project: &Project,
    log: Option<&Log>,
    (among, kept): (&[KnownSnapshot], &KnownSnapshot),
    against: Against,
    paths: &[Vec<u8>],
) -> Result<Compared, EngineError> {
    let git = &project.git;
    let earlier = among.iter().take_while(|other| other.refname != kept.refname);
    let earlier = earlier.filter(|other| other.step == kept.step).last();
    let (from, to, difference) = match (against, earlier) {
        (Against::Previous, Some(earlier)) => {
            let difference = snapshot::between(git, &earlier.commit, &kept.commit, paths)?;
            (earlier.refname.clone(), kept.refname.clone(), difference)
        }
        (Against::Base | Against::Previous, _) => {
            let base = base_of(project, log, kept);
            let difference = snapshot::between(git, &base, &kept.commit, paths)?;
            (base.to_string(), kept.refname.clone(), difference)
        }
        (Against::Files, _) => {
            let log = log.ok_or_else(|| EngineError::NoRecords { step: kept.step.clone() })?;
            let tree = Worktree::at(git, &place(project, log, kept)?);
            let difference = snapshot::with_files(&tree, &kept.commit, paths)?;
            (kept.refname.clone(), tree.path().display().to_string(), difference)
        }
    };
    Ok(Compared { from, to, difference })
}

/// The worktree that a snapshot is of.
pub(crate) fn place(
    project: &Project,
    log: &Log,
    kept: &KnownSnapshot,
) -> Result<PathBuf, EngineError> {
    let attempts = attempts(log, &kept.step);
    let attempt = attempts.iter().find(|attempt| attempt.fence == kept.fence);
    attempt_place(project, log, &kept.step, attempt.copied())
}

fn attempts<'log>(log: &'log Log, step: &StepRef) -> Vec<&'log Attempt> {
    let of = |state: &'log Step| {
        let past = state.history.iter().map(|past| &past.attempt);
        past.chain(state.attempt()).collect()
    };
    log.run().step(step).map(|(_, state)| of(state)).unwrap_or_default()
}

pub(crate) fn attempt_place(
    project: &Project,
    log: &Log,
    step: &StepRef,
    attempt: Option<&Attempt>,
) -> Result<PathBuf, EngineError> {
    let outside = attempt.filter(|attempt| matches!(attempt.holder, Holder::External { .. }));
    let (run, root) = (log.run(), settings_of(log)?.worktree_root);
    match outside {
        Some(attempt) => project
            .place_of(&root, run, attempt)
            .ok_or_else(|| EngineError::OtherHost { host: attempt.holder.host().to_string() }),
        None => project.tree_of(&root, run, step).ok_or_else(|| {
            let (handle, step) = (run.opened.handle.clone(), step.clone());
            EngineError::NoOwnTree { handle, step }
        }),
    }
}

/// The newest claim of a step.
pub(crate) fn last_fence(log: &Log, step: &StepRef) -> Option<Fence> {
    attempts(log, step).iter().map(|attempt| attempt.fence).max()
}

/// Whether a snapshot has a file or folder.
pub fn has_path(project: &Project, kept: &KnownSnapshot, path: &[u8]) -> Result<bool, EngineError> {
    Ok(snapshot::has_path(&project.git, &kept.commit, path)?)
}

/// Writes a snapshot's files into a folder of their own.
pub fn export(
    project: &Project,
    kept: &KnownSnapshot,
    paths: &[Vec<u8>],
    into: &Path,
) -> Result<u64, EngineError> {
    Ok(snapshot::export(&project.git, &kept.commit, paths, into)?)
}
