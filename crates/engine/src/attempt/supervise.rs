//! The one supervisor of children: it watches an attempt's agent, setup or verify command until it
//! exits, and asks it to stop, then kills it, when the attempt is to end or its time is up. It knows what
//! stops an attempt, not what the child is for.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use piton_core::attempt::watch::{Urge, Watch};
use piton_core::event::{Cause, Exit, Haste, Holder};
use piton_core::exit::AgentExit;
use piton_core::ids::{Fence, StepRef};
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, Stop};
use rustix::process::Signal;

use crate::attempt::child::{self, Child, Spec};
use crate::attempt::lease::Heartbeat;
use crate::attempt::signals::Listener;
use crate::error::EngineError;
use crate::run::log::Log;
use crate::trust::Trusted;

/// How often the log is looked at for a request to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Everything that can happen to a supervisor.
enum Input {
    Exited(Exit),
    Signal(Cause),
}

/// Supervises the children of one attempt, one at a time, and renews its lease meanwhile.
pub(crate) struct Supervisor {
    step: StepRef,
    fence: Fence,
    grace: Duration,
    timeout: Option<Duration>,
    /// A keeper's attempt obeys stops of the log and has no terminal. Somebody outside who completes a
    /// claim obeys signals alone.
    is_kept: bool,
    inputs: Receiver<Input>,
    sender: Sender<Input>,
    /// A stop that came as a signal to this process.
    signalled: Option<Stop>,
    _signals: Listener,
    _heartbeat: Heartbeat,
}

/// How a child ended, and what is left of it.
pub(crate) struct Finished {
    pub(crate) ended: AgentExit,
    /// The end of what it printed.
    pub(crate) tail: String,
    /// Processes of the child that could not be ended.
    pub(crate) survivors: Vec<i32>,
}

impl Supervisor {
    /// `grace` is how long a child may take to stop before it is killed.
    pub(crate) fn start(
        log: &Log,
        step: &StepRef,
        attempt: &Attempt,
        grace: Duration,
    ) -> Result<Supervisor, EngineError> {
        let unknown = || Refusal::UnknownStep(step.clone());
        let (plan, _) = log.run().step(step).ok_or_else(unknown)?;
        let (sender, inputs) = mpsc::channel();
        Ok(Supervisor {
            step: step.clone(),
            fence: attempt.fence,
            grace,
            timeout: plan.timeout,
            is_kept: matches!(attempt.holder, Holder::Keeper { .. }),
            inputs,
            _signals: Listener::start(sender.clone(), Input::Signal)?,
            _heartbeat: Heartbeat::start(log, step, attempt),
            sender,
            signalled: None,
        })
    }

    /// The stop that this attempt must obey, if any, by the newest state of its log. Fails where the
    /// claim is lost.
    pub(crate) fn stop(&mut self, log: &mut Log) -> Result<Option<Stop>, EngineError> {
        while let Ok(input) = self.inputs.try_recv() {
            if let Input::Signal(cause) = input {
                self.signal(log, cause);
            }
        }
        self.requested(log)
    }

    /// Starts a child of what was trusted; `what` names it.
    pub(crate) fn spawn(
        &self,
        trusted: &Trusted,
        what: &str,
        spec: Spec,
    ) -> Result<Child, EngineError> {
        let to = self.sender.clone();
        let exited = move |exit| {
            let _nobody_waits = to.send(Input::Exited(exit));
        };
        let unstarted = |source| EngineError::Unstarted { what: what.to_owned(), source };
        child::spawn(trusted, spec, exited).map_err(unstarted)
    }

    /// Watches a child until nothing of it runs any more.
    pub(crate) fn watch(&mut self, log: &mut Log, child: Child) -> Result<Finished, EngineError> {
        let ended = self.await_exit(log, &child, |_| {})?;
        let (tail, survivors) = child.finish();
        Ok(Finished { ended, tail, survivors })
    }

    /// Watches a child until it exits, and does `meanwhile` at every look. Fails, after its exit, where the
    /// claim was lost.
    pub(crate) fn await_exit(
        &mut self,
        log: &mut Log,
        child: &Child,
        mut meanwhile: impl FnMut(&mut Log),
    ) -> Result<AgentExit, EngineError> {
        let began = Instant::now();
        let mut watch = Watch::new(self.timeout, self.grace);
        let mut lost = None;
        let exit = loop {
            match self.inputs.recv_timeout(LOOK_EVERY) {
                Ok(Input::Exited(exit)) => break exit,
                Ok(Input::Signal(cause)) => self.signal(log, cause),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            meanwhile(log);
            let stop = match self.requested(log) {
                Ok(stop) => stop,
                Err(error) if error.is_lost() => {
                    lost = Some(error);
                    let at = log.run().changed_at;
                    Some(Stop { cause: Cause::Unknown, haste: Haste::Now, at })
                }
                // A store that does not answer stops nothing: the lease bounds how long that can be.
                Err(_) => None,
            };
            if let Some(urge) = watch.look(began.elapsed(), stop) {
                child.signal(match urge {
                    Urge::Kill => Signal::KILL,
                    // Never SIGINT: agents then write into their conversation that the user wants no more.
                    Urge::Ask | Urge::AskAgain => Signal::TERM,
                });
            }
        };
        match lost {
            Some(error) => Err(error),
            None => Ok(AgentExit { exit, stop: watch.request() }),
        }
    }

    /// Waits, but no longer than until this attempt must stop.
    pub(crate) fn pause(&mut self, log: &mut Log, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            match self.stop(log) {
                Ok(Some(_)) => return,
                Err(error) if error.is_lost() => return,
                Ok(None) | Err(_) => {}
            }
            std::thread::sleep(LOOK_EVERY.min(time.saturating_sub(began.elapsed())));
        }
    }

    fn requested(&self, log: &mut Log) -> Result<Option<Stop>, EngineError> {
        if log.wait(Duration::ZERO)? {
            log.refresh()?;
        }
        let attempt = log.run().step(&self.step).and_then(|(_, state)| state.attempt());
        let attempt = attempt.filter(|attempt| attempt.fence == self.fence).ok_or_else(|| {
            let (step, given) = (self.step.clone(), self.fence);
            Refusal::NotClaimed { step, given }
        })?;
        let asked = if self.is_kept { log.run().stop_for(attempt) } else { None };
        Ok(match (asked, self.signalled) {
            (Some(a), Some(b)) => Some(if b.haste > a.haste { b } else { a }),
            (asked, signalled) => asked.or(signalled),
        })
    }

    /// A signal to this process: stop the attempt, a second one at once.
    fn signal(&mut self, log: &Log, cause: Cause) {
        if self.is_kept && cause == Cause::HangUp {
            return;
        }
        let haste = if self.signalled.is_some() { Haste::Now } else { Haste::Graceful };
        self.signalled = Some(Stop { cause, haste, at: log.run().changed_at });
    }
}
