//! Plans of other tools with the real binary: half finished, killed, resumed, finished, and the file shows it.

use std::fs;

use piton_testkit::Sandbox;
use piton_testkit::runs::{all_killed, completions, data, events_named, view};
use serde_json::json;

/// A repository with a plan and one agent, which hangs the first time.
fn sandbox_with(file: &str, plan: &str) -> Sandbox {
    let sandbox = crate::sandbox();
    let [starts, agent, ready] =
        ["starts", "agent", "ready"].map(|name| sandbox.mark(name).display().to_string());
    let script = format!(
        "echo start >> {starts}; echo $$ > {agent}; touch {ready}; \
         test $(wc -l < {starts}) -gt 1 || exec sleep 600; cat $PITON_PROMPT_FILE >> work.txt"
    );
    let settings = format!("[agent.one]\ncommand = ['sh', '-c', '{script}']\nprompt = 'file'\n");
    sandbox.write("piton.toml", &settings);
    sandbox.write(file, plan);
    sandbox.write(".gitignore", &format!("{file}\npiton.toml\n"));
    sandbox.commit("ready");
    sandbox
}

/// Runs a plan of three steps of which the first is done, kills everything, and resumes.
fn finished(file: &str, plan: &str) -> Sandbox {
    let sandbox = sandbox_with(file, plan);
    all_killed(&sandbox, &["run", file, "--trust", "--auto-continue", "--grace", "300ms"]);
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 1);
    sandbox.piton(&["resume"]).output().success();
    let run = view(&sandbox);
    assert_eq!(run["status"], "completed", "{run:#}");
    assert_eq!(run["steps"][0]["truth"], "claimed", "{run:#}");
    assert_eq!(events_named(&sandbox, "found").len(), 1);
    assert_eq!(completions(&sandbox).len(), 2, "what was done is not done again");
    sandbox
}

#[test]
fn a_task_list_is_run_killed_resumed_and_ticked() {
    let plan = "# Today\r\n\r\n- [x] first\r\n- [ ] second\r\n  - [ ] a part\r\n- [ ] third\r\n";
    let sandbox = finished("today.md", plan);
    assert_eq!(sandbox.read("today.md"), plan.replace("[ ]", "[x]"));
    // What is ticked is no other plan; what is unticked by hand is left alone.
    fs::write(sandbox.path("today.md"), plan).expect("the sandbox is writable");
    let out = sandbox.piton(&["run", "today.md", "--trust"]).output().success();
    assert!(!out.stderr.contains("changed"), "{out}");
    assert_eq!(sandbox.read("today.md"), plan);
}

#[test]
fn a_ledger_is_kept() {
    let step =
        |n: u32| format!("#### Step {n}: part {n} {{#step-{n}}}\n\n**Tasks:**\n- [ ] do it\n\n");
    let row = |n: u32, status: &str| format!("| #step-{n} | part {n} | {status} | — |\n");
    let ledger = "### Step Status Ledger {#step-status-ledger}\n\n| Step | Title | Status | Commit |\n|---|---|---|---|\n";
    let rows = [row(1, "done"), row(2, "pending"), row(3, "pending")].concat();
    let plan = format!("## Parts {{#parts}}\n\n{ledger}{rows}\n{}{}{}", step(1), step(2), step(3));
    let sandbox = finished("plan.md", &plan);
    let text = sandbox.read("plan.md");
    assert_eq!(text.matches("| done |").count(), 3, "{text}");
    assert_eq!(text.matches("- [x] do it").count(), 3, "{text}");
}

#[test]
fn an_implementation_plan_is_kept() {
    let plan = r#"{
  "feature": "x", "unknown": [1, 2.50],
  "phases": [{ "id": "p", "name": "P", "subtasks": [
    { "id": "a", "description": "first", "status": "completed" },
    { "id": "b", "description": "second", "status": "pending", "service": "db" },
    { "id": "c", "description": "third" }
  ] }]
}
"#;
    let sandbox = finished("implementation_plan.json", plan);
    let done = plan
        .replace("pending", "completed")
        .replace("{ \"id\": \"c\"", "{ \"status\": \"completed\", \"id\": \"c\"");
    assert_eq!(sandbox.read("implementation_plan.json"), done);
    let counts = &data(&sandbox, &["plan", "check", "implementation_plan.json"])["counts"];
    assert_eq!(
        *counts,
        json!({ "steps": 3, "needs": 2, "substeps": 0, "items": 0, "questions": 0 })
    );
}

#[test]
fn progress_stays_out_of_the_file_on_request() {
    let plan = "- [ ] only\n";
    let sandbox = sandbox_with("plan.md", plan);
    fs::write(sandbox.mark("starts"), "start\n").expect("the sandbox is writable");
    sandbox.piton(&["run", "plan.md", "--trust", "--no-write-back"]).output().success();
    assert_eq!(view(&sandbox)["status"], "completed");
    assert_eq!(sandbox.read("plan.md"), plan);
}
