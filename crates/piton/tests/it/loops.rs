//! Loops with the real binary: review, implement and lint repeated until a command passes; killed at every step of
//! every iteration and at the end of one; the question at a bound with its answers; how many iterations.

use std::sync::OnceLock;

use piton_testkit::crash::points_of;
use piton_testkit::runs::{
    agent_step, all_killed, command_step, data, events_named, keeper, landed, lay_plan, marked,
    plan_with, refused, step, view,
};
use piton_testkit::{CrashPoint, Sandbox, Who, kill9};
use serde_json::{Value, json};

use crate::sandbox;

const RUN: [&str; 3] = ["run", "plan.toml", "--trust"];
const CHAIN: [&str; 3] = ["review", "implement", "lint"];

/// Each step leaves a file of its own iteration; the implementation reads what the review found. `hangs` works
/// the n-th time it is started until somebody kills it.
fn improving(hangs: Option<(&str, u32)>, bounds: &str) -> Sandbox {
    let sandbox = sandbox();
    let hang = |id: &str| match hangs {
        Some((step, n)) if step == id => {
            format!(
                "count {{starts}}; pid {{agent}}; nth {{starts}} {n}: touch {{ready}}; nth {{starts}} {n}: hang; "
            )
        }
        _ => String::new(),
    };
    let script = |id: &str, first: &str, then: &str| format!("{first}; {}{then}", hang(id));
    let review = script(
        "review",
        "sh echo $PITON_LOOP $PITON_ITERATION > found.txt",
        "sh echo $PITON_STEP > review-$PITON_ITERATION.txt",
    );
    let implement = script(
        "implement",
        "sh cp found.txt fixed.txt",
        "sh cat review-$PITON_ITERATION.txt > implement-$PITON_ITERATION.txt",
    );
    let lint = script("lint", "sh cp fixed.txt lint.txt", "sh true");
    let lint = sandbox.fake(&marked(&sandbox, &lint));
    let steps = [
        agent_step(&sandbox, "review", &review, "kind = 'review'"),
        agent_step(&sandbox, "implement", &implement, "verify = 'test -f fixed.txt'"),
        command_step(&sandbox, "lint", &lint, ""),
        command_step(&sandbox, "after", "ls > listed.txt", "needs = ['improve']"),
    ];
    let text = plan_with(&sandbox, "", &steps);
    let chain = "steps = ['review', 'implement', 'lint']";
    lay_plan(&sandbox, &format!("{text}\n[loop.improve]\n{chain}\n{bounds}\n"));
    sandbox
}

const THREE: &str = "max = 5\nuntil = 'test -f implement-3.txt'";

/// The steps that were completed, in their order.
fn completed(sandbox: &Sandbox) -> Vec<String> {
    let name = |event: Value| format!("{}#{}", event["step"]["step"], event["step"]["iteration"]);
    let all = events_named(sandbox, "completed").into_iter().map(name);
    all.map(|name| name.replace('"', "")).collect()
}

fn final_tree(sandbox: &Sandbox) -> String {
    sandbox.tree_of(view(sandbox)["branch"].as_str().expect("a branch"))
}

/// What a run leaves that nothing disturbs: its tree and what was completed.
fn undisturbed() -> &'static (String, Vec<String>) {
    static LEFT: OnceLock<(String, Vec<String>)> = OnceLock::new();
    LEFT.get_or_init(|| {
        let sandbox = improving(None, THREE);
        sandbox.piton(&RUN).output().success();
        (final_tree(&sandbox), completed(&sandbox))
    })
}

/// The loop of the only run.
fn improve(sandbox: &Sandbox) -> Value {
    view(sandbox)["loops"][0].clone()
}

#[test]
fn a_chain_is_repeated_until_its_command_passes() {
    let sandbox = improving(None, THREE);
    let out = sandbox.piton(&RUN).output().success();
    assert!(out.stderr.contains("improve: iteration 2 of at most 5"), "{out}");
    assert!(out.stderr.contains("improve: done after 3 iterations"), "{out}");
    let chain = (1..=3).flat_map(|n| CHAIN.map(|step| format!("{step}#{n}")));
    let expected: Vec<String> = chain.chain(["after#1".to_owned()]).collect();
    assert_eq!(completed(&sandbox), expected);
    assert_eq!(landed(&sandbox, "lint.txt"), "improve 3");
    assert_eq!(landed(&sandbox, "implement-2.txt"), "review#2");
    let of = improve(&sandbox);
    assert_eq!((&of["status"], &of["ended"]), (&json!("over"), &json!("passed")));
    assert_eq!(of["past"].as_array().map(Vec::len), Some(6));
    let check =
        events_named(&sandbox, "verified").into_iter().rfind(|e| e["iteration"] != Value::Null);
    let check = check.expect("the last check")["iteration"].clone();
    assert_eq!(check["until"]["exit"], json!({ "code": 0 }));
    let shown = sandbox.piton(&["show"]).output().success().stdout;
    assert!(shown.contains("review#1") && shown.contains("lint#2"), "{shown}");
}

/// Killed at a step of every iteration: it goes on there, and ends as if nothing had happened.
fn killed_at_each_iteration(id: &str) {
    for iteration in 1..=3 {
        let sandbox = improving(Some((id, iteration)), THREE);
        all_killed(&sandbox, &RUN);
        let at = step(&view(&sandbox), id).clone();
        assert_eq!((&at["iteration"], &at["status"]), (&json!(iteration), &json!("interrupted")));
        sandbox.piton(&["resume"]).output().success();
        let left = (final_tree(&sandbox), completed(&sandbox));
        assert_eq!(left, *undisturbed(), "{id} in iteration {iteration}");
        let claims = events_named(&sandbox, "claimed").into_iter();
        let again = claims.filter(|claim| claim["step"]["step"] == id).count();
        assert_eq!(again, 4, "only {id}#{iteration} was begun twice");
        assert!(sandbox.processes().is_empty(), "nothing is left running");
    }
}

#[test]
fn a_review_that_was_killed_goes_on_in_its_iteration() {
    killed_at_each_iteration("review");
}

#[test]
fn an_implementation_that_was_killed_goes_on_in_its_iteration() {
    killed_at_each_iteration("implement");
}

#[test]
fn a_lint_that_was_killed_is_run_again_in_its_iteration() {
    killed_at_each_iteration("lint");
}

/// Worker and keeper are killed at the end of the first iteration.
fn killed_at(name: &str) {
    let sandbox = improving(None, THREE);
    let point = CrashPoint::arm(sandbox.mark("point"), name, 1);
    let running = sandbox.piton(&RUN).crash_at(&point).spawn();
    point.wait_hit();
    let keeper = keeper(&sandbox);
    drop(running.kill9());
    for worker in sandbox.workers() {
        kill9(worker);
    }
    kill9(keeper);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!((final_tree(&sandbox), completed(&sandbox)), *undisturbed());
}

at_every_point! {
    every_point_of_an_iteration_has_its_test: points_of(|_, who| who == Who::Repeater), killed_at;
    killed_after_the_loop_was_checked: "keeper.until-ran",
}

#[test]
fn a_loop_that_changes_nothing_asks_and_each_answer_is_followed() {
    let stale = "max = 9\nuntil = 'false'\nstale_limit = 2";
    let waiting = || {
        let sandbox = improving(None, stale);
        // The chain leaves the same whatever the iteration.
        let text =
            sandbox.read("plan.toml").replace("$PITON_ITERATION", "1").replace("$PITON_STEP", "x");
        sandbox.write("plan.toml", &text);
        sandbox.piton(&RUN).output().expect_code(4);
        sandbox
    };
    let sandbox = waiting();
    let of = improve(&sandbox);
    assert_eq!(
        (&of["iteration"], &of["stale"], &of["status"]),
        (&json!(3), &json!(2), &json!("waiting"))
    );
    assert_eq!(view(&sandbox)["status"], "waiting");
    let answer = |sandbox: &Sandbox, text: &str| data(sandbox, &["answer", "lint", text]);

    answer(&sandbox, "try again");
    sandbox.piton(&["resume"]).output().expect_code(4);
    assert_eq!(improve(&sandbox)["iteration"], 5, "two more that changed nothing");
    answer(&sandbox, "accept");
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(improve(&sandbox)["ended"], "accepted");
    assert!(completed(&sandbox).contains(&"after#1".to_owned()));

    let sandbox = waiting();
    answer(&sandbox, "stop");
    assert_eq!(view(&sandbox)["status"], "stopped");
    sandbox.piton(&["resume"]).output().expect_code(4);
    assert_eq!(view(&sandbox)["status"], "waiting", "it was asked again");
}

#[test]
fn the_bound_is_the_plans_or_as_asked_for() {
    let sandbox = improving(None, THREE);
    let out = sandbox.piton(&RUN).arg("--max-iterations").arg("2").output().expect_code(4);
    assert!(out.stderr.contains("loop improve has had 2 iterations and is not done"), "{out}");
    // Who asks for more needs not answer.
    sandbox.piton(&["resume", "--max-iterations", "4"]).output().success();
    assert_eq!((final_tree(&sandbox), completed(&sandbox)), *undisturbed());
    let (code, _, message) = refused(&sandbox, &["run", "plan.toml", "--max-iterations", "0"]);
    assert_eq!(code, 2, "{message}");
}
