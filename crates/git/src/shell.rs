//! Commands for people to paste: a shell reads every word back as it is meant.

use std::path::Path;

/// A word as a shell reads it back unchanged; as it is where that is safe.
pub fn word(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    match !text.is_empty() && text.chars().all(safe) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// The same for a path.
pub fn path(path: &Path) -> String {
    word(&path.display().to_string())
}

/// What moves something out of the way, beside where it was.
pub fn mv_aside(place: &Path) -> String {
    let aside = format!("{}.aside", place.display());
    format!("mv {} {}", path(place), word(&aside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pasted_is_what_is_meant() {
        assert_eq!(mv_aside(Path::new("/a/b")), "mv /a/b /a/b.aside");
        assert_eq!(mv_aside(Path::new("/a b/it's")), r"mv '/a b/it'\''s' '/a b/it'\''s.aside'");
        assert_eq!(word(""), "''");
    }
}
