//! Paths and addresses as text. Paths are bytes to git and text in an event: what is no text is
//! quoted, and reads back.

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

/// The path that [`shown`] showed.
pub(crate) fn unshown(text: &str) -> PathBuf {
    let Some(quoted) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return PathBuf::from(text);
    };
    let mut bytes = Vec::new();
    let mut rest = quoted.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'x') => {
                let digit = |b: Option<u8>| b.and_then(|b| (b as char).to_digit(16)).unwrap_or(0);
                let (high, low) = (digit(rest.next()), digit(rest.next()));
                bytes.push((high * 16 + low) as u8);
            }
            Some(other) => bytes.push(other),
            None => {}
        }
    }
    path(&bytes)
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
    fn paths_come_back_from_their_text() {
        for name in
            [&b"plain"[..], b"a\nb", b"\"quoted\"", b"caf\xe9\\\"\n\x01", "naïve".as_bytes()]
        {
            assert_eq!(unshown(&shown(name)), path(name));
        }
        assert_eq!(shown(b"a b"), "a b");
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
