//! What a half-finished plan of another tool says is done, against where its run would begin: shown and asked about
//! before the run is opened. Nothing counts as done whose work the run would silently lack.

use std::path::Path;

use piton_core::event::FoundState;
use piton_core::ids::StepId;
use piton_engine::git::shell::word;
use piton_engine::opening::{Opening, Start};
use piton_engine::project::Project;
use piton_engine::run::found_work::{FoundWork, WorkPlace, named_plan};

use crate::error::{Detail, Kind, Problem};
use crate::start::{from_here, project};
use crate::text::{count, plain};
use crate::typed::again;
use crate::ui::{Said, Ui};

/// What was said on the command line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StartWish {
    /// Where to begin was named: what the base lacks is only told.
    pub(crate) is_named: bool,
    /// Go on from what is there, without asking.
    pub(crate) auto_continue: bool,
}

/// Settles where the run begins and what becomes of steps in progress.
pub(crate) fn settle(
    ui: &Ui,
    project: &Project,
    opening: &mut Opening,
    wish: StartWish,
) -> Result<(), Problem> {
    let found = opening.found_work(project)?;
    match (wish.is_named, found.places.as_slice()) {
        (true, _) => warn_lacking(ui, &found),
        (false, []) => without_place(ui, opening, &found)?,
        (false, [only]) if wish.auto_continue => {
            ui.talk(format!("starting from {}", described(only)));
            opening.begin_at(project, &start_of(only))?;
        }
        (false, places) => {
            if let Some(place) = chosen(ui, &found, places)? {
                opening.begin_at(project, &start_of(place))?;
            }
        }
    }
    in_progress(ui, opening, &found.in_progress, wish)
}

fn start_of(place: &WorkPlace) -> Start {
    match (&place.worktree, &place.branch) {
        (Some(path), _) => Start::Tree(path.clone()),
        (None, Some(branch)) => Start::Base(branch.clone()),
        (None, None) => Start::Plan,
    }
}

/// What is typed to start there.
fn option_of(place: &WorkPlace) -> String {
    match (&place.worktree, &place.branch) {
        (Some(path), _) => format!("--worktree {}", word(&from_here(path).display().to_string())),
        (None, branch) => format!("--base {}", word(branch.as_deref().unwrap_or("HEAD"))),
    }
}

fn described(place: &WorkPlace) -> String {
    let name = place.branch.as_deref().map(plain);
    let tree = place.worktree.as_ref().map(|path| plain(&from_here(path).display().to_string()));
    let place_name = match (name, tree) {
        (Some(name), Some(tree)) => format!("{name} in {tree}"),
        (Some(name), None) => name,
        (None, tree) => tree.unwrap_or_default(),
    };
    let uncommitted = if place.uncommitted { ", uncommitted files" } else { "" };
    format!("{place_name} ({}{uncommitted})", count(place.commits, "commit"))
}

fn names(steps: &[StepId]) -> String {
    let shown: Vec<&str> = steps.iter().take(5).map(StepId::as_str).collect();
    let more = if steps.len() > 5 { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// The place that is started from; none where the run starts here all the same.
fn chosen<'a>(
    ui: &Ui,
    found: &FoundWork,
    places: &'a [WorkPlace],
) -> Result<Option<&'a WorkPlace>, Problem> {
    let begun = found.done.len() + found.in_progress.len();
    let message = format!(
        "the plan file says that {} done or begun, and that work is not on the base",
        if begun == 1 { "1 step is".to_owned() } else { format!("{begun} steps are") }
    );
    let rows: Vec<String> = places.iter().map(described).collect();
    if ui.can_ask() {
        ui.talk(format!("{message}:"));
        let mut choices: Vec<String> = rows.iter().map(|row| format!("start from {row}")).collect();
        choices.push("start here, without it".to_owned());
        let choices: Vec<&str> = choices.iter().map(String::as_str).collect();
        if let Some(picked) = ui.pick(&choices) {
            return Ok(places.get(picked));
        }
    }
    let details = rows.into_iter().map(Detail::of).collect();
    let hint = format!(
        "`{}` starts from it; `{}` without it",
        again(&option_of(&places[0])),
        again("--base HEAD")
    );
    Err(Problem::new(Kind::NeedsPerson, message).with_details(details).hint(hint))
}

fn lacking_message(found: &FoundWork) -> Option<String> {
    let (step, commit) = found.lacking.first()?;
    let more = match found.lacking.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    Some(format!(
        "{step}{more} is done in the plan file, but commit {} is not on the base",
        plain(commit)
    ))
}

fn warn_lacking(ui: &Ui, found: &FoundWork) {
    if let Some(message) = lacking_message(found) {
        ui.warn(Kind::Noticed, message, None);
    }
}

/// No branch or worktree is known: commits that the file names may still be missing.
fn without_place(ui: &Ui, opening: &mut Opening, found: &FoundWork) -> Result<(), Problem> {
    let Some(message) = lacking_message(found) else { return Ok(()) };
    let choices = [("a", "do it again"), ("d", "take it as done"), ("q", "quit")];
    if ui.can_ask() {
        ui.talk(&message);
        match ui.choose("What now?", &choices) {
            Some("a") => {
                let steps = found.lacking.iter().map(|(step, _)| step);
                steps.for_each(|step| opening.count_as(step, &FoundState::Pending));
                return Ok(());
            }
            Some("d") => return Ok(()),
            _ => {}
        }
    }
    let hint = format!(
        "name where its work is: `{}`; `{}` takes it as done all the same",
        again("--base REV"),
        again("--base HEAD")
    );
    Err(Problem::new(Kind::NeedsPerson, message).hint(hint))
}

/// Steps that the file says are in progress go on from what is there, unless a person says otherwise.
fn in_progress(
    ui: &Ui,
    opening: &mut Opening,
    steps: &[StepId],
    wish: StartWish,
) -> Result<(), Problem> {
    if steps.is_empty() {
        return Ok(());
    }
    let message = format!("{} in progress in the plan file", names(steps));
    if wish.auto_continue || !ui.can_ask() {
        ui.talk(format!("{message}: started again from what is there"));
        return Ok(());
    }
    let choices = [("c", "continue from what is there"), ("d", "take it as done"), ("q", "quit")];
    match ui.choose(&format!("{message}. What now?"), &choices) {
        Some("c") => Ok(()),
        Some("d") => {
            let done = FoundState::Completed { commit: None };
            steps.iter().for_each(|step| opening.count_as(step, &done));
            Ok(())
        }
        _ => Err(Problem::new(Kind::NeedsPerson, "nothing was started")
            .hint(format!("`{}` continues it", again("--auto-continue")))),
    }
}

/// The plan that is meant where no such file is there: a folder, or a specification by name, number or words. The
/// best match by words is asked about.
pub(crate) fn plan_named(ui: &Ui, named: &Path) -> Result<Option<std::path::PathBuf>, Problem> {
    let Some(text) = named.to_str().filter(|_| !named.is_file()) else { return Ok(None) };
    let Ok(project) = project() else { return Ok(None) };
    let Some(plan) = named_plan(project.git.main_root(), text) else { return Ok(None) };
    let file = from_here(&plan.file);
    let shown = plain(&file.display().to_string());
    if !plan.is_guess {
        ui.talk(format!("{} is {shown}", word(text)));
        return Ok(Some(file));
    }
    let message = format!("{} means {} ({shown})", word(text), plain(&plan.name));
    match ui.ask(&format!("{message}?")) {
        Said::Yes => Ok(Some(file)),
        Said::No => {
            Err(Problem::new(Kind::NeedsPerson, "nothing was started").hint("name the plan's file"))
        }
        Said::Nobody => Err(Problem::new(Kind::Unconfirmed, format!("perhaps {message}"))
            .hint(format!("`piton run {}`", word(&file.display().to_string())))),
    }
}
