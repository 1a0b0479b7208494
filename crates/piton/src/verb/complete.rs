//! `piton complete`: a holder says that its step is done. Strict: what is open is not done.

use piton_core::decide;
use piton_core::event::{FoundState, Truth};
use piton_core::ids::Fence;
use piton_core::view::run_branch;
use piton_engine::outside::claims;
use piton_engine::outside::complete::{Delivered, claimed_head, complete_with, delivered, is_due};
use piton_engine::run::write_back::changed_by_hand;
use serde_json::json;

use crate::by_hand;
use crate::describe::omission;
use crate::error::{Kind, Problem};
use crate::target::{ByClaim, Target, Which, tell_kept, words};
use crate::text::plain;
use crate::trust_prompt::Consent;
use crate::ui::Ui;
use crate::verb::Answer;
use crate::verb::resume::require_trust;

/// What the claimed worktree has checked out.
const HEAD: &str = "HEAD";

/// Complete a claimed step; with --commit verify and land it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton complete --commit              HEAD of your claimed worktree
  piton complete calm-otter jwt --fence 7 --commit 3f2a91c
  piton complete calm-otter jwt --fence 7
  piton complete calm-otter jwt --fence 7 --force --reason 'done elsewhere'

With --commit piton runs the plan's verify command on the commit (E080 if it
fails) and lands the commit on the run's branch (E081 if it conflicts). Without
--commit nothing lands: the work stays where it is. Open items (E051) and
substeps (E052) refuse; --force records them as skipped. After a refusal the
claim stays yours. Safe to repeat; another commit is refused (E085).")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    by: ByClaim,

    /// The commit with the work [without one: HEAD of the claimed worktree]
    #[arg(long, value_name = "OID", num_args = 0..=1, default_missing_value = HEAD)]
    commit: Option<String>,

    /// Trust what the plan executes, without asking
    #[arg(long, requires = "commit")]
    trust: bool,

    /// Complete it although items are open
    #[arg(long, requires = "reason")]
    force: bool,

    /// Take it as completed, unchecked, because the plan's file was changed to say so
    #[arg(long, conflicts_with_all = ["commit", "force", "fence", "worktree"])]
    found: bool,

    /// Why the open items do not matter
    #[arg(long, value_name = "WHY", requires = "force", value_parser = words, allow_hyphen_values = true)]
    reason: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    if args.found {
        return find(args, ui);
    }
    let mut target = Target::claimed(&args.which, &args.by)?;
    let fence = match (target.named()?, args.force) {
        (Some(fence), _) => fence,
        (None, true) => present(&target)?,
        (None, false) => target.fence()?,
    };
    let done = match &args.commit {
        Some(commit) => deliver(args, ui, &mut target, fence, commit)?,
        None => {
            let kept = target.write(fence, |project, log, under| {
                claims::complete(project, log, under, args.reason.clone())
            })?;
            let done = delivered(&target.log, &target.under(fence)).expect("it is completed");
            Delivered { kept, ..done }
        }
    };
    let run = target.log.run();
    let left = run.count_remaining();
    let all = run.is_completed();
    let Delivered { commit: with, truth, kept, not_landed } = done;
    let landed = with.as_ref().map_or_else(String::new, |commit| {
        format!(" with {} on {}", commit.short(), run_branch(&run.opened.handle))
    });
    let _ = ui.line(match all {
        true => format!("step {}: completed{landed}, as the last one", target.step),
        false => format!("step {}: completed{landed}; {left} to go", target.step),
    });
    tell_kept(ui, &kept);
    if !not_landed.is_empty() {
        let what = not_landed.iter().map(omission).collect::<Vec<_>>().join(", ");
        let hint = "they are where they were made, in the claim's worktree".to_owned();
        ui.warn(Kind::Noticed, format!("step {}: not landed: {what}", target.step), Some(hint));
    }
    let data = target.answer(json!({
        "fence": fence,
        "completed": true,
        "commit": with,
        "truth": truth,
        "kept": kept.kept,
        "not_landed": not_landed,
        "total_remaining": left,
        "all_completed": all,
    }));
    Ok(by_hand::written(ui, &target.project, &target.log, data))
}

/// What the plan's file says, without a claim.
fn find(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut target = Target::find(&args.which)?;
    let run = target.log.run();
    let is_said = changed_by_hand(&target.project, run).iter().any(|change| {
        change.step == target.step && matches!(change.says, FoundState::Completed { .. })
    });
    let is_done = run.step(&target.step).is_some_and(|(_, state)| state.is_completed());
    if !is_said && !is_done {
        let message =
            format!("{} does not say that {} is done", plain(&run.opened.plan_path), target.step);
        let hint = "mark it there first; or claim it, and complete that claim";
        return Err(Problem::new(Kind::Refused, message).hint(hint));
    }
    let Target { project, log, step, .. } = &mut target;
    let kept = claims::find(project, log, step).map_err(|error| target.told(error))?;
    let run = target.log.run();
    let _ = ui.line(format!("step {}: completed, as found in the plan file", target.step));
    tell_kept(ui, &kept);
    let data = target.answer(json!({
        "completed": true,
        "truth": Truth::Claimed,
        "kept": kept.kept,
        "total_remaining": run.count_remaining(),
        "all_completed": run.is_completed(),
    }));
    Ok(by_hand::written(ui, &target.project, &target.log, data))
}

/// With a commit: what is executed on it has to be trusted first. Nothing is needed where the
/// claim is lost or the step completed.
fn deliver(
    args: &Args,
    ui: &Ui,
    target: &mut Target,
    fence: Fence,
    commit: &str,
) -> Result<Delivered, Problem> {
    let waive = args.reason.as_deref();
    let Target { log, step, .. } = &*target;
    let checked = log.run().step(step).is_some_and(|(plan, _)| plan.verify.is_some());
    if checked && delivered(log, &target.under(fence)).is_none() {
        target.write(fence, |_, log, under| is_due(log, under, waive))?;
        let Target { project, log, .. } = &*target;
        require_trust(ui, project, log, Consent::asked(args.trust))?;
    }
    target.write(fence, |project, log, under| match (commit, delivered(log, under)) {
        (HEAD, Some(done)) => Ok(done),
        (HEAD, None) => {
            let head = claimed_head(project, log, under)?;
            complete_with(project, log, under, head.as_str(), waive)
        }
        (commit, _) => complete_with(project, log, under, commit, waive),
    })
}

/// By force, whatever claim there is.
fn present(target: &Target) -> Result<Fence, Problem> {
    let held = decide::present(target.log.run(), &target.step);
    held.map(|attempt| attempt.fence).map_err(|refusal| target.told(refusal.into()))
}
