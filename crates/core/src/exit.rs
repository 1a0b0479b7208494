//! How an agent or a command ended, and what that means: one rule for its keeper and for whoever finds its
//! exit record later.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::agent::Dialect;
use crate::dialect::{Said, Trouble, Turn};
use crate::event::{Cause, Exit, Failure, Stage};
use crate::ids::{AccountName, AgentName};
use crate::time::Millis;

/// How an agent or a command ended, and what it had been asked by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentExit {
    pub exit: Exit,
    pub stop: StopRequest,
}

/// What piton had asked of an agent or a command by the time it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopRequest {
    /// It ended by itself.
    Nothing,
    /// To stop, for this cause.
    Stop(Cause),
    /// To stop, because it had taken as long as it may.
    TimeUp { ms: u64 },
    /// To stop, because nothing of it had moved for so long.
    Hang { ms: u64 },
    /// To stop, because it had said that its turn is over and did not exit.
    TurnOver,
}

/// What an agent said by its end, and what its keeper knows about that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    pub dialect: Dialect,
    pub said: Said,
    pub account: AccountName,
    /// The agents of the plan that work on the same account.
    pub agents: BTreeSet<AgentName>,
    /// When the limit that it has met is over: in numbers, else by its words.
    pub resets_at: Option<Millis>,
    /// Out of 1000, by chance: spreads what would begin at the same moment.
    pub jitter: u16,
}

/// What an agent's or command's exit means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judged {
    /// It ended by itself with success: its stage is done.
    Ended,
    Interrupted(Cause),
    Failed(Failure),
    /// The agent's account has met a limit.
    Limited(Box<Heard>),
}

impl Heard {
    /// What keeps the agent from working, and what it says about that. A text for people may speak of limits in
    /// any sense: it counts where it names an instant.
    pub fn trouble(&self) -> Option<(Trouble, &str)> {
        let Some(Turn::Failed { trouble: Some(trouble), message }) = &self.said.turn else {
            return None;
        };
        let is_meant = match self.dialect {
            Dialect::Plain => *trouble == Trouble::Limit && self.resets_at.is_some(),
            _ => true,
        };
        is_meant.then_some((*trouble, message))
    }

    /// The agent's own word about its end. Some exit with 0 after an error, or when they were cut off; some
    /// with an error after all was done.
    fn judge(self: Box<Heard>, judged: Judged, ended: AgentExit) -> Judged {
        let by_itself = matches!(ended.stop, StopRequest::Nothing | StopRequest::TurnOver);
        let is_hung = matches!(ended.stop, StopRequest::Hang { .. });
        if matches!(judged, Judged::Interrupted(_)) || !(by_itself || is_hung) {
            return judged;
        }
        match self.trouble() {
            Some((Trouble::Limit | Trouble::Spend | Trouble::SignIn, _)) => {
                return Judged::Limited(self);
            }
            Some((Trouble::Busy, _)) | None => {}
        }
        if self.dialect == Dialect::Plain {
            return judged;
        }
        match (judged, self.said.turn) {
            // What went on behind its turn was not waited for any longer.
            (_, Some(Turn::Done)) => Judged::Ended,
            (Judged::Failed(Failure::Exit { exit, .. }), Some(Turn::Failed { message, .. })) => {
                Judged::Failed(Failure::Exit { exit, tail: message })
            }
            (Judged::Ended, Some(Turn::Failed { message, .. })) => {
                Judged::Failed(Failure::Reported { reason: message })
            }
            (Judged::Ended, None) => {
                let reason = "the agent ended without a result".to_owned();
                Judged::Failed(Failure::Reported { reason })
            }
            (judged, _) => judged,
        }
    }
}

/// What an exit means, with what an agent said.
pub fn judge(stage: Stage, ended: AgentExit, tail: String, heard: Option<Box<Heard>>) -> Judged {
    let judged = judge_exit(stage, ended, tail);
    match heard.filter(|_| stage == Stage::Agent) {
        Some(heard) => heard.judge(judged, ended),
        None => judged,
    }
}

/// Exit codes are recorded, not believed: once an agent was asked to stop even its zero exit is an
/// interruption (some agents exit 0 when terminated), and a death by an outside SIGKILL or SIGTERM is
/// one too. Shells and agents report those as 128 + signal. A failure is called by the stage that the child
/// was started for: setup, the work or verify. `tail` is the end of what it printed.
fn judge_exit(stage: Stage, ended: AgentExit, tail: String) -> Judged {
    const SIGKILL: i32 = 9;
    const SIGTERM: i32 = 15;
    const BY_SHELL: i32 = 128;
    let AgentExit { exit, stop } = ended;
    match stop {
        StopRequest::Stop(cause) => return Judged::Interrupted(cause),
        StopRequest::TimeUp { ms } => return Judged::Failed(Failure::Timeout { ms }),
        StopRequest::Hang { ms } => return Judged::Failed(Failure::Hang { ms }),
        // It ends as it said.
        StopRequest::TurnOver => return Judged::Ended,
        StopRequest::Nothing => {}
    }
    let signal = match exit {
        Exit::Code(0) => return Judged::Ended,
        Exit::Code(code) => code - BY_SHELL,
        Exit::Signal(signal) => signal,
    };
    match signal {
        SIGKILL => Judged::Interrupted(Cause::ProcessKill),
        SIGTERM => Judged::Interrupted(Cause::Termination),
        _ => Judged::Failed(match stage {
            Stage::Unstarted => Failure::Setup { why: format!("ended with {exit}"), tail },
            Stage::Agent => Failure::Exit { exit, tail },
            Stage::Verify | Stage::Land => Failure::Verify { exit, tail },
        }),
    }
}
