//! Looking verbs: `piton status` with many steps, many runs, a dead attempt; and telling the state of a
//! thousand runs through the library.

use piton_core::decide::Command;
use piton_core::event::{Cause, Haste, Scope};
use piton_core::view::RunStatus;
use piton_engine::Runs;
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, look};
use piton_engine::run::runs;

use crate::Bench;
use crate::floor;
use crate::lab::{Lab, plan_of, step, tell};
use crate::report::Row;
use crate::sample::{Samples, in_turns, process, timed};

pub(crate) fn dead(bench: &Bench) -> Vec<Row> {
    let (without, with) = (Lab::new(bench), Lab::new(bench));
    without.open(&plan_of(5), "plan", None);
    let mut log = with.open(&plan_of(5), "plan", None);
    let (fence, lock) = with.hold(&mut log, &step(1));
    with.start(&mut log, &step(1), fence);
    drop(lock);
    let seen = look(&with.project, &log, Depth::Locks).expect("the run can be looked at");
    assert!(matches!(seen.status, RunStatus::Interrupted { .. }), "the attempt is seen dead");
    let [alone, dead] = in_turns(
        bench.samples(40, 12),
        [&mut || process(without.piton(&["status"])), &mut || process(with.piton(&["status"]))],
    );
    let more = dead.p50() - alone.p50();
    vec![
        Row::new("detecting a dead attempt: `piton status`", format!("+ {more:.2} ms"))
            .beside(alone.shown(), dead.p50() / alone.p50())
            .at_most(more, 10.0, "ms more"),
    ]
}

pub(crate) fn status(bench: &Bench) -> Vec<Row> {
    let (steps, handle) = Lab::prepared(bench, |lab| thousand_steps(lab, 0));
    let (half, half_handle) = Lab::prepared(bench, |lab| thousand_steps(lab, 500));
    let (many, ()) = Lab::prepared(bench, thousand_runs);
    let [start, fresh, worked, open] = in_turns(
        bench.samples(30, 10),
        [
            &mut || process(floor::start(bench)),
            &mut || process(steps.piton(&["status", &handle])),
            &mut || process(half.piton(&["status", &half_handle])),
            &mut || process(many.piton(&["status"])),
        ],
    );
    let row = |what: &str, ours: &Samples, limit: f64| {
        Row::new(what, ours.shown()).beside(start.shown(), ours.p50() / start.p50()).ms_at_most(
            ours.p50(),
            limit,
            start.p50(),
        )
    };
    vec![
        row("`piton status RUN`, 1,000 steps, none done", &fresh, 15.0),
        row("`piton status RUN`, 1,000 steps, 500 done", &worked, 15.0),
        row("`piton status`, 1,000 runs, 100 open", &open, 60.0),
    ]
}

pub(crate) fn classify(bench: &Bench) -> Vec<Row> {
    let (lab, ()) = Lab::prepared(bench, thousand_runs);
    let [start, library, all] = in_turns(
        bench.samples(10, 3),
        [&mut || process(floor::start(bench)), &mut || timed(|| told(&lab)).0, &mut || {
            process(lab.piton(&["status", "--ended"]))
        }],
    );
    let row = |what: &str, ours: &Samples| {
        Row::new(what, ours.shown()).beside(start.shown(), ours.p50() / start.p50()).ms_at_most(
            ours.p50(),
            600.0,
            start.p50(),
        )
    };
    vec![
        row("classifying 1,000 mixed runs", &library),
        row("`piton status --ended`, the same runs", &all),
    ]
}

/// Folds every run and tells its status, as `status --ended` does.
fn told(lab: &Lab) {
    let mut counts = [0; 5];
    for log in runs::list(&lab.store, &Runs::All).expect("a listing") {
        let Ok(log) = log else { panic!("a run of the bench is damaged") };
        let view = look(&lab.project, &log, Depth::Locks).expect("the run can be looked at");
        counts[match view.status {
            RunStatus::Completed => 0,
            RunStatus::Open => 1,
            RunStatus::Stopped { .. } => 2,
            RunStatus::Interrupted { .. } => 3,
            RunStatus::Failed { .. } => 4,
            other => panic!("no run of the bench is {other:?}"),
        }] += 1;
    }
    // One more is of the lab itself.
    assert_eq!(counts, [901, 25, 25, 25, 25], "completed, open, stopped, interrupted, failed");
}

/// 900 completed runs; 100 open ones: untouched, stopped, with a dead attempt, failed.
fn thousand_runs(lab: &Lab) {
    let plan = plan_of(3);
    for n in 0..1_000 {
        let mut log = lab.open(&plan, &format!("plan-{n}"), None);
        match n % 40 {
            0 => {}
            1 => stop(&mut log),
            2 => drop(lab.hold(&mut log, &step(1))),
            3 => lab.fail(&mut log, &step(1)),
            _ => (1..=3).for_each(|n| lab.work_off(&mut log, &step(n))),
        }
        lab.store.tidy();
    }
}

/// A run of a thousand steps with so many of them done; its handle.
fn thousand_steps(lab: &Lab, done: usize) -> String {
    let mut log = lab.open(&plan_of(1_000), "plan", None);
    (1..=done).for_each(|n| lab.work_off(&mut log, &step(n)));
    log.run().opened.handle.to_string()
}

fn stop(log: &mut Log) {
    let (scope, cause, haste) = (Scope::Run, Cause::UserInterrupt, Haste::Graceful);
    tell(log, Command::Stop { scope, cause, haste });
}
