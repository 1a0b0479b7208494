//! A planner's file as the rest of its run's plan. The keeper of the planner reads it, and nobody else: the
//! plan is accepted in the transaction that completes the planner, so that no crash falls in between and a run
//! is never completed before its steps are known. What is read is a commit, not a tree that changes.

use std::sync::Arc;

use piton_core::ids::{Oid, StepRef};
use piton_core::plan::Plan;
use piton_core::run::Run;
use piton_formats::{Finding, Hint};

use crate::error::EngineError;
use crate::project::Project;

/// What a planner's file is in a commit.
pub(crate) enum Produced {
    /// The step is no planner, or its plan was accepted before.
    Nothing,
    Missing {
        file: String,
    },
    /// It cannot be run: why, in a line each.
    Bad {
        file: String,
        findings: Vec<String>,
    },
    /// The run's plan with it.
    Plan(Arc<Plan>),
}

/// Looks for the plan that this step produces.
pub(crate) fn produced(
    project: &Project,
    run: &Run,
    step: &StepRef,
    commit: &Oid,
) -> Result<Produced, EngineError> {
    let Some(from) = run.plan().planner().filter(|from| from.step == step.step) else {
        return Ok(Produced::Nothing);
    };
    let file = from.file.clone();
    let Some(bytes) = project.git.file_in(commit, &file)? else {
        return Ok(Produced::Missing { file });
    };
    let read = piton_formats::read(&bytes, &Hint { path: &file, format: None });
    let fits = match read {
        Ok(reading) => run.plan().with_produced(&reading.plan).map_err(|why| vec![why]),
        Err(error) => Err(error.findings.iter().map(told).collect()),
    };
    Ok(match fits {
        Ok(plan) => Produced::Plan(Arc::new(plan)),
        Err(findings) => Produced::Bad { file, findings },
    })
}

fn told(finding: &Finding) -> String {
    let Finding { line, column, message, hint, .. } = finding;
    let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{line}:{column} {message}{hint}")
}

impl Produced {
    /// The plan, or why there is none where there must be one.
    pub(crate) fn required(self) -> Result<Option<Arc<Plan>>, String> {
        match self {
            Produced::Nothing => Ok(None),
            Produced::Plan(plan) => Ok(Some(plan)),
            Produced::Missing { file } => Err(format!("there is no plan {file}")),
            Produced::Bad { file, findings } => {
                Err(format!("the plan {file} cannot be used: {}", findings.join("; ")))
            }
        }
    }
}
