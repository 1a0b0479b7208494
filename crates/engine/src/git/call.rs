//! One call of git. Everything an agent could use to steer it is turned off here: inherited `GIT_*`
//! variables, hooks, fsmonitor, pager, editor, prompts, transports, automatic maintenance. A call
//! reads no standard input but what it is given.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

/// A git command being put together.
pub(crate) struct Call {
    command: Command,
    shown: Vec<String>,
    config: Vec<(OsString, OsString)>,
    input: Vec<u8>,
    accepted: &'static [i32],
}

/// What an accepted call printed, and how it ended.
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Call {
    /// `from` is where the process starts; it must exist.
    pub(crate) fn new(from: &Path) -> Call {
        let mut command = Command::new("git");
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
    pub(crate) fn args(mut self, args: &[&str]) -> Call {
        for arg in args {
            self = self.arg(arg);
        }
        self
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Call {
        self.shown.push(arg.as_ref().to_string_lossy().into_owned());
        self.command.arg(arg);
        self
    }

    /// An option before the verb; left out of error messages.
    pub(crate) fn option(mut self, name: &str, value: impl AsRef<OsStr>) -> Call {
        let mut word = OsString::from(name);
        word.push(value);
        self.command.arg(word);
        self
    }

    /// `-C`: unlike the process's own start folder a missing one is git's error, not a failed spawn.
    pub(crate) fn inside(mut self, path: &Path) -> Call {
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

    pub(crate) fn configs(mut self, more: &[(OsString, OsString)]) -> Call {
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

    pub(crate) fn run(mut self) -> Result<Answer, GitError> {
        self.command.env("GIT_CONFIG_COUNT", self.config.len().to_string());
        for (n, (key, value)) in self.config.iter().enumerate() {
            self.command.env(format!("GIT_CONFIG_KEY_{n}"), key);
            self.command.env(format!("GIT_CONFIG_VALUE_{n}"), value);
        }
        let shown = self.shown.join(" ");
        let output =
            output(&mut self.command, &self.input).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => GitError::NotFound,
                _ => GitError::Io { doing: "run git", path: PathBuf::from("git"), source },
            })?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        match output.status.code() {
            Some(code) if self.accepted.contains(&code) => {
                Ok(Answer { code, stdout: output.stdout, stderr })
            }
            _ => Err(GitError::Failed { command: shown, status: output.status, stderr }),
        }
    }

    /// Runs it and reads its answer as one line.
    pub(crate) fn line(self) -> Result<String, GitError> {
        let shown = self.shown.join(" ");
        Ok(self.run()?.text(&shown)?.trim_end_matches('\n').to_owned())
    }
}

impl Answer {
    pub(crate) fn text(&self, command: &str) -> Result<&str, GitError> {
        std::str::from_utf8(&self.stdout)
            .map_err(|_| GitError::unexpected(command, "its answer is not UTF-8"))
    }

    /// The parts of an answer printed with `-z`.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
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
