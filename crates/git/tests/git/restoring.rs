//! From a snapshot back to a worktree: staged and unstaged, conflicts, nested repositories; and that many
//! snapshots stay few packs. The whole zoo comes back in `zoo.rs` of the binary's tests.

use std::fs;
use std::path::Path;

use piton_core::event::{Snapshot, SnapshotReason};
use piton_core::ids::Oid;
use piton_git::GitError;
use piton_git::snapshot::{self, Ask, consolidate, read_back, rebuild};
use piton_git::worktree::Worktree;

use crate::lab::{BRANCH, Lab, files, put, read};

const SECOND: &str = "piton/x/step/b";

/// A snapshot in a worktree made anew.
fn second(lab: &Lab, head: &Oid, kept: &Snapshot) -> Worktree {
    let second = lab.tree_at("second");
    rebuild(&second, SECOND, head, Some(&kept.commit)).expect("restored");
    second
}

lab_test! {
    fn staged_and_unstaged_come_back_as_they_were(lab) {
        for name in ["partly", "staged", "unstaged", "renamed", "removed", "kept"] {
            lab.write(name, "first\n");
        }
        lab.commit("files");
        let tree = lab.tree();
        let (path, git) = (|name: &str| tree.path().join(name), |args: &[&str]| lab.git_in(tree.path(), args));
        put(&path("partly"), "second\n");
        put(&path("staged"), "second\n");
        put(&path("new"), "staged, then changed\n");
        git(&["add", "partly", "staged", "new"]);
        git(&["mv", "renamed", "under another name"]);
        git(&["rm", "-q", "--cached", "removed"]);
        put(&path("partly"), "third\n");
        put(&path("new"), "changed\n");
        put(&path("unstaged"), "second\n");
        put(&path("untracked"), "x\n");
        let look = |root: &Path| {
            let ask = |args: &[&str]| lab.git_in(root, args);
            (ask(&["diff", "--cached"]), ask(&["diff"]), ask(&["status", "--porcelain=v1"]), files(root, false))
        };
        let before = look(tree.path());
        let (head, kept) = (lab.head(tree.path()), lab.taken(&tree, 1));
        assert_eq!(kept.omitted, []);
        assert_eq!(look(tree.path()), before, "untouched");
        let second = second(lab, &head, &kept);
        assert_eq!(look(second.path()), before);
        // Only what is staged changes: that is worth a snapshot, too.
        assert_eq!(lab.take_after(&tree, 2, Some(&kept.tree)).expect("taken"), None);
        git(&["add", "partly"]);
        let next = lab.take_after(&tree, 2, Some(&kept.tree)).expect("taken").expect("the index is new");
        assert_eq!(next.tree, kept.tree);
        rebuild(&second, SECOND, &head, Some(&next.commit)).expect("restored");
        assert_eq!(look(second.path()), look(tree.path()));
        // What nobody else holds is in the snapshot alone.
        git(&["reset", "-q", "--hard"]);
        lab.git(&["gc", "-q", "--prune=now"]);
        read_back(&lab.found(), &kept).expect("whole");
        assert_eq!(lab.git(&["show", &format!("{}^2:partly", kept.commit)]), "second");
    }
}

lab_test! {
    fn a_conflict_comes_back_with_all_its_sides(lab) {
        let tree = lab.tree();
        put(&tree.path().join("README.md"), "ours\n");
        lab.commit_in(tree.path(), "ours");
        lab.write("README.md", "theirs\n");
        lab.write("clean", "from theirs\n");
        lab.commit("theirs");
        assert!(lab.try_git_in(tree.path(), &["merge", "main"]).is_err(), "the fault");
        let (head, kept) = (lab.head(tree.path()), lab.taken(&tree, 1));
        assert_eq!(kept.omitted, []);
        assert_eq!(lab.take_after(&tree, 2, Some(&kept.tree)).expect("taken"), None, "nothing new");
        assert_eq!(lab.git(&["show", &format!("{}^2:README.md", kept.commit)]), "ours");
        let sides = |root: &Path| lab.git_in(root, &["ls-files", "--stage"]);
        assert_eq!(sides(tree.path()).matches("README.md").count(), 3, "the fault");
        let second = second(lab, &head, &kept);
        assert!(read(&second.path().join("README.md")).contains("<<<<<<<"));
        assert_eq!(sides(second.path()), sides(tree.path()));
        lab.git(&["gc", "-q", "--prune=now"]);
        read_back(&lab.found(), &kept).expect("whole");
    }
}

lab_test! {
    fn what_is_staged_before_the_first_commit_is_kept(lab) {
        let tree = lab.tree();
        lab.git_in(tree.path(), &["switch", "-q", "--orphan", "fresh"]);
        put(&tree.path().join("both"), "staged\n");
        lab.git_in(tree.path(), &["add", "both"]);
        put(&tree.path().join("both"), "and changed\n");
        put(&tree.path().join("new"), "not staged\n");
        let index = lab.git_in(tree.path(), &["ls-files", "--stage"]);
        let ask = Ask {
            folder: "refs/piton/x/a/7".to_owned(),
            base: None,
            message: "snapshot".to_owned(),
            reason: SnapshotReason::Cadence,
            last: None,
        };
        let kept = snapshot::keep(&tree, &ask).expect("taken").expect("something");
        assert_eq!((kept.head.clone(), kept.omitted.clone()), (None, vec![]));
        assert_eq!(lab.paths_of(&kept.commit), ["both", "new"]);
        read_back(&lab.found(), &kept).expect("whole");
        let again = Ask { last: Some(kept.tree.clone()), ..ask };
        assert_eq!(snapshot::keep(&tree, &again).expect("taken"), None);
        let stand_in = lab.found().commit(&format!("{}^", kept.commit)).expect("a parent");
        assert_eq!(lab.paths_of(&stand_in), Vec::<String>::new());
        let second = second(lab, &stand_in, &kept);
        assert_eq!(lab.git_in(second.path(), &["ls-files", "--stage"]), index);
        assert_eq!(files(second.path(), false), files(tree.path(), false));
    }
}

lab_test! {
    fn repositories_and_what_is_only_called_one_are_listed(lab) {
        let tree = lab.tree();
        put(&tree.path().join("broken/.git"), "gitdir: ../nowhere\n");
        put(&tree.path().join("broken/file"), "kept");
        put(&tree.path().join("folder/.git/notes"), "lost, and listed");
        put(&tree.path().join("folder/file"), "kept");
        for name in ["nested/full", "nested/unborn"] {
            put(&tree.path().join(name).join("file"), name);
            lab.git_in(&tree.path().join(name), &["init", "-q"]);
        }
        let inner = lab.commit_in(&tree.path().join("nested/full"), "inner");
        let kept = lab.taken(&tree, 1);
        let omitted: Vec<&str> = kept.omitted.iter().map(|left| left.path.as_str()).collect();
        let all = ["broken/.git", "folder/.git", "nested/full/.git", "nested/unborn/.git"];
        assert_eq!(omitted, all);
        assert!(kept.omitted[0].why.contains("no repository"), "{:?}", kept.omitted);
        let paths = lab.paths_of(&kept.commit);
        assert!(["broken/file", "folder/file", "nested/unborn/file"].iter().all(|path| paths.contains(&(*path).to_owned())));
        let said = lab.git(&["log", "-1", "--format=%B", kept.commit.as_str()]);
        assert!(said.contains("Piton-Left-Out: \"broken/.git\" it is called .git"), "{said}");
        assert!(said.contains(&format!("Piton-Nested: {inner} \"nested/full\"")), "{said}");
        assert!(said.contains("Piton-Nested: no commit \"nested/unborn\""), "{said}");
    }
}

lab_test! {
    /// The agent's git lost power before its object was on disk.
    fn what_is_staged_and_lost_costs_no_snapshot(lab) {
        let tree = lab.tree();
        put(&tree.path().join("work"), "staged");
        lab.git_in(tree.path(), &["add", "work"]);
        let id = lab.git_in(tree.path(), &["rev-parse", ":work"]);
        fs::remove_file(lab.path(".git/objects").join(&id[..2]).join(&id[2..])).expect("loose");
        put(&tree.path().join("work"), "on disk");
        let kept = lab.taken(&tree, 1);
        read_back(&lab.found(), &kept).expect("whole");
        assert_eq!(lab.git(&["show", &format!("{}:work", kept.commit)]), "on disk");
        let omitted: Vec<&str> = kept.omitted.iter().map(|left| left.path.as_str()).collect();
        assert_eq!(omitted, [".git/index"]);
    }
}

lab_test! {
    fn a_dirty_submodule_comes_back_with_its_files(lab) {
        let inner = lab.root().join("outside/inner");
        fs::create_dir(&inner).expect("writable");
        lab.git_in(&inner, &["init", "-q"]);
        put(&inner.join("file"), "first\n");
        lab.commit_in(&inner, "inner");
        lab.git(&["submodule", "--quiet", "add", inner.to_str().expect("text"), "sub"]);
        lab.git(&["submodule", "--quiet", "add", inner.to_str().expect("text"), "other"]);
        lab.commit("submodules");
        let tree = lab.tree();
        lab.git_in(tree.path(), &["submodule", "--quiet", "update", "--init", "sub"]);
        put(&tree.path().join("sub/file"), "dirty\n");
        put(&tree.path().join("sub/new"), "x\n");
        let (head, kept) = (lab.head(tree.path()), lab.taken(&tree, 1));
        assert_eq!(kept.omitted, [], "a submodule's history is the main repository's");
        let paths = lab.paths_of(&kept.commit);
        assert!(["sub/file", "sub/new", "other"].iter().all(|p| paths.contains(&(*p).to_owned())), "{paths:?}");
        let second = second(lab, &head, &kept);
        assert_eq!(read(&second.path().join("sub/file")), "dirty\n");
        assert_eq!(read(&second.path().join("sub/new")), "x\n");
        let entry = lab.git_in(second.path(), &["ls-files", "--stage", "sub", "other"]);
        assert!(entry.lines().count() == 2 && entry.lines().all(|line| line.starts_with("160000")), "{entry}");
        // Over one that is there: its own repository stays.
        put(&tree.path().join("sub/file"), "newer\n");
        rebuild(&tree, BRANCH, &head, Some(&kept.commit)).expect("restored");
        assert_eq!(read(&tree.path().join("sub/file")), "dirty\n");
        assert_eq!(lab.git_in(&tree.path().join("sub"), &["status", "--porcelain"]), " M file\n?? new");
    }
}

lab_test! {
    /// More than fits into a pipe, in both directions.
    fn many_new_files_are_kept_at_once(lab) {
        let tree = lab.tree();
        for n in 0..5000 {
            put(&tree.path().join(format!("folder with a long name {}/{n}", n % 50)), format!("{n}"));
        }
        let (head, kept) = (lab.head(tree.path()), lab.taken(&tree, 1));
        assert_eq!(kept.changed, 5000);
        let second = second(lab, &head, &kept);
        assert_eq!(files(second.path(), false), files(tree.path(), false));
        fs::remove_dir_all(tree.path().join("folder with a long name 7")).expect("removable");
        assert_eq!(lab.taken(&tree, 2).changed, 4900);
    }
}

lab_test! {
    fn kept_elsewhere_victim(lab) {
        if std::env::var_os("PITON_LAB_ELSEWHERE").is_some() {
            lab.taken(&lab.tree_at("run"), 2);
        }
    }
}

lab_test! {
    /// What one process found is used by the next, and only while it can be trusted.
    fn another_process_goes_on_from_there(lab) {
        let tree = lab.tree();
        put(&tree.path().join("work"), "first");
        let first = lab.taken(&tree, 1);
        put(&tree.path().join("work"), "other");
        let elsewhere = || {
            let mut victim = lab.again("restoring::kept_elsewhere_victim");
            let out = victim.env("PITON_LAB_ELSEWHERE", "1").output().expect("it starts");
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            let said = lab.git(&["log", "-1", "--format=%B", "refs/piton/x/a/7/2"]);
            assert_eq!(lab.git(&["show", "refs/piton/x/a/7/2:work"]), "other");
            lab.git(&["update-ref", "-d", "refs/piton/x/a/7/2"]);
            said.contains(&format!("Piton-Previous: {}", first.commit))
        };
        assert!(elsewhere(), "it was not used");
        let known: Vec<_> = fs::read_dir(lab.path(".git/piton/known")).expect("there").flatten().collect();
        let whole = fs::read(known[0].path()).expect("there");
        fs::write(known[0].path(), &whole[..whole.len() / 2]).expect("writable");
        assert!(!elsewhere(), "a torn one was used");
        fs::write(known[0].path(), &whole).expect("writable");
        lab.git(&["update-ref", "-d", &first.refname]);
        lab.git(&["gc", "-q", "--prune=now"]);
        assert!(!elsewhere(), "the snapshot that had the ids is gone");
    }
}

lab_test! {
    fn many_snapshots_stay_few_packs(lab) {
        let (tree, git) = (lab.tree(), lab.found());
        let packs = || {
            let list = fs::read_dir(lab.path(".git/objects/pack")).expect("there").flatten();
            list.filter(|entry| entry.path().extension() == Some("pack".as_ref())).count()
        };
        let take = |n: u32| {
            put(&tree.path().join(format!("work/{n}")), format!("{n}"));
            lab.taken(&tree, n)
        };
        let mut all: Vec<Snapshot> = (0..10).map(take).collect();
        assert!(!consolidate(&git).expect("looked"), "few enough");
        all.extend((10..60).map(take));
        assert_eq!(packs(), 60);
        // As a killed process leaves it.
        let files = fs::read_dir(lab.path(".git/objects/pack")).expect("there").flatten();
        let mut files = files.map(|entry| entry.path());
        let held = files.find(|path| path.extension() == Some("pack".as_ref())).expect("some");
        put(&held.with_extension("keep"), "fast-import");
        lab.sh(&lab.repo(), "touch -d '2 hours ago' .git/objects/pack/*.keep");
        assert!(consolidate(&git).expect("done"));
        assert!(packs() < 10, "{}", packs());
        all.push(take(60));
        for how in [&["gc", "-q", "--prune=now"][..], &["repack", "-adq"], &["prune", "--expire=now"]] {
            lab.git(how);
            all.iter().for_each(|kept| read_back(&git, kept).expect("whole"));
        }
        // A name that git has packed away is taken all the same.
        assert!(!lab.path(".git").join(&all[3].refname).exists(), "the fault was not applied");
        let taken = lab.take(&tree, 3);
        assert!(matches!(taken, Err(GitError::RefTaken { .. })), "{taken:?}");
    }
}

lab_test! {
    fn what_killed_processes_left_is_swept(lab) {
        let (tree, gone) = (lab.tree(), lab.tree_at("gone"));
        gone.create("piton/x/step/gone", &lab.head(&lab.repo())).expect("created");
        for (number, tree) in [(1, &tree), (2, &gone)] {
            put(&tree.path().join("work"), "x");
            lab.taken(tree, number);
        }
        let packs = lab.path(".git/objects/pack");
        put(&packs.join("tmp_pack_old"), "half");
        put(&packs.join("tmp_pack_new"), "being written");
        put(&packs.join("other_old"), "not ours to know");
        let known = || fs::read_dir(lab.path(".git/piton/known")).expect("a folder").count();
        assert_eq!(known(), 2);
        let old = "touch -d '3 days ago' .git/objects/pack/*_old .git/piton/known/*";
        lab.sh(&lab.repo(), old);
        snapshot::sweep(&lab.found());
        assert_eq!(known(), 2, "worktrees in git's list");
        lab.git(&["worktree", "remove", "--force", gone.path().to_str().expect("text")]);
        snapshot::sweep(&lab.found());
        assert_eq!(known(), 1);
        let left = |name: &str| packs.join(name).exists();
        assert_eq!((left("tmp_pack_old"), left("tmp_pack_new"), left("other_old")), (false, true, true));
    }
}
