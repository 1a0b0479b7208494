//! What the store asks Linux: the boot id, the clock that counts through suspend, who has locked a file,
//! and what kind of file system a path is on. `os_macos.rs` has the same functions.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use piton_core::ids::BootId;
use rustix::time::{ClockId, clock_gettime};

/// This start of the kernel.
pub(crate) fn boot_id() -> io::Result<Option<BootId>> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(Some(BootId(text.trim().to_owned())))
}

/// Milliseconds since boot, suspend included.
pub(crate) fn boot_millis() -> i64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000)
}

/// The process that has locked a file, as far as this one may know.
pub(crate) fn lock_holder(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| holder_in(line, inode))
}

/// Reads `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`; whoever waits has an arrow behind the number.
fn holder_in(line: &str, inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, process, place, ..] = words[..] else { return None };
    let at = place.rsplit(':').next()?.parse();
    // Zero is somebody in another namespace.
    process.parse().ok().filter(|process| *process > 0 && at == Ok(inode))
}

/// The name of the network (or possibly network) file system a path is on.
pub(crate) fn network_kind(path: &Path) -> io::Result<Option<&'static str>> {
    // The kernel's word is wider than the magic numbers, which are 32 bits everywhere.
    let magic = rustix::fs::statfs(path)?.f_type as u32;
    Ok(kind_of(magic))
}

fn kind_of(magic: u32) -> Option<&'static str> {
    NETWORK.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// File systems several hosts can mount at once, by the magic number `statfs` gives.
const NETWORK: &[(u32, &str)] = &[
    (0x0000_6969, "nfs"),
    (0x0000_517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "kafs"),
    (0x7375_7245, "coda"),
    (0x0000_564c, "ncp"),
    (0x00c3_6400, "ceph"),
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x0116_1970, "gfs2"),
    (0x7461_636f, "ocfs2"),
    (0x1983_0326, "beegfs"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
    // sshfs and friends; nothing tells them from a local one here.
    (0x6573_5546, "fuse"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_number() {
        assert_eq!(kind_of(0x6969), Some("nfs"));
        assert_eq!(kind_of(0xff53_4d42), Some("cifs"));
        assert_eq!(kind_of(0xef53), None, "ext4 is local");
        assert_eq!(kind_of(0x0102_1994), None, "tmpfs is local");
    }

    #[test]
    fn the_holder_of_a_lock_is_told_from_those_who_wait() {
        let held = "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF";
        assert_eq!(holder_in(held, 1234), Some(4711));
        assert_eq!(holder_in(held, 123), None, "another file");
        let others = [
            "1: -> FLOCK  ADVISORY  WRITE 4712 fe:00:1234 0 EOF",
            "2: POSIX  ADVISORY  WRITE 4713 fe:00:1234 0 EOF",
            "3: FLOCK  ADVISORY  WRITE 0 fe:00:1234 0 EOF",
            "",
        ];
        assert!(others.iter().all(|line| holder_in(line, 1234).is_none()));
    }

    #[test]
    fn the_boot_clock_runs_and_the_boot_has_a_name() {
        assert!(boot_millis() > 0);
        assert!(boot_id().is_ok_and(|id| id.is_some_and(|id| id.0.len() == 36)));
    }
}
