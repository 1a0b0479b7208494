//! The one renewer of leases. A lease says how long a claim is believed without a heartbeat; who owns
//! the claim is in the log.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use piton_core::claim::lease_key;
use piton_core::event::Under;
use piton_core::ids::{RunId, StepRef};
use piton_core::run::Attempt;
use piton_core::time::Moment;
use piton_store::{Renewal, Store, StoreError};

use crate::run::log::Log;

/// How long a claim was made for.
pub(crate) fn length(attempt: &Attempt) -> Duration {
    attempt.until.wall.since(attempt.claimed_at)
}

/// Moves the end of a claim's lease; answers with where it is then, if it was renewed.
pub(crate) fn renew(
    store: &dyn Store,
    run: RunId,
    under: &Under,
    length: Duration,
) -> Result<(Renewal, Moment), StoreError> {
    let until = store.now()?.after(length);
    let renewed = store.renew(run, &lease_key(&under.step), under.fence, &until)?;
    Ok((renewed, until))
}

/// Renews a claim's lease until it is dropped: on a thread of its own, so that nothing its owner does
/// can starve it.
pub(crate) struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(crate) fn start(log: &Log, step: &StepRef, attempt: &Attempt) -> Heartbeat {
        let (stop, stopped) = mpsc::channel();
        let (store, run) = (Arc::clone(log.store()), log.run().opened.run);
        let under = Under { step: step.clone(), fence: attempt.fence };
        let length = length(attempt);
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(length / 3) == Err(RecvTimeoutError::Timeout) {
                // A missed beat is made up by the next.
                let _renewed = renew(&*store, run, &under, length);
            }
        });
        Heartbeat { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop = None;
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}
