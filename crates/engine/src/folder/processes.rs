//! The processes of an attempt: finding what is left of one whose keeper died, and ending it.

use std::time::{Duration, Instant};

use piton_core::ids::AttemptId;
use rustix::process::Signal;

use super::{Folder, Lock};
use crate::machine::{self, ATTEMPT_VARIABLE, Process};

/// Processes of an attempt: those of its keeper's session, those that carry its marker in their
/// environment, and those that hold the lock which everything its keeper starts inherits. A program can
/// shed each; few shed all three.
pub(crate) fn of_attempt(attempt: AttemptId, folder: &Folder) -> Vec<Process> {
    let marker = format!("{ATTEMPT_VARIABLE}={attempt}");
    let held = matches!(folder.tree(), Ok(Lock::Held));
    let lock = held.then(|| std::fs::canonicalize(folder.tree_lock()).ok()).flatten();
    let holds = |pid: i32| lock.as_ref().is_some_and(|lock| machine::holds_lock(pid, lock));
    let own = std::process::id().cast_signed();
    let all = machine::processes();
    let session = session_of(folder, &all);
    let belongs = |process: &Process| {
        session.is_some_and(|keeper| {
            process.session == keeper.pid && process.started >= keeper.started
        }) || machine::has_variable(process.pid, &marker)
            || holds(process.pid)
    };
    let others = all.iter().filter(|process| !process.zombie && process.pid != own);
    others.filter(|process| belongs(process)).copied().collect()
}

/// The session that an attempt's keeper made, while it can still be told from another one: a number is
/// not given out again as long as anything is left in its session, and a later leader of the same
/// number was started at another time.
fn session_of(folder: &Folder, all: &[Process]) -> Option<Process> {
    let record = folder.read_keeper().filter(|record| record.boot == machine::boot())?;
    let leader = all.iter().find(|process| process.pid == record.keeper.pid);
    let ours = leader.is_none_or(|leader| leader.started == record.keeper.started);
    (ours && record.keeper.session == record.keeper.pid).then_some(record.keeper)
}

/// Ends these processes and whatever they leave, and waits until they are gone. Returns those ended
/// and those that could not be.
pub(crate) fn end_attempt(attempt: AttemptId, folder: &Folder) -> Swept {
    const PATIENCE: Duration = Duration::from_secs(5);
    const PAUSE: Duration = Duration::from_millis(2);
    let began = Instant::now();
    let mut swept = Swept::default();
    loop {
        let left = of_attempt(attempt, folder);
        if left.is_empty() {
            return swept;
        }
        if began.elapsed() > PATIENCE {
            swept.survivors = left.iter().map(|process| process.pid).collect();
            return swept;
        }
        for process in left {
            machine::send(process.pid, Signal::KILL);
            if !swept.ended.contains(&process.pid) {
                swept.ended.push(process.pid);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    pub ended: Vec<i32>,
    pub survivors: Vec<i32>,
}
