//! `piton plan`: looks at plans of any format. `check` says everything that is wrong with one and what this
//! machine lacks for it, `show` draws its steps, `convert` writes it in another format. Needs no
//! repository.

use std::path::{Path, PathBuf};

use piton_core::plan::{Plan, PlanFormat};
use piton_engine::config::{self, Flags, Layers};
use piton_engine::formats;
use piton_engine::project::Project;
use piton_engine::run::plan_file::{self, PlanRead, ReadAs};
use piton_engine::run::preflight::preflight;
use serde_json::json;

use crate::error::{Kind, Problem, finding};
use crate::preflight;
use crate::remedy;
use crate::start;
use crate::text::{count, green, plain};
use crate::ui::Ui;
use crate::verb::{self, Answer, run};

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
Examples:
  piton plan check plan.toml
  piton plan check implementation_plan.json --json
  piton plan check notes.md --format markdown

Formats: toml, yaml and json (piton's own), markdown, tug, auto-claude, epic,
prodigy, specification. Exit status: 0 when the plan can be used, 65 when not.")]
    Check {
        /// The plan file [default: plan.toml, here or above]
        file: Option<PathBuf>,

        /// Its format, where it is not found out by itself
        #[arg(long, value_name = "FORMAT", value_parser = run::format)]
        format: Option<PlanFormat>,

        /// Count as the tool counts whose plan it is
        #[arg(long)]
        compat: bool,
    },
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let PlanVerb::Check { file, format, compat } = &args.verb;
    let how = ReadAs { format: *format, agent: None };
    check(&start::plan(file.as_deref())?, &how, *compat, ui)
}

fn check(file: &Path, how: &ReadAs, compat: bool, ui: &Ui) -> Result<Answer, Problem> {
    let read = plan_file::read_plan(file, how)?;
    let plan = read.plan();
    let counts = match compat {
        true => formats::compat_counts(read.bytes()).unwrap_or(read.counts),
        false => read.counts,
    };
    let mut parts = vec![count(counts.steps as u64, "step")];
    for (number, word) in
        [(counts.substeps, "substep"), (counts.items, "item"), (counts.questions, "open question")]
    {
        parts.extend((number > 0).then(|| count(number as u64, word)));
    }
    let (path, name) = (file.display(), plain(&plan.name));
    let format = match read.format.is_native() {
        true => String::new(),
        false => format!(" ({})", read.format.as_str()),
    };
    ui.line(format!("{} {path}{format}: {name} has {}", green("✓"), parts.join(", ")))?;
    warn(ui, file, &read);
    check_here(ui, plan, file);
    let data = json!({
        "path": file,
        "format": read.format,
        "counts": counts,
        "name": plan.name,
        "hash": plan.hash(),
        "steps": plan.steps.iter().map(|step| &step.id).collect::<Vec<_>>(),
    });
    Ok(Answer::new(data))
}

/// What a run of the plan would not follow.
fn warn(ui: &Ui, file: &Path, read: &PlanRead) {
    let path = file.display().to_string();
    for found in &read.warnings {
        let detail = finding(&path, found);
        ui.warn(Kind::Noticed, detail.message, detail.hint);
    }
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
