//! `piton status`: what is going on, what needs a person first. Looks and records nothing.

use piton_core::ids::StepRef;
use piton_core::view::{RunStatus, RunView};
use piton_engine::git::shell;
use piton_engine::project::Project;
use piton_engine::registry;
use piton_engine::run::condition::{self, Condition};
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, look};
use piton_engine::run::runs::{self, Unreadable};
use piton_engine::{Access, Runs};
use serde_json::{Value, json};

use crate::describe::{Prefixes, condition_lines, is_unattended, open_questions, run_row};
use crate::error::Problem;
use crate::exit::ExitStatus;
use crate::next::tell_next;
use crate::page::{Extent, run_page};
use crate::text::{bold, now, table};
use crate::ui::Ui;
use crate::verb::{self, Answer, json as to_json, next_commands};

/// Show what is going on, and what needs you first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton status               unfinished runs of this repository
  piton status --all         of every repository that you ran piton in
  piton status --ended       finished runs too
  piton status calm-otter    one run
  piton status --json | jq -r '.data.runs[] | .handle + \" \" + .status'")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan
    run: Option<String>,

    /// Of every repository that you ran piton in
    #[arg(long, conflicts_with = "run")]
    all: bool,

    /// Finished runs too
    #[arg(long, conflicts_with = "run")]
    ended: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let which = if args.ended { WhichRuns::All } else { WhichRuns::Unfinished };
    if args.all {
        return everywhere(ui, which);
    }
    let project = verb::project()?;
    match &args.run {
        Some(asked) => one(ui, &project, asked),
        None => {
            let place = Surveyed::look(project, which)?;
            tell(ui, vec![place], Breadth { all: false, ended: args.ended })
        }
    }
}

fn one(ui: &Ui, project: &Project, asked: &str) -> Result<Answer, Problem> {
    let log = verb::run_of(project, Access::Look, Some(asked))?;
    let view = look(project, &log, Depth::Refs)?;
    let prefixes = runs::unique_prefixes(log.store())?;
    let conditions = tell_page(ui, (project, &log), &view, &prefixes)?;
    let next = next_commands(project, &view);
    tell_next(ui, &next)?;
    let data = || json!({ "run": view, "worktrees": verb::conditions(&conditions), "next": next });
    let answer = Answer::on_demand(ui, data);
    // The process ends with its answer: taking thousands of steps apart would only take time.
    std::mem::forget((log, view));
    Ok(answer)
}

/// Everything that fits on a page about one run, and what its worktrees were found in.
pub(crate) fn tell_page(
    ui: &Ui,
    (project, log): (&Project, &Log),
    view: &RunView,
    prefixes: &Prefixes,
) -> Result<Vec<(StepRef, Vec<Condition>)>, Problem> {
    ui.lines(&run_page(view, prefixes, Extent::Full, now()))?;
    let conditions = condition::of_run(project, log)?;
    for (step, conditions) in &conditions {
        for line in condition_lines(conditions) {
            ui.line(format!("  {step}: {line}"))?;
        }
    }
    Ok(conditions)
}

/// Every repository that this user ran piton in. One that cannot be read never hides the others.
fn everywhere(ui: &Ui, which: WhichRuns) -> Result<Answer, Problem> {
    let mut places = Vec::new();
    for project in registry::projects() {
        match Surveyed::look(project, which) {
            Ok(place) => places.push(place),
            Err(problem) => ui.report(&problem),
        }
    }
    tell(ui, places, Breadth { all: true, ended: which == WhichRuns::All })
}

/// What was asked for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Breadth {
    all: bool,
    ended: bool,
}

/// A repository and what was seen of its runs.
pub(crate) struct Surveyed {
    project: Project,
    prefixes: Prefixes,
    /// Unfinished runs, the most urgent first.
    open: Vec<RunView>,
    /// The others, the newest first.
    over: Vec<RunView>,
    damaged: Vec<Unreadable>,
}

impl Surveyed {
    pub(crate) fn look(project: Project, which: WhichRuns) -> Result<Surveyed, Problem> {
        let prefixes = match verb::store_for_looking(&project)? {
            Some(store) => runs::unique_prefixes(&store)?,
            None => Prefixes::new(),
        };
        let Survey { mut views, damaged } = survey(&project, which)?;
        views.reverse();
        let (over, mut open): (Vec<_>, Vec<_>) = views.into_iter().partition(is_over);
        open.sort_by_key(attention);
        Ok(Surveyed { project, prefixes, open, over, damaged })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.over.is_empty() && self.damaged.is_empty()
    }

    /// What is unfinished; without any, the newest run is what a person comes back for.
    pub(crate) fn or_newest(mut self) -> Surveyed {
        self.over.truncate(1);
        if self.open.is_empty() {
            self.open.append(&mut self.over);
        }
        self.over.clear();
        self
    }

    /// A command as it is typed here.
    fn typed_here(&self, command: String, breadth: Breadth) -> String {
        let root = shell::path(self.project.git.main_root());
        match command.split_once(' ') {
            Some((program, rest)) if breadth.all => format!("{program} -C {root} {rest}"),
            _ => command,
        }
    }
}

/// Shows the runs of repositories and what to type next.
pub(crate) fn tell(
    ui: &Ui,
    mut places: Vec<Surveyed>,
    breadth: Breadth,
) -> Result<Answer, Problem> {
    places.sort_by_key(|place| place.open.iter().map(attention).min().unwrap_or(u8::MAX));
    let open: usize = places.iter().map(|place| place.open.len()).sum();
    let (mut next, mut rows, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    let mut is_first = true;
    for place in &mut places {
        let root = place.project.git.main_root().display().to_string();
        let is_empty = place.open.is_empty() && place.over.is_empty();
        if breadth.all && !is_empty {
            space(ui, &mut is_first)?;
            ui.line(bold(&root))?;
            is_first = true;
        }
        for view in &place.open {
            space(ui, &mut is_first)?;
            match (open, breadth.all) {
                (1, false) => {
                    let handle = view.handle.as_str();
                    let log = verb::run_of(&place.project, Access::Look, Some(handle))?;
                    tell_page(ui, (&place.project, &log), view, &place.prefixes)?;
                }
                _ => ui.lines(&run_page(view, &place.prefixes, Extent::Brief, now()))?,
            }
            let commands = next_commands(&place.project, view).into_iter();
            next.extend(commands.map(|command| place.typed_here(command, breadth)));
        }
        if !place.over.is_empty() {
            space(ui, &mut is_first)?;
            let row = |view: &RunView| run_row(view, &place.prefixes, now());
            ui.lines(&table(&place.over.iter().map(row).collect::<Vec<_>>()))?;
        }
        rows.extend(place.open.iter().chain(&place.over).map(|view| row(&root, view)));
        for unreadable in std::mem::take(&mut place.damaged) {
            damaged.push(json!({ "run": unreadable.row.run, "repository": root }));
            ui.report(&Problem::from(unreadable.error));
        }
    }
    let exit = if damaged.is_empty() { ExitStatus::Ok } else { ExitStatus::Corrupt };
    match (rows.is_empty() && damaged.is_empty(), breadth.ended) {
        (true, true) => ui.line("No runs yet.")?,
        (true, false) => ui.line("No unfinished runs.")?,
        (false, _) => {}
    }
    if next.is_empty() {
        next.push(match (rows.is_empty(), breadth.ended) {
            (true, false) => "piton status --ended".to_owned(),
            _ => "piton run --help".to_owned(),
        });
    }
    tell_next(ui, &next)?;
    Ok(Answer::on_demand(ui, || json!({ "runs": rows, "damaged": damaged, "next": next }))
        .exiting(exit))
}

/// An empty line between two things.
fn space(ui: &Ui, is_first: &mut bool) -> Result<(), Problem> {
    match std::mem::replace(is_first, false) {
        true => Ok(()),
        false => ui.line(""),
    }
}

fn row(repository: &str, view: &RunView) -> Value {
    let mut row = to_json(view);
    row["repository"] = repository.into();
    row
}

/// Of more runs than these git is not asked what a dead attempt has kept and not recorded: it takes a process
/// each. The page of one run says it.
const LOOKED_INTO: usize = 10;

/// Which runs to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhichRuns {
    All,
    /// Not completed, and not left aside unless something of it is alive.
    Unfinished,
}

/// Every run that could be read, and every one that could not.
pub(crate) struct Survey {
    pub(crate) views: Vec<RunView>,
    pub(crate) damaged: Vec<Unreadable>,
}

/// Looks at runs, the oldest first; a damaged one never hides the others.
pub(crate) fn survey(project: &Project, which: WhichRuns) -> Result<Survey, Problem> {
    let mut found = Survey { views: Vec::new(), damaged: Vec::new() };
    let Some(store) = verb::store_for_looking(project)? else { return Ok(found) };
    let logs = match which {
        WhichRuns::All => runs::list(&store, &Runs::All)?,
        WhichRuns::Unfinished => runs::unfinished_runs(project, &store)?,
    };
    let depth = if logs.len() > LOOKED_INTO { Depth::Locks } else { Depth::Refs };
    for log in logs {
        match log {
            Ok(log) => found.views.push(look(project, &log, depth)?),
            Err(damaged) => found.damaged.push(*damaged),
        }
    }
    if which == WhichRuns::Unfinished {
        found.views.retain(|view| !is_over(view));
    }
    Ok(found)
}

fn is_over(view: &RunView) -> bool {
    matches!(view.status, RunStatus::Completed | RunStatus::Abandoned { .. })
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
        RunStatus::Parked { .. } if !view.worker => 3,
        RunStatus::Open | RunStatus::Running | RunStatus::Parked { .. } => 4,
        RunStatus::Completed | RunStatus::Abandoned { .. } => 5,
    }
}
