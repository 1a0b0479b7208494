//! Plans of other tools with the real binary: half finished, killed, resumed, finished, and the file shows it.

use std::fs;

use piton_testkit::Sandbox;
use piton_testkit::runs::{
    all_killed, at_work, commit_file, completions, landed, landed_files, view,
};
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

/// Runs a plan of which this many steps are found done, kills everything, and resumes.
fn finished(file: &str, plan: &str, found_done: usize) -> Sandbox {
    let sandbox = sandbox_with(file, plan);
    all_killed(&sandbox, &["run", file, "--trust", "--auto-continue", "--grace", "300ms"]);
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 1);
    sandbox.piton(&["resume"]).output().success();
    let run = view(&sandbox);
    assert_eq!(run["status"], "completed", "{file}: {run:#}");
    let steps = run["steps"].as_array().expect("a list").len();
    for step in &run["steps"].as_array().expect("a list")[..found_done] {
        assert_eq!((&step["truth"], &step["attempts"]), (&json!("claimed"), &json!([])));
    }
    assert_eq!(completions(&sandbox).len(), steps - found_done, "{file}: done once");
    sandbox
}

/// A file, what is in it, how many of its steps are done, and what it says in the end.
type Case = (&'static str, String, usize, fn(&str, &str));

fn same(before: &str, after: &str) {
    assert_eq!(before, after, "it has no place for progress");
}

#[test]
fn a_half_finished_plan_of_any_format_is_run_killed_resumed_and_shows_it() {
    let section =
        |n: u32| format!("#### Step {n}: part {n} {{#step-{n}}}\n\n**Tasks:**\n- [ ] do it\n\n");
    let row = |n: u32, status: &str| format!("| #step-{n} | part {n} | {status} | — |\n");
    let ledger = "### Step Status Ledger {#step-status-ledger}\n\n| Step | Title | Status | Commit |\n|---|---|---|---|\n";
    let rows = [row(1, "done"), row(2, "pending"), row(3, "pending")].concat();
    let sections = [section(1), section(2), section(3)].concat();
    let native = r#"{ "plan": { "name": "n", "agent": "one" },
      "step": [{ "id": "a", "prompt": "first" }, { "id": "b", "needs": ["a"], "prompt": "second" }] }"#;
    let native_yaml = "plan:\n  name: n\n  agent: one\nstep:\n  - id: a\n    prompt: first\n  - id: b\n    needs: [a]\n    prompt: second\n";
    let tasks = "# Today\r\n\r\n- [x] first\r\n- [ ] second\r\n  - [ ] a part\r\n- [ ] third\r\n";
    let prodigy = "name: nightly\ncommands:\n  - claude: /first\n  - shell: echo second >> out.txt\n  - claude: /third\n";
    let epic = r#"{ "epicId": "e", "name": "E", "extra": 1.50, "phases": [ { "phaseId": "p", "name": "P", "sprints": [
      { "sprintId": "sprint-1.1", "name": "first", "status": "completed" },
      { "sprintId": "sprint-1.2", "name": "second", "status": "not_started", "dependencies": ["Sprint 1.1"] },
      { "sprintId": "sprint-1.3", "name": "third", "status": "not_started" } ] } ] }
"#;
    let index = "# Index\n\n## Priority Loop State\n\n| Field | Value |\n|---|---|\n| **Loop Status** | `clarifying` |\n| **Current Iteration** | 2 / 10 |\n\n## Gap Priority Queue\n\n| Priority | Gap ID | Question | Status |\n|---|---|---|---|\n| Critical | G-001 | Who pays? | resolved |\n| Important | G-002 | When? | pending |\n";
    let cases: [Case; 7] = [
        ("today.md", tasks.to_owned(), 1, |before, after| {
            assert_eq!(after, before.replace("[ ]", "[x]"));
        }),
        ("plan.md", format!("## Parts {{#parts}}\n\n{ledger}{rows}\n{sections}"), 1, |_, after| {
            assert_eq!(after.matches("| done |").count(), 3, "{after}");
            assert_eq!(after.matches("- [x] do it").count(), 3, "{after}");
        }),
        ("epic.json", epic.to_owned(), 1, |before, after| {
            assert_eq!(after, before.replace("not_started", "completed"));
        }),
        ("index.md", index.to_owned(), 5, |before, after| {
            let done = before.replace("`clarifying`", "`completed`");
            assert_eq!(after, done.replace("pending", "resolved"));
        }),
        ("nightly.yml", prodigy.to_owned(), 0, same),
        ("own.json", native.to_owned(), 0, same),
        ("own.yaml", native_yaml.to_owned(), 0, same),
    ];
    for (file, plan, done, check) in cases {
        check(&plan, &finished(file, &plan, done).read(file));
    }
}

const IMPLEMENTATION: &str = r#"{
  "feature": "x", "unknown": [1, 2.50], "status": "backlog", "planStatus": "pending",
  "phases": [{ "id": "p", "name": "P", "subtasks": [
    { "id": "a", "description": "first", "status": "completed" },
    { "id": "b", "description": "second", "status": "pending", "service": "db" },
    { "id": "c", "description": "third" }
  ] }],
  "updated_at": "2025-12-20T10:00:00"
}
"#;

/// The file without its times.
fn timeless(text: &str) -> String {
    let mut rest = text.to_owned();
    for key in ["started_at", "completed_at", "updated_at"] {
        while let Some(at) = rest.find(&format!(", \"{key}\"")) {
            let end = at + rest[at + 2..].find([',', ' ']).expect("a value") + 2;
            let end = end + 1 + rest[end + 1..].find(['"', '}']).expect("a value") + 1;
            let end = end + rest[end..].find('"').expect("a time ends") + 1;
            rest.replace_range(at..end, "");
        }
    }
    rest
}

/// Statuses and times, also in the copy that the other tool's worktree has; nothing else changes.
#[test]
fn an_implementation_plan_is_kept_in_both_copies() {
    let file = ".auto-claude/specs/007-x/implementation_plan.json";
    let sandbox = sandbox_with(file, IMPLEMENTATION);
    let copy = format!(".worktrees/007-x/{file}");
    sandbox.write(&copy, IMPLEMENTATION);
    fs::write(sandbox.path(".git/info/exclude"), ".worktrees\n").expect("the sandbox is writable");
    all_killed(&sandbox, &["run", file, "--trust", "--auto-continue", "--grace", "300ms"]);
    sandbox.piton(&["resume"]).output().success();
    let (text, twin) = (sandbox.read(file), sandbox.read(&copy));
    assert_eq!(text, twin);
    let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&plan["status"], &plan["planStatus"]), (&json!("human_review"), &json!("review")));
    assert_ne!(plan["updated_at"], "2025-12-20T10:00:00");
    let [a, b, c] = [0, 1, 2].map(|n| &plan["phases"][0]["subtasks"][n]);
    assert_eq!([&a["status"], &b["status"], &c["status"]], ["completed"; 3]);
    assert_eq!(a.get("completed_at"), None, "piton did not do it");
    assert!(b["started_at"].as_str() < b["completed_at"].as_str(), "{b}");
    assert_eq!(b["updated_at"], b["completed_at"]);
    let before = IMPLEMENTATION.replace("backlog", "human_review").replace("pending", "completed");
    let before = before.replace("\"planStatus\": \"completed\"", "\"planStatus\": \"review\"");
    let before = before.replace("{ \"id\": \"c\"", "{ \"status\": \"completed\", \"id\": \"c\"");
    let lines =
        |text: &str| text.lines().filter(|line| !line.contains("updated_at\": \"2")).count();
    assert_eq!(timeless(&text).lines().nth(4), before.lines().nth(4));
    assert_eq!(timeless(&text).lines().nth(5), before.lines().nth(5));
    assert_eq!(lines(&timeless(&text)), lines(&before));
}

/// Without a worker: what is said by hand is in the file when the verb is over.
#[test]
fn what_is_said_by_hand_is_written_at_once() {
    let plan = "- [ ] one\n- [ ] two\n- [ ] three\n";
    let sandbox = sandbox_with("plan.md", plan);
    sandbox.piton(&["claim", "plan.md", "--step", "one", "--worktree", "."]).output().success();
    sandbox.piton(&["complete", "plan.md", "one", "--worktree", "."]).output().success();
    assert_eq!(sandbox.read("plan.md"), "- [x] one\n- [ ] two\n- [ ] three\n");
    sandbox.piton(&["reset", "plan.md", "one", "--force", "--reason", "no"]).output().success();
    assert_eq!(sandbox.read("plan.md"), plan);
}

/// A box that a person ticks is shown with what takes it over; piton never unticks it.
#[test]
fn what_is_changed_by_hand_is_noticed_and_offered() {
    let sandbox = sandbox_with("plan.md", "- [x] one\n- [ ] two\n- [ ] three\n- [ ] four\n");
    let open = sandbox.piton(&["open", "plan.md"]).env("PITON_NEXT_HANDLE", "calm-otter");
    open.output().success();
    let ticked = "- [ ] one\n- [x] two\n- [ ] three\n- [ ] four\n";
    fs::write(sandbox.path("plan.md"), ticked).expect("the sandbox is writable");
    let status = sandbox.piton(&["status"]).output().success();
    let told = [
        "plan.md was changed by hand: one is not done there",
        "piton reset calm-otter one --force --reason 'changed by hand'",
        "plan.md was changed by hand: two is done there",
        "piton complete calm-otter two --found",
    ];
    for line in told {
        assert!(status.stdout.contains(line), "{status}");
    }
    let changes = &view(&sandbox)["changed_by_hand"];
    assert_eq!(
        *changes,
        json!([{ "step": "one", "says": "pending" }, { "step": "two", "says": "completed" }])
    );
    let skipped = sandbox.piton(&["skip", "plan.md", "three", "--reason", "later"]).output();
    assert!(skipped.success().stderr.contains(told[2]));
    assert_eq!(sandbox.read("plan.md"), ticked, "what is a person's stays");
    sandbox.piton(&["complete", "plan.md", "two", "--found"]).output().success();
    let run = view(&sandbox);
    assert_eq!(run["steps"][1]["truth"], "claimed");
    assert_eq!(run["changed_by_hand"], json!([{ "step": "one", "says": "pending" }]));
    let refused = sandbox.piton(&["complete", "plan.md", "four", "--found"]).output();
    assert!(refused.stderr.contains("plan.md does not say that four is done"), "{refused}");
}

/// Who watches sees it at once.
#[test]
fn a_watcher_is_told_of_a_change_by_hand() {
    let sandbox = sandbox_with("plan.md", "- [ ] one\n- [ ] two\n");
    let (worker, _) = at_work(&sandbox, &["run", "plan.md", "--trust", "--grace", "300ms"]);
    let watch = sandbox.piton(&["watch"]).spawn();
    sandbox.wait_until("the watcher", || watch.stderr().contains("watching"));
    let text = sandbox.read("plan.md").replace("[ ] two", "[x] two");
    fs::write(sandbox.path("plan.md"), text).expect("the sandbox is writable");
    sandbox.wait_until("the change", || watch.stderr().contains("two is done there"));
    drop(watch.kill9());
    drop(worker.kill9());
    sandbox.kill_all();
}

/// A plan that is done holds nothing: it can be run again once something is to be done.
#[test]
fn a_plan_that_is_done_does_not_stay_open() {
    let sandbox = sandbox_with("plan.md", "- [x] one\n");
    fs::write(sandbox.mark("starts"), "start\n").expect("the sandbox is writable");
    sandbox.piton(&["run", "plan.md", "--trust"]).output().success();
    let shown = sandbox.piton(&["show"]).output().success();
    assert!(shown.stdout.contains("found done in the plan file"), "{shown}");
    fs::write(sandbox.path("plan.md"), "- [x] one\n- [ ] two\n").expect("the sandbox is writable");
    sandbox.piton(&["run", "plan.md", "--trust"]).output().success();
    assert_eq!(sandbox.read("plan.md"), "- [x] one\n- [x] two\n");
}

/// A half-finished plan of Auto-Claude: its work is on its own branch, in its own worktree, partly uncommitted.
fn half_finished() -> (Sandbox, &'static str) {
    let file = ".auto-claude/specs/007-dark-mode/implementation_plan.json";
    let plan = IMPLEMENTATION.replace("\"x\"", "\"Dark mode\"");
    let sandbox =
        sandbox_with(file, &plan.replace("\"pending\", \"service", "\"in_progress\", \"service"));
    fs::write(sandbox.path(".git/info/exclude"), ".worktrees\n").expect("the sandbox is writable");
    let tree = ".worktrees/007-dark-mode";
    sandbox.git(&["worktree", "add", "-q", "-b", "auto-claude/007-dark-mode", tree]);
    let tree = sandbox.path(tree);
    commit_file(&sandbox, &tree, "first.txt", "done\n");
    fs::write(tree.join("half.txt"), "half\n").expect("the sandbox is writable");
    fs::write(sandbox.mark("starts"), "start\n").expect("the sandbox is writable");
    (sandbox, file)
}

/// Where the completed work is, is found and asked about; nothing is skipped whose work is not on the base.
#[test]
fn a_run_starts_from_where_the_work_is() {
    let (sandbox, file) = half_finished();
    let refused = sandbox.piton(&["run", file, "--trust"]).output().expect_code(4);
    assert!(refused.stderr.contains("2 steps are done or begun"), "{refused}");
    assert!(refused.stderr.contains("(1 commit, uncommitted files)"), "{refused}");
    assert!(refused.stderr.contains("--worktree .worktrees/007-dark-mode"), "{refused}");
    let perhaps = sandbox.piton(&["run", "a dark thing", "--trust"]).output().expect_code(4);
    assert!(perhaps.stderr.contains("007-dark-mode: Dark mode"), "{perhaps}");
    let run = sandbox.piton(&["run", "7", "--trust", "--auto-continue"]).output().success();
    assert!(run.stderr.contains("starting from auto-claude/007-dark-mode in .worktrees"), "{run}");
    assert!(run.stderr.contains("b in progress in the plan file"), "{run}");
    let run = view(&sandbox);
    assert_eq!((&run["status"], &run["steps"][0]["attempts"]), (&json!("completed"), &json!([])));
    assert_eq!(
        (landed(&sandbox, "first.txt"), landed(&sandbox, "half.txt")),
        ("done".into(), "half".into())
    );
    assert!(landed(&sandbox, "work.txt").contains("part of it may be done"));
    let tree = sandbox.path(".worktrees/007-dark-mode");
    let left = sandbox.git_in(&tree, &["status", "--porcelain"]);
    assert_eq!(left.trim(), "?? half.txt", "nothing there is touched");
    let kept = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton/"]);
    assert!(kept.lines().any(|name| name.ends_with("/b/0/1")), "{kept}");
}

#[test]
fn a_run_starts_where_it_is_said() {
    let (sandbox, file) = half_finished();
    let base = ["run", file, "--trust", "--base", "auto-claude/007-dark-mode"];
    sandbox.piton(&base).output().success();
    assert_eq!(landed(&sandbox, "first.txt"), "done");
    assert!(!landed_files(&sandbox).contains("half.txt"));
    assert!(
        sandbox.piton(&["run", file, "--worktree", "/"]).output().stderr.contains("not a worktree")
    );
}

/// A commit that the file names for what is done has to be on the base.
#[test]
fn what_is_done_elsewhere_is_asked_about() {
    let ledger = "### Step Status Ledger {#step-status-ledger}\n\n| Step | Title | Status | Commit |\n|---|---|---|---|\n| #step-1 | one | done | `deadbee1` |\n| #step-2 | two | pending | — |\n\n";
    let steps = "#### Step 1: one {#step-1}\n\n#### Step 2: two {#step-2}\n";
    let sandbox = sandbox_with("plan.md", &format!("## P {{#p}}\n\n{ledger}{steps}"));
    fs::write(sandbox.mark("starts"), "start\n").expect("the sandbox is writable");
    let refused = sandbox.piton(&["run", "plan.md", "--trust"]).output().expect_code(4);
    assert!(refused.stderr.contains("commit deadbee1 is not on the base"), "{refused}");
    let run = sandbox.piton(&["run", "plan.md", "--trust", "--base", "HEAD"]).output().success();
    assert!(run.stderr.contains("commit deadbee1 is not on the base"), "{run}");
}

/// Questions that the file has open are questions of the run, and their answers reach the agent.
#[test]
fn open_questions_of_a_file_are_asked() {
    let index = "# Index\n\n## Priority Loop State\n\n| Field | Value |\n|---|---|\n| **Loop Status** | clarifying |\n| **Current Iteration** | 2 / 10 |\n\n## Unified Pending Questions\n\n| ID | Question | Status |\n|---|---|---|\n| C2.1 | Which default? | pending |\n\n## Gap Priority Queue\n\n| Priority | Gap ID | Question | Status |\n|---|---|---|---|\n";
    let sandbox = sandbox_with("index.md", index);
    fs::write(sandbox.mark("starts"), "start\n").expect("the sandbox is writable");
    let waits = sandbox.piton(&["run", "index.md", "--trust"]).output().expect_code(4);
    assert!(waits.stderr.contains("C2.1: Which default?"), "{waits}");
    sandbox.piton(&["answer", "index.md", "clarify", "dark"]).output().success();
    sandbox.piton(&["resume"]).output().success();
    let work = landed(&sandbox, "work.txt");
    assert!(work.contains("Which default?") && work.contains("dark"), "{work}");
    assert!(work.contains("iteration 2 / 10"), "{work}");
}

/// A session of prodigy that was interrupted goes on on its branch, with the command that was at work.
#[test]
fn an_interrupted_session_is_a_run() {
    let state = r#"{ "session_id": "s", "worktree_name": "w", "branch": "prodigy-w", "status": "interrupted",
      "interruption_type": "process_kill", "iterations": { "completed": 1, "max": 2 },
      "last_checkpoint": { "iteration": 2, "last_command": "/mmm-implement-spec", "last_spec_id": "i-17" } }"#;
    let sandbox = sandbox_with("session.json", state);
    sandbox.git(&["branch", "prodigy-w"]);
    fs::write(sandbox.mark("starts"), "start\n").expect("the sandbox is writable");
    sandbox.piton(&["run", "session.json", "--trust"]).output().success();
    let run = view(&sandbox);
    assert_eq!((&run["status"], &run["total"]), (&json!("completed"), &json!(6)));
    assert_eq!(completions(&sandbox).len(), 2, "what had run is not run again: {run:#}");
    let work = landed(&sandbox, "work.txt");
    assert!(work.contains("/mmm-implement-spec i-17") && work.contains("process_kill"), "{work}");
}

/// What Auto-Claude remembers is kept up to date.
#[test]
fn attempts_and_commits_are_remembered() {
    let file = "specs/007-x/implementation_plan.json";
    let sandbox = sandbox_with(file, IMPLEMENTATION);
    let attempts = "specs/007-x/memory/attempt_history.json";
    let commits = "specs/007-x/memory/build_commits.json";
    sandbox.write(attempts, r#"{"subtasks": {}, "stuck_subtasks": []}"#);
    sandbox.write(commits, r#"{"commits": [], "last_good_commit": null}"#);
    sandbox.write(".gitignore", "specs\npiton.toml\n");
    sandbox.commit("memory");
    all_killed(&sandbox, &["run", file, "--trust", "--grace", "300ms"]);
    sandbox.piton(&["resume"]).output().success();
    let (attempts, commits) = (sandbox.read_json(attempts), sandbox.read_json(commits));
    let of_b = &attempts["subtasks"]["b"];
    assert_eq!(of_b["attempts"].as_array().map(Vec::len), Some(2), "{attempts:#}");
    assert_eq!(
        (&of_b["attempts"][1]["success"], &of_b["status"]),
        (&json!(true), &json!("completed"))
    );
    assert_eq!(commits["commits"].as_array().map(Vec::len), Some(2), "{commits:#}");
    assert_eq!(commits["last_good_commit"], commits["commits"][1]["hash"]);
}

/// Who has a task list and no agent is told which one to name.
#[test]
fn a_task_list_without_an_agent_says_what_to_type() {
    let sandbox = crate::sandbox();
    sandbox.write("tasks.md", "- [ ] one\n");
    sandbox.commit("ready");
    let refused = sandbox.piton(&["run", "tasks.md", "--trust"]).output();
    assert!(refused.stderr.contains("piton run tasks.md --agent"), "{refused}");
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
