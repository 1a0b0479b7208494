//! Packed runs: who may read them, what damage does, and what they cost. That they equal the fold is a property of
//! every random history (`properties`).

use std::fmt;
use std::sync::Arc;

use piton_core::cache::{PlanFile, VERSION};
use piton_core::ids::Hash;
use piton_core::record::Cursor;
use piton_core::run::{Again, Run};

use crate::history::{History, Paper, kept, loaded, plan, repacked};

/// A bit of everything that a run keeps.
fn eventful() -> History {
    let mut history = History::open(plan(
        "a agent retries=1 in=g locks=l then=ask
         b command needs=a
         c agent items=2 parts=one:1 locks=l
         d hand needs=g
         e agent
         lock l 2",
    ));
    history.play(
        "claim a, start a, checkpoint a 3, note a halfway there, fail a exit,
         claim a, start a, verify a, land a, complete a,
         claim c from x, substep c one, check c 1, defer c 2, gap c more, stop c, release c,
         claim e from y, claim e from z force, interrupt e agent,
         claim b, stop run, bury b none, resume, claim c from x,
         intend-merge, merge, intend-merge",
    );
    history
}

/// Change the number in `cache::VERSION` together with this: what was packed before must not be read.
#[test]
fn what_is_packed_changes_with_its_version_only() {
    let file = kept(&mut eventful().run, None);
    let shape = format!("{VERSION}: {}", Hash::of(&file.bytes).short());
    insta::assert_snapshot!(shape, @"0.1.0 fold 22: be1f1d3f47a9");
}

#[test]
fn a_loaded_run_is_the_folded_one() {
    let history = eventful();
    assert!(repacked(&history.run) == history.replayed());
}

/// The end of a file: where its head is, by place, length and seal, and the seal of that.
const SEAL: usize = 16;
const END: usize = 8 + 4 + SEAL + SEAL;

fn sealed(bytes: &[u8]) -> Vec<u8> {
    Hash::of(bytes).as_bytes()[..SEAL].to_vec()
}

#[test]
fn what_another_version_packed_is_not_read() {
    let with_version = |version: &str| {
        let mut file = kept(&mut eventful().run, None);
        let place = file.bytes.len() - END;
        let number = |at: usize, len: usize| {
            file.bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let (at, len) = (number(place, 8), number(place + 8, 4));
        // The version comes first, after its length.
        assert_eq!(&file.bytes[at + 1..][..VERSION.len()], VERSION.as_bytes());
        file.bytes[at + 1..][..VERSION.len()].copy_from_slice(version.as_bytes());
        let seal = sealed(&file.bytes[at..at + len]);
        file.bytes[place + 12..][..SEAL].copy_from_slice(&seal);
        let seal = sealed(&file.bytes[place..place + END - SEAL]);
        file.bytes[place + END - SEAL..].copy_from_slice(&seal);
        Run::unpack(Arc::new(file), Arc::new(Log(eventful())))
    };
    assert!(with_version(VERSION).is_some());
    assert!(with_version(&VERSION.replace("fold", "told")).is_none());
    let hash = Hash::of(b"the plan");
    let file = PlanFile::new(b"[plan]", hash).pack();
    let read =
        |bytes: &[u8]| PlanFile::unpack(bytes).and_then(|file| file.plan_in(Hash::of(b"[plan]")));
    assert_eq!(read(file.bytes()), Some(hash));
    let mut other = file.bytes().to_vec();
    other[1] ^= 1;
    assert_eq!(read(&other), None);
}

/// Who folds again.
struct Log(History);

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

impl Again for Log {
    fn fold(&self, at: Cursor) -> Run {
        assert_eq!(at, self.0.run.cursor);
        self.0.replayed()
    }
}

#[test]
fn a_damaged_file_is_no_file_or_the_log_tells_what_it_lost() {
    let history = eventful();
    let whole = kept(&mut history.run.clone(), None);
    let expected = history.replayed();
    let log: Arc<Log> = Arc::new(Log(history));
    let (mut lost, mut mended) = (0, 0);
    let mut check = |file: Paper, what: String| match Run::unpack(Arc::new(file), log.clone()) {
        None => lost += 1,
        Some(run) => {
            mended += 1;
            assert!(run == expected, "{what}");
        }
    };
    for at in 0..whole.bytes.len() {
        let mut file = whole.clone();
        file.bytes[at] ^= 1 << (at % 8);
        check(file, format!("byte {at} was flipped"));
        let mut file = whole.clone();
        file.bytes.truncate(at);
        check(file, format!("cut off at {at}"));
        let mut file = whole.clone();
        file.bytes[..at].fill(0);
        check(file, format!("lost up to {at}"));
    }
    assert!(lost > 1_000 && mended > 1_000, "{lost} and {mended}");
}

#[test]
fn a_plan_file_is_known_by_its_bytes() {
    let hash = Hash::of(b"the plan");
    let file = PlanFile::new(b"one", hash);
    let plan_in = |bytes| file.plan_in(Hash::of(bytes));
    assert_eq!((plan_in(b"one"), plan_in(b"two")), (Some(hash), None));
}

#[test]
fn keeping_a_run_again_costs_what_changed() {
    let rows: Vec<String> = (0..10_000).map(|n| format!("s{n} agent")).collect();
    let mut history = History::open(plan(&rows.join("\n")));
    let mut run = history.run.clone();
    let first = kept(&mut run, None);
    assert!(first.bytes.len() > 500_000, "all steps are in it: {}", first.bytes.len());
    let before = history.records.len();
    history.play("claim s7 from x, finish s7");
    history.records[before..].iter().for_each(|record| drop(run.apply(record).unwrap()));
    let second = kept(&mut run, Some(&first));
    let grown = second.bytes.len() - first.bytes.len();
    assert!(grown < 20_000, "{grown}");
    assert!(loaded(&second) == history.run);
    assert!(loaded(&first) != history.run, "whoever has the old head finds the old run");
}

#[test]
fn a_file_full_of_old_pages_is_replaced() {
    let mut history = History::open(plan("a agent\nb agent"));
    let mut run = history.run.clone();
    let mut file = kept(&mut run, None);
    let mut sizes = vec![file.bytes.len()];
    while sizes.last() >= sizes.iter().rev().nth(1) || sizes.len() == 1 {
        let before = history.records.len();
        history.play("claim a from x, release a");
        history.records[before..].iter().for_each(|record| drop(run.apply(record).unwrap()));
        file = kept(&mut run, Some(&file));
        assert!(loaded(&file) == history.run);
        sizes.push(file.bytes.len());
        assert!(sizes.len() < 2_000, "it grows and grows: {:?}", sizes.last());
    }
    assert!(sizes.len() > 10, "{sizes:?}");
}
