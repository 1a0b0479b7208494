//! Touches the machine for piton: git, processes, locks, clocks. It never prints, never parses
//! arguments and knows no surface; every rule it acts on comes from the core.

pub mod config;
pub mod log;
pub mod trust;
pub mod git;
pub mod land;
pub mod snapshot;
pub mod worktree;
