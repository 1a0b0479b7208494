//! `piton log`: what an agent printed, or its keeper where there was no agent. On a terminal escape
//! sequences are left out; into a pipe or file it comes as it was kept.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use piton_core::ids::{AttemptId, StepRef};
use piton_core::observed::Sighting;
use piton_core::run::{Ending, Phase, Step};
use piton_engine::Access;
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, observe};
use piton_engine::run::plan_file;
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::text::{bold, plain};
use crate::ui::Ui;
use crate::verb::{self, Answer, step_of};

/// Show what a step's agent printed
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton log                           the step that is running, or ran last
  piton log auth-calm-otter jwt -f    follow one step until its attempt ends
  piton log auth-calm-otter jwt --attempt 1
  piton log auth-calm-otter jwt --verify

With --json and -f each piece is one JSON object on a line of its own.")]
pub(crate) struct Args {
    /// The run: its handle, id, the beginning of either, or its plan [default: the unfinished one]
    run: Option<String>,

    /// The step [default: the one that is running, or ran last]
    step: Option<String>,

    /// Follow until the attempt ends
    #[arg(short, long)]
    follow: bool,

    /// Which attempt, counted from 1 [default: the last one]
    #[arg(long, value_name = "N")]
    attempt: Option<usize>,

    /// What the verify command printed instead
    #[arg(long)]
    verify: bool,
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let mut log = verb::run_of(&project, Access::Look, args.run.as_deref())?;
    let (step, attempt) = chosen(args, &log)?;
    let folder = project.folder(attempt);
    let path = if args.verify { folder.verify_log() } else { folder.transcript() };
    if !args.follow {
        let notes = (!args.verify).then(|| folder.path().join("keeper.log"));
        return all(ui, &step, attempt, &Kept { path, notes, ended: ended(&log, attempt) });
    }
    ui.talk(format!(
        "following step {}; Ctrl-C ends following, not the step",
        bold(&step.to_string())
    ));
    let mut tail = Tail { path: &path, at: 0 };
    loop {
        // Asked before reading: what was printed before the end is printed here before the end.
        let alive = is_alive(&project, &mut log, attempt)?;
        tail.print(ui)?;
        if !alive {
            return Ok(Answer::streamed());
        }
        std::thread::sleep(LOOK_EVERY);
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
    let step = step.to_string();
    let data =
        json!({ "step": step, "attempt": attempt, "path": path, "text": text, "ended": ended });
    Ok(Answer::new(data))
}

/// A file's bytes; none where there is no file.
fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    match std::fs::read(path) {
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
        (Ending::Suspended, _) => Some("ended to wait for an answer".to_owned()),
        (Ending::Completed | Ending::Displaced | Ending::Released, _) => None,
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

fn is_alive(project: &Project, log: &mut Log, attempt: AttemptId) -> Result<bool, Problem> {
    log.refresh()?;
    if !log.run().held().any(|(_, held)| held.id == attempt) {
        return Ok(false);
    }
    let observed = observe(project, log, Depth::Locks);
    Ok(!matches!(observed.of(attempt), Sighting::Dead(_)))
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    Problem::new(Kind::Io, format!("{} cannot be read", path.display())).because(error)
}

/// A file that grows.
struct Tail<'a> {
    path: &'a Path,
    at: u64,
}

impl Tail<'_> {
    fn print(&mut self, ui: &Ui) -> Result<(), Problem> {
        let mut file = match File::open(self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(unreadable(self.path, &error)),
        };
        let failed = |error| unreadable(self.path, &error);
        file.seek(SeekFrom::Start(self.at)).map_err(failed)?;
        let mut piece = Vec::new();
        file.read_to_end(&mut piece).map_err(failed)?;
        if piece.is_empty() {
            return Ok(());
        }
        self.at += piece.len() as u64;
        match ui.is_json() {
            true => ui.data(&json!({ "text": String::from_utf8_lossy(&piece) }).to_string()),
            false => ui.foreign(&piece),
        }
    }
}
