//! What the model is told to do, and what it answers to one request.
//!
//! ```text
//! shell CMD, background CMD   call the agent's own shell tool, whichever the request offers
//! write FILE TEXT             a shell command that puts one line into FILE
//! say TEXT                    answer TEXT
//! big [KB]                    answer with so much text (256)
//! sleep N, slow N             wait before the first byte; spread the answer over N seconds
//! limit [T] [reset=S]         a usage limit in the vendor's form, lifted in S seconds (3600)
//! rate [T] [reset=S]          a short limit: 429 with retry-after S (2)
//! overload, auth, toolong [T] 529 or 503; 401; 400
//! hang, stall, cut [T]        never answer; half of the answer, then nothing; or then close
//! ```
//!
//! A failure with a count T happens T times, then the script goes on, also when a later prompt repeats it.
//! Steps are parted by `;` in front of one of these words, so a command may itself have one.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::reading::{Message, Request, Role};

const CALLS: [&str; 3] = ["shell", "background", "write"];
const FAILURES: [&str; 8] =
    ["limit", "rate", "overload", "auth", "toolong", "hang", "stall", "cut"];
const OTHERS: [&str; 4] = ["say", "big", "sleep", "slow"];
const SHELL_TOOLS: [&str; 7] =
    ["Bash", "bash", "shell", "shell_command", "exec_command", "run_shell_command", "execute"];
const OPEN: &str = "[[stub:";
const CLOSE: &str = "]]";

/// What one request gets: text, at most one tool call, and how it is delivered.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) call: Option<Call>,
    pub(crate) wait: Duration,
    pub(crate) spread: Duration,
    pub(crate) failure: Option<Failure>,
    /// Where in the script this is, or that it is beside it (titles, routing, summaries).
    pub(crate) place: String,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) arguments: Value,
}

#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) word: &'static str,
    pub(crate) reset: u64,
}

impl Answer {
    /// The text as it is streamed.
    pub(crate) fn pieces(&self) -> Vec<String> {
        let letters: Vec<char> = self.text.chars().collect();
        let size = letters.len().div_ceil(64).max(8);
        letters.chunks(size).map(|piece| piece.iter().collect()).collect()
    }

    pub(crate) fn fails_with(&self, word: &str) -> bool {
        self.failure.as_ref().is_some_and(|failure| failure.word == word)
    }
}

/// Remembers how often each counted failure was served, and nothing else.
#[derive(Default)]
pub(crate) struct Player {
    served: HashMap<(String, usize, usize), u64>,
}

impl Player {
    pub(crate) fn answer(&mut self, request: &Request, id: String) -> Answer {
        let Some(tool) = SHELL_TOOLS.iter().find(|name| request.tools.contains_key(**name)) else {
            let text =
                request.schema.as_ref().map_or("ok".to_owned(), |schema| fill(schema).to_string());
            return Answer { id, text, place: "side".to_owned(), ..Answer::default() };
        };
        let (script, results) = newest(&request.messages);
        let turns = turns(script);
        let steps = turns.get(results.min(turns.len() - 1)).map_or(&[][..], Vec::as_slice);
        let mut answer = Answer { id, place: format!("answer {results}"), ..Answer::default() };
        for (at, (word, rest)) in steps.iter().enumerate() {
            match *word {
                "say" => answer.text.push_str(rest),
                "big" => answer.text.push_str(&filler(number(rest, 256) as usize * 1024)),
                "sleep" => answer.wait += Duration::from_secs(number(rest, 1)),
                "slow" => answer.spread += Duration::from_secs(number(rest, 1)),
                word if CALLS.contains(&word) => {
                    let command = if word == "write" { writing(rest) } else { (*rest).to_owned() };
                    let schema = &request.tools[*tool];
                    let arguments = arguments(schema, &command, word == "background");
                    answer.call = Some(Call { tool: (*tool).to_owned(), arguments });
                }
                word if self.still_fails((script.to_owned(), results, at), rest) => {
                    let usual = if word == "rate" { 2 } else { 3600 };
                    let reset = rest.split_once("reset=").map_or(usual, |(_, n)| number(n, usual));
                    answer.failure = Some(Failure { word, reset });
                    break;
                }
                _ => {}
            }
        }
        if answer.fails_with("stall") || answer.fails_with("cut") || !answer.spread.is_zero() {
            answer.text.push_str(&filler(600));
        } else if answer.text.is_empty() && answer.call.is_none() {
            answer.text.push_str("done");
        }
        answer
    }

    fn still_fails(&mut self, key: (String, usize, usize), rest: &str) -> bool {
        let served = self.served.entry(key).or_default();
        *served += 1;
        !rest.starts_with(|c: char| c.is_ascii_digit()) || *served <= number(rest, 0)
    }
}

/// Every line of a text that has a script in it.
pub(crate) fn prompt_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.contains(OPEN))
}

/// The newest script, and how many tool results came since.
fn newest(messages: &[Message]) -> (&str, usize) {
    let mut results = 0;
    for message in messages.iter().rev() {
        match message.role {
            Role::Tool => results += 1,
            Role::User => {
                let script = message.text.rsplit_once(OPEN).map(|(_, rest)| rest);
                if let Some((script, _)) = script.and_then(|script| script.split_once(CLOSE)) {
                    return (script, results);
                }
            }
            Role::Assistant | Role::System => {}
        }
    }
    ("", results)
}

/// The steps of each answer: a call ends one.
fn turns(script: &str) -> Vec<Vec<(&'static str, &str)>> {
    let mut turns = vec![Vec::new()];
    for step in steps(script) {
        let (word, rest) = step.split_once(char::is_whitespace).unwrap_or((step, ""));
        let Some(word) = known(word) else { continue };
        if let Some(turn) = turns.last_mut() {
            turn.push((word, rest.trim()));
        }
        if CALLS.contains(&word) {
            turns.push(Vec::new());
        }
    }
    turns
}

fn steps(script: &str) -> Vec<&str> {
    let (mut steps, mut from) = (Vec::new(), 0);
    for (at, _) in script.match_indices(';') {
        let next = script[at + 1..].trim_start();
        let word = next.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        if known(word).is_some() {
            steps.push(script[from..at].trim());
            from = at + 1;
        }
    }
    steps.push(script[from..].trim());
    steps
}

fn known(word: &str) -> Option<&'static str> {
    let all = CALLS.iter().chain(&FAILURES).chain(&OTHERS);
    all.copied().find(|known| *known == word)
}

fn number(text: &str, usual: u64) -> u64 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(usual)
}

/// Text that never repeats itself: some agents stop a model that does.
fn filler(letters: usize) -> String {
    let sentences = (1..).map(|n| format!("Sentence {n} of a long answer. "));
    let mut text: String = sentences.take(letters / 28 + 2).collect();
    text.truncate(letters);
    text
}

fn writing(rest: &str) -> String {
    let (file, line) = rest.split_once(' ').unwrap_or((rest, ""));
    format!("printf '%s\\n' '{}' > '{file}'", line.replace('\'', r"'\''"))
}

/// What a shell tool is called with, by its own schema: the command, and a value for all that it requires.
fn arguments(schema: &Value, command: &str, background: bool) -> Value {
    let properties = &schema["properties"];
    let name = ["command", "cmd", "script", "input"];
    let name = name.into_iter().find(|name| properties.get(name).is_some()).unwrap_or("command");
    let mut arguments = filled(schema);
    let words = match kind(&properties[name]).as_str() {
        "array" => json!(["bash", "-c", command]),
        _ => json!(command),
    };
    arguments.insert(name.to_owned(), words);
    for flag in ["run_in_background", "is_background"] {
        if properties.get(flag).is_some() && (background || arguments.contains_key(flag)) {
            arguments.insert(flag.to_owned(), json!(background));
        }
    }
    if properties.get("yield_time_ms").is_some() {
        arguments.insert("yield_time_ms".to_owned(), json!(if background { 1000 } else { 30_000 }));
    }
    Value::Object(arguments)
}

/// A small value that fits a JSON schema.
fn fill(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match kind(schema).as_str() {
        "object" => Value::Object(filled(schema)),
        "array" => json!([]),
        "integer" | "number" => json!(1),
        "boolean" => json!(false),
        _ => json!("stub"),
    }
}

fn filled(schema: &Value) -> Map<String, Value> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    required.map(|name| (name.to_owned(), fill(&schema["properties"][name]))).collect()
}

fn kind(schema: &Value) -> String {
    schema["type"].as_str().unwrap_or("string").to_lowercase()
}
