//! Claims from outside: steps that agents, scripts and people take for themselves and work on in a
//! worktree of their own. The rules are the core's; here a worktree's path becomes an owner, bytes are
//! kept before facts, and whoever is displaced on this host is ended before the answer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use piton_core::claim::{
    Asker, Chosen, barred, believed_until, choose, claimable, count_ready, in_the_way, lease_key,
    ready,
};
use piton_core::decide::{Claim, Command, Insist, Refusal, Which, completable};
use piton_core::event::{
    Event, Failure, Grounds, Holder, Mark, Priority, Report, Snapshot, SnapshotReason,
};
use piton_core::ids::{
    AttemptId, Fence, Handle, ItemRef, QuestionId, RunId, StepId, StepRef, SubstepId,
};
use piton_core::plan::PlanStep;
use piton_core::question::Question;
use piton_core::recover::{Observed, Sighting, Workplace};
use piton_core::run::{Attempt, Ending, Phase, Run, Step};
use piton_core::time::Millis;
use piton_core::view::timestamp;
use piton_store::Renewal;
use serde::{Serialize, Serializer};

use crate::bury::bury;
use crate::error::EngineError;
use crate::git::Git;
use crate::log::{Log, LogError};
use crate::machine;
use crate::observe::{Depth, observe, place_at};
use crate::preserve::{self, Author, Keep, Kept, keep_bytes};
use crate::project::Project;
use crate::runs::settings_of;
use crate::shell::word;
use crate::worktree::Worktree;

/// The most steps that are listed with why they cannot be had: nobody reads more.
const LISTED: usize = 100;

/// What `claim` asks for.
pub struct ClaimAsk<'a> {
    pub step: Option<&'a StepId>,
    /// Where the work will be done; with this host it is the owner.
    pub worktree: &'a Path,
    pub lease: Duration,
    pub insist: Insist,
}

/// How a write names the claim it is made under.
#[derive(Debug, Clone)]
pub enum Under {
    Fence(Fence),
    /// The worktree that the claim was made from.
    Worktree(PathBuf),
}

/// What `claim` answers. Nothing ready is a normal answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimAnswer {
    pub claimed: bool,
    pub run: RunId,
    pub handle: Handle,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimView>,
    pub remaining_ready: usize,
    pub total_remaining: usize,
    pub all_completed: bool,
    /// Why nothing of the run can be had, whatever step it is: it is stopped, or was abandoned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub barred: Option<String>,
    /// Why steps that are not completed could not be had, and the one that was asked for by name.
    #[serde(skip_serializing_if = "Reasons::is_empty")]
    pub blocked: Reasons,
    /// How many more there are than those.
    #[serde(skip_serializing_if = "is_zero")]
    pub blocked_more: usize,
    /// What force passed over: steps in front of the one it took, and why.
    #[serde(skip_serializing_if = "Reasons::is_empty")]
    pub passed_over: Reasons,
}

/// Steps in plan order, each with why it was not had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasons(Vec<(StepId, String)>);

impl Reasons {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&StepId, &str)> {
        self.0.iter().map(|(step, why)| (step, why.as_str()))
    }

    fn tell(&mut self, step: &StepId, why: String) {
        self.0.push((step.clone(), why));
    }

    fn has(&self, step: &StepId) -> bool {
        self.iter().any(|(told, _)| told == step)
    }
}

impl FromIterator<(StepId, String)> for Reasons {
    fn from_iter<T: IntoIterator<Item = (StepId, String)>>(rows: T) -> Reasons {
        Reasons(rows.into_iter().collect())
    }
}

/// As rows: the members of an object have no order, and steps do.
impl Serialize for Reasons {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            step: &'a StepId,
            why: &'a str,
        }
        to.collect_seq(self.iter().map(|(step, why)| Row { step, why }))
    }
}

/// A claim that was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimView {
    pub step: StepId,
    pub title: String,
    /// What the plan tells whoever works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    pub index: usize,
    pub fence: Fence,
    pub lease_expires: String,
    /// The step was claimed or in progress before.
    pub reclaimed: bool,
    pub grounds: Grounds,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub displaces: Option<Fence>,
    /// Whether checkpoints can keep the worktree's bytes.
    pub snapshots: bool,
    /// What became of the bytes of whoever it was taken from.
    #[serde(flatten)]
    pub kept: Kept,
}

/// What a heartbeat answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pulse {
    Continue,
    StopRequested,
    /// Nobody took the step, and others have its slot in a lock or its worktree: the lease stays over.
    Lapsed,
    Fenced,
}

/// Takes a step. Dead attempts on this host that are in the way are recovered first.
pub fn claim(
    project: &Project,
    log: &mut Log,
    ask: &ClaimAsk<'_>,
) -> Result<ClaimAnswer, EngineError> {
    let Top { path: worktree, in_git } = top(ask.worktree)?;
    let holder = Holder::External { host: project.host.clone(), worktree: text(&worktree)? };
    let place = place_at(project, log, &worktree);
    let which = match ask.step {
        Some(step) => Which::Step(StepRef::first(step.clone())),
        None => Which::First,
    };
    // Who works where keepers do has all of them to look at.
    bury_the_dead(project, log, ask.step.filter(|_| place.is_none()))?;
    let before = touched(log);
    let claim = Claim {
        which,
        attempt: AttemptId(uuid::Uuid::now_v7()),
        holder: holder.clone(),
        until: log.now()?.after(ask.lease),
        observed: observed_by(project, log, &holder),
        insist: ask.insist,
        // This process ends with its answer: who started it is who works.
        pid: Some(std::os::unix::process::parent_id()),
    };
    let attempt = claim.attempt;
    let (foreseen, kept) = keep_foreseen(project, log, &claim)?;
    let heard = match log.submit(&Command::Claim(claim)) {
        Ok(events) => Ok(events),
        Err(LogError::Refused(Refusal::UnknownStep(step))) => {
            return Err(Refusal::UnknownStep(step).into());
        }
        Err(LogError::Refused(refusal)) => Err(refusal),
        Err(error) => return Err(error.into()),
    };
    let held = log.run().held().find(|(_, held)| held.id == attempt);
    let held = held.map(|(step, attempt)| (step, attempt.clone()));
    let mut told = match (held, &heard) {
        (Some((step, attempt)), Ok(events)) => {
            let kept = match end_displaced(project, log, &step, &attempt)? {
                Some((_, Some(ended))) => ended,
                Some((late, None)) if foreseen != Some(late) => {
                    Kept { kept: preserve::of_lost(project, log, &step.step, late), unkept: None }
                }
                _ => kept,
            };
            let snapshots = in_git && Worktree::at(&project.git, &worktree).is_ours();
            let reclaimed = was_touched(&before, events, &step.step);
            let claim = ClaimView { reclaimed, snapshots, kept, ..given(log, &step, &attempt) };
            answer(project, log, &holder, Some(claim))?
        }
        _ => {
            let mut told = answer(project, log, &holder, None)?;
            let blocked = blocked_for(project, log, &holder, ask)?;
            (told.blocked, told.blocked_more) = (blocked.listed, blocked.more);
            told
        }
    };
    match (ask.step, heard) {
        // A completed one, or one far behind.
        (Some(step), Err(refusal)) if !told.blocked.has(step) => {
            told.blocked.tell(step, in_words(log.run(), &refusal));
        }
        (None, Ok(_)) if ask.insist == Insist::Force => {
            told.passed_over = passed_over(project, log, &holder, told.claim.as_ref())?;
        }
        _ => {}
    }
    Ok(told)
}

/// What is seen of a run's holders by whoever asks for a step of it.
fn observed_by(project: &Project, log: &Log, holder: &Holder) -> Observed {
    Observed { place: place_of(project, log, holder), ..observe(project, log, Depth::Locks) }
}

/// Where somebody outside works, if that is where keepers do.
fn place_of(project: &Project, log: &Log, holder: &Holder) -> Option<Workplace> {
    match holder {
        Holder::External { host, worktree } if *host == project.host => {
            place_at(project, log, Path::new(worktree))
        }
        _ => None,
    }
}

/// Whether the step was claimed or in progress when the claim was made, whatever others wrote since it
/// was looked at. The newest of `events` about it is the claim itself.
fn was_touched(before: &[StepId], events: &[Event], step: &StepId) -> bool {
    let about = |event: &&Event| event.step().is_some_and(|about| about.step == *step);
    match events.iter().rev().filter(about).nth(1) {
        None => before.contains(step),
        Some(last) => {
            !matches!(last, Event::Released { .. } | Event::Reset { .. } | Event::Failed { .. })
        }
    }
}

/// The steps in front of the one that force took, each with why it was not that one.
fn passed_over(
    project: &Project,
    log: &Log,
    holder: &Holder,
    claim: Option<&ClaimView>,
) -> Result<Reasons, EngineError> {
    let run = log.run();
    let leases = log.store().leases(run.opened.run)?;
    let (observed, now) = (observed_by(project, log, holder), log.now()?);
    let asker = Asker { holder, observed: &observed, leases: &leases, now: &now };
    let index = claim.map_or(0, |claim| claim.index);
    let earlier = run.remaining().take_while(|(plan, _)| run.index_of(&plan.id) < Some(index));
    let row = |(plan, state): (&PlanStep, &Step)| {
        let why = match why_not(run, (plan, state), &asker, Insist::Never) {
            Some(why) => why,
            None => "free; what a dead or silent holder left comes first".to_owned(),
        };
        (plan.id.clone(), why)
    };
    Ok(earlier.take(LISTED).map(row).collect())
}

/// The claim of the attempt that this process runs inside of, if its fence is still the step's.
pub fn own_claim(
    project: &Project,
    log: &Log,
    fence: Fence,
) -> Result<Option<ClaimAnswer>, EngineError> {
    let held = log.run().held().find(|(_, attempt)| attempt.fence == fence);
    let Some((step, attempt)) = held else { return Ok(None) };
    let snapshots = match &attempt.holder {
        Holder::Keeper { .. } => true,
        Holder::External { worktree, .. } => {
            Worktree::at(&project.git, Path::new(worktree)).is_ours()
        }
    };
    let leases = log.store().leases(log.run().opened.run)?;
    let claim = ClaimView {
        // It may have been renewed since.
        lease_expires: timestamp(believed_until(&step, attempt, &leases).wall),
        reclaimed: was_in_progress(log, &step),
        snapshots,
        ..given(log, &step, attempt)
    };
    Ok(Some(answer(project, log, &attempt.holder.clone(), Some(claim))?))
}

/// Whether the step was claimed or in progress when its present attempt began.
fn was_in_progress(log: &Log, step: &StepRef) -> bool {
    let last = log.run().step(&step.step).and_then(|(_, state)| state.history.last());
    last.is_some_and(|past| {
        matches!(past.ending, Ending::Interrupted { .. } | Ending::Displaced | Ending::Suspended)
    })
}

/// Steps that are held, were interrupted, or waited for an answer: claiming one of these is a re-claim.
fn touched(log: &Log) -> Vec<StepId> {
    let run = log.run();
    let held = run.held().map(|(step, _)| step.step);
    let suspended = |step: &StepId| {
        run.step(step).is_some_and(|(_, state)| matches!(state.phase, Phase::Suspended { .. }))
    };
    let waiting = run.questions().map(|(step, _)| step.step).filter(suspended);
    held.chain(run.interrupted().map(|(plan, _)| plan.id.clone())).chain(waiting).collect()
}

fn bury_the_dead(
    project: &Project,
    log: &mut Log,
    step: Option<&StepId>,
) -> Result<(), EngineError> {
    let observed = observe(project, log, Depth::Locks);
    let dead: Vec<(StepRef, Fence, _)> = log
        .run()
        .held()
        .filter(|(held, _)| step.is_none_or(|step| held.step == *step))
        .filter_map(|(held, attempt)| match observed.of(attempt.id) {
            Sighting::Dead(corpse) => Some((held, attempt.fence, corpse.clone())),
            _ => None,
        })
        .collect();
    if dead.is_empty() {
        return Ok(());
    }
    let settings = settings_of(log)?;
    for (step, fence, corpse) in dead {
        bury(project, log, &settings, &step, fence, corpse)?;
    }
    Ok(())
}

/// Whoever outside is about to lose its claim to this one, if it is on this host: its bytes are kept and
/// recorded while the claim is still its own. Answers with its fence.
fn keep_foreseen(
    project: &Project,
    log: &mut Log,
    claim: &Claim,
) -> Result<(Option<Fence>, Kept), EngineError> {
    let nobody = (None, Kept::default());
    let now = log.now()?;
    let may_lose = |held: &Attempt| {
        let outside = matches!(held.holder, Holder::External { .. });
        let other = !held.holder.is_same_owner(&claim.holder);
        // A renewed lease only ends later than the one in the claim.
        outside && other && (claim.insist == Insist::Force || held.until.is_over(&now))
    };
    if !log.run().held().any(|(_, held)| may_lose(held)) {
        return Ok(nobody);
    }
    let leases = log.store().leases(log.run().opened.run)?;
    let Ok(Chosen { step, granted, .. }) = choose(log.run(), claim, &leases, &now) else {
        return Ok(nobody);
    };
    let held = log.run().step(&step.step).and_then(|(_, state)| state.attempt()).cloned();
    Ok(match held {
        Some(held) if matches!(granted.grounds, Grounds::Forced | Grounds::LeaseOver) => {
            let kept = preserve::before_end(project, log, (&step, &held), None);
            (Some(held.fence), kept)
        }
        _ => nobody,
    })
}

/// A keeper of this host whose claim was taken by force: it may append nothing any more; its processes
/// are ended and its bytes kept under its own fence before the new holder is answered. Answers with
/// whose claim was taken, and what became of a keeper's bytes.
fn end_displaced(
    project: &Project,
    log: &Log,
    step: &StepRef,
    attempt: &Attempt,
) -> Result<Option<(Fence, Option<Kept>)>, EngineError> {
    let (_, state) = log.run().step(&step.step).expect("a claimed step is in the plan");
    let taken = matches!(attempt.grounds, Grounds::Forced | Grounds::LeaseOver);
    let Some(past) = state.history.last().filter(|_| taken) else { return Ok(None) };
    let ended = match attempt.grounds {
        Grounds::Forced => end(project, log, step, &past.attempt)?,
        _ => None,
    };
    Ok(Some((past.attempt.fence, ended)))
}

/// Ends the processes of an attempt that may write no more, if it is a keeper's on this host, and
/// keeps what they left.
fn end(
    project: &Project,
    log: &Log,
    step: &StepRef,
    attempt: &Attempt,
) -> Result<Option<Kept>, EngineError> {
    let Holder::Keeper { host, .. } = &attempt.holder else { return Ok(None) };
    if *host != project.host {
        return Ok(None);
    }
    machine::end_attempt(attempt.id, &project.folder(attempt.id));
    let settings = settings_of(log)?;
    let path = project.place_of(&settings.worktree_root, log.run(), step);
    let (fence, reason, author) = (attempt.fence, SnapshotReason::Recovery, Author::Piton);
    let keep = Keep { step, fence, path: &path, reason, author, report: None };
    Ok(Some(preserve::of_ended(project, log, &keep)))
}

fn given(log: &Log, step: &StepRef, attempt: &Attempt) -> ClaimView {
    let index = log.run().index_of(&step.step).unwrap_or_default();
    let plan = &log.run().plan().steps[index];
    let displaces = match attempt.grounds {
        Grounds::Free => None,
        _ => {
            let (_, state) = log.run().step(&step.step).expect("a claimed step is in the plan");
            state.history.last().map(|past| past.attempt.fence)
        }
    };
    ClaimView {
        step: step.step.clone(),
        title: plan.title.clone(),
        prompt: plan.work.prompt().map(str::to_owned),
        index,
        fence: attempt.fence,
        lease_expires: timestamp(attempt.until.wall),
        reclaimed: false,
        grounds: attempt.grounds,
        displaces,
        snapshots: false,
        kept: Kept::default(),
    }
}

fn answer(
    project: &Project,
    log: &Log,
    holder: &Holder,
    claim: Option<ClaimView>,
) -> Result<ClaimAnswer, EngineError> {
    let run = log.run();
    let leases = log.store().leases(run.opened.run)?;
    let (observed, now) = (observed_by(project, log, holder), log.now()?);
    let asker = Asker { holder, observed: &observed, leases: &leases, now: &now };
    // What is theirs already is nothing more to be had.
    let theirs = run.held().filter(|(_, attempt)| attempt.holder == *holder);
    let again = theirs.filter(|(step, _)| claimable(run, step, &asker).is_ok()).count();
    Ok(ClaimAnswer {
        claimed: claim.is_some(),
        run: run.opened.run,
        handle: run.opened.handle.clone(),
        claim,
        remaining_ready: count_ready(run, &asker) - again,
        total_remaining: run.count_remaining(),
        all_completed: run.is_completed(),
        barred: barred(run).err().map(|refusal| refusal.to_string()),
        blocked: Reasons::default(),
        blocked_more: 0,
        passed_over: Reasons::default(),
    })
}

/// Steps that cannot be had, each with why.
#[derive(Default)]
struct Blocked {
    listed: Reasons,
    /// How many are not listed.
    more: usize,
}

/// What whoever has got nothing is told. What they insist on is not in the hands of its holder: what else
/// is in the way is told of it.
fn blocked_for(
    project: &Project,
    log: &Log,
    holder: &Holder,
    ask: &ClaimAsk<'_>,
) -> Result<Blocked, EngineError> {
    let run = log.run();
    let leases = log.store().leases(run.opened.run)?;
    let (observed, now) = (observed_by(project, log, holder), log.now()?);
    let asker = Asker { holder, observed: &observed, leases: &leases, now: &now };
    let insist = |step: &StepId| match ask.step.is_none_or(|asked| asked == step) {
        true => ask.insist,
        false => Insist::Never,
    };
    Ok(blocked(run, &asker, insist))
}

/// Steps that are not completed and that whoever asks cannot have: the first of them in plan order.
fn blocked(run: &Run, asker: &Asker<'_>, insist: impl Fn(&StepId) -> Insist) -> Blocked {
    let why = |(plan, state): (&PlanStep, &Step)| {
        Some((plan.id.clone(), why_not(run, (plan, state), asker, insist(&plan.id))?))
    };
    let listed: Reasons = run.remaining().filter_map(why).take(LISTED).collect();
    let more = (run.count_remaining() - count_ready(run, asker)).saturating_sub(listed.0.len());
    Blocked { listed, more }
}

/// Why a step cannot be had; nothing where it can.
fn why_not(
    run: &Run,
    (plan, state): (&PlanStep, &Step),
    asker: &Asker<'_>,
    insist: Insist,
) -> Option<String> {
    let step = StepRef::first(plan.id.clone());
    let refusal = in_the_way(run, &step, asker, insist)?;
    let held = match &refusal {
        Refusal::TreeBusy { by } => run.step(by).and_then(|(_, state)| state.attempt()),
        Refusal::HeldAlive { .. } | Refusal::HeldElsewhere { .. } | Refusal::HeldDead { .. } => {
            state.attempt()
        }
        // Whoever has it is not what is in the way.
        _ => None,
    };
    let by = match &refusal {
        Refusal::TreeBusy { by } => by,
        _ => &plan.id,
    };
    Some(match held.map(|attempt| (attempt, &attempt.holder)) {
        Some((attempt, Holder::External { worktree, host })) => {
            let until = believed_until(&step, attempt, asker.leases).wall;
            let until = timestamp(until);
            format!("claimed from {worktree} on {host} until {until}")
        }
        Some((_, Holder::Keeper { host, .. })) => {
            let run = &run.opened.handle;
            let from = match asker.holder {
                Holder::External { worktree, .. } if !worktree.is_empty() => word(worktree),
                _ => ".".to_owned(),
            };
            format!(
                "{refusal}: a keeper on {host} has it; `piton resume {run}` watches it, \
                 `piton stop {run} {by}` stops it, `piton claim {run} --step {by} --worktree \
                 {from} --force` takes it"
            )
        }
        None => in_words(run, &refusal),
    })
}

fn in_words(run: &Run, refusal: &Refusal) -> String {
    match refusal {
        Refusal::StepStopped(_) => {
            format!("{refusal}; `piton resume {}` goes on", run.opened.handle)
        }
        Refusal::RetriesUsed(step) => {
            format!("{refusal}; `piton reset {} {step}` makes it pending again", run.opened.handle)
        }
        _ => refusal.to_string(),
    }
}

/// What `ready` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadyAnswer {
    pub run: RunId,
    pub handle: Handle,
    pub ready: Vec<ReadyStep>,
    pub total_remaining: usize,
    pub all_completed: bool,
    /// Why nothing of the run can be had, whatever step it is: it is stopped, or was abandoned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub barred: Option<String>,
    /// Why the other steps that are not completed cannot be had.
    #[serde(skip_serializing_if = "Reasons::is_empty")]
    pub blocked: Reasons,
    /// How many more there are than those.
    #[serde(skip_serializing_if = "is_zero")]
    pub blocked_more: usize,
}

/// A step that can be claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadyStep {
    pub step: StepId,
    pub title: String,
    pub index: usize,
}

/// The steps that somebody who holds none could claim now.
pub fn ready_steps(project: &Project, log: &Log) -> Result<ReadyAnswer, EngineError> {
    let run = log.run();
    let nobody = Holder::External { host: project.host.clone(), worktree: String::new() };
    let leases = log.store().leases(run.opened.run)?;
    let (observed, now) = (observe(project, log, Depth::Locks), log.now()?);
    let asker = Asker { holder: &nobody, observed: &observed, leases: &leases, now: &now };
    let row = |step: StepRef| {
        let index = run.index_of(&step.step)?;
        let title = run.plan().steps[index].title.clone();
        Some(ReadyStep { step: step.step, title, index })
    };
    let Blocked { listed, more } = blocked(run, &asker, |_| Insist::Never);
    Ok(ReadyAnswer {
        run: run.opened.run,
        handle: run.opened.handle.clone(),
        ready: ready(run, &asker).into_iter().filter_map(row).collect(),
        total_remaining: run.count_remaining(),
        all_completed: run.is_completed(),
        barred: barred(run).err().map(|refusal| refusal.to_string()),
        blocked: listed,
        blocked_more: more,
    })
}

/// The fence that a write is made under.
pub fn fence_of(
    project: &Project,
    log: &Log,
    step: &StepId,
    under: &Under,
) -> Result<Fence, EngineError> {
    let (_, state) = log.run().step(step).ok_or_else(|| Refusal::UnknownStep(step.clone()))?;
    let worktree = match under {
        Under::Fence(fence) => return Ok(*fence),
        Under::Worktree(path) => match top(path) {
            Ok(top) => text(&top.path)?,
            // Whoever claimed from a folder that is gone by now is known by its name.
            Err(gone) => removed(project, state, path).ok_or(gone)?,
        },
    };
    let owner = Holder::External { host: project.host.clone(), worktree };
    let ours = |attempt: &&Attempt| attempt.holder.is_same_owner(&owner);
    if let Some(attempt) = state.attempt().filter(ours) {
        return Ok(attempt.fence);
    }
    // The last claim that this worktree had: the core says what became of it.
    let mut past = state.history.iter().rev().map(|past| &past.attempt);
    match (past.find(|attempt| attempt.holder.is_same_owner(&owner)), &state.phase) {
        (Some(attempt), _) => Ok(attempt.fence),
        (None, Phase::Pending) => Err(Refusal::Pending(step.clone()).into()),
        (None, Phase::Completed { .. }) => Err(Refusal::Completed(step.clone()).into()),
        (None, _) => Err(EngineError::NotOwner { step: step.clone() }),
    }
}

/// The worktree of a claim on the step that was removed since, if this is how it was called.
fn removed(project: &Project, state: &Step, path: &Path) -> Option<String> {
    let whole = std::path::absolute(path).ok()?;
    // The folder around it is there, as a rule, and may be written in many ways.
    let around = whole.parent().and_then(|around| std::fs::canonicalize(around).ok());
    let called = around.zip(whole.file_name()).map(|(around, name)| around.join(name));
    let called = called.unwrap_or(whole);
    let mut attempts =
        state.attempt().into_iter().chain(state.history.iter().map(|past| &past.attempt));
    attempts.find_map(|attempt| match &attempt.holder {
        Holder::External { host, worktree } => {
            let same = *host == project.host && Path::new(worktree) == called;
            (same && !called.exists()).then(|| worktree.clone())
        }
        Holder::Keeper { .. } => None,
    })
}

/// Writes under a claim. Whoever lost theirs is told so, also where the step has ended since.
pub(crate) fn submit(
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    command: &Command,
) -> Result<(), EngineError> {
    match log.submit(command) {
        Ok(_) => Ok(()),
        Err(error) => Err(stale(log, step, fence, error.into())),
    }
}

/// What went wrong; where the claim is lost, how.
pub(crate) fn stale(log: &Log, step: &StepId, fence: Fence, error: EngineError) -> EngineError {
    match error.is_lost() {
        true => lost(log, step, fence).into(),
        false => error,
    }
}

/// Why a fence is not, or no longer, that of its step.
pub fn lost(log: &Log, step: &StepId, given: Fence) -> Refusal {
    let Some((_, state)) = log.run().step(step) else { return Refusal::UnknownStep(step.clone()) };
    let past = state.history.iter().map(|past| &past.attempt);
    let newest = past.chain(state.attempt()).map(|attempt| attempt.fence).max();
    match newest {
        Some(current) if current > given => {
            Refusal::StaleFence { step: step.clone(), given, current }
        }
        // Perhaps that of another step.
        Some(current) if current != given && state.attempt().is_some() => {
            Refusal::StaleFence { step: step.clone(), given, current }
        }
        _ if state.is_completed() => Refusal::Completed(step.clone()),
        Some(current) if current == given => Refusal::ClaimOver { step: step.clone(), given },
        _ => Refusal::NotClaimed { step: step.clone(), given },
    }
}

/// Says that the work has begun; tells the answers to what was asked at the step before.
pub fn start(log: &mut Log, step: &StepId, fence: Fence) -> Result<Vec<Question>, EngineError> {
    let at = StepRef::first(step.clone());
    let unread = log.run().step(step).map(|(_, state)| state.unread_answers());
    let told: Vec<QuestionId> = unread.into_iter().flatten().map(|asked| asked.id).collect();
    let (base, answers, pid) = (None, told.clone(), None);
    submit(log, step, fence, &Command::Start { step: at, fence, base, answers, pid })?;
    let (_, state) = log.run().step(step).expect("it was just started");
    Ok(state.questions.iter().filter(|asked| told.contains(&asked.id)).cloned().collect())
}

/// Moves the lease, by as much as it was claimed for unless told; appends nothing. A lapsed claim
/// that nobody took is renewed. Answers with what the lease is, whatever was asked for: one that has
/// longer to go stays, and one whose slot in a lock or whose worktree went to others is over.
pub fn heartbeat(
    project: &Project,
    log: &mut Log,
    (step, fence): (&StepId, Fence),
    lease: Option<Duration>,
) -> Result<(Pulse, Millis), EngineError> {
    log.refresh()?;
    let held = log.run().step(step).and_then(|(_, state)| state.attempt());
    let claimed = held.map_or(Duration::ZERO, |held| held.until.wall.since(held.claimed_at));
    let lease = lease.unwrap_or(claimed);
    let until = log.now()?.after(lease);
    let step_ref = StepRef::first(step.clone());
    let renewed = log.store().renew(log.run().opened.run, &lease_key(&step_ref), fence, &until)?;
    match renewed {
        Renewal::Renewed => drop(log.refresh()?),
        // The row may be missing, and the claim still be ours: then a new one is written, unless the
        // claim's slot in a lock, or its worktree, went to others.
        Renewal::NotRenewed => {
            let until = until.clone();
            let held = log.run().step(step).and_then(|(_, state)| state.attempt());
            let place = held.and_then(|held| place_of(project, log, &held.holder));
            let renew = Command::Renew { step: step_ref.clone(), fence, until, place };
            match log.submit(&renew) {
                Ok(_) | Err(LogError::Refused(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    let (_, state) = log.run().step(step).ok_or_else(|| Refusal::UnknownStep(step.clone()))?;
    let Some(attempt) = state.attempt().filter(|attempt| attempt.fence == fence) else {
        return Ok((Pulse::Fenced, log.now()?.wall));
    };
    let until = match renewed {
        Renewal::Renewed => until,
        Renewal::NotRenewed => {
            let leases = log.store().leases(log.run().opened.run)?;
            believed_until(&step_ref, attempt, &leases).clone()
        }
    };
    let beat = match log.run().stop_for(attempt) {
        Some(_) => Pulse::StopRequested,
        None if until.is_over(&log.now()?) => Pulse::Lapsed,
        None => Pulse::Continue,
    };
    Ok((beat, until.wall))
}

/// Keeps the worktree's bytes, where it is one of this repository, and records the report.
pub fn checkpoint(
    project: &Project,
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    report: Report,
) -> Result<Option<Snapshot>, EngineError> {
    let at = StepRef::first(step.clone());
    let held = log.run().held().find(|(held, attempt)| *held == at && attempt.fence == fence);
    let place = match held.map(|(_, attempt)| attempt.holder.clone()) {
        Some(Holder::External { worktree, .. }) => Some((PathBuf::from(worktree), Author::Piton)),
        Some(Holder::Keeper { .. }) => {
            let root = settings_of(log)?.worktree_root;
            Some((project.place_of(&root, log.run(), &at), Author::Agent))
        }
        None => None,
    };
    let snapshot = match place {
        Some((path, author)) => {
            let (reason, report) = (SnapshotReason::Checkpoint, Some(&report));
            keep_bytes(
                project,
                log,
                &Keep { step: &at, fence, path: &path, reason, author, report },
            )?
        }
        None => None,
    };
    let report = (report != Report::default()).then(|| Box::new(report));
    let kept = snapshot.clone();
    submit(log, step, fence, &Command::Checkpoint { step: at, fence, snapshot, report })?;
    Ok(kept)
}

/// Why a checkpoint of the step's holder keeps no bytes.
pub fn why_unkept(project: &Project, log: &Log, step: &StepId) -> String {
    let held = log.run().step(step).and_then(|(_, state)| state.attempt());
    match held.map(|attempt| &attempt.holder) {
        Some(Holder::External { host, .. }) if *host != project.host => {
            "it was claimed on another host".to_owned()
        }
        Some(Holder::External { worktree, .. }) if !Path::new(worktree).exists() => {
            format!("its worktree {worktree} is not there any more")
        }
        Some(Holder::External { worktree, .. }) => {
            format!("{worktree} is not a worktree of this repository")
        }
        Some(Holder::Keeper { .. }) | None => "its worktree is not there".to_owned(),
    }
}

/// Says that a substep is done.
pub fn complete_substep(
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    substep: SubstepId,
) -> Result<(), EngineError> {
    let at = StepRef::first(step.clone());
    submit(log, step, fence, &Command::CompleteSubstep { step: at, fence, substep })
}

/// Says what became of items.
pub fn mark_items(
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    items: Vec<ItemRef>,
    mark: Mark,
) -> Result<(), EngineError> {
    let at = StepRef::first(step.clone());
    submit(log, step, fence, &Command::MarkItems { step: at, fence, items, mark })
}

/// Adds a gap; answers with the number it can be checked by.
pub fn add_item(
    log: &mut Log,
    step: &StepId,
    fence: Fence,
    text: String,
    priority: Priority,
) -> Result<ItemRef, EngineError> {
    let at = StepRef::first(step.clone());
    submit(log, step, fence, &Command::AddItem { step: at, fence, text, priority })?;
    let (plan, state) = log.run().step(step).expect("it was just written to");
    let own = plan.items.len() + state.checklist.added.len();
    Ok(ItemRef::new(None, u32::try_from(own).unwrap_or(u32::MAX)))
}

/// Completes a step without a commit: nothing lands, and nobody but the holder has seen it done.
pub fn complete(
    project: &Project,
    log: &mut Log,
    (step, fence): (&StepId, Fence),
    waive: Option<String>,
) -> Result<Kept, EngineError> {
    let at = StepRef::first(step.clone());
    let kept = match completable(log.run(), &at, fence, waive.as_deref()) {
        Ok(()) => keep_own(project, log, step, fence),
        // Whether that is still so is decided with the newest state.
        Err(_) => Kept::default(),
    };
    submit(log, step, fence, &Command::Complete { step: at, fence, commit: None, waive })?;
    Ok(kept)
}

/// Says that the attempt failed.
pub fn fail(
    project: &Project,
    log: &mut Log,
    (step, fence): (&StepId, Fence),
    reason: String,
) -> Result<Kept, EngineError> {
    let (at, why) = (StepRef::first(step.clone()), Failure::Reported { reason });
    let kept = keep_own(project, log, step, fence);
    submit(log, step, fence, &Command::Fail { step: at, fence, why })?;
    Ok(kept)
}

/// Keeps the bytes of a claim that is about to end, if it is open.
fn keep_own(project: &Project, log: &mut Log, step: &StepId, fence: Fence) -> Kept {
    let held = log.run().step(step).and_then(|(_, state)| state.attempt());
    match held.filter(|attempt| attempt.fence == fence).cloned() {
        Some(attempt) => {
            preserve::before_end(project, log, (&StepRef::first(step.clone()), &attempt), None)
        }
        None => Kept::default(),
    }
}

/// What `release` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReleaseAnswer {
    pub plan: String,
    pub run: RunId,
    pub step: StepId,
    pub released: bool,
    pub was_claimed_by: String,
    /// What became of the holder's bytes.
    #[serde(flatten)]
    pub kept: Kept,
}

/// Gives a claim back: the owner's, or anybody's without a fence. Its bytes are kept first; a keeper of
/// this host that loses its claim so is ended before the answer.
pub fn release(
    project: &Project,
    log: &mut Log,
    step: &StepId,
    fence: Option<Fence>,
) -> Result<ReleaseAnswer, EngineError> {
    log.refresh()?;
    let held = log.run().step(step).and_then(|(_, state)| state.attempt()).cloned();
    let was_claimed_by = match held.as_ref().map(|attempt| &attempt.holder) {
        Some(Holder::External { worktree, .. }) => worktree.clone(),
        Some(Holder::Keeper { host, .. }) => format!("a keeper on {host}"),
        None => String::new(),
    };
    let at = StepRef::first(step.clone());
    let kept = match &held {
        Some(held) if fence.is_none_or(|fence| fence == held.fence) => {
            preserve::before_end(project, log, (&at, held), None)
        }
        _ => Kept::default(),
    };
    let ended = match (fence, &held) {
        (Some(fence), _) => {
            submit(log, step, fence, &Command::Release { step: at, fence: Some(fence) })?;
            None
        }
        (None, held) => {
            log.submit(&Command::Release { step: at.clone(), fence: None })?;
            held.as_ref().map(|held| end(project, log, &at, held)).transpose()?.flatten()
        }
    };
    let opened = &log.run().opened;
    Ok(ReleaseAnswer {
        plan: opened.plan_path.clone(),
        run: opened.run,
        step: step.clone(),
        released: true,
        was_claimed_by,
        kept: ended.unwrap_or(kept),
    })
}

/// What `reset` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResetAnswer {
    /// Nothing is to be done about a pending step on which nothing was spent.
    pub reset: bool,
    /// The steps that need it.
    pub dependants: Vec<StepId>,
    /// The ref with the bytes that the last holder outside has in its worktree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

/// Makes a step pending again, after the bytes of whoever worked on it last were kept.
pub fn reset(
    project: &Project,
    log: &mut Log,
    step: &StepId,
    reason: Option<String>,
) -> Result<ResetAnswer, EngineError> {
    bury_the_dead(project, log, Some(step))?;
    let last = log.run().step(step).and_then(|(_, state)| state.history.last());
    let last = last.map(|past| past.attempt.fence);
    let kept = last.and_then(|fence| preserve::of_lost(project, log, step, fence));
    let command = Command::Reset { step: StepRef::first(step.clone()), reason };
    let told = log.submit(&command)?;
    let reset = matches!(told.last(), Some(Event::Reset { .. }));
    let run = log.run();
    let dependants = run.index_of(step).map(|index| run.dependants_of(index));
    Ok(ResetAnswer { reset, dependants: dependants.unwrap_or_default(), kept })
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The root of the git worktree that a folder is in, by the one name that every way of writing it has:
/// whoever works below it is the same owner. A folder that is in none is its own.
fn top(path: &Path) -> Result<Top, EngineError> {
    let unusable = |source| EngineError::Worktree { path: path.to_owned(), source };
    let whole = std::fs::canonicalize(path).map_err(unusable)?;
    if !whole.is_dir() {
        return Err(unusable(std::io::Error::other("it is not a folder")));
    }
    Ok(match Git::around(&whole) {
        Ok(git) if whole.starts_with(git.here()) => {
            Top { path: git.here().to_owned(), in_git: true }
        }
        _ => Top { path: whole, in_git: false },
    })
}

/// Who somebody outside is: where they work.
struct Top {
    path: PathBuf,
    in_git: bool,
}

/// A path as events tell it. One that is no text is refused: two of them could look the same, and would
/// be one owner.
fn text(path: &Path) -> Result<String, EngineError> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let source = std::io::Error::other("its path is not UTF-8");
            Err(EngineError::Worktree { path: path.to_owned(), source })
        }
    }
}
