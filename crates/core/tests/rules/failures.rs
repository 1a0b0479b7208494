//! Failures: what goes on beside a step that failed, what asks, and what a person does about it.

use piton_core::decided::KeyChange;
use piton_core::observed::Observed;
use piton_core::plan::{OnFailure, Plan};
use piton_core::view::view;

use crate::history::{History, answer, check_in, plan, repacked};

/// `a` to `d` need nothing, and `last` needs `a`.
const PLAN: &str = "a command
                    b command
                    c command
                    d agent retries=3
                    last command needs=a";

fn history() -> History {
    History::open(plan(PLAN))
}

#[track_caller]
fn check(log: &str, command: &str, expect: &str) {
    check_in(history(), log, command, expect);
}

/// After `log`, the statuses of the run and of its steps.
#[track_caller]
fn check_view(log: &str, expect: &str) {
    let mut history = history();
    history.play(log);
    assert_eq!(history.replayed(), history.run);
    assert_eq!(repacked(&history.run), history.run);
    let view = view(&history.run, &Observed::default(), &history.leases, &history.now);
    let steps = view.steps.iter().map(|step| step.status.word());
    let words: Vec<&str> = std::iter::once(view.status.word()).chain(steps).collect();
    assert_eq!(words.join(" "), expect, "after {log:?}");
}

fn failed(step: &str, how: &str) -> String {
    format!("claim {step}, start {step}, fail {step} {how}")
}

fn done(step: &str) -> String {
    format!("claim {step}, start {step}, verify {step}, land {step}, complete {step}")
}

fn all(parts: &[String]) -> String {
    parts.join(", ")
}

#[test]
fn what_does_not_need_a_failed_step_goes_on() {
    let a = failed("a", "exit");
    check(&a, "claim b", "claimed b fresh");
    check(&a, "claim last", "no: step last waits for a");
    check_view(&a, "open failed pending pending pending blocked");
    let rest = all(&[a.clone(), done("b"), done("c"), done("d")]);
    check_view(&rest, "failed failed completed completed completed blocked");
    let stopped = all(&[a.clone(), done("b"), done("c"), "claim d, start d".to_owned()]);
    check_view(&stopped, "running failed completed completed running blocked");
    let stopped = format!("{stopped}, stop d, interrupt d agent");
    check_view(&stopped, "interrupted failed completed completed interrupted blocked");
    check(&stopped, "claim d", "no: step d was stopped on request");
}

#[test]
fn a_plan_may_want_nothing_started_after_a_failure() {
    let stop = || History::open(Plan { on_failure: OnFailure::Stop, ..plan(PLAN) });
    let a = failed("a", "exit");
    check_in(stop(), &a, "claim b", "no: the run has ended: step a failed");
    check_in(stop(), &a, "claim b from x", "claimed b fresh");
    check_in(stop(), &format!("{a}, retry a"), "claim b", "claimed b fresh");
    let three = "claim a from x, fail a exit, claim b from x, fail b exit, claim c from x";
    check_in(stop(), three, "fail c exit", "failed c: ended with exit 1");
}

#[test]
fn three_steps_in_a_row_that_fail_alike_ask_about_the_run() {
    let two = all(&[failed("a", "exit no host 7"), failed("b", "exit no host 12")]);
    let third = format!("{two}, claim c, start c");
    let asked = "failed c: ended with exit 1, asked c try again / go on / stop";
    check(&third, "fail c exit no host 3.5", asked);
    check(&third, "fail c exit no user", "failed c: ended with exit 1");
    check(&third, "fail c verify no host 7", "failed c: verify ended with exit 1");
    let between = all(&[two.clone(), done("d"), "claim c, start c".to_owned()]);
    check(&between, "fail c exit no host 7", "failed c: ended with exit 1");

    let three = all(&[two, failed("c", "exit no host 1")]);
    check_view(&three, "waiting failed failed failed pending blocked");
    let waits = "no: step c waits for the answer to q11: \
                 a, b, c failed in the same way (ended with exit 1): does the run go on?";
    check(&three, "claim d", waits);
    check(&three, "claim d from x", "claimed d fresh");
    check(&three, "retry a", "retried a");
    check(&format!("{three}, retry c"), "claim d", "claimed d fresh");

    check(&three, "answer c go on", "answered c q11 go on");
    let on = format!("{three}, answer c go on");
    check(&on, "claim d", "claimed d fresh");
    check(&on, "claim a", "no: step a failed and has no retries left");
    check_view(&on, "open failed failed failed pending blocked");
    check(&three, "answer c stop", "answered c q11 stop, stop requested run");
    check_view(&format!("{three}, answer c stop"), "stopped failed failed failed pending blocked");
    let again = "answered c q11 try again, retried a, retried b, retried c";
    check(&three, "answer c try again", again);
    let again = format!("{three}, answer c try again");
    check(&again, "claim a", "claimed a continue");
    let once_more = all(&[again, failed("a", "exit no host 1"), failed("b", "exit no host 1")]);
    check_view(&once_more, "open failed failed failed pending blocked");
    check(&format!("{once_more}, claim c, start c"), "fail c exit no host 2", asked);
}

#[test]
fn an_agent_that_fails_twice_alike_asks_and_a_command_does_not() {
    let once = failed("d", "verify 3 tests failed");
    let second = format!("{once}, claim d, start d");
    let asked = "failed d: verify ended with exit 1, asked d try again / skip / stop";
    check(&second, "fail d verify 4 tests failed", asked);
    check(&second, "fail d verify it does not compile", "failed d: verify ended with exit 1");
    check(&second, "fail d timeout", "failed d: timed out after 5 s");
    let cut = format!("{once}, claim d, start d, interrupt d agent, claim d, start d");
    check(&cut, "fail d verify 4 tests failed", asked);

    let twice = format!("{second}, fail d verify 4 tests failed");
    check_view(&twice, "open pending pending pending waiting blocked");
    check(&twice, "claim a", "claimed a fresh");
    let again = format!("{twice}, answer d try again");
    check(&again, "claim d", "claimed d fresh");
    check(&format!("{again}, claim d, start d"), "fail d verify 5 tests failed", asked);
    let skipped = "answered d q8 skip, skipped d: verify ended with exit 1, twice in the same way";
    check(&twice, "answer d skip", skipped);
    check(&twice, "answer d stop", "answered d q8 stop, stop requested run");
    let resumed = format!("{twice}, answer d stop, resume");
    check(&resumed, "claim d", "claimed d fresh");
    check(&format!("{twice}, retry d"), "claim d", "claimed d continue");

    let mut command = History::open(plan("a command retries=3"));
    command.play("claim a, start a, fail a exit, claim a, start a");
    assert_eq!(answer(&mut command, "fail a exit"), "failed a: ended with exit 1");
}

#[test]
fn a_retried_step_goes_on_in_its_tree_with_all_its_retries() {
    let a = failed("a", "verify");
    check(&a, "retry a", "retried a");
    let retried = format!("{a}, retry a");
    check(&retried, "claim a", "claimed a continue");
    check(&retried, "retry a", "retried a");
    check_view(&retried, "open failed pending pending pending blocked");
    // What a person did there is not left for the base, however often it fails or is cut off.
    check(&format!("{retried}, claim a, bury a none"), "claim a", "claimed a continue");
    let cut = format!("{retried}, claim a, start a, interrupt a agent");
    check(&cut, "claim a", "claimed a continue");
    check(&format!("{retried}, reset a"), "claim a", "claimed a fresh");

    let verified = "claim a, start a, verify a, interrupt a land";
    check(verified, "claim a", "claimed a land");
    check(&format!("{verified}, retry a"), "claim a", "claimed a verify");
    let stopped = "claim a, start a, stop a, interrupt a agent";
    check(&format!("{stopped}, retry a"), "claim a", "claimed a continue");

    let asks = || History::open(plan("a command then=ask"));
    let cut = "claim a, start a, stop run, interrupt a agent";
    check_in(asks(), cut, "resume", "resumed");
    check_in(asks(), &format!("{cut}, retry a"), "resume", "resumed");
    check_in(asks(), &format!("{cut}, retry a, resume"), "claim a", "claimed a continue");

    check("", "retry a", "no: step a has not been attempted: there is nothing to retry");
    check("claim a", "retry a", "no: step a is claimed; release it first");
    check(&done("a"), "retry a", "no: step a is completed");
    check("skip a unneeded", "retry a", "no: step a was skipped");
    check("", "retry nobody", "no: the plan has no step nobody");
    let asked = "claim a, start a, ask a which, suspend a";
    check(asked, "retry a", "no: step a waits for the answer to q4: which");
    check(&format!("{a}, claim b"), "retry a+b", "no: step b is claimed; release it first");
}

#[test]
fn a_step_that_is_reset_begins_from_its_base() {
    let worked = "claim d, start d, progress d 50, checkpoint d 2, force-release d";
    check(worked, "claim d", "claimed d continue");
    check(worked, "reset d", "reset d");
    check(&format!("{worked}, reset d"), "claim d", "claimed d fresh");
    check(&format!("{worked}, reset d"), "reset d", "nothing");
    check("claim d", "reset d", "no: step d is claimed; release it first");
}

#[test]
fn a_skipped_step_meets_needs_and_lands_nothing() {
    check("", "skip a unneeded", "skipped a: unneeded");
    check("skip a unneeded", "skip a again", "nothing");
    check("skip a unneeded", "claim last", "claimed last fresh");
    check("skip a unneeded", "claim a", "no: step a was skipped");
    check("claim a", "skip a unneeded", "no: step a is claimed; release it first");
    check(&done("a"), "skip a unneeded", "no: step a is completed");
    check("skip a unneeded", "reset a", "reset a");
    check("skip a unneeded, reset a", "claim last", "no: step last waits for a");
    check_view("skip a unneeded", "open skipped pending pending pending pending");
    check_view("skip a unneeded, reset a", "open pending pending pending pending blocked");

    let mut history = history();
    history.play("claim a, start a, checkpoint a 1, fail a exit, skip a unneeded");
    history.play(&all(&[done("b"), done("c"), done("d")]));
    assert_eq!(history.key, KeyChange::Kept);
    history.play("skip last unneeded");
    assert_eq!(history.key, KeyChange::Freed);
    assert!(history.run.is_completed());
    let view = view(&history.run, &Observed::default(), &history.leases, &history.now);
    assert_eq!((view.completed, view.skipped, view.status.word()), (3, 2, "completed"));
    assert_eq!(answer(&mut history, "reset a"), "no: the run is completed");
}

#[test]
fn a_skipped_step_that_the_plan_changes_begins_again() {
    let mut history = history();
    history.play("skip a unneeded, skip b unneeded");
    let changed = PLAN.replacen("a command", "a agent", 1);
    let accept = piton_core::decide::Command::AcceptPlan { plan: plan(&changed).into() };
    history.submit(&accept).expect("nothing was done of it");
    let view = view(&history.run, &Observed::default(), &history.leases, &history.now);
    let words: Vec<&str> = view.steps.iter().map(|step| step.status.word()).collect();
    assert_eq!(words, ["pending", "skipped", "pending", "pending", "blocked"]);
}
