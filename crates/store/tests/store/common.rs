//! A store with a bit of everything in it, and all that can be read from one.

use std::fs;
use std::path::Path;
use std::time::Duration;

use piton_core::decided::{Decided, KeyChange, Lease};
use piton_core::ids::{Fence, Hash, RunId};
use piton_core::record::{Cursor, Record};
use piton_core::time::{Millis, Moment};
use piton_store::conformance::{bodies, new_run, run_id};
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{Created, RunKey, RunRow, Runs, Store, StoreError};

/// Small numbers that look random and are the same in every run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

pub(crate) fn open(dir: &Path, access: Access) -> SqliteStore {
    SqliteStore::open(dir, access).unwrap()
}

/// Appends one record after a cursor.
pub(crate) fn append(store: &dyn Store, run: RunId, after: Cursor, body: &[u8]) -> Vec<Record> {
    store.transact(run, after, &mut |_| Some(bodies(&[body]))).unwrap()
}

pub(crate) const RUNS: u128 = 6;
pub(crate) static LONG_TEXT: [u8; 20_000] = [b'x'; 20_000];

/// Runs with records of many sizes, leases, texts; one of them without its key.
pub(crate) fn fill(store: &dyn Store) {
    let mut dice = Dice::new(1);
    for number in 1..=RUNS {
        let text = format!("plan {number}").into_bytes();
        let first = Decided::raw(vec![text.clone()], vec![], vec![text], KeyChange::Kept);
        let created = store.create_run(&new_run(number, &format!("key-{number}")), &first).unwrap();
        assert!(matches!(created, Created::New(_)));
        for nth in 0..20 {
            let body = vec![nth; dice.below(if nth == 7 { 9_000 } else { 300 }) as usize];
            let lease = Lease {
                key: format!("step-{}", nth % 4),
                fence: Fence(u64::from(nth) + 1),
                until: far_future().after(Duration::from_secs(u64::from(nth))),
            };
            let batch = Decided::raw(vec![body], vec![lease], vec![], KeyChange::Kept);
            store.transact(run_id(number), Cursor::START, &mut |_| Some(batch.clone())).unwrap();
        }
    }
    let end =
        Decided::raw(vec![b"end".to_vec()], vec![], vec![LONG_TEXT.to_vec()], KeyChange::Freed);
    store.transact(run_id(3), Cursor::START, &mut |_| Some(end.clone())).unwrap();
}

pub(crate) fn far_future() -> Moment {
    Moment::wall(Millis(32_503_680_000_000))
}

/// Everything a reader can learn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Truth {
    pub(crate) all: Vec<RunRow>,
    pub(crate) active: Vec<RunRow>,
    pub(crate) holders: Vec<Vec<RunRow>>,
    pub(crate) logs: Vec<Vec<Record>>,
    pub(crate) leases: Vec<Vec<Lease>>,
    pub(crate) texts: Vec<Vec<u8>>,
    pub(crate) named: Vec<Vec<RunRow>>,
}

impl Truth {
    /// With the leases that may be lost without harm, where they were lost.
    pub(crate) fn with_lost(mut self, whole: &Truth) -> Truth {
        for (leases, known) in self.leases.iter_mut().zip(&whole.leases) {
            if leases.iter().all(|lease| known.contains(lease)) {
                leases.clone_from(known);
            }
        }
        self
    }
}

/// Reads everything there should be after [`fill`].
pub(crate) fn truth(store: &dyn Store) -> Result<Truth, StoreError> {
    let mut truth = Truth {
        all: store.runs(&Runs::All)?,
        active: store.runs(&Runs::Active)?,
        holders: vec![],
        logs: vec![],
        leases: vec![],
        texts: vec![store.text(Hash::of(&LONG_TEXT))?],
        named: vec![],
    };
    for number in 1..=RUNS {
        let key = RunKey(format!("key-{number}"));
        truth.holders.push(store.runs(&Runs::HoldingKey(key))?);
        truth.logs.push(store.read(run_id(number), Cursor::START)?);
        truth.leases.push(store.leases(run_id(number))?);
        truth.named.push(store.runs(&Runs::Named(format!("run-{number}")))?);
        truth.texts.push(store.text(Hash::of(format!("plan {number}").as_bytes()))?);
    }
    Ok(truth)
}

/// Moves the whole write-ahead log into the database and removes it, as a foreign tool would.
pub(crate) fn fold_log_in(dir: &Path) {
    let conn = rusqlite::Connection::open(dir.join("store.db")).unwrap();
    let (busy, left): (i64, i64) = conn
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!((busy, left), (0, 0), "everything is in the database file");
    conn.close().unwrap();
    for rest in ["store.db-wal", "store.db-shm"] {
        assert!(!dir.join(rest).exists(), "the last close removed {rest}");
    }
}

/// Names, lengths, times and bytes of a folder.
pub(crate) fn picture(dir: &Path) -> Vec<(String, u64, std::time::SystemTime, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, meta.len(), meta.modified().unwrap(), fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// The content of the samples in `tests/samples`.
pub(crate) fn fill_sample(store: &dyn Store) {
    let opened = bodies(&[b"opened"]);
    store.create_run(&new_run(1, "first"), &opened).unwrap();
    store.create_run(&new_run(2, "second"), &opened).unwrap();
    let lease = Lease { key: "step".to_owned(), fence: Fence(2), until: far_future() };
    let claimed = Decided::raw(
        vec![b"claimed".to_vec()],
        vec![lease],
        vec![b"a text".to_vec()],
        KeyChange::Kept,
    );
    let ended = Decided::raw(vec![b"ended".to_vec()], vec![], vec![], KeyChange::Freed);
    for batch in [claimed, ended] {
        store.transact(run_id(1), Cursor::START, &mut |_| Some(batch.clone())).unwrap();
    }
}
