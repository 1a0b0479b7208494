//! Questions at run time: a holder asks, waits and reads; a person answers from anywhere. The rules
//! are the core's; here a wait follows the log and keeps the waiting holder's claim believed.

use std::time::{Duration, Instant};

use piton_core::decide::{Command, Request, asked};
use piton_core::event::{Holder, Under};
use piton_core::ids::{QuestionId, StepRef};
use piton_core::question::{Question, WhichQuestion};

use crate::error::EngineError;
use crate::outside::claims::{self, Pulse, submit};
use crate::project::Project;
use crate::run::log::Log;

/// How a wait for answers ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// Nothing of it is open any more.
    Answered,
    /// Patience ran out.
    InVain,
    /// Somebody asked for a stop.
    StopRequested,
}

/// Asks; tells the question, which may be one that was asked before with the same words.
pub fn ask(
    log: &mut Log,
    under: &Under,
    text: &str,
    choices: &[String],
) -> Result<QuestionId, EngineError> {
    let (text, choices) = (text.trim(), choices.to_vec());
    submit(log, under, Request::RaiseQuestion { text: text.to_owned(), choices: choices.clone() })?;
    let (_, state) = log.run().step(&under.step).expect("it was just asked about");
    let asked = state.asked_already(text, &choices).expect("it was just asked");
    Ok(asked.id)
}

/// What a step has asked so far, for its holder: answers are recorded as applied before they are told.
/// Reading once more is harmless.
pub fn read(log: &mut Log, under: &Under) -> Result<Vec<Question>, EngineError> {
    log.refresh()?;
    let unread = log.run().step(&under.step).map(|(_, state)| state.unread_answers());
    let questions = unread.into_iter().flatten().map(|question| question.id).collect();
    submit(log, under, Request::ApplyAnswers { questions })?;
    let (_, state) = log.run().step(&under.step).expect("it was just written to");
    Ok(state.questions.clone())
}

/// The longest time between two looks at the lease of whoever waits.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Waits until every question of the step is answered. Whoever waits lives: a claim from outside is
/// renewed meanwhile, as by heartbeats; a keeper sees to its own.
pub fn wait(
    project: &Project,
    log: &mut Log,
    under: &Under,
    patience: Option<Duration>,
) -> Result<Waited, EngineError> {
    let began = Instant::now();
    loop {
        log.refresh()?;
        let state = log.run().step(&under.step).map(|(_, state)| state);
        let held = state.and_then(|state| state.attempt());
        let Some(attempt) = held.filter(|attempt| attempt.fence == under.fence) else {
            return Err(claims::lost(log, under).into());
        };
        if state.is_none_or(|state| state.open_question().is_none()) {
            return Ok(Waited::Answered);
        }
        let lease = attempt.until.wall.since(attempt.claimed_at);
        match attempt.holder {
            _ if log.run().stop_for(attempt).is_some() => return Ok(Waited::StopRequested),
            Holder::Keeper { .. } => {}
            Holder::External { .. } => {
                if let (Pulse::Fenced, _) = claims::heartbeat(project, log, under, None)? {
                    return Err(claims::lost(log, under).into());
                }
            }
        }
        let left = patience.map(|patience| patience.saturating_sub(began.elapsed()));
        if left == Some(Duration::ZERO) {
            return Ok(Waited::InVain);
        }
        let pause = left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY).min(lease / 3);
        log.wait(pause.max(Duration::from_millis(1)))?;
    }
}

/// Answers a question; tells which one it was.
pub fn answer(
    project: &Project,
    log: &mut Log,
    which: WhichQuestion,
    answer: String,
) -> Result<(StepRef, Question), EngineError> {
    log.refresh()?;
    // By its own name from here on: another may be asked meanwhile.
    let (step, question) = asked(log.run(), &which)?;
    let (question, host) = (WhichQuestion::Id(question.id), project.host.clone());
    log.submit(&Command::Answer { question: question.clone(), answer, host })?;
    let (_, answered) = asked(log.run(), &question)?;
    Ok((step, answered.clone()))
}
