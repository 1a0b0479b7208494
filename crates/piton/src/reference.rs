//! Reference pages, made from the same tables and types that the program uses. A test compares them
//! with what is checked in under `docs/`.

use std::fmt::Write as _;

use piton_engine::config::DEFAULTS;

use crate::cli;
use crate::error::KINDS;
use crate::exit::EXITS;

/// Every command with its help.
pub fn commands() -> String {
    let mut root = cli::command().term_width(96);
    root.build();
    let mut text = String::from("# Command line\n\n");
    section(&mut text, &mut root, "##");
    text
}

/// Whether a command line is one that the parser takes, and if not, why. The program's name comes first.
pub fn accepts(words: &[String]) -> Result<(), String> {
    match cli::command().try_get_matches_from(words) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn section(text: &mut String, command: &mut clap::Command, level: &str) {
    let name = command.get_bin_name().unwrap_or("piton").to_owned();
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = writeln!(text, "{level} {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    let shown = |sub: &&mut clap::Command| !sub.is_hide_set() && sub.get_name() != "help";
    for sub in command.get_subcommands_mut().filter(shown) {
        section(text, sub, "##");
    }
}

/// Exit statuses and error codes.
pub fn codes() -> String {
    let mut text = String::from("# Exit statuses and codes\n\n## Exit statuses\n\n");
    text.push_str("| status | meaning |\n|---:|---|\n");
    for (exit, meaning) in EXITS {
        let _ = writeln!(text, "| {} | {meaning} |", exit.number());
    }
    text.push_str("\n## Codes\n\n");
    text.push_str("In messages as `error[E060]`, under `--json` in `issues[].code`.\n\n");
    text.push_str("| code | exit | meaning |\n|---|---:|---|\n");
    for (_, code, exit, meaning) in KINDS {
        let _ = writeln!(text, "| {code} | {} | {meaning} |", exit.number());
    }
    text
}

/// The documented defaults.
pub fn settings() -> String {
    format!("# Configuration\n\n```toml\n{}\n```\n", DEFAULTS.trim_end())
}
