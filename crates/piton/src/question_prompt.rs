//! Asking the person at the terminal what a run waits for, while it is watched. The run goes on meanwhile; what
//! is not answered here stays open.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use piton_core::event::Cause;
use piton_core::ids::{QuestionId, StepRef};
use piton_core::question::{Question, WhichQuestion};
use piton_engine::outside::questions;
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::watch::Watcher;

use crate::error::Problem;
use crate::text::{bold, plain};
use crate::ui::Ui;

/// How often it is looked whether somebody else has answered, or wants this process to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Asks on the terminal.
pub(crate) struct QuestionPrompt<'a> {
    ui: &'a Ui,
    /// What is typed; read from the first question on.
    typed: Option<Receiver<String>>,
    /// What the person has left open: asked once is enough.
    left_open: BTreeSet<QuestionId>,
}

/// What came of asking.
pub(crate) enum Asked {
    /// Nothing is open, or nothing that would be asked again.
    Done,
    Signal(Cause),
}

enum Reply {
    Line(String),
    /// Nothing will be typed any more.
    Closed,
    /// The answer came from elsewhere.
    Elsewhere,
    Signal(Cause),
}

impl<'a> QuestionPrompt<'a> {
    pub(crate) fn new(ui: &'a Ui) -> QuestionPrompt<'a> {
        QuestionPrompt { ui, typed: None, left_open: BTreeSet::new() }
    }

    /// Asks every open question, one after the other.
    pub(crate) fn ask_open(
        &mut self,
        project: &Project,
        log: &mut Log,
        watcher: &Watcher,
    ) -> Result<Asked, Problem> {
        while self.ui.can_ask() {
            let open = log
                .run()
                .questions()
                .find(|(_, question)| question.is_open() && !self.left_open.contains(&question.id));
            let Some((step, question)) = open.map(|(step, asked)| (step.clone(), asked.clone()))
            else {
                break;
            };
            match self.reply(log, watcher, &step, &question) {
                Reply::Line(text) if text.trim().is_empty() => {
                    self.ui.talk(format!("{} stays open", question.id));
                    self.left_open.insert(question.id);
                }
                Reply::Line(text) => self.answer(project, log, &question, text.trim())?,
                Reply::Closed => {
                    self.left_open.insert(question.id);
                }
                Reply::Elsewhere => {
                    log.refresh()?;
                }
                Reply::Signal(cause) => return Ok(Asked::Signal(cause)),
            }
        }
        Ok(Asked::Done)
    }

    fn reply(
        &mut self,
        log: &Log,
        watcher: &Watcher,
        step: &StepRef,
        question: &Question,
    ) -> Reply {
        let typed = self.typed.get_or_insert_with(read_lines);
        let mut lines = vec![format!("{} step {step} asks {}:", bold("?"), question.id)];
        lines.extend(question.text.lines().map(|line| format!("  {}", plain(line))));
        let choices = question.choices.iter().enumerate();
        lines.extend(choices.map(|(n, choice)| format!("  {}  {}", n + 1, plain(choice))));
        let how = match question.choices.len() {
            0 => "your answer (Enter leaves it open): ".to_owned(),
            1 => "1, or Enter to leave it open: ".to_owned(),
            n => format!("1-{n}, or Enter to leave it open: "),
        };
        let is_open = || {
            let newest = log.newest().ok()?;
            let asked = newest.questions().find(|(_, asked)| asked.id == question.id)?.1.is_open();
            Some(asked)
        };
        self.ui.live().suspend(|| {
            self.ui.prompt(&lines, &how);
            loop {
                match typed.recv_timeout(LOOK_EVERY) {
                    Ok(line) => return Reply::Line(line),
                    Err(RecvTimeoutError::Disconnected) => return Reply::Closed,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if let Some(cause) = watcher.signal() {
                    return Reply::Signal(cause);
                }
                if is_open() == Some(false) {
                    return Reply::Elsewhere;
                }
            }
        })
    }

    /// One that the rules refuse is asked again.
    fn answer(
        &self,
        project: &Project,
        log: &mut Log,
        question: &Question,
        typed: &str,
    ) -> Result<(), Problem> {
        let chosen =
            typed.parse::<usize>().ok().and_then(|n| question.choices.get(n.checked_sub(1)?));
        let answer = chosen.cloned().unwrap_or_else(|| typed.to_owned());
        match questions::answer(project, log, WhichQuestion::Id(question.id), answer) {
            Ok(_) => Ok(()),
            Err(error) if error.refusal().is_some() => {
                self.ui.talk(plain(&error.to_string()));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Lines that are typed, read by a thread: whoever waits for one can be told something else meanwhile.
fn read_lines() -> Receiver<String> {
    let (sender, typed) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    typed
}
