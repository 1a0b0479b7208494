//! What a run, or one step of it, has changed: between which commits, and what git says about them. No
//! external diff, no text conversion, no colour; nothing is written.

use piton_core::event::{Event, Fact, LandingIntent, Under};
use piton_core::ids::{Oid, StepRef};
use piton_core::record::{Cursor, Record};
use piton_core::run::Phase;
use piton_core::view::run_branch;
use piton_git::repo::{Call, GitError, names};
use serde::Serialize;

use crate::error::EngineError;
use crate::error::LogError;
use crate::project::Project;
use crate::run::log::Log;

/// What is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Range {
    pub from: Oid,
    pub to: Oid,
    /// The snapshot that is looked at, where the work has not been landed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// What became of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedFile {
    pub path: String,
    /// Lines; none of a file that has no lines.
    pub added: Option<u64>,
    pub removed: Option<u64>,
}

/// How it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Patch,
    Stat,
}

/// What the run has landed since it began.
pub fn of_run(project: &Project, log: &Log) -> Result<Range, EngineError> {
    let opened = &log.run().opened;
    let tip = project.git.ref_target(&format!("refs/heads/{}", run_branch(&opened.handle)))?;
    let to = tip.or_else(|| log.run().landed.clone()).unwrap_or_else(|| opened.base.clone());
    Ok(Range { from: opened.base.clone(), to, snapshot: None })
}

/// What a step has landed; before that, what its last snapshot has. None where there is neither.
pub fn of_step(project: &Project, log: &Log, step: &StepRef) -> Result<Option<Range>, EngineError> {
    let Some((_, state)) = log.run().step(step) else { return Ok(None) };
    if let Phase::Completed { commit: Some(to), .. } = &state.phase {
        let from = match landed_onto(log, step, to)? {
            Some(onto) => onto,
            // It was on the branch already.
            None => landed_before(project, log, step, to)?,
        };
        return Ok(Some(Range { from, to: to.clone(), snapshot: None }));
    }
    let Some(kept) = &state.snapshot else { return Ok(None) };
    let (to, name) = (kept.snapshot.commit.clone(), kept.snapshot.refname.clone());
    let from = match (&state.base, &kept.snapshot.head) {
        (Some(base), _) => base.clone(),
        (None, Some(head)) => {
            let tip = of_run(project, log)?.to;
            project.git.fork_point(head, &tip)?.unwrap_or_else(|| log.run().opened.base.clone())
        }
        (None, None) => log.run().opened.base.clone(),
    };
    Ok(Some(Range { from, to, snapshot: Some(name) }))
}

/// Where the run's branch was moved from when it was moved to this commit for a step, whatever the step had
/// landed before.
fn landed_onto(log: &Log, step: &StepRef, commit: &Oid) -> Result<Option<Oid>, EngineError> {
    let records = log.store().read(log.run().opened.run, Cursor::START).map_err(LogError::from)?;
    let onto = |record: &Record| match Event::from_body(&record.body) {
        Ok(Event::Under(
            Under { step: of, .. },
            Fact::LandingIntended(LandingIntent { onto, to, .. }),
        )) if of == *step && to == *commit => Some(onto),
        _ => None,
    };
    Ok(records.iter().rev().find_map(onto))
}

/// What the run's branch had when a step landed on it: the newest of what others had landed by then.
fn landed_before(
    project: &Project,
    log: &Log,
    step: &StepRef,
    commit: &Oid,
) -> Result<Oid, EngineError> {
    let landed = log.run().steps().filter(|(other, _, _)| other != step);
    let landed = landed.filter_map(|(_, _, state)| match &state.phase {
        Phase::Completed { commit: Some(commit), at, .. } => Some((*at, commit)),
        _ => None,
    });
    let mut landed: Vec<_> = landed.filter(|(_, other)| *other != commit).collect();
    landed.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
    for (_, other) in landed {
        if project.git.is_ancestor(other, commit)? {
            return Ok(other.clone());
        }
    }
    Ok(log.run().opened.base.clone())
}

/// What git prints about it.
pub fn told(project: &Project, range: &Range, form: Form) -> Result<Vec<u8>, EngineError> {
    let form = match form {
        Form::Patch => ["--patch", "--src-prefix=a/", "--dst-prefix=b/"].as_slice(),
        Form::Stat => &["--stat"],
    };
    Ok(compared(project, range, form).run()?.stdout)
}

/// The files that differ.
pub fn files(project: &Project, range: &Range) -> Result<Vec<ChangedFile>, EngineError> {
    let answer = compared(project, range, &["--numstat", "-z", "--no-renames"]).run()?;
    let row = |part: &[u8]| {
        let mut fields = part.splitn(3, |&byte| byte == b'\t');
        let mut count = || {
            let text = String::from_utf8_lossy(fields.next()?).into_owned();
            Some(text.parse::<u64>().ok())
        };
        let (added, removed) = (count()?, count()?);
        Some(ChangedFile { path: names::shown(fields.next()?), added, removed })
    };
    let unknown = || GitError::unexpected("git diff", "a row without a path");
    let rows = answer.parts().map(|part| row(part).ok_or_else(unknown));
    Ok(rows.collect::<Result<_, _>>()?)
}

fn compared(project: &Project, range: &Range, form: &[&str]) -> Call {
    let call = project.git.call().args(&["diff", "--no-ext-diff", "--no-textconv", "--no-color"]);
    let call = call.args(form).arg("--end-of-options");
    call.args(&[range.from.as_str(), range.to.as_str(), "--"])
}
