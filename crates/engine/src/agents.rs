//! The agents that can be named in a plan here, and whether their programs are installed. Only programs
//! that piton or the user chose are asked for their version; what a repository defines is not started.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use piton_core::agent::{Agent, all_built_in};
use piton_core::ids::AgentName;

use crate::attempt::child;
use crate::config::{Loaded, Origin};

/// An agent, and what is there of it.
pub struct ListedAgent {
    pub name: AgentName,
    pub agent: Agent,
    /// Who defined it.
    pub origin: Origin,
    /// Its program, where it is installed.
    pub program: Option<PathBuf>,
}

/// Every agent that is built in or configured, by name.
pub fn list(loaded: &Loaded, path: Option<&OsStr>) -> Vec<ListedAgent> {
    let path = path.unwrap_or_default();
    let agents = &loaded.settings.agents;
    let names = all_built_in().keys().chain(agents.keys());
    let names: std::collections::BTreeSet<&AgentName> = names.collect();
    let listed = names.into_iter().filter_map(|name| {
        let agent = agents.get(name).or_else(|| all_built_in().get(name))?.clone();
        let key = format!("agent.{name}");
        let origin = loaded.sources.iter().find(|row| row.key == key);
        let origin = origin.map_or(Origin::Default, |row| row.origin.clone());
        let program = agent.command.first().and_then(|program| found(path, program));
        Some(ListedAgent { name: name.clone(), agent, origin, program })
    });
    listed.collect()
}

fn found(path: &OsStr, program: &str) -> Option<PathBuf> {
    let folders = std::env::split_paths(path).map(|folder| folder.join(program));
    let named = program.contains('/').then(|| Path::new(program).to_owned());
    folders.chain(named).find(|place| place.is_file())
}

impl ListedAgent {
    /// What its program says to `--version`.
    pub fn version(&self) -> Option<String> {
        match self.origin {
            Origin::Repository(_) => None,
            _ => child::version(self.program.as_deref()?),
        }
    }
}
