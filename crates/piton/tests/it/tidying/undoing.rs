//! What went comes back; what is newer is never undone over.

use std::fs;
use std::path::PathBuf;

use piton_testkit::runs::{OnDisk, refused};

use super::{Print, assert_back, small};

#[test]
fn an_act_that_cannot_be_read_stands_in_nobodys_way() {
    let (lab, safe, prints) = small();
    assert_eq!(lab.data(&["clean", "--apply"])["act"], 1);
    let broken = lab.sandbox.path(".git/piton/undo/2.json");
    for text in ["", "{\"version\":1,\"act\":2", "{\"version\":99,\"act\":2}", "[]"] {
        lab.sandbox.write(&broken, text);
        // It is named; nobody guesses that it was not the last one that was meant.
        let out = lab.sandbox.piton(&["undo"]).output().expect_code(74);
        assert!(out.stderr.contains("error[E102]") && out.stderr.contains("2.json"), "{out}");
        assert!(out.stderr.contains("piton undo --list"), "{out}");
        let listed = lab.sandbox.piton(&["undo", "--list"]).output().success();
        assert!(listed.stdout.contains("unreadable"), "{listed}");
        assert_eq!(refused(&lab.sandbox, &["undo", "2"]).1, "E102");
        // The others are undone and done all the same.
        lab.data(&["undo", "1"]);
        assert_back(&lab, &safe, &prints, text);
        let out = lab.sandbox.piton(&["clean", "--apply"]).output().success();
        assert!(out.stderr.contains("act 2 cannot be read and is left alone"), "{out}");
        assert!(safe.iter().all(|path| !path.exists()));
        assert_eq!(lab.sandbox.read(&broken), text, "it is left alone");
        // A newer one is the last one, and can be read.
        lab.data(&["undo"]);
        assert_back(&lab, &safe, &prints, text);
        fs::remove_file(lab.sandbox.path(".git/piton/undo/3.json")).expect("its record");
        fs::remove_file(lab.sandbox.path(".git/piton/undo/1.json")).expect("its record");
        fs::remove_file(&broken).expect("it was there");
        assert_eq!(lab.data(&["clean", "--apply"])["act"], 1);
    }
}

#[test]
fn what_is_newer_is_not_undone_over() {
    let (lab, safe, prints) = small();
    lab.data(&["clean", "--apply"]);
    // Somebody goes on at the same place.
    let again = lab.open_tree("s1");
    assert_eq!(again, safe[1]);
    lab.sandbox.write(again.join("newer.txt"), "newer\n");
    let before = OnDisk::of(&lab.sandbox.repo().join(".piton"));
    let out = lab.sandbox.piton(&["undo"]).output().expect_code(1);
    assert!(out.stderr.contains("error[E101]") && out.stderr.contains("is there again"), "{out}");
    assert!(!safe[0].exists() && !safe[2].exists(), "all or nothing");
    let after = OnDisk::of(&lab.sandbox.repo().join(".piton"));
    assert_eq!(before.differences(&after), Vec::<PathBuf>::new());
    // Out of the way, it works.
    let branch = lab.sandbox.git_in(&again, &["branch", "--show-current"]);
    let path = again.to_str().expect("text");
    lab.sandbox.git(&["worktree", "remove", "--force", path]);
    lab.sandbox.git(&["branch", "-D", &branch]);
    lab.data(&["undo", "1"]);
    assert_back(&lab, &safe, &prints, "after all");
}

#[test]
fn who_comes_in_at_the_last_moment_keeps_the_worktree() {
    let (lab, safe, prints) = small();
    let crash = lab.sandbox.crash_point("clean.recorded", 1);
    let running = lab.sandbox.piton(&["clean", "--apply", "--json"]).crash_at(&crash).spawn();
    crash.wait_hit();
    let mut user = lab.sandbox.command("sleep");
    let mut user = user.arg("1000").current_dir(&safe[0]).spawn().expect("a process of the user");
    crash.release();
    let out = running.wait().expect_code(1).json();
    assert_eq!(out["issues"][0]["code"], "E103");
    assert_eq!(out["data"]["removed"].as_array().expect("rows").len(), 2);
    assert_eq!(Print::of(&lab.sandbox, &safe[0]), prints[0]);
    user.kill().and_then(|()| user.wait()).expect("it was running");
    lab.data(&["undo"]);
    assert_back(&lab, &safe, &prints, "the others");
}

#[test]
fn what_is_written_after_the_snapshot_keeps_the_worktree() {
    let (lab, safe, prints) = small();
    let crash = lab.sandbox.crash_point("clean.recorded", 1);
    let running = lab.sandbox.piton(&["clean", "--apply", "--json"]).crash_at(&crash).spawn();
    crash.wait_hit();
    lab.sandbox.write(safe[0].join("late.txt"), "late\n");
    crash.release();
    let out = running.wait().expect_code(1).json();
    let why = out["issues"][0]["message"].as_str().expect("text").to_owned();
    assert_eq!(out["data"]["removed"].as_array().expect("rows").len(), 2, "{out:#} {why}");
    assert_eq!(lab.sandbox.read(safe[0].join("late.txt")), "late\n");
    lab.data(&["undo"]);
    assert_back(&lab, &safe[1..], &prints[1..], "the others");
    assert_eq!(lab.sandbox.read(safe[0].join("late.txt")), "late\n");
}

#[test]
fn ignored_files_are_counted_and_go_for_good() {
    let (lab, safe, prints) = small();
    let out = lab.sandbox.piton(&["clean"]).output().success();
    assert!(out.stdout.contains("; 2 ignored files ("), "{out}");
    lab.data(&["clean", "--apply"]);
    lab.data(&["undo"]);
    assert_back(&lab, &safe, &prints, "but for them");
    assert!(!safe[1].join("src/secret.tmp").exists());
}
