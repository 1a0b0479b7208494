//! Do the parts of a draft fit together: ids unique, groups, needs and locks known, nothing in a circle.
//! Everything here is linear in the size of the plan.

use std::collections::BTreeMap;

use crate::cycles::each_cycle;
use crate::draft::{Draft, DraftStep, DraftSubstep};
use crate::fields::did_you_mean;
use crate::source::{Findings, Source};
use crate::value::Located;
use loops::Members;
use piton_core::ids::{GroupId, LockName, LoopId, OutputName, StepId, SubstepId};
use piton_core::limits::{STEP_ITEMS_MAX, STEP_SUBSTEPS_MAX};
use piton_core::plan::{Need, Plan, PlanFrom, PlanStep, PlanSubstep, Work, nearest, shown};

mod loops;

/// How many unknown names are compared with all known ones; the others get a plain hint.
const SUGGESTIONS_MAX: usize = 20;
/// How many names of a circle are shown; longer ones are cut in the middle.
const CYCLE_SHOWN_MAX: usize = 30;

/// The plan that a draft describes; `None` only together with findings.
pub(crate) fn plan(draft: Draft, source: &Source, findings: &mut Findings) -> Option<Plan> {
    let mut names = Names::new(&draft, source, findings);
    let members = loops::members(&mut names, &draft, findings);
    let mut needs = names.needs(&draft, findings);
    loops::add_chains(&draft, &mut needs);
    find_cycles(&draft, &needs, &members, findings);
    find_too_many(&draft, findings);
    find_double_substeps(&draft, source, findings);
    find_unknown_locks(&draft, findings);
    let plan_from = planner(&draft, &members, findings);
    let steps = draft.steps.into_iter().zip(needs);
    Some(Plan {
        name: draft.name?,
        base: draft.base,
        isolation: draft.isolation,
        on_failure: draft.on_failure,
        jobs: draft.jobs,
        setup: draft.setup,
        copy: draft.copy,
        link: draft.link,
        inputs: draft.inputs,
        groups: draft.groups,
        agents: draft.agents,
        locks: draft.locks,
        loops: draft
            .loops
            .into_iter()
            .map(|(id, of)| Some((id, of.finish()?)))
            .collect::<Option<_>>()?,
        steps: steps.map(|(step, needs)| step.finish(needs)).collect::<Option<_>>()?,
        plan_from,
        source: None,
    })
}

impl DraftStep {
    fn finish(self, needs: Vec<Need>) -> Option<PlanStep> {
        Some(PlanStep {
            id: self.id?,
            title: self.title?,
            kind: self.kind,
            group: self.group.map(|group| group.value),
            needs,
            work: self.work?,
            verify: self.verify,
            skip_if: self.skip_if,
            timeout: self.timeout,
            retries: self.retries,
            env: self.env,
            items: self.items,
            substeps: self.substeps.into_iter().map(DraftSubstep::finish).collect::<Option<_>>()?,
            locks: self.locks.into_iter().map(|lock| lock.value).collect(),
            outputs: self.outputs,
            require: self.require,
            on_interrupt: self.on_interrupt,
            on_limit: self.on_limit,
        })
    }
}

impl DraftSubstep {
    fn finish(self) -> Option<PlanSubstep> {
        Some(PlanSubstep { id: self.id?, title: self.title?, items: self.items })
    }
}

/// Everything a need can name.
struct Names<'a> {
    steps: BTreeMap<&'a str, &'a DraftStep>,
    /// With how many steps each has.
    groups: BTreeMap<&'a str, (&'a GroupId, usize)>,
    loops: BTreeMap<&'a str, &'a LoopId>,
    suggestions_left: usize,
}

impl<'a> Names<'a> {
    /// Collects the names and finds those that are defined twice or not at all.
    fn new(draft: &'a Draft, source: &Source, findings: &mut Findings) -> Names<'a> {
        let mut names = Names {
            steps: BTreeMap::new(),
            groups: draft.groups.keys().map(|id| (id.as_str(), (id, 0))).collect(),
            loops: draft.loops.keys().map(|id| (id.as_str(), id)).collect(),
            suggestions_left: SUGGESTIONS_MAX,
        };
        for step in &draft.steps {
            names.add_step(step, source, findings);
            if let Some(group) = &step.group {
                names.count_member(group, findings);
            }
        }
        names
    }

    fn add_step(&mut self, step: &'a DraftStep, source: &Source, findings: &mut Findings) {
        let Some(id) = &step.id else { return };
        if let Some(first) = self.steps.get(id.as_str()) {
            let line = source.line(first.at);
            let hint = format!("the first is in line {line}; give this one another id");
            findings.add(step.at, format!("step `{id}` is defined twice"), hint);
        } else {
            self.steps.insert(id.as_str(), step);
        }
    }

    fn count_member(&mut self, group: &Located<GroupId>, findings: &mut Findings) {
        let id = &group.value;
        if let Some((_, members)) = self.groups.get_mut(id.as_str()) {
            *members += 1;
            return;
        }
        let groups = self.groups.keys().copied();
        let meant = suggestion(&mut self.suggestions_left, id.as_str(), groups);
        let hint = meant.unwrap_or_else(|| format!("add [group.{id}] with a title"));
        findings.add(group.at, format!("unknown group `{id}`"), hint);
    }

    /// The needs of every step, sorted, each once.
    fn needs(&mut self, draft: &Draft, findings: &mut Findings) -> Vec<Vec<Need>> {
        let mut all = Vec::with_capacity(draft.steps.len());
        for step in &draft.steps {
            let needs = step.needs.iter();
            let mut needs: Vec<Need> =
                needs.filter_map(|need| self.need(step, need, findings)).collect();
            needs.sort_unstable();
            needs.dedup();
            all.push(needs);
        }
        all
    }

    fn need(
        &mut self,
        step: &DraftStep,
        need: &Located<String>,
        findings: &mut Findings,
    ) -> Option<Need> {
        let (at, name) = (need.at, need.value.as_str());
        if let Some((of, output)) = name.split_once(':') {
            return self.need_output(step, (at, of, output), findings);
        }
        if let Some(of) = self.loops.get(name) {
            if self.steps.contains_key(name) || self.groups.contains_key(name) {
                let message = format!("the need `{name}` is a loop and something else, too");
                findings.add(at, message, "rename one of them");
                return None;
            }
            return Some(Need::Loop((*of).clone()));
        }
        match (self.steps.get(name), self.groups.get(name)) {
            (Some(_), Some(_)) => {
                let message = format!("the need `{name}` is both a step and a group");
                findings.add(at, message, "rename one of them");
                None
            }
            (Some(other), None) if other.id == step.id => {
                findings.add(at, format!("step `{name}` needs itself"), "remove this need");
                None
            }
            (Some(other), None) => other.id.clone().map(Need::Step),
            (None, Some((_, 0))) => {
                let hint = format!("add group = \"{name}\" to its steps, or remove this need");
                findings.add(at, format!("the needed group `{name}` has no steps"), hint);
                None
            }
            (None, Some((group, _))) => Some(Need::Group((*group).clone())),
            (None, None) => {
                self.find_unknown(at, name, findings);
                None
            }
        }
    }

    /// `step:output`, which the step must declare.
    fn need_output(
        &mut self,
        step: &DraftStep,
        (at, of, output): (usize, &str, &str),
        findings: &mut Findings,
    ) -> Option<Need> {
        let Some(other) = self.steps.get(of).copied() else {
            self.find_unknown(at, of, findings);
            return None;
        };
        if other.id == step.id {
            let message = format!("step `{of}` needs an output of its own");
            findings.add(at, message, "remove this need");
            return None;
        }
        let declared = other.outputs.iter().find(|name| name.as_str() == output);
        if declared.is_none() {
            let names = other.outputs.iter().map(OutputName::as_str);
            let meant = suggestion(&mut self.suggestions_left, output, names);
            let hint = meant.unwrap_or_else(|| {
                let add = format!("add outputs = [{output:?}] to step `{of}`");
                if OutputName::new(output).is_ok() {
                    add
                } else {
                    "name an output of it".to_owned()
                }
            });
            let message = format!("step `{of}` declares no output {}", shown(output));
            findings.add(at, message, hint);
        }
        Some(Need::Output(other.id.clone()?, declared?.clone()))
    }

    fn find_unknown(&mut self, at: usize, name: &str, findings: &mut Findings) {
        let names = self.steps.keys().chain(self.groups.keys()).chain(self.loops.keys()).copied();
        let meant = suggestion(&mut self.suggestions_left, name, names);
        let hint =
            meant.unwrap_or_else(|| "name a step, a group or a loop of this plan".to_owned());
        findings.add(at, format!("unknown need {}", shown(name)), hint);
    }
}

/// Comparing every unknown name with every known one would be quadratic, so it is rationed.
fn suggestion<'a>(
    left: &mut usize,
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<String> {
    *left = left.checked_sub(1)?;
    nearest(name, candidates).map(did_you_mean)
}

/// Of other tools' steps; those of piton's own format were counted where they stand.
fn find_too_many(draft: &Draft, findings: &mut Findings) {
    for step in &draft.steps {
        let items = step.items.len()
            + step.substeps.iter().map(|substep| substep.items.len()).sum::<usize>();
        for (count, max, what) in
            [(step.substeps.len(), STEP_SUBSTEPS_MAX, "substeps"), (items, STEP_ITEMS_MAX, "items")]
        {
            if count > max && findings.is_sound() {
                let message = format!("the step has more than {max} {what}");
                findings.add(step.at, message, "make several steps of it");
            }
        }
    }
}

fn find_double_substeps(draft: &Draft, source: &Source, findings: &mut Findings) {
    for step in &draft.steps {
        let mut first: BTreeMap<&SubstepId, usize> = BTreeMap::new();
        for substep in &step.substeps {
            let Some(id) = &substep.id else { continue };
            if let Some(at) = first.get(id) {
                let line = source.line(*at);
                let hint = format!("the first is in line {line}; give this one another id");
                findings.add(substep.at, format!("substep `{id}` is defined twice"), hint);
            } else {
                first.insert(id, substep.at);
            }
        }
    }
}

/// The planner, which must be a step that piton starts.
fn planner(draft: &Draft, members: &Members, findings: &mut Findings) -> Option<PlanFrom> {
    let (step, file) = draft.plan_from.as_ref()?;
    let known = draft
        .steps
        .iter()
        .find(|known| known.id.as_ref().is_some_and(|id| id.as_str() == step.value));
    let Some(known) = known else {
        let ids = draft.steps.iter().filter_map(|step| step.id.as_ref()).map(StepId::as_str);
        let hint = nearest(&step.value, ids).map(did_you_mean);
        let hint = hint.unwrap_or_else(|| "name a step of this plan".to_owned());
        findings.add(step.at, format!("unknown step {}", shown(&step.value)), hint);
        return None;
    };
    if known.work.as_ref().is_some_and(Work::is_by_hand) {
        let message = format!("nothing is started for step {}", shown(&step.value));
        findings.add(step.at, message, "give the planner `run`, or `prompt` and an agent");
    }
    if known.id.as_ref().is_some_and(|id| members.contains_key(id)) {
        let message = format!("the planner {} is in a loop", shown(&step.value));
        findings.add(step.at, message, "a plan is produced once: take it out of the loop");
    }
    Some(PlanFrom { step: known.id.clone()?, file: file.clone(), before: None })
}

fn find_unknown_locks(draft: &Draft, findings: &mut Findings) {
    let mut suggestions_left = SUGGESTIONS_MAX;
    let held = draft.steps.iter().flat_map(|step| &step.locks);
    for lock in held.filter(|lock| !draft.locks.contains_key(&lock.value)) {
        let name = &lock.value;
        let locks = draft.locks.keys().map(LockName::as_str);
        let meant = suggestion(&mut suggestions_left, name.as_str(), locks);
        let hint = meant.unwrap_or_else(|| format!("add {name} = 1 to [locks]"));
        findings.add(lock.at, format!("unknown lock `{name}`"), hint);
    }
}

/// In the graph the groups are nodes behind the steps, so that a need on a large group is one edge. Then the
/// loops: a need on a step of one is a need on the loop, but for its own steps.
fn find_cycles(draft: &Draft, needs: &[Vec<Need>], members: &Members, findings: &mut Findings) {
    let steps = draft.steps.len();
    let groups = draft.groups.keys().map(|group| format!("group {group}"));
    let behind: Vec<String> =
        groups.chain(draft.loops.keys().map(|id| format!("loop {id}"))).collect();
    let show = |node: usize| match draft.steps.get(node) {
        Some(step) => step.id.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string),
        None => behind[node - steps].clone(),
    };
    each_cycle(&edges(draft, needs, members), |cycle| {
        // A loop leads to steps only: there is one.
        let from = cycle.iter().position(|node| *node < steps).unwrap_or_default();
        let node = |place: usize| cycle[(from + place) % cycle.len()];
        let shown = shown_places(cycle.len())
            .map(|place| place.map_or("…".to_owned(), |p| show(node(p))));
        let path: Vec<String> = shown.collect();
        let message = format!("steps need each other in a circle: {}", path.join(" → "));
        findings.add(draft.steps[node(0)].at, message, "remove one of these needs");
    });
}

/// Once around a circle, back to its first place, with a gap in the middle when it is long.
fn shown_places(length: usize) -> impl Iterator<Item = Option<usize>> {
    let half = CYCLE_SHOWN_MAX / 2;
    let (head, gap, tail) = if length <= CYCLE_SHOWN_MAX {
        (0..length, None, 0..1)
    } else {
        (0..half, Some(None), length - half..length + 1)
    };
    head.map(Some).chain(gap).chain(tail.map(Some))
}

/// For every step what it needs; then for every group its steps; then for every loop its own.
fn edges(draft: &Draft, needs: &[Vec<Need>], members: &Members) -> Vec<Vec<usize>> {
    let mut step_nodes = BTreeMap::new();
    for (node, step) in draft.steps.iter().enumerate() {
        step_nodes.entry(step.id.as_ref()).or_insert(node);
    }
    let group_nodes: BTreeMap<_, usize> = draft.groups.keys().zip(draft.steps.len()..).collect();
    let first_loop = draft.steps.len() + draft.groups.len();
    let loop_nodes: BTreeMap<_, usize> = draft.loops.keys().zip(first_loop..).collect();
    let loop_of = |id: &StepId| members.get(id).and_then(|of| loop_nodes.get(of)).copied();
    let node = |own: Option<usize>, need: &Need| match need {
        // Data may be read while the loop goes on; steps that wait for each other's still do.
        Need::Output(id, _) => step_nodes.get(&Some(id)).copied(),
        Need::Step(id) => match loop_of(id) {
            of if of == own => step_nodes.get(&Some(id)).copied(),
            of => of.or_else(|| step_nodes.get(&Some(id)).copied()),
        },
        Need::Group(id) => group_nodes.get(id).copied(),
        Need::Loop(id) => loop_nodes.get(id).copied(),
    };
    let mut edges: Vec<Vec<usize>> = Vec::with_capacity(first_loop + draft.loops.len());
    for (step, needs) in draft.steps.iter().zip(needs) {
        let own = step.id.as_ref().and_then(loop_of);
        edges.push(needs.iter().filter_map(|need| node(own, need)).collect());
    }
    edges.resize(first_loop + draft.loops.len(), Vec::new());
    for (index, step) in draft.steps.iter().enumerate() {
        let of = step.id.as_ref().and_then(loop_of);
        let group = step.group.as_ref().and_then(|group| group_nodes.get(&group.value));
        if let Some(group) = group {
            edges[*group].push(of.unwrap_or(index));
        }
        if let Some(of) = of {
            edges[of].push(index);
        }
    }
    edges
}
