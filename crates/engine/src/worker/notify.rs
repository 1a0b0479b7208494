//! Telling a person that a run needs them or is over, by the command of the user's own configuration. The worker
//! does it: whoever watched may be gone.

use std::process::{Command as Program, Stdio};

use piton_core::event::{Event, Fact, Limited};
use piton_core::run::Run;
use piton_core::time::timestamp;

use super::Outcome;

/// The user's command, if there is one.
pub(super) struct Notifier {
    command: Option<String>,
}

impl Notifier {
    pub(super) fn new(command: Option<String>) -> Notifier {
        Notifier { command: command.filter(|command| !command.trim().is_empty()) }
    }

    /// A question, or a step that has failed for good.
    pub(super) fn event(&self, run: &Run, event: &Event) {
        let Event::Under(under, fact) = event else { return };
        let step = under.step.to_string();
        match fact {
            Fact::Asked { text, .. } => self.tell(run, "question", &step, text),
            Fact::Limited(Limited { account, until: Some(until), .. }) => {
                let message =
                    format!("account {account} has met its limit until {}", timestamp(*until));
                self.tell(run, "parked", &step, &message);
            }
            Fact::Failed { why, .. } => {
                let left = run.step(&under.step).map_or(0, |(plan, state)| state.tries_left(plan));
                if left == 0 {
                    self.tell(run, "failed", &step, &why.to_string());
                }
            }
            _ => {}
        }
    }

    pub(super) fn outcome(&self, run: &Run, outcome: &Outcome) {
        match outcome {
            Outcome::Completed => self.tell(run, "done", "", "every step is completed"),
            Outcome::NeedsPerson { step, question } => {
                self.tell(run, "question", &step.to_string(), question);
            }
            _ => {}
        }
    }

    /// Values reach the command as variables, never as words of a shell. A command that fails or hangs costs
    /// nobody anything.
    fn tell(&self, run: &Run, what: &str, step: &str, message: &str) {
        let Some(command) = &self.command else { return };
        let started = Program::new("sh")
            .args(["-c", command])
            .env("PITON_EVENT", what)
            .env("PITON_HANDLE", run.opened.handle.as_str())
            .env("PITON_STEP", step)
            .env("PITON_MESSAGE", message)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        if let Ok(mut child) = started {
            std::thread::spawn(move || child.wait());
        }
    }
}
