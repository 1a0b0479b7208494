//! A look at the raw database file before SQLite may touch it: empty, cut short, foreign and newer
//! files are named here. Knows the first hundred bytes and nothing of tables.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::home::Home;
use super::schema::{APPLICATION_ID, KNOWN};
use crate::{Damage, StoreError};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const HEADER: usize = 100;

/// Chosen when the database was made, and kept in it.
const WAL_MODE: [u8; 2] = [2, 2];

/// Files kept open until the process ends, by design: closing any descriptor of a database drops every
/// POSIX lock this process holds on it, also those of SQLite's own connections. Another program could
/// then take itself for the last one and remove the log.
static KEPT: Mutex<Vec<Arc<File>>> = Mutex::new(Vec::new());

/// Opens a database file to be read beside SQLite, at most once in this process.
pub(super) fn keep_open(path: &Path) -> io::Result<Arc<File>> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let identity = |found: &fs::Metadata| (found.dev(), found.ino());
    let wanted = identity(&fs::metadata(path)?);
    let mut found = None;
    // A deleted file can be let go.
    kept.retain(|file| {
        file.metadata().is_ok_and(|meta| {
            if identity(&meta) == wanted {
                found = Some(Arc::clone(file));
            }
            meta.nlink() > 0
        })
    });
    if let Some(file) = found {
        return Ok(file);
    }
    let file = Arc::new(File::open(path)?);
    kept.push(Arc::clone(&file));
    Ok(file)
}

/// Refuses a file that is not one of our databases, whole.
pub(super) fn inspect(home: &Home) -> Result<(), StoreError> {
    let damaged = |damage| Err(StoreError::Damaged { path: home.db.clone(), damage });
    let cannot = |source| StoreError::CannotOpen { path: home.db.clone(), source };
    let file = keep_open(&home.db).map_err(cannot)?;
    let length = file.metadata().map_err(cannot)?.len();
    let mut header = [0; HEADER];
    let got = read_up_to(&file, &mut header).map_err(cannot)?;
    if length == 0 {
        return damaged(Damage::Empty);
    }
    if !header[..got.min(MAGIC.len())].eq(&MAGIC[..got.min(MAGIC.len())]) {
        return damaged(Damage::Foreign);
    }
    if got < HEADER {
        return damaged(Damage::Truncated);
    }
    if be32(&header, 68) != APPLICATION_ID.cast_unsigned() {
        return damaged(Damage::Foreign);
    }
    if header[18..20] != WAL_MODE {
        return Err(StoreError::SettingRefused {
            path: home.db.clone(),
            setting: "journal_mode",
            wanted: "wal",
            found: "delete".to_owned(),
        });
    }
    let found = i64::from(be32(&header, 60));
    if found > KNOWN {
        return damaged(Damage::Newer { found, known: KNOWN });
    }
    let page = match u32::from(u16::from_be_bytes([header[16], header[17]])) {
        1 => 65_536,
        size => size,
    };
    if page.is_power_of_two() && page >= 512 {
        // An interrupted checkpoint leaves a short file as well: then the pages are in the log, and SQLite
        // complains if they are not.
        let has_log = fs::metadata(&home.wal).is_ok_and(|log| log.len() > 0);
        if !has_log && is_short(length, page, be32(&header, 28)) {
            return damaged(Damage::Truncated);
        }
    }
    Ok(())
}

/// Whether a file lacks pages that it should have by its header, or ends within one.
fn is_short(length: u64, page: u32, count: u32) -> bool {
    let page = u64::from(page);
    !length.is_multiple_of(page) || length / page < u64::from(count)
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn read_up_to(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], got as u64)? {
            0 => break,
            more => got += more,
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_opened_once_and_let_go_when_it_is_deleted() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("store.db");
        fs::write(&path, b"x").expect("a file");
        let first = keep_open(&path).expect("it is there");
        assert!(Arc::ptr_eq(&first, &keep_open(&path).expect("it is still there")));
        fs::remove_file(&path).expect("it can be removed");
        assert!(keep_open(&path).is_err());
        fs::write(&path, b"y").expect("another file");
        assert!(!Arc::ptr_eq(&first, &keep_open(&path).expect("the new one is there")));
        assert_eq!(Arc::strong_count(&first), 1, "only the test has the old one");
    }

    #[test]
    fn a_file_is_short_by_its_length_and_its_header() {
        assert!(!is_short(8_192, 4_096, 2));
        assert!(!is_short(12_288, 4_096, 2), "longer than the header says");
        assert!(is_short(8_192, 4_096, 4) && is_short(8_191, 4_096, 2));
        assert!(is_short(8_193, 4_096, 2), "a torn page beyond the header");
    }
}
