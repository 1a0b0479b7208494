//! The command line of piton. It talks to people and agents; it appends nothing, spawns no agent and
//! calls no git: for that it asks the engine. One verb is one file under `verb`; [`Ui`](ui::Ui) is the
//! only way to the terminal; every error becomes a [`Problem`](error::Problem) with a code, an exit
//! status and the next thing to type.

use std::process::ExitCode;

pub mod error;
pub mod exit;
pub mod reference;

mod answer;
mod by_hand;
mod cli;
mod describe;
mod drive;
mod found_work;
mod hints;
mod loops;
mod next;
mod page;
mod plan_drift;
mod preflight;
mod progress;
mod question_prompt;
mod remedy;
mod resume_plan;
mod screen;
mod start;
mod target;
mod text;
mod trust_prompt;
mod typed;
mod ui;
mod unfinished_menu;
mod verb;

/// The whole program.
pub fn main() -> ExitCode {
    cli::run(std::env::args_os().collect()).into()
}
