//! Steps claimed from odd places and with odd words: paths spelled in every way, paths that are no text,
//! text in many scripts, too much of it or none, readers that have gone. Each works, or is refused by name
//! and writes nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use piton_testkit::Sandbox;
use piton_testkit::runs::{data, events, events_named, lay_plan, refused, tree, view};
use serde_json::Value;

const PLAN: &str = "\
[plan]
name = 'auth'
[[step]]
id = 'jwt'
items = ['one', 'two']
substeps = [{ id = 'part', title = 'a part' }]
[[step]]
id = 'docs'
";

fn sandbox() -> Sandbox {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, PLAN);
    sandbox
}

/// Names of events, in their order.
fn names(sandbox: &Sandbox) -> Vec<String> {
    let name = |event: &Value| event["event"].as_str().expect("a name").to_owned();
    events(sandbox).iter().map(name).collect()
}

#[test]
fn a_closed_pipe_loses_no_write() {
    for json in [&[][..], &["--json"]] {
        let sandbox = sandbox();
        let one = tree(&sandbox, "one");
        let by = ["--worktree", one.as_str()];
        let under = |words: &[&str]| [words, &["plan.toml", "jwt"], &by].concat().join("\n");
        let verbs = [
            "open\nplan.toml".to_owned(),
            under(&["claim"]).replace("jwt", "--step\njwt"),
            under(&["start"]),
            under(&["heartbeat"]),
            under(&["checkpoint"]) + "\n--note\nn",
            under(&["check"]).replace("jwt", "jwt\n1\n--done"),
            under(&["item", "add"]).replace("jwt", "jwt\ngap"),
            under(&["substep", "complete"]).replace("jwt", "jwt\npart"),
            "ready\nplan.toml".to_owned(),
            "show\nplan.toml".to_owned(),
            under(&["release"]),
            under(&["claim"]).replace("jwt", "--step\njwt"),
            under(&["fail"]) + "\n--reason\nr",
            "reset\nplan.toml\njwt".to_owned(),
            under(&["claim"]).replace("jwt", "--step\njwt"),
            under(&["complete"]) + "\n--force\n--reason\nr",
        ];
        for verb in &verbs {
            let args: Vec<&str> = verb.split('\n').chain(json.iter().copied()).collect();
            let mut command = sandbox.piton(&args).into_command();
            let mut child = command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("piton starts");
            // As `| head -c0` does; it is gone before anything is said.
            drop(child.stdout.take());
            let ended = child.wait_with_output().expect("its end");
            assert_eq!(ended.status.code(), Some(0), "{args:?}: {ended:?}");
        }
        let wanted = "run_opened claimed started checkpointed items_marked item_added \
                      substep_completed released claimed failed reset claimed completed";
        assert_eq!(names(&sandbox), wanted.split(' ').collect::<Vec<_>>());
    }
}

/// What a verb prints into a device that takes nothing.
fn into_full(sandbox: &Sandbox, args: &[&str]) -> std::process::Output {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let mut command = sandbox.piton(args).into_command();
    command.stdout(full).stderr(Stdio::piped()).output().expect("piton runs")
}

#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    for json in [&[][..], &["--json"]] {
        let sandbox = sandbox();
        let one = tree(&sandbox, "one");
        let by = ["--worktree", one.as_str()];
        let verbs: [&[&str]; 5] = [
            &["claim", "plan.toml", "--step", "jwt"],
            &["start", "plan.toml", "jwt"],
            &["checkpoint", "plan.toml", "jwt", "--note", "n"],
            &["heartbeat", "plan.toml", "jwt"],
            &["release", "plan.toml", "jwt"],
        ];
        for verb in verbs {
            let out = into_full(&sandbox, &[verb, &by, json].concat());
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.code(), Some(1), "{verb:?}: {said}");
            assert!(said.contains("error[E070]: the answer could not be written"), "{said}");
            assert!(said.contains("No space left"), "{said}");
        }
        let wanted = ["run_opened", "claimed", "started", "checkpointed", "released"];
        assert_eq!(names(&sandbox), wanted, "what was asked for is done all the same");
        for verb in [&["status", "plan.toml"][..], &["show", "plan.toml"], &["events"], &["ready"]]
        {
            let out = into_full(&sandbox, &[verb, json].concat());
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(said.contains("error[E070]: the answer could not be written"), "{said}");
        }
        // A refusal says itself, and keeps its own status.
        let out = into_full(&sandbox, &[&["release", "plan.toml", "jwt"], &by[..], json].concat());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(1) && said.contains("E050"), "{said}");
    }
}

#[test]
fn a_fence_in_the_environment_that_is_none_is_named() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let claimed = data(&sandbox, &["claim", "plan.toml", "--worktree", &one]);
    let run = claimed["run"].as_str().expect("an id");
    let inside = |args: &[&str]| {
        let piton =
            sandbox.piton(args).arg("--json").env("PITON_RUN", run).env("PITON_STEP", "jwt");
        piton.env("PITON_FENCE", "7seven").output()
    };
    let before = events(&sandbox);
    for verb in [&["checkpoint", "--note", "n"][..], &["claim"], &["heartbeat"]] {
        let out = inside(verb).expect_code(2).json();
        let message = out["issues"][0]["message"].as_str().expect("a message");
        assert!(message.contains("PITON_FENCE") && message.contains("7seven"), "{message}");
    }
    assert_eq!(events(&sandbox), before);
    // Whoever names the claim does not ask the environment.
    inside(&["start", "--worktree", &one]).success();
    inside(&["show"]).success();
}

const SCRIPTS: &str = "größe 日本語 עברית 🧗‍♀️ e\u{301} \u{202e}x";
const DASHES: &str = "- a list\n--force of habit";

#[test]
fn a_text_is_kept_as_it_was_given_in_every_script_and_with_a_dash_in_front() {
    for text in [SCRIPTS, DASHES] {
        let sandbox = sandbox();
        let one = tree(&sandbox, "дерево 木 'quoted' \"ö\"");
        let by = |args: &[&str]| data(&sandbox, &[args, &["--worktree", &one]].concat());
        by(&["claim", "plan.toml"]);
        sandbox.write(format!("{one}/größe/日本.txt"), text);
        let names = ["note", "task", "eta", "done", "next", "session"];
        let flags = names.map(|name| format!("--{name}"));
        let report: Vec<&str> = flags.iter().flat_map(|flag| [flag.as_str(), text]).collect();
        let json = serde_json::json!({ text: text }).to_string();
        let more = ["--file", "größe/日本.txt:3=open@0.5", "--data", &json];
        let kept = by(&[&["checkpoint", "plan.toml", "jwt"], &report[..], &more].concat());
        let name = kept["snapshot"]["refname"].as_str().expect("a snapshot");
        assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{name}:größe/日本.txt")]), text);
        by(&["check", "plan.toml", "jwt", "1", "--defer", "--reason", text]);
        // Words that are no option's come behind two dashes.
        let add = ["item", "add", "plan.toml", "jwt", "--worktree", &one, "--", text];
        sandbox.piton(&add).output().success();
        by(&["ask", "plan.toml", "jwt", "which?", "--choice", text, "--choice", "-1"]);
        sandbox.piton(&["answer", "--", "jwt", "-1"]).output().success();
        by(&["fail", "plan.toml", "jwt", "--reason", text]);
        data(&sandbox, &["reset", "plan.toml", "jwt"]);
        by(&["claim", "plan.toml"]);
        by(&["complete", "plan.toml", "jwt", "--force", "--reason", text]);

        let told = |event: &str| events_named(&sandbox, event)[0].clone();
        let report = told("checkpointed")["report"].clone();
        for name in names {
            assert_eq!(report[name], text, "{name}");
        }
        assert_eq!(report["files"][0]["path"], "größe/日本.txt");
        assert_eq!(told("items_marked")["mark"]["deferred"]["reason"], text);
        assert_eq!(told("item_added")["text"], text);
        assert_eq!(told("asked")["choices"], serde_json::json!([text, "-1"]));
        assert_eq!(told("failed")["why"]["reported"]["reason"], text);
        assert_eq!(told("completed")["waived"]["reason"], text);
        assert_eq!(told("claimed")["holder"]["external"]["worktree"], one.as_str());
        // For people, without what could steer a terminal.
        let shown = sandbox.piton(&["show", "plan.toml"]).output().success().stdout;
        assert!(!shown.contains('\u{202e}'), "{shown}");
    }
}

#[test]
fn a_plan_and_a_step_are_called_in_every_script() {
    let sandbox = sandbox();
    let text = PLAN
        .replace("'auth'", "'größe 日本'")
        .replace("id = 'docs'", &format!("id = 'docs'\ntitle = '{SCRIPTS}'"));
    sandbox.write("pläne/プラン.toml", &text);
    let claim = ["claim", "pläne/プラン.toml", "--worktree", ".", "--step", "docs"];
    assert_eq!(data(&sandbox, &claim)["title"], SCRIPTS);
    let shown = view(&sandbox);
    assert_eq!(
        (&shown["name"], &shown["plan_path"]),
        (&"größe 日本".into(), &"pläne/プラン.toml".into())
    );
}

/// A lease is said to be wrong, rather than to be an option.
#[test]
fn a_negative_lease_is_named() {
    let sandbox = sandbox();
    let (exit, _, message) =
        refused(&sandbox, &["claim", "plan.toml", "--worktree", ".", "--lease", "-5s"]);
    assert!(exit == 2 && message.contains("is negative"), "{message}");
}

#[test]
fn auto_reclaim_knows_a_worktree_however_it_is_spelled() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let (inside, deep) = (PathBuf::from(&one), Path::new(&one).join("src/deep"));
    std::fs::create_dir_all(&deep).expect("folders");
    let links = sandbox.root().join("links");
    std::fs::create_dir(&links).expect("a folder");
    symlink(&one, links.join("tree")).expect("a link");
    symlink(&links, sandbox.root().join("way")).expect("a link to a folder of links");
    let slash = format!("{one}//");
    let winding = format!("{one}/src/../src/deep/../..");
    let linked = sandbox.root().join("way/tree/").to_str().expect("text").to_owned();
    let below = deep.to_str().expect("text");
    let spellings: [(&str, &Path); 9] = [
        (&one, &sandbox.repo()),
        (&slash, &sandbox.repo()),
        (&winding, &sandbox.repo()),
        (&linked, &sandbox.repo()),
        ("../one", &sandbox.repo()),
        (below, &sandbox.repo()),
        (".", &inside),
        ("./", &inside),
        ("../../", &deep),
    ];
    let run = data(&sandbox, &["open", "plan.toml"])["run"]["handle"].clone();
    let run = run.as_str().expect("a handle");
    for (n, (spelling, cwd)) in spellings.into_iter().enumerate() {
        let said = |args: &[&str]| {
            let args = [args, &["--worktree", spelling, "--json"]].concat();
            sandbox.piton(&args).cwd(cwd).output().success().json()["data"].clone()
        };
        let claimed = said(&["claim", run]);
        assert_eq!((&claimed["claimed"], &claimed["step"]), (&true.into(), &"jwt".into()));
        assert_eq!(claimed["reclaimed"], n > 0, "{spelling}");
        said(&["start", run, "jwt"]);
        said(&["heartbeat", run, "jwt"]);
    }
    let claims = events_named(&sandbox, "claimed");
    let owners: Vec<&Value> =
        claims.iter().map(|event| &event["holder"]["external"]["worktree"]).collect();
    assert!(owners.iter().all(|owner| **owner == one.as_str()), "{owners:?}");
}

#[test]
fn a_worktree_whose_path_is_no_text_is_refused() {
    let sandbox = sandbox();
    let run = data(&sandbox, &["open", "plan.toml"])["run"]["handle"].clone();
    let run = run.as_str().expect("a handle");
    let before = events(&sandbox);
    // They look the same to whoever cannot read them.
    for name in [b"tree-\xff", b"tree-\xfe"] {
        let path = sandbox.root().join(OsStr::from_bytes(name));
        std::fs::create_dir(&path).expect("a folder");
        for verb in [&["claim", run][..], &["start", run, "jwt"]] {
            let out = sandbox.piton(verb).arg("--json").arg("--worktree").arg(&path).output();
            let out = out.expect_code(2);
            assert_eq!(out.json()["issues"][0]["code"], "E071");
            assert!(out.stdout.contains("not UTF-8"), "{out}");
        }
        // Nor where it is the folder that piton is in.
        std::fs::write(path.join(".git"), "gitdir: nowhere\n").expect("a file");
        let args = ["claim", run, "--worktree", ".", "--json"];
        assert_ne!(sandbox.piton(&args).cwd(&path).output().code, Some(0));
    }
    assert_eq!(events(&sandbox), before);
}

#[test]
fn a_worktree_that_is_not_there_is_refused() {
    let sandbox = sandbox();
    data(&sandbox, &["open", "plan.toml"]);
    let before = events(&sandbox);
    for (path, why) in [("nowhere", "No such file"), ("plan.toml", "not a folder"), ("", "")] {
        let (exit, code, message) = refused(&sandbox, &["claim", "plan.toml", "--worktree", path]);
        assert_eq!((exit, code.as_str()), (2, "E071"), "{path:?}: {message}");
        assert!(message.contains(why), "{message}");
    }
    assert_eq!(events(&sandbox), before);
}

#[test]
fn what_is_too_long_or_empty_is_refused_with_its_size() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    data(&sandbox, &["claim", "plan.toml", "--worktree", &one]);
    let long = "ü".repeat(40_000);
    let large = format!("\"{long}\"");
    sandbox.write("large.json", &large);
    let before = events(&sandbox);
    let verb = |words: &[&'static str]| [words, &["plan.toml", "jwt"]].concat();
    let (checkpoint, check) = (verb(&["checkpoint"]), verb(&["check"]));
    let (fail, complete) = (verb(&["fail"]), verb(&["complete"]));
    let item = verb(&["item", "add"]);
    let cases: [(&[&str], &[&str], &str); 21] = [
        (&checkpoint, &["--file", ":3"], "path"),
        (&checkpoint, &["--file", "a@9"], "from 0 to 1"),
        (&checkpoint, &["--file", "a@NaN"], "from 0 to 1"),
        (&checkpoint, &["--file", "a=maybe"], "done or open"),
        (&checkpoint, &["--file", "a:0"], "counted from 1"),
        (&checkpoint, &["--file", "a:0=done@0.5"], "counted from 1"),
        (&checkpoint, &["--note", &long], "80000 bytes"),
        (&checkpoint, &["--session", &long], "80000 bytes"),
        (&checkpoint, &["--file", &long], "80000 bytes"),
        (&checkpoint, &["--data", &large], "80002 bytes"),
        (&checkpoint, &["--data", "@large.json"], "80002 bytes"),
        (&checkpoint, &["--progress", "101"], "101"),
        (&checkpoint, &["--confidence", "2"], "from 0 to 1"),
        (&checkpoint, &["--confidence", "NaN"], "from 0 to 1"),
        (&check, &["1", "--defer", "--reason", &long], "80000 bytes"),
        (&check, &["1", "--defer", "--reason", " "], "empty"),
        (&fail, &["--reason", &long], "80000 bytes"),
        (&fail, &["--reason", ""], "empty"),
        (&complete, &["--force", "--reason", &long], "80000 bytes"),
        (&item, &[&long], "80000 bytes"),
        (&item, &[""], "empty"),
    ];
    for (verb, more, why) in cases {
        let args = [verb, more, &["--worktree", &one]].concat();
        let (exit, code, message) = refused(&sandbox, &args);
        assert_eq!((exit, code.as_str()), (2, "E071"), "{verb:?}: {message}");
        assert!(message.contains(why), "{verb:?}: {message}");
    }
    let (exit, code, _) =
        refused(&sandbox, &["check", "plan.toml", "jwt", "0", "--done", "--worktree", &one]);
    assert_eq!((exit, code.as_str()), (2, "E071"));
    assert_eq!(events(&sandbox), before);
}

#[test]
fn a_plan_is_found_from_a_folder_below_and_from_another_worktree() {
    let sandbox = sandbox();
    // In git, so that every worktree has it.
    sandbox.write("plans/auth.toml", PLAN);
    sandbox.commit("a plan");
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    let said = |cwd: &Path, args: &[&str]| {
        let out = sandbox.piton(args).arg("--json").cwd(cwd).output().success();
        out.json()["data"].clone()
    };
    let opened = data(&sandbox, &["open", "plans/auth.toml"])["run"]["run"].clone();
    let first = said(&sandbox.path("plans"), &["claim", "auth.toml", "--worktree", &one]);
    assert_eq!((&first["run"], &first["step"]), (&opened, &"jwt".into()));
    let below = Path::new(&one).join("plans");
    let again = said(&below, &["claim", "../plans/auth.toml", "--worktree", ".."]);
    assert_eq!((&again["run"], &again["reclaimed"]), (&opened, &true.into()));
    let other = said(Path::new(&two), &["claim", "plans/auth.toml", "--worktree", "."]);
    assert_eq!((&other["run"], &other["step"]), (&opened, &"docs".into()));
    said(&below, &["start", "auth.toml", "jwt", "--worktree", ".."]);
    said(Path::new(&two), &["start", "plans/auth.toml", "docs", "--worktree", "."]);
    assert_eq!(said(Path::new(&two), &["show", "plans/auth.toml"])["run"]["run"], opened);
}

#[test]
fn a_plan_that_was_moved_has_its_own_run_and_the_other_is_named() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    let open =
        |verb: &[&str]| sandbox.piton(&[verb, &["--json"]].concat()).output().success().json();
    let untouched = open(&["open", "plan.toml"]);
    std::fs::copy(sandbox.path("plan.toml"), sandbox.path("copy.toml")).expect("a copy");
    assert_eq!(open(&["open", "copy.toml"])["issues"], serde_json::json!([]), "nobody began");
    let run = untouched["data"]["run"]["handle"].as_str().expect("a handle").to_owned();
    data(&sandbox, &["claim", &run, "--worktree", &one]);
    std::fs::rename(sandbox.path("plan.toml"), sandbox.path("moved.toml")).expect("moved");
    let claimed = open(&["claim", "moved.toml", "--worktree", &one]);
    assert_ne!(claimed["data"]["handle"], run.as_str());
    let told = &claimed["issues"][0];
    assert_eq!(told["severity"], "warning", "{claimed}");
    let hint = told["hint"].as_str().expect("a way");
    assert!(hint.contains(&format!("`piton claim {run} --worktree .`")), "{hint}");
    assert_eq!(open(&["claim", "moved.toml", "--worktree", &one])["issues"], serde_json::json!([]));
}

#[test]
fn a_plan_whose_file_is_gone_still_names_its_run() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    sandbox.write("plans/deep/auth.toml", PLAN);
    let plan = "plans/deep/auth.toml";
    let claimed = data(&sandbox, &["claim", plan, "--worktree", &one]);
    std::fs::rename(sandbox.path("plans"), sandbox.root().join("away")).expect("moved");
    let by = |args: &[&str]| data(&sandbox, &[args, &["--worktree", &one]].concat());
    by(&["start", plan, "jwt"]);
    by(&["checkpoint", plan, "jwt", "--note", "n"]);
    let fence = claimed["fence"].to_string();
    data(&sandbox, &["heartbeat", plan, "jwt", "--fence", &fence]);
    let below = Path::new(&one).join("src");
    std::fs::create_dir_all(&below).expect("a folder");
    let args = ["heartbeat", "../plans/deep/auth.toml", "jwt", "--worktree", ".", "--json"];
    sandbox.piton(&args).cwd(&below).output().success();
    assert_eq!(data(&sandbox, &["show", plan])["run"]["run"], claimed["run"]);
    assert_eq!(by(&["claim", plan])["grounds"], "same_owner");
    by(&["release", plan, "jwt"]);
    for other in ["plans/auth.toml", "auth.toml", "deep/auth.toml"] {
        assert_eq!(refused(&sandbox, &["show", other]).1, "E064", "{other}");
    }
}

#[test]
fn a_run_is_found_by_a_beginning_that_only_it_has() {
    let sandbox = sandbox();
    let one = tree(&sandbox, "one");
    sandbox.write("other.toml", PLAN);
    let first = data(&sandbox, &["open", "plan.toml"])["run"]["handle"].clone();
    let second = data(&sandbox, &["open", "other.toml"])["run"]["handle"].clone();
    let (first, second) = (first.as_str().expect("a handle"), second.as_str().expect("a handle"));
    let (exit, code, message) = refused(&sandbox, &["claim", "auth", "--worktree", &one]);
    assert_eq!((exit, code.as_str()), (2, "E064"));
    assert!(message.contains(first) && message.contains(second), "{message}");
    let same = first.bytes().zip(second.bytes()).take_while(|(a, b)| a == b).count();
    let claimed = data(&sandbox, &["claim", &first[..=same], "--worktree", &one]);
    assert_eq!(claimed["handle"], first);
    data(&sandbox, &["start", &first[..=same], "jwt", "--worktree", &one]);
    let run = claimed["run"].as_str().expect("an id");
    data(&sandbox, &["heartbeat", run, "jwt", "--worktree", &one]);
    let (exit, code, _) = refused(&sandbox, &["start", "auth", "jwt", "--worktree", &one]);
    assert_eq!((exit, code.as_str()), (2, "E064"));
}
