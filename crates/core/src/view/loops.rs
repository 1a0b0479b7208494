//! Loops, for showing: where each stands, and what its past iterations left.

use serde::{Serialize, Serializer};

use super::{rfc3339, shown};
use crate::event::{Halt, Truth};
use crate::ids::{LoopId, Oid, StepId, StepRef};
use crate::plan::PlanLoop;
use crate::run::{Loop, LoopEnd, LoopPhase, Phase, Run, Step};
use crate::time::Millis;

/// A loop, for showing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoopView {
    #[serde(rename = "loop")]
    pub id: LoopId,
    pub steps: Vec<StepId>,
    pub iteration: u32,
    /// After so many a person is asked, or the loop is over.
    pub max: u32,
    /// Iterations in a row that changed nothing.
    pub stale: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_limit: Option<u32>,
    #[serde(flatten, serialize_with = "phase")]
    pub phase: LoopPhase,
    /// The steps of past iterations, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<PastStepView>,
}

/// A step of an iteration that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PastStepView {
    #[serde(serialize_with = "shown")]
    pub step: StepRef,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<Oid>,
    pub truth: Truth,
    #[serde(serialize_with = "rfc3339")]
    pub at: Millis,
    pub attempts: usize,
}

pub(super) fn loops(run: &Run) -> Vec<LoopView> {
    let past: Vec<(StepRef, &Step)> = run.past_steps().collect();
    let view = |(id, plan, state): (&LoopId, &PlanLoop, &Loop)| LoopView {
        id: id.clone(),
        steps: plan.steps.clone(),
        iteration: state.iteration,
        max: run.bound(plan, state),
        stale: match state.phase {
            LoopPhase::Halted(Halt::Stale { iterations }) => iterations,
            _ => state.stale,
        },
        stale_limit: plan.stale_limit,
        phase: state.phase,
        past: {
            let own = past.iter().filter(|(step, _)| plan.steps.contains(&step.step));
            own.filter_map(|(step, state)| past_step(step, state)).collect()
        },
    };
    run.loops().map(view).collect()
}

fn past_step(step: &StepRef, state: &Step) -> Option<PastStepView> {
    let (commit, truth, at) = match &state.phase {
        Phase::Completed { commit, truth, at, .. } => (commit.clone(), *truth, *at),
        Phase::Skipped { at, .. } => (None, Truth::Unknown, *at),
        _ => return None,
    };
    Some(PastStepView { step: step.clone(), commit, truth, at, attempts: state.history.len() })
}

/// `status`: `going`, `waiting` with what `halted` it, or `over` with how it `ended`.
fn phase<S: Serializer>(phase: &LoopPhase, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(tag = "status", rename_all = "snake_case")]
    enum Status {
        Going,
        Waiting { halted: Halt },
        Over { ended: LoopEnd },
    }
    let status = match *phase {
        LoopPhase::Going => Status::Going,
        LoopPhase::Halted(halted) => Status::Waiting { halted },
        LoopPhase::Over(ended) => Status::Over { ended },
    };
    status.serialize(to)
}
