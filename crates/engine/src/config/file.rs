//! One configuration file: its keys, and every mistake in it with line, column and a remedy.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::time::Duration;

use piton_core::ids::AgentName;
use piton_core::plan::{Agent, Finding, nearest};
use serde::{Deserialize, Deserializer};
use toml::de::{DeTable, DeValue};

use crate::config::{BRANCH_EVERY, Bounds, ConfigError, GRACE, KEEP_FOR, LEASE, SNAPSHOT_EVERY};
use crate::snapshot::Template;

/// What a file says; everything is optional.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FileLayer {
    pub(super) worker: Worker,
    pub(super) snapshot: Snapshots,
    pub(super) worktree: Worktrees,
    pub(super) transcript: Transcripts,
    #[serde(rename = "agent")]
    pub(super) agents: BTreeMap<AgentName, Agent>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Worker {
    #[serde(deserialize_with = "lease")]
    pub(super) lease: Option<Duration>,
    #[serde(deserialize_with = "grace")]
    pub(super) grace: Option<Duration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Snapshots {
    #[serde(deserialize_with = "every")]
    pub(super) every: Option<Duration>,
    pub(super) keep: Option<u32>,
    #[serde(deserialize_with = "keep_for")]
    pub(super) keep_for: Option<Duration>,
    #[serde(deserialize_with = "branch")]
    pub(super) branch: Option<String>,
    #[serde(deserialize_with = "branch_every")]
    pub(super) branch_every: Option<Duration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Worktrees {
    #[serde(deserialize_with = "root")]
    pub(super) root: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Transcripts {
    #[serde(deserialize_with = "max_mib")]
    pub(super) max_mib: Option<u64>,
}

/// Known keys by table; an agent's table has the name it is given.
const TABLES: [(&str, &[&str]); 4] = [
    ("worker", &["lease", "grace"]),
    ("snapshot", &["every", "keep", "keep_for", "branch", "branch_every"]),
    ("worktree", &["root"]),
    ("transcript", &["max_mib"]),
];
const AGENT: &str = "agent";
const AGENT_KEYS: &[&str] = &["command", "prompt", "env"];
const TRANSCRIPT_MIB: std::ops::RangeInclusive<u64> = 1..=4096;

/// Reads one file's text.
pub(super) fn read(path: &Path, text: &str) -> Result<FileLayer, ConfigError> {
    let failed = |findings| ConfigError::File { path: path.to_path_buf(), findings };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(failed(errors.iter().map(|error| toml_finding(text, error)).collect()));
    }
    let unknown = unknown_keys(text, table.get_ref());
    if !unknown.is_empty() {
        return Err(failed(unknown));
    }
    let layer: FileLayer =
        toml::from_str(text).map_err(|error| failed(vec![toml_finding(text, &error)]))?;
    match layer.agents.iter().find(|(_, agent)| agent.command.first().is_none_or(String::is_empty))
    {
        None => Ok(layer),
        Some((name, _)) => {
            let at = key_offset(table.get_ref(), name.as_str()).unwrap_or(0);
            let message = format!("agent {name} has no command");
            let hint = "name a program and its arguments: `command = [\"claude\", \"--print\"]`";
            Err(failed(vec![finding(text, at, message, Some(hint.to_owned()))]))
        }
    }
}

impl FileLayer {
    /// A repository may not choose a place outside of itself; only its user may.
    pub(super) fn check_stays_inside(&self, path: &Path) -> Result<(), ConfigError> {
        let Some(root) = &self.worktree.root else { return Ok(()) };
        let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if Path::new(root).components().all(inside) {
            return Ok(());
        }
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let at = text.find(root.as_str()).unwrap_or(0);
        let message = format!("worktree.root = {root:?} is outside of the repository");
        let hint = "set it in your own configuration file, or: `PITON_WORKTREE_ROOT=… piton run`";
        let findings = vec![finding(&text, at, message, Some(hint.to_owned()))];
        Err(ConfigError::File { path: path.to_path_buf(), findings })
    }
}

/// A place that worktrees can be made under.
pub(super) fn check_root(root: &str) -> Result<(), String> {
    match root {
        "" => Err("a folder needs a name".to_owned()),
        root if root.contains('\0') => Err("a path has no NUL".to_owned()),
        _ => Ok(()),
    }
}

fn unknown_keys(text: &str, table: &DeTable<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).chain([AGENT]).collect();
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        match TABLES.iter().find(|(known, _)| *known == name) {
            Some((_, keys)) => unknown_in(text, name, value.get_ref(), keys, &mut findings),
            None if name == AGENT => {
                for (agent, value) in value.get_ref().as_table().into_iter().flatten() {
                    let place = format!("agent.{}", agent.get_ref());
                    unknown_in(text, &place, value.get_ref(), AGENT_KEYS, &mut findings);
                }
            }
            None => findings.push(unknown(text, key.span().start, name, &names)),
        }
    }
    findings
}

fn unknown_in(
    text: &str,
    place: &str,
    value: &DeValue<'_>,
    keys: &[&str],
    findings: &mut Vec<Finding>,
) {
    for (key, _) in value.as_table().into_iter().flatten() {
        let name = key.get_ref().as_ref();
        if !keys.contains(&name) {
            let mut found = unknown(text, key.span().start, name, keys);
            found.message = format!("unknown key {name:?} in [{place}]");
            findings.push(found);
        }
    }
}

fn unknown(text: &str, at: usize, name: &str, known: &[&str]) -> Finding {
    let hint = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known here: {}", known.join(", ")),
    };
    finding(text, at, format!("unknown key {name:?}"), Some(hint))
}

/// Where an agent's table is named.
fn key_offset(table: &DeTable<'_>, agent: &str) -> Option<usize> {
    let agents = table.get(AGENT)?.get_ref().as_table()?;
    agents.iter().find(|(key, _)| key.get_ref() == agent).map(|(key, _)| key.span().start)
}

fn toml_finding(text: &str, error: &toml::de::Error) -> Finding {
    let at = error.span().map_or(0, |span| span.start);
    finding(text, at, error.message().trim().replace('\n', "; "), None)
}

/// A finding at a byte offset.
pub(super) fn finding(text: &str, at: usize, message: String, hint: Option<String>) -> Finding {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Finding { line, column, message, hint }
}

fn bounded<'de, D: Deserializer<'de>>(
    from: D,
    bounds: Bounds,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    bounds.read(&text).map(Some).map_err(serde::de::Error::custom)
}

fn lease<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    bounded(from, LEASE)
}

fn grace<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    bounded(from, GRACE)
}

fn every<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    bounded(from, SNAPSHOT_EVERY)
}

fn keep_for<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    bounded(from, KEEP_FOR)
}

fn branch_every<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    bounded(from, BRANCH_EVERY)
}

fn branch<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let branch = String::deserialize(from)?;
    match branch.is_empty() {
        true => Ok(Some(branch)),
        false => {
            Template::parse(&branch).map_err(serde::de::Error::custom)?;
            Ok(Some(branch))
        }
    }
}

fn root<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let root = String::deserialize(from)?;
    check_root(&root).map_err(serde::de::Error::custom)?;
    Ok(Some(root))
}

fn max_mib<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let mib = u64::deserialize(from)?;
    if TRANSCRIPT_MIB.contains(&mib) {
        return Ok(Some(mib));
    }
    let (min, max) = (TRANSCRIPT_MIB.start(), TRANSCRIPT_MIB.end());
    Err(serde::de::Error::custom(format!("{mib} is not between {min} and {max}")))
}
