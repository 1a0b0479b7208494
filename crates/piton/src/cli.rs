//! What was typed, and which verb answers. The parser, its help and the completions are one set of
//! types; each verb's own arguments are in its file.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::exit::Exit;
use crate::ui::{Form, Ui};
use crate::verb::{self, Answer};

/// Crash-safe runs for coding agents: kill it anywhere, `piton resume` goes on.
#[derive(Debug, Parser)]
#[command(name = "piton", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// Answer with one JSON object on stdout; errors too
    #[arg(long, global = true)]
    json: bool,

    /// Work as if started in this folder
    #[arg(short = 'C', long = "directory", global = true, value_name = "DIR")]
    directory: Option<PathBuf>,

    #[command(subcommand)]
    verb: Option<Verb>,
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

/// Only the verb that was typed is built, because the others' arguments and texts are a good part of what
/// a small verb costs.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
enum Verb {
    Run(verb::run::Args),
    Resume(verb::resume::Args),
    Stop(verb::stop::Args),
    Status(verb::status::Args),
    Show(verb::show::Args),
    Log(verb::log::Args),
    Events(verb::events::Args),
    Open(verb::open::Args),
    Claim(verb::claim::Args),
    Start(verb::start::Args),
    Heartbeat(verb::heartbeat::Args),
    Checkpoint(verb::checkpoint::Args),
    Check(verb::check::Args),
    Item(verb::item::Args),
    Substep(verb::substep::Args),
    Complete(verb::complete::Args),
    Fail(verb::fail::Args),
    Release(verb::release::Args),
    Reset(verb::reset::Args),
    Ready(verb::ready::Args),
    Worktree(verb::worktree::Args),
    Abandon(verb::abandon::Args),
    Clean(verb::clean::Args),
    Undo(verb::undo::Args),
    Snapshot(verb::snapshot::Args),
    Diff(verb::diff::Args),
    Merge(verb::merge::Args),
    Ask(verb::ask::Args),
    Questions(verb::questions::Args),
    Answer(verb::answer::Args),
    Plan(verb::plan::Args),
    Trust(verb::trust::Args),
    Init(verb::init::Args),
    Doctor(verb::doctor::Args),
    Demo(verb::demo::Args),
    Completions(verb::completions::Args),
    Man(verb::man::Args),
    #[command(hide = true)]
    Keeper(verb::keeper::Args),
    #[command(hide = true)]
    Worker(verb::worker::Args),
    #[command(hide = true)]
    DemoAgent(verb::demo_agent::Args),
}

/// Parses and answers.
pub(crate) fn run(args: Vec<OsString>) -> Exit {
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => return misread(&args, &error),
        Err(_) => match reread(&args) {
            Ok(cli) => cli,
            Err(error) => return misread(&args, &error),
        },
    };
    let form = if cli.json { Form::Json } else { Form::People };
    let ui = Ui::new(form, cli.verb.as_ref().map_or("overview", Verb::name));
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

/// Again with every verb built: help lists what each of them does.
fn reread(args: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = command();
    command.build();
    Cli::from_arg_matches(&command.try_get_matches_from(args)?)
}

impl Cli {
    fn answer(self, ui: &Ui) -> Result<Answer, Problem> {
        if let Some(directory) = &self.directory {
            std::env::set_current_dir(directory).map_err(|error| {
                let message = format!("cannot work in {}", directory.display());
                Problem::new(Kind::Usage, message).because(error)
            })?;
        }
        match self.verb {
            None => verb::overview::run(ui),
            Some(Verb::Run(args)) => verb::run::run(args, ui),
            Some(Verb::Resume(args)) => verb::resume::run(&args, ui),
            Some(Verb::Stop(args)) => verb::stop::run(&args, ui),
            Some(Verb::Status(args)) => verb::status::run(&args, ui),
            Some(Verb::Show(args)) => verb::show::run(&args, ui),
            Some(Verb::Log(args)) => verb::log::run(&args, ui),
            Some(Verb::Events(args)) => verb::events::run(&args, ui),
            Some(Verb::Open(args)) => verb::open::run(&args, ui),
            Some(Verb::Claim(args)) => verb::claim::run(&args, ui),
            Some(Verb::Start(args)) => verb::start::run(&args, ui),
            Some(Verb::Heartbeat(args)) => verb::heartbeat::run(&args, ui),
            Some(Verb::Checkpoint(args)) => verb::checkpoint::run(&args, ui),
            Some(Verb::Check(args)) => verb::check::run(&args, ui),
            Some(Verb::Item(args)) => verb::item::run(&args, ui),
            Some(Verb::Substep(args)) => verb::substep::run(&args, ui),
            Some(Verb::Complete(args)) => verb::complete::run(&args, ui),
            Some(Verb::Fail(args)) => verb::fail::run(&args, ui),
            Some(Verb::Release(args)) => verb::release::run(&args, ui),
            Some(Verb::Reset(args)) => verb::reset::run(&args, ui),
            Some(Verb::Ready(args)) => verb::ready::run(&args, ui),
            Some(Verb::Worktree(args)) => verb::worktree::run(&args, ui),
            Some(Verb::Abandon(args)) => verb::abandon::run(&args, ui),
            Some(Verb::Clean(args)) => verb::clean::run(&args, ui),
            Some(Verb::Undo(args)) => verb::undo::run(&args, ui),
            Some(Verb::Snapshot(args)) => verb::snapshot::run(&args, ui),
            Some(Verb::Diff(args)) => verb::diff::run(&args, ui),
            Some(Verb::Merge(args)) => verb::merge::run(&args, ui),
            Some(Verb::Ask(args)) => verb::ask::run(&args, ui),
            Some(Verb::Questions(args)) => verb::questions::run(&args, ui),
            Some(Verb::Answer(args)) => verb::answer::run(&args, ui),
            Some(Verb::Plan(args)) => verb::plan::run(&args, ui),
            Some(Verb::Trust(args)) => verb::trust::run(&args, ui),
            Some(Verb::Init(args)) => verb::init::run(&args, ui),
            Some(Verb::Doctor(args)) => verb::doctor::run(&args, ui),
            Some(Verb::Demo(args)) => verb::demo::run(&args, ui),
            Some(Verb::Completions(args)) => verb::completions::run(&args, ui),
            Some(Verb::Man(args)) => verb::man::run(&args, ui),
            Some(Verb::Keeper(args)) => verb::keeper::run(args),
            Some(Verb::Worker(args)) => verb::worker::run(&args, ui),
            Some(Verb::DemoAgent(args)) => verb::demo_agent::run(&args, ui),
        }
    }
}

impl Verb {
    fn name(&self) -> &'static str {
        match self {
            Verb::Run(_) => "run",
            Verb::Resume(_) => "resume",
            Verb::Stop(_) => "stop",
            Verb::Status(_) => "status",
            Verb::Show(_) => "show",
            Verb::Log(_) => "log",
            Verb::Events(_) => "events",
            Verb::Open(_) => "open",
            Verb::Claim(_) => "claim",
            Verb::Start(_) => "start",
            Verb::Heartbeat(_) => "heartbeat",
            Verb::Checkpoint(_) => "checkpoint",
            Verb::Check(_) => "check",
            Verb::Item(_) => "item add",
            Verb::Substep(_) => "substep complete",
            Verb::Complete(_) => "complete",
            Verb::Fail(_) => "fail",
            Verb::Release(_) => "release",
            Verb::Reset(_) => "reset",
            Verb::Ready(_) => "ready",
            Verb::Worktree(args) => args.name(),
            Verb::Abandon(_) => "abandon",
            Verb::Clean(_) => "clean",
            Verb::Undo(_) => "undo",
            Verb::Snapshot(args) => args.name(),
            Verb::Diff(_) => "diff",
            Verb::Merge(_) => "merge",
            Verb::Ask(_) => "ask",
            Verb::Questions(_) => "questions",
            Verb::Answer(_) => "answer",
            Verb::Plan(_) => "plan check",
            Verb::Trust(_) => "trust",
            Verb::Init(_) => "init",
            Verb::Doctor(_) => "doctor",
            Verb::Demo(_) => "demo",
            Verb::Completions(_) => "completions",
            Verb::Man(_) => "man",
            Verb::Keeper(_) => "keeper",
            Verb::Worker(_) => "worker",
            Verb::DemoAgent(_) => "demo-agent",
        }
    }
}

/// Help and version are answers; everything else is a mistake, told in the form that was asked for.
fn misread(args: &[OsString], error: &clap::Error) -> Exit {
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    if !json {
        // clap's own words, coloured and on the right stream; a closed pipe is no problem of ours.
        let _ = error.print();
        return if asked { Exit::Ok } else { Exit::Usage };
    }
    let verb = meant(args);
    let ui = Ui::new(Form::Json, if verb.is_empty() { "usage".to_owned() } else { verb.clone() });
    let text = error.render().to_string();
    if asked {
        return ui.finish(&json!({ "text": text.trim_end() }), Exit::Ok);
    }
    let said = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let said = said.take_while(|line| !line.starts_with("Usage:")).collect::<Vec<_>>().join(" ");
    let message = said.strip_prefix("error: ").unwrap_or(&said).to_owned();
    let help = ["piton", &verb, "--help"].into_iter().filter(|word| !word.is_empty());
    let hint = format!("`{}`", help.collect::<Vec<_>>().join(" "));
    ui.fail(&Problem::new(Kind::Usage, message).hint(hint))
}

/// The verb that a wrong command line is about, as far as it can be read.
fn meant(args: &[OsString]) -> String {
    let read = command().ignore_errors(true).try_get_matches_from(args);
    let mut names: Vec<String> = Vec::new();
    let mut level = read.as_ref().ok();
    while let Some((name, below)) = level.and_then(|matches| matches.subcommand()) {
        names.push(name.to_owned());
        level = Some(below);
    }
    names.join(" ")
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
