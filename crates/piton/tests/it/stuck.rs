//! Ways to get stuck, and the way out of each: an attempt whose lock does not answer, a folder for worktrees
//! that leads elsewhere. No verb waits for ever, and what is hinted, pasted, lets the run go on.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use piton_testkit::runs::{
    agent_step, all_killed, attempt_folder, data, events_named, lay_plan, plan, view,
};
use piton_testkit::{Output, Sandbox};

/// Something that is done, and what it is called.
type Done<'a, To> = (&'a str, &'a dyn Fn(&To));

/// A run whose worker, keeper and agent were killed.
pub(crate) fn killed() -> Sandbox {
    let sandbox = crate::sandbox();
    let script = "write work.txt precious; pid {agent}; touch {ready}; once {hung}: hang";
    lay_plan(&sandbox, &plan(&sandbox, &[agent_step(&sandbox, "work", script, "")]));
    let run = ["run", "plan.toml", "--trust", "--grace", "300ms"];
    all_killed(&sandbox, &run);
    sandbox
}

/// The commands that were hinted.
pub(crate) fn hinted(output: &Output) -> Vec<String> {
    let hints = output.stderr.lines().skip_while(|line| !line.starts_with("hint: "));
    let text = hints.collect::<Vec<_>>().join(" ");
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[track_caller]
fn pasted(sandbox: &Sandbox, command: &str) {
    let mut shell = sandbox.command("sh");
    let done = shell.args(["-c", command]).output().expect("a shell");
    assert!(!done.stdout.is_empty() || done.status.success(), "{command}: {done:?}");
}

#[test]
fn a_lock_that_does_not_answer_is_unknown_and_named() {
    let damages: [Done<'_, Path>; 4] = [
        ("a link to itself", &|lock| symlink(lock, lock).expect("a link")),
        ("a pipe", &|lock| {
            let made = std::process::Command::new("mkfifo").arg(lock).status();
            assert!(made.expect("mkfifo").success());
        }),
        ("a folder", &|lock| fs::create_dir(lock).expect("a folder")),
        ("closed", &|lock| {
            fs::write(lock, "").expect("a file");
            fs::set_permissions(lock, fs::Permissions::from_mode(0o000)).expect("ours");
        }),
    ];
    for (what, damage) in damages {
        let sandbox = killed();
        let claimed = &events_named(&sandbox, "claimed")[0];
        let lock = attempt_folder(&sandbox, &claimed["attempt"]).join("keeper.lock");
        fs::remove_file(&lock).expect("there");
        damage(&lock);
        if what == "closed" && fs::File::open(&lock).is_ok() {
            // Nothing is shut for root.
            continue;
        }
        let shown = view(&sandbox);
        assert_eq!(shown["steps"][0]["attempts"][0]["state"], "unknown", "{what}");
        for verb in [&["resume"][..], &["stop", "--now"]] {
            let refused = sandbox.piton(verb).output();
            assert_ne!(refused.code, Some(0), "{what}: {refused}");
            assert!(refused.stderr.contains("keeper.lock cannot be opened"), "{what}: {refused}");
            assert_eq!(hinted(&refused), ["piton doctor --repair"], "{what}: {refused}");
        }
        pasted(&sandbox, "piton doctor --repair");
        sandbox.piton(&["resume"]).output().success();
        assert_eq!(view(&sandbox)["status"], "completed", "{what}");
    }
}

#[test]
fn worktrees_are_not_made_where_the_repository_leads_elsewhere() {
    let outside = |sandbox: &Sandbox| {
        let outside = sandbox.root().join("outside");
        fs::create_dir(&outside).expect("a folder");
        outside
    };
    let link = |sandbox: &Sandbox, at: &str| {
        fs::create_dir_all(sandbox.path(at).parent().expect("a folder")).expect("folders");
        symlink(outside(sandbox), sandbox.path(at)).expect("a link");
    };
    let root = |sandbox: &Sandbox, root: &str| {
        sandbox.write("piton.toml", &format!("[worktree]\nroot = '{root}'\n"));
    };
    let cases: [Done<'_, Sandbox>; 4] = [
        (".piton is a link", &|sandbox| {
            link(sandbox, ".piton");
            sandbox.git(&["add", "-f", ".piton"]);
            sandbox.git(&["commit", "-qm", "a link"]);
        }),
        (".piton/worktrees is a link", &|sandbox| link(sandbox, ".piton/worktrees")),
        ("the root goes through a link", &|sandbox| {
            link(sandbox, "trees");
            root(sandbox, "trees/deep");
        }),
        ("the root is the git directory", &|sandbox| root(sandbox, ".git")),
    ];
    for (what, make) in cases {
        let sandbox = crate::sandbox();
        let by_hand = "[[step]]\nid = 'hand'\n";
        let step = agent_step(&sandbox, "work", "write work.txt x", "");
        lay_plan(&sandbox, &plan(&sandbox, &[step, by_hand.to_owned()]));
        // Also where the run was opened before; what it has recorded of the settings counts then.
        let opened_before = what.starts_with(".piton");
        if opened_before {
            data(&sandbox, &["open", "plan.toml"]);
        }
        make(&sandbox);
        let verbs: [&[&str]; 3] = [
            &["worktree", "create", "test", "hand"],
            &["run", "plan.toml", "--trust", "--fresh", "--yes"],
            &["run", "plan.toml", "--trust", "--auto-continue"],
        ];
        for verb in verbs.iter().skip(usize::from(!opened_before)) {
            let refused = sandbox.piton(verb).output();
            assert_ne!(refused.code, Some(0), "{what}: {refused}");
            assert!(refused.stderr.contains("worktrees cannot be made in"), "{what}: {refused}");
        }
        let there = fs::read_dir(sandbox.root().join("outside"));
        assert_eq!(there.map_or(0, Iterator::count), 0, "{what}: something was made outside");
        assert_eq!(sandbox.git(&["worktree", "list"]).lines().count(), 1, "{what}");
    }
}
