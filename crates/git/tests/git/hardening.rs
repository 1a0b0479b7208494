//! What an agent can plant in a repository does not lead piton's git calls elsewhere, and the user's own
//! filters do run. That nothing of the repository's runs in any verb is in `sentinel.rs` of the binary's tests.

use std::path::Path;

use piton_git::snapshot::rebuild;

use crate::lab::{BRANCH, put, read};

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
