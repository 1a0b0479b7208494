//! Touches the machine for piton: git, processes, locks, clocks. It never prints, never parses
//! arguments and knows no surface; every rule it acts on comes from the core.

pub mod abandon;
pub mod attempt;
pub mod bury;
mod child;
pub mod claims;
pub mod clean;
pub mod complete;
pub mod condition;
pub mod config;
pub mod demo;
pub mod diff;
pub mod doctor;
pub mod error;
pub mod init;
pub mod keeper;
pub mod land;
mod lease;
pub mod log;
pub mod machine;
pub mod merge;
pub mod observe;
pub mod outside_snapshots;
pub mod places;
pub mod project;
pub mod purge;
pub mod questions;
pub mod remedy;
pub mod retention;
pub mod runs;
mod signals;
pub mod snapshot_history;
mod step_snapshot;
mod supervise;
mod transcript;
pub mod trust;
pub mod undo;
mod verify;
pub mod worker;

pub use error::EngineError;

// Surfaces name git and stores through the engine: they depend on it alone.
pub use piton_git as git;

pub use piton_store::sqlite::Access;
pub use piton_store::{ALLOW_NETWORK_FS, Damage, RunRow, Runs, Store, StoreError, Unsafe};
