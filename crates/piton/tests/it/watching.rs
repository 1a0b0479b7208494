//! What reaches the person: questions on the terminal that watches, the command that notifies, and the output of
//! a run followed from step to step.

use std::fs;

use piton_testkit::runs::{agent_step, command_step, events_named, lay_plan, plan, view};
use piton_testkit::{Sandbox, Terminal};

/// A step that asks and waits for the answer, and one that needs it.
fn asking() -> Sandbox {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let script = "sh piton ask 'Which port?' --choice 80 --choice 443 --wait; write done.txt x";
    let steps = [
        agent_step(&sandbox, "work", script, ""),
        command_step(&sandbox, "after", "echo after > after.txt", "needs = ['work']"),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox
}

#[test]
fn a_question_is_asked_on_the_terminal_and_the_run_goes_on() {
    let sandbox = asking();
    let mut terminal = Terminal::start(&sandbox, &["run", "plan.toml", "--trust"]);
    sandbox.wait_until("the question", || terminal.shown().contains("1-2, or Enter"));
    assert!(terminal.shown().contains("Which port?"), "{}", terminal.shown());
    terminal.type_in("2\n");
    terminal.wait().expect_code(0);
    assert_eq!(events_named(&sandbox, "answered")[0]["answer"], "443");
    assert_eq!(view(&sandbox)["status"], "completed");
}

#[test]
fn a_question_that_is_answered_elsewhere_is_asked_no_longer() {
    let sandbox = asking();
    let terminal = Terminal::start(&sandbox, &["run", "plan.toml", "--trust"]);
    sandbox.wait_until("the question", || terminal.shown().contains("1-2, or Enter"));
    let told = sandbox.piton(&["answer", "work", "80"]).output().success();
    assert!(!told.stderr.contains("piton resume"), "a worker is there: {told}");
    terminal.wait().expect_code(0);
    assert_eq!(events_named(&sandbox, "answered").len(), 1);
}

#[test]
fn ctrl_c_at_a_question_stops_the_run() {
    let sandbox = asking();
    let mut terminal = Terminal::start(&sandbox, &["run", "plan.toml", "--trust", "--grace", "1s"]);
    sandbox.wait_until("the question", || terminal.shown().contains("1-2, or Enter"));
    terminal.type_in("\u{3}");
    terminal.wait().expect_code(130);
    assert_eq!(view(&sandbox)["status"], "stopped");
    sandbox.wait_no_processes();
}

#[test]
fn the_users_command_tells_of_a_question_a_failure_and_the_end() {
    let sandbox = asking();
    let told = sandbox.mark("told");
    let notify = format!(
        "notify = 'echo \"$PITON_EVENT $PITON_STEP: $PITON_MESSAGE\" >> {}'\n",
        told.display()
    );
    sandbox.write(sandbox.root().join("config/piton/config.toml"), &notify);
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    let has = |text: &str| fs::read_to_string(&told).is_ok_and(|told| told.contains(text));
    sandbox.wait_until("word of the question", || has("question work: Which port?"));
    sandbox.piton(&["answer", "work", "80"]).output().success();
    run.wait().success();
    sandbox.wait_until("word of the end", || has("done : every step is completed"));

    sandbox.write("plan.toml", "[plan]\nname = 'bad'\n[[step]]\nid = 'bad'\nrun = 'exit 3'\n");
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(1);
    sandbox.wait_until("word of the failure", || has("failed bad: "));
}

#[test]
fn a_repository_does_not_say_what_notifies() {
    let sandbox = asking();
    sandbox.write("piton.toml", "notify = 'touch /tmp/never'\n");
    let refused = sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(65);
    assert!(refused.stderr.contains("your own configuration"), "{refused}");
}

#[test]
fn log_follows_a_run_from_step_to_step() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let steps = [
        command_step(&sandbox, "one", "echo first words; touch {ready}; cat {go}", ""),
        command_step(&sandbox, "two", "echo second words", "needs = ['one']"),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let made = sandbox.command("mkfifo").arg(sandbox.mark("go")).status();
    assert!(made.is_ok_and(|made| made.success()));
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let following = sandbox.piton(&["log", "-f"]).spawn();
    sandbox.wait_until("the first words", || following.stdout().contains("first words"));
    fs::write(sandbox.mark("go"), "").expect("somebody reads it");
    let followed = following.wait().success();
    assert!(followed.stdout.contains("second words"), "{followed}");
    run.wait().success();
}
