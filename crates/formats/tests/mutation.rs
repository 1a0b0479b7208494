//! A bounded, repeatable mutation run over every format: fixtures with pieces of every format cut out and put in
//! anywhere, and files made to cost time or memory. `PITON_FULL=1` runs it for long, `PITON_MUTATIONS=N` for
//! N files a format, and `PITON_SEED` from elsewhere.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]
#![expect(
    clippy::disallowed_methods,
    reason = "fixtures are files, and a slow reader is found by a clock"
)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "figures of a run are for people")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use piton_core::plan::PlanFormat;
use survive::survive;

mod survive;

const BOUNDED: u64 = 400;
const FULL: u64 = 150_000;
/// The most memory that any of it may take, in KiB.
const MEMORY_MAX: u64 = 1 << 20;

/// Small, repeatable, and good enough.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap()
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn is_full() -> bool {
    std::env::var_os("PITON_FULL").is_some()
}

/// The fixtures of a format, by what they are read as.
fn fixtures(format: PlanFormat) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut folders: Vec<PathBuf> = vec![root];
    let mut all = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_string_lossy().into_owned();
            let is_own = match format {
                PlanFormat::Toml => name.ends_with("native.toml"),
                PlanFormat::Yaml => name.ends_with("native.yaml"),
                PlanFormat::Json => name.ends_with("native.json"),
                PlanFormat::Markdown => name.ends_with("tasks.md") || name.ends_with("crlf.md"),
                PlanFormat::Tug => name.contains("tug-"),
                PlanFormat::AutoClaude => name.contains("/auto-claude/"),
                PlanFormat::Epic => name.contains("/epic/"),
                PlanFormat::Prodigy => name.contains("/prodigy/"),
                PlanFormat::Specification => name.contains("/spec/"),
            };
            match path.is_dir() {
                true => folders.push(path),
                false if is_own => all.push(fs::read(path).unwrap()),
                false => {}
            }
        }
    }
    assert!(!all.is_empty(), "{format:?} has no fixture");
    all.sort();
    all
}

const PIECES: [&str; 56] = [
    "- [x] ",
    "- [ ] ",
    "  - [/] ",
    "\n",
    "\n\n",
    "  ",
    "\t",
    "#### Step 3: x {#step-1}\n",
    "### Step 2.1\n",
    "| #step-1 | a | done | b |\n",
    "|",
    "---",
    "{#",
    "}",
    "{",
    "[",
    "]",
    "\"",
    "'",
    "'''",
    ",",
    ":",
    ": ",
    "- ",
    "&a ",
    "*a",
    "<<: *a",
    "!!str ",
    "? ",
    "\r\n",
    "\r",
    "\u{feff}",
    "\0",
    "ä",
    "\u{2028}",
    "null",
    "true",
    "~",
    "\"status\": \"done\"",
    "\"passes\": 1",
    "**Depends on:** #step-2\n",
    "**Tasks:**\n",
    "```\n",
    "~~~\n",
    "<!--",
    "-->",
    "- shell: x\n",
    "foreach: [a, b]\n",
    "${item.a}",
    "${",
    "1e999",
    "-9223372036854775809",
    "\\",
    "\\u",
    "\\ud800",
    "=",
];

/// One change: cut, put in, double, swap, blow up.
fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let end = (at + random.below(40)).min(bytes.len());
    match random.below(10) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => {
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part.repeat(1 + random.below(30)));
        }
        3 => {
            let other = random.of(others);
            let from = random.below(other.len());
            let to = (from + random.below(400)).min(other.len());
            bytes.splice(at..at, other[from..to].iter().copied());
        }
        4 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = u8::try_from(random.below(256)).unwrap();
            }
        }
        5 => {
            let piece = random.of(&PIECES).repeat(1 + random.below(300));
            bytes.splice(at..at, piece.bytes());
        }
        // Whole lines are what line formats are made of.
        6 => {
            let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
            let (one, other) = (random.below(lines.len()), random.below(lines.len()));
            if !lines.is_empty() {
                lines.swap(one, other);
            }
            *bytes = lines.concat();
        }
        _ => drop(bytes.splice(at..end, random.of(&PIECES).bytes()).collect::<Vec<_>>()),
    }
}

/// The most memory that this process has had, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let row = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    row.and_then(|row| row.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Reads a file; says how long that took.
fn timed(bytes: &[u8], format: PlanFormat) -> Duration {
    let start = Instant::now();
    survive(bytes, format);
    start.elapsed()
}

/// Names the file that breaks a reader: it can be read again from there.
struct Culprit<'a>(&'a [u8], PlanFormat);

impl Drop for Culprit<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = std::env::temp_dir().join(format!("piton-{}-culprit", self.1.as_str()));
            let _ = fs::write(&path, self.0);
            eprintln!("{:?}: {}", self.1, path.display());
        }
    }
}

fn run(format: PlanFormat) {
    let all = fixtures(format);
    let count = number("PITON_MUTATIONS").unwrap_or(if is_full() { FULL } else { BOUNDED });
    let mut random = Random(number("PITON_SEED").unwrap_or(0x9e37_79b9_7f4a_7c15) | 1);
    let mut slowest = Duration::ZERO;
    for _ in 0..count {
        let mut bytes = random.of(&all).clone();
        for _ in 0..=random.below(8) {
            mutate(&mut bytes, &all, &mut random);
        }
        let culprit = Culprit(&bytes, format);
        let time = timed(&bytes, format);
        assert!(!is_full() || time < Duration::from_secs(1), "{time:?} for {} bytes", bytes.len());
        drop(culprit);
        slowest = slowest.max(time);
    }
    let peak = peak();
    assert!(peak < MEMORY_MAX, "{peak} KiB");
    println!("{}: {count} files, the slowest {slowest:?}, {peak} KiB", format.as_str());
}

macro_rules! each_format {
    ($($name:ident: $format:ident;)*) => {$(
        #[test]
        fn $name() {
            run(PlanFormat::$format);
        }
    )*};
}

each_format! {
    toml_survives: Toml;
    yaml_survives: Yaml;
    json_survives: Json;
    markdown_survives: Markdown;
    tug_survives: Tug;
    auto_claude_survives: AutoClaude;
    epic_survives: Epic;
    prodigy_survives: Prodigy;
    specification_survives: Specification;
}

/// What a file is filled up to: what grows with the square is plain to see in it.
const FILLED: usize = 1 << 18;

/// A file of one piece after another.
fn filled(head: &str, piece: impl Fn(usize) -> String, tail: &str) -> String {
    let mut text = head.to_owned();
    for number in 0.. {
        let piece = piece(number);
        if text.len() + piece.len() + tail.len() > FILLED {
            break;
        }
        text.push_str(&piece);
    }
    text + tail
}

/// Files whose cost would grow faster than their size.
fn costly() -> Vec<(&'static str, String)> {
    let long = "x".repeat(FILLED / 2);
    let bomb = (1..30).fold("a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned(), |text, n| {
        format!("{text}a{n}: &a{n} [{}]\n", format!("*a{}, ", n - 1).repeat(8))
    });
    let text_bomb =
        filled(&format!("a: &a {}\nb:\n", "x".repeat(FILLED / 2)), |_| "- *a\n".to_owned(), "");
    let fan = |items: &str, more: &str| {
        format!(
            "name: x\ncommands:\n- foreach:\n    foreach: [{items}]\n    do: [{{shell: '{more}'}}]\n"
        )
    };
    let deep = ["[", "{a: ", "- ", "{\"a\":[", "a = [", "> ", "[[", "a.b.", "'''", "\"\"\""];
    let mut all: Vec<(&'static str, String)> = vec![
        ("alias bomb", bomb),
        ("text bomb", text_bomb),
        ("nested tasks", (0..700).map(|n| format!("{}- [ ] x\n", " ".repeat(n))).collect()),
        ("one task of many parts", filled("- [ ] x\n", |_| " - [ ] y\n".to_owned(), "")),
        ("tasks", filled("", |_| "- [ ] a\n".to_owned(), "")),
        (
            "tasks below a long heading",
            filled(&format!("# {long}\n"), |_| "- [ ] a\n".to_owned(), ""),
        ),
        ("groups", filled("", |n| format!("# g{n}\n- [ ] a\n"), "")),
        ("tug steps", filled("", |n| format!("### Step {n}\n"), "")),
        ("tug parts", filled("### Step 1\n", |n| format!("### Step 1.{n}\n"), "")),
        ("tug orphans", filled("### Step 1\n", |n| format!("### Step {n}.1\n"), "")),
        ("tug title", filled(&format!("## {long}\n"), |n| format!("### Step {n}\n"), "")),
        ("tug items", filled("### Step 1\n", |_| "- [ ] a\n".to_owned(), "")),
        ("tug needs", filled("### Step 1\n**Depends on:** ", |_| "#step-1 ".to_owned(), "\n")),
        (
            "tug ledger",
            filled(
                "### Step 1: t {#s}\n### Step Status Ledger\n|Step|Title|Status|\n|-|-|-|\n",
                |n| format!("|#a{n}|t|done|\n"),
                "",
            ),
        ),
        (
            "phases",
            filled(
                "{\"phases\":[",
                |n| format!("{{\"id\":\"p{n}\",\"subtasks\":[{{}}]}},"),
                "{}]}",
            ),
        ),
        (
            "a long phase",
            filled(
                &format!("{{\"phases\":[{{\"description\":\"{long}\",\"subtasks\":["),
                |_| "{},".to_owned(),
                "{}]}]}",
            ),
        ),
        (
            "many dependencies",
            filled(
                "{\"phases\":[{\"id\":1,\"subtasks\":[{},{}]},{\"id\":2,\"subtasks\":[{},{}],\"depends_on\":[",
                |_| "1,".to_owned(),
                "1]}]}",
            ),
        ),
        (
            "crossings",
            filled(
                "{\"phases\":[{\"phaseId\":\"a\",\"sprints\":[{},{},{}]},{\"phaseId\":\"b\",\"sprints\":[{}]}],\
                 \"crossPhaseDependencies\":[",
                |_| "{\"from\":\"a\",\"to\":\"b\"},".to_owned(),
                "{\"from\":\"a\",\"to\":\"b\"}]}",
            ),
        ),
        (
            "sprints",
            filled(
                "{\"sprints\":[",
                |n| format!("{{\"id\":{n},\"dependencies\":[\"sprint 1\"]}},"),
                "{}]}",
            ),
        ),
        ("items of a fan-out", fan(&"a,".repeat(100_000), "echo ${item}")),
        ("a long fan-out", fan(&"a,".repeat(10_000), &"y".repeat(FILLED))),
        (
            "two fan-outs",
            format!("{}{}", fan(&"a,".repeat(9_000), "x"), &fan(&"b,".repeat(9_000), "x")[18..]),
        ),
        ("workflow", filled("commands:\n", |_| "- shell: x\n".to_owned(), "")),
        (
            "environment",
            filled("commands: [{shell: x}, {shell: y}]\nenv:\n", |n| format!(" a{n}: b\n"), ""),
        ),
        (
            "gaps",
            filled(
                "## Priority Loop State\n## Gap Priority Queue\n|Priority|Gap ID|Question|Status|\n|-|-|-|-|\n",
                |n| format!("|Critical|G-{n}|q|pending|\n"),
                "",
            ),
        ),
        ("wide", format!("[{}{{}}]", "{},".repeat(80_000))),
        ("hashes", "#".repeat(FILLED)),
        ("bars", "|".repeat(FILLED)),
        ("brackets", "- [".repeat(FILLED / 3)),
        ("steps", filled("[plan]\nname='x'\n", |n| format!("[[step]]\nid='s{n}'\nrun='x'\n"), "")),
        ("NUL", "- [ ] a\0b\n".to_owned()),
        ("ten megabytes", "- [ ] a\n".repeat(10 * 131_072)),
        ("marks", "\u{feff}\u{feff}- [ ] a\r\n\r\r\n- [ ] b\r".to_owned()),
    ];
    all.extend(deep.map(|piece| (piece, piece.repeat(50_000))));
    all
}

/// Whatever a file is made of: read in a time and with a memory that its size explains.
#[test]
fn costly_files_are_survived() {
    let mut rows = Vec::new();
    for (name, text) in costly() {
        for format in PlanFormat::ALL {
            let culprit = Culprit(text.as_bytes(), format);
            let time = timed(text.as_bytes(), format);
            drop(culprit);
            rows.push((time, name, format));
        }
    }
    rows.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
    for (time, name, format) in rows.iter().take(12) {
        println!("{time:?} {name}, read as {}", format.as_str());
    }
    let peak = peak();
    assert!(peak < MEMORY_MAX, "{peak} KiB");
    println!("{peak} KiB");
}
