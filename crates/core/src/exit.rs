//! How an agent or a command ended, and what that means: one rule for its keeper and for whoever finds its
//! exit record later.

use serde::{Deserialize, Serialize};

use crate::event::{Cause, Exit};

/// How an agent ended, and what it had been urged to by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentExit {
    pub exit: Exit,
    pub stop: StopRequest,
}

/// What piton had urged an agent to by the time it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopRequest {
    /// It ended by itself.
    Nothing,
    /// To stop, for this cause.
    Stop(Cause),
    /// To stop, because its time was up.
    TimeUp,
}

/// What an agent's or command's exit means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// It ended by itself with success: leftovers are committed and verified next.
    Ended,
    Interrupted(Cause),
    Failed,
    TimedOut,
}

/// Exit codes are recorded, not believed: once an agent was asked to stop even its zero exit is an
/// interruption (some agents exit 0 when terminated), and a death by an outside SIGKILL or SIGTERM is
/// one too. Shells and agents report those as 128 + signal.
pub fn judge_exit(ended: AgentExit) -> Judged {
    const SIGKILL: i32 = 9;
    const SIGTERM: i32 = 15;
    const BY_SHELL: i32 = 128;
    match ended.stop {
        StopRequest::Stop(cause) => return Judged::Interrupted(cause),
        StopRequest::TimeUp => return Judged::TimedOut,
        StopRequest::Nothing => {}
    }
    let signal = match ended.exit {
        Exit::Code(0) => return Judged::Ended,
        Exit::Code(code) => code - BY_SHELL,
        Exit::Signal(signal) => signal,
    };
    match signal {
        SIGKILL => Judged::Interrupted(Cause::ProcessKill),
        SIGTERM => Judged::Interrupted(Cause::Termination),
        _ => Judged::Failed,
    }
}
