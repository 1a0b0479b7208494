//! What is looked at before a run starts, so that it is not found out hours later. Nothing is executed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;

use piton_core::ids::{AgentName, StepId};
use piton_core::plan::{Plan, Work, agent_of};
use piton_git::repo::names;
use piton_git::repo::status::StatusDepth;
use piton_git::worktree::Worktree;

use crate::config::Settings;
use crate::project::Project;

/// A run of many worktrees and snapshots wants more than this.
const SPACE_MIN: u64 = 1 << 30;
/// Paths that are named, at most.
const NAMED_MAX: usize = 3;
/// Words of the shell that are no programs, and programs that every system has.
const OF_THE_SHELL: [&str; 32] = [
    ".", ":", "[", "alias", "case", "cd", "command", "echo", "eval", "exec", "exit", "export",
    "false", "for", "getopts", "if", "printf", "pwd", "read", "readonly", "return", "set", "shift",
    "test", "trap", "true", "type", "ulimit", "umask", "unset", "until", "while",
];

/// Something that a run of the plan would meet here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hindrance {
    /// An agent's program is not there: its steps wait until it is.
    NoAgent {
        agent: AgentName,
        program: String,
    },
    /// Commands or checks of these steps begin with a program that is not there.
    NoProgram {
        program: String,
        steps: Vec<StepId>,
    },
    /// Changes that are in no commit, and so in no worktree that an agent works in.
    Uncommitted {
        count: usize,
        named: Vec<String>,
    },
    LittleSpace {
        free: u64,
    },
}

/// What a run of this plan file would meet on this machine and, if one is given, in this repository.
pub fn preflight(
    plan: (&Plan, &Path),
    settings: &Settings,
    project: Option<&Project>,
) -> Vec<Hindrance> {
    let (plan, file) = plan;
    let mut found = missing_agents(plan, settings);
    found.extend(missing_programs(plan));
    if let Some(project) = project {
        // The work begins at another commit than the one that is checked out here.
        if plan.base.is_none() {
            found.extend(uncommitted(project, file));
        }
        found.extend(little_space(project.git.main_root()));
    }
    found
}

/// A program that is named relative to the worktree may come with it.
fn missing_agents(plan: &Plan, settings: &Settings) -> Vec<Hindrance> {
    let named: BTreeSet<&AgentName> =
        plan.steps.iter().filter_map(|step| step.work.agent()).collect();
    let missing = named.into_iter().filter_map(|name| {
        let agent = agent_of(plan, &settings.agents, name)?;
        let program = agent.command.first()?;
        let there = match program.contains('/') {
            true => Path::new(program).is_relative() || Path::new(program).is_file(),
            false => program_in(&path_of(&agent.env), program),
        };
        (!there).then(|| Hindrance::NoAgent { agent: name.clone(), program: program.clone() })
    });
    missing.collect()
}

fn missing_programs(plan: &Plan) -> Vec<Hindrance> {
    let mut missing: BTreeMap<&str, Vec<StepId>> = BTreeMap::new();
    for step in plan.steps.iter() {
        let path = path_of(&step.env);
        let command = match &step.work {
            Work::Run(command) => Some(command),
            _ => None,
        };
        let texts = command.into_iter().chain(&step.verify);
        let programs: BTreeSet<&str> = texts.filter_map(|text| program_of(text)).collect();
        for program in programs.into_iter().filter(|program| !program_in(&path, program)) {
            missing.entry(program).or_default().push(step.id.clone());
        }
    }
    let missing_in = |(program, steps): (&str, Vec<StepId>)| Hindrance::NoProgram {
        program: program.to_owned(),
        steps,
    };
    missing.into_iter().map(missing_in).collect()
}

/// The program that a text for the shell begins with, if that is plain to see.
fn program_of(text: &str) -> Option<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-+.".contains(c);
    let is_assignment =
        |word: &&str| word.split_once('=').is_some_and(|(name, _)| name.chars().all(is_name));
    let word = text.split_whitespace().find(|word| !is_assignment(word))?;
    (word.chars().all(is_name) && !OF_THE_SHELL.contains(&word)).then_some(word)
}

fn path_of(env: &BTreeMap<String, String>) -> OsString {
    let own = env.get("PATH").map(OsString::from);
    own.or_else(|| std::env::var_os("PATH")).unwrap_or_default()
}

/// Whether a program is in one of the folders of a `PATH`.
pub(crate) fn program_in(path: &OsStr, program: &str) -> bool {
    std::env::split_paths(path).any(|folder| folder.join(program).is_file())
}

/// The plan itself is read where it lies, and piton's own folder is not work.
fn uncommitted(project: &Project, plan: &Path) -> Option<Hindrance> {
    let here = Worktree::at(&project.git, project.git.here());
    let seen = here.status(StatusDepth::Files).ok()?;
    let plan = std::fs::canonicalize(plan).ok();
    let is_work = |path: &&[u8]| {
        let own = path.starts_with(b".piton/") || *path == b"piton.toml";
        !own && std::fs::canonicalize(here.path().join(names::path(path))).ok() != plan
    };
    let changed = seen.tracked.iter().map(|entry| entry.path.as_slice());
    let paths = changed.chain(seen.untracked.iter().map(Vec::as_slice)).filter(is_work);
    let paths: Vec<String> = paths.map(names::shown).collect();
    let named = paths.iter().take(NAMED_MAX).cloned().collect();
    (!paths.is_empty()).then_some(Hindrance::Uncommitted { count: paths.len(), named })
}

fn little_space(place: &Path) -> Option<Hindrance> {
    let space = rustix::fs::statvfs(place).ok()?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    (free < SPACE_MIN).then_some(Hindrance::LittleSpace { free })
}

#[cfg(test)]
mod tests {
    use super::program_of;

    #[test]
    fn only_what_is_plainly_a_program_is_looked_for() {
        let check =
            |text: &str, program: Option<&str>| assert_eq!(program_of(text), program, "{text}");
        check("cargo test --locked", Some("cargo"));
        check("  RUST_LOG=debug CI=1 cargo test", Some("cargo"));
        check("python3.12 -m pytest", Some("python3.12"));
        check("test -e done", None);
        check("./check.sh", None);
        check("$RUNNER test", None);
        check("(cd web && npm test)", None);
        check("CI=1", None);
        check("", None);
    }
}
