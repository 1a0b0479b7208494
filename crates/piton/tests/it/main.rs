//! The real binary in sandboxes of its own, killed for real. One program for all of it: it is built and
//! linked once. A module is a subject.

/// A test for every point of those that are listed, and one that none of them lacks its own.
macro_rules! at_every_point {
    ($every:ident: $listed:expr, $killed_at:expr; $($test:ident: $point:literal,)*) => {
        $(
            #[test]
            fn $test() {
                $killed_at($point);
            }
        )*

        #[test]
        fn $every() {
            assert_eq!($listed, [$($point),*]);
        }
    };
}

mod cache;
mod claims;
mod cli;
mod conflicts;
mod conversations;
mod crash;
mod damage;
mod docs;
mod drift;
mod failures;
mod formats;
mod frozen;
#[cfg(target_os = "linux")]
mod halfway;
mod init;
mod interruptions;
mod jobs;
mod leaks;
mod limits;
mod loops;
mod merging;
mod odd;
mod outputs;
mod outside;
mod planner;
mod preflight;
mod purging;
mod questions;
mod races;
#[cfg(feature = "real-agents")]
mod real_agents;
mod recovery;
mod resuming;
mod rivals;
mod sentinel;
mod setup;
mod sharing;
mod signals;
mod skipping;
mod snapshots;
mod states;
mod stopping;
mod stuck;
mod sweep;
mod telling;
mod tidying;
mod tour;
mod trouble;
mod trust;
mod watching;
mod zoo;

use piton_testkit::runs::{lay_plan, plan};
use piton_testkit::{Sandbox, look_at_every_output};

/// A repository for the binary that was built with these tests.
fn sandbox() -> Sandbox {
    look_at_every_output(telling::assert_hints);
    Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"))
}

/// The same with a plan of steps.
fn sandbox_of(steps: impl FnOnce(&Sandbox) -> Vec<String>) -> Sandbox {
    let sandbox = sandbox();
    let steps = steps(&sandbox);
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox
}
