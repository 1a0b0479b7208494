//! Waiting for something that the log will say. A wait is only a look at the log, so that it is said again
//! after a crash; whoever waits under a claim lives, and the claim stays believed meanwhile.

use std::time::{Duration, Instant};

use piton_core::event::{Holder, Under};
use piton_core::run::Run;

use super::claims::{self, Pulse};
use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// It is there.
    Met,
    /// Patience ran out.
    InVain,
    /// Somebody asked for a stop.
    StopRequested,
}

/// The longest time between two looks at the lease of whoever waits.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Waits until it is there. A claim from outside is renewed meanwhile, as by heartbeats; a keeper sees to
/// its own.
pub(crate) fn wait(
    project: &Project,
    log: &mut Log,
    (under, patience): (Option<&Under>, Option<Duration>),
    is_there: impl Fn(&Run) -> Result<bool, EngineError>,
) -> Result<Waited, EngineError> {
    let began = Instant::now();
    loop {
        log.refresh()?;
        let mut pause = LOOK_EVERY;
        if let Some(under) = under {
            let held = log.run().step(&under.step).and_then(|(_, state)| state.attempt());
            let Some(attempt) = held.filter(|attempt| attempt.fence == under.fence) else {
                return Err(claims::lost(log, under).into());
            };
            pause = pause.min(attempt.until.wall.since(attempt.claimed_at) / 3);
        }
        if is_there(log.run())? {
            return Ok(Waited::Met);
        }
        if let Some(under) = under {
            let held = log.run().step(&under.step).and_then(|(_, state)| state.attempt());
            match held.map(|attempt| (&attempt.holder, log.run().stop_for(attempt))) {
                Some((_, Some(_))) => return Ok(Waited::StopRequested),
                Some((Holder::External { .. }, None)) => {
                    if let (Pulse::Fenced, _) = claims::heartbeat(project, log, under, None)? {
                        return Err(claims::lost(log, under).into());
                    }
                }
                Some((Holder::Keeper { .. }, None)) | None => {}
            }
        }
        let left = patience.map(|patience| patience.saturating_sub(began.elapsed()));
        if left == Some(Duration::ZERO) {
            return Ok(Waited::InVain);
        }
        let pause = left.unwrap_or(pause).min(pause);
        log.wait(pause.max(Duration::from_millis(1)))?;
    }
}
