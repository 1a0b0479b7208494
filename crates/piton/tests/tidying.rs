//! Cleaning up with the real binary: what is provably safe goes, nothing else is touched, and what went
//! comes back byte for byte; killed at each durable action, said again, it ends the same.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use piton_engine::crash::{POINTS, Who};
use piton_testkit::runs::{OnDisk, command_step, lay_plan, plan, refused, view, worktree};
use piton_testkit::{Sandbox, Terminal, kill9};
use serde_json::Value;

/// A repository with a run whose steps are done by hand, each in a worktree of its own.
struct Lab {
    sandbox: Sandbox,
}

impl Lab {
    #[track_caller]
    fn new(steps: usize) -> Lab {
        let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
        sandbox.write("src/.gitignore", "/build/\n*.tmp\n");
        sandbox.write("src/lib.txt", "a\nb\nc\n");
        sandbox.commit("something to work on");
        let steps: String = (0..steps).map(|n| format!("[[step]]\nid = 's{n}'\n\n")).collect();
        lay_plan(&sandbox, &format!("[plan]\nname = 'many'\n\n{steps}"));
        let lab = Lab { sandbox };
        lab.data(&["open", "plan.toml"]);
        lab
    }

    #[track_caller]
    fn data(&self, args: &[&str]) -> Value {
        let out = self.sandbox.piton(args).arg("--json").output().success().json();
        assert_eq!(out["status"], "ok");
        out["data"].clone()
    }

    /// The worktree of a step, which has been completed from there.
    #[track_caller]
    fn completed(&self, id: &str) -> PathBuf {
        let tree = self.open_tree(id);
        self.complete(id, &tree);
        tree
    }

    #[track_caller]
    fn open_tree(&self, id: &str) -> PathBuf {
        let made = self.data(&["worktree", "create", "plan.toml", id]);
        made["path"].as_str().expect("a path").into()
    }

    #[track_caller]
    fn claim(&self, id: &str, tree: &Path) -> String {
        let tree = tree.to_str().expect("text");
        let claimed = self.data(&["claim", "plan.toml", "--worktree", tree, "--step", id]);
        claimed["fence"].to_string()
    }

    #[track_caller]
    fn complete(&self, id: &str, tree: &Path) {
        let fence = self.claim(id, tree);
        self.data(&["complete", "plan.toml", id, "--fence", &fence]);
    }

    #[track_caller]
    fn commit(&self, tree: &Path, file: &str, text: &str) -> String {
        self.sandbox.write(tree.join(file), text);
        self.sandbox.git_in(tree, &["add", "-A"]);
        self.sandbox.git_in(tree, &["commit", "--quiet", "-m", &format!("write {file}")]);
        self.sandbox.git_in(tree, &["rev-parse", "HEAD"])
    }

    /// Puts what a worktree has committed onto main.
    fn merge(&self, commit: &str) {
        self.sandbox.git(&["merge", "--quiet", "--no-edit", commit]);
    }

    /// Everything that must be the same after a clean-up that is undone.
    fn refs(&self) -> String {
        self.sandbox.git(&["for-each-ref"])
    }

    fn worktrees(&self) -> String {
        let listed = self.sandbox.git(&["worktree", "list", "--porcelain"]);
        let mut blocks: Vec<&str> = listed.split("\n\n").collect();
        blocks.sort_unstable();
        blocks.join("\n\n")
    }

    /// What `clean` says about each worktree: its verdict, and the proof or the reason.
    fn verdicts(&self, more: &[&str]) -> BTreeMap<PathBuf, (String, String)> {
        let data = self.data(&[&["clean"], more].concat());
        let rows = data["worktrees"].as_array().expect("rows").iter();
        let told = |row: &Value| {
            let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let why = if text("verdict") == "goes" { text("proof") } else { text("why") };
            (text("path").into(), (text("verdict"), why))
        };
        rows.map(told).collect()
    }
}

/// A worktree as it is on disk: every path with its kind, permissions and bytes; and what git makes of it.
#[derive(Debug, PartialEq, Eq)]
struct Print {
    paths: BTreeMap<PathBuf, (u32, Vec<u8>)>,
    staged: String,
    status: String,
    reflog: String,
}

impl Print {
    #[track_caller]
    fn of(sandbox: &Sandbox, tree: &Path) -> Print {
        let mut paths = BTreeMap::new();
        let mut folders = vec![tree.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder").flatten() {
                let (path, found) = (entry.path(), entry.metadata().expect("its metadata"));
                let bytes = match found.file_type() {
                    kind if kind.is_symlink() => {
                        fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
                    }
                    kind if kind.is_file() => fs::read(&path).expect("a file"),
                    _ => Vec::new(),
                };
                if found.is_dir() {
                    folders.push(path.clone());
                }
                let name = path.strip_prefix(tree).expect("below it").to_owned();
                paths.insert(name, (found.mode(), bytes));
            }
        }
        Print {
            paths,
            staged: sandbox.git_in(tree, &["ls-files", "--stage"]),
            status: sandbox.git_in(tree, &["status", "--porcelain=v2", "--branch", "--ignored"]),
            reflog: sandbox.git_in(tree, &["reflog"]),
        }
    }
}

/// Three worktrees that can go, each with its proof.
#[track_caller]
fn safe_ones(lab: &Lab) -> [(PathBuf, &'static str); 3] {
    let empty = lab.completed("s0");
    let merged = lab.open_tree("s1");
    let commit = lab.commit(&merged, "merged.txt", "merged\n");
    lab.complete("s1", &merged);
    lab.merge(&commit);
    // Ignored files are somebody's, too: a log, a secret, a build.
    lab.sandbox.write(merged.join("src/build/out.o"), "built\n");
    let secret = lab.sandbox.write(merged.join("src/secret.tmp"), "hunter2\n");
    fs::set_permissions(secret, fs::Permissions::from_mode(0o600)).expect("its permissions");
    let picked = lab.open_tree("s2");
    let commit = lab.commit(&picked, "picked.txt", "picked\n");
    lab.complete("s2", &picked);
    lab.sandbox.git(&["cherry-pick", &commit]);
    lab.sandbox.git(&["commit", "--quiet", "--amend", "-m", "another commit, the same change"]);
    // What only its reflog names is not lost, either.
    lab.sandbox.git_in(&picked, &["commit", "--quiet", "--allow-empty", "-m", "thought better of"]);
    lab.sandbox.git_in(&picked, &["reset", "--quiet", "--hard", "HEAD^"]);
    [(empty, "empty"), (merged, "merged"), (picked, "patch_equivalent")]
}

/// Makes a worktree, of a step that is completed, unsafe to remove in one of many ways; says what the
/// reason must mention.
fn spoil(lab: &Lab, kind: usize, id: &str, tree: &Path) -> (PathBuf, &'static str) {
    let (sandbox, here) = (&lab.sandbox, tree.to_owned());
    let git = |args: &[&str]| sandbox.git_in(tree, args);
    match kind {
        0 => {
            sandbox.write(tree.join("src/lib.txt"), "changed\n");
            (here, "one changed file in no snapshot")
        }
        1 => {
            sandbox.write(tree.join("new/file.txt"), "new\n");
            (here, "one untracked file in no snapshot")
        }
        2 => {
            sandbox.write(tree.join("src/lib.txt"), "staged\n");
            git(&["add", "-A"]);
            (here, "changed file in no snapshot")
        }
        3 => {
            fs::remove_file(tree.join("src/lib.txt")).expect("it is there");
            (here, "changed file in no snapshot")
        }
        4 => {
            let file = tree.join("src/lib.txt");
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("permissions");
            (here, "changed file in no snapshot")
        }
        5 => {
            lab.commit(tree, "mine.txt", &format!("only here: {id}\n"));
            (here, "one commit of it is on no other branch")
        }
        6 => {
            git(&["checkout", "--quiet", "--detach"]);
            (here, "detached")
        }
        7 => {
            git(&["worktree", "lock", "--reason", "on a stick", tree.to_str().expect("text")]);
            (here, "on a stick")
        }
        8 => {
            git(&["bisect", "start"]);
            (here, "bisection")
        }
        9 => {
            lab.commit(tree, "one.txt", "1\n");
            let stopped = sandbox
                .command("git")
                .current_dir(tree)
                .args(["rebase", "-x", "false", "HEAD^"])
                .output();
            assert!(!stopped.expect("git").status.success());
            (here, "rebase")
        }
        10 => {
            git(&["merge", "--quiet", "--no-ff", "--no-commit", "apart"]);
            (here, "merge")
        }
        11 => {
            let nested = tree.join("src/build/nested");
            fs::create_dir_all(&nested).expect("a folder");
            sandbox.git_in(&nested, &["init", "--quiet"]);
            (here, "repository of its own")
        }
        12 => {
            let branch = git(&["branch", "--show-current"]);
            let other = sandbox.root().join(format!("other-{id}"));
            let other = other.to_str().expect("text");
            sandbox.git(&["worktree", "add", "--quiet", "--force", other, &branch]);
            (here, "also checked out")
        }
        13 => {
            git(&["checkout", "--quiet", "-b", &format!("mine-{id}")]);
            (here, "not piton's")
        }
        14 => {
            let moved = sandbox.root().join(format!("moved-{id}"));
            fs::rename(tree, &moved).expect("on one file system");
            sandbox.write(tree.join("notes.txt"), "somebody else's\n");
            (here, "not a worktree of this repository")
        }
        15 => {
            let start = ["-c", "sleep 1000 > /dev/null 2>&1 &"];
            let own = sandbox.command("sh").args(start).current_dir(tree).status();
            assert!(own.expect("a process of the user").success());
            (here, "works in it")
        }
        16 => {
            let fence = sandbox.root().join("fence");
            fs::write(fence, "").expect("a file");
            symlink("/etc/passwd", tree.join("src/link")).expect("a link");
            (here, "untracked file in no snapshot")
        }
        17 => {
            fs::write(
                sandbox.repo().join(".git/worktrees").join(entry(tree)).join("index.lock"),
                "",
            )
            .expect("a lock");
            (here, "git is at work in it")
        }
        other => unreachable!("there is no kind {other}"),
    }
}

const KINDS: usize = 18;

/// The name of a worktree in git's list.
fn entry(tree: &Path) -> String {
    let text = fs::read_to_string(tree.join(".git")).expect("its .git file");
    let path = PathBuf::from(text.trim_end().trim_start_matches("gitdir: "));
    path.file_name().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn of_122_worktrees_the_three_that_are_provably_safe_go_and_come_back() {
    const ALL: usize = 122;
    // Beside those of the steps: one of an unknown run, one of nobody's, one that is not piton's.
    const STEPS: usize = ALL - 3;
    let lab = Lab::new(STEPS);
    let sandbox = &lab.sandbox;
    sandbox.git(&["branch", "apart"]);
    let apart = sandbox.root().join("apart");
    sandbox.git(&["worktree", "add", "--quiet", apart.to_str().expect("text"), "apart"]);
    lab.commit(&apart, "apart.txt", "apart\n");
    sandbox.git(&["worktree", "remove", apart.to_str().expect("text")]);
    let safe = safe_ones(&lab);
    let mut expected: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for n in 3..STEPS {
        let id = format!("s{n}");
        let (path, why) = match n % 6 {
            // Not completed: nobody has begun, or somebody is at it.
            0 if n % 4 == 0 => (lab.open_tree(&id), "what it is for is pending"),
            0 => {
                let tree = lab.open_tree(&id);
                lab.claim(&id, &tree);
                (tree, "is claimed")
            }
            _ => {
                let tree = lab.completed(&id);
                spoil(&lab, n % KINDS, &id, &tree)
            }
        };
        expected.insert(path, why);
    }
    let root = safe[0].0.ancestors().nth(3).expect("the root").to_owned();
    let unknown = root.join("many-lost-run/run");
    sandbox.git(&["worktree", "add", "--quiet", "--detach", unknown.to_str().expect("text")]);
    expected.insert(unknown, "unknown to this store");
    let foreign = root.join("many-lost-run/step/own");
    fs::create_dir_all(&foreign).expect("a folder");
    sandbox.git_in(&foreign, &["init", "--quiet"]);
    sandbox.write(foreign.join("precious.txt"), "precious\n");
    expected.insert(foreign, "a repository of its own");
    let users = sandbox.root().join("users");
    sandbox.git(&["worktree", "add", "--quiet", "-b", "users", users.to_str().expect("text")]);
    assert_eq!(safe.len() + expected.len() + 1, ALL);

    // Looking touches nothing.
    let before = OnDisk::of(sandbox.root());
    let verdicts = lab.verdicts(&[]);
    let listed = lab.data(&["worktree", "list"]);
    let captured = |path: &&PathBuf| !path.starts_with("captured");
    let touched = before.differences(&OnDisk::of(sandbox.root()));
    assert_eq!(touched.iter().filter(captured).collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    for (path, proof) in &safe {
        assert_eq!(verdicts[path], ("goes".to_owned(), (*proof).to_owned()), "{}", path.display());
    }
    for (path, why) in &expected {
        let (verdict, told) = &verdicts[path];
        assert_eq!(verdict, "stays", "{}", path.display());
        assert!(told.contains(why), "{}: {told:?} does not say {why:?}", path.display());
    }
    assert!(!verdicts.contains_key(&users), "what is not piton's is not even listed");
    let rows = listed["worktrees"].as_array().expect("rows");
    assert_eq!(rows.len(), verdicts.len());

    let prints = safe.each_ref().map(|(path, _)| Print::of(sandbox, path));
    let (refs, worktrees) = (lab.refs(), lab.worktrees());
    let others = |from: &BTreeMap<PathBuf, &str>| -> Vec<OnDisk> {
        from.keys().chain([&users]).map(|path| OnDisk::of(path)).collect()
    };
    let before = others(&expected);
    let cleaned = lab.data(&["clean", "--apply"]);
    assert_eq!(cleaned["removed"].as_array().expect("rows").len(), 3, "{cleaned:#}");
    assert_eq!(cleaned["failed"], Value::Array(Vec::new()));
    for (path, _) in &safe {
        assert!(!path.exists(), "{}", path.display());
        let listed = format!("worktree {}\n", path.display());
        assert!(!lab.worktrees().contains(&listed), "{listed}");
    }
    let after = others(&expected);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.differences(after), Vec::<PathBuf>::new());
    }
    assert!(lab.verdicts(&[]).values().all(|(verdict, _)| verdict == "stays"));
    let again = lab.data(&["clean", "--apply"]);
    assert_eq!(again["removed"], Value::Array(Vec::new()), "nothing is left to remove");

    // A gc that spares nothing takes nothing of what was removed.
    sandbox.git(&["reflog", "expire", "--expire=now", "--all"]);
    sandbox.git(&["gc", "--quiet", "--prune=now"]);
    lab.data(&["undo"]);
    for ((path, _), print) in safe.iter().zip(&prints) {
        assert_eq!(Print::of(sandbox, path), *print, "{}", path.display());
        let only_named = sandbox.git_in(path, &["log", "--walk-reflogs", "--format=%H"]);
        for id in only_named.lines() {
            assert_eq!(sandbox.git(&["cat-file", "-t", id]), "commit");
        }
    }
    assert_eq!((lab.refs(), lab.worktrees()), (refs, worktrees));
    let (code, error, _) = piton_testkit::runs::refused(sandbox, &["undo"]);
    assert_eq!((code, error.as_str()), (2, "E100"));
    sandbox.kill_all();
}

/// A run with three worktrees that can go and one that stays.
#[track_caller]
fn small() -> (Lab, Vec<PathBuf>, Vec<Print>) {
    let lab = Lab::new(4);
    let safe = safe_ones(&lab).map(|(path, _)| path).to_vec();
    let stays = lab.completed("s3");
    lab.sandbox.write(stays.join("mine.txt"), "mine\n");
    let prints = safe.iter().map(|path| Print::of(&lab.sandbox, path)).collect();
    (lab, safe, prints)
}

#[track_caller]
fn kill_at(lab: &Lab, args: &[&str], point: &str, nth: u32) {
    let crash = lab.sandbox.crash_point(point, nth);
    let running = lab.sandbox.piton(args).crash_at(&crash).spawn();
    kill9(crash.wait_hit());
    running.wait();
}

#[track_caller]
fn assert_back(lab: &Lab, safe: &[PathBuf], prints: &[Print], why: &str) {
    for (path, print) in safe.iter().zip(prints) {
        assert_eq!(Print::of(&lab.sandbox, path), *print, "{why}: {}", path.display());
    }
    let held = lab.sandbox.git(&["for-each-ref", "refs/piton/undo"]);
    assert_eq!(held, "", "{why}: nothing of it is left");
}

fn killed_while_cleaning(point: &str, nth: u32) {
    let why = format!("{point}:{nth}");
    let (lab, safe, prints) = small();
    let (refs, worktrees) = (lab.refs(), lab.worktrees());
    // Said again, it ends as if nothing had happened; one undo puts all of it back.
    kill_at(&lab, &["clean", "--apply"], point, nth);
    lab.data(&["clean", "--apply"]);
    assert!(safe.iter().all(|path| !path.exists()), "{why}");
    lab.sandbox.git(&["gc", "--quiet", "--prune=now"]);
    lab.data(&["undo"]);
    assert_back(&lab, &safe, &prints, &why);
    assert_eq!((lab.refs(), lab.worktrees()), (refs, worktrees), "{why}");
    // Undone where it was cut short.
    kill_at(&lab, &["clean", "--apply"], point, nth);
    lab.data(&["undo"]);
    assert_back(&lab, &safe, &prints, &why);
}

fn killed_while_undoing(point: &str, nth: u32) {
    let why = format!("{point}:{nth}");
    let (lab, safe, prints) = small();
    let (refs, worktrees) = (lab.refs(), lab.worktrees());
    lab.data(&["clean", "--apply"]);
    kill_at(&lab, &["undo"], point, nth);
    lab.data(&["undo"]);
    assert_back(&lab, &safe, &prints, &why);
    assert_eq!((lab.refs(), lab.worktrees()), (refs, worktrees), "{why}");
}

/// A run that was stopped in the middle of a step.
#[track_caller]
fn stopped() -> (Lab, String) {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let (ready, gate) = (sandbox.mark("ready"), sandbox.mark("gate"));
    let wait = format!(
        "echo half > half.txt; touch {}; until test -e {}; do sleep 0.05; done",
        ready.display(),
        gate.display()
    );
    let steps = [
        command_step(&sandbox, "first", "echo first > first.txt", ""),
        command_step(&sandbox, "second", &wait, "needs = ['first']"),
    ];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let lab = Lab { sandbox };
    let running = lab.sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    lab.sandbox.wait_exists(&ready);
    lab.data(&["stop"]);
    running.wait();
    let handle = view(&lab.sandbox)["handle"].as_str().expect("a handle").to_owned();
    (lab, handle)
}

impl Lab {
    fn status(&self, run: &str) -> String {
        self.data(&["status", run])["run"]["status"].as_str().expect("a status").to_owned()
    }

    /// Lets the step that waits go on to its end.
    fn open_gate(&self) {
        fs::write(self.sandbox.mark("gate"), "").expect("a file");
    }
}

fn killed_while_abandoning(point: &str, nth: u32) {
    let (lab, handle) = stopped();
    kill_at(&lab, &["abandon", &handle, "--yes"], point, nth);
    // Said again, or undone where it was cut short.
    let again = lab.sandbox.piton(&["abandon", &handle, "--yes"]).output().success();
    assert!(again.stdout.contains("abandoned"), "{again}");
    assert_eq!(lab.status(&handle), "abandoned");
    assert_eq!(lab.data(&["undo", "--list"])["acts"].as_array().map(Vec::len), Some(1), "{point}");
    lab.data(&["undo"]);
    assert_eq!(lab.status(&handle), "stopped");
    kill_at(&lab, &["abandon", &handle, "--yes"], point, nth);
    lab.data(&["undo"]);
    assert_eq!(lab.status(&handle), "stopped");
    lab.open_gate();
    lab.sandbox.piton(&["resume", &handle]).output().success();
}

fn killed_while_reopening(point: &str, nth: u32) {
    let (lab, handle) = stopped();
    lab.data(&["abandon", &handle, "--yes"]);
    kill_at(&lab, &["undo"], point, nth);
    lab.data(&["undo"]);
    assert_eq!(lab.status(&handle), "stopped");
}

#[test]
fn abandoning_ends_what_lives_and_keeps_all_of_it() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
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
    let running = lab.sandbox.piton(&["worker", "--run", &run]).spawn();
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
    assert_eq!(claim["blocked"]["hand"], "the run was abandoned");
    lab.sandbox.piton(&["abandon", &handle, "--yes"]).output().expect_code(1);
    // Its plan is free for another run; that one stands in the way of the old one, until it is given up.
    let second = lab.data(&["open", "plan.toml"])["run"]["handle"].clone();
    let second = second.as_str().expect("a handle");
    assert_ne!(second, handle);
    let (code, error, message) = refused(&lab.sandbox, &["undo"]);
    assert_eq!((code, error.as_str()), (1, "E101"));
    let ways = format!("`piton abandon {second}`, then `piton undo 1`");
    assert!(message.contains(&ways), "{message}");
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
fn a_step_is_found_where_it_is_worked_on_and_named_there() {
    let (lab, handle) = stopped();
    let run = worktree(&lab.sandbox);
    let ready = lab.sandbox.mark("ready");
    fs::remove_file(&ready).expect("there");
    let resumed = lab.sandbox.piton(&["resume"]).spawn();
    lab.sandbox.wait_exists(&ready);
    let at = |args: &[&str]| lab.data(&[&["worktree", "path"], args].concat())["path"].clone();
    assert_eq!(at(&[&handle, "second"]), run.to_str().expect("text"));
    assert_eq!(at(&[&format!("{handle}/second")]), run.to_str().expect("text"));
    let row = lab.data(&["worktree", "list"])["worktrees"][0].clone();
    assert_eq!((&row["step"], &row["at_work"]), (&Value::Null, &"second".into()), "{row:#}");
    lab.data(&["stop"]);
    resumed.wait();

    // As after moving the repository: git's list names a place that is no more.
    let entry = lab.sandbox.git_in(&run, &["rev-parse", "--absolute-git-dir"]);
    lab.sandbox.write(Path::new(&entry).join("gitdir"), "/nowhere/run/.git\n");
    let out = lab.sandbox.piton(&["clean"]).output().success();
    assert!(!out.stdout.contains("prune"), "it would lose what can be mended: {out}");
    assert!(out.stdout.contains(&format!("`piton resume {handle}` mends it")), "{out}");
    lab.open_gate();
    lab.sandbox.piton(&["resume"]).output().success();
    assert_eq!(lab.status(&handle), "completed");
}

#[test]
fn a_worktree_that_is_gone_is_told_with_its_step_and_why_nobody_is_at_work() {
    let (lab, handle) = stopped();
    let row = || lab.data(&["worktree", "list"])["worktrees"][0].clone();
    let found = row();
    assert_eq!((&found["step"], &found["at_work"]), (&Value::Null, &"second".into()), "{found:#}");
    // What has landed on the run's branch is not yet where it is to go.
    assert_eq!(found["counts"]["unmerged"], 1, "{found:#}");
    lab.merge(&format!("piton/{handle}/run"));
    assert_eq!(row()["counts"]["unmerged"], 0);

    fs::remove_dir_all(worktree(&lab.sandbox)).expect("it can be removed");
    for is_listed in [true, false] {
        let git = lab.worktrees();
        assert_eq!(git.contains(&format!("{handle}/run\n")), is_listed, "{git}");
        let gone = row();
        assert_eq!(gone["status"], "missing", "{gone:#}");
        assert_eq!(
            (&gone["at_work"], &gone["cause"]),
            (&"second".into(), &"user_interrupt".into())
        );
        let out = lab.sandbox.piton(&["worktree", "list"]).output().success().stdout;
        assert!(out.contains("second") && out.contains("user_interrupt"), "{out}");
        let out = lab.sandbox.piton(&["clean"]).output().success().stdout;
        assert!(!out.contains("prune"), "{out}");
        lab.sandbox.git(&["worktree", "prune"]);
    }
    lab.open_gate();
    lab.sandbox.piton(&["resume"]).output().success();
}

#[test]
fn a_worktree_that_is_being_made_is_not_called_missing() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    lay_plan(&sandbox, &plan(&sandbox, &[command_step(&sandbox, "only", "true", "")]));
    let lab = Lab { sandbox };
    let made = lab.sandbox.crash_point("tree.nobodys", 1);
    let running = lab.sandbox.piton(&["run", "plan.toml", "--trust"]).crash_at(&made).spawn();
    made.wait_hit();
    let row = || lab.data(&["worktree", "list"])["worktrees"][0].clone();
    let found = row();
    assert_eq!(
        (&found["status"], &found["at_work"]),
        (&"live".into(), &"only".into()),
        "{found:#}"
    );
    // As before its folder is there, when git's list has it already.
    let tree = worktree(&lab.sandbox);
    let away = lab.sandbox.root().join("away");
    fs::rename(&tree, &away).expect("on one file system");
    let found = row();
    assert_eq!(
        (&found["status"], &found["at_work"]),
        (&"live".into(), &"only".into()),
        "{found:#}"
    );
    fs::rename(&away, &tree).expect("on one file system");
    made.release();
    running.wait().success();
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
fn a_snapshot_that_only_a_ref_names_is_a_proof_too() {
    let (lab, handle) = stopped();
    let tree = worktree(&lab.sandbox);
    lab.sandbox.write(tree.join("late.txt"), "late\n");
    let verdict = || lab.verdicts(&["--interrupted"])[&tree].clone();
    let (stays, why) = verdict();
    assert!(stays == "stays" && why.contains("in no snapshot"), "{why}");
    // What is there is kept before something is put back, and that is known by its ref alone.
    lab.data(&["snapshot", "restore", &format!("{handle}/second"), "--yes"]);
    assert!(!tree.join("late.txt").exists());
    lab.data(&["undo"]);
    assert_eq!(lab.sandbox.read(tree.join("late.txt")), "late\n");
    assert_eq!(verdict(), ("goes".to_owned(), "snapshotted".to_owned()));
    lab.data(&["clean", "--interrupted", "--apply"]);
    lab.data(&["undo"]);
    assert_eq!(lab.sandbox.read(tree.join("late.txt")), "late\n");
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
    terminal.type_in("c\n");
    terminal.wait().expect_code(0);
    assert_eq!(lab.status(&handle), "completed");
}

impl Lab {
    /// Makes an act look so many days old.
    fn age(&self, act: u64, days: i64) {
        let path = self.sandbox.path(format!(".git/piton/undo/{act}.json"));
        let mut written = self.sandbox.read_json(&path);
        let at = written["at"].as_i64().expect("milliseconds") - days * 24 * 60 * 60 * 1000;
        written["at"] = at.into();
        self.sandbox.write(&path, &written.to_string());
    }

    fn expired(&self, more: &[&str]) -> Vec<u64> {
        let data = self.data(&[&["clean"], more].concat());
        let acts = data["expired_acts"].as_array().expect("a list").iter();
        acts.map(|act| act["act"].as_u64().expect("a number")).collect()
    }

    /// Nothing is kept for an act any more.
    #[track_caller]
    fn assert_expired(&self, act: u64, why: &str) {
        assert_eq!(self.expired(&[]), Vec::<u64>::new(), "{why}");
        assert!(!self.sandbox.exists(format!(".git/piton/undo/{act}")), "{why}");
        assert_eq!(self.sandbox.git(&["for-each-ref", "refs/piton/undo"]), "", "{why}");
        let (code, error, message) = refused(&self.sandbox, &["undo", &act.to_string()]);
        assert_eq!((code, error.as_str()), (1, "E073"), "{why}: {message}");
        assert!(message.contains("has expired"), "{why}: {message}");
    }
}

/// A clean-up with ignored files that are in the way of being deleted.
fn cleaned() -> Lab {
    let (lab, safe, _) = small();
    let build = safe[0].join("src/build");
    lab.sandbox.write(build.join("deep/er/out.tmp"), "out\n");
    symlink("/", build.join("root")).expect("a link that must not be followed");
    fs::set_permissions(build.join("deep"), fs::Permissions::from_mode(0o500)).expect("rights");
    assert_eq!(lab.data(&["clean", "--apply"])["act"], 1);
    lab
}

#[test]
fn what_was_moved_aside_goes_when_its_time_is_over_and_not_before() {
    let lab = cleaned();
    lab.age(1, 29);
    assert_eq!(lab.expired(&["--apply"]), Vec::<u64>::new());
    assert!(lab.sandbox.exists(".git/piton/undo/1"));
    lab.age(1, 2);
    let before = OnDisk::of(&lab.sandbox.path(".git/piton/undo"));
    let out = lab.sandbox.piton(&["clean"]).output().success();
    assert!(out.stdout.contains("act 1") && out.stdout.contains("expired: clean"), "{out}");
    assert!(out.stderr.contains("--apply") && out.stderr.contains("cannot be undone"), "{out}");
    let after = OnDisk::of(&lab.sandbox.path(".git/piton/undo"));
    assert_eq!(before.differences(&after), Vec::<PathBuf>::new(), "looking deletes nothing");
    assert_eq!(lab.expired(&["--apply"]), [1]);
    lab.assert_expired(1, "applied");
    assert!(lab.sandbox.exists("src/lib.txt"), "links were not followed");
    let listed = lab.sandbox.piton(&["undo", "--list"]).output().success();
    assert!(listed.stdout.contains("expired"), "{listed}");
    let (code, error, _) = refused(&lab.sandbox, &["undo"]);
    assert_eq!((code, error.as_str()), (2, "E100"));
}

#[test]
fn a_run_that_was_given_up_can_be_reopened_however_long_ago_that_was() {
    let (lab, handle) = stopped();
    lab.data(&["abandon", &handle, "--yes"]);
    lab.age(1, 400);
    assert_eq!(lab.expired(&["--apply"]), Vec::<u64>::new());
    lab.data(&["undo", "1"]);
    assert_eq!(lab.status(&handle), "stopped");
}

fn killed_while_expiring(point: &str, nth: u32) {
    let lab = cleaned();
    lab.age(1, 31);
    kill_at(&lab, &["clean", "--apply"], point, nth);
    let (code, ..) = refused(&lab.sandbox, &["undo", "1"]);
    assert_eq!(code, 1, "{point}: nobody gets half of it back");
    assert_eq!(lab.expired(&["--apply"]), [1], "{point}");
    lab.assert_expired(1, point);
}

#[test]
fn an_act_that_cannot_be_read_stands_in_nobodys_way() {
    let (lab, safe, prints) = small();
    assert_eq!(lab.data(&["clean", "--apply"])["act"], 1);
    let broken = lab.sandbox.path(".git/piton/undo/2.json");
    for text in ["", "{\"version\":1,\"act\":2", "{\"version\":99,\"act\":2}", "[]"] {
        lab.sandbox.write(&broken, text);
        // It is named; nobody guesses that it was not the last one that was meant.
        let out = lab.sandbox.piton(&["undo"]).output().expect_code(74);
        assert!(out.stderr.contains("error[E102]") && out.stderr.contains("2.json"), "{out}");
        assert!(out.stderr.contains("piton undo NUMBER"), "{out}");
        let listed = lab.sandbox.piton(&["undo", "--list"]).output().success();
        assert!(listed.stdout.contains("unreadable"), "{listed}");
        assert_eq!(refused(&lab.sandbox, &["undo", "2"]).1, "E102");
        // The others are undone and done all the same.
        lab.data(&["undo", "1"]);
        assert_back(&lab, &safe, &prints, text);
        let out = lab.sandbox.piton(&["clean", "--apply"]).output().success();
        assert!(out.stderr.contains("act 2 cannot be read and is left alone"), "{out}");
        assert!(safe.iter().all(|path| !path.exists()));
        assert_eq!(lab.sandbox.read(&broken), text, "it is left alone");
        // A newer one is the last one, and can be read.
        lab.data(&["undo"]);
        assert_back(&lab, &safe, &prints, text);
        fs::remove_file(lab.sandbox.path(".git/piton/undo/3.json")).expect("its record");
        fs::remove_file(lab.sandbox.path(".git/piton/undo/1.json")).expect("its record");
        fs::remove_file(&broken).expect("it was there");
        assert_eq!(lab.data(&["clean", "--apply"])["act"], 1);
    }
}

macro_rules! killed {
    ($($test:ident: $act:ident $point:literal,)*) => {
        $(
            #[test]
            fn $test() {
                // The first row, and one in the middle of the act.
                let once = ["expire.recorded", "expire.refs-gone", "clean.done", "undo.intended", "undo.reopening"];
                let once = |point: &str| once.contains(&point) || point.starts_with("abandon.");
                for nth in if once($point) { 1..=1 } else { 1..=2 } {
                    $act($point, nth);
                }
            }
        )*

        #[test]
        fn every_point_of_cleaning_and_undoing_has_its_test() {
            let ours = |(_, who): &&(&str, Who)| matches!(who, Who::Tidier | Who::Undoer);
            let listed: Vec<&str> = POINTS.iter().filter(ours).map(|(point, _)| *point).collect();
            assert_eq!(listed, [$($point),*]);
        }
    };
}

killed! {
    killed_at_clean_snapshot_kept: killed_while_cleaning "clean.snapshot-kept",
    killed_at_clean_recorded: killed_while_cleaning "clean.recorded",
    killed_at_clean_moved_out: killed_while_cleaning "clean.moved-out",
    killed_at_clean_unlisted: killed_while_cleaning "clean.unlisted",
    killed_at_clean_emptied: killed_while_cleaning "clean.emptied",
    killed_at_clean_branch_gone: killed_while_cleaning "clean.branch-gone",
    killed_at_expire_recorded: killed_while_expiring "expire.recorded",
    killed_at_expire_refs_gone: killed_while_expiring "expire.refs-gone",
    killed_at_clean_done: killed_while_cleaning "clean.done",
    killed_at_abandon_recorded: killed_while_abandoning "abandon.recorded",
    killed_at_abandon_abandoned: killed_while_abandoning "abandon.abandoned",
    killed_at_undo_intended: killed_while_undoing "undo.intended",
    killed_at_undo_branch_back: killed_while_undoing "undo.branch-back",
    killed_at_undo_filled: killed_while_undoing "undo.filled",
    killed_at_undo_listed: killed_while_undoing "undo.listed",
    killed_at_undo_tree_back: killed_while_undoing "undo.tree-back",
    killed_at_undo_reopening: killed_while_reopening "undo.reopening",
}

#[test]
fn what_is_newer_is_not_undone_over() {
    let (lab, safe, prints) = small();
    lab.data(&["clean", "--apply"]);
    // Somebody goes on at the same place.
    let again = lab.open_tree("s1");
    assert_eq!(again, safe[1]);
    lab.sandbox.write(again.join("newer.txt"), "newer\n");
    let before = OnDisk::of(&lab.sandbox.repo().join(".piton"));
    let out = lab.sandbox.piton(&["undo"]).output().expect_code(1);
    assert!(out.stderr.contains("error[E101]") && out.stderr.contains("is there again"), "{out}");
    assert!(!safe[0].exists() && !safe[2].exists(), "all or nothing");
    let after = OnDisk::of(&lab.sandbox.repo().join(".piton"));
    assert_eq!(before.differences(&after), Vec::<PathBuf>::new());
    // Out of the way, it works.
    let branch = lab.sandbox.git_in(&again, &["branch", "--show-current"]);
    let path = again.to_str().expect("text");
    lab.sandbox.git(&["worktree", "remove", "--force", path]);
    lab.sandbox.git(&["branch", "-D", &branch]);
    lab.data(&["undo", "1"]);
    assert_back(&lab, &safe, &prints, "after all");
}

#[test]
fn who_comes_in_at_the_last_moment_keeps_the_worktree() {
    let (lab, safe, prints) = small();
    let crash = lab.sandbox.crash_point("clean.recorded", 1);
    let running = lab.sandbox.piton(&["clean", "--apply", "--json"]).crash_at(&crash).spawn();
    crash.wait_hit();
    let mut user = lab.sandbox.command("sleep");
    let mut user = user.arg("1000").current_dir(&safe[0]).spawn().expect("a process of the user");
    crash.release();
    let out = running.wait().expect_code(1).json();
    assert_eq!(out["issues"][0]["code"], "E103");
    assert_eq!(out["data"]["removed"].as_array().expect("rows").len(), 2);
    assert_eq!(Print::of(&lab.sandbox, &safe[0]), prints[0]);
    user.kill().and_then(|()| user.wait()).expect("it was running");
    lab.data(&["undo"]);
    assert_back(&lab, &safe, &prints, "the others");
}

#[test]
fn what_is_written_while_it_goes_is_not_lost() {
    let (lab, safe, _) = small();
    let crash = lab.sandbox.crash_point("clean.moved-out", 1);
    let running = lab.sandbox.piton(&["clean", "--apply"]).crash_at(&crash).spawn();
    crash.wait_hit();
    // An editor that had the folder open writes on, wherever it is by now.
    let away = lab.sandbox.path(".git/piton/undo/1/1/tree");
    lab.sandbox.write(away.join("src/lib.txt"), "written at the last moment\n");
    lab.sandbox.write(away.join("late.txt"), "late\n");
    crash.release();
    running.wait().expect_code(0);
    lab.data(&["undo"]);
    assert_eq!(lab.sandbox.read(safe[0].join("src/lib.txt")), "written at the last moment\n");
    assert_eq!(lab.sandbox.read(safe[0].join("late.txt")), "late\n");
}

/// A run that was stopped in the middle of a step: its work is in a snapshot, and nowhere else.
#[test]
fn an_interrupted_worktree_goes_only_when_asked_for_and_snapshotted() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let script = "echo half > half.txt; touch \"$READY\"; sleep 1000";
    let ready = sandbox.mark("ready");
    let step = command_step(
        &sandbox,
        "build",
        &script.replace("$READY", ready.to_str().expect("text")),
        "",
    );
    lay_plan(&sandbox, &plan(&sandbox, &[step]));
    let lab = Lab { sandbox };
    let running = lab.sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    lab.sandbox.wait_exists(&ready);
    let live = lab.verdicts(&["--interrupted"]);
    let (tree, (verdict, why)) = live.first_key_value().expect("the run's worktree");
    assert_eq!(verdict, "stays");
    assert!(why.contains("being worked on"), "{why}");
    lab.data(&["stop"]);
    running.wait();
    let (verdict, why) = &lab.verdicts(&[])[tree];
    assert_eq!(verdict, "stays");
    assert!(why.contains("piton resume"), "{why}");
    let listed = lab.sandbox.piton(&["worktree", "list"]).output().success();
    assert!(listed.stdout.contains("! ") && listed.stdout.contains("user_interrupt"), "{listed}");
    assert_eq!(lab.verdicts(&["--interrupted"])[tree], ("goes".into(), "snapshotted".into()));
    let young = &lab.verdicts(&["--interrupted", "--older-than", "7d"])[tree];
    assert!(young.1.contains("more recently"), "{young:?}");
    // One more byte that is in no snapshot, and it stays.
    lab.sandbox.write(tree.join("half.txt"), "more\n");
    let (verdict, why) = &lab.verdicts(&["--interrupted"])[tree];
    assert_eq!((verdict.as_str(), why.as_str()), ("stays", "one untracked file in no snapshot"));
    lab.sandbox.write(tree.join("half.txt"), "half\n");
    let print = Print::of(&lab.sandbox, tree);
    let branch = lab.sandbox.git_in(tree, &["branch", "--show-current"]);
    lab.data(&["clean", "--interrupted", "--apply"]);
    assert!(!tree.exists());
    lab.sandbox.git(&["rev-parse", "--verify", &format!("refs/heads/{branch}")]);
    lab.data(&["undo"]);
    assert_eq!(Print::of(&lab.sandbox, tree), print);
}

#[test]
fn without_runs_there_is_nothing_to_clean() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    for args in [&["clean"][..], &["clean", "--apply"], &["worktree", "list"], &["undo", "--list"]]
    {
        sandbox.piton(args).output().success();
    }
    assert!(!sandbox.exists(".git/piton"), "looking made nothing");
}
