//! The real binary in sandboxes of its own, killed for real. One program for all of it: it is built and
//! linked once. A module is a subject.

mod cache;
mod claims;
mod cli;
mod conflicts;
mod crash;
mod damage;
mod docs;
mod drift;
mod frozen;
#[cfg(target_os = "linux")]
mod halfway;
mod init;
mod interruptions;
mod jobs;
mod leaks;
mod merging;
mod odd;
mod outside;
mod purging;
mod questions;
mod races;
mod recovery;
mod rivals;
mod sentinel;
mod setup;
mod sharing;
mod signals;
mod snapshots;
mod states;
mod stopping;
mod telling;
mod tidying;
mod trouble;
mod trust;
mod zoo;
