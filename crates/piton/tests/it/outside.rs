//! The work of holders outside, with the real binary: worktrees that piton makes for them, commits that
//! it verifies and lands, bytes that it keeps for them; killed, raced and taken from them at each
//! durable action.

mod bytes;
mod commits;
mod cut_short;
mod history;
mod trees;

use std::path::{Path, PathBuf};

use piton_testkit::Sandbox;
use piton_testkit::runs::{branch, commit_file, data, landed, lay_plan, refused};
use serde_json::Value;

const PLAN: &str = "\
[plan]
name = 'auth'

[[step]]
id = 'jwt'
title = 'JWT validation'
verify = 'test -f auth.ts && cat auth.ts'

[[step]]
id = 'docs'
items = ['say how']
substeps = [{ id = 'write', title = 'write them' }]

[[step]]
id = 'routes'
needs = ['jwt']
";

/// A repository with a plan whose steps are claimed by others.
pub(crate) struct Lab {
    pub(crate) sandbox: Sandbox,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        Lab::of(PLAN)
    }

    /// Whose plan is trusted.
    pub(crate) fn trusting() -> Lab {
        let lab = Lab::new();
        lab.data(&["trust", "plan.toml", "--yes"]);
        lab
    }

    pub(crate) fn of(plan: &str) -> Lab {
        let sandbox = crate::sandbox();
        lay_plan(&sandbox, plan);
        Lab { sandbox }
    }

    #[track_caller]
    pub(crate) fn data(&self, args: &[&str]) -> Value {
        data(&self.sandbox, args)
    }

    /// A command that is refused: its exit status, code and message.
    #[track_caller]
    pub(crate) fn refused(&self, args: &[&str]) -> (i32, String, String) {
        refused(&self.sandbox, args)
    }

    /// The worktree of a step.
    #[track_caller]
    pub(crate) fn tree(&self, id: &str) -> PathBuf {
        let made = self.data(&["worktree", "create", "plan.toml", id]);
        made["path"].as_str().expect("a path").into()
    }

    /// Claims a step from its own worktree.
    #[track_caller]
    pub(crate) fn claim(&self, id: &str, more: &[&str]) -> (PathBuf, String) {
        let tree = self.tree(id);
        let fence = self.claim_from(&tree, id, more)["fence"].to_string();
        (tree, fence)
    }

    #[track_caller]
    pub(crate) fn claim_from(&self, tree: &Path, id: &str, more: &[&str]) -> Value {
        let tree = tree.to_str().expect("a path is text");
        let args = ["claim", "plan.toml", "--worktree", tree, "--step", id];
        let claimed = self.data(&[&args[..], more].concat());
        assert_eq!(claimed["claimed"], true, "{claimed}");
        claimed
    }

    /// Commits a file in a worktree; the commit's id.
    #[track_caller]
    pub(crate) fn commit(&self, tree: &Path, file: &str, text: &str) -> String {
        commit_file(&self.sandbox, tree, file, text)
    }

    pub(crate) fn branch(&self) -> String {
        branch(&self.sandbox)
    }

    /// What the run's branch has in a file.
    #[track_caller]
    pub(crate) fn landed(&self, file: &str) -> String {
        landed(&self.sandbox, file)
    }

    pub(crate) fn tip(&self) -> String {
        self.sandbox.git(&["rev-parse", "--verify", &self.branch()])
    }

    pub(crate) fn refs(&self) -> Vec<String> {
        let listed = self.sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
        listed.lines().map(str::to_owned).collect()
    }

    /// No scratch worktree is left, neither on disk nor in git's list.
    #[track_caller]
    pub(crate) fn assert_no_scratch(&self) {
        let list = self.sandbox.git(&["worktree", "list", "--porcelain"]);
        assert!(!list.contains("/piton/verify/"), "{list}");
        let home = self.sandbox.path(".git/piton/verify");
        let left: Vec<_> = std::fs::read_dir(home).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(!self.sandbox.exists(".git/piton/aside"), "nothing had to be moved out of the way");
    }
}

/// Passed by everything that ends a claim: see `killed_before_the_act`.
pub(crate) const SNAPSHOT_KEPT: &str = "outside.snapshot-kept";
