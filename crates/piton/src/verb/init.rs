//! `piton init`: writes a first plan for this repository, with the agent that is installed and the
//! project's own tests.

use std::path::PathBuf;

use piton_engine::git::shell::word;
use piton_engine::init::{self, FoundTools, LOOKED_FOR};
use serde_json::json;

use crate::error::Problem;
use crate::text::{bold, count, green};
use crate::ui::Ui;
use crate::verb::{self, Answer, from_here};

/// Write a first plan for this repository
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton init
  piton init plans/night.toml --agent codex

Finds the coding agent in PATH and the project's tests, and writes example
steps. Runs nothing and overwrites nothing.")]
pub(crate) struct Args {
    /// The file to write, inside the repository
    #[arg(default_value = "plan.toml")]
    file: PathBuf,

    /// The agent to write it for [default: the first one in PATH]
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(LOOKED_FOR))]
    agent: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let path = std::env::var_os("PATH");
    let found = init::look(project.git.here(), path.as_deref(), args.agent.as_deref());
    let plan = init::write(&project, &args.file, &found)?;
    let file = word(&from_here(&args.file).display().to_string());
    let steps = count(plan.steps.len() as u64, "step");
    ui.line(format!("{} {} has {steps}{}", green("✓"), bold(&file), of(&found)))?;
    if found.agent.is_none() {
        ui.hint(format!("no agent is in PATH; piton looked for {}", LOOKED_FOR.join(", ")));
    }
    let next = [format!("piton plan check {file}"), format!("piton run {file}")];
    ui.line("")?;
    ui.line(bold("Next: put in your own steps, then"))?;
    for command in &next {
        ui.line(format!("  {command}"))?;
    }
    Ok(Answer::new(json!({
        "path": piton_engine::git::repo::names::text(&args.file),
        "name": plan.name,
        "agent": found.agent,
        "check": found.check,
        "steps": plan.steps.iter().map(|step| &step.id).collect::<Vec<_>>(),
        "next": next,
    })))
}

fn of(found: &FoundTools) -> String {
    let agent = |agent: &str| format!(" for {agent}");
    let check = |check: &str| format!(", checked by `{check}`");
    found.agent.map(agent).unwrap_or_default() + &found.check.map(check).unwrap_or_default()
}
