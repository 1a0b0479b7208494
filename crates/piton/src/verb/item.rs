//! `piton item add`: adds a gap that was found at work to a step's checklist.

use piton_core::event::Priority;
use piton_engine::outside::claims;
use serde_json::json;

use crate::describe::priority_word;
use crate::error::{Kind, Problem};
use crate::target::{ByClaim, Target, words};
use crate::text::{TEXT_SHOWN, clipped};
use crate::ui::Ui;
use crate::verb::Answer;

/// Add an item to a step's checklist
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: ItemVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ItemVerb {
    /// Add an item that the plan lacks
    #[command(after_help = "\
Examples:
  piton item add 'refresh tokens are not rotated'        inside an attempt
  piton item add calm-otter jwt 'no test' --priority critical --fence 7

It comes after the plan's items and is open until checked.")]
    Add(Add),
}

#[derive(Debug, clap::Args)]
struct Add {
    /// The item, after the run and the step [default: PITON_RUN, PITON_STEP]
    #[arg(value_name = "[PLAN|RUN STEP] TEXT", required = true, num_args = 1..=3)]
    words: Vec<String>,

    #[command(flatten)]
    by: ByClaim,

    /// How much it matters
    #[arg(long, value_name = "critical|important|minor", default_value = "important",
          value_parser = priority)]
    priority: Priority,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let ItemVerb::Add(args) = &args.verb;
    let (mut target, text) = Target::behind(&args.words, &args.by, "text")?;
    let text = words(&text).map_err(|why| {
        Problem::new(Kind::Usage, format!("the item: {why}"))
            .hint("say in a line what was found missing, in quotes")
    })?;
    let fence = target.fence()?;
    let item = target
        .write(fence, |_, log, under| claims::add_item(log, under, text.clone(), args.priority))?;
    let step = &target.step;
    let _ = ui.line(format!("step {step}: item {item}  {}", clipped(&text, TEXT_SHOWN)));
    let priority = priority_word(args.priority);
    let data = target.answer(json!({ "fence": fence, "item": item, "priority": priority }));
    Ok(Answer::new(data).after_writing(target.log.store()))
}

fn priority(text: &str) -> Result<Priority, String> {
    let all = [Priority::Critical, Priority::Important, Priority::Minor];
    all.into_iter()
        .find(|priority| priority_word(*priority) == text)
        .ok_or_else(|| "critical, important or minor".to_owned())
}
