//! Commits are made from a tree, never from a worktree by `git commit`: no hook, no editor and no
//! signing program has a part in it.

use piton_core::ids::Oid;

use super::{Call, GitError, oid};

/// Who commits where the user has not said who they are.
pub(super) const NAME: &str = "piton";
pub(super) const EMAIL: &str = "piton@localhost";

/// Makes a commit by the user, or by piton where git knows no user.
pub fn commit_tree(
    call: impl Fn() -> Call,
    tree: &Oid,
    parents: &[Oid],
    message: &str,
) -> Result<Oid, GitError> {
    let ask = || {
        // Git's own guess would be the account and the host's name: nobody's wish.
        let mut call = call().config("user.useConfigOnly", "true");
        call = call.args(&["commit-tree", "-F", "-"]).input(format!("{message}\n").into_bytes());
        for parent in parents {
            call = call.arg("-p").arg(parent.as_str());
        }
        call.arg(tree.as_str())
    };
    let answer = match ask().run() {
        Err(GitError::Failed { .. }) => {
            let named = ask().env("GIT_AUTHOR_NAME", NAME).env("GIT_AUTHOR_EMAIL", EMAIL);
            named.env("GIT_COMMITTER_NAME", NAME).env("GIT_COMMITTER_EMAIL", EMAIL).run()
        }
        answer => answer,
    }?;
    oid(&answer.stdout, "git commit-tree")
}
