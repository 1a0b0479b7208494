//! Trust is asked for by whoever executes, each time: a worker, a keeper or `complete` whose user has not
//! agreed to what the run recorded executes nothing, whoever started it.

use std::fs;

use piton_testkit::Sandbox;
use piton_testkit::runs::{
    command_step, commit_file, data, events_named, lay_plan, plan, step, told, view,
};

/// A plan whose first step leaves a mark and waits, and whose second leaves another.
fn sandbox() -> Sandbox {
    let sandbox = crate::sandbox();
    let steps = [
        command_step(&sandbox, "a", "touch {ran-a}; until test -f {go}; do sleep 0.01; done", ""),
        command_step(&sandbox, "b", "touch {ran-b}", "needs = [\"a\"]"),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox
}

/// As if nothing had ever been agreed to.
fn withdraw(sandbox: &Sandbox) {
    fs::remove_dir_all(sandbox.root().join("state/piton")).expect("what was trusted");
}

#[test]
fn a_worker_of_an_untrusted_run_claims_nothing() {
    let sandbox = sandbox();
    let opened = data(&sandbox, &["open", "plan.toml"]);
    let run = opened["run"]["run"].as_str().expect("an id");
    let ended = sandbox.piton(&["worker", "--run", run]).output().expect_code(77);
    assert!(ended.stdout.contains("NotTrusted"), "{ended}");
    assert!(!sandbox.mark("ran-a").exists(), "it was executed");
    assert!(events_named(&sandbox, "claimed").is_empty());
}

#[test]
fn a_keeper_whose_trust_was_withdrawn_executes_nothing_and_says_what_to_do() {
    let sandbox = sandbox();
    fs::write(sandbox.mark("go"), "").expect("a mark");
    let claimed = sandbox.crash_point("worker.claimed", 1);
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).crash_at(&claimed).spawn();
    claimed.wait_hit();
    withdraw(&sandbox);
    claimed.release();
    let run = run.wait().expect_code(4);
    assert!(run.stderr.contains("has not been trusted"), "{run}");
    assert!(run.stderr.contains("`piton trust "), "{run}");
    assert!(!sandbox.mark("ran-a").exists(), "it was executed");
    assert_eq!(step(&view(&sandbox), "a")["cause"], "obstacle");

    sandbox.piton(&["resume"]).output().expect_code(77);
    sandbox.piton(&["trust", "plan.toml", "--yes"]).output().success();
    sandbox.piton(&["resume"]).output().success();
    assert!(sandbox.mark("ran-a").exists() && sandbox.mark("ran-b").exists());
}

#[test]
fn trust_that_is_withdrawn_between_two_attempts_ends_the_worker() {
    let sandbox = sandbox();
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--json"]).spawn();
    sandbox.wait_exists(sandbox.mark("ran-a"));
    withdraw(&sandbox);
    fs::write(sandbox.mark("go"), "").expect("a mark");
    let run = run.wait();
    let (exit, code, _) = told(&run);
    assert_eq!((exit, code.as_str()), (77, "E063"), "{run}");
    let hint = run.json()["issues"][0]["hint"].to_string();
    assert!(hint.contains("piton trust") && hint.contains("piton resume"), "{hint}");
    assert!(!sandbox.mark("ran-b").exists(), "it was executed");
    assert_eq!(step(&view(&sandbox), "a")["status"], "completed", "what was begun is finished");
}

#[test]
fn a_commit_is_not_verified_once_trust_is_withdrawn() {
    let sandbox = crate::sandbox();
    let verify = format!("touch '{}'", sandbox.mark("verified").display());
    let plan = format!("[plan]\nname = 'x'\n[[step]]\nid = 'jwt'\nverify = \"{verify}\"\n");
    lay_plan(&sandbox, &plan);
    let tree = data(&sandbox, &["worktree", "create", "plan.toml", "jwt"])["path"].clone();
    let tree = tree.as_str().expect("a path");
    let claim = ["claim", "plan.toml", "--step", "jwt", "--worktree", tree];
    let fence = data(&sandbox, &claim)["fence"].to_string();
    let commit = commit_file(&sandbox, tree.as_ref(), "auth.ts", "validateToken\n");
    fs::write(format!("{tree}/left"), "to be kept").expect("writable");
    let complete =
        ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit, "--json"];
    let never = told(&sandbox.piton(&complete).output());
    assert_eq!((never.0, never.1.as_str()), (77, "E063"));

    let kept = sandbox.crash_point("outside.snapshot-kept", 1);
    let trusting = [&complete[..], &["--trust"]].concat();
    let holder = sandbox.piton(&trusting).crash_at(&kept).spawn();
    kept.wait_hit();
    withdraw(&sandbox);
    kept.release();
    let (exit, code, _) = told(&holder.wait());
    assert_eq!((exit, code.as_str()), (77, "E063"));
    assert!(!sandbox.mark("verified").exists(), "it was executed");
    assert!(events_named(&sandbox, "completed").is_empty());
    sandbox.piton(&trusting).output().success();
    assert!(sandbox.mark("verified").exists());
}

#[test]
fn trust_that_cannot_be_recorded_is_not_given() {
    let sandbox = sandbox();
    // Nobody can write there, not even root.
    let read_only = ["run", "plan.toml", "--trust", "--json"];
    let run = sandbox.piton(&read_only).env("XDG_STATE_HOME", "/proc/state").output();
    let (exit, code, message) = told(&run);
    assert_eq!((exit, code.as_str()), (77, "E063"), "{run}");
    assert!(message.contains("/proc/state"), "{message}");
    assert!(!sandbox.mark("ran-a").exists(), "it was executed");
    assert!(!sandbox.exists(".git/piton"), "no run was opened");
}
