//! What changes in the user's own checkout while an agent works. piton does not work there, so a change
//! comes from a person, another program, or an agent that has left its worktree. Which of them cannot be
//! known; that it happened is recorded with the step, once, when the agent has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use piton_core::decide::Request;
use piton_core::event::CheckoutChanges;
use piton_core::ids::Oid;
use piton_core::limits::CHECKOUT_FILES_MAX;
use piton_git::repo::chain;
use piton_git::repo::status::{StatusDepth, status};
use piton_git::repo::{Git, GitError, drivers, names};
use piton_git::worktree::differing;

use super::Keeper;

/// The files of a checkout that differ from its HEAD.
pub(super) struct Checkout {
    head: Option<Oid>,
    files: BTreeMap<Vec<u8>, Option<Stat>>,
}

/// What tells that a file was written.
#[derive(PartialEq, Eq)]
struct Stat {
    written: (i64, i64),
    size: u64,
    inode: u64,
}

impl Checkout {
    /// Looks at the main worktree; none where there is no such worktree or git cannot read it.
    pub(super) fn look(git: &Git) -> Option<Checkout> {
        let (root, dir) = (git.main_root(), git.common_dir());
        if root == dir {
            return None;
        }
        let status = || -> Result<_, GitError> {
            let call = || git.call_in(dir).option("--work-tree=", root).inside(root);
            status(call().configs(&drivers::overrides(call())?), StatusDepth::Folders)
        };
        let status = status().ok()?;
        let tracked = status.tracked.into_iter().map(|entry| entry.path);
        let files = tracked.chain(status.untracked).map(|path| {
            let found = fs::symlink_metadata(root.join(names::path(&path))).ok();
            let stat = found.map(|found| Stat {
                written: (found.mtime(), found.mtime_nsec()),
                size: found.size(),
                inode: found.ino(),
            });
            (path, stat)
        });
        Some(Checkout { head: status.head, files: files.collect() })
    }

    /// The paths that changed since `before`.
    fn changed_since(&self, git: &Git, before: &Checkout) -> BTreeSet<Vec<u8>> {
        let now = self.files.iter();
        let news = now.filter(|(path, stat)| before.files.get(*path) != Some(stat));
        let back = before.files.keys().filter(|path| !self.files.contains_key(*path));
        let mut changed: BTreeSet<Vec<u8>> =
            news.map(|(path, _)| path).chain(back).cloned().collect();
        if let (Some(old), Some(new)) = (&before.head, &self.head)
            && old != new
        {
            // What was committed, or checked out.
            changed.extend(differing(git.call(), old, new).unwrap_or_default());
        }
        changed
    }
}

impl Keeper {
    /// Records which files of the user's checkout changed since `before`, if any did.
    pub(super) fn compare_checkout(&mut self, before: Option<Checkout>) {
        let git = &self.project.git;
        let now = before.as_ref().and_then(|_| Checkout::look(git));
        let (Some(before), Some(now)) = (before, now) else { return };
        let changed = now.changed_since(git, &before);
        if changed.is_empty() {
            return;
        }
        let files: Vec<String> =
            changed.iter().take(CHECKOUT_FILES_MAX).map(|path| names::shown(path)).collect();
        let more = (changed.len() - files.len()) as u64;
        let changes = CheckoutChanges { files, more };
        if let Err(error) = self.submit(Request::ReportCheckout(changes)) {
            self.note(&format!("files changed in the checkout: {}", chain(&error)));
        }
    }
}
