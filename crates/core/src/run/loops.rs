//! Loops as the fold keeps them: which iteration they are in, what the past ones left, and whether they go on.
//! The steps of the present iteration are steps like all others; once the last of them is done, everything that
//! decides about the next iteration is in the log.

use serde::{Deserialize, Serialize};

use super::{Phase, Run, Step};
use crate::event::{Event, Fact, Halt, IterationCheck, Mark};
use crate::graph::Graph;
use crate::ids::{Fence, LoopId, StepId, StepRef};
use crate::packing::PackedList;
use crate::plan::PlanLoop;
use crate::question::{ACCEPT, Question, QuestionState, TRY_AGAIN};

/// Where a loop stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loop {
    /// The present one, from 1.
    pub iteration: u32,
    /// Past iterations in a row, up to the last one, that changed nothing.
    pub stale: u32,
    pub phase: LoopPhase,
    /// The iteration at whose end a person last wanted more of them.
    granted: u32,
    /// The steps of past iterations, one chain after the other.
    past: PackedList<Step>,
}

/// Whether a loop goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoopPhase {
    /// Its iteration is not over.
    Going,
    /// A person says whether there is another iteration.
    Halted(Halt),
    Over(LoopEnd),
}

/// How a loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopEnd {
    /// What it was repeated for was reached.
    Passed,
    /// It had as many iterations as it was to have.
    Counted,
    /// A person was content with it.
    Accepted,
    /// None of its steps was attempted.
    Skipped,
}

impl Default for Loop {
    fn default() -> Loop {
        let past = PackedList::from_iter(Vec::<Step>::new());
        Loop { iteration: 1, stale: 0, phase: LoopPhase::Going, granted: 0, past }
    }
}

impl Loop {
    pub fn is_over(&self) -> bool {
        matches!(self.phase, LoopPhase::Over(_))
    }

    /// A step of an iteration that is over, by its place in the chain.
    fn past(&self, place: usize, iteration: u32, length: usize) -> Option<&Step> {
        let index = (iteration as usize).checked_sub(1)? * length + place;
        (index < self.past.len()).then(|| &self.past[index])
    }
}

impl Run {
    /// Loops in plan order, each with its recipe.
    pub fn loops(&self) -> impl Iterator<Item = (&LoopId, &PlanLoop, &Loop)> {
        self.plan().loops.iter().zip(&self.loops).map(|((id, plan), state)| (id, plan, state))
    }

    /// The loop that a step is in.
    pub fn loop_of(&self, step: &StepId) -> Option<(&LoopId, &PlanLoop, &Loop)> {
        if self.loops.is_empty() {
            return None;
        }
        let at = self.graph.loop_of(self.graph.index_of(step)?)?;
        self.loops().nth(at)
    }

    /// The steps of a loop in its present iteration.
    pub fn chain(&self, of: &LoopId) -> Vec<(StepRef, &Step)> {
        let at = self.graph.loop_at(of);
        let chain = at.into_iter().flat_map(|at| self.graph.chain(at));
        chain.map(|index| (self.ref_at(index), &self.steps[index])).collect()
    }

    /// How many iterations a loop may have.
    pub fn bound(&self, plan: &PlanLoop, state: &Loop) -> u32 {
        state.granted + self.terms.max_iterations.unwrap_or(plan.max)
    }

    /// The present iteration of a step.
    pub fn present(&self, step: &StepId) -> Option<StepRef> {
        self.graph.index_of(step).map(|index| self.ref_at(index))
    }

    pub(super) fn iteration_at(&self, index: usize) -> u32 {
        self.graph.loop_of(index).map_or(1, |at| self.loops[at].iteration)
    }

    /// A step of an iteration that is over.
    pub(super) fn past(&self, step: &StepRef) -> Option<(usize, &Step)> {
        let index = self.graph.index_of(&step.step)?;
        let at = self.graph.loop_of(index)?;
        let chain = self.graph.chain(at);
        let (length, place) = (chain.len(), chain.into_iter().position(|other| other == index)?);
        Some((index, self.loops[at].past(place, step.iteration, length)?))
    }

    /// Every step of every iteration that is over, oldest first.
    pub fn past_steps(&self) -> impl Iterator<Item = (StepRef, &Step)> {
        let of_loop = |(at, state): (usize, &'_ Loop)| {
            let chain: Vec<StepId> = self.graph.chain(at).map(|index| self.id_at(index)).collect();
            (0..state.past.len()).map(move |n| {
                let iteration = u32::try_from(n / chain.len() + 1).unwrap_or(u32::MAX);
                (at, n, StepRef { step: chain[n % chain.len()].clone(), iteration })
            })
        };
        let all: Vec<_> = self.loops.iter().enumerate().flat_map(of_loop).collect();
        all.into_iter().map(|(at, n, step)| (step, &self.loops[at].past[n]))
    }

    /// The step of a halted loop that a person is asked under, and its last claim.
    pub(crate) fn asker(&self, of: &LoopId) -> Option<(StepRef, Fence)> {
        let last =
            |(step, state): (StepRef, &Step)| Some((state.history.last()?.attempt.fence, step));
        let newest = self.chain(of).into_iter().filter_map(last).max();
        newest.map(|(fence, step)| (step, fence))
    }

    /// The loop that waits for a person at this step, without a question that is open: the run was stopped
    /// instead.
    pub(crate) fn is_halted_at(&self, step: &StepRef) -> bool {
        self.loop_of(&step.step).is_some_and(|(id, _, state)| {
            matches!(state.phase, LoopPhase::Halted(_))
                && self.asker(id).is_some_and(|(asker, _)| asker == *step)
        })
    }

    /// Loops that wait for a person, but for those that go on with so many iterations.
    pub(crate) fn halted(
        &self,
        max: Option<u32>,
    ) -> impl Iterator<Item = (&LoopId, &PlanLoop, &Loop, Halt)> {
        self.loops().filter_map(move |(id, plan, state)| match state.phase {
            LoopPhase::Halted(Halt::Max) if !self.reached(plan, state, max) => None,
            LoopPhase::Halted(halt) => Some((id, plan, state, halt)),
            LoopPhase::Going | LoopPhase::Over(_) => None,
        })
    }

    /// Whether a loop has had all its iterations; `max` instead of the number in force.
    fn reached(&self, plan: &PlanLoop, state: &Loop, max: Option<u32>) -> bool {
        let bound = max.map_or_else(|| self.bound(plan, state), |max| state.granted + max);
        state.iteration >= bound
    }

    /// Takes in what has happened to a step of a loop.
    pub(super) fn count_loop(&mut self, index: usize, event: &Event) {
        let Some(at) = self.graph.loop_of(index) else { return };
        match event {
            Event::Answered { question, answer, .. } => {
                let asked = self.steps[index].questions.iter().find(|asked| asked.id == *question);
                if asked.is_some_and(Question::is_about_loop) {
                    self.answer_loop(at, answer);
                }
            }
            Event::Under(_, Fact::Completed { .. })
            | Event::Found(_)
            | Event::Skipped { .. }
            | Event::Reset { .. } => self.settle_loop(at),
            _ => {}
        }
    }

    /// Under other terms, or another plan, a loop may have more iterations.
    pub(super) fn lift_loops(&mut self) {
        for at in 0..self.loops.len() {
            let (plan, state) = (self.plan_loop(at), &self.loops[at]);
            let lifted =
                state.phase == LoopPhase::Halted(Halt::Max) && !self.reached(plan, state, None);
            if lifted {
                self.begin_iteration(at);
            }
        }
    }

    fn plan_loop(&self, at: usize) -> &PlanLoop {
        self.plan().loops.values().nth(at).expect("the fold has the plan's loops")
    }

    fn answer_loop(&mut self, at: usize, answer: &str) {
        match answer {
            ACCEPT => self.set_phase(at, LoopPhase::Over(LoopEnd::Accepted)),
            TRY_AGAIN => {
                let (plan, state) = (self.plan_loop(at), &self.loops[at]);
                if self.reached(plan, state, None) {
                    self.loops[at].granted = self.loops[at].iteration;
                }
                self.begin_iteration(at);
                self.loops[at].stale = 0;
            }
            // The run is stopped; whoever resumes is asked again.
            _ => {}
        }
    }

    /// Where all of its steps are done, the iteration is over.
    fn settle_loop(&mut self, at: usize) {
        if !self.graph.chain(at).all(|step| self.sets.done[step]) {
            if self.loops[at].phase != LoopPhase::Going {
                self.void_loop_questions(at);
                self.set_phase(at, LoopPhase::Going);
            }
            return;
        }
        match self.verdict(at) {
            Verdict::Again { stale } => {
                self.begin_iteration(at);
                self.loops[at].stale = stale;
            }
            Verdict::Halt(halt) => self.set_phase(at, LoopPhase::Halted(halt)),
            Verdict::End(end) => self.set_phase(at, LoopPhase::Over(end)),
        }
    }

    fn verdict(&self, at: usize) -> Verdict {
        let (plan, state) = (self.plan_loop(at), &self.loops[at]);
        let steps: Vec<usize> = self.graph.chain(at).collect();
        if steps.iter().all(|step| self.steps[*step].history.is_empty()) {
            return Verdict::End(LoopEnd::Skipped);
        }
        let seen = self.seen_at_end(&steps);
        if plan.has_goal() && self.has_passed(plan, &steps, seen) {
            return Verdict::End(LoopEnd::Passed);
        }
        if self.reached(plan, state, None) {
            return match plan.has_goal() {
                true => Verdict::Halt(Halt::Max),
                false => Verdict::End(LoopEnd::Counted),
            };
        }
        let stale = match seen {
            Some(IterationCheck { changed: 0, .. }) => state.stale + 1,
            _ => 0,
        };
        match plan.stale_limit.is_some_and(|limit| stale >= limit) {
            true => Verdict::Halt(Halt::Stale { iterations: stale }),
            false => Verdict::Again { stale },
        }
    }

    /// What was seen on the last step's commit, where that has the work of all the others.
    fn seen_at_end(&self, steps: &[usize]) -> Option<&IterationCheck> {
        let completed_by = |step: &usize| match &self.steps[*step].phase {
            Phase::Completed { fence, .. } => Some(*fence),
            _ => None,
        };
        let (last, others) = steps.split_last()?;
        let Phase::Completed { commit: Some(_), fence: by, .. } = self.steps[*last].phase else {
            return None;
        };
        let is_newest = others.iter().filter_map(completed_by).all(|other| other < by);
        self.steps[*last].iteration.as_deref().filter(|_| is_newest)
    }

    fn has_passed(&self, plan: &PlanLoop, steps: &[usize], seen: Option<&IterationCheck>) -> bool {
        let until = seen.and_then(|seen| seen.until.as_ref());
        let passed = plan.until.is_none() || until.is_some_and(|check| check.exit.is_success());
        let is_done = |step: &usize| {
            let mut items = self.steps[*step].checklist.items(&self.plan().steps[*step]);
            items.all(|item| item.mark == Some(&Mark::Done))
        };
        passed && (!plan.until_items || steps.iter().all(is_done))
    }

    /// The steps of the present iteration are put aside and begin again.
    fn begin_iteration(&mut self, at: usize) {
        self.void_loop_questions(at);
        let keeps_items = self.plan_loop(at).until_items;
        let steps: Vec<usize> = self.graph.chain(at).collect();
        for step in &steps {
            let before = std::sync::Arc::clone(self.steps.shared(*step));
            *self.steps.make_mut(*step) = before.next_iteration(keeps_items);
            self.loops[at].past.push(before);
        }
        self.loops[at].iteration += 1;
        self.loops[at].phase = LoopPhase::Going;
        for step in steps {
            self.count(step);
        }
    }

    fn set_phase(&mut self, at: usize, phase: LoopPhase) {
        let was_over = self.loops[at].is_over();
        self.loops[at].phase = phase;
        let is_over = self.loops[at].is_over();
        if was_over != is_over {
            self.tell_dependants(self.graph.loop_node(at), is_over);
        }
    }

    fn void_loop_questions(&mut self, at: usize) {
        for step in self.graph.chain(at).collect::<Vec<_>>() {
            let is_meant = |asked: &Question| asked.is_about_loop() && asked.is_open();
            if self.steps[step].questions.iter().any(is_meant) {
                let questions = &mut self.steps.make_mut(step).questions;
                questions.iter_mut().filter(|asked| is_meant(asked)).for_each(|asked| {
                    asked.state = QuestionState::Void;
                });
                self.count(step);
            }
        }
    }

    /// The loops of another plan: one with the same steps goes on as it is.
    pub(super) fn carried_loops(&self, graph: &Graph) -> Vec<Loop> {
        let carried = |(id, after): (&LoopId, &PlanLoop)| {
            let before = self.loops().find(|(known, _, _)| *known == id);
            let same = before.filter(|(_, before, _)| before.steps == after.steps);
            same.map(|(_, _, state)| state.clone()).unwrap_or_default()
        };
        graph.plan().loops.iter().map(carried).collect()
    }

    /// Steps that were begun in a loop that another plan does not have, or in none and that it puts into one.
    pub(super) fn steps_blocking_loops(&self, plan: &crate::plan::Plan) -> Vec<StepRef> {
        let changed: Vec<&StepId> = {
            let differs = |one: &crate::plan::Plan, other: &crate::plan::Plan| {
                let same = |id: &LoopId, own: &PlanLoop| {
                    other.loops.get(id).is_some_and(|theirs| theirs.steps == own.steps)
                };
                let all = one.loops.iter().filter(|(id, own)| !same(id, own));
                all.flat_map(|(_, own)| own.steps.clone()).collect::<Vec<StepId>>()
            };
            let all: Vec<StepId> =
                [differs(self.plan(), plan), differs(plan, self.plan())].concat();
            self.plan().steps.iter().map(|step| &step.id).filter(|id| all.contains(id)).collect()
        };
        let begun = |step: &StepRef| {
            let state = self.step(step).map(|(_, state)| state);
            step.iteration > 1
                || state.is_some_and(|state| state.is_done() || state.attempt().is_some())
        };
        changed.into_iter().filter_map(|id| self.present(id)).filter(begun).collect()
    }
}

/// What follows the end of an iteration.
enum Verdict {
    Again { stale: u32 },
    Halt(Halt),
    End(LoopEnd),
}
