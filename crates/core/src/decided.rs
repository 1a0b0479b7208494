//! What a decision produced, ready to be kept. Only the core can build one and a store can only keep
//! it, so going around the rules is a compile error.

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::ids::Fence;
use crate::time::Moment;

/// How long a claim is believed without a heartbeat. Liveness only, never ownership: losing this row
/// loses nothing, because `Claimed` carries the first expiry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// What is leased, opaque to a store.
    pub key: String,
    pub fence: Fence,
    pub until: Moment,
}

/// What a batch does to the run's key (one active run per key).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    Kept,
    Freed,
    /// The run has it again: refused where another run has it.
    Retaken,
}

/// A batch that the rules allowed: event bodies in order, lease rows to set, large texts to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    events: Vec<Event>,
    bodies: Vec<Vec<u8>>,
    leases: Vec<Lease>,
    texts: Vec<Vec<u8>>,
    key: KeyChange,
}

impl Decided {
    pub(crate) fn new(events: Vec<Event>) -> Decided {
        Decided {
            bodies: events.iter().map(Event::to_body).collect(),
            events,
            leases: Vec::new(),
            texts: Vec::new(),
            key: KeyChange::Kept,
        }
    }

    /// With another event before all of these.
    pub(crate) fn after(mut self, first: Event) -> Decided {
        self.bodies.insert(0, first.to_body());
        self.events.insert(0, first);
        self
    }

    /// With more events behind these.
    pub(crate) fn and(mut self, more: Vec<Event>) -> Decided {
        self.bodies.extend(more.iter().map(Event::to_body));
        self.events.extend(more);
        self
    }

    pub(crate) fn with_lease(mut self, lease: Lease) -> Decided {
        self.leases.push(lease);
        self
    }

    pub(crate) fn with_text(mut self, text: Vec<u8>) -> Decided {
        self.texts.push(text);
        self
    }

    /// With all of another batch behind it. What it does to the key is undone: the run goes on.
    pub(crate) fn going_on(mut self, more: Decided) -> Decided {
        self.events.extend(more.events);
        self.bodies.extend(more.bodies);
        self.leases.extend(more.leases);
        self.texts.extend(more.texts);
        self.key = KeyChange::Kept;
        self
    }

    pub(crate) fn freeing_key(mut self) -> Decided {
        self.key = KeyChange::Freed;
        self
    }

    pub(crate) fn taking_key(mut self) -> Decided {
        self.key = KeyChange::Retaken;
        self
    }

    /// A batch of anything, for suites that test stores: never in a product build.
    #[cfg(feature = "conformance")]
    pub fn raw(
        bodies: Vec<Vec<u8>>,
        leases: Vec<Lease>,
        texts: Vec<Vec<u8>>,
        key: KeyChange,
    ) -> Decided {
        Decided { events: Vec::new(), bodies, leases, texts, key }
    }

    /// What the bodies say, for whoever folds them in once they are kept: they need not be read again.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub fn bodies(&self) -> &[Vec<u8>] {
        &self.bodies
    }

    /// A row replaces an earlier one of the same key.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Kept once each under the hash of their bytes.
    pub fn texts(&self) -> &[Vec<u8>] {
        &self.texts
    }

    pub fn key(&self) -> KeyChange {
        self.key
    }
}
