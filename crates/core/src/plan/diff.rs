//! What changed between two plans, in lines for people. Two plans with the same hash have no
//! differences, and the other way round.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use jiff::SignedDuration;

use crate::agent::Agent;
use crate::plan::{
    Group, Isolation, OnInterrupt, Plan, PlanLoop, PlanStep, PlanSubstep, Work, shown,
};

/// One line for each change, such as `step jwt: verify changed`.
pub fn differences(old: &Plan, new: &Plan) -> Vec<String> {
    let mut lines = Lines { of: "plan".to_owned(), lines: Vec::new() };
    lines.values("name", Some(&old.name), Some(&new.name));
    lines.values("base", old.base.as_ref(), new.base.as_ref());
    lines.values("isolation", Some(isolation(old)), Some(isolation(new)));
    lines.values("jobs", old.jobs, new.jobs);
    let on_failure = |plan: &Plan| Some(plan.on_failure.as_str());
    lines.values("on_failure", on_failure(old), on_failure(new));
    lines.texts("setup", &old.setup, &new.setup);
    lines.texts("plan_from", &old.plan_from, &new.plan_from);
    lines.texts("copy", &old.copy, &new.copy);
    lines.texts("link", &old.link, &new.link);
    lines.tables("input", (&old.inputs, &new.inputs), |lines, old, new| {
        lines.texts("value", old, new);
    });
    lines.tables("group", (&old.groups, &new.groups), group);
    lines.tables("agent", (&old.agents, &new.agents), agent);
    lines.tables("lock", (&old.locks, &new.locks), |lines, old, new| {
        if old != new {
            lines.say(format_args!("{old} → {new}"));
        }
    });
    lines.tables("loop", (&old.loops, &new.loops), compare_loops);
    steps(old, new, &mut lines);
    lines.lines
}

/// The lines so far, and what the next ones are about.
struct Lines {
    of: String,
    lines: Vec<String>,
}

impl Lines {
    fn say(&mut self, what: impl Display) {
        self.lines.push(format!("{}: {what}", self.of));
    }

    /// Values short enough to be shown.
    fn values<T: PartialEq + Display>(&mut self, key: &str, old: Option<T>, new: Option<T>) {
        if old != new {
            let shown = |value: Option<T>| value.map_or("none".to_owned(), |v| v.to_string());
            self.say(format_args!("{key} {} → {}", shown(old), shown(new)));
        }
    }

    /// Values that may be long.
    fn texts<T: PartialEq>(&mut self, key: &str, old: T, new: T) {
        if old != new {
            self.say(format_args!("{key} changed"));
        }
    }

    fn tables<K: Ord + Display, V>(
        &mut self,
        kind: &str,
        (old, new): (&BTreeMap<K, V>, &BTreeMap<K, V>),
        compare: impl Fn(&mut Lines, &V, &V),
    ) {
        for (key, value) in new {
            self.of = format!("{kind} {key}");
            match old.get(key) {
                Some(before) => compare(self, before, value),
                None => self.say("added"),
            }
        }
        for key in old.keys().filter(|key| !new.contains_key(key)) {
            self.of = format!("{kind} {key}");
            self.say("removed");
        }
    }
}

fn group(lines: &mut Lines, old: &Group, new: &Group) {
    lines.texts("title", &old.title, &new.title);
}

fn agent(lines: &mut Lines, old: &Agent, new: &Agent) {
    lines.texts("command", &old.command, &new.command);
    lines.texts("start", &old.start, &new.start);
    lines.texts("resume", &old.resume, &new.resume);
    lines.texts("fork", &old.fork, &new.fork);
    lines.values("prompt", Some(old.prompt.as_str()), Some(new.prompt.as_str()));
    lines.values("dialect", Some(old.dialect.as_str()), Some(new.dialect.as_str()));
    lines.texts("env", &old.env, &new.env);
}

fn compare_loops(lines: &mut Lines, old: &PlanLoop, new: &PlanLoop) {
    lines.texts("steps", &old.steps, &new.steps);
    lines.values("max", Some(old.max), Some(new.max));
    lines.texts("until", &old.until, &new.until);
    lines.values("stale_limit", old.stale_limit, new.stale_limit);
    lines.values("until_items", Some(old.until_items), Some(new.until_items));
}

fn isolation(plan: &Plan) -> &'static str {
    match plan.isolation {
        Isolation::Run => "run",
        Isolation::Step => "step",
    }
}

/// In the order of the new plan; removed ones last.
fn steps(old: &Plan, new: &Plan, lines: &mut Lines) {
    let places = |plan: &Plan| -> BTreeMap<_, _> {
        plan.steps.iter().enumerate().map(|(place, step)| (step.id.clone(), place)).collect()
    };
    let (old_places, new_places) = (places(old), places(new));
    let mut common = Vec::new();
    for step in new.steps.iter() {
        lines.of = format!("step {}", step.id);
        match old_places.get(&step.id) {
            Some(place) => {
                common.push(*place);
                compare_steps(lines, &old.steps[*place], step);
            }
            None => lines.say("added"),
        }
    }
    for step in old.steps.iter().filter(|step| !new_places.contains_key(&step.id)) {
        lines.of = format!("step {}", step.id);
        lines.say("removed");
    }
    if !common.is_sorted() {
        lines.of = "plan".to_owned();
        lines.say("order of steps changed");
    }
}

fn compare_steps(lines: &mut Lines, old: &PlanStep, new: &PlanStep) {
    lines.texts("title", &old.title, &new.title);
    lines.values("kind", old.kind.as_ref(), new.kind.as_ref());
    lines.values("group", old.group.as_ref(), new.group.as_ref());
    lines.texts("needs", &old.needs, &new.needs);
    match (&old.work, &new.work) {
        (Work::Run(before), Work::Run(after)) => lines.texts("run", before, after),
        (Work::Agent { agent: a, prompt: p }, Work::Agent { agent: b, prompt: q }) => {
            lines.values("agent", Some(a), Some(b));
            lines.texts("prompt", p, q);
        }
        (Work::Run(_), Work::Agent { .. }) => lines.say("run → prompt"),
        (Work::Agent { .. }, Work::Run(_)) => lines.say("prompt → run"),
        (Work::ByHand, Work::ByHand) => {}
        (Work::Told(before), Work::Told(after)) => lines.texts("prompt", before, after),
        (Work::ByHand | Work::Told(_), Work::ByHand | Work::Told(_)) => {
            lines.say(if new.work == Work::ByHand { "prompt removed" } else { "prompt added" });
        }
        (Work::ByHand | Work::Told(_), _) => lines.say("can be started now"),
        (_, Work::ByHand | Work::Told(_)) => lines.say("has nothing to start any more"),
    }
    lines.texts("verify", &old.verify, &new.verify);
    lines.texts("skip_if", &old.skip_if, &new.skip_if);
    lines.values("timeout", old.timeout.map(friendly), new.timeout.map(friendly));
    lines.values("retries", Some(old.retries), Some(new.retries));
    lines.texts("env", &old.env, &new.env);
    lines.texts("outputs", &old.outputs, &new.outputs);
    lines.texts("require", &old.require, &new.require);
    let word = |step: &PlanStep| step.on_interrupt.map(OnInterrupt::as_str);
    lines.values("on_interrupt", word(old), word(new));
    let word = |step: &PlanStep| Some(step.on_limit.as_str());
    lines.values("on_limit", word(old), word(new));
    for lock in new.locks.difference(&old.locks) {
        lines.say(format_args!("lock {lock} added"));
    }
    for lock in old.locks.difference(&new.locks) {
        lines.say(format_args!("lock {lock} removed"));
    }
    items(lines, &old.items, &new.items);
    substeps(lines, &old.substeps, &new.substeps);
}

/// By number, since that is an item's name; what the lists share at their ends is the same still.
fn items(lines: &mut Lines, old: &[String], new: &[String]) {
    let head = old.iter().zip(new).take_while(|(before, after)| before == after).count();
    let (old, new) = (&old[head..], &new[head..]);
    let ends = old.iter().rev().zip(new.iter().rev());
    let tail = ends.take_while(|(before, after)| before == after).count();
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    for place in 0..old.len().max(new.len()) {
        let number = head + place + 1;
        let (change, text) = match (old.get(place), new.get(place)) {
            (Some(before), Some(after)) if before != after => ("changed", after),
            (None, Some(after)) => ("added", after),
            (Some(before), None) => ("removed", before),
            _ => continue,
        };
        lines.say(format_args!("item {number} {change}: {}", shown(text)));
    }
}

/// In the order of the new step; removed ones last.
fn substeps(lines: &mut Lines, old: &[PlanSubstep], new: &[PlanSubstep]) {
    let place_in = |all: &[PlanSubstep], substep: &PlanSubstep| {
        all.iter().position(|candidate| candidate.id == substep.id)
    };
    let mut common = Vec::new();
    for substep in new {
        match place_in(old, substep) {
            Some(place) => {
                common.push(place);
                compare_substeps(lines, &old[place], substep);
            }
            None => lines.say(format_args!("substep {} added", substep.id)),
        }
    }
    for substep in old.iter().filter(|substep| place_in(new, substep).is_none()) {
        lines.say(format_args!("substep {} removed", substep.id));
    }
    if !common.is_sorted() {
        lines.say("order of substeps changed");
    }
}

fn compare_substeps(lines: &mut Lines, old: &PlanSubstep, new: &PlanSubstep) {
    let within = format!("{}: substep {}", lines.of, new.id);
    let step = std::mem::replace(&mut lines.of, within);
    lines.texts("title", &old.title, &new.title);
    items(lines, &old.items, &new.items);
    lines.of = step;
}

/// A duration as it would be written in a plan.
fn friendly(duration: Duration) -> String {
    format!("{:#}", SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}
