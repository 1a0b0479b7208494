//! `piton questions`: what waits for an answer. Looks and records nothing.

use piton_core::view::{QuestionView, RunView};
use piton_engine::Access;
use piton_engine::run::observe::{Depth, look};
use serde_json::{Value, json};

use crate::describe::{answer_commands, question_lines};
use crate::error::Problem;
use crate::exit::ExitStatus;
use crate::target;
use crate::text::bold;
use crate::ui::Ui;
use crate::verb::status::{WhichRuns, survey};
use crate::verb::{self, Answer};

/// Show questions that wait for your answer
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton questions                          of every unfinished run
  piton questions calm-otter --all         answered ones too
  piton questions --json | jq -r '.data.questions[] | .handle + \" \" + .text'")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: every unfinished one]
    run: Option<String>,

    /// Answered and void ones too
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let (views, damaged) = match &args.run {
        Some(asked) => {
            let log = target::run_of(&project, Access::Look, Some(asked))?;
            (vec![look(&project, &log, Depth::Locks)?], Vec::new())
        }
        None => {
            let which = if args.all { WhichRuns::All } else { WhichRuns::Unfinished };
            let found = survey(&project, which)?;
            (found.views, found.damaged)
        }
    };
    let mut rows: Vec<Value> = Vec::new();
    for view in &views {
        for (step, question) in asked(view, args.all) {
            ui.line(format!("{}  step {step}", bold(view.handle.as_str())))?;
            for line in question_lines(question) {
                ui.line(format!("  {line}"))?;
            }
            let commands = answer_commands(view, question);
            for command in &commands {
                ui.line(format!("    {command}"))?;
            }
            let mut row = json!({
                "run": view.run,
                "handle": view.handle,
                "step": step,
                "commands": commands,
            });
            if let (Value::Object(row), Value::Object(more)) = (&mut row, verb::json(question)) {
                row.extend(more);
            }
            rows.push(row);
        }
    }
    if rows.is_empty() {
        ui.line(if args.all { "Nothing was asked." } else { "Nothing waits for an answer." })?;
    }
    let exit = if damaged.is_empty() { ExitStatus::Ok } else { ExitStatus::Corrupt };
    for damaged in damaged {
        ui.report(&Problem::from(damaged.error));
    }
    Ok(Answer::new(json!({ "questions": rows })).exiting(exit))
}

fn asked(view: &RunView, all: bool) -> impl Iterator<Item = (String, &QuestionView)> {
    let of_steps = view.steps.iter().flat_map(|step| {
        step.questions.iter().map(move |question| (step.step.to_string(), question))
    });
    of_steps.filter(move |(_, question)| all || question.is_open())
}
