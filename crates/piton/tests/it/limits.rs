//! Usage limits: steps on the account wait until the instant that was named, everything else goes on, nothing is
//! spent, and it survives the worker. Trouble that does not pass by itself is asked about; a busy server is
//! tried again.

use std::fs;

use piton_testkit::runs::{
    agent_step, completions, data, events, events_named, lay_plan, marked, refused, step, view,
    wait_event,
};
use piton_testkit::{Sandbox, toml_string};
use serde_json::Value;

const RUN: [&str; 4] = ["run", "plan.toml", "--trust", "--auto-continue"];

/// Met at the first start, long enough to be looked at.
const LONG: &str = "write work.txt begun; nth {starts} 1: limit 3600000; write done.txt done";
/// Over soon.
const SHORT: &str = "write work.txt begun; nth {starts} 1: limit 900; answer; write done.txt done";

/// An agent that speaks a dialect, as a table of a plan.
fn agent(sandbox: &Sandbox, name: &str, dialect: &str, more: &str) -> String {
    let program = toml_string(&sandbox.fake_agent().display().to_string());
    let sessions = toml_string(&marked(sandbox, "{sessions}"));
    format!(
        "[agent.{name}]\ndialect = '{dialect}'\nprompt = 'file'\n\
         command = [{program}, '--speak', '{dialect}', '--sessions', {sessions}, '--prompt']\n\
         resume = ['--resume', '{{session}}']\n{more}\n"
    )
}

/// A plan with one step of an agent that speaks a dialect.
fn one(dialect: &str, script: &str, more: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let plan = format!(
        "[plan]\nname = 'test'\nagent = 'fake'\n{}{}",
        agent(&sandbox, "fake", dialect, ""),
        agent_step(&sandbox, "work", script, more)
    );
    lay_plan(&sandbox, &plan);
    sandbox
}

fn words(journal: &str) -> Vec<&str> {
    journal.lines().filter_map(|line| line.split_once(' ')).map(|(word, _)| word).collect()
}

fn journal(sandbox: &Sandbox) -> String {
    fs::read_to_string(sandbox.mark("sessions").join("journal")).expect("a journal")
}

/// What happened to steps, in order.
fn told(sandbox: &Sandbox, names: &[&str]) -> Vec<String> {
    let meant = |event: &Value| names.iter().any(|name| event["event"] == *name);
    let shown = |event: &Value| {
        let (name, step) = (event["event"].as_str(), event["step"]["step"].as_str());
        format!("{} {}", name.unwrap_or_default(), step.unwrap_or_default())
    };
    events(sandbox).iter().filter(|event| meant(event)).map(shown).collect()
}

/// Six steps over two accounts, all at once; those of the first account meet a limit at their first start.
#[test]
fn one_account_waits_and_the_other_goes_on() {
    let sandbox = Sandbox::new();
    let limited = |id: &str| {
        let script = format!("nth {{starts-{id}}} 1: limit 900; answer; write {id}.txt done");
        agent_step(&sandbox, id, &script, "agent = 'one'")
    };
    let free =
        |id: &str| agent_step(&sandbox, id, &format!("write {id}.txt done"), "agent = 'two'");
    let steps: String = ["a", "b", "c"].map(limited).concat() + &["d", "e", "f"].map(free).concat();
    let (one, two) = (
        agent(&sandbox, "one", "claude", "account = 'shared'"),
        agent(&sandbox, "two", "codex", ""),
    );
    let head = "[plan]\nname = 'test'\nisolation = 'step'\njobs = 6\n";
    lay_plan(&sandbox, &format!("{head}{one}{two}{steps}"));
    let out = sandbox.piton(&RUN).output().success();
    assert!(out.stderr.contains("parked: account shared"), "{}", out.stderr);
    assert_eq!(completions(&sandbox).len(), 6);
    let met = events_named(&sandbox, "limited");
    assert!(!met.is_empty() && met.iter().all(|limited| limited["account"] == "shared"));
    let mut log = events(&sandbox);
    let last = log.iter().rposition(|event| event["event"] == "limited").expect("a limit");
    let until =
        met.iter().filter_map(|limited| limited["until"].as_i64()).max().expect("an instant");
    let after = log.split_off(last + 1);
    let done = log.iter().filter(|event| event["event"] == "completed").count();
    let on_account = |event: &&Value| {
        ["a", "b", "c"].iter().any(|id| event["step"]["step"] == *id)
            && (event["event"] == "claimed" || event["event"] == "limit_lifted")
    };
    let order: Vec<&Value> = after.iter().filter(on_account).collect();
    assert_eq!(order[0]["event"], "claimed");
    assert_eq!(order[1]["event"], "limit_lifted", "one goes first: {order:?} {done}");
    let late = order.iter().filter(|event| event["event"] == "claimed").map(|event| {
        let at: jiff::Timestamp = event["at"].as_str().expect("a time").parse().expect("a time");
        at.as_millisecond() - until
    });
    for late in late {
        assert!((0..60_000).contains(&late), "started {late} ms after the limit was over");
    }
    let view = view(&sandbox);
    for id in ["a", "b", "c"] {
        assert_eq!(step(&view, id)["failures"], 0, "no retry is spent");
    }
    let journal = journal(&sandbox);
    assert_eq!(words(&journal).iter().filter(|word| **word == "resume").count(), met.len());
}

#[test]
fn no_wait_ends_with_75_and_the_next_resume_goes_on() {
    let sandbox = one("claude", LONG, "");
    let run: Vec<&str> = RUN.into_iter().chain(["--no-wait"]).collect();
    let out = sandbox.piton(&run).output().expect_code(75);
    assert!(out.stderr.contains("is parked: account fake has met its limit"), "{}", out.stderr);
    let seen = view(&sandbox);
    assert_eq!(
        (&seen["status"], &step(&seen, "work")["status"]),
        (&"parked".into(), &"parked".into())
    );
    let (code, _, _) = refused(&sandbox, &["resume", "test", "--no-wait"]);
    assert_eq!(code, 75);
    assert_eq!(words(&journal(&sandbox)), ["start"], "nothing was started before the instant");
    // A person knows better.
    sandbox.piton(&["retry", "test", "work", "--detach"]).output().success();
    wait_event(&sandbox, "completed");
    assert_eq!(words(&journal(&sandbox)), ["start", "resume"]);
}

#[test]
fn on_limit_stop_does_not_wait_either() {
    let sandbox = one("codex", LONG, "on_limit = 'stop'");
    sandbox.piton(&RUN).output().expect_code(75);
    assert_eq!(told(&sandbox, &["limited", "claimed"]), ["claimed work", "limited work"]);
}

#[test]
fn a_limit_survives_its_worker() {
    let sandbox = one("gemini", SHORT, "");
    let run: Vec<&str> = RUN.into_iter().chain(["--no-wait"]).collect();
    sandbox.piton(&run).output().expect_code(75);
    // As after a reboot: nothing but the log is left.
    sandbox.piton(&["resume", "test"]).env("PITON_BOOT_ID", "another").output().success();
    assert_eq!(words(&journal(&sandbox)), ["start", "resume"]);
    assert_eq!(events_named(&sandbox, "limit_lifted").len(), 1);
}

#[test]
fn on_limit_ask_asks() {
    let sandbox = one("opencode", LONG, "on_limit = 'ask'");
    sandbox.piton(&RUN).output().expect_code(4);
    let asked = data(&sandbox, &["questions", "test"]);
    assert_eq!(asked["questions"][0]["choices"][0], "wait", "{asked}");
    sandbox.piton(&["answer", "work", "try again"]).output().success();
    sandbox.piton(&["resume", "test"]).output().success();
}

#[test]
fn spend_caps_and_missing_sign_ins_ask_and_are_not_retried() {
    for (status, text, says) in [
        (429, "Your credit balance is too low", "has no credit left"),
        (401, "Invalid API key", "is not signed in"),
    ] {
        let script = format!("nth {{starts}} 1: error {status} {text}; write done.txt done");
        let sandbox = one("claude", &script, "retries = 3");
        let out = sandbox.piton(&RUN).output().expect_code(4);
        assert!(out.stderr.contains(says), "{}", out.stderr);
        assert_eq!(words(&journal(&sandbox)), ["start"]);
        sandbox.piton(&["resume", "test", "--yes"]).output().success();
        assert_eq!(words(&journal(&sandbox)), ["start", "resume"]);
        assert_eq!(step(&view(&sandbox), "work")["failures"], 0);
    }
}

#[test]
fn a_busy_server_is_tried_again_within_the_attempt() {
    let script = "nth {starts} 1: error 529 Overloaded; dump-prompt {prompt}; write done.txt done";
    let sandbox = one("claude", script, "");
    sandbox.piton(&RUN).output().success();
    assert_eq!(words(&journal(&sandbox)), ["start", "resume"]);
    assert_eq!(events_named(&sandbox, "claimed").len(), 1, "it is one attempt");
    let prompt = fs::read_to_string(sandbox.mark("prompt")).expect("a prompt");
    assert!(prompt.contains("the model's server did not answer"), "{prompt}");
    let log = sandbox.piton(&["log", "test", "work"]).output().success().stdout;
    assert!(log.contains("[piton: the model's server is busy; started again in 1 s]"), "{log}");
}

/// The same limit in prose, as agents wrote it: midnight, a day of the week, a date, zones, the end of a minute.
#[test]
fn a_limit_in_words_has_its_instant() {
    let forms = [
        "You've hit your limit · resets 12am (UTC)",
        "You’ve hit your usage limit. … try again at 11:59 PM.",
        "Weekly limit reached ∙ resets Mon 10:00am (America/New_York)",
        "5-hour limit reached ∙ resets Jan 3 at 9am (Europe/Berlin)",
        "Usage limit reached. Try again in 3 hours 12 minutes",
        "Quota exceeded, resets at 23:59 UTC",
    ];
    for form in forms {
        let sandbox = one("claude", &format!("error 429 {form}"), "");
        let run: Vec<&str> = RUN.into_iter().chain(["--no-wait"]).collect();
        let began = jiff::Timestamp::now().as_millisecond();
        sandbox.piton(&run).output().expect_code(75);
        let limited = events_named(&sandbox, "limited").pop().expect("a limit");
        let wait = limited["until"].as_i64().expect("an instant") - began;
        // A back-off would be two minutes and some seconds.
        assert!(!(100_000..150_000).contains(&wait) && wait > 0, "{form}: {wait} ms");
    }
}

/// Some agents end with 0 at a limit; a tool's output that speaks of one is none.
#[test]
fn exit_codes_and_tool_output_say_nothing_about_limits() {
    let sandbox =
        one("plain", "print hello; nth {starts} 1: limit 3600000; write done.txt done", "");
    let run: Vec<&str> = RUN.into_iter().chain(["--no-wait"]).collect();
    sandbox.piton(&run).output().expect_code(75);
    let script = "print usage limit reached|1999999999; long-line 100; write done.txt done";
    let sandbox = one("claude", script, "");
    sandbox.piton(&RUN).output().success();
    assert!(events_named(&sandbox, "limited").is_empty());
}
