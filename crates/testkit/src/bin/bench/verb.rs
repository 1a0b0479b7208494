//! Durable verbs as whole processes: `claim`, `heartbeat`, `checkpoint` outside of git, `stop`; in runs
//! of ten, a thousand and ten thousand steps, half of which are done. Beside them a program that opens the
//! same database, commits one row and ends.

use std::cell::RefCell;
use std::path::PathBuf;

use piton_core::cache::PlanFile;
use piton_core::decide::Command;
use piton_core::event::Terms;
use piton_engine::run::log::Log;

use crate::Bench;
use crate::count;
use crate::floor::{self, Floor};
use crate::lab::{Lab, plan_of, plan_text, step, tell};
use crate::report::Row;
use crate::sample::{Samples, in_turns, process};

/// Verbs in the order of their rows.
const VERBS: [Verb; 5] =
    [Verb::Claim, Verb::ClaimPlan, Verb::Heartbeat, Verb::Checkpoint, Verb::Stop];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Claim,
    ClaimPlan,
    Heartbeat,
    Checkpoint,
    Stop,
}

impl Verb {
    fn shown(self) -> &'static str {
        match self {
            Verb::Claim => "`piton claim RUN`",
            Verb::ClaimPlan => "`piton claim PLAN`",
            Verb::Heartbeat => "`piton heartbeat`",
            Verb::Checkpoint => "`piton checkpoint --note`",
            Verb::Stop => "`piton stop`",
        }
    }
}

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let (small, middle, large) =
        (Half::done(bench, 10), Half::done(bench, 1_000), Half::done(bench, 10_000));
    let many = Half::done(bench, 10);
    for n in 0..100 {
        many.lab.open(&plan_of(10), &format!("other-{n}"), None);
    }
    let db = Floor::beside(&small.lab.project.state);
    // Somebody else has it open, as the lab has the store.
    let _open = Floor::open(&db);
    let mut rows = Vec::new();
    for verb in VERBS {
        let [floor, ten, thousand, thousands, among] = in_turns(
            bench.samples(40, 12),
            [
                &mut || process(floor::commit(bench, &db)),
                &mut || small.ask(verb),
                &mut || middle.ask(verb),
                &mut || large.ask(verb),
                &mut || many.ask(verb),
            ],
        );
        rows.extend(rows_of(verb, &floor, [&ten, &thousand, &thousands, &among]));
        rows.push(flushes(&large, verb));
    }
    rows
}

fn rows_of(verb: Verb, floor: &Samples, ours: [&Samples; 4]) -> [Row; 4] {
    let [ten, thousand, thousands, among] = ours;
    let beside = |what: &str, ours: &Samples, base: &Samples| {
        Row::new(format!("{}{what}", verb.shown()), ours.shown())
            .beside(base.shown(), ours.p50() / base.p50())
    };
    [
        beside(", 10 steps", ten, floor).times_at_most(1.6),
        beside(", 1,000 steps, beside 10", thousand, ten).times_at_most(1.5),
        beside(", 10,000 steps, beside 10", thousands, ten).times_at_most(3.0),
        beside(", among 100 runs, beside one", among, ten).times_at_most(1.5),
    ]
}

/// Counted for some in a row: once in a while one tidies the write-ahead log after it has answered.
fn flushes(half: &Half, verb: Verb) -> Row {
    let count = |_| {
        half.before(verb);
        let flushes = count::flushes(&half.command(verb));
        half.after(verb);
        flushes
    };
    let what = format!("{}, flushes", verb.shown());
    match (0..12).map(count).collect::<Option<Vec<usize>>>() {
        Some(counts) => {
            let most = counts.iter().max().copied().unwrap_or(0);
            let middle = Samples::new(counts.into_iter().map(|count| count as f64).collect()).p50();
            Row::new(what, format!("{middle:.0}, at most {most}")).at_most(middle, 2.0, "")
        }
        None => Row::new(format!("{what} (install strace)"), "not counted").at_most(
            f64::INFINITY,
            2.0,
            "",
        ),
    }
}

/// A run with half of its steps done, the next one held by somebody outside.
struct Half {
    lab: Lab,
    log: RefCell<Log>,
    handle: String,
    next: String,
    /// Not in a git repository: its bytes are nobody's.
    elsewhere: PathBuf,
}

impl Half {
    fn done(bench: &Bench, steps: usize) -> Half {
        let plan = plan_of(steps);
        let (lab, run) = Lab::prepared(bench, |lab| {
            let mut log = lab.open(&plan, "plan", None);
            log.remember(PlanFile::new(plan_text(steps).as_bytes(), plan.hash()));
            (1..=steps / 2).for_each(|n| lab.work_off(&mut log, &step(n)));
            log.run().opened.run
        });
        lab.sandbox.write("plan.toml", &plan_text(steps));
        let log = Log::load(lab.store.clone(), run).expect("the run");
        let handle = log.run().opened.handle.to_string();
        let next = step(steps / 2 + 1).step.to_string();
        let elsewhere = lab.sandbox.root().join("elsewhere");
        std::fs::create_dir(&elsewhere).expect("a folder");
        let half = Half { lab, log: RefCell::new(log), handle, next, elsewhere };
        half.ask(Verb::Claim);
        half
    }

    fn command(&self, verb: Verb) -> std::process::Command {
        let worktree = ["--worktree", self.elsewhere.to_str().expect("paths of a lab are text")];
        let about: &[&str] = match verb {
            Verb::Claim => &["claim", &self.handle],
            Verb::ClaimPlan => &["claim", "plan.toml"],
            Verb::Heartbeat => &["heartbeat", &self.handle, &self.next],
            Verb::Checkpoint => &["checkpoint", &self.handle, &self.next, "--note", "halfway"],
            Verb::Stop => return self.lab.piton(&["stop", &self.handle]),
        };
        self.lab.piton(&[about, &worktree].concat())
    }

    fn ask(&self, verb: Verb) -> f64 {
        self.before(verb);
        self.lab.settle();
        let took = process(self.command(verb));
        self.after(verb);
        took
    }

    /// Nobody outside would end on request.
    fn before(&self, verb: Verb) {
        let mut log = self.log.borrow_mut();
        log.refresh().expect("the log can be read");
        let held = log.run().held().next().map(|(step, _)| step);
        if let (Verb::Stop, Some(step)) = (verb, held) {
            tell(&mut log, Command::ForceRelease { step });
        }
    }

    /// What was stopped goes on.
    fn after(&self, verb: Verb) {
        if verb == Verb::Stop {
            let mut log = self.log.borrow_mut();
            let host = self.lab.project.host.clone();
            tell(&mut log, Command::Resume { host, confirmed: false, terms: Terms::default() });
        }
    }
}
