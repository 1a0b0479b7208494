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

/// What moves something out of the way, beside where it was. Nothing inside a git directory is moved by
/// hand: it is gone for git then.
pub fn mv_aside(place: &Path) -> Option<String> {
    let is_git_dir =
        |folder: &Path| folder.join("HEAD").exists() && folder.join("objects").exists();
    let aside = format!("{}.aside", place.display());
    let command = format!("mv {} {}", path(place), word(&aside));
    (!place.ancestors().any(is_git_dir)).then_some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pasted_is_what_is_meant() {
        let aside = |path: &str| mv_aside(Path::new(path)).expect("outside of git");
        assert_eq!(aside("/a/b"), "mv /a/b /a/b.aside");
        assert_eq!(aside("/a b/it's"), r"mv '/a b/it'\''s' '/a b/it'\''s.aside'");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn nothing_in_a_git_directory_is_moved() {
        let home = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir_all(home.path().join("apart/objects")).expect("folders");
        std::fs::write(home.path().join("apart/HEAD"), "ref: refs/heads/main\n").expect("a file");
        assert_eq!(mv_aside(&home.path().join("apart")), None);
        assert_eq!(mv_aside(&home.path().join("apart/piton/verify/x")), None);
        assert!(mv_aside(&home.path().join("beside")).is_some());
    }
}
