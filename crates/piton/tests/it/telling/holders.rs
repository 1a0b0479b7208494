//! What holders outside are told and what is told of them: reports that reach every snapshot, commits that
//! count once, refusals with a way out that is open.

use std::path::Path;

use piton_testkit::Sandbox;
use piton_testkit::runs::{commit_file, data, events_named, lay_plan, refused, step, tree, view};
use serde_json::Value;

use super::{commands, hint, paste};

const PLAN: &str = "\
[plan]
name = 'auth'

[[step]]
id = 'jwt'
title = 'JWT validation'
items = ['signature check']

[[step]]
id = 'docs'

[[step]]
id = 'routes'
needs = ['jwt']
";

fn sandbox() -> (Sandbox, String) {
    sandbox_of(PLAN)
}

fn sandbox_of(plan: &str) -> (Sandbox, String) {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, plan);
    let one = tree(&sandbox, "one");
    (sandbox, one)
}

#[track_caller]
fn claim(sandbox: &Sandbox, tree: &str, step: &str) -> String {
    let args = ["claim", "plan.toml", "--worktree", tree, "--step", step];
    let claimed = data(sandbox, &args);
    assert_eq!(claimed["claimed"], true, "{claimed}");
    claimed["fence"].to_string()
}

#[test]
fn every_checkpoint_has_a_snapshot_whose_message_tells_it() {
    let (sandbox, one) = sandbox();
    claim(&sandbox, &one, "jwt");
    let checkpoint = ["checkpoint", "plan.toml", "jwt", "--worktree", &one];
    sandbox.write(Path::new(&one).join("auth.ts"), "one\n");
    let first = data(&sandbox, &[&checkpoint[..], &["--note", "first words"]].concat());
    // Nothing changed but what is said.
    let more = ["--note", "second words", "--progress", "40", "--next", "expiry"];
    let second = data(&sandbox, &[&checkpoint[..], &more].concat());
    let third = data(&sandbox, &checkpoint);
    let message = |told: &Value| {
        let commit = told["snapshot"]["commit"].as_str().unwrap_or_else(|| panic!("none: {told}"));
        sandbox.git(&["show", "--no-patch", "--format=%B", commit])
    };
    assert!(message(&first).contains("note: first words"), "{}", message(&first));
    for told in [&second, &third] {
        let message = message(told);
        let facts = ["at a checkpoint", "note: second words", "40", "next: expiry"];
        assert!(facts.iter().all(|fact| message.contains(fact)), "{message}");
        assert_eq!(told["snapshot"]["reason"], "checkpoint");
        assert_eq!(told["snapshot"]["tree"], first["snapshot"]["tree"]);
        let name = told["snapshot"]["refname"].as_str().expect("a ref");
        assert_eq!(told["snapshot"]["commit"], sandbox.git(&["rev-parse", name]));
    }
    let listed = data(&sandbox, &["snapshot", "list"]);
    let rows = listed["snapshots"].as_array().expect("a list");
    assert!(rows.iter().filter(|row| row["reason"] == "checkpoint").count() == 3, "{listed}");
    assert_eq!(events_named(&sandbox, "checkpointed").len(), 3);
}

#[test]
fn another_commit_is_refused_whatever_landed() {
    let (sandbox, one) = sandbox();
    let two = tree(&sandbox, "two");
    let base = sandbox.git(&["rev-parse", "HEAD"]);
    // Somebody lands first, so that the other's commit lands within a merge.
    let docs = claim(&sandbox, &two, "docs");
    let jwt = claim(&sandbox, &one, "jwt");
    data(&sandbox, &["check", "plan.toml", "jwt", "1", "--done", "--fence", &jwt]);
    let theirs = commit_file(&sandbox, Path::new(&two), "docs.md", "how\n");
    data(&sandbox, &["complete", "plan.toml", "docs", "--fence", &docs, "--commit", &theirs]);
    let early = commit_file(&sandbox, Path::new(&one), "auth.ts", "one\n");
    let given = commit_file(&sandbox, Path::new(&one), "auth.ts", "two\n");
    let complete = ["complete", "plan.toml", "jwt", "--fence", &jwt, "--commit"];
    let done = data(&sandbox, &[&complete[..], &[&given]].concat());
    let landed = done["commit"].as_str().expect("a commit").to_owned();
    assert_ne!(landed, given, "it landed within a merge");
    // What is in what landed, and what is not.
    let late = commit_file(&sandbox, Path::new(&one), "auth.ts", "three\n");
    for other in [&base, &theirs, &early, &late] {
        let (exit, code, message) = refused(&sandbox, &[&complete[..], &[other]].concat());
        assert_eq!((exit, code.as_str()), (1, "E085"), "{other}: {message}");
        assert!(message.contains(&given[..7]) && message.contains(&other[..7]), "{message}");
    }
    for same in [&given, &landed] {
        assert_eq!(data(&sandbox, &[&complete[..], &[same]].concat())["commit"], landed.as_str());
    }
    assert_eq!(events_named(&sandbox, "completed").len(), 2);
    let routes = claim(&sandbox, &one, "routes");
    let by = ["complete", "plan.toml", "routes", "--fence", &routes];
    data(&sandbox, &by);
    let (_, code, message) = refused(&sandbox, &[&by[..], &["--commit", &late]].concat());
    assert!(code == "E085" && message.contains("without a commit"), "{message}");
}

#[test]
fn a_fresh_start_beside_a_claim_names_a_way_that_is_open() {
    let (sandbox, one) = sandbox();
    claim(&sandbox, &one, "jwt");
    claim(&sandbox, &one, "docs");
    let fresh = ["open", "plan.toml", "--fresh", "--yes"];
    let old = view(&sandbox)["run"].clone();
    let way = hint(&sandbox, "E073", &fresh);
    assert!(!way.contains("piton stop"), "nobody ends by being asked: {way}");
    assert_eq!(paste(&sandbox, &way, 0)["released"], true);
    assert_eq!(paste(&sandbox, &way, 1)["released"], true);
    assert_ne!(data(&sandbox, &fresh)["run"]["run"], old);
}

/// How a changed plan is accepted is pasted in `pasted`; here, verbs that accept nothing name one that does.
#[test]
fn a_changed_plan_names_the_ways_that_are_open() {
    let (sandbox, one) = sandbox();
    claim(&sandbox, &one, "jwt");
    let old = view(&sandbox)["run"].clone();
    sandbox.write("plan.toml", &PLAN.replace("id = 'docs'", "id = 'docs'\ntitle = 'Say how'"));
    for verb in [&["worktree", "create", "plan.toml", "docs"][..], &["resume", "--dry-run"]] {
        let way = hint(&sandbox, "E048", verb);
        let ways = commands(&way);
        assert_eq!(ways[0], ["piton", "open", "plan.toml", "--accept-plan"], "{way}");
        // Somebody has a step: before that has ended the run is not left aside.
        assert_eq!((ways[1][1].as_str(), ways[2][3].as_str()), ("release", "--fresh"), "{way}");
    }
    let way = hint(&sandbox, "E048", &["worktree", "create", "plan.toml", "docs"]);
    paste(&sandbox, &way, 1);
    assert_ne!(paste(&sandbox, &way, 2)["run"]["run"], old, "started over: {way}");
}

/// What is printed for people when a command is refused.
#[track_caller]
fn refusal(sandbox: &Sandbox, args: &[&str]) -> String {
    let out = sandbox.piton(args).output();
    assert_ne!(out.code, Some(0), "{out}");
    out.stderr
}

#[test]
fn what_is_missing_on_a_command_line_is_what_is_asked_for() {
    let (sandbox, one) = sandbox();
    // Before there is any run.
    let start = hint(&sandbox, "E064", &["start", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!(commands(&start)[0][..3], ["piton", "claim", "plan.toml"], "{start}");
    assert!(hint(&sandbox, "E064", &["start"]).contains("piton claim plan.toml"));
    for verb in [&["claim", "nope.toml", "--worktree", &one][..], &["start", "nope.toml", "jwt"]] {
        let (_, code, message) = refused(&sandbox, verb);
        assert_eq!(code, "E060", "{message}");
        assert!(message.contains("nope.toml"), "{message}");
    }
    let opened = paste(&sandbox, &start, 0);
    assert_eq!(opened["step"], "jwt");
    sandbox.write("other.toml", "[plan]\nname = 'other'\n[[step]]\nid = 'a'\n");
    let other = hint(&sandbox, "E064", &["start", "other.toml", "a", "--worktree", &one]);
    assert_eq!(commands(&other)[0][..3], ["piton", "claim", "other.toml"], "{other}");
    let (_, code, message) = refused(&sandbox, &["claim", "nope.toml", "--worktree", &one]);
    assert_eq!(code, "E060", "{message}");
    assert_eq!(refused(&sandbox, &["claim", "nobody", "--worktree", &one]).1, "E064");

    // Of which step, and which part of it.
    let (_, _, message) = refused(&sandbox, &["item", "add", "plan.toml", "no test for skew"]);
    assert!(message.contains("of which step"), "{message}");
    for (verb, what) in
        [(["item", "add"], "which text"), (["substep", "complete"], "which substep")]
    {
        let (exit, _, message) = refused(&sandbox, &[&verb[..], &["plan.toml", "jwt"]].concat());
        assert_eq!(exit, 2);
        assert!(message.contains(what) && message.contains("jwt"), "{message}");
    }
    let (_, _, message) = refused(&sandbox, &["ask", "plan.toml", "jwt"]);
    assert!(message.contains("which question"), "{message}");

    // Texts.
    let by = ["plan.toml", "jwt", "--fence", "2"];
    let data = ["--data", "{nope"];
    hint(&sandbox, "E071", &[&["checkpoint"], &by[..], &data].concat());
    hint(&sandbox, "E071", &[&["checkpoint"], &by[..], &["--data", "@nope.json"]].concat());
    hint(&sandbox, "E071", &["item", "add", "plan.toml", "jwt", "  ", "--fence", "2"]);
}

#[test]
fn long_texts_are_cut_for_people_and_whole_for_programs() {
    let (sandbox, one) = sandbox();
    claim(&sandbox, &one, "jwt");
    let long = |size: usize| "note ".repeat(size / 5);
    let checkpoint = ["checkpoint", "plan.toml", "jwt", "--worktree", &one, "--note"];
    let told = refusal(&sandbox, &[&checkpoint[..], &[&long(70_000)]].concat());
    assert!(
        told.len() < 2000 && told.contains("--note") && told.contains("too long"),
        "{} bytes",
        told.len()
    );
    let (_, code, message) = refused(&sandbox, &[&checkpoint[..], &[&long(70_000)]].concat());
    assert_eq!(code, "E071");
    assert!(message.len() > 70_000 && message.contains("too long"));

    data(&sandbox, &[&checkpoint[..], &[&long(8_000)]].concat());
    let shown = sandbox.piton(&["show", "plan.toml", "jwt"]).output().stdout;
    assert!(shown.lines().all(|line| line.len() < 1000), "{shown}");
    assert!(shown.contains("note note"), "{shown}");
    assert_eq!(step(&view(&sandbox), "jwt")["report"]["note"], long(8_000));
    let item = ["item", "add", "plan.toml", "jwt", &long(3_000), "--worktree", &one];
    assert!(sandbox.piton(&item).output().stdout.len() < 1000);
}

#[test]
fn one_step_is_shown_beside_what_the_run_is_at() {
    let (sandbox, one) = sandbox();
    claim(&sandbox, &one, "jwt");
    let shown = sandbox.piton(&["show", "plan.toml", "docs"]).output().stdout;
    assert!(!shown.contains("between steps"), "{shown}");
    assert!(shown.contains("step jwt by"), "{shown}");
    assert!(!shown.contains("JWT validation"), "only the one that was asked for: {shown}");
}

#[test]
fn a_claim_whose_worktree_was_removed_is_still_its_owners() {
    let (sandbox, one) = sandbox();
    let fence = claim(&sandbox, &one, "jwt");
    sandbox.git(&["worktree", "remove", "--force", &one]);
    let by = ["plan.toml", "jwt", "--worktree", &one];
    assert_eq!(data(&sandbox, &[&["heartbeat"], &by[..]].concat())["beat"], "continue");
    let name = Path::new(&one).file_name().and_then(|name| name.to_str()).expect("a name");
    let roundabout = Path::new(&one).with_file_name("nowhere").join(format!("../{name}/"));
    std::fs::create_dir(Path::new(&one).with_file_name("nowhere")).expect("a folder");
    let roundabout = roundabout.to_str().expect("text");
    let beat = ["heartbeat", "plan.toml", "jwt", "--worktree", roundabout];
    assert_eq!(data(&sandbox, &beat)["beat"], "continue", "{roundabout}");
    let out = sandbox.piton(&[&["checkpoint"], &by[..], &["--note", "gone"]].concat()).output();
    assert!(out.code == Some(0) && out.stderr.contains("is not there any more"), "{out}");
    let (exit, code, _) =
        refused(&sandbox, &["heartbeat", "plan.toml", "docs", "--worktree", &one]);
    assert_eq!((exit, code.as_str()), (2, "E071"), "it never had that one");
    sandbox.piton(&["show", "plan.toml", "jwt"]).output().success();
    let released = data(&sandbox, &[&["release"], &by[..]].concat());
    assert_eq!(released["was_claimed_by"], one.as_str());
    let (exit, code, _) = refused(&sandbox, &["start", "plan.toml", "jwt", "--fence", &fence]);
    assert_eq!((exit, code.as_str()), (5, "E049"));
}

#[test]
fn steps_are_told_in_the_order_of_the_plan() {
    let steps: String =
        (1..=11).map(|n| format!("[[step]]\nid = 's{n}'\nneeds = ['z']\n")).collect();
    let (sandbox, one) = sandbox_of(&format!("[plan]\nname = 'auth'\n[[step]]\nid = 'z'\n{steps}"));
    let two = tree(&sandbox, "two");
    claim(&sandbox, &one, "z");
    for verb in [&["claim", "plan.toml", "--worktree", &two][..], &["ready", "plan.toml"]] {
        let told = sandbox.piton(verb).output().stdout;
        let rows = told.lines().filter(|line| line.contains("waits for z"));
        let names: Vec<&str> = rows.filter_map(|line| line.split_whitespace().next()).collect();
        let expected: Vec<String> = (1..=11).map(|n| format!("s{n}")).collect();
        assert_eq!(names, expected, "{told}");
        let blocked = data(&sandbox, verb)["blocked"].clone();
        let blocked = blocked.as_array().expect("rows").iter();
        let names: Vec<&str> = blocked.filter_map(|row| row["step"].as_str()).skip(1).collect();
        assert_eq!(names, expected, "behind z");
    }
}

#[test]
fn a_plan_with_steps_by_hand_is_run_as_far_as_it_goes() {
    let plan = "\
[plan]
name = 'auth'

[[step]]
id = 'build'
run = 'echo built > built'

[[step]]
id = 'review'
needs = ['build']

[[step]]
id = 'ship'
needs = ['review']
run = 'cat reviewed > shipped'
";
    let (sandbox, one) = sandbox_of(plan);
    let run = ["run", "plan.toml", "--trust"];
    let (exit, code, message) = refused(&sandbox, &run);
    assert_eq!((exit, code.as_str()), (4, "E066"), "{message}");
    assert!(message.contains("until review is claimed"), "{message}");
    assert_eq!(step(&view(&sandbox), "build")["status"], "completed");
    let shown = sandbox.piton(&["status", "plan.toml"]).output().stdout;
    assert!(shown.contains("review can be claimed"), "{shown}");
    let way = hint(&sandbox, "E066", &["resume"]);
    let claimed = &commands(&way)[0];
    assert_eq!(claimed[3..5], ["--step", "review"], "{way}");

    let branch = view(&sandbox)["branch"].as_str().expect("a branch").to_owned();
    sandbox.git_in(Path::new(&one), &["merge", "--quiet", "--ff-only", &branch]);
    let fence = claim(&sandbox, &one, "review");
    let done = commit_file(&sandbox, Path::new(&one), "reviewed", "fine\n");
    data(&sandbox, &["complete", "plan.toml", "review", "--fence", &fence, "--commit", &done]);
    assert_eq!(data(&sandbox, &["resume"])["outcome"], "completed");
    assert_eq!(sandbox.git(&["show", &format!("{branch}:shipped")]), "fine");
}
