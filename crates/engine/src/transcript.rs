//! What an agent printed: read from its pipe, redacted, capped, and otherwise verbatim on disk. The
//! cap bounds the file, never the agent: what is beyond it is read and dropped.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::attempt::private;

/// The end of an output that is kept in memory for records and briefs.
const TAIL_BYTES: usize = 2 * 1024;
/// A line longer than this is handled in pieces.
const LINE_BYTES: usize = 64 * 1024;
/// A value shorter than this is no secret worth a false alarm.
const SECRET_BYTES: usize = 8;

/// Copies a pipe into a file until it ends; returns the end of what was read.
pub(crate) fn record(
    mut from: impl Read,
    path: &Path,
    cap: u64,
    secrets: &Secrets,
) -> io::Result<String> {
    let mut sink = Sink::open(path, cap)?;
    let mut line: Vec<u8> = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let read = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for piece in chunk[..read].split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || line.len() >= LINE_BYTES {
                sink.write(&secrets.redact(&line))?;
                line.clear();
            }
        }
        // An unfinished line is shown at once: people follow prompts and progress.
        if !line.is_empty() && !secrets.may_begin_in(&line) {
            sink.write(&secrets.redact(&line))?;
            line.clear();
        }
    }
    sink.write(&secrets.redact(&line))?;
    Ok(sink.tail())
}

struct Sink {
    file: File,
    left: u64,
    tail: VecDeque<u8>,
}

impl Sink {
    fn open(path: &Path, cap: u64) -> io::Result<Sink> {
        let mut file = private(path)?;
        let have = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        Ok(Sink { file, left: cap.saturating_sub(have), tail: VecDeque::new() })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tail.extend(bytes.iter().copied());
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
        if self.left == 0 {
            return Ok(());
        }
        let fits = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        // A full disk must not stop the agent's pipe: the transcript ends, the work goes on.
        if self.file.write_all(&bytes[..fits]).is_err() {
            self.left = 0;
            return Ok(());
        }
        self.left -= fits as u64;
        if self.left == 0 {
            let _full = self.file.write_all(b"\n[piton: the transcript's limit is reached]\n");
        }
        Ok(())
    }

    fn tail(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Values that must not reach a disk, with the names they are shown by.
#[derive(Debug, Clone, Default)]
pub(crate) struct Secrets {
    known: Vec<(Vec<u8>, String)>,
}

/// Beginnings of credentials that are recognised without knowing their value.
const PREFIXES: &[&str] =
    &["sk-ant-", "sk-proj-", "ghp_", "gho_", "github_pat_", "AKIA", "xoxb-", "glpat-"];
const PREFIXED_BYTES: usize = 16;

impl Secrets {
    /// Values of variables whose names say that they are secret.
    pub(crate) fn of_environment(variables: impl Iterator<Item = (String, String)>) -> Secrets {
        const SECRET_NAMES: [&str; 6] =
            ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];
        let secret = |(name, value): &(String, String)| {
            let name = name.to_ascii_uppercase();
            value.len() >= SECRET_BYTES && SECRET_NAMES.iter().any(|part| name.contains(part))
        };
        let known = variables.filter(secret).map(|(name, value)| (value.into_bytes(), name));
        Secrets { known: known.collect() }
    }

    /// Whether a secret could be cut in two at the end of this piece of a line.
    fn may_begin_in(&self, line: &[u8]) -> bool {
        let begins = |secret: &[u8]| {
            (1..=secret.len().min(line.len())).any(|n| line[line.len() - n..] == secret[..n])
        };
        self.known.iter().any(|(value, _)| begins(value))
            || PREFIXES.iter().any(|prefix| {
                begins(prefix.as_bytes())
                    || find(line, prefix.as_bytes())
                        .is_some_and(|at| token_end(line, at) == line.len())
            })
    }

    fn redact(&self, line: &[u8]) -> Vec<u8> {
        let mut line = line.to_vec();
        for (value, name) in &self.known {
            let shown = format!("[redacted {name}]").into_bytes();
            let mut from = 0;
            while let Some(at) = find(&line[from..], value).map(|at| at + from) {
                line.splice(at..at + value.len(), shown.iter().copied());
                from = at + shown.len();
            }
        }
        for prefix in PREFIXES {
            let mut from = 0;
            while let Some(at) = find(&line[from..], prefix.as_bytes()).map(|at| at + from) {
                let end = token_end(&line, at);
                if end - at >= prefix.len() + PREFIXED_BYTES {
                    line.splice(at..end, b"[redacted]".iter().copied());
                }
                from = at + 1;
            }
        }
        line
    }
}

fn token_end(line: &[u8], from: usize) -> usize {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'-';
    from + line[from..].iter().take_while(|byte| part(byte)).count()
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    if needle.is_empty() {
        return None;
    }
    haystack.windows(needle.len()).position(|window| window == needle)
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
}
