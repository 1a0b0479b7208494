//! From an opened run to its end: what `run`, `resume`, `retry` and `watch` have in common. Starts the worker where
//! that was asked for, watches it, and turns its outcome into an answer.

use piton_core::event::{Cause, Haste, Terms};
use piton_core::ids::{Position, StepRef};
use piton_core::limits::{ITERATIONS_MAX, JOBS_MAX};
use piton_core::observed::Sighting;
use piton_core::plan::{Isolation, Plan};
use piton_core::view::{QuestionView, RunView, StepStatus};
use piton_engine::error::{EngineError, LogError};
use piton_engine::git::shell::word;
use piton_engine::git::worktree::TreeProblem;
use piton_engine::outside::claims;
use piton_engine::project::Project;
use piton_engine::run::condition::{self, Condition};
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, look, observe};
use piton_engine::run::runs::{self, GoOn};
use piton_engine::run::write_back::changed_by_hand;
use piton_engine::watch::{Seen, Watcher};
use piton_engine::worker::{self, Ended, Notice, Outcome, Started};
use serde_json::json;

use crate::answer::Answer;
use crate::by_hand;
use crate::describe::{answer_commands, completed_of, open_questions, steps_done};
use crate::error::{Detail, Kind, Problem, interrupted};
use crate::hints::{About, start_over_shown};
use crate::next::{next_commands, see_why, tell_next};
use crate::page::{Extent, run_page};
use crate::progress::Progress;
use crate::question_prompt::{Asked, QuestionPrompt};
use crate::remedy::{trust_first, words};
use crate::start::from_here;
use crate::target::{refuse_inside, tell_kept};
use crate::text::{bold, due, green, now, plain, span};
use crate::ui::Ui;

/// What run and resume are asked in the same words.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Work {
    /// Accept the plan as it is now, if it changed under its run
    #[arg(long)]
    pub(crate) accept_plan: bool,

    /// Trust what the plan executes, without asking
    #[arg(long)]
    pub(crate) trust: bool,

    /// Do not watch; the run continues in the background
    #[arg(long)]
    pub(crate) detach: bool,

    /// How many steps at once, at most [default: the plan's `jobs`]
    #[arg(long, value_name = "N", value_parser = jobs)]
    pub(crate) jobs: Option<u32>,

    /// How many iterations a loop has at most [default: its `max`]
    #[arg(long, value_name = "N", value_parser = iterations)]
    pub(crate) max_iterations: Option<u32>,

    /// Do not wait until a usage limit is over: end with status 75, and resume later
    #[arg(long)]
    pub(crate) no_wait: bool,
}

impl Work {
    /// What is asked for when a run goes on.
    pub(crate) fn terms(&self) -> Terms {
        let Work { jobs, max_iterations, no_wait, .. } = *self;
        Terms { jobs, max_iterations, no_wait, ..Terms::default() }
    }

    /// How a run is driven that is asked for so, and for nothing else.
    pub(crate) fn drive(&self) -> Drive {
        let terms = self.terms();
        Drive { go_on: GoOn { confirmed: false, terms }, watched: !self.detach }
    }
}

/// How a run is driven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Drive {
    pub(crate) go_on: GoOn,
    /// Whether somebody watches; else this ends once a worker is there.
    pub(crate) watched: bool,
}

/// How often a worker that dies is started again without anything having been recorded in between.
const FRUITLESS_MAX: u32 = 3;

/// Records that a run goes on, sees to it that a worker is there, and watches until its end.
pub(crate) fn drive(
    ui: &Ui,
    project: &Project,
    mut log: Log,
    how: Drive,
) -> Result<Answer, Problem> {
    refuse_inside(&log, "resume")?;
    let about = |log: &Log, error| About::run(project, log).problem(error);
    // Before anything is recorded: nothing could be started.
    runs::trusted(project, &log).map_err(|error| about(&log, error))?;
    by_hand::settle(ui, project, &mut log)?;
    if how.go_on.terms.restart {
        for (step, kept) in claims::keep_before_restart(project, &mut log, &how.go_on.terms)? {
            ui.talk(format!("step {step}: begins again from its base"));
            tell_kept(ui, &kept);
        }
    }
    runs::lift(project, &mut log, &how.go_on).map_err(|error| about(&log, error))?;
    let watch = Watcher::start(project, &log)?;
    let started = worker::start(project, &log).map_err(|error| about(&log, error))?;
    match how.watched {
        true => {
            let mut watching = Watching::new(ui, project, log, Manner::Drives);
            if started == Started::Before {
                watching.show_present();
            }
            watching.until_the_end(watch)
        }
        false => detached(ui, project, &log, started),
    }
}

/// Watches a run that others drive; ends with it, or once nothing of it moves.
pub(crate) fn look_on(ui: &Ui, project: &Project, log: Log) -> Result<Answer, Problem> {
    refuse_inside(&log, "watch")?;
    by_hand::tell(ui, log.run(), &changed_by_hand(project, log.run()));
    let watch = Watcher::start(project, &log)?;
    let mut watching = Watching::new(ui, project, log, Manner::LooksOn);
    watching.show_present();
    watching.until_the_end(watch)
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

/// `--max-iterations`, as it is typed.
fn iterations(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=ITERATIONS_MAX).contains(number));
    number.ok_or_else(|| format!("a whole number from 1 to {ITERATIONS_MAX}"))
}

/// `--jobs`, as it is typed.
fn jobs(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=JOBS_MAX).contains(number));
    number.ok_or_else(|| format!("a whole number from 1 to {JOBS_MAX}"))
}

fn detached(ui: &Ui, project: &Project, log: &Log, started: Started) -> Result<Answer, Problem> {
    let opened = &log.run().opened;
    let (handle, name) = (&opened.handle, bold(opened.handle.as_str()));
    let pid = match started {
        Started::Now { pid } => {
            ui.line(format!("{name} goes on in the background (process {pid})"))?;
            Some(pid)
        }
        Started::Before => {
            ui.line(format!("{name} has a worker already, which goes on"))?;
            None
        }
    };
    ui.hint(format!("`piton watch {handle}` follows it, `piton stop {handle}` stops it"));
    let data = json!({
        "run": opened.run,
        "handle": handle,
        "worker": pid,
        "detached": true,
        "worker_log": project.worker_log(opened.run),
    });
    Ok(Answer::new(data).after_writing(log.store()))
}

/// Why somebody watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// They asked the run to go on: what signals say is about the run, and a worker that dies is replaced.
    Drives,
    LooksOn,
}

/// How watching ended.
enum Over {
    Ended(Ended),
    /// By a signal.
    Left(Cause),
    /// No worker is there, and nothing that would move without one.
    Paused,
}

/// Somebody who watches a run.
struct Watching<'a> {
    ui: &'a Ui,
    project: &'a Project,
    log: Log,
    manner: Manner,
    progress: Progress<'a>,
    prompt: QuestionPrompt<'a>,
    /// What was asked of the run by a signal.
    stopping: Option<(Cause, Haste)>,
    /// Where the log was when a worker was last started, and how often that was in vain.
    started_at: Position,
    fruitless: u32,
}

impl<'a> Watching<'a> {
    fn new(ui: &'a Ui, project: &'a Project, log: Log, manner: Manner) -> Watching<'a> {
        Watching {
            ui,
            project,
            manner,
            progress: Progress::start(ui, project),
            prompt: QuestionPrompt::new(ui),
            stopping: None,
            started_at: log.run().cursor.position,
            fruitless: 0,
            log,
        }
    }

    /// What was begun before anybody watched.
    fn show_present(&mut self) {
        let observed = observe(self.project, &self.log, Depth::Locks);
        let held = self.log.run().held();
        let alive = held.filter(|(_, held)| !matches!(observed.of(held.id), Sighting::Dead(_)));
        let alive: Vec<_> = alive.map(|(step, held)| (step, held.fence)).collect();
        for (step, fence) in alive {
            self.progress.hear(self.log.run(), Notice::Adopted { step, fence });
        }
    }

    fn until_the_end(mut self, mut watch: Watcher) -> Result<Answer, Problem> {
        let over = self.until_over(&mut watch);
        let Watching { ui, project, mut log, progress, .. } = self;
        progress.end();
        log.refresh()?;
        match over? {
            Over::Ended(Ended::Outcome(outcome)) => told(ui, project, &log, &outcome),
            Over::Ended(Ended::Problem(problem)) => {
                log.store().tidy();
                Err(Problem::from_json(&problem))
            }
            Over::Left(cause) => Ok(Answer::streamed().exiting(interrupted(cause).exit())),
            Over::Paused => paused(ui, project, &log),
        }
    }

    fn until_over(&mut self, watch: &mut Watcher) -> Result<Over, Problem> {
        loop {
            let mut ended = None;
            for seen in watch.look(self.project, &mut self.log)? {
                match (seen, self.manner) {
                    (Seen::Event(event), _) => self.progress.event(self.log.run(), &event),
                    (Seen::Notice(notice), _) => self.progress.hear(self.log.run(), notice),
                    (Seen::ByHand(changes), _) => by_hand::tell(self.ui, self.log.run(), &changes),
                    (Seen::Ended(end), _) => ended = Some(end),
                    (Seen::WorkerGone, Manner::Drives) => self.start_again()?,
                    (Seen::Signal(cause), Manner::Drives) => self.signal(cause)?,
                    (Seen::Signal(cause), Manner::LooksOn) => return Ok(Over::Left(cause)),
                    (Seen::WorkerGone, Manner::LooksOn) if !self.is_alive() => {
                        return Ok(Over::Paused);
                    }
                    (Seen::WorkerGone, Manner::LooksOn) => {}
                }
            }
            if self.stopping.is_none() {
                let asked = self.prompt.ask_open(self.project, &mut self.log, watch)?;
                match (asked, self.manner) {
                    (Asked::Done, _) => {}
                    (Asked::Signal(cause), Manner::Drives) => self.signal(cause)?,
                    (Asked::Signal(cause), Manner::LooksOn) => return Ok(Over::Left(cause)),
                }
            }
            match (ended, self.manner) {
                (None, _) => {}
                // Answered meanwhile: there is something to do again.
                (Some(Ended::Outcome(Outcome::Waiting)), Manner::Drives) if !self.is_asking() => {
                    worker::start(self.project, &self.log)?;
                }
                (Some(ended), _) => {
                    self.ui.bell();
                    return Ok(Over::Ended(ended));
                }
            }
        }
    }

    fn is_asking(&self) -> bool {
        self.log.run().questions().any(|(_, question)| question.is_open())
    }

    /// Whether anybody is believed to work on it.
    fn is_alive(&self) -> bool {
        let observed = observe(self.project, &self.log, Depth::Locks);
        let mut held = self.log.run().held();
        held.any(|(_, attempt)| !matches!(observed.of(attempt.id), Sighting::Dead(_)))
    }

    /// A worker that died is replaced, but not for ever.
    fn start_again(&mut self) -> Result<(), Problem> {
        let position = self.log.run().cursor.position;
        self.fruitless = if position == self.started_at { self.fruitless + 1 } else { 1 };
        self.started_at = position;
        if self.fruitless > FRUITLESS_MAX {
            let opened = &self.log.run().opened;
            let message = format!("the worker of {} dies as soon as it is started", opened.handle);
            let says = self.project.worker_log(opened.run);
            let says = word(&from_here(&says).display().to_string());
            let hint = format!("what it says: `tail {says}`");
            return Err(Problem::new(Kind::SetupFailed, message).hint(hint));
        }
        self.ui.talk("the worker is gone; starting another");
        worker::start(self.project, &self.log)?;
        Ok(())
    }

    /// Ctrl-C and SIGTERM stop the run, a second one at once; a third only leaves. A closed terminal takes
    /// nobody along but this process.
    fn signal(&mut self, cause: Cause) -> Result<(), Problem> {
        let run = &self.log.run().opened.handle;
        let go_on = format!("`piton watch {run}` shows it, `piton stop {run}` stops it");
        if cause == Cause::HangUp {
            let message = format!("the terminal was closed; {run} goes on");
            return Err(Problem::new(interrupted(cause), message).hint(go_on));
        }
        let haste = match self.stopping {
            None => Haste::Graceful,
            Some((_, Haste::Graceful)) => Haste::Now,
            Some((cause, Haste::Now)) => {
                let message = format!("left {run} while its agents are being killed");
                return Err(Problem::new(interrupted(cause), message).hint(go_on));
            }
        };
        self.stopping = Some((cause, haste));
        let grace = runs::settings_of(&self.log)?.grace;
        self.progress.stopping(haste, grace);
        match runs::stop(&mut self.log, None, cause, haste) {
            // It is over, and so is what there was to stop.
            Ok(_) | Err(EngineError::Log(LogError::Refused(_))) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Nothing moves until somebody asks for it.
fn paused(ui: &Ui, project: &Project, log: &Log) -> Result<Answer, Problem> {
    let view = look(project, log, Depth::Refs)?;
    let next = next_commands(project, &view);
    let prefixes = runs::unique_prefixes(log.store())?;
    ui.lines(&run_page(&view, &prefixes, Extent::Full, now()))?;
    tell_next(ui, &next)?;
    Ok(Answer::new(json!({ "outcome": "paused", "run": view, "next": next })))
}

/// How a worker's time ended, for whoever watched it.
fn told(ui: &Ui, project: &Project, log: &Log, outcome: &Outcome) -> Result<Answer, Problem> {
    let view = look(project, log, Depth::Locks)?;
    let data =
        json!({ "outcome": word_for(outcome), "run": view, "next": next_commands(project, &view) });
    let remedy = match outcome {
        Outcome::NeedsPerson { step, .. } => obstacle_remedy(project, log, step)?,
        _ => None,
    };
    match problem(project, (outcome, remedy), &view) {
        Some(problem) => {
            log.store().tidy();
            Err(problem.with_data(data))
        }
        None => {
            // The work is done, whoever still listens.
            let _ = ui.line(match outcome {
                Outcome::OthersLeft => others_left(&view),
                _ => completed(project, &view),
            });
            Ok(Answer::new(data).after_writing(log.store()))
        }
    }
}

fn others_left(view: &RunView) -> String {
    let handle = &view.handle;
    let done = completed_of(view.completed, view.skipped, view.total);
    let name = bold(handle.as_str());
    format!("{name}: nothing is left to do of the steps you chose; {done}\n  piton resume {handle}")
}

fn completed(project: &Project, view: &RunView) -> String {
    let steps = steps_done(view);
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
        Outcome::OthersLeft => "others_left",
        Outcome::Failed { .. } => "failed",
        Outcome::NeedsPerson { .. } | Outcome::Waiting | Outcome::ToBeClaimed { .. } => "waiting",
        Outcome::Interrupted { .. } => "interrupted",
        Outcome::Stopped { .. } => "stopped",
        Outcome::Parked { .. } => "parked",
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
    let done = completed_of(view.completed, view.skipped, view.total);
    let answers = |asked: &QuestionView| {
        let commands = answer_commands(view, asked).into_iter();
        commands.map(|command| format!("`{command}`")).collect::<Vec<_>>().join(" or ")
    };
    let answers: Vec<String> = open_questions(view).map(answers).collect();
    let go_on = match answers.as_slice() {
        [] => format!("continue: `piton resume {run}`"),
        answers => format!("{}; then `piton resume {run}`", answers.join("; ")),
    };
    let asked = || -> Vec<Detail> {
        let lines = open_questions(view).flat_map(asked_lines);
        lines.map(Detail::of).collect()
    };
    Some(match outcome {
        Outcome::Completed | Outcome::OthersLeft => return None,
        Outcome::Failed { step, why } => {
            let message = format!("{run} failed: step {step} {}; {done}", plain(&why.to_string()));
            let others = view.steps.iter().filter(|other| other.step != *step);
            let others = others.filter_map(|other| match &other.status {
                StepStatus::Failed { why, .. } => {
                    Some(format!("step {} {}", other.step, plain(&why.to_string())))
                }
                _ => None,
            });
            let others = others.map(Detail::of);
            let details = others.chain(asked()).collect();
            let (look, over) = (see_why(view, step), start_over_shown(project, view));
            let hint = format!(
                "try it again: `piton retry {run} {step}`; see why: `{look}`; start over: `{over}`"
            );
            let hint = match answers.is_empty() {
                true => hint,
                false => format!("{hint}; what else waits for you: `piton questions {run}`"),
            };
            Problem::new(Kind::RunFailed, message).with_details(details).hint(hint)
        }
        Outcome::NeedsPerson { step, question } => {
            let message = format!("{run} needs you: {}", plain(question));
            let hint = remedy.unwrap_or_else(|| {
                format!("look at what it did: `piton log {run} {step}`; then `piton resume {run}`")
            });
            Problem::new(Kind::NeedsPerson, message).hint(hint)
        }
        Outcome::Waiting => {
            let message = format!("{run} waits for an answer; {done}");
            Problem::new(Kind::NeedsPerson, message).with_details(asked()).hint(go_on)
        }
        Outcome::Parked { account, until } => {
            let at = due(*until, now());
            let message = format!("{run} is parked: account {account} has met its limit; {done}");
            let hint = format!("it goes on {at}: `piton resume {run}` then, or now to wait for it");
            Problem::new(Kind::Parked, message).hint(hint)
        }
        Outcome::ToBeClaimed { steps } => {
            let names: Vec<String> = steps.iter().map(ToString::to_string).collect();
            let message = format!(
                "{run} waits until {} is claimed: there is nothing to start; {done}",
                names.join(", ")
            );
            let first = steps.first().map(ToString::to_string).unwrap_or_default();
            Problem::new(Kind::NeedsPerson, message).hint(format!(
                "`piton claim {run} --step {first} --worktree .`; once it is completed `piton resume \
                 {run}`"
            ))
        }
        Outcome::Interrupted { cause } | Outcome::Stopped { cause } => {
            let message = match cause {
                Cause::UserInterrupt => format!("Stopped {run}: {done}"),
                cause => format!("Stopped {run} ({cause}): {done}"),
            };
            Problem::new(interrupted(*cause), message).hint(go_on)
        }
    })
}
