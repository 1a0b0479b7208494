//! `piton clean`: lists what can go, with the proof, and what stays, with the reason; `--apply` removes it,
//! and `piton undo` makes it again.

use std::time::Duration;

use piton_engine::Access;
use piton_engine::config::{self, Flags, Layers};
use piton_engine::git::snapshot;
use piton_engine::project::Project;
use piton_engine::run::retention;
use piton_engine::tidy::clean::{
    self, CleanAsk, Cleaned, JudgedTree, Proof, TreeCounts, TreeVerdict,
};
use piton_engine::tidy::undo;
use serde_json::json;

use crate::error::{Detail, Kind, Problem};
use crate::remedy::words;
use crate::text::{bold, count, dim, green, plain, table};
use crate::typed::again;
use crate::ui::Ui;
use crate::verb::{self, Answer, from_here};

/// List worktrees that can go without loss; --apply removes them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton clean                            what goes, what stays, and why
  piton clean --apply                    remove it
  piton clean --interrupted --apply      of interrupted runs, too
  piton clean --older-than 7d --apply
  piton undo                             restore what was removed

A worktree goes only with a proof that nothing is lost: it is empty, its commits
are on another branch, or a kept snapshot holds all of it. Merged branches of a
completed run go too. `piton undo` restores them from the snapshot. Ignored
files are in no snapshot: they are counted, and gone for good.")]
pub(crate) struct Args {
    /// Worktrees of interrupted, stopped and failed runs and steps
    #[arg(long)]
    interrupted: bool,

    /// Worktrees of completed and abandoned runs and steps [default]
    #[arg(long)]
    completed: bool,

    /// Only those without a change for this long
    #[arg(long, value_name = "DURATION", value_parser = age)]
    older_than: Option<Duration>,

    /// Remove them
    #[arg(long)]
    apply: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let root = root(&project)?;
    let ask = CleanAsk {
        completed: args.completed || !args.interrupted,
        interrupted: args.interrupted,
        older_than: args.older_than,
    };
    match args.apply {
        false => list(ui, &project, &root, ask),
        true => apply(ui, &project, &root, ask),
    }
}

/// Where new runs have their worktrees.
pub(crate) fn root(project: &Project) -> Result<String, Problem> {
    let layers = Layers::of_process(Some(project.git.main_root()));
    Ok(config::load(&layers, &Flags::default())?.settings.worktree_root)
}

/// Days and weeks, which settings have no use for, or any other duration.
fn age(text: &str) -> Result<Duration, String> {
    const DAY: u64 = 24 * 60 * 60;
    let units = [("d", DAY), ("w", 7 * DAY)];
    let days = units.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.trim().strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(*seconds).map(Duration::from_secs)
    });
    days.map_or_else(|| config::duration(text), Ok)
}

fn list(ui: &Ui, project: &Project, root: &str, ask: CleanAsk) -> Result<Answer, Problem> {
    let store = verb::store_for_looking(project)?;
    let judged = clean::judge(project, store.as_ref(), root, ask)?;
    tell_unreadable(ui, project)?;
    for line in table(&judged.iter().map(row).collect::<Vec<_>>()) {
        ui.line(line)?;
    }
    let branches = match &store {
        Some(store) => clean::merged_branches(project, store, (ask, &judged))?,
        None => Vec::new(),
    };
    for tip in &branches {
        ui.line(format!("{}  branch {}: merged", green("goes"), bold(&tip.branch)))?;
    }
    let (goes, stays) = counted(&judged);
    ui.line(match (goes, stays) {
        (0, 0) if !branches.is_empty() => dim("Nothing was changed."),
        (0, 0) => "Nothing to clean up: piton has no worktrees here.".to_owned(),
        (0, _) if branches.is_empty() => dim("Nothing can go. Nothing was changed."),
        _ => {
            dim(&format!("{} can go, {stays} stay. Nothing was changed.", count(goes, "worktree")))
        }
    })?;
    let old = store.as_ref().map(|store| retention::all_old_snapshots(project, store));
    let old = old.transpose()?.unwrap_or_default().len() as u64;
    if old > 0 {
        ui.line(dim(&format!("{} of completed steps can go.", count(old, "old snapshot"))))?;
    }
    if goes > 0 || !branches.is_empty() {
        ui.hint(format!("remove them: `{}`; `piton undo` makes them again", again("--apply")));
    }
    let data = || {
        json!({
            "applied": false,
            "worktrees": judged,
            "branches": branches,
            "old_snapshots": old,
        })
    };
    Ok(Answer::on_demand(ui, data))
}

fn apply(ui: &Ui, project: &Project, root: &str, ask: CleanAsk) -> Result<Answer, Problem> {
    let Some(_) = verb::store_for_looking(project)? else {
        return list(ui, project, root, ask);
    };
    let store = project.store(Access::Existing)?;
    tell_unreadable(ui, project)?;
    let (judged, cleaned) = clean::apply(project, &store, root, ask)?;
    let Cleaned { act, removed, branches, failed } = &cleaned;
    for tree in removed {
        // It is done, whoever still listens.
        let path = from_here(&tree.path);
        let _ = ui.line(format!(
            "{} {} removed: {}",
            green("✓"),
            path.display(),
            describe(&tree.proof)
        ));
    }
    for tip in branches {
        let _ = ui.line(format!("{} branch {} removed: merged", green("✓"), tip.branch));
    }
    let (_, stays) = counted(&judged);
    let _ =
        ui.line(dim(&format!("{} removed, {stays} stay", count(removed.len() as u64, "worktree"))));
    if let Some(act) = act {
        ui.hint(format!("make them again: `piton undo {act}`"));
    }
    // After the worktrees: what was written down to put them back names what it needs.
    let old = retention::all_old_snapshots(project, &store)?;
    let pruned = retention::prune(project, &old)?;
    if pruned > 0 {
        let _ = ui.line(dim(&format!("{} removed", count(pruned, "old snapshot"))));
    }
    snapshot::sweep(&project.git);
    let data = json!({
        "applied": true,
        "act": act,
        "removed": removed,
        "branches": branches,
        "failed": failed,
        "worktrees": judged,
        "old_snapshots": pruned,
    });
    if failed.is_empty() {
        return Ok(Answer::new(data));
    }
    let details = failed.iter().map(|row| Detail::of(plain(&row.why)));
    let message = format!("{} could not be removed", count(failed.len() as u64, "worktree"));
    Err(Problem::new(Kind::NotCleaned, message)
        .with_details(details.collect())
        .hint("they are as they were: `piton clean` looks again")
        .with_data(data))
}

/// What cannot be read is nobody's to judge, and keeps nothing else from going.
fn tell_unreadable(ui: &Ui, project: &Project) -> Result<(), Problem> {
    for act in undo::acts(project)?.unreadable {
        let path = from_here(&act.path);
        let message =
            format!("act {} cannot be read and is left alone: {}", act.act, plain(&act.why));
        let hint = format!("it is {}; it may be of a newer piton", path.display());
        ui.warn(Kind::Noticed, message, Some(hint));
    }
    Ok(())
}

fn counted(judged: &[JudgedTree]) -> (u64, u64) {
    let goes = judged.iter().filter(|row| matches!(row.verdict, TreeVerdict::Goes { .. })).count();
    (goes as u64, (judged.len() - goes) as u64)
}

fn row(judged: &JudgedTree) -> Vec<String> {
    let JudgedTree { row, verdict } = judged;
    let path = from_here(&row.path).display().to_string();
    let size = row.counts.map(|counts| size(counts.bytes)).unwrap_or_default();
    match verdict {
        TreeVerdict::Goes { proof } => {
            vec![green("goes"), bold(&path), size, describe(proof) + &ignored(row.counts.as_ref())]
        }
        TreeVerdict::Stays { reason } => {
            let next = reason.remedy.as_ref().map(|remedy| format!(": {}", words(remedy)));
            vec![dim("stays"), path, size, plain(&reason.why) + &next.unwrap_or_default()]
        }
    }
}

/// What no snapshot holds, and goes for good.
fn ignored(counts: Option<&TreeCounts>) -> String {
    match counts.map_or(0, |counts| counts.ignored) {
        0 => String::new(),
        files => {
            let bytes = size(counts.map_or(0, |counts| counts.ignored_bytes));
            format!("; {} ({bytes}) for good", count(files, "ignored file"))
        }
    }
}

fn describe(proof: &Proof) -> String {
    match proof {
        Proof::Empty => "empty: nothing was added".to_owned(),
        Proof::Merged { into } => format!("merged into {into}"),
        Proof::Landed { branch } => format!("landed on {branch}"),
        Proof::PatchEquivalent { into } => format!("patch-equivalent: {into} has the same changes"),
        Proof::Snapshotted { refname } => format!("snapshotted: {refname} has all of it"),
    }
}

/// What a worktree holds that no other branch has, in few signs.
pub(crate) fn changes(counts: &TreeCounts) -> String {
    let parts = [
        (counts.dirty, "changed"),
        (counts.untracked, "untracked"),
        (counts.ignored, "ignored"),
        (counts.unmerged, "unmerged"),
    ];
    let told = parts.iter().filter(|(count, _)| *count > 0);
    let told: Vec<String> = told.map(|(count, what)| format!("{count} {what}")).collect();
    if told.is_empty() { "-".to_owned() } else { told.join(", ") }
}

/// Bytes as people read them.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_at_a_glance() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(3 * 1024 * 1024 * 1024), "3.0 GiB");
    }
}
