//! What a holder publishes for other steps, and what it waits for.

use super::{Held, nothing};
use crate::decided::Decided;
use crate::event::{Fact, Holder};
use crate::ids::{OutputName, StepRef};
use crate::limits::{OUTPUT_BYTES_MAX, STEP_OUTPUTS_MAX};
use crate::output::{OutputRef, OutputValue};
use crate::plan::{Isolation, PlanStep};
use crate::refusal::Refusal;
use crate::run::{AwaitedOutput, Step};
use crate::time::Millis;

/// Publishes a value. The same once more is harmless.
pub(super) fn decide_set(
    held: &Held<'_>,
    name: &OutputName,
    json: &str,
) -> Result<Decided, Refusal> {
    let json = json.trim();
    let bad = |why: String| Refusal::BadOutput { why };
    if json.len() > OUTPUT_BYTES_MAX {
        let (size, most) = (json.len(), OUTPUT_BYTES_MAX);
        return Err(bad(format!("{size} bytes are too long; at most {most}")));
    }
    if let Err(error) = serde_json::from_str::<serde_json::Value>(json) {
        return Err(bad(format!("it is not JSON: {error}")));
    }
    let known = held.state.outputs.get(name);
    if known.is_none() && held.state.outputs.len() >= STEP_OUTPUTS_MAX {
        return Err(bad(format!("the step has {STEP_OUTPUTS_MAX} outputs already")));
    }
    let value = OutputValue::of(json);
    if known.is_some_and(|known| known.value == value) {
        return Ok(nothing());
    }
    let is_kept = value.as_json().is_none();
    let decided = held.fact(Fact::OutputSet { name: name.clone(), value });
    Ok(if is_kept { decided.with_text(json.as_bytes().to_vec()) } else { decided })
}

/// Says that a holder waits for an output that is not there yet. Said again, it waits since it said so first.
pub(super) fn decide_await(
    held: &Held<'_>,
    output: &OutputRef,
    until: Option<Millis>,
) -> Result<Decided, Refusal> {
    let run = held.run;
    if run.output(output).is_some() {
        return Ok(nothing());
    }
    if let Some(step) = &output.of {
        let (_, state) = run.step(step).ok_or_else(|| Refusal::UnknownStep(step.clone()))?;
        if state.is_done() {
            let (step, name) = (step.clone(), output.name.clone());
            return Err(Refusal::NoOutput { step, name });
        }
    }
    if waits_for_itself(held, output) {
        let (step, output) = (held.id(), output.clone());
        return Err(Refusal::WaitsForItself { step, output });
    }
    let known = held.state.awaited.as_ref();
    let same = |known: &&AwaitedOutput| known.output == *output && known.until == until;
    match known.filter(same) {
        Some(_) => Ok(nothing()),
        None => Ok(held.fact(Fact::OutputAwaited { output: output.clone(), until })),
    }
}

/// Where steps come one at a time, whatever piton would start next waits for the one that waits. Only
/// those outside are at work beside it.
fn waits_for_itself(held: &Held<'_>, output: &OutputRef) -> bool {
    if !held.is_kept() || held.run.plan().isolation != Isolation::Run {
        return false;
    }
    let declared = held.run.plan().steps.iter().any(|step| step.outputs.contains(&output.name));
    let may_publish = |(step, plan, state): &(StepRef, &PlanStep, &Step)| {
        *step != held.under.step
            && !state.is_done()
            && match &output.of {
                Some(named) => step == named,
                None => !declared || plan.outputs.contains(&output.name),
            }
    };
    let is_outside = |(_, plan, state): (StepRef, &PlanStep, &Step)| match state.attempt() {
        Some(attempt) => matches!(attempt.holder, Holder::External { .. }),
        None => plan.work.is_by_hand(),
    };
    !held.run.steps().filter(may_publish).any(is_outside)
}
