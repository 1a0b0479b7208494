//! One configuration file: its keys, and every mistake in it with line, column and a remedy.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::time::Duration;

use piton_core::agent::Agent;
use piton_core::ids::AgentName;
use piton_formats::{Fields, Finding, Keys, agents, read_toml};
use piton_git::snapshot::Template;

use crate::config::{BRANCH_EVERY, Bounds, GRACE, KEEP_FOR, LEASE, Origin, SNAPSHOT_EVERY};

/// What a file says; everything is optional.
#[derive(Debug, Default)]
pub(super) struct FileLayer {
    pub(super) lease: Option<Duration>,
    pub(super) grace: Option<Duration>,
    pub(super) snapshot_every: Option<Duration>,
    pub(super) snapshot_keep: Option<u32>,
    pub(super) snapshot_keep_for: Option<Duration>,
    pub(super) snapshot_branch: Option<String>,
    pub(super) snapshot_branch_every: Option<Duration>,
    pub(super) worktree_root: Option<String>,
    pub(super) transcript_mib: Option<u32>,
    pub(super) notify: Option<String>,
    pub(super) agents: BTreeMap<AgentName, Agent>,
}

const FILE: Keys = Keys {
    known: &["notify", "worker", "snapshot", "worktree", "transcript", "agent"],
    later: &[],
};
const WORKER: Keys = Keys { known: &["lease", "grace"], later: &[] };
const SNAPSHOT: Keys =
    Keys { known: &["every", "keep", "keep_for", "branch", "branch_every"], later: &[] };
const WORKTREE: Keys = Keys { known: &["root"], later: &[] };
const TRANSCRIPT: Keys = Keys { known: &["max_mib"], later: &[] };
const TRANSCRIPT_MIB: std::ops::RangeInclusive<u32> = 1..=4096;

/// Reads one file.
pub(super) fn read(origin: &Origin, bytes: &[u8]) -> Result<FileLayer, Vec<Finding>> {
    read_toml(bytes, |file| layer(origin, file)).map_err(|error| error.findings)
}

fn layer(origin: &Origin, file: &mut Fields<'_, '_>) -> FileLayer {
    file.only(&FILE);
    let mut layer = FileLayer { agents: agents(file), ..FileLayer::default() };
    layer.notify = notify(origin, file);
    if let Some(mut worker) = file.table("worker") {
        worker.only(&WORKER);
        layer.lease = bounded(&mut worker, "lease", LEASE);
        layer.grace = bounded(&mut worker, "grace", GRACE);
    }
    if let Some(mut snapshot) = file.table("snapshot") {
        snapshot.only(&SNAPSHOT);
        layer.snapshot_every = bounded(&mut snapshot, "every", SNAPSHOT_EVERY);
        layer.snapshot_keep = snapshot.number("keep", 0..=u32::MAX);
        layer.snapshot_keep_for = bounded(&mut snapshot, "keep_for", KEEP_FOR);
        layer.snapshot_branch = branch(&mut snapshot);
        layer.snapshot_branch_every = bounded(&mut snapshot, "branch_every", BRANCH_EVERY);
    }
    if let Some(mut worktree) = file.table("worktree") {
        worktree.only(&WORKTREE);
        layer.worktree_root = root(origin, &mut worktree);
    }
    if let Some(mut transcript) = file.table("transcript") {
        transcript.only(&TRANSCRIPT);
        layer.transcript_mib = transcript.number("max_mib", TRANSCRIPT_MIB);
    }
    layer
}

/// The command that tells a person. A repository must not choose what is executed on its reader's machine.
fn notify(origin: &Origin, file: &mut Fields<'_, '_>) -> Option<String> {
    let command = file.text("notify")?.value.to_owned();
    if matches!(origin, Origin::Repository(_)) {
        let message = "notify is for your own configuration file";
        file.find("notify", message, "move it to ~/.config/piton/config.toml");
    }
    Some(command)
}

fn bounded(table: &mut Fields<'_, '_>, key: &str, bounds: Bounds) -> Option<Duration> {
    let text = table.text(key)?;
    match bounds.read(text.value) {
        Ok(value) => Some(value),
        Err(message) => {
            table.find(key, message, format!("write {key} = \"90s\", for example"));
            None
        }
    }
}

/// A branch for the last snapshot; empty for none.
fn branch(table: &mut Fields<'_, '_>) -> Option<String> {
    let branch = table.text("branch")?.value.to_owned();
    if !branch.is_empty()
        && let Err(message) = Template::parse(&branch)
    {
        table.find("branch", message, "write branch = \"piton-wip/{run}/{step}\", for example");
    }
    Some(branch)
}

/// Where worktrees are made. A repository may not choose a place outside of itself; only its user may.
fn root(origin: &Origin, table: &mut Fields<'_, '_>) -> Option<String> {
    let root = table.text("root")?.value.to_owned();
    if let Err(message) = check_root(&root) {
        table.find("root", message, "write root = \".piton/worktrees\", for example");
    }
    let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if matches!(origin, Origin::Repository(_)) && !Path::new(&root).components().all(inside) {
        let message = format!("worktree.root = {root:?} is outside of the repository");
        let hint = "set it in your own configuration file, or in PITON_WORKTREE_ROOT";
        table.find("root", message, hint);
    }
    Some(root)
}

/// A place that worktrees can be made under.
pub(super) fn check_root(root: &str) -> Result<(), String> {
    match root {
        "" => Err("a folder needs a name".to_owned()),
        root if root.contains('\0') => Err("a path has no NUL".to_owned()),
        _ => Ok(()),
    }
}
