//! The ids that git gives to files, worked out here: a snapshot knows what a file's bytes are called
//! before git has seen them, and only hands over those that are new.

use std::fmt;

use piton_core::ids::Oid;
use sha1_checked::Digest;

/// Why a file has no id: git refuses to have two contents under one name.
pub(crate) const COLLISION: &str = "git refuses its bytes: they are made to collide in SHA-1";

/// Which ids a repository uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Sha1,
    Sha256,
}

impl Format {
    pub(crate) fn of(id: &Oid) -> Format {
        match id.as_str().len() {
            40 => Format::Sha1,
            _ => Format::Sha256,
        }
    }
}

/// An object id as bytes: there are as many in memory as there are files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id {
    len: u8,
    bytes: [u8; 32],
}

impl Id {
    /// From bytes; `None` when there are not as many as an id has.
    pub(crate) fn new(bytes: &[u8]) -> Option<Id> {
        let mut id = Id { len: bytes.len() as u8, bytes: [0; 32] };
        matches!(bytes.len(), 20 | 32).then(|| {
            id.bytes[..bytes.len()].copy_from_slice(bytes);
            id
        })
    }

    pub(crate) fn parse(hex: &[u8]) -> Option<Id> {
        let digit = |b: u8| (b as char).to_digit(16).map(|digit| digit as u8);
        let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let bytes: Option<Vec<u8>> = hex.chunks_exact(2).map(byte).collect();
        bytes.filter(|_| hex.len().is_multiple_of(2)).and_then(|bytes| Id::new(&bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The id of a file whose bytes come piece by piece.
pub(crate) enum Hashing {
    Sha1(Box<sha1_checked::Sha1>),
    Sha256(sha2::Sha256),
}

impl Hashing {
    /// Of a file with this many bytes.
    pub(crate) fn blob(format: Format, len: u64) -> Hashing {
        let mut hashing = Hashing::begun(format);
        hashing.add(format!("blob {len}\0").as_bytes());
        hashing
    }

    fn begun(format: Format) -> Hashing {
        match format {
            Format::Sha1 => Hashing::Sha1(Box::new(sha1_checked::Sha1::new())),
            Format::Sha256 => Hashing::Sha256(sha2::Sha256::new()),
        }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        match self {
            Hashing::Sha1(state) => state.update(bytes),
            Hashing::Sha256(state) => state.update(bytes),
        }
    }

    pub(crate) fn id(self) -> Result<Id, &'static str> {
        let id = match self {
            Hashing::Sha1(state) => {
                let made = state.try_finalize();
                if made.has_collision() {
                    return Err(COLLISION);
                }
                Id::new(made.hash())
            }
            Hashing::Sha256(state) => Id::new(&state.finalize()),
        };
        Ok(id.expect("a digest is as long as an id"))
    }
}

/// Whether an index ends with the digest of what is before it, or says that it has none.
pub(crate) fn is_sealed(index: &[u8]) -> bool {
    let ends_with = |format: Format, len: usize| {
        let Some((bytes, seal)) = index.split_at_checked(index.len().saturating_sub(len)) else {
            return false;
        };
        let mut hashing = Hashing::begun(format);
        hashing.add(bytes);
        seal.len() == len
            && (seal.iter().all(|byte| *byte == 0)
                || hashing.id().is_ok_and(|id| id.bytes() == seal))
    };
    index.starts_with(b"DIRC") && (ends_with(Format::Sha1, 20) || ends_with(Format::Sha256, 32))
}

/// The id of a file with these bytes.
pub(crate) fn blob(format: Format, bytes: &[u8]) -> Result<Id, &'static str> {
    let mut hashing = Hashing::blob(format, bytes.len() as u64);
    hashing.add(bytes);
    hashing.id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_gits() {
        let id = |format| blob(format, b"hello\n").expect("no collision").to_string();
        assert_eq!(id(Format::Sha1), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(
            id(Format::Sha256),
            "2cf8d83d9ee29543b34a87727421fdecb7e3f3a183d337639025de576db9ebb4"
        );
        let text = id(Format::Sha1);
        assert_eq!(Id::parse(text.as_bytes()).expect("an id").to_string(), text);
        assert_eq!(Id::parse(&text.as_bytes()[1..]), None);
        assert_eq!(Id::parse(b"zz013625030ba8dba906f756967f9e9ca394464a"), None);
    }
}
