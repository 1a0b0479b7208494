//! The run cache: a file `run-<id>.cache` beside the database, replaced whole by a rename. It is never
//! flushed and needs no care, because the core knows what it must hold.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use piton_core::ids::RunId;
use rustix::fs::OFlags;

use super::home::{Home, OTHERS_WRITE, PRIVATE_FILE};

/// The file as it is now; `None` where there is none that only we could have written.
pub(super) fn read(home: &Home, run: RunId) -> Option<Vec<u8>> {
    let no_link = OFlags::NOFOLLOW.bits().cast_signed();
    let mut file =
        OpenOptions::new().read(true).custom_flags(no_link).open(home.run_cache(run)).ok()?;
    let found = file.metadata().ok()?;
    let me = rustix::process::geteuid().as_raw();
    if !found.is_file() || found.uid() != me || found.mode() & OTHERS_WRITE != 0 {
        return None;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

pub(super) fn replace(home: &Home, run: RunId, bytes: &[u8]) -> io::Result<()> {
    let path = home.run_cache(run);
    let new = path.with_extension("new");
    let made = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(&new);
    let written = made.and_then(|mut file| file.write_all(bytes));
    written.and_then(|()| fs::rename(&new, path)).inspect_err(|_| {
        // Left behind by a killed process, or not finished by this one: the next write finds it gone.
        let _gone = fs::remove_file(&new);
    })
}

/// Removes the files of runs that are not known. A file that stays does no harm: the next forgetting
/// tries again.
pub(super) fn remove_strays(home: &Home, is_known: impl Fn(RunId) -> bool) {
    for entry in fs::read_dir(&home.dir).into_iter().flatten().flatten() {
        if home.run_of_cache(&entry.file_name()).is_some_and(|run| !is_known(run)) {
            let _harmless = fs::remove_file(entry.path());
        }
    }
}
