//! The floors: the least that anything with the same promise costs. A process that starts and ends; one
//! that commits a row durably; a commit on an open connection; commits behind a file lock.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Arg;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::Bench;

/// About the body of an event.
const BODY: [u8; 300] = [b'x'; 300];

/// The hidden modes of this program.
const START: &str = "floor-start";
const COMMIT: &str = "floor-commit";

/// Plays a floor, where this process was started as one.
pub(crate) fn as_process(words: &[String]) -> Option<ExitCode> {
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [START] => Some(ExitCode::SUCCESS),
        [COMMIT, ..] => {
            Floor::open(&told(words)).commit();
            // Without closing, as piton does: the last one to close would checkpoint.
            std::process::exit(0)
        }
        _ => None,
    }
}

/// The database that was named. The words are read by the same parser as a verb's, which is part of the
/// same start.
fn told(words: &[String]) -> PathBuf {
    let db = Arg::new("db").required(true).value_parser(clap::value_parser!(PathBuf));
    let commit = clap::Command::new(COMMIT).arg(db);
    let told = clap::Command::new("bench").no_binary_name(true).subcommand(commit);
    let found = told.get_matches_from(words);
    let (_, commit) = found.subcommand().expect("the floor's own name");
    commit.get_one::<PathBuf>("db").expect("a path").clone()
}

/// `true`: what starting any process costs.
pub(crate) fn nothing() -> Command {
    Command::new("true")
}

/// A program of this language and about this size that does nothing.
pub(crate) fn start(bench: &Bench) -> Command {
    let mut command = Command::new(&bench.own);
    command.arg(START);
    command
}

/// The same, which opens a database, commits a row durably and ends without closing.
pub(crate) fn commit(bench: &Bench, db: &Path) -> Command {
    let mut command = Command::new(&bench.own);
    command.arg(COMMIT).arg(db);
    command
}

/// A database with a table of rows, opened with the settings that the promise needs and no others.
pub(crate) struct Floor {
    conn: Connection,
}

impl Floor {
    /// Makes one beside a store: a copy of it, so that size and schema are the same.
    pub(crate) fn beside(store: &Path) -> PathBuf {
        let path = store.join(format!("../../../floor-{}.db", uuid::Uuid::now_v7()));
        let conn = Connection::open(store.join("store.db")).expect("the store");
        conn.execute("VACUUM INTO ?1", [path.to_str().expect("paths of a lab are text")])
            .expect("a copy of the store");
        Floor::lay_out(&path);
        path
    }

    /// Makes an empty one.
    pub(crate) fn in_folder(dir: &Path) -> PathBuf {
        let path = dir.join(format!("floor-{}.db", uuid::Uuid::now_v7()));
        Floor::lay_out(&path);
        path
    }

    /// With a write-ahead log that has its working size: flushing a file that still grows takes longer.
    fn lay_out(path: &Path) {
        let floor = Floor { conn: Connection::open(path).expect("a database") };
        let keep = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
        floor.conn.set_db_config(keep, true).expect("a setting");
        let ask = |sql| floor.conn.query_row(sql, [], |_| Ok(())).expect("a setting");
        ask("PRAGMA journal_mode = WAL");
        floor
            .conn
            .execute_batch(
                "PRAGMA synchronous = OFF;
                 CREATE TABLE floor (n INTEGER PRIMARY KEY, body BLOB NOT NULL)",
            )
            .expect("a table");
        (0..1_200).for_each(|_| floor.commit());
        ask("PRAGMA wal_checkpoint(RESTART)");
    }

    pub(crate) fn open(path: &Path) -> Floor {
        let conn = Connection::open(path).expect("the floor's database");
        conn.execute_batch("PRAGMA synchronous = FULL").expect("a setting");
        conn.busy_timeout(Duration::from_secs(30)).expect("a setting");
        Floor { conn }
    }

    /// One row, durable on return.
    pub(crate) fn commit(&self) {
        let run = |sql| self.conn.prepare_cached(sql).and_then(|mut it| it.execute([]));
        run("BEGIN IMMEDIATE").expect("a transaction");
        self.conn
            .prepare_cached("INSERT INTO floor (body) VALUES (?1)")
            .and_then(|mut insert| insert.execute([&BODY[..]]))
            .expect("a row");
        run("COMMIT").expect("a commit");
    }

    /// The same in turn with others, who queue for a locked file.
    pub(crate) fn commit_behind(&self, lock: &File) {
        lock.lock().expect("the lock");
        self.commit();
        lock.unlock().expect("the lock");
    }
}
