//! What the kernel knows: flushes of a command, memory and processor time of a process.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether flushes can be counted.
pub(crate) fn has_strace() -> bool {
    let mut strace = Command::new("strace");
    strace.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
    strace.status().is_ok_and(|status| status.success())
}

/// How often a command and everything it starts flushes files; `None` without strace.
pub(crate) fn flushes(command: &Command) -> Option<usize> {
    if !has_strace() {
        return None;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let trace = dir.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=fsync,fdatasync,msync,sync,syncfs", "-o"]);
    strace.arg(&trace).arg("--").arg(command.get_program()).args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        strace.current_dir(dir);
    }
    strace.env_clear();
    strace.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = strace.status().expect("strace can be started");
    assert!(status.success(), "{command:?} under strace ended otherwise: {status}");
    let traced = fs::read_to_string(&trace).expect("what strace wrote");
    let called = |line: &&str| !line.contains("resumed>") && line.contains("sync(");
    Some(traced.lines().filter(called).count())
}

/// A process's memory in MiB: now, and at its highest.
pub(crate) fn memory(pid: u32) -> (f64, f64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a living process");
    let field = |name: &str| -> f64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        let kib = line.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        kib.unwrap_or_default() / 1024.0
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// Processor time that a process's own threads have used, in milliseconds.
pub(crate) fn processor(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a living process");
    let used = tasks.flatten().filter_map(|task| {
        // Nanoseconds on a processor come first.
        let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<f64>().ok()
    });
    used.sum::<f64>() / 1e6
}

/// Processor time of a process's ended children, in milliseconds; the kernel counts in ticks of ten.
pub(crate) fn children(pid: u32) -> f64 {
    const TICK: f64 = 10.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a living process");
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    // Counted from the state, which is the third: cutime and cstime are the 16th and 17th.
    let ticks = fields.split_whitespace().skip(13).take(2).filter_map(|n| n.parse::<f64>().ok());
    ticks.sum::<f64>() * TICK
}

/// What kind of file system a folder is on: flushing costs nothing on some.
pub(crate) fn file_system(dir: &Path) -> String {
    let asked = Command::new("stat").args(["-f", "-c", "%T"]).arg(dir).output();
    match asked {
        Ok(out) if out.status.success() => {
            String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
        }
        _ => "unknown file system".to_owned(),
    }
}
