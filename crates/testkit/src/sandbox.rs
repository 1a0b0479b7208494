//! A place of its own for one test of the real binary: a git repository with one commit, a home, the
//! XDG folders, an environment without anything of the machine's. Every process started from it
//! carries a mark; dropping the sandbox kills whatever still carries it, so a failing test leaves
//! nothing behind.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::crash::CrashPoint;
use crate::piton::{Piton, workers};
use crate::processes::{Process, kill_marked, processes_with_env};
use crate::programs;
use crate::wait::{DEADLINE, poll, wait_for};

/// The variable with the mark.
const MARK: &str = "PITON_SANDBOX";
/// Set it to keep the folder of a sandbox for a look afterwards.
const KEEP: &str = "PITON_KEEP_SANDBOX";
/// The time of every commit made through the sandbox, so that commit ids repeat.
const TIME: &str = "2026-01-01T00:00:00Z";

const GIT_CONFIG: &str = "\
[user]
\tname = Test
\temail = test@example.com
[init]
\tdefaultBranch = main
[commit]
\tgpgSign = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[advice]
\tdetachedHead = false
";

pub struct Sandbox {
    root: PathBuf,
    binary: PathBuf,
    mark: String,
    /// Numbers the captured outputs and the crash points.
    count: AtomicU32,
    folder: TempDir,
}

impl Sandbox {
    /// With the `piton` that cargo built beside the running test. Tests in `crates/piton` rather use
    /// [`Sandbox::with_binary`] with `env!("CARGO_BIN_EXE_piton")`, which also has it built.
    #[track_caller]
    pub fn new() -> Sandbox {
        let test = std::env::current_exe().expect("the running test has a path");
        let found =
            test.ancestors().skip(1).map(|dir| dir.join("piton")).find(|path| path.is_file());
        match found {
            Some(path) => Sandbox::with_binary(path),
            None => panic!("no piton beside {}: cargo build --release -p piton", test.display()),
        }
    }

    #[track_caller]
    pub fn with_binary(binary: impl Into<PathBuf>) -> Sandbox {
        let folder =
            tempfile::Builder::new().prefix("piton-").tempdir().expect("a temporary folder");
        let root = folder.path().canonicalize().expect("the folder just made");
        let id = uuid::Uuid::now_v7();
        let sandbox = Sandbox {
            root,
            binary: binary.into(),
            mark: format!("{MARK}={id}"),
            count: AtomicU32::new(0),
            folder,
        };
        sandbox.lay_out();
        sandbox
    }

    fn lay_out(&self) {
        let mut private = fs::DirBuilder::new();
        private.mode(0o700);
        let own = ["repo", "home", "config", "state", "data", "cache", "runtime"];
        for name in own.iter().chain(&["tmp", "bin", "captured", "marks"]) {
            private.create(self.root.join(name)).expect("a folder of the sandbox");
        }
        fs::write(self.home().join(".gitconfig"), GIT_CONFIG).expect("the sandbox is writable");
        symlink(&self.binary, self.bin().join("piton")).expect("the sandbox is writable");
        self.git(&["init", "--quiet", "--initial-branch=main"]);
        self.write("README.md", "A repository for a test.\n");
        self.commit("initial");
    }

    /// Everything of the sandbox is under this folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The repository's main worktree.
    pub fn repo(&self) -> PathBuf {
        self.root.join("repo")
    }

    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// First in `PATH`; holds `piton`. Put scripted programs here.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// A path outside the repository for files by which agents and tests talk: `touch`, `await`,
    /// `pid`, `count`, `once`, `nth`.
    pub fn mark(&self, name: &str) -> PathBuf {
        self.root.join("marks").join(name)
    }

    /// A path in the repository.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.repo().join(path)
    }

    /// Writes a file of the repository (or an absolute path), with its folders.
    #[track_caller]
    pub fn write(&self, path: impl AsRef<Path>, text: &str) -> PathBuf {
        let path = self.path(path);
        let parent = path.parent().expect("a file is in a folder");
        let written = fs::create_dir_all(parent).and_then(|()| fs::write(&path, text));
        written.unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        path
    }

    /// Lays a lock, relative to the repository, as a git leaves it that was killed a minute ago.
    pub fn leave_lock(&self, path: impl AsRef<Path>) {
        let lock = fs::File::create(self.path(path)).expect("the sandbox is writable");
        lock.set_modified(SystemTime::now() - Duration::from_secs(60))
            .expect("its time can be set");
    }

    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        let path = self.path(path);
        fs::read_to_string(&path).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()))
    }

    #[track_caller]
    pub fn read_json(&self, path: impl AsRef<Path>) -> serde_json::Value {
        let text = self.read(&path);
        let path = path.as_ref().display();
        serde_json::from_str(&text).unwrap_or_else(|problem| panic!("{path}: {problem}\n{text}"))
    }

    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// How many lines a file has, 0 when there is none: `count` lines are agent starts.
    pub fn lines(&self, path: impl AsRef<Path>) -> usize {
        fs::read_to_string(self.path(path)).map_or(0, |text| text.lines().count())
    }

    /// `piton ARGS…` in the repository.
    pub fn piton(&self, args: &[&str]) -> Piton {
        let mut command = self.command(&self.binary);
        command.args(args);
        let captured = self.root.join("captured").join(self.next().to_string());
        Piton::new(command, captured, self.root.clone(), self.mark.clone())
    }

    /// Any program with the sandbox's environment, in the repository, without input.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        let path = std::env::var("PATH").unwrap_or_default();
        let (name, id) = self.mark.split_once('=').expect("a mark is a variable with a value");
        command
            .current_dir(self.repo())
            .stdin(Stdio::null())
            .env_clear()
            .env(name, id)
            .env("PATH", format!("{}:{path}", self.bin().display()))
            .env("HOME", self.home())
            .env("TMPDIR", self.root.join("tmp"))
            .env("LANG", "C.UTF-8")
            .env("TZ", "UTC")
            .env("NO_COLOR", "1")
            .env("TERM", "dumb")
            // Lines are as long as they are: tests look for parts of them.
            .env("COLUMNS", "10000")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", self.home().join(".gitconfig"));
        for dir in ["config", "state", "data", "cache"] {
            command.env(format!("XDG_{}_HOME", dir.to_uppercase()), self.root.join(dir));
        }
        command.env("XDG_RUNTIME_DIR", self.root.join("runtime"));
        command
    }

    /// The fake agent's program, built if need be.
    #[track_caller]
    pub fn fake_agent(&self) -> PathBuf {
        programs::beside(&self.binary, "fake-agent")
    }

    /// The program of the stub of a model, built if need be.
    #[track_caller]
    pub fn stub_model(&self) -> PathBuf {
        programs::beside(&self.binary, "stub-model")
    }

    /// A line for the shell that runs a script of the fake agent: `run = …` of a plain step.
    #[track_caller]
    pub fn fake(&self, script: &str) -> String {
        let program = self.fake_agent();
        let program = program.to_str().expect("the target folder's path is text");
        format!("{} -e {}", shell_word(program), shell_word(script))
    }

    /// git in the repository, its trimmed output.
    #[track_caller]
    pub fn git(&self, args: &[&str]) -> String {
        self.git_in(&self.repo(), args)
    }

    #[track_caller]
    pub fn git_in(&self, dir: &Path, args: &[&str]) -> String {
        match self.try_git_in(dir, args) {
            Ok(text) => text,
            Err(problem) => panic!("git {} in {}: {problem}", args.join(" "), dir.display()),
        }
    }

    /// As [`Sandbox::git`]; the error is what git said.
    pub fn try_git(&self, args: &[&str]) -> Result<String, String> {
        self.try_git_in(&self.repo(), args)
    }

    fn try_git_in(&self, dir: &Path, args: &[&str]) -> Result<String, String> {
        let mut command = self.command("git");
        command.current_dir(dir).args(args);
        command.env("GIT_AUTHOR_DATE", TIME).env("GIT_COMMITTER_DATE", TIME);
        let out = command.output().map_err(|problem| problem.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        match out.status.success() {
            true => Ok(text(&out.stdout)),
            false => Err(text(&out.stderr)),
        }
    }

    /// Commits everything in the repository; the commit's id.
    #[track_caller]
    pub fn commit(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "--quiet", "--allow-empty", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// The id of the tree of a commit or ref.
    #[track_caller]
    pub fn tree_of(&self, rev: &str) -> String {
        self.git(&["rev-parse", "--verify", "--end-of-options", &format!("{rev}^{{tree}}")])
    }

    /// Arms a crash point in a folder of its own.
    pub fn crash_point(&self, point: &str, n: u32) -> CrashPoint {
        CrashPoint::arm(self.root.join(format!("crash-{}", self.next())), point, n)
    }

    /// Every living process that was started from this sandbox, directly or not.
    pub fn processes(&self) -> Vec<Process> {
        processes_with_env(&[&self.mark])
    }

    /// Those of them with this in the environment: `PITON_ATTEMPT=` for any attempt.
    pub fn processes_with_env(&self, mark: &str) -> Vec<Process> {
        processes_with_env(&[&self.mark, mark])
    }

    /// Waits until nothing that was started from this sandbox is alive.
    #[track_caller]
    pub fn wait_no_processes(&self) {
        wait_for(DEADLINE, "the end of every process of the sandbox", || match self.processes() {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        });
    }

    /// Waits for a condition; on a timeout the sandbox's living processes are shown.
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let ended = poll(DEADLINE, || condition().then_some(()).ok_or(()));
        if ended.is_err() {
            panic!("waited {DEADLINE:?} for {what}; alive: {:#?}", self.processes());
        }
    }

    /// Waits until a file exists.
    #[track_caller]
    pub fn wait_exists(&self, path: impl AsRef<Path>) {
        let path = self.path(path);
        self.wait_until(&path.display().to_string(), || path.exists());
    }

    /// Waits for a file that holds a process id (`pid`, `grandchild`) and reads it.
    #[track_caller]
    pub fn wait_pid(&self, path: impl AsRef<Path>) -> u32 {
        let path = self.path(path);
        wait_for(DEADLINE, &format!("a process id in {}", path.display()), || {
            let text = fs::read_to_string(&path).map_err(|problem| problem.to_string())?;
            text.trim().parse().map_err(|_| text)
        })
    }

    /// The sandbox's folder in a text replaced by `$SANDBOX`, for snapshots.
    pub fn redact(&self, text: &str) -> String {
        text.replace(self.root.to_str().expect("sandbox paths are text"), "$SANDBOX")
    }

    /// The workers of runs that live.
    pub fn workers(&self) -> Vec<u32> {
        workers(&self.mark)
    }

    /// The one worker that lives.
    #[track_caller]
    pub fn worker(&self) -> u32 {
        match self.workers().as_slice() {
            [one] => *one,
            other => panic!("one worker was expected: {other:?} {:#?}", self.processes()),
        }
    }

    /// Kills everything that was started from this sandbox. Says whether it is all gone.
    pub fn kill_all(&self) -> bool {
        let gone = poll(Duration::from_secs(10), || match kill_marked(&self.mark, &self.root) {
            0 => Ok(()),
            left => Err(left),
        });
        gone.is_ok()
    }

    fn next(&self) -> u32 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }
}

impl Default for Sandbox {
    fn default() -> Sandbox {
        Sandbox::new()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.kill_all();
        self.folder.disable_cleanup(std::env::var_os(KEEP).is_some());
    }
}

/// A word as the shell reads it back unchanged.
pub fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A string as TOML reads it back unchanged: a JSON string is one.
pub fn toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
