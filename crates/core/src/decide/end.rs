//! What the end of an attempt is called that did not complete its step: one set of rules, whoever saw it
//! end, its keeper or the next command.

use super::ask::{about_failure, about_interruption, about_no_progress};
use super::limit::{about_limit, limited};
use super::{Clock, Held, clipped, lease, nothing};
use crate::claim::believed_until;
use crate::decided::Decided;
use crate::event::{Cause, Event, Fact, Failure, Interruption, Stage};
use crate::exit::{Judged, judge};
use crate::observed::Corpse;
use crate::refusal::Refusal;
use crate::run::asks_first;
use crate::time::Moment;

/// The fact that ends an attempt without completing its step, and the question that is asked about that.
/// Nothing can come in between.
pub(super) fn ended(held: &Held<'_>, fact: Fact, now: &Moment) -> Decided {
    let asked = match &fact {
        Fact::Interrupted(last)
            if matches!(last.left_at, Stage::Unstarted | Stage::Agent)
                && asks_first(held.plan, held.state) =>
        {
            let step = &held.under.step;
            Some(about_interruption(step, (held.plan, held.state), (last.cause, last.at)))
        }
        Fact::Interrupted(last) => about_no_progress(held, last),
        Fact::Failed { why } => about_failure(held, why),
        Fact::Limited(limited) => about_limit(held, limited),
        _ => None,
    };
    let facts = [fact].into_iter().chain(asked);
    let events = facts.map(|fact| Event::Under(held.under.clone(), fact)).collect();
    Decided::new(events).with_lease(lease(held.under, now))
}

/// Only where it would be asked about: else the claim that takes the step ends the attempt.
pub(super) fn decide_expire(held: &Held<'_>, clock: &Clock<'_>) -> Result<Decided, Refusal> {
    let until = believed_until(&held.under.step, held.attempt, clock.leases);
    if !until.is_over(clock.now) {
        let (step, fence, until) = (held.id(), held.under.fence, until.clone());
        return Err(Refusal::HeldElsewhere { step, fence, until });
    }
    if !asks_first(held.plan, held.state) {
        return Ok(nothing());
    }
    let fact = Fact::Interrupted(Interruption {
        cause: asked_cause(held).unwrap_or(Cause::HostLost),
        at: until.wall,
        evidence: "not heard of until its lease was over".to_owned(),
        left_at: held.state.stage(held.attempt),
    });
    Ok(ended(held, fact, clock.now))
}

/// What a dead attempt's end is called: the same rules as for an end that its keeper saw.
pub(super) fn bury(held: &Held<'_>, corpse: &Corpse, now: &Moment) -> Fact {
    // A stop that was asked for after its last sign of life is not what it died of.
    let stop = held.run.stop_for(held.attempt).filter(|stop| stop.at <= corpse.at);
    let asked = stop.map(|stop| stop.cause);
    let interrupted = |cause: Cause, left_at: Stage| {
        Fact::Interrupted(Interruption {
            cause: asked.unwrap_or(cause),
            at: corpse.at,
            evidence: clipped(&corpse.evidence),
            left_at,
        })
    };
    let stage = held.state.stage(held.attempt);
    let Some(ended) = corpse.exit.filter(|_| stage == Stage::Agent) else {
        return interrupted(corpse.cause, stage);
    };
    match judge(Stage::Agent, ended, clipped(&corpse.evidence), corpse.heard.clone()) {
        Judged::Ended | Judged::Failed(_) if held.awaits_answer() => Fact::Suspended {},
        Judged::Limited(heard) => Fact::Limited(limited(held, &heard, now)),
        Judged::Ended => interrupted(corpse.cause, Stage::Verify),
        Judged::Interrupted(cause) => interrupted(cause, Stage::Agent),
        Judged::Failed(why) => Fact::Failed { why },
    }
}

/// The cause of the stop that the attempt was asked for.
pub(super) fn asked_cause(held: &Held<'_>) -> Option<Cause> {
    held.run.stop_for(held.attempt).map(|stop| stop.cause)
}

pub(super) fn clipped_failure(why: Failure) -> Failure {
    match why {
        Failure::Exit { exit, tail } => Failure::Exit { exit, tail: clipped(&tail) },
        Failure::Verify { exit, tail } => Failure::Verify { exit, tail: clipped(&tail) },
        Failure::Landing { message } => Failure::Landing { message: clipped(&message) },
        Failure::Setup { why, tail } => Failure::Setup { why: clipped(&why), tail: clipped(&tail) },
        Failure::Reported { reason } => Failure::Reported { reason: clipped(&reason) },
        Failure::Unfinished { open } => Failure::Unfinished { open: clipped(&open) },
        Failure::Output { output, value, bound } => {
            Failure::Output { output, value: clipped(&value), bound }
        }
        brief @ (Failure::Timeout { .. } | Failure::Hang { .. }) => brief,
    }
}
