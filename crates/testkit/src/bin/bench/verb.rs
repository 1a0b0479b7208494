//! A durable verb as a whole process: `piton stop` appends one event. Beside it a program that opens the
//! same database, commits one row and ends.

use piton_core::ids::RunId;

use crate::count;
use crate::floor::{self, Floor};
use crate::lab::{Lab, plan_of};
use crate::report::Row;
use crate::sample::{in_turns, process};
use crate::{Bench, PLAN_PARSED, RUNS_LISTED};

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let (mut small, mut large) = (Verb::new(bench, 10), Verb::new(bench, 10_000));
    let mut many = Verb::new(bench, 10);
    for n in 0..100 {
        many.lab.open(&many.plan, &format!("other-{n}"), None);
    }
    let db = Floor::beside(&small.lab.project.state);
    // Somebody else has it open, as the lab has the store.
    let _open = Floor::open(&db);
    let [floor, ten, thousands, named] = in_turns(
        bench.samples(40, 12),
        [
            &mut || process(floor::commit(bench, &db)),
            &mut || small.stop(&[]),
            &mut || large.stop(&[]),
            &mut || many.stop_named(),
        ],
    );
    let flushes = match small.flushes() {
        Some(n) => Row::new("durable verb: flushes", n.to_string()).at_most(n as f64, 2.0, ""),
        None => Row::new("durable verb: flushes (install strace)", "not counted").at_most(
            f64::INFINITY,
            2.0,
            "",
        ),
    };
    vec![
        Row::new("durable verb: `piton stop`, 10 steps", ten.shown())
            .beside(floor.shown(), ten.p50() / floor.p50())
            .times_at_most(1.5),
        flushes,
        Row::new("durable verb: 10,000 steps, beside 10", thousands.shown())
            .beside(ten.shown(), thousands.p50() / ten.p50())
            .times_at_most(1.5)
            .open_because(PLAN_PARSED),
        Row::new("durable verb: by handle among 100 runs, beside one", named.shown())
            .beside(ten.shown(), named.p50() / ten.p50())
            .times_at_most(1.5)
            .open_because(RUNS_LISTED),
    ]
}

/// A lab in which one run at a time is unfinished and can be stopped.
struct Verb {
    lab: Lab,
    plan: std::sync::Arc<piton_core::plan::Plan>,
    last: Option<RunId>,
}

impl Verb {
    fn new(bench: &Bench, steps: usize) -> Verb {
        Verb { lab: Lab::warm(bench), plan: plan_of(steps), last: None }
    }

    /// A run that nobody has stopped; returns its handle.
    fn fresh(&mut self) -> String {
        let log = self.lab.open(&self.plan, "plan", self.last);
        self.last = Some(log.run().opened.run);
        self.lab.settle();
        log.run().opened.handle.to_string()
    }

    fn stop(&mut self, words: &[&str]) -> f64 {
        self.fresh();
        process(self.lab.piton(&[&["stop"], words].concat()))
    }

    fn stop_named(&mut self) -> f64 {
        let handle = self.fresh();
        process(self.lab.piton(&["stop", &handle]))
    }

    /// The most of a few.
    fn flushes(&mut self) -> Option<usize> {
        let mut most = None;
        for _ in 0..3 {
            self.fresh();
            most = most.max(count::flushes(&self.lab.piton(&["stop"])));
        }
        most
    }
}
