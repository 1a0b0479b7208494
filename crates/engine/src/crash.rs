//! Crash points: named places between durable actions at which a test stops a process and then kills
//! whom it likes. Without the feature `crash-points` they compile to nothing; with it they cost one
//! look at a cached environment variable.
//!
//! `PITON_CRASH_AT=<point>[:N]` and `PITON_CRASH_DIR=<dir>`: the process that reaches the point for
//! the N-th time creates `<dir>/<point>.hit` with its pid (only one ever does) and waits there until
//! `<dir>/<point>.go` exists. The `.hit` file is the proof that the fault was really applied.

/// Every point, in the order a first attempt of a step passes them, and who passes it.
pub const POINTS: &[(&str, Who)] = &[
    ("worker.lock-taken", Who::Worker),
    ("worker.claimed", Who::Worker),
    ("worker.keeper-spawned", Who::Worker),
    ("keeper.adopted", Who::Keeper),
    ("keeper.findable", Who::Keeper),
    ("keeper.confirmed", Who::Keeper),
    ("keeper.run-branch", Who::Keeper),
    ("tree.move-recorded", Who::Mover),
    ("tree.moved-out", Who::Mover),
    ("tree.kept", Who::Successor),
    ("tree.marked", Who::Successor),
    ("tree.cleaned", Who::Successor),
    ("tree.checked-out", Who::Successor),
    ("tree.reset", Who::Successor),
    ("tree.filled", Who::Successor),
    ("keeper.tree-prepared", Who::Keeper),
    ("keeper.started", Who::Keeper),
    ("keeper.agent-spawned", Who::Keeper),
    ("keeper.child-exited", Who::Keeper),
    ("keeper.exit-recorded", Who::Keeper),
    ("keeper.leftovers-committed", Who::Keeper),
    ("verify.spawned", Who::Keeper),
    ("keeper.verify-ran", Who::Keeper),
    ("keeper.verified", Who::Keeper),
    ("land.intended", Who::Keeper),
    ("land.ref-moved", Who::Keeper),
    ("land.completed", Who::Keeper),
    ("land.unlanded-kept", Who::Loser),
    ("keeper.parked", Who::Loser),
    ("keeper.snapshot-kept", Who::Keeper),
    ("keeper.checkpointed", Who::Keeper),
    ("bury.swept", Who::Worker),
    ("bury.snapshot-kept", Who::Worker),
    ("bury.checkpointed", Who::Worker),
    ("bury.recorded", Who::Worker),
    ("outside.snapshot-kept", Who::Holder),
    ("complete.scratch-made", Who::Holder),
    ("complete.verify-ran", Who::Holder),
    ("complete.scratch-removed", Who::Holder),
    ("complete.verified", Who::Holder),
    ("clean.snapshot-kept", Who::Tidier),
    ("clean.recorded", Who::Tidier),
    ("clean.removed", Who::Tidier),
    ("clean.branch-gone", Who::Tidier),
    ("clean.done", Who::Tidier),
    ("abandon.recorded", Who::Tidier),
    ("abandon.abandoned", Who::Tidier),
    ("purge.recorded", Who::Purger),
    ("purge.trees-gone", Who::Purger),
    ("purge.branches-gone", Who::Purger),
    ("purge.forgotten", Who::Purger),
    ("purge.files-gone", Who::Purger),
    ("undo.intended", Who::Undoer),
    ("undo.tree-back", Who::Undoer),
    ("undo.reopening", Who::Undoer),
    ("restore.kept", Who::Restorer),
    ("restore.intended", Who::Restorer),
    ("restore.file", Who::Restorer),
    ("restore.files-put", Who::Restorer),
    ("restore.index-put", Who::Restorer),
    ("restore.head-moved", Who::Restorer),
    ("restore.flushed", Who::Restorer),
    ("merge.intended", Who::Merger),
    ("merge.tree-updated", Who::Merger),
    ("merge.ref-moved", Who::Merger),
];

/// Whose code a point is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Worker,
    /// Landing is also what a holder outside does.
    Keeper,
    /// A keeper that gets a worktree which another attempt has left.
    Successor,
    /// The same, of one that holds what no snapshot can.
    Mover,
    /// A keeper, or somebody outside, whose commit cannot be landed.
    Loser,
    /// Somebody outside who completes a claim with a commit.
    Holder,
    /// Somebody who cleans up.
    Tidier,
    /// Somebody who deletes a run.
    Purger,
    /// Somebody who undoes a clean-up.
    Undoer,
    /// Somebody who puts a snapshot back.
    Restorer,
    /// Who merges what a run has landed.
    Merger,
}

#[cfg(not(feature = "crash-points"))]
pub(crate) fn point(_name: &str) {}

#[cfg(feature = "crash-points")]
pub(crate) use armed::point;

#[cfg(feature = "crash-points")]
mod armed {
    use std::fs::OpenOptions;
    use std::io::Write as _;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    struct Armed {
        point: String,
        countdown: AtomicU64,
        dir: PathBuf,
    }

    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

    fn armed() -> Option<&'static Armed> {
        let read = || {
            let at = std::env::var("PITON_CRASH_AT").ok()?;
            let dir = std::env::var_os("PITON_CRASH_DIR")?.into();
            let (point, nth) = match at.split_once(':') {
                Some((point, nth)) => (point.to_owned(), nth.parse().ok()?),
                None => (at, 1),
            };
            Some(Armed { point, countdown: AtomicU64::new(nth), dir })
        };
        ARMED.get_or_init(read).as_ref()
    }

    pub(crate) fn point(name: &str) {
        debug_assert!(super::POINTS.iter().any(|(known, _)| *known == name), "unlisted: {name}");
        let Some(armed) = armed().filter(|armed| armed.point == name) else { return };
        if armed.countdown.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        let hit = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(armed.dir.join(format!("{name}.hit")));
        // Somebody else was hit already: each armed point stops one process.
        let Ok(mut hit) = hit else { return };
        let written = writeln!(hit, "{}", std::process::id());
        let go = armed.dir.join(format!("{name}.go"));
        while written.is_ok() && !go.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
