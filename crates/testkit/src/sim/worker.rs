//! A simulated worker: look, ask the rules what to do, act; each durable action on its own, so that
//! it can die or stall between any two. The user is here too: stops, resumes, says yes, gives back and
//! resets what others left, and answers late, twice or never.

use std::fmt;
use std::sync::Arc;

use piton_core::claim::{Claim, Takeover, Which};
use piton_core::decide::{Command, Request};
use piton_core::event::{About, Cause, Haste, Holder, Scope, SnapshotReason, Terms, Under};
use piton_core::ids::{AttemptId, Fence, StepRef};
use piton_core::observed::{Corpse, Observed, Sighting};
use piton_core::question::{
    ACCEPT, CONTINUE, GO_ON, LAND_AGAIN, Question, RESTART, STOP, TRY_AGAIN, WAIT, WhichQuestion,
};
use piton_core::recover::{Action, recover};
use piton_core::refusal::Refusal;
use piton_core::run::Phase;
use piton_engine::run::log::Log;

use super::keeper::{Keeper, Order, snapshot};
use super::referee::Writer;
use super::world::{ActorId, Folder, LEASE, World, short};

pub(super) struct Worker {
    pub(super) id: ActorId,
    pub(super) number: usize,
    pub(super) host: usize,
    log: Option<Log>,
    next: Next,
}

/// A dead attempt, as it was seen.
#[derive(Debug, Clone)]
struct Dead {
    step: StepRef,
    fence: Fence,
    attempt: AttemptId,
    corpse: Corpse,
}

/// What a worker does next.
#[derive(Debug, Clone)]
enum Next {
    Look,
    Sweep(Dead),
    Keep(Dead),
    Bury(Dead),
    Lock(StepRef, Observed),
    /// The holder elsewhere is lost: a person is asked.
    Expire(StepRef, Fence),
    Claim(StepRef, AttemptId, Observed),
    Spawn(StepRef, AttemptId),
}

impl Worker {
    pub(super) fn start(world: &mut World, number: usize, host: usize) -> Worker {
        Worker { id: world.new_actor(), number, host, log: None, next: Next::Look }
    }

    /// One action.
    pub(super) fn act(&mut self, world: &mut World) {
        let Some(mut log) = self.log.take().or_else(|| world.load(world.store_for(self.number)))
        else {
            return;
        };
        if !matches!(self.next, Next::Look) {
            let doing = format!("{self}: {}", self.next);
            world.note(&doing);
        }
        self.next = match self.next.clone() {
            Next::Look => self.look(world, &mut log),
            Next::Sweep(dead) => {
                world.end_agent(self.host, dead.attempt);
                Next::Keep(dead)
            }
            Next::Keep(dead) => self.keep(world, &mut log, dead),
            Next::Bury(dead) => self.bury(world, &mut log, dead),
            Next::Expire(step, fence) => {
                let command = Command::Under(Under { step, fence }, Request::Expire);
                let writer = Writer { gives_up_from: Some(self.host), ..Writer::plain(self.id) };
                if world.submit(&mut log, writer, &command).is_none() {
                    world.counts.expiries += 1;
                }
                Next::Look
            }
            Next::Lock(step, observed) => {
                let attempt = world.new_attempt();
                let folder = Folder { lock: Some(self.id), ..Folder::default() };
                world.hosts[self.host].folders.insert(attempt, folder);
                Next::Claim(step, attempt, observed)
            }
            Next::Claim(step, attempt, observed) => {
                self.claim(world, &mut log, (step, attempt), observed)
            }
            Next::Spawn(step, attempt) => self.spawn(world, &log, step, attempt),
        };
        self.log = Some(log);
    }

    /// Observe, then ask what to do. A look may be stale: what others wrote is not always read.
    fn look(&self, world: &mut World, log: &mut Log) -> Next {
        if world.faulty && world.rng.one_in(3) {
            world.counts.stale_looks += 1;
        } else {
            world.refresh(log);
        }
        let observed = world.observe(self.host, log.run());
        let leases = log.store().leases(world.run).unwrap_or_default();
        let Ok(now) = log.now() else { return Next::Look };
        for recovery in recover(log.run(), &observed, &leases, &now) {
            match recovery.action {
                Action::Bury { fence, .. } => {
                    let held = log.run().held().find(|(step, _)| *step == recovery.step);
                    let Some(attempt) = held.map(|(_, attempt)| attempt.id) else { continue };
                    let Sighting::Dead(corpse) = observed.of(attempt).clone() else { continue };
                    return Next::Sweep(Dead { step: recovery.step, fence, attempt, corpse });
                }
                Action::Expire { fence } => return Next::Expire(recovery.step, fence),
                Action::Start { .. } => return Next::Lock(recovery.step, observed),
                _ => {}
            }
        }
        Next::Look
    }

    /// The bytes of the dead are kept under its own fence.
    fn keep(&self, world: &mut World, log: &mut Log, dead: Dead) -> Next {
        let reason = SnapshotReason::Recovery;
        let kept = snapshot(world, self.host, dead.attempt, &dead.step, dead.fence, reason);
        let refusal = kept.and_then(|kept| {
            let under = Under { step: dead.step.clone(), fence: dead.fence };
            world.submit(log, Writer::plain(self.id), &Command::Under(under, kept))
        });
        match refusal {
            None => Next::Bury(dead),
            Some(_) => Next::Look,
        }
    }

    fn bury(&self, world: &mut World, log: &mut Log, dead: Dead) -> Next {
        let Dead { step, fence, corpse, .. } = dead;
        let command = Command::Under(Under { step, fence }, Request::Bury(corpse));
        if world.submit(log, Writer::plain(self.id), &command).is_none() {
            world.counts.burials += 1;
        }
        Next::Look
    }

    fn claim(
        &self,
        world: &mut World,
        log: &mut Log,
        (step, attempt): (StepRef, AttemptId),
        observed: Observed,
    ) -> Next {
        let Ok(now) = log.now() else { return Next::Look };
        let holder =
            Holder::Keeper { host: world.hosts[self.host].id.clone(), boot: world.boot(self.host) };
        let command = Command::Claim(Claim {
            which: Which::Step(step.clone()),
            attempt,
            holder,
            until: now.after(LEASE),
            observed,
            takeover: Takeover::Forbid,
            pid: None,
        });
        match world.submit(log, Writer::plain(self.id), &command) {
            None => Next::Spawn(step, attempt),
            Some(refusal) => {
                if let Refusal::LockBusy { .. } = refusal {
                    world.counts.lock_waits += 1;
                }
                world.note(&format!("{self} is refused: {refusal}"));
                world.hosts[self.host].folders.remove(&attempt);
                Next::Look
            }
        }
    }

    /// The keeper inherits the lock.
    fn spawn(&self, world: &mut World, log: &Log, step: StepRef, attempt: AttemptId) -> Next {
        let held = log.run().held().find(|(_, held)| held.id == attempt);
        let given = held.and_then(|(_, held)| Some((held.fence, held.entry, held.tree?)));
        let Some((fence, entry, tree)) = given else {
            // Lost before it was handed over.
            world.hosts[self.host].folders.remove(&attempt);
            return Next::Look;
        };
        let Some(own) = world.load(Arc::clone(log.store())) else { return Next::Look };
        let order = Order { host: self.host, attempt, step, fence, entry, tree };
        let keeper = Keeper::new(world, own, order);
        if let Some(folder) = world.hosts[self.host].folders.get_mut(&attempt) {
            folder.lock = Some(keeper.id);
        }
        world.born.push(keeper);
        Next::Look
    }
}

/// Somebody who stops and resumes as they like; in the end they only want it to go on.
#[derive(Default)]
pub(super) struct User {
    log: Option<Log>,
}

impl User {
    /// Mostly they only watch.
    pub(super) fn act(&mut self, world: &mut World) {
        let whim = world.rng.below(40);
        if world.faulty && whim > 9 {
            return;
        }
        let store = Arc::clone(&world.shared.store);
        let Some(mut log) = self.log.take().or_else(|| world.load(store)) else { return };
        world.refresh(&mut log);
        if let Some(command) = ask(world, &log, whim) {
            world.note(&format!("user: {command:?}"));
            match command {
                Command::Stop { .. } => world.counts.stops += 1,
                Command::ForceRelease { .. } => world.counts.forced_releases += 1,
                Command::Reset { .. } => world.counts.resets += 1,
                Command::Answer { .. } => {}
                _ => world.counts.resumes += 1,
            }
            let writer = Writer { takeover: Takeover::Force, ..Writer::plain(ActorId(0)) };
            let _refused = world.submit(&mut log, writer, &command);
        }
        self.log = Some(log);
    }
}

fn ask(world: &mut World, log: &Log, whim: u64) -> Option<Command> {
    let (host, cause) = (world.hosts[0].id.clone(), Cause::UserInterrupt);
    if !world.faulty {
        let recoveries = recover(log.run(), &Observed::default(), &[], &log.now().ok()?);
        let waits = |action: &Action| {
            matches!(action, Action::StayStopped | Action::LeaveOut | Action::Ask { .. })
        };
        let needed = recoveries.iter().any(|recovery| waits(&recovery.action));
        let terms = Terms::default();
        let resume = needed.then(|| Command::Resume { host, confirmed: true, terms });
        let answer = |world: &mut World| answer(world, log, Question::is_open);
        return resume.or_else(|| answer(world)).or_else(|| retry(world, log));
    }
    let haste = if world.rng.one_in(2) { Haste::Graceful } else { Haste::Now };
    let held: Vec<_> = log.run().held().map(|(step, attempt)| (step, attempt.fence)).collect();
    let held = match held.len() {
        0 => None,
        count => Some(held[world.rng.index(count)].clone()),
    };
    match (whim, held) {
        (0, _) => Some(Command::Stop { scope: Scope::Run, cause, haste }),
        (1, Some((step, fence))) => {
            Some(Command::Stop { scope: Scope::Attempt(Under { step, fence }), cause, haste })
        }
        (6, Some((step, _))) => Some(Command::ForceRelease { step }),
        (7, _) => {
            let left = log.run().steps().find(|(_, _, step)| {
                let ended = matches!(
                    step.phase,
                    Phase::Failed { .. }
                        | Phase::Interrupted { .. }
                        | Phase::Suspended { .. }
                        | Phase::Parked { .. }
                );
                ended || step.held_back().is_some()
            });
            let step = left?.0;
            Some(Command::Reset { step, reason: None })
        }
        (8 | 9, _) => answer(world, log, |_| true).or_else(|| retry(world, log)),
        (1 | 6, None) => None,
        _ => {
            let terms = Terms { restart: whim == 5, ..Terms::default() };
            Some(Command::Resume { host, confirmed: world.rng.one_in(2), terms })
        }
    }
}

/// Everything that failed is taken up again.
fn retry(world: &World, log: &Log) -> Option<Command> {
    let failed = log.run().steps().filter(|(_, _, state)| {
        matches!(state.phase, Phase::Failed { .. }) && state.open_question().is_none()
    });
    let steps: Vec<StepRef> = failed.map(|(step, _, _)| step).collect();
    let host = world.hosts[0].id.clone();
    (!steps.is_empty()).then_some(Command::Retry { steps, host })
}

/// An answer to some question; not always the one that was given before.
fn answer(world: &mut World, log: &Log, to: impl Fn(&Question) -> bool) -> Option<Command> {
    let asked: Vec<(StepRef, &Question)> =
        log.run().questions().filter(|(_, asked)| to(asked)).collect();
    if asked.is_empty() {
        return None;
    }
    let picked = world.rng.index(asked.len());
    let question = asked[picked].1;
    if !question.is_open() {
        world.counts.repeated_answers += 1;
    }
    let answer = match (question.about.as_deref(), world.rng.below(5)) {
        (None, 0 | 1) => "this",
        (None, _) => "that",
        // In the end they only want it to go on.
        (Some(_), 0) if world.faulty => STOP,
        (Some(About::Conflict(_) | About::Interruption { .. }), 1) => RESTART,
        (Some(About::Conflict(_)), _) => LAND_AGAIN,
        (Some(About::Loop { .. }), 1) => ACCEPT,
        (Some(About::FailedAlike { .. }), 2) => GO_ON,
        (Some(About::Account { until: Some(_), .. }), 2 | 3) => WAIT,
        (
            Some(
                About::NoProgress { .. }
                | About::Repetition { .. }
                | About::FailedAlike { .. }
                | About::Loop { .. }
                | About::Account { .. },
            ),
            _,
        ) => TRY_AGAIN,
        (Some(About::Interruption { .. }), 2) => RESTART,
        (Some(About::Interruption { .. }), _) => CONTINUE,
    }
    .to_owned();
    let conflict = matches!(question.about.as_deref(), Some(About::Conflict(_)));
    if conflict && (!world.faulty || world.rng.one_in(2)) {
        let (step, fence) = (&asked[picked].0, question.fence);
        let past = log.run().step(step).and_then(|(_, state)| state.history.last());
        if let Some(last) = past.filter(|past| past.attempt.fence == fence) {
            world.merge_by_hand(last.attempt.id);
        }
    }
    let (question, host) = (WhichQuestion::Id(question.id), world.hosts[0].id.clone());
    Some(Command::Answer { question, answer, host })
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} ({}) on {}", self.number, self.id, self.host)
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Next::Look => write!(f, "look"),
            Next::Sweep(dead) => write!(f, "sweep {}", short(dead.attempt)),
            Next::Keep(dead) => write!(f, "keep the bytes of {}", short(dead.attempt)),
            Next::Bury(dead) => write!(f, "bury {} ({:?})", short(dead.attempt), dead.corpse.exit),
            Next::Expire(step, fence) => write!(f, "record that {fence} of {step} is lost"),
            Next::Lock(step, _) => write!(f, "take a lock for {step}"),
            Next::Claim(step, attempt, _) => write!(f, "claim {step} for {}", short(*attempt)),
            Next::Spawn(step, attempt) => write!(f, "start the keeper {} {step}", short(*attempt)),
        }
    }
}
