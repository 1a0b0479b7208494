//! A run as a file and back: what a store keeps so that nobody folds a log from its beginning. Steps that
//! nothing happened to have no bytes, and the others are read when they are asked for.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::{Abandonment, Merged, Run, Sets, Step, Stop, Trees};
use crate::cache::{
    self, File, Keep, Place, Sheaf, VERSION, as_json, is_outgrown, pack_places, take_places,
};
use crate::event::{MergeIntent, RunOpened};
use crate::graph::{Graph, Part};
use crate::ids::{Hash, Oid};
use crate::list::{Extent, List, Pack, Pages, Source, pages_for};
use crate::record::Cursor;
use crate::time::Millis;

/// Who can fold a run once more, should a page of what was kept of it be damaged.
pub trait Again: Debug + Send + Sync {
    /// The run as its log left it at this cursor.
    fn fold(&self, at: Cursor) -> Run;
}

/// A run that is about to be kept.
pub struct PackedRun {
    needed: u64,
    graph: Place,
    steps: Vec<Place>,
}

/// Where a run is kept, if it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Home {
    file: u64,
    /// About how much of the file was needed when it was new.
    needed: u64,
    plan: Hash,
    graph: Place,
}

/// How a packed run begins; where its graph is and each page of its steps follows.
#[derive(Serialize, Deserialize)]
struct Head {
    version: String,
    needed: u64,
    plan: Hash,
    #[serde(with = "as_json")]
    opened: RunOpened,
    opened_at: Millis,
    changed_at: Millis,
    stop: Option<Stop>,
    abandoned: Option<Abandonment>,
    landed: Option<Oid>,
    merging: Option<MergeIntent>,
    merged: Option<Merged>,
    cursor: Cursor,
    trees: Trees,
    sets: Sets,
    open: Vec<u32>,
}

impl Run {
    /// For a store to keep as of the run's cursor: behind what is in the file where the run was read
    /// from there, else all of it.
    pub fn pack(&self, file: Option<&dyn File>) -> (Keep, PackedRun) {
        let grown = |file: &dyn File| {
            let home = self.home.filter(|home| home.file == file.id())?;
            (!is_outgrown(file.size(), home.needed)).then_some((home, file.size()))
        };
        let behind = file.and_then(grown);
        let mut sheaf = Sheaf::after(behind.map_or(0, |(_, size)| size));
        let graph = match behind {
            Some((home, _)) if home.plan == self.graph.hash() => home.graph,
            _ => self.graph.pack(&mut sheaf),
        };
        let extent = if behind.is_some() { Extent::Changed } else { Extent::Whole };
        let steps = self.steps.pack(&mut sheaf, extent);
        let needed = behind.map_or(sheaf.size(), |(home, _)| home.needed);
        let bytes = sheaf.under(&self.head(needed, graph, &steps));
        let keep = if behind.is_some() { Keep::Behind(bytes) } else { Keep::Instead(bytes) };
        (keep, PackedRun { needed, graph, steps })
    }

    fn head(&self, needed: u64, graph: Place, steps: &[Place]) -> Vec<u8> {
        // Every field is named, so that a new one is not forgotten.
        let Run {
            opened,
            opened_at,
            changed_at,
            stop,
            abandoned,
            landed,
            merging,
            merged,
            cursor,
            trees,
            graph: over,
            steps: _,
            sets,
            open,
            home: _,
        } = self;
        let head = Head {
            version: VERSION.to_owned(),
            needed,
            plan: over.hash(),
            opened: opened.clone(),
            opened_at: *opened_at,
            changed_at: *changed_at,
            stop: *stop,
            abandoned: *abandoned,
            landed: landed.clone(),
            merging: merging.clone(),
            merged: merged.clone(),
            cursor: *cursor,
            trees: trees.clone(),
            sets: sets.clone(),
            open: open.clone(),
        };
        let mut bytes = postcard::to_stdvec(&head).expect("a run's facts can be packed");
        pack_places(&[graph], &mut bytes);
        pack_places(steps, &mut bytes);
        bytes
    }

    /// What was packed is in this file now.
    pub fn is_kept(&mut self, packed: PackedRun, file: Arc<dyn File>, again: Arc<dyn Again>) {
        let PackedRun { needed, graph, steps } = packed;
        self.home = Some(Home { file: file.id(), needed, plan: self.graph.hash(), graph });
        let origin = Arc::new(Origin { file, at: self.cursor, again, folded: OnceLock::new() });
        self.steps.is_kept(Pages { source: origin.of(Lot::Steps), places: steps });
    }

    /// Whether it was read from a file, or is kept in one since.
    pub fn has_file(&self) -> bool {
        self.home.is_some()
    }

    /// The run in a file. `None` where another version wrote it, or where it is not as it was written.
    pub fn unpack(file: Arc<dyn File>, again: Arc<dyn Again>) -> Option<Run> {
        let bytes = cache::head(&*file)?;
        // Whatever else stands in another version's bytes, its name comes first.
        let (version, _): (String, _) = postcard::take_from_bytes(&bytes).ok()?;
        if version != VERSION {
            return None;
        }
        let (head, mut places): (Head, _) = postcard::take_from_bytes(&bytes).ok()?;
        let [graph_at] = take_places(&mut places, 1)?[..] else { return None };
        let id = file.id();
        let graph = graph_at.read(&*file)?;
        let origin = Origin { file, at: head.cursor, again, folded: OnceLock::new() };
        let origin = Arc::new(origin);
        let graph = Graph::unpack(&graph, |part| origin.of(Lot::Graph(part)))?;
        let len = graph.plan().steps.len();
        let places = take_places(&mut places, pages_for(len))?;
        let steps = List::kept(len, Pages { source: origin.of(Lot::Steps), places });
        #[rustfmt::skip]
        let Head {
            needed, plan, opened, opened_at, changed_at, stop, abandoned, landed, cursor, ..
        } = head;
        let Head { merging, merged, .. } = head;
        let home = Home { file: id, needed, plan, graph: graph_at };
        (graph.hash() == plan).then(|| Run {
            opened,
            opened_at,
            changed_at,
            stop,
            abandoned,
            landed,
            merging,
            merged,
            cursor,
            trees: head.trees,
            graph: Arc::new(graph),
            steps,
            sets: head.sets,
            open: head.open,
            home: Some(home),
        })
    }
}

/// Where pages of a run come from.
#[derive(Debug)]
struct Origin {
    file: Arc<dyn File>,
    /// What the run was kept as of.
    at: Cursor,
    again: Arc<dyn Again>,
    folded: OnceLock<Box<Run>>,
}

/// The lists that a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lot {
    Steps,
    Graph(Part),
}

impl Origin {
    fn of(self: &Arc<Origin>, lot: Lot) -> Arc<dyn Source> {
        Arc::new(LotOf { origin: Arc::clone(self), lot })
    }
}

struct LotOf {
    origin: Arc<Origin>,
    lot: Lot,
}

impl Source for LotOf {
    /// A damaged page says nothing, so that the log is asked.
    fn page(&self, number: usize, place: Place) -> Vec<u8> {
        let Origin { file, at, again, folded } = &*self.origin;
        place.read(&**file).unwrap_or_else(|| {
            let run = folded.get_or_init(|| Box::new(again.fold(*at)));
            match self.lot {
                Lot::Steps => run.steps.page(number),
                Lot::Graph(part) => run.graph.page(part, number),
            }
        })
    }
}

/// Where two folds of one log must agree.
impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        #[rustfmt::skip]
        let Run {
            opened, opened_at, changed_at, stop, abandoned, landed, merging, merged, cursor, trees,
            graph, steps, sets, open, home: _,
        } = self;
        *opened == other.opened
            && (*opened_at, *changed_at) == (other.opened_at, other.changed_at)
            && (*stop, *abandoned) == (other.stop, other.abandoned)
            && (landed, *cursor) == (&other.landed, other.cursor)
            && (merging, merged) == (&other.merging, &other.merged)
            && *trees == other.trees
            && graph.hash() == other.graph.hash()
            && *steps == other.steps
            && (sets, open) == (&other.sets, &other.open)
    }
}

impl Pack for Step {
    /// One that nothing happened to has no bytes.
    fn pack(&self, bytes: &mut Vec<u8>) {
        if *self != Step::default() {
            let packed = postcard::to_stdvec(self).expect("a step's facts can be packed");
            bytes.extend_from_slice(&packed);
        }
    }

    fn unpack(bytes: &[u8]) -> Option<Step> {
        match bytes {
            [] => Some(Step::default()),
            bytes => postcard::from_bytes(bytes).ok(),
        }
    }
}
