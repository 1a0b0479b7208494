//! Finds text that would become tables thousands of levels deep, before the TOML parser sees it:
//! such a tree is dropped by recursion, and a stack that overflows cannot be refused politely.
//! (The parser bounds the length of a dotted key and the depth of brackets, but not their product.)

use piton_core::limits::NESTING_MAX;

/// The place where nesting becomes too deep. Brackets and dots in strings and comments do not count.
pub(crate) fn too_deep(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut open, mut depth, mut dots, mut at) = (Vec::new(), 0, 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => at = end_of_string(bytes, at, quote),
            b'#' => at = text[at..].find('\n').map_or(bytes.len(), |length| at + length),
            b'.' => dots += 1,
            b'{' | b'[' => {
                open.push(dots + 1);
                depth += dots + 1;
            }
            b'}' | b']' => depth -= open.pop().unwrap_or(0),
            _ => {}
        }
        if depth + dots > NESTING_MAX {
            return Some(at);
        }
        // A dotted key ends with its value, and that with one of these.
        if bytes.get(at).is_some_and(|byte| b"{}[],\n".contains(byte)) {
            dots = 0;
        }
        at += 1;
    }
    None
}

/// The place of the last quote of the string that starts at `at`.
fn end_of_string(bytes: &[u8], at: usize, quote: u8) -> usize {
    let thrice = [quote; 3];
    let many_lines = bytes[at..].starts_with(&thrice);
    let mut at = at + if many_lines { 3 } else { 1 };
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quote == b'"' => at += 1,
            b'\n' if !many_lines => return at - 1,
            byte if byte == quote && !many_lines => return at,
            byte if byte == quote && bytes[at..].starts_with(&thrice) => {
                // The text itself may end with two quotes more.
                let quotes = bytes[at..].iter().take(5).take_while(|byte| **byte == quote);
                return at + quotes.count() - 1;
            }
            _ => {}
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_comments_do_not_nest() {
        let deep = "[.{".repeat(NESTING_MAX);
        for good in [
            format!("a = \"{deep}\\\"{deep}\""),
            format!("a = '{deep}\\'"),
            format!("a = '''{deep}\n'{deep}''{deep}''''' # {deep}\nb = 1"),
            format!("a = \"\"\"\n{deep}\\\"\"\"{deep}\"\"\"\""),
            "a.b.c = [1.5, 2.5, { x.y = 1 }]\n[[a.b]]\n".repeat(NESTING_MAX),
            "# [\n".repeat(NESTING_MAX * 2),
            String::new(),
        ] {
            assert_eq!(too_deep(&good), None, "{good}");
        }
    }

    #[test]
    fn depth_is_found_where_it_is_reached() {
        assert_eq!(too_deep(&"[".repeat(NESTING_MAX)), None);
        assert_eq!(too_deep(&"[".repeat(NESTING_MAX + 9)), Some(NESTING_MAX));
        assert_eq!(too_deep(&"a.".repeat(NESTING_MAX + 9)), Some(2 * NESTING_MAX + 1));
        assert!(too_deep(&"a.b.c.d = { ".repeat(NESTING_MAX / 3)).is_some());
        assert!(too_deep(&format!("a = \"x\n{}", "[".repeat(NESTING_MAX * 2))).is_some());
        assert!(too_deep(&format!("a = ''''x'''''{}", "[".repeat(NESTING_MAX * 2))).is_some());
    }
}
