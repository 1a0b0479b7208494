//! `piton run`: the main job. Nothing is written before the plan, its agents, inputs, base and trust
//! are in order, and before it is known what becomes of an unfinished run of the same plan.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use piton_core::event::RunOpened;
use piton_core::ids::AgentName;
use piton_core::plan::PlanFormat;
use piton_engine::Access;
use piton_engine::config::{self, Flags, Layers, Loaded};
use piton_engine::git::shell::word;
use piton_engine::opening;
use piton_engine::opening::{OpenAsk, OpenedRun, Opening, Start, Unfinished};
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::plan_file::{self, PlanRead, ReadAs};
use piton_engine::run::preflight::preflight;
use piton_engine::run::snapshot_history::refuse_log_behind;
use piton_engine::trust::TrustList;

use crate::drive::{Work, check_jobs, drive};
use crate::error::{Kind, Problem};
use crate::found_work;
use crate::plan_drift::{self, OnChange};
use crate::preflight;
use crate::start;
use crate::target;
use crate::text::{bold, count};
use crate::trust_prompt::{self, Consent};
use crate::typed::again;
use crate::ui::Ui;
use crate::unfinished_menu::{self, Chosen, Wish};
use crate::verb::{self, Answer, resume};

/// Run a plan
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton run plan.toml
  piton run plan.toml --set focus=security
  piton run plan.toml --auto-continue   continue its unfinished run
  piton run plan.toml --fresh --yes     put that one aside and start over
  piton run plan.toml --detach          do not watch it
  piton run plan.toml --jobs 3          at most three steps at once

Ctrl-C stops the run and saves its work; a second one kills the agents. When the
terminal closes, the run continues: `piton watch` shows it again.
`piton resume` continues after a stop, a reboot or kill -9.")]
pub(crate) struct Args {
    #[command(flatten)]
    begin: Begin,

    /// Continue the plan's unfinished run, if there is one, without asking
    #[arg(long, conflicts_with = "fresh")]
    auto_continue: bool,

    #[command(flatten)]
    work: Work,

    /// How long a claim is believed without a heartbeat
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    lease: Option<Duration>,

    /// How long an agent that is asked to stop may take before it is killed
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    grace: Option<Duration>,

    /// How often changed files are kept in a snapshot, at most
    #[arg(long, value_name = "DURATION", value_parser = snapshot_every)]
    snapshot_every: Option<Duration>,
}

/// Which plan a run is begun of, and with what.
#[derive(Debug, clap::Args)]
pub(crate) struct Begin {
    /// The plan: a file or folder inside the repository, or the name, number or words of a specification
    /// [default: plan.toml, here or above]
    plan: Option<PathBuf>,

    #[command(flatten)]
    reading: Reading,

    /// Replace the value of one of the plan's inputs
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Start from this branch, tag or commit, whatever the plan says
    #[arg(long, value_name = "REV", conflicts_with = "worktree")]
    base: Option<String>,

    /// Start from what this worktree has, uncommitted files included
    #[arg(long, value_name = "PATH")]
    worktree: Option<PathBuf>,

    /// Start a new run; an unfinished one goes to the attic for 30 days
    #[arg(long, conflicts_with = "accept_plan")]
    fresh: bool,

    /// Do what --fresh does without asking
    #[arg(long, requires = "fresh")]
    yes: bool,
}

/// How a plan's file is read.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Reading {
    /// Its format, where it is not found out by itself
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    format: Option<PlanFormat>,

    /// Who does the steps of another tool's plan [default: the only agent that is configured or installed]
    #[arg(long, value_name = "NAME", value_parser = agent)]
    agent: Option<AgentName>,

    /// Leave progress out of another tool's plan file
    #[arg(long)]
    no_write_back: bool,
}

impl Reading {
    pub(crate) fn how(&self) -> ReadAs {
        let Reading { format, agent, no_write_back } = self;
        ReadAs { format: *format, agent: agent.clone(), no_write_back: *no_write_back }
    }
}

impl Begin {
    pub(crate) fn plan(&self, ui: &Ui) -> Result<PathBuf, Problem> {
        let named =
            self.plan.as_deref().map(|plan| found_work::plan_named(ui, plan)).transpose()?;
        match named.flatten() {
            Some(plan) => Ok(plan),
            None => start::plan(self.plan.as_deref()),
        }
    }

    /// Where the run begins.
    pub(crate) fn start(&self) -> Start {
        match (&self.base, &self.worktree) {
            (Some(rev), _) => Start::Base(rev.clone()),
            (None, Some(path)) => Start::Tree(path.clone()),
            (None, None) => Start::Plan,
        }
    }

    /// How the plan's file is read.
    pub(crate) fn how(&self) -> ReadAs {
        self.reading.how()
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    pub(crate) fn unfinished(&self) -> Unfinished {
        if self.fresh { Unfinished::LeaveAside } else { Unfinished::GoOn }
    }

    /// Values of inputs, as they were typed.
    pub(crate) fn inputs(&self) -> Result<BTreeMap<String, String>, Problem> {
        let mut inputs = BTreeMap::new();
        for text in &self.set {
            match text.split_once('=') {
                Some((name, value)) if !name.is_empty() => {
                    inputs.insert(name.to_owned(), value.to_owned());
                }
                _ => {
                    let message = format!("--set {text}: an input is written NAME=VALUE");
                    return Err(Problem::new(Kind::BadInput, message));
                }
            }
        }
        Ok(inputs)
    }
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let given = args.begin.inputs()?;
    let plan = &args.begin.plan(ui)?;
    // Before the repository is looked for: a mistake in the plan is shown anywhere.
    let read = plan_file::read_plan(plan, &args.begin.how())?;
    let project = verb::project()?;
    let flags = Flags { lease: args.lease, grace: args.grace, snapshot_every: args.snapshot_every };
    let loaded = config::load(&Layers::of_process(Some(project.git.main_root())), &flags)?;
    unfollowed(ui, plan, &read);
    let (inputs, settings) = (given.clone(), loaded.settings.clone());
    let start = args.begin.start();
    let ask = OpenAsk { plan: read, inputs, settings, start };
    let mut opening = opening::prepare(&project, ask)?;
    plan_file::check_startable(opening.plan())
        .map_err(|error| Problem::from(error).hint(unstartable(plan, &opening)))?;
    check_jobs(opening.plan(), args.work.jobs)?;
    let consent = Consent::asked(args.work.trust);
    let list = TrustList::new(&project, plan, opening.plan(), &loaded.settings.agents)?;
    trust_prompt::require(ui, &list, consent)?;

    if !args.begin.fresh
        && given.is_empty()
        && let Some(log) = target::completed(&project, plan)?
    {
        return resume::finished(ui, &project, &log, Some(&again("--fresh")));
    }
    let store = project.store(Access::Create)?;
    let typed = plan.to_string_lossy();
    let wish = Wish {
        auto_continue: args.auto_continue || args.work.accept_plan,
        fresh: args.begin.fresh,
        yes: args.begin.yes,
        plan: &typed,
    };
    let found = opening::unended(&store, &opening)?;
    let is_new = found.own.is_none() || args.begin.fresh;
    let on = args.work.drive();
    let unfinished = match unfinished_menu::choose(ui, &project, found, &wish)? {
        Chosen::Own(unfinished) => unfinished,
        Chosen::Over(log) => return resume::finished(ui, &project, &log, Some(&again("--fresh"))),
        Chosen::Near(log) => {
            continued(ui, &project, &log, &Continued { given, loaded, consent })?;
            return drive(ui, &project, *log, on);
        }
    };
    if is_new {
        let is_named = args.begin.start() != Start::Plan;
        let wish = found_work::StartWish { is_named, auto_continue: args.auto_continue };
        found_work::settle(ui, &project, &mut opening, wish)?;
        let here = (opening.plan(), plan.as_path());
        preflight::warn(ui, &preflight(here, &loaded.settings, Some(&project)));
    }
    let log = match opening::open(&project, store, opening, unfinished)? {
        OpenedRun::New(log) => {
            let run = log.run();
            let steps = count(run.plan().steps.len() as u64, "step");
            ui.talk(format!("{}: a new run, {steps}", bold(run.opened.handle.as_str())));
            log
        }
        OpenedRun::Changed(mut log, changed) => {
            let on_change = OnChange::asked(args.work.accept_plan, consent);
            plan_drift::settle(ui, &project, &mut log, changed, on_change)?;
            continued(ui, &project, &log, &Continued { given, loaded, consent })?;
            log
        }
        OpenedRun::Existing(log) => {
            continued(ui, &project, &log, &Continued { given, loaded, consent })?;
            log
        }
    };
    drive(ui, &project, log, on)
}

/// Leaves an unfinished run aside, once that was agreed to, and begins its plan again with the same inputs.
pub(crate) fn start_fresh(
    ui: &Ui,
    plan: PathBuf,
    old: &RunOpened,
    work: Work,
) -> Result<Answer, Problem> {
    let set = old.inputs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let reading = Reading::default();
    let (base, worktree) = (None, None);
    let begin = Begin { plan: Some(plan), reading, set, base, worktree, fresh: true, yes: false };
    let (auto_continue, lease, grace, snapshot_every) = (false, None, None, None);
    run(&Args { begin, auto_continue, work, lease, grace, snapshot_every }, ui)
}

/// Who can do the steps for which nothing is started.
fn unstartable(plan: &Path, opening: &Opening) -> String {
    let plan = word(&plan.display().to_string());
    if opening.plan().source.is_none() {
        return format!(
            "others take them: `piton claim {plan} --worktree .`; or give them `run`, or `prompt` and \
             an agent"
        );
    }
    let installed = plan_file::installed();
    let first = installed.first().map_or("claude", AgentName::as_str);
    let known = match installed.as_slice() {
        [] => "no known agent is installed; `piton agent list` shows those that piton knows"
            .to_owned(),
        all => {
            let names: Vec<&str> = all.iter().map(AgentName::as_str).collect();
            format!("installed: {}", names.join(", "))
        }
    };
    format!("say who does them: `piton run {plan} --agent {first}` ({known})")
}

/// Says that the file has more than a run follows.
pub(crate) fn unfollowed(ui: &Ui, plan: &Path, read: &PlanRead) {
    if !read.warnings.is_empty() {
        let found = count(read.warnings.len() as u64, "thing");
        let plan = word(&plan.display().to_string());
        let message = format!("{found} in {plan} to know about");
        ui.warn(Kind::Noticed, message, Some(format!("`piton plan check {plan}`")));
    }
}

/// What was asked of a run that existed already.
struct Continued {
    given: BTreeMap<String, String>,
    loaded: Loaded,
    consent: Consent,
}

/// Says that an unfinished run is continued, and with what it was opened.
fn continued(ui: &Ui, project: &Project, log: &Log, asked: &Continued) -> Result<(), Problem> {
    refuse_log_behind(project, log)?;
    let run = log.run();
    let done = run.steps().filter(|(_, _, step)| step.is_done()).count();
    let total = run.plan().steps.len();
    let handle = bold(run.opened.handle.as_str());
    ui.talk(format!("{handle}: going on with the unfinished run, {done} of {total} steps done"));
    for (name, value) in &asked.given {
        if run.opened.inputs.get(name) != Some(value) {
            let recorded = run.opened.inputs.get(name).map_or("", String::as_str);
            let message =
                format!("input {name}: the run was opened with {recorded:?} and keeps it");
            ui.warn(Kind::SettingsDiffer, message, None);
        }
    }
    resume::compare_settings(ui, log, &asked.loaded)?;
    resume::require_trust(ui, project, log, asked.consent)
}

pub(crate) fn format(text: &str) -> Result<PlanFormat, String> {
    let known = PlanFormat::ALL.into_iter().find(|format| format.as_str() == text);
    known.ok_or_else(|| {
        let all: Vec<&str> = PlanFormat::ALL.iter().map(|format| format.as_str()).collect();
        format!("the formats are {}", all.join(", "))
    })
}

fn agent(text: &str) -> Result<AgentName, String> {
    AgentName::new(text).map_err(|bad| bad.rule.to_owned())
}

pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    config::LEASE.read(text)
}

fn grace(text: &str) -> Result<Duration, String> {
    config::GRACE.read(text)
}

fn snapshot_every(text: &str) -> Result<Duration, String> {
    config::SNAPSHOT_EVERY.read(text)
}
