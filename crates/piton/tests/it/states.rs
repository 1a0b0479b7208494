//! Every state that a step's worktree can be found in when a run goes on: docs/worktrees.md has the table,
//! and each of its rows a test here. Each test shows that its fault was really applied, what the looking
//! verbs say of it, what `piton resume` does, and that every byte is there afterwards.

mod branches;
mod locks;
mod operations;
mod places;
mod pool;

use std::fs;
use std::path::{Path, PathBuf};

use piton_testkit::runs::{
    agent_step, branch, keepers, landed, lay_plan, plan, step, view, wait_event,
};
use piton_testkit::{Output, Sandbox, kill9};
use serde_json::Value;

/// What an agent leaves: a commit, a file that is staged and changed again, one that git does not know.
const LEAVES: &str = "echo mine > mine.txt; git add mine.txt; git commit -q -m mine; \
                      echo staged > staged.txt; git add staged.txt; echo more >> staged.txt; \
                      echo precious > work.txt";

/// A run whose only step was killed in the middle, with everything else of it.
pub(crate) struct Left {
    pub(crate) sandbox: Sandbox,
    pub(crate) tree: PathBuf,
    pub(crate) handle: String,
    pub(crate) branch: String,
}

impl Left {
    /// Killed after a snapshot was taken of everything.
    pub(crate) fn new() -> Left {
        Left::after(LEAVES)
    }

    /// The first agent runs a script in its worktree and is killed; the second writes down what it finds.
    pub(crate) fn after(script: &str) -> Left {
        Left::with(script, "", &[])
    }

    /// The same; the second agent then runs a script of its own.
    pub(crate) fn with(first: &str, second: &str, env: &[(&str, &Path)]) -> Left {
        let sandbox = crate::sandbox();
        sandbox.write("theirs.txt", "base\n");
        sandbox.write(sandbox.mark("first.sh"), first);
        let found = "git status > \"$1.status\"; git status --porcelain > \"$1.paths\"; \
                     git ls-files -s > \"$1.index\"; cat staged.txt > \"$1.staged\" 2>/dev/null; \
                     cat work.txt > \"$1.work\" 2>/dev/null; true\n";
        sandbox.write(sandbox.mark("found.sh"), found);
        sandbox.write(sandbox.mark("second.sh"), second);
        let script = "count {starts}; pid {agent}; nth {starts} 1: sh sh {first.sh}; touch {ready}; \
                      nth {starts} 1: hang; dump-prompt {prompt}; sh sh {found.sh} {found}; \
                      sh sh {second.sh}";
        let text = plan(&sandbox, &[agent_step(&sandbox, "work", script, "")]);
        lay_plan(&sandbox, &text);
        let start = sandbox.piton(&["run", "plan.toml", "--trust"]);
        let start = start.env("PITON_SNAPSHOT_EVERY", "100ms");
        let start = env.iter().fold(start, |start, (name, value)| start.env(name, value));
        let worker = start.spawn();
        sandbox.wait_exists(sandbox.mark("ready"));
        wait_event(&sandbox, "checkpointed");
        if first.contains("work.txt") {
            // Its last file: a snapshot that has it has everything.
            sandbox.wait_until("a snapshot of everything", || has_it(&sandbox));
        }
        let agent = sandbox.wait_pid(sandbox.mark("agent"));
        let keepers = keepers(&sandbox);
        drop(worker.kill9());
        keepers.into_iter().for_each(kill9);
        kill9(agent);
        sandbox.wait_no_processes();
        let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
        let place = sandbox.piton(&["worktree", "path", &handle, "work"]);
        let tree = PathBuf::from(place.output().success().stdout.trim());
        let branch = format!("piton/{handle}/step/work");
        Left { sandbox, tree, handle, branch }
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        self.sandbox.git(args)
    }

    /// git in the worktree.
    pub(crate) fn git_there(&self, args: &[&str]) -> String {
        self.sandbox.git_in(&self.tree, args)
    }

    /// Every verb that looks names this state, and people are told what is done about it; one of its rows.
    #[track_caller]
    pub(crate) fn assert_told(&self, state: &str) -> Value {
        let dry = self.look(&["resume", &self.handle, "--dry-run"]);
        let shown = self.look(&["show", &self.handle]);
        let status = self.look(&["status", &self.handle]);
        for (verb, told) in [("resume --dry-run", &dry), ("show", &shown), ("status", &status)] {
            has_state(&told["worktrees"]["work"], state, verb);
        }
        let listed = self.look(&["worktree", "list"]);
        let rows = listed["worktrees"].as_array().expect("rows");
        let rows: Vec<&Value> =
            rows.iter().filter(|row| row["path"] == self.tree.to_str().expect("text")).collect();
        assert_eq!(rows.len(), 1, "{listed:#}");
        let shown = self.sandbox.piton(&["worktree", "list"]).output().success().stdout;
        assert!(shown.contains(": `piton resume` "), "{shown}");
        has_state(&rows[0]["conditions"], state, "worktree list").clone()
    }

    #[track_caller]
    fn look(&self, args: &[&str]) -> Value {
        self.sandbox.piton(args).arg("--json").output().success().json()["data"].clone()
    }

    #[track_caller]
    pub(crate) fn resume(&self) -> Output {
        self.sandbox.piton(&["resume"]).output()
    }

    /// What the second agent found when it began.
    #[track_caller]
    pub(crate) fn found(&self, what: &str) -> String {
        self.sandbox.read(self.sandbox.mark(&format!("found.{what}")))
    }

    /// It went on with every byte, staged and unstaged as they were, and all of it landed.
    #[track_caller]
    pub(crate) fn assert_all_there(&self) {
        assert_eq!(self.found("paths"), "AM staged.txt\n?? work.txt\n");
        assert_eq!(self.found("staged"), "staged\nmore\n");
        assert_eq!(self.found("work"), "precious\n");
        self.assert_landed(&[("mine.txt", "mine"), ("staged.txt", "staged\nmore")]);
        self.assert_landed(&[("work.txt", "precious")]);
    }

    #[track_caller]
    pub(crate) fn assert_landed(&self, files: &[(&str, &str)]) {
        let run = view(&self.sandbox);
        assert_eq!(step(&run, "work")["status"], "completed", "{run:#}");
        for (file, text) in files {
            assert_eq!(landed(&self.sandbox, file), *text, "{file}");
        }
        self.sandbox.wait_no_processes();
    }

    /// The commit is in what the run has landed.
    #[track_caller]
    pub(crate) fn assert_lands(&self, commit: &str) {
        self.git(&["merge-base", "--is-ancestor", commit, &branch(&self.sandbox)]);
    }
}

/// Whether the newest snapshot has the last file that an agent writes.
fn has_it(sandbox: &Sandbox) -> bool {
    let run = view(sandbox);
    let name = step(&run, "work")["snapshot"]["refname"].as_str().unwrap_or_default().to_owned();
    sandbox.try_git(&["cat-file", "-e", &format!("{name}:work.txt")]).is_ok()
}

#[track_caller]
fn has_state<'a>(conditions: &'a Value, state: &str, verb: &str) -> &'a Value {
    let rows = conditions.as_array().unwrap_or_else(|| panic!("{verb}: {conditions:#}"));
    let row = rows.iter().find(|row| row["state"] == state);
    row.unwrap_or_else(|| panic!("{verb} does not tell {state}: {conditions:#}"))
}

/// Everything below a folder, as text.
pub(crate) fn files(folder: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            let text = fs::read(&path).expect("a file");
            all.push((path.display().to_string(), String::from_utf8_lossy(&text).into_owned()));
        }
    }
    all.sort();
    all
}
