//! `piton plan check`: reads a plan and says everything that is wrong with it, and what this machine
//! lacks for it. Needs no repository.

use std::path::{Path, PathBuf};

use piton_core::plan::Plan;
use piton_engine::config::{self, Flags, Layers};
use piton_engine::project::Project;
use piton_engine::run::plan_file;
use piton_engine::run::preflight::preflight;
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::preflight;
use crate::remedy;
use crate::start;
use crate::text::{count, green, plain};
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Check a plan file
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: PlanVerb,
}

#[derive(Debug, clap::Subcommand)]
enum PlanVerb {
    /// List every mistake in a plan file, with line and remedy
    #[command(after_help = "\
Example:
  piton plan check plan.toml

Exit status: 0 when the plan can be used, 65 when it cannot.")]
    Check {
        /// The plan file [default: plan.toml, here or above]
        file: Option<PathBuf>,
    },
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let PlanVerb::Check { file } = &args.verb;
    check(&start::plan(file.as_deref())?, ui)
}

fn check(file: &Path, ui: &Ui) -> Result<Answer, Problem> {
    let read = plan_file::read_plan(file)?;
    let plan = read.plan();
    let steps = count(plan.steps.len() as u64, "step");
    let path = file.display();
    ui.line(format!("{} {path}: {} has {steps}", green("✓"), plain(&plan.name)))?;
    check_here(ui, plan, file);
    let data = json!({
        "path": file,
        "name": plan.name,
        "hash": plan.hash(),
        "steps": plan.steps.iter().map(|step| &step.id).collect::<Vec<_>>(),
    });
    Ok(Answer::new(data))
}

/// Warns of what a run would meet here: the plan itself may be right for another machine.
fn check_here(ui: &Ui, plan: &Plan, file: &Path) {
    let project = verb::project().ok();
    let root = project.as_ref().map(|project: &Project| project.git.main_root());
    let settings = match config::load(&Layers::of_process(root), &Flags::default()) {
        Ok(loaded) => loaded.settings,
        Err(error) => {
            let problem = Problem::from(error);
            return ui.warn(
                Kind::Noticed,
                problem.issues()[0].message.clone(),
                problem.hint.clone(),
            );
        }
    };
    if let Err(error) = plan_file::check_agents(plan, &settings) {
        let hint = remedy::of(&error);
        ui.warn(Kind::Noticed, error.to_string(), hint);
    }
    preflight::warn(ui, &preflight((plan, file), &settings, project.as_ref()));
}
