//! Paths below a folder that never lead out of it. Each part of a path is opened from the folder before
//! it and without following a link, so that a folder which becomes a link while one looks leads nowhere,
//! instead of to somebody else's files.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, Mode as Bits, OFlags, Stat};
use rustix::io::Errno;

use crate::repo::is_missing;

/// A folder, held open.
pub(super) struct Root {
    path: PathBuf,
    fd: OwnedFd,
}

/// A path's last part, and the folder that it is in.
pub(super) struct Spot<'a> {
    folder: OwnedFd,
    name: &'a OsStr,
}

impl Root {
    /// Whoever names the root may name it by a link.
    pub(super) fn open(path: &Path) -> io::Result<Root> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Root { path: path.to_owned(), fd: rustix::fs::open(path, flags, Bits::empty())? })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A folder below; the root itself for an empty path.
    pub(super) fn folder(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let mut folder = step(&self.fd, OsStr::new("."))?;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            folder = step(&folder, OsStr::from_bytes(name))?;
        }
        Ok(folder)
    }

    pub(super) fn spot<'a>(&self, path: &'a [u8]) -> io::Result<Spot<'a>> {
        let (folder, name) = parted(path);
        Ok(Spot { folder: self.folder(folder)?, name: OsStr::from_bytes(name) })
    }

    /// The same, with the folders made that are missing.
    pub(super) fn spot_made<'a>(&self, path: &'a [u8]) -> io::Result<Spot<'a>> {
        let (folder, name) = parted(path);
        Ok(Spot { folder: self.make_folder(folder)?, name: OsStr::from_bytes(name) })
    }

    /// Makes a folder and those above it, where they are missing.
    pub(super) fn make_folder(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let mut folder = step(&self.fd, OsStr::new("."))?;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            let name = OsStr::from_bytes(name);
            match rustix::fs::mkdirat(&folder, name, Bits::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            folder = step(&folder, name)?;
        }
        Ok(folder)
    }

    /// Removes the folders of a path that are empty.
    pub(super) fn remove_empty_above(&self, path: &[u8]) {
        let mut folder = parted(path).0;
        while !folder.is_empty() {
            let removed = self.spot(folder).and_then(|spot| {
                Ok(rustix::fs::unlinkat(&spot.folder, spot.name, AtFlags::REMOVEDIR)?)
            });
            if removed.is_err() {
                return;
            }
            folder = parted(folder).0;
        }
    }
}

impl Spot<'_> {
    pub(super) fn look(&self) -> io::Result<Stat> {
        look(&self.folder, self.name)
    }

    /// Opened without waiting: it may have become anything since it was looked at.
    pub(super) fn read(&self) -> io::Result<File> {
        read(&self.folder, self.name)
    }

    pub(super) fn target(&self) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.folder, self.name, Vec::new())?.into_bytes())
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.folder, self.name, AtFlags::empty()) {
            Err(Errno::NOENT) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a new file there under another name first, so that nobody ever sees half of it.
    pub(super) fn replace(
        &self,
        bits: u32,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let new = new_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let bits = Bits::from_raw_mode(bits as rustix::fs::RawMode);
        let made = rustix::fs::openat(&self.folder, new.as_str(), flags, bits)?;
        self.settle(&new, fill(&mut File::from(made)))
    }

    pub(super) fn replace_by_link(&self, target: &[u8]) -> io::Result<()> {
        let new = new_name();
        rustix::fs::symlinkat(OsStr::from_bytes(target), &self.folder, new.as_str())?;
        self.settle(&new, Ok(()))
    }

    fn settle(&self, new: &str, filled: io::Result<()>) -> io::Result<()> {
        let put = filled
            .and_then(|()| Ok(rustix::fs::renameat(&self.folder, new, &self.folder, self.name)?));
        put.inspect_err(|_| {
            let _there_is_none = rustix::fs::unlinkat(&self.folder, new, AtFlags::empty());
        })
    }
}

pub(super) fn look(folder: impl AsFd, name: impl rustix::path::Arg) -> io::Result<Stat> {
    Ok(rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

pub(super) fn read(folder: impl AsFd, name: impl rustix::path::Arg) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Bits::empty())?.into())
}

/// Whether there is nothing at a path, or something else than a folder on the way to it.
pub(super) fn is_gone(error: &io::Error) -> bool {
    is_missing(error) || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

fn step(from: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(from, name, flags, Bits::empty())?)
}

fn parted(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (b"", path),
    }
}

/// A name that nobody else has, in any folder.
fn new_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(".piton-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_in_the_place_of_a_folder_leads_nowhere() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let (inside, outside) = (home.path().join("inside"), home.path().join("outside"));
        fs::create_dir_all(inside.join("a/b")).expect("made");
        fs::create_dir_all(outside.join("b")).expect("made");
        fs::write(inside.join("a/b/file"), "ours").expect("written");
        fs::write(outside.join("b/file"), "theirs").expect("written");
        let root = Root::open(&inside).expect("a folder");
        let text = |path: &[u8]| {
            let file = root.spot(path).and_then(|spot| spot.read())?;
            io::read_to_string(file)
        };
        assert_eq!(text(b"a/b/file").expect("there"), "ours");
        fs::rename(inside.join("a"), home.path().join("moved")).expect("moved");
        symlink(&outside, inside.join("a")).expect("linked");
        assert_eq!(fs::read_to_string(inside.join("a/b/file")).expect("the fault"), "theirs");
        assert!(is_gone(&text(b"a/b/file").expect_err("not followed")));
        assert!(root.spot_made(b"a/b/new").is_err(), "nor written through");
        symlink("file", inside.join("link")).expect("linked");
        assert!(is_gone(&text(b"link").expect_err("not followed")));
    }

    #[test]
    fn files_are_replaced_at_once_and_leave_no_other_names() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let root = Root::open(home.path()).expect("a folder");
        let spot = root.spot_made(b"deep/er/file").expect("made");
        spot.replace(0o644, |file| io::Write::write_all(file, b"one")).expect("written");
        let failed = spot.replace(0o644, |_| Err(io::ErrorKind::StorageFull.into()));
        assert!(failed.is_err());
        spot.replace_by_link(b"target").expect("linked");
        assert_eq!(spot.target().expect("a link"), b"target");
        assert_eq!(fs::read_dir(home.path().join("deep/er")).expect("a folder").count(), 1);
        spot.remove().expect("removed");
        spot.remove().expect("twice");
        root.remove_empty_above(b"deep/er/file");
        assert!(!home.path().join("deep").exists());
    }
}
