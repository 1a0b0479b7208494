//! `piton demo`: shows that a run survives kill -9, and checks it.

use std::path::PathBuf;

use piton_engine::demo::{Beat, DemoResult, demo};
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::text::{bold, green, red};
use crate::ui::Ui;
use crate::verb::Answer;

/// See a run survive kill -9
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Runs a plan of five steps in a temporary repository with a tiny agent, kills the
worker, the keeper, the agent and then all three with SIGKILL, continues each
time, and compares the result with an undisturbed run.

Examples:
  piton demo
  piton demo --keep   look around in the repositories afterwards")]
pub(crate) struct Args {
    /// Keep the two repositories and print their paths
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let io = |error: std::io::Error| Problem::from_error(Kind::Io, &error);
    let home = tempfile::Builder::new().prefix("piton-demo-").tempdir().map_err(io)?;
    let piton = std::env::current_exe().map_err(io)?;
    let mut printed: Result<(), Problem> = Ok(());
    let mut beats = Vec::new();
    let mut hear = |beat: Beat| {
        let line = format!("{:6.2}s  {}", beat.at.as_secs_f64(), beat.text);
        if printed.is_ok() {
            printed = ui.line(line);
        }
        beats.push(json!({ "ms": beat.at.as_millis(), "text": beat.text }));
    };
    let verdicts = demo(home.path(), &piton, &mut hear);
    let kept: Option<PathBuf> = args.keep.then(|| home.keep());
    printed?;
    let verdicts = verdicts?;
    ui.line("")?;
    for DemoResult { what, holds } in &verdicts {
        let sign = if *holds { green("✓") } else { red("✗") };
        ui.line(format!("{sign} {what}"))?;
    }
    if let Some(kept) = &kept {
        ui.line(format!("  kept in {}", bold(&kept.display().to_string())))?;
    }
    let all = verdicts.iter().all(|verdict| verdict.holds);
    let checks: Vec<_> =
        verdicts.iter().map(|v| json!({ "what": v.what, "holds": v.holds })).collect();
    let data = json!({ "timeline": beats, "checks": checks, "kept": kept });
    Ok(Answer::new(data).exiting(if all { ExitStatus::Ok } else { ExitStatus::Failed }))
}
