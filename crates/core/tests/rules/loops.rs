//! Loops: when an iteration is over and what follows, what a need from outside means, the question at a bound
//! with its answers, and plans that change under a loop.

use std::sync::Arc;

use piton_core::decide::Command;
use piton_core::decided::KeyChange;
use piton_core::observed::Observed;
use piton_core::plan::Plan;
use piton_core::run::LoopPhase;
use piton_core::view::view;

use crate::history::{History, check_in, plan, repacked};

/// `a` and `b` are repeated, `after` needs one of them, `other` nothing.
const STEPS: &str = "a agent
                     b command needs=a
                     after command needs=a
                     other command";

fn history(bounds: &str) -> History {
    History::open(plan(&format!("{STEPS}\nloop fix a,b {bounds}")))
}

/// A step done from its claim to its end; with what was seen, where it is the last of its chain.
fn done(step: &str, seen: &str) -> String {
    format!("claim {step}, start {step}, verify {step} {seen}, land {step}, complete {step}")
}

/// The chain in an iteration.
fn round(iteration: u32, seen: &str) -> String {
    let at = |step: &str| match iteration {
        1 => step.to_owned(),
        n => format!("{step}#{n}"),
    };
    format!("{}, {}", done(&at("a"), ""), done(&at("b"), seen))
}

fn rounds(seen: &[&str]) -> String {
    let all = seen.iter().zip(1..).map(|(seen, iteration)| round(iteration, seen));
    all.collect::<Vec<_>>().join(", ")
}

/// After `log`: the loop's iteration and how it stands, then the statuses of the run and of its steps.
#[track_caller]
fn check(bounds: &str, log: &str, expect: &str) {
    let mut history = history(bounds);
    history.play(log);
    assert_eq!(stands(&history), expect, "after {log:?}");
}

#[track_caller]
fn stands(history: &History) -> String {
    assert_eq!(history.replayed(), history.run);
    assert_eq!(repacked(&history.run), history.run);
    let view = view(&history.run, &Observed::default(), &history.leases, &history.now);
    let steps = view.steps.iter().map(|step| format!("{}:{}", step.step, step.status.word()));
    let steps: Vec<String> = steps.collect();
    let of = &view.loops[0];
    let phase = match of.phase {
        LoopPhase::Going => "going".to_owned(),
        LoopPhase::Halted(halt) => format!("halted {halt:?}"),
        LoopPhase::Over(end) => format!("over {end:?}"),
    };
    format!("{}/{} {phase}; {} {}", of.iteration, of.max, view.status.word(), steps.join(" "))
}

const STUCK: &str = "until=1 changed=2";
const FIXED: &str = "until=0 changed=2";
const STALE: &str = "until=1 changed=0";

#[test]
fn an_iteration_follows_until_the_command_passes() {
    let max = "max=3 until";
    check(max, "", "1/3 going; open a:pending b:blocked after:blocked other:pending");
    check(max, &done("a", ""), "1/3 going; open a:completed b:pending after:blocked other:pending");
    let one = rounds(&[STUCK]);
    check(max, &one, "2/3 going; open a#2:pending b#2:blocked after:blocked other:pending");
    let two = rounds(&[STUCK, FIXED]);
    let over = "2/3 over Passed; open a#2:completed b#2:completed after:pending other:pending";
    check(max, &two, over);
    check_in(history(max), &one, "claim after", "no: step after waits for a, b");
    check_in(history(max), &two, "claim after", "claimed after fresh");
    check_in(history(max), &one, "claim b#2", "no: step b#2 waits for a");
    check_in(history(max), &one, "claim a", "no: step a is completed");
    check_in(history(max), &one, "claim a#3", "no: the plan has no step a#3");
    check_in(history(max), &one, "reset a because", "no: step a is completed");
}

#[test]
fn without_a_goal_the_count_ends_a_loop() {
    let two = rounds(&["changed=1", "changed=1"]);
    let over = "2/2 over Counted; open a#2:completed b#2:completed after:pending other:pending";
    check("max=2", &two, over);
    let counted = format!("resume iterations=1, {}", rounds(&["changed=1"]));
    let over = "1/1 over Counted; open a:completed b:completed after:pending other:pending";
    check("max=2", &counted, over);
}

#[test]
fn a_bound_asks_and_each_answer_is_followed() {
    let max = "max=2 until";
    let log = rounds(&[STUCK, STUCK]);
    let waits = "2/2 halted Max; open a#2:completed b#2:waiting after:blocked other:pending";
    check(max, &log, waits);
    let again = format!("{log}, answer b#2 try again");
    check(max, &again, "3/4 going; open a#3:pending b#3:blocked after:blocked other:pending");
    let accepted = format!("{log}, answer b#2 accept");
    let over = "2/2 over Accepted; open a#2:completed b#2:completed after:pending other:pending";
    check(max, &accepted, over);
    let stopped = format!("{log}, answer b#2 stop");
    let still = "2/2 halted Max; stopped a#2:completed b#2:completed after:blocked other:pending";
    check(max, &stopped, still);
    check(max, &format!("{stopped}, resume"), waits);
    // Who resumes with a higher bound needs no answer; it stays in force.
    let more = format!("{log}, resume iterations=3");
    check(max, &more, "3/3 going; open a#3:pending b#3:blocked after:blocked other:pending");
    let more = format!("{stopped}, resume iterations=3, {}, resume", round(3, STUCK));
    let waits = "3/3 halted Max; open a#3:completed b#3:waiting after:blocked other:pending";
    check(max, &more, waits);
}

#[test]
fn iterations_that_change_nothing_ask() {
    let bounds = "max=9 until stale=2";
    let between = rounds(&[STALE, STUCK, STALE]);
    check(bounds, &between, "4/9 going; open a#4:pending b#4:blocked after:blocked other:pending");
    let log = rounds(&[STUCK, STALE, STALE]);
    let waits = "3/9 halted Stale { iterations: 2 }; \
                 open a#3:completed b#3:waiting after:blocked other:pending";
    check(bounds, &log, waits);
    let again = format!("{log}, answer b#3 try again, {}", round(4, STALE));
    check(bounds, &again, "5/9 going; open a#5:pending b#5:blocked after:blocked other:pending");
}

#[test]
fn items_that_are_not_done_are_open_in_the_next_iteration() {
    let steps = "a agent items=2\n b command needs=a\n loop fix a,b max=5 items";
    let begin = |step: &str| format!("claim {step}, start {step}");
    let end = |step: &str| format!("verify {step} changed=1, land {step}, complete {step}");
    let mut history = History::open(plan(steps));
    history.play(&format!("{}, check a 1, gap a more, defer a 2 3, {}", begin("a"), end("a")));
    history.play(&done("b", "changed=1"));
    let (planned, state) = history.run.step(&"a#2".parse().unwrap()).unwrap();
    let open = state.checklist.open_items(planned);
    assert_eq!(open.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2", "3"]);
    history.play(&format!("{}, check a#2 2 3, {}", begin("a#2"), end("a#2")));
    history.play(&done("b#2", "changed=1"));
    assert_eq!(stands(&history), "2/5 over Passed; completed a#2:completed b#2:completed");
    assert_eq!(history.key, KeyChange::Freed);
}

#[test]
fn skipped_and_reset_steps_end_and_reopen_an_iteration() {
    let max = "max=3 until";
    check(
        max,
        "skip a, skip b",
        "1/3 over Skipped; open a:skipped b:skipped after:pending other:pending",
    );
    let skipped = format!("{}, skip b", done("a", ""));
    check(max, &skipped, "2/3 going; open a#2:pending b#2:blocked after:blocked other:pending");
    let reset = format!("{}, reset b because", rounds(&[FIXED]));
    check(max, &reset, "1/3 going; open a:completed b:pending after:blocked other:pending");
    let asked = format!("{}, reset b#2 because", rounds(&[STUCK, STUCK]));
    check(
        "max=2 until",
        &asked,
        "2/2 going; open a#2:completed b#2:pending after:blocked other:pending",
    );
    // At a bound, also where nothing of the last step was attempted.
    let last = format!("{}, {}, skip b#2", rounds(&[STUCK]), done("a#2", ""));
    let waits = "2/2 halted Max; open a#2:waiting b#2:skipped after:blocked other:pending";
    check("max=2 until", &last, waits);
}

#[test]
fn the_last_answer_can_complete_the_run() {
    let mut history = History::open(plan("a command\nloop fix a max=1 until"));
    history.play(&done("a", STUCK));
    assert_eq!(history.key, KeyChange::Kept);
    history.play("answer a accept");
    assert_eq!(stands(&history), "1/1 over Accepted; completed a:completed");
    assert_eq!(history.key, KeyChange::Freed);
}

#[test]
fn a_changed_plan_keeps_a_loop_that_was_begun() {
    let accept = |steps: &str| Command::AcceptPlan { plan: Arc::new(plan(steps)) };
    let mut history = history("max=2 until");
    history.play(&rounds(&[STUCK]));
    for other in ["", "loop fix a max=2 until", "loop else a,b max=2 until"] {
        let refused = history.submit(&accept(&format!("{STEPS}\n{other}"))).unwrap_err();
        assert!(refused.to_string().contains("a#2"), "{other}: {refused}");
    }
    history.submit(&accept(&format!("{STEPS}\nloop fix a,b max=7"))).unwrap();
    assert_eq!(
        stands(&history),
        "2/7 going; open a#2:pending b#2:blocked after:blocked other:pending"
    );
    let mut whole: Plan = plan(&format!("{STEPS}\nloop fix a,b max=7"));
    whole.name = "another".to_owned();
    history.submit(&Command::AcceptPlan { plan: Arc::new(whole) }).unwrap();
}
