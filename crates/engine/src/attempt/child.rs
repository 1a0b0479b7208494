//! The one spawner of agents and of the commands piton runs for a step. A child leads its own process
//! group, so that a signal reaches all of it, and prints into a pipe that is recorded.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use piton_core::dialect::Reader;
use piton_core::event::Exit;
use piton_core::ids::{AttemptId, Fence, StepRef};
use piton_core::run::Run;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use crate::attempt::transcript::{Secrets, record};
use crate::machine::{self, ATTEMPT_VARIABLE};
use crate::trust::Trusted;

/// What to start.
pub(crate) struct Spec {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) folder: PathBuf,
    pub(crate) variables: BTreeMap<String, String>,
    /// Standard input; empty where absent.
    pub(crate) stdin: Option<File>,
    pub(crate) output: PathBuf,
    pub(crate) output_max: u64,
    /// Reads what an agent prints, while it does.
    pub(crate) listener: Option<SharedReader>,
}

/// What an agent has said, for its keeper.
pub(crate) type SharedReader = Arc<Mutex<Reader>>;

/// The pipe of an agent, with somebody who listens.
struct Overheard {
    pipe: io::PipeReader,
    listener: Option<SharedReader>,
}

impl io::Read for Overheard {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.pipe.read(into)?;
        if let Some(Ok(mut reader)) = self.listener.as_ref().map(|listener| listener.lock()) {
            reader.push(&into[..read]);
        }
        Ok(read)
    }
}

/// A child and what it starts; dropped, it is ended.
pub(crate) struct Child {
    pub(crate) pid: i32,
    waiter: Option<JoinHandle<()>>,
    recorder: Option<JoinHandle<io::Result<String>>>,
}

impl Spec {
    /// A command for `sh -c`.
    pub(crate) fn shell(command: &str, folder: PathBuf, output: PathBuf, output_max: u64) -> Spec {
        Spec {
            program: "sh".into(),
            arguments: vec!["-c".into(), command.into()],
            folder,
            variables: BTreeMap::new(),
            stdin: None,
            output,
            output_max,
            listener: None,
        }
    }
}

/// Values reach commands as environment variables, never by interpolation.
pub(crate) fn variables(
    run: &Run,
    step: &StepRef,
    fence: Fence,
    attempt: AttemptId,
) -> BTreeMap<String, String> {
    let opened = &run.opened;
    let inputs = opened.inputs.iter();
    let mut variables: BTreeMap<String, String> =
        inputs.map(|(name, value)| (format!("PITON_INPUT_{name}"), value.clone())).collect();
    if let Some((plan, _)) = run.step(step) {
        variables.extend(plan.env.clone());
    }
    if let Some((id, _, _)) = run.loop_of(&step.step) {
        variables.insert("PITON_LOOP".into(), id.to_string());
        variables.insert("PITON_ITERATION".into(), step.iteration.to_string());
    }
    variables.insert("PITON_RUN".into(), opened.run.to_string());
    variables.insert("PITON_STEP".into(), step.to_string());
    variables.insert("PITON_FENCE".into(), fence.to_string());
    variables.insert(ATTEMPT_VARIABLE.into(), attempt.to_string());
    variables
}

/// Starts a child of what was trusted; `exited` is called with its exit.
pub(crate) fn spawn(
    _leave: &Trusted,
    spec: Spec,
    exited: impl FnOnce(Exit) + Send + 'static,
) -> io::Result<Child> {
    let (pipe, writer) = io::pipe()?;
    let heard = Overheard { pipe, listener: spec.listener };
    let mut command = Command::new(&spec.program);
    command
        .args(&spec.arguments)
        .current_dir(&spec.folder)
        .stdin(spec.stdin.map_or_else(Stdio::null, Stdio::from))
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    // Some agents believe it and not the working directory.
    command.env("PWD", &spec.folder);
    command.envs(&spec.variables);
    let mut child = command.spawn()?;
    // The command holds the pipe's writing end: the reader must be able to see it closed.
    drop(command);
    let pid = child.id().cast_signed();
    let inherited = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let secrets = Secrets::of_environment(inherited.chain(spec.variables));
    let recorder =
        std::thread::spawn(move || record(heard, &spec.output, spec.output_max, &secrets));
    let waiter = std::thread::spawn(move || exited(child.wait().map_or(Exit::Code(-1), exit_of)));
    Ok(Child { pid, waiter: Some(waiter), recorder: Some(recorder) })
}

/// The first line that a program prints to `--version`; none where it does not answer soon.
pub(crate) fn version(program: &Path) -> Option<String> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let (pipe, writer) = io::pipe().ok()?;
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let mut child = command.process_group(0).spawn().ok()?;
    drop(command);
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _cut = pipe.take(4096).read_to_string(&mut text);
        text
    });
    let began = Instant::now();
    while !reader.is_finished() && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    let answered = reader.is_finished();
    machine::send_group(child.id().cast_signed(), Signal::KILL);
    let _reaped = child.wait();
    let text = if answered { reader.join().ok()? } else { return None };
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or(0)),
    }
}

impl Child {
    /// Signals the whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        machine::send_group(self.pid, signal);
    }

    /// Ends whatever the child left behind after its exit; returns the end of what it printed, and the
    /// processes that could not be ended.
    pub(crate) fn finish(mut self) -> (String, Vec<i32>) {
        let survivors = self.end();
        (self.tail(), survivors)
    }

    fn end(&mut self) -> Vec<i32> {
        let survivors = end_leftovers(self.pid);
        let waiter = self.waiter.take();
        if survivors.is_empty() {
            let _panicked = waiter.map(JoinHandle::join);
        }
        survivors
    }

    /// The pipe may still be held open by a process that escaped, so that waiting for its end has a
    /// bound.
    fn tail(&mut self) -> String {
        const PATIENCE: Duration = Duration::from_secs(2);
        let Some(recorder) = self.recorder.take() else { return String::new() };
        let began = Instant::now();
        while !recorder.is_finished() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !recorder.is_finished() {
            return String::new();
        }
        recorder.join().ok().and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.waiter.is_some() {
            let _survivors = self.end();
            let _tail = self.tail();
        }
    }
}

/// Ends a group, and every process that was handed to this process as its nearest living ancestor.
/// Returns those that could not be ended.
fn end_leftovers(group: i32) -> Vec<i32> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let began = Instant::now();
    loop {
        let left = leftovers(group);
        if left.is_empty() || began.elapsed() > PATIENCE {
            return left;
        }
        for pid in left {
            machine::send(pid, Signal::KILL);
            if let Some(pid) = Pid::from_raw(pid) {
                let _not_ours = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Members of the group, and descendants of this process that are not git processes of its own: at
/// this moment it has none, because snapshots are not taken while a child is being ended.
fn leftovers(group: i32) -> Vec<i32> {
    let own = std::process::id().cast_signed();
    let all = machine::processes();
    let ours = |pid: i32| {
        let mut at = pid;
        // A chain longer than this is no chain of ours.
        for _ in 0..64 {
            match all.iter().find(|process| process.pid == at) {
                Some(process) if process.parent == own => return true,
                Some(process) if process.parent > 1 => at = process.parent,
                _ => return false,
            }
        }
        false
    };
    all.iter()
        .filter(|process| process.pid != own)
        .filter(|process| process.group == group || ours(process.pid))
        // A zombie of ours is reaped above; anybody else's is gone already.
        .filter(|process| !process.zombie || process.parent == own)
        .map(|process| process.pid)
        .collect()
}
