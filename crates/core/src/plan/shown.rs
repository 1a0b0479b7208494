//! A text of a file as part of a message.

use crate::limits::NAME_MAX;

/// Bounded, on one line, without tricks for terminals.
pub fn shown(text: &str) -> String {
    let mut shown = String::from("`");
    for character in text.chars().take(NAME_MAX) {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    if text.chars().nth(NAME_MAX).is_some() {
        shown.push('…');
    }
    shown + "`"
}
