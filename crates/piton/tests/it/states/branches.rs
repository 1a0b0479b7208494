//! What became of the step's branch while nobody looked: deleted, moved, checked out elsewhere; and HEAD
//! on something else.

use std::fs;

use crate::states::Left;

#[test]
fn a_deleted_branch_is_made_again_where_it_was() {
    let left = Left::new();
    let was = left.git_there(&["rev-parse", "HEAD"]);
    left.git(&["update-ref", "-d", &format!("refs/heads/{}", left.branch)]);
    assert!(left.git_there(&["status"]).contains("No commits yet"));
    let row = left.assert_told("branch_deleted");
    assert_eq!(row["was"], was.as_str(), "{row:#}");
    left.resume().success();
    left.assert_all_there();
    left.assert_lands(&was);
}

#[test]
fn a_branch_deleted_together_with_its_worktree_is_made_again() {
    let left = Left::new();
    let was = left.git_there(&["rev-parse", "HEAD"]);
    fs::remove_dir_all(&left.tree).expect("removed");
    left.git(&["update-ref", "-d", &format!("refs/heads/{}", left.branch)]);
    assert!(left.sandbox.try_git(&["rev-parse", "--verify", &left.branch]).is_err());
    left.assert_told("missing");
    left.resume().success();
    left.assert_all_there();
    left.assert_lands(&was);
}

/// Somebody moves the branch from elsewhere.
fn moved(to: impl Fn(&Left) -> String) -> (Left, String, String) {
    let left = Left::new();
    let was = left.git_there(&["rev-parse", "HEAD"]);
    let to = to(&left);
    left.git(&["update-ref", &format!("refs/heads/{}", left.branch), &to]);
    assert_eq!(left.git_there(&["rev-parse", "HEAD"]), to, "it was moved");
    let row = left.assert_told("branch_moved");
    assert_eq!((&row["was"], &row["now"]), (&was.as_str().into(), &to.as_str().into()));
    (left, was, to)
}

#[test]
fn a_branch_that_was_moved_back_is_put_where_the_files_are() {
    let (left, was, _) = moved(|left| left.git(&["rev-parse", "main"]));
    left.resume().success();
    left.assert_all_there();
    left.assert_lands(&was);
}

#[test]
fn a_branch_that_was_moved_to_something_unrelated_is_put_back_and_that_is_kept() {
    let (left, was, to) = moved(|left| {
        let tree = left.git(&["rev-parse", "main^{tree}"]);
        left.git(&["commit-tree", "-m", "unrelated", &tree])
    });
    left.resume().success();
    left.assert_all_there();
    left.assert_lands(&was);
    assert_ne!(left.git(&["for-each-ref", "--contains", &to, "refs/piton"]), "");
}

#[test]
fn files_without_changes_follow_a_branch_that_was_only_moved_on() {
    let first = "echo mine > mine.txt; git add mine.txt; git commit -q -m mine";
    let left = Left::after(first);
    let theirs = left.sandbox.root().join("theirs");
    let place = theirs.to_str().expect("text");
    left.git(&["worktree", "add", "-q", "--detach", place, &left.branch]);
    fs::write(theirs.join("person.txt"), "a person's\n").expect("written");
    left.sandbox.git_in(&theirs, &["add", "person.txt"]);
    left.sandbox.git_in(&theirs, &["commit", "-q", "-m", "a person's"]);
    let to = left.sandbox.git_in(&theirs, &["rev-parse", "HEAD"]);
    left.git(&["update-ref", &format!("refs/heads/{}", left.branch), &to]);
    assert!(left.git_there(&["status", "--short"]).contains("D  person.txt"));
    left.assert_told("branch_moved");
    left.resume().success();
    assert_eq!(left.found("paths"), "", "nothing is undone");
    left.assert_landed(&[("mine.txt", "mine"), ("person.txt", "a person's")]);
}

#[test]
fn a_branch_that_somebody_has_checked_out_is_not_moved_under_them() {
    let left = Left::new();
    let theirs = left.sandbox.root().join("theirs");
    let place = theirs.to_str().expect("text");
    left.git(&["worktree", "add", "-q", "--force", place, &left.branch]);
    let was = left.git(&["rev-parse", &left.branch]);
    let row = left.assert_told("branch_elsewhere");
    assert_eq!(row["remedy"]["command"], format!("git -C {place} switch --detach"), "{row:#}");
    let told = left.resume().expect_code(4);
    assert!(told.stderr.contains(place), "{told}");
    assert_eq!(left.git(&["rev-parse", &left.branch]), was, "it was not moved");
    assert_eq!(left.sandbox.read(left.tree.join("work.txt")), "precious\n");
    left.sandbox.git_in(&theirs, &["switch", "-q", "--detach"]);
    left.sandbox.piton(&["resume"]).output().success();
    left.assert_landed(&[("mine.txt", "mine"), ("work.txt", "precious")]);
}

#[test]
fn the_same_where_the_worktree_is_gone() {
    let left = Left::new();
    fs::remove_dir_all(&left.tree).expect("removed");
    let theirs = left.sandbox.root().join("theirs");
    let place = theirs.to_str().expect("text");
    left.git(&["worktree", "add", "-q", "--force", place, &left.branch]);
    left.assert_told("branch_elsewhere");
    left.resume().expect_code(4);
    left.sandbox.git_in(&theirs, &["switch", "-q", "--detach"]);
    left.sandbox.piton(&["resume"]).output().success();
    left.assert_all_there();
}

#[test]
fn a_detached_head_is_gone_on_from_and_the_branch_follows() {
    let left = Left::new();
    left.git_there(&["checkout", "-q", "--detach"]);
    assert!(left.git_there(&["status"]).contains("HEAD detached"));
    let row = left.assert_told("off_branch");
    assert!(row["on"].is_null() && row["at"].is_string(), "{row:#}");
    left.resume().success();
    assert!(left.found("status").contains("HEAD detached"), "{}", left.found("status"));
    left.assert_all_there();
}

#[test]
fn commits_of_the_branch_that_a_detached_head_lacks_are_kept() {
    let first =
        format!("{}; git stash -q -u; git checkout -q HEAD~1; git stash pop -q", super::LEAVES);
    let left = Left::after(&first);
    let tip = left.git(&["rev-parse", &left.branch]);
    assert_ne!(left.git_there(&["rev-parse", "HEAD"]), tip);
    left.resume().success();
    left.assert_landed(&[("work.txt", "precious"), ("staged.txt", "staged\nmore")]);
    assert_ne!(left.git(&["for-each-ref", "--contains", &tip, "refs/piton"]), "");
}

#[test]
fn a_branch_of_the_agents_own_is_gone_on_with() {
    let left = Left::new();
    left.git_there(&["checkout", "-q", "-b", "feature"]);
    let row = left.assert_told("off_branch");
    assert_eq!(row["on"], "feature", "{row:#}");
    left.resume().success();
    assert!(left.found("status").contains("On branch feature"));
    left.assert_all_there();
}
