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

/// Crash-safe runs for coding agents: kill it anywhere, `piton resume` goes on.
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
    #[arg(long, global = true)]
    json: bool,

    /// Work as if started in this folder
    #[arg(short = 'C', long = "directory", global = true, value_name = "DIR")]
    directory: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Without a command, piton says what needs you.

Examples:
  piton demo                    see it survive kill -9
  piton init                    write a first plan for this repository
  piton run plan.toml           run a plan
  piton resume                  go on after any interruption
  piton status                  what is going on

Exit status: 0 done, 1 failed, 2 usage, 4 needs a person, 5 ownership lost,
65 bad plan, 69 store unavailable, 74 damaged, 75 parked, 77 not trusted,
130 interrupted, 143 terminated.";

/// The verbs in the order of the help: name, and the module that has its arguments and its `run`.
macro_rules! verbs {
    ($($(#[$how:meta])? $verb:ident = $name:literal in $($module:ident)::+,)*) => {
        #[derive(Debug, Subcommand)]
        #[command(defer = true)]
        enum Verb {
            $($(#[$how])? #[command(name = $name)] $verb($($module)::+::Args),)*
        }

        impl Verb {
            /// What reads the words of one verb.
            fn reader(name: &str) -> Option<clap::Command> {
                match name {
                    $($name => Some($($module)::+::Args::augment_args(clap::Command::new($name))),)*
                    _ => None,
                }
            }

            fn answer(self, ui: &Ui) -> Result<Answer, Problem> {
                match self {
                    $(Verb::$verb(args) => $($module)::+::run(&args, ui),)*
                }
            }
        }
    };
}

verbs! {
    Run = "run" in verb::run,
    Resume = "resume" in verb::resume,
    Retry = "retry" in verb::retry,
    Skip = "skip" in verb::skip,
    Stop = "stop" in verb::stop,
    Watch = "watch" in verb::watch,
    Status = "status" in verb::status,
    Show = "show" in verb::show,
    Log = "log" in verb::log,
    Events = "events" in verb::events,
    Open = "open" in verb::open,
    Claim = "claim" in verb::claim,
    Start = "start" in verb::start,
    Heartbeat = "heartbeat" in verb::heartbeat,
    Checkpoint = "checkpoint" in verb::checkpoint,
    Check = "check" in verb::check,
    Item = "item" in verb::item,
    Substep = "substep" in verb::substep,
    Complete = "complete" in verb::complete,
    Fail = "fail" in verb::fail,
    Release = "release" in verb::release,
    Reset = "reset" in verb::reset,
    Ready = "ready" in verb::ready,
    Worktree = "worktree" in verb::worktree,
    Abandon = "abandon" in verb::abandon,
    Clean = "clean" in verb::clean,
    Undo = "undo" in verb::undo,
    Snapshot = "snapshot" in verb::snapshot,
    Diff = "diff" in verb::diff,
    Merge = "merge" in verb::merge,
    Ask = "ask" in verb::ask,
    Questions = "questions" in verb::questions,
    Answer = "answer" in verb::answer,
    Plan = "plan" in verb::plan,
    Trust = "trust" in verb::trust,
    Init = "init" in verb::init,
    Doctor = "doctor" in verb::doctor,
    Demo = "demo" in verb::demo,
    Completions = "completions" in completions,
    Man = "man" in man,
    #[command(hide = true)]
    Keeper = "keeper" in verb::keeper,
    #[command(hide = true)]
    Worker = "worker" in verb::worker,
    #[command(hide = true)]
    DemoAgent = "demo-agent" in verb::demo_agent,
}

/// Parses and answers.
pub(crate) fn run(args: Vec<OsString>) -> ExitStatus {
    let read = match read(&args) {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => return misread(&args, &error),
        Err(_) => match reread(&args) {
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

/// Again with every verb built: help lists what each of them does.
fn reread(args: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let mut command = command();
    command.build();
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

/// Help and version are answers; everything else is a mistake, told in the form that was asked for.
fn misread(args: &[OsString], error: &clap::Error) -> ExitStatus {
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    if !json {
        // clap's own words, coloured and on the right stream; a closed pipe is no problem of ours.
        let told = error.render();
        if !asked && told.to_string().lines().any(|line| line.len() > LINE_MAX) {
            let cut = |line: &str| text::without_middle(line, text::TEXT_SHOWN);
            let lines: Vec<String> = told.to_string().lines().map(cut).collect();
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
        let mut command = command();
        command.clone().debug_assert();
        command.build();
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

    /// Help is wrapped by whoever wrote it: at the width that every terminal has.
    #[test]
    fn help_for_agents_fits_a_narrow_terminal() {
        const VERBS: &str = "open claim start heartbeat checkpoint check item substep complete fail \
                             release reset ready ask questions answer";
        let mut all = command();
        all.build();
        let named = |verb| all.find_subcommand(verb).expect("a verb").clone();
        let mut left: Vec<clap::Command> = VERBS.split_whitespace().map(named).collect();
        while let Some(command) = left.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            left.extend(command.get_subcommands().cloned());
        }
    }
}
