//! Linux: everything comes from `/proc`.

use std::fs;
use std::path::{Path, PathBuf};

use piton_core::ids::BootId;

use super::Process;

pub(crate) fn boot_id() -> BootId {
    piton_store::boot_id().ok().flatten().unwrap_or_else(|| BootId(String::new()))
}

pub(crate) fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.flatten().filter_map(pid).filter_map(process).collect()
}

pub(crate) fn process(pid: i32) -> Option<Process> {
    parse_stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The command may contain spaces and `)`: fields are counted after the last `)`.
fn parse_stat(pid: i32, stat: &str) -> Option<Process> {
    let rest = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// Whether a process was started with this `NAME=value` in its environment.
pub(crate) fn has_variable(pid: i32, variable: &str) -> bool {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environ) => environ.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes()),
        Err(_) => false,
    }
}

/// Whether a process has a file open through a descriptor that holds an exclusive lock on it: its own,
/// or inherited. Somebody who merely reads the file has none.
pub(crate) fn holds_lock(pid: i32, path: &Path) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let opened = fs::read_link(descriptor.path()).is_ok_and(|file| file == path);
        let number = descriptor.file_name();
        let about = || {
            let info = format!("/proc/{pid}/fdinfo/{}", number.to_string_lossy());
            fs::read_to_string(info).unwrap_or_default()
        };
        opened && about().lines().any(|line| line.starts_with("lock:") && line.contains(" WRITE "))
    })
}

/// The folders that processes work in, as far as this user may know.
pub(crate) fn folders() -> Vec<(i32, PathBuf)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let folder = |pid: i32| Some((pid, fs::read_link(format!("/proc/{pid}/cwd")).ok()?));
    entries.flatten().filter_map(pid).filter_map(folder).collect()
}

/// How many processes the kernel has killed for want of memory since boot.
pub(crate) fn oom_kills() -> Option<u64> {
    let stat = fs::read_to_string("/proc/vmstat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_spaces_and_brackets_is_no_trap() {
        let stat = "42 (a) b) (c) S 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2";
        let expected =
            Process { pid: 42, parent: 7, group: 8, session: 9, started: 98765, zombie: false };
        assert_eq!(parse_stat(42, stat), Some(expected));
        assert_eq!(parse_stat(42, "42 (x"), None);
    }

    #[test]
    fn a_lock_is_told_from_an_open_file() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let path = home.path().canonicalize().expect("just made").join("lock");
        let file = fs::File::create(&path).expect("a file");
        let own = std::process::id().cast_signed();
        assert!(!holds_lock(own, &path), "open, not locked");
        file.lock().expect("a lock");
        assert!(holds_lock(own, &path));
    }

    #[test]
    fn this_process_is_there() {
        let own = std::process::id().cast_signed();
        let seen = process(own).expect("/proc is mounted");
        assert!(!seen.zombie && seen.started > 0);
        assert!(processes().contains(&seen));
    }
}
