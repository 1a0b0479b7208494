//! Worktrees: making them (also after having been killed), their state, resetting, leftovers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use piton_core::ids::Oid;
use piton_git::GitError;
use piton_git::worktree::{Head, TreeState, Worktree};

use crate::lab::{BRANCH, Lab, files, kill_when, oid, put, read};

#[track_caller]
fn branch_of(tree: &Worktree) -> Option<String> {
    tree.head().expect("known").expect("a worktree").branch
}

/// A damage, and what it is called.
type Damage<'a> = (&'a str, &'a dyn Fn(&Path));

/// Finished: on its branch, with its files, and nothing that differs.
#[track_caller]
fn assert_made(lab: &Lab, tree: &Worktree) {
    assert_eq!(branch_of(tree).as_deref(), Some(BRANCH));
    assert_eq!(lab.git_in(tree.path(), &["status", "--porcelain"]), "");
    assert_eq!(read(&tree.path().join("README.md")), "hello\n");
    let list = lab.git(&["worktree", "list", "--porcelain"]);
    assert!(!list.contains("locked"), "{list}");
}

lab_test! {
    fn create_makes_a_worktree_once(lab) {
        let tree = lab.tree_at("run");
        assert_eq!(tree.state().expect("known"), TreeState::Missing);
        let tree = lab.tree();
        assert_made(lab, &tree);
        put(&tree.path().join("work"), "of an agent");
        tree.create(BRANCH, &lab.head(&lab.repo())).expect("there");
        assert_eq!(read(&tree.path().join("work")), "of an agent");
        assert_eq!(lab.git(&["status", "--porcelain"]), "", "the main worktree is untouched");
    }
}

lab_test! {
    fn what_is_not_ours_is_left_alone(lab) {
        let head = lab.head(&lab.repo());
        let check = |name: &str, make: &dyn Fn(&Path)| {
            let tree = lab.tree_at(name);
            fs::create_dir_all(tree.path().parent().expect("below")).expect("writable");
            make(tree.path());
            let state = tree.state().expect("known");
            assert!(matches!(state, TreeState::Foreign { .. }), "{name}: {state:?}");
            let before = fs::symlink_metadata(tree.path()).expect("there").modified().expect("known");
            for answer in [tree.create(BRANCH, &head).map(drop), tree.reset_to(BRANCH, &head).map(drop)] {
                assert!(matches!(answer, Err(GitError::Foreign { .. })), "{name}: {answer:?}");
            }
            assert!(tree.commit_all(BRANCH, "x").is_err() && tree.dirty().is_err());
            let after = fs::symlink_metadata(tree.path()).expect("there").modified().expect("known");
            assert_eq!(before, after, "{name}");
        };
        check("files", &|path| put(&path.join("x"), "mine"));
        check("file", &|path| put(path, "mine"));
        check("repository", &|path| {
            fs::create_dir(path).expect("writable");
            lab.git_in(path, &["init", "-q"]);
        });
        check("elsewhere", &|path| {
            let path = path.to_str().expect("text");
            lab.git_in(&lab.root().join("decoy"), &["worktree", "add", "-q", "--detach", path]);
            lab.git_in(&lab.root().join("decoy"), &["worktree", "list"]);
        });
        check("link", &|path| {
            std::os::unix::fs::symlink(lab.path("src/main.rs"), path).expect("writable");
        });
        let tree = lab.tree();
        check("copy", &|path| lab.sh(&lab.repo(), &format!("cp -r {} {}", tree.path().display(), path.display())));
        check("pointer", &|path| put(&path.join(".git"), "gitdir: /nowhere/at/all\n"));
        check("words", &|path| put(&path.join(".git"), "mine\n"));
        check("empty-pointer", &|path| {
            put(&path.join(".git"), "");
            put(&path.join("x"), "mine");
        });
        // The decoy got a worktree on purpose; undo it.
        fs::remove_dir_all(lab.root().join("decoy/.git/worktrees")).expect("removable");
    }
}

lab_test! {
    /// The states in which a kill leaves git's own adding, one after the other.
    fn a_half_made_worktree_is_finished(lab) {
        let head = lab.head(&lab.repo());
        lab.found().exclude("/.piton/").expect("writable");
        let half = |name: &str, change: &dyn Fn(&Path, &Path)| {
            let tree = lab.tree_at(name);
            let path = tree.path().to_str().expect("text").to_owned();
            let words = ["worktree", "add", "-q", "--no-checkout", "--detach", "--lock"];
            lab.git(&[&words[..], &["--reason", "piton: being made", &path, "HEAD"]].concat());
            let entry = lab.git_in(tree.path(), &["rev-parse", "--absolute-git-dir"]);
            change(Path::new(&entry), tree.path());
            let branch = format!("piton/x/step/{name}");
            tree.create(&branch, &head).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(branch_of(&tree).as_deref(), Some(branch.as_str()), "{name}");
            assert_eq!(lab.git_in(tree.path(), &["status", "--porcelain"]), "", "{name}");
            assert_eq!(read(&tree.path().join("README.md")), "hello\n");
            tree.create(&branch, &head).expect("again");
            let locked = lab.git_in(tree.path(), &["worktree", "list", "--porcelain"]);
            assert!(!locked.contains("being made"), "{name}: {locked}");
        };
        half("no-files", &|_, path| assert!(!path.join("README.md").exists()));
        half("no-folder", &|_, path| fs::remove_dir_all(path).expect("removable"));
        half("no-pointer", &|_, path| fs::remove_file(path.join(".git")).expect("removable"));
        half("no-head", &|entry, _| fs::remove_file(entry.join("HEAD")).expect("removable"));
        half("empty-head", &|entry, _| fs::write(entry.join("HEAD"), "").expect("writable"));
        half("no-commondir", &|entry, path| {
            fs::remove_file(entry.join("commondir")).expect("removable");
            fs::remove_file(path.join(".git")).expect("removable");
        });
        half("empty-pointer", &|_, path| fs::write(path.join(".git"), "").expect("writable"));
        // What git leaves that is killed between making the file and writing into it.
        half("empty-pointer-no-head", &|entry, path| {
            fs::remove_file(entry.join("HEAD")).expect("removable");
            fs::remove_file(entry.join("commondir")).expect("removable");
            fs::write(path.join(".git"), "").expect("writable");
        });
        half("empty-pointer-no-entry", &|entry, path| {
            fs::remove_dir_all(entry).expect("removable");
            fs::write(path.join(".git"), "").expect("writable");
        });
        // The list's lock says who made these, but not for which place. The others may be anybody's.
        let list = lab.path(".git/worktrees");
        for (name, reason) in [("old", "piton: being made"), ("new", "piton: being made"), ("mine", "x")] {
            put(&list.join(name).join("locked"), reason);
        }
        put(&list.join("empty/locked"), "piton: being made");
        put(&list.join("empty/gitdir"), "");
        lab.sh(&list, "touch -d '1 minute ago' old empty mine");
        lab.tree_at("beside").create("piton/x/step/beside", &head).expect("made");
        assert!(!list.join("old").exists() && !list.join("empty").exists());
        assert!(list.join("new").exists() && list.join("mine").exists());
        half("no-gitdir", &|entry, _| fs::remove_file(entry.join("gitdir")).expect("removable"));
        half("no-entry", &|entry, _| fs::remove_dir_all(entry).expect("removable"));
        half("some-files", &|entry, path| {
            put(&path.join("README.md"), "hel");
            put(&path.join("src/other"), "?");
            put(&entry.join("index.lock"), "half an index");
        });
    }
}

lab_test! {
    fn a_worktree_whose_folder_is_gone_is_made_again(lab) {
        let tree = lab.tree();
        put(&tree.path().join("x"), "x");
        lab.git_in(tree.path(), &["checkout", "-q", "--detach"]);
        let lone = lab.commit_in(tree.path(), "on no branch");
        fs::remove_dir_all(tree.path()).expect("removable");
        assert!(lab.git(&["worktree", "list", "--porcelain"]).contains("prunable"), "the fault");
        assert_eq!(tree.state().expect("known"), TreeState::Missing);
        tree.create(BRANCH, &lab.head(&lab.repo())).expect("made again");
        assert_made(lab, &tree);
        let log = lab.git_in(tree.path(), &["reflog", "--format=%H", "HEAD"]);
        assert!(log.contains(lone.as_str()), "the old HEAD is not forgotten");
    }
}

lab_test! {
    fn a_moved_repository_is_mended(lab) {
        let tree = lab.tree();
        put(&tree.path().join("work"), "of an agent");
        let new = lab.root().join("elsewhere");
        fs::rename(lab.repo(), &new).expect("movable");
        let git = piton_git::Git::discover(&new).expect("found");
        let moved = Worktree::at(&git, &new.join(".piton/worktrees/x/run"));
        assert!(lab.try_git_in(moved.path(), &["status"]).is_err(), "the fault");
        assert_eq!(branch_of(&moved).as_deref(), Some(BRANCH), "it is ours all the same");
        let head = git.commit("HEAD").expect("a commit");
        assert_eq!(moved.changed_since(&head).expect("known"), 1, "and can be looked at");
        moved.create(BRANCH, &head).expect("mended");
        assert_eq!(branch_of(&moved).as_deref(), Some(BRANCH));
        assert_eq!(read(&moved.path().join("work")), "of an agent");
        assert!(lab.git_in(moved.path(), &["status", "--porcelain"]).contains("work"));
        // Back again: this time only mended.
        fs::rename(&new, lab.repo()).expect("movable");
        let back = lab.tree_at("run");
        back.mend(BRANCH).expect("mended");
        assert!(lab.git_in(back.path(), &["status", "--porcelain"]).contains("work"));
    }
}

lab_test! {
    fn many_worktrees_are_made_at_once(lab) {
        let (git, head) = (lab.found(), lab.head(&lab.repo()));
        let made = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..64)
                .map(|n| {
                    let tree = Worktree::at(&git, &lab.path(format!(".piton/{n}/run")));
                    let head = &head;
                    scope.spawn(move || tree.create(&format!("piton/x/step/s{n}"), head))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        let failed: Vec<_> = made.iter().filter_map(|made| made.as_ref().err()).collect();
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(lab.git(&["worktree", "list"]).lines().count(), 65);
    }
}

lab_test! {
    /// The victim of the next test.
    fn victim(lab) {
        if std::env::var_os("PITON_LAB_VICTIM").is_none() {
            return;
        }
        lab.tree();
    }
}

lab_test! {
    /// Killed for real, with its git: at once, when so much of it is there, or when it has ended.
    fn create_survives_being_killed(lab) {
        for n in 0..400 {
            lab.write(format!("many/{n}"), format!("{n}\n"));
        }
        lab.commit("many files");
        let tree = lab.tree_at("run");
        let head = lab.head(&lab.repo());
        let (mut unfinished, mut half, mut finished) = (0, 0, 0);
        // On a busy machine a kill may come late: until every kind has been seen.
        for round in 0..200 {
            if round >= 10 && unfinished > 0 && half > 0 && finished > 0 {
                break;
            }
            let moments = ["", "README.md", "many/0", "many/200", "never"];
            let moment = tree.path().join(moments[round % moments.len()]);
            let mut victim = lab.again("trees::victim");
            victim.env("PITON_LAB_VICTIM", "1");
            // Now and then before there is anything.
            kill_when(&mut victim, || round % 10 == 0 || moment.exists());
            match (tree.state().expect("known"), tree.path().exists()) {
                (TreeState::Present { .. }, _) => finished += 1,
                (_, true) => half += 1,
                (_, false) => unfinished += 1,
            }
            tree.create(BRANCH, &head).expect("finished by the next");
            assert_made(lab, &tree);
            lab.git(&["worktree", "remove", tree.path().to_str().expect("text")]);
        }
        let seen = (unfinished, half, finished);
        assert!(unfinished > 0 && half > 0 && finished > 0, "{seen:?}");
    }
}

lab_test! {
    fn a_worktree_has_a_branch_and_a_commit(lab) {
        let tree = lab.tree();
        let head = lab.head(&lab.repo());
        let check = |tree: &Worktree, commit: Option<&Oid>, branch: Option<&str>| {
            let head = Head { commit: commit.cloned(), branch: branch.map(str::to_owned) };
            assert!(matches!(tree.state(), Ok(TreeState::Present { .. })));
            assert_eq!(tree.head().expect("known"), Some(head));
        };
        check(&tree, Some(&head), Some(BRANCH));
        lab.git_in(tree.path(), &["checkout", "-q", "--detach"]);
        check(&tree, Some(&head), None);
        lab.git_in(tree.path(), &["checkout", "-q", "--orphan", "new"]);
        check(&tree, None, Some("new"));
        check(&Worktree::at(&lab.found(), &lab.repo()), Some(&head), Some("main"));
    }
}

lab_test! {
    fn reset_removes_work_but_not_what_is_ignored(lab) {
        let tree = lab.tree();
        let path = |name: &str| tree.path().join(name);
        put(&path("README.md"), "changed\n");
        put(&path("staged"), "x");
        lab.git_in(tree.path(), &["add", "staged"]);
        put(&path("new/file"), "x");
        put(&path("target/out"), "built");
        put(&path("a.log"), "log");
        fs::remove_file(path("src/main.rs")).expect("removable");
        for name in ["nested", "target/dep"] {
            fs::create_dir_all(path(name)).expect("writable");
            lab.git_in(&path(name), &["init", "-q"]);
        }
        put(&path("nested/file"), "kept");
        assert!(tree.dirty().expect("known"));
        let head = lab.head(&lab.repo());
        let aside = tree.reset_to("piton/x/step/b", &head).expect("reset");
        assert_eq!(branch_of(&tree).as_deref(), Some("piton/x/step/b"));
        assert!(!tree.dirty().expect("known"));
        let [nested] = aside.as_slice() else { panic!("{aside:?}") };
        assert_eq!(nested.path, Path::new("nested"), "it is not lost by a reset");
        assert_eq!(read(&nested.place.join("file")), "kept");
        assert_eq!(read(&path("README.md")), "hello\n");
        assert!(path("src/main.rs").exists() && !path("staged").exists() && !path("new").exists());
        assert_eq!(read(&path("target/out")), "built");
        assert!(path("a.log").exists() && path("target/dep/.git").exists());
        assert_eq!(oid(&lab.git(&["rev-parse", BRANCH])), head, "the other branch stays");
    }
}

lab_test! {
    /// Ignored here, tracked there: no snapshot has the one that a checkout would overwrite.
    fn what_is_ignored_is_not_overwritten_by_a_reset(lab) {
        let tree = lab.tree();
        for name in ["a.log", "target", "b.log/c"] {
            lab.write(name, "of the commit\n");
        }
        lab.git(&["add", "-f", "a.log", "target", "b.log/c"]);
        let tracked = lab.commit("by force");
        let path = |name: &str| tree.path().join(name);
        put(&path("a.log"), "mine 1");
        put(&path("target/deep/x"), "mine 2");
        put(&path("b.log"), "mine 3");
        tree.reset_to(BRANCH, &tracked).expect("reset");
        assert_eq!(read(&path("target")) + &read(&path("b.log/c")), "of the commit\nof the commit\n");
        let aside = files(&lab.path(".git/piton/aside"), false);
        for mine in ["mine 1", "mine 2", "mine 3"] {
            assert!(aside.values().any(|file| file.bytes == mine.as_bytes()), "{mine}: {aside:?}");
        }
    }
}

lab_test! {
    fn the_lock_on_the_list_is_private(lab) {
        lab.tree();
        let lock = fs::metadata(lab.path(".git/piton/worktrees.lock")).expect("there");
        assert_eq!(lock.permissions().mode() & 0o777, 0o600);
    }
}

/// Leaves the worktree in the middle of a merge with a conflict.
fn conflict(lab: &Lab, tree: &Worktree) {
    put(&tree.path().join("README.md"), "ours\n");
    lab.commit_in(tree.path(), "ours");
    lab.write("README.md", "theirs\n");
    lab.commit("theirs");
}

lab_test! {
    fn reset_ends_merges_and_rebases(lab) {
        let base = lab.head(&lab.repo());
        let tree = lab.tree();
        conflict(lab, &tree);
        let ours = lab.head(tree.path());
        for words in [&["merge", "main"][..], &["rebase", "main"], &["cherry-pick", "main"], &["bisect", "start", "main"]] {
            put(&tree.path().join("untracked"), "x");
            let began = lab.try_git_in(tree.path(), words);
            assert!(began.is_err() || words[0] == "bisect", "the fault was not applied: {words:?}");
            let told = lab.git_in(tree.path(), &["status"]);
            let inside = ["merging", "unmerged", "rebase", "cherry-pick", "bisecting"];
            assert!(inside.iter().any(|word| told.to_lowercase().contains(word)), "{told}");
            tree.reset_to(BRANCH, &ours).expect("reset");
            let told = lab.git_in(tree.path(), &["status"]);
            assert!(told.ends_with("nothing to commit, working tree clean"), "{words:?}: {told}");
            assert!(!inside.iter().any(|word| told.contains(word)), "{words:?}: {told}");
            assert_eq!(lab.head(tree.path()), ours);
        }
        tree.reset_to(BRANCH, &base).expect("reset");
        assert_eq!(read(&tree.path().join("README.md")), "hello\n");
    }
}

lab_test! {
    /// What a rebase put away to put it back later is work that nothing else names.
    fn the_autostash_of_a_broken_rebase_is_kept(lab) {
        let tree = lab.tree();
        conflict(lab, &tree);
        put(&tree.path().join("src/main.rs"), "fn main() { work() }\n");
        assert!(lab.try_git_in(tree.path(), &["rebase", "--autostash", "main"]).is_err());
        let dir = lab.git_in(tree.path(), &["rev-parse", "--absolute-git-dir"]);
        let stash = read(&Path::new(&dir).join("rebase-merge/autostash"));
        tree.reset_to(BRANCH, &lab.head(&lab.repo())).expect("reset");
        let refs = lab.git(&["for-each-ref", "--format=%(objectname)", "refs/piton/aside/"]);
        assert_eq!(refs, stash.trim());
    }
}

lab_test! {
    fn locks_of_the_dead_do_not_stop_reset_or_leftovers(lab) {
        let tree = lab.tree();
        let dir = lab.git_in(tree.path(), &["rev-parse", "--absolute-git-dir"]);
        put(&tree.path().join("new"), "x");
        put(&Path::new(&dir).join("index.lock"), "half");
        let plain = lab.try_git_in(tree.path(), &["add", "-A"]);
        assert!(plain.is_err_and(|text| text.contains("index.lock")), "the fault was not applied");
        tree.commit_all(BRANCH, "leftovers").expect("committed");
        put(&Path::new(&dir).join("index.lock"), "half");
        tree.reset_to(BRANCH, &lab.head(&lab.repo())).expect("reset");
        assert_eq!(fs::read_dir(lab.path(".git/piton/aside")).expect("kept").count(), 2);
        // One that would keep everybody from deleting any ref.
        put(&lab.path(".git/packed-refs.lock"), "");
        lab.sh(&lab.repo(), "touch -d '1 minute ago' .git/packed-refs.lock");
        lab.git(&["branch", "other"]);
        let plain = lab.try_git_in(&lab.repo(), &["branch", "-d", "other"]);
        assert!(plain.is_err_and(|text| text.contains("packed-refs.lock")), "the fault");
        put(&tree.path().join("new"), "x");
        tree.commit_all(BRANCH, "leftovers").expect("committed");
        assert_eq!(lab.git(&["for-each-ref", "refs/piton/held"]), "");
        lab.git(&["branch", "-d", "other"]);
    }
}

lab_test! {
    fn a_torn_index_does_not_stop_reset_or_leftovers(lab) {
        let tree = lab.tree();
        let index = Path::new(&lab.git_in(tree.path(), &["rev-parse", "--absolute-git-dir"])).join("index");
        put(&tree.path().join("new"), "x");
        for torn in [&b""[..], b"DIRC\0\0\0\x02\0\0\0\x09torn"] {
            fs::write(&index, torn).expect("writable");
            assert!(lab.try_git_in(tree.path(), &["status"]).is_err(), "the fault");
            let commit = tree.commit_all(BRANCH, "leftovers").expect("committed").commit;
            assert_eq!(lab.paths_of(&commit), [".gitignore", "README.md", "new", "src/main.rs"]);
            fs::write(&index, torn).expect("writable");
            tree.reset_to(BRANCH, &commit).expect("reset");
            assert!(!tree.dirty().expect("known"));
        }
    }
}

lab_test! {
    fn a_branch_checked_out_elsewhere_is_not_moved(lab) {
        let tree = lab.tree();
        let head = lab.head(&lab.repo());
        lab.git(&["checkout", "-q", "-b", "piton/x/step/b"]);
        let answer = tree.reset_to("piton/x/step/b", &head);
        let Err(GitError::BranchElsewhere { worktree, .. }) = answer else { panic!("{answer:?}") };
        assert_eq!(worktree, lab.repo());
        put(&tree.path().join("new"), "x");
        lab.git_in(tree.path(), &["checkout", "-q", "--detach"]);
        let answer = tree.commit_all("piton/x/step/b", "leftovers");
        assert!(matches!(answer, Err(GitError::BranchElsewhere { .. })), "{answer:?}");
    }
}

lab_test! {
    fn leftovers_become_one_commit(lab) {
        let tree = lab.tree();
        let base = lab.head(&lab.repo());
        assert_eq!(tree.commit_all(BRANCH, "nothing").expect("nothing to do").commit, base);
        put(&tree.path().join("README.md"), "changed\n");
        put(&tree.path().join("new/file"), "x");
        put(&tree.path().join("target/out"), "built");
        put(&tree.path().join("-rf"), "a dash");
        fs::remove_file(tree.path().join("src/main.rs")).expect("removable");
        put(&tree.path().join("src/main.rs/now-a-folder"), "x");
        fs::create_dir(tree.path().join("nested")).expect("writable");
        lab.git_in(&tree.path().join("nested"), &["init", "-q"]);
        let message = "jwt: leftovers\n\nPiton-Run: x\nPiton-Step: a";
        let commit = tree.commit_all(BRANCH, message).expect("committed").commit;
        let expected = ["-rf", ".gitignore", "README.md", "new/file", "src/main.rs/now-a-folder"];
        assert_eq!(lab.paths_of(&commit), expected);
        assert_eq!(lab.head(tree.path()), commit);
        assert_eq!(oid(&lab.git(&["rev-parse", BRANCH])), commit);
        assert_eq!(lab.git_in(tree.path(), &["rev-parse", "HEAD^"]), base.as_str());
        assert_eq!(lab.git_in(tree.path(), &["log", "-1", "--format=%B"]), message);
        assert_eq!(lab.git_in(tree.path(), &["status", "--porcelain"]), "?? nested/");
        assert_eq!(tree.commit_all(BRANCH, "again").expect("nothing to do").commit, commit);
    }
}

lab_test! {
    fn leftovers_count_from_where_the_agent_went(lab) {
        let tree = lab.tree();
        for words in [&["checkout", "-q", "--detach"][..], &["checkout", "-q", "-b", "agents-own"]] {
            lab.git_in(tree.path(), words);
            put(&tree.path().join("committed"), words.join(" "));
            let made = lab.commit_in(tree.path(), "by the agent");
            put(&tree.path().join("left"), words.join(" "));
            let commit = tree.commit_all(BRANCH, "leftovers").expect("committed").commit;
            assert_eq!(branch_of(&tree).as_deref(), Some(BRANCH));
            assert_eq!(oid(&lab.git(&["rev-parse", BRANCH])), commit);
            assert_eq!(oid(&lab.git(&["rev-parse", &format!("{BRANCH}^")])), made);
            assert!(!tree.dirty().expect("known"));
        }
    }
}

lab_test! {
    fn a_merge_in_progress_is_committed_as_it_is(lab) {
        let tree = lab.tree();
        conflict(lab, &tree);
        let (ours, theirs) = (lab.head(tree.path()), lab.head(&lab.repo()));
        assert!(lab.try_git_in(tree.path(), &["merge", "main"]).is_err(), "the fault");
        let commit = tree.commit_all(BRANCH, "leftovers").expect("committed").commit;
        let parents = lab.git(&["log", "-1", "--format=%P", commit.as_str()]);
        assert_eq!(parents, format!("{ours} {theirs}"));
        assert!(lab.git(&["show", &format!("{commit}:README.md")]).contains("<<<<<<<"));
        assert_eq!(lab.git_in(tree.path(), &["status", "--porcelain"]), "");
        assert!(!lab.git_in(tree.path(), &["status"]).contains("merging"));
    }
}

lab_test! {
    fn changes_and_facts_are_counted(lab) {
        let tree = lab.tree();
        let base = lab.head(&lab.repo());
        let dir = lab.git_in(tree.path(), &["rev-parse", "--absolute-git-dir"]);
        assert_eq!(tree.changed_since(&base).expect("known"), 0);
        put(&tree.path().join("one"), "1");
        lab.commit_in(tree.path(), "first: ä");
        put(&tree.path().join("two"), "2");
        lab.commit_in(tree.path(), "second");
        put(&tree.path().join("README.md"), "changed\n");
        put(&tree.path().join("new/a"), "x");
        put(&tree.path().join("new/b"), "x");
        put(&tree.path().join("target/out"), "ignored");
        lab.sh(tree.path(), "touch src/main.rs");
        put(&Path::new(&dir).join("index.lock"), "held");
        let before = fs::metadata(Path::new(&dir).join("index")).expect("there").modified().expect("known");
        assert_eq!(tree.changed_since(&base).expect("known"), 5);
        let facts = tree.facts(&base).expect("known");
        assert_eq!(facts.commits, ["first: ä", "second"]);
        assert_eq!(facts.uncommitted, ["README.md", "new/"]);
        let after = fs::metadata(Path::new(&dir).join("index")).expect("there").modified().expect("known");
        assert_eq!(before, after, "looking writes nothing");
    }
}

lab_test! {
    /// What a power cut or somebody's hand does to the files of a worktree's git directory costs nothing of
    /// the work, and leaves the damaged ones.
    fn damaged_git_files_of_a_worktree_are_written_anew(lab) {
        let flipped = |path: &Path| {
            let mut bytes = fs::read(path).expect("there");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x15;
            fs::write(path, bytes).expect("writable");
        };
        let empty = |path: &Path| put(path, "");
        let deleted = |path: &Path| fs::remove_file(path).expect("there");
        let folder = |path: &Path| {
            fs::remove_file(path).expect("there");
            fs::create_dir(path).expect("writable");
        };
        let looped = |path: &Path| {
            fs::remove_file(path).expect("there");
            std::os::unix::fs::symlink(path, path).expect("writable");
        };
        let piped = |path: &Path| {
            fs::remove_file(path).expect("there");
            lab.sh(&lab.repo(), &format!("mkfifo '{}'", path.display()));
        };
        let damages: [Damage<'_>; 6] = [
            ("flipped", &flipped), ("empty", &empty), ("deleted", &deleted), ("folder", &folder),
            ("looped", &looped), ("piped", &piped),
        ];
        let tree = lab.tree();
        put(&tree.path().join("work"), "of an agent");
        let dir = match tree.state().expect("known") {
            TreeState::Present { dir } => dir,
            other => panic!("{other:?}"),
        };
        for name in ["HEAD", "commondir", "gitdir", "index"] {
            for (what, damage) in damages {
                let what = format!("{name} {what}");
                damage(&dir.join(name));
                let _looking_does_not_wait = tree.state().expect("known");
                tree.mend(BRANCH).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(tree.state().expect("known"), TreeState::Present { dir: dir.clone() }, "{what}");
                assert_eq!(branch_of(&tree).as_deref(), Some(BRANCH), "{what}");
                assert_eq!(lab.git_in(tree.path(), &["status", "--porcelain"]), "?? work", "{what}");
                assert_eq!(lab.found().checked_out(&format!("refs/heads/{BRANCH}")).as_deref(), Some(tree.path()));
            }
        }
        let aside = lab.path(".git/piton/aside");
        let left = fs::read_dir(aside).expect("a folder").count();
        assert!(left >= 16, "the damaged ones are kept: {left}");
    }
}
