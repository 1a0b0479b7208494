//! Git, worktrees, snapshots and landing against the real git, in repositories of their own. Every
//! test runs in a process of its own whose environment is empty but for a home and a set of `GIT_*`
//! variables that point at a decoy; a test that ends with a changed decoy has failed.

#[macro_use]
mod lab;

mod collected;
mod hardening;
mod landing;
mod refs;
mod restoring;
mod snapshots;
mod trees;
mod unsnapshotable;
