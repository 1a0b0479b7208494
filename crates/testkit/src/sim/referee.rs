//! The referee: reads every record as it is appended and checks it against bookkeeping of its own. It
//! asks neither the fold nor the decisions, so that it cannot share their mistakes.

use std::fmt;

use piton_core::event::{Claimed, Entry, Event, Grounds, Holder, Scope};
use piton_core::ids::{AttemptId, Fence, HostId, StepId};
use piton_core::record::Record;
use piton_core::time::Moment;

use super::world::ActorId;

/// What must hold whatever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Every accepted write carries the current fence of its step, and its writer's own.
    OneOwner,
    CompletedOnce,
    /// A step is claimed only when all it needs is completed.
    NeedsMet,
    /// With one worktree, one claim is open at a time.
    OneClaim,
    FencesGrow,
    /// A claim is taken over only after its lease, and never from a live holder on the same host.
    LeaseRespected,
    /// Only the dead are buried.
    BuriedDead,
    /// Never two live agents in one worktree.
    OneAgent,
    /// An agent that had ended is not started again for what came after it.
    AgentNotRepeated,
    /// What was acknowledged is in the log at the end.
    Durable,
    /// The log can be folded.
    Lawful,
    /// After the faults end the run ends too.
    Progress,
    /// The branch ends with the tree of an undisturbed run.
    SameTree,
}

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} did not hold: {}", self.invariant, self.detail)
    }
}

/// Who wrote a record, and what was true of the world at that moment.
pub(super) struct Circumstances<'a> {
    pub(super) now: Moment,
    /// When the present holder's claim ends, by the rows as they were before.
    pub(super) believed_until: &'a dyn Fn(&Open) -> Moment,
    /// Who holds the lock of an attempt on a host, if they live.
    pub(super) lock_holder: &'a dyn Fn(&HostId, AttemptId) -> Option<ActorId>,
    /// The actor, and the fence it holds where it is a keeper.
    pub(super) writer: Option<(ActorId, Option<Fence>)>,
}

/// An open claim.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) key: String,
    pub(super) fence: Fence,
    pub(super) attempt: AttemptId,
    pub(super) host: HostId,
    /// The expiry inside `Claimed`.
    pub(super) until: Moment,
}

struct Step {
    id: StepId,
    needs: Vec<usize>,
    open: Option<Open>,
    completed: bool,
    /// The agent ended by itself with success, and that is on record on its host.
    agent_ended: bool,
}

pub(super) struct Referee {
    steps: Vec<Step>,
    last_fence: u64,
    pub(super) takeovers: u64,
    pub(super) claims: u64,
}

impl Referee {
    pub(super) fn new(steps: Vec<(StepId, Vec<usize>)>) -> Referee {
        let step =
            |(id, needs)| Step { id, needs, open: None, completed: false, agent_ended: false };
        let steps = steps.into_iter().map(step).collect();
        Referee { steps, last_fence: 0, takeovers: 0, claims: 0 }
    }

    /// An exit record was written on the host of an open claim.
    pub(super) fn agent_ended(&mut self, fence: Fence) {
        for step in &mut self.steps {
            if step.open.as_ref().is_some_and(|open| open.fence == fence) {
                step.agent_ended = true;
            }
        }
    }

    pub(super) fn all_completed(&self) -> bool {
        self.steps.iter().all(|step| step.completed)
    }

    /// Checks one record and takes it in.
    pub(super) fn read(
        &mut self,
        record: &Record,
        at: &Circumstances<'_>,
    ) -> Result<(), Violation> {
        let event = Event::from_body(&record.body)
            .map_err(|bad| violation(Invariant::Lawful, bad.to_string()))?;
        let Some(step) = event.step() else { return Ok(()) };
        let index = self.steps.iter().position(|known| known.id == step.step);
        let index = index.ok_or_else(|| violation(Invariant::Lawful, "unknown step".to_owned()))?;
        if self.steps[index].completed {
            let detail = format!("{} was completed before {event:?}", step.step);
            return Err(violation(Invariant::CompletedOnce, detail));
        }
        match &event {
            Event::Claimed(claimed) => self.claimed(index, claimed, record, at),
            _ => self.under_claim(index, &event, at),
        }
    }

    fn claimed(
        &mut self,
        index: usize,
        claimed: &Claimed,
        record: &Record,
        at: &Circumstances<'_>,
    ) -> Result<(), Violation> {
        let id = &claimed.step.step;
        let unmet = self.steps[index].needs.iter().find(|need| !self.steps[**need].completed);
        if let Some(need) = unmet {
            let detail = format!("{id} is claimed before {} is completed", self.steps[*need].id);
            return Err(violation(Invariant::NeedsMet, detail));
        }
        let other = (0..self.steps.len()).find(|i| *i != index && self.steps[*i].open.is_some());
        if let Some(other) = other {
            let detail = format!("{id} is claimed while {} is", self.steps[other].id);
            return Err(violation(Invariant::OneClaim, detail));
        }
        if record.position.0 <= self.last_fence {
            let detail = format!("{} after {}", record.position, self.last_fence);
            return Err(violation(Invariant::FencesGrow, detail));
        }
        let Holder::Keeper { host, .. } = &claimed.holder;
        match (&self.steps[index].open, claimed.grounds) {
            (Some(open), Grounds::LeaseOver) => taken_over(id, open, host, at)?,
            (Some(open), Grounds::Free) => {
                let detail = format!("{id} is claimed as free, and held at {}", open.fence);
                return Err(violation(Invariant::OneOwner, detail));
            }
            (None, _) => {}
        }
        self.last_fence = record.position.0;
        self.claims += 1;
        let step = &mut self.steps[index];
        if step.open.is_some() {
            self.takeovers += 1;
            // Nobody can read the exit record on a host that is lost.
            step.agent_ended &= matches!(claimed.entry, Entry::Verify | Entry::Land);
        }
        step.open = Some(Open {
            key: format!("{id}#{}", claimed.step.iteration),
            fence: Fence(record.position.0),
            attempt: claimed.attempt,
            host: host.clone(),
            until: claimed.until.clone(),
        });
        Ok(())
    }

    fn under_claim(
        &mut self,
        index: usize,
        event: &Event,
        at: &Circumstances<'_>,
    ) -> Result<(), Violation> {
        let step = &mut self.steps[index];
        let fence = fence_of(event);
        let open = step.open.as_mut().filter(|open| Some(open.fence) == fence);
        let Some(open) = open else {
            let detail = format!("{event:?} is not under the current fence of {}", step.id);
            return Err(violation(Invariant::OneOwner, detail));
        };
        if let Some((_, Some(own))) = at.writer
            && Some(own) != fence
        {
            let detail = format!("the holder of {own} wrote {event:?}");
            return Err(violation(Invariant::OneOwner, detail));
        }
        match event {
            Event::Started { .. } if step.agent_ended => {
                let detail = format!("the agent of {} had ended", step.id);
                return Err(violation(Invariant::AgentNotRepeated, detail));
            }
            Event::Completed { .. } => {
                step.completed = true;
                step.open = None;
            }
            Event::Failed { .. } | Event::Interrupted { .. } => {
                buried_dead(&step.id, open, at)?;
                step.agent_ended &= matches!(event, Event::Interrupted { .. });
                step.open = None;
            }
            _ => {}
        }
        Ok(())
    }
}

fn taken_over(
    id: &StepId,
    open: &Open,
    host: &HostId,
    at: &Circumstances<'_>,
) -> Result<(), Violation> {
    let until = (at.believed_until)(open);
    if !until.is_over(&at.now) {
        let detail = format!("{id} is taken from {} before its lease is over", open.fence);
        return Err(violation(Invariant::LeaseRespected, detail));
    }
    if open.host == *host && (at.lock_holder)(host, open.attempt).is_some() {
        let detail = format!("{id} is taken from {}, which lives on the same host", open.fence);
        return Err(violation(Invariant::LeaseRespected, detail));
    }
    Ok(())
}

/// An attempt is ended by its holder, or by somebody who found the holder dead.
fn buried_dead(id: &StepId, open: &Open, at: &Circumstances<'_>) -> Result<(), Violation> {
    let holder = (at.lock_holder)(&open.host, open.attempt);
    match (holder, at.writer) {
        (Some(holder), Some((writer, _))) if holder != writer => {
            let detail = format!("{id} at {} is buried while its keeper lives", open.fence);
            Err(violation(Invariant::BuriedDead, detail))
        }
        _ => Ok(()),
    }
}

fn violation(invariant: Invariant, detail: String) -> Violation {
    Violation { invariant, detail }
}

fn fence_of(event: &Event) -> Option<Fence> {
    match event {
        Event::Started { fence, .. }
        | Event::Checkpointed { fence, .. }
        | Event::Verified { fence, .. }
        | Event::LandingIntended { fence, .. }
        | Event::Completed { fence, .. }
        | Event::Failed { fence, .. }
        | Event::Interrupted { fence, .. }
        | Event::StopRequested { scope: Scope::Attempt { fence, .. }, .. } => Some(*fence),
        _ => None,
    }
}
