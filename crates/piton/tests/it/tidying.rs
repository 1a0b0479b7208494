//! Cleaning up with the real binary: what is provably safe goes, nothing else is touched, and what went
//! comes back byte for byte; killed at each durable action, said again, it ends the same.

mod killed;
mod listing;
mod proofs;
mod starting_over;
mod undoing;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use piton_testkit::runs::{command_step, commit_file, lay_plan, plan, refused, view};
use piton_testkit::{Sandbox, kill9};
use serde_json::Value;

/// A repository with a run whose steps are done by hand, each in a worktree of its own.
pub(crate) struct Lab {
    pub(crate) sandbox: Sandbox,
}

impl Lab {
    #[track_caller]
    pub(crate) fn new(steps: usize) -> Lab {
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
    pub(crate) fn data(&self, args: &[&str]) -> Value {
        let out = self.sandbox.piton(args).arg("--json").output().success().json();
        assert_eq!(out["status"], "ok");
        out["data"].clone()
    }

    /// The worktree of a step, which has been completed from there.
    #[track_caller]
    pub(crate) fn completed(&self, id: &str) -> PathBuf {
        let tree = self.open_tree(id);
        self.complete(id, &tree);
        tree
    }

    #[track_caller]
    pub(crate) fn open_tree(&self, id: &str) -> PathBuf {
        let made = self.data(&["worktree", "create", "plan.toml", id]);
        made["path"].as_str().expect("a path").into()
    }

    #[track_caller]
    pub(crate) fn claim(&self, id: &str, tree: &Path) -> String {
        let tree = tree.to_str().expect("text");
        let claimed = self.data(&["claim", "plan.toml", "--worktree", tree, "--step", id]);
        claimed["fence"].to_string()
    }

    #[track_caller]
    pub(crate) fn complete(&self, id: &str, tree: &Path) {
        let fence = self.claim(id, tree);
        self.data(&["complete", "plan.toml", id, "--fence", &fence]);
    }

    #[track_caller]
    pub(crate) fn commit(&self, tree: &Path, file: &str, text: &str) -> String {
        commit_file(&self.sandbox, tree, file, text)
    }

    /// Puts what a worktree has committed onto main.
    pub(crate) fn merge(&self, commit: &str) {
        self.sandbox.git(&["merge", "--quiet", "--no-edit", commit]);
    }

    /// Everything that must be the same after a clean-up that is undone.
    pub(crate) fn refs(&self) -> String {
        self.sandbox.git(&["for-each-ref"])
    }

    pub(crate) fn worktrees(&self) -> String {
        let listed = self.sandbox.git(&["worktree", "list", "--porcelain"]);
        let mut blocks: Vec<&str> = listed.split("\n\n").collect();
        blocks.sort_unstable();
        blocks.join("\n\n")
    }

    /// What `clean` says about each worktree: its verdict, and the proof or the reason.
    pub(crate) fn verdicts(&self, more: &[&str]) -> BTreeMap<PathBuf, (String, String)> {
        let data = self.data(&[&["clean"], more].concat());
        let rows = data["worktrees"].as_array().expect("rows").iter();
        let told = |row: &Value| {
            let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let why = if text("verdict") == "goes" { text("proof") } else { text("why") };
            (text("path").into(), (text("verdict"), why))
        };
        rows.map(told).collect()
    }

    pub(crate) fn status(&self, run: &str) -> String {
        self.data(&["status", run])["run"]["status"].as_str().expect("a status").to_owned()
    }

    /// Lets the step that waits go on to its end.
    pub(crate) fn open_gate(&self) {
        fs::write(self.sandbox.mark("gate"), "").expect("a file");
    }

    /// Makes an act look so many days old.
    pub(crate) fn age(&self, act: u64, days: i64) {
        let path = self.sandbox.path(format!(".git/piton/undo/{act}.json"));
        let mut written = self.sandbox.read_json(&path);
        let at = written["at"].as_i64().expect("milliseconds") - days * 24 * 60 * 60 * 1000;
        written["at"] = at.into();
        self.sandbox.write(&path, &written.to_string());
    }

    pub(crate) fn expired(&self, more: &[&str]) -> Vec<u64> {
        let data = self.data(&[&["clean"], more].concat());
        let acts = data["expired_acts"].as_array().expect("a list").iter();
        acts.map(|act| act["act"].as_u64().expect("a number")).collect()
    }

    /// Nothing is kept for an act any more.
    #[track_caller]
    pub(crate) fn assert_expired(&self, act: u64, why: &str) {
        assert_eq!(self.expired(&[]), Vec::<u64>::new(), "{why}");
        assert!(!self.sandbox.exists(format!(".git/piton/undo/{act}")), "{why}");
        assert_eq!(self.sandbox.git(&["for-each-ref", "refs/piton/undo"]), "", "{why}");
        let (code, error, message) = refused(&self.sandbox, &["undo", &act.to_string()]);
        assert_eq!((code, error.as_str()), (1, "E073"), "{why}: {message}");
        assert!(message.contains("has expired"), "{why}: {message}");
    }
}

/// A worktree as it is on disk: every path with its kind, permissions and bytes; and what git makes of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Print {
    pub(crate) paths: BTreeMap<PathBuf, (u32, Vec<u8>)>,
    pub(crate) staged: String,
    pub(crate) status: String,
    pub(crate) reflog: String,
}

impl Print {
    #[track_caller]
    pub(crate) fn of(sandbox: &Sandbox, tree: &Path) -> Print {
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
pub(crate) fn safe_ones(lab: &Lab) -> [(PathBuf, &'static str); 3] {
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

/// A run with three worktrees that can go and one that stays.
#[track_caller]
pub(crate) fn small() -> (Lab, Vec<PathBuf>, Vec<Print>) {
    let lab = Lab::new(4);
    let safe = safe_ones(&lab).map(|(path, _)| path).to_vec();
    let stays = lab.completed("s3");
    lab.sandbox.write(stays.join("mine.txt"), "mine\n");
    let prints = safe.iter().map(|path| Print::of(&lab.sandbox, path)).collect();
    (lab, safe, prints)
}

#[track_caller]
pub(crate) fn kill_at(lab: &Lab, args: &[&str], point: &str, nth: u32) {
    let crash = lab.sandbox.crash_point(point, nth);
    let running = lab.sandbox.piton(args).crash_at(&crash).spawn();
    kill9(crash.wait_hit());
    running.wait();
}

#[track_caller]
pub(crate) fn assert_back(lab: &Lab, safe: &[PathBuf], prints: &[Print], why: &str) {
    for (path, print) in safe.iter().zip(prints) {
        assert_eq!(Print::of(&lab.sandbox, path), *print, "{why}: {}", path.display());
    }
    let held = lab.sandbox.git(&["for-each-ref", "refs/piton/undo"]);
    assert_eq!(held, "", "{why}: nothing of it is left");
}

/// A run that was stopped in the middle of a step.
#[track_caller]
pub(crate) fn stopped() -> (Lab, String) {
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

/// A clean-up with ignored files that are in the way of being deleted.
pub(crate) fn cleaned() -> Lab {
    let (lab, safe, _) = small();
    let build = safe[0].join("src/build");
    lab.sandbox.write(build.join("deep/er/out.tmp"), "out\n");
    symlink("/", build.join("root")).expect("a link that must not be followed");
    fs::set_permissions(build.join("deep"), fs::Permissions::from_mode(0o500)).expect("rights");
    assert_eq!(lab.data(&["clean", "--apply"])["act"], 1);
    lab
}
