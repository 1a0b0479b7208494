//! A tour through what is seen in the morning: five groups of which one is complete, two were killed in the middle
//! with their work saved, one is at its very start and one waits for a need that is met by now. Every screen is as
//! wide as 80 columns, and ends with the command to type.

use std::fs;

use piton_testkit::runs::{agent_step, command_step, data, keepers, lay_plan, plan_with, step};
use piton_testkit::{Piton, Sandbox, Terminal, kill9};

use crate::sandbox;

const GROUPS: &str = "\
isolation = 'step'
jobs = 2
[group.schema]
title = 'Database schema'
[group.auth]
title = 'Authentication'
[group.api]
title = 'HTTP API'
[group.web]
title = 'Web pages'
[group.docs]
title = 'Documentation'
";

/// What an agent reports in the middle of its work.
const HALF_DONE: &str = "sh piton checkpoint --progress 40 --confidence 0.6 \
    --file src/login.rs=done --file src/tokens.rs:120=open --done parsing --next expiry \
    --task 'the tests of the expiry' --data @{data}";

/// The plan of the tour in a repository of its own.
fn planned() -> Sandbox {
    let sandbox = sandbox();
    let command = |id: &str, more: &str| {
        let group = id.split('-').next().expect("a group");
        let more = format!("group = '{group}'\n{more}");
        command_step(&sandbox, id, &format!("echo {id} > {id}.txt"), &more)
    };
    let agent = |id: &str, script: &str, more: &str| {
        let group = id.split('-').next().expect("a group");
        agent_step(&sandbox, id, script, &format!("group = '{group}'\n{more}"))
    };
    sandbox.write(sandbox.mark("data"), r#"{"tests": 3}"#);
    let tokens = format!("write src/tokens.rs half; {HALF_DONE}; touch {{tokens}}; hang");
    let errors = "write src/errors.rs half; sh piton checkpoint; touch {errors}; hang";
    let steps = [
        command("schema-tables", "verify = 'true'"),
        agent("schema-seed", "write seed.sql x", "needs = ['schema-tables']"),
        command("auth-login", ""),
        agent(
            "auth-tokens",
            &tokens,
            "needs = ['auth-login']\ntitle = 'Tokens that expire'\nitems = ['signature', 'expiry']",
        ),
        command("auth-logout", "needs = ['auth-tokens']"),
        command("api-routes", ""),
        agent("api-errors", errors, "needs = ['api-routes']"),
        command("api-limits", "needs = ['api-errors']"),
        command("web-shell", ""),
        command("web-forms", "needs = ['web-shell']"),
        command("docs-guide", "needs = ['schema']"),
        command("docs-tour", "needs = ['docs-guide', 'web']"),
    ];
    lay_plan(&sandbox, &plan_with(&sandbox, GROUPS, &steps));
    sandbox
}

/// The tour after everything was killed: what a person comes back to.
pub(crate) fn killed() -> Sandbox {
    let sandbox = planned();
    let run = sandbox.piton(&["run", "plan.toml", "--trust"]);
    let run = run.env("PITON_NEXT_HANDLE", "calm-otter").spawn();
    sandbox.wait_exists(sandbox.mark("tokens"));
    sandbox.wait_exists(sandbox.mark("errors"));
    drop(run.kill9());
    let keepers = keepers(&sandbox);
    assert_eq!(keepers.len(), 2, "both were at work");
    keepers.into_iter().for_each(kill9);
    assert!(sandbox.kill_all(), "nothing is left of it");
    sandbox
}

/// A command as it is typed eight hours later on a screen of 80 columns.
fn typed(sandbox: &Sandbox, args: &[&str]) -> Piton {
    sandbox.piton(args).env("COLUMNS", "80").env("PITON_LATER", "28800")
}

/// Commands and what they show.
pub(crate) fn transcript(sandbox: &Sandbox, commands: &[&[&str]]) -> String {
    let mut all = String::new();
    for args in commands {
        let out = typed(sandbox, args).output().success();
        let command = [&["piton"], *args].concat().join(" ");
        all += &format!("$ {command}\n{}{}\n", out.stderr, out.stdout);
    }
    sandbox.redact(&all)
}

/// What `piton resume` shows on a terminal, up to its prompt; it is left there.
fn asked(sandbox: &Sandbox) -> String {
    let env = [("NO_COLOR", "1"), ("COLUMNS", "80"), ("PITON_LATER", "28800")];
    let mut terminal = Terminal::start_with(sandbox, &["resume"], &env);
    sandbox.wait_until("the prompt", || terminal.shown().contains("1-4, or"));
    let shown = terminal.shown().replace(['\r', '\u{7}'], "");
    terminal.type_in("\u{3}");
    terminal.wait();
    sandbox.redact(&shown)
}

/// What differs from one time to the next.
pub(crate) fn filters() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    for (from, to) in [
        (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "[time]"),
        (r"[0-9a-f]{8}-[0-9a-f-]{27}", "[uuid]"),
        (r"\b[0-9a-f]{10,40}\b", "[hash]"),
        (r"process \d+", "process [pid]"),
        (r"fence \d+", "fence [fence]"),
        (r"(calm-otter/[a-z-]+)/\d+/", "$1/[fence]/"),
        (r", \d+\.\ds\n", ", [span]\n"),
        (r" in \d+\.\ds\n", " in [span]\n"),
        (r"  work not saved yet: .*\n", ""),
        (r"lost( +)(about|nothing).*\n", "lost${1}[work]\n"),
        (r"left( +)about .*\n", "left${1}about [span]\n"),
    ] {
        settings.add_filter(from, to);
    }
    settings
}

#[test]
fn the_first_look_in_the_morning() {
    let sandbox = killed();
    let shown = |args: &[&str]| typed(&sandbox, args).output().success().stdout;
    filters().bind(|| {
        insta::assert_snapshot!(transcript(&sandbox, &[&[]]), @r"
        $ piton
        calm-otter  interrupted  step auth-tokens killed 8h ago
          plan.toml · 4 of 12 steps completed · started 8h ago · active 8h ago

          Database schema  ████████████████████  2/2
          Authentication   ██████░░░░░░░░░░░░░░  1/3  2 waiting
          HTTP API         ██████░░░░░░░░░░░░░░  1/3  2 waiting
          Web pages        ░░░░░░░░░░░░░░░░░░░░  0/2  2 waiting
          Documentation    ░░░░░░░░░░░░░░░░░░░░  0/2  2 waiting

        ⏸ auth-tokens  interrupted, killed 8h ago (the keeper's lock is free); saved: 1
                       changed file, 8h ago
                       reported: 40 % · confidence 0.6 · 1/2 files done · at
                       src/tokens.rs:120 · section done parsing · next expiry · task the
                       tests of the expiry
                       Tokens that expire · 0/2 items · attempt 1
        ⏸ api-errors   interrupted, killed 8h ago (the keeper's lock is free); saved: 1
                       changed file, 8h ago
                       attempt 1
          2 ready · 4 blocked · 3 verified · 1 done, unverified

        Next:
          piton resume calm-otter
        ");
        insta::assert_snapshot!(transcript(&sandbox, &[&["resume", "--dry-run"]]), @r"
        $ piton resume --dry-run
        calm-otter: `piton resume` would
          1  schema-tables  skip: done
          2  schema-seed    skip: done
          3  auth-login     skip: done
          4  auth-tokens    continue in its tree (killed)
                            first: record that its attempt is dead, keep what it left
          5  auth-logout    wait: needs auth-tokens
          6  api-routes     skip: done
          7  api-errors     continue in its tree (killed)
                            first: record that its attempt is dead, keep what it left
          8  api-limits     wait: needs api-errors
          9  web-shell      wait: at most 2 at once
         10  web-forms      wait: needs web-shell
         11  docs-guide     wait: at most 2 at once
         12  docs-tour      wait: needs web-shell, web-forms, docs-guide
          lost  [work]
          left  about [span]
        Nothing was written.
        ");
        insta::assert_snapshot!(asked(&sandbox), @r"
        calm-otter  interrupted  step auth-tokens killed 8h ago
          plan.toml · 4 of 12 steps completed · started 8h ago · active 8h ago
          found     auth-tokens, api-errors: its attempt is dead; what it left is kept
          skip      schema-tables, schema-seed, auth-login, api-routes: done
          continue  auth-tokens, api-errors: in its tree (killed)
          wait      auth-logout: needs auth-tokens
          wait      api-limits: needs api-errors
          wait      web-shell, docs-guide: at most 2 at once
          wait      web-forms: needs web-shell
          wait      docs-tour: needs web-shell, web-forms, docs-guide
          lost      [work]
          left      about [span]
          1  resume (Enter)
          2  restart interrupted and failed steps from their base (--restart)
          3  look (--dry-run)
          4  abandon this run and start fresh
        1-4, or Ctrl-C to leave it:
        ");
        for same in ["status", "watch"] {
            assert_eq!(shown(&[same]), shown(&[]), "the same page");
        }
        insta::assert_snapshot!(transcript(&sandbox, &[&["show", "c", "auth-tokens"]]), @r#"
        $ piton show c auth-tokens
        calm-otter  interrupted  step auth-tokens killed 8h ago
          plan.toml · 4 of 12 steps completed · started 8h ago · active 8h ago

          run       [uuid]
          plan      plan.toml ([hash])
          base      [hash]
          branch    piton/calm-otter/run
          worktrees $SANDBOX/repo/.piton/worktrees/calm-otter
          settings  lease 1m, grace 10s, snapshot every 30s

        ⏸ auth-tokens  interrupted  killed 8h ago (the keeper's lock is free); saved: 1
          changed file, 8h ago
            Tokens that expire
            needs auth-login
            attempt 1 (fresh, fence [fence]) dead
              from [time], [span]
              by a keeper on [hash], process [pid]
            last good commit [hash] (checked out at the last snapshot, not verified)
            reported: 40 %, confidence 0.6, task the tests of the expiry
            reported done: parsing
            reported next: expiry
            reported data: {"tests":3}
            reported file: src/login.rs done
            reported file: src/tokens.rs:120 open
            ○ item 1  signature
            ○ item 2  expiry
            $SANDBOX/repo/.git/piton/attempts/[uuid]
            snapshot refs/piton/calm-otter/auth-tokens/[fence]/1
              1 changed file, [time]
            worktree $SANDBOX/repo/.piton/worktrees/calm-otter/2

        Next:
          piton resume calm-otter
        "#);
    });
}

#[test]
fn numbers_are_numbers_and_data_is_an_object() {
    let sandbox = killed();
    let view = data(&sandbox, &["status", "calm-otter"])["run"].clone();
    let tokens = step(&view, "auth-tokens");
    let report = &tokens["report"];
    assert_eq!((&report["progress"], &report["confidence"]), (&40.into(), &0.6.into()));
    assert_eq!((&report["data"]["tests"], &report["files"][1]["line"]), (&3.into(), &120.into()));
    for time in [&tokens["since"], &tokens["attempts"][0]["heartbeat_at"], &view["active_at"]] {
        assert!(time.as_str().is_some_and(|time| time.ends_with('Z')), "{time}");
    }
    let auth = &view["groups"][1];
    let counts = ["total", "completed", "running", "waiting"].map(|name| auth[name].as_u64());
    assert_eq!(counts, [Some(3), Some(1), Some(0), Some(2)]);
    let listed = data(&sandbox, &["status"])["runs"].clone();
    assert_eq!(step(&listed[0], "auth-tokens")["report"], *report, "the same in a list");
}

#[test]
fn every_screen_fits_80_columns() {
    let sandbox = killed();
    let screens: [&[&str]; 16] = [
        &[],
        &["status"],
        &["status", "--all", "--ended"],
        &["show"],
        &["watch"],
        &["resume", "--dry-run"],
        &["ready", "calm-otter"],
        &["questions"],
        &["worktree", "list"],
        &["snapshot", "list"],
        &["snapshot", "show", "calm-otter/auth-tokens"],
        &["clean"],
        &["doctor"],
        &["merge", "--dry-run"],
        &["undo", "--list"],
        &["plan", "check", "plan.toml"],
    ];
    for args in screens {
        let out = typed(&sandbox, args).output();
        for line in out.stdout.lines().chain(out.stderr.lines()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let first = words.first().map(|word| word.trim_start_matches('`'));
            let is_command = first.is_some_and(|word| ["piton", "git"].contains(&word));
            // A path cannot be wrapped.
            let is_fine = line.chars().count() <= 80 || is_command || words.len() == 1;
            assert!(is_fine, "{args:?}: {line}\n{out}");
        }
    }
}

#[test]
fn a_terminal_shows_colours_and_what_is_enough_to_type_unless_they_are_not_wanted() {
    let sandbox = killed();
    let shown = |args: &[&str], colour: &str| {
        let env = [("NO_COLOR", colour), ("PAGER", "sed s/^/paged:/")];
        Terminal::start_with(&sandbox, args, &env).wait().success().stdout
    };
    let status = shown(&["status"], "");
    assert!(status.contains("\u{1b}[1mc\u{1b}[0m\u{1b}[2malm-otter"), "{status}");
    let diff = shown(&["diff", "c", "auth-tokens"], "");
    assert!(diff.contains("paged:\u{1b}[32m+half"), "{diff}");
    for args in [&["status"][..], &["diff", "c", "auth-tokens"]] {
        let plain = shown(args, "1");
        assert!(!plain.contains('\u{1b}'), "{plain}");
    }
}

#[test]
fn the_runs_of_every_repository_are_found_and_those_that_are_gone_are_left_out() {
    let sandbox = sandbox();
    let plan = "[plan]\nname = 'p'\n[[step]]\nid = 'a'\n";
    let places = ["one", "two", "three"].map(|name| {
        let place = sandbox.root().join(name);
        fs::create_dir(&place).expect("a folder");
        sandbox.git_in(&place, &["init", "--quiet"]);
        sandbox.write(place.join("plan.toml"), plan);
        sandbox.git_in(&place, &["add", "-A"]);
        sandbox.git_in(&place, &["commit", "--quiet", "-m", "plan"]);
        let open = sandbox.piton(&["open", "plan.toml"]).cwd(&place);
        open.env("PITON_NEXT_HANDLE", format!("calm-{name}")).output().success();
        place
    });
    fs::remove_dir_all(&places[1]).expect("removed");
    sandbox.piton(&["abandon", "calm-three", "--yes"]).cwd(&places[2]).output().success();
    let found = |args: &[&str]| -> Vec<String> {
        let runs = data(&sandbox, args)["runs"].clone();
        let name = |run: &serde_json::Value| {
            let repository = run["repository"].as_str().expect("a path").to_owned();
            format!("{} {}", sandbox.redact(&repository), run["handle"].as_str().expect("a handle"))
        };
        runs.as_array().expect("runs").iter().map(name).collect()
    };
    assert_eq!(found(&["status", "--all"]), ["$SANDBOX/one calm-one"]);
    let all = ["$SANDBOX/one calm-one", "$SANDBOX/three calm-three"];
    assert_eq!(found(&["status", "--all", "--ended"]), all);
    insta::assert_snapshot!(transcript(&sandbox, &[&["status", "--all", "--ended"]]), @r"
    $ piton status --all --ended
    $SANDBOX/one
    calm-one  open  a can be claimed
      plan.toml · 0 of 1 steps completed · started 8h ago · active 8h ago
      1 ready

    $SANDBOX/three
    calm-three  abandoned  0/1  8h ago

    Next:
      piton -C $SANDBOX/one ready calm-one
    ");
}
