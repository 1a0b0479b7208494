//! From an opened run to its end: what `run`, `resume` and a detached worker have in common. Shows
//! what happens, and turns the worker's outcome into an answer.

use piton_core::event::Cause;
use piton_core::ids::StepRef;
use piton_core::limits::JOBS_MAX;
use piton_core::plan::{Isolation, Plan};
use piton_core::view::{QuestionView, RunView};
use piton_engine::error::EngineError;
use piton_engine::git::worktree::TreeProblem;
use piton_engine::project::Project;
use piton_engine::run::condition::{self, Condition};
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, look};
use piton_engine::run::runs;
use piton_engine::worker::{self, Going, Outcome, WorkOptions};
use serde_json::json;

use crate::answer::Answer;
use crate::describe::{answer_commands, open_questions};
use crate::error::{Detail, Kind, Problem, interrupted};
use crate::hints::{About, start_over_shown};
use crate::next::next_commands;
use crate::progress::Progress;
use crate::remedy::{trust_first, words};
use crate::start::from_here;
use crate::text::{bold, green, plain, span};
use crate::ui::Ui;

/// What run and resume are asked in the same words.
#[derive(Debug, clap::Args)]
pub(crate) struct Work {
    /// Go on with the plan as it is now, if it was changed under its run
    #[arg(long)]
    pub(crate) accept_plan: bool,

    /// Trust what the plan and the repository's configuration execute, without asking
    #[arg(long)]
    pub(crate) trust: bool,

    /// Go on in the background
    #[arg(long)]
    detach: bool,

    /// At most this many steps at once [default: the plan's `jobs`]
    #[arg(long, value_name = "N", value_parser = jobs)]
    pub(crate) jobs: Option<u32>,
}

impl Work {
    pub(crate) fn place(&self) -> Place {
        if self.detach { Place::Detached } else { Place::Here }
    }
}

/// How a run is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drive {
    pub(crate) going: Going,
    pub(crate) place: Place,
    /// How many steps at once, where the plan's own number is not what is wanted.
    pub(crate) jobs: Option<u32>,
}

/// Where the worker lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this process.
    Here,
    /// In a process of its own, which goes on after this one.
    Detached,
}

/// Works on a run until it is over, stopped, or in need of a person.
pub(crate) fn drive(ui: &Ui, project: &Project, log: Log, how: Drive) -> Result<Answer, Problem> {
    match how.place {
        Place::Here => work(ui, project, log, how),
        Place::Detached => detach(ui, project, log, how),
    }
}

/// A number of steps at once that the plan cannot have is refused before anything is written.
pub(crate) fn check_jobs(plan: &Plan, jobs: Option<u32>) -> Result<(), Problem> {
    match (plan.isolation, jobs) {
        (Isolation::Run, Some(2..)) => {
            let message = "this plan has isolation = \"run\": its steps come one at a time";
            Err(Problem::new(Kind::OneAtATime, message)
                .hint("leave --jobs out, or write isolation = \"step\" into [plan]"))
        }
        (Isolation::Run | Isolation::Step, _) => Ok(()),
    }
}

/// `--jobs`, as it is typed.
pub(crate) fn jobs(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=JOBS_MAX).contains(number));
    number.ok_or_else(|| format!("a whole number from 1 to {JOBS_MAX}"))
}

fn detach(ui: &Ui, project: &Project, mut log: Log, how: Drive) -> Result<Answer, Problem> {
    let confirmed = how.going == Going::On { confirmed: true };
    let pid = worker::detach(project, &mut log, confirmed, how.jobs)?;
    let opened = &log.run().opened;
    let handle = &opened.handle;
    ui.line(format!("{} goes on in the background (process {pid})", bold(handle.as_str())))?;
    ui.hint(format!("`piton log {handle} -f` follows it, `piton stop {handle}` stops it"));
    let says = worker::worker_log(project, opened.run);
    ui.talk(format!("what it says: {}", from_here(&says).display()));
    let data = json!({
        "run": opened.run,
        "handle": handle,
        "worker": pid,
        "detached": true,
        "worker_log": says,
    });
    Ok(Answer::new(data).after_writing(log.store()))
}

fn work(ui: &Ui, project: &Project, mut log: Log, how: Drive) -> Result<Answer, Problem> {
    let options = WorkOptions { going: how.going, jobs: how.jobs };
    let mut progress = Progress::start(ui, project);
    let outcome = worker::work(project, &mut log, &options, &mut |run, notice| {
        progress.hear(run, notice);
    });
    progress.end();
    let outcome = outcome.map_err(|error| About::run(project, &log).problem(error))?;
    log.refresh()?;
    let view = look(project, &log, Depth::Locks)?;
    let data = json!({ "outcome": word_for(&outcome), "run": view, "next": next_commands(project, &view) });
    let remedy = match &outcome {
        Outcome::NeedsPerson { step, .. } => obstacle_remedy(project, &log, step)?,
        _ => None,
    };
    match problem(project, (&outcome, remedy), &view) {
        Some(problem) => {
            log.store().tidy();
            Err(problem.with_data(data))
        }
        None => {
            // The work is done, whoever still listens.
            let _ = ui.line(completed(project, &view));
            Ok(Answer::new(data).after_writing(log.store()))
        }
    }
}

fn completed(project: &Project, view: &RunView) -> String {
    let steps = crate::text::count(view.total as u64, "step");
    let took = span(view.changed_at.since(view.opened_at));
    let mut lines = vec![format!(
        "{} {} completed: {steps} in {took}, on branch {}",
        green("✓"),
        bold(view.handle.as_str()),
        bold(&view.branch)
    )];
    lines.extend(next_commands(project, view).iter().map(|command| format!("  {command}")));
    lines.join("\n")
}

fn word_for(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Failed { .. } => "failed",
        Outcome::NeedsPerson { .. } | Outcome::Waiting | Outcome::ToBeClaimed { .. } => "waiting",
        Outcome::Interrupted { .. } => "interrupted",
        Outcome::Stopped { .. } => "stopped",
        Outcome::Left => "left",
    }
}

/// A question line by line, under its name.
fn asked_lines(asked: &QuestionView) -> Vec<String> {
    let name = asked.question.to_string();
    let line = |(n, line): (usize, &str)| match n {
        0 => format!("{name}: {}", plain(line)),
        _ => format!("{}  {}", " ".repeat(name.len()), plain(line)),
    };
    asked.text.lines().enumerate().map(line).collect()
}

/// What moves an obstacle that a step waits to be rid of, as far as its worktree shows it.
fn obstacle_remedy(
    project: &Project,
    log: &Log,
    step: &StepRef,
) -> Result<Option<String>, EngineError> {
    let run = &log.run().opened.handle;
    if !log.run().step(step).is_some_and(|(_, state)| state.is_obstructed()) {
        return Ok(None);
    }
    if let Err(EngineError::Untrusted { plan, .. }) = runs::trusted(project, log) {
        return Ok(Some(trust_first(&plan, run)));
    }
    let found = condition::of_step(project, log, step)?;
    let next = |is_meant: fn(&Condition) -> bool| {
        let row = found.iter().find(|row| is_meant(row))?;
        row.remedy.as_ref().map(words)
    };
    let is_in_progress = |row: &Condition| matches!(row.problem, TreeProblem::InProgress(_));
    Ok(Some(if let Some(way) = next(Condition::needs_person) {
        way
    } else if let Some(look) = next(is_in_progress) {
        format!("{look} says how to finish it; then `piton resume {run}`")
    } else {
        format!("once that is settled: `piton resume {run}`")
    }))
}

/// What there is to say when a run did not complete.
fn problem(
    project: &Project,
    (outcome, remedy): (&Outcome, Option<String>),
    view: &RunView,
) -> Option<Problem> {
    let run = &view.handle;
    let done = format!("{} of {} steps are completed", view.completed, view.total);
    let answers = |asked: &QuestionView| {
        let commands = answer_commands(view, asked).into_iter();
        commands.map(|command| format!("`{command}`")).collect::<Vec<_>>().join(" or ")
    };
    let answers: Vec<String> = open_questions(view).map(answers).collect();
    let go_on = match answers.as_slice() {
        [] => format!("go on: `piton resume {run}`"),
        answers => format!("{}; then `piton resume {run}`", answers.join("; ")),
    };
    let asked = || -> Vec<Detail> {
        let lines = open_questions(view).flat_map(asked_lines);
        lines.map(|message| Detail { message, hint: None }).collect()
    };
    Some(match outcome {
        Outcome::Completed => return None,
        Outcome::Failed { step, why } => {
            let message = format!("{run} failed: step {step} {}", plain(&why.to_string()));
            let over = start_over_shown(project, view);
            let hint = format!(
                "see why: `piton log {run} {step}`; try it again: `piton reset {run} {step}`; start \
                 over: `{over}`"
            );
            let hint = match answers.is_empty() {
                true => hint,
                false => format!("{hint}; what else waits for you: `piton questions {run}`"),
            };
            Problem::new(Kind::RunFailed, message).with_details(asked()).hint(hint)
        }
        Outcome::NeedsPerson { step, question } => {
            let message = format!("{run} needs you: {}", plain(question));
            let hint = remedy.unwrap_or_else(|| {
                format!(
                    "look at what it did: `piton log {run} {step}`; try again: `piton resume {run} --yes`"
                )
            });
            Problem::new(Kind::NeedsPerson, message).hint(hint)
        }
        Outcome::Waiting => {
            let message = format!("{run} waits for an answer; {done}");
            Problem::new(Kind::NeedsPerson, message).with_details(asked()).hint(go_on)
        }
        Outcome::ToBeClaimed { steps } => {
            let names: Vec<String> = steps.iter().map(ToString::to_string).collect();
            let message = format!(
                "{run} waits for somebody to claim {}: there is nothing to start; {done}",
                names.join(", ")
            );
            let first = steps.first().map(ToString::to_string).unwrap_or_default();
            Problem::new(Kind::NeedsPerson, message).hint(format!(
                "`piton claim {run} --step {first} --worktree .`; once it is completed `piton resume \
                 {run}`"
            ))
        }
        Outcome::Interrupted { cause } => {
            Problem::new(interrupted(*cause), format!("{run} was interrupted ({cause}); {done}"))
                .hint(go_on)
        }
        Outcome::Stopped { cause } => {
            Problem::new(interrupted(*cause), format!("{run} was stopped ({cause}); {done}"))
                .hint(go_on)
        }
        Outcome::Left => {
            let message = format!("the terminal was closed; what {run} has started goes on");
            Problem::new(interrupted(Cause::HangUp), message).hint(go_on)
        }
    })
}
