//! The snapshots of a run, for people: which there are, what is in one, what changed, and putting one
//! back. What the log names and what only a ref names are told apart. Looking writes nothing; putting
//! back is a transaction that loses nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use piton_core::claim::believed_until;
use piton_core::event::{Event, Holder, Omission, Snapshot, SnapshotReason};
use piton_core::ids::{Fence, Oid, RunId, StepId, StepRef};
use piton_core::record::Cursor;
use piton_core::recover::Sighting;
use piton_core::run::{Attempt, Step};
use piton_core::time::Millis;
use piton_core::view::{step_branch, timestamp};
use piton_store::sqlite::Access;
use serde::{Deserialize, Serialize, Serializer};

use crate::bury::bury_dead;
use crate::crash;
use crate::error::EngineError;
use crate::git::GitError;
use crate::keeper::{reason_in, snapshot_message, snapshot_ref};
use crate::land;
use crate::log::Log;
use crate::observe::{Depth, observe};
use crate::project::Project;
use crate::runs::settings_of;
use crate::snapshot::{self, Begun, FileChange, PutBack, PutError, Putting};
use crate::undo::{self, Act, ActStage, Deed, Journal, NotUndone};
use crate::worktree::{Tenant, TreeState, Worktree};

mod gone;

pub use gone::list_gone;

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
pub struct Listed {
    /// Oldest first.
    pub snapshots: Vec<KnownSnapshot>,
    /// How many the log names whose refs are gone.
    pub pruned: u64,
}

fn rfc3339<S: Serializer>(at: &Millis, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&timestamp(*at))
}

/// Every snapshot of a run, or of one of its steps.
pub fn list(project: &Project, log: &Log, step: Option<&StepId>) -> Result<Listed, EngineError> {
    let run = log.run();
    let mut refs = refs(project, log)?;
    let mut listed = Listed { snapshots: Vec::new(), pruned: 0 };
    for record in log.store().read(run.opened.run, Cursor::START)? {
        let Ok(Event::Checkpointed { step, fence, snapshot: Some(kept), .. }) =
            Event::from_body(&record.body)
        else {
            continue;
        };
        match refs.remove(&kept.refname).filter(|found| found.commit == kept.commit) {
            Some(_) => listed.snapshots.push(recorded(step, fence, record.at, kept)),
            None => listed.pruned += 1,
        }
    }
    for (refname, found) in refs {
        if step.is_none_or(|step| found.step.step == *step) {
            listed.snapshots.push(by_ref(project, log, refname, found)?);
        }
    }
    listed.snapshots.retain(|kept| step.is_none_or(|step| kept.step.step == *step));
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

/// A step as refs spell it: with its iteration at the end, where that is not the first.
fn step_named(log: &Log, name: &str) -> Option<StepRef> {
    let known = |name: &str| StepId::new(name).ok().filter(|id| log.run().index_of(id).is_some());
    if let Some(step) = known(name) {
        return Some(StepRef::first(step));
    }
    let (step, iteration) = name.rsplit_once('-')?;
    Some(StepRef { step: known(step)?, iteration: iteration.parse().ok()? })
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
    let (message, omitted) = snapshot::told(&project.git, &commit)?;
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
            by_ref(project, log, refname, found).map(Some)
        }
        _ => Ok(None),
    }
}

/// What a step's files are held against.
fn base(log: &Log, step: &StepRef) -> Oid {
    let state = log.run().step(&step.step).map(|(_, state)| state);
    state.and_then(|state| state.base.clone()).unwrap_or_else(|| log.run().opened.base.clone())
}

/// What a snapshot's files are held against where the run's records are gone: where its history parts from
/// what is checked out in the repository, as far as that can be told.
fn base_in_git(project: &Project, snapshot: &Oid) -> Oid {
    let git = &project.git;
    let Ok(head) = git.commit(&format!("{snapshot}^1")) else { return snapshot.clone() };
    let main = crate::git::plain::head(git.common_dir(), git.common_dir());
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
    /// The newest.
    Last,
    /// The newest that is not younger.
    Time(Millis),
    /// The beginning of its id, its ref, or `FENCE/N`.
    Named(String),
}

/// Finds it among some.
pub fn choose<'a>(among: &'a [KnownSnapshot], at: &At) -> Option<&'a KnownSnapshot> {
    match at {
        At::Last => among.last(),
        At::Time(time) => among.iter().rfind(|kept| kept.at <= *time),
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
    let (message, _) = snapshot::told(&project.git, &kept.commit)?;
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
            let log = log.ok_or_else(|| EngineError::NoRecords { step: kept.step.step.clone() })?;
            let tree = Worktree::at(git, &place(project, log, kept)?);
            let difference = snapshot::with_files(&tree, &kept.commit, paths)?;
            (kept.refname.clone(), tree.path().display().to_string(), difference)
        }
    };
    Ok(Compared { from, to, difference })
}

/// The worktree that a snapshot is of.
fn place(project: &Project, log: &Log, kept: &KnownSnapshot) -> Result<PathBuf, EngineError> {
    let attempts = attempts(log, &kept.step);
    let attempt = attempts.iter().find(|attempt| attempt.fence == kept.fence);
    attempt_place(project, log, &kept.step, attempt.copied())
}

fn attempts<'log>(log: &'log Log, step: &StepRef) -> Vec<&'log Attempt> {
    let of = |state: &'log Step| {
        let past = state.history.iter().map(|past| &past.attempt);
        past.chain(state.attempt()).collect()
    };
    log.run().step(&step.step).map(|(_, state)| of(state)).unwrap_or_default()
}

fn attempt_place(
    project: &Project,
    log: &Log,
    step: &StepRef,
    attempt: Option<&Attempt>,
) -> Result<PathBuf, EngineError> {
    match attempt.map(|attempt| &attempt.holder) {
        Some(Holder::External { host, worktree }) if *host == project.host => Ok(worktree.into()),
        Some(Holder::External { host, .. }) => {
            Err(EngineError::OtherHost { host: host.to_string() })
        }
        Some(Holder::Keeper { .. }) | None => {
            let root = settings_of(log)?.worktree_root;
            Ok(project.place_of(&root, log.run(), step))
        }
    }
}

/// What was put back, and where what was there before is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoredTree {
    pub path: PathBuf,
    /// The snapshot of what was there; nothing where nothing was.
    pub before: Option<String>,
    /// The branch and the index went back, too.
    pub branch: Option<String>,
    pub written: Vec<String>,
    pub removed: Vec<String>,
    /// Where files are that were in the way and in no snapshot.
    pub aside: Option<PathBuf>,
    /// What git was in the middle of then, and is not now: putting back begins no operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Begun>,
}

/// What it takes to reverse a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredFrom {
    pub run: RunId,
    pub step: StepId,
    pub path: PathBuf,
    /// The snapshot of what was there.
    pub before: String,
    pub commit: Oid,
    /// The files and folders that were meant, as hexadecimal digits; everything when there are none.
    pub paths: Vec<String>,
    /// The step's last claim then: whoever claims it later works on what was put back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// What was checked out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

/// Whether edits that are newer than the last snapshot may be replaced; they are kept in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewerEdits {
    Refuse,
    Replace,
}

/// Puts a snapshot back into its worktree, whole or some paths of it. Refused while anybody works there.
pub fn restore(
    project: &Project,
    log: &mut Log,
    (among, kept): (&[KnownSnapshot], &KnownSnapshot),
    paths: &[Vec<u8>],
    edits: NewerEdits,
) -> Result<RestoredTree, EngineError> {
    let tree = Worktree::at(&project.git, &place(project, log, kept)?);
    let journal = Journal::lock(project)?;
    let all = (among, kept);
    let restored = restore_into(project, log, &tree, all, (paths, edits), Some(&journal))?;
    let begun = match restored.branch.is_some() && tree.underway().is_none() {
        true => snapshot::operation(&project.git, &kept.commit)?,
        false => None,
    };
    Ok(RestoredTree { operation: begun, ..restored })
}

/// The same, into any worktree; an act is written down where there is a journal.
fn restore_into(
    project: &Project,
    log: &mut Log,
    tree: &Worktree,
    (among, kept): (&[KnownSnapshot], &KnownSnapshot),
    (paths, edits): (&[Vec<u8>], NewerEdits),
    journal: Option<&Journal>,
) -> Result<RestoredTree, EngineError> {
    let _alone = snapshot::lock_tree(tree)?;
    refuse_in_use(project, log, tree)?;
    tree.mend()?;
    let branch = step_branch(&log.run().opened.handle, &kept.step);
    let on = match tree.state()? {
        TreeState::Foreign { why } => {
            return Err(GitError::Foreign { path: tree.path().to_owned(), why }.into());
        }
        TreeState::Missing => {
            refuse_others_work(log, kept, tree, None)?;
            return rebuilt(project, log, tree, kept, paths);
        }
        TreeState::Present { branch, .. } => branch,
    };
    if let Some(other) = refuse_others_work(log, kept, tree, on.as_deref())? {
        return taken_over(project, log, tree, (kept, other), paths);
    }
    let whole = paths.is_empty() && on.as_ref() == Some(&branch);
    let to = kept.commit.clone();
    let branch = whole.then_some(branch);
    let putting = |from: Oid| Putting { from, to: to.clone(), paths: paths.to_vec(), branch };
    let acts = journal.map(|journal| Acts { project, log, journal });
    if let Some((found, done)) = snapshot::finish_putting(tree)? {
        let again = putting(found.from.clone());
        if let Some(acts) = &acts {
            acts.finish(&found.from)?;
        }
        if found == again {
            let before = among.iter().find(|other| other.commit == found.from);
            return Ok(told(tree, before.map(|before| before.refname.clone()), again, done));
        }
        return restore_present(project, log, tree, (kept, again), acts);
    }
    if edits == NewerEdits::Refuse {
        let known: Vec<&KnownSnapshot> = among.iter().filter(|other| is_of_work(other)).collect();
        refuse_newer_edits(tree, &known, kept, paths)?;
    }
    restore_present(project, log, tree, (kept, putting(to.clone())), acts)
}

/// Where restores are written down, to be undone.
struct Acts<'a> {
    project: &'a Project,
    log: &'a Log,
    journal: &'a Journal,
}

impl Acts<'_> {
    fn begin(
        &self,
        tree: &Worktree,
        (step, before): (&StepRef, &Snapshot),
        putting: &Putting,
    ) -> Result<Act, EngineError> {
        let hex = |path: &Vec<u8>| path.iter().map(|byte| format!("{byte:02x}")).collect();
        let from = RestoredFrom {
            run: self.log.run().opened.run,
            step: step.step.clone(),
            path: tree.path().to_owned(),
            before: before.refname.clone(),
            commit: before.commit.clone(),
            paths: putting.paths.iter().map(hex).collect(),
            fence: last_fence(self.log, step),
            branch: branch_of(tree)?,
        };
        self.journal.begin(self.log.now()?.wall, Deed::Restore(from))
    }

    fn end(&self, mut act: Act, stage: ActStage) -> Result<(), EngineError> {
        act.stage = stage;
        self.journal.write(&act)
    }

    /// What was cut short, and has been finished since.
    fn finish(&self, before: &Oid) -> Result<(), EngineError> {
        let is_it = |act: &Act| match &act.deed {
            Deed::Restore(from) => act.stage == ActStage::Intended && from.commit == *before,
            _ => false,
        };
        let found = undo::acts(self.project)?.acts.into_iter().rfind(is_it);
        found.map_or(Ok(()), |act| self.end(act, ActStage::Done))
    }
}

/// Reverses a restore: what was there before is put back the same way. Where something has changed since
/// that no snapshot has, nothing is.
pub(crate) fn undo_restore(
    project: &Project,
    journal: &Journal,
    act: &mut Act,
) -> Result<Vec<String>, EngineError> {
    let Deed::Restore(from) = act.deed.clone() else {
        panic!("only a restore is undone by putting back what was there");
    };
    let store = project.store(Access::Existing)?;
    let mut log = Log::load(store, from.run)?;
    let all = list(project, &log, Some(&from.step))?.snapshots;
    let gone =
        || NotUndone::InTheWay { act: act.act, what: vec![format!("{} is gone", from.before)] };
    let kept = all.iter().find(|kept| kept.refname == from.before && kept.commit == from.commit);
    let kept = kept.ok_or_else(gone)?.clone();
    let tree = Worktree::at(&project.git, &from.path);
    refuse_used_since(&log, &tree, (act, &from), &kept)?;
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let path = |hex: &String| hex.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>();
    let paths: Vec<Vec<u8>> = from.paths.iter().filter_map(path).collect();
    let edits = match act.stage {
        // Begun already: it was looked at then.
        ActStage::Undoing => NewerEdits::Replace,
        _ => NewerEdits::Refuse,
    };
    if edits == NewerEdits::Refuse {
        refuse_in_use(project, &mut log, &tree)?;
        // What was put back may be any that there was then.
        let is_known = |other: &&KnownSnapshot| is_of_work(other) || other.at <= act.at;
        let known: Vec<&KnownSnapshot> = all.iter().filter(is_known).collect();
        let looked = match tree.state()? {
            TreeState::Missing => Ok(()),
            _ => refuse_newer_edits(&tree, &known, &kept, &paths),
        };
        match looked {
            Err(EngineError::NewerEdits { paths: what }) => {
                return Err(NotUndone::InTheWay { act: act.act, what }.into());
            }
            looked => looked?,
        }
        act.stage = ActStage::Undoing;
        journal.write(act)?;
    }
    let (among, edits) = ((all.as_slice(), &kept), NewerEdits::Replace);
    let done = restore_into(project, &mut log, &tree, among, (&paths, edits), None)?;
    let files = done.written.len() + done.removed.len();
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    Ok(vec![format!("{}: {files} as before", done.path.display())])
}

/// What was put back may be somebody's work by now: of another step that has got the run's worktree, or
/// of a later attempt that has gone on from it. Their files are not set back under them.
fn refuse_used_since(
    log: &Log,
    tree: &Worktree,
    (act, from): (&Act, &RestoredFrom),
    kept: &KnownSnapshot,
) -> Result<(), EngineError> {
    let (handle, step) = (&log.run().opened.handle, &from.step);
    let (place, number) = (tree.path().display(), act.act);
    let before = format!("{handle}/{step} --at {}/{}", kept.fence, kept.n);
    let apart = format!("`piton snapshot restore {before} --to DIR`");
    let refused = |why: String, next: String| -> Result<(), EngineError> {
        Err(NotUndone::UsedSince { act: number, why, next }.into())
    };
    if let Some(other) = others_work(log, &kept.step, tree, None) {
        let why = format!("step {} has the worktree {place} by now", other.step);
        return refused(why, format!("what was there before is kept: {apart}"));
    }
    if from.fence.is_some() && last_fence(log, &kept.step) > from.fence {
        let why = format!("step {step} was worked on since, from what was put back");
        let there = format!("`piton snapshot restore {before}`");
        return refused(why, format!("what was there before is kept: {there}, or {apart}"));
    }
    let on = branch_of(tree)?;
    match &from.branch {
        Some(branch) if act.stage != ActStage::Undoing && tree.is_ours() && on != from.branch => {
            let on = on.map_or("no branch".to_owned(), |on| format!("branch {on}"));
            let why = format!("{place} is on {on} by now, not on {branch}");
            refused(why, format!("`git -C {place} switch {branch}`, then `piton undo {number}`"))
        }
        _ => Ok(()),
    }
}

/// What is checked out in a worktree.
fn branch_of(tree: &Worktree) -> Result<Option<String>, EngineError> {
    Ok(match tree.state()? {
        TreeState::Present { branch, .. } => branch,
        TreeState::Missing | TreeState::Foreign { .. } => None,
    })
}

/// Puts back what a ref has into a worktree that is there; what was there before is kept first.
fn restore_present(
    project: &Project,
    log: &Log,
    tree: &Worktree,
    (kept, putting): (&KnownSnapshot, Putting),
    acts: Option<Acts<'_>>,
) -> Result<RestoredTree, EngineError> {
    let before = keep_present(log, tree, &kept.step)?;
    snapshot::read_back(&project.git, &before)?;
    crash::point("restore.kept");
    let putting = Putting { from: before.commit.clone(), ..putting };
    let begun = acts.as_ref().map(|acts| acts.begin(tree, (&kept.step, &before), &putting));
    let begun = begun.transpose()?;
    let put = snapshot::put_back(tree, &putting);
    let stage = match &put {
        Ok(_) => ActStage::Done,
        Err(PutError::TakenBack(_)) => ActStage::Undone,
        Err(PutError::Torn { .. }) => ActStage::Intended,
    };
    if let (Some(acts), Some(act)) = (&acts, begun) {
        acts.end(act, stage)?;
    }
    match put {
        Ok(done) => Ok(told(tree, Some(before.refname), putting, done)),
        Err(source) => Err(EngineError::NotPutBack { before: before.refname, source }),
    }
}

fn told(tree: &Worktree, before: Option<String>, putting: Putting, done: PutBack) -> RestoredTree {
    let PutBack { written, removed, aside } = done;
    let (path, branch) = (tree.path().to_owned(), putting.branch);
    RestoredTree { path, before, branch, written, removed, aside, operation: None }
}

/// The run's worktree, whose last step is done: with nothing in it that has not landed, it is made the
/// worktree of the snapshot's step, as whoever goes on with that one would.
fn taken_over(
    project: &Project,
    log: &Log,
    tree: &Worktree,
    (kept, other): (&KnownSnapshot, Tenant),
    paths: &[Vec<u8>],
) -> Result<RestoredTree, EngineError> {
    let tip = land::run_tip(project, log.run())?;
    let landed = match tree.state()? {
        TreeState::Present { head: Some(head), .. } => project.git.is_ancestor(&head, &tip)?,
        _ => false,
    };
    let has_more = || snapshot::has_omitted(tree, &tip);
    if !landed || !paths.is_empty() || tree.dirty()? || has_more()? {
        return Err(of_other(log, kept, &other.step.step));
    }
    rebuilt(project, log, tree, kept, paths)
}

/// A worktree that is gone is made again: nothing is there to be lost.
fn rebuilt(
    project: &Project,
    log: &Log,
    tree: &Worktree,
    kept: &KnownSnapshot,
    paths: &[Vec<u8>],
) -> Result<RestoredTree, EngineError> {
    let settings = settings_of(log)?;
    let own = project.place_of(&settings.worktree_root, log.run(), &kept.step);
    if !paths.is_empty() || Worktree::at(&project.git, &own).path() != tree.path() {
        return Err(EngineError::NoTree { path: tree.path().to_owned() });
    }
    project.exclude_worktrees(&settings.worktree_root)?;
    let head = project.git.commit(&format!("{}^1", kept.commit))?;
    let branch = step_branch(&log.run().opened.handle, &kept.step);
    let fence = last_fence(log, &kept.step).unwrap_or(kept.fence);
    let tenant = Tenant { run: log.run().opened.run, step: kept.step.clone(), fence };
    tree.hand_to(&tenant)?;
    snapshot::rebuild(tree, &branch, &head, Some(&kept.commit))?;
    tree.mark_tenant(&tenant)?;
    let files = snapshot::changed_paths(&project.git, &head, &kept.commit)?;
    let (removed, written): (Vec<FileChange>, Vec<FileChange>) =
        files.into_iter().partition(|file| file.change == snapshot::ChangeKind::Removed);
    let names = |files: Vec<FileChange>| files.into_iter().map(|file| file.path).collect();
    Ok(RestoredTree {
        path: tree.path().to_owned(),
        before: None,
        branch: Some(branch),
        written: names(written),
        removed: names(removed),
        aside: None,
        operation: None,
    })
}

/// Whoever works there is not disturbed; what is dead is buried first.
fn refuse_in_use(project: &Project, log: &mut Log, tree: &Worktree) -> Result<(), EngineError> {
    log.refresh()?;
    let held: Vec<(StepRef, Attempt)> =
        log.run().held().map(|(step, attempt)| (step, attempt.clone())).collect();
    let mut dead = Vec::new();
    for (step, attempt) in held {
        let place = match attempt_place(project, log, &step, Some(&attempt)) {
            Err(EngineError::OtherHost { .. }) => continue,
            place => place?,
        };
        if Worktree::at(&project.git, &place).path() != tree.path() {
            continue;
        }
        match observe(project, log, Depth::Locks).of(attempt.id) {
            Sighting::Dead(_) => dead.push(step),
            Sighting::Elsewhere if is_lapsed(log, &step, &attempt)? => {}
            Sighting::Alive | Sighting::Elsewhere => {
                let (handle, path) = (log.run().opened.handle.clone(), tree.path().to_owned());
                return Err(EngineError::TreeInUse { handle, step: step.step, path });
            }
        }
    }
    for (step, burial) in bury_dead(project, log, &dead)? {
        if !burial.swept.survivors.is_empty() {
            let (handle, path) = (log.run().opened.handle.clone(), tree.path().to_owned());
            return Err(EngineError::TreeInUse { handle, step: step.step, path });
        }
    }
    Ok(())
}

/// A holder outside is believed until its lease is over.
fn is_lapsed(log: &Log, step: &StepRef, attempt: &Attempt) -> Result<bool, EngineError> {
    let leases = log.store().leases(log.run().opened.run)?;
    let now = log.now()?;
    Ok(believed_until(step, attempt, &leases).is_over(&now))
}

/// Another step's work that is in the run's worktree: by the mark of whose it is; where nobody has
/// marked it, by the branch.
fn others_work(log: &Log, step: &StepRef, tree: &Worktree, on: Option<&str>) -> Option<Tenant> {
    let opened = &log.run().opened;
    let marked = tree.left_by().filter(|tenant| tenant.run == opened.run);
    let is_on = |other: &StepRef| on == Some(&step_branch(&opened.handle, other));
    let by_branch = || {
        let steps = log.run().plan().steps.iter().map(|plan| StepRef::first(plan.id.clone()));
        let found = steps.into_iter().find(is_on)?;
        let fence = last_fence(log, &found).unwrap_or(Fence(0));
        Some(Tenant { run: opened.run, step: found, fence })
    };
    let whose = marked.or_else(by_branch);
    whose.filter(|tenant| tenant.step != *step && log.run().step(&tenant.step.step).is_some())
}

/// The run's worktree may have the unfinished work of another step in it, which goes on from there; the
/// step that has it and is done, where there is one.
fn refuse_others_work(
    log: &Log,
    kept: &KnownSnapshot,
    tree: &Worktree,
    on: Option<&str>,
) -> Result<Option<Tenant>, EngineError> {
    let Some(other) = others_work(log, &kept.step, tree, on) else { return Ok(None) };
    let state = log.run().step(&other.step.step).map(|(_, state)| state);
    match state.is_some_and(Step::is_completed) {
        true => Ok(Some(other)),
        false => Err(of_other(log, kept, &other.step.step)),
    }
}

fn of_other(log: &Log, kept: &KnownSnapshot, other: &StepId) -> EngineError {
    let (handle, step) = (log.run().opened.handle.clone(), kept.step.step.clone());
    EngineError::TreeOfOther { handle, step, other: other.clone() }
}

/// The newest claim of a step.
fn last_fence(log: &Log, step: &StepRef) -> Option<Fence> {
    attempts(log, step).iter().map(|attempt| attempt.fence).max()
}

/// Whether it was taken while an attempt lived. One that was taken afterwards has what people did since,
/// too, and nobody has decided about that by finding the attempt dead.
fn is_of_work(kept: &KnownSnapshot) -> bool {
    match kept.reason {
        Some(SnapshotReason::Cadence | SnapshotReason::Checkpoint | SnapshotReason::End) => true,
        Some(SnapshotReason::Recovery | SnapshotReason::Reset) | None => false,
    }
}

/// What somebody did since the known snapshots is theirs to decide about.
fn refuse_newer_edits(
    tree: &Worktree,
    known: &[&KnownSnapshot],
    kept: &KnownSnapshot,
    paths: &[Vec<u8>],
) -> Result<(), EngineError> {
    let own = known.iter().rev().filter(|other| other.step == kept.step);
    let known: Vec<Oid> = own.map(|other| other.commit.clone()).collect();
    let edited = snapshot::unkept_edits(tree, &kept.commit, &known)?;
    let edited = edited.iter().filter(|path| snapshot::is_meant(path, paths));
    let edited: Vec<String> = edited.map(|path| crate::git::names::shown(path)).collect();
    match edited.is_empty() {
        true => Ok(()),
        false => Err(EngineError::NewerEdits { paths: edited }),
    }
}

/// A snapshot of what is there now, under the step's last fence.
fn keep_present(log: &Log, tree: &Worktree, step: &StepRef) -> Result<Snapshot, EngineError> {
    let fence = last_fence(log, step).unwrap_or(Fence(0));
    let reason = SnapshotReason::Reset;
    let message = snapshot_message(log, (step, fence), reason, None);
    let base = base(log, step);
    let mut number = 1;
    loop {
        let refname = snapshot_ref(log, step, fence, number);
        let ask =
            snapshot::Ask { refname, base: Some(&base), message: &message, reason, last: None };
        number += 1;
        match snapshot::take(tree, &ask) {
            Err(GitError::RefTaken { .. }) => {}
            taken => {
                let none = || EngineError::NoTree { path: tree.path().to_owned() };
                return taken?.ok_or_else(none);
            }
        }
    }
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
