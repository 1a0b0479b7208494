//! The format of event bodies: a checked-in sample of every kind, written by version 1, must be read
//! as what it meant then, and written the same today. Fields that this piton does not know are passed
//! over.

use std::collections::BTreeMap;

use piton_core::event::{
    About, BadEvent, Cause, Check, CheckoutChanges, Claimed, Conflict, EVENT_VERSION, Entry, Event,
    Exit, Fact, Failure, Grounds, Haste, Holder, Interruption, LandingIntent, Mark, MergeIntent,
    Omission, Priority, ReleasedBy, Report, ReportedFile, Repository, RunOpened, Scope, Snapshot,
    SnapshotReason, Stage, Truth, Under, Waived,
};
use piton_core::ids::{
    AttemptId, BootId, Fence, Handle, Hash, QuestionId, RunId, StepRef, SubstepId, TreeNo,
};
use piton_core::time::{BootClock, Millis, Moment};
use serde_json::Value;
use uuid::Uuid;

use crate::history::{at, host, id, item, oid, outside};

const SAMPLES: &str = include_str!("../fixtures/events-v1.jsonl");

#[test]
fn every_kind_of_version_1_is_still_read_as_it_was_meant() {
    let lines: Vec<&str> = SAMPLES.lines().collect();
    let samples = samples();
    assert_eq!(lines.len(), samples.len(), "a new kind needs its line in events-v1.jsonl");
    for (line, sample) in lines.iter().zip(&samples) {
        assert_eq!(Event::from_body(line.as_bytes()).as_ref(), Ok(sample), "{line}");
        assert_eq!(String::from_utf8(sample.to_body()).unwrap(), *line);
    }
}

#[test]
fn unknown_fields_are_passed_over() {
    for line in SAMPLES.lines() {
        let mut body: Value = serde_json::from_str(line).unwrap();
        assert!(add_unknown_fields(&mut body) > 0);
        let read = Event::from_body(&serde_json::to_vec(&body).unwrap());
        assert_eq!(read, Event::from_body(line.as_bytes()), "{body}");
    }
}

/// Into every object that is a record of fields; a map of inputs and the one key of an enum are none.
fn add_unknown_fields(value: &mut Value) -> usize {
    match value {
        Value::Object(fields) => {
            let below = fields.iter_mut().filter(|(key, _)| *key != "inputs");
            let mut added: usize = below.map(|(_, value)| add_unknown_fields(value)).sum();
            if fields.len() > 1 {
                fields
                    .insert("of_a_later_version".to_owned(), serde_json::json!({ "x": [1, "2"] }));
                added += 1;
            }
            added
        }
        Value::Array(values) => values.iter_mut().map(add_unknown_fields).sum(),
        _ => 0,
    }
}

#[test]
fn a_newer_version_is_refused_by_name() {
    for line in SAMPLES.lines() {
        let mut body: Value = serde_json::from_str(line).unwrap();
        assert_eq!(body["v"], EVENT_VERSION);
        body["v"] = Value::from(EVENT_VERSION + 1);
        let read = Event::from_body(&serde_json::to_vec(&body).unwrap());
        assert_eq!(read, Err(BadEvent::Newer { found: EVENT_VERSION + 1 }));
    }
}

#[test]
fn a_torn_body_is_unreadable() {
    for line in SAMPLES.lines() {
        let torn = Event::from_body(&line.as_bytes()[..line.len() - 1]);
        assert!(matches!(torn, Err(BadEvent::Unreadable(_))));
    }
}

/// One of every kind, and every variant of what they carry: what was written first, what came with
/// claims from outside, with questions and changed plans, and what explains an attempt afterwards.
fn samples() -> Vec<Event> {
    let mut all = first_samples();
    all.extend(samples_from_outside());
    all.extend(samples_of_questions());
    all.extend(samples_with_traces());
    all.extend(samples_of_worktrees());
    all.extend(samples_of_abandoning());
    all.extend(samples_of_interruptions());
    all.push(sample_of_nested_repositories());
    all.push(sample_of_an_obstacle());
    all.push(sample_of_a_checkpoint());
    all
}

fn sample_of_an_obstacle() -> Event {
    Event::Under(
        Under { step: at("jwt"), fence: Fence(7) },
        Fact::Interrupted(Interruption {
            cause: Cause::Obstacle,
            at: Millis(1_767_225_600_000),
            evidence: "somebody's folder is in the way".to_owned(),
            left_at: Stage::Agent,
        }),
    )
}

fn sample_of_nested_repositories() -> Event {
    let why = "a repository of its own".to_owned();
    Event::Under(
        Under { step: at("jwt"), fence: Fence(7) },
        Fact::Verified {
            commit: oid(4),
            tree: oid(5),
            truth: Truth::Claimed,
            check: None,
            commits: 2,
            answers: Vec::new(),
            omitted: vec![Omission { path: "vendor/".to_owned(), why }],
        },
    )
}

fn sample_of_a_checkpoint() -> Event {
    let (step, fence) = (at("jwt"), Fence(7));
    let report = Report { note: Some("half way".to_owned()), ..Report::default() };
    let snapshot = Some(kept(SnapshotReason::Checkpoint));
    Event::Under(
        Under { step, fence },
        Fact::Checkpointed { snapshot, report: Some(Box::new(report)) },
    )
}

fn samples_of_interruptions() -> Vec<Event> {
    let asked = |cause: Cause, changed: u64, kept: Option<&str>| {
        Event::Under(
            Under { step: at("jwt"), fence: Fence(7) },
            Fact::Asked {
                text: "jwt was interrupted".to_owned(),
                choices: vec!["continue".to_owned(), "restart".to_owned(), "stop".to_owned()],
                about: Some(Box::new(About::Interruption {
                    cause,
                    changed,
                    kept: kept.map(str::to_owned),
                })),
            },
        )
    };
    vec![
        asked(Cause::ProcessKill, 2, Some("refs/piton/auth-system-steady-otter/jwt/7/3")),
        asked(Cause::HostLost, 0, None),
    ]
}

fn samples_of_abandoning() -> Vec<Event> {
    let until = Some(Millis(1_767_225_600_000));
    vec![
        Event::Abandoned { host: host("here"), keep_until: None },
        Event::Abandoned { host: host("here"), keep_until: until },
        Event::Reopened { host: host("here") },
    ]
}

fn samples_with_traces() -> Vec<Event> {
    let (step, fence, pid) = (at("jwt"), Fence(7), Some(4711));
    let snapshot = Snapshot { head: Some(oid(4)), commits: 2, ..kept(SnapshotReason::End) };
    let (commit, tree, truth) = (oid(4), oid(5), Truth::Claimed);
    vec![
        Event::Claimed(Claimed { pid, ..claimed(Entry::Fresh, Grounds::Free) }),
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Started { base: Some(oid(3)), answers: Vec::new(), pid },
        ),
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Checkpointed { snapshot: Some(snapshot), report: None },
        ),
        Event::Under(
            Under { step, fence },
            Fact::Verified {
                commit,
                tree,
                truth,
                check: None,
                commits: 2,
                answers: Vec::new(),
                omitted: Vec::new(),
            },
        ),
    ]
}

fn samples_of_worktrees() -> Vec<Event> {
    let (step, fence) = (at("jwt"), Fence(7));
    let conflict = Conflict {
        branch: "piton/auth-system-steady-otter/run".to_owned(),
        onto: oid(3),
        commit: oid(4),
        kept: "refs/piton/unlanded/auth-system-steady-otter/jwt/7".to_owned(),
        paths: vec!["src/auth.ts".to_owned()],
        count: 1,
        worktree: Some("/home/somebody/repo/.piton/worktrees/x/step/jwt".to_owned()),
    };
    vec![
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Asked {
                text: "jwt conflicts".to_owned(),
                choices: vec!["land again".to_owned(), "restart".to_owned(), "stop".to_owned()],
                about: Some(Box::new(About::Conflict(conflict))),
            },
        ),
        Event::Under(
            Under { step, fence },
            Fact::Verified {
                commit: oid(4),
                tree: oid(5),
                truth: Truth::Claimed,
                check: None,
                commits: 2,
                answers: vec![QuestionId(12)],
                omitted: Vec::new(),
            },
        ),
        Event::Under(
            Under { step: at("jwt"), fence },
            Fact::Failed {
                why: Failure::Setup {
                    why: "`npm ci` ended with exit 1".to_owned(),
                    tail: "no network".to_owned(),
                },
            },
        ),
    ]
}

fn first_samples() -> Vec<Event> {
    let step = at("jwt");
    let fence = Fence(7);
    let mut all = vec![
        opened(Some("https://example.org/repo.git"), None, None),
        opened(None, None, None),
        opened(None, Some("/home/somebody/side"), None),
        opened(Some("https://example.org/repo.git"), None, Some("main")),
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Started { base: Some(oid(3)), answers: Vec::new(), pid: None },
        ),
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::LandingIntended(LandingIntent { onto: oid(3), to: oid(4) }),
        ),
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Completed { commit: Some(oid(4)), waived: None },
        ),
        Event::Resumed { host: host("here"), confirmed: false },
        Event::Resumed { host: host("here"), confirmed: true },
    ];
    for entry in [Entry::Fresh, Entry::Continue, Entry::Verify, Entry::Land] {
        for grounds in [Grounds::Free, Grounds::LeaseOver] {
            all.push(Event::Claimed(claimed(entry, grounds)));
        }
    }
    for reason in [
        SnapshotReason::Cadence,
        SnapshotReason::End,
        SnapshotReason::Recovery,
        SnapshotReason::Reset,
    ] {
        let (step, snapshot) = (step.clone(), Some(kept(reason)));
        all.push(Event::Under(
            Under { step, fence },
            Fact::Checkpointed { snapshot, report: None },
        ));
    }
    for truth in [Truth::Verified, Truth::Claimed, Truth::Unknown] {
        let check = (truth == Truth::Verified).then(|| Check {
            command: "npm test -- auth".to_owned(),
            exit: Exit::Code(0),
            output: Hash::of(b"ok"),
            ms: 1_234,
        });
        let (commit, tree) = (oid(4), oid(5));
        all.push(Event::Under(
            Under { step: step.clone(), fence },
            Fact::Verified {
                commit,
                tree,
                truth,
                check,
                commits: 0,
                answers: Vec::new(),
                omitted: Vec::new(),
            },
        ));
    }
    for why in [
        Failure::Exit { exit: Exit::Code(1), tail: "no such file\n".to_owned() },
        Failure::Exit { exit: Exit::Signal(11), tail: String::new() },
        Failure::Verify { exit: Exit::Code(2), tail: "1 failed ✗".to_owned() },
        Failure::Timeout { ms: 5_400_000 },
        Failure::Landing { message: "src/auth.ts conflicts".to_owned() },
    ] {
        all.push(Event::Under(Under { step: step.clone(), fence }, Fact::Failed { why }));
    }
    for (cause, left_at) in [
        (Cause::UserInterrupt, Stage::Unstarted),
        (Cause::Termination, Stage::Agent),
        (Cause::HangUp, Stage::Verify),
        (Cause::ProcessKill, Stage::Land),
        (Cause::OutOfMemory, Stage::Agent),
        (Cause::Reboot, Stage::Agent),
        (Cause::HostLost, Stage::Agent),
        (Cause::DiskFull, Stage::Agent),
        (Cause::Unknown, Stage::Agent),
    ] {
        let evidence = format!("the keeper's lock was free ({cause})");
        let (step, at) = (step.clone(), Millis(1_767_225_600_000));
        all.push(Event::Under(
            Under { step, fence },
            Fact::Interrupted(Interruption { cause, at, evidence, left_at }),
        ));
    }
    for scope in [Scope::Run, Scope::Attempt(Under { step: step.clone(), fence })] {
        for haste in [Haste::Graceful, Haste::Now] {
            let (scope, cause) = (scope.clone(), Cause::UserInterrupt);
            all.push(Event::StopRequested { scope, cause, haste });
        }
    }
    all.sort_by_key(kind);
    all
}

fn samples_from_outside() -> Vec<Event> {
    let (step, fence) = (at("jwt"), Fence(7));
    let substep = || SubstepId::new("validate").unwrap();
    let mut all = vec![
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Started { base: None, answers: Vec::new(), pid: None },
        ),
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Completed { commit: None, waived: None },
        ),
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Completed {
                commit: None,
                waived: Some(Waived {
                    reason: "the fixture is gone".to_owned(),
                    substeps: vec![substep()],
                    items: vec![item("2"), item("validate.1")],
                    questions: Vec::new(),
                }),
            },
        ),
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::SubstepCompleted { substep: substep() },
        ),
        Event::Reset { step: step.clone(), reason: None },
        Event::Reset { step: step.clone(), reason: Some("wrong approach".to_owned()) },
    ];
    for (grounds, displaces) in [
        (Grounds::Free, None),
        (Grounds::LeaseOver, Some(Fence(5))),
        (Grounds::SameOwner, Some(Fence(5))),
        (Grounds::Forced, Some(Fence(5))),
    ] {
        let holder = outside("here", "/home/ü/trees/jwt");
        let free = claimed(Entry::Fresh, grounds);
        all.push(Event::Claimed(Claimed { holder, tree: None, displaces, ..free }));
    }
    for report in [report(), Report { note: Some("half way".to_owned()), ..Report::default() }] {
        let (step, report) = (step.clone(), Some(Box::new(report)));
        all.push(Event::Under(
            Under { step, fence },
            Fact::Checkpointed { snapshot: None, report },
        ));
    }
    let (snapshot, both) = (Some(kept(SnapshotReason::Cadence)), Some(Box::new(report())));
    all.push(Event::Under(
        Under { step: step.clone(), fence },
        Fact::Checkpointed { snapshot, report: both },
    ));
    for priority in [Priority::Critical, Priority::Important, Priority::Minor] {
        let (step, text) = (step.clone(), "clock skew is not handled".to_owned());
        all.push(Event::Under(Under { step, fence }, Fact::ItemAdded { text, priority }));
    }
    for mark in [Mark::Done, Mark::Deferred { reason: "needs a key".to_owned() }] {
        let (step, items) = (step.clone(), vec![item("1"), item("validate.2")]);
        all.push(Event::Under(Under { step, fence }, Fact::ItemsMarked { items, mark }));
    }
    for by in [ReleasedBy::Owner, ReleasedBy::Force] {
        all.push(Event::Under(Under { step: step.clone(), fence }, Fact::Released { by }));
    }
    for why in [
        Failure::Reported { reason: "no access".to_owned() },
        Failure::Unfinished { open: "substep refresh".to_owned() },
    ] {
        all.push(Event::Under(Under { step: step.clone(), fence }, Fact::Failed { why }));
    }
    all.sort_by_key(kind);
    all
}

fn samples_of_questions() -> Vec<Event> {
    let (step, fence) = (at("jwt"), Fence(7));
    let (questions, reason) = (vec![QuestionId(12), QuestionId(14)], "no time".to_owned());
    let waived = Waived { reason, substeps: vec![], items: vec![], questions: questions.clone() };
    let asked = |choices: &[&str]| {
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Asked {
                text: "Welches Format? 形式は".to_owned(),
                choices: choices.iter().map(|choice| (*choice).to_owned()).collect(),
                about: None,
            },
        )
    };
    vec![
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Started { base: None, answers: questions.clone(), pid: None },
        ),
        Event::Under(
            Under { step: step.clone(), fence },
            Fact::Completed { commit: None, waived: Some(waived) },
        ),
        asked(&[]),
        asked(&["JWT", "opaque"]),
        Event::Answered {
            step: step.clone(),
            question: QuestionId(12),
            answer: "JWT".to_owned(),
            host: host("here"),
        },
        Event::Under(Under { step: step.clone(), fence }, Fact::AnswersApplied { questions }),
        Event::Under(Under { step: step.clone(), fence }, Fact::Suspended {}),
        Event::PlanAccepted { plan: Hash::of(b"plan"), text: "plan".to_owned() },
        Event::Under(
            Under { step, fence },
            Fact::CheckoutChanged(CheckoutChanges { files: vec!["src/ü.ts".to_owned()], more: 3 }),
        ),
        Event::MergeIntended(MergeIntent {
            into: "main".to_owned(),
            onto: oid(1),
            to: oid(2),
            tip: oid(3),
        }),
        Event::Merged { into: "main".to_owned(), commit: oid(2), tip: oid(3) },
    ]
}

fn report() -> Report {
    let file = |path: &str| ReportedFile {
        path: path.to_owned(),
        line: None,
        done: None,
        confidence: None,
    };
    Report {
        progress: Some(40),
        confidence: Some("0.8".to_owned()),
        note: Some("the key rotation is next".to_owned()),
        task: Some("validateToken".to_owned()),
        eta: Some("20m".to_owned()),
        done: Some("parsing".to_owned()),
        next: Some("expiry".to_owned()),
        session: Some("s-1".to_owned()),
        files: vec![
            ReportedFile {
                line: Some(12),
                done: Some(false),
                confidence: Some("0.5".to_owned()),
                ..file("src/auth.ts")
            },
            file("src/key.ts"),
        ],
        data: Some(r#"{"dependencies":["jose"]}"#.to_owned()),
    }
}

/// The order of the samples. A new kind of event does not compile until it is listed here.
fn kind(event: &Event) -> u8 {
    match event {
        Event::RunOpened(_) => 0,
        Event::Claimed(_) => 1,
        Event::Under(_, Fact::Started { .. }) => 2,
        Event::Under(_, Fact::Checkpointed { .. }) => 3,
        Event::Under(_, Fact::Verified { .. }) => 4,
        Event::Under(_, Fact::LandingIntended(_)) => 5,
        Event::Under(_, Fact::Completed { .. }) => 6,
        Event::Under(_, Fact::Failed { .. }) => 7,
        Event::Under(_, Fact::Interrupted(_)) => 8,
        Event::StopRequested { .. } => 9,
        Event::Resumed { .. } => 10,
        Event::Under(_, Fact::SubstepCompleted { .. }) => 11,
        Event::Under(_, Fact::ItemAdded { .. }) => 12,
        Event::Under(_, Fact::ItemsMarked { .. }) => 13,
        Event::Under(_, Fact::Released { .. }) => 14,
        Event::Reset { .. } => 15,
        Event::Under(_, Fact::Asked { .. }) => 16,
        Event::Answered { .. } => 17,
        Event::Under(_, Fact::AnswersApplied { .. }) => 18,
        Event::Under(_, Fact::Suspended { .. }) => 19,
        Event::PlanAccepted { .. } => 20,
        Event::Under(_, Fact::CheckoutChanged(_)) => 21,
        Event::Abandoned { .. } => 22,
        Event::Reopened { .. } => 23,
        Event::MergeIntended(_) => 24,
        Event::Merged { .. } => 25,
    }
}

fn opened(remote: Option<&str>, opened_in: Option<&str>, base_branch: Option<&str>) -> Event {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Event::RunOpened(RunOpened {
        run: RunId(Uuid::from_u128(1)),
        handle: Handle::new("auth-system-steady-otter").unwrap(),
        plan: Hash::of(b"plan"),
        plan_path: "plans/auth.toml".to_owned(),
        opened_in: owned(opened_in),
        repository: Repository { root: oid(1), remote: owned(remote) },
        base: oid(2),
        base_branch: owned(base_branch),
        inputs: BTreeMap::from([("focus".to_owned(), "security".to_owned())]),
        settings: Hash::of(b"settings"),
        host: host("here"),
    })
}

fn claimed(entry: Entry, grounds: Grounds) -> Claimed {
    let boot = BootId("b1".to_owned());
    let clock = (grounds == Grounds::Free).then(|| BootClock { boot: boot.clone(), ms: 61_000 });
    Claimed {
        step: StepRef { step: id("review"), iteration: 3 },
        attempt: AttemptId(Uuid::from_u128(2)),
        holder: Holder::Keeper { host: host("here"), boot },
        entry,
        grounds,
        until: Moment { wall: Millis(1_767_225_660_000), clock },
        plan: Hash::of(b"plan"),
        tree: Some(TreeNo(2)),
        displaces: None,
        pid: None,
    }
}

fn kept(reason: SnapshotReason) -> Snapshot {
    let omitted = match reason {
        SnapshotReason::Recovery => vec![Omission {
            path: "build/pipe".to_owned(),
            why: "a FIFO has no content".to_owned(),
        }],
        _ => Vec::new(),
    };
    Snapshot {
        commit: oid(8),
        tree: oid(9),
        refname: "refs/piton/auth-system-steady-otter/jwt/7/1".to_owned(),
        changed: 12,
        omitted,
        reason,
        head: None,
        commits: 0,
    }
}
