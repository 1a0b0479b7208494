//! What is, or is not, at the worktree's path: gone, moved, replaced, its link broken, the repository
//! somewhere else.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use piton_testkit::Signal;
use piton_testkit::runs::{
    OnDisk, agent_step, all_killed, data, events_named, lay_plan, plan, step, view,
};

use crate::states::{Left, files};

#[test]
fn a_deleted_worktree_is_made_again_from_its_snapshot() {
    let left = Left::new();
    fs::remove_dir_all(&left.tree).expect("it can be removed");
    assert!(left.git(&["worktree", "list"]).contains(&left.handle), "git still knows it");
    let row = left.assert_told("missing");
    assert!(row["from"]["snapshot"].is_string(), "{row:#}");
    left.resume().success();
    left.assert_all_there();
}

#[test]
fn a_worktree_that_even_git_has_forgotten_is_made_again() {
    let left = Left::new();
    fs::remove_dir_all(&left.tree).expect("it can be removed");
    left.git(&["worktree", "unlock", left.tree.to_str().expect("text")]);
    left.git(&["worktree", "prune"]);
    assert!(!left.git(&["worktree", "list"]).contains(&left.handle), "git does not know it");
    left.assert_told("missing");
    left.resume().success();
    left.assert_all_there();
}

#[test]
fn what_was_lost_before_the_first_snapshot_is_not_called_kept() {
    let sandbox = crate::sandbox();
    let script = "pid {agent}; write work.txt precious; touch {ready}; once {hung}: hang";
    let text = plan(&sandbox, &[agent_step(&sandbox, "work", script, "")]);
    lay_plan(&sandbox, &text);
    all_killed(&sandbox, &["run", "plan.toml", "--trust", "--snapshot-every", "1h"]);
    assert!(step(&view(&sandbox), "work")["snapshot"].is_null(), "nothing is kept");
    let place = sandbox.piton(&["worktree", "path", "plan.toml", "work"]).output().success();
    fs::remove_dir_all(place.stdout.trim()).expect("it can be removed");

    let listed = sandbox.piton(&["worktree", "list", "--json"]).output().success().json();
    let row = &listed["data"]["worktrees"][0];
    assert_eq!((&row["status"], &row["cause"]), (&"missing".into(), &"process_kill".into()));
    let shown = sandbox.piton(&["worktree", "list"]).output().success().stdout;
    assert!(shown.lines().any(|line| line.starts_with('!')), "it is marked: {shown}");
    // What would be done and what is done is the same: there is nothing to go on from.
    let dry = data(&sandbox, &["resume", "--dry-run"]);
    let text = dry["steps"][0]["text"].as_str().expect("words");
    assert!(text.contains("restart from its base"), "{text}");
    let told = sandbox.piton(&["resume"]).output().success();
    assert_eq!(events_named(&sandbox, "claimed")[1]["entry"], "fresh");
    assert!(told.stderr.contains("started (attempt 2, fresh)"), "{told}");
    assert!(told.stderr.contains("interrupted (process_kill)\n"), "{told}");
    assert!(told.stderr.contains("there is no snapshot of it"), "{told}");
}

#[test]
fn commits_without_a_snapshot_are_gone_on_from() {
    let first = "echo mine > mine.txt; git add mine.txt; git commit -q -m mine";
    let left = Left::after(first);
    // As if it had died before the first snapshot: the branch alone knows the commit.
    fs::remove_dir_all(&left.tree).expect("it can be removed");
    left.assert_told("missing");
    left.resume().success();
    assert!(left.found("status").contains("working tree clean"), "{}", left.found("status"));
    left.assert_landed(&[("mine.txt", "mine")]);
    assert!(left.sandbox.read(left.sandbox.mark("prompt")).contains("- mine"));
}

#[test]
fn commits_since_the_last_snapshot_are_kept() {
    let left = Left::new();
    // It commits what it had staged, and something new.
    left.sandbox.write(left.tree.join("later.txt"), "later\n");
    left.git_there(&["add", "later.txt"]);
    left.git_there(&["commit", "-q", "-m", "later", "later.txt"]);
    let later = left.git_there(&["rev-parse", "HEAD"]);
    fs::remove_dir_all(&left.tree).expect("it can be removed");
    left.resume().success();
    assert_eq!(left.found("work"), "precious\n");
    left.assert_landed(&[("staged.txt", "staged\nmore"), ("work.txt", "precious")]);
    let kept = left.git(&["for-each-ref", "--contains", &later, "refs/piton/aside"]);
    assert!(!kept.is_empty(), "the snapshot is gone on from, and nothing is lost");
}

#[test]
fn a_moved_worktree_is_found_and_its_files_kept_from_there() {
    let left = Left::new();
    let moved = left.sandbox.path("put-aside");
    fs::rename(&left.tree, &moved).expect("it can be moved");
    // The work went on there: no snapshot has this.
    fs::write(moved.join("work.txt"), "precious\nand newer\n").expect("written");
    let before = OnDisk::of(&moved);
    let row = left.assert_told("moved");
    assert_eq!(row["to"], moved.to_str().expect("text"), "{row:#}");
    let told = left.resume().success();
    assert!(told.stderr.contains("put-aside"), "{told}");
    assert_eq!(left.found("work"), "precious\nand newer\n");
    assert_eq!(left.found("paths"), "AM staged.txt\n?? work.txt\n");
    assert_eq!(before.differences(&OnDisk::of(&moved)), Vec::<std::path::PathBuf>::new());
    left.assert_landed(&[("mine.txt", "mine"), ("work.txt", "precious\nand newer")]);
}

#[test]
fn a_worktree_that_git_has_moved_is_asked_for() {
    let left = Left::new();
    let (from, to) = (left.tree.to_str().expect("text"), left.sandbox.path("put-aside"));
    let to = to.to_str().expect("text");
    left.git(&["worktree", "unlock", from]);
    left.git(&["worktree", "move", from, to]);
    assert!(left.git(&["worktree", "list"]).contains("put-aside"));
    let row = left.assert_told("branch_elsewhere");
    assert_eq!(row["remedy"]["command"], format!("git worktree move {to} {from}"), "{row:#}");
    let told = left.resume().expect_code(4);
    assert!(told.stderr.contains(to), "{told}");
    assert_eq!(left.sandbox.read(Path::new(to).join("work.txt")), "precious\n");
    left.git(&["worktree", "move", to, from]);
    left.sandbox.piton(&["resume"]).output().success();
    left.assert_all_there();
}

/// Whatever stands at the worktree's place and is not ours.
fn foreign(make: impl Fn(&Left)) {
    let left = Left::new();
    fs::remove_dir_all(&left.tree).expect("it can be removed");
    make(&left);
    let place = left.tree.display().to_string();
    let row = left.assert_told("foreign");
    assert_eq!(row["remedy"]["command"], format!("mv {place} {place}.aside"), "{row:#}");
    let before = left.tree.is_dir().then(|| OnDisk::of(&left.tree));
    let checkout = files(&left.sandbox.path("theirs.txt").with_file_name("src-of-user"));
    let told = left.resume().expect_code(4);
    let hint = format!("hint: `mv {place} {place}.aside && piton resume {}`", left.handle);
    assert!(told.stderr.contains(&hint), "{told}");
    // It does not pass by itself: one look is enough to ask.
    assert_eq!(events_named(&left.sandbox, "claimed").len(), 2, "{told}");
    assert_eq!(step(&view(&left.sandbox), "work")["cause"], "obstacle");
    let status = left.sandbox.piton(&["status", &left.handle]).output().success().stdout;
    assert!(status.contains("; saved: 3 changed files, "), "what is kept is still told: {status}");
    let listed = left.sandbox.piton(&["worktree", "list"]).output().success().stdout;
    assert!(listed.contains("  work  "), "whose place it is, is told: {listed}");
    if let Some(before) = before {
        assert_eq!(before.differences(&OnDisk::of(&left.tree)), Vec::<std::path::PathBuf>::new());
    }
    assert_eq!(checkout, files(&left.sandbox.path("src-of-user")), "the user's files");
    assert_eq!(left.git(&["symbolic-ref", "HEAD"]), "refs/heads/main", "the user's HEAD");
    // What is offered, is what helps.
    fs::rename(&left.tree, left.tree.with_extension("aside")).expect("it can be moved away");
    left.sandbox.piton(&["resume"]).output().success();
    left.assert_all_there();
}

fn users_files(left: &Left) {
    left.sandbox.write("src-of-user/main.txt", "the user's\n");
}

#[test]
fn a_folder_without_git_is_left_alone() {
    foreign(|left| {
        users_files(left);
        left.sandbox.write(left.tree.join("diary.txt"), "dear diary");
    });
}

#[test]
fn another_repository_is_left_alone() {
    foreign(|left| {
        users_files(left);
        let place = left.tree.to_str().expect("text");
        left.git(&["clone", "-q", ".", place]);
        assert!(left.tree.join(".git").is_dir(), "a repository of its own");
    });
}

#[test]
fn a_file_is_left_alone() {
    foreign(|left| {
        users_files(left);
        fs::write(&left.tree, "a file").expect("written");
    });
}

#[test]
fn a_link_to_the_users_own_checkout_is_not_followed() {
    foreign(|left| {
        users_files(left);
        symlink(left.sandbox.repo(), &left.tree).expect("a link");
        assert!(left.git_there(&["rev-parse", "--show-toplevel"]).ends_with("/repo"));
    });
}

#[test]
fn a_link_to_a_worktree_of_the_users_is_not_followed() {
    foreign(|left| {
        users_files(left);
        let theirs = left.sandbox.root().join("theirs");
        left.git(&["worktree", "add", "-q", "-b", "mine", theirs.to_str().expect("text")]);
        fs::write(theirs.join("theirs.txt"), "uncommitted\n").expect("written");
        symlink(&theirs, &left.tree).expect("a link");
    });
}

#[test]
fn a_git_file_that_names_the_repository_itself_does_not_give_it_the_users_head() {
    foreign(|left| {
        users_files(left);
        let git = left.sandbox.path(".git");
        left.sandbox.write(left.tree.join(".git"), &format!("gitdir: {}\n", git.display()));
        left.sandbox.write(left.tree.join("x.txt"), "x");
        assert!(left.git_there(&["symbolic-ref", "HEAD"]).ends_with("main"), "it would be theirs");
    });
}

#[test]
fn a_damaged_git_file_is_mended() {
    for text in ["", "garbage", "gitdir: ", "gitdir: /nowhere/at/all\n"] {
        let left = Left::new();
        let pointer = left.tree.join(".git");
        let text = match text {
            // Into the repository's list, to an entry that is not there.
            "gitdir: /nowhere/at/all\n" => {
                let entry = left.sandbox.path(".git/worktrees/not-there");
                format!("gitdir: {}\n", entry.display())
            }
            text => text.to_owned(),
        };
        fs::write(&pointer, &text).expect("written");
        let git = left.sandbox.command("git").current_dir(&left.tree).arg("status").output();
        assert!(!git.expect("git").status.success(), "git cannot use it: {text:?}");
        left.assert_told("unlinked");
        left.resume().success();
        left.assert_all_there();
    }
}

#[test]
fn a_worktree_that_lost_its_git_file_is_asked_about_and_can_be_repaired() {
    let left = Left::new();
    fs::remove_file(left.tree.join(".git")).expect("removed");
    let row = left.assert_told("foreign");
    assert_eq!(row["listed"], true, "{row:#}");
    left.resume().expect_code(4);
    assert_eq!(left.sandbox.read(left.tree.join("work.txt")), "precious\n", "untouched");
    left.git(&["worktree", "repair"]);
    left.sandbox.piton(&["resume"]).output().success();
    left.assert_all_there();
}

#[test]
fn a_phantom_of_another_place_that_holds_the_branch_is_in_nobodys_way() {
    let left = Left::new();
    let other = left.sandbox.root().join("phantom");
    let place = other.to_str().expect("text");
    left.git(&["worktree", "add", "-q", "--force", place, &left.branch]);
    left.git(&["worktree", "lock", "--reason", "on a stick", place]);
    fs::remove_dir_all(&other).expect("removed");
    fs::remove_dir_all(&left.tree).expect("removed");
    let listed = left.git(&["worktree", "list", "--porcelain"]);
    assert!(listed.contains("locked on a stick"), "{listed}");
    left.assert_told("missing");
    left.resume().success();
    left.assert_all_there();
    let listed = left.git(&["worktree", "list", "--porcelain"]);
    assert!(listed.contains("locked on a stick"), "it is somebody's: {listed}");
}

#[test]
fn a_moved_repository_finds_worktrees_that_stayed_where_they_were() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path().canonicalize().expect("a path");
    let env = [("PITON_WORKTREE_ROOT", root.as_path())];
    let script = super::LEAVES;
    let left = Left::with(script, "", &env);
    assert!(left.tree.starts_with(&root), "{}", left.tree.display());
    let moved = left.sandbox.root().join("moved");
    fs::rename(left.sandbox.repo(), &moved).expect("it can be moved");
    let git = left.sandbox.command("git").current_dir(&left.tree).arg("status").output();
    assert!(!git.expect("git").status.success(), "git does not find the repository");
    // From inside the worktree nothing is known but where the repository was.
    let told = left.sandbox.piton(&["status"]).cwd(&left.tree).output();
    assert_ne!(told.code, Some(0));
    assert!(told.stderr.contains("worktree repair"), "{told}");
    left.sandbox.piton(&["resume", "--trust"]).cwd(&moved).output().success();
    assert_eq!(left.found("paths"), "AM staged.txt\n?? work.txt\n");
    assert_eq!(left.found("work"), "precious\n");
    fs::rename(&moved, left.sandbox.repo()).expect("it can be moved back");
    left.assert_landed(&[("mine.txt", "mine"), ("work.txt", "precious")]);
}

#[test]
fn the_worktree_of_another_run_is_left_alone() {
    let left = Left::new();
    let sandbox = &left.sandbox;
    let script = "write theirs-alone.txt theirs; touch {other}; hang";
    let text = plan(sandbox, &[agent_step(sandbox, "work", script, "")]);
    sandbox.write("other.toml", &text.replace("name = 'test'", "name = 'other'"));
    let worker = sandbox.piton(&["run", "other.toml", "--trust", "--grace", "100ms"]).spawn();
    sandbox.wait_exists(sandbox.mark("other"));
    worker.signal(Signal::INT);
    worker.wait().expect_code(130);
    let theirs = sandbox.piton(&["worktree", "path", "other.toml", "work"]).output().success();
    let theirs = Path::new(theirs.stdout.trim()).to_owned();
    fs::remove_dir_all(&left.tree).expect("removed");
    fs::rename(&theirs, &left.tree).expect("moved");
    assert!(left.git_there(&["status"]).contains("theirs-alone.txt"), "a good worktree");
    let row = left.assert_told("foreign");
    let place = theirs.to_str().expect("text");
    assert!(row["why"].as_str().expect("text").contains(place), "{row:#}");
    let before = OnDisk::of(&left.tree);
    let told = sandbox.piton(&["resume", &left.handle]).output().expect_code(4);
    assert!(told.stderr.contains(place), "{told}");
    assert_eq!(before.differences(&OnDisk::of(&left.tree)), Vec::<std::path::PathBuf>::new());
    // Back where it belongs, both go on.
    fs::rename(&left.tree, &theirs).expect("moved");
    sandbox.piton(&["resume", &left.handle, "--yes"]).output().success();
    assert_eq!(left.found("work"), "precious\n");
    assert_eq!(sandbox.read(theirs.join("theirs-alone.txt")), "theirs\n");
}
