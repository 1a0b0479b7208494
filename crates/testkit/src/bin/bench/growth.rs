//! What the store grows by: facts of a kilobyte, and a thousand checkpoints of one step.

use std::fs;
use std::path::Path;

use piton_core::record::Cursor;

use crate::Bench;
use crate::lab::{Lab, checkpoint, plan_of, step, tell};
use crate::report::Row;

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    vec![kilobyte_a_step(bench), thousand_checkpoints(bench)]
}

/// 200 steps, each of which adds a kilobyte to what the run knows.
fn kilobyte_a_step(bench: &Bench) -> Row {
    let lab = Lab::new(bench);
    let mut log = lab.open(&plan_of(200), "plan", None);
    let before = Size::of(&lab);
    for n in 1..=200 {
        let fence = lab.claim(&mut log, &step(n), piton_core::ids::AttemptId(uuid::Uuid::now_v7()));
        lab.start(&mut log, &step(n), fence);
        let command = checkpoint(&log, &step(n), fence, 1_024);
        tell(&mut log, command);
        lab.complete(&mut log, &step(n), fence);
    }
    let grown = Size::of(&lab).database - before.database;
    let records = lab.store.read(log.run().opened.run, Cursor::START).expect("the log");
    let data: usize = records.iter().skip(1).map(|record| record.body.len()).sum();
    let (data, wal) = (data as f64 / 1024.0, Size::of(&lab).log);
    Row::new("store: a kilobyte a step, 200 steps", format!("{grown:.0} KiB (+ {wal:.0} log)"))
        .beside(format!("{data:.0} KiB of facts"), grown / data)
        .times_at_most(2.0)
}

fn thousand_checkpoints(bench: &Bench) -> Row {
    let lab = Lab::new(bench);
    let mut log = lab.open(&plan_of(10), "plan", None);
    let (fence, _lock) = lab.hold(&mut log, &step(1));
    let before = Size::of(&lab);
    let command = checkpoint(&log, &step(1), fence, 0);
    for _ in 0..1_000 {
        tell(&mut log, command.clone());
    }
    let grown = (Size::of(&lab).database - before.database) / 1024.0;
    Row::new("store: 1,000 checkpoints of a step", format!("{grown:.2} MB"))
        .at_most(grown, 1.0, "MB")
}

/// Sizes of a store's files in KiB, after everything is in the database.
struct Size {
    /// With the run caches.
    database: f64,
    log: f64,
}

impl Size {
    fn of(lab: &Lab) -> Size {
        let path = lab.project.state.join("store.db");
        let conn = rusqlite::Connection::open(&path).expect("the store");
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).expect("a checkpoint");
        let kib = |path: &Path| fs::metadata(path).map_or(0.0, |found| found.len() as f64 / 1024.0);
        let all = fs::read_dir(&lab.project.state).expect("the store's folder");
        let files = all.flatten().map(|entry| entry.path());
        let caches = files.filter(|path| path.extension() == Some("cache".as_ref()));
        let cached: f64 = caches.map(|path| kib(&path)).sum();
        Size { database: kib(&path) + cached, log: kib(&path.with_extension("db-wal")) }
    }
}
