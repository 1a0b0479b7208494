//! Two never work in one worktree: keepers wait for whoever outside has made themselves at home where
//! keepers work, and are waited for; and what is said of claims that nobody is behind any more.

use std::path::PathBuf;

use piton_testkit::runs::{
    command_step, completions, data, events_named, lay_plan, plan, refused, step, tree, view,
    why_not,
};
use piton_testkit::{Sandbox, Signal};
use serde_json::Value;

fn sandbox_with(isolation: &str, steps: &[(&str, &str)]) -> Sandbox {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let steps: Vec<String> =
        steps.iter().map(|(id, command)| command_step(&sandbox, id, command, "")).collect();
    let text = plan(&sandbox, &steps);
    let head = format!("name = 'test'\nisolation = '{isolation}'\njobs = {}", steps.len());
    let head = if isolation == "run" { "name = 'test'".to_owned() } else { head };
    lay_plan(&sandbox, &text.replace("name = 'test'", &head));
    data(&sandbox, &["trust", "plan.toml", "--yes"]);
    sandbox
}

/// Claims a step from a worktree that piton makes: the run's own, or a step's.
fn claim_from(sandbox: &Sandbox, of: &[&str], id: &str, lease: &str) -> (PathBuf, Value) {
    let made = data(sandbox, &[&["worktree", "create", "plan.toml"], of].concat());
    let path = made["path"].as_str().expect("a path");
    let args = ["claim", "plan.toml", "--worktree", path, "--step", id, "--lease", lease];
    let claim = data(sandbox, &args);
    assert_eq!(claim["claimed"], true, "{claim}");
    (path.into(), claim)
}

/// Whether any ref has the file with this text.
fn is_kept(sandbox: &Sandbox, file: &str, text: &str) -> bool {
    let refs = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
    let shown = |name: &str| sandbox.try_git(&["show", &format!("{name}:{file}")]);
    refs.lines().any(|name| shown(name).is_ok_and(|found| found == text))
}

#[test]
fn a_keeper_waits_for_whoever_works_in_the_runs_worktree() {
    for (isolation, of) in [("run", &[][..]), ("step", &["a"])] {
        let steps = [("a", "test ! -e mine.txt && echo a > a.txt"), ("b", "echo b > b.txt")];
        let sandbox = sandbox_with(isolation, &steps);
        let (path, claim) = claim_from(&sandbox, of, "b", "1h");
        let fence = claim["fence"].to_string();
        sandbox.write(path.join("mine.txt"), "mine\n");
        let running = sandbox.piton(&["run", "plan.toml", "--auto-continue"]).spawn();
        let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
        let said = format!("waits: step b, claimed from {}", path.display());
        sandbox.wait_until("it says for whom it waits", || running.stderr().contains(&said));
        assert!(running.stderr().contains(&format!("`piton release {handle} b --force`")));
        let seen = view(&sandbox);
        assert_eq!(step(&seen, "a")["awaits_tree"], "b", "{isolation}");
        assert_eq!(step(&seen, "a")["attempts"], serde_json::json!([]), "{isolation}");
        let status = sandbox.piton(&["status", &handle]).output().success();
        for part in ["ready, once b is not worked on", path.to_str().expect("text")] {
            assert!(status.stdout.contains(part), "{isolation}: {part}: {status}");
        }
        // One interrupt is enough: nothing of its own runs.
        running.signal(Signal::INT);
        running.wait().expect_code(130);
        assert_eq!(sandbox.read(path.join("mine.txt")), "mine\n", "nobody touched it");

        let running = sandbox.piton(&["run", "plan.toml", "--auto-continue"]).spawn();
        sandbox.wait_until("it waits again", || running.stderr().contains(&said));
        data(&sandbox, &["release", "plan.toml", "b", "--worktree", path.to_str().expect("text")]);
        running.wait().success();
        assert_eq!(completions(&sandbox).len(), 2, "{isolation}");
        assert!(is_kept(&sandbox, "mine.txt", "mine"), "{isolation}: what was in it is kept");
        let late = ["checkpoint", "plan.toml", "b", "--fence", &fence];
        assert_eq!(refused(&sandbox, &late).1, "E049");
    }
}

#[test]
fn whose_lease_is_over_gives_the_worktree_up_with_its_bytes_kept() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let wait = "test ! -e mine.txt && touch {ready}; cat {gate}";
    let steps = [command_step(&sandbox, "a", wait, ""), "[[step]]\nid = 'b'\n".to_owned()];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    data(&sandbox, &["trust", "plan.toml", "--yes"]);
    pipe(&sandbox);
    let (path, claim) = claim_from(&sandbox, &[], "b", "1s");
    sandbox.write(path.join("mine.txt"), "mine\n");
    let run = view(&sandbox)["run"].as_str().expect("an id").to_owned();
    let running = sandbox.piton(&["worker", "--run", &run]).spawn();
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
fn a_keepers_own_worktree_is_not_claimed_from() {
    let steps = [("a", "touch {ready}; cat {gate}"), ("b", "true")];
    let sandbox = sandbox_with("step", &steps);
    pipe(&sandbox);
    // One at a time, so that `b` stays free.
    let running = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--jobs", "1"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    let path = sandbox.repo().join(".piton/worktrees").join(&handle).join("step/a");
    let path = path.to_str().expect("text");
    for more in [&[][..], &["--step", "b"], &["--step", "b", "--force"]] {
        let answer = data(&sandbox, &[&["claim", "plan.toml", "--worktree", path], more].concat());
        assert_eq!(answer["claimed"], false, "{more:?}");
        let why = why_not(&answer, "b");
        for part in ["in use by step a", "a keeper on", &format!("`piton stop {handle} a`")] {
            assert!(why.contains(part), "{more:?}: {part}: {why}");
        }
    }
    let elsewhere = tree(&sandbox, "own");
    let args = ["claim", "plan.toml", "--worktree", &elsewhere, "--step", "b"];
    assert_eq!(data(&sandbox, &args)["claimed"], true);
    data(&sandbox, &["release", "plan.toml", "b", "--worktree", &elsewhere]);
    std::fs::write(sandbox.mark("gate"), "").expect("somebody reads it");
    running.wait().success();
}

#[test]
fn a_run_whose_only_holder_has_lapsed_says_so() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
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
        for part in ["lapsed", &own, "whose lease was over", "nobody is known to be at work"] {
            assert!(status.stdout.contains(part), "{part}: {status}");
        }
        assert!(status.stderr.contains(next), "{status}");
        assert_eq!(events_named(&sandbox, "interrupted").len(), 0, "looking records nothing");
        data(&sandbox, &["release", "plan.toml", id, "--worktree", &own]);
    }
    assert_eq!(view(&sandbox)["status"], "open");
}
