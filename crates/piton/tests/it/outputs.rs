//! Outputs with the real binary: published by a kept step, they reach who needs them before the step is
//! done, survive kills, gate the step itself, and are waited for.

use piton_testkit::runs::{
    agent_step, command_step, completions, data, events, events_named, landed, lay_plan, plan_with,
    refused, step, view, wait_event,
};
use piton_testkit::{Sandbox, kill9};
use serde_json::{Value, json};

use crate::sandbox_of;

const RUN: [&str; 4] = ["run", "plan.toml", "--auto-continue", "--trust"];

/// Steps that are attempted at once, each in a worktree of its own.
fn side_by_side(steps: impl FnOnce(&Sandbox) -> Vec<String>) -> Sandbox {
    let sandbox = crate::sandbox();
    let steps = steps(&sandbox);
    lay_plan(&sandbox, &plan_with(&sandbox, "isolation = 'step'\njobs = 3", &steps));
    sandbox
}

fn output<'view>(view: &'view Value, id: &str, name: &str) -> &'view Value {
    let outputs = step(view, id)["outputs"].as_array().expect("outputs");
    outputs.iter().find(|output| output["output"] == name).expect("that output")
}

#[test]
fn an_output_lets_its_reader_start_before_its_step_is_done() {
    // The first ends only when the second has been there.
    let sandbox = side_by_side(|sandbox| {
        let publish = "echo '[\"port\", 8080]' | piton output set interface; touch {published}; \
                       while ! test -e {read}; do sleep 0.01; done; echo done > server.txt";
        let read = "dump-prompt {prompt}; sh printenv PITON_OUTPUT_server_interface > {env}; \
                    sh piton output get interface > {got}; write client.txt x; touch {read}";
        vec![
            command_step(sandbox, "server", publish, "outputs = ['interface']"),
            agent_step(sandbox, "client", read, "needs = ['server:interface']"),
        ]
    });
    sandbox.piton(&RUN).output().success();
    assert_eq!(completions(&sandbox), [("client".into(), 1), ("server".into(), 1)].into());
    for mark in ["env", "got"] {
        assert_eq!(sandbox.read(sandbox.mark(mark)), "[\"port\", 8080]\n", "{mark}");
    }
    let prompt = sandbox.read(sandbox.mark("prompt"));
    assert!(prompt.contains("- server:interface = [\"port\", 8080]"), "{prompt}");
    for verb in ["piton checkpoint", "piton ask", "piton output set"] {
        assert!(prompt.contains(verb), "{verb}: {prompt}");
    }
    let shown = view(&sandbox);
    assert_eq!(output(&shown, "server", "interface")["value"], json!(["port", 8080]));
    assert_eq!(step(&shown, "client")["needs"], json!(["server:interface"]));
    let show = sandbox.piton(&["show"]).output().success();
    assert!(show.stdout.contains("output interface = [\"port\",8080], set by attempt 1"), "{show}");
}

#[test]
fn a_long_output_is_a_file_for_its_reader() {
    let sandbox = sandbox_of(|sandbox| {
        let publish =
            "head -c 5000 /dev/zero | tr '\\0' x | sed 's/.*/\"&\"/' | piton output set big";
        let read =
            "cp \"$PITON_OUTPUT_FILE_server_big\" {file}; piton output get server:big > {got}";
        vec![
            command_step(sandbox, "server", publish, "outputs = ['big']"),
            command_step(sandbox, "client", read, "needs = ['server']"),
        ]
    });
    sandbox.piton(&RUN).output().success();
    let long = format!("\"{}\"", "x".repeat(5000));
    assert_eq!(sandbox.read(sandbox.mark("file")), long);
    assert_eq!(sandbox.read(sandbox.mark("got")), format!("{long}\n"));
    let shown = view(&sandbox);
    assert_eq!(output(&shown, "server", "big")["bytes"], 5002);
    assert_eq!(output(&shown, "server", "big").get("value"), None);
}

#[test]
fn an_output_survives_the_death_of_who_set_it_and_not_a_reset() {
    let sandbox = sandbox_of(|sandbox| {
        let work = "count {starts}; nth {starts} 1: sh echo 1 | piton output set spec; \
                    nth {starts} 1: kill-self KILL; write done.txt done";
        vec![agent_step(sandbox, "work", work, "outputs = ['spec']")]
    });
    sandbox.piton(&RUN).output().success();
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 2);
    assert_eq!(events_named(&sandbox, "output_set").len(), 1, "it was set once");
    assert_eq!(data(&sandbox, &["output", "get", "spec"])["value"], 1);
}

#[test]
fn a_reset_takes_outputs_back() {
    let sandbox = crate::sandbox();
    let plan = "[plan]\nname = 'hand'\n[[step]]\nid = 'work'\noutputs = ['spec']\n\
                [[step]]\nid = 'next'\nneeds = ['work:spec']\n";
    lay_plan(&sandbox, plan);
    let fence = data(&sandbox, &["claim", "plan.toml", "--worktree", "."])["fence"].to_string();
    let set = |json: &str| {
        let set = ["output", "set", "plan.toml", "work", "spec", "--fence", &fence];
        sandbox.piton(&set).input(json).output()
    };
    assert_eq!(refused(&sandbox, &["output", "get", "spec"]).1, "E106");
    let (code, kind, message) =
        refused(&sandbox, &["complete", "plan.toml", "work", "--fence", &fence]);
    assert_eq!((code, kind.as_str()), (1, "E107"), "{message}");
    set("{broken").expect_code(2);
    set("[1, 2]").success();
    set("[1, 2]").success();
    assert_eq!(events_named(&sandbox, "output_set").len(), 1, "said twice, recorded once");
    let ready = data(&sandbox, &["ready"]);
    assert!(ready.to_string().contains("next"), "{ready}");
    data(&sandbox, &["release", "plan.toml", "work", "--fence", &fence]);
    data(&sandbox, &["reset", "plan.toml", "work"]);
    assert_eq!(refused(&sandbox, &["output", "get", "work:spec"]).1, "E106");
    let shown = view(&sandbox);
    assert_eq!(step(&shown, "next")["waits_for"], json!(["work:spec"]));
    // A holder that lost its claim publishes nothing.
    let (code, kind) = (set("3").code, events_named(&sandbox, "output_set").len());
    assert_eq!((code, kind), (Some(5), 1));
}

#[test]
fn a_score_below_its_bound_spends_a_retry_and_is_told() {
    let sandbox = sandbox_of(|sandbox| {
        let review = "count {starts}; nth {starts} 1: sh echo 0.6 | piton output set score; \
                      nth {starts} 2: dump-prompt {prompt}; \
                      nth {starts} 2: sh echo 0.9 | piton output set score; write review.txt x";
        vec![agent_step(sandbox, "review", review, "retries = 1\nrequire = { score = '>= 0.8' }")]
    });
    sandbox.piton(&RUN).output().success();
    let failed = events_named(&sandbox, "failed");
    assert_eq!(
        failed[0]["why"],
        json!({ "output": { "output": "score", "value": "0.6", "bound": ">= 0.8" } })
    );
    let prompt = sandbox.read(sandbox.mark("prompt"));
    let told = "An earlier attempt failed: output score is 0.6, and must be >= 0.8.";
    assert!(prompt.contains(told), "{prompt}");
    assert!(prompt.contains("Publish `score`, a number >= 0.8 before you end."), "{prompt}");
    assert_eq!(completions(&sandbox)["review"], 1);
}

#[test]
fn a_step_that_publishes_nothing_has_not_done_its_work() {
    let sandbox = sandbox_of(|sandbox| {
        vec![command_step(sandbox, "work", "echo x > x.txt", "outputs = ['spec']")]
    });
    sandbox.piton(&RUN).output().expect_code(1);
    let failed = events_named(&sandbox, "failed");
    assert!(failed[0]["why"]["unfinished"]["open"].as_str().expect("words").contains("spec"));
}

#[test]
fn a_wait_goes_on_after_a_kill_since_it_began() {
    let sandbox = side_by_side(|sandbox| {
        let waits = "echo start >> {starts}; touch {waiting}; piton output wait late:word > {word}; \
                     cp {word} word.txt";
        let sets =
            "while ! test -e {go}; do sleep 0.01; done; echo '\"now\"' | piton output set word";
        vec![
            command_step(sandbox, "early", waits, ""),
            command_step(sandbox, "late", sets, "outputs = ['word']"),
        ]
    });
    let worker = sandbox.piton(&RUN).spawn();
    sandbox.wait_exists(sandbox.mark("waiting"));
    wait_event(&sandbox, "output_awaited");
    let awaited = |view: &Value| step(view, "early")["awaits_output"].clone();
    let shown = view(&sandbox);
    assert_eq!(awaited(&shown)["output"], "late:word", "{shown:#}");
    let status = sandbox.piton(&["status"]).output().success();
    assert!(status.stdout.contains("waits for late:word since"), "{status}");
    let since = awaited(&shown)["since"].clone();
    // The whole attempt dies, its keeper first; another one says the same again.
    let claim = events_named(&sandbox, "claimed");
    let early = claim.iter().find(|event| event["step"]["step"] == "early").expect("its claim");
    let keeper = step(&shown, "early")["attempts"][0]["pid"].as_u64().expect("a keeper");
    kill9(u32::try_from(keeper).expect("a pid"));
    sandbox.wait_until("the second wait", || {
        let begun = events(&sandbox);
        let again = begun.iter().filter(|event| event["event"] == "claimed");
        let again = again.filter(|event| event["step"] == early["step"]).count() == 2;
        again && sandbox.lines(sandbox.mark("starts")) == 2
    });
    sandbox.wait_until("it to be shown again", || awaited(&view(&sandbox))["since"] == since);
    sandbox.write(sandbox.mark("go"), "");
    worker.wait().success();
    assert_eq!(sandbox.read(sandbox.mark("word")), "\"now\"\n");
    assert_eq!(events_named(&sandbox, "output_awaited").len(), 1);
}

#[test]
fn a_wait_for_itself_is_refused_by_name() {
    let sandbox = sandbox_of(|sandbox| {
        let waits = "piton output wait late:word 2> {said}; echo $? > {code}; echo x > x.txt";
        vec![
            command_step(sandbox, "early", waits, ""),
            command_step(sandbox, "late", "echo 1 | piton output set word", "outputs = ['word']"),
        ]
    });
    sandbox.piton(&RUN).output().success();
    assert_eq!(sandbox.read(sandbox.mark("code")), "1\n");
    let said = sandbox.read(sandbox.mark("said"));
    assert!(said.contains("step early would wait for itself"), "{said}");
    let late = refused(&sandbox, &["output", "wait", "late:other", "--timeout", "10m"]);
    assert!(late.2.contains("step late is done and has no output other"), "{late:?}");
    assert_eq!(data(&sandbox, &["output", "wait", "word"])["value"], 1);
}

#[test]
fn waiting_has_an_end() {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, "[plan]\nname = 'hand'\n[[step]]\nid = 'work'\n");
    data(&sandbox, &["open", "plan.toml"]);
    let waited = refused(&sandbox, &["output", "wait", "work:x", "--timeout", "10ms"]);
    assert_eq!((waited.0, waited.1.as_str()), (75, "E106"));
    assert_eq!(refused(&sandbox, &["output", "get", "nowhere:x"]).1, "E059");
    assert_eq!(refused(&sandbox, &["output", "get", "X"]).1, "E071");
}

/// Killed anywhere, the reader gets the same.
#[test]
fn outputs_are_there_after_a_kill_anywhere() {
    for point in
        ["keeper.started", "keeper.agent-spawned", "keeper.exit-recorded", "keeper.verified"]
    {
        let sandbox = sandbox_of(|sandbox| {
            let read = "printenv PITON_OUTPUT_one_word > word.txt";
            vec![
                command_step(
                    sandbox,
                    "one",
                    "echo '\"x\"' | piton output set word",
                    "outputs = ['word']",
                ),
                command_step(sandbox, "two", read, "needs = ['one']"),
            ]
        });
        let held = sandbox.crash_point(point, 1);
        let worker = sandbox.piton(&RUN).crash_at(&held).spawn();
        let hit = held.wait_hit();
        drop(worker.kill9());
        kill9(hit);
        sandbox.piton(&["resume"]).output().success();
        assert_eq!(landed(&sandbox, "word.txt"), "\"x\"", "{point}");
    }
}
