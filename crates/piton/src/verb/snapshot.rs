//! `piton snapshot`: what is kept of the work on a run, and getting it back.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use piton_core::event::{Omission, SnapshotReason};
use piton_core::ids::{Handle, StepRef};
use piton_core::time::{Millis, timestamp};
use piton_engine::git::snapshot::{Begun, ChangeKind, FileChange};
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::snapshot_history::{
    self, Against, At, KnownBy, KnownSnapshot, SnapshotList,
};
use piton_engine::tidy::restore;
use piton_engine::tidy::restore::NewerEdits;
use piton_engine::{Access, EngineError, config};
use serde_json::{Value, json};

use crate::error::{Kind, Problem};
use crate::text::{ago, bold, count, dim, green, now, plain, red, table};
use crate::typed::again;
use crate::ui::{Said, Ui};
use crate::verb::{self, Answer, is_file, json as to_json, step_of};

/// List snapshots, and get files back from them
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: SnapshotVerb,
}

#[derive(Debug, clap::Subcommand)]
enum SnapshotVerb {
    /// List the snapshots of a run
    #[command(after_help = "\
Examples:
  piton snapshot list                       of the unfinished run, or the newest
  piton snapshot list calm-otter/jwt        of one step

Snapshots that only a ref names are listed too. Name a purged run by its whole
handle.")]
    List(WhichSnapshot),

    /// Show a snapshot: its message, its files, what was left out
    #[command(after_help = "\
Examples:
  piton snapshot show calm-otter/jwt                  the newest
  piton snapshot show calm-otter/jwt --at 10m         as of 10 minutes ago
  piton snapshot show calm-otter --at 4f3a9c")]
    Show {
        #[command(flatten)]
        which: WhichSnapshot,
        #[command(flatten)]
        one: One,
    },

    /// Compare a snapshot with the one before it
    #[command(after_help = "\
Examples:
  piton snapshot diff calm-otter/jwt                   what the last one added
  piton snapshot diff calm-otter/jwt --base            all since the step began
  piton snapshot diff calm-otter/jwt --worktree        what changed since then
  piton snapshot diff calm-otter/jwt --at 14:05 src/auth.ts")]
    Diff {
        #[command(flatten)]
        which: WhichSnapshot,
        #[command(flatten)]
        one: One,

        /// Compare with where the step began
        #[arg(long, conflicts_with = "worktree")]
        base: bool,

        /// Compare with the files in its worktree now
        #[arg(long)]
        worktree: bool,

        /// Only name the files
        #[arg(long)]
        stat: bool,

        /// Only these files and folders, from the worktree's root
        #[arg(value_name = "PATH")]
        paths: Vec<OsString>,
    },

    /// Put a snapshot back, into a new folder or its worktree
    #[command(after_help = "\
Examples:
  piton snapshot restore calm-otter/jwt --to /tmp/jwt        into a new folder
  piton snapshot restore calm-otter/jwt --at 10m src/auth.ts          one file
  piton snapshot restore calm-otter/jwt --at 4f3a9c --yes            all files

What is in the worktree is kept in a snapshot first. Refused while an attempt
works there. Safe to repeat after a crash; `piton undo` reverses it.")]
    Restore {
        #[command(flatten)]
        which: WhichSnapshot,
        #[command(flatten)]
        one: One,

        /// Write into this folder, which must be new or empty
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,

        /// Also replace files that changed since the last snapshot; they are kept first
        #[arg(long)]
        yes: bool,

        /// Only these files and folders, from the worktree's root
        #[arg(value_name = "PATH")]
        paths: Vec<OsString>,
    },
}

/// Which run and step.
#[derive(Debug, clap::Args)]
struct WhichSnapshot {
    /// The run, or a step of it [default: the unfinished run]
    #[arg(value_name = "RUN[/STEP]")]
    run: Option<String>,
}

/// Which snapshot of it.
#[derive(Debug, clap::Args)]
struct One {
    /// The newest one at a time (2026-11-15T14:05:00Z, 14:05, 10m for so long ago) or the one with this id,
    /// ref or FENCE/N [default: the newest]
    #[arg(long, value_name = "TIME|ID")]
    at: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    match &args.verb {
        SnapshotVerb::List(which) => list(which, ui),
        SnapshotVerb::Show { which, one } => show(which, one, ui),
        SnapshotVerb::Diff { which, one, base, worktree, stat, paths } => {
            let against = match (base, worktree) {
                (true, _) => Against::Base,
                (false, true) => Against::Files,
                (false, false) => Against::Previous,
            };
            let form = if *stat { DiffForm::Names } else { DiffForm::Patch };
            diff(which, one, (against, form), &meant(paths)?, ui)
        }
        SnapshotVerb::Restore { which, one, to: Some(to), paths, .. } => {
            export(which, one, to, &meant(paths)?, ui)
        }
        SnapshotVerb::Restore { which, one, to: None, yes, paths } => {
            let edits = if *yes { NewerEdits::Replace } else { NewerEdits::Refuse };
            restore(which, one, edits, &meant(paths)?, ui)
        }
    }
}

/// A run that was found, and its snapshots.
struct Found {
    project: Project,
    handle: Handle,
    /// None where the run was purged: its snapshots are known by their refs alone.
    log: Option<Log>,
    step: Option<StepRef>,
    listed: SnapshotList,
}

impl Found {
    fn of(which: &WhichSnapshot, access: Access) -> Result<Found, Problem> {
        let project = verb::project()?;
        let asked = which.run.as_deref();
        // A plan's path has slashes, too: a step is what stands behind the last one of something else.
        let parted = asked.and_then(|text| text.rsplit_once('/')).filter(|_| !is_file(asked));
        let (run, step) = match parted {
            Some((run, step)) => (Some(run).filter(|run| !run.is_empty()), Some(step)),
            None => (asked, None),
        };
        let log = match verb::run_of(&project, access, run) {
            Ok(log) => log,
            Err(problem) => return Found::of_gone(project, run, step).unwrap_or(Err(problem)),
        };
        let step = step.map(|step| step_of(&log, step)).transpose()?;
        let listed = snapshot_history::list(&project, &log, step.as_ref())?;
        let handle = log.run().opened.handle.clone();
        Ok(Found { project, handle, log: Some(log), step, listed })
    }

    /// A run that was purged, if there is a snapshot of it.
    fn of_gone(
        project: Project,
        run: Option<&str>,
        step: Option<&str>,
    ) -> Option<Result<Found, Problem>> {
        let handle = Handle::new(run?).ok()?;
        let mut all = match snapshot_history::list_gone(&project, &handle) {
            Ok(all) => all,
            Err(error) => return Some(Err(error.into())),
        };
        if all.is_empty() {
            return None;
        }
        let step = step.and_then(|step| step.parse::<StepRef>().ok());
        all.retain(|kept| step.as_ref().is_none_or(|step| kept.step == *step));
        let listed = SnapshotList { snapshots: all, pruned: 0 };
        Some(Ok(Found { project, handle, log: None, step, listed }))
    }

    fn handle(&self) -> &str {
        self.handle.as_str()
    }

    /// The one that is meant.
    fn choose(&self, one: &One) -> Result<&KnownSnapshot, Problem> {
        let all = &self.listed.snapshots;
        if let Some(text) = &one.at
            && let Some(found) = snapshot_history::choose(all, &At::Named(text.clone()))
        {
            return Ok(found);
        }
        let at = match &one.at {
            None => At::Last,
            Some(text) => At::Time(time(text)?),
        };
        let mut steps: Vec<&str> = all.iter().map(|kept| kept.step.step.as_str()).collect();
        steps.sort_unstable();
        steps.dedup();
        if let (None, [first, _, ..]) = (&self.step, steps.as_slice()) {
            let message = format!("which step? there are snapshots of {}", steps.join(", "));
            let hint = format!("name one: {}/{first}", self.handle());
            return Err(Problem::new(Kind::NoSuchSnapshot, message).hint(hint));
        }
        let list = format!("`piton snapshot list {}` lists them", self.handle());
        snapshot_history::choose(all, &at).ok_or_else(|| {
            let message = match (all.first(), &one.at) {
                (Some(_), None) => "there are only copies from before a reset or restore; \
                    each goes by its id: --at ID"
                    .to_owned(),
                (Some(first), Some(text)) => {
                    format!("there is none from before {text}: the first is of {}", shown(first.at))
                }
                _ => "there is no snapshot".to_owned(),
            };
            Problem::new(Kind::NoSuchSnapshot, message).hint(list)
        })
    }
}

/// A time, or how long ago.
fn time(text: &str) -> Result<Millis, Problem> {
    if let Ok(since) = config::duration(text) {
        let since = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        return Ok(Millis(now().0.saturating_sub(since)));
    }
    let zone = jiff::tz::TimeZone::system();
    let at = text
        .parse::<jiff::Timestamp>()
        .ok()
        .or_else(|| {
            let at = text.parse::<jiff::civil::DateTime>().ok()?;
            Some(at.to_zoned(zone.clone()).ok()?.timestamp())
        })
        .or_else(|| {
            let time = text.parse::<jiff::civil::Time>().ok()?;
            let today = jiff::Zoned::now().date();
            Some(today.to_datetime(time).to_zoned(zone).ok()?.timestamp())
        });
    // What is said to the second means all of it.
    let whole = if text.contains('.') { 0 } else { 999 };
    at.map(|at| Millis(at.as_millisecond().saturating_add(whole))).ok_or_else(|| {
        let message = format!("{text:?} is neither a snapshot of it nor a time");
        Problem::new(Kind::NoSuchSnapshot, message)
            .hint("a time is 2026-11-15T14:05:00Z, 14:05, or 10m for so long ago")
    })
}

fn shown(at: Millis) -> String {
    timestamp(at)
}

/// Paths as trees have them.
fn meant(paths: &[OsString]) -> Result<Vec<Vec<u8>>, Problem> {
    let read = |path: &OsString| {
        use std::path::Component;
        let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
        let names: Option<Vec<&[u8]>> = parts
            .map(|part| match part {
                Component::Normal(name) => Some(name.as_bytes()),
                _ => None,
            })
            .collect();
        names.map(|names| names.join(&b'/')).ok_or_else(|| {
            let message = format!("{} does not stay inside the worktree", path.display());
            Problem::new(Kind::Usage, message).hint("name it as seen from the worktree's root")
        })
    };
    let paths: Result<Vec<Vec<u8>>, Problem> = paths.iter().map(read).collect();
    // `.` is everything.
    Ok(paths?.into_iter().filter(|path| !path.is_empty()).collect())
}

fn list(which: &WhichSnapshot, ui: &Ui) -> Result<Answer, Problem> {
    let found = Found::of(which, Access::Look)?;
    let all = &found.listed.snapshots;
    let now = now();
    if all.is_empty() {
        ui.line("No snapshots.")?;
    } else {
        let head = ["STEP", "FENCE", "N", "WHEN", "", "WHY", "CHANGED", "LEFT OUT", "ID", ""];
        let rows = all.iter().map(|kept| row(kept, now));
        let rows: Vec<Vec<String>> = std::iter::once(head.map(dim).to_vec()).chain(rows).collect();
        for line in table(&rows) {
            ui.line(line)?;
        }
        if let Some(last) = snapshot_history::choose(all, &At::Last) {
            let (handle, step) = (&found.handle, &last.step);
            let which = format!("{handle}/{step} --at {}", last.commit.short());
            let to = snapshot_history::place_for(handle, step);
            ui.hint(match &found.log {
                Some(_) => format!("the newest: `piton snapshot show {which}`"),
                None => format!(
                    "the run's records are gone, its snapshots are not: \
                     `piton snapshot restore {which} --to {to}`"
                ),
            });
        }
    }
    if found.listed.pruned > 0 {
        let gone = count(found.listed.pruned, "older one");
        ui.line(dim(&format!("{gone}: their refs are gone")))?;
    }
    Ok(Answer::new(json!({
        "run": found.log.as_ref().map(|log| log.run().opened.run),
        "handle": found.handle,
        "snapshots": all,
        "pruned": found.listed.pruned,
    })))
}

fn row(kept: &KnownSnapshot, now: Millis) -> Vec<String> {
    vec![
        kept.step.to_string(),
        kept.fence.to_string(),
        kept.n.clone(),
        shown(kept.at),
        ago(kept.at, now),
        why(kept).to_owned(),
        count(kept.changed, "file"),
        kept.omitted.len().to_string(),
        kept.commit.short().to_string(),
        match kept.known_by {
            KnownBy::Log => String::new(),
            KnownBy::Ref => "found by ref".to_owned(),
        },
    ]
}

fn why(kept: &KnownSnapshot) -> &'static str {
    match kept.reason {
        None if kept.refname.starts_with("refs/piton/purged/") => "before the purge",
        Some(SnapshotReason::Cadence) => "in progress",
        Some(SnapshotReason::Checkpoint) => "checkpoint",
        Some(SnapshotReason::End) => "end",
        Some(SnapshotReason::Recovery) => "recovery",
        Some(SnapshotReason::Reset) => "before a reset or restore",
        None => "unknown",
    }
}

/// What git was in the middle of, with what it was about.
fn under_way(begun: &Begun) -> String {
    let commits = begun.commits.iter().map(|(name, id)| format!("{name} {}", id.short()));
    let branch = begun.branch.iter().map(|name| format!("of {name}"));
    let parts: Vec<String> = branch.chain(commits).collect();
    match parts.is_empty() {
        true => format!("{} was under way", begun.what.named()),
        false => format!("{} was under way: {}", begun.what.named(), parts.join(", ")),
    }
}

fn show(which: &WhichSnapshot, one: &One, ui: &Ui) -> Result<Answer, Problem> {
    let found = Found::of(which, Access::Look)?;
    let kept = found.choose(one)?;
    let contents = snapshot_history::contents(&found.project, found.log.as_ref(), kept)?;
    let known = match kept.known_by {
        KnownBy::Log => "",
        KnownBy::Ref => ", found by ref",
    };
    ui.line(format!(
        "{}  step {}, {}, {} ({}){known}",
        bold(kept.commit.as_str()),
        kept.step,
        why(kept),
        shown(kept.at),
        ago(kept.at, now())
    ))?;
    ui.line(dim(&kept.refname))?;
    if let Some(head) = &contents.head {
        ui.line(format!("on commit {}", head.short()))?;
    }
    if let Some(begun) = &contents.operation {
        ui.line(under_way(begun))?;
    }
    ui.line("")?;
    for line in contents.message.trim_end().lines() {
        ui.line(format!("    {}", plain(line)))?;
    }
    ui.line("")?;
    let changed = count(contents.files.len() as u64, "file");
    ui.line(format!("{changed} changed since {}", contents.base.short()))?;
    file_lines(&contents.files, ui)?;
    left_out_lines(&kept.omitted, ui)?;
    if let Some(go_on) = contents.operation.as_ref().and_then(Begun::go_on) {
        ui.hint(format!("to go on with it where it was put back, once it is solved: `{go_on}`"));
    }
    Ok(Answer::new(json!({ "snapshot": kept, "contents": contents })))
}

fn file_lines(files: &[FileChange], ui: &Ui) -> Result<(), Problem> {
    for file in files {
        let mark = match file.change {
            ChangeKind::Added => green("A"),
            ChangeKind::Modified => "M".to_owned(),
            ChangeKind::Removed => red("D"),
            ChangeKind::Mode => "T".to_owned(),
        };
        ui.line(format!("  {mark} {}", plain(&file.path)))?;
    }
    Ok(())
}

fn left_out_lines(omitted: &[Omission], ui: &Ui) -> Result<(), Problem> {
    if !omitted.is_empty() {
        ui.line(format!("{} left out", count(omitted.len() as u64, "path")))?;
    }
    for left in omitted {
        ui.line(format!("  {}: {}", plain(&left.path), plain(&left.why)))?;
    }
    Ok(())
}

/// How a difference is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DiffForm {
    Names,
    Patch,
}

fn diff(
    which: &WhichSnapshot,
    one: &One,
    (against, form): (Against, DiffForm),
    paths: &[Vec<u8>],
    ui: &Ui,
) -> Result<Answer, Problem> {
    let found = Found::of(which, Access::Look)?;
    let kept = found.choose(one)?;
    let among = (found.listed.snapshots.as_slice(), kept);
    let log = found.log.as_ref();
    let compared = snapshot_history::compare(&found.project, log, among, against, paths)?;
    let difference = &compared.difference;
    match form {
        DiffForm::Names => file_lines(&difference.files, ui)?,
        DiffForm::Patch if !ui.is_json() => ui.patch(&difference.patch)?,
        DiffForm::Patch => {}
    }
    if difference.files.is_empty() {
        ui.talk(format!("nothing differs between {} and {}", compared.from, compared.to));
    }
    Ok(Answer::on_demand(ui, || {
        let patch = match form {
            DiffForm::Patch => Value::from(String::from_utf8_lossy(&difference.patch)),
            DiffForm::Names => Value::Null,
        };
        json!({
            "snapshot": kept,
            "from": compared.from,
            "to": compared.to,
            "files": difference.files,
            "patch": patch,
        })
    }))
}

fn export(
    which: &WhichSnapshot,
    one: &One,
    to: &Path,
    paths: &[Vec<u8>],
    ui: &Ui,
) -> Result<Answer, Problem> {
    let found = Found::of(which, Access::Look)?;
    let kept = found.choose(one)?;
    check_paths(&found, kept, paths)?;
    let files = snapshot_history::export(&found.project, kept, paths, to)?;
    let place = to.canonicalize().unwrap_or_else(|_| to.to_owned());
    let _ =
        ui.line(format!("{} from {} in {}", count(files, "file"), shown(kept.at), place.display()));
    left_out_lines(&kept.omitted, ui)?;
    let place = piton_engine::git::repo::names::text(&place);
    Ok(Answer::new(json!({ "snapshot": kept, "to": place, "files": files })))
}

/// A path that nothing answers to is a mistake, not an empty restore.
fn check_paths(found: &Found, kept: &KnownSnapshot, paths: &[Vec<u8>]) -> Result<(), Problem> {
    for path in paths {
        let shown = String::from_utf8_lossy(path);
        if !snapshot_history::has_path(&found.project, kept, path)? {
            let message = format!("the snapshot has no {}", plain(&shown));
            let hint =
                format!("see what it has: `git ls-tree -r --name-only {}`", kept.commit.short());
            return Err(Problem::new(Kind::NoSuchSnapshot, message).hint(hint));
        }
    }
    Ok(())
}

/// What cannot go into the worktree can go elsewhere.
fn elsewhere(error: EngineError, handle: &Handle, kept: &KnownSnapshot) -> Problem {
    let to = again(&format!("--to {}", snapshot_history::place_for(handle, &kept.step)));
    let apart = format!("put the files elsewhere: `{to}`");
    let problem = Problem::from(error);
    let hint = match (problem.kind, &problem.hint) {
        (Kind::NewerEdits, _) => {
            format!("they are kept in a snapshot first: `{}`; or {apart}", again("--yes"))
        }
        (Kind::TreeInUse, Some(first)) => format!("{first}; or {apart}"),
        (Kind::TreeInUse, None) => apart,
        _ => return problem,
    };
    problem.hint(hint)
}

fn restore(
    which: &WhichSnapshot,
    one: &One,
    edits: NewerEdits,
    paths: &[Vec<u8>],
    ui: &Ui,
) -> Result<Answer, Problem> {
    let mut found = Found::of(which, Access::Existing)?;
    let kept = found.choose(one)?.clone();
    check_paths(&found, &kept, paths)?;
    let among = std::mem::take(&mut found.listed.snapshots);
    let handle = found.handle.clone();
    let Found { project, log, .. } = &mut found;
    let gone = || EngineError::NoRecords { step: kept.step.clone() };
    let log = log.as_mut().ok_or_else(|| elsewhere(gone(), &handle, &kept))?;
    let mut edits = edits;
    let restored = loop {
        match restore::restore(project, log, (&among, &kept), paths, edits) {
            Err(EngineError::NewerEdits { paths: edited }) => {
                for path in &edited {
                    ui.talk(format!("  changed since the last snapshot: {}", plain(path)));
                }
                let files = count(edited.len() as u64, "file");
                let question =
                    format!("Replace {files}? What is there is kept in a snapshot first.");
                match ui.ask(&question) {
                    Said::Yes => edits = NewerEdits::Replace,
                    Said::No | Said::Nobody => {
                        let data = json!({ "snapshot": kept, "edited": edited });
                        let error = EngineError::NewerEdits { paths: edited };
                        return Err(elsewhere(error, &handle, &kept).with_data(data));
                    }
                }
            }
            done => break done.map_err(|error| elsewhere(error, &handle, &kept))?,
        }
    };
    // It is done, whoever still listens.
    let _ = ui.line(format!(
        "{}: {} written, {} removed, as of {}",
        restored.path.display(),
        count(restored.written.len() as u64, "file"),
        restored.removed.len(),
        shown(kept.at)
    ));
    if let Some(branch) = &restored.branch {
        let _ = ui.line(format!("branch {branch} and the index are as they were then"));
    }
    if let Some(aside) = &restored.aside {
        let message = format!("files in the way were moved to {}", aside.display());
        ui.warn(Kind::Noticed, message, None);
    }
    if let Some(begun) = &restored.operation {
        let message = format!("{}; that is not begun again", under_way(begun));
        let hint = begun.go_on().map(|go_on| format!("once it is solved: `{go_on}`"));
        ui.warn(Kind::Noticed, message, hint);
    }
    if let Some(before) = &restored.before {
        let _ = ui.line(format!("what was there is kept as {before}"));
        ui.hint("back again: `piton undo`");
    }
    let mut data = to_json(&restored);
    data["snapshot"] = to_json(&kept);
    Ok(Answer::new(data).after_writing(log.store()).after_keeping(&project.git))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_the_ways_people_write_them() {
        let at = |text| time(text).expect(text).0;
        assert_eq!(at("1970-01-01T00:00:05Z"), 5_999, "all of that second");
        assert_eq!(at("1970-01-01T00:00:05.250Z"), 5_250);
        let ago = now().0 - at("10m");
        assert!((600_000..610_000).contains(&ago), "{ago}");
        assert!(at("00:00") <= now().0 + 999);
        assert!(time("yesterday").is_err() && time("zz").is_err());
    }

    #[test]
    fn paths_stay_inside() {
        let paths = |list: &[&str]| meant(&list.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(paths(&["./a//b/", "."]).expect("inside"), [b"a/b".to_vec()]);
        for bad in ["/etc/passwd", "../x", "a/../../x"] {
            assert!(paths(&[bad]).is_err(), "{bad}");
        }
    }
}
