//! A plan with its graph worked out: which step has which id, what needs what, which steps name a lock.
//! Worked out once per plan and kept in the run cache.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, Hash, LockName, OutputName, StepId};
use crate::packing::{Pack, PackedList};
use crate::plan::{Need, Plan};

/// What a run is folded over. Nodes are the steps, then the groups: a group is done when its steps are,
/// so that a need on a large group is one edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    #[serde(with = "crate::plan::packed")]
    plan: Arc<Plan>,
    hash: Hash,
    nodes: PackedList<Node>,
    /// The indices of the steps, in the order of their ids.
    by_id: Vec<u32>,
    locks: BTreeMap<LockName, Vec<u32>>,
}

/// What a step or group needs, and what needs it, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    needs: Vec<u32>,
    dependants: Vec<u32>,
    /// The outputs that a step needs, each of a step.
    outputs: Vec<(u32, OutputName)>,
    /// The steps that need an output of this one.
    readers: Vec<u32>,
}

impl Pack for Node {}

impl Graph {
    pub fn new(plan: Arc<Plan>) -> Graph {
        let hash = plan.hash();
        let ids: BTreeMap<&StepId, usize> =
            plan.steps.iter().enumerate().map(|(index, step)| (&step.id, index)).collect();
        let nodes = nodes(&plan, &ids).into_iter().collect();
        let by_id = ids.into_values().map(number).collect();
        let mut locks: BTreeMap<LockName, Vec<u32>> = BTreeMap::new();
        for (index, step) in plan.steps.iter().enumerate() {
            for lock in &step.locks {
                locks.entry(lock.clone()).or_default().push(number(index));
            }
        }
        Graph { plan, hash, nodes, by_id, locks }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan's hash, which needs no second look at the plan.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    pub(crate) fn index_of(&self, id: &StepId) -> Option<usize> {
        let found =
            self.by_id.binary_search_by_key(&id, |index| &self.plan.steps[*index as usize].id);
        found.ok().map(|at| self.by_id[at] as usize)
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Which of the groups a node is; none where it is a step.
    pub(crate) fn group(&self, node: usize) -> Option<usize> {
        node.checked_sub(self.plan.steps.len())
    }

    pub(crate) fn is_step(&self, node: usize) -> bool {
        self.group(node).is_none()
    }

    /// The nodes that must be done before this one.
    pub(crate) fn needs(&self, node: usize) -> impl DoubleEndedIterator<Item = usize> {
        self.nodes[node].needs.iter().map(|need| *need as usize)
    }

    /// The nodes that wait for this one.
    pub(crate) fn dependants(&self, node: usize) -> impl Iterator<Item = usize> {
        self.nodes[node].dependants.iter().map(|dependant| *dependant as usize)
    }

    /// The steps that must be completed before this one, groups spelled out.
    pub(crate) fn needed_steps(&self, step: usize) -> Vec<usize> {
        let mut steps = Vec::new();
        for node in self.needs(step) {
            match self.is_step(node) {
                true => steps.push(node),
                false => steps.extend(self.needs(node)),
            }
        }
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    /// The outputs that a step needs, each with the step that publishes it.
    pub(crate) fn needed_outputs(&self, step: usize) -> impl Iterator<Item = (usize, &OutputName)> {
        self.nodes[step].outputs.iter().map(|(of, name)| (*of as usize, name))
    }

    /// The steps that need an output of this one.
    pub(crate) fn readers(&self, step: usize) -> impl Iterator<Item = usize> {
        self.nodes[step].readers.iter().map(|reader| *reader as usize)
    }

    /// Every lock that a step names, with the steps that do.
    pub(crate) fn locks(&self) -> impl Iterator<Item = (&LockName, impl Iterator<Item = usize>)> {
        self.locks.iter().map(|(lock, steps)| (lock, steps.iter().map(|step| *step as usize)))
    }
}

/// For every step what it needs, then for every group its steps; and the other way round.
fn nodes(plan: &Plan, ids: &BTreeMap<&StepId, usize>) -> Vec<Node> {
    let steps = plan.steps.len();
    let named = plan.steps.iter().filter_map(|step| step.group.as_ref());
    let names: BTreeSet<&GroupId> = plan.groups.keys().chain(named).collect();
    let groups: BTreeMap<&GroupId, usize> = names.into_iter().zip(steps..).collect();
    let mut needs = vec![BTreeSet::new(); steps + groups.len()];
    for (index, step) in plan.steps.iter().enumerate() {
        needs[index] = step
            .needs
            .iter()
            .filter_map(|need| match need {
                Need::Step(id) => ids.get(id).copied(),
                Need::Group(group) => groups.get(group).copied(),
                Need::Output(..) => None,
            })
            .collect();
        if let Some(group) = &step.group {
            needs[groups[group]].insert(index);
        }
    }
    let mut nodes = vec![Node::default(); needs.len()];
    for (node, needed) in needs.into_iter().enumerate() {
        for &other in &needed {
            nodes[other].dependants.push(number(node));
        }
        nodes[node].needs = needed.into_iter().map(number).collect();
    }
    for (index, step) in plan.steps.iter().enumerate() {
        for need in &step.needs {
            let Need::Output(of, name) = need else { continue };
            let Some(of) = ids.get(of) else { continue };
            nodes[index].outputs.push((number(*of), name.clone()));
            if nodes[*of].readers.last() != Some(&number(index)) {
                nodes[*of].readers.push(number(index));
            }
        }
    }
    nodes
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("a plan has fewer than 2³² bytes, steps and needs")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Steps with random needs on steps and groups, to compare the two ways of asking for them.
    fn plan() -> impl Strategy<Value = Plan> {
        let step = (0..4usize, prop::collection::vec(any::<prop::sample::Index>(), 0..4));
        prop::collection::vec(step, 1..12).prop_map(|all| {
            let used: Vec<usize> = all.iter().map(|(group, _)| *group).collect();
            let groups: serde_json::Map<_, _> =
                (0..4).map(|n| (format!("g{n}"), json!({ "title": "a group" }))).collect();
            let steps = all.iter().enumerate().map(|(n, (group, needs))| {
                let below = |index: &prop::sample::Index| match index.index(n.max(1)) {
                    other if n == 0 || used[n..].contains(&used[other]) => {
                        json!({ "step": format!("s{other}") })
                    }
                    other if other % 2 == 0 => json!({ "group": format!("g{}", used[other]) }),
                    other => json!({ "step": format!("s{other}") }),
                };
                let needs: Vec<_> = needs.iter().filter(|_| n > 0).map(below).collect();
                let (id, group) = (format!("s{n}"), format!("g{group}"));
                json!({ "id": id, "title": id, "group": group, "needs": needs,
                        "work": { "run": "x" }, "retries": 0 })
            });
            let steps: Vec<_> = steps.collect();
            let plan = json!({ "name": "p", "isolation": "run", "groups": groups, "steps": steps });
            serde_json::from_value(plan).expect("a plan")
        })
    }

    proptest! {
        #[test]
        fn a_graph_knows_what_its_plan_says(plan in plan()) {
            let worked_out = Graph::new(Arc::new(plan.clone()));
            let packed = postcard::to_stdvec(&worked_out).expect("a graph can be packed");
            let unpacked: Graph = postcard::from_bytes(&packed).expect("what was packed");
            for graph in [&worked_out, &unpacked] {
                prop_assert_eq!(graph.plan(), &plan);
                prop_assert_eq!(graph.hash(), plan.hash());
                for (index, step) in plan.steps.iter().enumerate() {
                    let needs = graph.needed_steps(index);
                    prop_assert!(needs.iter().all(|need| *need < index));
                    prop_assert_eq!(needs, plan.needs_of(index));
                    prop_assert_eq!(graph.index_of(&step.id), Some(index));
                    let waiting = |node: &usize| graph.needs(*node).any(|need| need == index);
                    let dependants: Vec<usize> = graph.dependants(index).collect();
                    let expected: Vec<usize> = (0..graph.nodes()).filter(waiting).collect();
                    prop_assert_eq!(dependants, expected);
                }
                let unknown = StepId::new("unknown").expect("a name");
                prop_assert_eq!(graph.index_of(&unknown), None);
            }
        }
    }
}
