//! Questions at run time: a holder asks, waits and reads; a person answers from anywhere. The rules
//! are the core's.

use std::time::Duration;

use piton_core::decide::{Command, Request, asked};
use piton_core::event::Under;
use piton_core::ids::{QuestionId, StepRef};
use piton_core::question::{Question, WhichQuestion};
use piton_core::run::Run;

use crate::error::EngineError;
use crate::outside::claims::submit;
use crate::outside::waiting::{self, Waited};
use crate::project::Project;
use crate::run::log::Log;

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

/// Waits until every question of the step is answered.
pub fn wait(
    project: &Project,
    log: &mut Log,
    under: &Under,
    patience: Option<Duration>,
) -> Result<Waited, EngineError> {
    let is_open =
        |run: &Run| run.step(&under.step).is_some_and(|(_, state)| state.open_question().is_some());
    waiting::wait(project, log, (Some(under), patience), |run| Ok(!is_open(run)))
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
