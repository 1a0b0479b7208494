//! What the store asks macOS; `os_linux.rs` has the same functions. There is no safe call for the
//! boot session here, so moments carry the wall clock alone unless `PITON_BOOT_ID` is set.

use std::io;
use std::path::Path;

use piton_core::ids::BootId;
use rustix::time::{ClockId, clock_gettime};

/// `MNT_LOCAL` of `sys/mount.h`.
const LOCAL: u32 = 0x1000;

/// Unknown: see above.
pub(crate) fn boot_id() -> io::Result<Option<BootId>> {
    Ok(None)
}

/// Milliseconds since boot; this clock counts through sleep on macOS.
pub(crate) fn boot_millis() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000)
}

/// Not to be found out here.
pub(crate) fn lock_holder(_: &std::fs::File) -> Option<u32> {
    None
}

/// Whether the kernel calls the file system of a path local.
pub(crate) fn network_kind(path: &Path) -> io::Result<Option<&'static str>> {
    let local = rustix::fs::statfs(path)?.f_flags & LOCAL != 0;
    Ok(if local { None } else { Some("not local") })
}
