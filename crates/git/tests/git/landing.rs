//! How a commit comes onto a run's branch.

use piton_git::merging::{Landing, prepare};
use piton_git::{GitError, Moved};

use crate::lab::{Lab, put};
use piton_core::ids::Oid;

const RUN: &str = "piton/x/run";

/// A commit on top of another, made in a worktree of its own.
fn commit_on(lab: &Lab, base: &Oid, name: &str, changes: &[(&str, &str)]) -> Oid {
    let tree = lab.tree_at(name);
    tree.create(&format!("piton/x/step/{name}"), base).expect("created");
    for (path, text) in changes {
        put(&tree.path().join(path), text);
    }
    lab.commit_in(tree.path(), name)
}

fn open_run(lab: &Lab) -> Oid {
    let git = lab.found();
    git.exclude("/.piton/").expect("writable");
    let base = lab.head(&lab.repo());
    git.move_ref(&format!("refs/heads/{RUN}"), &base, None, "open").expect("made");
    base
}

lab_test! {
    fn the_four_ways_to_land(lab) {
        let git = lab.found();
        let base = open_run(lab);
        let refname = format!("refs/heads/{RUN}");
        let land = |commit: &Oid| prepare(&git, RUN, commit, "land a\n\nPiton-Step: a").expect("known");
        let a = commit_on(lab, &base, "a", &[("a", "a\n"), ("README.md", "by a\n")]);
        let b = commit_on(lab, &base, "b", &[("b", "b\n")]);
        let c = commit_on(lab, &base, "c", &[("README.md", "by c\n"), ("c", "c\n")]);

        assert_eq!(land(&base), Landing::Nothing { tip: base.clone() });
        assert_eq!(land(&a), Landing::FastForward { onto: base.clone(), to: a.clone() });
        assert_eq!(git.ref_target(&refname).expect("known"), Some(base.clone()), "nothing moved");
        assert_eq!(git.move_ref(&refname, &a, Some(&base), "land a").expect("done"), Moved::Moved);
        assert_eq!(land(&a), Landing::Nothing { tip: a.clone() });

        let Landing::Merge { onto, to } = land(&b) else { panic!("a merge") };
        assert_eq!(onto, a);
        assert_eq!(lab.git(&["log", "-1", "--format=%P", to.as_str()]), format!("{a} {b}"));
        assert_eq!(lab.git(&["show", &format!("{to}:README.md")]), "by a");
        assert_eq!(lab.git(&["show", &format!("{to}:b")]), "b");
        git.move_ref(&refname, &to, Some(&onto), "land b").expect("done");

        assert_eq!(land(&c), Landing::Conflict { onto: to, paths: vec!["README.md".into()] });
        assert_eq!(lab.git(&["status", "--porcelain"]), "");
    }
}

lab_test! {
    /// The user looks at the run's branch: its files must not seem to change under them.
    fn a_branch_that_is_checked_out_is_not_landed_on(lab) {
        let git = lab.found();
        let base = open_run(lab);
        let a = commit_on(lab, &base, "a", &[("a", "a\n")]);
        let land = |commit: &Oid| prepare(&git, RUN, commit, "land").expect("known");
        lab.git(&["checkout", "-q", RUN]);
        assert_eq!(land(&a), Landing::CheckedOut { worktree: lab.repo() });
        assert_eq!(land(&base), Landing::Nothing { tip: base.clone() }, "nothing would move");
        lab.git(&["checkout", "-q", "main"]);
        assert_eq!(land(&a), Landing::FastForward { onto: base.clone(), to: a.clone() });
        let linked = lab.root().join("linked");
        lab.git(&["worktree", "add", "-q", linked.to_str().expect("text"), RUN]);
        assert_eq!(land(&a), Landing::CheckedOut { worktree: linked.clone() });
        std::fs::remove_dir_all(&linked).expect("removable");
        assert_eq!(land(&a), Landing::FastForward { onto: base, to: a }, "nobody is there any more");
    }
}

lab_test! {
    fn landing_on_a_branch_that_is_gone_is_an_error(lab) {
        let answer = prepare(&lab.found(), RUN, &lab.head(&lab.repo()), "x");
        assert!(matches!(answer, Err(GitError::NoRef { .. })), "{answer:?}");
    }
}

lab_test! {
    /// The repository's merge driver does not run, and does not turn a conflict into silence either.
    fn the_repositorys_merge_driver_is_replaced_by_gits_own(lab) {
        lab.write(".gitattributes", "*.txt merge=evil\n");
        lab.write("x.txt", "1\n2\n3\n4\n5\n6\n7\n");
        lab.write("y.txt", "1\n");
        lab.commit("files");
        let base = open_run(lab);
        let mark = lab.root().join("ran");
        lab.git(&["config", "merge.evil.driver", &format!("touch {}", mark.display())]);
        let a = commit_on(lab, &base, "a", &[("x.txt", "one\n2\n3\n4\n5\n6\n7\n"), ("y.txt", "a\n")]);
        let b = commit_on(lab, &base, "b", &[("x.txt", "1\n2\n3\n4\n5\n6\nseven\n")]);
        let c = commit_on(lab, &base, "c", &[("y.txt", "c\n")]);
        lab.git(&["merge-tree", "--write-tree", a.as_str(), b.as_str()]);
        assert!(std::fs::remove_file(&mark).is_ok(), "plain git runs the driver");
        let git = lab.found();
        git.move_ref(&format!("refs/heads/{RUN}"), &a, Some(&base), "land").expect("done");
        let Landing::Merge { to, .. } = prepare(&git, RUN, &b, "m").expect("known") else { panic!() };
        assert_eq!(lab.git(&["show", &format!("{to}:x.txt")]), "one\n2\n3\n4\n5\n6\nseven");
        let conflict = prepare(&git, RUN, &c, "m").expect("known");
        assert_eq!(conflict, Landing::Conflict { onto: a, paths: vec!["y.txt".into()] });
        assert!(!mark.exists());
    }
}

lab_test! {
    /// Attributes come from the commit that is landed on, in every folder of it, and from no worktree.
    fn the_attributes_of_a_merge_are_those_of_the_runs_branch(lab) {
        lab.write("deep/er/.gitattributes", "*.txt merge=union\n");
        lab.write("deep/er/a.txt", "0\n");
        lab.write("top.txt", "0\n");
        lab.commit("files");
        let base = open_run(lab);
        lab.write(".gitattributes", "*.txt merge=union\n");
        let a = commit_on(lab, &base, "a", &[("deep/er/a.txt", "0\na\n"), ("top.txt", "0\na\n")]);
        let b = commit_on(lab, &base, "b", &[("deep/er/a.txt", "0\nb\n")]);
        let c = commit_on(lab, &base, "c", &[("top.txt", "0\nc\n")]);
        let git = lab.found();
        git.move_ref(&format!("refs/heads/{RUN}"), &a, Some(&base), "land").expect("done");
        let Landing::Merge { to, .. } = prepare(&git, RUN, &b, "m").expect("known") else { panic!() };
        assert_eq!(lab.git(&["show", &format!("{to}:deep/er/a.txt")]), "0\na\nb");
        let conflict = prepare(&git, RUN, &c, "m").expect("known");
        assert_eq!(conflict, Landing::Conflict { onto: a, paths: vec!["top.txt".into()] });
        let scratch = git.common_dir().join("piton/scratch");
        assert_eq!(std::fs::read_dir(scratch).expect("there").count(), 0, "nothing is left");
    }
}
