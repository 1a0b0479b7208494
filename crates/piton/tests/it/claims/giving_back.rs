//! Claims that are given back, and steps that are made pending again: what of their work stays and what is
//! open once more.

use piton_testkit::runs::{
    WRITES, agent_step, assert_fenced, data, events, events_named, lay_plan, plan, refused, step,
    tree, view,
};
use piton_testkit::{Sandbox, alive};
use serde_json::Value;

use super::{assert_kept_of_the_dead, claim, fence, sandbox, with_a_dead_keeper};

#[test]
fn release_reopens_what_is_not_completed_and_nothing_else() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let fence = fence(&claim(&sandbox, &one, &[]));
    let by = |args: &[&str]| data(&sandbox, &[args, &["--worktree", &one]].concat());
    by(&["start", "plan.toml", "jwt"]);
    by(&["check", "plan.toml", "jwt", "1", "validate.1", "--done"]);
    by(&["check", "plan.toml", "jwt", "2", "--defer", "--reason", "later"]);
    by(&["item", "add", "plan.toml", "jwt", "a gap"]);
    by(&["check", "plan.toml", "jwt", "3", "--defer", "--reason", "later"]);
    by(&["substep", "complete", "plan.toml", "jwt", "refresh"]);
    assert_eq!(step(&view(&sandbox), "jwt")["fence"].to_string(), fence);
    by(&["release", "plan.toml", "jwt"]);
    let run = view(&sandbox);
    let jwt = step(&run, "jwt");
    assert_eq!(jwt["status"], "pending");
    let items = jwt["items"].as_array().expect("items").iter();
    let states: Vec<(&str, &str)> = items
        .map(|item| (item["item"].as_str().unwrap_or(""), item["state"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(states, [("1", "done"), ("2", "open"), ("3", "open"), ("validate.1", "done")]);
    let substeps = jwt["substeps"].as_array().expect("substeps").iter();
    let done: Vec<&Value> = substeps.map(|substep| &substep["completed"]).collect();
    assert_eq!(done, [false, true]);
    // The claim is gone from it, and stays in its history.
    assert_eq!(jwt.get("fence"), None);
    assert!(jwt["attempts"][0]["to"].is_string(), "{jwt}");
    assert_eq!(jwt["attempts"][0]["state"], "released");
    let (exit, code, _) = refused(&sandbox, &["release", "plan.toml", "jwt", "--force"]);
    assert_eq!((exit, code.as_str()), (1, "E050"));
}

#[test]
fn release_by_force_ends_a_keeper_and_keeps_its_bytes() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let script = "write work.txt half; pid {agent}; touch {ready}; hang";
    lay_plan(&sandbox, &plan(&sandbox, &[agent_step(&sandbox, "jwt", script, "")]));
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    drop(worker.kill9());
    let keeper = piton_testkit::runs::keeper(&sandbox);
    let released = data(&sandbox, &["release", "plan.toml", "jwt", "--force"]);
    assert!(released["was_claimed_by"].as_str().expect("who").contains("a keeper on"));
    assert!(!alive(agent) && !alive(keeper), "they are gone before the answer");
    let run = view(&sandbox);
    assert_eq!(step(&run, "jwt")["status"], "pending");
    let refs = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
    let bytes = |name: &str| sandbox.try_git(&["cat-file", "blob", &format!("{name}:work.txt")]);
    let kept = released["kept"].as_str().expect("the answer says where its bytes are");
    assert_eq!(bytes(kept).as_deref(), Ok("half"), "{refs}");
    sandbox.wait_no_processes();
}

#[test]
fn reset_as_release_of_an_interrupted_step_keeps_its_bytes() {
    let sandbox = with_a_dead_keeper();
    let reset = data(&sandbox, &["reset", "plan.toml", "dead"]);
    assert_eq!(reset["dependants"], serde_json::json!(["late"]));
    assert_kept_of_the_dead(&sandbox);
    assert_eq!(step(&view(&sandbox), "dead")["status"], "pending");
    let taken = claim(&sandbox, &tree(&sandbox, "one"), &["--step", "dead"]);
    assert_eq!((&taken["claimed"], &taken["reclaimed"]), (&true.into(), &false.into()));
    // A step that waits for others has nothing to be taken back.
    let before = events(&sandbox);
    data(&sandbox, &["reset", "plan.toml", "late"]);
    assert_eq!(events(&sandbox), before);
}

#[test]
fn reset_as_release_of_a_completed_step_names_those_that_need_it() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &["--step", "jwt"]);
    let by = |args: &[&str]| data(&sandbox, &[args, &["--worktree", &one]].concat());
    by(&["check", "plan.toml", "jwt", "1", "--done"]);
    by(&["check", "plan.toml", "jwt", "2", "--defer", "--reason", "later"]);
    by(&["substep", "complete", "plan.toml", "jwt", "refresh"]);
    by(&["complete", "plan.toml", "jwt", "--force", "--reason", "x"]);
    assert_eq!(refused(&sandbox, &["reset", "plan.toml", "jwt"]).1, "E073");
    assert_eq!(refused(&sandbox, &["reset", "plan.toml", "jwt", "--force"]).0, 2, "why?");
    let args = ["reset", "plan.toml", "jwt", "--force", "--reason", "the API changed"];
    let told = sandbox.piton(&args).output().success();
    assert!(told.stderr.contains("routes"), "{told}");
    assert_eq!(events_named(&sandbox, "reset")[0]["reason"], "the API changed");
    let run = view(&sandbox);
    let jwt = step(&run, "jwt");
    let states: Vec<&Value> = (0..3).map(|n| &jwt["items"][n]["state"]).collect();
    assert_eq!(states, ["done", "open", "open"]);
    assert_eq!(jwt["substeps"][1]["completed"], true);
    assert_eq!(step(&run, "routes")["status"], "blocked");
}

#[test]
fn whoever_was_released_by_force_is_told_that_the_claim_is_over() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let fence = fence(&claim(&sandbox, &one, &[]));
    data(&sandbox, &["release", "plan.toml", "jwt", "--force"]);
    for write in WRITES.iter().filter(|write| write[0] != "release") {
        let (exit, code, _) = refused(&sandbox, &[write, &["--fence", &fence][..]].concat());
        assert_eq!((exit, code.as_str()), (5, "E049"), "{write:?}");
    }
}

#[test]
fn release_gives_the_step_back() {
    let sandbox = sandbox();
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    let first = claim(&sandbox, &one, &[]);
    let by = |args: &[&str]| data(&sandbox, &[args, &["--worktree", &one]].concat());
    by(&["check", "plan.toml", "jwt", "1", "--done"]);
    by(&["check", "plan.toml", "jwt", "2", "--defer", "--reason", "later"]);
    by(&["substep", "complete", "plan.toml", "jwt", "validate"]);
    let released = by(&["release", "plan.toml", "jwt"]);
    let wanted = serde_json::json!({
        "plan": "plan.toml",
        "run": first["run"],
        "step": "jwt",
        "released": true,
        "was_claimed_by": one,
    });
    assert_eq!(released, wanted);
    let run = view(&sandbox);
    let jwt = step(&run, "jwt");
    assert_eq!(jwt["status"], "pending");
    let states: Vec<&Value> = (0..2).map(|n| &jwt["items"][n]["state"]).collect();
    assert_eq!(states, ["done", "open"]);
    assert_eq!(jwt["substeps"][0]["completed"], true);
    let next = claim(&sandbox, &two, &[]);
    assert_eq!((&next["step"], &next["grounds"]), (&"jwt".into(), &"free".into()));
    assert_fenced(&sandbox, &fence(&first), None);
}

#[test]
fn release_checks_who_asks() {
    let sandbox = sandbox();
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    data(&sandbox, &["open", "plan.toml"]);
    let pending = refused(&sandbox, &["release", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!((pending.0, pending.1.as_str()), (1, "E050"));
    assert!(pending.2.contains("pending"), "{}", pending.2);
    let pending = refused(&sandbox, &["release", "plan.toml", "jwt", "--force"]);
    assert!(pending.1 == "E050" && pending.2.contains("pending"), "{pending:?}");

    claim(&sandbox, &one, &[]);
    let stranger = refused(&sandbox, &["release", "plan.toml", "jwt", "--worktree", &two]);
    assert_eq!((stranger.0, stranger.1.as_str()), (5, "E049"));
    let both = ["release", "plan.toml", "jwt", "--worktree", &one, "--force"];
    assert_eq!(refused(&sandbox, &both).0, 2);
    assert_eq!(refused(&sandbox, &["release", "plan.toml", "jwt"]).0, 2);
    let forced = data(&sandbox, &["release", "plan.toml", "jwt", "--force"]);
    assert_eq!(forced["was_claimed_by"], one.as_str());

    claim(&sandbox, &one, &["--step", "docs"]);
    data(&sandbox, &["complete", "plan.toml", "docs", "--worktree", &one]);
    for more in [["--force", ""], ["--worktree", &one], ["--worktree", &two]] {
        let more: Vec<&str> = more.into_iter().filter(|word| !word.is_empty()).collect();
        let args = [&["release", "plan.toml", "docs"], more.as_slice()].concat();
        let (exit, code, message) = refused(&sandbox, &args);
        assert_eq!((exit, code.as_str()), (1, "E050"), "{args:?}");
        assert!(message.contains("cannot release completed step"), "{message}");
    }
}

#[test]
fn a_failed_step_is_reset() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &[]);
    let (_, code, _) = refused(&sandbox, &["reset", "plan.toml", "jwt"]);
    assert_eq!(code, "E073", "it is held");
    data(&sandbox, &["fail", "plan.toml", "jwt", "--worktree", &one, "--reason", "no API"]);
    assert_eq!(view(&sandbox)["status"], "failed");
    for verb in ["show", "status", "log"] {
        let told = sandbox.piton(&[verb, "plan.toml"]).output().success();
        let said = format!("{}{}", told.stdout, told.stderr);
        assert!(said.contains("reported: no API") && !said.contains("failed: failed"), "{told}");
    }
    assert_eq!(claim(&sandbox, &one, &[])["step"], "docs", "others may go on with the rest");
    let reset = data(&sandbox, &["reset", "plan.toml", "jwt"]);
    assert_eq!(reset["dependants"], serde_json::json!(["routes"]));
    assert_eq!(reset["reset"], true);
    assert_eq!(data(&sandbox, &["reset", "plan.toml", "jwt"])["reset"], false, "it is pending");
    let run = view(&sandbox);
    assert_eq!(
        (&step(&run, "jwt")["status"], &step(&run, "jwt")["failures"]),
        (&"pending".into(), &0.into())
    );
    data(&sandbox, &["complete", "plan.toml", "docs", "--worktree", &one]);
    let (_, code, _) = refused(&sandbox, &["reset", "plan.toml", "docs"]);
    assert_eq!(code, "E073");
    data(&sandbox, &["reset", "plan.toml", "docs", "--force", "--reason", "again"]);
    assert_eq!(claim(&sandbox, &one, &["--step", "docs"])["claimed"], true);
}
