//! The script as data: from lines of text to actions, once, before anything is done. Knows the
//! spelling of actions and nothing of their effects.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Write {
        path: PathBuf,
        text: String,
    },
    Append {
        path: PathBuf,
        text: String,
    },
    Delete(PathBuf),
    Commit(String),
    Print(String),
    Sleep(Duration),
    Await(PathBuf),
    Hang,
    Touch(PathBuf),
    Pid(PathBuf),
    Count(PathBuf),
    Alone(PathBuf),
    Env {
        name: String,
        path: PathBuf,
    },
    DumpPrompt(PathBuf),
    Sh(String),
    IgnoreTerm,
    TermExit(u8),
    Grandchild {
        path: PathBuf,
        traits: Vec<Trait>,
    },
    Exit(u8),
    /// Something that a model or its server says, in the agent's dialect.
    Say(Word),
    Spin,
    LongLine(usize),
    KillSelf(Signal),
    Once {
        path: PathBuf,
        action: Box<Action>,
    },
    Nth {
        path: PathBuf,
        starts: Starts,
        action: Box<Action>,
    },
}

/// What is said in a dialect.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The model has answered.
    Answer,
    /// The turn is over.
    Result,
    /// So many tasks go on behind the turn.
    Background(usize),
    /// The server refused with this status and text; the agent ends as the real one does.
    Error { status: u16, text: String },
    /// A usage limit that is over in so many milliseconds, in numbers where the dialect has them.
    Limit(u64),
}

/// How a grandchild makes itself hard to find or to end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trait {
    Setsid,
    CloseFds,
    ClearEnv,
    IgnoreTerm,
    Writes(PathBuf),
}

/// Which starts of the script a condition means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Starts {
    Only(usize),
    From(usize),
}

impl Starts {
    pub(crate) fn include(&self, start: usize) -> bool {
        match self {
            Starts::Only(n) => start == *n,
            Starts::From(n) => start >= *n,
        }
    }
}

/// Actions, one a line or separated by `;`.
pub(crate) fn parse_statements(text: &str) -> Result<Vec<Action>, String> {
    let mut statements = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        match c {
            ';' | '\n' if !escaped => statements.push(String::new()),
            _ => statements.last_mut().expect("never empty").push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    statements.iter().filter_map(|statement| parse_line(statement).transpose()).collect()
}

/// One action, or none for an empty line and a comment.
pub(crate) fn parse_line(line: &str) -> Result<Option<Action>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut words = Words { line, left: line };
    let action = parse_action(&mut words)?;
    words.must_be_used_up()?;
    Ok(Some(action))
}

fn parse_action(words: &mut Words<'_>) -> Result<Action, String> {
    let verb = words.word()?;
    Ok(match verb.as_str() {
        "write" => Action::Write { path: words.path()?, text: words.line_of_text() },
        "append" => Action::Append { path: words.path()?, text: words.line_of_text() },
        "delete" => Action::Delete(words.path()?),
        "commit" => Action::Commit(words.rest()),
        "print" => Action::Print(words.rest() + "\n"),
        "sleep" => Action::Sleep(Duration::from_millis(words.number()?)),
        "await" => Action::Await(words.path()?),
        "hang" => Action::Hang,
        "touch" => Action::Touch(words.path()?),
        "pid" => Action::Pid(words.path()?),
        "count" => Action::Count(words.path()?),
        "alone" => Action::Alone(words.path()?),
        "env" => Action::Env { name: words.word()?, path: words.path()? },
        "dump-prompt" => Action::DumpPrompt(words.path()?),
        "sh" => Action::Sh(words.verbatim()),
        "ignore-term" => Action::IgnoreTerm,
        "term-exit" => Action::TermExit(words.number()?),
        "grandchild" => Action::Grandchild { path: words.path()?, traits: parse_traits(words)? },
        "exit" => Action::Exit(words.number()?),
        "answer" => Action::Say(Word::Answer),
        "result" => Action::Say(Word::Result),
        "background" => Action::Say(Word::Background(words.number()?)),
        "error" => Action::Say(Word::Error { status: words.number()?, text: words.rest() }),
        "limit" => Action::Say(Word::Limit(words.number()?)),
        "spin" => Action::Spin,
        "long-line" => Action::LongLine(words.number()?),
        "kill-self" => Action::KillSelf(parse_signal(&words.word()?)?),
        "once" => Action::Once {
            path: PathBuf::from(words.before_colon()?),
            action: Box::new(parse_action(words)?),
        },
        "nth" => Action::Nth {
            path: words.path()?,
            starts: parse_starts(&words.before_colon()?)?,
            action: Box::new(parse_action(words)?),
        },
        unknown => return Err(format!("unknown action {unknown:?}; see --help")),
    })
}

/// The options of a grandchild, up to the end of the line.
fn parse_traits(words: &mut Words<'_>) -> Result<Vec<Trait>, String> {
    let mut traits = Vec::new();
    while !words.is_used_up() {
        traits.push(match words.word()?.as_str() {
            "setsid" => Trait::Setsid,
            "closefds" => Trait::CloseFds,
            "clearenv" => Trait::ClearEnv,
            "ignore-term" => Trait::IgnoreTerm,
            "writes" => Trait::Writes(words.path()?),
            unknown => return Err(format!("a grandchild has no option {unknown:?}")),
        });
    }
    Ok(traits)
}

fn parse_starts(word: &str) -> Result<Starts, String> {
    let (digits, from) = match word.strip_suffix('+') {
        Some(digits) => (digits, true),
        None => (word, false),
    };
    let n =
        digits.parse().map_err(|_| format!("nth needs a number such as 2 or 2+, not {word:?}"))?;
    Ok(if from { Starts::From(n) } else { Starts::Only(n) })
}

fn parse_signal(name: &str) -> Result<Signal, String> {
    Ok(match name.strip_prefix("SIG").unwrap_or(name) {
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "QUIT" => Signal::QUIT,
        "ABRT" => Signal::ABORT,
        "KILL" => Signal::KILL,
        "SEGV" => Signal::SEGV,
        "PIPE" => Signal::PIPE,
        "TERM" => Signal::TERM,
        "STOP" => Signal::STOP,
        _ => return Err(format!("unknown signal {name:?}")),
    })
}

/// What is left of a line, taken word by word.
struct Words<'l> {
    line: &'l str,
    left: &'l str,
}

impl<'l> Words<'l> {
    fn is_used_up(&self) -> bool {
        self.left.is_empty()
    }

    fn must_be_used_up(&self) -> Result<(), String> {
        match self.left {
            "" => Ok(()),
            left => Err(format!("{left:?} is too much in {:?}", self.line)),
        }
    }

    fn word(&mut self) -> Result<String, String> {
        if self.is_used_up() {
            return Err(format!("something is missing at the end of {:?}", self.line));
        }
        let mut escaped = false;
        let end = self.left.find(|c: char| {
            let ends = c.is_whitespace() && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let (word, left) = self.left.split_at(end.unwrap_or(self.left.len()));
        self.left = left.trim_start();
        Ok(unescape(word))
    }

    fn path(&mut self) -> Result<PathBuf, String> {
        self.word().map(PathBuf::from)
    }

    fn number<N: std::str::FromStr>(&mut self) -> Result<N, String> {
        let word = self.word()?;
        word.parse().map_err(|_| format!("{word:?} is not a fitting number in {:?}", self.line))
    }

    fn before_colon(&mut self) -> Result<String, String> {
        let word = self.word()?;
        match word.strip_suffix(':') {
            Some(word) => Ok(word.to_owned()),
            None => Err(format!("a colon is missing after {word:?} in {:?}", self.line)),
        }
    }

    fn verbatim(&mut self) -> String {
        std::mem::take(&mut self.left).to_owned()
    }

    fn rest(&mut self) -> String {
        unescape(std::mem::take(&mut self.left))
    }

    fn line_of_text(&mut self) -> String {
        match self.is_used_up() {
            true => String::new(),
            false => self.rest() + "\n",
        }
    }
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match (c, c == '\\') {
            (c, false) => c,
            _ => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('e') => '\u{1b}',
                Some(c) => c,
                None => '\\',
            },
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_separated_by_semicolons_that_are_not_escaped() {
        assert_eq!(
            parse_statements("print a\\;b; # note\n exit 3 ;; print x\\ny"),
            Ok(vec![
                Action::Print("a;b\n".into()),
                Action::Exit(3),
                Action::Print("x\ny\n".into()),
            ])
        );
    }

    #[test]
    fn conditions_wrap_actions() {
        assert_eq!(
            parse_statements("once /a\\ b: nth c 2+: write d e  f"),
            Ok(vec![Action::Once {
                path: "/a b".into(),
                action: Box::new(Action::Nth {
                    path: "c".into(),
                    starts: Starts::From(2),
                    action: Box::new(Action::Write { path: "d".into(), text: "e  f\n".into() }),
                }),
            }])
        );
    }

    #[test]
    fn mistakes_are_named() {
        let mistake = |line| parse_line(line).expect_err("a mistake");
        assert_eq!(mistake("dance"), "unknown action \"dance\"; see --help");
        assert_eq!(mistake("sleep soon"), "\"soon\" is not a fitting number in \"sleep soon\"");
        assert_eq!(mistake("touch a b"), "\"b\" is too much in \"touch a b\"");
        assert_eq!(mistake("touch"), "something is missing at the end of \"touch\"");
        assert_eq!(mistake("once a exit 1"), "a colon is missing after \"a\" in \"once a exit 1\"");
    }
}
