//! A step's checklist as it is worked off: substeps completed, items done or deferred, gaps added. It
//! knows nothing of claims; who may write is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::event::{Mark, Priority};
use crate::ids::{ItemRef, SubstepId};
use crate::plan::PlanStep;

/// What has been done of a step's parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checklist {
    /// Items added at run time, after those of the plan.
    pub added: Vec<Gap>,
    pub marks: BTreeMap<ItemRef, Mark>,
    pub completed: BTreeSet<SubstepId>,
}

/// An item that was found missing at work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    pub text: String,
    pub priority: Priority,
}

/// An item with what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item<'a> {
    pub item: ItemRef,
    pub text: &'a str,
    pub priority: Option<Priority>,
    pub mark: Option<&'a Mark>,
}

impl Checklist {
    /// Every item: the step's own, those added, then each substep's.
    pub fn items<'a>(&'a self, plan: &'a PlanStep) -> impl Iterator<Item = Item<'a>> {
        let own = plan.items.iter().map(|text| (text.as_str(), None));
        let added = self.added.iter().map(|gap| (gap.text.as_str(), Some(gap.priority)));
        let own =
            own.chain(added).enumerate().map(|(n, (text, priority))| (None, n, text, priority));
        let parts = plan.substeps.iter().flat_map(|substep| {
            let items = substep.items.iter().enumerate();
            items.map(|(n, text)| (Some(substep.id.clone()), n, text.as_str(), None))
        });
        own.chain(parts).map(|(substep, n, text, priority)| {
            let number = u32::try_from(n + 1).unwrap_or(u32::MAX);
            let item = ItemRef::new(substep, number);
            let mark = self.marks.get(&item);
            Item { item, text, priority, mark }
        })
    }

    pub fn open_items(&self, plan: &PlanStep) -> Vec<ItemRef> {
        self.items(plan).filter(|item| item.mark.is_none()).map(|item| item.item).collect()
    }

    pub fn open_substeps(&self, plan: &PlanStep) -> Vec<SubstepId> {
        let open = plan.substeps.iter().filter(|substep| !self.completed.contains(&substep.id));
        open.map(|substep| substep.id.clone()).collect()
    }

    /// Every substep is completed and no item is open.
    pub fn is_done(&self, plan: &PlanStep) -> bool {
        plan.substeps.iter().all(|substep| self.completed.contains(&substep.id))
            && self.items(plan).all(|item| item.mark.is_some())
    }

    pub fn has(&self, plan: &PlanStep, item: &ItemRef) -> bool {
        self.items(plan).any(|known| known.item == *item)
    }

    /// How many substeps are completed and items done.
    pub(crate) fn parts_done(&self) -> usize {
        let done = self.marks.values().filter(|mark| **mark == Mark::Done);
        self.completed.len() + done.count()
    }

    /// The claim was given back: what is not done is open again; what is done stays.
    pub(crate) fn reopen(&mut self) {
        let completed = &self.completed;
        self.marks.retain(|item, mark| {
            let settled = item.substep.as_ref().is_some_and(|substep| completed.contains(substep));
            settled || *mark == Mark::Done
        });
    }

    /// Somebody takes the step on: deferred items of unfinished substeps are open again.
    pub(crate) fn reopen_unfinished_substeps(&mut self) {
        let completed = &self.completed;
        self.marks.retain(|item, mark| match &item.substep {
            Some(substep) if !completed.contains(substep) => *mark == Mark::Done,
            _ => true,
        });
    }
}
