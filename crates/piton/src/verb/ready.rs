//! `piton ready`: the steps that can be claimed now, and why the others cannot. Looks and records
//! nothing.

use piton_engine::Access;
use piton_engine::outside::claims;

use crate::error::Problem;
use crate::hints::About;
use crate::remedy::why;
use crate::target;
use crate::text::{bold, dim, plain, table};
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Show the steps that can be claimed now
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton ready
  piton ready calm-otter --json | jq -r '.data.ready[].step'")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: PITON_RUN, or the unfinished one]
    #[arg(value_name = "PLAN|RUN")]
    run: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let log = target::run_of(&project, Access::Look, args.run.as_deref())?;
    let answer = claims::ready_steps(&project, &log)?;
    if let Some(why) = answer.left.barred.as_ref().filter(|_| !answer.left.all_completed) {
        let handle = bold(answer.handle.as_str());
        ui.line(format!("{handle}: {why}: nothing of it can be claimed"))?;
        if let Some(way) = About::run(&project, &log).barred() {
            ui.hint(way);
        }
        return Ok(Answer::new(verb::json(answer)));
    }
    let ready = answer
        .ready
        .iter()
        .map(|row| vec![bold(&row.step.to_string()), "ready".to_owned(), dim(&plain(&row.title))]);
    let blocked = answer
        .left
        .blocked
        .iter()
        .map(|row| vec![row.step.to_string(), "not now".to_owned(), why(row)]);
    for line in table(&ready.chain(blocked).collect::<Vec<_>>()) {
        ui.line(line)?;
    }
    if answer.left.blocked_more > 0 {
        ui.line(format!("and {} more that cannot be had now", answer.left.blocked_more))?;
    }
    if log.run().questions().any(|(_, question)| question.is_open()) {
        ui.hint(format!("what waits for an answer: `piton questions {}`", answer.handle));
    }
    if answer.left.all_completed {
        ui.line(format!("{}: every step is completed", bold(answer.handle.as_str())))?;
    }
    Ok(Answer::new(verb::json(answer)))
}
