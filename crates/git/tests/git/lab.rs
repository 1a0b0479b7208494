//! A place for one test: a repository with one commit, a home, a decoy, and plain git to prepare and
//! to judge with.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use piton_core::event::{Snapshot, SnapshotReason};
use piton_core::ids::Oid;
use piton_git::snapshot::{self, Ask};
use piton_git::worktree::Worktree;
use piton_git::{Git, GitError};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

const CHILD: &str = "PITON_GIT_LAB";
const GIT_CONFIG: &str = "[user]\n\tname = Test\n\temail = test@example.com\n\
    [init]\n\tdefaultBranch = main\n[protocol \"file\"]\n\tallow = always\n";

/// A test in its own process.
macro_rules! lab_test {
    ($(#[$doc:meta])* fn $name:ident($lab:ident) $body:block) => {
        #[test]
        $(#[$doc])*
        fn $name() {
            $crate::lab::alone(concat!(module_path!(), "::", stringify!($name)), |$lab| $body);
        }
    };
}

pub(crate) fn alone(name: &str, body: impl FnOnce(&Lab)) {
    let name = name.split_once("::").map_or(name, |(_crate, rest)| rest);
    match std::env::var_os(CHILD) {
        Some(root) => {
            let lab = Lab { root: PathBuf::from(root), _folder: None };
            body(&lab);
        }
        None => {
            let lab = Lab::lay_out();
            let decoy = lab.decoy_state();
            let out = lab.again(name).output().expect("the test's own program starts");
            let said = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
            assert!(said.contains("1 passed"), "{name} ran nothing: {said}");
            assert_eq!(lab.decoy_state(), decoy, "the environment redirected a call");
        }
    }
}

/// Starts a victim in a group of its own and kills the group once `seen` is so, or when it has ended.
pub(crate) fn kill_when(victim: &mut Command, mut seen: impl FnMut() -> bool) {
    let mut victim =
        victim.process_group(0).stdout(Stdio::null()).spawn().expect("the victim starts");
    while !seen() && victim.try_wait().expect("it is ours").is_none() {
        std::thread::yield_now();
    }
    let group = Pid::from_child(&victim);
    // Its git may outlive it: the group is there until nobody is left in it.
    match kill_process_group(group, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => drop(victim.wait().expect("it ends")),
        Err(error) => panic!("{group:?} cannot be killed: {error}"),
    }
}

pub(crate) struct Lab {
    root: PathBuf,
    _folder: Option<TempDir>,
}

impl Lab {
    fn lay_out() -> Lab {
        let folder = TempDir::with_prefix("piton-git-").expect("a temporary folder");
        let root = folder.path().canonicalize().expect("it was just made");
        let lab = Lab { root, _folder: Some(folder) };
        for name in ["home", "repo", "decoy", "outside"] {
            fs::create_dir(lab.root.join(name)).expect("the folder is writable");
        }
        fs::write(lab.home().join(".gitconfig"), GIT_CONFIG).expect("the home is writable");
        lab.git_in(&lab.root.join("decoy"), &["init", "--quiet"]);
        lab.git_in(&lab.root.join("decoy"), &["commit", "-q", "--allow-empty", "-m", "decoy"]);
        lab.git(&["init", "--quiet"]);
        lab.write("README.md", "hello\n");
        lab.write("src/main.rs", "fn main() {}\n");
        lab.write(".gitignore", "target/\n*.log\n");
        lab.commit("initial");
        lab
    }

    /// The running test program once more, for one test, in the hostile environment.
    pub(crate) fn again(&self, name: &str) -> Command {
        let decoy = self.root.join("decoy");
        let mut command = Command::new(std::env::current_exe().expect("it runs"));
        command
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home())
            .env("TMPDIR", std::env::temp_dir())
            .envs(std::env::var_os("PITON_FULL").map(|full| ("PITON_FULL", full)))
            .env(CHILD, &self.root)
            .env("GIT_DIR", decoy.join(".git"))
            .env("GIT_COMMON_DIR", decoy.join(".git"))
            .env("GIT_WORK_TREE", &decoy)
            .env("GIT_INDEX_FILE", decoy.join(".git/index"))
            .env("GIT_OBJECT_DIRECTORY", decoy.join(".git/objects"))
            .env("GIT_NAMESPACE", "decoy")
            .env("GIT_AUTHOR_NAME", "Decoy")
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", "core.worktree")
            .env("GIT_CONFIG_VALUE_0", &decoy);
        command
    }

    fn decoy_state(&self) -> BTreeMap<PathBuf, Print> {
        prints(&self.root.join("decoy"), true)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.root.join("repo")
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.repo().join(path)
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        put(&self.path(path), text);
    }

    pub(crate) fn read(&self, path: impl AsRef<Path>) -> String {
        read(&self.path(path))
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        self.git_in(&self.repo(), args)
    }

    #[track_caller]
    pub(crate) fn git_in(&self, dir: &Path, args: &[&str]) -> String {
        match self.try_git_in(dir, args) {
            Ok(text) => text,
            Err(text) => panic!("git {} in {}: {text}", args.join(" "), dir.display()),
        }
    }

    pub(crate) fn try_git_in(&self, dir: &Path, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new("git");
        command.current_dir(dir).args(args);
        command.env_clear().env("HOME", self.home()).env("GIT_CONFIG_NOSYSTEM", "1");
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let out = command.output().expect("git starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        match out.status.success() {
            true => Ok(text(&out.stdout)),
            false => Err(text(&out.stderr)),
        }
    }

    pub(crate) fn sh(&self, dir: &Path, script: &str) {
        let status = Command::new("sh").arg("-ec").arg(script).current_dir(dir).status();
        assert!(status.expect("sh starts").success(), "{script}");
    }

    #[track_caller]
    pub(crate) fn commit(&self, message: &str) -> Oid {
        self.commit_in(&self.repo(), message)
    }

    #[track_caller]
    pub(crate) fn commit_in(&self, dir: &Path, message: &str) -> Oid {
        self.git_in(dir, &["add", "-A"]);
        self.git_in(dir, &["commit", "--quiet", "--allow-empty", "-m", message]);
        self.head(dir)
    }

    #[track_caller]
    pub(crate) fn head(&self, dir: &Path) -> Oid {
        oid(&self.git_in(dir, &["rev-parse", "HEAD"]))
    }

    /// The repository as the engine sees it.
    #[track_caller]
    pub(crate) fn found(&self) -> Git {
        Git::discover(&self.repo()).expect("a repository")
    }

    pub(crate) fn tree_at(&self, name: &str) -> Worktree {
        Worktree::at(&self.found(), &self.path(".piton/worktrees/x").join(name))
    }

    /// A worktree on [`BRANCH`] at the repository's HEAD.
    #[track_caller]
    pub(crate) fn tree(&self) -> Worktree {
        self.found().exclude("/.piton/").expect("writable");
        let tree = self.tree_at("run");
        tree.create(BRANCH, &self.head(&self.repo())).expect("created");
        tree
    }

    /// A snapshot with a new number.
    pub(crate) fn take(&self, tree: &Worktree, n: u32) -> Result<Option<Snapshot>, GitError> {
        self.take_after(tree, n, None)
    }

    pub(crate) fn take_after(
        &self,
        tree: &Worktree,
        n: u32,
        last: Option<&Oid>,
    ) -> Result<Option<Snapshot>, GitError> {
        let ask = Ask { last: last.cloned(), ..self.ask(tree) };
        snapshot::take(tree, &ask, u64::from(n))
    }

    pub(crate) fn ask(&self, tree: &Worktree) -> Ask {
        Ask {
            folder: "refs/piton/x/a/7".to_owned(),
            base: Some(self.head(tree.path())),
            message: "snapshot\n\nPiton-Run: x".to_owned(),
            reason: SnapshotReason::Cadence,
            last: None,
        }
    }

    #[track_caller]
    pub(crate) fn taken(&self, tree: &Worktree, n: u32) -> Snapshot {
        self.take(tree, n).expect("taken").expect("something to keep")
    }

    /// The paths of a commit's tree.
    pub(crate) fn paths_of(&self, commit: &Oid) -> Vec<String> {
        let out = self.git(&["ls-tree", "-r", "-z", "--name-only", commit.as_str()]);
        out.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect()
    }
}

pub(crate) const BRANCH: &str = "piton/x/step/a";

#[track_caller]
pub(crate) fn oid(text: &str) -> Oid {
    Oid::new(text).expect("an object id")
}

pub(crate) fn put(path: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().expect("in a folder")).expect("writable");
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

#[track_caller]
pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Everything about a file that somebody could change: mode, times, bytes or link target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Print {
    pub mode: u32,
    pub time: (i64, i64),
    pub bytes: Vec<u8>,
}

/// Every file below a folder. Times differ between two folders with the same files: leave them out
/// with `times: false`.
pub(crate) fn prints(root: &Path, times: bool) -> BTreeMap<PathBuf, Print> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, meta) = (entry.path(), entry.metadata().expect("it is there"));
            let kind = meta.file_type();
            let bytes = if kind.is_symlink() {
                fs::read_link(&path).expect("a link").as_os_str().as_bytes().to_vec()
            } else if kind.is_file() {
                fs::read(&path).expect("readable")
            } else {
                Vec::new()
            };
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            let mode = if kind.is_symlink() { 0o120_000 } else { meta.permissions().mode() };
            let time = if times { (meta.mtime(), meta.mtime_nsec()) } else { (0, 0) };
            let name = path.strip_prefix(root).expect("below it").to_owned();
            found.insert(name, Print { mode, time, bytes });
        }
    }
    found
}

/// The files of a worktree without its `.git`.
pub(crate) fn files(root: &Path, times: bool) -> BTreeMap<PathBuf, Print> {
    let mut found = prints(root, times);
    found.remove(Path::new(".git"));
    found
}
