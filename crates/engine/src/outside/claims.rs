//! Claims from outside: steps that agents, scripts and people take for themselves and work on in a
//! worktree of their own. The rules are the core's; here a worktree's path becomes an owner, bytes are
//! kept before facts, and whoever is displaced on this host is ended before the answer.

use std::path::Path;
use std::time::Duration;

use answer::{answer, blocked_for, given, passed_over, refused};
use owner::{Top, text, top};
use piton_core::claim::{Chosen, Claim, Takeover, Which, believed_until, choose};
use piton_core::decide::Command;
use piton_core::event::{Event, Fact, Grounds, Holder, SnapshotReason};
use piton_core::ids::{AttemptId, Fence, StepRef, TreeNo};
use piton_core::observed::{Observed, Sighting};
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, Ending, Phase};
use piton_core::time::timestamp;
use piton_git::worktree::Worktree;

use crate::attempt::bury::bury;
use crate::error::EngineError;
use crate::error::LogError;
use crate::folder;
use crate::outside::outside_snapshots;
use crate::outside::outside_snapshots::{Keep, Kept};
use crate::project::Project;
use crate::run::log::Log;
use crate::run::observe::{Depth, observe, place_at};
use crate::run::runs::settings_of;

mod answer;
mod claim_writes;
mod owner;
mod release;

pub use answer::{
    ClaimAnswer, ClaimView, ReadyAnswer, ReadyStep, Remaining, Unclaimable, ready_steps,
};
pub use claim_writes::{
    Pulse, add_item, checkpoint, complete, complete_substep, fail, heartbeat, mark_items, start,
    why_unkept,
};
pub(crate) use claim_writes::{stale, submit};
pub use owner::{ClaimName, claim_of, held_in, lost};
pub use release::{
    ReleaseAnswer, ResetAnswer, find, keep_before_restart, release, reset, retry, skip,
};

/// What `claim` asks for.
pub struct ClaimAsk<'a> {
    pub step: Option<&'a StepRef>,
    /// Where the work will be done; with this host it is the owner.
    pub worktree: &'a Path,
    pub lease: Duration,
    pub takeover: Takeover,
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
        Some(step) => Which::Step(step.clone()),
        None => Which::First,
    };
    // Who works in a tree of the pool has all keepers to look at.
    bury_the_dead(project, log, ask.step.filter(|_| place.is_none()))?;
    let before = touched(log);
    let claim = Claim {
        which,
        attempt: AttemptId(uuid::Uuid::now_v7()),
        holder: holder.clone(),
        until: log.now()?.after(ask.lease),
        observed: observed_by(project, log, &holder),
        takeover: ask.takeover,
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
                Some((late, None)) if foreseen != Some(late) => Kept {
                    kept: outside_snapshots::of_lost(project, log, &step, late),
                    unkept: None,
                },
                _ => kept,
            };
            let snapshots = in_git && Worktree::at(&project.git, &worktree).is_ours();
            let reclaimed = was_touched(&before, events, &step);
            let claim = ClaimView { reclaimed, snapshots, kept, ..given(log, &step, &attempt) };
            answer(project, log, &holder, Some(claim))?
        }
        _ => {
            let mut told = answer(project, log, &holder, None)?;
            let blocked = blocked_for(project, log, &holder, ask)?;
            (told.left.blocked, told.left.blocked_more) = (blocked.listed, blocked.more);
            told
        }
    };
    match (ask.step, heard) {
        // A completed one, or one far behind.
        (Some(step), Err(refusal)) if !told.left.blocked.iter().any(|row| row.step == *step) => {
            told.left.blocked.push(refused(log.run(), step, &refusal));
        }
        (None, Ok(_)) if ask.takeover == Takeover::Force => {
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

/// The tree of the pool that somebody outside works in.
fn place_of(project: &Project, log: &Log, holder: &Holder) -> Option<TreeNo> {
    match holder {
        Holder::External { host, worktree } if *host == project.host => {
            place_at(project, log, Path::new(worktree))
        }
        _ => None,
    }
}

/// Whether the step was claimed or in progress when the claim was made, whatever others wrote since it
/// was looked at. The newest of `events` about it is the claim itself.
fn was_touched(before: &[StepRef], events: &[Event], step: &StepRef) -> bool {
    let about = |event: &&Event| event.step().is_some_and(|about| about == step);
    match events.iter().rev().filter(about).nth(1) {
        None => before.contains(step),
        Some(last) => !matches!(
            last,
            Event::Under(_, Fact::Released { .. })
                | Event::Reset { .. }
                | Event::Under(_, Fact::Failed { .. })
        ),
    }
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
    let last = log.run().step(step).and_then(|(_, state)| state.history.last());
    last.is_some_and(|past| {
        matches!(past.ending, Ending::Interrupted { .. } | Ending::Displaced | Ending::Suspended)
    })
}

/// Steps that are held, were interrupted, or waited for an answer: claiming one of these is a re-claim.
fn touched(log: &Log) -> Vec<StepRef> {
    let run = log.run();
    let held = run.held().map(|(step, _)| step);
    let suspended = |step: &StepRef| {
        run.step(step).is_some_and(|(_, state)| matches!(state.phase, Phase::Suspended { .. }))
    };
    let waiting = run.questions().map(|(step, _)| step).filter(suspended);
    held.chain(run.interrupted().map(|(step, _, _)| step)).chain(waiting).collect()
}

fn bury_the_dead(
    project: &Project,
    log: &mut Log,
    step: Option<&StepRef>,
) -> Result<(), EngineError> {
    let observed = observe(project, log, Depth::Locks);
    let dead: Vec<(StepRef, Fence, _)> = log
        .run()
        .held()
        .filter(|(held, _)| step.is_none_or(|step| held == step))
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
        outside && other && (claim.takeover == Takeover::Force || held.until.is_over(&now))
    };
    if !log.run().held().any(|(_, held)| may_lose(held)) {
        return Ok(nobody);
    }
    let leases = log.store().leases(log.run().opened.run)?;
    let Ok(Chosen { step, granted, .. }) = choose(log.run(), claim, &leases, &now) else {
        return Ok(nobody);
    };
    let held = log.run().step(&step).and_then(|(_, state)| state.attempt()).cloned();
    Ok(match held {
        Some(held) if matches!(granted.grounds, Grounds::Forced | Grounds::LeaseOver) => {
            let kept = outside_snapshots::before_end(project, log, (&step, &held), None);
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
    let (_, state) = log.run().step(step).expect("a claimed step is in the plan");
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
    folder::end_attempt(attempt.id, &project.folder(attempt.id));
    let settings = settings_of(log)?;
    let path = project.place_of(&settings.worktree_root, log.run(), attempt);
    let Some(path) = path else { return Ok(None) };
    let keep = Keep { step, fence: attempt.fence, path: &path, reason: SnapshotReason::Recovery };
    Ok(Some(outside_snapshots::of_ended(project, log, &keep)))
}
