//! What is told afterwards: reports in the next prompt, who worked on a step, and how that ended.

use piton_testkit::kill9;
use piton_testkit::runs::{
    agent_step, attempt_folder, events_named, keeper, lay_plan, plan, step, view,
};
use serde_json::Value;

use super::Lab;

/// Everything that can be reported, and what is left of it where it is told.
const REPORTED: [(&str, &str, &str); 10] = [
    ("--progress", "40", "progress: 40 %"),
    ("--confidence", "0.7", "confidence: 0.7"),
    ("--note", "日本語 ✓ half of it", "note: 日本語 ✓ half of it"),
    ("--task", "expiry", "task: expiry"),
    ("--eta", "an hour", "eta: an hour"),
    ("--done", "validate", "section done: validate"),
    ("--next", "refresh", "section next: refresh"),
    ("--session", "s-17", "session: s-17"),
    ("--file", "src/auth.ts:120=open@0.6", "file: src/auth.ts:120 open, confidence 0.6"),
    ("--data", "@{data}", r#"data: {"related":["a.ts"]}"#),
];

#[test]
fn what_was_reported_from_inside_reaches_the_next_prompt() {
    let sandbox = crate::sandbox();
    sandbox.write(sandbox.mark("data"), r#"{ "related": ["a.ts"] }"#);
    let words: Vec<String> =
        REPORTED.iter().map(|(flag, value, _)| format!("{flag} '{value}'")).collect();
    let script = format!(
        "write work.txt half; sh piton checkpoint {}; \
         sh piton check 1 --done; sh piton check 2 --defer --reason later; \
         sh piton substep complete validate; touch {{ready}}; hang",
        words.join(" ")
    );
    let more = "items = ['sign', 'expire', 'rotate']\n\
        substeps = [{ id = 'validate', title = 'validateToken' }, { id = 'refresh', title = 'r' }]\n";
    let steps = [agent_step(&sandbox, "jwt", &script, more)];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let keeper = keeper(&sandbox);
    drop(worker.kill9());
    kill9(keeper);
    let shown = sandbox.piton(&["show"]).output().success().stdout;
    for text in ["reported: 40 %", "reported done: validate", "reported file: src/auth.ts:120 open"]
    {
        assert!(shown.contains(text), "no {text:?} in\n{shown}");
    }
    let report = events_named(&sandbox, "checkpointed")
        .into_iter()
        .find(|event| event["report"].is_object());
    let name = report.expect("a report")["snapshot"]["refname"].as_str().expect("bytes").to_owned();
    let message = sandbox.git(&["log", "-1", "--format=%B", &name]);

    let resumed = sandbox.piton(&["resume"]).spawn();
    sandbox.wait_until("the second attempt", || events_named(&sandbox, "started").len() == 2);
    let attempts = view(&sandbox)["steps"][0]["attempts"].clone();
    let prompt = sandbox.read(attempt_folder(&sandbox, &attempts[1]["attempt"]).join("prompt.md"));
    drop(resumed);
    assert!(prompt.contains("interrupted (process_kill)"), "{prompt}");
    assert!(prompt.contains("Reported by the earlier attempt, not checked"), "{prompt}");
    for (_, _, text) in REPORTED {
        assert!(message.contains(text), "no {text:?} in\n{message}");
        assert!(prompt.contains(text), "no {text:?} in\n{prompt}");
    }
    let parts = [
        "Substeps done:\n  - validate: validateToken",
        "Substeps open:\n  - refresh: r",
        "Items done:\n  - 1: sign",
        "Items open:\n  - 3: rotate",
        "Items deferred:\n  - 2: expire (later)",
        "Uncommitted files:\n  - work.txt",
    ];
    for text in parts {
        assert!(prompt.contains(text), "no {text:?} in\n{prompt}");
    }
}

#[test]
fn show_lists_who_worked_and_how_it_ended() {
    let lab = Lab::trusting();
    let (tree, first) = lab.claim("jwt", &[]);
    lab.commit(&tree, "one.ts", "1\n");
    let second = lab.commit(&tree, "two.ts", "2\n");
    lab.data(&["release", "plan.toml", "jwt", "--fence", &first]);
    let good = |run: &Value| step(run, "jwt")["last_good_commit"].clone();
    let run = view(&lab.sandbox);
    let attempt = &step(&run, "jwt")["attempts"][0];
    assert_eq!(attempt["pid"], std::process::id(), "whoever started `piton claim`");
    assert_eq!((&attempt["commits"], &attempt["head"]), (&2.into(), &second.as_str().into()));
    assert_eq!(
        (&attempt["state"], &attempt["worktree"]),
        (&"released".into(), &tree.to_str().into())
    );
    assert!(attempt["host"].is_string() && attempt["from"].as_str() <= attempt["to"].as_str());
    assert_eq!(good(&run)["commit"], second.as_str());
    assert_eq!(good(&run)["known_as"], "snapshot", "nobody has checked it");

    let (_, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&tree, "auth.ts", "validateToken\n");
    lab.data(&["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit]);
    let run = view(&lab.sandbox);
    let attempts = &step(&run, "jwt")["attempts"];
    assert_eq!(attempts.as_array().map(Vec::len), Some(2), "the first is still there");
    assert_eq!((&attempts[1]["commits"], &attempts[1]["state"]), (&3.into(), &"completed".into()));
    assert_eq!(good(&run), serde_json::json!({ "commit": commit, "known_as": "completed" }));
    let shown = lab.sandbox.piton(&["show"]).output().success().stdout;
    for text in [") released\n", "2 commits up to", "completed with it"] {
        assert!(shown.contains(text), "no {text:?} in\n{shown}");
    }
    assert_eq!(shown.matches("last good commit").count(), 1, "nobody has begun the others");
}

#[test]
fn a_keeper_tells_its_process_and_commits() {
    let sandbox = crate::sandbox();
    let script = "write one 1; commit by the agent; write two 2; touch {ready}; await {go}";
    let steps = [agent_step(&sandbox, "a", script, "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let keeper = keeper(&sandbox);
    sandbox.write(sandbox.mark("go"), "");
    worker.wait().success();
    let attempt = view(&sandbox)["steps"][0]["attempts"][0].clone();
    assert_eq!((&attempt["pid"], &attempt["commits"]), (&keeper.into(), &2.into()));
    assert_eq!(attempt["worktree"], Value::Null);
}
