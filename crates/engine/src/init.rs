//! A first plan for a repository, from what is found on this machine and in the repository: an agent
//! in `PATH`, and how the project is tested. It looks and writes one file, which must not exist; it
//! runs nothing.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use piton_core::agent::all_built_in;
use piton_core::plan::Plan;

use crate::error::EngineError;
use crate::project::Project;
use crate::run::plan_file::check_inside;
use crate::run::preflight::program_in;

/// The built-in agents, in the order in which they are looked for.
pub const LOOKED_FOR: &[&str] = &[
    "claude", "codex", "gemini", "opencode", "qwen", "cursor", "amp", "copilot", "goose", "aider",
];

/// What tells how a project is tested: a file in its root, a word in it, the command.
const CHECKS: &[(&str, &str, &str)] = &[
    ("Cargo.toml", "", "cargo test"),
    ("package.json", "\"test\"", "npm test"),
    ("go.mod", "", "go test ./..."),
    ("pyproject.toml", "pytest", "python3 -m pytest"),
    ("mix.exs", "", "mix test"),
    ("pom.xml", "", "mvn -q test"),
    ("Gemfile", "rspec", "bundle exec rspec"),
    ("Makefile", "\ntest:", "make test"),
];

/// More of a file than this is not read for a word.
const LOOK_BYTES: u64 = 1 << 20;

/// What was found to make a plan of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTools {
    /// The plan's name.
    name: String,
    pub agent: Option<&'static str>,
    pub check: Option<&'static str>,
}

/// Looks for an agent (the one that is asked for, wherever its program may be) and for a check.
pub fn look(root: &Path, path: Option<&OsStr>, asked: Option<&str>) -> FoundTools {
    let path = path.unwrap_or_default();
    let agent_in_path = |name: &&str| {
        let agent = all_built_in().iter().find(|(known, _)| known.as_str() == *name);
        agent.is_some_and(|(_, agent)| program_in(path, &agent.command[0]))
    };
    let wanted = |name: &&str| asked.map_or_else(|| agent_in_path(name), |asked| asked == *name);
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let name = name.chars().filter(|c| !c.is_control()).take(100).collect::<String>();
    FoundTools {
        name: if name.trim().is_empty() { "work".to_owned() } else { name },
        agent: LOOKED_FOR.iter().copied().find(wanted),
        check: CHECKS.iter().find(|check| is_checked(root, check)).map(|(_, _, command)| *command),
    }
}

fn is_checked(root: &Path, (file, word, _): &(&str, &str, &str)) -> bool {
    use std::io::Read as _;
    let path = root.join(file);
    if !fs::metadata(&path).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let mut text = String::from("\n");
    let read = File::open(&path).and_then(|file| file.take(LOOK_BYTES).read_to_string(&mut text));
    read.is_ok() && text.contains(word)
}

/// Writes the plan; a file that is there stays as it is.
pub fn write(project: &Project, path: &Path, found: &FoundTools) -> Result<Plan, EngineError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    check_inside(project, folder.unwrap_or(Path::new(".")))?;
    let text = found.plan(path);
    let plan = piton_formats::parse(text.as_bytes())
        .map_err(|source| EngineError::Plan { path: path.to_owned(), source })?;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => EngineError::PlanThere { path: path.to_owned() },
        _ => EngineError::Io { what: format!("cannot write {}", path.display()), source },
    };
    let mut file = File::options().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok(plan)
}

impl FoundTools {
    fn plan(&self, path: &Path) -> String {
        let file = path.file_name().map(PathBuf::from).unwrap_or_default();
        let head = HEAD.replace("{file}", &file.to_string_lossy());
        let name = toml::Value::String(self.name.clone());
        match &self.agent {
            Some(agent) => {
                let verify = match self.check {
                    Some(check) => format!("verify  = {}\n", toml::Value::from(check)),
                    None => "# verify  = \"make test\"   # what must pass on the step's commit\n"
                        .to_owned(),
                };
                format!(
                    "{head}\n[plan]\nname  = {name}\nagent = \"{agent}\"\n\n\
                     {LOOK_STEP}\n{TEST_STEP}{verify}"
                )
            }
            None => {
                let run = toml::Value::from(self.check.unwrap_or("git ls-files > files.txt"));
                format!(
                    "{head}\n[plan]\nname = {name}\n\n[[step]]\nid  = \"check\"\nrun = {run}\n{NO_AGENT}"
                )
            }
        }
    }
}

const HEAD: &str = "\
# A plan for piton: steps that shall get done, whatever dies on the way.
#
#   piton plan check {file}    every mistake, with line and remedy
#   piton run {file}           shows what it would execute and asks, once
#   piton resume                 goes on after any interruption
";

const LOOK_STEP: &str = r#"# The two steps are examples that any repository can use: put in your own.
[[step]]
id     = "look"
title  = "Notes on this repository"
prompt = """
Read this repository and write NOTES.md: what it is, how it is built and tested, and the three places
where a mistake would hurt most and no test would notice.
"""
"#;

const TEST_STEP: &str = r#"[[step]]
id      = "test"
title   = "A test for the most fragile place"
needs   = ["look"]
prompt  = "Take the first of the three places in NOTES.md and add a test for it. Change nothing else."
timeout = "1h"
retries = 1
"#;

const NO_AGENT: &str = r#"
# A step of an agent looks like this; name the program you use:
#
# [agent.mine]
# command = ["my-agent", "--headless"]   # gets the prompt on standard input
#
# [[step]]
# id     = "write"
# agent  = "mine"
# prompt = "Write a test for the most fragile place of this repository."
# verify = "make test"                   # what must pass on the step's commit
"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is found, the plan that is made of it is one.
    #[test]
    fn every_plan_is_sound() {
        let checks = CHECKS.iter().map(|(_, _, command)| Some(*command)).chain([None]);
        for check in checks {
            for agent in LOOKED_FOR.iter().map(|agent| Some(*agent)).chain([None]) {
                let found = FoundTools { name: "a \"b\" \\ \u{e9}".to_owned(), agent, check };
                let text = found.plan(Path::new("plan.toml"));
                let plan =
                    piton_formats::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{text}"));
                assert_eq!(plan.name, found.name);
                assert_eq!(plan.steps.len(), if agent.is_some() { 2 } else { 1 });
            }
        }
    }

    #[test]
    fn every_built_in_agent_is_looked_for() {
        let mut looked_for = LOOKED_FOR.to_vec();
        looked_for.sort_unstable();
        let known: Vec<&str> = all_built_in().keys().map(|name| name.as_str()).collect();
        assert_eq!(looked_for, known);
    }

    #[test]
    fn a_project_is_tested_as_its_files_say() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |name: &str, text: &str| fs::write(root.path().join(name), text).expect(name);
        let found = || look(root.path(), None, None);
        assert_eq!((found().check, found().agent), (None, None));
        at("package.json", r#"{"scripts": {"build": "x"}}"#);
        assert_eq!(found().check, None, "it has no tests");
        at("Makefile", "all:\n\ntest: all\n");
        assert_eq!(found().check, Some("make test"));
        at("package.json", r#"{"scripts": {"test": "x"}}"#);
        assert_eq!(found().check, Some("npm test"));
    }
}
