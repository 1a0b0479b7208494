//! Settings: where they come from, which one wins, and what is recorded with a run. Layers are the
//! built-in `default.toml`, the user's file, the repository's file, the environment and flags; a later
//! one wins key by key. Reading one file is `file`; this module knows nothing of plans.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use file::FileLayer;
use piton_core::agent::Agent;
use piton_core::ids::AgentName;
use piton_formats::Finding;
use serde::{Deserialize, Serialize};

mod file;

/// The documented defaults, as they are built in.
pub const DEFAULTS: &str = include_str!("default.toml");
/// The repository's own file, in the root of the main worktree.
pub const REPOSITORY_FILE: &str = "piton.toml";
/// A configuration file larger than this is a mistake or an attack.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
const MIB: u64 = 1024 * 1024;

/// What is in force for a run. Recorded with it, and used until it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How long a claim is believed without a heartbeat.
    #[serde(rename = "lease_ms", with = "millis")]
    pub lease: Duration,
    /// How long an agent that is asked to stop may take before it is killed.
    #[serde(rename = "grace_ms", with = "millis")]
    pub grace: Duration,
    /// At most this often a snapshot is taken, when something changed.
    #[serde(rename = "snapshot_every_ms", with = "millis")]
    pub snapshot_every: Duration,
    /// How many snapshots of a completed step stay, and for how long.
    pub snapshot_keep: u32,
    #[serde(rename = "snapshot_keep_for_ms", with = "millis")]
    pub snapshot_keep_for: Duration,
    /// A branch that shows a step's last snapshot; empty for none.
    pub snapshot_branch: String,
    /// At most this often that branch is moved.
    #[serde(rename = "snapshot_branch_every_ms", with = "millis")]
    pub snapshot_branch_every: Duration,
    /// Relative to the root of the main worktree, or absolute.
    pub worktree_root: String,
    /// How many bytes of an attempt's transcript are kept.
    pub transcript_max: u64,
    /// Agents of the user's and the repository's files; a plan's own are in the plan.
    pub agents: BTreeMap<AgentName, Agent>,
}

/// Settings with their origin.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub settings: Settings,
    /// What tells a person; of no concern to a run, and not recorded with it.
    pub notify: Option<String>,
    /// One row for each key, in the order of the documented defaults, then one for each agent.
    pub sources: Vec<Source>,
}

/// Where the value in force of one key comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub key: String,
    pub value: String,
    pub origin: Origin,
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    User(PathBuf),
    Repository(PathBuf),
    Environment(&'static str),
    Flag,
}

/// The last layer: what was typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    pub lease: Option<Duration>,
    pub grace: Option<Duration>,
    pub snapshot_every: Option<Duration>,
}

/// Where layers are found.
pub struct Layers<'a> {
    /// The user's file, where a home is known.
    pub user: Option<PathBuf>,
    /// The root of the main worktree, where there is one.
    pub repository: Option<&'a Path>,
    /// How the environment is asked.
    pub env: &'a dyn Fn(&str) -> Option<String>,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}", listed(path, findings))]
    File { path: PathBuf, findings: Vec<Finding> },
    #[error("the environment variable {name}: {message}")]
    Environment { name: &'static str, message: String },
}

/// What a duration may be.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub key: &'static str,
    pub min: Duration,
    pub max: Duration,
}

pub const LEASE: Bounds = Bounds {
    key: "worker.lease",
    min: Duration::from_secs(1),
    max: Duration::from_secs(7 * 24 * 3600),
};
pub const GRACE: Bounds =
    Bounds { key: "worker.grace", min: Duration::ZERO, max: Duration::from_secs(3600) };
pub const SNAPSHOT_EVERY: Bounds = Bounds {
    key: "snapshot.every",
    min: Duration::from_millis(100),
    max: Duration::from_secs(24 * 3600),
};

pub const KEEP_FOR: Bounds = Bounds {
    key: "snapshot.keep_for",
    min: Duration::ZERO,
    max: Duration::from_secs(100 * 365 * 24 * 3600),
};
pub const BRANCH_EVERY: Bounds = Bounds {
    key: "snapshot.branch_every",
    min: Duration::from_secs(1),
    max: Duration::from_secs(24 * 3600),
};

/// How long somebody may wait for an answer: people sleep, and go on holiday.
pub const PATIENCE: Bounds =
    Bounds { key: "--wait", min: Duration::ZERO, max: Duration::from_secs(30 * 24 * 3600) };

const NOTIFY: &str = "notify";
const SNAPSHOT_KEEP: &str = "snapshot.keep";
const SNAPSHOT_BRANCH: &str = "snapshot.branch";
const WORKTREE_ROOT: &str = "worktree.root";
const TRANSCRIPT_MAX: &str = "transcript.max_mib";

/// Reads every layer and merges them.
pub fn load(layers: &Layers<'_>, flags: &Flags) -> Result<Loaded, ConfigError> {
    let mut merge = MergedLayers::default();
    let defaults = file::read(&Origin::Default, DEFAULTS.as_bytes());
    merge.file(defaults.expect("default.toml is sound"), &Origin::Default);
    let user = layers.user.clone().map(Origin::User);
    let repository = layers.repository.map(|root| Origin::Repository(root.join(REPOSITORY_FILE)));
    for origin in [user, repository].into_iter().flatten() {
        if let Some(layer) = read_layer(&origin)? {
            merge.file(layer, &origin);
        }
    }
    merge.environment(layers.env)?;
    merge.flags(flags);
    Ok(merge.finish())
}

/// Agents that the user's own file defines, in force or not: they need no trust.
pub fn user_agents(layers: &Layers<'_>) -> Result<BTreeMap<AgentName, Agent>, ConfigError> {
    let layer = match &layers.user {
        Some(path) => read_layer(&Origin::User(path.clone()))?,
        None => None,
    };
    Ok(layer.map(|layer| layer.agents).unwrap_or_default())
}

impl<'a> Layers<'a> {
    /// As the process finds them: XDG, and the given main worktree.
    pub fn of_process(repository: Option<&'a Path>) -> Layers<'a> {
        let env = &|name: &str| std::env::var(name).ok();
        Layers { user: user_file(env), repository, env }
    }
}

/// `$XDG_CONFIG_HOME/piton/config.toml`, or the same under `~/.config`.
fn user_file(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    Some(xdg(env, "XDG_CONFIG_HOME", ".config")?.join("piton").join("config.toml"))
}

/// A folder of the XDG base directories: the variable where it is absolute, else under the home.
pub(crate) fn xdg(
    env: &dyn Fn(&str) -> Option<String>,
    variable: &str,
    under_home: &str,
) -> Option<PathBuf> {
    let absolute = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(under_home)))
}

/// A file's layer; none where there is no file.
fn read_layer(origin: &Origin) -> Result<Option<FileLayer>, ConfigError> {
    let (Origin::User(path) | Origin::Repository(path)) = origin else { return Ok(None) };
    let unreadable = |source| ConfigError::Unreadable { path: path.clone(), source };
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if absent(&error) => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    if found.len() > FILE_BYTES_MAX || !found.is_file() {
        let message = format!("not a file of at most {} KiB", FILE_BYTES_MAX / 1024);
        return Err(unreadable(io::Error::other(message)));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let layer = file::read(origin, &bytes);
    layer.map(Some).map_err(|findings| ConfigError::File { path: path.clone(), findings })
}

fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The layers put together so far.
#[derive(Default)]
struct MergedLayers {
    lease: Option<(Duration, Origin)>,
    grace: Option<(Duration, Origin)>,
    snapshot_every: Option<(Duration, Origin)>,
    snapshot_keep: Option<(u32, Origin)>,
    snapshot_keep_for: Option<(Duration, Origin)>,
    snapshot_branch: Option<(String, Origin)>,
    snapshot_branch_every: Option<(Duration, Origin)>,
    worktree_root: Option<(String, Origin)>,
    transcript_mib: Option<(u32, Origin)>,
    notify: Option<(String, Origin)>,
    agents: BTreeMap<AgentName, (Agent, Origin)>,
}

fn put<T>(slot: &mut Option<(T, Origin)>, value: Option<T>, origin: &Origin) {
    if let Some(value) = value {
        *slot = Some((value, origin.clone()));
    }
}

impl MergedLayers {
    fn file(&mut self, layer: FileLayer, origin: &Origin) {
        put(&mut self.lease, layer.lease, origin);
        put(&mut self.grace, layer.grace, origin);
        put(&mut self.snapshot_every, layer.snapshot_every, origin);
        put(&mut self.snapshot_keep, layer.snapshot_keep, origin);
        put(&mut self.snapshot_keep_for, layer.snapshot_keep_for, origin);
        put(&mut self.snapshot_branch, layer.snapshot_branch, origin);
        put(&mut self.snapshot_branch_every, layer.snapshot_branch_every, origin);
        put(&mut self.worktree_root, layer.worktree_root, origin);
        put(&mut self.transcript_mib, layer.transcript_mib, origin);
        put(&mut self.notify, layer.notify, origin);
        let agents = layer.agents.into_iter();
        self.agents.extend(agents.map(|(name, agent)| (name, (agent, origin.clone()))));
    }

    fn environment(&mut self, env: &dyn Fn(&str) -> Option<String>) -> Result<(), ConfigError> {
        let duration = |name: &'static str, bounds: Bounds| match env(name) {
            Some(text) => match bounds.read(&text) {
                Ok(value) => Ok(Some(value)),
                Err(message) => Err(ConfigError::Environment { name, message }),
            },
            None => Ok(None),
        };
        let from = Origin::Environment;
        let lease = duration("PITON_LEASE", LEASE)?;
        put(&mut self.lease, lease, &from("PITON_LEASE"));
        let grace = duration("PITON_GRACE", GRACE)?;
        put(&mut self.grace, grace, &from("PITON_GRACE"));
        let every = duration("PITON_SNAPSHOT_EVERY", SNAPSHOT_EVERY)?;
        put(&mut self.snapshot_every, every, &from("PITON_SNAPSHOT_EVERY"));
        if let Some(root) = env("PITON_WORKTREE_ROOT") {
            let name = "PITON_WORKTREE_ROOT";
            file::check_root(&root)
                .map_err(|message| ConfigError::Environment { name, message })?;
            put(&mut self.worktree_root, Some(root), &from(name));
        }
        Ok(())
    }

    fn flags(&mut self, flags: &Flags) {
        put(&mut self.lease, flags.lease, &Origin::Flag);
        put(&mut self.grace, flags.grace, &Origin::Flag);
        put(&mut self.snapshot_every, flags.snapshot_every, &Origin::Flag);
    }

    fn finish(self) -> Loaded {
        const SET: &str = "default.toml sets every key";
        let (lease, lease_from) = self.lease.expect(SET);
        let (grace, grace_from) = self.grace.expect(SET);
        let (every, every_from) = self.snapshot_every.expect(SET);
        let (keep, keep_from) = self.snapshot_keep.expect(SET);
        let (keep_for, keep_for_from) = self.snapshot_keep_for.expect(SET);
        let (branch, branch_from) = self.snapshot_branch.expect(SET);
        let (branch_every, branch_every_from) = self.snapshot_branch_every.expect(SET);
        let (root, root_from) = self.worktree_root.expect(SET);
        let (mib, mib_from) = self.transcript_mib.expect(SET);
        let (notify, notify_from) = self.notify.expect(SET);
        let row = |key: &str, value: String, origin: Origin| Source {
            key: key.to_owned(),
            value,
            origin,
        };
        let mut sources = vec![
            row(NOTIFY, notify.clone(), notify_from),
            row(LEASE.key, show(lease), lease_from),
            row(GRACE.key, show(grace), grace_from),
            row(SNAPSHOT_EVERY.key, show(every), every_from),
            row(SNAPSHOT_KEEP, keep.to_string(), keep_from),
            row(KEEP_FOR.key, show(keep_for), keep_for_from),
            row(SNAPSHOT_BRANCH, branch.clone(), branch_from),
            row(BRANCH_EVERY.key, show(branch_every), branch_every_from),
            row(WORKTREE_ROOT, root.clone(), root_from),
            row(TRANSCRIPT_MAX, mib.to_string(), mib_from),
        ];
        let mut agents = BTreeMap::new();
        for (name, (agent, origin)) in self.agents {
            sources.push(row(&format!("agent.{name}"), agent.command.join(" "), origin));
            agents.insert(name, agent);
        }
        let settings = Settings {
            lease,
            grace,
            snapshot_every: every,
            snapshot_keep: keep,
            snapshot_keep_for: keep_for,
            snapshot_branch: branch,
            snapshot_branch_every: branch_every,
            worktree_root: root,
            transcript_max: u64::from(mib) * MIB,
            agents,
        };
        Loaded { settings, notify: Some(notify).filter(|text| !text.is_empty()), sources }
    }
}

/// The version of the recorded form. A reader refuses a newer one.
const SETTINGS_VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Recorded<S> {
    v: u32,
    #[serde(flatten)]
    settings: S,
}

impl Settings {
    /// The form that is kept with a run.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&Recorded { v: SETTINGS_VERSION, settings: self })
            .expect("settings have only string keys and finite values")
    }

    /// Reads back what [`Settings::to_bytes`] made.
    pub fn from_bytes(bytes: &[u8]) -> Result<Settings, serde_json::Error> {
        let recorded: Recorded<Settings> = serde_json::from_slice(bytes)?;
        if recorded.v > SETTINGS_VERSION {
            let message =
                format!("they have version {}, this piton knows {SETTINGS_VERSION}", recorded.v);
            return Err(serde::de::Error::custom(message));
        }
        Ok(recorded.settings)
    }
}

/// What a run's recorded settings and the present ones do not agree on, a line each.
pub fn differences(recorded: &Settings, loaded: &Loaded) -> Vec<String> {
    let current = &loaded.settings;
    let is_set = |key: &str| {
        loaded.sources.iter().any(|row| row.key == key && row.origin != Origin::Default)
    };
    let mut lines = Vec::new();
    let mut compare = |key: &str, was: String, is: String| {
        if was != is {
            let now = if is_set(key) { "is configured now" } else { "is the default" };
            lines.push(format!("{key}: {was} is recorded and used, {is} {now}"));
        }
    };
    compare(LEASE.key, show(recorded.lease), show(current.lease));
    compare(GRACE.key, show(recorded.grace), show(current.grace));
    compare(SNAPSHOT_EVERY.key, show(recorded.snapshot_every), show(current.snapshot_every));
    compare(SNAPSHOT_KEEP, recorded.snapshot_keep.to_string(), current.snapshot_keep.to_string());
    compare(KEEP_FOR.key, show(recorded.snapshot_keep_for), show(current.snapshot_keep_for));
    compare(SNAPSHOT_BRANCH, recorded.snapshot_branch.clone(), current.snapshot_branch.clone());
    compare(
        BRANCH_EVERY.key,
        show(recorded.snapshot_branch_every),
        show(current.snapshot_branch_every),
    );
    compare(WORKTREE_ROOT, recorded.worktree_root.clone(), current.worktree_root.clone());
    let mib = |settings: &Settings| (settings.transcript_max / MIB).to_string();
    compare(TRANSCRIPT_MAX, mib(recorded), mib(current));
    lines.extend(agent_differences(&recorded.agents, &current.agents));
    lines
}

fn agent_differences(
    recorded: &BTreeMap<AgentName, Agent>,
    current: &BTreeMap<AgentName, Agent>,
) -> Vec<String> {
    let changed = recorded.iter().filter_map(|(name, was)| match current.get(name) {
        Some(is) if is == was => None,
        Some(_) => {
            Some(format!("agent.{name}: the recorded definition is used, not the present one"))
        }
        None => Some(format!("agent.{name}: the recorded definition is used; there is none now")),
    });
    let added = current
        .keys()
        .filter(|name| !recorded.contains_key(*name))
        .map(|name| format!("agent.{name}: configured now, unknown to the run"));
    changed.chain(added).collect()
}

impl Bounds {
    /// Reads a duration within the bounds; the error is a sentence.
    pub fn read(&self, text: &str) -> Result<Duration, String> {
        let value = duration(text)?;
        if value < self.min {
            return Err(format!("{text:?} is too short: at least {}", show(self.min)));
        }
        if value > self.max {
            return Err(format!("{text:?} is too long: at most {}", show(self.max)));
        }
        Ok(value)
    }
}

/// Reads "90s", "30m", "1h 30m", and "30d", a day being 24 hours.
pub fn duration(text: &str) -> Result<Duration, String> {
    let spelled = || format!("{text:?} is not a duration: write \"90s\", \"30m\" or \"1h 30m\"");
    if let Some(days) = text.trim().strip_suffix('d') {
        let days: u32 = days.trim_end().parse().map_err(|_| spelled())?;
        return Ok(Duration::from_secs(u64::from(days) * 24 * 3600));
    }
    let parsed: jiff::SignedDuration = text.trim().parse().map_err(|_| spelled())?;
    Duration::try_from(parsed).map_err(|_| format!("{text:?} is negative"))
}

/// A duration as [`duration`] reads it.
pub fn show(value: Duration) -> String {
    const DAY: u64 = 24 * 3600;
    if value.as_secs() > DAY && value == Duration::from_secs(value.as_secs() / DAY * DAY) {
        return format!("{}d", value.as_secs() / DAY);
    }
    match jiff::SignedDuration::try_from(value) {
        Ok(value) => format!("{value:#}"),
        Err(_) => format!("{}s", value.as_secs()),
    }
}

fn listed(path: &Path, findings: &[Finding]) -> String {
    let rows = findings
        .iter()
        .map(|at| format!("{}:{}:{}: {}", path.display(), at.line, at.column, at.message));
    rows.collect::<Vec<_>>().join("\n")
}

impl ConfigError {
    /// The next thing to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            ConfigError::File { findings, .. } => {
                findings.iter().find_map(|finding| finding.hint.clone())
            }
            ConfigError::Environment { name, .. } => Some(format!("unset it: `unset {name}`")),
            ConfigError::Unreadable { path, .. } => {
                Some(format!("see what is there: `ls -l '{}'`", path.display()))
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::User(path) | Origin::Repository(path) => path.display().fmt(f),
            Origin::Environment(name) => write!(f, "${name}"),
            Origin::Flag => f.write_str("flag"),
        }
    }
}

/// Durations as whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Ok(Duration::from_millis(u64::deserialize(from)?))
    }
}

#[cfg(test)]
mod tests;
