//! What `worktree list` and `worktree path` say of a worktree that is worked in, being made, or gone.

use std::fs;
use std::path::Path;

use piton_testkit::runs::{command_step, lay_plan, plan, worktree};

use super::{Lab, stopped};

#[test]
fn a_step_is_found_where_it_is_worked_on_and_named_there() {
    let (lab, handle) = stopped();
    let run = worktree(&lab.sandbox);
    let ready = lab.sandbox.mark("ready");
    fs::remove_file(&ready).expect("there");
    let resumed = lab.sandbox.piton(&["resume"]).spawn();
    lab.sandbox.wait_exists(&ready);
    let at = |args: &[&str]| lab.data(&[&["worktree", "path"], args].concat())["path"].clone();
    assert_eq!(at(&[&handle, "second"]), run.to_str().expect("text"));
    assert_eq!(at(&[&format!("{handle}/second")]), run.to_str().expect("text"));
    let row = lab.data(&["worktree", "list"])["worktrees"][0].clone();
    assert_eq!(&row["step"], "second", "{row:#}");
    lab.data(&["stop"]);
    resumed.wait();

    // As after moving the repository: git's list names a place that is no more.
    let entry = lab.sandbox.git_in(&run, &["rev-parse", "--absolute-git-dir"]);
    lab.sandbox.write(Path::new(&entry).join("gitdir"), &format!("/nowhere/{handle}/1/.git\n"));
    let out = lab.sandbox.piton(&["clean"]).output().success();
    assert!(!out.stdout.contains("prune"), "it would lose what can be mended: {out}");
    assert!(out.stdout.contains(&format!("by now: `piton resume {handle}`")), "{out}");
    lab.open_gate();
    lab.sandbox.piton(&["resume"]).output().success();
    assert_eq!(lab.status(&handle), "completed");
}

#[test]
fn a_worktree_that_is_gone_is_told_with_its_step_and_why_nobody_is_at_work() {
    let (lab, handle) = stopped();
    let row = || lab.data(&["worktree", "list"])["worktrees"][0].clone();
    let found = row();
    assert_eq!(&found["step"], "second", "{found:#}");
    // What has landed on the run's branch is not yet where it is to go.
    assert_eq!(found["counts"]["unmerged"], 1, "{found:#}");
    lab.merge(&format!("piton/{handle}/run"));
    assert_eq!(row()["counts"]["unmerged"], 0);

    fs::remove_dir_all(worktree(&lab.sandbox)).expect("it can be removed");
    for is_listed in [true, false] {
        let git = lab.worktrees();
        assert_eq!(git.contains(&format!("{handle}/1\n")), is_listed, "{git}");
        let gone = row();
        assert_eq!(gone["status"], "missing", "{gone:#}");
        assert_eq!((&gone["step"], &gone["cause"]), (&"second".into(), &"user_interrupt".into()));
        let out = lab.sandbox.piton(&["worktree", "list"]).output().success().stdout;
        assert!(out.contains("second") && out.contains("user_interrupt"), "{out}");
        let out = lab.sandbox.piton(&["clean"]).output().success().stdout;
        assert!(!out.contains("prune"), "{out}");
        lab.sandbox.git(&["worktree", "prune"]);
    }
    lab.open_gate();
    lab.sandbox.piton(&["resume"]).output().success();
}

#[test]
fn a_worktree_that_is_being_made_is_not_called_missing() {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, &plan(&sandbox, &[command_step(&sandbox, "only", "true", "")]));
    let lab = Lab { sandbox };
    let made = lab.sandbox.crash_point("tree.marked", 1);
    let running = lab.sandbox.piton(&["run", "plan.toml", "--trust"]).crash_at(&made).spawn();
    made.wait_hit();
    let row = || lab.data(&["worktree", "list"])["worktrees"][0].clone();
    let found = row();
    assert_eq!((&found["status"], &found["step"]), (&"live".into(), &"only".into()), "{found:#}");
    // As before its folder is there, when git's list has it already.
    let tree = worktree(&lab.sandbox);
    let away = lab.sandbox.root().join("away");
    fs::rename(&tree, &away).expect("on one file system");
    let found = row();
    assert_eq!((&found["status"], &found["step"]), (&"live".into(), &"only".into()), "{found:#}");
    fs::rename(&away, &tree).expect("on one file system");
    made.release();
    running.wait().success();
}
