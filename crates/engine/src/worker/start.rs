//! Starting a worker: a process of its own session, which holds the run's `worker.lock` for as long as it
//! lives. The starter takes the lock and hands it over, so that there is never more than one.

use std::fs::{File, TryLockError};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use piton_core::ids::RunId;
use piton_git::crash;
use piton_git::file::{appending, private};

use crate::error::EngineError;
use crate::folder::adopt_lock;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::trusted;

/// How long a taken lock is tried again: somebody who only looks holds it for a moment, too.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// What became of starting a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    Now {
        pid: u32,
    },
    /// The run has one.
    Before,
}

/// Starts a worker for a run that shall go on, unless it has one.
pub fn start(project: &Project, log: &Log) -> Result<Started, EngineError> {
    trusted(project, log)?;
    let run = log.run().opened.run;
    let Some(lock) = take_lock(project, run)? else { return Ok(Started::Before) };
    let notes = appending(&project.worker_log(run));
    let notes = notes.map_err(EngineError::io("the worker's log cannot be written"))?;
    let worker = Program::new(own_program()?)
        .arg0("piton")
        .args(["worker", "--run", &run.to_string()])
        .current_dir(project.git.main_root())
        .stdin(Stdio::from(lock))
        .stdout(notes.try_clone().map_err(EngineError::io("the worker's log"))?)
        .stderr(notes)
        .spawn()
        .map_err(EngineError::io("the worker cannot be started"))?;
    crash::point("worker.spawned");
    Ok(Started::Now { pid: worker.id() })
}

/// In the worker: keeps the lock that its starter handed on, and leaves the starter's terminal.
pub fn take_over() -> Result<File, EngineError> {
    let lock = adopt_lock()?;
    // Refused to whoever leads a group already: then nobody's terminal sends to it either.
    let _leads = rustix::process::setsid();
    Ok(lock)
}

fn take_lock(project: &Project, run: RunId) -> Result<Option<File>, EngineError> {
    let lock = private(&project.worker_lock(run));
    let lock = lock.map_err(EngineError::io("the worker's lock cannot be opened"))?;
    let began = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(Some(lock)),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(EngineError::io("the worker's lock cannot be taken")(error));
            }
        }
    }
}

/// This program, also when its file was replaced since it was started.
pub(super) fn own_program() -> Result<PathBuf, EngineError> {
    if cfg!(target_os = "linux") {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    std::env::current_exe().map_err(EngineError::io("this program's path"))
}
