//! What steps have published, as the fold keeps it: by step and iteration, gone with a reset. What a step
//! lacks of its own, and what others get of it, is asked here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Run, Step};
use crate::ids::{Fence, OutputName, StepRef};
use crate::output::{Bound, OutputRef, OutputValue};
use crate::plan::{Need, PlanStep};
use crate::time::Millis;

/// A value that a step published, and under which claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub value: OutputValue,
    pub at: Millis,
    pub fence: Fence,
}

/// What a step has published; what it set last of each name.
pub type Outputs = BTreeMap<OutputName, Published>;

/// An output that whoever is at a step waits for, since its first wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedOutput {
    pub output: OutputRef,
    pub since: Millis,
    /// When it gives up.
    pub until: Option<Millis>,
}

/// An output that a step gets from what it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenOutput<'run> {
    pub of: StepRef,
    pub name: &'run OutputName,
    pub published: &'run Published,
}

/// Why a step's own outputs do not let it be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lacks {
    Unpublished(Vec<OutputName>),
    Short { output: OutputName, value: String, bound: Bound },
}

impl Step {
    /// The outputs that the plan declares and that were not published.
    pub fn unpublished(&self, plan: &PlanStep) -> Vec<OutputName> {
        let open = plan.outputs.iter().filter(|name| !self.outputs.contains_key(name));
        open.cloned().collect()
    }

    /// Whether everything that the plan declares was published.
    pub fn has_published(&self, plan: &PlanStep) -> bool {
        self.unpublished(plan).is_empty()
    }

    /// What its outputs lack before it can be done.
    pub(crate) fn lacks(&self, plan: &PlanStep) -> Option<Lacks> {
        let open = self.unpublished(plan);
        if !open.is_empty() {
            return Some(Lacks::Unpublished(open));
        }
        plan.require.iter().find_map(|(output, bound)| {
            let value = &self.outputs.get(output)?.value;
            let (output, bound) = (output.clone(), bound.clone());
            let short = |bound| Lacks::Short { output, value: value.to_string(), bound };
            (!bound.holds(value)).then(|| short(bound))
        })
    }
}

impl Run {
    /// An output that was published: of the step that is named, else of the last one that has it.
    pub fn output(&self, output: &OutputRef) -> Option<(StepRef, &Published)> {
        let of = |step: &StepRef| self.step(step)?.1.outputs.get(&output.name);
        match &output.of {
            Some(step) => Some((step.clone(), of(step)?)),
            None => (0..self.steps.len()).rev().find_map(|index| {
                let published = self.steps[index].outputs.get(&output.name)?;
                Some((self.ref_at(index), published))
            }),
        }
    }

    /// What the needs of a step give it: everything that a needed step published, or the one output that
    /// is needed of it. In plan order.
    pub fn given_outputs(&self, step: &StepRef) -> Vec<GivenOutput<'_>> {
        let Some(index) = self.index_of(step) else { return Vec::new() };
        let whole = self.graph.needed_steps(index);
        let mut given = Vec::new();
        for (other, name) in self.graph.needed_outputs(index) {
            let published = self.newest_output(other, name).map(|published| (name, published));
            given.extend(published.filter(|_| !whole.contains(&other)).map(|own| (other, own)));
        }
        let all = whole
            .iter()
            .flat_map(|other| self.steps[*other].outputs.iter().map(|own| (*other, own)));
        given.extend(all);
        given.sort_by_key(|(other, (name, _))| (*other, *name));
        let row =
            |(other, (name, published))| GivenOutput { of: self.ref_at(other), name, published };
        given.into_iter().map(row).collect()
    }

    /// The outputs that a step needs, as far as they were published.
    pub(crate) fn outputs_needed_by(&self, index: usize) -> impl Iterator<Item = &Published> {
        let needed = self.graph.needed_outputs(index);
        needed.filter_map(|(step, name)| self.newest_output(step, name))
    }

    /// What a step published last under a name: in its present iteration, else in the last one that did.
    fn newest_output(&self, index: usize, name: &OutputName) -> Option<&Published> {
        let (id, iteration) = (self.id_at(index), self.iteration_at(index));
        let past = || {
            let refs = (1..iteration).rev().map(|n| StepRef { step: id.clone(), iteration: n });
            refs.filter_map(|step| self.past(&step)).find_map(|(_, past)| past.outputs.get(name))
        };
        self.steps[index].outputs.get(name).or_else(past)
    }

    /// Whether a need on an output is met: it was published, or its step is done without it.
    pub(super) fn gives(&self, step: usize, name: &OutputName) -> bool {
        self.sets.done[step] || self.newest_output(step, name).is_some()
    }

    /// The outputs that a step needs and that nothing gives yet.
    pub(super) fn unmet_outputs(&self, index: usize) -> impl Iterator<Item = Need> {
        let open = self.graph.needed_outputs(index).filter(|(step, name)| !self.gives(*step, name));
        open.map(|(step, name)| Need::Output(self.id_at(step), name.clone()))
    }
}
