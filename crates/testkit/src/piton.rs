//! Starting the real `piton` binary in a sandbox: either to its end, or in the background with
//! signals, kills and a look at what it has printed so far. Output goes to files, so a surviving
//! grandchild that holds a descriptor never keeps a test waiting.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::crash::CrashPoint;
use crate::processes::{kill9, processes_with_env};
use crate::wait::{DEADLINE, poll};

/// One start of the binary, being put together. Made by [`Sandbox::piton`](crate::Sandbox::piton):
/// in the repository, with the sandbox's environment, without a terminal and without input.
#[must_use = "nothing is started before `output` or `spawn`"]
pub struct Piton {
    command: Command,
    /// What was printed goes to `<captured>.stdout` and `.stderr`.
    captured: PathBuf,
    deadline: Duration,
    /// The sandbox, and what every process of it carries.
    root: PathBuf,
    mark: String,
}

impl Piton {
    pub(crate) fn new(command: Command, captured: PathBuf, root: PathBuf, mark: String) -> Piton {
        Piton { command, captured, deadline: DEADLINE, root, mark }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Piton {
        self.command.arg(arg);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Piton {
        self.command.env(name, value);
        self
    }

    pub fn cwd(mut self, dir: impl AsRef<Path>) -> Piton {
        self.command.current_dir(dir);
        self
    }

    /// What it reads from its standard input.
    pub fn input(mut self, text: &str) -> Piton {
        let path = self.captured.with_extension("stdin");
        std::fs::write(&path, text).expect("a file for stdin");
        self.command.stdin(File::open(&path).expect("a file for stdin"));
        self
    }

    pub fn crash_at(mut self, point: &CrashPoint) -> Piton {
        self.command.envs(point.env());
        self
    }

    /// How long [`Piton::output`] waits for the end; [`DEADLINE`] unless told.
    pub fn deadline(mut self, deadline: Duration) -> Piton {
        self.deadline = deadline;
        self
    }

    /// Runs to the end.
    ///
    /// # Panics
    /// When it has not ended by the deadline; it is killed and what it printed is shown.
    #[track_caller]
    pub fn output(self) -> Output {
        let deadline = self.deadline;
        self.spawn().wait_within(deadline)
    }

    /// Starts it in a process group of its own.
    #[track_caller]
    pub fn spawn(mut self) -> Running {
        let stdout = self.captured.with_extension("stdout");
        let stderr = self.captured.with_extension("stderr");
        self.command.stdout(File::create(&stdout).expect("a file for stdout"));
        self.command.stderr(File::create(&stderr).expect("a file for stderr"));
        self.command.process_group(0);
        match self.command.spawn() {
            Ok(child) => {
                let place = Place { command: self.command, root: self.root, mark: self.mark };
                Running { child, stdout, stderr, place }
            }
            Err(problem) => panic!("{:?} does not start: {problem}", self.command.get_program()),
        }
    }

    /// The bare command, for tests that need descriptors of their own.
    pub fn into_command(self) -> Command {
        self.command
    }
}

/// A piton in the background. Dropping it kills it (not what it has started: that is what tests
/// look at).
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    place: Place,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed up to now.
    pub fn stdout(&self) -> String {
        text(&self.stdout)
    }

    pub fn stderr(&self) -> String {
        text(&self.stderr)
    }

    pub fn is_running(&mut self) -> bool {
        self.status().is_none()
    }

    /// Sends a signal to the process alone.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        // Not reaped before `wait`, so the number is still its own.
        let sent = rustix::process::kill_process(self.raw_pid(), signal);
        sent.expect("a child that was not waited for can be signalled");
    }

    /// Sends a signal to its process group, as a terminal does for Ctrl-C.
    #[track_caller]
    pub fn signal_group(&self, signal: Signal) {
        let sent = rustix::process::kill_process_group(self.raw_pid(), signal);
        sent.expect("the group of a child that was not waited for can be signalled");
    }

    /// Kills the process alone and waits for its end. The worker of what it watched goes on.
    #[track_caller]
    pub fn kill9_alone(self) -> Output {
        self.signal(Signal::KILL);
        self.wait()
    }

    /// Kills the process, which would start a worker again, and every worker of the sandbox; waits for their
    /// end.
    #[track_caller]
    pub fn kill9(self) -> Output {
        let mark = self.place.mark.clone();
        let output = self.kill9_alone();
        for worker in workers(&mark) {
            kill9(worker);
        }
        output
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// When it has not ended by [`DEADLINE`]; it is killed and what it printed is shown.
    #[track_caller]
    pub fn wait(self) -> Output {
        self.wait_within(DEADLINE)
    }

    #[track_caller]
    pub fn wait_within(mut self, deadline: Duration) -> Output {
        let ended = poll(deadline, || self.status().ok_or(()));
        let (stdout, stderr) = (self.stdout(), self.stderr());
        match ended {
            Ok(status) => {
                let (code, signal) = (status.code(), status.signal());
                let output = Output { code, signal, stdout, stderr };
                if let Some(look) = LOOK.get() {
                    look(&self.place, &output);
                }
                output
            }
            Err(()) => panic!(
                "piton (process {}) has not ended in {deadline:?}\n\
                 --- stdout\n{stdout}\n--- stderr\n{stderr}",
                self.pid()
            ),
        }
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The workers of runs that live in a sandbox.
pub(crate) fn workers(mark: &str) -> Vec<u32> {
    let found = processes_with_env(&[mark]).into_iter();
    found.filter(|found| found.command.contains(" worker --run ")).map(|found| found.pid).collect()
}

/// What has not ended by then is at work.
const PATIENCE: Duration = Duration::from_secs(5);

type Look = fn(&Place, &Output);

/// What looks at the output of every piton.
static LOOK: OnceLock<Look> = OnceLock::new();

/// From now on, whatever a piton prints in this test program is looked at.
pub fn look_at_every_output(look: Look) {
    let _the_same_already = LOOK.set(look);
}

/// Where a piton was started: its folder, its environment, its sandbox.
#[derive(Debug)]
pub struct Place {
    command: Command,
    root: PathBuf,
    mark: String,
}

impl Place {
    /// What a command says that is typed there.
    #[track_caller]
    pub fn typed(&self, command: &str) -> Output {
        let ended = self.shell(command).output().expect("a shell");
        Output::of(ended.status, &ended.stdout, &ended.stderr)
    }

    /// What becomes of a command that is typed in a copy of the sandbox, at the same path.
    #[track_caller]
    pub fn typed_in_a_copy(&self, command: &str) -> Typed {
        if !processes_with_env(&[&self.mark]).is_empty() {
            return Typed::Busy;
        }
        let aside = self.root.with_extension("aside");
        fs::rename(&self.root, &aside).expect("the sandbox can be moved");
        let copied = Command::new("cp").args(["-a"]).args([&aside, &self.root]).output();
        if !copied.expect("cp").status.success() {
            let opened = Command::new("chmod").args(["-R", "u+rwX"]).arg(&self.root).status();
            assert!(opened.expect("chmod").success(), "half a copy can be opened");
            fs::remove_dir_all(&self.root).expect("half a copy can be removed");
            fs::rename(&aside, &self.root).expect("the sandbox can be moved back");
            return Typed::Shut;
        }
        let (stdout, stderr) = (self.root.join("typed.stdout"), self.root.join("typed.stderr"));
        let mut shell = self.shell(command);
        shell
            .stdout(File::create(&stdout).expect("a file"))
            .stderr(File::create(&stderr).expect("a file"));
        let mut shell = shell.spawn().expect("a shell");
        let ended = poll(PATIENCE, || match shell.try_wait().expect("a child can be waited for") {
            Some(status) => Ok(Some(status)),
            None if is_kept(&self.mark) => Ok(None),
            None => Err(()),
        });
        let read = |path| fs::read(path).unwrap_or_default();
        let output =
            ended.ok().flatten().map(|status| Output::of(status, &read(&stdout), &read(&stderr)));
        while let Some(left) = processes_with_env(&[&self.mark]).first() {
            kill9(left.pid);
        }
        let _its_end = shell.wait();
        fs::remove_dir_all(&self.root).expect("the copy can be removed");
        fs::rename(&aside, &self.root).expect("the sandbox can be moved back");
        output.map_or(Typed::Works, Typed::Ended)
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).stdin(Stdio::null()).env_clear();
        if let Some(folder) = self.command.get_current_dir() {
            shell.current_dir(folder);
        }
        shell.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let path = shell.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
        let path = path.unwrap_or_default().to_string_lossy().into_owned();
        shell.env("PATH", format!("{path}:{}", self.root.join("bin").display()));
        shell.env_remove("PITON_CRASH_AT");
        shell
    }
}

/// What became of a command that was typed.
#[derive(Debug)]
pub enum Typed {
    Ended(Output),
    /// It has started an attempt, or something else that lasts.
    Works,
    /// It was not typed: something runs in the sandbox, of which there is no copy.
    Busy,
    /// Part of the sandbox may not be read, so there is no copy of it.
    Shut,
}

/// Whether a keeper works in a sandbox.
fn is_kept(mark: &str) -> bool {
    processes_with_env(&[mark]).iter().any(|found| found.command.contains(" keeper --"))
}

/// How a piton ended and what it printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// None when a signal ended it.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    fn of(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Output {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(stdout), text(stderr));
        Output { code: status.code(), signal: status.signal(), stdout, stderr }
    }

    /// Asserts the exit status.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Output {
        assert_eq!(self.code, Some(code), "piton ended otherwise:\n{self}");
        self
    }

    #[track_caller]
    pub fn success(self) -> Output {
        self.expect_code(0)
    }

    /// What `--json` printed.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => value,
            Err(problem) => panic!("stdout is not one JSON value ({problem}):\n{self}"),
        }
    }
}

/// Everything in one text, for messages and snapshots.
impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => writeln!(f, "exit: {code}")?,
            (None, Some(signal)) => writeln!(f, "killed by signal {signal}")?,
            (None, None) => writeln!(f, "ended without a status")?,
        }
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.is_empty() {
                writeln!(f, "--- {name}\n{}", text.trim_end_matches('\n'))?;
            }
        }
        Ok(())
    }
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
