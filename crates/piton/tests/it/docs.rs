//! The documentation, held to what the program does: generated pages are compared, examples are parsed
//! and run, commands and links must exist. `PITON_BLESS=1` rewrites the generated pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use piton::reference;
use piton_core::event::Event;
use piton_testkit::POINTS;
use piton_testkit::Sandbox;
use piton_testkit::runs::data;

use crate::sandbox;

const BLESS: &str = "PITON_BLESS=1 cargo test --release -p piton --test it docs";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()))
}

/// Every page for people: in the root, in docs and in the examples.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root(), root().join("docs"), root().join("examples")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the documentation") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && folder != root() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path.strip_prefix(root()).expect("below the root").to_owned());
            }
        }
    }
    found.sort();
    assert!(found.len() > 10, "the pages were not found: {found:?}");
    found
}

/// The contents of a page's fenced blocks of one language.
fn fenced(page: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}");
    let mut blocks = Vec::new();
    let mut block: Option<(bool, String)> = None;
    for line in page.lines() {
        match (&mut block, line.trim_start().starts_with("```")) {
            (None, true) => block = Some((line.trim() == open, String::new())),
            (Some(_), true) => {
                if let Some((true, text)) = block.take() {
                    blocks.push(text);
                }
                block = None;
            }
            (Some((_, text)), false) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, false) => {}
        }
    }
    blocks
}

#[test]
fn generated_pages_are_what_the_program_says() {
    let mut stale = Vec::new();
    for (page, text) in [
        ("docs/cli.md", reference::commands()),
        ("docs/configuration.md", reference::settings()),
        ("docs/exit-codes.md", reference::codes()),
    ] {
        let note = format!("\n<!-- Made from the program; to renew: {BLESS} -->\n");
        let wanted = format!("{}{note}", text.trim_end_matches('\n').to_owned() + "\n");
        let path = root().join(page);
        if fs::read_to_string(&path).is_ok_and(|found| found == wanted) {
            continue;
        }
        match std::env::var_os("PITON_BLESS") {
            Some(_) => fs::write(&path, wanted).expect("the page can be written"),
            None => stale.push(page),
        }
    }
    assert!(stale.is_empty(), "{stale:?} are not what the program says; renew them: {BLESS}");
}

#[test]
fn event_examples_are_events_and_every_kind_has_one() {
    let page = read("docs/events.md");
    let kind = |body: &[u8]| -> String {
        let value: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        value["event"].as_str().expect("an event's kind").to_owned()
    };
    let mut shown = BTreeSet::new();
    for line in fenced(&page, "json").iter().flat_map(|block| block.lines()) {
        let event = Event::from_body(line.as_bytes()).unwrap_or_else(|bad| panic!("{bad}: {line}"));
        assert_eq!(String::from_utf8_lossy(&event.to_body()), line, "as piton writes it");
        shown.insert(kind(line.as_bytes()));
    }
    let samples = read("crates/core/tests/fixtures/events-v1.jsonl");
    let known: BTreeSet<String> = samples.lines().map(|line| kind(line.as_bytes())).collect();
    assert_eq!(shown, known);
}

#[test]
fn plan_examples_are_plans() {
    let mut plans = 0;
    for page in pages() {
        let text = read(&page);
        for block in fenced(&text, "toml").iter().filter(|block| block.contains("[[step]]")) {
            plans += 1;
            if let Err(error) = piton_engine::formats::parse(block.as_bytes()) {
                panic!("{}: {error}\n{block}", page.display());
            }
        }
    }
    assert!(plans >= 2, "README and docs/plan.md have one each");
}

#[test]
fn keys_of_later_versions_are_refused_by_name() {
    let page = read("docs/plan.md");
    let section = page.split("### Keys of later versions").nth(1).expect("the section");
    let list = section.split(';').next().expect("the list");
    let keys: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert!(keys.contains(&"labels"), "{keys:?}");
    for key in keys {
        let plan =
            format!("[plan]\nname = \"x\"\n[[step]]\nid = \"a\"\nrun = \"true\"\n{key} = 1\n");
        let error = piton_engine::formats::parse(plan.as_bytes()).expect_err(key);
        let wanted = format!("`{key}` is not supported by this version of piton");
        assert_eq!(error.findings[0].message, wanted);
    }
}

#[test]
fn crash_points_are_named_as_they_are() {
    let page = read("docs/design/0010-the-order-of-writes.md");
    let known: BTreeSet<&str> = POINTS.iter().map(|(point, _)| *point).collect();
    let words = page.split('`').skip(1).step_by(2);
    let named: BTreeSet<&str> = words
        .filter(|word| {
            ["worker.", "keeper.", "bury.", "land.", "complete.", "outside.", "restore.", "merge."]
                .iter()
                .any(|who| word.starts_with(who))
        })
        .filter(|word| !["keeper.lock", "keeper.json", "keeper.log"].contains(word))
        .filter(|word| !["worker.lease", "worker.grace"].contains(word))
        .collect();
    assert!(named.len() > 10 && named.is_subset(&known), "{:?}", named.difference(&known));
}

/// Lines of shell blocks that start with this word, without comments.
fn shell_lines(word: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for page in pages() {
        let text = read(&page);
        for line in fenced(&text, "sh").iter().flat_map(|block| block.lines()) {
            let line = line.trim_start_matches("$ ").split(" #").next().unwrap_or_default().trim();
            if line.split(' ').next() == Some(word) {
                found.push((page.clone(), line.to_owned()));
            }
        }
    }
    found
}

#[test]
fn commands_in_the_documentation_exist() {
    let sandbox = sandbox();
    let lines = shell_lines("piton");
    assert!(lines.len() > 5, "{lines:?}");
    for (page, line) in lines {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let verb: &[&str] = match words.as_slice() {
            [] | [_] => continue,
            [_, noun @ ("plan" | "item" | "substep" | "worktree" | "snapshot"), sub, ..] => {
                &[noun, sub]
            }
            [_, verb, ..] => &[verb],
        };
        let help = sandbox.piton(verb).arg("--help").output();
        assert_eq!(help.code, Some(0), "{}: {line}\n{help}", page.display());
        for flag in words.iter().filter(|word| word.starts_with('-')) {
            let flag = flag.split('=').next().unwrap_or_default();
            assert!(help.stdout.contains(flag), "{}: {line}: no {flag}", page.display());
        }
    }
}

#[test]
fn the_readme_has_two_commands_and_ci_runs_exactly_those() {
    let (readme, ci) = (read("README.md"), read(".ci/run"));
    for command in ["cargo run --release -- demo", "sh scripts/test"] {
        let shown = fenced(&readme, "sh").iter().any(|block| block.lines().any(|l| l == command));
        assert!(shown, "README.md does not show: {command}");
        assert!(ci.lines().any(|line| line == command), ".ci/run does not run: {command}");
    }
    sandbox().piton(&["demo", "--help"]).output().success();
}

/// Every `name_of_a_test` and `file.rs` in the table of promises.
#[test]
fn promises_name_tests_that_exist() {
    let page = read("docs/promises.md");
    let (mut tests, mut files) = (String::new(), BTreeSet::new());
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the workspace") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                tests.push_str(&fs::read_to_string(&path).expect("a source file is text"));
                files.extend(path.file_name().and_then(|name| name.to_str()).map(str::to_owned));
            }
        }
    }
    let rows = page.lines().filter(|line| line.starts_with("| P"));
    let words: Vec<&str> = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    let is_test = |word: &&&str| word.matches('_').count() > 1 && !word.contains(' ');
    assert!(words.iter().filter(is_test).count() > 5, "{words:?}");
    for word in words {
        if word.ends_with(".rs") {
            assert!(files.contains(word), "docs/promises.md: there is no {word}");
        } else if is_test(&&word) {
            assert!(tests.contains(&format!("fn {word}(")), "docs/promises.md: no test {word}");
        }
    }
}

/// The anchors of a page's headings, as they are made of their words.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|sign| sign.is_alphanumeric() || "-_".contains(*sign)).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|part| part.split(')').next()) {
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            if target.contains("://") {
                continue;
            }
            let path = match target {
                "" => root().join(&page),
                target => root().join(&page).with_file_name(target),
            };
            let there =
                path.exists() && (anchor.is_empty() || anchors(&read(&path)).contains(anchor));
            if !there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The first two shell blocks of docs/agents.md, run by a shell that stops at the first refusal.
#[test]
fn the_session_of_the_agents_page_runs() {
    let page = read("docs/agents.md");
    let sandbox = sandbox();
    sandbox.write("plan.toml", &fenced(&page, "toml")[0]);
    sandbox.commit("the plan");
    let session = format!("set -e\n{}", fenced(&page, "sh")[..2].concat());
    let out = sandbox.command("sh").args(["-c", &session]).output().expect("sh runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let shown = String::from_utf8_lossy(&out.stdout);
    let wanted = [
        "; 1 to go",
        "export const validateToken = 1",
        "routes: released",
        "claimed again routes",
        "step routes: failed",
        "reported: 40 %, note expiry comes next",
        "the step was completed with it",
    ];
    for text in wanted {
        assert!(shown.contains(text), "no {text:?} in\n{shown}");
    }
    let kept = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
    for (step, file) in [("jwt", "auth.ts"), ("routes", "routes.ts")] {
        let name = kept.lines().find(|name| name.contains(&format!("/{step}/"))).expect(step);
        let text = sandbox.git(&["cat-file", "blob", &format!("{name}:{file}")]);
        assert!(text.starts_with("export const"), "{text}");
    }
}

/// The rows of the table about answers: the verb in front, every name that follows.
fn answers_documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = read("docs/agents.md");
    let section = page.split("## What the verbs answer").nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let mut names = row.split('`').skip(1).step_by(2).map(str::to_owned);
        let verb = names.next().expect("a verb");
        all.entry(verb).or_default().extend(names);
    }
    all
}

#[test]
fn what_the_verbs_answer_is_documented_and_nothing_else() {
    let documented = answers_documented();
    let sandbox = sandbox();
    let plan = "[plan]\nname = 'x'\n[[step]]\nid = 'a'\nprompt = 'p'\nitems = ['i']\n\
                substeps = [{ id = 's', title = 's' }]\n[[step]]\nid = 'b'\n";
    sandbox.write("plan.toml", plan);
    sandbox.commit("the plan");
    let tree = data(&sandbox, &["worktree", "create", "plan.toml", "a"])["path"].clone();
    let tree = tree.as_str().expect("a path");
    sandbox.write(format!("{tree}/half.txt"), "half\n");
    let session = "open PLAN; worktree create PLAN a; ready PLAN; claim PLAN --step a --worktree TREE; \
                   claim PLAN --step a --worktree . --force; claim PLAN --step a --worktree TREE; \
                   claim PLAN --step a --worktree TREE --force; start PLAN a --worktree TREE; \
                   heartbeat PLAN a --worktree TREE; checkpoint PLAN a --worktree TREE --note n; \
                   check PLAN a 1 --done --worktree TREE; item add PLAN a gap --worktree TREE; \
                   substep complete PLAN a s --worktree TREE; release PLAN a --worktree TREE; \
                   claim PLAN --step b --worktree TREE; \
                   fail PLAN b --worktree TREE --reason r; skip PLAN b --reason r; reset PLAN b; \
                   stop PLAN; ready PLAN; \
                   claim PLAN --worktree TREE; resume; claim PLAN --step a --worktree TREE; \
                   complete PLAN a --worktree TREE --force --reason r";
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for line in session.split("; ") {
        let words: Vec<&str> = line.split(' ').collect();
        let args = words.iter().map(|word| match *word {
            "PLAN" => "plan.toml",
            "TREE" => tree,
            word => word,
        });
        let answer = data(&sandbox, &args.collect::<Vec<_>>());
        let verb = documented.keys().find(|verb| line.starts_with(&format!("{verb} ")));
        if let (Some(verb), Some(fields)) = (verb, answer.as_object()) {
            seen.entry(verb).or_default().extend(fields.keys().cloned());
        }
    }
    let everywhere = ["run", "handle", "step"].map(str::to_owned);
    // What a row of a list has, and what only trouble or a long plan brings.
    let rare = ["step", "title", "index", "why", "unkept", "blocked_more", "passed_over"];
    let rare = rare.map(str::to_owned);
    for (verb, names) in &documented {
        let answered = &seen[verb.as_str()];
        let secret: Vec<_> = answered
            .iter()
            .filter(|name| !names.contains(*name) && !everywhere.contains(name))
            .collect();
        assert!(secret.is_empty(), "{verb} answers {secret:?}, which is not documented");
        let missing: Vec<_> =
            names.iter().filter(|name| !answered.contains(*name) && !rare.contains(name)).collect();
        assert!(missing.is_empty(), "{verb} does not answer {missing:?}");
    }
}

/// Puts the example's plan into a sandbox as its README says.
fn hello() -> Sandbox {
    let sandbox = sandbox();
    sandbox.write("hello.toml", &read("examples/hello/plan.toml"));
    sandbox.commit("the plan");
    sandbox
}

#[test]
fn the_hello_example_runs() {
    let sandbox = hello();
    sandbox.piton(&["plan", "check", "hello.toml"]).output().success();
    let run = ["run", "hello.toml", "--trust", "--set", "who=there", "--json"];
    let out = sandbox.piton(&run).output().success().json();
    assert_eq!(out["status"], "ok");
    let view = &out["data"]["run"];
    assert_eq!((&view["status"], &view["completed"]), (&"completed".into(), &3.into()));
    let branch = view["branch"].as_str().expect("the run's branch");
    assert_eq!(sandbox.git(&["show", &format!("{branch}:hello.txt")]), "Hello, there!");
    assert_eq!(sandbox.git(&["show", &format!("{branch}:shout.txt")]), "HELLO, THERE!");
    assert_eq!(sandbox.git(&["status", "--porcelain"]), "", "the user's own tree is as it was");
    sandbox.wait_no_processes();
}

#[test]
fn the_loop_example_runs() {
    let sandbox = sandbox();
    sandbox.write("loop.toml", &read("examples/loop/plan.toml"));
    sandbox.commit("the plan");
    let shown = sandbox.piton(&["plan", "show", "loop.toml"]).output().success().stdout;
    assert!(shown.contains("loop improve: review → implement → lint, at most 10 times"), "{shown}");
    let out = sandbox.piton(&["run", "loop.toml", "--trust", "--json"]).output().success().json();
    let view = &out["data"]["run"];
    assert_eq!((&view["status"], &view["loops"][0]["iteration"]), (&"completed".into(), &3.into()));
    let branch = view["branch"].as_str().expect("the run's branch");
    assert_eq!(sandbox.git(&["show", &format!("{branch}:report.txt")]), "3");
    sandbox.wait_no_processes();
}
