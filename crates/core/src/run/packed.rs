//! A run as bytes and back: what a store keeps so that nobody folds a log from its beginning. Steps that
//! nothing happened to have no bytes, and the others are read when they are asked for.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Run, Sets, Step, Stop, waits};
use crate::cache::{Packed, VERSION, as_json};
use crate::event::RunOpened;
use crate::graph::Graph;
use crate::ids::{Hash, Oid};
use crate::list::{List, Parts, Slices, Unpack};
use crate::record::Cursor;
use crate::time::Millis;

/// A packed run whose plan is not there yet.
pub struct PackedRun {
    head: Head,
    bytes: Vec<u8>,
    /// Where the steps begin.
    steps: usize,
}

/// How a packed run begins; where each step begins and their bytes follow.
#[derive(Serialize, Deserialize)]
struct Head {
    version: String,
    plan: Hash,
    #[serde(with = "as_json")]
    opened: RunOpened,
    opened_at: Millis,
    changed_at: Millis,
    stop: Option<Stop>,
    landed: Option<Oid>,
    cursor: Cursor,
    sets: Sets,
}

impl Run {
    /// For a store to keep: the run as of its cursor.
    pub fn pack(&self) -> Packed {
        // Every field is named, so that a new one is not forgotten; `waits` follows from the others.
        let Run {
            opened,
            opened_at,
            changed_at,
            stop,
            landed,
            cursor,
            graph,
            steps,
            sets,
            waits: _,
        } = self;
        let head = Head {
            version: VERSION.to_owned(),
            plan: graph.hash(),
            opened: opened.clone(),
            opened_at: *opened_at,
            changed_at: *changed_at,
            stop: *stop,
            landed: landed.clone(),
            cursor: *cursor,
            sets: sets.clone(),
        };
        let (starts, all) = steps.pack(Step::pack);
        let mut bytes = postcard::to_stdvec(&head).expect("a run's facts can be packed");
        bytes.extend(starts.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend_from_slice(&all);
        Packed::run(bytes)
    }
}

impl PackedRun {
    /// `None` where another version wrote the bytes.
    pub fn read(bytes: Vec<u8>) -> Option<PackedRun> {
        // Whatever else stands in another version's bytes, its name comes first.
        let (version, _): (String, _) = postcard::take_from_bytes(&bytes).ok()?;
        if version != VERSION {
            return None;
        }
        let (head, steps): (Head, _) = postcard::take_from_bytes(&bytes).ok()?;
        let steps = bytes.len() - steps.len();
        Some(PackedRun { head, bytes, steps })
    }

    /// The plan that it is folded over.
    pub fn plan(&self) -> Hash {
        self.head.plan
    }

    /// The run. `None` where the graph is another plan's.
    pub fn over(self, graph: Graph) -> Option<Run> {
        let Head { plan, opened, opened_at, changed_at, stop, landed, cursor, sets, .. } =
            self.head;
        if graph.hash() != plan {
            return None;
        }
        let bytes = Arc::new(self.bytes);
        let mut parts = Parts::new(Arc::clone(&bytes), self.steps);
        let starts = parts.numbers(graph.plan().steps.len() + 1)?;
        let steps = Slices { bytes, starts, from: parts.rest() };
        Some(Run {
            opened,
            opened_at,
            changed_at,
            stop,
            landed,
            cursor,
            waits: waits(&graph, &sets.completed),
            graph: Arc::new(graph),
            steps: List::packed(steps),
            sets,
        })
    }
}

/// Where two folds of one log must agree.
impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        let Run { opened, opened_at, changed_at, stop, landed, cursor, graph, steps, sets, waits } =
            self;
        *opened == other.opened
            && (*opened_at, *changed_at) == (other.opened_at, other.changed_at)
            && (*stop, landed, *cursor) == (other.stop, &other.landed, other.cursor)
            && graph.hash() == other.graph.hash()
            && *steps == other.steps
            && (sets, waits) == (&other.sets, &other.waits)
    }
}

impl Step {
    /// One that nothing happened to has no bytes.
    fn pack(&self, bytes: &mut Vec<u8>) {
        if *self != Step::default() {
            let packed = postcard::to_stdvec(self).expect("a step's facts can be packed");
            bytes.extend_from_slice(&packed);
        }
    }
}

impl Unpack for Step {
    fn unpack(bytes: &[u8]) -> Option<Step> {
        match bytes {
            [] => Some(Step::default()),
            bytes => postcard::from_bytes(bytes).ok(),
        }
    }
}
