//! Looks for trespass: house rules that no type and no lint can hold. Each test says what it found and
//! where; the remedy is to move the code to where its permission is, not to add an exception.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A source file of the workspace, by its path from the root.
struct Source {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    let root = root();
    let mut folders = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the workspace") {
            let path = entry.expect("an entry of the workspace").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).expect("a source file is text");
                let path = path.strip_prefix(&root).expect("below the root").display().to_string();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "the sources were not found: {}", found.len());
    found
}

impl Source {
    fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// The folder of its crate.
    fn crate_name(&self) -> &str {
        self.path.split('/').nth(1).unwrap_or_default()
    }

    /// Shipped code: not the testkit, not a test.
    fn is_product(&self) -> bool {
        self.path.contains("/src/")
            && !self.is_in(&["crates/testkit/"])
            && !self.path.ends_with("/tests.rs")
            && !self.path.contains("/tests/")
    }

    /// The code without its unit tests, which stand last.
    fn code(&self) -> &str {
        self.text.split("#[cfg(test)]\nmod ").next().unwrap_or_default()
    }

    /// Lines of `text` that contain any of these, as `path:line: text`; comments do not count.
    fn lines_with(&self, text: &str, wanted: &[&str]) -> Vec<String> {
        let lines = text.lines().enumerate();
        let said = |line: &str| wanted.iter().any(|word| line.contains(word));
        lines
            .filter(|(_, line)| !line.trim_start().starts_with("//") && said(line))
            .map(|(number, line)| format!("{}:{}: {}", self.path, number + 1, line.trim()))
            .collect()
    }
}

#[track_caller]
fn none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// Fails where any of `words` stands in shipped code outside of `homes`; and where it stands in none of
/// them, because then the rule looks for something that is gone.
#[track_caller]
fn only_at_home(what: &str, words: &[&str], homes: &[&str]) {
    let sources = sources();
    let (at_home, elsewhere): (Vec<&Source>, Vec<&Source>) =
        sources.iter().filter(|source| source.is_product()).partition(|source| source.is_in(homes));
    let lines = |sources: Vec<&Source>| -> Vec<String> {
        sources.into_iter().flat_map(|source| source.lines_with(source.code(), words)).collect()
    };
    assert!(!lines(at_home).is_empty(), "{words:?} is not even in {homes:?}");
    none(what, lines(elsewhere));
}

#[test]
fn only_the_runner_starts_git() {
    let homes = ["crates/git/src/repo.rs", "crates/git/src/repo/"];
    only_at_home(
        "git is started outside of its runner",
        &["new(\"git\")", "join(\"git\")"],
        &homes,
    );
}

#[test]
fn only_the_appender_writes_to_a_store() {
    let homes = ["crates/store/", "crates/engine/src/run/log.rs"];
    for word in [".transact(", ".create_run("] {
        only_at_home("a store is written to without the appender", &[word], &homes);
    }
}

#[test]
fn only_a_few_places_start_processes() {
    let may = [
        "crates/engine/src/attempt/child.rs",
        "crates/git/src/repo/call.rs",
        "crates/engine/src/worker.rs",
        "crates/engine/src/worker/",
        "crates/engine/src/demo.rs",
        "crates/engine/src/pager.rs",
        // Without /proc, `ps` is the way to see processes.
        "crates/engine/src/machine/macos.rs",
    ];
    let words = ["process::Command", "process::{Command", "process::{Child, Command"];
    only_at_home("processes are started outside of the spawners", &words, &may);
}

#[test]
fn the_core_can_only_compute() {
    let manifest = fs::read_to_string(root().join("crates/core/Cargo.toml")).expect("the manifest");
    let section = manifest.split("[dependencies]\n").nth(1).expect("[dependencies]");
    let section = section.split("\n[").next().unwrap_or_default();
    let lines = section.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let found: Vec<&str> = lines.collect();
    let pure =
        ["blake3", "fixedbitset", "jiff", "postcard", "serde", "serde_json", "thiserror", "uuid"];
    let trespass = found.iter().filter(|line| {
        // Without features of its own: `uuid` would bring randomness, others a clock.
        !pure.iter().any(|name| **line == format!("{name}.workspace = true"))
    });
    none("dependencies of the core", trespass.map(|line| line.to_string()).collect());

    let words = ["std::fs", "std::net", "std::process", "std::env", "SystemTime", "Instant::"];
    let trespass = sources()
        .iter()
        .filter(|source| source.is_product() && source.is_in(&["crates/core/"]))
        .flat_map(|source| source.lines_with(source.code(), &words))
        .collect();
    none("the core reaches for the machine", trespass);
}

#[test]
fn every_file_opens_by_saying_what_it_owns() {
    let silent = sources()
        .iter()
        .filter(|source| source.path.contains("/src/") && !source.text.starts_with("//! "))
        .filter(|source| !source.path.ends_with("/tests.rs"))
        .map(|source| source.path.clone())
        .collect();
    none("files that do not open with a paragraph (`//! …`)", silent);
}

#[test]
fn nothing_is_left_for_later() {
    // Written in halves, so that this file does not find itself.
    let words = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("#[ig", "nore")];
    let found =
        sources().iter().flat_map(|source| source.lines_with(&source.text, &words)).collect();
    none("unfinished code or ignored tests", found);
}

/// The name that a line defines, if it defines a type.
fn defined(line: &str) -> Option<&str> {
    let visible = ["pub ", "pub(crate) ", "pub(super) "];
    let rest = visible.iter().find_map(|word| line.strip_prefix(word)).unwrap_or(line);
    let rest = ["struct ", "enum ", "trait "].iter().find_map(|word| rest.strip_prefix(word))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

#[test]
fn types_are_things_not_doers() {
    let doers =
        ["Manager", "Service", "Helper", "Handler", "Coordinator", "Orchestrator", "Utils", "Util"];
    let mut found = Vec::new();
    for source in sources() {
        for line in source.text.lines() {
            if let Some(name) = defined(line.trim_start())
                && doers.iter().any(|doer| name.ends_with(doer))
            {
                found.push(format!("{}: {name}", source.path));
            }
        }
    }
    none("types named after doers; see docs/glossary.md", found);
}

#[test]
fn a_type_name_is_defined_once_in_a_crate_and_a_public_one_once() {
    let mut places: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let sources = sources();
    // One file per operating system defines the same ones, and every verb has its `Args`.
    let product = sources.iter().filter(|source| source.is_product());
    for source in product.filter(|source| !source.path.ends_with("/macos.rs")) {
        for line in source.code().lines() {
            if let Some(name) = defined(line.trim_start())
                && name != "Args"
            {
                places.entry((source.crate_name(), name)).or_default().push(&source.path);
                if line.starts_with("pub ") {
                    places.entry(("all crates", name)).or_default().push(&source.path);
                }
            }
        }
    }
    let twice = places
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|((within, name), places)| format!("{name} in {within}: {}", places.join(", ")))
        .collect();
    none("one word, one meaning: types of the same name", twice);
}

/// Which top-level modules of a crate name which others.
fn edges(sources: &[Source], name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let of_crate = |source: &&Source| source.is_product() && source.crate_name() == name;
    let module = |source: &Source| {
        let path = source.path.split("/src/").nth(1).expect("a file of the crate");
        path.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned()
    };
    let names: BTreeSet<String> = sources.iter().filter(of_crate).map(module).collect();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources.iter().filter(of_crate) {
        let (from, code) = (module(source), source.code());
        if from == "lib" || from == "main" {
            continue;
        }
        for (at, _) in code.match_indices("crate::") {
            let rest = &code[at + "crate::".len()..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let to = &rest[..end];
            if names.contains(to) && to != from {
                edges.entry(from.clone()).or_default().insert(to.to_owned());
            }
        }
    }
    edges
}

/// Modules from which a module leads back to itself.
fn on_a_cycle(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let leads_back = |start: &&String| {
        let mut seen: BTreeSet<&String> = BTreeSet::new();
        let mut left: Vec<&String> = edges[*start].iter().collect();
        while let Some(at) = left.pop() {
            if seen.insert(at) {
                left.extend(edges.get(at).into_iter().flatten());
            }
        }
        seen.contains(*start)
    };
    edges.keys().filter(leads_back).cloned().collect()
}

#[test]
fn modules_are_in_one_direction() {
    let sources = sources();
    for name in ["core", "store", "git", "formats", "engine", "piton"] {
        let edges = edges(&sources, name);
        assert!(edges.len() > 1, "the modules of {name} were not found: {edges:?}");
        none(&format!("modules of {name} that lead back to themselves"), on_a_cycle(&edges));
    }
}

#[test]
fn git_knows_no_run_no_log_and_no_store() {
    let manifest = fs::read_to_string(root().join("crates/git/Cargo.toml")).expect("the manifest");
    let named = manifest.lines().filter(|line| line.starts_with("piton-"));
    assert_eq!(named.collect::<Vec<_>>(), ["piton-core.workspace = true"]);
    let words = ["piton_core::run", "piton_core::decide", "piton_core::record", "piton_core::plan"];
    let sources = sources();
    let git = sources.iter().filter(|source| source.is_product() && source.crate_name() == "git");
    let found = git.flat_map(|source| source.lines_with(source.code(), &words)).collect();
    none("the git crate knows more than git", found);
}

#[test]
fn formats_touch_nothing_but_bytes() {
    let manifest =
        fs::read_to_string(root().join("crates/formats/Cargo.toml")).expect("a manifest");
    let named = manifest.lines().filter(|line| line.starts_with("piton-"));
    assert_eq!(named.collect::<Vec<_>>(), ["piton-core.workspace = true"]);
    let words = ["std::fs", "std::net", "std::process", "std::env", "SystemTime", "Instant::"];
    let sources = sources();
    let formats =
        sources.iter().filter(|source| source.is_product() && source.crate_name() == "formats");
    let found = formats.flat_map(|source| source.lines_with(source.code(), &words)).collect();
    none("a format reaches for the machine", found);
}

#[test]
fn every_crash_point_is_listed() {
    let listed = fs::read_to_string(root().join("crates/testkit/src/crash.rs")).expect("the list");
    let sources = sources();
    let mut passed = BTreeSet::new();
    for source in sources.iter().filter(|source| source.is_product()) {
        for part in source.code().split("crash::point(\"").skip(1) {
            passed.extend(part.split('"').next());
        }
    }
    assert!(passed.len() > 50, "the points were not found: {passed:?}");
    let unlisted = passed.iter().filter(|point| !listed.contains(&format!("(\"{point}\", Who::")));
    none("crash points that no campaign knows", unlisted.map(|point| point.to_string()).collect());
}

#[test]
fn nothing_below_the_surface_names_its_commands() {
    let sources = sources();
    let verbs = sources.iter().filter_map(|source| {
        source.path.strip_prefix("crates/piton/src/verb/")?.strip_suffix(".rs")
    });
    let words: Vec<String> =
        verbs.flat_map(|verb| [format!("`piton {verb}"), format!("\"piton {verb}")]).collect();
    assert!(words.len() > 60, "the verbs were not found: {words:?}");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let below = sources.iter().filter(|source| source.is_product());
    // What an agent reads in its prompt is what it can call.
    let below = below.filter(|source| source.path != "crates/core/src/brief.rs");
    let below = below.filter(|source| source.crate_name() != "piton");
    let found = below.flat_map(|source| source.lines_with(source.code(), &words)).collect();
    none("commands of the surface below it; errors carry a `Remedy`", found);
}

/// The string literals of a source, each with its line; comments and characters are passed over.
fn literals(code: &str) -> Vec<(usize, String)> {
    let (mut found, mut rest, mut line) = (Vec::new(), code, 1);
    while let Some(at) = rest.find(['"', '/', '\'', '\n']) {
        let (sign, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        let raw = rest[..at].trim_end_matches('#');
        let hashes = "#".repeat(at - raw.len());
        rest = match sign {
            b'\n' => {
                line += 1;
                after
            }
            b'/' if after.starts_with('/') => after.find('\n').map_or("", |end| &after[end..]),
            b'\'' => after.strip_prefix("\"'").unwrap_or(after),
            b'"' => {
                let end = match raw.ends_with('r') {
                    true => after.find(&format!("\"{hashes}")).unwrap_or(after.len()),
                    false => {
                        let mut escaped = false;
                        let is_end = |(_, sign): &(usize, char)| {
                            let end = *sign == '"' && !escaped;
                            escaped = *sign == '\\' && !escaped;
                            end
                        };
                        after.char_indices().find(is_end).map_or(after.len(), |(end, _)| end)
                    }
                };
                let text = &after[..end];
                found.push((line, text.to_owned()));
                line += text.matches('\n').count();
                after.get(end + 1..).unwrap_or_default()
            }
            _ => after,
        };
    }
    found
}

/// Texts for people have the thing as their subject, and the usual word.
#[test]
fn texts_for_people_are_plain_english() {
    // Written in halves, so that this file does not find itself.
    let words = [concat!("to", "ld"), concat!("no", "body"), concat!("some", "body"), "whoever"];
    let said = |text: &str| {
        let text = text.to_lowercase();
        text.split(|sign: char| !sign.is_alphanumeric() && sign != '_')
            .any(|word| words.contains(&word))
    };
    assert!(said("Nobody waits.") && !said("the_next_attempt_is_told_once"));
    let sample = "say(\"a \\\" b\"); // \"no\"\n'\"'; r#\"c \" d\"#";
    assert_eq!(literals(sample), [(1, "a \\\" b".to_owned()), (2, "c \" d".to_owned())]);
    let mut found = Vec::new();
    let (mut texts, sources) = (0, sources());
    let shown = |source: &&Source| {
        source.is_product() && !source.is_in(&["crates/store/src/conformance.rs"])
    };
    for source in sources.iter().filter(shown) {
        for (line, text) in literals(source.code()) {
            texts += 1;
            let bad = text.lines().enumerate().filter(|(_, text)| said(text));
            found.extend(bad.map(|(n, text)| format!("{}:{}: {text}", source.path, line + n)));
        }
    }
    assert!(texts > 4000, "the texts were not found: {texts}");
    // The help is in docs/cli.md.
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the documentation") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => pages.push(path),
            }
        }
    }
    for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = fs::read_to_string(page).expect("a page is text");
        let bad = text.lines().enumerate().filter(|(_, line)| said(line));
        found.extend(bad.map(|(n, line)| format!("{}:{}: {line}", page.display(), n + 1)));
    }
    none("told, nobody, somebody, whoever: say who or what does it", found);
}

#[test]
fn tests_wait_for_conditions_not_for_time() {
    let may = [
        "crates/testkit/src/wait.rs",
        "crates/testkit/src/bin/fake-agent/",
        // It kills at many moments: the moment is the test, nothing is waited for.
        "crates/store/tests/store/writers.rs",
    ];
    // Written in halves, so that this file does not find itself.
    let words = [concat!("thread::", "sleep"), concat!("sleep_", "until(")];
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| !source.is_in(&may)) {
        let tests = match source.is_product() {
            true => source.text.strip_prefix(source.code()).unwrap_or_default(),
            false => &source.text,
        };
        found.extend(source.lines_with(tests, &words));
    }
    none("sleeping outside of the wait helpers", found);
}
