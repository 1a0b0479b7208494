//! `piton agent`: the agents that a plan can name here. `list` says which are installed, `check` how one is
//! started.

use piton_core::agent::Rung;
use piton_engine::agents::{self, ListedAgent};
use piton_engine::config::{self, Flags, Layers, Origin};
use piton_engine::git::shell::word;
use piton_engine::project::Project;
use serde_json::{Value, json};

use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::text::{bold, dim, green, plain, red};
use crate::ui::Ui;
use crate::verb::Answer;

/// List the agents that plans can name, and check one
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: AgentVerb,
}

#[derive(Debug, clap::Subcommand)]
enum AgentVerb {
    /// List every agent, with the version of those that are installed
    #[command(after_help = "\
Examples:
  piton agent list
  piton agent list --json

Asks each program for its version. Agents of a repository's piton.toml are
listed and not started.")]
    List {},
    /// Show how an agent is started, and whether it can be
    #[command(after_help = "\
Examples:
  piton agent check claude

Only `--version` is run. Exit status: 0 when it is installed, 1 when not.")]
    Check {
        /// Its name
        agent: String,
    },
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = Project::discover(std::path::Path::new(".")).ok();
    let root = project.as_ref().map(|project| project.git.main_root());
    let loaded = config::load(&Layers::of_process(root), &Flags::default())?;
    let all = agents::list(&loaded, std::env::var_os("PATH").as_deref());
    match &args.verb {
        AgentVerb::List {} => list(&all, ui),
        AgentVerb::Check { agent } => check(&all, agent, ui),
    }
}

fn list(all: &[ListedAgent], ui: &Ui) -> Result<Answer, Problem> {
    let mut rows = Vec::new();
    for agent in all {
        let version = agent.version();
        let (mark, state) = match (&agent.program, &version) {
            (None, _) => (dim("-"), dim("not installed")),
            (Some(_), None) => (green("✓"), "installed".to_owned()),
            (Some(_), Some(version)) => (green("✓"), plain(version)),
        };
        ui.line(format!("{mark} {}  {state}", bold(&format!("{:<10}", agent.name.as_str()))))?;
        rows.push(row(agent, version));
    }
    Ok(Answer::new(json!({ "agents": rows })))
}

fn check(all: &[ListedAgent], name: &str, ui: &Ui) -> Result<Answer, Problem> {
    let Some(found) = all.iter().find(|agent| agent.name.as_str() == name) else {
        let problem = Problem::new(Kind::Usage, format!("there is no agent {}", plain(name)));
        return Err(problem.hint("`piton agent list` shows them"));
    };
    let version = found.version();
    let shown = |rung| {
        let words = found.agent.words(rung, "SESSION", "PROMPT-FILE");
        words.iter().map(|text| word(text)).collect::<Vec<_>>().join(" ")
    };
    let state = match (&found.program, &version) {
        (None, _) => red("not installed"),
        (Some(place), None) => plain(&place.display().to_string()),
        (Some(place), Some(version)) => format!("{} ({})", plain(version), place.display()),
    };
    ui.line(format!("{}  {state}", bold(name)))?;
    ui.line(format!("  start   {}", plain(&shown(Rung::Start))))?;
    match found.agent.rung(Rung::Resume) {
        Rung::Start => ui.line("  resume  no: a new conversation gets a brief")?,
        rung => ui.line(format!("  resume  {}", plain(&shown(rung))))?,
    }
    ui.line(format!("  prompt  {}", found.agent.prompt.as_str()))?;
    ui.line(format!("  dialect {}", found.agent.dialect.as_str()))?;
    let answer = Answer::new(row(found, version));
    Ok(match found.program {
        Some(_) => answer,
        None => answer.exiting(ExitStatus::Failed),
    })
}

fn row(agent: &ListedAgent, version: Option<String>) -> Value {
    let from = match agent.origin {
        Origin::Default => "built in",
        Origin::User(_) => "user",
        _ => "repository",
    };
    json!({
        "agent": agent.name,
        "from": from,
        "program": agent.program.as_deref().map(piton_engine::git::repo::names::text),
        "version": version,
        "resumes": agent.agent.rung(Rung::Resume) != Rung::Start,
    })
}
