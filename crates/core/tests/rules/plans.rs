//! A plan that is changed under its run: what may be accepted, what becomes of the steps, and that a
//! log with accepted plans folds to the same run again.

use std::sync::Arc;

use piton_core::decide::Command;
use piton_core::decided::KeyChange;
use piton_core::event::Event;
use piton_core::plan::Plan;
use piton_core::refusal::Refusal;

use crate::history::{History, answer, at, plan, repacked, told};

const BEFORE: &str = "a command
     b agent needs=a items=2
     c command";

fn accepted(history: &mut History, changed: Plan) -> String {
    match history.submit(&Command::AcceptPlan { plan: Arc::new(changed) }) {
        Ok(events) if events.is_empty() => "nothing".to_owned(),
        Ok(events) => events.iter().map(told).collect::<Vec<_>>().join(", "),
        Err(refusal) => format!("no: {refusal}"),
    }
}

/// After `log`, this plan is answered by `expect`; a refusal changes nothing.
#[track_caller]
fn check(log: &str, changed: &str, expect: &str) -> History {
    let mut history = History::open(plan(BEFORE));
    history.play(log);
    let (records, before) = (history.records.len(), history.run.clone());
    assert_eq!(accepted(&mut history, plan(changed)), expect);
    if expect != "plan accepted" {
        assert_eq!(history.records.len(), records);
        assert!(history.run == before);
    }
    assert!(history.replayed() == history.run, "the log folds to the same run");
    assert!(repacked(&history.run) == history.run, "what is kept beside it too");
    history
}

const DONE: &str = "claim a, start a, verify a, complete a";

#[test]
fn what_nobody_has_touched_may_change() {
    check("", BEFORE, "nothing");
    for changed in [
        "a command\nb agent needs=a items=2\nc command\nd agent needs=c",
        "c command\nb agent needs=a items=2\na command",
        "a command\nb agent needs=a,c items=3\nc command",
        "a command\nc command",
    ] {
        check("", changed, "plan accepted");
        let changed = check(DONE, changed, "plan accepted");
        assert!(changed.run.step(&at("a")).unwrap().1.is_completed(), "it is known by its id");
    }
}

#[test]
fn what_is_claimed_or_completed_may_not() {
    let refused = |steps: &str| {
        format!(
            "no: the changed plan changes or removes steps that are claimed or completed: {steps}"
        )
    };
    let without_a = "b agent items=2\nc command";
    let other_a = "a agent\nb agent needs=a items=2\nc command";
    for log in [DONE, "claim a", "claim a from x"] {
        check(log, without_a, &refused("a"));
        check(log, other_a, &refused("a"));
    }
    check(&format!("{DONE}, claim c from x"), "b agent", &refused("a, c"));
    // What has ended otherwise may change.
    for log in ["claim a, start a, fail a exit", "claim a, interrupt a unstarted"] {
        let mut changed = check(log, other_a, "plan accepted");
        let (_, state) = changed.run.step(&at("a")).unwrap();
        assert_eq!((state.failures, state.history.len()), (0, 1), "anew, with its history");
        assert_eq!(answer(&mut changed, "claim a"), "claimed a fresh");
    }
}

/// A plan-wide `on_interrupt` changes every step; what is done cannot be interrupted any more.
#[test]
fn how_a_completed_step_would_have_gone_on_may_change() {
    let asking = "a command then=ask\nb agent needs=a items=2 then=ask\nc command then=ask";
    let mut changed = check(DONE, asking, "plan accepted");
    assert!(changed.run.step(&at("a")).unwrap().1.is_completed());
    changed.play("claim c, start c, bury c none");
    assert_eq!(changed.run.questions().count(), 1, "the others go on as the plan says now");
    let refused = "no: the changed plan changes or removes steps that are claimed or completed: c";
    check(&format!("{DONE}, claim c"), asking, refused);
    let other = "a agent then=ask\nb agent needs=a items=2\nc command";
    let refused = "no: the changed plan changes or removes steps that are claimed or completed: a";
    check(DONE, other, refused);
}

#[test]
fn what_was_recorded_with_the_run_may_not() {
    let mut history = History::open(plan(BEFORE));
    let other = |change: fn(&mut Plan)| {
        let mut other = plan(BEFORE);
        change(&mut other);
        other
    };
    let fixed = |what| {
        format!(
            "no: the changed plan has another {what}, which was recorded when the run was opened"
        )
    };
    let base = other(|plan| plan.base = Some("side".to_owned()));
    assert_eq!(accepted(&mut history, base), fixed("base"));
    let inputs = other(|plan| drop(plan.inputs.insert("focus".to_owned(), "speed".to_owned())));
    assert_eq!(accepted(&mut history, inputs), fixed("inputs"));
}

#[test]
fn states_survive_by_id_and_needs_follow_the_new_plan() {
    let log =
        "claim a, start a, verify a, complete a, claim b, start b, check b 1, force-release b";
    let reordered = "d command\nc command needs=d\nb agent needs=a items=2\na command";
    let mut history = check(log, reordered, "plan accepted");
    let (_, state) = history.run.step(&at("b")).unwrap();
    assert_eq!(state.checklist.marks.len(), 1, "an unchanged step keeps what was done of it");
    assert_eq!(answer(&mut history, "claim c"), "no: step c waits for d");
    assert_eq!(answer(&mut history, "claim d"), "claimed d fresh");
    // One that is changed has another checklist.
    let changed = "a command\nb agent needs=a items=3\nc command";
    let history = check(log, changed, "plan accepted");
    assert!(history.run.step(&at("b")).unwrap().1.checklist.marks.is_empty());
}

#[test]
fn a_claim_names_the_plan_in_force() {
    let mut history = check("", "a command\nb agent", "plan accepted");
    let Event::Claimed(claimed) = history.say("claim a").unwrap().remove(0) else { panic!() };
    assert_eq!(claimed.plan, plan("a command\nb agent").hash());
    assert_ne!(claimed.plan, history.run.opened.plan);
}

#[test]
fn a_plan_without_what_is_left_completes_the_run() {
    let history = check(DONE, "a command", "plan accepted");
    assert!(history.run.is_completed());
    assert_eq!(history.key, KeyChange::Freed);
    let mut history = history;
    let more = Command::AcceptPlan { plan: Arc::new(plan(BEFORE)) };
    assert_eq!(history.submit(&more), Err(Refusal::RunCompleted));
}
