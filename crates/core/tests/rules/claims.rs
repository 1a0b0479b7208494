//! Claims from outside: agents, scripts and people who take steps for themselves and work in a worktree
//! of their own. Who may take what from whom, and what becomes of those it is taken from.

use piton_core::claim::{claimable, ready};
use piton_core::decide::{Command, Request};
use piton_core::decided::KeyChange;
use piton_core::event::{Holder, Snapshot, Truth, Under};
use piton_core::ids::{Fence, StepRef};
use piton_core::observed::{Observed, Sighting};
use piton_core::recover::{Action, recover};
use piton_core::refusal::Refusal;
use piton_core::run::{Ending, Phase};
use piton_core::view::{KnownAs, view};

use crate::decisions::FENCED;
use crate::history::{History, LEASE, answer, at, check_in, oid, outside, plan, snapshot};

/// As for the other decisions, and `d`, which only others can do.
fn history() -> History {
    History::open(plan(
        "a agent retries=1
         b command needs=a
         c agent
         d hand",
    ))
}

/// After `log`, `command` is answered by `expect`.
#[track_caller]
fn check(log: &str, command: &str, expect: &str) {
    check_in(history(), log, command, expect);
}

const LEASED: &str = "no: step a is held elsewhere; its lease is not over";
const ALIVE: &str = "no: step a is held by a live attempt (fence 2)";
const DONE_A: &str = "claim a from x, start a, finish a";

#[test]
fn a_step_goes_from_claim_to_completion_outside() {
    check("", "claim a from x", "claimed a fresh");
    check("claim a from x", "start a", "started a");
    check("claim a from x", "checkpoint a 3", "checkpointed a 3");
    check("claim a from x", "note a half way", "checkpointed a");
    check("claim a from x", "verify a", "verified a");
    check("claim a from x, verify a", "land a", "landing intended a");
    check("claim a from x, verify a, land a", "complete a", "completed a");
    check("claim a from x", "finish a", "completed a");
    check("claim a from x", "fail a reported", "failed a: reported: message");
    check(DONE_A, "claim b from x", "claimed b fresh");
    check(DONE_A, "claim b", "claimed b fresh");
    check("claim a from x", "complete a", "no: step a is not verified");
    check("claim a from x", "land a", "no: step a is not verified");
}

#[test]
fn another_commit_is_landed_anew() {
    let mut history = history();
    history.play("claim a from x, verify a, land a");
    let landing = |history: &History| {
        history.run.step(&at("a")).map(|(_, a)| a.verified().is_some_and(|it| it.landing.is_some()))
    };
    assert_eq!(landing(&history), Some(true));
    history.play("verify a");
    assert_eq!(landing(&history), Some(false));
}

#[test]
fn only_somebody_outside_completes_without_a_commit() {
    check("claim a, start a", "finish a", "no: step a is not verified");
    check("claim a, start a, verify a, land a", "finish a", "no: step a is not verified");
    check("claim a, start a, verify a", "waive a", "no: step a is not verified");
}

fn truth_after(log: &str) -> Truth {
    let mut history = history();
    history.play(log);
    let shown = view(&history.run, &Observed::default(), &history.leases, &history.now);
    shown.steps[0].truth
}

#[test]
fn nobody_but_the_holder_has_seen_a_step_done_that_has_no_commit() {
    assert_eq!(truth_after("claim a from x, finish a"), Truth::Claimed);
    assert_eq!(truth_after("claim a from x, verify a, land a, complete a"), Truth::Verified);
    // What piton saw of an attempt before is nothing it saw of this one.
    let before = "claim a, start a, verify a, interrupt a land, claim a from x";
    assert_eq!(truth_after(before), Truth::Unknown);
    assert_eq!(truth_after(&format!("{before}, finish a")), Truth::Claimed);
    let forced = "claim a, start a, verify a, claim a from x force";
    assert_eq!(truth_after(&format!("{forced}, finish a")), Truth::Claimed);
    assert_eq!(truth_after("claim a from x, verify a, finish a"), Truth::Claimed);
}

#[test]
fn what_was_verified_in_an_earlier_attempt_is_not_landed_by_one_that_starts_over() {
    let before = "claim a, start a, verify a, interrupt a land, claim a from x";
    check(before, "land a", "no: step a is not verified");
    check(before, "complete a", "no: step a is not verified");
    let released = "claim a, start a, verify a, force-release a, claim a";
    check(released, "verify a", "no: step a has not been started");
    check(released, "land a", "no: step a is not verified");
    check(released, "bury a none", "interrupted a at unstarted: reboot");
}

#[test]
fn auto_reclaim_gives_the_same_owner_a_new_fence_at_once() {
    check("claim a from x", "claim a from x", "claimed a fresh, same owner");
    check("claim a from x", "claim any from x", "claimed a fresh, same owner");
    check("claim a from x, wait 60", "claim a from x", "claimed a fresh, same owner");
    check("claim a from x, start a", "claim a from x", "claimed a fresh, same owner");
    let worked = "claim a from x, start a, checkpoint a 2";
    check(worked, "claim a from x", "claimed a continue, same owner");
    check("claim d from x, start d", "claim d from x", "claimed d fresh, same owner");

    let mut history = history();
    history.play("claim a from x, wait 59, claim a from x");
    assert_eq!(history.fence("a"), Fence(3));
    let (_, state) = history.run.step(&at("a")).unwrap();
    assert_eq!(state.attempt().unwrap().until, history.now.after(LEASE), "with a lease of its own");
    assert_eq!(history.leases.len(), 1, "and a row of its own");
    assert_eq!(state.history[0].ending, Ending::Displaced);
    history.play("wait 59");
    assert_eq!(answer(&mut history, "claim a from y"), LEASED);
}

#[test]
fn after_auto_reclaim_the_old_fence_is_refused_on_every_path() {
    let stale = "no: step a is no longer yours: its fence is 4, yours was 2";
    for command in FENCED.into_iter().chain(["release a@F"]) {
        check("claim a from x, start a, claim a from x", &command.replace("@F", "@2"), stale);
    }
    let mut history = history();
    history.play("claim a from x, start a, claim a from x");
    assert!(!history.heartbeat("a@2"), "and renews nothing");
    history.play("wait 1");
    assert!(history.heartbeat("a@4"), "as the new one does");
}

#[test]
fn auto_reclaim_is_for_the_same_worktree_on_the_same_host() {
    check("claim a from x", "claim a from y", LEASED);
    check("claim a from x", "claim a from x there", LEASED);
    check("claim a from x", "claim a", LEASED);
    check("claim a from x", "claim a there", LEASED);
    check("claim a from x", "claim any from y", "claimed c fresh");
}

#[test]
fn auto_reclaim_does_not_touch_a_keeper_of_the_same_host() {
    check("claim a", "claim a from x alive", ALIVE);
    check("claim a, wait 60", "claim a from x alive", ALIVE);
    check("claim a, wait 60", "claim a from x", ALIVE);
    let dead = "no: step a is held by a dead attempt (fence 2) that has to be recovered first";
    check("claim a", "claim a from x none", dead);
    check("claim a there, wait 60", "claim a from x", "claimed a fresh, lease over");
}

#[test]
fn auto_reclaim_waits_for_a_stopped_step_whatever_became_of_its_claim() {
    let stopped = "no: step a was stopped on request";
    let fail = "claim a from x, stop a, fail a exit";
    for ended in ["claim a from x, stop a", "claim a from x, stop a, release a", fail] {
        check(ended, "claim a from x", stopped);
        check(ended, "claim a from y force", stopped);
        check(ended, "resume", "resumed");
        check(&format!("{ended}, wait 600"), "claim a from y", stopped);
        check(&format!("{ended}, wait 600"), "claim a", stopped);
        let mut history = history();
        history.play(&format!("{ended}, resume, wait 600"));
        assert!(answer(&mut history, "claim a from y").starts_with("claimed a"), "{ended}");
    }
    // Others of the run are not stopped with it.
    check("claim a from x, stop a, release a", "claim any from y", "claimed c fresh");
    check("claim a from x, stop a", "finish a", "completed a");
    check("claim a, start a, stop a, wait 60", "claim a there", stopped);
}

#[test]
fn a_stop_is_heard_by_whoever_works_outside_until_it_is_lifted() {
    let heard = |commands: &str| {
        let mut history = history();
        history.play(commands);
        let (_, state) = history.run.step(&at("a")).unwrap();
        history.run.stop_for(state.attempt().expect("it is held")).is_some()
    };
    assert!(heard("claim a from x, stop a"));
    assert!(heard("claim a from x, stop run"));
    assert!(heard("claim a from x, stop a, start a, checkpoint a 2, wait 600"));
    assert!(!heard("claim a from x, stop a, resume"));
    assert!(!heard("claim a from x, stop run, resume"));
    assert!(heard("claim a, stop a, resume"), "a keeper ends what it was asked to end");
}

#[test]
fn another_worktree_waits_for_the_lease_and_not_longer() {
    check("claim a from x, wait 59", "claim a from y", LEASED);
    check("claim a from x, wait 60", "claim a from y", "claimed a fresh, lease over");
    check("claim a from x, wait 60", "claim a", "claimed a fresh, lease over");
    check("claim a from x, wait 60", "claim a from x there", "claimed a fresh, lease over");
    check("claim a from x, wait 59, heartbeat a, wait 59", "claim a from y", LEASED);
    let late = "claim a from x, wait 59, heartbeat a, wait 60";
    check(late, "claim a from y", "claimed a fresh, lease over");
}

#[test]
fn a_lapsed_claim_that_nobody_took_goes_on() {
    for command in FENCED.into_iter().chain(["release a@F"]) {
        let (mut in_time, mut late) = (history(), history());
        in_time.play("claim a from x");
        late.play("claim a from x, wait 600");
        let command = command.replace("@F", "@2");
        assert_eq!(answer(&mut in_time, &command), answer(&mut late, &command));
    }
    let mut history = history();
    history.play("claim a from x, wait 600");
    assert!(history.heartbeat("a"));
    assert_eq!(answer(&mut history, "claim a from y"), LEASED);
    history.play("wait 60, claim a from y");
    assert!(!history.heartbeat("a@2"), "but not once it was retaken");
}

#[test]
fn a_claim_that_was_taken_after_its_lease_is_over_on_every_path() {
    let stale = "no: step a is no longer yours: its fence is 3, yours was 2";
    for command in FENCED.into_iter().chain(["release a@F"]) {
        let taken = "claim a from x, wait 60, claim a from y";
        check(taken, &command.replace("@F", "@2"), stale);
        let over = match command {
            "release a@F" => "no: step a is completed: that cannot be released",
            _ => "no: step a is completed",
        };
        check(&format!("{taken}, finish a"), &command.replace("@F", "@2"), over);
    }
}

#[test]
fn the_first_that_can_be_had_is_ones_own_then_the_lowest() {
    check("", "claim any from x", "claimed a fresh");
    check("claim a from y", "claim any from x", "claimed c fresh");
    check("claim d from x", "claim any from x", "claimed d fresh, same owner");
    check("claim d from x, claim c from x", "claim any from x", "claimed c fresh, same owner");
    check(DONE_A, "claim any from x", "claimed b fresh");
    check("claim a from y, wait 60", "claim any from x", "claimed a fresh, lease over");
    check("claim c from y, wait 60", "claim any from x", "claimed a fresh");
    check("claim a from y, fail a reported", "claim any from x", "claimed a fresh");
    let none = "no: no step can be claimed now";
    check("claim a from y, claim c from y, claim d from y", "claim any from x", none);
    check("stop run", "claim any from x", none);
    check("claim a", "claim any there", none);
}

#[test]
fn claims_from_outside_do_not_count_as_jobs() {
    check("claim a", "claim c from x", "claimed c fresh");
    check("claim a from x", "claim c", "claimed c fresh");
    check("claim a from x, claim c from y", "claim d from x", "claimed d fresh");
    check(
        "claim a from x, claim c",
        "claim d",
        "no: as many steps are attempted as may be at once (1)",
    );
}

#[test]
fn claims_from_outside_are_not_bound_by_another_step_that_failed() {
    let failed = "claim a, start a, fail a exit, claim a, start a, fail a exit";
    check(failed, "claim c", "claimed c fresh");
    check(failed, "claim c from x", "claimed c fresh");
    check(failed, "claim any from x", "claimed c fresh");
    check(failed, "claim a from x", "no: step a failed and has no retries left");
    check(failed, "claim a from x force", "no: step a failed and has no retries left");
    check(failed, "claim b from x force", "no: step b waits for a");
}

#[test]
fn an_agent_outside_takes_over_what_a_keeper_left_and_the_other_way_round() {
    let ended = "claim a, start a, checkpoint a 2, bury a 0";
    check(ended, "claim a", "claimed a verify");
    check(ended, "claim a from x", "claimed a continue");
    check("claim a, start a, verify a, bury a none", "claim a from x", "claimed a fresh");
    check("claim a from x, wait 60", "claim a", "claimed a fresh, lease over");
    let worked = "claim a from x, start a, checkpoint a 2, wait 60";
    check(worked, "claim a", "claimed a continue, lease over");
    let verified = "claim a from x, start a, verify a, wait 60";
    check(verified, "claim a", "claimed a land, lease over");
}

#[test]
fn force_claim_takes_a_live_step_and_ends_its_attempt() {
    check("claim a from x", "claim a from y force", "claimed a fresh, forced");
    check("claim a", "claim a from x force alive", "claimed a fresh, forced");
    check("claim a", "claim a from x force", "claimed a fresh, forced");
    check("claim a there", "claim a from x force", "claimed a fresh, forced");
    check("claim a from x", "claim a force", "claimed a fresh, forced");
    let stale = "no: step a is no longer yours: its fence is 4, yours was 2";
    for command in FENCED.into_iter().chain(["release a@F"]) {
        let command = command.replace("@F", "@2");
        check("claim a, start a, claim a from x force alive", &command, stale);
        check("claim a from x, start a, claim a from y force", &command, stale);
    }
}

#[test]
fn force_claim_uses_force_only_where_it_must() {
    check("", "claim a from x force", "claimed a fresh");
    check("claim a from x", "claim a from x force", "claimed a fresh, same owner");
    check("claim a from x, wait 60", "claim a from y force", "claimed a fresh, lease over");
}

#[test]
fn force_claim_looks_at_silent_holders_then_free_steps_then_live_ones() {
    // c is silent, a is free.
    check("claim c from y, wait 60", "claim any from x force", "claimed c fresh, lease over");
    // c is live, a is free.
    check("claim c from y", "claim any from x force", "claimed a fresh");
    // a and c are live, d is free.
    check("claim a from y, claim c from y", "claim any from x force", "claimed d fresh");
    // All are live: the lowest.
    let live = "claim c from y, claim d from y, claim a from y";
    check(live, "claim any from x force", "claimed a fresh, forced");
    // d is silent, the others are live.
    let silent = "claim d from y, wait 60, claim a from y, claim c from y";
    check(silent, "claim any from x force", "claimed d fresh, lease over");
    // c was left by somebody who died, a is free.
    let dead = "claim c, start c, bury c none";
    check(dead, "claim any from x force", "claimed c fresh");
    check(dead, "claim any from x", "claimed a fresh");
    // One's own comes before all of them.
    let own = "claim c from y, wait 60, claim d from x";
    check(own, "claim any from x force", "claimed d fresh, same owner");
}

#[test]
fn force_claim_never_breaks_a_need_and_never_takes_a_completed_step() {
    check("", "claim b from x force", "no: step b waits for a");
    check("claim a from x", "claim b from y force", "no: step b waits for a");
    check(DONE_A, "claim a from x force", "no: step a is completed");
    check("stop run", "claim a from x force", "no: the run is stopped");
    check("claim a from x, stop run", "claim a from y force", "no: the run is stopped");
    check("", "claim nobody from x force", "no: the plan has no step nobody");
    let all = "claim c from x, finish c, claim d from x, finish d, claim b from x, finish b";
    let all = format!("{DONE_A}, {all}");
    check(&all, "claim any from x force", "no: no step can be claimed now");
}

#[test]
fn force_claim_does_not_pass_over_the_burial_of_the_dead() {
    let dead = "no: step a is held by a dead attempt (fence 2) that has to be recovered first";
    check("claim a", "claim a from x force none", dead);
    check("claim a, bury a none", "claim a from x force", "claimed a fresh");
}

#[test]
fn a_keeper_that_claims_by_force_needs_a_free_job_too() {
    let busy = "no: as many steps are attempted as may be at once (1)";
    check("claim a from x, claim c", "claim a force", busy);
}

#[test]
fn release_gives_a_step_back() {
    check("claim a from x", "release a", "released a");
    check("claim a from x, start a, checkpoint a 2", "release a", "released a");
    check("claim a from x, wait 600", "release a", "released a");
    check("claim a from x, release a", "claim a from y", "claimed a fresh");
    check("claim a from x, release a", "claim a from x", "claimed a fresh");
    check("claim a from x, release a", "claim a", "claimed a fresh");
    check("claim a from x, release a", "claim b from x", "no: step b waits for a");

    let mut history = history();
    history.play("claim a from x, release a");
    let (_, state) = history.run.step(&at("a")).unwrap();
    assert_eq!(state.phase, Phase::default());
    assert_eq!(state.history[0].ending, Ending::Released);
    assert!(history.leases.is_empty(), "no row is left");
}

#[test]
fn release_is_for_the_owner_and_for_force() {
    let stale = "no: step a is no longer yours: its fence is 3, yours was 2";
    check("claim a from x, claim a from x", "release a@2", stale);
    check("claim a from x, claim a from x", "release a@3", "released a");
    check("claim a from x", "force-release a", "released a by force");
    check("claim a", "force-release a", "released a by force");
    check("claim a from x, stop run", "release a", "released a");
    let inside = "no: step a is run by piton: what runs inside of it cannot give it back";
    check("claim a, start a", "release a", inside);
    check("claim a there", "release a", inside);
}

#[test]
fn after_release_the_fence_is_over_on_every_path() {
    let over = "no: step a is not claimed, and fence 2 is over";
    for command in FENCED {
        let command = command.replace("@F", "@2");
        check("claim a from x, release a", &command, over);
        check("claim a from x, force-release a", &command, over);
        check("claim a, start a, force-release a", &command, over);
    }
    let mut history = history();
    history.play("claim a from x, force-release a");
    assert!(!history.heartbeat("a@2"));
}

#[test]
fn release_of_what_nobody_holds_says_so() {
    let pending = "no: step a is not claimed: it is pending";
    let completed = "no: step a is completed: that cannot be released";
    for release in ["release a", "force-release a"] {
        check("", release, pending);
        check("claim a from x, release a", release, pending);
        check(DONE_A, release, completed);
        check("", &release.replace(" a", " nobody"), "no: the plan has no step nobody");
    }
    let (cut, failed) = ("claim a, start a, interrupt a agent", "claim a from x, fail a reported");
    let over = "no: step a is not claimed, and fence 2 is over";
    check(cut, "release a", over);
    check(failed, "release a", over);
    check(cut, "force-release a", "no: step a is not claimed: it was interrupted");
    check(failed, "force-release a", "no: step a is not claimed: it has failed");
}

#[test]
fn release_keeps_what_an_agent_had_done() {
    let released = "claim a, start a, checkpoint a 2, force-release a";
    check(released, "claim a", "claimed a continue");
    check(released, "claim a from x", "claimed a continue");
    let unstarted = format!("{released}, claim a, bury a none");
    check(&unstarted, "claim a", "claimed a continue");
}

#[test]
fn release_spends_no_retry_and_is_no_interruption() {
    let given_back = "claim a, start a, force-release a";
    let often = [given_back; 5].join(", ");
    check(&often, "claim a", "claimed a fresh");
    check(&often, "resume confirmed", "nothing");
}

#[test]
fn reset_makes_a_step_pending_that_had_ended() {
    let failed = "claim a, start a, fail a exit, claim a, start a, fail a exit";
    check(failed, "reset a", "reset a");
    check(&format!("{failed}, reset a"), "claim a", "claimed a fresh");
    check(&format!("{failed}, reset a"), "claim c", "claimed c fresh");
    let again = format!("{failed}, reset a, claim a, start a, fail a exit");
    check(&again, "claim a", "claimed a fresh");

    let round = "claim a, start a, checkpoint a 2, bury a none";
    let idle = format!("{round}, {round}, {round}");
    check(&idle, "reset a", "reset a");
    check(&format!("{idle}, reset a"), "claim a", "claimed a fresh");
    let stopped = "claim a, start a, stop a, interrupt a agent";
    check(&format!("{stopped}, reset a"), "claim a", "claimed a fresh");
    let landing = "claim a, start a, verify a, land a, interrupt a land, reset a";
    check(landing, "claim a", "claimed a fresh");
}

#[test]
fn reset_as_release_gives_back_what_a_pending_step_has_spent() {
    let stopped = "claim a from x, stop a, release a";
    check(stopped, "claim a from x", "no: step a was stopped on request");
    check(stopped, "reset a", "reset a");
    check(&format!("{stopped}, reset a"), "claim a from x", "claimed a fresh");
    check(&format!("{stopped}, reset a"), "reset a", "nothing");
    let run = "claim a from x, stop run, release a";
    check(&format!("{run}, reset a"), "claim a from x", "no: the run is stopped");
    // One failure is all that `a` has to spend.
    let failed = "claim a from x, fail a reported, claim a from x, release a";
    let again = "claim a from x, fail a reported";
    let used_up = "no: step a failed and has no retries left";
    check(&format!("{failed}, {again}"), "claim a from x", used_up);
    check(&format!("{failed}, reset a, {again}"), "claim a from x", "claimed a fresh");
}

#[test]
fn reset_leaves_alone_what_is_held_or_pending() {
    check("", "reset a", "nothing");
    check("claim a from x, release a", "reset a", "nothing");
    check("claim a from x", "reset a", "no: step a is claimed; release it first");
    check("claim a from x", "reset a wrong", "no: step a is claimed; release it first");
    check("", "reset nobody", "no: the plan has no step nobody");
}

#[test]
fn reset_of_a_completed_step_needs_a_reason() {
    check(DONE_A, "reset a", "no: step a is completed: resetting it needs a reason");
    check(DONE_A, "reset a wrong approach", "reset a");
    let reset = format!("{DONE_A}, reset a wrong");
    check(&reset, "claim b", "no: step b waits for a");
    check(&reset, "claim a from x", "claimed a fresh");
    check(&reset, "finish a@2", "no: step a is not claimed, and fence 2 is over");
    check(&format!("{reset}, claim a from x, finish a"), "claim b", "claimed b fresh");
    check(&format!("{DONE_A}, claim b from x, reset a wrong"), "finish b", "completed b");
}

#[test]
fn a_completed_run_has_given_up_its_key_and_is_not_opened_again() {
    let mut history = history();
    history.play(DONE_A);
    for step in ["b", "c", "d"] {
        history.play(&format!("claim {step} from x, finish {step}"));
    }
    assert_eq!(history.key, KeyChange::Freed);
    assert_eq!(answer(&mut history, "reset a wrong"), "no: the run is completed");
    assert_eq!(answer(&mut history, "finish a@2"), "nothing");
}

#[test]
fn a_repeated_completion_is_harmless_and_a_strangers_is_not() {
    check(DONE_A, "finish a@2", "nothing");
    check(DONE_A, "complete a@2", "nothing");
    check(DONE_A, "finish a@3", "no: step a is completed");
    let mut history = history();
    history.play(DONE_A);
    let step = StepRef { iteration: 2, ..at("a") };
    let other = Command::Under(
        Under { step, fence: Fence(2) },
        Request::Complete { commit: None, waive: None },
    );
    assert_eq!(history.submit(&other), Err(Refusal::UnknownStep(at("a#2"))));
}

#[test]
fn a_worker_waits_for_those_outside_and_for_what_it_cannot_start() {
    let mut history = history();
    history.play("claim a from x");
    let actions = |history: &History| {
        let seen = history.seeing(&Sighting::Elsewhere);
        let mends = recover(&history.run, &seen, &history.leases, &history.now);
        mends.into_iter().map(|mend| mend.action).collect::<Vec<Action>>()
    };
    assert!(matches!(actions(&history)[0], Action::AwaitLease { fence: Fence(2), .. }));
    assert!(matches!(actions(&history)[2], Action::Start { .. }), "the tree is free");
    assert_eq!(actions(&history)[3], Action::AwaitHolder);
    history.play("claim d from y");
    assert!(matches!(actions(&history)[3], Action::AwaitLease { .. }));
    history.play("wait 60");
    assert!(matches!(actions(&history)[0], Action::Start { .. }), "its lease is over");
    assert_eq!(actions(&history)[3], Action::AwaitHolder);
}

#[test]
fn what_is_ready_depends_on_who_asks() {
    let mut history = history();
    history.play("claim a from x, claim c there");
    let observed = Observed::default();
    let ready_for = |holder: &Holder| {
        let steps = ready(&history.run, &history.asker(holder, &observed));
        steps.iter().map(|step| step.step.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ready_for(&outside("here", "x")), "a d");
    assert_eq!(ready_for(&outside("here", "y")), "d");
    let Command::Claim(keeper) = history.command("claim a") else { unreachable!() };
    assert_eq!(ready_for(&keeper.holder), "");
}

/// `a` and `b` hold lock `one`, which has one slot; `b`, `c` and `d` hold `two`, which has two.
fn locked() -> History {
    History::open(plan(
        "a agent locks=one
         b agent locks=one,two
         c agent locks=two
         d hand locks=two
         lock one 1
         lock two 2",
    ))
}

#[track_caller]
fn check_locked(log: &str, command: &str, expect: &str) {
    check_in(locked(), log, command, expect);
}

#[test]
fn a_lock_has_as_many_claims_as_slots() {
    let one = "no: lock one has no free slot; it is held by a";
    let two = "no: lock two has no free slot; it is held by b, c";
    check_locked("claim a from x", "claim b from y", one);
    check_locked("claim a from x", "claim b from x", one);
    check_locked("claim a", "claim b from y", one);
    check_locked("claim a from x", "claim b", one);
    check_locked("claim b from x, claim c from x", "claim d from x", two);
    check_locked("claim c from x", "claim d from y", "claimed d fresh");
    check_locked("claim b from x", "claim any from y", "claimed c fresh");
    check_locked("claim a from x", "claim a from x", "claimed a fresh, same owner");
}

#[test]
fn a_lock_goes_with_the_claim() {
    for end in ["release a", "force-release a", "finish a", "fail a reported", "bury a none"] {
        check_locked(&format!("claim a from x, {end}"), "claim b from y", "claimed b fresh");
    }
    let taken = "claim a from x, claim a from y force, release a";
    check_locked(taken, "claim b from x", "claimed b fresh");
}

#[test]
fn force_claim_does_not_break_a_lock() {
    let one = "no: lock one has no free slot; it is held by a";
    check_locked("claim a from x", "claim b from y force", one);
    check_locked("claim a from x", "claim a from y force", "claimed a fresh, forced");
    let full = "claim b from y, claim c from y";
    check_locked(full, "claim any from x force", "claimed b fresh, forced");
}

#[test]
fn a_lapsed_claim_holds_no_lock_and_does_not_get_it_back_by_a_heartbeat() {
    let lapsed = "claim a from x, wait 60";
    check_locked(lapsed, "claim b from y", "claimed b fresh");
    check_locked(&format!("{lapsed}, heartbeat a"), "claim b from y", A_HAS_ONE);

    let mut history = locked();
    history.play(&format!("{lapsed}, claim b from y"));
    assert!(!history.heartbeat("a"), "its slot is given to another");
    let busy = "no: lock one has no free slot; it is held by b";
    assert_eq!(answer(&mut history, "claim a from x"), busy);
    assert_eq!(answer(&mut history, "finish a"), "completed a");

    // As long as there are slots enough, nobody loses theirs.
    let mut history = locked();
    history.play("claim c from x, wait 60, claim d from y");
    assert!(history.heartbeat("c"));
    assert_eq!(
        answer(&mut history, "claim b from y"),
        "no: lock two has no free slot; it is held by c, d"
    );
}

const A_HAS_ONE: &str = "no: lock one has no free slot; it is held by a";

#[test]
fn a_live_keeper_of_this_host_holds_its_locks_whatever_its_lease_says() {
    check_locked("claim a, wait 60", "claim b from x alive", A_HAS_ONE);
    // It came after whoever asks had looked.
    check_locked("claim a, wait 60", "claim b from x", A_HAS_ONE);
    check_locked("claim a there, wait 60", "claim b from x", "claimed b fresh");
    // The dead keep theirs until they are buried or their lease is over.
    check_locked("claim a", "claim b from x none", A_HAS_ONE);
    check_locked("claim a, wait 60", "claim b from x none", "claimed b fresh");
}

#[test]
fn a_worker_waits_for_a_lock() {
    let mut history = locked();
    history.play("claim a from x");
    let mends = recover(&history.run, &Observed::default(), &history.leases, &history.now);
    assert!(matches!(mends[1].action, Action::AwaitLock { .. }), "{:?}", mends[1].action);
    assert!(matches!(mends[2].action, Action::Start { .. }), "{:?}", mends[2].action);
    let holder = outside("here", "y");
    let observed = Observed::default();
    let asker = history.asker(&holder, &observed);
    let refused = claimable(&history.run, &at("b"), &asker);
    assert!(matches!(refused, Err(Refusal::LockBusy { .. })), "{refused:?}");
}

#[test]
fn a_lease_whose_row_is_lost_is_renewed_by_a_write() {
    let mut history = history();
    history.play("claim a from x, wait 61");
    history.leases.clear();
    assert!(!history.heartbeat("a"), "there is no row to move");
    history.play("renew a");
    check_refused(&mut history, "claim a from y", LEASED);
    history.play("wait 59, heartbeat a, wait 59");
    check_refused(&mut history, "claim a from y", LEASED);
    history.play("wait 2, claim a from y");
    check_refused(
        &mut history,
        "renew a@2",
        "no: step a is no longer yours: its fence is 3, yours was 2",
    );
}

#[test]
fn renewing_shortens_no_lease_and_takes_no_slot_from_others() {
    let mut history = locked();
    history.play("claim a from x");
    let row = history.leases.clone();
    history.play("renew a");
    assert_eq!(history.leases, row, "it has as long to go");
    history.play("wait 61, claim b from y");
    check_refused(&mut history, "renew a", "no: lock one has no free slot; it is held by b");
}

#[track_caller]
fn check_refused(history: &mut History, command: &str, expect: &str) {
    assert_eq!(answer(history, command), expect);
}

/// The last good commit of `a` after a log, and what it is known as.
fn good_after(log: &str) -> (String, KnownAs) {
    let mut history = history();
    history.play(log);
    let shown = view(&history.run, &Observed::default(), &history.leases, &history.now);
    let good = &shown.steps[0].last_good_commit;
    (good.commit.to_string(), good.known_as)
}

#[test]
fn the_last_good_commit_says_what_it_is_known_as() {
    let base = history().run.opened.base.to_string();
    assert_eq!(good_after(""), (base.clone(), KnownAs::Base));
    assert_eq!(good_after("claim a from x, checkpoint a 3"), (base, KnownAs::Base));
    assert_eq!(good_after("claim a, start a"), (oid(3).to_string(), KnownAs::Base));
    let verified = "claim a, start a, verify a";
    assert_eq!(good_after(verified), (oid(4).to_string(), KnownAs::Verified));
    let again = format!("{verified}, interrupt a land, claim a from x");
    assert_eq!(good_after(&again).1, KnownAs::Verified, "an earlier attempt's stays good");
    let done = format!("{verified}, land a, complete a");
    assert_eq!(good_after(&done), (oid(4).to_string(), KnownAs::Completed));
    assert_eq!(
        good_after(&format!("{again}, finish a")).1,
        KnownAs::Verified,
        "no commit of its own"
    );
}

#[test]
fn what_was_checked_out_at_the_last_snapshot_is_better_than_nothing() {
    let mut history = history();
    history.play("claim a from x");
    let (step, fence) = (at("a"), history.fence("a"));
    let snapshot = Snapshot { head: Some(oid(77)), commits: 2, ..snapshot(1) };
    let (snapshot, report) = (Some(snapshot), None);
    let checkpoint =
        Command::Under(Under { step, fence }, Request::Checkpoint { snapshot, report });
    history.submit(&checkpoint).expect("the claim is ours");
    history.play("release a");
    let shown = view(&history.run, &Observed::default(), &history.leases, &history.now);
    let a = &shown.steps[0];
    assert_eq!(a.last_good_commit.known_as, KnownAs::Snapshot);
    assert_eq!(a.last_good_commit.commit, oid(77));
    assert_eq!((a.attempts[0].commits, a.attempts[0].head.clone()), (2, Some(oid(77))));
    assert_eq!(a.attempts[0].state, "released");
}
