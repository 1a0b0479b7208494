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
