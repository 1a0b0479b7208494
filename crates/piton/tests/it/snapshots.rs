//! `piton snapshot`: what is kept can be listed, looked at, compared and put back, and putting back
//! loses nothing, wherever it is killed.

use std::fs;
use std::path::PathBuf;

use piton_testkit::crash::points_of;
use piton_testkit::runs::{
    OnDisk, agent_step, command_step, data, events_named, kept, lay_plan, orphaned, plan, refused,
    step, view, worktree,
};
use piton_testkit::{Running, Sandbox, Who};
use serde_json::Value;

/// A run whose one step was stopped after it had gone through two states, each in a snapshot. In between
/// its agent committed.
struct Lab {
    sandbox: Sandbox,
    /// A snapshot of the first state.
    early: String,
    tree: PathBuf,
}

const SCRIPT: &str = "write keep same; write one first; write sub/old old; touch {w1}; await {n1}; \
    write one second; delete sub/old; commit by the agent; write new fresh; touch {w2}; await {n2}";

fn begun() -> (Sandbox, Running) {
    begun_with("")
}

/// With settings of the repository.
fn begun_with(settings: &str) -> (Sandbox, Running) {
    let sandbox = crate::sandbox();
    sandbox.write("piton.toml", settings);
    lay_plan(&sandbox, &plan(&sandbox, &[agent_step(&sandbox, "a", SCRIPT, "")]));
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).env("PITON_SNAPSHOT_EVERY", "100ms");
    let run = run.spawn();
    sandbox.wait_exists(sandbox.mark("w1"));
    sandbox.wait_until("a snapshot of the first state", || has(&sandbox, "sub/old"));
    (sandbox, run)
}

fn has(sandbox: &Sandbox, path: &str) -> bool {
    let shown = view(sandbox);
    let name = &step(&shown, "a")["snapshot"]["refname"];
    name.as_str()
        .is_some_and(|name| sandbox.try_git(&["cat-file", "-e", &format!("{name}:{path}")]).is_ok())
}

impl Lab {
    fn new() -> Lab {
        let (sandbox, run) = begun();
        let shown = view(&sandbox);
        let early = step(&shown, "a")["snapshot"]["commit"].as_str().expect("an id").to_owned();
        fs::write(sandbox.mark("n1"), "").expect("writable");
        sandbox.wait_exists(sandbox.mark("w2"));
        sandbox.wait_until("a snapshot of the second state", || has(&sandbox, "new"));
        sandbox.piton(&["stop"]).output().success();
        run.wait();
        assert_eq!(kept(&sandbox, "a", "one"), "second");
        let tree = worktree(&sandbox);
        Lab { sandbox, early, tree }
    }

    fn run(&self) -> String {
        view(&self.sandbox)["handle"].as_str().expect("a handle").to_owned()
    }

    fn step(&self) -> String {
        format!("{}/a", self.run())
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.tree.join(path)).ok()
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.tree.join(path), text).expect("writable");
    }

    fn list(&self) -> Vec<Value> {
        let listed = data(&self.sandbox, &["snapshot", "list", &self.step()]);
        listed["snapshots"].as_array().expect("a list").clone()
    }

    fn restore(&self, more: &[&str]) -> Value {
        data(&self.sandbox, &[&["snapshot", "restore", &self.step()], more].concat())
    }

    fn head(&self) -> String {
        self.sandbox.git_in(&self.tree, &["rev-parse", "HEAD"])
    }

    #[track_caller]
    fn assert_first_state(&self) {
        assert_eq!(self.read("one").as_deref(), Some("first\n"));
        assert_eq!(self.read("sub/old").as_deref(), Some("old\n"));
        assert_eq!(self.read("new"), None);
        assert_eq!(self.read("keep").as_deref(), Some("same\n"));
    }

    #[track_caller]
    fn assert_second_state(&self) {
        assert_eq!(self.read("one").as_deref(), Some("second\n"));
        assert_eq!(self.read("new").as_deref(), Some("fresh\n"));
        assert_eq!(self.read("sub/old"), None);
        assert!(self.tree.join("sub").is_dir(), "the agent left the empty folder");
    }
}

#[test]
fn they_are_listed_shown_and_compared_and_looking_writes_nothing() {
    let lab = Lab::new();
    let before = OnDisk::of(&lab.sandbox.path(".git"));
    let files = OnDisk::of(&lab.tree);
    let all = lab.list();
    assert!(all.len() >= 2, "{all:#?}");
    assert!(all.iter().all(|kept| kept["step"] == "a" && kept["known_by"] == "log"), "{all:#?}");
    assert_eq!(all[0]["reason"], "cadence");
    assert!(all.iter().any(|kept| kept["commit"] == lab.early.as_str()));

    let shown = data(&lab.sandbox, &["snapshot", "show", &lab.step(), "--at", &lab.early]);
    let files_of = |value: &Value| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let row = |file: &Value| (text(&file["path"]), text(&file["change"]));
        value.as_array().expect("a list").iter().map(row).collect()
    };
    let added = |name: &str| (name.to_owned(), "added".to_owned());
    let expected = [added("keep"), added("one"), added("sub/old")];
    assert_eq!(files_of(&shown["contents"]["files"]), expected);
    assert!(
        shown["contents"]["message"].as_str().is_some_and(|text| text.contains("Piton-Step: a"))
    );

    let diff =
        |more: &[&str]| data(&lab.sandbox, &[&["snapshot", "diff", &lab.step()], more].concat());
    let base = diff(&["--base", "--at", &lab.early, "sub"]);
    assert_eq!(files_of(&base["files"]), [added("sub/old")]);
    assert!(base["patch"].as_str().is_some_and(|text| text.contains("+old\n")), "{base:#}");
    lab.write("new", "edited since\n");
    lab.write("untracked", "by hand\n");
    let now = diff(&["--worktree"]);
    let changed = ("new".to_owned(), "modified".to_owned());
    assert_eq!(files_of(&now["files"]), [changed, added("untracked")]);
    let patch = now["patch"].as_str().expect("a patch");
    assert!(patch.contains("-fresh\n+edited since\n") && patch.contains("+by hand\n"), "{patch}");
    assert!(diff(&["--stat"])["patch"].is_null());

    let touched = files.differences(&OnDisk::of(&lab.tree));
    assert_eq!(touched, ["", "new", "untracked"].map(PathBuf::from), "only by this test");
    assert_eq!(before.differences(&OnDisk::of(&lab.sandbox.path(".git"))), Vec::<PathBuf>::new());
    let text = lab.sandbox.piton(&["snapshot", "list"]).output().success().stdout;
    assert!(text.contains("in progress") && text.contains(&lab.early[..8]), "{text}");
    let patch = lab.sandbox.piton(&["snapshot", "diff", &lab.step(), "--base"]).output().success();
    assert!(patch.stdout.starts_with("diff --git "), "{patch}");
}

#[test]
fn one_is_found_by_id_ref_number_or_time() {
    let lab = Lab::new();
    let all = lab.list();
    let last = all.last().expect("some");
    let at = |text: &str| {
        let shown = data(&lab.sandbox, &["snapshot", "show", &lab.step(), "--at", text]);
        shown["snapshot"]["commit"].clone()
    };
    let early = all.iter().find(|kept| kept["commit"] == lab.early.as_str()).expect("listed");
    let number = format!("{}/{}", early["fence"], early["n"].as_str().expect("text"));
    for name in [&lab.early[..10], early["refname"].as_str().expect("text"), &number] {
        assert_eq!(at(name), early["commit"], "{name}");
    }
    assert_eq!(at(early["at"].as_str().expect("a time")), early["commit"]);
    assert_eq!(at("0s"), last["commit"]);
    let run = lab.run();
    for (args, code) in [
        (vec!["snapshot", "show", run.as_str(), "--at", "zz"], "E096"),
        (vec!["snapshot", "show", run.as_str(), "--at", "2001-01-01T00:00:00Z"], "E096"),
        (vec!["snapshot", "show", "nowhere/a"], "E064"),
        (vec!["snapshot", "restore", run.as_str(), "--to", "x", "no/such"], "E096"),
        (vec!["snapshot", "restore", run.as_str(), "../x"], "E071"),
    ] {
        let (exit, found, message) = refused(&lab.sandbox, &args);
        assert_eq!((exit, found.as_str()), (2, code), "{args:?}: {message}");
    }
    let unknown = format!("{run}/b");
    assert_eq!(refused(&lab.sandbox, &["snapshot", "list", &unknown]).1, "E059");
}

#[test]
fn a_new_folder_gets_the_files_and_a_used_one_is_refused() {
    let lab = Lab::new();
    let to = lab.sandbox.root().join("elsewhere/deep");
    let text = to.to_str().expect("text");
    let done = lab.restore(&["--at", &lab.early, "--to", text]);
    assert_eq!(done["files"], 5, "with those of the base: {done:#}");
    assert_eq!(fs::read_to_string(to.join("one")).expect("there"), "first\n");
    assert_eq!(fs::read_to_string(to.join("sub/old")).expect("there"), "old\n");
    lab.assert_second_state();
    let again = ["snapshot", "restore", &lab.step(), "--to", text];
    assert_eq!(refused(&lab.sandbox, &again).1, "E071");
    let part = lab.sandbox.root().join("part");
    lab.restore(&["--at", &lab.early, "--to", part.to_str().expect("text"), "sub"]);
    let names: Vec<_> =
        fs::read_dir(&part).expect("there").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["sub"]);
}

#[test]
fn a_worktree_goes_back_whole_and_forth_again() {
    let lab = Lab::new();
    let (run, committed) = (lab.run(), lab.head());
    let ignored = lab.tree.join("piton.toml");
    fs::write(&ignored, "ignored").expect("writable");
    let done = lab.restore(&["--at", &lab.early]);
    lab.assert_first_state();
    assert_eq!(done["branch"], format!("piton/{run}/step/a"));
    assert_ne!(lab.head(), committed, "the agent's commit came later");
    let status = lab.sandbox.git_in(&lab.tree, &["status", "--porcelain"]);
    assert_eq!(status, "?? keep\n?? one\n?? sub/", "as it was then");
    assert_eq!(fs::read_to_string(&ignored).expect("there"), "ignored", "not piton's to touch");
    let before = done["before"].as_str().expect("a ref").to_owned();
    let found = lab.list();
    let found = found.iter().find(|kept| kept["refname"] == before.as_str()).expect("listed");
    assert_eq!((&found["known_by"], &found["reason"]), (&"ref".into(), &"reset".into()));

    // And back: nothing of the later state was lost, not even the commit.
    lab.restore(&["--at", &before]);
    lab.assert_second_state();
    assert_eq!(lab.head(), committed);
    assert_eq!(lab.sandbox.git_in(&lab.tree, &["status", "--porcelain"]), "?? new");
}

#[test]
fn newer_edits_are_listed_and_replaced_only_on_request() {
    let lab = Lab::new();
    lab.write("one", "by a person\n");
    lab.write("mine", "by a person\n");
    let args = ["snapshot", "restore", &lab.step(), "--at", &lab.early, "--json"];
    let out = lab.sandbox.piton(&args).output().expect_code(4).json();
    assert_eq!(out["issues"][0]["code"], "E098");
    assert_eq!(out["data"]["edited"], serde_json::json!(["mine", "one"]));
    assert_eq!(lab.read("one").as_deref(), Some("by a person\n"), "untouched");
    // A file that nobody edited since needs no such word.
    lab.restore(&["--at", &lab.early, "sub/old"]);
    let done = lab.restore(&["--at", &lab.early, "--yes"]);
    lab.assert_first_state();
    let before = done["before"].as_str().expect("a ref");
    let text = |path: &str| lab.sandbox.git(&["cat-file", "blob", &format!("{before}:{path}")]);
    assert_eq!((text("one"), text("mine")), ("by a person".into(), "by a person".into()));
}

#[test]
fn edits_after_a_crash_are_refused_however_often_it_is_said() {
    let (sandbox, run) = begun();
    let early =
        step(&view(&sandbox), "a")["snapshot"]["commit"].as_str().expect("an id").to_owned();
    orphaned(&sandbox, run);
    let tree = worktree(&sandbox);
    for path in ["one", "mine"] {
        fs::write(tree.join(path), "by a person\n").expect("writable");
    }
    // The first time buries the attempt, and keeps what is there; that is no leave to replace it.
    for _ in 0..2 {
        let args = ["snapshot", "restore", "--at", &early, "--json"];
        let out = sandbox.piton(&args).output().expect_code(4).json();
        assert_eq!(out["data"]["edited"], serde_json::json!(["mine", "one"]));
        assert_eq!(kept(&sandbox, "a", "mine"), "by a person", "buried, and kept");
    }
    data(&sandbox, &["snapshot", "restore", "--at", &early, "--yes"]);
    assert_eq!(fs::read_to_string(tree.join("one")).expect("there"), "first\n");
    // Nor does undoing take what came later for its own.
    fs::write(tree.join("one"), "by a person again\n").expect("writable");
    for _ in 0..2 {
        assert_eq!(refused(&sandbox, &["undo"]).1, "E101");
    }
    fs::write(tree.join("one"), "first\n").expect("writable");
    data(&sandbox, &["undo"]);
    assert_eq!(fs::read_to_string(tree.join("mine")).expect("there"), "by a person\n");
    sandbox.wait_no_processes();
}

#[test]
fn a_repository_within_the_worktree_is_kept_and_told_as_not_landed() {
    let sandbox = crate::sandbox();
    let made = "git init -q vendor; cd vendor; echo a > a; git add a; \
        git -c user.name=x -c user.email=x commit -qm i; echo d > b; cd ..; \
        git init -q unborn; echo u > unborn/u; echo top > top";
    lay_plan(&sandbox, &plan(&sandbox, &[command_step(&sandbox, "a", made, "")]));
    let out = sandbox.piton(&["run", "plan.toml", "--trust"]).output().success();
    let shown = view(&sandbox);
    let handle = shown["handle"].as_str().expect("a handle").to_owned();
    let landed = sandbox.git(&["ls-tree", "-r", "--name-only", &format!("piton/{handle}/run")]);
    assert!(landed.contains("top") && !landed.contains("vendor"), "{landed}");
    for path in ["vendor/a", "vendor/b", "unborn/u", "top"] {
        assert!(!kept(&sandbox, "a", path).is_empty(), "{path}");
    }
    let told = "not landed: unborn/ (a repository of its own), vendor/ (a repository of its own)";
    let name = step(&shown, "a")["snapshot"]["refname"].as_str().expect("a snapshot");
    assert!(out.stderr.contains(told) && out.stderr.contains(name), "{}", out.stderr);
    let attempt = &step(&shown, "a")["attempts"][0];
    assert_eq!(attempt["not_landed"][1]["path"], "vendor/");
    let show = sandbox.piton(&["show", &handle, "a"]).output().success().stdout;
    assert!(show.contains("not landed: vendor/ (a repository of its own)"), "{show}");
    assert_eq!(events_named(&sandbox, "checkpointed").len(), 1);
    // The command that was told brings them back.
    let to = sandbox.root().join("back");
    let step = format!("{handle}/a");
    data(&sandbox, &["snapshot", "restore", &step, "--to", to.to_str().expect("text")]);
    assert_eq!(fs::read_to_string(to.join("vendor/b")).expect("there"), "d\n");
}

#[test]
fn whoever_works_there_is_not_disturbed() {
    let (sandbox, run) = begun();
    let (exit, code, message) = refused(&sandbox, &["snapshot", "restore", "--yes"]);
    assert_eq!((exit, code.as_str()), (1, "E097"), "{message}");
    // A dead one is buried first, and what it left is kept.
    orphaned(&sandbox, run);
    let done = data(&sandbox, &["snapshot", "restore", "--yes"]);
    assert_eq!(done["removed"], serde_json::json!([]));
    assert_eq!(events_named(&sandbox, "interrupted").len(), 1);
    sandbox.wait_no_processes();
}

#[test]
fn a_worktree_that_is_gone_is_made_again() {
    let lab = Lab::new();
    fs::remove_dir_all(&lab.tree).expect("removable");
    let done = lab.restore(&["--at", &lab.early]);
    assert_eq!(done["before"], Value::Null, "nothing was there");
    lab.assert_first_state();
}

/// The copy that a restore makes first is newer than everything else, and not what is meant.
#[test]
fn the_newest_is_of_the_work_however_often_it_is_restored() {
    let lab = Lab::new();
    lab.write("one", "broken\n");
    for _ in 0..3 {
        lab.restore(&["--yes"]);
        lab.assert_second_state();
    }
    let is_copy = |kept: &&Value| kept["reason"] == "reset";
    let all = lab.list();
    let first = all.iter().find(is_copy).expect("the copy is listed");
    assert!(all.iter().rev().take(1).all(|kept| is_copy(&kept)), "it is the last one");
    let id = first["commit"].as_str().expect("an id");
    lab.restore(&["--yes", "--at", id]);
    assert_eq!(lab.read("one").as_deref(), Some("broken\n"), "by its id");
    assert_ne!(
        data(&lab.sandbox, &["snapshot", "show", &lab.step()])["snapshot"]["reason"],
        "reset"
    );
    assert_ne!(
        data(&lab.sandbox, &["snapshot", "show", &lab.step(), "--at", "0s"])["snapshot"]["reason"],
        "reset"
    );
}

#[test]
fn a_killed_restore_of_the_newest_said_again_is_finished() {
    for point in ["restore.kept", "restore.file"] {
        let lab = Lab::new();
        lab.write("one", "broken\n");
        lab.write("new", "broken\n");
        let crash = lab.sandbox.crash_point(point, 1);
        let step = lab.step();
        let whole = ["snapshot", "restore", &step, "--yes"];
        let restore = lab.sandbox.piton(&whole).crash_at(&crash).spawn();
        crash.wait_hit();
        restore.kill9();
        lab.restore(&["--yes"]);
        lab.assert_second_state();
    }
}

/// What could not be read is only met after the first files were written.
#[test]
fn a_restore_that_fails_is_taken_back() {
    let lab = Lab::new();
    let (git, committed) = (|args: &[&str]| lab.sandbox.git(args), lab.head());
    let scratch = lab.sandbox.root().join("scratch");
    git(&["worktree", "add", "--detach", "-q", scratch.to_str().expect("text"), &lab.early]);
    fs::write(scratch.join("one"), "half\n").expect("writable");
    fs::write(scratch.join("zz"), "lost\n").expect("writable");
    lab.sandbox.git_in(&scratch, &["add", "-A"]);
    lab.sandbox.git_in(&scratch, &["commit", "-q", "-m", "broken"]);
    let broken = lab.sandbox.git_in(&scratch, &["rev-parse", "HEAD"]);
    let lost = git(&["rev-parse", &format!("{broken}:zz")]);
    git(&["update-ref", &format!("refs/piton/{}/a/7/99", lab.run()), &broken]);
    let object = format!(".git/objects/{}/{}", &lost[..2], &lost[2..]);
    fs::remove_file(lab.sandbox.path(object)).expect("a loose object");

    let before = OnDisk::of(&lab.tree);
    let args = ["snapshot", "restore", &lab.step(), "--at", &broken];
    let (exit, code, message) = refused(&lab.sandbox, &args);
    assert_eq!((exit, code.as_str()), (1, "E099"), "{message}");
    assert!(message.contains("taken back"), "{message}");
    lab.assert_second_state();
    assert_eq!(lab.head(), committed);
    let touched = before.differences(&OnDisk::of(&lab.tree));
    assert!(touched.contains(&PathBuf::from("one")), "the fault: it had been written: {touched:?}");
    let journal = lab.sandbox.git_in(&lab.tree, &["rev-parse", "--absolute-git-dir"]);
    assert!(!PathBuf::from(journal).join("piton-restoring.json").exists());
}

/// Killed at a point, the restore is finished by saying it again, or by resume.
fn killed_at(point: &str) {
    for by_resume in [false, true] {
        let lab = Lab::new();
        let whole = ["snapshot", "restore", &lab.step(), "--at", &lab.early];
        // The second file: one is put, others are not.
        let n = if point == "restore.file" { 2 } else { 1 };
        let crash = lab.sandbox.crash_point(point, n);
        let restore = lab.sandbox.piton(&whole).crash_at(&crash).spawn();
        let pid = crash.wait_hit();
        assert_eq!(pid, restore.pid(), "the restore itself is stopped");
        restore.kill9();
        let intended = point != "restore.kept";
        if by_resume && intended {
            // The agent begins its script again in the tree that it is given, and waits in the first state.
            for mark in ["n1", "w1"] {
                fs::remove_file(lab.sandbox.mark(mark)).expect("there");
            }
            let resumed = lab.sandbox.piton(&["resume"]).spawn();
            lab.sandbox.wait_exists(lab.sandbox.mark("w1"));
            lab.assert_first_state();
            assert_eq!(lab.head(), lab.sandbox.git(&["rev-parse", "main"]), "{point}");
            lab.sandbox.piton(&["stop", "--now"]).output().success();
            resumed.wait();
        } else {
            lab.sandbox.piton(&whole).arg("--yes").output().success();
            lab.assert_first_state();
            let status = lab.sandbox.git_in(&lab.tree, &["status", "--porcelain"]);
            assert_eq!(status, "?? keep\n?? one\n?? sub/", "{point}");
            data(&lab.sandbox, &["undo"]);
            lab.assert_second_state();
        }
        // Whatever happened: what was there before is kept, with its commit.
        let by_ref = lab.list().into_iter().find(|kept| kept["known_by"] == "ref").expect("kept");
        let text = |path: &str| {
            let name = by_ref["refname"].as_str().expect("a ref");
            lab.sandbox.git(&["cat-file", "blob", &format!("{name}:{path}")])
        };
        assert_eq!((text("one"), text("new")), ("second".into(), "fresh".into()), "{point}");
    }
}

#[test]
fn work_at_risk_is_told_while_it_runs_and_what_was_saved_afterwards() {
    let sandbox = crate::sandbox();
    let script = "write one first; write two second; touch {w1}; hang";
    lay_plan(&sandbox, &plan(&sandbox, &[agent_step(&sandbox, "a", script, "")]));
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).env("PITON_SNAPSHOT_EVERY", "1h");
    let run = run.spawn();
    sandbox.wait_exists(sandbox.mark("w1"));
    let risk = || step(&view(&sandbox), "a")["at_risk"].clone();
    sandbox.wait_until("a second at risk", || risk()["seconds"].as_u64() >= Some(1));
    let seen = risk();
    assert_eq!((&seen["stretched"], &seen["interval_ms"]), (&false.into(), &3_600_000.into()));
    let text = sandbox.piton(&["status", "test"]).output().success().stdout;
    assert!(text.contains("not saved yet: the last "), "{text}");
    assert!(events_named(&sandbox, "checkpointed").is_empty(), "the log does not grow by it");

    orphaned(&sandbox, run);
    // Found dead, and not yet recorded: since when no snapshot has the work is still known.
    let dead = view(&sandbox);
    assert_eq!(
        (&step(&dead, "a")["status"], &step(&dead, "a")["recorded"]),
        (&"interrupted".into(), &false.into())
    );
    assert_eq!(step(&dead, "a")["at_risk"]["saved_at"], seen["saved_at"]);
    let text = sandbox.piton(&["status", "test"]).output().success().stdout;
    assert!(text.contains("no snapshot yet"), "{text}");
    sandbox.piton(&["stop"]).output().success();
    let kept = step(&view(&sandbox), "a")["snapshot"].clone();
    let name = kept["refname"].as_str().expect("a ref");
    let text = sandbox.piton(&["show"]).output().success().stdout;
    assert!(text.contains("saved: 2 changed files, ") && text.contains(name), "{text}");
}

#[test]
fn snapshots_that_fail_are_told_and_tried_again() {
    let (sandbox, run) = begun();
    // Where snapshots are packed there is a file, as after somebody's mistake.
    let (packing, away) = (sandbox.path(".git/piton/pack"), sandbox.path(".git/piton/pack-away"));
    fs::rename(&packing, &away).expect("it is there");
    fs::write(&packing, "in the way").expect("writable");
    fs::write(sandbox.mark("n1"), "").expect("writable");
    sandbox.wait_exists(sandbox.mark("w2"));
    let failing = || step(&view(&sandbox), "a")["at_risk"]["failing"].clone();
    sandbox.wait_until("a failure", || failing().is_string());
    let why = failing();
    let text = sandbox.piton(&["status", "test"]).output().success().stdout;
    assert!(text.contains("snapshots fail: ") && text.contains("not saved yet: "), "{text}");
    assert!(why.as_str().expect("text").contains("pack"), "it says what is wrong: {why}");
    assert_eq!(step(&view(&sandbox), "a")["status"], "running", "the agent goes on");
    fs::remove_file(&packing).expect("it was there");
    fs::rename(&away, &packing).expect("it was there");
    sandbox.wait_until("a snapshot of the second state", || has(&sandbox, "new"));
    sandbox.wait_until("nothing fails any more", || failing().is_null());
    let text = sandbox.piton(&["status", "test"]).output().success().stdout;
    assert!(!text.contains("snapshots fail"), "{text}");
    sandbox.piton(&["stop"]).output().success();
    run.wait();
}

#[test]
fn a_merge_under_way_is_shown_with_how_to_go_on() {
    let lab = Lab::new();
    let git = |args: &[&str]| lab.sandbox.git(args);
    git(&["checkout", "--quiet", "-b", "side"]);
    lab.sandbox.write("one", "theirs\n");
    git(&["add", "one"]);
    git(&["commit", "--quiet", "-m", "theirs"]);
    let theirs = git(&["rev-parse", "side"]);
    git(&["checkout", "--quiet", "main"]);
    let mut merge = lab.sandbox.command("git");
    let merge = merge.current_dir(&lab.tree).args(["merge", "side"]).output().expect("git runs");
    assert!(!merge.status.success(), "it really conflicts");
    // Kept before anything is put back over it.
    lab.restore(&["--at", &lab.early, "--yes"]);
    let before = lab.list().into_iter().find(|kept| kept["known_by"] == "ref").expect("kept");
    let at = before["commit"].as_str().expect("an id");
    let shown = data(&lab.sandbox, &["snapshot", "show", &lab.step(), "--at", at]);
    let begun = &shown["contents"]["operation"];
    assert_eq!(begun["what"], "merge");
    assert_eq!(begun["commits"], serde_json::json!([["MERGE_HEAD", theirs]]));
    let args = ["snapshot", "show", &lab.step(), "--at", at];
    let text = lab.sandbox.piton(&args).output().success();
    assert!(text.stdout.contains("a merge was under way: MERGE_HEAD"), "{text}");
    assert!(text.stderr.contains("&& git commit -m"), "{text}");
    // Put back, it is told once more: nothing of git's says so.
    let args = ["snapshot", "restore", &lab.step(), "--at", at, "--yes"];
    let text = lab.sandbox.piton(&args).output().success();
    let told = "a merge was under way: MERGE_HEAD";
    assert!(text.stderr.contains(told) && text.stderr.contains("not begun again"), "{text}");
    assert!(text.stderr.contains("&& git commit -m"), "{text}");
}

#[test]
fn an_edit_between_two_attempts_is_kept_before_the_next_one_begins() {
    let lab = Lab::new();
    lab.write("one", "by a person\n");
    for mark in ["n1", "w1"] {
        fs::remove_file(lab.sandbox.mark(mark)).expect("there");
    }
    let resumed = lab.sandbox.piton(&["resume"]).env("PITON_SNAPSHOT_EVERY", "1h").spawn();
    lab.sandbox.wait_exists(lab.sandbox.mark("w1"));
    assert_eq!(lab.read("one").as_deref(), Some("first\n"), "the agent has replaced it");
    let all = lab.list();
    let texts = all.iter().map(|kept| {
        let name = kept["refname"].as_str().expect("a ref");
        lab.sandbox.git(&["cat-file", "blob", &format!("{name}:one")])
    });
    assert!(texts.into_iter().any(|text| text == "by a person"), "{all:#?}");
    lab.sandbox.piton(&["stop", "--now"]).output().success();
    resumed.wait();
}

#[test]
fn a_branch_shows_the_last_snapshot_and_never_moves_over_a_persons_commit() {
    let (sandbox, run) =
        begun_with("[snapshot]\nbranch = 'wip/{run}/{step}'\nbranch_every = '1s'\n");
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    let branch = format!("wip/{handle}/a");
    sandbox
        .wait_until("the branch", || sandbox.try_git(&["rev-parse", "--verify", &branch]).is_ok());
    assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{branch}:one")]), "first");
    fs::write(sandbox.mark("n1"), "").expect("writable");
    sandbox.wait_exists(sandbox.mark("w2"));
    sandbox.piton(&["stop"]).output().success();
    run.wait();
    assert_eq!(
        sandbox.git(&["cat-file", "blob", &format!("{branch}:one")]),
        "second",
        "at the end, too"
    );

    let theirs =
        sandbox.git(&["commit-tree", "-m", "mine", "-p", &branch, &format!("{branch}^{{tree}}")]);
    sandbox.git(&["update-ref", &format!("refs/heads/{branch}"), &theirs]);
    fs::write(worktree(&sandbox).join("one"), "again\n").expect("writable");
    let resumed = sandbox.piton(&["resume"]).spawn();
    sandbox.wait_until("another snapshot", || {
        events_named(&sandbox, "checkpointed").last().is_some_and(|last| last["fence"] != 2)
    });
    sandbox.piton(&["stop", "--now"]).output().success();
    resumed.wait();
    assert_eq!(sandbox.git(&["rev-parse", &branch]), theirs);
}

#[test]
fn a_branch_grows_by_a_commit_for_each_snapshot_and_goes_with_clean() {
    let sandbox = crate::sandbox();
    sandbox.write("piton.toml", "[snapshot]\nbranch = 'wip/{run}/{step}'\n");
    let work =
        "for n in 70 75 80; do echo $n > one; piton checkpoint --progress $n --file one; done";
    lay_plan(&sandbox, &plan(&sandbox, &[command_step(&sandbox, "a", work, "")]));
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().success();
    let branch = format!("wip/{}/a", view(&sandbox)["handle"].as_str().expect("a handle"));
    let base = view(&sandbox)["base"].as_str().expect("a base").to_owned();
    let since = format!("{base}..{branch}");
    let log = |format: &str| sandbox.git(&["log", "--reverse", format, &since]);
    insta::assert_snapshot!(log("--format=%s"), @r"
    piton: snapshot of a at a checkpoint (70%)
    piton: snapshot of a at a checkpoint (75%)
    piton: snapshot of a at a checkpoint (80%)
    ");
    assert_eq!(log("--format=%B").matches("file: one").count(), 3);
    assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{branch}~1:one")]), "75");
    sandbox.piton(&["merge"]).output().success();
    sandbox.piton(&["clean", "--apply"]).output().success();
    assert!(sandbox.try_git(&["rev-parse", "--verify", &branch]).is_err());
    sandbox.piton(&["undo"]).output().success();
    assert!(sandbox.try_git(&["rev-parse", "--verify", &branch]).is_ok());
}

#[test]
fn old_snapshots_go_and_the_kept_ones_outlive_a_gc() {
    let (sandbox, run) = begun_with("[snapshot]\nkeep = 1\n");
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    let taken = || events_named(&sandbox, "checkpointed").len();
    let listed = || data(&sandbox, &["snapshot", "list", &handle])["pruned"].clone();
    let before = taken();
    fs::write(sandbox.mark("n1"), "").expect("writable");
    sandbox.wait_until("more snapshots", || taken() > before);
    assert_eq!(listed(), 0, "nothing of an unfinished step goes");
    fs::write(sandbox.mark("n2"), "").expect("writable");
    run.wait().success();
    sandbox.wait_no_processes();
    let listed = data(&sandbox, &["snapshot", "list", &handle]);
    assert_eq!(listed["pruned"].as_u64(), Some(taken() as u64 - 1), "{listed:#}");
    // `clean` lets go what there is by then, and looks without.
    let name = format!("refs/piton/{handle}/a/2/9001");
    let last = listed["snapshots"][0]["commit"].as_str().expect("an id");
    let old = ["commit-tree", "-m", "old", &format!("{last}^{{tree}}")];
    let old = sandbox.git(&old);
    sandbox.git(&["update-ref", &name, &old]);
    assert_eq!(
        data(&sandbox, &["clean"])["old_snapshots"],
        1,
        "by its age: the sandbox's commits are old"
    );
    assert_eq!(data(&sandbox, &["clean", "--apply"])["old_snapshots"], 1);
    assert!(sandbox.try_git(&["rev-parse", "--verify", &name]).is_err());
    sandbox.git(&["reflog", "expire", "--expire=now", "--all"]);
    sandbox.git(&["gc", "-q", "--prune=now"]);
    sandbox.git(&["fsck", "--no-dangling"]);
    let to = sandbox.root().join("restored");
    data(&sandbox, &["snapshot", "restore", &handle, "--to", to.to_str().expect("text")]);
    assert_eq!(fs::read_to_string(to.join("one")).expect("there"), "second\n");
}

#[test]
fn a_restore_is_undone_unless_something_newer_is_in_the_way() {
    let lab = Lab::new();
    let committed = lab.head();
    lab.restore(&["--at", &lab.early]);
    lab.assert_first_state();
    lab.write("one", "by a person since\n");
    let (exit, code, message) = refused(&lab.sandbox, &["undo"]);
    assert_eq!((exit, code.as_str()), (1, "E101"), "{message}");
    assert_eq!(lab.read("one").as_deref(), Some("by a person since\n"));
    lab.write("one", "first\n");
    let undone = data(&lab.sandbox, &["undo"]);
    assert_eq!(undone["deed"], "restore");
    lab.assert_second_state();
    assert_eq!(lab.head(), committed);
    assert_eq!(refused(&lab.sandbox, &["undo"]).1, "E100", "nothing more to undo");
    // Of some files alone.
    lab.restore(&["--at", &lab.early, "one"]);
    assert_eq!(lab.read("one").as_deref(), Some("first\n"));
    data(&lab.sandbox, &["undo"]);
    lab.assert_second_state();
}

#[test]
fn a_restore_that_was_worked_on_since_is_not_undone_over_that() {
    let lab = Lab::new();
    lab.restore(&["--at", &lab.early]);
    lab.assert_first_state();
    // Somebody looks around, and comes back.
    let branch = lab.sandbox.git_in(&lab.tree, &["branch", "--show-current"]);
    lab.sandbox.git_in(&lab.tree, &["checkout", "-q", "-b", "mine"]);
    let out = lab.sandbox.piton(&["undo"]).output().expect_code(1);
    assert!(out.stderr.contains(&format!("is on branch mine by now, not on {branch}")), "{out}");
    lab.assert_first_state();
    lab.sandbox.git_in(&lab.tree, &["switch", "-q", &branch]);

    fs::remove_file(lab.sandbox.mark("w2")).expect("it was made");
    let again = lab.sandbox.piton(&["resume"]).spawn();
    lab.sandbox.wait_exists(lab.sandbox.mark("w2"));
    lab.sandbox.piton(&["stop"]).output().success();
    again.wait();
    let before = OnDisk::of(&lab.tree);
    let out = lab.sandbox.piton(&["undo"]).output().expect_code(1);
    assert!(out.stderr.contains("was worked on since"), "{out}");
    assert!(out.stderr.contains(&format!("piton snapshot restore {} --at ", lab.step())), "{out}");
    assert_eq!(before.differences(&OnDisk::of(&lab.tree)), Vec::<PathBuf>::new());
}

at_every_point! {
    every_point_of_a_restore_has_its_test: points_of(|_, who| who == Who::Restorer), killed_at;
    killed_at_kept: "restore.kept",
    killed_at_intended: "restore.intended",
    killed_at_file: "restore.file",
    killed_at_files_put: "restore.files-put",
    killed_at_index_put: "restore.index-put",
    killed_at_head_moved: "restore.head-moved",
    killed_at_flushed: "restore.flushed",
}
