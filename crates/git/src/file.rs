//! Files of piton's own: read by nobody but their owner, and replaced whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;

/// A file that only its owner may read.
pub fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
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
