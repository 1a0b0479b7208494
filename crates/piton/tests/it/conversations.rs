//! Agents go on with their own conversation after an interruption, in every dialect; and begin a new one,
//! with a brief, where it is not there any more. The fake agent's own journal says what it was started with.

use std::fs;

use piton_testkit::runs::{agent_step, events_named, lay_plan, marked, step, view};
use piton_testkit::{Sandbox, toml_string};

const RUN: [&str; 4] = ["run", "plan.toml", "--trust", "--auto-continue"];

/// Dies in the middle of its work the first time, and comes to its end the second time.
const DIES_ONCE: &str = "write work.txt begun; nth {starts} 1: kill-self KILL; write done.txt done";
/// The same, and its conversation dies with it.
const FORGETS: &str = "write work.txt begun; nth {starts} 1: sh rm -f {sessions}/*-*; \
                       nth {starts} 1: kill-self KILL; dump-prompt {prompt}; write done.txt done";

/// A plan with one step of an agent that speaks a dialect.
fn speaking(dialect: &str, script: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let program = toml_string(&sandbox.fake_agent().display().to_string());
    let sessions = toml_string(&marked(&sandbox, "{sessions}"));
    // Codex and opencode choose their ids themselves.
    let start = match dialect {
        "codex" | "opencode" => "",
        _ => "start = ['--session-id', '{session}']\n",
    };
    let plan = format!(
        "[plan]\nname = 'test'\nagent = 'fake'\n[agent.fake]\ndialect = '{dialect}'\n\
         command = [{program}, '--speak', '{dialect}', '--sessions', {sessions}, '--prompt']\n\
         prompt = 'file'\n{start}resume = ['--resume', '{{session}}']\n{}",
        agent_step(&sandbox, "work", script, "retries = 0")
    );
    lay_plan(&sandbox, &plan);
    sandbox
}

/// The words of the journal, and the ids behind them.
fn journal(sandbox: &Sandbox) -> (Vec<String>, Vec<String>) {
    let text = fs::read_to_string(sandbox.mark("sessions").join("journal")).expect("a journal");
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(word, id)| (word.to_owned(), id.to_owned())).unzip()
}

#[track_caller]
fn rungs(sandbox: &Sandbox) -> Vec<String> {
    let told = events_named(sandbox, "conversed");
    told.iter().map(|event| event["rung"].as_str().expect("a rung").to_owned()).collect()
}

#[track_caller]
fn goes_on(dialect: &str) {
    let sandbox = speaking(dialect, DIES_ONCE);
    sandbox.piton(&RUN).output().success();
    let (words, ids) = journal(&sandbox);
    assert_eq!(words, ["start", "resume"]);
    assert_eq!(ids[0], ids[1], "it is the same conversation");
    assert_eq!(rungs(&sandbox), ["start", "resume"]);
    let shown = sandbox.piton(&["show"]).output().success().stdout;
    assert!(shown.contains(&format!("conversation of fake: {} (continued)", ids[0])), "{shown}");
    let log = sandbox.piton(&["log", "test", "work"]).output().success().stdout;
    assert!(log.contains(&format!("[piton: continues conversation {}]", ids[0])), "{log}");
    assert_eq!(step(&view(&sandbox), "work")["status"], "completed");
}

#[track_caller]
fn begins_anew(dialect: &str) {
    let sandbox = speaking(dialect, FORGETS);
    sandbox.piton(&RUN).output().success();
    let (words, ids) = journal(&sandbox);
    assert_eq!(words, ["start", "gone", "start"]);
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[1], ids[2]);
    assert_eq!(rungs(&sandbox), ["start", "start"], "a refused one is not kept");
    let prompt = fs::read_to_string(sandbox.mark("prompt")).expect("a prompt");
    assert!(prompt.contains("An earlier attempt was interrupted (process_kill)"), "{prompt}");
    let log = sandbox.piton(&["log", "test", "work"]).output().success().stdout;
    assert!(log.contains("[piton: the agent does not have the conversation any more]"), "{log}");
    assert_eq!(step(&view(&sandbox), "work")["failures"], 0, "no retry is spent");
}

macro_rules! in_every_dialect {
    ($($dialect:ident),*) => {
        $(mod $dialect {
            #[test]
            fn a_conversation_goes_on_after_a_kill() {
                super::goes_on(stringify!($dialect));
            }

            #[test]
            fn a_lost_conversation_is_begun_anew_with_a_brief() {
                super::begins_anew(stringify!($dialect));
            }
        })*
    };
}

in_every_dialect!(claude, codex, gemini, opencode, plain);

/// Some agents exit with 0 when they are cut off: without a result nothing is done.
#[test]
fn exit_0_without_a_result_is_no_success() {
    let sandbox = speaking("gemini", "write work.txt begun; exit 0");
    sandbox.piton(&RUN).output().expect_code(1);
    let failed = events_named(&sandbox, "failed").pop().expect("it failed");
    assert_eq!(failed["why"]["reported"]["reason"], "the agent ended without a result");
}
