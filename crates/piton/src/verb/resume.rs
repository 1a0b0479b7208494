//! `piton resume`: go on, whatever happened. On a terminal it says what was found and what will be done, and asks;
//! the same recovery that every worker asks decides what that is. `--dry-run` shows it and writes nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;

use piton_core::event::Terms;
use piton_core::ids::StepRef;
use piton_core::observed::{Observed, Sighting};
use piton_core::plan::{PlanStep, nearest};
use piton_core::recover::{Action, Recovery};
use piton_core::resume_view::{ResumeView, resume_view};
use piton_core::view::{RunStatus, RunView};
use piton_engine::Access;
use piton_engine::config::{self, Flags, Layers, Loaded};
use piton_engine::error::EngineError;
use piton_engine::project::Project;
use piton_engine::run::condition::{self, Condition};
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, has_worker, look, observe};
use piton_engine::run::plan_file;
use piton_engine::run::runs::{self, GoOn};
use piton_engine::run::snapshot_history::refuse_log_behind;
use piton_engine::run::write_back::changed_by_hand;
use piton_engine::tidy::abandon::is_untouched;
use serde_json::{Value, json};

use crate::by_hand;
use crate::describe::{Prefixes, condition_lines, run_head, steps_done};
use crate::drive::{Drive, Work, check_jobs, drive};
use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::hints::About;
use crate::plan_drift::{self, OnChange};
use crate::resume_plan::{self, BURIED, costs, done, summary};
use crate::text::{bold, dim, now, plain, table};
use crate::trust_prompt::{self, Consent};
use crate::ui::Ui;
use crate::verb::run::start_fresh;
use crate::verb::{self, Answer, next_commands};

/// Continue a run after any interruption
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton resume                  the only unfinished run
  piton resume calm-otter       a run by its handle, or the beginning of it
  piton resume --dry-run        what would be done about each step
  piton resume --steps jwt,ui   only these steps and groups
  piton resume --all --yes      every interrupted run, without watching

Finished steps stay finished. Attempts that are alive are watched; dead ones are
recorded, their work is kept, and the next attempt continues from it. On a
terminal it says so first, and asks.")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,

    /// Show what would be done about each step; write nothing
    #[arg(long, conflicts_with = "accept_plan")]
    dry_run: bool,

    /// Start only these steps: names of steps or groups, or steps by number
    #[arg(long, value_name = "A,B", value_delimiter = ',', conflicts_with = "all")]
    steps: Vec<String>,

    /// Begin interrupted and failed steps again from their base; their work is kept
    #[arg(long)]
    restart: bool,

    /// Continue an agent's step from this reported progress on, in percent [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=100))]
    threshold: Option<u8>,

    /// Every interrupted run of this repository; does not watch them
    #[arg(long, conflicts_with = "run")]
    all: bool,

    /// Do it without asking, and try again what was interrupted too often
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    work: Work,
}

impl Args {
    fn terms(&self, project: &Project, log: &Log) -> Result<Terms, Problem> {
        let steps = chosen(project, log, &self.steps)?;
        let (restart, threshold) = (self.restart, self.threshold);
        Ok(Terms { steps, restart, threshold, ..self.work.terms() })
    }

    fn access(&self) -> Access {
        if self.dry_run { Access::Look } else { Access::Existing }
    }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    if args.all {
        return all(args, ui, &project);
    }
    let mut log = verb::run_of(&project, args.access(), args.run.as_deref())?;
    if log.run().is_completed() {
        return finished(ui, &project, &log, None);
    }
    ready_to_go_on(ui, &project, &mut log, &args.work)?;
    let mut terms = args.terms(&project, &log)?;
    if let Err(nothing) = plan_file::check_rest_startable(log.run()) {
        // Others claim what is left: for them it goes on once the stop is lifted.
        let how = GoOn { confirmed: args.yes, terms };
        return match !args.dry_run && runs::lift(&project, &mut log, &how)? {
            true => lifted(ui, &project, &log),
            false => Err(About::run(&project, &log).problem(nothing)),
        };
    }
    if args.dry_run {
        return dry_run(ui, &Foresight::of(&project, &log, &terms)?);
    }
    if ui.can_ask() && !args.yes && !has_worker(&project, log.run().opened.run) {
        match ask(ui, &project, &log, &terms)? {
            Choice::Resume => {}
            Choice::Restart => terms.restart = true,
            Choice::Fresh => {
                let (plan, opened) = (plan_at(&project, &log), log.run().opened.clone());
                drop(log);
                return start_fresh(ui, plan, &opened, args.work.clone());
            }
        }
    }
    require_trust(ui, &project, &log, Consent::asked(args.work.trust))?;
    ui.talk(format!("{}: going on", bold(log.run().opened.handle.as_str())));
    let go_on = GoOn { confirmed: args.yes, terms };
    drive(ui, &project, log, Drive { go_on, watched: !args.work.detach })
}

/// What a resume would do, with what was seen for it.
struct Foresight<'a> {
    log: &'a Log,
    plan: ResumeView,
    conditions: Vec<(StepRef, Vec<Condition>)>,
}

impl Foresight<'_> {
    fn of<'a>(project: &'a Project, log: &'a Log, terms: &Terms) -> Result<Foresight<'a>, Problem> {
        let conditions = condition::of_run(project, log)?;
        let is_lost =
            |(_, found): &&(StepRef, Vec<Condition>)| found.iter().any(Condition::is_lost);
        let lost = conditions.iter().filter(is_lost).map(|(step, _)| step.clone()).collect();
        let observed = Observed { lost, ..observe(project, log, Depth::Trees) };
        let leases = log.store().leases(log.run().opened.run)?;
        let plan = resume_view(log.run(), (&project.host, terms), &observed, &leases, &log.now()?)
            .map_err(|refusal| About::run(project, log).problem(refusal.into()))?;
        Ok(Foresight { log, plan, conditions })
    }

    /// What there is to say about the worktree of a step, below its line.
    fn conditions_of(&self, step: &StepRef) -> Vec<String> {
        let own = self.conditions.iter().filter(|(of, _)| of == step);
        own.flat_map(|(_, found)| condition_lines(found))
            .map(|line| format!("    {line}"))
            .collect()
    }
}

/// What somebody chose to do with an unfinished run.
enum Choice {
    Resume,
    Restart,
    Fresh,
}

/// Says what was found and what will be done, and asks.
fn ask(ui: &Ui, project: &Project, log: &Log, terms: &Terms) -> Result<Choice, Problem> {
    let foresight = Foresight::of(project, log, terms)?;
    let view = look(project, log, Depth::Locks)?;
    run_head(&view, &Prefixes::new(), now()).iter().for_each(|line| ui.talk(line));
    summary(log.run(), &foresight.plan).iter().for_each(|line| ui.talk(line));
    for (step, _) in &foresight.conditions {
        foresight.conditions_of(step).iter().for_each(|line| ui.talk(format!("  {step}:{line}")));
    }
    let choices = [
        "resume (Enter)",
        "restart interrupted and failed steps from their base (--restart)",
        "look (--dry-run)",
        "abandon this run and start fresh",
    ];
    loop {
        match ui.pick(&choices) {
            Some(0) => return Ok(Choice::Resume),
            Some(1) => return Ok(Choice::Restart),
            Some(2) => {
                dry_run(ui, &foresight)?;
            }
            Some(_) => return Ok(Choice::Fresh),
            None => {
                let handle = &view.handle;
                let message = format!("{handle} stays as it is");
                return Err(Problem::new(Kind::UnfinishedRun, message)
                    .hint(format!("without being asked: `piton resume {handle} --yes`")));
            }
        }
    }
}

/// Goes on with every interrupted run of the repository.
fn all(args: &Args, ui: &Ui, project: &Project) -> Result<Answer, Problem> {
    let store = verb::store_with_runs(project, args.access())?;
    let mut meant = Vec::new();
    for found in runs::unfinished_runs(project, &store)? {
        match found {
            Err(damaged) => ui.report(&EngineError::from(damaged.error).into()),
            Ok(log) => {
                let view = look(project, &log, Depth::Locks)?;
                if is_interrupted(&view) && !is_untouched(log.run()) {
                    meant.push((log, view));
                }
            }
        }
    }
    if meant.is_empty() {
        ui.line("no run of this repository is interrupted")?;
        return Ok(Answer::new(json!({ "runs": [] })));
    }
    for (log, view) in meant.iter().filter(|_| !args.dry_run && ui.can_ask() && !args.yes) {
        ui.talk(&run_head(view, &Prefixes::new(), now())[0]);
        let foresight = Foresight::of(project, log, &args.terms(project, log)?)?;
        summary(log.run(), &foresight.plan).iter().for_each(|line| ui.talk(line));
    }
    if !args.dry_run
        && ui.can_ask()
        && !args.yes
        && ui.pick(&["resume all of them (Enter)"]).is_none()
    {
        return Err(Problem::new(Kind::UnfinishedRun, "they stay as they are")
            .hint("without being asked: `piton resume --all --yes`"));
    }
    let (mut rows, mut exit) = (Vec::new(), ExitStatus::Ok);
    for (log, view) in meant {
        match one_of_all(args, ui, project, log) {
            Ok(answer) => rows.push(answer.data),
            // The others go on all the same.
            Err(problem) => {
                exit = problem.kind.exit();
                rows.push(json!({ "handle": view.handle, "error": problem.message }));
                ui.report(&problem);
            }
        }
    }
    Ok(Answer::new(json!({ "runs": rows })).exiting(exit).after_writing(&store))
}

fn one_of_all(args: &Args, ui: &Ui, project: &Project, mut log: Log) -> Result<Answer, Problem> {
    ready_to_go_on(ui, project, &mut log, &args.work)?;
    let terms = args.terms(project, &log)?;
    if args.dry_run {
        return dry_run(ui, &Foresight::of(project, &log, &terms)?);
    }
    require_trust(ui, project, &log, Consent::asked(args.work.trust))?;
    let go_on = GoOn { confirmed: args.yes, terms };
    drive(ui, project, log, Drive { go_on, watched: false })
}

/// Whether a run was cut off: nothing goes on with it, and it could.
fn is_interrupted(view: &RunView) -> bool {
    let could = matches!(
        view.status,
        RunStatus::Interrupted { .. }
            | RunStatus::Stopped { .. }
            | RunStatus::Lapsed { .. }
            | RunStatus::Running
            | RunStatus::Parked { .. }
            | RunStatus::Open
    );
    could && !view.worker
}

/// The steps that are meant: by name, by their group's, or by their number in the plan.
fn chosen(project: &Project, log: &Log, typed: &[String]) -> Result<BTreeSet<StepRef>, Problem> {
    let mut steps = BTreeSet::new();
    for text in typed.iter().map(|text| text.trim()) {
        let ids = |meant: &dyn Fn(usize, &PlanStep) -> bool| {
            let all = log.run().plan().steps.iter().enumerate();
            let all = all.filter(|(n, step)| meant(*n, step));
            all.filter_map(|(_, step)| log.run().present(&step.id)).collect::<Vec<_>>()
        };
        let mut found = ids(&|_, step| step.id.as_str() == text);
        if found.is_empty() {
            found = ids(&|_, step| step.group.as_ref().is_some_and(|own| own.as_str() == text));
        }
        if found.is_empty() {
            found = ids(&|n, _| text.parse() == Ok(n + 1));
        }
        if found.is_empty() {
            return Err(unknown(log, text));
        }
        steps.extend(found);
    }
    with_needs(project, log, steps)
}

/// Nothing is chosen that would wait for what is not.
fn with_needs(
    project: &Project,
    log: &Log,
    steps: BTreeSet<StepRef>,
) -> Result<BTreeSet<StepRef>, Problem> {
    let run = log.run();
    let observed = observe(project, log, Depth::Locks);
    let held = |step: &StepRef| {
        let mut others = run.held().filter(|(held, _)| held == step);
        others.any(|(_, held)| !matches!(observed.of(held.id), Sighting::Dead(_)))
    };
    let needs = |step: &StepRef| {
        let index =
            run.index_of(step).filter(|_| run.step(step).is_some_and(|(_, s)| !s.is_done()));
        let needs = index.map(|index| run.unmet(index)).unwrap_or_default();
        let needs = needs.iter().filter_map(|need| run.present(need.step()?));
        needs.filter(|need| !held(need)).collect::<Vec<_>>()
    };
    let mut all = steps.clone();
    let mut missing: Option<(StepRef, StepRef)> = None;
    let mut left: Vec<StepRef> = steps.into_iter().collect();
    while let Some(step) = left.pop() {
        for need in
            needs(&step).into_iter().filter(|need| all.insert(need.clone())).collect::<Vec<_>>()
        {
            missing.get_or_insert((step.clone(), need.clone()));
            left.push(need);
        }
    }
    match missing {
        None => Ok(all),
        Some((step, need)) => {
            let names: Vec<String> = all.iter().map(ToString::to_string).collect();
            let message = format!("step {step} needs {need}, which --steps leaves out");
            let handle = &run.opened.handle;
            let hint = format!("`piton resume {handle} --steps {}`", names.join(","));
            Err(Problem::new(Kind::Refused, message).hint(hint))
        }
    }
}

fn unknown(log: &Log, text: &str) -> Problem {
    let plan = log.run().plan();
    let steps = plan.steps.iter().map(|step| step.id.as_str());
    let names: Vec<&str> = plan.groups.keys().map(|group| group.as_str()).chain(steps).collect();
    let hint = match nearest(text, names.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => {
            let names: Vec<&str> = names.into_iter().take(20).collect();
            format!("there are: {}; or 1 to {}", names.join(", "), plan.steps.len())
        }
    };
    let message = format!("--steps: the plan has no step, group or number {text:?}");
    Problem::new(Kind::UnknownStep, message).hint(hint)
}

/// Where the plan of a run is, as it is typed from here.
fn plan_at(project: &Project, log: &Log) -> PathBuf {
    verb::from_here(&plan_file::plan_file(project, log.run()))
}

/// Everything that can be refused before an unfinished run goes on, and its plan as the file is now.
pub(crate) fn ready_to_go_on(
    ui: &Ui,
    project: &Project,
    log: &mut Log,
    work: &Work,
) -> Result<(), Problem> {
    if log.run().abandoned.is_some() {
        let refusal = piton_core::refusal::Refusal::RunAbandoned;
        return Err(About::run(project, log).problem(refusal.into()));
    }
    refuse_log_behind(project, log)?;
    let loaded = load(project)?;
    if let Some(changed) = plan_file::drift(project, log.run())? {
        let on_change = OnChange::asked(work.accept_plan, Consent::asked(work.trust));
        plan_drift::settle(ui, project, log, changed, on_change)?;
    }
    check_jobs(log.run().plan(), work.jobs)?;
    compare_settings(ui, log, &loaded)
}

pub(crate) fn load(project: &Project) -> Result<Loaded, Problem> {
    let layers = Layers::of_process(Some(project.git.main_root()));
    Ok(config::load(&layers, &Flags::default())?)
}

/// Shows where the recorded settings, which are used, differ from the present ones.
pub(crate) fn compare_settings(ui: &Ui, log: &Log, loaded: &Loaded) -> Result<(), Problem> {
    let recorded = runs::settings_of(log)?;
    for difference in config::differences(&recorded, loaded) {
        ui.warn(Kind::SettingsDiffer, plain(&difference), None);
    }
    Ok(())
}

/// Asks for trust in what the run has recorded.
pub(crate) fn require_trust(
    ui: &Ui,
    project: &Project,
    log: &Log,
    consent: Consent,
) -> Result<(), Problem> {
    trust_prompt::require(ui, &runs::trust_list(project, log)?, consent)
}

pub(crate) fn lifted(ui: &Ui, project: &Project, log: &Log) -> Result<Answer, Problem> {
    let view = look(project, log, Depth::Locks)?;
    let handle = bold(view.handle.as_str());
    ui.line(format!("{handle}: no longer stopped; others claim its steps"))?;
    ui.hint(format!("`piton ready {}`", view.handle));
    let next = next_commands(project, &view);
    let data = json!({ "outcome": "lifted", "run": view, "next": next });
    Ok(Answer::new(data).after_writing(log.store()))
}

/// Tells of a run that is completed; and how to start its plan again, where that was asked for.
pub(crate) fn finished(
    ui: &Ui,
    project: &Project,
    log: &Log,
    again: Option<&str>,
) -> Result<Answer, Problem> {
    let view = look(project, log, Depth::Locks)?;
    let steps = steps_done(&view);
    ui.line(format!("{} is completed: {steps}", bold(view.handle.as_str())))?;
    by_hand::tell(ui, log.run(), &changed_by_hand(project, log.run()));
    if let Some(again) = again {
        ui.hint(format!("run it all again: `{again}`"));
    }
    for command in next_commands(project, &view) {
        ui.line(format!("  {command}"))?;
    }
    Ok(Answer::new(
        json!({ "outcome": "completed", "run": view, "next": next_commands(project, &view) }),
    ))
}

/// A line a step, with the number by which it can be chosen.
fn dry_run(ui: &Ui, foresight: &Foresight<'_>) -> Result<Answer, Problem> {
    let Foresight { log, plan, conditions, .. } = foresight;
    let (run, handle) = (log.run(), &log.run().opened.handle);
    ui.line(format!("{}: `piton resume` would", bold(handle.as_str())))?;
    let row = |(n, recovery): (usize, &Recovery)| {
        vec![format!("{:>3}", n + 1), recovery.step.to_string(), done(run, recovery)]
    };
    let rows: Vec<Vec<String>> = plan.steps.iter().enumerate().map(row).collect();
    let names = rows.iter().map(|row| row[1].chars().count()).max().unwrap_or_default();
    let indent = " ".repeat(names + "  1    ".len());
    let lines = table(&rows);
    for (line, recovery) in lines.into_iter().zip(&plan.steps) {
        ui.line(line)?;
        if let Action::Bury { .. } = recovery.action {
            ui.line(dim(&format!("{indent}first: {BURIED}")))?;
        }
        for line in foresight.conditions_of(&recovery.step) {
            ui.line(line)?;
        }
    }
    for line in table(&costs(plan)) {
        ui.line(line)?;
    }
    ui.line(dim("Nothing was written."))?;
    let mut data = resume_plan::to_json(run, plan);
    if let Value::Object(fields) = &mut data {
        fields.insert("handle".to_owned(), json!(handle));
        fields.insert("dry_run".to_owned(), json!(true));
        fields.insert("worktrees".to_owned(), verb::conditions(conditions));
    }
    Ok(Answer::new(data))
}
