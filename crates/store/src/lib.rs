//! Stores keep logs and leases, and beside each log the run cache. They compare and keep bytes; they never
//! look inside a body and never decide anything, so that every store means exactly the same.
//!
//! Reading order: this file (the contract), [`mem`], [`sqlite`], `conformance` (what every store is
//! held to).

use std::time::Duration;

use piton_core::decided::{Decided, Lease};
use piton_core::ids::{Fence, Hash, Position, RunId, StoreId};
use piton_core::record::{Cursor, Record};
use piton_core::time::{Millis, Moment};

pub use clock::boot_id;
pub use error::{ALLOW_NETWORK_FS, Damage, StoreError, Unsafe};

mod clock;
mod error;
pub mod mem;
pub mod sqlite;

#[cfg(feature = "conformance")]
pub mod conformance;

#[cfg_attr(target_os = "macos", path = "os_macos.rs")]
#[cfg_attr(not(target_os = "macos"), path = "os_linux.rs")]
mod os;

/// Repository id and plan path: there is one active run per key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey(pub String);

/// A run to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    pub run: RunId,
    /// What people call it.
    pub name: String,
    pub key: RunKey,
    /// A fresh start: this run, if it still holds the key, loses it in the same transaction.
    pub replaces: Option<RunId>,
}

/// What `create_run` found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// The run exists now, with these records.
    New(Vec<Record>),
    /// Another run holds the key; nothing was written.
    KeyHeldBy(RunId),
}

/// A row of the listing. The head is a cache: good for showing, never trusted for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    pub run: RunId,
    /// What people call it.
    pub name: String,
    pub key: RunKey,
    /// Whether the run still holds its key.
    pub active: bool,
    pub created: Millis,
    pub head: Cursor,
}

/// Which runs to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runs {
    All,
    Active,
    /// The run that holds this key, if any.
    HoldingKey(RunKey),
    /// Those of this name: good for finding one, and no proof that there is none.
    Named(String),
}

/// What a writer is shown under the store's lock, or as compared when it appends.
#[derive(Debug)]
pub struct Tail<'a> {
    /// The records after the writer's cursor, verified.
    pub records: &'a [Record],
    pub leases: &'a [Lease],
    pub now: &'a Moment,
}

/// The answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    Renewed,
    /// No row with this key and fence whose deadline is earlier: the claim may have been taken.
    NotRenewed,
}

/// The answer to asking a store to forget a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgetting {
    Forgotten,
    /// Its log does not end where it was said to: somebody has appended meanwhile.
    NotForgotten,
}

/// A store. Every method that returns `Ok` after a write has made it durable.
pub trait Store: Send + Sync {
    fn id(&self) -> StoreId;

    /// The only clock that judges leases.
    fn now(&self) -> Result<Moment, StoreError>;

    /// Creates a run with its first records, unless another active run holds the key.
    fn create_run(&self, new: &NewRun, first: &Decided) -> Result<Created, StoreError>;

    /// Lists runs, oldest first.
    fn runs(&self, filter: &Runs) -> Result<Vec<RunRow>, StoreError>;

    /// The records after a cursor, in order, each verified to follow the one before.
    fn read(&self, run: RunId, after: Cursor) -> Result<Vec<Record>, StoreError>;

    /// Shows `decide` what came after the cursor and appends what it returns, atomically: nobody can
    /// append between the two. `None` appends nothing. A store without locks may call `decide` again
    /// with a longer tail. Returns everything after the cursor, what was appended included.
    /// A lease in the batch replaces the row of its key; one that is already over removes it, so that
    /// finished work leaves no rows behind.
    fn transact(
        &self,
        run: RunId,
        after: Cursor,
        decide: &mut dyn FnMut(Tail<'_>) -> Option<Decided>,
    ) -> Result<Vec<Record>, StoreError>;

    /// Moves a lease's deadline, only where key and fence match and the deadline grows.
    fn renew(
        &self,
        run: RunId,
        key: &str,
        fence: Fence,
        until: &Moment,
    ) -> Result<Renewal, StoreError>;

    fn leases(&self, run: RunId) -> Result<Vec<Lease>, StoreError>;

    /// A large text kept by an earlier batch.
    fn text(&self, hash: Hash) -> Result<Vec<u8>, StoreError>;

    /// The run cache as it was last written. It may be anything: the core knows what it must hold.
    fn cached(&self, run: RunId) -> Option<Vec<u8>>;

    /// Replaces the run cache, outside of any transaction. Failing is no error: losing the cache loses
    /// time and nothing else.
    fn cache(&self, run: RunId, bytes: &[u8]);

    /// Removes a run for good, only where its log ends at `head`: its records, its leases, its
    /// cache. Its id is never given away again. Texts stay: other runs may have the same.
    fn forget(&self, run: RunId, head: Cursor) -> Result<Forgetting, StoreError>;

    /// Waits until the run's log is longer than `after`, at most `timeout`; says whether it is.
    fn changed(&self, run: RunId, after: Position, timeout: Duration) -> Result<bool, StoreError>;

    /// Housekeeping that no answer waits for: called after a verb has answered.
    fn tidy(&self);
}
