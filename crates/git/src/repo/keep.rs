//! Commits that no gc can take. A `git gc --prune=now` removes every object that no ref reached when
//! it began, however new it is: also a commit that gets its ref a moment later. So a commit is only
//! trusted once it has a ref, a gc from before that has ended, and everything it needs is there; else
//! it is made again.

use std::time::{Duration, Instant};

use piton_core::ids::Oid;
use rustix::process::{Pid, test_kill_process};

use super::{Git, GitError, Moved, flush};
use crate::file;

/// Where commits are held until a branch has them: a ref there is named like the branch.
pub const HELD: &str = "refs/piton/held";

/// How often a commit that a gc took is made again.
pub(crate) const TRIES: usize = 8;
/// How long a gc that runs is waited for. A longer one is left to itself: whoever is about to destroy
/// something reads its snapshot back first.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// A ref that a new commit gets.
pub struct Name<'a> {
    pub refname: &'a str,
    /// Where it is now; `None`: it must not exist.
    pub old: Option<Oid>,
    pub why: &'a str,
}

/// What is made: the first time, or again because objects of it are gone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Making {
    First,
    Again,
}

/// Makes a commit, or finds that there is nothing to make (`None`), and points a ref at it. When this
/// returns, commit and ref are on disk, and complete.
pub fn keep(
    git: &Git,
    name: Name<'_>,
    mut make: impl FnMut(Making) -> Result<Option<Oid>, GitError>,
) -> Result<Option<Oid>, GitError> {
    let (mut making, mut old) = (Making::First, name.old);
    let mut failure = None;
    for _ in 0..TRIES {
        match keep_once(git, name.refname, name.why, &mut old, || make(making)) {
            Err(error) if is_about_an_object(&error) => {
                (making, failure) = (Making::Again, Some(error));
            }
            done => return done,
        }
    }
    Err(failure.expect("every try ended with a failure"))
}

fn keep_once(
    git: &Git,
    refname: &str,
    why: &str,
    old: &mut Option<Oid>,
    make: impl FnOnce() -> Result<Option<Oid>, GitError>,
) -> Result<Option<Oid>, GitError> {
    let Some(commit) = make()? else { return Ok(None) };
    flush::objects(git)?;
    if old.as_ref() != Some(&commit) {
        match git.move_ref(refname, &commit, old.as_ref(), why)? {
            Moved::Moved => *old = Some(commit.clone()),
            Moved::Lost { current: Some(current) } => {
                return Err(GitError::RefTaken { refname: refname.to_owned(), current });
            }
            Moved::Lost { current: None } => {
                return Err(GitError::NoRef { refname: refname.to_owned() });
            }
        }
    }
    check(git, &commit, &[format!("{commit}^@")])?;
    Ok(Some(commit))
}

/// Whether everything is there that a commit with a ref has and others have not, and will stay.
pub(crate) fn check(git: &Git, commit: &Oid, others: &[String]) -> Result<(), GitError> {
    wait_for_gc(git);
    let mut call = git.call().args(&["rev-list", "--objects", "--quiet", commit.as_str(), "--not"]);
    for other in others {
        call = call.arg(other);
    }
    call.run().map(drop)
}

/// A gc that began before the ref was there does not know it.
fn wait_for_gc(git: &Git) {
    let lock = git.common_dir().join("gc.pid");
    let Ok(running) = file::read(&lock) else { return };
    let began = Instant::now();
    while is_alive(&running) && began.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
        if file::read(&lock).ok().as_ref() != Some(&running) {
            return;
        }
    }
}

/// Whether the process in a `gc.pid` (`<pid> <host>`) runs on this host.
fn is_alive(running: &[u8]) -> bool {
    let text = String::from_utf8_lossy(running);
    let mut words = text.split_whitespace();
    let pid = words.next().and_then(|word| word.parse().ok()).and_then(Pid::from_raw);
    let here = rustix::system::uname();
    let on_this_host = words.next().is_some_and(|host| here.nodename().to_str() == Ok(host));
    on_this_host && pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Whether git failed because it does not have an object, as far as its words tell.
pub(crate) fn is_about_an_object(error: &GitError) -> bool {
    let GitError::Failed { stderr, .. } = error else { return false };
    let gone =
        ["object", "missing", "unable to read", "ould not read", "ould not parse", "revision"];
    let full = ["No space left", "ermission denied", "insufficient permission"];
    let says = |signs: &[&str]| signs.iter().any(|sign| stderr.contains(sign));
    (says(&gone) || stderr.contains("error building trees")) && !says(&full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gc_is_alive_on_its_own_host_only() {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let own = std::process::id();
        assert!(is_alive(format!("{own} {host}").as_bytes()));
        assert!(!is_alive(format!("{own} another-{host}").as_bytes()));
        assert!(!is_alive(format!("{} {host}", i32::MAX).as_bytes()));
        assert!(!is_alive(b"torn"));
    }
}
