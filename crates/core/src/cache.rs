//! The run cache: a folded run at a position of its log, as one blob that a store keeps beside the log.
//! It spares the next process a fold. Losing it loses time and nothing else; a blob that is damaged,
//! or that another version wrote, is ignored.

use serde::{Deserialize, Serialize};

use crate::ids::{Hash, Position};
use crate::run::Run;

/// The version of everything packed. The number grows with every change of what the fold keeps of a
/// log: a run packed by other rules must not be continued.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " fold 10");

/// Loading a run may cost folding this many events.
const EVERY: u64 = 64;

/// Whether an append between these positions writes the cache. Exactly one writer in every so many
/// does, and none has to know who did last.
pub fn is_due(before: Position, after: Position) -> bool {
    before.0 / EVERY != after.0 / EVERY
}

/// What the cache of a run holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachedRun {
    pub plan_file: Option<PlanFile>,
    pub run: Run,
}

/// A checksum, then the version, then the rest.
pub fn pack(plan_file: Option<&PlanFile>, run: &Run) -> Vec<u8> {
    let packed = postcard::to_extend(&(VERSION, plan_file, run), vec![0; CHECKSUM]);
    let mut bytes = packed.expect("a run's facts can be packed");
    let checksum = Hash::of(&bytes[CHECKSUM..]);
    bytes[..CHECKSUM].copy_from_slice(checksum.as_bytes());
    bytes
}

const CHECKSUM: usize = 32;

/// Reads back what [`pack`] made. `None` where the bytes are damaged or of another version.
pub fn unpack(bytes: &[u8]) -> Option<CachedRun> {
    let (checksum, packed) = bytes.split_at_checked(CHECKSUM)?;
    if Hash::of(packed).as_bytes() != checksum {
        return None;
    }
    let (version, rest): (&str, _) = postcard::take_from_bytes(packed).ok()?;
    if version != VERSION {
        return None;
    }
    postcard::from_bytes(rest).ok()
}

/// A plan file that was read: what its bytes were, and which plan that is. As long as the file has these
/// bytes the plan need not be parsed again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFile {
    raw: Hash,
    plan: Hash,
}

impl PlanFile {
    pub fn new(bytes: &[u8], plan: Hash) -> PlanFile {
        PlanFile { raw: Hash::of(bytes), plan }
    }

    /// The plan that is in a file whose bytes have this hash, if this is that file.
    pub fn plan_in(&self, raw: Hash) -> Option<Hash> {
        (self.raw == raw).then_some(self.plan)
    }
}
