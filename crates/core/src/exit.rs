//! How an agent or a command ended, and what that means: one rule for its keeper and for whoever finds its
//! exit record later.

use serde::{Deserialize, Serialize};

use crate::event::{Cause, Exit, Failure, Stage};

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
}

/// What an agent's or command's exit means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judged {
    /// It ended by itself with success: its stage is done.
    Ended,
    Interrupted(Cause),
    Failed(Failure),
}

/// Exit codes are recorded, not believed: once an agent was asked to stop even its zero exit is an
/// interruption (some agents exit 0 when terminated), and a death by an outside SIGKILL or SIGTERM is
/// one too. Shells and agents report those as 128 + signal. A failure is called by the stage that the child
/// was started for: setup, the work or verify. `tail` is the end of what it printed.
pub fn judge_exit(stage: Stage, ended: AgentExit, tail: String) -> Judged {
    const SIGKILL: i32 = 9;
    const SIGTERM: i32 = 15;
    const BY_SHELL: i32 = 128;
    let AgentExit { exit, stop } = ended;
    match stop {
        StopRequest::Stop(cause) => return Judged::Interrupted(cause),
        StopRequest::TimeUp { ms } => return Judged::Failed(Failure::Timeout { ms }),
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
