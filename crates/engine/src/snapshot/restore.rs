//! From a snapshot back to files: read back to see that it is whole, and put into a worktree byte for byte.
//! Files are written here, not checked out: no filter has a part in it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use piton_core::event::{Omission, Snapshot};
use piton_core::ids::Oid;

use super::beneath::Root;
use super::known::Known;
use super::operation::Begun;
use super::read::{Reader, Sink};
use super::staged::{TrackedPaths, files_of};
use super::walk::is_within;
use super::{EMPTY_FOLDER, LEFT_OUT};
use crate::git::hash::{Format, Id};
use crate::git::pack::Mode;
use crate::git::{Git, GitError, commit_tree, drivers, is_missing, locks, names, oid};
use crate::worktree::{Aside, SetAside, Worktree, differing};

/// Reads a snapshot back from disk: its ref, its commits, its trees and every file that HEAD does not
/// have, each compared with its id.
pub fn read_back(git: &Git, snapshot: &Snapshot) -> Result<(), GitError> {
    let damaged =
        |why: &str| GitError::Damaged { refname: snapshot.refname.clone(), why: why.to_owned() };
    let failed = |error: GitError| match error {
        GitError::Failed { stderr, .. } => damaged(&stderr),
        other => other,
    };
    match git.ref_target(&snapshot.refname)? {
        Some(commit) if commit == snapshot.commit => {}
        Some(other) => return Err(damaged(&format!("its ref is at {other}"))),
        None => return Err(damaged("its ref is gone")),
    }
    let header = Header::read(git, &snapshot.commit).map_err(failed)?;
    if header.tree.as_ref() != Some(&snapshot.tree) {
        return Err(damaged("its tree is another one"));
    }
    let words = ["rev-list", "--objects", "--verify-objects", "--no-object-names"];
    let mut asked = git.call().args(&words).arg(snapshot.commit.as_str());
    if let Some(head) = header.parents.first() {
        asked = asked.args(&["--not", head.as_str()]);
    }
    let answer = asked.run().map_err(failed)?;
    // A file whose bytes do not match its id is only complained about.
    match answer.stderr.is_empty() {
        true => Ok(()),
        false => Err(damaged(&answer.stderr)),
    }
}

/// A snapshot's message, and what it says was left out.
pub fn told(git: &Git, commit: &Oid) -> Result<(String, Vec<Omission>), GitError> {
    let header = Header::read(git, commit)?;
    let omitted = header.left_out();
    Ok((header.message, omitted))
}

/// What git was in the middle of when a snapshot was taken.
pub fn operation(git: &Git, commit: &Oid) -> Result<Option<Begun>, GitError> {
    Ok(Begun::told_in(&Header::read(git, commit)?.message))
}

/// What a snapshot's commit says.
pub(super) struct Header {
    tree: Option<Oid>,
    /// HEAD, a commit of the index where something was staged, one of the sides of conflicts, and what an
    /// operation was about that was under way.
    pub(super) parents: Vec<Oid>,
    pub(super) message: String,
}

impl Header {
    pub(super) fn read(git: &Git, commit: &Oid) -> Result<Header, GitError> {
        let answer = git.call().args(&["cat-file", "commit", commit.as_str()]).run()?;
        let text = String::from_utf8_lossy(&answer.stdout).into_owned();
        let (head, message) = text.split_once("\n\n").unwrap_or((&text, ""));
        let named = |name: &str| {
            let rows = head.lines().filter_map(move |line| line.strip_prefix(name));
            rows.filter_map(|id| Oid::new(id).ok()).collect::<Vec<_>>()
        };
        let (trees, parents) = (named("tree "), named("parent "));
        Ok(Header { tree: trees.into_iter().next(), parents, message: message.to_owned() })
    }

    fn left_out(&self) -> Vec<Omission> {
        let rows = self.message.lines().filter_map(|line| line.strip_prefix(LEFT_OUT));
        let read = |row: &str| match row.strip_prefix('"') {
            // It ends at the first quote that nothing stands before.
            Some(rest) => {
                let mut escaped = false;
                let end = rest.find(|letter| {
                    let ends = letter == '"' && !escaped;
                    escaped = letter == '\\' && !escaped;
                    ends
                })?;
                let why = rest[end + 1..].trim_start().to_owned();
                Some(Omission { path: unquoted(&rest[..end]), why })
            }
            None => Some(Omission { path: String::new(), why: row.to_owned() }),
        };
        rows.filter_map(|row| read(row.strip_prefix(": ")?)).collect()
    }

    pub(super) fn empty_folders(&self) -> impl Iterator<Item = PathBuf> {
        let rows = self.message.lines().filter_map(|line| line.strip_prefix(EMPTY_FOLDER));
        let quoted = rows.filter_map(|row| row.strip_prefix(": \"")?.strip_suffix('"'));
        quoted.map(|text| PathBuf::from(unquoted(text)))
    }
}

fn unquoted(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        match (letter, letter == '\\') {
            (_, true) => match rest.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
            (letter, false) => plain.push(letter),
        }
    }
    plain
}

/// What a worktree gets on top of a commit.
#[derive(Debug, Clone, Copy)]
pub struct Filling<'a> {
    pub snapshot: &'a Oid,
    /// Paths that are left free, with all that is below them: something else is to come there.
    pub without: &'a [Vec<u8>],
}

impl<'a> From<&'a Oid> for Filling<'a> {
    fn from(snapshot: &'a Oid) -> Filling<'a> {
        Filling { snapshot, without: &[] }
    }
}

/// Makes or resets a worktree to what a snapshot holds: `branch` is at the snapshot's parent `head`
/// with HEAD, the index is as it was, the differences are uncommitted again. Without a snapshot the
/// files are those of `head`. A kill on the way leaves a worktree that counts as missing. What is in
/// the way of a file is moved aside; whoever calls this has taken a snapshot of whatever else is there.
/// Returns what the reset moved aside.
pub fn rebuild<'a>(
    tree: &Worktree,
    branch: &str,
    head: &Oid,
    filling: Option<impl Into<Filling<'a>>>,
) -> Result<Vec<SetAside>, GitError> {
    let filling = filling.map(Into::into);
    tree.remake(branch, head, || match filling {
        Some(filling) => {
            put_back(tree, head, filling)?;
            tree.put_position(branch, filling.snapshot)
        }
        None => Ok(()),
    })
}

/// What a snapshot has changed on top of its parent, brought onto a later commit: a commit whose tree has
/// both. Where both have changed a path, the later commit's is taken, and the snapshot alone has its own.
pub(crate) fn carried(
    git: &Git,
    snapshot: &Oid,
    (parent, later): (&Oid, &Oid),
) -> Result<Oid, GitError> {
    let scratch = git.state_dir().join("scratch");
    locks::private_dir(&scratch)?;
    let index = scratch.join(format!("index-{}", std::process::id()));
    let call = || git.call().env("GIT_INDEX_FILE", &index);
    let made = (|| {
        call().args(&["read-tree", later.as_str()]).run()?;
        let changed: HashSet<Vec<u8>> = differing(git.call(), parent, later)?.into_iter().collect();
        let words = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev"];
        let answer = git.call().args(&words).args(&[parent.as_str(), snapshot.as_str()]).run()?;
        let fields: Vec<&[u8]> = answer.parts().collect();
        let mut rows = Vec::new();
        for pair in fields.chunks_exact(2).filter(|pair| !changed.contains(pair[1])) {
            // `:<old mode> <mode> <old id> <id> <letter>`; a mode of zeros takes the path away.
            let words: Vec<&[u8]> = pair[0].split(|byte| *byte == b' ').collect();
            let &[_, mode, _, id, _] = words.as_slice() else {
                return Err(GitError::unexpected("git diff-tree", names::shown(pair[0])));
            };
            rows.push([mode, b" ", id, b"\t", pair[1], b"\0"].concat());
        }
        call().args(&["update-index", "-z", "--index-info"]).input(rows.concat()).run()?;
        let tree = oid(&call().arg("write-tree").run()?.stdout, "git write-tree")?;
        let message = "piton: what was uncommitted, on later commits";
        commit_tree(|| git.call(), &tree, std::slice::from_ref(later), message)
    })();
    let _the_next_one_overwrites_it = fs::remove_file(&index);
    made
}

type Files = HashMap<Vec<u8>, (Mode, Id)>;

fn put_back(tree: &Worktree, head: &Oid, filling: Filling<'_>) -> Result<(), GitError> {
    let Filling { snapshot, without } = filling;
    let dir = tree.git_dir()?;
    let files = |of: &Oid| -> Result<Files, GitError> {
        let listed = files_of(tree.call_in(&dir), of)?.into_iter();
        Ok(listed.filter_map(|(path, to)| Some((path, to?))).collect())
    };
    let header = Header::read(tree.git(), snapshot)?;
    let (mut wanted, at_head) = (files(snapshot)?, files(head)?);
    wanted.retain(|path, _| !without.iter().any(|free| is_within(path, free)));
    let sparse = TrackedPaths::of(tree.call_in(&dir));
    for path in wanted.keys() {
        if !names::is_inside(&names::path(path)) {
            return Err(GitError::unexpected("git ls-tree", names::shown(path)));
        }
    }
    let gone = at_head
        .iter()
        .filter(|(path, (mode, _))| *mode != Mode::Gitlink && !wanted.contains_key(*path));
    gone.map(|(path, _)| path)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .try_for_each(|path| remove(tree.path(), &names::path(path)))?;
    let mut place =
        Place { tree, at_head: &at_head, aside: Aside::default(), folders: HashSet::new() };
    let mut paths: Vec<&Vec<u8>> = wanted.keys().collect();
    paths.sort();
    for path in &paths {
        place.clear_way(&names::path(path))?;
    }
    let missing = |path: &&Vec<u8>| {
        let unwanted = sparse.is_sparse(path) && at_head.get(*path) == wanted.get(*path);
        wanted[*path].0 != Mode::Gitlink && !unwanted
    };
    let paths: Vec<Vec<u8>> = paths.into_iter().filter(missing).cloned().collect();
    place.write_differing(&paths, &wanted, Format::of(snapshot))?;
    let folders = wanted.iter().filter(|(_, (mode, _))| *mode == Mode::Gitlink);
    let folders = folders.map(|(path, _)| names::path(path)).chain(header.empty_folders());
    let is_free = |folder: &Path| without.iter().any(|free| is_within(names::bytes(folder), free));
    for folder in folders.filter(|folder| names::is_inside(folder) && !is_free(folder)) {
        place.clear_way(&folder.join("within"))?;
        let folder = tree.path().join(folder);
        fs::create_dir_all(&folder).map_err(|source| GitError::io("make", &folder, source))?;
    }
    match header.parents.get(1) {
        Some(_) => put_index(tree, &dir, &header),
        None => Ok(()),
    }
}

/// The index as it was: what was staged, with the sides of conflicts.
pub(super) fn put_index(tree: &Worktree, dir: &Path, header: &Header) -> Result<(), GitError> {
    let Some(index) = header.parents.get(1).or(header.parents.first()) else { return Ok(()) };
    // Whoever writes an index looks at files that were just changed, through their filters.
    let drivers = drivers::overrides(tree.call_in(dir))?;
    let call = || Ok(tree.git().without_hooks(tree.call_in(dir))?.configs(&drivers));
    // Only the index: what it has of files that did not change stays known.
    let read = |how: &[&str]| call()?.arg("read-tree").args(how).arg(index.as_str()).run();
    let mut put = read(&["-i", "-m"]);
    if matches!(put, Err(GitError::Failed { .. })) {
        // It has conflicts.
        put = read(&["-i", "--reset"]);
    }
    if matches!(put, Err(GitError::Failed { .. })) {
        // It is torn.
        locks::set_aside(tree.git(), &dir.join("index"))?;
        put = read(&[]);
    }
    put.map(drop)?;
    let Some(sides) = header.parents.get(2) else { return Ok(()) };
    let mut rows = Vec::new();
    let none = "0".repeat(sides.as_str().len());
    for (path, to) in files_of(tree.call_in(dir), sides)? {
        let (Some((mode, id)), [stage @ b'1'..=b'3', b'/', path @ ..]) = (to, path.as_slice())
        else {
            return Err(GitError::unexpected("git ls-tree", names::shown(&path)));
        };
        let stage = char::from(*stage);
        rows.push([format!("0 {none}\t").as_bytes(), path, b"\0"].concat());
        let row = format!("{} {id} {stage}\t", mode.text());
        rows.push([row.as_bytes(), path, b"\0"].concat());
    }
    // Every side's path is cleared before the first side is put.
    rows.sort_by_key(|row| !row.starts_with(b"0 "));
    call()?.args(&["update-index", "-z", "--index-info"]).input(rows.concat()).run().map(drop)
}

/// A worktree being filled.
struct Place<'a> {
    tree: &'a Worktree,
    at_head: &'a Files,
    aside: Aside,
    /// Folders that are there, and are folders.
    folders: HashSet<PathBuf>,
}

impl Place<'_> {
    /// Moves away what stands where a folder of a file is to be.
    fn clear_way(&mut self, path: &Path) -> Result<(), GitError> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.pop();
        for folder in above.into_iter().rev() {
            if self.folders.contains(folder) {
                continue;
            }
            match fs::symlink_metadata(self.tree.path().join(folder)) {
                Ok(found) if found.is_dir() => {
                    self.folders.insert(folder.to_owned());
                }
                Ok(_) => return self.aside.put(self.tree, folder),
                Err(error) if is_missing(&error) => return Ok(()),
                Err(source) => return Err(GitError::io("look at", folder, source)),
            }
        }
        Ok(())
    }

    /// Writes the files that are not on disk as they are wanted.
    fn write_differing(
        &mut self,
        paths: &[Vec<u8>],
        wanted: &Files,
        format: Format,
    ) -> Result<(), GitError> {
        let (known, sink) = (Known::default(), Sink::nowhere());
        let failed = |source| GitError::io("look into", self.tree.path(), source);
        let (root, began) = (&Root::open(self.tree.path()).map_err(failed)?, SystemTime::now());
        let read = Reader { root, known: &known, format, began, sink: &sink }.all(paths);
        let differing: Vec<(&[u8], Mode, Id)> = paths
            .iter()
            .zip(read)
            .map(|(path, read)| (path.as_slice(), wanted[path], read))
            .filter(
                |(_, to, read)| !matches!(read, Ok(Some(found)) if (found.mode, found.id) == *to),
            )
            .map(|(path, (mode, id), _)| (path, mode, id))
            .collect();
        if differing.is_empty() {
            return Ok(());
        }
        let mut running = self.tree.git().call().args(&["cat-file", "--batch"]).start()?;
        let (mut stdin, stdout) = running.ends();
        let mut stdout = BufReader::with_capacity(256 * 1024, stdout);
        let written = std::thread::scope(|scope| {
            let ids: Vec<Id> = differing.iter().map(|(_, _, id)| *id).collect();
            scope.spawn(move || {
                // A git that ends early says why by its answer.
                let _ = ids.iter().try_for_each(|id| writeln!(stdin, "{id}"));
            });
            let all = differing.iter();
            let written = all.map(|(path, mode, id)| self.write(path, *mode, *id, &mut stdout));
            let written: Result<(), GitError> = written.collect();
            drop(stdout);
            written
        });
        written?;
        running.finish(Ok(())).map(drop)
    }

    fn write(
        &mut self,
        path: &[u8],
        mode: Mode,
        id: Id,
        from: &mut impl BufRead,
    ) -> Result<(), GitError> {
        let name = names::path(path);
        let file = self.tree.path().join(&name);
        match self.at_head.contains_key(path) {
            true => remove_file(&file)?,
            false => self.aside.clear(self.tree, &name)?,
        }
        let failed = |source| GitError::io("write", &file, source);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut line = String::new();
        from.read_line(&mut line).map_err(failed)?;
        let len =
            line.trim_end().strip_prefix(&format!("{id} blob ")).and_then(|len| len.parse().ok());
        let len: u64 = len.ok_or_else(|| GitError::unexpected("git cat-file", line.trim_end()))?;
        let mut bytes = from.take(len);
        let written = match mode {
            Mode::Link => {
                let mut target = Vec::new();
                bytes.read_to_end(&mut target).and_then(|_| symlink(names::path(&target), &file))
            }
            _ => {
                let mode = if mode == Mode::Program { 0o777 } else { 0o666 };
                let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(&file);
                made.and_then(|mut file| io::copy(&mut bytes, &mut file)).map(drop)
            }
        };
        written.map_err(failed)?;
        let mut end = [0];
        from.read_exact(&mut end).map_err(failed)
    }
}

fn remove_file(file: &Path) -> Result<(), GitError> {
    match fs::remove_file(file) {
        Err(error) if !is_missing(&error) => Err(GitError::io("remove", file, error)),
        _ => Ok(()),
    }
}

/// Removes a file, and the folders that it leaves empty.
fn remove(root: &Path, path: &Path) -> Result<(), GitError> {
    remove_file(&root.join(path))?;
    let folders = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
    for folder in folders {
        if fs::remove_dir(root.join(folder)).is_err() {
            break;
        }
    }
    Ok(())
}
