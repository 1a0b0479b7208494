//! Loops of a plan: chains of steps that are repeated under bounds. What a need on one of their steps means is
//! said here; where a loop stands in a run is the fold's business.

use serde::{Deserialize, Serialize};

use super::{Need, Plan};
use crate::ids::{LoopId, StepId};

/// A chain of steps that is repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanLoop {
    /// In this order; each needs the one before it.
    pub steps: Vec<StepId>,
    /// How many iterations there are at most before a person is asked.
    pub max: u32,
    /// Given to `sh -c` at the end of an iteration, on the last step's commit; a zero exit ends the loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// After so many iterations in a row that changed nothing a person is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_limit: Option<u32>,
    /// The loop ends when every item of its steps is done; what is done stays done from one iteration to the
    /// next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub until_items: bool,
}

impl PlanLoop {
    /// Whether anything but its bounds ends it.
    pub fn has_goal(&self) -> bool {
        self.until.is_some() || self.until_items
    }
}

impl Plan {
    /// The loop that a step is in.
    pub fn loop_of(&self, step: &StepId) -> Option<(&LoopId, &PlanLoop)> {
        self.loops.iter().find(|(_, all)| all.steps.contains(step))
    }

    /// The steps that a need of this step is on. From outside, a loop is needed as a whole.
    pub(super) fn needed(&self, of: &StepId, need: &Need) -> Vec<usize> {
        let own = self.loop_of(of).map(|(id, _)| id);
        let whole = |step: &StepId| match self.loop_of(step).filter(|(id, _)| Some(*id) != own) {
            Some((_, all)) => all.steps.clone(),
            None => vec![step.clone()],
        };
        let steps: Vec<StepId> = match need {
            Need::Step(id) => whole(id),
            // Data is no code.
            Need::Output(..) => Vec::new(),
            Need::Loop(id) => self.loops.get(id).map_or_else(Vec::new, |all| all.steps.clone()),
            Need::Group(group) => {
                let members = self.steps.iter().filter(|step| step.group.as_ref() == Some(group));
                members.flat_map(|step| whole(&step.id)).collect()
            }
        };
        steps.iter().filter_map(|step| self.index_of(step)).collect()
    }
}
