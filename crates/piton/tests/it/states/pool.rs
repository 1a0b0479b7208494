//! A pool of trees: a step that waits or was stopped keeps its tree, byte for byte, while the next works in
//! another; the tree of a completed step is used again; and whoever is killed between claim and start costs
//! nothing.

use std::path::{Path, PathBuf};

use piton_testkit::runs::{
    OnDisk, agent_step, command_step, data, keepers, landed, lay_plan, plan, pool_tree, step, tree,
    view, worktree,
};
use piton_testkit::{CrashPoint, Running, Sandbox, Signal, kill9};
use piton_testkit::{POINTS, Who};

/// What step `a` leaves, and what git says of it: work in every state, a repository of its own, a FIFO.
const LEAVES: &str = "set -e; echo mine > mine.txt; git add mine.txt; git commit -q -m mine; \
                      echo changed > kept.txt; git add kept.txt; echo staged > staged.txt; \
                      git add staged.txt; echo more >> staged.txt; git init -q vendor; \
                      echo only-here > vendor/file; mkfifo pipe; echo precious > work.txt";
const STATUS: &str = "M  kept.txt\nAM staged.txt\n?? vendor/\n?? work.txt\n";

/// What a tree that gets another step passes, where it holds what no snapshot can, too.
const POINTS_OF_RESET: [(&str, u32); 8] = [
    ("tree.move-recorded", 1),
    ("tree.moved-out", 1),
    ("tree.moved-out", 2),
    ("tree.kept", 1),
    ("tree.marked", 1),
    ("tree.cleaned", 1),
    ("tree.checked-out", 1),
    ("tree.reset", 1),
];

/// Step `a` works, and then does this the first time; the second time it says what it finds. Step `b` says
/// where it is.
fn sandbox(first: &str, then: &str) -> Sandbox {
    let sandbox = crate::sandbox();
    sandbox.write("kept.txt", "base\n");
    sandbox.write(sandbox.mark("first.sh"), first);
    let a = format!(
        "count {{a}}; nth {{a}} 1: sh sh {{first.sh}}; nth {{a}} 1: touch {{a-ready}}; {then}; \
         sh git status --porcelain > {{a.paths}}; sh git status > {{a.status}}; sh pwd > {{a.pwd}}; \
         sh rm -f pipe; write a.txt a"
    );
    let b = "sh git status --porcelain > {b.paths}; sh pwd > {b.pwd}; write b.txt b";
    let steps = [agent_step(&sandbox, "a", &a, ""), agent_step(&sandbox, "b", b, "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox
}

fn read(sandbox: &Sandbox, mark: &str) -> String {
    sandbox.read(sandbox.mark(mark))
}

fn at(sandbox: &Sandbox, number: u32) -> String {
    format!("{}\n", pool_tree(sandbox, number).display())
}

/// Kills everything when a keeper has reached the point.
fn kill_at(sandbox: &Sandbox, point: &CrashPoint, worker: Running) {
    let stopped = point.wait_hit();
    assert!(keepers(sandbox).contains(&stopped), "it is a keeper");
    drop(worker.kill9());
    kill9(stopped);
    assert!(sandbox.kill_all() || sandbox.processes().is_empty());
}

/// Step `a` has asked something and waits; `b` is done in another tree, and that of `a` is as it was.
fn a_waits(sandbox: &Sandbox) -> String {
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(4);
    let run = view(sandbox);
    assert_eq!(step(&run, "b")["status"], "completed", "{run:#}");
    assert_eq!((read(sandbox, "b.pwd"), read(sandbox, "b.paths")), (at(sandbox, 2), String::new()));
    run["handle"].as_str().expect("a handle").to_owned()
}

fn answer(sandbox: &Sandbox, handle: &str) {
    let asked = data(sandbox, &["questions"]);
    let question = asked["questions"][0]["question"].as_str().expect("a question").to_owned();
    sandbox.piton(&["answer", handle, &question, "this"]).output().success();
}

/// Where something was moved that was in a step's tree.
fn moved_out(sandbox: &Sandbox, id: &str, path: &str) -> PathBuf {
    let run = view(sandbox);
    let attempts = step(&run, id)["attempts"].as_array().expect("attempts").clone();
    let mut rows =
        attempts.iter().flat_map(|row| row["moved_out"].as_array().cloned().unwrap_or_default());
    let row = rows.find(|row| row["path"] == path).unwrap_or_else(|| panic!("{path}: {run:#}"));
    Path::new(row["place"].as_str().expect("a place")).to_owned()
}

const ASKS: &str = "nth {a} 1: sh piton ask Which?; nth {a} 1: exit 3";

#[test]
fn a_step_that_waits_keeps_its_tree_while_the_next_works_in_another() {
    let sandbox = sandbox(LEAVES, ASKS);
    let handle = a_waits(&sandbox);
    let tree = worktree(&sandbox);
    // After the last snapshot, and in nothing but the worktree.
    sandbox.write(tree.join("person.txt"), "a person's\n");
    let before = OnDisk::of(&tree);
    sandbox.piton(&["resume", &handle]).output().expect_code(4);
    assert_eq!(before.differences(&OnDisk::of(&tree)), Vec::<PathBuf>::new());
    assert_eq!(sandbox.read(tree.join("vendor/file")), "only-here\n");
    let path = data(&sandbox, &["worktree", "path", &handle, "a"]);
    assert_eq!(path["path"], tree.to_str().expect("text"));
    answer(&sandbox, &handle);
    sandbox.piton(&["resume", &handle]).output().success();
    assert_eq!(read(&sandbox, "a.pwd"), at(&sandbox, 1), "the same path");
    assert_eq!(read(&sandbox, "a.paths"), STATUS.replace("?? vendor", "?? person.txt\n?? vendor"));
    for (file, text) in [("work.txt", "precious"), ("person.txt", "a person's"), ("b.txt", "b")] {
        assert_eq!(landed(&sandbox, file), text, "{file}");
    }
    // What has all landed goes with the run; a repository of its own is nowhere else.
    sandbox.wait_no_processes();
    assert!(tree.join("vendor/file").exists() && !pool_tree(&sandbox, 2).exists());
}

#[test]
fn a_step_that_was_stopped_goes_on_in_the_middle_of_its_rebase() {
    let first = "{ echo mine > kept.txt; git commit -q -a -m mine; git checkout -q -b other HEAD~1; \
                 echo other > kept.txt; git commit -q -a -m other; git checkout -q -; \
                 git rebase -q other; } >/dev/null 2>&1; true";
    let on = "sh git status > {a.status}; sh echo solved > kept.txt; sh git add kept.txt; \
              sh GIT_EDITOR=true git rebase --continue";
    let sandbox = sandbox(first, &format!("nth {{a}} 1: hang; {on}"));
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--grace", "100ms"]).spawn();
    sandbox.wait_exists(sandbox.mark("a-ready"));
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    sandbox.piton(&["stop", &handle, "a"]).output().success();
    sandbox.wait_until("b is done", || step(&view(&sandbox), "b")["status"] == "completed");
    run.signal(Signal::INT);
    run.wait();
    assert_eq!((read(&sandbox, "b.pwd"), read(&sandbox, "b.paths")), (at(&sandbox, 2), "".into()));
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(read(&sandbox, "a.pwd"), at(&sandbox, 1));
    assert_eq!(landed(&sandbox, "kept.txt"), "solved");
    sandbox.wait_no_processes();
    assert!(!worktree(&sandbox).exists(), "all of it has landed");
}

/// Two commands, one after the other; the first leaves what no snapshot can hold, and what is ignored.
fn one_after_the_other() -> Sandbox {
    let sandbox = crate::sandbox();
    sandbox.write(".gitignore", "*.o\n");
    sandbox.git(&["add", ".gitignore"]);
    sandbox.git(&["commit", "-q", "-m", "ignored"]);
    let a = "git init -q vendor && echo only-here > vendor/file && mkfifo pipe && \
             echo o > made.o && echo a > a.txt";
    let b = "git status --porcelain > {b.paths}; cat made.o > {b.ignored}; pwd > {b.pwd}; \
             echo b > b.txt";
    let steps = [command_step(&sandbox, "a", a, ""), command_step(&sandbox, "b", b, "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox
}

#[track_caller]
fn assert_reused(sandbox: &Sandbox, what: &str) {
    let run = view(sandbox);
    assert_eq!(run["status"], "completed", "{what}: {run:#}");
    assert_eq!(read(sandbox, "b.paths"), "", "{what}: b began with a clean tree");
    assert_eq!(read(sandbox, "b.ignored"), "o\n", "{what}: ignored files stay");
    assert_eq!(read(sandbox, "b.pwd"), at(sandbox, 1), "{what}");
    let kept = moved_out(sandbox, "b", "vendor");
    assert_eq!(sandbox.read(kept.join("file")), "only-here\n", "{what}");
    assert!(kept.join(".git").is_dir(), "{what}: whole");
    moved_out(sandbox, "b", "pipe");
    sandbox.wait_no_processes();
}

#[test]
fn the_tree_of_a_completed_step_is_used_again() {
    let sandbox = one_after_the_other();
    let out = sandbox.piton(&["run", "plan.toml", "--trust"]).output().success();
    assert!(out.stderr.contains("vendor was moved out of the worktree"), "{out}");
    assert_reused(&sandbox, "undisturbed");
    // Deleting the run does not delete what nothing else has.
    let (kept, run) = (moved_out(&sandbox, "b", "vendor"), view(&sandbox));
    let handle = run["handle"].as_str().expect("a handle");
    let purged = data(&sandbox, &["abandon", handle, "--purge", "--yes"]);
    let folder = kept.parent().expect("in a folder").to_string_lossy().into_owned();
    assert!(purged.to_string().contains(&folder) && kept.exists(), "{purged:#}");
}

#[test]
fn who_is_killed_between_claim_and_start_in_a_tree_that_is_used_again_costs_nothing() {
    for (point, nth) in POINTS_OF_RESET {
        let sandbox = one_after_the_other();
        // Somebody has `b` until `a` is done.
        let elsewhere = tree(&sandbox, "elsewhere");
        data(&sandbox, &["claim", "plan.toml", "--step", "b", "--worktree", &elsewhere]);
        let worker = sandbox.piton(&["run", "plan.toml", "--trust", "--auto-continue"]).spawn();
        sandbox.wait_until("a is done", || step(&view(&sandbox), "a")["status"] == "completed");
        drop(worker.kill9());
        sandbox.wait_no_processes();
        data(&sandbox, &["release", "plan.toml", "b", "--worktree", &elsewhere]);
        let at = sandbox.crash_point(point, nth);
        let worker = sandbox.piton(&["resume"]).crash_at(&at).spawn();
        kill_at(&sandbox, &at, worker);
        sandbox.piton(&["resume"]).output().success();
        assert_reused(&sandbox, &format!("{point}:{nth}"));
    }
}

#[test]
fn a_tree_that_is_gone_and_half_made_again_is_rebuilt() {
    let sandbox = sandbox(LEAVES, ASKS);
    let handle = a_waits(&sandbox);
    std::fs::remove_dir_all(worktree(&sandbox)).expect("it is there");
    answer(&sandbox, &handle);
    let at_point = sandbox.crash_point("tree.filled", 1);
    let worker = sandbox.piton(&["resume"]).crash_at(&at_point).spawn();
    kill_at(&sandbox, &at_point, worker);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(read(&sandbox, "a.pwd"), at(&sandbox, 1));
    assert!(read(&sandbox, "a.paths").starts_with("M  kept.txt\nAM staged.txt\n"));
    sandbox.wait_no_processes();
}

#[test]
fn who_starts_over_does_so_in_its_own_tree() {
    let sandbox = sandbox(LEAVES, "nth {a} 1: hang");
    let text = sandbox.read("plan.toml");
    sandbox.write("plan.toml", &text.replacen("id = 'a'", "id = 'a'\non_interrupt = 'restart'", 1));
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--grace", "100ms"]).spawn();
    sandbox.wait_exists(sandbox.mark("a-ready"));
    run.signal(Signal::INT);
    run.wait().expect_code(130);
    let out = sandbox.piton(&["resume"]).output().success();
    assert!(out.stderr.contains("step a: vendor was moved out of the worktree"), "{out}");
    assert_eq!((read(&sandbox, "a.pwd"), read(&sandbox, "a.paths")), (at(&sandbox, 1), "".into()));
    let kept = moved_out(&sandbox, "a", "vendor");
    assert_eq!(sandbox.read(kept.join("file")), "only-here\n");
    sandbox.wait_no_processes();
}

#[test]
fn every_point_of_a_reset_has_its_test() {
    let of = [Who::Successor, Who::Mover];
    let listed = POINTS.iter().filter(|(_, who)| of.contains(who)).map(|(point, _)| *point);
    let mut tested: Vec<&str> = POINTS_OF_RESET.iter().map(|(point, _)| *point).collect();
    tested.dedup();
    tested.push("tree.filled");
    assert_eq!(listed.collect::<Vec<_>>(), tested);
}
