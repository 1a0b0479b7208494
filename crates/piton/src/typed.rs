//! The command line as it was typed, for hints that repeat it.

use piton_engine::git::shell::word;

/// Whether one of these verbs was typed.
pub(crate) fn is_verb(verbs: &[&str]) -> bool {
    std::env::args_os().nth(1).is_some_and(|typed| verbs.iter().any(|verb| typed == **verb))
}

/// Whether this word was typed.
pub(crate) fn has(word: &str) -> bool {
    std::env::args_os().any(|typed| typed == word)
}

/// The typed command with more words behind it.
pub(crate) fn again(more: &str) -> String {
    let typed = std::env::args_os().skip(1);
    let words = typed.map(|text| word(&text.to_string_lossy())).chain([more.to_owned()]);
    let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
    format!("piton {}", words.join(" "))
}

/// The typed command with other words in the place of one.
pub(crate) fn instead(of: &str, others: &[&str]) -> String {
    let mut words = vec!["piton".to_owned()];
    for typed in std::env::args_os().skip(1) {
        let typed = typed.to_string_lossy();
        match typed == of {
            true => words.extend(others.iter().map(|other| word(other))),
            false => words.push(word(&typed)),
        }
    }
    words.join(" ")
}
