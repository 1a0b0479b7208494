//! `piton events`: a run's log, one line an event.

use std::time::Duration;

use piton_core::event::{
    BadEvent, CheckoutChanges, Event, Fact, FoundState, Grounds, Holder, Interruption,
    LandingIntent, Limited, Mark, ReleasedBy, Scope, Truth,
};
use piton_core::record::{Cursor, Record};
use piton_core::time::timestamp;
use piton_engine::Access;
use piton_engine::run::log::Log;
use serde_json::{Value, json};

use crate::error::{Kind, Problem};
use crate::text::plain;
use crate::ui::Ui;
use crate::verb::{self, Answer, json as to_json};

/// Show the event log of a run
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton events calm-otter
  piton events calm-otter -f                 follow until the run ends
  piton events calm-otter -f --json          one JSON object a line")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,

    /// Follow until the run ends
    #[arg(short, long)]
    follow: bool,
}

const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let mut log = verb::run_of(&project, Access::Look, args.run.as_deref())?;
    let id = log.run().opened.run;
    let mut cursor = Cursor::START;
    let mut rows: Vec<Value> = Vec::new();
    loop {
        let over = is_over(&log);
        for record in log.store().read(id, cursor)? {
            cursor = record.cursor();
            let event = Event::from_body(&record.body).map_err(|bad| unreadable(&record, &bad))?;
            match (ui.is_json(), args.follow) {
                (true, true) => ui.data(&row(&record, &event).to_string())?,
                (true, false) => rows.push(row(&record, &event)),
                (false, _) => ui.data(&line(&record, &event))?,
            }
        }
        if !args.follow {
            let data = json!({ "run": id, "handle": log.run().opened.handle, "events": rows });
            return Ok(Answer::new(data));
        }
        if over {
            return Ok(Answer::streamed());
        }
        log.store().changed(id, cursor.position, LOOK_EVERY)?;
        log.refresh()?;
    }
}

fn is_over(log: &Log) -> bool {
    log.run().is_completed() || log.run().failed().is_some()
}

fn unreadable(record: &Record, bad: &BadEvent) -> Problem {
    Problem::from_error(Kind::StoreCorrupt, bad).hinted(Some(format!(
        "record {} is the first bad one; `piton doctor` checks the rest",
        record.position
    )))
}

/// As `--json` has it: the recorded body, with where and when.
fn row(record: &Record, event: &Event) -> Value {
    let mut row = json!({ "position": record.position, "at": timestamp(record.at) });
    if let (Value::Object(row), Value::Object(body)) = (&mut row, event.to_json()) {
        row.extend(body);
    }
    row
}

fn line(record: &Record, event: &Event) -> String {
    let name = match event {
        Event::Under(_, Fact::Verified { truth: Truth::Claimed, .. }) => "unverified".to_owned(),
        _ => event.name(),
    };
    let step = event.step().map(ToString::to_string).unwrap_or_default();
    let line = format!("{:>5}  {}  {name:<17} {step:<12} ", record.position, timestamp(record.at));
    plain(format!("{line} {}", detail(event)).trim_end())
}

fn joined<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn detail(event: &Event) -> String {
    match event {
        Event::PlanAccepted { plan, .. } => plan.short(),
        Event::MergeIntended(intent) => format!("into {}, {}", intent.into, intent.to.short()),
        Event::Merged { into, commit, .. } => format!("into {into}, {}", commit.short()),
        Event::Found(found) => match &found.state {
            FoundState::Pending => "begun, by the plan file".to_owned(),
            FoundState::InProgress => "in progress, by the plan file".to_owned(),
            FoundState::Completed { .. } => "completed, by the plan file".to_owned(),
            FoundState::Failed { reason } => format!("failed, by the plan file: {reason}"),
            FoundState::Skipped { reason } => format!("skipped, by the plan file: {reason}"),
        },
        Event::RunOpened(opened) => format!("{} from {}", opened.handle, opened.base.short()),
        Event::Claimed(claimed) => {
            let entry = to_json(claimed.entry);
            let entry = entry.as_str().unwrap_or_default();
            let by = match &claimed.holder {
                Holder::Keeper { .. } => format!("attempt {} ({entry})", claimed.attempt),
                Holder::External { worktree, .. } => format!("from {worktree}"),
            };
            let taken = match claimed.grounds {
                Grounds::Free => "",
                Grounds::LeaseOver => ", after the lease of another claim",
                Grounds::SameOwner => ", again",
                Grounds::Forced => ", by force",
            };
            format!("{by}{taken}")
        }
        Event::Under(_, Fact::Started { base: Some(base), .. }) => format!("from {}", base.short()),
        Event::Under(_, Fact::Started { base: None, .. }) => String::new(),
        Event::Under(_, Fact::Checkpointed { snapshot, report, .. }) => {
            let kept = snapshot
                .as_ref()
                .map(|kept| format!("{} ({} changed)", kept.commit.short(), kept.changed));
            let said = report.iter().flat_map(|report| crate::describe::reported(report));
            kept.into_iter().chain(said).collect::<Vec<_>>().join("; ")
        }
        Event::Under(_, Fact::SubstepCompleted { substep, .. }) => substep.to_string(),
        Event::Under(_, Fact::ItemAdded { text, priority, .. }) => {
            format!("{text} ({})", crate::describe::priority_word(*priority))
        }
        Event::Under(_, Fact::CheckoutChanged(CheckoutChanges { files, more, .. })) => {
            crate::describe::changed_meanwhile(files, *more)
        }
        Event::Under(_, Fact::Unkept { why }) => why.clone(),
        Event::Under(_, Fact::Conversed(with)) => crate::describe::conversation(with),
        Event::Under(_, Fact::ItemsMarked { items, mark, .. }) => {
            let items = joined(items);
            match mark {
                Mark::Done => format!("{items} done"),
                Mark::Deferred { reason } => format!("{items} deferred: {reason}"),
            }
        }
        Event::Under(_, Fact::OutputSet { name, value }) => format!("{name} = {value}"),
        Event::Under(_, Fact::OutputAwaited { output, .. }) => output.to_string(),
        Event::Under(_, Fact::Asked { text, .. }) => {
            text.lines().next().unwrap_or_default().to_owned()
        }
        Event::Answered { question, answer, .. } => format!("{question}: {answer}"),
        Event::Under(_, Fact::AnswersApplied { questions, .. }) => joined(questions),
        Event::Under(_, Fact::Suspended { .. }) => String::new(),
        Event::Under(_, Fact::Limited(Limited { account, until, text, .. })) => {
            let until = until.map(|until| format!(" until {}", piton_core::time::timestamp(until)));
            let first = text.lines().next().unwrap_or_default();
            format!("account {account}{}: {first}", until.unwrap_or_default())
        }
        Event::Under(_, Fact::LimitLifted { account }) => format!("account {account}"),
        Event::Under(_, Fact::Released { by, .. }) => match by {
            ReleasedBy::Owner => "by its owner".to_owned(),
            ReleasedBy::Force => "by force".to_owned(),
        },
        Event::Reset { reason, .. } => reason.clone().unwrap_or_default(),
        Event::Skipped { reason, .. } => reason.clone(),
        Event::Under(_, Fact::Verified { commit, truth, omitted, .. }) => {
            let verified = format!("{} ({})", commit.short(), crate::describe::truth(*truth));
            let without =
                omitted.iter().map(|path| format!("without {}", crate::describe::omission(path)));
            std::iter::once(verified).chain(without).collect::<Vec<_>>().join(", ")
        }
        Event::Under(_, Fact::FoundDone { check: Some(check) }) => {
            format!("`{}` passed", check.command)
        }
        Event::Under(_, Fact::FoundDone { check: None }) => "its plan is there".to_owned(),
        Event::Under(_, Fact::LandingIntended(LandingIntent { onto, to, .. })) => {
            format!("{} → {}", onto.short(), to.short())
        }
        Event::Under(_, Fact::Completed { commit, waived, .. }) => {
            let commit = commit.as_ref().map(|commit| commit.short().to_owned());
            let waived = waived.as_ref().map(|waived| format!("in spite of: {}", waived.reason));
            commit.into_iter().chain(waived).collect::<Vec<_>>().join(", ")
        }
        Event::Under(_, Fact::Failed { why, .. }) => why.to_string(),
        Event::Under(_, Fact::Interrupted(Interruption { cause, evidence, .. })) => {
            format!("{cause}: {}", evidence.lines().last().unwrap_or_default())
        }
        Event::StopRequested { scope, cause, haste } => {
            let haste = to_json(haste);
            let what = match scope {
                Scope::Run => "the run",
                Scope::Attempt(_) => "its attempt",
            };
            format!("{what}, {} ({cause})", haste.as_str().unwrap_or_default())
        }
        Event::Resumed { confirmed, terms, .. } => {
            let steps: Vec<String> = terms.steps.iter().map(ToString::to_string).collect();
            let asked = [
                (!steps.is_empty()).then(|| format!("--steps {}", steps.join(","))),
                terms.jobs.map(|jobs| format!("--jobs {jobs}")),
                terms.restart.then(|| "--restart".to_owned()),
                terms.threshold.map(|percent| format!("--threshold {percent}")),
                confirmed.then(|| "--yes".to_owned()),
                terms.no_wait.then(|| "--no-wait".to_owned()),
            ];
            asked.into_iter().flatten().collect::<Vec<_>>().join(" ")
        }
        Event::Abandoned { keep_until: Some(until), .. } => {
            format!("in the attic until {}", piton_core::time::timestamp(*until))
        }
        Event::Retried { .. } | Event::Abandoned { .. } | Event::Reopened { .. } => String::new(),
    }
}
