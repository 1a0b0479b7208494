//! `piton answer`: answers what a step has asked, from anywhere. The first answer stands.

use piton_core::event::Holder;
use piton_core::plan::Work;
use piton_core::question::{LAND_AGAIN, Question, STOP, WhichQuestion};
use piton_core::run::Run;
use piton_core::view::question_view;
use piton_engine::Access;
use piton_engine::git::shell::word;
use piton_engine::outside::questions;
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::observe::has_worker;
use piton_engine::run::runs;
use serde_json::{Value, json};

use crate::error::{Kind, Problem};
use crate::hints::{About, YOUR_WORDS};
use crate::target::{self, Inside};
use crate::text::plain;
use crate::ui::Ui;
use crate::verb::{self, Answer, step_of};

/// Answer a question
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton answer calm-otter q12 JWT          a question by its name
  piton answer calm-otter jwt 1            the step's open one: its first choice
  piton answer q12 'port 8080'             of the only run that asked it

Name a choice by its text or number; without choices any text is an answer. The
first answer stands: another one is refused (E077). A running worker continues
at once; otherwise `piton resume` does.")]
pub(crate) struct Args {
    /// The question, or the step that asked, and the answer, after the run
    #[arg(value_name = "[RUN] QUESTION|STEP ANSWER", required = true, num_args = 2..=3)]
    words: Vec<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let (run, asked, answer) = match args.words.as_slice() {
        [run, asked, answer] => (Some(run.as_str()), asked, answer),
        [asked, answer] => (None, asked, answer),
        _ => unreachable!("the parser asks for two or three words"),
    };
    if answer.trim() == YOUR_WORDS {
        let message = format!("{answer} stands for your answer, and is none");
        return Err(Problem::new(Kind::Usage, message).hint("write it between the quotes"));
    }
    let project = verb::project()?;
    let mut log = match asked_by(&project, run, asked)? {
        Some(log) => log,
        None => target::run_of(&project, Access::Existing, run)?,
    };
    // A step may be called `q12` too; a question of that name comes first.
    let is_asked = |question| log.run().questions().any(|(_, known)| known.id == question);
    let which = match asked.parse() {
        Ok(question) if is_asked(question) || step_of(&log, asked).is_err() => {
            WhichQuestion::Id(question)
        }
        _ => WhichQuestion::Of(step_of(&log, asked)?),
    };
    let answered = questions::answer(&project, &mut log, which, answer.clone());
    let (step, answered) = answered.map_err(|error| About::run(&project, &log).problem(error))?;
    let handle = &log.run().opened.handle;
    let given = answered.answer().unwrap_or_default();
    let _ = ui.line(format!("step {step}: {} is answered: {}", answered.id, plain(given)));
    let (plan, state) = log.run().step(&step).expect("it has asked");
    if state.attempt().is_none() && answered.is_unread() {
        ui.hint(match plan.work {
            Work::ByHand | Work::Told(_) => {
                format!("`piton claim {handle} --step {step} --worktree .` goes on")
            }
            _ if has_worker(&project, log.run().opened.run) => {
                "its worker goes on with it".to_owned()
            }
            _ => format!("no worker is running; go on: `piton resume {handle}`"),
        });
    } else if given == STOP && !answered.is_unread() && answered.about.is_some() {
        ui.hint(format!("the run is stopped; `piton resume {handle}` asks again"));
    }
    let outside = state.attempt().map(|held| &held.holder);
    if let (Some(Holder::External { worktree, .. }), true) = (outside, answered.is_unread()) {
        let worktree = word(worktree);
        ui.hint(match answered.about.is_some() && given == LAND_AGAIN {
            true => format!(
                "its holder lands it: `piton complete {handle} {step} --worktree {worktree} --commit \
                 \"$(git rev-parse HEAD)\"`"
            ),
            false => {
                format!("its holder reads it: `piton ask {handle} {step} --worktree {worktree} --read`")
            }
        });
    }
    let mut data =
        json!({ "run": log.run().opened.run, "handle": handle, "step": step.to_string() });
    let more = verb::json(question_view(&answered));
    if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
        data.extend(more);
    }
    Ok(Answer::new(data).after_writing(log.store()))
}

/// Where no run is named: the one that has asked this, or of several the one that still waits for it.
fn asked_by(project: &Project, named: Option<&str>, asked: &str) -> Result<Option<Log>, Problem> {
    if named.is_some() || Inside::of_process().run.is_some() || !project.has_store() {
        return Ok(None);
    }
    let store = project.store(Access::Existing)?;
    let has = |run: &Run, is_meant: fn(&Question) -> bool| {
        let mut questions = run.questions().filter(|(_, question)| is_meant(question));
        questions.any(|(step, known)| known.id.to_string() == asked || step.to_string() == asked)
    };
    match runs::find_that(project, &store, |run| has(run, |_| true))? {
        Some(log) => Ok(Some(log)),
        None => Ok(runs::find_that(project, &store, |run| has(run, Question::is_open))?),
    }
}
