//! Finding the repository, reading revisions, moving refs.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use piton_core::ids::Oid;
use piton_git::merging::{Landing, prepare};
use piton_git::snapshot::{read_back, rebuild};
use piton_git::worktree::Worktree;
use piton_git::{Git, GitError, Moved};

use crate::lab::{BRANCH, oid, put, read};

lab_test! {
    fn the_repository_is_found_from_anywhere_in_it(lab) {
        let tree = lab.tree();
        put(&tree.path().join("deep/er/x"), "");
        for from in [lab.repo(), lab.path("src"), tree.path().to_owned(), tree.path().join("deep/er")] {
            let git = Git::discover(&from).expect("found");
            assert_eq!(git.common_dir(), lab.path(".git"));
            assert_eq!(git.main_root(), lab.repo());
            let linked = from.starts_with(tree.path());
            assert_eq!(git.here(), if linked { tree.path() } else { git.main_root() });
        }
    }
}

lab_test! {
    fn outside_a_worktree_the_error_says_so(lab) {
        let outside = Git::discover(&lab.root().join("outside"));
        assert!(matches!(outside, Err(GitError::NotARepository { .. })), "{outside:?}");
        let inside = Git::discover(&lab.path(".git"));
        assert!(matches!(inside, Err(GitError::NoWorktree { .. })), "{inside:?}");
        let nowhere = Git::discover(&lab.root().join("nowhere"));
        assert!(matches!(nowhere, Err(GitError::NotARepository { .. })), "{nowhere:?}");
    }
}

/// Everything a run does, in a repository without a main worktree.
fn runs_in(bare: &Path, linked: &Path) {
    let git = Git::discover(linked).expect("found");
    assert_eq!((git.common_dir(), git.main_root(), git.here()), (bare, bare, linked));
    let again = Git::discover(git.main_root()).expect("the keeper starts there");
    assert_eq!((again.common_dir(), again.main_root(), again.here()), (bare, bare, bare));
    let base = git.commit("HEAD").expect("a commit");
    again.move_ref("refs/heads/piton/x/run", &base, None, "open").expect("made");
    let tree = Worktree::at(&again, &again.main_root().join(".piton/worktrees/x/run"));
    tree.create(BRANCH, &base).expect("created");
    let within = Git::discover(tree.path()).expect("found");
    assert_eq!((within.main_root(), within.here()), (bare, tree.path()));
    put(&tree.path().join("work"), "x");
    let commit = tree.commit_all(BRANCH, "leftovers").expect("committed").commit;
    let landing = prepare(&again, "piton/x/run", &commit, "land").expect("known");
    assert_eq!(landing, Landing::FastForward { onto: base, to: commit });
}

lab_test! {
    fn a_bare_repository_works_through_its_worktrees(lab) {
        let bare = lab.root().join("bare.git");
        lab.git(&["clone", "-q", "--bare", ".", bare.to_str().expect("text")]);
        let linked = lab.root().join("linked");
        lab.git_in(&bare, &["worktree", "add", "-q", linked.to_str().expect("text")]);
        runs_in(&bare, &linked);
    }
}

lab_test! {
    /// A folder with the bare repository, a `.git` file that names it, and the worktrees beside it.
    fn a_bare_repository_beside_its_worktrees_works(lab) {
        let folder = lab.root().join("folder");
        let bare = folder.join(".bare");
        lab.git(&["clone", "-q", "--bare", ".", bare.to_str().expect("text")]);
        put(&folder.join(".git"), "gitdir: ./.bare\n");
        lab.git_in(&folder, &["worktree", "add", "-q", "linked"]);
        runs_in(&bare, &folder.join("linked"));
        let git = Git::discover(&folder).expect("found");
        assert_eq!((git.main_root(), git.here()), (bare.as_path(), bare.as_path()));
        lab.git_in(&bare, &["config", "extensions.worktreeConfig", "true"]);
        lab.git_in(&bare, &["config", "--unset", "core.bare"]);
        lab.git_in(&bare, &["config", "--file", "config.worktree", "core.bare", "true"]);
        let git = Git::discover(&folder.join("linked")).expect("found");
        assert_eq!(git.main_root(), bare);
    }
}

lab_test! {
    /// A git directory that lies apart does not tell where its worktree is.
    fn a_git_directory_that_lies_apart_works(lab) {
        let (apart, main) = (lab.root().join("apart"), lab.root().join("main"));
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        lab.git(&["clone", "-q", "--separate-git-dir", &text(&apart), ".", &text(&main)]);
        let linked = lab.root().join("linked");
        lab.git_in(&main, &["worktree", "add", "-q", &text(&linked)]);
        let git = Git::discover(&main).expect("found");
        assert_eq!((git.common_dir(), git.main_root()), (apart.as_path(), main.as_path()));
        let git = Git::discover(&linked).expect("found");
        assert_eq!((git.common_dir(), git.main_root()), (apart.as_path(), apart.as_path()));
        assert_eq!(Git::discover(git.main_root()).expect("found").here(), apart);
    }
}

lab_test! {
    fn a_branch_in_the_way_of_pitons_is_named(lab) {
        let git = lab.found();
        git.can_make_branches("piton").expect("nothing is in the way");
        lab.git(&["branch", "piton/x/run"]);
        git.can_make_branches("piton").expect("that is one of them");
        let error = git.can_make_branches("piton/x/run/y").expect_err("below a branch");
        assert_eq!(error.to_string(), "there cannot be branches below piton/x/run/y/: there is a branch piton/x/run");
        lab.git(&["branch", "-D", "piton/x/run"]);
        lab.git(&["branch", "piton"]);
        let error = git.can_make_branches("piton").expect_err("a branch of that name");
        assert_eq!(error.to_string(), "there cannot be branches below piton/: there is a branch piton");
        assert!(error.hint().expect("a hint").contains("git branch -m piton"));
        let moved = git.move_ref("refs/heads/piton/x/run", &lab.head(&lab.repo()), None, "open");
        assert!(matches!(moved, Err(GitError::BranchInTheWay { .. })), "{moved:?}");
    }
}

lab_test! {
    fn git_finds_nothing_wrong_with_its_settings(lab) {
        let nothing = oid(&"1".repeat(40));
        let moved = lab.found().move_ref("refs/heads/x", &nothing, None, "x").expect_err("no object");
        assert!(!moved.to_string().contains("warning"), "{moved}");
    }
}

lab_test! {
    fn head_is_that_of_the_worktree_one_is_in(lab) {
        let tree = lab.tree();
        lab.write("new", "");
        let main = lab.commit("more on main");
        let there = Git::discover(tree.path()).expect("found");
        assert_ne!(there.commit("HEAD").expect("a commit"), main);
        assert_eq!(lab.found().commit("HEAD").expect("a commit"), main);
    }
}

lab_test! {
    fn revisions_are_values_and_never_options(lab) {
        let git = lab.found();
        let head = lab.head(&lab.repo());
        lab.git(&["tag", "-a", "v1", "-m", "annotated"]);
        for rev in ["HEAD", "main", "v1", head.short()] {
            assert_eq!(git.commit(rev).expect("a commit"), head, "{rev}");
        }
        for rev in ["--all", "-h", "nothing", "", "HEAD:README.md", "$(touch x)"] {
            let answer = git.commit(rev);
            assert!(matches!(answer, Err(GitError::UnknownRevision { .. })), "{rev}: {answer:?}");
        }
    }
}

lab_test! {
    fn a_repository_without_a_commit_asks_for_one(lab) {
        let new = lab.root().join("new");
        fs::create_dir(&new).expect("writable");
        lab.git_in(&new, &["init", "-q"]);
        let error = Git::discover(&new).expect("found").commit("HEAD").expect_err("no commit");
        assert!(matches!(error, GitError::Unborn));
        assert!(error.hint().is_some_and(|hint| hint.contains("git commit")));
    }
}

lab_test! {
    fn init_makes_a_repository_of_a_folder(lab) {
        let folder = lab.root().join("made");
        put(&folder.join("plan.toml"), "x");
        let git = Git::init(&folder, "the plan").expect("made");
        let commit = git.commit("HEAD").expect("a commit");
        assert_eq!(lab.git_in(&folder, &["log", "--format=%s %an", "-1"]), "the plan Test");
        assert_eq!(git.root_of(&commit).expect("a root"), commit);
        assert_eq!(lab.git_in(&folder, &["status", "--porcelain"]), "");
    }
}

lab_test! {
    fn roots_and_remotes(lab) {
        let git = lab.found();
        let root = lab.head(&lab.repo());
        assert_eq!(git.remote(), None);
        lab.git(&["remote", "add", "origin", "https://me:token@example.com/x.git"]);
        assert_eq!(git.remote().as_deref(), Some("https://example.com/x.git"));
        let next = lab.commit("second");
        assert_eq!(git.root_of(&next).expect("a root"), root);
        assert!(git.is_ancestor(&root, &next).expect("known"));
        assert!(!git.is_ancestor(&next, &root).expect("known"));
        assert_eq!(git.tree_of(&next).expect("a tree").to_string(), lab.git(&["rev-parse", "HEAD^{tree}"]));
    }
}

lab_test! {
    fn refs_move_only_from_where_they_were_expected(lab) {
        let git = lab.found();
        let (first, second) = (lab.head(&lab.repo()), lab.commit("second"));
        let name = "refs/heads/piton/x/run";
        assert_eq!(git.ref_target(name).expect("known"), None);
        assert_eq!(git.move_ref(name, &first, None, "made").expect("done"), Moved::Moved);
        let lost = Moved::Lost { current: Some(first.clone()) };
        assert_eq!(git.move_ref(name, &second, None, "made again").expect("done"), lost);
        assert_eq!(git.move_ref(name, &second, Some(&second), "wrong").expect("done"), lost);
        assert_eq!(git.move_ref(name, &second, Some(&first), "moved").expect("done"), Moved::Moved);
        assert_eq!(git.ref_target(name).expect("known"), Some(second.clone()));
        let gone = git.move_ref("refs/heads/none", &second, Some(&first), "gone").expect("done");
        assert_eq!(gone, Moved::Lost { current: None });
    }
}

lab_test! {
    fn a_ref_is_never_guessed(lab) {
        let git = lab.found();
        let head = lab.head(&lab.repo());
        // Plain git reads this as an abbreviated id.
        let guessed = format!("refs/heads/fix-g{}", head.short());
        assert_eq!(oid(&lab.git(&["rev-parse", &guessed])), head);
        assert_eq!(git.ref_target(&guessed).expect("known"), None);
        lab.git(&["update-ref", "refs/heads/a/b", head.as_str()]);
        assert_eq!(git.ref_target("refs/heads/a").expect("known"), None);
        assert!(git.has_refs_under("refs/heads/a/").expect("known"));
        assert!(!git.has_refs_under("refs/piton/").expect("known"));
    }
}

lab_test! {
    fn a_symbolic_ref_is_replaced_and_not_followed(lab) {
        let git = lab.found();
        let (first, second) = (lab.head(&lab.repo()), lab.commit("second"));
        lab.git(&["branch", "victim", first.as_str()]);
        let name = "refs/heads/piton/x/run";
        lab.git(&["symbolic-ref", name, "refs/heads/victim"]);
        git.move_ref(name, &second, Some(&first), "land").expect("done");
        assert_eq!(git.ref_target("refs/heads/victim").expect("known"), Some(first));
        assert_eq!(git.ref_target(name).expect("known"), Some(second));
    }
}

lab_test! {
    /// A lock left behind by a dead process is waited for, then moved aside; it is not lost.
    fn a_stale_ref_lock_is_moved_aside(lab) {
        let git = lab.found();
        let (first, second) = (lab.head(&lab.repo()), lab.commit("second"));
        let name = "refs/heads/piton/x/run";
        git.move_ref(name, &first, None, "made").expect("done");
        let lock = lab.path(".git").join(format!("{name}.lock"));
        put(&lock, "left behind");
        lab.sh(&lab.repo(), &format!("touch -d '1 hour ago' '{}'", lock.display()));
        let plain = lab.try_git_in(&lab.repo(), &["update-ref", name, second.as_str()]);
        assert!(plain.is_err_and(|text| text.contains(".lock")), "the fault was not applied");
        assert_eq!(git.move_ref(name, &second, Some(&first), "moved").expect("done"), Moved::Moved);
        assert_eq!(git.ref_target(name).expect("known"), Some(second));
        let aside = fs::read_dir(lab.path(".git/piton/aside")).expect("a folder").count();
        assert_eq!(aside, 1);
    }
}

lab_test! {
    /// A lock that a process holds open is respected.
    fn a_held_ref_lock_is_waited_for(lab) {
        let git = lab.found();
        let (first, second) = (lab.head(&lab.repo()), lab.commit("second"));
        let name = "refs/heads/piton/x/run";
        git.move_ref(name, &first, None, "made").expect("done");
        let lock = lab.path(".git").join(format!("{name}.lock"));
        put(&lock, "");
        lab.sh(&lab.repo(), &format!("touch -d '1 hour ago' '{}'", lock.display()));
        let held = fs::File::open(&lock).expect("open");
        let path = lock.clone();
        let holder = std::thread::spawn(move || {
            let (held, began) = (held, Instant::now());
            while began.elapsed() < Duration::from_millis(1500) {
                assert!(path.exists(), "a held lock was taken away");
                std::thread::yield_now();
            }
            fs::remove_file(&path).expect("ours");
            drop(held);
        });
        assert_eq!(git.move_ref(name, &second, Some(&first), "moved").expect("done"), Moved::Moved);
        holder.join().expect("the lock was respected");
        assert!(!lab.path(".git/piton/aside").exists());
    }
}

lab_test! {
    fn excludes_are_added_once(lab) {
        let git = lab.found();
        fs::write(lab.path(".git/info/exclude"), "no line end").expect("writable");
        git.exclude("/.piton/").expect("added");
        git.exclude("/.piton/").expect("there");
        assert_eq!(lab.read(".git/info/exclude"), "no line end\n/.piton/\n");
        fs::remove_dir_all(lab.path(".git/info")).expect("removable");
        git.exclude("/.piton/").expect("added");
        assert_eq!(lab.read(".git/info/exclude"), "/.piton/\n");
    }
}

lab_test! {
    fn without_an_identity_piton_commits(lab) {
        fs::remove_file(lab.home().join(".gitconfig")).expect("removable");
        let tree = lab.tree();
        put(&tree.path().join("new"), "x");
        tree.commit_all(BRANCH, "leftovers").expect("committed");
        let who = lab.git_in(tree.path(), &["log", "-1", "--format=%an <%ae> %cn"]);
        assert_eq!(who, "piton <piton@localhost> piton");
    }
}

lab_test! {
    /// Reftables came with git 2.45: an older one has no such repository.
    fn sha256_and_reftable_repositories_work(lab) {
        let new = lab.root().join("new");
        fs::create_dir(&new).expect("writable");
        let init = ["init", "-q", "--object-format=sha256", "--ref-format=reftable"];
        match lab.try_git_in(&new, &init) {
            Err(said) if said.contains("unknown option") => lab.git_in(&new, &init[..3]),
            made => made.expect("a repository"),
        };
        put(&new.join("a"), "a");
        let head = lab.commit_in(&new, "initial");
        assert_eq!(head.as_str().len(), 64);
        let git = Git::discover(&new).expect("found");
        let tree = Worktree::at(&git, &new.join(".piton/run"));
        tree.create(BRANCH, &head).expect("created");
        put(&tree.path().join("b"), "b");
        let kept = lab.taken(&tree, 1);
        read_back(&git, &kept).expect("readable");
        let second = Worktree::at(&git, &new.join(".piton/second"));
        rebuild(&second, "piton/x/step/b", &head, Some(&kept.commit)).expect("restored");
        assert_eq!(read(&second.path().join("b")), "b");
        let commit: Oid = tree.commit_all(BRANCH, "leftovers").expect("committed").commit;
        assert_eq!(git.ref_target(&format!("refs/heads/{BRANCH}")).expect("known"), Some(commit));
    }
}
