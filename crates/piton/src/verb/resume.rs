//! `piton resume`: go on, whatever happened. The same recovery that every worker asks decides what is
//! done about each step; `--dry-run` shows it and writes nothing.

use piton_core::event::{Cause, Entry};
use piton_core::observed::Observed;
use piton_core::recover::{Action, Because, Recovery, on_resume};
use piton_core::run::Run;
use piton_engine::Access;
use piton_engine::config::{self, Flags, Layers, Loaded};
use piton_engine::project::Project;
use piton_engine::run::condition;
use piton_engine::run::log::Log;
use piton_engine::run::observe::{Depth, look, observe};
use piton_engine::run::plan_file;
use piton_engine::run::runs;
use piton_engine::run::snapshot_history::refuse_log_behind;
use serde_json::{Value, json};

use crate::describe::{condition_lines, steps_done};
use crate::drive::{Drive, Work, check_jobs, drive};
use crate::error::{Kind, Problem};
use crate::hints::About;
use crate::plan_drift::{self, OnChange};
use crate::text::{bold, clipped, dim, plain, table};
use crate::trust_prompt::{self, Consent};
use crate::ui::Ui;
use crate::verb::{self, Answer, next_commands};

/// Continue a run after any interruption
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton resume                  the only unfinished run
  piton resume auth-calm-otter  a run by its handle, or the beginning of it
  piton resume --dry-run        what would be done about each step

Finished steps stay finished. Attempts that are alive are watched; dead ones are
recorded, their work is kept, and the next attempt continues from it.")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,

    /// Show what would be done about each step; write nothing
    #[arg(long, conflicts_with = "accept_plan")]
    dry_run: bool,

    /// Answer yes where recovery would ask
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    work: Work,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let access = if args.dry_run { Access::Look } else { Access::Existing };
    let mut log = verb::run_of(&project, access, args.run.as_deref())?;
    if log.run().is_completed() {
        return finished(ui, &project, &log, None);
    }
    ready_to_go_on(ui, &project, &mut log, &args.work)?;
    if let Err(nothing) = plan_file::check_rest_startable(log.run()) {
        // Others claim what is left: for them it goes on once the stop is lifted.
        return match !args.dry_run && runs::lift(&project, &mut log, args.yes)? {
            true => lifted(ui, &project, &log),
            false => Err(About::run(&project, &log).problem(nothing)),
        };
    }
    if args.dry_run {
        return dry_run(ui, &project, &log, args.work.jobs);
    }
    require_trust(ui, &project, &log, Consent::asked(args.work.trust))?;
    ui.talk(format!("{}: going on", bold(log.run().opened.handle.as_str())));
    let how = Drive { confirmed: args.yes, watched: !args.work.detach, jobs: args.work.jobs };
    drive(ui, &project, log, how)
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

fn dry_run(ui: &Ui, project: &Project, log: &Log, jobs: Option<u32>) -> Result<Answer, Problem> {
    let observed = Observed { jobs, ..observe(project, log, Depth::Trees) };
    let leases = log.store().leases(log.run().opened.run)?;
    let recoveries = on_resume(log.run(), &project.host, &observed, &leases, &log.now()?);
    let handle = &log.run().opened.handle;
    ui.line(format!("{}: `piton resume` would", bold(handle.as_str())))?;
    let row =
        |recovery: &Recovery| vec![format!("  {}", recovery.step), describe(log.run(), recovery)];
    let conditions = condition::of_run(project, log)?;
    let lines = table(&recoveries.iter().map(row).collect::<Vec<_>>());
    for (line, recovery) in lines.into_iter().zip(&recoveries) {
        ui.line(line)?;
        let own = conditions.iter().filter(|(step, _)| *step == recovery.step);
        for line in own.flat_map(|(_, conditions)| condition_lines(conditions)) {
            ui.line(format!("    {line}"))?;
        }
    }
    ui.line(dim("Nothing was written."))?;
    let steps: Vec<Value> = recoveries
        .iter()
        .map(|recovery| {
            json!({
                "step": recovery.step.step,
                "iteration": recovery.step.iteration,
                "action": word_for(&recovery.action),
                "text": describe(log.run(), recovery),
            })
        })
        .collect();
    let worktrees = verb::conditions(&conditions);
    Ok(Answer::new(
        json!({ "handle": handle, "dry_run": true, "steps": steps, "worktrees": worktrees }),
    ))
}

/// The longest question that is shown in full among what would be done.
const QUESTION_SHOWN: usize = 200;

fn word_for(action: &Action) -> &'static str {
    match action {
        Action::Skip => "skip",
        Action::Adopt { .. } => "adopt",
        Action::Bury { .. } => "bury",
        Action::Expire { .. } => "expire",
        Action::Start { .. } => "enter",
        Action::AwaitLease { .. } => "await_lease",
        Action::AwaitNeeds | Action::AwaitFailed { .. } => "await_needs",
        Action::AwaitTree { .. } => "await_tree",
        Action::AwaitJobs { .. } => "await_jobs",
        Action::AwaitLock { .. } => "await_lock",
        Action::AwaitHolder => "await_holder",
        Action::StayStopped => "stay_stopped",
        Action::StayFailed => "stay_failed",
        Action::AwaitAnswer { .. } => "await_answer",
        Action::Ask { .. } => "ask",
    }
}

/// What is done about a step, in words.
fn describe(run: &Run, recovery: &Recovery) -> String {
    let needs = || {
        let index = run.index_of(&recovery.step);
        let needs = index.map(|index| run.unmet(index)).unwrap_or_default();
        format!("wait for {}", needs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    };
    describe_with(&recovery.action, &needs)
}

fn describe_with(action: &Action, needs: &dyn Fn() -> String) -> String {
    match action {
        Action::Skip => "skip: done".to_owned(),
        Action::Adopt { .. } => "watch: its attempt is alive".to_owned(),
        Action::Bury { then, .. } => {
            let then = match &**then {
                // There is no such question yet.
                Action::AwaitAnswer { .. } => "ask how it goes on".to_owned(),
                then => describe_with(then, needs),
            };
            format!("record that its attempt is dead, keep its work, then {then}")
        }
        Action::Expire { .. } => {
            "record that its holder is lost, then ask how it goes on".to_owned()
        }
        Action::Start { entry, because } => format!("{}{}", entered(*entry), reason(because)),
        Action::AwaitLease { .. } => {
            "wait: another holder has it until its lease is over".to_owned()
        }
        Action::AwaitNeeds => needs(),
        Action::AwaitFailed { by } => format!("wait for {by}"),
        Action::AwaitTree { by } => format!("wait: {by} works in the worktree first"),
        Action::AwaitJobs { jobs } => format!("wait: at most {jobs} at once"),
        Action::AwaitLock { lock, by } => {
            let by: Vec<String> = by.iter().map(ToString::to_string).collect();
            format!("wait for lock {lock}, which {} has", by.join(", "))
        }
        Action::AwaitHolder => "wait until it is claimed: piton starts nothing for it".to_owned(),
        Action::StayStopped => "leave it stopped".to_owned(),
        Action::StayFailed => "leave it failed: no retries left".to_owned(),
        Action::AwaitAnswer { question, text } => {
            format!("ask again: {question} {}", clipped(text, QUESTION_SHOWN))
        }
        Action::Ask { question } => format!("ask: {} (or --yes)", plain(question)),
    }
}

fn entered(entry: Entry) -> &'static str {
    match entry {
        Entry::Fresh => "start from the step's base",
        Entry::Continue => "continue in the tree as it was left",
        Entry::Verify => "verify and land; the agent is not started again",
        Entry::Land => "land; the agent is not started again",
    }
}

fn reason(because: &Because) -> String {
    match because {
        Because::NeedsMet => String::new(),
        Because::Interrupted(cause) => format!(" (interrupted: {})", Cause::as_str(*cause)),
        Because::Failed(why) => format!(" (retry: it {})", plain(&why.to_string())),
        Because::Answered => " (as was answered)".to_owned(),
        Because::HolderLost => " (its host was lost)".to_owned(),
    }
}
