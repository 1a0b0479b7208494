//! Commits that holders complete with: verified apart from their worktree, landed, or refused by name.

use piton_testkit::runs::{completions, events, events_named, step, told, view};

use super::{Lab, PLAN};

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
    let two = lab.sandbox.root().join("two");
    lab.sandbox.git(&["worktree", "add", "--quiet", "--detach", two.to_str().expect("text")]);
    lab.claim_from(&two, "docs", &[]);
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

    let last = lab.commit(&routes, "routes.ts", "routes\n");
    let done = lab.data(&["complete", "plan.toml", "routes", "--fence", &fence, "--commit", &last]);
    assert_eq!(done["all_completed"], true);
    assert_eq!(lab.landed("routes.ts"), "routes");
    let once = completions(&lab.sandbox);
    assert_eq!(once.values().sum::<u32>(), 3, "{once:?}");
}

#[test]
fn nobody_is_asked_for_trust_whose_claim_is_lost_or_has_open_parts() {
    let lab = Lab::of(&PLAN.replacen("verify =", "items = ['tests']\nverify =", 1));
    let (jwt, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let complete = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    assert_eq!(lab.refused(&complete).1, "E051");
    lab.data(&["check", "plan.toml", "jwt", "1", "--done", "--fence", &fence]);
    assert_eq!(lab.refused(&complete).1, "E063", "now it would be verified");
    let again = lab.claim_from(&jwt, "jwt", &[])["fence"].to_string();
    let (exit, code, _) = lab.refused(&complete);
    assert_eq!((exit, code.as_str()), (5, "E049"), "a stale fence");
    let complete = ["complete", "plan.toml", "jwt", "--fence", &again, "--commit", &commit];
    lab.data(&[&complete[..], &["--trust"]].concat());
    std::fs::remove_dir_all(lab.sandbox.root().join("state/piton")).expect("what was trusted");
    assert_eq!(lab.data(&complete)["commit"], commit.as_str(), "saying it again executes nothing");
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
    for id in ["main", "cafe0", "abc", "", missing, &blob, "--all"] {
        let id = format!("--commit={id}");
        let args = ["complete", "plan.toml", "docs", "--fence", &fence, &id];
        let (exit, code, message) = lab.refused(&args);
        assert_eq!((exit, code.as_str()), (2, "E082"), "{id}: {message}");
    }
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
