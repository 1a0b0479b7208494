//! Several writers, some of which are killed: what was acknowledged stays, once, in order.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use piton_core::record::Cursor;
use piton_store::conformance::{bodies, new_run, run_id};
use piton_store::sqlite::Access;
use piton_store::{Runs, Store, StoreError};
use tempfile::TempDir;

use crate::child::{Other, role, role_after, this_binary};
use crate::common::{Dice, append, open};

fn with_a_run() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), Access::Create).create_run(&new_run(1, "k"), &bodies(&[b"first"])).unwrap();
    dir
}

/// The bodies of the run, read by a fresh handle.
fn log(dir: &Path) -> Vec<String> {
    let records = open(dir, Access::Existing).read(run_id(1), Cursor::START).unwrap();
    records.into_iter().map(|record| String::from_utf8(record.body).unwrap()).collect()
}

fn kept(said: &[String]) -> Vec<String> {
    said.iter().filter_map(|line| Some(line.strip_prefix("kept ")?.to_owned())).collect()
}

#[test]
fn processes_append_and_checkpoint_at_once_and_lose_nothing() {
    let dir = with_a_run();
    let writers: Vec<Other> =
        (0..4).map(|_| Other::start(role(&this_binary(), "appends-fifty", dir.path()))).collect();
    let pids: Vec<u32> = writers.iter().map(Other::pid).collect();
    for writer in writers {
        let (said, status) = writer.release();
        assert_eq!(said, ["done"]);
        assert!(status.success());
    }
    let log = log(dir.path());
    assert_eq!(log.len(), 1 + 4 * 50);
    for pid in pids {
        let own: Vec<&String> =
            log.iter().filter(|body| body.starts_with(&format!("{pid}:"))).collect();
        let expected: Vec<String> = (0..50).map(|number| format!("{pid}:{number}")).collect();
        assert_eq!(own, expected.iter().collect::<Vec<_>>(), "each once, in its writer's order");
    }
}

#[test]
fn a_killed_writer_loses_nothing_it_acknowledged() {
    let dir = with_a_run();
    let mut dice = Dice::new(5);
    let mut acknowledged = BTreeSet::new();
    for round in 0..25 {
        let mut writer = Other::start(role(&this_binary(), "appends", dir.path()));
        let mut said = Vec::new();
        for _ in 0..=dice.below(12) {
            said.extend(writer.hear());
        }
        thread::sleep(Duration::from_micros(dice.below(1_500)));
        let (rest, status) = writer.kill();
        assert_eq!(status.signal(), Some(9), "round {round}: the kill hit a living writer");
        said.extend(rest);
        let kept = kept(&said);
        assert!(!kept.is_empty());
        acknowledged.extend(kept);
        let log = log(dir.path());
        let found: BTreeSet<String> = log.iter().cloned().collect();
        assert_eq!(found.len(), log.len(), "round {round}: nothing twice");
        let lost: Vec<&String> = acknowledged.difference(&found).collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?}");
        // At most one append per kill was made durable but not yet said.
        assert!(found.len() <= acknowledged.len() + 1 + round + 1);
    }
}

#[test]
fn a_store_killed_while_it_is_made_can_be_made_again() {
    let mut before_it_was_open = 0;
    for round in 0..30 {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("piton");
        let mut maker = Other::start(role(&this_binary(), "creates", &dir));
        assert_eq!(maker.hear().as_deref(), Some("begin"));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(round * 150) {
            std::hint::spin_loop();
        }
        let (said, status) = maker.kill();
        assert_eq!(status.signal(), Some(9));
        before_it_was_open += u32::from(said.is_empty());
        let store = open(&dir, Access::Create);
        let runs = store.runs(&Runs::All).unwrap();
        assert!(runs.len() <= 1);
        if said.iter().any(|line| line == "created") {
            assert_eq!(runs.len(), 1, "an acknowledged run is there");
        }
        if runs.is_empty() {
            store.create_run(&new_run(1, "k"), &bodies(&[b"first"])).unwrap();
        }
        assert!(!dir.join("store.db.new").exists(), "what the dead one left is gone");
    }
    assert!(before_it_was_open > 0, "no kill came early enough to prove anything");
}

#[test]
fn a_busy_store_names_who_holds_it() {
    let dir = with_a_run();
    let mut holder = Other::start(role(&this_binary(), "holds-lock", dir.path()));
    assert_eq!(holder.hear().as_deref(), Some("holding"));
    let patience = Duration::from_millis(300);
    let store = open(dir.path(), Access::Existing).with_patience(patience);
    let begun = Instant::now();
    let error =
        store.transact(run_id(1), Cursor::START, &mut |_| panic!("not our turn")).unwrap_err();
    assert!(begun.elapsed() >= patience);
    match &error {
        StoreError::Busy { holder: Some(pid), waited, .. } => {
            assert_eq!(*pid, holder.pid());
            assert!(*waited >= patience);
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains(&holder.pid().to_string()) && error.code() == "E047");
    assert_eq!(store.read(run_id(1), Cursor::START).unwrap().len(), 1, "readers do not wait");
    let (said, status) = holder.release();
    assert_eq!(said, ["done"]);
    assert!(status.success());
    // The wait that was given up must not keep the lock it gets now.
    let store = store.with_patience(Duration::from_secs(30));
    assert_eq!(append(&store, run_id(1), Cursor::START, b"mine").len(), 3);
    assert_eq!(
        append(&open(dir.path(), Access::Existing), run_id(1), Cursor::START, b"x").len(),
        4
    );
}

#[test]
fn a_dead_holder_holds_nothing() {
    let dir = with_a_run();
    let mut holder = Other::start(role(&this_binary(), "holds-lock", dir.path()));
    assert_eq!(holder.hear().as_deref(), Some("holding"));
    assert_eq!(holder.kill().1.signal(), Some(9));
    let store = open(dir.path(), Access::Existing).with_patience(Duration::from_secs(5));
    assert_eq!(append(&store, run_id(1), Cursor::START, b"mine").len(), 2, "and wrote nothing");
}

#[test]
fn a_full_disk_is_an_error_and_nothing_acknowledged_is_lost() {
    let dir = with_a_run();
    // Files may not grow beyond 128 KiB; without the trap the kernel would kill instead of refuse.
    let limits = "trap '' XFSZ; ulimit -f 256";
    let writer = Other::start(role_after(limits, "appends", dir.path()));
    let (said, status) = writer.release();
    assert!(status.success());
    let (last, rest) = said.split_last().unwrap();
    assert!(last.starts_with("error E047"), "the limit was met: {last}");
    let kept = kept(rest);
    assert!(kept.len() > 5, "it wrote until then");
    assert_eq!(log(dir.path())[1..], kept, "exactly what was acknowledged");
    append(&open(dir.path(), Access::Existing), run_id(1), Cursor::START, b"space again");
}

#[test]
fn closing_leaves_the_log_to_the_next_one() {
    let dir = with_a_run();
    let db = dir.path().join("store.db");
    let before = fs::read(&db).unwrap();
    let store = open(dir.path(), Access::Existing);
    append(&store, run_id(1), Cursor::START, b"more");
    store.tidy();
    drop(store);
    assert_eq!(fs::read(&db).unwrap(), before, "no checkpoint, neither small tidying nor closing");
    assert!(fs::metadata(dir.path().join("store.db-wal")).unwrap().len() > 8_000);
}

#[test]
fn tidying_keeps_the_log_small() {
    let dir = with_a_run();
    let store = open(dir.path(), Access::Existing);
    let before = fs::metadata(dir.path().join("store.db")).unwrap().len();
    let mut after = Cursor::START;
    for _ in 0..400 {
        after = append(&store, run_id(1), after, &[7; 300]).last().unwrap().cursor();
        store.tidy();
    }
    let log = fs::metadata(dir.path().join("store.db-wal")).unwrap().len();
    assert!(log < 700_000, "the log has {log} bytes after 400 appends");
    assert!(fs::metadata(dir.path().join("store.db")).unwrap().len() > before + 100_000);
    assert_eq!(open(dir.path(), Access::Look).read(run_id(1), Cursor::START).unwrap().len(), 401);
}

#[test]
fn processes_that_come_one_after_another_keep_the_log_small() {
    let dir = with_a_run();
    let wal = dir.path().join("store.db-wal");
    let mut longest = 0;
    for _ in 0..200 {
        let store = open(dir.path(), Access::Existing);
        append(&store, run_id(1), Cursor::START, &[7; 300]);
        store.tidy();
        // As the end of a process does, closing forgets what is known of the log.
        drop(store);
        longest = longest.max(fs::metadata(&wal).unwrap().len());
    }
    assert!(longest < 700_000, "the log had {longest} bytes");
    assert_eq!(open(dir.path(), Access::Look).read(run_id(1), Cursor::START).unwrap().len(), 201);
}

#[test]
fn a_log_that_nobody_tidies_is_bounded() {
    let dir = with_a_run();
    let store = open(dir.path(), Access::Existing);
    let mut after = Cursor::START;
    for _ in 0..1_300 {
        let batch = bodies(&[&[7; 4_000], &[8; 4_000]]);
        let tail = store.transact(run_id(1), after, &mut |_| Some(batch.clone())).unwrap();
        after = tail.last().unwrap().cursor();
    }
    let log = fs::metadata(dir.path().join("store.db-wal")).unwrap().len();
    assert!(log < 12_000_000, "the log has {log} bytes");
    assert_eq!(store.read(run_id(1), Cursor::START).unwrap().len(), 2_601);
}

#[test]
fn a_reboot_shows_in_the_clock() {
    let dir = with_a_run();
    let store = open(dir.path(), Access::Existing);
    let (one, two) = (store.now().unwrap().clock.unwrap(), store.now().unwrap().clock.unwrap());
    assert_eq!(one.boot, two.boot);
    assert!(two.ms >= one.ms);
    let mut rebooted = role(&this_binary(), "says-boot", dir.path());
    rebooted.env("PITON_BOOT_ID", "another boot");
    assert_eq!(Other::start(rebooted).release().0, ["\"another boot\""]);
}
