//! Watching a child: its exit, requests to stop, its time limit, snapshots while it works.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use piton_core::decide::{AgentExit, Urge};
use piton_core::event::{Cause, Haste, SnapshotReason};
use piton_core::run::Stop;
use rustix::process::Signal;

use super::{End, Input, Keeper, snapshot_message};
use crate::attempt::ExitRecord;
use crate::child::Child;
use crate::crash;
use crate::error::{EngineError, chain};
use crate::snapshot;

/// How often the log is looked at for a request to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How a child ended.
pub(super) struct Finished {
    pub(super) ended: AgentExit,
    pub(super) tail: String,
    /// Processes of the child that could not be ended.
    pub(super) survivors: Vec<i32>,
}

/// What a child is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    /// It works on the tree: snapshots are taken meanwhile, and its exit is recorded at once.
    Agent,
    /// It looks at the tree.
    Check,
}

/// The steps from asking to killing.
struct Ladder {
    began: Instant,
    asked_again: bool,
    killed: bool,
}

impl Keeper {
    /// Watches a child until nothing of it runs any more.
    pub(super) fn supervise(
        &mut self,
        mut child: Child,
        watched: Watched,
    ) -> Result<Finished, End> {
        let cadence = match watched {
            Watched::Agent => Some(self.start_cadence()),
            Watched::Check => None,
        };
        let began = Instant::now();
        let mut ladder: Option<Ladder> = None;
        // What it was urged to first is what it was ended for.
        let mut urge = Urge::Nothing;
        let mut lost = false;
        let exit = loop {
            match self.inputs.recv_timeout(LOOK_EVERY) {
                Ok(Input::Exited(exit)) => break exit,
                Ok(Input::Signal(signal)) => self.signal(signal),
                Ok(Input::Snapshot(taken)) => self.take_in(taken),
                Ok(Input::CheckoutChanged(paths)) => self.take_in_changed(&paths),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            let stop = match self.requested() {
                Ok(stop) => stop,
                Err(End::Lost) => {
                    lost = true;
                    Some(at_once(self.log.run().changed_at))
                }
                // A store that does not answer stops nothing: the lease bounds how long that can be.
                Err(_) => None,
            };
            if urge == Urge::Nothing {
                let time_up = self.plan.timeout.is_some_and(|limit| began.elapsed() > limit);
                urge = match stop {
                    Some(stop) => Urge::Stop(stop.cause),
                    None if time_up => Urge::TimeUp,
                    None => Urge::Nothing,
                };
            }
            if urge != Urge::Nothing {
                let grace = self.settings.grace;
                climb(&child, ladder.get_or_insert_with(|| first_step(&child, urge)), stop, grace);
            }
        };
        let ended = AgentExit { exit, urge };
        crash::point("keeper.child-exited");
        if watched == Watched::Agent {
            self.record_exit(ended, String::new())?;
        }
        if let Some(cadence) = cadence {
            cadence.end();
            // A snapshot that was under way has its number, and is worth as much as any other.
            self.take_in_waiting();
        }
        let survivors = child.end_leftovers();
        let tail = child.tail();
        if lost {
            return Err(End::Lost);
        }
        Ok(Finished { ended, tail, survivors })
    }

    /// From here on the agent is not started again, whatever happens to this process.
    pub(super) fn record_exit(&self, ended: AgentExit, tail: String) -> Result<(), End> {
        let record = ExitRecord { ended, tail };
        self.folder.write_exit(&record).map_err(EngineError::io("exit.json cannot be written"))?;
        crash::point("keeper.exit-recorded");
        Ok(())
    }

    pub(super) fn take_in(
        &mut self,
        taken: Result<Option<piton_core::event::Snapshot>, crate::git::GitError>,
    ) {
        let recorded = match taken {
            Ok(Some(snapshot)) => self.record_snapshot(snapshot),
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = recorded {
            self.note(&format!("a snapshot failed: {}", chain(&error)));
        }
    }

    /// Takes snapshots on a thread of its own, so that a slow one delays no stop.
    fn start_cadence(&self) -> Cadence {
        let (stop, stopped) = mpsc::channel::<()>();
        let to = self.sender.clone();
        let tree = self.tree.clone();
        let base = self.state().base.clone();
        let mut last = self.state().snapshot.as_ref().map(|kept| kept.snapshot.tree.clone());
        let reason = SnapshotReason::Cadence;
        let message = snapshot_message(&self.log, (&self.step, self.fence), reason, None);
        let stem = self.snapshot_ref(0);
        let stem = stem.trim_end_matches('0').to_owned();
        let mut number = self.snapshots;
        let every = self.settings.snapshot_every;
        let thread = std::thread::spawn(move || {
            let mut pause = every;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                let ask = snapshot::Ask {
                    refname: format!("{stem}{}", number + 1),
                    base: base.as_ref(),
                    message: &message,
                    reason,
                    last: last.as_ref(),
                };
                let taken = snapshot::take(&tree, &ask);
                if let Ok(Some(taken)) = &taken {
                    number += 1;
                    last = Some(taken.tree.clone());
                }
                // Never more than a small share of a core, however large the tree.
                pause = every.max(began.elapsed() * 20);
                if to.send(Input::Snapshot(taken)).is_err() {
                    return;
                }
                // It has been told: whatever this takes delays nobody. What fails now is tried again.
                let _the_next_time = snapshot::consolidate(tree.git());
            }
        });
        Cadence { stop, thread }
    }
}

/// Snapshots in the background, until ended.
struct Cadence {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Cadence {
    fn end(self) {
        drop(self.stop);
        let _panicked = self.thread.join();
    }
}

fn at_once(at: piton_core::time::Millis) -> Stop {
    Stop { cause: Cause::Unknown, haste: Haste::Now, at }
}

fn first_step(child: &Child, urge: Urge) -> Ladder {
    // The signal the person sent is the one that programs are written to expect.
    let signal = match urge {
        Urge::Stop(Cause::UserInterrupt) => Signal::INT,
        _ => Signal::TERM,
    };
    child.signal(signal);
    Ladder { began: Instant::now(), asked_again: false, killed: false }
}

/// Asks, asks more firmly after half the grace, kills at its end, or at once when told so.
fn climb(child: &Child, ladder: &mut Ladder, stop: Option<Stop>, grace: Duration) {
    let now = stop.is_some_and(|stop| stop.haste == Haste::Now);
    let waited = ladder.began.elapsed();
    if !ladder.asked_again && waited >= grace / 2 {
        ladder.asked_again = true;
        child.signal(Signal::TERM);
    }
    if !ladder.killed && (now || waited >= grace) {
        ladder.killed = true;
        child.signal(Signal::KILL);
    }
}
