//! What a run is resumed with, and what a resume would do: only some steps, so many at once, from which progress
//! on a step is gone on with, everything that was cut off again from its base; and what that costs.

use std::time::Duration;

use piton_core::event::{Entry, Terms};
use piton_core::observed::{Corpse, Observed, Sighting};
use piton_core::recover::{Action, Because};
use piton_core::resume_view::{ResumeView, resume_view};

use crate::history::{History, at, check_in, corpse, entry_word, host, plan};

/// `c` needs `b`; the others need nothing.
const PLAN: &str = "a agent retries=1
                    b agent retries=1
                    c command needs=b
                    d command";

fn history() -> History {
    History::open(plan(PLAN))
}

#[track_caller]
fn check(log: &str, command: &str, expect: &str) {
    check_in(history(), log, command, expect);
}

/// What a resume on these terms would do, a word a step, and what that costs.
fn would(log: &str, terms: Terms, sighting: &Sighting) -> String {
    let mut history = history();
    history.play(log);
    let ResumeView { steps, lost, left } = viewed(&history, &terms, sighting);
    let word = |action: &Action| match action {
        Action::Skip => "skip".to_owned(),
        Action::Adopt { .. } => "adopt".to_owned(),
        Action::Start { entry, because } => {
            let again = if *because == Because::NeedsMet { "" } else { " again" };
            format!("{}{again}", entry_word(*entry))
        }
        Action::AwaitNeeds => "needs".to_owned(),
        Action::AwaitJobs { .. } => "jobs".to_owned(),
        Action::AwaitAnswer { .. } => "ask".to_owned(),
        Action::StayFailed => "failed".to_owned(),
        Action::LeaveOut => "left out".to_owned(),
        other => format!("{other:?}"),
    };
    let steps: Vec<String> = steps.iter().map(|step| word(step.outcome())).collect();
    let seconds = |time: Duration| format!("{} s", time.as_secs());
    let lost = lost.map(|lost| format!("{} ({} %)", seconds(lost.time), lost.percent));
    let unknown = || "unknown".to_owned();
    format!(
        "{}; lost {}; left {}",
        steps.join(", "),
        lost.unwrap_or_else(unknown),
        left.map(seconds).unwrap_or_else(unknown)
    )
}

fn viewed(history: &History, terms: &Terms, sighting: &Sighting) -> ResumeView {
    // Who is found dead has died just now.
    let sighting = match sighting {
        Sighting::Dead(dead) => Sighting::Dead(Corpse { at: history.now.wall, ..dead.clone() }),
        other => other.clone(),
    };
    let observed = Observed { host: host("here"), ..history.seeing(&sighting) };
    let here = host("here");
    resume_view(&history.run, (&here, terms), &observed, &history.leases, &history.now).unwrap()
}

fn only(steps: &[&str]) -> Terms {
    Terms { steps: steps.iter().map(|step| at(step)).collect(), ..Terms::default() }
}

const DONE_D: &str = "claim d, start d, wait 20, verify d, land d, complete d";

#[test]
fn only_the_steps_that_were_asked_for_are_started() {
    check("", "resume steps=b+c", "resumed, steps b c");
    check("", "resume steps=x", "no: the plan has no step x");
    let some = "resume steps=b+c";
    check(some, "resume steps=b+c", "nothing");
    check(some, "claim a", "no: step a is not among the steps that the run was resumed with");
    check(some, "claim a from x", "claimed a fresh");
    check(some, "claim b", "claimed b fresh");
    check(some, "claim c", "no: step c waits for b");
    // The next time all are meant again.
    check(some, "resume", "resumed");
    check(&format!("{some}, resume"), "claim a", "claimed a fresh");
    let none = Sighting::Elsewhere;
    insta::assert_snapshot!(would("", only(&["c", "d"]), &none), @"left out, left out, needs, fresh; lost unknown; left unknown");
    insta::assert_snapshot!(would(some, Terms::default(), &none), @"fresh, jobs, needs, jobs; lost unknown; left unknown");
    // What was cut off is recorded, whether it was asked for or not.
    let dead = Sighting::Dead(corpse("none"));
    insta::assert_snapshot!(would("claim a, start a, wait 9", only(&["d"]), &dead), @"left out, left out, left out, fresh; lost 0 s (0 %); left unknown");
}

#[test]
fn so_many_at_once_as_was_asked_for_last() {
    check("", "resume jobs=3", "resumed, jobs 3");
    check("resume jobs=3", "resume jobs=3", "nothing");
    check("resume jobs=3", "resume", "resumed");
}

#[test]
fn the_threshold_is_for_what_was_reported() {
    let cut = |progress: &str| format!("claim a, start a, checkpoint a 2, {progress}bury a none");
    let entry = |progress: &str, threshold: Option<u8>| {
        let mut history = history();
        history.play(&cut(progress));
        let terms = Terms { threshold, ..Terms::default() };
        let steps = viewed(&history, &terms, &Sighting::Elsewhere).steps;
        match steps[0].action {
            Action::Start { entry, .. } => entry,
            ref other => panic!("{other:?}"),
        }
    };
    for (progress, threshold, expect) in [
        ("progress a 9, ", None, Entry::Fresh),
        ("progress a 10, ", None, Entry::Continue),
        ("progress a 9, ", Some(5), Entry::Continue),
        ("progress a 10, ", Some(50), Entry::Fresh),
        ("progress a 0, ", Some(0), Entry::Continue),
        ("", Some(100), Entry::Continue),
    ] {
        assert_eq!(entry(progress, threshold), expect, "{progress}{threshold:?}");
    }
    let log = format!("{}, resume threshold=50", cut("progress a 10, "));
    check(&log, "claim a", "claimed a fresh");
    check(&format!("{log}, resume"), "claim a", "claimed a continue");
}

#[test]
fn what_was_cut_off_or_failed_begins_again_from_its_base_where_that_is_asked_for() {
    let cut = "claim a, start a, checkpoint a 2, bury a none";
    let failed = "claim b, start b, fail b exit, claim b, start b, fail b verify";
    check(cut, "resume restart", "resumed, restart, reset a");
    let both = format!("{cut}, {failed}");
    check(&both, "resume restart", "resumed, restart, reset a, reset b");
    check(&both, "resume restart steps=a", "resumed, steps a, restart, reset a");
    check(&both, "claim a", "claimed a continue");
    check(&format!("{both}, resume restart"), "claim a", "claimed a fresh");
    check(&format!("{both}, resume restart"), "claim b", "claimed b fresh");
    // Once: what is cut off afterwards goes on by the rules.
    let again = format!("{cut}, resume restart, {cut}");
    check(&again, "claim a", "claimed a continue");
    check(&format!("{cut}, resume restart"), "resume restart", "nothing");
    check("", "resume restart", "nothing");
    // It needs no other answer.
    let idle = "claim a, start a, bury a none";
    let three = format!("{idle}, {idle}, {idle}");
    check(&three, "resume restart confirmed", "resumed, confirmed, restart, reset a");
}

#[test]
fn what_is_lost_and_left_is_estimated_from_the_runs_own_history() {
    let none = Sighting::Elsewhere;
    let all = Terms::default;
    let restart = || Terms { restart: true, ..Terms::default() };
    insta::assert_snapshot!(would("", all(), &none), @"fresh, jobs, needs, jobs; lost unknown; left unknown");
    let cut = "claim a, start a, wait 30, checkpoint a 2, wait 10";
    let dead = Sighting::Dead(corpse("none"));
    let killed = format!("{DONE_D}, {cut}");
    let gone = format!("{killed}, bury a none");
    insta::assert_snapshot!(would(&gone, all(), &none), @"continue again, jobs, needs, skip; lost 10 s (17 %); left 40 s");
    insta::assert_snapshot!(would(&gone, restart(), &none), @"fresh again, jobs, needs, skip; lost 40 s (67 %); left 60 s");
    insta::assert_snapshot!(would(&killed, all(), &dead), @"continue again, jobs, needs, skip; lost 10 s (17 %); left 40 s");
    insta::assert_snapshot!(would(&killed, restart(), &dead), @"fresh again, jobs, needs, skip; lost 40 s (67 %); left 60 s");
    insta::assert_snapshot!(would(&killed, all(), &Sighting::Alive), @"adopt, jobs, needs, skip; lost 0 s (0 %); left 40 s");
    // Without a completed step nobody knows how long one takes.
    insta::assert_snapshot!(would(&format!("{cut}, bury a none"), all(), &none), @"continue again, jobs, needs, jobs; lost 10 s (25 %); left unknown");
}

#[test]
fn what_has_nothing_left_to_go_on_from_begins_again() {
    let mut history = history();
    history.play("claim a, start a, checkpoint a 2, bury a none");
    let lost = [at("a")].into_iter().collect();
    let observed = Observed { host: host("here"), lost, ..Observed::default() };
    let here = host("here");
    let terms = (&here, &Terms::default());
    let view = resume_view(&history.run, terms, &observed, &history.leases, &history.now).unwrap();
    assert!(matches!(view.steps[0].action, Action::Start { entry: Entry::Fresh, .. }));
}
