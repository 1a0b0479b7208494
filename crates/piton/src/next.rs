//! The sensible next commands for a run, by its status.

use piton_core::event::{Cause, Failure};
use piton_core::ids::StepRef;
use piton_core::view::{AttemptView, RunStatus, RunView, StepKind, StepStatus, StepView};
use piton_engine::project::Project;

use crate::describe::{answer_commands, has_landed, is_unattended, open_questions};
use crate::error::Problem;
use crate::hints::start_over_shown;
use crate::text::bold;
use crate::ui::Ui;

/// Ends a screen with the one obvious command, or with each answer to a question; the envelope has the others
/// too.
pub(crate) fn tell_next(ui: &Ui, commands: &[String]) -> Result<(), Problem> {
    let is_answer = |command: &&String| command.split(' ').any(|word| word == "answer");
    let answers = commands.iter().take_while(is_answer).count();
    if !commands.is_empty() {
        ui.line(format!("\n{}", bold("Next:")))?;
    }
    for command in commands.iter().take(answers.max(1)) {
        ui.line(format!("  {command}"))?;
    }
    Ok(())
}

/// The sensible next commands for a run, the first one first.
pub(crate) fn next_commands(project: &Project, view: &RunView) -> Vec<String> {
    let run = &view.handle;
    let rest_by_hand = by_hand(view);
    match &view.status {
        RunStatus::Completed if !has_landed(view) => vec![format!("piton show {run}")],
        RunStatus::Completed => match &view.merged {
            Some(merged) => {
                let (from, to) = (view.base.short(), merged.commit.short());
                vec![format!("git log --oneline {from}..{to}")]
            }
            None => vec![format!("piton merge {run}"), format!("piton diff {run} --stat")],
        },
        RunStatus::Abandoned { .. } => {
            vec!["piton undo --list".to_owned(), format!("piton show {run}")]
        }
        RunStatus::Running => {
            let answers = open_questions(view).flat_map(|asked| answer_commands(view, asked));
            let mut attempts = view.steps.iter().filter_map(|step| step.attempts.last());
            let kept = |attempt: &AttemptView| attempt.to.is_none() && attempt.worktree.is_none();
            let follow = match is_unattended(view) {
                true => Some(format!("piton resume {run}")),
                false => attempts.any(kept).then(|| format!("piton watch {run}")),
            };
            answers.chain(follow).chain([format!("piton stop {run}")]).collect()
        }
        RunStatus::Parked { .. } => {
            let answers = open_questions(view).flat_map(|asked| answer_commands(view, asked));
            let follow = if view.worker { "watch" } else { "resume" };
            let rest = [format!("piton {follow} {run}"), format!("piton stop {run}")];
            answers.chain(rest).collect()
        }
        RunStatus::Lapsed { step, .. } => {
            let step_view = view.steps.iter().find(|view| view.step == *step);
            let stopped = step_view.is_some_and(|view| view.stop_requested);
            let by_hand = is_by_hand(view, step);
            let claim = format!("piton claim {run} --step {step} --worktree .");
            let resume = (stopped || !by_hand).then(|| format!("piton resume {run}"));
            let release = format!("piton release {run} {step} --force");
            resume.into_iter().chain([claim, release]).collect()
        }
        RunStatus::Waiting { id: Some(_), .. } => {
            let commands = open_questions(view).flat_map(|asked| answer_commands(view, asked));
            let go_on = (!rest_by_hand).then(|| format!("piton resume {run}"));
            commands.chain(go_on).collect()
        }
        RunStatus::Waiting { step, .. } => {
            let is_it = |view: &&StepView| view.step == *step;
            let status = view.steps.iter().find(is_it).map(|step| &step.status);
            let obstacle =
                matches!(status, Some(StepStatus::Interrupted { cause: Cause::Obstacle, .. }));
            let go_on = if obstacle { "" } else { " --yes" };
            vec![format!("piton log {run} {step}"), format!("piton resume {run}{go_on}")]
        }
        RunStatus::Failed { step, .. } => {
            let again = [format!("piton retry {run} {step}"), see_why(view, step)];
            // Others wait all the same.
            let answers = open_questions(view).flat_map(|asked| answer_commands(view, asked));
            answers.chain(again).chain([start_over_shown(project, view)]).collect()
        }
        RunStatus::Open if rest_by_hand => {
            let stopped = view.steps.iter().any(|step| step.held_back);
            let resume = stopped.then(|| format!("piton resume {run}"));
            let claim = [format!("piton ready {run}"), format!("piton claim {run} --worktree .")];
            claim.into_iter().chain(resume).collect()
        }
        RunStatus::Open | RunStatus::Interrupted { .. } | RunStatus::Stopped { .. } => {
            let answers = open_questions(view).flat_map(|asked| answer_commands(view, asked));
            let free = |step: &&StepView| {
                step.kind == StepKind::ByHand
                    && step.status == StepStatus::Pending
                    && !step.held_back
            };
            let free = view.steps.iter().find(free).filter(|_| view.status == RunStatus::Open);
            let claim =
                free.map(|step| format!("piton claim {run} --step {} --worktree .", step.step));
            let go_on = [format!("piton resume {run}"), format!("piton resume {run} --dry-run")];
            let failed =
                |step: &StepView| matches!(step.status, StepStatus::Failed { retries_left: 0, .. });
            let again = view.steps.iter().any(failed).then(|| format!("piton retry {run}"));
            answers.chain(claim).chain(go_on).chain(again).collect()
        }
    }
}

/// Whether nothing is left but what others claim.
fn by_hand(view: &RunView) -> bool {
    let mut open = view.steps.iter().filter(|step| !step.is_done());
    open.all(|step| step.kind == StepKind::ByHand)
}

/// What shows why a step failed.
pub(crate) fn see_why(view: &RunView, step: &StepRef) -> String {
    let run = &view.handle;
    let failed = view.steps.iter().find(|view| view.step == *step).map(|view| &view.status);
    match failed {
        _ if is_by_hand(view, step) => format!("piton show {run} {step}"),
        Some(StepStatus::Failed { why: Failure::Verify { .. }, .. }) => {
            format!("piton log {run} {step} --verify")
        }
        _ => format!("piton log {run} {step}"),
    }
}

fn is_by_hand(view: &RunView, id: &StepRef) -> bool {
    view.steps.iter().any(|step| step.step == *id && step.kind == StepKind::ByHand)
}
