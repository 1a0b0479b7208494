//! A plan with its graph worked out: which step has which id, what needs what, which steps name a lock.
//! Worked out once per plan and kept in the run cache.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, Hash, LockName, LoopId, OutputName, StepId};
use crate::packing::{Pack, PackedList};
use crate::plan::{Need, Plan, PlanLoop};

/// What a run is folded over. Nodes are the steps, then the groups: a group is done when its steps are,
/// so that a need on a large group is one edge. Then the loops: from outside, a need on a step of a loop is
/// one on the loop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    #[serde(with = "crate::plan::packed")]
    plan: Arc<Plan>,
    hash: Hash,
    nodes: PackedList<Node>,
    /// The indices of the steps, in the order of their ids.
    by_id: Vec<u32>,
    locks: BTreeMap<LockName, Vec<u32>>,
    /// For every loop of the plan, in its order, the steps of its chain.
    loops: Vec<Vec<u32>>,
    /// The loop of every step that is in one.
    in_loop: BTreeMap<u32, u32>,
}

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Step,
    /// By its number among the groups.
    Group(usize),
    /// By its number among the plan's loops.
    Loop(usize),
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
        let known = |id: &StepId| ids.get(id).copied().map(number);
        let chain = |all: &PlanLoop| all.steps.iter().filter_map(known).collect();
        let loops: Vec<Vec<u32>> = plan.loops.values().map(chain).collect();
        let members = |(at, chain): (usize, &Vec<u32>)| {
            chain.iter().map(|step| (*step, number(at))).collect::<Vec<_>>()
        };
        let in_loop = loops.iter().enumerate().flat_map(members).collect();
        let nodes = nodes(&plan, &ids, (&loops, &in_loop)).into_iter().collect();
        let by_id = ids.into_values().map(number).collect();
        let mut locks: BTreeMap<LockName, Vec<u32>> = BTreeMap::new();
        for (index, step) in plan.steps.iter().enumerate() {
            for lock in &step.locks {
                locks.entry(lock.clone()).or_default().push(number(index));
            }
        }
        Graph { plan, hash, nodes, by_id, locks, loops, in_loop }
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

    pub(crate) fn kind(&self, node: usize) -> NodeKind {
        let Some(behind) = node.checked_sub(self.plan.steps.len()) else { return NodeKind::Step };
        match behind.checked_sub(self.groups().len()) {
            None => NodeKind::Group(behind),
            Some(at) => NodeKind::Loop(at),
        }
    }

    /// The nodes of the groups.
    pub(crate) fn groups(&self) -> std::ops::Range<usize> {
        self.plan.steps.len()..self.nodes.len() - self.loops.len()
    }

    /// The node of a loop.
    pub(crate) fn loop_node(&self, at: usize) -> usize {
        self.groups().end + at
    }

    /// Which loop a step is in.
    pub(crate) fn loop_of(&self, step: usize) -> Option<usize> {
        let step = u32::try_from(step).ok()?;
        self.in_loop.get(&step).map(|at| *at as usize)
    }

    /// The steps of a loop, in their order.
    pub(crate) fn chain(
        &self,
        at: usize,
    ) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        self.loops[at].iter().map(|step| *step as usize)
    }

    pub(crate) fn loop_at(&self, id: &LoopId) -> Option<usize> {
        self.plan.loops.keys().position(|known| known == id)
    }

    /// The nodes that must be done before this one.
    pub(crate) fn needs(&self, node: usize) -> impl DoubleEndedIterator<Item = usize> {
        self.nodes[node].needs.iter().map(|need| *need as usize)
    }

    /// The nodes that wait for this one.
    pub(crate) fn dependants(&self, node: usize) -> impl Iterator<Item = usize> {
        self.nodes[node].dependants.iter().map(|dependant| *dependant as usize)
    }

    /// The steps that must be completed before this one, groups and loops spelled out.
    pub(crate) fn needed_steps(&self, step: usize) -> Vec<usize> {
        self.steps_beyond(step, |node| self.nodes[node].needs.as_slice())
    }

    /// The steps that need this one, groups and loops spelled out.
    pub(crate) fn dependent_steps(&self, step: usize) -> Vec<usize> {
        self.steps_beyond(step, |node| self.nodes[node].dependants.as_slice())
    }

    /// The steps next to a node; what is no step leads to those behind it.
    fn steps_beyond<'a>(&'a self, node: usize, next: impl Fn(usize) -> &'a [u32]) -> Vec<usize> {
        let mut steps = Vec::new();
        let mut left: Vec<usize> = next(node).iter().map(|node| *node as usize).collect();
        while let Some(node) = left.pop() {
            match self.kind(node) {
                NodeKind::Step => steps.push(node),
                _ => left.extend(next(node).iter().map(|node| *node as usize)),
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

/// For every step what it needs, then for every group its steps, then for every loop its steps; and the other
/// way round.
fn nodes(
    plan: &Plan,
    ids: &BTreeMap<&StepId, usize>,
    (loops, in_loop): (&[Vec<u32>], &BTreeMap<u32, u32>),
) -> Vec<Node> {
    let steps = plan.steps.len();
    let named = plan.steps.iter().filter_map(|step| step.group.as_ref());
    let names: BTreeSet<&GroupId> = plan.groups.keys().chain(named).collect();
    let groups: BTreeMap<&GroupId, usize> = names.into_iter().zip(steps..).collect();
    let first_loop = steps + groups.len();
    let mut needs = vec![BTreeSet::new(); first_loop + loops.len()];
    let loop_of = |step: usize| in_loop.get(&number(step)).copied();
    let whole = |step: usize| loop_of(step).map_or(step, |at| first_loop + at as usize);
    for (index, step) in plan.steps.iter().enumerate() {
        needs[index] = step
            .needs
            .iter()
            .filter_map(|need| match need {
                Need::Step(id) => {
                    ids.get(id).map(|other| match loop_of(*other) == loop_of(index) {
                        true => *other,
                        false => whole(*other),
                    })
                }
                Need::Group(group) => groups.get(group).copied(),
                Need::Output(..) => None,
                Need::Loop(id) => {
                    plan.loops.keys().position(|known| known == id).map(|at| first_loop + at)
                }
            })
            .collect();
        if let Some(group) = &step.group {
            needs[groups[group]].insert(whole(index));
        }
    }
    for (at, chain) in loops.iter().enumerate() {
        needs[first_loop + at] = chain.iter().map(|step| *step as usize).collect();
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
                    let expected: Vec<usize> = (0..graph.nodes.len()).filter(waiting).collect();
                    prop_assert_eq!(dependants, expected);
                }
                let unknown = StepId::new("unknown").expect("a name");
                prop_assert_eq!(graph.index_of(&unknown), None);
            }
        }
    }
}
