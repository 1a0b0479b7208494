//! One verb, one file: its arguments and the function that answers.

pub(crate) use crate::answer::{Answer, conditions, json};
pub(crate) use crate::next::next_commands;
pub(crate) use crate::start::{
    find, from_here, here, plan_from_here, project, run_of, store_for_looking, store_with_runs,
};
pub(crate) use crate::target::{is_file, step_of};

pub(crate) mod abandon;
pub(crate) mod agent;
pub(crate) mod answer;
pub(crate) mod ask;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod claim;
pub(crate) mod clean;
pub(crate) mod complete;
pub(crate) mod demo;
pub(crate) mod demo_agent;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod fail;
pub(crate) mod heartbeat;
pub(crate) mod init;
pub(crate) mod item;
pub(crate) mod keeper;
pub(crate) mod log;
pub(crate) mod merge;
pub(crate) mod open;
pub(crate) mod output;
pub(crate) mod overview;
pub(crate) mod plan;
pub(crate) mod questions;
pub(crate) mod ready;
pub(crate) mod release;
pub(crate) mod reset;
pub(crate) mod resume;
pub(crate) mod retry;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod skip;
pub(crate) mod snapshot;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod substep;
pub(crate) mod trust;
pub(crate) mod undo;
pub(crate) mod watch;
pub(crate) mod worker;
pub(crate) mod worktree;
