//! Questions: what an attempt asks a person, and what becomes of it. A question is known by the
//! position of its record, is answered once, and its answer is applied once: by the start of the
//! attempt whose brief carried it, or by the holder who read it.

use serde::{Deserialize, Serialize};

use crate::event::About;
use crate::ids::{AgentName, Fence, QuestionId, StepRef};
use crate::time::Millis;

/// A question of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub id: QuestionId,
    /// The attempt that asked.
    pub fence: Fence,
    pub text: String,
    /// The only answers there are; without any, every text is one.
    pub choices: Vec<String>,
    /// What piton itself asks about.
    pub about: Option<Box<About>>,
    pub asked_at: Millis,
    pub state: QuestionState,
}

/// The answers to a question about a conflict: the commit is landed again, once both sides were brought
/// together; the step is done again from the run's branch; the run stops.
pub const LAND_AGAIN: &str = "land again";

/// The answers to a question about an interruption: the step goes on in the tree as it was left; it is
/// done again from its base; the run stops.
pub const CONTINUE: &str = "continue";
pub const RESTART: &str = "restart";
pub const STOP: &str = "stop";

/// The answers to questions about failures and interruptions that repeat themselves, beside [`STOP`]: what failed is tried again; it is left as it
/// failed, and the rest goes on; the step is skipped.
pub const TRY_AGAIN: &str = "try again";
pub const GO_ON: &str = "go on";
pub const SKIP: &str = "skip";

/// The answer to a question about a loop, beside [`TRY_AGAIN`] and [`STOP`]: the loop is done as it is.
pub const ACCEPT: &str = "accept";

/// The answer to a question about a limit that passes at an instant: it is waited for.
pub const WAIT: &str = "wait";

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionState {
    /// The step waits.
    Open,
    /// Answered; no attempt has been told yet.
    Answered { answer: String, at: Millis },
    /// The attempt of this fence was told.
    Applied { answer: String, at: Millis, by: Fence },
    /// Nobody waits for the answer any more.
    Void,
}

/// Which question is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhichQuestion {
    Id(QuestionId),
    /// The only open one of this step, or else the last that was answered.
    Of(StepRef),
}

impl Question {
    pub fn is_open(&self) -> bool {
        self.state == QuestionState::Open
    }

    /// Answered, and no attempt has been told.
    pub fn is_unread(&self) -> bool {
        matches!(self.state, QuestionState::Answered { .. })
    }

    /// Whether a person said that the step is to be done again, instead of landing its commit.
    pub(crate) fn is_to_restart(&self) -> bool {
        self.is_about_landing() && self.answer() == Some(RESTART)
    }

    /// Whether it asks only if the step is tried again: whoever wants the run to go on may say so beforehand.
    pub(crate) fn is_about_progress(&self) -> bool {
        matches!(self.about.as_deref(), Some(About::NoProgress { .. } | About::Account { .. }))
    }

    pub(crate) fn is_about_landing(&self) -> bool {
        matches!(self.about.as_deref(), Some(About::Conflict(_)))
    }

    pub(crate) fn is_about_loop(&self) -> bool {
        matches!(self.about.as_deref(), Some(About::Loop { .. }))
    }

    /// Whether nothing new is started before it is answered.
    pub(crate) fn is_about_run(&self) -> bool {
        matches!(self.about.as_deref(), Some(About::FailedAlike { .. }))
    }

    pub(crate) fn is_about_account(&self) -> bool {
        matches!(self.about.as_deref(), Some(About::Account { .. }))
    }

    /// Whether nothing is started on this agent's account before it is answered.
    pub(crate) fn is_about_account_of(&self, agent: &AgentName) -> bool {
        match self.about.as_deref() {
            Some(About::Account { agents, .. }) => agents.contains(agent),
            _ => false,
        }
    }

    pub fn answer(&self) -> Option<&str> {
        match &self.state {
            QuestionState::Answered { answer, .. } | QuestionState::Applied { answer, .. } => {
                Some(answer)
            }
            QuestionState::Open | QuestionState::Void => None,
        }
    }
}
