//! Failures with the real binary: what goes on beside a failed step, taking it up again with a fix made by
//! hand, leaving it out, and the questions about failures that repeat themselves.

use piton_testkit::Sandbox;
use piton_testkit::runs::{
    agent_step, command_step, completions, data, events_named, refused, step, tree, view,
};
use serde_json::json;

use crate::sandbox_of;

const RUN: [&str; 4] = ["run", "plan.toml", "--auto-continue", "--trust"];

/// `broken` fails until somebody writes `fix.txt`; `one` and `two` need nothing, and `last` needs it.
fn broken() -> Sandbox {
    sandbox_of(|sandbox| {
        vec![
            command_step(sandbox, "broken", "echo half > half.txt", "verify = \"test -e fix.txt\""),
            command_step(sandbox, "one", "echo 1 > one.txt", ""),
            command_step(sandbox, "two", "echo 2 > two.txt", ""),
            command_step(sandbox, "last", "cat fix.txt > last.txt", "needs = [\"broken\"]"),
        ]
    })
}

fn statuses(sandbox: &Sandbox) -> Vec<String> {
    let shown = view(sandbox);
    let words = shown["steps"].as_array().expect("steps").iter().map(|step| &step["status"]);
    let words = std::iter::once(&shown["status"]).chain(words);
    words.map(|word| word.as_str().expect("a word").to_owned()).collect()
}

#[test]
fn what_does_not_need_a_failed_step_completes_and_a_retry_takes_the_fix_along() {
    let sandbox = broken();
    let out = sandbox.piton(&RUN).output().expect_code(1);
    assert_eq!(statuses(&sandbox), ["failed", "failed", "completed", "completed", "blocked"]);
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    for part in [
        format!("piton log {handle} broken --verify"),
        format!("piton retry {handle} broken"),
        "2 of 4 steps completed".to_owned(),
    ] {
        assert!(out.stderr.contains(&part), "{part} is missing:\n{out}");
    }
    let overview = sandbox.piton(&["--json"]).output().success();
    assert!(overview.stdout.contains(&format!("piton retry {handle} broken")), "{overview}");

    // Without a fix it is tried in its tree, and fails once more.
    let again = sandbox.piton(&["resume"]).output().expect_code(1);
    assert!(again.stderr.contains("E069"), "{again}");
    let path = data(&sandbox, &["worktree", "path", &handle, "broken"]);
    let tree = path["path"].as_str().expect("a path").to_owned();
    sandbox.write(format!("{tree}/fix.txt"), "by hand");
    let out = sandbox.piton(&["retry", &handle, "broken"]).output().success();
    assert!(out.stderr.contains("trying broken again"), "{out}");
    assert_eq!(events_named(&sandbox, "retried").len(), 1);
    let entries: Vec<_> = events_named(&sandbox, "claimed");
    let broken = entries.iter().filter(|claimed| claimed["step"]["step"] == "broken");
    let entries: Vec<_> = broken.map(|claimed| claimed["entry"].clone()).collect();
    assert_eq!(entries, [json!("fresh"), json!("continue")]);
    assert_eq!(completions(&sandbox).len(), 4);
    let branch = view(&sandbox)["branch"].as_str().expect("a branch").to_owned();
    for (file, text) in [("fix.txt", "by hand"), ("last.txt", "by hand"), ("half.txt", "half")] {
        assert_eq!(sandbox.git(&["show", &format!("{branch}:{file}")]).trim(), text);
    }
    assert_eq!(refused(&sandbox, &["retry", &handle]).0, 1, "it is completed");
}

#[test]
fn a_changed_plan_is_accepted_by_a_retry_of_what_failed() {
    let sandbox = broken();
    sandbox.piton(&RUN).output().expect_code(1);
    let plan = sandbox.read("plan.toml");
    sandbox.write("plan.toml", &plan.replace("test -e fix.txt", "test -e half.txt"));
    let plan = sandbox.read("plan.toml");
    sandbox.write("plan.toml", &plan.replace("cat fix.txt", "cat half.txt"));
    sandbox.piton(&["retry", "--accept-plan", "--trust"]).output().success();
    assert_eq!(statuses(&sandbox)[0], "completed");
    assert_eq!(events_named(&sandbox, "plan_accepted").len(), 1);
}

#[test]
fn a_plan_may_want_the_first_failure_to_end_the_run() {
    let sandbox = broken();
    let plan = sandbox.read("plan.toml");
    sandbox.write("plan.toml", &plan.replacen("[plan]", "[plan]\non_failure = \"stop\"", 1));
    sandbox.piton(&RUN).output().expect_code(1);
    assert_eq!(statuses(&sandbox), ["failed", "failed", "pending", "pending", "blocked"]);
}

#[test]
fn a_skipped_step_meets_needs_until_it_is_reset() {
    let sandbox = broken();
    sandbox.piton(&RUN).output().expect_code(1);
    let (_, code, _) = refused(&sandbox, &["skip", "plan.toml", "one", "--reason", "no"]);
    assert_eq!(code, "E050", "it is completed");
    let skipped = data(&sandbox, &["skip", "plan.toml", "broken", "--reason", "by hand"]);
    let kept = skipped["kept"].as_str().expect("a ref");
    assert_eq!(sandbox.git(&["show", &format!("{kept}:half.txt")]).trim(), "half");
    assert_eq!(statuses(&sandbox), ["open", "skipped", "completed", "completed", "pending"]);
    data(&sandbox, &["reset", "plan.toml", "broken"]);
    assert_eq!(statuses(&sandbox)[4], "blocked");
    data(&sandbox, &["skip", "plan.toml", "broken", "--reason", "by hand"]);
    for shown in [["status", "plan.toml"], ["show", "plan.toml"], ["events", "plan.toml"]] {
        let out = sandbox.piton(&shown).output().success();
        assert!(out.stdout.contains("skipped") && out.stdout.contains("by hand"), "{out}");
    }
    let out = data(&sandbox, &["skip", "plan.toml", "last", "--reason", "not needed"]);
    assert_eq!(out["completed"], true);
    let shown = view(&sandbox);
    assert_eq!((&shown["completed"], &shown["skipped"]), (&json!(2), &json!(2)));
    let out = sandbox.piton(&["resume", "plan.toml"]).output().success();
    assert!(out.stdout.contains("completed: 4 steps, 2 skipped"), "{out}");
}

#[test]
fn three_steps_that_fail_alike_ask_before_anything_else_starts() {
    let sandbox = sandbox_of(|sandbox| {
        let fails = |name: &str| command_step(sandbox, name, "echo no host $$ >&2; exit 3", "");
        vec![fails("a"), fails("b"), fails("c"), command_step(sandbox, "d", "echo d > d.txt", "")]
    });
    let out = sandbox.piton(&RUN).output().expect_code(4);
    assert!(out.stderr.contains("a, b, c failed in the same way"), "{out}");
    assert_eq!(statuses(&sandbox), ["waiting", "failed", "failed", "failed", "pending"]);
    let asked = data(&sandbox, &["questions"]);
    let question = asked["questions"][0]["question"].as_str().expect("a name").to_owned();
    sandbox.piton(&["resume"]).output().expect_code(4);
    assert_eq!(events_named(&sandbox, "claimed").len(), 3, "nothing new was started");
    data(&sandbox, &["answer", &question, "go on"]);
    sandbox.piton(&["resume"]).output().expect_code(1);
    assert_eq!(statuses(&sandbox), ["failed", "failed", "failed", "failed", "completed"]);
}

#[test]
fn an_agent_that_fails_twice_alike_asks_before_it_spends_its_retries() {
    let sandbox = sandbox_of(|sandbox| {
        let fails = "count {starts}; nth {starts} 1: exit 3; nth {starts} 2: exit 3; \
                     write done.txt done";
        vec![
            agent_step(sandbox, "work", fails, "retries = 5"),
            command_step(sandbox, "other", "true", ""),
        ]
    });
    let out = sandbox.piton(&RUN).output().expect_code(4);
    assert!(out.stderr.contains("work failed twice in the same way"), "{out}");
    assert_eq!(statuses(&sandbox), ["waiting", "waiting", "completed"]);
    assert_eq!(step(&view(&sandbox), "work")["failures"], 2);
    data(&sandbox, &["answer", "work", "try again"]);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(completions(&sandbox)["work"], 1);
}

#[test]
fn a_claimed_step_is_reset_by_its_holder_or_by_force() {
    let sandbox = sandbox_of(|_| vec!["[[step]]\nid = \"hand\"\n".to_owned()]);
    let one = tree(&sandbox, "one");
    let claim = ["claim", "plan.toml", "--worktree", &one];
    assert_eq!(data(&sandbox, &claim)["claimed"], true);
    assert_eq!(refused(&sandbox, &["reset", "plan.toml", "hand"]).1, "E073");
    data(&sandbox, &["reset", "plan.toml", "hand", "--worktree", &one]);
    assert_eq!(statuses(&sandbox), ["open", "pending"]);
    assert_eq!(data(&sandbox, &claim)["claimed"], true);
    data(&sandbox, &["reset", "plan.toml", "hand", "--force"]);
    assert_eq!(statuses(&sandbox), ["open", "pending"]);
}
