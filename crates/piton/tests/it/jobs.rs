//! Several steps at once, each in a worktree of its own: really at the same time, never more than asked
//! for, landed one after the other, and each going on where it was after any kill.

use std::path::PathBuf;

use piton_testkit::runs::{
    agent_step, command_step, completions, data, keepers, landed_files, lay_plan, plan_with,
    refused, step, view, wait_dead,
};
use piton_testkit::{Sandbox, Signal, kill9};

use crate::sandbox;

/// A plan whose steps have worktrees of their own.
fn lay(sandbox: &Sandbox, jobs: u32, steps: &[String]) {
    let lines = format!("isolation = 'step'\njobs = {jobs}");
    lay_plan(sandbox, &plan_with(sandbox, &lines, steps));
}

fn place(sandbox: &Sandbox, id: &str) -> PathBuf {
    let handle = view(sandbox)["handle"].as_str().expect("a handle").to_owned();
    let told = data(sandbox, &["worktree", "path", &handle, id]);
    PathBuf::from(told["path"].as_str().expect("a path"))
}

#[test]
fn steps_run_at_the_same_time_and_land_on_one_branch() {
    let sandbox = sandbox();
    // Each waits for the other two: one after the other they would never end.
    let meet = |own: &str, others: [&str; 2]| {
        let script = format!(
            "touch {{{own}}}; await {{{}}}; await {{{}}}; write {own}.txt {own}",
            others[0], others[1]
        );
        agent_step(&sandbox, own, &script, "")
    };
    let steps = [
        meet("a", ["b", "c"]),
        meet("b", ["a", "c"]),
        meet("c", ["a", "b"]),
        command_step(
            &sandbox,
            "d",
            "test -f a.txt && test -f b.txt && echo d > d.txt",
            "needs = ['a', 'b']",
        ),
    ];
    lay(&sandbox, 3, &steps);
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().success();
    let files = landed_files(&sandbox);
    for file in ["a.txt", "b.txt", "c.txt", "d.txt"] {
        assert!(files.contains(file), "{file} is not in {files}");
    }
    for id in ["a", "b", "c", "d"] {
        assert_eq!(completions(&sandbox)[id], 1);
    }
    assert!(sandbox.git(&["fsck", "--no-dangling"]).is_empty());
    assert_eq!(sandbox.git(&["worktree", "list"]).lines().count(), 1);
}

#[test]
fn never_more_than_asked_for() {
    let sandbox = sandbox();
    let script = |id: &str| format!("touch {{here-{id}}}; await {{go}}; write {id}.txt x");
    let steps: Vec<String> =
        ["a", "b", "c", "d"].map(|id| agent_step(&sandbox, id, &script(id), "")).into();
    lay(&sandbox, 1, &steps);
    let here = || ["a", "b", "c", "d"].map(|id| sandbox.mark(&format!("here-{id}")).exists());
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--jobs", "2"]).spawn();
    sandbox.wait_until("two are at work", || here() == [true, true, false, false]);
    let told = sandbox.piton(&["resume", "--dry-run", "--jobs", "2"]).output().success();
    assert!(told.stdout.contains("wait: at most 2 at once"), "{told}");
    assert_eq!(keepers(&sandbox).len(), 2);
    sandbox.write(sandbox.mark("go"), "");
    run.wait().success();
    assert_eq!(here(), [true; 4]);
}

#[test]
fn every_step_goes_on_in_its_own_tree_after_everything_was_killed() {
    let sandbox = sandbox();
    let script = |id: &str| {
        format!(
            "count {{starts-{id}}}; nth {{starts-{id}}} 1: write half-{id}.txt half; \
             nth {{starts-{id}}} 1: sh git add half-{id}.txt; nth {{starts-{id}}} 1: touch {{here-{id}}}; \
             nth {{starts-{id}}} 1: hang; sh test -f half-{id}.txt; sh pwd > {{where-{id}}}; write {id}.txt x"
        )
    };
    let steps = ["a", "b", "c"].map(|id| agent_step(&sandbox, id, &script(id), ""));
    lay(&sandbox, 3, &steps);
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    for id in ["a", "b", "c"] {
        sandbox.wait_exists(sandbox.mark(&format!("here-{id}")));
    }
    let all = keepers(&sandbox);
    assert_eq!(all.len(), 3, "the kills hit three keepers");
    let places = ["a", "b", "c"].map(|id| place(&sandbox, id));
    run.kill9();
    for keeper in all {
        kill9(keeper);
        wait_dead(keeper);
    }
    sandbox.piton(&["resume"]).output().success();
    for (id, place) in ["a", "b", "c"].iter().zip(places) {
        assert_eq!(sandbox.lines(sandbox.mark(&format!("starts-{id}"))), 2);
        let at = sandbox.read(sandbox.mark(&format!("where-{id}")));
        assert_eq!(PathBuf::from(at.trim()), place, "its path is the same");
        assert_eq!(completions(&sandbox)[*id], 1);
    }
    let files = landed_files(&sandbox);
    for file in ["half-a.txt", "half-b.txt", "half-c.txt"] {
        assert!(files.contains(file), "{file} is not in {files}");
    }
}

#[test]
fn one_interrupt_stops_all_and_one_failure_lets_the_others_finish() {
    let sandbox = sandbox();
    let steps = [
        agent_step(
            &sandbox,
            "a",
            "count {starts-a}; touch {here}; nth {starts-a} 1: hang; touch {again}; await {failed}; \
             write a.txt a",
            "",
        ),
        agent_step(
            &sandbox,
            "b",
            "count {starts-b}; touch {there}; nth {starts-b} 1: hang; await {again}; touch {failed}; exit 3",
            "",
        ),
        command_step(&sandbox, "c", "true", "needs = ['a']"),
    ];
    lay(&sandbox, 2, &steps);
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--grace", "100ms"]).spawn();
    sandbox.wait_exists(sandbox.mark("here"));
    sandbox.wait_exists(sandbox.mark("there"));
    run.signal(Signal::INT);
    run.wait().expect_code(130);
    sandbox.wait_no_processes();
    let out = sandbox.piton(&["resume"]).output().expect_code(1);
    assert!(out.stderr.contains("step b ended with exit 3"), "{out}");
    let view = view(&sandbox);
    assert_eq!(step(&view, "a")["status"], "completed", "what was at work beside it has landed");
    assert_eq!(step(&view, "c")["status"], "completed", "it does not need what failed");
}

#[test]
fn one_worktree_has_room_for_one() {
    let sandbox = sandbox();
    lay_plan(&sandbox, "[plan]\nname = 'test'\n[[step]]\nid = 'a'\nrun = 'true'\n");
    let (status, code, message) =
        refused(&sandbox, &["run", "plan.toml", "--trust", "--jobs", "2"]);
    assert_eq!((status, code.as_str()), (2, "E090"), "{message}");
    sandbox.piton(&["run", "plan.toml", "--trust", "--jobs", "1"]).output().success();
}
