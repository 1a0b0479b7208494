//! The next thing to type, with the run, the step and the claim by their real names: what a hint quotes
//! can be pasted. What only its reader can say is left as `'…'`, which is refused as it stands.

use std::path::Path;

use piton_core::claim::barred;
use piton_core::decide::acceptable;
use piton_core::event::Holder;
use piton_core::ids::{Fence, QuestionId, StepRef};
use piton_core::refusal::Refusal;
use piton_core::run::{Phase, Run, Step};
use piton_core::view::{RunView, StepKind};
use piton_engine::error::EngineError;
use piton_engine::error::Living;
use piton_engine::error::LogError;
use piton_engine::error::Unlanded;
use piton_engine::error::Unmerged;
use piton_engine::git::shell::word;
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::plan_file::Changed;

use crate::error::Problem;
use crate::remedy::{ended_by, trust_first};
use crate::start::{from_here, plan_from_here};
use crate::text::plain;
use crate::typed::{again, has, is_verb};

const ACCEPT: &str = "--accept-plan";
/// What stands for words that nobody else can say.
pub(crate) const YOUR_WORDS: &str = "…";
/// Steps that a hint speaks of, at most: more would not be read.
const NAMED_MAX: usize = 3;

/// The run that a command was about, and the claim it was to be made under.
pub(crate) struct About<'a> {
    project: &'a Project,
    run: &'a Run,
    claim: Option<NamedClaim<'a>>,
}

/// A claim as a command names it: by its fence, or by the worktree it was made from.
#[derive(Clone, Copy)]
pub(crate) struct NamedClaim<'a> {
    pub(crate) step: &'a StepRef,
    pub(crate) fence: Option<u64>,
    pub(crate) worktree: Option<&'a Path>,
}

impl<'a> About<'a> {
    pub(crate) fn run(project: &'a Project, log: &'a Log) -> About<'a> {
        About { project, run: log.run(), claim: None }
    }

    pub(crate) fn claim(project: &'a Project, log: &'a Log, claim: NamedClaim<'a>) -> About<'a> {
        About { claim: Some(claim), ..About::run(project, log) }
    }

    /// What can be done about a run of which nothing can be claimed.
    pub(crate) fn barred(&self) -> Option<String> {
        barred(self.run).err().and_then(|refusal| self.refused(&refusal))
    }

    /// An error with what can be done about it.
    pub(crate) fn problem(&self, error: EngineError) -> Problem {
        let hint = self.hint(&error);
        Problem::from(error).hinted(hint)
    }

    /// A plan that was changed under the run, with the ways out that are open.
    pub(crate) fn changed(&self, changed: Changed, living: &Living) -> Problem {
        let run = &self.run.opened.handle;
        let way = match acceptable(self.run, changed.plan()) {
            Ok(()) => format!(
                "go on with it as it is now: `{}`; or put the file back as it was",
                self.accepting()
            ),
            Err(refusal @ Refusal::PlanInUse { .. }) => {
                let way = self.refused(&refusal).unwrap_or_default();
                format!("the run cannot go on with it: {refusal}; {way}")
            }
            Err(refusal) => format!("{refusal}; put it back as it was"),
        };
        let first = match living.is_empty() {
            true => String::new(),
            false => format!("{}, then ", ended_by(living, run)),
        };
        let over = start_over(self.project, self.run);
        Problem::from(changed.refused()).hint(format!(
            "{way}; or start over: {first}`{over}` ({run} keeps its branch and snapshots)"
        ))
    }

    /// What was typed where it may accept a plan, else what does nothing but that.
    fn accepting(&self) -> String {
        let typed = again(ACCEPT);
        match is_verb(&["run", "resume", "retry", "open", "claim"]) && !has("--dry-run") {
            true => typed,
            false => {
                let plan = plan_from_here(self.project, &self.run.opened.plan_path);
                format!("piton open {plan} {ACCEPT}")
            }
        }
    }

    fn hint(&self, error: &EngineError) -> Option<String> {
        let run = &self.run.opened.handle;
        Some(match error {
            EngineError::Log(LogError::Refused(refusal)) => return self.refused(refusal),
            EngineError::NotOwner { step } => format!(
                "`piton show {run} {step}` says who has it; `{}` asks for it",
                self.ask_for(step, None)
            ),
            EngineError::NothingToStart { .. } => format!(
                "others take them: `piton claim {run} --worktree .`; or give them `run`, or `prompt` \
                 and an agent"
            ),
            EngineError::Unlanded(why) => return self.unlanded(why),
            EngineError::Unmerged(why) => self.unmerged(why),
            EngineError::Unverified { step, .. } => format!(
                "the claim is still yours: mend it, commit, and `{} --commit`",
                self.write("complete", step)
            ),
            EngineError::Uncommitted { .. } => {
                format!("the claim is still yours: commit, then `{}`", again(""))
            }
            EngineError::VerifyEnded { .. } => {
                format!("nothing was landed and the claim is still yours: `{}`", again(""))
            }
            EngineError::KeeperLost { .. } => format!("`piton resume {run}` tries again"),
            EngineError::Untrusted { .. } if self.run.plan().plan_from.is_some() => format!(
                "look at them: they are in the plan that was produced; then `piton resume {run} --trust`"
            ),
            EngineError::Untrusted { plan, .. } => trust_first(plan, run),
            _ => return None,
        })
    }

    fn refused(&self, refusal: &Refusal) -> Option<String> {
        let run = &self.run.opened.handle;
        Some(match refusal {
            Refusal::StaleFence { step, .. } if self.is_done(step) => format!(
                "stop working on it: it was completed meanwhile; `piton show {run} {step}` says by whom"
            ),
            Refusal::StaleFence { step, given, .. } => format!(
                "stop working on it; `piton show {run} {step}` says who has it, `{}` asks for it again",
                self.ask_for(step, Some(*given))
            ),
            Refusal::ClaimOver { step, given } | Refusal::NotClaimed { step, given } => {
                self.not_held(step, Some(*given))
            }
            Refusal::Pending(step) => self.not_held(step, None),
            Refusal::NothingHeld { step, .. } => {
                format!("pending again: `piton reset {run} {step}`")
            }
            Refusal::RunByPiton(step) => format!(
                "`piton fail --reason 'why it cannot be done'` ends the attempt; from outside \
                 `piton stop {run} {step}` ends it until `piton resume`, `piton release {run} {step} \
                 --force` takes it from its keeper"
            ),
            Refusal::Completed(step)
            | Refusal::CannotRelease(step)
            | Refusal::CompletedOtherwise { step, .. } => match self.run.is_completed() {
                true => self.new_run(),
                false => {
                    format!(
                        "to do it again: `piton reset {run} {step} --force --reason 'to do it again'`"
                    )
                }
            },
            Refusal::ResetNeedsReason(step) => {
                format!("`piton reset {run} {step} --force --reason 'to do it again'`")
            }
            Refusal::Skipped(step) => format!("to do it after all: `piton reset {run} {step}`"),
            Refusal::NotAttempted(_) => format!("go on: `piton resume {run}`"),
            Refusal::RunCompleted => self.new_run(),
            Refusal::RunStopped | Refusal::StepStopped(_) => format!("go on: `piton resume {run}`"),
            Refusal::RunAbandoned => {
                "`piton undo --list` says which act gave it up; `piton undo` reopens it".to_owned()
            }
            Refusal::RunNotOver => format!("`piton abandon {run} --purge`"),
            Refusal::OpenItems { step, items } => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                let check = self.write_with("check", step, &items.join(" "));
                format!(
                    "`{check} --done`; or `{check} --defer --reason 'later'`; or complete it in spite \
                     of them: `{}`",
                    self.in_spite(step)
                )
            }
            Refusal::OpenSubsteps { step, substeps } => {
                let next = substeps.first().map(|substep| substep.as_str()).unwrap_or_default();
                format!(
                    "`{}`; or complete it in spite of them: `{} --force --reason 'not needed'`",
                    self.write_with("substep complete", step, next),
                    self.write("complete", step)
                )
            }
            Refusal::OpenOutputs { step, .. } | Refusal::OutputShort { step, .. } => format!(
                "`piton output set --help` shows how; or complete it in spite of that: `{}`",
                self.in_spite(step)
            ),
            Refusal::NoOutput { step, .. } => {
                format!("`piton show {run} {step}` lists what it published")
            }
            Refusal::WaitsForItself { .. } => {
                "let the plan say it: needs = [\"STEP:NAME\"]; or isolation = \"step\" with jobs"
                    .to_owned()
            }
            Refusal::UnknownItem { step, .. } | Refusal::UnknownSubstep { step, .. } => {
                format!("`piton show {run} {step}` lists its items and substeps")
            }
            Refusal::NotVerified { .. } => {
                "piton completes what it runs itself, once the agent has ended".to_owned()
            }
            Refusal::PlanInUse { steps } => {
                let ways: Vec<String> =
                    steps.iter().take(NAMED_MAX).map(|s| self.free(s)).collect();
                format!("put them back as they were; or first: {}", ways.join(", "))
            }
            Refusal::PlanFixed { .. } => {
                let over = start_over(self.project, self.run);
                format!("put it back as it was; or start over: `{over}`")
            }
            Refusal::QuestionOpen { step, question, .. } => {
                let answers = self.answers(*question);
                format!("{answers}; to go on without: `piton reset {run} {step}`")
            }
            Refusal::Unanswered { step, question } => format!(
                "{}; or complete it without: `{}`",
                self.answers(*question),
                self.in_spite(step)
            ),
            Refusal::AnswerUnread { step, .. } => format!(
                "`{} --read`; or complete it without: `{}`",
                self.write("ask", step),
                self.in_spite(step)
            ),
            Refusal::UnknownQuestion { .. }
            | Refusal::NothingAsked { .. }
            | Refusal::SeveralQuestions { .. }
            | Refusal::QuestionVoid { .. } => format!("`piton questions {run} --all` lists them"),
            Refusal::AnsweredOtherwise { question, .. } => {
                let about = self.run.questions().find(|(_, asked)| asked.id == *question);
                let step = about.map(|(step, _)| format!(" {}", step.step)).unwrap_or_default();
                format!("the first answer stands; `piton show {run}{step}` shows what came of it")
            }
            Refusal::NotAChoice { question, .. } => self.answers(*question),
            Refusal::StillHeld(step) => {
                format!("wait for its holder; or first: {}", self.free(step))
            }
            _ => return None,
        })
    }

    fn unlanded(&self, why: &Unlanded) -> Option<String> {
        let NamedClaim { step, .. } = self.claim?;
        let complete =
            || format!("`{} --commit \"$(git rev-parse HEAD)\"`", self.write("complete", step));
        Some(match why {
            Unlanded::Conflict(conflict) => format!(
                "the claim is still yours: `git merge {}` in your worktree, solve it, then {}",
                conflict.branch,
                complete()
            ),
            Unlanded::Unrelated { branch, .. } => format!(
                "the claim is still yours: bring the work onto it, as by `git merge \
                 --allow-unrelated-histories {branch}` in your worktree, then {}",
                complete()
            ),
            Unlanded::Busy { .. } | Unlanded::NoPlan { .. } => format!("`{}`", again("")),
            Unlanded::CheckedOut { .. } | Unlanded::Rewound { .. } => return None,
        })
    }

    fn unmerged(&self, why: &Unmerged) -> String {
        let run = &self.run.opened.handle;
        let place = |path: &Path| word(&from_here(path).display().to_string());
        match why {
            Unmerged::Unfinished { .. } => format!(
                "`piton status {run}` says what is open; what was landed so far: `{}`",
                again("--partial")
            ),
            Unmerged::NoBranch { .. } => "name one of `git branch` with --into".to_owned(),
            Unmerged::Conflict { branch, into, .. } => format!(
                "nothing was changed; bring them together by hand: `git switch {into}`, `git merge \
                 {branch}`"
            ),
            Unmerged::Unrelated { branch, .. } => {
                format!("see what it has: `git log --oneline {branch}`")
            }
            Unmerged::Dirty { worktree, .. } => {
                let place = place(worktree);
                format!("commit or stash them (`git -C {place} status`), then `{}`", again(""))
            }
            Unmerged::Busy { worktree, .. } => {
                format!("end that first: `git -C {} status`; then `{}`", place(worktree), again(""))
            }
            Unmerged::InTheWay { .. } => {
                format!("move them away, or commit them; then `{}`", again(""))
            }
            Unmerged::Moving { .. } => format!("`{}`", again("")),
        }
    }

    /// What makes a step that nobody holds one's own.
    fn not_held(&self, step: &StepRef, given: Option<Fence>) -> String {
        let run = &self.run.opened.handle;
        let ask = self.ask_for(step, given);
        match self.run.step(step) {
            Some((plan, state @ Step { phase: Phase::Failed { .. }, .. }))
                if state.tries_left(plan) == 0 =>
            {
                format!("it has no retries left: `piton reset {run} {step}`, then `{ask}`")
            }
            _ => format!("`{ask}` asks for it"),
        }
    }

    /// What takes a step out of use.
    fn free(&self, step: &StepRef) -> String {
        let run = &self.run.opened.handle;
        match self.is_done(step) {
            true => format!("`piton reset {run} {step} --force --reason 'to do it again'`"),
            false => format!("`piton release {run} {step} --force`"),
        }
    }

    fn is_done(&self, step: &StepRef) -> bool {
        self.run.step(step).is_some_and(|(_, state)| state.is_completed())
    }

    fn new_run(&self) -> String {
        format!("a new run: `{} --fresh`", begin(self.project, self.run))
    }

    /// The claim that asks for a step: from the worktree that the command was about.
    fn ask_for(&self, step: &StepRef, given: Option<Fence>) -> String {
        let named = self.claim.and_then(|claim| claim.worktree);
        let from = named.map(Path::display).map(|path| path.to_string());
        let from = from.or_else(|| self.place_of(step, given?));
        let from = from.filter(|path| Path::new(path).is_dir());
        let from = from.map_or_else(|| ".".to_owned(), |path| word(&path));
        format!("piton claim {} --step {step} --worktree {from}", self.run.opened.handle)
    }

    /// Where the work under a fence was done.
    fn place_of(&self, step: &StepRef, fence: Fence) -> Option<String> {
        let (_, state) = self.run.step(step)?;
        let past = state.history.iter().map(|past| &past.attempt);
        let attempt = past.chain(state.attempt()).find(|attempt| attempt.fence == fence)?;
        match &attempt.holder {
            Holder::External { worktree, .. } => Some(worktree.clone()),
            Holder::Keeper { .. } => None,
        }
    }

    /// A write to a step under the claim that was named; inside an attempt nothing has to be.
    fn write(&self, verb: &str, step: &StepRef) -> String {
        self.write_with(verb, step, "")
    }

    /// Completes a step in spite of what is open: as it was typed, with the commit that has the work.
    fn in_spite(&self, step: &StepRef) -> String {
        let force = "--force --reason 'not needed'";
        match is_verb(&["complete"]) {
            true => again(force),
            false => self.write_with("complete", step, force),
        }
    }

    fn write_with(&self, verb: &str, step: &StepRef, words: &str) -> String {
        let claim = match self.claim.map(|claim| (claim.fence, claim.worktree)) {
            Some((Some(fence), _)) => format!("--fence {fence}"),
            Some((None, Some(path))) => format!("--worktree {}", word(&path.display().to_string())),
            Some((None, None)) | None => String::new(),
        };
        let run = self.run.opened.handle.as_str();
        let parts = ["piton", verb, run, &step.to_string(), words, &claim];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Every answer that a question has.
    fn answers(&self, question: QuestionId) -> String {
        let asked = self.run.questions().find(|(_, asked)| asked.id == question);
        let choices = asked.map_or(&[][..], |(_, asked)| &asked.choices);
        let commands = answers(self.run.opened.handle.as_str(), question, choices);
        commands.iter().map(|command| format!("`{command}`")).collect::<Vec<_>>().join(" or ")
    }
}

/// What to type to answer a question.
pub(crate) fn answers(run: &str, question: QuestionId, choices: &[String]) -> Vec<String> {
    let command = |answer: &str| format!("piton answer {run} {question} {answer}");
    match choices {
        [] => vec![command(&format!("'{YOUR_WORDS}'"))],
        choices => choices.iter().map(|choice| command(&word(&plain(choice)))).collect(),
    }
}

/// What leaves a run aside and begins its plan anew.
pub(crate) fn start_over(project: &Project, run: &Run) -> String {
    format!("{} --fresh --yes", begin(project, run))
}

/// As [`start_over`], for a run that is shown.
pub(crate) fn start_over_shown(project: &Project, view: &RunView) -> String {
    let by_hand = view.steps.iter().all(|step| step.kind == StepKind::ByHand);
    format!("{} --fresh --yes", begin_as(project, &view.plan_path, by_hand))
}

fn begin(project: &Project, run: &Run) -> String {
    let by_hand = run.plan().steps.iter().all(|step| step.work.is_by_hand());
    begin_as(project, &run.opened.plan_path, by_hand)
}

/// What begins a run of a plan: what has nothing to start is claimed by others.
fn begin_as(project: &Project, plan_path: &str, by_hand: bool) -> String {
    let verb = if by_hand { "open" } else { "run" };
    format!("piton {verb} {}", plan_from_here(project, plan_path))
}
