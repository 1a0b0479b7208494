//! A first plan and the manual pages, as somebody new meets them: what `init` writes can be checked and
//! run as it is, and nothing that was there is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use piton_testkit::Sandbox;
use piton_testkit::runs::{data, refused};
use serde_json::Value;

use crate::sandbox;

/// A program of this name in the sandbox's `PATH`.
fn install(sandbox: &Sandbox, name: &str, script: &str) {
    let program = sandbox.bin().join(name);
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it can be started");
}

#[test]
fn what_init_writes_runs_as_it_is() {
    let sandbox = sandbox();
    sandbox.write("Makefile", "test:\n\tgrep -q three NOTES.md\n");
    sandbox.commit("a project");
    install(
        &sandbox,
        "claude",
        "grep -o 'the three places' >> NOTES.md; echo '{\"type\":\"result\"}'",
    );
    let found = data(&sandbox, &["init"]);
    assert_eq!((&found["agent"], &found["check"]), (&"claude".into(), &"make test".into()));
    sandbox.piton(&["plan", "check", "plan.toml"]).output().success();
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--json"]).output().success();
    assert_eq!(run.json()["data"]["outcome"], "completed", "{run}");
    let branch = run.json()["data"]["run"]["branch"].as_str().expect("a branch").to_owned();
    let notes = sandbox.git(&["show", &format!("{branch}:NOTES.md")]);
    assert_eq!(notes, "the three places\nthe three places", "both prompts reached the agent");
}

#[test]
fn a_file_that_is_there_stays_as_it_is() {
    let sandbox = sandbox();
    sandbox.write("plan.toml", "mine");
    let (exit, code, message) = refused(&sandbox, &["init"]);
    assert_eq!((exit, code.as_str()), (2, "E110"));
    assert!(message.contains("plan.toml"), "{message}");
    assert_eq!(sandbox.read("plan.toml"), "mine");
    let outside = sandbox.root().join("plan.toml");
    let (_, code, _) = refused(&sandbox, &["init", outside.to_str().expect("a path")]);
    assert_eq!((code.as_str(), outside.exists()), ("E060", false));
}

#[test]
fn without_an_agent_the_plan_is_of_commands() {
    let sandbox = sandbox();
    let programs = sandbox.root().join("programs");
    fs::create_dir_all(sandbox.repo().join("sub")).expect("a folder");
    fs::create_dir(&programs).expect("a folder");
    for name in ["git", "sh"] {
        let path = std::env::var_os("PATH").expect("a PATH");
        let found = std::env::split_paths(&path).map(|folder| folder.join(name));
        let found = found.into_iter().find(|file| file.is_file()).expect("git and sh are here");
        std::os::unix::fs::symlink(found, programs.join(name)).expect("a link");
    }
    let init = sandbox.piton(&["init", "night.toml"]).cwd(sandbox.repo().join("sub"));
    let init = init.env("PATH", &programs).output().success();
    assert!(init.stdout.contains("piton run night.toml"), "{init}");
    assert!(init.stderr.contains("no agent is in PATH"), "{init}");
    let run = ["run", "sub/night.toml", "--trust"];
    sandbox.piton(&run).env("PATH", &programs).output().success();

    let asked = data(&sandbox, &["init", "sub/day.toml", "--agent", "aider"]);
    assert_eq!(asked["agent"], "aider", "it may be installed later");
    let check = sandbox.piton(&["plan", "check", "sub/day.toml"]);
    let check = check.env("PATH", &programs).output().success();
    assert!(check.stderr.contains("no program aider in PATH"), "{check}");
}

#[test]
fn every_command_has_a_manual_page() {
    let sandbox = sandbox();
    let page = sandbox.piton(&["man", "worktree", "create"]).output().success();
    assert!(page.stdout.contains(".TH piton-worktree-create 1"), "{page}");
    let written = data(&sandbox, &["man", "--to", "pages"]);
    let pages = written["pages"].as_array().expect("pages");
    assert!(pages.len() > 30, "{written}");
    for page in pages {
        let name = page.as_str().expect("a name");
        let text = sandbox.read(format!("pages/{name}.1"));
        assert!(text.contains(&format!(".TH {name} 1")), "{text}");
        assert!(text.contains(".SH SYNOPSIS"), "{text}");
    }
    let (exit, code, _) = refused(&sandbox, &["man", "nothing"]);
    assert_eq!((exit, code.as_str()), (2, "E071"));
}

/// Built-in agents are asked for their version; those of a repository are listed and not started.
#[test]
fn agents_are_listed_with_their_versions() {
    let sandbox = sandbox();
    install(&sandbox, "claude", "echo '2.1 (Claude Code)'");
    install(&sandbox, "evil", &format!("touch {}", sandbox.mark("started").display()));
    sandbox.write("piton.toml", "[agent.evil]\ncommand = ['evil']\n");
    let all = data(&sandbox, &["agent", "list"]);
    let row = |name: &str| {
        let rows = all["agents"].as_array().expect("a list");
        rows.iter().find(|row| row["agent"] == name).expect(name).clone()
    };
    assert_eq!(row("claude")["version"], "2.1 (Claude Code)");
    assert_eq!(
        (&row("claude")["from"], &row("claude")["resumes"]),
        (&"built in".into(), &true.into())
    );
    assert_eq!(
        (&row("evil")["from"], &row("evil")["version"]),
        (&"repository".into(), &Value::Null)
    );
    assert!(!sandbox.mark("started").exists(), "it was started");
    assert_eq!(row("goose")["program"], Value::Null);

    let shown = sandbox.piton(&["agent", "check", "claude"]).output().success().stdout;
    assert!(shown.contains("2.1 (Claude Code)") && shown.contains("--resume SESSION"), "{shown}");
    sandbox.piton(&["agent", "check", "goose"]).output().expect_code(1);
    sandbox.piton(&["agent", "check", "nobody"]).output().expect_code(2);
}
