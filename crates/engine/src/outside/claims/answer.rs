//! What whoever asks for a step is told: the claim that they got, what else can be had, and why the rest
//! cannot.

use piton_core::claim::{
    Asker, Takeover, barred, believed_until, claimable, count_ready, in_the_way, ready,
};
use piton_core::event::{Grounds, Holder};
use piton_core::ids::{Fence, Handle, RunId, StepRef};
use piton_core::plan::PlanStep;
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, Run, Step};
use piton_core::time::timestamp;
use piton_core::view::shown;
use serde::Serialize;

use super::{ClaimAsk, observed_by};
use crate::error::EngineError;
use crate::outside::outside_snapshots::Kept;
use crate::project::Project;
use crate::remedy::Remedy;
use crate::run::log::Log;
use crate::run::observe::{Depth, observe};

/// The most steps that are listed with why they cannot be had: nobody reads more.
const LISTED: usize = 100;

/// What `claim` answers. Nothing ready is a normal answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimAnswer {
    pub claimed: bool,
    pub run: RunId,
    pub handle: Handle,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimView>,
    pub remaining_ready: usize,
    #[serde(flatten)]
    pub left: Remaining,
    /// What force passed over: steps in front of the one it took, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<Unclaimable>,
}

/// What is left of a run, and what stands against having it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remaining {
    pub total_remaining: usize,
    pub all_completed: bool,
    /// Why nothing of the run can be had, whatever step it is: it is stopped, or was abandoned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub barred: Option<String>,
    /// Why steps that are not completed could not be had, and one that was asked for by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked: Vec<Unclaimable>,
    /// How many more there are than those.
    #[serde(skip_serializing_if = "is_zero")]
    pub blocked_more: usize,
}

impl Remaining {
    fn of(run: &Run, Blocked { listed, more }: Blocked) -> Remaining {
        Remaining {
            total_remaining: run.count_remaining(),
            all_completed: run.is_completed(),
            barred: barred(run).err().map(|refusal| refusal.to_string()),
            blocked: listed,
            blocked_more: more,
        }
    }
}

/// A step that could not be had: why, and what can be done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unclaimable {
    #[serde(serialize_with = "shown")]
    pub step: StepRef,
    pub why: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<Remedy>,
}

/// A claim that was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimView {
    #[serde(serialize_with = "shown")]
    pub step: StepRef,
    pub title: String,
    /// What the plan tells whoever works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    pub index: usize,
    pub fence: Fence,
    pub lease_expires: String,
    /// The step was claimed or in progress before.
    pub reclaimed: bool,
    pub grounds: Grounds,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub displaces: Option<Fence>,
    /// Whether checkpoints can keep the worktree's bytes.
    pub snapshots: bool,
    /// What became of the bytes of whoever it was taken from.
    #[serde(flatten)]
    pub kept: Kept,
}

/// The steps in front of the one that force took, each with why it was not that one.
pub(super) fn passed_over(
    project: &Project,
    log: &Log,
    holder: &Holder,
    claim: Option<&ClaimView>,
) -> Result<Vec<Unclaimable>, EngineError> {
    let run = log.run();
    let leases = log.store().leases(run.opened.run)?;
    let (observed, now) = (observed_by(project, log, holder), log.now()?);
    let asker = Asker { holder, observed: &observed, leases: &leases, now: &now };
    let index = claim.map_or(0, |claim| claim.index);
    let earlier = run.remaining().take_while(|(step, _, _)| run.index_of(step) < Some(index));
    let row = |(step, _, state): (StepRef, &PlanStep, &Step)| {
        let why = why_not(run, (&step, state), &asker, Takeover::Forbid);
        why.unwrap_or_else(|| Unclaimable {
            step,
            why: "free; what a dead or silent holder left comes first".to_owned(),
            remedies: Vec::new(),
        })
    };
    Ok(earlier.take(LISTED).map(row).collect())
}

pub(super) fn given(log: &Log, step: &StepRef, attempt: &Attempt) -> ClaimView {
    let index = log.run().index_of(step).unwrap_or_default();
    let plan = &log.run().plan().steps[index];
    let displaces = match attempt.grounds {
        Grounds::Free => None,
        _ => {
            let (_, state) = log.run().step(step).expect("a claimed step is in the plan");
            state.history.last().map(|past| past.attempt.fence)
        }
    };
    ClaimView {
        step: step.clone(),
        title: plan.title.clone(),
        prompt: plan.work.prompt().map(str::to_owned),
        index,
        fence: attempt.fence,
        lease_expires: timestamp(attempt.until.wall),
        reclaimed: false,
        grounds: attempt.grounds,
        displaces,
        snapshots: false,
        kept: Kept::default(),
    }
}

pub(super) fn answer(
    project: &Project,
    log: &Log,
    holder: &Holder,
    claim: Option<ClaimView>,
) -> Result<ClaimAnswer, EngineError> {
    let run = log.run();
    let leases = log.store().leases(run.opened.run)?;
    let (observed, now) = (observed_by(project, log, holder), log.now()?);
    let asker = Asker { holder, observed: &observed, leases: &leases, now: &now };
    // What is theirs already is nothing more to be had.
    let theirs = run.held().filter(|(_, attempt)| attempt.holder == *holder);
    let again = theirs.filter(|(step, _)| claimable(run, step, &asker).is_ok()).count();
    Ok(ClaimAnswer {
        claimed: claim.is_some(),
        run: run.opened.run,
        handle: run.opened.handle.clone(),
        claim,
        remaining_ready: count_ready(run, &asker) - again,
        left: Remaining::of(run, Blocked::default()),
        passed_over: Vec::new(),
    })
}

/// Steps that cannot be had, each with why.
#[derive(Default)]
pub(super) struct Blocked {
    pub(super) listed: Vec<Unclaimable>,
    /// How many are not listed.
    pub(super) more: usize,
}

/// The answer to a claim that got nothing. A step taken by force is not in the hands of its holder: what else
/// is in the way is told of it.
pub(super) fn blocked_for(
    project: &Project,
    log: &Log,
    holder: &Holder,
    ask: &ClaimAsk<'_>,
) -> Result<Blocked, EngineError> {
    let run = log.run();
    let leases = log.store().leases(run.opened.run)?;
    let (observed, now) = (observed_by(project, log, holder), log.now()?);
    let asker = Asker { holder, observed: &observed, leases: &leases, now: &now };
    let takeover = |step: &StepRef| match ask.step.is_none_or(|asked| asked == step) {
        true => ask.takeover,
        false => Takeover::Forbid,
    };
    Ok(blocked(run, &asker, takeover))
}

/// Steps that are not completed and that whoever asks cannot have: the first of them in plan order.
fn blocked(run: &Run, asker: &Asker<'_>, takeover: impl Fn(&StepRef) -> Takeover) -> Blocked {
    let why = |(step, _, state): (StepRef, &PlanStep, &Step)| {
        why_not(run, (&step, state), asker, takeover(&step))
    };
    let listed: Vec<Unclaimable> = run.remaining().filter_map(why).take(LISTED).collect();
    let more = (run.count_remaining() - count_ready(run, asker)).saturating_sub(listed.len());
    Blocked { listed, more }
}

/// Why a step cannot be had; nothing where it can.
fn why_not(
    run: &Run,
    (step, state): (&StepRef, &Step),
    asker: &Asker<'_>,
    takeover: Takeover,
) -> Option<Unclaimable> {
    let refusal = in_the_way(run, step, asker, takeover)?;
    let held = match &refusal {
        Refusal::TreeBusy { by } => run.step(by).and_then(|(_, state)| state.attempt()),
        Refusal::HeldAlive { .. } | Refusal::HeldElsewhere { .. } | Refusal::HeldDead { .. } => {
            state.attempt()
        }
        // Whoever has it is not what is in the way.
        _ => None,
    };
    let by = match &refusal {
        Refusal::TreeBusy { by } => by,
        _ => step,
    };
    let (why, remedies) = match held.map(|attempt| (attempt, &attempt.holder)) {
        Some((attempt, Holder::External { worktree, host })) => {
            let until = timestamp(believed_until(step, attempt, asker.leases).wall);
            (format!("claimed from {worktree} on {host} until {until}"), Vec::new())
        }
        Some((_, Holder::Keeper { host, .. })) => {
            let (run, step) = (run.opened.handle.clone(), by.clone());
            let worktree = match asker.holder {
                Holder::External { worktree, .. } if !worktree.is_empty() => worktree.clone(),
                _ => ".".to_owned(),
            };
            let ways = vec![
                Remedy::Resume { run: run.clone() },
                Remedy::Stop { run: run.clone(), step: step.clone() },
                Remedy::TakeOver { run, step, worktree },
            ];
            (format!("{refusal}: a keeper on {host} has it"), ways)
        }
        None => return Some(refused(run, step, &refusal)),
    };
    Some(Unclaimable { step: step.clone(), why, remedies })
}

/// A refusal that is about the step itself, whoever asks.
pub(super) fn refused(run: &Run, step: &StepRef, refusal: &Refusal) -> Unclaimable {
    let run = run.opened.handle.clone();
    let remedies = match refusal {
        Refusal::StepStopped(_) => vec![Remedy::Resume { run }],
        Refusal::RetriesUsed(step) => vec![Remedy::Reset { run, step: step.clone() }],
        _ => Vec::new(),
    };
    Unclaimable { step: step.clone(), why: refusal.to_string(), remedies }
}

/// What `ready` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadyAnswer {
    pub run: RunId,
    pub handle: Handle,
    pub ready: Vec<ReadyStep>,
    #[serde(flatten)]
    pub left: Remaining,
}

/// A step that can be claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadyStep {
    #[serde(serialize_with = "shown")]
    pub step: StepRef,
    pub title: String,
    pub index: usize,
}

/// The steps that somebody who holds none could claim now.
pub fn ready_steps(project: &Project, log: &Log) -> Result<ReadyAnswer, EngineError> {
    let run = log.run();
    let nobody = Holder::External { host: project.host.clone(), worktree: String::new() };
    let leases = log.store().leases(run.opened.run)?;
    let (observed, now) = (observe(project, log, Depth::Locks), log.now()?);
    let asker = Asker { holder: &nobody, observed: &observed, leases: &leases, now: &now };
    let row = |step: StepRef| {
        let index = run.index_of(&step)?;
        let title = run.plan().steps[index].title.clone();
        Some(ReadyStep { step, title, index })
    };
    Ok(ReadyAnswer {
        run: run.opened.run,
        handle: run.opened.handle.clone(),
        ready: ready(run, &asker).into_iter().filter_map(row).collect(),
        left: Remaining::of(run, blocked(run, &asker, |_| Takeover::Forbid)),
    })
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}
