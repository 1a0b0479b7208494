//! Where the work of another tool's half-finished plan is: the branches and worktrees that the tool calls so and that
//! have something which the base lacks; and the specification that a name means. Looks only.

use std::path::{Path, PathBuf};

use piton_core::event::{Found, FoundState};
use piton_core::ids::{Oid, StepId};
use piton_core::plan::PlanFormat;
use piton_formats::{Hint, PLAN_FILES, SPEC_FOLDERS, work_names};
use piton_git::repo::listed::listed;
use piton_git::worktree::Worktree;
use serde::Serialize;

use crate::error::EngineError;
use crate::project::Project;
use crate::run::plan_file::canonical;

/// A branch or worktree with work that the base lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkPlace {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worktree: Option<PathBuf>,
    /// How many commits it has that the base lacks.
    pub commits: u64,
    /// Whether files there are in no commit.
    pub uncommitted: bool,
    #[serde(skip)]
    made_at: i64,
}

/// What a half-finished plan says is done, against where a run of it would begin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundWork {
    /// Steps that the file says are done.
    pub done: Vec<StepId>,
    /// Of those, with the commit that the file names for them: what the base lacks.
    pub lacking: Vec<(StepId, String)>,
    /// Steps that the file says are in progress.
    pub in_progress: Vec<StepId>,
    /// The newest first.
    pub places: Vec<WorkPlace>,
}

/// Looks for the work of a plan that is at this path.
pub(crate) fn look(
    project: &Project,
    found: &[Found],
    (format, plan_path): (PlanFormat, &str),
    base: &Oid,
) -> Result<FoundWork, EngineError> {
    let is = |wanted: fn(&FoundState) -> bool| {
        let steps = found.iter().filter(|found| wanted(&found.state));
        steps.map(|found| found.step.step.clone()).collect::<Vec<StepId>>()
    };
    let done = is(|state| matches!(state, FoundState::Completed { .. }));
    let in_progress = is(|state| *state == FoundState::InProgress);
    if done.is_empty() && in_progress.is_empty() {
        return Ok(FoundWork::default());
    }
    let lacking = lacking(project, found, base)?;
    let places = places(project, (format, plan_path), base)?;
    Ok(FoundWork { done, lacking, in_progress, places })
}

/// The commits that the file names and the base does not have.
fn lacking(
    project: &Project,
    found: &[Found],
    base: &Oid,
) -> Result<Vec<(StepId, String)>, EngineError> {
    let named = found.iter().filter_map(|found| match &found.state {
        FoundState::Completed { commit: Some(commit) } => {
            Some((found.step.step.clone(), commit.to_lowercase()))
        }
        _ => None,
    });
    let named: Vec<(StepId, String)> = named.collect();
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let answer = project.git.call().args(&["rev-list", base.as_str()]).run()?;
    let mut known: Vec<&str> = answer.text("git rev-list")?.lines().collect();
    known.sort_unstable();
    let is_lacking = |(_, commit): &(StepId, String)| {
        let at = known.partition_point(|id| *id < commit.as_str());
        !known.get(at).is_some_and(|id| id.starts_with(commit.as_str()))
    };
    Ok(named.into_iter().filter(is_lacking).collect())
}

fn places(
    project: &Project,
    (format, plan_path): (PlanFormat, &str),
    base: &Oid,
) -> Result<Vec<WorkPlace>, EngineError> {
    let names = work_names(format, plan_path);
    let (git, root) = (&project.git, canonical(project.git.main_root()));
    let mut places: Vec<WorkPlace> = Vec::new();
    let trees = listed(git).into_iter().filter(|tree| tree.place.join(".git").exists());
    for tree in trees.filter(|tree| canonical(&tree.place) != root) {
        let place = canonical(&tree.place);
        let within = place.strip_prefix(&root).ok().and_then(Path::to_str);
        let is_own = tree.branch.as_deref().is_some_and(|branch| names.is_branch(branch))
            || within.is_some_and(|within| names.is_folder(within));
        let Some(head) = tree.head.as_ref().filter(|_| is_own) else { continue };
        places.push(WorkPlace {
            branch: tree.branch.clone(),
            commits: git.count_commits(base, head)?,
            uncommitted: Worktree::at(git, &place).dirty()?,
            worktree: Some(place),
            made_at: i64::MAX,
        });
    }
    for (refname, head, made_at) in git.commits_under("refs/heads/")? {
        let branch = refname.strip_prefix("refs/heads/").unwrap_or(&refname).to_owned();
        let is_known = places.iter().any(|place| place.branch.as_ref() == Some(&branch));
        if names.is_branch(&branch) && !is_known {
            let commits = git.count_commits(base, &head)?;
            let branch = Some(branch);
            places.push(WorkPlace { branch, worktree: None, commits, uncommitted: false, made_at });
        }
    }
    places.retain(|place| place.commits > 0 || place.uncommitted);
    places.sort_by_key(|place| std::cmp::Reverse(place.made_at));
    Ok(places)
}

/// A plan that is not named by its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPlan {
    pub file: PathBuf,
    /// What it is called.
    pub name: String,
    /// Whether only some of the words fit, so that it has to be confirmed.
    pub is_guess: bool,
}

/// The plan that a folder, or the name, number or words of a specification mean.
pub fn named_plan(root: &Path, named: &str) -> Option<NamedPlan> {
    let folder = Path::new(named);
    if folder.is_dir() {
        return plan_in(folder).map(|file| NamedPlan {
            name: named.to_owned(),
            file,
            is_guess: false,
        });
    }
    let specs = SPEC_FOLDERS.iter().filter_map(|folder| std::fs::read_dir(root.join(folder)).ok());
    let folders = specs.flatten().flatten().map(|entry| entry.path());
    let mut specs: Vec<(String, PathBuf)> = folders
        .filter_map(|folder| {
            let name = folder.file_name()?.to_str()?.to_owned();
            Some((name, plan_in(&folder)?))
        })
        .collect();
    specs.sort();
    let number = |text: &str| text.split('-').next().and_then(|digits| digits.parse::<u64>().ok());
    let exact = specs.iter().find(|(name, _)| name == named).or_else(|| {
        let wanted = named.parse::<u64>().ok()?;
        let mut fitting = specs.iter().filter(|(name, _)| number(name) == Some(wanted));
        fitting.next().filter(|_| fitting.next().is_none())
    });
    if let Some((name, file)) = exact {
        return Some(NamedPlan { file: file.clone(), name: name.clone(), is_guess: false });
    }
    let words: Vec<String> = named.split_whitespace().map(str::to_lowercase).collect();
    let scored = specs.into_iter().filter_map(|(name, file)| {
        let title = title_of(&file).unwrap_or_default();
        let text = format!("{name} {title}").to_lowercase();
        let score = words.iter().filter(|word| text.contains(word.as_str())).count();
        let name = if title.is_empty() { name } else { format!("{name}: {title}") };
        (score > 0).then_some((score, NamedPlan { file, name, is_guess: true }))
    });
    scored.max_by_key(|(score, _)| *score).map(|(_, plan)| plan)
}

/// The plan in a folder.
fn plan_in(folder: &Path) -> Option<PathBuf> {
    PLAN_FILES.iter().map(|name| folder.join(name)).find(|file| file.is_file())
}

fn title_of(file: &Path) -> Option<String> {
    let bytes = std::fs::read(file).ok()?;
    let hint = Hint { path: file.to_str()?, format: None };
    Some(piton_formats::read(&bytes, &hint).ok()?.plan.name)
}
