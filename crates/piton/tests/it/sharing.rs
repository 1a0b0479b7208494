//! Two never work in one worktree: keepers pass over a tree that somebody outside works in, and nobody
//! outside claims from one that belongs to a step; and what is said of claims that nobody is behind any more.

use std::path::PathBuf;

use piton_testkit::runs::{
    command_step, completions, data, events_named, lay_plan, plan, pool_tree, step, tree, view,
    worktree,
};
use piton_testkit::{Sandbox, Signal};
use serde_json::Value;

fn sandbox_with(isolation: &str, steps: &[(&str, &str)]) -> Sandbox {
    let sandbox = crate::sandbox();
    let steps: Vec<String> =
        steps.iter().map(|(id, command)| command_step(&sandbox, id, command, "")).collect();
    let text = plan(&sandbox, &steps);
    let head = format!("name = 'test'\nisolation = '{isolation}'\njobs = {}", steps.len());
    let head = if isolation == "run" { "name = 'test'".to_owned() } else { head };
    lay_plan(&sandbox, &text.replace("name = 'test'", &head));
    data(&sandbox, &["trust", "plan.toml", "--yes"]);
    sandbox
}

/// Claims a step from the first tree of the pool, which somebody has made.
fn claim_from_pool(sandbox: &Sandbox, id: &str, lease: &str) -> (PathBuf, Value) {
    data(sandbox, &["open", "plan.toml"]);
    let path = worktree(sandbox);
    let place = path.to_str().expect("text");
    sandbox.git(&["worktree", "add", "-q", "--detach", place]);
    let args = ["claim", "plan.toml", "--worktree", place, "--step", id, "--lease", lease];
    let claim = data(sandbox, &args);
    assert_eq!(claim["claimed"], true, "{claim}");
    (path, claim)
}

/// Whether any ref has the file with this text.
fn is_kept(sandbox: &Sandbox, file: &str, text: &str) -> bool {
    let refs = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
    let shown = |name: &str| sandbox.try_git(&["show", &format!("{name}:{file}")]);
    refs.lines().any(|name| shown(name).is_ok_and(|found| found == text))
}

#[test]
fn a_tree_that_somebody_works_in_is_passed_over() {
    let steps = [("a", "test ! -e mine.txt && pwd > {a.pwd}"), ("b", "echo b > b.txt")];
    let sandbox = sandbox_with("run", &steps);
    let (path, _) = claim_from_pool(&sandbox, "b", "1h");
    sandbox.write(path.join("mine.txt"), "mine\n");
    let running = sandbox.piton(&["run", "plan.toml", "--auto-continue"]).spawn();
    sandbox.wait_until("a is done", || step(&view(&sandbox), "a")["status"] == "completed");
    let second = pool_tree(&sandbox, 2);
    assert_eq!(sandbox.read(sandbox.mark("a.pwd")).trim(), second.to_str().expect("text"));
    assert_eq!(sandbox.read(path.join("mine.txt")), "mine\n", "nobody touched it");
    data(&sandbox, &["release", "plan.toml", "b", "--worktree", path.to_str().expect("text")]);
    running.wait().success();
    assert_eq!(completions(&sandbox).len(), 2);
}

#[test]
fn whose_lease_is_over_gives_the_worktree_up_with_its_bytes_kept() {
    let sandbox = crate::sandbox();
    let wait = "test ! -e mine.txt && touch {ready}; cat {gate}";
    let steps = [command_step(&sandbox, "a", wait, ""), "[[step]]\nid = 'b'\n".to_owned()];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    data(&sandbox, &["trust", "plan.toml", "--yes"]);
    pipe(&sandbox);
    let (path, claim) = claim_from_pool(&sandbox, "b", "1s");
    sandbox.write(path.join("mine.txt"), "mine\n");
    sandbox.wait_until("the lease to be over", || view(&sandbox)["status"] == "lapsed");
    let run = view(&sandbox)["run"].as_str().expect("an id").to_owned();
    let running = sandbox.piton(&["resume", &run]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    assert!(is_kept(&sandbox, "mine.txt", "mine"), "before anything else happens there");
    let fence = claim["fence"].to_string();
    let beat = ["heartbeat", "plan.toml", "b", "--fence", &fence, "--lease", "1h"];
    let out = sandbox.piton(&beat).output().success();
    assert!(out.stdout.contains("not renewed"), "two would be in one worktree: {out}");
    let beats = data(&sandbox, &beat);
    assert_eq!(beats["beat"], "lapsed", "who reads that goes on no more: {beats}");
    std::fs::write(sandbox.mark("gate"), "").expect("somebody reads it");
    sandbox.wait_until("the step ends", || step(&view(&sandbox), "a")["status"] == "completed");
    // The worktree is free again, and so is the claim that nobody took.
    let out = sandbox.piton(&beat).output().success();
    assert!(out.stdout.contains("yours until"), "{out}");
    running.signal(Signal::INT);
    running.wait();
}

/// A pipe that a step waits at.
fn pipe(sandbox: &Sandbox) {
    let made = sandbox.command("mkfifo").arg(sandbox.mark("gate")).status();
    assert!(made.expect("mkfifo").success());
}

#[test]
fn a_run_whose_only_holder_has_lapsed_says_so() {
    let sandbox = crate::sandbox();
    let steps = [command_step(&sandbox, "a", "true", ""), "[[step]]\nid = 'hand'\n".to_owned()];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    data(&sandbox, &["open", "plan.toml"]);
    for (id, next) in [("a", "piton resume "), ("hand", "piton claim ")] {
        let own = tree(&sandbox, id);
        let args = ["claim", "plan.toml", "--worktree", &own, "--step", id, "--lease", "1s"];
        let claim = data(&sandbox, &args);
        assert_eq!(view(&sandbox)["status"], "running");
        sandbox.wait_until("the lease to be over", || view(&sandbox)["status"] == "lapsed");
        let seen = view(&sandbox);
        assert_eq!((&seen["step"], &seen["since"]), (&id.into(), &claim["lease_expires"]));
        let status = sandbox.piton(&["status", "plan.toml"]).output().success();
        for part in ["lapsed", &own, "whose lease was over", "no sign of work"] {
            assert!(status.stdout.contains(part), "{part}: {status}");
        }
        assert!(status.stdout.contains(next), "{status}");
        assert_eq!(events_named(&sandbox, "interrupted").len(), 0, "looking records nothing");
        data(&sandbox, &["release", "plan.toml", id, "--worktree", &own]);
    }
    assert_eq!(view(&sandbox)["status"], "open");
}
