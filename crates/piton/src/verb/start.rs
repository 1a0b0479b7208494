//! `piton start`: a holder says that the work has begun.

use piton_core::view::{QuestionView, question_view};
use piton_engine::outside::claims;
use serde_json::json;

use crate::describe::question_lines;
use crate::error::Problem;
use crate::target::{ByClaim, Target, Which};
use crate::ui::Ui;
use crate::verb::Answer;

/// Record that work on a claimed step begins
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  piton start calm-otter jwt --fence 7

It prints the answers to what earlier attempts asked.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    by: ByClaim,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::claimed(&args.which, &args.by)?;
    let fence = target.fence()?;
    let answers = target.write(fence, |_, log, under| claims::start(log, under))?;
    let answers: Vec<QuestionView> = answers.iter().map(question_view).collect();
    let _ = ui.line(format!("step {}: started", target.step));
    for line in answers.iter().flat_map(question_lines) {
        let _ = ui.line(format!("  {line}"));
    }
    let data = target.answer(json!({ "fence": fence, "started": true, "answers": answers }));
    Ok(Answer::new(data).after_writing(target.log.store()))
}
