//! Somebody outside: a script that claims steps for itself from a worktree of its own, works there,
//! says so now and then, and completes or gives back. It has no lock that anybody could look at: when
//! it stalls past its lease others take its step, and it writes on until it is refused. When it is
//! started again it asks again; what is left of it from before may not have noticed.

use std::fmt;

use piton_core::claim::{Claim, Takeover, Which};
use piton_core::decide::{Command, Request};
use piton_core::event::{
    Check, Conflict, Entry, Exit, Failure, Holder, LandingIntent, Report, SnapshotReason, Under,
};
use piton_core::ids::{AttemptId, Fence, Hash, Oid, StepRef};
use piton_core::refusal::Refusal;
use piton_core::run::Step;
use piton_engine::run::log::Log;

use super::keeper::{conflict, open_part, question, snapshot_of, unread};
use super::referee::Writer;
use super::repository::{Landing, named};
use super::tampered::Bug;
use super::world::{ActorId, LEASE, World};

pub(super) struct External {
    pub(super) id: ActorId,
    /// Its worktree.
    pub(super) number: usize,
    pub(super) host: usize,
    pub(super) presence: Presence,
    log: Option<Log>,
    next: Next,
}

/// What a process is to its worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// The one that works there.
    Current,
    /// Still running, though another was started.
    LeftBehind,
}

/// A claim as its holder remembers it; nobody tells it when that is over.
#[derive(Debug, Clone)]
struct Held {
    step: StepRef,
    index: usize,
    fence: Fence,
    attempt: AttemptId,
    entry: Entry,
}

/// What somebody outside does next.
#[derive(Debug, Clone)]
enum Next {
    Ask,
    Begin(Held),
    Work(Held),
    Verify(Held, Oid),
    Intend(Held),
    Move { held: Held, onto: Oid, to: Oid },
    Complete(Held, Option<Oid>),
}

impl External {
    pub(super) fn start(world: &mut World, number: usize) -> External {
        let (id, host) = (world.new_actor(), world.worktrees[number].host);
        let presence = Presence::Current;
        External { id, number, host, presence, log: None, next: Next::Ask }
    }

    pub(super) fn has_claim(&self) -> bool {
        !matches!(self.next, Next::Ask)
    }

    /// One action.
    pub(super) fn act(&mut self, world: &mut World) {
        let store = world.store_for(self.number);
        let Some(mut log) = self.log.take().or_else(|| world.load(store)) else { return };
        if self.has_claim() {
            let doing = format!("{self}: {}", self.next);
            world.note(&doing);
        }
        self.next = match self.next.clone() {
            Next::Ask => self.ask(world, &mut log),
            Next::Begin(held) => self.begin(world, &mut log, held),
            Next::Work(held) => self.work(world, &mut log, held),
            Next::Verify(held, commit) => self.verify(world, &mut log, held, commit),
            Next::Intend(held) => self.intend(world, &mut log, held),
            Next::Move { held, onto, to } => move_branch(world, held, &onto, to),
            Next::Complete(held, commit) => self.complete(world, &mut log, held, commit),
        };
        if self.presence == Presence::LeftBehind && !self.has_claim() {
            world.alive.remove(&self.id);
        }
        self.log = Some(log);
    }

    /// Asks for the first that can be had, or for some step; seldom by force, and seldom at all.
    fn ask(&self, world: &mut World, log: &mut Log) -> Next {
        if self.presence == Presence::LeftBehind || world.is_over() || !world.rng.one_in(4) {
            return Next::Ask;
        }
        if world.faulty && world.rng.one_in(3) {
            world.counts.stale_looks += 1;
        } else {
            world.refresh(log);
        }
        let takeover = match world.faulty && world.rng.one_in(12) {
            true => Takeover::Force,
            false => Takeover::Forbid,
        };
        let which = if world.faulty && world.rng.one_in(3) {
            let step = world.rng.index(world.plan.steps.len());
            Which::Step(StepRef::first(world.plan.steps[step].id.clone()))
        } else {
            Which::First
        };
        let Ok(now) = log.now() else { return Next::Ask };
        if world.bug == Some(Bug::KeptFence)
            && let Some(held) = self.held_before(world, log)
        {
            return Next::Begin(held);
        }
        let attempt = world.new_attempt();
        let eager = world.bug == Some(Bug::UnaskedForce);
        let mut blind = match (world.bug, takeover) {
            (Some(Bug::ForcedCompleted), Takeover::Force) => {
                world.load(world.store_with(Some(Bug::HiddenCompletions)))
            }
            _ => None,
        };
        let log = blind.as_mut().unwrap_or(log);
        let command = Command::Claim(Claim {
            which,
            attempt,
            holder: self.holder(world),
            until: now.after(LEASE),
            observed: world.observe(self.seen_from(world), log.run()),
            takeover: if eager { Takeover::Force } else { takeover },
            pid: None,
        });
        let writer = Writer { worktree: Some(self.number), takeover, ..Writer::plain(self.id) };
        match world.submit(log, writer, &command) {
            Some(Refusal::LockBusy { .. }) => world.counts.lock_waits += 1,
            Some(_) => {}
            None => {
                let held = log.run().held().find(|(_, held)| held.id == attempt);
                let Some((step, claim)) = held else { return Next::Ask };
                let index = world.plan.index_of(&step.step).expect("the plan has the step");
                let (fence, entry) = (claim.fence, claim.entry);
                return Next::Begin(Held { step, index, fence, attempt, entry });
            }
        }
        Next::Ask
    }

    fn holder(&self, world: &World) -> Holder {
        let number = if world.bug == Some(Bug::SharedName) { 0 } else { self.number };
        let host = world.hosts[self.seen_from(world)].id.clone();
        Holder::External { host, worktree: format!("/trees/{number}") }
    }

    /// The host that it believes to be on.
    fn seen_from(&self, world: &World) -> usize {
        match world.bug {
            Some(Bug::StrangeHost) => (self.host + 1) % world.hosts.len(),
            _ => self.host,
        }
    }

    /// The claim that its worktree has, as the log says.
    fn held_before(&self, world: &World, log: &Log) -> Option<Held> {
        let own = self.holder(world);
        let held = log.run().held().find(|(_, held)| held.holder.is_same_owner(&own));
        let (step, claim) = held?;
        let index = world.plan.index_of(&step.step)?;
        let (fence, attempt, entry) = (claim.fence, claim.id, claim.entry);
        Some(Held { step, index, fence, attempt, entry })
    }

    /// Submits under a claim; what ends the claim ends the work. `Err` says how it goes on.
    fn submit(
        &self,
        world: &mut World,
        log: &mut Log,
        held: &Held,
        command: &Command,
    ) -> Result<(), Next> {
        let worktree = Some(self.number);
        let fence = Some(held.fence);
        let writer = Writer { fence, worktree, ..Writer::plain(self.id) };
        match world.submit(log, writer, command) {
            None => Ok(()),
            Some(Refusal::OpenItems { .. } | Refusal::OpenSubsteps { .. }) => {
                world.counts.strict_refusals += 1;
                Err(Next::Work(held.clone()))
            }
            Some(
                Refusal::Unanswered { .. }
                | Refusal::AnswerUnread { .. }
                | Refusal::BadQuestion { .. },
            ) => Err(Next::Work(held.clone())),
            Some(refusal) => {
                world.note(&format!("{self} is refused: {refusal}"));
                world.counts.zombie_writes += 1;
                Err(Next::Ask)
            }
        }
    }

    /// Asks for something under a claim; `then` says how it goes on where that is granted.
    fn request(
        &self,
        world: &mut World,
        log: &mut Log,
        held: Held,
        request: Request,
        then: fn(Held) -> Next,
    ) -> Next {
        let under = Under { step: held.step.clone(), fence: held.fence };
        match self.submit(world, log, &held, &Command::Under(under, request)) {
            Ok(()) => then(held),
            Err(next) => next,
        }
    }

    /// Makes the worktree what the entry promises, and says that it has begun, or not.
    fn begin(&self, world: &mut World, log: &mut Log, held: Held) -> Next {
        let state = state(log, &held);
        let before = state.history.last().map(|past| past.attempt.id);
        let answers = unread(state);
        let (base, kept) = (state.base.clone(), state.resume_snapshot());
        let kept = kept.map(|kept| kept.snapshot.commit.clone());
        let kept = kept.filter(|_| world.bug != Some(Bug::EmptySnapshots));
        let tip = world.repository.tip();
        let tree = &mut world.worktrees[self.number].tree;
        let on_disk = before.is_some() && tree.of == before;
        match (held.entry, base) {
            (Entry::Continue, Some(_)) if on_disk => {}
            (Entry::Continue, Some(base)) => {
                tree.files = world.repository.files(kept.as_ref().unwrap_or(&base)).clone();
                tree.base = base;
                tree.merged.clear();
            }
            _ => {
                tree.files = world.repository.files(&tip).clone();
                tree.base = tip;
                tree.merged.clear();
            }
        }
        tree.of = Some(held.attempt);
        let base = tree.base.clone();
        if world.rng.one_in(4) {
            return Next::Work(held);
        }
        let base = world.rng.one_in(2).then_some(base);
        self.request(world, log, held, Request::Start { base, answers, pid: None }, Next::Work)
    }

    fn work(&self, world: &mut World, log: &mut Log, held: Held) -> Next {
        if !world.faulty || world.rng.one_in(2) {
            world.renew(log, &held.step, held.fence);
        }
        if !world.faulty || world.rng.one_in(4) {
            world.refresh(log);
            let own = state(log, &held).attempt().filter(|own| own.fence == held.fence);
            match own.map(|own| log.run().stop_for(own)) {
                None => return Next::Ask,
                Some(Some(_)) => return self.release(world, log, held),
                Some(None) => {}
            }
        }
        let questions = unread(state(log, &held));
        if !questions.is_empty() && (!world.faulty || world.rng.one_in(2)) {
            let read = Request::ApplyAnswers { questions };
            return self.request(world, log, held, read, Next::Work);
        }
        if world.faulty {
            match world.rng.below(60) {
                0 => return self.release(world, log, held),
                1 => {
                    let why = Failure::Reported { reason: "no way".to_owned() };
                    return self.request(world, log, held, Request::Fail { why }, |_| Next::Ask);
                }
                2..12 => return self.checkpoint(world, log, held),
                12 | 13 => {
                    let question = question(world);
                    return self.request(world, log, held, question, Next::Work);
                }
                _ => {}
            }
        }
        let tree = &world.worktrees[self.number].tree;
        if tree.of != Some(held.attempt) {
            // Another process was here: whoever is left behind only talks.
            return match self.presence {
                Presence::Current => Next::Begin(held),
                Presence::LeftBehind => self.checkpoint(world, log, held),
            };
        }
        let wanted = world.wanted(held.index, &tree.files);
        if let Some((path, text)) = wanted.into_iter().next() {
            world.worktrees[self.number].tree.files.insert(path, text);
            return Next::Work(held);
        }
        let part = open_part(log.run(), &held.step);
        let impatient = world.faulty && world.rng.one_in(6);
        match part.filter(|_| !impatient) {
            Some(part) => self.request(world, log, held, part, Next::Work),
            None => self.finish(world, held),
        }
    }

    fn checkpoint(&self, world: &mut World, log: &mut Log, held: Held) -> Next {
        let note = Some(format!("on {}", held.step));
        let report = Some(Box::new(Report { note, ..Report::default() }));
        let own = world.worktrees[self.number].tree.of == Some(held.attempt);
        let snapshot = (own && world.rng.one_in(2)).then(|| {
            let tree = &world.worktrees[self.number].tree;
            let (files, base) = (tree.files.clone(), tree.base.clone());
            let reason = SnapshotReason::Cadence;
            snapshot_of(world, (&files, &base), &held.step, held.fence, reason)
        });
        self.request(world, log, held, Request::Checkpoint { snapshot, report }, Next::Work)
    }

    fn release(&self, world: &mut World, log: &mut Log, held: Held) -> Next {
        self.request(world, log, held, Request::Release, |_| Next::Ask)
    }

    /// All is written: a commit where the branch lacks any of it, else nothing has to land.
    fn finish(&self, world: &mut World, held: Held) -> Next {
        let tip = world.repository.tip();
        if world.wanted(held.index, world.repository.files(&tip)).is_empty() {
            return Next::Complete(held, None);
        }
        let tree = &world.worktrees[self.number].tree;
        let (files, parents) = (tree.files.clone(), tree.parents());
        let commit = world.repository.commit(&files, &parents);
        Next::Verify(held, commit)
    }

    fn verify(&self, world: &mut World, log: &mut Log, held: Held, commit: Oid) -> Next {
        let check = world.plan.steps[held.index].verify.clone().map(|command| {
            let output = Hash::of(b"ok");
            Check { command, exit: Exit::Code(0), output, ms: 1 }
        });
        let tree = named(world.repository.files(&commit), &[]);
        let (commits, omitted) = (0, Vec::new());
        let iteration = world.iteration_check(&held.step);
        let verify = Request::Verify { commit, tree, check, commits, omitted, iteration };
        self.request(world, log, held, verify, Next::Intend)
    }

    fn intend(&self, world: &mut World, log: &mut Log, held: Held) -> Next {
        let verified = state(log, &held).verified().map(|verified| verified.commit.clone());
        let Some(commit) = verified else { return Next::Work(held) };
        let (onto, to) = match world.repository.prepare_landing(&commit) {
            Landing::Nothing => return Next::Complete(held, Some(commit)),
            Landing::FastForward { onto, to } => (onto, to),
            Landing::Merge { onto, to } => {
                world.counts.merges += 1;
                (onto, to)
            }
            Landing::Conflict { onto, paths } => {
                let conflict = conflict(world, onto, commit, paths);
                return self.unlanded(world, log, held, conflict);
            }
        };
        let (step, fence) = (held.step.clone(), held.fence);
        let command = Command::Under(
            Under { step, fence },
            Request::Land(LandingIntent { onto: onto.clone(), to: to.clone() }),
        );
        match self.submit(world, log, &held, &command) {
            Ok(()) => Next::Move { held, onto, to },
            Err(next) => next,
        }
    }

    /// Asks, and brings both sides together without waiting for the answer.
    fn unlanded(&self, world: &mut World, log: &mut Log, held: Held, conflict: Conflict) -> Next {
        let (step, fence) = (held.step.clone(), held.fence);
        if let Err(next) = self.submit(
            world,
            log,
            &held,
            &Command::Under(Under { step, fence }, Request::RaiseConflict(conflict)),
        ) {
            return next;
        }
        let tip = world.repository.tip();
        let tree = &mut world.worktrees[self.number].tree;
        if tree.of == Some(held.attempt) {
            tree.files = world.repository.merged(tree);
            tree.merged.push(tip);
        }
        Next::Work(held)
    }

    /// Strictly at first; sometimes what is open is waived. Said twice, it is heard once.
    fn complete(&self, world: &mut World, log: &mut Log, held: Held, commit: Option<Oid>) -> Next {
        let (step, fence) = (held.step.clone(), held.fence);
        let waive = (world.faulty && world.rng.one_in(3)).then(|| "it does not matter".to_owned());
        let command = Command::Under(
            Under { step, fence },
            Request::Complete { commit: commit.clone(), waive },
        );
        match self.submit(world, log, &held, &command) {
            Ok(()) if world.rng.one_in(3) => {
                world.counts.repeated_completions += 1;
                match self.submit(world, log, &held, &command) {
                    Ok(()) => Next::Ask,
                    Err(next) => next,
                }
            }
            Ok(()) => Next::Ask,
            Err(next) => next,
        }
    }
}

fn state<'log>(log: &'log Log, held: &Held) -> &'log Step {
    log.run().step(&held.step).expect("the plan has the step").1
}

fn move_branch(world: &mut World, held: Held, onto: &Oid, to: Oid) -> Next {
    if world.repository.swap(onto, &to) {
        return Next::Complete(held, Some(to));
    }
    world.counts.lost_races += 1;
    Next::Intend(held)
}

impl fmt::Display for External {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = if self.presence == Presence::LeftBehind { ", left behind" } else { "" };
        write!(f, "tree {} ({}) on {}{left}", self.number, self.id, self.host)
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (doing, held) = match self {
            Next::Ask => return write!(f, "ask"),
            Next::Begin(held) => ("begin", held),
            Next::Work(held) => ("work on", held),
            Next::Verify(held, _) => ("verify", held),
            Next::Intend(held) => ("prepare to land", held),
            Next::Move { held, .. } => ("move the branch for", held),
            Next::Complete(held, Some(_)) => ("complete what landed of", held),
            Next::Complete(held, None) => ("complete", held),
        };
        write!(f, "{doing} {} at {}", held.step, held.fence)
    }
}
