//! What is found before a run starts, and what does not have to be named: the plan in a folder above,
//! the claim of the worktree that one is in.

use piton_testkit::runs::{events_named, lay_plan};
use serde_json::Value;

use crate::outside::Lab;

/// The warnings of a command's envelope, a message each.
fn messages(answer: &Value) -> Vec<String> {
    let issues = answer["issues"].as_array().expect("issues");
    issues.iter().map(|issue| issue["message"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn what_a_run_would_meet_is_said_before_it_starts() {
    let sandbox = crate::sandbox();
    lay_plan(
        &sandbox,
        "[plan]\nname = 'x'\n[agent.a]\ncommand = ['no-such-agent']\n\
         [[step]]\nid = 's'\nrun = 'echo done > s.txt'\nverify = 'CI=1 no-such-program --all; true'\n\
         [[step]]\nid = 't'\nagent = 'a'\nprompt = 'p'\n",
    );
    sandbox.write("README.md", "changed\n");
    sandbox.write("new.txt", "new\n");
    let wanted = [
        "agent a: there is no program no-such-agent in PATH",
        "no program no-such-program in PATH, used by s",
        "agents will not see 2 uncommitted changes: README.md, new.txt",
    ];
    let check = sandbox.piton(&["plan", "check", "--json"]).output().success().json();
    assert_eq!(messages(&check), wanted);
    let run = sandbox.piton(&["run", "--trust", "--json"]).output().expect_code(4).json();
    let said = messages(&run);
    assert!(wanted.iter().all(|line| said.iter().any(|said| said == line)), "{said:?}");
}

#[test]
fn the_plan_is_found_from_a_folder_below() {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, "[plan]\nname = 'x'\n[[step]]\nid = 's'\nrun = 'echo > s.txt'\n");
    sandbox.write("src/deep/x", "");
    let deep = sandbox.path("src/deep");
    let run = sandbox.piton(&["run", "--trust"]).cwd(&deep).output().success();
    assert!(run.stderr.contains("a new run, 1 step"), "{run}");
    assert_eq!(events_named(&sandbox, "completed").len(), 1);
    std::fs::remove_file(sandbox.path("plan.toml")).expect("it is there");
    let none = sandbox.piton(&["run"]).cwd(&deep).output().expect_code(2);
    assert!(none.stderr.contains("there is no plan.toml here or in a folder above"), "{none}");
}

#[test]
fn in_the_claimed_worktree_run_step_claim_and_commit_need_no_name() {
    let lab = Lab::trusting();
    let (tree, _) = lab.claim("jwt", &[]);
    // Another run, so that none is the only unfinished one.
    lab.sandbox.write("other.toml", "[plan]\nname = 'other'\n[[step]]\nid = 'a'\n");
    lab.data(&["open", "other.toml"]);
    let below = tree.join("src");
    std::fs::create_dir_all(&below).expect("a folder is made");
    let say = |args: &[&str]| lab.sandbox.piton(args).cwd(&below).output();
    say(&["start", "--json"]).success();
    say(&["checkpoint", "--note", "half"]).success();
    say(&["item", "add", "look again"]).success();
    say(&["check", "--done", "1"]).success();
    lab.sandbox.write(tree.join("auth.ts"), "export {}\n");
    let refused = say(&["complete", "--commit"]).expect_code(1);
    assert!(refused.stderr.contains("uncommitted changes: auth.ts"), "{refused}");
    let commit = lab.commit(&tree, "auth.ts", "export {}\n");
    let done = say(&["complete", "--commit", "--json"]).success().json();
    assert_eq!(
        (&done["data"]["step"], &done["data"]["truth"]),
        (&"jwt".into(), &"verified".into())
    );
    assert_eq!(done["data"]["commit"], commit.as_str());
}
