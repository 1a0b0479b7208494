//! Which snapshots may go. Of a step that is not completed none does; of the others the last of every
//! attempt stays, whatever its age, so does the last that the log names of it, and what the run would go
//! on from.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::{Fence, StepRef};
use crate::run::Run;
use crate::time::Millis;

/// How many snapshots of a completed step stay, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub keep: usize,
    pub keep_for: Duration,
}

/// A snapshot that may have to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aging {
    pub step: StepRef,
    pub fence: Fence,
    pub at: Millis,
    pub refname: String,
    /// The log names it. What only a ref names is counted with nothing, and goes by its age alone.
    pub recorded: bool,
}

/// Those that go, given all of a run, oldest first.
pub fn expendable<'a>(
    run: &Run,
    all: &'a [Aging],
    retention: Retention,
    now: Millis,
) -> Vec<&'a Aging> {
    // One that only a ref names does not take the place of the last that the log names.
    let of_attempt = |aging: &'a Aging| ((&aging.step, aging.fence), aging.refname.as_str());
    let last: BTreeMap<_, _> = all.iter().map(of_attempt).collect();
    let named = all.iter().filter(|aging| aging.recorded);
    let last_named: BTreeMap<_, _> = named.map(of_attempt).collect();
    let last: BTreeSet<&str> = last.into_values().chain(last_named.into_values()).collect();
    let stays = |aging: &Aging| match run.step(&aging.step) {
        Some((_, state)) => {
            let named = state.snapshot.as_ref().map(|kept| kept.snapshot.refname.as_str());
            !state.is_completed()
                || named == Some(aging.refname.as_str())
                || last.contains(aging.refname.as_str())
        }
        None => true,
    };
    let mut newer: BTreeMap<&StepRef, usize> = BTreeMap::new();
    let mut gone = Vec::new();
    for aging in all.iter().rev() {
        let newer = newer.entry(&aging.step).or_default();
        let too_many = aging.recorded && *newer >= retention.keep;
        *newer += usize::from(aging.recorded);
        let too_old = now.since(aging.at) > retention.keep_for;
        if (too_many || too_old) && !stays(aging) {
            gone.push(aging);
        }
    }
    gone.reverse();
    gone
}
