//! What a worktree needs before work can begin in it: files of the user's checkout, links to its folders,
//! the plan's setup command. And git's own lock on it while somebody works there.

use std::fs;
use std::path::PathBuf;

use piton_testkit::runs::{
    agent_step, command_step, keeper, landed_files, lay_plan, plan_with, refused, step, view,
    wait_dead, worktree,
};
use piton_testkit::{Sandbox, Signal, kill9, toml_string};

use crate::sandbox;

/// A plan with these lines in `[plan]`.
fn lay(sandbox: &Sandbox, lines: &str, steps: &[String]) {
    lay_plan(sandbox, &plan_with(sandbox, lines, steps));
}

fn setup(sandbox: &Sandbox, command: &str) -> String {
    format!("setup = {}", toml_string(&piton_testkit::runs::marked(sandbox, command)))
}

#[test]
fn setup_runs_once_in_every_worktree_that_is_made() {
    let sandbox = sandbox();
    let lines = setup(&sandbox, "echo x >> {setups}; echo tool > tool.log");
    let steps = [
        command_step(&sandbox, "a", "test -f tool.log && echo a > a.txt", ""),
        agent_step(
            &sandbox,
            "b",
            "count {starts}; write half.txt half; nth {starts} 1: touch {here}; \
             nth {starts} 1: hang; sh test -f tool.log; sh test -f half.txt; write b.txt b",
            "needs = ['a']",
        ),
    ];
    lay(&sandbox, &lines, &steps);
    sandbox.write(".gitignore", "plan.toml\n*.log\n");
    sandbox.commit("ignores");
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--grace", "100ms"]).spawn();
    sandbox.wait_exists(sandbox.mark("here"));
    run.signal(Signal::INT);
    run.wait().expect_code(130);
    assert_eq!(sandbox.lines(sandbox.mark("setups")), 1, "one tree, one setup");
    fs::remove_dir_all(worktree(&sandbox)).expect("removable");
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(sandbox.lines(sandbox.mark("setups")), 2, "the tree was made again");
    let files = landed_files(&sandbox);
    assert!(files.contains("half.txt") && !files.contains("tool.log"), "{files}");
}

#[test]
fn a_setup_that_fails_is_told_with_its_output() {
    let sandbox = sandbox();
    let lines = setup(&sandbox, "echo no network; exit 3");
    let steps = [command_step(&sandbox, "a", "touch {ran}", "")];
    lay(&sandbox, &lines, &steps);
    let out = sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(1);
    assert!(out.stderr.contains("could not be set up"), "{out}");
    assert!(out.stderr.contains("ended with exit 3") && out.stderr.contains("no network"), "{out}");
    assert!(!sandbox.mark("ran").exists());
    let shown = view(&sandbox);
    assert!(
        step(&shown, "a")["why"]["setup"]["tail"].as_str().expect("a tail").contains("no network")
    );
}

#[test]
fn files_are_copied_and_folders_linked_and_neither_lands() {
    for (then, stays) in [("true", false), ("echo changed >> .env", true)] {
        let sandbox = sandbox();
        let check = "test \"$(cat .env)\" = secret && test \"$(cat app/.env)\" = inner && \
                     test -L node_modules && test -f node_modules/x && echo a > a.txt";
        let lines = "copy = ['.env', 'app/.env']\nlink = ['node_modules']";
        let steps = [command_step(&sandbox, "a", &format!("{check} && {then}"), "")];
        lay(&sandbox, lines, &steps);
        sandbox.write(".gitignore", "plan.toml\n.env\nnode_modules/\n");
        sandbox.commit("ignores");
        sandbox.write(".env", "secret");
        sandbox.write("app/.env", "inner");
        sandbox.write("node_modules/x", "x");
        sandbox.piton(&["run", "plan.toml", "--trust"]).output().success();
        let files = landed_files(&sandbox);
        assert!(files.contains("a.txt"), "{files}");
        assert!(!files.contains(".env") && !files.contains("node_modules"), "{files}");
        assert_eq!(sandbox.read(".env"), "secret", "the user's own is as it was");
        assert_eq!(sandbox.read("node_modules/x"), "x");
        // What was only brought there is not missed; what was changed there is nowhere else.
        assert_eq!(worktree(&sandbox).join(".env").exists(), stays, "{then}");
        assert!(sandbox.git(&["status", "--porcelain"]).is_empty());
    }
}

#[test]
fn what_would_land_or_is_not_there_is_not_brought() {
    for (copy, told) in
        [("'README.md'", "would land"), ("'absent'", "is not there"), ("'out'", "leads out")]
    {
        let sandbox = sandbox();
        lay(&sandbox, &format!("copy = [{copy}]"), &[command_step(&sandbox, "a", "true", "")]);
        sandbox.write(".gitignore", "plan.toml\nabsent\nout\n");
        sandbox.commit("ignores");
        sandbox.git(&["rm", "-q", "--ignore-unmatch", "README.md"]);
        sandbox.commit("without");
        sandbox.write("README.md", "mine");
        std::os::unix::fs::symlink("/etc/passwd", sandbox.path("out")).expect("writable");
        let out = sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(1);
        assert!(out.stderr.contains(told), "{copy}\n{out}");
        assert!(!worktree(&sandbox).join("out").exists());
    }
}

#[test]
fn all_of_it_needs_trust() {
    let sandbox = sandbox();
    lay(
        &sandbox,
        "setup = 'true'\ncopy = ['.env']\nlink = ['cache']",
        &[command_step(&sandbox, "a", "true", "")],
    );
    let out = sandbox.piton(&["run", "plan.toml"]).output().expect_code(77);
    for line in ["plan: setup: true", "plan: copy: .env", "plan: link: cache"] {
        assert!(out.stderr.contains(line), "{line}\n{out}");
    }
    let (status, _, _) = refused(&sandbox, &["run", "plan.toml"]);
    assert_eq!(status, 77);
}

#[test]
fn git_takes_no_tree_away_under_somebody_at_work() {
    let sandbox = sandbox();
    let steps = [agent_step(
        &sandbox,
        "a",
        "count {starts}; touch {here}; nth {starts} 1: hang; write piton.toml ignored; write a.txt a",
        "",
    )];
    lay(&sandbox, "", &steps);
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("here"));
    let listed = || sandbox.git(&["worktree", "list", "--porcelain"]);
    assert!(listed().contains("locked piton: at work: step a of "), "{}", listed());
    let place: PathBuf = worktree(&sandbox);
    let text = place.display().to_string();
    assert!(sandbox.try_git(&["worktree", "remove", "--force", &text]).is_err(), "git refuses");
    let keeper = keeper(&sandbox);
    run.kill9();
    kill9(keeper);
    wait_dead(keeper);
    assert!(listed().contains("locked piton: at work"), "the lock of the dead is left behind");
    sandbox.piton(&["resume"]).output().success();
    assert!(!listed().contains("locked"), "{}", listed());
}
