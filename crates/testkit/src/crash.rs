//! Holding a process at a named point of the engine. The engine's side of the agreement: the process
//! that reaches the point for the n-th time creates `<dir>/<point>.hit` with its pid (only one
//! process ever wins), then waits until `<dir>/<point>.go` exists. So a test kills exactly there,
//! and the file is the proof that the fault was applied where it was meant to be.

use std::fs;
use std::path::PathBuf;

use crate::wait::{DEADLINE, wait_for};

/// One armed point. Give it to the process with [`Piton::crash_at`](crate::Piton::crash_at).
#[derive(Debug, Clone)]
pub struct CrashPoint {
    dir: PathBuf,
    point: String,
    n: u32,
}

impl CrashPoint {
    /// Arms the `n`-th time that `point` is reached. `dir` holds the two files and must be the
    /// point's own, so that the same point can be armed again.
    pub fn arm(dir: PathBuf, point: &str, n: u32) -> CrashPoint {
        assert!(
            !point.contains(['/', ':']),
            "a crash point's name is part of a file name: {point}"
        );
        assert!(n > 0, "crash points are counted from 1");
        fs::create_dir_all(&dir).expect("a folder for the crash point");
        CrashPoint { dir, point: point.to_owned(), n }
    }

    /// What the process needs in its environment. Its children inherit it.
    pub fn env(&self) -> [(&'static str, String); 2] {
        let dir = self.dir.to_str().expect("sandbox paths are text").to_owned();
        [("PITON_CRASH_AT", format!("{}:{}", self.point, self.n)), ("PITON_CRASH_DIR", dir)]
    }

    /// Who is held at the point, if somebody got there.
    pub fn hit(&self) -> Option<u32> {
        fs::read_to_string(self.file("hit")).ok()?.trim().parse().ok()
    }

    /// Waits until a process is held at the point and returns its pid.
    #[track_caller]
    pub fn wait_hit(&self) -> u32 {
        wait_for(DEADLINE, &format!("somebody at {} for time {}", self.point, self.n), || {
            self.hit().ok_or("nobody came there")
        })
    }

    /// Lets the held process go on.
    pub fn release(&self) {
        fs::write(self.file("go"), "").expect("the crash point's folder is writable");
    }

    fn file(&self, end: &str) -> PathBuf {
        self.dir.join(format!("{}.{end}", self.point))
    }
}

/// Those of the points, in their order.
pub fn points_of(which: impl Fn(&str, Who) -> bool) -> Vec<&'static str> {
    POINTS.iter().filter(|(point, who)| which(point, *who)).map(|(point, _)| *point).collect()
}

/// Every point, in the order a first attempt of a step passes them, and who passes it.
pub const POINTS: &[(&str, Who)] = &[
    ("worker.spawned", Who::Starter),
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
    ("keeper.until-ran", Who::Repeater),
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
    /// Whoever starts a worker.
    Starter,
    Worker,
    /// Landing is also what a holder outside does.
    Keeper,
    /// A keeper at the end of a loop's iteration.
    Repeater,
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
