//! Snapshots: what they keep, what they leave untouched, what they admit to have left out.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use piton_core::event::Snapshot;
use piton_git::GitError;
use piton_git::snapshot::{Ask, keep, operation, read_back, rebuild};
use piton_git::worktree::{TreeState, Worktree};

use crate::lab::{BRANCH, Lab, files, kill_when, oid, prints, put, read};

fn git_dir(lab: &Lab, tree: &Worktree) -> PathBuf {
    PathBuf::from(lab.git_in(tree.path(), &["rev-parse", "--absolute-git-dir"]))
}

/// Names and kinds of file that tend to be forgotten.
fn zoo(root: &Path) {
    let path = |name: &str| root.join(name);
    put(&path("README.md"), "changed\r\nwith carriage returns\r\n");
    put(&path("binary"), [0, 159, 146, 150, 255]);
    put(&path("empty"), "");
    put(&path("-dash"), "x");
    put(&path(":(exclude)magic"), "x");
    put(&path("new\nline"), "x");
    put(&path("\"quoted\" \\ name"), "x");
    put(&root.join(OsStr::from_bytes(b"caf\xe9")), "latin");
    put(&path("deep/er/still/file"), "x");
    put(&path("script.sh"), "#!/bin/sh\n");
    fs::set_permissions(path("script.sh"), fs::Permissions::from_mode(0o755)).expect("ours");
    symlink("nowhere/at/all", path("dangling")).expect("writable");
    symlink(".", path("loop")).expect("writable");
    fs::remove_file(path("src/main.rs")).expect("removable");
    symlink("README.md", path("src/main.rs")).expect("writable");
}

lab_test! {
    fn nothing_is_touched(lab) {
        let tree = lab.tree();
        put(&tree.path().join("staged"), "staged");
        lab.git_in(tree.path(), &["add", "staged"]);
        put(&tree.path().join("staged"), "and edited");
        zoo(tree.path());
        let dir = git_dir(lab, &tree);
        let before = (files(tree.path(), true), prints(&dir, true), lab.git(&["status", "--porcelain"]));
        let branches = lab.git(&["for-each-ref", "refs/heads"]);
        let kept = lab.taken(&tree, 1);
        let after = (files(tree.path(), true), prints(&dir, true), lab.git(&["status", "--porcelain"]));
        assert_eq!(before, after);
        assert_eq!(lab.git(&["for-each-ref", "refs/heads"]), branches);
        assert_eq!(lab.git(&["rev-parse", "refs/piton/x/a/7/1"]), kept.commit.as_str());
        let said = lab.git(&["log", "-1", "--format=%B", "refs/piton/x/a/7/1"]);
        assert_eq!(said, "snapshot\n\nPiton-Run: x");
        let parent = |n: u32| lab.git(&["rev-parse", &format!("refs/piton/x/a/7/1^{n}")]);
        assert_eq!(parent(1), lab.head(tree.path()).as_str());
        let index = lab.git_in(tree.path(), &["write-tree"]);
        assert_eq!(lab.git(&["rev-parse", &format!("{}^{{tree}}", parent(2))]), index);
        assert_eq!(kept.omitted, []);
        assert_eq!(lab.git(&["stash", "list"]), "");
        let left: Vec<_> = fs::read_dir(lab.root().join("outside")).expect("there").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

lab_test! {
    fn a_snapshot_comes_back_byte_for_byte(lab) {
        // Line ends that git would change, were it asked.
        lab.write(".gitattributes", "*.md text eol=lf\n");
        lab.commit("attributes");
        let tree = lab.tree();
        zoo(tree.path());
        fs::remove_file(tree.path().join(".gitignore")).expect("removable");
        let (before, head) = (files(tree.path(), false), lab.head(tree.path()));
        let kept = lab.taken(&tree, 1);
        read_back(&lab.found(), &kept).expect("readable");
        assert_eq!(kept.changed, 14);
        tree.reset_to(BRANCH, &head).expect("reset");
        assert_ne!(files(tree.path(), false), before);
        rebuild(&tree, BRANCH, &head, Some(&kept.commit)).expect("restored");
        assert_eq!(files(tree.path(), false), before);
        assert_eq!(lab.head(tree.path()), head);
        assert_eq!(lab.git_in(tree.path(), &["diff", "--cached", "--name-only"]), "");
        // Again, into a worktree made anew.
        fs::remove_dir_all(tree.path()).expect("removable");
        rebuild(&tree, BRANCH, &head, Some(&kept.commit)).expect("restored");
        assert_eq!(files(tree.path(), false), before);
        let again = lab.take_after(&tree, 2, Some(&kept.tree)).expect("taken");
        assert_eq!(again, None, "the same tree on the same commit is not kept twice");
    }
}

lab_test! {
    /// What is ignored is in no snapshot, and a reset leaves it: it stands where a file is to come.
    fn rebuild_moves_aside_what_is_in_its_way(lab) {
        let tree = lab.tree();
        let head = lab.head(tree.path());
        let path = |name: &str| tree.path().join(name);
        fs::remove_file(path(".gitignore")).expect("removable");
        put(&path("notes.log"), "in the snapshot");
        put(&path("target"), "in the snapshot, a file");
        put(&path("deep.log/er"), "in the snapshot, below");
        let kept = lab.taken(&tree, 1);
        tree.reset_to(BRANCH, &head).expect("reset");
        put(&path("notes.log"), "newer, by a person");
        put(&path("target/made"), "a folder, by a person");
        put(&path("deep.log"), "a file, by a person");
        rebuild(&tree, BRANCH, &head, Some(&kept.commit)).expect("rebuilt");
        assert_eq!(read(&path("notes.log")), "in the snapshot");
        assert_eq!(read(&path("target")), "in the snapshot, a file");
        assert_eq!(read(&path("deep.log/er")), "in the snapshot, below");
        let aside = files(&lab.path(".git/piton/aside"), false);
        for kept in ["newer, by a person", "a folder, by a person", "a file, by a person"] {
            assert!(aside.values().any(|file| file.bytes == kept.as_bytes()), "{kept}: {aside:?}");
        }
    }
}

/// The snapshot that the next two tests rebuild.
fn many(lab: &Lab, tree: &Worktree) -> Snapshot {
    for n in 0..400 {
        put(&tree.path().join(format!("many/{n}")), format!("{n}\n"));
    }
    put(&tree.path().join("README.md"), "changed\n");
    lab.taken(tree, 1)
}

lab_test! {
    /// The victim of the next test.
    fn victim(lab) {
        if let Ok(commit) = std::env::var("PITON_LAB_SNAPSHOT") {
            let head = lab.head(&lab.repo());
            rebuild(&lab.tree_at("run"), BRANCH, &head, Some(&oid(&commit))).expect("rebuilt");
        }
    }
}

lab_test! {
    /// Killed for real, with its git, when a file has come or at its end: what it leaves is the whole
    /// snapshot, or counts as missing.
    fn a_half_restored_tree_is_never_taken_for_work(lab) {
        let tree = lab.tree();
        let head = lab.head(tree.path());
        let kept = many(lab, &tree);
        let whole = files(tree.path(), false);
        let stamp = |name: &str| {
            let found = fs::symlink_metadata(tree.path().join(name)).ok()?;
            Some((found.ino(), found.ctime(), found.ctime_nsec()))
        };
        let (mut half, mut finished) = (0, 0);
        // On a busy machine a kill may come late: until both have been seen.
        for round in 0..140 {
            if round >= 14 && half > 0 && finished > 0 {
                break;
            }
            // Into nothing, or into a tree that is there.
            if round % 2 == 0 {
                fs::remove_dir_all(tree.path()).expect("removable");
            }
            let moments = ["", "README.md", "many/0", "many/200", "many/300", "many/99", "never"];
            let moment = moments[round / 2 % moments.len()];
            let before = stamp(moment);
            let mut victim = lab.again("snapshots::victim");
            victim.env("PITON_LAB_SNAPSHOT", kept.commit.as_str());
            // The file is there, and is another one than before.
            kill_when(&mut victim, || stamp(moment).is_some_and(|now| Some(now) != before));
            match tree.state().expect("known") {
                TreeState::Present { .. } => {
                    assert_eq!(files(tree.path(), false), whole, "present, so it is whole");
                    finished += 1;
                }
                TreeState::HalfMade { .. } if tree.path().join("README.md").exists() => {
                    let taken = lab.take(&tree, 2).expect("no failure");
                    assert_eq!(taken, None, "it is not kept");
                    half += usize::from(tree.path().join("many/0").exists());
                    rebuild(&tree, BRANCH, &head, Some(&kept.commit)).expect("by the next");
                    assert_eq!(files(tree.path(), false), whole);
                }
                TreeState::Missing | TreeState::HalfMade { .. } => rebuild(&tree, BRANCH, &head, Some(&kept.commit)).expect("made"),
                other => panic!("{other:?}"),
            }
        }
        assert!(half > 0 && finished > 0, "{half} half, {finished} finished");
    }
}

lab_test! {
    /// A restore that fails leaves the same mark as one that was killed; making the tree anew ends it.
    fn a_restore_that_failed_leaves_a_missing_tree(lab) {
        let tree = lab.tree();
        let head = lab.head(tree.path());
        put(&tree.path().join("work"), "x");
        let kept = lab.taken(&tree, 1);
        let nothing = oid(&"1".repeat(40));
        assert!(rebuild(&tree, BRANCH, &head, Some(&nothing)).is_err(), "the fault");
        assert!(matches!(tree.state(), Ok(TreeState::HalfMade { .. })));
        assert_eq!(lab.take(&tree, 2).expect("no failure"), None);
        tree.create(BRANCH, &head).expect("made");
        assert!(matches!(tree.state().expect("known"), TreeState::Present { .. }));
        lab.git(&["worktree", "lock", "--reason", "mine", tree.path().to_str().expect("text")]);
        rebuild(&tree, BRANCH, &head, Some(&kept.commit)).expect("rebuilt");
        assert_eq!(read(&tree.path().join("work")), "x");
        assert!(lab.git(&["worktree", "list", "--porcelain"]).contains("locked mine"));
    }
}

lab_test! {
    fn the_same_files_are_kept_once_per_commit(lab) {
        let tree = lab.tree();
        put(&tree.path().join("work"), "x");
        let first = lab.taken(&tree, 1);
        assert_eq!(lab.take_after(&tree, 2, Some(&first.tree)).expect("taken"), None);
        assert!(!lab.found().has_refs_under("refs/piton/x/a/7/2").expect("known"));
        lab.commit_in(tree.path(), "by the agent");
        let second = lab.take_after(&tree, 2, Some(&first.tree)).expect("taken").expect("HEAD moved");
        assert_eq!(second.tree, first.tree);
        assert_eq!(lab.git(&["rev-parse", &format!("{}^", second.commit)]), lab.head(tree.path()).as_str());
        let taken = lab.take(&tree, 2);
        assert!(matches!(taken, Err(GitError::RefTaken { .. })), "{taken:?}");
        let third = keep(&tree, &lab.ask(&tree)).expect("taken").expect("something to keep");
        assert_eq!(third.refname, "refs/piton/x/a/7/3");
    }
}

lab_test! {
    fn two_that_keep_at_once_get_a_number_each(lab) {
        let tree = lab.tree();
        put(&tree.path().join("work"), "x");
        let asks = [1, 2, 3, 4].map(|n| Ask { message: format!("by {n}"), ..lab.ask(&tree) });
        let names: BTreeSet<String> = std::thread::scope(|scope| {
            let all = asks.each_ref().map(|ask| scope.spawn(|| keep(&tree, ask)));
            let kept = all.map(|one| one.join().expect("ended").expect("taken").expect("kept"));
            kept.into_iter().map(|kept| kept.refname).collect()
        });
        let wanted = [1, 2, 3, 4].map(|n| format!("refs/piton/x/a/7/{n}"));
        assert_eq!(names.into_iter().collect::<Vec<_>>(), wanted);
    }
}

lab_test! {
    fn a_locked_index_does_not_matter(lab) {
        let tree = lab.tree();
        put(&tree.path().join("work"), "x");
        put(&git_dir(lab, &tree).join("index.lock"), "held");
        assert!(lab.try_git_in(tree.path(), &["add", "-A"]).is_err(), "the fault was not applied");
        let kept = lab.taken(&tree, 1);
        assert!(lab.paths_of(&kept.commit).contains(&"work".to_owned()));
        assert!(git_dir(lab, &tree).join("index.lock").exists());
    }
}

lab_test! {
    fn a_torn_index_does_not_matter(lab) {
        let tree = lab.tree();
        put(&tree.path().join("work"), "x");
        fs::write(git_dir(lab, &tree).join("index"), "torn").expect("writable");
        assert!(lab.try_git_in(tree.path(), &["status"]).is_err(), "the fault was not applied");
        let kept = lab.taken(&tree, 1);
        assert_eq!(lab.paths_of(&kept.commit), [".gitignore", "README.md", "src/main.rs", "work"]);
        assert_eq!(kept.omitted.iter().map(|left| left.path.as_str()).collect::<Vec<_>>(), [".git/index"]);
    }
}

lab_test! {
    fn objects_that_gc_took_are_written_again(lab) {
        let tree = lab.tree();
        put(&tree.path().join("work"), "only in a snapshot that is gone");
        let first = lab.taken(&tree, 1);
        lab.git(&["update-ref", "-d", &first.refname]);
        lab.git(&["gc", "-q", "--prune=now"]);
        let blob = format!("{}:work", first.commit);
        assert!(lab.try_git_in(&lab.repo(), &["show", &blob]).is_err(), "the fault was not applied");
        let second = lab.taken(&tree, 2);
        read_back(&lab.found(), &second).expect("readable");
        lab.git(&["gc", "-q", "--prune=now"]);
        read_back(&lab.found(), &second).expect("a snapshot with its ref outlives gc");
    }
}

lab_test! {
    fn an_edit_within_the_same_instant_is_seen(lab) {
        let tree = lab.tree();
        let file = tree.path().join("file");
        for n in 0..15_u32 {
            put(&file, format!("{:04}", n));
            let kept = lab.taken(&tree, n);
            assert_eq!(lab.git(&["show", &format!("{}:file", kept.commit)]), format!("{n:04}"));
        }
    }
}

lab_test! {
    fn what_the_agent_commits_by_force_is_kept(lab) {
        let tree = lab.tree();
        put(&tree.path().join("a.log"), "ignored");
        lab.taken(&tree, 1);
        lab.git_in(tree.path(), &["add", "-f", "a.log"]);
        put(&tree.path().join("a.log"), "ignored, tracked and changed");
        let kept = lab.taken(&tree, 2);
        let text = lab.git(&["show", &format!("{}:a.log", kept.commit)]);
        assert_eq!(text, "ignored, tracked and changed");
        // And the other way round: no longer tracked, ignored, still there, and in HEAD.
        put(&tree.path().join(".gitignore"), "*.log\nREADME.md\n");
        lab.git_in(tree.path(), &["rm", "-q", "--cached", "README.md"]);
        put(&tree.path().join("README.md"), "private");
        let kept = lab.taken(&tree, 3);
        assert_eq!(lab.git(&["show", &format!("{}:README.md", kept.commit)]), "private");
    }
}

lab_test! {
    /// Nobody but the merge knows the other side by then, and git would collect it.
    fn a_merge_in_progress_can_be_gone_on_with_from_its_snapshot(lab) {
        let tree = lab.tree();
        put(&tree.path().join("README.md"), "ours\n");
        let ours = lab.commit_in(tree.path(), "ours");
        lab.git(&["checkout", "-q", "-b", "side"]);
        lab.write("README.md", "theirs\n");
        lab.commit("theirs");
        let theirs = lab.git(&["rev-parse", "side"]);
        lab.git(&["checkout", "-q", "main"]);
        assert!(lab.try_git_in(tree.path(), &["merge", "side"]).is_err(), "the fault");
        let kept = lab.taken(&tree, 1);
        let begun = operation(&lab.found(), &kept.commit).expect("readable").expect("a merge");
        assert_eq!((begun.what.word(), begun.branch.as_deref()), ("merge", None));
        let [(name, id)] = begun.commits.as_slice() else { panic!("{begun:?}") };
        assert_eq!((name.as_str(), id.as_str()), ("MERGE_HEAD", theirs.as_str()));
        // The same again is nothing new, in this process and in the next one.
        let last = Some(&kept.tree);
        assert!(lab.take_after(&tree, 2, last).expect("taken").is_none());

        lab.git(&["branch", "-q", "-D", "side"]);
        let path = tree.path().to_str().expect("text");
        lab.git(&["worktree", "remove", "--force", path]);
        lab.git(&["reflog", "expire", "--expire=now", "--all"]);
        lab.git(&["gc", "-q", "--prune=now"]);
        read_back(&lab.found(), &kept).expect("whole");
        rebuild(&tree, BRANCH, &ours, Some(&kept.commit)).expect("rebuilt");
        assert!(lab.git_in(tree.path(), &["status"]).contains("both modified"));
        put(&tree.path().join("README.md"), "both\n");
        lab.git_in(tree.path(), &["add", "README.md"]);
        let go_on = begun.go_on().expect("a way to go on");
        let plain = "unset $(env | sed -n 's/^\\(GIT_[A-Z0-9_]*\\)=.*/\\1/p'); export GIT_EDITOR=true";
        lab.sh(tree.path(), &format!("{plain}; {go_on}"));
        let parents = lab.git_in(tree.path(), &["log", "-1", "--format=%P"]);
        assert_eq!(parents, format!("{ours} {theirs}"));
    }
}

lab_test! {
    fn what_git_was_in_the_middle_of_is_told(lab) {
        let tree = lab.tree();
        put(&tree.path().join("README.md"), "ours\n");
        lab.commit_in(tree.path(), "ours");
        let ours = lab.git_in(tree.path(), &["rev-parse", "HEAD"]);
        let branch = lab.git_in(tree.path(), &["symbolic-ref", "HEAD"]);
        lab.write("README.md", "theirs\n");
        lab.commit("theirs");
        let theirs = lab.git(&["rev-parse", "main"]);
        let told = |n: u32| {
            let kept = lab.taken(&tree, n);
            let begun = operation(&lab.found(), &kept.commit).expect("readable");
            // A tree and an index, whatever else: nothing of the order of parents is disturbed.
            assert_eq!(lab.git(&["rev-parse", &format!("{}^1", kept.commit)]),
                lab.git_in(tree.path(), &["rev-parse", "HEAD"]));
            begun.map(|begun| {
                let ids = begun.commits.iter().map(|(name, id)| format!("{name} {id}"));
                (begun.what.word(), ids.collect::<Vec<_>>(), begun.branch.clone())
            })
        };
        assert_eq!(told(1), None);
        let run = |args: &[&str]| lab.try_git_in(tree.path(), args);
        run(&["cherry-pick", &theirs]).expect_err("the fault");
        let picked = vec![format!("CHERRY_PICK_HEAD {theirs}")];
        assert_eq!(told(2), Some(("cherry-pick", picked, None)));
        run(&["cherry-pick", "--abort"]).expect("ended");
        run(&["rebase", "main"]).expect_err("the fault");
        let onto = vec![
            format!("onto {theirs}"), format!("orig-head {ours}"), format!("stopped-sha {ours}")
        ];
        assert_eq!(told(3), Some(("rebase", onto, Some(branch))));
        run(&["rebase", "--abort"]).expect("ended");
        run(&["bisect", "start"]).expect("begun");
        assert_eq!(told(4), Some(("bisect", Vec::new(), None)));
        run(&["bisect", "reset"]).expect("ended");
        // What an agent writes there is not believed, and fails nothing.
        let dir = git_dir(lab, &tree);
        let gone = "1".repeat(ours.len());
        put(&dir.join("MERGE_HEAD"), format!("{gone}\nnonsense\n{theirs}\n; rm -rf /\n"));
        let merged = vec![format!("MERGE_HEAD {theirs}")];
        assert_eq!(told(5), Some(("merge", merged, None)));
        fs::remove_file(dir.join("MERGE_HEAD")).expect("there");
        assert_eq!(told(6), None);
    }
}

lab_test! {
    /// The index is written twice within one tick of the clock, to the same size.
    fn what_is_staged_within_the_same_instant_is_seen(lab) {
        let tree = lab.tree();
        for n in 0..15_u32 {
            put(&tree.path().join("file"), format!("{n:04}"));
            lab.git_in(tree.path(), &["add", "file"]);
            let kept = lab.taken(&tree, n);
            let staged = lab.git(&["show", &format!("{}^2:file", kept.commit)]);
            assert_eq!(staged, format!("{n:04}"));
        }
    }
}

lab_test! {
    /// A name that git refuses costs that name only.
    fn a_path_that_git_refuses_is_left_out_alone(lab) {
        let tree = lab.tree();
        for n in 0..20 {
            put(&tree.path().join(format!("good/{n}")), "x");
        }
        put(&tree.path().join("good/git~1"), "x");
        let plain = lab.try_git_in(tree.path(), &["add", "-A"]);
        assert!(plain.is_err_and(|text| text.contains("git~1")), "the fault was not applied");
        let kept = lab.taken(&tree, 1);
        let good = lab.paths_of(&kept.commit).iter().filter(|path| path.starts_with("good")).count();
        assert_eq!(good, 20);
        let omitted: Vec<_> = kept.omitted.iter().map(|left| left.path.as_str()).collect();
        assert_eq!(omitted, ["good/git~1"]);
        assert!(tree.commit_all(BRANCH, "leftovers").is_err(), "nothing is left out in silence");
    }
}

lab_test! {
    /// The repository's own encoding rule makes git fail on a file: it alone is left out. Snapshots do
    /// not know the rule, so this goes through the leftovers, which are all or nothing.
    fn a_file_that_git_cannot_convert_fails_the_leftovers_but_no_snapshot(lab) {
        lab.write(".gitattributes", "*.utf16 working-tree-encoding=UTF-16\n");
        lab.commit("attributes");
        let tree = lab.tree();
        put(&tree.path().join("bad.utf16"), [0xff, 0xfe, 0x00]);
        put(&tree.path().join("good"), "x");
        assert!(lab.try_git_in(tree.path(), &["add", "-A"]).is_err(), "the fault was not applied");
        let kept = lab.taken(&tree, 1);
        assert_eq!(kept.omitted, []);
        assert!(lab.paths_of(&kept.commit).contains(&"bad.utf16".to_owned()));
        assert!(tree.commit_all(BRANCH, "leftovers").is_err());
    }
}

/// Stops its thread when a test ends, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

lab_test! {
    fn under_churn_no_snapshot_is_empty(lab) {
        let tree = lab.tree();
        for n in 0..50 {
            put(&tree.path().join(format!("stable/{n}")), format!("{n}"));
        }
        let (done, turns) = (AtomicBool::new(false), AtomicU64::new(0));
        let root = tree.path().join("churn");
        std::thread::scope(|scope| {
            let _stop = Stop(&done);
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let turn = turns.fetch_add(1, Ordering::Relaxed);
                    for n in 0..20 {
                        let file = root.join(format!("{}/{n}", turn % 3));
                        put(&file, format!("{turn} {}", "x".repeat((turn as usize % 7) * 900)));
                    }
                    let _ = fs::remove_dir_all(root.join(format!("{}", (turn + 1) % 3)));
                }
            });
            let mut trees = BTreeSet::new();
            let count = if std::env::var_os("PITON_FULL").is_some() { 1000 } else { 100 };
            for n in 0..count {
                let kept = lab.take(&tree, n).expect("taken").expect("something");
                trees.insert(kept.tree.to_string());
                let paths = lab.paths_of(&kept.commit);
                let stable = paths.iter().filter(|path| path.starts_with("stable/")).count();
                assert_eq!(stable, 50);
                assert!(kept.omitted.iter().all(|left| left.path.starts_with("churn")), "{:?}", kept.omitted);
            }
            assert!(trees.len() > count as usize / 4, "the churn was not applied: {}", trees.len());
        });
        lab.git(&["fsck", "--no-dangling"]);
    }
}

lab_test! {
    /// A folder that becomes a link between the look and the reading leads nowhere.
    fn nothing_outside_gets_in_through_a_link(lab) {
        let tree = lab.tree();
        let outside = lab.root().join("outside/deep");
        put(&outside.join("file"), "somebody else's secret");
        let (folder, spare) = (tree.path().join("folder"), lab.root().join("outside/spare"));
        put(&folder.join("deep/file"), "ours");
        let (done, turns) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _stop = Stop(&done);
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    turns.fetch_add(1, Ordering::Relaxed);
                    fs::rename(&folder, &spare).expect("away");
                    std::os::unix::fs::symlink(lab.root().join("outside"), &folder).expect("linked");
                    fs::remove_file(&folder).expect("unlinked");
                    fs::rename(&spare, &folder).expect("back");
                }
            });
            for n in 0..60 {
                // Another file each time, so that there is always something to keep.
                put(&tree.path().join("turn"), format!("{n}"));
                let kept = lab.take(&tree, n).expect("taken").expect("something");
                let held = lab.try_git_in(&lab.repo(), &["show", &format!("{}:folder/deep/file", kept.commit)]);
                assert!(held.as_ref().is_ok_and(|text| text == "ours") || held.is_err(), "{held:?}");
            }
            assert!(turns.load(Ordering::Relaxed) > 60, "the churn was not applied");
        });
    }
}

lab_test! {
    fn read_back_finds_damage(lab) {
        let git = lab.found();
        let tree = lab.tree();
        put(&tree.path().join("work"), "some bytes that were kept");
        let kept = lab.taken(&tree, 1);
        read_back(&git, &kept).expect("whole");
        let packs = fs::read_dir(lab.path(".git/objects/pack")).expect("there").flatten();
        let packs: Vec<_> = packs.map(|e| e.path()).filter(|p| p.extension() == Some("pack".as_ref())).collect();
        let [pack] = packs.as_slice() else { panic!("{packs:?}") };
        let whole = fs::read(pack).expect("readable");
        let damage = |bytes: Option<Vec<u8>>| {
            fs::remove_file(pack).expect("removable");
            if let Some(bytes) = bytes {
                fs::write(pack, bytes).expect("writable");
            }
            let answer = read_back(&git, &kept);
            assert!(matches!(answer, Err(GitError::Damaged { .. })), "{answer:?}");
            let _ = fs::remove_file(pack);
            fs::write(pack, &whole).expect("writable");
        };
        damage(None);
        damage(Some(Vec::new()));
        damage(Some(whole[..whole.len() / 2].to_vec()));
        // Any single byte of what is in the pack, from after its head to before its own sum.
        for at in (12..whole.len() - 20).step_by(7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            damage(Some(bytes));
        }
        read_back(&git, &kept).expect("whole again");
        lab.git(&["update-ref", "-d", &kept.refname]);
        assert!(matches!(read_back(&git, &kept), Err(GitError::Damaged { .. })));
    }
}

lab_test! {
    fn a_sparse_worktree_keeps_what_is_not_checked_out(lab) {
        lab.write("wanted/a", "a");
        lab.write("unwanted/b", "b");
        lab.commit("two folders");
        let tree = lab.tree();
        lab.git_in(tree.path(), &["sparse-checkout", "set", "wanted"]);
        assert!(!tree.path().join("unwanted").exists(), "the fault was not applied");
        put(&tree.path().join("wanted/new"), "x");
        let kept = lab.taken(&tree, 1);
        assert!(lab.paths_of(&kept.commit).contains(&"unwanted/b".to_owned()));
        assert_eq!(kept.changed, 1);
    }
}

lab_test! {
    fn the_main_worktree_can_be_kept_too(lab) {
        lab.tree();
        lab.write("work", "x");
        let main = Worktree::at(&lab.found(), &lab.repo());
        let kept = lab.taken(&main, 1);
        assert_eq!(lab.paths_of(&kept.commit), [".gitignore", "README.md", "src/main.rs", "work"]);
        assert_eq!(oid(&lab.git(&["rev-parse", &format!("{}^", kept.commit)])), lab.head(&lab.repo()));
    }
}
