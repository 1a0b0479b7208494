//! What happens after each kind of death: who goes on undisturbed, who is ended before anybody else
//! starts, what is kept, what the next agent is told, and when piton stops and asks. Every run here has
//! a lease of an hour: nothing on one host waits for it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use piton_testkit::processes::{freeze, session};
use piton_testkit::runs::{
    OnDisk, agent_step, all_killed, at_work, attempt_folder, command_step, completions, events,
    events_named, keeper, keepers, step, view, wait_dead, wait_event,
};
use piton_testkit::{DEADLINE, Output, Sandbox, Signal, alive, kill9, shell_word, wait_until};
use serde_json::{Value, json};

use crate::sandbox_of;

const RUN: [&str; 8] =
    ["run", "plan.toml", "--trust", "--auto-continue", "--grace", "300ms", "--lease", "1h"];

/// Works, hangs the first time it is started, comes to its end the second time; never two at once.
const HANGS_ONCE: &str = "alone {lock}; count {starts}; pid {agent}; nth {starts} 2: dump-prompt \
                          {prompt}; nth {starts} 2: sh cp work.txt {seen}; write work.txt precious; \
                          print at work; touch {ready}; nth {starts} 1: hang; write done.txt done";

fn sandbox(script: &str) -> Sandbox {
    sandbox_of(|sandbox| vec![agent_step(sandbox, "work", script, "")])
}

fn status(sandbox: &Sandbox) -> Value {
    sandbox.piton(&["status", "--json"]).output().success().json()["data"]["runs"][0].clone()
}

fn go(sandbox: &Sandbox) {
    fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
}

/// The run came to its end, with this many starts of its agent, no two of them at once.
#[track_caller]
fn assert_finished(sandbox: &Sandbox, starts: usize) {
    let run = view(sandbox);
    assert_eq!(run["status"], "completed", "{run:#}");
    assert!(completions(sandbox).values().all(|times| *times == 1));
    assert_eq!(sandbox.lines(sandbox.mark("starts")), starts);
    assert_eq!(sandbox.lines(sandbox.mark("lock")), 0, "two agents at once");
    sandbox.wait_no_processes();
}

/// The bytes of a file in a snapshot that was taken under a fence.
#[track_caller]
fn kept_under(sandbox: &Sandbox, fence: &Value, path: &str) -> String {
    let handle = view(sandbox)["handle"].as_str().expect("a handle").to_owned();
    let folder = format!("refs/piton/{handle}/work/{fence}");
    let names = sandbox.git(&["for-each-ref", "--format=%(refname)", &folder]);
    let newest = names.lines().last().unwrap_or_else(|| panic!("no snapshot in {folder}"));
    sandbox.git(&["cat-file", "blob", &format!("{newest}:{path}")])
}

#[test]
fn a_dead_worker_disturbs_nobody() {
    let script = "count {starts}; pid {agent}; write work.txt precious; \
                  grandchild {child} writes {growing}; touch {ready}; await {go}; \
                  write done.txt done";
    let sandbox = sandbox(script);
    let (worker, agent) = at_work(&sandbox, &RUN);
    let keeper = keeper(&sandbox);
    drop(worker.kill9());
    let written = sandbox.lines(sandbox.mark("growing"));
    sandbox
        .wait_until("more from the agent", || sandbox.lines(sandbox.mark("growing")) > written + 5);
    assert!(alive(agent) && alive(keeper));
    assert_eq!(status(&sandbox)["status"], "running");
    let dry = sandbox.piton(&["resume", "--dry-run", "--json"]).output().success().json();
    assert_eq!(dry["data"]["steps"][0]["action"], "adopt");

    let resume = sandbox.piton(&["resume"]).spawn();
    sandbox.wait_until("word of the living attempt", || resume.stderr().contains("watching it"));
    assert!(alive(agent), "it was adopted, not started again");
    go(&sandbox);
    resume.wait().success();
    assert_eq!(sandbox.wait_pid(sandbox.mark("agent")), agent);
    assert_eq!(events_named(&sandbox, "claimed").len(), 1);
    assert_finished(&sandbox, 1);
}

#[test]
fn without_any_worker_a_step_is_still_completed() {
    let script = "count {starts}; pid {agent}; write work.txt x; touch {ready}; await {go}";
    let sandbox = sandbox(script);
    let (worker, _) = at_work(&sandbox, &RUN);
    let keeper = keeper(&sandbox);
    drop(worker.kill9());
    go(&sandbox);
    wait_dead(keeper);
    assert_finished(&sandbox, 1);
    let resumed = sandbox.piton(&["resume"]).output().success();
    assert!(resumed.stdout.contains("is completed"), "{resumed}");
}

#[test]
fn a_live_worker_replaces_a_dead_keeper() {
    let sandbox = sandbox(HANGS_ONCE);
    let (worker, agent) = at_work(&sandbox, &RUN);
    let fence = events_named(&sandbox, "claimed")[0]["position"].clone();
    let dead = keeper(&sandbox);
    kill9(dead);
    let output = worker.wait().success();
    assert!(output.stderr.contains(&format!("had left: {agent}")), "{output}");
    assert!(!alive(agent), "the orphan was ended");
    assert_finished(&sandbox, 2);

    let interrupted = events_named(&sandbox, "interrupted");
    assert_eq!(interrupted.len(), 1);
    assert_eq!(interrupted[0]["cause"], "process_kill");
    assert_eq!(kept_under(&sandbox, &fence, "work.txt"), "precious");
    assert_eq!(sandbox.read(sandbox.mark("seen")), "precious\n", "the next agent found it");
    let brief = sandbox.read(sandbox.mark("prompt"));
    for part in ["fake: alone", "interrupted (process_kill)", "work.txt", "Check what is already"] {
        assert!(brief.contains(part), "{part} is missing:\n{brief}");
    }
    let order: Vec<String> = events(&sandbox)
        .iter()
        .map(|event| event["event"].as_str().expect("a name").to_owned())
        .filter(|name| ["claimed", "checkpointed", "interrupted"].contains(&name.as_str()))
        .collect();
    assert_eq!(order, ["claimed", "checkpointed", "interrupted", "claimed"], "bytes before facts");
}

#[test]
fn orphans_are_found_by_the_mark_the_lock_or_the_session_that_they_kept() {
    let script = "alone {lock}; count {starts}; pid {agent}; write work.txt precious; \
                  once {b1}: grandchild {mark} setsid closefds ignore-term; \
                  once {b2}: grandchild {descriptor} setsid clearenv ignore-term writes noise.txt; \
                  once {b3}: grandchild {session} closefds clearenv ignore-term; \
                  touch {ready}; once {hung}: hang; delete noise.txt";
    let sandbox = sandbox(script);
    let (worker, agent) = at_work(&sandbox, &RUN);
    let left = ["mark", "descriptor", "session"].map(|kept| sandbox.wait_pid(sandbox.mark(kept)));
    let keeper = keeper(&sandbox);
    drop(worker.kill9());
    kill9(keeper);
    let marked: Vec<u32> =
        sandbox.processes_with_env("PITON_ATTEMPT=").iter().map(|orphan| orphan.pid).collect();
    assert_eq!(left.map(|pid| marked.contains(&pid)), [true, false, false]);
    assert_eq!(left.map(|pid| session(pid) == Some(keeper)), [false, false, true]);
    assert!(alive(agent) && left.iter().all(|pid| alive(*pid)), "they have outlived their keeper");
    sandbox.piton(&["resume"]).output().success();
    assert!(!alive(agent) && left.iter().all(|pid| !alive(*pid)));
    assert_finished(&sandbox, 2);
}

#[test]
fn an_agent_that_had_changed_nothing_starts_afresh() {
    let script = "alone {lock}; count {starts}; pid {agent}; nth {starts} 2: dump-prompt {prompt}; \
                  touch {ready}; once {hung}: hang; write done.txt done";
    let sandbox = sandbox(script);
    all_killed(&sandbox, &RUN);
    sandbox.piton(&["resume"]).output().success();
    assert_finished(&sandbox, 2);
    assert_eq!(events_named(&sandbox, "claimed")[1]["entry"], "fresh");
    let brief = sandbox.read(sandbox.mark("prompt"));
    assert!(brief.contains("interrupted (process_kill)"), "{brief}");
}

#[test]
fn a_killed_agent_is_an_interruption_and_costs_no_retry() {
    let sandbox = sandbox(HANGS_ONCE);
    let (worker, agent) = at_work(&sandbox, &RUN);
    kill9(agent);
    worker.wait().success();
    let interrupted = events_named(&sandbox, "interrupted");
    assert_eq!(interrupted.len(), 1);
    assert_eq!(interrupted[0]["cause"], "process_kill");
    assert_eq!(events_named(&sandbox, "claimed")[1]["entry"], "continue");
    let work = step(&view(&sandbox), "work").clone();
    assert_eq!(work["failures"], 0);
    // What it printed and how it ended is kept.
    let [first, second] = [0, 1].map(|n| attempt_folder(&sandbox, &work["attempts"][n]["attempt"]));
    assert_eq!(sandbox.read(first.join("transcript.log")), "at work\n");
    assert_eq!(sandbox.read_json(first.join("exit.json"))["exit"], json!({ "signal": 9 }));
    assert_eq!(sandbox.read_json(second.join("exit.json"))["exit"], json!({ "code": 0 }));
    assert_finished(&sandbox, 2);
}

#[test]
fn a_failed_agent_is_retried_with_its_failure_in_the_brief() {
    let script = "alone {lock}; count {starts}; nth {starts} 2: dump-prompt {prompt}; \
                  write half.txt half; print it hurts here; exit 3";
    let sandbox = sandbox_of(|sandbox| vec![agent_step(sandbox, "work", script, "retries = 1")]);
    let output = sandbox.piton(&RUN).output().expect_code(1);
    assert!(output.stderr.contains("it hurts here"), "{output}");
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 2, "retried once");
    assert_eq!(sandbox.lines(sandbox.mark("lock")), 0);
    let brief = sandbox.read(sandbox.mark("prompt"));
    for part in ["failed", "exit 3", "it hurts here", "half.txt"] {
        assert!(brief.contains(part), "{part} is missing:\n{brief}");
    }
    let run = view(&sandbox);
    assert_eq!(run["status"], "failed");
    assert_eq!(step(&run, "work")["failures"], 2);
    assert_eq!(events_named(&sandbox, "interrupted"), Vec::<Value>::new());
    sandbox.piton(&["resume"]).output().expect_code(1);
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 2, "a failed run stays failed");
}

#[test]
fn a_failed_verify_fails_the_step_and_nothing_lands() {
    let sandbox = sandbox_of(|sandbox| {
        let verify = "verify = 'echo not good enough; exit 7'";
        vec![agent_step(sandbox, "work", "count {starts}; write work.txt x", verify)]
    });
    let output = sandbox.piton(&RUN).output().expect_code(1);
    assert!(output.stderr.contains("not good enough"), "{output}");
    let run = view(&sandbox);
    assert_eq!(run["status"], "failed");
    assert_eq!(step(&run, "work")["why"]["verify"]["exit"], json!({ "code": 7 }));
    assert_eq!(step(&run, "work")["truth"], "unknown");
    let branch = run["branch"].as_str().expect("a branch");
    assert_eq!(sandbox.git(&["rev-parse", branch]), run["base"].as_str().expect("a base"));
    assert_eq!(completions(&sandbox).len(), 0);
}

#[test]
fn a_step_that_takes_too_long_is_ended_and_has_failed() {
    let script = "count {starts}; pid {agent}; ignore-term; write work.txt precious; touch {ready}; \
                  hang";
    let sandbox =
        sandbox_of(|sandbox| vec![agent_step(sandbox, "work", script, "timeout = '300ms'")]);
    sandbox.piton(&RUN).output().expect_code(1);
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    assert!(!alive(agent), "it was deaf to everything but a kill");
    let run = view(&sandbox);
    assert_eq!(step(&run, "work")["why"], json!({ "timeout": { "ms": 300 } }));
    assert_eq!(piton_testkit::runs::kept(&sandbox, "work", "work.txt"), "precious");
    sandbox.wait_no_processes();
}

#[test]
fn three_interruptions_without_progress_ask() {
    let script = "alone {lock}; count {starts}; write same.txt same; nth {starts} 1: kill-self KILL; \
                  nth {starts} 2: kill-self KILL; nth {starts} 3: kill-self KILL";
    let sandbox = sandbox(script);
    let output = sandbox.piton(&RUN).output().expect_code(4);
    assert!(output.stderr.contains("3 times in a row without new progress"), "{output}");
    assert!(output.stderr.contains("piton resume"), "{output}");
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 3);
    assert_eq!(status(&sandbox)["status"], "waiting");
    let asked = sandbox.piton(&["resume", "--json"]).output().expect_code(4).json();
    assert_eq!(asked["issues"][0]["code"], "E066");
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 3, "nothing was started");
    sandbox.piton(&["resume", "--yes"]).output().success();
    assert_finished(&sandbox, 4);
}

#[test]
fn an_agent_that_gets_on_may_be_interrupted_often() {
    let script = "alone {lock}; count {starts}; sh wc -l < {starts} > progress.txt; \
                  nth {starts} 1: kill-self KILL; nth {starts} 2: kill-self KILL; \
                  nth {starts} 3: kill-self KILL; nth {starts} 4: kill-self KILL";
    let sandbox = sandbox(script);
    sandbox.piton(&RUN).output().success();
    assert_eq!(events_named(&sandbox, "interrupted").len(), 4);
    assert_finished(&sandbox, 5);
}

#[test]
fn a_reboot_is_told_apart_from_a_kill() {
    let sandbox = sandbox(HANGS_ONCE);
    all_killed(&sandbox, &RUN);
    assert_eq!(status(&sandbox)["cause"], "process_kill", "within one boot");
    let seen = sandbox.piton(&["status", "--json"]).env("PITON_BOOT_ID", "another").output();
    let run = seen.success().json()["data"]["runs"][0].clone();
    assert_eq!(
        (run["status"].as_str(), run["cause"].as_str()),
        (Some("interrupted"), Some("reboot"))
    );
    assert_eq!(step(&run, "work")["recorded"], false, "looking records nothing");
    sandbox.piton(&["resume"]).env("PITON_BOOT_ID", "another").output().success();
    let interrupted = events_named(&sandbox, "interrupted");
    assert_eq!((interrupted.len(), interrupted[0]["cause"].as_str()), (1, Some("reboot")));
    assert_eq!(sandbox.read(sandbox.mark("seen")), "precious\n");
    assert_finished(&sandbox, 2);
}

#[test]
fn a_process_that_has_a_recorded_pid_by_chance_is_safe() {
    let sandbox = sandbox(HANGS_ONCE);
    all_killed(&sandbox, &RUN);
    let mut innocent = Innocent::start();
    let folder = attempt_folder(&sandbox, &step(&view(&sandbox), "work")["attempts"][0]["attempt"]);
    let mut record = sandbox.read_json(folder.join("keeper.json"));
    assert!(record["keeper"]["pid"].is_u64(), "{record}");
    // The numbers are the same; the times at which they were given out are not.
    for name in ["pid", "group", "session"] {
        record["keeper"][name] = innocent.0.id().into();
    }
    record["agent"] = record["keeper"].clone();
    sandbox.write(folder.join("keeper.json"), &record.to_string());

    assert_eq!(status(&sandbox)["status"], "interrupted", "the attempt is not taken for alive");
    sandbox.piton(&["resume"]).output().success();
    assert_finished(&sandbox, 2);
    assert!(innocent.0.try_wait().expect("a child").is_none(), "it was not touched");
}

/// The leader of a session that has nothing to do with any run; ends with its test.
struct Innocent(Child);

impl Innocent {
    fn start() -> Innocent {
        let mut command = Command::new("setsid");
        command.args(["sleep", "600"]).stdin(Stdio::null()).stdout(Stdio::null());
        let innocent = Innocent(command.stderr(Stdio::null()).spawn().expect("setsid"));
        let pid = innocent.0.id();
        wait_until(DEADLINE, "a session of its own", || session(pid) == Some(pid));
        innocent
    }
}

impl Drop for Innocent {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everything of the repository and its git directory, and every ref.
fn everything(sandbox: &Sandbox) -> (OnDisk, String) {
    (OnDisk::of(&sandbox.repo()), sandbox.git(&["for-each-ref"]))
}

#[track_caller]
fn assert_untouched(sandbox: &Sandbox, before: &(OnDisk, String), what: &str) {
    let now = everything(sandbox);
    assert!(before.0.count() > 50, "there is something to compare");
    let changed = before.0.differences(&now.0);
    assert!(changed.is_empty(), "{what} has touched {changed:?}");
    assert_eq!(before.1, now.1, "{what} has moved refs");
}

#[test]
fn a_dry_run_says_what_resume_does_and_writes_nothing() {
    let sandbox = sandbox_of(|sandbox| {
        vec![
            command_step(sandbox, "before", "echo x > before.txt", ""),
            agent_step(sandbox, "work", HANGS_ONCE, "needs = ['before']"),
            command_step(sandbox, "after", "true", "needs = ['work']"),
        ]
    });
    all_killed(&sandbox, &RUN);
    let before = everything(&sandbox);
    let dry = sandbox.piton(&["resume", "--dry-run"]).output().success();
    let json = sandbox.piton(&["resume", "--dry-run", "--json"]).output().success().json();
    assert_untouched(&sandbox, &before, "a dry run");
    let actions: Vec<_> = (0..3).map(|i| json["data"]["steps"][i]["action"].as_str()).collect();
    assert_eq!(actions, [Some("skip"), Some("bury"), Some("await_needs")]);
    let expected = ["continue in its tree (killed)\n", "  first: record that its attempt is dead"];
    assert!(expected.iter().all(|part| dry.stdout.contains(part)), "{dry}");

    sandbox.piton(&["resume"]).output().success();
    let claims = events_named(&sandbox, "claimed");
    let entries: Vec<_> =
        claims.iter().map(|c| (c["step"]["step"].as_str(), c["entry"].as_str())).collect();
    let named = |step, entry| (Some(step), Some(entry));
    let expected = [
        named("before", "fresh"),
        named("work", "fresh"),
        named("work", "continue"),
        named("after", "fresh"),
    ];
    assert_eq!(entries, expected, "it did what it had said");
    assert_finished(&sandbox, 2);
}

const LOOKING: [&[&str]; 9] = [
    &[],
    &["status"],
    &["status", "--ended", "--json"],
    &["show"],
    &["log"],
    &["events", "--json"],
    &["doctor"],
    &["resume", "--dry-run"],
    &["plan", "check", "plan.toml"],
];

#[test]
fn looking_after_a_crash_writes_nothing() {
    let sandbox = sandbox(HANGS_ONCE);
    all_killed(&sandbox, &RUN);
    let before = everything(&sandbox);
    for args in LOOKING {
        sandbox.piton(args).output().success();
        assert_untouched(&sandbox, &before, &args.join(" "));
    }
    let names: Vec<Value> = events(&sandbox).iter().map(|event| event["event"].clone()).collect();
    assert!(!names.contains(&"interrupted".into()), "nothing was recorded: {names:?}");
}

#[test]
fn looking_works_where_nothing_can_be_written() {
    let sandbox = sandbox(HANGS_ONCE);
    all_killed(&sandbox, &RUN);
    let before = everything(&sandbox);
    let state = sandbox.path(".git/piton");
    for index_of_the_log in [true, false] {
        if !index_of_the_log {
            fs::remove_file(state.join("store.db-shm")).expect("it was left by the killed");
        }
        for args in LOOKING {
            let output = read_only(&sandbox, args);
            assert_eq!(output.code, Some(0), "{args:?}: {output}");
            let told = match args.first() {
                Some(&"status") if args.contains(&"--json") => "process_kill",
                Some(&"status") => "killed",
                Some(&"log") => "at work",
                Some(&"resume") => "continue in its tree",
                _ => "",
            };
            assert!(output.stdout.contains(told), "{args:?}: {output}");
        }
    }
    let changed = before.0.differences(&OnDisk::of(&sandbox.repo()));
    let removed = [Path::new(".git/piton"), Path::new(".git/piton/store.db-shm")];
    assert_eq!(changed, removed, "only what this test has removed");
}

/// Runs piton with the repository mounted read-only, in a mount namespace of its own.
#[track_caller]
fn read_only(sandbox: &Sandbox, args: &[&str]) -> Output {
    let (repo, program) = (sandbox.repo().display().to_string(), sandbox.bin().join("piton"));
    let repo = shell_word(&repo);
    let words: Vec<String> = args.iter().map(|word| shell_word(word)).collect();
    // A write has to fail in there, or this shows nothing.
    let script = format!(
        "mount --bind {repo} {repo} && mount -o remount,bind,ro {repo} && cd {repo} && \
         ! touch .git/piton/written 2>/dev/null && exec {} {}",
        shell_word(&program.display().to_string()),
        words.join(" ")
    );
    // Whoever may not mount may as the root of a user namespace.
    let privileged = sandbox.command("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    let flags = if privileged.expect("unshare (util-linux)").success() { "-m" } else { "-rm" };
    let mut command = sandbox.command("unshare");
    let out = command.args([flags, "sh", "-c", &script]).output().expect("unshare starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    Output { code: out.status.code(), signal: None, stdout, stderr }
}

#[test]
fn a_frozen_attempt_is_not_a_dead_one() {
    let script = "count {starts}; pid {agent}; write work.txt x; touch {ready}; await {go}";
    let sandbox = sandbox(script);
    let (worker, agent) = at_work(&sandbox, &RUN);
    let keeper = keeper(&sandbox);
    drop(worker.kill9());
    for pid in [keeper, agent] {
        freeze(pid);
    }
    assert_eq!(status(&sandbox)["status"], "running");
    let resume = sandbox.piton(&["resume"]).spawn();
    sandbox.wait_until("word of the living attempt", || resume.stderr().contains("watching it"));
    go(&sandbox);
    for pid in [agent, keeper] {
        assert!(piton_testkit::signal(pid, Signal::CONT));
    }
    resume.wait().success();
    assert_finished(&sandbox, 1);
}

#[test]
fn a_recovery_that_is_killed_again_and_again_ends_the_same() {
    let sandbox = sandbox(HANGS_ONCE);
    all_killed(&sandbox, &RUN);
    for point in ["bury.swept", "bury.snapshot-kept", "bury.checkpointed", "bury.recorded"] {
        let point = sandbox.crash_point(point, 1);
        let resume = sandbox.piton(&["resume"]).crash_at(&point).spawn();
        assert_eq!(point.wait_hit(), sandbox.worker());
        drop(resume.kill9());
    }
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(events_named(&sandbox, "interrupted").len(), 1);
    assert_eq!(sandbox.read(sandbox.mark("seen")), "precious\n");
    assert_finished(&sandbox, 2);
}

#[test]
fn a_run_in_the_background_survives_whoever_started_it() {
    let script = "count {starts}; pid {agent}; write work.txt x; touch {ready}; await {go}";
    let sandbox = sandbox(script);
    let detached = sandbox.piton(&RUN).arg("--detach").arg("--json").output().success().json();
    let worker = detached["data"]["worker"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let worker = worker.expect("a process");
    sandbox.wait_exists(sandbox.mark("ready"));
    assert!(alive(worker));
    assert_eq!(keepers(&sandbox).len(), 1);
    go(&sandbox);
    wait_event(&sandbox, "completed");
    wait_until(DEADLINE, "the end of the worker", || !alive(worker));
    assert_finished(&sandbox, 1);
}
