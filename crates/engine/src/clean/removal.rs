//! Taking a worktree away, and putting it back. It is moved, not deleted: folder and git directory into
//! the act's own folder, each by one rename. There, files are removed one by one, and only those that
//! are byte for byte in the snapshot that was read back; whatever else is in it (ignored files, what a
//! process wrote a moment ago, odd modes) stays where it is and comes back by the same rename. So there
//! is nothing recursive, nothing that git would have to be forced to, and no moment at which a kill
//! leaves anything that the next one does not know how to go on with.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use piton_core::event::{Holder, SnapshotReason};
use piton_core::ids::Oid;
use piton_store::Store;

use super::proof::is_as_kept;
use super::{Proof, RemovedTree, TreeRow};
use crate::crash;
use crate::error::EngineError;
use crate::git::locks::private_dir;
use crate::git::{Git, GitError, Moved, commit_tree, flush, names};
use crate::log::Log;
use crate::machine;
use crate::project::Project;
use crate::snapshot;
use crate::undo::{Act, ActStage, Deed, Journal, NotUndone};
use crate::worktree::{TreeState, Worktree, place_of};

/// Commits that only a reflog names, kept with a worktree: more than this are not somebody's day.
const REFLOG_ONLY_MAX: usize = 200;

/// The permissions of files that nobody has changed, without those of programs.
const PROGRAM: u32 = 0o111;

/// Takes a worktree away under the act, which is begun with the first one.
pub(super) fn take_away(
    project: &Project,
    store: &Arc<dyn Store>,
    journal: &Journal,
    act: &mut Option<Act>,
    (row, proof): (&TreeRow, &Proof),
) -> Result<RemovedTree, EngineError> {
    let act = match act {
        Some(act) => act,
        None => {
            let deed = Deed::Clean { trees: Vec::new() };
            act.insert(journal.begin(store.now()?.wall, deed)?)
        }
    };
    let taking = Taking { project, store, journal };
    let removed = taking.keep(act, row, proof)?;
    act.deed.trees_mut().push(removed.clone());
    journal.write(act)?;
    crash::point("clean.recorded");
    match taking.move_out(act.act, &removed, row) {
        Ok(()) => {
            taking.finish(act.act, &removed)?;
            Ok(removed)
        }
        Err(error) => {
            // It is where it was: there is nothing to undo about it.
            forget(project, journal, act, removed.row)?;
            Err(error)
        }
    }
}

/// Goes on with a clean-up that was cut short: what had been moved out is removed, what had not is no
/// part of the act.
pub(super) fn finish(
    project: &Project,
    journal: &Journal,
    act: &mut Act,
) -> Result<(), EngineError> {
    let trees = act.deed.trees().to_vec();
    drop_strays(&project.git, act.act, &trees)?;
    for tree in trees {
        let kept = Kept::of(journal, act.act, &tree);
        match kept.tree.exists() {
            true => empty_out(project, &kept, &tree)?,
            false => forget(project, journal, act, tree.row)?,
        }
    }
    Ok(())
}

fn forget(
    project: &Project,
    journal: &Journal,
    act: &mut Act,
    row: u64,
) -> Result<(), EngineError> {
    let trees = act.deed.trees_mut();
    let gone: Vec<RemovedTree> = trees.extract_if(.., |tree| tree.row == row).collect();
    journal.write(act)?;
    gone.iter().try_for_each(|tree| drop_refs(&project.git, tree))
}

/// Where the parts of a worktree are while it is away.
struct Kept {
    folder: PathBuf,
    /// Its files: those that are in no snapshot.
    tree: PathBuf,
    /// Its git directory, with HEAD, index and reflog.
    entry: PathBuf,
    branch_log: PathBuf,
}

impl Kept {
    fn of(journal: &Journal, act: u64, tree: &RemovedTree) -> Kept {
        let folder = journal.kept_by(act).join(tree.row.to_string());
        Kept {
            tree: folder.join("tree"),
            entry: folder.join("entry"),
            branch_log: folder.join("branch-log"),
            folder,
        }
    }
}

struct Taking<'a> {
    project: &'a Project,
    store: &'a Arc<dyn Store>,
    journal: &'a Journal,
}

impl Taking<'_> {
    /// Keeps everything, and reads it back.
    fn keep(&self, act: &Act, row: &TreeRow, proof: &Proof) -> Result<RemovedTree, EngineError> {
        let stays = |why: &str| EngineError::Stays { path: row.path.clone(), why: why.to_owned() };
        let git = &self.project.git;
        let (Some(run), Some(handle)) = (row.run, row.handle.clone()) else {
            return Err(stays("unknown to this store"));
        };
        let (Some(entry), Some(branch), Some(head)) =
            (row.entry.clone(), row.branch.clone(), row.head.clone())
        else {
            return Err(stays("it is on no branch"));
        };
        let tree = Worktree::at(git, &row.path);
        let there = TreeState::Present { head: Some(head.clone()), branch: Some(branch.clone()) };
        if tree.state()? != there {
            return Err(stays("it changed while it was looked at"));
        }
        let mut number = 1;
        while git.ref_target(&refname(act.act, number))?.is_some()
            || self.journal.kept_by(act.act).join(number.to_string()).exists()
        {
            number += 1;
        }
        let refname = refname(act.act, number);
        let message = format!(
            "piton: the worktree {} before it was removed\n\nPiton-Run: {handle}\nPiton-Act: {}\n",
            row.path.display(),
            act.act
        );
        let folder = format!("refs/piton/undo/{}", act.act);
        let reason = SnapshotReason::Reset;
        let ask = snapshot::Ask { folder, base: None, message, reason, last: None };
        let taken = snapshot::take(&tree, &ask, number)?;
        let taken = taken.ok_or_else(|| stays("no snapshot could be taken of it"))?;
        snapshot::read_back(git, &taken)?;
        keep_reflog(git, &tree.git_dir()?, &reflog_ref(&refname), &head)?;
        crash::point("clean.snapshot-kept");
        Ok(RemovedTree {
            row: number,
            run,
            handle,
            step: row.step.clone(),
            path: row.path.clone(),
            entry,
            branch_goes: !matches!(proof, Proof::Snapshotted { .. }),
            branch,
            head,
            snapshot: taken.commit,
            kept_as: refname,
            proof: proof.clone(),
        })
    }

    /// The one moment at which the worktree is gone from its place. Who came in at the last moment gets
    /// it back.
    fn move_out(&self, act: u64, removed: &RemovedTree, row: &TreeRow) -> Result<(), EngineError> {
        let tree = Worktree::at(&self.project.git, &removed.path);
        let kept = Kept::of(self.journal, act, removed);
        let _alone = tree.lock_list()?;
        self.refuse_in_use(row, &removed.path)?;
        private_dir(&kept.folder)?;
        flush::sync(&self.journal.kept_by(act))?;
        fs::rename(&removed.path, &kept.tree).map_err(|source| match source.kind() {
            io::ErrorKind::CrossesDevices => EngineError::Stays {
                path: removed.path.clone(),
                why: "it is on another file system than the repository".to_owned(),
            },
            _ => GitError::io("move", &removed.path, source).into(),
        })?;
        crash::point("clean.moved-out");
        if let Err(in_use) = self.refuse_in_use(row, &kept.tree) {
            rename(&kept.tree, &removed.path)?;
            return Err(in_use);
        }
        Ok(())
    }

    /// Whoever claims does so before touching the tree; whoever works in it without a claim is seen by
    /// the folder that its process is in.
    fn refuse_in_use(&self, row: &TreeRow, now_at: &Path) -> Result<(), EngineError> {
        let stays = |why: String| Err(EngineError::Stays { path: row.path.clone(), why });
        if let Some((pid, _)) =
            machine::folders().iter().find(|(_, folder)| folder.starts_with(now_at))
        {
            return stays(format!("process {pid} works in it"));
        }
        let Some(run) = row.run else { return stays("unknown to this store".to_owned()) };
        let log = Log::load(Arc::clone(self.store), run)?;
        let held = log.run().held().find(|(at, attempt)| match &attempt.holder {
            Holder::External { worktree, .. } => Path::new(worktree).starts_with(&row.path),
            Holder::Keeper { .. } => row.step.as_ref().is_none_or(|step| *step == at.step),
        });
        match held {
            Some((step, _)) => stays(format!("step {step} was claimed a moment ago")),
            None => Ok(()),
        }
    }

    fn finish(&self, act: u64, removed: &RemovedTree) -> Result<(), EngineError> {
        empty_out(self.project, &Kept::of(self.journal, act, removed), removed)
    }
}

/// From a worktree that was moved out to one that is gone: off git's list, without the files that the
/// snapshot has, without its branch. Every part can be done again.
fn empty_out(project: &Project, kept: &Kept, removed: &RemovedTree) -> Result<(), EngineError> {
    let git = &project.git;
    unlist(git, kept, removed)?;
    crash::point("clean.unlisted");
    remove_kept_files(git, kept, removed)?;
    crash::point("clean.emptied");
    if removed.branch_goes {
        drop_branch(git, kept, removed)?;
        crash::point("clean.branch-gone");
    }
    // Its run's folder and those below it, if nothing else is in them.
    let own = |folder: &&Path| folder.starts_with(run_folder(removed));
    for folder in removed.path.ancestors().skip(1).take_while(own) {
        if fs::remove_dir(folder).is_err() {
            break;
        }
    }
    Ok(())
}

/// The folder that has the worktrees of one run.
fn run_folder(removed: &RemovedTree) -> &Path {
    let handle = removed.handle.as_str();
    let mut above = removed.path.ancestors().skip(1);
    above.find(|folder| folder.ends_with(handle)).unwrap_or(&removed.path)
}

/// Moves the git directory away. Somebody may have made a worktree at the same place again, with it.
fn unlist(git: &Git, kept: &Kept, removed: &RemovedTree) -> Result<(), EngineError> {
    let entry = git.common_dir().join("worktrees").join(&removed.entry);
    let is_its = place_of(&entry).is_some_and(|place| place == removed.path);
    if !is_its || removed.path.exists() || kept.entry.exists() {
        return Ok(());
    }
    rename(&entry, &kept.entry)?;
    // git removes the folder with the last of them.
    let _others_are_there = fs::remove_dir(git.common_dir().join("worktrees"));
    Ok(())
}

/// A file as a tree has it.
struct TreeFile {
    mode: String,
    id: String,
    path: PathBuf,
}

fn files_of(git: &Git, commit: &Oid) -> Result<Vec<TreeFile>, GitError> {
    let words = ["ls-tree", "-r", "-z", "--full-tree", commit.as_str()];
    let answer = git.call().args(&words).run()?;
    let unexpected = |row: &[u8]| GitError::unexpected("git ls-tree", names::shown(row));
    let read = |row: &[u8]| {
        let cut = row.iter().position(|&byte| byte == b'\t')?;
        let words = std::str::from_utf8(&row[..cut]).ok()?;
        let &[mode, _, id] = words.split(' ').collect::<Vec<_>>().as_slice() else { return None };
        let path = names::path(&row[cut + 1..]);
        names::is_inside(&path).then(|| TreeFile { mode: mode.into(), id: id.into(), path })
    };
    answer.parts().map(|row| read(row).ok_or_else(|| unexpected(row))).collect()
}

/// Removes the files that are, right now, as the snapshot has them.
fn remove_kept_files(git: &Git, kept: &Kept, removed: &RemovedTree) -> Result<(), EngineError> {
    let plain = plain_mode(&kept.tree);
    let mut real = HashSet::new();
    for file in files_of(git, &removed.snapshot)? {
        let path = kept.tree.join(&file.path);
        if !is_below_folders(&kept.tree, &file.path, &mut real) {
            continue;
        }
        let usual = match (file.mode.as_str(), fs::symlink_metadata(&path)) {
            ("120000", Ok(_)) => true,
            (mode, Ok(found)) => found.permissions().mode() & 0o7777 == usual_mode(mode, plain),
            (_, Err(_)) => false,
        };
        if usual && is_as_kept(&path, &file.mode, &file.id) {
            fs::remove_file(&path).map_err(|source| GitError::io("remove", &path, source))?;
        }
    }
    Ok(())
}

/// The permissions that git gave to the worktree's own `.git` file: those of a file nobody has changed.
fn plain_mode(tree: &Path) -> u32 {
    const USUAL: u32 = 0o644;
    let found = fs::symlink_metadata(tree.join(".git"));
    found.map_or(USUAL, |found| found.permissions().mode() & 0o666)
}

fn usual_mode(mode: &str, plain: u32) -> u32 {
    match mode {
        // Who may read it may run it.
        "100755" => plain | ((plain >> 2) & PROGRAM),
        _ => plain,
    }
}

/// Whether a path goes through folders only: a link on the way leads somewhere else.
fn is_below_folders(root: &Path, path: &Path, real: &mut HashSet<PathBuf>) -> bool {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.into_iter().rev().filter(|folder| !folder.as_os_str().is_empty()).all(|folder| {
        real.contains(folder)
            || (fs::symlink_metadata(root.join(folder)).is_ok_and(|found| found.is_dir())
                && real.insert(folder.to_owned()))
    })
}

/// Deletes the branch where it still is what it was; its commits have a ref by now.
fn drop_branch(git: &Git, kept: &Kept, removed: &RemovedTree) -> Result<(), EngineError> {
    let name = format!("refs/heads/{}", removed.branch);
    let at = git.ref_target(&name)?;
    if at.is_none() {
        git.clear_left_locks(&name);
    }
    if at.as_ref() != Some(&removed.head) || git.checked_out(&name)?.is_some() {
        return Ok(());
    }
    let log = git.common_dir().join("logs").join(&name);
    if log.is_file() && !kept.branch_log.exists() {
        let copied = fs::copy(&log, &kept.branch_log);
        copied.map_err(|source| GitError::io("copy", &log, source))?;
        flush::sync(&kept.branch_log)?;
    }
    git.delete_ref(&name, &removed.head)?;
    Ok(())
}

fn refname(act: u64, row: u64) -> String {
    format!("refs/piton/undo/{act}/{row}")
}

fn reflog_ref(refname: &str) -> String {
    format!("{refname}-reflog")
}

/// Commits that only the worktree's reflog names would be lost to the next gc: they get a ref.
fn keep_reflog(git: &Git, dir: &Path, refname: &str, head: &Oid) -> Result<(), GitError> {
    let Ok(text) = fs::read_to_string(dir.join("logs/HEAD")) else { return Ok(()) };
    let named = text.lines().filter_map(|line| Oid::new(line.split(' ').nth(1)?).ok());
    let named: BTreeSet<String> = named.map(|id| id.to_string()).collect();
    let listed: String = named.iter().map(|id| format!("{id}\n")).collect();
    let asked = git.call().args(&["cat-file", "--batch-check=%(objecttype) %(objectname)"]);
    let answer = asked.input(listed.into_bytes()).run()?;
    let there =
        answer.text("git cat-file")?.lines().filter_map(|line| line.strip_prefix("commit "));
    let there: Vec<&str> = there.collect();
    if there.is_empty() {
        return Ok(());
    }
    let answer = git.call().args(&["rev-list"]).args(&there).args(&["--not", "--all"]).run()?;
    let lost: BTreeSet<&str> = answer.text("git rev-list")?.lines().collect();
    let parents: Vec<Oid> = there
        .into_iter()
        .filter(|id| lost.contains(id))
        .filter_map(|id| Oid::new(id).ok())
        .take(REFLOG_ONLY_MAX)
        .collect();
    if parents.is_empty() {
        return Ok(());
    }
    let message = "piton: commits that only the reflog of a removed worktree names\n";
    let made = commit_tree(|| git.call(), &git.tree_of(head)?, &parents, message)?;
    flush::objects(git)?;
    match git.move_ref(refname, &made, None, "piton: clean")? {
        Moved::Moved => Ok(()),
        Moved::Lost { current: Some(current) } => {
            Err(GitError::RefTaken { refname: refname.to_owned(), current })
        }
        Moved::Lost { current: None } => Err(GitError::NoRef { refname: refname.to_owned() }),
    }
}

fn drop_refs(git: &Git, tree: &RemovedTree) -> Result<(), EngineError> {
    git.drop_ref(&tree.kept_as)?;
    Ok(git.drop_ref(&reflog_ref(&tree.kept_as))?)
}

/// Drops what an act has kept of worktrees that it was killed before it wrote down.
pub(super) fn drop_strays(git: &Git, act: u64, trees: &[RemovedTree]) -> Result<(), GitError> {
    let folder = format!("refs/piton/undo/{act}/");
    let answer = git.call().args(&["for-each-ref", "--format=%(refname)", "--", &folder]).run()?;
    let is_known = |name: &&str| {
        trees.iter().any(|tree| *name == tree.kept_as || *name == reflog_ref(&tree.kept_as))
    };
    let mut names = answer.text("git for-each-ref")?.lines();
    names.try_for_each(|name| if is_known(&name) { Ok(()) } else { git.drop_ref(name) })
}

/// Puts everything back that a clean-up has taken away; says what. Where something newer stands in the
/// way of any of it, nothing is put back.
pub(crate) fn put_back(
    project: &Project,
    journal: &Journal,
    act: &mut Act,
) -> Result<Vec<String>, EngineError> {
    let trees = act.deed.trees().to_vec();
    if act.stage != ActStage::Undoing {
        let mut what = Vec::new();
        for tree in &trees {
            what.extend(in_the_way(&project.git, &Kept::of(journal, act.act, tree), tree)?);
        }
        if !what.is_empty() {
            return Err(NotUndone::InTheWay { act: act.act, what }.into());
        }
        act.stage = ActStage::Undoing;
        journal.write(act)?;
    }
    crash::point("undo.intended");
    let mut told = Vec::new();
    for tree in &trees {
        told.extend(put_one_back(project, &Kept::of(journal, act.act, tree), tree)?);
    }
    drop_strays(&project.git, act.act, &[])?;
    Ok(told)
}

fn in_the_way(git: &Git, kept: &Kept, tree: &RemovedTree) -> Result<Vec<String>, EngineError> {
    let mut what = Vec::new();
    if !kept.tree.exists() && tree.path.exists() {
        // It was never taken away.
        return Ok(what);
    }
    if fs::read_dir(&tree.path).is_ok_and(|mut list| list.next().is_some()) || tree.path.is_file() {
        what.push(format!("{} is there again", tree.path.display()));
    }
    let name = format!("refs/heads/{}", tree.branch);
    match git.ref_target(&name)? {
        Some(tip) if tip != tree.head => {
            what.push(format!("the branch {} is at {} by now", tree.branch, tip.short()));
        }
        Some(_) => {
            if let Some(place) = git.checked_out(&name)? {
                what.push(format!("{} is checked out in {}", tree.branch, place.display()));
            }
        }
        None => {}
    }
    Ok(what)
}

fn put_one_back(
    project: &Project,
    kept: &Kept,
    tree: &RemovedTree,
) -> Result<Option<String>, EngineError> {
    let git = &project.git;
    let place = Worktree::at(git, &tree.path);
    let mut told = format!("{} (branch {})", tree.path.display(), tree.branch);
    match (kept.tree.exists(), tree.path.join(".git").exists()) {
        (true, _) => {
            put_branch_back(git, kept, tree)?;
            crash::point("undo.branch-back");
            fill(git, kept, tree)?;
            flush::files(&kept.tree)?;
            crash::point("undo.filled");
            let _alone = place.lock_list()?;
            list_again(git, kept)?;
            crash::point("undo.listed");
            put_in_place(kept, tree)?;
            crash::point("undo.tree-back");
        }
        // Put back by an undo that was cut short; or never taken away.
        (false, true) => {}
        (false, false) => {
            // Somebody removed what was kept beside the snapshot.
            snapshot::rebuild(&place, &tree.branch, &tree.head, Some(&tree.snapshot))?;
            told.push_str(", from its snapshot: what was ignored in it is gone");
        }
    }
    drop_refs(git, tree)?;
    // Nothing is in them by now.
    for folder in [Some(kept.folder.as_path()), kept.folder.parent()].into_iter().flatten() {
        let _others_may_be = fs::remove_dir(folder);
    }
    Ok(Some(told))
}

fn put_branch_back(git: &Git, kept: &Kept, tree: &RemovedTree) -> Result<(), EngineError> {
    let name = format!("refs/heads/{}", tree.branch);
    if git.ref_target(&name)?.is_none() {
        match git.move_ref(&name, &tree.head, None, "piton: undo")? {
            Moved::Moved => {}
            Moved::Lost { current: Some(current) } if current == tree.head => {}
            Moved::Lost { current: Some(current) } => {
                return Err(GitError::RefTaken { refname: name, current }.into());
            }
            Moved::Lost { current: None } => return Err(GitError::NoRef { refname: name }.into()),
        }
    }
    let log = git.common_dir().join("logs").join(&name);
    if kept.branch_log.exists() && log.parent().is_some_and(Path::is_dir) {
        rename(&kept.branch_log, &log)?;
    }
    Ok(())
}

/// Writes the files that the snapshot has and the folder has not, each under its name only once it is
/// whole.
fn fill(git: &Git, kept: &Kept, tree: &RemovedTree) -> Result<(), EngineError> {
    let plain = plain_mode(&kept.tree);
    let is_missing = |file: &TreeFile| fs::symlink_metadata(kept.tree.join(&file.path)).is_err();
    let files = files_of(git, &tree.snapshot)?.into_iter();
    let missing: Vec<TreeFile> =
        files.filter(|file| file.mode != "160000" && is_missing(file)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut running = git.call().args(&["cat-file", "--batch"]).start()?;
    let (mut stdin, stdout) = running.ends();
    let mut stdout = BufReader::new(stdout);
    let written: Result<(), GitError> = std::thread::scope(|scope| {
        let ids: Vec<&str> = missing.iter().map(|file| file.id.as_str()).collect();
        scope.spawn(move || {
            // A git that ends early says why by its answer.
            let _ = ids.iter().try_for_each(|id| writeln!(stdin, "{id}"));
        });
        let write = |file: &TreeFile| {
            let to = kept.tree.join(&file.path);
            let mode = usual_mode(&file.mode, plain);
            write_file(file, mode, &to, &kept.folder.join("new"), &mut stdout)
                .map_err(|source| GitError::io("write", &to, source))
        };
        missing.iter().try_for_each(write)
    });
    written?;
    drop(stdout);
    running.finish(Ok(()))?;
    Ok(())
}

fn write_file(
    file: &TreeFile,
    mode: u32,
    to: &Path,
    new: &Path,
    from: &mut impl BufRead,
) -> io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut line = String::new();
    from.read_line(&mut line)?;
    let len = line.trim_end().strip_prefix(&format!("{} blob ", file.id));
    let len = len.and_then(|len| len.parse::<u64>().ok());
    let len = len.ok_or_else(|| io::Error::other(format!("git cat-file: {}", line.trim_end())))?;
    let mut bytes = from.take(len);
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if file.mode == "120000" {
        let mut target = Vec::new();
        bytes.read_to_end(&mut target)?;
        symlink(names::path(&target), new)?;
    } else {
        let mut made = OpenOptions::new().write(true).create_new(true).open(new)?;
        io::copy(&mut bytes, &mut made)?;
        made.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    let mut end = [0];
    from.read_exact(&mut end)?;
    fs::rename(new, to)
}

/// Puts the git directory back into git's list, under another name where its own was given away.
fn list_again(git: &Git, kept: &Kept) -> Result<(), EngineError> {
    if !kept.entry.exists() {
        return Ok(());
    }
    let list = git.common_dir().join("worktrees");
    fs::create_dir_all(&list).map_err(|source| GitError::io("make", &list, source))?;
    let stem = kept.entry_name();
    let numbered = |number: u32| match number {
        0 => list.join(&stem),
        number => list.join(format!("{stem}{number}")),
    };
    let entry = (0..).map(numbered).find(|entry| !entry.exists()).expect("numbers do not end");
    let pointer = kept.tree.join(".git");
    let mut line = b"gitdir: ".to_vec();
    line.extend_from_slice(names::bytes(&entry));
    line.push(b'\n');
    let written = File::create(&pointer).and_then(|mut file| {
        file.write_all(&line)?;
        file.sync_all()
    });
    written.map_err(|source| GitError::io("write", &pointer, source))?;
    rename(&kept.entry, &entry)
}

impl Kept {
    /// What the git directory was called in git's list, by the folder's own pointer.
    fn entry_name(&self) -> String {
        let text = fs::read_to_string(self.tree.join(".git")).unwrap_or_default();
        let name = Path::new(text.trim_end()).file_name();
        name.map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

fn put_in_place(kept: &Kept, tree: &RemovedTree) -> Result<(), EngineError> {
    if let Some(folder) = tree.path.parent() {
        fs::create_dir_all(folder).map_err(|source| GitError::io("make", folder, source))?;
    }
    // A rename replaces an empty folder, and nothing else.
    rename(&kept.tree, &tree.path)
}

/// Moves and makes both ends durable.
fn rename(from: &Path, to: &Path) -> Result<(), EngineError> {
    fs::rename(from, to).map_err(|source| GitError::io("move", from, source))?;
    for folder in [from.parent(), to.parent()].into_iter().flatten() {
        flush::sync(folder)?;
    }
    Ok(())
}
