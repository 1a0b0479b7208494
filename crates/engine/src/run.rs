//! Runs as they are recorded and as they are found: the log, the plan's file, snapshots, what lives.

pub mod condition;
pub mod found_work;
pub mod log;
pub mod observe;
pub mod plan_file;
pub mod preflight;
pub mod retention;
pub mod runs;
pub mod snapshot_history;
pub(crate) mod step_snapshot;
pub mod write_back;
