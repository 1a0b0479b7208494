//! The machine's processes, as tests need to see them: who carries a mark in the environment, who
//! is alive, and an end for those that are. A process is killed through a descriptor that was opened
//! before it was looked at, so a number that was given out anew never hits a stranger.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that was found, with enough to recognise it in the message of a failed test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub command: String,
    pub parent: u32,
}

/// Whether a process runs (or is stopped). A zombie is dead: it only waits to be reaped. One whose
/// first thread has ended while others are on their way out still has its files and locks.
pub fn alive(pid: u32) -> bool {
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    state_and_parent(pid)
        .is_some_and(|(state, _)| !matches!(state, 'Z' | 'X' | 'x') || threads() > 1)
}

/// Sends SIGKILL and waits until the process is dead. One that was dead before is fine.
#[track_caller]
pub fn kill9(pid: u32) {
    signal(pid, Signal::KILL);
    crate::wait_until(crate::DEADLINE, &format!("the end of process {pid}"), || !alive(pid));
}

/// Sends a signal to one process. Says whether it was there to get it.
pub fn signal(pid: u32, signal: Signal) -> bool {
    handle(pid).is_some_and(|handle| pidfd_send_signal(handle, signal).is_ok())
}

/// Stops a process and waits until none of its threads runs any more.
#[track_caller]
pub fn freeze(pid: u32) {
    assert!(signal(pid, Signal::STOP), "process {pid} is there to be stopped");
    crate::wait_until(crate::DEADLINE, &format!("process {pid} to stop"), || is_frozen(pid));
}

/// Whether a process is there and every thread of it is stopped.
pub fn is_frozen(pid: u32) -> bool {
    let is_stopped = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads.is_ok_and(|threads| threads.flatten().all(is_stopped))
}

/// Whether a signal was sent to a process that has not taken it yet: a stopped one takes none.
pub fn has_pending(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let masks = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    let bit = 1 << (signal.as_raw() - 1);
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & bit != 0)
}

/// The session a process is in: a terminal's keys reach no other.
pub fn session(pid: u32) -> Option<u32> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let session = rustix::process::getsid(Some(pid)).ok()?;
    u32::try_from(session.as_raw_nonzero().get()).ok()
}

/// Every process with all of these at the beginning of some variable of its environment:
/// `PITON_ATTEMPT=` matches any attempt, `PITON_ATTEMPT=x` that one.
pub fn processes_with_env(marks: &[&str]) -> Vec<Process> {
    pids().filter(|pid| has_marks(*pid, marks)).filter_map(describe).collect()
}

/// Kills everything that carries the mark or whose current directory is under `root`. What it still
/// finds after that (processes that were just being born) is for the next call.
pub(crate) fn kill_marked(mark: &str, root: &Path) -> usize {
    let mut found = 0;
    for pid in pids().filter(|pid| *pid != std::process::id()) {
        let Some(handle) = handle(pid) else { continue };
        let cwd = fs::read_link(PathBuf::from(format!("/proc/{pid}/cwd"))).unwrap_or_default();
        if has_marks(pid, &[mark]) || cwd.starts_with(root) {
            found += 1;
            // It may have ended between the look and the kill: that is what is wanted.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
    found
}

fn handle(pid: u32) -> Option<rustix::fd::OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// False for a process of somebody else and for a zombie: neither shows an environment.
fn has_marks(pid: u32, marks: &[&str]) -> bool {
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    marks
        .iter()
        .all(|mark| environ.split(|byte| *byte == 0).any(|var| var.starts_with(mark.as_bytes())))
}

fn describe(pid: u32) -> Option<Process> {
    let (_, parent) = state_and_parent(pid)?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).replace('\0', " ").trim_end().to_owned();
    Some(Process { pid, command, parent })
}

fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses included.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
