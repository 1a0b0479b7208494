//! Packed runs: who may read them, and how small they are. That they equal the fold is a property of
//! every random history (`properties`).

use piton_core::cache::{PlanFile, VERSION};
use piton_core::graph::Graph;
use piton_core::ids::Hash;
use piton_core::run::PackedRun;

use crate::history::{History, plan, repacked};

/// A bit of everything that a run keeps.
fn eventful() -> History {
    let mut history = History::open(plan(
        "a agent retries=1 in=g locks=l
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
         claim b, stop run, bury b none, resume, claim c from x",
    );
    history
}

/// Change the number in `cache::VERSION` together with this: what was packed before must not be read.
#[test]
fn what_is_packed_changes_with_its_version_only() {
    let run = eventful().run;
    let bytes = [run.pack().bytes(), run.graph().pack().bytes()].concat();
    let shape = format!("{VERSION}: {}", Hash::of(&bytes).short());
    insta::assert_snapshot!(shape, @"0.1.0 fold 9: 850a90fe5cb4");
}

#[test]
fn a_loaded_run_is_the_folded_one() {
    let history = eventful();
    assert!(repacked(&history.run) == history.replayed());
}

#[test]
fn what_another_version_packed_is_not_read() {
    let run = eventful().run;
    let other = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        // The version comes first, after its length.
        bytes[1] ^= 1;
        bytes
    };
    assert!(PackedRun::read(other(run.pack().bytes())).is_none());
    let (graph, hash) = (run.graph().pack(), run.plan().hash());
    assert!(Graph::unpack(graph.bytes().to_vec(), hash).is_some());
    assert!(Graph::unpack(other(graph.bytes()), hash).is_none());
    let file = PlanFile::new(b"[plan]", hash).pack();
    let read = |bytes: &[u8]| PlanFile::unpack(bytes).and_then(|file| file.plan_in(b"[plan]"));
    assert_eq!(read(file.bytes()), Some(hash));
    assert_eq!(read(&other(file.bytes())), None);
}

#[test]
fn a_packed_run_is_read_over_its_own_plan_only() {
    let packed = PackedRun::read(eventful().run.pack().bytes().to_vec()).unwrap();
    let other = Graph::new(plan("a agent\nb agent").into());
    assert!(packed.over(other).is_none());
}

#[test]
fn a_plan_file_is_known_by_its_bytes() {
    let hash = Hash::of(b"the plan");
    let file = PlanFile::new(b"one", hash);
    assert_eq!((file.plan_in(b"one"), file.plan_in(b"two")), (Some(hash), None));
}

#[test]
fn a_step_that_nothing_happened_to_takes_no_more_than_its_place() {
    let rows: Vec<String> = (0..10_000).map(|n| format!("s{n} agent")).collect();
    let mut history = History::open(plan(&rows.join("\n")));
    let before = history.run.pack().bytes().len();
    assert!(before < 50_000, "{before}");
    history.play("claim s7 from x, finish s7");
    let grown = history.run.pack().bytes().len() - before;
    assert!(grown < 200, "{grown}");
}
