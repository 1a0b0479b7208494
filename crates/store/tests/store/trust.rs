//! Who may have touched the store's files, and what is made with which rights.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use piton_store::conformance::{bodies, new_run};
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{Store, StoreError, Unsafe};

use crate::child::{Other, role_after};
use crate::common::open;

const ACCESSES: [Access; 3] = [Access::Create, Access::Existing, Access::Look];

fn refusal(dir: &Path, access: Access) -> Unsafe {
    match SqliteStore::open(dir, access) {
        Err(error @ StoreError::Unsafe { .. }) => {
            assert_eq!(error.code(), "E046");
            assert!(!error.is_corrupt());
            let StoreError::Unsafe { why, .. } = error else { unreachable!() };
            why
        }
        other => panic!("{access:?} gave {other:?}"),
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[test]
fn everything_made_is_for_the_owner_alone() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("made/by/piton");
    // Without a umask's help.
    let mut child = Other::start(role_after("umask 0", "creates", &dir));
    while child.hear().is_some_and(|said| said != "created") {}
    assert_eq!(mode(&dir), 0o700);
    let names: Vec<String> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for name in ["store.db", "store.db-wal", "store.db-shm", "store.head", "write.lock"] {
        assert!(names.iter().any(|found| found == name), "{name} is missing in {names:?}");
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
    assert_eq!(names.len(), 5, "nothing else is left behind: {names:?}");
    assert!(child.release().1.success());
}

#[test]
fn a_symlinked_folder_or_file_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let (real, link) = (parent.path().join("real"), parent.path().join("link"));
    drop(open(&real, Access::Create));
    symlink(&real, &link).unwrap();
    for access in ACCESSES {
        assert_eq!(refusal(&link, access), Unsafe::Symlink);
    }
    for name in ["store.db", "store.db-wal", "store.db-shm", "store.head", "write.lock"] {
        let away = parent.path().join("away");
        fs::rename(real.join(name), &away).unwrap();
        symlink(&away, real.join(name)).unwrap();
        for access in ACCESSES {
            assert_eq!(refusal(&real, access), Unsafe::Symlink, "{name}");
        }
        fs::rename(&away, real.join(name)).unwrap();
    }
    drop(open(&real, Access::Existing));
}

#[test]
fn somebody_elses_folder_is_refused() {
    let me = rustix::process::geteuid().as_raw();
    let dir = tempfile::tempdir().unwrap();
    // Root can give a folder away; others find one of root's.
    let theirs = if me == 0 {
        chown(dir.path(), Some(65_534), None).unwrap();
        dir.path()
    } else {
        Path::new("/usr")
    };
    let owner = fs::metadata(theirs).unwrap().uid();
    assert_ne!(owner, me);
    for access in ACCESSES {
        assert_eq!(refusal(theirs, access), Unsafe::ForeignOwner { owner, me });
    }
}

#[test]
fn what_others_may_write_to_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("s");
    drop(open(&dir, Access::Create));
    for (path, bad, good) in [(dir.clone(), 0o770, 0o700), (dir.join("store.db"), 0o606, 0o600)] {
        fs::set_permissions(&path, Permissions::from_mode(bad)).unwrap();
        for access in ACCESSES {
            assert_eq!(refusal(&dir, access), Unsafe::WritableByOthers { mode: bad });
        }
        fs::set_permissions(&path, Permissions::from_mode(good)).unwrap();
    }
    drop(open(&dir, Access::Existing));
}

#[test]
fn what_others_may_read_is_mended_by_writers_and_left_by_lookers() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("s");
    open(&dir, Access::Create).create_run(&new_run(1, "k"), &bodies(&[b"x"])).unwrap();
    let paths =
        [dir.clone(), dir.join("store.db"), dir.join("store.db-wal"), dir.join("store.head")];
    for path in &paths {
        let open_mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(open_mode)).unwrap();
    }
    drop(open(&dir, Access::Look));
    assert_eq!(mode(&paths[1]), 0o644, "a looker changes nothing");
    drop(open(&dir, Access::Existing));
    assert_eq!(paths.map(|path| mode(&path)), [0o700, 0o600, 0o600, 0o600]);
}

#[test]
fn a_folder_in_the_way_of_a_file_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    fs::create_dir(parent.path().join("store.db")).unwrap();
    for access in ACCESSES {
        assert_eq!(refusal(parent.path(), access), Unsafe::WrongKind { wanted: "regular file" });
    }
}
