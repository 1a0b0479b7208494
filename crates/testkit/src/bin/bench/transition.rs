//! Transitions inside a worker or a keeper, where the store is open already: one of them, and all of a
//! thousand steps with what the worker asks between them.

use piton_core::observed::Observed;
use piton_core::recover::{Action, recover};

use crate::Bench;
use crate::floor::Floor;
use crate::lab::{Lab, checkpoint, plan_of, step, tell};
use crate::report::Row;
use crate::sample::{Samples, in_turns, ms, timed};

/// Transitions that a step which goes well has.
const TRANSITIONS: usize = 5;

pub(crate) fn one(bench: &Bench) -> Vec<Row> {
    let lab = Lab::warm(bench);
    let mut log = lab.open(&plan_of(10), "plan", None);
    let (fence, _lock) = lab.hold(&mut log, &step(1));
    let command = checkpoint(&log, &step(1), fence, 0);
    let floor = Floor::open(&Floor::beside(&lab.project.state));
    let [floor, ours] = in_turns(
        bench.samples(1_000, 200),
        [&mut || timed(|| floor.commit()).0, &mut || {
            let took = timed(|| tell(&mut log, command.clone())).0;
            lab.store.tidy();
            took
        }],
    );
    vec![
        Row::new("transition on an open store", ours.shown())
            .beside(floor.shown(), ours.p50() / floor.p50())
            .times_at_most(1.5),
    ]
}

pub(crate) fn steps(bench: &Bench) -> Vec<Row> {
    let count = bench.samples(1_000, 300);
    let lab = Lab::warm(bench);
    let mut log = lab.open(&plan_of(count), "plan", None);
    let floor = Floor::open(&Floor::beside(&lab.project.state));
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for n in 1..=count {
        ours.push(timed(|| work_off_next(&lab, &mut log, n)).0);
        floors.push(timed(|| (0..TRANSITIONS).for_each(|_| floor.commit())).0);
    }
    assert!(log.run().is_completed(), "every step was worked off");
    // Pair by pair, because a disk that is slow for a second must not look like growth.
    let ratios: Vec<f64> = ours.iter().zip(&floors).map(|(ours, floor)| ours / floor).collect();
    let (first, second) = ratios.split_at(count / 2);
    let (first, second) = (Samples::new(first.to_vec()).p50(), Samples::new(second.to_vec()).p50());
    let (ours, floors) = (Samples::new(ours), Samples::new(floors));
    let shown = |samples: &Samples| format!("{} a step", ms(samples.p50()));
    vec![
        Row::new(format!("{count} steps in sequence, bookkeeping only"), shown(&ours))
            .beside(shown(&floors), ours.sum() / floors.sum())
            .times_at_most(1.6),
        Row::new("the same: second half beside the first", format!("{second:.2} × its floor"))
            .beside(format!("{first:.2} × its floor"), second / first)
            .times_at_most(1.25),
    ]
}

/// What a worker and a keeper do about a step in the log: look what is next, claim it, bring it to its
/// end, tidy up.
fn work_off_next(lab: &Lab, log: &mut piton_engine::run::log::Log, n: usize) {
    log.refresh().expect("the log can be read");
    let leases = lab.store.leases(log.run().opened.run).expect("leases");
    let recoveries =
        recover(log.run(), &Observed::default(), &leases, &log.now().expect("a clock"));
    let next = recoveries.iter().find(|recovery| matches!(recovery.action, Action::Start { .. }));
    let next = next.expect("something is left to do").step.clone();
    assert_eq!(next, step(n), "steps come in the order of their needs");
    lab.work_off(log, &next);
    lab.store.tidy();
}
