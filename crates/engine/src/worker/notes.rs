//! What a worker says beyond events, as JSON lines in `worker-<run>.log`, and how its time ended. Watchers
//! read them: a worker has no terminal.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use piton_core::ids::Position;
use piton_git::file;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Notice, Outcome};

/// One line: what was said, and how much of the log was known then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    pub at: Position,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Notice(Notice),
    Ended(Ended),
}

/// How a worker ended: by an outcome, or by an error in the words of the surface that ran it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Outcome(Outcome),
    Problem(Value),
}

/// Where a worker writes.
pub struct Notes(Mutex<Box<dyn io::Write + Send>>);

impl Notes {
    pub fn new(to: impl io::Write + Send + 'static) -> Notes {
        Notes(Mutex::new(Box::new(to)))
    }

    pub(super) fn say(&self, at: Position, notice: Notice) {
        self.write(&Said { at, what: What::Notice(notice) });
    }

    /// The last line.
    pub fn end(&self, at: Position, ended: Ended) {
        self.write(&Said { at, what: What::Ended(ended) });
    }

    /// A full disk costs a watcher a word, never the work.
    fn write(&self, said: &Said) {
        let Ok(mut line) = serde_json::to_vec(said) else { return };
        line.push(b'\n');
        if let Ok(mut to) = self.0.lock() {
            let _unheard = to.write_all(&line).and_then(|()| to.flush());
        }
    }
}

/// Reads what workers of a run say from now on.
#[derive(Debug)]
pub struct NotesReader {
    path: PathBuf,
    at: u64,
}

impl NotesReader {
    pub fn from_now_on(path: &Path) -> NotesReader {
        let at = std::fs::metadata(path).map_or(0, |found| found.len());
        NotesReader { path: path.to_owned(), at }
    }

    /// Whole lines that were added. One that is no note, such as a panic's, is passed over.
    pub fn read(&mut self) -> Vec<Said> {
        let mut text = Vec::new();
        let read = file::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.at))?;
            file.read_to_end(&mut text)
        });
        let whole = match (read, text.iter().rposition(|byte| *byte == b'\n')) {
            (Ok(_), Some(end)) => &text[..=end],
            _ => return Vec::new(),
        };
        self.at += whole.len() as u64;
        let lines = whole.split(|byte| *byte == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}
