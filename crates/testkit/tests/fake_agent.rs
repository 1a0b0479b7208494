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
fn files_are_written_appended_deleted() {
    let sandbox = sandbox();
    let script = "write a/b.txt one  two\\nthree; append a/b.txt four; write empty; mkdir d/e; \
                  write gone x; delete gone; delete never-there; mkdir full/in; delete full";
    run(&sandbox, script).success();
    assert_eq!(sandbox.read("a/b.txt"), "one  two\nthree\nfour\n");
    assert_eq!(sandbox.read("empty"), "");
    assert!(sandbox.path("d/e").is_dir());
    assert!(!sandbox.exists("gone") && !sandbox.exists("full"));
}

#[test]
fn commits_are_real_and_skipped_when_nothing_changed() {
    let sandbox = sandbox();
    let script = "write a x; delete README.md; commit add a; commit nothing new";
    run(&sandbox, script).success();
    assert_eq!(sandbox.git(&["log", "--format=%s"]), "add a\ninitial");
    assert_eq!(sandbox.git(&["ls-files"]), "a");
    assert_eq!(sandbox.git(&["status", "--porcelain"]), "");
}

#[test]
fn output_goes_where_it_is_meant_to() {
    let sandbox = sandbox();
    let out = run(&sandbox, "print a\\;b; raw {\"torn\":; stderr oh; exit 7").expect_code(7);
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("a;b\n{\"torn\":", "oh\n"));

    let out = run(&sandbox, "lines 2; bytes 200000").success();
    assert_eq!(out.stdout.len(), "line 1\nline 2\n".len() + 200_000);
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
fn an_action_that_fails_is_named() {
    let sandbox = sandbox();
    let out = run(&sandbox, "mkdir README.md/x").expect_code(70);
    assert!(out.stderr.starts_with("fake-agent: README.md/x: "), "{out}");
}

#[test]
fn scripts_come_from_files_stdin_and_the_prompt() {
    let sandbox = sandbox();
    sandbox.write("script", "# a note\n\nprint file; still the same line\n");
    let prompt = "Do this:\n\nfake: print prompt\nnot this\nfake: dump-prompt copy\n";
    let prompt_file = sandbox.write(sandbox.mark("prompt"), prompt);
    let out = sandbox
        .piton(&["--script", "script", "--stdin", "--prompt", "-e", "args given", "--", "-x", "y"])
        .stdin("print stdin\n")
        .env("PITON_PROMPT_FILE", &prompt_file)
        .output()
        .success();
    assert_eq!(out.stdout, "file; still the same line\nstdin\nprompt\n");
    assert_eq!(sandbox.read("copy"), prompt);
    assert_eq!(sandbox.read("given"), "-x\ny\n");

    sandbox.piton(&["--prompt"]).output().expect_code(64);
}

#[test]
fn environment_and_input_are_dumped() {
    let sandbox = sandbox();
    let script = "env SOME some; env UNSET unset; stdin input; pid me; sh echo $SOME >> some";
    let piton = sandbox.piton(&["-e", script]).env("SOME", "value").stdin("hello");
    piton.output().success();
    assert_eq!(sandbox.read("some"), "valuevalue\n");
    assert_eq!(sandbox.read("unset"), "");
    assert_eq!(sandbox.read("input"), "hello");
    assert!(!alive(sandbox.wait_pid("me")));
    run(&sandbox, "sh exit 9; write never x").expect_code(9);
    assert!(!sandbox.exists("never"));
}

#[test]
fn it_waits_and_says_that_it_is_there() {
    let sandbox = sandbox();
    let script = "touch here; sleep 1; await go; print went";
    let mut agent = start(&sandbox, script);
    sandbox.wait_exists("here");
    assert!(agent.is_running());
    sandbox.write("go", "");
    assert_eq!(agent.wait().success().stdout, "went\n");
}

#[test]
fn starts_are_counted_and_told_apart() {
    let sandbox = sandbox();
    let script = "count {n}; nth {n} 1: print first; nth {n} 2: print second; nth {n} 2+: exit 3";
    let script = marked(&sandbox, script, "n");
    assert_eq!(run(&sandbox, &script).expect_code(0).stdout, "first\n");
    assert_eq!(run(&sandbox, &script).expect_code(3).stdout, "second\n");
    assert_eq!(run(&sandbox, &script).expect_code(3).stdout, "");
    assert_eq!(sandbox.lines(sandbox.mark("n")), 3);
    assert!(sandbox.read(sandbox.mark("n")).starts_with("start "));
}

#[test]
fn once_is_once() {
    let sandbox = sandbox();
    let script = marked(&sandbox, "once {o}: write a x; once {o}: exit 1", "o");
    run(&sandbox, &script).success();
    assert!(sandbox.exists("a"));
    sandbox.git(&["clean", "-fdq"]);
    run(&sandbox, &script).success();
    assert!(!sandbox.exists("a"));
}

#[test]
fn it_dies_as_told() {
    let sandbox = sandbox();
    let ends = |script| run(&sandbox, script).signal;
    assert_eq!(ends("crash"), Some(Signal::ABORT.as_raw()));
    assert_eq!(ends("kill-self KILL"), Some(Signal::KILL.as_raw()));
    assert_eq!(ends("kill-self SIGTERM"), Some(Signal::TERM.as_raw()));
}

#[test]
fn sigterm_ends_it_unless_told_otherwise() {
    let sandbox = sandbox();
    let agent = start(&sandbox, "touch polite; hang");
    sandbox.wait_exists("polite");
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().signal, Some(Signal::TERM.as_raw()));

    let agent = start(&sandbox, "term-exit 0; touch sly; hang");
    sandbox.wait_exists("sly");
    agent.signal(Signal::TERM);
    agent.wait().expect_code(0);
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
fn a_grandchild_survives_and_writes() {
    let sandbox = sandbox();
    run(&sandbox, "grandchild pid writes out; print bye").success();
    let pid = sandbox.wait_pid("pid");
    assert!(alive(pid));
    let lines = sandbox.lines("out");
    sandbox.wait_until("more lines", || sandbox.lines("out") > lines + 2);
    kill9(pid);
    assert!(!alive(pid));
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
