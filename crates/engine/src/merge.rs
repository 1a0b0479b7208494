//! What a run has landed, brought into the branch that it began from, or another: looked at first, then
//! under an intent, so that a killed merge is finished by the next one. The branch moves by
//! compare-and-swap; a checkout of it is brought along, and nothing that a person has changed in it is
//! overwritten.

use std::path::PathBuf;

use piton_core::decide::Command;
use piton_core::event::MergeIntent;
use piton_core::ids::Oid;
use piton_core::view::run_branch;
use piton_git::crash;
use piton_git::file::private;
use piton_git::merging::{self, MergeResult};
use piton_git::repo::Moved;
use piton_git::repo::keep::HELD;
use piton_git::worktree::{Stand, Worktree};

use crate::error::EngineError;
use crate::error::Unmerged;
use crate::project::Project;
use crate::run::log::Log;

/// How often a merge is tried again because the branch moved meanwhile.
const TRIES: usize = 10;
/// Paths that are named, at most.
const NAMED_MAX: usize = 10;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct MergeAsk {
    /// The branch; where the run began unless told.
    pub into: Option<String>,
    pub how: How,
    pub open: OpenSteps,
}

/// How the branch gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By moving it forward where that is enough.
    Any,
    /// Always by a merge commit.
    MergeCommit,
    /// As one commit with everything.
    Squash,
}

/// What to do about a run with open steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenSteps {
    Refuse,
    /// What was landed so far is merged.
    Allow,
}

/// What a merge would do, or did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    pub into: String,
    pub onto: Oid,
    /// The run's branch.
    pub tip: Oid,
    pub way: Way,
    /// Where the branch is checked out.
    pub checkout: Option<PathBuf>,
    /// The folder with what a killed merge had left half done.
    pub aside: Option<PathBuf>,
}

/// How a branch comes to have what a run has landed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Nothing has landed: there is nothing to bring.
    NothingLanded,
    /// It has it.
    Nothing,
    FastForward,
    /// By a commit that has everything of both; it is made only by the merge itself.
    Commit(Option<Oid>),
}

impl Merge {
    /// Where the branch is afterwards, as far as that is known.
    pub fn to(&self) -> Option<&Oid> {
        match &self.way {
            Way::NothingLanded | Way::Nothing => Some(&self.onto),
            Way::FastForward => Some(&self.tip),
            Way::Commit(commit) => commit.as_ref(),
        }
    }
}

/// Looks whether it would go well; moves nothing.
pub fn preview(project: &Project, log: &Log, ask: &MergeAsk) -> Result<Merge, EngineError> {
    let run = log.run();
    if !run.is_completed() && ask.open == OpenSteps::Refuse {
        let (handle, open) = (run.opened.handle.clone(), run.count_remaining());
        return Err(Unmerged::Unfinished { handle, open }.into());
    }
    let git = &project.git;
    let into = branch(project, log, ask.into.as_deref())?;
    let name = format!("refs/heads/{into}");
    let missing = || Unmerged::NoBranch { why: format!("there is no branch {into}") };
    let onto = git.ref_target(&name)?.ok_or_else(missing)?;
    let branch = run_branch(&run.opened.handle);
    // A run that has landed nothing has nothing to merge, and maybe no branch.
    let tip = git.ref_target(&format!("refs/heads/{branch}"))?.or_else(|| run.landed.clone());
    let tip = tip.unwrap_or_else(|| run.opened.base.clone());
    let checkout = git.checked_out(&name);
    let merge = |way: Way| Merge {
        into: into.clone(),
        onto: onto.clone(),
        tip: tip.clone(),
        way,
        checkout: checkout.clone(),
        aside: None,
    };
    if tip == run.opened.base {
        return Ok(merge(Way::NothingLanded));
    }
    if git.is_ancestor(&tip, &onto)? || squashed(project, log, &tip, &onto)? {
        return Ok(merge(Way::Nothing));
    }
    let (way, result) = match git.fork_point(&onto, &tip)? {
        None => return Err(Unmerged::Unrelated { branch, into: into.clone() }.into()),
        Some(fork) if fork == onto && ask.how == How::Any => (Way::FastForward, tip.clone()),
        Some(_) => match merging::merged_tree(git, (&onto, &tip))? {
            MergeResult::Done(tree) => (Way::Commit(None), tree),
            MergeResult::Conflict { paths } => {
                return Err(Unmerged::Conflict { branch, into: into.clone(), paths }.into());
            }
        },
    };
    if let Some(place) = &checkout {
        let tree = Worktree::at(git, place);
        refuse_changed(&tree, &into, (&onto, &result))?;
        refuse_in_the_way(&tree, &onto, &result)?;
    }
    Ok(merge(way))
}

/// Whether an earlier merge of the same as one commit is in the branch.
fn squashed(project: &Project, log: &Log, tip: &Oid, onto: &Oid) -> Result<bool, EngineError> {
    Ok(match &log.run().merged {
        Some(merged) if merged.tip == *tip => project.git.is_ancestor(&merged.commit, onto)?,
        _ => false,
    })
}

/// The branch that a run's work is for.
pub(crate) fn target(project: &Project, log: &Log) -> Result<String, EngineError> {
    branch(project, log, None)
}

/// The branch that is meant: the one that is named, or the one that the run began from. An older run does
/// not know that: then it is the one that the plan names as its base, or what is checked out here.
fn branch(project: &Project, log: &Log, asked: Option<&str>) -> Result<String, EngineError> {
    let is_branch = |name: &str| project.git.ref_target(&format!("refs/heads/{name}"));
    if let Some(name) = asked {
        return Ok(name.to_owned());
    }
    if let Some(name) = &log.run().opened.base_branch {
        let why = || format!("{name}, from which the run began, is gone");
        is_branch(name)?.ok_or_else(|| Unmerged::NoBranch { why: why() })?;
        return Ok(name.clone());
    }
    if let Some(base) = log.run().plan().base.as_deref()
        && is_branch(base)?.is_some()
    {
        return Ok(base.to_owned());
    }
    for place in [project.git.here(), project.git.main_root()] {
        let branch = Worktree::at(&project.git, place).head()?.and_then(|head| head.branch);
        if let Some(branch) = branch.filter(|name| !name.starts_with("piton/")) {
            return Ok(branch);
        }
    }
    let why =
        "the run began from none, the plan names none, and none is checked out here".to_owned();
    Err(Unmerged::NoBranch { why }.into())
}

/// A checkout is left alone in which the merge would have to change what no commit has yet.
fn refuse_changed(tree: &Worktree, into: &str, ways: (&Oid, &Oid)) -> Result<(), EngineError> {
    let (into, worktree) = (into.to_owned(), tree.path().to_owned());
    if let Some(begun) = tree.in_progress() {
        return Err(Unmerged::Busy { into, worktree, what: begun.to_string() }.into());
    }
    match tree.changed_on_the_way(ways.0, ways.1, NAMED_MAX)? {
        what if what.is_empty() => Ok(()),
        what => Err(Unmerged::Dirty { into, worktree, what }.into()),
    }
}

/// Brings what a run has landed into a branch. A merge that was killed is finished first.
pub fn merge(project: &Project, log: &mut Log, ask: &MergeAsk) -> Result<Merge, EngineError> {
    let lock = private(&project.merge_lock());
    let lock = lock.map_err(EngineError::io("the merge lock cannot be opened"))?;
    lock.lock().map_err(EngineError::io("the merge lock cannot be taken"))?;
    log.refresh()?;
    let aside = finish(project, log)?;
    for _ in 0..TRIES {
        let mut done = Merge { aside: aside.clone(), ..preview(project, log, ask)? };
        let intent = match prepare(project, log, &mut done, ask.how)? {
            Some(intent) => intent,
            None => {
                record(log, &done.into, &done.onto, &done.tip)?;
                return Ok(done);
            }
        };
        let tree = done.checkout.as_deref().map(|place| Worktree::at(&project.git, place));
        log.submit(&Command::IntendMerge(intent.clone()))?;
        crash::point("merge.intended");
        if let Some(tree) = &tree {
            tree.advance(&intent.onto, &intent.to)?;
            crash::point("merge.tree-updated");
        }
        if moved(project, &intent)? {
            crash::point("merge.ref-moved");
            record(log, &intent.into, &intent.to, &intent.tip)?;
            return Ok(done);
        }
        // Somebody was faster: the checkout goes back to what it was, and it is looked at anew.
        if let Some(tree) = &tree {
            tree.advance(&intent.to, &intent.onto)?;
        }
    }
    let into = branch(project, log, ask.into.as_deref())?;
    Err(Unmerged::Moving { into }.into())
}

/// Makes the commit that the branch is moved to, if it has to move.
fn prepare(
    project: &Project,
    log: &Log,
    done: &mut Merge,
    how: How,
) -> Result<Option<MergeIntent>, EngineError> {
    let to = match &done.way {
        Way::NothingLanded | Way::Nothing => return Ok(None),
        Way::FastForward => done.tip.clone(),
        Way::Commit(_) => {
            let parents = match how {
                How::Squash => vec![done.onto.clone()],
                How::Any | How::MergeCommit => vec![done.onto.clone(), done.tip.clone()],
            };
            let both = (&done.onto, &done.tip);
            let held = format!("{HELD}/merge/{}", log.run().opened.handle);
            match merging::merge_commit(&project.git, both, &parents, (&message(log, how), &held))?
            {
                MergeResult::Done(commit) => commit,
                MergeResult::Conflict { paths } => {
                    let branch = run_branch(&log.run().opened.handle);
                    return Err(
                        Unmerged::Conflict { branch, into: done.into.clone(), paths }.into()
                    );
                }
            }
        }
    };
    if let Way::Commit(commit) = &mut done.way {
        *commit = Some(to.clone());
    }
    let (into, onto, tip) = (done.into.clone(), done.onto.clone(), done.tip.clone());
    Ok(Some(MergeIntent { into, onto, to, tip }))
}

/// What the commit says: the run, and each step with its title.
fn message(log: &Log, how: How) -> String {
    let run = log.run();
    let handle = &run.opened.handle;
    let subject = match how {
        How::Squash => run.plan().name.clone(),
        How::Any | How::MergeCommit => format!("Merge run {handle}: {}", run.plan().name),
    };
    let done = run.steps().filter(|(_, _, state)| state.is_completed());
    let steps: Vec<String> =
        done.map(|(step, plan, _)| format!("- {step}: {}", plan.title)).collect();
    format!("{subject}\n\n{}\n\nPiton-Run: {handle}\n", steps.join("\n"))
}

fn moved(project: &Project, intent: &MergeIntent) -> Result<bool, EngineError> {
    let name = format!("refs/heads/{}", intent.into);
    let answer = project.git.move_ref(&name, &intent.to, Some(&intent.onto), "piton: merge")?;
    Ok(match answer {
        Moved::Moved => true,
        Moved::Lost { current } => current.as_ref() == Some(&intent.to),
    })
}

fn record(log: &mut Log, into: &str, commit: &Oid, tip: &Oid) -> Result<(), EngineError> {
    let (into, commit, tip) = (into.to_owned(), commit.clone(), tip.clone());
    log.submit(&Command::Merge { into, commit, tip })?;
    Ok(())
}

/// Finishes what a killed merge had begun: the checkout may be half updated, the branch moved or not.
/// Where nothing had happened yet, or the branch has gone elsewhere since, it is begun anew. Answers with
/// the folder that has what was half done.
fn finish(project: &Project, log: &mut Log) -> Result<Option<PathBuf>, EngineError> {
    let Some(intent) = log.run().merging.clone() else { return Ok(None) };
    let name = format!("refs/heads/{}", intent.into);
    let current = project.git.ref_target(&name)?;
    let at_its_end = current.as_ref() == Some(&intent.to);
    if !at_its_end && current.as_ref() != Some(&intent.onto) {
        return Ok(None);
    }
    let mut aside = None;
    match project.git.checked_out(&name) {
        Some(place) => {
            let tree = Worktree::at(&project.git, &place);
            match tree.stand(&intent.onto, &intent.to)? {
                Stand::From if !at_its_end => return Ok(None),
                Stand::From => tree.advance(&intent.onto, &intent.to)?,
                Stand::To => {}
                Stand::Between => aside = tree.force_between(&intent.onto, &intent.to)?,
            }
        }
        None if !at_its_end => return Ok(None),
        None => {}
    }
    if moved(project, &intent)? {
        record(log, &intent.into, &intent.to, &intent.tip)?;
    }
    Ok(aside)
}

/// Files that git does not know, where the merge brings one of that name.
fn refuse_in_the_way(tree: &Worktree, onto: &Oid, result: &Oid) -> Result<(), EngineError> {
    let what = tree.in_the_way(onto, result, NAMED_MAX)?;
    match what.is_empty() {
        true => Ok(()),
        false => {
            let worktree = tree.path().to_owned();
            Err(Unmerged::InTheWay { worktree, what }.into())
        }
    }
}
