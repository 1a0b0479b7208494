//! Stopping what is held from outside, with the real binary: who hears of it, for how long, and what keeps
//! everybody else from the step until somebody resumes.

use piton_testkit::runs::{
    agent_step, all_killed, data, events_named, lay_plan, refused, step, tree, view, why_not,
};
use piton_testkit::{Running, Sandbox};
use serde_json::Value;

const PLAN: &str = "\
[plan]
name = 'auth'

[[step]]
id = 'jwt'
retries = 1

[[step]]
id = 'docs'

[[step]]
id = 'routes'
needs = ['jwt']
";

fn sandbox() -> (Sandbox, String, String) {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, PLAN);
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    (sandbox, one, two)
}

#[track_caller]
fn claim(sandbox: &Sandbox, tree: &str, more: &[&str]) -> Value {
    data(sandbox, &[&["claim", "plan.toml", "--worktree", tree], more].concat())
}

#[track_caller]
fn beat(sandbox: &Sandbox, tree: &str) -> Value {
    data(sandbox, &["heartbeat", "plan.toml", "jwt", "--worktree", tree])["beat"].clone()
}

/// Nobody gets the step, however they ask; others of the run are to be had.
#[track_caller]
fn assert_nobody_gets_it(sandbox: &Sandbox, trees: [&str; 2]) {
    for more in [&["--step", "jwt"][..], &["--step", "jwt", "--force"]] {
        for tree in trees {
            let told = claim(sandbox, tree, more);
            assert_eq!(told["claimed"], false, "{told}");
        }
    }
    let answer = claim(sandbox, trees[1], &["--step", "jwt", "--force"]);
    let why = why_not(&answer, "jwt");
    assert!(why.contains("stopped on request"), "{why}");
    let rows = answer["blocked"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["step"] == "jwt").expect("a row");
    assert_eq!(row["remedies"][0]["do"], "resume", "{row}");
    let other = claim(sandbox, trees[1], &["--force"]);
    assert_eq!(other["step"], "docs", "{other}");
    data(sandbox, &["release", "plan.toml", "docs", "--force"]);
}

#[test]
fn a_heartbeat_says_stop_until_the_step_is_given_back_and_nobody_gets_it() {
    let (sandbox, one, two) = sandbox();
    claim(&sandbox, &one, &["--step", "jwt"]);
    assert_eq!(data(&sandbox, &["stop", "plan.toml", "jwt"])["asked"][0]["step"], "jwt");
    for _ in 0..3 {
        assert_eq!(beat(&sandbox, &one), "stop_requested");
    }
    assert_eq!(step(&view(&sandbox), "jwt")["stop_requested"], true);
    assert_nobody_gets_it(&sandbox, [&one, &two]);
    assert_eq!(beat(&sandbox, &one), "stop_requested", "the claim is the same one");
    // What they write is taken all the same.
    data(&sandbox, &["checkpoint", "plan.toml", "jwt", "--worktree", &one, "--note", "half way"]);
    data(&sandbox, &["release", "plan.toml", "jwt", "--worktree", &one]);
    let left = view(&sandbox);
    let left = step(&left, "jwt");
    assert_eq!((&left["status"], &left["held_back"]), (&"pending".into(), &true.into()), "{left}");
    assert_nobody_gets_it(&sandbox, [&one, &two]);
    let ready = data(&sandbox, &["ready", "plan.toml"]);
    assert_eq!(ready["ready"].as_array().map(Vec::len), Some(1), "{ready}");

    assert_eq!(data(&sandbox, &["resume"])["outcome"], "lifted");
    assert_eq!(claim(&sandbox, &two, &["--step", "jwt"])["claimed"], true);
    assert_eq!(beat(&sandbox, &two), "continue");
}

#[test]
fn a_run_that_is_stopped_says_so_once_with_the_way_out() {
    let (sandbox, one, two) = sandbox();
    claim(&sandbox, &one, &["--step", "jwt"]);
    data(&sandbox, &["stop", "plan.toml"]);
    assert_eq!(beat(&sandbox, &one), "stop_requested");
    for verb in [&["claim", "plan.toml", "--worktree", &two][..], &["ready", "plan.toml"]] {
        let out = sandbox.piton(verb).output();
        assert_eq!(out.stdout.lines().count(), 1, "{out}");
        assert!(out.stdout.contains("the run is stopped"), "{out}");
        assert!(out.stderr.contains("piton resume "), "{out}");
    }
    let told = claim(&sandbox, &two, &[]);
    assert_eq!((&told["claimed"], &told["barred"]), (&false.into(), &"the run is stopped".into()));
    let (_, code, _) = refused(&sandbox, &["reset", "plan.toml", "jwt"]);
    assert_eq!(code, "E073", "it is held");
    data(&sandbox, &["release", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!(claim(&sandbox, &one, &[])["claimed"], false);
    data(&sandbox, &["resume"]);
    assert_eq!(claim(&sandbox, &one, &[])["step"], "jwt");
}

#[test]
fn what_nobody_works_on_is_not_said_to_be_stopped() {
    let (sandbox, one, _) = sandbox();
    claim(&sandbox, &one, &["--step", "jwt"]);
    let out = sandbox.piton(&["stop", "plan.toml", "docs"]).output();
    assert!(out.stdout.contains("not being worked on"), "{out}");
    assert_eq!(events_named(&sandbox, "stop_requested").len(), 0);
    data(&sandbox, &["stop", "plan.toml", "jwt"]);
    let out = sandbox.piton(&["release", "plan.toml", "jwt", "--worktree", &one]).output();
    assert!(out.stderr.contains("before `piton resume "), "{out}");
    let next = data(&sandbox, &["show", "plan.toml"])["next"].to_string();
    assert!(next.contains("piton resume ") && next.contains("piton claim"), "{next}");
    let out = sandbox.piton(&["stop", "plan.toml", "jwt"]).output();
    assert!(out.stdout.contains("stopped already"), "{out}");
}

#[test]
fn a_worker_that_waits_for_a_step_which_is_stopped_ends_and_goes_on_later() {
    let sandbox = crate::sandbox();
    lay_plan(
        &sandbox,
        "[plan]\nname = 'mix'\n[[step]]\nid = 'jwt'\n[[step]]\nid = 'ship'\nneeds = ['jwt']\n\
         run = 'echo shipped > shipped'\n",
    );
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &["--step", "jwt"]);
    let run = ["run", "plan.toml", "--trust", "--auto-continue"];
    let waits = |worker: &Running| {
        sandbox.wait_until("the worker to wait", || worker.stderr().contains("waits"));
    };
    let worker = sandbox.piton(&run).spawn();
    waits(&worker);
    data(&sandbox, &["stop", "plan.toml", "jwt"]);
    assert_eq!(beat(&sandbox, &one), "stop_requested");
    data(&sandbox, &["release", "plan.toml", "jwt", "--worktree", &one]);
    let ended = worker.wait().expect_code(130);
    assert!(ended.stderr.contains("Stopped"), "{ended}");
    assert_eq!(view(&sandbox)["status"], "stopped");

    // Lifted, with nobody at it: somebody has to claim it.
    let (exit, code, _) = refused(&sandbox, &["resume"]);
    assert_eq!((exit, code.as_str()), (4, "E066"));
    claim(&sandbox, &one, &["--step", "jwt"]);
    let worker = sandbox.piton(&["resume"]).spawn();
    waits(&worker);
    data(&sandbox, &["complete", "plan.toml", "jwt", "--worktree", &one]);
    worker.wait().success();
    assert_eq!(view(&sandbox)["status"], "completed");
}

#[test]
fn what_was_killed_before_it_was_asked_to_stop_is_recorded_as_killed() {
    for (verb, reboot) in [("stop", false), ("abandon", false), ("stop", true)] {
        let sandbox = crate::sandbox_of(|sandbox| {
            vec![agent_step(sandbox, "work", "pid {agent}; touch {ready}; hang", "")]
        });
        all_killed(&sandbox, &["run", "plan.toml", "--auto-continue", "--trust"]);
        let before = step(&view(&sandbox), "work").clone();
        let yes = if verb == "abandon" { &["--yes"][..] } else { &[] };
        let mut piton = sandbox.piton(&[&[verb, "plan.toml"], yes].concat());
        if reboot {
            piton = piton.env("PITON_BOOT_ID", "another");
        }
        piton.output().success();
        let ended = &events_named(&sandbox, "interrupted")[0];
        let cause = if reboot { "reboot" } else { "process_kill" };
        assert_eq!(ended["cause"], cause, "{verb}: {ended}");
        let after = step(&view(&sandbox), "work").clone();
        assert_eq!(after["attempts"][0]["to"], before["attempts"][0]["to"], "when it died");
    }
}
