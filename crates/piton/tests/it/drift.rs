//! Plan, inputs and settings change under a run: what was recorded is used, what differs is shown, and
//! a changed plan is refused before anything is written.

use std::fs;

use piton_testkit::runs::{
    OnDisk, agent_step, command_step, completions, events_named, landed, lay_plan, orphaned, plan,
    view,
};
use piton_testkit::{Output, Running, Sandbox, kill9, toml_string};

const RUN: [&str; 4] = ["run", "plan.toml", "--trust", "--auto-continue"];

/// Two steps: an agent that waits for a word, and a command whose text is the plan's.
fn text(sandbox: &Sandbox) -> String {
    let script = "count {starts}; pid {agent}; env PITON_INPUT_focus {focus}; write work.txt x; \
                  touch {ready}; once {hung}: await {go}";
    let steps = [
        agent_step(sandbox, "work", script, ""),
        command_step(sandbox, "after", "echo old > after.txt", "needs = ['work']"),
    ];
    plan(sandbox, &steps).replace("[agent.fake]", "[inputs]\nfocus = 'security'\n[agent.fake]")
}

fn sandbox() -> Sandbox {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, &text(&sandbox));
    sandbox
}

fn at_work(sandbox: &Sandbox, args: &[&str]) -> Running {
    let worker = sandbox.piton(&RUN).env("PITON_GRACE", "300ms");
    let worker = args.iter().fold(worker, |worker, arg| worker.arg(arg)).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    worker
}

fn all_killed(sandbox: &Sandbox, args: &[&str]) {
    let worker = at_work(sandbox, args);
    orphaned(sandbox, worker);
    kill9(sandbox.wait_pid(sandbox.mark("agent")));
    assert!(sandbox.processes().is_empty());
}

/// `run` and `resume` show what has changed, refuse, and write nothing.
#[track_caller]
fn assert_refused(sandbox: &Sandbox, differences: &[&str]) {
    for verb in [&RUN[..], &["resume"], &["resume", "--dry-run"]] {
        let plain = sandbox.piton(verb).output().expect_code(65);
        assert!(plain.stderr.contains("error[E048]"), "{plain}");
        let json = sandbox.piton(verb).arg("--json").output().expect_code(65);
        assert_eq!(json.json()["issues"][0]["code"], "E048", "{json}");
        for difference in differences {
            assert!(plain.stderr.contains(difference), "{difference} is not shown: {plain}");
            assert!(json.stdout.contains(difference), "{difference} is not shown: {json}");
        }
        assert!(plain.stderr.contains("--fresh"), "{plain}");
    }
}

#[track_caller]
fn assert_finished(sandbox: &Sandbox, starts: usize) {
    let run = view(sandbox);
    assert_eq!(run["status"], "completed", "{run:#}");
    assert!(completions(sandbox).values().all(|times| *times == 1));
    assert_eq!(landed(sandbox, "after.txt"), "old");
    assert_eq!(sandbox.lines(sandbox.mark("starts")), starts);
    sandbox.wait_no_processes();
}

#[test]
fn a_live_run_goes_on_with_its_recorded_plan() {
    let sandbox = sandbox();
    let worker = at_work(&sandbox, &[]);
    let changed = text(&sandbox).replace("echo old", "echo new");
    assert_ne!(changed, text(&sandbox));
    sandbox.write("plan.toml", &changed);
    assert_refused(&sandbox, &["step after: run changed"]);
    fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
    worker.wait().success();
    assert_finished(&sandbox, 1);
}

#[test]
fn a_changed_plan_is_refused_and_nothing_is_written() {
    let sandbox = sandbox();
    all_killed(&sandbox, &[]);
    let plan = text(&sandbox);
    let store = |name: &str| fs::read(sandbox.path(".git/piton").join(name)).expect("a store");
    let kept = || (store("store.db"), store("store.db-wal"), store("store.head"));
    let (before, folders) = (kept(), OnDisk::of(&sandbox.path(".git/piton/attempts")));
    let renamed = plan.replace("id = 'after'", "id = 'later'");
    let added = format!("{plan}\n[[step]]\nid = 'extra'\nrun = 'true'\n");
    let verified = plan.replace("needs = ['work']", "needs = ['work']\nverify = 'true'");
    for (changed, shown) in
        [(renamed, "step later"), (added, "step extra"), (verified, "step after: verify")]
    {
        assert_ne!(changed, plan);
        sandbox.write("plan.toml", &changed);
        assert_refused(&sandbox, &[shown]);
    }
    assert!(before == kept(), "the store was written to");
    assert_eq!(folders, OnDisk::of(&sandbox.path(".git/piton/attempts")));
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 1);

    sandbox.write("plan.toml", &plan);
    sandbox.piton(&["resume"]).output().success();
    assert_finished(&sandbox, 2);
}

#[test]
fn a_plan_that_was_moved_away_is_no_change_and_a_broken_one_is_told() {
    let sandbox = sandbox();
    all_killed(&sandbox, &[]);
    sandbox.write("plan.toml", "[plan\nname = 3\n");
    let output = sandbox.piton(&["resume"]).output().expect_code(65);
    assert!(output.stderr.contains("plan.toml:1:"), "{output}");
    fs::remove_file(sandbox.path("plan.toml")).expect("a plan");
    sandbox.piton(&["resume"]).output().success();
    assert_finished(&sandbox, 2);
}

/// The warnings of an answer.
fn warnings(output: &Output) -> Vec<String> {
    let envelope = output.json();
    let issues = envelope["issues"].as_array().expect("issues").clone();
    let warnings = issues.into_iter().filter(|issue| issue["code"] == "W001");
    warnings.map(|issue| issue["message"].as_str().expect("a message").to_owned()).collect()
}

#[test]
fn inputs_and_flags_are_recorded_and_reused() {
    let sandbox = sandbox();
    all_killed(&sandbox, &["--set", "focus=speed", "--lease", "2h"]);
    assert_eq!(sandbox.read(sandbox.mark("focus")), "speed");
    fs::remove_file(sandbox.mark("focus")).expect("just read");
    let resumed = sandbox.piton(&["resume", "--json"]).output().success();
    assert_eq!(sandbox.read(sandbox.mark("focus")), "speed", "not the plan's own value");
    let shown = warnings(&resumed);
    assert!(shown.iter().any(|line| line.contains("lease") && line.contains("2h")), "{shown:?}");
    assert!(shown.iter().any(|line| line.contains("grace")), "{shown:?}");
    let run = view(&sandbox);
    assert_eq!(run["inputs"]["focus"], "speed");
    assert_eq!(events_named(&sandbox, "claimed").len(), 3);
    assert_finished(&sandbox, 2);
}

#[test]
fn another_input_for_an_unfinished_run_is_said_not_to_count() {
    let sandbox = sandbox();
    all_killed(&sandbox, &["--set", "focus=speed"]);
    let output = sandbox.piton(&RUN).arg("--set").arg("focus=looks").arg("--json").output();
    let shown = warnings(&output);
    assert!(shown.iter().any(|line| line.contains("focus") && line.contains("speed")), "{shown:?}");
    assert_eq!(output.code, Some(0), "{output}");
    assert_eq!(sandbox.read(sandbox.mark("focus")), "speed");
    assert_finished(&sandbox, 2);
}

#[test]
fn the_recorded_agent_is_used_and_the_changed_one_shown() {
    let sandbox = crate::sandbox();
    let of_plan = text(&sandbox);
    let program = toml_string(&sandbox.fake_agent().display().to_string());
    let agent = format!("[agent.fake]\ncommand = [{program}, '--prompt']\nprompt = 'file'\n");
    assert!(of_plan.contains(&agent));
    lay_plan(&sandbox, &of_plan.replace(&agent, ""));
    sandbox.write("piton.toml", &format!("[worker]\nlease = '3h'\n{agent}"));
    all_killed(&sandbox, &[]);
    sandbox.write(
        "piton.toml",
        "[worker]\nlease = '4h'\n[agent.fake]\ncommand = ['false']\nprompt = 'file'\n",
    );
    let dry = sandbox.piton(&["resume", "--dry-run", "--json"]).output().success();
    let resumed = sandbox.piton(&["resume", "--json"]).output().success();
    for shown in [warnings(&dry), warnings(&resumed)] {
        let shown = shown.join("\n");
        assert!(shown.contains("3h") && shown.contains("4h"), "{shown}");
        assert!(shown.contains("fake"), "{shown}");
    }
    assert_finished(&sandbox, 2);
}

/// A plan of plain commands, each with its text.
fn commands(steps: &[(&str, &str)]) -> String {
    let step = |(id, run): &(&str, &str)| format!("[[step]]\nid = '{id}'\nrun = '{run}'\n");
    format!("[plan]\nname = 'test'\n{}", steps.iter().map(step).collect::<String>())
}

const FIRST: (&str, &str) = ("first", "echo x > first.txt");
const SECOND: (&str, &str) = ("second", "echo old > second.txt");

/// A run that was opened, and nothing more.
fn opened() -> Sandbox {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, &commands(&[FIRST, SECOND]));
    sandbox.piton(&["open", "plan.toml"]).output().success();
    sandbox
}

#[track_caller]
fn accept(sandbox: &Sandbox, args: &[&str]) -> Output {
    sandbox.piton(&[args, &["--accept-plan"]].concat()).output()
}

#[test]
fn a_changed_plan_is_accepted_on_request() {
    let sandbox = opened();
    sandbox.write(
        "plan.toml",
        &commands(&[("zero", "true"), FIRST, ("third", "echo new > third.txt")]),
    );
    for verb in
        [&["open", "plan.toml"][..], &["claim", "plan.toml", "--worktree", "."], &["resume"]]
    {
        let refused = sandbox.piton(verb).output().expect_code(65);
        assert!(refused.stderr.contains("--accept-plan"), "{refused}");
        assert!(refused.stderr.contains("E048"), "{refused}");
    }
    // A worker that is there would execute it: it must be trusted, whoever accepts it.
    for verb in
        [&["open", "plan.toml"][..], &["claim", "plan.toml", "--worktree", "."], &["resume"]]
    {
        let untrusted = accept(&sandbox, verb).expect_code(77);
        assert!(untrusted.stderr.contains("echo new"), "{untrusted}");
    }
    assert!(events_named(&sandbox, "plan_accepted").is_empty());
    let accepted = accept(&sandbox, &["resume", "--trust"]).success();
    assert!(accepted.stderr.contains("step third"), "{accepted}");
    assert_eq!(events_named(&sandbox, "plan_accepted").len(), 1);
    let shown = view(&sandbox);
    assert_eq!(shown["status"], "completed", "{shown:#}");
    assert_eq!(landed(&sandbox, "third.txt"), "new");
    // What was accepted is the run's plan: nothing is changed any more.
    sandbox.piton(&["resume"]).output().success();
}

#[test]
fn a_live_worker_goes_on_with_what_was_accepted() {
    let sandbox = sandbox();
    let worker = at_work(&sandbox, &[]);
    let changed = text(&sandbox).replace("echo old > after.txt", "cat work.txt > after.txt");
    assert_ne!(changed, text(&sandbox));
    sandbox.write("plan.toml", &changed);
    sandbox.piton(&["trust", "plan.toml", "--yes"]).output().success();
    accept(&sandbox, &["open", "plan.toml"]).success();
    fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
    worker.wait().success();
    assert_eq!(landed(&sandbox, "after.txt"), "x");
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 1, "who was at work was not disturbed");
}
