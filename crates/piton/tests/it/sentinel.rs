//! A repository in which everything that git can be made to run is a trap. Each trap is first shown to
//! snap with plain git; then none does in any command of piton. What the user's own configuration says
//! still runs where files meet commits.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use piton_testkit::runs::{agent_step, data, events_named, lay_plan, plan, view, worktree};
use piton_testkit::{Sandbox, kill9};

const HOOKS: [&str; 11] = [
    "post-checkout",
    "post-commit",
    "post-index-change",
    "reference-transaction",
    "pre-commit",
    "commit-msg",
    "prepare-commit-msg",
    "pre-merge-commit",
    "post-merge",
    "pre-auto-gc",
    "post-rewrite",
];

/// Those that have to be seen to snap with plain git.
const VECTORS: [&str; 20] = [
    "alias",
    "clean",
    "commit-msg",
    "credential",
    "diff-command",
    "editor",
    "external-diff",
    "fsmonitor",
    "gpg",
    "included",
    "merge",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "pre-commit",
    "process",
    "reference-transaction",
    "smudge",
    "ssh",
    "textconv",
];

/// Traps leave their names in a folder.
struct Traps<'a> {
    sandbox: &'a Sandbox,
    snapped: PathBuf,
}

impl Traps<'_> {
    fn set(sandbox: &Sandbox) -> Traps<'_> {
        let traps = Traps { sandbox, snapped: sandbox.root().join("snapped") };
        fs::create_dir(&traps.snapped).expect("writable");
        for hook in HOOKS {
            traps.script(&sandbox.path(".git/hooks").join(hook), hook, "");
        }
        let config = |key: &str, value: &str| drop(sandbox.git(&["config", key, value]));
        let script = |name: &str, then: &str| {
            let path = sandbox.root().join("traps").join(name);
            traps.script(&path, name, then);
            path.to_str().expect("text").to_owned()
        };
        config("core.fsmonitor", &script("fsmonitor", "exit 1"));
        config("filter.evil.clean", &script("clean", "cat"));
        config("filter.evil.smudge", &script("smudge", "cat"));
        config("filter.proc.process", &script("process", "exit 1"));
        config("merge.evil.driver", &script("merge", "exit 1"));
        config("diff.external", &script("external-diff", ""));
        config("diff.cmd.command", &script("diff-command", ""));
        config("diff.evil.textconv", &script("textconv", "cat"));
        config("gpg.program", &script("gpg", "exit 1"));
        config("log.showSignature", "true");
        config("commit.gpgSign", "true");
        config("filter.evil.required", "true");
        // Only git from 2.54 on knows these.
        for event in ["reference-transaction", "post-index-change", "post-checkout"] {
            config(&format!("hook.evil-{event}.event"), event);
            config(&format!("hook.evil-{event}.command"), &script("configured-hook", ""));
        }
        config("core.sshCommand", &script("ssh", "exit 1"));
        config("core.pager", &script("pager", "cat"));
        config("core.editor", &script("editor", ""));
        config("sequence.editor", &script("sequence-editor", ""));
        config("core.askPass", &script("askpass", ""));
        config("credential.helper", &script("credential", ""));
        config("core.alternateRefsCommand", &script("alternate-refs", ""));
        config("uploadpack.packObjectsHook", &script("pack-objects", ""));
        config("gc.recentObjectsHook", &script("recent-objects", ""));
        config("alias.evil", &format!("!{}", script("alias", "")));
        // An alias cannot take a command's own name, but piton must not depend on that.
        config("alias.status", &format!("!{}", script("alias-of-a-command", "")));
        let included = sandbox.root().join("traps/included.config");
        let hooks = sandbox.root().join("traps/hooks");
        traps.script(&hooks.join("post-checkout"), "included", "");
        fs::write(&included, format!("[core]\n\thooksPath = {}\n", hooks.display()))
            .expect("writable");
        config("includeIf.onbranch:included.path", included.to_str().expect("text"));
        fs::write(sandbox.path(".git/info/attributes"), "*.info filter=evil\n").expect("writable");
        traps
    }

    fn script(&self, path: &Path, name: &str, then: &str) {
        let mark = self.snapped.join(name);
        fs::create_dir_all(path.parent().expect("in a folder")).expect("writable");
        fs::write(path, format!("#!/bin/sh\n: >> '{}'\n{then}\n", mark.display()))
            .expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    }

    fn snapped(&self) -> Vec<String> {
        let list = fs::read_dir(&self.snapped).expect("there").flatten();
        let mut names: Vec<String> =
            list.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn clear(&self) {
        for name in self.snapped() {
            fs::remove_file(self.snapped.join(name)).expect("removable");
        }
    }

    /// Does with plain git what sets each of them off.
    fn spring(&self) {
        let plain = self.sandbox.root().join("plain");
        let at = plain.to_str().expect("text");
        let put = |name: &str, text: &str| fs::write(plain.join(name), text).expect("writable");
        let try_git = |args: &[&str]| {
            let mut git = self.sandbox.command("git");
            git.current_dir(&plain).args(["-c", "commit.gpgSign=false"]).args(args);
            let _whatever_it_says = git.output();
        };
        self.sandbox.git(&["worktree", "add", "-q", "-b", "plain", at]);
        put("a.x", "plain\n");
        put("c.cmd", "plain\n");
        try_git(&["status"]);
        try_git(&["diff"]);
        try_git(&["diff", "--no-ext-diff", "HEAD", "--", "a.x"]);
        try_git(&["add", "-A"]);
        try_git(&["commit", "-q", "-m", "plain"]);
        try_git(&["commit", "-q", "--allow-empty"]);
        try_git(&["commit", "-q", "-S", "--allow-empty", "-m", "signed"]);
        try_git(&["checkout", "-q", "-f", "HEAD~1"]);
        try_git(&["checkout", "-q", "-b", "included"]);
        try_git(&["checkout", "-q", "-f", "main~0"]);
        try_git(&["checkout", "-q", "-B", "included", "main"]);
        try_git(&["checkout", "-q", "--", "a.x"]);
        try_git(&["checkout", "-q", "-B", "other", "main"]);
        put("a.x", "other\n");
        try_git(&["commit", "-q", "-a", "-m", "other"]);
        try_git(&["merge", "--no-edit", "plain"]);
        try_git(&["merge", "--abort"]);
        try_git(&["fetch", "ssh://nowhere.invalid/x"]);
        try_git(&["evil"]);
        // Last, because git gives up when such a filter does.
        put("p.proc", "plain\n");
        try_git(&["add", "p.proc"]);
        let mut fill = self.sandbox.command("sh");
        fill.current_dir(&plain)
            .args(["-c", "echo url=https://nowhere.invalid | git credential fill"]);
        let _whatever_it_says = fill.env("GIT_TERMINAL_PROMPT", "0").output();
        let snapped = self.snapped();
        for trap in VECTORS {
            assert!(snapped.iter().any(|name| name == trap), "{trap} did not snap: {snapped:?}");
        }
        try_git(&["checkout", "-q", "-f", "--detach", "main"]);
        self.sandbox.git(&["worktree", "remove", "-f", "-f", at]);
        self.clear();
    }
}

#[test]
fn no_command_of_piton_runs_what_the_repository_defines() {
    let sandbox = crate::sandbox();
    let attributes = "*.x filter=evil diff=evil merge=evil\n*.cmd diff=cmd\n*.proc filter=proc\n";
    sandbox.write(".gitattributes", attributes);
    for name in ["a.x", "c.cmd"] {
        sandbox.write(name, "first\n");
    }
    let a = "write a.x by the agent; write new.x new; write b.info new; write p.proc new; touch {w1}; await {n1}";
    let by_hand = "[[step]]\nid = 'hand'\nverify = 'test -f by-hand.x'\n".to_owned();
    let steps = [agent_step(&sandbox, "a", a, "verify = 'test -f new.x'"), by_hand];
    lay_plan(&sandbox, &plan(&sandbox, &steps).replace("agent = 'fake'\n", ""));
    let text = sandbox.read("plan.toml").replace("id = 'a'\n", "id = 'a'\nagent = 'fake'\n");
    sandbox.write("plan.toml", &text);
    sandbox.write("piton.toml", "[snapshot]\nevery = '100ms'\n");
    let traps = Traps::set(&sandbox);
    traps.spring();
    sandbox.git(&["config", "maintenance.auto", "true"]);
    sandbox.git(&["config", "gc.auto", "1"]);

    // Somebody outside: a worktree, a claim, checkpoints, a commit that is verified and landed.
    data(&sandbox, &["trust", "plan.toml", "--yes"]);
    let made = data(&sandbox, &["worktree", "create", "plan.toml", "hand"]);
    let tree = PathBuf::from(made["path"].as_str().expect("a path"));
    let at = tree.to_str().expect("text");
    data(&sandbox, &["claim", "plan.toml", "--worktree", at, "--step", "hand"]);
    fs::write(tree.join("by-hand.x"), "by hand\n").expect("writable");
    fs::write(tree.join("a.x"), "by hand\n").expect("writable");
    data(&sandbox, &["checkpoint", "plan.toml", "hand", "--worktree", at]);
    fs::write(tree.join("a.x"), "again\n").expect("writable");
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    let hand = format!("{handle}/hand");
    for more in [&["--worktree"][..], &["--base"], &["--stat"]] {
        data(&sandbox, &[&["snapshot", "diff", &hand], more].concat());
    }
    assert_eq!(traps.snapped(), Vec::<String>::new(), "after looking");
    let mut commit = sandbox.command("git");
    let plain = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"];
    let plain =
        [&plain[..], &["-c", "maintenance.auto=false", "-c", "commit.gpgSign=false"]].concat();
    let filters = [
        "filter.evil.clean=",
        "filter.evil.smudge=",
        "filter.evil.required=false",
        "filter.proc.process=",
    ]
    .into_iter()
    .flat_map(|setting| ["-c", setting]);
    commit.current_dir(&tree).args(&plain).args(filters.clone()).args(["add", "-A"]);
    assert!(commit.output().expect("git").status.success());
    let mut commit = sandbox.command("git");
    commit
        .current_dir(&tree)
        .args(&plain)
        .args(filters.clone())
        .args(["commit", "-q", "-m", "by hand"]);
    assert!(commit.output().expect("git").status.success());
    traps.clear();
    let head = sandbox.git(&[
        "-c",
        "core.fsmonitor=false",
        "rev-parse",
        &format!("piton/{handle}/step/hand"),
    ]);
    traps.clear();
    data(&sandbox, &["complete", "plan.toml", "hand", "--worktree", at, "--commit", &head]);
    assert_eq!(traps.snapped(), Vec::<String>::new(), "after a completion from outside");

    // piton's own: run, killed, looked at, resumed, completed; snapshots of it put back.
    let run = sandbox.piton(&["resume"]).spawn();
    sandbox.wait_exists(sandbox.mark("w1"));
    sandbox.wait_until("a snapshot", || {
        let of_a = |event: &serde_json::Value| event["step"]["step"] == "a";
        events_named(&sandbox, "checkpointed").iter().any(of_a)
    });
    kill9(piton_testkit::runs::keeper(&sandbox));
    run.kill9();
    let quiet = |after: &str| assert_eq!(traps.snapped(), Vec::<String>::new(), "after {after}");
    quiet("a run that was killed");
    for verb in ["status", "show", "doctor", "resume --dry-run", "snapshot list"] {
        let words: Vec<&str> = verb.split(' ').collect();
        sandbox.piton(&words).output();
        quiet(verb);
    }
    let a = format!("{handle}/a");
    let to = sandbox.root().join("elsewhere");
    sandbox.piton(&["stop"]).output().success();
    quiet("stop");
    data(&sandbox, &["snapshot", "show", &a]);
    quiet("snapshot show");
    data(&sandbox, &["snapshot", "restore", &a, "--to", to.to_str().expect("text")]);
    quiet("snapshot restore --to");
    fs::write(worktree(&sandbox).join("a.x"), "by a person\n").expect("writable");
    data(&sandbox, &["snapshot", "restore", &a, "--yes"]);
    quiet("snapshot restore");
    fs::write(sandbox.mark("n1"), "").expect("writable");
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(view(&sandbox)["status"], "completed");
    quiet("resume");

    // What comes afterwards: looked at, merged, tidied up and undone, given up, deleted.
    data(&sandbox, &["diff", &handle]);
    quiet("diff");
    data(&sandbox, &["worktree", "list"]);
    quiet("worktree list");
    sandbox.write("mine.txt", "somebody's own\n");
    data(&sandbox, &["merge", &handle, "--dry-run"]);
    quiet("merge --dry-run");
    data(&sandbox, &["merge", &handle, "--no-ff"]);
    quiet("merge");
    data(&sandbox, &["clean", "--completed", "--apply"]);
    quiet("clean --apply");
    data(&sandbox, &["undo"]);
    quiet("undo of a clean-up");
    let second = data(&sandbox, &["open", "plan.toml", "--fresh"])["run"]["handle"].clone();
    let second = second.as_str().expect("a handle");
    data(&sandbox, &["claim", second, "--worktree", at, "--step", "hand"]);
    data(&sandbox, &["release", second, "hand", "--force"]);
    data(&sandbox, &["reset", second, "hand"]);
    quiet("reset");
    data(&sandbox, &["abandon", second, "--yes"]);
    quiet("abandon");
    data(&sandbox, &["undo"]);
    quiet("undo of an abandoning");
    data(&sandbox, &["abandon", second, "--purge", "--yes"]);
    quiet("abandon --purge");
    assert_eq!(traps.snapped(), Vec::<String>::new(), "after everything");
}
