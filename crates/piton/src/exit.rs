//! Exit statuses: a public, documented promise to scripts. The numbers above 64 follow sysexits.h,
//! those above 128 the shell's convention for signals.

use std::process::ExitCode;

/// How a piton command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    NeedsPerson = 4,
    OwnershipLost = 5,
    BadPlan = 65,
    StoreUnavailable = 69,
    Corrupt = 74,
    Parked = 75,
    NotTrusted = 77,
    HungUp = 129,
    Interrupted = 130,
    Terminated = 143,
}

/// Every status with what it tells a script, in numerical order.
pub const EXITS: [(Exit, &str); 13] = [
    (Exit::Ok, "done"),
    (Exit::Failed, "failed: a step has no retries left, or something else went wrong"),
    (Exit::Usage, "the command line is wrong, or names something that does not exist"),
    (Exit::NeedsPerson, "only a person can say how it goes on"),
    (Exit::OwnershipLost, "the step is no longer held by the caller"),
    (Exit::BadPlan, "the plan or the configuration cannot be used, or the plan has changed"),
    (Exit::StoreUnavailable, "the store is unavailable"),
    (Exit::Corrupt, "something that was kept is damaged"),
    (Exit::Parked, "parked: try again later"),
    (Exit::NotTrusted, "the plan's commands have not been trusted"),
    (Exit::HungUp, "the terminal was closed (SIGHUP); agents go on"),
    (Exit::Interrupted, "interrupted (SIGINT, Ctrl-C, `piton stop`)"),
    (Exit::Terminated, "terminated (SIGTERM)"),
];

impl Exit {
    /// The number.
    pub fn status(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_without_repetition() {
        let numbers: Vec<u8> = EXITS.iter().map(|(exit, _)| exit.status()).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }
}
