//! What is in the worktree of a claim that ends, however it ends, is kept under the claim's own fence.

use std::path::{Path, PathBuf};

use piton_testkit::Sandbox;
use piton_testkit::runs::{events, events_named, step, told, view};
use serde_json::Value;

use super::{Lab, SNAPSHOT_KEPT};

/// A claim with work in its worktree that no commit has, on top of one that nobody landed; and what the
/// worktree looked like.
struct Working {
    lab: Lab,
    tree: PathBuf,
    fence: String,
    before: (String, String, String),
}

impl Working {
    fn begin(more: &[&str]) -> Working {
        let lab = Lab::trusting();
        let (tree, fence) = lab.claim("jwt", more);
        lab.commit(&tree, "done.ts", "done\n");
        lab.sandbox.write(tree.join("staged.ts"), "staged\n");
        lab.sandbox.git_in(&tree, &["add", "staged.ts"]);
        lab.sandbox.write(tree.join("half.ts"), "größe: half\n");
        let before = looks(&lab.sandbox, &tree);
        Working { lab, tree, fence, before }
    }

    fn path(&self) -> &str {
        self.tree.to_str().expect("a path is text")
    }

    /// The bytes are under the fence of the claim, and the worktree is as it was.
    #[track_caller]
    fn assert_kept(&self, refname: &Value) {
        let name = refname.as_str().unwrap_or_else(|| panic!("no ref: {refname}"));
        assert!(name.contains(&format!("/jwt/{}/", self.fence)), "{name}: under its own fence");
        let sandbox = &self.lab.sandbox;
        for (file, text) in
            [("half.ts", "größe: half"), ("staged.ts", "staged"), ("done.ts", "done")]
        {
            assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{name}:{file}")]), text);
        }
        assert_eq!(looks(sandbox, &self.tree), self.before, "nothing of theirs was touched");
    }

    #[track_caller]
    fn other(&self) -> PathBuf {
        let other = self.lab.sandbox.root().join("other");
        let path = other.to_str().expect("text");
        self.lab.sandbox.git(&["worktree", "add", "--quiet", "--detach", path]);
        other
    }
}

/// HEAD, branch, index and files.
fn looks(sandbox: &Sandbox, tree: &Path) -> (String, String, String) {
    let git = |args: &[&str]| sandbox.git_in(tree, args);
    let head = git(&["rev-parse", "HEAD"]) + &git(&["branch", "--show-current"]);
    (head, git(&["ls-files", "--stage"]), git(&["status", "--porcelain", "--untracked-files=all"]))
}

#[test]
fn release_keeps_what_is_in_the_worktree() {
    for force in [false, true] {
        let working = Working::begin(&[]);
        let by = if force { ["--force", ""] } else { ["--fence", &working.fence] };
        let by: Vec<&str> = by.into_iter().filter(|word| !word.is_empty()).collect();
        let released = working.lab.data(&[&["release", "plan.toml", "jwt"], &by[..]].concat());
        working.assert_kept(&released["kept"]);
        let run = view(&working.lab.sandbox);
        assert_eq!(step(&run, "jwt")["snapshot"]["refname"], released["kept"], "it is recorded");
    }
}

#[test]
fn failing_and_completing_keep_what_is_in_the_worktree() {
    let ways: [&[&str]; 2] =
        [&["fail", "plan.toml", "jwt", "--reason", "x"], &["complete", "plan.toml", "jwt"]];
    for way in ways {
        let working = Working::begin(&[]);
        let done = working.lab.data(&[way, &["--fence", &working.fence]].concat());
        working.assert_kept(&done["kept"]);
    }
    let working = Working::begin(&[]);
    let commit = working.lab.commit(&working.tree, "auth.ts", "validateToken\n");
    working.lab.sandbox.write(working.tree.join("left.ts"), "left\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &working.fence, "--commit", &commit];
    let done = working.lab.data(&args);
    let name = done["kept"].as_str().expect("what the commit lacks is kept");
    let left = working.lab.sandbox.git(&["cat-file", "blob", &format!("{name}:left.ts")]);
    assert_eq!(left, "left");
}

#[test]
fn a_clean_worktree_costs_no_snapshot() {
    let lab = Lab::trusting();
    let (tree, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&tree, "auth.ts", "validateToken\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    assert_eq!(lab.data(&args)["kept"], Value::Null, "the commit has it all");
    assert!(lab.refs().is_empty(), "{:?}", lab.refs());
}

#[test]
fn reset_keeps_what_the_last_holder_left() {
    let working = Working::begin(&[]);
    let lab = &working.lab;
    lab.data(&["fail", "plan.toml", "jwt", "--fence", &working.fence, "--reason", "x"]);
    lab.sandbox.write(working.tree.join("after.ts"), "after\n");
    let reset = lab.data(&["reset", "plan.toml", "jwt"]);
    let name = reset["kept"].as_str().expect("a ref").to_owned();
    assert_eq!(lab.sandbox.git(&["cat-file", "blob", &format!("{name}:after.ts")]), "after");
    assert!(name.contains(&format!("/jwt/{}/", working.fence)), "{name}");
}

#[test]
fn force_claim_keeps_what_the_displaced_one_has() {
    let working = Working::begin(&[]);
    let forced = working.lab.claim_from(&working.other(), "jwt", &["--force"]);
    working.assert_kept(&forced["kept"]);
    let checkpoints = events_named(&working.lab.sandbox, "checkpointed");
    let (last, claims) =
        (checkpoints.last().expect("one"), events_named(&working.lab.sandbox, "claimed"));
    assert_eq!(last["snapshot"]["refname"], forced["kept"]);
    assert!(last["position"].as_u64() < claims[1]["position"].as_u64(), "kept first, then taken");
}

#[test]
fn a_lapsed_claim_is_taken_over_with_its_bytes_kept() {
    let working = Working::begin(&["--lease", "1s"]);
    let other = working.other();
    let path = other.to_str().expect("text");
    let args = ["claim", "plan.toml", "--worktree", path, "--step", "jwt"];
    let mut taken = Value::Null;
    working.lab.sandbox.wait_until("the lease to be over", || {
        taken = working.lab.data(&args);
        taken["claimed"] == true
    });
    assert_eq!(taken["grounds"], "lease_over");
    working.assert_kept(&taken["kept"]);
}

#[test]
fn whoever_lost_a_claim_is_refused_and_told_where_its_bytes_are() {
    let working = Working::begin(&[]);
    let lab = &working.lab;
    lab.claim_from(&working.other(), "jwt", &["--force"]);
    let before = events(&lab.sandbox);
    let writes: [&[&str]; 6] = [
        &["checkpoint", "plan.toml", "jwt", "--note", "still at it"],
        &["heartbeat", "plan.toml", "jwt"],
        &["start", "plan.toml", "jwt"],
        &["release", "plan.toml", "jwt"],
        &["fail", "plan.toml", "jwt", "--reason", "x"],
        &["complete", "plan.toml", "jwt"],
    ];
    for (n, write) in writes.into_iter().enumerate() {
        let file = working.tree.join("later.ts");
        lab.sandbox.write(&file, &format!("{n}\n"));
        let args = [write, &["--worktree", working.path(), "--json"]].concat();
        let out = lab.sandbox.piton(&args).output();
        let (exit, code, message) = told(&out);
        assert_eq!((exit, code.as_str()), (5, "E049"), "{write:?}");
        let name = out.json()["data"]["kept"].as_str().expect("a ref").to_owned();
        assert!(message.contains(&name), "{message}");
        assert!(name.contains(&format!("/jwt/{}/", working.fence)), "{name}");
        let later = lab.sandbox.git(&["cat-file", "blob", &format!("{name}:later.ts")]);
        assert_eq!(later, n.to_string(), "{write:?}");
    }
    assert_eq!(events(&lab.sandbox), before, "nothing was recorded");
    let count = lab.refs().len();
    lab.refused(&["start", "plan.toml", "jwt", "--fence", &working.fence]);
    assert_eq!(lab.refs().len(), count, "the same bytes are not kept twice");

    // A worktree that has claimed again has the later claim's bytes.
    lab.claim_from(&working.tree, "docs", &[]);
    lab.sandbox.write(working.tree.join("docs.md"), "docs\n");
    let (_, _, message) = lab.refused(&["start", "plan.toml", "jwt", "--fence", &working.fence]);
    assert!(!message.contains("refs/piton"), "{message}");
}

#[test]
fn killed_before_the_act_the_bytes_are_kept_and_it_is_said_again() {
    let ways: [&[&str]; 3] = [
        &["release", "plan.toml", "jwt"],
        &["fail", "plan.toml", "jwt", "--reason", "x"],
        &["complete", "plan.toml", "jwt"],
    ];
    for way in ways {
        let working = Working::begin(&[]);
        let args = [way, &["--fence", &working.fence]].concat();
        let crash = working.lab.sandbox.crash_point(SNAPSHOT_KEPT, 1);
        let one = working.lab.sandbox.piton(&args).crash_at(&crash).spawn();
        assert_eq!(crash.wait_hit(), one.pid(), "{way:?}");
        one.kill9();
        let kept = working.lab.refs();
        working.assert_kept(&Value::from(kept.last().expect("a ref").as_str()));
        let run = view(&working.lab.sandbox);
        assert_eq!(step(&run, "jwt")["status"], "claimed", "{way:?}: nothing has happened yet");
        let done = working.lab.data(&args);
        working.assert_kept(&done["kept"]);
    }
}
