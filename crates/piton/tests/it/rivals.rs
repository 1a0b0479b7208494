//! Several pitons on one run: two agents are never at work at once, each step is completed once, and
//! nobody takes a living attempt for a dead one. A holder on another host is believed for its lease;
//! what it writes after that is refused (`frozen`).
//!
//! The prober watches 150 starts in the ordinary run, 500 with `PITON_FULL=1`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use piton_core::ids::AttemptId;
use piton_core::observed::Sighting;
use piton_engine::Access;
use piton_engine::folder::Lock;
use piton_engine::project::Project;
use piton_engine::run::observe::{Depth, look, observe};
use piton_engine::run::runs;
use piton_testkit::processes::freeze;
use piton_testkit::runs::{
    agent_step, command_step, completions, events_named, keeper, keepers, landed, orphaned, step,
    view, wait_dead, wait_event,
};
use piton_testkit::{DEADLINE, Running, Sandbox, alive, kill9, wait_for};
use serde_json::Value;

use crate::sandbox_of;

const RUN: [&str; 4] = ["run", "plan.toml", "--trust", "--auto-continue"];

/// Five steps; the agent of the first hangs when it is started first. No two agents may overlap.
fn contended() -> Sandbox {
    sandbox_of(|sandbox| {
        let first = "alone {lock}; count {starts}; pid {agent}; write s1.txt x; touch {ready}; \
                     once {hung}: hang; sleep 20";
        let mut steps = vec![agent_step(sandbox, "s1", first, "")];
        for n in 2..=5 {
            let script = format!("alone {{lock}}; count {{starts}}; write s{n}.txt x; sleep 20");
            steps.push(agent_step(sandbox, &format!("s{n}"), &script, ""));
        }
        steps
    })
}

#[track_caller]
fn assert_one_at_a_time(sandbox: &Sandbox, starts: usize) {
    assert_eq!(view(sandbox)["status"], "completed");
    let completed = completions(sandbox);
    assert_eq!(completed.len(), 5);
    assert!(completed.values().all(|times| *times == 1), "{completed:?}");
    assert_eq!(sandbox.lines(sandbox.mark("lock")), 0, "two agents at once");
    assert_eq!(sandbox.lines(sandbox.mark("starts")), starts);
    sandbox.wait_no_processes();
}

/// Kills what there is of a run at work, lets rivals loose on it, and looks at what came of it.
#[test]
fn four_go_on_after_a_kill() {
    let sandbox = contended();
    let worker = sandbox.piton(&RUN).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    orphaned(&sandbox, worker);
    assert!(alive(agent), "there is an orphan to end and an attempt to bury");
    let start = |n: usize| match n % 2 {
        0 => sandbox.piton(&["resume"]).spawn(),
        _ => sandbox.piton(&["run", "plan.toml", "--auto-continue"]).spawn(),
    };
    let running: Vec<Running> = (0..4).map(start).collect();
    for rival in running {
        rival.wait().success();
    }
    assert_eq!(events_named(&sandbox, "interrupted").len(), 1, "buried once");
    assert_one_at_a_time(&sandbox, 6);
}

#[test]
fn four_first_runs_of_a_plan_are_one_run() {
    let sandbox = contended();
    std::fs::write(sandbox.mark("hung"), "").expect("nobody hangs here");
    let running: Vec<Running> = (0..4).map(|_| sandbox.piton(&RUN).spawn()).collect();
    for rival in running {
        rival.wait().success();
    }
    let all = sandbox.piton(&["status", "--ended", "--json"]).output().success().json();
    // One that came when the run was over has opened the next one: that is what it was asked for.
    let runs = all["data"]["runs"].as_array().expect("a list").clone();
    assert_eq!(runs.iter().filter(|run| run["status"] != "completed").count(), 0, "{runs:#?}");
    assert_eq!(sandbox.lines(sandbox.mark("lock")), 0, "two agents at once");
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 5 * runs.len());
    sandbox.wait_no_processes();
}

#[test]
fn one_of_two_workers_dies_and_the_other_goes_on() {
    let sandbox = contended();
    let first = sandbox.piton(&RUN).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let second = sandbox.piton(&["resume"]).spawn();
    sandbox.wait_until("the second to watch", || second.stderr().contains("watching it"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    orphaned(&sandbox, first);
    second.wait().success();
    assert!(!alive(agent));
    assert_one_at_a_time(&sandbox, 6);
}

/// What a prober has seen.
#[derive(Debug, Default)]
struct Seen {
    alive: BTreeSet<AttemptId>,
    dead: Vec<AttemptId>,
    looks: u64,
}

/// Looks at the locks of a run as every verb does, once at least, until told to end.
fn probe(sandbox: &Sandbox, end: &AtomicBool) -> Seen {
    let project = Project::discover(&sandbox.repo()).expect("a repository");
    let store = wait_for(DEADLINE, "a store", || project.store(Access::Look).map_err(drop));
    let mut log = wait_for(DEADLINE, "a run", || runs::find(&project, &store, None).map_err(drop));
    let mut seen = Seen::default();
    loop {
        log.refresh().expect("the log can be read");
        for (attempt, sighting) in observe(&project, &log, Depth::Locks).attempts {
            match sighting {
                Sighting::Alive => drop(seen.alive.insert(attempt)),
                Sighting::Dead(_) => seen.dead.push(attempt),
                Sighting::Unknown(_) | Sighting::Elsewhere => panic!("it is on this host"),
            }
        }
        seen.looks += 1;
        if end.load(Ordering::SeqCst) {
            return seen;
        }
    }
}

/// The same through the real binary; runs that look as if something had gone wrong.
fn ask_for_status(sandbox: &Sandbox, end: &AtomicBool) -> Vec<Value> {
    let mut wrong = Vec::new();
    loop {
        let shown = sandbox.piton(&["status", "--ended", "--json"]).output().success().json();
        for run in shown["data"]["runs"].as_array().expect("a list") {
            if !["open", "running", "completed"].contains(&run["status"].as_str().expect("one")) {
                wrong.push(run.clone());
            }
        }
        if end.load(Ordering::SeqCst) {
            return wrong;
        }
    }
}

#[test]
fn a_living_attempt_never_looks_dead() {
    let starts = if std::env::var_os("PITON_FULL").is_some() { 500 } else { 150 };
    let sandbox = sandbox_of(|sandbox| {
        let quick = |n| command_step(sandbox, &format!("s{n}"), "true", "");
        let mut steps: Vec<String> = (1..=starts).map(quick).collect();
        steps.push(agent_step(sandbox, "last", "touch {ready}; hang", ""));
        steps
    });
    let worker = sandbox.piton(&RUN).spawn();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let prober = scope.spawn(|| probe(&sandbox, &end));
        let asker = scope.spawn(|| ask_for_status(&sandbox, &end));
        let ready = sandbox.mark("ready");
        let progress = || ready.exists().then_some(()).ok_or_else(|| worker.stderr());
        wait_for(DEADLINE * 10, "the last step", progress);
        end.store(true, Ordering::SeqCst);
        let seen = prober.join().expect("the prober");
        assert_eq!(seen.dead, [], "in {} looks", seen.looks);
        assert!(seen.alive.len() > starts / 4, "it saw {} attempts alive", seen.alive.len());
        assert_eq!(asker.join().expect("the asker"), Vec::<Value>::new());
    });
    assert_eq!(completions(&sandbox).len(), starts);

    // The same probers do see a death.
    drop(worker.kill9());
    kill9(keeper(&sandbox));
    assert_eq!(probe(&sandbox, &end).dead.len(), 1);
    assert_eq!(ask_for_status(&sandbox, &end)[0]["status"], "interrupted");
}

#[test]
fn a_look_that_took_long_sees_the_end_and_not_a_death() {
    let sandbox = sandbox_of(|sandbox| {
        vec![
            agent_step(sandbox, "first", "touch {ready}; await {go}", ""),
            agent_step(sandbox, "second", "hang", ""),
        ]
    });
    let worker = sandbox.piton(&RUN).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let project = Project::discover(&sandbox.repo()).expect("a repository");
    let store = project.store(Access::Look).expect("a store");
    let log = runs::find(&project, &store, None).expect("a run");
    let first = keeper(&sandbox);
    std::fs::write(sandbox.mark("go"), "").expect("the sandbox is writable");
    wait_dead(first);

    // The log was read while the first attempt lived; its lock is free by now.
    let (_, attempt) = log.run().held().next().expect("an attempt");
    assert!(matches!(project.folder(attempt.id).keeper(), Ok(Lock::Free)));
    assert_eq!(observe(&project, &log, Depth::Locks).of(attempt.id), &Sighting::Alive);
    let shown = look(&project, &log, Depth::Locks).expect("a view");
    assert_eq!(shown.steps[0].status.word(), "completed");
    drop(worker.kill9());
}

/// Until when the open attempt of the step is believed.
fn lease(sandbox: &Sandbox) -> String {
    let run = view(sandbox);
    let attempts = step(&run, "work")["attempts"].as_array().expect("attempts").clone();
    attempts[0]["lease_expires"].as_str().expect("a time").to_owned()
}

#[test]
fn a_holder_on_another_host_is_believed_for_its_lease_and_no_longer() {
    let sandbox = sandbox_of(|sandbox| {
        let script = "count {starts}; nth {starts} 1: pid {zombie}; touch {ready}; \
                      nth {starts} 1: hang; write work.txt second";
        vec![agent_step(sandbox, "work", script, "")]
    });
    let there = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust", "--lease", "1s"]);
    let there = there.env("PITON_HOST_ID", "there").spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("zombie"));
    let zombie = keeper(&sandbox);
    drop(there.kill9());
    let run = view(&sandbox);
    assert_eq!(run["status"], "running", "unknown is not dead");
    let attempt = &step(&run, "work")["attempts"][0];
    assert_eq!(attempt["state"], "elsewhere");
    assert_eq!(attempt["host"], "there");

    // As long as it renews its lease, nobody takes the step, whatever the first expiry was.
    let first_expiry = attempt["lease_expires"].as_str().expect("a time").to_owned();
    let here = sandbox.piton(&["resume"]).spawn();
    for _ in 0..2 {
        let now = lease(&sandbox);
        sandbox.wait_until("a renewal", || lease(&sandbox) > now);
    }
    let claims = events_named(&sandbox, "claimed");
    assert_eq!(claims.len(), 1);
    assert!(lease(&sandbox) > first_expiry, "it was renewed");

    // Frozen past its lease, it loses the step.
    freeze(zombie);
    let last_expiry = lease(&sandbox);
    here.wait().success();
    let claims = events_named(&sandbox, "claimed");
    assert_eq!(claims.len(), 2);
    assert_eq!(claims[1]["grounds"], "lease_over");
    let taken = claims[1]["at"].as_str().expect("a time");
    assert!(taken >= last_expiry.as_str(), "{taken} is before {last_expiry}");
    assert!(alive(zombie) && alive(agent), "the first holder knows nothing of it");

    // What becomes of it when it wakes up is in frozen.rs.
    assert_eq!(landed(&sandbox, "work.txt"), "second");
    assert_eq!(completions(&sandbox).into_iter().collect::<Vec<_>>(), [("work".to_owned(), 1)]);
}

#[test]
fn a_stop_and_a_resume_at_once_leave_no_agent_behind() {
    let sandbox = contended();
    let worker = sandbox.piton(&RUN).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let stop = sandbox.piton(&["stop", "--now"]).spawn();
    wait_event(&sandbox, "stop_requested");
    let resume = sandbox.piton(&["resume"]).spawn();
    stop.wait();
    // Whether the first worker saw the stop or the resume first is open; both are clean ends.
    let ended = worker.wait();
    assert!(matches!(ended.code, Some(0 | 130)), "{ended}");
    resume.wait().success();
    assert!(keepers(&sandbox).is_empty());
    assert_one_at_a_time(&sandbox, 6);
}
