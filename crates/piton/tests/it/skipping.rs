//! `skip_if` with the real binary: work that is there already is found and not done again, at most once
//! recorded, and its command is executed only when trusted.

use piton_testkit::kill9;
use piton_testkit::runs::{
    command_step, completions, data, events_named, landed_files, refused, step, view,
};

use crate::sandbox_of;

const RUN: [&str; 4] = ["run", "plan.toml", "--auto-continue", "--trust"];

#[test]
fn what_is_there_already_is_found_and_not_run() {
    let sandbox = sandbox_of(|sandbox| {
        let touch = |id: &str| format!("touch {{{id}}}; echo x > {id}.txt");
        vec![
            command_step(sandbox, "old", &touch("old"), "skip_if = 'test -e README.md'"),
            command_step(
                sandbox,
                "new",
                &touch("new"),
                "skip_if = 'test -e new.txt'\nneeds = ['old']",
            ),
        ]
    });
    let out = sandbox.piton(&RUN).output().success();
    assert!(out.stderr.contains("found done: `test -e README.md` passed"), "{out}");
    assert!(!sandbox.mark("old").exists() && sandbox.mark("new").exists());
    let files = landed_files(&sandbox);
    assert!(files.contains("new.txt") && !files.contains("old.txt"), "{files}");
    let shown = view(&sandbox);
    assert_eq!(
        (&shown["status"], &step(&shown, "old")["truth"]),
        (&"completed".into(), &"verified".into())
    );
    assert_eq!(step(&shown, "old")["attempts"][0]["state"], "found");
    assert_eq!(events_named(&sandbox, "found_done").len(), 1);
    assert_eq!(completions(&sandbox), [("new".into(), 1)].into());
    let show = sandbox.piton(&["show"]).output().success();
    assert!(show.stdout.contains("found done, not run"), "{show}");
}

#[test]
fn a_kill_before_it_is_recorded_finds_it_again() {
    let sandbox = sandbox_of(|sandbox| {
        let more = "skip_if = 'echo asked >> {asked}; test -e README.md'";
        vec![command_step(
            sandbox,
            "old",
            "touch {ran}",
            &piton_testkit::runs::marked(sandbox, more),
        )]
    });
    let held = sandbox.crash_point("keeper.tree-prepared", 1);
    let worker = sandbox.piton(&RUN).crash_at(&held).spawn();
    let hit = held.wait_hit();
    drop(worker.kill9());
    kill9(hit);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(sandbox.lines(sandbox.mark("asked")), 1);
    assert!(!sandbox.mark("ran").exists());
    assert_eq!(events_named(&sandbox, "found_done").len(), 1);
}

#[test]
fn its_command_is_inert_until_trusted() {
    let sandbox = sandbox_of(|sandbox| {
        let more = piton_testkit::runs::marked(sandbox, "skip_if = 'touch {asked}'");
        vec![command_step(sandbox, "old", "true", &more)]
    });
    let (code, kind, message) = refused(&sandbox, &["run", "plan.toml", "--auto-continue"]);
    assert_eq!((code, kind.as_str()), (77, "E063"), "{message}");
    assert!(message.contains("step old: skip_if: touch"), "{message}");
    assert!(!sandbox.mark("asked").exists());
    data(&sandbox, &["trust", "plan.toml", "--yes"]);
    sandbox.piton(&["run", "plan.toml", "--auto-continue"]).output().success();
    assert!(sandbox.mark("asked").exists());
}
