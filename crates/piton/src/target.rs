//! What the verbs for agents and scripts share: which run and step they are about, and the claim that
//! they write under. Inside an attempt the keeper's variables answer all three.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use piton_core::event::Under;
use piton_core::ids::{Fence, RunId, StepRef};
use piton_core::limits::EVIDENCE_BYTES_MAX;
use piton_core::run::Run;
use piton_engine::Access;
use piton_engine::config::{self, Flags, Layers};
use piton_engine::error::EngineError;
use piton_engine::git::shell::word;
use piton_engine::opening;
use piton_engine::opening::{NearRun, OpenAsk, OpenedRun, Start, Unended, Unfinished};
use piton_engine::outside::claims::{self, ClaimName};
use piton_engine::outside::outside_snapshots::{self, Kept};
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::plan_file::{self, ReadAs};
use piton_engine::run::runs;
use piton_engine::tidy::abandon::is_untouched;
use serde_json::{Value, json};

use crate::error::{Kind, Problem};
use crate::found_work;
use crate::hints::{About, NamedClaim};
use crate::plan_drift::{self, OnChange};
use crate::remedy::first_run;
use crate::start;
use crate::text::plain;
use crate::typed::again;
use crate::ui::Ui;

/// What the environment says: set by the keeper for everything inside an attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inside {
    pub(crate) run: Option<String>,
    pub(crate) step: Option<String>,
    fence: Option<String>,
}

impl Inside {
    pub(crate) fn of_process() -> Inside {
        let var = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Inside {
            run: var("PITON_RUN"),
            // A step of a loop is spelled `review#3`.
            step: var("PITON_STEP").map(|text| text.split('#').next().unwrap_or("").to_owned()),
            fence: var("PITON_FENCE"),
        }
    }

    /// The fence that is inherited; a word that is none is named rather than passed over.
    pub(crate) fn fence(&self) -> Result<Option<Fence>, Problem> {
        let Some(text) = &self.fence else { return Ok(None) };
        match text.parse() {
            Ok(fence) => Ok(Some(Fence(fence))),
            Err(_) => {
                let message =
                    format!("PITON_FENCE is {text:?}, which is not the number of a claim");
                Err(Problem::new(Kind::Usage, message)
                    .hint("`unset PITON_FENCE`, or name the claim: --fence, or `--worktree .`"))
            }
        }
    }
}

/// Refuses what waits for an attempt to end, inside of that attempt: it would wait for itself.
pub(crate) fn refuse_inside(log: &Log, verb: &str) -> Result<(), Problem> {
    let inside = Inside::of_process();
    let (Some(run), Some(step)) = (&inside.run, &inside.step) else { return Ok(()) };
    if !is_run(log, run) {
        return Ok(());
    }
    let message = format!("`piton {verb}` inside step {step} of {run} would wait for itself");
    Err(Problem::new(Kind::Refused, message)
        .hint("the step ends when its agent exits; what it may tell of itself: `piton help`"))
}

/// Which step a verb is about.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// The run: its handle or the beginning of it, or its plan [default: PITON_RUN, the claim made from
    /// here, or the unfinished one]
    #[arg(value_name = "PLAN|RUN")]
    pub(crate) run: Option<String>,

    /// The step [default: PITON_STEP, or the one claimed from here]
    pub(crate) step: Option<String>,
}

/// How a write names its claim.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ByClaim {
    /// The fence of your claim [default: PITON_FENCE, or the claim made from here]
    #[arg(long, value_name = "N")]
    pub(crate) fence: Option<u64>,

    /// The worktree that you claimed the step from
    #[arg(long, value_name = "PATH", conflicts_with = "fence")]
    pub(crate) worktree: Option<PathBuf>,
}

/// Whether run and step need not be named: inside an attempt, or in the worktree of a claim.
pub(crate) fn is_step_known() -> Result<bool, Problem> {
    let Inside { run, step, .. } = Inside::of_process();
    Ok((run.is_some() && step.is_some()) || claimed_here(&start::project()?)?.is_some())
}

/// The run and the step that were claimed from the worktree that piton was started in.
fn claimed_here(project: &Project) -> Result<Option<(Log, StepRef)>, Problem> {
    if !project.has_store() {
        return Ok(None);
    }
    let (store, here) = (project.store(Access::Existing)?, start::here()?);
    let claim = |run: &Run| claims::held_in(project, run, &here);
    let log = runs::find_that(project, &store, |run| claim(run).is_some())?;
    Ok(log.and_then(|log| claim(log.run()).map(|claim| (log, claim.step))))
}

/// A step that a verb writes to.
pub(crate) struct Target {
    pub(crate) project: Project,
    pub(crate) log: Log,
    pub(crate) step: StepRef,
    /// How the claim is named that it is written under.
    by: ByClaim,
    /// The run was named by its plan.
    by_plan: bool,
}

impl Target {
    /// For a write that is under no claim.
    pub(crate) fn find(which: &Which) -> Result<Target, Problem> {
        Target::claimed(which, &ByClaim::default())
    }

    /// For a write under a claim, with a word of its own behind the run and the step: `RUN STEP WORD`,
    /// or `WORD` alone inside an attempt.
    pub(crate) fn behind(
        words: &[String],
        by: &ByClaim,
        what: &str,
    ) -> Result<(Target, String), Problem> {
        let (which, word) = before_last(words);
        let named = which.step.is_some() || Inside::of_process().step.is_some();
        let named = named || (which.run.is_none() && is_step_known()?);
        match named {
            true => Ok((Target::claimed(&which, by)?, word)),
            false => Err(unnamed(&which, &word, what)?),
        }
    }

    /// For a write under a claim.
    pub(crate) fn claimed(which: &Which, by: &ByClaim) -> Result<Target, Problem> {
        let inside = Inside::of_process();
        let project = start::project()?;
        if which.run.is_none()
            && which.step.is_none()
            && inside.run.is_none()
            && let Some((log, step)) = claimed_here(&project)?
        {
            return Ok(Target { project, log, step, by: by.clone(), by_plan: false });
        }
        let log = existing(&project, which.run.as_deref())?;
        let Some(step) = which.step.as_ref().or(inside.step.as_ref()) else {
            let handle = &log.run().opened.handle;
            let message = format!("missing STEP, after the run: {handle} STEP");
            let hint = format!("`piton show {handle}` lists the steps");
            return Err(Problem::new(Kind::Usage, message).hint(hint));
        };
        let step = step_of(&log, step)?;
        let opened = &log.run().opened;
        let names = |text: &str| {
            opened.handle.as_str().starts_with(text) || opened.run.to_string().starts_with(text)
        };
        let by_plan = which.run.as_deref().is_some_and(|text| !names(text));
        Ok(Target { project, log, step, by: by.clone(), by_plan })
    }

    /// An error with what can be done about it.
    pub(crate) fn told(&self, error: EngineError) -> Problem {
        let ByClaim { fence, worktree } = &self.by;
        let claim = NamedClaim { step: &self.step, fence: *fence, worktree: worktree.as_deref() };
        About::claim(&self.project, &self.log, claim).problem(error)
    }

    /// The fence to write under.
    pub(crate) fn fence(&self) -> Result<Fence, Problem> {
        match self.named()? {
            Some(fence) => Ok(fence),
            None => Err(Problem::new(
                Kind::Usage,
                "which claim? a write names the one it is under",
            )
            .hint(format!(
                "in the worktree that it was claimed from: `{}`; or --fence with the number \
                         that the claim answered",
                again("--worktree .")
            ))),
        }
    }

    /// The fence that was named, here or by the environment of the attempt that this is inside of.
    pub(crate) fn named(&self) -> Result<Option<Fence>, Problem> {
        let by = &self.by;
        if by.fence.is_some() && self.by_plan && runs::runs_of_its_plan(&self.log)? > 1 {
            let message = "which run? the plan has had several, and each counts its own fences";
            let handle = &self.log.run().opened.handle;
            return Err(Problem::new(Kind::Usage, message).hint(format!(
                "name the run that was claimed from instead of the plan: {handle}? `piton status \
                 --all` lists them"
            )));
        }
        let name = match (by.fence, &by.worktree) {
            (Some(fence), _) => ClaimName::Fence(Fence(fence)),
            (None, Some(path)) => ClaimName::Worktree(path.clone()),
            (None, None) => return self.own_fence(),
        };
        let under = claims::claim_of(&self.project, &self.log, &self.step, &name);
        Ok(Some(under.map_err(|error| self.told(error))?.fence))
    }

    fn own_fence(&self) -> Result<Option<Fence>, Problem> {
        let inside = Inside::of_process();
        let run = inside.run.as_deref().is_none_or(|run| begins(&self.log, run));
        let step = inside.step.as_deref().is_none_or(|step| step == self.step.to_string());
        match run && step {
            true if inside.fence.is_some() => inside.fence(),
            _ => {
                let here = claims::held_in(&self.project, self.log.run(), &start::here()?);
                Ok(here.filter(|claim| claim.step == self.step).map(|claim| claim.fence))
            }
        }
    }

    /// Writes under a claim. Whoever has lost it is refused, and told where piton kept what is in
    /// their worktree.
    pub(crate) fn write<T>(
        &mut self,
        fence: Fence,
        act: impl FnOnce(&Project, &mut Log, &Under) -> Result<T, EngineError>,
    ) -> Result<T, Problem> {
        let under = self.under(fence);
        match act(&self.project, &mut self.log, &under) {
            Ok(done) => Ok(done),
            Err(error) if error.is_lost() => Err(self.lost(fence, error)),
            Err(error) => Err(self.told(error)),
        }
    }

    pub(crate) fn under(&self, fence: Fence) -> Under {
        Under { step: self.step.clone(), fence }
    }

    pub(crate) fn lost(&self, fence: Fence, error: EngineError) -> Problem {
        let kept = outside_snapshots::of_lost(&self.project, &self.log, &self.step, fence);
        let problem = self.told(error);
        match kept {
            Some(name) => {
                let data = self.answer(json!({ "fence": fence, "kept": name }));
                problem
                    .because(format!("what is in your worktree is kept as {name}"))
                    .with_data(data)
            }
            None => problem,
        }
    }

    /// What every answer about a step begins with.
    pub(crate) fn answer(&self, more: Value) -> Value {
        let opened = &self.log.run().opened;
        let mut data =
            json!({ "run": opened.run, "handle": opened.handle, "step": self.step.to_string() });
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        data
    }
}

/// Says that a step which nobody has any more stays stopped, if it does.
pub(crate) fn tell_stopped(ui: &Ui, target: &Target) -> bool {
    let run = target.log.run();
    let held_back = run.step(&target.step).is_some_and(|(_, state)| state.held_back().is_some());
    let stopped = held_back || run.stop.is_some();
    if stopped {
        ui.hint(format!("it cannot be claimed before `piton resume {}`", run.opened.handle));
    }
    stopped
}

/// What is missing in front of a word, or behind: outside an attempt nothing says which step is meant.
fn unnamed(which: &Which, word: &str, what: &str) -> Result<Problem, Problem> {
    let project = start::project()?;
    let Some(run) = which.run.as_deref() else {
        let message = format!(
            "of which step? outside an attempt the run and the step come before the {what}"
        );
        let hint = "`piton status` lists the runs, `piton show` the steps of one";
        return Ok(Problem::new(Kind::Usage, message).hint(hint));
    };
    let log = existing(&project, Some(run))?;
    let handle = &log.run().opened.handle;
    Ok(match step_of(&log, word) {
        Ok(step) => Problem::new(Kind::Usage, format!("which {what}? there is none behind {step}"))
            .hint(format!("`piton show {handle} {step}` shows what the step has")),
        Err(_) => Problem::new(Kind::Usage, format!("of which step? the {what} comes behind it"))
            .hint(format!("`piton show {handle}` lists the steps")),
    })
}

/// A run that must be there, for whoever claims; a file that is not there is told as that.
fn existing(project: &Project, asked: Option<&str>) -> Result<Log, Problem> {
    match (run_of(project, Access::Existing, asked), asked) {
        (Err(problem), Some(plan)) if problem.kind == Kind::NoSuchRun && is_file(asked) => {
            let plan = word(plan);
            Err(problem.hint(format!(
                "`piton claim {plan} --worktree .` opens one and takes a step; `piton open {plan}` \
                 only opens it"
            )))
        }
        (Err(problem), Some(asked)) if problem.kind == Kind::NoSuchRun => {
            Err(missing(asked).unwrap_or(problem))
        }
        (Err(problem), None) if !project.has_store() => Err(problem.hint(first_run())),
        (found, _) => found,
    }
}

/// Somebody has named a path to nothing.
fn missing(asked: &str) -> Option<Problem> {
    let path = Path::new(asked);
    let within = path.parent().is_some_and(|folder| folder.is_dir());
    let is_path = path.extension().is_some_and(|end| end == "toml") || within;
    let read = is_path.then(|| plan_file::read_plan(path, &ReadAs::default()).err()).flatten();
    read.map(Problem::from)
}

/// Says where the bytes of a claim that ended are, or why they could not be kept.
pub(crate) fn tell_kept(ui: &Ui, kept: &Kept) {
    if let Some(name) = &kept.kept {
        ui.talk(format!("what was in the worktree is kept as {name}"));
    }
    if let Some(why) = &kept.unkept {
        let message = format!("what is in the worktree could not be kept: {}", plain(why));
        ui.warn(Kind::Noticed, message, None);
    }
}

/// Whether a text names this run, perhaps by how its name begins.
fn begins(log: &Log, text: &str) -> bool {
    let opened = &log.run().opened;
    opened.handle.as_str().starts_with(text) || opened.run.to_string().starts_with(text)
}

/// Whether a text names this run.
pub(crate) fn is_run(log: &Log, text: &str) -> bool {
    let opened = &log.run().opened;
    opened.handle.as_str() == text || opened.run.to_string() == text
}

/// The run somebody means, the one that this is inside of unless told.
pub(crate) fn run_of(
    project: &Project,
    access: Access,
    asked: Option<&str>,
) -> Result<Log, Problem> {
    let inside = Inside::of_process().run;
    let asked = asked.or(inside.as_deref());
    match asked.and_then(|text| text.parse::<RunId>().ok()) {
        Some(run) => Ok(Log::load(start::store_with_runs(project, access)?, run)?),
        None => start::run_of(project, access, asked),
    }
}

/// A plan whose run is opened or found.
pub(crate) struct PlanAsk<'a> {
    pub(crate) plan: &'a Path,
    pub(crate) how: &'a ReadAs,
    pub(crate) inputs: BTreeMap<String, String>,
    pub(crate) start: Start,
}

/// Opens a run of a plan without executing anything, or finds the unfinished one.
pub(crate) fn open(
    ui: &Ui,
    project: &Project,
    ask: PlanAsk<'_>,
    (on_change, unfinished): (OnChange, Unfinished),
) -> Result<OpenedRun, Problem> {
    let PlanAsk { plan, how, inputs, start } = ask;
    if inputs.is_empty()
        && unfinished == Unfinished::GoOn
        && let Some(log) = unchanged(project, plan)?
    {
        return Ok(OpenedRun::Existing(log));
    }
    let layers = Layers::of_process(Some(project.git.main_root()));
    let settings = config::load(&layers, &Flags::default())?.settings;
    let plan = plan_file::read_plan(plan, how)?;
    let is_named = start != Start::Plan;
    let mut opening = opening::prepare(project, OpenAsk { plan, inputs, settings, start })?;
    let store = project.store(Access::Create)?;
    let Unended { own, near } = opening::unended(&store, &opening)?;
    if own.is_none() || unfinished == Unfinished::LeaveAside {
        let wish = found_work::StartWish { is_named, auto_continue: false };
        found_work::settle(ui, project, &mut opening, wish)?;
    }
    let opened = opening::open(project, store, opening, unfinished)?;
    if let OpenedRun::New(_) = &opened {
        tell_same(ui, &near);
    }
    match opened {
        OpenedRun::Changed(mut log, changed) => {
            plan_drift::settle(ui, project, &mut log, changed, on_change)?;
            Ok(OpenedRun::Existing(log))
        }
        opened => Ok(opened),
    }
}

/// Says that the work is perhaps under way already: a plan that was moved opens a run of its own.
fn tell_same(ui: &Ui, near: &[NearRun]) {
    let same = near.iter().filter(|near| near.is_same && !is_untouched(near.log.run()));
    for opened in same.map(|near| &near.log.run().opened) {
        let (run, from) = (&opened.handle, plain(&opened.plan_path));
        let message = format!("{run} is an unfinished run of the same plan, from {from}");
        let hint = format!("to go on with that one: `piton claim {run} --worktree .`");
        ui.warn(Kind::Noticed, message, Some(hint));
    }
}

/// The unfinished run of a plan whose file still has the bytes it had.
fn unchanged(project: &Project, plan: &Path) -> Result<Option<Log>, Problem> {
    if !project.has_store() {
        return Ok(None);
    }
    let store = project.store(Access::Existing)?;
    Ok(runs::find_unchanged(project, &store, plan)?)
}

/// The run of a plan that is done with: a new one is for somebody to ask for.
pub(crate) fn completed(project: &Project, plan: &Path) -> Result<Option<Log>, Problem> {
    if !project.has_store() {
        return Ok(None);
    }
    let store = project.store(Access::Existing)?;
    Ok(runs::completed_run_of(project, &store, plan)?)
}

/// The run of a plan, opened if there was none; or the run somebody means.
pub(crate) fn open_or_find(
    ui: &Ui,
    project: &Project,
    asked: Option<&str>,
    on_change: OnChange,
) -> Result<Log, Problem> {
    match asked.filter(|text| Path::new(text).is_file()) {
        Some(plan) => {
            let plan = Path::new(plan);
            let known = match unchanged(project, plan)? {
                None => completed(project, plan)?,
                known => known,
            };
            if let Some(log) = known {
                return Ok(log);
            }
            let (how, inputs, start) = (&ReadAs::default(), BTreeMap::new(), Start::Plan);
            let ask = PlanAsk { plan, how, inputs, start };
            let opened = open(ui, project, ask, (on_change, Unfinished::GoOn))?;
            let (OpenedRun::New(log) | OpenedRun::Existing(log) | OpenedRun::Changed(log, _)) =
                opened;
            Ok(log)
        }
        None => existing(project, asked),
    }
}

/// A reason or an item, as it is kept in an event: one that is too long is refused rather than cut.
pub(crate) fn words(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    within(text, EVIDENCE_BYTES_MAX)
}

/// A text of at most so many bytes.
pub(crate) fn within(text: &str, most: usize) -> Result<String, String> {
    match text.len() {
        size if size > most => Err(format!("{size} bytes are too long; at most {most}")),
        _ => Ok(text.to_owned()),
    }
}

/// The words in front of a verb's own: `RUN STEP WORD`, `RUN WORD` or `WORD`.
fn before_last(words: &[String]) -> (Which, String) {
    let word = |n: usize| words.get(n).cloned();
    let last = words.last().cloned().unwrap_or_default();
    let (run, step) = match words.len() {
        0 | 1 => (None, None),
        2 => (word(0), None),
        _ => (word(0), word(1)),
    };
    (Which { run, step }, last)
}

/// A step of the run by its id: in its present iteration, or in the one behind `#`.
pub(crate) fn step_of(log: &Log, text: &str) -> Result<StepRef, Problem> {
    let run = log.run();
    let typed = text.parse::<StepRef>().ok();
    let known = match text.contains('#') {
        true => typed.filter(|step| run.step(step).is_some()),
        false => typed.and_then(|step| run.present(&step.step)),
    };
    match known {
        Some(step) => Ok(step),
        None => {
            let steps = &log.run().plan().steps;
            let ids: Vec<&str> = steps.iter().map(|step| step.id.as_str()).take(20).collect();
            Err(Problem::new(Kind::UnknownStep, format!("the plan has no step {text:?}"))
                .hint(format!("its steps: {}", ids.join(", "))))
        }
    }
}

/// Whether a file was named, and not a run.
pub(crate) fn is_file(asked: Option<&str>) -> bool {
    asked.is_some_and(|text| Path::new(text).is_file())
}
