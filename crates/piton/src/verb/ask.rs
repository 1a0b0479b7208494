//! `piton ask`: a holder asks a person. The question is durable; its answer is read here while the
//! holder works, or told to the next attempt when it has ended.

use std::time::Duration;

use piton_core::ids::QuestionId;
use piton_core::question::Question;
use piton_core::view::question_view;
use piton_engine::config;
use piton_engine::questions::{self, Waited};
use serde_json::{Value, json};

use crate::claiming::{ByClaim, Target, Which, before_last};
use crate::describe::question_lines;
use crate::error::{Kind, Problem};
use crate::exit::Exit;
use crate::text::plain;
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Ask a person, and read the answer
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton ask 'JWT or opaque tokens?' --choice JWT --choice opaque    inside an attempt, then end
  answer=$(piton ask 'Which port?' --wait)                          go on when it is answered
  piton ask auth-calm-otter jwt 'Which port?' --fence 7 --wait=10m
  piton ask --read                                                  what was answered meanwhile

Until it is answered nobody can claim the step. An attempt that ends meanwhile has not failed:
it waits, and the next one is told the answer. Asking the same again asks nothing new; it reads
the answer. With --wait the answer is all that is printed; status 4 says that there is none yet.")]
pub(crate) struct Args {
    /// The question; in front of it the run and the step, unless PITON_RUN and PITON_STEP say them
    #[arg(value_name = "[PLAN|RUN STEP] TEXT", num_args = 0..=3)]
    words: Vec<String>,

    #[command(flatten)]
    by: ByClaim,

    /// One of the only answers there are; repeatable
    #[arg(long, value_name = "TEXT", conflicts_with = "read")]
    choice: Vec<String>,

    /// Wait until it is answered, at most that long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true,
          value_parser = patience)]
    wait: Option<Option<Duration>>,

    /// Ask nothing: read the answers to what the step has asked
    #[arg(long)]
    read: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    match args.read {
        true => read(args, ui),
        false => ask(args, ui),
    }
}

fn ask(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    if args.words.is_empty() {
        return Err(Problem::new(Kind::Usage, "what is the question?")
            .hint("piton ask TEXT; `piton ask --read` reads the answers to what was asked"));
    }
    let (which, text) = before_last(&args.words);
    let mut target = Target::find(&which)?;
    let fence = target.fence(&args.by)?;
    let Target { log, step, .. } = &mut target;
    let question = questions::ask(log, step, fence, &text, &args.choice)?;
    let waited = wait(args, &mut target, fence)?;
    let Target { log, step, .. } = &mut target;
    let all = questions::read(log, step, fence)?;
    let asked = all.iter().find(|asked| asked.id == question).expect("it was just asked");
    match asked.answer() {
        Some(answer) => ui.line(plain(answer))?,
        None => {
            let _ = ui.line(format!("step {step}: asked {question}"));
            ui.hint(unanswered(&target, question, waited));
        }
    }
    let data = target.answer(json!({ "fence": fence, "answered": asked.answer().is_some() }));
    Ok(told(with(data, verb::json(question_view(asked))), waited, &target))
}

fn read(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let which = Which { run: args.words.first().cloned(), step: args.words.get(1).cloned() };
    let mut target = Target::find(&which)?;
    let fence = target.fence(&args.by)?;
    let waited = wait(args, &mut target, fence)?;
    let Target { log, step, .. } = &mut target;
    let all = questions::read(log, step, fence)?;
    for line in all.iter().flat_map(|question| question_lines(&question_view(question))) {
        ui.line(line)?;
    }
    if all.is_empty() {
        ui.line(format!("step {step} has asked nothing"))?;
    }
    let open = all.iter().any(Question::is_open);
    let rows: Vec<Value> = all.iter().map(|asked| verb::json(question_view(asked))).collect();
    let data = target.answer(json!({ "fence": fence, "answered": !open, "questions": rows }));
    Ok(told(data, waited, &target))
}

fn wait(
    args: &Args,
    target: &mut Target,
    fence: piton_core::ids::Fence,
) -> Result<Option<Waited>, Problem> {
    let Some(patience) = args.wait else { return Ok(None) };
    Ok(Some(questions::wait(&mut target.log, &target.step, fence, patience)?))
}

fn told(data: Value, waited: Option<Waited>, target: &Target) -> Answer {
    let exit = match waited {
        None | Some(Waited::Answered) => Exit::Ok,
        Some(Waited::InVain | Waited::StopRequested) => Exit::NeedsPerson,
    };
    Answer::new(data).exiting(exit).after_writing(target.log.store())
}

fn unanswered(target: &Target, question: QuestionId, waited: Option<Waited>) -> String {
    let handle = &target.log.run().opened.handle;
    let how = format!("`piton answer {handle} {question} ANSWER` answers it");
    match waited {
        Some(Waited::StopRequested) => format!("somebody asked for a stop; {how}"),
        _ => how,
    }
}

fn with(mut data: Value, more: Value) -> Value {
    if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
        data.extend(more);
    }
    data
}

fn patience(text: &str) -> Result<Duration, String> {
    config::PATIENCE.read(text)
}
