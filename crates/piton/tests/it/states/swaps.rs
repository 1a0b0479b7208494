//! One worktree for all steps of a run: who does not finish is swapped out by whoever comes next, and put
//! back at the same path when it goes on, with staged, unstaged and untracked as they were, also in the
//! middle of a rebase; wherever the swap is killed.

use piton_engine::crash::{POINTS, Who};
use piton_testkit::runs::{
    OnDisk, agent_step, data, events_named, keepers, lay_plan, plan, refused, tree, view,
    wait_event, worktree,
};
use piton_testkit::{CrashPoint, Running, Sandbox, Signal, alive, kill9};

/// What step `a` leaves, and what git says of it.
const LEAVES: &str = "echo mine > mine.txt; git add mine.txt; git commit -q -m mine; \
                      echo changed > kept.txt; git add kept.txt; echo staged > staged.txt; \
                      git add staged.txt; echo more >> staged.txt; echo precious > work.txt";
const STATUS: &str = "M  kept.txt\nAM staged.txt\n?? work.txt\n";

/// The points of a swap; those from the second on are passed whatever the tree holds.
const SWAP: [&str; 7] = [
    "tree.kept",
    "tree.nobodys",
    "tree.marked",
    "tree.cleaned",
    "tree.checked-out",
    "tree.reset",
    "tree.filled",
];

/// Two steps that both work and hang, and look at what they find when they go on.
pub(crate) fn sandbox(first: &str, second: &str) -> Sandbox {
    steps(first, second, "nth {a} 1: hang")
}

/// The same; what the first of them does when it has worked.
pub(crate) fn steps(first: &str, second: &str, then: &str) -> Sandbox {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    sandbox.write("kept.txt", "base\n");
    sandbox.write(sandbox.mark("first.sh"), first);
    sandbox.write(sandbox.mark("second.sh"), second);
    let look = |id: &str| {
        format!(
            "sh git status --porcelain > {{{id}.paths}}; sh git status > {{{id}.status}}; sh pwd > {{{id}.pwd}}"
        )
    };
    let a = format!(
        "count {{a}}; nth {{a}} 1: sh sh {{first.sh}}; nth {{a}} 1: touch {{a-ready}}; {then}; {}; \
         sh sh {{second.sh}}",
        look("a")
    );
    let b = format!(
        "count {{b}}; nth {{b}} 1: sh git status --porcelain > {{b.first}}; \
         nth {{b}} 1: write half.txt half; nth {{b}} 1: touch {{b-ready}}; nth {{b}} 1: hang; {}; \
         write b.txt b",
        look("b")
    );
    let steps = [agent_step(&sandbox, "a", &a, ""), agent_step(&sandbox, "b", &b, "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox
}

/// Step `a` has asked something and waits; `b` was not begun, and somebody kept it from that until now.
pub(crate) fn a_waits(first: &str, second: &str) -> (Sandbox, String) {
    let ask = "nth {a} 1: sh piton ask Which?; nth {a} 1: exit 3";
    let sandbox = steps(first, second, ask);
    let elsewhere = tree(&sandbox, "elsewhere");
    let claim = ["claim", "plan.toml", "--step", "b", "--worktree", &elsewhere];
    assert_eq!(data(&sandbox, &claim)["claimed"], true);
    let worker = sandbox.piton(&["run", "plan.toml", "--trust", "--auto-continue"]).spawn();
    wait_event(&sandbox, "suspended");
    drop(worker.kill9());
    sandbox.wait_no_processes();
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    sandbox.piton(&["release", &handle, "b", "--worktree", &elsewhere]).output().success();
    (sandbox, handle)
}

/// Somebody answers, and both steps go on to their end; `b` hangs the first time.
pub(crate) fn both_go_on(sandbox: &Sandbox, handle: &str) {
    let asked = data(sandbox, &["questions"]);
    let question = asked["questions"][0]["question"].as_str().expect("a question").to_owned();
    sandbox.piton(&["answer", handle, &question, "this"]).output().success();
    let resume = sandbox.piton(&["resume"]).spawn();
    wait_ready(sandbox, &resume);
    resume.signal(Signal::INT);
    resume.wait().expect_code(130);
    sandbox.piton(&["resume"]).output().success();
}

/// Starts the run; step `a` has worked, and hangs.
pub(crate) fn a_at_work(sandbox: &Sandbox) -> Running {
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--grace", "100ms"]).spawn();
    sandbox.wait_exists(sandbox.mark("a-ready"));
    run
}

/// Stops step `a`, so that `b` gets the worktree.
pub(crate) fn stop_a(sandbox: &Sandbox) {
    let handle = view(sandbox)["handle"].as_str().expect("a handle").to_owned();
    sandbox.piton(&["stop", &handle, "a"]).output().success();
}

pub(crate) fn a_stopped(sandbox: &Sandbox) -> Running {
    let run = a_at_work(sandbox);
    stop_a(sandbox);
    run
}

/// Both stopped at their work, `b`'s in the worktree.
pub(crate) fn both_stopped(sandbox: &Sandbox) {
    let run = a_stopped(sandbox);
    sandbox.wait_exists(sandbox.mark("b-ready"));
    run.signal(Signal::INT);
    run.wait().expect_code(130);
    assert_eq!(sandbox.read(worktree(sandbox).join("half.txt")), "half\n");
    assert!(!worktree(sandbox).join("work.txt").exists(), "a's files were swapped out");
}

/// Kills everything when the point is reached.
pub(crate) fn kill_at(sandbox: &Sandbox, point: &CrashPoint, worker: Running) {
    let stopped = point.wait_hit();
    assert!(keepers(sandbox).contains(&stopped), "it is a keeper that swaps");
    drop(worker.kill9());
    kill9(stopped);
    assert!(sandbox.kill_all() || sandbox.processes().is_empty());
}

#[track_caller]
fn assert_done(sandbox: &Sandbox, what: &str) {
    let run = view(sandbox);
    assert_eq!(run["status"], "completed", "{what}: {run:#}");
    assert_eq!(sandbox.read(sandbox.mark("a.paths")), STATUS, "{what}");
    assert_eq!(sandbox.read(sandbox.mark("b.paths")), "?? half.txt\n", "{what}");
    let place = format!("{}\n", worktree(sandbox).display());
    for id in ["a", "b"] {
        assert_eq!(
            sandbox.read(sandbox.mark(&format!("{id}.pwd"))),
            place,
            "{what}: the same path"
        );
    }
    let branch = run["branch"].as_str().expect("a branch");
    let expected = [
        ("mine.txt", "mine"),
        ("kept.txt", "changed"),
        ("staged.txt", "staged\nmore"),
        ("work.txt", "precious"),
        ("half.txt", "half"),
        ("b.txt", "b"),
    ];
    for (file, text) in expected {
        assert_eq!(sandbox.git(&["show", &format!("{branch}:{file}")]), text, "{what}: {file}");
    }
    sandbox.wait_no_processes();
}

#[test]
fn steps_that_are_swapped_out_come_back_as_they_were() {
    let sandbox = sandbox(LEAVES, "");
    both_stopped(&sandbox);
    let told = sandbox.piton(&["resume", "--dry-run", "--json"]).output().success().json();
    assert_eq!(told["data"]["worktrees"]["a"][0]["state"], "swapped", "{told:#}");
    sandbox.piton(&["resume"]).output().success();
    assert_done(&sandbox, "undisturbed");
    // The bytes of the swapped step are under its own name and fence.
    let claimed = events_named(&sandbox, "claimed");
    let of_b = claimed.iter().find(|event| event["step"]["step"] == "b").expect("b was claimed");
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    let folder = format!("refs/piton/{handle}/b/{}", of_b["position"]);
    let refs = sandbox.git(&["for-each-ref", "--format=%(refname)", &folder]);
    let newest = refs.lines().last().unwrap_or_else(|| panic!("nothing in {folder}"));
    assert_eq!(sandbox.git(&["show", &format!("{newest}:half.txt")]), "half");
}

#[test]
fn what_a_person_adds_before_the_swap_comes_back_too() {
    let (sandbox, handle) = a_waits(LEAVES, "cat person.txt > person-found.txt; rm person.txt");
    // After the last snapshot of `a`, and in nothing but the worktree.
    sandbox.write(worktree(&sandbox).join("person.txt"), "a person's\n");
    let resume = sandbox.piton(&["resume", &handle]).spawn();
    wait_ready(&sandbox, &resume);
    assert!(!worktree(&sandbox).join("person.txt").exists(), "b has a clean tree");
    // The newest of `a` is the one that was taken at the swap, however short before that another was.
    let newest = data(&sandbox, &["snapshot", "show", &format!("{handle}/a")]);
    let files = newest["contents"]["files"].as_array().expect("files");
    assert!(files.iter().any(|file| file["path"] == "person.txt"), "{newest:#}");
    let listed = sandbox.piton(&["worktree", "list"]).output().success().stdout;
    assert!(listed.contains("step a: step b has used the worktree since"), "{listed}");
    assert_eq!(sandbox.read(sandbox.mark("b.first")), "");
    resume.signal(Signal::INT);
    resume.wait().expect_code(130);
    let asked = data(&sandbox, &["questions"]);
    let question = asked["questions"][0]["question"].as_str().expect("a question").to_owned();
    sandbox.piton(&["answer", &handle, &question, "this"]).output().success();
    sandbox.piton(&["resume", &handle]).output().success();
    let branch = view(&sandbox)["branch"].as_str().expect("a branch").to_owned();
    assert_eq!(sandbox.git(&["show", &format!("{branch}:person-found.txt")]), "a person's");
    assert_eq!(sandbox.git(&["show", &format!("{branch}:work.txt")]), "precious");
}

/// Answers what `a` has asked.
fn answered(sandbox: &Sandbox, handle: &str) {
    let asked = data(sandbox, &["questions"]);
    let question = asked["questions"][0]["question"].as_str().expect("a question").to_owned();
    sandbox.piton(&["answer", handle, &question, "this"]).output().success();
}

#[test]
fn undoing_a_restore_does_not_write_into_the_tree_of_another_step() {
    let (sandbox, handle) = a_waits(LEAVES, "");
    let place = worktree(&sandbox);
    let work = place.join("work.txt");
    sandbox.write(&work, "by hand\n");
    let a = format!("{handle}/a");
    data(&sandbox, &["snapshot", "restore", &a, "--yes"]);
    assert_eq!(sandbox.read(&work), "precious\n");
    let resume = sandbox.piton(&["resume", &handle]).spawn();
    wait_ready(&sandbox, &resume);
    resume.signal(Signal::INT);
    resume.wait().expect_code(130);
    // By the branch alone nobody could tell whose it is.
    sandbox.git_in(&place, &["checkout", "-q", "--detach"]);
    let before = OnDisk::of(&place);
    let (exit, code, message) = refused(&sandbox, &["undo"]);
    assert_eq!((exit, code.as_str()), (1, "E101"), "{message}");
    assert!(message.contains("step b has the worktree"), "{message}");
    let hint = sandbox.piton(&["undo"]).output().expect_code(1).stderr;
    let next = format!("piton snapshot restore {a} --at ");
    let (_, next) = hint.split_once(&next).unwrap_or_else(|| panic!("no command: {hint}"));
    let (at, _) = next.split_once(" --to ../").unwrap_or_else(|| panic!("no folder: {hint}"));
    let (exit, code, message) = refused(&sandbox, &["snapshot", "restore", &a, "--yes"]);
    assert_eq!((exit, code.as_str()), (1, "E097"), "{message}");
    assert_eq!(before.differences(&OnDisk::of(&place)), Vec::<std::path::PathBuf>::new());
    // What was offered, is what helps.
    let to = tree(&sandbox, "before");
    std::fs::remove_dir_all(&to).expect("its place is free");
    data(&sandbox, &["snapshot", "restore", &a, "--at", at, "--to", &to]);
    assert_eq!(sandbox.read(std::path::Path::new(&to).join("work.txt")), "by hand\n");
    answered(&sandbox, &handle);
    sandbox.piton(&["resume", &handle]).output().success();
    assert_done(&sandbox, "nothing was mixed");
}

#[test]
fn a_snapshot_is_put_into_a_tree_that_a_completed_step_has_left() {
    let (sandbox, handle) = a_waits(LEAVES, "");
    let resume = sandbox.piton(&["resume", &handle]).spawn();
    wait_ready(&sandbox, &resume);
    resume.signal(Signal::INT);
    resume.wait().expect_code(130);
    sandbox.piton(&["resume", &handle]).output().expect_code(4);
    let place = worktree(&sandbox);
    let a = format!("{handle}/a");
    sandbox.write(place.join("stray.txt"), "a person's\n");
    let (_, code, message) = refused(&sandbox, &["snapshot", "restore", &a, "--yes"]);
    assert_eq!(code, "E097", "{message}");
    std::fs::remove_file(place.join("stray.txt")).expect("it is there");
    data(&sandbox, &["snapshot", "restore", &a]);
    assert_eq!(sandbox.git_in(&place, &["status", "--porcelain"]) + "\n", STATUS);
    assert_eq!(
        sandbox.git_in(&place, &["branch", "--show-current"]),
        format!("piton/{handle}/step/a")
    );
    sandbox.write(place.join("work.txt"), "precious\n");
    answered(&sandbox, &handle);
    sandbox.piton(&["resume", &handle]).output().success();
    assert_done(&sandbox, "gone on from what was put back");
}

#[test]
fn a_detached_head_is_known_for_whose_it_is() {
    // By the branch alone nobody could tell: both steps leave HEAD detached.
    let sandbox = sandbox(&format!("{LEAVES}; git checkout -q --detach"), "");
    both_stopped(&sandbox);
    sandbox.git_in(&worktree(&sandbox), &["checkout", "-q", "--detach"]);
    sandbox.piton(&["resume"]).output().success();
    assert!(sandbox.read(sandbox.mark("a.status")).contains("HEAD detached"));
    assert!(sandbox.read(sandbox.mark("b.status")).contains("HEAD detached"));
    assert_done(&sandbox, "detached");
}

#[test]
fn a_rebase_comes_back_where_it_was() {
    let first = "{ echo mine > kept.txt; git commit -q -a -m mine; git checkout -q -b other HEAD~1; \
                 echo other > kept.txt; git commit -q -a -m other; git checkout -q -; \
                 echo second > second.txt; git add second.txt; git commit -q -m second; \
                 git rebase -q other; } >/dev/null 2>&1; echo precious > work.txt";
    let second =
        "set -e; echo solved > kept.txt; git add kept.txt; GIT_EDITOR=true git rebase --continue";
    let sandbox = sandbox(first, second);
    let run = a_stopped(&sandbox);
    sandbox.wait_exists(sandbox.mark("b-ready"));
    let status = sandbox.git_in(&worktree(&sandbox), &["status"]);
    assert!(!status.contains("rebase in progress"), "b knows nothing of it: {status}");
    run.signal(Signal::INT);
    run.wait().expect_code(130);
    sandbox.piton(&["resume"]).output().success();
    let found = sandbox.read(sandbox.mark("a.status"));
    assert!(found.contains("rebase in progress") && found.contains("both modified"), "{found}");
    let branch = view(&sandbox)["branch"].as_str().expect("a branch").to_owned();
    let expected = [
        ("kept.txt", "solved"),
        ("second.txt", "second"),
        ("work.txt", "precious"),
        ("b.txt", "b"),
    ];
    for (file, text) in expected {
        assert_eq!(sandbox.git(&["show", &format!("{branch}:{file}")]), text, "{file}");
    }
}

#[test]
fn a_swap_that_is_killed_when_the_tree_is_given_away_costs_nothing() {
    // A tree that is begun anew is filled with nothing but its commit.
    for point in SWAP.into_iter().filter(|point| *point != "tree.filled") {
        let (sandbox, handle) = a_waits(LEAVES, "");
        let at = sandbox.crash_point(point, 1);
        let worker = sandbox.piton(&["resume"]).crash_at(&at).spawn();
        kill_at(&sandbox, &at, worker);
        both_go_on(&sandbox, &handle);
        assert_eq!(sandbox.read(sandbox.mark("b.first")), "", "{point}: b began with a clean tree");
        assert_done(&sandbox, point);
    }
}

#[test]
fn a_swap_that_is_killed_when_the_tree_is_put_back_costs_nothing() {
    for point in SWAP {
        let sandbox = sandbox(LEAVES, "");
        both_stopped(&sandbox);
        let at = sandbox.crash_point(point, 1);
        let worker = sandbox.piton(&["resume"]).crash_at(&at).spawn();
        kill_at(&sandbox, &at, worker);
        sandbox.piton(&["resume"]).output().success();
        assert_done(&sandbox, point);
    }
}

pub(crate) fn wait_ready(sandbox: &Sandbox, worker: &Running) {
    sandbox.wait_until("b at work", || {
        assert!(alive(worker.pid()), "{} {}", worker.stdout(), worker.stderr());
        sandbox.exists(sandbox.mark("b-ready"))
    });
}

#[test]
fn every_point_of_a_swap_has_its_test() {
    let listed: Vec<&str> =
        POINTS.iter().filter(|(_, who)| *who == Who::Successor).map(|(point, _)| *point).collect();
    assert_eq!(listed, SWAP);
}
