//! From a folder to a connection that keeps the promises: created atomically, opened with every setting
//! read back, or looked at without a single write.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use piton_core::ids::StoreId;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use tempfile::TempDir;

use super::header;
use super::home::{Home, PRIVATE_FILE};
use super::schema;
use super::sidecar::Remembered;
use super::sql_error::{BUSY_TIMEOUT, SqlError};
use crate::StoreError;

/// A connection, and where its bytes are if not in the store's own folder.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) conn: Connection,
    pub(super) store: StoreId,
    private: Option<Private>,
}

/// A copy made for looking, and what the original looked like when it was made.
#[derive(Debug)]
struct Private {
    original: Stamp,
    /// Removed with the copy.
    _dir: TempDir,
}

/// Settings every writer has, asked for where they are not what SQLite begins with, and read back.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("synchronous", "FULL", "2"),
    // Elsewhere there is no second kind of flush to ask for.
    #[cfg(target_os = "macos")]
    ("fullfsync", "ON", "1"),
    ("cell_size_check", "ON", "1"),
    // Checkpoints are made by tidying; this bounds the log where nothing tidies.
    ("wal_autocheckpoint", "2048", "2048"),
];

/// The same without a statement to compile. With the last one no statement is compiled again because of
/// the values that are bound to it.
const SWITCHES: &[(DbConfig, &str, bool)] = &[
    // First of all: whatever goes wrong after this, closing must not checkpoint.
    (DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, "no_ckpt_on_close", true),
    (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, "trusted_schema", false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, "qpsg", true),
];

/// A connection is behind a lock of ours; SQLite's own would be taken at every step of every statement.
const ONE_AT_A_TIME: OpenFlags = OpenFlags::SQLITE_OPEN_NO_MUTEX;

/// Room for every statement of `rows`.
const STATEMENTS: usize = 32;

/// Makes a database under another name and moves it into place whole, so that a process killed here
/// leaves either no store or a complete one. The caller holds the write lock.
pub(super) fn create(home: &Home) -> Result<(), StoreError> {
    let new = home.dir.join("store.db.new");
    let failed = |source| StoreError::CannotOpen { path: home.db.clone(), source };
    for leftover in ["", "-journal", "-wal", "-shm"] {
        remove(&home.dir.join(format!("store.db.new{leftover}"))).map_err(failed)?;
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(PRIVATE_FILE)
        .open(&new)
        .map_err(failed)?;
    lay_out(&new).map_err(|error| error.named(&home.db))?;
    fs::rename(&new, &home.db).map_err(failed)?;
    File::open(&home.dir).and_then(|dir| dir.sync_all()).map_err(failed)
}

fn lay_out(new: &Path) -> Result<(), SqlError> {
    let mut conn = Connection::open_with_flags(new, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    schema::lay_out(&mut conn)?;
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    conn.close().map_err(|(_, error)| error)?;
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens an existing database for writing.
pub(super) fn write(home: &Home) -> Result<Link, StoreError> {
    header::inspect(home)?;
    let remembered = Remembered::read(home)?;
    let opened = writer(&home.db).and_then(|conn| accept(conn, remembered, None));
    opened.map_err(|error| error.named(&home.db))
}

/// Opens an existing database for looking: in place where SQLite can do that without a write, else from
/// a private copy.
pub(super) fn look(home: &Home) -> Result<Link, StoreError> {
    header::inspect(home)?;
    // Without both files SQLite would have to make them, even read-only.
    if home.wal.exists() && home.shm.exists() {
        match look_in_place(home) {
            Err(error) if error.needs_a_copy() => {}
            looked => return looked.map_err(|error| error.named(&home.db)),
        }
    }
    look_at_copy(home)
}

fn look_in_place(home: &Home) -> Result<Link, SqlError> {
    let remembered = Remembered::read(home)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | ONE_AT_A_TIME;
    let conn = Connection::open_with_flags(uri(&home.db), flags)?;
    switch(&home.db, &conn)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    accept(conn, remembered, None)
}

/// `readonly_shm` matters: plain `mode=ro` writes to the `-shm` file.
fn uri(db: &Path) -> OsString {
    let mut uri = String::from("file:");
    for &byte in db.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' => uri.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(byte)),
            byte => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri.push_str("?mode=ro&readonly_shm=1");
    uri.into()
}

pub(super) fn look_at_copy(home: &Home) -> Result<Link, StoreError> {
    let failed = |source| StoreError::Io { doing: "copying the store to look at it", source };
    // The sidecar is judged where it is; the copy is of the database alone.
    let remembered = Remembered::read(home)?;
    let (dir, original) = copy(home).map_err(failed)?;
    let copied = Home::new(dir.path())?;
    let private = Some(Private { original, _dir: dir });
    let opened = writer(&copied.db).and_then(|conn| accept(conn, remembered, private));
    opened.map_err(|error| error.named(&home.db))
}

/// How often a copy is begun again because the original changed meanwhile.
const COPY_TRIES: u32 = 20;

/// Copies database and log, in this order: a log that is newer than its database is the normal case. Only
/// a checkpoint writes to the database, and that shows in its stamp. After one the log is begun again, and
/// the beginning of the old one over a newer database would take commits back: that shows in the log's
/// header.
fn copy(home: &Home) -> io::Result<(TempDir, Stamp)> {
    let dir = tempfile::Builder::new().prefix("piton-look-").tempdir()?;
    for _ in 0..COPY_TRIES {
        let (before, log) = (Stamp::of(home)?, log_header(home)?);
        copy_database(home, dir.path())?;
        let copied = dir.path().join("store.db-wal");
        match fs::copy(&home.wal, &copied) {
            Err(error) if error.kind() == ErrorKind::NotFound => remove(&copied)?,
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        if Stamp::of(home)?.db == before.db && log_header(home)? == log {
            return Ok((dir, before));
        }
    }
    Err(io::Error::new(ErrorKind::ResourceBusy, "the store changes faster than it can be copied"))
}

/// The first bytes of the write-ahead log, different each time it is begun again.
fn log_header(home: &Home) -> io::Result<Option<[u8; 32]>> {
    let mut header = [0; 32];
    match File::open(&home.wal).and_then(|file| file.read_exact_at(&mut header, 0)) {
        Ok(()) => Ok(Some(header)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn copy_database(home: &Home, to: &Path) -> io::Result<()> {
    let from = header::keep_open(&home.db)?;
    let mut bytes = vec![0; usize::try_from(from.metadata()?.len()).map_err(io::Error::other)?];
    from.read_exact_at(&mut bytes, 0)?;
    fs::write(to.join("store.db"), bytes)
}

impl Link {
    /// Whether this is a copy whose original has changed since.
    pub(super) fn is_stale(&self, home: &Home) -> bool {
        self.private
            .as_ref()
            .is_some_and(|private| Stamp::of(home).map_or(true, |now| now != private.original))
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.private.is_none()
    }
}

/// Enough to see that a file was written to or replaced: inode, length, time of the last change.
type FileStamp = (u64, u64, i64, i64);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    db: FileStamp,
    wal: Option<FileStamp>,
}

impl Stamp {
    fn of(home: &Home) -> io::Result<Stamp> {
        let stamp = |path| {
            fs::metadata(path).map(|meta| (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
        };
        let wal = match stamp(&home.wal) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            wal => Some(wal?),
        };
        Ok(Stamp { db: stamp(&home.db)?, wal })
    }
}

/// A connection that may write, with every setting as asked.
fn writer(db: &Path) -> Result<Connection, SqlError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | ONE_AT_A_TIME;
    let mut conn = Connection::open_with_flags(db, flags)?;
    switch(db, &conn)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.set_transaction_behavior(TransactionBehavior::Immediate);
    for &(setting, value, answer) in SETTINGS {
        if ask(&conn, setting)? != answer {
            conn.pragma_update(None, setting, value)?;
            confirm(db, setting, answer, &ask(&conn, setting)?)?;
        }
    }
    Ok(conn)
}

fn switch(db: &Path, conn: &Connection) -> Result<(), SqlError> {
    let shown = |on| if on { "1" } else { "0" };
    for &(switch, name, wanted) in SWITCHES {
        confirm(db, name, shown(wanted), shown(conn.set_db_config(switch, wanted)?))?;
    }
    Ok(())
}

fn ask(conn: &Connection, setting: &str) -> Result<String, SqlError> {
    let value = conn.pragma_query_value(None, setting, |row| {
        Ok(match row.get_ref(0)? {
            rusqlite::types::ValueRef::Integer(number) => number.to_string(),
            text => String::from_utf8_lossy(text.as_bytes()?).into_owned(),
        })
    })?;
    Ok(value)
}

fn confirm(
    db: &Path,
    setting: &'static str,
    wanted: &'static str,
    found: &str,
) -> Result<(), StoreError> {
    if found == wanted {
        return Ok(());
    }
    let found = found.to_owned();
    Err(StoreError::SettingRefused { path: db.to_path_buf(), setting, wanted, found })
}

/// Checks that the database is a whole store of ours and has what the sidecar remembers.
fn accept(
    conn: Connection,
    remembered: Option<Remembered>,
    private: Option<Private>,
) -> Result<Link, SqlError> {
    let store = schema::recognise(&conn)?.store;
    if let Some(remembered) = remembered {
        remembered.verify(&conn, store)?;
    }
    Ok(Link { conn, store, private })
}
