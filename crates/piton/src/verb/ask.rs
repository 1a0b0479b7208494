//! `piton ask`: a holder asks a person. The question is durable; its answer is read here while the
//! holder works, or told to the next attempt when it has ended.

use std::time::Duration;

use piton_core::ids::Fence;
use piton_core::question::Question;
use piton_core::view::question_view;
use piton_engine::config;
use piton_engine::outside::questions;
use piton_engine::outside::waiting::Waited;
use serde_json::{Value, json};

use crate::describe::question_lines;
use crate::error::{Kind, Problem};
use crate::hints;
use crate::target::{ByClaim, Target, Which};
use crate::text::plain;
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Ask a person, and read the answer
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton ask 'JWT or opaque?' --choice JWT --choice opaque      inside an attempt
  answer=$(piton ask 'Which port?' --wait)            wait for the answer
  piton ask calm-otter jwt 'Which port?' --fence 7 --wait=10m
  piton ask --read                                    answers since then

Until it is answered the step cannot be claimed. An attempt that ends meanwhile
has not failed: the next one gets the answer. The same question again reads its
answer. With --wait only the answer is printed; status 4 means none yet.")]
pub(crate) struct Args {
    /// The question, after the run and the step [default: PITON_RUN, PITON_STEP]
    #[arg(value_name = "[PLAN|RUN STEP] TEXT", num_args = 0..=3)]
    words: Vec<String>,

    #[command(flatten)]
    by: ByClaim,

    /// An answer to choose from; repeatable
    #[arg(long, value_name = "TEXT", conflicts_with = "read", allow_hyphen_values = true)]
    choice: Vec<String>,

    /// Wait for the answer, at most this long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true,
          value_parser = patience)]
    wait: Option<Option<Duration>>,

    /// Ask nothing; read the answers
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
            .hint("`piton ask --help` shows how; `piton ask --read` reads what was answered"));
    }
    let (mut target, text) = Target::behind(&args.words, &args.by, "question")?;
    let fence = target.fence()?;
    let under = target.under(fence);
    let question = questions::ask(&mut target.log, &under, &text, &args.choice);
    let question = question.map_err(|error| target.told(error))?;
    let waited = wait(args, &mut target, fence)?;
    let all = answers(&mut target, fence)?;
    let asked = all.iter().find(|asked| asked.id == question).expect("it was just asked");
    let data = target.answer(json!({ "fence": fence, "answered": asked.answer().is_some() }));
    let data = with(data, verb::json(question_view(asked)));
    if waited.is_some_and(|waited| waited != Waited::Met) {
        return Err(in_vain(&target, asked, waited).with_data(data));
    }
    match asked.answer() {
        Some(answer) => ui.exact(plain(answer))?,
        None => {
            let _ = ui.line(format!("step {}: asked {question}", target.step));
            ui.hint(how_to_answer(&target, asked));
        }
    }
    Ok(Answer::new(data).after_writing(target.log.store()))
}

fn read(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let which = Which { run: args.words.first().cloned(), step: args.words.get(1).cloned() };
    let mut target = Target::claimed(&which, &args.by)?;
    let fence = target.fence()?;
    let waited = wait(args, &mut target, fence)?;
    let all = answers(&mut target, fence)?;
    let open = all.iter().find(|asked| asked.is_open());
    let rows: Vec<Value> = all.iter().map(|asked| verb::json(question_view(asked))).collect();
    let answered = open.is_none();
    let data = target.answer(json!({ "fence": fence, "answered": answered, "questions": rows }));
    if let (Some(open), Some(_)) = (open, waited) {
        return Err(in_vain(&target, open, waited).with_data(data));
    }
    for line in all.iter().flat_map(|question| question_lines(&question_view(question))) {
        ui.line(line)?;
    }
    if all.is_empty() {
        ui.line(format!("step {} has asked nothing", target.step))?;
    }
    Ok(Answer::new(data).after_writing(target.log.store()))
}

fn answers(target: &mut Target, fence: Fence) -> Result<Vec<Question>, Problem> {
    let under = target.under(fence);
    let read = questions::read(&mut target.log, &under);
    read.map_err(|error| target.told(error))
}

fn wait(args: &Args, target: &mut Target, fence: Fence) -> Result<Option<Waited>, Problem> {
    let Some(patience) = args.wait else { return Ok(None) };
    let under = target.under(fence);
    let waited = questions::wait(&target.project, &mut target.log, &under, patience);
    waited.map(Some).map_err(|error| target.told(error))
}

/// Whoever waits for an answer and gets none must not take what is printed for one.
fn in_vain(target: &Target, asked: &Question, waited: Option<Waited>) -> Problem {
    target.log.store().tidy();
    let message = format!("{} has no answer yet", asked.id);
    let message = match waited {
        Some(Waited::StopRequested) => format!("{message}, and a stop was requested"),
        _ => message,
    };
    Problem::new(Kind::NoAnswerYet, message).hint(how_to_answer(target, asked))
}

fn how_to_answer(target: &Target, asked: &Question) -> String {
    let commands =
        hints::answers(target.log.run().opened.handle.as_str(), asked.id, &asked.choices);
    let commands: Vec<String> = commands.iter().map(|command| format!("`{command}`")).collect();
    format!("{} answers it", commands.join(" or "))
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
