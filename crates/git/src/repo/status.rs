//! Reads `git status`, the one look at a worktree that tells HEAD, branch, index and files in a
//! single process.

use piton_core::ids::Oid;

use super::{Answer, Call, GitError};

/// How far untracked files are spelled out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StatusDepth {
    /// A new folder is one entry.
    Folders,
    /// Every untracked file.
    Files,
    /// Ignored ones too; a folder that is ignored as a whole is one entry.
    Everything,
}

/// What `git status` saw.
#[derive(Default)]
pub struct Status {
    pub head: Option<Oid>,
    /// The branch's short name; `None` when HEAD is detached.
    pub branch: Option<String>,
    pub tracked: Vec<Tracked>,
    /// Folders end in a slash.
    pub untracked: Vec<Vec<u8>>,
    /// Only where they were asked for.
    pub ignored: Vec<Vec<u8>>,
}

impl Status {
    /// The untracked repositories within the worktree, where every file was asked for.
    pub fn into_repositories(self) -> Vec<Vec<u8>> {
        self.untracked.into_iter().filter(|path| is_repository(path)).collect()
    }
}

/// Whether an untracked path is a repository of its own, where every file was asked for: git names no
/// other folder then.
pub(crate) fn is_repository(path: &[u8]) -> bool {
    path.ends_with(b"/")
}

/// A tracked path that differs between HEAD, index and worktree.
pub struct Tracked {
    pub path: Vec<u8>,
    /// The index against the worktree.
    pub(crate) unstaged: u8,
    pub(crate) unmerged: bool,
    /// Nothing is on disk.
    pub(crate) gone: bool,
}

/// Looks; takes no lock and writes nothing unless the call allows optional locks.
pub fn status(call: Call, depth: StatusDepth) -> Result<Status, GitError> {
    let words = ["status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--no-ahead-behind"];
    let call = call.args(&words).arg("--ignore-submodules=dirty");
    let call = match depth {
        StatusDepth::Folders => call.args(&["--untracked-files=normal", "--ignored=no"]),
        StatusDepth::Files => call.args(&["--untracked-files=all", "--ignored=no"]),
        StatusDepth::Everything => call.args(&["--untracked-files=all", "--ignored=matching"]),
    };
    parse(&call.run()?)
}

fn parse(answer: &Answer) -> Result<Status, GitError> {
    let mut status = Status::default();
    for part in answer.parts() {
        let known = match part.first() {
            Some(b'#') => header(&mut status, &part[1..]),
            Some(b'1') => tracked(part, 8).map(|entry| status.tracked.push(entry)),
            Some(b'u') => tracked(part, 10).map(|entry| status.tracked.push(entry)),
            Some(b'?') => part.get(2..).map(|path| status.untracked.push(path.to_vec())),
            Some(b'!') => part.get(2..).map(|path| status.ignored.push(path.to_vec())),
            _ => None,
        };
        let unknown = || GitError::unexpected("git status", String::from_utf8_lossy(part));
        known.ok_or_else(unknown)?;
    }
    Ok(status)
}

fn header(status: &mut Status, text: &[u8]) -> Option<()> {
    let text = std::str::from_utf8(text).ok()?.trim_start();
    match text.split_once(' ') {
        Some(("branch.oid", "(initial)")) => {}
        Some(("branch.oid", id)) => status.head = Some(Oid::new(id).ok()?),
        Some(("branch.head", "(detached)")) => {}
        Some(("branch.head", name)) => status.branch = Some(name.to_owned()),
        _ => {}
    }
    Some(())
}

/// `1 XY sub mH mI mW hH hI path` or `u XY sub m1 m2 m3 mW h1 h2 h3 path`.
/// The path comes last and may itself contain spaces.
fn tracked(part: &[u8], fields: usize) -> Option<Tracked> {
    let mut words = part.splitn(fields + 1, |&b| b == b' ');
    let unmerged = words.next()? == b"u";
    let &[_staged, unstaged] = words.next()? else { return None };
    let mode = words.nth(if unmerged { 4 } else { 3 })?;
    Some(Tracked {
        path: words.last().filter(|path| !path.is_empty())?.to_vec(),
        unstaged,
        unmerged,
        gone: mode == b"000000",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_entry_is_read() {
        let id = "0".repeat(40);
        let text = format!(
            "# branch.oid {id}\0# branch.head piton/x/run\0\
             1 .M N... 100644 100644 100644 {id} {id} a b\0\
             1 .D N... 100644 100644 000000 {id} {id} gone\0\
             1 A. S... 000000 160000 160000 {id} {id} nested\0\
             u UU N... 100644 100644 100644 100644 {id} {id} {id} both sides\0\
             ? new\nline\0? nested2/\0! target/\0"
        );
        let answer = Answer { code: 0, stdout: text.into_bytes(), stderr: String::new() };
        let status = parse(&answer).expect("well formed");
        assert_eq!(status.branch.as_deref(), Some("piton/x/run"));
        let shown: Vec<_> = status
            .tracked
            .iter()
            .map(|entry| {
                let path = String::from_utf8_lossy(&entry.path).into_owned();
                (path, entry.unstaged as char, entry.unmerged, entry.gone)
            })
            .collect();
        let expected = [
            ("a b", 'M', false, false),
            ("gone", 'D', false, true),
            ("nested", '.', false, false),
            ("both sides", 'U', true, false),
        ];
        assert_eq!(shown, expected.map(|(path, y, u, g)| (path.to_owned(), y, u, g)));
        assert_eq!(status.untracked, [b"new\nline".to_vec(), b"nested2/".to_vec()]);
        assert_eq!(status.ignored, [b"target/".to_vec()]);
    }

    #[test]
    fn an_unknown_entry_is_an_error() {
        let answer = Answer { code: 0, stdout: b"9 what\0".to_vec(), stderr: String::new() };
        assert!(matches!(parse(&answer), Err(GitError::Unexpected { .. })));
    }
}
