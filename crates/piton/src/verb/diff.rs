//! `piton diff`: what a run, or one step of it, has changed. Looks and records nothing.

use piton_engine::Access;
use piton_engine::diff::{self, Form};
use serde_json::json;

use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::{self, Answer, step_of};

/// Show what a run or a step changed
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton diff calm-otter --stat           the files that changed
  piton diff calm-otter                  every line
  piton diff calm-otter jwt              what one step landed
  piton diff calm-otter | git apply --stat

A run is compared with its base, a step with what had landed before it. A step
that has not landed is shown as in its last snapshot.")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,

    /// Only this step
    step: Option<String>,

    /// Only the files and how much of each
    #[arg(long)]
    stat: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let log = verb::run_of(&project, Access::Look, args.run.as_deref())?;
    let step = args.step.as_deref().map(|text| step_of(&log, text)).transpose()?;
    let range = match &step {
        Some(step) => diff::of_step(&project, &log, step)?,
        None => Some(diff::of_run(&project, &log)?),
    };
    let step = step.map(|step| step.to_string());
    let opened = &log.run().opened;
    let Some(range) = range else {
        ui.talk("nothing is kept of this step yet");
        let files: [&str; 0] = [];
        return Ok(Answer::new(
            json!({ "run": opened.run, "handle": opened.handle, "step": step, "files": files }),
        ));
    };
    if let Some(name) = &range.snapshot {
        ui.talk(format!("as its last snapshot has it: {name}"));
    }
    let form = if args.stat { Form::Stat } else { Form::Patch };
    let told = diff::told(&project, &range, form)?;
    if !ui.is_json() {
        ui.patch(&told)?;
        return Ok(Answer::streamed());
    }
    let mut data = json!({
        "run": opened.run,
        "handle": opened.handle,
        "step": step,
        "from": range.from,
        "to": range.to,
        "snapshot": range.snapshot,
        "files": diff::files(&project, &range)?,
    });
    if !args.stat {
        data["patch"] = String::from_utf8_lossy(&told).into();
    }
    Ok(Answer::new(data))
}
