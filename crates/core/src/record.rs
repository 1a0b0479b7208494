//! The log's outer shape: numbered, hash-chained records whose bodies a store never opens.

use serde::{Deserialize, Serialize};

use crate::ids::{Hash, Position, RunId};
use crate::time::Millis;

/// How far a reader has come: a position and the chain's hash there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    pub position: Position,
    pub hash: Hash,
}

impl Cursor {
    /// Before the first record.
    pub const START: Cursor = Cursor { position: Position::START, hash: Hash::ZERO };
}

/// One entry of a run's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub position: Position,
    /// The store's wall clock when it was appended.
    pub at: Millis,
    pub body: Vec<u8>,
    /// The chain's hash up to and including this record.
    pub hash: Hash,
}

impl Record {
    /// The record that follows `previous` with this body.
    pub fn following(run: RunId, previous: Cursor, at: Millis, body: Vec<u8>) -> Record {
        let position = previous.position.next();
        let hash = link(run, previous.hash, position, at, &body);
        Record { position, at, body, hash }
    }

    /// Whether this record is the one that follows `previous` in this run's chain.
    pub fn follows(&self, run: RunId, previous: Cursor) -> bool {
        self.position == previous.position.next()
            && self.hash == link(run, previous.hash, self.position, self.at, &self.body)
    }

    pub fn cursor(&self) -> Cursor {
        Cursor { position: self.position, hash: self.hash }
    }
}

fn link(run: RunId, previous: Hash, position: Position, at: Millis, body: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(run.0.as_bytes());
    hasher.update(previous.as_bytes());
    hasher.update(&position.0.to_le_bytes());
    hasher.update(&at.0.to_le_bytes());
    hasher.update(body);
    Hash::from_bytes(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_breaks_the_chain() {
        let run = RunId(uuid::Uuid::from_u128(7));
        let first = Record::following(run, Cursor::START, Millis(1), b"one".to_vec());
        let second = Record::following(run, first.cursor(), Millis(2), b"two".to_vec());
        assert!(first.follows(run, Cursor::START) && second.follows(run, first.cursor()));
        assert!(!second.follows(run, Cursor::START), "out of order");
        assert!(!second.follows(RunId(uuid::Uuid::from_u128(8)), first.cursor()), "foreign run");
        let mut changed = second.clone();
        changed.body[0] ^= 1;
        assert!(!changed.follows(run, first.cursor()), "flipped bit");
        let mut moved = second;
        moved.at = Millis(3);
        assert!(!moved.follows(run, first.cursor()), "changed time");
    }
}
