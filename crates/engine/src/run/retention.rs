//! Lets old snapshots go: the refs that the rules call expendable are deleted, each only while it is where
//! it was seen. What is kept stays reachable, whatever git then collects.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use piton_core::limits::ACT;
use piton_core::retention::{Aging, Retention, expendable};
use piton_core::time::Millis;
use piton_store::{Runs, Store};

use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs;
use crate::run::runs::settings_of;
use crate::run::snapshot_history::{self, KnownBy, KnownSnapshot};

/// How often a project's keepers look for old snapshots: reading a log from its beginning costs something.
const EVERY: Duration = Duration::from_secs(3600);

/// Whether it was long ago, and marks that it is done now.
pub(crate) fn is_due(project: &Project) -> bool {
    let mark = project.state.join("housekeeping");
    let age = fs::metadata(&mark).and_then(|found| found.modified());
    let age = age.ok().and_then(|time| SystemTime::now().duration_since(time).ok());
    age.is_none_or(|age| age > EVERY) && piton_git::file::write(&mark, "").is_ok()
}

/// The snapshots of a run that may go.
pub fn old_snapshots(project: &Project, log: &Log) -> Result<Vec<KnownSnapshot>, EngineError> {
    let settings = settings_of(log)?;
    let all = snapshot_history::list(project, log, None)?.snapshots;
    let aging = |kept: &KnownSnapshot| Aging {
        step: kept.step.clone(),
        fence: kept.fence,
        at: kept.at,
        refname: kept.refname.clone(),
        recorded: kept.known_by == KnownBy::Log,
    };
    let aging: Vec<Aging> = all.iter().map(aging).collect();
    let keep = settings.snapshot_keep as usize;
    let retention = Retention { keep, keep_for: settings.snapshot_keep_for };
    let now = log.now()?.wall;
    let gone = expendable(log.run(), &aging, retention, now);
    let needed = needed_to_undo(project, now);
    let goes = |kept: &KnownSnapshot| {
        gone.iter().any(|gone| gone.refname == kept.refname)
            && !needed
                .iter()
                .any(|text| text.contains(&kept.refname) || text.contains(kept.commit.as_str()))
    };
    Ok(all.into_iter().filter(goes).collect())
}

/// The same of every run that can be read.
pub fn all_old_snapshots(
    project: &Project,
    store: &Arc<dyn Store>,
) -> Result<Vec<KnownSnapshot>, EngineError> {
    let mut old = Vec::new();
    for log in runs::list(store, &Runs::All)?.into_iter().flatten() {
        old.extend(old_snapshots(project, &log)?);
    }
    Ok(old)
}

/// Deletes their refs; says how many went.
pub fn prune(project: &Project, old: &[KnownSnapshot]) -> Result<u64, EngineError> {
    let refs: Vec<_> = old.iter().map(|kept| (kept.refname.as_str(), &kept.commit)).collect();
    Ok(project.git.drop_refs(&refs)?)
}

/// What was written down for undoing and can still be undone, as far as that is known: whatever is named
/// there stays for its time.
fn needed_to_undo(project: &Project, now: Millis) -> Vec<String> {
    let list = fs::read_dir(project.state.join("undo")).into_iter().flatten().flatten();
    let texts = list.filter_map(|entry| piton_git::file::text(entry.path()).ok());
    let is_over = |text: &String| {
        let read: Result<serde_json::Value, _> = serde_json::from_str(text);
        read.is_ok_and(|act| {
            let is_old = |at: i64| now.since(Millis(at)) > ACT;
            act["stage"] == "undone" || act["at"].as_i64().is_some_and(is_old)
        })
    };
    texts.filter(|text| !is_over(text)).collect()
}
