//! A simulated keeper: from taking the tree to `Completed`, one durable action at a time. It knows
//! only its log, its host and its agent; whatever it is refused ends it.

use std::fmt;

use piton_core::decide::{Command, Request};
use piton_core::event::{
    Cause, Check, Conflict, Entry, Exit, Failure, Interruption, LandingIntent, Mark, Snapshot,
    SnapshotReason, Stage, Truth, Under,
};
use piton_core::exit::{AgentExit, Judged, StopRequest, judge_exit};
use piton_core::ids::{AttemptId, Fence, Hash, Oid, QuestionId, StepRef, TreeNo};
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
    next: Next,
}

/// What a keeper does next.
#[derive(Debug, Clone)]
enum Next {
    TakeTree,
    Prepare,
    Start,
    Spawn,
    Watch,
    /// The exit is on record; what does it mean?
    Judge(AgentExit),
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
    Keep(End),
    Finish(End),
}

#[derive(Debug, Clone)]
enum End {
    /// The agent has asked and was not told.
    Waiting,
    Failed(Failure),
    Unlanded(Conflict),
    Interrupted {
        cause: Cause,
        left_at: Stage,
    },
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
            next: Next::TakeTree,
        }
    }

    /// One action.
    pub(super) fn act(&mut self, world: &mut World) {
        if !world.faulty || world.rng.one_in(2) {
            world.renew(&self.log, &self.step, self.fence);
        }
        let doing = format!("{self}: {:?}", self.next);
        world.note(&doing);
        match self.next.clone() {
            Next::TakeTree => self.take_tree(world),
            Next::Prepare => self.prepare(world),
            Next::Start => self.start(world),
            Next::Spawn => self.spawn(world),
            Next::Watch => self.watch(world),
            Next::Judge(ended) => self.judge(world, ended),
            Next::Commit => self.commit(world),
            Next::Check(commit) => self.check(world, commit),
            Next::Verify(commit) => self.verify(world, commit),
            Next::Intend => self.intend(world),
            Next::Move { onto, to } => self.move_branch(world, &onto, to),
            Next::Complete(commit) => self.complete(world, commit),
            Next::Keep(end) => {
                if self.checkpoint(world, SnapshotReason::End) {
                    self.next = Next::Finish(end);
                }
            }
            Next::Finish(end) => self.finish(world, end),
        }
    }

    fn state(&self) -> &Step {
        self.log.run().step(&self.step).expect("the plan has the step").1
    }

    fn submit(&mut self, world: &mut World, command: &Command) -> Option<Refusal> {
        let writer = Writer { fence: Some(self.fence), ..Writer::plain(self.id) };
        let refusal = world.submit(&mut self.log, writer, command);
        match &refusal {
            None => {}
            // Asked too often.
            Some(Refusal::BadQuestion { .. }) => {}
            Some(Refusal::Unanswered { .. } | Refusal::AnswerUnread { .. }) => {
                self.next = Next::Keep(End::Waiting);
            }
            Some(open @ (Refusal::OpenItems { .. } | Refusal::OpenSubsteps { .. })) => {
                world.counts.strict_refusals += 1;
                let why = Failure::Unfinished { open: open.to_string() };
                self.next = Next::Keep(End::Failed(why));
            }
            Some(refusal) => {
                world.note(&format!("{self} is refused: {refusal}"));
                self.leave(world);
            }
        }
        refusal
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
    fn goes_on(&mut self, world: &mut World, left_at: Stage) -> bool {
        match self.look(world) {
            None => false,
            Some(None) => true,
            Some(Some(stop)) => {
                let end = End::Interrupted { cause: stop.cause, left_at };
                self.next = Next::Keep(end);
                false
            }
        }
    }

    fn entry_stage(&self) -> Stage {
        match self.entry {
            Entry::Fresh | Entry::Continue => Stage::Unstarted,
            Entry::Verify => Stage::Verify,
            Entry::Land => Stage::Land,
        }
    }

    /// Stop before touch: whoever else is in the tree is ended first, but only by the rightful owner.
    fn take_tree(&mut self, world: &mut World) {
        if !self.goes_on(world, self.entry_stage()) {
            return;
        }
        if world.bug != Some(Bug::CrowdedTree) {
            self.clear_tree(world);
        }
        world.kept(self.host, self.tree).lock = Some((self.id, self.attempt));
        self.next = match self.entry {
            Entry::Land => Next::Intend,
            Entry::Fresh | Entry::Continue | Entry::Verify => Next::Prepare,
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
        self.next = if self.entry == Entry::Verify { Next::Commit } else { Next::Start };
    }

    fn start(&mut self, world: &mut World) {
        if !self.goes_on(world, Stage::Unstarted) {
            return;
        }
        let (step, fence, base) = (self.step.clone(), self.fence, Some(self.base.clone()));
        // A command is told nothing when it is started; it reads by asking again.
        let told = matches!(world.plan.steps[self.index].work, Work::Agent { .. });
        let answers = if told { unread(self.state()) } else { Vec::new() };
        if self
            .submit(
                world,
                &Command::Under(Under { step, fence }, Request::Start { base, answers, pid: None }),
            )
            .is_none()
        {
            self.next = Next::Spawn;
        }
    }

    fn spawn(&mut self, world: &mut World) {
        let (step, tree) = (self.index, self.tree);
        let agent = Agent { step, tree, life: Life::Running, awake_at: 0, checked: false };
        if let Some(folder) = world.hosts[self.host].folders.get_mut(&self.attempt) {
            folder.agent = Some(agent);
        }
        self.next = Next::Watch;
    }

    fn watch(&mut self, world: &mut World) {
        let folder = &world.hosts[self.host].folders[&self.attempt];
        let life = folder.agent.as_ref().map_or(Life::Ended(Exit::Signal(9)), |agent| agent.life);
        if let Life::Ended(exit) = life {
            let ended = AgentExit { exit, stop: StopRequest::Nothing };
            world.record_exit(self.host, self.attempt, ended);
            if exit.is_success() {
                world.agent_succeeded(self.fence);
            }
            self.next = Next::Judge(ended);
            return;
        }
        if !world.faulty || world.rng.one_in(2) {
            let Some(stop) = self.look(world) else { return };
            if let Some(stop) = stop {
                // Some agents exit with zero when they are told to end.
                let exit = if world.rng.one_in(3) { Exit::Code(0) } else { Exit::Signal(15) };
                let ended = AgentExit { exit, stop: StopRequest::Stop(stop.cause) };
                world.record_exit(self.host, self.attempt, ended);
                self.next = Next::Judge(ended);
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
        let (step, fence) = (self.step.clone(), self.fence);
        let (questions, waits) = (unread(self.state()), self.state().awaits(fence).is_some());
        if !questions.is_empty() && (!world.faulty || world.rng.one_in(2)) {
            let _refused = self.submit(
                world,
                &Command::Under(Under { step, fence }, Request::ApplyAnswers { questions }),
            );
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
        if !world.rng.one_in(25) {
            return false;
        }
        let question = question(world, step, fence);
        let _refused = self.submit(world, &question);
        true
    }

    /// The agent says what it has done of its checklist; when nothing is open it may end.
    fn check_off(&mut self, world: &mut World) {
        match open_part(self.log.run(), &self.step, self.fence) {
            Some(part) => {
                let _refused = self.submit(world, &part);
            }
            None => world.agent_checked(self.host, self.attempt),
        }
    }

    fn judge(&mut self, world: &mut World, ended: AgentExit) {
        world.refresh(&mut self.log);
        let waits = self.state().awaits(self.fence).is_some();
        self.next = match judge_exit(ended) {
            Judged::Ended if waits => Next::Keep(End::Waiting),
            Judged::Ended => Next::Commit,
            Judged::Interrupted(cause) => {
                Next::Keep(End::Interrupted { cause, left_at: Stage::Agent })
            }
            Judged::Failed | Judged::TimedOut => {
                let (exit, tail) = (ended.exit, "tail".to_owned());
                Next::Keep(End::Failed(Failure::Exit { exit, tail }))
            }
        };
    }

    /// Bytes before facts: the commit exists before it is named.
    fn checkpoint(&mut self, world: &mut World, reason: SnapshotReason) -> bool {
        let Some(command) =
            snapshot(world, self.host, self.attempt, &self.step, self.fence, reason)
        else {
            return true;
        };
        self.submit(world, &command).is_none()
    }

    fn commit(&mut self, world: &mut World) {
        if !self.goes_on(world, Stage::Verify) {
            return;
        }
        let tree = &world.kept(self.host, self.tree).tree;
        let (files, parents) = (tree.files.clone(), tree.parents());
        let commit = world.repository.commit(&files, &parents);
        self.next = Next::Check(commit);
    }

    fn check(&mut self, world: &mut World, commit: Oid) {
        let missing = world.wanted(self.index, world.repository.files(&commit));
        let flaky = world.faulty && world.rng.one_in(20);
        let checked = world.plan.steps[self.index].verify.is_some();
        self.next = if checked && (flaky || !missing.is_empty()) {
            let why = Failure::Verify { exit: Exit::Code(1), tail: "tail".to_owned() };
            Next::Keep(End::Failed(why))
        } else {
            Next::Verify(commit)
        };
    }

    fn verify(&mut self, world: &mut World, commit: Oid) {
        let check = world.plan.steps[self.index].verify.clone().map(|command| Check {
            command,
            exit: Exit::Code(0),
            output: Hash::of(b"ok"),
            ms: 1,
        });
        let truth = if check.is_some() { Truth::Verified } else { Truth::Claimed };
        let tree = named(world.repository.files(&commit), &[]);
        let (step, fence) = (self.step.clone(), self.fence);
        let (commits, omitted) = (0, Vec::new());
        let command = Command::Under(
            Under { step, fence },
            Request::Verify { commit, tree, truth, check, commits, omitted },
        );
        if self.submit(world, &command).is_none() {
            self.next = Next::Intend;
        }
    }

    fn intend(&mut self, world: &mut World) {
        if !self.goes_on(world, Stage::Land) {
            return;
        }
        let verified = self.state().verified().map(|verified| verified.commit.clone());
        let Some(commit) = verified else {
            let message = "there is no verified commit".to_owned();
            self.next = Next::Finish(End::Failed(Failure::Landing { message }));
            return;
        };
        let (onto, to) = match world.repository.prepare_landing(&commit) {
            Landing::Nothing => {
                self.next = Next::Complete(commit);
                return;
            }
            Landing::FastForward { onto, to } => (onto, to),
            Landing::Merge { onto, to } => {
                world.counts.merges += 1;
                (onto, to)
            }
            Landing::Conflict { onto, paths } => {
                let conflict = conflict(world, onto, commit, paths);
                self.next = Next::Keep(End::Unlanded(conflict));
                return;
            }
        };
        let (step, fence) = (self.step.clone(), self.fence);
        let command = Command::Under(
            Under { step, fence },
            Request::Land(LandingIntent { onto: onto.clone(), to: to.clone() }),
        );
        if self.submit(world, &command).is_none() {
            self.next = Next::Move { onto, to };
        }
    }

    fn move_branch(&mut self, world: &mut World, onto: &Oid, to: Oid) {
        self.next = if world.repository.swap(onto, &to) {
            Next::Complete(to)
        } else {
            world.counts.lost_races += 1;
            Next::Intend
        };
    }

    fn complete(&mut self, world: &mut World, commit: Oid) {
        let (step, fence) = (self.step.clone(), self.fence);
        let command = Command::Under(
            Under { step, fence },
            Request::Complete { commit: Some(commit), waive: None },
        );
        if self.submit(world, &command).is_none() {
            self.leave(world);
        }
    }

    fn finish(&mut self, world: &mut World, end: End) {
        let (step, fence) = (self.step.clone(), self.fence);
        let command = match end {
            End::Failed(why) => Command::Under(Under { step, fence }, Request::Fail { why }),
            End::Waiting => Command::Under(Under { step, fence }, Request::Suspend),
            End::Unlanded(conflict) => {
                Command::Under(Under { step, fence }, Request::RaiseConflict(conflict))
            }
            End::Interrupted { cause, left_at } => {
                let (at, evidence) = (Millis(world.clock), "seen".to_owned());
                Command::Under(
                    Under { step, fence },
                    Request::Interrupt(Interruption { cause, at, evidence, left_at }),
                )
            }
        };
        if self.submit(world, &command).is_none() {
            self.leave(world);
        }
    }
}

/// The command that records what an attempt's tree holds, once the bytes are kept; nothing when the
/// host's tree is not that attempt's.
pub(super) fn snapshot(
    world: &mut World,
    host: usize,
    attempt: AttemptId,
    step: &StepRef,
    fence: Fence,
    reason: SnapshotReason,
) -> Option<Command> {
    let mut trees = world.hosts[host].trees.values().map(|kept| &kept.tree);
    let tree = trees.find(|tree| tree.of == Some(attempt))?;
    let (files, base) = (tree.files.clone(), tree.base.clone());
    let snapshot = Some(snapshot_of(world, (&files, &base), step, fence, reason));
    Some(Command::Under(
        Under { step: step.clone(), fence },
        Request::Checkpoint { snapshot, report: None },
    ))
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
pub(super) fn question(world: &mut World, step: StepRef, fence: Fence) -> Command {
    world.counts.questions += 1;
    let text = format!("which, {}?", world.counts.questions);
    let choices: &[&str] = if world.rng.one_in(2) { &["this", "that"] } else { &[] };
    let choices = choices.iter().map(|choice| (*choice).to_owned()).collect();
    Command::Under(Under { step, fence }, Request::RaiseQuestion { text, choices })
}

pub(super) fn unread(state: &Step) -> Vec<QuestionId> {
    state.unread_answers().map(|question| question.id).collect()
}

/// The command that does the next open part of a step's checklist, if there is one.
pub(super) fn open_part(run: &Run, step: &StepRef, fence: Fence) -> Option<Command> {
    let (plan, state) = run.step(step)?;
    let step = step.clone();
    if let Some(item) = state.checklist.open_items(plan).into_iter().next() {
        let mark = match item.number {
            1 => Mark::Done,
            _ => Mark::Deferred { reason: "later".to_owned() },
        };
        return Some(Command::Under(
            Under { step, fence },
            Request::MarkItems { items: vec![item], mark },
        ));
    }
    let substep = state.checklist.open_substeps(plan).into_iter().next()?;
    Some(Command::Under(Under { step, fence }, Request::CompleteSubstep { substep }))
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, host, attempt) = (self.id, self.host, short(self.attempt));
        write!(f, "keeper {id} of {} ({attempt}, fence {}) on {host}", self.step, self.fence)
    }
}
