//! What a repository would make this machine execute. A person trusts exactly this list, by its
//! hash; a prompt is not in it, the agent that gets it is.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::agent::{Agent, PromptBy, built_in};
use crate::ids::{AgentName, Hash};
use crate::plan::{Plan, PlanStep, Work};

/// The agent that a plan means by a name: its own, else one of the configuration's `agents`, else the one
/// that piton knows.
pub fn agent_of<'a>(
    plan: &'a Plan,
    agents: &'a BTreeMap<AgentName, Agent>,
    name: &AgentName,
) -> Option<&'a Agent> {
    plan.agents.get(name).or_else(|| agents.get(name)).or_else(|| built_in(name))
}

/// Every executable string of the plan and of the agents that its steps name, but for `own`: those are
/// the user's. Steps in order, then agents by name. Environments are part of it: `PATH` decides what a
/// command is.
pub fn executables(
    plan: &Plan,
    agents: &BTreeMap<AgentName, Agent>,
    own: &BTreeMap<AgentName, Agent>,
) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    all.extend(plan.setup.iter().map(|command| format!("plan: setup: {command}")));
    // They hand what is no part of the repository, secrets perhaps, to what the plan executes.
    all.extend(plan.copy.iter().map(|path| format!("plan: copy: {path}")));
    all.extend(plan.link.iter().map(|path| format!("plan: link: {path}")));
    all.extend(plan.steps.iter().flat_map(step_executables));
    all.extend(plan.loops.iter().filter_map(|(id, all)| {
        all.until.as_ref().map(|command| format!("loop {id}: until: {command}"))
    }));
    let used: BTreeSet<&AgentName> =
        plan.steps.iter().filter_map(|step| step.work.agent()).collect();
    for name in used {
        let agent = agent_of(plan, agents, name).filter(|agent| own.get(name) != Some(*agent));
        all.extend(agent.into_iter().flat_map(|agent| agent_executables(name, agent)));
    }
    all
}

/// What trust is keyed by. Entries cannot run into each other.
pub fn trust_hash(executables: &[String]) -> Hash {
    Hash::of(json(executables).as_bytes())
}

fn step_executables(step: &PlanStep) -> Vec<String> {
    let id = &step.id;
    let mut all = Vec::new();
    if let Work::Run(command) = &step.work {
        all.push(format!("step {id}: run: {command}"));
    }
    if let Some(command) = &step.verify {
        all.push(format!("step {id}: verify: {command}"));
    }
    if let Some(command) = &step.skip_if {
        all.push(format!("step {id}: skip_if: {command}"));
    }
    all.extend(env_lines(&format!("step {id}"), &step.env));
    all
}

fn agent_executables(name: &AgentName, agent: &Agent) -> Vec<String> {
    let mut all = vec![format!("agent {name}: {}", json(&agent.command))];
    let forms = [("start", &agent.start), ("resume", &agent.resume), ("fork", &agent.fork)];
    for (form, words) in forms.into_iter().filter(|(_, words)| !words.is_empty()) {
        all.push(format!("agent {name}: {form}: {}", json(words)));
    }
    // With `["sh", "-c"]` a prompt becomes a script or not by this alone.
    if agent.prompt != PromptBy::default() {
        all.push(format!("agent {name}: prompt: {}", json(&agent.prompt)));
    }
    all.extend(env_lines(&format!("agent {name}"), &agent.env));
    all
}

fn env_lines(of: &str, env: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    env.iter().map(move |(name, value)| format!("{of}: env: {name}={}", json(value)))
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("strings and lists of them are always JSON")
}
