//! Outputs at run time: a holder publishes, anybody reads and waits. The rules are the core's; here long
//! values are read back from the store that keeps them.

use std::time::Duration;

use piton_core::decide::Request;
use piton_core::event::Under;
use piton_core::ids::OutputName;
use piton_core::output::{OutputRef, OutputValue};
use piton_core::refusal::Refusal;
use piton_core::run::Run;

use super::claims::submit;
use super::waiting::{self, Waited};
use crate::error::{EngineError, LogError};
use crate::project::Project;
use crate::run::log::Log;

/// Publishes JSON under a claim.
pub fn set(
    log: &mut Log,
    under: &Under,
    name: OutputName,
    json: String,
) -> Result<(), EngineError> {
    submit(log, under, Request::SetOutput { name, json })
}

/// The JSON of a value, wherever it is kept.
pub fn text(log: &Log, value: &OutputValue) -> Result<String, LogError> {
    match value {
        OutputValue::Json(text) => Ok(text.clone()),
        OutputValue::Kept { text, .. } => {
            Ok(String::from_utf8_lossy(&log.store().text(*text)?).into_owned())
        }
    }
}

/// Waits until an output is published. Whoever waits under a claim is shown as waiting.
pub fn wait(
    project: &Project,
    log: &mut Log,
    (output, under): (&OutputRef, Option<&Under>),
    patience: Option<Duration>,
) -> Result<Waited, EngineError> {
    if let Some(under) = under {
        let now = log.now()?;
        let until = patience.map(|patience| now.after(patience).wall);
        submit(log, under, Request::AwaitOutput { output: output.clone(), until })?;
    }
    waiting::wait(project, log, (under, patience), |run| is_there(run, output))
}

/// Whether it was published; an error where that will not happen any more.
fn is_there(run: &Run, output: &OutputRef) -> Result<bool, EngineError> {
    if run.output(output).is_some() {
        return Ok(true);
    }
    let refused = |refusal| Err(LogError::Refused(refusal).into());
    match &output.of {
        Some(step) => match run.step(step) {
            None => refused(Refusal::UnknownStep(step.clone())),
            Some((_, state)) if state.is_done() => {
                let (step, name) = (step.clone(), output.name.clone());
                refused(Refusal::NoOutput { step, name })
            }
            Some(_) => Ok(false),
        },
        None if run.is_completed() => refused(Refusal::RunCompleted),
        None if run.abandoned.is_some() => refused(Refusal::RunAbandoned),
        None => Ok(false),
    }
}
