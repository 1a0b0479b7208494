//! May I have it? Who may claim which step, on which grounds and with which entry: one function,
//! asked by the scheduler, by recovery and by the claim itself.

use crate::decided::Lease;
use crate::event::{Entry, Grounds, Holder, Under};
use crate::ids::{AttemptId, Fence, LockName, StepRef, TreeNo};
use crate::observed::{Observed, Sighting};
use crate::plan::{Isolation, PlanStep};
use crate::refusal::Refusal;
use crate::run::{Attempt, Phase, Run, WorkIs, asks_first, entry_of};
use crate::time::Moment;

/// An ask for a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub which: Which,
    pub attempt: AttemptId,
    pub holder: Holder,
    pub until: Moment,
    /// What was seen of present holders.
    pub observed: Observed,
    pub takeover: Takeover,
    /// The process that asks from outside.
    pub pid: Option<u32>,
}

/// Which step is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    Step(StepRef),
    /// The first that can be had.
    First,
}

/// Whether a claim may be taken from a holder that may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    Forbid,
    Force,
}

/// A step that may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    pub entry: Entry,
    pub grounds: Grounds,
}

/// What a step's lease is called in a store.
pub fn lease_key(step: &StepRef) -> String {
    format!("{}#{}", step.step, step.iteration)
}

/// Until when a claim is believed: its lease row, or the expiry inside `Claimed` where that is lost.
pub fn believed_until<'a>(step: &StepRef, attempt: &'a Attempt, leases: &'a [Lease]) -> &'a Moment {
    let key = lease_key(step);
    let row = leases.iter().find(|lease| lease.key == key && lease.fence == attempt.fence);
    row.map_or(&attempt.until, |lease| &lease.until)
}

/// A step that was chosen for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    pub step: StepRef,
    pub granted: Granted,
    /// The tree of the pool that a keeper gets.
    pub tree: Option<TreeNo>,
    /// The claim that this one ends.
    pub displaces: Option<Fence>,
    /// Lapsed claims whose slot in a lock, or whose worktree, this one gets: no heartbeat makes them
    /// believed again.
    pub outlived: Vec<Under>,
}

/// Who asks, and what they saw.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    pub holder: &'a Holder,
    pub observed: &'a Observed,
    pub leases: &'a [Lease],
    pub now: &'a Moment,
}

/// The step that a claim gets: the named one, or the first that can be had. The same owner's own comes
/// first; force looks at what dead and silent holders left, then at free steps, then at live holders.
pub fn choose(run: &Run, claim: &Claim, leases: &[Lease], now: &Moment) -> Result<Chosen, Refusal> {
    let asker = Asker { holder: &claim.holder, observed: &claim.observed, leases, now };
    match &claim.which {
        Which::Step(step) => grant(run, step, &asker, claim.takeover),
        Which::First => {
            let polite = |step: StepRef| grant(run, &step, &asker, Takeover::Forbid).ok();
            let of = |grounds: Grounds| {
                let held = run.held().map(|(step, _)| step);
                held.filter_map(polite).find(|chosen| chosen.granted.grounds == grounds)
            };
            // The dead were buried by now: what they had is interrupted.
            let silent = || match claim.takeover {
                Takeover::Force => run.left().find_map(polite),
                Takeover::Forbid => None,
            };
            let live = || match claim.takeover {
                Takeover::Force => {
                    let held = run.held().map(|(step, _)| step);
                    held.filter_map(|step| grant(run, &step, &asker, Takeover::Force).ok()).next()
                }
                Takeover::Forbid => None,
            };
            of(Grounds::SameOwner)
                .or_else(silent)
                .or_else(|| candidates(run, &asker).find_map(polite))
                .or_else(live)
                .ok_or(Refusal::NothingReady)
        }
    }
}

/// Steps that somebody may get without force: no other can be had, and not all of these, in plan order.
fn candidates<'run>(run: &'run Run, asker: &Asker<'_>) -> impl Iterator<Item = StepRef> + 'run {
    run.free(|lock| busy_by(run, lock, None, asker).is_some()).and_held()
}

/// Steps that whoever asks could claim now, in plan order.
pub fn ready(run: &Run, asker: &Asker<'_>) -> Vec<StepRef> {
    candidates(run, asker).filter(|step| claimable(run, step, asker).is_ok()).collect()
}

/// How many steps [`ready`] has, without a look at each.
pub fn count_ready(run: &Run, asker: &Asker<'_>) -> usize {
    let held = run.held().filter(|(step, _)| claimable(run, step, asker).is_ok()).count();
    let free = run.free(|lock| busy_by(run, lock, None, asker).is_some());
    let is_limited = run.has_limits();
    if owner_of_place(run, asker).is_some() || !run.terms.steps.is_empty() || is_limited {
        return ready(run, asker).len();
    }
    // What else stands against one free step is the run's: it stands against all.
    let open = free.first().is_some_and(|step| claimable(run, &step, asker).is_ok());
    held + if open { free.count() } else { 0 }
}

/// Why a step cannot be claimed now, with or without force.
pub fn in_the_way(
    run: &Run,
    step: &StepRef,
    asker: &Asker<'_>,
    takeover: Takeover,
) -> Option<Refusal> {
    grant(run, step, asker, takeover).err()
}

fn grant(
    run: &Run,
    step: &StepRef,
    asker: &Asker<'_>,
    takeover: Takeover,
) -> Result<Chosen, Refusal> {
    let held = run.step(step).and_then(|(_, state)| state.attempt());
    let displaces = held.map(|attempt| attempt.fence);
    let granted = match (claimable(run, step, asker), takeover) {
        (Err(Refusal::HeldAlive { .. } | Refusal::HeldElsewhere { .. }), Takeover::Force) => {
            let index = run.index_of(step).expect("a held step is in the plan");
            let entry = open_to(run, index, step, asker)?;
            Granted { entry, grounds: Grounds::Forced }
        }
        (answer, _) => answer?,
    };
    let tree = tree_for(run, step, asker);
    let outlived = outlived(run, step, tree, asker);
    Ok(Chosen { step: step.clone(), granted, tree, displaces, outlived })
}

/// Whether a step may be claimed now, given what was seen of its present holder.
pub fn claimable(run: &Run, step: &StepRef, asker: &Asker<'_>) -> Result<Granted, Refusal> {
    match run.index_of(step) {
        Some(index) => claimable_at(run, index, step, asker),
        // Of an iteration that is over.
        None if run.step(step).is_some() => Err(Refusal::Completed(step.clone())),
        None => Err(Refusal::UnknownStep(step.clone())),
    }
}

/// The same about a step whose place in the plan is known.
pub(crate) fn claimable_at(
    run: &Run,
    index: usize,
    step: &StepRef,
    asker: &Asker<'_>,
) -> Result<Granted, Refusal> {
    let state = run.step_at(index);
    match &state.phase {
        Phase::Completed { .. } => return Err(Refusal::Completed(step.clone())),
        Phase::Skipped { .. } => return Err(Refusal::Skipped(step.clone())),
        _ => {}
    }
    let grounds = match &state.phase {
        Phase::Held { attempt, .. } => taken_over(step, attempt, asker)?,
        _ => Grounds::Free,
    };
    let entry = open_to(run, index, step, asker)?;
    Ok(Granted { entry, grounds })
}

/// Whether its needs are all that [`claimable`] would name of a step that nobody is at: without the list
/// of them.
pub(crate) fn awaits_needs_alone(run: &Run, index: usize) -> bool {
    let state = run.step_at(index);
    matches!(state.phase, Phase::Pending { .. })
        && !run.has_needs_met(index)
        && !state.is_stopped()
        && (run.terms.steps.is_empty() || run.terms.has(&run.ref_at(index)))
        && state.open_question().is_none()
        && barred(run).is_ok()
        && run.fatal().is_none()
}

/// Whether anything stands against every claim on a run.
pub fn barred(run: &Run) -> Result<(), Refusal> {
    match (&run.abandoned, &run.stop) {
        (Some(_), _) => Err(Refusal::RunAbandoned),
        (None, Some(_)) => Err(Refusal::RunStopped),
        (None, None) => Ok(()),
    }
}

/// Whether anything but its holder stands between a step and whoever asks.
fn open_to(run: &Run, index: usize, step: &StepRef, asker: &Asker<'_>) -> Result<Entry, Refusal> {
    let (plan, state) = (&run.plan().steps[index], run.step_at(index));
    barred(run)?;
    let kept = matches!(asker.holder, Holder::Keeper { .. });
    if kept && !run.terms.has(step) {
        return Err(Refusal::NotChosen(step.clone()));
    }
    let ground = run.ground(match run.trees().has_work(asker.holder.host(), step) {
        true => WorkIs::Here,
        false => WorkIs::Elsewhere,
    });
    let entry = match entry_of(step, (plan, state), ground)? {
        Entry::Continue if asker.observed.lost.contains(step) => Entry::Fresh,
        entry => entry,
    };
    if let (true, Phase::Held { attempt: lost, .. }) = (kept, &state.phase)
        && asks_first(plan, state)
    {
        return Err(Refusal::AskFirst { step: step.clone(), fence: lost.fence });
    }
    // Failures end what piton runs by itself; people and agents may go on with the other steps.
    if let (true, Some(failed)) = (kept, run.fatal()) {
        return Err(Refusal::RunFailed(failed));
    }
    let needs = run.unmet(index);
    if !needs.is_empty() {
        return Err(Refusal::NeedsUnmet { step: step.clone(), needs });
    }
    if let (true, Some((step, asked))) = (kept, run.question_about_run()) {
        let (question, text) = (asked.id, asked.text.clone());
        return Err(Refusal::QuestionOpen { step, question, text });
    }
    if kept && matches!(entry, Entry::Fresh | Entry::Continue) {
        free_account(run, (step, plan), asker)?;
    }
    free_slots(run, step, plan, asker)?;
    free_place(run, step, asker)?;
    if kept {
        free_job(run, step, asker)?;
        return Ok(entry);
    }
    // Whoever claims from a worktree of their own sees to the rest themselves.
    Ok(state.agent_entry(&plan.work, ground.enough))
}

/// Whether a lapsed claim may be believed again: nobody else has got a slot of its locks, or its
/// worktree.
pub(crate) fn renewable(run: &Run, step: &StepRef, asker: &Asker<'_>) -> Result<(), Refusal> {
    match run.step(step) {
        Some((plan, _)) => free_slots(run, step, plan, asker)?,
        None => return Err(Refusal::UnknownStep(step.clone())),
    }
    match asker.holder {
        Holder::External { .. } => free_place(run, step, asker),
        Holder::Keeper { .. } => Ok(()),
    }
}

/// Nothing is started on an account that has met a limit; once that should be over, one attempt after the
/// other, until one has shown that it is.
pub(crate) fn free_account(
    run: &Run,
    (step, plan): (&StepRef, &PlanStep),
    asker: &Asker<'_>,
) -> Result<(), Refusal> {
    let Some(agent) = plan.work.agent() else { return Ok(()) };
    if let Some((step, asked)) = run.question_about_account_of(agent) {
        let (question, text) = (asked.id, asked.text.clone());
        return Err(Refusal::QuestionOpen { step, question, text });
    }
    let Some((account, limit)) = run.limits().of(agent) else { return Ok(()) };
    let is_probe = |(other, held): &(StepRef, &Attempt)| {
        let works = run.step(other).and_then(|(plan, _)| plan.work.agent());
        other != step
            && limit.is_probed_by(works, held.fence)
            && matches!(held.entry, Entry::Fresh | Entry::Continue)
            && is_at_work(other, held, asker)
    };
    let probe = run.held().find(is_probe).map(|(other, _)| other);
    if asker.now.wall >= limit.until && probe.is_none() {
        return Ok(());
    }
    let (account, until) = (account.clone(), limit.until);
    Err(Refusal::Limited { step: step.clone(), account, until, probe })
}

/// Every lock of a step must have a slot that no believed claim on another step holds.
pub(crate) fn free_slots(
    run: &Run,
    step: &StepRef,
    plan: &PlanStep,
    asker: &Asker<'_>,
) -> Result<(), Refusal> {
    for lock in &plan.locks {
        if let Some(by) = busy_by(run, lock, Some(step), asker) {
            return Err(Refusal::LockBusy { lock: lock.clone(), by });
        }
    }
    Ok(())
}

/// Who holds every slot of a lock; a claim on the step itself does not count.
fn busy_by(
    run: &Run,
    lock: &LockName,
    but: Option<&StepRef>,
    asker: &Asker<'_>,
) -> Option<Vec<StepRef>> {
    let by: Vec<StepRef> = users(run, lock, but)
        .filter(|(step, attempt)| is_believed(step, attempt, asker))
        .map(|(step, _)| step)
        .collect();
    (by.len() >= slots(run, lock)).then_some(by)
}

/// The lapsed claims that leave too few slots for a claim on this step, or are in its tree, should they be
/// renewed.
fn outlived(run: &Run, step: &StepRef, tree: Option<TreeNo>, asker: &Asker<'_>) -> Vec<Under> {
    let there = tree.into_iter().flat_map(|tree| outside_in(run, tree, step, asker));
    let mut all: Vec<_> = there.map(under).collect();
    for lock in run.step(step).iter().flat_map(|(plan, _)| &plan.locks) {
        let users: Vec<_> = users(run, lock, Some(step)).collect();
        if users.len() >= slots(run, lock) {
            let lapsed = users.into_iter().filter(|(step, held)| !is_believed(step, held, asker));
            all.extend(lapsed.map(under));
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn under((step, held): (StepRef, &Attempt)) -> Under {
    Under { step, fence: held.fence }
}

/// Claims on other steps that hold a lock.
fn users<'run>(
    run: &'run Run,
    lock: &LockName,
    but: Option<&StepRef>,
) -> impl Iterator<Item = (StepRef, &'run Attempt)> {
    let uses = move |step: &StepRef| {
        Some(step) != but && run.step(step).is_some_and(|(plan, _)| plan.locks.contains(lock))
    };
    run.held().filter(move |(step, _)| uses(step))
}

fn slots(run: &Run, lock: &LockName) -> usize {
    run.plan().locks.get(lock).map_or(1, |slots| *slots as usize)
}

fn is_believed(step: &StepRef, attempt: &Attempt, asker: &Asker<'_>) -> bool {
    lives_here(attempt, asker) || !believed_until(step, attempt, asker.leases).is_over(asker.now)
}

/// A held lock outranks the lease. A keeper on the asker's own host that it did not see there came
/// after the asker had looked: whoever looks again sees it alive or dead.
fn lives_here(attempt: &Attempt, asker: &Asker<'_>) -> bool {
    match asker.observed.of(attempt.id) {
        Sighting::Alive | Sighting::Unknown(_) => true,
        Sighting::Dead(_) => false,
        Sighting::Elsewhere => {
            matches!(attempt.holder, Holder::Keeper { .. })
                && attempt.holder.host() == asker.holder.host()
        }
    }
}

/// A held step can be taken over by its own owner, or after its lease. On this host a live keeper
/// keeps it whatever its lease says, and a dead one is buried first, so that its work is kept.
fn taken_over(step: &StepRef, attempt: &Attempt, asker: &Asker<'_>) -> Result<Grounds, Refusal> {
    let (id, fence) = (step.clone(), attempt.fence);
    if attempt.holder.is_same_owner(asker.holder) {
        return Ok(Grounds::SameOwner);
    }
    match asker.observed.of(attempt.id) {
        Sighting::Dead(_) => Err(Refusal::HeldDead { step: id, fence }),
        _ if lives_here(attempt, asker) => Err(Refusal::HeldAlive { step: id, fence }),
        _ => {
            let until = believed_until(step, attempt, asker.leases);
            if until.is_over(asker.now) {
                Ok(Grounds::LeaseOver)
            } else {
                Err(Refusal::HeldElsewhere { step: id, fence, until: until.clone() })
            }
        }
    }
}

/// Two never work in one tree: neither two keepers, nor a keeper and somebody outside who works in a tree of
/// the pool. One owner outside may have several steps there.
fn free_place(run: &Run, step: &StepRef, asker: &Asker<'_>) -> Result<(), Refusal> {
    let by = match asker.holder {
        Holder::Keeper { .. } => outside_in_place(run, step, asker),
        Holder::External { .. } => {
            owner_of_place(run, asker).filter(|owner| *owner != step).cloned()
        }
    };
    by.map_or(Ok(()), |by| Err(Refusal::TreeBusy { by }))
}

/// The step that the tree belongs to from which somebody outside asks.
fn owner_of_place<'run>(run: &'run Run, asker: &Asker<'_>) -> Option<&'run StepRef> {
    run.trees().owner(asker.holder.host(), asker.observed.place?)
}

/// Whose believed holder outside is in the tree that belongs to this step on the asker's host.
pub(crate) fn outside_in_place(run: &Run, step: &StepRef, asker: &Asker<'_>) -> Option<StepRef> {
    let tree = run.trees().on(asker.holder.host(), step)?;
    let believed = |(other, held): &(StepRef, &Attempt)| is_believed(other, held, asker);
    outside_in(run, tree, step, asker).find(believed).map(|(other, _)| other)
}

/// Claims from outside on other steps, made in a tree of the pool.
fn outside_in<'a>(
    run: &'a Run,
    tree: TreeNo,
    step: &'a StepRef,
    asker: &'a Asker<'_>,
) -> impl Iterator<Item = (StepRef, &'a Attempt)> {
    let is_there = move |held: &Attempt| asker.observed.outside.get(&held.id) == Some(&tree);
    run.held().filter(move |(other, held)| other != step && is_there(held))
}

/// The tree that a keeper gets: one that somebody outside is believed to work in is passed over.
fn tree_for(run: &Run, step: &StepRef, asker: &Asker<'_>) -> Option<TreeNo> {
    let Holder::Keeper { host, .. } = asker.holder else { return None };
    let believed = |(other, held): (StepRef, &Attempt)| is_believed(&other, held, asker);
    let is_occupied = |tree| outside_in(run, tree, step, asker).any(believed);
    Some(run.trees().choose(host, step, is_occupied))
}

/// So many steps are attempted at once.
fn free_job(run: &Run, step: &StepRef, asker: &Asker<'_>) -> Result<(), Refusal> {
    let jobs = jobs(run);
    let others = run.held().filter(|(other, held)| other != step && is_kept(held));
    let busy = others.filter(|(other, held)| is_believed(other, held, asker)).count();
    if busy >= jobs as usize { Err(Refusal::JobsBusy { jobs }) } else { Ok(()) }
}

/// How many attempts at once there are at most.
pub(crate) fn jobs(run: &Run) -> u32 {
    match run.plan().isolation {
        Isolation::Run => 1,
        Isolation::Step => run.terms.jobs.unwrap_or_else(|| run.plan().jobs()),
    }
}

fn is_kept(attempt: &Attempt) -> bool {
    matches!(attempt.holder, Holder::Keeper { .. })
}

/// Whether a keeper is believed to have the step.
pub(crate) fn is_at_work(step: &StepRef, attempt: &Attempt, asker: &Asker<'_>) -> bool {
    is_kept(attempt) && is_believed(step, attempt, asker)
}
