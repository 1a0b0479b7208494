//! Outputs: what a step publishes reaches those that need it, before the step is done; what it lacks keeps
//! it from being done; a reset takes it back.

use std::time::Duration;

use piton_core::brief::{TreeFacts, prompt};
use piton_core::event::Entry;
use piton_core::plan::Isolation;
use piton_core::view::{StepStatus, view};

use crate::history::{History, answer, at, check_in, output_name, plan, repacked};

const PLAN: &str = "jwt agent outputs=interface\n\
                    routes agent needs=jwt:interface\n\
                    docs agent needs=jwt\n\
                    review agent retries=1 outputs=score score=0.8";

fn history() -> History {
    let mut plan = plan(PLAN);
    (plan.isolation, plan.jobs) = (Isolation::Step, Some(4));
    History::open(plan)
}

/// In this plan, after `log`, `command` is answered by `expect`.
#[track_caller]
fn check(log: &str, command: &str, expect: &str) {
    check_in(history(), log, command, expect);
}

#[test]
fn who_needs_an_output_starts_with_it_and_not_with_the_step() {
    check("", "claim routes", "no: step routes waits for jwt:interface");
    check("claim jwt, start jwt", "claim routes", "no: step routes waits for jwt:interface");
    let set = "claim jwt, start jwt, output jwt interface {\"a\": 1}";
    check(set, "claim routes", "claimed routes fresh");
    check(set, "claim docs", "no: step docs waits for jwt");
    check(&format!("{set}, bury jwt none"), "claim routes", "claimed routes fresh");
    check(&format!("{set}, fail jwt exit"), "claim routes", "claimed routes fresh");
    check("skip jwt later", "claim routes", "claimed routes fresh");
    let reset = format!("{set}, fail jwt exit, reset jwt");
    check(&reset, "claim routes", "no: step routes waits for jwt:interface");
}

#[test]
fn only_the_claim_publishes_and_only_json() {
    let held = "claim jwt, start jwt";
    check("", "output jwt interface 1", "no: step jwt is not claimed, and fence 0 is over");
    check(
        held,
        "output jwt@1 interface 1",
        "no: step jwt is no longer yours: its fence is 2, yours was 1",
    );
    check(held, "output jwt interface [1]", "output set jwt interface [1]");
    check(held, "output jwt other \"x\"", "output set jwt other \"x\"");
    check(
        held,
        "output jwt interface {a",
        "no: the output cannot be published: it is not JSON: key must be a string at line 1 column 2",
    );
    check(&format!("{held}, output jwt interface 1"), "output jwt interface 1", "nothing");
    check(
        &format!("{held}, output jwt interface 1"),
        "output jwt interface 2",
        "output set jwt interface 2",
    );
    let long = format!("\"{}\"", "x".repeat(5000));
    check(
        held,
        &format!("output jwt interface {long}"),
        "output set jwt interface 5002 bytes of JSON",
    );
}

#[test]
fn a_step_is_done_with_its_outputs() {
    let at_work = "claim jwt, start jwt";
    let open = "no: step jwt has not published its outputs: interface";
    check(at_work, "verify jwt", open);
    check(&format!("{at_work}, output jwt interface 1"), "verify jwt", "verified jwt");
    check("claim jwt from x", "finish jwt", open);
    check("claim jwt from x", "waive jwt", "completed jwt without interface");
    // The next attempt has what the one before had published.
    let interrupted =
        format!("{at_work}, output jwt interface 1, bury jwt none, claim jwt, start jwt");
    check(&interrupted, "verify jwt", "verified jwt");
}

#[test]
fn a_step_is_found_done_before_anything_is_started() {
    check("claim jwt", "find-done jwt", "found done jwt");
    check(
        "claim jwt, start jwt",
        "find-done jwt",
        "no: the agent of step jwt has ended: there is nothing to start",
    );
    check(
        "claim jwt from x",
        "find-done jwt",
        "no: the agent of step jwt has ended: there is nothing to start",
    );
    check("claim jwt, find-done jwt", "claim docs", "claimed docs fresh");
    check("claim jwt, find-done jwt", "claim routes", "claimed routes fresh");
    let mut history = history();
    history.play("claim jwt, find-done jwt");
    let observed = history.seeing(&piton_core::observed::Sighting::Alive);
    let shown = view(&history.run, &observed, &history.leases, &history.now);
    assert_eq!(shown.steps[0].truth, piton_core::event::Truth::Verified);
    assert_eq!(shown.steps[0].attempts[0].state, "found");
    assert_eq!(history.replayed(), history.run);
}

#[test]
fn a_score_must_satisfy_its_bound() {
    let at_work = "claim review, start review";
    let scored = |score: &str| format!("{at_work}, output review score {score}");
    check(&scored("0.8"), "verify review", "verified review");
    let short = "no: output score of step review is 0.6, and must be >= 0.8";
    check(&scored("0.6"), "verify review", short);
    check(&format!("{}, output review score 1", scored("0.6")), "verify review", "verified review");
    check("claim review from x, output review score 0.6", "finish review", short);
    check(
        "claim review from x, output review score 0.6",
        "waive review",
        "completed review without score",
    );
}

#[test]
fn a_wait_is_since_it_was_first_said_and_never_for_itself() {
    let mut history = history();
    history.play("claim jwt, claim review");
    assert_eq!(
        answer(&mut history, "await review jwt:interface"),
        "output awaited review jwt:interface"
    );
    let since = history.now.wall;
    history.pass(Duration::from_secs(60));
    assert_eq!(answer(&mut history, "await review jwt:interface"), "nothing");
    let shown = |history: &History| {
        let observed = history.seeing(&piton_core::observed::Sighting::Alive);
        let view = view(&history.run, &observed, &history.leases, &history.now);
        view.steps[3].awaits_output.clone()
    };
    assert_eq!(shown(&history).expect("it waits").since, since);
    history.run = repacked(&history.run);
    assert_eq!(shown(&history).expect("it still waits").since, since);
    history.play("output jwt interface 1");
    assert_eq!(shown(&history), None);
}

#[test]
fn where_steps_come_one_at_a_time_nothing_else_could_publish() {
    let one_at_a_time = || History::open(plan(PLAN));
    let itself =
        "no: step review would wait for itself: no other step is at work that could publish";
    check_in(
        one_at_a_time(),
        "claim review",
        "await review jwt:interface",
        &format!("{itself} jwt:interface"),
    );
    check_in(
        one_at_a_time(),
        "claim review",
        "await review interface",
        &format!("{itself} interface"),
    );
    check_in(
        one_at_a_time(),
        "claim review",
        "await review nowhere:x",
        "no: the plan has no step nowhere",
    );
    let outside = "claim jwt from x, claim review";
    let awaited = "output awaited review jwt:interface";
    check_in(one_at_a_time(), outside, "await review jwt:interface", awaited);
    check_in(one_at_a_time(), "claim review from x", "await review jwt:interface", awaited);
    check_in(
        one_at_a_time(),
        "claim review, skip jwt later",
        "await review jwt:interface",
        "no: step jwt is done and has no output interface",
    );
    let there = "claim jwt from x, output jwt interface 1, claim review";
    check_in(one_at_a_time(), there, "await review interface", "nothing");
}

#[test]
fn the_last_in_plan_order_is_meant_by_a_name_alone() {
    let mut history = history();
    history.play("claim jwt, output jwt note 1, claim review, output review note 2");
    let of = |history: &History, name: &str| {
        let (step, published) = history.run.output(&name.parse().unwrap())?;
        Some((step.to_string(), published.value.to_string()))
    };
    assert_eq!(of(&history, "note"), Some(("review".into(), "2".into())));
    assert_eq!(of(&history, "jwt:note"), Some(("jwt".into(), "1".into())));
    assert_eq!(of(&history, "docs:note"), None);
}

#[test]
fn needed_outputs_are_told_and_shown() {
    let mut history = history();
    history.play("claim jwt, start jwt, output jwt interface {\"a\": 1}, output jwt note 2");
    let given = |history: &History, step: &str| {
        let given = history.run.given_outputs(&at(step));
        given.iter().map(|given| format!("{}:{}", given.of, given.name)).collect::<Vec<_>>()
    };
    assert_eq!(given(&history, "routes"), ["jwt:interface"]);
    assert_eq!(given(&history, "docs"), ["jwt:interface", "jwt:note"]);
    assert_eq!(given(&history, "review"), [""; 0]);
    let told = prompt(&history.run, &at("routes"), Entry::Fresh, &TreeFacts::default()).unwrap();
    insta::assert_snapshot!(told.text, @r#"
    work

    ---
    piton runs this step and keeps its work. These commands work here:
    - `piton checkpoint --note 'what is done, what is next'`: a later attempt reads it.
    - `piton ask 'QUESTION' --wait`: asks a person, and prints the answer.
    - `piton output set NAME < FILE`: publishes JSON for other steps.
    Published by other steps:
    - jwt:interface = {"a": 1}
    "#);
    let own = prompt(&history.run, &at("review"), Entry::Fresh, &TreeFacts::default()).unwrap();
    assert!(own.text.contains("Publish `score`, a number >= 0.8 before you end."), "{}", own.text);
    let observed = history.seeing(&piton_core::observed::Sighting::Alive);
    let view = view(&history.run, &observed, &history.leases, &history.now);
    assert_eq!(view.steps[0].unpublished, []);
    assert_eq!(view.steps[3].unpublished, [output_name("score")]);
    assert!(matches!(view.steps[1].status, StepStatus::Pending), "{:?}", view.steps[1].status);
    insta::assert_json_snapshot!(view.steps[0].outputs, @r#"
    [
      {
        "output": "interface",
        "value": {
          "a": 1
        },
        "bytes": 8,
        "at": "1970-01-01T00:16:40.000Z",
        "fence": 2
      },
      {
        "output": "note",
        "value": 2,
        "bytes": 1,
        "at": "1970-01-01T00:16:40.000Z",
        "fence": 2
      }
    ]
    "#);
}
