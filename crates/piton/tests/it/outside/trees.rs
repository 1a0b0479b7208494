//! Worktrees that piton makes for whoever asks, once, and around what is in the way.

use std::path::Path;

use piton_testkit::Running;
use serde_json::Value;

use super::Lab;

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

    let all = lab.data(&["worktree", "path", handle]);
    assert!(all["path"].as_str().expect("a path").ends_with(handle), "the folder of all");
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
