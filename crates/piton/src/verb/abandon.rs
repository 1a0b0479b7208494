//! `piton abandon`: gives a run up, after naming what is ended and what is kept; `--purge` deletes it.

use std::path::PathBuf;
use std::sync::Arc;

use piton_core::event::{Cause, Haste};
use piton_engine::attempt::bury::bury_dead;
use piton_engine::outside::claims;
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, look};
use piton_engine::run::runs;
use piton_engine::tidy::abandon::{self, Belongings};
use piton_engine::tidy::branches::Tip;
use piton_engine::tidy::purge::{self, Purge};
use piton_engine::{Access, Store};
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::text::{bold, count};
use crate::ui::{Said, Ui};
use crate::verb::stop::{self, BEYOND_GRACE};
use crate::verb::{self, Answer, from_here};

/// Give a run up; its work stays
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton abandon calm-otter               asks first and lists what is kept
  piton abandon calm-otter --yes
  piton undo                             reopen it
  piton abandon calm-otter --purge       delete its records; asks twice

What runs is stopped first and its work kept. Worktrees, branches, snapshots and
the log stay. --purge also deletes the log, the transcripts, the worktrees and
the branches whose commits are elsewhere; snapshots and unmerged branches stay.
`piton undo` restores worktrees, not logs or transcripts.")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan
    run: String,

    /// Delete its log, transcripts, worktrees and merged branches as well
    #[arg(long)]
    purge: bool,

    /// Do it without asking
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let store = verb::store_with_runs(&project, Access::Existing)?;
    if args.purge {
        return purge(args, ui, &project, &store);
    }
    let mut log = verb::find(&project, &store, Some(&args.run))?;
    let handle = log.run().opened.handle.clone();
    if log.run().is_completed() {
        let message = format!("{handle} is completed: there is nothing to give up");
        return Err(Problem::new(Kind::Refused, message).hint(format!(
            "`piton clean` lists what can go; delete all of it: `piton abandon {handle} --purge`"
        )));
    }
    let kept = abandon::belongings(&project, &log)?;
    let told = describe(&kept);
    if !args.yes {
        for line in told.iter().filter(|_| ui.can_ask()) {
            ui.talk(format!("  {line}"));
        }
        let agreed = ui.ask(&format!("Abandon {}?", bold(handle.as_str())));
        agreed.or_refuse(told, &format!("piton abandon {handle} --yes"))?;
    }
    end_all(ui, &project, &mut log)?;
    let act = abandon::abandon(&project, &mut log)?;
    // It is done, whoever still listens.
    let _ = ui.line(format!("{}: abandoned; its work stays", bold(handle.as_str())));
    for snapshot in &kept.snapshots {
        let _ = ui.line(format!("  {snapshot}"));
    }
    ui.hint(format!("reopen it: `piton undo {act}`; see what can go: `piton clean`"));
    let view = look(&project, &log, Depth::Locks)?;
    let data = json!({ "run": view, "act": act, "kept": kept });
    Ok(Answer::new(data).after_writing(log.store()))
}

/// Deletes a run, or goes on with deleting one.
fn purge(
    args: &Args,
    ui: &Ui,
    project: &Project,
    store: &Arc<dyn Store>,
) -> Result<Answer, Problem> {
    let mut log = match verb::find(project, store, Some(&args.run)) {
        Ok(log) => log,
        Err(problem) => return finish(args, ui, project).unwrap_or(Err(problem)),
    };
    let handle = log.run().opened.handle.clone();
    let would = purge::preview(project, &mut log)?;
    if !args.yes {
        let told = fates("goes", &would);
        for line in told.iter().filter(|_| ui.can_ask()) {
            ui.talk(format!("  {line}"));
        }
        let agreed = match ui.ask(&format!("Purge {}?", bold(handle.as_str()))) {
            Said::Yes => ui.ask("Sure? Its log and its transcripts cannot be brought back."),
            other => other,
        };
        agreed.or_refuse(told, &format!("piton abandon {handle} --purge --yes"))?;
    }
    let done = purge::purge(project, &mut log)?;
    // It is done, whoever still listens.
    let _ = ui.line(format!("{}: purged", bold(handle.as_str())));
    for line in fates("gone", &done.purge) {
        let _ = ui.line(format!("  {line}"));
    }
    if let Some(act) = done.act {
        ui.hint(format!("put its worktrees back: `piton undo {act}`"));
    }
    if !done.purge.kept_snapshots.is_empty() {
        ui.hint(format!("its snapshots: `piton snapshot list {handle}`"));
    }
    Ok(Answer::new(json!({ "purged": done })).after_writing(store))
}

/// A purge that was killed when the log was gone already.
fn finish(args: &Args, ui: &Ui, project: &Project) -> Option<Result<Answer, Problem>> {
    let finished = match purge::finish_all(project) {
        Ok(finished) => finished,
        Err(error) => return Some(Err(error.into())),
    };
    let meant = finished.iter().find(|handle| handle.as_str().starts_with(&args.run))?;
    let _ = ui.line(format!("{}: purged; this was cut short before", bold(meant.as_str())));
    Some(Ok(Answer::new(json!({ "finished": finished }))))
}

/// What goes and what stays, by name.
fn fates(goes: &str, of: &Purge) -> Vec<String> {
    let paths = |paths: &[PathBuf]| {
        let shown = paths.iter().map(|path| from_here(path).display().to_string());
        shown.collect::<Vec<_>>()
    };
    let tips = |tips: &[Tip]| {
        let shown = tips.iter().map(|tip| format!("{} ({})", tip.branch, tip.commit.short()));
        shown.collect::<Vec<_>>()
    };
    let mut told = vec![format!("{goes}: its log, {}", count(of.records, "record"))];
    told.extend(rows(&[
        (goes, paths(&of.attempts), ["transcript", "transcripts"]),
        (goes, paths(&of.worktrees), ["worktree", "worktrees"]),
        (goes, tips(&of.branches), ["merged branch", "merged branches"]),
        ("stays", tips(&of.kept_branches), ["branch", "branches"]),
        ("stays", of.kept_snapshots.clone(), ["snapshot", "snapshots"]),
        ("stays", of.kept_refs.clone(), ["commit that did not land", "commits that did not land"]),
        (
            "stays",
            paths(&of.kept_files),
            ["folder of what no snapshot could hold", "folders of what no snapshot could hold"],
        ),
    ]));
    told
}

/// What is ended and what stays.
fn describe(kept: &Belongings) -> Vec<String> {
    let held: Vec<String> = kept.held.iter().map(ToString::to_string).collect();
    let trees: Vec<String> =
        kept.worktrees.iter().map(|path| from_here(path).display().to_string()).collect();
    rows(&[
        ("ends", held, ["attempt", "attempts"]),
        ("stays", trees, ["worktree", "worktrees"]),
        ("stays", kept.branches.clone(), ["branch", "branches"]),
        ("stays", kept.snapshots.clone(), ["snapshot", "snapshots"]),
    ])
}

/// Names of one kind: what becomes of them, and what one and several of them are called.
type Fate<'a> = (&'a str, Vec<String>, [&'a str; 2]);

/// What becomes of what: a line each, with how many there are and their names.
fn rows(rows: &[Fate<'_>]) -> Vec<String> {
    let row = |(fate, names, [one, several]): &Fate<'_>| {
        let what = if names.len() == 1 { one } else { several };
        format!("{fate}: {} {what}: {}", names.len(), names.join(", "))
    };
    rows.iter().filter(|(_, names, _)| !names.is_empty()).map(row).collect()
}

/// Stop before touch: whoever has a step is ended, and its files kept, before the run is given up.
fn end_all(ui: &Ui, project: &Project, log: &mut Log) -> Result<(), Problem> {
    if log.run().held().next().is_none() {
        return Ok(());
    }
    let handle = log.run().opened.handle.clone();
    let asked = runs::stop(log, None, Cause::UserInterrupt, Haste::Graceful)?;
    let grace = runs::settings_of(log)?.grace;
    let (outside, asked) = stop::by_holder(log, asked);
    let left = stop::await_end(project, log, &asked, grace + BEYOND_GRACE)?;
    for (step, burial) in bury_dead(project, log, &left.dead)? {
        stop::tell(ui, &step, &burial);
    }
    if let Some(step) = left.running.first() {
        let message = format!("step {step} was asked to stop and has not ended yet");
        return Err(Problem::new(Kind::StillRunning, message)
            .hint(format!("kill it: `piton stop {handle} --now`, then say it again")));
    }
    for step in outside {
        claims::release(project, log, &step, None)?;
        ui.talk(format!("step {step}: its claim from outside has ended, its files are kept"));
    }
    Ok(())
}
