//! Whatever is given: nothing panics, findings are in the file, and a plan survives its own bytes.

use proptest::prelude::*;

use super::*;

/// A piece of a plan, to be put anywhere.
fn piece() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "[plan]",
        "[[step]]",
        "[group.auth]",
        "[agent.",
        "id",
        "needs",
        "=",
        "\"",
        "'''",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\n",
        "\r",
        "\0",
        "\\u0000",
        "jwt",
        "auth",
        "keys",
        "routes",
        "'jwt'",
        "1",
        "timeout = '",
        "-9",
        "ä",
        ":",
        "JWT",
        "env = { ",
        "[step.env]",
        "[step.step]",
        "[[step.substeps]]",
        "[locks]",
        "substeps",
        "items",
        "test-slot",
        "a.b",
    ]);
    prop_oneof![4 => words.prop_map(str::to_owned), 1 => any::<String>()]
}

/// The good plan after some cuts and insertions.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let cut = (any::<prop::sample::Index>(), 0..12usize, piece());
    prop::collection::vec(cut, 1..6).prop_map(|cuts| {
        let mut bytes = format!("{GOOD}{}", claims::CLAIMED).into_bytes();
        for (at, length, piece) in cuts {
            let at = at.index(bytes.len() + 1);
            let end = (at + length).min(bytes.len());
            bytes.splice(at..end, piece.into_bytes());
        }
        bytes
    })
}

/// Whatever is read: findings are in order and inside the file; a plan survives its own bytes.
fn check_sanity(bytes: &[u8]) -> Result<(), TestCaseError> {
    match parse(bytes) {
        Ok(plan) => {
            let back = Plan::from_bytes(&plan.to_bytes()).unwrap();
            prop_assert_eq!(back.hash(), plan.hash());
            prop_assert_eq!(differences(&plan, &back), Vec::<String>::new());
            prop_assert_eq!(back, plan);
        }
        Err(crate::PlanError { findings }) => {
            let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
            prop_assert!(!findings.is_empty());
            prop_assert!(findings.is_sorted_by_key(|finding| (finding.line, finding.column)));
            for Finding { line, column, message, hint, .. } in findings {
                prop_assert!(
                    (1..=lines).contains(&line) && (1..=bytes.len() + 1).contains(&column)
                );
                prop_assert!(hint.is_some() && !message.contains(|c: char| c.is_control()));
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_sanity(&bytes)?;
    }

    #[test]
    fn any_text_is_survived(pieces in prop::collection::vec(piece(), 0..40)) {
        check_sanity(pieces.concat().as_bytes())?;
    }

    #[test]
    fn any_change_of_a_good_plan_is_survived(bytes in mutated()) {
        check_sanity(&bytes)?;
    }
}
