//! Which snapshots go and which stay, as data.

use std::time::Duration;

use piton_core::ids::Fence;
use piton_core::retention::{Aging, Retention, expendable};
use piton_core::time::Millis;

use crate::history::{History, at, plan};

const DAY: i64 = 24 * 3600 * 1000;
const NOW: Millis = Millis(100 * DAY);

/// `step/fence/n days-old`, with `!` in front of what the log does not name.
fn aging(text: &str) -> Aging {
    let recorded = !text.starts_with('!');
    let (name, days) = text.trim_start_matches('!').split_once(' ').unwrap();
    let parts: Vec<&str> = name.split('/').collect();
    Aging {
        step: at(parts[0]),
        fence: Fence(parts[1].parse().unwrap()),
        at: Millis(NOW.0 - days.parse::<i64>().unwrap() * DAY),
        refname: name.to_owned(),
        recorded,
    }
}

/// `a` is completed, `b` was interrupted.
#[track_caller]
fn check(keep: usize, all: &str, expect: &str) {
    let mut history = History::open(plan("a agent\nb agent"));
    history.play(
        "claim a, start a, verify a, land a, complete a, claim b, start b, interrupt b agent",
    );
    let all: Vec<Aging> = all.split(", ").map(aging).collect();
    let retention = Retention { keep, keep_for: Duration::from_secs(30 * 24 * 3600) };
    let gone = expendable(&history.run, &all, retention, NOW);
    let gone: Vec<&str> = gone.iter().map(|aging| aging.refname.as_str()).collect();
    assert_eq!(gone.join(", "), expect, "{all:?}");
}

#[test]
fn too_many_and_too_old_go_but_the_last_of_an_attempt_stays() {
    check(9, "a/2/1 3, a/2/2 2, a/2/3 1", "");
    check(2, "a/2/1 4, a/2/2 3, a/2/3 2, a/2/4 1", "a/2/1, a/2/2");
    check(9, "a/2/1 50, a/2/2 40, a/2/3 1", "a/2/1, a/2/2");
    check(9, "a/2/1 50, a/2/2 40", "a/2/1");
    check(1, "a/2/1 50, a/5/1 40, a/9/1 1", "");
    check(0, "a/2/1 3, a/2/2 2", "a/2/1");
}

#[test]
fn nothing_of_an_unfinished_step_goes() {
    check(1, "b/7/1 90, b/7/2 80, a/2/1 70, a/2/2 60, b/7/3 1", "a/2/1");
}

#[test]
fn what_only_a_ref_names_goes_by_its_age_alone() {
    check(1, "!a/2/1 9, !a/2/2 8, a/2/3 7, !a/2/4 1", "");
    check(1, "!a/2/1 90, !a/2/2 8, a/2/3 7, a/2/4 6, a/2/5 1", "a/2/1, a/2/3, a/2/4");
}

#[test]
fn the_last_that_the_log_names_stays_beside_a_later_one_that_only_a_ref_names() {
    check(9, "a/2/1 60, a/2/2 50, !a/2/3 1", "a/2/1");
    check(0, "a/2/1 4, a/2/2 3, !a/2/3 50, !a/2/4 1", "a/2/1, a/2/3");
}
