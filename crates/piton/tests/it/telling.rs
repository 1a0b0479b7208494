//! What people and agents are told, with the real binary: how things stand, and what to type next. Every
//! command that is quoted has the real run, step and claim in it, is one that the parser takes, and works
//! where it is said to.

mod holders;
mod pasted;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Mutex;

use piton::reference::accepts;
use piton_testkit::runs::data;
use piton_testkit::{Output, Place, Sandbox, Typed};
use serde_json::Value;

/// Words that stand for something in a usage line, and for nothing in a command.
const PLACEHOLDERS: [&str; 15] = [
    "RUN", "STEP", "PLAN", "PATH", "WHY", "ITEM", "SUBSTEP", "ANSWER", "NAME", "TEXT", "VERB",
    "OID", "ID", "DIR", "FOLDER",
];

/// What stands for words that only the reader has.
const YOUR_WORDS: &str = "'…'";

/// What only looks.
const LOOKS: [&str; 20] = [
    "piton show",
    "piton status",
    "piton log",
    "piton questions",
    "piton ready",
    "piton plan check",
    "piton plan show",
    "piton snapshot list",
    "piton snapshot show",
    "piton worktree list",
    "piton diff",
    "piton doctor",
    "piton undo --list",
    "piton clean",
    "piton agent list",
    "piton agent check",
    "ls",
    "ps",
    "git log",
    "git branch",
];

/// What is between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// A command line as a shell reads it.
#[track_caller]
fn words(command: &str) -> Vec<String> {
    let script = format!("set -f -- {command}; printf '%s\\n' \"$@\"");
    let read = Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert!(read.status.success(), "{command}");
    String::from_utf8(read.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// The commands of piton's that a hint quotes, each in its words.
#[track_caller]
pub(crate) fn commands(hint: &str) -> Vec<Vec<String>> {
    let own = quoted(hint).into_iter().filter(|command| command.starts_with("piton "));
    own.map(words).collect()
}

/// Every command in a text can be pasted.
#[track_caller]
pub(crate) fn assert_pasteable(text: &str) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for word in text.split(|c: char| !is_word(c)) {
        assert!(!PLACEHOLDERS.contains(&word), "{word} is nobody's name: {text}");
    }
    assert_accepted(text);
}

/// Every command in a text is one that the parser takes.
#[track_caller]
fn assert_accepted(text: &str) {
    for command in commands(text) {
        accepts(&command).unwrap_or_else(|why| panic!("{command:?} is no command: {why}\n{text}"));
    }
}

/// Whatever a piton advises, in any test, can be typed and leads on. What only looks is typed there and then;
/// the rest in a copy of the sandbox.
pub(crate) fn assert_hints(place: &Place, output: &Output) {
    if output.signal.is_some() {
        return;
    }
    let answer: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    let issues = answer["issues"].as_array().into_iter().flatten();
    let hints = issues.filter_map(|issue| issue["hint"].as_str());
    let lines = output.stderr.lines().filter(|line| line.starts_with("hint: "));
    for hint in hints.chain(lines) {
        assert_accepted(hint);
        let mut before = String::new();
        for (n, text) in hint.split('`').enumerate().skip(1).step_by(2) {
            let command = text.replace(YOUR_WORDS, "'so'");
            let by_hand = hint.split('`').nth(n - 1).is_some_and(comes_after_work);
            if is_command(&command) && is_new(&command) && !by_hand {
                assert_leads_on(place, output, &before, &command);
            }
            before.push_str(&format!("{command} >&2; "));
        }
    }
}

/// Whether the words before a command tell the reader to do something first.
fn comes_after_work(words: &str) -> bool {
    ["then ", "then: ", "and "].iter().any(|end| words.ends_with(end))
}

/// A command does what it is said for, alone or after those that are said before it.
fn assert_leads_on(place: &Place, said: &Output, before: &str, command: &str) {
    if looks(command) {
        let seen = place.typed(command);
        let answers = seen.code.is_some_and(|code| code == 0 || may_end(command, code));
        assert!(answers, "{command}\n{seen}\nas this said:\n{said}");
        return;
    }
    let refused = |typed: &Typed| match typed {
        Typed::Ended(out) => out.code != Some(0) && is_refused(command, said, out),
        Typed::Works | Typed::Busy | Typed::Shut => false,
    };
    let typed = place.typed_in_a_copy(command);
    if refused(&typed) && !before.is_empty() {
        let typed = place.typed_in_a_copy(&format!("{before}{command}"));
        assert!(!refused(&typed), "{before}{command}\n{typed:#?}\nas this said:\n{said}");
    } else {
        assert!(!refused(&typed), "{command}\n{typed:#?}\nas this said:\n{said}");
    }
}

/// Whether a command is no command, or is refused as what was typed before it. A step may fail again, and
/// `trust` asks on a terminal.
fn is_refused(command: &str, said: &Output, out: &Output) -> bool {
    match (out.code, error_code(out).as_deref()) {
        (None | Some(2 | 126 | 127), _) => true,
        (_, None | Some("E069")) => false,
        (_, code) => code == error_code(said).as_deref() && !command.starts_with("piton trust "),
    }
}

fn error_code(output: &Output) -> Option<String> {
    let answer: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    let told = output.stderr.split_once("error[").and_then(|(_, rest)| rest.get(..4));
    answer["issues"][0]["code"].as_str().or(told).map(str::to_owned)
}

/// Not just a word of a plan's.
fn is_command(quoted: &str) -> bool {
    quoted.contains(' ')
        && !quoted.starts_with("ls ")
        && !quoted.starts_with('-')
        && !quoted.ends_with(" -f")
}

/// Whether a command was not typed yet in this test.
fn is_new(command: &str) -> bool {
    static TYPED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    TYPED.lock().expect("no test goes on after a panic").insert(command.to_owned())
}

/// Whether a command changes nothing.
fn looks(command: &str) -> bool {
    let is = |verb: &&str| {
        command.strip_prefix(*verb).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let dry = command.ends_with("--help") || command.ends_with("--dry-run");
    let acts = command.contains("--apply") || command.contains("--repair");
    dry || LOOKS.iter().any(is) && !acts || command.ends_with(" status")
}

/// How a look ends at something bad.
fn may_end(command: &str, code: i32) -> bool {
    match command.split(' ').nth(1) {
        Some("plan") => code == 65,
        Some("doctor") => matches!(code, 1 | 74),
        _ => false,
    }
}

/// A command that is refused with this code; its hint, which can be pasted.
#[track_caller]
pub(crate) fn hint(sandbox: &Sandbox, code: &str, args: &[&str]) -> String {
    let out = sandbox.piton(args).arg("--json").output();
    let told = out.json();
    assert_eq!(told["issues"][0]["code"], code, "{args:?}\n{out}");
    let hint = told["issues"][0]["hint"].as_str();
    let hint = hint.unwrap_or_else(|| panic!("no hint: {out}")).to_owned();
    assert_pasteable(&hint);
    hint
}

/// Does what a hint says: its n-th command.
#[track_caller]
pub(crate) fn paste(sandbox: &Sandbox, hint: &str, n: usize) -> Value {
    let commands = commands(hint);
    let command = commands.get(n).unwrap_or_else(|| panic!("no command {n}: {hint}"));
    let words = command[1..].iter().map(String::as_str).filter(|word| *word != "--json");
    data(sandbox, &words.collect::<Vec<_>>())
}
