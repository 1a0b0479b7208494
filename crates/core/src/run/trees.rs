//! The pool of worktrees that keepers work in: which exist on each host, and which step each belongs to.
//! A tree belongs to its step until the step is completed, reset, or removed from the plan; then the next
//! step takes it. Paths and bytes are the engine's business.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::Entry;
use crate::ids::{HostId, StepRef, TreeNo};
use crate::run::Run;

/// A tree of the pool: its host and its number there.
pub(crate) type Place = (HostId, TreeNo);

/// Every tree of a run, with the step that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Trees(BTreeMap<Place, Option<Owner>>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    step: StepRef,
    /// The newest work of the step is in this tree. Otherwise its bytes are an earlier owner's, or those
    /// of a try that is being replaced.
    has_work: bool,
}

impl Trees {
    /// The tree of a step, wherever it is.
    pub fn of(&self, step: &StepRef) -> Option<(&HostId, TreeNo)> {
        self.owned().find(|(_, owner)| owner.step == *step).map(|((host, tree), _)| (host, *tree))
    }

    /// The tree of a step on a host.
    pub fn on(&self, host: &HostId, step: &StepRef) -> Option<TreeNo> {
        self.of(step).filter(|(at, _)| *at == host).map(|(_, tree)| tree)
    }

    /// The step that a tree belongs to.
    pub fn owner(&self, host: &HostId, tree: TreeNo) -> Option<&StepRef> {
        self.0.get(&(host.clone(), tree))?.as_ref().map(|owner| &owner.step)
    }

    /// Whether the newest work of a step is in its tree on a host.
    pub fn has_work(&self, host: &HostId, step: &StepRef) -> bool {
        self.owned().any(|((at, _), owner)| at == host && owner.step == *step && owner.has_work)
    }

    /// The trees of a host, with the steps that they belong to.
    pub fn on_host(&self, host: &HostId) -> impl Iterator<Item = (TreeNo, Option<&StepRef>)> {
        let here = self.0.iter().filter(move |((at, _), _)| at == host);
        here.map(|((_, tree), owner)| (*tree, owner.as_ref().map(|owner| &owner.step)))
    }

    /// The tree that a keeper on a host gets for a step: its own, else the lowest that is free, else a new
    /// one.
    pub(crate) fn choose(
        &self,
        host: &HostId,
        step: &StepRef,
        is_occupied: impl Fn(TreeNo) -> bool,
    ) -> TreeNo {
        let is_free = |tree: &TreeNo| self.owner(host, *tree).is_none() && !is_occupied(*tree);
        let lowest = || (1..).map(TreeNo).find(is_free).expect("numbers do not end");
        self.on(host, step).unwrap_or_else(lowest)
    }

    fn owned(&self) -> impl Iterator<Item = (&Place, &Owner)> {
        self.0.iter().filter_map(|(place, owner)| Some((place, owner.as_ref()?)))
    }

    /// A keeper has claimed the step with this tree. An attempt that starts over replaces what is in it.
    pub(super) fn claim(&mut self, step: &StepRef, place: Place, entry: Entry) {
        let is_own = self.owner(&place.0, place.1) == Some(step);
        if !is_own {
            self.free(step);
            self.0.insert(place, Some(Owner { step: step.clone(), has_work: false }));
        } else if entry == Entry::Fresh
            && let Some(Some(owner)) = self.0.get_mut(&place)
        {
            owner.has_work = false;
        }
    }

    /// An attempt at the step has worked in this tree, or outside the pool.
    pub(super) fn work(&mut self, step: &StepRef, worked_in: Option<&Place>) {
        for (place, owner) in &mut self.0 {
            if let Some(owner) = owner.as_mut().filter(|owner| owner.step == *step) {
                owner.has_work = Some(place) == worked_in;
            }
        }
    }

    /// The step needs its tree no longer.
    pub(super) fn free(&mut self, step: &StepRef) {
        let is_its = |owner: &Owner| owner.step == *step;
        self.0.values_mut().filter(|owner| owner.as_ref().is_some_and(is_its)).for_each(|owner| {
            *owner = None;
        });
    }

    /// Steps that are not in the plan need no tree.
    pub(super) fn keep_only(&mut self, is_in_plan: impl Fn(&StepRef) -> bool) {
        let is_gone = |owner: &Owner| !is_in_plan(&owner.step);
        self.0.values_mut().filter(|owner| owner.as_ref().is_some_and(is_gone)).for_each(|owner| {
            *owner = None;
        });
    }
}

impl Run {
    pub fn trees(&self) -> &Trees {
        &self.trees
    }
}
