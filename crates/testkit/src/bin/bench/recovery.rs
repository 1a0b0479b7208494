//! Going on after a crash: from dead attempts to claimable steps in the log, and from the command to the
//! first start of an agent.

use std::sync::Arc;
use std::time::SystemTime;

use piton_core::decide::{Command, Request};
use piton_core::event::Under;
use piton_core::observed::Sighting;
use piton_core::plan::{PlanStep, Work};
use piton_core::recover::{Action, recover};
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, observe};
use piton_testkit::shell_word;

use crate::Bench;
use crate::floor::{self, Floor};
use crate::lab::{Lab, plan_of, step, tell};
use crate::report::Row;
use crate::sample::{Samples, in_turns, ms, process, timed};

/// Interrupted steps at once: in runs of their own, because steps of one run take turns in its tree.
const INTERRUPTED: usize = 100;

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let lab = Lab::warm(bench);
    let floor = Floor::open(&Floor::beside(&lab.project.state));
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for round in 0..bench.samples(7, 3) {
        let mut logs = interrupted(&lab, round);
        // In portions, so that both see the same moments of the machine.
        let (mut took, mut beside) = (0.0, 0.0);
        for portion in logs.chunks_mut(10) {
            took += timed(|| portion.iter_mut().for_each(|log| make_claimable(&lab, log))).0;
            beside += timed(|| portion.iter().for_each(|_| floor.commit())).0;
        }
        ours.push(took);
        floors.push(beside);
    }
    let (ours, floors) = (Samples::new(ours), Samples::new(floors));
    vec![
        Row::new("recovering 100 interrupted steps, beside 100 commits", ms(ours.p50()))
            .beside(ms(floors.p50()), ours.p50() / floors.p50())
            .times_at_most(2.5),
    ]
}

fn interrupted(lab: &Lab, round: usize) -> Vec<Log> {
    let plan = plan_of(5);
    let one = |n: usize| {
        let mut log = lab.open(&plan, &format!("plan-{round}-{n}"), None);
        let (fence, lock) = lab.hold(&mut log, &step(1));
        lab.start(&mut log, &step(1), fence);
        drop(lock);
        log
    };
    let logs = (0..INTERRUPTED).map(one).collect();
    lab.store.tidy();
    logs
}

/// What a worker does about a dead attempt, without its processes and its tree.
fn make_claimable(lab: &Lab, log: &mut Log) {
    let observed = observe(&lab.project, log, Depth::Locks);
    let leases = lab.store.leases(log.run().opened.run).expect("leases");
    let recoveries = recover(log.run(), &observed, &leases, &log.now().expect("a clock"));
    let dead = recoveries.iter().find_map(|recovery| match &recovery.action {
        Action::Bury { fence, .. } => Some((recovery.step.clone(), *fence)),
        _ => None,
    });
    let (step, fence) = dead.expect("its attempt is dead");
    let attempt = log.run().held().next().map(|(_, attempt)| attempt.id).expect("an attempt");
    let Sighting::Dead(corpse) = observed.of(attempt).clone() else { panic!("seen dead") };
    tell(log, Command::Under(Under { step, fence }, Request::Bury(corpse)));
}

pub(crate) fn resume(bench: &Bench) -> Vec<Row> {
    let [start, taken] = in_turns(
        bench.samples(7, 3),
        [&mut || process(floor::start(bench)), &mut || to_first_start(bench)],
    );
    vec![
        Row::new("resume: command to first start, 100 steps", taken.shown())
            .beside(start.shown(), taken.p50() / start.p50())
            .ms_at_most(taken.p50(), 300.0, start.p50()),
    ]
}

/// A run of 100 steps with half of them done, killed in the next.
fn to_first_start(bench: &Bench) -> f64 {
    let (lab, lock) = Lab::prepared(bench, |lab| {
        let mark = lab.sandbox.mark("started");
        let touch = format!(": > {}; exec sleep 600", shell_word(mark.to_str().expect("text")));
        let mut plan = plan_of(100);
        let touching =
            |step: &PlanStep| PlanStep { work: Work::Run(touch.clone()), ..step.clone() };
        Arc::make_mut(&mut plan).steps = plan_of(100).steps.iter().map(touching).collect();
        let mut log = lab.open(&plan, "plan", None);
        (1..=50).for_each(|n| lab.work_off(&mut log, &step(n)));
        let (fence, lock) = lab.hold(&mut log, &step(51));
        lab.start(&mut log, &step(51), fence);
        lock
    });
    drop(lock);
    let mark = lab.sandbox.mark("started");
    let begun = SystemTime::now();
    let running = lab.sandbox.piton(&["resume", "--trust"]).spawn();
    lab.sandbox.wait_exists(&mark);
    let started = mark.metadata().and_then(|found| found.modified()).expect("the mark");
    drop(running);
    // The kernel stamps files by its tick: a few milliseconds coarse.
    started.duration_since(begun).map_or(0.0, |took| took.as_secs_f64() * 1e3)
}
