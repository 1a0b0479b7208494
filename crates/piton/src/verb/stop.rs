//! `piton stop`: asks a run, or one step's attempt, to stop, from anywhere; waits until it has.

use std::time::{Duration, Instant};

use piton_core::event::{Cause, Haste, Holder};
use piton_core::ids::{AttemptId, StepRef};
use piton_core::observed::Sighting;
use piton_engine::Access;
use piton_engine::attempt::bury::{Burial, bury_dead};
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, look, observe, refuse_unknown};
use piton_engine::run::runs;
use serde_json::{Value, json};

use crate::error::{Kind, Problem};
use crate::target::{Inside, refuse_inside};
use crate::text::{bold, plain};
use crate::ui::Ui;
use crate::verb::{self, Answer, next_commands, step_of};

/// Stop a run or one step, and keep its work
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton stop                         the only unfinished run
  piton stop calm-otter              a run by its handle
  piton stop calm-otter jwt          one step of it
  piton stop --now                   kill at once instead of asking first

The work is in a snapshot before the command returns; `piton resume` continues.
An outside holder of a step gets `stop_requested` from `piton heartbeat` until
it releases the step. A stopped step cannot be claimed, not even with --force.")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,

    /// Only this step
    step: Option<String>,

    /// Kill at once, without a grace period
    #[arg(long)]
    now: bool,
}

/// How long keepers may take beyond the grace period: to kill, to keep the work, to record.
pub(crate) const BEYOND_GRACE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let mut log = verb::run_of(&project, Access::Existing, args.run.as_deref())?;
    if log.run().is_completed() {
        return Err(nothing(&log));
    }
    let step = args.step.as_deref().map(|text| step_of(&log, text)).transpose()?;
    let own = Inside::of_process().step;
    if step.as_ref().is_none_or(|step| Some(step.to_string()) == own) {
        refuse_inside(&log, "stop")?;
    }
    let haste = if args.now { Haste::Now } else { Haste::Graceful };
    let asked = runs::stop(&mut log, step.as_ref(), Cause::UserInterrupt, haste)?;
    let grace = if args.now { Duration::ZERO } else { runs::settings_of(&log)?.grace };
    let (outside, asked) = by_holder(&log, asked);
    for step in &outside {
        ui.line(format!("step {step}: its holder gets the stop request at the next heartbeat"))?;
    }
    if let Some(step) = step.as_ref().filter(|_| outside.is_empty() && asked.is_empty()) {
        return nobody(ui, &project, &log, step);
    }
    let left = await_end(&project, &mut log, &asked, grace + BEYOND_GRACE)?;
    for (step, burial) in bury_dead(&project, &mut log, &left.dead)? {
        tell(ui, &step, &burial);
    }
    answer(ui, &project, &log, (&asked, &outside), left)
}

/// Steps that are held from outside, which nobody waits for, and the others.
pub(crate) fn by_holder(log: &Log, asked: Vec<StepRef>) -> (Vec<StepRef>, Vec<StepRef>) {
    let is_outside = |step: &StepRef| {
        let mut held = log.run().held().filter(|(held, _)| held == step);
        held.any(|(_, attempt)| matches!(attempt.holder, Holder::External { .. }))
    };
    asked.into_iter().partition(is_outside)
}

/// A stop is asked of an attempt: a step that nobody works on has none.
fn nobody(ui: &Ui, project: &Project, log: &Log, step: &StepRef) -> Result<Answer, Problem> {
    let handle = &log.run().opened.handle;
    let stays = log.run().step(step).is_some_and(|(_, state)| state.is_stopped());
    match stays {
        true => ui.line(format!("step {step}: stopped already"))?,
        false => ui.line(format!("step {step}: not being worked on; nothing to stop"))?,
    }
    ui.hint(match stays {
        true => format!("go on: `piton resume {handle}`"),
        false => format!("so that nothing of it is begun: `piton stop {handle}`"),
    });
    data(ui, project, log, (&[], &[]), &[]).map(Answer::new)
}

fn nothing(log: &Log) -> Problem {
    let message = format!("{} is completed: nothing to stop", log.run().opened.handle);
    Problem::new(Kind::Refused, message).hint("see every run: `piton status --ended`")
}

/// What was done about an attempt that nobody was behind any more.
pub(crate) fn tell(ui: &Ui, step: &StepRef, burial: &Burial) {
    let pids = |pids: &[i32]| pids.iter().map(i32::to_string).collect::<Vec<_>>();
    let ended = match burial.swept.ended.as_slice() {
        [] => String::new(),
        ended => format!("; what it had left was ended: {}", pids(ended).join(" ")),
    };
    ui.talk(format!("step {step}: its keeper was dead already{ended}"));
    if !burial.swept.survivors.is_empty() {
        let left = pids(&burial.swept.survivors);
        let message = format!("step {step}: could not end processes {}", left.join(" "));
        ui.warn(Kind::Noticed, message, Some(format!("`ps -fp {}`", left.join(","))));
    }
    if let Some(why) = &burial.unkept {
        let message = format!("the tree of {step} could not be kept: {}", plain(why));
        ui.warn(Kind::Noticed, message, None);
    }
}

/// Attempts of these steps that have not ended, with whether anybody is behind them.
pub(crate) struct Left {
    pub(crate) running: Vec<StepRef>,
    pub(crate) dead: Vec<StepRef>,
}

pub(crate) fn await_end(
    project: &Project,
    log: &mut Log,
    asked: &[StepRef],
    at_most: Duration,
) -> Result<Left, Problem> {
    let attempts: Vec<(StepRef, AttemptId)> = log
        .run()
        .held()
        .filter(|(step, _)| asked.contains(step))
        .map(|(step, attempt)| (step, attempt.id))
        .collect();
    let deadline = Instant::now() + at_most;
    loop {
        log.refresh()?;
        refuse_unknown(project, log, &observe(project, log, Depth::Locks))?;
        let left = left(project, log, &attempts);
        if left.running.is_empty() || Instant::now() >= deadline {
            return Ok(left);
        }
        log.wait(LOOK_EVERY)?;
    }
}

fn left(project: &Project, log: &Log, attempts: &[(StepRef, AttemptId)]) -> Left {
    let observed = observe(project, log, Depth::Locks);
    let mut left = Left { running: Vec::new(), dead: Vec::new() };
    for (step, attempt) in attempts {
        if !log.run().held().any(|(_, held)| held.id == *attempt) {
            continue;
        }
        match observed.of(*attempt) {
            Sighting::Dead(_) => left.dead.push(step.clone()),
            Sighting::Alive | Sighting::Unknown(_) | Sighting::Elsewhere => {
                left.running.push(step.clone());
            }
        }
    }
    left
}

fn answer(
    ui: &Ui,
    project: &Project,
    log: &Log,
    (asked, outside): (&[StepRef], &[StepRef]),
    left: Left,
) -> Result<Answer, Problem> {
    let handle = &log.run().opened.handle;
    let ended = asked.iter().filter(|step| !left.running.contains(step));
    for step in ended {
        ui.line(format!("step {step}: stopped"))?;
    }
    if asked.is_empty() && outside.is_empty() {
        let name = bold(handle.as_str());
        ui.line(format!("{name}: nothing was running; it stays stopped until `piton resume`"))?;
    }
    let data = data(ui, project, log, (asked, outside), &left.running)?;
    if left.running.is_empty() {
        ui.hint(format!("go on: `piton resume {handle}`"));
        return Ok(Answer::new(data).after_writing(log.store()));
    }
    let names: Vec<String> = left.running.iter().map(StepRef::to_string).collect();
    let names = names.join(", ");
    log.store().tidy();
    Err(Problem::new(
        Kind::StillRunning,
        format!("{names} was asked to stop and has not ended yet"),
    )
    .hint(format!("kill it: `piton stop {handle} --now`"))
    .with_data(data))
}

/// Every step of the run: only where somebody reads it.
fn data(
    ui: &Ui,
    project: &Project,
    log: &Log,
    (asked, outside): (&[StepRef], &[StepRef]),
    running: &[StepRef],
) -> Result<Value, Problem> {
    if !ui.is_json() {
        return Ok(Value::Null);
    }
    let view = look(project, log, Depth::Locks)?;
    let next = next_commands(project, &view);
    Ok(json!({
        "run": view,
        "stopped": asked,
        "asked": outside,
        "still_running": running,
        "next": next,
    }))
}
