//! `piton output`: small named data that a step publishes for others. Setting is under a claim; reading and
//! waiting are looks at the log.

use std::io::{self, IsTerminal as _, Read as _};
use std::time::Duration;

use piton_core::event::Under;
use piton_core::ids::OutputName;
use piton_core::limits::OUTPUT_BYTES_MAX;
use piton_core::output::OutputRef;
use piton_engine::Access;
use piton_engine::config;
use piton_engine::outside::outputs;
use piton_engine::outside::waiting::Waited;
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use serde_json::{Value, json};

use crate::error::{Kind, Problem};
use crate::hints::About;
use crate::target::{ByClaim, Inside, Target, Which, is_step_known, run_of};
use crate::text::count;
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Publish data for other steps, or read it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: OutputVerb,
}

#[derive(Debug, clap::Subcommand)]
enum OutputVerb {
    /// Publish JSON from standard input
    #[command(after_help = "\
Examples:
  echo 0.9 | piton output set score                       inside an attempt
  piton output set calm-otter jwt interface --fence 7 < interface.json

At most 1 MiB. What was set last counts. Steps that need it can start, also
before this one is done; it stays if the attempt is cut off.")]
    Set(Set),
    /// Print the JSON of an output
    #[command(after_help = "\
Examples:
  piton output get interface                              inside an attempt
  piton output get calm-otter jwt:interface

Without a step: of the last step in plan order that has it. Status 75 means
that it is not published yet.")]
    Get(Get),
    /// Wait for an output, then print its JSON
    #[command(after_help = "\
Examples:
  piton output wait jwt:interface --timeout 10m

Safe to repeat after a crash: `piton status` shows since when an attempt waits.
Status 75 means that the time is over.")]
    Wait(Wait),
}

#[derive(Debug, clap::Args)]
struct Set {
    /// The output, after the run and the step [default: PITON_RUN, PITON_STEP]
    #[arg(value_name = "[PLAN|RUN STEP] NAME", required = true, num_args = 1..=3)]
    words: Vec<String>,

    #[command(flatten)]
    by: ByClaim,
}

#[derive(Debug, clap::Args)]
struct Get {
    /// The output, after the run [default: PITON_RUN, or the unfinished one]
    #[arg(value_name = "[PLAN|RUN] [STEP:]NAME", required = true, num_args = 1..=2)]
    words: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct Wait {
    /// The output, after the run [default: PITON_RUN, or the unfinished one]
    #[arg(value_name = "[PLAN|RUN] [STEP:]NAME", required = true, num_args = 1..=2)]
    words: Vec<String>,

    /// Wait at most this long
    #[arg(long, value_name = "DURATION", value_parser = patience)]
    timeout: Option<Duration>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    match &args.verb {
        OutputVerb::Set(args) => set(args, ui),
        OutputVerb::Get(args) => {
            let (run, output) = named(&args.words)?;
            let project = verb::project()?;
            let log = run_of(&project, Access::Look, run)?;
            tell(ui, &log, &output)
        }
        OutputVerb::Wait(args) => wait(args, ui),
    }
}

fn set(args: &Set, ui: &Ui) -> Result<Answer, Problem> {
    let (mut target, name) = Target::behind(&args.words, &args.by, "output")?;
    let name = OutputName::new(name).map_err(|bad| Problem::new(Kind::Usage, bad.to_string()))?;
    let json = from_stdin()?;
    let fence = target.fence()?;
    let bytes = json.trim().len();
    target.write(fence, |_, log, under| outputs::set(log, under, name.clone(), json))?;
    let size = count(bytes as u64, "byte");
    let _ = ui.line(format!("step {}: published {name}, {size}", target.step));
    let data = target.answer(json!({ "fence": fence, "output": name, "bytes": bytes }));
    Ok(Answer::new(data).after_writing(target.log.store()))
}

fn from_stdin() -> Result<String, Problem> {
    let wrong = |message: &str| {
        Problem::new(Kind::Usage, message).hint("`piton output set NAME < FILE`, with JSON in FILE")
    };
    if io::stdin().is_terminal() {
        return Err(wrong("the JSON comes on standard input"));
    }
    let mut text = String::new();
    // One byte more than may be, so that too much is seen.
    let read = io::stdin().lock().take(OUTPUT_BYTES_MAX as u64 + 1024).read_to_string(&mut text);
    read.map_err(|error| wrong("standard input cannot be read").because(error))?;
    Ok(text)
}

fn wait(args: &Wait, ui: &Ui) -> Result<Answer, Problem> {
    let (run, output) = named(&args.words)?;
    let (project, mut log, under) = waiter(run)?;
    let under = under.as_ref();
    let waited = outputs::wait(&project, &mut log, (&output, under), args.timeout);
    let waited = waited.map_err(|error| About::run(&project, &log).problem(error))?;
    match waited {
        Waited::Met => tell(ui, &log, &output),
        Waited::InVain => Err(unpublished(&log, &output)),
        Waited::StopRequested => {
            Err(unpublished(&log, &output).because("a stop of the step was requested"))
        }
    }
}

/// Inside an attempt, or where a step was claimed, it is that claim which waits.
fn waiter(run: Option<&str>) -> Result<(Project, Log, Option<Under>), Problem> {
    let inside = Inside::of_process().run;
    if (run.is_none() || run == inside.as_deref()) && is_step_known()? {
        let target = Target::claimed(&Which { run: None, step: None }, &ByClaim::default())?;
        let under = target.named()?.map(|fence| target.under(fence));
        return Ok((target.project, target.log, under));
    }
    let project = verb::project()?;
    let log = run_of(&project, Access::Look, run)?;
    Ok((project, log, None))
}

/// The words of a run and an output.
fn named(words: &[String]) -> Result<(Option<&str>, OutputRef), Problem> {
    let (run, name) = match words {
        [run, name] => (Some(run.as_str()), name),
        words => (None, &words[0]),
    };
    let output = name.parse().map_err(|bad: piton_core::ids::BadName| {
        Problem::new(Kind::Usage, bad.to_string()).hint("NAME, or STEP:NAME of one step")
    })?;
    Ok((run, output))
}

fn tell(ui: &Ui, log: &Log, output: &OutputRef) -> Result<Answer, Problem> {
    if let Some(step) = output.of.as_ref().filter(|step| log.run().index_of(step).is_none()) {
        return Err(verb::step_of(log, &step.to_string())
            .map_or_else(|problem| problem, |_| unpublished(log, output)));
    }
    let Some((step, published)) = log.run().output(output) else {
        return Err(unpublished(log, output));
    };
    let text =
        outputs::text(log, &published.value).map_err(piton_engine::error::EngineError::from)?;
    ui.exact(shown(&text))?;
    let opened = &log.run().opened;
    let data = json!({
        "run": opened.run,
        "handle": opened.handle,
        "step": step.to_string(),
        "output": output.name,
        "value": serde_json::from_str::<Value>(&text).unwrap_or_default(),
        "fence": published.fence,
    });
    Ok(Answer::new(data))
}

fn unpublished(log: &Log, output: &OutputRef) -> Problem {
    let run = &log.run().opened.handle;
    let message = format!("output {output} is not published yet");
    Problem::new(Kind::NotPublished, message)
        .hint(format!("`piton output wait {run} {output}` waits for it"))
}

/// JSON that cannot steer a terminal, and means the same.
fn shown(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' | '\r' | '\t' => text.push(c),
            c if c.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

fn patience(text: &str) -> Result<Duration, String> {
    config::PATIENCE.read(text)
}
