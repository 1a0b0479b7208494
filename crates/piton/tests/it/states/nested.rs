//! What no snapshot can hold, in a worktree that the steps of a run share: repositories that a step made
//! in it, with commits, changes and ignored files that are nowhere else, and a FIFO. No other step ever
//! finds them, and the one that made them finds them as they were, wherever the swap is killed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use piton_engine::crash::{POINTS, Who};
use piton_testkit::runs::{data, step, view, worktree};
use piton_testkit::{Sandbox, Signal};

use crate::states::swaps::{
    a_at_work, a_waits, both_go_on, both_stopped, kill_at, sandbox, stop_a, wait_ready,
};

/// What step `a` makes: a repository with a commit, something staged, changed, ignored and stashed; one
/// without a commit; a FIFO; and an ordinary file.
const MAKES: &str = "set -e; git init -q vendor/lib; cd vendor/lib; echo one > file; \
                     echo '*.o' > .gitignore; git add .; git commit -q -m only-here; echo two > file; \
                     git stash -q; echo three > file; git add file; echo four > file; echo o > made.o; \
                     mkdir hollow; cd ../..; git init -q unborn; echo u > unborn/u; mkfifo pipe; \
                     echo precious > work.txt";

/// The points of moving out and back; each is passed for each path.
const MOVES: [&str; 3] = ["tree.move-recorded", "tree.moved-out", "tree.moved-back"];

/// What `a` does when it goes on: it uses what it finds, and all of it is the same as before.
const USES: &str = "set -e; test -p pipe; git -C vendor/lib status --porcelain > vendor.status; \
                    git -C vendor/lib log --format=%s > vendor.log; \
                    git -C vendor/lib stash list > vendor.stash; git -C vendor/lib fsck --strict";

/// What only the step's own rules ignore: in no snapshot, and nobody else's.
const IGNORES: &str = "printf '.env\\nmodules/\\n' >> .gitignore; echo secret > .env; mkdir modules; \
                       echo m > modules/m; echo precious > work.txt";
const LOOKS: &str = "cat .env modules/m > found.txt 2>/dev/null; true";

/// Every file below a folder, byte for byte.
fn bytes(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let list = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for path in list.map(|entry| entry.expect("an entry").path()) {
            let name = path.strip_prefix(root).expect("below it").to_owned();
            match path.symlink_metadata().expect("there").file_type() {
                kind if kind.is_dir() => {
                    found.insert(name, Vec::new());
                    folders.push(path);
                }
                kind if kind.is_fifo() => drop(found.insert(name, Vec::new())),
                _ => drop(found.insert(name, fs::read(&path).expect("readable"))),
            }
        }
    }
    found
}

/// What `a` made, wherever it is.
fn made(root: &Path) -> [BTreeMap<PathBuf, Vec<u8>>; 2] {
    ["vendor/lib", "unborn"].map(|name| bytes(&root.join(name)))
}

fn is_gone(tree: &Path) -> bool {
    ["vendor", "unborn", "pipe"].iter().all(|name| tree.join(name).symlink_metadata().is_err())
}

/// The folder with what was moved out of a step's worktree.
fn outside(sandbox: &Sandbox, id: &str) -> PathBuf {
    let run = view(sandbox);
    let attempts = step(&run, id)["attempts"].as_array().expect("attempts").clone();
    let rows =
        attempts.iter().flat_map(|row| row["moved_out"].as_array().cloned().unwrap_or_default());
    let rows: Vec<_> = rows.collect();
    let paths: Vec<&str> = rows.iter().filter_map(|row| row["path"].as_str()).collect();
    assert_eq!(paths, ["pipe", "unborn", "vendor/lib"], "{run:#}");
    let place = rows[0]["place"].as_str().expect("a place");
    Path::new(place).parent().expect("in a folder").to_owned()
}

/// Both steps are done, and `a` has gone on in what it had made.
#[track_caller]
fn assert_done(sandbox: &Sandbox, before: &[BTreeMap<PathBuf, Vec<u8>>; 2], what: &str) {
    let run = view(sandbox);
    assert_eq!(run["status"], "completed", "{what}: {run:#}");
    let branch = run["branch"].as_str().expect("a branch");
    let show = |file: &str| sandbox.git(&["show", &format!("{branch}:{file}")]);
    assert_eq!(
        show("vendor.status"),
        "MM file\n?? hollow-marker".replace("\n?? hollow-marker", ""),
        "{what}"
    );
    assert_eq!(show("vendor.log"), "only-here", "{what}");
    assert!(show("vendor.stash").contains("stash@{0}"), "{what}");
    assert_eq!(show("work.txt"), "precious", "{what}");
    let landed = sandbox.git(&["ls-tree", "-r", "--name-only", branch]);
    assert!(!landed.contains("vendor/") && !landed.contains("unborn"), "{what}: {landed}");
    // The last tenant's: where they are now depends on who came last.
    let tree = worktree(sandbox);
    let now = if tree.join("vendor").exists() { made(&tree) } else { made(&outside(sandbox, "a")) };
    for (before, now) in before.iter().zip(&now) {
        let (names, now_names): (Vec<_>, Vec<_>) = (before.keys().collect(), now.keys().collect());
        assert_eq!(names, now_names, "{what}");
        // `git status` of the agent itself may have renewed the index.
        let differs = |(name, bytes): &(&PathBuf, &Vec<u8>)| now[*name] != **bytes;
        let differing: Vec<_> = before.iter().filter(differs).map(|(name, _)| name).collect();
        assert!(differing.iter().all(|name| name.ends_with(".git/index")), "{what}: {differing:?}");
    }
    sandbox.wait_no_processes();
}

#[test]
fn a_repository_goes_with_its_step_and_comes_back() {
    let sandbox = sandbox(MAKES, USES);
    let run = a_at_work(&sandbox);
    let tree = worktree(&sandbox);
    let before = made(&tree);
    stop_a(&sandbox);
    sandbox.wait_exists(sandbox.mark("b-ready"));
    assert!(is_gone(&tree), "b has a tree of its own");
    assert_eq!(sandbox.read(sandbox.mark("b.first")), "");
    let out = outside(&sandbox, "a");
    assert_eq!(made(&out), before, "byte for byte, with their .git");
    assert!(out.join("pipe").symlink_metadata().expect("there").file_type().is_fifo());
    run.signal(Signal::INT);
    run.wait().expect_code(130);
    let told = sandbox.piton(&["resume", "--dry-run", "--json"]).output().success().json();
    let rows = told["data"]["worktrees"]["a"].as_array().expect("conditions").clone();
    let row = rows.iter().find(|row| row["state"] == "moved_out").expect("told");
    assert!(row["found"].as_str().is_some_and(|found| found.contains("vendor/lib")), "{row:#}");
    let show = sandbox.piton(&["show"]).output().success().stdout;
    assert!(show.contains("moved out of the worktree: vendor/lib (it is /"), "{show}");
    sandbox.piton(&["resume"]).output().success();
    assert!(!sandbox.read(sandbox.mark("b.status")).contains("vendor"), "never b's");
    assert_done(&sandbox, &before, "undisturbed");
}

#[test]
fn moving_out_that_is_killed_costs_nothing() {
    for (point, nth) in [("tree.move-recorded", 1), ("tree.moved-out", 1), ("tree.moved-out", 3)] {
        let (sandbox, handle) = a_waits(MAKES, USES);
        let before = made(&worktree(&sandbox));
        let at = sandbox.crash_point(point, nth);
        let worker = sandbox.piton(&["resume"]).crash_at(&at).spawn();
        kill_at(&sandbox, &at, worker);
        both_go_on(&sandbox, &handle);
        let what = format!("{point}:{nth}");
        assert_eq!(sandbox.read(sandbox.mark("b.first")), "", "{what}: b began with a clean tree");
        assert_done(&sandbox, &before, &what);
    }
}

#[test]
fn half_a_move_is_finished_by_whoever_comes_next() {
    let (sandbox, handle) = a_waits(MAKES, USES);
    let tree = worktree(&sandbox);
    let before = made(&tree);
    let at = sandbox.crash_point("tree.moved-out", 2);
    let worker = sandbox.piton(&["resume"]).crash_at(&at).spawn();
    kill_at(&sandbox, &at, worker);
    assert!(tree.join("vendor").exists() && !tree.join("unborn").exists(), "half way");
    // Nobody has answered `a`: `b` comes first, and finds nothing of it.
    let resume = sandbox.piton(&["resume"]).spawn();
    wait_ready(&sandbox, &resume);
    assert!(is_gone(&tree));
    assert_eq!(made(&outside(&sandbox, "a")), before);
    resume.signal(Signal::INT);
    resume.wait().expect_code(130);
    let asked = data(&sandbox, &["questions"]);
    let question = asked["questions"][0]["question"].as_str().expect("a question").to_owned();
    sandbox.piton(&["answer", &handle, &question, "this"]).output().success();
    sandbox.piton(&["resume"]).output().success();
    assert_done(&sandbox, &before, "b first");
}

#[test]
fn moving_back_that_is_killed_costs_nothing() {
    for nth in [1, 3] {
        let sandbox = sandbox(MAKES, USES);
        let run = a_at_work(&sandbox);
        let before = made(&worktree(&sandbox));
        stop_a(&sandbox);
        sandbox.wait_exists(sandbox.mark("b-ready"));
        run.signal(Signal::INT);
        run.wait().expect_code(130);
        let at = sandbox.crash_point("tree.moved-back", nth);
        let worker = sandbox.piton(&["resume"]).crash_at(&at).spawn();
        kill_at(&sandbox, &at, worker);
        sandbox.piton(&["resume"]).output().success();
        assert_done(&sandbox, &before, &format!("tree.moved-back:{nth}"));
    }
}

#[test]
fn who_starts_over_is_told_where_it_is() {
    let sandbox = sandbox(MAKES, "");
    let prompt = sandbox.mark("prompt");
    sandbox.write(
        sandbox.mark("second.sh"),
        &format!("cp \"$PITON_PROMPT_FILE\" {}", prompt.display()),
    );
    let text = sandbox.read("plan.toml");
    sandbox.write("plan.toml", &text.replacen("id = 'a'", "id = 'a'\non_interrupt = 'restart'", 1));
    both_stopped(&sandbox);
    let before = made(&outside(&sandbox, "a"));
    let out = sandbox.piton(&["resume"]).output().success();
    assert!(out.stderr.contains("step a: vendor/lib is not in its worktree"), "{}", out.stderr);
    let place = outside(&sandbox, "a");
    assert!(out.stderr.contains(&*place.join("vendor/lib").to_string_lossy()), "{}", out.stderr);
    assert_eq!(made(&place), before, "kept as it was");
    assert!(is_gone(&worktree(&sandbox)));
    assert_eq!(sandbox.read(sandbox.mark("a.paths")), "", "a began with a clean tree");
    let told = sandbox.read(&prompt);
    assert!(told.contains(&*place.join("vendor/lib").to_string_lossy()), "the agent, too: {told}");
    // Deleting the run does not delete what nothing else has.
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    let purged = data(&sandbox, &["abandon", &handle, "--purge", "--yes"]);
    assert!(purged.to_string().contains(&*place.to_string_lossy()), "{purged:#}");
    assert_eq!(made(&place), before, "kept by a purge, too");
    sandbox.wait_no_processes();
}

#[test]
fn what_only_its_own_rules_ignore_goes_with_its_step() {
    let sandbox = sandbox(IGNORES, LOOKS);
    both_stopped(&sandbox);
    let tree = worktree(&sandbox);
    assert!(!tree.join(".env").exists() && !tree.join("modules").exists(), "not b's");
    assert_eq!(sandbox.read(sandbox.mark("b.first")), "");
    sandbox.piton(&["resume"]).output().success();
    let branch = view(&sandbox)["branch"].as_str().expect("a branch").to_owned();
    assert_eq!(sandbox.git(&["show", &format!("{branch}:found.txt")]), "secret\nm");
    sandbox.wait_no_processes();
}

#[test]
fn what_was_ignored_is_never_removed_by_a_reset_that_is_killed() {
    for point in ["tree.cleaned", "tree.checked-out"] {
        let (sandbox, handle) = a_waits(IGNORES, LOOKS);
        let at = sandbox.crash_point(point, 1);
        let worker = sandbox.piton(&["resume"]).crash_at(&at).spawn();
        kill_at(&sandbox, &at, worker);
        assert!(worktree(&sandbox).join(".env").exists(), "{point}: in the middle of it");
        both_go_on(&sandbox, &handle);
        assert_eq!(sandbox.read(sandbox.mark("b.first")), "", "{point}: b began with a clean tree");
        let mut kept = bytes(&sandbox.path(".git/piton/aside"));
        kept.retain(|path, bytes| path.ends_with(".env") && bytes == b"secret\n");
        assert!(!kept.is_empty(), "{point}: a's file is not anywhere");
        assert_eq!(view(&sandbox)["status"], "completed", "{point}");
        sandbox.wait_no_processes();
    }
}

#[test]
fn every_point_of_moving_has_its_test() {
    let listed: Vec<&str> =
        POINTS.iter().filter(|(_, who)| *who == Who::Mover).map(|(point, _)| *point).collect();
    assert_eq!(listed, MOVES);
}
