//! The fake agent does what its script says: one test an action or two, by its effect. The sandbox
//! starts the fake agent in piton's place.

use std::fs::File;

use piton_testkit::{DEADLINE, Output, Running, Sandbox, Signal, alive, kill9, wait_until};

const FAKE_AGENT: &str = env!("CARGO_BIN_EXE_fake-agent");

fn sandbox() -> Sandbox {
    Sandbox::with_binary(FAKE_AGENT)
}

fn run(sandbox: &Sandbox, script: &str) -> Output {
    sandbox.piton(&["-e", script]).output()
}

fn start(sandbox: &Sandbox, script: &str) -> Running {
    sandbox.piton(&["-e", script]).spawn()
}

/// The script with `{name}` replaced by the path of that mark.
fn marked(sandbox: &Sandbox, script: &str, name: &str) -> String {
    let path = sandbox.mark(name);
    script.replace(&format!("{{{name}}}"), &path.display().to_string())
}

#[test]
fn an_unreadable_script_has_no_effect() {
    let sandbox = sandbox();
    let out = run(&sandbox, "write a x; dance").expect_code(64);
    assert_eq!(out.stderr, "fake-agent: unknown action \"dance\"; see --help\n");
    assert!(!sandbox.exists("a"));

    sandbox.piton(&[]).output().expect_code(64);
    sandbox.piton(&["--what"]).output().expect_code(64);
    let help = sandbox.piton(&["--help"]).output().success().stdout;
    assert!(help.contains("kill-self SIGNAL"));
}

#[test]
fn ignore_term_survives_all_but_kill() {
    let sandbox = sandbox();
    let agent = start(&sandbox, "ignore-term; touch here; await go; touch survived; hang");
    sandbox.wait_exists("here");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        agent.signal(signal);
    }
    // Signals are delivered before the process does anything else: it sees the file after them.
    sandbox.write("go", "");
    sandbox.wait_exists("survived");
    assert_eq!(agent.kill9().signal, Some(Signal::KILL.as_raw()));
}

#[test]
fn a_grandchild_stays_in_the_group_unless_in_a_session_of_its_own() {
    let sandbox = sandbox();
    let agent = start(&sandbox, "grandchild in; grandchild out setsid; hang");
    let (inside, outside) = (sandbox.wait_pid("in"), sandbox.wait_pid("out"));
    agent.signal_group(Signal::KILL);
    agent.wait();
    wait_until(DEADLINE, "the group's end", || !alive(inside));
    assert!(alive(outside));
    kill9(outside);
}

#[test]
fn a_grandchild_can_ignore_sigterm_and_hide_its_environment() {
    let sandbox = sandbox();
    run(&sandbox, "grandchild rude ignore-term; grandchild bare clearenv setsid").success();
    let (rude, bare) = (sandbox.wait_pid("rude"), sandbox.wait_pid("bare"));
    let found: Vec<u32> = sandbox.processes().iter().map(|process| process.pid).collect();
    assert_eq!(found, [rude]);
    assert!(piton_testkit::signal(rude, Signal::TERM) && alive(bare));
    assert!(piton_testkit::signal(bare, Signal::TERM));
    wait_until(DEADLINE, "the polite one's end", || !alive(bare));
    assert!(alive(rude));
}

/// A lock on an inherited descriptor shows who has it: held by the grandchild, free if it closed it.
#[test]
fn closefds_lets_go_of_inherited_descriptors() {
    let sandbox = sandbox();
    let lock = sandbox.write(sandbox.mark("lock"), "");
    let open = || File::open(&lock).expect("the lock's file");
    let is_free = || open().try_lock().is_ok();
    let run_with_lock = |script: &str| {
        let held = open();
        held.lock().expect("a lock");
        // The locked descriptor goes in as input and is passed on as number 17.
        let pass_on = "exec 17<&0 0</dev/null; exec \"$@\"";
        let mut command = sandbox.command("bash");
        command.args(["-c", pass_on, "bash", FAKE_AGENT, "-e", script]);
        let status = command.stdin(held).status();
        assert!(status.expect("bash starts").success());
    };
    run_with_lock("grandchild holds");
    assert!(!is_free());
    kill9(sandbox.wait_pid("holds"));
    run_with_lock("grandchild closed closefds");
    sandbox.wait_until("a free lock", is_free);
    assert!(alive(sandbox.wait_pid("closed")));
}

#[test]
fn one_alone_sees_the_other() {
    let sandbox = sandbox();
    let script = |rest: &str| marked(&sandbox, &format!("alone {{lock}}; {rest}"), "lock");
    let first = start(&sandbox, &script("touch held; hang"));
    sandbox.wait_exists("held");
    run(&sandbox, &script("print never")).expect_code(99);
    assert_eq!(sandbox.lines(sandbox.mark("lock")), 1, "it says that it was not alone");
    first.kill9();
    run(&sandbox, &script("print alone")).success();
}
