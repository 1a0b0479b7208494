//! `piton clean`: lists what can go, with the proof, and what stays, with the reason; `--apply` takes it
//! away, so that `piton undo` can put it back.

use std::time::Duration;

use piton_engine::Access;
use piton_engine::clean::{
    self, CleanAsk, Cleaned, ExpiredAct, JudgedTree, Proof, TreeCounts, TreeVerdict,
};
use piton_engine::config::{self, Flags, Layers};
use piton_engine::project::Project;
use piton_engine::{EngineError, retention, snapshot, undo};
use serde_json::json;

use crate::error::{Detail, Kind, Problem};
use crate::hints::again;
use crate::text::{ago, bold, count, dim, green, now, plain, table};
use crate::ui::Ui;
use crate::verb::{self, Answer, from_here};

/// List worktrees that are provably safe to remove, and why the others stay; --apply removes them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton clean                            what would go, and why
  piton clean --apply                    take it away
  piton clean --interrupted --apply      of runs that were interrupted, too
  piton clean --older-than 7d --apply
  piton undo                             put it back

A worktree goes only with a proof: it is empty (nothing was added), merged (its
commits are on another branch), patch-equivalent (their changes are), or
snapshotted (everything in it is in a kept snapshot). Worktrees that somebody
works in, that are locked, or that hold anything else stay, and so does
everything that piton did not make. Before anything goes, a snapshot of it is
taken and read back; ignored files are moved aside. All of it comes back with
`piton undo`.")]
pub(crate) struct Args {
    /// Worktrees of interrupted, stopped and failed runs and steps
    #[arg(long)]
    interrupted: bool,

    /// Worktrees of completed and abandoned runs and of completed steps [default, unless --interrupted]
    #[arg(long)]
    completed: bool,

    /// Only those that nothing has happened to for so long
    #[arg(long, value_name = "DURATION", value_parser = age)]
    older_than: Option<Duration>,

    /// Take them away, instead of only listing them
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
    let now = store.as_ref().map(|store| store.now()).transpose().map_err(EngineError::from)?;
    let expired = now.map(|now| clean::expired(project, now.wall)).transpose()?;
    let expired = expired.unwrap_or_default();
    let rows = judged.iter().map(row).chain(expired.iter().map(expired_row));
    for line in table(&rows.collect::<Vec<_>>()) {
        ui.line(line)?;
    }
    let (goes, stays) = counted(&judged);
    ui.line(match (goes, stays) {
        (0, 0) => "Nothing to clean up: piton has no worktrees here.".to_owned(),
        (0, _) => dim("Nothing can go. Nothing was changed."),
        _ => {
            dim(&format!("{} can go, {stays} stay. Nothing was changed.", count(goes, "worktree")))
        }
    })?;
    let old = store.as_ref().map(|store| retention::all_old_snapshots(project, store));
    let old = old.transpose()?.unwrap_or_default().len() as u64;
    if old > 0 {
        ui.line(dim(&format!("{} of completed steps can go.", count(old, "old snapshot"))))?;
    }
    if !expired.is_empty() {
        let acts = count(expired.len() as u64, "act");
        ui.line(dim(&format!("{acts} expired: what was moved aside can be deleted.")))?;
    }
    let apply = again("--apply");
    match (goes, expired.is_empty()) {
        (0, true) => {}
        (0, false) => {
            ui.hint(format!("delete what has expired: `{apply}`; that cannot be undone"));
        }
        (_, true) => ui.hint(format!("take them away: `{apply}`; `piton undo` puts them back")),
        (_, false) => ui.hint(format!(
            "take them away: `{apply}`; `piton undo` puts worktrees back, and not what has expired"
        )),
    }
    let data = || {
        json!({
            "applied": false,
            "worktrees": judged,
            "old_snapshots": old,
            "expired_acts": expired,
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
    let Cleaned { act, removed, failed, expired } = &cleaned;
    for tree in removed {
        // It is done, whoever still listens.
        let path = from_here(&tree.path);
        let _ =
            ui.line(format!("{} {} removed: {}", green("✓"), path.display(), told(&tree.proof)));
    }
    let (_, stays) = counted(&judged);
    let _ =
        ui.line(dim(&format!("{} removed, {stays} stay", count(removed.len() as u64, "worktree"))));
    if let Some(act) = act {
        let kept = from_here(&undo::kept_by(project, *act));
        ui.hint(format!(
            "put them back: `piton undo {act}`; what was ignored in them is kept in {}",
            kept.display()
        ));
    }
    for act in expired {
        let freed = size(act.bytes);
        let _ = ui.line(format!(
            "{} act {} ({}) expired: {freed} deleted",
            green("✓"),
            act.act,
            act.deed
        ));
    }
    // After the worktrees: what was written down to put them back names what it needs.
    let old = retention::all_old_snapshots(project, &store)?;
    let pruned = retention::prune(project, &old)?;
    if pruned > 0 {
        let _ = ui.line(dim(&format!("{} removed", count(pruned, "old snapshot"))));
    }
    snapshot::sweep(&project.git).map_err(EngineError::from)?;
    let data = json!({
        "applied": true,
        "act": act,
        "removed": removed,
        "failed": failed,
        "worktrees": judged,
        "old_snapshots": pruned,
        "expired_acts": expired,
    });
    if failed.is_empty() {
        return Ok(Answer::new(data));
    }
    let details = failed.iter().map(|row| Detail { message: plain(&row.why), hint: None });
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

fn expired_row(act: &ExpiredAct) -> Vec<String> {
    let trees = match act.worktrees {
        0 => String::new(),
        trees => format!(" of {}", count(trees as u64, "worktree")),
    };
    vec![
        green("goes"),
        bold(&format!("act {}", act.act)),
        size(act.bytes),
        format!("expired: {}{trees} {}, kept for 30 days", act.deed, ago(act.at, now())),
    ]
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
            let aside = match row.counts.map_or(0, |counts| counts.ignored) {
                0 => String::new(),
                ignored => format!("; {ignored} ignored moved aside"),
            };
            vec![green("goes"), bold(&path), size, told(proof) + &aside]
        }
        TreeVerdict::Stays { why } => vec![dim("stays"), path, size, plain(why)],
    }
}

fn told(proof: &Proof) -> String {
    match proof {
        Proof::Empty => "empty: nothing was added".to_owned(),
        Proof::Merged { into } => format!("merged into {into}"),
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
