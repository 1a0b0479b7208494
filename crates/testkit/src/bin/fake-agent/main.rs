//! A scripted stand-in for a coding agent, for tests of the real `piton` binary. It reads its whole
//! script first, so that a script with a mistake has no effect, then acts line by line. It knows
//! nothing of piton but the environment variable that names the prompt's file.
//!
//! ```text
#![doc = include_str!("help.txt")]
//! ```

mod act;
mod grandchild;
mod script;
mod speak;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use act::Agent;
use script::{Action, parse_line, parse_statements};
use speak::Asked;

/// The script or the command line cannot be read.
const USAGE: u8 = 64;
/// An action could not be carried out.
const FAILED: u8 = 70;

/// Names the file with the prompt of the attempt.
const PROMPT_FILE: &str = "PITON_PROMPT_FILE";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.peek().is_some_and(|word| word == grandchild::FLAG) {
        return ended(grandchild::live(words.skip(1).collect()));
    }
    match invocation(words) {
        Ok(Invocation::Help) => ended(say(include_str!("help.txt"))),
        Ok(Invocation::Act(script, asked)) => ended(match asked.begin() {
            Ok(Ok(speech)) => Agent::new().run(&script, speech.as_ref()),
            Ok(Err(status)) => Ok(status),
            Err(problem) => Err(problem),
        }),
        Err(problem) => complain(USAGE, &problem),
    }
}

enum Invocation {
    Help,
    Act(Vec<Action>, Asked),
}

fn invocation(mut words: impl Iterator<Item = String>) -> Result<Invocation, String> {
    let mut script = None;
    let mut asked = Asked::default();
    while let Some(word) = words.next() {
        let mut next = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--help" | "-h" => return Ok(Invocation::Help),
            "-e" => script = Some(parse_statements(&next()?)?),
            "--speak" => asked.dialect = Some(next()?),
            "--sessions" => asked.folder = next()?.into(),
            "--session-id" => asked.preset = Some(next()?),
            "--resume" => asked.resume = Some(next()?),
            "--prompt" => script = Some(script_in_prompt(&prompt()?)?),
            other => return Err(format!("unknown argument {other:?}; see --help")),
        }
    }
    let act = |script| Invocation::Act(script, asked);
    script.map(act).ok_or("no script: give -e or --prompt; see --help".into())
}

fn script_in_prompt(prompt: &str) -> Result<Vec<Action>, String> {
    prompt
        .lines()
        .filter_map(|line| line.strip_prefix("fake: "))
        .filter_map(|line| parse_line(line).transpose())
        .collect()
}

fn prompt() -> Result<String, String> {
    let path = std::env::var_os(PROMPT_FILE).ok_or(format!("{PROMPT_FILE} is not set"))?;
    let path = PathBuf::from(path);
    std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Everything the agent prints goes through here, flushed: a kill must not decide what was said.
fn say(text: &str) -> Result<u8, String> {
    let mut out = io::stdout().lock();
    let said = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    said.map(|()| 0).map_err(|e| format!("stdout: {e}"))
}

fn ended(end: Result<u8, String>) -> ExitCode {
    match end {
        Ok(status) => ExitCode::from(status),
        Err(problem) => complain(FAILED, &problem),
    }
}

fn complain(status: u8, problem: &str) -> ExitCode {
    // Nobody may be listening any more; the exit status still tells.
    let _ = writeln!(io::stderr(), "fake-agent: {problem}");
    ExitCode::from(status)
}
