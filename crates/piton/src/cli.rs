//! What was typed, and which verb answers. The parser, its help and the completions are one set of
//! types; each verb's own arguments are in its file.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args as _, CommandFactory, FromArgMatches as _, Parser, Subcommand};
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::text;
use crate::ui::{Form, Ui};
use crate::verb::{self, Answer};

mod completions;
mod man;

/// Crash-safe runs for coding agents: kill it anywhere, `piton resume` continues.
#[derive(Debug, Parser)]
#[command(name = "piton", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    every: Every,

    #[command(subcommand)]
    verb: Option<Verb>,
}

/// What every verb understands.
#[derive(Debug, clap::Args)]
struct Every {
    /// Answer with one JSON object on stdout; errors too
    #[arg(long, global = true, display_order = 900)]
    json: bool,

    /// Work as if started in this folder
    #[arg(short = 'C', long = "directory", global = true, value_name = "DIR", display_order = 900)]
    directory: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Without a command, piton shows what needs you. More about a command:
`piton help COMMAND`; the commands of agents and scripts: `piton help protocol`.

Exit status: 0 done, 1 failed, 2 usage, 4 needs a person, 5 claim lost,
65 bad plan, 69 store unavailable, 74 damaged, 75 parked, 77 not trusted,
130 interrupted, 143 terminated.";

/// The group that only `piton help protocol` lists: what agents and scripts use.
const PROTOCOL: &str = "Protocol";

const ABOUT_PROTOCOL: &str = "\
The protocol for agents and scripts: take a step, work on it, complete it

An agent that piton did not start claims a step from a worktree of its own and
writes under that claim. In an attempt of `piton run`, the variables PITON_RUN,
PITON_STEP and PITON_FENCE name the claim. Every command has --json.";

/// The verbs in the order of the help, by group: name, and the module that has its arguments and its `run`.
macro_rules! verbs {
    ($($group:literal { $($(#[$how:meta])? $verb:ident = $name:literal in $($module:ident)::+,)* })*) => {
        #[derive(Debug, Subcommand)]
        #[command(defer = true)]
        enum Verb {
            $($($(#[$how])? #[command(name = $name)] $verb($($module)::+::Args),)*)*
        }

        impl Verb {
            /// The groups of the help, each with the names of its verbs.
            const GROUPS: &[(&str, &[&str])] = &[$(($group, &[$($name),*])),*];

            /// What reads the words of one verb.
            fn reader(name: &str) -> Option<clap::Command> {
                match name {
                    $($($name => Some($($module)::+::Args::augment_args(clap::Command::new($name))),)*)*
                    _ => None,
                }
            }

            fn answer(self, ui: &Ui) -> Result<Answer, Problem> {
                match self {
                    $($(Verb::$verb(args) => $($module)::+::run(&args, ui),)*)*
                }
            }
        }
    };
}

verbs! {
    "Start" {
        Demo = "demo" in verb::demo,
        Init = "init" in verb::init,
        Run = "run" in verb::run,
        Stop = "stop" in verb::stop,
    }
    "Watch" {
        Status = "status" in verb::status,
        Watch = "watch" in verb::watch,
        Log = "log" in verb::log,
        Show = "show" in verb::show,
        Events = "events" in verb::events,
        Questions = "questions" in verb::questions,
    }
    "Recover" {
        Resume = "resume" in verb::resume,
        Answer = "answer" in verb::answer,
        Retry = "retry" in verb::retry,
        Skip = "skip" in verb::skip,
        Reset = "reset" in verb::reset,
        Snapshot = "snapshot" in verb::snapshot,
        Doctor = "doctor" in verb::doctor,
    }
    "Review" {
        Diff = "diff" in verb::diff,
        Merge = "merge" in verb::merge,
        Clean = "clean" in verb::clean,
        Abandon = "abandon" in verb::abandon,
        Undo = "undo" in verb::undo,
    }
    "Plans and agents" {
        Plan = "plan" in verb::plan,
        Agent = "agent" in verb::agent,
        Trust = "trust" in verb::trust,
        Worktree = "worktree" in verb::worktree,
        Completions = "completions" in completions,
        Man = "man" in man,
    }
    "Protocol" {
        Open = "open" in verb::open,
        Ready = "ready" in verb::ready,
        Claim = "claim" in verb::claim,
        Start = "start" in verb::start,
        Heartbeat = "heartbeat" in verb::heartbeat,
        Checkpoint = "checkpoint" in verb::checkpoint,
        Check = "check" in verb::check,
        Item = "item" in verb::item,
        Substep = "substep" in verb::substep,
        Ask = "ask" in verb::ask,
        Output = "output" in verb::output,
        Complete = "complete" in verb::complete,
        Fail = "fail" in verb::fail,
        Release = "release" in verb::release,
    }
    "Processes of piton's own" {
        #[command(hide = true)]
        Keeper = "keeper" in verb::keeper,
        #[command(hide = true)]
        Worker = "worker" in verb::worker,
        #[command(hide = true)]
        DemoAgent = "demo-agent" in verb::demo_agent,
    }
}

/// Parses and answers.
pub(crate) fn run(args: Vec<OsString>) -> ExitStatus {
    let read = match read(&args) {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => return misread(&args, &error),
        // Again with every verb: help lists what each of them does.
        Err(_) => match with_help().try_get_matches_from(&args) {
            Ok(read) => read,
            Err(error) => return misread(&args, &error),
        },
    };
    let named = names(&read);
    let cli = match Cli::from_arg_matches(&read) {
        Ok(cli) => cli,
        Err(error) => return misread(&args, &error),
    };
    let form = if cli.every.json { Form::Json } else { Form::People };
    let ui = Ui::new(form, if named.is_empty() { "overview".to_owned() } else { named });
    match cli.answer(&ui) {
        Ok(answer) => {
            let exit = match answer.streamed {
                true => answer.exit,
                false => ui.finish(&answer.data, answer.exit),
            };
            answer.tidy();
            // The process ends: closing the store would only take time.
            std::mem::forget(answer);
            exit
        }
        Err(problem) => ui.fail(&problem),
    }
}

/// The parser's types, for completions and the reference. Verbs are there once it is built.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// The parser with every verb built, and its help in groups.
pub(crate) fn with_help() -> clap::Command {
    let mut command = command();
    command.build();
    let protocol = format!("{ABOUT_PROTOCOL}\n\n{}", group(&command, PROTOCOL));
    let titles = groups().iter().map(|(title, _)| *title).filter(|title| *title != PROTOCOL);
    let groups: Vec<String> = titles.map(|title| group(&command, title)).collect();
    let head = command.get_styles().get_header();
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}{head}Options:{head:#}\n{{options}}{{after-help}}",
        groups.concat(),
    );
    let protocol = clap::Command::new("protocol").hide(true).override_help(protocol);
    command.help_template(template).subcommand(protocol.arg_required_else_help(true))
}

/// The groups of the help, each with the names of its verbs.
pub(crate) fn groups() -> &'static [(&'static str, &'static [&'static str])] {
    Verb::GROUPS
}

/// A group of the help: its title, and its verbs with what each does, a line each.
fn group(command: &clap::Command, title: &str) -> String {
    let names = groups().iter().filter(|(group, _)| *group == title).flat_map(|(_, names)| *names);
    let verbs = names.filter_map(|name| command.find_subcommand(name));
    let verbs = verbs.filter(|verb| !verb.is_hide_set()).map(|verb| {
        let name = command.get_styles().get_literal();
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        format!("  {name}{:<12}{name:#} {about}\n", verb.get_name())
    });
    let verbs: String = verbs.collect();
    let head = command.get_styles().get_header();
    if verbs.is_empty() { verbs } else { format!("{head}{title}:{head:#}\n{verbs}\n") }
}

/// Reads what was typed with nothing but the typed verb to know: the others, their arguments and texts
/// would be a good part of what a small verb costs.
fn read(args: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let verb = args.get(1).and_then(|word| Verb::reader(word.to_str()?));
    let command = match verb {
        Some(verb) => Every::augment_args(clap::Command::new("piton")).subcommand(verb),
        None => command(),
    };
    command.try_get_matches_from(args)
}

/// The verb that was typed, in as many words as it has.
fn names(read: &ArgMatches) -> String {
    let mut names = Vec::new();
    let mut level = read;
    while let Some((name, below)) = level.subcommand() {
        names.push(name);
        level = below;
    }
    names.join(" ")
}

impl Cli {
    fn answer(self, ui: &Ui) -> Result<Answer, Problem> {
        if let Some(directory) = &self.every.directory {
            std::env::set_current_dir(directory).map_err(|error| {
                let message = format!("cannot work in {}", directory.display());
                Problem::new(Kind::Usage, message).because(error)
            })?;
        }
        match self.verb {
            None => verb::overview::run(ui),
            Some(verb) => verb.answer(ui),
        }
    }
}

/// The longest line of what was typed wrong that is said back as it is.
const LINE_MAX: usize = 1000;

/// Help and version are answers; everything else is a mistake, in the form that was asked for.
fn misread(args: &[OsString], error: &clap::Error) -> ExitStatus {
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    if !json {
        // clap's own words, coloured and on the right stream; a closed pipe is no problem of ours.
        let words = error.render().to_string();
        if !asked && words.lines().any(|line| line.len() > LINE_MAX) {
            let cut = |line: &str| text::without_middle(line, text::TEXT_SHOWN);
            let lines: Vec<String> = words.lines().map(cut).collect();
            Ui::new(Form::People, "usage").talk(lines.join("\n"));
        } else {
            let _ = error.print();
        }
        return if asked { ExitStatus::Ok } else { ExitStatus::Usage };
    }
    let verb = meant(args);
    let ui = Ui::new(Form::Json, if verb.is_empty() { "usage".to_owned() } else { verb.clone() });
    let text = error.render().to_string();
    if asked {
        return ui.finish(&json!({ "text": text.trim_end() }), ExitStatus::Ok);
    }
    let message = in_a_line(&text);
    let help = ["piton", &verb, "--help"].into_iter().filter(|word| !word.is_empty());
    let hint = format!("`{}`", help.collect::<Vec<_>>().join(" "));
    ui.fail(&Problem::new(Kind::Usage, message).hint(hint))
}

/// What clap says about a mistake, without what every such text ends with.
fn in_a_line(text: &str) -> String {
    const REST: [&str; 2] = ["Usage:", "For more information"];
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines = lines.take_while(|line| !REST.iter().any(|rest| line.starts_with(rest)));
    let said = lines.fold(String::new(), |said, line| match said.as_str() {
        "" => line.strip_prefix("error: ").unwrap_or(line).to_owned(),
        _ if said.ends_with(':') => format!("{said} {line}"),
        _ => format!("{said}; {line}"),
    });
    said.trim_end().to_owned()
}

/// The verb that a wrong command line is about, as far as it can be read.
fn meant(args: &[OsString]) -> String {
    let read = command().ignore_errors(true).try_get_matches_from(args);
    read.map(|read| names(&read)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_is_sound_and_everything_has_help() {
        command().debug_assert();
        let command = with_help();
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            assert!(verb.get_about().is_some(), "{} has no help", verb.get_name());
            for arg in verb.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{} {} has no help",
                    verb.get_name(),
                    arg.get_id()
                );
            }
        }
    }

    /// Texts are wrapped by hand, at the width that every terminal has; a verb is one line of a list.
    #[test]
    fn help_fits_a_narrow_terminal() {
        let mut left = vec![with_help()];
        let mut seen = 0;
        while let Some(mut command) = left.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let root = command.get_name() == "piton" || command.get_name() == "protocol";
            let help = if root { command.render_help().to_string() } else { help };
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            seen += 1;
            left.extend(command.get_subcommands().cloned());
        }
        assert!(seen > 50, "the commands were not found: {seen}");
    }
}
