//! What can go, and why: each worktree gets a proof that nothing is lost with it, or the reason why it
//! stays. Unknown is no proof.

use std::sync::Arc;

use piton_core::event::Omission;
use piton_core::ids::{Fence, Oid};
use piton_core::run::{Merged, Run};
use piton_core::time::{Millis, timestamp};
use piton_core::view::run_branch;
use piton_git::repo::status::StatusDepth;
use piton_git::repo::{Git, GitError};
use piton_git::snapshot;
use piton_git::worktree::Worktree;
use piton_store::Store;

use super::{CleanAsk, JudgedTree, Proof, Reason, TreeRow, TreeStatus, TreeVerdict, removal};
use crate::error::EngineError;
use crate::merge;
use crate::project::Project;
use crate::remedy::Remedy;
use crate::run::log::Log;
use crate::run::step_snapshot;

/// How many worktrees are judged at the same time: each costs a few processes of git.
const THREADS: usize = 4;

pub(super) fn judge_all(
    project: &Project,
    store: Option<&Arc<dyn Store>>,
    rows: Vec<TreeRow>,
    ask: CleanAsk,
) -> Result<Vec<JudgedTree>, EngineError> {
    let now = store.map(|store| store.now()).transpose()?.map(|now| now.wall);
    let share = rows.len().div_ceil(THREADS).max(1);
    let judged: Vec<Vec<JudgedTree>> = std::thread::scope(|scope| {
        let judge_share = |rows: &[TreeRow]| {
            let judged = rows.iter().map(|row| judge_one(project, store, row.clone(), (ask, now)));
            judged.collect::<Vec<_>>()
        };
        let threads: Vec<_> =
            rows.chunks(share).map(|rows| scope.spawn(move || judge_share(rows))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(judged) => judged,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    });
    Ok(judged.into_iter().flatten().collect())
}

fn judge_one(
    project: &Project,
    store: Option<&Arc<dyn Store>>,
    mut row: TreeRow,
    (ask, now): (CleanAsk, Option<Millis>),
) -> JudgedTree {
    let verdict = match candidate(project, store, &mut row, ask, now) {
        Ok(proof) => TreeVerdict::Goes { proof },
        Err(reason) => TreeVerdict::Stays { reason },
    };
    JudgedTree { row, verdict }
}

fn candidate(
    project: &Project,
    store: Option<&Arc<dyn Store>>,
    row: &mut TreeRow,
    ask: CleanAsk,
    now: Option<Millis>,
) -> Result<Proof, Reason> {
    let (Some(store), Some(run), Some(now)) = (store, row.run, now) else {
        return Err(match &row.obstacle {
            Some(reason) if row.status != TreeStatus::Unknown => reason.clone(),
            _ => "unknown to this store".into(),
        });
    };
    let log = Log::load(Arc::clone(store), run).map_err(|error| error.to_string())?;
    // Whatever stands against it, what it holds is told.
    let whereabouts = row.head.clone().map(|head| commits(&project.git, log.run(), &head));
    if let (Some(head), Some(counts)) = (&row.head, &mut row.counts) {
        counts.unmerged = unmerged(project, &log, head).unwrap_or_default();
    }
    if let Some(reason) = &row.obstacle {
        return Err(reason.clone());
    }
    selected(row, ask, now)?;
    let commits = whereabouts.ok_or("it has no commit")?.map_err(|error| error.to_string())?;
    let handle = &log.run().opened.handle;
    match &row.branch {
        None => return Err("its HEAD is detached".into()),
        Some(branch) if !branch.starts_with(&format!("piton/{handle}/")) => {
            return Err(format!("{branch} is checked out in it, which is not piton's").into());
        }
        Some(branch) if *branch == run_branch(handle) => {
            return Err("the run's own branch is checked out in it".into());
        }
        Some(_) => {}
    }
    let step = removal::step_on(&log, row.branch.as_deref().unwrap_or_default());
    let step = step.ok_or("the branch of no step is checked out in it")?;
    let tree = Worktree::at(&project.git, &row.path);
    let failed = |error: GitError| error.to_string();
    if let Some(Omission { path, why }) = snapshot::unsnapshotable(&tree).map_err(failed)? {
        let reason = Reason::from(format!("no snapshot can hold {path}: {why}"));
        row.obstacle = Some(reason.clone());
        return Err(reason);
    }
    let folder = step_snapshot::folder(&log, &step, Fence(0));
    let held = || snapshot::held_by(&tree, snapshot::step_of(&folder)).map_err(failed);
    let uncommitted = uncommitted(&tree, row)?;
    // What is not over keeps its branch.
    let given_up = matches!(row.status, TreeStatus::Interrupted { .. } | TreeStatus::Abandoned);
    match (commits, uncommitted) {
        (Commits::Proven(proof), 0) => Ok(proof),
        (Commits::Unmerged { count }, _) if !given_up => Err(on_no_branch(count).into()),
        (commits, uncommitted) => match (held()?, commits) {
            (Some(refname), _) => Ok(Proof::Snapshotted { refname }),
            (None, Commits::Unmerged { count }) if uncommitted == 0 => {
                Err(on_no_branch(count).into())
            }
            (None, _) if uncommitted == 1 => Err("1 file is in no snapshot".into()),
            (None, _) => Err(format!("{uncommitted} files are in no snapshot").into()),
        },
    }
}

fn on_no_branch(count: u64) -> String {
    match count {
        1 => "1 commit is on no other branch".to_owned(),
        count => format!("{count} commits are on no other branch"),
    }
}

/// How many files are not as HEAD has them.
fn uncommitted(tree: &Worktree, row: &TreeRow) -> Result<usize, Reason> {
    let seen = tree.status(StatusDepth::Files).map_err(|error| error.to_string())?;
    match seen.head == row.head && seen.branch == row.branch {
        true => Ok(seen.tracked.len() + seen.untracked.len()),
        false => Err("it changes while it is looked at".into()),
    }
}

/// Whether somebody asked for worktrees such as this one.
fn selected(row: &TreeRow, ask: CleanAsk, now: Millis) -> Result<(), Reason> {
    let excluded: Option<Reason> = match &row.status {
        TreeStatus::Completed if ask.completed => None,
        TreeStatus::Abandoned if ask.completed => {
            let until = row.attic_until.filter(|until| now < *until);
            until.map(|until| format!("in the attic until {}", timestamp(until)).into())
        }
        TreeStatus::Interrupted { .. } if ask.interrupted => None,
        TreeStatus::Interrupted { .. } => {
            let remedy = row.handle.clone().map(|run| Remedy::Resume { run });
            Some(Reason { why: "interrupted".to_owned(), remedy })
        }
        TreeStatus::Completed | TreeStatus::Abandoned => {
            Some("completed ones were not asked for".into())
        }
        TreeStatus::Live => Some("its run is being worked on".into()),
        TreeStatus::Unfinished { as_told } => Some(format!("what it is for is {as_told}").into()),
        TreeStatus::Unknown => Some("unknown to this store".into()),
        TreeStatus::Foreign => Some("it is not a worktree of this repository".into()),
        TreeStatus::Missing { .. } => Some("there is nothing".into()),
    };
    if let Some(reason) = excluded {
        return Err(reason);
    }
    match (ask.older_than, row.changed_at) {
        (Some(age), Some(at)) if now.since(at) < age => Err("it was in use more recently".into()),
        (Some(_), None) => Err("when it was last in use is unknown".into()),
        _ => Ok(()),
    }
}

/// Where the commits of a worktree are.
enum Commits {
    Proven(Proof),
    Unmerged { count: u64 },
}

/// How many commits the branch lacks that the run's work is for: neither merged, nor there as others with
/// the same changes, nor part of what was brought there as one.
fn unmerged(project: &Project, log: &Log, head: &Oid) -> Result<u64, EngineError> {
    let (git, run) = (&project.git, log.run());
    let target = merge::target(project, log).ok();
    if let Some(merged) = in_target(git, run)?
        && Some(&merged.into) == target.as_ref()
        && git.is_ancestor(head, &merged.tip)?
    {
        return Ok(0);
    }
    let into = target.map(|name| format!("refs/heads/{name}"));
    let into = into.unwrap_or_else(|| run.opened.base.to_string());
    let answer = git.call().args(&["cherry", &into, head.as_str()]).run()?;
    let lines = answer.text("git cherry")?.lines();
    Ok(lines.filter(|line| line.starts_with("+ ")).count() as u64)
}

/// The last merge of a run, while it is in its branch: also one that brought everything as one commit.
pub(crate) fn in_target<'run>(git: &Git, run: &'run Run) -> Result<Option<&'run Merged>, GitError> {
    let Some(merged) = &run.merged else { return Ok(None) };
    let target = git.ref_target(&format!("refs/heads/{}", merged.into))?;
    Ok(match target {
        Some(target) if git.is_ancestor(&merged.commit, &target)? => Some(merged),
        _ => None,
    })
}

fn commits(git: &Git, run: &Run, head: &Oid) -> Result<Commits, GitError> {
    if git.is_ancestor(head, &run.opened.base)? {
        return Ok(Commits::Proven(Proof::Empty));
    }
    let main = piton_git::repo::plain::head(git.common_dir(), git.common_dir());
    let main = main.and_then(|(_, name)| name).unwrap_or_default();
    let own = format!("refs/heads/{}", run_branch(&run.opened.handle));
    let having = lasting(git, Some(head))?;
    let others = having.iter().find(|name| **name != own);
    if let Some(into) = having.iter().find(|name| **name == main).or(others) {
        return Ok(Commits::Proven(Proof::Merged { into: short(into) }));
    }
    if let Some(merged) = in_target(git, run)?
        && git.is_ancestor(head, &merged.tip)?
    {
        return Ok(Commits::Proven(Proof::Merged { into: merged.into.clone() }));
    }
    if having.contains(&own) {
        return Ok(Commits::Proven(Proof::Landed { branch: short(&own) }));
    }
    let all = lasting(git, None)?;
    for into in [&main, &own].into_iter().filter(|name| all.contains(name)) {
        if is_equivalent(git, into, head)? {
            return Ok(Commits::Proven(Proof::PatchEquivalent { into: short(into) }));
        }
    }
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let call = git.call().args(&["rev-list", "--count", head.as_str(), "--not"]);
    let line = call.args(&all).line()?;
    let count = line.parse().map_err(|_| GitError::unexpected("git rev-list", line))?;
    Ok(Commits::Unmerged { count })
}

/// Refs that no clean-up takes away, all or those that have a commit: branches of people and of remotes,
/// tags, and the branches that runs land on.
fn lasting(git: &Git, having: Option<&Oid>) -> Result<Vec<String>, GitError> {
    let mut call = git.call().args(&["for-each-ref", "--format=%(refname)"]);
    if let Some(commit) = having {
        call = call.args(&["--contains", commit.as_str()]);
    }
    let answer = call.args(&["--", "refs/heads", "refs/remotes", "refs/tags"]).run()?;
    let is_passing = |name: &str| {
        let rest = name.strip_prefix("refs/heads/piton/");
        rest.is_some_and(|rest| !rest.ends_with("/run") || rest.contains("/step/"))
    };
    let names = answer.text("git for-each-ref")?.lines().map(str::to_owned);
    Ok(names.filter(|name| !is_passing(name)).collect())
}

fn short(refname: &str) -> String {
    let stripped = ["refs/heads/", "refs/remotes/", "refs/"];
    let stem = stripped.iter().find_map(|prefix| refname.strip_prefix(prefix));
    stem.unwrap_or(refname).to_owned()
}

/// Whether every commit that a branch lacks has one with the same changes there. Merges have no changes
/// of their own to compare: with one of them it is not known.
fn is_equivalent(git: &Git, branch: &str, head: &Oid) -> Result<bool, GitError> {
    let range = format!("{branch}..{head}");
    let count = git.call().args(&["rev-list", "--count"]).arg(&range).line()?;
    let answer = git.call().args(&["cherry", branch, head.as_str()]).run()?;
    let lines: Vec<&str> = answer.text("git cherry")?.lines().collect();
    let same = lines.iter().filter(|line| line.starts_with("- ")).count();
    Ok(same == lines.len() && count == same.to_string())
}
