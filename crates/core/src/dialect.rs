//! What an agent says, as far as piton needs it: the id of its conversation, how its turn ended, what keeps
//! it from working, what it cost. One small reader a dialect, line by line; everything else an agent prints
//! is in the transcript and means nothing here. A tool's output is never read for a limit.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::Dialect;
use crate::time::Millis;

pub use trouble::{Trouble, classify};
pub use when::{Here, until};

mod trouble;
mod when;

#[cfg(test)]
mod tests;

/// A longer line is passed over: it is a tool's output.
const LINE_BYTES_MAX: usize = 1024 * 1024;
/// The end of a plain output that is read for what went wrong.
const PLAIN_LINES_MAX: usize = 8;
/// More of what an agent said about its end is not kept.
const MESSAGE_CHARS_MAX: usize = 500;
/// A longer id is none.
const SESSION_BYTES_MAX: usize = 200;

/// What an agent has said so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Its conversation, never from a reply that is only an error.
    pub session: Option<String>,
    /// How its last turn ended; none while it works.
    pub turn: Option<Turn>,
    /// When the limit that it has met is over, where it says so in numbers.
    pub resets_at: Option<Millis>,
    /// Its model has answered: no limit was in the way.
    pub has_answered: bool,
    /// Something that it started goes on behind its turn, and another turn follows.
    pub is_waiting: bool,
    /// The conversation that it was to go on with is not there, or not free.
    pub has_no_conversation: bool,
    pub spent: Spent,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    Done,
    Failed { trouble: Option<Trouble>, message: String },
}

/// What an agent says that it used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// In millionths of a dollar.
    pub cost: Option<u64>,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// Reads what one agent prints.
#[derive(Debug)]
pub struct Reader {
    dialect: Dialect,
    said: Said,
    /// The line so far.
    line: Vec<u8>,
    /// The line is longer than any that is read.
    is_passing: bool,
    /// Of a plain output.
    last: Vec<String>,
    /// The conversation that a plain agent was told to begin: it is there once the agent says anything.
    preset: Option<String>,
}

impl Reader {
    /// `preset` is the id that the agent was told to give its conversation.
    pub fn new(dialect: Dialect, preset: Option<String>) -> Reader {
        let preset = preset.filter(|_| dialect == Dialect::Plain);
        let (said, line, last) = (Said::default(), Vec::new(), Vec::new());
        Reader { dialect, said, line, is_passing: false, last, preset }
    }

    pub fn said(&self) -> &Said {
        &self.said
    }

    /// Whether it has said that its turn is over, and nothing that it started goes on behind that. An error of
    /// opencode is no end: it may go on by itself.
    pub fn is_over(&self) -> bool {
        let is_end = match self.said.turn {
            Some(Turn::Done) => true,
            Some(Turn::Failed { .. }) => self.dialect != Dialect::Opencode,
            None => false,
        };
        is_end && !self.said.is_waiting
    }

    /// The next piece of what it prints.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.grow(&bytes[..end]);
            self.end_line();
            bytes = &bytes[end + 1..];
        }
        self.grow(bytes);
    }

    /// It prints nothing more. A last line that was torn off says nothing, unless it is text.
    pub fn end(&mut self) {
        self.end_line();
        if self.dialect == Dialect::Plain {
            let message = self.last.join("\n");
            let trouble = self.last.iter().rev().find_map(|line| classify(None, line));
            self.said.turn = trouble.map(|trouble| failed(Some(trouble), &message));
        }
    }

    fn grow(&mut self, bytes: &[u8]) {
        if self.line.len() + bytes.len() > LINE_BYTES_MAX {
            self.is_passing = true;
            self.line = Vec::new();
        }
        if !self.is_passing {
            self.line.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_passing) || line.is_empty() {
            return;
        }
        let value = match self.dialect {
            Dialect::Plain => None,
            _ => serde_json::from_slice::<Value>(&line).ok().filter(Value::is_object),
        };
        match (self.dialect, value) {
            (_, None) => self.text(&String::from_utf8_lossy(&line)),
            (Dialect::Claude, Some(value)) => self.claude(&value),
            (Dialect::Codex, Some(value)) => self.codex(&value),
            (Dialect::Gemini, Some(value)) => self.gemini(&value),
            (Dialect::Opencode, Some(value)) => self.opencode(&value),
            (Dialect::Plain, Some(_)) => {}
        }
    }

    /// A line that is no part of the dialect: words for people, most of them on standard error.
    fn text(&mut self, line: &str) {
        match refuses_conversation(line) {
            true => self.said.has_no_conversation = true,
            false => self.said.session = self.preset.take().or(self.said.session.take()),
        }
        if self.dialect == Dialect::Plain && !line.trim().is_empty() {
            self.last.push(line.trim_end().chars().take(MESSAGE_CHARS_MAX).collect());
            let excess = self.last.len().saturating_sub(PLAIN_LINES_MAX);
            self.last.drain(..excess);
        }
    }

    fn claude(&mut self, line: &Value) {
        let said = &mut self.said;
        match text(line, "type") {
            "result" => {
                let is_error = line["is_error"].as_bool().unwrap_or(false);
                said.spent.cost = millionths(&line["total_cost_usd"]).or(said.spent.cost);
                said.spend(&line["usage"], ("input_tokens", "output_tokens"));
                if !is_error {
                    said.session(line, "session_id");
                    said.resets_at = None;
                    said.turn = Some(Turn::Done);
                    return;
                }
                let places = [&line["result"], &line["errors"][0], &line["error"]["message"]];
                let message = places.iter().find_map(|place| place.as_str()).unwrap_or_default();
                said.has_no_conversation |= refuses_conversation(message);
                let status = line["api_error_status"].as_u64();
                said.turn = Some(failed(classify(status, message), message));
            }
            "rate_limit_event" => {
                let info = &line["rate_limit_info"];
                let seconds = info["resetsAt"].as_i64().filter(|_| info["status"] == "rejected");
                said.resets_at = seconds.map(|seconds| Millis(seconds.saturating_mul(1000)));
            }
            "system" if line["subtype"] == "background_tasks_changed" => {
                said.is_waiting = line["tasks"].as_array().is_some_and(|tasks| !tasks.is_empty());
            }
            "system" | "assistant" | "user" => {
                said.session(line, "session_id");
                // What it says itself instead of its model is an error.
                said.has_answered |=
                    text(line, "type") == "assistant" && line["message"]["model"] != "<synthetic>";
                // A task that ends behind the last turn begins another one.
                if matches!(text(line, "subtype"), "" | "init") {
                    said.turn = None;
                }
            }
            _ => {}
        }
    }

    fn codex(&mut self, line: &Value) {
        let said = &mut self.said;
        match text(line, "type") {
            "thread.started" => said.session(line, "thread_id"),
            "turn.started" => said.turn = None,
            "item.started" | "item.completed" => {
                said.has_answered |= text(&line["item"], "type") != "error";
            }
            "turn.completed" => {
                // Of the whole conversation.
                said.spent = Spent::default();
                said.spend(&line["usage"], ("input_tokens", "output_tokens"));
                said.turn = Some(Turn::Done);
            }
            // A line `error` is not the end: the agent says it of every connection that it tries again.
            "turn.failed" => {
                let message = text(&line["error"], "message");
                said.turn = Some(failed(classify(None, message), message));
            }
            _ => {}
        }
    }

    fn gemini(&mut self, line: &Value) {
        let said = &mut self.said;
        match text(line, "type") {
            "init" => said.session(line, "session_id"),
            "result" => {
                said.spend(&line["stats"], ("input_tokens", "output_tokens"));
                let message = text(&line["error"], "message");
                said.turn = Some(match text(line, "status") {
                    "success" => Turn::Done,
                    _ => failed(classify(None, message), message),
                });
            }
            "message" | "tool_use" => {
                said.has_answered |= text(line, "role") != "user";
                said.turn = None;
            }
            _ => {}
        }
    }

    fn opencode(&mut self, line: &Value) {
        let said = &mut self.said;
        let part = &line["part"];
        match text(line, "type") {
            // It may go on by itself after that: only what comes last counts.
            "error" => {
                let data = &line["error"]["data"];
                let message = text(data, "message");
                let waits = text(&data["responseHeaders"], "retry-after").parse::<i64>().ok();
                let at = line["timestamp"].as_i64();
                said.resets_at = at.zip(waits).map(|(at, waits)| Millis(at + waits * 1000));
                said.turn = Some(failed(classify(data["statusCode"].as_u64(), message), message));
            }
            "step_finish" => {
                said.session(line, "sessionID");
                said.spend(&part["tokens"], ("input", "output"));
                let cost = millionths(&part["cost"]).unwrap_or_default();
                said.spent.cost = Some(said.spent.cost.unwrap_or_default() + cost);
                said.turn = (part["reason"] == "stop").then_some(Turn::Done);
            }
            kind => {
                said.session(line, "sessionID");
                said.has_answered |= matches!(kind, "text" | "tool_use");
                said.turn = None;
            }
        }
    }
}

impl Said {
    fn session(&mut self, line: &Value, key: &str) {
        let id = text(line, key);
        if is_session(id) {
            self.session = Some(id.to_owned());
        }
    }

    fn spend(&mut self, usage: &Value, (input, output): (&str, &str)) {
        self.spent.input_tokens += usage[input].as_u64().unwrap_or_default();
        self.spent.output_tokens += usage[output].as_u64().unwrap_or_default();
    }
}

/// Whether this can be handed to a program as the id of a conversation, and not be read as an option.
pub fn is_session(id: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    !id.is_empty()
        && id.len() <= SESSION_BYTES_MAX
        && !id.starts_with('-')
        && id.chars().all(is_part)
}

/// Dollars as millionths.
fn millionths(dollars: &Value) -> Option<u64> {
    let millionths = (dollars.as_f64()? * 1e6).round();
    // A negative number is none, and so is one that no agent can cost.
    (0.0..1e15).contains(&millionths).then_some(millionths as u64)
}

fn failed(trouble: Option<Trouble>, message: &str) -> Turn {
    Turn::Failed { trouble, message: message.chars().take(MESSAGE_CHARS_MAX).collect() }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

/// How agents say that they cannot go on with a conversation.
fn refuses_conversation(line: &str) -> bool {
    const REFUSALS: &[&str] = &[
        "No conversation found with session ID",
        "no rollout found for thread id",
        "already has an active writer",
        "Invalid session identifier",
        "No previous sessions found",
        "Session not found",
        "No saved session found",
        "is already in use",
    ];
    REFUSALS.iter().any(|words| line.contains(words))
}
