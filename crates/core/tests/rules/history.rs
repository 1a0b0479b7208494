//! A run's log in memory, driven by commands written as text: what a store and the appender do, in a
//! few lines. `claim a, start a, verify a` is a history; `complete a@7` names a fence of its own, and
//! `claim a from x` is made by somebody who works in worktree `x`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use piton_core::agent::Dialect;
use piton_core::cache::{pack, unpack};
use piton_core::claim::{Asker, Claim, Takeover, Which, lease_key};
use piton_core::decide::{Command, Request, decide, open};
use piton_core::decided::{KeyChange, Lease};
use piton_core::dialect::{Said, Trouble, Turn};
use piton_core::event::{
    About, Cause, Check, CheckoutChanges, Conflict, Entry, Event, Exit, Fact, Failure, Grounds,
    Haste, Holder, Interruption, IterationCheck, LandingIntent, Mark, MergeIntent, Priority,
    ReleasedBy, Report, Repository, RunOpened, Scope, Snapshot, SnapshotReason, Stage, Terms,
    Under,
};
use piton_core::exit::{AgentExit, Heard, StopRequest};
use piton_core::ids::{
    AccountName, AgentName, AttemptId, BootId, Fence, GroupId, Handle, Hash, HostId, ItemRef,
    LockName, LoopId, Oid, OutputName, QuestionId, RunId, StepId, StepRef, SubstepId, TreeNo,
};
use piton_core::observed::{Corpse, Observed, Sighting};
use piton_core::plan::{
    Group, Isolation, Need, OnFailure, OnInterrupt, OnLimit, Plan, PlanLoop, PlanStep, PlanSubstep,
    Work,
};
use piton_core::question::WhichQuestion;
use piton_core::record::{Cursor, Record};
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, Run};
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
    pub(crate) key: KeyChange,
    pub(crate) plan: Arc<Plan>,
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
            base_branch: Some("main".to_owned()),
            inputs: BTreeMap::new(),
            settings: Hash::of(b"settings"),
            host: host("here"),
        };
        let now = Moment::wall(Millis(1_000_000));
        let decided = open(&plan, b"settings", opened, &[]);
        let body = decided.bodies()[0].clone();
        let first = Record::following(RUN, Cursor::START, now.wall, body);
        let run = Run::open(Arc::clone(&plan), &first).unwrap();
        History {
            run,
            records: vec![first],
            leases: Vec::new(),
            now,
            key: KeyChange::Kept,
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
            if !lease.until.is_over(&self.now) {
                self.leases.push(lease.clone());
            }
        }
        if decided.key() != KeyChange::Kept {
            self.key = decided.key();
        }
        Ok(events)
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    /// Plays commands separated by commas; stops at the first refusal.
    pub(crate) fn try_play(&mut self, script: &str) -> Result<(), Refusal> {
        for text in script.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            match text.split_once(' ') {
                Some(("wait", seconds)) => self.pass(Duration::from_secs(seconds.parse().unwrap())),
                Some(("heartbeat", name)) => drop(self.heartbeat(name)),
                _ => self.say(text).map(drop)?,
            }
        }
        Ok(())
    }

    /// What a store does about a renewal: only where key and fence match and the deadline grows.
    /// Says whether it was renewed.
    pub(crate) fn heartbeat(&mut self, name: &str) -> bool {
        let (step, fence) = self.named(name);
        let (key, until) = (lease_key(&step), self.now.after(LEASE));
        let mut rows = self.leases.iter_mut();
        match rows.find(|row| row.key == key && row.fence == fence) {
            Some(row) if until.is_later_than(&row.until) => {
                row.until = until;
                true
            }
            _ => false,
        }
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

    /// What the agent of a step says: for how many seconds its account has met a limit, or what else is wrong
    /// with it. `fake` and `twin` share an account.
    fn heard(&self, step: &StepRef, words: &[&str]) -> Heard {
        let agent = self.run.step(step).and_then(|(plan, _)| plan.work.agent()).unwrap();
        let account = if agent.as_str() == "twin" { "fake" } else { agent.as_str() };
        let trouble = match words[0] {
            "spend" => Trouble::Spend,
            "sign-in" => Trouble::SignIn,
            _ => Trouble::Limit,
        };
        let turn = Some(Turn::Failed { trouble: Some(trouble), message: "no more".to_owned() });
        let seconds = words[0].parse().ok().map(Duration::from_secs);
        let names: &[&str] = if account == "fake" { &["fake", "twin"] } else { &[account] };
        Heard {
            dialect: Dialect::Claude,
            said: Said { turn, ..Said::default() },
            account: AccountName::new(account).unwrap(),
            agents: names.iter().map(|name| AgentName::new(*name).unwrap()).collect(),
            resets_at: seconds.map(|wait| self.now.wall.after(wait)),
            jitter: 0,
        }
    }

    /// A command from its text.
    pub(crate) fn command(&self, text: &str) -> Command {
        let words: Vec<&str> = text.split_whitespace().collect();
        let rest = &words[2.min(words.len())..];
        let (step, fence) = match words.get(1) {
            Some(name) if !matches!(words[0], "resume" | "retry") && *name != "run" => {
                self.named(name)
            }
            _ => (at("none"), Fence(0)),
        };
        match words[0] {
            "claim" => Command::Claim(self.claim(words[1], rest)),
            "renew" => {
                let held = self.run.step(&step).and_then(|(_, state)| state.attempt());
                let place = held.and_then(|held| self.outside().remove(&held.id));
                Command::Under(
                    Under { step, fence },
                    Request::Renew { until: self.now.after(LEASE), place },
                )
            }
            "start" => {
                let answers = self.unread(&step);
                Command::Under(
                    Under { step, fence },
                    Request::Start { base: Some(oid(3)), answers, pid: None },
                )
            }
            "start-untold" => Command::Under(
                Under { step, fence },
                Request::Start { base: Some(oid(3)), answers: Vec::new(), pid: None },
            ),
            "ask" => Command::Under(
                Under { step, fence },
                Request::RaiseQuestion { text: rest.join(" "), choices: Vec::new() },
            ),
            "choose" => {
                let choices = rest[1..].iter().map(|choice| (*choice).to_owned()).collect();
                Command::Under(
                    Under { step, fence },
                    Request::RaiseQuestion { text: rest[0].to_owned(), choices },
                )
            }
            "answer" => Command::Answer {
                question: match words[1].parse() {
                    Ok(question) => WhichQuestion::Id(question),
                    Err(_) => WhichQuestion::Of(step),
                },
                answer: rest.join(" "),
                host: host("here"),
            },
            "read" => {
                let questions = self.unread(&step);
                Command::Under(Under { step, fence }, Request::ApplyAnswers { questions })
            }
            "suspend" => Command::Under(Under { step, fence }, Request::Suspend),
            "checkpoint" => {
                let snapshot = Some(snapshot(rest[0].parse().unwrap()));
                Command::Under(
                    Under { step, fence },
                    Request::Checkpoint { snapshot, report: None },
                )
            }
            "set-aside" => {
                let reason = SnapshotReason::Reset;
                let snapshot = Some(Snapshot { reason, ..snapshot(rest[0].parse().unwrap()) });
                Command::Under(
                    Under { step, fence },
                    Request::Checkpoint { snapshot, report: None },
                )
            }
            "progress" => {
                let report = Report { progress: rest[0].parse().ok(), ..Report::default() };
                Command::Under(
                    Under { step, fence },
                    Request::Checkpoint { snapshot: None, report: Some(Box::new(report)) },
                )
            }
            "note" => {
                let report = Report { note: Some(rest.join(" ")), ..Report::default() };
                Command::Under(
                    Under { step, fence },
                    Request::Checkpoint { snapshot: None, report: Some(Box::new(report)) },
                )
            }
            "session" => {
                let report = Report { session: Some(rest.join(" ")), ..Report::default() };
                Command::Under(
                    Under { step, fence },
                    Request::Checkpoint { snapshot: None, report: Some(Box::new(report)) },
                )
            }
            "substep" => Command::Under(
                Under { step, fence },
                Request::CompleteSubstep { substep: substep(rest[0]) },
            ),
            "gap" => {
                let (text, priority) = (rest.join(" "), Priority::Critical);
                Command::Under(Under { step, fence }, Request::AddItem { text, priority })
            }
            "output" => {
                let (name, json) = (output_name(rest[0]), rest[1..].join(" "));
                Command::Under(Under { step, fence }, Request::SetOutput { name, json })
            }
            "await" => {
                let (output, until) = (rest[0].parse().unwrap(), None);
                Command::Under(Under { step, fence }, Request::AwaitOutput { output, until })
            }
            "check" => {
                let (items, mark) = (rest.iter().map(|text| item(text)).collect(), Mark::Done);
                Command::Under(Under { step, fence }, Request::MarkItems { items, mark })
            }
            "defer" => {
                let mark = Mark::Deferred { reason: "later".to_owned() };
                let items = rest.iter().map(|text| item(text)).collect();
                Command::Under(Under { step, fence }, Request::MarkItems { items, mark })
            }
            "verify" => {
                let (commit, tree) = (oid(4), oid(5));
                let (exit, output) = (Exit::Code(0), Hash::of(b"ok"));
                let check = Some(Check { command: "true".to_owned(), exit, output, ms: 1 });
                let (commits, omitted) = (0, Vec::new());
                let iteration = iteration_check(rest);
                Command::Under(
                    Under { step, fence },
                    Request::Verify { commit, tree, check, commits, omitted, iteration },
                )
            }
            "find-done" => {
                let (exit, output) = (Exit::Code(0), Hash::of(b"ok"));
                let check = Some(Check { command: "true".to_owned(), exit, output, ms: 1 });
                Command::Under(Under { step, fence }, Request::FindDone { check })
            }
            "park" => Command::Under(Under { step, fence }, Request::RaiseConflict(conflict())),
            "limit" => {
                let heard = Box::new(self.heard(&step, rest));
                Command::Under(Under { step, fence }, Request::Park(heard))
            }
            "works" => Command::Under(Under { step, fence }, Request::ReportAnswer),
            "land" => Command::Under(
                Under { step, fence },
                Request::Land(LandingIntent { onto: oid(3), to: oid(4) }),
            ),
            "complete" => Command::Under(
                Under { step, fence },
                Request::Complete { commit: Some(oid(4)), waive: None },
            ),
            "finish" => Command::Under(
                Under { step, fence },
                Request::Complete { commit: None, waive: None },
            ),
            "waive" => {
                let waive = Some("it does not matter".to_owned());
                Command::Under(Under { step, fence }, Request::Complete { commit: None, waive })
            }
            "release" => Command::Under(Under { step, fence }, Request::Release),
            "force-release" => Command::ForceRelease { step },
            "reset" => {
                let reason = (!rest.is_empty()).then(|| rest.join(" "));
                Command::Reset { step, reason }
            }
            "fail" => Command::Under(Under { step, fence }, Request::Fail { why: failure(rest) }),
            "retry" => {
                let steps = words[1].split('+').map(at).collect();
                Command::Retry { steps, host: host("here") }
            }
            "skip" => Command::Skip { step, reason: rest.join(" "), host: host("here") },
            "interrupt" => Command::Under(
                Under { step, fence },
                Request::Interrupt(Interruption {
                    cause: match rest.get(1) {
                        Some(&"obstacle") => Cause::Obstacle,
                        _ => Cause::Unknown,
                    },
                    at: self.now.wall,
                    evidence: "seen".to_owned(),
                    left_at: stage(rest[0]),
                }),
            ),
            "bury" => {
                let at = match rest.get(1) {
                    Some(&"long-dead") => Millis(0),
                    _ => self.now.wall,
                };
                let corpse = Corpse { at, ..corpse(rest[0]) };
                Command::Under(Under { step, fence }, Request::Bury(corpse))
            }
            "expire" => Command::Under(Under { step, fence }, Request::Expire),
            "stop" => {
                let scope = match words[1] {
                    "run" => Scope::Run,
                    _ => Scope::Attempt(Under { step, fence }),
                };
                let haste = if rest == ["now"] { Haste::Now } else { Haste::Graceful };
                Command::Stop { scope, cause: Cause::UserInterrupt, haste }
            }
            "abandon" => Command::Abandon { host: host("here"), keep_until: None },
            "reopen" => Command::Reopen { host: host("here") },
            "intend-merge" => Command::IntendMerge(merge_intent()),
            "merge" => {
                let MergeIntent { into, to: commit, tip, .. } = merge_intent();
                Command::Merge { into, commit, tip }
            }
            "resume" => {
                let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
                let terms = Terms {
                    steps: value("steps=")
                        .map_or_else(Vec::new, |s| s.split('+').map(at).collect())
                        .into_iter()
                        .collect(),
                    jobs: value("jobs=").map(|number| number.parse().unwrap()),
                    restart: words.contains(&"restart"),
                    threshold: value("threshold=").map(|number| number.parse().unwrap()),
                    max_iterations: value("iterations=").map(|number| number.parse().unwrap()),
                    no_wait: words.contains(&"no-wait"),
                };
                Command::Resume {
                    host: host("here"),
                    confirmed: words.contains(&"confirmed"),
                    terms,
                }
            }
            other => panic!("no such command: {other}"),
        }
    }

    /// `a`, or `any` for the first that can be had; then any of `there` (on another host), `from x`
    /// (by somebody outside, in worktree `x`; `tree-1` is a tree of the pool), `force`, and what is seen of the present holders:
    /// `alive`, or the exit record of the dead.
    fn claim(&self, name: &str, words: &[&str]) -> Claim {
        let on = host(if words.contains(&"there") { "there" } else { "here" });
        let worktree = words.iter().skip_while(|word| **word != "from").nth(1);
        let holder = match worktree {
            Some(worktree) => outside(&on.0, worktree),
            None => Holder::Keeper { host: on.clone(), boot: BootId("boot".to_owned()) },
        };
        let said = |word: &&&str| !["there", "from", "force"].contains(*word);
        let sighting = match words.iter().filter(said).find(|word| Some(*word) != worktree) {
            None => Sighting::Elsewhere,
            Some(&"alive") => Sighting::Alive,
            Some(exit) => Sighting::Dead(corpse(exit)),
        };
        Claim {
            which: match name {
                "any" => Which::First,
                name => Which::Step(self.named(name).0),
            },
            attempt: AttemptId(Uuid::from_u128(self.attempts)),
            holder,
            until: self.now.after(LEASE),
            observed: Observed {
                host: on,
                place: worktree.and_then(|worktree| pool_tree(worktree)),
                outside: self.outside(),
                ..self.seeing(&sighting)
            },
            takeover: if words.contains(&"force") { Takeover::Force } else { Takeover::Forbid },
            pid: None,
        }
    }

    /// Who holds a step from a tree of the pool.
    fn outside(&self) -> BTreeMap<AttemptId, TreeNo> {
        let place = |held: &Attempt| match &held.holder {
            Holder::External { worktree, .. } => pool_tree(worktree),
            Holder::Keeper { .. } => None,
        };
        self.run.held().filter_map(|(_, held)| Some((held.id, place(held)?))).collect()
    }

    /// `a` with the fence it has or had last, or `a@7` with that fence.
    fn named(&self, text: &str) -> (StepRef, Fence) {
        match text.split_once('@') {
            Some((name, fence)) => (at(name), Fence(fence.parse().unwrap())),
            None => (at(text), self.fence(text)),
        }
    }

    fn unread(&self, step: &StepRef) -> Vec<QuestionId> {
        let state = self.run.step(step).map(|(_, state)| state);
        state.iter().flat_map(|state| state.unread_answers()).map(|asked| asked.id).collect()
    }

    pub(crate) fn fence(&self, step: &str) -> Fence {
        let Some((_, state)) = self.run.step(&at(step)) else { return Fence(0) };
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

    /// What is seen of the machine when every keeper of an open attempt looks like this. Nobody can
    /// look at those outside.
    pub(crate) fn seeing(&self, sighting: &Sighting) -> Observed {
        let kept = self.run.held().filter(|(_, held)| matches!(held.holder, Holder::Keeper { .. }));
        let seen = kept.map(|(_, attempt)| (attempt.id, sighting.clone()));
        Observed { host: host("here"), attempts: seen.collect(), ..Observed::default() }
    }

    /// Somebody who asks now.
    pub(crate) fn asker<'a>(&'a self, holder: &'a Holder, observed: &'a Observed) -> Asker<'a> {
        Asker { holder, observed, leases: &self.leases, now: &self.now }
    }
}

/// A commit that cannot be landed.
fn conflict() -> Conflict {
    Conflict {
        branch: "piton/x/run".to_owned(),
        onto: oid(6),
        commit: oid(4),
        kept: "refs/piton/unlanded/x/a/2".to_owned(),
        paths: vec!["src/a.rs".to_owned()],
        count: 3,
        worktree: None,
    }
}

/// A run as another process loads it from the cache.
pub(crate) fn repacked(run: &Run) -> Run {
    unpack(&pack(None, run)).expect("it was just packed").run
}

/// What comes of a command, in a few words.
pub(crate) fn answer(history: &mut History, command: &str) -> String {
    match history.say(command) {
        Ok(events) if events.is_empty() => "nothing".to_owned(),
        Ok(events) => events.iter().map(told).collect::<Vec<_>>().join(", "),
        Err(refusal) => format!("no: {refusal}"),
    }
}

/// In this history, after `log`, `command` is answered by `expect`.
#[track_caller]
pub(crate) fn check_in(mut history: History, log: &str, command: &str, expect: &str) {
    history.play(log);
    let before = history.records.len();
    let got = answer(&mut history, command);
    assert_eq!(got, expect, "after {log:?}: {command}");
    if got.starts_with("no:") || got == "nothing" {
        assert_eq!(history.records.len(), before, "nothing is written");
    }
}

fn joined<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// An event in a few words.
pub(crate) fn told(event: &Event) -> String {
    match event {
        Event::RunOpened(_) => "run opened".to_owned(),
        Event::Found(found) => format!("found {} {:?}", found.step, found.state),
        Event::Claimed(claimed) => {
            let grounds = match claimed.grounds {
                Grounds::Free => "",
                Grounds::LeaseOver => ", lease over",
                Grounds::SameOwner => ", same owner",
                Grounds::Forced => ", forced",
            };
            format!("claimed {} {}{grounds}", claimed.step, entry_word(claimed.entry))
        }
        Event::Under(Under { step, .. }, Fact::Started { answers, .. }) if !answers.is_empty() => {
            format!("started {step} told {}", joined(answers))
        }
        Event::Under(Under { step, .. }, Fact::Started { .. }) => format!("started {step}"),
        Event::Under(Under { step, .. }, Fact::Asked { about, .. })
            if matches!(about.as_deref(), Some(About::Interruption { .. })) =>
        {
            format!("asked {step} how it goes on")
        }
        Event::Under(Under { step, .. }, Fact::Asked { about, choices, .. })
            if matches!(
                about.as_deref(),
                Some(
                    About::NoProgress { .. }
                        | About::Repetition { .. }
                        | About::FailedAlike { .. }
                        | About::Account { .. }
                )
            ) =>
        {
            format!("asked {step} {}", choices.join(" / "))
        }
        Event::Under(Under { step, .. }, Fact::Asked { text, .. }) => {
            format!("asked {step} {text}")
        }
        Event::Answered { step, question, answer, .. } => {
            format!("answered {step} {question} {answer}")
        }
        Event::Under(Under { step, .. }, Fact::AnswersApplied { questions, .. }) => {
            format!("applied {step} {}", joined(questions))
        }
        Event::Under(Under { step, .. }, Fact::Suspended { .. }) => format!("suspended {step}"),
        Event::Under(Under { step, .. }, Fact::Limited(limited)) => {
            let agents: Vec<String> = limited.agents.iter().map(ToString::to_string).collect();
            format!("limited {step} {}", agents.join(" "))
        }
        Event::Under(Under { step, .. }, Fact::LimitLifted { account }) => {
            format!("limit lifted {step} {account}")
        }
        Event::Under(Under { step, .. }, Fact::Checkpointed { snapshot: Some(snapshot), .. }) => {
            format!("checkpointed {step} {}", snapshot.changed)
        }
        Event::Under(Under { step, .. }, Fact::Checkpointed { .. }) => {
            format!("checkpointed {step}")
        }
        Event::Under(Under { step, .. }, Fact::SubstepCompleted { substep, .. }) => {
            format!("substep completed {step} {substep}")
        }
        Event::Under(Under { step, .. }, Fact::CheckoutChanged(CheckoutChanges { files, .. })) => {
            format!("checkout changed {step} {}", files.join(" "))
        }
        Event::Under(Under { step, .. }, Fact::Unkept { why }) => format!("unkept {step} {why}"),
        Event::Under(Under { step, .. }, Fact::Conversed(with)) => {
            format!("conversed {step} {}", with.session)
        }
        Event::Under(Under { step, .. }, Fact::OutputSet { name, value }) => {
            format!("output set {step} {name} {value}")
        }
        Event::Under(Under { step, .. }, Fact::OutputAwaited { output, .. }) => {
            format!("output awaited {step} {output}")
        }
        Event::Under(Under { step, .. }, Fact::ItemAdded { text, .. }) => {
            format!("item added {step} {text}")
        }
        Event::Under(Under { step, .. }, Fact::ItemsMarked { items, mark, .. }) => {
            let word = if *mark == Mark::Done { "done" } else { "deferred" };
            let items: Vec<String> = items.iter().map(ToString::to_string).collect();
            format!("items {word} {step} {}", items.join(" "))
        }
        Event::Under(Under { step, .. }, Fact::Verified { .. }) => format!("verified {step}"),
        Event::Under(Under { step, .. }, Fact::FoundDone { .. }) => format!("found done {step}"),
        Event::Under(Under { step, .. }, Fact::LandingIntended(_)) => {
            format!("landing intended {step}")
        }
        Event::Under(Under { step, .. }, Fact::Completed { waived: Some(waived), .. }) => {
            let parts = waived.substeps.iter().map(ToString::to_string);
            let items = waived.items.iter().map(ToString::to_string);
            let asked = waived.questions.iter().map(ToString::to_string);
            let outputs = waived.outputs.iter().map(ToString::to_string);
            let skipped: Vec<String> = parts.chain(items).chain(asked).chain(outputs).collect();
            format!("completed {step} without {}", skipped.join(" "))
        }
        Event::Under(Under { step, .. }, Fact::Completed { .. }) => format!("completed {step}"),
        Event::Under(Under { step, .. }, Fact::Released { by: ReleasedBy::Owner, .. }) => {
            format!("released {step}")
        }
        Event::Under(Under { step, .. }, Fact::Released { by: ReleasedBy::Force, .. }) => {
            format!("released {step} by force")
        }
        Event::Reset { step, .. } => format!("reset {step}"),
        Event::Retried { step, .. } => format!("retried {step}"),
        Event::Skipped { step, reason, .. } => format!("skipped {step}: {reason}"),
        Event::Under(Under { step, .. }, Fact::Failed { why, .. }) => {
            format!("failed {step}: {why}")
        }
        Event::Under(
            Under { step, .. },
            Fact::Interrupted(Interruption { cause, left_at, .. }),
        ) => {
            format!("interrupted {step} at {}: {cause}", stage_word(*left_at))
        }
        Event::StopRequested { scope, haste, .. } => {
            let whom = match scope {
                Scope::Run => "run".to_owned(),
                Scope::Attempt(Under { step, .. }) => step.to_string(),
            };
            let now = if *haste == Haste::Now { " now" } else { "" };
            format!("stop requested {whom}{now}")
        }
        Event::PlanAccepted { .. } => "plan accepted".to_owned(),
        Event::Abandoned { .. } => "abandoned".to_owned(),
        Event::Reopened { .. } => "reopened".to_owned(),
        Event::MergeIntended(intent) => format!("merge into {} intended", intent.into),
        Event::Merged { into, .. } => format!("merged into {into}"),
        Event::Resumed { confirmed, terms, .. } => {
            let steps: Vec<String> = terms.steps.iter().map(ToString::to_string).collect();
            let said = [
                confirmed.then(|| "confirmed".to_owned()),
                (!steps.is_empty()).then(|| format!("steps {}", steps.join(" "))),
                terms.jobs.map(|jobs| format!("jobs {jobs}")),
                terms.threshold.map(|percent| format!("threshold {percent}")),
                terms.restart.then(|| "restart".to_owned()),
            ];
            [Some("resumed".to_owned())]
                .into_iter()
                .chain(said)
                .flatten()
                .collect::<Vec<_>>()
                .join(", ")
        }
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

/// The kind of a failure, then what it says.
fn failure(words: &[&str]) -> Failure {
    let said = match &words[1..] {
        [] => "message".to_owned(),
        said => said.join(" "),
    };
    let (exit, tail, message) = (Exit::Code(1), said.clone(), said);
    match words[0] {
        "exit" => Failure::Exit { exit, tail },
        "verify" => Failure::Verify { exit, tail },
        "timeout" => Failure::Timeout { ms: 5_000 },
        "landing" => Failure::Landing { message },
        "reported" => Failure::Reported { reason: message },
        "unfinished" => Failure::Unfinished { open: message },
        other => panic!("no such failure: {other}"),
    }
}

/// A corpse by its exit record: `none`, an exit code, or `signal-9`; with `:stop` or `:time` behind it
/// when the agent had been urged to end.
pub(crate) fn corpse(record: &str) -> Corpse {
    let (exit, stop) = match record.split_once(':') {
        None => (record, StopRequest::Nothing),
        Some((exit, "stop")) => (exit, StopRequest::Stop(Cause::UserInterrupt)),
        Some((exit, "time")) => (exit, StopRequest::TimeUp { ms: 60_000 }),
        Some((_, other)) => panic!("no such stop request: {other}"),
    };
    let exit = match exit.strip_prefix("signal-") {
        Some(signal) => Some(Exit::Signal(signal.parse().unwrap())),
        None if exit == "none" => None,
        None => Some(Exit::Code(exit.parse().unwrap())),
    };
    let exit = exit.map(|exit| AgentExit { exit, stop });
    let (at, evidence) = (Millis(900_000), "seen".to_owned());
    Corpse { exit, heard: None, cause: Cause::Reboot, at, evidence, changed: None }
}

pub(crate) fn snapshot(changed: u64) -> Snapshot {
    Snapshot {
        commit: oid(100 + u128::from(changed)),
        tree: oid(200 + u128::from(changed)),
        refname: format!("refs/piton/run/step/1/{changed}"),
        changed,
        omitted: Vec::new(),
        reason: SnapshotReason::Cadence,
        head: None,
        commits: 0,
    }
}

pub(crate) fn id(text: &str) -> StepId {
    StepId::new(text).unwrap()
}

/// A step as events name it.
pub(crate) fn at(text: &str) -> StepRef {
    text.parse().unwrap()
}

pub(crate) fn host(text: &str) -> HostId {
    HostId(text.to_owned())
}

pub(crate) fn oid(number: u128) -> Oid {
    Oid::new(format!("{number:040x}")).unwrap()
}

pub(crate) fn item(text: &str) -> ItemRef {
    ItemRef::try_from(text.to_owned()).unwrap()
}

pub(crate) fn output_name(text: &str) -> OutputName {
    OutputName::new(text).unwrap()
}

fn substep(text: &str) -> SubstepId {
    SubstepId::new(text).unwrap()
}

/// Whoever works in this worktree.
pub(crate) fn outside(on: &str, worktree: &str) -> Holder {
    Holder::External { host: host(on), worktree: worktree.to_owned() }
}

/// A merge of what was landed.
fn merge_intent() -> MergeIntent {
    MergeIntent { into: "main".to_owned(), onto: oid(1), to: oid(8), tip: oid(4) }
}

/// A plan from lines such as `b agent retries=1 needs=a,g in=g`; the step's kind is `agent`, `command`
/// or `hand`. `items=2` gives it as many items, `parts=one:2,two` substeps with as many items each,
/// `locks=l,m` the locks it holds, `outputs=x,y` what it publishes, `score=0.8` the least that `score` must be; a line `lock l 2` gives a lock its slots.
pub(crate) fn plan(lines: &str) -> Plan {
    let (locks, rows): (Vec<Vec<&str>>, Vec<Vec<&str>>) = lines
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|row: &Vec<&str>| !row.is_empty())
        .partition(|row: &Vec<&str>| row[0] == "lock");
    let (loops, rows): (Vec<Vec<&str>>, Vec<Vec<&str>>) =
        rows.into_iter().partition(|row| row[0] == "loop");
    let groups: BTreeMap<GroupId, Group> = rows
        .iter()
        .filter_map(|row| value(row, "in"))
        .map(|group| (GroupId::new(group.clone()).unwrap(), Group { title: group }))
        .collect();
    let need = |name: &str| match (name.split_once(':'), GroupId::new(name)) {
        (Some((step, output)), _) => Need::Output(id(step), output_name(output)),
        (None, Ok(group)) if groups.contains_key(&group) => Need::Group(group),
        _ => Need::Step(id(name)),
    };
    let items = |count: &str| {
        let count: u32 = count.parse().unwrap();
        (1..=count).map(|number| format!("item {number}")).collect::<Vec<String>>()
    };
    let part = |text: &str| {
        let (name, count) = text.split_once(':').unwrap_or((text, "0"));
        PlanSubstep { id: substep(name), title: name.to_owned(), items: items(count) }
    };
    let lock = |name: &str| LockName::new(name).unwrap();
    let steps = rows
        .iter()
        .map(|row| PlanStep {
            id: id(row[0]),
            title: row[0].to_owned(),
            kind: None,
            group: value(row, "in").map(|group| GroupId::new(group).unwrap()),
            needs: value(row, "needs").map_or(Vec::new(), |all| all.split(',').map(need).collect()),
            work: match row[1] {
                "command" => Work::Run("make".to_owned()),
                "hand" => Work::ByHand,
                name => Work::Agent {
                    agent: AgentName::new(if name == "agent" { "fake" } else { name }).unwrap(),
                    prompt: "work".to_owned(),
                },
            },
            verify: None,
            skip_if: None,
            timeout: None,
            retries: value(row, "retries").map_or(0, |text| text.parse().unwrap()),
            env: BTreeMap::new(),
            items: value(row, "items").map_or(Vec::new(), |count| items(&count)),
            substeps: value(row, "parts")
                .map_or(Vec::new(), |all| all.split(',').map(part).collect()),
            locks: value(row, "locks").iter().flat_map(|all| all.split(',')).map(lock).collect(),
            outputs: value(row, "outputs")
                .iter()
                .flat_map(|all| all.split(','))
                .map(output_name)
                .collect(),
            require: value(row, "score")
                .map(|least| (output_name("score"), format!(">= {least}").parse().unwrap()))
                .into_iter()
                .collect(),
            on_interrupt: value(row, "then").map(|word| match word.as_str() {
                "continue" => OnInterrupt::Continue,
                "restart" => OnInterrupt::Restart,
                _ => OnInterrupt::Ask,
            }),
            on_limit: value(row, "limit").map_or(OnLimit::Wait, |word| match word.as_str() {
                "stop" => OnLimit::Stop,
                _ => OnLimit::Ask,
            }),
        })
        .collect();
    Plan {
        name: "plan".to_owned(),
        base: None,
        isolation: Isolation::Run,
        jobs: None,
        on_failure: OnFailure::Continue,
        setup: None,
        copy: Vec::new(),
        link: Vec::new(),
        inputs: BTreeMap::new(),
        groups,
        agents: BTreeMap::new(),
        locks: locks.iter().map(|row| (lock(row[1]), row[2].parse().unwrap())).collect(),
        loops: loops.iter().map(|row| plan_loop(row)).collect(),
        steps,
        plan_from: None,
        source: None,
    }
}

/// What stands behind `key=` in a row.
fn value(row: &[&str], key: &str) -> Option<String> {
    row.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
}

/// `loop NAME a,b max=3 until stale=2 items`.
fn plan_loop(row: &[&str]) -> (LoopId, PlanLoop) {
    let number = |key| value(row, key).map(|text| text.parse().unwrap());
    let plan = PlanLoop {
        steps: row[2].split(',').map(id).collect(),
        max: number("max").unwrap(),
        until: row.contains(&"until").then(|| "make test".to_owned()),
        stale_limit: number("stale"),
        until_items: row.contains(&"items"),
    };
    (LoopId::new(row[1]).unwrap(), plan)
}

/// `until=1 changed=0`: what was seen at the end of an iteration.
fn iteration_check(words: &[&str]) -> Option<Box<IterationCheck>> {
    let changed = value(words, "changed")?.parse().unwrap();
    let until = value(words, "until").map(|code| Check {
        command: "make test".to_owned(),
        exit: Exit::Code(code.parse().unwrap()),
        output: Hash::of(b"out"),
        ms: 1,
    });
    Some(Box::new(IterationCheck { until, tail: "2 tests failed".to_owned(), changed }))
}

/// The tree of the pool that a worktree is, by its name.
fn pool_tree(worktree: &str) -> Option<TreeNo> {
    let number = worktree.rsplit('/').next()?.strip_prefix("tree-")?;
    number.parse().ok().map(TreeNo)
}
