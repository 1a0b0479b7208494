//! A keeper and a worker whose agent does nothing: processor and memory that waiting costs.

use std::time::{Duration, Instant};

use piton_testkit::wait_until;

use crate::Bench;
use crate::count;
use crate::lab::Lab;
use crate::report::Row;

const PLAN: &str = "[plan]\nname = \"idle\"\n[[step]]\nid = \"wait\"\nrun = \"exec sleep 600\"\n";

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let lab = Lab::new(bench);
    lab.sandbox.write("plan.toml", PLAN);
    let worker = lab.sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    let mut keeper = None;
    lab.sandbox.wait_until("the keeper and its agent", || {
        let of_attempt = lab.sandbox.processes_with_env("PITON_ATTEMPT=");
        keeper = of_attempt.iter().find(|it| it.command.contains(" keeper ")).map(|it| it.pid);
        of_attempt.iter().any(|it| it.command.starts_with("sleep"))
    });
    let keeper = keeper.expect("the agent has a keeper");
    // Long enough for a snapshot of the cadence in the full measurement.
    let span = Duration::from_secs(if bench.short { 3 } else { 40 });
    let [(kept, children), (worked, _)] = used(span, [keeper, worker.pid()]);
    let [(rss, high), (worker_rss, worker_high)] =
        [count::memory(keeper), count::memory(worker.pid())];
    vec![
        Row::new(
            "keeper, idle: processor (with its snapshots)",
            format!("{kept:.2} % ({children:.2} %)"),
        )
        .at_most(kept + children, 0.5, "% of a core"),
        Row::new("keeper, idle: memory (highest)", format!("{rss:.1} MB ({high:.1})"))
            .at_most(rss, 15.0, "MB"),
        Row::new("worker, idle: processor", format!("{worked:.2} %")),
        Row::new(
            "worker, idle: memory (highest)",
            format!("{worker_rss:.1} MB ({worker_high:.1})"),
        ),
    ]
}

/// The share of a core that each process and its ended children used over a while, in percent.
fn used<const N: usize>(span: Duration, pids: [u32; N]) -> [(f64, f64); N] {
    let now = || pids.map(|pid| (count::processor(pid), count::children(pid)));
    let begun = Instant::now();
    let before = now();
    wait_until(span * 10, "the time of the measurement", || begun.elapsed() >= span);
    let (after, took) = (now(), begun.elapsed().as_secs_f64() * 1e3);
    let share = |before: f64, after: f64| (after - before) / took * 100.0;
    std::array::from_fn(|n| (share(before[n].0, after[n].0), share(before[n].1, after[n].1)))
}
