//! Epic configurations (CFN loop) in their dialects: phases of sprints, sprints of phases, sprints alone, with
//! keys in camel or snake case, everything at the top or below `epic`. References are resolved by id, by
//! unique beginning and by prose such as "Sprint 1.1".

use std::collections::BTreeMap;
use std::rc::Rc;

use piton_core::event::FoundState;
use piton_core::ids::{GroupId, StepId};
use piton_core::limits::{PLAN_STEPS_MAX, STEP_SUBSTEPS_MAX};
use piton_core::plan::shown;

use crate::draft::{
    DraftStep, DraftSubstep, Foreign, Part, Prompt, Style, context_of, item, label,
};
use crate::lines::stem;
use crate::source::Findings;
use crate::task_list::substep_id;
use crate::value::{Node, Value};
use crate::{Hint, Located};

const DEPENDENCIES: [&str; 4] = ["dependencies", "depends_on", "dependsOn", "needs"];
/// The most needs that dependencies between phases may become.
const NEEDS_MAX: usize = 1_000_000;
const CROSS: [&str; 2] = ["crossPhaseDependencies", "cross_phase_dependencies"];
/// What is told elsewhere than in the outline.
const TOLD: [&str; 16] = [
    "id",
    "phaseId",
    "phase_id",
    "sprintId",
    "sprint_id",
    "name",
    "title",
    "sprint_name",
    "phase_name",
    "status",
    "dependencies",
    "phases",
    "sprints",
    "subtasks",
    "crossPhaseDependencies",
    "checkpoints",
];

/// Whether a file is one, by its keys.
pub(crate) fn is_epic(root: &Node) -> bool {
    let has_sprints = |node: &Node| node.get("sprints").is_some();
    root.any(&["epicId", "epic_id"]).is_some()
        || root.get("epic").is_some_and(|epic| epic.as_table().is_some())
        || has_sprints(root)
        || root.list(&["phases"]).iter().any(has_sprints)
}

pub(crate) fn read(root: &Node, hint: &Hint<'_>, findings: &mut Findings) -> Foreign {
    let epic = root.get("epic").filter(|epic| epic.as_table().is_some()).unwrap_or(root);
    let name = epic.text(&["name", "title", "epicName", "epic_name", "epicId", "epic_id", "id"]);
    let mut plan = Foreign::named(&name.clone().unwrap_or_else(|| stem(hint.path).to_owned()));
    let outer = [epic, root].into_iter().find_map(|node| {
        let keys = ["phases", "sprints"];
        keys.into_iter()
            .find(|key| !node.list(&[key]).is_empty())
            .map(|key| (node.list(&[key]), key))
    });
    let (nodes, kind) = outer.unwrap_or((&[], "phases"));
    let index = Index::new(&mut plan, nodes, kind);
    let name = context_of(&name.unwrap_or_default()).into_owned();
    let about = About { epic, name };
    for unit in index.units.iter().take(PLAN_STEPS_MAX + 1) {
        add(&mut plan, unit, &index, &about, findings);
    }
    crossings(&mut plan, [epic, root], &index, findings);
    plan
}

struct About<'a> {
    epic: &'a Node,
    name: String,
}

/// A sprint or phase that is a step, with the one around it.
struct Unit<'a> {
    node: &'a Node,
    around: Option<(&'a Node, GroupId)>,
    /// What that one is about.
    about: Option<Rc<str>>,
    step: StepId,
    /// As others name it.
    id: String,
}

#[derive(Default)]
struct Index<'a> {
    units: Vec<Unit<'a>>,
    /// By the id without capitals: a sprint before a phase.
    exact: BTreeMap<String, Meant>,
    /// By the id without its kind; each with its kind.
    steps: BTreeMap<String, Vec<(String, StepId)>>,
    groups: BTreeMap<String, Vec<(String, GroupId)>>,
}

/// What a reference means.
#[derive(Clone)]
enum Meant {
    Step(StepId),
    Group(GroupId),
}

impl<'a> Index<'a> {
    fn new(plan: &mut Foreign, nodes: &'a [Node], kind: &str) -> Index<'a> {
        let (outer, inner_kind, inner) = match kind {
            "phases" => ("phase", "sprint", "sprints"),
            _ => ("sprint", "phase", "phases"),
        };
        let mut index = Index::default();
        let mut named = Vec::new();
        for (place, node) in nodes.iter().enumerate() {
            let id = id_of(node, outer).unwrap_or_else(|| format!("{outer}-{}", place + 1));
            let parts = node.list(&[inner]);
            let group = (!parts.is_empty()).then(|| {
                let title = title_of(node, outer).unwrap_or_else(|| id.clone());
                plan.group(&prefixed(&id, outer), &title)
            });
            if let Some(group) = &group {
                let (kind, key) = plain(&id);
                index.groups.entry(key).or_default().push((kind, group.clone()));
            }
            named.push((node, id, parts, group));
        }
        let outer_ids =
            named.iter().filter_map(|(_, id, _, group)| Some((id.clone(), group.clone()?)));
        let outer_ids: Vec<(String, GroupId)> = outer_ids.collect();
        for (node, id, parts, group) in named {
            let Some(group) = group else {
                let step = plan.name(&prefixed(&id, outer));
                index.units.push(Unit { node, around: None, about: None, step, id });
                continue;
            };
            let name = ["phase", "sprint"].iter().find_map(|kind| title_of(node, kind));
            let about = [name, node.text(&["description", "goal"])];
            let about = about.into_iter().flatten().collect::<Vec<_>>().join(". ");
            let about: Rc<str> = Rc::from(context_of(&about));
            for (place, part) in parts.iter().enumerate() {
                let own = id_of(part, inner_kind);
                let own = own.unwrap_or_else(|| format!("{id}-{inner_kind}-{}", place + 1));
                let step = plan.name(&prefixed(&own, inner_kind));
                let around = Some((node, group.clone()));
                let about = Some(Rc::clone(&about));
                index.units.push(Unit { node: part, around, about, step, id: own });
            }
        }
        let ids = index.units.iter().map(|unit| (unit.id.clone(), unit.step.clone()));
        for (id, step) in ids.collect::<Vec<_>>() {
            let (kind, key) = plain(&id);
            index.steps.entry(key).or_default().push((kind, step.clone()));
            index.exact.entry(id.to_lowercase()).or_insert(Meant::Step(step));
        }
        for (id, group) in outer_ids {
            index.exact.entry(id.to_lowercase()).or_insert(Meant::Group(group));
        }
        index
    }

    /// By id, by number, by the one that begins so; `phase-1/sprint-1.3` by its last part.
    fn find(&self, reference: &str) -> Option<Meant> {
        let last = reference.rsplit('/').next().unwrap_or(reference).trim();
        if let Some(meant) = self.exact.get(&last.to_lowercase()) {
            return Some(meant.clone());
        }
        let (kind, key) = plain(last);
        let same = self.steps.get(&key).into_iter().flatten();
        if let Some((_, step)) = same.clone().find(|(other, _)| fits(&kind, other)) {
            return Some(Meant::Step(step.clone()));
        }
        let group = only(&self.groups, &kind, &key).map(Meant::Group);
        group.or_else(|| only(&self.steps, &kind, &key).map(Meant::Step))
    }
}

/// A kind that is not named fits every other.
fn fits(kind: &str, other: &str) -> bool {
    kind.is_empty() || other.is_empty() || kind == other
}

/// The only one whose id is the key, or begins with it and a dash.
fn only<T: Clone>(ids: &BTreeMap<String, Vec<(String, T)>>, kind: &str, key: &str) -> Option<T> {
    let begins = |id: &str| id == key || id[key.len()..].starts_with('-');
    let near = ids.range(key.to_owned()..).take_while(|(id, _)| id.starts_with(key));
    let near = near.filter(|(id, _)| begins(id)).flat_map(|(_, all)| all);
    let mut fitting = near.filter(|(other, _)| fits(kind, other)).map(|(_, one)| one);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Some(one.clone()),
        _ => None,
    }
}

/// "Sprint 1.1" and "sprint-1.1" are the kind `sprint` and the key `1.1`.
fn plain(id: &str) -> (String, String) {
    let lower = id.trim().to_lowercase();
    for kind in ["sprint", "phase", "epic"] {
        if let Some(rest) = lower.strip_prefix(kind)
            && rest.starts_with(['-', '_', ' ', '.'])
        {
            let rest = rest.trim_start_matches(['-', '_', ' ', '.']);
            return (kind.to_owned(), rest.replace([' ', '_'], "-"));
        }
    }
    (String::new(), lower.replace([' ', '_'], "-"))
}

fn prefixed(id: &str, kind: &str) -> String {
    let starts_with_letter = id.starts_with(|c: char| c.is_alphabetic());
    if starts_with_letter { id.to_owned() } else { format!("{kind}-{id}") }
}

fn id_of(node: &Node, kind: &str) -> Option<String> {
    node.text(&[&format!("{kind}Id"), &format!("{kind}_id"), "id", kind])
}

fn title_of(node: &Node, kind: &str) -> Option<String> {
    node.text(&["name", "title", &format!("{kind}_name"), &format!("{kind}Name"), "description"])
}

fn add(
    plan: &mut Foreign,
    unit: &Unit<'_>,
    index: &Index<'_>,
    about: &About<'_>,
    findings: &mut Findings,
) {
    let node = unit.node;
    let title = ["sprint", "phase"].iter().find_map(|kind| title_of(node, kind));
    let title = title.unwrap_or_else(|| unit.id.clone());
    let mut step = DraftStep::prompted(node.at(), &title, prompt(unit, about, &title));
    step.group = unit.around.clone().map(|(_, value)| Located { at: node.at(), value });
    let own = node.list(&DEPENDENCIES).iter().chain(node.list(&CROSS));
    let around = unit.around.iter().flat_map(|(around, _)| around.list(&DEPENDENCIES));
    for reference in own.chain(around) {
        need(&mut step, unit, reference, index, findings);
    }
    let criteria = ["acceptanceCriteria", "acceptance_criteria", "success_criteria"];
    let tasks = node.list(&["tasks"]).iter().filter_map(words_of);
    let criteria = node.list(&criteria).iter().filter_map(words_of);
    let accepted = criteria.map(|text| format!("accepted when: {text}"));
    step.items = tasks.chain(accepted).map(|text| item(&text)).collect();
    for part in node.list(&["subtasks"]).iter().take(STEP_SUBSTEPS_MAX + 1) {
        let Some(title) = words_of(part) else { continue };
        let name = part.text(&["id", "subtaskId", "subtask_id"]).unwrap_or_else(|| title.clone());
        let id = substep_id(&name, &step.substeps);
        let title = Some(label(&title, id.as_str()));
        let items = part.list(&["acceptanceCriteria", "acceptance_criteria"]);
        let items = items.iter().filter_map(words_of).map(|text| item(&text)).collect();
        step.substeps.push(DraftSubstep { at: part.at(), id: Some(id), title, items });
    }
    plan.add(&unit.step, step);
    state_of(plan, &unit.step, node, findings);
}

fn words_of(node: &Node) -> Option<String> {
    match &node.value {
        Value::Table(_) => node.text(&["description", "name", "title", "task", "criterion"]),
        _ => node.words(),
    }
}

fn need(
    step: &mut DraftStep,
    unit: &Unit<'_>,
    reference: &Node,
    index: &Index<'_>,
    findings: &mut Findings,
) {
    let Some(text) = reference.text_or(&["to", "id", "sprintId", "phaseId"]) else { return };
    if matches!(text.to_lowercase().as_str(), "none" | "-" | "n/a" | "") {
        return;
    }
    let at = reference.at();
    match index.find(&text) {
        // A sprint that names its own phase waits for nothing by that.
        Some(Meant::Group(group)) if unit.around.as_ref().is_some_and(|(_, own)| *own == group) => {
        }
        Some(Meant::Group(group)) => step.needs.push(Located { at, value: group.to_string() }),
        Some(Meant::Step(id)) => step.needs.push(Located { at, value: id.to_string() }),
        None => {
            let message = format!("unknown sprint or phase {}", shown(&text));
            findings.add(at, message, "name the id of one in this file");
        }
    }
}

/// `from` depends on `to`, each a phase or a sprint.
fn crossings(plan: &mut Foreign, places: [&Node; 2], index: &Index<'_>, findings: &mut Findings) {
    let listed = places[0].any(&CROSS).or_else(|| places[1].any(&CROSS));
    let mut members: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, step) in plan.draft.steps.iter().enumerate() {
        let group = step.group.as_ref().map(|group| group.value.to_string());
        for name in step.id.iter().map(ToString::to_string).chain(group) {
            members.entry(name).or_default().push(place);
        }
    }
    let mut left = NEEDS_MAX;
    for crossing in listed.and_then(Node::as_list).unwrap_or_default() {
        let (Some(from), Some(to)) = (crossing.text(&["from"]), crossing.text(&["to"])) else {
            let hint = "write {\"from\": \"…\", \"to\": \"…\"}";
            findings.add(crossing.at(), "a dependency needs `from` and `to`", hint);
            continue;
        };
        let at = crossing.at();
        let value = match index.find(&to) {
            Some(Meant::Step(id)) => id.to_string(),
            Some(Meant::Group(group)) => group.to_string(),
            None => {
                let message = format!("unknown sprint or phase {}", shown(&to));
                findings.add(at, message, "name the id of one in this file");
                continue;
            }
        };
        let from = match index.find(&from) {
            Some(Meant::Step(id)) => id.to_string(),
            Some(Meant::Group(group)) => group.to_string(),
            None => {
                let message = format!("unknown sprint or phase {}", shown(&from));
                findings.add(at, message, "name the id of one in this file");
                continue;
            }
        };
        let from = members.get(&from).map_or(&[][..], Vec::as_slice);
        left = left.saturating_sub(from.len());
        if left == 0 {
            let message = format!("more than {NEEDS_MAX} needs follow from these dependencies");
            return findings.add(at, message, "name phases instead of sprints");
        }
        for place in from {
            plan.draft.steps[*place].needs.push(Located { at, value: value.clone() });
        }
    }
}

fn prompt(unit: &Unit<'_>, about: &About<'_>, title: &str) -> String {
    let file = unit.around.as_ref().and_then(|(node, _)| node.text(&["file"]));
    let file = file.or_else(|| about.epic.text(&["overviewFile", "overview_file"]));
    let parts = unit.node.list(&["subtasks"]).iter().filter_map(words_of).collect::<Vec<_>>();
    Prompt::new(title)
        .text("Details", Some(&unit.node.outline(&TOLD)))
        .list("Parts", &parts)
        .text("Part of", unit.about.as_deref())
        .text("Epic", Some(&about.name))
        .about("Described in", file.as_deref())
        .finish()
}

fn state_of(plan: &mut Foreign, id: &StepId, node: &Node, findings: &mut Findings) {
    let Some(status) = node.raw("status") else {
        return plan.place_status(id, node);
    };
    plan.place(id, Part::Whole, status.span.clone(), Style::Sprint);
    let raw = status.words().unwrap_or_default();
    let word: String = raw.to_lowercase().replace(['-', ' '], "_");
    let has = |signs: &[&str]| signs.iter().any(|sign| word.contains(sign));
    let state = match word.trim_matches('_') {
        "" | "pending" | "todo" | "planned" => return,
        _ if has(&["not_started", "❌", "⏳"]) => return,
        _ if has(&["in_progress", "🔄"]) => FoundState::InProgress,
        _ if has(&["completed", "complete", "done", "✅"]) => {
            FoundState::Completed { commit: None }
        }
        _ if has(&["failed", "blocked"]) => FoundState::Failed { reason: raw },
        _ if has(&["skipped", "cancelled", "deferred"]) => FoundState::Skipped { reason: raw },
        _ => {
            let message =
                format!("the status {} is not known: it counts as not started", shown(&raw));
            let hint = "write not_started, in_progress or completed";
            return findings.warn(status.at(), message, hint);
        }
    };
    plan.found(id, state);
}
