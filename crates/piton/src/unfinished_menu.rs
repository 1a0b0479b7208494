//! What to do when a plan that is to be run has an unfinished run already: one menu on a terminal, flags
//! elsewhere. Nothing is decided for anybody; work that was begun is neither continued nor left by
//! accident.

use piton_core::refusal::Refusal;
use piton_core::view::{RunStatus, RunView, run_branch};
use piton_engine::error::EngineError;
use piton_engine::git::shell::word;
use piton_engine::merge::{self, How, Merge, MergeAsk, OpenSteps, Way};
use piton_engine::opening::{NearRun, Unended, Unfinished};
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, look};
use piton_engine::tidy::abandon::is_untouched;

use crate::describe::{MergeWords, Prefixes, merge_line, run_head, step_row};
use crate::error::{Detail, Kind, Problem};
use crate::hints::About;
use crate::text::{bold, now, table};
use crate::ui::{Said, Ui};

/// What was said on the command line.
pub(crate) struct Wish<'a> {
    pub(crate) auto_continue: bool,
    pub(crate) fresh: bool,
    pub(crate) yes: bool,
    /// The plan, as it was typed.
    pub(crate) plan: &'a str,
}

/// What becomes of unfinished runs of the plan.
pub(crate) enum Chosen {
    /// This plan's own run goes on, or there is none.
    Own(Unfinished),
    /// A run of what looks like the same plan goes on.
    Near(Box<Log>),
    /// This plan's own run was completed while the question was open.
    Over(Box<Log>),
}

/// Finds out what is wanted.
pub(crate) fn choose(
    ui: &Ui,
    project: &Project,
    found: Unended,
    wish: &Wish<'_>,
) -> Result<Chosen, Problem> {
    let Unended { own, near } = found;
    match own {
        None if wish.fresh || wish.auto_continue => Ok(Chosen::Own(Unfinished::GoOn)),
        None => offer(ui, project, near, wish),
        // What cannot be read can be left; going on says what is wrong with it.
        Some(Err(_)) => Ok(Chosen::Own(match wish.fresh {
            true => Unfinished::LeaveAside,
            false => Unfinished::GoOn,
        })),
        Some(Ok(log)) => own_run(ui, project, log, wish),
    }
}

fn own_run(ui: &Ui, project: &Project, mut log: Log, wish: &Wish<'_>) -> Result<Chosen, Problem> {
    let mut view = look(project, &log, Depth::Locks)?;
    if wish.fresh {
        return fresh(ui, &view, wish).map(|()| Chosen::Own(Unfinished::LeaveAside));
    }
    // Nobody has worked on it, or it cannot go on: there is nothing to choose between.
    let settled = is_untouched(log.run()) || log.run().failed().is_some();
    if wish.auto_continue || settled {
        return Ok(Chosen::Own(Unfinished::GoOn));
    }
    if !ui.can_ask() {
        return Err(unasked(&view, wish));
    }
    ui.talk(format!("{} is an unfinished run of this plan:", bold(view.handle.as_str())));
    tell(ui, &view);
    loop {
        let choices = [
            ("c", "continue"),
            ("r", "review"),
            ("m", "merge"),
            ("f", "start fresh"),
            ("q", "quit"),
        ];
        let said = ui.choose("What now?", &choices);
        let agreed = match said {
            Some("f") => fresh(ui, &view, wish),
            _ => Ok(()),
        };
        // The answer is about what was shown: the run may have gone on meanwhile.
        log.refresh()?;
        let present = look(project, &log, Depth::Locks)?;
        match present.status {
            RunStatus::Completed => return Ok(Chosen::Over(Box::new(log))),
            RunStatus::Abandoned { .. } => {
                let refused = EngineError::from(Refusal::RunAbandoned);
                return Err(About::run(project, &log).problem(refused));
            }
            _ => {}
        }
        if (&present.status, present.completed) != (&view.status, view.completed) {
            ui.talk(format!("{} has changed meanwhile:", bold(view.handle.as_str())));
            tell(ui, &present);
            view = present;
            if !matches!(said, None | Some("q")) {
                continue;
            }
        }
        match said {
            Some("c") => return Ok(Chosen::Own(Unfinished::GoOn)),
            Some("r") => review(ui, project, &view)?,
            Some("m") => merge_landed(ui, project, &mut log),
            Some("f") => return agreed.map(|()| Chosen::Own(Unfinished::LeaveAside)),
            _ => {
                let message = format!("{} stays as it is", view.handle);
                return Err(Problem::new(Kind::UnfinishedRun, message).hint(hint(&view, wish)));
            }
        }
    }
}

/// Merges what was landed so far, if it goes well; the run can still go on.
fn merge_landed(ui: &Ui, project: &Project, log: &mut Log) {
    let ask = MergeAsk { into: None, how: How::Any, open: OpenSteps::Allow };
    let handle = log.run().opened.handle.clone();
    let say = |done: &Merge, dry_run| {
        ui.talk(merge_line(handle.as_str(), done, MergeWords { dry_run, ..MergeWords::default() }));
    };
    let merged = merge::preview(project, log, &ask).and_then(|would| {
        say(&would, true);
        if matches!(would.way, Way::NothingLanded | Way::Nothing)
            || ui.ask("Merge it?") != Said::Yes
        {
            return Ok(());
        }
        merge::merge(project, log, &ask).map(|done| say(&done, false))
    });
    if let Err(error) = merged {
        ui.report(&About::run(project, log).problem(error));
    }
}

/// Asked twice: what was begun would be left.
fn fresh(ui: &Ui, view: &RunView, wish: &Wish<'_>) -> Result<(), Problem> {
    if wish.yes {
        return Ok(());
    }
    let handle = &view.handle;
    let told = vec![
        format!("{handle}: {} of {} steps are completed", view.completed, view.total),
        "it goes to the attic for 30 days with everything it has; `piton undo` reopens it".into(),
    ];
    if ui.can_ask() {
        told.iter().for_each(|line| ui.talk(format!("  {line}")));
    }
    let command = format!("piton run {} --fresh --yes", word(wish.plan));
    let first = ui.ask(&format!("Leave {} and start over?", bold(handle.as_str())));
    let agreed = match first {
        Said::Yes => ui.ask("Sure? Its steps are done again."),
        other => other,
    };
    agreed.or_refuse(told, &command)
}

fn hint(view: &RunView, wish: &Wish<'_>) -> String {
    let plan = word(wish.plan);
    format!(
        "go on: `piton resume {}` or `piton run {plan} --auto-continue`; look: `piton status {0}`; \
         start over: `piton run {plan} --fresh --yes`",
        view.handle
    )
}

fn unasked(view: &RunView, wish: &Wish<'_>) -> Problem {
    let message = format!(
        "{} is an unfinished run of this plan ({}, {} of {} steps completed), and this is not a terminal: choose --auto-continue or --fresh",
        view.handle,
        view.status.word(),
        view.completed,
        view.total
    );
    Problem::new(Kind::UnfinishedRun, message).hint(hint(view, wish))
}

fn tell(ui: &Ui, view: &RunView) {
    for line in run_head(view, &Prefixes::new(), now()) {
        ui.talk(format!("  {line}"));
    }
}

/// Its steps, and what its branch has on top of where it began.
fn review(ui: &Ui, project: &Project, view: &RunView) -> Result<(), Problem> {
    let rows: Vec<Vec<String>> = view.steps.iter().map(|step| step_row(step, now())).collect();
    for line in table(&rows) {
        ui.talk(line);
    }
    let branch = run_branch(&view.handle);
    let stat = project.git.diff_stat(&view.base, &branch).map_err(EngineError::from)?;
    match stat.is_empty() {
        true => ui.talk(format!("Nothing has landed on {branch} yet.")),
        false => stat.iter().for_each(|line| ui.talk(line)),
    }
    let handle = &view.handle;
    ui.hint(format!("more of it: `piton show {handle}`, `piton diff {handle}`"));
    Ok(())
}

/// A run of a plan that was moved or renamed may be the one that is meant.
fn offer(
    ui: &Ui,
    project: &Project,
    near: Vec<NearRun>,
    wish: &Wish<'_>,
) -> Result<Chosen, Problem> {
    let open = |near: &NearRun| !is_untouched(near.log.run());
    for NearRun { log, is_same } in near.into_iter().filter(open) {
        let view = look(project, &log, Depth::Locks)?;
        let message = format!(
            "{} is an unfinished run of what looks like the same plan, from {}",
            view.handle, view.plan_path
        );
        if !ui.can_ask() && is_same {
            let message = format!(
                "{} is an unfinished run of the same plan, from {}, and this is not a terminal: choose --auto-continue or --fresh",
                view.handle, view.plan_path
            );
            return Err(Problem::new(Kind::UnfinishedRun, message).hint(format!(
                "go on with it: `piton resume {}`; or a run beside it: `piton run {} --fresh --yes`",
                view.handle,
                word(wish.plan)
            )));
        }
        if !ui.can_ask() {
            let hint = format!("to go on with it instead: `piton resume {}`", view.handle);
            ui.warn(Kind::Noticed, message, Some(hint));
            continue;
        }
        ui.talk(&message);
        tell(ui, &view);
        let choices = [("c", "continue that one"), ("n", "a new run"), ("q", "quit")];
        match ui.choose("What now?", &choices) {
            Some("c") => return Ok(Chosen::Near(Box::new(log))),
            Some("n") => {}
            _ => {
                let problem = Problem::new(Kind::UnfinishedRun, "nothing was started");
                let details = vec![Detail::of(message)];
                return Err(problem.with_details(details).hint(hint(&view, wish)));
            }
        }
    }
    Ok(Chosen::Own(Unfinished::GoOn))
}
