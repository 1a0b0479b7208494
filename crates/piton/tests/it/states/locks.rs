//! Locks: those that a killed git has left, which are moved aside once nobody has them; and those that a
//! person has put on a worktree, which nobody but that person takes away.

use std::fs;

use piton_testkit::alive;
use piton_testkit::runs::view;

use crate::states::Left;

#[test]
fn a_lock_that_a_killed_git_left_on_the_index_is_moved_aside() {
    let left = Left::new();
    let dir = left.git_there(&["rev-parse", "--absolute-git-dir"]);
    let lock = std::path::Path::new(&dir).join("index.lock");
    fs::write(&lock, "half an index").expect("written");
    let blocked = left.sandbox.command("git").current_dir(&left.tree).args(["add", "."]).output();
    assert!(!blocked.expect("git").status.success(), "git is kept from working");
    let row = left.assert_told("lock_left");
    assert!(row["holder"].is_null(), "{row:#}");
    assert_eq!(row["lock"], lock.to_str().expect("text"), "{row:#}");
    left.resume().success();
    left.assert_all_there();
    let aside = crate::states::files(&left.sandbox.path(".git/piton/aside"));
    let kept =
        |(path, text): &(String, String)| path.ends_with("index.lock") && text == "half an index";
    assert!(aside.iter().any(kept), "moved, not deleted: {aside:?}");
}

#[test]
fn a_lock_that_somebody_holds_is_waited_for() {
    let left = Left::new();
    let dir = left.git_there(&["rev-parse", "--absolute-git-dir"]);
    let lock = std::path::Path::new(&dir).join("index.lock");
    let hold =
        "exec 9> \"$1\"; touch \"$2\"; while test ! -e \"$3\"; do sleep 0.05; done; rm \"$1\"";
    let mut holder = left.sandbox.command("sh");
    holder.args(["-c", hold, "hold"]).arg(&lock);
    holder.arg(left.sandbox.mark("held")).arg(left.sandbox.mark("let-go"));
    let mut holder = holder.spawn().expect("sh");
    left.sandbox.wait_exists(left.sandbox.mark("held"));
    assert!(alive(holder.id()));
    let row = left.assert_told("lock_left");
    let by = format!("process {} has it open", holder.id());
    assert_eq!(row["holder"], holder.id(), "{row:#}");
    let resume = left.sandbox.piton(&["resume"]).spawn();
    left.sandbox.wait_until("word of it", || resume.stderr().contains(&by));
    assert!(lock.exists(), "it is theirs");
    fs::write(left.sandbox.mark("let-go"), "").expect("written");
    resume.wait().success();
    holder.wait().expect("it ended");
    left.assert_all_there();
}

#[test]
fn locks_on_the_branch_and_on_the_configuration_are_in_nobodys_way() {
    let left = Left::new();
    let on_branch = left.sandbox.path(format!(".git/refs/heads/{}.lock", left.branch));
    let on_config = left.sandbox.path(".git/config.lock");
    fs::write(&on_branch, "").expect("written");
    fs::write(&on_config, "").expect("written");
    let refname = format!("refs/heads/{}", left.branch);
    assert!(left.sandbox.try_git(&["update-ref", &refname, "main"]).is_err(), "it blocks");
    let row = left.assert_told("lock_left");
    assert!(row["lock"].as_str().expect("text").ends_with("/work.lock"), "{row:#}");
    left.resume().success();
    left.assert_all_there();
    assert!(on_config.exists(), "nothing of piton's needs it, nothing touches it");
}

/// Git deletes no ref, of nobody, while it is there.
#[test]
fn a_lock_on_all_refs_that_a_killed_git_left_is_moved_aside() {
    let left = Left::new();
    left.sandbox.leave_lock(".git/packed-refs.lock");
    left.git(&["branch", "mine"]);
    let blocked = left.sandbox.try_git(&["branch", "-d", "mine"]);
    assert!(blocked.is_err_and(|said| said.contains("packed-refs.lock")), "it blocks");
    let row = left.assert_told("lock_left");
    assert!(row["lock"].as_str().expect("text").ends_with("/packed-refs.lock"), "{row:#}");
    left.resume().success();
    left.assert_all_there();
    left.git(&["branch", "-d", "mine"]);
}

#[test]
fn a_lock_of_a_person_survives_whatever_piton_does() {
    let left = Left::new();
    let place = left.tree.to_str().expect("text");
    let locked = || {
        let listed = left.git(&["worktree", "list", "--porcelain"]);
        listed.contains("locked mine, on a stick")
    };
    // Over the lock that the dead attempt has left.
    left.git(&["worktree", "unlock", place]);
    left.git(&["worktree", "lock", "--reason", "mine, on a stick", place]);
    let row = left.assert_told("locked");
    assert_eq!(row["reason"], "mine, on a stick", "{row:#}");
    // The stick was pulled: the folder is gone, the entry is a phantom, locked.
    fs::remove_dir_all(&left.tree).expect("removed");
    left.git(&["worktree", "prune"]);
    assert!(locked(), "git keeps it, too");
    left.assert_told("locked");
    left.assert_told("missing");
    left.resume().success();
    left.assert_all_there();
    assert!(locked(), "after it was made again, worked in and landed");
    left.sandbox.piton(&["merge", &left.handle]).output().success();
    left.sandbox.piton(&["clean", "--apply"]).output().success();
    assert!(locked() && left.tree.exists(), "after a clean-up");
    left.sandbox.piton(&["abandon", &left.handle, "--yes"]).output();
    assert!(locked() && left.tree.exists(), "after it was given up");
    assert_eq!(view(&left.sandbox)["handle"], left.handle.as_str());
}
