//! What piton's tests stand on. Tests of the real binary run in a [`Sandbox`]: a repository, a home
//! and an environment of their own, nothing of the machine's. Agents are played by the program
//! `fake-agent` (`fake-agent --help` lists what it can do). Processes are killed for real; a
//! [`CrashPoint`] holds a process at a named point of the engine until the test has killed it or
//! lets it go on. Waiting happens in [`wait`], nowhere else, and always has a deadline.
//!
//! Linux only: processes are found through `/proc`.
//!
//! Reading order: [`sandbox`], [`piton`], [`runs`], [`crash`], [`terminal`], [`processes`], [`wait`].

pub mod crash;
pub mod piton;
pub mod processes;
mod programs;
pub mod runs;
pub mod sandbox;
pub mod sim;
pub mod terminal;
pub mod wait;

pub use crash::{CrashPoint, POINTS, Who};
pub use piton::{Output, Piton, Place, Running, Typed, look_at_every_output};
pub use processes::{Process, alive, kill9, signal};
pub use rustix::process::Signal;
pub use sandbox::{Sandbox, shell_word, toml_string};
pub use terminal::Terminal;
pub use wait::{DEADLINE, now, wait_for, wait_until};
