//! One call of git. Everything an agent could use to steer it is turned off here: inherited `GIT_*`
//! variables, hooks, fsmonitor, pager, editor, prompts, transports, automatic maintenance. A call
//! reads no standard input but what it is given.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;

use super::GitError;

/// Settings of every call; they stand above any configuration file.
const FIXED: &[(&str, &str)] = &[
    ("core.hooksPath", "/dev/null"),
    // Since git 2.54 hooks can also stand in the configuration; newer ones can be told by event not
    // to run them. These are the events that piton's calls could set off.
    ("hook.reference-transaction.enabled", "false"),
    ("hook.post-index-change.enabled", "false"),
    ("hook.post-checkout.enabled", "false"),
    ("hook.pre-auto-gc.enabled", "false"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.splitIndex", "false"),
    ("index.sparse", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.askPass", ""),
    ("core.sshCommand", "false"),
    ("core.alternateRefsCommand", ""),
    ("credential.helper", ""),
    ("protocol.allow", "never"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("submodule.recurse", "false"),
    ("diff.external", ""),
    ("core.quotePath", "false"),
    ("core.safecrlf", "false"),
    // What git believes about an unchanged file must not be loosened by the repository.
    ("core.trustctime", "true"),
    ("core.checkStat", "default"),
    ("core.ignoreStat", "false"),
    // Somebody else's ref update lasts milliseconds: wait for it.
    ("core.filesRefLockTimeout", "1000"),
    ("core.packedRefsTimeout", "2000"),
    ("core.fsyncMethod", "fsync"),
];

const ENVIRONMENT: &[(&str, &str)] = &[
    ("LC_ALL", "C"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_LITERAL_PATHSPECS", "1"),
    ("GIT_PROTOCOL_FROM_USER", "0"),
    ("GIT_ADVICE", "0"),
];

/// The first git of `PATH`, looked for once: the kernel would try every folder before it for each call.
fn program() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let is_program = |path: &PathBuf| {
            path.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
        };
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&folders).map(|dir| dir.join("git")).find(is_program);
        // Without one the start fails and says so.
        found.filter(|path| path.is_absolute()).unwrap_or_else(|| PathBuf::from("git"))
    })
}

/// What is handed to a running git at a time.
const PIPE: usize = 64 * 1024;

/// A git command being put together.
pub struct Call {
    command: Command,
    shown: Vec<String>,
    config: Vec<(OsString, OsString)>,
    input: Vec<u8>,
    accepted: &'static [i32],
}

/// What an accepted call printed, and how it ended.
pub struct Answer {
    pub(crate) code: i32,
    pub stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Call {
    /// `from` is where the process starts; it must exist.
    pub fn new(from: &Path) -> Call {
        let mut command = Command::new(program());
        command.current_dir(from);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"GIT_") {
                command.env_remove(name);
            }
        }
        command.env_remove("LANGUAGE").env_remove("SSH_ASKPASS");
        command.envs(ENVIRONMENT.iter().copied());
        let config = FIXED.iter().map(|(key, value)| (key.into(), value.into())).collect();
        Call { command, shown: vec!["git".into()], config, input: Vec::new(), accepted: &[0] }
    }

    /// Words of git's own, not values.
    pub fn args(mut self, args: &[&str]) -> Call {
        for arg in args {
            self = self.arg(arg);
        }
        self
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Call {
        self.shown.push(arg.as_ref().to_string_lossy().into_owned());
        self.command.arg(arg);
        self
    }

    /// An option before the verb; left out of error messages.
    pub fn option(mut self, name: &str, value: impl AsRef<OsStr>) -> Call {
        let mut word = OsString::from(name);
        word.push(value);
        self.command.arg(word);
        self
    }

    /// `-C`: unlike the process's own start folder a missing one is git's error, not a failed spawn.
    pub fn inside(mut self, path: &Path) -> Call {
        self.command.arg("-C").arg(path);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Call {
        self.command.env(name, value);
        self
    }

    pub(crate) fn config(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Call {
        self.config.push((key.into(), value.into()));
        self
    }

    pub fn configs(mut self, more: &[(OsString, OsString)]) -> Call {
        self.config.extend_from_slice(more);
        self
    }

    pub(crate) fn input(mut self, bytes: Vec<u8>) -> Call {
        self.input = bytes;
        self
    }

    /// Exit codes that are answers; others are errors.
    pub(crate) fn accept(mut self, codes: &'static [i32]) -> Call {
        self.accepted = codes;
        self
    }

    pub fn run(mut self) -> Result<Answer, GitError> {
        self.configure();
        let output = output(&mut self.command, &self.input).map_err(not_run)?;
        self.answer(output)
    }

    /// Starts it, to be talked to while it runs.
    pub(crate) fn start(mut self) -> Result<Running, GitError> {
        self.configure();
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().map_err(not_run)?;
        let stdin = child.stdin.take().map(|stdin| BufWriter::with_capacity(PIPE, stdin));
        let said = child.stderr.take().map(gather);
        Ok(Running { call: self, child, stdin, answered: None, said })
    }

    fn configure(&mut self) {
        self.command.env("GIT_CONFIG_COUNT", self.config.len().to_string());
        for (n, (key, value)) in self.config.iter().enumerate() {
            self.command.env(format!("GIT_CONFIG_KEY_{n}"), key);
            self.command.env(format!("GIT_CONFIG_VALUE_{n}"), value);
        }
    }

    fn answer(&self, output: Output) -> Result<Answer, GitError> {
        let stderr = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        match output.status.code() {
            Some(code) if self.accepted.contains(&code) => {
                Ok(Answer { code, stdout: output.stdout, stderr })
            }
            _ => {
                let command = self.shown.join(" ");
                Err(GitError::Failed { command, status: output.status, stderr })
            }
        }
    }

    /// Runs it and reads its answer as one line.
    pub fn line(self) -> Result<String, GitError> {
        let shown = self.shown.join(" ");
        Ok(self.run()?.text(&shown)?.trim_end_matches('\n').to_owned())
    }
}

/// A git command that runs. Left alone it is ended.
pub(crate) struct Running {
    call: Call,
    child: Child,
    stdin: Option<BufWriter<ChildStdin>>,
    answered: Option<JoinHandle<Vec<u8>>>,
    said: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it reads; its answers are gathered meanwhile, for the end.
    pub(crate) fn stdin(&mut self) -> &mut impl Write {
        self.answered = self.answered.take().or_else(|| self.child.stdout.take().map(gather));
        self.stdin.as_mut().expect("it is there until the end")
    }

    /// Both ends, to be used by two threads.
    pub(crate) fn ends(&mut self) -> (BufWriter<ChildStdin>, ChildStdout) {
        let stdin = self.stdin.take().expect("taken once");
        (stdin, self.child.stdout.take().expect("taken once"))
    }

    /// Ends the talk and takes the answer; `unsaid` is what went wrong in talking, which git's own
    /// words explain better.
    pub(crate) fn finish(mut self, unsaid: io::Result<()>) -> Result<Answer, GitError> {
        let stdin = self.stdin.take();
        let unsaid = unsaid.and_then(|()| stdin.map_or(Ok(()), |mut stdin| stdin.flush()));
        let status = self.child.wait().map_err(not_run)?;
        let gathered = |thread: Option<JoinHandle<Vec<u8>>>| {
            thread.map(JoinHandle::join).and_then(Result::ok).unwrap_or_default()
        };
        let (stdout, stderr) = (gathered(self.answered.take()), gathered(self.said.take()));
        let answer = self.call.answer(Output { status, stdout, stderr })?;
        unsaid.map_err(not_run)?;
        Ok(answer)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.said.is_some() {
            let _already_gone = self.child.kill();
            let _already_gone = self.child.wait();
        }
    }
}

/// Reads to the end on a thread of its own: a git whose words nobody takes waits for ever.
fn gather(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _what_came_counts = from.read_to_end(&mut all);
        all
    })
}

fn not_run(source: io::Error) -> GitError {
    match source.kind() {
        io::ErrorKind::NotFound => GitError::NotFound,
        _ => GitError::Io { doing: "run git", path: PathBuf::from("git"), source },
    }
}

impl Answer {
    pub fn text(&self, command: &str) -> Result<&str, GitError> {
        std::str::from_utf8(&self.stdout)
            .map_err(|_| GitError::unexpected(command, "its answer is not UTF-8"))
    }

    /// The parts of an answer printed with `-z`.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.stdout.split(|&b| b == 0).filter(|part| !part.is_empty())
    }
}

/// Feeds the input from a thread of its own: git may fill its output before it has read everything.
fn output(command: &mut Command, input: &[u8]) -> io::Result<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if input.is_empty() {
        return command.stdin(Stdio::null()).output();
    }
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A git that ends early says why by its status; the broken pipe adds nothing.
            if let Some(stdin) = &mut stdin {
                let _ = stdin.write_all(input);
            }
        });
        child.wait_with_output()
    })
}
