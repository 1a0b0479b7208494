//! macOS: the same functions by way of `sysctl` and `ps`. Built for completeness; the README says
//! what is tested where.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use piton_core::ids::BootId;

use super::Process;

fn output(program: &str, arguments: &[&str]) -> String {
    let run = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    run.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default()
}

pub(crate) fn boot_id() -> BootId {
    BootId(output("sysctl", &["-n", "kern.bootsessionuuid"]).trim().to_owned())
}

pub(crate) fn processes() -> Vec<Process> {
    parse(&output("ps", &["-axo", "pid=,ppid=,pgid=,sess=,stat="]))
}

pub(crate) fn process(pid: i32) -> Option<Process> {
    let pid = pid.to_string();
    parse(&output("ps", &["-o", "pid=,ppid=,pgid=,sess=,stat=", "-p", &pid])).pop()
}

fn parse(table: &str) -> Vec<Process> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        Some(Process {
            pid: fields.first()?.parse().ok()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: 0,
            started: 0,
            zombie: fields.get(4)?.starts_with('Z'),
        })
    };
    table.lines().filter_map(row).collect()
}

pub(crate) fn has_variable(pid: i32, variable: &str) -> bool {
    let pid = pid.to_string();
    let shown = output("ps", &["-E", "-ww", "-o", "command=", "-p", &pid]);
    shown.split_ascii_whitespace().any(|word| word == variable)
}

/// Not told by this system.
pub(crate) fn holds_lock(_pid: i32, _path: &Path) -> bool {
    false
}

/// The folders that processes work in, as far as this user may know.
pub(crate) fn folders() -> Vec<(i32, PathBuf)> {
    let mut found = Vec::new();
    let mut pid = 0;
    for line in output("lsof", &["-a", "-d", "cwd", "-F", "pn"]).lines() {
        match line.split_at_checked(1) {
            Some(("p", number)) => pid = number.parse().unwrap_or(0),
            Some(("n", path)) => found.push((pid, PathBuf::from(path))),
            _ => {}
        }
    }
    found
}

pub(crate) fn oom_kills() -> Option<u64> {
    None
}
