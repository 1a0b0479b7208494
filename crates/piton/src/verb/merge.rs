//! `piton merge`: brings what a run has landed into the branch that it began from.

use piton_engine::Access;
use piton_engine::merge::{self, How, Merge, MergeAsk, OpenSteps, Way};
use serde_json::{Value, json};

use crate::describe::{MergeWords, merge_line};
use crate::error::{Kind, Problem};
use crate::hints::About;
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Merge what a run has landed into its base branch
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton merge calm-otter --dry-run         does it merge cleanly?
  piton merge calm-otter                   fast-forward, or a merge commit
  piton merge calm-otter --squash          as one commit

The base branch is the plan's `base`, or what was checked out when the run was
opened. A conflict (E087), or uncommitted changes in files that it changes
(E088), refuse it. Its checkout is updated too. Safe to repeat after a crash.")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,

    /// Make one commit of all
    #[arg(long, conflicts_with = "no_ff")]
    squash: bool,

    /// Make a merge commit even where a fast-forward is possible
    #[arg(long)]
    no_ff: bool,

    /// Merge into this branch instead
    #[arg(long, value_name = "BRANCH")]
    into: Option<String>,

    /// Merge what has landed although steps are open
    #[arg(long)]
    partial: bool,

    /// Say whether it merges cleanly; change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let access = if args.dry_run { Access::Look } else { Access::Existing };
    let mut log = verb::run_of(&project, access, args.run.as_deref())?;
    let how = match (args.squash, args.no_ff) {
        (true, _) => How::Squash,
        (false, true) => How::MergeCommit,
        (false, false) => How::Any,
    };
    let open = if args.partial { OpenSteps::Allow } else { OpenSteps::Refuse };
    let ask = MergeAsk { into: args.into.clone(), how, open };
    let done = match args.dry_run {
        true => merge::preview(&project, &log, &ask),
        false => merge::merge(&project, &mut log, &ask),
    };
    let done = done.map_err(|error| About::run(&project, &log).problem(error))?;
    // It is merged, whoever still listens.
    let handle = log.run().opened.handle.clone();
    let _ = ui.line(merge_line(
        handle.as_str(),
        &done,
        MergeWords { squash: args.squash, dry_run: args.dry_run },
    ));
    if let Some(folder) = &done.aside {
        let message = format!(
            "an earlier merge was killed half-way; what it had left is in {}",
            folder.display()
        );
        ui.warn(Kind::Noticed, message, None);
    }
    let data = data(&log, &done, args);
    Ok(match args.dry_run {
        true => Answer::new(data),
        false => Answer::new(data).after_writing(log.store()),
    })
}

fn data(log: &piton_engine::run::log::Log, done: &Merge, args: &Args) -> Value {
    let opened = &log.run().opened;
    json!({
        "run": opened.run,
        "handle": opened.handle,
        "into": done.into,
        "from": done.onto,
        "to": done.to(),
        "tip": done.tip,
        "way": match &done.way {
            Way::NothingLanded | Way::Nothing => "nothing",
            Way::FastForward => "fast_forward",
            Way::Commit(_) if args.squash => "squash",
            Way::Commit(_) => "merge",
        },
        "merged": !args.dry_run && done.way != Way::NothingLanded,
        "checkout": done.checkout.as_deref().map(piton_engine::git::repo::names::text),
        "aside": done.aside.as_deref().map(piton_engine::git::repo::names::text),
    })
}
