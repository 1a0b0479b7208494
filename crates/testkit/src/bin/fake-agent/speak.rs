//! The dialects of real agents, as far as a supervisor hears them: the conversation's id at the beginning,
//! a result at the end, and a refusal where a conversation is not there. Conversations are files in a
//! folder; every start is a line of its journal.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::act::append;
use crate::say;
use crate::script::Word;

/// How this agent speaks, and in which conversation.
pub(crate) struct Speech {
    dialect: String,
    folder: PathBuf,
    session: String,
}

/// What the command line says about it.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) dialect: Option<String>,
    pub(crate) folder: PathBuf,
    pub(crate) preset: Option<String>,
    pub(crate) resume: Option<String>,
}

impl Asked {
    /// Begins or continues a conversation and names it; the status where it is not there.
    pub(crate) fn begin(self) -> Result<Result<Option<Speech>, u8>, String> {
        let Some(dialect) = self.dialect else { return Ok(Ok(None)) };
        let (word, session) = match (self.resume, self.preset) {
            (Some(id), _) => ("resume", id),
            (None, Some(id)) => ("start", id),
            (None, None) => ("start", format!("own-{}", std::process::id())),
        };
        let speech = Speech { dialect, folder: self.folder, session };
        let file = speech.folder.join(&speech.session);
        if word == "resume" && !file.exists() {
            speech.journal("gone")?;
            return speech.refuse().map(Err);
        }
        append(&file, "prompt\n")?;
        speech.journal(word)?;
        let id = &speech.session;
        speech.print(match speech.dialect.as_str() {
            "claude" => format!(r#"{{"type":"system","subtype":"init","session_id":"{id}"}}"#),
            "codex" => format!(
                "{{\"type\":\"thread.started\",\"thread_id\":\"{id}\"}}\n{{\"type\":\"turn.started\"}}"
            ),
            "gemini" => format!(r#"{{"type":"init","session_id":"{id}"}}"#),
            "opencode" => format!(r#"{{"type":"step_start","sessionID":"{id}"}}"#),
            _ => "at work".to_owned(),
        })?;
        Ok(Ok(Some(speech)))
    }
}

impl Speech {
    /// The script came to its end.
    pub(crate) fn end(&self) -> Result<(), String> {
        let id = &self.session;
        self.print(match self.dialect.as_str() {
            "claude" => format!(
                r#"{{"is_error":false,"result":"done","session_id":"{id}","type":"result"}}"#
            ),
            "codex" => r#"{"type":"turn.completed","usage":{"input_tokens":1}}"#.to_owned(),
            "gemini" => r#"{"type":"result","status":"success"}"#.to_owned(),
            "opencode" => {
                format!(r#"{{"type":"step_finish","sessionID":"{id}","part":{{"reason":"stop"}}}}"#)
            }
            _ => "done".to_owned(),
        })
    }

    /// Says something in the dialect; the status where the agent ends with it.
    pub(crate) fn say(&self, word: &Word) -> Result<Option<u8>, String> {
        let id = &self.session;
        let line = match (word, self.dialect.as_str()) {
            (Word::Result, _) => return self.end().map(|()| None),
            (Word::Answer, "claude") => format!(
                r#"{{"type":"assistant","message":{{"model":"fake"}},"session_id":"{id}"}}"#
            ),
            (Word::Answer, "codex") => {
                r#"{"type":"item.completed","item":{"type":"agent_message"}}"#.to_owned()
            }
            (Word::Answer, "gemini") => r#"{"type":"message","role":"assistant"}"#.to_owned(),
            (Word::Answer, "opencode") => format!(r#"{{"type":"text","sessionID":"{id}"}}"#),
            (Word::Answer, _) => "an answer".to_owned(),
            (Word::Background(count), "claude") => {
                let tasks = vec!["{}"; *count].join(",");
                format!(
                    r#"{{"type":"system","subtype":"background_tasks_changed","tasks":[{tasks}]}}"#
                )
            }
            (Word::Background(_), dialect) => return Err(format!("{dialect} has no such line")),
            (Word::Error { status, text }, _) => return self.fail(*status, text, None).map(Some),
            (Word::Limit(ms), dialect) => {
                let over = SystemTime::now() + Duration::from_millis(*ms);
                let over = over.duration_since(UNIX_EPOCH).unwrap_or_default();
                let text = match dialect {
                    "claude" => {
                        self.print(format!(
                            r#"{{"type":"rate_limit_event","rate_limit_info":{{"status":"rejected","resetsAt":{}}}}}"#,
                            over.as_secs() + 1
                        ))?;
                        "You've hit your limit · resets soon (UTC)".to_owned()
                    }
                    "opencode" => "Rate limit exceeded".to_owned(),
                    _ => format!("Usage limit reached|{}", over.as_secs() + 1),
                };
                return self.fail(429, &text, Some(ms / 1000)).map(Some);
            }
        };
        self.print(line).map(|()| None)
    }

    /// The end of a turn that its server refused, with the status of the real agent.
    fn fail(&self, status: u16, text: &str, retry_after: Option<u64>) -> Result<u8, String> {
        let (id, text) = (&self.session, text.replace('"', "'"));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let headers = retry_after.map(|after| format!(r#""retry-after":"{after}""#));
        let (line, code) = match self.dialect.as_str() {
            "claude" => (
                format!(
                    r#"{{"api_error_status":{status},"is_error":true,"result":"{text}","session_id":"{id}","subtype":"success","type":"result"}}"#
                ),
                1,
            ),
            "codex" => (format!(r#"{{"type":"turn.failed","error":{{"message":"{text}"}}}}"#), 1),
            "gemini" => (
                format!(
                    r#"{{"type":"result","status":"error","error":{{"type":"unknown","message":"[API Error: {status}] {text}"}}}}"#
                ),
                u8::try_from(status % 256).unwrap_or(1),
            ),
            "opencode" => (
                format!(
                    r#"{{"type":"error","timestamp":{},"sessionID":"{id}","error":{{"data":{{"statusCode":{status},"message":"{text}","responseHeaders":{{{}}}}}}}}}"#,
                    now.as_millis(),
                    headers.unwrap_or_default()
                ),
                1,
            ),
            // Like aider, which ends with 0 whatever happened.
            _ => (text, 0),
        };
        self.print(line)?;
        Ok(code)
    }

    /// In the words, on the streams and with the status of the real one.
    fn refuse(&self) -> Result<u8, String> {
        let id = &self.session;
        let (words, status) = match self.dialect.as_str() {
            "claude" => {
                let words = format!("No conversation found with session ID: {id}");
                self.print(format!(
                    r#"{{"type":"result","is_error":true,"session_id":"{id}","errors":["{words}"]}}"#
                ))?;
                (words, 1)
            }
            "codex" => (format!("Error: no rollout found for thread id {id}"), 1),
            "gemini" => (format!("Invalid session identifier \"{id}\""), 42),
            "opencode" => ("Error: Session not found".to_owned(), 1),
            _ => (format!("No saved session found with ID {id}"), 1),
        };
        writeln!(std::io::stderr(), "{words}").map_err(|e| format!("stderr: {e}"))?;
        Ok(status)
    }

    fn journal(&self, word: &str) -> Result<(), String> {
        fs::create_dir_all(&self.folder).map_err(|e| format!("sessions: {e}"))?;
        append(&self.folder.join("journal"), &format!("{word} {}\n", self.session))
    }

    fn print(&self, line: String) -> Result<(), String> {
        say(&(line + "\n")).map(drop)
    }
}
