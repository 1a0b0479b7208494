//! What a store keeps beside a log so that nobody folds it from its beginning: made and read by the
//! core alone. Losing any of it loses time and nothing else; what another version wrote is no use.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::ids::{Hash, Position};

/// The version of everything packed. The number grows with every change of what the fold keeps of a
/// log: a run packed by other rules must not be gone on with.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " fold 9");

/// Loading a run again may cost folding as many events as packing it costs, within these bounds: packing
/// few steps is cheap, and reading back many events never is.
const DUE_AFTER: RangeInclusive<u64> = 16..=256;

/// Packing so many steps costs what folding one event does.
const STEPS_PER_EVENT: u64 = 4;

/// What is kept of a run under this name; each replaces the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cached {
    /// The folded run.
    Run,
    /// Its plan's graph.
    Graph,
    /// The plan's file as it was last read.
    File,
}

impl Cached {
    /// What a store calls it.
    pub fn name(self) -> &'static str {
        match self {
            Cached::Run => "run",
            Cached::Graph => "graph",
            Cached::File => "file",
        }
    }
}

/// Bytes for a store to keep. Only the core makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    what: Cached,
    bytes: Vec<u8>,
}

impl Packed {
    pub(crate) fn run(bytes: Vec<u8>) -> Packed {
        Packed { what: Cached::Run, bytes }
    }

    pub(crate) fn graph(bytes: Vec<u8>) -> Packed {
        Packed { what: Cached::Graph, bytes }
    }

    /// Bytes of anything, for suites that test stores: never in a product build.
    #[cfg(feature = "conformance")]
    pub fn raw(what: Cached, bytes: Vec<u8>) -> Packed {
        Packed { what, bytes }
    }

    pub fn what(&self) -> Cached {
        self.what
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Whether a batch between these positions packs the run again: one writer in every so many does,
/// without anybody having to remember who did last.
pub fn is_due(before: Position, after: Position, steps: usize) -> bool {
    let every = (steps as u64 / STEPS_PER_EVENT).clamp(*DUE_AFTER.start(), *DUE_AFTER.end());
    before.0 / every != after.0 / every
}

/// Whether a run that is not packed should be: a small one is folded as fast.
pub fn is_worth_it(position: Position, steps: usize) -> bool {
    position.0 + steps as u64 >= *DUE_AFTER.start()
}

/// A plan file that was read: what its bytes were, and which plan that is. As long as the file has these
/// bytes nobody needs to read the plan out of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFile {
    version: String,
    raw: Hash,
    plan: Hash,
}

impl PlanFile {
    pub fn new(bytes: &[u8], plan: Hash) -> PlanFile {
        PlanFile { version: VERSION.to_owned(), raw: Hash::of(bytes), plan }
    }

    /// The plan that is in a file with these bytes, if this is that file.
    pub fn plan_in(&self, bytes: &[u8]) -> Option<Hash> {
        (self.version == VERSION && self.raw == Hash::of(bytes)).then_some(self.plan)
    }

    pub fn pack(&self) -> Packed {
        let bytes = postcard::to_stdvec(self).expect("two hashes can be packed");
        Packed { what: Cached::File, bytes }
    }

    pub fn unpack(bytes: &[u8]) -> Option<PlanFile> {
        postcard::from_bytes(bytes).ok()
    }
}

/// As [`as_json`], for what mostly is not there.
pub(crate) mod as_json_option {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let text = value.as_ref().map(serde_json::to_string).transpose();
        text.map_err(S::Error::custom)?.serialize(to)
    }

    pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        let read = text.map(|text| serde_json::from_str(&text)).transpose();
        read.map_err(D::Error::custom)
    }
}

/// Values that leave fields out of their JSON, which packed bytes cannot: kept as JSON inside them.
pub(crate) mod as_json {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&serde_json::to_string(value).map_err(S::Error::custom)?)
    }

    pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        let text = String::deserialize(from)?;
        serde_json::from_str(&text).map_err(D::Error::custom)
    }
}
