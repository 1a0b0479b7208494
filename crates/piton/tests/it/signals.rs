//! What stops a run from outside: Ctrl-C once, twice and thrice, SIGTERM, SIGHUP, a closed terminal, a
//! closed pipe, `piton stop`, a signal to the keeper. Whatever it was, the agent's bytes are kept, the
//! cause is recorded, nothing of the attempt is left running, and `piton resume` goes on.

use std::process::Stdio;

use piton_testkit::processes::{freeze, has_pending, session};
use piton_testkit::runs::{
    agent_step, at_work, attempt_folder, command_step, completions, events_named, keeper, keepers,
    kept, lay_plan, orphaned, plan, step, view, wait_dead, wait_event, worktree,
};
use piton_testkit::{
    DEADLINE, Output, Sandbox, Signal, Terminal, alive, kill9, signal, wait_until,
};
use serde_json::Value;

/// Works, hangs the first time it is started, and comes to its end the second time.
const HANGS_ONCE: &str = "count {starts}; pid {agent}; write work.txt precious; print at work; \
                          touch {ready}; once {hung}: hang; write done.txt done";
/// The same, deaf to everything but SIGKILL.
const DEAF: &str = "count {starts}; pid {agent}; ignore-term; write work.txt precious; \
                    touch {ready}; once {hung}: hang; write done.txt done";
/// Goes on when it is told to.
const PATIENT: &str = "count {starts}; pid {agent}; write work.txt precious; touch {ready}; \
                       await {go}; write done.txt done";

const RUN: [&str; 5] = ["run", "plan.toml", "--trust", "--grace", "300ms"];
const RUN_WITH_MUCH_GRACE: [&str; 5] = ["run", "plan.toml", "--trust", "--grace", "10m"];

fn sandbox(script: &str) -> Sandbox {
    let sandbox = crate::sandbox();
    let steps = [
        agent_step(&sandbox, "work", script, ""),
        command_step(&sandbox, "after", "cp work.txt copy.txt", "needs = ['work']"),
        command_step(&sandbox, "last", "cp copy.txt last.txt", "needs = ['after']"),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox
}

/// The run as `piton status --json` lists it.
fn status(sandbox: &Sandbox) -> Value {
    sandbox.piton(&["status", "--json"]).output().success().json()["data"]["runs"][0].clone()
}

/// The run was stopped, says so with its cause and time, and has the agent's bytes.
#[track_caller]
fn assert_stopped(sandbox: &Sandbox, cause: &str) {
    assert_left(sandbox, "stopped", cause);
}

#[track_caller]
fn assert_left(sandbox: &Sandbox, as_what: &str, cause: &str) {
    let run = status(sandbox);
    assert_eq!((run["status"].as_str(), run["cause"].as_str()), (Some(as_what), Some(cause)));
    let at = run["at"].as_str().expect("a time");
    let (opened, changed) = (&run["opened_at"], &run["changed_at"]);
    assert!(opened.as_str() <= Some(at) && Some(at) <= changed.as_str(), "{opened} {at} {changed}");
    assert_eq!(kept(sandbox, "work", "work.txt"), "precious");
    let tree = worktree(sandbox);
    assert_eq!(sandbox.git_in(&tree, &["log", "--format=%s"]), "ready\ninitial", "uncommitted");
    sandbox.wait_no_processes();
}

/// `piton resume` brings the run to its end, with the interrupted work in it.
#[track_caller]
fn assert_resumes(sandbox: &Sandbox, starts: usize) -> Output {
    let resumed = sandbox.piton(&["resume"]).output().success();
    assert_finished(sandbox, starts);
    resumed
}

#[track_caller]
fn assert_finished(sandbox: &Sandbox, starts: usize) {
    let run = view(sandbox);
    assert_eq!(run["status"], "completed", "{run:#}");
    let branch = run["branch"].as_str().expect("a branch");
    let files = sandbox.git(&["ls-tree", "--name-only", branch]);
    let files = files.replace("last.txt\n", "");
    assert_eq!(files, ".gitignore\nREADME.md\ncopy.txt\ndone.txt\nwork.txt");
    assert!(completions(sandbox).values().all(|times| *times == 1));
    assert_eq!(sandbox.lines(sandbox.mark("starts")), starts);
    sandbox.wait_no_processes();
}

fn exit_record(sandbox: &Sandbox) -> Value {
    let claimed = events_named(sandbox, "claimed").pop().expect("a claim");
    sandbox.read_json(attempt_folder(sandbox, &claimed["attempt"]).join("exit.json"))["exit"]
        .clone()
}

#[test]
fn ctrl_c_stops_the_agent_and_keeps_its_work() {
    let sandbox = sandbox(HANGS_ONCE);
    let (worker, agent) = at_work(&sandbox, &RUN);
    worker.signal(Signal::INT);
    let output = worker.wait().expect_code(130);
    assert!(output.stderr.contains("piton resume"), "{output}");
    assert!(!alive(agent));
    assert_eq!(exit_record(&sandbox)["signal"], Signal::TERM.as_raw(), "it was asked, not killed");
    let asked = events_named(&sandbox, "stop_requested");
    assert_eq!((asked.len(), asked[0]["haste"].as_str()), (1, Some("graceful")));
    assert_stopped(&sandbox, "user_interrupt");
    assert_resumes(&sandbox, 2);
}

#[test]
fn a_terminal_sends_ctrl_c_to_the_watcher_alone() {
    let sandbox = sandbox(HANGS_ONCE);
    let mut terminal = Terminal::start(&sandbox, &RUN);
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    let (watcher, worker, keeper) = (terminal.pid(), sandbox.worker(), keeper(&sandbox));
    assert_eq!(session(watcher), Some(watcher), "the terminal is the watcher's");
    for other in [worker, keeper, agent] {
        assert_ne!(session(other), Some(watcher));
    }

    // A frozen watcher takes no signal: whoever stops now was reached by the terminal.
    freeze(watcher);
    terminal.type_in("\u{3}");
    wait_until(DEADLINE, "Ctrl-C at the watcher", || has_pending(watcher, Signal::INT));
    assert!([worker, keeper, agent].iter().all(|other| !has_pending(*other, Signal::INT)));
    assert_eq!(events_named(&sandbox, "stop_requested"), Vec::<Value>::new());
    assert!(alive(agent) && alive(keeper), "Ctrl-C did not reach them");

    assert!(signal(watcher, Signal::CONT));
    let output = terminal.wait().expect_code(130);
    assert!(output.stdout.contains("Stopped"), "{output}");
    assert!(!alive(agent));
    assert_stopped(&sandbox, "user_interrupt");
    assert_resumes(&sandbox, 2);
}

#[test]
fn an_agent_that_ignores_the_request_is_killed_after_the_grace() {
    let sandbox = sandbox(DEAF);
    let (worker, agent) = at_work(&sandbox, &RUN);
    worker.signal(Signal::INT);
    worker.wait().expect_code(130);
    assert!(!alive(agent));
    assert_eq!(exit_record(&sandbox)["signal"], Signal::KILL.as_raw(), "nothing else ended it");
    assert_eq!(events_named(&sandbox, "stop_requested").len(), 1);
    assert_stopped(&sandbox, "user_interrupt");
    assert_resumes(&sandbox, 2);
}

#[test]
fn a_second_ctrl_c_kills_at_once() {
    let sandbox = sandbox(DEAF);
    let (worker, agent) = at_work(&sandbox, &RUN_WITH_MUCH_GRACE);
    worker.signal(Signal::INT);
    assert_eq!(wait_event(&sandbox, "stop_requested")["haste"], "graceful");
    assert!(alive(agent), "it has ten minutes");
    worker.signal(Signal::INT);
    worker.wait().expect_code(130);
    assert!(!alive(agent));
    let hastes = events_named(&sandbox, "stop_requested");
    let hastes: Vec<_> = hastes.iter().map(|event| event["haste"].as_str()).collect();
    assert_eq!(hastes, [Some("graceful"), Some("now")]);
    assert_stopped(&sandbox, "user_interrupt");
    assert_resumes(&sandbox, 2);
}

#[test]
fn a_third_ctrl_c_waits_for_nobody() {
    let sandbox = sandbox(HANGS_ONCE);
    let (worker, agent) = at_work(&sandbox, &RUN);
    let keeper = keeper(&sandbox);
    freeze(keeper);
    for n in 1..=2 {
        worker.signal(Signal::INT);
        sandbox.wait_until("the request", || events_named(&sandbox, "stop_requested").len() == n);
    }
    worker.signal(Signal::INT);
    worker.wait().expect_code(130);
    assert!(alive(keeper) && alive(agent), "they have not been told yet");
    assert_eq!(status(&sandbox)["status"], "running", "a frozen attempt is not a dead one");
    assert!(signal(keeper, Signal::CONT));
    wait_dead(keeper);
    assert!(!alive(agent));
    assert_stopped(&sandbox, "user_interrupt");
    assert_resumes(&sandbox, 2);
}

#[test]
fn an_agent_that_ends_well_when_asked_to_stop_has_not_finished() {
    let script = "count {starts}; pid {agent}; term-exit 0; write work.txt precious; \
                  touch {ready}; once {hung}: hang; write done.txt done";
    let sandbox = sandbox(script);
    let (worker, _) = at_work(&sandbox, &RUN);
    worker.signal(Signal::TERM);
    worker.wait().expect_code(143);
    assert_eq!(exit_record(&sandbox)["code"], 0, "it said that all was well");
    assert_stopped(&sandbox, "termination");
    assert_resumes(&sandbox, 2);
}

#[test]
fn ctrl_c_during_verify_does_not_start_the_agent_again() {
    let sandbox = crate::sandbox();
    let script = "count {starts}; write work.txt precious; write done.txt done";
    let check = sandbox.fake(&piton_testkit::runs::marked(
        &sandbox,
        "pid {verify}; touch {ready}; once {hung}: hang",
    ));
    let verify = format!("verify = {}", piton_testkit::toml_string(&check));
    let steps = [
        agent_step(&sandbox, "work", script, &verify),
        command_step(&sandbox, "after", "cp work.txt copy.txt", "needs = ['work']"),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let worker = sandbox.piton(&RUN).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let verify = sandbox.wait_pid(sandbox.mark("verify"));
    assert!(alive(verify));
    worker.signal(Signal::INT);
    worker.wait().expect_code(130);
    assert!(!alive(verify));
    let run = view(&sandbox);
    assert_eq!(step(&run, "work")["left_at"], "verify");
    assert_eq!(run["cause"], "user_interrupt");
    sandbox.wait_no_processes();
    assert_resumes(&sandbox, 1);
}

/// Ctrl-C while the keeper is held at a point; what the run shows then.
fn interrupted_at(point: &str, sandbox: &Sandbox) -> Value {
    let point = sandbox.crash_point(point, 1);
    let worker = sandbox.piton(&RUN).crash_at(&point).spawn();
    assert_eq!(point.wait_hit(), keeper(sandbox));
    worker.signal(Signal::INT);
    wait_event(sandbox, "stop_requested");
    point.release();
    worker.wait().expect_code(130);
    let run = view(sandbox);
    let shown = (run["status"].as_str(), run["cause"].as_str());
    assert_eq!(shown, (Some("stopped"), Some("user_interrupt")));
    sandbox.wait_no_processes();
    run
}

#[test]
fn ctrl_c_before_the_agent_starts_none() {
    let sandbox = sandbox(HANGS_ONCE);
    std::fs::write(sandbox.mark("hung"), "").expect("nobody hangs here");
    let run = interrupted_at("keeper.tree-prepared", &sandbox);
    assert_eq!(step(&run, "work")["left_at"], "unstarted");
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 0);
    assert_resumes(&sandbox, 1);
}

#[test]
fn ctrl_c_before_landing_leaves_only_the_landing_to_do() {
    let sandbox = sandbox(HANGS_ONCE);
    std::fs::write(sandbox.mark("hung"), "").expect("nobody hangs here");
    let run = interrupted_at("keeper.verified", &sandbox);
    assert_eq!(step(&run, "work")["left_at"], "land");
    assert_resumes(&sandbox, 1);
}

/// Whoever watched has left; the run goes on to its end by itself.
#[track_caller]
fn assert_goes_on_to_its_end(sandbox: &Sandbox, agent: u32) {
    assert!(alive(agent), "the agent works on");
    assert_eq!((keepers(sandbox).len(), sandbox.workers().len()), (1, 1));
    let run = status(sandbox);
    assert_eq!((&run["status"], &run["worker"]), (&"running".into(), &true.into()));
    assert_eq!(events_named(sandbox, "stop_requested"), Vec::<Value>::new());
    std::fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
    sandbox.wait_until("the end of the run", || view(sandbox)["status"] == "completed");
    assert_finished(sandbox, 1);
    assert_eq!(events_named(sandbox, "claimed").len(), 3, "each step once");
}

#[test]
fn a_closed_terminal_ends_the_watcher_and_not_the_run() {
    let sandbox = sandbox(PATIENT);
    let mut terminal = Terminal::start(&sandbox, &RUN);
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    assert!(alive(terminal.pid()));
    terminal.close();
    terminal.wait().expect_code(129);
    assert_goes_on_to_its_end(&sandbox, agent);
}

#[test]
fn a_killed_watcher_ends_nothing_but_itself() {
    let sandbox = sandbox(PATIENT);
    let (watcher, agent) = at_work(&sandbox, &RUN);
    drop(watcher.kill9_alone());
    assert_goes_on_to_its_end(&sandbox, agent);
}

#[test]
fn ctrl_c_in_watch_is_harmless() {
    let sandbox = sandbox(PATIENT);
    let (driver, agent) = at_work(&sandbox, &RUN);
    let mut terminal = Terminal::start(&sandbox, &["watch"]);
    sandbox.wait_until("the step on the screen", || terminal.shown().contains("work"));
    terminal.type_in("\u{3}");
    terminal.wait().expect_code(130);
    drop(driver.kill9_alone());
    assert_goes_on_to_its_end(&sandbox, agent);
}

#[test]
fn a_worker_that_dies_is_replaced_by_whoever_watches() {
    let sandbox = sandbox(PATIENT);
    let (watcher, agent) = at_work(&sandbox, &RUN);
    let first = sandbox.worker();
    kill9(first);
    sandbox.wait_until("another worker", || sandbox.workers().iter().any(|pid| *pid != first));
    assert!(alive(agent), "the agent does not notice");
    std::fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
    let output = watcher.wait().success();
    assert!(output.stderr.contains("the worker is gone; starting another"), "{output}");
    assert_finished(&sandbox, 1);
}

#[test]
fn a_run_without_a_worker_is_paused_and_says_so() {
    let sandbox = sandbox(PATIENT);
    let (watcher, agent) = at_work(&sandbox, &RUN);
    drop(watcher.kill9());
    let shown = sandbox.piton(&["status"]).output().success();
    assert!(shown.stdout.contains("no worker is running"), "{shown}");
    assert_eq!(status(&sandbox)["worker"], false);
    std::fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
    wait_dead(agent);
    sandbox.wait_no_processes();
    let shown = sandbox.piton(&[]).output().success();
    assert!(shown.stdout.contains("paused: no worker is running"), "{shown}");
    let handle = status(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    assert!(shown.stdout.contains(&format!("\n  piton resume {handle}\n")), "{shown}");
    let watched = sandbox.piton(&["watch"]).output().success();
    assert!(watched.stdout.contains("paused: no worker is running"), "{watched}");
    assert_resumes(&sandbox, 1);
}

#[test]
fn a_second_resume_watches_the_worker_that_is_there() {
    let sandbox = sandbox(PATIENT);
    let (first, _) = at_work(&sandbox, &RUN);
    let worker = sandbox.worker();
    let second = sandbox.piton(&["resume"]).spawn();
    sandbox.wait_until("a word of the attempt", || second.stderr().contains("step work"));
    assert_eq!(sandbox.workers(), [worker]);
    std::fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
    second.wait().success();
    first.wait().success();
    assert_finished(&sandbox, 1);
}

#[test]
fn whatever_an_agent_leaves_running_is_ended() {
    let script = "count {starts}; pid {agent}; write work.txt precious; \
                  grandchild {g1}; grandchild {g2} setsid; grandchild {g3} setsid closefds; \
                  grandchild {g4} setsid closefds clearenv ignore-term; \
                  grandchild {g5} clearenv ignore-term writes leftover.txt; \
                  sh (setsid sh -c 'echo $$ > {g6}.part && mv {g6}.part {g6} && exec sleep 600' \
                  >/dev/null 2>&1 </dev/null &) ; \
                  await {g6}; touch {ready}; once {hung}: hang; write done.txt done; \
                  delete leftover.txt";
    let sandbox = sandbox(script);
    let (worker, agent) = at_work(&sandbox, &RUN);
    let left = || -> Vec<u32> {
        (1..=6).map(|n| sandbox.wait_pid(sandbox.mark(&format!("g{n}")))).collect()
    };
    let first = left();
    assert!(first.iter().all(|pid| alive(*pid)), "all of them were there: {first:?}");
    assert_ne!(session(first[3]), session(agent), "one of them has escaped the agent's session");
    worker.signal(Signal::INT);
    worker.wait().expect_code(130);
    assert_eq!(first.iter().filter(|pid| alive(**pid)).count(), 0, "{first:?}");
    assert_stopped(&sandbox, "user_interrupt");

    // The second time the agent ends by itself and leaves as many behind.
    for n in 1..=6 {
        std::fs::remove_file(sandbox.mark(&format!("g{n}"))).expect("written before");
    }
    sandbox.piton(&["resume"]).output().success();
    let second = left();
    assert!(first.iter().all(|pid| !second.contains(pid)), "these are new: {second:?}");
    assert_eq!(second.iter().filter(|pid| alive(**pid)).count(), 0, "{second:?}");
    assert_eq!(view(&sandbox)["status"], "completed");
}

#[test]
fn stop_from_elsewhere_stops_the_run_until_somebody_resumes() {
    let sandbox = sandbox(HANGS_ONCE);
    let (worker, agent) = at_work(&sandbox, &RUN);
    let stopped = sandbox.piton(&["stop", "--json"]).output().success().json();
    assert_eq!(stopped["data"]["still_running"], serde_json::json!([]));
    assert_eq!(stopped["data"]["run"]["status"], "stopped");
    assert!(!alive(agent), "it has ended before the answer");
    assert_eq!(kept(&sandbox, "work", "work.txt"), "precious");
    worker.wait().expect_code(130);
    let run = status(&sandbox);
    let shown = (run["status"].as_str(), run["cause"].as_str());
    assert_eq!(shown, (Some("stopped"), Some("user_interrupt")));
    sandbox.wait_no_processes();
    assert_resumes(&sandbox, 2);
}

#[test]
fn stop_ends_what_a_dead_keeper_left() {
    let sandbox = sandbox(HANGS_ONCE);
    let (worker, agent) = at_work(&sandbox, &RUN);
    orphaned(&sandbox, worker);
    assert!(alive(agent), "nobody is behind it any more");
    let stopped = sandbox.piton(&["stop"]).output().success();
    assert!(stopped.stderr.contains(&format!("was ended: {agent}")), "{stopped}");
    assert!(!alive(agent));
    let run = status(&sandbox);
    let shown = (run["status"].as_str(), run["cause"].as_str());
    assert_eq!(shown, (Some("stopped"), Some("user_interrupt")));
    assert_eq!(kept(&sandbox, "work", "work.txt"), "precious");
    sandbox.wait_no_processes();
    assert_resumes(&sandbox, 2);
}

#[test]
fn stop_now_does_not_wait_for_the_grace() {
    let sandbox = sandbox(DEAF);
    let (worker, agent) = at_work(&sandbox, &RUN_WITH_MUCH_GRACE);
    sandbox.piton(&["stop", "--now"]).output().success();
    assert!(!alive(agent));
    assert_eq!(exit_record(&sandbox)["signal"], Signal::KILL.as_raw());
    assert_eq!(kept(&sandbox, "work", "work.txt"), "precious");
    worker.wait().expect_code(130);
    assert_eq!(status(&sandbox)["status"], "stopped");
    assert_resumes(&sandbox, 2);
}

#[test]
fn one_step_can_be_stopped() {
    let sandbox = sandbox(HANGS_ONCE);
    let (worker, agent) = at_work(&sandbox, &RUN);
    let handle = status(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    sandbox.piton(&["stop", &handle, "after"]).output().success();
    assert!(alive(agent), "another step was meant");
    sandbox.piton(&["stop", &handle, "nonsense"]).output().expect_code(2);
    sandbox.piton(&["stop", &handle, "work"]).output().success();
    worker.wait().expect_code(130);
    assert_left(&sandbox, "interrupted", "user_interrupt");
    assert_resumes(&sandbox, 2);
}

#[test]
fn a_signal_to_the_keeper_interrupts_its_attempt_and_the_worker_goes_on() {
    let sandbox = sandbox(HANGS_ONCE);
    let (worker, agent) = at_work(&sandbox, &RUN);
    assert!(signal(keeper(&sandbox), Signal::TERM));
    worker.wait().success();
    assert!(!alive(agent));
    let interrupted = events_named(&sandbox, "interrupted");
    assert_eq!(interrupted.len(), 1);
    assert_eq!(interrupted[0]["cause"], "termination");
    assert_finished(&sandbox, 2);
}

#[test]
fn nobody_has_to_listen() {
    let sandbox = sandbox(PATIENT);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = sandbox.piton(&RUN).into_command();
    command.stdout(writer.try_clone().expect("a duplicate")).stderr(writer);
    let mut worker = command.stdin(Stdio::null()).spawn().expect("piton starts");
    drop(command);
    sandbox.wait_exists(sandbox.mark("ready"));
    drop(reader);
    std::fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
    sandbox.wait_until("the end of the worker", || worker.try_wait().expect("a child").is_some());
    let ended = worker.wait().expect("a child");
    assert_eq!(ended.code(), Some(0), "the work is done, whoever listens");
    assert_finished(&sandbox, 1);
}
