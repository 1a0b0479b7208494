//! Loops in plan files: what a chain means for needs, and loops that cannot be.

use super::*;
use piton_core::plan::PlanFormat;

const STEPS: &str = "[plan]\nname = 'p'\n[[step]]\nid = 'review'\nkind = 'review'\nrun = 'x'\n\
                     [[step]]\nid = 'fix'\nrun = 'x'\n\
                     [[step]]\nid = 'after'\nneeds = ['review']\nrun = 'x'\n\
                     [[step]]\nid = 'hand'\n";

fn with(lines: &str) -> String {
    format!("{STEPS}{lines}\n")
}

#[test]
fn a_chain_is_in_order_and_needed_as_a_whole() {
    let text =
        with("[loop.a]\nsteps = ['review', 'fix']\nmax = 3\nuntil = 'make test'\nstale_limit = 2");
    let plan: Plan = crate::parse(text.as_bytes()).unwrap();
    assert_eq!(plan.needs_of(1), [0]);
    assert_eq!(plan.needs_of(2), [0, 1]);
    assert_eq!(plan.steps[0].kind(), "review");
    assert_eq!(plan.steps[1].kind(), "command");
    let named = text.replace("needs = ['review']", "needs = ['a']");
    assert_eq!(crate::parse(named.as_bytes()).unwrap().needs_of(2), [0, 1]);
    for format in [PlanFormat::Toml, PlanFormat::Yaml, PlanFormat::Json] {
        let written = crate::converted(&plan, format).unwrap();
        let hint = crate::Hint { path: "plan", format: Some(format) };
        let read = crate::read(written.as_bytes(), &hint).unwrap();
        assert_eq!(read.plan, plan, "{written}");
    }
}

#[test]
fn impossible_loops() {
    assert_snapshot!(found(with("[loop.a]\nsteps = ['review', 'fx', 'hand', 'fix', 'fix']\nmax = 0\n[loop.b]\nsteps = ['review']\n[loop.c]\nmax = 2\nuntill = 'x'")), @r#"
    17:20 unknown step `fx` in loop `a`
        did you mean `fix`?
    17:26 nothing is started for `hand`: it cannot be in a loop
        give it a `run`, or a `prompt` with an agent
    17:41 loop `a` has step `fix` twice
        remove one of them, or make two steps
    18:7 `max` must be a whole number from 1 to 1000
        write max = 2, for example
    19:1 loop `b` has no `max`
        add max = 10: nothing loops for ever
    20:10 step `review` is in two loops, `a` and `b`
        remove it from one of them
    21:1 loop `c` has no steps
        write steps = ["review", "implement"], in the order of the chain
    23:1 unknown key `untill`
        did you mean `until`?
    "#);
    assert_snapshot!(found(with("[loop.a]\nsteps = ['fix', 'review']\nmax = 2").replace("needs = ['review']", "needs = ['fix']").replace("id = 'review'\n", "id = 'review'\nneeds = ['after']\n")), @"
    4:6 steps need each other in a circle: review → after → loop a → review
        remove one of these needs
    ");
    assert_snapshot!(found(with("[loop.a]\nsteps = ['review', 'fix']\nmax = 2").replace("id = 'review'\n", "id = 'review'\nneeds = ['a']\n")), @"
    4:6 steps need each other in a circle: review → loop a → review
        remove one of these needs
    4:6 steps need each other in a circle: review → loop a → fix → review
        remove one of these needs
    ");
    assert_snapshot!(found(with("[loop.a]\nsteps = ['review']\nmax = 2").replace("'fix'", "'review-2'")), @"
    8:6 `review-2` is also the name of an iteration of `review`
        give this step another id
    ");
    assert_snapshot!(found(with("[loop.fix]\nsteps = ['review']\nmax = 2").replace("needs = ['review']", "needs = ['fix']")), @"
    12:10 the need `fix` is a loop and something else, too
        rename one of them
    ");
}
