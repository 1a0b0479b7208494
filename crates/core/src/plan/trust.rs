//! What a repository would make this machine execute. A person trusts exactly this list, by its
//! hash; a prompt is not in it, the agent that gets it is.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ids::{AgentName, Hash};
use crate::plan::{Agent, Plan, PlanStep, PromptBy, Work};

/// Every executable string of the plan and of the `agents` that come with the repository: steps in
/// order, then agents by name. Environments are part of it: `PATH` decides what a command is.
pub fn executables(plan: &Plan, agents: &BTreeMap<AgentName, Agent>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    all.extend(plan.setup.iter().map(|command| format!("plan: setup: {command}")));
    // They hand what is no part of the repository, secrets perhaps, to what the plan executes.
    all.extend(plan.copy.iter().map(|path| format!("plan: copy: {path}")));
    all.extend(plan.link.iter().map(|path| format!("plan: link: {path}")));
    all.extend(plan.steps.iter().flat_map(step_executables));
    // The plan's own definition of an agent wins, so that the other one is never started.
    let effective: BTreeMap<_, _> = agents.iter().chain(&plan.agents).collect();
    all.extend(effective.into_iter().flat_map(|(name, agent)| agent_executables(name, agent)));
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
    all.extend(env_lines(&format!("step {id}"), &step.env));
    all
}

fn agent_executables(name: &AgentName, agent: &Agent) -> Vec<String> {
    let mut all = vec![format!("agent {name}: {}", json(&agent.command))];
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
