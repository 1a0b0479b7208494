//! `piton claim`: takes a step of a run, to work on it in a worktree of one's own. Nothing ready is a
//! normal answer.

use std::path::PathBuf;
use std::time::Duration;

use piton_core::claim::Takeover;
use piton_core::event::Holder;
use piton_core::ids::StepRef;
use piton_engine::Access;
use piton_engine::outside::claims::{self, ClaimAnswer, ClaimAsk, Unclaimable};
use piton_engine::project::Project;
use piton_engine::run::log::Log;

use crate::by_hand;
use crate::error::{Kind, Problem};
use crate::hints::About;
use crate::plan_drift::Accepting;
use crate::remedy::why;
use crate::target::{self, Inside, is_run, tell_kept};
use crate::text::{bold, count, plain, table};
use crate::typed::again;
use crate::ui::Ui;
use crate::verb::{self, Answer, run::lease, step_of};

/// Claim a step, to work on it in your own worktree
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton claim plan.toml --worktree .              the first free step
  piton claim plan.toml --worktree . --step jwt   this step
  piton claim plan.toml --worktree . --json       its fence, for later writes

A plan without a run gets one. The same worktree gets its step back at once,
under a new fence; the old fence is refused from then on. If no step is free,
the answer is `claimed: false` with exit status 0. Without --step, --force takes
the step of a dead or silent holder first, then a free one, then that of a live
holder. Inside an attempt of `piton run` the answer is that attempt's claim.")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: PITON_RUN, or the unfinished one]
    #[arg(value_name = "PLAN|RUN")]
    run: Option<String>,

    /// Where you work; together with this host it identifies you
    #[arg(long, value_name = "PATH")]
    worktree: Option<PathBuf>,

    /// Only this step
    #[arg(long)]
    step: Option<String>,

    /// How long the claim is believed without a heartbeat
    #[arg(long, value_name = "DURATION", default_value = "2h", value_parser = lease,
          allow_hyphen_values = true)]
    lease: Duration,

    /// Take over even if the holder is active
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    accepting: Accepting,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    if let Some((log, answer)) = own(&project, args)? {
        return told(ui, &project, &log, &answer);
    }
    let Some(worktree) = &args.worktree else {
        return Err(Problem::new(Kind::Usage, "where will you work? no worktree was named")
            .hint(format!("in the folder you are in: `{}`", again("--worktree ."))));
    };
    let on_change = args.accepting.on_change();
    let mut log = target::open_or_find(ui, &project, args.run.as_deref(), on_change)?;
    let step = args.step.as_deref().map(|text| step_of(&log, text)).transpose()?;
    let takeover = if args.force { Takeover::Force } else { Takeover::Forbid };
    let ask = ClaimAsk { step: step.as_ref(), worktree, lease: args.lease, takeover };
    let answer = claims::claim(&project, &mut log, &ask)?;
    let told = told(ui, &project, &log, &answer)?;
    if let Some(step) = step.filter(|_| answer.claim.is_none()) {
        tell_taking(ui, &log, &step);
    }
    Ok(told)
}

/// Whoever wants a step that somebody else has can wait, or take it.
fn tell_taking(ui: &Ui, log: &Log, step: &StepRef) {
    let attempt = log.run().step(step).and_then(|(_, state)| state.attempt());
    if matches!(attempt.map(|attempt| &attempt.holder), Some(Holder::External { .. })) {
        let take = again("--force");
        ui.hint(format!("take it: `{take}`; who has it is refused from then on, its work is kept"));
    }
}

/// The claim of the attempt that this is inside of, when that is what is asked for.
fn own(project: &Project, args: &Args) -> Result<Option<(Log, ClaimAnswer)>, Problem> {
    let inside = Inside::of_process();
    if inside.run.is_none() {
        return Ok(None);
    }
    let Some(fence) = inside.fence()? else { return Ok(None) };
    if args.step.is_some() && args.step != inside.step {
        return Ok(None);
    }
    let log = target::run_of(project, Access::Existing, None)?;
    let same = match &args.run {
        Some(asked) if is_run(&log, asked) => true,
        Some(asked) => verb::find(project, log.store(), Some(asked))
            .is_ok_and(|other| other.run().opened.run == log.run().opened.run),
        None => true,
    };
    if !same {
        return Ok(None);
    }
    match claims::own_claim(project, &log, fence)? {
        Some(answer) => Ok(Some((log, answer))),
        None if args.worktree.is_some() => Ok(None),
        None => Err(Problem::new(
            Kind::NotOwner,
            format!("the attempt that this is inside of has lost its claim (fence {fence})"),
        )
        .hint(format!(
            "stop working on it; `piton show {}` says who has it",
            log.run().opened.handle
        ))),
    }
}

fn told(ui: &Ui, project: &Project, log: &Log, answer: &ClaimAnswer) -> Result<Answer, Problem> {
    // The claim is made: whoever stopped reading has it all the same.
    let _ = lines(ui, answer);
    if let Some(claim) = &answer.claim {
        tell_kept(ui, &claim.kept);
    }
    if let Some(way) = About::run(project, log).barred().filter(|_| !answer.left.all_completed) {
        ui.hint(way);
    }
    let asked = log.run().questions().any(|(_, question)| question.is_open());
    if asked && answer.claim.is_none() {
        ui.hint(format!("what waits for an answer: `piton questions {}`", answer.handle));
    }
    if answer.left.all_completed {
        let plan = verb::plan_from_here(project, &log.run().opened.plan_path);
        ui.hint(format!("a new run: `piton open {plan} --fresh`"));
    }
    Ok(by_hand::written(ui, project, log, verb::json(answer)))
}

fn lines(ui: &Ui, answer: &ClaimAnswer) -> Result<(), Problem> {
    let handle = bold(answer.handle.as_str());
    if let Some(claim) = &answer.claim {
        let again = if claim.reclaimed { "claimed again" } else { "claimed" };
        let step = bold(&claim.step.to_string());
        let title = titled(&claim.title, &claim.step.to_string());
        ui.line(format!("{handle}: {again} {step}{title}"))?;
        for line in claim.prompt.iter().flat_map(|prompt| prompt.lines()) {
            ui.line(format!("  {}", plain(line)))?;
        }
        ui.line(format!("  fence {}, lease until {}", claim.fence, claim.lease_expires))?;
        if !claim.snapshots {
            ui.line("  the worktree is not one of this repository: checkpoints keep no bytes")?;
        }
        if !answer.passed_over.is_empty() {
            ui.line("  passed over:")?;
            reasons(ui, &answer.passed_over)?;
        }
        ui.hint(format!("`piton start {} {} --fence {}`", answer.handle, claim.step, claim.fence));
        return Ok(());
    }
    if answer.left.all_completed {
        return ui.line(format!("{handle}: every step is completed"));
    }
    if let Some(why) = &answer.left.barred {
        ui.line(format!("{handle}: {why}: nothing of it can be claimed"))?;
        return Ok(());
    }
    match answer.remaining_ready {
        0 => ui.line(format!("{handle}: nothing can be claimed now"))?,
        more => {
            let more = count(more as u64, "other step");
            ui.hint(format!("{more} can be claimed: `piton ready {}`", answer.handle));
            ui.line(format!("{handle}: that step cannot be claimed now"))?;
        }
    }
    reasons(ui, &answer.left.blocked)?;
    match answer.left.blocked_more {
        0 => Ok(()),
        more => ui.line(format!("  and {more} more")),
    }
}

/// What a step is called, unless that is its id.
fn titled(title: &str, id: &str) -> String {
    if title == id { String::new() } else { format!("  {}", plain(title)) }
}

/// Steps, each with why it was not had.
fn reasons(ui: &Ui, rows: &[Unclaimable]) -> Result<(), Problem> {
    let row = |reason: &Unclaimable| vec![format!("  {}", reason.step), why(reason)];
    for line in table(&rows.iter().map(row).collect::<Vec<Vec<String>>>()) {
        ui.line(line)?;
    }
    Ok(())
}
