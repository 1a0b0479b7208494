//! A run's log in memory, driven by commands written as text: what a store and the appender do, in a
//! few lines. `claim a, start a, verify a` is a history; `complete a@7` names a fence of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use piton_core::decide::{AgentExit, Claim, Command, Corpse, Refusal, Urge, decide, open};
use piton_core::decided::{KeyFate, Lease};
use piton_core::event::{
    Cause, Entry, Event, Exit, Failure, Grounds, Haste, Holder, Repository, RunOpened, Scope,
    Snapshot, SnapshotReason, Stage, Truth,
};
use piton_core::ids::{
    AgentName, AttemptId, BootId, Fence, GroupId, Handle, Hash, HostId, Oid, RunId, StepId, StepRef,
};
use piton_core::plan::{Group, Isolation, Need, Plan, PlanStep, Work};
use piton_core::record::{Cursor, Record};
use piton_core::recover::{Observed, Sighting};
use piton_core::run::Run;
use piton_core::time::{Millis, Moment};
use uuid::Uuid;

/// How long a claim of these tests is believed.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

const RUN: RunId = RunId(Uuid::from_u128(1));

/// A log, folded as it grows.
pub(crate) struct History {
    pub(crate) run: Run,
    pub(crate) records: Vec<Record>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) now: Moment,
    pub(crate) key: KeyFate,
    plan: Arc<Plan>,
    attempts: u128,
}

impl History {
    pub(crate) fn open(plan: Plan) -> History {
        let plan = Arc::new(plan);
        let opened = RunOpened {
            run: RUN,
            handle: Handle::new("plan-steady-otter").unwrap(),
            plan: plan.hash(),
            plan_path: "plan.toml".to_owned(),
            opened_in: None,
            repository: Repository { root: oid(1), remote: None },
            base: oid(2),
            inputs: BTreeMap::new(),
            settings: Hash::of(b"settings"),
            host: host("here"),
        };
        let now = Moment::wall(Millis(1_000_000));
        let decided = open(&plan, b"settings", opened);
        let body = decided.bodies()[0].clone();
        let first = Record::following(RUN, Cursor::START, now.wall, body);
        let run = Run::open(Arc::clone(&plan), &first).unwrap();
        History {
            run,
            records: vec![first],
            leases: Vec::new(),
            now,
            key: KeyFate::Kept,
            plan,
            attempts: 100,
        }
    }

    /// Decides and, when allowed, appends and folds.
    pub(crate) fn submit(&mut self, command: &Command) -> Result<Vec<Event>, Refusal> {
        let decided = decide(&self.run, command, &self.leases, &self.now)?;
        let mut events = Vec::new();
        for body in decided.bodies() {
            let record = Record::following(RUN, self.run.cursor, self.now.wall, body.clone());
            events.push(self.run.apply(&record).expect("what decide emits can be folded"));
            self.records.push(record);
        }
        for lease in decided.leases() {
            self.leases.retain(|row| row.key != lease.key);
            self.leases.push(lease.clone());
        }
        if decided.key() == KeyFate::Freed {
            self.key = KeyFate::Freed;
        }
        Ok(events)
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    /// Plays commands separated by commas; stops at the first refusal.
    pub(crate) fn try_play(&mut self, script: &str) -> Result<(), Refusal> {
        for text in script.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            match text.strip_prefix("wait ") {
                Some(seconds) => self.pass(Duration::from_secs(seconds.parse().unwrap())),
                None => self.say(text).map(drop)?,
            }
        }
        Ok(())
    }

    pub(crate) fn play(&mut self, script: &str) {
        if let Err(refusal) = self.try_play(script) {
            panic!("{script:?} was refused: {refusal}");
        }
    }

    /// Submits one command written as text.
    pub(crate) fn say(&mut self, text: &str) -> Result<Vec<Event>, Refusal> {
        self.attempts += 1;
        let command = self.command(text);
        self.submit(&command)
    }

    /// A command from its text.
    pub(crate) fn command(&self, text: &str) -> Command {
        let words: Vec<&str> = text.split_whitespace().collect();
        let rest = &words[2.min(words.len())..];
        let (step, fence) = match words.get(1) {
            Some(name) if !matches!(words[0], "resume") && *name != "run" => self.named(name),
            _ => (StepRef::first(id("none")), Fence(0)),
        };
        match words[0] {
            "claim" => Command::Claim(self.claim(step, rest)),
            "start" => Command::Start { step, fence, base: oid(3) },
            "checkpoint" => {
                Command::Checkpoint { step, fence, snapshot: snapshot(rest[0].parse().unwrap()) }
            }
            "set-aside" => {
                let reason = SnapshotReason::Reset;
                let snapshot = Snapshot { reason, ..snapshot(rest[0].parse().unwrap()) };
                Command::Checkpoint { step, fence, snapshot }
            }
            "verify" => {
                let (commit, tree) = (oid(4), oid(5));
                Command::Verify { step, fence, commit, tree, truth: Truth::Verified, check: None }
            }
            "land" => Command::Land { step, fence, onto: oid(3), to: oid(4) },
            "complete" => Command::Complete { step, fence, commit: oid(4) },
            "fail" => Command::Fail { step, fence, why: failure(rest[0]) },
            "interrupt" => Command::Interrupt {
                step,
                fence,
                cause: Cause::Unknown,
                at: self.now.wall,
                evidence: "seen".to_owned(),
                left_at: stage(rest[0]),
            },
            "bury" => Command::Bury { step, fence, corpse: corpse(rest[0]) },
            "stop" => {
                let scope = match words[1] {
                    "run" => Scope::Run,
                    _ => Scope::Attempt { step, fence },
                };
                let haste = if rest == ["now"] { Haste::Now } else { Haste::Graceful };
                Command::Stop { scope, cause: Cause::UserInterrupt, haste }
            }
            "resume" => Command::Resume {
                host: host("here"),
                confirmed: words.get(1) == Some(&"confirmed"),
            },
            other => panic!("no such command: {other}"),
        }
    }

    fn claim(&self, step: StepRef, words: &[&str]) -> Claim {
        let there = words.contains(&"there");
        let sighting = match words.iter().find(|word| !matches!(**word, "there")) {
            None => Sighting::Elsewhere,
            Some(&"alive") => Sighting::Alive,
            Some(exit) => Sighting::Dead(corpse(exit)),
        };
        Claim {
            step,
            attempt: AttemptId(Uuid::from_u128(self.attempts)),
            holder: Holder::Keeper {
                host: host(if there { "there" } else { "here" }),
                boot: BootId("boot".to_owned()),
            },
            until: self.now.after(LEASE),
            sighting,
        }
    }

    /// `a` with the fence it has or had last, or `a@7` with that fence.
    fn named(&self, text: &str) -> (StepRef, Fence) {
        match text.split_once('@') {
            Some((name, fence)) => (StepRef::first(id(name)), Fence(fence.parse().unwrap())),
            None => (StepRef::first(id(text)), self.fence(text)),
        }
    }

    pub(crate) fn fence(&self, step: &str) -> Fence {
        let Some((_, state)) = self.run.step(&id(step)) else { return Fence(0) };
        let last = || state.history.last().map(|past| past.attempt.fence);
        state.attempt().map(|open| open.fence).or_else(last).unwrap_or(Fence(0))
    }

    /// The run folded once more from its first record.
    pub(crate) fn replayed(&self) -> Run {
        let mut run = Run::open(Arc::clone(&self.plan), &self.records[0]).unwrap();
        for record in &self.records[1..] {
            run.apply(record).expect("a log that was folded once can be folded again");
        }
        run
    }

    /// What is seen of the machine when every open attempt looks like this.
    pub(crate) fn seeing(&self, sighting: &Sighting) -> Observed {
        let seen = self.run.held().map(|(_, attempt)| (attempt.id, sighting.clone()));
        Observed { attempts: seen.collect() }
    }
}

/// An event in a few words.
pub(crate) fn told(event: &Event) -> String {
    match event {
        Event::RunOpened(_) => "run opened".to_owned(),
        Event::Claimed(claimed) => {
            let grounds = match claimed.grounds {
                Grounds::Free => "",
                Grounds::LeaseOver => ", lease over",
            };
            format!("claimed {} {}{grounds}", claimed.step, entry_word(claimed.entry))
        }
        Event::Started { step, .. } => format!("started {step}"),
        Event::Checkpointed { step, snapshot, .. } => {
            format!("checkpointed {step} {}", snapshot.changed)
        }
        Event::Verified { step, .. } => format!("verified {step}"),
        Event::LandingIntended { step, .. } => format!("landing intended {step}"),
        Event::Completed { step, .. } => format!("completed {step}"),
        Event::Failed { step, why, .. } => format!("failed {step}: {why}"),
        Event::Interrupted { step, cause, left_at, .. } => {
            format!("interrupted {step} at {}: {cause}", stage_word(*left_at))
        }
        Event::StopRequested { scope, haste, .. } => {
            let whom = match scope {
                Scope::Run => "run".to_owned(),
                Scope::Attempt { step, .. } => step.to_string(),
            };
            let now = if *haste == Haste::Now { " now" } else { "" };
            format!("stop requested {whom}{now}")
        }
        Event::Resumed { confirmed: true, .. } => "resumed, confirmed".to_owned(),
        Event::Resumed { confirmed: false, .. } => "resumed".to_owned(),
    }
}

pub(crate) fn entry_word(entry: Entry) -> &'static str {
    match entry {
        Entry::Fresh => "fresh",
        Entry::Continue => "continue",
        Entry::Verify => "verify",
        Entry::Land => "land",
    }
}

pub(crate) fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Unstarted => "unstarted",
        Stage::Agent => "agent",
        Stage::Verify => "verify",
        Stage::Land => "land",
    }
}

fn stage(word: &str) -> Stage {
    match word {
        "unstarted" => Stage::Unstarted,
        "agent" => Stage::Agent,
        "verify" => Stage::Verify,
        "land" => Stage::Land,
        other => panic!("no such stage: {other}"),
    }
}

fn failure(word: &str) -> Failure {
    let (exit, tail, message) = (Exit::Code(1), "tail".to_owned(), "message".to_owned());
    match word {
        "exit" => Failure::Exit { exit, tail },
        "verify" => Failure::Verify { exit, tail },
        "timeout" => Failure::Timeout { ms: 5_000 },
        "landing" => Failure::Landing { message },
        other => panic!("no such failure: {other}"),
    }
}

/// A corpse by its exit record: `none`, an exit code, or `signal-9`; with `:stop` or `:time` behind it
/// when the agent had been urged to end.
pub(crate) fn corpse(record: &str) -> Corpse {
    let (exit, urge) = match record.split_once(':') {
        None => (record, Urge::Nothing),
        Some((exit, "stop")) => (exit, Urge::Stop(Cause::UserInterrupt)),
        Some((exit, "time")) => (exit, Urge::TimeUp),
        Some((_, other)) => panic!("no such urge: {other}"),
    };
    let exit = match exit.strip_prefix("signal-") {
        Some(signal) => Some(Exit::Signal(signal.parse().unwrap())),
        None if exit == "none" => None,
        None => Some(Exit::Code(exit.parse().unwrap())),
    };
    let exit = exit.map(|exit| AgentExit { exit, urge });
    let (at, evidence) = (Millis(900_000), "seen".to_owned());
    Corpse { exit, cause: Cause::Reboot, at, evidence, changed: None }
}

pub(crate) fn snapshot(changed: u64) -> Snapshot {
    Snapshot {
        commit: oid(100 + u128::from(changed)),
        tree: oid(200 + u128::from(changed)),
        refname: format!("refs/piton/run/step/1/{changed}"),
        changed,
        omitted: Vec::new(),
        reason: SnapshotReason::Cadence,
    }
}

pub(crate) fn id(text: &str) -> StepId {
    StepId::new(text).unwrap()
}

pub(crate) fn host(text: &str) -> HostId {
    HostId(text.to_owned())
}

pub(crate) fn oid(number: u128) -> Oid {
    Oid::new(format!("{number:040x}")).unwrap()
}

/// A plan from lines such as `b agent retries=1 needs=a,g in=g`; the step's kind is `agent` or `command`.
pub(crate) fn plan(lines: &str) -> Plan {
    let rows: Vec<Vec<&str>> = lines
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|row: &Vec<&str>| !row.is_empty())
        .collect();
    let value = |row: &[&str], key: &str| {
        row.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
    };
    let groups: BTreeMap<GroupId, Group> = rows
        .iter()
        .filter_map(|row| value(row, "in"))
        .map(|group| (GroupId::new(group.clone()).unwrap(), Group { title: group }))
        .collect();
    let need = |name: &str| match GroupId::new(name).unwrap() {
        group if groups.contains_key(&group) => Need::Group(group),
        _ => Need::Step(id(name)),
    };
    let steps = rows
        .iter()
        .map(|row| PlanStep {
            id: id(row[0]),
            title: row[0].to_owned(),
            group: value(row, "in").map(|group| GroupId::new(group).unwrap()),
            needs: value(row, "needs").map_or(Vec::new(), |all| all.split(',').map(need).collect()),
            work: match row[1] {
                "command" => Work::Run("make".to_owned()),
                _ => Work::Agent {
                    agent: AgentName::new("fake").unwrap(),
                    prompt: "work".to_owned(),
                },
            },
            verify: None,
            timeout: None,
            retries: value(row, "retries").map_or(0, |text| text.parse().unwrap()),
            env: BTreeMap::new(),
        })
        .collect();
    Plan {
        name: "plan".to_owned(),
        base: None,
        isolation: Isolation::Run,
        inputs: BTreeMap::new(),
        groups,
        agents: BTreeMap::new(),
        steps,
    }
}
