//! `piton log`: what an agent printed, or its keeper where there was no agent. On a terminal escape
//! sequences are left out; into a pipe or file it comes as it was kept.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use piton_core::ids::{AttemptId, Fence, StepRef};
use piton_core::observed::Sighting;
use piton_core::run::{Attempt, Ending, Phase, Step};
use piton_engine::Access;
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, observe};
use piton_engine::run::plan_file;
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::text::{bold, dim, plain};
use crate::ui::Ui;
use crate::verb::{self, Answer, step_of};

/// Show what an agent or command printed
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton log                           the step that runs, or ran last
  piton log calm-otter -f             follow the run from step to step
  piton log calm-otter jwt -f         follow one step
  piton log calm-otter jwt --attempt 1
  piton log calm-otter jwt --verify

With --json and -f each piece is one JSON object on a line.")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,

    /// The step [default: the one that runs, or ran last]
    step: Option<String>,

    /// Follow until the step or the run ends
    #[arg(short, long)]
    follow: bool,

    /// Which attempt, counted from 1 [default: the last one]
    #[arg(long, value_name = "N")]
    attempt: Option<usize>,

    /// Show what the verify command printed
    #[arg(long)]
    verify: bool,
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let log = verb::run_of(&project, Access::Look, args.run.as_deref())?;
    if args.follow {
        let only = args.step.as_deref().map(|text| step_of(&log, text)).transpose()?;
        return Following { ui, project: &project, log, only, tails: Vec::new(), shown: None }
            .until_the_end(args);
    }
    let (step, attempt) = chosen(args, &log)?;
    let folder = project.folder(attempt);
    let path = if args.verify { folder.verify_log() } else { folder.transcript() };
    let notes = (!args.verify).then(|| folder.path().join("keeper.log"));
    all(ui, &step, attempt, &Kept { path, notes, ended: ended(&log, attempt) })
}

/// Following a run, or one step of it, from attempt to attempt.
struct Following<'a> {
    ui: &'a Ui,
    project: &'a Project,
    log: Log,
    only: Option<StepRef>,
    tails: Vec<Tail>,
    /// Whose output was printed last.
    shown: Option<AttemptId>,
}

impl Following<'_> {
    fn until_the_end(mut self, args: &Args) -> Result<Answer, Problem> {
        let what = match &self.only {
            Some(step) => format!("step {}", bold(&step.to_string())),
            None => bold(self.log.run().opened.handle.as_str()),
        };
        self.ui.talk(format!("following {what}; Ctrl-C ends following, nothing else"));
        loop {
            // Asked before reading: what was printed before the end is printed here before the end.
            self.log.refresh()?;
            let goes_on = self.goes_on();
            self.find_attempts(args.verify);
            for tail in &mut self.tails {
                tail.print(self.ui, &mut self.shown)?;
            }
            if !goes_on {
                return Ok(Answer::streamed());
            }
            self.log.wait(LOOK_EVERY)?;
        }
    }

    /// Whether anything more can be printed: somebody is at work, or a worker will see to it.
    fn goes_on(&self) -> bool {
        let run = self.log.run();
        let is_meant = |step: &StepRef| self.only.as_ref().is_none_or(|only| only == step);
        let observed = observe(self.project, &self.log, Depth::Locks);
        let is_alive = |attempt: &Attempt| !matches!(observed.of(attempt.id), Sighting::Dead(_));
        let mut held = run.held().filter(|(step, _)| is_meant(step));
        let is_open = |(_, state): (_, &Step)| !state.is_done();
        let open = self.only.as_ref().is_none_or(|only| run.step(only).is_some_and(is_open));
        held.any(|(_, attempt)| is_alive(attempt)) || (observed.worker && open)
    }

    /// Attempts that were begun meanwhile; at first those that are open, else the last one that ended.
    fn find_attempts(&mut self, verify: bool) {
        let first = self.tails.is_empty();
        let is_meant = |step: &StepRef| self.only.as_ref().is_none_or(|only| only == step);
        let mut found: Vec<(&Attempt, StepRef)> = Vec::new();
        for (step, _, state) in self.log.run().steps().filter(|(step, _, _)| is_meant(step)) {
            let past = state.history.iter().map(|past| &past.attempt).filter(|_| !first);
            found.extend(past.chain(state.attempt()).map(|attempt| (attempt, step.clone())));
        }
        if first && found.is_empty() {
            let ended = self.log.run().steps().filter(|(step, _, _)| is_meant(step));
            let ended = ended.filter_map(|(step, _, state)| Some((state.history.last()?, step)));
            let last = ended.max_by_key(|(past, _)| past.attempt.fence);
            found.extend(last.map(|(past, step)| (&past.attempt, step)));
        }
        found.sort_by_key(|(attempt, _)| attempt.fence);
        let newest = self.tails.last().map(|tail| tail.fence);
        for (attempt, step) in found {
            if newest.is_some_and(|newest| attempt.fence <= newest) {
                continue;
            }
            let folder = self.project.folder(attempt.id);
            let path = if verify { folder.verify_log() } else { folder.transcript() };
            self.tails.push(Tail { path, at: 0, step, attempt: attempt.id, fence: attempt.fence });
        }
    }
}

/// What there is to read of an attempt.
struct Kept {
    path: PathBuf,
    /// What its keeper said, read where nothing was printed.
    notes: Option<PathBuf>,
    /// How it ended, in words.
    ended: Option<String>,
}

fn all(ui: &Ui, step: &StepRef, attempt: AttemptId, kept: &Kept) -> Result<Answer, Problem> {
    let (mut path, mut bytes) = (&kept.path, read(&kept.path)?);
    if bytes.is_empty() {
        ui.talk(format!("step {step} has not printed anything here"));
        if let Some(ended) = &kept.ended {
            ui.talk(format!("it {}", plain(ended)));
        }
        if let Some(notes) = &kept.notes {
            (path, bytes) = (notes, read(notes)?);
            if !bytes.is_empty() {
                ui.talk("what its keeper said:");
            }
        }
    }
    if !ui.is_json() {
        ui.foreign(&bytes)?;
    }
    let text = String::from_utf8_lossy(&bytes);
    let ended = &kept.ended;
    let (step, path) = (step.to_string(), piton_engine::git::repo::names::text(path));
    let data =
        json!({ "step": step, "attempt": attempt, "path": path, "text": text, "ended": ended });
    Ok(Answer::new(data))
}

/// A file's bytes; none where there is no file.
fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    match piton_engine::git::file::read(path) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// How an attempt ended, if it did not end well.
fn ended(log: &Log, attempt: AttemptId) -> Option<String> {
    let of_attempt = |step: &&Step| step.history.iter().any(|past| past.attempt.id == attempt);
    let step = log.run().steps().map(|(_, _, step)| step).find(of_attempt)?;
    let past = step.history.iter().rfind(|past| past.attempt.id == attempt)?;
    let is_last = step.history.last().is_some_and(|last| last.attempt.id == attempt);
    match (&past.ending, &step.phase) {
        (Ending::Failed(why), _) => Some(format!("failed: {why}")),
        (Ending::Interrupted { .. }, Phase::Interrupted { last, .. }) if is_last => {
            Some(format!("was interrupted ({}): {}", last.cause, last.evidence))
        }
        (Ending::Interrupted { cause, .. }, _) => Some(format!("was interrupted ({cause})")),
        (Ending::Limited { .. }, _) => Some("ended at a limit of its account".to_owned()),
        (Ending::Suspended, _) => Some("ended to wait for an answer".to_owned()),
        (Ending::Completed | Ending::Found | Ending::Displaced | Ending::Released, _) => None,
    }
}

/// The step and attempt that are meant.
fn chosen(args: &Args, log: &Log) -> Result<(StepRef, AttemptId), Problem> {
    let step = match &args.step {
        Some(text) => step_of(log, text)?,
        None => newest_step(log).ok_or_else(|| nothing(log))?,
    };
    let (_, state) = log.run().step(&step).ok_or_else(|| nothing(log))?;
    let attempts = attempts(state);
    let index = args.attempt.unwrap_or(attempts.len()).wrapping_sub(1);
    match attempts.get(index) {
        Some(attempt) => Ok((step, *attempt)),
        None if attempts.is_empty() => {
            let handle = &log.run().opened.handle;
            Err(Problem::new(Kind::Refused, format!("step {step} has not been attempted yet"))
                .hint(format!("`piton show {handle} {step}` says what it waits for")))
        }
        None => {
            let (handle, last) = (&log.run().opened.handle, attempts.len());
            let message = format!("step {step} has attempts 1 to {last}");
            let hint = format!("the newest: `piton log {handle} {step} --attempt {last}`");
            Err(Problem::new(Kind::Usage, message).hint(hint))
        }
    }
}

fn attempts(state: &Step) -> Vec<AttemptId> {
    let past = state.history.iter().map(|past| past.attempt.id);
    past.chain(state.attempt().map(|attempt| attempt.id)).collect()
}

/// The step whose claim is the newest one.
fn newest_step(log: &Log) -> Option<StepRef> {
    let fence = |state: &Step| {
        let past = state.history.last().map(|past| past.attempt.fence);
        state.attempt().map(|attempt| attempt.fence).or(past)
    };
    let steps = log.run().steps().filter_map(|(step, _, state)| Some((fence(state)?, step)));
    steps.max_by_key(|(fence, _)| *fence).map(|(_, step)| step)
}

fn nothing(log: &Log) -> Problem {
    let handle = &log.run().opened.handle;
    Problem::new(Kind::Refused, format!("no step of {handle} has been attempted yet")).hint(
        match plan_file::check_rest_startable(log.run()) {
            Ok(()) => format!("`piton resume {handle}` starts it"),
            Err(_) => format!("`piton ready {handle}` says what can be claimed"),
        },
    )
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    Problem::new(Kind::Io, format!("{} cannot be read", path.display())).because(error)
}

/// What an attempt prints, as it grows.
struct Tail {
    path: PathBuf,
    at: u64,
    step: StepRef,
    attempt: AttemptId,
    fence: Fence,
}

impl Tail {
    fn print(&mut self, ui: &Ui, shown: &mut Option<AttemptId>) -> Result<(), Problem> {
        let mut file = match piton_engine::git::file::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(unreadable(&self.path, &error)),
        };
        let failed = |error| unreadable(&self.path, &error);
        file.seek(SeekFrom::Start(self.at)).map_err(failed)?;
        let mut piece = Vec::new();
        file.read_to_end(&mut piece).map_err(failed)?;
        if piece.is_empty() {
            return Ok(());
        }
        self.at += piece.len() as u64;
        if ui.is_json() {
            let text = String::from_utf8_lossy(&piece);
            let (step, attempt) = (self.step.to_string(), self.attempt);
            return ui.data(&json!({ "step": step, "attempt": attempt, "text": text }).to_string());
        }
        if *shown != Some(self.attempt) {
            ui.talk(dim(&format!("── step {}", self.step)));
            *shown = Some(self.attempt);
        }
        ui.foreign(&piece)
    }
}
