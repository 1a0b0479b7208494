//! The format of event bodies: a checked-in sample of every kind, written by version 1, must be read
//! as what it meant then, and written the same today. Fields that this piton does not know are passed
//! over.

use std::collections::BTreeSet;

use piton_core::event::{BadEvent, EVENT_VERSION, Event, Fact};
use serde_json::Value;

const SAMPLES: &str = include_str!("../fixtures/events-v1.jsonl");

#[test]
fn every_kind_of_version_1_is_still_read_as_it_was_meant() {
    let (mut meant, mut kinds) = (Vec::new(), BTreeSet::new());
    for line in SAMPLES.lines() {
        let event = Event::from_body(line.as_bytes()).unwrap_or_else(|bad| panic!("{bad}: {line}"));
        assert_eq!(String::from_utf8(event.to_body()).unwrap(), line);
        kinds.insert(kind(&event));
        meant.push(format!("{event:?}"));
    }
    insta::assert_snapshot!("events", meant.join("\n"));
    assert!(kinds.into_iter().eq(0..KINDS), "a new kind needs its line in events-v1.jsonl");
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

const KINDS: u8 = 36;

/// A new kind of event does not compile until it is listed here, and fails until it has a sample.
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
        Event::Under(_, Fact::Conversed(_)) => 29,
        Event::Under(_, Fact::OutputSet { .. }) => 30,
        Event::Under(_, Fact::OutputAwaited { .. }) => 31,
        Event::Under(_, Fact::Unkept { .. }) => 32,
        Event::Under(_, Fact::FoundDone { .. }) => 33,
        Event::Under(_, Fact::Limited(_)) => 34,
        Event::Under(_, Fact::LimitLifted { .. }) => 35,
        Event::Abandoned { .. } => 22,
        Event::Reopened { .. } => 23,
        Event::MergeIntended(_) => 24,
        Event::Merged { .. } => 25,
        Event::Retried { .. } => 26,
        Event::Skipped { .. } => 27,
        Event::Found(_) => 28,
    }
}
