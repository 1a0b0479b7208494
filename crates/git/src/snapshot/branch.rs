//! Branches that show a step's last snapshot to people who look with git. Such a branch is piton's only
//! while it is where piton has left it: a person's commit on it is never moved over.

use piton_core::ids::{Handle, Oid, StepRef};

use crate::repo::{Git, GitError, Moved};

/// Where piton has left a branch: a ref there is named like it.
const LEFT: &str = "refs/piton/wip";
const WHY: &str = "piton: snapshot";
const RUN: &str = "{run}";
const STEP: &str = "{step}";

/// How branches are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(String);

impl Template {
    /// A name that git takes for a branch, with the run and the step in it; the error is a sentence.
    pub fn parse(text: &str) -> Result<Template, String> {
        for part in [RUN, STEP] {
            if text.matches(part).count() != 1 {
                return Err(format!("{text:?} must have {part} in it, once"));
            }
        }
        let sample = text.replace(RUN, "r").replace(STEP, "s");
        if sample.contains(['{', '}']) {
            return Err(format!("{text:?} has another name in braces than {RUN} and {STEP}"));
        }
        if !is_branch(&sample) {
            return Err(format!("{text:?} is no name that git takes for a branch"));
        }
        if sample.split('/').next().is_some_and(|first| first.eq_ignore_ascii_case("piton")) {
            return Err(format!("{text:?} is among piton's own branches: call it piton-wip/…"));
        }
        Ok(Template(text.to_owned()))
    }

    pub fn name(&self, run: &Handle, step: &StepRef) -> String {
        let step = match step.iteration {
            1 => step.step.to_string(),
            n => format!("{}-{n}", step.step),
        };
        self.0.replace(RUN, run.as_str()).replace(STEP, &step)
    }
}

/// The rules of `git check-ref-format --branch`.
fn is_branch(name: &str) -> bool {
    let bad = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    name.split('/').all(part)
        && !name.starts_with('-')
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
        && name != "@"
        && name != "HEAD"
        && !name.contains(bad)
}

/// Points a branch at a snapshot, if it is still piton's; says whether it did. `step` is the folder of
/// the step's refs.
pub fn show_as(git: &Git, branch: &str, to: &Oid, step: &str) -> Result<bool, GitError> {
    let refname = format!("refs/heads/{branch}");
    let left = format!("{LEFT}/{branch}");
    let (now, ours) = (git.ref_target(&refname)?, git.ref_target(&left)?);
    let is_ours = match &now {
        None => ours.is_none(),
        Some(now) => ours.as_ref() == Some(now) || is_snapshot(git, now, step)?,
    };
    if !is_ours || git.checked_out(&refname)?.is_some() {
        return Ok(false);
    }
    if now.as_ref() == Some(to) {
        return Ok(true);
    }
    // A kill in between leaves the branch at a snapshot of this step, which is as good.
    match git.move_ref(&refname, to, now.as_ref(), WHY)? {
        Moved::Moved => git.move_ref(&left, to, ours.as_ref(), WHY).map(|_| true),
        Moved::Lost { .. } => Ok(false),
    }
}

fn is_snapshot(git: &Git, commit: &Oid, step: &str) -> Result<bool, GitError> {
    Ok(git.commits_under(step)?.iter().any(|(_, kept, _)| kept == commit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_make_branches_and_nothing_else() {
        for good in ["piton-wip/{run}/{step}", "wip/{run}-{step}", "{run}/{step}"] {
            assert!(Template::parse(good).is_ok(), "{good}");
        }
        let bad = [
            "wip",
            "wip/{run}",
            "wip/{step}",
            "{run}/{step}/{run}",
            "-{run}/{step}",
            "{run}/{step}.",
            "{run}/{step}.lock",
            "a b/{run}/{step}",
            "../{run}/{step}",
            "{run}//{step}",
            "piton/{run}/{step}",
            "Piton/{run}/{step}",
            "{run}/{step}/{user}",
            "/{run}/{step}",
            "{run}~/{step}",
            "@{{run}/{step}",
        ];
        for bad in bad {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
