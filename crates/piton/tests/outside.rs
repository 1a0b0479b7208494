//! The work of holders outside, with the real binary: worktrees that piton makes for them, commits that
//! it verifies and lands, bytes that it keeps for them; killed, raced and taken from them at each
//! durable action.

use std::path::{Path, PathBuf};

use piton_engine::crash::{POINTS, Who};
use piton_testkit::runs::{
    agent_step, attempt_folder, completions, data, events, events_named, keeper, lay_plan, plan,
    refused, step, told, view,
};
use piton_testkit::{Running, Sandbox, alive, kill9};
use serde_json::Value;

const PLAN: &str = "\
[plan]
name = 'auth'

[[step]]
id = 'jwt'
title = 'JWT validation'
verify = 'test -f auth.ts && cat auth.ts'

[[step]]
id = 'docs'
items = ['say how']
substeps = [{ id = 'write', title = 'write them' }]

[[step]]
id = 'routes'
needs = ['jwt']
";

/// A repository with a plan whose steps are claimed by others.
struct Lab {
    sandbox: Sandbox,
}

impl Lab {
    fn new() -> Lab {
        Lab::of(PLAN)
    }

    /// Whose plan is trusted.
    fn trusting() -> Lab {
        let lab = Lab::new();
        lab.data(&["trust", "plan.toml", "--yes"]);
        lab
    }

    fn of(plan: &str) -> Lab {
        let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
        lay_plan(&sandbox, plan);
        Lab { sandbox }
    }

    #[track_caller]
    fn data(&self, args: &[&str]) -> Value {
        data(&self.sandbox, args)
    }

    /// A command that is refused: its exit status, code and message.
    #[track_caller]
    fn refused(&self, args: &[&str]) -> (i32, String, String) {
        refused(&self.sandbox, args)
    }

    /// The worktree of a step.
    #[track_caller]
    fn tree(&self, id: &str) -> PathBuf {
        let made = self.data(&["worktree", "create", "plan.toml", id]);
        made["path"].as_str().expect("a path").into()
    }

    /// Claims a step from its own worktree.
    #[track_caller]
    fn claim(&self, id: &str, more: &[&str]) -> (PathBuf, String) {
        let tree = self.tree(id);
        let fence = self.claim_from(&tree, id, more)["fence"].to_string();
        (tree, fence)
    }

    #[track_caller]
    fn claim_from(&self, tree: &Path, id: &str, more: &[&str]) -> Value {
        let tree = tree.to_str().expect("a path is text");
        let args = ["claim", "plan.toml", "--worktree", tree, "--step", id];
        let claimed = self.data(&[&args[..], more].concat());
        assert_eq!(claimed["claimed"], true, "{claimed}");
        claimed
    }

    /// Commits a file in a worktree; the commit's id.
    #[track_caller]
    fn commit(&self, tree: &Path, file: &str, text: &str) -> String {
        self.sandbox.write(tree.join(file), text);
        self.sandbox.git_in(tree, &["add", "-A"]);
        self.sandbox.git_in(tree, &["commit", "--quiet", "-m", &format!("write {file}")]);
        self.sandbox.git_in(tree, &["rev-parse", "HEAD"])
    }

    fn branch(&self) -> String {
        view(&self.sandbox)["branch"].as_str().expect("a branch").to_owned()
    }

    /// What the run's branch has in a file.
    #[track_caller]
    fn landed(&self, file: &str) -> String {
        self.sandbox.git(&["show", &format!("{}:{file}", self.branch())])
    }

    fn tip(&self) -> String {
        self.sandbox.git(&["rev-parse", "--verify", &self.branch()])
    }

    fn refs(&self) -> Vec<String> {
        let listed = self.sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
        listed.lines().map(str::to_owned).collect()
    }

    /// No scratch worktree is left, neither on disk nor in git's list.
    #[track_caller]
    fn assert_no_scratch(&self) {
        let list = self.sandbox.git(&["worktree", "list", "--porcelain"]);
        assert!(!list.contains("/piton/verify/"), "{list}");
        let home = self.sandbox.path(".git/piton/verify");
        let left: Vec<_> = std::fs::read_dir(home).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(!self.sandbox.exists(".git/piton/aside"), "nothing had to be moved out of the way");
    }
}

#[test]
fn a_worktree_is_made_once() {
    let lab = Lab::new();
    let made = lab.data(&["worktree", "create", "plan.toml", "jwt"]);
    assert_eq!(made["created"], true);
    let handle = made["handle"].as_str().expect("a handle");
    let path = lab.sandbox.path(format!(".piton/worktrees/{handle}/step/jwt"));
    assert_eq!(made["path"], path.to_str().expect("text"));
    let branch = format!("piton/{handle}/step/jwt");
    assert_eq!(made["branch"], branch.as_str());
    assert_eq!(lab.sandbox.git_in(&path, &["branch", "--show-current"]), branch);
    assert_eq!(lab.sandbox.git(&["status", "--porcelain"]), "", "the user's own tree is as it was");

    lab.sandbox.write(path.join("half.ts"), "half\n");
    let again = lab.data(&["worktree", "create", handle, "jwt"]);
    assert_eq!((&again["created"], &again["path"]), (&false.into(), &made["path"]));
    assert_eq!(lab.sandbox.read(path.join("half.ts")), "half\n");
    let shown = lab.sandbox.piton(&["worktree", "create", handle, "jwt"]).output().success();
    assert_eq!(shown.stdout.trim_end(), path.to_str().expect("text"), "for $(…)");
    let would = lab.data(&["worktree", "path", handle, "docs"]);
    assert!(would["path"].as_str().expect("a path").ends_with("/step/docs"));
    assert!(!Path::new(would["path"].as_str().expect("a path")).exists(), "looking makes nothing");

    let own = lab.data(&["worktree", "create", handle]);
    assert!(own["path"].as_str().expect("a path").ends_with(&format!("{handle}/run")));
    assert_eq!(own["branch"], format!("piton/{handle}/idle"));
    assert_eq!(lab.refused(&["worktree", "create", handle, "nope"]).1, "E059");
}

#[test]
fn worktrees_are_made_by_many_at_once() {
    let lab = Lab::new();
    lab.data(&["open", "plan.toml"]);
    let ids = ["jwt", "docs", "routes", "jwt", "docs", "routes", "jwt", "jwt"];
    let start = |id: &&str| {
        let args = ["worktree", "create", "plan.toml", id, "--json"];
        lab.sandbox.piton(&args).spawn()
    };
    let all: Vec<Running> = ids.iter().map(start).collect();
    let made = all.into_iter().map(|one| one.wait().success().json()["data"].clone());
    let made: Vec<Value> = made.collect();
    for id in ["jwt", "docs", "routes"] {
        let of = made.iter().filter(|one| one["step"] == id);
        let created: Vec<&Value> = of.filter(|one| one["created"] == true).collect();
        assert_eq!(created.len(), 1, "{id}: {made:#?}");
        let path = Path::new(created[0]["path"].as_str().expect("a path"));
        assert_eq!(lab.sandbox.git_in(path, &["status", "--porcelain"]), "");
    }
}

#[test]
fn what_is_in_the_way_of_a_worktree_is_left_alone() {
    let lab = Lab::new();
    let path = lab.tree("jwt");
    lab.commit(&path, "mine.ts", "mine\n");
    std::fs::rename(&path, lab.sandbox.root().join("moved")).expect("moved");
    lab.sandbox.write(path.join("foreign.txt"), "theirs\n");
    let (_, code, message) = lab.refused(&["worktree", "create", "plan.toml", "jwt"]);
    assert_eq!(code, "E062");
    assert!(message.contains("not a worktree"), "{message}");
    assert_eq!(lab.sandbox.read(path.join("foreign.txt")), "theirs\n");

    // Gone, but still in git's list; the branch has a commit that nobody landed.
    std::fs::rename(&path, lab.sandbox.root().join("foreign")).expect("moved");
    let again = lab.data(&["worktree", "create", "plan.toml", "jwt"]);
    assert_eq!(again["created"], true);
    assert_eq!(lab.sandbox.read(path.join("mine.ts")), "mine\n", "it starts from its own branch");
}

#[test]
fn a_commit_is_verified_landed_and_built_upon() {
    let lab = Lab::new();
    let (jwt, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let complete = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit[..9]];
    let before = events(&lab.sandbox);
    let (exit, code, _) = lab.refused(&complete);
    assert_eq!((exit, code.as_str()), (77, "E063"), "its verify command is not trusted");
    assert_eq!(events(&lab.sandbox), before);

    lab.sandbox.git_in(&jwt, &["init", "--quiet", "vendor"]);
    let done = lab.data(&[&complete[..], &["--trust"]].concat());
    assert_eq!((&done["commit"], &done["truth"]), (&commit.as_str().into(), &"verified".into()));
    let apart = serde_json::json!([{ "path": "vendor/", "why": "a repository of its own" }]);
    assert_eq!(done["not_landed"], apart, "no commit has it");
    let verified = &events_named(&lab.sandbox, "verified")[0];
    assert_eq!(verified["omitted"], apart);
    assert_eq!(verified["check"]["command"], "test -f auth.ts && cat auth.ts");
    assert_eq!(verified["check"]["exit"]["code"], 0);
    assert_eq!(verified["tree"], lab.sandbox.tree_of(&commit));
    let printed = piton_core::ids::Hash::of(b"validateToken\n").to_string();
    assert_eq!(verified["check"]["output"], printed.as_str());
    assert_eq!(lab.landed("auth.ts"), "validateToken");
    let run = view(&lab.sandbox);
    assert_eq!(step(&run, "jwt")["truth"], "verified");
    lab.assert_no_scratch();
    let count = events(&lab.sandbox).len();
    assert_eq!(lab.data(&complete)["commit"], commit.as_str(), "saying it again is harmless");
    assert_eq!(events(&lab.sandbox).len(), count);

    // Who needs it starts from it; who does not is merged.
    let (routes, fence) = lab.claim("routes", &[]);
    assert_eq!(lab.sandbox.read(routes.join("auth.ts")), "validateToken\n");
    let (two, other) = (lab.sandbox.root().join("two"), lab.sandbox.root().join("three"));
    lab.sandbox.git(&["worktree", "add", "--quiet", "--detach", two.to_str().expect("text")]);
    let claimed = lab.claim_from(&two, "docs", &[]);
    let text = lab.commit(&two, "docs.md", "how\n");
    let with = ["complete", "plan.toml", "docs", "--worktree", two.to_str().expect("text")];
    let with = [&with[..], &["--commit", &text, "--force", "--reason", "short"]].concat();
    let done = lab.data(&with);
    assert_eq!(done["truth"], "claimed", "nobody but its holder has seen it");
    assert_ne!(done["commit"], text.as_str(), "a merge");
    assert_eq!(
        (lab.landed("docs.md"), lab.landed("auth.ts")),
        ("how".into(), "validateToken".into())
    );
    assert!(claimed["fence"].is_u64() && !other.exists());

    let last = lab.commit(&routes, "routes.ts", "routes\n");
    let done = lab.data(&["complete", "plan.toml", "routes", "--fence", &fence, "--commit", &last]);
    assert_eq!(done["all_completed"], true);
    assert_eq!(lab.landed("routes.ts"), "routes");
    let once = completions(&lab.sandbox);
    assert_eq!(once.values().sum::<u32>(), 3, "{once:?}");
}

#[test]
fn a_commit_that_does_not_pass_lands_nothing() {
    let lab = Lab::trusting();
    let (jwt, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&jwt, "other.ts", "x\n");
    lab.sandbox.write(jwt.join("auth.ts"), "not committed\n");
    let complete = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit"];
    let (exit, code, message) = lab.refused(&[&complete[..], &[&commit]].concat());
    assert_eq!((exit, code.as_str()), (1, "E080"), "the commit is checked, not the worktree");
    assert!(message.contains("exit 1"), "{message}");
    assert!(events_named(&lab.sandbox, "verified").is_empty());
    assert_eq!(lab.tip(), view(&lab.sandbox)["base"].as_str().expect("a base"));
    lab.assert_no_scratch();
    let beat = lab.data(&["heartbeat", "plan.toml", "jwt", "--fence", &fence]);
    assert_eq!(beat["beat"], "continue", "the claim stays");
    let better = lab.commit(&jwt, "auth.ts", "validateToken\n");
    lab.data(&[&complete[..], &[&better]].concat());
    assert_eq!(lab.landed("auth.ts"), "validateToken");
}

#[test]
fn the_end_of_what_verify_printed_is_told() {
    let lab = Lab::of(
        "[plan]\nname = 'x'\n[[step]]\nid = 'a'\nverify = 'echo größe: expected 3, got 4; exit 3'\n",
    );
    let (tree, fence) = lab.claim("a", &[]);
    let commit = lab.sandbox.git_in(&tree, &["rev-parse", "HEAD"]);
    let args = ["complete", "plan.toml", "a", "--fence", &fence, "--commit", &commit, "--trust"];
    let (exit, code, message) = lab.refused(&args);
    assert_eq!((exit, code.as_str()), (1, "E080"));
    assert!(
        message.contains("größe: expected 3, got 4") && message.contains("exit 3"),
        "{message}"
    );
}

#[test]
fn what_is_open_is_refused_before_anything_lands() {
    let lab = Lab::trusting();
    let (docs, fence) = lab.claim("docs", &[]);
    let commit = lab.commit(&docs, "docs.md", "how\n");
    let complete = ["complete", "plan.toml", "docs", "--fence", &fence, "--commit", &commit];
    assert_eq!(lab.refused(&complete).1, "E052");
    lab.data(&["substep", "complete", "plan.toml", "docs", "write", "--fence", &fence]);
    assert_eq!(lab.refused(&complete).1, "E051");
    for name in ["verified", "landing_intended", "completed"] {
        assert!(events_named(&lab.sandbox, name).is_empty(), "{name}");
    }
    assert_ne!(lab.tip(), commit);
    lab.data(&[&complete[..], &["--force", "--reason", "said elsewhere"]].concat());
    let waived = &events_named(&lab.sandbox, "completed")[0]["waived"];
    assert_eq!(waived["items"], serde_json::json!(["1"]));
    assert_eq!(lab.tip(), commit);
}

#[test]
fn a_commit_is_named_by_its_id_alone() {
    let lab = Lab::trusting();
    let (docs, fence) = lab.claim("docs", &[]);
    let commit = lab.commit(&docs, "docs.md", "how\n");
    lab.sandbox.git(&["branch", "cafe0", &commit]);
    let blob = lab.sandbox.git(&["rev-parse", &format!("{commit}:docs.md")]);
    let missing = "0123456789abcdef0123456789abcdef01234567";
    for id in ["HEAD", "cafe0", "abc", "", missing, &blob, "--all"] {
        let id = format!("--commit={id}");
        let args = ["complete", "plan.toml", "docs", "--fence", &fence, &id];
        let (exit, code, message) = lab.refused(&args);
        assert_eq!((exit, code.as_str()), (2, "E082"), "{id}: {message}");
    }
}

#[test]
fn a_conflict_leaves_both_sides_as_they_are() {
    let lab = Lab::trusting();
    let (jwt, first) = lab.claim("jwt", &[]);
    let (docs, second) = lab.claim("docs", &[]);
    let ours = lab.commit(&jwt, "auth.ts", "ours\n");
    let theirs = lab.commit(&docs, "auth.ts", "theirs\n");
    lab.data(&["complete", "plan.toml", "jwt", "--fence", &first, "--commit", &ours]);
    let complete =
        ["complete", "plan.toml", "docs", "--fence", &second, "--force", "--reason", "x"];
    let (exit, code, message) = lab.refused(&[&complete[..], &["--commit", &theirs]].concat());
    assert_eq!((exit, code.as_str()), (1, "E081"));
    assert!(message.contains("conflicts in auth.ts"), "{message}");
    assert_eq!((lab.tip(), lab.landed("auth.ts")), (ours, "ours".into()));
    assert_eq!(lab.sandbox.git_in(&docs, &["rev-parse", "HEAD"]), theirs);
    assert_eq!(lab.sandbox.git_in(&docs, &["status", "--porcelain"]), "");
    let beat = lab.data(&["heartbeat", "plan.toml", "docs", "--fence", &second]);
    assert_eq!(beat["beat"], "continue");

    let merge = ["merge", "--quiet", "-X", "ours", "-m", "both", &lab.branch()];
    lab.sandbox.git_in(&docs, &merge);
    let both = lab.sandbox.git_in(&docs, &["rev-parse", "HEAD"]);
    let done = lab.data(&[&complete[..], &["--commit", &both]].concat());
    assert_eq!((&done["commit"], lab.landed("auth.ts")), (&both.as_str().into(), "theirs".into()));
}

#[test]
fn a_commit_of_another_history_is_refused_by_name() {
    let lab = Lab::trusting();
    let (jwt, fence) = lab.claim("jwt", &[]);
    let git = |args: &[&str]| lab.sandbox.git_in(&jwt, args);
    git(&["checkout", "--quiet", "--orphan", "apart"]);
    let apart = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let complete = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit"];
    let out = lab.sandbox.piton(&[&complete[..], &[&apart, "--json"]].concat()).output();
    let (exit, code, message) = told(&out);
    assert_eq!((exit, code.as_str()), (1, "E081"), "{message}");
    assert!(message.contains("shares no history"), "{message}");
    assert!(events_named(&lab.sandbox, "verified").is_empty(), "nothing was executed for it");
    // As the hint says.
    let branch = lab.branch();
    let merge = format!("git merge --allow-unrelated-histories {branch}");
    let hint = out.json()["issues"][0]["hint"].as_str().expect("a hint").to_owned();
    assert!(hint.contains(&merge), "{hint}");
    git(&["merge", "--quiet", "--allow-unrelated-histories", "-m", "both", &branch]);
    let both = git(&["rev-parse", "HEAD"]);
    assert_eq!(lab.data(&[&complete[..], &[&both]].concat())["commit"], both.as_str());
}

#[test]
fn another_commit_for_a_step_that_is_completed_is_refused() {
    let lab = Lab::trusting();
    let (jwt, fence) = lab.claim("jwt", &[]);
    let first = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let complete = ["complete", "plan.toml", "jwt", "--fence", &fence];
    lab.data(&[&complete[..], &["--commit", &first]].concat());
    let later = lab.commit(&jwt, "auth.ts", "validateToken(better)\n");
    let before = events(&lab.sandbox);
    let (exit, code, message) = lab.refused(&[&complete[..], &["--commit", &later]].concat());
    assert_eq!((exit, code.as_str()), (1, "E085"), "{message}");
    assert!(message.contains(&first[..7]) && message.contains(&later[..7]), "{message}");
    // The same again, or no commit, names what counts.
    assert_eq!(lab.data(&complete)["commit"], first.as_str());
    assert_eq!(events(&lab.sandbox), before);
    assert_eq!(lab.landed("auth.ts"), "validateToken");

    let (docs, fence) = lab.claim("docs", &[]);
    let by = ["complete", "plan.toml", "docs", "--fence", &fence, "--force", "--reason", "x"];
    lab.data(&by);
    let late = lab.commit(&docs, "docs.md", "how\n");
    let (_, code, message) = lab.refused(&[&by[..], &["--commit", &late]].concat());
    assert_eq!(code, "E085");
    assert!(message.contains("without a commit"), "{message}");
}

/// Completes `jwt` and is killed at a point; said again it ends the same, once.
fn killed_at(point: &str) {
    let lab = Lab::trusting();
    let (jwt, fence) = lab.claim("jwt", &[]);
    // The branch has moved meanwhile, so that landing makes a merge.
    let (docs, other) = lab.claim("docs", &[]);
    let text = lab.commit(&docs, "docs.md", "how\n");
    let by = ["complete", "plan.toml", "docs", "--fence", &other, "--commit", &text];
    lab.data(&[&by[..], &["--force", "--reason", "x"]].concat());

    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    let crash = lab.sandbox.crash_point(point, 1);
    let one = lab.sandbox.piton(&args).crash_at(&crash).spawn();
    assert_eq!(crash.wait_hit(), one.pid(), "{point}");
    one.kill9();
    let acknowledged = events(&lab.sandbox);
    let done = lab.data(&args);
    assert_eq!(done["truth"], "verified", "{point}");
    let all = events(&lab.sandbox);
    assert!(all.starts_with(&acknowledged), "{point}");
    for name in ["verified", "completed"] {
        let of_jwt = |event: &&Value| event["event"] == name && event["step"]["step"] == "jwt";
        assert_eq!(all.iter().filter(of_jwt).count(), 1, "{point}: {name}");
    }
    let (tip, list) = (lab.tip(), lab.sandbox.git(&["rev-list", "--merges", &lab.branch()]));
    assert_eq!((done["commit"].as_str(), list.lines().count()), (Some(tip.as_str()), 1), "{point}");
    assert_eq!(
        (lab.landed("auth.ts"), lab.landed("docs.md")),
        ("validateToken".into(), "how".into())
    );
    lab.assert_no_scratch();
    lab.sandbox.wait_no_processes();
}

macro_rules! killed_while_completing {
    ($($test:ident: $point:literal,)*) => {
        $(
            #[test]
            fn $test() {
                killed_at($point);
            }
        )*

        #[test]
        fn every_point_of_a_holder_has_its_test() {
            let passed = |(point, who): &&(&str, Who)| {
                let elsewhere = [SNAPSHOT_KEPT, UNLANDED_KEPT].contains(point);
                !elsewhere && (*who == Who::Holder || point.starts_with("land."))
            };
            let listed: Vec<&str> = POINTS.iter().filter(passed).map(|(point, _)| *point).collect();
            assert_eq!(listed, [$($point),*]);
        }
    };
}

/// Passed by everything that ends a claim: see `killed_before_the_act`.
const SNAPSHOT_KEPT: &str = "outside.snapshot-kept";
/// Passed only where something conflicts: see `conflicts.rs`.
const UNLANDED_KEPT: &str = "land.unlanded-kept";

killed_while_completing! {
    killed_at_land_intended: "land.intended",
    killed_at_land_ref_moved: "land.ref-moved",
    killed_at_land_completed: "land.completed",
    killed_at_scratch_made: "complete.scratch-made",
    killed_at_verify_spawned: "complete.verify-spawned",
    killed_at_verify_ran: "complete.verify-ran",
    killed_at_scratch_removed: "complete.scratch-removed",
    killed_at_verified: "complete.verified",
}

#[test]
fn force_claim_meanwhile_keeps_the_loser_from_landing() {
    for point in ["complete.verify-ran", "complete.verified", "land.intended", "land.ref-moved"] {
        let lab = Lab::trusting();
        let (jwt, fence) = lab.claim("jwt", &[]);
        let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
        let tip = lab.tip();
        let args =
            ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit, "--json"];
        let crash = lab.sandbox.crash_point(point, 1);
        let loser = lab.sandbox.piton(&args).crash_at(&crash).spawn();
        crash.wait_hit();
        let two = lab.tree("docs");
        let forced = lab.claim_from(&two, "jwt", &["--force"]);
        assert_eq!(forced["grounds"], "forced");
        crash.release();
        let (exit, code, _) = told(&loser.wait());
        assert_eq!((exit, code.as_str()), (5, "E049"), "{point}");
        assert_eq!(lab.tip(), tip, "{point}: the loser's commit is not on the run's branch");
        assert!(events_named(&lab.sandbox, "completed").is_empty(), "{point}");
        lab.assert_no_scratch();
        assert_eq!(lab.sandbox.git(&["cat-file", "-t", &commit]), "commit", "it is not lost");
    }
}

/// A plan whose verify waits for a file.
fn waiting() -> Lab {
    let lab = Lab::of("");
    let (ready, go) = (lab.sandbox.mark("ready"), lab.sandbox.mark("go"));
    let (ready, go) = (ready.display(), go.display());
    let verify = format!("touch {ready}; until test -f {go}; do sleep 0.01; done");
    let plan = format!("[plan]\nname = 'x'\n[[step]]\nid = 'jwt'\nverify = '{verify}'\n");
    lay_plan(&lab.sandbox, &plan);
    lab.data(&["trust", "plan.toml", "--yes"]);
    lab
}

#[test]
fn the_lease_is_renewed_while_verify_runs() {
    let lab = waiting();
    let (jwt, fence) = lab.claim("jwt", &["--lease", "1s"]);
    let expiry = view(&lab.sandbox)["steps"][0]["attempts"][0]["lease_expires"].clone();
    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    let one = lab.sandbox.piton(&args).spawn();
    lab.sandbox.wait_exists(lab.sandbox.mark("ready"));
    let two = lab.sandbox.root().join("two");
    std::fs::create_dir(&two).expect("a folder");
    let other = ["claim", "plan.toml", "--worktree", two.to_str().expect("text")];
    lab.sandbox.wait_until("two leases to have passed", || {
        let asked = lab.data(&other);
        assert_eq!(asked["claimed"], false, "{asked}");
        let run = view(&lab.sandbox);
        let now = run["steps"][0]["attempts"][0]["lease_expires"].as_str().map(str::to_owned);
        let later = |from: &Value| seconds(now.as_deref()) - seconds(from.as_str());
        later(&expiry) > 2.0
    });
    lab.sandbox.write(lab.sandbox.mark("go"), "");
    one.wait().success();
    assert_eq!(view(&lab.sandbox)["status"], "completed");
}

/// A time's seconds of the day.
fn seconds(time: Option<&str>) -> f64 {
    let time = time.and_then(|time| time.split('T').nth(1)).expect("a time");
    let parts = time.trim_end_matches('Z').split(':').map(|part| part.parse::<f64>());
    parts.fold(0.0, |sum, part| sum * 60.0 + part.expect("a number"))
}

#[test]
fn an_interrupted_verify_leaves_nothing_running() {
    for (signal, exit) in [("INT", 130), ("TERM", 143)] {
        let lab = waiting();
        let (jwt, fence) = lab.claim("jwt", &[]);
        let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
        let args =
            ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit, "--json"];
        let one = lab.sandbox.piton(&args).spawn();
        lab.sandbox.wait_exists(lab.sandbox.mark("ready"));
        let kill = lab
            .sandbox
            .command("kill")
            .args([format!("-{signal}"), one.pid().to_string()])
            .status();
        assert!(kill.expect("kill runs").success());
        let (status, code, _) = told(&one.wait());
        assert_eq!((status, code.as_str()), (exit, "E072"));
        lab.sandbox.wait_no_processes();
        lab.assert_no_scratch();
        assert!(events_named(&lab.sandbox, "verified").is_empty());
    }
}

#[test]
fn two_who_complete_the_same_claim_do_it_once() {
    let lab = waiting();
    let (jwt, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    let both: Vec<Running> = (0..2).map(|_| lab.sandbox.piton(&args).spawn()).collect();
    lab.sandbox.wait_exists(lab.sandbox.mark("ready"));
    assert!(both.iter().all(|one| alive(one.pid())));
    lab.sandbox.write(lab.sandbox.mark("go"), "");
    for one in both {
        one.wait().success();
    }
    assert_eq!(events_named(&lab.sandbox, "verified").len(), 1);
    assert_eq!(events_named(&lab.sandbox, "completed").len(), 1);
    lab.assert_no_scratch();
}

#[test]
fn a_verify_that_outlived_its_holder_is_ended_by_the_next_one() {
    let lab = waiting();
    let (jwt, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    let one = lab.sandbox.piton(&args).spawn();
    lab.sandbox.wait_exists(lab.sandbox.mark("ready"));
    let left = lab.sandbox.processes_with_env("PITON_ATTEMPT=");
    kill9(one.pid());
    assert!(!left.is_empty() && left.iter().any(|process| alive(process.pid)), "it goes on alone");
    let (two, other) = (lab.sandbox.root().join("two"), lab.refs());
    lab.sandbox.git(&["worktree", "add", "--quiet", "--detach", two.to_str().expect("text")]);
    let forced = lab.claim_from(&two, "jwt", &["--force"])["fence"].to_string();
    lab.sandbox.write(lab.sandbox.mark("go"), "");
    lab.data(&["complete", "plan.toml", "jwt", "--fence", &forced, "--commit", &commit]);
    assert!(left.iter().all(|process| !alive(process.pid)), "{left:?}");
    lab.assert_no_scratch();
    assert!(lab.refs().len() >= other.len());
}

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

/// Everything that can be reported, and what is left of it where it is told.
const REPORTED: [(&str, &str, &str); 10] = [
    ("--progress", "40", "progress: 40 %"),
    ("--confidence", "0.7", "confidence: 0.7"),
    ("--note", "日本語 ✓ half of it", "note: 日本語 ✓ half of it"),
    ("--task", "expiry", "task: expiry"),
    ("--eta", "an hour", "eta: an hour"),
    ("--done", "validate", "section done: validate"),
    ("--next", "refresh", "section next: refresh"),
    ("--session", "s-17", "session: s-17"),
    ("--file", "src/auth.ts:120=open@0.6", "file: src/auth.ts:120 open, confidence 0.6"),
    ("--data", "@{data}", r#"data: {"related":["a.ts"]}"#),
];

#[test]
fn what_was_reported_from_inside_reaches_the_next_prompt() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    sandbox.write(sandbox.mark("data"), r#"{ "related": ["a.ts"] }"#);
    let words: Vec<String> =
        REPORTED.iter().map(|(flag, value, _)| format!("{flag} '{value}'")).collect();
    let script = format!(
        "write work.txt half; sh piton checkpoint {}; \
         sh piton check 1 --done; sh piton check 2 --defer --reason later; \
         sh piton substep complete validate; touch {{ready}}; hang",
        words.join(" ")
    );
    let more = "items = ['sign', 'expire', 'rotate']\n\
        substeps = [{ id = 'validate', title = 'validateToken' }, { id = 'refresh', title = 'r' }]\n";
    let steps = [agent_step(&sandbox, "jwt", &script, more)];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    kill9(keeper(&sandbox));
    kill9(worker.pid());
    let shown = sandbox.piton(&["show"]).output().success().stdout;
    for text in ["reported: 40 %", "reported done: validate", "reported file: src/auth.ts:120 open"]
    {
        assert!(shown.contains(text), "no {text:?} in\n{shown}");
    }
    let report = events_named(&sandbox, "checkpointed")
        .into_iter()
        .find(|event| event["report"].is_object());
    let name = report.expect("a report")["snapshot"]["refname"].as_str().expect("bytes").to_owned();
    let message = sandbox.git(&["log", "-1", "--format=%B", &name]);

    let resumed = sandbox.piton(&["resume"]).spawn();
    sandbox.wait_until("the second attempt", || events_named(&sandbox, "started").len() == 2);
    let attempts = view(&sandbox)["steps"][0]["attempts"].clone();
    let prompt = sandbox.read(attempt_folder(&sandbox, &attempts[1]["attempt"]).join("prompt.md"));
    drop(resumed);
    assert!(prompt.contains("interrupted (process_kill)"), "{prompt}");
    assert!(prompt.contains("Reported by the earlier attempt; nobody has checked it"), "{prompt}");
    for (_, _, text) in REPORTED {
        assert!(message.contains(text), "no {text:?} in\n{message}");
        assert!(prompt.contains(text), "no {text:?} in\n{prompt}");
    }
    let parts = [
        "Substeps done:\n  - validate: validateToken",
        "Substeps open:\n  - refresh: r",
        "Items done:\n  - 1: sign",
        "Items open:\n  - 3: rotate",
        "Items deferred:\n  - 2: expire (later)",
        "Uncommitted files:\n  - work.txt",
    ];
    for text in parts {
        assert!(prompt.contains(text), "no {text:?} in\n{prompt}");
    }
}

#[test]
fn show_lists_who_worked_and_how_it_ended() {
    let lab = Lab::trusting();
    let (tree, first) = lab.claim("jwt", &[]);
    lab.commit(&tree, "one.ts", "1\n");
    let second = lab.commit(&tree, "two.ts", "2\n");
    lab.data(&["release", "plan.toml", "jwt", "--fence", &first]);
    let good = |run: &Value| step(run, "jwt")["last_good_commit"].clone();
    let run = view(&lab.sandbox);
    let attempt = &step(&run, "jwt")["attempts"][0];
    assert_eq!(attempt["pid"], std::process::id(), "whoever started `piton claim`");
    assert_eq!((&attempt["commits"], &attempt["head"]), (&2.into(), &second.as_str().into()));
    assert_eq!(
        (&attempt["state"], &attempt["worktree"]),
        (&"released".into(), &tree.to_str().into())
    );
    assert!(attempt["host"].is_string() && attempt["from"].as_str() <= attempt["to"].as_str());
    assert_eq!(good(&run)["commit"], second.as_str());
    assert_eq!(good(&run)["known_as"], "snapshot", "nobody has checked it");

    let (_, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&tree, "auth.ts", "validateToken\n");
    lab.data(&["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit]);
    let run = view(&lab.sandbox);
    let attempts = &step(&run, "jwt")["attempts"];
    assert_eq!(attempts.as_array().map(Vec::len), Some(2), "the first is still there");
    assert_eq!((&attempts[1]["commits"], &attempts[1]["state"]), (&3.into(), &"completed".into()));
    assert_eq!(good(&run), serde_json::json!({ "commit": commit, "known_as": "completed" }));
    let shown = lab.sandbox.piton(&["show"]).output().success().stdout;
    for text in ["released, by", "2 commits up to", "completed with it", "where it began"] {
        assert!(shown.contains(text), "no {text:?} in\n{shown}");
    }
}

#[test]
fn a_keeper_tells_its_process_and_commits() {
    let sandbox = Sandbox::with_binary(env!("CARGO_BIN_EXE_piton"));
    let script = "write one 1; commit by the agent; write two 2; touch {ready}; await {go}";
    let steps = [agent_step(&sandbox, "a", script, "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let worker = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let keeper = keeper(&sandbox);
    sandbox.write(sandbox.mark("go"), "");
    worker.wait().success();
    let attempt = view(&sandbox)["steps"][0]["attempts"][0].clone();
    assert_eq!((&attempt["pid"], &attempt["commits"]), (&keeper.into(), &2.into()));
    assert_eq!(attempt["worktree"], Value::Null);
}
