//! Steps claimed from outside, with the real binary: the whole cycle, who gets a step and when, what a
//! holder that lost its claim may still do (nothing), and what piton's variables answer inside an
//! attempt.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use piton_testkit::runs::{
    WRITES, agent_step, assert_fenced, command_step, data, events, events_named, kept, lay_plan,
    plan, refused, step, tree, view, worktree,
};
use piton_testkit::{Output, Sandbox, alive, kill9};
use serde_json::Value;

const PLAN: &str = "\
[plan]
name = 'auth'

[[step]]
id = 'jwt'
title = 'JWT validation'
items = ['signature check', 'expiry check']
substeps = [
  { id = 'validate', title = 'validateToken', items = ['Größe prüfen'] },
  { id = 'refresh', title = 'refreshToken' },
]

[[step]]
id = 'docs'

[[step]]
id = 'routes'
needs = ['jwt']
";

/// A repository with the plan and two worktrees for those who claim.
fn sandbox_of(text: &str) -> Sandbox {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    lay_plan(&sandbox, text);
    for name in ["one", "two"] {
        tree(&sandbox, name);
    }
    sandbox
}

fn sandbox() -> Sandbox {
    sandbox_of(PLAN)
}

#[track_caller]
fn claim(sandbox: &Sandbox, worktree: &str, more: &[&str]) -> Value {
    data(sandbox, &[&["claim", "plan.toml", "--worktree", worktree], more].concat())
}

fn fence(claim: &Value) -> String {
    assert_eq!(claim["claimed"], true, "{claim}");
    claim["fence"].to_string()
}

#[test]
fn the_whole_cycle() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let opened = data(&sandbox, &["open", "plan.toml"]);
    let again = data(&sandbox, &["open", "plan.toml"]);
    assert_eq!((&opened["opened"], &again["opened"]), (&true.into(), &false.into()));
    assert_eq!(opened["run"]["run"], again["run"]["run"]);

    let claimed = claim(&sandbox, &one, &["--lease", "1h"]);
    assert_eq!(claimed["run"], opened["run"]["run"]);
    assert_eq!((&claimed["step"], &claimed["index"]), (&"jwt".into(), &0.into()));
    assert_eq!((&claimed["reclaimed"], &claimed["grounds"]), (&false.into(), &"free".into()));
    assert_eq!((&claimed["remaining_ready"], &claimed["total_remaining"]), (&1.into(), &3.into()));
    let fence = fence(&claimed);
    let under = |args: &[&str]| data(&sandbox, &[args, &["--fence", &fence]].concat());

    under(&["start", "plan.toml", "jwt"]);
    let beat = under(&["heartbeat", "plan.toml", "jwt", "--lease", "3h"]);
    assert_eq!(beat["beat"], "continue");
    assert!(beat["lease_expires"].as_str() > claimed["lease_expires"].as_str());

    sandbox.write(format!("{one}/Prüfung.ts"), "grüße\n");
    let kept_now = under(&[
        "checkpoint",
        "plan.toml",
        "jwt",
        "--progress",
        "40",
        "--confidence",
        "0.7",
        "--note",
        "日本語 ✓ — half of it",
        "--next",
        "refresh",
        "--session",
        "s-1",
        "--file",
        "Prüfung.ts:3=open@0.5",
        "--data",
        r#"{"related": ["a"]}"#,
    ]);
    let refname = kept_now["snapshot"]["refname"].as_str().expect("a snapshot").to_owned();
    assert_eq!(kept(&sandbox, "jwt", "Prüfung.ts"), "grüße");
    let message = sandbox.git(&["log", "-1", "--format=%B", &refname]);
    assert!(message.contains("note: 日本語 ✓ — half of it"), "{message}");

    under(&["check", "plan.toml", "jwt", "1", "validate.1", "--done"]);
    under(&["check", "plan.toml", "jwt", "2", "--defer", "--reason", "später"]);
    let gap =
        under(&["item", "add", "plan.toml", "jwt", "fehlt: Ablauf", "--priority", "critical"]);
    assert_eq!(gap["item"], "3");
    under(&["check", "plan.toml", "jwt", "3", "--done"]);
    under(&["substep", "complete", "plan.toml", "jwt", "validate"]);
    under(&["substep", "complete", "plan.toml", "jwt", "refresh"]);

    let run = view(&sandbox);
    let jwt = step(&run, "jwt");
    assert_eq!(jwt["report"]["progress"], 40);
    assert_eq!(jwt["report"]["files"][0]["line"], 3);
    assert_eq!(jwt["items"][1]["reason"], "später");
    assert_eq!(jwt["attempts"][0]["worktree"], one.as_str());
    let shown = sandbox.piton(&["show"]).output().success().stdout;
    for text in ["reported: 40 %", "note 日本語", "✓ substep refresh", "fehlt: Ablauf", &one] {
        assert!(shown.contains(text), "no {text:?} in\n{shown}");
    }

    let done = under(&["complete", "plan.toml", "jwt"]);
    assert_eq!((&done["all_completed"], &done["total_remaining"]), (&false.into(), &2.into()));
    let before = events(&sandbox);
    under(&["complete", "plan.toml", "jwt"]);
    assert_eq!(events(&sandbox), before, "saying it twice is harmless");
    let run = view(&sandbox);
    assert_eq!(
        (&step(&run, "jwt")["status"], &step(&run, "jwt")["truth"]),
        (&"completed".into(), &"claimed".into())
    );

    for id in ["docs", "routes"] {
        let next = claim(&sandbox, &one, &[]);
        assert_eq!(next["step"], id);
        data(&sandbox, &["complete", "plan.toml", id, "--worktree", &one]);
    }
    assert_eq!(view(&sandbox)["status"], "completed");
    let run = opened["run"]["run"].as_str().expect("an id");
    let nothing = data(&sandbox, &["claim", run, "--worktree", &one]);
    assert_eq!((&nothing["claimed"], &nothing["all_completed"]), (&false.into(), &true.into()));
    assert!(events_named(&sandbox, "failed").is_empty());
}

#[test]
fn run_and_resume_say_what_is_missing() {
    let sandbox = sandbox();
    let (exit, code, message) =
        refused(&sandbox, &["run", "plan.toml", "--auto-continue", "--trust"]);
    assert_eq!((exit, code.as_str()), (65, "E060"));
    assert!(message.contains("jwt, docs, routes"), "{message}");
    data(&sandbox, &["open", "plan.toml"]);
    let (exit, _, message) = refused(&sandbox, &["resume"]);
    assert_eq!(exit, 65);
    assert!(message.contains("nothing to start"), "{message}");
}

#[test]
fn open_and_claim_execute_nothing_and_need_no_trust() {
    let sandbox = sandbox_of("[plan]\nname = 'x'\n[[step]]\nid = 'a'\nrun = 'touch ran'\n");
    data(&sandbox, &["open", "plan.toml"]);
    let claimed = claim(&sandbox, &tree(&sandbox, "one"), &[]);
    assert_eq!(claimed["step"], "a");
    assert!(sandbox.processes_with_env("PITON_ATTEMPT=").is_empty());
}

#[test]
fn a_changed_plan_refuses_claims_by_its_path() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let run = data(&sandbox, &["open", "plan.toml"])["run"]["handle"].clone();
    sandbox.write("plan.toml", &PLAN.replace("expiry check", "another check"));
    let (exit, code, message) = refused(&sandbox, &["claim", "plan.toml", "--worktree", &one]);
    assert_eq!((exit, code.as_str()), (65, "E048"));
    assert!(message.contains("jwt"), "it says what changed: {message}");
    let run = run.as_str().expect("a handle");
    assert_eq!(data(&sandbox, &["claim", run, "--worktree", &one])["claimed"], true);
}

#[test]
fn auto_reclaim_from_the_same_worktree_is_at_once() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let link = sandbox.root().join("link");
    symlink(&one, &link).expect("a link");
    sandbox.write(format!("{one}/src/deep/x"), "");
    let first = claim(&sandbox, &one, &[]);
    let mut last = fence(&first);
    let mut until = first["lease_expires"].as_str().map(str::to_owned);
    let slash = format!("{one}/");
    let spellings: [(&str, PathBuf); 4] = [
        (&one, sandbox.repo()),
        (&slash, sandbox.repo()),
        (link.to_str().expect("text"), sandbox.repo()),
        ("../..", Path::new(&one).join("src/deep")),
    ];
    for (spelling, cwd) in spellings {
        let run = first["handle"].as_str().expect("a handle");
        let args = ["claim", run, "--worktree", spelling, "--json"];
        let again = sandbox.piton(&args).cwd(cwd).output().success().json()["data"].clone();
        assert_eq!(again["step"], "jwt", "{spelling}: its own comes first");
        assert_eq!((&again["reclaimed"], &again["grounds"]), (&true.into(), &"same_owner".into()));
        assert_eq!(again["displaces"].to_string(), last);
        let new = fence(&again);
        assert!(again["fence"].as_u64() > last.parse().ok(), "fences grow");
        assert!(again["lease_expires"].as_str() > until.as_deref(), "the lease is a new one");
        until = again["lease_expires"].as_str().map(str::to_owned);
        assert_fenced(&sandbox, &last, None);
        last = new;
    }
    data(&sandbox, &["start", "plan.toml", "jwt", "--fence", &last]);
}

#[test]
fn auto_reclaim_keeps_what_is_completed() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &[]);
    let by = |args: &[&str]| data(&sandbox, &[args, &["--worktree", &one]].concat());
    by(&["check", "plan.toml", "jwt", "1", "--done"]);
    by(&["check", "plan.toml", "jwt", "2", "--defer", "--reason", "later"]);
    by(&["check", "plan.toml", "jwt", "validate.1", "--defer", "--reason", "later"]);
    by(&["substep", "complete", "plan.toml", "jwt", "refresh"]);
    claim(&sandbox, &one, &[]);
    let run = view(&sandbox);
    let jwt = step(&run, "jwt");
    assert_eq!(jwt["items"][0]["state"], "done");
    assert_eq!(jwt["items"][1]["state"], "deferred", "it is the step's own");
    assert_eq!(jwt["items"][2]["state"], "open", "its substep is not completed");
    assert_eq!(jwt["substeps"][0]["completed"], false);
    assert_eq!(jwt["substeps"][1]["completed"], true);

    // Once its substep is completed, a deferred item stays what it is.
    by(&["check", "plan.toml", "jwt", "validate.1", "--defer", "--reason", "later"]);
    by(&["substep", "complete", "plan.toml", "jwt", "validate"]);
    claim(&sandbox, &one, &[]);
    assert_eq!(step(&view(&sandbox), "jwt")["items"][2]["state"], "deferred");
}

/// A run with a free step and, behind it, one whose keeper was killed at work.
fn with_a_dead_keeper() -> Sandbox {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let steps = [
        command_step(&sandbox, "free", "true", ""),
        agent_step(&sandbox, "dead", "write work.txt half; touch {ready}; hang", ""),
        command_step(&sandbox, "late", "true", "needs = ['dead']"),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    // Nobody runs what somebody outside has.
    let two = tree(&sandbox, "two");
    claim(&sandbox, &two, &["--step", "free"]);
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let keeper = piton_testkit::runs::keeper(&sandbox);
    drop(worker.kill9());
    kill9(keeper);
    data(&sandbox, &["release", "plan.toml", "free", "--worktree", &two]);
    sandbox
}

/// The bytes that the killed attempt had left.
#[track_caller]
fn assert_kept_of_the_dead(sandbox: &Sandbox) {
    assert_eq!(kept(sandbox, "dead", "work.txt"), "half");
    assert_eq!(events_named(sandbox, "interrupted").len(), 1);
    assert!(sandbox.processes_with_env("PITON_ATTEMPT=").is_empty(), "nothing of it runs");
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
    let why = taken["passed_over"]["free"].as_str().expect("what it passed over");
    assert!(why.contains("free"), "{why}");
    assert_kept_of_the_dead(&sandbox);
}

#[test]
fn force_claim_looks_at_silent_holders_then_free_steps_then_live_ones_and_says_what_it_passed_over()
{
    let sandbox = sandbox_of(
        "[plan]
name = 'x'
[[step]]
id = 'a'
[[step]]
id = 'b'
[[step]]
id = 'c'
         [[step]]
id = 'd'
needs = ['c']
[[step]]
id = 'e'
",
    );
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    claim(&sandbox, &one, &["--step", "a"]);
    let silent = claim(&sandbox, &one, &["--step", "e", "--lease", "1s"]);
    let is_over = || {
        let ready = data(&sandbox, &["ready"])["ready"].clone();
        ready.as_array().is_some_and(|ready| ready.iter().any(|step| step["step"] == "e"))
    };
    sandbox.wait_until("the lease to be over", is_over);

    let taken = claim(&sandbox, &two, &["--force"]);
    assert_eq!((&taken["step"], &taken["grounds"]), (&"e".into(), &"lease_over".into()));
    assert_eq!(taken["displaces"], silent["fence"]);
    let over = taken["passed_over"].as_object().expect("what it passed over").clone();
    assert_eq!(over.keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert!(over["a"].as_str().expect("why").contains(&one), "{over:?}");
    assert!(over["b"].as_str().expect("why").contains("free"), "{over:?}");
    assert!(over["d"].as_str().expect("why").contains("waits for c"), "{over:?}");
    data(&sandbox, &["complete", "plan.toml", "e", "--worktree", &two]);

    for free in ["b", "c"] {
        let taken = claim(&sandbox, &two, &["--force"]);
        assert_eq!((&taken["step"], &taken["grounds"]), (&free.into(), &"free".into()));
        let over = taken["passed_over"].as_object().expect("what it passed over");
        assert_eq!(over.keys().collect::<Vec<_>>(), ["a"]);
        if free == "b" {
            data(&sandbox, &["complete", "plan.toml", "b", "--worktree", &two]);
        }
    }
    let told = sandbox.piton(&["claim", "plan.toml", "--worktree", &two, "--force"]).output();
    let told = told.success().stdout;
    assert!(told.contains("passed over") && told.contains(&one), "{told}");
    // One's own comes first; without it only the living are left.
    data(&sandbox, &["complete", "plan.toml", "c", "--worktree", &two]);
    claim(&sandbox, &two, &["--step", "d"]);
    data(&sandbox, &["complete", "plan.toml", "d", "--worktree", &two]);
    let taken = claim(&sandbox, &two, &["--force"]);
    assert_eq!((&taken["step"], &taken["grounds"]), (&"a".into(), &"forced".into()));
    assert_eq!(taken.get("passed_over"), None);
}

#[test]
fn force_claim_of_a_step_by_its_name_says_why_it_was_not_had() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &["--step", "docs"]);
    data(&sandbox, &["complete", "plan.toml", "docs", "--worktree", &one]);
    for more in [&["--step", "docs"][..], &["--step", "docs", "--force"]] {
        let told = claim(&sandbox, &one, more);
        assert_eq!(told["claimed"], false);
        assert!(told["blocked"]["docs"].as_str().expect("why").contains("completed"), "{told}");
    }
}

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
fn auto_reclaim_is_not_for_another_worktree_before_the_lease_is_over() {
    let sandbox = sandbox();
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    claim(&sandbox, &one, &["--step", "jwt"]);
    let other = claim(&sandbox, &two, &["--step", "jwt"]);
    assert_eq!(other["claimed"], false);
    let why = other["blocked"]["jwt"].as_str().expect("why");
    assert!(why.contains(&one), "{why}");
    assert!(other["blocked"]["routes"].as_str().expect("why").contains("waits for jwt"));
    assert_eq!(other["remaining_ready"], 1);
    let ready = data(&sandbox, &["ready"]);
    assert_eq!(ready["ready"][0]["step"], "docs");
    assert_eq!(ready["ready"].as_array().map(Vec::len), Some(1));
    assert_eq!(claim(&sandbox, &two, &[])["step"], "docs");
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
    assert!(here["blocked"]["jwt"].as_str().expect("why").contains("on there"), "{here}");
    let (exit, code, _) = refused(&sandbox, &["start", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!((exit, code.as_str()), (5, "E049"));
    let again = there(&claim_it);
    assert_eq!((&again["reclaimed"], &again["grounds"]), (&true.into(), &"same_owner".into()));
}

#[test]
fn auto_reclaim_after_a_lease_of_a_second_is_for_anybody() {
    let sandbox = sandbox();
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    let first = claim(&sandbox, &one, &["--lease", "1s"]);
    let early = claim(&sandbox, &two, &["--step", "jwt"]);
    let mut taken = early.clone();
    sandbox.wait_until("the lease to be over", || {
        taken = claim(&sandbox, &two, &["--step", "jwt"]);
        taken["claimed"] == true
    });
    assert_eq!((&taken["reclaimed"], &taken["grounds"]), (&true.into(), &"lease_over".into()));
    let claims = events_named(&sandbox, "claimed");
    assert_eq!(claims.len(), 2);
    let (expiry, at) = (first["lease_expires"].as_str(), claims[1]["at"].as_str());
    assert!(at >= expiry, "{at:?} is before {expiry:?}");
    assert_fenced(&sandbox, &fence(&first), None);
    let (exit, code, _) = refused(&sandbox, &["start", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!((exit, code.as_str()), (5, "E049"));
    let beat = ["heartbeat", "plan.toml", "jwt", "--worktree", &one, "--json"];
    let beat = sandbox.piton(&beat).output().expect_code(5).json();
    assert_eq!(beat["data"]["beat"], "fenced");

    // Also once the other has completed it.
    let by = ["complete", "plan.toml", "jwt", "--worktree", &two, "--force", "--reason", "x"];
    data(&sandbox, &by);
    let (exit, code, _) = refused(&sandbox, &["heartbeat", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!((exit, code.as_str()), (5, "E049"));
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
fn a_heartbeat_hears_of_a_stop_and_resume_lifts_it() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &[]);
    assert_eq!(data(&sandbox, &["stop"])["told"][0]["step"], "jwt", "nobody waits for it");
    let beat = data(&sandbox, &["heartbeat", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!(beat["beat"], "stop_requested");
    data(&sandbox, &["release", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!(claim(&sandbox, &one, &[])["claimed"], false, "it is stopped");
    assert_eq!(data(&sandbox, &["resume"])["outcome"], "lifted");
    assert_eq!(claim(&sandbox, &one, &[])["step"], "jwt");
    let (exit, code, _) = refused(&sandbox, &["resume"]);
    assert_eq!((exit, code.as_str()), (65, "E060"), "there is nothing to lift or to start");
}

#[test]
fn a_plan_that_is_done_is_said_to_be_and_opens_no_run() {
    let sandbox = sandbox_of("[plan]\nname = 'one'\n[[step]]\nid = 'jwt'\n");
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    let first = claim(&sandbox, &one, &[]);
    data(&sandbox, &["complete", "plan.toml", "jwt", "--worktree", &one]);
    let done = claim(&sandbox, &one, &[]);
    assert_eq!((&done["claimed"], &done["all_completed"]), (&false.into(), &true.into()));
    assert_eq!(done["run"], first["run"]);

    // A new run is for somebody to open. Its fences are not those of the old one.
    let opened = data(&sandbox, &["open", "plan.toml"]);
    assert_ne!(opened["run"]["run"], first["run"]);
    let second = claim(&sandbox, &two, &[]);
    assert_eq!((&second["run"], &second["fence"]), (&opened["run"]["run"], &first["fence"]));
    let fence = fence(&first);
    let by_plan = ["complete", "plan.toml", "jwt", "--fence", &fence];
    assert_eq!(refused(&sandbox, &by_plan).0, 2, "which run is meant?");
    let run = first["run"].as_str().expect("an id");
    data(&sandbox, &["complete", run, "jwt", "--fence", &fence]);
    let (exit, code, _) = refused(&sandbox, &["fail", run, "jwt", "--fence", "7", "--reason", "x"]);
    assert_eq!((exit, code.as_str()), (1, "E050"));
    let run = second["run"].as_str().expect("an id");
    data(&sandbox, &["complete", run, "jwt", "--fence", &fence]);
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
fn auto_reclaim_from_a_folder_below_is_from_the_same_worktree() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let below = format!("{one}/src/deep");
    sandbox.write(format!("{below}/new.txt"), "important");
    let first = claim(&sandbox, &below, &[]);
    assert_eq!(first["snapshots"], true);
    let again = claim(&sandbox, &one, &[]);
    assert_eq!((&again["step"], &again["grounds"]), (&"jwt".into(), &"same_owner".into()));
    let by = |args: &[&str]| data(&sandbox, &[args, &["--worktree", &below]].concat());
    let kept = by(&["checkpoint", "plan.toml", "jwt", "--note", "x"]);
    let name = kept["snapshot"]["refname"].as_str().expect("its bytes are kept");
    let blob = format!("{name}:src/deep/new.txt");
    assert_eq!(sandbox.git(&["cat-file", "blob", &blob]), "important");
    let run = view(&sandbox);
    let owners = step(&run, "jwt")["attempts"].as_array().expect("attempts");
    assert!(owners.iter().all(|owner| owner["worktree"] == one.as_str()), "{owners:?}");
    assert_eq!(by(&["release", "plan.toml", "jwt"])["was_claimed_by"], one.as_str());
}

#[test]
fn the_worktree_of_the_run_is_not_shared_with_a_keeper() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
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
        let why = refused["blocked"]["docs"].as_str().expect("why");
        let stop = format!("`piton stop {run} jwt`");
        for part in ["in use by step jwt", "a keeper on", "`piton resume", &stop, "--force`"] {
            assert!(why.contains(part), "no {part:?} in {why}");
        }
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
fn what_a_dead_keeper_left_does_not_bar_the_worktree_of_the_run() {
    let sandbox = with_a_dead_keeper();
    let own = worktree(&sandbox).to_str().expect("text").to_owned();
    let taken = claim(&sandbox, &own, &["--step", "free"]);
    assert_eq!((&taken["claimed"], &taken["grounds"]), (&true.into(), &"free".into()));
    assert_kept_of_the_dead(&sandbox);
}

#[test]
fn what_was_reported_stays_when_the_work_is_said_to_begin() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &[]);
    let by = |args: &[&str]| data(&sandbox, &[args, &["--worktree", &one]].concat());
    by(&["checkpoint", "plan.toml", "jwt", "--progress", "40"]);
    by(&["start", "plan.toml", "jwt"]);
    by(&["start", "plan.toml", "jwt"]);
    assert_eq!(step(&view(&sandbox), "jwt")["report"]["progress"], 40);
    let shown = data(&sandbox, &["show", "plan.toml", "jwt"]);
    let steps = shown["run"]["steps"].as_array().expect("a list");
    assert_eq!((steps.len(), &steps[0]["report"]["progress"]), (1, &40.into()));
    assert_eq!(refused(&sandbox, &["show", "plan.toml", "nope"]).1, "E059");
    assert_eq!(events_named(&sandbox, "started").len(), 1, "it began once");
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
}

#[test]
fn force_claim_against_a_live_keeper_ends_it_first() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
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
    let why = polite["blocked"]["jwt"].as_str().expect("why");
    for offer in ["piton resume", "piton stop", "--force"] {
        assert!(why.contains(offer), "{why}");
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
fn completion_is_strict() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &[]);
    let complete = ["complete", "plan.toml", "jwt", "--worktree", &one];
    let by = |args: &[&str]| data(&sandbox, &[args, &["--worktree", &one]].concat());
    let (exit, code, message) = refused(&sandbox, &complete);
    assert_eq!((exit, code.as_str()), (1, "E052"));
    assert!(message.contains("validate, refresh"), "{message}");
    by(&["substep", "complete", "plan.toml", "jwt", "validate"]);
    by(&["substep", "complete", "plan.toml", "jwt", "refresh"]);
    by(&["check", "plan.toml", "jwt", "2", "--defer", "--reason", "later"]);
    let (exit, code, message) = refused(&sandbox, &complete);
    assert_eq!((exit, code.as_str()), (1, "E051"));
    assert!(message.contains("1, validate.1"), "{message}");
    assert_eq!(refused(&sandbox, &[&complete[..], &["--force"]].concat()).0, 2, "why?");
    by(&["complete", "plan.toml", "jwt", "--force", "--reason", "überflüssig"]);
    let waived = &events_named(&sandbox, "completed")[0]["waived"];
    assert_eq!(waived["reason"], "überflüssig");
    assert_eq!(waived["items"], serde_json::json!(["1", "validate.1"]));
    let run = view(&sandbox);
    assert_eq!(step(&run, "jwt")["items"][1]["state"], "deferred", "deferred items stay deferred");
    assert_eq!(&step(&run, "jwt")["waived"], waived);
    let shown = sandbox.piton(&["show", "plan.toml", "jwt"]).output().success().stdout;
    let told = "completed by force in spite of item 1, item validate.1: überflüssig";
    assert!(shown.contains(told), "{shown}");
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &[]);
    let cases: [(&[&str], i32, &str); 7] = [
        (&["start", "plan.toml", "nope", "--worktree", &one], 2, "E059"),
        (&["claim", "plan.toml", "--step", "nope", "--worktree", &one], 2, "E059"),
        (&["check", "plan.toml", "jwt", "9", "--done", "--worktree", &one], 2, "E076"),
        (&["substep", "complete", "plan.toml", "jwt", "nope", "--worktree", &one], 2, "E076"),
        (&["start", "plan.toml", "docs", "--worktree", &one], 1, "E050"),
        (&["start", "plan.toml", "docs", "--fence", "1"], 1, "E050"),
        (&["claim", "plan.toml"], 2, "E071"),
    ];
    for (args, exit, code) in cases {
        let told = refused(&sandbox, args);
        assert_eq!((told.0, told.1.as_str()), (exit, code), "{args:?} {}", told.2);
    }
    for write in WRITES.iter().filter(|write| !write.contains(&"--force")) {
        assert_eq!(refused(&sandbox, write).0, 2, "{write:?} names no claim");
    }
}

#[test]
fn reports_have_their_limits() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &[]);
    let long = format!("\"{}\"", "ü".repeat(40_000));
    sandbox.write("long.json", &long);
    sandbox.write("fine.json", "{\"größe\": [1]}\n");
    let wrong: [&[&str]; 6] = [
        &["--progress", "101"],
        &["--confidence", "1.5"],
        &["--data", "{"],
        &["--data", "@long.json"],
        &["--data", "@nowhere.json"],
        &["--file", ":3"],
    ];
    let base = ["checkpoint", "plan.toml", "jwt", "--worktree", &one];
    for more in wrong {
        assert_eq!(refused(&sandbox, &[&base[..], more].concat()).0, 2, "{more:?}");
    }
    data(&sandbox, &[&base[..], &["--data", "@fine.json"]].concat());
    let run = view(&sandbox);
    assert_eq!(step(&run, "jwt")["report"]["data"], "{\"größe\":[1]}");
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

#[test]
fn a_folder_that_is_no_worktree_keeps_facts_only() {
    let sandbox = sandbox();
    let elsewhere = sandbox.root().join("elsewhere/below").to_str().expect("text").to_owned();
    std::fs::create_dir_all(&elsewhere).expect("a folder");
    let claimed = claim(&sandbox, &elsewhere, &[]);
    assert_eq!(claimed["snapshots"], false);
    let args =
        ["checkpoint", "plan.toml", "jwt", "--worktree", &elsewhere, "--note", "n", "--json"];
    let told = sandbox.piton(&args).output().success().json();
    assert_eq!(told["data"]["snapshot"], Value::Null);
    let issue = told["issues"][0]["message"].as_str().unwrap_or_default().to_owned();
    assert!(issue.contains("no bytes were kept"), "{told}");
    let run = view(&sandbox);
    assert_eq!(step(&run, "jwt")["report"]["note"], "n");
    assert_eq!(step(&run, "jwt")["attempts"][0]["worktree"], elsewhere.as_str());
}

/// Runs a plan whose one agent says these things to piton.
#[track_caller]
fn inside(commands: &[&str], more: &str) -> (Sandbox, Output) {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let said: Vec<String> = commands.iter().map(|command| format!("sh {command}")).collect();
    let script = format!("write work.txt ähm; {}", said.join("; "));
    let steps =
        [agent_step(&sandbox, "jwt", &script, more), command_step(&sandbox, "end", "true", "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let out = sandbox
        .piton(&["run", "plan.toml", "--auto-continue", "--trust", "--snapshot-every", "1s"])
        .output();
    (sandbox, out)
}

#[test]
fn inside_an_attempt_no_arguments_are_needed() {
    let more = "items = ['a', 'b']\nsubsteps = [{ id = 'validate', title = 'v' }]";
    let (sandbox, out) = inside(
        &[
            "piton claim --json > {claim}",
            "piton checkpoint --note 'half of it' --progress 50",
            "piton heartbeat --json > {beat}",
            "piton check 1 2 --done",
            "piton substep complete validate",
            "piton item add 'one more'",
            "piton check 3 --done",
            "piton complete --json > {complete} || true",
        ],
        more,
    );
    out.success();
    let claim = sandbox.read_json(sandbox.mark("claim"))["data"].clone();
    assert_eq!((&claim["claimed"], &claim["step"]), (&true.into(), &"jwt".into()));
    let claims = events_named(&sandbox, "claimed");
    assert_eq!(claims[0]["position"], claim["fence"], "no second claim was made");
    assert_eq!(claims.len(), 2, "one a step");
    assert_eq!(sandbox.read_json(sandbox.mark("beat"))["data"]["beat"], "continue");
    let refused = sandbox.read_json(sandbox.mark("complete"));
    assert_eq!(refused["status"], "error", "piton completes it itself");
    let run = view(&sandbox);
    let jwt = step(&run, "jwt");
    assert_eq!(
        (&jwt["status"], &jwt["report"]["note"]),
        (&"completed".into(), &"half of it".into())
    );
    let reported = events_named(&sandbox, "checkpointed");
    let own = reported.iter().find(|event| event["report"]["progress"] == 50).expect("the report");
    let name = own["snapshot"]["refname"].as_str().expect("its bytes are kept");
    assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{name}:work.txt")]), "ähm");
}

#[test]
fn what_is_claimed_inside_is_told_as_it_is_now() {
    let sandbox = sandbox();
    let elsewhere = sandbox.root().join("elsewhere").to_str().expect("text").to_owned();
    std::fs::create_dir_all(&elsewhere).expect("a folder");
    let inside = |claimed: &Value| {
        let run = claimed["run"].as_str().expect("an id").to_owned();
        let piton = sandbox.piton(&["claim", "--json"]).env("PITON_RUN", run);
        let piton = piton.env("PITON_STEP", "jwt").env("PITON_FENCE", fence(claimed));
        piton.output().success().json()["data"].clone()
    };
    let first = claim(&sandbox, &elsewhere, &["--lease", "1h"]);
    assert_eq!((&inside(&first)["reclaimed"], &first["reclaimed"]), (&false.into(), &false.into()));
    let again = claim(&sandbox, &elsewhere, &["--lease", "1h"]);
    data(&sandbox, &["heartbeat", "plan.toml", "jwt", "--worktree", &elsewhere, "--lease", "5h"]);
    let told = inside(&again);
    assert_eq!(told["fence"], again["fence"]);
    assert_eq!((&told["reclaimed"], &told["snapshots"]), (&true.into(), &false.into()), "{told}");
    let until = |claim: &Value| claim["lease_expires"].as_str().expect("a time").to_owned();
    assert!(until(&told) > until(&again), "the lease was renewed since: {told}");
}

#[test]
fn what_is_in_the_way_is_told_and_not_who_has_the_step() {
    let sandbox = sandbox();
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    claim(&sandbox, &one, &["--step", "jwt"]);
    let why = |told: &Value| told["blocked"]["jwt"].as_str().expect("why").to_owned();
    data(&sandbox, &["ask", "plan.toml", "jwt", "which one?", "--worktree", &one]);
    let told = claim(&sandbox, &two, &["--step", "jwt", "--force"]);
    assert_eq!(told["claimed"], false);
    assert!(why(&told).contains("which one?"), "{told}");
    data(&sandbox, &["stop", "plan.toml"]);
    let told = claim(&sandbox, &one, &["--step", "jwt"]);
    assert!(why(&told).contains("stopped"), "{told}");
}

#[test]
fn a_fence_of_another_step_is_told_to_be_stale() {
    let sandbox = sandbox();
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    claim(&sandbox, &one, &["--step", "jwt"]);
    let later = fence(&claim(&sandbox, &two, &["--step", "docs"]));
    let out = sandbox.piton(&["start", "plan.toml", "jwt", "--fence", &later, "--json"]).output();
    let told = out.expect_code(5).json();
    assert_eq!(told["issues"][0]["code"], "E049", "{told}");
}

#[test]
fn what_one_has_already_is_not_counted_as_ready() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    assert_eq!(claim(&sandbox, &one, &["--step", "jwt"])["remaining_ready"], 1, "docs");
    assert_eq!(claim(&sandbox, &one, &["--step", "docs"])["remaining_ready"], 0);
}

#[test]
fn a_prompt_without_an_agent_is_for_whoever_claims_the_step() {
    let text = "[plan]\nname = 'told'\n[[step]]\nid = 'a'\nprompt = 'write it down'\n";
    let sandbox = sandbox_of(text);
    let told = claim(&sandbox, &tree(&sandbox, "one"), &[]);
    assert_eq!((&told["step"], &told["prompt"]), (&"a".into(), &"write it down".into()));
    let (_, code, message) = refused(&sandbox, &["run", "plan.toml", "--auto-continue", "--trust"]);
    assert!(code == "E060" && message.contains("nothing to start"), "{message}");
}

#[test]
fn the_environment_names_a_run_as_an_argument_does() {
    let sandbox = sandbox();
    let claimed = claim(&sandbox, &tree(&sandbox, "one"), &[]);
    for run in ["auth-", ""] {
        let piton = sandbox.piton(&["heartbeat", "--json"]).env("PITON_STEP", "jwt");
        let piton = piton.env("PITON_FENCE", fence(&claimed));
        let piton = if run.is_empty() { piton } else { piton.env("PITON_RUN", run) };
        assert_eq!(piton.output().success().json()["data"]["beat"], "continue", "{run:?}");
    }
}
