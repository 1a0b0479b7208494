//! New objects and one new ref, by a single git process: `fast-import` writes one pack, flushes it,
//! points the ref at the commit, and holds the pack against a gc until the ref is there. It runs no
//! filter and reads no attribute: a file is the bytes it is given. Whoever uses this flushes nothing but
//! what the commit stands on.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use piton_core::ids::Oid;

use super::call::Running;
use super::commit::{EMAIL, NAME};
use super::hash::Id;
use super::{Answer, Git, GitError, flush, locks, names, oid};
use crate::file;

/// Larger files go to disk as they come, unheld and undeltified.
const BIG: &str = "16m";

/// The how manieth try it is to store something. A gc may take a pack away that git has already begun to
/// hold; what holds it then stays, and keeps a pack of the same bytes from being stored. So each of the next
/// tries has other bytes: these levels of compression differ in the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn(pub(crate) usize);

impl Turn {
    pub(crate) const FIRST: Turn = Turn(0);

    fn compression(self) -> &'static str {
        ["1", "2", "6", "9"][self.0 % 4]
    }
}

/// What a file is in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    File,
    Program,
    Link,
    /// Another repository's commit.
    Gitlink,
}

impl Mode {
    pub(crate) fn parse(text: &[u8]) -> Option<Mode> {
        match text {
            // The second is from the early days of git; there is no file with other permissions.
            b"100644" | b"100664" => Some(Mode::File),
            b"100755" => Some(Mode::Program),
            b"120000" => Some(Mode::Link),
            b"160000" => Some(Mode::Gitlink),
            _ => None,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Mode::File => "100644",
            Mode::Program => "100755",
            Mode::Link => "120000",
            Mode::Gitlink => "160000",
        }
    }
}

/// A path of a tree; `None`: it is not there.
pub(crate) type Change = (Vec<u8>, Option<(Mode, Id)>);

/// What a commit's tree starts from, before its changes.
pub(crate) enum Start<'a> {
    /// The first parent's.
    Parent,
    Tree(&'a Oid),
}

/// A parent of a commit to be made.
#[derive(Clone, Copy)]
pub(crate) enum Parent<'a> {
    Commit(&'a Oid),
    /// One that is made in the same pack.
    Made(u32),
}

impl std::fmt::Display for Parent<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Parent::Commit(id) => id.fmt(f),
            Parent::Made(mark) => write!(f, ":{mark}"),
        }
    }
}

/// A commit to be made.
pub(crate) struct Entry<'a> {
    pub(crate) message: &'a str,
    /// The first parent.
    pub(crate) parent: Parent<'a>,
    pub(crate) start: Start<'a>,
    pub(crate) changes: &'a [Change],
}

/// A pack being written.
pub(crate) struct Pack<'a> {
    git: &'a Git,
    refname: &'a str,
    running: Running,
    home: PathBuf,
    written: HashSet<Id>,
    unsaid: io::Result<()>,
    asked: usize,
    marks: u32,
}

/// What became of it.
pub(crate) struct Packed {
    pub(crate) commit: Oid,
    pub(crate) tree: Oid,
    /// Everything new is in this pack, nothing in another one that a gc might be about to replace.
    pub(crate) alone: bool,
    /// For each path that was asked about: what it is in the commit that was asked.
    pub(crate) found: Vec<Option<(Mode, Id)>>,
}

impl<'g> Pack<'g> {
    /// The repository, and the ref that it is for.
    pub(crate) fn place(&self) -> (&'g Git, &'g str) {
        (self.git, self.refname)
    }

    /// Begins a pack; nothing is visible before [`Pack::finish`].
    pub(crate) fn begin<'a>(
        git: &'a Git,
        refname: &'a str,
        turn: Turn,
    ) -> Result<Pack<'a>, GitError> {
        let home = home(git)?;
        let call = git.without_hooks(git.call_in(&home))?;
        let call = call
            .config("core.fsync", "pack,pack-metadata,reference")
            .config("fastimport.unpackLimit", "0")
            .config("core.bigFileThreshold", BIG)
            .config("core.logAllRefUpdates", "false")
            .config("pack.compression", turn.compression())
            .config("pack.packSizeLimit", "0");
        // Only what ends with "done" counts: a writer that is killed leaves no half commit.
        let running = call.args(&["fast-import", "--done", "--depth=0"]).start()?;
        let (written, unsaid) = (HashSet::new(), Ok(()));
        Ok(Pack { git, refname, running, home, written, unsaid, asked: 0, marks: 0 })
    }

    /// Begins a pack of files alone, in another place for objects: no commit and no ref comes of it.
    pub(crate) fn apart<'a>(git: &'a Git, objects: &Path) -> Result<Pack<'a>, GitError> {
        let call = git
            .call_apart(objects)
            .config("fastimport.unpackLimit", "0")
            .config("core.bigFileThreshold", BIG)
            .config("pack.packSizeLimit", "0");
        let running = call.args(&["fast-import", "--done", "--depth=0", "--quiet"]).start()?;
        let (written, unsaid, home) = (HashSet::new(), Ok(()), objects.to_owned());
        Ok(Pack { git, refname: "", running, home, written, unsaid, asked: 0, marks: 0 })
    }

    pub(crate) fn finish_apart(mut self) -> Result<(), GitError> {
        self.say(b"done\n");
        self.running.finish(self.unsaid).map(drop)
    }

    fn say(&mut self, bytes: &[u8]) {
        if self.unsaid.is_ok() {
            self.unsaid = self.running.stdin().write_all(bytes);
        }
    }

    /// A file with this id.
    pub(crate) fn blob(&mut self, id: Id, bytes: &[u8]) {
        if self.written.insert(id) {
            self.say(format!("blob\ndata {}\n", bytes.len()).as_bytes());
            self.say(bytes);
            self.say(b"\n");
        }
    }

    /// A file of a known length, as it is read. One that ends early is filled up: git was promised
    /// the length, and whoever hashes what was read sees that it is another file.
    pub(crate) fn stream(&mut self, len: u64, from: &mut impl Read) -> io::Result<()> {
        self.say(format!("blob\ndata {len}\n").as_bytes());
        let mut left = len;
        let mut buffer = vec![0; 256 * 1024];
        let mut failed = Ok(());
        while left > 0 {
            let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let got = match &failed {
                Ok(()) => from.read(&mut buffer[..wanted]).unwrap_or_else(|error| {
                    failed = Err(error);
                    0
                }),
                Err(_) => 0,
            };
            let got = match got {
                0 => {
                    buffer[..wanted].fill(0);
                    wanted
                }
                got => got,
            };
            self.say(&buffer[..got]);
            left -= got as u64;
        }
        self.say(b"\n");
        failed
    }

    /// The snapshot's commit, with further parents.
    pub(crate) fn commit(&mut self, entry: &Entry<'_>, merges: &[Parent<'_>]) {
        self.marks += 1;
        let mark = self.marks;
        self.entry(entry, mark, merges);
        self.say(format!("get-mark :{mark}\nls :{mark} \"\"\n").as_bytes());
    }

    /// A commit for the snapshot's one to have as a parent.
    pub(crate) fn side(&mut self, entry: &Entry<'_>) -> Parent<'static> {
        self.marks += 1;
        self.entry(entry, self.marks, &[]);
        Parent::Made(self.marks)
    }

    /// The same without a parent of its own.
    pub(crate) fn root(&mut self, message: &str, changes: &[Change]) -> Parent<'static> {
        self.marks += 1;
        // Else it would go on from the commit before it.
        let mut text = format!("reset {}\n", self.refname).into_bytes();
        text.extend(self.head(message, self.marks));
        text.extend(changed(changes));
        self.say(&text);
        Parent::Made(self.marks)
    }

    fn head(&self, message: &str, mark: u32) -> Vec<u8> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let message = format!("{}\n", message.trim_end());
        let (refname, len) = (self.refname, message.len());
        let mut text = format!("commit {refname}\nmark :{mark}\n").into_bytes();
        text.extend(format!("committer {NAME} <{EMAIL}> {now} +0000\ndata {len}\n").bytes());
        text.extend(message.bytes());
        text
    }

    fn entry(&mut self, entry: &Entry<'_>, mark: u32, merges: &[Parent<'_>]) {
        let mut text = self.head(entry.message, mark);
        text.extend(format!("from {}\n", entry.parent).bytes());
        for other in merges {
            text.extend(format!("merge {other}\n").bytes());
        }
        if let Start::Tree(tree) = entry.start {
            text.extend(format!("M 040000 {tree} \"\"\n").bytes());
        }
        text.extend(changed(entry.changes));
        self.say(&text);
    }

    /// Asks what some paths are in another commit.
    pub(crate) fn ask<'p>(&mut self, commit: &Oid, paths: impl Iterator<Item = &'p [u8]>) {
        for path in paths {
            self.say(format!("ls {commit} ").as_bytes());
            self.say(&names::quoted(path));
            self.say(b"\n");
            self.asked += 1;
        }
    }

    /// When this returns, the objects and the ref are on disk.
    pub(crate) fn finish(mut self) -> Result<Packed, GitError> {
        self.say(b"done\n");
        let Pack { git, refname, running, home, unsaid, asked, .. } = self;
        let id = running.id();
        match running.finish(unsaid) {
            Ok(answer) => {
                flush::sync(&git.common_dir().join("objects/pack"))?;
                flush::ref_folders(git, refname)?;
                read(&answer, asked)
            }
            Err(error) => {
                let report = home.join(format!("fast_import_crash_{id}"));
                let _perhaps_none = fs::remove_file(report);
                Err(error)
            }
        }
    }
}

/// What goes makes room for what comes: a file may take the place of a folder.
fn changed(changes: &[Change]) -> Vec<u8> {
    let mut text = Vec::new();
    for (path, _) in changes.iter().filter(|(_, to)| to.is_none()) {
        text.extend([b"D ", names::quoted(path).as_slice(), b"\n"].concat());
    }
    for (path, to) in changes {
        if let Some((mode, id)) = to {
            text.extend(format!("M {} {id} ", mode.text()).bytes());
            text.extend(names::quoted(path));
            text.push(b'\n');
        }
    }
    text.push(b'\n');
    text
}

fn read(answer: &Answer, asked: usize) -> Result<Packed, GitError> {
    let mut lines = answer.stdout.split(|&byte| byte == b'\n');
    let commit = oid(lines.next().unwrap_or_default(), "git fast-import")?;
    let root = lines.next().unwrap_or_default();
    let tree = oid(
        root.strip_prefix(b"040000 tree ")
            .and_then(|rest| rest.split(|&b| b == b'\t').next())
            .unwrap_or(root),
        "git fast-import",
    )?;
    let found = lines.take(asked).map(row).collect();
    let alone = answer.stderr.lines().any(|line| {
        line.starts_with("Total objects:") && line.contains("( ") && line.contains(" 0 duplicates")
    });
    Ok(Packed { commit, tree, alone, found })
}

/// `<mode> <type> <id>\t<path>`, or `missing <path>`.
fn row(line: &[u8]) -> Option<(Mode, Id)> {
    let line = line.split(|&byte| byte == b'\t').next()?;
    let mut words = line.split(|&byte| byte == b' ');
    let mode = Mode::parse(words.next()?)?;
    Some((mode, Id::parse(words.nth(1)?)?))
}

/// A git directory of piton's own, beside the repository's: what git leaves behind when it fails is
/// then nobody else's litter.
fn home(git: &Git) -> Result<PathBuf, GitError> {
    let home = git.state_dir().join("pack");
    let is_whole = |home: &Path| home.join("HEAD").is_file() && home.join("commondir").is_file();
    if !is_whole(&home) {
        locks::private_dir(&home)?;
        let write = |name: &str, text: &str| {
            let place = home.join(name);
            file::write(&place, text).map_err(|source| GitError::io("write", &place, source))
        };
        write("commondir", "../..\n")?;
        write("HEAD", "ref: refs/heads/none\n")?;
    }
    Ok(home)
}
