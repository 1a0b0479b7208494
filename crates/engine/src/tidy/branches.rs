//! Branches of piton's: which of a run's nobody needs any more, because others have their commits; deleting
//! them, with a ref that keeps each until that is undone.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use piton_core::ids::{Handle, Oid};
use piton_core::view::run_branch;
use piton_git::repo::{Git, GitError, Moved};
use piton_git::snapshot::{self, Template};
use piton_store::{Runs, Store};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::settings_of;
use crate::tidy::clean::{CleanAsk, proof};

/// A branch and the commit it is at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tip {
    pub branch: String,
    pub commit: Oid,
}

impl Tip {
    fn refname(&self) -> String {
        format!("refs/heads/{}", self.branch)
    }

    /// The ref that keeps it once it is deleted.
    fn kept_as(&self) -> String {
        format!("{CLEANED}/{}", self.branch.trim_start_matches("piton/"))
    }
}

/// Where deleted branches are kept.
pub(crate) const CLEANED: &str = "refs/piton/cleaned";

/// The branches of a run: those whose commits are all on branches, tags or remote branches that are not
/// piton's, in the history of one of `also`, or on the run's own branch where that stays; and those that
/// stay. One that is checked out stays, too, unless that worktree goes.
pub(crate) fn judge(
    git: &Git,
    handle: &Handle,
    (also, going): (Option<&Oid>, &[PathBuf]),
) -> Result<(Vec<Tip>, Vec<Tip>), GitError> {
    let own = run_branch(handle);
    let folder = format!("refs/heads/piton/{handle}/");
    let in_use = git.checked_out_under(&folder);
    let in_use =
        |name: &str| in_use.iter().any(|(used, place)| used == name && !going.contains(place));
    let mut all = git.refs_under(&folder)?;
    all.sort_by_key(|(name, _)| name.trim_start_matches("refs/heads/") != own);
    let (mut gone, mut kept) = (Vec::new(), Vec::<Tip>::new());
    for (name, commit) in all {
        let tip = Tip { branch: name.trim_start_matches("refs/heads/").to_owned(), commit };
        if in_use(&name) {
            kept.push(tip);
            continue;
        }
        let commit = tip.commit.as_str();
        let mut call = git.call().args(&["rev-list", "--count", commit, "--not"]);
        call = call.args(&["--exclude=piton/*", "--branches", "--tags", "--remotes"]);
        let run = kept.first().filter(|tip| tip.branch == own).map(|tip| &tip.commit);
        for had in run.into_iter().chain(also) {
            call = call.arg(had.as_str());
        }
        let elsewhere = call.line()? == "0";
        if elsewhere { &mut gone } else { &mut kept }.push(tip);
    }
    Ok((gone, kept))
}

/// The branches of completed runs that are merged.
pub(crate) fn merged(
    project: &Project,
    store: &Arc<dyn Store>,
    (ask, going): (CleanAsk, &[PathBuf]),
) -> Result<Vec<Tip>, EngineError> {
    let mut all = Vec::new();
    if !ask.completed {
        return Ok(all);
    }
    let names = project.git.refs_under("refs/heads/piton/")?;
    let handle = |name: &str| name.split('/').nth(3).map(str::to_owned);
    let handles: BTreeSet<String> = names.iter().filter_map(|(name, _)| handle(name)).collect();
    let now = store.now()?.wall;
    for row in store.runs(&Runs::All)? {
        if row.active || !handles.contains(&row.name) {
            continue;
        }
        // One that cannot be read keeps what it has.
        let Ok(log) = Log::load(Arc::clone(store), row.run) else { continue };
        let run = log.run();
        let is_recent = ask.older_than.is_some_and(|age| now.since(run.changed_at) < age);
        if !run.is_completed() || is_recent {
            continue;
        }
        let squashed = proof::in_target(&project.git, run)?;
        let also = squashed.map(|merged| &merged.tip);
        let own = run_branch(&run.opened.handle);
        let (gone, kept) = judge(&project.git, &run.opened.handle, (also, going))?;
        if kept.iter().all(|tip| tip.branch != own) {
            all.extend(gone);
            all.extend(shown(&project.git, &log)?);
        }
    }
    Ok(all)
}

/// The branches that show snapshots of a run's steps: all they have is kept as snapshots, too.
fn shown(git: &Git, log: &Log) -> Result<Vec<Tip>, EngineError> {
    let Ok(template) = Template::parse(&settings_of(log)?.snapshot_branch) else {
        return Ok(Vec::new());
    };
    let mut tips = Vec::new();
    for (step, _, _) in log.run().steps() {
        let branch = template.name(&log.run().opened.handle, &step);
        let at = snapshot::shown_at(git, &branch)?;
        if let Some(commit) = at
            && git.checked_out(&format!("refs/heads/{branch}")).is_none()
        {
            tips.push(Tip { branch, commit });
        }
    }
    Ok(tips)
}

/// Deletes a branch that is still where it was, after a ref keeps it. Done again it changes nothing.
pub(crate) fn take_away(git: &Git, tip: &Tip) -> Result<(), GitError> {
    if git.ref_target(&tip.refname())?.as_ref() != Some(&tip.commit) {
        git.clear_left_locks(&tip.refname());
        return Ok(());
    }
    let kept = git.ref_target(&tip.kept_as())?;
    if kept.as_ref() != Some(&tip.commit) {
        git.move_ref(&tip.kept_as(), &tip.commit, kept.as_ref(), "piton: clean")?;
    }
    delete(git, tip)
}

/// Deletes a branch, unless somebody has checked it out meanwhile.
pub(crate) fn delete(git: &Git, tip: &Tip) -> Result<(), GitError> {
    match git.checked_out(&tip.refname()) {
        Some(_) => Ok(()),
        None => git.delete_ref(&tip.refname(), &tip.commit),
    }
}

/// What keeps a branch from being made again.
pub(crate) fn in_the_way(git: &Git, tip: &Tip) -> Result<Option<String>, GitError> {
    Ok(match git.ref_target(&tip.refname())? {
        Some(at) if at == tip.commit => None,
        Some(at) => Some(format!("the branch {} is at {} by now", tip.branch, at.short())),
        None if git.ref_target(&tip.kept_as())?.as_ref() == Some(&tip.commit) => None,
        None => Some(format!("{}, which kept {}, is gone", tip.kept_as(), tip.branch)),
    })
}

/// Makes a branch again. Done again it changes nothing.
pub(crate) fn put_back(git: &Git, tip: &Tip) -> Result<(), GitError> {
    let made = git.move_ref(&tip.refname(), &tip.commit, None, "piton: undo")?;
    let there = match &made {
        Moved::Moved => true,
        Moved::Lost { current } => current.as_ref() == Some(&tip.commit),
    };
    match git.ref_target(&tip.kept_as())? {
        Some(kept) if there && kept == tip.commit => git.delete_ref(&tip.kept_as(), &kept),
        _ => Ok(()),
    }
}
