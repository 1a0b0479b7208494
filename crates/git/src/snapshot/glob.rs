//! Git's glob: `*`, `?`, sets and `**` as in gitignore. The same walk through pattern and text as
//! git's own, because its odd cases decide which files a snapshot holds. Knows nothing of files.

/// What `*` and `?` do at a slash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slash {
    /// They stop there; only `**` goes on.
    Stops,
    /// A slash is a byte like any other.
    Plain,
}

/// How a part of a match ended. The last two spare a caller the ways that cannot succeed either.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    Match,
    NoMatch,
    /// The text is used up.
    AbortAll,
    /// Only a `**` further to the left can still help.
    AbortToStarStar,
}

/// Whether a whole text is what a pattern describes.
pub(super) fn matches(pattern: &[u8], text: &[u8], slash: Slash) -> bool {
    wild(pattern, text, slash) == Fit::Match
}

/// Whether a byte means more than itself in a pattern.
pub(super) fn is_special(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[' | b'\\')
}

fn wild(pattern: &[u8], mut text: &[u8], slash: Slash) -> Fit {
    let stops = slash == Slash::Stops;
    let mut at = 0;
    while let Some(&byte) = pattern.get(at) {
        let Some(&seen) = text.first() else {
            match byte {
                b'*' => return star(pattern, at, text, slash),
                _ => return Fit::AbortAll,
            }
        };
        match byte {
            b'?' if stops && seen == b'/' => return Fit::NoMatch,
            b'?' => {}
            b'*' => return star(pattern, at, text, slash),
            b'[' => match set(pattern, at, seen) {
                Some((true, end)) if !(stops && seen == b'/') => at = end,
                Some(_) => return Fit::NoMatch,
                None => return Fit::AbortAll,
            },
            b'\\' => {
                at += 1;
                if pattern.get(at) != Some(&seen) {
                    return Fit::NoMatch;
                }
            }
            _ if byte != seen => return Fit::NoMatch,
            _ => {}
        }
        at += 1;
        text = &text[1..];
    }
    if text.is_empty() { Fit::Match } else { Fit::NoMatch }
}

/// From a star on.
fn star(pattern: &[u8], at: usize, mut text: &[u8], slash: Slash) -> Fit {
    let stars = pattern[at..].iter().take_while(|&&byte| byte == b'*').count();
    let rest = &pattern[at + stars..];
    let begins = at == 0 || pattern[at - 1] == b'/';
    let ends = rest.is_empty() || rest[0] == b'/' || rest.starts_with(b"\\/");
    let crosses = match slash {
        Slash::Plain => true,
        Slash::Stops => stars > 1 && begins && ends,
    };
    // `a/**/b` is also `a/b`.
    let folders = slash == Slash::Stops && crosses && rest.first() == Some(&b'/');
    if folders && wild(&rest[1..], text, slash) == Fit::Match {
        return Fit::Match;
    }
    if rest.is_empty() {
        return match crosses || !text.contains(&b'/') {
            true => Fit::Match,
            false => Fit::AbortToStarStar,
        };
    }
    if !crosses && rest[0] == b'/' {
        let Some(cut) = text.iter().position(|&byte| byte == b'/') else {
            return Fit::AbortAll;
        };
        return wild(&rest[1..], &text[cut + 1..], slash);
    }
    while let Some(&first) = text.first() {
        // A byte that stands for itself must come up before the next slash that cannot be crossed.
        if !is_special(rest[0]) && first != rest[0] {
            if first == b'/' && !crosses {
                return Fit::AbortToStarStar;
            }
            text = &text[1..];
            continue;
        }
        match wild(rest, text, slash) {
            Fit::NoMatch if !crosses && first == b'/' => return Fit::AbortToStarStar,
            Fit::NoMatch => {}
            Fit::AbortToStarStar if crosses => {}
            ended => return ended,
        }
        text = &text[1..];
    }
    Fit::AbortAll
}

/// Whether a byte is in the set that begins at `at`, and where the set ends; `None` when it never does.
fn set(pattern: &[u8], at: usize, seen: u8) -> Option<(bool, usize)> {
    let mut at = at + 1;
    let negated = matches!(pattern.get(at)?, b'!' | b'^');
    if negated {
        at += 1;
    }
    let (mut found, mut before, mut first) = (false, None, true);
    loop {
        let byte = *pattern.get(at)?;
        if byte == b']' && !first {
            return Some((found != negated, at));
        }
        first = false;
        match (byte, before) {
            (b'\\', _) => {
                at += 1;
                let byte = *pattern.get(at)?;
                found |= seen == byte;
                before = Some(byte);
            }
            (b'-', Some(low)) if pattern.get(at + 1).is_some_and(|&next| next != b']') => {
                at += 1;
                let mut high = pattern[at];
                if high == b'\\' {
                    at += 1;
                    high = *pattern.get(at)?;
                }
                found |= (low..=high).contains(&seen);
                before = None;
            }
            (b'[', _) if pattern.get(at + 1) == Some(&b':') => {
                let end = at + 2 + pattern[at + 2..].iter().position(|&byte| byte == b']')?;
                if end == at + 2 || pattern[end - 1] != b':' {
                    // No `:]`: a set like any other.
                    found |= seen == b'[';
                    before = Some(b'[');
                } else {
                    found |= class(&pattern[at + 2..end - 1], seen)?;
                    (at, before) = (end, None);
                }
            }
            _ => {
                found |= seen == byte;
                before = Some(byte);
            }
        }
        at += 1;
    }
}

fn class(name: &[u8], byte: u8) -> Option<bool> {
    Some(match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => matches!(byte, b' ' | b'\t' | b'\n' | b'\r'),
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_cases_are_gits() {
        let check = |pattern: &str, text: &str, expected: bool| {
            let found = matches(pattern.as_bytes(), text.as_bytes(), Slash::Stops);
            assert_eq!(found, expected, "{pattern} on {text}");
        };
        check("foo", "foo", true);
        check("*", "a/b", false);
        check("**", "a/b", true);
        check("a/**/b", "a/b", true);
        check("a/**/b", "a/x/y/b", true);
        check("a**b", "a/b", false);
        check("**/x", "x", true);
        check("*/x", "a/x", true);
        check("*/x", "a/b/x", false);
        check("[a-c]x", "bx", true);
        check("[!a-c]x", "bx", false);
        check("[^a-c]x", "dx", true);
        check("[]]", "]", true);
        check("[[:digit:]]*", "7up", true);
        check("[[:bad:]]", "b", false);
        check("[a", "a", false);
        check("a[/]b", "a/b", false);
        check(r"\*", "*", true);
        check(r"\*", "x", false);
        check(r"a\", r"a\", false);
        check("", "", true);
        assert!(matches(b"*b", b"a/b", Slash::Plain));
    }
}
