//! Which worktrees go, each with its proof, and which stay, each with its reason.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use piton_testkit::runs::{OnDisk, command_step, lay_plan, plan, worktree};
use serde_json::Value;

use super::{Lab, Print, kill_at, safe_ones, stopped};

/// Makes a worktree, of a step that is completed, unsafe to remove in one of many ways; says what the
/// reason must mention.
fn spoil(lab: &Lab, kind: usize, id: &str, tree: &Path) -> (PathBuf, &'static str) {
    let (sandbox, here) = (&lab.sandbox, tree.to_owned());
    let git = |args: &[&str]| sandbox.git_in(tree, args);
    match kind {
        0 => {
            sandbox.write(tree.join("src/lib.txt"), "changed\n");
            (here, "1 file is in no snapshot")
        }
        1 => {
            sandbox.write(tree.join("new/file.txt"), "new\n");
            (here, "1 file is in no snapshot")
        }
        2 => {
            sandbox.write(tree.join("src/lib.txt"), "staged\n");
            git(&["add", "-A"]);
            (here, "1 file is in no snapshot")
        }
        3 => {
            fs::remove_file(tree.join("src/lib.txt")).expect("it is there");
            (here, "1 file is in no snapshot")
        }
        4 => {
            let file = tree.join("src/lib.txt");
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("permissions");
            (here, "1 file is in no snapshot")
        }
        5 => {
            lab.commit(tree, "mine.txt", &format!("only here: {id}\n"));
            (here, "1 commit is on no other branch")
        }
        6 => {
            git(&["checkout", "--quiet", "--detach"]);
            (here, "detached")
        }
        7 => {
            git(&["worktree", "lock", "--reason", "on a stick", tree.to_str().expect("text")]);
            (here, "on a stick")
        }
        8 => {
            git(&["bisect", "start"]);
            (here, "bisection")
        }
        9 => {
            lab.commit(tree, "one.txt", "1\n");
            let stopped = sandbox
                .command("git")
                .current_dir(tree)
                .args(["rebase", "-x", "false", "HEAD^"])
                .output();
            assert!(!stopped.expect("git").status.success());
            (here, "rebase")
        }
        10 => {
            git(&["merge", "--quiet", "--no-ff", "--no-commit", "apart"]);
            (here, "merge")
        }
        11 => {
            let nested = tree.join("src/nested");
            fs::create_dir_all(&nested).expect("a folder");
            sandbox.git_in(&nested, &["init", "--quiet"]);
            (here, "no snapshot can hold src/nested")
        }
        12 => {
            let branch = git(&["branch", "--show-current"]);
            let other = sandbox.root().join(format!("other-{id}"));
            let other = other.to_str().expect("text");
            sandbox.git(&["worktree", "add", "--quiet", "--force", other, &branch]);
            (here, "is checked out in")
        }
        13 => {
            git(&["checkout", "--quiet", "-b", &format!("mine-{id}")]);
            (here, "not piton's")
        }
        14 => {
            let moved = sandbox.root().join(format!("moved-{id}"));
            fs::rename(tree, &moved).expect("on one file system");
            sandbox.write(tree.join("notes.txt"), "somebody else's\n");
            (here, "not a worktree of this repository")
        }
        15 => {
            let start = ["-c", "sleep 1000 > /dev/null 2>&1 &"];
            let own = sandbox.command("sh").args(start).current_dir(tree).status();
            assert!(own.expect("a process of the user").success());
            (here, "works in it")
        }
        16 => {
            symlink("/etc/passwd", tree.join("src/link")).expect("a link");
            (here, "1 file is in no snapshot")
        }
        17 => {
            fs::write(
                sandbox.repo().join(".git/worktrees").join(entry(tree)).join("index.lock"),
                "",
            )
            .expect("a lock");
            (here, "index.lock is there")
        }
        other => unreachable!("there is no kind {other}"),
    }
}

const KINDS: usize = 18;

/// The name of a worktree in git's list.
fn entry(tree: &Path) -> String {
    let text = fs::read_to_string(tree.join(".git")).expect("its .git file");
    let path = PathBuf::from(text.trim_end().trim_start_matches("gitdir: "));
    path.file_name().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn of_122_worktrees_the_three_that_are_provably_safe_go_and_come_back() {
    const ALL: usize = 122;
    // Beside those of the steps: one of an unknown run, one of nobody's, one that is not piton's.
    const STEPS: usize = ALL - 3;
    let lab = Lab::new(STEPS);
    let sandbox = &lab.sandbox;
    sandbox.git(&["branch", "apart"]);
    let apart = sandbox.root().join("apart");
    sandbox.git(&["worktree", "add", "--quiet", apart.to_str().expect("text"), "apart"]);
    lab.commit(&apart, "apart.txt", "apart\n");
    sandbox.git(&["worktree", "remove", apart.to_str().expect("text")]);
    let safe = safe_ones(&lab);
    let mut expected: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for n in 3..STEPS {
        let id = format!("s{n}");
        let (path, why) = match n % 6 {
            // Not completed: nobody has begun, or somebody is at it.
            0 if n % 4 == 0 => (lab.open_tree(&id), "what it is for is pending"),
            0 => {
                let tree = lab.open_tree(&id);
                lab.claim(&id, &tree);
                (tree, "is claimed")
            }
            _ => {
                let tree = lab.completed(&id);
                spoil(&lab, n % KINDS, &id, &tree)
            }
        };
        expected.insert(path, why);
    }
    let root = safe[0].0.ancestors().nth(3).expect("the root").to_owned();
    let unknown = root.join("many-lost-run/run");
    sandbox.git(&["worktree", "add", "--quiet", "--detach", unknown.to_str().expect("text")]);
    expected.insert(unknown, "unknown to this store");
    let foreign = root.join("many-lost-run/step/own");
    fs::create_dir_all(&foreign).expect("a folder");
    sandbox.git_in(&foreign, &["init", "--quiet"]);
    sandbox.write(foreign.join("precious.txt"), "precious\n");
    expected.insert(foreign, "a repository of its own");
    let users = sandbox.root().join("users");
    sandbox.git(&["worktree", "add", "--quiet", "-b", "users", users.to_str().expect("text")]);
    assert_eq!(safe.len() + expected.len() + 1, ALL);

    // Looking touches nothing.
    let before = OnDisk::of(sandbox.root());
    let verdicts = lab.verdicts(&[]);
    let listed = lab.data(&["worktree", "list"]);
    let captured = |path: &&PathBuf| !path.starts_with("captured");
    let touched = before.differences(&OnDisk::of(sandbox.root()));
    assert_eq!(touched.iter().filter(captured).collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    for (path, proof) in &safe {
        assert_eq!(verdicts[path], ("goes".to_owned(), (*proof).to_owned()), "{}", path.display());
    }
    for (path, why) in &expected {
        let (verdict, told) = &verdicts[path];
        assert_eq!(verdict, "stays", "{}", path.display());
        assert!(told.contains(why), "{}: {told:?} does not say {why:?}", path.display());
    }
    assert!(!verdicts.contains_key(&users), "what is not piton's is not even listed");
    let rows = listed["worktrees"].as_array().expect("rows");
    assert_eq!(rows.len(), verdicts.len());

    let prints = safe.each_ref().map(|(path, _)| Print::of(sandbox, path));
    let (branches, worktrees) = (lab.branches(), lab.worktrees());
    let others = |from: &BTreeMap<PathBuf, &str>| -> Vec<OnDisk> {
        from.keys().chain([&users]).map(|path| OnDisk::of(path)).collect()
    };
    let before = others(&expected);
    let cleaned = lab.data(&["clean", "--apply"]);
    assert_eq!(cleaned["removed"].as_array().expect("rows").len(), 3, "{cleaned:#}");
    assert_eq!(cleaned["failed"], Value::Array(Vec::new()));
    for (path, _) in &safe {
        assert!(!path.exists(), "{}", path.display());
        let listed = format!("worktree {}\n", path.display());
        assert!(!lab.worktrees().contains(&listed), "{listed}");
    }
    let after = others(&expected);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.differences(after), Vec::<PathBuf>::new());
    }
    assert!(lab.verdicts(&[]).values().all(|(verdict, _)| verdict == "stays"));
    let again = lab.data(&["clean", "--apply"]);
    assert_eq!(again["removed"], Value::Array(Vec::new()), "nothing is left to remove");

    // A gc that spares nothing takes nothing of what was removed.
    sandbox.git(&["reflog", "expire", "--expire=now", "--all"]);
    sandbox.git(&["gc", "--quiet", "--prune=now"]);
    lab.data(&["undo"]);
    for ((path, _), print) in safe.iter().zip(&prints) {
        assert_eq!(Print::of(sandbox, path), *print, "{}", path.display());
    }
    assert_eq!((lab.branches(), lab.worktrees()), (branches, worktrees));
    let (code, error, _) = piton_testkit::runs::refused(sandbox, &["undo"]);
    assert_eq!((code, error.as_str()), (2, "E100"));
    sandbox.kill_all();
}

#[test]
fn a_snapshot_that_only_a_ref_names_is_a_proof_too() {
    let (lab, handle) = stopped();
    let tree = worktree(&lab.sandbox);
    lab.sandbox.write(tree.join("late.txt"), "late\n");
    let verdict = || lab.verdicts(&["--interrupted"])[&tree].clone();
    let (stays, why) = verdict();
    assert!(stays == "stays" && why.contains("in no snapshot"), "{why}");
    // What is there is kept before something is put back, and that is known by its ref alone.
    lab.data(&["snapshot", "restore", &format!("{handle}/second"), "--yes"]);
    assert!(!tree.join("late.txt").exists());
    lab.data(&["undo"]);
    assert_eq!(lab.sandbox.read(tree.join("late.txt")), "late\n");
    assert_eq!(verdict(), ("goes".to_owned(), "snapshotted".to_owned()));
    lab.data(&["clean", "--interrupted", "--apply"]);
    lab.data(&["undo"]);
    assert_eq!(lab.sandbox.read(tree.join("late.txt")), "late\n");
}

/// A run that was stopped in the middle of a step: its work is in a snapshot, and nowhere else.
#[test]
fn an_interrupted_worktree_goes_only_when_asked_for_and_snapshotted() {
    let sandbox = crate::sandbox();
    let script = "echo half > half.txt; touch \"$READY\"; sleep 1000";
    let ready = sandbox.mark("ready");
    let step = command_step(
        &sandbox,
        "build",
        &script.replace("$READY", ready.to_str().expect("text")),
        "",
    );
    lay_plan(&sandbox, &plan(&sandbox, &[step]));
    let lab = Lab { sandbox };
    let running = lab.sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    lab.sandbox.wait_exists(&ready);
    let live = lab.verdicts(&["--interrupted"]);
    let (tree, (verdict, why)) = live.first_key_value().expect("the run's worktree");
    assert_eq!(verdict, "stays");
    assert!(why.contains("being worked on"), "{why}");
    lab.data(&["stop"]);
    running.wait();
    let (verdict, why) = &lab.verdicts(&[])[tree];
    assert_eq!(verdict, "stays");
    assert_eq!(why, "interrupted");
    let listed = lab.sandbox.piton(&["worktree", "list"]).output().success();
    assert!(listed.stdout.contains("! ") && listed.stdout.contains("user_interrupt"), "{listed}");
    assert_eq!(lab.verdicts(&["--interrupted"])[tree], ("goes".into(), "snapshotted".into()));
    let young = &lab.verdicts(&["--interrupted", "--older-than", "7d"])[tree];
    assert!(young.1.contains("more recently"), "{young:?}");
    // One more byte that is in no snapshot, and it stays.
    lab.sandbox.write(tree.join("half.txt"), "more\n");
    let (verdict, why) = &lab.verdicts(&["--interrupted"])[tree];
    assert_eq!((verdict.as_str(), why.as_str()), ("stays", "1 file is in no snapshot"));
    lab.sandbox.write(tree.join("half.txt"), "half\n");
    let print = Print::of(&lab.sandbox, tree);
    let branch = lab.sandbox.git_in(tree, &["branch", "--show-current"]);
    lab.data(&["clean", "--interrupted", "--apply"]);
    assert!(!tree.exists());
    lab.sandbox.git(&["rev-parse", "--verify", &format!("refs/heads/{branch}")]);
    lab.data(&["undo"]);
    assert_eq!(Print::of(&lab.sandbox, tree), print);
}

#[test]
fn what_has_landed_is_merged_once_it_is_and_not_before() {
    let lab = Lab::new(1);
    let tree = lab.open_tree("s0");
    let fence = lab.claim("s0", &tree);
    let commit = lab.commit(&tree, "new.txt", "new\n");
    lab.data(&["complete", "plan.toml", "s0", "--fence", &fence, "--commit", &commit]);
    let told = || {
        let row = lab.data(&["worktree", "list"])["worktrees"][0]["counts"]["unmerged"].clone();
        (row, lab.verdicts(&[])[&tree].1.clone())
    };
    assert_eq!(told(), (1.into(), "landed".to_owned()));
    lab.data(&["merge", "--squash"]);
    assert_eq!(told(), (0.into(), "merged".to_owned()));
    // Also without the run's branch.
    let branch = piton_testkit::runs::branch(&lab.sandbox);
    lab.sandbox.git(&["branch", "--quiet", "-D", &branch]);
    assert_eq!(told(), (0.into(), "merged".to_owned()));
}

#[test]
fn the_branches_of_a_merged_run_go_and_come_back() {
    for how in [&["merge"][..], &["merge", "--squash"]] {
        let (lab, handle) = stopped();
        lab.open_gate();
        lab.sandbox.piton(&["resume"]).output().success();
        let before = lab.branches();
        assert_eq!(before.matches("refs/heads/piton/").count(), 3, "{before}");
        lab.data(&["clean", "--apply"]);
        assert_eq!(lab.branches(), before, "nothing is merged");
        lab.data(how);
        let before = lab.branches();
        let listed = lab.sandbox.piton(&["clean"]).output().success();
        assert!(listed.stdout.contains(&format!("branch piton/{handle}/run: merged")), "{listed}");
        kill_at(&lab, &["clean", "--apply"], "clean.branch-gone", 1);
        let cleaned = lab.data(&["clean", "--apply"]);
        assert_eq!(cleaned["branches"].as_array().map(Vec::len), Some(3), "{cleaned}");
        assert!(!lab.branches().contains("refs/heads/piton/"), "{}", lab.branches());
        // What it has brought is told all the same.
        assert_eq!(lab.data(&["diff", &handle])["files"].as_array().map(Vec::len), Some(2));
        assert_eq!(lab.data(&["merge", &handle])["way"], "nothing");
        lab.sandbox.git(&["gc", "--quiet", "--prune=now"]);
        kill_at(&lab, &["undo"], "undo.tree-back", 1);
        let undone = lab.data(&["undo"]);
        assert_eq!(undone["put_back"].as_array().map(Vec::len), Some(3), "{undone}");
        assert_eq!(lab.branches(), before, "{how:?}");
        assert_eq!(lab.sandbox.git(&["for-each-ref", "refs/piton/cleaned"]), "");
    }
}
