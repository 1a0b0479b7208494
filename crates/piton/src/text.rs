//! Words for people: times, tables, marks and colours, and the guard against texts that would steer a
//! terminal. Pure; what is printed where is `ui`'s business.

use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use piton_core::time::Millis;
use unicode_width::UnicodeWidthStr as _;

/// The variable with how many seconds later it is taken to be where times are put in words: transcripts in
/// tests repeat to the letter.
const LATER: &str = "PITON_LATER";

/// The present, by the wall clock.
pub(crate) fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let later = std::env::var(LATER).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let since = since + Duration::from_secs(later);
    Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// `12s`, `3m 05s`, `2h 10m`, `3d 4h`.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 if duration.as_millis() < 10_000 => {
            format!("{}.{}s", seconds, duration.subsec_millis() / 100)
        }
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `3m ago`, in one unit.
pub(crate) fn ago(at: Millis, now: Millis) -> String {
    let seconds = now.since(at).as_secs();
    match seconds {
        0..2 => "just now".to_owned(),
        2..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86_400 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// When something is due.
pub(crate) fn due(at: Millis, now: Millis) -> String {
    match at.since(now) {
        Duration::ZERO => "now".to_owned(),
        left => format!("in {}", span(left)),
    }
}

/// `1 file`, `2 files`.
pub(crate) fn count(n: u64, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n if what.ends_with("ch") => format!("{n} {what}es"),
        n => format!("{n} {what}s"),
    }
}

fn styled(style: Style, text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => format!("{style}{text}{style:#}"),
    }
}

pub(crate) fn bold(text: &str) -> String {
    styled(Style::new().bold(), text)
}

pub(crate) fn dim(text: &str) -> String {
    styled(Style::new().dimmed(), text)
}

pub(crate) fn green(text: &str) -> String {
    styled(AnsiColor::Green.on_default(), text)
}

pub(crate) fn yellow(text: &str) -> String {
    styled(AnsiColor::Yellow.on_default(), text)
}

pub(crate) fn red(text: &str) -> String {
    styled(AnsiColor::Red.on_default().bold(), text)
}

/// How wide a screen is: a terminal's own width, what `COLUMNS` says, else what every terminal has.
pub(crate) fn columns() -> usize {
    const USUAL: usize = 80;
    static COLUMNS: OnceLock<usize> = OnceLock::new();
    *COLUMNS.get_or_init(|| match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).unwrap_or(USUAL),
    })
}

/// Rows under one another, as wide as the screen: the last column is wrapped, and goes below the others where
/// they leave it too little. Widths are counted without colours.
pub(crate) fn table(rows: &[Vec<String>]) -> Vec<String> {
    const BELOW: usize = 4;
    let widths: Vec<Vec<usize>> =
        rows.iter().map(|row| row.iter().map(|text| width(text)).collect()).collect();
    let columns = widths.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| widths.iter().filter_map(|row| row.get(column)).copied().max();
    let wide: Vec<usize> = (0..columns).map(|column| widest(column).unwrap_or(0)).collect();
    let line = |(row, widths): (&Vec<String>, &Vec<usize>)| {
        let Some((last, first)) = row.split_last() else { return String::new() };
        let mut line = String::new();
        let mut start = 0;
        for (column, text) in first.iter().enumerate() {
            line.push_str(text);
            line.extend(std::iter::repeat_n(' ', wide[column] - widths[column] + 2));
            start += wide[column] + 2;
        }
        let fits = start + widths[first.len()] <= self::columns();
        let (from, at) = match start * 2 > self::columns() {
            _ if fits => ("", start),
            true => ("\n    ", BELOW),
            false => ("", start),
        };
        line.truncate(if from.is_empty() { line.len() } else { line.trim_end().len() });
        line.push_str(from);
        line.push_str(&wrapped(last, (at, at)));
        line.truncate(line.trim_end().len());
        line
    };
    rows.iter().zip(&widths).map(line).collect()
}

/// A text as wide as the screen, of which this much is taken in its first line, and in the others. What is
/// in backticks stays in one piece, and so does a command on a line of its own.
pub(crate) fn wrapped(text: &str, (first, others): (usize, usize)) -> String {
    if first + width(text) <= columns() || is_command(text) {
        return text.to_owned();
    }
    let mut out = String::new();
    let (mut at, mut start) = (first, first);
    for (spaces, word) in words(text) {
        let wide = width(word);
        if at > start && at + spaces.len() + wide > columns() {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', others));
            (at, start) = (others, others);
        } else {
            out.push_str(spaces);
            at += spaces.len();
        }
        out.push_str(word);
        at += wide;
    }
    out
}

/// Words with the blanks before them; what is in backticks is one.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.find(|c| c != ' ')?;
        let mut quoted = false;
        let end = rest[start..].find(|c| {
            quoted ^= c == '`';
            c == ' ' && !quoted
        });
        // An odd backtick quotes nothing.
        let end = end.or_else(|| if quoted { rest[start..].find(' ') } else { None });
        let end = end.map_or(rest.len(), |end| start + end);
        let found = (&rest[..start], &rest[start..end]);
        rest = &rest[end..];
        Some(found)
    })
}

/// Whether a line is what somebody is to type.
fn is_command(line: &str) -> bool {
    let line = anstream::adapter::strip_str(line).to_string();
    ["piton ", "git "].iter().any(|start| line.trim_start().starts_with(start))
}

/// How many columns of a screen a text takes.
fn width(text: &str) -> usize {
    const ESCAPE: char = '\u{1b}';
    match text.contains(ESCAPE) {
        true => anstream::adapter::strip_str(text).to_string().width(),
        false => text.width(),
    }
}

/// Keeps colours and line ends; any other control character is spelled out, so that a text from a
/// plan or an agent can neither move the cursor nor rename the window.
pub(crate) fn harmless(text: &str) -> String {
    if !text.chars().any(|c| c.is_control() && c != '\n') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = colour_length(rest);
        let taken = if colour > 0 { colour } else { c.len_utf8() };
        match c {
            _ if colour > 0 => out.push_str(&rest[..colour]),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
        rest = &rest[taken..];
    }
    out
}

/// The length of a colour sequence (`ESC [ digits ; … m`) at the start of a text, else 0.
fn colour_length(text: &str) -> usize {
    let Some(after) = text.strip_prefix("\u{1b}[") else { return 0 };
    match after.find(|c: char| !c.is_ascii_digit() && c != ';') {
        Some(end) if after[end..].starts_with('m') => 2 + end + 1,
        _ => 0,
    }
}

/// One line of somebody else's words: nothing invisible, nothing that reorders what is read.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let reorders = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}');
        match c {
            c if c.is_control() || reorders || c == '\u{feff}' => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Of a text of somebody else's, shown in passing; `--json` has all of it.
pub(crate) const TEXT_SHOWN: usize = 400;

/// The first characters of one line, with a mark where more follows.
pub(crate) fn clipped(text: &str, max: usize) -> String {
    let line = plain(text.lines().next().unwrap_or_default());
    match line.chars().count() > max {
        true => line.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
        false => line,
    }
}

/// One line without its middle, where it is longer than that: who quotes something says what is wrong
/// with it behind it.
pub(crate) fn without_middle(line: &str, max: usize) -> String {
    let chars: Vec<char> = line.chars().collect();
    if chars.len() <= max {
        return plain(line);
    }
    let (head, tail) = (&chars[..max / 2], &chars[chars.len() - max / 2..]);
    plain(&head.iter().chain(&['…']).chain(tail).collect::<String>())
}

/// An agent's output without escape sequences and control characters. Of a line that was written over,
/// what was written last.
pub(crate) fn stripped(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let visible = anstream::adapter::strip_str(&text).to_string();
    let last = |line: &str| {
        let (text, end) = line.strip_suffix('\n').map_or((line, ""), |text| (text, "\n"));
        let text = text.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
        let shown = text.chars().filter(|c| !c.is_control() || *c == '\t');
        shown.chain(end.chars()).collect::<String>()
    };
    visible.split_inclusive('\n').map(last).collect()
}

/// A path as it is written in a folder; both absolute.
pub(crate) fn relative(path: &Path, folder: &Path) -> PathBuf {
    let shared = path.components().zip(folder.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    let parts: PathBuf = up.chain(path.components().skip(shared)).collect();
    if parts.as_os_str().is_empty() { PathBuf::from(".") } else { parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let at = |seconds: u64| span(Duration::from_secs(seconds));
        let shown = [at(5), at(42), at(185), at(7800), at(273_600)];
        assert_eq!(shown, ["5.0s", "42s", "3m 05s", "2h 10m", "3d 4h"]);
        assert_eq!(ago(Millis(0), Millis(125_000)), "2m ago");
        assert_eq!(ago(Millis(9_000), Millis(0)), "just now", "a clock that went back");
    }

    #[test]
    fn foreign_texts_cannot_steer_the_terminal() {
        assert_eq!(harmless("a\u{1b}[31mred\u{1b}[0m\n"), "a\u{1b}[31mred\u{1b}[0m\n");
        assert_eq!(harmless("\u{1b}[2Jx\u{1b}]0;title\u{7}"), "\\u{1b}[2Jx\\u{1b}]0;title\\u{7}");
        assert_eq!(plain("rm \u{202e}x\u{1b}[8m"), "rm \\u{202e}x\\u{1b}[8m");
        assert_eq!(stripped(b"\x1b[1mhi\x1b[0m\r\n\x07"), "hi\n");
        assert_eq!(stripped(b"a\r\n10 %\r20 %\r30 %\r"), "a\n30 %", "written over");
    }

    #[test]
    fn tables_align_without_counting_colours() {
        let rows = vec![
            vec!["a".to_owned(), green("ok"), "x".to_owned()],
            vec!["long".to_owned(), "failed".to_owned(), "y".to_owned()],
        ];
        let lines: Vec<String> = table(&rows)
            .iter()
            .map(|line| anstream::adapter::strip_str(line).to_string())
            .collect();
        assert_eq!(lines, ["a     ok      x", "long  failed  y"]);
    }

    #[test]
    fn long_lines_are_wrapped_and_commands_stay_whole() {
        let check = |text: &str, expected: &str| assert_eq!(wrapped(text, (0, 2)), expected);
        let (a, b) = ("a".repeat(50), "b".repeat(40));
        check(&format!("{a} {b}"), &format!("{a}\n  {b}"));
        check(&format!("x: `{a} {b}` y"), &format!("x:\n  `{a} {b}`\n  y"));
        check(&format!("it's ` {a} {b}"), &format!("it's ` {a}\n  {b}"));
        check(&format!("  piton {a} {b}"), &format!("  piton {a} {b}"));
        check(&format!("  {} {a}", green(&b)), &format!("  {}\n  {a}", green(&b)));
        let row = |id: &str| vec![id.to_owned(), format!("{a} {b}")];
        assert_eq!(table(&[row("id")]), [format!("id  {a}\n    {b}")]);
        assert_eq!(table(&[row(&a)]), [format!("{a}\n    {a}\n    {b}")]);
        assert_eq!(width("日本"), 4);
    }

    #[test]
    fn paths_are_written_from_the_folder() {
        let check = |path: &str, folder: &str, expected: &str| {
            assert_eq!(relative(Path::new(path), Path::new(folder)), Path::new(expected));
        };
        check("/r/plan.toml", "/r", "plan.toml");
        check("/r/plans/a.toml", "/r", "plans/a.toml");
        check("/r/plan.toml", "/r/src/deep", "../../plan.toml");
        check("/r/plans/a.toml", "/r/src", "../plans/a.toml");
        check("/r", "/r", ".");
    }
}
