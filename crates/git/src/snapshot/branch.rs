//! Branches that show a step's snapshots, a commit each, to people who look with git. Such a branch is
//! piton's while its last commit shows a snapshot; with a person's commit on it, it is theirs.

use piton_core::ids::{Handle, Oid, StepRef};

use crate::repo::{Git, GitError, commit_tree};

/// Trailer of a commit that shows a snapshot.
const SHOWS: &str = "Piton-Snapshot";
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

/// Where a branch is, if its last commit shows a snapshot: with a person's commit on it, it is theirs.
pub fn shown_at(git: &Git, branch: &str) -> Result<Option<Oid>, GitError> {
    let tip = git.ref_target(&format!("refs/heads/{branch}"))?;
    Ok(match tip {
        Some(tip) => shown_by(git, &tip)?.map(|_| tip),
        None => None,
    })
}

/// The snapshot that a commit shows.
fn shown_by(git: &Git, commit: &Oid) -> Result<Option<Oid>, GitError> {
    let words = ["log", "-1", "--no-show-signature", "--format=%B", commit.as_str(), "--"];
    let answer = git.call().args(&words).run()?;
    let message = String::from_utf8_lossy(&answer.stdout);
    let id = message.lines().rev().find_map(|line| line.strip_prefix(SHOWS)?.strip_prefix(": "));
    Ok(id.and_then(|id| Oid::new(id.trim()).ok()))
}

/// Lets a branch grow by a commit for each snapshot of a step that it does not show yet, unless it is a
/// person's. `step` is the folder of the step's refs; what is not `meant`, by its message, is left out.
pub fn show_as(
    git: &Git,
    branch: &str,
    step: &str,
    meant: impl Fn(&str) -> bool,
) -> Result<(), GitError> {
    let refname = format!("refs/heads/{branch}");
    let now = git.ref_target(&refname)?;
    let shown = match &now {
        None => None,
        Some(now) => match shown_by(git, now)? {
            Some(snapshot) => Some(snapshot),
            None => return Ok(()),
        },
    };
    if git.checked_out(&refname).is_some() {
        return Ok(());
    }
    let kept = kept(git, step)?;
    let begin = match shown {
        None => 0,
        Some(shown) => match kept.iter().position(|one| one.commit == shown) {
            Some(at) => at + 1,
            // The one that it shows was let go by age: only the newest is certain to be newer.
            None => kept.len().saturating_sub(1),
        },
    };
    let mut tip = now.clone();
    for one in kept[begin..].iter().filter(|one| meant(&one.message)) {
        let message = format!("{}\n{SHOWS}: {}", one.message.trim_end(), one.commit);
        let parents: Vec<Oid> = tip.or_else(|| one.parent.clone()).into_iter().collect();
        tip = Some(commit_tree(|| git.call(), &one.tree, &parents, &message)?);
    }
    match tip {
        Some(to) if now.as_ref() != Some(&to) => {
            git.move_ref(&refname, &to, now.as_ref(), WHY).map(drop)
        }
        _ => Ok(()),
    }
}

/// A snapshot of a step, as its ref shows it.
struct Kept {
    /// The claim and the number below it.
    order: (u64, u64),
    commit: Oid,
    tree: Oid,
    parent: Option<Oid>,
    message: String,
}

/// The snapshots of a step, oldest first.
fn kept(git: &Git, step: &str) -> Result<Vec<Kept>, GitError> {
    let format = "--format=%(refname)%00%(objectname)%00%(tree)%00%(parent)%00%(contents)%00";
    let answer = git.call().args(&["for-each-ref", format, "--", step]).run()?;
    let parts: Vec<&[u8]> = answer.stdout.split(|&byte| byte == 0).collect();
    let read = |row: &[&[u8]]| {
        let text = |n: usize| std::str::from_utf8(row[n]).ok().map(str::trim);
        let mut names = text(0)?.rsplit('/').map(str::parse);
        let (number, fence) = (names.next()?.ok()?, names.next()?.ok()?);
        Some(Kept {
            order: (fence, number),
            commit: Oid::new(text(1)?).ok()?,
            tree: Oid::new(text(2)?).ok()?,
            parent: text(3)?.split(' ').next().and_then(|id| Oid::new(id).ok()),
            message: String::from_utf8_lossy(row[4]).into_owned(),
        })
    };
    let mut kept: Vec<Kept> = parts.chunks_exact(5).filter_map(read).collect();
    kept.sort_by_key(|one| one.order);
    Ok(kept)
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
