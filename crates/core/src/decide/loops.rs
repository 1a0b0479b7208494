//! What follows once a step is done: the end of its loop's iteration perhaps, with a question about that, or of
//! the run. Nothing can come in between.

use crate::decided::Decided;
use crate::event::{About, Event, Fact, Halt, Under};
use crate::ids::{LoopId, StepRef};
use crate::plan::PlanLoop;
use crate::question::{ACCEPT, STOP, TRY_AGAIN};
use crate::record::Record;
use crate::run::{Loop, Run};
use crate::time::Millis;

/// The events of a decision, with what they bring about.
pub(super) fn settled(run: &Run, step: &StepRef, decided: Decided) -> Decided {
    if run.plan().loops.is_empty() {
        return if run.lacks_only(step) { decided.freeing_key() } else { decided };
    }
    let after = after(run, &decided);
    let decided = match asked_about_loops(run, &after).as_slice() {
        [] => decided,
        asked => decided.and(asked.to_vec()),
    };
    if after.is_completed() { decided.freeing_key() } else { decided }
}

/// The run as these events leave it.
fn after(run: &Run, decided: &Decided) -> Run {
    let mut after = run.clone();
    for body in decided.bodies() {
        let at: Millis = after.changed_at;
        let record = Record::following(run.opened.run, after.cursor, at, body.clone());
        after.apply(&record).expect("what decide emits can be folded");
    }
    after
}

/// The questions about loops that have come to a bound with this.
fn asked_about_loops(before: &Run, after: &Run) -> Vec<Event> {
    let was_halted = |id: &LoopId| before.halted(None).any(|(known, _, _, _)| known == id);
    let halted = after.halted(None).filter(|(id, _, _, _)| !was_halted(id));
    halted.filter_map(|(id, plan, state, halt)| asked(after, (id, plan, state), halt)).collect()
}

/// The questions that are asked again when a run goes on that was stopped instead of an answer.
pub(super) fn loops_asked_again(run: &Run, max: Option<u32>) -> Vec<Event> {
    let open = |id: &LoopId| run.chain(id).iter().any(|(_, state)| state.open_question().is_some());
    let halted = run.halted(max).filter(|(id, _, _, _)| !open(id));
    halted.filter_map(|(id, plan, state, halt)| asked(run, (id, plan, state), halt)).collect()
}

fn asked(run: &Run, (id, plan, state): (&LoopId, &PlanLoop, &Loop), halt: Halt) -> Option<Event> {
    let (step, fence) = run.asker(id)?;
    let max = run.terms.max_iterations.unwrap_or(plan.max);
    let (what, more) = match halt {
        Halt::Max => (
            format!("loop {id} has had {} iterations and is not done", state.iteration),
            format!("up to {max} more iterations"),
        ),
        Halt::Stale { iterations } => (
            format!("loop {id} changed nothing in {iterations} iterations in a row"),
            "another iteration, and more as long as something changes".to_owned(),
        ),
    };
    let text = format!(
        "{what}: does it go on?\n\
         {TRY_AGAIN}: {more}\n\
         {ACCEPT}: the loop is done as it is, and steps that need it go on\n\
         {STOP}: nothing more is begun, and resuming asks again"
    );
    let choices = [TRY_AGAIN, ACCEPT, STOP].map(str::to_owned).to_vec();
    let about = About::Loop { name: id.clone(), iteration: state.iteration, halt };
    let fact = Fact::Asked { text, choices, about: Some(Box::new(about)) };
    Some(Event::Under(Under { step, fence }, fact))
}
