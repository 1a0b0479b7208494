//! Brings an index up to what is on disk, for the commit of a step's leftovers: everything or nothing,
//! except nested repositories, which are never taken in.

use super::status::{Status, is_repository};
use super::{Call, GitError, names};

/// What an index lacks to be as the worktree.
#[derive(Default)]
pub(crate) struct Changes {
    /// To be read from disk.
    pub(crate) put: Vec<Vec<u8>>,
    /// No longer on disk.
    pub(crate) drop: Vec<Vec<u8>>,
}

impl Changes {
    pub(crate) fn of(status: &Status) -> Changes {
        let mut changes = Changes::default();
        for entry in &status.tracked {
            if entry.unstaged == b'D' || entry.unmerged && entry.gone {
                changes.drop.push(entry.path.clone());
            } else if entry.unstaged != b'.' {
                changes.put.push(entry.path.clone());
            }
        }
        for path in &status.untracked {
            if !is_repository(path) {
                changes.put.push(path.clone());
            }
        }
        changes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.put.is_empty() && self.drop.is_empty()
    }
}

/// Takes in everything, or fails with what git said.
pub(crate) fn strictly(call: impl Fn() -> Call, changes: &Changes) -> Result<(), GitError> {
    forget(&call, &changes.drop)?;
    match read_in(&call, &changes.put)?.first() {
        None => Ok(()),
        Some(path) => {
            let what = format!("git does not allow the name {}", names::shown(path));
            Err(GitError::unexpected("git update-index", what))
        }
    }
}

/// Returns the paths that git passed over, which it only mentions.
fn read_in<'p>(call: &impl Fn() -> Call, paths: &'p [Vec<u8>]) -> Result<Vec<&'p [u8]>, GitError> {
    let stderr = update(call, &["--add", "--replace", "--remove"], paths)?;
    if !stderr.contains("Ignoring path ") {
        return Ok(Vec::new());
    }
    let said = format!("{stderr}\n");
    let passed_over =
        |path: &&[u8]| said.contains(&format!("Ignoring path {}\n", String::from_utf8_lossy(path)));
    Ok(paths.iter().map(Vec::as_slice).filter(passed_over).collect())
}

fn forget(call: &impl Fn() -> Call, paths: &[Vec<u8>]) -> Result<(), GitError> {
    update(call, &["--force-remove"], paths).map(drop)
}

/// Returns what git said.
fn update(call: &impl Fn() -> Call, how: &[&str], paths: &[Vec<u8>]) -> Result<String, GitError> {
    if paths.is_empty() {
        return Ok(String::new());
    }
    let mut input = paths.join(&0);
    input.push(0);
    let call = call().arg("update-index").args(how).args(&["-z", "--stdin"]).input(input);
    Ok(call.run()?.stderr)
}
