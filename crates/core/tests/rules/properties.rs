//! Properties over random histories: commands with right, stale and invented fences, sightings that
//! lie, clocks that jump. Whatever is asked, the log stays one that the rules can have written.

use std::collections::BTreeMap;
use std::time::Duration;

use piton_core::brief::{TreeFacts, prompt};
use piton_core::decide::{AgentExit, Claim, Command, Corpse, Urge};
use piton_core::event::{
    Cause, Check, Entry, Event, Exit, Failure, Grounds, Haste, Holder, Scope, Snapshot,
    SnapshotReason, Stage, Truth,
};
use piton_core::ids::{AttemptId, BootId, Fence, Hash, StepId, StepRef};
use piton_core::recover::{Observed, Sighting, ready, recover};
use piton_core::run::{Phase, Run};
use piton_core::time::Millis;
use piton_core::view::view;
use proptest::prelude::*;
use uuid::Uuid;

use crate::history::{History, host, id, oid, plan};

const STEPS: [&str; 4] = ["a", "b", "c", "d"];

fn history() -> History {
    History::open(plan(
        "a agent retries=2 in=g
         b command retries=1 needs=a in=g
         c agent retries=3
         d agent needs=g,c",
    ))
}

/// Which fence a command is given.
#[derive(Debug, Clone, Copy)]
enum Which {
    /// The one the step has, or had last.
    Current,
    Older(u64),
    Invented(u64),
}

/// One random ask; what it needs of the history is filled in when it is made.
#[derive(Debug, Clone)]
enum Ask {
    Claim { step: usize, here: bool, sighting: Sighting },
    Start,
    Checkpoint { changed: u64 },
    Verify { truth: Truth, check: Option<Check> },
    Land,
    Complete,
    Fail(Failure),
    Interrupt { cause: Cause, evidence: String, left_at: Stage },
    Bury(Corpse),
    Stop { run: bool, cause: Cause, haste: Haste },
    Resume { confirmed: bool },
    Wait(u64),
}

#[derive(Debug, Clone)]
struct Move {
    ask: Ask,
    /// Another step than the one that is held.
    stray: Option<usize>,
    which: Which,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z ]{0,20}", any::<String>(), "[\u{0}-\u{1f}\"\\\\é✗]{0,8}"]
}

fn exit() -> impl Strategy<Value = Exit> {
    prop_oneof![
        Just(Exit::Code(0)),
        any::<i32>().prop_map(Exit::Code),
        prop::sample::select(vec![9, 11, 15]).prop_map(Exit::Signal),
        prop::sample::select(vec![1, 130, 137, 143]).prop_map(Exit::Code),
    ]
}

fn cause() -> impl Strategy<Value = Cause> {
    prop::sample::select(vec![
        Cause::UserInterrupt,
        Cause::Termination,
        Cause::HangUp,
        Cause::ProcessKill,
        Cause::OutOfMemory,
        Cause::Reboot,
        Cause::HostLost,
        Cause::DiskFull,
        Cause::Unknown,
    ])
}

fn corpse() -> impl Strategy<Value = Corpse> {
    let changed = prop::option::of(0..4_u64);
    let urge = prop_oneof![
        3 => Just(Urge::Nothing),
        1 => cause().prop_map(Urge::Stop),
        1 => Just(Urge::TimeUp),
    ];
    let ended = (exit(), urge).prop_map(|(exit, urge)| AgentExit { exit, urge });
    (prop::option::of(ended), cause(), any::<i64>(), text(), changed).prop_map(
        |(exit, cause, at, evidence, changed)| Corpse {
            exit,
            cause,
            at: Millis(at),
            evidence,
            changed,
        },
    )
}

fn sighting() -> impl Strategy<Value = Sighting> {
    prop_oneof![
        3 => Just(Sighting::Elsewhere),
        1 => Just(Sighting::Alive),
        1 => corpse().prop_map(Sighting::Dead),
    ]
}

fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![
        (exit(), text()).prop_map(|(exit, tail)| Failure::Exit { exit, tail }),
        (exit(), text()).prop_map(|(exit, tail)| Failure::Verify { exit, tail }),
        any::<u64>().prop_map(|ms| Failure::Timeout { ms }),
        text().prop_map(|message| Failure::Landing { message }),
    ]
}

fn check() -> impl Strategy<Value = Check> {
    (text(), exit(), any::<u64>()).prop_map(|(command, exit, ms)| Check {
        command,
        exit,
        output: Hash::of(b"output"),
        ms,
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    let stage =
        prop::sample::select(vec![Stage::Unstarted, Stage::Agent, Stage::Verify, Stage::Land]);
    let truth = prop::sample::select(vec![Truth::Verified, Truth::Claimed, Truth::Unknown]);
    let haste = prop::sample::select(vec![Haste::Graceful, Haste::Now]);
    prop_oneof![
        12 => (0..STEPS.len(), any::<bool>(), sighting())
            .prop_map(|(step, here, sighting)| Ask::Claim { step, here, sighting }),
        8 => Just(Ask::Start),
        4 => (0..4_u64).prop_map(|changed| Ask::Checkpoint { changed }),
        6 => (truth, prop::option::of(check()))
            .prop_map(|(truth, check)| Ask::Verify { truth, check }),
        3 => Just(Ask::Land),
        6 => Just(Ask::Complete),
        2 => failure().prop_map(Ask::Fail),
        3 => (cause(), text(), stage).prop_map(|(cause, evidence, left_at)| {
            Ask::Interrupt { cause, evidence, left_at }
        }),
        3 => corpse().prop_map(Ask::Bury),
        1 => (any::<bool>(), cause(), haste)
            .prop_map(|(run, cause, haste)| Ask::Stop { run, cause, haste }),
        2 => any::<bool>().prop_map(|confirmed| Ask::Resume { confirmed }),
        2 => (0..90_u64).prop_map(Ask::Wait),
    ]
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let which = prop_oneof![
        8 => Just(Which::Current),
        1 => (1..9_u64).prop_map(Which::Older),
        1 => any::<u64>().prop_map(Which::Invented),
    ];
    let stray = prop_oneof![6 => Just(None), 1 => (0..STEPS.len()).prop_map(Some)];
    let one = (ask(), stray, which).prop_map(|(ask, stray, which)| Move { ask, stray, which });
    prop::collection::vec(one, 1..80)
}

/// The command that a move makes of the history, or nothing where only time passes.
fn command(history: &History, made: &Move, number: usize) -> Option<Command> {
    let held = history.run.held().next().map(|(step, _)| step.step);
    let step = match (made.stray, held) {
        (None, Some(held)) => StepRef::first(held),
        (stray, _) => StepRef::first(id(STEPS[stray.unwrap_or(number % STEPS.len())])),
    };
    let fence = match made.which {
        Which::Current => history.fence(step.step.as_str()),
        Which::Older(by) => Fence(history.fence(step.step.as_str()).0.saturating_sub(by)),
        Which::Invented(fence) => Fence(fence),
    };
    Some(match made.ask.clone() {
        Ask::Claim { step, here, sighting } => Command::Claim(Claim {
            step: StepRef::first(id(STEPS[step])),
            attempt: AttemptId(Uuid::from_u128(number as u128)),
            holder: Holder::Keeper {
                host: host(if here { "here" } else { "there" }),
                boot: BootId("boot".to_owned()),
            },
            until: history.now.after(Duration::from_secs(60)),
            sighting,
        }),
        Ask::Start => Command::Start { step, fence, base: oid(3) },
        Ask::Checkpoint { changed } => {
            let snapshot = Snapshot {
                commit: oid(50 + u128::from(changed)),
                tree: oid(60 + u128::from(changed)),
                refname: format!("refs/piton/x/{number}"),
                changed,
                omitted: Vec::new(),
                reason: SnapshotReason::Cadence,
            };
            Command::Checkpoint { step, fence, snapshot }
        }
        Ask::Verify { truth, check } => {
            Command::Verify { step, fence, commit: oid(4), tree: oid(5), truth, check }
        }
        Ask::Land => Command::Land { step, fence, onto: oid(3), to: oid(4) },
        Ask::Complete => Command::Complete { step, fence, commit: oid(4) },
        Ask::Fail(why) => Command::Fail { step, fence, why },
        Ask::Interrupt { cause, evidence, left_at } => {
            let at = history.now.wall;
            Command::Interrupt { step, fence, cause, at, evidence, left_at }
        }
        Ask::Bury(corpse) => Command::Bury { step, fence, corpse },
        Ask::Stop { run: true, cause, haste } => Command::Stop { scope: Scope::Run, cause, haste },
        Ask::Stop { run: false, cause, haste } => {
            Command::Stop { scope: Scope::Attempt { step, fence }, cause, haste }
        }
        Ask::Resume { confirmed } => Command::Resume { host: host("here"), confirmed },
        Ask::Wait(_) => return None,
    })
}

/// What must hold after every move, told from the events alone.
#[derive(Default)]
struct Beside {
    open: BTreeMap<StepId, Fence>,
    last_fence: u64,
    completed: BTreeMap<StepId, String>,
    agent_ended: BTreeMap<StepId, bool>,
}

impl Beside {
    fn heard(&mut self, event: &Event, position: u64) {
        let step = event.step().map(|step| step.step.clone());
        if let Some(step) = &step {
            assert!(!self.completed.contains_key(step), "{step} was completed: {event:?}");
        }
        match event {
            Event::Claimed(claimed) => self.claimed(claimed, position),
            Event::RunOpened(_) | Event::Resumed { .. } => {}
            Event::StopRequested { scope: Scope::Run, .. } => {}
            other => {
                let step = step.expect("it is about a step");
                let fence = fence_of(other).expect("and carries a fence");
                assert_eq!(self.open.get(&step), Some(&fence), "the fence is the current one");
                self.under_claim(other, step);
            }
        }
    }

    fn claimed(&mut self, claimed: &piton_core::event::Claimed, position: u64) {
        let step = &claimed.step.step;
        assert!(position > self.last_fence, "fences grow");
        self.last_fence = position;
        match claimed.grounds {
            Grounds::Free => assert!(self.open.is_empty(), "one open claim per run"),
            Grounds::LeaseOver => assert_eq!(self.open.keys().collect::<Vec<_>>(), [step]),
        }
        let ended = self.agent_ended.get(step).copied().unwrap_or(false);
        if matches!(claimed.entry, Entry::Fresh | Entry::Continue) {
            assert!(!ended, "the agent of {step} had ended");
        }
        self.open.insert(step.clone(), Fence(position));
    }

    fn under_claim(&mut self, event: &Event, step: StepId) {
        match event {
            Event::Verified { .. } => {
                self.agent_ended.insert(step, true);
            }
            Event::Interrupted { left_at, .. } => {
                self.agent_ended.insert(step.clone(), *left_at >= Stage::Verify);
                self.open.remove(&step);
            }
            // Started by its holder once more: that the rules allow.
            Event::Failed { .. } => {
                self.agent_ended.insert(step.clone(), false);
                self.open.remove(&step);
            }
            Event::Started { .. } => {
                self.agent_ended.insert(step, false);
            }
            Event::Completed { .. } => {
                self.open.remove(&step);
                self.completed.insert(step, String::new());
            }
            _ => {}
        }
    }
}

fn fence_of(event: &Event) -> Option<Fence> {
    match event {
        Event::Started { fence, .. }
        | Event::Checkpointed { fence, .. }
        | Event::Verified { fence, .. }
        | Event::LandingIntended { fence, .. }
        | Event::Completed { fence, .. }
        | Event::Failed { fence, .. }
        | Event::Interrupted { fence, .. }
        | Event::StopRequested { scope: Scope::Attempt { fence, .. }, .. } => Some(*fence),
        _ => None,
    }
}

/// Everything that only looks must answer, whatever was seen.
fn look(history: &History, sighting: &Sighting) {
    for observed in [Observed::default(), history.seeing(sighting)] {
        let shown = view(&history.run, &observed, &history.leases, &history.now);
        assert_eq!(shown.steps.len(), STEPS.len());
        serde_json::to_string(&shown).unwrap();
        let mends = recover(&history.run, &observed, &history.leases, &history.now);
        assert_eq!(mends.len(), STEPS.len());
    }
    ready(&history.run, &history.leases, &history.now);
    for (_, step) in history.run.steps() {
        for entry in [Entry::Fresh, Entry::Continue] {
            prompt("Do it.", step, entry, &TreeFacts::default());
        }
    }
}

/// All that a fold can change, as text.
fn folded(run: &Run) -> String {
    let steps: Vec<_> = run.steps().map(|(_, step)| step).collect();
    format!("{:?} {:?} {:?} {steps:?}", run.cursor, run.changed_at, run.stop)
}

/// The invariants that speak about the folded state.
fn hold(history: &History, completed: &mut BTreeMap<String, String>) {
    assert!(history.run.held().count() <= 1, "one worktree, one open claim");
    for (plan, step) in history.run.steps() {
        if let Phase::Completed { .. } = &step.phase {
            let told = format!("{step:?}");
            let before = completed.entry(plan.id.to_string()).or_insert_with(|| told.clone());
            assert_eq!(*before, told, "a completed step never changes");
        }
        if let Phase::Held(attempt) = &step.phase {
            let index = history.run.plan().index_of(&plan.id).unwrap();
            assert!(history.run.unmet(index).is_empty(), "needs are met at a claim and stay met");
            assert!(attempt.fence.0 <= history.run.cursor.position.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_stay_lawful(moves in moves(), seen in sighting()) {
        let mut history = history();
        let mut beside = Beside::default();
        let mut completed = BTreeMap::new();
        for (number, made) in moves.iter().enumerate() {
            if let Ask::Wait(seconds) = made.ask {
                history.pass(Duration::from_secs(seconds));
            }
            let Some(command) = command(&history, made, number) else { continue };
            let (records, told) = (history.records.len(), folded(&history.run));
            match history.submit(&command) {
                Err(_) => {
                    prop_assert_eq!(history.records.len(), records);
                    prop_assert_eq!(folded(&history.run), told);
                }
                Ok(events) => for (event, record) in events.iter().zip(&history.records[records..]) {
                    prop_assert_eq!(&Event::from_body(&record.body).unwrap(), event);
                    prop_assert_eq!(&event.to_body(), &record.body);
                    beside.heard(event, record.position.0);
                },
            }
            hold(&history, &mut completed);
            look(&history, &seen);
        }
        prop_assert_eq!(folded(&history.replayed()), folded(&history.run));
    }
}
