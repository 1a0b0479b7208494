//! The simulator: many workers, keepers, agents, people and scripts outside, and a user on simulated
//! hosts and a simulated clock, the real decision code through the engine's one appender over a real
//! store. Anything can die or stall between any two actions. A referee beside it, which shares no code
//! with the rules, checks every record; after the faults end, the run must complete with the tree of an
//! undisturbed one.
//!
//! One seed is one history: the same seed always does exactly the same, [on](On) every store. A [`Bug`]
//! breaks an input on purpose, to show that the referee sees.
//!
//! Reading order: this file (the schedule), `world` (hosts, clock, faults' effects), `repository`,
//! `worker`, `keeper`, `external`, `referee`, `tampered`.

use std::fmt;

use piton_core::record::Cursor;

use external::{External, Presence};
use keeper::Keeper;
use rng::Rng;
use world::{LEASE, World};

pub use referee::{Invariant, Violation};
pub use tampered::{Bug, On};

mod external;
mod keeper;
mod referee;
mod repository;
mod rng;
mod rounds;
mod tampered;
mod worker;
mod world;

macro_rules! counts {
    ($($name:ident),* $(,)?) => {
        /// How often each thing happened, so that a test can see that its faults were really applied.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts {
            $(pub $name: u64,)*
        }

        impl Counts {
            pub fn add(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }

            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counts!(
    actions,
    claims,
    outside_claims,
    claims_beside,
    takeovers,
    reclaims,
    forced_claims,
    releases,
    forced_releases,
    resets,
    renewals,
    zombie_writes,
    left_behind,
    strict_refusals,
    waivers,
    repeated_completions,
    lock_waits,
    questions,
    answers,
    repeated_answers,
    applied_answers,
    suspensions,
    limits,
    lifted_limits,
    burials,
    expiries,
    interruption_questions,
    failure_questions,
    retried,
    iterations,
    loop_questions,
    questions_asked_again,
    refusals,
    worker_crashes,
    keeper_crashes,
    outside_crashes,
    agent_deaths,
    orphans,
    reboots,
    lost_hosts,
    stalls,
    outlived_leases,
    sleeps,
    lost_leases,
    stale_looks,
    stops,
    resumes,
    merges,
    conflicts,
    merges_by_hand,
    lost_races,
    completions,
);

/// A history that held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Played {
    pub counts: Counts,
    /// The end of its log; equal ends are equal logs, byte for byte.
    pub head: Cursor,
}

/// A history in which an invariant did not hold.
#[derive(Debug, Clone)]
pub struct Failed {
    pub seed: u64,
    pub violation: Violation,
    pub history: Vec<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {}: {}", self.seed, self.violation)?;
        write!(f, "once more: PITON_SIM_SEED={} cargo test -p piton-testkit", self.seed)
    }
}

/// The most actions a run may need once nothing goes wrong any more.
const FAIR_ACTIONS_MAX: u64 = 6_000;

const HOSTS: usize = 2;
/// Two rivals on the first host, one on the second.
const WORKERS: [usize; 3] = [0, 0, 1];
/// The hosts of those outside; in every third history there is nobody.
const OUTSIDE: [usize; 3] = [0, 0, 1];

/// How much more often a keeper or an agent acts than a worker.
const KEEPERS_BUSIER: usize = 3;

/// Plays one history.
pub fn simulate(on: On, seed: u64, bug: Option<Bug>) -> Result<Played, Box<Failed>> {
    let mut schedule = Schedule::new(on, seed);
    schedule.world.bug = bug;
    let outcome = schedule.play();
    let world = schedule.world;
    match outcome {
        Ok(()) => Ok(Played { counts: world.counted(), head: world.head() }),
        Err(violation) => Err(Box::new(Failed { seed, violation, history: world.history })),
    }
}

/// Who acts on their own; agents do too, but have no memory beyond their tree.
enum Actor {
    Worker(worker::Worker),
    Keeper(Box<Keeper>),
    External(Box<External>),
    User(worker::User),
}

struct Slot {
    actor: Actor,
    awake_at: i64,
}

struct Schedule {
    world: World,
    slots: Vec<Slot>,
    turn: usize,
}

impl Schedule {
    fn new(on: On, seed: u64) -> Schedule {
        let outside: &[usize] = if seed.is_multiple_of(3) { &[] } else { &OUTSIDE };
        let mut world = World::new(on, Rng::new(seed), HOSTS, outside);
        let mut slots: Vec<Slot> = WORKERS
            .iter()
            .enumerate()
            .map(|(number, host)| worker::Worker::start(&mut world, number, *host))
            .map(|worker| Slot { actor: Actor::Worker(worker), awake_at: 0 })
            .collect();
        for number in 0..outside.len() {
            let external = Box::new(External::start(&mut world, number));
            slots.push(Slot { actor: Actor::External(external), awake_at: 0 });
        }
        slots.push(Slot { actor: Actor::User(worker::User::default()), awake_at: 0 });
        Schedule { world, slots, turn: 0 }
    }

    fn play(&mut self) -> Result<(), Violation> {
        let faulty = 150 + self.world.rng.below(600);
        for _ in 0..faulty {
            if self.world.is_over() {
                break;
            }
            let pause = self.world.some_ms(3_000);
            self.world.pass(pause);
            if !self.fault() {
                self.random_action();
            }
            self.settle()?;
        }
        if self.world.rng.one_in(4) {
            self.lose_host();
        }
        self.world.end_faults();
        for slot in &mut self.slots {
            slot.awake_at = 0;
        }
        let mut left = FAIR_ACTIONS_MAX;
        while !(self.world.is_over() && self.nobody_works()) {
            if left == 0 {
                let detail = format!("not completed after {FAIR_ACTIONS_MAX} undisturbed actions");
                return Err(Violation { invariant: Invariant::Progress, detail });
            }
            left -= 1;
            self.world.pass(700);
            self.next_action();
            self.settle()?;
        }
        self.world.judge_end()
    }

    fn nobody_works(&self) -> bool {
        self.slots.iter().all(|slot| !slot.has_claim())
    }

    /// One action of anybody who is awake; keepers and agents are busier than who watches them.
    fn random_action(&mut self) {
        let now = self.world.clock;
        let mut awake: Vec<usize> = Vec::new();
        for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.awake_at <= now)
        {
            let busy = if slot.has_claim() { KEEPERS_BUSIER } else { 1 };
            awake.extend(std::iter::repeat_n(index, busy));
        }
        let agents = self.world.running_agents();
        let all = awake.len() + KEEPERS_BUSIER * agents.len();
        if all == 0 {
            return;
        }
        match self.world.rng.index(all) {
            pick if pick < awake.len() => self.act(awake[pick]),
            pick => {
                let (host, attempt) = agents[(pick - awake.len()) / KEEPERS_BUSIER];
                self.world.agent_works(host, attempt);
            }
        }
    }

    /// Everybody in turn.
    fn next_action(&mut self) {
        let agents = self.world.running_agents();
        let all = self.slots.len() + agents.len();
        let pick = self.turn % all;
        self.turn += 1;
        match pick.checked_sub(self.slots.len()) {
            None => self.act(pick),
            Some(agent) => {
                let (host, attempt) = agents[agent];
                self.world.agent_works(host, attempt);
            }
        }
    }

    fn act(&mut self, index: usize) {
        self.world.counts.actions += 1;
        let world = &mut self.world;
        match &mut self.slots[index].actor {
            Actor::Worker(worker) => worker.act(world),
            Actor::Keeper(keeper) => keeper.act(world),
            Actor::External(external) => external.act(world),
            Actor::User(user) => user.act(world),
        }
    }

    /// After every action: take in who was started, let go of who is gone, let the referee look.
    fn settle(&mut self) -> Result<(), Violation> {
        for keeper in self.world.born.drain(..) {
            self.slots.push(Slot { actor: Actor::Keeper(Box::new(keeper)), awake_at: 0 });
        }
        let alive = &self.world.alive;
        self.slots.retain(|slot| match &slot.actor {
            Actor::Keeper(keeper) => alive.contains(&keeper.id),
            Actor::External(external) => alive.contains(&external.id),
            Actor::Worker(_) | Actor::User(_) => true,
        });
        self.world.judge()
    }

    /// Sometimes something goes wrong; says whether it did.
    fn fault(&mut self) -> bool {
        if !self.world.rng.one_in(12) {
            return false;
        }
        match self.world.rng.below(20) {
            0..5 => self.crash(),
            5..9 => self.stall(),
            9..11 => self.world.kill_some_agent(),
            11..13 => self.world.lose_a_lease(),
            13..15 => self.world.sleep(),
            15 => self.reboot(),
            _ => return false,
        }
        true
    }

    fn crash(&mut self) {
        let index = self.victim();
        let agent_too = self.world.rng.one_in(2);
        self.crash_slot(index, agent_too);
    }

    /// Somebody; one who has a claim, where there is one, every other time.
    fn victim(&mut self) -> usize {
        let holders: Vec<usize> =
            (0..self.slots.len()).filter(|index| self.slots[*index].has_claim()).collect();
        if holders.is_empty() || self.world.rng.one_in(2) {
            self.world.rng.index(self.slots.len())
        } else {
            holders[self.world.rng.index(holders.len())]
        }
    }

    fn crash_slot(&mut self, index: usize, agent_too: bool) {
        match &mut self.slots[index].actor {
            Actor::User(_) => {}
            Actor::Keeper(keeper) => {
                let (id, host, attempt) = (keeper.id, keeper.host, keeper.attempt);
                self.world.note(&format!("{keeper} is killed"));
                self.world.counts.keeper_crashes += 1;
                self.world.alive.remove(&id);
                if agent_too {
                    self.world.end_agent(host, attempt);
                } else if self.world.has_agent(host, attempt) {
                    self.world.counts.orphans += 1;
                }
            }
            Actor::External(external) if external.presence == Presence::LeftBehind => {
                self.world.note(&format!("{external} is killed"));
                self.world.alive.remove(&external.id);
            }
            Actor::External(external) => {
                self.world.note(&format!("{external} is started again"));
                self.world.counts.outside_crashes += 1;
                let again = External::start(&mut self.world, external.number);
                let mut before = std::mem::replace(&mut **external, again);
                let pause = self.world.some_ms(40_000);
                self.slots[index].awake_at = self.world.clock + pause;
                if agent_too || !before.has_claim() {
                    self.world.alive.remove(&before.id);
                } else {
                    self.world.counts.left_behind += 1;
                    before.presence = Presence::LeftBehind;
                    let actor = Actor::External(Box::new(before));
                    self.slots.push(Slot { actor, awake_at: 0 });
                }
            }
            Actor::Worker(worker) => {
                self.world.note(&format!("{worker} is killed"));
                self.world.counts.worker_crashes += 1;
                self.world.alive.remove(&worker.id);
                let (number, host) = (worker.number, worker.host);
                *worker = worker::Worker::start(&mut self.world, number, host);
                let pause = self.world.some_ms(40_000);
                self.slots[index].awake_at = self.world.clock + pause;
            }
        }
    }

    /// Frozen, perhaps past its lease; a keeper's agent often with it.
    fn stall(&mut self) {
        let index = self.victim();
        let pause = self.world.some_ms(300_000);
        let until = self.world.clock + pause;
        let who = match &self.slots[index].actor {
            Actor::User(_) => return,
            Actor::Worker(worker) => worker.to_string(),
            Actor::External(external) => external.to_string(),
            Actor::Keeper(keeper) => {
                if self.world.rng.one_in(2) {
                    self.world.freeze_agent(keeper.host, keeper.attempt, until);
                }
                keeper.to_string()
            }
        };
        self.world.note(&format!("{who} stalls for {} s", pause / 1_000));
        self.world.counts.stalls += 1;
        let past_its_lease =
            self.slots[index].has_claim() && u128::from(pause.unsigned_abs()) > LEASE.as_millis();
        self.world.counts.outlived_leases += u64::from(past_its_lease);
        self.slots[index].awake_at = until;
    }

    fn reboot(&mut self) {
        let host = self.world.rng.index(HOSTS);
        self.world.note(&format!("host {host} is started again"));
        self.world.counts.reboots += 1;
        self.crash_host(host);
    }

    /// A host that never comes back: the others must get there without it.
    fn lose_host(&mut self) {
        let host = self.world.rng.index(HOSTS);
        self.world.note(&format!("host {host} is lost for good"));
        self.world.counts.lost_hosts += 1;
        self.crash_host(host);
        self.slots.retain(|slot| slot.host() != Some(host));
    }

    fn crash_host(&mut self, host: usize) {
        for index in 0..self.slots.len() {
            if self.slots[index].host() == Some(host) {
                self.crash_slot(index, true);
            }
        }
        self.world.reboot(host);
    }
}

impl Slot {
    /// Where it runs; the user is nowhere in particular.
    fn host(&self) -> Option<usize> {
        match &self.actor {
            Actor::User(_) => None,
            Actor::Worker(worker) => Some(worker.host),
            Actor::Keeper(keeper) => Some(keeper.host),
            Actor::External(external) => Some(external.host),
        }
    }

    /// Whether it has a claim, as far as it knows.
    fn has_claim(&self) -> bool {
        match &self.actor {
            Actor::Keeper(_) => true,
            Actor::External(external) => external.has_claim(),
            Actor::User(_) | Actor::Worker(_) => false,
        }
    }
}
