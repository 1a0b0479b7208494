//! Commands in, decided events or a typed refusal out. The only author of events, and the only place
//! that says who may write what: a stale fence is refused here, on every path.

use crate::claim::{Asker, Chosen, Claim, believed_until, choose, lease_key, renewable};
use crate::decided::{Decided, Lease};
use crate::event::{Claimed, Entry, Event, Failure, Holder, ReleasedBy, RunOpened, Stage};
use crate::ids::{Fence, StepRef};
use crate::limits::EVIDENCE_BYTES_MAX;
use crate::observed::Observed;
use crate::plan::Plan;
use crate::refusal::Refusal;
use crate::run::{Attempt, Merged, Phase, Run, Step};
use crate::time::Moment;

use ask::{decide_answer, decide_apply, decide_ask, decide_conflict};
use complete::{decide_complete, nothing_awaited, nothing_open, verified};
use end::{asked_cause, bury, clipped_failure, decide_expire, interrupted, last_word, suspended};
use steer::{decide_abandon, decide_accept, decide_reopen, decide_resume, decide_stop};

pub use ask::asked;
pub use command::Command;
pub use complete::{completable, completed_with};
pub use steer::{acceptable, may_forget};

mod ask;
mod command;
mod complete;
mod end;
mod steer;

/// Opens a run: its first event, with the texts it refers to.
pub fn open(plan: &Plan, settings: &[u8], opened: RunOpened) -> Decided {
    assert_eq!(opened.plan, plan.hash(), "a run is opened with the plan it names");
    Decided::new(vec![Event::RunOpened(opened)])
        .with_text(plan.to_bytes())
        .with_text(settings.to_vec())
}

/// Decides a command against a run, under the store's lock or compared when appended.
pub fn decide(
    run: &Run,
    command: &Command,
    leases: &[Lease],
    now: &Moment,
) -> Result<Decided, Refusal> {
    if run.abandoned.is_some() && is_to_go_on(command) {
        return Err(Refusal::RunAbandoned);
    }
    match command {
        Command::Abandon { host, keep_until } => decide_abandon(run, host, *keep_until),
        Command::Reopen { host } => Ok(decide_reopen(run, host)),
        Command::Claim(claim) => decide_claim(run, claim, leases, now),
        Command::Renew { step, fence, until, place } => {
            let (_, attempt) = own(run, step, *fence)?;
            if !until.is_later_than(believed_until(step, attempt, leases)) {
                return Ok(nothing());
            }
            // Whoever has the slots of a lapsed claim by now, or its worktree, keeps them.
            let observed = Observed { place: *place, ..Observed::default() };
            let asker = Asker { holder: &attempt.holder, observed: &observed, leases, now };
            renewable(run, step, &asker)?;
            let (key, fence, until) = (lease_key(step), *fence, until.clone());
            Ok(nothing().with_lease(Lease { key, fence, until }))
        }
        Command::Start { step, fence, base, answers, pid } => {
            let (state, attempt) = own(run, step, *fence)?;
            if matches!(attempt.entry, Entry::Verify | Entry::Land) {
                return Err(Refusal::NothingToStart { step: step.step.clone() });
            }
            let mut told = answers.clone();
            // What piton asked itself is followed, whether anybody is told it or not.
            told.extend(state.directions().map(|question| question.id));
            let answers = state.unread_of(&told);
            if attempt.started_at.is_some() && answers.is_empty() && base.is_none() {
                return Ok(nothing());
            }
            let (step, fence, base) = (step.clone(), *fence, base.clone());
            Ok(one(Event::Started { step, fence, base, answers, pid: *pid }))
        }
        Command::Checkpoint { step, fence, snapshot, report } => {
            own(run, step, *fence)?;
            let (step, fence) = (step.clone(), *fence);
            let (snapshot, report) = (snapshot.clone(), report.clone());
            Ok(one(Event::Checkpointed { step, fence, snapshot, report }))
        }
        Command::TellCheckout { step, fence, files, more } => {
            own(run, step, *fence)?;
            let (step, fence, files, more) = (step.clone(), *fence, files.clone(), *more);
            Ok(one(Event::CheckoutChanged { step, fence, files, more }))
        }
        Command::CompleteSubstep { .. } | Command::AddItem { .. } | Command::MarkItems { .. } => {
            decide_checklist(run, command)
        }
        Command::Ask { step, fence, text, choices } => {
            decide_ask(run, (step, *fence), text, choices)
        }
        Command::RaiseConflict { step, fence, conflict } => {
            decide_conflict(run, (step, *fence), conflict, now)
        }
        Command::Answer { question, answer, host } => decide_answer(run, question, answer, host),
        Command::ApplyAnswers { step, fence, questions } => {
            decide_apply(run, (step, *fence), questions)
        }
        Command::Suspend { step, fence } => {
            let (held, _) = own(run, step, *fence)?;
            match held.awaits(*fence) {
                Some(_) => Ok(suspended(step, *fence, now)),
                None => Err(Refusal::NothingAsked { step: step.step.clone() }),
            }
        }
        Command::Release { step, fence } => decide_release(run, step, *fence, now),
        Command::Reset { step, reason } => decide_reset(run, step, reason.as_deref()),
        Command::Verify { step, fence, commit, tree, truth, check, commits, omitted } => {
            let (held, attempt) = own(run, step, *fence)?;
            let kept = matches!(attempt.holder, Holder::Keeper { .. });
            if kept && held.stage(attempt) == Stage::Unstarted {
                return Err(Refusal::NotStarted { step: step.step.clone() });
            }
            if kept {
                // Before anything lands: what is still open is not done.
                nothing_awaited(step, held, |question| question.fence == *fence)?;
                nothing_open(run, step, held)?;
            }
            Ok(one(Event::Verified {
                step: step.clone(),
                fence: *fence,
                commit: commit.clone(),
                tree: tree.clone(),
                truth: *truth,
                check: check.clone(),
                commits: *commits,
                answers: held.directions().map(|question| question.id).collect(),
                omitted: omitted.clone(),
            }))
        }
        Command::Land { step, fence, onto, to } => {
            verified(run, step, *fence)?;
            let (step, fence, onto, to) = (step.clone(), *fence, onto.clone(), to.clone());
            Ok(one(Event::LandingIntended { step, fence, onto, to }))
        }
        Command::Complete { step, fence, commit, waive } => {
            let (commit, waive) = (commit.as_ref(), waive.as_deref());
            decide_complete(run, (step, *fence), commit, waive, now)
        }
        Command::Fail { step, fence, why } => {
            let (held, _) = own(run, step, *fence)?;
            // Whoever waits for an answer has not failed, unless they say so themselves.
            if held.awaits(*fence).is_some() && !matches!(why, Failure::Reported { .. }) {
                return Ok(suspended(step, *fence, now));
            }
            let why = clipped_failure(why.clone());
            Ok(last_word(Event::Failed { step: step.clone(), fence: *fence, why }, *fence, now))
        }
        Command::Interrupt { step, fence, cause, at, evidence, left_at } => {
            let (held, attempt) = own(run, step, *fence)?;
            let event = Event::Interrupted {
                step: step.clone(),
                fence: *fence,
                cause: asked_cause(run, attempt).unwrap_or(*cause),
                at: *at,
                evidence: clipped(evidence),
                left_at: match (held.stage(attempt), *left_at) {
                    // Only the holder knows that its agent has ended; the log knows the rest.
                    (Stage::Agent, Stage::Verify) => Stage::Verify,
                    (recorded, _) => recorded,
                },
            };
            Ok(interrupted(run, (step, held, attempt), event, now))
        }
        Command::Bury { step, fence, corpse } => {
            let (held, attempt) = own(run, step, *fence)?;
            let event = bury(run, step, held, attempt, corpse);
            Ok(interrupted(run, (step, held, attempt), event, now))
        }
        Command::Expire { step, fence } => decide_expire(run, (step, *fence), leases, now),
        Command::Stop { scope, cause, haste } => decide_stop(run, scope, *cause, *haste),
        Command::Resume { host, confirmed } => Ok(decide_resume(run, host, *confirmed)),
        Command::IntendMerge(intent) if run.merging.as_ref() == Some(intent) => Ok(nothing()),
        Command::IntendMerge(intent) => Ok(one(Event::MergeIntended(intent.clone()))),
        Command::Merge { into, commit, tip } => {
            let known = run.merged.as_ref().filter(|_| run.merging.is_none());
            let same =
                |known: &Merged| (&known.into, &known.commit, &known.tip) == (into, commit, tip);
            if known.is_some_and(same) {
                return Ok(nothing());
            }
            let (into, commit, tip) = (into.clone(), commit.clone(), tip.clone());
            Ok(one(Event::Merged { into, commit, tip }))
        }
        Command::AcceptPlan { plan } => decide_accept(run, plan),
    }
}

/// Whether a command is about a run that goes on. Of one that was abandoned nobody holds anything: who
/// still writes under a fence is told by that.
fn is_to_go_on(command: &Command) -> bool {
    matches!(
        command,
        Command::Claim(_)
            | Command::Answer { .. }
            | Command::Reset { .. }
            | Command::Stop { .. }
            | Command::Resume { .. }
            | Command::AcceptPlan { .. }
    )
}

pub(crate) fn one(event: Event) -> Decided {
    Decided::new(vec![event])
}

pub(crate) fn nothing() -> Decided {
    Decided::new(Vec::new())
}

/// The one check of ownership: the step's open attempt, if this fence is its fence.
pub(crate) fn own<'run>(
    run: &'run Run,
    step: &StepRef,
    fence: Fence,
) -> Result<(&'run Step, &'run Attempt), Refusal> {
    let id = || step.step.clone();
    let state = run.state_of(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    match &state.phase {
        Phase::Held(attempt) if attempt.fence == fence => Ok((state, attempt)),
        Phase::Held(attempt) => {
            Err(Refusal::StaleFence { step: id(), given: fence, current: attempt.fence })
        }
        Phase::Completed { .. } => Err(Refusal::Completed(id())),
        Phase::Pending | Phase::Failed { .. } | Phase::Interrupted(_) | Phase::Suspended { .. } => {
            Err(Refusal::NotClaimed { step: id(), given: fence })
        }
    }
}

/// Whether a fence is that of the step's open attempt.
pub fn holds(run: &Run, step: &StepRef, fence: Fence) -> Result<(), Refusal> {
    own(run, step, fence).map(drop)
}

fn decide_claim(
    run: &Run,
    claim: &Claim,
    leases: &[Lease],
    now: &Moment,
) -> Result<Decided, Refusal> {
    let Chosen { step, granted, tree, displaces, outlived } = choose(run, claim, leases, now)?;
    let event = Event::Claimed(Claimed {
        step: step.clone(),
        attempt: claim.attempt,
        holder: claim.holder.clone(),
        entry: granted.entry,
        grounds: granted.grounds,
        until: claim.until.clone(),
        plan: run.graph().hash(),
        tree,
        displaces,
        pid: claim.pid,
    });
    let fence = Fence::from(run.cursor.position.next());
    let lease = Lease { key: lease_key(&step), fence, until: claim.until.clone() };
    let over = |(step, fence)| Lease { key: lease_key(&step), fence, until: now.clone() };
    Ok(outlived.into_iter().map(over).fold(one(event).with_lease(lease), Decided::with_lease))
}

fn decide_checklist(run: &Run, command: &Command) -> Result<Decided, Refusal> {
    match command {
        Command::CompleteSubstep { step, fence, substep } => {
            let (state, _) = own(run, step, *fence)?;
            let known = run.step(&step.step).is_some_and(|(plan, _)| {
                plan.substeps.iter().any(|candidate| candidate.id == *substep)
            });
            if !known {
                let (step, substep) = (step.step.clone(), substep.clone());
                return Err(Refusal::UnknownSubstep { step, substep });
            }
            if state.checklist.completed.contains(substep) {
                return Ok(nothing());
            }
            let (step, fence, substep) = (step.clone(), *fence, substep.clone());
            Ok(one(Event::SubstepCompleted { step, fence, substep }))
        }
        Command::AddItem { step, fence, text, priority } => {
            own(run, step, *fence)?;
            let (step, fence, text, priority) = (step.clone(), *fence, clipped(text), *priority);
            Ok(one(Event::ItemAdded { step, fence, text, priority }))
        }
        Command::MarkItems { step, fence, items, mark } => {
            let (state, _) = own(run, step, *fence)?;
            let (plan, _) = run.step(&step.step).expect("the step is ours");
            if let Some(item) = items.iter().find(|item| !state.checklist.has(plan, item)) {
                let (step, item) = (step.step.clone(), item.clone());
                return Err(Refusal::UnknownItem { step, item });
            }
            let (step, fence, items, mark) = (step.clone(), *fence, items.clone(), mark.clone());
            Ok(one(Event::ItemsMarked { step, fence, items, mark }))
        }
        _ => unreachable!("only commands about the checklist come here"),
    }
}

fn decide_release(
    run: &Run,
    step: &StepRef,
    fence: Option<Fence>,
    now: &Moment,
) -> Result<Decided, Refusal> {
    let held = present(run, step).map_err(|refusal| match (refusal, fence) {
        (Refusal::Completed(step), _) => Refusal::CannotRelease(step),
        (Refusal::NothingHeld { step, .. }, Some(given)) => Refusal::NotClaimed { step, given },
        (refusal, _) => refusal,
    })?;
    let by = match fence {
        Some(fence) => {
            let (_, attempt) = own(run, step, fence)?;
            // A worker would take it up again at once, and so on for ever.
            if matches!(attempt.holder, Holder::Keeper { .. }) {
                return Err(Refusal::RunByPiton(step.step.clone()));
            }
            ReleasedBy::Owner
        }
        None => ReleasedBy::Force,
    };
    let event = Event::Released { step: step.clone(), fence: held.fence, by };
    Ok(last_word(event, held.fence, now))
}

/// The claim on a step, whoever has it; or why there is none.
pub fn present<'run>(run: &'run Run, step: &StepRef) -> Result<&'run Attempt, Refusal> {
    let id = || step.step.clone();
    let state = run.state_of(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    let how = match &state.phase {
        Phase::Held(attempt) => return Ok(attempt),
        Phase::Completed { .. } => return Err(Refusal::Completed(id())),
        Phase::Pending => return Err(Refusal::Pending(id())),
        Phase::Failed { .. } => "it has failed",
        Phase::Suspended { .. } => "it waits for an answer",
        Phase::Interrupted(_) => "it was interrupted",
    };
    Err(Refusal::NothingHeld { step: id(), how })
}

fn decide_reset(run: &Run, step: &StepRef, reason: Option<&str>) -> Result<Decided, Refusal> {
    let id = || step.step.clone();
    let state = run.state_of(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    match &state.phase {
        Phase::Pending if state.is_unspent() => return Ok(nothing()),
        Phase::Held(_) => return Err(Refusal::StillHeld(id())),
        Phase::Completed { .. } if reason.is_none() => return Err(Refusal::ResetNeedsReason(id())),
        // Its key is free: another run of the plan may have it.
        Phase::Completed { .. } if run.is_completed() => return Err(Refusal::RunCompleted),
        // Given back, perhaps, under a stop or after a failure.
        Phase::Pending
        | Phase::Completed { .. }
        | Phase::Failed { .. }
        | Phase::Interrupted(_)
        | Phase::Suspended { .. } => {}
    }
    let reason = reason.map(clipped);
    Ok(one(Event::Reset { step: step.clone(), reason }))
}

/// The end of a text, at most as long as an event may carry.
fn clipped(text: &str) -> String {
    let mut start = text.len().saturating_sub(EVIDENCE_BYTES_MAX);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}
