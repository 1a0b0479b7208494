//! A planner with the real binary: the file that a step produces becomes the rest of the plan, whatever is
//! killed meanwhile; a bad one is produced again, a good one that is there is not.

use std::sync::OnceLock;

use piton_testkit::runs::{
    agent_step, command_step, completions, data, events_named, lay_plan, plan_with, refused, step,
    view,
};
use piton_testkit::{Output, Sandbox, kill9};

const PLANNED_FROM: &str = "discovery,requirements,complexity,context,spec";

/// The example, trusted as it is, with everything done that comes before the planning.
fn before_planning() -> Sandbox {
    let sandbox = crate::sandbox();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/planner/plan.toml");
    let plan = std::fs::read_to_string(root).expect("the example");
    sandbox.write("planner.toml", &plan);
    sandbox.commit("the plan");
    data(&sandbox, &["open", "planner.toml"]);
    let run = ["resume", "--trust", "--yes", "--steps", PLANNED_FROM];
    sandbox.piton(&run).output();
    assert_eq!(completions(&sandbox).len(), 5, "{:#}", view(&sandbox));
    sandbox
}

fn resume(sandbox: &Sandbox) -> Output {
    sandbox.piton(&["resume", "--trust", "--yes"]).output()
}

/// Goes on to the end; new commands are trusted on the way.
#[track_caller]
fn finish(sandbox: &Sandbox) {
    let out = resume(sandbox);
    if out.code == Some(77) {
        resume(sandbox).success();
    } else {
        out.success();
    }
}

fn final_tree(sandbox: &Sandbox) -> String {
    let branch = view(sandbox)["branch"].as_str().expect("a branch").to_owned();
    sandbox.tree_of(&branch)
}

/// The final tree of a run that was not disturbed.
fn undisturbed() -> &'static str {
    static TREE: OnceLock<String> = OnceLock::new();
    TREE.get_or_init(|| {
        let sandbox = before_planning();
        finish(&sandbox);
        final_tree(&sandbox)
    })
}

/// Kills worker and keeper there, and goes on.
#[track_caller]
fn killed_at(sandbox: &Sandbox, point: &str) {
    let held = sandbox.crash_point(point, 1);
    let worker = sandbox.piton(&["resume", "--trust", "--yes"]).crash_at(&held).spawn();
    let hit = held.wait_hit();
    drop(worker.kill9());
    kill9(hit);
    finish(sandbox);
    assert_eq!(final_tree(sandbox), undisturbed(), "{point}");
    assert_eq!(events_named(sandbox, "plan_accepted").len(), 1, "{point}");
    let completed = completions(sandbox);
    assert_eq!(completed.len(), 8, "{point}: {completed:?}");
    assert!(completed.values().all(|times| *times == 1), "{point}: {completed:?}");
    assert_eq!(view(sandbox)["status"], "completed");
}

#[test]
fn killed_while_it_plans() {
    for point in ["keeper.started", "keeper.exit-recorded", "keeper.verified"] {
        killed_at(&before_planning(), point);
    }
}

#[test]
fn killed_while_the_plan_is_accepted() {
    for point in ["land.intended", "land.ref-moved", "land.completed"] {
        killed_at(&before_planning(), point);
    }
}

/// The plan is there; its first worktree is not, or is.
#[test]
fn killed_once_it_has_planned() {
    for point in ["worker.lock-taken", "worker.claimed", "keeper.tree-prepared", "keeper.started"] {
        let sandbox = before_planning();
        let (code, kind, message) = refused(&sandbox, &["resume", "--yes"]);
        assert_eq!((code, kind.as_str()), (77, "E063"), "{message}");
        assert!(message.contains("step write: run: cp"), "{message}");
        killed_at(&sandbox, point);
    }
}

/// With the fake agent as planner; it writes the plan with this script.
fn planned(script: &str, more: &str) -> Sandbox {
    let sandbox = crate::sandbox();
    let head = "plan_from = { step = 'planning', file = 'made.md' }";
    let steps = [agent_step(&sandbox, "planning", script, more)];
    lay_plan(&sandbox, &plan_with(&sandbox, head, &steps));
    sandbox
}

const RUN: [&str; 4] = ["run", "plan.toml", "--auto-continue", "--trust"];

#[test]
fn prompts_of_a_produced_plan_need_no_more_trust() {
    let make = "sh printf '# Made\\n\\n- [ ] First\\n- [ ] Second\\n' > made.md";
    let sandbox = planned(make, "");
    sandbox.piton(&RUN).output().success();
    let shown = view(&sandbox);
    let steps: Vec<&str> = shown["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .filter_map(|s| s["step"].as_str())
        .collect();
    assert_eq!(steps, ["planning", "first", "second"], "{shown:#}");
    assert_eq!(step(&shown, "first")["kind"]["agent"], "fake");
    assert_eq!(step(&shown, "first")["needs"][0], "planning");
    assert_eq!(completions(&sandbox).len(), 3);
}

#[test]
fn a_plan_that_cannot_be_run_is_produced_again_with_what_is_wrong() {
    let make = "count {starts}; nth {starts} 1: sh printf 'no steps\\n' > made.md; \
                nth {starts} 2: dump-prompt {prompt}; \
                nth {starts} 2: sh printf '# Made\\n\\n- [ ] First\\n' > made.md";
    let sandbox = planned(make, "retries = 1");
    sandbox.piton(&RUN).output().success();
    let why = &events_named(&sandbox, "failed")[0]["why"]["unfinished"]["open"];
    let why = why.as_str().expect("words");
    assert!(why.starts_with("the plan made.md cannot be used: 1:1 no step is found"), "{why}");
    let prompt = sandbox.read(sandbox.mark("prompt"));
    assert!(prompt.contains("the plan made.md cannot be used"), "{prompt}");
    assert_eq!(completions(&sandbox), [("first".into(), 1), ("planning".into(), 1)].into());
    assert_eq!(events_named(&sandbox, "plan_accepted").len(), 1);
}

#[test]
fn a_planner_without_a_plan_fails_with_its_retries() {
    let sandbox = planned("write other.txt x", "");
    sandbox.piton(&RUN).output().expect_code(1);
    let failed = events_named(&sandbox, "failed");
    assert_eq!(failed[0]["why"]["unfinished"]["open"], "there is no plan made.md");
}

#[test]
fn a_plan_that_is_there_is_not_produced_again() {
    let sandbox = planned("touch {ran}; write made.md x", "");
    sandbox.write("made.md", "# Made\n\n- [ ] First\n");
    sandbox.commit("a plan");
    let out = sandbox.piton(&RUN).output().success();
    assert!(out.stderr.contains("found done: its plan is there"), "{out}");
    assert!(!sandbox.mark("ran").exists());
    assert_eq!(completions(&sandbox), [("first".into(), 1)].into());
    assert_eq!(events_named(&sandbox, "found_done").len(), 1);
}

#[test]
fn names_of_the_planner_stay_its_own() {
    let make = "sh printf '[plan]\\nname = \"x\"\\n[[step]]\\nid = \"planning\"\\nrun = \"true\"\\n' > made.md; \
                sh mv made.md made.toml";
    let sandbox = crate::sandbox();
    let head = "plan_from = { step = 'planning', file = 'made.toml' }";
    let steps =
        [agent_step(&sandbox, "planning", make, ""), command_step(&sandbox, "other", "true", "")];
    lay_plan(&sandbox, &plan_with(&sandbox, head, &steps));
    sandbox.piton(&RUN).output().expect_code(1);
    let why = events_named(&sandbox, "failed")[0]["why"].to_string();
    assert!(why.contains("`planning` is a name of the plan that is run"), "{why}");
}
