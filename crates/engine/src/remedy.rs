//! What a person can do about something that was found, as data. A surface writes the words and the
//! command: a terminal, a web page and a tool call need different ones.

use piton_core::ids::{Handle, StepRef};
use piton_core::view::shown;
use serde::Serialize;

/// One thing that can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Remedy {
    /// Go on with the run: its worker mends what was found, or watches what lives.
    Resume { run: Handle },
    /// Stop the attempt at a step; where it is dead, that records it.
    Stop {
        run: Handle,
        #[serde(serialize_with = "shown")]
        step: StepRef,
    },
    /// Take a claim from its holder and give it to nobody.
    Release {
        run: Handle,
        #[serde(serialize_with = "shown")]
        step: StepRef,
    },
    /// Claim a step in spite of its holder.
    TakeOver {
        run: Handle,
        #[serde(serialize_with = "shown")]
        step: StepRef,
        worktree: String,
    },
    /// Make a step pending again.
    Reset {
        run: Handle,
        #[serde(serialize_with = "shown")]
        step: StepRef,
    },
    /// A command of the shell or of git, the same on every surface.
    Shell { command: String },
    /// Such a command, after which the run can go on.
    ThenResume { command: String, run: Handle },
    /// Mend the files of piton's own: rights, and what is no file.
    Repair,
    /// What is to be changed in a file.
    Text { text: String },
}
