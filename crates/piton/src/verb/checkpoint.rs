//! `piton checkpoint`: keeps the worktree's bytes and what its holder reports. What is reported is
//! shown as reported; piton believes none of it.

use std::io::Read as _;

use piton_core::event::{Report, ReportedFile};
use piton_engine::git::shell::word;
use piton_engine::outside::claims;
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::target::{ByClaim, Target, Which, within};
use crate::text::{count, plain};
use crate::ui::Ui;
use crate::verb::Answer;

/// The most that `--data` may hold.
const DATA_BYTES_MAX: usize = 64 * 1024;
/// The most that another text of a report may hold.
const TEXT_BYTES_MAX: usize = 8 * 1024;

/// Keep a snapshot of your worktree, with a report
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton checkpoint --note 'parser done, tests next'      inside an attempt
  piton checkpoint calm-otter jwt --fence 7 --progress 40 --next refresh
  piton checkpoint calm-otter jwt --fence 7 --file src/auth.ts:120=open@0.6
  piton checkpoint calm-otter jwt --worktree . --data @state.json

Every part is optional; earlier reports stay. Bytes are kept if the worktree
belongs to this repository.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    by: ByClaim,

    /// How much is done, in percent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=100))]
    progress: Option<u8>,

    /// How sure you are, from 0 to 1
    #[arg(long, value_name = "X", value_parser = confidence)]
    confidence: Option<String>,

    /// What the next attempt should know
    #[arg(long, value_name = "TEXT", value_parser = text, allow_hyphen_values = true)]
    note: Option<String>,

    /// What you work on now
    #[arg(long, value_name = "TEXT", value_parser = text, allow_hyphen_values = true)]
    task: Option<String>,

    /// When you expect to be done
    #[arg(long, value_name = "TEXT", value_parser = text, allow_hyphen_values = true)]
    eta: Option<String>,

    /// The section that was done last
    #[arg(long, value_name = "SECTION", value_parser = text, allow_hyphen_values = true)]
    done: Option<String>,

    /// The section that comes next
    #[arg(long, value_name = "SECTION", value_parser = text, allow_hyphen_values = true)]
    next: Option<String>,

    /// The id of your own conversation
    #[arg(long, value_name = "ID", value_parser = text, allow_hyphen_values = true)]
    session: Option<String>,

    /// A file you work on; repeatable
    #[arg(long = "file", value_name = "PATH[:LINE][=done|open][@CONFIDENCE]", value_parser = file)]
    files: Vec<ReportedFile>,

    /// Anything else as JSON, or @FILE with it; at most 64 KiB
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let report = report(args)?;
    let mut target = Target::claimed(&args.which, &args.by)?;
    let fence = target.fence()?;
    let snapshot = target
        .write(fence, |project, log, under| claims::checkpoint(project, log, under, report))?;
    let step = &target.step;
    let _ = ui.line(match &snapshot {
        Some(kept) => {
            let changed = count(kept.changed, "changed file");
            format!("step {step}: {changed} kept as {}", kept.refname)
        }
        None => {
            let why = plain(&claims::why_unkept(&target.project, &target.log, step));
            let message = format!("step {step}: recorded, but no bytes were kept: {why}");
            ui.warn(Kind::Noticed, message, None);
            format!("step {step}: recorded")
        }
    });
    let data = target.answer(json!({ "fence": fence, "snapshot": snapshot }));
    let answer = Answer::new(data).after_writing(target.log.store());
    Ok(answer.after_keeping(&target.project.git))
}

fn report(args: &Args) -> Result<Report, Problem> {
    Ok(Report {
        progress: args.progress,
        confidence: args.confidence.clone(),
        note: args.note.clone(),
        task: args.task.clone(),
        eta: args.eta.clone(),
        done: args.done.clone(),
        next: args.next.clone(),
        session: args.session.clone(),
        files: args.files.clone(),
        data: args.data.as_deref().map(data).transpose()?,
    })
}

fn data(text: &str) -> Result<String, Problem> {
    let wrong = |what: &str| Problem::new(Kind::Usage, format!("--data {what}"));
    let mut size = 0;
    let text = match text.strip_prefix('@') {
        None => text.to_owned(),
        Some(path) => {
            let mut text = String::new();
            let limit = DATA_BYTES_MAX as u64 + 1;
            let read = std::fs::File::open(path).and_then(|file| {
                size = file.metadata()?.len();
                file.take(limit).read_to_string(&mut text)
            });
            read.map_err(|error| {
                wrong(&format!("@{path} cannot be read"))
                    .because(error)
                    .hint("behind @ comes the path of a file with JSON; without it JSON itself")
            })?;
            text
        }
    };
    if text.len() > DATA_BYTES_MAX {
        let size = size.max(text.len() as u64);
        return Err(wrong(&format!("is too long: {size} bytes"))
            .hint("at most 64 KiB; keep more in a file of the worktree"));
    }
    match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(value) => Ok(value.to_string()),
        Err(error) => Err(wrong("is not JSON")
            .because(error)
            .hint(format!("as in {}, or @FILE with it", word(r#"{"tests": ["auth.test.ts"]}"#)))),
    }
}

fn text(text: &str) -> Result<String, String> {
    within(text, TEXT_BYTES_MAX)
}

fn confidence(text: &str) -> Result<String, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(text.to_owned()),
        _ => Err("a number from 0 to 1".to_owned()),
    }
}

/// Read from the end, so that a path may hold the signs too; what looks like one of the parts and is not
/// is refused.
fn file(text: &str) -> Result<ReportedFile, String> {
    within(text, TEXT_BYTES_MAX)?;
    let mut path = text;
    let mut found = ReportedFile { path: String::new(), line: None, done: None, confidence: None };
    if let Some((before, sure)) = path.rsplit_once('@')
        && sure.parse::<f64>().is_ok()
    {
        let sure = confidence(sure).map_err(|why| format!("@{sure}: {why}"))?;
        (path, found.confidence) = (before, Some(sure));
    }
    if let Some((before, state)) = path.rsplit_once('=')
        && !state.is_empty()
        && state.bytes().all(|byte| byte.is_ascii_alphabetic())
    {
        let done = match state {
            "done" => true,
            "open" => false,
            other => return Err(format!("={other}: done or open")),
        };
        (path, found.done) = (before, Some(done));
    }
    if let Some((before, line)) = path.rsplit_once(':')
        && !line.is_empty()
        && line.bytes().all(|byte| byte.is_ascii_digit())
    {
        let number = line.parse().ok().filter(|line| *line > 0);
        let number = number.ok_or_else(|| format!(":{line}: lines are counted from 1"))?;
        (path, found.line) = (before, Some(number));
    }
    if path.is_empty() {
        return Err("a path is missing".to_owned());
    }
    Ok(ReportedFile { path: path.to_owned(), ..found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_from_the_end() {
        let told = |text| {
            let f = file(text).expect(text);
            (f.path, f.line, f.done, f.confidence)
        };
        let sure = |text: &str| Some(text.to_owned());
        assert_eq!(told("a.rs"), ("a.rs".into(), None, None, None));
        assert_eq!(
            told("ä/ö.rs:12=done@0.9"),
            ("ä/ö.rs".into(), Some(12), Some(true), sure("0.9"))
        );
        assert_eq!(told("a@b:c=d.rs"), ("a@b:c=d.rs".into(), None, None, None));
        assert_eq!(told("a=open"), ("a".into(), None, Some(false), None));
        assert_eq!(told("a@1"), ("a".into(), None, None, sure("1")));
        for wrong in [":3", "", "a@9", "a@-1", "a@nan", "a=maybe", "a:0", "a:99999999999"] {
            assert!(file(wrong).is_err(), "{wrong}");
        }
    }
}
