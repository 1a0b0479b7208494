//! The one listener for signals that ask this process to stop. It sends each to its owner's queue, and
//! decides nothing.

use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use piton_core::event::Cause;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::error::EngineError;

/// Listens until it is dropped.
pub(crate) struct Listener {
    signals: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Sends every SIGINT, SIGTERM and SIGHUP to `to`, as the cause it stands for.
    pub(crate) fn start<I: Send + 'static>(
        to: Sender<I>,
        input: fn(Cause) -> I,
    ) -> Result<Listener, EngineError> {
        let mut listened =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(EngineError::io("signals"))?;
        let signals = listened.handle();
        let thread = std::thread::spawn(move || {
            for signal in listened.forever() {
                if to.send(input(cause_of(signal))).is_err() {
                    return;
                }
            }
        });
        Ok(Listener { signals, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.signals.close();
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

fn cause_of(signal: i32) -> Cause {
    match signal {
        SIGINT => Cause::UserInterrupt,
        SIGHUP => Cause::HangUp,
        _ => Cause::Termination,
    }
}
