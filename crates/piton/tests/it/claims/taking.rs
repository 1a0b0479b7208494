//! Who gets a step and when: from the same worktree at once, from another when the lease is over or by
//! force, and what stays in the way of either.

use piton_testkit::alive;
use piton_testkit::runs::{
    agent_step, assert_fenced, command_step, data, events, events_named, lay_plan, plan, refused,
    step, tree, view, why_not, worktree,
};
use serde_json::{Value, json};

use super::{assert_kept_of_the_dead, claim, fence, sandbox, sandbox_of, with_a_dead_keeper};

/// What force says it passed over: steps and reasons, in the plan's order.
fn passed_over(taken: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let rows = taken["passed_over"].as_array().expect("what it passed over");
    rows.iter().map(|row| (text(&row["step"]), text(&row["why"]))).collect()
}

#[test]
fn auto_reclaim_of_what_a_dead_keeper_had_says_so() {
    let sandbox = with_a_dead_keeper();
    let taken = claim(&sandbox, &tree(&sandbox, "one"), &["--step", "dead"]);
    assert_eq!((&taken["claimed"], &taken["reclaimed"]), (&true.into(), &true.into()));
    assert_eq!(taken["grounds"], "free", "it was buried first");
    assert_kept_of_the_dead(&sandbox);
}

#[test]
fn force_claim_takes_what_a_dead_keeper_had_before_what_is_free() {
    let sandbox = with_a_dead_keeper();
    let taken = claim(&sandbox, &tree(&sandbox, "one"), &["--force"]);
    assert_eq!((&taken["step"], &taken["reclaimed"]), (&"dead".into(), &true.into()));
    let over = passed_over(&taken);
    assert!(
        matches!(&over[..], [(step, why)] if step == "free" && why.contains("free")),
        "{over:?}"
    );
    assert_kept_of_the_dead(&sandbox);
}

/// In which order force looks is in the core's rules.
#[test]
fn force_claim_says_what_it_passed_over() {
    let steps = ["a", "b", "c"].map(|id| format!("[[step]]\nid = '{id}'\n")).concat();
    let plan = format!("[plan]\nname = 'x'\n{steps}needs = ['b']\n[[step]]\nid = 'e'\n");
    let sandbox = sandbox_of(&plan);
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    claim(&sandbox, &one, &["--step", "a"]);
    claim(&sandbox, &one, &["--step", "e", "--lease", "1s"]);
    let is_over = || {
        let ready = data(&sandbox, &["ready"])["ready"].clone();
        ready.as_array().is_some_and(|ready| ready.iter().any(|step| step["step"] == "e"))
    };
    sandbox.wait_until("the lease to be over", is_over);
    let taken = claim(&sandbox, &two, &["--force"]);
    assert_eq!((&taken["step"], &taken["grounds"]), (&"e".into(), &"lease_over".into()));
    let over = passed_over(&taken);
    let whys = [("a", one.as_str()), ("b", "free"), ("c", "waits for b")];
    assert_eq!(over.len(), whys.len(), "{over:?}");
    for ((step, why), (expected, part)) in over.iter().zip(whys) {
        assert!(step == expected && why.contains(part), "{over:?}");
    }
    data(&sandbox, &["complete", "plan.toml", "e", "--worktree", &two]);
    let told = sandbox.piton(&["claim", "plan.toml", "--worktree", &two, "--force"]).output();
    let told = told.success().stdout;
    assert!(told.contains("passed over") && told.contains(&one), "{told}");
}

#[test]
fn auto_reclaim_is_not_for_the_same_path_on_another_host() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let there = |args: &[&str]| {
        let asked = sandbox.piton(args).arg("--json").env("PITON_HOST_ID", "there");
        asked.output().success().json()["data"].clone()
    };
    let claim_it = ["claim", "plan.toml", "--worktree", &one, "--step", "jwt"];
    assert_eq!(there(&claim_it)["claimed"], true);
    let here = data(&sandbox, &claim_it);
    assert_eq!(here["claimed"], false);
    assert!(why_not(&here, "jwt").contains("on there"), "{here}");
    let (exit, code, _) = refused(&sandbox, &["start", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!((exit, code.as_str()), (5, "E049"));
    let again = there(&claim_it);
    assert_eq!((&again["reclaimed"], &again["grounds"]), (&true.into(), &"same_owner".into()));
}

#[test]
fn a_lapsed_claim_that_nobody_took_is_renewed() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let first = claim(&sandbox, &one, &["--lease", "1s"]);
    let over = first["lease_expires"].as_str().expect("a time").to_owned();
    sandbox.wait_until("the lease to be over", || {
        let ready = data(&sandbox, &["ready"]);
        ready["ready"].as_array().is_some_and(|ready| ready[0]["step"] == "jwt")
    });
    let shown = || {
        ["show", "status"].map(|verb| sandbox.piton(&[verb, "plan.toml"]).output().success().stdout)
    };
    assert_eq!(step(&view(&sandbox), "jwt")["attempts"][0]["lease_lapsed"], true);
    for text in shown() {
        assert!(text.contains("lease lapsed ") && text.contains(": claimable by others"), "{text}");
        assert!(!text.contains("lease until"), "{text}");
    }
    let beat =
        data(&sandbox, &["heartbeat", "plan.toml", "jwt", "--worktree", &one, "--lease", "1h"]);
    assert_eq!(beat["beat"], "continue");
    assert!(beat["lease_expires"].as_str().expect("a time") > over.as_str());
    assert_eq!(step(&view(&sandbox), "jwt")["attempts"][0]["lease_lapsed"], false);
    for text in shown() {
        assert!(text.contains("lease until 2") && !text.contains("lapsed"), "{text}");
    }
    let other = claim(&sandbox, &tree(&sandbox, "two"), &["--step", "jwt"]);
    assert_eq!(other["claimed"], false);
}

#[test]
fn the_worktree_of_the_run_is_not_shared_with_a_keeper() {
    let sandbox = crate::sandbox();
    let script = "write work.txt half; pid {agent}; touch {ready}; hang";
    let steps =
        [agent_step(&sandbox, "jwt", script, ""), command_step(&sandbox, "docs", "true", "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let (run, own) = (view(&sandbox), worktree(&sandbox).to_str().expect("text").to_owned());
    let run = run["handle"].as_str().expect("a handle");
    for more in [&[][..], &["--step", "docs"], &["--step", "docs", "--force"]] {
        let refused = claim(&sandbox, &own, more);
        assert_eq!(refused["claimed"], false, "{more:?}");
        let why = why_not(&refused, "docs");
        for part in ["in use by step jwt", "a keeper on"] {
            assert!(why.contains(part), "no {part:?} in {why}");
        }
        let remedies = &refused["blocked"][1]["remedies"];
        assert_eq!(remedies[1], json!({ "do": "stop", "run": run, "step": "jwt" }), "{refused}");
    }
    // From elsewhere it can be had; and by force, what the keeper has, which is ended first.
    let one = tree(&sandbox, "one");
    assert_eq!(claim(&sandbox, &one, &["--step", "docs"])["claimed"], true);
    data(&sandbox, &["release", "plan.toml", "docs", "--worktree", &one]);
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    let forced = claim(&sandbox, &own, &["--force"]);
    assert_eq!((&forced["step"], &forced["grounds"]), (&"jwt".into(), &"forced".into()));
    assert!(!alive(agent), "it is gone before the answer");
    drop(worker.kill9());
    sandbox.wait_no_processes();
}

#[test]
fn the_tree_of_a_dead_keeper_belongs_to_its_step() {
    let sandbox = with_a_dead_keeper();
    let own = worktree(&sandbox).to_str().expect("text").to_owned();
    let refused = claim(&sandbox, &own, &["--step", "free"]);
    assert!(why_not(&refused, "free").contains("in use by step dead"), "{refused}");
    let taken = claim(&sandbox, &own, &["--step", "dead"]);
    assert_eq!((&taken["claimed"], &taken["grounds"]), (&true.into(), &"free".into()));
    assert_kept_of_the_dead(&sandbox);
}

#[test]
fn force_claim_takes_a_step_from_its_holder() {
    let sandbox = sandbox();
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    let first = claim(&sandbox, &one, &[]);
    let forced = claim(&sandbox, &two, &["--step", "jwt", "--force"]);
    assert_eq!((&forced["reclaimed"], &forced["grounds"]), (&true.into(), &"forced".into()));
    assert_eq!(forced["displaces"], first["fence"]);
    assert_fenced(&sandbox, &fence(&first), None);

    let needs = claim(&sandbox, &one, &["--step", "routes", "--force"]);
    assert_eq!(needs["claimed"], false, "force never breaks needs");
    let by = ["complete", "plan.toml", "jwt", "--worktree", &two, "--force", "--reason", "x"];
    data(&sandbox, &by);
    let done = claim(&sandbox, &one, &["--step", "jwt", "--force"]);
    assert_eq!(done["claimed"], false, "and never takes a completed step");
    let late = sandbox.piton(&["heartbeat", "plan.toml", "jwt", "--worktree", &one]).output();
    assert!(late.stderr.contains("completed meanwhile"), "it is not to be asked for: {late}");
}

#[test]
fn force_claim_against_a_live_keeper_ends_it_first() {
    let sandbox = crate::sandbox();
    let script = "write work.txt half; pid {agent}; touch {ready}; ignore-term; hang";
    let steps = [agent_step(&sandbox, "jwt", script, "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let one = tree(&sandbox, "one");
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    let keeper = piton_testkit::runs::keeper(&sandbox);

    let polite = claim(&sandbox, &one, &[]);
    assert_eq!(polite["claimed"], false);
    let shown = sandbox.piton(&["claim", "plan.toml", "--worktree", &one]).output().success();
    for offer in ["piton resume", "piton stop", &format!("--worktree {one} --force`")] {
        assert!(shown.stdout.contains(offer), "{shown}");
    }
    assert!(alive(agent), "nobody was harmed by asking");

    let forced = claim(&sandbox, &one, &["--force"]);
    assert_eq!(forced["grounds"], "forced");
    assert!(!alive(agent) && !alive(keeper), "they are gone before the answer");
    let old = events_named(&sandbox, "claimed")[0]["position"].to_string();
    let handle = forced["handle"].as_str().expect("a handle");
    let refs = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
    let name =
        refs.lines().rfind(|name| name.starts_with(&format!("refs/piton/{handle}/jwt/{old}/")));
    let name = name.expect("its bytes are kept under its own fence");
    assert_eq!(forced["kept"], name, "and the answer says where");
    assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{name}:work.txt")]), "half");
    let count = events(&sandbox).len();
    for write in [
        &["start", "plan.toml", "jwt", "--fence", &old][..],
        &["fail", "plan.toml", "jwt", "--reason", "x", "--fence", &old],
    ] {
        let (exit, code, _) = refused(&sandbox, write);
        assert_eq!((exit, code.as_str()), (5, "E049"));
    }
    assert_eq!(events(&sandbox).len(), count);
    drop(worker);
    data(&sandbox, &["complete", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!(view(&sandbox)["status"], "completed");
    sandbox.wait_no_processes();
}

#[test]
fn what_one_has_already_is_not_counted_as_ready() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    assert_eq!(claim(&sandbox, &one, &["--step", "jwt"])["remaining_ready"], 1, "docs");
    assert_eq!(claim(&sandbox, &one, &["--step", "docs"])["remaining_ready"], 0);
}
