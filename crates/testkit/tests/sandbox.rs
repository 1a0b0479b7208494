//! The harness keeps its own promises: nothing of the machine gets in, nothing of a test stays
//! behind, and a wait that fails says why. The fake agent stands in piton's place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use piton_testkit::{Sandbox, alive, wait_for, wait_until};

const FAKE_AGENT: &str = env!("CARGO_BIN_EXE_fake-agent");

fn sandbox() -> Sandbox {
    Sandbox::with_binary(FAKE_AGENT)
}

fn panic_of(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("a panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
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
            "COLUMNS",
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
