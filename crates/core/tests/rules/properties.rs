//! Properties over random histories: keepers and people outside, commands with right, stale and
//! invented fences, sightings that lie, clocks that jump. Whatever is asked, the log stays one that
//! the rules can have written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use piton_core::brief::{TreeFacts, prompt};
use piton_core::claim::{Claim, Takeover, Which, believed_until, claimable, count_ready, ready};
use piton_core::decide::{Command, Request};
use piton_core::event::{
    Cause, Check, Claimed, Entry, Event, Exit, Fact, Failure, Grounds, Haste, Holder, Interruption,
    LandingIntent, Mark, Priority, Report, Scope, Snapshot, SnapshotReason, Stage, Terms, Truth,
    Under,
};
use piton_core::exit::{AgentExit, StopRequest};
use piton_core::ids::{
    AttemptId, BootId, Fence, Hash, HostId, ItemRef, OutputName, QuestionId, StepId, StepRef,
    SubstepId, TreeNo,
};
use piton_core::observed::{Corpse, Observed, Sighting};
use piton_core::plan::Plan;
use piton_core::question::WhichQuestion;
use piton_core::recover::{Action, recover};
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, Phase, Run};
use piton_core::time::Millis;
use piton_core::view::view;
use proptest::prelude::*;
use uuid::Uuid;

use crate::history::{History, at, host, id, item, oid, outside, plan, repacked};

const STEPS: [&str; 5] = ["a", "b", "c", "d", "e"];
const ITEMS: [&str; 6] = ["1", "2", "3", "one.1", "two.1", "nowhere.1"];
const QUESTIONS: [&str; 3] = ["which?", "how?", "  "];
const ANSWERS: [&str; 6] = ["this", "2", "that", "", "continue", "stop"];
const PARTS: [&str; 3] = ["one", "two", "nowhere"];

fn history() -> History {
    History::open(plan(
        "a agent retries=2 in=g locks=l
         b command retries=1 needs=a in=g then=ask
         c agent retries=3 then=restart items=2 parts=one:1,two:1 locks=l,m
         d agent needs=g,c locks=m then=ask
         e hand items=1 parts=one:1 locks=m
         lock m 2",
    ))
}

/// Which fence a command is given.
#[derive(Debug, Clone, Copy)]
enum Given {
    /// The one the step has, or had last.
    Current,
    Older(u64),
    Invented(u64),
}

/// One random ask; what it needs of the history is filled in when it is made.
#[derive(Debug, Clone)]
enum Try {
    Claim { step: Option<usize>, holder: Holder, sighting: Sighting, takeover: Takeover },
    Start { based: bool, told: bool },
    Question { text: usize, choices: bool },
    Answer { answer: usize },
    Read,
    Suspend,
    Checkpoint { changed: Option<u64>, note: Option<String> },
    Substep(usize),
    Gap(String),
    Items { items: Vec<usize>, mark: Mark },
    Verify { check: Option<Check> },
    Land,
    Complete { landed: bool, waive: Option<String> },
    Release { force: bool },
    Reset { reason: Option<String> },
    Fail(Failure),
    Interrupt { cause: Cause, evidence: String, left_at: Stage },
    Bury(Corpse),
    Expire,
    Stop { run: bool, cause: Cause, haste: Haste },
    Resume { confirmed: bool, terms: Terms },
    Heartbeat,
    Wait(u64),
}

#[derive(Debug, Clone)]
struct Move {
    ask: Try,
    /// Another step than one that is held.
    stray: Option<usize>,
    given: Given,
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
        Cause::Obstacle,
        Cause::Unknown,
    ])
}

fn corpse() -> impl Strategy<Value = Corpse> {
    let changed = prop::option::of(0..4_u64);
    let urge = prop_oneof![
        3 => Just(StopRequest::Nothing),
        1 => cause().prop_map(StopRequest::Stop),
        1 => any::<u64>().prop_map(|ms| StopRequest::TimeUp { ms }),
    ];
    let ended = (exit(), urge).prop_map(|(exit, stop)| AgentExit { exit, stop });
    (prop::option::of(ended), cause(), any::<i64>(), text(), changed).prop_map(
        |(exit, cause, at, evidence, changed)| Corpse {
            exit,
            heard: None,
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
        text().prop_map(|reason| Failure::Reported { reason }),
        text().prop_map(|open| Failure::Unfinished { open }),
        text().prop_map(|value| {
            let (output, bound) = (OutputName::new("score").unwrap(), ">= 0.8".parse().unwrap());
            Failure::Output { output, value, bound }
        }),
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

fn holder() -> impl Strategy<Value = Holder> {
    let on = prop::sample::select(vec!["here", "there"]);
    let worktree = prop::option::of(prop::sample::select(vec!["x", "y"]));
    (on, worktree).prop_map(|(on, worktree)| match worktree {
        Some(worktree) => outside(on, worktree),
        None => Holder::Keeper { host: host(on), boot: BootId("boot".to_owned()) },
    })
}

fn claim() -> impl Strategy<Value = Try> {
    let step = prop::option::of(0..STEPS.len());
    let takeover = prop_oneof![4 => Just(Takeover::Forbid), 1 => Just(Takeover::Force)];
    (step, holder(), sighting(), takeover).prop_map(|(step, holder, sighting, takeover)| {
        Try::Claim { step, holder, sighting, takeover }
    })
}

fn about_the_checklist() -> impl Strategy<Value = Try> {
    let mark = prop_oneof![
        2 => Just(Mark::Done),
        1 => text().prop_map(|reason| Mark::Deferred { reason }),
    ];
    let items = prop::collection::vec(0..ITEMS.len(), 1..4);
    prop_oneof![
        2 => (0..PARTS.len()).prop_map(Try::Substep),
        1 => text().prop_map(Try::Gap),
        4 => (items, mark).prop_map(|(items, mark)| Try::Items { items, mark }),
    ]
}

fn about_questions() -> impl Strategy<Value = Try> {
    let question = (0..QUESTIONS.len(), any::<bool>());
    prop_oneof![
        3 => question.prop_map(|(text, choices)| Try::Question { text, choices }),
        3 => (0..ANSWERS.len()).prop_map(|answer| Try::Answer { answer }),
        1 => Just(Try::Read),
        2 => Just(Try::Suspend),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let steps = prop::collection::btree_set(prop::sample::select(STEPS.to_vec()), 0..3);
    let jobs = prop::option::of(1..4_u32);
    let threshold = prop::option::of(0..=100_u8);
    let flags = (any::<bool>(), any::<bool>());
    (steps, jobs, flags, threshold).prop_map(|(steps, jobs, (restart, no_wait), threshold)| {
        let steps = steps.into_iter().map(at).collect();
        Terms { steps, jobs, restart, threshold, no_wait, max_iterations: None }
    })
}

fn ask() -> impl Strategy<Value = Try> {
    let stage =
        prop::sample::select(vec![Stage::Unstarted, Stage::Agent, Stage::Verify, Stage::Land]);
    let haste = prop::sample::select(vec![Haste::Graceful, Haste::Now]);
    prop_oneof![
        14 => claim(),
        8 => (any::<bool>(), any::<bool>())
            .prop_map(|(based, told)| Try::Start { based, told }),
        6 => about_questions(),
        4 => (prop::option::of(0..4_u64), prop::option::of(text()))
            .prop_map(|(changed, note)| Try::Checkpoint { changed, note }),
        8 => about_the_checklist(),
        6 => prop::option::of(check()).prop_map(|check| Try::Verify { check }),
        3 => Just(Try::Land),
        8 => (any::<bool>(), prop::option::of(text()))
            .prop_map(|(landed, waive)| Try::Complete { landed, waive }),
        3 => any::<bool>().prop_map(|force| Try::Release { force }),
        2 => prop::option::of(text()).prop_map(|reason| Try::Reset { reason }),
        2 => failure().prop_map(Try::Fail),
        3 => (cause(), text(), stage).prop_map(|(cause, evidence, left_at)| {
            Try::Interrupt { cause, evidence, left_at }
        }),
        3 => corpse().prop_map(Try::Bury),
        1 => Just(Try::Expire),
        1 => (any::<bool>(), cause(), haste)
            .prop_map(|(run, cause, haste)| Try::Stop { run, cause, haste }),
        2 => (any::<bool>(), terms()).prop_map(|(confirmed, terms)| Try::Resume { confirmed, terms }),
        3 => Just(Try::Heartbeat),
        3 => (0..90_u64).prop_map(Try::Wait),
    ]
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let given = prop_oneof![
        8 => Just(Given::Current),
        1 => (1..9_u64).prop_map(Given::Older),
        1 => any::<u64>().prop_map(Given::Invented),
    ];
    let stray = prop_oneof![6 => Just(None), 1 => (0..STEPS.len()).prop_map(Some)];
    let one = (ask(), stray, given).prop_map(|(ask, stray, given)| Move { ask, stray, given });
    prop::collection::vec(one, 1..100)
}

/// The step and the fence that a move is about: one that is held, or a stray one.
fn aim(history: &History, made: &Move, number: usize) -> (StepRef, Fence) {
    let held: Vec<StepId> = history.run.held().map(|(step, _)| step.step).collect();
    let step = match made.stray {
        None if !held.is_empty() => held[number % held.len()].clone(),
        stray => id(STEPS[stray.unwrap_or(number % STEPS.len())]),
    };
    let fence = match made.given {
        Given::Current => history.fence(step.as_str()),
        Given::Older(by) => Fence(history.fence(step.as_str()).0.saturating_sub(by)),
        Given::Invented(fence) => Fence(fence),
    };
    (StepRef::first(step), fence)
}

/// The command that a move makes of the history, or nothing where none is submitted.
fn command(history: &History, made: &Move, number: usize) -> Option<Command> {
    let (step, fence) = aim(history, made, number);
    Some(match made.ask.clone() {
        Try::Claim { step, holder, sighting, takeover } => Command::Claim(Claim {
            which: step.map_or(Which::First, |step| Which::Step(at(STEPS[step]))),
            attempt: AttemptId(Uuid::from_u128(number as u128)),
            until: history.now.after(Duration::from_secs(60)),
            observed: Observed { host: holder.host().clone(), ..history.seeing(&sighting) },
            holder,
            takeover,
            pid: None,
        }),
        Try::Start { based, told } => {
            let state = history.run.step(&step).map(|(_, state)| state).filter(|_| told);
            let unread = state.iter().flat_map(|state| state.unread_answers());
            let answers = unread.map(|question| question.id).collect();
            Command::Under(
                Under { step, fence },
                Request::Start { base: based.then(|| oid(3)), answers, pid: None },
            )
        }
        Try::Question { text, choices } => {
            let choices: &[&str] = if choices { &["this", "that"] } else { &[] };
            let choices = choices.iter().map(|choice| (*choice).to_owned()).collect();
            Command::Under(
                Under { step, fence },
                Request::RaiseQuestion { text: QUESTIONS[text].to_owned(), choices },
            )
        }
        Try::Answer { answer } => {
            let all: Vec<QuestionId> = history.run.questions().map(|(_, asked)| asked.id).collect();
            let question = match all.len() {
                0 => WhichQuestion::Of(step),
                count => WhichQuestion::Id(all[number % count]),
            };
            Command::Answer { question, answer: ANSWERS[answer].to_owned(), host: host("here") }
        }
        Try::Read => {
            let questions = history.run.questions().map(|(_, asked)| asked.id).collect();
            Command::Under(Under { step, fence }, Request::ApplyAnswers { questions })
        }
        Try::Suspend => Command::Under(Under { step, fence }, Request::Suspend),
        Try::Checkpoint { changed, note } => {
            let snapshot = changed.map(|changed| Snapshot {
                commit: oid(50 + u128::from(changed)),
                tree: oid(60 + u128::from(changed)),
                refname: format!("refs/piton/x/{number}"),
                changed,
                omitted: Vec::new(),
                reason: SnapshotReason::Cadence,
                head: None,
                commits: 0,
            });
            let report =
                note.map(|note| Box::new(Report { note: Some(note), ..Report::default() }));
            Command::Under(Under { step, fence }, Request::Checkpoint { snapshot, report })
        }
        Try::Substep(part) => {
            let substep = SubstepId::new(PARTS[part]).unwrap();
            Command::Under(Under { step, fence }, Request::CompleteSubstep { substep })
        }
        Try::Gap(text) => Command::Under(
            Under { step, fence },
            Request::AddItem { text, priority: Priority::default() },
        ),
        Try::Items { items, mark } => {
            let items = items.iter().map(|number| item(ITEMS[*number])).collect();
            Command::Under(Under { step, fence }, Request::MarkItems { items, mark })
        }
        Try::Verify { check } => {
            let (commit, tree, commits, omitted) = (oid(4), oid(5), 0, Vec::new());
            Command::Under(
                Under { step, fence },
                Request::Verify { commit, tree, check, commits, omitted, iteration: None },
            )
        }
        Try::Land => Command::Under(
            Under { step, fence },
            Request::Land(LandingIntent { onto: oid(3), to: oid(4) }),
        ),
        Try::Complete { landed, waive } => Command::Under(
            Under { step, fence },
            Request::Complete { commit: landed.then(|| oid(4)), waive },
        ),
        Try::Release { force: true } => Command::ForceRelease { step },
        Try::Release { force: false } => Command::Under(Under { step, fence }, Request::Release),
        Try::Reset { reason } => Command::Reset { step, reason },
        Try::Fail(why) => Command::Under(Under { step, fence }, Request::Fail { why }),
        Try::Interrupt { cause, evidence, left_at } => {
            let at = history.now.wall;
            Command::Under(
                Under { step, fence },
                Request::Interrupt(Interruption { cause, at, evidence, left_at }),
            )
        }
        Try::Bury(corpse) => Command::Under(Under { step, fence }, Request::Bury(corpse)),
        Try::Expire => Command::Under(Under { step, fence }, Request::Expire),
        Try::Stop { run: true, cause, haste } => Command::Stop { scope: Scope::Run, cause, haste },
        Try::Stop { run: false, cause, haste } => {
            Command::Stop { scope: Scope::Attempt(Under { step, fence }), cause, haste }
        }
        Try::Resume { confirmed, terms } => {
            Command::Resume { host: host("here"), confirmed, terms }
        }
        Try::Heartbeat | Try::Wait(_) => return None,
    })
}

/// What must hold after every move, told from the events alone.
#[derive(Default)]
struct Beside {
    open: BTreeMap<StepId, (Fence, Holder)>,
    /// Which step has which tree.
    trees: BTreeMap<(HostId, TreeNo), StepId>,
    last_fence: u64,
    completed: BTreeSet<StepId>,
    /// Left out by an answer.
    skipped: BTreeSet<StepId>,
    agent_ended: BTreeSet<StepId>,
    parts: BTreeMap<StepId, Parts>,
    /// What was asked and not voided: by whom, and whether somebody answered.
    asked: BTreeMap<QuestionId, (StepId, Fence, bool)>,
    applied: BTreeSet<QuestionId>,
}

/// What is done of a step's checklist.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    substeps: BTreeSet<SubstepId>,
    gaps: usize,
    done: BTreeSet<ItemRef>,
    deferred: BTreeSet<ItemRef>,
}

impl Parts {
    /// Given back: what is deferred stays so only where its substep is completed.
    fn reopen(&mut self) {
        let settled =
            |item: &ItemRef| item.substep.as_ref().is_some_and(|of| self.substeps.contains(of));
        self.deferred.retain(settled);
    }
}

impl Beside {
    fn heard(&mut self, event: &Event, position: u64, plan: &Plan) {
        let Some(step) = event.step().map(|step| step.step.clone()) else { return };
        match event {
            Event::Reset { reason, .. } => {
                assert!(!self.open.contains_key(&step), "{step} is held: {event:?}");
                assert!(reason.is_some() || !self.completed.contains(&step), "{step} needs one");
                self.completed.remove(&step);
                self.skipped.remove(&step);
                self.trees.retain(|_, owner| *owner != step);
                self.agent_ended.remove(&step);
                self.void(&step);
                self.parts.entry(step).or_default().reopen();
                return;
            }
            _ => assert!(!self.completed.contains(&step), "{step} was completed: {event:?}"),
        }
        match event {
            Event::Claimed(claimed) => self.claimed(claimed, position, plan),
            Event::Answered { question, .. } => {
                let asked = self.asked.get_mut(question).expect("it was asked");
                assert!(!asked.2, "{question} is answered once");
                asked.2 = true;
            }
            Event::Skipped { .. } => {
                assert!(!self.open.contains_key(&step), "{step} is held: {event:?}");
                self.trees.retain(|_, owner| *owner != step);
                self.agent_ended.remove(&step);
                self.void(&step);
                self.skipped.insert(step);
            }
            // piton itself asks once the attempt is over.
            Event::Under(Under { fence, .. }, Fact::Asked { about: Some(_), .. }) => {
                assert!(!self.open.contains_key(&step), "{step} is held: {event:?}");
                self.asked.insert(QuestionId(position), (step, *fence, false));
            }
            other => {
                let fence = other.fence().expect("it carries a fence");
                let open = self.open.get(&step).map(|(fence, _)| *fence);
                assert_eq!(open, Some(fence), "the fence is the current one");
                if let Event::Under(_, Fact::Completed { waived: None, .. }) = other {
                    assert_eq!(self.open_part(&step, plan), None, "a part of {step} is open");
                }
                if let Event::Under(_, Fact::Asked { .. }) = other {
                    self.asked.insert(QuestionId(position), (step.clone(), fence, false));
                }
                self.told(other, &step, fence);
                self.under_claim(other, step);
            }
        }
    }

    /// An answer is told once; who has asked and was not told is neither done nor failed.
    fn told(&mut self, event: &Event, step: &StepId, fence: Fence) {
        let told: &[QuestionId] = match event {
            Event::Under(_, Fact::Started { answers, .. }) => answers,
            Event::Under(_, Fact::AnswersApplied { questions, .. }) => questions,
            _ => &[],
        };
        for question in told {
            let (of, _, answered) = &self.asked[question];
            assert!(of == step && *answered, "{question} of {step} is answered");
            assert!(self.applied.insert(*question), "{question} is applied once");
        }
        let waits = self.asked.iter().any(|(question, (of, by, _))| {
            of == step && *by == fence && !self.applied.contains(question)
        });
        let kept = matches!(self.open.get(step), Some((_, Holder::Keeper { .. })));
        match event {
            Event::Under(_, Fact::Suspended { .. }) => assert!(waits, "{step} waits for nothing"),
            Event::Under(_, Fact::Failed { why: Failure::Reported { .. }, .. }) => {}
            Event::Under(_, Fact::Failed { .. }) => {
                assert!(!waits, "{step} waits and has not failed")
            }
            Event::Under(_, Fact::Verified { .. }) => {
                assert!(!(kept && waits), "{step} waits and is not done")
            }
            Event::Under(_, Fact::Completed { waived: None, .. }) if !kept => {
                assert!(!waits, "{step} waits")
            }
            _ => {}
        }
    }

    /// Nobody waits for the answers any more.
    fn void(&mut self, step: &StepId) {
        self.asked.retain(|_, (of, _, answered)| of != step || *answered);
    }

    fn claimed(&mut self, claimed: &Claimed, position: u64, plan: &Plan) {
        let step = &claimed.step.step;
        assert!(position > self.last_fence, "fences grow");
        self.last_fence = position;
        let open = self.asked.values().any(|(of, _, answered)| of == step && !answered);
        assert!(!open, "{step} is claimed although its question is open");
        let needs = plan.needs_of(plan.index_of(step).unwrap());
        let is_done = |step: &StepId| self.completed.contains(step) || self.skipped.contains(step);
        let met = |need: &usize| is_done(&plan.steps[*need].id);
        assert!(needs.iter().all(met), "{step} is claimed before its needs are met");
        let before = self.open.remove(step);
        assert_eq!(claimed.displaces, before.as_ref().map(|(fence, _)| *fence));
        match claimed.grounds {
            Grounds::Free => assert!(before.is_none(), "{step} was free"),
            Grounds::SameOwner => assert_eq!(before.unwrap().1, claimed.holder),
            Grounds::LeaseOver | Grounds::Forced => assert!(before.is_some(), "{step} was held"),
        }
        let kept = |holder: &Holder| matches!(holder, Holder::Keeper { .. });
        if kept(&claimed.holder) {
            let place = (claimed.holder.host().clone(), claimed.tree.expect("a keeper has a tree"));
            let owner = self.trees.get(&place);
            assert!(owner.is_none_or(|owner| owner == step), "{place:?} is another step's");
            self.trees.retain(|_, owner| owner != step);
            self.trees.insert(place, step.clone());
            if matches!(claimed.entry, Entry::Fresh | Entry::Continue) {
                // Unless it had left something open, or was not told an answer: then nothing lands.
                let untold = self.asked.iter().any(|(question, (of, _, answered))| {
                    of == step && *answered && !self.applied.contains(question)
                });
                let open = untold || self.open_part(step, plan).is_some();
                assert!(open || !self.agent_ended.contains(step), "the agent of {step} had ended");
                self.agent_ended.remove(step);
            }
            if claimed.entry == Entry::Land {
                assert_eq!(self.open_part(step, plan), None, "what lands can be completed");
            }
        } else {
            assert!(matches!(claimed.entry, Entry::Fresh | Entry::Continue));
            self.agent_ended.remove(step);
        }
        let parts = self.parts.entry(step.clone()).or_default();
        let Parts { substeps, deferred, .. } = parts;
        deferred.retain(|item| item.substep.as_ref().is_none_or(|part| substeps.contains(part)));
        self.open.insert(step.clone(), (Fence(position), claimed.holder.clone()));
    }

    /// Some part of a step that is open.
    fn open_part(&self, step: &StepId, plan: &Plan) -> Option<String> {
        let none = Parts::default();
        let parts = self.parts.get(step).unwrap_or(&none);
        let recipe = &plan.steps[plan.index_of(step).unwrap()];
        let substeps = || recipe.substeps.iter();
        if let Some(part) = substeps().find(|part| !parts.substeps.contains(&part.id)) {
            return Some(part.id.to_string());
        }
        let own = (1..).take(recipe.items.len() + parts.gaps).map(|n| ItemRef::new(None, n));
        let below = substeps().flat_map(|part| {
            let numbers = (1..).take(part.items.len());
            numbers.map(|number| ItemRef::new(Some(part.id.clone()), number))
        });
        let marked = |item: &ItemRef| parts.done.contains(item) || parts.deferred.contains(item);
        own.chain(below).find(|item| !marked(item)).map(|item| item.to_string())
    }

    fn under_claim(&mut self, event: &Event, step: StepId) {
        let parts = self.parts.entry(step.clone()).or_default();
        match event {
            Event::Under(_, Fact::SubstepCompleted { substep, .. }) => {
                parts.substeps.insert(substep.clone());
            }
            Event::Under(_, Fact::ItemAdded { .. }) => parts.gaps += 1,
            Event::Under(_, Fact::ItemsMarked { items, mark, .. }) => {
                let (into, out_of) = match mark {
                    Mark::Done => (&mut parts.done, &mut parts.deferred),
                    Mark::Deferred { .. } => (&mut parts.deferred, &mut parts.done),
                };
                into.extend(items.iter().cloned());
                out_of.retain(|item| !items.contains(item));
            }
            Event::Under(_, Fact::Verified { .. }) => {
                self.agent_ended.insert(step);
            }
            Event::Under(_, Fact::Interrupted(Interruption { left_at, .. })) => {
                if *left_at >= Stage::Verify {
                    self.agent_ended.insert(step.clone());
                } else {
                    self.agent_ended.remove(&step);
                }
                self.open.remove(&step);
            }
            // Started by its holder once more: that the rules allow.
            Event::Under(_, Fact::Started { .. }) => {
                self.agent_ended.remove(&step);
            }
            Event::Under(_, Fact::Failed { .. }) => {
                self.agent_ended.remove(&step);
                self.open.remove(&step);
            }
            Event::Under(_, Fact::Suspended { .. }) => {
                self.agent_ended.remove(&step);
                self.open.remove(&step);
            }
            Event::Under(_, Fact::Released { .. }) => {
                self.asked.retain(|_, (of, _, answered)| *of != step || *answered);
                parts.reopen();
                self.agent_ended.remove(&step);
                self.open.remove(&step);
            }
            Event::Under(_, Fact::Completed { .. }) => {
                self.asked.retain(|_, (of, _, answered)| *of != step || *answered);
                self.open.remove(&step);
                self.trees.retain(|_, owner| *owner != step);
                self.completed.insert(step);
            }
            _ => {}
        }
    }

    /// The fold tells the same.
    fn agrees(&self, run: &Run) {
        for (_, plan, step) in run.steps() {
            assert_eq!(step.is_completed(), self.completed.contains(&plan.id));
            assert_eq!(step.attempt().map(|open| open.fence), self.open.get(&plan.id).map(|o| o.0));
            let mut told = Parts::default();
            told.substeps.extend(step.checklist.completed.iter().cloned());
            told.gaps = step.checklist.added.len();
            for (item, mark) in &step.checklist.marks {
                match mark {
                    Mark::Done => told.done.insert(item.clone()),
                    Mark::Deferred { .. } => told.deferred.insert(item.clone()),
                };
            }
            assert_eq!(self.parts.get(&plan.id).unwrap_or(&Parts::default()), &told, "{}", plan.id);
        }
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
        let worker = Holder::Keeper { host: observed.host.clone(), boot: BootId(String::new()) };
        let asker = history.asker(&worker, &observed);
        for mend in mends {
            let answer = claimable(&history.run, &mend.step, &asker);
            let unmet = matches!(answer, Err(Refusal::NeedsUnmet { .. }));
            assert_eq!(mend.action == Action::AwaitNeeds, unmet, "{}: {answer:?}", mend.step);
        }
    }
    let keeper = Holder::Keeper { host: host("here"), boot: BootId("boot".to_owned()) };
    for holder in [keeper, outside("here", "x"), outside("there", "y")] {
        let observed = history.seeing(sighting);
        let asker = history.asker(&holder, &observed);
        let all = history.run.steps().map(|(step, _, _)| step);
        let one_by_one: Vec<StepRef> =
            all.filter(|step| claimable(&history.run, step, &asker).is_ok()).collect();
        assert_eq!(ready(&history.run, &asker), one_by_one);
        assert_eq!(count_ready(&history.run, &asker), one_by_one.len());
    }
    for (step, _, _) in history.run.steps() {
        for entry in [Entry::Fresh, Entry::Continue] {
            prompt(&history.run, &step, entry, &TreeFacts::default());
        }
    }
}

/// All that a fold can change, as text.
fn folded(run: &Run) -> String {
    let steps: Vec<_> = run.steps().map(|(_, _, step)| step).collect();
    format!("{:?} {:?} {:?} {steps:?}", run.cursor, run.changed_at, run.stop)
}

/// The invariants that speak about the folded state.
fn hold(history: &History) {
    let run = &history.run;
    let place = |held: &Attempt| Some((held.holder.host().clone(), held.tree?));
    let places: Vec<_> = run.held().filter_map(|(_, held)| place(held)).collect();
    let different: BTreeSet<_> = places.iter().collect();
    assert_eq!(different.len(), places.len(), "one worktree, one keeper");
    for (name, _, step) in run.steps() {
        if let Phase::Held { attempt, .. } = &step.phase {
            assert!(attempt.fence.0 <= run.cursor.position.0);
        }
        if let Phase::Completed { commit: None, truth, .. } = &step.phase {
            assert_eq!(*truth, Truth::Claimed, "nobody but the holder has seen {name} done");
        }
    }
    for (lock, slots) in [("l", 1), ("m", 2)] {
        let believed = run.held().filter(|(step, attempt)| {
            let (plan, _) = run.step(step).unwrap();
            plan.locks.iter().any(|held| held.as_str() == lock)
                && !believed_until(step, attempt, &history.leases).is_over(&history.now)
        });
        assert!(believed.count() <= slots, "lock {lock} has only {slots}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_stay_lawful(moves in moves(), seen in sighting()) {
        let mut history = history();
        let mut beside = Beside::default();
        // Folded by a process that loads it from the cache each time.
        let mut loaded = repacked(&history.run);
        for (number, made) in moves.iter().enumerate() {
            match made.ask {
                Try::Wait(seconds) => history.pass(Duration::from_secs(seconds)),
                Try::Heartbeat => {
                    let (step, fence) = aim(&history, made, number);
                    let current = history.run.held().any(|(held, attempt)| {
                        held == step && attempt.fence == fence
                    });
                    let renewed = history.heartbeat(&format!("{}@{fence}", step.step));
                    prop_assert!(current || !renewed, "a fence that is over renews nothing");
                }
                _ => {}
            }
            if let Some(command) = command(&history, made, number) {
                let (records, told) = (history.records.len(), folded(&history.run));
                match history.submit(&command) {
                    Err(_) => {
                        prop_assert_eq!(history.records.len(), records);
                        prop_assert_eq!(folded(&history.run), told);
                    }
                    Ok(events) => {
                        let appended = history.records[records..].iter();
                        for (event, record) in events.iter().zip(appended) {
                            prop_assert_eq!(&Event::from_body(&record.body).unwrap(), event);
                            prop_assert_eq!(&event.to_body(), &record.body);
                            beside.heard(event, record.position.0, history.run.plan());
                            loaded.apply(record).unwrap();
                        }
                        prop_assert!(loaded == history.run, "{loaded:?}");
                        loaded = repacked(&loaded);
                        prop_assert!(loaded == history.run, "{loaded:?}");
                    }
                }
            }
            beside.agrees(&history.run);
            hold(&history);
            look(&history, &seen);
        }
        prop_assert_eq!(folded(&history.replayed()), folded(&history.run));
        prop_assert!(history.replayed() == history.run);
    }
}
