//! The simulated world: hosts with a worktree and attempt folders each, agents, a clock, and the one
//! way for simulated processes to write. Locks are free as soon as their holder is dead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use piton_core::claim::lease_key;
use piton_core::decide::Command;
use piton_core::decided::Lease;
use piton_core::event::{
    Cause, Check, Exit, Holder, IterationCheck, Repository as RepositoryId, RunOpened,
};
use piton_core::exit::{AgentExit, Heard};
use piton_core::ids::{
    AgentName, AttemptId, BootId, Fence, Handle, Hash, HostId, LockName, LoopId, Oid, RunId,
    StepId, StepRef, SubstepId, TreeNo,
};
use piton_core::observed::{Corpse, Observed, Sighting};
use piton_core::plan::{
    Isolation, Need, OnFailure, OnInterrupt, OnLimit, Plan, PlanLoop, PlanStep, PlanSubstep, Work,
};
use piton_core::record::Cursor;
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, Run};
use piton_core::time::{Millis, Moment};
use piton_engine::error::LogError;
use piton_engine::run::log::{Log, Opened};
use piton_store::{NewRun, Renewal, RunKey, Store, StoreError};
use uuid::Uuid;

use super::Counts;
use super::keeper::Keeper;
use super::referee::{Circumstances, Invariant, Open, Referee, Violation, Writer};
use super::repository::{Files, Repository, SHARED, Tree, lines};
use super::rng::Rng;
use super::tampered::{Bug, Lost, On, Shared, Tampered};

/// How long a claim is believed without a renewal.
pub(super) const LEASE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ActorId(pub(super) u64);

/// What an attempt leaves on its host.
#[derive(Default)]
pub(super) struct Folder {
    /// Who took the lock; it is held while they live.
    pub(super) lock: Option<ActorId>,
    pub(super) exit: Option<AgentExit>,
    /// What the agent said before it ended.
    pub(super) heard: Option<Box<Heard>>,
    pub(super) agent: Option<Agent>,
}

/// A process that works in its host's tree.
pub(super) struct Agent {
    pub(super) step: usize,
    pub(super) tree: TreeNo,
    pub(super) life: Life,
    /// Frozen until then, alive all the same.
    pub(super) awake_at: i64,
    /// It has said all that it has to say about its checklist.
    pub(super) checked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    /// Ended, and nobody has looked yet.
    Ended(Exit),
}

pub(super) struct Host {
    pub(super) id: HostId,
    boot: u32,
    /// The pool, by number.
    pub(super) trees: BTreeMap<TreeNo, Kept>,
    pub(super) folders: BTreeMap<AttemptId, Folder>,
}

/// What a step writes.
#[derive(Debug, Clone, Copy)]
struct Size {
    files: usize,
    /// Also a line into the file that others write into.
    shared: bool,
}

/// A worktree of piton's.
pub(super) struct Kept {
    pub(super) tree: Tree,
    /// Whose keeper has it.
    pub(super) lock: Option<(ActorId, AttemptId)>,
}

/// A worktree of somebody outside.
pub(super) struct Worktree {
    pub(super) host: usize,
    pub(super) tree: Tree,
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) clock: i64,
    pub(super) faulty: bool,
    pub(super) bug: Option<Bug>,
    pub(super) shared: Shared,
    lost: Lost,
    pub(super) run: RunId,
    pub(super) plan: Arc<Plan>,
    /// What each step writes.
    sizes: Vec<Size>,
    /// The iteration in which a loop's command passes.
    passes_in: u32,
    pub(super) repository: Repository,
    pub(super) hosts: Vec<Host>,
    pub(super) worktrees: Vec<Worktree>,
    pub(super) alive: BTreeSet<ActorId>,
    pub(super) born: Vec<Keeper>,
    referee: Referee,
    judged: Cursor,
    /// Lease rows as they were before the present action.
    rows: Vec<Lease>,
    acknowledged: Vec<Cursor>,
    writer: Option<Writer>,
    violation: Option<Violation>,
    pub(super) history: Vec<String>,
    pub(super) counts: Counts,
    ids: u64,
    ended: bool,
}

impl Host {
    /// Running agents, each with the tree it works in.
    fn agents(&self) -> impl Iterator<Item = (AttemptId, &TreeNo)> {
        self.folders.iter().filter_map(|(attempt, folder)| {
            let agent = folder.agent.as_ref().filter(|agent| agent.life == Life::Running)?;
            Some((*attempt, &agent.tree))
        })
    }
}

impl World {
    /// As many hosts, and worktrees outside on these of them.
    pub(super) fn new(on: On, mut rng: Rng, hosts: usize, outside: &[usize]) -> World {
        let (plan, sizes) = random_plan(&mut rng, outside.len());
        let passes_in = 1 + u32::try_from(rng.index(3)).unwrap_or_default();
        let plan = Arc::new(plan);
        let repository = Repository::new();
        let clock = 1_000_000;
        let shared = Shared::new(on, Moment::wall(Millis(clock)));
        let run = RunId(Uuid::from_u128(1));
        open_run(&shared.store, run, &plan, &repository.tip());
        let tree =
            || Tree { files: Files::new(), base: repository.tip(), merged: Vec::new(), of: None };
        let host = |number: usize| Host {
            id: HostId(format!("host-{number}")),
            boot: 1,
            trees: BTreeMap::new(),
            folders: BTreeMap::new(),
        };
        World {
            rng,
            clock,
            faulty: true,
            bug: None,
            shared,
            lost: Lost::default(),
            run,
            sizes,
            passes_in,
            hosts: (0..hosts).map(host).collect(),
            worktrees: outside.iter().map(|host| Worktree { host: *host, tree: tree() }).collect(),
            repository,
            alive: BTreeSet::new(),
            born: Vec::new(),
            referee: Referee::new(&plan),
            judged: Cursor::START,
            rows: Vec::new(),
            acknowledged: Vec::new(),
            writer: None,
            violation: None,
            history: Vec::new(),
            counts: Counts::default(),
            ids: 0,
            ended: false,
            plan,
        }
    }

    pub(super) fn new_actor(&mut self) -> ActorId {
        self.ids += 1;
        self.alive.insert(ActorId(self.ids));
        ActorId(self.ids)
    }

    pub(super) fn new_attempt(&mut self) -> AttemptId {
        self.ids += 1;
        AttemptId(Uuid::from_u128(u128::from(self.ids)))
    }

    pub(super) fn boot(&self, host: usize) -> BootId {
        BootId(format!("boot-{}", self.hosts[host].boot))
    }

    pub(super) fn note(&mut self, text: &str) {
        let position = self.judged.position;
        self.history.push(format!("{:>8} ms @{position:<3} {text}", self.clock - 1_000_000));
    }

    /// The store as the processes of a worker see it.
    pub(super) fn store_for(&self, worker: usize) -> Arc<dyn Store> {
        self.store_with(self.bug.filter(|bug| !bug.is_in_the_plan() || worker == 0))
    }

    pub(super) fn store_with(&self, bug: Option<Bug>) -> Arc<dyn Store> {
        Arc::new(Tampered {
            inner: Arc::clone(&self.shared.store),
            lost: Arc::clone(&self.lost),
            bug,
            appends: Mutex::new(0),
        })
    }

    pub(super) fn load(&mut self, store: Arc<dyn Store>) -> Option<Log> {
        match Log::load(store, self.run) {
            Ok(log) => Some(log),
            Err(error) => {
                self.broken(&error);
                None
            }
        }
    }

    pub(super) fn refresh(&mut self, log: &mut Log) {
        if let Err(error) = log.refresh() {
            self.broken(&error);
        }
    }

    /// Moves a lease, beside the log. A fence that is over must not.
    pub(super) fn renew(&mut self, log: &Log, step: &StepRef, fence: Fence) {
        let until = Moment::wall(Millis(self.clock)).after(LEASE);
        let renewed = log.store().renew(self.run, &lease_key(step), fence, &until);
        match renewed {
            Ok(Renewal::Renewed) if self.referee.holds(&step.step, fence) => {
                self.counts.renewals += 1;
            }
            Ok(Renewal::Renewed) => {
                let detail = format!("a heartbeat at {fence} renewed the lease of {step}");
                let invariant = Invariant::OneOwner;
                self.violation.get_or_insert(Violation { invariant, detail });
            }
            Ok(Renewal::NotRenewed) | Err(_) => {}
        }
    }

    /// What is seen of the holders of open claims from a host.
    pub(super) fn observe(&self, host: usize, run: &Run) -> Observed {
        let sight = |attempt: &Attempt| {
            let (id, boot) = match &attempt.holder {
                Holder::Keeper { host, boot } => (host, boot),
                Holder::External { .. } => return Sighting::Elsewhere,
            };
            if *id != self.hosts[host].id {
                return Sighting::Elsewhere;
            }
            let blind = self.bug == Some(Bug::BlindLocks);
            if self.lock_holder(host, attempt.id).is_some() && !blind {
                return Sighting::Alive;
            }
            let folder = self.hosts[host].folders.get(&attempt.id);
            let unread = self.bug == Some(Bug::UnreadExits);
            let rebooted = *boot != self.boot(host);
            Sighting::Dead(Corpse {
                exit: folder.and_then(|folder| folder.exit).filter(|_| !unread),
                heard: folder.and_then(|folder| folder.heard.clone()),
                cause: if rebooted { Cause::Reboot } else { Cause::ProcessKill },
                at: Millis(self.clock),
                evidence: "the keeper's lock is free".to_owned(),
                changed: None,
            })
        };
        let attempts = run.held().map(|(_, attempt)| (attempt.id, sight(attempt))).collect();
        Observed { host: self.hosts[host].id.clone(), attempts, ..Observed::default() }
    }

    /// Submits a command for an actor: the only way to write. `None` means that it was accepted.
    pub(super) fn submit(
        &mut self,
        log: &mut Log,
        who: Writer,
        command: &Command,
    ) -> Option<Refusal> {
        self.writer = Some(who);
        match log.submit(command) {
            Ok(_) => {
                self.acknowledged.push(log.run().cursor);
                None
            }
            Err(LogError::Refused(refusal)) => {
                self.counts.refusals += 1;
                Some(refusal)
            }
            Err(error) => {
                self.broken(&error);
                // The process cannot go on.
                Some(Refusal::RunStopped)
            }
        }
    }

    fn broken(&mut self, error: &LogError) {
        let invariant = match error {
            LogError::Store(StoreError::CursorNotInChain { .. }) => Invariant::Durable,
            _ => Invariant::Lawful,
        };
        let source = std::error::Error::source(error).map_or(String::new(), ToString::to_string);
        let detail = format!("{error}: {source}");
        self.violation.get_or_insert(Violation { invariant, detail });
    }

    pub(super) fn pass(&mut self, ms: i64) {
        self.clock += ms;
        self.shared.set_now(Moment::wall(Millis(self.clock)));
    }

    /// A number of milliseconds below a limit.
    pub(super) fn some_ms(&mut self, limit: u64) -> i64 {
        i64::try_from(self.rng.below(limit)).expect("a limit is small")
    }

    /// Whether the holder of an attempt's lock lives on this host.
    pub(super) fn lock_holder(&self, host: usize, attempt: AttemptId) -> Option<ActorId> {
        let lock = self.hosts[host].folders.get(&attempt)?.lock?;
        self.alive.contains(&lock).then_some(lock)
    }

    /// A tree of a host's pool, which is made when it is first asked for.
    pub(super) fn kept(&mut self, host: usize, number: TreeNo) -> &mut Kept {
        let base = self.repository.tip();
        let tree = || Tree { files: Files::new(), base, merged: Vec::new(), of: None };
        let trees = &mut self.hosts[host].trees;
        trees.entry(number).or_insert_with(|| Kept { tree: tree(), lock: None })
    }

    /// Somebody merges the branch into the trees of a step that cannot be landed, wherever its last
    /// attempt has left one.
    pub(super) fn merge_by_hand(&mut self, last: AttemptId) {
        let tip = self.repository.tip();
        let trees = self.hosts.iter_mut().flat_map(|host| host.trees.values_mut());
        for tree in trees.map(|kept| &mut kept.tree).filter(|tree| tree.of == Some(last)) {
            self.counts.merges_by_hand += 1;
            tree.files = self.repository.merged(tree);
            tree.merged.push(tip.clone());
        }
    }

    // What agents do.

    pub(super) fn running_agents(&self) -> Vec<(usize, AttemptId)> {
        let hosts = self.hosts.iter().enumerate();
        hosts
            .flat_map(|(number, host)| host.agents().map(move |(agent, _)| (number, agent)))
            .collect()
    }

    /// Writes one file, or ends when all are written.
    pub(super) fn agent_works(&mut self, host: usize, attempt: AttemptId) {
        let faulty = self.faulty;
        let Some(folder) = self.hosts[host].folders.get(&attempt) else { return };
        let Some(agent) = &folder.agent else { return };
        if faulty && agent.awake_at > self.clock {
            return;
        }
        let (step, tree, checked) = (agent.step, agent.tree, agent.checked);
        let next = self.wanted(step, &self.hosts[host].trees[&tree].tree.files);
        let lazy = faulty && self.plan.steps[step].verify.is_some() && self.rng.one_in(15);
        let forgetful = faulty && self.rng.one_in(15);
        match next.into_iter().next() {
            Some((path, text)) if !lazy => {
                self.kept(host, tree).tree.files.insert(path, text);
            }
            None if !(checked || forgetful) => {}
            _ => self.set_life(host, attempt, Life::Ended(Exit::Code(0))),
        }
    }

    pub(super) fn agent_checked(&mut self, host: usize, attempt: AttemptId) {
        let folder = self.hosts[host].folders.get_mut(&attempt);
        if let Some(agent) = folder.and_then(|folder| folder.agent.as_mut()) {
            agent.checked = true;
        }
    }

    /// What is seen at the end of an iteration: only the first one changes anything.
    pub(super) fn iteration_check(&self, step: &StepRef) -> Option<Box<IterationCheck>> {
        let (_, of) = self.plan.loop_of(&step.step)?;
        if of.steps.last() != Some(&step.step) {
            return None;
        }
        let code = i32::from(step.iteration < self.passes_in);
        let check = |command: &String| Check {
            command: command.clone(),
            exit: Exit::Code(code),
            output: Hash::of(b"until"),
            ms: 1,
        };
        let (until, changed) = (of.until.as_ref().map(check), u64::from(step.iteration == 1));
        Some(Box::new(IterationCheck { until, tail: String::new(), changed }))
    }

    /// Files of a step that are missing from a tree or differ from what they should be there.
    pub(super) fn wanted(&self, step: usize, files: &Files) -> Files {
        let mut wanted = written(&self.plan, &self.sizes, step, files);
        wanted.retain(|path, text| files.get(path) != Some(text));
        wanted
    }

    pub(super) fn set_life(&mut self, host: usize, attempt: AttemptId, life: Life) {
        let folder = self.hosts[host].folders.get_mut(&attempt);
        if let Some(agent) = folder.and_then(|folder| folder.agent.as_mut()) {
            agent.life = life;
        }
    }

    pub(super) fn has_agent(&self, host: usize, attempt: AttemptId) -> bool {
        self.running_agents().contains(&(host, attempt))
    }

    pub(super) fn freeze_agent(&mut self, host: usize, attempt: AttemptId, until: i64) {
        let folder = self.hosts[host].folders.get_mut(&attempt);
        if let Some(agent) = folder.and_then(|folder| folder.agent.as_mut()) {
            agent.awake_at = until;
        }
    }

    /// Ends whatever an attempt started; nobody records how.
    pub(super) fn end_agent(&mut self, host: usize, attempt: AttemptId) {
        if let Some(folder) = self.hosts[host].folders.get_mut(&attempt) {
            folder.agent = None;
        }
    }

    /// The keeper writes down how its agent ended.
    pub(super) fn record_exit(&mut self, host: usize, attempt: AttemptId, exit: AgentExit) {
        if let Some(folder) = self.hosts[host].folders.get_mut(&attempt) {
            folder.exit = Some(exit);
            folder.agent = None;
        }
    }

    /// It ended by itself, with success.
    pub(super) fn agent_succeeded(&mut self, fence: Fence) {
        self.referee.agent_ended(fence);
    }

    // What goes wrong.

    pub(super) fn kill_some_agent(&mut self) {
        let agents = self.running_agents();
        if agents.is_empty() {
            return;
        }
        let (host, attempt) = agents[self.rng.index(agents.len())];
        let exit = match self.rng.below(4) {
            0 => Exit::Code(1),
            1 => Exit::Code(143),
            _ => Exit::Signal(9),
        };
        self.note(&format!("the agent of {} ends with {exit}", short(attempt)));
        self.counts.agent_deaths += 1;
        self.set_life(host, attempt, Life::Ended(exit));
    }

    pub(super) fn lose_a_lease(&mut self) {
        let rows = self.shared.store.leases(self.run).unwrap_or_default();
        if !rows.is_empty() {
            let row = &rows[self.rng.index(rows.len())];
            self.note(&format!("the lease row of {} at {} is lost", row.key, row.fence));
            self.counts.lost_leases += 1;
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.insert((row.key.clone(), row.fence));
        }
    }

    /// Every host sleeps past every lease.
    pub(super) fn sleep(&mut self) {
        self.note("everybody sleeps");
        self.counts.sleeps += 1;
        self.pass(2 * i64::try_from(LEASE.as_millis()).expect("a lease is short"));
    }

    pub(super) fn reboot(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        host.boot += 1;
        for folder in host.folders.values_mut() {
            folder.agent = None;
        }
    }

    pub(super) fn end_faults(&mut self) {
        self.note("no more faults");
        self.faulty = false;
    }

    // What the referee sees.

    /// After every action: new records, and who works in which tree.
    pub(super) fn judge(&mut self) -> Result<(), Violation> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let records = self.shared.store.read(self.run, self.judged).unwrap_or_default();
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let rows = &self.rows;
        let believed_until = |open: &Open| believed(open, rows, &lost);
        let (hosts, worktrees, alive) = (&self.hosts, &self.worktrees, &self.alive);
        let lock_holder = |host: &HostId, attempt: AttemptId| {
            let host = hosts.iter().find(|known| known.id == *host)?;
            host.folders.get(&attempt)?.lock.filter(|holder| alive.contains(holder))
        };
        let circumstances = Circumstances {
            now: Moment::wall(Millis(self.clock)),
            believed_until: &believed_until,
            lock_holder: &lock_holder,
            writer: self.writer,
            worktree_host: &|worktree| &hosts[worktrees[worktree].host].id,
            host: &|host| &hosts[host].id,
        };
        for record in &records {
            let text = String::from_utf8_lossy(&record.body);
            let line = format!("{:>8} ms @{:<3} {text}", self.clock - 1_000_000, record.position);
            self.history.push(line);
            self.referee.read(record, &circumstances)?;
            self.judged = record.cursor();
        }
        self.writer = None;
        self.rows = self.shared.store.leases(self.run).unwrap_or_default();
        let now = Moment::wall(Millis(self.clock));
        self.referee.locks_fit(&now, &|open| believed(open, &self.rows, &lost))?;
        self.ended = self.referee.all_completed();
        self.one_agent()
    }

    /// How often each thing happened, what the referee counted included.
    pub(super) fn counted(&self) -> Counts {
        let mut counts = self.counts;
        counts.add(&self.referee.counts);
        counts
    }

    fn one_agent(&self) -> Result<(), Violation> {
        for host in &self.hosts {
            for (number, Kept { tree, .. }) in &host.trees {
                let here: Vec<AttemptId> = host
                    .agents()
                    .filter(|(_, at)| *at == number)
                    .map(|(attempt, _)| attempt)
                    .collect();
                let strangers = here.iter().any(|attempt| tree.of != Some(*attempt));
                if here.len() > 1 || strangers {
                    let all: Vec<String> = here.iter().map(|attempt| short(*attempt)).collect();
                    let of = tree.of.map_or("nobody".to_owned(), short);
                    let detail =
                        format!("{} work in the tree of {of} on {}", all.join(", "), host.id);
                    return Err(Violation { invariant: Invariant::OneAgent, detail });
                }
            }
        }
        Ok(())
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended
    }

    /// Where the log has come to: equal heads are equal logs.
    pub(super) fn head(&self) -> Cursor {
        self.judged
    }

    /// At the end: nothing acknowledged is missing, the log folds, the tree is right.
    pub(super) fn judge_end(&mut self) -> Result<(), Violation> {
        let broken = |invariant, detail: String| Violation { invariant, detail };
        let records = self.shared.store.read(self.run, Cursor::START).unwrap_or_default();
        for cursor in &self.acknowledged {
            let there = usize::try_from(cursor.position.0).ok().and_then(|at| records.get(at - 1));
            if there.map(|record| record.cursor()) != Some(*cursor) {
                let detail = format!("the log does not hold position {}", cursor.position);
                return Err(broken(Invariant::Durable, detail));
            }
        }
        let log = Log::load(Arc::clone(&self.shared.store), self.run)
            .map_err(|error| broken(Invariant::Lawful, format!("{error:?}")))?;
        if !log.run().is_completed() {
            return Err(broken(Invariant::Lawful, "the fold does not see the end".to_owned()));
        }
        self.referee.all_told()?;
        let (tip, expected) = (self.repository.tip(), self.undisturbed());
        if *self.repository.files(&tip) != expected {
            let detail = format!("{:?} instead of {expected:?}", self.repository.files(&tip));
            return Err(broken(Invariant::SameTree, detail));
        }
        self.counts.completions = self.plan.steps.len() as u64;
        Ok(())
    }

    /// The files of a run that nothing disturbed.
    fn undisturbed(&self) -> Files {
        let mut files = Repository::new().files(&Repository::new().tip()).clone();
        for step in 0..self.plan.steps.len() {
            let new = written(&self.plan, &self.sizes, step, &files);
            files.extend(new);
        }
        files
    }
}

/// Until when a claim is believed, by these rows without those that are lost.
fn believed(open: &Open, rows: &[Lease], lost: &BTreeSet<(String, Fence)>) -> Moment {
    let row = rows.iter().find(|row| row.key == open.key && row.fence == open.fence);
    let row = row.filter(|row| !lost.contains(&(row.key.clone(), row.fence)));
    row.map_or(open.until.clone(), |row| row.until.clone())
}

/// What a step writes: made of its own name and of what the steps that it needs have written.
fn written(plan: &Plan, sizes: &[Size], step: usize, files: &Files) -> Files {
    let own = plan.steps[step].id.as_str();
    let of = |id: &StepId| {
        let prefix = format!("{id}/");
        let all = files.iter().filter(move |(path, _)| path.starts_with(&prefix));
        all.map(|(path, text)| format!("{path}={text}")).collect::<Vec<String>>()
    };
    let given: Vec<String> =
        plan.needs_of(step).into_iter().flat_map(|need| of(&plan.steps[need].id)).collect();
    let mut written: Files = (0..sizes[step].files)
        .map(|number| {
            let text = Hash::of(format!("{own} {number} {given:?}").as_bytes()).short();
            (format!("{own}/{number}"), text)
        })
        .collect();
    if sizes[step].shared {
        let before = files.get(SHARED).map_or("", String::as_str);
        written.insert(SHARED.to_owned(), lines(&format!("{before} {own}")));
    }
    written
}

const LOCKS: [(&str, u32); 2] = [("one", 1), ("two", 2)];

/// Where nobody is outside, nothing is left to be done by hand.
fn random_plan(rng: &mut Rng, outside: usize) -> (Plan, Vec<Size>) {
    let count = 2 + rng.index(5);
    let mut steps = Vec::new();
    let mut sizes = Vec::new();
    for number in 0..count {
        let mut step = random_step(rng, number);
        if outside == 0 && step.work.is_by_hand() {
            step.work = Work::Run("make".to_owned());
        }
        let files = match step.work {
            Work::ByHand | Work::Told(_) => rng.index(3),
            Work::Run(_) | Work::Agent { .. } => 1 + rng.index(6),
        };
        sizes.push(Size { files, shared: rng.one_in(3) });
        steps.push(step);
    }
    let loops = random_loop(rng, &mut steps);
    let locks = LOCKS.iter().map(|(lock, slots)| (named_lock(lock), *slots));
    let (isolation, jobs) = match rng.one_in(2) {
        true => (Isolation::Run, None),
        false => (Isolation::Step, Some(1 + u32::from(rng.one_in(2)) + u32::from(rng.one_in(2)))),
    };
    let plan = Plan {
        name: "simulated".to_owned(),
        base: None,
        isolation,
        jobs,
        on_failure: match rng.one_in(4) {
            true => OnFailure::Stop,
            false => OnFailure::Continue,
        },
        setup: None,
        copy: Vec::new(),
        link: Vec::new(),
        inputs: BTreeMap::new(),
        groups: BTreeMap::new(),
        agents: BTreeMap::new(),
        locks: locks.collect(),
        loops,
        steps: steps.into_iter().collect(),
        plan_from: None,
        source: None,
    };
    (plan, sizes)
}

/// Two neighbours that piton starts are repeated, in one plan of three.
fn random_loop(rng: &mut Rng, steps: &mut [PlanStep]) -> BTreeMap<LoopId, PlanLoop> {
    let first = rng.index(steps.len() - 1);
    let is_started = |step: &PlanStep| !step.work.is_by_hand();
    if !rng.one_in(3) || !steps[first..first + 2].iter().all(is_started) {
        return BTreeMap::new();
    }
    let chain = [steps[first].id.clone(), steps[first + 1].id.clone()];
    let needs = &mut steps[first + 1].needs;
    needs.push(Need::Step(chain[0].clone()));
    needs.sort_unstable();
    needs.dedup();
    let of = PlanLoop {
        steps: chain.to_vec(),
        max: 1 + u32::from(rng.one_in(2)) + u32::from(rng.one_in(2)),
        until: rng.one_in(2).then(|| "make test".to_owned()),
        stale_limit: rng.one_in(2).then_some(1),
        until_items: false,
    };
    BTreeMap::from([(LoopId::new("again").expect("a valid id"), of)])
}

fn random_step(rng: &mut Rng, number: usize) -> PlanStep {
    let id = |number: usize| StepId::new(format!("s{number}")).expect("a valid id");
    let needs = (0..number).filter(|_| rng.one_in(3)).map(|need| Need::Step(id(need))).collect();
    let name = if rng.one_in(3) { "spare" } else { "fake" };
    let agent = AgentName::new(name).expect("a valid name");
    let items = |rng: &mut Rng, most: usize| {
        (0..rng.index(most + 1)).map(|item| format!("item {item}")).collect::<Vec<String>>()
    };
    let part = |rng: &mut Rng, number: usize| PlanSubstep {
        id: SubstepId::new(format!("part{number}")).expect("a valid id"),
        title: format!("part {number}"),
        items: items(rng, 1),
    };
    let work = match rng.below(6) {
        0 => Work::ByHand,
        1 | 2 => Work::Run("make".to_owned()),
        _ => Work::Agent { agent, prompt: "work".to_owned() },
    };
    let on_interrupt = match rng.below(6) {
        _ if work.is_by_hand() => None,
        0 => Some(OnInterrupt::Continue),
        1 => Some(OnInterrupt::Restart),
        2 | 3 => Some(OnInterrupt::Ask),
        _ => None,
    };
    PlanStep {
        id: id(number),
        title: format!("step {number}"),
        kind: None,
        group: None,
        needs,
        work,
        verify: rng.one_in(2).then(|| "make test".to_owned()),
        skip_if: None,
        timeout: None,
        retries: [0, 1, 2, 5][rng.index(4)],
        env: BTreeMap::new(),
        items: items(rng, 2),
        substeps: (0..rng.index(3)).map(|number| part(rng, number)).collect(),
        locks: LOCKS.iter().filter(|_| rng.one_in(3)).map(|(lock, _)| named_lock(lock)).collect(),
        outputs: BTreeSet::new(),
        require: BTreeMap::new(),
        on_interrupt,
        on_limit: if rng.one_in(4) { OnLimit::Ask } else { OnLimit::default() },
    }
}

fn named_lock(lock: &str) -> LockName {
    LockName::new(lock).expect("a valid name")
}

fn open_run(store: &Arc<dyn Store>, run: RunId, plan: &Arc<Plan>, base: &Oid) {
    let handle = Handle::new("simulated-otter").expect("a valid handle");
    let (name, key) = (handle.to_string(), RunKey("simulated".to_owned()));
    let new = NewRun { run, name, key, replaces: None };
    let opened = RunOpened {
        run,
        handle,
        plan: plan.hash(),
        plan_path: "plan.toml".to_owned(),
        opened_in: None,
        repository: RepositoryId { root: base.clone(), remote: None },
        base: base.clone(),
        base_branch: None,
        inputs: BTreeMap::new(),
        settings: Hash::of(b"settings"),
        host: HostId("host-0".to_owned()),
    };
    let opened = Log::open(Arc::clone(store), &new, Arc::clone(plan), b"settings", opened, &[]);
    assert!(matches!(opened, Ok(Opened::New(_))), "an empty store takes the first run");
}

/// An attempt as the history tells of it.
pub(super) fn short(attempt: AttemptId) -> String {
    format!("a{}", attempt.0.as_u128())
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
