//! The format of event bodies: a checked-in sample of every kind, written by version 1, must be read
//! as what it meant then, and written the same today. Fields that this piton does not know are passed
//! over.

use std::collections::BTreeMap;

use piton_core::event::{
    BadEvent, Cause, Check, Claimed, EVENT_VERSION, Entry, Event, Exit, Failure, Grounds, Haste,
    Holder, Omission, Repository, RunOpened, Scope, Snapshot, SnapshotReason, Stage, Truth,
};
use piton_core::ids::{AttemptId, BootId, Fence, Handle, Hash, RunId, StepRef};
use piton_core::time::{BootClock, Millis, Moment};
use serde_json::Value;
use uuid::Uuid;

use crate::history::{host, id, oid};

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

/// One of every kind, and every variant of what they carry.
fn samples() -> Vec<Event> {
    let step = StepRef::first(id("jwt"));
    let fence = Fence(7);
    let mut all = vec![
        opened(Some("https://example.org/repo.git".to_owned()), None),
        opened(None, None),
        opened(None, Some("/home/somebody/side".to_owned())),
        Event::Started { step: step.clone(), fence, base: oid(3) },
        Event::LandingIntended { step: step.clone(), fence, onto: oid(3), to: oid(4) },
        Event::Completed { step: step.clone(), fence, commit: oid(4) },
        Event::Resumed { host: host("here"), confirmed: false },
        Event::Resumed { host: host("here"), confirmed: true },
    ];
    for entry in [Entry::Fresh, Entry::Continue, Entry::Verify, Entry::Land] {
        for grounds in [Grounds::Free, Grounds::LeaseOver] {
            all.push(claimed(entry, grounds));
        }
    }
    for reason in [
        SnapshotReason::Cadence,
        SnapshotReason::End,
        SnapshotReason::Recovery,
        SnapshotReason::Reset,
    ] {
        all.push(Event::Checkpointed { step: step.clone(), fence, snapshot: kept(reason) });
    }
    for truth in [Truth::Verified, Truth::Claimed, Truth::Unknown] {
        let check = (truth == Truth::Verified).then(|| Check {
            command: "npm test -- auth".to_owned(),
            exit: Exit::Code(0),
            output: Hash::of(b"ok"),
            ms: 1_234,
        });
        let (commit, tree) = (oid(4), oid(5));
        all.push(Event::Verified { step: step.clone(), fence, commit, tree, truth, check });
    }
    for why in [
        Failure::Exit { exit: Exit::Code(1), tail: "no such file\n".to_owned() },
        Failure::Exit { exit: Exit::Signal(11), tail: String::new() },
        Failure::Verify { exit: Exit::Code(2), tail: "1 failed ✗".to_owned() },
        Failure::Timeout { ms: 5_400_000 },
        Failure::Landing { message: "src/auth.ts conflicts".to_owned() },
    ] {
        all.push(Event::Failed { step: step.clone(), fence, why });
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
        all.push(Event::Interrupted { step, fence, cause, at, evidence, left_at });
    }
    for scope in [Scope::Run, Scope::Attempt { step: step.clone(), fence }] {
        for haste in [Haste::Graceful, Haste::Now] {
            let (scope, cause) = (scope.clone(), Cause::UserInterrupt);
            all.push(Event::StopRequested { scope, cause, haste });
        }
    }
    all.sort_by_key(kind);
    all
}

/// The order of the samples. A new kind of event does not compile until it is listed here.
fn kind(event: &Event) -> u8 {
    match event {
        Event::RunOpened(_) => 0,
        Event::Claimed(_) => 1,
        Event::Started { .. } => 2,
        Event::Checkpointed { .. } => 3,
        Event::Verified { .. } => 4,
        Event::LandingIntended { .. } => 5,
        Event::Completed { .. } => 6,
        Event::Failed { .. } => 7,
        Event::Interrupted { .. } => 8,
        Event::StopRequested { .. } => 9,
        Event::Resumed { .. } => 10,
    }
}

fn opened(remote: Option<String>, opened_in: Option<String>) -> Event {
    Event::RunOpened(RunOpened {
        run: RunId(Uuid::from_u128(1)),
        handle: Handle::new("auth-system-steady-otter").unwrap(),
        plan: Hash::of(b"plan"),
        plan_path: "plans/auth.toml".to_owned(),
        opened_in,
        repository: Repository { root: oid(1), remote },
        base: oid(2),
        inputs: BTreeMap::from([("focus".to_owned(), "security".to_owned())]),
        settings: Hash::of(b"settings"),
        host: host("here"),
    })
}

fn claimed(entry: Entry, grounds: Grounds) -> Event {
    let boot = BootId("b1".to_owned());
    let clock = (grounds == Grounds::Free).then(|| BootClock { boot: boot.clone(), ms: 61_000 });
    Event::Claimed(Claimed {
        step: StepRef { step: id("review"), iteration: 3 },
        attempt: AttemptId(Uuid::from_u128(2)),
        holder: Holder::Keeper { host: host("here"), boot },
        entry,
        grounds,
        until: Moment { wall: Millis(1_767_225_660_000), clock },
        plan: Hash::of(b"plan"),
    })
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
    }
}
