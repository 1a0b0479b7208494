//! What was seen of the machine: data that the rules are asked with. The engine looks; nothing here does.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Cause;
use crate::exit::{AgentExit, Heard};
use crate::ids::{AttemptId, HostId, StepRef, TreeNo};
use crate::time::Millis;

/// What was seen of an attempt's holder. Kernel locks speak; pids only explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sighting {
    /// Its lock is held on this host: running, or frozen.
    Alive,
    /// Its lock is free on this host.
    Dead(Corpse),
    /// Its lock on this host does not answer, and why: nobody takes its step before that is mended.
    Unknown(String),
    /// Not on this host: unknown until its lease is over.
    Elsewhere,
}

/// What was seen of the machine, by attempt. An attempt nobody looked for is elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The tree of the pool that whoever looked works in, and not in a worktree of its own.
    pub place: Option<TreeNo>,
    /// Holders outside who work in a tree of the pool.
    pub outside: BTreeMap<AttemptId, TreeNo>,
    /// Who looked.
    pub host: HostId,
    /// Steps of which nothing is left to go on from: their worktree is gone, and nothing of it was kept.
    pub lost: BTreeSet<StepRef>,
    pub attempts: BTreeMap<AttemptId, Sighting>,
    /// A worker of the run lives on this host.
    pub worker: bool,
}

impl Observed {
    pub fn of(&self, attempt: AttemptId) -> &Sighting {
        self.attempts.get(&attempt).unwrap_or(&Sighting::Elsewhere)
    }
}

/// What was found of a dead attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpse {
    /// The agent's exit record: it alone says whether the agent had ended.
    pub exit: Option<AgentExit>,
    /// What the agent had said by then.
    pub heard: Option<Box<Heard>>,
    pub cause: Cause,
    /// When the attempt was last known to live.
    pub at: Millis,
    pub evidence: String,
    /// Paths that differ from the step's base right now, where somebody looked.
    pub changed: Option<u64>,
}
