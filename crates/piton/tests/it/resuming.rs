//! Resuming with the real binary: what is said and asked on a terminal, only some of the steps, everything again
//! from its base, every run at once, and the question after three interruptions that brought nothing.

use piton_testkit::runs::{
    agent_step, all_killed, command_step, data, events, events_named, landed, lay_plan, plan_with,
    refused, step, view,
};
use piton_testkit::{Sandbox, Terminal, kill9};
use serde_json::{Value, json};

use crate::{sandbox, sandbox_of};

const RUN: [&str; 4] = ["run", "plan.toml", "--trust", "--auto-continue"];

/// `work` hangs the first time, and says which step of its tree it found; the others are quick.
const HANGS_ONCE: &str = "count {starts}; pid {agent}; nth {starts} 2: sh ls > {seen}; \
                          write work.txt precious; touch {ready}; nth {starts} 1: hang; write done.txt x";

/// A run whose worker, keeper and agent were killed while `work` was at work: `before` is done, `after` and
/// `other` are not.
fn killed() -> Sandbox {
    let sandbox = sandbox();
    let steps = [
        command_step(&sandbox, "before", "echo x > before.txt", ""),
        agent_step(&sandbox, "work", HANGS_ONCE, "group = 'main'\nneeds = ['before']"),
        command_step(&sandbox, "after", "echo x > after.txt", "group = 'main'\nneeds = ['work']"),
        command_step(&sandbox, "other", "echo x > other.txt", ""),
    ];
    let text = plan_with(&sandbox, "", &steps);
    lay_plan(&sandbox, &text.replacen("[agent.fake]", "[group.main]\n[agent.fake]", 1));
    all_killed(&sandbox, &RUN);
    sandbox
}

fn handle(sandbox: &Sandbox) -> String {
    view(sandbox)["handle"].as_str().expect("a handle").to_owned()
}

/// What a person sees, without colours; the run is RUN, and times are T.
fn screen(sandbox: &Sandbox, terminal: &Terminal) -> String {
    let shown = anstream::adapter::strip_str(&terminal.shown()).to_string();
    let shown = shown.replace(['\r', '\u{7}'], "").replace(&handle(sandbox), "RUN");
    let is_time = |word: &str| {
        let digits = word.trim_end_matches('s');
        digits.len() < word.len() && digits.parse::<f64>().is_ok()
    };
    let line = |line: &str| {
        let words = line.split(' ').map(|word| if is_time(word) { "T" } else { word });
        let line = words.collect::<Vec<_>>().join(" ");
        let line = match line.split_once(" of work (") {
            Some((before, _)) => format!("{before} of work (N %)"),
            None => line,
        };
        line.replace("T ago", "T").replace("just now", "T").trim_end().to_owned()
    };
    shown.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// `piton resume` on a terminal, once it asks.
#[track_caller]
fn asking(sandbox: &Sandbox, args: &[&str]) -> Terminal {
    let terminal = Terminal::start(sandbox, args);
    sandbox.wait_until("the prompt", || terminal.shown().contains("1-4, or"));
    terminal
}

fn entries(sandbox: &Sandbox, id: &str) -> Vec<Value> {
    let claims = events_named(sandbox, "claimed").into_iter();
    claims.filter(|claim| claim["step"]["step"] == id).map(|claim| claim["entry"].clone()).collect()
}

#[test]
fn a_terminal_is_told_what_will_be_done_and_enter_does_it() {
    let sandbox = killed();
    let mut terminal = asking(&sandbox, &["resume"]);
    let shown = screen(&sandbox, &terminal);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    insta::assert_snapshot!(shown, @"
    RUN  interrupted  step work killed T
      plan.toml · 1 of 4 steps completed · started T · active T
      found     work: its attempt is dead; what it left is kept
      skip      before: done
      continue  work: in its tree (killed)
      wait      after: needs work
      wait      other: at most 1 at once
      lost      about T of work (N %)
      left      about T
      1  resume (Enter)
      2  restart interrupted and failed steps from their base (--restart)
      3  look (--dry-run)
      4  abandon this run and start fresh
    1-4, or Ctrl-C to leave it:
    ");
    terminal.type_in("\n");
    terminal.wait().success();
    assert_eq!(view(&sandbox)["status"], "completed");
    assert_eq!(entries(&sandbox, "work"), ["fresh", "continue"]);
}

#[test]
fn looking_and_leaving_change_nothing() {
    let sandbox = killed();
    let before = events(&sandbox);
    for key in ["\u{3}", "\u{4}"] {
        let mut terminal = asking(&sandbox, &["resume"]);
        terminal.type_in("7\n");
        sandbox.wait_until("the prompt again", || terminal.shown().matches("1-4, or").count() == 2);
        terminal.type_in("3\n");
        sandbox.wait_until("a look", || terminal.shown().contains("Nothing was written."));
        sandbox
            .wait_until("a prompt after it", || terminal.shown().matches("1-4, or").count() == 3);
        terminal.type_in(key);
        let out = terminal.wait();
        match key {
            "\u{3}" => assert_eq!(out.signal, Some(2), "{out}"),
            _ => assert!(out.expect_code(4).stdout.contains("stays as it is")),
        }
        assert_eq!(events(&sandbox), before, "nothing was recorded");
        assert!(sandbox.processes().is_empty(), "nothing was started");
    }
}

#[test]
fn what_was_cut_off_begins_again_and_its_work_is_kept() {
    let sandbox = killed();
    let mut terminal = asking(&sandbox, &["resume"]);
    terminal.type_in("2\n");
    let out = terminal.wait().success();
    assert!(out.stdout.contains("begins again from its base"), "{out}");
    let kept = out.stdout.split("kept as ").nth(1).expect("where the work is");
    let kept = kept.split_whitespace().next().expect("a ref");
    assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{kept}:work.txt")]), "precious");
    assert_eq!(entries(&sandbox, "work"), ["fresh", "fresh"]);
    assert!(!sandbox.read(sandbox.mark("seen")).contains("work.txt"), "it found the step's base");
    assert_eq!(events_named(&sandbox, "resumed")[0]["terms"], json!({ "restart": true }));
    assert_eq!(events_named(&sandbox, "reset").len(), 1);
}

#[test]
fn a_run_is_left_for_a_fresh_one_only_after_two_yeses() {
    let sandbox = killed();
    let old = handle(&sandbox);
    let mut terminal = asking(&sandbox, &["resume"]);
    terminal.type_in("4\n");
    sandbox.wait_until("a question", || terminal.shown().contains("start over?"));
    terminal.type_in("y\n");
    sandbox.wait_until("another", || terminal.shown().contains("Sure?"));
    terminal.type_in("y\n");
    terminal.wait().success();
    assert_eq!(view(&sandbox)["status"], "completed");
    assert_ne!(handle(&sandbox), old);
    assert_eq!(data(&sandbox, &["status", &old])["run"]["status"], "abandoned");
}

#[test]
fn only_the_chosen_steps_are_started() {
    let sandbox = killed();
    let (code, error, said) = refused(&sandbox, &["resume", "--steps", "othre"]);
    assert_eq!((code, error.as_str()), (2, "E059"), "{said}");
    let near = sandbox.piton(&["resume", "--steps", "othre"]).output();
    assert!(near.stderr.contains("did you mean other?"), "{near}");
    let needs = sandbox.piton(&["resume", "--steps", "after"]).output();
    assert!(needs.stderr.contains("step after needs work, which --steps leaves out"), "{needs}");
    assert!(needs.stderr.contains("--steps after,work`"), "{needs}");
    for (typed, chosen) in [("4", "other"), ("main", "after work"), ("work, 3", "after work")] {
        let dry = data(&sandbox, &["resume", "--dry-run", "--steps", typed]);
        let steps = dry["steps"].as_array().expect("steps").iter();
        let open = steps.filter(|row| row["action"] != "skip");
        let mut meant: Vec<&str> = open
            .filter(|row| !row["text"].as_str().expect("words").contains("not among the chosen"))
            .map(|row| row["step"].as_str().expect("a name"))
            .collect();
        meant.sort_unstable();
        assert_eq!(meant.join(" "), chosen, "{typed}: {dry:#}");
    }
    let out =
        sandbox.piton(&["resume", "--steps", "other", "--threshold", "50"]).output().success();
    assert!(out.stdout.contains("nothing is left to do of the steps you chose"), "{out}");
    let steps = json!([{ "step": "other", "iteration": 1 }]);
    let terms = &events_named(&sandbox, "resumed")[0]["terms"];
    assert_eq!(*terms, json!({ "steps": steps, "threshold": 50 }));
    let now = view(&sandbox);
    let status = |id| step(&now, id)["status"].clone();
    assert_eq!((status("other"), status("work")), (json!("completed"), json!("interrupted")));
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(view(&sandbox)["status"], "completed");
}

#[test]
fn a_worker_that_is_replaced_keeps_to_what_was_asked_for() {
    let sandbox = sandbox_of(|sandbox| {
        vec![
            command_step(
                sandbox,
                "one",
                "touch {ready}; until test -e {go}; do sleep 0.02; done",
                "",
            ),
            command_step(sandbox, "two", "true", ""),
        ]
    });
    sandbox.piton(&["open", "plan.toml"]).output().success();
    sandbox.piton(&["trust", "plan.toml", "--yes"]).output();
    let watched = sandbox.piton(&["resume", "--steps", "one", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let first = sandbox.worker();
    kill9(first);
    sandbox.wait_until("another worker", || sandbox.workers().iter().any(|pid| *pid != first));
    sandbox.write(sandbox.mark("go"), "");
    let out = watched.wait().success();
    assert!(out.stderr.contains("the worker is gone; starting another"), "{out}");
    let now = view(&sandbox);
    assert_eq!(step(&now, "one")["status"], "completed");
    assert_eq!(step(&now, "two")["status"], "pending");
}

#[test]
fn every_interrupted_run_goes_on() {
    let sandbox = sandbox();
    let text = |name: &str| {
        let hangs = format!(
            "echo s >> {{starts-{name}}}; echo $$ > {{agent}}; touch {{ready}}; \
                             test $(wc -l < {{starts-{name}}}) -gt 1 || exec sleep 600"
        );
        let steps = [command_step(&sandbox, "work", &hangs, "")];
        plan_with(&sandbox, "", &steps).replacen("'test'", &format!("'{name}'"), 1)
    };
    lay_plan(&sandbox, &text("first"));
    sandbox.write("second.toml", &text("second"));
    for plan in ["plan.toml", "second.toml"] {
        all_killed(&sandbox, &["run", plan, "--trust"]);
        std::fs::remove_file(sandbox.mark("ready")).expect("it was there");
    }
    let dry = data(&sandbox, &["resume", "--all", "--dry-run"]);
    assert_eq!(dry["runs"].as_array().map(Vec::len), Some(2), "{dry:#}");
    let out = sandbox.piton(&["resume", "--all", "--yes"]).output().success();
    assert_eq!(out.stdout.matches("goes on in the background").count(), 2, "{out}");
    let completed = || {
        let runs = data(&sandbox, &["status", "--ended"])["runs"].clone();
        let runs = runs.as_array().expect("runs").clone();
        runs.len() == 2 && runs.iter().all(|run| run["status"] == "completed")
    };
    sandbox.wait_until("the end of both", completed);
    let none = sandbox.piton(&["resume", "--all"]).output().success();
    assert!(none.stdout.contains("no run of this repository is interrupted"), "{none}");
}

/// Is killed three times before it gets anywhere.
const KILLED: &str =
    "echo start >> {starts}; test $(wc -l < {starts}) -gt 3 || kill -9 $$; echo done > done.txt";

#[test]
fn three_interruptions_without_progress_are_a_question_on_the_terminal() {
    let sandbox = sandbox_of(|sandbox| vec![command_step(sandbox, "work", KILLED, "")]);
    let mut terminal = Terminal::start(&sandbox, &["run", "plan.toml", "--trust"]);
    sandbox.wait_until("the question", || terminal.shown().contains("1-3, or Enter"));
    assert!(terminal.shown().contains("interrupted 3 times in a row"), "{}", terminal.shown());
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 3);
    terminal.type_in("1\n");
    terminal.wait().success();
    assert_eq!(landed(&sandbox, "done.txt"), "done");
}

#[test]
fn three_interruptions_without_progress_are_answered_from_anywhere() {
    for (answer, starts, status) in [
        (&["answer", "work", "try again"][..], 4, "completed"),
        (&["answer", "work", "skip"], 3, "completed"),
        (&["resume", "--yes"], 4, "completed"),
    ] {
        let sandbox = sandbox_of(|sandbox| {
            vec![
                command_step(sandbox, "work", KILLED, ""),
                command_step(sandbox, "after", "true", "needs = ['work']"),
            ]
        });
        sandbox.piton(&RUN).output().expect_code(4);
        let asked = data(&sandbox, &["questions"])["questions"].clone();
        assert_eq!(
            asked[0]["about"]["no_progress"],
            json!({ "times": 3, "cause": "process_kill" })
        );
        assert_eq!(asked[0]["choices"], json!(["try again", "skip", "stop"]));
        let again = sandbox.piton(&["resume"]).output().expect_code(4);
        assert!(again.stderr.contains("piton answer"), "{again}");
        assert_eq!(sandbox.lines(sandbox.mark("starts")), 3, "nothing starts before the answer");
        sandbox.piton(answer).output().success();
        sandbox.piton(&["resume"]).output().success();
        assert_eq!(view(&sandbox)["status"], status, "{answer:?}");
        assert_eq!(sandbox.lines(sandbox.mark("starts")), starts, "{answer:?}");
    }
}

#[test]
fn a_retry_without_a_run_is_about_the_one_that_has_failed() {
    let sandbox = sandbox_of(|sandbox| {
        vec![command_step(sandbox, "work", "test -e {go} && echo x > x.txt", "")]
    });
    sandbox.piton(&RUN).output().expect_code(1);
    let failed = handle(&sandbox);
    sandbox.write("second.toml", "[plan]\nname = 'second'\n[[step]]\nid = 'a'\nrun = 'true'\n");
    sandbox.piton(&["open", "second.toml"]).output().success();
    sandbox.write(sandbox.mark("go"), "");
    let out = sandbox.piton(&["retry"]).output().success();
    assert!(out.stderr.contains(&failed), "{out}");
    assert_eq!(data(&sandbox, &["status", &failed])["run"]["status"], "completed");
}
