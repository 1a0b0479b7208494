//! SIGKILL of worker, keeper, agent, any two, all three, at each durable action. Whatever is killed
//! where, `piton resume` finishes the run: each step completed once, no acknowledged event missing,
//! the final tree as without the kill, nothing left running, and an agent that had ended is not
//! started again.
//!
//! In the ordinary run each crash point meets one combination, chosen by a seed (`PITON_SEED`);
//! `PITON_CRASH_ALL=1` runs the whole product.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use piton_testkit::crash::points_of;
use piton_testkit::runs::{
    agent_step, command_step, completions, events, keepers, lay_plan, marked, plan_with, view,
};
use piton_testkit::{CrashPoint, POINTS, Running, Sandbox, Who, alive, kill9};
use serde_json::Value;

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kill {
    worker: bool,
    keeper: bool,
    agent: bool,
}

impl Kill {
    fn combination(number: u32) -> Kill {
        assert!((1..=7).contains(&number));
        Kill { worker: number & 1 != 0, keeper: number & 2 != 0, agent: number & 4 != 0 }
    }

    fn all() -> impl Iterator<Item = Kill> {
        (1..=7).map(Kill::combination)
    }
}

/// From this point on the agent of the first step has ended, and its exit is on disk.
const AGENT_HAS_ENDED: [&str; 8] = [
    "keeper.exit-recorded",
    "keeper.leftovers-committed",
    "verify.spawned",
    "keeper.verify-ran",
    "keeper.verified",
    "land.intended",
    "land.ref-moved",
    "land.completed",
];

/// A plan of three steps: an agent with a verify command, a command that needs it, an agent that
/// commits by itself. `a` writes in several goes and can go on from any.
fn sandbox(isolation: &str) -> Sandbox {
    let sandbox = crate::sandbox();
    let b = marked(&sandbox, "count {starts-b}; append all from-b; delete two");
    let steps = [
        agent_step(
            &sandbox,
            "a",
            "count {starts-a}; pid {agent-pid}; write one first; sleep 150; write two second; \
             sleep 150; write three third",
            "verify = 'test -f one && test -f three'",
        ),
        command_step(&sandbox, "b", &sandbox.fake(&b), "needs = ['a']"),
        agent_step(
            &sandbox,
            "c",
            "count {starts-c}; write four fourth; commit by the agent; write five fifth",
            "needs = ['b']",
        ),
    ];
    lay_plan(&sandbox, &plan_with(&sandbox, &format!("isolation = '{isolation}'"), &steps));
    sandbox
}

/// The final tree of a run that nobody disturbed.
fn undisturbed() -> &'static str {
    static TREE: OnceLock<String> = OnceLock::new();
    TREE.get_or_init(|| {
        let sandbox = sandbox("run");
        start(&sandbox, None).wait().success();
        final_tree(&sandbox)
    })
}

fn start(sandbox: &Sandbox, point: Option<&CrashPoint>) -> Running {
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).env("PITON_SNAPSHOT_EVERY", "100ms");
    match point {
        Some(point) => run.crash_at(point).spawn(),
        None => run.spawn(),
    }
}

fn resume(sandbox: &Sandbox, point: Option<&CrashPoint>) -> Running {
    let resume = sandbox.piton(&["resume"]);
    match point {
        Some(point) => resume.crash_at(point).spawn(),
        None => resume.spawn(),
    }
}

fn final_tree(sandbox: &Sandbox) -> String {
    let branch = view(sandbox)["branch"].as_str().expect("a branch").to_owned();
    sandbox.tree_of(&branch)
}

fn agent(sandbox: &Sandbox) -> Option<u32> {
    let mark = sandbox.mark("agent-pid");
    let pid = sandbox.exists(&mark).then(|| sandbox.wait_pid(&mark))?;
    alive(pid).then_some(pid)
}

/// Kills at a point somebody has been stopped at, and lets go whoever was stopped and not killed.
fn apply(sandbox: &Sandbox, point: &CrashPoint, kill: Kill, worker: &Running) {
    let stopped = point.wait_hit();
    assert!(alive(stopped), "the process that reached the point waits there");
    let (keeper, agent) = (keepers(sandbox).first().copied(), agent(sandbox));
    if kill.worker {
        // Who watches would start another.
        kill9(worker.pid());
        for worker in sandbox.workers() {
            kill9(worker);
        }
        assert!(!alive(worker.pid()) && sandbox.workers().is_empty(), "the worker is dead");
    }
    for (asked, pid) in [(kill.keeper, keeper), (kill.agent, agent)] {
        if let (true, Some(pid)) = (asked, pid) {
            kill9(pid);
            assert!(!alive(pid), "{pid} is dead");
        }
    }
    if alive(stopped) {
        point.release();
    }
}

/// Whatever was killed: resume until the run is over, and look at what came of it.
fn check(sandbox: &Sandbox, acknowledged: &[Value], what: &str) {
    for _ in 0..3 {
        if view(sandbox)["status"] == "completed" {
            break;
        }
        let resumed = resume(sandbox, None).wait();
        assert_eq!(resumed.code, Some(0), "{what}: {resumed}");
    }
    let (view, events) = (view(sandbox), events(sandbox));
    assert_eq!(view["status"], "completed", "{what}: {view:#}");
    assert!(events.starts_with(acknowledged), "{what}: an acknowledged event is missing");
    let once = BTreeMap::from(["a", "b", "c"].map(|step| (step.to_owned(), 1)));
    assert_eq!(completions(sandbox), once, "{what}: each step is completed exactly once");
    assert_eq!(final_tree(sandbox), undisturbed(), "{what}: the final tree differs");
    sandbox.wait_no_processes();
}

fn at_point(name: &str, isolation: &str, kill: Kill) {
    let what = format!("{name}, isolation {isolation}, {kill:?}");
    let sandbox = sandbox(isolation);
    let point = sandbox.crash_point(name, 1);
    let worker = if name.starts_with("bury.") {
        // There has to be something to bury: an attempt whose keeper and worker died at work.
        let first = sandbox.crash_point("keeper.agent-spawned", 1);
        let worker = start(&sandbox, Some(&first));
        first.wait_hit();
        sandbox.wait_exists(sandbox.mark("agent-pid"));
        apply(&sandbox, &first, Kill { worker: true, keeper: true, agent: false }, &worker);
        resume(&sandbox, Some(&point))
    } else {
        start(&sandbox, Some(&point))
    };
    point.wait_hit();
    let acknowledged = events(&sandbox);
    apply(&sandbox, &point, kill, &worker);
    drop(if alive(worker.pid()) { worker.wait() } else { worker.kill9() });
    check(&sandbox, &acknowledged, &what);
    let starts = sandbox.lines(sandbox.mark("starts-a"));
    if AGENT_HAS_ENDED.contains(&name) {
        assert_eq!(starts, 1, "{what}: the agent had ended and was started again");
    }
}

/// Both isolations meet every point.
fn seeded(name: &str) -> Vec<(&'static str, Kill)> {
    if std::env::var_os("PITON_CRASH_ALL").is_some() {
        return Kill::all().flat_map(|kill| [("run", kill), ("step", kill)]).collect();
    }
    let seed = std::env::var("PITON_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u32);
    let mixed = name.bytes().fold(seed, |mix, byte| mix.wrapping_mul(31).wrapping_add(byte.into()));
    // Who is stopped at the point is always among the killed: that is where the window is.
    let (_, who) = POINTS.iter().find(|(point, _)| *point == name).expect("a listed point");
    let kills = [("run", mixed), ("step", mixed / 7)];
    let kill = |(isolation, mixed): (&'static str, u32)| {
        let kill = Kill::combination(mixed % 7 + 1);
        let kill = match who {
            Who::Starter | Who::Worker => Kill { worker: true, ..kill },
            Who::Keeper => Kill { keeper: true, ..kill },
            Who::Repeater
            | Who::Successor
            | Who::Mover
            | Who::Loser
            | Who::Holder
            | Who::Tidier
            | Who::Purger
            | Who::Undoer
            | Who::Restorer
            | Who::Merger => {
                unreachable!("nobody of them is at work here")
            }
        };
        (isolation, kill)
    };
    kills.map(kill).into()
}

fn killed_at(name: &str) {
    for (isolation, kill) in seeded(name) {
        at_point(name, isolation, kill);
    }
}

// Those of holders outside are in outside/, those of cleaning up in tidying/, those of restoring in
// snapshots.rs, those of a merge in merging.rs, those of a worktree that changes hands in states/.
at_every_point! {
    every_point_has_its_test:
        points_of(|_, who| matches!(who, Who::Starter | Who::Worker | Who::Keeper)), killed_at;
    worker_spawned: "worker.spawned",
    worker_lock_taken: "worker.lock-taken",
    worker_claimed: "worker.claimed",
    worker_keeper_spawned: "worker.keeper-spawned",
    keeper_adopted: "keeper.adopted",
    keeper_findable: "keeper.findable",
    keeper_confirmed: "keeper.confirmed",
    keeper_run_branch: "keeper.run-branch",
    keeper_tree_prepared: "keeper.tree-prepared",
    keeper_started: "keeper.started",
    keeper_agent_spawned: "keeper.agent-spawned",
    keeper_child_exited: "keeper.child-exited",
    keeper_exit_recorded: "keeper.exit-recorded",
    keeper_leftovers_committed: "keeper.leftovers-committed",
    verify_spawned: "verify.spawned",
    keeper_verify_ran: "keeper.verify-ran",
    keeper_verified: "keeper.verified",
    land_intended: "land.intended",
    land_ref_moved: "land.ref-moved",
    land_completed: "land.completed",
    keeper_snapshot_kept: "keeper.snapshot-kept",
    keeper_checkpointed: "keeper.checkpointed",
    bury_swept: "bury.swept",
    bury_snapshot_kept: "bury.snapshot-kept",
    bury_checkpointed: "bury.checkpointed",
    bury_recorded: "bury.recorded",
}
