//! `piton` alone: what needs you, and the next sensible commands. Works anywhere; outside of a
//! repository it is a short help.

use piton_core::view::{RunStatus, RunView};
use piton_engine::project::Project;
use serde_json::json;

use crate::describe::{is_unattended, open_questions, run_row};
use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::text::{bold, now, table};
use crate::ui::Ui;
use crate::verb::status::{WhichRuns, survey};
use crate::verb::{self, Answer, next_commands};

const NEW_HERE: [(&str, &str); 4] = [
    ("piton demo", "see a run survive kill -9"),
    ("piton init", "write a first plan for this repository"),
    ("piton run --help", "how to run a plan"),
    ("piton help", "every command"),
];

pub(crate) fn run(ui: &Ui) -> Result<Answer, Problem> {
    let project = match verb::project() {
        Ok(project) => project,
        Err(problem) if problem.kind == Kind::NotRepository => return nothing(ui, "no repository"),
        Err(problem) => return Err(problem),
    };
    inside(ui, &project)
}

fn nothing(ui: &Ui, place: &str) -> Result<Answer, Problem> {
    ui.line("piton runs plans of coding agents so that a crash costs seconds.")?;
    ui.line("")?;
    let row = |(command, what): &(&str, &str)| vec![format!("  {command}"), (*what).to_owned()];
    for line in table(&NEW_HERE.iter().map(row).collect::<Vec<_>>()) {
        ui.line(line)?;
    }
    Ok(Answer::new(
        json!({ "place": place, "runs": [], "next": NEW_HERE.map(|(command, _)| command) }),
    ))
}

fn inside(ui: &Ui, project: &Project) -> Result<Answer, Problem> {
    let mut found = survey(project, WhichRuns::All)?;
    let exit = if found.damaged.is_empty() { ExitStatus::Ok } else { ExitStatus::Corrupt };
    if found.views.is_empty() && found.damaged.is_empty() {
        return nothing(ui, "no runs");
    }
    for damaged in std::mem::take(&mut found.damaged) {
        ui.report(&Problem::from(damaged.error));
    }
    found.views.reverse();
    let mut open: Vec<&RunView> = found.views.iter().filter(|view| is_open(view)).collect();
    open.sort_by_key(|view| attention(view));
    // With nothing open, the newest run is what a person comes back for.
    let shown: Vec<&RunView> =
        if open.is_empty() { found.views.iter().take(1).collect() } else { open };
    let now = now();
    for line in table(&shown.iter().map(|view| run_row(view, now)).collect::<Vec<_>>()) {
        ui.line(line)?;
    }
    let next: Vec<String> =
        shown.iter().flat_map(|view| next_commands(project, view)).take(6).collect();
    ui.line("")?;
    ui.line(bold("Next:"))?;
    for command in &next {
        ui.line(format!("  {command}"))?;
    }
    Ok(Answer::new(json!({ "place": "repository", "runs": shown, "next": next })).exiting(exit))
}

fn is_open(view: &RunView) -> bool {
    !matches!(view.status, RunStatus::Completed | RunStatus::Abandoned { .. })
}

/// What waits for a person comes first, what goes on by itself last.
fn attention(view: &RunView) -> u8 {
    match &view.status {
        _ if open_questions(view).next().is_some() => 0,
        RunStatus::Waiting { .. } => 0,
        RunStatus::Failed { .. } => 1,
        RunStatus::Interrupted { .. } | RunStatus::Stopped { .. } => 2,
        RunStatus::Lapsed { .. } => 3,
        RunStatus::Open if !view.worker => 3,
        RunStatus::Running if is_unattended(view) => 3,
        RunStatus::Open | RunStatus::Running => 4,
        RunStatus::Completed | RunStatus::Abandoned { .. } => 5,
    }
}
