//! The worker: observe the machine, ask the core what to do, act, wait. The same turn serves `run`,
//! `resume` and a worker in mid-flight, so that every start is a recovery.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use piton_core::claim::{Claim, Takeover, Which};
use piton_core::decide::{Command, Request};
use piton_core::event::{Cause, Failure, Haste, Holder, Scope, Under};
use piton_core::ids::{AccountName, AttemptId, Fence, Position, RunId, StepRef};
use piton_core::observed::{Observed, Sighting};
use piton_core::plan::OnLimit;
use piton_core::recover::{Action, Recovery, recover};
use piton_core::run::{Phase, Run, Step};
use piton_core::time::Millis;
use piton_git::crash;
use piton_git::file::private;
use piton_store::Store;
use serde::{Deserialize, Serialize};

use crate::attempt::bury::bury;
use crate::attempt::keeper::READY;
use crate::attempt::signals::Listener;
use crate::config::Settings;
use crate::error::{EngineError, LogError};
use crate::machine::ATTEMPT_VARIABLE;
use crate::project::Project;
use crate::run::condition::{self, Condition};
use crate::run::log::Log;
use crate::run::observe::{Depth, observe, refuse_unknown};
use crate::run::runs::{settings_of, trusted};
use crate::run::write_back::write_back;
use crate::trust::Trusted;

mod notes;
mod notify;
mod start;

pub use notes::{Ended, Notes, NotesReader, Said, What};
use notify::Notifier;
use start::own_program;
pub use start::{Started, start, take_over};

/// What a worker is started with.
#[derive(Debug, Clone, Default)]
pub struct WorkOptions {
    /// What tells a person that the run needs them or is over.
    pub notify: Option<String>,
}

/// What a worker says beyond what it records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// An attempt that this worker did not start is alive and watched.
    Adopted {
        step: StepRef,
        fence: Fence,
    },
    /// A step waits until a claim that piton does not keep has ended: its own, or one in its worktree.
    Awaits {
        step: StepRef,
        by: StepRef,
    },
    /// Processes of a dead attempt were ended.
    Swept {
        step: StepRef,
        ended: Vec<i32>,
        survivors: Vec<i32>,
    },
    /// A step's worktree is not as an attempt would expect it.
    Found {
        step: StepRef,
        condition: Condition,
    },
    Warning(String),
}

/// How a worker's time ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Completed,
    Failed {
        step: StepRef,
        why: Failure,
    },
    NeedsPerson {
        step: StepRef,
        question: String,
    },
    /// What is left waits for answers to what was asked.
    Waiting,
    /// What is left waits until the limit of an account is over, and nobody wants this worker to wait for that.
    Parked {
        account: AccountName,
        until: Millis,
    },
    /// Nothing is left to do but for the steps that the run was not resumed with.
    OthersLeft,
    /// What is left has nothing to start: others claim these.
    ToBeClaimed {
        steps: Vec<StepRef>,
    },
    /// This worker was told to stop, and its attempts have stopped.
    Interrupted {
        cause: Cause,
    },
    /// The run, or its last open step, was stopped from elsewhere.
    Stopped {
        cause: Cause,
    },
}

/// Everything that can happen to a worker.
enum WorkerInput {
    Signal(Cause),
    /// A keeper said that it is ready, what is wrong, or nothing before it died.
    KeeperAnswered {
        step: StepRef,
        answer: String,
    },
    KeeperExited,
    LogChanged,
}

/// How long a turn waits for something to happen. It bounds only how late a worker sees that an
/// attempt it did not start has died.
const TURN: Duration = Duration::from_millis(250);

/// How long the last keepers of a completed run may take to end.
const KEEPER_EXIT_MAX: Duration = Duration::from_secs(10);

/// How many keepers in a row may die before they are ready.
const STILLBORN_MAX: u32 = 5;

/// Works on a run until it is over, stopped, or in need of a person. That it shall go on was recorded before.
pub fn work(
    project: &Project,
    log: &mut Log,
    options: WorkOptions,
    notes: &Notes,
) -> Result<Outcome, EngineError> {
    let settings = settings_of(log)?;
    trusted(project, log)?;
    let mut worker = Worker::start(project, log, settings, options, notes)?;
    loop {
        if let Some(outcome) = worker.turn()? {
            if matches!(outcome, Outcome::Completed) {
                worker.see_keepers_out();
            }
            worker.notifier.outcome(worker.log.run(), &outcome);
            return Ok(outcome);
        }
        if worker.leaving.is_none() {
            worker.wait()?;
        }
        if let Some(outcome) = worker.leaving.take() {
            return Ok(outcome);
        }
    }
}

struct Worker<'a> {
    project: &'a Project,
    log: &'a mut Log,
    settings: Settings,
    notes: &'a Notes,
    notifier: Notifier,
    inputs: Receiver<WorkerInput>,
    sender: Sender<WorkerInput>,
    _signals: Listener,
    follower: Follower,
    /// Attempts this worker started or watches; a signal to it is about these.
    watched: Vec<(StepRef, Fence)>,
    /// Keepers that this worker has started and that live.
    keepers: usize,
    /// What was said to be waited for.
    awaited: Vec<(StepRef, StepRef)>,
    stopping: Option<(Cause, Haste)>,
    /// What was told about worktrees.
    found: Vec<(StepRef, Condition)>,
    /// Keepers in a row that died before they were ready.
    stillborn: u32,
    /// Leave now, whatever the attempts do.
    leaving: Option<Outcome>,
}

impl<'a> Worker<'a> {
    fn start(
        project: &'a Project,
        log: &'a mut Log,
        settings: Settings,
        options: WorkOptions,
        notes: &'a Notes,
    ) -> Result<Worker<'a>, EngineError> {
        let (sender, inputs) = mpsc::channel();
        let signals = Listener::start(sender.clone(), WorkerInput::Signal)?;
        let follower = Follower::start(log, sender.clone());
        Ok(Worker {
            project,
            log,
            settings,
            notes,
            notifier: Notifier::new(options.notify),
            inputs,
            sender,
            _signals: signals,
            follower,
            watched: Vec::new(),
            keepers: 0,
            awaited: Vec::new(),
            stopping: None,
            found: Vec::new(),
            stillborn: 0,
            leaving: None,
        })
    }

    /// The log was read up to here.
    fn seen(&self) {
        self.follower.seen(self.log.run().cursor.position);
    }

    fn say(&self, notice: Notice) {
        self.notes.say(self.log.run().cursor.position, notice);
    }

    /// Observe, ask what to do, act. Something is returned when there is nothing left to do here.
    fn turn(&mut self) -> Result<Option<Outcome>, EngineError> {
        loop {
            for event in self.log.refresh()? {
                self.notifier.event(self.log.run(), &event);
            }
            self.seen();
            let observed = observe(self.project, self.log, Depth::Locks);
            refuse_unknown(self.project, self.log, &observed)?;
            let leases = self.log.store().leases(self.log.run().opened.run)?;
            let recoveries = recover(self.log.run(), &observed, &leases, &self.log.now()?);
            self.adopt(&recoveries);
            if !self.act(&recoveries, &observed)? {
                self.write_back();
                self.tell_awaited(&recoveries);
                return Ok(self.outcome(&recoveries));
            }
        }
    }

    /// Brings the plan's file up to date; that it cannot be is no reason to stop.
    fn write_back(&mut self) {
        // Who watches sees for itself what was changed by hand.
        if let Err(error) = write_back(self.project, self.log.run()) {
            self.say(Notice::Warning(error.to_string()));
        }
    }

    /// Does the first thing there is to do; says whether there was one.
    fn act(&mut self, recoveries: &[Recovery], observed: &Observed) -> Result<bool, EngineError> {
        for recovery in recoveries {
            match &recovery.action {
                Action::Bury { fence, .. } => {
                    self.bury(&recovery.step, *fence, observed)?;
                    return Ok(self.leaving.is_none());
                }
                Action::Expire { fence } => return self.expire(&recovery.step, *fence),
                Action::Start { .. } if self.stopping.is_none() => {
                    return self.enter(&recovery.step, observed);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    fn bury(
        &mut self,
        step: &StepRef,
        fence: Fence,
        observed: &Observed,
    ) -> Result<(), EngineError> {
        let attempt = self.log.run().held().find(|(held, _)| held == step);
        let sighting = attempt.map(|(_, attempt)| observed.of(attempt.id).clone());
        let Some(Sighting::Dead(corpse)) = sighting else { return Ok(()) };
        let burial = bury(self.project, self.log, &self.settings, step, fence, corpse)?;
        let (ended, survivors) = (burial.swept.ended, burial.swept.survivors);
        if !survivors.is_empty() {
            let question = format!(
                "processes {survivors:?} of its dead attempt cannot be ended; end them, then resume"
            );
            self.leaving = Some(Outcome::NeedsPerson { step: step.clone(), question });
        }
        if !ended.is_empty() || !survivors.is_empty() {
            self.say(Notice::Swept { step: step.clone(), ended, survivors });
        }
        if let Some(why) = burial.unkept {
            self.say(Notice::Warning(format!("the tree of {step} could not be kept: {why}")));
        }
        self.seen();
        Ok(())
    }

    /// Records that a holder elsewhere is lost, with the question about what it had begun.
    fn expire(&mut self, step: &StepRef, fence: Fence) -> Result<bool, EngineError> {
        let before = self.log.run().cursor;
        match self.log.submit(&Command::Under(Under { step: step.clone(), fence }, Request::Expire))
        {
            Ok(_) => self.seen(),
            // It is back, or somebody was quicker.
            Err(LogError::Refused(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.log.run().cursor != before)
    }

    /// Lock before claim, claim before effects.
    fn enter(&mut self, step: &StepRef, observed: &Observed) -> Result<bool, EngineError> {
        let trusted = trusted(self.project, self.log)?;
        let mut observed = observed.clone();
        if self.tell_condition(step) {
            observed.lost.insert(step.clone());
        }
        let attempt = AttemptId(uuid::Uuid::now_v7());
        let folder = self.project.folder(attempt);
        let lock = folder.create().map_err(EngineError::io("the attempt's folder"))?;
        crash::point("worker.lock-taken");
        let holder =
            Holder::Keeper { host: self.project.host.clone(), boot: self.project.boot.clone() };
        let before = self.log.run().cursor;
        let claim = Command::Claim(Claim {
            which: Which::Step(step.clone()),
            attempt,
            holder,
            until: self.log.now()?.after(self.settings.lease),
            observed,
            takeover: Takeover::Forbid,
            pid: None,
        });
        match self.log.submit(&claim) {
            Ok(_) => {}
            Err(LogError::Refused(_)) => {
                // Somebody was quicker: look again, unless nothing is new.
                folder.discard(lock);
                return Ok(self.log.run().cursor != before);
            }
            Err(error) => return Err(error.into()),
        }
        crash::point("worker.claimed");
        self.seen();
        let held = self.log.run().held().find(|(_, held)| held.id == attempt);
        let fence = held.map(|(_, attempt)| attempt.fence).expect("the claim was just granted");
        self.watched.push((step.clone(), fence));
        self.spawn_keeper(&trusted, (step, fence, attempt), lock)?;
        Ok(true)
    }

    /// Before a step that was left goes on, whoever watches is told what has become of its worktree. Says
    /// whether nothing of it is left.
    fn tell_condition(&mut self, step: &StepRef) -> bool {
        let begun = |(_, state): (_, &Step)| !matches!(state.phase, Phase::Pending { .. });
        if !self.log.run().step(step).is_some_and(begun) {
            return false;
        }
        // The attempt itself says what cannot be looked at.
        let conditions = condition::of_step(self.project, self.log, step).unwrap_or_default();
        let is_lost = conditions.iter().any(Condition::is_lost);
        for condition in conditions {
            let found = (step.clone(), condition);
            if !self.found.contains(&found) {
                self.found.push(found.clone());
                let (step, condition) = found;
                self.say(Notice::Found { step, condition });
            }
        }
        is_lost
    }

    /// Starts the process that executes what was trusted. It looks for itself once more.
    fn spawn_keeper(
        &mut self,
        _leave: &Trusted,
        (step, fence, attempt): (&StepRef, Fence, AttemptId),
        lock: std::fs::File,
    ) -> Result<(), EngineError> {
        let lost = |detail: String| EngineError::KeeperLost { step: step.clone(), detail };
        let folder = self.project.folder(attempt);
        let notes = private(&folder.path().join("keeper.log"));
        let notes = notes.map_err(EngineError::io("keeper.log cannot be written"))?;
        let program = own_program()?;
        let keeper = Program::new(program)
            .arg0("piton")
            .arg("keeper")
            .args(["--run", &self.log.run().opened.run.to_string()])
            .args(["--step", &step.to_string()])
            .args(["--fence", &fence.to_string()])
            .args(["--attempt", &attempt.to_string()])
            .current_dir(self.project.git.main_root())
            .env(ATTEMPT_VARIABLE, attempt.to_string())
            .stdin(Stdio::from(lock))
            .stdout(Stdio::piped())
            .stderr(notes)
            .spawn()
            .map_err(|error| lost(error.to_string()))?;
        crash::point("worker.keeper-spawned");
        self.listen_to(keeper, step.clone());
        Ok(())
    }

    /// Passes on what a keeper says when it is ready, and reaps it whenever it ends; the thread ends
    /// with it.
    fn listen_to(&mut self, mut keeper: Child, step: StepRef) {
        self.keepers += 1;
        let to = self.sender.clone();
        std::thread::spawn(move || {
            let mut answer = String::new();
            if let Some(ear) = keeper.stdout.take() {
                let _gone = BufReader::new(ear).read_line(&mut answer);
            }
            let answer = answer.trim_end().to_owned();
            let _nobody_waits = to.send(WorkerInput::KeeperAnswered { step, answer });
            let _status = keeper.wait();
            let _nobody_waits = to.send(WorkerInput::KeeperExited);
        });
    }

    /// The last keeper removes the trees once it has completed its step: when the run is told to be over,
    /// that is done.
    fn see_keepers_out(&mut self) {
        let deadline = Instant::now() + KEEPER_EXIT_MAX;
        while self.keepers > 0 {
            match self.inputs.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(WorkerInput::KeeperExited) => self.keepers -= 1,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// A keeper that complains cannot work here. One that dies without a word is found dead by its
    /// lock and replaced, but not for ever.
    fn answered(&mut self, step: StepRef, answer: String) -> Result<(), EngineError> {
        match answer.as_str() {
            READY => self.stillborn = 0,
            "" => self.stillborn += 1,
            _ => return Err(EngineError::KeeperLost { step, detail: answer }),
        }
        if self.stillborn >= STILLBORN_MAX {
            let question = format!("its keeper died {} times before it was ready", self.stillborn);
            self.leaving = Some(Outcome::NeedsPerson { step, question });
        }
        Ok(())
    }

    fn adopt(&mut self, recoveries: &[Recovery]) {
        for recovery in recoveries {
            let Action::Adopt { fence } = recovery.action else { continue };
            let watched = (recovery.step.clone(), fence);
            if !self.watched.contains(&watched) {
                self.watched.push(watched);
                self.say(Notice::Adopted { step: recovery.step.clone(), fence });
            }
        }
    }

    /// Says whose claims are waited for, once each.
    fn tell_awaited(&mut self, recoveries: &[Recovery]) {
        let awaited = recoveries.iter().filter_map(|recovery| awaited(self.log.run(), recovery));
        let awaited: Vec<_> = awaited.filter(|pair| !self.awaited.contains(pair)).collect();
        for (step, by) in awaited {
            self.awaited.push((step.clone(), by.clone()));
            self.say(Notice::Awaits { step, by });
        }
    }

    /// Whether there is anything left for this worker to wait for.
    fn outcome(&self, recoveries: &[Recovery]) -> Option<Outcome> {
        let run = self.log.run();
        let adopted =
            recoveries.iter().any(|recovery| matches!(recovery.action, Action::Adopt { .. }));
        let alive = adopted
            || (self.stopping.is_none()
                && recoveries.iter().any(|recovery| awaited(run, recovery).is_some()));
        if run.is_completed() {
            return Some(Outcome::Completed);
        }
        if alive {
            return None;
        }
        if let Some((cause, _)) = self.stopping {
            return Some(Outcome::Interrupted { cause });
        }
        let parked = parked(recoveries);
        if parked.clone().any(|(step, _, _)| waits(run, step)) {
            return None;
        }
        let failed = |(step, why): (StepRef, &Failure)| Outcome::Failed { step, why: why.clone() };
        if let Some(ended) = run.failed() {
            return Some(failed(ended));
        }
        if recoveries.iter().any(|recovery| recovery.action == Action::StayStopped) {
            return Some(Outcome::Stopped { cause: stop_cause(run) });
        }
        if run.question_about_run().is_some() {
            return Some(Outcome::Waiting);
        }
        // Others may go on with the rest; nothing is left to do here.
        if let Some(ended) = run.failed_for_good() {
            return Some(failed(ended));
        }
        for recovery in recoveries {
            if let Action::Ask { question } = &recovery.action {
                let (step, question) = (recovery.step.clone(), question.clone());
                return Some(Outcome::NeedsPerson { step, question });
            }
        }
        let waits = |recovery: &Recovery| matches!(recovery.action, Action::AwaitAnswer { .. });
        if recoveries.iter().any(waits) {
            return Some(Outcome::Waiting);
        }
        if let Some((_, account, until)) = parked.min_by_key(|(_, _, until)| **until) {
            return Some(Outcome::Parked { account: account.clone(), until: *until });
        }
        // Nobody has them, and nothing else is under way that could change that.
        let by_hand = recoveries.iter().filter(|recovery| recovery.action == Action::AwaitHolder);
        let steps: Vec<StepRef> = by_hand.map(|recovery| recovery.step.clone()).collect();
        if !steps.is_empty() {
            return Some(Outcome::ToBeClaimed { steps });
        }
        let left_out = |recovery: &Recovery| *recovery.outcome() == Action::LeaveOut;
        recoveries.iter().any(left_out).then_some(Outcome::OthersLeft)
    }

    /// Waits for something to happen.
    fn wait(&mut self) -> Result<(), EngineError> {
        match self.inputs.recv_timeout(TURN) {
            Ok(WorkerInput::Signal(cause)) => self.signal(cause),
            Ok(WorkerInput::KeeperAnswered { step, answer }) => self.answered(step, answer),
            Ok(WorkerInput::KeeperExited) => {
                self.keepers -= 1;
                Ok(())
            }
            Ok(WorkerInput::LogChanged)
            | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    /// SIGTERM, as a machine that shuts down sends it, stops this worker's attempts; a second one at once; a
    /// third leaves them to their keepers. A terminal cannot reach a worker: it has a session of its own.
    fn signal(&mut self, cause: Cause) -> Result<(), EngineError> {
        let haste = match self.stopping {
            _ if cause == Cause::HangUp => return Ok(()),
            None => Haste::Graceful,
            Some((_, Haste::Graceful)) => Haste::Now,
            Some((cause, Haste::Now)) => {
                self.leaving = Some(Outcome::Interrupted { cause });
                return Ok(());
            }
        };
        self.stopping = Some((cause, haste));
        for (step, fence) in self.watched.clone() {
            let scope = Scope::Attempt(Under { step, fence });
            match self.log.submit(&Command::Stop { scope, cause, haste }) {
                // It ended meanwhile.
                Ok(_) | Err(LogError::Refused(_)) => self.seen(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The steps that wait until a limit is over, with its account and its end.
fn parked(
    recoveries: &[Recovery],
) -> impl Iterator<Item = (&StepRef, &AccountName, &Millis)> + Clone {
    recoveries.iter().filter_map(|recovery| match &recovery.action {
        Action::AwaitLimit { account, until, .. } => Some((&recovery.step, account, until)),
        _ => None,
    })
}

/// Whether a worker waits with this step until a limit is over.
fn waits(run: &Run, step: &StepRef) -> bool {
    let stops = run.step(step).is_some_and(|(plan, _)| plan.on_limit == OnLimit::Stop);
    !stops && !run.terms.no_wait
}

/// The claim that a step waits for, where no keeper that this worker watches has it.
fn awaited(run: &Run, recovery: &Recovery) -> Option<(StepRef, StepRef)> {
    let by = match &recovery.action {
        Action::AwaitLease { .. } => recovery.step.clone(),
        Action::AwaitTree { by } => by.clone(),
        _ => return None,
    };
    let held = run.held().find(|(held, _)| *held == by)?.1;
    let theirs = by == recovery.step || matches!(held.holder, Holder::External { .. });
    theirs.then(|| (recovery.step.clone(), by))
}

fn stop_cause(run: &Run) -> Cause {
    let left = || run.held_back().map(|(_, stop)| stop);
    let held = || run.held().find_map(|(_, held)| held.unlifted_stop());
    run.stop.or_else(left).or_else(held).map_or(Cause::Unknown, |stop| stop.cause)
}

/// Wakes the worker when somebody appends.
struct Follower {
    position: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    fn start(log: &Log, to: Sender<WorkerInput>) -> Follower {
        let position = Arc::new(AtomicU64::new(log.run().cursor.position.0));
        let ended = Arc::new(AtomicBool::new(false));
        let (store, run): (Arc<dyn Store>, RunId) = (Arc::clone(log.store()), log.run().opened.run);
        let (seen, end) = (Arc::clone(&position), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            let mut told = 0;
            while !end.load(Ordering::SeqCst) {
                let after = seen.load(Ordering::SeqCst);
                match store.changed(run, Position(after), TURN) {
                    Ok(true) if told != after => {
                        told = after;
                        let _nobody_waits = to.send(WorkerInput::LogChanged);
                    }
                    // Told already and not read yet, or no answer: the turn's own pace will do.
                    Ok(true) | Err(_) => std::thread::sleep(Duration::from_millis(10)),
                    Ok(false) => {}
                }
            }
        });
        Follower { position, ended, thread: Some(thread) }
    }

    fn seen(&self, position: Position) {
        self.position.store(position.0, Ordering::SeqCst);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}
