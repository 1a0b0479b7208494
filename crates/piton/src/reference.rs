//! Reference pages, made from the same tables and types that the program uses. A test compares them
//! with what is checked in under `docs/`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use piton_engine::config::DEFAULTS;

use crate::cli;
use crate::error::KINDS;
use crate::exit::EXITS;

/// Every command with its help; what many of them share comes first, once.
pub fn commands() -> String {
    let mut root = cli::with_help().term_width(96);
    let shared = shared(&root);
    let mut text =
        String::from("# Command line\n\n`piton help COMMAND` prints the same, with examples. ");
    text.push_str("Without a command, piton shows what needs you.\n\n");
    text.push_str("## What many commands take\n\n| | |\n|---|---|\n");
    let often = shared.iter().filter(|(_, count)| **count >= SHARED_MIN);
    for (arg, _) in often {
        let [name, help] = [&arg.0, &arg.1].map(|text| text.replace('|', "\\|"));
        let _ = writeln!(text, "| `{name}` | {help} |");
    }
    text.push('\n');
    for (title, names) in cli::groups() {
        let mut verbs = String::new();
        for name in *names {
            let verb = root.find_subcommand_mut(name);
            verb.into_iter().for_each(|verb| section(&mut verbs, verb, &shared));
        }
        if !verbs.is_empty() {
            let _ = write!(text, "## {title}\n\n{verbs}");
        }
    }
    text
}

/// An argument as it is typed, and what it is.
type Shared = BTreeMap<(String, String), usize>;

/// From how many commands on an argument is shown once for all of them.
const SHARED_MIN: usize = 3;

/// What every command takes.
const EVERYWHERE: [&str; 3] = ["json", "directory", "help"];

fn named(arg: &clap::Arg) -> (String, String) {
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    (format!("{short}{arg}"), help)
}

/// How many commands take each argument.
fn shared(command: &clap::Command) -> Shared {
    let mut all = Shared::new();
    for arg in command.get_arguments() {
        *all.entry(named(arg)).or_default() += 1;
    }
    let is_verb = |sub: &&clap::Command| !sub.is_hide_set() && sub.get_name() != "help";
    for sub in command.get_subcommands().filter(is_verb) {
        for (arg, count) in shared(sub) {
            *all.entry(arg).or_default() += count;
        }
    }
    all
}

/// A text of the program. Its examples are for the terminal.
fn block(text: &mut String, help: &str) {
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let help = help.join("\n");
    let is_example = |part: &&str| part.trim_start().starts_with("Example");
    let parts: Vec<&str> = help.split("\n\n").filter(|part| !is_example(part)).collect();
    let help = parts.join("\n\n");
    if !help.trim().is_empty() {
        let _ = writeln!(text, "```text\n{}\n```\n", help.trim_matches('\n'));
    }
}

/// How a verb is typed, what it does, and its own arguments.
fn section(text: &mut String, command: &mut clap::Command, shared: &Shared) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    if command.get_subcommands().next().is_none() {
        let usage = command.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").replace(" [OPTIONS]", "");
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let is_shared = |arg: &clap::Arg| shared.get(&named(arg)).is_some_and(|n| *n >= SHARED_MIN);
        let also = command.get_arguments().filter(|arg| is_shared(arg) && !arg.is_global_set());
        let also = also.filter_map(clap::Arg::get_long).filter(|long| !EVERYWHERE.contains(long));
        let also: Vec<String> = also.map(|long| format!("`--{long}`")).collect();
        let also =
            if also.is_empty() { String::new() } else { format!(" Also: {}.", also.join(", ")) };
        let _ = writeln!(text, "### `{usage}`\n\n{about}.{also}\n");
        let mut own = command.clone().help_template("{all-args}{after-help}").mut_args(|arg| {
            let hide = is_shared(&arg);
            arg.hide(hide)
        });
        block(text, &own.render_help().to_string());
    }
    for sub in command.get_subcommands_mut() {
        section(text, sub, shared);
    }
}

/// Whether a command line is one that the parser takes, and if not, why. The program's name comes first.
pub fn accepts(words: &[String]) -> Result<(), String> {
    match cli::command().try_get_matches_from(words) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => Ok(()),
        Err(error) => Err(error.to_string()),
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
