//! The run cache: which bytes are a run and which are not. That a packed run equals the fold is a property of every
//! random history (`properties`).

use piton_core::cache::{CachedRun, PlanFile, VERSION, is_due, pack, unpack};
use piton_core::ids::{Hash, Position};

use crate::history::{History, plan};

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
         claim c from x, output c note [1], await c e:note, substep c one, check c 1, defer c 2, gap c more, stop c, release c,
         claim e from y, claim e from z force, interrupt e agent,
         claim b, stop run, bury b none, resume, claim c from x,
         intend-merge, merge, intend-merge",
    );
    history
}

/// Change the number in `cache::VERSION` together with this: what was packed before must not be read.
#[test]
fn what_is_packed_changes_with_its_version_only() {
    let shape = format!("{VERSION}: {}", Hash::of(&pack(None, &eventful().run)).short());
    insta::assert_snapshot!(shape, @"0.1.0 fold 10: cf1717f0c15a");
}

#[test]
fn a_cached_run_is_the_folded_one() {
    let history = eventful();
    let plan_file = Some(PlanFile::new(b"one", Hash::of(b"the plan")));
    let packed = pack(plan_file.as_ref(), &history.run);
    assert!(unpack(&packed) == Some(CachedRun { plan_file, run: history.replayed() }));
}

#[test]
fn what_another_version_packed_is_not_read() {
    let with_version = |version: &str| {
        let mut packed = pack(None, &eventful().run);
        // After the checksum and its length.
        let at = 33;
        assert_eq!(&packed[at..][..VERSION.len()], VERSION.as_bytes());
        packed[at..][..VERSION.len()].copy_from_slice(version.as_bytes());
        let checksum = Hash::of(&packed[32..]);
        packed[..32].copy_from_slice(checksum.as_bytes());
        unpack(&packed)
    };
    assert!(with_version(VERSION).is_some());
    assert!(with_version(&VERSION.replace("fold", "told")).is_none());
}

#[test]
fn damaged_bytes_are_no_run() {
    let whole = pack(None, &eventful().run);
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(unpack(&flipped).is_none(), "byte {at} was flipped");
        assert!(unpack(&whole[..at]).is_none(), "cut off at {at}");
    }
}

#[test]
fn one_append_in_64_records_is_due() {
    let due = |before, after| is_due(Position(before), Position(after));
    assert!(!due(1, 2) && !due(1, 63) && !due(64, 127));
    assert!(due(63, 64) && due(60, 70) && due(64, 128));
}

#[test]
fn a_plan_file_is_known_by_its_bytes() {
    let hash = Hash::of(b"the plan");
    let file = PlanFile::new(b"one", hash);
    let plan_in = |bytes| file.plan_in(Hash::of(bytes));
    assert_eq!((plan_in(b"one"), plan_in(b"two")), (Some(hash), None));
}
