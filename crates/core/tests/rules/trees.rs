//! The pool of trees: which one a keeper gets, until when it belongs to its step, and who outside is in the
//! way.

use crate::history::{History, answer, check_in, host, plan};

fn history() -> History {
    History::open(plan(
        "a agent retries=3
         b command needs=a
         c agent retries=3",
    ))
}

/// After `log` the trees are these: `1 a*` is tree 1, which belongs to step a and has its newest work; `2 -`
/// is free.
#[track_caller]
fn check_trees(log: &str, expect: &str) {
    let mut history = history();
    history.play(log);
    let trees = history.run.trees();
    let shown = ["here", "there"].map(host).into_iter().flat_map(|host| {
        let row = |(tree, owner)| match owner {
            None => format!("{tree} -"),
            Some(step) if trees.has_work(&host, step) => format!("{tree} {step}*"),
            Some(step) => format!("{tree} {step}"),
        };
        let rows: Vec<String> = trees.on_host(&host).map(row).collect();
        rows.into_iter().map(move |row| if host.0 == "here" { row } else { format!("there {row}") })
    });
    assert_eq!(shown.collect::<Vec<_>>().join(", "), expect, "{log}");
}

const WORKED: &str = "claim a, start a, checkpoint a 3";
const FAILED: &str = "claim a, start a, checkpoint a 3, fail a exit";
const DONE: &str = "claim a, start a, verify a, land a, complete a";

#[test]
fn a_keeper_gets_the_tree_of_its_step_or_the_lowest_free_one_or_a_new_one() {
    check_trees("", "");
    check_trees("claim a", "1 a");
    check_trees(&format!("{FAILED}, claim a"), "1 a*");
    check_trees(&format!("{FAILED}, claim c"), "1 a*, 2 c");
    check_trees(&format!("{DONE}, claim b"), "1 b");
    check_trees(&format!("{FAILED}, claim c, start c, fail c exit, reset a"), "1 -, 2 c*");
    check_trees(&format!("{FAILED}, claim c, interrupt c unstarted, reset a, claim a"), "1 a, 2 c");
}

#[test]
fn a_tree_belongs_to_its_step_until_that_is_completed_or_reset() {
    check_trees("claim a, interrupt a unstarted", "1 a");
    check_trees(&format!("{WORKED}, interrupt a agent"), "1 a*");
    check_trees(&format!("{WORKED}, ask a which, suspend a"), "1 a*");
    check_trees(&format!("{WORKED}, force-release a"), "1 a*");
    check_trees(&format!("{FAILED}, reset a"), "1 -");
    check_trees(DONE, "1 -");
    check_trees(&format!("{FAILED}, claim a from x, finish a"), "1 -");
}

#[test]
fn a_step_has_one_tree_and_each_host_a_pool_of_its_own() {
    check_trees(&format!("{FAILED}, claim a there"), "1 -, there 1 a");
    check_trees(&format!("{FAILED}, claim c there"), "1 a*, there 1 c");
}

#[test]
fn only_what_was_worked_on_in_a_tree_is_in_it() {
    check_trees("claim a, start a", "1 a*");
    // A fresh start replaces what is there; it is the step's again once it has begun.
    check_trees("claim a, start a, fail a exit, claim a", "1 a");
    check_trees("claim a, start a, fail a exit, claim a, start a", "1 a*");
    check_trees(&format!("{FAILED}, claim a from x, checkpoint a 4, release a"), "1 a");
    check_trees(&format!("{FAILED}, claim a from x, release a"), "1 a*");
}

#[test]
fn a_tree_that_somebody_outside_works_in_is_passed_over() {
    check_trees("claim a from tree-1, claim c", "2 c");
    check_trees("claim a from tree-1, wait 59, claim c", "2 c");
    check_trees("claim a from tree-1, wait 60, claim c", "1 c");
    check_trees("claim a from tree-1, release a, claim c", "1 c");
    check_trees("claim a from x, claim c", "1 c");
}

#[test]
fn nobody_outside_claims_another_step_from_a_tree_that_belongs_to_one() {
    let check = |log: &str, command: &str, expect: &str| check_in(history(), log, command, expect);
    let busy = "no: the worktree is in use by step a";
    check("claim a", "claim c from tree-1", busy);
    check("claim a", "claim c from tree-1 force", busy);
    check(FAILED, "claim c from tree-1", busy);
    check(FAILED, "claim c from tree-2", "claimed c fresh");
    check(FAILED, "claim any from tree-1", "claimed a continue");
    check("claim a", "claim a from tree-1 force alive", "claimed a fresh, forced");
    check(&format!("{FAILED}, reset a"), "claim c from tree-1", "claimed c fresh");
}

#[test]
fn a_lapsed_claim_has_no_tree_and_does_not_get_it_back_by_a_heartbeat() {
    let mut history = history();
    history.play("claim a from tree-1, wait 60, claim c");
    assert!(!history.heartbeat("a"), "its tree is given to another");
    assert_eq!(answer(&mut history, "renew a"), "no: the worktree is in use by step c");
    assert_eq!(answer(&mut history, "finish a"), "completed a");
}
