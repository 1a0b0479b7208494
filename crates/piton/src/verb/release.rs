//! `piton release`: gives a claim back. The step is pending again; what is done of its checklist stays.

use piton_core::event::Holder;
use piton_core::ids::Fence;
use piton_core::refusal::Refusal;
use piton_core::run::Attempt;
use piton_engine::outside::claims::{self, ReleaseAnswer};

use crate::by_hand;
use crate::error::{Kind, Problem};
use crate::target::{ByClaim, Target, Which, tell_kept, tell_stopped};
use crate::text::plain;
use crate::typed::again;
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Give a claimed step back
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton release calm-otter jwt --worktree .          your own claim
  piton release calm-otter jwt --force               any holder's claim

The step is pending again; its work is kept. Done items and substeps stay done.
Processes that piton started for it on this host are ended first.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    by: ByClaim,

    /// Release it from any holder
    #[arg(long, conflicts_with_all = ["worktree", "fence"])]
    force: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::claimed(&args.which, &args.by)?;
    let fence = match args.force {
        true => Ok(own_of_keeper(&target)),
        false => target.fence().map(Some).map_err(|problem| {
            let more = problem.hint.clone().filter(|_| problem.kind == Kind::Usage);
            let hint =
                more.map(|hint| format!("{hint}; or from any holder: `{}`", again("--force")));
            problem.hinted(hint)
        }),
    };
    let released = fence.and_then(|fence| release(&mut target, fence));
    let answer = match released {
        // The step is what matters, whoever asked.
        Err(problem) if problem.kind == Kind::NotClaimed && is_completed(&target) => {
            return Err(completed(&target));
        }
        other => other?,
    };
    let by = plain(&answer.was_claimed_by);
    let _ = ui.line(format!("step {}: released; it was claimed by {by}", target.step));
    tell_kept(ui, &answer.kept);
    let _ = tell_stopped(ui, &target);
    Ok(by_hand::written(ui, &target.project, &target.log, verb::json(answer)))
}

pub(crate) fn release(target: &mut Target, fence: Option<Fence>) -> Result<ReleaseAnswer, Problem> {
    let Target { project, log, step, .. } = target;
    match (claims::release(project, log, step, fence), fence) {
        (Ok(answer), _) => Ok(answer),
        (Err(error), Some(fence)) if error.is_lost() => Err(target.lost(fence, error)),
        (Err(error), _) => match error.refusal() {
            Some(Refusal::CannotRelease(_)) => Err(completed(target)),
            _ => Err(target.told(error)),
        },
    }
}

/// Inside an attempt force makes no difference: a worker would take the step up again at once.
pub(crate) fn own_of_keeper(target: &Target) -> Option<Fence> {
    let inside = target.named().ok().flatten()?;
    let (_, state) = target.log.run().step(&target.step)?;
    let kept = |held: &&Attempt| matches!(held.holder, Holder::Keeper { .. });
    state.attempt().filter(kept).map(|held| held.fence).filter(|fence| *fence == inside)
}

fn is_completed(target: &Target) -> bool {
    target.log.run().step(&target.step).is_some_and(|(_, state)| state.is_completed())
}

fn completed(target: &Target) -> Problem {
    let hint = target.told(Refusal::CannotRelease(target.step.clone()).into()).hint.clone();
    let message = format!("cannot release completed step {}", target.step);
    Problem::new(Kind::NotClaimed, message).hinted(hint)
}
