//! What an agent printed: read from its pipe, redacted, capped, and otherwise verbatim on disk. The
//! cap bounds the file, never the agent: of what is beyond it only the end is looked at.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use piton_git::file::private;

/// The end of an output that is kept in memory for records and briefs.
const TAIL_BYTES: usize = 2 * 1024;
/// How much of an output's end is redacted once nothing more is kept: enough that what is cut off at
/// its beginning is nowhere near the tail.
const END_BYTES: usize = 64 * 1024;
/// As much as a pipe holds.
const CHUNK_BYTES: usize = 64 * 1024;
/// A value shorter than this is no secret worth a false alarm.
const SECRET_BYTES: usize = 8;

/// Copies a pipe into a file until it ends; returns the end of what was read.
pub(crate) fn record(
    mut from: impl Read,
    path: &Path,
    cap: u64,
    secrets: &Secrets,
) -> io::Result<String> {
    let mut sink = TranscriptSink::open(path, cap)?;
    let mut redactor = Redactor { secrets, swallowing: None };
    // What was read and not written: the beginning of what may be a secret, or the end of it all.
    let mut pending: Vec<u8> = Vec::new();
    let mut clean: Vec<u8> = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        pending.extend_from_slice(&chunk[..read]);
        if sink.is_full() {
            if pending.len() > 2 * END_BYTES {
                pending.drain(..pending.len() - END_BYTES);
            }
            continue;
        }
        // An unfinished line is shown at once: people follow prompts and progress.
        let done = redactor.redact(&pending, More::Follows, &mut clean);
        pending.drain(..done);
        sink.write(&clean);
        clean.clear();
    }
    redactor.redact(&pending, More::Nothing, &mut clean);
    sink.write(&clean);
    Ok(sink.tail())
}

struct TranscriptSink {
    file: File,
    left: u64,
    tail: VecDeque<u8>,
}

impl TranscriptSink {
    fn open(path: &Path, cap: u64) -> io::Result<TranscriptSink> {
        let mut file = private(path)?;
        let have = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        Ok(TranscriptSink { file, left: cap.saturating_sub(have), tail: VecDeque::new() })
    }

    fn is_full(&self) -> bool {
        self.left == 0
    }

    fn write(&mut self, bytes: &[u8]) {
        let end = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let excess = (self.tail.len() + end.len()).saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
        self.tail.extend(end);
        if self.is_full() || bytes.is_empty() {
            return;
        }
        let fits = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        // A full disk must not stop the agent's pipe: the transcript ends, the work goes on.
        if self.file.write_all(&bytes[..fits]).is_err() {
            self.left = 0;
            return;
        }
        self.left -= fits as u64;
        if self.is_full() {
            let _full = self.file.write_all(b"\n[piton: the transcript's limit is reached]\n");
        }
    }

    fn tail(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Values that must not reach a disk, with the names they are shown by.
#[derive(Debug, Clone)]
pub(crate) struct Secrets {
    /// The longest first: what begins with another one is found as a whole.
    known: Vec<(Vec<u8>, String)>,
    /// Bytes that a secret begins with: everything else is passed over.
    first: [bool; 256],
}

/// Credentials that are recognised without knowing their value: how they begin, and which bytes they have
/// beside letters, digits, `_` and `-`.
const PREFIXES: &[(&str, &[u8])] = &[
    ("sk-ant-", b""),
    ("sk-proj-", b""),
    ("sk_live_", b""),
    ("sk_test_", b""),
    ("rk_live_", b""),
    ("whsec_", b""),
    ("ghp_", b""),
    ("gho_", b""),
    ("github_pat_", b""),
    ("AKIA", b""),
    ("xoxb-", b""),
    ("xoxp-", b""),
    ("glpat-", b""),
    // A JSON Web Token: `{"` and what follows, three times.
    ("eyJ", b"."),
    ("https://hooks.slack.com/services/", b"/"),
    ("https://discord.com/api/webhooks/", b"/"),
];
const PREFIXED_BYTES: usize = 16;

/// Addresses that may have a password before the host.
const SCHEMES: &[&str] = &[
    "postgres://",
    "postgresql://",
    "mysql://",
    "redis://",
    "rediss://",
    "mongodb://",
    "mongodb+srv://",
    "amqp://",
    "amqps://",
];
/// A longer one has no password that anybody typed.
const AUTHORITY_BYTES: usize = 1024;

impl Secrets {
    /// Values of variables whose names say that they are secret.
    pub(crate) fn of_environment(variables: impl Iterator<Item = (String, String)>) -> Secrets {
        const SECRET_NAMES: [&str; 10] = [
            "KEY",
            "TOKEN",
            "SECRET",
            "PASSWORD",
            "PASSWD",
            "PGPASS",
            "_PASS",
            "CREDENTIAL",
            "DATABASE_URL",
            "WEBHOOK",
        ];
        let secret = |(name, value): &(String, String)| {
            let name = name.to_ascii_uppercase();
            value.len() >= SECRET_BYTES && SECRET_NAMES.iter().any(|part| name.contains(part))
        };
        let known = variables.filter(secret).map(|(name, value)| (value.into_bytes(), name));
        let mut known: Vec<(Vec<u8>, String)> = known.collect();
        known.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        let mut first = [false; 256];
        let values = known.iter().map(|(value, _)| value.as_slice());
        let patterns = PREFIXES.iter().map(|(prefix, _)| prefix).chain(SCHEMES);
        for begin in values.chain(patterns.map(|begin| begin.as_bytes())) {
            first[usize::from(begin[0])] = true;
        }
        Secrets { known, first }
    }

    /// What is at the beginning of these bytes.
    fn at(&self, bytes: &[u8], more: More) -> SecretAt<'_> {
        let cut = |whole: &[u8]| more == More::Follows && whole.starts_with(bytes);
        for (value, name) in &self.known {
            if bytes.starts_with(value) {
                return SecretAt::Known { length: value.len(), name };
            }
            if cut(value) {
                return SecretAt::Cut;
            }
        }
        for (prefix, also) in PREFIXES.iter().map(|(prefix, also)| (prefix.as_bytes(), *also)) {
            if cut(prefix) {
                return SecretAt::Cut;
            }
            let Some(rest) = bytes.strip_prefix(prefix) else { continue };
            match prefix.len() + token_length(rest, also) {
                length if length >= prefix.len() + PREFIXED_BYTES => {
                    return SecretAt::Token { length, also };
                }
                length if length == bytes.len() && more == More::Follows => return SecretAt::Cut,
                _ => {}
            }
        }
        for scheme in SCHEMES.iter().map(|scheme| scheme.as_bytes()) {
            if cut(scheme) {
                return SecretAt::Cut;
            }
            let Some(rest) = bytes.strip_prefix(scheme) else { continue };
            let ends = |byte: &u8| byte.is_ascii_whitespace() || b"/\"'`<>".contains(byte);
            let end = rest.iter().position(ends);
            let authority = &rest[..end.unwrap_or(rest.len()).min(AUTHORITY_BYTES)];
            match authority.iter().rposition(|byte| *byte == b'@') {
                Some(at) if authority[..at].contains(&b':') => {
                    return SecretAt::Login { length: scheme.len() + at };
                }
                _ if end.is_none() && more == More::Follows && rest.len() < AUTHORITY_BYTES => {
                    return SecretAt::Cut;
                }
                _ => {}
            }
        }
        SecretAt::Nothing
    }
}

impl Default for Secrets {
    fn default() -> Secrets {
        Secrets::of_environment(std::iter::empty())
    }
}

/// Whether anything comes after a piece of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    Follows,
    Nothing,
}

enum SecretAt<'a> {
    Nothing,
    Known {
        length: usize,
        name: &'a str,
    },
    Token {
        length: usize,
        also: &'static [u8],
    },
    /// Everything of an address before its host.
    Login {
        length: usize,
    },
    /// What is here may be the beginning of a secret.
    Cut,
}

/// One pass over an output, piece by piece.
struct Redactor<'a> {
    secrets: &'a Secrets,
    /// A token was redacted at the end of the last piece: its rest, of these bytes too, is part of it.
    swallowing: Option<&'static [u8]>,
}

impl Redactor<'_> {
    /// Appends a piece without its secrets; returns how much of it was dealt with. The rest begins
    /// with what may be a secret.
    fn redact(&mut self, piece: &[u8], more: More, clean: &mut Vec<u8>) -> usize {
        let mut at = 0;
        if let Some(also) = self.swallowing {
            at = token_length(piece, also);
            self.swallowing = Some(also).filter(|_| at == piece.len());
        }
        let mut copied = at;
        while let Some(next) = self.candidate(&piece[at..]) {
            at += next;
            let mut open = None;
            let (length, shown) = match self.secrets.at(&piece[at..], more) {
                SecretAt::Nothing => {
                    at += 1;
                    continue;
                }
                SecretAt::Cut => {
                    clean.extend_from_slice(&piece[copied..at]);
                    return at;
                }
                SecretAt::Known { length, name } => (length, format!("[redacted {name}]")),
                SecretAt::Token { length, also } => {
                    open = Some(also);
                    (length, "[redacted]".to_owned())
                }
                SecretAt::Login { length } => (length, "[redacted]".to_owned()),
            };
            clean.extend_from_slice(&piece[copied..at]);
            clean.extend_from_slice(shown.as_bytes());
            self.swallowing = open.filter(|_| at + length == piece.len());
            at += length;
            copied = at;
        }
        clean.extend_from_slice(&piece[copied..]);
        piece.len()
    }

    /// Where a secret may begin.
    fn candidate(&self, bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|byte| self.secrets.first[usize::from(*byte)])
    }
}

fn token_length(bytes: &[u8], also: &[u8]) -> usize {
    let part = |byte: &&u8| {
        byte.is_ascii_alphanumeric() || matches!(**byte, b'_' | b'-') || also.contains(byte)
    };
    bytes.iter().take_while(part).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(input: &[u8], cap: u64, secrets: &Secrets) -> (Vec<u8>, String) {
        let home = tempfile::tempdir().expect("a temporary folder");
        let path = home.path().join("t");
        let tail = record(input, &path, cap, secrets).expect("recorded");
        (std::fs::read(&path).expect("written"), tail)
    }

    fn secrets() -> Secrets {
        let variables = [("API_KEY", "hunter2hunter2"), ("HOME", "/home/somebody")];
        Secrets::of_environment(variables.iter().map(|(n, v)| ((*n).into(), (*v).into())))
    }

    #[test]
    fn bytes_are_verbatim() {
        let input = b"a\r\n\xff\x00b\n\x1b[31mred";
        assert_eq!(recorded(input, 1000, &Secrets::default()).0, input);
    }

    #[test]
    fn the_cap_bounds_the_file_and_the_tail_is_of_the_end() {
        let input = [vec![b'x'; 5000], b"the end\n".to_vec()].concat();
        let (file, tail) = recorded(&input, 100, &Secrets::default());
        assert!(file.starts_with(&[b'x'; 100]) && file.len() < 200, "{}", file.len());
        assert!(tail.ends_with("the end\n") && tail.len() == TAIL_BYTES);
    }

    #[test]
    fn known_values_and_sure_patterns_are_redacted_and_nothing_else() {
        let (file, tail) = recorded(
            b"key hunter2hunter2, home /home/somebody\ntoken ghp_0123456789abcdefghij ok\nAKIA no\n",
            1000,
            &secrets(),
        );
        let expected =
            "key [redacted API_KEY], home /home/somebody\ntoken [redacted] ok\nAKIA no\n";
        assert_eq!(String::from_utf8_lossy(&file), expected);
        assert_eq!(tail, expected);
    }

    #[test]
    fn well_known_credentials_and_logins_are_redacted() {
        let check = |text: &str, expected: &str| {
            let (file, _) = recorded(text.as_bytes(), 1000, &Secrets::default());
            assert_eq!(String::from_utf8_lossy(&file), expected);
        };
        check("k sk_live_51H8abcdefghijklmnop;", "k [redacted];");
        check("t eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_123 u", "t [redacted] u");
        check("curl https://hooks.slack.com/services/T000/B000/abcdefghijk '", "curl [redacted] '");
        check("psql postgres://me:hunter2@db/x", "psql [redacted]@db/x");
        check("at redis://cache:6379/0 and eyJ no", "at redis://cache:6379/0 and eyJ no");
        let variables = [("DATABASE_URL", "postgres://db/secret"), ("PGPASS", "hunter2hunter2")];
        let secrets =
            Secrets::of_environment(variables.iter().map(|(n, v)| ((*n).into(), (*v).into())));
        let (file, _) = recorded(b"postgres://db/secret hunter2hunter2", 1000, &secrets);
        assert_eq!(String::from_utf8_lossy(&file), "[redacted DATABASE_URL] [redacted PGPASS]");
    }

    #[test]
    fn a_secret_cut_by_a_read_is_still_found() {
        struct Bytewise<'a>(&'a [u8]);
        impl Read for Bytewise<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
                buffer[0] = *first;
                self.0 = rest;
                Ok(1)
            }
        }
        let home = tempfile::tempdir().expect("a temporary folder");
        let path = home.path().join("t");
        let input = b"x hunter2hunter2 y sk-ant-abcdefghijklmnop1234 z";
        record(Bytewise(input), &path, 1000, &secrets()).expect("recorded");
        let file = std::fs::read_to_string(&path).expect("text");
        assert_eq!(file, "x [redacted API_KEY] y [redacted] z");
    }

    #[test]
    fn a_value_of_several_lines_and_a_token_without_end_are_redacted() {
        let variables = [("PEM_KEY", "--begin--\nline\n--end--"), ("MY_TOKEN", "--begin--")];
        let secrets =
            Secrets::of_environment(variables.iter().map(|(n, v)| ((*n).into(), (*v).into())));
        let token = "a".repeat(3 * CHUNK_BYTES);
        let input = format!("x --begin--\nline\n--end-- y --begin-- sk-ant-{token} z --begin-");
        let (file, _) = recorded(input.as_bytes(), 1000, &secrets);
        let expected = "x [redacted PEM_KEY] y [redacted MY_TOKEN] [redacted] z --begin-";
        assert_eq!(String::from_utf8_lossy(&file), expected);
    }

    #[test]
    fn what_is_beyond_the_cap_has_a_redacted_tail() {
        let secret = "key hunter2hunter2 and sk-ant-abcdefghijklmnop1234\n";
        let input = [vec![b'x'; 5 * CHUNK_BYTES], secret.repeat(10_000).into_bytes()].concat();
        let (file, tail) = recorded(&input, 100, &secrets());
        assert!(file.len() < 200, "{}", file.len());
        assert!(tail.ends_with("key [redacted API_KEY] and [redacted]\n"), "{tail}");
        assert!(!tail.contains("hunter2") && !tail.contains("sk-ant"), "{tail}");
        assert_eq!(tail.len(), TAIL_BYTES);
    }

    /// However an output is cut into pieces, the same is kept.
    #[test]
    fn pieces_make_no_difference() {
        struct Pieces<'a>(&'a [u8], usize);
        impl Read for Pieces<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let (now, rest) = self.0.split_at(self.1.min(self.0.len()));
                buffer[..now.len()].copy_from_slice(now);
                self.0 = rest;
                Ok(now.len())
            }
        }
        let input = b"redis://u:p@h postgres://a/b eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOi.x sk-ghp_AKI hunter2hunter hunter2hunter2hunter2 xoxb-0123456789abcdef-gh\n\
                      AKIAAKIA0123456789abcdef github_pat_ sk-proj-hunter2hunter2hunter2 s";
        let (whole, _) = recorded(input, 1000, &secrets());
        for size in 1..40 {
            let home = tempfile::tempdir().expect("a temporary folder");
            let path = home.path().join("t");
            record(Pieces(input, size), &path, 1000, &secrets()).expect("recorded");
            assert_eq!(
                String::from_utf8_lossy(&std::fs::read(&path).expect("written")),
                String::from_utf8_lossy(&whole),
                "in pieces of {size}"
            );
        }
    }
}
