//! Completing a claim from outside with a commit: what piton does with the work of a keeper's agent,
//! for holders who start themselves. The commit is checked by the plan's verify command in a worktree
//! of piton's own, recorded, landed, completed; killed anywhere and said again it ends the same, once.

use std::path::{Path, PathBuf};

use piton_core::decide::{Command, Request, completable, completed_with};
use piton_core::event::{Cause, Conflict, Holder, Omission, Truth, Under};
use piton_core::ids::{Oid, StepRef};
use piton_core::run::{Attempt, Phase};
use piton_core::view::run_branch;
use piton_git::crash;
use piton_git::repo::GitError;
use piton_git::repo::names;
use piton_git::repo::status::StatusDepth;
use piton_git::snapshot;
use piton_git::worktree::{Bench, Worktree};

use crate::attempt::child::{self, Spec};
use crate::attempt::iteration;
use crate::attempt::land::{self};
use crate::attempt::lease;
use crate::attempt::places;
use crate::attempt::supervise::Supervisor;
use crate::attempt::verify::{self, Verdict};
use crate::error::EngineError;
use crate::error::Unlanded;
use crate::folder;
use crate::outside::claims::{lost, stale};
use crate::outside::outside_snapshots::{self, Kept};
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::{settings_of, trusted};
use crate::trust::Trusted;

/// Paths that are named, at most.
const NAMED_MAX: usize = 10;

/// What a step was completed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// On the run's branch; a merge where others had landed meanwhile.
    pub commit: Option<Oid>,
    pub truth: Truth,
    /// What became of bytes that are in the worktree and not in the commit.
    pub kept: Kept,
    /// What was in the holder's worktree and did not land, and why.
    pub not_landed: Vec<Omission>,
}

/// Completes a claim with a commit, named by its id or the beginning of it.
pub fn complete_with(
    project: &Project,
    log: &mut Log,
    under: &Under,
    commit: &str,
    waive: Option<&str>,
) -> Result<Delivered, EngineError> {
    let step = &under.step;
    let commit = project.git.commit_with_id(commit)?;
    sweep(project);
    log.refresh()?;
    if let Some(again) = again(log, under, &commit) {
        return again;
    }
    is_due(log, under, waive)?;
    let (_, state) = log.run().step(step).expect("a claimed step is in the plan");
    let attempt = state.attempt().expect("a claim that can be completed is open").clone();
    let bench = Bench::of(&project.git, attempt.id)?;
    log.refresh()?;
    if let Some(again) = again(log, under, &commit) {
        bench.put_away()?;
        return again;
    }
    let kept = outside_snapshots::before_end(project, log, (step, &attempt), Some(&commit));
    let finished = verify(project, log, &bench, (step, &attempt), &commit).and_then(|()| {
        completable(log.run(), under, waive)?;
        land::land(project, log, under, waive)
    });
    // Whatever came of it: what is left of the bench is cleared away by the next one, too.
    let _cleared_later = bench.put_away();
    if let Err(EngineError::Unlanded(Unlanded::Conflict(conflict))) = &finished {
        let conflict = Request::RaiseConflict(Conflict::clone(conflict));
        log.submit(&Command::Under(under.clone(), conflict))?;
    }
    finished.map_err(|error| stale(log, under, error))?;
    if log.run().is_completed() {
        let _stays_then = places::put_away(project, log);
    }
    let done = delivered(log, under).ok_or_else(|| lost(log, under))?;
    Ok(Delivered { kept, ..done })
}

/// What is checked out in the worktree of a claim, where everything is committed.
pub fn claimed_head(project: &Project, log: &Log, under: &Under) -> Result<Oid, EngineError> {
    let held = log.run().step(&under.step).and_then(|(_, state)| state.attempt());
    let worktree = match held.filter(|attempt| attempt.fence == under.fence) {
        Some(Attempt { holder: Holder::External { worktree, .. }, .. }) => PathBuf::from(worktree),
        Some(Attempt { holder: Holder::Keeper { .. }, .. }) => project.git.here().to_owned(),
        None => return Err(lost(log, under).into()),
    };
    let seen = Worktree::at(&project.git, &worktree).status(StatusDepth::Folders)?;
    let changed = seen.tracked.iter().map(|entry| &entry.path).chain(&seen.untracked);
    let what: Vec<String> = changed.take(NAMED_MAX).map(|path| names::shown(path)).collect();
    match seen.head {
        Some(head) if what.is_empty() => Ok(head),
        Some(_) => Err(EngineError::Uncommitted { worktree, what }),
        None => Err(GitError::UnknownCommit { id: "HEAD".to_owned() }.into()),
    }
}

/// Whether a claim could be completed now, as far as its log says: asked before anything is executed.
pub fn is_due(log: &Log, under: &Under, waive: Option<&str>) -> Result<(), EngineError> {
    let due = completable(log.run(), under, waive);
    due.map_err(|refusal| stale(log, under, refusal.into()))
}

/// What a claim was completed with, if it was. Saying it again under the same fence is harmless.
pub fn delivered(log: &Log, under: &Under) -> Option<Delivered> {
    let (_, state) = log.run().step(&under.step)?;
    match &state.phase {
        Phase::Completed { commit, truth, fence, .. } if *fence == under.fence => {
            let by = state.history.iter().map(|past| &past.attempt).find(|by| by.fence == *fence);
            let not_landed = by.map(|attempt| attempt.trace.omitted.clone()).unwrap_or_default();
            let (commit, kept) = (commit.clone(), Kept::default());
            Some(Delivered { commit, truth: *truth, kept, not_landed })
        }
        _ => None,
    }
}

/// What a claim that was completed already was completed with, if it was with this commit.
fn again(log: &Log, under: &Under, commit: &Oid) -> Option<Result<Delivered, EngineError>> {
    let same = completed_with(log.run(), under, commit)?;
    let delivered = delivered(log, under).expect("it was completed");
    Some(same.map(|()| delivered).map_err(EngineError::from))
}

/// Records that the commit is what the claim leaves, checked where the plan says how. A commit that
/// was recorded before is not checked again.
fn verify(
    project: &Project,
    log: &mut Log,
    bench: &Bench,
    (step, attempt): (&StepRef, &Attempt),
    commit: &Oid,
) -> Result<(), EngineError> {
    let (plan, state) = log.run().step(step).expect("a claimed step is in the plan");
    let asked = state
        .questions
        .iter()
        .any(|asked| asked.about.is_some() && (asked.is_open() || asked.is_unread()));
    // Saying it again, after having been told that it conflicts, is another try.
    if !asked && state.verified().is_some_and(|verified| verified.commit == *commit) {
        return Ok(());
    }
    let verify = plan.verify.clone();
    let tip = land::run_tip(project, log.run())?;
    if project.git.fork_point(&tip, commit)?.is_none() {
        let branch = run_branch(&log.run().opened.handle);
        return Err(Unlanded::Unrelated { branch, commit: commit.clone() }.into());
    }
    let mut iteration = iteration::seen(&project.git, log.run(), step, commit)?;
    let until = iteration::until(log.run(), step).filter(|_| iteration.is_some());
    let mut check = None;
    if verify.is_some() || until.is_some() {
        let trusted = trusted(project, log)?;
        let folder = bench.lay_out(&step.step, commit)?;
        crash::point("complete.scratch-made");
        let of = (step, attempt);
        if let Some(command) = verify {
            check = match checked(project, log, of, (&trusted, command, &folder))? {
                Verdict::Passed(check) => Some(check),
                Verdict::Failed { why, tail, .. } => {
                    return Err(EngineError::Unverified { step: step.clone(), why, tail });
                }
                Verdict::Interrupted { cause, .. } => return Err(cut_off(step, cause)),
            };
        }
        if let Some(command) = until {
            let (check, tail) = match checked(project, log, of, (&trusted, command, &folder))? {
                Verdict::Passed(check) => (check, String::new()),
                Verdict::Failed { check, tail, .. } => (check, tail),
                Verdict::Interrupted { cause, .. } => return Err(cut_off(step, cause)),
            };
            iteration = iteration.map(|seen| iteration::with_until(seen, check, tail));
        }
        crash::point("complete.verify-ran");
        bench.clear()?;
        crash::point("complete.scratch-removed");
    }
    let iteration = iteration.map(Box::new);
    let commits = project.git.count_commits(&tip, commit)?;
    let (tree, commit) = (project.git.tree_of(commit)?, commit.clone());
    let (step, fence) = (step.clone(), attempt.fence);
    let omitted = apart(project, attempt);
    log.submit(&Command::Under(
        Under { step, fence },
        Request::Verify { commit, tree, check, commits, omitted, iteration },
    ))?;
    crash::point("complete.verified");
    Ok(())
}

/// The repositories in the holder's worktree, of which no commit has anything. Those in the user's own
/// checkout may be anybody's, and are not told.
fn apart(project: &Project, attempt: &Attempt) -> Vec<Omission> {
    let Holder::External { host, worktree } = &attempt.holder else { return Vec::new() };
    let tree = Worktree::at(&project.git, Path::new(worktree));
    let is_theirs = *host == project.host && tree.path() != project.git.main_root();
    if !is_theirs || !tree.is_ours() {
        return Vec::new();
    }
    // A worktree that cannot be looked at keeps nobody from completing.
    let seen = tree.status(StatusDepth::Files).unwrap_or_default();
    snapshot::apart(&tree, seen.into_repositories())
}

/// Ends and removes what killed processes left, of this claim or of any other.
fn sweep(project: &Project) {
    for (attempt, left) in Bench::left_behind(&project.git) {
        folder::end_attempt(attempt, &project.folder(attempt));
        // It keeps nobody from going on, and stays for the next one.
        let _tried_again = left.put_away();
    }
}

fn cut_off(step: &StepRef, cause: Cause) -> EngineError {
    EngineError::VerifyEnded { step: step.clone(), cause }
}

/// Runs a command on the commit and renews the claim's lease meanwhile.
fn checked(
    project: &Project,
    log: &mut Log,
    (step, attempt): (&StepRef, &Attempt),
    (trusted, command, folder): (&Trusted, String, &Path),
) -> Result<Verdict, EngineError> {
    let own = project.folder(attempt.id);
    std::fs::create_dir_all(own.path()).map_err(EngineError::io("the attempt's folder"))?;
    let settings = settings_of(log)?;
    let variables = child::variables(log.run(), step, attempt.fence, attempt.id);
    let spec = Spec::shell(&command, folder.to_owned(), own.verify_log(), settings.transcript_max);
    let spec = Spec { variables, ..spec };
    // It may be about to end.
    let under = Under { step: step.clone(), fence: attempt.fence };
    lease::renew(&**log.store(), log.run().opened.run, &under, lease::length(attempt))?;
    let mut supervisor = Supervisor::start(log, step, attempt, settings.grace)?;
    verify::run(&mut supervisor, log, trusted, (command, spec))
}
