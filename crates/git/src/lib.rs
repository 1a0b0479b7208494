//! Repositories, worktrees and snapshots, by way of git. It knows no run, no log and no store: whoever
//! calls says which ref, which folder and which commit.

pub mod crash;
pub mod file;
pub mod merging;
pub mod repo;
pub mod shell;
pub mod snapshot;
pub mod worktree;

pub use repo::{Git, GitError, Moved};
