//! Questions: who asks, who answers, what waits meanwhile, and that an answer is applied once.

use piton_core::brief::{TreeFacts, prompt};
use piton_core::event::Entry;
use piton_core::observed::Observed;
use piton_core::question::QuestionState;
use piton_core::view::view;

use crate::history::{History, at, check_in, plan};

/// `a` is an agent's, `c` a command's; `b` needs nothing.
fn history() -> History {
    History::open(plan(
        "a agent retries=1
         b agent
         c command",
    ))
}

/// After `log`, `command` is answered by `expect`.
#[track_caller]
fn check(log: &str, command: &str, expect: &str) {
    check_in(history(), log, command, expect);
}

/// The question is the fourth record: the run, the claim, the start, the question.
const ASKED: &str = "claim a, start a, ask a which one";
const WAITING: &str = "claim a, start a, ask a which one, suspend a";

#[test]
fn only_the_holder_asks() {
    check("claim a, start a", "ask a which one", "asked a which one");
    check("claim a from x", "ask a which one", "asked a which one");
    check(
        "claim a, start a",
        "ask a@1 which",
        "no: step a is no longer yours: its fence is 2, yours was 1",
    );
    check("", "ask a which", "no: step a is not claimed, and fence 0 is over");
    check("claim a", "ask a", "no: a question has a text");
    check("claim a", "choose a which one one", "no: two choices are the same");
    check("claim a", &format!("ask a {}", "x".repeat(9_000)), "no: the question is too long");
}

#[test]
fn asking_the_same_again_asks_nothing_new() {
    check(ASKED, "ask a which one", "nothing");
    check(&format!("{ASKED}, answer a this"), "ask a which one", "nothing");
    check(ASKED, "ask a how", "asked a how");
    check(ASKED, "choose a which one two", "asked a which");
    let told = format!("{ASKED}, answer a this, read a");
    check(&told, "ask a which one", "asked a which one");
}

#[test]
fn an_agent_that_asks_in_a_loop_is_stopped() {
    let mut history = history();
    history.play("claim a, start a");
    for number in 0..10 {
        history.play(&format!("ask a which {number}"));
    }
    let refused = history.say("ask a once more").unwrap_err();
    assert_eq!(refused.to_string(), "the step has too many open questions");
}

#[test]
fn a_choice_is_meant_by_its_text_or_its_number() {
    let asked = "claim a, start a, choose a which JWT 形式";
    check(asked, "answer q4 JWT", "answered a q4 JWT");
    check(asked, "answer q4 形式", "answered a q4 形式");
    check(asked, "answer a 2", "answered a q4 形式");
    for wrong in ["jwt", "0", "3", "", "-1"] {
        check(asked, &format!("answer a {wrong}"), "no: q4 has these answers: JWT, 形式");
    }
    check(ASKED, "answer a anything at all", "answered a q4 anything at all");
    check(ASKED, "answer a", "no: an answer has a text");
    // A choice that looks like a number is meant by its text.
    let numbers = "claim a, start a, choose a how-many 3 2 1";
    check(numbers, "answer a 1", "answered a q4 1");
}

#[test]
fn the_first_answer_stands() {
    for log in [
        format!("{ASKED}, answer a this"),
        format!("{WAITING}, answer a this"),
        format!("{ASKED}, answer a this, read a"),
        format!("{WAITING}, answer a this, claim a, start a"),
    ] {
        check(&log, "answer a this", "nothing");
        check(&log, "answer q4 that", "no: q4 was answered already: this");
    }
    check(ASKED, "answer q5 this", "no: there is no question q5");
    check("claim a, start a", "answer a this", "no: step a has asked nothing that is open");
    check("", "answer z this", "no: the plan has no step z");
    let several = format!("{ASKED}, ask a how");
    check(&several, "answer a this", "no: step a has several open questions: q4, q5");
    check(&format!("{several}, answer q4 x"), "answer a this", "answered a q5 this");
}

#[test]
fn who_waits_for_an_answer_has_not_failed_and_is_not_done() {
    for log in [ASKED.to_owned(), format!("{ASKED}, answer a this")] {
        for why in ["exit", "timeout", "verify", "unfinished", "landing"] {
            check(&log, &format!("fail a {why}"), "suspended a");
        }
        check(&log, "suspend a", "suspended a");
        for exit in ["0", "1", "1:time"] {
            check(&log, &format!("bury a {exit}"), "suspended a");
        }
        check(&log, "fail a reported", "failed a: reported: message");
        check(&log, "bury a none", "interrupted a at agent: reboot");
        check(&log, "bury a signal-9", "interrupted a at agent: process_kill");
        check(&log, "bury a 0:stop", "interrupted a at agent: user_interrupt");
    }
    check(ASKED, "verify a", "no: step a has asked q4 and has no answer yet");
    check(
        &format!("{ASKED}, answer a this"),
        "verify a",
        "no: the answer to q4 was not read at step a",
    );
    let told = format!("{ASKED}, answer a this, read a");
    check(&told, "verify a", "verified a");
    check(&told, "fail a exit", "failed a: ended with exit 1");
    check(&told, "suspend a", "no: step a has asked nothing that is open");
}

#[test]
fn waiting_spends_no_retry_and_does_not_count_as_an_interruption() {
    let mut history = history();
    for answer in ["one", "two", "three", "four", "five"] {
        history.play(&format!("claim a, start a, ask a which, fail a exit, answer a {answer}"));
    }
    let (_, state) = history.run.step(&at("a")).unwrap();
    assert_eq!((state.failures, state.idle(), state.history.len()), (0, 0, 5));
    history.play("claim a");
}

#[test]
fn nobody_claims_a_step_whose_question_is_open() {
    let open = "no: step a waits for the answer to q4: which one";
    for claim in ["claim a", "claim a from x", "claim a from x force", "claim a there"] {
        check(WAITING, claim, open);
        check(&format!("{ASKED}, bury a none"), claim, open);
    }
    check(WAITING, "claim any from x", "claimed b fresh");
    check(WAITING, "claim b", "claimed b fresh");
    // Also not the one who holds it, or held it until its lease was over.
    let outside = "claim a from x, start a, ask a which one";
    check(outside, "claim a from x", open);
    check(outside, "claim a from y force", open);
    check(&format!("{outside}, wait 61"), "claim a from y", open);
    check(
        &format!("{outside}, wait 61, answer a this"),
        "claim a from y",
        "claimed a fresh, lease over",
    );
}

#[test]
fn the_next_attempt_is_told_once() {
    let answered = format!("{WAITING}, answer a this");
    check(&answered, "claim a", "claimed a fresh");
    check(&answered.replace("ask", "checkpoint a 2, ask"), "claim a", "claimed a continue");
    check(&format!("{answered}, claim a"), "start a", "started a told q4");
    // Whoever dies before they start were not told.
    let died = format!("{answered}, claim a, bury a none, claim a");
    check(&died, "start a", "started a told q4");
    check(&format!("{died}, start-untold a, bury a none, claim a"), "start a", "started a told q4");
    // Whoever was told and died was told.
    check(&format!("{died}, start a, bury a none, claim a"), "start a", "started a");
    check(&format!("{died}, start a"), "read a", "nothing");
}

#[test]
fn an_old_answer_that_nobody_read_does_not_suspend_again() {
    // A command is told nothing when it starts: it reads an answer by asking again.
    let asked =
        "claim c, start c, ask c which one, fail c exit, answer c this, claim c, start-untold c";
    check(asked, "suspend c", "no: step c has asked nothing that is open");
    check(asked, "fail c exit", "failed c: ended with exit 1");
    check(asked, "verify c", "verified c");
    check(asked, "read c", "applied c q4");
    check(&format!("{asked}, read c"), "read c", "nothing");
}

#[test]
fn somebody_outside_reads_before_they_complete() {
    let asked = "claim a from x, start a, ask a which one";
    check(asked, "finish a", "no: step a has asked q4 and has no answer yet");
    let answered = format!("{asked}, answer a this");
    check(&answered, "finish a", "no: the answer to q4 was not read at step a");
    check(&format!("{answered}, read a"), "finish a", "completed a");
    check(asked, "waive a", "completed a without q4");
    check(&answered, "waive a", "completed a without q4");
    check(
        &format!("{asked}, waive a"),
        "answer q4 this",
        "no: q4 is void: its answer is not needed any more",
    );
}

#[test]
fn an_answer_that_nobody_was_told_is_for_the_agent() {
    let verified = "claim a from x, start a, ask a which one, verify a, wait 61, answer a this";
    check(verified, "claim a", "claimed a fresh, lease over");
    let told = "claim a from x, start a, ask a which one, answer a this, read a, verify a, wait 61";
    check(told, "claim a", "claimed a land, lease over");
}

#[test]
fn giving_back_and_resetting_void_what_is_open() {
    let void = "no: q4 is void: its answer is not needed any more";
    check(&format!("{WAITING}, reset a"), "answer q4 this", void);
    check(&format!("{WAITING}, reset a"), "claim a", "claimed a fresh");
    check(&format!("{ASKED}, force-release a"), "answer q4 this", void);
    check(&format!("{ASKED}, force-release a"), "claim a", "claimed a fresh");
    check(WAITING, "release a", "no: step a is not claimed, and fence 2 is over");
    // What a person has answered is told all the same.
    for back in ["suspend a, reset a", "force-release a"] {
        let log = format!("{ASKED}, answer a this, {back}, claim a");
        check(&log, "start a", "started a told q4");
    }
}

#[test]
fn a_stopped_run_takes_answers() {
    check(&format!("{WAITING}, stop run"), "answer a this", "answered a q4 this");
    check(&format!("{WAITING}, stop run, answer a this"), "claim a", "no: the run is stopped");
}

#[test]
fn the_brief_carries_every_answer() {
    let mut history = history();
    let told = |history: &History| {
        prompt(&history.run, &at("a"), Entry::Fresh, &TreeFacts::default()).unwrap()
    };
    history.play(&format!("{WAITING}, answer a über 8080, claim a"));
    let first = told(&history);
    assert_eq!(first.answers.len(), 1);
    insta::assert_snapshot!(first.text, @"
    work

    ---
    piton runs this step and keeps its work. These commands work here:
    - `piton checkpoint --note 'what is done, what is next'`: a later attempt reads it.
    - `piton ask 'QUESTION' --wait`: asks a person, and prints the answer.
    - `piton output set NAME < FILE`: publishes JSON for other steps.

    ---
    Note from piton, which runs this step:
    - An earlier attempt asked, and ended to wait.
    - Asked:
      | which one
      Answered by a person:
      | über 8080
    - It left no changes; the tree is at the step's start.
    Check what is already done before repeating it.
    ");
    history.play("start a, bury a none, claim a");
    let again = told(&history);
    assert!(again.answers.is_empty(), "it was applied");
    assert!(again.text.contains("über"), "who comes after the one who was told knows it too");
}

#[test]
fn what_waits_is_shown() {
    let status = |log: &str| {
        let mut history = history();
        history.play(log);
        let shown = view(&history.run, &Observed::default(), &history.leases, &history.now);
        let steps: Vec<&str> = shown.steps.iter().map(|step| step.status.word()).collect();
        format!("{}: {}", shown.status.word(), steps.join(" "))
    };
    assert_eq!(status(ASKED), "running: running pending pending");
    assert_eq!(status(WAITING), "open: waiting pending pending");
    assert_eq!(status(&format!("{WAITING}, answer a x")), "open: pending pending pending");
    let rest = ["b", "c"]
        .map(|step| format!("claim {step}, start {step}, verify {step}, complete {step}"));
    let only = format!("{WAITING}, {}", rest.join(", "));
    assert_eq!(status(&only), "waiting: waiting completed completed");
    assert_eq!(status(&format!("{only}, answer a x")), "open: pending completed completed");
    let died = format!("{ASKED}, bury a none, {}", rest.join(", "));
    assert_eq!(status(&died), "waiting: waiting completed completed");
}

/// Records: the run, the claim, the start, the commit, the question (the fifth), the wait.
const PARKED: &str = "claim a, start a, checkpoint a 2, verify a, park a";

#[test]
fn a_commit_that_cannot_be_landed_waits_for_a_person() {
    let mut history = history();
    history.play(PARKED);
    let (_, a) = history.run.step(&at("a")).unwrap();
    let asked = a.open_question().unwrap();
    insta::assert_snapshot!(asked.text, @r"
    a conflicts with piton/x/run (0000000000) in src/a.rs and 2 more
    its commit 0000000000 is kept as refs/piton/unlanded/x/a/2
    land again: after `git merge piton/x/run` on the step's branch, solved and committed
    restart: the step is done again from piton/x/run
    stop: nothing more is begun, and resuming tries to land it once more
    ");
    assert_eq!(asked.choices, ["land again", "restart", "stop"]);
    assert!(
        a.attempt().is_none() && a.failures == 0,
        "nobody waits in a process, no retry is spent"
    );
    let refused = history.say("claim a").unwrap_err().to_string();
    assert!(refused.starts_with("step a waits for the answer to q6: a conflicts"), "{refused}");
}

#[test]
fn only_what_was_verified_is_parked_and_only_by_its_holder() {
    check("claim a, start a", "park a", "no: step a is not verified");
    check(
        "claim a, start a, verify a",
        "park a@1",
        "no: step a is no longer yours: its fence is 2, yours was 1",
    );
    check(PARKED, "park a", "no: step a is not claimed, and fence 2 is over");
}

#[test]
fn landing_again_starts_no_agent_and_applies_the_answer_once() {
    let answered = format!("{PARKED}, answer a land again");
    check(&answered, "claim a", "claimed a verify");
    // Killed before anything came of it: the answer still stands.
    let killed = format!("{answered}, claim a, bury a none");
    check(&killed, "claim a", "claimed a verify");
    let mut history = history();
    history.play(&format!("{killed}, claim a, verify a"));
    let state =
        |history: &History| history.run.step(&at("a")).unwrap().1.questions[0].state.clone();
    assert!(matches!(state(&history), QuestionState::Applied { .. }));
    // Killed after it was verified again: only landing is left.
    history.play("bury a none");
    assert_eq!(
        history.say("claim a").map(|events| crate::history::told(&events[0])).unwrap(),
        "claimed a land"
    );
    // It conflicts once more: that is another question.
    history.play("park a");
    assert_eq!(history.run.step(&at("a")).unwrap().1.questions.len(), 2);
}

#[test]
fn a_restart_begins_from_the_runs_branch_whatever_was_done() {
    let answered = format!("{PARKED}, answer a restart");
    check(&answered, "claim a", "claimed a fresh");
    check(&format!("{answered}, claim a, bury a none"), "claim a", "claimed a fresh");
    let mut history = history();
    history.play(&format!("{answered}, claim a, start-untold a"));
    let (_, a) = history.run.step(&at("a")).unwrap();
    assert!(matches!(a.questions[0].state, QuestionState::Applied { .. }), "with its start");
    history.play("checkpoint a 2, bury a none");
    check_in(history, "", "claim a", "claimed a continue");
}

#[test]
fn the_answer_stop_stops_the_run_until_somebody_resumes() {
    let mut history = history();
    history.play(&format!("{PARKED}, answer a stop"));
    assert!(history.run.stop.is_some());
    history.play("resume");
    check_in(history, "", "claim a", "claimed a verify");
}

#[test]
fn who_works_outside_may_bring_both_sides_together_without_the_answer() {
    let parked = "claim a from x, start a, verify a, park a";
    let mut history = history();
    history.play(parked);
    assert!(history.run.step(&at("a")).unwrap().1.attempt().is_some(), "the claim is still theirs");
    check(parked, "park a", "nothing");
    // Whoever takes it over does not land the same commit once more; and what was brought together since is
    // not in the tree of a keeper, whose commit would be without the step's work.
    let lapsed = |said: &str| format!("{parked}, answer a {said}, wait 60");
    check(&lapsed("land again"), "claim a", "claimed a fresh, lease over");
    check(&lapsed("land again"), "claim a from y", "claimed a fresh, lease over");
    check(&lapsed("restart"), "claim a", "claimed a fresh, lease over");
    // Nor is it after a keeper has only tried to land it, or in the tree of another host.
    let tried = "claim a from x, start a, verify a, wait 60, claim a, park a, answer a land again";
    check(tried, "claim a", "claimed a fresh");
    check(&format!("{PARKED}, answer a land again"), "claim a", "claimed a verify");
    check(&format!("{PARKED}, answer a land again"), "claim a there", "claimed a continue");
    let unread = "no: the answer to q5 was not read at step a";
    let restart = format!("{parked}, answer a restart");
    check(&restart, "complete a", unread);
    history.play("verify a");
    let (_, a) = history.run.step(&at("a")).unwrap();
    assert_eq!(a.questions[0].state, QuestionState::Void);
    history.play("land a, complete a");
    let mut answered = History::open(plan("a agent"));
    answered.play(&format!("{parked}, answer a land again, verify a, land a, complete a"));
    assert!(answered.run.is_completed());
}
