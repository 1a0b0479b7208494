//! Questions with the real binary: a kept agent asks and ends, or waits; somebody outside asks; people
//! answer late, twice or wrongly; processes are killed between the answer and its use. Every answer is
//! applied once.

use piton_testkit::runs::{
    agent_step, command_step, completions, data, events, events_named, keeper, kept, lay_plan,
    refused, step, tree, view, wait_event, why_not,
};
use piton_testkit::{Sandbox, alive, kill9};
use serde_json::{Value, json};

use crate::sandbox_of;

/// Asks the first time and ends; the second time it does what it was told.
const ASKS: &str = "count {starts}; nth {starts} 2+: dump-prompt {prompt}; write work.txt precious; \
                    nth {starts} 1: sh piton ask 'Which \"Größe\"?' --choice JWT --choice 形式; \
                    nth {starts} 1: exit 3; write done.txt done";

/// One step, which asks.
fn sandbox() -> Sandbox {
    sandbox_of(|sandbox| vec![agent_step(sandbox, "work", ASKS, "retries = 0")])
}

/// Runs until the run waits for an answer; tells the question.
#[track_caller]
fn until_it_waits(sandbox: &Sandbox) -> String {
    sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).output().expect_code(4);
    let asked = data(sandbox, &["questions"]);
    let open = asked["questions"].as_array().expect("a list");
    assert_eq!(open.len(), 1, "{asked:#}");
    open[0]["question"].as_str().expect("its name").to_owned()
}

/// Every answer was applied once, and its agent was told it once.
#[track_caller]
fn assert_applied_once(sandbox: &Sandbox, question: &str, answer: &str) {
    let started =
        events_named(sandbox, "started").into_iter().map(|event| event["answers"].clone());
    let read = events_named(sandbox, "answers_applied").into_iter();
    let told: Vec<Value> = started.chain(read.map(|event| event["questions"].clone())).collect();
    let times = told.iter().flat_map(|told| told.as_array().cloned().unwrap_or_default());
    assert_eq!(times.filter(|told| told == question).count(), 1, "{told:?}");
    assert_eq!(events_named(sandbox, "answered").len(), 1);
    let prompt = sandbox.read(sandbox.mark("prompt"));
    let brief = prompt.split("---").last().expect("a brief");
    assert_eq!(brief.matches(answer).count(), 1, "{prompt}");
}

#[test]
fn an_agent_asks_and_ends_and_the_next_one_is_told() {
    let sandbox = sandbox();
    let out =
        sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).output().expect_code(4);
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    for part in ["Which \"Größe\"?", &format!("piton answer {handle} q"), "JWT", "形式"] {
        assert!(out.stderr.contains(part), "{part} is missing:\n{out}");
    }
    // It was kept before it was left, spent no retry, and nobody can have it.
    let shown = view(&sandbox);
    assert_eq!(shown["status"], "waiting", "{shown:#}");
    let work = step(&shown, "work");
    assert_eq!((&work["status"], &work["failures"]), (&json!("waiting"), &json!(0)));
    assert_eq!(work["attempts"][0]["state"], "waiting");
    assert_eq!(kept(&sandbox, "work", "work.txt"), "precious");
    let claimed = data(&sandbox, &["claim", "plan.toml", "--worktree", "."]);
    assert_eq!(claimed["claimed"], false);
    assert!(why_not(&claimed, "work").contains("Größe"), "{claimed}");
    // Asking for more changes nothing.
    let before = events(&sandbox);
    sandbox.piton(&["resume"]).output().expect_code(4);
    assert_eq!(events(&sandbox), before);
    let question = work["questions"][0]["question"].as_str().expect("a name").to_owned();
    let dry = data(&sandbox, &["resume", "--dry-run"]);
    assert_eq!(dry["steps"][0]["action"], "await_answer");
    for shown in ["status", "questions", "show"] {
        let out = sandbox.piton(&[shown]).output().success();
        assert!(out.stdout.contains(&question), "{shown}: {out}");
    }
    let overview = sandbox.piton(&[]).output().success();
    let command = format!("piton answer {handle} {question} JWT");
    assert!(overview.stdout.contains(&command), "{overview}");

    let answered = data(&sandbox, &["answer", &handle, &question, "2"]);
    assert_eq!((&answered["answer"], &answered["state"]), (&json!("形式"), &json!("answered")));
    let dry = data(&sandbox, &["resume", "--dry-run"]);
    assert!(dry["steps"][0]["text"].as_str().expect("words").contains("was answered"), "{dry}");
    sandbox.piton(&["resume"]).output().success();
    assert_applied_once(&sandbox, &question, "形式");
    assert_eq!(events_named(&sandbox, "claimed")[1]["entry"], "continue");
    assert_eq!(completions(&sandbox)["work"], 1);
    let shown = view(&sandbox);
    assert_eq!(step(&shown, "work")["questions"][0]["state"], "applied");
    assert_eq!(data(&sandbox, &["questions"])["questions"], json!([]));
}

#[test]
fn a_question_is_answered_once() {
    let sandbox = sandbox();
    let question = until_it_waits(&sandbox);
    let wrong = refused(&sandbox, &["answer", "work", "opaque"]);
    assert_eq!((wrong.0, wrong.1.as_str()), (2, "E071"));
    assert!(wrong.2.contains("JWT, 形式"), "{wrong:?}");
    assert_eq!(refused(&sandbox, &["answer", "q999", "JWT"]).1, "E079");
    assert_eq!(refused(&sandbox, &["answer", "nobody", "JWT"]).1, "E059");
    data(&sandbox, &["answer", "work", "JWT"]);
    let before = events(&sandbox);
    data(&sandbox, &["answer", &question, "1"]);
    let other = refused(&sandbox, &["answer", &question, "形式"]);
    assert_eq!((other.0, other.1.as_str()), (1, "E077"));
    assert_eq!(events(&sandbox), before);
    sandbox.piton(&["resume"]).output().success();
    assert_applied_once(&sandbox, &question, "JWT");
    data(&sandbox, &["answer", &question, "JWT"]);
    assert_eq!(refused(&sandbox, &["answer", &question, "2"]).1, "E077");
}

#[test]
fn an_answer_survives_kills_between_it_and_its_use() {
    for point in ["worker.claimed", "keeper.findable", "keeper.tree-prepared", "keeper.started"] {
        let sandbox = sandbox();
        let question = until_it_waits(&sandbox);
        data(&sandbox, &["answer", &question, "JWT"]);
        let held = sandbox.crash_point(point, 1);
        let worker = sandbox.piton(&["resume"]).crash_at(&held).spawn();
        let hit = held.wait_hit();
        if point.starts_with("keeper") {
            assert_eq!(keeper(&sandbox), hit);
        }
        drop(worker.kill9());
        kill9(hit);
        sandbox.wait_until("its end", || !alive(hit));
        sandbox.piton(&["resume"]).output().success();
        assert_applied_once(&sandbox, &question, "JWT");
        assert_eq!(completions(&sandbox)["work"], 1, "{point}");
    }
}

#[test]
fn a_keeper_that_dies_after_its_agent_has_asked_leaves_it_waiting() {
    let sandbox = sandbox();
    let held = sandbox.crash_point("keeper.exit-recorded", 1);
    let worker =
        sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).crash_at(&held).spawn();
    let keeper = held.wait_hit();
    drop(worker.kill9());
    kill9(keeper);
    let shown = view(&sandbox);
    assert_eq!(step(&shown, "work")["status"], "waiting", "seen, and not recorded yet");
    assert_eq!(events_named(&sandbox, "suspended").len(), 0);
    sandbox.piton(&["resume"]).output().expect_code(4);
    assert_eq!(events_named(&sandbox, "suspended").len(), 1);
    assert_eq!(kept(&sandbox, "work", "work.txt"), "precious");
    let shown = view(&sandbox);
    let question = step(&shown, "work")["questions"][0]["question"].clone();
    let question = question.as_str().expect("a name");
    data(&sandbox, &["answer", question, "JWT"]);
    sandbox.piton(&["resume"]).output().success();
    assert_applied_once(&sandbox, question, "JWT");
}

#[test]
fn an_agent_waits_for_its_answer_while_it_works() {
    let script = "count {starts}; touch {ready}; sh piton ask 'Which port?' --wait > {answer}; \
                  write done.txt done";
    let sandbox = sandbox_of(|sandbox| vec![agent_step(sandbox, "work", script, "")]);
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    wait_event(&sandbox, "asked");
    sandbox.wait_until("word of the question", || worker.stderr().contains("piton answer"));
    let shown = view(&sandbox);
    assert_eq!(
        (&shown["status"], &step(&shown, "work")["status"]),
        (&json!("running"), &json!("running"))
    );
    data(&sandbox, &["answer", "work", "  8080 für alle "]);
    worker.wait().success();
    assert_eq!(sandbox.read(sandbox.mark("answer")), "8080 für alle\n");
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 1);
    assert_eq!(events_named(&sandbox, "answers_applied").len(), 1);
    assert!(events_named(&sandbox, "suspended").is_empty());
}

#[test]
fn a_command_reads_its_answer_by_asking_again() {
    let script = "echo start >> {starts}; piton ask 'Deploy?' --choice yes --choice no > {answer}; \
                  grep -qx yes {answer} && echo deployed > done.txt";
    let sandbox = sandbox_of(|sandbox| vec![command_step(sandbox, "work", script, "")]);
    sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).output().expect_code(4);
    data(&sandbox, &["answer", "work", "yes"]);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 2);
    assert_eq!(events_named(&sandbox, "asked").len(), 1, "the same words ask nothing new");
    assert_eq!(events_named(&sandbox, "answers_applied").len(), 1);
}

const OUTSIDE: &str = "[plan]\nname = 'hand'\n[[step]]\nid = 'work'\n";

fn outside() -> (Sandbox, String) {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, OUTSIDE);
    let claimed = data(&sandbox, &["claim", "plan.toml", "--worktree", ".", "--lease", "1h"]);
    (sandbox, claimed["fence"].to_string())
}

#[test]
fn somebody_outside_asks_and_keeps_the_claim() {
    let (sandbox, fence) = outside();
    let ask = ["ask", "plan.toml", "work", "Which?", "--fence", &fence];
    let asked = data(&sandbox, &ask);
    assert_eq!((&asked["answered"], &asked["state"]), (&json!(false), &json!("open")));
    assert_eq!(data(&sandbox, &ask)["question"], asked["question"], "asked once");
    let complete = ["complete", "plan.toml", "work", "--fence", &fence];
    assert_eq!(refused(&sandbox, &complete).1, "E078");
    let again = data(&sandbox, &["claim", "plan.toml", "--worktree", "."]);
    assert_eq!(again["claimed"], false, "also its own holder waits: {again}");

    let waits = sandbox.piton(&[&ask[..], &["--wait", "--json"]].concat()).spawn();
    let read = ["ask", "plan.toml", "work", "--read", "--fence", &fence];
    for vain in [&ask[..], &read] {
        let vain = [vain, &["--wait=0s"]].concat();
        let (exit, code, message) = refused(&sandbox, &vain);
        assert_eq!((exit, code.as_str()), (4, "E084"), "{message}");
        let plain = sandbox.piton(&vain).output().expect_code(4);
        assert!(plain.stdout.is_empty(), "nobody takes it for an answer: {plain}");
        assert!(plain.stderr.contains("`piton answer "), "{plain}");
    }
    data(&sandbox, &["answer", "work", "this one"]);
    let told = waits.wait().success().json()["data"].clone();
    assert_eq!((&told["answer"], &told["state"]), (&json!("this one"), &json!("applied")));
    for _ in 0..2 {
        assert_eq!(data(&sandbox, &read)["questions"][0]["answer"], "this one");
    }
    assert_eq!(events_named(&sandbox, "answers_applied").len(), 1);
    data(&sandbox, &complete);
}

#[test]
fn whoever_takes_the_step_next_is_told_when_they_start() {
    let (sandbox, fence) = outside();
    data(&sandbox, &["ask", "plan.toml", "work", "Which?", "--fence", &fence]);
    data(&sandbox, &["answer", "work", "this one"]);
    let again = data(&sandbox, &["claim", "plan.toml", "--worktree", "."]);
    let new = again["fence"].to_string();
    for write in
        [&["ask", "plan.toml", "work", "How?"][..], &["ask", "plan.toml", "work", "--read"]]
    {
        let (exit, code, _) = refused(&sandbox, &[write, &["--fence", &fence]].concat());
        assert_eq!((exit, code.as_str()), (5, "E049"), "{write:?}");
    }
    let unread = refused(&sandbox, &["complete", "plan.toml", "work", "--fence", &new]);
    assert_eq!(unread.1, "E078");
    let started = data(&sandbox, &["start", "plan.toml", "work", "--fence", &new]);
    assert_eq!(started["answers"][0]["answer"], "this one");
    let started = data(&sandbox, &["start", "plan.toml", "work", "--fence", &new]);
    assert_eq!(started["answers"], json!([]), "once");
    data(&sandbox, &["complete", "plan.toml", "work", "--fence", &new]);
}

#[test]
fn a_question_that_one_run_has_asked_needs_no_run() {
    let sandbox = crate::sandbox();
    let plan =
        |name: &str| format!("[plan]\nname = '{name}'\n[[step]]\nid = 'a'\n[[step]]\nid = 'b'\n");
    sandbox.write("one.toml", &plan("one"));
    sandbox.write("two.toml", &plan("two"));
    sandbox.commit("two plans");
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    let ask = |file: &str, step: &str, tree: &str| {
        data(&sandbox, &["claim", file, "--step", step, "--worktree", tree]);
        let asked = data(&sandbox, &["ask", file, step, "Which?", "--worktree", tree]);
        asked["question"].as_str().expect("its name").to_owned()
    };
    let same = ask("one.toml", "a", &one);
    assert_eq!(ask("two.toml", "a", &two), same);
    let alone = ask("two.toml", "b", &two);
    let handle_of_two = data(&sandbox, &["show", "two"])["run"]["handle"].clone();
    let (_, code, message) = refused(&sandbox, &["answer", &same, "this"]);
    assert_eq!(code, "E064", "{message}");
    let answered = data(&sandbox, &["answer", &alone, "this"]);
    assert_eq!(answered["handle"], handle_of_two);
    data(&sandbox, &["answer", "one.toml", &same, "this"]);
    // Of two, the one that still waits for it.
    let answered = data(&sandbox, &["answer", &same, "that"]);
    assert_eq!(answered["handle"], handle_of_two);
}
