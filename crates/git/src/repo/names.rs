//! Paths and addresses as text. Paths are bytes to git and text in an event: what is no text is
//! quoted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

pub fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// A path of this machine in an answer, as [`shown`] has it.
pub fn text(path: &Path) -> String {
    shown(bytes(path))
}

/// A path for an event: as it is when it is text, else quoted.
pub fn shown(bytes: &[u8]) -> String {
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

/// Whether git takes a name into a tree. It refuses what some file system would take for `.git`, and a
/// link in the place of a file that it reads itself.
pub(crate) fn is_allowed(name: &[u8], is_link: bool) -> bool {
    let after = |stem: &[u8]| match name.get(..stem.len()) {
        Some(start) if start.eq_ignore_ascii_case(stem) => name.get(stem.len()..),
        _ => None,
    };
    let is_dot_git = |rest: &[u8]| {
        let rest = rest.iter().find(|&&byte| byte != b' ' && byte != b'.');
        rest.is_none_or(|&byte| byte == b':' || byte == b'\\')
    };
    let like = [b".git".as_slice(), b"git~1"].into_iter().filter_map(after).any(is_dot_git);
    let module = is_link && name.eq_ignore_ascii_case(b".gitmodules");
    !like && !module && !matches!(name, b"" | b"." | b"..")
}

/// A path as git reads it in a stream of commands.
pub(crate) fn quoted(path: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::with_capacity(path.len() + 2);
    quoted.push(b'"');
    for &byte in path {
        match byte {
            b'\n' => quoted.extend_from_slice(b"\\n"),
            b'"' | b'\\' => quoted.extend_from_slice(&[b'\\', byte]),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'"');
    quoted
}

/// Paths in a record that is written down, as hexadecimal digits: text cannot hold all of them.
pub mod as_hex {
    use super::*;

    pub fn serialize<S: Serializer>(paths: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
        let digits =
            |path: &Vec<u8>| -> String { path.iter().map(|byte| format!("{byte:02x}")).collect() };
        to.collect_seq(paths.iter().map(digits))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
        let all = Vec::<String>::deserialize(from)?;
        let path =
            |digits: &String| bytes(digits).ok_or_else(|| D::Error::custom("not a path in hex"));
        all.iter().map(path).collect()
    }

    fn bytes(digits: &str) -> Option<Vec<u8>> {
        let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        pairs.iter().map(byte).collect()
    }
}

/// A path in an answer or a record: text as it is, anything else quoted, and read back as the same bytes.
pub mod as_text {
    use super::*;

    /// One path, or several, or none.
    pub trait Paths {
        fn written<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;
    }

    impl Paths for PathBuf {
        fn written<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_str(&shown(super::bytes(self)))
        }
    }

    impl Paths for Option<PathBuf> {
        fn written<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            match self {
                Some(path) => path.written(to),
                None => to.serialize_none(),
            }
        }
    }

    impl Paths for Vec<PathBuf> {
        fn written<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.collect_seq(self.iter().map(|path| shown(super::bytes(path))))
        }
    }

    pub fn serialize<P: Paths, S: Serializer>(paths: &P, to: S) -> Result<S::Ok, S::Error> {
        paths.written(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = read_back(&text).ok_or_else(|| D::Error::custom("not a quoted path"))?;
        Ok(path(&bytes))
    }

    /// What [`shown`] was given.
    pub(super) fn read_back(text: &str) -> Option<Vec<u8>> {
        let Some(rest) = text.strip_prefix('"') else { return Some(text.as_bytes().to_vec()) };
        let (mut rest, mut bytes) = (rest.strip_suffix('"')?.bytes(), Vec::new());
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'\\' => match rest.next()? {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'x' => {
                        let digits = [rest.next()?, rest.next()?];
                        u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                    }
                    other => other,
                },
                other => other,
            });
        }
        Some(bytes)
    }
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
    fn what_is_quoted_reads_back() {
        for bytes in [&b"/a b"[..], b"/caf\xe9\n\t\"\\'", b"\"quoted\"", "/naïve".as_bytes(), b""]
        {
            assert_eq!(as_text::read_back(&shown(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(as_text::read_back(r#""a\x6"#), None);
    }

    #[test]
    fn paths_in_hex_come_back_or_are_refused() {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        struct HexRow(#[serde(with = "as_hex")] Vec<Vec<u8>>);
        let read = |text: &str| serde_json::from_str::<HexRow>(text).ok();
        let paths = HexRow(vec![b"caf\xe9\n".to_vec(), b"a/b".to_vec()]);
        let text = serde_json::to_string(&paths).expect("it can be written");
        assert_eq!(text, r#"["636166e90a","612f62"]"#);
        assert_eq!(read(&text), Some(paths));
        // Whoever left out a torn path would put back everything, where it was the only one.
        for torn in [r#"["612f6"]"#, r#"["61zz"]"#, r#"["6é"]"#] {
            assert_eq!(read(torn), None, "{torn}");
        }
    }

    #[test]
    fn names_that_git_refuses_are_known() {
        for bad in [".git", ".GIT", "git~1", "GIT~1 .", ".git::$INDEX", ".."] {
            assert!(!is_allowed(bad.as_bytes(), false), "{bad}");
        }
        for good in [".gitignore", "git~2", ".gitx", "git", "a\\b", ".gitmodules"] {
            assert!(is_allowed(good.as_bytes(), false), "{good}");
        }
        assert!(!is_allowed(b".gitmodules", true));
        assert_eq!(quoted(b"a\n\"\\\xe9"), b"\"a\\n\\\"\\\\\xe9\"");
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
