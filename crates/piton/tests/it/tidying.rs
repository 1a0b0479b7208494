//! Cleaning up with the real binary: what is provably safe goes, nothing else is touched, and what went
//! comes back byte for byte, ignored files excepted; killed at each durable action, said again, it ends the same.

mod killed;
mod listing;
mod proofs;
mod starting_over;
mod undoing;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use piton_testkit::runs::{command_step, commit_file, lay_plan, plan, view};
use piton_testkit::{Sandbox, kill9};
use serde_json::Value;

/// A repository with a run whose steps are done by hand, each in a worktree of its own.
pub(crate) struct Lab {
    pub(crate) sandbox: Sandbox,
}

impl Lab {
    #[track_caller]
    pub(crate) fn new(steps: usize) -> Lab {
        let sandbox = crate::sandbox();
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

    /// What must be the same after a clean-up that is undone.
    pub(crate) fn branches(&self) -> String {
        self.sandbox.git(&["for-each-ref", "refs/heads"])
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
}

/// A worktree as a snapshot keeps it: every file that is not ignored, with its kind, permissions and bytes;
/// and what git makes of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Print {
    pub(crate) paths: BTreeMap<String, (u32, Vec<u8>)>,
    pub(crate) staged: String,
    pub(crate) status: String,
}

impl Print {
    #[track_caller]
    pub(crate) fn of(sandbox: &Sandbox, tree: &Path) -> Print {
        let words = ["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"];
        let mut paths = BTreeMap::new();
        for name in sandbox.git_in(tree, &words).lines() {
            let path = tree.join(name);
            let found = fs::symlink_metadata(&path).expect("its metadata");
            let bytes = match found.is_symlink() {
                true => fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes(),
                false => fs::read(&path).expect("a file"),
            };
            paths.insert(name.to_owned(), (found.mode(), bytes));
        }
        Print {
            paths,
            staged: sandbox.git_in(tree, &["ls-files", "--stage"]),
            status: sandbox.git_in(tree, &["status", "--porcelain=v2", "--branch"]),
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
    lab.sandbox.write(merged.join("src/build/out.o"), "built\n");
    lab.sandbox.write(merged.join("src/secret.tmp"), "hunter2\n");
    let picked = lab.open_tree("s2");
    let commit = lab.commit(&picked, "picked.txt", "picked\n");
    lab.complete("s2", &picked);
    lab.sandbox.git(&["cherry-pick", &commit]);
    lab.sandbox.git(&["commit", "--quiet", "--amend", "-m", "another commit, the same change"]);
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
}

/// A run that was stopped in the middle of a step.
#[track_caller]
pub(crate) fn stopped() -> (Lab, String) {
    let sandbox = crate::sandbox();
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
