//! What no snapshot can hold: moved out of a worktree before it is reset; what belongs to every step stays
//! where it is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use piton_core::event::Snapshot;
use piton_core::limits::OMISSIONS_MAX;
use piton_git::GitError;
use piton_git::snapshot::{MovedOut, has_omitted, moved_out, set_aside};
use piton_git::worktree::Worktree;

use crate::lab::{BRANCH, Lab, files, prints, put, read};

/// Moves out what a reset to the commit that is checked out would lose.
fn out(
    lab: &Lab,
    tree: &Worktree,
    kept: &Snapshot,
    into: &Path,
) -> Result<Vec<MovedOut>, GitError> {
    set_aside(tree, (kept, &lab.head(tree.path())), into)
}

fn shown(moved: &[MovedOut]) -> Vec<String> {
    moved.iter().map(|moved| String::from_utf8_lossy(&moved.path).into_owned()).collect()
}

/// Moves out what no snapshot can hold, and resets the tree for another step.
fn reset(lab: &Lab, tree: &Worktree, into: &Path) -> Vec<MovedOut> {
    let (head, kept) = (lab.head(tree.path()), lab.taken(tree, 1));
    let moved = out(lab, tree, &kept, into).expect("moved");
    tree.reset_to("piton/x/step/b", &head).expect("reset");
    assert_eq!(lab.git_in(tree.path(), &["status", "--porcelain"]), "", "nothing of it is left");
    assert_eq!(moved_out(into), moved);
    moved
}

lab_test! {
    fn what_cannot_be_kept_is_listed_and_carried_before_a_reset(lab) {
        let tree = lab.tree();
        let path = |name: &str| tree.path().join(name);
        put(&path("work/file"), "x");
        lab.sh(tree.path(), "mkfifo work/fifo; mkfifo target.log; mkdir target; mkfifo target/fifo");
        let _socket = UnixListener::bind(path("socket")).expect("bound");
        fs::remove_file(path("README.md")).expect("removable");
        lab.sh(tree.path(), "mkfifo README.md");
        for name in ["empty", "full"] {
            fs::create_dir(path(name)).expect("writable");
            lab.git_in(&path(name), &["init", "-q"]);
        }
        put(&path("full/file"), "x");
        lab.sh(tree.path(), "mkfifo full/fifo");
        lab.commit_in(&path("full"), "inner");
        let plain = lab.try_git_in(tree.path(), &["add", "-A"]);
        assert!(plain.is_err_and(|text| text.contains("fatal")), "plain git gives up as a whole");
        let kept = lab.taken(&tree, 1);
        let omitted: Vec<String> =
            kept.omitted.iter().map(|left| format!("{}: {}", left.path, left.why)).collect();
        let history = "the history of a nested repository: only its files are kept";
        let expected = [
            "README.md: a FIFO, not a file".to_owned(),
            format!("empty/.git: {history}"),
            format!("full/.git: {history}"),
            "full/fifo: a FIFO, not a file".to_owned(),
            "socket: a socket, not a file".to_owned(),
            "work/fifo: a FIFO, not a file".to_owned(),
        ];
        assert_eq!(omitted, expected);
        let paths = [".gitignore", "README.md", "full/file", "src/main.rs", "work/file"];
        assert_eq!(lab.paths_of(&kept.commit), paths);
        let into = lab.root().join("outside/omitted");
        out(lab, &tree, &kept, &into).expect("carried");
        out(lab, &tree, &kept, &into).expect("and again");
        let carried: Vec<_> = prints(&into, false).into_keys().collect();
        let plain = |path: &&PathBuf| !path.starts_with("empty/.git") && !path.starts_with("full/.git");
        let expected = ["README.md", "full/fifo", "full/file", "socket", "work/fifo"];
        assert_eq!(carried.iter().filter(plain).collect::<Vec<_>>(), expected.map(Path::new));
        assert!(into.join("empty/.git/HEAD").exists() && into.join("full/.git/index").exists());
        tree.reset_to(BRANCH, &lab.head(tree.path())).expect("reset");
        assert!(!path("work").exists() && !path("full").exists() && !path("empty").exists());
        assert!(path("target/fifo").exists() && path("target.log").exists(), "what is ignored stays");
        assert_eq!(read(&path("README.md")), "hello\n");
    }
}

lab_test! {
    /// What came after the snapshot and cannot be kept changes no tree, so there is no new snapshot
    /// that could list it.
    fn what_no_snapshot_lists_is_carried_before_a_reset(lab) {
        let tree = lab.tree();
        let path = |name: &str| tree.path().join(name);
        put(&path("work"), "x");
        let kept = lab.taken(&tree, 1);
        let huge = fs::File::create(path("huge")).expect("writable");
        huge.set_len(1100 << 20).expect("sparse");
        lab.sh(tree.path(), "mkdir new; mkfifo new/pipe");
        assert_eq!(lab.take_after(&tree, 2, Some(&kept.tree)).expect("taken"), None, "the fault");
        let into = lab.root().join("outside/omitted");
        out(lab, &tree, &kept, &into).expect("carried");
        tree.reset_to(BRANCH, &lab.head(tree.path())).expect("reset");
        assert!(!path("huge").exists() && !path("new").exists() && !path("work").exists());
        assert_eq!(fs::metadata(into.join("huge")).expect("kept").len(), 1100 << 20);
        assert!(fs::symlink_metadata(into.join("new/pipe")).is_ok());
        assert!(!into.join("work").exists(), "the snapshot has it");
    }
}

lab_test! {
    /// A snapshot that is not of this very tree does not allow a reset either.
    fn what_changed_since_the_snapshot_is_carried_before_a_reset(lab) {
        let tree = lab.tree();
        put(&tree.path().join("work"), "x");
        put(&tree.path().join("same"), "x");
        let kept = lab.taken(&tree, 1);
        put(&tree.path().join("work"), "y");
        put(&tree.path().join("src/main.rs"), "changed");
        fs::remove_file(tree.path().join("README.md")).expect("removable");
        let into = lab.root().join("outside/omitted");
        out(lab, &tree, &kept, &into).expect("carried");
        let carried: Vec<_> = files(&into, false).into_keys().collect();
        assert_eq!(carried, ["src/main.rs", "work"].map(PathBuf::from));
        assert_eq!(read(&into.join("work")), "y");
    }
}

lab_test! {
    fn a_long_list_is_cut_and_still_carried(lab) {
        let tree = lab.tree();
        let many = OMISSIONS_MAX + 20;
        lab.sh(tree.path(), &format!("mkdir pipes; for n in $(seq {many}); do mkfifo pipes/$n; done"));
        let kept = lab.taken(&tree, 1);
        assert_eq!(kept.omitted.len(), OMISSIONS_MAX);
        assert_eq!(kept.omitted.last().map(|last| last.why.as_str()), Some("and 21 more"));
        let into = lab.root().join("outside/omitted");
        out(lab, &tree, &kept, &into).expect("carried");
        assert_eq!(files(&into, false).len(), many);
    }
}

lab_test! {
    fn a_path_that_cannot_be_carried_refuses(lab) {
        let tree = lab.tree();
        lab.sh(tree.path(), "mkfifo pipe");
        let kept = lab.taken(&tree, 1);
        put(&lab.root().join("outside/file"), "in the way");
        let carried = out(lab, &tree, &kept, &lab.root().join("outside/file/folder"));
        assert!(matches!(carried, Err(GitError::Io { .. })), "{carried:?}");
        assert!(fs::symlink_metadata(tree.path().join("pipe")).is_ok());
    }
}

lab_test! {
    /// A repository with commits of its own, what is staged, changed and ignored in it; one without a
    /// commit; one in another; and what is called `.git` and is none.
    fn repositories_are_moved_whole(lab) {
        let tree = lab.tree();
        let path = |name: &str| tree.path().join(name);
        for name in ["deep/er/full", "unborn", "deep/er/full/inner"] {
            fs::create_dir_all(path(name)).expect("writable");
            lab.git_in(&path(name), &["init", "-q"]);
            put(&path(name).join("file"), "first\n");
            put(&path(name).join(".gitignore"), "*.o\n/inner\n");
            put(&path(name).join("made.o"), "ignored");
        }
        lab.commit_in(&path("deep/er/full"), "only here");
        put(&path("deep/er/full/file"), "second\n");
        lab.git_in(&path("deep/er/full"), &["add", "file"]);
        put(&path("deep/er/full/file"), "third\n");
        fs::create_dir_all(path("deep/er/full/hollow")).expect("writable");
        put(&path("fake/.git/file"), "no repository");
        put(&path("fake/file"), "x");
        put(&path("work"), "x");
        let names = ["deep/er/full", "fake", "unborn"];
        let before = names.map(|name| files(&path(name), true));
        let into = lab.root().join("outside/omitted");
        assert_eq!(shown(&reset(lab, &tree, &into)), names);
        assert_eq!(names.map(|name| files(&into.join(name), true)), before);
        assert!(into.join("deep/er/full/hollow").is_dir());
    }
}

lab_test! {
    fn what_a_snapshot_leaves_out_is_moved_too(lab) {
        let tree = lab.tree();
        let path = |name: &str| tree.path().join(name);
        lab.sh(tree.path(), "mkfifo pipe");
        put(&path("src/.GIT/file"), "a name that git does not take");
        put(&path("shut/file"), "x");
        fs::set_permissions(path("shut"), fs::Permissions::from_mode(0o000)).expect("ours");
        let is_root = fs::read_dir(path("shut")).is_ok();
        let into = lab.root().join("outside/omitted");
        let moved = reset(lab, &tree, &into);
        let expected: &[&str] =
            if is_root { &["pipe", "src/.GIT"] } else { &["pipe", "shut", "src/.GIT"] };
        assert_eq!(shown(&moved), expected);
        let shut = if is_root { path("shut") } else { into.join("shut") };
        if shut.exists() {
            fs::set_permissions(&shut, fs::Permissions::from_mode(0o700)).expect("ours");
        }
        assert_eq!(read(&into.join("src/.GIT/file")), "a name that git does not take");
        assert!(fs::symlink_metadata(into.join("pipe")).is_ok());
    }
}

lab_test! {
    /// `git init` in a folder of tracked files makes none of them its own: git goes on to see them.
    fn a_repository_around_tracked_files_leaves_them(lab) {
        let tree = lab.tree();
        lab.git_in(&tree.path().join("src"), &["init", "-q"]);
        put(&tree.path().join("src/.git/info/exclude"), "new.rs\n");
        put(&tree.path().join("src/new.rs"), "not ignored by the one around it");
        put(&tree.path().join("src/main.rs"), "changed");
        let moved = reset(lab, &tree, &lab.root().join("outside/omitted"));
        assert_eq!(shown(&moved), ["src/.git"]);
    }
}

lab_test! {
    fn what_is_everybodys_stays(lab) {
        let library = lab.root().join("library");
        fs::create_dir_all(&library).expect("writable");
        lab.git_in(&library, &["init", "-q"]);
        put(&library.join("file"), "x");
        lab.commit_in(&library, "library");
        let source = library.to_str().expect("text");
        let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", source];
        lab.git(&[&add[..], &["sub"]].concat());
        lab.git(&[&add[..], &["bare"]].concat());
        lab.commit("submodules");
        let tree = lab.tree();
        let path = |name: &str| tree.path().join(name);
        let update = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init"];
        lab.git_in(tree.path(), &[&update[..], &["sub"]].concat());
        put(&path("sub/new"), "dirty");
        lab.git_in(tree.path(), &["worktree", "add", "-q", "below", "-b", "other"]);
        put(&path("below/theirs"), "x");
        put(&path("target/dep/file"), "ignored");
        lab.git_in(&path("target/dep"), &["init", "-q"]);
        let head = lab.head(tree.path());
        assert!(!has_omitted(&tree, &head).expect("known"));
        let kept = lab.taken(&tree, 1);
        let into = lab.root().join("outside/omitted");
        assert_eq!(out(lab, &tree, &kept, &into).expect("moved"), []);
        assert!(!into.exists());
        // One that only this step has is its own; the next commit has no such submodule.
        lab.git_in(tree.path(), &[&add[..], &["added"]].concat());
        lab.commit_in(tree.path(), "one more");
        let kept = lab.taken(&tree, 2);
        assert!(has_omitted(&tree, &head).expect("known"));
        let moved = set_aside(&tree, (&kept, &head), &into).expect("moved");
        assert_eq!(shown(&moved), ["added"]);
        tree.reset_to("piton/x/step/b", &head).expect("reset");
        assert!(!path("added").exists() && path("sub/new").exists() && path("below/theirs").exists());
        assert_eq!(read(&into.join("added/file")), "x");
    }
}

lab_test! {
    /// Ignored by rules that go with the step: in no snapshot, and nobody else's.
    fn what_only_the_steps_own_rules_ignore_is_moved_aside(lab) {
        let tree = lab.tree();
        let path = |name: &str| tree.path().join(name);
        put(&path(".gitignore"), "target/\n*.log\n.env\n/modules/\n/dep/\n");
        put(&path(".env"), "secret");
        put(&path("modules/x"), "made");
        put(&path("dep/file"), "x");
        lab.git_in(&path("dep"), &["init", "-q"]);
        put(&path("a.log"), "everybody's");
        let (head, kept) = (lab.head(tree.path()), lab.taken(&tree, 1));
        let into = lab.root().join("outside/omitted");
        assert_eq!(out(lab, &tree, &kept, &into).expect("moved"), []);
        let aside = tree.reset_to("piton/x/step/b", &head).expect("reset");
        assert_eq!(lab.git_in(tree.path(), &["status", "--porcelain"]), "");
        assert!(!path(".env").exists() && !path("dep").exists() && path("a.log").exists());
        let names: Vec<_> = aside.iter().map(|aside| aside.path.to_str().expect("text")).collect();
        assert_eq!(names, [".env", "dep", "modules"]);
        assert!(aside.iter().all(|aside| aside.place.exists()));
    }
}

#[cfg(target_os = "linux")]
lab_test! {
    /// No rename leads to the repository: beside the worktree there is a place for it.
    fn a_worktree_on_another_file_system_keeps_what_is_moved_out(lab) {
        let tree = lab.tree();
        lab.git_in(tree.path(), &["init", "-q", "dep"]);
        put(&tree.path().join("dep/file"), "x");
        let far = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let into = far.path().join("omitted");
        let kept = lab.taken(&tree, 1);
        let moved = out(lab, &tree, &kept, &into).expect("moved");
        assert_eq!(shown(&moved), ["dep"]);
        assert!(moved[0].place.starts_with(tree.path().parent().expect("a folder")));
        assert!(!tree.path().join("dep").exists() && moved[0].place.join(".git").exists());
        assert_eq!(moved_out(&into), moved);
    }
}

lab_test! {
    fn what_is_moved_again_goes_beside_what_was_moved_before(lab) {
        let tree = lab.tree();
        let path = |name: &str| tree.path().join(name);
        let into = lab.root().join("outside/omitted");
        for (number, name) in [(1, "one"), (2, "one/inner")] {
            fs::create_dir_all(path(name)).expect("writable");
            lab.git_in(&path(name), &["init", "-q"]);
            let kept = lab.taken(&tree, number);
            assert_eq!(shown(&out(lab, &tree, &kept, &into).expect("moved")), [name]);
        }
        let moved = moved_out(&into);
        assert!(moved[1].place.starts_with(into.join("1")), "not into what was moved before");
        assert!(moved.iter().all(|moved| moved.place.join(".git/HEAD").exists()));
    }
}
