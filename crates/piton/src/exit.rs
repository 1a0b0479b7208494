//! Exit statuses: a public, documented promise to scripts. The numbers above 64 follow sysexits.h,
//! those above 128 the shell's convention for signals.

use std::process::ExitCode;

/// How a piton command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
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
pub const EXITS: [(ExitStatus, &str); 13] = [
    (ExitStatus::Ok, "done"),
    (ExitStatus::Failed, "failed: a step has no retries left, or something else went wrong"),
    (ExitStatus::Usage, "the command line is wrong, or names something that does not exist"),
    (ExitStatus::NeedsPerson, "only a person can say how it goes on"),
    (ExitStatus::OwnershipLost, "the step is no longer held by the caller"),
    (ExitStatus::BadPlan, "the plan or the configuration cannot be used, or the plan has changed"),
    (ExitStatus::StoreUnavailable, "the store is unavailable"),
    (ExitStatus::Corrupt, "something that was kept is damaged"),
    (ExitStatus::Parked, "parked: try again later"),
    (ExitStatus::NotTrusted, "the plan's commands have not been trusted"),
    (ExitStatus::HungUp, "the terminal was closed (SIGHUP); agents go on"),
    (ExitStatus::Interrupted, "interrupted (SIGINT, Ctrl-C, `piton stop`)"),
    (ExitStatus::Terminated, "terminated (SIGTERM)"),
];

impl ExitStatus {
    pub fn number(self) -> u8 {
        self as u8
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(exit: ExitStatus) -> ExitCode {
        ExitCode::from(exit.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_without_repetition() {
        let numbers: Vec<u8> = EXITS.iter().map(|(exit, _)| exit.number()).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }
}
