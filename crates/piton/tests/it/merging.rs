//! What a run has changed, shown and merged, with the real binary: forward, by a commit, as one commit;
//! refused where somebody would lose something; killed at every durable action and said again.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

use piton_testkit::crash::points_of;
use piton_testkit::runs::{
    command_step, data, events, events_named, lay_plan, plan, refused, view,
};
use piton_testkit::{Sandbox, Who};
use serde_json::{Value, json};

/// A run of two steps that is completed: `one.txt` and `two.txt` are new, `README.md` has a line more.
fn ran() -> Sandbox {
    let sandbox = crate::sandbox();
    let steps = [
        command_step(&sandbox, "one", "echo 1 > one.txt", ""),
        command_step(
            &sandbox,
            "two",
            "echo 2 > two.txt; echo more >> README.md",
            "needs = ['one']",
        ),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().success();
    sandbox
}

/// A run of one step in a repository of an odd shape: every verb that names paths answers, and the checkout
/// comes along with its branch.
#[track_caller]
fn merges_where(make: impl FnOnce(&Sandbox) -> PathBuf) -> (Sandbox, PathBuf) {
    let sandbox = crate::sandbox();
    let step = command_step(&sandbox, "one", "echo 1 > one.txt", "");
    lay_plan(&sandbox, &plan(&sandbox, &[step]));
    let repo = make(&sandbox);
    let said = |args: &[&str]| {
        sandbox.piton(args).arg("--json").cwd(&repo).output().success().json()["data"].clone()
    };
    said(&["run", "plan.toml", "--trust"]);
    for verb in [&["show"][..], &["worktree", "list"], &["clean"], &["merge", "--dry-run"]] {
        said(verb);
    }
    assert_eq!(said(&["merge"])["way"], "fast_forward");
    assert_eq!(fs::read_to_string(repo.join("one.txt")).expect("it came along"), "1\n");
    assert_eq!(sandbox.git_in(&repo, &["status", "--porcelain"]), "");
    (sandbox, repo)
}

#[test]
fn a_git_directory_that_lies_apart_is_merged_in_from_everywhere() {
    let (sandbox, repo) = merges_where(|sandbox| {
        sandbox.git(&["init", "-q", "--separate-git-dir", "../apart.git"]);
        assert!(sandbox.path(".git").is_file(), "the fault");
        sandbox.repo()
    });
    let inner = repo.join(".piton/inner");
    sandbox.git(&["worktree", "add", "-q", "--detach", inner.to_str().expect("text")]);
    let seen = sandbox.piton(&["merge", "--dry-run", "--json"]).cwd(&inner).output().success();
    assert_eq!(seen.json()["data"]["checkout"], json!(repo));
    // Nothing leads from there to the main worktree: it is named, and nothing is to be moved.
    let outer = sandbox.root().join("outer");
    sandbox.git(&["worktree", "remove", "--force", inner.to_str().expect("text")]);
    sandbox.git(&["worktree", "add", "-q", "--detach", outer.to_str().expect("text")]);
    sandbox.git(&["reset", "-q", "--hard", "HEAD~1"]);
    let refused = sandbox.piton(&["merge"]).cwd(&outer).output().expect_code(1);
    assert!(refused.stderr.contains("go to the main worktree"), "{refused}");
    assert!(!refused.stderr.contains("`mv "), "{refused}");
}

#[test]
fn a_submodule_is_merged_in() {
    merges_where(|sandbox| {
        let outer = sandbox.root().join("outer");
        fs::create_dir(&outer).expect("a folder");
        sandbox.git_in(&outer, &["init", "-q"]);
        let allow = ["-c", "protocol.file.allow=always"];
        let add = ["submodule", "--quiet", "add", "../repo", "sub"];
        sandbox.git_in(&outer, &[&allow[..], &add].concat());
        fs::copy(sandbox.path("plan.toml"), outer.join("sub/plan.toml")).expect("a plan");
        outer.join("sub")
    });
}

#[test]
fn a_path_with_a_line_break_or_without_text_is_merged_in() {
    for name in [&b"new\nline"[..], b"caf\xe9"] {
        merges_where(|sandbox| {
            let odd = sandbox.root().join(OsStr::from_bytes(name));
            fs::rename(sandbox.repo(), &odd).expect("it can be moved");
            odd
        });
    }
}

fn tip(sandbox: &Sandbox, branch: &str) -> String {
    sandbox.git(&["rev-parse", "--verify", branch])
}

fn run_tip(sandbox: &Sandbox) -> String {
    tip(sandbox, view(sandbox)["branch"].as_str().expect("a branch"))
}

/// Branch, index, files, and what was recorded.
fn state(sandbox: &Sandbox) -> (String, String, String, usize) {
    let files = sandbox.git(&["status", "--porcelain", "--ignored", "--untracked-files=all"]);
    (tip(sandbox, "main"), sandbox.git(&["ls-files", "--stage"]), files, events(sandbox).len())
}

/// The checkout has what the run has landed, and nothing else has changed.
#[track_caller]
fn assert_merged(sandbox: &Sandbox) {
    assert_eq!(sandbox.git(&["status", "--porcelain"]), "");
    assert_eq!(sandbox.read("one.txt"), "1\n");
    assert_eq!(sandbox.read("two.txt"), "2\n");
    assert!(sandbox.read("README.md").ends_with("more\n"));
    assert_eq!(sandbox.tree_of("main"), sandbox.tree_of(&run_tip(sandbox)));
    let merged = events_named(sandbox, "merged");
    assert_eq!(merged.len(), 1, "{merged:?}");
    let (run, tip) = (view(sandbox), tip(sandbox, "main"));
    assert_eq!((&run["merged"]["into"], &run["merged"]["commit"]), (&json!("main"), &json!(tip)));
}

#[test]
fn a_branch_is_moved_forward_and_its_checkout_comes_along() {
    let sandbox = ran();
    sandbox.write("mine.txt", "not in git");
    let before = state(&sandbox);
    let dry = data(&sandbox, &["merge", "--dry-run"]);
    assert_eq!((&dry["way"], &dry["merged"]), (&json!("fast_forward"), &json!(false)));
    assert_eq!(state(&sandbox), before, "looking moves nothing");
    let merged = data(&sandbox, &["merge"]);
    assert_eq!((&merged["way"], &merged["into"]), (&json!("fast_forward"), &json!("main")));
    assert_eq!(merged["to"], run_tip(&sandbox).as_str());
    assert_eq!(sandbox.read("mine.txt"), "not in git");
    std::fs::remove_file(sandbox.path("mine.txt")).expect("it is there");
    assert_merged(&sandbox);

    // Again is harmless; and it is told.
    let before = state(&sandbox);
    assert_eq!(data(&sandbox, &["merge"])["way"], "nothing");
    assert_eq!(state(&sandbox), before);
    let shown = sandbox.piton(&["show"]).output().success().stdout;
    assert!(shown.contains("merged into main"), "{shown}");
}

#[test]
fn a_file_that_was_only_touched_is_as_it_was() {
    let sandbox = ran();
    sandbox.git(&["update-index", "--refresh"]);
    let readme = File::options().append(true).open(sandbox.path("README.md")).expect("it is there");
    readme.set_modified(SystemTime::UNIX_EPOCH).expect("its time can be set");
    assert_eq!(sandbox.git(&["diff-files", "--name-only"]), "README.md", "the fault");
    data(&sandbox, &["merge"]);
    assert_merged(&sandbox);
}

#[test]
fn a_merge_commit_and_one_commit_of_everything() {
    for (flag, parents) in [("--no-ff", 2), ("--squash", 1)] {
        let sandbox = ran();
        let from = tip(&sandbox, "main");
        let merged = data(&sandbox, &["merge", flag]);
        assert_eq!(merged["to"], tip(&sandbox, "main").as_str());
        let listed = sandbox.git(&["log", "-1", "--format=%P", "main"]);
        let listed: Vec<&str> = listed.split(' ').collect();
        assert_eq!((listed.len(), listed[0]), (parents, from.as_str()), "{flag}");
        let message = sandbox.git(&["log", "-1", "--format=%B", "main"]);
        assert!(message.contains("- two: ") && message.contains("Piton-Run: "), "{message}");
        assert_merged(&sandbox);
        assert_eq!(data(&sandbox, &["merge", flag])["way"], "nothing", "{flag}");
        assert_eq!(data(&sandbox, &["merge"])["way"], "nothing", "{flag}");
    }
}

#[test]
fn both_sides_are_brought_together() {
    let sandbox = ran();
    sandbox.write("other.txt", "theirs\n");
    sandbox.commit("somebody works on");
    let merged = data(&sandbox, &["merge"]);
    assert_eq!(merged["way"], "merge");
    assert_eq!(
        (sandbox.read("one.txt"), sandbox.read("other.txt")),
        ("1\n".into(), "theirs\n".into())
    );
    assert_eq!(sandbox.git(&["status", "--porcelain"]), "");
}

#[test]
fn what_the_run_began_from_is_moved_whatever_is_checked_out() {
    let sandbox = ran();
    sandbox.git(&["switch", "--quiet", "-c", "elsewhere"]);
    sandbox.write("README.md", "somebody's own work\n");
    let elsewhere = tip(&sandbox, "elsewhere");
    let would = sandbox.piton(&["merge", "--dry-run"]).output().success();
    assert!(would.stdout.contains("not checked out: `git switch main`"), "{}", would.stdout);
    let merged = data(&sandbox, &["merge"]);
    assert_eq!((&merged["into"], tip(&sandbox, "elsewhere")), (&json!("main"), elsewhere));
    assert_eq!((&merged["way"], &merged["checkout"]), (&json!("fast_forward"), &Value::Null));
    assert_eq!(tip(&sandbox, "main"), run_tip(&sandbox));
    assert_eq!(sandbox.read("README.md"), "somebody's own work\n");
    assert!(!sandbox.exists("one.txt"));
    let (exit, code, _) = refused(&sandbox, &["merge", "--into", "nowhere"]);
    assert_eq!((exit, code.as_str()), (2, "E071"));
    sandbox.git(&["branch", "--quiet", "-D", "main"]);
    let (exit, code, message) = refused(&sandbox, &["merge"]);
    assert_eq!((exit, code.as_str()), (2, "E071"));
    assert!(message.contains("main, from which the run began, is gone"), "{message}");
}

#[test]
fn what_would_be_lost_refuses_and_nothing_is_changed() {
    let sandbox = ran();
    let refuse = |code: &str, part: &str| {
        let before = state(&sandbox);
        for verb in [&["merge", "--dry-run"][..], &["merge"], &["merge", "--squash"]] {
            let (exit, told, message) = refused(&sandbox, verb);
            assert_eq!((exit, told.as_str()), (1, code), "{message}");
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(state(&sandbox), before, "{part}");
    };
    let readme = sandbox.read("README.md");
    sandbox.write("README.md", "unsaved\n");
    refuse("E088", "README.md");
    sandbox.git(&["add", "README.md"]);
    refuse("E088", "README.md");
    sandbox.write("README.md", &readme);
    sandbox.git(&["add", "README.md"]);
    // Not known to git, or ignored by it: it is somebody's all the same.
    let exclude = sandbox.read(".git/info/exclude");
    sandbox.write(".git/info/exclude", &format!("{exclude}one.txt\n"));
    for file in ["two.txt", "one.txt"] {
        sandbox.write(file, "mine\n");
        refuse("E088", file);
        assert_eq!(sandbox.read(file), "mine\n");
        std::fs::remove_file(sandbox.path(file)).expect("it is there");
    }
    // Both have changed the same.
    sandbox.write("README.md", "theirs\n");
    sandbox.commit("somebody works on");
    refuse("E087", "README.md");
    assert!(events_named(&sandbox, "merge_intended").is_empty());
    sandbox.git(&["reset", "--quiet", "--hard", "HEAD~1"]);
    data(&sandbox, &["merge"]);
    assert_merged(&sandbox);
}

/// A file that the run has not changed, with one content in its commit, one staged and one on disk.
fn changed_elsewhere() -> Sandbox {
    let sandbox = ran();
    sandbox.write("notes.txt", "committed\n");
    sandbox.commit("notes");
    sandbox.write("notes.txt", "staged\n");
    sandbox.git(&["add", "notes.txt"]);
    sandbox.write("notes.txt", "on disk\n");
    sandbox
}

/// The merge is done, and what was not committed is as it was.
#[track_caller]
fn assert_merged_around(sandbox: &Sandbox) {
    assert_eq!(sandbox.git(&["status", "--porcelain"]), "MM notes.txt");
    assert_eq!(sandbox.git(&["show", ":notes.txt"]), "staged");
    assert_eq!(sandbox.read("notes.txt"), "on disk\n");
    assert_eq!(sandbox.read("one.txt"), "1\n");
    assert!(sandbox.read("README.md").ends_with("more\n"));
    assert_eq!(sandbox.git(&["show", "main:notes.txt"]), "committed");
}

#[test]
fn uncommitted_changes_in_other_files_stay_as_they_are() {
    let sandbox = changed_elsewhere();
    data(&sandbox, &["merge", "--dry-run"]);
    data(&sandbox, &["merge"]);
    assert_merged_around(&sandbox);
}

#[test]
fn uncommitted_changes_in_other_files_outlive_a_merge_that_was_killed_half_way() {
    let sandbox = changed_elsewhere();
    let crash = sandbox.crash_point("merge.intended", 1);
    let one = sandbox.piton(&["merge"]).crash_at(&crash).spawn();
    crash.wait_hit();
    one.kill9();
    sandbox.write("README.md", "to");
    let merged = data(&sandbox, &["merge"]);
    let aside = merged["aside"].as_str().expect("where it is").to_owned();
    assert_eq!(sandbox.read(format!("{aside}/README.md")), "to");
    assert_merged_around(&sandbox);
}

#[test]
fn a_run_with_open_steps_is_merged_only_when_told() {
    let sandbox = crate::sandbox();
    let steps = [
        command_step(&sandbox, "one", "echo 1 > one.txt", ""),
        command_step(&sandbox, "two", "false", "needs = ['one']\nretries = 0"),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(1);
    let (exit, code, message) = refused(&sandbox, &["merge"]);
    assert_eq!((exit, code.as_str()), (1, "E089"), "{message}");
    assert_eq!(data(&sandbox, &["merge", "--partial"])["way"], "fast_forward");
    assert_eq!(sandbox.read("one.txt"), "1\n");
}

/// Merges and is killed at a point; said again it ends the same.
fn killed_at(point: &str) {
    for flag in [&[][..], &["--no-ff"], &["--squash"]] {
        let sandbox = ran();
        let args = [&["merge"], flag].concat();
        let crash = sandbox.crash_point(point, 1);
        let one = sandbox.piton(&args).crash_at(&crash).spawn();
        assert_eq!(crash.wait_hit(), one.pid(), "{point}");
        one.kill9();
        let acknowledged = events(&sandbox);
        let merged = data(&sandbox, &args);
        assert_eq!(merged["to"], tip(&sandbox, "main").as_str(), "{point} {flag:?}");
        assert!(events(&sandbox).starts_with(&acknowledged), "{point}");
        let since = format!("{}..main", view(&sandbox)["base"].as_str().expect("a base"));
        let own = sandbox.git(&["rev-list", "--first-parent", "--count", &since]);
        let wanted = if flag.is_empty() { "2" } else { "1" };
        assert_eq!(own, wanted, "{point} {flag:?}: once");
        assert_merged(&sandbox);
    }
}

at_every_point! {
    every_point_of_a_merge_has_its_test: points_of(|_, who| who == Who::Merger), killed_at;
    killed_when_a_merge_is_intended: "merge.intended",
    killed_when_the_checkout_is_updated: "merge.tree-updated",
    killed_when_the_branch_has_moved: "merge.ref-moved",
}

#[test]
fn a_checkout_that_was_left_half_updated_is_finished_and_nothing_of_it_is_lost() {
    let sandbox = ran();
    let crash = sandbox.crash_point("merge.intended", 1);
    let one = sandbox.piton(&["merge"]).crash_at(&crash).spawn();
    crash.wait_hit();
    one.kill9();
    // As git leaves it when it is killed at work: a file that is done, one that is torn, its lock.
    sandbox.write("one.txt", "1\n");
    sandbox.write("README.md", "to");
    sandbox.write(".git/index.lock", "");
    let merged = data(&sandbox, &["merge"]);
    assert_merged(&sandbox);
    let aside = merged["aside"].as_str().expect("where it is").to_owned();
    assert_eq!(sandbox.read(format!("{aside}/README.md")), "to");
}

#[test]
fn what_was_changed_is_shown() {
    let sandbox = ran();
    // Programs of the repository that git would run for a diff.
    sandbox.git(&["config", "diff.external", "touch ran-external"]);
    sandbox.git(&["config", "diff.x.textconv", "touch ran-textconv; cat"]);
    sandbox.write(".git/info/attributes", "*.txt diff=x\n");
    let before = events(&sandbox);
    let patch = sandbox.piton(&["diff"]).output().success().stdout;
    for part in ["+++ b/one.txt", "+++ b/two.txt", "+more", "+1"] {
        assert!(patch.contains(part), "no {part:?} in\n{patch}");
    }
    let stat = sandbox.piton(&["diff", "plan.toml", "--stat"]).output().success().stdout;
    assert!(stat.contains("3 files changed") && !stat.contains("+++"), "{stat}");
    let one = sandbox.piton(&["diff", "plan.toml", "one"]).output().success().stdout;
    assert!(one.contains("one.txt") && !one.contains("two.txt"), "{one}");
    let two = data(&sandbox, &["diff", "plan.toml", "two"]);
    let paths: Vec<&str> = two["files"]
        .as_array()
        .expect("files")
        .iter()
        .map(|file| file["path"].as_str().expect("a path"))
        .collect();
    assert_eq!(paths, ["README.md", "two.txt"]);
    assert_eq!(two["files"][1]["added"], 1);
    assert!(two["patch"].as_str().expect("a patch").contains("+2"));
    assert_eq!(refused(&sandbox, &["diff", "plan.toml", "nope"]).1, "E059");
    for ran in ["ran-external", "ran-textconv"] {
        assert!(!sandbox.exists(ran) && !sandbox.exists(format!(".git/{ran}")), "{ran}");
    }
    assert_eq!(events(&sandbox), before);
}

#[test]
fn work_that_is_not_landed_is_shown_as_its_last_snapshot_has_it() {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, "[plan]\nname = 'x'\n[[step]]\nid = 'a'\n[[step]]\nid = 'b'\n");
    let one = piton_testkit::runs::tree(&sandbox, "one");
    data(&sandbox, &["claim", "plan.toml", "--worktree", &one]);
    sandbox.write(format!("{one}/half.ts"), "größe\n");
    data(&sandbox, &["checkpoint", "plan.toml", "a", "--worktree", &one]);
    let shown = sandbox.piton(&["diff", "plan.toml", "a"]).output().success();
    assert!(shown.stdout.contains("+größe") && shown.stderr.contains("refs/piton/"), "{shown}");
    let nothing = sandbox.piton(&["diff", "plan.toml", "b"]).output().success();
    assert!(nothing.stdout.is_empty() && nothing.stderr.contains("nothing"), "{nothing}");
}

#[test]
fn a_step_that_was_done_again_shows_what_it_brought_then() {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, "[plan]\nname = 'test'\n[[step]]\nid = 'a'\n[[step]]\nid = 'b'\n");
    let bring = |id: &str, file: &str| {
        let made = data(&sandbox, &["worktree", "create", "plan.toml", id]);
        let path = made["path"].as_str().expect("a path");
        let claim = data(&sandbox, &["claim", "plan.toml", "--worktree", path, "--step", id]);
        let (fence, tree) = (claim["fence"].to_string(), std::path::Path::new(path));
        sandbox.write(tree.join(file), "text\n");
        sandbox.git_in(tree, &["add", "-A"]);
        sandbox.git_in(tree, &["commit", "--quiet", "-m", file]);
        let commit = sandbox.git_in(tree, &["rev-parse", "HEAD"]);
        data(&sandbox, &["complete", "plan.toml", id, "--fence", &fence, "--commit", &commit]);
    };
    let files = |id: &str| {
        let shown = data(&sandbox, &["diff", "plan.toml", id]);
        let files = shown["files"].as_array().expect("files").iter();
        files.map(|file| file["path"].as_str().expect("a path").to_owned()).collect::<Vec<_>>()
    };
    bring("a", "first.txt");
    assert_eq!(files("a"), ["first.txt"]);
    data(&sandbox, &["reset", "plan.toml", "a", "--force", "--reason", "not good enough"]);
    bring("a", "second.txt");
    assert_eq!(files("a"), ["second.txt"], "what it brought before is told no more");
    bring("b", "third.txt");
    assert_eq!((files("a"), files("b")), (vec!["second.txt".into()], vec!["third.txt".into()]));
}

#[test]
fn what_lands_after_a_merge_is_not_merged_and_nothing_is_not_either() {
    let sandbox = crate::sandbox();
    let steps = [
        command_step(&sandbox, "one", "echo 1 > one.txt", ""),
        command_step(
            &sandbox,
            "two",
            "test -e ../../../../go && echo 2 > two.txt",
            "needs = ['one']\nretries = 0",
        ),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    data(&sandbox, &["open", "plan.toml"]);
    let nothing = data(&sandbox, &["merge", "--partial"]);
    assert_eq!((&nothing["way"], &nothing["merged"]), (&json!("nothing"), &json!(false)));
    assert_eq!(events_named(&sandbox, "merged").len(), 0);
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(1);
    data(&sandbox, &["merge", "--partial"]);
    assert!(view(&sandbox)["merged"].is_object());
    sandbox.write("go", "");
    data(&sandbox, &["reset", "plan.toml", "two"]);
    sandbox.piton(&["resume"]).output().success();
    let shown = view(&sandbox);
    assert_eq!((&shown["status"], &shown["merged"]), (&json!("completed"), &Value::Null));
    let next = data(&sandbox, &[])["next"].to_string();
    assert!(next.contains("piton merge"), "{next}");
}
