//! Files of piton's own, and those of git that piton reads: never waited for, never through a link, and
//! replaced whole or not at all. What is not a regular file is refused: a pipe in the place of a file would
//! be waited for until somebody writes to it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;

/// A file that only its owner may read.
pub fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    regular(options.read(true).write(true).create(true).truncate(false).mode(0o600), path)
}

/// The same, written to at its end.
pub fn appending(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().append(true).create(true).mode(0o600), path)
}

/// A file that is there, for reading.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    regular(OpenOptions::new().read(true), path.as_ref())
}

pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits();
    let other = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what);
    let opened = options.custom_flags(flags.cast_signed()).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => other("it is a symbolic link"),
        Some(Errno::NXIO) => other("it is not a regular file"),
        _ => error,
    })?;
    match file.metadata()? {
        found if found.is_file() => Ok(file),
        found if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(other("it is not a regular file")),
    }
}

/// Replaces a record so that a reader, even after a crash, sees the old or the new one, whole.
pub fn write_flushed(path: &Path, record: &impl Serialize) -> io::Result<()> {
    replace(path, &serde_json::to_vec(record)?)
}

/// The same for bytes.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let new = path.with_extension("new");
    let mut file = private(&new)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

/// Replaces a file, whoever else does the same; a power cut may lose it.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(bytes.as_ref())?;
    new.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_and_not_waited_for() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| home.path().join(name);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), mode).expect("a pipe");
        fs::create_dir(at("folder")).expect("a folder");
        std::os::unix::fs::symlink("loop", at("loop")).expect("a link");
        fs::write(at("file"), "text").expect("a file");
        std::os::unix::fs::symlink("file", at("link")).expect("a link");
        for name in ["pipe", "folder", "loop", "link"] {
            assert!(read(at(name)).is_err(), "{name}");
            assert!(private(&at(name)).is_err(), "{name}");
        }
        assert_eq!(text(at("file")).expect("a file"), "text");
        for name in ["pipe", "loop", "file", "new"] {
            write(&at(name), "whole").expect("replaced");
            assert_eq!(text(at(name)).expect("a file"), "whole");
        }
    }
}
