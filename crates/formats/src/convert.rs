//! A plan as a file of another format. What the format has no place for is left out; piton's own keeps
//! everything.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::SignedDuration;
use piton_core::plan::{
    Isolation, OnFailure, OnInterrupt, OnLimit, Plan, PlanFormat, PlanStep, Work,
};
use serde_json::{Map, Value, json};

/// The text of a file; `None` where piton does not write the format.
pub fn converted(plan: &Plan, to: PlanFormat) -> Option<String> {
    match to {
        PlanFormat::Toml => toml::to_string_pretty(&native(plan)).ok(),
        PlanFormat::Json => {
            serde_json::to_string_pretty(&native(plan)).ok().map(|text| text + "\n")
        }
        PlanFormat::Yaml => {
            let mut text = String::new();
            yaml(&native(plan), 0, &mut text);
            Some(text)
        }
        PlanFormat::Markdown => Some(markdown(plan)),
        PlanFormat::Tug => Some(tug(plan)),
        PlanFormat::AutoClaude => {
            serde_json::to_string_pretty(&auto_claude(plan)).ok().map(|text| text + "\n")
        }
        PlanFormat::Epic | PlanFormat::Prodigy | PlanFormat::Specification => None,
    }
}

/// What says nothing is left out.
fn without_empty(value: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(table) => table.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(table) => {
            let kept = table.into_iter().filter(|(_, value)| !is_empty(value));
            Value::Object(kept.collect())
        }
        other => other,
    }
}

fn native(plan: &Plan) -> Value {
    let head = without_empty(json!({
        "name": plan.name,
        "base": plan.base,
        "isolation": (plan.isolation == Isolation::Step).then_some("step"),
        "jobs": plan.jobs,
        "on_failure": (plan.on_failure == OnFailure::Stop).then_some("stop"),
        "setup": plan.setup,
        "copy": plan.copy,
        "link": plan.link,
        "plan_from": plan.planner().map(|from| json!({ "step": from.step, "file": from.file })),
    }));
    let groups: Map<String, Value> = plan
        .groups
        .iter()
        .map(|(id, group)| (id.to_string(), json!({ "title": group.title })))
        .collect();
    let steps: Vec<Value> = plan.steps.iter().map(native_step).collect();
    without_empty(json!({
        "plan": head,
        "inputs": plan.inputs,
        "group": groups,
        "agent": plan.agents,
        "locks": plan.locks,
        "loop": plan.loops,
        "step": steps,
    }))
}

fn native_step(step: &PlanStep) -> Value {
    let (run, agent) = match &step.work {
        Work::Run(script) => (Some(script), None),
        Work::Agent { agent, .. } => (None, Some(agent)),
        Work::ByHand | Work::Told(_) => (None, None),
    };
    let is_started = !step.work.is_by_hand();
    let substeps = step.substeps.iter().map(|substep| {
        without_empty(json!({ "id": substep.id, "title": substep.title, "items": substep.items }))
    });
    without_empty(json!({
        "id": step.id,
        "title": step.title,
        "kind": step.kind,
        "group": step.group,
        "needs": needs(step),
        "run": run,
        "agent": agent,
        "prompt": step.work.prompt(),
        "verify": step.verify,
        "skip_if": step.skip_if.as_ref().filter(|_| is_started),
        "timeout": step.timeout.filter(|_| is_started).map(duration),
        "retries": (step.retries > 0).then_some(step.retries),
        "env": if is_started { json!(step.env) } else { Value::Null },
        "items": step.items,
        "substeps": substeps.collect::<Vec<_>>(),
        "locks": step.locks,
        "outputs": step.outputs,
        "require": step.require,
        "on_interrupt": step.on_interrupt.filter(|_| is_started).map(OnInterrupt::as_str),
        "on_limit": Some(step.on_limit).filter(|way| *way != OnLimit::default()).map(OnLimit::as_str),
    }))
}

fn needs(step: &PlanStep) -> Vec<String> {
    step.needs.iter().map(ToString::to_string).collect()
}

fn duration(time: Duration) -> String {
    format!("{:#}", SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX))
}

/// Blocks for tables and lists, JSON's quotes for texts.
fn yaml(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let _ = write!(text, "{indent}{key}:");
                nested(value, depth + 1, text);
            }
        }
        Value::Array(list) => {
            for value in list {
                let _ = write!(text, "{indent}-");
                nested(value, depth + 1, text);
            }
        }
        scalar => {
            let _ = writeln!(text, "{indent}{scalar}");
        }
    }
}

fn nested(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::Object(table) if !table.is_empty() => {
            text.push('\n');
            yaml(value, depth, text);
        }
        Value::Array(list) if !list.is_empty() => {
            text.push('\n');
            yaml(value, depth, text);
        }
        scalar => {
            let _ = writeln!(text, " {scalar}");
        }
    }
}

fn markdown(plan: &Plan) -> String {
    let mut text = format!("# {}\n", plan.name);
    let mut group = None;
    for step in plan.steps.iter() {
        if step.group.is_some() && step.group != group {
            group.clone_from(&step.group);
            let title = group.as_ref().and_then(|id| plan.groups.get(id));
            let _ = write!(text, "\n## {}\n", title.map_or("", |group| &group.title));
        }
        let _ = write!(text, "\n- [ ] {}\n", step.title);
        for item in &step.items {
            let _ = writeln!(text, "  - [ ] {item}");
        }
        for substep in &step.substeps {
            let _ = writeln!(text, "  - [ ] {}", substep.title);
            for item in &substep.items {
                let _ = writeln!(text, "    - [ ] {item}");
            }
        }
    }
    text
}

/// Each step with what it needs, groups spelled out.
fn tug(plan: &Plan) -> String {
    let anchor = |id: &str| id.replace('_', "-");
    let mut text =
        format!("## {} {{#plan}}\n\n### Execution Steps {{#execution-steps}}\n", plan.name);
    for (index, step) in plan.steps.iter().enumerate() {
        let number = index + 1;
        let id = anchor(step.id.as_str());
        let _ = write!(text, "\n#### Step {number}: {} {{#{id}}}\n", step.title);
        let needs = plan.needs_of(index).into_iter();
        let needs: Vec<String> =
            needs.map(|need| format!("#{}", anchor(plan.steps[need].id.as_str()))).collect();
        if !needs.is_empty() {
            let _ = write!(text, "\n**Depends on:** {}\n", needs.join(", "));
        }
        boxes(&step.items, &mut text);
        for (place, substep) in step.substeps.iter().enumerate() {
            let name = format!("{id}-{}", anchor(substep.id.as_str()));
            let (part, title) = (place + 1, &substep.title);
            let _ = write!(text, "\n##### Step {number}.{part}: {title} {{#{name}}}\n");
            boxes(&substep.items, &mut text);
        }
    }
    text
}

fn boxes(items: &[String], text: &mut String) {
    if !items.is_empty() {
        text.push_str("\n**Tasks:**\n");
        for item in items {
            let _ = writeln!(text, "- [ ] {item}");
        }
    }
}

/// A phase for each group in a row; what a step needs of another phase, its phase needs.
fn auto_claude(plan: &Plan) -> Value {
    let mut phases: Vec<(Option<String>, Vec<usize>)> = Vec::new();
    for (index, step) in plan.steps.iter().enumerate() {
        let group = step.group.as_ref().map(ToString::to_string);
        match phases.last_mut() {
            Some((last, steps)) if *last == group => steps.push(index),
            _ => phases.push((group, vec![index])),
        }
    }
    let name = |number: usize, group: &Option<String>| match group {
        Some(group) => format!("phase-{}-{group}", number + 1),
        None => format!("phase-{}", number + 1),
    };
    let place = |step: usize| phases.iter().position(|(_, steps)| steps.contains(&step));
    let rows = phases.iter().enumerate().map(|(number, (group, steps))| {
        let mut needed: Vec<usize> =
            steps.iter().flat_map(|step| plan.needs_of(*step)).filter_map(place).collect();
        needed.retain(|other| *other != number);
        needed.sort_unstable();
        needed.dedup();
        let title = group.as_ref().and_then(|id| plan.groups.iter().find(|(key, _)| key.as_str() == id));
        let subtasks = steps.iter().map(|step| {
            let step = &plan.steps[*step];
            let verification = step.verify.as_ref().map(|run| json!({ "type": "command", "command": run }));
            without_empty(json!({
                "id": step.id, "title": step.title, "description": step.work.prompt(),
                "status": "pending", "verification": verification,
            }))
        });
        json!({
            "id": name(number, group),
            "phase": number + 1,
            "name": title.map_or("Steps", |(_, group)| &group.title),
            "depends_on": needed.iter().map(|other| name(*other, &phases[*other].0)).collect::<Vec<_>>(),
            "parallel_safe": false,
            "subtasks": subtasks.collect::<Vec<_>>(),
        })
    });
    json!({ "feature": plan.name, "workflow_type": "feature", "phases": rows.collect::<Vec<_>>(),
            "status": "backlog", "planStatus": "pending" })
}
