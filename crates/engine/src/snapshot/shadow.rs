//! A git directory of piton's own for one look at a worktree: HEAD, an index and a configuration that
//! no agent has written, with the repository's objects. What the repository's configuration and
//! attributes say about filters, line ends or monitors does not reach it, and cannot change under it.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use piton_core::ids::Oid;

use crate::git::{Call, GitError, names};
use crate::worktree::Worktree;

/// Left behind by a killed process when older than this.
const LITTER: Duration = Duration::from_secs(3600);
/// Sizes of a git id; the longer one is SHA-256.
const SHA1_DIGITS: usize = 40;
const EMPTY_TREE_SHA1: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
const EMPTY_TREE_SHA256: &str = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321";

/// What the index starts from.
pub(super) enum Source<'a> {
    /// piton's own index of an earlier snapshot.
    Kept(&'a Path),
    /// The worktree's index.
    Worktree(&'a Path),
    /// The files of HEAD, none of them known to be unchanged.
    Head,
}

/// It lives as long as one operation.
pub(super) struct Shadow {
    dir: PathBuf,
    root: PathBuf,
    objects: PathBuf,
    empty_tree: &'static str,
    head: Option<Oid>,
}

impl Shadow {
    /// In a folder of its own beside `path`.
    pub(super) fn beside(
        path: &Path,
        tree: &Worktree,
        head: Option<&Oid>,
    ) -> Result<Shadow, GitError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let stem = format!("{}.tmp-", path.file_name().unwrap_or_default().to_string_lossy());
        let folder = path.parent().unwrap_or(Path::new("."));
        sweep(folder, &stem);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = folder.join(format!("{stem}{}-{n}", std::process::id()));
        let common = tree.git().common_dir();
        let sha256 = match head {
            Some(head) => head.as_str().len() > SHA1_DIGITS,
            None => is_sha256(tree),
        };
        let shadow = Shadow {
            dir,
            root: tree.path().to_owned(),
            objects: common.join("objects"),
            empty_tree: if sha256 { EMPTY_TREE_SHA256 } else { EMPTY_TREE_SHA1 },
            head: head.cloned(),
        };
        let laid_out = shadow.lay_out(sha256, &common.join("info/exclude"));
        laid_out.map_err(|source| GitError::io("lay out", &shadow.dir, source))?;
        Ok(shadow)
    }

    fn lay_out(&self, sha256: bool, exclude: &Path) -> io::Result<()> {
        let folder = |name: &str| {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(self.dir.join(name))
        };
        folder("refs")?;
        folder("info")?;
        let head = self.head.as_ref().map_or("ref: refs/heads/none", Oid::as_str);
        fs::write(self.dir.join("HEAD"), format!("{head}\n"))?;
        let format = if sha256 { "1\n[extensions]\n\tobjectFormat = sha256" } else { "0" };
        // What git finds out about such a file system when it makes a repository.
        let system = if cfg!(target_os = "macos") {
            "\tignoreCase = true\n\tprecomposeUnicode = true\n"
        } else {
            ""
        };
        let config = format!("[core]\n{system}\trepositoryFormatVersion = {format}\n");
        fs::write(self.dir.join("config"), config)?;
        match fs::copy(exclude, self.dir.join("info/exclude")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// A call on the worktree that reads and writes bytes as they are.
    pub(super) fn call(&self) -> Call {
        let call = Call::new(&self.dir).option("--git-dir=", &self.dir);
        let call = call.option("--work-tree=", &self.root).inside(&self.root);
        call.env("GIT_OBJECT_DIRECTORY", &self.objects)
            .env("GIT_INDEX_FILE", self.index())
            .env("GIT_ATTR_SOURCE", self.empty_tree)
            .env("GIT_ATTR_NOSYSTEM", "1")
            // This index is ours: what a look finds out about unchanged files may be kept in it.
            .env("GIT_OPTIONAL_LOCKS", "1")
            .config("core.attributesFile", "/dev/null")
            .config("core.autocrlf", "false")
            .config("core.eol", "lf")
    }

    fn index(&self) -> PathBuf {
        self.dir.join("index")
    }

    /// Fills the index; says whether there was something to fill it from.
    pub(super) fn start_from(&self, source: &Source<'_>) -> Result<bool, GitError> {
        match source {
            Source::Kept(path) | Source::Worktree(path) => match copy(path, &self.index()) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(source) => Err(GitError::io("copy", path, source)),
            },
            Source::Head => {
                let _perhaps_none = fs::remove_file(self.index());
                let head = self.head.as_ref().map_or(self.empty_tree, Oid::as_str);
                self.call().args(&["read-tree", head]).run().map(|_| true)
            }
        }
    }

    /// Keeps the index for the next time.
    pub(super) fn keep_index(&self, path: &Path) -> Result<(), GitError> {
        fs::rename(self.index(), path).map_err(|source| GitError::io("keep", path, source))
    }

    /// Ignored files that an index has all the same.
    pub(super) fn forced(&self, index: &Path) -> Result<Vec<Vec<u8>>, GitError> {
        let call = self.call().env("GIT_INDEX_FILE", index).env("GIT_OPTIONAL_LOCKS", "0");
        let words = ["ls-files", "-z", "--cached", "--ignored", "--exclude-standard"];
        match call.args(&words).run() {
            Ok(answer) => Ok(answer.parts().map(<[u8]>::to_vec).collect()),
            // The agent's git is writing it, or it is damaged: the next snapshot sees it.
            Err(GitError::Failed { .. }) => Ok(Vec::new()),
            Err(other) => Err(other),
        }
    }

    /// Those of some paths that the ignore rules do not cover.
    pub(super) fn not_ignored(&self, paths: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, GitError> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        // A leading "./" keeps git from reading magic into a name; it comes back with the answer.
        let plain = |path: &Vec<u8>| [b"./", path.as_slice()].concat();
        let input = paths.iter().flat_map(|path| [plain(path), vec![0]].concat()).collect();
        let call = self.call().env("GIT_LITERAL_PATHSPECS", "0");
        let call = call.args(&["check-ignore", "-z", "--stdin"]).input(input);
        let answer = call.accept(&[0, 1]).run()?;
        let ignored: HashSet<&[u8]> = answer.parts().collect();
        let kept = paths.iter().filter(|path| !ignored.contains(plain(path).as_slice()));
        Ok(kept.cloned().collect())
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        let _litter_is_swept_later = fs::remove_dir_all(&self.dir);
    }
}

/// Git tells an unchanged file from one changed in the same instant by the index's own time, so a
/// copy must have the time of the original.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let time = fs::metadata(from)?.modified()?;
    fs::copy(from, to)?;
    fs::File::options().write(true).open(to)?.set_modified(time)
}

fn sweep(folder: &Path, stem: &str) {
    let old = |path: &Path| {
        let time = fs::metadata(path).and_then(|found| found.modified());
        time.is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > LITTER))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let ours = names::bytes(Path::new(&entry.file_name())).starts_with(stem.as_bytes());
        if ours && old(&entry.path()) {
            let _another_time = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_sha256(tree: &Worktree) -> bool {
    let asked = tree.git().call().args(&["rev-parse", "--show-object-format"]);
    asked.line().is_ok_and(|format| format == "sha256")
}
