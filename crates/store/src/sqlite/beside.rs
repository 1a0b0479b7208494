//! The file beside a run's log, `run-<id>.kept`: what spares the next process a fold. It is never flushed
//! and needs no care, because whoever reads it knows what it must hold; nobody waits for it, and where
//! anything is in the way it stays as it was.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use piton_core::cache::{self, Keep};
use piton_core::ids::RunId;
use rustix::fs::OFlags;

use super::home::{Home, OTHERS_WRITE, PRIVATE_FILE};

#[derive(Debug)]
pub(super) struct Beside {
    file: File,
    id: u64,
    size: u64,
}

impl cache::File for Beside {
    fn id(&self) -> u64 {
        self.id
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let end = at.checked_add(len as u64)?;
        let mut bytes = vec![0; if end <= self.size { len } else { return None }];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }
}

/// The file as it is now; none where there is none of ours.
pub(super) fn open(home: &Home, run: RunId) -> Option<Beside> {
    open_to(OpenOptions::new().read(true), &home.beside(run))
}

fn open_to(how: &mut OpenOptions, path: &Path) -> Option<Beside> {
    let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).ok()?;
    let file = how.custom_flags(no_link).open(path).ok()?;
    let found = file.metadata().ok()?;
    let me = rustix::process::geteuid().as_raw();
    let ours = found.is_file() && found.uid() == me && found.mode() & OTHERS_WRITE == 0;
    ours.then_some(Beside { file, id: found.ino(), size: found.len() })
}

/// Shows the file there is and keeps what is answered; says what the file is then. `None` where nothing
/// was kept, perhaps because somebody else is just keeping theirs.
pub(super) fn keep(
    home: &Home,
    run: RunId,
    pack: &mut dyn FnMut(Option<&dyn cache::File>) -> Keep,
) -> Option<Beside> {
    let path = home.beside(run);
    let present = match open_to(OpenOptions::new().read(true).write(true), &path) {
        Some(found) => Some(locked(found, &path)?),
        None => None,
    };
    let shown = present.as_ref().map(|present| present as &dyn cache::File);
    match pack(shown) {
        Keep::Behind(bytes) => {
            let mut present = present?;
            let written = present.file.write_all_at(&bytes, present.size);
            if written.is_err() {
                // As far as it got it would be in the way of what is there.
                let _torn = present.file.set_len(present.size);
            }
            present.size += bytes.len() as u64;
            // The lock would otherwise last as long as the file is read from.
            let _unlocked = present.file.unlock();
            written.ok().map(|()| present)
        }
        Keep::Instead(bytes) => {
            replace(&path, &bytes).ok()?;
            open(home, run)
        }
    }
}

/// Removes the files of runs that are not known. One that stays is in nobody's way: the next forgetting
/// tries again.
pub(super) fn remove_strays(home: &Home, is_known: impl Fn(RunId) -> bool) {
    for entry in fs::read_dir(&home.dir).into_iter().flatten().flatten() {
        if home.beside_which(&entry.file_name()).is_some_and(|run| !is_known(run)) {
            let _in_nobodys_way = fs::remove_file(entry.path());
        }
    }
}

/// With nobody else writing to it, if it still is the file.
fn locked(found: Beside, path: &Path) -> Option<Beside> {
    found.file.try_lock().ok()?;
    let size = found.file.metadata().ok()?.len();
    let is_it = fs::symlink_metadata(path).is_ok_and(|there| there.ino() == found.id);
    is_it.then_some(Beside { size, ..found })
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let made = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(&new);
    let written = made.and_then(|mut file| file.write_all(bytes));
    if let Err(error) = written.and_then(|()| fs::rename(&new, path)) {
        // Left by somebody who was killed, or not finished by us: the next one finds it gone.
        let _gone = fs::remove_file(&new);
        return Err(error);
    }
    Ok(())
}
