//! What becomes of an unfinished run: abandoned, continued, reviewed, merged or started afresh.

use piton_testkit::Terminal;
use piton_testkit::runs::{command_step, lay_plan, plan, view, why_not};

use super::{Lab, stopped};

#[test]
fn abandoning_ends_what_lives_and_keeps_all_of_it() {
    let sandbox = crate::sandbox();
    let ready = sandbox.mark("ready");
    let wait = format!("echo half > half.txt; touch {}; sleep 1000", ready.display());
    let steps = [command_step(&sandbox, "build", &wait, ""), "[[step]]\nid = 'hand'\n".to_owned()];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let lab = Lab { sandbox };
    lab.data(&["open", "plan.toml"]);
    let tree = lab.open_tree("hand");
    lab.claim("hand", &tree);
    lab.sandbox.write(tree.join("mine.txt"), "mine\n");
    lab.data(&["trust", "plan.toml", "--yes"]);
    let handle = view(&lab.sandbox)["handle"].as_str().expect("a handle").to_owned();
    let run = view(&lab.sandbox)["run"].as_str().expect("an id").to_owned();
    let running = lab.sandbox.piton(&["resume", &run]).spawn();
    lab.sandbox.wait_exists(&ready);
    // Nobody is there to agree: nothing happens, and it is said what would.
    let out = lab.sandbox.piton(&["abandon", &handle]).output().expect_code(4);
    assert!(out.stderr.contains("error[E104]") && out.stderr.contains("--yes"), "{out}");
    assert!(out.stderr.contains("ends: 2 attempts") && out.stderr.contains("stays: "), "{out}");
    assert_eq!(lab.status(&handle), "running");
    let done = lab.data(&["abandon", &handle, "--yes"]);
    running.wait();
    lab.sandbox.wait_no_processes();
    assert_eq!(done["run"]["status"], "abandoned");
    let snapshots = lab.sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
    let has = |file: &str, text: &str| {
        snapshots.lines().any(|name| {
            lab.sandbox.try_git(&["show", &format!("{name}:{file}")]).is_ok_and(|kept| kept == text)
        })
    };
    assert!(has("half.txt", "half") && has("mine.txt", "mine"), "{snapshots}");
    assert!(tree.join("mine.txt").exists(), "worktrees stay");
    let claim = lab.data(&["claim", &handle, "--worktree", "."]);
    assert_eq!(claim["claimed"], false);
    assert_eq!(why_not(&claim, "hand"), "the run was abandoned");
    lab.sandbox.piton(&["abandon", &handle, "--yes"]).output().expect_code(1);
    let out = lab.sandbox.piton(&["resume", &handle]).output().expect_code(1);
    assert!(out.stderr.contains("error[E073]") && out.stderr.contains("piton undo"), "{out}");
    // Its plan is free for another run; that one stands in the way of the old one, until it is given up.
    let second = lab.data(&["open", "plan.toml"])["run"]["handle"].clone();
    let second = second.as_str().expect("a handle");
    assert_ne!(second, handle);
    let out = lab.sandbox.piton(&["undo"]).output().expect_code(1);
    let ways = format!("`piton abandon {second}`, then `piton undo 1`");
    assert!(out.stderr.contains("error[E101]") && out.stderr.contains(&ways), "{out}");
    lab.data(&["abandon", second, "--yes"]);
    lab.data(&["undo", "1"]);
    assert_eq!(lab.status(&handle), "stopped");
}

#[test]
fn without_a_terminal_an_unfinished_run_is_an_error_with_the_commands_to_paste() {
    let (lab, handle) = stopped();
    lab.open_gate();
    let out = lab.sandbox.piton(&["run", "plan.toml"]).output().expect_code(4);
    for part in ["error[E105]", &handle, "piton resume", "--auto-continue", "--fresh --yes"] {
        assert!(out.stderr.contains(part), "{part}: {out}");
    }
    let out = lab.sandbox.piton(&["run", "plan.toml", "--fresh"]).output().expect_code(4);
    assert!(out.stderr.contains("error[E104]") && out.stderr.contains("attic"), "{out}");
    assert_eq!(lab.status(&handle), "stopped");
    // The same plan in another file, to the letter, is as much a reason to ask.
    lab.sandbox.write("moved.toml", &lab.sandbox.read("plan.toml"));
    let out = lab.sandbox.piton(&["run", "moved.toml", "--trust"]).output().expect_code(4);
    let resume = format!("`piton resume {handle}`");
    for part in ["error[E105]", &resume, "`piton run moved.toml --fresh --yes`"] {
        assert!(out.stderr.contains(part), "{part}: {out}");
    }
    let beside = ["run", "moved.toml", "--trust", "--fresh", "--yes"];
    lab.sandbox.piton(&beside).output().success();
    assert_eq!(lab.status(&handle), "stopped");
    // One that only has its name is told of, and does not stand in the way.
    let other = lab.sandbox.read("plan.toml").replace("'first'", "'before'");
    lab.sandbox.write("other.toml", &other);
    let out = lab.sandbox.piton(&["run", "other.toml", "--trust"]).output().success();
    assert!(out.stderr.contains("looks like the same plan"), "{out}");
    lab.sandbox.piton(&["run", "plan.toml", "--auto-continue"]).output().success();
    assert_eq!(lab.status(&handle), "completed");
}

#[test]
fn a_fresh_start_that_nobody_has_worked_on_is_undone_in_one_go() {
    let (lab, handle) = stopped();
    let fresh = || {
        let opened = lab.data(&["open", "plan.toml", "--fresh"]);
        opened["run"]["handle"].as_str().expect("a handle").to_owned()
    };
    let new = fresh();
    assert_eq!((lab.status(&handle), lab.status(&new)), ("abandoned".into(), "open".into()));
    let attic = lab.data(&["status", &handle])["run"].clone();
    assert!(attic["keep_until"].as_str() > attic["changed_at"].as_str(), "{attic:#}");
    let undone = lab.data(&["undo"]);
    assert_eq!(undone["deed"], "fresh start");
    assert_eq!((lab.status(&handle), lab.status(&new)), ("stopped".into(), "abandoned".into()));
    // Once somebody has taken a step of the new one it is theirs to end.
    let newer = fresh();
    let tree = lab.open_tree("first");
    lab.claim("first", &tree);
    let out = lab.sandbox.piton(&["undo"]).output().expect_code(1);
    assert!(out.stderr.contains(&format!("`piton abandon {newer}`")), "{out}");
    assert_eq!(lab.status(&handle), "abandoned");
    lab.data(&["abandon", &newer, "--yes"]);
    lab.data(&["undo", "2"]);
    assert_eq!(lab.status(&handle), "stopped");
}

#[test]
fn the_menu_continues_reviews_and_starts_fresh_only_when_it_is_said_twice() {
    let (lab, handle) = stopped();
    let shows = |terminal: &Terminal, text: &str| {
        lab.sandbox.wait_until(text, || terminal.shown().contains(text));
    };
    let mut terminal = Terminal::start(&lab.sandbox, &["run", "plan.toml"]);
    shows(&terminal, "start fresh");
    assert!(terminal.shown().contains(&handle));
    terminal.type_in("whatever\n");
    shows(&terminal, "is none of them: type c, r, m, f or q, or the word beside it");
    terminal.type_in("Review\n");
    shows(&terminal, "first.txt");
    terminal.type_in("m\n");
    shows(&terminal, "Merge it?");
    assert!(!lab.sandbox.exists("first.txt"), "nothing is merged before it is agreed to");
    terminal.type_in("y\n");
    shows(&terminal, "moved forward to");
    lab.sandbox.wait_until("the merge", || lab.sandbox.exists("first.txt"));
    terminal.type_in("f\n");
    shows(&terminal, "start over?");
    terminal.type_in("y\n");
    shows(&terminal, "Sure?");
    terminal.type_in("n\n");
    terminal.wait().expect_code(4);
    assert_eq!(lab.status(&handle), "stopped", "once is not enough");

    lab.open_gate();
    let mut terminal = Terminal::start(&lab.sandbox, &["run", "plan.toml"]);
    shows(&terminal, "start fresh");
    terminal.type_in("fresh\n");
    shows(&terminal, "start over?");
    terminal.type_in("y\n");
    shows(&terminal, "Sure?");
    terminal.type_in("y\n");
    terminal.wait().expect_code(0);
    assert_eq!(lab.status(&handle), "abandoned");
    // For 30 days nothing of it goes, however safe.
    let stays = lab.verdicts(&["--interrupted", "--completed"]);
    let old = stays.iter().find(|(path, _)| path.to_string_lossy().contains(&handle));
    assert!(old.expect("its worktree").1.1.contains("attic"), "{stays:?}");
    lab.data(&["undo"]);
    assert_eq!(lab.status(&handle), "stopped", "the new run is completed: nothing is in the way");

    let mut terminal = Terminal::start(&lab.sandbox, &["run", "plan.toml"]);
    shows(&terminal, "start fresh");
    terminal.type_in("\n");
    terminal.wait().expect_code(0);
    assert_eq!(lab.status(&handle), "completed");
}

#[test]
fn the_menu_looks_again_once_it_is_answered() {
    let (lab, handle) = stopped();
    let menu = |answer: &str, meanwhile: &dyn Fn()| {
        let mut terminal = Terminal::start(&lab.sandbox, &["run", "plan.toml"]);
        lab.sandbox.wait_until("the menu", || terminal.shown().contains("start fresh"));
        meanwhile();
        terminal.type_in(answer);
        terminal
    };
    let mut terminal = menu("c\n", &|| {
        lab.data(&["abandon", &handle, "--yes"]);
    });
    let out = terminal.wait().expect_code(1);
    assert!(out.stdout.contains("abandoned"), "{out}");
    lab.data(&["undo"]);

    lab.open_gate();
    terminal = menu("c\n", &|| {
        lab.sandbox.piton(&["resume", &handle]).output().success();
    });
    let out = terminal.wait().expect_code(0);
    assert!(out.stdout.contains("is completed"), "{out}");
    let runs = lab.data(&["status", "--ended"]);
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1), "nothing was started: {runs:#}");
}
