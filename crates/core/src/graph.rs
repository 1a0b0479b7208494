//! A plan with its graph worked out: which step has which id, what needs what, who names which lock.
//! Worked out once per plan and then read packed, so that finding a step among thousands reads a few.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cache::{Place, Sheaf, as_json, pack_places, take_places};
use crate::ids::{GroupId, Hash, LockName, StepId, SubstepId};
use crate::list::{Extent, List, Pack, Pages, Source, pages_for};
use crate::plan::{Need, OnInterrupt, Plan, PlanStep, PlanSubstep, Work};

/// What a run is folded over. Nodes are the steps, then the groups: a group is done when its steps are,
/// so that a need on a large group is one edge.
#[derive(Debug, Clone)]
pub struct Graph {
    plan: Arc<Plan>,
    hash: Hash,
    nodes: List<Node>,
    /// Which index a step's id has: each is in the bucket that its hash names.
    ids: List<Bucket>,
    locks: BTreeMap<LockName, Vec<u32>>,
}

/// What a step or group needs, and what needs it, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    needs: Vec<u32>,
    dependants: Vec<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket(Vec<(StepId, u32)>);

/// Ids that share a bucket, about.
const IDS_PER_BUCKET: usize = 8;

/// How a packed graph begins; where its steps, nodes and ids are follows.
#[derive(Serialize, Deserialize)]
struct Head {
    plan: Hash,
    /// The plan without its steps.
    #[serde(with = "as_json")]
    outline: Plan,
    steps: usize,
    nodes: usize,
    locks: BTreeMap<LockName, Vec<u32>>,
}

/// The lists of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Steps,
    Nodes,
    Ids,
}

impl Graph {
    pub fn new(plan: Arc<Plan>) -> Graph {
        let hash = plan.hash();
        let ids: BTreeMap<&StepId, usize> =
            plan.steps.iter().enumerate().map(|(index, step)| (&step.id, index)).collect();
        let nodes = nodes(&plan, &ids);
        let mut buckets = vec![Bucket::default(); buckets_for(ids.len())];
        for (id, index) in ids {
            let bucket = bucket_of(id, buckets.len());
            buckets[bucket].0.push((id.clone(), number(index)));
        }
        let mut locks: BTreeMap<LockName, Vec<u32>> = BTreeMap::new();
        for (index, step) in plan.steps.iter().enumerate() {
            for lock in &step.locks {
                locks.entry(lock.clone()).or_default().push(number(index));
            }
        }
        Graph { plan, hash, nodes: nodes.into(), ids: buckets.into(), locks }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan's hash, which needs no second look at the plan.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    pub(crate) fn index_of(&self, id: &StepId) -> Option<usize> {
        let Bucket(ids) = &self.ids[bucket_of(id, self.ids.len())];
        ids.iter().find(|(known, _)| known == id).map(|(_, index)| *index as usize)
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

    /// Every lock that a step names, with the steps that do.
    pub(crate) fn locks(&self) -> impl Iterator<Item = (&LockName, impl Iterator<Item = usize>)> {
        self.locks.iter().map(|(lock, steps)| (lock, steps.iter().map(|step| *step as usize)))
    }

    /// All of it, for a file; says where its head is.
    pub(crate) fn pack(&self, sheaf: &mut Sheaf) -> Place {
        let head = Head {
            plan: self.hash,
            outline: Plan { steps: List::from(Vec::new()), ..(*self.plan).clone() },
            steps: self.plan.steps.len(),
            nodes: self.nodes(),
            locks: self.locks.clone(),
        };
        let mut bytes = postcard::to_stdvec(&head).expect("numbers and names can be packed");
        pack_places(&self.plan.steps.pack(sheaf, Extent::Whole), &mut bytes);
        pack_places(&self.nodes.pack(sheaf, Extent::Whole), &mut bytes);
        pack_places(&self.ids.pack(sheaf, Extent::Whole), &mut bytes);
        sheaf.page(&bytes)
    }

    /// Reads back what [`Graph::pack`] made; `source` is where the pages of each part are.
    pub(crate) fn unpack(bytes: &[u8], source: impl Fn(Part) -> Arc<dyn Source>) -> Option<Graph> {
        let (head, mut places): (Head, _) = postcard::take_from_bytes(bytes).ok()?;
        let mut pages = |part: Part, len: usize| {
            let places = take_places(&mut places, pages_for(len))?;
            Some((len, Pages { source: source(part), places }))
        };
        let steps = pages(Part::Steps, head.steps)?;
        let nodes = pages(Part::Nodes, head.nodes)?;
        let ids = pages(Part::Ids, buckets_for(head.steps))?;
        let plan = Arc::new(Plan { steps: List::kept(steps.0, steps.1), ..head.outline });
        let (nodes, ids) = (List::kept(nodes.0, nodes.1), List::kept(ids.0, ids.1));
        Some(Graph { plan, hash: head.plan, nodes, ids, locks: head.locks })
    }

    /// A page of one of its lists.
    pub(crate) fn page(&self, part: Part, number: usize) -> Vec<u8> {
        match part {
            Part::Steps => self.plan.steps.page(number),
            Part::Nodes => self.nodes.page(number),
            Part::Ids => self.ids.page(number),
        }
    }
}

fn buckets_for(steps: usize) -> usize {
    steps.div_ceil(IDS_PER_BUCKET).max(1)
}

fn bucket_of(id: &StepId, buckets: usize) -> usize {
    let hash = Hash::of(id.as_str().as_bytes());
    let first = u32::from_le_bytes(std::array::from_fn(|n| hash.as_bytes()[n]));
    first as usize % buckets
}

impl Pack for Node {
    fn pack(&self, bytes: &mut Vec<u8>) {
        pack_fields(self, bytes);
    }

    fn unpack(bytes: &[u8]) -> Option<Node> {
        postcard::from_bytes(bytes).ok()
    }
}

impl Pack for Bucket {
    fn pack(&self, bytes: &mut Vec<u8>) {
        pack_fields(self, bytes);
    }

    fn unpack(bytes: &[u8]) -> Option<Bucket> {
        postcard::from_bytes(bytes).ok()
    }
}

fn pack_fields(all: &impl Serialize, bytes: &mut Vec<u8>) {
    let packed = postcard::to_stdvec(all).expect("texts and numbers can be packed");
    bytes.extend_from_slice(&packed);
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
    nodes
}

/// A step with nothing left out, as packed bytes need it: in the order of its fields.
type WholeStep = (
    (StepId, String, Option<GroupId>, Vec<Need>, Work),
    (Option<String>, Option<Duration>, u32, BTreeMap<String, String>),
    (Vec<String>, Vec<(SubstepId, String, Vec<String>)>, BTreeSet<LockName>, Option<OnInterrupt>),
);

impl Pack for PlanStep {
    fn pack(&self, bytes: &mut Vec<u8>) {
        // Every field is named, so that a new one is not forgotten.
        #[rustfmt::skip]
        let PlanStep {
            id, title, group, needs, work, verify, timeout, retries, env, items, substeps, locks,
            on_interrupt,
        } = self;
        let substep = |substep: &PlanSubstep| {
            let PlanSubstep { id, title, items } = substep.clone();
            (id, title, items)
        };
        let substeps: Vec<_> = substeps.iter().map(substep).collect();
        let whole = (
            (id, title, group, needs, work),
            (verify, timeout, retries, env),
            (items, substeps, locks, on_interrupt),
        );
        pack_fields(&whole, bytes);
    }

    fn unpack(bytes: &[u8]) -> Option<PlanStep> {
        let whole: WholeStep = postcard::from_bytes(bytes).ok()?;
        let ((id, title, group, needs, work), (verify, timeout, retries, env), rest) = whole;
        let (items, substeps, locks, on_interrupt) = rest;
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
            on_interrupt,
        })
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("a plan has fewer than 2³² bytes, steps and needs")
}
