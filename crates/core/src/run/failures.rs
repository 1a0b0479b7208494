//! Failures that repeat themselves: when two are the same, which failed steps do not go on by themselves, and
//! what that means for the run.

use super::step::Ending;
use super::{Phase, Run, Step};
use crate::event::Failure;
use crate::ids::StepRef;
use crate::plan::{OnFailure, PlanStep, Work};
use crate::question::Question;

/// Why a step that fails does not go on by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    RetriesUsed,
    /// Its agent failed in the same way before: what is left of its retries would perhaps be spent in vain.
    Repeats,
}

impl Step {
    /// Whether it rests once its open attempt has failed so. Plain commands use their retries as they are.
    pub(crate) fn rest_after(&self, plan: &PlanStep, why: &Failure) -> Option<Rest> {
        if self.tries_left(plan) <= 1 {
            return Some(Rest::RetriesUsed);
        }
        let mut failures = self.history.iter().rev().filter_map(|past| match &past.ending {
            Ending::Failed(why) => Some(why),
            _ => None,
        });
        let before = failures.next().filter(|_| self.failures > 0);
        let is_agent = matches!(plan.work, Work::Agent { .. });
        (is_agent && before.is_some_and(|before| are_alike(before, why))).then_some(Rest::Repeats)
    }
}

impl Run {
    /// A step that failed with no retries left, the first in plan order.
    pub fn failed_for_good(&self) -> Option<(StepRef, &Failure)> {
        let index = self.sets.failed.ones().next()?;
        match &self.steps[index].phase {
            Phase::Failed { why, .. } => Some((self.ref_at(index), why)),
            _ => None,
        }
    }

    /// The failed step that ends everything that piton runs by itself, where the plan wants that.
    pub(crate) fn fatal(&self) -> Option<StepRef> {
        match self.plan().on_failure {
            OnFailure::Stop => self.failed_for_good().map(|(step, _)| step),
            OnFailure::Continue => None,
        }
    }

    /// A failed step, where nothing else can move: the run has failed.
    pub fn failed(&self) -> Option<(StepRef, &Failure)> {
        let moves =
            self.has_free() || !self.sets.held.is_clear() || !self.sets.held_back.is_clear();
        self.failed_for_good().filter(|_| self.fatal().is_some() || !moves)
    }

    /// The open question before whose answer nothing new is started.
    pub fn question_about_run(&self) -> Option<(StepRef, &Question)> {
        let index = self.sets.asks_about_run.ones().next()?;
        let mut open = self.steps[index].questions.iter().filter(|question| question.is_open());
        let question = open.find(|question| question.is_about_run())?;
        Some((self.ref_at(index), question))
    }

    /// The steps that have failed alike, one after the other, once this one has.
    pub(crate) fn alike_with(&self, step: &StepRef, why: &Failure) -> Vec<StepRef> {
        let is_alike = |last: &StepRef| match self.step(last).map(|(_, state)| &state.phase) {
            Some(Phase::Failed { why: before, .. }) => are_alike(before, why),
            _ => false,
        };
        let others = || self.alike.iter().filter(|other| *other != step).cloned();
        match others().next_back().is_some_and(|last| is_alike(&last)) {
            true => others().chain([step.clone()]).collect(),
            false => vec![step.clone()],
        }
    }
}

/// Whether two failures are of the same kind and say the same, but for paths, numbers and times.
fn are_alike(one: &Failure, other: &Failure) -> bool {
    let kind = std::mem::discriminant::<Failure>;
    kind(one) == kind(other) && normalised(one) == normalised(other)
}

fn normalised(why: &Failure) -> Vec<String> {
    let text = match why {
        Failure::Exit { tail, .. } | Failure::Verify { tail, .. } => format!("{why} {tail}"),
        Failure::Setup { why, tail } => format!("{why} {tail}"),
        Failure::Landing { message } => message.clone(),
        Failure::Reported { reason } => reason.clone(),
        Failure::Unfinished { open } => open.clone(),
        // Another value is another failure.
        Failure::Output { .. } => return vec![why.to_string()],
        Failure::Timeout { .. } | Failure::Hang { .. } => String::new(),
    };
    text.split_whitespace().map(normalised_word).collect()
}

/// A path is any path, a number any number: a time is made of them.
fn normalised_word(word: &str) -> String {
    if word.contains('/') {
        return "/".to_owned();
    }
    let is_id = word.len() >= 7 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if is_id && word.chars().any(|c| c.is_ascii_digit()) {
        return "0".to_owned();
    }
    let mut text = String::new();
    for c in word.chars() {
        let in_number = text.ends_with('0') && matches!(c, '.' | ',' | ':');
        match c {
            _ if c.is_ascii_digit() || in_number => {
                if !text.ends_with('0') {
                    text.push('0');
                }
            }
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Exit;

    #[test]
    fn failures_are_alike_but_for_paths_numbers_and_times() {
        let verify = |tail: &str| Failure::Verify { exit: Exit::Code(1), tail: tail.to_owned() };
        let table = [
            ("2 tests failed in 1.03s", "14 tests failed in 12s", true),
            ("error at /work/a/src/x.rs:7:1", "error at ./b/y.rs:70:12", true),
            ("12:04:05 no such host", "23:59:59.7 no such host", true),
            ("commit 91be77c0a is bad", "commit 00aa12cd3 is bad", true),
            ("a\n  b", "a b", true),
            ("no such host", "no such user", false),
            ("", "one", false),
        ];
        for (one, other, alike) in table {
            assert_eq!(are_alike(&verify(one), &verify(other)), alike, "{one:?}, {other:?}");
        }
        let exit = Failure::Exit { exit: Exit::Code(1), tail: String::new() };
        assert!(!are_alike(&verify(""), &exit), "verify and exit are two kinds");
    }
}
