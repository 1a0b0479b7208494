//! Steps claimed from outside, with the real binary: the whole cycle, who gets a step and when, what a
//! holder that lost its claim may still do (nothing), and what piton's variables answer inside an
//! attempt.

mod cycle;
mod giving_back;
mod inside;
mod taking;

use piton_testkit::Sandbox;
use piton_testkit::runs::{
    agent_step, command_step, data, events_named, kept, lay_plan, orphaned, plan, tree,
};
use serde_json::Value;

pub(crate) const PLAN: &str = "\
[plan]
name = 'auth'

[[step]]
id = 'jwt'
title = 'JWT validation'
items = ['signature check', 'expiry check']
substeps = [
  { id = 'validate', title = 'validateToken', items = ['Größe prüfen'] },
  { id = 'refresh', title = 'refreshToken' },
]

[[step]]
id = 'docs'

[[step]]
id = 'routes'
needs = ['jwt']
";

/// A repository with the plan and two worktrees for those who claim.
pub(crate) fn sandbox_of(text: &str) -> Sandbox {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, text);
    for name in ["one", "two"] {
        tree(&sandbox, name);
    }
    sandbox
}

pub(crate) fn sandbox() -> Sandbox {
    sandbox_of(PLAN)
}

#[track_caller]
pub(crate) fn claim(sandbox: &Sandbox, worktree: &str, more: &[&str]) -> Value {
    data(sandbox, &[&["claim", "plan.toml", "--worktree", worktree], more].concat())
}

pub(crate) fn fence(claim: &Value) -> String {
    assert_eq!(claim["claimed"], true, "{claim}");
    claim["fence"].to_string()
}

/// A run with a free step and, behind it, one whose keeper was killed at work.
pub(crate) fn with_a_dead_keeper() -> Sandbox {
    let sandbox = crate::sandbox();
    let steps = [
        command_step(&sandbox, "free", "true", ""),
        agent_step(&sandbox, "dead", "write work.txt half; touch {ready}; hang", ""),
        command_step(&sandbox, "late", "true", "needs = ['dead']"),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    // Nobody runs what somebody outside has.
    let two = tree(&sandbox, "two");
    claim(&sandbox, &two, &["--step", "free"]);
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    orphaned(&sandbox, worker);
    data(&sandbox, &["release", "plan.toml", "free", "--worktree", &two]);
    sandbox
}

/// The bytes that the killed attempt had left.
#[track_caller]
pub(crate) fn assert_kept_of_the_dead(sandbox: &Sandbox) {
    assert_eq!(kept(sandbox, "dead", "work.txt"), "half");
    assert_eq!(events_named(sandbox, "interrupted").len(), 1);
    assert!(sandbox.processes_with_env("PITON_ATTEMPT=").is_empty(), "nothing of it runs");
}
