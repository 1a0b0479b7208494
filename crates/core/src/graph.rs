//! A plan with its graph worked out: which step has which id, what needs what, who names which lock.
//! Worked out once per plan and then read packed, so that finding a step among thousands reads a few.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cache::{Packed, VERSION, as_json};
use crate::ids::{GroupId, Hash, LockName, StepId, SubstepId};
use crate::list::{List, Numbers, Parts, Slices, Unpack};
use crate::plan::{Need, Plan, PlanStep, PlanSubstep, Work};

/// What a run is folded over. Nodes are the steps, then the groups: a group is done when its steps are,
/// so that a need on a large group is one edge.
#[derive(Debug, Clone)]
pub struct Graph {
    plan: Arc<Plan>,
    hash: Hash,
    /// Indices of the steps in the order of their ids.
    by_id: Numbers,
    needs: Edges,
    dependants: Edges,
    locks: BTreeMap<LockName, Vec<u32>>,
}

/// What each node leads to.
#[derive(Debug, Clone)]
struct Edges {
    starts: Numbers,
    ends: Numbers,
}

impl Edges {
    fn of(&self, node: usize) -> impl Iterator<Item = usize> {
        let at = |node| self.starts.get(node).unwrap_or_default();
        self.ends.within(at(node), at(node + 1))
    }

    fn from_lists(all: &[BTreeSet<usize>]) -> Edges {
        let mut starts = vec![0];
        let mut ends = Vec::new();
        for nodes in all {
            ends.extend(nodes.iter().map(|node| number(*node)));
            starts.push(number(ends.len()));
        }
        Edges { starts: starts.into(), ends: ends.into() }
    }
}

/// How a packed graph begins; the tables follow, and the steps.
#[derive(Serialize, Deserialize)]
struct Head {
    version: String,
    plan: Hash,
    /// The plan without its steps.
    #[serde(with = "as_json")]
    outline: Plan,
    steps: usize,
    groups: usize,
    edges: usize,
    locks: BTreeMap<LockName, Vec<u32>>,
}

impl Graph {
    pub fn new(plan: Arc<Plan>) -> Graph {
        let hash = plan.hash();
        let ids: BTreeMap<&StepId, usize> =
            plan.steps.iter().enumerate().map(|(index, step)| (&step.id, index)).collect();
        let needs = needs(&plan, &ids);
        let mut dependants = vec![BTreeSet::new(); needs.len()];
        for (node, needed) in needs.iter().enumerate() {
            for other in needed {
                dependants[*other].insert(node);
            }
        }
        let mut locks: BTreeMap<LockName, Vec<u32>> = BTreeMap::new();
        for (index, step) in plan.steps.iter().enumerate() {
            for lock in &step.locks {
                locks.entry(lock.clone()).or_default().push(number(index));
            }
        }
        let by_id: Vec<u32> = ids.into_values().map(number).collect();
        let (needs, dependants) = (Edges::from_lists(&needs), Edges::from_lists(&dependants));
        Graph { plan, hash, by_id: by_id.into(), needs, dependants, locks }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan's hash, which needs no second look at the plan.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    pub(crate) fn index_of(&self, id: &StepId) -> Option<usize> {
        let (mut from, mut to) = (0, self.by_id.len());
        while from < to {
            let middle = from.midpoint(to);
            let index = self.by_id.get(middle)?;
            match self.plan.steps.get(index)?.id.cmp(id) {
                Ordering::Equal => return Some(index),
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
            }
        }
        None
    }

    pub(crate) fn nodes(&self) -> usize {
        self.needs.starts.len() - 1
    }

    pub(crate) fn is_step(&self, node: usize) -> bool {
        node < self.plan.steps.len()
    }

    /// The nodes that must be done before this one.
    pub(crate) fn needs(&self, node: usize) -> impl Iterator<Item = usize> {
        self.needs.of(node)
    }

    /// The nodes that wait for this one.
    pub(crate) fn dependants(&self, node: usize) -> impl Iterator<Item = usize> {
        self.dependants.of(node)
    }

    /// The steps that must be completed before this one, groups spelled out.
    pub(crate) fn needed_steps(&self, step: usize) -> BTreeSet<usize> {
        let spelled = |node: usize| match self.is_step(node) {
            true => BTreeSet::from([node]),
            false => self.needs(node).collect(),
        };
        self.needs(step).flat_map(spelled).collect()
    }

    /// Every lock that a step names, with the steps that do.
    pub(crate) fn locks(&self) -> impl Iterator<Item = (&LockName, impl Iterator<Item = usize>)> {
        self.locks.iter().map(|(lock, steps)| (lock, steps.iter().map(|step| *step as usize)))
    }

    /// For a store to keep beside the run.
    pub fn pack(&self) -> Packed {
        let head = Head {
            version: VERSION.to_owned(),
            plan: self.hash,
            outline: Plan { steps: List::from(Vec::new()), ..(*self.plan).clone() },
            steps: self.plan.steps.len(),
            groups: self.nodes() - self.plan.steps.len(),
            edges: self.needs.ends.len(),
            locks: self.locks.clone(),
        };
        let (starts, steps) = self.plan.steps.pack(pack_step);
        let mut bytes = postcard::to_stdvec(&head).expect("numbers and names can be packed");
        for table in [&starts.into(), &self.by_id]
            .into_iter()
            .chain([&self.needs.starts, &self.needs.ends])
            .chain([&self.dependants.starts, &self.dependants.ends])
        {
            bytes.extend_from_slice(table.as_bytes());
        }
        bytes.extend_from_slice(&steps);
        Packed::graph(bytes)
    }

    /// Reads back what [`Graph::pack`] made of the plan with this hash. `None` where the bytes are
    /// another version's or another plan's.
    pub fn unpack(bytes: Vec<u8>, plan: Hash) -> Option<Graph> {
        // Whatever else stands in another version's bytes, its name comes first.
        let (version, _): (String, _) = postcard::take_from_bytes(&bytes).ok()?;
        if version != VERSION {
            return None;
        }
        let (head, tables): (Head, _) = postcard::take_from_bytes(&bytes).ok()?;
        if head.plan != plan {
            return None;
        }
        let from = bytes.len() - tables.len();
        let bytes = Arc::new(bytes);
        let mut parts = Parts::new(Arc::clone(&bytes), from);
        let nodes = head.steps.checked_add(head.groups)?;
        let starts = parts.numbers(head.steps + 1)?;
        let by_id = parts.numbers(head.steps)?;
        let mut edges =
            || Some(Edges { starts: parts.numbers(nodes + 1)?, ends: parts.numbers(head.edges)? });
        let (needs, dependants) = (edges()?, edges()?);
        let steps = List::packed(Slices { bytes, starts, from: parts.rest() });
        let plan = Arc::new(Plan { steps, ..head.outline });
        Some(Graph { plan, hash: head.plan, by_id, needs, dependants, locks: head.locks })
    }
}

/// For every step what it needs; then for every group its steps.
fn needs(plan: &Plan, ids: &BTreeMap<&StepId, usize>) -> Vec<BTreeSet<usize>> {
    let steps = plan.steps.len();
    let named = plan.steps.iter().filter_map(|step| step.group.as_ref());
    let names: BTreeSet<&GroupId> = plan.groups.keys().chain(named).collect();
    let groups: BTreeMap<&GroupId, usize> = names.into_iter().zip(steps..).collect();
    let mut all = vec![BTreeSet::new(); steps + groups.len()];
    for (index, step) in plan.steps.iter().enumerate() {
        all[index] = step
            .needs
            .iter()
            .filter_map(|need| match need {
                Need::Step(id) => ids.get(id).copied(),
                Need::Group(group) => groups.get(group).copied(),
            })
            .collect();
        if let Some(group) = &step.group {
            all[groups[group]].insert(index);
        }
    }
    all
}

/// A step with nothing left out, as packed bytes need it: in the order of its fields.
type WholeStep = (
    (StepId, String, Option<GroupId>, Vec<Need>, Work),
    (Option<String>, Option<Duration>, u32, BTreeMap<String, String>),
    (Vec<String>, Vec<(SubstepId, String, Vec<String>)>, BTreeSet<LockName>),
);

fn pack_step(step: &PlanStep, bytes: &mut Vec<u8>) {
    // Every field is named, so that a new one is not forgotten.
    #[rustfmt::skip]
    let PlanStep {
        id, title, group, needs, work, verify, timeout, retries, env, items, substeps, locks,
    } = step;
    let substep = |substep: &PlanSubstep| {
        let PlanSubstep { id, title, items } = substep.clone();
        (id, title, items)
    };
    let substeps: Vec<_> = substeps.iter().map(substep).collect();
    let whole = (
        (id, title, group, needs, work),
        (verify, timeout, retries, env),
        (items, substeps, locks),
    );
    let packed = postcard::to_stdvec(&whole).expect("texts and numbers can be packed");
    bytes.extend_from_slice(&packed);
}

impl Unpack for PlanStep {
    fn unpack(bytes: &[u8]) -> Option<PlanStep> {
        let whole: WholeStep = postcard::from_bytes(bytes).ok()?;
        let ((id, title, group, needs, work), (verify, timeout, retries, env), rest) = whole;
        let (items, substeps, locks) = rest;
        let substep = |(id, title, items)| PlanSubstep { id, title, items };
        let substeps = substeps.into_iter().map(substep).collect();
        Some(PlanStep {
            id,
            title,
            group,
            needs,
            work,
            verify,
            timeout,
            retries,
            env,
            items,
            substeps,
            locks,
        })
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("a plan has fewer than 2³² bytes, steps and needs")
}
