//! A lookout on the user's own checkout while an agent works. Nothing of piton works there, so what
//! changes was changed by somebody else: a person, another program, or the agent that has left its
//! worktree. Who it was cannot be known; that it happened can be told, with the step.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use piton_core::decide::Command;
use piton_core::ids::Oid;
use piton_core::limits::CHECKOUT_FILES_MAX;

use super::{Input, Keeper};
use crate::error::chain;
use crate::git::status::{Depth, status};
use crate::git::{Git, GitError, drivers, names};
use crate::worktree::differing;

/// How often it is looked at, where looking is cheap.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Never more than this share of a core.
const SHARE: u32 = 400;

/// Looks in the background, until ended.
pub(super) struct Lookout {
    stop: Sender<()>,
    begun: Receiver<()>,
    thread: JoinHandle<()>,
}

/// What differs from HEAD, and how it looked.
struct Seen {
    head: Option<Oid>,
    files: BTreeMap<Vec<u8>, Option<Print>>,
}

/// What tells that a file was written.
#[derive(PartialEq, Eq)]
struct Print {
    written: (i64, i64),
    size: u64,
    inode: u64,
}

impl Lookout {
    /// Looks for the first time on a thread of its own, while the tree is prepared.
    pub(super) fn start(git: &Git, to: Sender<Input>) -> Lookout {
        let (stop, stopped) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        let git = git.clone();
        let thread = std::thread::spawn(move || {
            // Without a main worktree, or with one that git cannot read, there is nothing to tell.
            let Ok(Some(mut before)) = look(&git) else { return };
            drop(begin);
            let mut told = BTreeSet::new();
            let mut pause = LOOK_EVERY;
            loop {
                let ended = stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
                let began = Instant::now();
                if let Ok(Some(now)) = look(&git) {
                    let changed = changed(&git, &before, &now);
                    let news: Vec<_> =
                        changed.into_iter().filter(|path| told.insert(path.clone())).collect();
                    before = now;
                    if !news.is_empty() && to.send(Input::CheckoutChanged(news)).is_err() {
                        return;
                    }
                }
                if ended || told.len() > CHECKOUT_FILES_MAX {
                    return;
                }
                pause = LOOK_EVERY.max(began.elapsed() * SHARE);
            }
        });
        Lookout { stop, begun, thread }
    }

    /// Waits until what was there before is known.
    pub(super) fn begun(&self) {
        let _ended = self.begun.recv();
    }

    /// Looks once more.
    pub(super) fn end(self) {
        drop(self.stop);
        let _panicked = self.thread.join();
    }
}

impl Keeper {
    pub(super) fn take_in_changed(&mut self, paths: &[Vec<u8>]) {
        let files: Vec<String> =
            paths.iter().take(CHECKOUT_FILES_MAX).map(|path| names::shown(path)).collect();
        let more = (paths.len() - files.len()) as u64;
        let (step, fence) = (self.step.clone(), self.fence);
        if let Err(error) = self.log.submit(&Command::TellCheckout { step, fence, files, more }) {
            self.note(&format!("files changed in the checkout: {}", chain(&error)));
        }
    }
}

fn look(git: &Git) -> Result<Option<Seen>, GitError> {
    let (root, dir) = (git.main_root(), git.common_dir());
    if root == dir {
        return Ok(None);
    }
    let call = || git.call_in(dir).option("--work-tree=", root).inside(root);
    let status = status(call().configs(&drivers::overrides(call())?), Depth::Folders)?;
    let tracked = status.tracked.into_iter().map(|entry| entry.path);
    let files = tracked.chain(status.untracked).map(|path| {
        let found = fs::symlink_metadata(root.join(names::path(&path))).ok();
        let print = found.map(|found| Print {
            written: (found.mtime(), found.mtime_nsec()),
            size: found.size(),
            inode: found.ino(),
        });
        (path, print)
    });
    Ok(Some(Seen { head: status.head, files: files.collect() }))
}

/// The paths that look otherwise than before.
fn changed(git: &Git, before: &Seen, now: &Seen) -> BTreeSet<Vec<u8>> {
    let news = now.files.iter().filter(|(path, print)| before.files.get(*path) != Some(print));
    let back = before.files.keys().filter(|path| !now.files.contains_key(*path));
    let mut changed: BTreeSet<Vec<u8>> = news.map(|(path, _)| path).chain(back).cloned().collect();
    if let (Some(old), Some(new)) = (&before.head, &now.head)
        && old != new
    {
        // What was committed, or checked out.
        changed.extend(differing(git.call(), old, new).unwrap_or_default());
    }
    changed
}
