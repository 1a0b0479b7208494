//! Looking never touches: nothing near the store changes, whatever state its files are in, and it works
//! where nothing can be written.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use piton_core::record::Cursor;
use piton_store::conformance::{bodies, new_run, run_id};
use piton_store::sqlite::Access;
use piton_store::{Store, StoreError};
use tempfile::TempDir;

use crate::child::{Other, role, this_binary};
use crate::common::{Truth, append, fill, fold_log_in, open, picture, truth};

/// Somebody who is not root, when the tests run as root.
const NOBODY: u32 = 65_534;

fn filled() -> (TempDir, Truth) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), Access::Create);
    fill(&store);
    let truth = truth(&store).unwrap();
    (dir, truth)
}

/// The states a store's files can be in when nobody has it open.
fn states() -> Vec<(&'static str, TempDir, Truth)> {
    let (log_and_index, first) = filled();
    let (log_alone, second) = filled();
    fs::remove_file(log_alone.path().join("store.db-shm")).unwrap();
    let (neither, third) = filled();
    fold_log_in(neither.path());
    vec![
        ("log and index", log_and_index, first),
        ("log without index", log_alone, second),
        ("neither", neither, third),
    ]
}

#[test]
fn looking_changes_nothing() {
    for (state, dir, expected) in states() {
        let before = picture(dir.path());
        let store = open(dir.path(), Access::Look);
        assert_eq!(truth(&store).unwrap(), expected, "{state}");
        assert!(
            !store
                .changed(run_id(1), expected.all[0].head.position, Duration::from_millis(60))
                .unwrap()
        );
        store.tidy();
        drop(store);
        assert_eq!(picture(dir.path()), before, "{state}");
    }
}

#[test]
fn looking_beside_a_live_writer_changes_nothing() {
    let (dir, expected) = filled();
    let mut writer = Other::start(role(&this_binary(), "holds-open", dir.path()));
    assert_eq!(writer.hear().as_deref(), Some("open 6"));
    let before = picture(dir.path());
    let store = open(dir.path(), Access::Look);
    assert_eq!(truth(&store).unwrap(), expected);
    assert_eq!(picture(dir.path()), before);
    drop(store);
    assert!(writer.release().1.success());
}

#[test]
fn a_looker_sees_what_another_process_appends() {
    for (state, dir, expected) in states() {
        let looker = open(dir.path(), Access::Look);
        let head = expected.all[0].head;
        assert_eq!(looker.read(run_id(1), head).unwrap(), [], "{state}");
        let mut writer = Other::start(role(&this_binary(), "appends-fifty", dir.path()));
        assert!(
            looker.changed(run_id(1), head.position, Duration::from_secs(60)).unwrap(),
            "{state}"
        );
        assert_eq!(writer.hear().as_deref(), Some("done"));
        assert!(writer.release().1.success());
        assert_eq!(looker.read(run_id(1), head).unwrap().len(), 50, "{state}");
    }
}

#[test]
fn a_looker_reads_whole_commits_while_others_write_and_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), Access::Create).create_run(&new_run(1, "k"), &bodies(&[b"first"])).unwrap();
    let mut writers: Vec<Other> =
        (0..2).map(|_| Other::start(role(&this_binary(), "appends-fifty", dir.path()))).collect();
    let mut seen = 0;
    for _ in 0..60 {
        // A new one each time: opening is the delicate part.
        let records = open(dir.path(), Access::Look).read(run_id(1), Cursor::START).unwrap();
        assert!(records.len() >= seen, "a looker went back in time");
        seen = records.len();
    }
    for writer in &mut writers {
        assert_eq!(writer.hear().as_deref(), Some("done"));
    }
    for writer in writers {
        assert!(writer.release().1.success());
    }
    assert_eq!(open(dir.path(), Access::Look).read(run_id(1), Cursor::START).unwrap().len(), 101);
}

/// Brings a file's present version under a second name, in one step.
fn link_again(from: &Path, to: &Path, name: &str) {
    let new = to.join(format!("{name}.new"));
    fs::hard_link(from.join(name), &new).unwrap();
    fs::rename(&new, to.join(name)).unwrap();
    // Two names of one file are left as they are.
    let _ = fs::remove_file(new);
}

#[test]
fn a_copy_made_while_the_log_is_begun_anew_is_not_an_older_one() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path(), Access::Create);
    writer.create_run(&new_run(1, "k"), &bodies(&[b"first"])).unwrap();
    // The same files without their index: whoever looks there has to make a copy.
    let aside = tempfile::tempdir_in(dir.path()).unwrap();
    for name in ["store.db", "store.db-wal", "store.head"] {
        link_again(dir.path(), aside.path(), name);
    }
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for _ in 0..1_000 {
                append(&writer, run_id(1), Cursor::START, &[7; 2_000]);
                writer.tidy();
                link_again(dir.path(), aside.path(), "store.head");
            }
        });
        let (mut head, mut looks) = (Cursor::START, 0);
        while !writing.is_finished() {
            let looker = open(aside.path(), Access::Look);
            let news = looker.read(run_id(1), head).unwrap();
            head = news.last().map_or(head, |record| record.cursor());
            looks += 1;
        }
        assert!(looks > 10, "{looks} looks were taken");
    });
}

#[test]
fn a_looker_may_not_write() {
    let (dir, _) = filled();
    let store = open(dir.path(), Access::Look);
    let refused = [
        store.create_run(&new_run(9, "k"), &bodies(&[])).err(),
        store.transact(run_id(1), Cursor::START, &mut |_| Some(bodies(&[b"x"]))).err(),
        store.renew(run_id(1), "step-1", piton_core::ids::Fence(1), &store.now().unwrap()).err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(StoreError::LookOnly)), "{error:?}");
    }
}

/// Takes every right to write away, also from root: then the looker runs as somebody else, to whom the
/// folder belongs.
fn make_read_only(dir: &Path) {
    let root = rustix::process::geteuid().is_root();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        if root {
            chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o500)).unwrap();
    if root {
        chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

#[test]
fn looking_works_where_nothing_can_be_written() {
    // Where anybody may start it, wherever the build folder is.
    let bin =
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let binary = bin.path().join("looker");
    fs::copy(this_binary(), &binary).unwrap();
    for (state, dir, expected) in states() {
        make_read_only(dir.path());
        let mut command = role(&binary, "looks", dir.path());
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut looker = Other::start(command);
        assert_eq!(looker.hear().as_deref(), Some("writing is PermissionDenied"), "{state}");
        let length = format!("{expected:?}").len();
        assert_eq!(looker.hear().unwrap(), format!("Ok({length})"), "{state}");
        assert!(looker.release().1.success());
        // So that the folder can be cleaned up by anybody.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    }
}
