//! Many processes that append to one store, to a run each or all to the same, beside as many that commit a row each behind a
//! file lock.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;

use piton_core::ids::{Fence, RunId};
use piton_engine::run::log::Log;
use piton_store::sqlite::{Access, SqliteStore};

use crate::Bench;
use crate::floor::Floor;
use crate::lab::{Lab, checkpoint, plan_of, step, tell};
use crate::report::Row;
use crate::sample::{Samples, ms, timed};

const OURS: &str = "write-ours";
const FLOOR: &str = "write-floor";

/// One round: all together.
struct Round {
    /// Commits in a second.
    rate: f64,
    /// The longest that one of them took.
    longest: f64,
}

/// Whose log the writers append to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logs {
    Own,
    Shared,
}

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    for logs in [Logs::Own, Logs::Shared] {
        let [rate, wait] = of(bench, 8, bench.samples(100, 40), logs);
        rows.extend([rate.times_at_least(0.7), wait]);
    }
    if !bench.short {
        rows.extend(of(bench, 64, 15, Logs::Own));
        rows.extend(of(bench, 64, 15, Logs::Shared));
    }
    rows
}

fn of(bench: &Bench, writers: usize, each: usize, logs: Logs) -> [Row; 2] {
    let lab = Lab::warm(bench);
    let plan = plan_of(10);
    let mut held: Vec<(RunId, Fence, File)> = Vec::new();
    for n in 0..if logs == Logs::Own { writers } else { 1 } {
        let mut log = lab.open(&plan, &format!("plan-{n}"), None);
        let (fence, lock) = lab.hold(&mut log, &step(1));
        held.push((log.run().opened.run, fence, lock));
    }
    let db = Floor::in_folder(lab.sandbox.root());
    let ours = |n: usize| {
        let (run, fence, _) = &held[n % held.len()];
        let mut command = Program::new(&bench.own);
        command.arg(OURS).arg(&lab.project.state);
        command.args([run.to_string(), fence.to_string(), each.to_string()]);
        command
    };
    let floor = |_| {
        let mut command = Program::new(&bench.own);
        command.arg(FLOOR).arg(&db).arg(each.to_string());
        command
    };
    let (mut floors, mut rounds) = (Vec::new(), Vec::new());
    for _ in 0..bench.samples(5, 3) {
        floors.push(round(writers, each, floor));
        rounds.push(round(writers, each, ours));
    }
    let rate = |all: &[Round]| Samples::new(all.iter().map(|round| round.rate).collect()).p50();
    let longest =
        |all: &[Round]| Samples::new(all.iter().map(|round| round.longest).collect()).p50();
    let whose = match logs {
        Logs::Own => "a run each",
        Logs::Shared => "all on one run",
    };
    [
        Row::new(format!("{writers} writers, {whose}: rate"), format!("{:.0}/s", rate(&rounds)))
            .beside(format!("{:.0}/s", rate(&floors)), rate(&rounds) / rate(&floors)),
        Row::new(format!("{writers} writers, {whose}: longest wait"), ms(longest(&rounds)))
            .beside(ms(longest(&floors)), longest(&rounds) / longest(&floors)),
    ]
}

/// Starts the writers, lets them go together, and waits for all.
fn round(writers: usize, each: usize, command: impl Fn(usize) -> Program) -> Round {
    let mut children: Vec<(Child, BufReader<std::process::ChildStdout>)> = Vec::new();
    for n in 0..writers {
        let mut child = command(n)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a writer can be started");
        let heard = BufReader::new(child.stdout.take().expect("a pipe"));
        children.push((child, heard));
    }
    for (_, heard) in &mut children {
        assert_eq!(line(heard), "ready", "a writer opens its store");
    }
    let begun = Instant::now();
    for (child, _) in &mut children {
        drop(child.stdin.take());
    }
    let ended = children.into_iter().map(|(mut child, mut heard)| {
        let longest = line(&mut heard).parse::<f64>().expect("a writer says its longest wait");
        child.wait().expect("a writer ends");
        longest
    });
    let longest = ended.fold(0.0, f64::max);
    Round { rate: (writers * each) as f64 / begun.elapsed().as_secs_f64(), longest }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a writer speaks");
    line.trim_end().to_owned()
}

/// Plays a writer, where this process was started as one.
pub(crate) fn as_process(words: &[String]) -> Option<ExitCode> {
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [OURS, state, run, fence, each] => {
            let mut log = load(Path::new(state), run.parse().expect("a run's id"));
            let fence = Fence(fence.parse().expect("a fence"));
            let command = checkpoint(&log, &step(1), fence, 0);
            write(each.parse().expect("a number"), || tell(&mut log, command.clone()));
            Some(ExitCode::SUCCESS)
        }
        [FLOOR, db, each] => {
            let floor = Floor::open(Path::new(db));
            let lock = File::create(PathBuf::from(db).with_extension("lock")).expect("a lock");
            write(each.parse().expect("a number"), || floor.commit_behind(&lock));
            Some(ExitCode::SUCCESS)
        }
        _ => None,
    }
}

fn load(state: &Path, run: RunId) -> Log {
    let store = SqliteStore::open(state, Access::Existing).expect("the store");
    Log::load(Arc::new(store), run).expect("the run")
}

fn write(each: usize, mut once: impl FnMut()) {
    let mut out = io::stdout();
    // The statements of the first one are compiled; all the others are what is asked about.
    once();
    writeln!(out, "ready").and_then(|()| out.flush()).expect("somebody listens");
    // Ends when everybody is ready.
    let _end = io::stdin().read_line(&mut String::new());
    let longest = (0..each).map(|_| timed(&mut once).0).fold(0.0, f64::max);
    writeln!(out, "{longest}").expect("somebody listens");
}
