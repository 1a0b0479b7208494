//! How far the steps of a run are, as the writers of progress see it. Where that stands in a file is theirs to
//! know.

use std::collections::BTreeMap;

use piton_core::event::FoundState;
use piton_core::ids::{ItemRef, StepId, SubstepId};
use piton_core::time::Millis;

use crate::draft::Part;

/// How far a step is, to be written back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub step: StepId,
    pub state: FoundState,
    pub items: Vec<ItemRef>,
    pub substeps: Vec<SubstepId>,
    /// When it was first begun, and since when it is so.
    pub started: Option<Millis>,
    pub since: Option<Millis>,
}

/// The progress of every step, to be looked up.
pub(crate) struct Steps<'a> {
    pub(crate) all: &'a [Progress],
    by_id: BTreeMap<&'a StepId, &'a Progress>,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(all: &'a [Progress]) -> Steps<'a> {
        Steps { all, by_id: all.iter().map(|step| (&step.step, step)).collect() }
    }

    pub(crate) fn of(&self, step: &StepId) -> Option<&'a Progress> {
        self.by_id.get(step).copied()
    }
}

impl Progress {
    /// Whether a part is done: all of a completed step are.
    pub(crate) fn is_done(&self, part: &Part) -> bool {
        matches!(self.state, FoundState::Completed { .. })
            || match part {
                Part::Whole => false,
                Part::Substep(substep) => self.substeps.contains(substep),
                Part::Item(item) => {
                    let within = item.substep.as_ref();
                    self.items.contains(item) || within.is_some_and(|id| self.substeps.contains(id))
                }
            }
    }
}
