//! Git killed between two of its own changes: with everything that was started, or alone. Crash points
//! stand between piton's actions; here one action is left half done, as only git can leave it. Whatever is
//! killed where, the same command again comes to the same end, and no lock, no half-made worktree and no
//! broken object is left.
//!
//! An undisturbed run is traced first: which calls change something, and how often. In the ordinary run
//! each kind of call is killed at one of its changes, chosen by a seed (`PITON_SEED`); `PITON_FULL=1`
//! kills every call at every change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use piton_testkit::Sandbox;
use piton_testkit::runs::{command_step, lay_plan, plan, view};

/// The system calls by which git changes what is on disk; not every machine has all of them.
const CHANGES: &str = "?mkdir,?mkdirat,?rename,?renameat,?renameat2,?unlink,?unlinkat,?rmdir,?link,\
                       ?linkat,?symlink,?symlinkat,?chmod,?ftruncate,?fsync,?fdatasync,?write,?pwrite64";

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    All,
    GitAlone,
}

/// A call of git, by its kind and its number among those: `("update-ref", 3)`.
type Call = (String, u32);

/// One of its system calls, in the same way: `("rename", 1)`.
type Change = (String, u32);

/// What is done, with git killed in it; and what is said again if it could not be finished.
struct Scene {
    lay: fn() -> Sandbox,
    command: &'static [&'static str],
    again: &'static [&'static str],
}

const RUN: Scene =
    Scene { lay: fresh, command: &["run", "plan.toml", "--trust"], again: &["resume"] };
const MERGE: Scene = Scene { lay: ran, command: &["merge"], again: &["merge"] };
const CLEAN: Scene =
    Scene { lay: merged, command: &["clean", "--apply"], again: &["clean", "--apply"] };
const UNDO: Scene = Scene { lay: cleaned, command: &["undo"], again: &["undo"] };
const COMPLETE: Scene = Scene { lay: claimed, command: &BY_HAND, again: &BY_HAND };
const BY_HAND: [&str; 5] = ["complete", "plan.toml", "work", "--worktree", "../outside"];

/// Two steps, the first of which commits a part of its work and leaves the rest. In the checkout is a file
/// of somebody's that git does not know.
fn fresh() -> Sandbox {
    let sandbox = crate::sandbox();
    let git = real_git();
    let one = format!(
        "echo 1 > one.txt; {git} add one.txt; {git} commit -qm one; mkdir sub; echo deep > sub/deep",
        git = git.display()
    );
    let steps = [
        command_step(&sandbox, "one", &one, ""),
        // An ignored file is nowhere else: the tree stays.
        command_step(
            &sandbox,
            "two",
            "cat one.txt sub/deep > two.txt; echo kept > piton.toml",
            "needs = ['one']",
        ),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox.write("mine.txt", "not in git\n");
    put_before_git(&sandbox);
    sandbox
}

fn done(sandbox: Sandbox, command: &[&str]) -> Sandbox {
    sandbox.piton(command).output().success();
    sandbox
}

fn ran() -> Sandbox {
    done(fresh(), RUN.command)
}

fn merged() -> Sandbox {
    done(ran(), MERGE.command)
}

fn cleaned() -> Sandbox {
    done(merged(), CLEAN.command)
}

/// A step that somebody has claimed and worked on in a worktree of their own: a part is committed.
fn claimed() -> Sandbox {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, "[plan]\nname = 'by-hand'\n[[step]]\nid = 'work'\nverify = 'test -e one'\n");
    let outside = sandbox.root().join("outside");
    sandbox.git(&["worktree", "add", "--quiet", "-b", "mine", "../outside"]);
    let sandbox = done(sandbox, &["claim", "plan.toml", "--worktree", "../outside"]);
    sandbox.write(outside.join("one"), "1\n");
    sandbox.git_in(&outside, &["add", "one"]);
    sandbox.git_in(&outside, &["commit", "--quiet", "-m", "one"]);
    sandbox.write(outside.join("two"), "not committed\n");
    put_before_git(&sandbox);
    sandbox
}

fn real_git() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join("git"));
    places.find(|place| place.is_file()).expect("git is in PATH")
}

/// A `git` before the real one, which does as the file `orders` says: nothing, `trace`, or `update-ref 3
/// rename 1` to be killed there. The file `killed` tells that it was.
fn put_before_git(sandbox: &Sandbox) {
    let text = format!(
        r#"#!/bin/sh
kind_of() {{
    while test $# -gt 0; do
        case $1 in -C | -c) shift 2 ;; -*) shift ;; *) echo "$1"; return ;; esac
    done
}}
marks={marks}
orders=$(cat "$marks/orders" 2>/dev/null) || exec {git} "$@"
kind=$(kind_of "$@")
count='n=$(cat "$1" 2>/dev/null); n=$((n + 1)); echo $n > "$1"; echo $n'
number=$(flock "$marks/count.lock" sh -c "$count" count "$marks/count-$kind")
trace=$marks/trace-$kind-$number
case $orders in
trace) exec strace -f -qq -o "$trace" -e trace={CHANGES} {git} "$@" ;;
"$kind $number "*) ;;
*) exec {git} "$@" ;;
esac
set -- $orders -- "$@"
inject=$3:signal=KILL:when=$4
shift 5
strace -f -qq -o "$trace" -e trace={CHANGES} -e "inject=$inject" {git} "$@"
status=$?
if grep -q 'killed by SIGKILL' "$trace"; then
    echo "$kind" > "$marks/killed"
    kill -9 $$
fi
exit $status
"#,
        marks = sandbox.mark("").display(),
        git = real_git().display(),
    );
    let script = sandbox.write(sandbox.bin().join("git"), &text);
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).expect("it can be executed");
}

fn order(sandbox: &Sandbox, orders: &str) {
    sandbox.write(sandbox.mark("orders"), orders);
}

fn countermand(sandbox: &Sandbox) {
    fs::remove_file(sandbox.mark("orders")).expect("they were given");
}

/// The calls of a scene that change something, with the changes; and the end that it comes to.
fn undisturbed(scene: &Scene) -> (BTreeMap<Call, Vec<Change>>, End) {
    let strace = Command::new("strace").arg("-V").output();
    assert!(strace.is_ok_and(|out| out.status.success()), "strace is missing");
    let sandbox = (scene.lay)();
    order(&sandbox, "trace");
    sandbox.piton(scene.command).output().success();
    countermand(&sandbox);
    let mut calls = BTreeMap::new();
    for entry in fs::read_dir(sandbox.mark("")).expect("a folder").flatten() {
        let name = entry.file_name().into_string().expect("text");
        let Some(call) = name.strip_prefix("trace-").and_then(|call| call.rsplit_once('-')) else {
            continue;
        };
        let text = fs::read_to_string(entry.path()).expect("a trace");
        let changes = changes_in(&text);
        if !changes.is_empty() {
            calls.insert((call.0.to_owned(), call.1.parse().expect("a number")), changes);
        }
    }
    assert!(!calls.is_empty(), "nothing was traced");
    let end = End::of(&sandbox);
    (calls, end)
}

/// What its processes did, each as strace counts it: the how manieth `rename` of a process. What only goes
/// to whoever asked is no change.
fn changes_in(trace: &str) -> Vec<Change> {
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    let mut changes = BTreeSet::new();
    for line in trace.lines() {
        let Some((process, rest)) = line.split_once(' ') else { continue };
        let Some((call, words)) = rest.trim_start().split_once('(') else { continue };
        let count = counts.entry((process, call)).or_default();
        *count += 1;
        if !(call == "write" && (words.starts_with("1, ") || words.starts_with("2, "))) {
            changes.insert((call.to_owned(), *count));
        }
    }
    changes.into_iter().collect()
}

/// What a scene comes to: names of runs and times are others each time.
#[derive(Debug, PartialEq, Eq)]
struct End {
    status: String,
    /// The trees of the branches, by what is left of their names without the run's.
    branches: BTreeMap<String, String>,
    /// How many worktrees there are.
    worktrees: usize,
    checkout: String,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl End {
    fn of(sandbox: &Sandbox) -> End {
        let run = view(sandbox);
        let handle = run["handle"].as_str().expect("a handle").to_owned();
        let listed = sandbox.git(&["for-each-ref", "--format=%(tree) %(refname)", "refs/heads"]);
        let rows = listed.lines().filter_map(|row| row.split_once(' '));
        let branches = rows.map(|(tree, name)| (name.replace(&handle, "RUN"), tree.to_owned()));
        let worktrees = sandbox.git(&["worktree", "list", "--porcelain"]);
        assert!(!worktrees.contains("being made"), "{worktrees}");
        let checkout = sandbox.git(&["status", "--porcelain", "--untracked-files=all"]);
        let listed = sandbox.git(&["ls-files", "--cached", "--others", "--exclude-standard"]);
        let read =
            |path: &str| (PathBuf::from(path), fs::read(sandbox.path(path)).expect("a file"));
        End {
            status: run["status"].to_string(),
            branches: branches.collect(),
            worktrees: worktrees.matches("worktree ").count(),
            checkout,
            files: listed.lines().map(read).collect(),
        }
    }
}

/// Kills git there, says it again where that is needed, and looks what it comes to. Says whether the kill
/// found git at that change.
fn killed(scene: &Scene, call: &Call, change: &Change, victims: Victims, end: &End) -> bool {
    let what = format!("{:?}: {call:?} at {change:?}, {victims:?}", scene.command);
    let sandbox = (scene.lay)();
    order(&sandbox, &format!("{} {} {} {}", call.0, call.1, change.0, change.1));
    let mut running = sandbox.piton(scene.command).spawn();
    let hit = sandbox.mark("killed");
    sandbox.wait_until("the kill, or the end", || hit.exists() || !running.is_running());
    if hit.exists() && victims == Victims::All {
        assert!(sandbox.kill_all(), "{what}: something lives on");
    }
    let first = running.wait();
    countermand(&sandbox);
    // As if somebody came back a minute later: a young lock is waited for.
    locks_in(&sandbox.path(".git")).iter().for_each(|lock| sandbox.leave_lock(lock));
    if first.code != Some(0) {
        let again = sandbox.piton(scene.again).output();
        assert_eq!(again.code, Some(0), "{what}: {first}\nagain: {again}");
    }
    assert_eq!(End::of(&sandbox), *end, "{what}: {first}");
    assert_eq!(locks_in(&sandbox.path(".git")), [] as [PathBuf; 0], "{what}");
    sandbox.git(&["fsck", "--no-dangling", "--no-progress"]);
    sandbox.wait_no_processes();
    hit.exists()
}

/// Git's own, not piton's, which are files that stay.
fn locks_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "piton" {
            found.extend(locks_in(&path));
        } else if path.extension().is_some_and(|end| end == "lock") {
            found.push(path);
        }
    }
    found
}

fn play(scene: &Scene) {
    let (calls, end) = undisturbed(scene);
    let full = std::env::var_os("PITON_FULL").is_some();
    let seed: usize = std::env::var("PITON_SEED").map_or(3, |seed| seed.parse().expect("a number"));
    let (mut rounds, mut hits) = (0, 0);
    let mut kinds = BTreeSet::new();
    for (at, (call, changes)) in calls.iter().enumerate() {
        let both = [Victims::All, Victims::GitAlone];
        let all = changes.iter().flat_map(|change| both.map(|victims| (change, victims)));
        let chosen: Vec<(&Change, Victims)> = match (full, kinds.insert(&call.0)) {
            (true, _) => all.collect(),
            (false, true) => all.skip((seed + at) % (2 * changes.len())).take(1).collect(),
            (false, false) => Vec::new(),
        };
        for (change, victims) in chosen {
            rounds += 1;
            hits += u32::from(killed(scene, call, change, victims, &end));
        }
    }
    // Which processes are at work when is not the same each time, and with it the numbers of calls.
    assert!(hits > 0 && hits * 2 >= rounds, "{hits} of {rounds} kills found git at work");
}

#[test]
fn git_is_killed_while_a_run_is_at_work() {
    play(&RUN);
}

#[test]
fn git_is_killed_while_a_claimed_step_is_completed() {
    play(&COMPLETE);
}

#[test]
fn git_is_killed_while_a_run_is_merged() {
    play(&MERGE);
}

#[test]
fn git_is_killed_while_worktrees_are_removed() {
    play(&CLEAN);
}

#[test]
fn git_is_killed_while_they_are_put_back() {
    play(&UNDO);
}
