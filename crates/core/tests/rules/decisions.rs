//! Decisions as data: a history, a command, what must come of it. One line a rule.

use std::time::Duration;

use piton_core::claim::ready;
use piton_core::decide::{Command, Request, may_forget};
use piton_core::decided::{KeyChange, Lease};
use piton_core::event::{Exit, Failure, Snapshot, Under};
use piton_core::ids::Oid;
use piton_core::limits::EVIDENCE_BYTES_MAX;
use piton_core::observed::{Corpse, Observed, Sighting};
use piton_core::recover::recover;
use piton_core::view::{KnownAs, StepStatus, view};

use crate::history::{History, LEASE, answer, at, check_in, corpse, oid, plan, snapshot};

/// `a` is an agent's with one retry; `b` is a command and needs `a`; `c` needs nothing.
fn history() -> History {
    History::open(plan(
        "a agent retries=1
         b command needs=a
         c agent",
    ))
}

/// After `log`, `command` is answered by `expect`.
#[track_caller]
fn check(log: &str, command: &str, expect: &str) {
    check_in(history(), log, command, expect);
}

/// After `log`, the view's statuses are these: the run's, then each step's.
fn check_view(log: &str, expect: &str) {
    let mut history = history();
    history.play(log);
    assert_eq!(statuses(&history, &Observed::default()), expect, "after {log:?}");
}

fn statuses(history: &History, observed: &Observed) -> String {
    let view = view(&history.run, observed, &history.leases, &history.now);
    let steps = view.steps.iter().map(|step| step.status.word());
    std::iter::once(view.status.word()).chain(steps).collect::<Vec<_>>().join(" ")
}

const DONE_A: &str = "claim a, start a, verify a, land a, complete a";

#[test]
fn a_step_goes_from_claim_to_completion() {
    check("", "claim a", "claimed a fresh");
    check("claim a", "start a", "started a");
    check("claim a, start a", "checkpoint a 3", "checkpointed a 3");
    check("claim a, start a", "verify a", "verified a");
    check("claim a, start a, verify a", "land a", "landing intended a");
    check("claim a, start a, verify a, land a", "complete a", "completed a");
    check(DONE_A, "claim b", "claimed b fresh");
}

#[test]
fn a_run_that_nobody_holds_can_be_given_up_and_taken_up_again() {
    check("", "abandon", "abandoned");
    check("claim a", "abandon", "no: step a is claimed; release it first");
    check("abandon", "abandon", "nothing");
    let may_forget = |log: &str| {
        let mut history = history();
        history.play(log);
        may_forget(&history.run).err().map(|refusal| refusal.to_string())
    };
    assert_eq!(may_forget("abandon"), None);
    assert_eq!(may_forget("").as_deref(), Some("the run is neither completed nor abandoned"));
    let held = may_forget("claim a").expect("somebody has it");
    assert_eq!(held, "step a is claimed; release it first");
    check("abandon", "claim a", "no: the run was abandoned");
    check("abandon", "resume", "no: the run was abandoned");
    check("abandon", "stop run", "no: the run was abandoned");
    check("", "reopen", "nothing");
    check("abandon", "reopen", "reopened");
    check("abandon, reopen", "claim a", "claimed a fresh");
    let done = format!("{DONE_A}, claim b, start b, verify b, land b, complete b, ")
        + "claim c, start c, verify c, land c, complete c";
    check(&done, "abandon", "no: the run is completed");
    check_view("abandon", "abandoned pending blocked pending");
    let mut history = history();
    history.play("abandon");
    assert_eq!(history.key, KeyChange::Freed);
    history.play("reopen");
    assert_eq!(history.key, KeyChange::Retaken);
}

#[test]
fn nothing_is_skipped_on_the_way() {
    check("claim a", "verify a", "no: step a has not been started");
    check("claim a, start a", "land a", "no: step a is not verified");
    check("claim a, start a", "complete a", "no: step a is not verified");
    check("", "claim b", "no: step b waits for a");
    check("", "claim nobody", "no: the plan has no step nobody");
    check("", "start nobody", "no: the plan has no step nobody");
}

/// Every command that carries a fence, but the one that gives the claim back: see `claims`.
pub(crate) const FENCED: [&str; 16] = [
    "start a@F",
    "checkpoint a@F 1",
    "note a@F half way",
    "substep a@F one",
    "gap a@F forgotten",
    "check a@F 1",
    "defer a@F 1",
    "verify a@F",
    "land a@F",
    "complete a@F",
    "finish a@F",
    "waive a@F",
    "fail a@F exit",
    "interrupt a@F agent",
    "bury a@F none",
    "stop a@F",
];

#[test]
fn a_stale_fence_is_refused_on_every_path() {
    // Claimed at 2 and lost to another host at 5, which has verified it since.
    let taken = "claim a there, start a, verify a, wait 60, claim a";
    for command in FENCED {
        let stale = command.replace("@F", "@2");
        check(taken, &stale, "no: step a is no longer yours: its fence is 5, yours was 2");
        let guessed = command.replace("@F", "@6");
        check(taken, &guessed, "no: step a is no longer yours: its fence is 5, yours was 6");
        let over = "no: step a is not claimed, and fence 2 is over";
        check("claim a, interrupt a unstarted", &stale, over);
        check("claim a, fail a timeout", &stale, over);
        check("", &stale, over);
    }
}

#[test]
fn nothing_but_the_same_completion_is_heard_of_a_completed_step() {
    for command in FENCED {
        let own = command.replace("@F", "@2");
        let completes = ["complete a@2", "finish a@2", "waive a@2"].contains(&own.as_str());
        check(DONE_A, &own, if completes { "nothing" } else { "no: step a is completed" });
        check(DONE_A, &command.replace("@F", "@3"), "no: step a is completed");
    }
    check(DONE_A, "claim a", "no: step a is completed");
}

#[test]
fn the_key_is_freed_by_the_last_completion_alone() {
    let mut history = history();
    history.play(DONE_A);
    history.play("claim c, start c, verify c, complete c, claim b, start b, verify b");
    assert_eq!(history.key, KeyChange::Kept);
    history.play("complete b");
    assert_eq!(history.key, KeyChange::Freed);
    assert!(history.run.is_completed());
    assert_eq!(answer(&mut history, "stop run"), "no: the run is completed");
    assert_eq!(answer(&mut history, "resume confirmed"), "nothing");
    assert_eq!(statuses(&history, &Observed::default()), "completed completed completed completed");
}

#[test]
fn one_step_at_a_time_is_attempted() {
    check("claim a", "claim c", "no: as many steps are attempted as may be at once (1)");
    check("claim a, interrupt a unstarted", "claim c", "claimed c fresh");
    check("claim a, start a, fail a exit", "claim c", "claimed c fresh");
}

#[test]
fn a_claim_is_taken_over_only_from_elsewhere_and_after_its_lease() {
    let held = "step a is held";
    check("claim a", "claim a there", &format!("no: {held} elsewhere; its lease is not over"));
    check("claim a, wait 60", "claim a there", "claimed a fresh, lease over");
    check("claim a, wait 60", "claim a alive", &format!("no: {held} by a live attempt (fence 2)"));
    check(
        "claim a, wait 60",
        "claim a 0",
        &format!("no: {held} by a dead attempt (fence 2) that has to be recovered first"),
    );
}

#[test]
fn a_lease_row_prolongs_a_claim_and_a_foreign_or_lost_one_does_not() {
    let mut history = history();
    history.play("claim a");
    let own = history.leases[0].clone();
    history.pass(LEASE);
    let claim = history.command("claim a there");
    history.leases = vec![Lease { until: history.now.after(LEASE), ..own.clone() }];
    assert!(history.submit(&claim).is_err(), "renewed");
    history.leases = vec![Lease { fence: piton_core::ids::Fence(1), ..history.leases[0].clone() }];
    assert!(history.submit(&claim).is_ok(), "the row of another fence says nothing");
}

#[test]
fn a_sighting_of_another_attempt_does_not_displace_a_holder_on_the_same_host() {
    // Whoever asks saw nobody, or a holder elsewhere; meanwhile a rival on its own host has the step,
    // and everybody slept past the lease. A held lock outranks the lease: look again.
    let alive = "no: step a is held by a live attempt (fence 2)";
    check("claim a, wait 60", "claim a", alive);
    check("claim a there, wait 60", "claim a there", alive);
    check("claim a there, wait 60", "claim a", "claimed a fresh, lease over");
}

#[test]
fn a_stopped_run_gives_no_claims_until_it_is_resumed() {
    check("", "stop run", "stop requested run");
    check("stop run", "claim a", "no: the run is stopped");
    check("stop run, resume", "claim a", "claimed a fresh");
    check("stop run", "resume", "resumed");
    check("", "resume", "nothing");
    check("claim a, start a, stop run", "verify a", "verified a");
    check("claim a, wait 60, stop run", "claim a there", "no: the run is stopped");
}

#[test]
fn a_second_stop_is_heard_only_when_it_is_more_urgent() {
    check("stop run", "stop run", "nothing");
    check("stop run", "stop run now", "stop requested run now");
    check("stop run now", "stop run", "nothing");
    check("claim a, stop a", "stop a", "nothing");
    check("claim a, stop a", "stop a now", "stop requested a now");
    check("claim a, stop run", "stop a", "stop requested a");
}

#[test]
fn what_was_stopped_stays_stopped_until_somebody_asks() {
    let stopped = "claim a, start a, stop a, interrupt a agent";
    check(stopped, "claim a", "no: step a was stopped on request");
    check(stopped, "claim c", "claimed c fresh");
    check(stopped, "resume", "resumed");
    check(&format!("{stopped}, resume"), "claim a", "claimed a fresh");
    let by_run = "claim a, start a, stop run, interrupt a agent, resume";
    check(by_run, "claim a", "claimed a fresh");
}

#[test]
fn a_resume_that_comes_before_the_stopped_attempt_has_ended_counts() {
    let run = "claim a, start a, stop run, resume";
    let step = "claim a, start a, stop a, resume";
    for lifted in [run, step] {
        check(&format!("{lifted}, interrupt a agent"), "claim a", "claimed a fresh");
        check(&format!("{lifted}, bury a none"), "claim a", "claimed a fresh");
        check(lifted, "resume", "nothing");
        check(lifted, "stop a", "stop requested a");
        check(&format!("{lifted}, stop a, interrupt a agent"), "claim a", STOPPED);
        check(
            &format!("{lifted}, stop run, interrupt a agent, resume"),
            "claim a",
            "claimed a fresh",
        );
    }
    check("claim a, start a, stop a", "resume", "resumed");
    check("claim a, resume", "resume", "nothing");
}

const STOPPED: &str = "no: step a was stopped on request";

#[test]
fn an_attempt_that_was_asked_to_stop_ends_as_asked_even_when_that_was_lifted() {
    // Its agent may have been told to end and have exited with zero: that is not success.
    let asked = "interrupted a at agent: user_interrupt";
    check("claim a, start a, stop run, resume", "bury a 0:stop", asked);
    check("claim a, start a, stop a, resume", "bury a 0:stop", asked);
    let round = "claim a, start a, stop a, resume, bury a none";
    check(&format!("{round}, {round}, {round}"), "claim a", "claimed a fresh");
}

#[test]
fn the_cause_of_a_stop_is_the_cause_of_the_interruption() {
    check("claim a, start a", "interrupt a agent", "interrupted a at agent: unknown");
    let asked = "interrupted a at agent: user_interrupt";
    check("claim a, start a, stop a", "interrupt a agent", asked);
    check("claim a, start a, stop run", "interrupt a agent", asked);
    check("claim a, start a, stop run", "bury a none", asked);
    // Killed before somebody asked it to stop: that is what is recorded.
    let seen = "interrupted a at agent: reboot";
    check("claim a, start a, stop a", "bury a none long-dead", seen);
    check("claim a, start a, stop run", "bury a none long-dead", seen);
    check("claim a, start a, stop a, bury a none long-dead", "claim a", STOPPED);
}

#[test]
fn an_attempt_ends_when_it_died_and_not_when_that_was_seen() {
    let mut history = history();
    history.play("claim a, start a");
    let died = history.now.wall;
    history.play("wait 60");
    let corpse = Corpse { at: died, ..corpse("none") };
    let step = at("a");
    let attempts = |history: &History, observed: &Observed| {
        let view = view(&history.run, observed, &history.leases, &history.now);
        view.steps[0].attempts.iter().map(|attempt| attempt.to).collect::<Vec<_>>()
    };
    let held =
        history.run.step(&step).and_then(|(_, state)| state.attempt()).expect("held").clone();
    let seen = [(held.id, Sighting::Dead(corpse.clone()))].into_iter().collect();
    let observed = Observed { attempts: seen, ..Observed::default() };
    assert_eq!(attempts(&history, &observed), [Some(died)]);
    let bury = Command::Under(Under { step, fence: held.fence }, Request::Bury(corpse));
    history.submit(&bury).expect("recorded");
    assert_eq!(attempts(&history, &Observed::default()), [Some(died)]);
}

#[test]
fn a_run_is_merged_until_something_else_lands_and_not_with_nothing() {
    let mut history = history();
    let merge = |tip: &Oid| Command::Merge {
        into: "main".to_owned(),
        commit: tip.clone(),
        tip: tip.clone(),
    };
    let merged = |history: &History| {
        view(&history.run, &Observed::default(), &[], &history.now).merged.is_some()
    };
    let nothing = merge(&history.run.opened.base);
    history.submit(&nothing).expect("a normal answer");
    assert!(!merged(&history));
    history.play(DONE_A);
    history.submit(&merge(&oid(3))).expect("what was landed so far");
    assert!(merged(&history));
    history.play("claim b, start b, verify b, land b, complete b");
    assert!(!merged(&history), "b landed since");
    history.play("merge, claim c, start c, verify c, land c, complete c");
    assert!(merged(&history), "c added nothing");
}

#[test]
fn a_commit_that_failed_verify_is_not_the_last_good_one() {
    let last_good = |end: &str| {
        let mut history = history();
        history.play("claim a, start a");
        let (step, head) = (at("a"), Some(oid(9)));
        let snapshot = Some(Snapshot { head, ..snapshot(1) });
        let fence = history.run.held().next().expect("held").1.fence;
        let kept = Request::Checkpoint { snapshot, report: None };
        history.submit(&Command::Under(Under { step, fence }, kept)).expect("kept");
        history.play(end);
        let view = view(&history.run, &Observed::default(), &history.leases, &history.now);
        view.steps[0].last_good_commit.known_as
    };
    assert_eq!(last_good("fail a exit"), KnownAs::Snapshot);
    assert_eq!(last_good("fail a verify"), KnownAs::Base);
    assert_eq!(last_good("fail a verify, claim a, start a"), KnownAs::Base);
}

#[test]
fn a_step_without_a_slot_of_its_lock_waits_for_that() {
    let plan = plan("lock l 1\na hand locks=l\nb hand locks=l\nc hand locks=l needs=b\nd hand");
    let mut history = History::open(plan);
    let waits = |history: &History| {
        let view = view(&history.run, &Observed::default(), &history.leases, &history.now);
        let waits = view
            .steps
            .into_iter()
            .map(|step| step.awaits_lock.map(|wait| (wait.lock.to_string(), wait.by)));
        waits.collect::<Vec<_>>()
    };
    assert_eq!(waits(&history), [None, None, None, None]);
    history.play("claim a from x");
    let waiting = Some(("l".to_owned(), vec![at("a")]));
    assert_eq!(waits(&history), [None, waiting, None, None]);
}

#[test]
fn an_interruption_is_left_where_the_log_says_it_was() {
    check("claim a", "interrupt a verify", "interrupted a at unstarted: unknown");
    check("claim a", "interrupt a land", "interrupted a at unstarted: unknown");
    check("claim a, start a", "interrupt a land", "interrupted a at agent: unknown");
    check("claim a, start a", "interrupt a unstarted", "interrupted a at agent: unknown");
    check("claim a, start a", "interrupt a verify", "interrupted a at verify: unknown");
    let verified = "claim a, start a, verify a";
    check(verified, "interrupt a agent", "interrupted a at land: unknown");
    let entered = "claim a, start a, interrupt a verify, claim a";
    check(entered, "interrupt a agent", "interrupted a at verify: unknown");
}

#[test]
fn burial_follows_the_exit_record_alone() {
    let agent = "claim a, start a";
    check(agent, "bury a none", "interrupted a at agent: reboot");
    check(agent, "bury a 0", "interrupted a at verify: reboot");
    check(agent, "bury a 1", "failed a: ended with exit 1");
    check(agent, "bury a 127", "failed a: ended with exit 127");
    check(agent, "bury a signal-11", "failed a: ended with signal 11");
    check(agent, "bury a signal-9", "interrupted a at agent: process_kill");
    check(agent, "bury a signal-15", "interrupted a at agent: termination");
    check(agent, "bury a 137", "interrupted a at agent: process_kill");
    check(agent, "bury a 143", "interrupted a at agent: termination");
    check("claim a", "bury a none", "interrupted a at unstarted: reboot");
    let verified = "claim a, start a, verify a";
    check(verified, "bury a 1", "interrupted a at land: reboot");
    let entered = "claim a, start a, interrupt a verify, claim a";
    check(entered, "bury a 1", "interrupted a at verify: reboot");
}

#[test]
fn an_exit_after_a_stop_was_asked_for_is_an_interruption() {
    let agent = "claim a, start a, stop a";
    check(agent, "bury a 0:stop", "interrupted a at agent: user_interrupt");
    check(agent, "bury a 1:stop", "interrupted a at agent: user_interrupt");
    // The stop came after the agent had ended by itself: its work is done and only to be verified.
    check(agent, "bury a 0", "interrupted a at verify: user_interrupt");
    check(agent, "bury a 1", "failed a: ended with exit 1");
}

#[test]
fn an_exit_because_time_was_up_is_a_failure_whatever_the_agent_says() {
    check("claim a, start a", "bury a 0:time", "failed a: timed out after 60 s");
    check("claim a, start a", "bury a signal-15:time", "failed a: timed out after 60 s");
}

#[test]
fn nothing_is_started_once_the_agent_has_ended() {
    let nothing = "no: the agent of step a has ended: there is nothing to start";
    check("claim a, start a, bury a 0, claim a", "start a", nothing);
    check("claim a, start a, verify a, bury a none, claim a", "start a", nothing);
}

#[test]
fn what_stood_in_the_tree_before_a_reset_is_no_work_of_the_step() {
    let reset = "claim a, start a, bury a none, claim a, set-aside a 7, start a, bury a none";
    check(reset, "claim a", "claimed a fresh");
}

#[test]
fn the_agent_is_not_started_again_once_it_had_ended() {
    check("claim a, start a, bury a 0", "claim a", "claimed a verify");
    check("claim a, start a, bury a 0, claim a, bury a none", "claim a", "claimed a verify");
    check("claim a, start a, verify a, bury a none", "claim a", "claimed a land");
    check("claim a, start a, verify a, land a, bury a none", "claim a", "claimed a land");
    check("claim a there, start a, verify a, wait 60", "claim a", "claimed a land, lease over");
}

#[test]
fn an_agent_goes_on_where_something_was_done() {
    check("claim a, start a, bury a none", "claim a", "claimed a fresh");
    check("claim a, start a, checkpoint a 2, bury a none", "claim a", "claimed a continue");
    check("claim a, start a, checkpoint a 2, fail a verify", "claim a", "claimed a continue");
    let undone = "claim a, start a, checkpoint a 2, checkpoint a 0, bury a none";
    check(undone, "claim a", "claimed a fresh");
    let command = format!("{DONE_A}, claim b, start b, checkpoint b 2, bury b none");
    check(&command, "claim b", "claimed b fresh");
}

#[test]
fn reported_progress_says_whether_it_is_worth_going_on() {
    let worked = "claim a, start a, checkpoint a 2";
    let after = |percent: u8| format!("{worked}, progress a {percent}, bury a none");
    check(&after(9), "claim a", "claimed a fresh");
    check(&after(10), "claim a", "claimed a continue");
    check("claim a, start a, progress a 40, bury a none", "claim a", "claimed a continue");
    // What was reported about a tree that was given up says nothing about the next one.
    let again = format!("{}, claim a, start a, bury a none", after(9));
    check(&again, "claim a", "claimed a fresh");
    let anew = format!("{}, claim a, start a, checkpoint a 1, bury a none", after(9));
    check(&anew, "claim a", "claimed a continue");
}

#[test]
fn nothing_goes_on_from_a_tree_that_was_given_up() {
    let mut history = history();
    history.play("claim a, start a, checkpoint a 2, progress a 5, bury a none");
    let kept = |history: &History| {
        let (_, state) = history.run.step(&at("a")).expect("in the plan");
        (state.snapshot.is_some(), state.resume_snapshot().is_some())
    };
    assert_eq!(kept(&history), (true, true));
    history.play("claim a, start a, progress a 50");
    assert_eq!(kept(&history), (true, false));
    history.play("checkpoint a 1");
    assert_eq!(kept(&history), (true, true));
}

#[test]
fn reported_progress_is_new_progress() {
    let round = |percent: u8| format!("claim a, start a, progress a {percent}, bury a none");
    let rounds = |all: [u8; 3]| all.map(round).join(", ");
    let ask = "no: step a waits for the answer to q14: a was interrupted 3 times in a row without new \
               progress (reboot): is it tried again?";
    check(&rounds([20, 20, 20]), "claim a", ask);
    check(&rounds([20, 20, 30]), "claim a", "claimed a continue");
}

#[test]
fn changes_that_a_fresh_start_left_behind_are_not_continued() {
    let failed = "claim a, start a, checkpoint a 2, verify a, fail a landing";
    check(failed, "claim a", "claimed a fresh");
    check(&format!("{failed}, claim a, bury a none"), "claim a", "claimed a fresh");
    let lost = format!("{failed}, claim a there, start a, wait 60");
    check(&lost, "claim a", "claimed a fresh, lease over");
    check(&format!("{failed}, claim a, start a, bury a none"), "claim a", "claimed a fresh");
}

#[test]
fn a_look_ahead_counts_the_changes_that_were_seen() {
    let mut history = history();
    history.play("claim a, start a");
    let seen = |changed| {
        let corpse = piton_core::observed::Corpse { changed, ..corpse("none") };
        let observed = history.seeing(&Sighting::Dead(corpse));
        recover(&history.run, &observed, &history.leases, &history.now)[0].action.clone()
    };
    assert!(format!("{:?}", seen(Some(3))).contains("Continue"));
    assert!(format!("{:?}", seen(Some(0))).contains("Fresh"));
    assert!(format!("{:?}", seen(None)).contains("Fresh"));
}

#[test]
fn an_obstacle_asks_at_once_and_is_looked_for_again_by_whoever_resumes() {
    for stage in ["unstarted", "agent", "verify"] {
        let met = format!("claim a, start a, interrupt a {stage} obstacle");
        check(&met, "claim a", "no: step a cannot go on by itself: seen");
        check_view(&met, "waiting interrupted blocked pending");
        check(&met, "claim c", "claimed c fresh");
        check(&met, "resume", "resumed");
        let entry = if stage == "verify" { "verify" } else { "fresh" };
        let resumed = format!("{met}, resume");
        check(&resumed, "claim a", &format!("claimed a {entry}"));
        check(&resumed, "resume", "nothing");
        let again = format!("{resumed}, claim a, interrupt a {stage} obstacle");
        check(&again, "claim a", "no: step a cannot go on by itself: seen");
    }
    // Whoever asked for a stop meanwhile has met nothing.
    let stopped = "claim a, start a, stop a, interrupt a agent obstacle";
    check(stopped, "claim a", "no: step a was stopped on request");
}

#[test]
fn three_idle_interruptions_ask_a_person() {
    let round = "claim a, start a, bury a none";
    let twice = format!("{round}, {round}");
    let three = format!("{twice}, {round}");
    check(&twice, "claim a", "claimed a fresh");
    let both = "interrupted a at agent: reboot, asked a try again / skip / stop";
    check(&format!("{twice}, claim a, start a"), "bury a none", both);
    let ask = "no: step a waits for the answer to q11: a was interrupted 3 times in a row without new \
               progress (reboot): is it tried again?";
    for claim in ["claim a", "claim a from x"] {
        check(&three, claim, ask);
    }
    check_view(&three, "open waiting blocked pending");
    check(&three, "claim c", "claimed c fresh");
    check(&three, "resume", "nothing");

    check(&three, "answer a try again", "answered a q11 try again");
    let again = format!("{three}, answer a try again");
    check(&again, "claim a", "claimed a fresh");
    check(&format!("{again}, claim a, start a"), "bury a none", "interrupted a at agent: reboot");
    check(&format!("{again}, {twice}, claim a, start a"), "bury a none", both);
    let why = "interrupted 3 times without new progress (reboot)";
    check(&three, "answer a skip", &format!("answered a q11 skip, skipped a: {why}"));
    check_view(&format!("{three}, answer a skip"), "open skipped pending pending");
    check(&three, "answer a stop", "answered a q11 stop, stop requested run");
    check(&format!("{three}, answer a stop, resume"), "claim a", "claimed a fresh");
    // Who wants everything to go on, or takes the step up again, has said so.
    check(&three, "resume confirmed", "resumed, confirmed, answered a q11 try again");
    check(&format!("{three}, resume confirmed"), "claim a", "claimed a fresh");
    check(&format!("{twice}, resume confirmed, {twice}"), "claim a", "claimed a fresh");
    check(&format!("{three}, retry a"), "claim a", "claimed a continue");

    let done = format!("{twice}, {DONE_A}");
    check(&done, "resume confirmed", "nothing");
    let progress = format!("{twice}, claim a, start a, checkpoint a 2, bury a none");
    check(&progress, "claim a", "claimed a continue");
    let unstarted = format!("{twice}, claim a, bury a none, claim a, bury a none");
    check(&unstarted, "claim a", "claimed a fresh");
    let asked = format!("{twice}, claim a, start a, stop a, bury a none, resume");
    check(&asked, "claim a", "claimed a fresh");
}

#[test]
fn only_failures_spend_the_retries() {
    let once = "claim a, start a, fail a exit";
    let twice = format!("{once}, {once}");
    check(once, "claim a", "claimed a fresh");
    check(&twice, "claim a", "no: step a failed and has no retries left");
    check(&twice, "claim c", "claimed c fresh");
    check(&twice, "resume confirmed", "nothing");
    check_view(once, "open failed blocked pending");
    check_view(&twice, "open failed blocked pending");
    let interrupted =
        format!("{once}, claim a, start a, bury a none, claim a, start a, bury a none");
    check(&interrupted, "claim a", "claimed a fresh");
}

#[test]
fn statuses_follow_the_log() {
    check_view("", "open pending blocked pending");
    check_view("claim a", "running claimed blocked pending");
    check_view("claim a, start a", "running running blocked pending");
    check_view("claim a, start a, verify a", "running verified blocked pending");
    check_view("claim a, start a, verify a, land a", "running landing blocked pending");
    check_view(DONE_A, "open completed pending pending");
    check_view("stop run", "stopped pending blocked pending");
    check_view("claim a, start a, stop run", "running running blocked pending");
    check_view("claim a, start a, wait 60", "lapsed running blocked pending");
    check_view("claim a, wait 60, claim c from x", "running claimed blocked claimed");
    check_view("claim a from x, stop run, wait 60", "stopped claimed blocked pending");
    check_view("claim a from x, stop a, release a", "open pending blocked pending");
    let rest = "claim c from x, finish c, claim a from x, stop a, release a";
    check_view(rest, "stopped pending blocked completed");
    check_view(&format!("{rest}, resume"), "open pending blocked completed");
    check_view("claim a, start a, interrupt a agent", "interrupted interrupted blocked pending");
    check_view(
        "claim a, start a, stop run, interrupt a agent",
        "stopped interrupted blocked pending",
    );
}

#[test]
fn what_was_seen_but_not_recorded_is_shown_as_that() {
    let mut history = history();
    history.play("claim a, start a");
    let records = history.records.len();
    let observed = history.seeing(&Sighting::Dead(corpse("none")));
    assert_eq!(statuses(&history, &observed), "interrupted interrupted blocked pending");
    let shown = view(&history.run, &observed, &history.leases, &history.now);
    let StepStatus::Interrupted { recorded, .. } = shown.steps[0].status else { panic!() };
    assert!(!recorded, "nobody wrote it down");
    assert_eq!(shown.steps[0].attempts[0].state, "dead");
    history.play("bury a none");
    let shown = view(&history.run, &Observed::default(), &history.leases, &history.now);
    let StepStatus::Interrupted { recorded, .. } = shown.steps[0].status else { panic!() };
    assert!(recorded && history.records.len() == records + 1);
}

#[test]
fn a_step_that_was_left_in_the_middle_comes_first() {
    let mut history = history();
    history.play("claim c, start c, interrupt c agent");
    let mends = recover(&history.run, &Observed::default(), &history.leases, &history.now);
    let actions: Vec<String> = mends.iter().map(|mend| format!("{:?}", mend.action)).collect();
    assert!(actions[0].starts_with("AwaitJobs"), "{actions:?}");
    assert!(actions[2].starts_with("Start"), "{actions:?}");
    let Command::Claim(claim) = history.command("claim a") else { unreachable!() };
    let free = ready(&history.run, &history.asker(&claim.holder, &claim.observed));
    let free: Vec<&str> = free.iter().map(|step| step.step.as_str()).collect();
    assert_eq!(free, ["a", "c"]);
}

#[test]
fn a_need_on_a_group_waits_for_all_of_it() {
    let mut history = History::open(plan(
        "x agent in=g
         y agent in=g
         z agent needs=g",
    ));
    assert_eq!(answer(&mut history, "claim z"), "no: step z waits for x, y");
    history.play("claim x, start x, verify x, complete x");
    assert_eq!(answer(&mut history, "claim z"), "no: step z waits for y");
    history.play("claim y, start y, verify y, complete y");
    assert_eq!(answer(&mut history, "claim z"), "claimed z fresh");
}

#[test]
fn long_evidence_is_clipped_to_its_end_at_a_character() {
    let mut history = history();
    history.play("claim a");
    let (step, fence) = (at("a"), history.fence("a"));
    let tail = format!("{}end", "ü".repeat(EVIDENCE_BYTES_MAX));
    let why = Failure::Exit { exit: Exit::Code(1), tail };
    history.submit(&Command::Under(Under { step, fence }, Request::Fail { why })).unwrap();
    let (_, state) = history.run.step(&at("a")).unwrap();
    let piton_core::run::Phase::Failed { why: Failure::Exit { tail, .. }, .. } = &state.phase
    else {
        panic!("failed by its exit");
    };
    assert!(tail.len() <= EVIDENCE_BYTES_MAX && tail.ends_with("üend"));
}

#[test]
fn a_snapshot_belongs_to_the_fence_it_was_taken_under() {
    let mut history = history();
    history.play("claim a, start a, checkpoint a 2");
    history.pass(Duration::from_secs(1));
    let (_, state) = history.run.step(&at("a")).unwrap();
    let kept = state.snapshot.as_ref().unwrap();
    assert_eq!((kept.fence, &kept.snapshot), (history.fence("a"), &snapshot(2)));
    assert_eq!(state.changed, 2);
}
