//! Commands in, decided events or a typed refusal out. The only author of events, and the only place
//! that says who may write what: a stale fence is refused here, on every path.

use crate::claim::{Asker, Chosen, Claim, believed_until, choose, lease_key, renewable};
use crate::decided::{Decided, Lease};
use crate::event::{
    Claimed, Entry, Event, Fact, Failure, Found, Holder, Interruption, IterationCheck, ReleasedBy,
    RunOpened, Stage, Truth, Under,
};
use crate::ids::{Fence, ItemRef, Oid, QuestionId, StepRef, SubstepId, TreeNo};
use crate::limits::{EVIDENCE_BYTES_MAX, NOTES_MAX};
use crate::observed::Observed;
use crate::plan::{Plan, PlanStep, Work};
use crate::refusal::Refusal;
use crate::run::{Attempt, Merged, Phase, Run, Step};
use crate::time::Moment;

use ask::{decide_answer, decide_apply, decide_ask, decide_conflict};
use complete::{decide_complete, decide_found, nothing_awaited, nothing_open, verified};
use end::{asked_cause, bury, clipped_failure, decide_expire, ended};
use mend::{decide_find, decide_reset, decide_retry, decide_skip};
use outputs::{decide_await, decide_set};
use steer::{decide_abandon, decide_accept, decide_reopen, decide_resume, decide_stop};

pub use ask::asked;
pub use command::{Command, Request};
pub use complete::{completable, completed_with};
pub use steer::{acceptable, may_forget, to_restart};

mod ask;
mod command;
mod complete;
mod end;
mod limit;
mod loops;
mod mend;
mod outputs;
mod steer;

/// Opens a run: its first event, with the texts it refers to, and what the plan's file said of its steps.
pub fn open(plan: &Plan, settings: &[u8], opened: RunOpened, found: &[Found]) -> Decided {
    assert_eq!(opened.plan, plan.hash(), "a run is opened with the plan it names");
    let of_plan = |found: &&Found| plan.index_of(&found.step.step).is_some();
    let fitting = |mut found: Found| {
        found.question = found.question.as_deref().map(clipped);
        found.notes.truncate(NOTES_MAX);
        found.notes.iter_mut().for_each(|note| *note = clipped(note));
        found
    };
    let found = found.iter().filter(of_plan).cloned().map(fitting).map(Event::Found);
    let decided =
        Decided::new(std::iter::once(Event::RunOpened(opened)).chain(found.clone()).collect())
            .with_text(plan.to_bytes())
            .with_text(settings.to_vec());
    // Of a plan that is done with, another run may be opened.
    let done = found.filter(|event| matches!(event, Event::Found(found) if found.state.is_done()));
    if done.count() == plan.steps.len() { decided.freeing_key() } else { decided }
}

/// Decides a command against a run, under the store's lock or compared when appended.
pub fn decide(
    run: &Run,
    command: &Command,
    leases: &[Lease],
    now: &Moment,
) -> Result<Decided, Refusal> {
    if run.abandoned.is_some() && is_to_go_on(command) {
        return Err(Refusal::RunAbandoned);
    }
    match command {
        Command::Claim(claim) => decide_claim(run, claim, leases, now),
        Command::Under(under, request) => decide_under(run, under, request, &Clock { leases, now }),
        Command::Answer { question, answer, host } => decide_answer(run, question, answer, host),
        Command::ForceRelease { step } => {
            let held = present(run, step).map_err(|no| unreleasable(run, step, no))?;
            let under = Under { step: step.clone(), fence: held.fence };
            Ok(last_word(&under, Fact::Released { by: ReleasedBy::Force }, now))
        }
        Command::Reset { step, reason } => decide_reset(run, step, reason.as_deref()),
        Command::Retry { steps, host } => decide_retry(run, steps, host),
        Command::Find { step } => decide_find(run, step),
        Command::Skip { step, reason, host } => decide_skip(run, step, reason, host),
        Command::Stop { scope, cause, haste } => decide_stop(run, scope, *cause, *haste),
        Command::Resume { host, confirmed, terms } => decide_resume(run, host, *confirmed, terms),
        Command::Abandon { host, keep_until } => decide_abandon(run, host, *keep_until),
        Command::Reopen { host } => Ok(decide_reopen(run, host)),
        Command::IntendMerge(intent) if run.merging.as_ref() == Some(intent) => Ok(nothing()),
        Command::IntendMerge(intent) => Ok(one(Event::MergeIntended(intent.clone()))),
        // Nothing was landed: nothing was merged.
        Command::Merge { tip, .. } if *tip == run.opened.base => Ok(nothing()),
        Command::Merge { into, commit, tip } => {
            let known = run.merged.as_ref().filter(|_| run.merging.is_none());
            let same =
                |known: &Merged| (&known.into, &known.commit, &known.tip) == (into, commit, tip);
            if known.is_some_and(same) {
                return Ok(nothing());
            }
            let (into, commit, tip) = (into.clone(), commit.clone(), tip.clone());
            Ok(one(Event::Merged { into, commit, tip }))
        }
        Command::AcceptPlan { plan } => decide_accept(run, plan),
    }
}

/// The store's clock, and the leases that it judges.
struct Clock<'a> {
    leases: &'a [Lease],
    now: &'a Moment,
}

/// A claim that is the step's present one, with the step.
struct Held<'a> {
    run: &'a Run,
    under: &'a Under,
    plan: &'a PlanStep,
    state: &'a Step,
    attempt: &'a Attempt,
}

impl Held<'_> {
    fn id(&self) -> StepRef {
        self.under.step.clone()
    }

    fn is_kept(&self) -> bool {
        matches!(self.attempt.holder, Holder::Keeper { .. })
    }

    /// The question that this attempt has asked and was not told the answer of.
    fn awaits_answer(&self) -> bool {
        self.state.awaits(self.under.fence).is_some()
    }

    fn fact(&self, fact: Fact) -> Decided {
        one(Event::Under(self.under.clone(), fact))
    }

    fn last_word(&self, fact: Fact, now: &Moment) -> Decided {
        last_word(self.under, fact, now)
    }
}

/// The fact that ends an attempt; its lease is over with it, so that leases do not pile up.
fn last_word(under: &Under, fact: Fact, now: &Moment) -> Decided {
    one(Event::Under(under.clone(), fact)).with_lease(lease(under, now))
}

fn lease(under: &Under, until: &Moment) -> Lease {
    Lease { key: lease_key(&under.step), fence: under.fence, until: until.clone() }
}

fn decide_under(
    run: &Run,
    under: &Under,
    request: &Request,
    clock: &Clock<'_>,
) -> Result<Decided, Refusal> {
    // Completing twice under the same fence is harmless; nothing else completes a completed step.
    let completes = match request {
        Request::WithPlan { end, .. } => matches!(**end, Request::Complete { .. }),
        request => matches!(request, Request::Complete { .. }),
    };
    if completes && is_completed_by(run, under) {
        return Ok(nothing());
    }
    let held = own(run, under).map_err(|refusal| match request {
        Request::Release => unreleasable(run, &under.step, refusal),
        _ => refusal,
    })?;
    let now = clock.now;
    match request {
        Request::Start { base, answers, pid } => decide_start(&held, base.as_ref(), answers, *pid),
        Request::Renew { until, place } => decide_renew(&held, until, *place, clock),
        Request::Checkpoint { snapshot, report } => {
            let (snapshot, report) = (snapshot.clone(), report.clone());
            Ok(held.fact(Fact::Checkpointed { snapshot, report }))
        }
        Request::CompleteSubstep { substep } => decide_substep(&held, substep),
        Request::AddItem { text, priority } => {
            let (text, priority) = (clipped(text), *priority);
            Ok(held.fact(Fact::ItemAdded { text, priority }))
        }
        Request::MarkItems { items, mark } => {
            known_items(&held, items)?;
            let (items, mark) = (items.clone(), mark.clone());
            Ok(held.fact(Fact::ItemsMarked { items, mark }))
        }
        Request::SetOutput { name, json } => decide_set(&held, name, json),
        Request::AwaitOutput { output, until } => decide_await(&held, output, *until),
        Request::ReportCheckout(changes) => Ok(held.fact(Fact::CheckoutChanged(changes.clone()))),
        Request::ReportUnkept { why } => Ok(held.fact(Fact::Unkept { why: clipped(why) })),
        Request::Converse(with) if held.attempt.conversation.as_ref() == Some(with) => {
            Ok(nothing())
        }
        Request::Converse(with) => Ok(held.fact(Fact::Conversed(with.clone()))),
        Request::Verify { commit, tree, check, commits, omitted, iteration } => {
            verifiable(&held)?;
            // A plain command that piton has run to its end is checked by its own exit.
            let is_own_check = held.is_kept() && matches!(held.plan.work, Work::Run(_));
            let is_verified = check.is_some() || is_own_check;
            Ok(held.fact(Fact::Verified {
                commit: commit.clone(),
                tree: tree.clone(),
                truth: if is_verified { Truth::Verified } else { Truth::Claimed },
                check: check.clone(),
                commits: *commits,
                answers: held.state.directions().map(|question| question.id).collect(),
                omitted: omitted.clone(),
                iteration: iteration.clone().map(|seen| {
                    let tail = clipped(&seen.tail);
                    Box::new(IterationCheck { tail, ..*seen })
                }),
            }))
        }
        Request::FindDone { check } => decide_found(&held, check.as_ref(), now),
        Request::WithPlan { end, plan } => {
            let (from, before) = (run.plan().planner(), Some(run.graph().hash()));
            let is_planner = from.is_some_and(|from| from.step == under.step.step);
            if !is_planner || plan.plan_from.as_ref().and_then(|from| from.before) != before {
                return Err(Refusal::PlanFixed { what: "planner" });
            }
            let accepted = decide_accept(run, plan)?;
            Ok(decide_under(run, under, end, clock)?.going_on(accepted))
        }
        Request::Land(intent) => {
            verified(&held)?;
            Ok(held.fact(Fact::LandingIntended(intent.clone())))
        }
        Request::Complete { commit, waive } => {
            decide_complete(&held, commit.as_ref(), waive.as_deref(), now)
        }
        Request::RaiseQuestion { text, choices } => decide_ask(&held, text, choices),
        Request::RaiseConflict(conflict) => decide_conflict(&held, conflict, now),
        Request::ApplyAnswers { questions } => Ok(decide_apply(&held, questions)),
        Request::ReportAnswer => Ok(limit::decide_lift(&held)),
        Request::Park(heard) => {
            Ok(ended(&held, Fact::Limited(limit::limited(&held, heard, now)), now))
        }
        Request::Suspend if held.awaits_answer() => Ok(held.last_word(Fact::Suspended {}, now)),
        Request::Suspend => Err(Refusal::NothingAsked { step: held.id() }),
        // A worker would take it up again at once, and so on for ever.
        Request::Release if held.is_kept() => Err(Refusal::RunByPiton(held.id())),
        Request::Release => Ok(held.last_word(Fact::Released { by: ReleasedBy::Owner }, now)),
        // Whoever waits for an answer has not failed, unless they say so themselves.
        Request::Fail { why }
            if held.awaits_answer() && !matches!(why, Failure::Reported { .. }) =>
        {
            Ok(held.last_word(Fact::Suspended {}, now))
        }
        Request::Fail { why } => {
            Ok(ended(&held, Fact::Failed { why: clipped_failure(why.clone()) }, now))
        }
        Request::Interrupt(interruption) => {
            let fact = Fact::Interrupted(Interruption {
                cause: asked_cause(&held).unwrap_or(interruption.cause),
                at: interruption.at,
                evidence: clipped(&interruption.evidence),
                left_at: match (held.state.stage(held.attempt), interruption.left_at) {
                    // Only the holder knows that its agent has ended; the log knows the rest.
                    (Stage::Agent, Stage::Verify) => Stage::Verify,
                    (recorded, _) => recorded,
                },
            });
            Ok(ended(&held, fact, now))
        }
        Request::Bury(corpse) => Ok(ended(&held, bury(&held, corpse, now), now)),
        Request::Expire => decide_expire(&held, clock),
    }
}

/// Whether a command is about a run that goes on. Of one that was abandoned nobody holds anything: who
/// still writes under a fence is told by that.
fn is_to_go_on(command: &Command) -> bool {
    matches!(
        command,
        Command::Claim(_)
            | Command::Answer { .. }
            | Command::Reset { .. }
            | Command::Retry { .. }
            | Command::Find { .. }
            | Command::Skip { .. }
            | Command::Stop { .. }
            | Command::Resume { .. }
            | Command::AcceptPlan { .. }
    )
}

fn one(event: Event) -> Decided {
    Decided::new(vec![event])
}

fn nothing() -> Decided {
    Decided::new(Vec::new())
}

/// The one check of ownership: the step's open attempt, if this fence is its fence.
fn own<'a>(run: &'a Run, under: &'a Under) -> Result<Held<'a>, Refusal> {
    let (id, given) = (|| under.step.clone(), under.fence);
    let (plan, state) = run.step(&under.step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    match &state.phase {
        Phase::Held { attempt, .. } if attempt.fence == given => {
            Ok(Held { run, under, plan, state, attempt })
        }
        Phase::Held { attempt, .. } => {
            Err(Refusal::StaleFence { step: id(), given, current: attempt.fence })
        }
        Phase::Completed { .. } => Err(Refusal::Completed(id())),
        Phase::Skipped { .. } => Err(Refusal::Skipped(id())),
        Phase::Pending { .. }
        | Phase::Failed { .. }
        | Phase::Interrupted { .. }
        | Phase::Parked { .. }
        | Phase::Suspended { .. } => Err(Refusal::NotClaimed { step: id(), given }),
    }
}

/// Whether a fence is that of the step's open attempt.
pub fn holds(run: &Run, under: &Under) -> Result<(), Refusal> {
    own(run, under).map(drop)
}

fn is_completed_by(run: &Run, under: &Under) -> bool {
    let state = run.step(&under.step).map(|(_, state)| &state.phase);
    matches!(state, Some(Phase::Completed { fence, .. }) if *fence == under.fence)
}

/// Why there is nothing to give back, whoever asks.
fn unreleasable(run: &Run, step: &StepRef, refusal: Refusal) -> Refusal {
    match (refusal, present(run, step)) {
        (Refusal::Completed(step), _) => Refusal::CannotRelease(step),
        (_, Err(pending @ Refusal::Pending(_))) => pending,
        (refusal, _) => refusal,
    }
}

fn decide_claim(
    run: &Run,
    claim: &Claim,
    leases: &[Lease],
    now: &Moment,
) -> Result<Decided, Refusal> {
    let Chosen { step, granted, tree, displaces, outlived } = choose(run, claim, leases, now)?;
    let event = Event::Claimed(Claimed {
        step: step.clone(),
        attempt: claim.attempt,
        holder: claim.holder.clone(),
        entry: granted.entry,
        grounds: granted.grounds,
        until: claim.until.clone(),
        plan: run.graph().hash(),
        tree,
        displaces,
        pid: claim.pid,
    });
    let fence = Fence::from(run.cursor.position.next());
    let decided = one(event).with_lease(lease(&Under { step, fence }, &claim.until));
    let over = outlived.iter().map(|under| lease(under, now));
    Ok(over.fold(decided, Decided::with_lease))
}

fn decide_start(
    held: &Held<'_>,
    base: Option<&Oid>,
    answers: &[QuestionId],
    pid: Option<u32>,
) -> Result<Decided, Refusal> {
    if matches!(held.attempt.entry, Entry::Verify | Entry::Land) {
        return Err(Refusal::NothingToStart { step: held.id() });
    }
    let mut told = answers.to_vec();
    // What piton asked itself is followed, whether anybody is told it or not.
    told.extend(held.state.directions().map(|question| question.id));
    let answers = held.state.unread_of(&told);
    if held.attempt.started_at.is_some() && answers.is_empty() && base.is_none() {
        return Ok(nothing());
    }
    Ok(held.fact(Fact::Started { base: base.cloned(), answers, pid }))
}

fn decide_renew(
    held: &Held<'_>,
    until: &Moment,
    place: Option<TreeNo>,
    clock: &Clock<'_>,
) -> Result<Decided, Refusal> {
    let Clock { leases, now } = *clock;
    let step = &held.under.step;
    if !until.is_later_than(believed_until(step, held.attempt, leases)) {
        return Ok(nothing());
    }
    // Whoever has the slots of a lapsed claim by now, or its worktree, keeps them.
    let observed = Observed { place, ..Observed::default() };
    let asker = Asker { holder: &held.attempt.holder, observed: &observed, leases, now };
    renewable(held.run, step, &asker)?;
    Ok(nothing().with_lease(lease(held.under, until)))
}

/// What a keeper has verified is about to land: nothing of it may be open then.
fn verifiable(held: &Held<'_>) -> Result<(), Refusal> {
    if !held.is_kept() {
        return Ok(());
    }
    if held.state.stage(held.attempt) == Stage::Unstarted {
        return Err(Refusal::NotStarted { step: held.id() });
    }
    nothing_awaited(held, |question| question.fence == held.under.fence)?;
    match is_unaware(held) {
        true => Ok(()),
        false => nothing_open(held),
    }
}

/// An agent that works from another tool's plan knows nothing of checklists here: what it leaves open is
/// recorded with its completion, and is no failure.
fn is_unaware(held: &Held<'_>) -> bool {
    held.is_kept() && held.run.plan().source.is_some()
}

fn decide_substep(held: &Held<'_>, substep: &SubstepId) -> Result<Decided, Refusal> {
    if !held.plan.substeps.iter().any(|candidate| candidate.id == *substep) {
        return Err(Refusal::UnknownSubstep { step: held.id(), substep: substep.clone() });
    }
    match held.state.checklist.completed.contains(substep) {
        true => Ok(nothing()),
        false => Ok(held.fact(Fact::SubstepCompleted { substep: substep.clone() })),
    }
}

fn known_items(held: &Held<'_>, items: &[ItemRef]) -> Result<(), Refusal> {
    match items.iter().find(|item| !held.state.checklist.has(held.plan, item)) {
        Some(item) => Err(Refusal::UnknownItem { step: held.id(), item: item.clone() }),
        None => Ok(()),
    }
}

/// The claim on a step, whoever has it; or why there is none.
pub fn present<'run>(run: &'run Run, step: &StepRef) -> Result<&'run Attempt, Refusal> {
    let id = || step.clone();
    let (_, state) = run.step(step).ok_or_else(|| Refusal::UnknownStep(id()))?;
    let how = match &state.phase {
        Phase::Held { attempt, .. } => return Ok(attempt),
        Phase::Completed { .. } => return Err(Refusal::Completed(id())),
        Phase::Skipped { .. } => return Err(Refusal::Skipped(id())),
        Phase::Pending { .. } => return Err(Refusal::Pending(id())),
        Phase::Failed { .. } => "it has failed",
        Phase::Suspended { .. } => "it waits for an answer",
        Phase::Parked { .. } => "it waits until a limit is over",
        Phase::Interrupted { .. } => "it was interrupted",
    };
    Err(Refusal::NothingHeld { step: id(), how })
}

/// The end of a text, at most as long as an event may carry.
fn clipped(text: &str) -> String {
    let mut start = text.len().saturating_sub(EVIDENCE_BYTES_MAX);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}
