//! Both stores, held to the one contract.

mod mem {
    use piton_store::Store;
    use piton_store::mem::MemStore;

    piton_store::conformance!({
        let store = MemStore::new();
        move || Box::new(store.clone()) as Box<dyn Store>
    });
}

mod sqlite {
    use piton_store::Store;
    use piton_store::sqlite::{Access, SqliteStore};

    piton_store::conformance!({
        let dir = tempfile::tempdir().unwrap();
        move || Box::new(SqliteStore::open(dir.path(), Access::Create).unwrap()) as Box<dyn Store>
    });
}
