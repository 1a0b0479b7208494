//! What somebody changed by hand in the file of another tool's plan: shown, and offered as a completion or a
//! reset. The file is never corrected.

use piton_core::event::FoundState;
use piton_core::ids::Handle;
use piton_core::run::Run;
use piton_core::view::HandChange;
use piton_engine::outside::claims;
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::write_back::{changed_by_hand, write_back};
use serde_json::Value;

use crate::answer::Answer;
use crate::error::{Kind, Problem};
use crate::hints::About;
use crate::target::tell_kept;
use crate::text::plain;
use crate::ui::{Said, Ui};

/// Answers a write, once the plan's file says so too.
pub(crate) fn written(ui: &Ui, project: &Project, log: &Log, data: Value) -> Answer {
    match write_back(project, log.run()) {
        Ok(changes) => tell(ui, log.run(), &changes),
        Err(error) => ui.warn(Kind::Noticed, plain(&error.to_string()), None),
    }
    Answer::new(data).after_writing(log.store())
}

/// What the file says of a step.
pub(crate) fn message(plan_path: &str, change: &HandChange) -> String {
    let says = match &change.says {
        FoundState::Completed { .. } => "done",
        FoundState::Skipped { .. } => "dropped",
        FoundState::InProgress => "in progress",
        FoundState::Failed { .. } => "failed",
        FoundState::Pending => "not done",
    };
    format!("{} was changed by hand: {} is {says} there", plain(plan_path), change.step)
}

/// What makes it so.
pub(crate) fn command(run: &Handle, change: &HandChange) -> String {
    let step = &change.step;
    match &change.says {
        FoundState::Completed { .. } => format!("piton complete {run} {step} --found"),
        FoundState::Skipped { .. } => format!("piton skip {run} {step} --reason dropped"),
        _ => format!("piton reset {run} {step} --force --reason 'changed by hand'"),
    }
}

/// Says what was changed, with what to type.
pub(crate) fn tell(ui: &Ui, run: &Run, changes: &[HandChange]) {
    for change in changes {
        let message = message(&run.opened.plan_path, change);
        // Of a completed run nothing can be reset.
        let command = (!run.is_completed()).then(|| command(&run.opened.handle, change));
        ui.warn(Kind::Noticed, message, command.map(|command| format!("`{command}`")));
    }
}

/// Before a run goes on: asks a person whether what the file says shall be so; elsewhere says it.
pub(crate) fn settle(ui: &Ui, project: &Project, log: &mut Log) -> Result<(), Problem> {
    for change in changed_by_hand(project, log.run()) {
        let message = message(&log.run().opened.plan_path, &change);
        let offer = match &change.says {
            FoundState::Completed { .. } => "take it as completed",
            FoundState::Pending => "reset it, so that it is done again",
            _ => "",
        };
        let is_wanted = ui.can_ask()
            && !offer.is_empty()
            && ui.ask(&format!("{message}; {offer}?")) == Said::Yes;
        if !is_wanted {
            tell(ui, log.run(), &[change]);
            continue;
        }
        let kept = match &change.says {
            FoundState::Completed { .. } => claims::find(project, log, &change.step),
            _ => {
                let reason = format!("changed in {}", log.run().opened.plan_path);
                claims::reset(project, log, &change.step, Some(reason)).map(|answer| answer.kept)
            }
        };
        tell_kept(ui, &kept.map_err(|error| About::run(project, log).problem(error))?);
    }
    Ok(())
}
