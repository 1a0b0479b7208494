//! What the end of an attempt is called that did not complete its step: one set of rules, whoever saw it
//! end, its keeper or the next command.

use super::ask::about_interruption;
use super::{clipped, nothing, one, own};
use crate::claim::{believed_until, lease_key};
use crate::decided::{Decided, Lease};
use crate::event::{Cause, Event, Failure, Stage};
use crate::exit::{Judged, judge_exit};
use crate::ids::{Fence, StepRef};
use crate::observed::Corpse;
use crate::refusal::Refusal;
use crate::run::{Attempt, Run, Step, asks_first};
use crate::time::Moment;

/// The event that ends an attempt; its lease is over with it, so that leases do not pile up.
pub(super) fn last_word(event: Event, fence: Fence, now: &Moment) -> Decided {
    let key = event.step().map(lease_key).unwrap_or_default();
    one(event).with_lease(Lease { key, fence, until: now.clone() })
}

/// The event that ends an attempt which may have been cut off at work, and the question that the plan
/// wants asked about that. Nobody can come in between.
pub(super) fn interrupted(
    run: &Run,
    (step, held, attempt): (&StepRef, &Step, &Attempt),
    event: Event,
    now: &Moment,
) -> Decided {
    let (plan, _) = run.step(&step.step).expect("a held step is in the plan");
    let fence = attempt.fence;
    let asked = match &event {
        Event::Interrupted { cause, at, left_at: Stage::Unstarted | Stage::Agent, .. }
            if asks_first(plan, held) =>
        {
            Some(about_interruption((plan, held), (step, fence), (*cause, *at)))
        }
        _ => None,
    };
    let events = [event].into_iter().chain(asked).collect();
    Decided::new(events).with_lease(Lease { key: lease_key(step), fence, until: now.clone() })
}

/// Only where it would be asked about: else the claim that takes the step ends the attempt.
pub(super) fn decide_expire(
    run: &Run,
    (step, fence): (&StepRef, Fence),
    leases: &[Lease],
    now: &Moment,
) -> Result<Decided, Refusal> {
    let (state, attempt) = own(run, step, fence)?;
    let until = believed_until(step, attempt, leases);
    if !until.is_over(now) {
        let (step, until) = (step.step.clone(), until.clone());
        return Err(Refusal::HeldElsewhere { step, fence, until });
    }
    let (plan, _) = run.step(&step.step).expect("a held step is in the plan");
    if !asks_first(plan, state) {
        return Ok(nothing());
    }
    let event = Event::Interrupted {
        step: step.clone(),
        fence,
        cause: asked_cause(run, attempt).unwrap_or(Cause::HostLost),
        at: until.wall,
        evidence: "not heard of until its lease was over".to_owned(),
        left_at: state.stage(attempt),
    };
    Ok(interrupted(run, (step, state, attempt), event, now))
}

pub(super) fn suspended(step: &StepRef, fence: Fence, now: &Moment) -> Decided {
    last_word(Event::Suspended { step: step.clone(), fence }, fence, now)
}

/// What a dead attempt's end is called: the same rules as for an end that its keeper saw.
pub(super) fn bury(
    run: &Run,
    step: &StepRef,
    held: &Step,
    attempt: &Attempt,
    corpse: &Corpse,
) -> Event {
    let interrupted = |cause: Cause, left_at: Stage| Event::Interrupted {
        step: step.clone(),
        fence: attempt.fence,
        cause: asked_cause(run, attempt).unwrap_or(cause),
        at: corpse.at,
        evidence: clipped(&corpse.evidence),
        left_at,
    };
    let stage = held.stage(attempt);
    let Some(ended) = corpse.exit.filter(|_| stage == Stage::Agent) else {
        return interrupted(corpse.cause, stage);
    };
    let failed = |why: Failure| Event::Failed { step: step.clone(), fence: attempt.fence, why };
    match judge_exit(ended) {
        Judged::Ended | Judged::Failed | Judged::TimedOut
            if held.awaits(attempt.fence).is_some() =>
        {
            Event::Suspended { step: step.clone(), fence: attempt.fence }
        }
        Judged::Ended => interrupted(corpse.cause, Stage::Verify),
        Judged::Interrupted(cause) => interrupted(cause, Stage::Agent),
        Judged::Failed => {
            failed(Failure::Exit { exit: ended.exit, tail: clipped(&corpse.evidence) })
        }
        Judged::TimedOut => {
            let limit = run.step(&step.step).and_then(|(plan, _)| plan.timeout);
            let ms = limit.map_or(0, |limit| limit.as_millis());
            failed(Failure::Timeout { ms: u64::try_from(ms).unwrap_or(u64::MAX) })
        }
    }
}

pub(super) fn asked_cause(run: &Run, attempt: &Attempt) -> Option<Cause> {
    run.stop_for(attempt).map(|stop| stop.cause)
}

pub(super) fn clipped_failure(why: Failure) -> Failure {
    match why {
        Failure::Exit { exit, tail } => Failure::Exit { exit, tail: clipped(&tail) },
        Failure::Verify { exit, tail } => Failure::Verify { exit, tail: clipped(&tail) },
        Failure::Landing { message } => Failure::Landing { message: clipped(&message) },
        Failure::Setup { why, tail } => Failure::Setup { why: clipped(&why), tail: clipped(&tail) },
        Failure::Reported { reason } => Failure::Reported { reason: clipped(&reason) },
        Failure::Unfinished { open } => Failure::Unfinished { open: clipped(&open) },
        timeout @ Failure::Timeout { .. } => timeout,
    }
}
