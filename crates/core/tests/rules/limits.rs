//! Limits: who waits for which account and how long, who goes first afterwards, and when a person is asked.

use std::time::Duration;

use piton_core::event::Under;
use piton_core::observed::{Corpse, Observed};
use piton_core::plan::{Isolation, Plan};
use piton_core::recover::{Action, recover};
use piton_core::view::view;

use crate::history::{History, at, check_in, corpse, plan, repacked};

/// `a` to `c` are on one account, `d` is on another, `e` has none.
const PLAN: &str = "a agent retries=1
                    b agent
                    c twin
                    d other
                    e command
                    f agent needs=e limit=ask";

fn history() -> History {
    History::open(Plan { isolation: Isolation::Step, jobs: Some(4), ..plan(PLAN) })
}

#[track_caller]
fn check(log: &str, command: &str, expect: &str) {
    check_in(history(), log, command, expect);
}

/// After `log`, the statuses of the run and of its steps, and what a worker does about them.
fn seen(log: &str) -> String {
    let mut history = history();
    history.play(log);
    assert_eq!(history.replayed(), history.run);
    assert_eq!(repacked(&history.run), history.run);
    let seen = Observed::default();
    let view = view(&history.run, &seen, &history.leases, &history.now);
    let recoveries = recover(&history.run, &seen, &history.leases, &history.now);
    let does = recoveries.iter().map(|recovery| match &recovery.action {
        Action::Start { .. } => "start",
        Action::AwaitLimit { probe: Some(_), .. } => "await probe",
        Action::AwaitLimit { probe: None, .. } => "await limit",
        Action::AwaitLease { .. } | Action::Adopt { .. } => "held",
        Action::AwaitAnswer { .. } => "await answer",
        Action::AwaitNeeds => "await needs",
        Action::StayStopped => "stopped",
        _ => "-",
    });
    let steps = view.steps.iter().zip(does);
    let steps: Vec<String> = steps
        .map(|(step, does)| format!("{} {} ({does})", step.step, step.status.word()))
        .collect();
    format!("{}: {}", view.status.word(), steps.join(", "))
}

const A_IS_LIMITED: &str = "claim a, start a, limit a 100";

#[test]
fn everything_on_the_account_waits_and_the_rest_goes_on() {
    insta::assert_snapshot!(seen(A_IS_LIMITED), @"open: a parked (await limit), b parked (await limit), c parked (await limit), d pending (start), e pending (start), f blocked (await needs)");
    check("claim a, start a", "limit a 100", "limited a fake twin");
    check(
        A_IS_LIMITED,
        "claim b",
        "no: step b waits until the limit of account fake is over (1970-01-01T00:18:30.000Z)",
    );
    check(
        A_IS_LIMITED,
        "claim c",
        "no: step c waits until the limit of account fake is over (1970-01-01T00:18:30.000Z)",
    );
    check(A_IS_LIMITED, "claim d", "claimed d fresh");
    check(A_IS_LIMITED, "claim b from x", "claimed b fresh");
}

#[test]
fn a_run_is_parked_when_nothing_else_can_be_started() {
    let done = |step: &str| {
        format!("claim {step}, start {step}, verify {step}, land {step}, complete {step}")
    };
    let log = format!("{}, {}, {A_IS_LIMITED}", done("d"), done("e"));
    insta::assert_snapshot!(seen(&log), @"parked: a parked (await limit), b parked (await limit), c parked (await limit), d completed (-), e completed (-), f parked (await limit)");
}

#[test]
fn it_costs_no_retry_and_the_work_goes_on() {
    let log = "claim a, start a, checkpoint a 3, limit a 100, wait 109";
    check(
        log,
        "claim a",
        "no: step a waits until the limit of account fake is over (1970-01-01T00:18:30.000Z)",
    );
    let over = format!("{log}, wait 1");
    check(&over, "claim a", "claimed a continue");
    let mut history = history();
    history.play(&over);
    let (plan, state) = history.run.step(&at("a")).unwrap();
    assert_eq!((state.failures, state.idle(), state.tries_left(plan)), (0, 0, 2));
}

#[test]
fn one_goes_first_and_the_others_follow_once_it_works() {
    let over = format!("{A_IS_LIMITED}, wait 110");
    insta::assert_snapshot!(seen(&over), @"open: a pending (start), b pending (await probe), c pending (await probe), d pending (start), e pending (start), f blocked (await needs)");
    let probed = format!("{over}, claim b, start b");
    insta::assert_snapshot!(seen(&probed), @"running: a parked (await probe), b running (held), c parked (await probe), d pending (start), e pending (start), f blocked (await needs)");
    check(&probed, "works b", "limit lifted b fake");
    check(&format!("{probed}, works b"), "claim a", "claimed a fresh");
    check(&format!("{probed}, works b"), "works b", "nothing");
    // Whoever had begun before shows nothing.
    check("claim a, start a, claim b, start b, limit a 100", "works b", "nothing");
    // A probe that ends without a word leaves the place to another.
    check(&format!("{probed}, fail b exit"), "claim a", "claimed a fresh");
}

#[test]
fn a_limit_that_is_met_again_is_waited_for_longer() {
    let until = |log: &str| {
        let mut history = history();
        history.play(log);
        let agent = piton_core::ids::AgentName::new("fake").unwrap();
        let (_, limit) = history.run.limits().of(&agent).expect("a limit");
        limit.until.since(history.now.wall)
    };
    let again = "claim a, start a, limit a unknown";
    assert_eq!(until(again), Duration::from_secs(120));
    assert_eq!(until(&format!("{again}, wait 120, {again}")), Duration::from_secs(240));
    let twice = "claim a, start a, claim b, start b, limit a unknown, limit b unknown";
    assert_eq!(until(twice), Duration::from_secs(120), "both met the same one");
    let later = "claim a, start a, claim b, start b, limit a 1000, limit b 10";
    assert_eq!(until(later), Duration::from_secs(1010), "the later instant counts");
}

#[test]
fn what_does_not_pass_by_itself_is_asked() {
    let log = "claim a, start a, limit a spend";
    check(
        "claim a, start a",
        "limit a spend",
        "limited a fake twin, asked a try again / skip / stop",
    );
    check(
        "claim a, start a",
        "limit a sign-in",
        "limited a fake twin, asked a try again / skip / stop",
    );
    check(
        log,
        "claim b",
        "no: step a waits for the answer to q5: a: account fake has no credit left (no more): is it tried again?",
    );
    insta::assert_snapshot!(seen(log), @"open: a waiting (await answer), b pending (await answer), c pending (await answer), d pending (start), e pending (start), f blocked (await needs)");
    let answered = format!("{log}, answer a try again");
    check(&answered, "claim b", "claimed b fresh");
    check(
        &format!("{answered}, claim b"),
        "claim a",
        "no: step a waits until the limit of account fake is over (1970-01-01T00:16:40.000Z)",
    );
    check(&format!("{log}, answer a skip"), "claim b", "claimed b fresh");
    check(&format!("{log}, resume confirmed"), "claim a", "claimed a fresh");
    // Another that meets the same asks nothing new.
    check(
        "claim a, start a, claim b, start b, limit a spend",
        "limit b spend",
        "limited b fake twin",
    );
}

#[test]
fn a_person_may_be_asked_about_a_limit() {
    let log = "claim e, start e, verify e, land e, complete e, claim f, start f, limit f 100";
    insta::assert_snapshot!(seen(log), @"open: a pending (await answer), b pending (await answer), c pending (await answer), d pending (start), e completed (-), f waiting (await answer)");
    check(
        &format!("{log}, answer f wait"),
        "claim f",
        "no: step f waits until the limit of account fake is over (1970-01-01T00:18:30.000Z)",
    );
    check(&format!("{log}, answer f try again"), "claim f", "claimed f fresh");
    check(A_IS_LIMITED, "retry a", "retried a");
    check(&format!("{A_IS_LIMITED}, retry a"), "claim a", "claimed a continue");
}

#[test]
fn a_limit_is_found_in_the_exit_record_of_a_dead_keeper() {
    let mut history = history();
    history.play("claim a, start a");
    let request = history.command("limit a 100");
    let piton_core::decide::Command::Under(under, piton_core::decide::Request::Park(heard)) =
        request
    else {
        panic!("a limit is said under a claim");
    };
    let dead = Corpse { heard: Some(heard), at: history.now.wall, ..corpse("1") };
    let Under { step, fence } = under;
    let bury = piton_core::decide::Request::Bury(dead);
    let events = history
        .submit(&piton_core::decide::Command::Under(Under { step, fence }, bury))
        .expect("buried");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].name(), "limited");
}

#[test]
fn a_stop_holds_a_parked_step_back() {
    let log = "claim a, start a, stop a, limit a 10, wait 20";
    check(log, "claim a", "no: step a was stopped on request");
    check(&format!("{log}, resume"), "claim a", "claimed a fresh");
}
