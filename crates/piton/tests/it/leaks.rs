//! An agent that leaves its worktree: what changes in the user's own checkout while a step runs is
//! told with the step, and what was there before is not.

use piton_testkit::runs::{command_step, events_named, lay_plan, plan, step, view};

use crate::sandbox;

#[test]
fn files_of_the_checkout_that_change_meanwhile_are_told_with_the_step() {
    let sandbox = sandbox();
    sandbox.write("tracked.txt", "1");
    sandbox.write("committed.txt", "1");
    sandbox.commit("files");
    let root = sandbox.repo();
    let root = root.display();
    let steps = [
        command_step(&sandbox, "stays", "echo mine > inside.txt", ""),
        command_step(
            &sandbox,
            "leaves",
            &format!(
                "cd '{root}' && echo 2 > tracked.txt && echo 2 > 'a new ü.txt' && \
                 echo 2 > dirty.txt && echo 2 > committed.txt && git commit -qm x committed.txt"
            ),
            "needs = [\"stays\"]",
        ),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    sandbox.write("dirty.txt", "was changed before, and will be again");
    sandbox.write("untouched.txt", "was changed before");
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).output().success();
    assert!(run.stderr.contains("step leaves: files of your checkout changed"), "{run}");
    assert!(!run.stderr.contains("step stays: files of your checkout"), "{run}");

    let told = events_named(&sandbox, "checkout_changed");
    assert_eq!(told.len(), 1, "{told:?}");
    let files: Vec<&str> = told[0]["files"]
        .as_array()
        .expect("files")
        .iter()
        .filter_map(serde_json::Value::as_str)
        .collect();
    assert_eq!(files, ["a new ü.txt", "committed.txt", "dirty.txt", "tracked.txt"]);
    let view = view(&sandbox);
    let changed = |id: &str| step(&view, id)["attempts"][0]["checkout_changed"]["files"].clone();
    assert_eq!(changed("leaves").as_array().map(Vec::len), Some(4));
    assert!(changed("stays").is_null());
    let shown = sandbox.piton(&["show"]).output().success().stdout;
    assert!(shown.contains("by whom is unknown: a new ü.txt, committed.txt"), "{shown}");
}
