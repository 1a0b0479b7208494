//! The only way to the terminal. Data goes to stdout, talk to stderr; `--json` puts one envelope on
//! stdout, for errors too. Colour follows the terminal and `NO_COLOR`; a closed pipe ends a command
//! quietly; nothing asks without a terminal. What others wrote cannot steer the terminal through here.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;

use anstream::{AutoStream, ColorChoice};
use indicatif::{MultiProgress, ProgressDrawTarget};
use piton_engine::pager;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Detail, Issue, Kind, Problem, Severity, unwritten};
use crate::exit::ExitStatus;
use crate::screen::Screen;
use crate::text::{self, harmless};

/// The version of the envelope and of everything in it.
const SCHEMA_VERSION: u32 = 1;

/// Where a command speaks.
pub(crate) struct Ui {
    form: Form,
    /// The verb, as the envelope names it.
    command: Cow<'static, str>,
    live: MultiProgress,
    /// Of stdout: asked for once, not for every line.
    colour: ColorChoice,
    warnings: RefCell<Vec<Issue>>,
    /// Why a part of the answer could not be written; a reader who has gone is no reason.
    unwritten: RefCell<Option<io::Error>>,
}

/// Who reads the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    People,
    Json,
}

/// What somebody said to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Yes,
    No,
    /// There is no terminal to ask on.
    Nobody,
}

impl Said {
    /// The command to type where a person did not agree to what would be done.
    pub(crate) fn or_refuse(self, would: Vec<String>, command: &str) -> Result<(), Problem> {
        let message = match self {
            Said::Yes => return Ok(()),
            Said::No => "nothing was changed",
            Said::Nobody => "it ends a run, and there is no terminal to confirm it on",
        };
        let row = |message| Detail::of(message);
        let details = would.into_iter().map(row).collect();
        let problem = Problem::new(Kind::Unconfirmed, message).with_details(details);
        Err(problem.hint(format!("`{command}`")))
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    schema_version: u32,
    command: &'a str,
    status: &'a str,
    data: &'a Value,
    issues: &'a [Issue],
}

impl Ui {
    pub(crate) fn new(form: Form, command: impl Into<Cow<'static, str>>) -> Ui {
        let live = match form {
            Form::People if io::stderr().is_terminal() => {
                ProgressDrawTarget::term_like_with_hz(Box::<Screen>::default(), 10)
            }
            _ => ProgressDrawTarget::hidden(),
        };
        let live = MultiProgress::with_draw_target(live);
        let colour = AutoStream::choice(&io::stdout());
        let (warnings, unwritten) = (RefCell::default(), RefCell::default());
        Ui { form, command: command.into(), live, colour, warnings, unwritten }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.form == Form::Json
    }

    /// Whether somebody watches: then progress moves in place.
    pub(crate) fn is_live(&self) -> bool {
        !self.live.is_hidden()
    }

    /// The lines that move; hidden without a terminal.
    pub(crate) fn live(&self) -> &MultiProgress {
        &self.live
    }

    /// A line of the answer for people; in the other form the envelope has it.
    pub(crate) fn line(&self, text: impl AsRef<str>) -> Result<(), Problem> {
        match self.form {
            Form::People => self.data(&fitting(text.as_ref())),
            Form::Json => Ok(()),
        }
    }

    /// The same for what programs read: nothing of it is wrapped.
    pub(crate) fn exact(&self, text: impl AsRef<str>) -> Result<(), Problem> {
        match self.form {
            Form::People => self.data(text.as_ref()),
            Form::Json => Ok(()),
        }
    }

    /// Many lines at once: thousands of small writes are slow.
    pub(crate) fn lines(&self, lines: &[String]) -> Result<(), Problem> {
        match self.form {
            Form::People => {
                let lines: Vec<String> = lines.iter().map(|line| fitting(line)).collect();
                self.print(lines.iter().map(String::as_str))
            }
            Form::Json => Ok(()),
        }
    }

    /// A line of a stream, in either form.
    pub(crate) fn data(&self, text: &str) -> Result<(), Problem> {
        self.print([text])
    }

    fn print<'a>(&self, lines: impl IntoIterator<Item = &'a str>) -> Result<(), Problem> {
        let text: String = lines.into_iter().flat_map(|line| [line, "\n"]).collect();
        let text = in_colour(self.colour, &harmless(&text));
        let written = self.live.suspend(|| {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        });
        self.noted(written)
    }

    /// What verbs have done before they answer is done: they may pass over that nobody reads it. That it
    /// could not be written is told all the same.
    fn noted(&self, written: io::Result<()>) -> Result<(), Problem> {
        let Err(error) = written else { return Ok(()) };
        if error.kind() != io::ErrorKind::BrokenPipe {
            let same = io::Error::new(error.kind(), error.to_string());
            self.unwritten.borrow_mut().get_or_insert(same);
        }
        Err(error.into())
    }

    /// Bytes somebody else wrote: as they are into a pipe or file, harmless on a terminal.
    pub(crate) fn foreign(&self, bytes: &[u8]) -> Result<(), Problem> {
        let mut out = io::stdout().lock();
        if out.is_terminal() {
            out.write_all(text::stripped(bytes).as_bytes())?;
        } else {
            out.write_all(bytes)?;
        }
        Ok(out.flush()?)
    }

    /// A patch: as it is into a pipe or file; on a terminal harmless, in colour and through the pager.
    pub(crate) fn patch(&self, bytes: &[u8]) -> Result<(), Problem> {
        if !io::stdout().is_terminal() {
            return self.foreign(bytes);
        }
        let line = |line: &str| match line.as_bytes().first() {
            Some(b'+') => text::green(line),
            Some(b'-') => text::red(line),
            Some(b'd' | b'@') => text::bold(line),
            _ => line.to_owned(),
        };
        let lines: Vec<String> = text::stripped(bytes).lines().map(line).collect();
        // Ctrl-C is for the pager.
        let ignored = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default());
        match pager::start().ok().flatten().filter(|_| ignored.is_ok()) {
            None => self.print(lines.iter().map(String::as_str)),
            Some(mut reader) => {
                let mut text = in_colour(self.colour, &lines.join("\n"));
                text.push('\n');
                if let Some(mut to) = reader.stdin.take() {
                    // The reader may leave before the end.
                    let _left = to.write_all(text.as_bytes());
                }
                let _ended = reader.wait();
                Ok(())
            }
        }
    }

    /// A line of talk. Nobody listening is no error: the work matters more.
    pub(crate) fn talk(&self, text: impl AsRef<str>) {
        let mut line = fitting(&harmless(text.as_ref()));
        line.push('\n');
        self.live.suspend(|| {
            let _ = anstream::stderr().lock().write_all(line.as_bytes());
        });
    }

    /// The next thing to type, for people; the envelope has its own place for it.
    pub(crate) fn hint(&self, text: impl AsRef<str>) {
        if self.form == Form::People {
            self.talk(format!("{} {}", text::bold("hint:"), text.as_ref()));
        }
    }

    /// Something a person should know; also an issue of the envelope.
    pub(crate) fn warn(&self, kind: Kind, message: impl Into<String>, hint: Option<String>) {
        let message = message.into();
        if self.form == Form::People {
            self.talk(format!("{} {message}", text::yellow("warning:")));
            if let Some(hint) = &hint {
                self.hint(hint);
            }
        }
        let (code, severity) = (kind.code(), Severity::Warning);
        self.warnings.borrow_mut().push(Issue { code, severity, message, hint });
    }

    /// As [`Ui::warn`], for something that is broken although the command as a whole has an answer.
    pub(crate) fn report(&self, problem: &Problem) {
        if self.form == Form::People {
            self.tell(problem);
        }
        self.warnings.borrow_mut().extend(problem.issues());
    }

    /// Whether somebody is there to answer.
    pub(crate) fn can_ask(&self) -> bool {
        self.form == Form::People && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Shows what is asked, rings, and leaves the cursor where the answer is typed.
    pub(crate) fn prompt(&self, lines: &[String], how: &str) {
        let mut out = anstream::stderr().lock();
        for line in lines {
            let _ = writeln!(out, "{}", fitting(&harmless(line)));
        }
        let _ = write!(out, "\u{7}{how}");
        let _ = out.flush();
    }

    /// Rings where somebody watches.
    pub(crate) fn bell(&self) {
        if self.is_live() {
            let _ = anstream::stderr().lock().write_all(b"\x07");
        }
    }

    /// Asks on the terminal; anything but yes is no.
    pub(crate) fn ask(&self, question: &str) -> Said {
        if !self.can_ask() {
            return Said::Nobody;
        }
        let _ = write!(anstream::stderr(), "{} [y/N] ", harmless(question));
        let mut answer = String::new();
        match io::stdin().lock().read_line(&mut answer) {
            Ok(_) if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") => Said::Yes,
            _ => Said::No,
        }
    }

    /// Asks for one of these, by its letter or a word of it; Enter is the first. Nothing without a terminal, or
    /// where nothing is typed any more.
    pub(crate) fn choose<'a>(
        &self,
        question: &str,
        choices: &[(&'a str, &str)],
    ) -> Option<&'a str> {
        if !self.can_ask() {
            return None;
        }
        let row =
            |(key, what): &(&str, &str)| format!("{} {what}", text::bold(&format!("[{key}]")));
        let mut rows: Vec<String> = choices.iter().map(row).collect();
        rows[0] += " (Enter)";
        loop {
            let _ = write!(anstream::stderr(), "{} {}: ", harmless(question), rows.join("  "));
            let mut answer = String::new();
            match io::stdin().lock().read_line(&mut answer) {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
            let said = match answer.trim() {
                "" => choices[0].0.to_owned(),
                typed => typed.to_lowercase(),
            };
            let meant = |(key, what): &&(&str, &str)| {
                said == *key || said == *what || what.split(' ').any(|word| word == said)
            };
            if let Some((key, _)) = choices.iter().find(meant) {
                return Some(key);
            }
            let keys: Vec<&str> = choices.iter().map(|(key, _)| *key).collect();
            let (last, others) = keys.split_last().expect("something to choose from");
            self.talk(format!(
                "{said:?} is none of them: type {} or {last}, or the word beside it",
                others.join(", ")
            ));
        }
    }

    /// Asks for one of these by its number, Enter for the first; nothing where there is no terminal, or nothing
    /// is typed any more.
    pub(crate) fn pick(&self, choices: &[&str]) -> Option<usize> {
        if !self.can_ask() {
            return None;
        }
        let row =
            |(n, what): (usize, &&str)| format!("  {}  {what}", text::bold(&(n + 1).to_string()));
        let rows: Vec<String> = choices.iter().enumerate().map(row).collect();
        let how = match choices.len() {
            1 => "Enter, or Ctrl-C to leave it: ".to_owned(),
            n => format!("1-{n}, or Ctrl-C to leave it: "),
        };
        self.prompt(&rows, &how);
        loop {
            let mut answer = String::new();
            match io::stdin().lock().read_line(&mut answer) {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
            match answer.trim() {
                "" => return Some(0),
                said => match said.parse::<usize>().ok().and_then(|n| n.checked_sub(1)) {
                    Some(picked) if picked < choices.len() => return Some(picked),
                    _ => self.prompt(&[], &how),
                },
            }
        }
    }

    /// A text with colours where the terminal shows them: for lines that move.
    pub(crate) fn painted(&self, text: &str) -> String {
        in_colour(AutoStream::choice(&io::stderr()), text)
    }

    /// Ends a command with its answer.
    pub(crate) fn finish(&self, data: &Value, exit: ExitStatus) -> ExitStatus {
        if self.form == Form::Json {
            let status = if exit == ExitStatus::Ok { "ok" } else { "error" };
            self.envelope(status, data, &self.warnings.borrow());
        }
        match self.unwritten.take() {
            None => exit,
            Some(error) => {
                self.tell(&unwritten(&error));
                if exit == ExitStatus::Ok { ExitStatus::Failed } else { exit }
            }
        }
    }

    /// Ends a command with a problem.
    pub(crate) fn fail(&self, problem: &Problem) -> ExitStatus {
        match (problem.kind, self.form) {
            (Kind::ClosedPipe, _) => {}
            (_, Form::People) => self.tell(problem),
            (_, Form::Json) => {
                let mut issues = problem.issues();
                issues.extend(self.warnings.take());
                let data = problem.data.as_ref().unwrap_or(&Value::Null);
                self.envelope("error", data, &issues);
                if let Some(error) = self.unwritten.take() {
                    self.tell(problem);
                    self.tell(&unwritten(&error));
                }
            }
        }
        problem.kind.exit()
    }

    fn tell(&self, problem: &Problem) {
        match problem.kind.is_normal_end() {
            true => self.talk(&problem.message),
            false => {
                let code = text::red(&format!("error[{}]:", problem.kind.code()));
                self.talk(format!("{code} {}", problem.message));
            }
        }
        for cause in problem.causes.iter().filter(|_| problem.details.is_empty()) {
            self.talk(format!("  because: {cause}"));
        }
        for detail in &problem.details {
            self.talk(format!("  {}", detail.message));
            if let Some(excerpt) = &detail.excerpt {
                self.talk(format!("    {} {excerpt}", text::dim("|")));
            }
            if let Some(hint) = &detail.hint {
                self.talk(format!("    {} {hint}", text::bold("hint:")));
            }
        }
        if let Some(hint) = &problem.hint {
            self.hint(hint);
        }
    }

    fn envelope(&self, status: &str, data: &Value, issues: &[Issue]) {
        let command = self.command.as_ref();
        let envelope = Envelope { schema_version: SCHEMA_VERSION, command, status, data, issues };
        let mut text = serde_json::to_string(&envelope)
            .expect("an envelope has only string keys and finite values");
        text.push('\n');
        let mut out = io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        // Whoever stopped reading does not want the rest; the exit status says it all the same.
        let _ = self.noted(written);
    }
}

/// Lines no wider than the screen: what is continued is indented.
fn fitting(text: &str) -> String {
    let line = |line: &str| {
        let seen = anstream::adapter::strip_str(line).to_string();
        let indent = seen.len() - seen.trim_start_matches(' ').len();
        text::wrapped(line, (0, indent + 2))
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// A text with its colours, or without them where they are not shown. Taken out beforehand: a stream that
/// does it writes every line by itself.
fn in_colour(shown: ColorChoice, text: &str) -> String {
    match shown {
        ColorChoice::Never => anstream::adapter::strip_str(text).to_string(),
        _ => text.to_owned(),
    }
}
