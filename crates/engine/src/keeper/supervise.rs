//! Watching a child: its exit, requests to stop, its time limit, snapshots while it works.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use piton_core::event::{Cause, Haste, Snapshot, SnapshotReason};
use piton_core::exit::{AgentExit, StopRequest};
use piton_core::ids::Oid;
use piton_core::run::Stop;
use rustix::process::Signal;

use super::{End, Input, Keeper, snapshot_message};
use crate::attempt::{ExitRecord, Folder, RiskRecord};
use crate::child::Child;
use crate::crash;
use crate::error::{EngineError, chain};
use crate::git::GitError;
use crate::machine;
use crate::snapshot;
use crate::worktree::Worktree;

/// How often the log is looked at for a request to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How soon, and how often, it is counted between snapshots what none has.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const RISK_EVERY: Duration = Duration::from_secs(5);
/// A count, and a snapshot, are followed by so many times as long without.
const RISK_SHARE: u32 = 400;
const SNAPSHOT_SHARE: u32 = 20;

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
        let mut urge = StopRequest::Nothing;
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
            if urge == StopRequest::Nothing {
                let time_up = self.plan.timeout.is_some_and(|limit| began.elapsed() > limit);
                urge = match stop {
                    Some(stop) => StopRequest::Stop(stop.cause),
                    None if time_up => StopRequest::TimeUp,
                    None => StopRequest::Nothing,
                };
            }
            if urge != StopRequest::Nothing {
                let grace = self.settings.grace;
                climb(&child, ladder.get_or_insert_with(|| first_step(&child, urge)), stop, grace);
            }
        };
        let ended = AgentExit { exit, stop: urge };
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

    pub(super) fn take_in(&mut self, taken: Result<Option<Snapshot>, GitError>) {
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
        let state = self.state();
        let reason = SnapshotReason::Cadence;
        let stem = self.snapshot_ref(0);
        let kept = state.snapshot.as_ref();
        let every = self.settings.snapshot_every;
        let mut watch = Watch {
            to: self.sender.clone(),
            tree: self.tree.clone(),
            base: state.base.clone(),
            last: kept.map(|kept| kept.snapshot.tree.clone()),
            message: snapshot_message(&self.log, (&self.step, self.fence), reason, None),
            stem: stem.trim_end_matches('0').to_owned(),
            number: self.snapshots,
            every,
            shown: self.shown_branch(),
            shown_every: self.settings.snapshot_branch_every,
            shown_at: None,
            folder: self.folder.clone(),
            risk: RiskRecord {
                looked_at: machine::now(),
                saved_at: machine::now(),
                snapshot: kept.map(|kept| kept.snapshot.refname.clone()),
                files: Some(0),
                interval_ms: millis(every),
                every_ms: millis(every),
                failing: None,
            },
        };
        let thread = std::thread::spawn(move || watch.run(&stopped));
        Cadence { stop, thread }
    }
}

/// Looks at a tree that an agent works in.
struct Watch {
    to: Sender<Input>,
    tree: Worktree,
    base: Option<Oid>,
    /// The tree of the last snapshot.
    last: Option<Oid>,
    message: String,
    stem: String,
    number: u64,
    every: Duration,
    /// The branch that shows the last snapshot, and the folder of the step's refs.
    shown: Option<(String, String)>,
    shown_every: Duration,
    shown_at: Option<Instant>,
    folder: Folder,
    risk: RiskRecord,
}

impl Watch {
    fn run(&mut self, stopped: &Receiver<()>) {
        let mut pause = self.every;
        let mut look = FIRST_LOOK;
        loop {
            self.publish();
            let due = Instant::now() + pause;
            // In between it is only looked at: how much would be lost now.
            while let left = due.saturating_duration_since(Instant::now())
                && !left.is_zero()
            {
                if stopped.recv_timeout(left.min(look)) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                if Instant::now() < due {
                    look = RISK_EVERY.max(self.count() * RISK_SHARE);
                }
            }
            let began = Instant::now();
            let taken = self.take();
            // Never more than a small share of a core, however large the tree.
            pause = self.every.max(began.elapsed() * SNAPSHOT_SHARE);
            self.risk.interval_ms = millis(pause);
            let commit = taken.as_ref().ok().and_then(|taken| Some(taken.as_ref()?.commit.clone()));
            if self.to.send(Input::Snapshot(taken)).is_err() {
                return;
            }
            // It has been told: whatever this takes delays nobody. What fails now is tried again.
            let _the_next_time = commit.map(|commit| self.show(&commit));
            let _the_next_time = snapshot::consolidate(self.tree.git());
        }
    }

    fn take(&mut self) -> Result<Option<Snapshot>, GitError> {
        let began = machine::now();
        let ask = snapshot::Ask {
            refname: self.next_name(),
            base: self.base.as_ref(),
            message: &self.message,
            reason: SnapshotReason::Cadence,
            last: self.last.as_ref(),
        };
        let taken = snapshot::take(&self.tree, &ask);
        self.risk.looked_at = began;
        match &taken {
            Ok(taken) => {
                (self.risk.saved_at, self.risk.files, self.risk.failing) = (began, Some(0), None);
                if let Some(taken) = taken {
                    self.number += 1;
                    self.last = Some(taken.tree.clone());
                    self.risk.snapshot = Some(taken.refname.clone());
                }
            }
            Err(error) => {
                // It was made, and then something failed: the name is used.
                self.number += u64::from(matches!(error, GitError::RefTaken { .. }));
                self.risk.failing = Some(chain(error));
                self.risk.files = None;
            }
        }
        taken
    }

    fn next_name(&self) -> String {
        format!("{}{}", self.stem, self.number + 1)
    }

    /// Counts what no snapshot has; says how long that took.
    fn count(&mut self) -> Duration {
        let began = Instant::now();
        if let Ok(files) = snapshot::unsaved(&self.tree, &self.next_name(), self.last.as_ref()) {
            (self.risk.looked_at, self.risk.files) = (machine::now(), Some(files));
            self.publish();
        }
        began.elapsed()
    }

    /// For whoever looks; nobody looking is no matter.
    fn publish(&self) {
        let _best_effort = self.folder.write_risk(&self.risk);
    }

    fn show(&mut self, commit: &Oid) {
        let due = self.shown_at.is_none_or(|at| at.elapsed() >= self.shown_every);
        if let Some((branch, step)) = self.shown.as_ref().filter(|_| due) {
            let _the_next_time = snapshot::show_as(self.tree.git(), branch, commit, step);
            self.shown_at = Some(Instant::now());
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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

fn first_step(child: &Child, urge: StopRequest) -> Ladder {
    // The signal the person sent is the one that programs are written to expect.
    let signal = match urge {
        StopRequest::Stop(Cause::UserInterrupt) => Signal::INT,
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
