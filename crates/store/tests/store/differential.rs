//! The same history on both stores must end equal, but for times and the hashes that depend on them.

use std::path::Path;
use std::time::Duration;

use piton_core::decided::{Decided, KeyChange, Lease};
use piton_core::ids::{Fence, Hash, RunId};
use piton_core::record::{Cursor, Record};
use piton_core::time::{Millis, Moment};
use piton_store::conformance::{new_run, run_id};
use piton_store::mem::MemStore;
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{Created, NewRun, RunKey, RunRow, Runs, Store, StoreError};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::far_future;

/// One act of a history. Runs, keys and cursors are small numbers, so that acts meet.
#[derive(Debug, Clone)]
enum Act {
    Create {
        run: u128,
        key: u8,
        replaces: Option<u128>,
        batch: Batch,
    },
    Transact {
        run: u128,
        after: u64,
        batch: Option<Batch>,
    },
    Renew {
        run: u128,
        key: u8,
        fence: u64,
        seconds: u64,
    },
    /// Only the embedded store does something here: checkpoint, or be opened anew.
    Tidy,
    Reopen,
}

#[derive(Debug, Clone)]
struct Batch {
    bodies: Vec<Vec<u8>>,
    leases: Vec<(u8, u64, u64)>,
    texts: Vec<u8>,
    frees: bool,
}

impl Batch {
    fn decided(&self) -> Decided {
        let lease = |&(key, fence, seconds): &(u8, u64, u64)| Lease {
            key: format!("step-{key}"),
            fence: Fence(fence),
            until: until(seconds),
        };
        Decided::raw(
            self.bodies.clone(),
            self.leases.iter().map(lease).collect(),
            self.texts.iter().map(|&text| text_of(text)).collect(),
            if self.frees { KeyChange::Freed } else { KeyChange::Kept },
        )
    }
}

/// Deadlines that do not depend on when the test runs; zero is long over.
fn until(seconds: u64) -> Moment {
    if seconds == 0 {
        Moment::wall(Millis(1))
    } else {
        far_future().after(Duration::from_secs(seconds))
    }
}

fn text_of(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number) * 40]
}

const RUNS: u128 = 4;
const KEYS: u8 = 3;
const TEXTS: u8 = 4;

fn batch() -> impl Strategy<Value = Batch> {
    let body = prop_oneof![4 => vec(any::<u8>(), 0..60), 1 => vec(any::<u8>(), 3_000..6_000)];
    let lease = (0..3_u8, 1..6_u64, 0..4_u64);
    (vec(body, 0..4), vec(lease, 0..3), vec(0..TEXTS, 0..2), prop::bool::weighted(0.1))
        .prop_map(|(bodies, leases, texts, frees)| Batch { bodies, leases, texts, frees })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (1..=RUNS, 0..KEYS, prop::option::of(1..=RUNS), batch())
            .prop_map(|(run, key, replaces, batch)| Act::Create { run, key, replaces, batch }),
        6 => (1..=RUNS, 0..12_u64, prop::option::weighted(0.85, batch()))
            .prop_map(|(run, after, batch)| Act::Transact { run, after, batch }),
        2 => (1..=RUNS, 0..3_u8, 1..6_u64, 1..6_u64)
            .prop_map(|(run, key, fence, seconds)| Act::Renew { run, key, fence, seconds }),
        1 => Just(Act::Tidy),
        1 => Just(Act::Reopen),
    ]
}

/// A store's own cursor at a position; one that is in no chain when the log is shorter.
fn cursor(store: &dyn Store, run: RunId, position: u64) -> Cursor {
    let log = store.read(run, Cursor::START).unwrap_or_default();
    match position.checked_sub(1) {
        None => Cursor::START,
        Some(last) => log.get(last as usize).map_or(
            Cursor { position: piton_core::ids::Position(position), hash: Hash::ZERO },
            Record::cursor,
        ),
    }
}

fn plain(records: &[Record]) -> Vec<(u64, &[u8])> {
    records.iter().map(|record| (record.position.0, record.body.as_slice())).collect()
}

fn error(error: StoreError) -> String {
    format!("{error:?}")
}

/// Does one act and tells what came of it, without times.
fn act_on(store: &dyn Store, act: &Act) -> String {
    match act {
        Act::Create { run, key, replaces, batch } => {
            let new = NewRun { replaces: replaces.map(run_id), ..new_run(*run, &key.to_string()) };
            match store.create_run(&new, &batch.decided()) {
                Ok(Created::New(records)) => format!("new {:?}", plain(&records)),
                Ok(Created::KeyHeldBy(run)) => format!("held by {run}"),
                Err(failed) => error(failed),
            }
        }
        Act::Transact { run, after, batch } => {
            let (run, mut seen) = (run_id(*run), String::new());
            let answer = store.transact(run, cursor(store, run, *after), &mut |tail| {
                seen = format!("saw {:?} and {:?}", plain(tail.records), tail.leases);
                batch.as_ref().map(Batch::decided)
            });
            match answer {
                Ok(records) => format!("{seen}, then {:?}", plain(&records)),
                Err(failed) => error(failed),
            }
        }
        Act::Renew { run, key, fence, seconds } => {
            let key = format!("step-{key}");
            let answer = store.renew(run_id(*run), &key, Fence(*fence), &until(*seconds));
            answer.map_or_else(error, |renewal| format!("{renewal:?}"))
        }
        Act::Tidy | Act::Reopen => {
            store.tidy();
            String::new()
        }
    }
}

/// Everything that can be read, without times.
fn portrait(store: &dyn Store) -> Vec<String> {
    let rows = |rows: Vec<RunRow>| -> Vec<_> {
        rows.into_iter()
            .map(|row| (row.run, row.name, row.key, row.active, row.head.position))
            .collect()
    };
    let mut lines = vec![
        format!("{:?}", rows(store.runs(&Runs::All).unwrap())),
        format!("{:?}", rows(store.runs(&Runs::Active).unwrap())),
    ];
    for key in 0..KEYS {
        let holder = Runs::HoldingKey(RunKey(key.to_string()));
        lines.push(format!("{:?}", rows(store.runs(&holder).unwrap())));
    }
    for run in (1..=RUNS).map(run_id) {
        let log = store.read(run, Cursor::START);
        lines.push(log.map_or_else(error, |log| format!("{:?}", plain(&log))));
        lines.push(store.leases(run).map_or_else(error, |leases| format!("{leases:?}")));
    }
    for text in (0..TEXTS).map(text_of) {
        lines.push(
            store.text(Hash::of(&text)).map_or_else(error, |kept| format!("{}", kept == text)),
        );
    }
    lines
}

fn play(dir: &Path, acts: &[Act]) -> Result<(), TestCaseError> {
    let mem = MemStore::new();
    let mut sqlite = SqliteStore::open(dir, Access::Create).unwrap();
    for act in acts {
        prop_assert_eq!(act_on(&mem, act), act_on(&sqlite, act), "{:?}", act);
        if matches!(act, Act::Reopen) {
            drop(sqlite);
            sqlite = SqliteStore::open(dir, Access::Existing).unwrap();
        }
    }
    prop_assert_eq!(portrait(&mem), portrait(&sqlite));
    let looker = SqliteStore::open(dir, Access::Look).unwrap();
    prop_assert_eq!(portrait(&mem), portrait(&looker));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn both_stores_tell_the_same_story(acts in vec(act(), 1..50)) {
        let dir = tempfile::tempdir().unwrap();
        play(dir.path(), &acts)?;
    }
}
