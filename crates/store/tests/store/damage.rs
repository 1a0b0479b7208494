//! Bytes that are not what they were. Each test applies one fault, shows that it was applied, and
//! expects the right data or an error with a name: never an empty or a wrong answer.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{Dice, RUNS, Truth, append, fill, fold_log_in, open, truth};
use piton_core::record::{Cursor, Record};
use piton_store::conformance::{bodies, new_run, run_id};
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{Created, Damage, Forgetting, Renewal, Runs, Store, StoreError};
use tempfile::TempDir;

const ACCESSES: [Access; 3] = [Access::Create, Access::Existing, Access::Look];

/// A filled store whose log is in its database file, and what is in it.
fn filled() -> (TempDir, Truth) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), Access::Create);
    fill(&store);
    let truth = truth(&store).unwrap();
    drop(store);
    fold_log_in(dir.path());
    (dir, truth)
}

fn damage_of(error: &StoreError) -> Option<&Damage> {
    match error {
        StoreError::Damaged { damage, .. } => Some(damage),
        _ => None,
    }
}

fn expect_damage(dir: &Path, expected: &Damage) {
    for access in ACCESSES {
        let error = SqliteStore::open(dir, access).expect_err("a damaged store was opened");
        assert_eq!(damage_of(&error), Some(expected), "{access:?}: {error}");
        assert_eq!(error.code(), "E046");
    }
}

#[test]
fn an_undamaged_copy_reads_the_same() {
    let (dir, truth) = filled();
    for access in [Access::Look, Access::Existing, Access::Create] {
        assert_eq!(super::common::truth(&open(dir.path(), access)).unwrap(), truth, "{access:?}");
    }
}

#[test]
fn an_empty_file_is_named() {
    let (dir, _) = filled();
    fs::write(dir.path().join("store.db"), b"").unwrap();
    expect_damage(dir.path(), &Damage::Empty);
    assert_eq!(fs::metadata(dir.path().join("store.db")).unwrap().len(), 0, "and left as it is");
}

#[test]
fn an_empty_file_with_a_full_log_is_named_and_keeps_its_log() {
    let dir = tempfile::tempdir().unwrap();
    fill(&open(dir.path(), Access::Create));
    let log = fs::read(dir.path().join("store.db-wal")).unwrap();
    assert!(log.len() > 100_000);
    fs::write(dir.path().join("store.db"), b"").unwrap();
    expect_damage(dir.path(), &Damage::Empty);
    assert_eq!(fs::read(dir.path().join("store.db-wal")).unwrap(), log);
}

#[test]
fn a_file_cut_at_any_length_is_named() {
    let (dir, _) = filled();
    let db = dir.path().join("store.db");
    let whole = fs::read(&db).unwrap();
    let mut dice = Dice::new(2);
    let mut lengths: Vec<usize> =
        (0..40).map(|_| 1 + dice.below(whole.len() as u64 - 1) as usize).collect();
    lengths.extend([1, 15, 16, 99, 100, 4_095, 4_096, 8_192, whole.len() - 4_096, whole.len() - 1]);
    for length in lengths {
        fs::write(&db, &whole[..length]).unwrap();
        expect_damage(dir.path(), &Damage::Truncated);
    }
}

#[test]
fn a_cut_file_with_a_live_log_is_named() {
    let (dir, _) = filled();
    let store = open(dir.path(), Access::Existing);
    append(&store, run_id(1), Cursor::START, b"after the checkpoint");
    let expected = truth(&store).unwrap();
    drop(store);
    let db = dir.path().join("store.db");
    let whole = fs::read(&db).unwrap();
    for pages in [1, 3, whole.len() / 4_096 - 1] {
        fs::write(&db, &whole[..pages * 4_096]).unwrap();
        for access in ACCESSES {
            let fault = format!("{pages} pages");
            assert!(right_or_named(dir.path(), access, &expected, &fault), "{fault}: not noticed");
        }
    }
}

#[test]
fn a_file_cut_by_an_interrupted_checkpoint_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), Access::Create);
    fill(&store);
    let expected = truth(&store).unwrap();
    drop(store);
    let (db, wal) = (dir.path().join("store.db"), dir.path().join("store.db-wal"));
    let (log, created) = (fs::read(&wal).unwrap(), fs::read(&db).unwrap().len());
    fold_log_in(dir.path());
    // As if the machine had stopped after the first pages had been written back.
    let whole = fs::read(&db).unwrap();
    assert!(created < whole.len());
    fs::write(&db, &whole[..created]).unwrap();
    fs::write(&wal, &log).unwrap();
    set_private(&wal);
    for access in [Access::Look, Access::Existing] {
        assert_eq!(truth(&open(dir.path(), access)).unwrap(), expected, "{access:?}");
    }
}

fn set_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn foreign_files_are_named_and_left_alone() {
    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("other.db");
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch("CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('mine')")
        .unwrap();
    conn.close().unwrap();
    for bytes in
        [fs::read(&path).unwrap(), b"just some text that is long enough".repeat(20), vec![0; 9_000]]
    {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("store.db");
        fs::write(&db, &bytes).unwrap();
        set_private(&db);
        expect_damage(dir.path(), &Damage::Foreign);
        assert_eq!(fs::read(&db).unwrap(), bytes);
        assert!(!dir.path().join("store.db-wal").exists(), "SQLite never touched it");
    }
}

#[test]
fn a_newer_schema_is_named() {
    let (dir, _) = filled();
    let conn = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    let known: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    conn.pragma_update(None, "user_version", known + 6).unwrap();
    conn.close().unwrap();
    expect_damage(dir.path(), &Damage::Newer { found: known + 6, known });
    let error = SqliteStore::open(dir.path(), Access::Look).unwrap_err();
    assert!(!error.is_corrupt(), "a newer store is in good health");
}

#[test]
fn a_newer_schema_that_is_only_in_the_log_is_named() {
    let (dir, _) = filled();
    let db = dir.path().join("store.db");
    let conn = rusqlite::Connection::open(&db).unwrap();
    conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    let known: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    conn.pragma_update(None, "user_version", known + 6).unwrap();
    drop(conn);
    let in_file: [u8; 4] = fs::read(&db).unwrap()[60..64].try_into().unwrap();
    assert_eq!(i64::from(u32::from_be_bytes(in_file)), known, "the file itself says nothing of it");
    expect_damage(dir.path(), &Damage::Newer { found: known + 6, known });
}

#[test]
fn a_deleted_database_is_never_replaced_by_an_empty_one() {
    let (dir, _) = filled();
    fs::remove_file(dir.path().join("store.db")).unwrap();
    assert!(dir.path().join("store.head").exists());
    expect_damage(dir.path(), &Damage::Gone);
    assert!(!dir.path().join("store.db").exists());
}

#[test]
fn a_deleted_database_is_missed_before_its_first_run() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), Access::Create));
    fs::remove_file(dir.path().join("store.db")).unwrap();
    expect_damage(dir.path(), &Damage::Gone);
}

#[test]
fn a_store_that_never_was_is_missing_and_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    for access in [Access::Existing, Access::Look] {
        for path in [dir.path().to_path_buf(), dir.path().join("not/there")] {
            let error = SqliteStore::open(&path, access).unwrap_err();
            assert!(matches!(error, StoreError::Missing { .. }), "{error}");
            assert!(!error.is_corrupt() && error.code() == "E046");
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "asking made nothing");
}

#[test]
fn an_older_copy_of_the_database_is_refused() {
    let (dir, _) = filled();
    let db = dir.path().join("store.db");
    let old = fs::read(&db).unwrap();
    let store = open(dir.path(), Access::Existing);
    store.create_run(&new_run(99, "late"), &bodies(&[b"late"])).unwrap();
    drop(store);
    fold_log_in(dir.path());
    assert_ne!(fs::read(&db).unwrap(), old);
    fs::write(&db, &old).unwrap();
    expect_damage(dir.path(), &Damage::RolledBack);
}

#[test]
fn an_older_copy_is_refused_after_one_append() {
    let (dir, _) = filled();
    let db = dir.path().join("store.db");
    let old = fs::read(&db).unwrap();
    let store = open(dir.path(), Access::Existing);
    append(&store, run_id(2), Cursor::START, b"more");
    drop(store);
    fold_log_in(dir.path());
    fs::write(&db, &old).unwrap();
    expect_damage(dir.path(), &Damage::RolledBack);
}

#[test]
fn a_log_that_was_taken_away_is_missed() {
    let (dir, _) = filled();
    let store = open(dir.path(), Access::Existing);
    append(&store, run_id(2), Cursor::START, b"only in the log");
    drop(store);
    fs::remove_file(dir.path().join("store.db-wal")).unwrap();
    expect_damage(dir.path(), &Damage::RolledBack);
}

#[test]
fn another_store_put_in_place_is_refused() {
    let ((dir, _), (other, _)) = (filled(), filled());
    fs::copy(other.path().join("store.db"), dir.path().join("store.db")).unwrap();
    expect_damage(dir.path(), &Damage::RolledBack);
}

#[test]
fn a_torn_sidecar_is_no_witness() {
    let (dir, truth) = filled();
    let sidecar = dir.path().join("store.head");
    let text = fs::read(&sidecar).unwrap();
    for cut in [0, 1, text.len() / 2, text.len() - 1] {
        fs::write(&sidecar, &text[..cut]).unwrap();
        assert_eq!(super::common::truth(&open(dir.path(), Access::Look)).unwrap(), truth);
    }
    let garbled = String::from_utf8(text).unwrap().replace("\"position\":", "\"position\":1");
    fs::write(&sidecar, garbled).unwrap();
    assert_eq!(super::common::truth(&open(dir.path(), Access::Look)).unwrap(), truth);
}

#[test]
fn a_store_that_has_forgotten_the_remembered_run_is_not_an_older_copy() {
    let (dir, _) = filled();
    let store = open(dir.path(), Access::Existing);
    let late = store.create_run(&new_run(99, "late"), &bodies(&[b"late"])).unwrap();
    let Created::New(records) = late else { panic!("{late:?}") };
    let head = fs::read_to_string(dir.path().join("store.head")).unwrap();
    assert!(head.contains(&run_id(99).to_string()), "it is the one that is remembered: {head}");
    // Left by somebody who was killed before it could be removed; and what is nobody's.
    let stray = dir.path().join(format!("run-{}.cache", run_id(98)));
    let other = dir.path().join("run-of-somebody.cache");
    for path in [&stray, &other] {
        fs::write(path, "x").unwrap();
    }
    store.cache(run_id(99), b"cached");
    store.cache(run_id(1), b"cached");
    let gone = store.forget(run_id(99), records[0].cursor()).unwrap();
    assert_eq!(gone, Forgetting::Forgotten);
    assert!(!stray.exists() && !dir.path().join(format!("run-{}.cache", run_id(99))).exists());
    assert!(other.exists() && store.cached(run_id(1)).is_some());
    drop(store);
    for access in [Access::Look, Access::Existing] {
        let store = open(dir.path(), access);
        assert_eq!(store.runs(&Runs::All).unwrap().len(), RUNS as usize);
        assert!(store.examine().unwrap().is_empty());
    }
}

/// Opens and reads; says whether something was found wrong.
fn right_or_named(dir: &Path, access: Access, expected: &Truth, fault: &str) -> bool {
    let read = SqliteStore::open(dir, access).and_then(|store| truth(&store));
    match read {
        Ok(read) => {
            let read = read.with_lost(expected);
            assert!(read == *expected, "{fault}: wrong data was accepted ({access:?})");
            false
        }
        Err(error) => {
            assert!(error.code().starts_with("E04"), "{fault}: {error}");
            assert!(!matches!(error, StoreError::UnknownRun { .. }), "{fault}: a run was hidden");
            true
        }
    }
}

/// Flips one bit of a file and proves it.
fn flip(path: &Path, original: &[u8], at: usize, bit: u32) {
    fs::write(path, original).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[original[at] ^ (1 << bit)], at as u64).unwrap();
    let now = fs::read(path).unwrap();
    assert_eq!(now.iter().zip(original).filter(|(a, b)| a != b).count(), 1);
}

fn flips_of_the_database(places: impl Iterator<Item = (usize, u32)>) -> (usize, usize) {
    let (dir, expected) = filled();
    let db = dir.path().join("store.db");
    let original = fs::read(&db).unwrap();
    let (mut found, mut harmless) = (0, 0);
    for (nth, (at, bit)) in places.enumerate() {
        let at = at % original.len();
        flip(&db, &original, at, bit);
        let access = if nth % 4 == 0 { Access::Look } else { Access::Existing };
        let fault = format!("bit {bit} of byte {at}");
        if right_or_named(dir.path(), access, &expected, &fault) {
            found += 1
        } else {
            harmless += 1
        }
        for rest in ["store.db-wal", "store.db-shm"] {
            let _ = fs::remove_file(dir.path().join(rest));
        }
    }
    (found, harmless)
}

#[test]
fn flipped_bits_anywhere_give_the_right_data_or_a_named_error() {
    let mut dice = Dice::new(3);
    let places: Vec<_> =
        (0..400).map(|_| (dice.below(1 << 40) as usize, dice.below(8) as u32)).collect();
    let (found, _) = flips_of_the_database(places.into_iter());
    assert!(found > 100, "only {found} flips were found: do they hit anything?");
}

#[test]
fn flipped_bits_in_the_header_give_the_right_data_or_a_named_error() {
    let places = (0..116).flat_map(|at| [(at, 0), (at, 3), (at, 7)]);
    let (found, harmless) = flips_of_the_database(places);
    assert!(found > 100 && harmless > 0, "{found} found, {harmless} harmless");
}

/// A store that is all log, and its records.
fn all_log() -> (TempDir, Vec<Record>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), Access::Create);
    store.create_run(&new_run(1, "k"), &bodies(&[b"first"])).unwrap();
    for nth in 0..45 {
        append(&store, run_id(1), Cursor::START, format!("record {nth}").as_bytes());
    }
    (dir, store.read(run_id(1), Cursor::START).unwrap())
}

#[test]
fn flipped_bits_in_the_log_lose_nothing_or_are_named() {
    let (dir, whole) = all_log();
    let wal = dir.path().join("store.db-wal");
    let original = fs::read(&wal).unwrap();
    let mut dice = Dice::new(4);
    let mut found = 0;
    let mut places: Vec<usize> =
        (0..200).map(|_| dice.below(original.len() as u64) as usize).collect();
    places.extend(0..56);
    for (nth, at) in places.into_iter().enumerate() {
        flip(&wal, &original, at, nth as u32 % 8);
        let access = if nth % 3 == 0 { Access::Look } else { Access::Existing };
        found += usize::from(whole_or_rolled_back(&dir, access, &whole, at));
    }
    assert!(found > 150, "only {found} flips were found");
}

#[test]
fn a_log_cut_anywhere_is_named() {
    let (dir, whole) = all_log();
    let wal = dir.path().join("store.db-wal");
    let original = fs::read(&wal).unwrap();
    for length in (0..original.len()).step_by(3_001) {
        fs::write(&wal, &original[..length]).unwrap();
        let found = whole_or_rolled_back(&dir, Access::Existing, &whole, length);
        assert!(found, "{length} bytes were taken for the whole log");
    }
}

/// Whether the damage was found; else every record is there.
fn whole_or_rolled_back(dir: &TempDir, access: Access, whole: &[Record], at: usize) -> bool {
    let read = SqliteStore::open(dir.path(), access)
        .and_then(|store| store.read(run_id(1), Cursor::START));
    fs::remove_file(dir.path().join("store.db-shm")).unwrap_or_default();
    match read {
        Ok(records) => {
            assert!(records == whole, "{at}: {} of {} are there", records.len(), whole.len());
            false
        }
        Err(error) => {
            assert_eq!(damage_of(&error), Some(&Damage::RolledBack), "{at}: {error}");
            true
        }
    }
}

#[test]
fn rows_that_were_edited_by_hand_are_named() {
    let edits = [
        "DELETE FROM events WHERE id = (1 << 32) + 5",
        "DELETE FROM events WHERE id = (2 << 32) + 4294967295",
        "DELETE FROM events WHERE id =
            (SELECT max(id) FROM events WHERE id < (2 << 32) + 4294967295)",
        "UPDATE events SET body = x'00' WHERE id = (2 << 32) + 3",
        "UPDATE events SET at = at + 1 WHERE id = (2 << 32) + 3",
        "INSERT INTO events SELECT id + 1, at, body, hash FROM events
            WHERE id < (2 << 32) + 4294967295 ORDER BY id DESC LIMIT 1",
        "UPDATE runs SET active = 1 WHERE seq = 3",
        "UPDATE runs SET key = 'other' WHERE seq = 2",
        "UPDATE events SET at = at - 1 WHERE id = (2 << 32) + 4294967295",
        "UPDATE events SET body = x'00' WHERE id = (2 << 32) + 4294967295",
        "UPDATE events SET hash = zeroblob(32) WHERE id = (2 << 32) + 4294967295",
        "DELETE FROM runs WHERE seq = 6",
        "DELETE FROM runs WHERE seq = 2",
        "UPDATE runs SET name = 'other' WHERE seq = 2",
        "UPDATE texts SET bytes = x'00'",
        "DELETE FROM texts",
        "UPDATE meta SET runs = runs - 1",
        "DELETE FROM meta",
        "DROP INDEX active_key",
        "DROP TABLE leases",
        "ALTER TABLE events ADD COLUMN extra TEXT",
    ];
    let (dir, expected) = filled();
    let db = dir.path().join("store.db");
    let original = fs::read(&db).unwrap();
    for edit in edits {
        fs::write(&db, &original).unwrap();
        let conn = rusqlite::Connection::open(&db).unwrap();
        conn.execute_batch(edit).unwrap();
        assert_ne!(
            conn.total_changes() + u64::from(edit.contains(" TABLE ") || edit.contains("INDEX")),
            0
        );
        conn.close().unwrap();
        assert_ne!(fs::read(&db).unwrap(), original, "{edit} changed nothing");
        assert!(
            right_or_named(dir.path(), Access::Existing, &expected, edit),
            "{edit} was not noticed"
        );
        for rest in ["store.db-wal", "store.db-shm"] {
            let _ = fs::remove_file(dir.path().join(rest));
        }
    }
}

#[test]
fn a_damaged_lease_reads_as_missing() {
    let (dir, expected) = filled();
    let conn = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    let edits = [
        "DELETE FROM leases WHERE run = 1 AND key = 'step-0'",
        "UPDATE leases SET fence = fence + 1 WHERE run = 1 AND key = 'step-1'",
        "UPDATE leases SET wall = wall + 1 WHERE run = 1 AND key = 'step-2'",
    ];
    for edit in edits {
        assert_eq!(conn.execute(edit, []).unwrap(), 1, "{edit}");
    }
    conn.close().unwrap();
    let store = open(dir.path(), Access::Existing);
    assert_eq!(store.leases(run_id(1)).unwrap(), expected.leases[0][3..]);
    let lost = &expected.leases[0][1];
    let later = lost.until.after(std::time::Duration::from_secs(9));
    let renewed = store.renew(run_id(1), &lost.key, lost.fence, &later).unwrap();
    assert_eq!(renewed, Renewal::NotRenewed);
    assert_eq!(store.leases(run_id(2)).unwrap(), expected.leases[1]);
}

#[test]
fn one_broken_log_does_not_hide_the_others() {
    let (dir, expected) = filled();
    let conn = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    let changed =
        conn.execute("UPDATE events SET body = x'00' WHERE id = (2 << 32) + 3", []).unwrap();
    assert_eq!(changed, 1);
    conn.close().unwrap();
    let store = open(dir.path(), Access::Existing);
    let error = store.read(run_id(2), Cursor::START).unwrap_err();
    let at = piton_core::ids::Position(3);
    assert_eq!(damage_of(&error), Some(&Damage::Chain { run: run_id(2), position: at }));
    assert!(error.is_corrupt() && error.code() == "E047");
    assert_eq!(store.read(run_id(1), Cursor::START).unwrap(), expected.logs[0]);
    assert_eq!(
        append(&store, run_id(1), Cursor::START, b"goes on").len(),
        expected.logs[0].len() + 1
    );
    let after = expected.logs[1][10].cursor();
    assert_eq!(
        store.read(run_id(2), after).unwrap(),
        expected.logs[1][11..],
        "its sound part reads"
    );
}

#[test]
fn examining_names_everything_that_is_wrong() {
    let (dir, _) = filled();
    assert!(open(dir.path(), Access::Look).examine().unwrap().is_empty());
    let conn = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    let edits = [
        "UPDATE events SET body = x'00' WHERE id = (2 << 32) + 3",
        "DELETE FROM events WHERE id = (4 << 32) + 9",
        "UPDATE texts SET bytes = x'00' WHERE rowid = 1",
    ];
    for edit in edits {
        assert_eq!(conn.execute(edit, []).unwrap(), 1, "{edit}");
    }
    conn.close().unwrap();
    let wrong = open(dir.path(), Access::Look).examine().unwrap();
    let chain = |number, position| Damage::Chain {
        run: run_id(number),
        position: piton_core::ids::Position(position),
    };
    let expected = [chain(2, 3), chain(4, 9), Damage::Seal("a text")];
    assert_eq!(wrong.iter().map(damage_of).collect::<Vec<_>>(), expected.each_ref().map(Some));
}
