//! The machine's clocks, read for stores that have one host. Judges nothing: a [`Moment`] does.

use std::io;
use std::sync::OnceLock;
#[cfg(feature = "conformance")]
use std::sync::{Mutex, PoisonError};
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

/// The kernel start that this process runs in, where it can be had without starting another. Asked once:
/// it cannot change under a process.
pub fn boot_id() -> io::Result<Option<BootId>> {
    static ASKED: OnceLock<Option<BootId>> = OnceLock::new();
    match ASKED.get() {
        Some(boot) => Ok(boot.clone()),
        None => os::boot_id().map(|boot| ASKED.get_or_init(|| boot).clone()),
    }
}

/// The clocks of a host, with the boot they count from.
#[derive(Debug)]
pub(crate) struct HostClock {
    boot: Option<BootId>,
    /// A time that somebody set, for histories that are played again.
    #[cfg(feature = "conformance")]
    set: Mutex<Option<Moment>>,
}

impl HostClock {
    pub(crate) fn new() -> Result<HostClock, StoreError> {
        let boot = match std::env::var(BOOT_ID) {
            Ok(id) if !id.is_empty() => Some(BootId(id)),
            _ => boot_id()
                .map_err(|source| StoreError::Io { doing: "asking for the boot id", source })?,
        };
        Ok(HostClock {
            boot,
            #[cfg(feature = "conformance")]
            set: Mutex::new(None),
        })
    }

    /// From here on it stands at `now`.
    #[cfg(feature = "conformance")]
    pub(crate) fn set(&self, now: Moment) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    pub(crate) fn now(&self) -> Moment {
        #[cfg(feature = "conformance")]
        if let Some(now) = &*self.set.lock().unwrap_or_else(PoisonError::into_inner) {
            return now.clone();
        }
        let clock =
            self.boot.as_ref().map(|boot| BootClock { boot: boot.clone(), ms: os::boot_millis() });
        Moment { wall: wall(), clock }
    }
}
