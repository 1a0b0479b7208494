//! Whatever is given: nothing panics, findings are in the file, a plan survives its own bytes, and its graph
//! says what it says.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::graph::Graph;

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
        Err(PlanError { findings }) => {
            let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
            prop_assert!(!findings.is_empty());
            prop_assert!(findings.is_sorted_by_key(|finding| (finding.line, finding.column)));
            for Finding { line, column, message, hint } in findings {
                prop_assert!(
                    (1..=lines).contains(&line) && (1..=bytes.len() + 1).contains(&column)
                );
                prop_assert!(hint.is_some() && !message.contains(|c: char| c.is_control()));
            }
        }
    }
    Ok(())
}

/// Steps with random needs on steps and groups, to compare the two ways of asking for them.
fn graph() -> impl Strategy<Value = Plan> {
    let step = (0..4usize, prop::collection::vec(any::<prop::sample::Index>(), 0..4));
    prop::collection::vec(step, 1..12).prop_map(|all| {
        let mut text = "[plan]\nname = 'graph'\n".to_owned();
        let used: Vec<usize> = all.iter().map(|(group, _)| *group).collect();
        for group in 0..4 {
            writeln!(text, "[group.g{group}]").unwrap();
        }
        for (n, (group, needs)) in all.iter().enumerate() {
            let below = |index: &prop::sample::Index| match index.index(n.max(1)) {
                other if n == 0 || used[n..].contains(&used[other]) => format!("s{other}"),
                other if other % 2 == 0 => format!("g{}", used[other]),
                other => format!("s{other}"),
            };
            let needs: Vec<String> = needs.iter().filter(|_| n > 0).map(below).collect();
            writeln!(
                text,
                "[[step]]\nid = 's{n}'\nrun = 'x'\ngroup = 'g{group}'\nneeds = {needs:?}"
            )
            .unwrap();
        }
        parse(text.as_bytes()).unwrap_or_else(|_| panic!("{text}\n{}", found(&text)))
    })
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

    #[test]
    fn a_graph_knows_what_its_plan_says(plan in graph()) {
        let worked_out = Graph::new(Arc::new(plan.clone()));
        let packed = postcard::to_stdvec(&worked_out).expect("a graph can be packed");
        let unpacked: Graph = postcard::from_bytes(&packed).expect("what was packed");
        for graph in [&worked_out, &unpacked] {
            prop_assert_eq!(graph.plan(), &plan);
            prop_assert_eq!(graph.hash(), plan.hash());
            for (index, step) in plan.steps.iter().enumerate() {
                let needs = graph.needed_steps(index);
                prop_assert!(needs.iter().all(|need| *need < index));
                prop_assert_eq!(needs, plan.needs_of(index));
                prop_assert_eq!(graph.index_of(&step.id), Some(index));
                let waiting = |node: &usize| graph.needs(*node).any(|need| need == index);
                let dependants: Vec<usize> = graph.dependants(index).collect();
                prop_assert_eq!(dependants, (0..graph.nodes()).filter(waiting).collect::<Vec<_>>());
            }
            prop_assert_eq!(graph.index_of(&StepId::new("nobody").unwrap()), None);
        }
    }
}
