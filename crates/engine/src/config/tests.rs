//! Layers, mistakes and the recorded form, as data.

use std::collections::BTreeMap;
use std::fs;

use super::*;

/// Loads with these files and variables.
fn check(user: &str, repository: &str, env: &[(&str, &str)]) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().join("repo");
    fs::create_dir(&root).expect("a folder");
    let user_path = folder.path().join("config.toml");
    if !user.is_empty() {
        fs::write(&user_path, user).expect("written");
    }
    if !repository.is_empty() {
        fs::write(root.join(REPOSITORY_FILE), repository).expect("written");
    }
    let env: BTreeMap<&str, &str> = env.iter().copied().collect();
    let layers = Layers {
        user: Some(user_path),
        repository: Some(&root),
        env: &|name| env.get(name).map(|&value| value.to_owned()),
    };
    load(&layers, &Flags::default()).map_err(|error| {
        let text = error.to_string().replace(&folder.path().display().to_string(), "");
        match error.hint() {
            Some(hint) => format!("{text} ({hint})"),
            None => text,
        }
    })
}

fn sources(loaded: &Loaded) -> Vec<(&str, &str)> {
    let place = |origin: &Origin| match origin {
        Origin::Default => "default",
        Origin::User(_) => "user",
        Origin::Repository(_) => "repository",
        Origin::Environment(name) => *name,
        Origin::Flag => "flag",
    };
    loaded.sources.iter().map(|source| (source.key.as_str(), place(&source.origin))).collect()
}

#[test]
fn the_documented_defaults_are_complete() {
    let loaded = check("", "", &[]).expect("the defaults are valid");
    let settings = loaded.settings;
    assert_eq!(settings.lease, Duration::from_secs(60));
    assert_eq!(settings.grace, Duration::from_secs(10));
    assert_eq!(settings.snapshot_every, Duration::from_secs(30));
    assert_eq!(
        (settings.snapshot_keep, settings.snapshot_keep_for),
        (200, duration("30d").expect("valid"))
    );
    assert_eq!(settings.snapshot_branch, "");
    assert_eq!(settings.snapshot_branch_every, Duration::from_secs(300));
    assert_eq!(settings.worktree_root, ".piton/worktrees");
    assert_eq!(settings.transcript_max, 64 * 1024 * 1024);
    assert!(settings.agents.is_empty());
}

#[test]
fn later_layers_win_key_by_key() {
    let user = "[worker]\nlease = \"2m\"\ngrace = \"1s\"\n[agent.claude]\ncommand = [\"claude\"]\n\
                [agent.mine]\ncommand = [\"mine\"]\n";
    let repository = "[worker]\nlease = \"3m\"\n[snapshot]\nevery = \"5s\"\n[agent.claude]\ncommand = [\"./evil\"]\n";
    let loaded = check(user, repository, &[("PITON_SNAPSHOT_EVERY", "1s")]).expect("valid");
    assert_eq!(
        sources(&loaded),
        [
            ("notify", "default"),
            ("worker.lease", "repository"),
            ("worker.grace", "user"),
            ("snapshot.every", "PITON_SNAPSHOT_EVERY"),
            ("snapshot.keep", "default"),
            ("snapshot.keep_for", "default"),
            ("snapshot.branch", "default"),
            ("snapshot.branch_every", "default"),
            ("worktree.root", "default"),
            ("transcript.max_mib", "default"),
            ("agent.claude", "repository"),
            ("agent.mine", "user"),
        ]
    );
    assert_eq!(loaded.settings.lease, Duration::from_secs(180));
    assert_eq!(loaded.settings.snapshot_every, Duration::from_secs(1));
}

#[test]
fn flags_win_over_everything() {
    let layers = Layers { user: None, repository: None, env: &|_| Some("5s".to_owned()) };
    let flags = Flags { lease: Some(Duration::from_secs(7)), ..Flags::default() };
    let loaded = load(&layers, &flags).expect("valid");
    assert_eq!(loaded.settings.lease, Duration::from_secs(7));
    assert_eq!(loaded.settings.grace, Duration::from_secs(5));
}

#[test]
fn mistakes_are_told_with_their_place_and_a_remedy() {
    let files = [
        "[worker]\nleese = \"1s\"\n",
        "[wroker]\n",
        "jobs = 3\n",
        "[worker]\n  lease = \"soon\"\n",
        "[worker]\nlease = \"10ms\"\n",
        "[worker]\nlease = 60\n",
        "[worker]\ngrace = \"-1s\"\n",
        "[worker\n",
        "[agent.claude]\ncomand = [\"claude\"]\n",
        "[agent.claude]\ncommand = []\n",
        "[agent.Claude]\ncommand = [\"claude\"]\n",
        "[transcript]\nmax_mib = 0\n",
        "[worktree]\nroot = \"/tmp\"\n",
        "[worktree]\nroot = \"a/../../b\"\n",
    ];
    let told = files.map(|text| check("", text, &[]).expect_err("a mistake"));
    insta::assert_snapshot!(told.join("\n"), @r#"
    /repo/piton.toml:2:1: unknown key `leese` (did you mean `lease`?)
    /repo/piton.toml:1:2: unknown key `wroker` (did you mean `worker`?)
    /repo/piton.toml:1:1: unknown key `jobs` (the keys here are: notify, worker, snapshot, worktree, transcript, agent)
    /repo/piton.toml:2:11: "soon" is not a duration: write "90s", "30m" or "1h 30m" (write lease = "90s", for example)
    /repo/piton.toml:2:9: "10ms" is too short: at least 1s (write lease = "90s", for example)
    /repo/piton.toml:2:9: `lease` must be a string, not an integer (put it in "quotes")
    /repo/piton.toml:2:9: "-1s" is negative (write grace = "90s", for example)
    /repo/piton.toml:1:8: unclosed table, expected `]` (write key = "value" below a [table]; the rules are at https://toml.io)
    /repo/piton.toml:2:1: unknown key `comand` (did you mean `command`?)
    /repo/piton.toml:2:11: the agent has no command (write command = ["program", "argument"])
    /repo/piton.toml:1:8: `Claude` is not a valid agent name (did you mean `claude`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit)
    /repo/piton.toml:2:11: `max_mib` must be a whole number from 1 to 4096 (write max_mib = 2, for example)
    /repo/piton.toml:2:8: worktree.root = "/tmp" is outside of the repository (set it in your own configuration file, or in PITON_WORKTREE_ROOT)
    /repo/piton.toml:2:8: worktree.root = "a/../../b" is outside of the repository (set it in your own configuration file, or in PITON_WORKTREE_ROOT)
    "#);
    insta::assert_snapshot!(check("", "", &[("PITON_LEASE", "0s")]).expect_err("too short"), @r#"the environment variable PITON_LEASE: "0s" is too short: at least 1s (unset it: `unset PITON_LEASE`)"#);
}

#[test]
fn the_user_may_choose_any_place() {
    let loaded = check("[worktree]\nroot = \"/srv/trees\"\n", "", &[]).expect("valid");
    assert_eq!(loaded.settings.worktree_root, "/srv/trees");
}

#[test]
fn recorded_settings_read_back_and_a_newer_form_is_refused() {
    let settings = check("[agent.a]\ncommand = [\"x\"]\n", "", &[]).expect("valid").settings;
    let bytes = settings.to_bytes();
    insta::assert_snapshot!(String::from_utf8_lossy(&bytes), @r#"{"v":1,"lease_ms":60000,"grace_ms":10000,"snapshot_every_ms":30000,"snapshot_keep":200,"snapshot_keep_for_ms":2592000000,"snapshot_branch":"","snapshot_branch_every_ms":300000,"worktree_root":".piton/worktrees","transcript_max":67108864,"agents":{"a":{"command":["x"],"prompt":"stdin"}}}"#);
    assert_eq!(Settings::from_bytes(&bytes).expect("readable"), settings);
    let newer = String::from_utf8_lossy(&bytes).replace("\"v\":1", "\"v\":9");
    assert!(Settings::from_bytes(newer.as_bytes()).is_err());
}

#[test]
fn differences_name_both_values() {
    let same = check("[agent.a]\ncommand = [\"x\"]\n", "", &[]).expect("valid");
    assert!(differences(&same.settings, &same).is_empty());
    let recorded = Settings { grace: Duration::from_secs(3), ..same.settings };
    let now = check("[worker]\nlease = \"2m\"\n[agent.b]\ncommand = [\"y\"]\n", "", &[]);
    let now = now.expect("valid");
    insta::assert_snapshot!(differences(&recorded, &now).join("\n"), @r"
    worker.lease: 1m is recorded and used, 2m is configured now
    worker.grace: 3s is recorded and used, 10s is the default
    agent.a: the recorded definition is used; there is none now
    agent.b: configured now, unknown to the run
    ");
}

#[test]
fn durations_are_shown_as_they_are_read() {
    for text in ["1s", "1m 30s", "1h", "100ms", "168h", "0s"] {
        let value = duration(text).expect("valid");
        assert_eq!(duration(&show(value)), Ok(value), "{text} shown as {}", show(value));
    }
}

#[test]
fn snapshots_have_their_keys() {
    let file = "[snapshot]\nkeep = 5\nkeep_for = \"7d\"\nbranch = \"wip/{run}/{step}\"\nbranch_every = \"1m\"\n";
    let settings = check(file, "", &[]).expect("valid").settings;
    assert_eq!(settings.snapshot_keep, 5);
    assert_eq!(settings.snapshot_keep_for, Duration::from_secs(7 * 24 * 3600));
    assert_eq!(settings.snapshot_branch, "wip/{run}/{step}");
    assert_eq!(
        (show(settings.snapshot_keep_for), show(settings.snapshot_branch_every)),
        ("7d".into(), "1m".into())
    );
    let bad = check("[snapshot]\nbranch = \"main\"\n", "", &[]).expect_err("no run in it");
    assert!(bad.contains("must have {run}"), "{bad}");
    assert!(check("[snapshot]\nkeep_for = \"x d\"\n", "", &[]).is_err());
}
