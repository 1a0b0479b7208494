//! `piton worker`, hidden: the process that works on a run, in a session of its own. What it has to say goes
//! to whoever watches, as lines of the worker's log: its standard output.

use std::io;

use piton_core::ids::{Position, RunId};
use piton_engine::Access;
use piton_engine::config::{self, Flags, Layers};
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::worker::{self, Ended, Notes, WorkOptions};

use crate::error::Problem;
use crate::exit::ExitStatus;
use crate::hints::About;
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Work on a run (started by `run` and `resume`)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    run: RunId,
}

pub(crate) fn run(args: &Args, _ui: &Ui) -> Result<Answer, Problem> {
    let _held_to_the_end = worker::take_over()?;
    let notes = Notes::new(io::stdout());
    // Without a log, the end is about whatever is watched.
    let mut at = Position(u64::MAX);
    let ended = opened(args).and_then(|(project, mut log)| {
        let options = WorkOptions { notify: notify(&project) };
        let worked = worker::work(&project, &mut log, options, &notes);
        at = log.run().cursor.position;
        log.store().tidy();
        worked.map_err(|error| About::run(&project, &log).problem(error))
    });
    let exit = ended.as_ref().map_or_else(|problem| problem.kind.exit(), |_| ExitStatus::Ok);
    notes.end(at, ended.map_or_else(|problem| Ended::Problem(problem.to_json()), Ended::Outcome));
    Ok(Answer::streamed().exiting(exit))
}

/// A configuration that cannot be read is told by whoever starts a run.
fn notify(project: &Project) -> Option<String> {
    let layers = Layers::of_process(Some(project.git.main_root()));
    config::load(&layers, &Flags::default()).ok()?.notify
}

fn opened(args: &Args) -> Result<(Project, Log), Problem> {
    let project = verb::project()?;
    let log = verb::run_of(&project, Access::Existing, Some(&args.run.to_string()))?;
    Ok((project, log))
}
