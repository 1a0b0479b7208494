//! Two steps that change the same: the second one waits for a person, both sides stay as they are, and
//! whatever the person says is done once, also after kills.

use std::path::PathBuf;

use piton_testkit::runs::{
    agent_step, branch, command_step, completions, data, events_named, keepers, landed, lay_plan,
    plan_with, step, tree, view, wait_dead,
};
use piton_testkit::{Sandbox, kill9};
use serde_json::Value;

/// Steps `a` and `b` both write `both.txt`; `a` lands first. What `a` and `b` do is counted.
fn sandbox() -> Sandbox {
    let sandbox = crate::sandbox();
    let steps = [
        agent_step(&sandbox, "a", "count {starts-a}; await {begun}; write both.txt a", ""),
        agent_step(
            &sandbox,
            "b",
            "count {starts-b}; touch {begun}; nth {starts-b} 1: await {landed}; \
             write b.txt b; sh cat both.txt >> {seen} || true; \
             nth {starts-b} 1: write both.txt b; nth {starts-b} 2: append both.txt b",
            "verify = 'test -f b.txt'",
        ),
        command_step(&sandbox, "c", "cat b.txt both.txt > c.txt", "needs = ['a', 'b']"),
    ];
    lay_plan(&sandbox, &plan_with(&sandbox, "isolation = 'step'\njobs = 2", &steps));
    sandbox
}

/// Runs until `b` waits; returns the question.
fn parked(sandbox: &Sandbox) -> Value {
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("begun"));
    sandbox.wait_until("a has landed", || step(&view(sandbox), "a")["status"] == "completed");
    sandbox.write(sandbox.mark("landed"), "");
    let out = run.wait().expect_code(4);
    assert!(out.stderr.contains("both.txt"), "it names what conflicts\n{out}");
    assert!(out.stderr.contains("piton answer"), "and what to type\n{out}");
    question(sandbox)
}

fn question(sandbox: &Sandbox) -> Value {
    let view = view(sandbox);
    let b = step(&view, "b");
    assert_eq!(b["status"], "waiting", "{b}");
    assert_eq!(b["failures"], 0);
    let asked = b["questions"].as_array().expect("questions").last().expect("one").clone();
    assert_eq!(asked["state"], "open");
    asked
}

fn place(sandbox: &Sandbox) -> PathBuf {
    let handle = view(sandbox)["handle"].as_str().expect("a handle").to_owned();
    let told = data(sandbox, &["worktree", "path", &handle, "b"]);
    PathBuf::from(told["path"].as_str().expect("a path"))
}

fn answer(sandbox: &Sandbox, question: &Value, text: &str) {
    let id = question["question"].as_str().expect("a name");
    sandbox.piton(&["answer", id, text]).output().success();
}

/// Brings both sides together where the step works.
fn merge(sandbox: &Sandbox) {
    let (place, branch) = (place(sandbox), branch(sandbox));
    let git = |args: &[&str]| sandbox.command("git").current_dir(&place).args(args).output();
    let merged = git(&["merge", "--quiet", &branch]).expect("git runs");
    assert!(!merged.status.success(), "it really conflicts");
    sandbox.write(place.join("both.txt"), "a\nb\n");
    sandbox.git_in(&place, &["add", "both.txt"]);
    sandbox.git_in(&place, &["commit", "--quiet", "--no-edit"]);
}

#[test]
fn both_sides_stay_as_they_are() {
    let sandbox = sandbox();
    let asked = parked(&sandbox);
    let conflict = &asked["about"]["conflict"];
    assert_eq!(conflict["paths"], serde_json::json!(["both.txt"]));
    let commit = conflict["commit"].as_str().expect("a commit");
    let kept = conflict["kept"].as_str().expect("a ref");
    assert_eq!(sandbox.git(&["rev-parse", kept]).trim(), commit);
    assert_eq!(sandbox.git(&["show", &format!("{commit}:both.txt")]).trim(), "b");
    assert_eq!(sandbox.git(&["rev-parse", &branch(&sandbox)]).trim(), conflict["onto"]);
    assert_eq!(landed(&sandbox, "both.txt").trim(), "a");
    assert_eq!(conflict["worktree"], place(&sandbox).display().to_string());
    assert_eq!(sandbox.read(place(&sandbox).join("both.txt")).trim(), "b");
    assert_eq!(asked["choices"], serde_json::json!(["land again", "restart", "stop"]));
    // Nobody has said anything: resuming asks again and starts nothing.
    let out = sandbox.piton(&["resume"]).output().expect_code(4);
    assert!(out.stderr.contains("both.txt"), "{out}");
    assert_eq!(sandbox.lines(sandbox.mark("starts-b")), 1);
    assert_eq!(data(&sandbox, &["questions"])["questions"].as_array().expect("a list").len(), 1);
}

#[test]
fn land_again_after_both_were_brought_together() {
    let sandbox = sandbox();
    let asked = parked(&sandbox);
    merge(&sandbox);
    answer(&sandbox, &asked, "land again");
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(landed(&sandbox, "both.txt").split_whitespace().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(landed(&sandbox, "c.txt").split_whitespace().collect::<Vec<_>>(), ["b", "a", "b"]);
    assert_eq!(sandbox.lines(sandbox.mark("starts-b")), 1, "the agent is not started again");
    assert_eq!(completions(&sandbox)["b"], 1);
    let checks = events_named(&sandbox, "verified");
    let of_b: Vec<&Value> = checks.iter().filter(|event| event["step"]["step"] == "b").collect();
    assert_eq!(of_b.len(), 2, "what was merged was verified");
    assert_eq!(of_b[1]["answers"], serde_json::json!([asked["question"]]));
}

#[test]
fn land_again_without_having_merged_asks_again() {
    let sandbox = sandbox();
    let first = parked(&sandbox);
    answer(&sandbox, &first, "land again");
    sandbox.piton(&["resume"]).output().expect_code(4);
    let second = question(&sandbox);
    assert_ne!(first["question"], second["question"]);
    // A merge that is not finished is not committed for anybody.
    let (place, branch) = (place(&sandbox), branch(&sandbox));
    let merge = sandbox.command("git").current_dir(&place).args(["merge", "-q", &branch]).output();
    assert!(!merge.expect("git runs").status.success());
    answer(&sandbox, &second, "1");
    let out = sandbox.piton(&["resume"]).output().expect_code(4);
    assert!(out.stderr.contains("is not finished (both.txt)"), "{out}");
    assert!(sandbox.read(place.join("both.txt")).contains("<<<<<<<"), "it is as it was left");
    sandbox.write(place.join("both.txt"), "a b\n");
    sandbox.git_in(&place, &["commit", "--quiet", "--no-edit", "-a"]);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(landed(&sandbox, "both.txt").trim(), "a b");
}

#[test]
fn restart_does_the_step_again_from_the_runs_branch() {
    let sandbox = sandbox();
    let asked = parked(&sandbox);
    let kept = asked["about"]["conflict"]["kept"].as_str().expect("a ref").to_owned();
    answer(&sandbox, &asked, "restart");
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(sandbox.lines(sandbox.mark("starts-b")), 2);
    assert_eq!(sandbox.read(sandbox.mark("seen")).trim(), "a", "it has what a has landed");
    assert_eq!(landed(&sandbox, "both.txt").split_whitespace().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        sandbox.git(&["show", &format!("{kept}:both.txt")]).trim(),
        "b",
        "kept all the same"
    );
    sandbox.git(&["gc", "--quiet", "--prune=now"]);
    assert_eq!(sandbox.git(&["show", &format!("{kept}:both.txt")]).trim(), "b");
}

/// Killed at each point between the conflict and what came of the answer.
#[test]
fn kills_change_nothing() {
    for point in ["land.unlanded-kept", "keeper.parked"] {
        let sandbox = sandbox();
        let crash = sandbox.crash_point(point, 1);
        let run = sandbox.piton(&["run", "plan.toml", "--trust"]).crash_at(&crash).spawn();
        sandbox.wait_exists(sandbox.mark("begun"));
        sandbox.wait_until("a has landed", || step(&view(&sandbox), "a")["status"] == "completed");
        sandbox.write(sandbox.mark("landed"), "");
        crash.wait_hit();
        run.kill9();
        for keeper in keepers(&sandbox) {
            kill9(keeper);
            wait_dead(keeper);
        }
        sandbox.piton(&["resume"]).output().expect_code(4);
        assert_eq!(events_named(&sandbox, "asked").len(), 1, "{point}: it is asked once");
        assert_eq!(sandbox.lines(sandbox.mark("starts-b")), 1, "{point}");
        merge(&sandbox);
        answer(&sandbox, &question(&sandbox), "land again");
        for point in [
            "worker.claimed",
            "keeper.leftovers-committed",
            "keeper.verified",
            "land.intended",
            "land.ref-moved",
        ] {
            let crash = sandbox.crash_point(point, 1);
            // Several kills without new progress: that is asked about too.
            let run = sandbox.piton(&["resume", "--yes"]).crash_at(&crash).spawn();
            crash.wait_hit();
            run.kill9();
            for keeper in keepers(&sandbox) {
                kill9(keeper);
                wait_dead(keeper);
            }
        }
        sandbox.piton(&["resume", "--yes"]).output().success();
        assert_eq!(sandbox.lines(sandbox.mark("starts-b")), 1, "{point}: no agent ran again");
        assert_eq!(completions(&sandbox)["b"], 1, "{point}");
        let applied: Vec<Value> = events_named(&sandbox, "verified")
            .into_iter()
            .filter(|event| event["answers"].is_array())
            .collect();
        assert_eq!(applied.len(), 1, "{point}: the answer is applied once");
    }
}

/// With one worktree for the run, somebody moves the run's branch under a step.
#[test]
fn a_branch_that_somebody_moved_on_is_asked_about_too() {
    let sandbox = crate::sandbox();
    let steps = [
        command_step(&sandbox, "a", "echo a > a.txt", ""),
        agent_step(
            &sandbox,
            "b",
            "count {starts-b}; touch {begun}; await {landed}; write both.txt b",
            "needs = ['a']",
        ),
        command_step(&sandbox, "c", "echo c > c.txt", "needs = ['a']"),
    ];
    lay_plan(&sandbox, &piton_testkit::runs::plan(&sandbox, &steps));
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("begun"));
    let branch = branch(&sandbox);
    let side = sandbox.root().join("side");
    let side_text = side.display().to_string();
    sandbox.git(&["worktree", "add", "--quiet", &side_text, &branch]);
    sandbox.write(side.join("both.txt"), "somebody\n");
    sandbox.git_in(&side, &["add", "both.txt"]);
    sandbox.git_in(&side, &["commit", "--quiet", "-m", "somebody's"]);
    sandbox.git(&["worktree", "remove", &side_text]);
    sandbox.write(sandbox.mark("landed"), "");
    run.wait().expect_code(4);
    let asked = question(&sandbox);
    assert_eq!(step(&view(&sandbox), "c")["status"], "completed", "the others went on meanwhile");
    merge(&sandbox);
    answer(&sandbox, &asked, "land again");
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(sandbox.git(&["show", &format!("{branch}:both.txt")]).trim(), "a\nb");
    assert_eq!(sandbox.lines(sandbox.mark("starts-b")), 1);
}

/// Two people complete steps from worktrees of their own, each with a commit that writes `both.txt`; the
/// second one conflicts.
struct ByHand {
    sandbox: Sandbox,
    tree: PathBuf,
    fence: String,
    ours: String,
    theirs: String,
}

impl ByHand {
    /// `lease` is how long the second one is believed; `more` is said of its step.
    fn new(lease: &str, more: &str) -> ByHand {
        ByHand::in_trees(lease, more, |sandbox, id| {
            let made = data(sandbox, &["worktree", "create", "plan.toml", id]);
            PathBuf::from(made["path"].as_str().expect("a path"))
        })
    }

    fn in_trees(lease: &str, more: &str, tree: impl Fn(&Sandbox, &str) -> PathBuf) -> ByHand {
        let sandbox = crate::sandbox();
        let steps = format!("[[step]]\nid = 'a'\n\n[[step]]\nid = 'b'\n{more}\n");
        lay_plan(&sandbox, &format!("[plan]\nname = 'test'\nisolation = 'step'\n\n{steps}"));
        data(&sandbox, &["open", "plan.toml"]);
        data(&sandbox, &["trust", "plan.toml", "--yes"]);
        let begin = |id: &str, lease: &str| {
            let tree = tree(&sandbox, id);
            let path = tree.to_str().expect("text");
            let args = ["claim", "plan.toml", "--worktree", path, "--step", id, "--lease", lease];
            let fence = data(&sandbox, &args)["fence"].to_string();
            sandbox.write(tree.join("both.txt"), &format!("{id}\n"));
            sandbox.git_in(&tree, &["add", "-A"]);
            sandbox.git_in(&tree, &["commit", "--quiet", "-m", id]);
            (tree.clone(), fence, sandbox.git_in(&tree, &["rev-parse", "HEAD"]))
        };
        let (_, first, ours) = begin("a", "1h");
        let (tree, fence, theirs) = begin("b", lease);
        data(&sandbox, &["complete", "plan.toml", "a", "--fence", &first, "--commit", &ours]);
        ByHand { sandbox, tree, fence, ours, theirs }
    }

    fn args<'a>(&'a self, commit: &'a str) -> [&'a str; 7] {
        ["complete", "plan.toml", "b", "--fence", &self.fence, "--commit", commit]
    }

    /// Completes with a commit that conflicts; the question that is open then.
    #[track_caller]
    fn conflict(&self) -> Value {
        let out = self.sandbox.piton(&self.args(&self.theirs)).output().expect_code(1);
        assert!(out.stderr.contains("error[E081]") && out.stderr.contains("both.txt"), "{out}");
        self.assert_intact();
        self.open_question()
    }

    #[track_caller]
    fn open_question(&self) -> Value {
        let open = data(&self.sandbox, &["questions"])["questions"].clone();
        let [asked] = open.as_array().expect("a list").as_slice() else { panic!("{open}") };
        asked.clone()
    }

    /// Neither side has lost anything.
    #[track_caller]
    fn assert_intact(&self) {
        assert_eq!(self.sandbox.git(&["rev-parse", &branch(&self.sandbox)]), self.ours);
        assert_eq!(self.sandbox.git_in(&self.tree, &["rev-parse", "HEAD"]), self.theirs);
        assert_eq!(self.sandbox.git_in(&self.tree, &["status", "--porcelain"]), "");
        let handle = view(&self.sandbox)["handle"].as_str().expect("a handle").to_owned();
        let kept = format!("refs/piton/unlanded/{handle}/b/{}", self.fence);
        assert_eq!(self.sandbox.git(&["rev-parse", &kept]), self.theirs);
    }

    /// Brings both sides together in the holder's worktree; the commit.
    fn solve(&self) -> String {
        let branch = branch(&self.sandbox);
        let mut merge = self.sandbox.command("git");
        let merge = merge.current_dir(&self.tree).args(["merge", &branch]).output();
        assert!(!merge.expect("git runs").status.success(), "it really conflicts");
        self.sandbox.write(self.tree.join("both.txt"), "a\nb\n");
        self.sandbox.git_in(&self.tree, &["commit", "--quiet", "--no-edit", "-a"]);
        self.sandbox.git_in(&self.tree, &["rev-parse", "HEAD"])
    }
}

#[test]
fn a_commit_from_outside_is_asked_about_and_landed_again() {
    let it = ByHand::new("1h", "");
    let asked = it.conflict();
    assert_eq!(asked["choices"], serde_json::json!(["land again", "restart", "stop"]));
    let text = asked["text"].as_str().expect("a text");
    assert!(text.contains(it.tree.to_str().expect("text")), "it says where: {text}");
    let status = it.sandbox.piton(&["status", "plan.toml"]).output().success();
    let id = asked["question"].as_str().expect("a name");
    assert!(status.stdout.contains(&format!("not landed, for the answer to {id}")), "{status}");
    assert!(status.stdout.contains(&format!("{id} 'land again'")), "{status}");
    // Said too early: it is asked again, and nothing is lost.
    let out = it.sandbox.piton(&["answer", id, "land again"]).output().success();
    assert!(out.stderr.contains("its holder lands it: `piton complete"), "{out}");
    let again = it.conflict();
    assert_ne!(again["question"], asked["question"]);
    let both = it.solve();
    answer(&it.sandbox, &again, "1");
    let done = data(&it.sandbox, &it.args(&both));
    assert_eq!(done["commit"], both);
    assert_eq!(landed(&it.sandbox, "both.txt"), "a\nb");
    assert_eq!(completions(&it.sandbox)["b"], 1);
    assert_eq!(view(&it.sandbox)["status"], "completed");
    assert_eq!(data(&it.sandbox, &["questions"])["questions"], serde_json::json!([]));
}

#[test]
fn killed_when_it_conflicts_it_is_asked_once_when_it_is_said_again() {
    let it = ByHand::new("1h", "");
    let crash = it.sandbox.crash_point("land.unlanded-kept", 1);
    let running = it.sandbox.piton(&it.args(&it.theirs)).crash_at(&crash).spawn();
    kill9(crash.wait_hit());
    running.wait();
    it.assert_intact();
    it.conflict();
    assert_eq!(events_named(&it.sandbox, "asked").len(), 1);
    it.sandbox.git(&["gc", "--quiet", "--prune=now"]);
    it.assert_intact();
}

#[test]
fn what_a_holder_left_in_conflict_is_worked_on_again() {
    let more = "run = 'cat both.txt > b.txt; echo again >> b.txt'";
    // In a worktree of their own, or in one that was made for the step and has its branch.
    let own = ByHand::in_trees("2s", more, |sandbox, id| PathBuf::from(tree(sandbox, id)));
    for it in [own, ByHand::new("2s", more)] {
        let asked = it.conflict();
        let solved = it.solve();
        answer(&it.sandbox, &asked, "land again");
        it.sandbox.wait_until("the lease to be over", || view(&it.sandbox)["status"] == "lapsed");
        it.sandbox.piton(&["resume"]).output().success();
        assert_eq!(landed(&it.sandbox, "b.txt"), "a\nagain", "not completed without its work");
        assert_eq!(it.sandbox.git_in(&it.tree, &["rev-parse", "HEAD"]), solved);
        assert_eq!(completions(&it.sandbox)["b"], 1);
    }
}
