//! `implementation_plan.json` of Auto-Claude, all eras, and the `feature_list.json` before it. Phases are
//! barriers; the items of one follow each other unless it is `parallel_safe`. What the items say wins over
//! what the file says of itself.

use std::collections::BTreeMap;

use piton_core::event::FoundState;
use piton_core::ids::{GroupId, ItemRef, StepId};
use piton_core::limits::JOBS_MAX;
use piton_core::plan::{Isolation, shown};

use crate::draft::{DraftStep, Foreign, Part, Prompt, Style, context_of, item};
use crate::lines::stem;
use crate::source::Findings;
use crate::value::{Node, Value};
use crate::{Hint, Located};

const ITEMS: [&str; 2] = ["subtasks", "chunks"];

/// Whether a file is one of these, by its keys.
pub(crate) fn is_plan(root: &Node) -> bool {
    match &root.value {
        Value::List(features) => {
            features.first().is_some_and(|first| first.get("passes").is_some())
        }
        Value::Table(_) => {
            root.any(&ITEMS).is_some()
                || root.get("phases").is_some_and(|node| node.as_list().is_some())
        }
        _ => false,
    }
}

pub(crate) fn read(root: &Node, hint: &Hint<'_>, findings: &mut Findings) -> Foreign {
    let mut plan = Foreign::named(&name(root, hint.path));
    if let Some(features) = root.as_list() {
        features_of(&mut plan, features);
        return plan;
    }
    let phases = Phases::new(&mut plan, root, findings);
    for phase in &phases.all {
        phase_of(&mut plan, phase, &phases, root, findings);
    }
    workers(&mut plan, root, &phases);
    signoff(&mut plan, root, findings);
    contradiction(&plan, root, findings);
    places_overall(&mut plan, root);
    plan
}

fn name(root: &Node, path: &str) -> String {
    let own = root.text(&["feature", "title", "spec_name", "spec_id"]);
    // Every one of these files has the same name; its folder is the specification's.
    let folder = || {
        let folder = std::path::Path::new(path).parent()?.file_name()?.to_str()?;
        Some(folder.to_owned())
    };
    own.or_else(folder).unwrap_or_else(|| stem(path).to_owned())
}

/// The first era: features in a row, `passes` their only state.
fn features_of(plan: &mut Foreign, features: &[Node]) {
    for (index, feature) in features.iter().enumerate() {
        let title = feature.text(&["description", "title"]).unwrap_or_default();
        let id = plan.name(&format!("feature-{}", index + 1));
        let prompt =
            Prompt::new(&title).text("What the file says", Some(&feature.outline(&["passes"])));
        let mut step = DraftStep::prompted(feature.at(), &title, prompt.finish());
        step.items = feature.texts(&["steps"]).iter().map(|text| item(text)).collect();
        let count = u32::try_from(step.items.len()).unwrap_or(u32::MAX);
        plan.add(&id, step);
        if let Some(passes) = feature.get("passes") {
            plan.place(&id, Part::Whole, passes.span.clone(), Style::Passes);
            if passes.as_boolean() == Some(true) {
                let found = plan.found(&id, FoundState::Completed { commit: None });
                found.items = (1..=count).map(|number| ItemRef::new(None, number)).collect();
            }
        }
    }
}

/// A phase with what of it is found out before its items are read.
struct Phase<'a> {
    node: &'a Node,
    /// As others name it.
    id: String,
    group: Option<GroupId>,
    items: &'a [Node],
    /// The same items under the other key, which some writers keep.
    copies: &'a [Node],
}

struct Phases<'a> {
    all: Vec<Phase<'a>>,
    by_id: BTreeMap<String, usize>,
}

impl<'a> Phases<'a> {
    fn new(plan: &mut Foreign, root: &'a Node, findings: &mut Findings) -> Phases<'a> {
        let nodes = root.list(&["phases"]);
        let mut all: Vec<Phase<'a>> = Vec::new();
        let mut by_id = BTreeMap::new();
        if nodes.is_empty() {
            let (items, copies) = items_of(root);
            all.push(Phase { node: root, id: "1".to_owned(), group: None, items, copies });
        }
        for (index, node) in nodes.iter().enumerate() {
            let written = node.text(&["id", "phase_id", "phase"]);
            let id = written.unwrap_or_else(|| (index + 1).to_string());
            let title = node.text(&["name", "title"]).unwrap_or_else(|| id.clone());
            let (items, copies) = items_of(node);
            let group_name =
                if id.starts_with("phase") { id.clone() } else { format!("phase-{id}") };
            let group = (!items.is_empty()).then(|| plan.group(&group_name, &title));
            if by_id.insert(id.clone(), index).is_some() {
                let message = format!("phase {} is defined twice", shown(&id));
                findings.add(node.at(), message, "give this one another id");
            }
            // Eras name phases by number and by id; some files mix them.
            if let Some(number) = node.text(&["phase"]) {
                by_id.entry(number).or_insert(index);
            }
            all.push(Phase { node, id, group, items, copies });
        }
        Phases { all, by_id }
    }
}

/// The items of a phase, and their copies. The first key that has any wins.
fn items_of(node: &Node) -> (&[Node], &[Node]) {
    let list = |key: &str| node.get(key).and_then(Node::as_list).unwrap_or_default();
    let [new, old] = ITEMS.map(list);
    if new.is_empty() { (old, new) } else { (new, old) }
}

fn phase_of(
    plan: &mut Foreign,
    phase: &Phase<'_>,
    phases: &Phases<'_>,
    root: &Node,
    findings: &mut Findings,
) {
    let barriers = barriers(phase, phases, findings);
    let is_parallel = phase.node.get("parallel_safe").and_then(Node::as_boolean) == Some(true);
    let mut before: Option<StepId> = None;
    let about = InCommon::new(phase, root);
    for (index, node) in phase.items.iter().enumerate() {
        if plan.is_full() {
            return;
        }
        let written = node.text(&["id", "subtask_id", "chunk_id"]);
        let name = written.unwrap_or_else(|| format!("subtask-{}-{}", phase.id, index + 1));
        if plan.step_of(&name).is_some() {
            let message = format!("the id {} is used twice", shown(&name));
            findings.warn(node.at(), message, "the second one gets a number behind it");
        }
        let id = plan.name(&name);
        let title = node.text(&["title", "description"]).unwrap_or_else(|| name.clone());
        let prompt = prompt(node, &about, &title);
        let mut step = DraftStep::prompted(node.at(), &title, prompt);
        step.group = phase.group.clone().map(|value| Located { at: node.at(), value });
        step.verify = command(node);
        match before.as_ref().filter(|_| !is_parallel) {
            Some(before) => step.needs.push(Located { at: node.at(), value: before.to_string() }),
            None => step.needs.extend(barriers.iter().cloned()),
        }
        plan.add(&id, step);
        state_of(plan, &id, node, findings);
        if let Some(copy) =
            phase.copies.get(index).filter(|_| phase.copies.len() == phase.items.len())
        {
            place(plan, &id, copy);
        }
        before = Some(id);
    }
}

/// The groups that a phase waits for. One without items is complete.
fn barriers(
    phase: &Phase<'_>,
    phases: &Phases<'_>,
    findings: &mut Findings,
) -> Vec<Located<String>> {
    let mut barriers = Vec::new();
    for need in phase.node.list(&["depends_on"]) {
        let Some(id) = need.words() else { continue };
        match phases.by_id.get(&id).map(|index| &phases.all[*index]) {
            Some(Phase { group: Some(group), .. }) => {
                barriers.push(Located { at: need.at(), value: group.to_string() });
            }
            Some(_) => {}
            None => {
                let message = format!("unknown phase {}", shown(&id));
                findings.add(need.at(), message, "name the id of a phase of this file");
            }
        }
    }
    barriers
}

/// What the prompts of a phase have in common.
struct InCommon {
    phase: Option<String>,
    feature: Option<String>,
    spec: Option<String>,
}

impl InCommon {
    fn new(phase: &Phase<'_>, root: &Node) -> InCommon {
        let text = |keys: &[&str]| root.text(keys).map(|text| context_of(&text).into_owned());
        let name = || phase.node.text(&["name", "title"]).unwrap_or_else(|| phase.id.clone());
        let described = || match phase.node.text(&["description"]) {
            Some(description) => format!("{}. {description}", name()),
            None => name(),
        };
        InCommon {
            phase: phase.group.is_some().then(|| context_of(&described()).into_owned()),
            feature: text(&["feature", "title"]),
            spec: text(&["spec_file"]),
        }
    }
}

/// All that the file knows about an item.
fn prompt(node: &Node, about: &InCommon, title: &str) -> String {
    let known = ["id", "subtask_id", "title", "description", "status", "verification", "notes"];
    let verification = node.get("verification").map(|check| check.outline(&[]));
    let mut rest = known.to_vec();
    rest.extend(["updated_at", "started_at", "completed_at", "session_id"]);
    Prompt::new(title)
        .text("Description", node.text(&["description"]).filter(|text| text != title).as_deref())
        .text("Details", Some(&node.outline(&rest)))
        .text("Notes", node.text(&["notes"]).as_deref())
        .text("Verification", verification.as_deref())
        .text("Phase", about.phase.as_deref())
        .text("Feature", about.feature.as_deref())
        .text("Specification", about.spec.as_deref())
        .finish()
}

/// Only what is declared a command is one: elsewhere the same key holds prose.
fn command(node: &Node) -> Option<String> {
    let check = node.get("verification")?;
    (check.text(&["type"]).as_deref() == Some("command"))
        .then(|| check.text(&["command", "run"]))?
}

fn place(plan: &mut Foreign, id: &StepId, node: &Node) {
    match node.raw("status") {
        Some(status) => {
            plan.place(id, Part::Whole, status.span.clone(), Style::Status);
            for key in ["started_at", "completed_at", "updated_at"] {
                let end = status.span.end;
                let (span, style) = match node.raw(key) {
                    Some(time) => (time.span.clone(), Style::Time(key)),
                    None => (end..end, Style::NoTime(key)),
                };
                plan.place(id, Part::Whole, span, style);
            }
        }
        None => plan.place_status(id, node),
    }
}

/// What the file says of itself is brought along with its items.
fn places_overall(plan: &mut Foreign, root: &Node) {
    for key in ["status", "planStatus"] {
        if let Some(node) = root.get(key) {
            plan.place_overall(node.span.clone(), Style::Overall(key));
        }
    }
    for key in ["updated_at", "last_updated"] {
        if let Some(node) = root.get(key) {
            plan.place_overall(node.span.clone(), Style::Time(key));
        }
    }
}

fn state_of(plan: &mut Foreign, id: &StepId, node: &Node, findings: &mut Findings) {
    place(plan, id, node);
    let Some(status) = node.text(&["status"]) else { return };
    let reason = node.text(&["last_error", "actual_output", "notes"]);
    let why = |word: &str| reason.clone().map_or(word.to_owned(), |why| format!("{word}: {why}"));
    let state = match status.to_ascii_lowercase().replace(['-', ' '], "_").as_str() {
        "pending" | "not_started" | "todo" | "to_do" | "backlog" => return,
        "in_progress" | "inprogress" | "working" => FoundState::InProgress,
        "completed" | "done" | "complete" | "completed_successfully" => {
            FoundState::Completed { commit: None }
        }
        "failed" => FoundState::Failed { reason: why("failed") },
        "blocked" | "stuck" => FoundState::Failed { reason: why("stuck") },
        _ => {
            let at = node.get("status").map_or(node.at(), Node::at);
            let message =
                format!("the status {} is not known: it counts as pending", shown(&status));
            findings.warn(at, message, "write pending, in_progress, completed, blocked or failed");
            return;
        }
    };
    plan.found(id, state);
}

/// A phase whose items may run side by side wants a worktree for each.
fn workers(plan: &mut Foreign, root: &Node, phases: &Phases<'_>) {
    let is_parallel = |phase: &Phase<'_>| {
        phase.items.len() > 1
            && phase.node.get("parallel_safe").and_then(Node::as_boolean) == Some(true)
    };
    if !phases.all.iter().any(is_parallel) {
        return;
    }
    plan.draft.isolation = Isolation::Step;
    let parallelism = root.get("summary").and_then(|summary| summary.get("parallelism"));
    let workers = parallelism.and_then(|node| node.text(&["recommended_workers"]));
    let workers = workers.and_then(|text| text.parse().ok());
    plan.draft.jobs = workers.filter(|jobs| (1..=JOBS_MAX).contains(jobs));
}

fn signoff(plan: &mut Foreign, root: &Node, findings: &mut Findings) {
    let Some(signoff) = root.get("qa_signoff") else { return };
    if signoff.text(&["status"]).as_deref() == Some("rejected") {
        plan.questions += 1;
        let message = "the review rejected this work: a person has to say what becomes of it";
        findings.warn(signoff.at(), message, "see `issues_found` there");
        let is_done = |id: &StepId| {
            plan.found.iter().any(|found| found.step.step == *id && found.state.is_done())
        };
        let open =
            plan.draft.steps.iter().filter_map(|step| step.id.clone()).find(|id| !is_done(id));
        if let Some(found) = open.and_then(|id| plan.open_found(&id)) {
            let issues =
                signoff.get("issues_found").map_or(String::new(), |node| node.outline(&[]));
            let text = "The review rejected the work on this plan. What becomes of it?";
            found.question = Some(format!("{text}\n{issues}").trim_end().to_owned());
        }
    }
}

/// What the file says of itself against what its items say.
fn contradiction(plan: &Foreign, root: &Node, findings: &mut Findings) {
    let done =
        |found: &&piton_core::event::Found| matches!(found.state, FoundState::Completed { .. });
    let (done, all) = (plan.found.iter().filter(done).count(), plan.draft.steps.len());
    for key in ["status", "planStatus"] {
        let Some(node) = root.get(key) else { continue };
        let word = node.words().unwrap_or_default();
        let says_done = matches!(
            word.as_str(),
            "done"
                | "completed"
                | "complete"
                | "qa_approved"
                | "pr_created"
                | "human_review"
                | "ai_review"
        );
        let says_open =
            matches!(word.as_str(), "backlog" | "pending" | "queue" | "queued" | "planning");
        if (says_done && done < all) || (says_open && done > 0) {
            let message =
                format!("`{key}` is {}, but {done} of {all} items are completed", shown(&word));
            findings.warn(node.at(), message, "the items are followed");
        }
    }
}
