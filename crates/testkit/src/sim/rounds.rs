//! The referee's own account of loops: which iteration each is in, whether it is over, and how many it may have.

use piton_core::event::{About, Event, Fact, Halt};
use piton_core::ids::StepRef;
use piton_core::plan::Plan;
use piton_core::question::{ACCEPT, TRY_AGAIN};

/// A loop.
pub(super) struct Ring {
    /// Its steps, by their places in the plan.
    steps: Vec<usize>,
    pub(super) iteration: u32,
    max: u32,
    allowed: u32,
    has_until: bool,
    /// The command at the end of the iteration passed.
    passed: bool,
    pub(super) over: bool,
}

impl Ring {
    pub(super) fn all(plan: &Plan) -> Vec<Ring> {
        let ring = |of: &piton_core::plan::PlanLoop| Ring {
            steps: of.steps.iter().filter_map(|step| plan.index_of(step)).collect(),
            iteration: 1,
            max: of.max,
            allowed: of.max,
            has_until: of.until.is_some(),
            passed: false,
            over: false,
        };
        plan.loops.values().map(ring).collect()
    }

    pub(super) fn has(&self, step: usize) -> bool {
        self.steps.contains(&step)
    }

    pub(super) fn steps(&self) -> &[usize] {
        &self.steps
    }

    /// Another iteration begins with this step; or why it must not.
    pub(super) fn turn(
        &mut self,
        (index, step): (usize, &StepRef),
        is_completed: impl Fn(usize) -> bool,
    ) -> Result<(), String> {
        let follows = step.iteration == self.iteration + 1 && self.steps.first() == Some(&index);
        let why = match self.steps.iter().find(|step| !is_completed(**step)) {
            _ if !follows => "it is not the first of the next iteration".to_owned(),
            _ if self.over => "the loop is over".to_owned(),
            _ if step.iteration > self.allowed => format!("there are {} at most", self.allowed),
            Some(open) => format!("number {open} of the iteration before is not completed"),
            None => {
                self.iteration += 1;
                self.passed = false;
                return Ok(());
            }
        };
        Err(format!("{step} begins, and {why}"))
    }

    /// Takes in what happened to a step of it.
    pub(super) fn take_in(&mut self, index: usize, event: &Event, is_done: bool) {
        match event {
            Event::Under(_, Fact::Verified { iteration: Some(seen), .. }) => {
                let until = seen.until.as_ref();
                self.passed = until.is_some_and(|check| check.exit.is_success());
            }
            Event::Under(_, Fact::Completed { commit, .. }) if is_done => {
                let is_last = self.steps.last() == Some(&index);
                let counted = !self.has_until && self.iteration >= self.allowed;
                self.over = is_last && ((self.passed && commit.is_some()) || counted);
            }
            _ => {}
        }
    }

    pub(super) fn answered(&mut self, about: &About, answer: &str) {
        match (about, answer) {
            (_, ACCEPT) => self.over = true,
            (About::Loop { halt: Halt::Max, .. }, TRY_AGAIN) => {
                self.allowed = self.iteration + self.max;
            }
            _ => {}
        }
    }
}
