//! Killed at each durable action of cleaning, abandoning and undoing; said again, it ends the same.

use std::fs;

use piton_testkit::Who;
use piton_testkit::crash::points_of;

use super::{assert_back, kill_at, small, stopped};

fn killed_while_cleaning(point: &str, nth: u32) {
    let why = format!("{point}:{nth}");
    let (lab, safe, prints) = small();
    let (branches, worktrees) = (lab.branches(), lab.worktrees());
    // Said again, it ends as if nothing had happened; one undo puts all of it back.
    kill_at(&lab, &["clean", "--apply"], point, nth);
    lab.data(&["clean", "--apply"]);
    assert!(safe.iter().all(|path| !path.exists()), "{why}");
    lab.sandbox.git(&["gc", "--quiet", "--prune=now"]);
    lab.data(&["undo"]);
    assert_back(&lab, &safe, &prints, &why);
    assert_eq!((lab.branches(), lab.worktrees()), (branches, worktrees), "{why}");
    // Undone where it was cut short; refused where nothing had gone yet.
    kill_at(&lab, &["clean", "--apply"], point, nth);
    lab.sandbox.piton(&["undo"]).output();
    assert_back(&lab, &safe, &prints, &why);
}

fn killed_while_undoing(point: &str, nth: u32) {
    let why = format!("{point}:{nth}");
    let (lab, safe, prints) = small();
    let (branches, worktrees) = (lab.branches(), lab.worktrees());
    lab.data(&["clean", "--apply"]);
    kill_at(&lab, &["undo"], point, nth);
    lab.data(&["undo"]);
    assert_back(&lab, &safe, &prints, &why);
    assert_eq!((lab.branches(), lab.worktrees()), (branches, worktrees), "{why}");
}

#[test]
fn a_lock_that_a_killed_clean_up_left_on_all_refs_is_moved_aside() {
    let (lab, safe, prints) = small();
    kill_at(&lab, &["clean", "--apply"], "clean.branch-gone", 1);
    lab.sandbox.leave_lock(".git/packed-refs.lock");
    lab.data(&["clean", "--apply"]);
    assert!(!lab.sandbox.exists(".git/packed-refs.lock"));
    lab.data(&["undo"]);
    assert_back(&lab, &safe, &prints, "after all");
}

#[test]
fn a_removal_that_git_left_half_done_is_finished_or_undone() {
    for again in [&["clean", "--apply"][..], &["undo"]] {
        let (lab, safe, prints) = small();
        kill_at(&lab, &["clean", "--apply"], "clean.recorded", 1);
        // As a killed git leaves it: files go in any order.
        for name in [".git", "src/lib.txt"] {
            fs::remove_file(safe[0].join(name)).expect("it was there");
        }
        lab.data(again);
        if again[0] == "clean" {
            assert!(safe.iter().all(|path| !path.exists()));
            lab.data(&["undo"]);
        }
        assert_back(&lab, &safe, &prints, again[0]);
    }
}

fn killed_while_abandoning(point: &str, nth: u32) {
    let (lab, handle) = stopped();
    kill_at(&lab, &["abandon", &handle, "--yes"], point, nth);
    // Said again, or undone where it was cut short.
    let again = lab.sandbox.piton(&["abandon", &handle, "--yes"]).output().success();
    assert!(again.stdout.contains("abandoned"), "{again}");
    assert_eq!(lab.status(&handle), "abandoned");
    assert_eq!(lab.data(&["undo", "--list"])["acts"].as_array().map(Vec::len), Some(1), "{point}");
    lab.data(&["undo"]);
    assert_eq!(lab.status(&handle), "stopped");
    kill_at(&lab, &["abandon", &handle, "--yes"], point, nth);
    lab.data(&["undo"]);
    assert_eq!(lab.status(&handle), "stopped");
    lab.open_gate();
    lab.sandbox.piton(&["resume", &handle]).output().success();
}

fn killed_while_reopening(point: &str, nth: u32) {
    let (lab, handle) = stopped();
    lab.data(&["abandon", &handle, "--yes"]);
    kill_at(&lab, &["undo"], point, nth);
    lab.data(&["undo"]);
    assert_eq!(lab.status(&handle), "stopped");
}

fn killed_at(point: &str) {
    let act = match point {
        "undo.reopening" => killed_while_reopening,
        _ if point.starts_with("clean.") => killed_while_cleaning,
        _ if point.starts_with("abandon.") => killed_while_abandoning,
        _ => killed_while_undoing,
    };
    // The first row, and one in the middle of the act.
    let once = ["clean.done", "undo.intended", "undo.reopening"].contains(&point);
    for nth in if once || point.starts_with("abandon.") { 1..=1 } else { 1..=2 } {
        act(point, nth);
    }
}

at_every_point! {
    every_point_of_cleaning_and_undoing_has_its_test:
        points_of(|_, who| matches!(who, Who::Tidier | Who::Undoer)), killed_at;
    killed_at_clean_snapshot_kept: "clean.snapshot-kept",
    killed_at_clean_recorded: "clean.recorded",
    killed_at_clean_removed: "clean.removed",
    killed_at_clean_branch_gone: "clean.branch-gone",
    killed_at_clean_done: "clean.done",
    killed_at_abandon_recorded: "abandon.recorded",
    killed_at_abandon_abandoned: "abandon.abandoned",
    killed_at_undo_intended: "undo.intended",
    killed_at_undo_tree_back: "undo.tree-back",
    killed_at_undo_reopening: "undo.reopening",
}
