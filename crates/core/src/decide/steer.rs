//! What is asked of a whole run: to stop, to go on, to be given up, to follow a changed plan.

use super::ask::{asked_again, tried_again};
use super::loops::loops_asked_again;
use super::{nothing, one, own};
use crate::decided::Decided;
use crate::event::{Cause, Event, Haste, Scope, Terms};
use crate::ids::{HostId, LoopId, StepRef};
use crate::plan::Plan;
use crate::refusal::Refusal;
use crate::run::{Phase, Run, Step, Stop};
use crate::time::Millis;

/// Whether a run can go on with a changed plan.
pub fn acceptable(run: &Run, plan: &Plan) -> Result<(), Refusal> {
    decide_accept(run, plan).map(drop)
}

pub(super) fn decide_stop(
    run: &Run,
    scope: &Scope,
    cause: Cause,
    haste: Haste,
) -> Result<Decided, Refusal> {
    if run.is_completed() {
        return Err(Refusal::RunCompleted);
    }
    let present = match scope {
        Scope::Run => run.stop,
        Scope::Attempt(under) => own(run, under)?.attempt.unlifted_stop(),
    };
    match present {
        Some(Stop { haste: asked, .. }) if asked >= haste => Ok(nothing()),
        _ => Ok(one(Event::StopRequested { scope: scope.clone(), cause, haste })),
    }
}

pub(super) fn decide_resume(
    run: &Run,
    host: &HostId,
    confirmed: bool,
    terms: &Terms,
) -> Result<Decided, Refusal> {
    if let Some(unknown) =
        terms.steps.iter().find(|step| run.graph().index_of(&step.step).is_none())
    {
        return Err(Refusal::UnknownStep(unknown.clone()));
    }
    let stopping = run.held().any(|(_, held)| held.unlifted_stop().is_some());
    let held_back = stopping || run.held_back().is_some();
    let yes = if confirmed { tried_again(run, host) } else { Vec::new() };
    let asked = confirmed && run.steps().any(|(_, _, step)| step.idle() > 0) || !yes.is_empty();
    let obstructed = run.interrupted().any(|(_, _, step)| step.is_obstructed());
    let restarted = if terms.restart { to_restart(run, terms) } else { Vec::new() };
    // Without another number the one in force stays.
    let max_iterations = terms.max_iterations.and(run.terms.max_iterations);
    let same = *terms == Terms { restart: terms.restart, max_iterations, ..run.terms.clone() };
    let lifts = run.stop.is_some() || held_back || asked || obstructed;
    if same && !lifts && restarted.is_empty() {
        return Ok(nothing());
    }
    let resumed = Event::Resumed { host: host.clone(), confirmed, terms: terms.clone() };
    // What begins again from its base needs no other answer.
    let stays = |event: &Event| event.step().is_none_or(|step| !restarted.contains(step));
    let again = asked_again(run).into_iter().chain(loops_asked_again(run, terms.max_iterations));
    let said = again.chain(yes).filter(stays);
    let reset = |step: &StepRef| Event::Reset { step: step.clone(), reason: None };
    let events = [resumed].into_iter().chain(said).chain(restarted.iter().map(reset));
    Ok(Decided::new(events.collect()))
}

/// The interrupted and failed steps that begin again from their base, where that is asked for.
pub fn to_restart(run: &Run, terms: &Terms) -> Vec<StepRef> {
    let ended =
        |state: &Step| matches!(state.phase, Phase::Interrupted { .. } | Phase::Failed { .. });
    let left = run.remaining().filter(|(step, _, state)| ended(state) && terms.has(step));
    left.map(|(step, _, _)| step).collect()
}

pub(super) fn decide_abandon(
    run: &Run,
    host: &HostId,
    keep_until: Option<Millis>,
) -> Result<Decided, Refusal> {
    if run.is_completed() {
        return Err(Refusal::RunCompleted);
    }
    if run.abandoned.is_some() {
        return Ok(nothing());
    }
    if let Some((step, _)) = run.held().next() {
        return Err(Refusal::StillHeld(step));
    }
    Ok(one(Event::Abandoned { host: host.clone(), keep_until }).freeing_key())
}

pub(super) fn decide_reopen(run: &Run, host: &HostId) -> Decided {
    match run.abandoned {
        Some(_) => one(Event::Reopened { host: host.clone() }).taking_key(),
        None => nothing(),
    }
}

/// Whether a run may be forgotten for good: nobody has anything to do with it any more.
pub fn may_forget(run: &Run) -> Result<(), Refusal> {
    if let Some((step, _)) = run.held().next() {
        return Err(Refusal::StillHeld(step));
    }
    match run.is_completed() || run.abandoned.is_some() {
        true => Ok(()),
        false => Err(Refusal::RunNotOver),
    }
}

/// What is claimed or completed was done under its recipe, and what was recorded when the run was opened
/// stays: everything else may change.
pub(super) fn decide_accept(run: &Run, plan: &Plan) -> Result<Decided, Refusal> {
    if plan.hash() == run.graph().hash() {
        return Ok(nothing());
    }
    if run.is_completed() {
        return Err(Refusal::RunCompleted);
    }
    let before = run.plan();
    let fixed = [
        ("base", plan.base != before.base),
        ("inputs", plan.inputs != before.inputs),
        // What is at work, or was, has its files where the recorded plan says.
        ("isolation", plan.isolation != before.isolation),
    ];
    if let Some((what, _)) = fixed.into_iter().find(|(_, changed)| *changed) {
        return Err(Refusal::PlanFixed { what });
    }
    let steps = run.steps_blocking(plan);
    if !steps.is_empty() {
        return Err(Refusal::PlanInUse { steps });
    }
    let bytes = plan.to_bytes();
    let text = String::from_utf8(bytes.clone()).expect("a normalised plan is JSON");
    let decided = one(Event::PlanAccepted { plan: plan.hash(), text }).with_text(bytes);
    let is_over = |id: &LoopId| run.loops().any(|(known, _, state)| known == id && state.is_over());
    let stays = plan.steps.iter().all(|step| run.stays_done(step));
    Ok(if stays && plan.loops.keys().all(is_over) { decided.freeing_key() } else { decided })
}
