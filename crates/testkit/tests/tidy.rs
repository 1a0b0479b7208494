//! Looks for trespass: house rules that no type and no lint can hold. Each test says what it found and
//! where; the remedy is to move the code to where its permission is, not to add an exception.

use std::collections::BTreeMap;
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
    let homes = ["crates/engine/src/git.rs", "crates/engine/src/git/"];
    only_at_home("git is started outside of its runner", &["new(\"git\")"], &homes);
}

#[test]
fn only_the_appender_writes_to_a_store() {
    let homes = ["crates/store/", "crates/engine/src/log.rs"];
    for word in [".transact(", ".create_run("] {
        only_at_home("a store is written to without the appender", &[word], &homes);
    }
}

#[test]
fn only_a_few_places_start_processes() {
    let may = [
        "crates/engine/src/child.rs",
        "crates/engine/src/git/call.rs",
        "crates/engine/src/worker.rs",
        "crates/engine/src/demo.rs",
        // Without /proc, `ps` is the way to see processes.
        "crates/engine/src/machine_macos.rs",
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
    let pure = [
        "blake3",
        "fixedbitset",
        "jiff",
        "postcard",
        "serde",
        "serde_json",
        "thiserror",
        "toml",
        "uuid",
    ];
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

/// The name that a line defines, if it defines a type; and whether it is public.
fn defined(line: &str) -> Option<(&str, bool)> {
    let (rest, public) = match line.strip_prefix("pub ") {
        Some(rest) => (rest, true),
        None => (line.strip_prefix("pub(crate) ").unwrap_or(line), false),
    };
    let rest = ["struct ", "enum ", "trait ", "type ", "union "]
        .iter()
        .find_map(|word| rest.strip_prefix(word))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some((&rest[..end], public)).filter(|(name, _)| !name.is_empty())
}

#[test]
fn types_are_things_not_doers() {
    let doers =
        ["Manager", "Service", "Helper", "Handler", "Coordinator", "Orchestrator", "Utils", "Util"];
    let mut found = Vec::new();
    for source in sources() {
        for line in source.text.lines() {
            if let Some((name, _)) = defined(line.trim_start())
                && doers.iter().any(|doer| name.ends_with(doer))
            {
                found.push(format!("{}: {name}", source.path));
            }
        }
    }
    none("types named after doers; see docs/glossary.md", found);
}

#[test]
fn a_public_name_is_defined_once() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let sources = sources();
    // A private module's public types are not names of the crate, and one file per operating system
    // defines the same ones.
    let product = sources.iter().filter(|source| source.is_product());
    for source in product.filter(|source| !source.path.ends_with("_macos.rs")) {
        for line in source.code().lines() {
            if let Some((name, true)) = defined(line) {
                places.entry(name.to_owned()).or_default().push(source.path.clone());
            }
        }
    }
    let twice = places
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| format!("{name}: {}", places.join(", ")))
        .collect();
    none("one word, one meaning: public types of the same name", twice);
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
