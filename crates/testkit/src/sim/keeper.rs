//! A simulated keeper: drives the core's stages of an attempt with simulated effects, one durable action at
//! a time. It knows only its log, its host and its agent.

use std::collections::BTreeSet;
use std::fmt;

use piton_core::agent::Dialect;
use piton_core::attempt::{Exited, Happened, Next, Stages};
use piton_core::decide::{Command, Request};
use piton_core::dialect::{Said, Trouble, Turn};
use piton_core::event::{
    Check, Conflict, Entry, Exit, Failure, LandingIntent, Mark, Snapshot, SnapshotReason, Stage,
    Under,
};
use piton_core::exit::{AgentExit, Heard, StopRequest};
use piton_core::ids::{AccountName, AttemptId, Fence, Hash, Oid, QuestionId, StepRef, TreeNo};
use piton_core::plan::Work;
use piton_core::refusal::Refusal;
use piton_core::run::{Run, Step, Stop};
use piton_core::time::Millis;
use piton_engine::run::log::Log;

use super::referee::Writer;
use super::repository::{Files, Landing, named};
use super::tampered::Bug;
use super::world::{ActorId, Agent, Life, World, short};

pub(super) struct Keeper {
    pub(super) id: ActorId,
    pub(super) host: usize,
    pub(super) attempt: AttemptId,
    log: Log,
    step: StepRef,
    index: usize,
    fence: Fence,
    entry: Entry,
    tree: TreeNo,
    base: Oid,
    stages: Stages,
    action: Action,
}

/// The action that comes next. A stage has several, so that a crash can come between them.
#[derive(Debug, Clone)]
enum Action {
    TakeTree,
    Prepare,
    Start,
    Spawn,
    Watch,
    /// The exit is on record.
    Exited(AgentExit),
    Commit,
    Check(Oid),
    Verify(Oid),
    Intend,
    Move {
        onto: Oid,
        to: Oid,
    },
    Complete(Oid),
    /// Keep the bytes, then record the end.
    Keep(Request),
    End(Request),
}

/// What a worker hands to the keeper it starts.
pub(super) struct Order {
    pub(super) host: usize,
    pub(super) attempt: AttemptId,
    pub(super) step: StepRef,
    pub(super) fence: Fence,
    pub(super) entry: Entry,
    pub(super) tree: TreeNo,
}

impl Keeper {
    pub(super) fn new(world: &mut World, log: Log, order: Order) -> Keeper {
        let Order { host, attempt, step, fence, entry, tree } = order;
        let index = world.plan.index_of(&step.step).expect("the plan has the step");
        Keeper {
            id: world.new_actor(),
            host,
            attempt,
            log,
            step,
            index,
            fence,
            entry,
            tree,
            base: world.repository.tip(),
            stages: Stages::enter(entry).0,
            action: Action::TakeTree,
        }
    }

    /// One action.
    pub(super) fn act(&mut self, world: &mut World) {
        if !world.faulty || world.rng.one_in(2) {
            world.renew(&self.log, &self.step, self.fence);
        }
        let doing = format!("{self}: {:?}", self.action);
        world.note(&doing);
        match self.action.clone() {
            Action::TakeTree => self.take_tree(world),
            Action::Prepare => self.prepare(world),
            Action::Start => self.start(world),
            Action::Spawn => self.spawn(world),
            Action::Watch => self.watch(world),
            Action::Exited(ended) => self.exited(world, ended),
            Action::Commit => self.commit(world),
            Action::Check(commit) => self.check(world, commit),
            Action::Verify(commit) => self.verify(world, commit),
            Action::Intend => self.intend(world),
            Action::Move { onto, to } => self.move_branch(world, &onto, to),
            Action::Complete(commit) => self.complete(world, commit),
            Action::Keep(end) => {
                if self.checkpoint(world, SnapshotReason::End) {
                    self.action = Action::End(end);
                }
            }
            Action::End(end) => {
                let _refused = self.request(world, end);
                self.leave(world);
            }
        }
    }

    /// Tells the stages what happened, and takes up what comes next.
    fn happened(&mut self, world: &mut World, happened: Happened) {
        self.action = match self.stages.next(happened, Millis(world.clock)) {
            Next::Do(Stage::Unstarted) => Action::TakeTree,
            Next::Do(Stage::Agent) => Action::Start,
            Next::Do(Stage::Verify) => Action::Commit,
            Next::Do(Stage::Land) => Action::Intend,
            Next::End(request) => Action::Keep(request),
            Next::Abort | Next::Finish => return self.leave(world),
        };
    }

    fn state(&self) -> &Step {
        self.log.run().step(&self.step).expect("the plan has the step").1
    }

    fn request(&mut self, world: &mut World, request: Request) -> Option<Refusal> {
        let writer = Writer { fence: Some(self.fence), ..Writer::plain(self.id) };
        let under = Under { step: self.step.clone(), fence: self.fence };
        world.submit(&mut self.log, writer, &Command::Under(under, request))
    }

    /// Whether it was granted; the stages say what follows from a refusal.
    fn submit(&mut self, world: &mut World, request: Request) -> bool {
        match self.request(world, request) {
            None => true,
            // Asked too often.
            Some(Refusal::BadQuestion { .. }) => false,
            Some(refusal) => {
                world.note(&format!("{self} is refused: {refusal}"));
                if let Refusal::OpenItems { .. } | Refusal::OpenSubsteps { .. } = refusal {
                    world.counts.strict_refusals += 1;
                }
                self.happened(world, Happened::Refused(refusal));
                false
            }
        }
    }

    /// Ends with everything it started; its locks are free from here on.
    fn leave(&mut self, world: &mut World) {
        world.end_agent(self.host, self.attempt);
        world.alive.remove(&self.id);
    }

    /// Reads the log; leaves when the claim is lost. Says whether it is still there, and any stop.
    fn look(&mut self, world: &mut World) -> Option<Option<Stop>> {
        world.refresh(&mut self.log);
        let run = self.log.run();
        let own = self.state().attempt().filter(|attempt| attempt.fence == self.fence);
        match own.map(|attempt| run.stop_for(attempt)) {
            Some(stop) => Some(stop),
            None => {
                world.note(&format!("{self} has lost its claim"));
                self.leave(world);
                None
            }
        }
    }

    /// Like `look`, before a stage: a stop ends the attempt here.
    fn goes_on(&mut self, world: &mut World) -> bool {
        match self.look(world) {
            None => false,
            Some(None) => true,
            Some(Some(stop)) => {
                self.happened(world, Happened::Stopped(stop.cause));
                false
            }
        }
    }

    /// Stop before touch: whoever else is in the tree is ended first, but only by the rightful owner.
    fn take_tree(&mut self, world: &mut World) {
        if !self.goes_on(world) {
            return;
        }
        if world.bug != Some(Bug::CrowdedTree) {
            self.clear_tree(world);
        }
        world.kept(self.host, self.tree).lock = Some((self.id, self.attempt));
        self.action = match self.entry {
            Entry::Land => Action::Intend,
            Entry::Fresh | Entry::Continue | Entry::Verify => Action::Prepare,
        };
    }

    fn clear_tree(&self, world: &mut World) {
        if let Some((other, _)) = world.kept(self.host, self.tree).lock
            && other != self.id
            && world.alive.remove(&other)
        {
            world.note(&format!("{self} ends {other}, which had lost its claim"));
        }
        let folders = world.hosts[self.host].folders.iter();
        let here = |agent: &Agent| agent.tree == self.tree;
        let others = folders.filter(|(other, folder)| {
            **other != self.attempt && folder.agent.as_ref().is_some_and(here)
        });
        let others: Vec<AttemptId> = others.map(|(other, _)| *other).collect();
        for other in others {
            world.end_agent(self.host, other);
        }
    }

    /// Makes the tree what the entry promises.
    fn prepare(&mut self, world: &mut World) {
        let state = self.state();
        let recorded = state.base.clone();
        let kept = state.resume_snapshot().map(|kept| kept.snapshot.commit.clone());
        let tip = world.repository.tip();
        let on_disk = self.log.run().trees().has_work(&world.hosts[self.host].id, &self.step);
        let kept = kept.filter(|_| world.bug != Some(Bug::EmptySnapshots));
        let (base, from) = match (self.entry, recorded) {
            (Entry::Continue | Entry::Verify, Some(base)) if on_disk => (base, None),
            (Entry::Continue | Entry::Verify, Some(base)) => {
                let from = kept.unwrap_or_else(|| base.clone());
                (base, Some(from))
            }
            _ => (tip.clone(), Some(tip)),
        };
        let files = from.map(|from| world.repository.files(&from).clone());
        let tree = &mut world.kept(self.host, self.tree).tree;
        tree.of = Some(self.attempt);
        if let Some(files) = files {
            tree.merged.clear();
            tree.files = files;
        }
        tree.base = base.clone();
        self.base = base;
        self.happened(world, Happened::Done);
    }

    fn start(&mut self, world: &mut World) {
        if !self.goes_on(world) {
            return;
        }
        // A command is told nothing when it is started; it reads by asking again.
        let told = matches!(world.plan.steps[self.index].work, Work::Agent { .. });
        let answers = if told { unread(self.state()) } else { Vec::new() };
        let base = Some(self.base.clone());
        if self.submit(world, Request::Start { base, answers, pid: None }) {
            self.action = Action::Spawn;
        }
    }

    fn spawn(&mut self, world: &mut World) {
        let (step, tree) = (self.index, self.tree);
        let agent = Agent { step, tree, life: Life::Running, awake_at: 0, checked: false };
        if let Some(folder) = world.hosts[self.host].folders.get_mut(&self.attempt) {
            folder.agent = Some(agent);
        }
        self.action = Action::Watch;
    }

    fn watch(&mut self, world: &mut World) {
        let folder = &world.hosts[self.host].folders[&self.attempt];
        let life = folder.agent.as_ref().map_or(Life::Ended(Exit::Signal(9)), |agent| agent.life);
        if let Life::Ended(exit) = life {
            let ended = AgentExit { exit, stop: StopRequest::Nothing };
            world.record_exit(self.host, self.attempt, ended);
            let limited = world.hosts[self.host].folders[&self.attempt].heard.is_some();
            if exit.is_success() && !limited {
                world.agent_succeeded(self.fence);
            }
            self.action = Action::Exited(ended);
            return;
        }
        if !world.faulty || world.rng.one_in(2) {
            let Some(stop) = self.look(world) else { return };
            if let Some(stop) = stop {
                // Some agents exit with zero when they are told to end.
                let exit = if world.rng.one_in(3) { Exit::Code(0) } else { Exit::Signal(15) };
                let ended = AgentExit { exit, stop: StopRequest::Stop(stop.cause) };
                world.record_exit(self.host, self.attempt, ended);
                self.action = Action::Exited(ended);
                return;
            }
        }
        if self.asks(world) {
            return;
        }
        if !world.faulty || world.rng.one_in(2) {
            self.check_off(world);
        } else if world.rng.one_in(2) {
            self.checkpoint(world, SnapshotReason::Cadence);
        }
    }

    /// The agent asks now and then, and reads what was answered; some end before that.
    fn asks(&mut self, world: &mut World) -> bool {
        let (questions, waits) = (unread(self.state()), self.state().awaits(self.fence).is_some());
        if !questions.is_empty() && (!world.faulty || world.rng.one_in(2)) {
            self.submit(world, Request::ApplyAnswers { questions });
            return true;
        }
        if !world.faulty {
            return false;
        }
        if waits && world.rng.one_in(3) {
            let code = i32::from(world.rng.one_in(2));
            world.set_life(self.host, self.attempt, Life::Ended(Exit::Code(code)));
            return true;
        }
        if world.rng.one_in(25) {
            world.set_life(self.host, self.attempt, Life::Ended(Exit::Code(1)));
            return true;
        }
        if world.rng.one_in(25) {
            return self.meets_limit(world);
        }
        if !world.rng.one_in(25) {
            return false;
        }
        let question = question(world);
        self.submit(world, question);
        true
    }

    /// The agent's account has met a limit; some agents end with zero then.
    fn meets_limit(&mut self, world: &mut World) -> bool {
        let Some(agent) = world.plan.steps[self.index].work.agent().cloned() else { return false };
        let trouble = if world.rng.one_in(4) { Trouble::Spend } else { Trouble::Limit };
        let turn = Some(Turn::Failed { trouble: Some(trouble), message: "no more".to_owned() });
        let resets_at = Some(Millis(world.clock + 1 + world.some_ms(40_000)));
        let heard = Heard {
            dialect: Dialect::Claude,
            said: Said { turn, resets_at, ..Said::default() },
            account: AccountName::new(agent.as_str()).expect("a valid name"),
            agents: BTreeSet::from([agent.clone()]),
            resets_at,
            jitter: 0,
        };
        if let Some(folder) = world.hosts[self.host].folders.get_mut(&self.attempt) {
            folder.heard = Some(Box::new(heard));
        }
        let code = i32::from(world.rng.one_in(2));
        world.set_life(self.host, self.attempt, Life::Ended(Exit::Code(code)));
        true
    }

    /// The agent says what it has done of its checklist; when nothing is open it may end.
    fn check_off(&mut self, world: &mut World) {
        match open_part(self.log.run(), &self.step) {
            Some(part) => drop(self.submit(world, part)),
            None => world.agent_checked(self.host, self.attempt),
        }
    }

    fn exited(&mut self, world: &mut World, ended: AgentExit) {
        world.refresh(&mut self.log);
        let (tail, evidence) = ("tail".to_owned(), "seen".to_owned());
        let awaits_answer = self.state().awaits(self.fence).is_some();
        let out_of_memory = false;
        let folder = world.hosts[self.host].folders.get(&self.attempt);
        let heard = folder.and_then(|folder| folder.heard.clone());
        if heard.is_none() && ended.exit.is_success() {
            let _refused = self.request(world, Request::ReportAnswer);
        }
        let exited = Exited { ended, tail, evidence, out_of_memory, awaits_answer, heard };
        self.happened(world, Happened::Exited(exited));
    }

    /// Bytes before facts: the commit exists before it is named.
    fn checkpoint(&mut self, world: &mut World, reason: SnapshotReason) -> bool {
        match snapshot(world, self.host, self.attempt, &self.step, self.fence, reason) {
            Some(ask) => self.submit(world, ask),
            None => true,
        }
    }

    fn commit(&mut self, world: &mut World) {
        if !self.goes_on(world) {
            return;
        }
        let tree = &world.kept(self.host, self.tree).tree;
        let (files, parents) = (tree.files.clone(), tree.parents());
        let commit = world.repository.commit(&files, &parents);
        self.action = Action::Check(commit);
    }

    fn check(&mut self, world: &mut World, commit: Oid) {
        let missing = world.wanted(self.index, world.repository.files(&commit));
        let flaky = world.faulty && world.rng.one_in(20);
        let checked = world.plan.steps[self.index].verify.is_some();
        if checked && (flaky || !missing.is_empty()) {
            self.exited(world, AgentExit { exit: Exit::Code(1), stop: StopRequest::Nothing });
        } else {
            self.action = Action::Verify(commit);
        }
    }

    fn verify(&mut self, world: &mut World, commit: Oid) {
        let check = world.plan.steps[self.index].verify.clone().map(|command| Check {
            command,
            exit: Exit::Code(0),
            output: Hash::of(b"ok"),
            ms: 1,
        });
        let tree = named(world.repository.files(&commit), &[]);
        let (commits, omitted) = (0, Vec::new());
        let iteration = world.iteration_check(&self.step);
        let verify = Request::Verify { commit, tree, check, commits, omitted, iteration };
        if self.submit(world, verify) {
            self.happened(world, Happened::Done);
        }
    }

    fn intend(&mut self, world: &mut World) {
        if !self.goes_on(world) {
            return;
        }
        let verified = self.state().verified().map(|verified| verified.commit.clone());
        let Some(commit) = verified else {
            let message = "there is no verified commit".to_owned();
            return self.happened(world, Happened::Failed(Failure::Landing { message }));
        };
        let (onto, to) = match world.repository.prepare_landing(&commit) {
            Landing::Nothing => {
                self.action = Action::Complete(commit);
                return;
            }
            Landing::FastForward { onto, to } => (onto, to),
            Landing::Merge { onto, to } => {
                world.counts.merges += 1;
                (onto, to)
            }
            Landing::Conflict { onto, paths } => {
                let conflict = Box::new(conflict(world, onto, commit, paths));
                return self.happened(world, Happened::Conflicted(conflict));
            }
        };
        let intent = LandingIntent { onto: onto.clone(), to: to.clone() };
        if self.submit(world, Request::Land(intent)) {
            self.action = Action::Move { onto, to };
        }
    }

    fn move_branch(&mut self, world: &mut World, onto: &Oid, to: Oid) {
        self.action = if world.repository.swap(onto, &to) {
            Action::Complete(to)
        } else {
            world.counts.lost_races += 1;
            Action::Intend
        };
    }

    fn complete(&mut self, world: &mut World, commit: Oid) {
        if self.submit(world, Request::Complete { commit: Some(commit), waive: None }) {
            self.happened(world, Happened::Done);
        }
    }
}

/// What records what an attempt's tree holds, once the bytes are kept; nothing when the host's tree is not
/// that attempt's.
pub(super) fn snapshot(
    world: &mut World,
    host: usize,
    attempt: AttemptId,
    step: &StepRef,
    fence: Fence,
    reason: SnapshotReason,
) -> Option<Request> {
    let mut trees = world.hosts[host].trees.values().map(|kept| &kept.tree);
    let tree = trees.find(|tree| tree.of == Some(attempt))?;
    let (files, base) = (tree.files.clone(), tree.base.clone());
    let snapshot = Some(snapshot_of(world, (&files, &base), step, fence, reason));
    Some(Request::Checkpoint { snapshot, report: None })
}

/// A snapshot of a tree; its bytes are kept.
pub(super) fn snapshot_of(
    world: &mut World,
    (files, base): (&Files, &Oid),
    step: &StepRef,
    fence: Fence,
    reason: SnapshotReason,
) -> Snapshot {
    let commit = world.repository.commit(files, std::slice::from_ref(base));
    Snapshot {
        tree: named(files, &[]),
        refname: format!("refs/piton/simulated-otter/{}/{fence}/{commit}", step.step),
        commit,
        changed: world.repository.changed(base, files),
        omitted: Vec::new(),
        reason,
        head: None,
        commits: 0,
    }
}

/// What a person is asked about.
pub(super) fn conflict(world: &mut World, onto: Oid, commit: Oid, paths: Vec<String>) -> Conflict {
    world.counts.conflicts += 1;
    Conflict {
        branch: "piton/simulated-otter/run".to_owned(),
        onto,
        commit,
        kept: "refs/piton/unlanded".to_owned(),
        count: paths.len() as u64,
        paths,
        worktree: None,
    }
}

/// A question that was not asked before.
pub(super) fn question(world: &mut World) -> Request {
    world.counts.questions += 1;
    let text = format!("which, {}?", world.counts.questions);
    let choices: &[&str] = if world.rng.one_in(2) { &["this", "that"] } else { &[] };
    let choices = choices.iter().map(|choice| (*choice).to_owned()).collect();
    Request::RaiseQuestion { text, choices }
}

pub(super) fn unread(state: &Step) -> Vec<QuestionId> {
    state.unread_answers().map(|question| question.id).collect()
}

/// What does the next open part of a step's checklist, if there is one.
pub(super) fn open_part(run: &Run, step: &StepRef) -> Option<Request> {
    let (plan, state) = run.step(step)?;
    if let Some(item) = state.checklist.open_items(plan).into_iter().next() {
        let mark = match item.number {
            1 => Mark::Done,
            _ => Mark::Deferred { reason: "later".to_owned() },
        };
        return Some(Request::MarkItems { items: vec![item], mark });
    }
    let substep = state.checklist.open_substeps(plan).into_iter().next()?;
    Some(Request::CompleteSubstep { substep })
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, host, attempt) = (self.id, self.host, short(self.attempt));
        write!(f, "keeper {id} of {} ({attempt}, fence {}) on {host}", self.step, self.fence)
    }
}
