//! `piton abandon`: gives a run up, after naming what is ended and what is kept.

use piton_core::event::{Cause, Haste};
use piton_engine::Access;
use piton_engine::abandon::{self, Belongings};
use piton_engine::bury::bury_dead;
use piton_engine::claims;
use piton_engine::log::Log;
use piton_engine::observe::{Depth, look};
use piton_engine::project::Project;
use piton_engine::runs;
use serde_json::json;

use crate::error::{Detail, Kind, Problem};
use crate::text::{bold, count};
use crate::ui::{Said, Ui};
use crate::verb::stop::{self, BEYOND_GRACE};
use crate::verb::{self, Answer, from_here};

/// Give a run up: it ends, its work stays, its plan can be run anew
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton abandon auth-calm-otter          asks first, and says what is kept
  piton abandon auth-calm-otter --yes
  piton undo                             it is open again

What is at work in it is stopped first, and its files are kept in a snapshot. Worktrees, branches,
snapshots and the log stay: `piton clean` removes what is provably safe to remove.")]
pub(crate) struct Args {
    /// The run: its handle, id, the beginning of either, or its plan
    run: String,

    /// Do it without asking
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let store = verb::store_with_runs(&project, Access::Existing)?;
    let mut log = verb::find(&project, &store, Some(&args.run))?;
    let handle = log.run().opened.handle.clone();
    if log.run().is_completed() {
        let message = format!("{handle} is completed: there is nothing to give up");
        return Err(Problem::new(Kind::Refused, message).hint("`piton clean` lists what can go"));
    }
    let kept = abandon::belongings(&project, &log)?;
    let told = told(&kept);
    if !args.yes {
        for line in told.iter().filter(|_| ui.can_ask()) {
            ui.talk(format!("  {line}"));
        }
        let agreed = ui.ask(&format!("Abandon {}?", bold(handle.as_str())));
        refuse_unless(agreed, told, &format!("piton abandon {handle} --yes"))?;
    }
    end_all(ui, &project, &mut log)?;
    let act = abandon::abandon(&project, &mut log)?;
    // It is done, whoever still listens.
    let _ = ui.line(format!("{}: abandoned; its work stays", bold(handle.as_str())));
    for snapshot in &kept.snapshots {
        let _ = ui.line(format!("  {snapshot}"));
    }
    ui.hint(format!("reopen it: `piton undo {act}`; see what can go: `piton clean`"));
    let view = look(&project, &log, Depth::Locks)?;
    let data = json!({ "run": view, "act": act, "kept": kept });
    Ok(Answer::new(data).after_writing(log.store()))
}

/// What a person has to agree to, and did not.
pub(crate) fn refuse_unless(agreed: Said, told: Vec<String>, command: &str) -> Result<(), Problem> {
    let details = told.into_iter().map(|message| Detail { message, hint: None }).collect();
    let message = match agreed {
        Said::Yes => return Ok(()),
        Said::No => "nothing was changed",
        Said::Nobody => "it ends a run, and nobody is there to agree",
    };
    Err(Problem::new(Kind::Unconfirmed, message).with_details(details).hint(format!("`{command}`")))
}

/// What is ended and what stays.
fn told(kept: &Belongings) -> Vec<String> {
    let listed = |names: &[String]| match names {
        [] => String::new(),
        names => format!(": {}", names.join(", ")),
    };
    let held: Vec<String> = kept.held.iter().map(ToString::to_string).collect();
    let trees: Vec<String> =
        kept.worktrees.iter().map(|path| from_here(path).display().to_string()).collect();
    let rows = [
        ("ends", held, "attempt"),
        ("stays", trees, "worktree"),
        ("stays", kept.branches.clone(), "branch"),
        ("stays", kept.snapshots.clone(), "snapshot"),
    ];
    let rows = rows.iter().filter(|(_, names, _)| !names.is_empty());
    let row = |(fate, names, what): &(&str, Vec<String>, &str)| {
        let what = match (*what, names.len()) {
            ("branch", n) if n != 1 => format!("{n} branches"),
            (what, n) => count(n as u64, what),
        };
        format!("{fate}: {what}{}", listed(names))
    };
    rows.map(row).collect()
}

/// Stop before touch: whoever has a step is ended, and its files kept, before the run is given up.
fn end_all(ui: &Ui, project: &Project, log: &mut Log) -> Result<(), Problem> {
    if log.run().held().next().is_none() {
        return Ok(());
    }
    let handle = log.run().opened.handle.clone();
    let asked = runs::stop(log, None, Cause::UserInterrupt, Haste::Graceful)?;
    let grace = runs::settings_of(log)?.grace;
    let (outside, asked) = stop::by_holder(log, asked);
    let left = stop::await_end(project, log, &asked, grace + BEYOND_GRACE)?;
    for (step, burial) in bury_dead(project, log, &left.dead)? {
        stop::tell(ui, &step, &burial);
    }
    if let Some(step) = left.running.first() {
        let message = format!("step {step} was asked to stop and has not ended yet");
        return Err(Problem::new(Kind::StillRunning, message)
            .hint(format!("kill it: `piton stop {handle} --now`, then say it again")));
    }
    for step in outside {
        claims::release(project, log, &step.step, None)?;
        ui.talk(format!("step {step}: its claim from outside has ended, its files are kept"));
    }
    Ok(())
}
