//! What can go, and why: each worktree gets a proof that nothing is lost with it, or the reason why it
//! stays. Unknown is no proof.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use piton_core::ids::Oid;
use piton_core::run::{KeptSnapshot, Run};
use piton_core::time::Millis;
use piton_core::view::run_branch;
use piton_store::Store;

use super::{CleanAsk, JudgedTree, Proof, TreeRow, TreeStatus, TreeVerdict};
use crate::error::EngineError;
use crate::git::hash::{Format, Id, blob};
use crate::git::status::Depth;
use crate::git::{Git, GitError, names};
use crate::log::Log;
use crate::merge;
use crate::project::Project;
use crate::worktree::Worktree;

/// How many worktrees are judged at the same time: each costs a few processes of git.
const THREADS: usize = 4;

pub(super) fn judge_all(
    project: &Project,
    store: Option<&Arc<dyn Store>>,
    rows: Vec<TreeRow>,
    ask: CleanAsk,
) -> Result<Vec<JudgedTree>, EngineError> {
    let now = store.map(|store| store.now()).transpose()?.map(|now| now.wall);
    let share = rows.len().div_ceil(THREADS).max(1);
    let judged: Vec<Vec<JudgedTree>> = std::thread::scope(|scope| {
        let judge_share = |rows: &[TreeRow]| {
            let judged = rows.iter().map(|row| judge_one(project, store, row.clone(), (ask, now)));
            judged.collect::<Vec<_>>()
        };
        let threads: Vec<_> =
            rows.chunks(share).map(|rows| scope.spawn(move || judge_share(rows))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(judged) => judged,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    });
    Ok(judged.into_iter().flatten().collect())
}

fn judge_one(
    project: &Project,
    store: Option<&Arc<dyn Store>>,
    mut row: TreeRow,
    (ask, now): (CleanAsk, Option<Millis>),
) -> JudgedTree {
    let verdict = match candidate(project, store, &mut row, ask, now) {
        Ok(proof) => TreeVerdict::Goes { proof },
        Err(Reason(why)) => TreeVerdict::Stays { why },
    };
    JudgedTree { row, verdict }
}

/// Why a worktree stays.
struct Reason(String);

impl<T: ToString> From<T> for Reason {
    fn from(why: T) -> Reason {
        Reason(why.to_string())
    }
}

fn candidate(
    project: &Project,
    store: Option<&Arc<dyn Store>>,
    row: &mut TreeRow,
    ask: CleanAsk,
    now: Option<Millis>,
) -> Result<Proof, Reason> {
    let (Some(store), Some(run), Some(now)) = (store, row.run, now) else {
        return Err(match &row.obstacle {
            Some(why) if row.status != TreeStatus::Unknown => why.clone().into(),
            _ => "unknown to this store".into(),
        });
    };
    let log = Log::load(Arc::clone(store), run).map_err(|error| error.to_string())?;
    // Whatever stands against it, what it holds is told.
    let whereabouts = row.head.clone().map(|head| commits(&project.git, log.run(), &head));
    if let (Some(head), Some(counts)) = (&row.head, &mut row.counts) {
        counts.unmerged = unmerged(project, &log, head).unwrap_or_default();
    }
    if let Some(why) = &row.obstacle {
        return Err(why.clone().into());
    }
    selected(row, ask, now)?;
    let commits = whereabouts.ok_or("it has no commit")?.map_err(|error| error.to_string())?;
    let handle = &log.run().opened.handle;
    match &row.branch {
        None => return Err("its HEAD is detached".into()),
        Some(branch) if !branch.starts_with(&format!("piton/{handle}/")) => {
            return Err(format!("{branch} is checked out in it, which is not piton's").into());
        }
        Some(branch) if *branch == run_branch(handle) => {
            return Err("the run's own branch is checked out in it".into());
        }
        Some(_) => {}
    }
    let kept = uncommitted(project, row, log.run())?;
    match (commits, kept) {
        (Commits::Unmerged { count }, kept) => {
            // What is not over has its branch, which stays, and its snapshot.
            let given_up =
                matches!(row.status, TreeStatus::Interrupted { .. } | TreeStatus::Abandoned);
            match kept.or_else(|| snapshot_at(project, log.run(), row.head.as_ref())) {
                Some(refname) if given_up => Ok(Proof::Snapshotted { refname }),
                _ => Err(match count {
                    1 => "one commit of it is on no other branch".to_owned(),
                    count => format!("{count} commits of it are on no other branch"),
                }
                .into()),
            }
        }
        (_, Some(refname)) => Ok(Proof::Snapshotted { refname }),
        (Commits::Proven(proof), None) => Ok(proof),
    }
}

/// Whether somebody asked for worktrees such as this one.
fn selected(row: &TreeRow, ask: CleanAsk, now: Millis) -> Result<(), Reason> {
    let handle = row.handle.as_ref().map(ToString::to_string).unwrap_or_default();
    let excluded: Option<String> = match &row.status {
        TreeStatus::Completed if ask.completed => None,
        TreeStatus::Abandoned if ask.completed => {
            let until = row.attic_until.filter(|until| now < *until);
            until.map(|until| format!("in the attic until {}", piton_core::time::timestamp(until)))
        }
        TreeStatus::Interrupted { .. } if ask.interrupted => None,
        TreeStatus::Interrupted { .. } => {
            Some(format!("interrupted: `piton resume {handle}` goes on with it"))
        }
        TreeStatus::Completed | TreeStatus::Abandoned => {
            Some("completed ones were not asked for".into())
        }
        TreeStatus::Live => Some("its run is being worked on".into()),
        TreeStatus::Unfinished { as_told } => Some(format!("what it is for is {as_told}")),
        TreeStatus::Unknown => Some("unknown to this store".into()),
        TreeStatus::Foreign => Some("it is not a worktree of this repository".into()),
        TreeStatus::Missing { .. } => Some("there is nothing".into()),
    };
    if let Some(why) = excluded {
        return Err(why.into());
    }
    match (ask.older_than, row.changed_at) {
        (Some(age), Some(at)) if now.since(at) < age => Err("it was in use more recently".into()),
        (Some(_), None) => Err("nobody knows when it was last in use".into()),
        _ => Ok(()),
    }
}

/// Where the commits of a worktree are.
enum Commits {
    Proven(Proof),
    Unmerged { count: u64 },
}

/// How many commits the branch lacks that the run's work is for: neither merged, nor there as others with
/// the same changes, nor part of what was brought there as one.
fn unmerged(project: &Project, log: &Log, head: &Oid) -> Result<u64, EngineError> {
    let (git, run) = (&project.git, log.run());
    let into = merge::target(project, log).map(|name| format!("refs/heads/{name}"));
    let into = into.unwrap_or_else(|_| run.opened.base.to_string());
    let words = ["rev-list", "--count", head.as_str(), "--not"];
    let line = git.call().args(&words).arg(&into).arg(run.opened.base.as_str()).line()?;
    let count: u64 = line.parse().map_err(|_| GitError::unexpected("git rev-list", line))?;
    if count == 0 {
        return Ok(0);
    }
    if let Some(merged) = &run.merged
        && into.ends_with(&format!("/{}", merged.into))
        && git.is_ancestor(head, &merged.tip)?
    {
        return Ok(0);
    }
    let answer = git.call().args(&["cherry", &into, head.as_str()]).run()?;
    let other = answer.text("git cherry")?.lines().filter(|line| line.starts_with("- ")).count();
    Ok(count.saturating_sub(other as u64))
}

fn commits(git: &Git, run: &Run, head: &Oid) -> Result<Commits, GitError> {
    if git.is_ancestor(head, &run.opened.base)? {
        return Ok(Commits::Proven(Proof::Empty));
    }
    let own = run_branch(&run.opened.handle);
    let lasting = lasting_branches(git, &own)?;
    let format = "--format=%(refname)";
    let places = ["refs/heads", "refs/remotes", "refs/tags"];
    let asked = git.call().args(&["for-each-ref", format, "--contains", head.as_str(), "--"]);
    let answer = asked.args(&places).run()?;
    let having: BTreeSet<&str> = answer.text("git for-each-ref")?.lines().collect();
    if let Some(into) = lasting.iter().find(|name| having.contains(name.as_str())) {
        return Ok(Commits::Proven(Proof::Merged { into: short(into) }));
    }
    // The likeliest places first; what is on none of them by its changes stays.
    for into in lasting.iter().filter(|name| name.starts_with("refs/heads/")).take(CHERRY_MAX) {
        if is_equivalent(git, into, head)? {
            return Ok(Commits::Proven(Proof::PatchEquivalent { into: short(into) }));
        }
    }
    let mut call = git.call().args(&["rev-list", "--count", head.as_str(), "--not"]);
    for name in &lasting {
        call = call.arg(name);
    }
    let line = call.line()?;
    let count = line.parse().map_err(|_| GitError::unexpected("git rev-list", line))?;
    Ok(Commits::Unmerged { count })
}

/// How many branches are searched for commits with the same changes.
const CHERRY_MAX: usize = 8;

/// Refs that no clean-up takes away: branches of people, of remotes, tags, and those that runs land on.
/// What the main worktree is on comes first, then the run's own.
fn lasting_branches(git: &Git, own: &str) -> Result<Vec<String>, GitError> {
    let format = "--format=%(refname)";
    let places = ["refs/heads", "refs/remotes", "refs/tags"];
    let answer = git.call().args(&["for-each-ref", format, "--"]).args(&places).run()?;
    let main = crate::git::plain::head(git.common_dir(), git.common_dir());
    let main = main.and_then(|(_, name)| name).unwrap_or_default();
    let own = format!("refs/heads/{own}");
    let passing = |name: &str| {
        let rest = name.strip_prefix("refs/heads/piton/");
        rest.is_some_and(|rest| !rest.ends_with("/run") || rest.contains("/step/"))
    };
    let rank = |name: &String| match name.as_str() {
        name if name == main => 0,
        name if name == own => 1,
        name if name.starts_with("refs/heads/piton/") => 3,
        _ => 2,
    };
    let names = answer.text("git for-each-ref")?.lines().map(str::to_owned);
    let mut names: Vec<String> = names.filter(|name| !passing(name)).collect();
    names.sort_by_key(|name| (rank(name), name.clone()));
    Ok(names)
}

fn short(refname: &str) -> String {
    let stripped = ["refs/heads/", "refs/remotes/", "refs/"];
    let stem = stripped.iter().find_map(|prefix| refname.strip_prefix(prefix));
    stem.unwrap_or(refname).to_owned()
}

/// Whether every commit that a branch lacks has one with the same changes there. Merges have no changes
/// of their own to compare: with one of them it is not known.
fn is_equivalent(git: &Git, branch: &str, head: &Oid) -> Result<bool, GitError> {
    let range = format!("{branch}..{head}");
    let count = git.call().args(&["rev-list", "--count"]).arg(&range).line()?;
    let answer = git.call().args(&["cherry", branch, head.as_str()]).run()?;
    let lines: Vec<&str> = answer.text("git cherry")?.lines().collect();
    let same = lines.iter().filter(|line| line.starts_with("- ")).count();
    Ok(same == lines.len() && count == same.to_string())
}

/// The snapshot that has everything uncommitted in a worktree; none where there is nothing.
fn uncommitted(project: &Project, row: &TreeRow, run: &Run) -> Result<Option<String>, Reason> {
    let tree = Worktree::at(&project.git, &row.path);
    let seen = tree.status(Depth::Files).map_err(|error| error.to_string())?;
    if seen.head != row.head || seen.branch != row.branch {
        return Err("it changes while it is looked at".into());
    }
    if seen.tracked.is_empty() && seen.untracked.is_empty() {
        return Ok(None);
    }
    let on_disk: BTreeSet<Vec<u8>> =
        seen.tracked.iter().map(|entry| entry.path.clone()).chain(seen.untracked).collect();
    let recorded = snapshots(run, row.head.as_ref())
        .map(|kept| (kept.snapshot.refname.clone(), kept.snapshot.commit.clone()));
    let by_ref = found_by_ref(&project.git, run, row.head.as_ref());
    let by_ref = by_ref.map_err(|error| error.to_string())?;
    for (refname, commit) in recorded.chain(by_ref) {
        let same =
            holds(&tree, (&refname, &commit), &on_disk).map_err(|error| error.to_string())?;
        if same {
            return Ok(Some(refname));
        }
    }
    let told = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("one {what} file")),
        count => Some(format!("{count} {what} files")),
    };
    let untracked = on_disk.len() - seen.tracked.len();
    let parts = [told(seen.tracked.len(), "changed"), told(untracked, "untracked")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    Err(format!("{} in no snapshot", parts.join(" and ")).into())
}

/// Snapshots of a run that were taken with this commit checked out.
fn snapshots<'run>(
    run: &'run Run,
    head: Option<&'run Oid>,
) -> impl Iterator<Item = &'run KeptSnapshot> {
    let kept = run.steps().filter_map(|(_, state)| state.snapshot.as_ref());
    kept.filter(move |kept| head.is_some() && kept.snapshot.head.as_ref() == head)
}

/// How many snapshots that only refs name are compared with what is on disk: the newest are likeliest.
const BY_REF_MAX: usize = 20;

/// Snapshots that were taken with this commit checked out, as their refs tell, the newest first: of a step
/// that was swapped out, say, or before something was put back.
fn found_by_ref(git: &Git, run: &Run, head: Option<&Oid>) -> Result<Vec<(String, Oid)>, GitError> {
    let Some(head) = head else { return Ok(Vec::new()) };
    let format = "--format=%(refname) %(objectname) %(parent)";
    let folder = format!("refs/piton/{}/", run.opened.handle);
    let words = ["for-each-ref", "--sort=-creatordate", format, "--"];
    let answer = git.call().args(&words).arg(folder).run()?;
    let read = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let &[name, commit, parent, ..] = words.as_slice() else { return None };
        (parent == head.as_str()).then_some(())?;
        Some((name.to_owned(), Oid::new(commit).ok()?))
    };
    Ok(answer.text("git for-each-ref")?.lines().filter_map(read).take(BY_REF_MAX).collect())
}

/// A snapshot, which is still there, of a worktree with this commit and nothing uncommitted.
fn snapshot_at(project: &Project, run: &Run, head: Option<&Oid>) -> Option<String> {
    let tree = project.git.tree_of(head?).ok()?;
    let mut kept = snapshots(run, head).filter(|kept| kept.snapshot.tree == tree);
    let held = |kept: &&KeptSnapshot| {
        let target = project.git.ref_target(&kept.snapshot.refname);
        target.is_ok_and(|target| target.as_ref() == Some(&kept.snapshot.commit))
    };
    kept.find(held).map(|kept| kept.snapshot.refname.clone())
}

/// Whether a snapshot has exactly what is on disk and not in HEAD: the same paths, the same bytes, and
/// the same index.
fn holds(
    tree: &Worktree,
    (refname, commit): (&str, &Oid),
    on_disk: &BTreeSet<Vec<u8>>,
) -> Result<bool, GitError> {
    let git = tree.git();
    if git.ref_target(refname)?.as_ref() != Some(commit) {
        return Ok(false);
    }
    let words = ["rev-parse", "--verify", "--quiet", "--end-of-options"];
    let asked = git.call().args(&words).arg(format!("{commit}^2")).accept(&[0, 1, 128]).run()?;
    let index = if asked.code == 0 { format!("{commit}^2") } else { format!("{commit}^1") };
    let dir = tree.git_dir()?;
    let words = ["diff-index", "--cached", "--quiet"];
    let asked = tree.call_in(&dir).args(&words).arg(&index).arg("--").accept(&[0, 1]).run()?;
    if asked.code != 0 {
        return Ok(false);
    }
    let words = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--no-ext-diff"];
    let head = format!("{commit}^1");
    let answer = git.call().args(&words).args(&[&head, commit.as_str(), "--"]).run()?;
    let fields: Vec<&[u8]> = answer.parts().collect();
    let mut paths = BTreeSet::new();
    for pair in fields.chunks_exact(2) {
        let row = String::from_utf8_lossy(pair[0]).into_owned();
        let words: Vec<&str> = row.trim_start_matches(':').split(' ').collect();
        let &[_, mode, _, id, _] = words.as_slice() else { return Ok(false) };
        if !is_as_kept(&tree.path().join(names::path(pair[1])), mode, id) {
            return Ok(false);
        }
        paths.insert(pair[1].to_vec());
    }
    Ok(paths == *on_disk)
}

/// Whether a file is as a tree has it, byte for byte; `000000`: it is gone.
pub(super) fn is_as_kept(path: &Path, mode: &str, id: &str) -> bool {
    let found = fs::symlink_metadata(path);
    let Some(wanted) = Id::parse(id.as_bytes()) else { return false };
    let format = if id.len() == 40 { Format::Sha1 } else { Format::Sha256 };
    let same = |bytes: &[u8]| blob(format, bytes).is_ok_and(|found| found == wanted);
    match (mode, found) {
        ("000000", found) => found.is_err(),
        ("120000", Ok(found)) if found.is_symlink() => {
            fs::read_link(path).is_ok_and(|target| same(target.as_os_str().as_bytes()))
        }
        ("100644" | "100755", Ok(found)) if found.is_file() => {
            let is_program = found.permissions().mode() & 0o100 != 0;
            is_program == (mode == "100755") && fs::read(path).is_ok_and(|bytes| same(&bytes))
        }
        _ => false,
    }
}
