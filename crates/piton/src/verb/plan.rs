//! `piton plan check`: reads a plan and says everything that is wrong with it. Needs no repository.

use std::path::{Path, PathBuf};

use piton_engine::runs;
use serde_json::json;

use crate::error::Problem;
use crate::text::{count, green, plain};
use crate::ui::Ui;
use crate::verb::Answer;

/// Check plans
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Check a plan file: every mistake with its line and a remedy
    #[command(after_help = "\
Example:
  piton plan check plan.toml

Exit status: 0 when the plan can be used, 65 when it cannot.")]
    Check {
        /// The plan file
        file: PathBuf,
    },
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let Verb::Check { file } = &args.verb;
    check(file, ui)
}

fn check(file: &Path, ui: &Ui) -> Result<Answer, Problem> {
    let plan = runs::read_plan(file)?;
    let steps = count(plan.steps.len() as u64, "step");
    let path = file.display();
    ui.line(format!("{} {path}: {} has {steps}", green("✓"), plain(&plan.name)))?;
    let data = json!({
        "path": file,
        "name": plan.name,
        "hash": plan.hash(),
        "steps": plan.steps.iter().map(|step| &step.id).collect::<Vec<_>>(),
    });
    Ok(Answer::new(data))
}
