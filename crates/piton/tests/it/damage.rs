//! A store whose bytes are not what they were, through every verb: a named error, a next command that
//! exists, the exit status that says damage, and not one byte changed. Never an empty list.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use piton_testkit::runs::{
    OnDisk, agent_step, data, events, fold_store, lay_plan, plan, sql, store_file, tree, view,
};
use piton_testkit::{Output, Sandbox, Signal};

const VERBS: [&[&str]; 10] = [
    &["status"],
    &["status", "--ended"],
    &["show"],
    &["log"],
    &["events"],
    &["resume"],
    &["resume", "--dry-run"],
    &["stop"],
    &["run", "plan.toml", "--auto-continue", "--trust"],
    &["run", "plan.toml", "--trust", "--fresh", "--yes"],
];

/// A repository with an interrupted run whose work is kept in a snapshot.
fn interrupted() -> Sandbox {
    let sandbox = crate::sandbox();
    let script = "count {starts}; write work.txt precious; touch {ready}; once {hung}: hang";
    let steps = [agent_step(&sandbox, "work", script, "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let worker = sandbox.piton(&["run", "plan.toml", "--trust", "--grace", "300ms"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    worker.signal(Signal::INT);
    worker.wait().expect_code(130);
    assert_eq!(view(&sandbox)["status"], "stopped");
    sandbox
}

fn state(sandbox: &Sandbox) -> PathBuf {
    sandbox.path(".git/piton")
}

/// The commands that a hint puts in quotes.
fn commands(hint: &str) -> Vec<String> {
    hint.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A command somebody can really type: a verb of piton's, or a program that is there.
#[track_caller]
fn assert_exists(sandbox: &Sandbox, command: &str) {
    let mut words = command.split_whitespace().skip_while(|word| word.contains('='));
    let program = words.next().expect("a command has a word");
    if program != "piton" {
        let found = sandbox.command("sh").args(["-c", "command -v \"$0\"", program]).output();
        assert!(found.expect("a shell").status.success(), "there is no {program}: {command}");
        return;
    }
    let verb = words.next().expect("a verb");
    let help = sandbox.piton(&["help", verb]).output();
    assert_eq!(help.code, Some(0), "there is no `{command}`");
}

/// The error as `--json` tells it: code, hint.
#[track_caller]
fn told(output: &Output, what: &str) -> (String, String) {
    let envelope = output.json();
    assert_eq!(envelope["status"], "error", "{what}: {output}");
    let issue = &envelope["issues"][0];
    let text = |name: &str| issue[name].as_str().unwrap_or_default().to_owned();
    assert!(!text("message").is_empty(), "{what}: {output}");
    (text("code"), text("hint"))
}

/// Every verb refuses with this exit status, says what to do next, and touches nothing.
#[track_caller]
fn assert_refused(sandbox: &Sandbox, what: &str, exit: i32, words: &str) {
    let changed = refused(sandbox, what, exit, words);
    assert!(changed.is_empty(), "{what}: {changed:?} was touched");
}

/// Every verb refuses; what they touched in the git directory all the same.
#[track_caller]
fn refused(sandbox: &Sandbox, what: &str, exit: i32, words: &str) -> Vec<PathBuf> {
    let before = OnDisk::of(&sandbox.path(".git"));
    for verb in VERBS {
        let what = format!("{what}: piton {}", verb.join(" "));
        let output = sandbox.piton(verb).arg("--json").output();
        assert_eq!(output.code, Some(exit), "{what}: {output}");
        let (code, hint) = told(&output, &what);
        assert!(["E046", "E047"].contains(&code.as_str()), "{what}: {output}");
        assert!(output.stdout.contains(words), "{what}: {output}");
        assert!(!commands(&hint).is_empty(), "{what} has nothing to type: {output}");
        commands(&hint).iter().for_each(|command| assert_exists(sandbox, command));
        let plain = sandbox.piton(verb).output().expect_code(exit);
        assert!(plain.stdout.is_empty(), "{what}: {plain}");
        assert!(plain.stderr.contains(&format!("error[{code}]")), "{what}: {plain}");
    }
    let overview = sandbox.piton(&[]).output();
    assert_eq!(overview.code, Some(exit), "{what}: {overview}");
    let doctor = sandbox.piton(&["doctor", "--json"]).output();
    assert!(matches!(doctor.code, Some(1 | 74)), "{what}: {doctor}");
    assert!(doctor.stdout.contains(words), "{what}: {doctor}");
    sandbox.wait_no_processes();
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 1, "{what}: an agent was started");
    before.differences(&OnDisk::of(&sandbox.path(".git")))
}

#[test]
fn an_undamaged_store_is_no_error() {
    let sandbox = interrupted();
    fold_store(&sandbox);
    assert_eq!(view(&sandbox)["status"], "stopped");
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(view(&sandbox)["status"], "completed");
}

/// What somebody does to the store's one file; every verb refuses, with these words.
#[track_caller]
fn damaged(what: &str, words: &str, damage: impl Fn(&Path)) {
    let sandbox = interrupted();
    fold_store(&sandbox);
    damage(&store_file(&sandbox));
    fs::set_permissions(store_file(&sandbox), fs::Permissions::from_mode(0o600)).expect("ours");
    assert_refused(&sandbox, what, 74, words);
}

#[test]
fn an_empty_store_is_named() {
    damaged("zero length", "the file is empty", |file| fs::write(file, "").expect("writable"));
}

#[test]
fn a_truncated_store_is_named() {
    damaged("half of it", "shorter than it says", |file| {
        let file = OpenOptions::new().write(true).open(file).expect("a store");
        let length = file.metadata().expect("a store").len();
        assert!(length > 8192);
        file.set_len(length / 2).expect("it can be cut");
    });
}

#[test]
fn a_foreign_file_is_named() {
    damaged("text", "not a piton store", |file| {
        fs::write(file, "Dear diary, ".repeat(2000)).expect("writable");
    });
    damaged("another program's database", "not a piton store", |file| {
        fs::remove_file(file).expect("a store");
        sql(file, "CREATE TABLE bookmarks (url TEXT); INSERT INTO bookmarks VALUES (1)");
    });
}

#[test]
fn a_newer_store_is_named_and_is_not_called_damaged() {
    let sandbox = interrupted();
    sql(&store_file(&sandbox), "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA user_version = 999");
    assert_refused(&sandbox, "schema 999", 69, "written by a newer piton (schema 999");
}

#[test]
fn a_deleted_store_is_named() {
    let sandbox = interrupted();
    fold_store(&sandbox);
    fs::remove_file(store_file(&sandbox)).expect("a store");
    assert!(sandbox.exists(".git/piton/store.head"), "something still speaks of it");
    assert_refused(&sandbox, "store.db deleted", 74, "gone");
    fs::remove_dir_all(state(&sandbox)).expect("a folder");
    assert!(!sandbox.git(&["for-each-ref", "refs/piton"]).is_empty(), "its snapshots are there");
    assert_refused(&sandbox, "everything deleted", 74, "snapshots of earlier runs");
}

#[test]
fn a_store_without_its_log_is_named() {
    let sandbox = interrupted();
    let log = sandbox.path(".git/piton/store.db-wal");
    assert!(fs::metadata(&log).expect("nobody has folded it in").len() > 0);
    fs::remove_file(&log).expect("a log");
    fs::remove_file(sandbox.path(".git/piton/store.db-shm")).expect("its index");
    let before = fs::read(store_file(&sandbox)).expect("a store");
    let changed = refused(&sandbox, "only store.db copied", 74, "store.db");
    // Whoever opens a database for writing makes its log; there is nothing in it.
    let made = ["piton", "piton/store.db-shm", "piton/store.db-wal"].map(PathBuf::from);
    assert!(changed.iter().all(|path| made.contains(path)), "{changed:?}");
    assert_eq!(fs::metadata(&log).map_or(0, |log| log.len()), 0);
    assert_eq!(fs::read(store_file(&sandbox)).expect("a store"), before);
}

#[test]
fn a_tampered_record_is_named() {
    let sandbox = interrupted();
    let record = "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'user_interrupt', \
                  'termination') AS BLOB)";
    let before = fs::read(store_file(&sandbox)).expect("a store");
    sql(&store_file(&sandbox), &format!("{record}; PRAGMA wal_checkpoint(TRUNCATE)"));
    assert_ne!(before, fs::read(store_file(&sandbox)).expect("a store"), "it was changed");
    for verb in [&["show"][..], &["resume"], &["run", "plan.toml", "--auto-continue", "--trust"]] {
        let output = sandbox.piton(verb).arg("--json").output().expect_code(74);
        let (code, hint) = told(&output, "tampered");
        assert_eq!(code, "E047", "{output}");
        commands(&hint).iter().for_each(|command| assert_exists(&sandbox, command));
    }
    let doctor = sandbox.piton(&["doctor"]).output().expect_code(74);
    assert!(doctor.stdout.contains("broken at position"), "{doctor}");
}

#[test]
fn state_that_others_may_write_to_is_refused() {
    let sandbox = interrupted();
    fs::set_permissions(state(&sandbox), fs::Permissions::from_mode(0o777)).expect("ours");
    assert_refused(&sandbox, "mode 777", 69, "other users may write to it");
    fs::set_permissions(state(&sandbox), fs::Permissions::from_mode(0o700)).expect("ours");
    assert_eq!(view(&sandbox)["status"], "stopped", "well again");
}

#[test]
fn state_behind_a_symbolic_link_is_refused() {
    let sandbox = interrupted();
    let elsewhere = sandbox.root().join("elsewhere");
    fs::rename(state(&sandbox), &elsewhere).expect("a folder can be moved");
    symlink(&elsewhere, state(&sandbox)).expect("a link");
    assert_refused(&sandbox, "a link", 69, "symbolic link");
    fs::remove_file(state(&sandbox)).expect("the link");
    fs::rename(&elsewhere, state(&sandbox)).expect("moved back");

    let kept = sandbox.root().join("kept.db");
    fs::rename(store_file(&sandbox), &kept).expect("a file can be moved");
    symlink(&kept, store_file(&sandbox)).expect("a link");
    assert_refused(&sandbox, "a link in it", 69, "symbolic link");
}

#[test]
fn a_file_in_the_place_of_the_state_is_not_called_a_lost_store() {
    let sandbox = interrupted();
    fs::rename(state(&sandbox), sandbox.root().join("aside")).expect("a folder can be moved");
    fs::write(state(&sandbox), "notes\n").expect("a file");
    fs::set_permissions(state(&sandbox), fs::Permissions::from_mode(0o600)).expect("ours");
    assert_refused(&sandbox, "a file", 69, "is not a directory");
    let doctor = sandbox.piton(&["doctor"]).output().expect_code(1);
    assert!(doctor.stdout.contains("it is not a folder"), "{doctor}");
}

#[test]
fn state_that_may_not_be_entered_is_not_called_a_lost_store() {
    let sandbox = interrupted();
    fs::set_permissions(state(&sandbox), fs::Permissions::from_mode(0o000)).expect("ours");
    // Nothing is shut for root.
    if fs::read_dir(state(&sandbox)).is_err() {
        assert_refused(&sandbox, "mode 000", 69, "cannot be opened");
    }
    let doctor = sandbox.piton(&["doctor"]).output().expect_code(1);
    assert!(doctor.stderr.contains("`piton doctor --repair`"), "{doctor}");
    let mended = sandbox.piton(&["doctor", "--repair"]).output().success();
    assert!(mended.stdout.contains("mode 000 is 700 now"), "{mended}");
    assert_eq!(view(&sandbox)["status"], "stopped", "well again");
}

/// Without a backup the records are lost; whoever pastes what is hinted goes on, and has the work.
#[test]
fn what_is_hinted_leads_out_of_a_lost_store() {
    let sandbox = interrupted();
    fold_store(&sandbox);
    let kept = view(&sandbox)["steps"][0]["snapshot"]["commit"].clone();
    fs::write(store_file(&sandbox), "Dear diary, ".repeat(2000)).expect("the store is writable");
    let doctor = sandbox.piton(&["doctor", "--json"]).output().expect_code(74);
    let told = sandbox.piton(&["status", "--json"]).output().expect_code(74);
    assert!(told.stdout.contains("not a piton store"), "{told}");
    let (_, hint) = self::told(&told, "foreign");
    assert_eq!(commands(&hint), ["piton doctor --repair --yes"]);
    let issues = doctor.json()["issues"].to_string();
    assert!(issues.contains(&serde_json::json!(hint).to_string()), "{doctor}");
    // Without that word the store stays where it is.
    sandbox.piton(&["doctor", "--repair"]).output().expect_code(74);
    sandbox.piton(&["doctor", "--repair", "--yes"]).output().success();
    assert!(
        sandbox.git(&["for-each-ref", "refs/lost-piton"]).contains(kept.as_str().expect("text"))
    );
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().success();
}

/// A backup of the whole folder speaks for itself; what git has says that it is old.
#[test]
fn a_log_that_ends_before_its_snapshots_is_not_gone_on_with() {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, "[plan]\nname = 'test'\n[[step]]\nid = 'work'\nrun = 'true'\n");
    data(&sandbox, &["open", "plan.toml"]);
    let backup = sandbox.root().join("backup");
    let copy = |from: &Path, to: &Path| {
        let done = sandbox.command("cp").arg("-a").args([from, to]).status();
        assert!(done.expect("cp").success());
    };
    copy(&state(&sandbox), &backup);
    let tree = tree(&sandbox, "one");
    data(&sandbox, &["claim", "plan.toml", "--worktree", &tree]);
    sandbox.write(format!("{tree}/work.txt"), "precious\n");
    data(&sandbox, &["checkpoint", "plan.toml", "work", "--worktree", &tree]);
    data(&sandbox, &["release", "plan.toml", "work", "--worktree", &tree]);
    let refs = sandbox.git(&["for-each-ref", "refs/piton"]);
    assert!(refs.contains("/work/2/1"), "{refs}");
    data(&sandbox, &["resume", "--dry-run"]);

    let newest = sandbox.root().join("newest");
    fs::rename(state(&sandbox), &newest).expect("a folder can be moved");
    copy(&backup, &state(&sandbox));
    assert_eq!(events(&sandbox).len(), 1, "it reads well");
    for verb in [
        &["resume"][..],
        &["resume", "--dry-run"],
        &["run", "plan.toml", "--auto-continue", "--trust"],
    ] {
        let output = sandbox.piton(verb).arg("--json").output().expect_code(74);
        let (code, hint) = told(&output, "an old backup");
        assert_eq!(code, "E046", "{output}");
        assert!(output.stdout.contains("/work/2/1 is newer"), "{output}");
        assert!(hint.contains("piton abandon "), "{output}");
    }
    let doctor = sandbox.piton(&["doctor"]).output().expect_code(74);
    assert!(doctor.stdout.contains("its log ends at 1"), "{doctor}");
    assert_eq!(sandbox.git(&["for-each-ref", "refs/piton"]), refs);

    // Either way leads on.
    fs::rename(state(&sandbox), sandbox.root().join("old")).expect("a folder can be moved");
    fs::rename(&newest, state(&sandbox)).expect("a folder can be moved");
    data(&sandbox, &["resume", "--dry-run"]);
    fs::rename(state(&sandbox), &newest).expect("a folder can be moved");
    copy(&backup, &state(&sandbox));
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    data(&sandbox, &["abandon", &handle, "--yes"]);
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().success();
    assert_eq!(sandbox.git(&["for-each-ref", "refs/piton"]), refs);
}
