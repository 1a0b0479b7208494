//! Markdown by its lines: headings, task items, table rows and fences, with their places. The formats that
//! are read by it are line by line themselves.

use std::ops::Range;

/// A line that is not inside code or a comment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) at: usize,
    pub(crate) text: &'a str,
    /// Inside a fence or a comment: not structural.
    pub(crate) is_code: bool,
}

/// A heading: `## Title {#anchor}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heading<'a> {
    pub(crate) level: usize,
    /// Without its anchor.
    pub(crate) title: &'a str,
    pub(crate) anchor: Option<&'a str>,
}

/// A list entry with a box: `- [x] text`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task<'a> {
    pub(crate) indent: usize,
    /// The character between the brackets.
    pub(crate) mark: char,
    /// Its place in the file.
    pub(crate) tick: Range<usize>,
    pub(crate) text: &'a str,
}

/// Which fences there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fences {
    All,
    /// Backticks alone, as some tools have it.
    Backticks,
}

/// Every line of the text.
pub(crate) fn lines(text: &str, fences: Fences) -> impl Iterator<Item = Line<'_>> {
    let mut at = 0;
    let mut fence: Option<&str> = None;
    let mut in_comment = false;
    text.split('\n').map(move |line| {
        let start = at;
        at += line.len() + 1;
        let trimmed = line.trim_start();
        let opens = match trimmed {
            _ if trimmed.starts_with("```") => Some("```"),
            _ if trimmed.starts_with("~~~") && fences == Fences::All => Some("~~~"),
            _ => None,
        };
        let mut is_code = fence.is_some() || in_comment;
        match (fence, opens) {
            _ if in_comment => in_comment = !line.contains("-->"),
            (None, Some(_)) => (fence, is_code) = (opens, true),
            (Some(open), Some(close)) if open == close => fence = None,
            (None, None) if trimmed.starts_with("<!--") && !line.contains("-->") => {
                (in_comment, is_code) = (true, true);
            }
            _ => {}
        }
        Line { at: start, text: line, is_code }
    })
}

pub(crate) fn heading(line: &str) -> Option<Heading<'_>> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    let rest = line[level..].strip_prefix([' ', '\t'])?.trim();
    if !(1..=6).contains(&level) || rest.is_empty() {
        return None;
    }
    let rest = rest.trim_end_matches('#').trim_end();
    let (title, anchor) = match anchor(rest) {
        Some((place, anchor)) => (rest[..place].trim_end(), Some(anchor)),
        None => (rest, None),
    };
    Some(Heading { level, title, anchor })
}

/// `{#name}` anywhere on a line: its place and the name.
pub(crate) fn anchor(line: &str) -> Option<(usize, &str)> {
    let start = line.find("{#")?;
    let name = &line[start + 2..];
    let name = &name[..name.find('}')?];
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (!name.is_empty() && name.bytes().all(fits)).then_some((start, name))
}

pub(crate) fn task<'a>(line: &Line<'a>) -> Option<Task<'a>> {
    let body = line.text.trim_start_matches([' ', '\t']);
    let indent = width(&line.text[..line.text.len() - body.len()]);
    let rest = match body.strip_prefix(['-', '*', '+']) {
        Some(rest) => rest,
        None => {
            let digits = body.bytes().take_while(u8::is_ascii_digit).count();
            body[digits..].strip_prefix(['.', ')']).filter(|_| (1..=9).contains(&digits))?
        }
    };
    let boxed = rest.trim_start_matches([' ', '\t']);
    if boxed.len() == rest.len() {
        return None;
    }
    let mut characters = boxed.strip_prefix('[')?.chars();
    let mark = characters.next()?;
    let rest = characters.as_str().strip_prefix(']')?;
    if !rest.is_empty() && !rest.starts_with([' ', '\t']) {
        return None;
    }
    let start = line.at + (line.text.len() - boxed.len()) + 1;
    Some(Task { indent, mark, tick: start..start + mark.len_utf8(), text: rest.trim() })
}

/// The text with every box empty: progress is no part of what is to be done.
pub(crate) fn unticked(text: &str, fences: Fences) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut at = 0;
    for line in lines(text, fences).filter(|line| !line.is_code) {
        if let Some(task) = task(&line) {
            plain.push_str(&text[at..task.tick.start]);
            plain.push(' ');
            at = task.tick.end;
        }
    }
    plain.push_str(&text[at..]);
    plain
}

/// How far a line is indented; a tab counts to the next multiple of four.
pub(crate) fn width(space: &str) -> usize {
    space.chars().fold(0, |at, c| if c == '\t' { (at / 4 + 1) * 4 } else { at + 1 })
}

/// The cells of a table's row, trimmed, with their places; none where the line is no row.
pub(crate) fn cells<'a>(line: &Line<'a>) -> Option<Vec<(Range<usize>, &'a str)>> {
    let row = line.text.trim();
    if !row.starts_with('|') || row.len() < 2 {
        return None;
    }
    let mut cells = Vec::new();
    let first = line.text.find('|')? + 1;
    let mut start = first;
    let bytes = line.text.as_bytes();
    for at in first..bytes.len() {
        // An escaped bar is text.
        if bytes[at] == b'|' && bytes[at - 1] != b'\\' {
            cells.push(cell(line, start..at));
            start = at + 1;
        }
    }
    if !line.text[start..].trim().is_empty() {
        cells.push(cell(line, start..bytes.len()));
    }
    Some(cells)
}

fn cell<'a>(line: &Line<'a>, span: Range<usize>) -> (Range<usize>, &'a str) {
    let raw = &line.text[span.clone()];
    let text = raw.trim();
    let start = line.at + span.start + (raw.len() - raw.trim_start().len());
    (start..start + text.len(), text)
}

/// The row between a table's head and its body.
pub(crate) fn is_separator(cells: &[(Range<usize>, &str)]) -> bool {
    let dashes = |text: &str| text.contains('-') && text.bytes().all(|b| b"-: ".contains(&b));
    !cells.is_empty() && cells.iter().all(|(_, text)| dashes(text))
}

/// Whether the text has anything that only Markdown has.
pub(crate) fn has_task_or_heading(text: &str) -> bool {
    let mut structural = lines(text, Fences::All).filter(|line| !line.is_code);
    structural.any(|line| task(&line).is_some() || heading(line.text).is_some_and(|h| h.level > 1))
}

/// A file's name without folder and end.
pub(crate) fn stem(path: &str) -> &str {
    std::path::Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or("plan")
}
