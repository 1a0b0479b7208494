//! The harness keeps its own promises: nothing of the machine gets in, nothing of a test stays
//! behind, and a wait that fails says why. The fake agent stands in piton's place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use piton_testkit::{Sandbox, Signal, alive, shell_word, toml_string, wait_for, wait_until};

const FAKE_AGENT: &str = env!("CARGO_BIN_EXE_fake-agent");

fn sandbox() -> Sandbox {
    Sandbox::with_binary(FAKE_AGENT)
}

fn panic_of(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("a panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn two_sandboxes_are_equal_and_apart() {
    let (one, two) = (sandbox(), sandbox());
    assert_ne!(one.root(), two.root());
    assert_eq!(one.git(&["rev-parse", "main"]), two.git(&["rev-parse", "main"]));
    assert_eq!(one.tree_of("main"), one.git(&["write-tree"]));
    assert!(one.try_git(&["rev-parse", "--verify", "nowhere"]).is_err());
}

#[test]
fn only_the_sandbox_is_in_the_environment() {
    let sandbox = sandbox();
    let out = sandbox.piton(&["-e", "sh env | sort"]).env("EXTRA", "1").output().success();
    let names: Vec<&str> =
        out.stdout.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let shell = ["PWD", "OLDPWD", "SHLVL", "_"];
    let names: Vec<&str> = names.into_iter().filter(|name| !shell.contains(name)).collect();
    assert_eq!(
        names,
        [
            "EXTRA",
            "GIT_CONFIG_GLOBAL",
            "GIT_CONFIG_NOSYSTEM",
            "HOME",
            "LANG",
            "NO_COLOR",
            "PATH",
            "PITON_SANDBOX",
            "TERM",
            "TMPDIR",
            "TZ",
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
            "XDG_DATA_HOME",
            "XDG_RUNTIME_DIR",
            "XDG_STATE_HOME",
        ]
    );
    assert!(sandbox.redact(&out.stdout).contains("HOME=$SANDBOX/home\n"));
}

#[test]
fn dropping_a_sandbox_leaves_no_process_and_no_folder() {
    let sandbox = sandbox();
    let script = "grandchild a setsid closefds; grandchild b clearenv setsid; hang";
    let agent = sandbox.piton(&["-e", script]).spawn();
    let pids = [agent.pid(), sandbox.wait_pid("a"), sandbox.wait_pid("b")];
    assert!(pids.iter().all(|pid| alive(*pid)));
    let root = sandbox.root().to_owned();
    drop(sandbox);
    assert!(pids.iter().all(|pid| !alive(*pid)));
    assert!(!root.exists());
}

#[test]
fn processes_are_found_by_their_environment() {
    let sandbox = sandbox();
    let marked = sandbox.piton(&["-e", "touch x; hang"]).env("PITON_ATTEMPT", "one").spawn();
    let other = sandbox.piton(&["-e", "touch y; hang"]).spawn();
    sandbox.wait_exists("x");
    sandbox.wait_exists("y");
    let pids = |mark: &str| -> Vec<u32> {
        sandbox.processes_with_env(mark).iter().map(|process| process.pid).collect()
    };
    assert_eq!(pids("PITON_ATTEMPT="), [marked.pid()]);
    assert_eq!(pids("PITON_ATTEMPT=one"), [marked.pid()]);
    assert_eq!(pids("PITON_ATTEMPT=two"), [0; 0]);
    assert_eq!(sandbox.processes().len(), 2);
    drop((marked, other));
    sandbox.wait_no_processes();
}

#[test]
fn a_zombie_is_dead() {
    let mut child = Command::new("true").spawn().expect("true starts");
    wait_until(Duration::from_secs(60), "the end of true", || !alive(child.id()));
    assert!(std::path::Path::new(&format!("/proc/{}", child.id())).exists());
    child.wait().expect("it can be reaped");
}

#[test]
fn background_runs_are_signalled_and_read() {
    let sandbox = sandbox();
    let agent = sandbox.piton(&["-e", "print hello; stderr oh; touch here; hang"]).spawn();
    sandbox.wait_exists("here");
    assert_eq!((agent.stdout().as_str(), agent.stderr().as_str()), ("hello\n", "oh\n"));
    agent.signal(Signal::INT);
    let out = agent.wait();
    assert_eq!(out.to_string(), "killed by signal 2\n--- stdout\nhello\n--- stderr\noh\n");
}

#[test]
fn json_is_read_from_stdout() {
    let sandbox = sandbox();
    let out = sandbox.piton(&["-e", "print {\"status\":\"ok\"}"]).output();
    assert_eq!(out.json()["status"], "ok");
    sandbox.write("f.json", "[1]");
    assert_eq!(sandbox.read_json("f.json")[0], 1);
    let said = panic_of(|| drop(sandbox.piton(&["-e", "print no"]).output().json()));
    assert!(said.contains("--- stdout\nno"), "{said}");
}

#[test]
fn a_deadline_that_passes_says_what_was_seen() {
    let short = Duration::from_millis(5);
    let said = panic_of(|| wait_for(short, "the moon", || Err("a cloud")));
    assert_eq!(said, "waited 5ms for the moon; last seen: \"a cloud\"");

    let sandbox = sandbox();
    let late = Duration::from_secs(1);
    let hanging = sandbox.piton(&["-e", "print started; touch here; hang"]).deadline(late);
    let said = panic_of(|| drop(hanging.output()));
    assert!(said.contains("has not ended in 1s\n--- stdout\nstarted\n"), "{said}");
    sandbox.wait_no_processes();
}

/// The engine's side of a crash point, played by a shell.
#[test]
fn a_crash_point_holds_until_released() {
    let sandbox = sandbox();
    let point = sandbox.crash_point("after-claim", 2);
    assert_eq!(point.env()[0], ("PITON_CRASH_AT", "after-claim:2".to_owned()));
    assert_eq!(point.hit(), None);
    let dir = point.env()[1].1.clone();
    let script = format!("pid {dir}/after-claim.hit; await {dir}/after-claim.go; print on");
    let held = sandbox.piton(&["-e", &script]).crash_at(&point).spawn();
    assert_eq!(point.wait_hit(), held.pid());
    assert_eq!(held.stdout(), "");
    point.release();
    assert_eq!(held.wait().success().stdout, "on\n");
}

#[test]
fn quoting_survives_a_shell_and_the_fake_agent_is_found() {
    let sandbox = sandbox();
    let line = sandbox.fake("print it's $HOME \"here\"");
    let out = sandbox.command("sh").args(["-c", &line]).output().expect("sh starts");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "it's $HOME \"here\"\n");
    assert_eq!(shell_word("a'b"), r"'a'\''b'");
    assert_eq!(toml_string("a\"b\\\n"), r#""a\"b\\\n""#);
}
