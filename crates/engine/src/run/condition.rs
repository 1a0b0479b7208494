//! The condition of a step's worktree: the problems that git knows of it, with what the step has to go on
//! from, and what a person can do, as data. Everything that tells of a worktree asks here, and the keeper
//! acts accordingly; docs/worktrees.md has the table. Looks only: writes nothing, takes no lock.

use piton_core::ids::{Handle, StepRef};
use piton_core::observed::Sighting;
use piton_core::run::{Phase, Step};
use piton_core::view::step_branch;
use piton_git::shell;
use piton_git::worktree::{TreeProblem, Worktree};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::project::Project;
use crate::remedy::Remedy;
use crate::run::log::Log;
use crate::run::observe::{Depth, observe};
use crate::run::runs::settings_of;

/// A problem of a step's worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    #[serde(flatten)]
    pub problem: TreeProblem,
    /// What a worktree that is gone is made again from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<MadeFrom>,
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub remedy: Option<Remedy>,
}

/// What a worktree is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MadeFrom {
    /// The step's last snapshot, by its ref.
    Snapshot(String),
    /// The commits on the step's branch.
    Commits,
    /// What the step began with.
    Base,
}

impl Condition {
    /// Whether nothing goes on before a person has done something.
    pub fn needs_person(&self) -> bool {
        matches!(self.problem, TreeProblem::Foreign { .. } | TreeProblem::BranchElsewhere { .. })
    }

    /// Whether nothing of it is left to go on from.
    pub fn is_lost(&self) -> bool {
        self.from == Some(MadeFrom::Base)
    }

    /// Whether it is as it should be, and only worth knowing.
    pub fn is_fine(&self) -> bool {
        matches!(self.problem, TreeProblem::Locked { .. } | TreeProblem::OffBranch { .. })
    }
}

/// What there is to say about the worktree of a step that is not completed; nothing where it is as it
/// was left, or was never made.
pub fn of_step(
    project: &Project,
    log: &Log,
    step: &StepRef,
) -> Result<Vec<Condition>, EngineError> {
    let root = settings_of(log)?.worktree_root;
    let run = log.run();
    let Some((_, state)) = run.step(step) else { return Ok(Vec::new()) };
    if state.is_done() || run.abandoned.is_some() {
        return Ok(Vec::new());
    }
    let Some(path) = project.tree_of(&root, run, step) else { return Ok(Vec::new()) };
    let tree = Worktree::own_place(&project.git, &path);
    let branch = step_branch(&run.opened.handle, step);
    let mut problems = tree.problems(&branch)?;
    // Without any work of the step in it, only what would be in its way is told.
    let has_work = run.trees().has_work(&project.host, step);
    if !has_work || matches!(state.phase, Phase::Pending { .. }) {
        problems.retain(is_in_the_way);
    }
    let condition = |problem: TreeProblem| {
        let is_missing = matches!(problem, TreeProblem::Missing { .. });
        let from = is_missing.then(|| made_from(&tree, &branch, state));
        let remedy = remedy(&problem, &tree, &run.opened.handle);
        Condition { problem, from, remedy }
    };
    Ok(problems.into_iter().map(condition).collect())
}

/// The same for every step of a run that was begun and that nobody is at work on, where there is anything
/// to say.
pub fn of_run(project: &Project, log: &Log) -> Result<Vec<(StepRef, Vec<Condition>)>, EngineError> {
    let observed = observe(project, log, Depth::Locks);
    let is_left = |state: &Step| match (&state.phase, state.attempt()) {
        (Phase::Pending { .. } | Phase::Completed { .. } | Phase::Skipped { .. }, _) => false,
        (_, Some(attempt)) => matches!(observed.of(attempt.id), Sighting::Dead(_)),
        (_, None) => true,
    };
    let left = log.run().steps().filter(|(_, _, state)| is_left(state));
    let mut found = Vec::new();
    for step in left.map(|(step, _, _)| step) {
        let conditions = of_step(project, log, &step)?;
        if !conditions.is_empty() {
            found.push((step, conditions));
        }
    }
    Ok(found)
}

fn is_in_the_way(problem: &TreeProblem) -> bool {
    matches!(
        problem,
        TreeProblem::Foreign { .. }
            | TreeProblem::Unlinked { .. }
            | TreeProblem::Damaged { .. }
            | TreeProblem::HalfMade
            | TreeProblem::Locked { .. }
    )
}

fn made_from(tree: &Worktree, branch: &str, state: &Step) -> MadeFrom {
    let left_at = || tree.left_at(branch).filter(|left| Some(left) != state.base.as_ref());
    match state.resume_snapshot() {
        Some(kept) => MadeFrom::Snapshot(kept.snapshot.refname.clone()),
        None if left_at().is_some() => MadeFrom::Commits,
        None => MadeFrom::Base,
    }
}

fn remedy(problem: &TreeProblem, tree: &Worktree, run: &Handle) -> Option<Remedy> {
    let place = shell::path(tree.path());
    let then_resume = |command| Remedy::ThenResume { command, run: run.clone() };
    let command = match problem {
        TreeProblem::Foreign { .. } => return shell::mv_aside(tree.path()).map(then_resume),
        TreeProblem::BranchElsewhere { place: other, missing, .. } => {
            let other = shell::word(other);
            return Some(then_resume(match missing {
                true => format!("git worktree move {other} {place}"),
                false => format!("git -C {other} switch --detach"),
            }));
        }
        TreeProblem::Moved { to } => format!("mv {} {place}", shell::word(to)),
        TreeProblem::Unlinked { .. } => format!("git worktree repair {place}"),
        TreeProblem::BranchMoved { was, now, .. } => {
            format!("git log --oneline --graph {} {}", was.short(), now.short())
        }
        TreeProblem::InProgress(_) => format!("git -C {place} status"),
        TreeProblem::Locked { .. } => format!("git worktree unlock {place}"),
        TreeProblem::Missing { .. }
        | TreeProblem::HalfMade
        | TreeProblem::Damaged { .. }
        | TreeProblem::BranchDeleted { .. }
        | TreeProblem::OffBranch { .. }
        | TreeProblem::LockLeft { .. } => return None,
    };
    Some(Remedy::Shell { command })
}
