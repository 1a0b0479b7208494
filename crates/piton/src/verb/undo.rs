//! `piton undo`: reverses the last act that took something away, or a named one, or lists them.

use piton_engine::tidy::undo::{self, Act, ActStage, Acts, Deed, Undone, UnreadableAct};
use serde_json::json;

use crate::error::Problem;
use crate::text::{ago, bold, count, dim, green, now, plain, table, yellow};
use crate::ui::Ui;
use crate::verb::{self, Answer, from_here};

/// Reverse the last clean, restore, abandon or fresh start
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton undo            the last act
  piton undo --list     all acts
  piton undo 3          act 3

If something newer is in the way, nothing changes. Safe to repeat after a crash.")]
pub(crate) struct Args {
    /// The act, by its number [default: the last one]
    act: Option<u64>,

    /// List the acts; undo nothing
    #[arg(long, conflicts_with = "act")]
    list: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    if args.list {
        return list(ui, &undo::acts(&project)?);
    }
    let Undone { act, deed, put_back, reopened } = undo::undo(&project, args.act)?;
    // It is done, whoever still listens.
    let _ = ui.line(format!("{} undid #{act}: {deed}", green("✓")));
    for what in &put_back {
        let _ = ui.line(format!("  {what}"));
    }
    if let Some(run) = reopened {
        ui.hint(format!("go on with it: `piton resume {run}`"));
    }
    Ok(Answer::new(json!({ "act": act, "deed": deed, "put_back": put_back })))
}

fn list(ui: &Ui, Acts { acts, unreadable }: &Acts) -> Result<Answer, Problem> {
    if acts.is_empty() && unreadable.is_empty() {
        ui.line("Nothing was done here that could be undone.")?;
    }
    let head = ["ACT", "WHEN", "WHAT", "", ""].map(dim).to_vec();
    let broken = unreadable.iter().map(|act| (act.act, unreadable_row(act)));
    let mut rows: Vec<_> = acts.iter().map(|act| (act.act, row(act))).chain(broken).collect();
    rows.sort_by_key(|(act, _)| std::cmp::Reverse(*act));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(_, row)| row).collect();
    if !rows.is_empty() {
        for line in table(&[vec![head], rows].concat()) {
            ui.line(line)?;
        }
    }
    Ok(Answer::on_demand(ui, || json!({ "acts": acts, "unreadable": unreadable })))
}

fn unreadable_row(act: &UnreadableAct) -> Vec<String> {
    let path = from_here(&act.path).display().to_string();
    let why = plain(&act.why);
    vec![bold(&act.act.to_string()), "-".to_owned(), yellow("unreadable"), path, dim(&why)]
}

fn row(act: &Act) -> Vec<String> {
    let stage = match act.stage {
        ActStage::Intended => "cut short",
        ActStage::Done => "",
        ActStage::Undoing => "undoing it was cut short",
        ActStage::Undone => "undone",
    };
    let told = match &act.deed {
        Deed::Clean { trees, branches } => {
            let counted = [(trees.len(), "worktree"), (branches.len(), "branch")];
            let some = counted.into_iter().filter(|(many, _)| *many > 0);
            some.map(|(many, what)| count(many as u64, what)).collect::<Vec<_>>().join(", ")
        }
        Deed::Restore(from) => format!("{} in {}", from.step, from.path.display()),
        Deed::Abandon { gone } | Deed::FreshStart { gone, .. } => gone.handle.to_string(),
        Deed::Purge(gone) => gone.handle.to_string(),
    };
    vec![
        bold(&act.act.to_string()),
        ago(act.at, now()),
        act.deed.word().to_owned(),
        told,
        dim(stage),
    ]
}
