//! What a plan says about interruptions, with the real binary and real kills: a command that was cut off
//! goes on where it was, or from its base, or not before a person has said so; what they say is followed
//! once, whoever is killed in between.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use piton_testkit::runs::{
    agent_step, all_killed, at_work, command_step, completions, data, events, events_named, keeper,
    lay_plan, orphaned, plan, refused, step, view,
};
use piton_testkit::{Sandbox, Signal, alive, kill9};
use serde_json::{Value, json};

use crate::sandbox_of;

const RUN: [&str; 6] = ["run", "plan.toml", "--trust", "--auto-continue", "--grace", "300ms"];

/// Appends a line, hangs the first time, comes to its end later.
const APPENDS: &str = "echo start >> {starts}; echo line >> log.txt; echo $$ > {agent}; touch {ready}; \
                       test $(wc -l < {starts}) -gt 1 || exec sleep 600";

/// One step, of a command that hangs the first time.
fn appending(more: &str) -> Sandbox {
    sandbox_of(|sandbox| vec![command_step(sandbox, "work", APPENDS, more)])
}

fn starts(sandbox: &Sandbox) -> usize {
    sandbox.lines(sandbox.mark("starts"))
}

fn go(sandbox: &Sandbox) {
    fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
}

/// A file as the run has landed it.
fn landed(sandbox: &Sandbox, path: &str) -> String {
    let run = view(sandbox);
    assert_eq!(run["status"], "completed", "{run:#}");
    assert!(completions(sandbox).values().all(|times| *times == 1));
    piton_testkit::runs::landed(sandbox, path)
}

/// The only open question.
#[track_caller]
fn asked(sandbox: &Sandbox) -> Value {
    let asked = data(sandbox, &["questions"]);
    let open = asked["questions"].as_array().expect("a list");
    assert_eq!(open.len(), 1, "{asked:#}");
    open[0].clone()
}

fn name_of(question: &Value) -> String {
    question["question"].as_str().expect("its name").to_owned()
}

/// The killed run is resumed, asks, and starts nothing.
#[track_caller]
fn until_it_asks(sandbox: &Sandbox) -> String {
    all_killed(sandbox, &RUN);
    sandbox.piton(&["resume"]).output().expect_code(4);
    assert_eq!(starts(sandbox), 1, "nothing was started");
    name_of(&asked(sandbox))
}

/// How often an answer was applied.
fn times_applied(sandbox: &Sandbox, question: &str) -> usize {
    let started = events_named(sandbox, "started");
    let told = started.iter().filter_map(|event| event["answers"].as_array()).flatten();
    told.filter(|told| *told == question).count()
}

fn entries(sandbox: &Sandbox) -> Vec<String> {
    let claims = events_named(sandbox, "claimed").into_iter();
    claims.map(|claim| claim["entry"].as_str().expect("an entry").to_owned()).collect()
}

#[test]
fn a_command_goes_on_where_it_was_or_from_its_base_as_the_plan_says() {
    for (more, entry, lines) in [
        ("", "fresh", "line"),
        ("on_interrupt = 'restart'", "fresh", "line"),
        ("on_interrupt = 'continue'", "continue", "line\nline"),
        ("on_interrupt = 'continue'\nidempotent = false", "continue", "line\nline"),
    ] {
        let sandbox = appending(more);
        all_killed(&sandbox, &RUN);
        let dry = data(&sandbox, &["resume", "--dry-run"]);
        let told = dry["steps"][0]["text"].as_str().expect("words");
        let words = if entry == "fresh" { "restart from its base" } else { "continue in its tree" };
        assert!(told.contains(words), "{more}: {told}");
        sandbox.piton(&["resume"]).output().success();
        assert_eq!(entries(&sandbox), ["fresh", entry], "{more}");
        assert_eq!((starts(&sandbox), landed(&sandbox, "log.txt").as_str()), (2, lines), "{more}");
        assert!(events_named(&sandbox, "asked").is_empty());
        // What the first one had written is kept, whatever became of the tree.
        let fence = &events_named(&sandbox, "claimed")[0]["position"];
        let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
        let folder = format!("refs/piton/{handle}/work/{fence}");
        let names = sandbox.git(&["for-each-ref", "--format=%(refname)", &folder]);
        let newest = names.lines().last().expect("a snapshot");
        assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{newest}:log.txt")]), "line");
    }
}

#[test]
fn the_plan_says_it_for_all_steps_and_a_tree_that_was_lost_is_restored() {
    let sandbox = crate::sandbox();
    let text = plan(&sandbox, &[command_step(&sandbox, "work", APPENDS, "")]);
    lay_plan(&sandbox, &text.replacen("[plan]\n", "[plan]\non_interrupt = 'continue'\n", 1));
    all_killed(&sandbox, &RUN);
    // The worker that records the death keeps the tree; then it is gone.
    let held = sandbox.crash_point("bury.recorded", 1);
    let worker = sandbox.piton(&["resume"]).crash_at(&held).spawn();
    assert_eq!(held.wait_hit(), sandbox.worker());
    drop(worker.kill9());
    fs::remove_dir_all(piton_testkit::runs::worktree(&sandbox)).expect("it was there");
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(landed(&sandbox, "log.txt"), "line\nline");
}

#[test]
fn an_agent_begins_again_where_the_plan_says_so() {
    let script = "count {starts}; nth {starts} 2: sh ls > {seen}; nth {starts} 2: dump-prompt {prompt}; \
                  pid {agent}; write work.txt precious; touch {ready}; once {hung}: hang; \
                  write done.txt done";
    let sandbox =
        sandbox_of(|sandbox| vec![agent_step(sandbox, "work", script, "on_interrupt = 'restart'")]);
    let (worker, _) = at_work(&sandbox, &RUN);
    kill9(keeper(&sandbox));
    worker.wait().success();
    assert_eq!(entries(&sandbox), ["fresh", "fresh"]);
    assert!(!sandbox.read(sandbox.mark("seen")).contains("work.txt"), "it found the step's base");
    let brief = sandbox.read(sandbox.mark("prompt"));
    assert!(brief.contains("at the step's start again"), "{brief}");
    assert_eq!(landed(&sandbox, "done.txt"), "done");
    let fence = &events_named(&sandbox, "claimed")[0]["position"];
    let snapshots = data(&sandbox, &["snapshot", "list"]);
    assert!(snapshots.to_string().contains(&format!("/work/{fence}/")), "{snapshots:#}");
}

#[test]
fn it_asks_with_everything_that_is_needed_and_follows_the_answer() {
    for (answer, entry, lines) in
        [("continue", "continue", "line\nline"), ("restart", "fresh", "line")]
    {
        let sandbox = appending("idempotent = false");
        all_killed(&sandbox, &RUN);
        // Seen, and not recorded: there is nothing to answer yet.
        assert_eq!(view(&sandbox)["status"], "interrupted");
        let dry = data(&sandbox, &["resume", "--dry-run"]);
        assert!(
            dry["steps"][0]["text"].as_str().expect("words").ends_with("then ask how it goes on")
        );
        assert_eq!(data(&sandbox, &["questions"])["questions"], json!([]));

        let out = sandbox.piton(&["resume"]).output().expect_code(4);
        let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
        let question = asked(&sandbox);
        let name = name_of(&question);
        assert_eq!(question["about"]["interruption"]["cause"], "process_kill");
        assert_eq!(question["about"]["interruption"]["changed"], 1);
        let snapshot = question["about"]["interruption"]["kept"].as_str().expect("a ref");
        assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{snapshot}:log.txt")]), "line");
        for choice in ["continue", "restart", "stop"] {
            let command = format!("piton answer {handle} {name} {choice}");
            for verb in [&[][..], &["questions"], &["show"]] {
                let shown = sandbox.piton(verb).output().success();
                assert!(shown.stdout.contains(&command), "{verb:?}: {shown}");
            }
            assert!(out.stderr.contains(&command), "{out}");
        }
        assert!(sandbox.piton(&["status"]).output().success().stdout.contains(&name));
        let run = view(&sandbox);
        assert_eq!(
            (&run["status"], &step(&run, "work")["status"]),
            (&json!("waiting"), &json!("waiting"))
        );
        // Asking for more changes nothing.
        let before = events(&sandbox);
        sandbox.piton(&["resume"]).output().expect_code(4);
        assert_eq!(events(&sandbox), before);
        // Nor is a yes an answer to it.
        sandbox.piton(&["resume", "--yes"]).output().expect_code(4);
        assert_eq!((name_of(&asked(&sandbox)), starts(&sandbox)), (name.clone(), 1));

        data(&sandbox, &["answer", &name, answer]);
        let status = sandbox.piton(&["status", &handle]).output().success();
        assert!(status.stdout.contains(&format!("answered: {answer}")), "{status}");
        let dry = data(&sandbox, &["resume", "--dry-run"]);
        assert!(dry["steps"][0]["text"].as_str().expect("words").contains("was answered"), "{dry}");
        sandbox.piton(&["resume"]).output().success();
        assert_eq!(entries(&sandbox), ["fresh", entry]);
        assert_eq!((starts(&sandbox), landed(&sandbox, "log.txt").as_str()), (2, lines));
        assert_eq!(times_applied(&sandbox, &name), 1);
    }
}

#[test]
fn a_worker_goes_on_with_other_work_and_then_with_the_answer() {
    let other = "touch {other}; until test -e {go}; do sleep 0.02; done; echo x > other.txt";
    for isolation in ["isolation = 'run'", "isolation = 'step'\njobs = 2"] {
        let sandbox = crate::sandbox();
        let steps = [
            command_step(&sandbox, "work", APPENDS, "idempotent = false"),
            command_step(&sandbox, "other", other, ""),
        ];
        let text = plan(&sandbox, &steps).replacen("[plan]", &format!("[plan]\n{isolation}"), 1);
        lay_plan(&sandbox, &text);
        let (worker, agent) = at_work(&sandbox, &RUN);
        kill9(agent);
        sandbox.wait_exists(sandbox.mark("other"));
        let waits = || step(&view(&sandbox), "work")["status"] == "waiting";
        sandbox.wait_until("the question", waits);
        sandbox.wait_until("word of the question", || worker.stderr().contains("piton answer"));
        data(&sandbox, &["answer", "work", "continue"]);
        go(&sandbox);
        worker.wait().success();
        // What it had done was put aside where the other step needed the tree, and was there again.
        let lines = landed(&sandbox, "log.txt");
        assert_eq!((starts(&sandbox), lines.as_str()), (2, "line\nline"), "{isolation}");
    }
}

#[test]
fn a_question_outlives_the_worker_that_asked() {
    let other = "touch {other}; until test -e {go}; do sleep 0.02; done";
    let sandbox = sandbox_of(|sandbox| {
        vec![
            command_step(sandbox, "work", APPENDS, "idempotent = false"),
            command_step(sandbox, "other", other, ""),
        ]
    });
    let (worker, agent) = at_work(&sandbox, &RUN);
    kill9(keeper(&sandbox));
    sandbox.wait_exists(sandbox.mark("other"));
    assert!(!alive(agent), "what was left of it is ended before anybody is asked");
    drop(worker.kill9());
    let question = name_of(&asked(&sandbox));
    data(&sandbox, &["answer", &question, "restart"]);
    go(&sandbox);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!((starts(&sandbox), landed(&sandbox, "log.txt").as_str()), (2, "line"));
    assert_eq!((events_named(&sandbox, "asked").len(), times_applied(&sandbox, &question)), (1, 1));
}

#[test]
fn whoever_records_the_death_is_killed_and_it_is_asked_once() {
    for point in ["bury.swept", "bury.snapshot-kept", "bury.checkpointed", "bury.recorded"] {
        let sandbox = appending("idempotent = false");
        all_killed(&sandbox, &RUN);
        let held = sandbox.crash_point(point, 1);
        let worker = sandbox.piton(&["resume"]).crash_at(&held).spawn();
        assert_eq!(held.wait_hit(), sandbox.worker(), "{point}");
        drop(worker.kill9());
        sandbox.piton(&["resume"]).output().expect_code(4);
        assert_eq!((events_named(&sandbox, "asked").len(), starts(&sandbox)), (1, 1), "{point}");
        data(&sandbox, &["answer", "work", "continue"]);
        sandbox.piton(&["resume"]).output().success();
        assert_eq!((starts(&sandbox), landed(&sandbox, "log.txt").as_str()), (2, "line\nline"));
    }
}

#[test]
fn an_answer_survives_kills_between_it_and_its_use() {
    for point in ["worker.claimed", "keeper.findable", "keeper.tree-prepared"] {
        let sandbox = appending("idempotent = false");
        let question = until_it_asks(&sandbox);
        data(&sandbox, &["answer", &question, "continue"]);
        let held = sandbox.crash_point(point, 1);
        let worker = sandbox.piton(&["resume"]).crash_at(&held).spawn();
        let hit = held.wait_hit();
        drop(worker.kill9());
        kill9(hit);
        assert_eq!(times_applied(&sandbox, &question), 0, "{point}");
        sandbox.piton(&["resume"]).output().success();
        assert_eq!(events_named(&sandbox, "asked").len(), 1, "{point}");
        assert_eq!(times_applied(&sandbox, &question), 1, "{point}");
        assert_eq!(entries(&sandbox), ["fresh", "continue", "continue"], "{point}");
        assert_eq!((starts(&sandbox), landed(&sandbox, "log.txt").as_str()), (2, "line\nline"));
    }
}

/// Nobody can say whether a command ran that was about to be started: it is asked again, and nothing runs
/// before the second answer.
#[test]
fn an_answer_is_used_up_by_what_it_has_started() {
    for point in ["keeper.started", "keeper.agent-spawned"] {
        let sandbox = appending("idempotent = false");
        let question = until_it_asks(&sandbox);
        data(&sandbox, &["answer", &question, "restart"]);
        let held = sandbox.crash_point(point, 1);
        let worker = sandbox.piton(&["resume"]).crash_at(&held).spawn();
        let keeper = held.wait_hit();
        drop(worker.kill9());
        kill9(keeper);
        assert_eq!(times_applied(&sandbox, &question), 1, "{point}");
        sandbox.piton(&["resume"]).output().expect_code(4);
        let begun = starts(&sandbox);
        let second = name_of(&asked(&sandbox));
        assert_ne!(second, question);
        sandbox.piton(&["resume"]).output().expect_code(4);
        assert_eq!(starts(&sandbox), begun, "nothing runs without an answer");
        assert_eq!(refused(&sandbox, &["answer", &question, "continue"]).1, "E077");
        data(&sandbox, &["answer", &second, "restart"]);
        sandbox.piton(&["resume"]).output().success();
        assert_eq!(starts(&sandbox), begun + 1);
        assert_eq!(landed(&sandbox, "log.txt"), "line");
        assert_eq!(times_applied(&sandbox, &second), 1);
    }
}

#[test]
fn what_never_began_or_had_ended_is_not_asked_about() {
    for (point, begun) in
        [("worker.claimed", 0), ("keeper.tree-prepared", 0), ("keeper.exit-recorded", 1)]
    {
        let command = "echo start >> {starts}; echo line >> log.txt";
        let sandbox = sandbox_of(|sandbox| {
            vec![command_step(sandbox, "work", command, "idempotent = false")]
        });
        let held = sandbox.crash_point(point, 1);
        let worker = sandbox.piton(&RUN).crash_at(&held).spawn();
        let hit = held.wait_hit();
        drop(worker.kill9());
        kill9(hit);
        assert_eq!(starts(&sandbox), begun, "{point}");
        sandbox.piton(&["resume"]).output().success();
        assert_eq!(
            (starts(&sandbox), landed(&sandbox, "log.txt").as_str()),
            (1, "line"),
            "{point}"
        );
        assert!(events_named(&sandbox, "asked").is_empty(), "{point}");
    }
}

#[test]
fn ctrl_c_asks_too_and_says_so() {
    let sandbox = appending("idempotent = false");
    let (worker, agent) = at_work(&sandbox, &RUN);
    worker.signal(Signal::INT);
    let out = worker.wait().expect_code(130);
    assert!(!alive(agent));
    let question = name_of(&asked(&sandbox));
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    assert!(out.stderr.contains(&format!("piton answer {handle} {question} continue")), "{out}");
    sandbox.piton(&["resume"]).output().expect_code(4);
    assert_eq!(starts(&sandbox), 1);
    data(&sandbox, &["answer", "work", "continue"]);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(landed(&sandbox, "log.txt"), "line\nline");
}

/// Another host cannot see who lives here: after the lease it asks instead of taking the step.
#[test]
fn a_lost_host_is_asked_about() {
    let sandbox = appending("idempotent = false");
    let worker = sandbox.piton(&RUN).arg("--lease").arg("2s").env("PITON_HOST_ID", "there").spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    orphaned(&sandbox, worker);
    kill9(agent);
    sandbox.piton(&["resume"]).output().expect_code(4);
    assert_eq!((starts(&sandbox), entries(&sandbox)), (1, vec!["fresh".to_owned()]));
    assert_eq!(asked(&sandbox)["about"]["interruption"]["cause"], "host_lost");
    data(&sandbox, &["answer", "work", "restart"]);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!((starts(&sandbox), landed(&sandbox, "log.txt").as_str()), (2, "line"));
}

/// Stops an agent whose tree has something new, while git dies so many times when it reads a snapshot back.
fn stopped_with_dying_git(deaths: u32) -> Sandbox {
    let sandbox = sandbox_of(|sandbox| {
        let script = "write half.txt work; pid {agent}; touch {ready}; once {hung}: hang";
        vec![agent_step(sandbox, "work", script, "")]
    });
    let left = sandbox.mark("deaths").display().to_string();
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *rev-list*--objects*)\n  n=$(cat {left} 2>/dev/null || echo 0)\n  \
         if [ \"$n\" -gt 0 ]; then echo $((n - 1)) > {left}; kill -9 $$; fi\nesac\n\
         PATH=${{PATH#*:}} exec git \"$@\"\n"
    );
    let git = sandbox.write(sandbox.bin().join("git"), &text);
    fs::set_permissions(git, fs::Permissions::from_mode(0o755)).expect("it can be executed");
    let (worker, _) = at_work(&sandbox, &RUN);
    sandbox.write(sandbox.mark("deaths"), &deaths.to_string());
    sandbox.piton(&["stop"]).output().success();
    worker.wait();
    let left: u32 =
        fs::read_to_string(sandbox.mark("deaths")).expect("read").trim().parse().expect("n");
    assert!(left < deaths, "git has died");
    fs::remove_file(sandbox.mark("deaths")).expect("it is there");
    sandbox
}

#[test]
fn a_snapshot_whose_git_dies_once_is_kept_all_the_same() {
    let sandbox = stopped_with_dying_git(1);
    assert_eq!(events_named(&sandbox, "unkept"), Vec::<Value>::new());
    assert_eq!(piton_testkit::runs::kept(&sandbox, "work", "half.txt"), "work");
}

#[test]
fn work_that_no_snapshot_could_keep_is_gone_on_with() {
    let sandbox = stopped_with_dying_git(100);
    let unkept = events_named(&sandbox, "unkept");
    assert_eq!(unkept.len(), 1, "{unkept:?}");
    let shown = sandbox.piton(&["show"]).output().success().stdout;
    assert!(shown.contains("its last work is in no snapshot"), "{shown}");
    sandbox.piton(&["resume"]).output().success();
    let entries: Vec<Value> =
        events_named(&sandbox, "claimed").iter().map(|claimed| claimed["entry"].clone()).collect();
    assert_eq!(entries, ["fresh", "continue"]);
    assert_eq!(landed(&sandbox, "half.txt"), "work");
}
