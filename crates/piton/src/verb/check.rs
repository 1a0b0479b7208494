//! `piton check`: says what became of items of a step's checklist.

use piton_core::event::Mark;
use piton_core::ids::ItemRef;
use piton_engine::outside::claims;
use serde_json::json;

use crate::by_hand;
use crate::error::{Kind, Problem};
use crate::target::{ByClaim, Target, Which, is_step_known, words};
use crate::ui::Ui;
use crate::verb::Answer;

/// Mark checklist items as done, or defer them
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("mark").required(true).args(["done", "defer"]), after_help = "\
Examples:
  piton check 1 2 --done                                  inside an attempt
  piton check calm-otter jwt 1 validate.2 --done --fence 7
  piton check calm-otter jwt 3 --defer --reason 'no API yet' --worktree .

An item is its number in the step, or SUBSTEP.NUMBER, as `piton show` lists
them.")]
pub(crate) struct Args {
    /// The items, after the run and the step [default: PITON_RUN, PITON_STEP]
    #[arg(value_name = "[PLAN|RUN STEP] ITEM", required = true)]
    words: Vec<String>,

    #[command(flatten)]
    by: ByClaim,

    /// They are done
    #[arg(long)]
    done: bool,

    /// They are left for later
    #[arg(long, requires = "reason")]
    defer: bool,

    /// Why they are deferred
    #[arg(long, value_name = "WHY", conflicts_with = "done", value_parser = words, allow_hyphen_values = true)]
    reason: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let (which, items) = split(&args.words)?;
    let mut target = Target::claimed(&which, &args.by)?;
    let fence = target.fence()?;
    let mark = match &args.reason {
        Some(reason) if args.defer => Mark::Deferred { reason: reason.clone() },
        _ => Mark::Done,
    };
    target.write(fence, |_, log, under| claims::mark_items(log, under, items.clone(), mark))?;
    let word = if args.defer { "deferred" } else { "done" };
    let names: Vec<String> = items.iter().map(ToString::to_string).collect();
    let _ = ui.line(format!("step {}: {} {word}", target.step, names.join(", ")));
    let data = target.answer(json!({ "fence": fence, "items": items, "state": word }));
    Ok(by_hand::written(ui, &target.project, &target.log, data))
}

/// Where the step is known numbers alone are items; elsewhere the run and the step come first.
fn split(words: &[String]) -> Result<(Which, Vec<ItemRef>), Problem> {
    let read = |words: &[String]| -> Result<Vec<ItemRef>, Problem> {
        let item = |word: &String| ItemRef::try_from(word.clone());
        let all: Result<Vec<ItemRef>, _> = words.iter().map(item).collect();
        all.map_err(|error| Problem::from_error(Kind::Usage, &error))
    };
    if let Ok(items) = read(words)
        && is_step_known()?
    {
        return Ok((Which { run: None, step: None }, items));
    }
    match words {
        [run, step, items @ ..] if !items.is_empty() => {
            let which = Which { run: Some(run.clone()), step: Some(step.clone()) };
            Ok((which, read(items)?))
        }
        _ => Err(Problem::new(Kind::Usage, "which items of which step?")
            .hint("`piton check --help` shows how; inside an attempt the items are enough")),
    }
}
