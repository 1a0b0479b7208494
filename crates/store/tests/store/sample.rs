//! A store that an earlier piton made can be read for ever.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use piton_core::ids::{Fence, Hash};
use piton_core::record::Cursor;
use piton_store::conformance::{bodies, new_run, run_id};
use piton_store::sqlite::Access;
use piton_store::{RunKey, Runs, Store};

use crate::common::{append, far_future, open};

/// The sample was made by the role `makes-sample` of `child.rs`.
#[test]
fn a_store_of_the_first_schema_opens() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/schema-1");
    for name in ["store.db", "store.head"] {
        let to = dir.path().join(name);
        fs::copy(sample.join(name), &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
    }
    for access in [Access::Look, Access::Existing] {
        let store = open(dir.path(), access);
        let runs = store.runs(&Runs::All).unwrap();
        let row = |number: usize| (runs[number].run, runs[number].key.clone(), runs[number].active);
        assert_eq!(row(0), (run_id(1), RunKey("first".to_owned()), false));
        assert_eq!(row(1), (run_id(2), RunKey("second".to_owned()), true));
        let log = store.read(run_id(1), Cursor::START).unwrap();
        let bodies: Vec<&[u8]> = log.iter().map(|record| record.body.as_slice()).collect();
        assert_eq!(bodies, [&b"opened"[..], b"claimed", b"ended"]);
        let leases = store.leases(run_id(1)).unwrap();
        assert_eq!(leases.len(), 1);
        assert_eq!((leases[0].key.as_str(), leases[0].fence), ("step", Fence(2)));
        assert_eq!(leases[0].until, far_future());
        assert_eq!(store.text(Hash::of(b"a text")).unwrap(), b"a text");
        assert_eq!(runs[0].name, "run-1");
    }
    let store = open(dir.path(), Access::Existing);
    assert_eq!(append(&store, run_id(2), Cursor::START, b"goes on").len(), 2);
    store.create_run(&new_run(3, "third"), &bodies(&[b"opened"])).unwrap();
    assert_eq!(store.runs(&Runs::Named("run-3".to_owned())).unwrap().len(), 1);
}
