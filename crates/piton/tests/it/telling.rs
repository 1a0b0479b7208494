//! What people and agents are told, with the real binary: how things stand, and what to type next. Every
//! command that is quoted has the real run, step and claim in it, is one that the parser takes, and works
//! where it is said to.

mod holders;
mod pasted;

use std::process::Command;

use piton::reference::accepts;
use piton_testkit::runs::data;
use piton_testkit::{Output, Sandbox};
use serde_json::Value;

/// Words that stand for something in a usage line, and for nothing in a command.
const PLACEHOLDERS: [&str; 15] = [
    "RUN", "STEP", "PLAN", "PATH", "WHY", "ITEM", "SUBSTEP", "ANSWER", "NAME", "TEXT", "VERB",
    "OID", "ID", "DIR", "FOLDER",
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

/// Whatever a piton advises, in any test, can be typed.
pub(crate) fn assert_hints(output: &Output) {
    if output.signal.is_some() {
        return;
    }
    output.stderr.lines().filter(|line| line.starts_with("hint: ")).for_each(assert_accepted);
    let answer: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    let issues = answer["issues"].as_array().into_iter().flatten();
    issues.filter_map(|issue| issue["hint"].as_str()).for_each(assert_accepted);
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
