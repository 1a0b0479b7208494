//! The machine's clocks, read for stores that have one host. Judges nothing: a [`Moment`] does.

use std::time::SystemTime;

use piton_core::ids::BootId;
use piton_core::time::{BootClock, Millis, Moment};

use crate::{StoreError, os};

/// Overrides the boot id, so that tests can reboot without rebooting.
const BOOT_ID: &str = "PITON_BOOT_ID";

/// The wall clock; a clock before 1970 reads as 1970.
pub(crate) fn wall() -> Millis {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Millis(0).after(since)
}

/// The boot a process runs in, asked once: it cannot change under a process.
#[derive(Debug)]
pub(crate) struct HostClock {
    boot: Option<BootId>,
}

impl HostClock {
    pub(crate) fn new() -> Result<HostClock, StoreError> {
        let boot = match std::env::var(BOOT_ID) {
            Ok(id) if !id.is_empty() => Some(BootId(id)),
            _ => os::boot_id()
                .map_err(|source| StoreError::Io { doing: "asking for the boot id", source })?,
        };
        Ok(HostClock { boot })
    }

    pub(crate) fn now(&self) -> Moment {
        let clock =
            self.boot.as_ref().map(|boot| BootClock { boot: boot.clone(), ms: os::boot_millis() });
        Moment { wall: wall(), clock }
    }
}
