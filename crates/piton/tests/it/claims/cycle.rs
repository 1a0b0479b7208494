//! The whole cycle of a claim, verb by verb: what each answers, what it refuses, and how strict it is.

use piton_testkit::runs::{WRITES, data, events, events_named, kept, refused, step, tree, view};
use serde_json::Value;

use super::{claim, fence, sandbox, sandbox_of};

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
    let report = ["--progress", "40", "--note", "日本語 ✓ — half of it"];
    under(&[&["checkpoint", "plan.toml", "jwt"], &report[..]].concat());
    assert_eq!(kept(&sandbox, "jwt", "Prüfung.ts"), "grüße");

    under(&["check", "plan.toml", "jwt", "1", "validate.1", "--done"]);
    under(&["check", "plan.toml", "jwt", "2", "--defer", "--reason", "später"]);
    let gap =
        under(&["item", "add", "plan.toml", "jwt", "fehlt: Ablauf", "--priority", "critical"]);
    assert_eq!(gap["item"], "3");
    under(&["check", "plan.toml", "jwt", "3", "--done"]);
    under(&["substep", "complete", "plan.toml", "jwt", "validate"]);
    under(&["substep", "complete", "plan.toml", "jwt", "refresh"]);

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
fn open_and_claim_execute_nothing_and_need_no_trust() {
    let sandbox = sandbox_of("[plan]\nname = 'x'\n[[step]]\nid = 'a'\nrun = 'touch ran'\n");
    data(&sandbox, &["open", "plan.toml"]);
    let claimed = claim(&sandbox, &tree(&sandbox, "one"), &[]);
    assert_eq!(claimed["step"], "a");
    assert!(sandbox.processes_with_env("PITON_ATTEMPT=").is_empty());
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

    assert_eq!(
        data(&sandbox, &["open", "plan.toml"])["run"]["run"],
        first["run"],
        "it is reported"
    );

    // A new run is for somebody to ask for. Its fences are not those of the old one.
    let opened = data(&sandbox, &["open", "plan.toml", "--fresh"]);
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

/// What is strict about a completion is in the core's rules; here it is asked, and passed over by force.
#[test]
fn what_is_open_is_passed_over_by_force_and_with_a_reason() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    claim(&sandbox, &one, &[]);
    let force = ["complete", "plan.toml", "jwt", "--worktree", &one, "--force"];
    assert_eq!(refused(&sandbox, &force).0, 2, "why?");
    data(&sandbox, &[&force[..], &["--reason", "überflüssig"]].concat());
    let shown = sandbox.piton(&["show", "plan.toml", "jwt"]).output().success().stdout;
    let told = "completed by force in spite of substep validate, substep refresh, item 1, item 2, \
                item validate.1: überflüssig";
    assert!(shown.contains(told), "{shown}");
    // By force whoever has it, where somebody has it.
    let docs = ["complete", "plan.toml", "docs", "--force", "--reason", "seen"];
    assert_eq!(refused(&sandbox, &docs).1, "E050");
    claim(&sandbox, &one, &["--step", "docs"]);
    data(&sandbox, &docs);
}

#[test]
fn every_write_names_its_claim() {
    let sandbox = sandbox();
    claim(&sandbox, &tree(&sandbox, "one"), &[]);
    for write in WRITES.iter().filter(|write| !write.contains(&"--force")) {
        assert_eq!(refused(&sandbox, write).0, 2, "{write:?} names no claim");
    }
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
fn a_prompt_without_an_agent_is_for_whoever_claims_the_step() {
    let text = "[plan]\nname = 'told'\n[[step]]\nid = 'a'\nprompt = 'write it down'\n";
    let sandbox = sandbox_of(text);
    let told = claim(&sandbox, &tree(&sandbox, "one"), &[]);
    assert_eq!((&told["step"], &told["prompt"]), (&"a".into(), &"write it down".into()));
    let (_, code, message) = refused(&sandbox, &["run", "plan.toml", "--auto-continue", "--trust"]);
    assert!(code == "E060" && message.contains("nothing to start"), "{message}");
}
