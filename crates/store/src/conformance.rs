//! What every store is held to. `piton_store::conformance!(fixture)` makes a module of tests, one for
//! each case listed at [`cases`]; the fixture is an expression that gives a [`Fixture`]: a function
//! that opens one more handle on the same, at first empty, content.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use piton_core::decided::{Decided, KeyChange, Lease};
use piton_core::ids::{Fence, Hash, Position, RunId};
use piton_core::record::{Cursor, Record};
use piton_core::time::Moment;
use uuid::Uuid;

use crate::{Created, Forgetting, NewRun, Renewal, RunKey, RunRow, Runs, Store, StoreError};

/// Opens one more handle on the same content.
pub type Fixture<'a> = &'a (dyn Fn() -> Box<dyn Store> + Sync);

/// Makes the suite's macro from the list of cases. A case that is not listed is dead code, and the
/// build says so.
macro_rules! cases {
    ($dollar:tt $($case:ident,)*) => {
        $(
            #[doc(hidden)]
            pub fn $case(fixture: Fixture<'_>) {
                suite::$case(fixture);
            }
        )*

        /// Holds a store to the contract: `conformance!(fixture expression)`.
        #[macro_export]
        macro_rules! conformance {
            ($dollar fixture:expr) => {
                mod conformance {
                    use super::*;
                    $(
                        #[test]
                        fn $case() {
                            let fixture = $dollar fixture;
                            $dollar crate::conformance::$case(&fixture);
                        }
                    )*
                }
            };
        }
    };
}

cases! { $
    a_new_run_is_there_with_its_records,
    one_active_run_per_key,
    a_fresh_start_takes_the_key,
    replacing_a_run_that_lost_the_key_takes_nothing,
    a_freed_key_can_be_taken,
    a_freed_key_can_be_taken_back_while_nobody_has_it,
    a_run_is_created_once,
    listing_is_oldest_first_and_filtered,
    a_writer_sees_the_tail_and_appends_after_it,
    deciding_nothing_appends_nothing,
    a_batch_is_appended_whole,
    the_second_writer_sees_the_first_ones_records,
    writers_never_append_on_a_stale_tail,
    handles_race_for_a_key_and_one_gets_it,
    a_panicking_decision_changes_nothing,
    a_lease_is_set_and_replaced,
    a_lease_that_is_over_is_removed,
    a_renewal_needs_the_fence_and_a_later_deadline,
    leases_belong_to_their_run,
    texts_are_kept_once_under_their_hash,
    a_missing_text_is_an_error,
    runs_are_found_by_name,
    a_run_cache_is_replaced_whole_and_belongs_to_its_run,
    a_forgotten_run_is_gone_and_no_other,
    a_run_that_has_grown_is_not_forgotten,
    waiting_ends_when_the_log_grows,
    waiting_ends_when_the_time_is_over,
    an_unknown_run_is_an_error,
    a_cursor_that_is_not_in_the_chain_is_an_error,
    bodies_of_any_size_come_back,
    the_clock_goes_forward,
}

/// A batch with these bodies and nothing else.
pub fn bodies(bodies: &[&[u8]]) -> Decided {
    let bodies = bodies.iter().map(|body| body.to_vec()).collect();
    Decided::raw(bodies, Vec::new(), Vec::new(), KeyChange::Kept)
}

/// A run to be created, by a small number.
pub fn new_run(number: u128, key: &str) -> NewRun {
    let (run, key) = (run_id(number), RunKey(key.to_owned()));
    NewRun { run, name: format!("run-{number}"), key, replaces: None }
}

pub fn run_id(number: u128) -> RunId {
    RunId(Uuid::from_u128(number))
}

mod suite {
    use super::*;

    fn create(store: &dyn Store, new: &NewRun, first: &[&[u8]]) -> Vec<Record> {
        match store.create_run(new, &bodies(first)) {
            Ok(Created::New(records)) => records,
            other => panic!("the run was not created: {other:?}"),
        }
    }

    fn append(store: &dyn Store, run: RunId, after: Cursor, batch: &Decided) -> Vec<Record> {
        store
            .transact(run, after, &mut |_| Some(batch.clone()))
            .expect("appending to a known run after a good cursor")
    }

    fn head(records: &[Record]) -> Cursor {
        records.last().map_or(Cursor::START, Record::cursor)
    }

    fn texts_of(records: &[Record]) -> Vec<&[u8]> {
        records.iter().map(|record| record.body.as_slice()).collect()
    }

    fn all(store: &dyn Store, run: RunId) -> Vec<Record> {
        store.read(run, Cursor::START).expect("reading a known run from its start")
    }

    fn runs(store: &dyn Store, filter: &Runs) -> Vec<RunRow> {
        store.runs(filter).expect("listing runs")
    }

    fn ids(rows: &[RunRow]) -> Vec<RunId> {
        rows.iter().map(|row| row.run).collect()
    }

    fn holding(store: &dyn Store, key: &str) -> Vec<RunId> {
        ids(&runs(store, &Runs::HoldingKey(RunKey(key.to_owned()))))
    }

    fn lease(store: &dyn Store, key: &str, fence: u64, seconds: u64) -> Lease {
        let until = now(store).after(Duration::from_secs(seconds));
        Lease { key: key.to_owned(), fence: Fence(fence), until }
    }

    fn now(store: &dyn Store) -> Moment {
        store.now().expect("a store has a clock")
    }

    fn leasing(leases: &[Lease]) -> Decided {
        Decided::raw(vec![b"claimed".to_vec()], leases.to_vec(), Vec::new(), KeyChange::Kept)
    }

    pub(super) fn a_new_run_is_there_with_its_records(fixture: Fixture<'_>) {
        let store = fixture();
        assert_eq!(runs(&*store, &Runs::All), [], "a new store is empty");
        let records = create(&*store, &new_run(1, "k"), &[b"one", b"two"]);
        assert_eq!(texts_of(&records), [b"one", b"two"]);
        let other = fixture();
        assert_eq!(other.id(), store.id(), "handles on one content share its id");
        assert_eq!(all(&*other, run_id(1)), records);
        let rows = runs(&*other, &Runs::All);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].run, rows[0].active, rows[0].head), (run_id(1), true, head(&records)));
        assert_eq!(rows[0].key, RunKey("k".to_owned()));
        let mut previous = Cursor::START;
        for record in &records {
            assert!(record.follows(run_id(1), previous));
            previous = record.cursor();
        }
    }

    pub(super) fn one_active_run_per_key(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[b"a"]);
        let second = store.create_run(&new_run(2, "k"), &bodies(&[b"b"])).expect("asking is fine");
        assert_eq!(second, Created::KeyHeldBy(run_id(1)));
        assert_eq!(ids(&runs(&*store, &Runs::All)), [run_id(1)], "nothing was written");
        assert!(matches!(store.read(run_id(2), Cursor::START), Err(StoreError::UnknownRun { .. })));
        create(&*store, &new_run(3, "other"), &[b"c"]);
    }

    pub(super) fn a_fresh_start_takes_the_key(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[b"a"]);
        let fresh = NewRun { replaces: Some(run_id(1)), ..new_run(2, "k") };
        create(&*store, &fresh, &[b"b"]);
        assert_eq!(holding(&*store, "k"), [run_id(2)]);
        assert_eq!(ids(&runs(&*store, &Runs::Active)), [run_id(2)]);
        assert_eq!(texts_of(&all(&*store, run_id(1))), [b"a"], "the old log stays");
    }

    pub(super) fn replacing_a_run_that_lost_the_key_takes_nothing(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[b"a"]);
        create(&*store, &NewRun { replaces: Some(run_id(1)), ..new_run(2, "k") }, &[b"b"]);
        let late = NewRun { replaces: Some(run_id(1)), ..new_run(3, "k") };
        let answer = store.create_run(&late, &bodies(&[b"c"])).expect("asking is fine");
        assert_eq!(answer, Created::KeyHeldBy(run_id(2)));
        create(&*store, &new_run(4, "other"), &[b"d"]);
        let elsewhere = NewRun { replaces: Some(run_id(4)), ..new_run(5, "third") };
        create(&*store, &elsewhere, &[b"e"]);
        assert_eq!(
            holding(&*store, "other"),
            [run_id(4)],
            "only the key of the new run changes hands"
        );
    }

    pub(super) fn a_freed_key_can_be_taken(fixture: Fixture<'_>) {
        let store = fixture();
        let first = create(&*store, &new_run(1, "k"), &[b"a"]);
        let end = Decided::raw(vec![b"end".to_vec()], Vec::new(), Vec::new(), KeyChange::Freed);
        append(&*store, run_id(1), head(&first), &end);
        assert_eq!(holding(&*store, "k"), []);
        create(&*store, &new_run(2, "k"), &[b"b"]);
        let tail = append(&*store, run_id(1), Cursor::START, &bodies(&[b"late"]));
        assert_eq!(texts_of(&tail), [&b"a"[..], b"end", b"late"]);
        assert_eq!(holding(&*store, "k"), [run_id(2)], "a later batch does not take it back");
    }

    pub(super) fn a_freed_key_can_be_taken_back_while_nobody_has_it(fixture: Fixture<'_>) {
        let store = fixture();
        let first = create(&*store, &new_run(1, "k"), &[b"a"]);
        let batch = |body: &[u8], key: KeyChange| {
            Decided::raw(vec![body.to_vec()], Vec::new(), Vec::new(), key)
        };
        append(&*store, run_id(1), head(&first), &batch(b"end", KeyChange::Freed));
        append(&*store, run_id(1), head(&first), &batch(b"again", KeyChange::Retaken));
        assert_eq!(holding(&*store, "k"), [run_id(1)]);
        append(&*store, run_id(1), head(&first), &batch(b"end", KeyChange::Freed));
        create(&*store, &new_run(2, "k"), &[b"b"]);
        let late = batch(b"late", KeyChange::Retaken);
        let refused = store.transact(run_id(1), head(&first), &mut |_| Some(late.clone()));
        assert!(matches!(refused, Err(StoreError::KeyHeld { run }) if run == run_id(2)));
        assert_eq!(holding(&*store, "k"), [run_id(2)]);
        let kept = [&b"a"[..], b"end", b"again", b"end"];
        assert_eq!(texts_of(&all(&*store, run_id(1))), kept, "what was refused is not kept");
    }

    pub(super) fn a_run_is_created_once(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[b"a"]);
        let again = store.create_run(&new_run(1, "other"), &bodies(&[b"b"]));
        assert!(matches!(again, Err(StoreError::RunExists { run }) if run == run_id(1)));
        assert_eq!(texts_of(&all(&*store, run_id(1))), [b"a"]);
    }

    pub(super) fn listing_is_oldest_first_and_filtered(fixture: Fixture<'_>) {
        let store = fixture();
        // Ids that do not sort by creation.
        for (number, key) in [(9, "a"), (3, "b"), (7, "c"), (1, "d")] {
            create(&*store, &new_run(number, key), &[b"x"]);
        }
        let end = Decided::raw(Vec::new(), Vec::new(), Vec::new(), KeyChange::Freed);
        append(&*store, run_id(3), Cursor::START, &end);
        assert_eq!(ids(&runs(&*store, &Runs::All)), [9, 3, 7, 1].map(run_id));
        assert_eq!(ids(&runs(&*store, &Runs::Active)), [9, 7, 1].map(run_id));
        assert_eq!(holding(&*store, "c"), [run_id(7)]);
        assert_eq!(holding(&*store, "b"), []);
        assert_eq!(holding(&*store, "nobody"), []);
    }

    pub(super) fn a_writer_sees_the_tail_and_appends_after_it(fixture: Fixture<'_>) {
        let store = fixture();
        let first = create(&*store, &new_run(1, "k"), &[b"a", b"b"]);
        let mut seen = Vec::new();
        let tail = store
            .transact(run_id(1), first[0].cursor(), &mut |tail| {
                seen = tail.records.to_vec();
                Some(bodies(&[b"c", b"d"]))
            })
            .expect("appending");
        assert_eq!(seen, first[1..]);
        assert_eq!(texts_of(&tail), [b"b", b"c", b"d"]);
        assert_eq!(store.read(run_id(1), first[0].cursor()).expect("reading"), tail);
        assert_eq!(store.read(run_id(1), head(&tail)).expect("reading at the head"), []);
        assert_eq!(runs(&*store, &Runs::All)[0].head, head(&tail));
    }

    pub(super) fn deciding_nothing_appends_nothing(fixture: Fixture<'_>) {
        let store = fixture();
        let first = create(&*store, &new_run(1, "k"), &[b"a"]);
        let tail = store.transact(run_id(1), Cursor::START, &mut |_| None).expect("looking");
        assert_eq!(tail, first);
        assert_eq!(all(&*store, run_id(1)), first);
    }

    pub(super) fn a_batch_is_appended_whole(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[]);
        let batch = Decided::raw(
            vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()],
            vec![lease(&*store, "step", 1, 60)],
            vec![b"long text".to_vec()],
            KeyChange::Freed,
        );
        append(&*store, run_id(1), Cursor::START, &batch);
        let other = fixture();
        assert_eq!(texts_of(&all(&*other, run_id(1))), [b"a", b"b", b"c"]);
        assert_eq!(other.leases(run_id(1)).expect("leases"), batch.leases());
        assert_eq!(other.text(Hash::of(b"long text")).expect("text"), b"long text");
        assert_eq!(holding(&*other, "k"), []);
    }

    pub(super) fn the_second_writer_sees_the_first_ones_records(fixture: Fixture<'_>) {
        let (one, two) = (fixture(), fixture());
        let first = create(&*one, &new_run(1, "k"), &[b"a"]);
        append(&*one, run_id(1), head(&first), &bodies(&[b"one"]));
        let tail = append(&*two, run_id(1), head(&first), &bodies(&[b"two"]));
        assert_eq!(texts_of(&tail), [b"one", b"two"]);
        assert_eq!(all(&*one, run_id(1)).len(), 3);
    }

    pub(super) fn writers_never_append_on_a_stale_tail(fixture: Fixture<'_>) {
        const WRITERS: usize = 4;
        const EACH: usize = 25;
        let shared = fixture();
        create(&*shared, &new_run(1, "k"), &[]);
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                // Half of them share a handle, half have their own.
                let own = (writer % 2 == 0).then(fixture);
                let shared = &shared;
                scope.spawn(move || {
                    let store = own.as_ref().unwrap_or(shared);
                    let mut cursor = Cursor::START;
                    for _ in 0..EACH {
                        let tail = store
                            .transact(run_id(1), cursor, &mut |tail| {
                                let length = cursor.position.0 as usize + tail.records.len();
                                Some(bodies(&[length.to_string().as_bytes()]))
                            })
                            .expect("appending under contention");
                        cursor = head(&tail);
                    }
                });
            }
        });
        let log = all(&*shared, run_id(1));
        let expected: Vec<String> = (0..WRITERS * EACH).map(|n| n.to_string()).collect();
        assert_eq!(texts_of(&log), expected.iter().map(|text| text.as_bytes()).collect::<Vec<_>>());
    }

    pub(super) fn handles_race_for_a_key_and_one_gets_it(fixture: Fixture<'_>) {
        let winners: Vec<RunId> = thread::scope(|scope| {
            let racers: Vec<_> = (1..=4)
                .map(|number| {
                    let store = fixture();
                    scope.spawn(move || store.create_run(&new_run(number, "k"), &bodies(&[b"x"])))
                })
                .collect();
            racers
                .into_iter()
                .filter_map(|racer| match racer.join().expect("a racer").expect("racing is fine") {
                    Created::New(records) => {
                        assert_eq!(records.len(), 1);
                        None
                    }
                    Created::KeyHeldBy(run) => Some(run),
                })
                .collect()
        });
        let holder = holding(&*fixture(), "k");
        assert_eq!(winners.len(), 3, "all but one were told who has it");
        assert_eq!(holder, [winners[0]]);
        assert_eq!(winners.iter().collect::<BTreeSet<_>>().len(), 1);
    }

    pub(super) fn a_panicking_decision_changes_nothing(fixture: Fixture<'_>) {
        let store = fixture();
        let first = create(&*store, &new_run(1, "k"), &[b"a"]);
        let panicked = thread::scope(|scope| {
            let doomed = scope.spawn(|| {
                // Silent: `resume_unwind` does not print.
                store.transact(run_id(1), Cursor::START, &mut |_| {
                    std::panic::resume_unwind(Box::new("decision"))
                })
            });
            doomed.join().is_err()
        });
        assert!(panicked);
        assert_eq!(all(&*store, run_id(1)), first);
        assert_eq!(append(&*store, run_id(1), head(&first), &bodies(&[b"b"])).len(), 1);
    }

    pub(super) fn a_lease_is_set_and_replaced(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[]);
        let (b, a) = (lease(&*store, "b", 1, 60), lease(&*store, "a", 2, 60));
        append(&*store, run_id(1), Cursor::START, &leasing(&[b.clone(), a.clone()]));
        assert_eq!(store.leases(run_id(1)).expect("leases"), [a.clone(), b], "ordered by key");
        let shorter = lease(&*store, "b", 3, 30);
        append(&*store, run_id(1), Cursor::START, &leasing(std::slice::from_ref(&shorter)));
        assert_eq!(store.leases(run_id(1)).expect("leases"), [a.clone(), shorter.clone()]);
        let mut seen = Vec::new();
        store
            .transact(run_id(1), Cursor::START, &mut |tail| {
                seen = tail.leases.to_vec();
                assert!(!tail.leases[0].until.is_over(tail.now));
                None
            })
            .expect("looking");
        assert_eq!(seen, [a, shorter], "a writer sees them too");
    }

    pub(super) fn a_lease_that_is_over_is_removed(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[]);
        let (a, b) = (lease(&*store, "a", 1, 60), lease(&*store, "b", 2, 60));
        append(&*store, run_id(1), Cursor::START, &leasing(&[a, b.clone()]));
        let over = lease(&*store, "a", 1, 0);
        let never = lease(&*store, "c", 3, 0);
        append(&*store, run_id(1), Cursor::START, &leasing(&[over, never]));
        assert_eq!(store.leases(run_id(1)).expect("leases"), [b]);
    }

    pub(super) fn a_renewal_needs_the_fence_and_a_later_deadline(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[]);
        let held = lease(&*store, "a", 5, 60);
        append(&*store, run_id(1), Cursor::START, &leasing(std::slice::from_ref(&held)));
        let later = held.until.after(Duration::from_secs(10));
        let renew = |key: &str, fence: u64, until: &Moment| {
            store.renew(run_id(1), key, Fence(fence), until).expect("renewing")
        };
        assert_eq!(renew("a", 4, &later), Renewal::NotRenewed, "stale fence");
        assert_eq!(renew("a", 6, &later), Renewal::NotRenewed, "fence of the future");
        assert_eq!(renew("b", 5, &later), Renewal::NotRenewed, "no such row");
        assert_eq!(renew("a", 5, &held.until), Renewal::NotRenewed, "not later");
        assert_eq!(store.leases(run_id(1)).expect("leases"), [held]);
        assert_eq!(renew("a", 5, &later), Renewal::Renewed);
        assert_eq!(fixture().leases(run_id(1)).expect("leases")[0].until, later);
        assert_eq!(all(&*store, run_id(1)).len(), 1, "renewals do not grow the log");
    }

    pub(super) fn leases_belong_to_their_run(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[]);
        create(&*store, &new_run(2, "l"), &[]);
        let held = lease(&*store, "a", 1, 60);
        append(&*store, run_id(1), Cursor::START, &leasing(std::slice::from_ref(&held)));
        assert_eq!(store.leases(run_id(2)).expect("leases"), []);
        let later = held.until.after(Duration::from_secs(1));
        let other = store.renew(run_id(2), "a", Fence(1), &later).expect("renewing");
        assert_eq!(other, Renewal::NotRenewed);
    }

    pub(super) fn texts_are_kept_once_under_their_hash(fixture: Fixture<'_>) {
        let store = fixture();
        let text = vec![7; 300_000];
        let batch = Decided::raw(Vec::new(), Vec::new(), vec![text.clone()], KeyChange::Kept);
        store.create_run(&new_run(1, "k"), &batch).expect("creating with a text");
        append(&*store, run_id(1), Cursor::START, &batch);
        assert_eq!(fixture().text(Hash::of(&text)).expect("text"), text);
    }

    pub(super) fn runs_are_found_by_name(fixture: Fixture<'_>) {
        let store = fixture();
        let named = |name: &str| ids(&runs(&*store, &Runs::Named(name.to_owned())));
        assert_eq!(named("run-1"), []);
        create(&*store, &new_run(1, "k"), &[b"a"]);
        create(&*store, &new_run(2, "l"), &[b"b"]);
        let same = NewRun { name: "run-1".to_owned(), ..new_run(3, "m") };
        create(&*store, &same, &[b"c"]);
        assert_eq!(named("run-1"), [run_id(1), run_id(3)], "oldest first");
        assert_eq!((named("run-2"), named("run")), (vec![run_id(2)], vec![]));
        let freed = Decided::raw(vec![b"end".to_vec()], vec![], vec![], KeyChange::Freed);
        append(&*store, run_id(2), Cursor::START, &freed);
        assert_eq!(named("run-2"), [run_id(2)], "also when it has lost its key");
        let names = |row: RunRow| row.name;
        let all: Vec<_> = runs(&*store, &Runs::All).into_iter().map(names).collect();
        assert_eq!(all, ["run-1", "run-2", "run-1"]);
    }

    pub(super) fn a_run_cache_is_replaced_whole_and_belongs_to_its_run(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[b"a"]);
        create(&*store, &new_run(2, "l"), &[b"b"]);
        assert_eq!(store.cached(run_id(1)), None);
        let large: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
        for bytes in [&b"first"[..], &large, b"second"] {
            store.cache(run_id(1), bytes);
            assert_eq!(fixture().cached(run_id(1)).as_deref(), Some(bytes));
        }
        assert_eq!(store.cached(run_id(2)), None);
    }

    pub(super) fn a_forgotten_run_is_gone_and_no_other(fixture: Fixture<'_>) {
        let store = fixture();
        for (number, key) in [(1, "k"), (2, "l"), (3, "m")] {
            create(&*store, &new_run(number, key), &[b"a", b"b"]);
            let after = head(&all(&*store, run_id(number)));
            let until = lease(&*store, "a", 1, 3_600);
            append(&*store, run_id(number), after, &leasing(&[until]));
            store.cache(run_id(number), b"cached");
        }
        let before = [1, 3].map(|number| all(&*store, run_id(number)));
        let gone = run_id(2);
        let end = head(&all(&*store, gone));
        assert_eq!(store.forget(gone, end).expect("a known run"), Forgetting::Forgotten);
        for store in [store, fixture()] {
            let unknown = [
                store.read(gone, Cursor::START).err(),
                store.transact(gone, end, &mut |_| panic!("nothing to decide on")).err(),
                store.leases(gone).err(),
                store.forget(gone, end).err(),
                store.forget(run_id(9), end).err(),
            ];
            for answer in unknown {
                assert!(matches!(answer, Some(StoreError::UnknownRun { .. })), "{answer:?}");
            }
            assert_eq!(store.cached(gone), None);
            assert_eq!(ids(&runs(&*store, &Runs::All)), [run_id(1), run_id(3)]);
            assert!(runs(&*store, &Runs::Named(new_run(2, "l").name)).is_empty());
            assert_eq!([1, 3].map(|number| all(&*store, run_id(number))), before);
            assert_eq!(store.leases(run_id(3)).expect("leases").len(), 1);
            assert_eq!(store.cached(run_id(3)).as_deref(), Some(&b"cached"[..]));
        }
        let store = fixture();
        let again = store.create_run(&new_run(2, "l"), &bodies(&[b"a"])).err();
        assert!(matches!(again, Some(StoreError::RunExists { run }) if run == gone), "{again:?}");
        create(&*store, &new_run(4, "l"), &[b"the key is free"]);
        assert_eq!(holding(&*store, "l"), [run_id(4)]);
        assert_eq!(ids(&runs(&*store, &Runs::All)), [run_id(1), run_id(3), run_id(4)]);
    }

    pub(super) fn a_run_that_has_grown_is_not_forgotten(fixture: Fixture<'_>) {
        let store = fixture();
        let seen = head(&create(&*store, &new_run(1, "k"), &[b"a"]));
        append(&*fixture(), run_id(1), seen, &bodies(&[b"b"]));
        assert_eq!(store.forget(run_id(1), seen).expect("a known run"), Forgetting::NotForgotten);
        let records = all(&*store, run_id(1));
        assert_eq!(texts_of(&records), [&b"a"[..], b"b"]);
        assert_eq!(store.forget(run_id(1), head(&records)).expect("known"), Forgetting::Forgotten);
    }

    pub(super) fn a_missing_text_is_an_error(fixture: Fixture<'_>) {
        let hash = Hash::of(b"nobody kept this");
        let missing = fixture().text(hash);
        assert!(matches!(missing, Err(StoreError::MissingText { hash: named }) if named == hash));
    }

    pub(super) fn waiting_ends_when_the_log_grows(fixture: Fixture<'_>) {
        let (waiting, writing) = (fixture(), fixture());
        create(&*writing, &new_run(1, "k"), &[b"a"]);
        let long = Duration::from_secs(60);
        assert!(waiting.changed(run_id(1), Position::START, long).expect("grown already"));
        for writer in [&writing, &waiting] {
            let from = runs(&**writer, &Runs::All)[0].head;
            let begun = Instant::now();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| waiting.changed(run_id(1), from.position, long));
                thread::sleep(Duration::from_millis(60));
                append(&**writer, run_id(1), from, &bodies(&[b"b"]));
                assert!(waiter.join().expect("a waiter").expect("waiting"));
            });
            assert!(begun.elapsed() < long / 2, "it was woken, it did not time out");
        }
    }

    pub(super) fn waiting_ends_when_the_time_is_over(fixture: Fixture<'_>) {
        let store = fixture();
        let records = create(&*store, &new_run(1, "k"), &[b"a"]);
        let begun = Instant::now();
        let short = Duration::from_millis(80);
        assert!(!store.changed(run_id(1), head(&records).position, short).expect("waiting"));
        assert!(begun.elapsed() >= short);
    }

    pub(super) fn an_unknown_run_is_an_error(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[b"a"]);
        let run = run_id(2);
        let until = now(&*store);
        let answers = [
            store.read(run, Cursor::START).err(),
            store.transact(run, Cursor::START, &mut |_| panic!("nothing to decide on")).err(),
            store.renew(run, "a", Fence(1), &until).err(),
            store.leases(run).err(),
            store.changed(run, Position::START, Duration::ZERO).err(),
        ];
        for answer in answers {
            assert!(matches!(answer, Some(StoreError::UnknownRun { run: named }) if named == run));
        }
    }

    pub(super) fn a_cursor_that_is_not_in_the_chain_is_an_error(fixture: Fixture<'_>) {
        let store = fixture();
        let records = create(&*store, &new_run(1, "k"), &[b"a", b"b", b"c"]);
        let strange = [
            Cursor { position: Position::START, hash: Hash::of(b"x") },
            Cursor { position: Position(1), hash: records[1].hash },
            Cursor { position: Position(2), hash: Hash::ZERO },
            Cursor { position: Position(3), hash: records[1].hash },
            Cursor { position: Position(4), hash: records[2].hash },
            Cursor { position: Position(u64::MAX), hash: Hash::ZERO },
        ];
        for cursor in strange {
            let read = store.read(run_id(1), cursor);
            let wrote = store.transact(run_id(1), cursor, &mut |_| panic!("nothing to decide on"));
            for answer in [read, wrote] {
                let named = matches!(
                    answer,
                    Err(StoreError::CursorNotInChain { run, position })
                        if run == run_id(1) && position == cursor.position
                );
                assert!(named, "{cursor:?} gave {answer:?}");
            }
        }
        assert_eq!(all(&*store, run_id(1)), records);
    }

    pub(super) fn bodies_of_any_size_come_back(fixture: Fixture<'_>) {
        let store = fixture();
        create(&*store, &new_run(1, "k"), &[]);
        let mut cursor = Cursor::START;
        let sizes = [0, 1, 500, 1_000, 4_000, 4_061, 4_062, 5_000, 70_000, 1_000_000];
        for size in sizes {
            let body: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
            let tail = append(&*store, run_id(1), cursor, &bodies(&[&body]));
            assert_eq!(texts_of(&tail), [body.as_slice()]);
            cursor = head(&tail);
        }
        let lengths: Vec<usize> =
            all(&*fixture(), run_id(1)).iter().map(|record| record.body.len()).collect();
        assert_eq!(lengths, sizes);
    }

    pub(super) fn the_clock_goes_forward(fixture: Fixture<'_>) {
        let store = fixture();
        let earlier = now(&*store);
        let deadline = earlier.after(Duration::from_secs(3_600));
        assert!(!deadline.is_over(&now(&*store)));
        assert!(earlier.is_over(&now(&*store)), "a deadline of now is over");
        let records = create(&*store, &new_run(1, "k"), &[b"a"]);
        assert!(records[0].at >= earlier.wall);
    }
}
