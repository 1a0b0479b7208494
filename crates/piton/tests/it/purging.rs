//! Deleting runs with the real binary: the records and what was printed go, the work does not; killed at
//! each durable action, said again, it ends the same.

use std::fs;
use std::path::PathBuf;

use piton_testkit::crash::points_of;
use piton_testkit::runs::{command_step, data, lay_plan, plan, refused, view};
use piton_testkit::{Sandbox, Terminal, Who, kill9};

/// A run that was stopped in the middle of its second step: the first one has landed, and in the
/// worktree there is a file that is in no snapshot, and one that is ignored.
struct Stopped {
    sandbox: Sandbox,
    handle: String,
    tree: PathBuf,
}

fn stopped() -> Stopped {
    let sandbox = crate::sandbox();
    let steps = [
        command_step(&sandbox, "first", "echo first > first.txt", ""),
        command_step(
            &sandbox,
            "second",
            "echo half > half.txt; touch {ready}; until test -e {gate}; do sleep 0.05; done",
            "needs = ['first']",
        ),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let running = sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    data(&sandbox, &["stop"]);
    running.wait();
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    let tree = sandbox.path(format!(".piton/worktrees/{handle}/1"));
    sandbox.write(tree.join("late.txt"), "late\n");
    sandbox.write(tree.join("piton.toml"), "# ignored\n");
    Stopped { sandbox, handle, tree }
}

impl Stopped {
    /// The runs that there are.
    fn handles(&self) -> Vec<String> {
        let all = data(&self.sandbox, &["status", "--ended"])["runs"].clone();
        let name = |run: &serde_json::Value| run["handle"].as_str().expect("text").to_owned();
        all.as_array().expect("runs").iter().map(name).collect()
    }

    /// The bytes of a file, wherever a ref has them.
    fn kept(&self, file: &str) -> Option<String> {
        let refs = self.sandbox.git(&["for-each-ref", "--format=%(refname)"]);
        let read = |name: &str| self.sandbox.try_git(&["show", &format!("{name}:{file}")]).ok();
        refs.lines().find_map(read)
    }

    /// What is left in piton's own folder, but for the store's files and the acts.
    fn left(&self) -> Vec<String> {
        let list = |folder: PathBuf| {
            let list = fs::read_dir(folder).into_iter().flatten().flatten();
            list.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let state = self.sandbox.path(".git/piton");
        let mut left = list(state.join("attempts"));
        let of_run = |name: &String| {
            ["run-", "land-", "worker-"].iter().any(|start| name.starts_with(start))
        };
        left.extend(list(state).into_iter().filter(of_run));
        left
    }

    /// The run is gone, and everything that was done in it is not.
    #[track_caller]
    fn assert_purged(&self, why: &str) {
        assert_eq!(self.handles(), Vec::<String>::new(), "{why}");
        assert_eq!(self.left(), Vec::<String>::new(), "{why}");
        assert!(!self.tree.exists(), "{why}");
        // Whatever git then collects.
        self.sandbox.git(&["reflog", "expire", "--expire=now", "--all"]);
        self.sandbox.git(&["gc", "--quiet", "--prune=now"]);
        for (file, text) in [("first.txt", "first"), ("half.txt", "half"), ("late.txt", "late")] {
            assert_eq!(self.kept(file).as_deref(), Some(text), "{why}: {file}");
        }
        let run = format!("piton/{}/run", self.handle);
        assert_eq!(self.sandbox.git(&["show", &format!("{run}:first.txt")]), "first", "{why}");
        data(&self.sandbox, &["doctor"]);
    }
}

#[test]
fn purging_deletes_the_records_and_keeps_the_work() {
    let it = stopped();
    let (sandbox, handle) = (&it.sandbox, it.handle.as_str());
    assert!(!it.left().is_empty());
    let before = sandbox.git(&["for-each-ref"]);
    // Nobody is there to agree: it is said what would go and what would stay.
    let out = sandbox.piton(&["abandon", handle, "--purge"]).output().expect_code(4);
    let branch = format!("piton/{handle}/run");
    for part in ["error[E104]", "goes: its log, ", "goes: 2 transcripts: ", "goes: 1 worktree: "] {
        assert!(out.stderr.contains(part), "{part}: {out}");
    }
    let stays = |part: &str| out.stderr.lines().any(|l| l.contains("stays: ") && l.contains(part));
    assert!(stays(&branch) && stays("snapshot"), "{out}");
    assert!(out.stderr.contains(&format!("`piton abandon {handle} --purge --yes`")), "{out}");
    assert_eq!(sandbox.git(&["for-each-ref"]), before);
    assert_eq!(it.handles(), [handle]);

    let out = sandbox.piton(&["abandon", handle, "--purge", "--yes"]).output().success();
    it.assert_purged("purged");
    let snapshots = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
    assert!(snapshots.lines().all(|name| out.stdout.contains(name)), "{out}: {snapshots}");
    assert!(out.stdout.contains(&branch), "{out}");
    let (code, error, _) = refused(sandbox, &["abandon", handle, "--purge", "--yes"]);
    assert_eq!((code, error.as_str()), (2, "E064"), "there is no such run any more");

    // Its snapshots are found by their refs, and what they hold comes out of them.
    assert!(out.stderr.contains(&format!("`piton snapshot list {handle}`")), "{out}");
    let listed = data(sandbox, &["snapshot", "list", handle]);
    let rows = listed["snapshots"].as_array().expect("rows");
    assert!(rows.len() >= 2 && listed["run"].is_null(), "{listed:#}");
    assert!(rows.iter().all(|row| row["step"] == "second"), "{listed:#}");
    let step = format!("{handle}/second");
    let to = sandbox.root().join("brought-back");
    // The copy from before the purge goes by its id.
    let last = rows[rows.len() - 1]["commit"].as_str().expect("an id");
    let to = to.to_str().expect("text");
    data(sandbox, &["snapshot", "restore", &step, "--at", last, "--to", to]);
    let to = PathBuf::from(to);
    assert_eq!(sandbox.read(to.join("half.txt")), "half\n");
    assert_eq!(sandbox.read(to.join("late.txt")), "late\n");
    assert_eq!(rows[0]["changed"], 2, "on top of what is checked out: {listed:#}");
    let first = rows[0]["commit"].as_str().expect("an id");
    let shown = data(sandbox, &["snapshot", "show", &step, "--at", first]);
    assert_eq!(shown["contents"]["files"][1]["path"], "half.txt", "{shown:#}");
    let diff = ["snapshot", "diff", &step, "--at", last];
    let patch = sandbox.piton(&diff).output().success().stdout;
    assert!(patch.contains("+late"), "{patch}");
    let (code, error, message) = refused(sandbox, &["snapshot", "restore", &step]);
    assert_eq!((code, error.as_str()), (1, "E097"), "{message}");
    assert!(refused(sandbox, &["snapshot", "list", "many-lost-run"]).1 == "E064");

    // The worktree comes back; the run does not.
    data(sandbox, &["undo"]);
    assert_eq!(sandbox.read(it.tree.join("late.txt")), "late\n");
    let (code, error, message) = refused(sandbox, &["undo"]);
    assert_eq!((code, error.as_str()), (2, "E100"), "{message}");
    let acts = data(sandbox, &["undo", "--list"])["acts"].clone();
    let purge = acts.as_array().expect("acts").iter().find(|act| act["deed"] == "purge");
    let number = purge.expect("it is listed")["act"].to_string();
    let (code, _, message) = refused(sandbox, &["undo", &number]);
    assert!(code == 1 && message.contains("was purged"), "{message}");
    // Its plan can be run anew.
    fs::write(sandbox.mark("gate"), "").expect("a file");
    sandbox.piton(&["run", "plan.toml"]).output().success();
}

#[test]
fn a_completed_and_merged_run_leaves_nothing_but_snapshots() {
    let it = stopped();
    let (sandbox, handle) = (&it.sandbox, it.handle.as_str());
    fs::write(sandbox.mark("gate"), "").expect("a file");
    sandbox.piton(&["resume", handle]).output().success();
    data(sandbox, &["merge", handle]);
    // Another run is nobody's business.
    sandbox.write("other.toml", "[plan]\nname = 'other'\n[[step]]\nid = 'hand'\n");
    let other = data(sandbox, &["open", "other.toml"])["run"]["handle"].clone();
    let done = data(sandbox, &["abandon", handle, "--purge", "--yes"])["purged"].clone();
    assert_eq!(done["kept_branches"], serde_json::json!([]), "{done}");
    assert_eq!(sandbox.git(&["for-each-ref", &format!("refs/heads/piton/{handle}")]), "");
    assert_eq!(it.handles(), [other.as_str().expect("a handle")]);
    assert_eq!(sandbox.read("first.txt"), "first\n");
}

#[test]
fn who_works_in_it_is_not_purged() {
    let it = stopped();
    let (sandbox, handle) = (&it.sandbox, it.handle.as_str());
    fs::remove_file(sandbox.mark("ready")).expect("it was there");
    let running = sandbox.piton(&["resume", handle]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let (code, error, message) = refused(sandbox, &["abandon", handle, "--purge", "--yes"]);
    assert_eq!((code, error.as_str()), (1, "E073"), "{message}");
    assert_eq!(view(sandbox)["status"], "running", "it goes on");
    data(sandbox, &["stop"]);
    running.wait();
    // Somebody has a shell in its worktree.
    let mut shell = sandbox.command("sleep");
    let mut shell = shell.arg("1000").current_dir(&it.tree).spawn().expect("a process");
    let before = sandbox.git(&["for-each-ref"]);
    let out = sandbox.piton(&["abandon", handle, "--purge", "--yes"]).output().expect_code(1);
    assert!(out.stderr.contains("works in it") && out.stderr.contains("error[E103]"), "{out}");
    assert_eq!(sandbox.git(&["for-each-ref"]), before);
    assert_eq!(view(sandbox)["status"], "stopped", "it was not even given up");
    shell.kill().and_then(|()| shell.wait()).expect("it was running");
    data(sandbox, &["abandon", handle, "--purge", "--yes"]);
    it.assert_purged("once it has left");
}

#[test]
fn on_a_terminal_it_is_asked_twice() {
    let it = stopped();
    let shows = |terminal: &Terminal, text: &str| {
        it.sandbox.wait_until(text, || terminal.shown().contains(text));
    };
    for (second, code) in [("n\n", 4), ("y\n", 0)] {
        let mut terminal = Terminal::start(&it.sandbox, &["abandon", &it.handle, "--purge"]);
        shows(&terminal, &format!("Purge {}?", it.handle));
        assert!(terminal.shown().contains("goes: its log"), "{}", terminal.shown());
        terminal.type_in("y\n");
        shows(&terminal, "cannot be brought back");
        assert_eq!(it.handles(), [it.handle.as_str()], "once is not enough");
        terminal.type_in(second);
        terminal.wait().expect_code(code);
    }
    it.assert_purged("said twice");
}

fn killed_at(point: &str) {
    let it = stopped();
    let args = ["abandon", it.handle.as_str(), "--purge", "--yes"];
    let crash = it.sandbox.crash_point(point, 1);
    let running = it.sandbox.piton(&args).crash_at(&crash).spawn();
    kill9(crash.wait_hit());
    running.wait();
    let out = it.sandbox.piton(&args).output().success();
    assert!(out.stdout.contains("purged"), "{out}");
    it.assert_purged(point);
    data(&it.sandbox, &["undo"]);
    assert_eq!(it.sandbox.read(it.tree.join("late.txt")), "late\n");
}

/// Those of a clean-up that it passes too.
const OF_CLEANING: [&str; 3] = ["clean.snapshot-kept", "clean.recorded", "clean.removed"];

at_every_point! {
    every_point_of_purging_has_its_test:
        points_of(|point, who| who == Who::Purger || OF_CLEANING.contains(&point)), killed_at;
    killed_with_a_snapshot: "clean.snapshot-kept",
    killed_before_a_worktree_goes: "clean.recorded",
    killed_when_a_worktree_has_gone: "clean.removed",
    killed_at_purge_recorded: "purge.recorded",
    killed_at_purge_trees_gone: "purge.trees-gone",
    killed_at_purge_branches_gone: "purge.branches-gone",
    killed_at_purge_forgotten: "purge.forgotten",
    killed_at_purge_files_gone: "purge.files-gone",
}
