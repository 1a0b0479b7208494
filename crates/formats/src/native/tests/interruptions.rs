//! `on_interrupt` and `idempotent`: what they come to, and what does not fit together.

use super::*;
use piton_core::plan::OnInterrupt;

/// What the first step of a plan with these lines does after an interruption.
fn way(plan: &str, step: &str) -> Option<OnInterrupt> {
    let text = format!(
        "[plan]\nname = 'p'\n{plan}\n[agent.fake]\ncommand = ['x']\n[[step]]\nid = 'a'\n{step}\n"
    );
    let plan = parse(text.as_bytes()).unwrap_or_else(|_| panic!("{}", found(&text)));
    plan.steps[0].on_interrupt
}

#[test]
fn the_step_says_it_then_whether_it_is_idempotent_then_the_plan() {
    use OnInterrupt::{Ask, Continue, Restart};
    let (run, prompt) = ("run = 'x'", "prompt = 'x'\nagent = 'fake'");
    let own = |word: &str| format!("{run}\non_interrupt = '{word}'");
    assert_eq!(way("", run), None);
    assert_eq!(way("", prompt), None);
    assert_eq!(way("", &own("continue")), Some(Continue));
    assert_eq!(way("", &own("restart")), Some(Restart));
    assert_eq!(way("", &own("ask")), Some(Ask));
    assert_eq!(way("", &format!("{prompt}\non_interrupt = 'restart'")), Some(Restart));
    assert_eq!(way("", &format!("{run}\nidempotent = true")), None);
    assert_eq!(way("", &format!("{run}\nidempotent = false")), Some(Ask));

    let plan = "on_interrupt = 'restart'";
    assert_eq!(way(plan, run), Some(Restart));
    assert_eq!(way(plan, prompt), Some(Restart));
    assert_eq!(way(plan, &own("continue")), Some(Continue));
    assert_eq!(way(plan, &format!("{run}\nidempotent = true")), Some(Restart));
    assert_eq!(way(plan, &format!("{run}\nidempotent = false")), Some(Ask));
    // It is not run again from its base, so that it may be one that knows where it was.
    let resumable = format!("{run}\nidempotent = false\non_interrupt = 'continue'");
    assert_eq!(way(plan, &resumable), Some(Continue));
    // Nothing is started that could be interrupted.
    assert_eq!(way(plan, ""), None);
}

#[test]
fn bad_values() {
    assert_snapshot!(found(step_with("on_interrupt = 'Restart'\nidempotent = 'false'")), @"
    6:16 `Restart` is not a way to go on after an interruption
        did you mean `restart`?
    7:14 `idempotent` must be true or false, not a string
        write idempotent = true or idempotent = false, without quotes
    ");
    assert_snapshot!(found(step_with("on_interrupt = 'never'")), @r#"
    6:16 `never` is not a way to go on after an interruption
        write on_interrupt = "continue", "restart" or "ask"
    "#);
    assert_snapshot!(found(step_with("on_interrupt = false\nidempotent = 0")), @r#"
    6:16 `on_interrupt` must be a string, not a boolean
        put it in "quotes"
    7:14 `idempotent` must be true or false, not an integer
        write idempotent = true or idempotent = false, without quotes
    "#);
    assert_snapshot!(found(step_with("on_interupt = 'ask'\nidempotant = false")), @"
    6:1 unknown key `on_interupt`
        did you mean `on_interrupt`?
    7:1 unknown key `idempotant`
        did you mean `idempotent`?
    ");
    assert_snapshot!(found("[plan]\nname = 'x'\non_interrupt = 'asks'\nidempotent = false\n[[step]]\nid = 'a'\nrun = 'x'"), @"
    3:16 `asks` is not a way to go on after an interruption
        did you mean `ask`?
    4:1 unknown key `idempotent`
        the keys here are: name, base, agent, isolation, jobs, setup, copy, link, on_interrupt, on_failure, plan_from, on_limit
    ");
}

#[test]
fn what_does_not_fit_together() {
    assert_snapshot!(found(step_with("idempotent = false\non_interrupt = 'restart'")), @r#"
    7:16 `idempotent = false` says that the command must not run again by itself, and `on_interrupt = "restart"` that it shall
        remove one of them, or write on_interrupt = "ask"
    "#);
    let agent =
        "[plan]\nname = 'p'\n[agent.fake]\ncommand = ['x']\n[[step]]\nid = 'a'\nagent = 'fake'\n";
    assert_snapshot!(found(format!("{agent}prompt = 'x'\nidempotent = false")), @r#"
    9:14 `idempotent` is about plain commands, and this step has an agent
        remove it; on_interrupt = "ask" asks before an agent goes on
    "#);
    let by_hand = "[plan]\nname = 'p'\n[[step]]\nid = 'a'\n";
    assert_snapshot!(found(format!("{by_hand}on_interrupt = 'ask'\nidempotent = true")), @"
    5:16 nothing is started for this step, so `on_interrupt` has no meaning
        add `run` or `prompt`, or remove `on_interrupt`
    6:14 nothing is started for this step, so `idempotent` has no meaning
        add `run` or `prompt`, or remove `idempotent`
    ");
}

#[test]
fn they_are_part_of_what_the_plan_means() {
    let text = step_with("");
    let old = parse(text.as_bytes()).unwrap();
    let changed = |line: &str| {
        let new = parse(step_with(line).as_bytes()).unwrap();
        assert_eq!(new.hash() == old.hash(), differences(&old, &new).is_empty());
        differences(&old, &new).join("; ")
    };
    assert_eq!(changed("on_interrupt = 'continue'"), "step a: on_interrupt none → continue");
    assert_eq!(changed("idempotent = false"), "step a: on_interrupt none → ask");
    assert_eq!(changed("idempotent = true"), "");
    let everywhere = text.replace("[plan]\n", "[plan]\non_interrupt = 'ask'\n");
    let new = parse(everywhere.as_bytes()).unwrap();
    assert_eq!(differences(&old, &new), ["step a: on_interrupt none → ask"]);
}
