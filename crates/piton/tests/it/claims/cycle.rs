//! The whole cycle of a claim, verb by verb: what each answers, what it refuses, and how strict it is.

use piton_testkit::runs::{WRITES, data, events, events_named, kept, refused, step, tree, view};
use serde_json::Value;

use super::{PLAN, claim, fence, sandbox, sandbox_of};

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
    // By force whoever has it, where somebody has it.
    for (id, why) in [("docs", "pending"), ("jwt", "completed")] {
        let (exit, code, message) =
            refused(&sandbox, &["complete", "plan.toml", id, "--force", "--reason", "x"]);
        assert_eq!((exit, code.as_str()), (1, "E050"));
        assert!(message.contains(why), "{message}");
    }
    claim(&sandbox, &one, &["--step", "docs"]);
    data(&sandbox, &["complete", "plan.toml", "docs", "--force", "--reason", "seen"]);
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
fn a_prompt_without_an_agent_is_for_whoever_claims_the_step() {
    let text = "[plan]\nname = 'told'\n[[step]]\nid = 'a'\nprompt = 'write it down'\n";
    let sandbox = sandbox_of(text);
    let told = claim(&sandbox, &tree(&sandbox, "one"), &[]);
    assert_eq!((&told["step"], &told["prompt"]), (&"a".into(), &"write it down".into()));
    let (_, code, message) = refused(&sandbox, &["run", "plan.toml", "--auto-continue", "--trust"]);
    assert!(code == "E060" && message.contains("nothing to start"), "{message}");
}
