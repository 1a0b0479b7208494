//! Start-up: what a command costs that does nothing, or only looks at next to nothing.

use crate::Bench;
use crate::floor;
use crate::lab::{Lab, plan_of};
use crate::report::Row;
use crate::sample::{in_turns, process};

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let none = Lab::new(bench);
    let one = Lab::new(bench);
    one.open(&plan_of(5), "plan", None);
    let [nothing, start, version, empty, single] = in_turns(
        bench.samples(60, 15),
        [
            &mut || process(floor::nothing()),
            &mut || process(floor::start(bench)),
            &mut || process(none.piton(&["--version"])),
            &mut || process(none.piton(&["status"])),
            &mut || process(one.piton(&["status"])),
        ],
    );
    let floor = start.shown();
    let row = |what: &str, ours: &crate::sample::Samples| {
        Row::new(what, ours.shown()).beside(floor.clone(), ours.p50() / start.p50())
    };
    vec![
        Row::new("start: a Rust program that does nothing, beside `true`", start.shown())
            .beside(nothing.shown(), start.p50() / nothing.p50()),
        row("start: `piton --version`", &version),
        row("start: `piton status`, no runs", &empty),
        row("start: `piton status`, one run", &single),
    ]
}
