//! `piton` alone: what needs you, and the next sensible commands. Works anywhere; outside of a
//! repository it is a short help.

use piton_engine::project::Project;
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::text::table;
use crate::ui::Ui;
use crate::verb::status::{Breadth, Surveyed, WhichRuns, tell};
use crate::verb::{self, Answer};

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
    inside(ui, project)
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

fn inside(ui: &Ui, project: Project) -> Result<Answer, Problem> {
    let place = Surveyed::look(project, WhichRuns::All)?;
    match place.is_empty() {
        true => nothing(ui, "no runs"),
        false => tell(ui, vec![place.or_newest()], Breadth::default()),
    }
}
