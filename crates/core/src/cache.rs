//! What a store keeps beside a log so that nobody folds it from its beginning: made and read by the
//! core alone. Losing any of it loses time and nothing else; what another version wrote is no use.
//!
//! A folded run is kept in a file: pages, then a head that says where they are, then a fixed number of
//! bytes that say where the head is. Another head with the pages that changed is put behind them, and
//! whoever read the old one still finds every page of it.

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use crate::ids::{Hash, Position};

/// The version of everything packed. The number grows with every change of what the fold keeps of a
/// log: a run packed by other rules must not be gone on with.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " fold 22");

/// Loading a run may cost folding this many events: about what it costs to pack what they changed.
const DUE_AFTER: u64 = 16;

/// Superseded pages may take this much room, and half as much as what is needed: then the file is
/// replaced.
const ROOM_FOR_OLD: u64 = 16 * 1024;

/// A file beside a log. It only grows until another takes its place, so that what was found in it stays
/// there for whoever has it open.
pub trait File: Debug + Send + Sync {
    /// Tells files apart that are open at the same time.
    fn id(&self) -> u64;

    /// How long it was when it was opened.
    fn size(&self) -> u64;

    /// `None` where there is nothing to be read.
    fn read(&self, at: u64, len: usize) -> Option<Vec<u8>>;
}

/// Bytes for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keep {
    /// Behind what is in it.
    Behind(Vec<u8>),
    /// In a new one that takes its place.
    Instead(Vec<u8>),
}

/// Whether a batch between these positions packs the run again: one writer in every so many does,
/// without anybody having to remember who did last.
pub fn is_due(before: Position, after: Position) -> bool {
    before.0 / DUE_AFTER != after.0 / DUE_AFTER
}

/// Whether a run that is not kept should be: a small one is folded as fast.
pub fn is_worth_it(position: Position, steps: usize) -> bool {
    position.0 + steps as u64 >= DUE_AFTER
}

/// Whether a file that needs this much has grown too long for another head.
pub(crate) fn is_outgrown(size: u64, needed: u64) -> bool {
    size > needed + needed / 2 + ROOM_FOR_OLD
}

/// Where some bytes are in a file, and what tells that they are still what was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    at: u64,
    len: u32,
    seal: [u8; 16],
}

impl Place {
    /// Of no bytes, which need no place.
    pub(crate) const EMPTY: Place = Place { at: 0, len: 0, seal: [0; 16] };

    /// Bytes that a place is packed in.
    pub(crate) const SIZE: usize = 8 + 4 + 16;

    pub(crate) fn read(self, file: &dyn File) -> Option<Vec<u8>> {
        let bytes = file.read(self.at, self.len as usize)?;
        (seal(&bytes) == self.seal).then_some(bytes)
    }

    fn pack(self) -> [u8; Place::SIZE] {
        let mut bytes = [0; Place::SIZE];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..].copy_from_slice(&self.seal);
        bytes
    }

    fn unpack(bytes: &[u8; Place::SIZE]) -> Place {
        Place {
            at: u64::from_le_bytes(std::array::from_fn(|n| bytes[n])),
            len: u32::from_le_bytes(std::array::from_fn(|n| bytes[8 + n])),
            seal: std::array::from_fn(|n| bytes[12 + n]),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(self, bytes: &[u8]) -> Option<&[u8]> {
        let at = usize::try_from(self.at).ok()?;
        bytes.get(at..at + self.len as usize).filter(|bytes| seal(bytes) == self.seal)
    }
}

/// A checksum; half of a hash is plenty against accidents.
fn seal(bytes: &[u8]) -> [u8; 16] {
    let hash = Hash::of(bytes);
    std::array::from_fn(|n| hash.as_bytes()[n])
}

/// Places one after another.
pub(crate) fn pack_places(places: &[Place], bytes: &mut Vec<u8>) {
    places.iter().for_each(|place| bytes.extend(place.pack()));
}

/// Takes so many places off the front of some bytes.
pub(crate) fn take_places(bytes: &mut &[u8], count: usize) -> Option<Vec<Place>> {
    let (places, rest) = bytes.split_at_checked(count.checked_mul(Place::SIZE)?)?;
    *bytes = rest;
    Some(places.as_chunks().0.iter().map(Place::unpack).collect())
}

/// Pages on their way into a file.
pub(crate) struct Sheaf {
    after: u64,
    bytes: Vec<u8>,
}

impl Sheaf {
    /// To be put behind so many bytes.
    pub(crate) fn after(after: u64) -> Sheaf {
        Sheaf { after, bytes: Vec::new() }
    }

    pub(crate) fn page(&mut self, bytes: &[u8]) -> Place {
        if bytes.is_empty() {
            return Place::EMPTY;
        }
        let at = self.after + self.bytes.len() as u64;
        let len = u32::try_from(bytes.len()).expect("a page is smaller than 4 GiB");
        self.bytes.extend_from_slice(bytes);
        Place { at, len, seal: seal(bytes) }
    }

    pub(crate) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// With the head, from which everything is found.
    pub(crate) fn under(mut self, head: &[u8]) -> Vec<u8> {
        let place = self.page(head).pack();
        self.bytes.extend_from_slice(&place);
        self.bytes.extend_from_slice(&seal(&place));
        self.bytes
    }

    #[cfg(test)]
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The newest head in a file; `None` where its end is not as it was written.
pub(crate) fn head(file: &dyn File) -> Option<Vec<u8>> {
    const END: usize = Place::SIZE + 16;
    let end = file.read(file.size().checked_sub(END as u64)?, END)?;
    let (place, sealed) = end.split_first_chunk::<{ Place::SIZE }>()?;
    if seal(place) != sealed {
        return None;
    }
    Place::unpack(place).read(file)
}

/// Something small for a store to keep under a name, where it replaces what was there. Only the core
/// makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Packed {
    /// Bytes of anything, for suites that test stores: never in a product build.
    #[cfg(feature = "conformance")]
    pub fn raw(name: &'static str, bytes: Vec<u8>) -> Packed {
        Packed { name, bytes }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
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
    /// What a store keeps it as.
    pub const NAME: &str = "file";

    pub fn new(bytes: &[u8], plan: Hash) -> PlanFile {
        PlanFile { version: VERSION.to_owned(), raw: Hash::of(bytes), plan }
    }

    /// The plan that is in a file whose bytes have this hash, if this is that file.
    pub fn plan_in(&self, raw: Hash) -> Option<Hash> {
        (self.version == VERSION && self.raw == raw).then_some(self.plan)
    }

    pub fn pack(&self) -> Packed {
        let bytes = postcard::to_stdvec(self).expect("two hashes can be packed");
        Packed { name: PlanFile::NAME, bytes }
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
