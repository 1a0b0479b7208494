//! Ignore rules as git reads them: the `.gitignore` of a folder and of those above it, then the
//! repository's excludes, then the user's. The nearest file with a rule for a path decides, in it the
//! last one. Knows paths, not files.

use std::sync::Arc;

use super::glob::{self, Slash};

/// The rules of one file.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    pattern: Vec<u8>,
    negated: bool,
    only_folders: bool,
    /// Without a slash it is about names, wherever they are.
    by_name: bool,
    /// The pattern stands for itself.
    literal: bool,
}

/// A file's rules in a folder, and what stands behind them.
#[derive(Debug)]
pub(super) struct Level {
    rules: Arc<Rules>,
    /// How many bytes of a path lead to the folder, with the slash.
    base: usize,
    above: Option<Arc<Level>>,
}

impl Level {
    /// `folder` is empty for the root.
    pub(super) fn new(rules: Arc<Rules>, folder: &[u8], above: Option<Arc<Level>>) -> Arc<Level> {
        let base = if folder.is_empty() { 0 } else { folder.len() + 1 };
        Arc::new(Level { rules, base, above })
    }

    /// Whether a path is ignored, given that no folder above it is.
    pub(super) fn ignores(&self, path: &[u8], is_folder: bool) -> bool {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let mut level = Some(self);
        while let Some(here) = level {
            let below = path.get(here.base..).unwrap_or_default();
            if let Some(rule) = here.rules.last_for(below, name, is_folder) {
                return !rule.negated;
            }
            level = here.above.as_deref();
        }
        false
    }
}

impl Rules {
    pub(super) fn parse(text: &[u8]) -> Rules {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Rules(text.split(|&byte| byte == b'\n').filter_map(Rule::parse).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn last_for(&self, path: &[u8], name: &[u8], is_folder: bool) -> Option<&Rule> {
        self.0.iter().rev().find(|rule| rule.covers(path, name, is_folder))
    }
}

impl Rule {
    fn parse(line: &[u8]) -> Option<Rule> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            return None;
        }
        let line = without_trailing_spaces(line);
        let (negated, line) = match line.strip_prefix(b"!") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (only_folders, line) = match line.strip_suffix(b"/") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let by_name = !line.contains(&b'/');
        let pattern = line.strip_prefix(b"/").unwrap_or(line).to_vec();
        let literal = !pattern.iter().any(|&byte| glob::is_special(byte));
        (!pattern.is_empty()).then_some(Rule { pattern, negated, only_folders, by_name, literal })
    }

    fn covers(&self, path: &[u8], name: &[u8], is_folder: bool) -> bool {
        if self.only_folders && !is_folder {
            return false;
        }
        let (text, slash) = match self.by_name {
            true => (name, Slash::Plain),
            false => (path, Slash::Stops),
        };
        match self.literal {
            true => self.pattern == text,
            false => self.matches_from_its_first_special(text, slash),
        }
    }

    /// Git compares what stands before the first special byte on its own. This shows: in `a**/b` the
    /// stars then begin the pattern, and go through folders.
    fn matches_from_its_first_special(&self, text: &[u8], slash: Slash) -> bool {
        let special = self.pattern.iter().position(|&byte| glob::is_special(byte));
        let (plain, rest) = match slash {
            Slash::Stops => self.pattern.split_at(special.unwrap_or(0)),
            Slash::Plain => self.pattern.split_at(0),
        };
        let text = text.strip_prefix(plain);
        text.is_some_and(|text| glob::matches(rest, text, slash))
    }
}

/// A space after a backslash stays.
fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let (mut end, mut at) = (0, 0);
    while at < line.len() {
        match line[at] {
            b' ' => at += 1,
            b'\\' if at + 1 == line.len() => return line,
            b'\\' => {
                at += 2;
                end = at;
            }
            _ => {
                at += 1;
                end = at;
            }
        }
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_git_reads_them() {
        let rules = |text: &str| Level::new(Arc::new(Rules::parse(text.as_bytes())), b"", None);
        let check = |text: &str, path: &str, is_folder: bool, expected: bool| {
            assert_eq!(
                rules(text).ignores(path.as_bytes(), is_folder),
                expected,
                "{text:?} {path}"
            );
        };
        check("*.log", "a/b.log", false, true);
        check("*.log\n!b.log", "a/b.log", false, false);
        check("/b", "a/b", false, false);
        check("/b", "b", false, true);
        check("a/b", "x/a/b", false, false);
        check("**/a/b", "x/a/b", false, true);
        check("t/", "t", false, false);
        check("t/", "x/t", true, true);
        check("#c", "#c", false, false);
        check(r"\#c", "#c", false, true);
        check(r"\!c", "!c", false, true);
        check("c  ", "c", false, true);
        check(r"c\ ", "c ", false, true);
        check("c\r\n", "c", false, true);
        check("\u{feff}c", "c", false, true);
        check("", "c", false, false);
        let outer = rules("*.log");
        let inner = Level::new(Arc::new(Rules::parse(b"!/keep.log")), b"a", Some(outer));
        assert!(!inner.ignores(b"a/keep.log", false));
        assert!(inner.ignores(b"a/b/keep.log", false));
    }
}
