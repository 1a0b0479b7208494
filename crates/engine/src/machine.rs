//! Who this machine is and what runs on it: host and boot identity, processes with their start
//! times. Pids explain, they never prove: a verdict about life comes from a kernel lock.

use std::path::Path;

use piton_core::ids::{BootId, HostId};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
#[path = "machine/linux.rs"]
mod os;
#[cfg(target_os = "macos")]
#[path = "machine/macos.rs"]
mod os;

pub(crate) use os::{boot_id, folders, has_variable, holds_lock, oom_kills, processes};

/// The variable by which processes of an attempt are found after their keeper died.
pub const ATTEMPT_VARIABLE: &str = "PITON_ATTEMPT";

/// A process as the machine shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// In the kernel's ticks since boot: with the pid it names a process within a boot.
    pub started: u64,
    pub zombie: bool,
}

/// This host, or what `PITON_HOST_ID` says (tests, and stores that several hosts share).
pub fn host_id() -> HostId {
    let named = std::env::var("PITON_HOST_ID").ok().filter(|name| !name.is_empty());
    let machine = || {
        let id = std::fs::read_to_string("/etc/machine-id").ok()?;
        Some(id.trim().to_owned()).filter(|id| !id.is_empty())
    };
    let node = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    HostId(named.or_else(machine).unwrap_or_else(node))
}

/// Sends a signal to one process; one that is gone is not an error.
pub(crate) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _gone = kill_process(pid, signal);
    }
}

/// Sends a signal to a process group; one that is gone is not an error.
pub(crate) fn send_group(group: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group) {
        let _gone = rustix::process::kill_process_group(group, signal);
    }
}

/// The process with this pid, if there is one.
pub(crate) fn process(pid: i32) -> Option<Process> {
    os::process(pid)
}

/// The present, by the wall clock: it explains, and decides nothing.
pub(crate) fn now() -> piton_core::time::Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.unwrap_or_default().as_millis();
    piton_core::time::Millis(i64::try_from(since).unwrap_or(i64::MAX))
}

/// When a file was last written, by the wall clock.
pub(crate) fn modified(path: &Path) -> Option<piton_core::time::Millis> {
    let time = std::fs::metadata(path).ok()?.modified().ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(piton_core::time::Millis(i64::try_from(since.as_millis()).ok()?))
}

/// The kernel start, or what `PITON_BOOT_ID` says (tests of reboots).
pub fn boot() -> BootId {
    match std::env::var("PITON_BOOT_ID") {
        Ok(id) if !id.is_empty() => BootId(id),
        _ => boot_id(),
    }
}
