//! What actions do. One agent per process; it carries the little that must be remembered between
//! actions: which starts were counted already, and the locks it holds.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::script::Action;
use crate::speak::Speech;
use crate::{grandchild, prompt, say};

/// Nothing waits longer than this: a test that died must not leave agents behind for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Another agent was there: `alone`.
const OVERLAP: u8 = 99;

/// Whether the script goes on.
enum Next {
    On,
    End(u8),
}

pub(crate) struct Agent {
    /// Per counter file: which start this process is.
    starts: HashMap<PathBuf, usize>,
    /// Locks that are held until the end.
    locks: Vec<File>,
}

impl Agent {
    pub(crate) fn new() -> Agent {
        Agent { starts: HashMap::new(), locks: Vec::new() }
    }

    /// Runs the script to its end, says that, and returns the exit status. A script that exits by itself
    /// says nothing.
    pub(crate) fn run(&mut self, script: &[Action], speech: Option<&Speech>) -> Result<u8, String> {
        for action in script {
            if let Next::End(status) = self.act(action, speech)? {
                return Ok(status);
            }
        }
        speech.map_or(Ok(()), Speech::end).map(|()| 0)
    }

    fn act(&mut self, action: &Action, speech: Option<&Speech>) -> Result<Next, String> {
        match action {
            Action::Write { path, text } => write(path, text.as_bytes())?,
            Action::Append { path, text } => append(path, text)?,
            Action::Delete(path) => delete(path)?,
            Action::Commit(message) => commit(message)?,
            Action::Print(text) => say(text).map(drop)?,
            Action::Sleep(time) => std::thread::sleep(*time),
            Action::Await(path) => wait_for(path)?,
            Action::Hang => {
                std::thread::sleep(PATIENCE);
                return Err("hung for too long, nobody ended me".into());
            }
            Action::Touch(path) => append(path, "")?,
            Action::Pid(path) => write_whole(path, &std::process::id().to_string())?,
            Action::Count(path) => drop(self.start_in(path)?),
            Action::Alone(path) => return self.alone(path),
            Action::Env { name, path } => {
                write_whole(path, &std::env::var(name).unwrap_or_default())?
            }
            Action::DumpPrompt(path) => write_whole(path, &prompt()?)?,
            Action::Sh(command) => return sh(command),
            Action::IgnoreTerm => ignore_term()?,
            Action::TermExit(status) => exit_on_term(*status)?,
            Action::Grandchild { path, traits } => {
                grandchild::spawn(path, traits)?;
                wait_for(path)?
            }
            Action::Exit(status) => return Ok(Next::End(*status)),
            Action::KillSelf(signal) => {
                rustix::process::kill_process(rustix::process::getpid(), *signal)
                    .map_err(|e| format!("kill-self: {e}"))?
            }
            Action::Once { path, action } => {
                if create_new(path)? {
                    return self.act(action, speech);
                }
            }
            Action::Nth { path, starts, action } => {
                if starts.include(self.start_in(path)?) {
                    return self.act(action, speech);
                }
            }
            Action::Say(word) => {
                let speech = speech.ok_or("nothing is said without --speak")?;
                if let Some(status) = speech.say(word)? {
                    return Ok(Next::End(status));
                }
            }
            Action::Spin => spin()?,
            Action::LongLine(mib) => long_line(*mib)?,
        }
        Ok(Next::On)
    }

    /// The kernel lets go of the lock when this process ends, however it ends.
    fn alone(&mut self, path: &Path) -> Result<Next, String> {
        make_parent(path)?;
        let lock = OpenOptions::new().create(true).append(true).open(path);
        let mut lock = lock.map_err(|e| about(path, &e))?;
        if lock.try_lock().is_ok() {
            self.locks.push(lock);
            return Ok(Next::On);
        }
        writeln!(lock, "overlap {}", std::process::id()).map_err(|e| about(path, &e))?;
        Ok(Next::End(OVERLAP))
    }

    /// Counts this process in a file, once, and says the how-manieth start it is. Appending a line is
    /// atomic, so starts at the same time get different numbers.
    fn start_in(&mut self, path: &Path) -> Result<usize, String> {
        if let Some(start) = self.starts.get(path) {
            return Ok(*start);
        }
        let mine = format!("start {}", std::process::id());
        append(path, &format!("{mine}\n"))?;
        let text = fs::read_to_string(path).map_err(|e| about(path, &e))?;
        let lines: Vec<&str> = text.lines().collect();
        let start = lines.iter().rposition(|line| *line == mine).map_or(0, |i| i + 1);
        self.starts.insert(path.to_owned(), start);
        Ok(start)
    }
}

/// Moves, and comes to nothing.
fn spin() -> Result<(), String> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        std::hint::spin_loop();
    }
    Err("spun for too long, nobody ended me".into())
}

/// A line of so many MiB, such as a tool's output.
fn long_line(mib: usize) -> Result<(), String> {
    say("{\"type\":\"user\",\"x\":\"")?;
    let piece = "usage limit ".repeat((1 << 20) / 12);
    for _ in 0..mib {
        say(&piece)?;
    }
    say("\"}\n").map(drop)
}

/// Survives what a polite supervisor sends. Programs started from here on are polite again.
pub(crate) fn ignore_term() -> Result<(), String> {
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|e| format!("ignore-term: {e}"))?;
    }
    Ok(())
}

pub(crate) fn append(path: &Path, text: &str) -> Result<(), String> {
    make_parent(path)?;
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|e| about(path, &e))
}

/// Appears with its whole content or not at all: somebody waits for it to exist and then reads it.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), String> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    write(&part, text.as_bytes())?;
    fs::rename(&part, path).map_err(|e| about(path, &e))
}

fn exit_on_term(status: u8) -> Result<(), String> {
    let at_once = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(SIGTERM, status.into(), at_once)
        .map(drop)
        .map_err(|e| format!("term-exit: {e}"))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    make_parent(path)?;
    fs::write(path, bytes).map_err(|e| about(path, &e))
}

fn delete(path: &Path) -> Result<(), String> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    removed.map_err(|e| about(path, &e))
}

fn create_new(path: &Path) -> Result<bool, String> {
    make_parent(path)?;
    match File::create_new(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(about(path, &e)),
    }
}

fn make_parent(path: &Path) -> Result<(), String> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(|e| about(parent, &e)),
        None => Ok(()),
    }
}

fn commit(message: &str) -> Result<(), String> {
    git(&["add", "-A"])?;
    let unchanged = Command::new("git")
        .args(["diff", "--cached", "--quiet"])
        .status()
        .map_err(|e| format!("git: {e}"))?
        .success();
    match unchanged {
        true => Ok(()),
        false => git(&["commit", "--quiet", "-m", message]),
    }
}

fn git(args: &[&str]) -> Result<(), String> {
    let ran = Command::new("git").args(args).stdin(Stdio::null()).output();
    let out = ran.map_err(|e| format!("git: {e}"))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("git {}: {}", args[0], String::from_utf8_lossy(&out.stderr).trim())),
    }
}

fn sh(command: &str) -> Result<Next, String> {
    let status = Command::new("sh").args(["-c", command]).status();
    match status.map_err(|e| format!("sh: {e}"))?.code() {
        Some(0) => Ok(Next::On),
        Some(code) => Ok(Next::End(u8::try_from(code).unwrap_or(u8::MAX))),
        None => Err(format!("sh was killed: {command}")),
    }
}

fn wait_for(path: &Path) -> Result<(), String> {
    let start = Instant::now();
    while !path.exists() {
        if start.elapsed() > PATIENCE {
            return Err(format!("{} never came", path.display()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn about(path: &Path, problem: &io::Error) -> String {
    format!("{}: {problem}", path.display())
}
