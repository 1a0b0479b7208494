//! Snapshots while an agent works, and since when there was none.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use piton_core::event::{Snapshot, SnapshotReason};
use piton_core::ids::{Fence, Oid, StepRef};
use piton_git::repo::GitError;
use piton_git::repo::chain;
use piton_git::snapshot::{self, Ask};
use piton_git::worktree::Worktree;

use super::{Keeper, note, record_snapshot};
use crate::folder::{Folder, RiskRecord};
use crate::machine;
use crate::run::log::Log;
use crate::run::step_snapshot;

/// A snapshot is followed by so many times as long without one.
const SNAPSHOT_SHARE: u32 = 20;

/// Takes snapshots on a thread of its own, so that a slow one delays no stop, until it is dropped.
pub(super) struct Cadence {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Cadence {
    pub(super) fn start(keeper: &Keeper) -> Cadence {
        let (stop, stopped) = mpsc::channel::<()>();
        let state = keeper.state();
        let kept = state.snapshot.as_ref();
        let every = keeper.settings.snapshot_every;
        let mut watch = Watch {
            log: keeper.log.another(),
            step: keeper.step.clone(),
            fence: keeper.fence,
            tree: keeper.tree.clone(),
            last: kept.map(|kept| kept.snapshot.tree.clone()),
            every,
            shown: keeper.shown_branch(),
            shown_every: keeper.settings.snapshot_branch_every,
            shown_at: None,
            folder: keeper.folder.clone(),
            risk: RiskRecord {
                saved_at: machine::now(),
                snapshot: kept.map(|kept| kept.snapshot.refname.clone()),
                interval_ms: millis(every),
                every_ms: millis(every),
                failing: None,
            },
        };
        let thread = std::thread::spawn(move || watch.run(&stopped));
        Cadence { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Cadence {
    fn drop(&mut self) {
        self.stop = None;
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Looks at a tree that an agent works in.
struct Watch {
    log: Log,
    step: StepRef,
    fence: Fence,
    tree: Worktree,
    /// The tree of the last snapshot.
    last: Option<Oid>,
    every: Duration,
    /// The branch that shows the snapshots, and the folder of the step's refs.
    shown: Option<(String, String)>,
    shown_every: Duration,
    shown_at: Option<Instant>,
    folder: Folder,
    risk: RiskRecord,
}

impl Watch {
    fn run(&mut self, stopped: &Receiver<()>) {
        let mut pause = self.every;
        self.publish();
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let began = Instant::now();
            let taken = self.take();
            // Never more than a small share of a core, however large the tree.
            pause = self.every.max(began.elapsed() * SNAPSHOT_SHARE);
            self.risk.interval_ms = millis(pause);
            let recorded = match taken {
                Ok(Some(snapshot)) => {
                    let under = (&self.step, self.fence);
                    record_snapshot(&mut self.log, under, snapshot).map(|()| self.show_if_due())
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = recorded {
                note(&format!("a snapshot failed: {}", chain(&error)));
            }
            self.publish();
            // What fails now is tried again.
            let _the_next_time = snapshot::consolidate(self.tree.git());
        }
        // Those that checkpoints have kept, too.
        self.show();
    }

    fn take(&mut self) -> Result<Option<Snapshot>, GitError> {
        let began = machine::now();
        // What was reported meanwhile is in the message; without it the bytes are kept all the same.
        let _older = self.log.refresh();
        let taken = snapshot::keep(&self.tree, &self.ask());
        match &taken {
            Ok(taken) => {
                (self.risk.saved_at, self.risk.failing) = (began, None);
                if let Some(taken) = taken {
                    self.last = Some(taken.tree.clone());
                    self.risk.snapshot = Some(taken.refname.clone());
                }
            }
            Err(error) => self.risk.failing = Some(chain(error)),
        }
        taken
    }

    fn ask(&self) -> Ask {
        let under = (&self.step, self.fence);
        let ask = step_snapshot::ask(&self.log, under, SnapshotReason::Cadence);
        Ask { last: self.last.clone(), ..ask }
    }

    /// For whoever looks; nobody looking is no matter.
    fn publish(&self) {
        let _best_effort = self.folder.write_risk(&self.risk);
    }

    fn show_if_due(&mut self) {
        if self.shown_at.is_none_or(|at| at.elapsed() >= self.shown_every) {
            self.show();
        }
    }

    fn show(&mut self) {
        if let Some((branch, step)) = &self.shown {
            step_snapshot::show(self.tree.git(), branch, step);
            self.shown_at = Some(Instant::now());
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
