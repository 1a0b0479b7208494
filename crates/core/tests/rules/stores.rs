//! Random histories once more, on the real stores: decided there on what the store shows, each must end
//! with the same log, byte for byte, and the same leases.

use std::path::Path;
use std::sync::Arc;

use piton_core::decide::decide;
use piton_core::decided::Lease;
use piton_core::record::Cursor;
use piton_core::run::Run;
use piton_core::time::Moment;
use piton_store::mem::MemStore;
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{Created, NewRun, RunKey, Store};
use proptest::prelude::*;

use crate::history::{Asked, History, RUN};
use crate::properties::{history, make, moves};

/// Plays a history on an empty store and compares what it holds in the end.
fn play_on(store: &dyn Store, set_now: &dyn Fn(Moment), history: &History) {
    let first = &history.records[0];
    set_now(Moment::wall(first.at));
    let new =
        NewRun { run: RUN, name: "name".to_owned(), key: RunKey("key".to_owned()), replaces: None };
    let created = store.create_run(&new, &history.opened).unwrap();
    assert_eq!(created, Created::New(vec![first.clone()]));
    let mut run = Run::open(Arc::clone(&history.plan), first).unwrap();
    for (now, asked) in &history.asked {
        set_now(now.clone());
        match asked {
            Asked::Command(command) => {
                let records = store.transact(RUN, run.cursor, &mut |tail| {
                    assert!(tail.records.is_empty(), "nobody else writes");
                    decide(&run, command, tail.leases, tail.now).ok()
                });
                for record in records.unwrap() {
                    run.apply(&record).unwrap();
                }
            }
            Asked::Renewal { key, fence, until } => {
                store.renew(RUN, key, *fence, until).unwrap();
            }
        }
    }
    assert_eq!(store.read(RUN, Cursor::START).unwrap(), history.records);
    assert_eq!(sorted(store.leases(RUN).unwrap()), sorted(history.leases.clone()));
}

fn sorted(mut leases: Vec<Lease>) -> Vec<Lease> {
    leases.sort_by(|a, b| a.key.cmp(&b.key));
    leases
}

/// A folder in memory where there is one: what a flush is worth is tested elsewhere.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    folder.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn histories_are_the_same_on_every_store(moves in moves()) {
        let mut history = history();
        for (number, made) in moves.iter().enumerate() {
            make(&mut history, made, number);
        }
        let mem = MemStore::with_clock(history.now.clone());
        play_on(&mem, &|now| mem.set_now(now), &history);
        let folder = folder();
        let sqlite = SqliteStore::open(folder.path(), Access::Create).unwrap();
        play_on(&sqlite, &|now| sqlite.set_now(now), &history);
    }
}
