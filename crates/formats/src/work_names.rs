//! How other tools call the branches and worktrees that hold their work on a plan, and the files in a folder that
//! are plans. Names alone: whether there is such a thing is for others to look.

use std::path::Path;

use piton_core::plan::PlanFormat;

/// Files that are plans, in a folder that is named instead of one: the first that is there.
pub const PLAN_FILES: [&str; 9] = [
    "implementation_plan.json",
    "feature_list.json",
    "plan.toml",
    "plan.yaml",
    "plan.yml",
    "plan.json",
    "epic-config.json",
    "index.md",
    "plan.md",
];

/// Folders of a repository whose folders are specifications, each with a plan.
pub const SPEC_FOLDERS: [&str; 3] = [".auto-claude/specs", "auto-claude/specs", "specs"];

/// Patterns in which `*` stands for anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkNames {
    pub branches: Vec<String>,
    /// Of worktrees, relative to the repository.
    pub folders: Vec<String>,
}

/// What a tool calls its work on the plan at this path, relative to the repository.
pub fn work_names(format: PlanFormat, plan_path: &str) -> WorkNames {
    let path = Path::new(plan_path);
    let text =
        |part: Option<&std::ffi::OsStr>| part.and_then(|part| part.to_str()).map(str::to_owned);
    let named = |branches: &[String], folders: &[String]| WorkNames {
        branches: branches.to_vec(),
        folders: folders.to_vec(),
    };
    match format {
        PlanFormat::AutoClaude => {
            let Some(spec) = text(path.parent().and_then(Path::file_name)) else {
                return WorkNames::default();
            };
            let folders = [".worktrees", ".auto-claude/worktrees", ".auto-claude/worktrees/tasks"];
            let folders = folders.map(|folder| format!("{folder}/{spec}"));
            named(&[format!("auto-claude/{spec}")], &folders)
        }
        PlanFormat::Prodigy => named(&["prodigy-*".to_owned()], &[]),
        PlanFormat::Tug => {
            let Some(stem) = text(path.file_stem()) else { return WorkNames::default() };
            let slug = stem.strip_prefix("tugplan-").unwrap_or(&stem);
            let branches = ["tugplan", "tugtool", "tugdash"].map(|kind| format!("{kind}/{slug}*"));
            named(&branches, &[format!(".tugtree/*__{slug}*")])
        }
        PlanFormat::Epic => named(&["epic-*/sprint-*-wip".to_owned()], &[]),
        PlanFormat::Toml
        | PlanFormat::Yaml
        | PlanFormat::Json
        | PlanFormat::Markdown
        | PlanFormat::Specification => WorkNames::default(),
    }
}

impl WorkNames {
    pub fn is_branch(&self, name: &str) -> bool {
        self.branches.iter().any(|pattern| fits(pattern, name))
    }

    pub fn is_folder(&self, path: &str) -> bool {
        self.folders.iter().any(|pattern| fits(pattern, path))
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(head) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        match parts.peek() {
            None => return left.ends_with(part),
            Some(_) => match left.find(part) {
                Some(at) => left = &left[at + part.len()..],
                None => return false,
            },
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_call_their_work_so() {
        let check = |format, path: &str, name: &str, expected: bool| {
            let names = work_names(format, path);
            assert_eq!(names.is_branch(name) || names.is_folder(name), expected, "{path} {name}");
        };
        let spec = ".auto-claude/specs/007-x/implementation_plan.json";
        check(PlanFormat::AutoClaude, spec, "auto-claude/007-x", true);
        check(PlanFormat::AutoClaude, spec, "auto-claude/007", false);
        check(PlanFormat::AutoClaude, spec, ".worktrees/007-x", true);
        check(PlanFormat::AutoClaude, spec, ".auto-claude/worktrees/tasks/007-x", true);
        check(PlanFormat::AutoClaude, "implementation_plan.json", "auto-claude/", false);
        check(PlanFormat::Prodigy, "workflows/fix.yml", "prodigy-session-1", true);
        check(PlanFormat::Prodigy, "workflows/fix.yml", "main", false);
        check(PlanFormat::Tug, ".tugtool/tugplan-auth.md", "tugplan/auth-20260208", true);
        check(PlanFormat::Tug, ".tugtool/tugplan-auth.md", ".tugtree/tugplan__auth-20260208", true);
        check(PlanFormat::Tug, ".tugtool/tugplan-auth.md", "tugplan/other", false);
        check(PlanFormat::Epic, "epic.json", "epic-auth/sprint-1.2-wip", true);
        check(PlanFormat::Epic, "epic.json", "epic-auth/sprint-1.2", false);
        check(PlanFormat::Markdown, "tasks.md", "tasks", false);
    }
}
