//! Claims that are given back, and steps that are made pending again: what of their work stays and what is
//! open once more.

use piton_testkit::alive;
use piton_testkit::runs::{
    agent_step, assert_fenced, data, events, lay_plan, plan, refused, step, tree, view,
};
use serde_json::Value;

use super::{assert_kept_of_the_dead, claim, fence, sandbox, with_a_dead_keeper};

#[test]
fn release_by_force_ends_a_keeper_and_keeps_its_bytes() {
    let sandbox = crate::sandbox();
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
fn a_failed_step_is_reset() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &[]);
    let (_, code, _) = refused(&sandbox, &["reset", "plan.toml", "jwt"]);
    assert_eq!(code, "E073", "it is held");
    data(&sandbox, &["fail", "plan.toml", "jwt", "--worktree", &one, "--reason", "no API"]);
    assert_eq!(view(&sandbox)["status"], "open");
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
