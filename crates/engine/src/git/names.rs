//! Paths and addresses as text. Paths are bytes to git and text in an event: what is no text is
//! quoted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

pub(crate) fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// A path for an event: as it is when it is text, else quoted.
pub(crate) fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with('"') => text.to_owned(),
        _ => format!("\"{}\"", bytes.escape_ascii()),
    }
}

/// Whether a path from a tree stays within the worktree and outside its git directory.
pub(crate) fn is_inside(path: &Path) -> bool {
    let plain = |part: Component<'_>| match part {
        Component::Normal(name) => !name.eq_ignore_ascii_case(".git"),
        _ => false,
    };
    !path.as_os_str().is_empty() && path.components().all(plain)
}

/// An address without user, password and query.
pub(crate) fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let path = path.split(['?', '#']).next().unwrap_or(path);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_quoted() {
        assert_eq!(shown(b"a b"), "a b");
        assert_eq!(shown("naïve".as_bytes()), "naïve");
        assert_eq!(shown(b"\"quoted\""), r#""\"quoted\"""#);
        assert_eq!(shown(b"caf\xe9\n"), r#""caf\xe9\n""#);
    }

    #[test]
    fn addresses_lose_their_credentials() {
        let check = |url, bare| assert_eq!(without_credentials(url), bare);
        check("https://me:secret@host/x.git", "https://host/x.git");
        check("https://tok@en@host:8/x?token=1#y", "https://host:8/x");
        check("ssh://git@host/x", "ssh://host/x");
        check("git@host:x.git", "git@host:x.git");
        check("/srv/x.git", "/srv/x.git");
    }

    #[test]
    fn only_paths_within_the_worktree_are_inside() {
        for good in ["a", "a/b", "-x", ".gitignore"] {
            assert!(is_inside(Path::new(good)), "{good}");
        }
        for bad in ["", "/a", "../a", "a/../b", ".git/config", "a/.GIT/x"] {
            assert!(!is_inside(Path::new(bad)), "{bad}");
        }
    }
}
