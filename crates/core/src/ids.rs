//! Names and ids. Each is checked once, where it enters; inside, a `StepId` is valid by construction.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::{Builder, Uuid, Version};

use crate::limits::NAME_MAX;

/// A name broke the grammar of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid {kind}: {rule}")]
pub struct BadName {
    pub kind: &'static str,
    pub text: String,
    pub rule: &'static str,
}

const NAME_RULE: &str = "use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit";

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= NAME_MAX
        && bytes.next().is_some_and(plain)
        && bytes.all(|b| plain(b) || b == b'_' || b == b'-')
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $type(Arc<str>);

        impl $type {
            pub fn new(text: impl Into<String>) -> Result<Self, BadName> {
                let text = text.into();
                if is_name(&text) {
                    Ok(Self(text.into()))
                } else {
                    Err(BadName { kind: $kind, text, rule: NAME_RULE })
                }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                Self::new(text)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A step's id within its plan.
    StepId,
    "step id"
);
name!(
    /// A group's id within its plan.
    GroupId,
    "group id"
);
name!(
    /// A substep's id within its step.
    SubstepId,
    "substep id"
);
name!(
    /// A loop's id within its plan.
    LoopId,
    "loop id"
);
name!(
    /// What a step is for, in the plan's own word.
    KindName,
    "kind"
);
name!(
    /// The name of a lock.
    LockName,
    "lock name"
);
name!(
    /// The name of an output.
    OutputName,
    "output name"
);
name!(
    /// The name of an agent definition.
    AgentName,
    "agent name"
);
name!(
    /// The name of an account that agents work on.
    AccountName,
    "account name"
);
name!(
    /// A run's name for people: two words. It is also safe in a branch and in a path.
    Handle,
    "run handle"
);

macro_rules! uuid_id {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(pub Uuid);

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl FromStr for $type {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                Uuid::parse_str(text).map($type)
            }
        }
    };
}

uuid_id!(
    /// One execution of a plan.
    RunId
);
uuid_id!(
    /// What happens under one claim; names the attempt's folder on its host.
    AttemptId
);

impl AttemptId {
    /// The id of a conversation that begins in this attempt. Some agents take random uuids (version 4) alone.
    pub fn session(self) -> String {
        let bytes = self.0.into_bytes();
        Builder::from_bytes(bytes).with_version(Version::Random).into_uuid().to_string()
    }
}
uuid_id!(
    /// A store's own identity, made when it was created.
    StoreId
);

/// A place in a run's log; the first record stands at 1, so 0 means "before everything".
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    pub const START: Position = Position(0);

    pub fn next(self) -> Position {
        Position(self.0 + 1)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The log position of a claim: unique, growing, and needed by every later write under that claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A worktree of a run's pool: its number on its host, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TreeNo(pub u32);

impl fmt::Display for TreeNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A question: the position of its record. Written `q12`, so that it is not taken for a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QuestionId(pub u64);

impl FromStr for QuestionId {
    type Err = BadName;
    fn from_str(text: &str) -> Result<QuestionId, BadName> {
        match text.strip_prefix('q').map(str::parse) {
            Some(Ok(position)) => Ok(QuestionId(position)),
            _ => {
                let (kind, text, rule) = ("question", text.to_owned(), "use q and its number");
                Err(BadName { kind, text, rule })
            }
        }
    }
}

impl TryFrom<String> for QuestionId {
    type Error = BadName;
    fn try_from(text: String) -> Result<QuestionId, BadName> {
        text.parse()
    }
}

impl From<QuestionId> for String {
    fn from(question: QuestionId) -> String {
        question.to_string()
    }
}

impl fmt::Display for QuestionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "q{}", self.0)
    }
}

impl From<Position> for QuestionId {
    fn from(position: Position) -> QuestionId {
        QuestionId(position.0)
    }
}

impl From<Position> for Fence {
    fn from(position: Position) -> Fence {
        Fence(position.0)
    }
}

/// A step in one iteration of its loop; iteration 1 outside loops. Shown `review#3`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepRef {
    pub step: StepId,
    pub iteration: u32,
}

impl StepRef {
    pub fn first(step: StepId) -> StepRef {
        StepRef { step, iteration: 1 }
    }
}

impl fmt::Display for StepRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.iteration {
            1 => self.step.fmt(f),
            n => write!(f, "{}#{n}", self.step),
        }
    }
}

/// As it is shown.
impl FromStr for StepRef {
    type Err = BadName;

    fn from_str(text: &str) -> Result<StepRef, BadName> {
        let Some((step, iteration)) = text.split_once('#') else {
            return StepId::new(text).map(StepRef::first);
        };
        let bad =
            |_| BadName { kind: "iteration", text: text.to_owned(), rule: "a number follows #" };
        Ok(StepRef { step: StepId::new(step)?, iteration: iteration.parse().map_err(bad)? })
    }
}

/// A checklist line: `3` is the third item of a step, `validate.1` the first of its substep.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ItemRef {
    pub substep: Option<SubstepId>,
    /// Counted from 1; items added at run time follow those of the plan.
    pub number: u32,
}

impl ItemRef {
    pub fn new(substep: Option<SubstepId>, number: u32) -> ItemRef {
        ItemRef { substep, number }
    }
}

impl TryFrom<String> for ItemRef {
    type Error = BadName;
    fn try_from(text: String) -> Result<ItemRef, BadName> {
        let rule = "use its number, such as 3, or validate.1 for an item of a substep";
        let bad = || BadName { kind: "item", text: text.clone(), rule };
        let (substep, number) = match text.rsplit_once('.') {
            Some((substep, number)) => (Some(SubstepId::new(substep).map_err(|_| bad())?), number),
            None => (None, text.as_str()),
        };
        match number.parse() {
            Ok(number) if number > 0 => Ok(ItemRef { substep, number }),
            _ => Err(bad()),
        }
    }
}

impl From<ItemRef> for String {
    fn from(item: ItemRef) -> String {
        item.to_string()
    }
}

impl fmt::Display for ItemRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.substep {
            Some(substep) => write!(f, "{substep}.{}", self.number),
            None => self.number.fmt(f),
        }
    }
}

/// A host: the machine's id, or what `PITON_HOST_ID` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostId(pub String);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One start of a host's kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub String);

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A git object id in hex (SHA-1 or SHA-256).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Oid(String);

impl Oid {
    pub fn new(text: impl Into<String>) -> Result<Oid, BadName> {
        let text = text.into();
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if matches!(text.len(), 40 | 64) && text.bytes().all(hex) {
            Ok(Oid(text))
        } else {
            Err(BadName { kind: "object id", text, rule: "use 40 or 64 lower-case hex digits" })
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first ten digits, for people.
    pub fn short(&self) -> &str {
        &self.0[..10]
    }
}

impl TryFrom<String> for Oid {
    type Error = BadName;
    fn try_from(text: String) -> Result<Oid, BadName> {
        Oid::new(text)
    }
}

impl From<Oid> for String {
    fn from(oid: Oid) -> String {
        oid.0
    }
}

impl Serialize for Oid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        hex::serialize(&self.0, to)
    }
}

impl<'de> Deserialize<'de> for Oid {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Oid, D::Error> {
        Oid::new(hex::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A BLAKE3 hash, written as hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash([u8; 32]);

impl Hash {
    /// What the first record of a log is chained to.
    pub const ZERO: Hash = Hash([0; 32]);

    pub fn of(bytes: &[u8]) -> Hash {
        Hash(*blake3::hash(bytes).as_bytes())
    }

    pub fn from_bytes(bytes: [u8; 32]) -> Hash {
        Hash(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first twelve digits, for people.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

/// A hash of bytes that come in pieces.
#[derive(Debug, Clone, Default)]
pub struct Hashing(blake3::Hasher);

impl Hashing {
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn hash(&self) -> Hash {
        Hash(*self.0.finalize().as_bytes())
    }
}

impl TryFrom<String> for Hash {
    type Error = BadName;
    fn try_from(text: String) -> Result<Hash, BadName> {
        match blake3::Hash::from_hex(&text) {
            Ok(hash) => Ok(Hash(*hash.as_bytes())),
            Err(_) => Err(BadName { kind: "hash", text, rule: "use 64 hex digits" }),
        }
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> String {
        hash.to_string()
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        hex::serialize(&self.to_string(), to)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Hash, D::Error> {
        Hash::try_from(hex::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        blake3::Hash::from_bytes(self.0).to_hex().fmt(f)
    }
}

/// Hex digits as text for people, as the bytes they stand for in packed data.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            return to.serialize_str(text);
        }
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16);
        let bytes: Result<Vec<u8>, _> = (0..text.len()).step_by(2).map(byte).collect();
        to.serialize_bytes(&bytes.map_err(serde::ser::Error::custom)?)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        if from.is_human_readable() {
            return String::deserialize(from);
        }
        let bytes = <&[u8]>::deserialize(from)?;
        let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
        let digits = |byte: &u8| [digit(byte >> 4), digit(byte & 15)];
        Ok(bytes.iter().flat_map(digits).collect())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({})", self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_grammar() {
        for good in ["a", "0", "jwt", "a-b_c9", &"x".repeat(64)] {
            assert!(StepId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "_a", "A", "a b", "a/b", "a.b", "é", "a\n", &"x".repeat(65)] {
            assert!(StepId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn hashes_round_trip_through_text() {
        let hash = Hash::of(b"piton");
        assert_eq!(Hash::try_from(hash.to_string()), Ok(hash));
        assert!(Hash::try_from("zz".to_owned()).is_err());
    }

    #[test]
    fn a_step_is_read_as_it_is_shown() {
        for text in ["review", "review#3"] {
            let read: StepRef = text.parse().expect("a step");
            assert_eq!(read.to_string(), text);
        }
        for bad in ["", "#3", "review#", "review#x", "Review", "review#3#4"] {
            bad.parse::<StepRef>().expect_err(bad);
        }
    }
}
