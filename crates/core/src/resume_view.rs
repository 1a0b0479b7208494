//! What a resume would do, as plain data for surfaces: the same recovery that a worker asks, with what it costs
//! in time, estimated from the run's own history. Nothing is decided here.

use std::time::Duration;

use crate::claim::jobs;
use crate::decide::Command;
use crate::decided::Lease;
use crate::event::{Entry, Holder, Terms};
use crate::ids::HostId;
use crate::observed::{Observed, Sighting};
use crate::recover::{Action, Because, Recovery, all_buried, foreseen, recover};
use crate::refusal::Refusal;
use crate::run::{Ending, PastAttempt, Run, Step};
use crate::time::{Millis, Moment};

/// What a resume would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeView {
    /// In plan order.
    pub steps: Vec<Recovery>,
    /// Work that is done again; unknown where nothing was attempted.
    pub lost: Option<LostWork>,
    /// How long what is left takes; unknown where no step was completed by piton.
    pub left: Option<Duration>,
}

/// How much of the time that was worked is lost, as far as the last signs of life tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostWork {
    pub time: Duration,
    /// Of all the time that was worked, rounded up.
    pub percent: u64,
}

/// What a resume on these terms would do: recovery, once the request itself has lifted what stops held back.
/// Refused where the request would be.
pub fn resume_view(
    run: &Run,
    (host, terms): (&HostId, &Terms),
    observed: &Observed,
    leases: &[Lease],
    now: &Moment,
) -> Result<ResumeView, Refusal> {
    // Who is dead is recorded before anything is started.
    let seen = all_buried(run, observed, now);
    let request = Command::Resume { host: host.clone(), confirmed: false, terms: terms.clone() };
    let after = foreseen(seen.clone(), &request, now)?;
    let mut steps = recover(&after, observed, leases, now);
    let (lost, left) = (lost(&seen, &steps), left(&after, &seen, &steps, now));
    for recovery in &mut steps {
        let held = run.step(&recovery.step).and_then(|(_, state)| state.attempt());
        let dead = held.filter(|held| matches!(observed.of(held.id), Sighting::Dead(_)));
        if let Some(fence) = dead.map(|held| held.fence) {
            let then = std::mem::replace(&mut recovery.action, Action::Skip);
            recovery.action = Action::Bury { fence, then: Box::new(then) };
        }
    }
    Ok(ResumeView { steps, lost, left })
}

impl Recovery {
    /// What is done in the end, once what is dead is recorded.
    pub fn outcome(&self) -> &Action {
        match &self.action {
            Action::Bury { then, .. } => then,
            action => action,
        }
    }
}

fn lost(seen: &Run, steps: &[Recovery]) -> Option<LostWork> {
    let worked: Duration = seen.steps().flat_map(|(_, _, state)| &state.history).map(took).sum();
    if worked.is_zero() {
        return None;
    }
    let of_step = |recovery: &Recovery| {
        let (_, state) = seen.step(&recovery.step)?;
        match recovery.outcome() {
            Action::Start { entry: Entry::Fresh, because } if *because != Because::NeedsMet => {
                Some(spent(state))
            }
            Action::Start { entry: Entry::Continue, .. } => Some(unsaved(state)),
            _ => None,
        }
    };
    let time: Duration = steps.iter().filter_map(of_step).sum();
    let percent = (time.as_millis() * 100).div_ceil(worked.as_millis().max(1));
    Some(LostWork { time, percent: u64::try_from(percent).unwrap_or(100).min(100) })
}

/// How long its last attempt lived after its work was last kept.
fn unsaved(state: &Step) -> Duration {
    let Some(last) = state.history.last() else { return Duration::ZERO };
    if !matches!(last.ending, Ending::Interrupted { .. }) {
        return Duration::ZERO;
    }
    let kept = state.snapshot.as_ref().filter(|kept| kept.fence == last.attempt.fence);
    let saved = kept.map_or(last.attempt.claimed_at, |kept| kept.at);
    last.ended_at.since(saved)
}

/// The mean of what completed steps took, for each that is left, less what was done of it.
fn left(after: &Run, seen: &Run, steps: &[Recovery], now: &Moment) -> Option<Duration> {
    let is_kept = |past: &PastAttempt| matches!(past.attempt.holder, Holder::Keeper { .. });
    let by_piton = |state: &Step| state.is_completed() && state.history.iter().any(is_kept);
    let done: Vec<Duration> = seen
        .steps()
        .filter(|(_, _, state)| by_piton(state))
        .map(|(_, _, state)| spent(state))
        .collect();
    let mean = done.iter().sum::<Duration>().checked_div(u32::try_from(done.len()).ok()?)?;
    let rest = |recovery: &Recovery| {
        let (plan, state) = seen.step(&recovery.step)?;
        let done = match recovery.outcome() {
            Action::Skip | Action::LeaveOut | Action::StayFailed => return None,
            Action::Start { entry: Entry::Verify | Entry::Land, .. } => mean,
            Action::Start { entry: Entry::Continue, .. } => spent(state),
            Action::Adopt { .. } => {
                let began = state.attempt().map_or(now.wall, |held| held.claimed_at);
                spent(state) + now.wall.since(began)
            }
            _ => Duration::ZERO,
        };
        (!plan.work.is_by_hand()).then(|| mean.saturating_sub(done))
    };
    let rest: Vec<Duration> = steps.iter().filter_map(rest).collect();
    let at_once = (jobs(after) as usize).min(rest.len()).max(1);
    rest.iter().sum::<Duration>().checked_div(u32::try_from(at_once).ok()?)
}

/// How long was worked on a step since it was last begun from its base.
fn spent(state: &Step) -> Duration {
    let of_this_tree =
        |past: &&PastAttempt| state.restarted_at().is_none_or(|at| past.attempt.fence >= at);
    state.history.iter().filter(of_this_tree).map(took).sum()
}

fn took(past: &PastAttempt) -> Duration {
    let from: Millis = past.attempt.claimed_at;
    past.ended_at.since(from)
}
