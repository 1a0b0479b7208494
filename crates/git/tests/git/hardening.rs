//! What an agent can plant in a repository must not run in piton's own git calls. Each trap is first
//! shown to snap with plain git.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use piton_git::Git;
use piton_git::merging::{Landing, prepare};
use piton_git::snapshot::{has_omitted, read_back, rebuild, set_aside};

use crate::lab::{BRANCH, Lab, put, read};

const HOOKS: &[&str] = &[
    "reference-transaction",
    "post-index-change",
    "post-checkout",
    "pre-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "post-merge",
    "pre-merge-commit",
    "pre-auto-gc",
    "post-rewrite",
];

/// Traps leave their names in this folder.
struct Traps {
    snapped: PathBuf,
}

impl Traps {
    fn set(lab: &Lab) -> Traps {
        let traps = Traps { snapped: lab.root().join("snapped") };
        fs::create_dir(&traps.snapped).expect("writable");
        let scripts = lab.root().join("scripts");
        for hook in HOOKS {
            traps.script(&lab.path(".git/hooks").join(hook), hook, "");
        }
        let config = |key: &str, value: &str| lab.git(&["config", key, value]);
        let script = |name: &str, then: &str| {
            let path = scripts.join(name);
            traps.script(&path, name, then);
            path.to_str().expect("text").to_owned()
        };
        config("core.fsmonitor", &script("fsmonitor", "exit 1"));
        config("filter.evil.clean", &script("clean", "cat"));
        config("filter.evil.smudge", &script("smudge", "cat"));
        config("filter.evil.required", "true");
        config("merge.evil.driver", &script("merge", "exit 1"));
        config("diff.external", &script("external-diff", ""));
        config("diff.evil.textconv", &script("textconv", "cat"));
        config("gpg.program", &script("gpg", "exit 1"));
        config("log.showSignature", "true");
        config("commit.gpgSign", "true");
        config("core.sshCommand", &script("ssh", "exit 1"));
        config("core.pager", &script("pager", "cat"));
        config("core.editor", &script("editor", ""));
        config("credential.helper", &script("credential", ""));
        config("gc.auto", "1");
        // Only git from 2.54 on knows these.
        for event in ["reference-transaction", "post-index-change", "post-checkout"] {
            config(&format!("hook.evil-{event}.event"), event);
            config(&format!("hook.evil-{event}.command"), &script("configured-hook", ""));
        }
        put(&lab.path(".git/info/attributes"), "*.info filter=evil\n");
        traps
    }

    fn script(&self, path: &Path, name: &str, then: &str) {
        let mark = self.snapped.join(name);
        put(path, format!("#!/bin/sh\n: >> '{}'\n{then}\n", mark.display()));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    }

    fn snapped(&self) -> Vec<String> {
        let list = fs::read_dir(&self.snapped).expect("there").flatten();
        let mut names: Vec<_> =
            list.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn clear(&self) {
        for name in self.snapped() {
            fs::remove_file(self.snapped.join(name)).expect("removable");
        }
    }
}

lab_test! {
    fn nothing_that_the_repository_defines_runs(lab) {
        lab.write(".gitattributes", "*.x filter=evil diff=evil merge=evil\n");
        lab.write("a.x", "1\n");
        lab.commit("attributes");
        let base = lab.head(&lab.repo());
        let traps = Traps::set(lab);

        let plain = lab.root().join("plain");
        let plain_text = plain.to_str().expect("text");
        lab.git(&["worktree", "add", "-q", "-b", "plain", plain_text]);
        put(&plain.join("a.x"), "plain\n");
        put(&plain.join("b.info"), "plain\n");
        lab.git_in(&plain, &["status"]);
        let _ = lab.try_git_in(&plain, &["diff"]);
        lab.git_in(&plain, &["add", "-A"]);
        lab.git_in(&plain, &["-c", "commit.gpgSign=false", "commit", "-q", "-m", "plain"]);
        let _ = lab.try_git_in(&plain, &["commit", "-q", "--allow-empty", "-m", "signed"]);
        put(&plain.join("a.x"), "again\n");
        lab.git_in(&plain, &["checkout", "-q", "-f", "HEAD~1"]);
        put(&plain.join("a.x"), "other\n");
        lab.git_in(&plain, &["-c", "commit.gpgSign=false", "commit", "-q", "-a", "-m", "other"]);
        let _ = lab.try_git_in(&plain, &["merge", "--no-edit", "plain"]);
        let _ = lab.try_git_in(&plain, &["fetch", "ssh://nowhere.invalid/x"]);
        let snapped = traps.snapped();
        let wanted = ["clean", "commit-msg", "external-diff", "fsmonitor", "gpg", "merge",
            "post-checkout", "post-commit", "post-index-change", "pre-commit",
            "reference-transaction", "smudge", "ssh"];
        for trap in wanted {
            assert!(snapped.iter().any(|name| name == trap), "{trap} did not snap: {snapped:?}");
        }
        lab.git(&["worktree", "remove", "-f", "-f", plain_text]);
        traps.clear();

        everything(lab, &base);
        assert_eq!(traps.snapped(), Vec::<String>::new());
    }
}

/// Every function that calls git, in an order that gives each something to do.
fn everything(lab: &Lab, base: &piton_core::ids::Oid) {
    let git = Git::discover(&lab.repo()).expect("found");
    assert_eq!(&git.commit("main").expect("a commit"), base);
    git.root_of(base).expect("a root");
    assert_eq!(git.remote(), None);
    git.exclude("/.piton/").expect("added");
    assert!(!git.has_refs_under("refs/piton/").expect("known"));
    let run = "refs/heads/piton/x/run";
    git.move_ref(run, base, None, "open").expect("made");
    let tree = lab.tree();
    assert_eq!(read(&tree.path().join("a.x")), "1\n");
    put(&tree.path().join("a.x"), "by the agent\n");
    put(&tree.path().join("b.info"), "x\n");
    put(&tree.path().join("new.x"), "x\n");
    lab.sh(tree.path(), "mkfifo pipe; touch src/main.rs");
    tree.state().expect("known");
    assert!(tree.dirty().expect("known"));
    assert_eq!(tree.changed_since(base).expect("known"), 3);
    tree.facts(base).expect("known");
    let kept = lab.taken(&tree, 1);
    assert_eq!(lab.take_after(&tree, 2, Some(&kept.tree)).expect("taken"), None);
    read_back(&git, &kept).expect("readable");
    assert!(has_omitted(&tree, base).expect("known"));
    set_aside(&tree, (&kept, base), &lab.root().join("outside/omitted")).expect("carried");
    tree.reset_to(BRANCH, base).expect("reset");
    assert_eq!(read(&tree.path().join("a.x")), "1\n");
    rebuild(&tree, BRANCH, base, Some(&kept.commit)).expect("restored");
    assert_eq!(read(&tree.path().join("a.x")), "by the agent\n");
    let commit = tree.commit_all(BRANCH, "leftovers").expect("committed").commit;
    tree.facts(base).expect("known");
    let Landing::FastForward { .. } = prepare(&git, "piton/x/run", &commit, "land").expect("known")
    else {
        panic!("forward")
    };
    let other = lab.tree_at("other");
    other.create("piton/x/step/b", base).expect("created");
    put(&other.path().join("a.x"), "by another\n");
    let theirs = other.commit_all("piton/x/step/b", "leftovers").expect("committed").commit;
    git.move_ref(run, &commit, Some(base), "land").expect("moved");
    let Landing::Conflict { paths, .. } =
        prepare(&git, "piton/x/run", &theirs, "land").expect("known")
    else {
        panic!("a conflict")
    };
    assert_eq!(paths, ["a.x"]);
    fs::remove_dir_all(other.path()).expect("removable");
    other.create("piton/x/step/b", base).expect("made again");
    Git::init(&lab.root().join("outside"), "a new one").expect("made");
}

lab_test! {
    /// The user's own drivers are the user's wish; a repository cannot replace them either.
    fn the_users_filters_run_where_files_meet_commits(lab) {
        let mut config = read(&lab.home().join(".gitconfig"));
        config.push_str("[filter \"case\"]\n\tclean = tr a-z A-Z\n\tsmudge = tr A-Z a-z\n");
        put(&lab.home().join(".gitconfig"), config);
        lab.write(".gitattributes", "*.up filter=case\n");
        lab.write("a.up", "first\n");
        lab.commit("filtered");
        assert_eq!(lab.git(&["show", "HEAD:a.up"]), "FIRST");
        lab.git(&["config", "filter.case.clean", "sed s/^/evil/"]);
        lab.git(&["config", "filter.case.smudge", "sed s/^/evil/"]);
        let tree = lab.tree();
        assert_eq!(read(&tree.path().join("a.up")), "first\n", "smudged by the user's filter");
        assert!(!tree.dirty().expect("known"));
        put(&tree.path().join("a.up"), "Second\n");
        let (head, before) = (lab.head(tree.path()), crate::lab::files(tree.path(), false));
        let kept = lab.taken(&tree, 1);
        assert_eq!(lab.git(&["show", &format!("{}:a.up", kept.commit)]), "Second", "raw bytes");
        tree.reset_to(BRANCH, &head).expect("reset");
        rebuild(&tree, BRANCH, &head, Some(&kept.commit)).expect("restored");
        assert_eq!(crate::lab::files(tree.path(), false), before);
        let commit = tree.commit_all(BRANCH, "leftovers").expect("committed").commit;
        assert_eq!(lab.git(&["show", &format!("{commit}:a.up")]), "SECOND");
    }
}

lab_test! {
    /// A worktree's own files that say where its repository is are the agent's to write.
    fn a_worktree_cannot_lead_elsewhere(lab) {
        let tree = lab.tree();
        let evil = lab.root().join("evil");
        lab.sh(lab.root(), "cp -r repo/.git evil");
        lab.git_in(&evil, &["config", "core.bare", "false"]);
        let dir = lab.git_in(tree.path(), &["rev-parse", "--absolute-git-dir"]);
        put(&Path::new(&dir).join("commondir"), evil.to_str().expect("text"));
        put(&tree.path().join("work"), "x");
        let plain = lab.git_in(tree.path(), &["rev-parse", "--git-common-dir"]);
        assert_eq!(plain, evil.to_str().expect("text"), "the trap works on plain git");
        let commit = tree.commit_all(BRANCH, "leftovers").expect("committed").commit;
        let kept = lab.found().ref_target(&format!("refs/heads/{BRANCH}")).expect("known");
        assert_eq!(kept, Some(commit));
        put(&tree.path().join(".git"), format!("gitdir: {}\n", evil.display()));
        assert!(tree.commit_all(BRANCH, "leftovers").is_err());
    }
}
