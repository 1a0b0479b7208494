//! Touches the machine for piton: processes, locks, clocks, and git through `piton-git`. It never prints,
//! never parses arguments and knows no surface; every rule it acts on comes from the core.
//!
//! The modules build on each other in one direction: `config`, `error`, `machine`, `folder`, `project`,
//! `registry` and `trust` at the bottom, then `run`, `attempt`, `outside` and `worker`, `tidy`, `opening`.

pub mod agents;
pub mod attempt;
pub mod config;
pub mod demo;
pub mod diff;
pub mod doctor;
pub mod error;
pub mod folder;
pub mod init;
pub mod machine;
pub mod merge;
pub mod opening;
pub mod outside;
pub mod pager;
pub mod project;
pub mod registry;
pub mod remedy;
pub mod run;
pub mod tidy;
pub mod trust;
pub mod watch;
pub mod worker;

pub use error::EngineError;

// Surfaces name git and stores through the engine: they depend on it alone.
pub use piton_formats as formats;
pub use piton_git as git;
pub use piton_store::sqlite::Access;
pub use piton_store::{ALLOW_NETWORK_FS, Damage, RunRow, Runs, Store, StoreError, Unsafe};
